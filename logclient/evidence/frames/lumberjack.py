"""Lumberjack: the frames of a connection for people."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from logclient._ext.lumberjack import check_json
from logclient.evidence.frames import BODY_KEPT, Bytes, Frame, counted
from logclient.lumberjack.reader import Reader

MAX_INFLATED = 64 << 20
"""Bound on the bytes of a compressed frame with everything in it, inflated: the reader's."""

_HEADS = {b"W": 6, b"A": 6, b"C": 6, b"J": 10, b"D": 10}
_DEEPEST = 2  # levels of compressed frames, as the reader accepts them
_PIECE = 1 << 16
_PAIRS_KEPT = 1000


def frames(data: Bytes) -> Iterator[Frame]:
    """Yield the frames of one direction of a connection in order, with the contents of compressed frames.

    This shows all frames; `Reader` decides which are allowed. After a fault the walk goes on as long as
    frames can be separated, and frames are judged again from the next window on. Bytes that begin with an ack
    are taken for a reader's, all others for a writer's, and bytes that begin with an event's frame of version
    1 for the literal form, as it is captured.
    """
    view = memoryview(data)
    head = bytes(view[:2])
    judge = _Judge(head[1:] == b"A", head in (b"1J", b"1D", b"1C"))
    whole = True
    for frame, is_whole in _walk(view, 0, MAX_INFLATED):
        if frame.depth == 0:
            whole = is_whole
            wrong = judge.look(frame, view) if whole else ""
            if wrong:
                frame = frame.marked(f"{wrong}; {frame.wrong}" if frame.wrong else wrong, view)
        yield frame
    wrong = judge.end() if whole else ""
    if wrong:
        yield Frame(len(view), 0, 0, "", {}).marked(wrong, view)


class _Judge:
    """Finds the fault of a frame that is whole."""

    def __init__(self, acks: bool, literal: bool) -> None:
        self.acks = acks
        # A unit of the literal form has no window frame.
        self.reader = None if acks else Reader(max_inflated=MAX_INFLATED, strict_spec=literal)

    def look(self, frame: Frame, view: memoryview) -> str:
        kind = frame.fields["type"]
        if self.acks:
            return "" if kind == "A" else f"a '{kind}' frame among acks"
        if self.reader is None:
            if kind != "W":
                return ""  # the window is already at fault
            self.reader = Reader(max_inflated=MAX_INFLATED)
        chunk = view[frame.offset : frame.offset + frame.size]
        self.reader.receive_data(chunk)
        wrong = self.reader.error or ""
        if wrong and kind == "W":
            # Most likely it came too early, and begins the next window anyway.
            self.reader = Reader(max_inflated=MAX_INFLATED)
            self.reader.receive_data(chunk)
        if self.reader.error:
            self.reader = None
        return wrong

    def end(self) -> str:
        if self.reader is None:
            return ""
        self.reader.receive_eof()
        return self.reader.error or ""


def _walk(view: memoryview, depth: int, budget: int) -> Iterator[tuple[Frame, bool]]:
    """Yield each frame, and whether the next one can be found after it; compressed frames with their content.

    `depth` is the number of compressed frames around, `budget` the bound on the content in bytes.
    """
    at = 0
    whole = True
    while whole and at < len(view):
        frame, whole, content = _frame(view, at, depth, budget)
        yield frame.marked(frame.wrong, view), whole
        if content is not None:
            yield from _walk(memoryview(content), depth + 1, budget - len(content))
        at += frame.size


def _frame(view: memoryview, at: int, depth: int, budget: int) -> tuple[Frame, bool, Bytes | None]:
    head = bytes(view[at : at + 10])
    left = len(view) - at
    kind = head[1:2]
    wrong = ""
    if head[0] not in b"12":
        wrong = f"no frame: its version is byte 0x{head[0]:02x}, not '1' or '2'"
    elif kind and kind not in _HEADS:
        wrong = f"no frame: its type is byte 0x{kind[0]:02x}"
    elif not kind or left < _HEADS[kind]:
        wrong = f"cut inside the head of a frame: {counted(left, 'byte')} of it"
    if wrong:
        return Frame(at, depth, left, "", {}, wrong=wrong), False, None
    number = int.from_bytes(head[2:6], "big")
    name = head[:2].decode()
    fields: dict[str, Any] = {"version": int(name[0]), "type": name[1]}
    if kind == b"W":
        fields["window"] = number
        return Frame(at, depth, 6, f"{name} window of {counted(number, 'event')}", fields), True, None
    if kind == b"A":
        fields["ack"] = number
        title = f"{name} ack {number}" + ("" if number else " (keep-alive)")
        return Frame(at, depth, 6, title, fields), True, None
    body: bytes | list[tuple[bytes, bytes]]
    content = None
    if kind == b"D":
        fields["sequence"] = number
        count = int.from_bytes(head[6:10], "big")
        size, body = _pairs(view, at, count)
        length = min(size, left) - 6
        title = f"{name} sequence {number}, {counted(count, 'pair')}"
    else:
        begin = _HEADS[kind]
        length = int.from_bytes(head[begin - 4 : begin], "big")
        size = begin + length
        payload = view[at + begin : at + size]
        body = bytes(payload[:BODY_KEPT]) if kind == b"J" else b""
        if kind == b"J":
            fields["sequence"] = number
            title = f"{name} sequence {number}, {counted(length, 'byte')}"
            if size <= left and check_json(payload) is None:
                wrong = "not one JSON object in UTF-8"
        else:
            title = f"{name} compressed, {counted(length, 'byte')}"
            if depth >= _DEEPEST:
                wrong = "a compressed frame nested more than once is not opened"
            elif size <= left:
                content, behind, wrong = _inflated(payload, budget)
                if content is not None:
                    fields["inflated"] = len(content)
                    title += f", {len(content):,} inflated"
                if behind:
                    title += f", {counted(behind, 'byte')} behind the stream"
    fields["length"] = length
    if size > left:
        wrong = f"cut: {left:,} of its {size:,} bytes" if kind != b"D" else f"cut after {left:,} bytes"
    frame = Frame(at, depth, min(size, left), title, fields, body, length, wrong)
    return frame, size <= left, content


def expand(unit: bytes, max_inflated: int = MAX_INFLATED) -> bytes:
    """Return a captured unit with its compressed frames inflated in place, as far as they can be."""
    parts: list[Bytes] = []
    _expand(memoryview(unit), 0, max_inflated, parts)
    return b"".join(parts)


def _expand(view: memoryview, depth: int, budget: int, parts: list[Bytes]) -> int:
    """Add the frames to `parts`; return what is left of the bound on inflated bytes."""
    at = 0
    while at < len(view):
        frame, _, content = _frame(view, at, depth, budget)
        if content is None or frame.wrong:
            parts.append(view[at : at + frame.size])
        else:
            budget = _expand(memoryview(content), depth + 1, budget - len(content), parts)
        at += frame.size
    return budget


def _pairs(view: memoryview, at: int, count: int) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Return the size of the 'data' frame at `at`, more than there is when it is cut, and its first pairs."""
    kept: list[tuple[bytes, bytes]] = []
    here = at + 10
    key = b""
    for n in range(2 * count):
        if here + 4 > len(view):
            return len(view) - at + 1, kept
        size = int.from_bytes(view[here : here + 4], "big")
        here += 4
        if here + size > len(view):
            return len(view) - at + 1, kept
        if len(kept) < _PAIRS_KEPT:
            text = bytes(view[here : here + min(size, BODY_KEPT)])
            if n % 2:
                kept.append((key, text))
            key = text
        here += size
    return here - at, kept


def _inflated(payload: memoryview, budget: int) -> tuple[Bytes | None, int, str]:
    """Inflate a frame; return the content (None: above `budget`), the bytes behind it, and its fault."""
    content, behind, wrong = _inflate(payload, budget, zlib.MAX_WBITS)
    if wrong and content is not None and len(payload) > 1 and payload[0] & 15 == 8:
        # A damaged zlib stream: inflate it again without its checksum, to show the rest.
        content, _, _ = _inflate(payload[2:], budget, -zlib.MAX_WBITS, 64)
    return content, behind, wrong


def _inflate(
    payload: memoryview, budget: int, wbits: int, step: int = _PIECE
) -> tuple[Bytes | None, int, str]:
    inflater = zlib.decompressobj(wbits)
    content = bytearray()
    try:
        for at in range(0, len(payload), step):
            piece: Bytes = payload[at : at + step]
            while len(piece):
                content += inflater.decompress(piece, _PIECE)
                if len(content) > budget:
                    return None, 0, f"not opened: it inflates to more than {budget:,} bytes"
                if inflater.eof:
                    return content, len(inflater.unused_data) + max(0, len(payload) - at - step), ""
                piece = inflater.unconsumed_tail
    except zlib.error as error:
        return content, 0, str(error).rpartition(": ")[2]
    return content, 0, ""
