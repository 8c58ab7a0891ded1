"""Lumberjack in plain Python: the reference of each compiled function, written for reading, not for speed.

It uses the standard library's JSON parser, zlib and struct.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from logclient._ext.constants import (
    K_BYTES,
    K_RAW,
)
from logclient._ext.constants import R_NOT_JSON as NOT_JSON
from logclient._ext.constants import R_UNENCODABLE as UNENCODABLE
from tests.oracle.xxh64 import words, xxh64

ID1_TAKEN, ID2_TAKEN, METADATA_OPEN = 0x04, 0x08, 0x10
NESTED, EVENT_OPEN = 0x20, 0x40
MAX_WINDOW, MAX_DEPTH, MAX_DIGITS = 10_000, 1000, 1000
OK, FOREIGN, NO_ID, NOT_JSON_ROW, TORN, BAD_ZLIB, BAD_FRAME = range(7)
SPACE = " \t\n\r"


# --- the checking pass --------------------------------------------------------------------------


class Found(NamedTuple):
    start: int
    end: int
    taken: int
    user_id: bytes | None


def _number(text: str) -> float:
    if len(text) > MAX_DIGITS or math.isinf(float(text)):
        raise ValueError(text)
    return float(text)


def _refuse(text: str) -> None:
    raise ValueError(text)


DECODER = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=_refuse)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def _members(text: str, at: int) -> Iterator[tuple[str, str, int]]:
    """Yield key, raw value and its end for the object that begins at `at`; then ("", "", its end)."""
    if text[at : at + 1] != "{":
        raise ValueError("no object")
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        yield "", "", at + 1
        return
    while True:
        if text[at : at + 1] != '"':
            raise ValueError("no key")
        key, at = DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        at = _skip(text, at + 1)
        _, end = DECODER.raw_decode(text, at)
        yield key, text[at:end], end
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            yield "", "", at + 1
            return
        if text[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _skip(text, at + 1)


def _inner(raw: str, wanted: str) -> str | None:
    """Return the raw value of the last member of that name; None: `raw` is not an object with it."""
    if not raw.startswith("{"):
        return None
    found = None
    for key, value, end in _members(raw, 0):
        if end < len(raw) and key == wanted:
            found = value
    return found


def depth(text: str) -> int:
    """Return the depth of brackets outside strings."""
    level = deepest = 0
    for c in re.sub(r'"(?:[^"\\]|\\.)*"', '""', text):
        level += (c in "{[") - (c in "}]")
        deepest = max(deepest, level)
    return deepest


def places(body: bytes) -> tuple[int, int, bool, list[bytes | None], bool] | None:
    """Return start, end, has @metadata, the places of an id, and "event" is no object; of one JSON object."""
    try:
        text = body.decode("utf-8")
        start = _skip(text, 0)
        if depth(text) > MAX_DEPTH:
            return None
        metadata, dotted, nested, flat = None, None, None, False
        end = start
        members = list(_members(text, start))
        end = members[-1][2]
        if _skip(text, end) != len(text):
            return None
        for key, raw, _ in members[:-1]:
            if key == "@metadata":
                metadata = raw
            elif key == "event.id":
                dotted = raw
            elif key == "event":
                nested = _inner(raw, "id")
                flat = not raw.startswith("{")
    except (ValueError, UnicodeDecodeError):
        return None
    ids = [_inner(metadata, "_id") if metadata is not None else None, dotted, nested]
    raws = [None if raw is None else (raw[1:-1] if raw.startswith('"') else raw).encode() for raw in ids]
    return len(text[:start].encode()), len(text[:end].encode()), metadata is not None, raws, flat


def check_json(body: bytes) -> Found | None:
    found = places(body)
    if found is None:
        return None
    start, end, metadata, ids, flat = found
    own = next((i for i in ids if i is not None), None)
    taken = ID1_TAKEN if metadata else ID2_TAKEN if flat else 0
    return Found(start, end, taken if own is None else ID1_TAKEN | ID2_TAKEN, own)


def split_pairs(body: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return the pairs of a pair block; None: the lengths do not add up."""
    try:
        (count,) = struct.unpack_from(">I", body)
        texts, at = [], 4
        for _ in range(2 * count):
            (length,) = struct.unpack_from(">I", body, at)
            if at + 4 + length > len(body):
                return None
            texts.append(body[at + 4 : at + 4 + length])
            at += 4 + length
    except struct.error:
        return None
    return list(zip(texts[::2], texts[1::2], strict=True)) if at == len(body) else None


def join_pairs(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return struct.pack(">I", len(pairs)) + b"".join(
        struct.pack(">I", len(text)) + text for pair in pairs for text in pair
    )


def check_pairs(body: bytes) -> tuple[int, bytes | None] | None:
    pairs = split_pairs(body)
    if pairs is None:
        return None
    own = [value for key, value in pairs if key == b"event.id"]
    return (ID2_TAKEN, own[-1]) if own else (0, None)


# --- the writer ---------------------------------------------------------------------------------


def the_id(producer: bytes, sequence: int) -> str:
    return producer.hex() + f"{sequence:012x}"


def finish(body: bytes, kind: int, sequence: int, producer: bytes, *, version: int = 2,
           identity: bool = True, check: bool = True,
           metadata: str = "") -> tuple[bytes, tuple[int, int]] | int:  # fmt: skip
    """Return the body as carried and the hash words of the user's id (or 0, 0), or the reason it fails."""
    checked = check and kind & 0x03 in (K_RAW, K_BYTES)
    own: bytes | None = None
    if version == 1:
        taken = bool(kind & (ID1_TAKEN | ID2_TAKEN))
        pairs = split_pairs(body)
        if pairs is None:
            return UNENCODABLE
        values = [value for key, value in pairs if key == b"event.id"]
        own = values[-1] if values else None
        taken = taken or own is not None
        if identity and not taken:
            return join_pairs([*pairs, (b"event.id", the_id(producer, sequence).encode())]), (0, 0)
        if not pairs:
            return UNENCODABLE
        return body, words(own or b"") if identity else (0, 0)
    stripped = body.strip(SPACE.encode())
    if checked:
        looked = check_json(body)
        if looked is None:
            return NOT_JSON
        kind |= looked.taken
        own = looked.user_id
    elif not (len(stripped) > 1 and stripped.startswith(b"{") and stripped.endswith(b"}")):
        return NOT_JSON
    if metadata and (not identity or kind & ID1_TAKEN):
        looks = checked or kind & (ID1_TAKEN | METADATA_OPEN)
        looked = check_json(body) if looks else None
        if looks and looked is None:
            return NOT_JSON
        there = None if looked is None else places(body)
        if there is None or not there[2]:
            stripped = with_members(stripped, [f'"@metadata":{{{metadata}}}'])
    if not identity:
        return stripped, (0, 0)
    beside = (0, 0)
    if not checked and kind & (ID1_TAKEN | ID2_TAKEN):
        looked = check_json(body)
        if looked is None:
            return NOT_JSON
        if not kind & ID1_TAKEN and looked.user_id is not None:
            beside = words(looked.user_id)
    text = the_id(producer, sequence)
    extra = []
    if kind & METADATA_OPEN:
        stripped = stripped[:-2] + f',"_id":"{text}"}}}}'.encode()
        if kind & ID2_TAKEN:
            return stripped, beside
    elif not kind & ID1_TAKEN:
        comma = "," if metadata else ""
        extra.append(f'"@metadata":{{{metadata}{comma}"_id":"{text}"}}')
    if not kind & ID2_TAKEN and kind & EVENT_OPEN:
        stripped = stripped[:-2] + f',"id":"{text}"}}}}'.encode()
    elif not kind & ID2_TAKEN:
        extra.append(f'"event":{{"id":"{text}"}}' if kind & NESTED else f'"event.id":"{text}"')
    if kind & ID1_TAKEN and kind & ID2_TAKEN:
        looked = check_json(body)
        if looked is None:
            return NOT_JSON
        return stripped, words(looked.user_id or b"")
    if not extra:
        return stripped, beside
    return with_members(stripped, extra), beside


def with_members(body: bytes, members: list[str]) -> bytes:
    """Return an object with further members at its end."""
    comma = "" if body[1:-1].strip(SPACE.encode()) == b"" else ","
    return body[:-1] + (comma + ",".join(members) + "}").encode()


def frame(version: int, number: int, body: bytes, json: bool) -> bytes:
    if not json:
        return b"1D" + struct.pack(">I", number) + body
    return b"%dJ" % version + struct.pack(">II", number, len(body)) + body


class Encoded(NamedTuple):
    data: bytes
    sequences: list[int]  # in the window, in order
    failed: dict[int, int]  # sequence: reason
    hashes: dict[int, int]
    id_hashes: dict[int, list[tuple[int, int]]]


def names(body: bytes, own: tuple[int, int], version: int) -> list[tuple[int, int]]:
    """Return the hashes of a user's own id, and of the id that is found without `@metadata`."""
    if own == (0, 0):
        return []
    looked = places(body) if version == 2 else None
    first, *others = [None] if looked is None else looked[3]
    second = next((i for i in others if i is not None), None)
    if first is None or second in (None, first) or words(first) != own:
        return [own]
    return [own, words(second)]


class Literal(NamedTuple):
    """The state of the literal form: the number of the next frame, and the window."""

    number: int = 1
    credit: int | None = None  # None: there is one already
    json: bool = True


def after(number: int) -> int:
    """Return the next running number; 0 is not used."""
    return number % 0xFFFFFFFF + 1


def encode_window(
    events: list[tuple[int, int, bytes]], producer: bytes, *, version: int = 2, window: int = 2048,
    window_bytes: int = 1 << 20, identity: bool = True, check: bool = True, compress: bool = False,
    literal: Literal | None = None, metadata: str = "",
) -> Encoded:  # fmt: skip
    """Encode the first window of (sequence, kind, body), with frames compressed by the standard zlib."""
    frames: list[bytes] = []
    used = 0
    out = Encoded(b"", [], {}, {}, {})
    number, json = (1, version == 2) if literal is None else (literal.number, literal.json)
    form = 2 if json else 1
    for sequence, kind, body in events:
        room = 24 + (len(body) + 7) // 8 * 8  # as the queue counts
        if len(frames) == window or (frames and used + room > window_bytes):
            break
        done = finish(
            body, kind, sequence, producer, version=form, identity=identity, check=check, metadata=metadata
        )
        if isinstance(done, int):
            out.failed[sequence] = done
            continue
        carried, own = done
        frames.append(frame(version, number, carried, json))
        number = after(number)
        used += room
        out.sequences.append(sequence)
        out.hashes[sequence] = xxh64(carried)
        out.id_hashes[sequence] = names(carried, own, form)
    if not frames:
        return out
    inner = b"".join(frames)
    head = b"%dW" % version + struct.pack(">I", len(frames))
    if literal is not None:
        head = b"" if literal.credit is None else b"1W" + struct.pack(">I", literal.credit)
    if compress or (version == 1 and literal is None):
        small = zlib.compress(inner, 3)
        inner = b"%dC" % version + struct.pack(">I", len(small)) + small
    return out._replace(data=head + inner)


class BrokenError(Exception):
    """The error of a reader that broke the protocol."""


class AckFrames:
    """A reader of 'ack' frames; a subclass defines the meaning of a number."""

    def __init__(self) -> None:
        self.left = b""
        self.acked: list[int] = []
        self.progress = 0

    def feed(self, data: bytes) -> None:
        self.left += data
        while self.left:
            if self.left[:1] not in (b"1", b"2") or self.left[1:2] not in (b"", b"A"):
                raise BrokenError("frame")
            if len(self.left) < 6:
                return
            (number,) = struct.unpack(">I", self.left[2:6])
            self.left = self.left[6:]
            if number:
                newly = self.acknowledged(number)
                self.acked += newly
                self.progress += bool(newly)

    def acknowledged(self, number: int) -> list[int]:
        """Handle one ack, and return the sequences that it newly acknowledges."""
        raise NotImplementedError


class Acks(AckFrames):
    """The acks of released servers: each belongs to the oldest window."""

    def __init__(self) -> None:
        super().__init__()
        self.windows: list[tuple[list[int], int]] = []  # sequences, acknowledged

    def acknowledged(self, number: int) -> list[int]:
        if not self.windows:
            raise BrokenError("time")
        sequences, acked = self.windows[0]
        if number > len(sequences):
            raise BrokenError("number")
        self.windows[0] = sequences, max(number, acked)
        if number == len(sequences):
            del self.windows[0]
        return sequences[acked:number]


class RunningAcks(AckFrames):
    """The acks of the literal form: each acknowledges all frames up to its number."""

    def __init__(self, first: int = 1) -> None:
        super().__init__()
        self.number = first
        self.sent: list[tuple[int, int]] = []  # (number, sequence) of each frame of this connection

    def send(self, sequences: list[int]) -> None:
        for sequence in sequences:
            self.sent.append((self.number, sequence))
            self.number = after(self.number)

    @property
    def unacked(self) -> int:
        return len(self.sent) - len(self.acked)

    def acknowledged(self, number: int) -> list[int]:
        numbers = [n for n, _ in self.sent]
        if number not in numbers:
            raise BrokenError("number")
        return [sequence for _, sequence in self.sent[len(self.acked) : numbers.index(number) + 1]]


# --- the reader ---------------------------------------------------------------------------------


class Read(NamedTuple):
    version: int
    ack: int
    unit: bytes
    events: list[bytes]
    sequences: list[int]
    types: str = ""  # of the literal form


class NeedMore(Exception):
    """The error of an incomplete frame."""


class FaultyError(Exception):
    """The error of a writer that broke the protocol or a bound."""


class Limits(NamedTuple):
    max_window: int = MAX_WINDOW
    max_frame: int = 1 << 24
    max_unit: int = 1 << 26
    max_inflated: int = 1 << 26


def inflate(data: bytes, limit: int) -> bytes:
    """Decompress as far as possible: accept an unfinished stream, and ignore bytes behind its end."""
    out = zlib.decompressobj().decompress(data, limit + 1)
    if len(out) > limit:
        raise OverflowError
    return out


def one_frame(
    data: bytes, version: int, limits: Limits, literal: bool = False
) -> tuple[int, str, int, bytes]:
    """Return size, type, sequence or window size, and body of the first frame."""
    if data[:1] != b"%d" % version:
        raise FaultyError("version")
    kind = data[1:2].decode("latin-1")
    if kind == "":
        raise NeedMore
    if kind == "W" and literal:
        if len(data) < 6:
            raise NeedMore
        return 6, kind, struct.unpack_from(">I", data, 2)[0], b""
    if kind == "J" and (version == 2 or literal):
        if len(data) < 10:
            raise NeedMore
        sequence, size = struct.unpack_from(">II", data, 2)
        if size == 0 or size > limits.max_frame:
            raise FaultyError("length")
        if len(data) < 10 + size:
            raise NeedMore
        return 10 + size, kind, sequence, data[10 : 10 + size]
    if kind == "D" and version == 1:
        if len(data) < 10:
            raise NeedMore
        sequence, count = struct.unpack_from(">II", data, 2)
        if count * 8 > limits.max_frame:
            raise FaultyError("length")
        at = 10
        for i in range(2 * count):
            if len(data) < at + 4:
                raise NeedMore
            (size,) = struct.unpack_from(">I", data, at)
            if at + 4 + size > limits.max_frame:
                raise FaultyError("length")
            at += 4 + size
            if len(data) < at + 4 * (i % 2 == 0):
                raise NeedMore
        return at, kind, sequence, data[6:at]
    if kind == "C":
        if len(data) < 6:
            raise NeedMore
        (size,) = struct.unpack_from(">I", data, 2)
        if size == 0:
            raise FaultyError("length")
        if len(data) < 6 + size:
            raise NeedMore
        return 6 + size, kind, 0, data[6 : 6 + size]
    raise FaultyError("type")


def read(data: bytes, limits: Limits | None = None) -> tuple[list[Read], bool, int]:
    """Return the windows, whether the writer broke a rule, and the bytes of the unfinished window."""
    limits = limits or Limits()
    windows: list[Read] = []
    while data:
        try:
            window, size = read_window(data, limits)
        except NeedMore:
            return windows, False, len(data)
        except FaultyError:
            return windows, True, len(data)
        windows.append(window)
        data = data[size:]
    return windows, False, 0


def read_window(data: bytes, limits: Limits) -> tuple[Read, int]:
    if data[:1] not in (b"1", b"2") or data[1:2] not in (b"", b"W"):
        raise FaultyError("window")
    if len(data) < 6:
        raise NeedMore
    version = data[0] - ord("0")
    (n,) = struct.unpack_from(">I", data, 2)
    if n > limits.max_window:
        raise FaultyError("window")
    events: list[bytes] = []
    sequences: list[int] = []
    inflated = 0

    def take(part: bytes, nested: int) -> int:
        nonlocal inflated
        if nested == 2 and part[1:2] == b"C" and part[0] == data[0]:
            raise FaultyError("nested")
        size, kind, sequence, body = one_frame(part, version, limits)
        if kind != "C":
            if len(events) == n:
                raise FaultyError("extra")
            events.append(body)
            sequences.append(sequence)
            return size
        try:
            inner = inflate(body, limits.max_inflated - inflated)
        except (zlib.error, OverflowError):
            raise FaultyError("zlib") from None
        inflated += len(inner)
        while inner:
            try:
                inner = inner[take(inner, nested + 1) :]
            except NeedMore:
                raise FaultyError("cut") from None
        return size

    at = 6
    while len(events) < n:
        if at == len(data):
            raise NeedMore
        head = data[at : at + 10]
        if len(head) > 5 and head[:1] == data[:1]:
            # Check a length before its bytes arrive.
            size = 0
            if head[1:2] == b"C":
                size = 6 + struct.unpack(">I", head[2:6])[0]
            elif head[1:2] == b"J" and version == 2 and len(head) == 10:
                size = 10 + struct.unpack(">I", head[6:10])[0]
            if at + size > limits.max_unit:
                raise FaultyError("unit")
        try:
            at += take(data[at:], 0)
        except NeedMore:
            if head[1:2] == b"D" and len(data) > limits.max_unit:
                raise FaultyError("unit") from None
            raise
        if at > limits.max_unit:
            raise FaultyError("unit")
    signed = [s - (1 << 32) if s >> 31 else s for s in sequences]
    highest = max(signed, default=-1)
    return Read(version, highest if highest > 0 else n, data[:at], events, sequences), at


class LiteralReader:
    """The reader of the literal form: a unit is one frame with events."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.left = b""
        self.broken = False
        self.credit: int | None = None
        self.unacked = 0

    def feed(self, data: bytes) -> list[Read]:
        found: list[Read] = []
        if self.broken:
            return found
        self.left += data
        try:
            while self.left:
                frames: list[tuple[str, int, bytes]] = []
                self._inflated = 0
                size = self._take(self.left, 0, frames)
                if size > self.limits.max_unit:
                    raise FaultyError("unit")
                unit, self.left = self.left[:size], self.left[size:]
                if frames:
                    types = "".join(type for type, _, _ in frames)
                    numbers = [number for _, number, _ in frames]
                    found.append(Read(1, numbers[-1], unit, [body for _, _, body in frames], numbers, types))
        except NeedMore:
            pass
        except FaultyError:
            self.broken = True
        return found

    def acknowledge(self, events: int) -> None:
        self.unacked = max(0, self.unacked - events)

    def _take(self, data: bytes, nested: int, frames: list[tuple[str, int, bytes]]) -> int:
        if nested == 0 and data[:1] == b"1":
            # Check a length before its bytes arrive.
            size = 0
            if data[1:2] == b"C" and len(data) > 5:
                size = 6 + struct.unpack(">I", data[2:6])[0]
            elif data[1:2] == b"J" and len(data) > 9:
                size = 10 + struct.unpack(">I", data[6:10])[0]
            if size > self.limits.max_unit:
                raise FaultyError("unit")
        if nested == 2 and data[:2] == b"1C":
            raise FaultyError("nested")
        try:
            size, kind, number, body = one_frame(data, 1, self.limits, literal=True)
        except NeedMore:
            if nested == 0 and data[1:2] == b"D" and len(data) > self.limits.max_unit:
                raise FaultyError("unit") from None
            raise
        if kind == "W":
            self.credit = number
        elif kind == "C":
            try:
                inner = inflate(body, self.limits.max_inflated - self._inflated)
            except (zlib.error, OverflowError):
                raise FaultyError("zlib") from None
            self._inflated += len(inner)
            while inner:
                try:
                    inner = inner[self._take(inner, nested + 1, frames) :]
                except NeedMore:
                    raise FaultyError("cut") from None
        else:
            if len(frames) == self.limits.max_window:
                raise FaultyError("extra")
            if self.credit is not None and self.unacked >= self.credit:
                raise FaultyError("credit")
            self.unacked += 1
            frames.append((kind, number, body))
        return size


# --- the decoder --------------------------------------------------------------------------------


class Row(NamedTuple):
    status: int
    producer: int = -1
    high: int = 0
    low: int = 0
    sequence: int = 0
    hash: int = 0
    offset: int = 0
    length: int = 0
    id_hash: tuple[int, int] = (0, 0)


HEX = re.compile(rb"[0-9a-f]{32}")


def decode_body(kind: str, body: bytes, producers: list[bytes], identity: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"status": NO_ID, "hash": xxh64(body)}
    if not identity:
        return found
    if kind == "D":
        checked = check_pairs(body)
        ids = None if checked is None else [checked[1]]
    else:
        looked = places(body)
        ids = None if looked is None else looked[3]
    if ids is None:
        return found | {"status": NOT_JSON_ROW}
    own = next((i for i in ids if i is not None), None)
    if own is None:
        return found
    some: dict[str, Any] = {}
    if HEX.fullmatch(own):
        raw = bytes.fromhex(own.decode())
        some = {
            "producer": producers.index(raw[:10]) if raw[:10] in producers else -1,
            "high": int.from_bytes(raw[:8], "big"),
            "low": int.from_bytes(raw[8:10], "big"),
            "sequence": int.from_bytes(raw[10:], "big"),
        }
        if some["producer"] >= 0 or not producers:
            return found | some | {"status": OK}
    return found | some | {"status": FOREIGN, "id_hash": words(own)}


def decode_unit(
    unit: bytes, producers: list[bytes], identity: bool = True, max_inflated: int = 1 << 26
) -> list[Row]:
    """Return a row for each event, and one for an error."""
    rows: list[Row] = []
    literal = unit[:2] in (b"1J", b"1D", b"1C")
    if unit[:1] not in (b"1", b"2", b"") or (unit[1:2] not in (b"W", b"") and not literal):
        return [Row(BAD_FRAME, length=len(unit))]
    if len(unit) < 6:
        return [Row(TORN, length=len(unit))]
    version = unit[0] - ord("0")
    n, head = (-1, 0) if literal else (struct.unpack_from(">I", unit, 2)[0], 6)
    at, got, left = head, 0, max_inflated
    unlimited = Limits(max_frame=1 << 40, max_unit=1 << 40)

    def region(data: bytes, nested: int) -> bool:
        nonlocal at, got, left
        while data:
            if got == n or data[:1] != unit[:1]:
                rows.append(Row(BAD_FRAME, offset=at, length=len(data)))
                return False
            if data[1:2] == b"J" and (version == 2 or literal) and data[6:10] == b"\0\0\0\0":
                size, kind, body = 10, "J", b""
            elif data[1:2] == b"C" and nested < 2 and data[2:6] == b"\0\0\0\0":
                size, kind, body = 6, "C", b""
            else:
                try:
                    if data[1:2] == b"C" and nested == 2:
                        raise FaultyError
                    size, kind, _, body = one_frame(data, version, unlimited, literal)
                except NeedMore:
                    rows.append(Row(TORN, offset=at, length=len(data)))
                    return False
                except FaultyError:
                    rows.append(Row(BAD_FRAME, offset=at, length=len(data)))
                    return False
            if kind == "W":
                at += size
            elif kind == "C":
                try:
                    inner = inflate(body, left)
                except (zlib.error, OverflowError):
                    rows.append(Row(BAD_ZLIB, offset=at, length=size))
                    return False
                left -= len(inner)
                if not region(inner, nested + 1):
                    return False
            else:
                got += 1
                rows.append(Row(offset=at + size - len(body), length=len(body),
                                **decode_body(kind, body, producers, identity)))  # fmt: skip
                at += size
            data = data[size:]
        return True

    if region(unit[head:], 0) and got < n:
        rows.append(Row(TORN, offset=at, length=0))
    return rows
