"""Logux: messages for people."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from typing import Any

from logclient._ext.logux import BAD_JSON, CONTROL, PING, STATUS_NAMES, Decoder
from logclient.evidence.frames import BODY_KEPT, Bytes, Frame, around, counted

_MAX_TEXT = 256  # characters of a text in a title
_TYPE = re.compile(rb'\s*\[\s*"(connect|connected|debug|error|headers|ping|pong|sync|synced)"')
# A token, and a token in a message that an error quotes.
_TOKENS = (
    re.compile(rb'((?<!\\)"token"\s*:\s*")((?:[^"\\]|\\.)*)'),
    re.compile(rb'(\\+"token\\+"\s*:\s*\\+")((?:[^"\\]|\\(?!\\*"))*)'),
)


def frames(data: Bytes) -> Iterator[Frame]:
    """Describe a message, with the actions of a sync, or several messages, one in each line.

    Faults are those that the decoder of captures finds. Ids and times are shown as they travel: relative to
    the second time of the connection's ``connected``. Tokens are not shown.
    """
    view = memoryview(data)
    decoder = Decoder(identity=False)
    if _decode(decoder, view).status.tolist() == [BAD_JSON] and b"\n" in bytes(view).rstrip():
        at = 0
        for line in bytes(view).split(b"\n"):
            if line.strip():
                yield from _message(view[at : at + len(line)], at, decoder)
            at += len(line) + 1
    else:
        yield from _message(view, 0, decoder)


def _decode(decoder: Decoder, unit: memoryview) -> Any:
    return decoder.decode(unit, array("q", [0]), array("q", [len(unit)]))


def _message(unit: memoryview, at: int, decoder: Decoder) -> Iterator[Frame]:
    rows = _decode(decoder, unit)
    text = bytes(unit)
    status = rows.status[0] if len(rows) else -1
    if status in (PING, CONTROL):
        yield _other(text, at)
    elif status < BAD_JSON:
        yield from _sync(text, at, list(zip(rows.offset.tolist(), rows.length.tolist(), strict=True)))
    else:
        found = _TYPE.match(text)
        kind = found[1].decode() if found else "message"
        yield Frame(at, 0, len(text), f"{kind} of {counted(len(text), 'byte')}", {"type": kind})
        offset = rows.offset[0]
        shown, begin = around(memoryview(masked(text)), offset)
        wrong = _WRONG[STATUS_NAMES[status]] if text.strip() else "an empty message"
        yield Frame(at + offset, 1, rows.length[0], "", {}, wrong=wrong, around=shown, around_at=at + begin)


def masked(text: bytes) -> bytes:
    """Replace tokens by as many asterisks, so that offsets remain valid."""
    for token in _TOKENS:
        text = token.sub(lambda found: found[1] + b"*" * len(found[2]), text)
    return text


def _sync(text: bytes, at: int, places: list[tuple[int, int]]) -> Iterator[Frame]:
    first = places[0][0] if places else text.rindex(b"]")
    (added,) = json.loads(text[:first].rstrip().removesuffix(b",").decode() + "]")[1:]
    n = len(places)
    title = f"sync of {counted(n, 'action')}, added {as_json(added)}"
    yield Frame(at, 0, len(text), title, {"type": "sync", "added": added, "actions": n})
    ends = [*(begin for begin, _ in places[1:]), text.rindex(b"]")]
    for (begin, size), end in zip(places, ends, strict=False):
        action = text[begin : begin + size]
        kind = _loaded(action).get("type", "action")[:_MAX_TEXT]
        meta = _loaded(text[begin + size : end].strip(b", \t\r\n"))
        title = ", ".join((kind, *(f"{name[:_MAX_TEXT]} {as_json(value)}" for name, value in meta.items())))
        fields = {"type": "action", "action": kind, "meta": meta}
        yield Frame(at + begin, 1, size, title, fields, action[:BODY_KEPT], size)


def _loaded(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; return an empty one if it is nested deeper than Python's parser allows."""
    try:
        found: dict[str, Any] = json.loads(text.decode())
    except RecursionError:
        return {}
    return found


def _other(text: bytes, at: int) -> Frame:
    try:
        kind, *rest = json.loads(text.decode())
    except RecursionError:
        kind, rest = "message", []
    fields: dict[str, Any] = {"type": kind}
    title = kind
    body: Any = None
    if kind in ("connect", "connected"):
        number, node_id, when, *options = rest
        fields |= {"protocol": number, "node_id": node_id}
        fields |= {"synced": when} if kind == "connect" else {"start": when[0], "end": when[1]}
        title += f", protocol {as_json(number)}, node id {node_id[:_MAX_TEXT]}, "
        title += f"last added {as_json(when)}" if kind == "connect" else " to ".join(map(as_json, when))
        for name, value in options[0].items() if options else ():
            if name != "token":
                fields.setdefault("options", {})[name] = value
                title += f", {name[:_MAX_TEXT]} {as_json(value)}"
            else:
                title += ", with a token"
    elif kind in ("ping", "pong", "synced"):
        fields["added"] = rest[0]
        title += f", added {as_json(rest[0])}"
    elif kind == "error":
        fields["error"], *more = rest
        title += f" {rest[0][:_MAX_TEXT]}"
        body = more[0] if more else None
    elif rest:
        body = rest[-1]
    carried = b""
    if body is not None:
        carried = masked(body.encode("utf-8", "replace") if isinstance(body, str) else _dumped(body))
    return Frame(at, 0, len(text), title, fields, carried[:BODY_KEPT], len(carried))


def as_json(value: Any) -> str:
    """Return the first characters of a value in JSON."""
    return _dumped(value)[:_MAX_TEXT].decode()


def _dumped(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError:
        return b"..."


_WRONG = {
    "bad_json": "no JSON text in UTF-8 from here on, or nested deeper than 1,024 levels",
    "bad_message": "no list with a type in front, or not what a message of this type has here",
    "unknown_message": "an unknown type",
    "bad_sync": "a sync has a number behind its type, then actions, each with a meta",
    "bad_action": "no action: an object with a string as its type, and no number as its length",
    "bad_meta": "no meta: an object with a number as its time, and an id of one of the three forms",
}
