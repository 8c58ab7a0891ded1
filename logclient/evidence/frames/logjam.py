"""Logjam: messages for people."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial
from typing import Any

from logclient._ext.logjam import STATUS_NAMES, TORN, Decoder, unpack
from logclient.delivery.contract import find_frames, join_frames
from logclient.evidence.frames import BODY_KEPT, Bytes, Frame, counted, text_of
from logclient.logjam.messages import COMPRESSIONS

_text = partial(text_of, limit=256)


def frames(data: Bytes) -> Iterator[Frame]:
    """Yield the messages of one direction, each followed by its frames, with bodies unpacked.

    Faults are those that the decoder of captures finds. Replies are recognized by their form.
    """
    view = memoryview(data)
    decoder = Decoder()
    at = 0
    while at < len(view):
        try:
            spans = find_frames(view, at)
        except ValueError:
            wrong = f"cut inside a message: {len(view) - at:,} bytes of it"
            yield Frame(at, 0, len(view) - at, "", {}).marked(wrong, view)
            return
        yield from _message(view, at, spans, decoder)
        at = spans[-1][1]


def _message(view: memoryview, at: int, spans: list[tuple[int, int]], decoder: Decoder) -> Iterator[Frame]:
    unit = bytes(view[at : spans[-1][1]])
    parts = [bytes(view[begin : min(end, begin + BODY_KEPT)]) for begin, end in spans]
    if _is_reply(parts):
        fields: dict[str, Any] = {"type": "reply", "app_env": _text(parts[0]), "status": _text(parts[1])}
        if len(parts) == 3:
            fields["host"] = _text(parts[2])
        yield Frame(at, 0, len(unit), f"reply {' '.join(fields[k] for k in list(fields)[1:])}", fields)
        return
    row = decoder.decode(unit, array("q", [0]), array("q", [len(unit)]))
    status = row.status[0]
    name = STATUS_NAMES[status]
    known = row.app_env_length[0] or row.topic_length[0]
    kind = "ping" if name == "ping" else "request" if row.request[0] else "message"
    fields = {"type": kind, "frames": len(spans)}
    title = f"{kind} of {counted(len(spans), 'frame')}"
    if known:
        first, second = map(_text, parts[row.request[0] :][:2])
        app_env, topic = (second, first) if kind == "ping" else (first, second)
        fields |= {"app_env": app_env, "topic": topic}
        title += f", {app_env}, {topic}"
    if known and name not in ("no_meta", "old_meta", "bad_meta"):
        compression = row.compression[0]
        fields |= {
            "compression": COMPRESSIONS[compression] if compression < len(COMPRESSIONS) else compression,
            "device": row.device[0],
            "created_ms": row.created_ms[0],
            "sequence": row.number[0],
        }
        about = ", {compression}, device {device}, created {created_ms}, sequence {sequence}"
        title += about.format(**fields)
    wrong = _WRONG.get(name, "")
    yield Frame(at, 0, len(unit), title, fields).marked(wrong, view)
    body_at = 2 + row.request[0]
    for place, (begin, end) in enumerate(spans):
        if known and not wrong and place != body_at:
            continue  # its fields are shown already
        size = end - begin
        body, length, words = parts[place], size, f"frame {place + 1}, {counted(size, 'byte')}"
        if known and place == body_at and row.compression[0] and not wrong:
            # a body that cannot be opened is shown as it is; its fault is shown above
            opened = expand(unit)
            begin_at = begin - at
            length = len(opened) - len(unit) + size
            body = opened[begin_at : begin_at + min(length, BODY_KEPT)]
            words += f", {length:,} unpacked"
        inner = Frame(begin - 4, 1, 4 + size, words, {"type": "frame", "length": size}, body, length)
        if known and place == body_at and name == "not_json":
            inner = inner.marked("not one JSON object in UTF-8", view)
        yield inner


def expand(unit: bytes) -> bytes:
    """Return a captured message with its body unpacked in place, if it carries an event."""
    row = Decoder().decode(unit, array("q", [0]), array("q", [len(unit)]))
    if row.status[0] >= TORN or not row.compression[0]:
        return unit
    parts = [unit[begin:end] for begin, end in find_frames(unit)]
    place = 2 + row.request[0]
    parts[place] = unpack(row.compression[0], parts[place])
    return join_frames(parts)


def _is_reply(parts: list[bytes]) -> bool:
    if len(parts) == 2:
        return parts[1] in (b"202 Accepted", b"400 Bad Request")
    return len(parts) == 3 and parts[:2] == [b"ping", b"200 OK"]


_WRONG = {
    "torn": "its frames do not add up",
    "bad_frames": "a message has four frames, a request an empty one before them",
    "no_meta": "three frames: the meta is missing",
    "old_meta": "a meta of 22 bytes, as the producer text has it: servers want 24 bytes",
    "bad_meta": "no meta: 24 bytes that begin with cabd, compression and version 1",
    "bad_app_env": "an app-env that the device refuses: ASCII with a dash in it",
    "bad_topic": "a topic that the device drops silently",
    "bad_compression": "an unknown compression",
    "bad_zlib": "its body is not a whole zlib stream, such as gzip or raw deflate: importers hang on it",
    "bad_snappy": "its body is no snappy block",
    "bad_lz4": "its body is no LZ4 block behind a big-endian length: importers abort on it",
    "too_large": "its body unpacks to more than 64 MiB: importers hang or abort on it",
    "no_library": "its body cannot be opened here: python-snappy or lz4 is not installed",
}
