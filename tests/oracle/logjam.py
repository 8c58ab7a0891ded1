"""Logjam in plain Python: the reference of each compiled function, written for reading, not for speed.

It uses the standard library's JSON parser, the packages of the compressions, and struct.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.oracle.lumberjack import _members, _skip, depth
from tests.oracle.xxh64 import words, xxh64

OK, FOREIGN, NO_ID, NOT_JSON = range(4)
(
    TORN, BAD_FRAMES, NO_META, OLD_META, BAD_META, BAD_APP_ENV, BAD_TOPIC, BAD_COMPRESSION, BAD_ZLIB,
    BAD_SNAPPY, BAD_LZ4, TOO_LARGE, NO_LIBRARY, PING, HEARTBEAT,
) = range(4, 19)  # fmt: skip
MORE = 0x80000000
META = struct.Struct(">HBBIQQ")
MAX_DEPTH = 1000
MAX_BODY = 64 << 20
SPACE = b" \t\n\r"
TOPICS = (b"logs", b"events", b"frontend.page", b"frontend.ajax", b"javascript", b"mobile")


class TooLarge(Exception):
    pass


# -- frames


def join(parts: Sequence[bytes]) -> bytes:
    """Join the parts of one message."""
    heads = [len(part) | (MORE if i + 1 < len(parts) else 0) for i, part in enumerate(parts)]
    return b"".join(struct.pack("<I", head) + part for head, part in zip(heads, parts, strict=True))


def split(data: bytes) -> list[list[bytes]]:
    """Split whole messages into their parts.

    Raises:
        ValueError: the rest is not a message.
    """
    messages, at = [], 0
    while at < len(data):
        parts, at = split_one(data, at)
        messages.append(parts)
    return messages


def split_one(data: bytes, at: int = 0) -> tuple[list[bytes], int]:
    parts: list[bytes] = []
    head = MORE
    while head & MORE:
        if len(data) - at < 4:
            raise ValueError("torn")
        (head,) = struct.unpack_from("<I", data, at)
        size = head & ~MORE
        if len(data) - at - 4 < size:
            raise ValueError("torn")
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return parts, at


# -- the client


class Found(NamedTuple):
    start: int
    end: int
    empty: bool
    own: bytes | None  # the raw value of the carrier, without quotes


def look(body: bytes, carrier: str) -> Found | None:
    """Find the object in a body, and the user's own value of the carrier; None: not a JSON object."""
    try:
        text = body.decode("utf-8")
        start = _skip(text, 0)
        if depth(text) > MAX_DEPTH:
            return None
        members = list(_members(text, start))
        end = members[-1][2]
        if _skip(text, end) != len(text):
            return None
    except (ValueError, UnicodeDecodeError):
        return None
    raws = [raw for key, raw, _ in members[:-1] if key == carrier]
    own = None
    if raws:
        own = (raws[-1][1:-1] if raws[-1].startswith('"') else raws[-1]).encode()
    return Found(len(text[:start].encode()), len(text[:end].encode()), len(members) == 1, own)


def carrier_of(topic: bytes) -> str:
    return "request_id" if topic.startswith(b"logs") else "uuid"


def carried(body: bytes, seq: int, producer: bytes, topic: bytes, identity: bool = True) -> bytes | None:
    """Return the body with its id; None: it is not one JSON object."""
    carrier = carrier_of(topic)
    found = look(body, carrier)
    if found is None:
        return None
    text = body[found.start : found.end]
    if not identity or found.own is not None:
        return text
    comma = b"" if found.empty else b","
    return text[:-1] + comma + f'"{carrier}":"{producer.hex()}{seq:012x}"}}'.encode()


def pack(compression: int, body: bytes) -> bytes:
    if compression == 1:
        return zlib.compress(body)
    if compression == 2:
        import snappy

        return bytes(snappy.compress(body))
    if compression == 3:
        import lz4.block

        return struct.pack(">I", len(body)) + bytes(lz4.block.compress(body, store_size=False))
    return body


def unpack(compression: int, body: bytes, limit: int = 64 << 20) -> bytes:
    """Decompress a body.

    Raises:
        TooLarge: the content has more than `limit` bytes.
        ValueError: it is not compressed in this way.
    """
    if compression == 0:
        content = body
    elif compression == 1:
        inflater = zlib.decompressobj()
        try:
            content = inflater.decompress(body, limit + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        if len(content) <= limit and not inflater.eof:
            raise ValueError("no end")
    elif compression == 2:
        import snappy

        head = re.match(rb"[\x80-\xff]{0,4}[\x00-\x7f]", body)
        if head is None:
            raise ValueError("no length")
        size = sum((byte & 127) << (7 * i) for i, byte in enumerate(head[0]))
        if size >= 1 << 32:
            raise ValueError("no length")
        if size > limit:
            raise TooLarge
        try:
            content = bytes(snappy.uncompress(body))
        except Exception as error:
            raise ValueError(str(error)) from None
    else:
        import lz4.block

        if len(body) < 5:
            raise ValueError("short")
        (size,) = struct.unpack_from(">I", body)
        if size > limit:
            raise TooLarge
        try:
            content = bytes(lz4.block.decompress(body[4:], uncompressed_size=size))
        except Exception as error:
            raise ValueError(str(error)) from None
        if len(content) != size:
            raise ValueError("another length")
    if len(content) > limit:
        raise TooLarge
    return content


# -- replies


class Replies:
    """A client's handling of replies, the oldest request first; 0 stands for a ping."""

    def __init__(self, app_env: bytes, waiting: Sequence[int]) -> None:
        self.app_env = app_env
        self.waiting = list(waiting)
        self.acked: list[int] = []
        self.rejected: list[int] = []
        self.pongs: list[bytes | None] = []
        self.wrong = False

    def take(self, parts: list[bytes]) -> None:
        if self.wrong:
            return
        self.wrong = True
        if not self.waiting:
            return
        seq = self.waiting[0]
        if seq == 0:
            if parts == [b"ping", b"400 Bad Request"]:
                self.pongs.append(None)
            elif len(parts) == 3 and parts[:2] == [b"ping", b"200 OK"]:
                self.pongs.append(parts[2])
            else:
                return
        elif parts == [self.app_env, b"202 Accepted"]:
            self.acked.append(seq)
        elif parts == [self.app_env, b"400 Bad Request"]:
            self.rejected.append(seq)
        else:
            return
        self.wrong = False
        self.waiting.pop(0)


# -- captures


class Row(NamedTuple):
    status: int
    producer: int = -1
    prefix_high: int = 0
    prefix_low: int = 0
    sequence: int = 0
    hash: int = 0
    body: bytes | None = None  # unpacked
    id_hash: tuple[int, int] = (0, 0)
    compression: int = 0
    device: int = 0
    created_ms: int = 0
    number: int = 0
    request: int = 0
    app_env: bytes = b""
    topic: bytes = b""


def decode(unit: bytes, producers: list[bytes], identity: bool = True, limit: int = 64 << 20) -> Row:
    try:
        parts, end = split_one(unit)
    except ValueError:
        return Row(TORN)
    if end != len(unit):
        return Row(TORN)
    request = int(parts[0] == b"")
    if len(parts) == 3 and not request:
        return Row(NO_META, app_env=parts[0], topic=parts[1])
    if len(parts) != 4 + request:
        return Row(BAD_FRAMES, request=request)
    app_env, topic, body, meta = parts[request:]
    row = Row(OK, request=request, app_env=app_env, topic=topic)
    tagged = meta[:2] in (b"\xca\xbd", b"\xbd\xca") and meta[3:4] == b"\x01"
    if len(meta) == 22 and tagged:
        return row._replace(status=OLD_META)
    if len(meta) != 24 or not tagged:
        return row._replace(status=BAD_META)
    _, compression, _, device, created_ms, number = META.unpack(meta)
    row = row._replace(compression=compression, device=device, created_ms=created_ms, number=number)
    if request and app_env == b"ping":
        return row._replace(status=PING)
    if not request and app_env == b"heartbeat" and topic.startswith(b"tcp://"):
        return row._replace(status=HEARTBEAT)
    if not re.fullmatch(rb"[\x20-\x7f]*-[\x20-\x7f]*", app_env):
        return row._replace(status=BAD_APP_ENV)
    if not topic.startswith(TOPICS):
        return row._replace(status=BAD_TOPIC)
    if compression > 3:
        return row._replace(status=BAD_COMPRESSION)
    try:
        content = unpack(compression, body, limit)
    except TooLarge:
        return row._replace(status=TOO_LARGE)
    except ValueError:
        return row._replace(status=(0, BAD_ZLIB, BAD_SNAPPY, BAD_LZ4)[compression])
    row = row._replace(status=NO_ID, body=content, hash=xxh64(content, 42))
    if not identity:
        return row
    found = look(content, carrier_of(topic))
    if found is None:
        return row._replace(status=NOT_JSON)
    if found.own is None:
        return row
    own = found.own
    if re.fullmatch(rb"[0-9a-f]{32}", own):
        raw = bytes.fromhex(own.decode())
        producer = producers.index(raw[:10]) if raw[:10] in producers else -1
        row = row._replace(
            producer=producer,
            prefix_high=int.from_bytes(raw[:8], "big"),
            prefix_low=int.from_bytes(raw[8:10], "big"),
            sequence=int.from_bytes(raw[10:], "big"),
        )
        if producer >= 0 or not producers:
            return row._replace(status=OK)
    return row._replace(status=FOREIGN, id_hash=words(own))


# -- what devices published


class Published(NamedTuple):
    """One message of a device, in the order of arrival."""

    device: int
    number: int
    heartbeat: bool


def gaps_of(messages: Iterable[Published]) -> dict[int, tuple[int, ...]]:
    """(received, heartbeats, last, missing, gaps, restarts) by device."""
    found: dict[int, list[int]] = {}
    for device, number, heartbeat in messages:
        mine = found.get(device)
        if mine is None:
            found[device] = [1, int(heartbeat), number, 0, 0, 0]
            continue
        last = mine[2]
        due = last + 1
        if number <= last:
            due = 1
            mine[5] += 1
        if number > due:
            mine[3] += number - due
            mine[4] += 1
        mine[0] += 1
        mine[1] += heartbeat
        mine[2] = number
    return {key: tuple(mine) for key, mine in found.items()}
