"""plog in plain Python: the reference of each compiled function, written for reading, not for speed."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from logclient._ext.constants import K_BYTES as BYTES
from tests.oracle.logjam import look
from tests.oracle.xxh64 import words, xxh64

HEADER = struct.Struct(">BBHHHIIIHH")
MOST = 65507
SEGMENTS = 64
ID_MOST = (1 << 31) - 1
TAGGED = 1 << 4

(
    MESSAGE, SIMPLE, FRAGMENT, COMMAND, EMPTY, BAD_VERSION, BAD_TYPE, BAD_HEADER, OUT_OF_BOUNDS,
    BAD_FRAGMENT, BAD_CHECKSUM, TOO_LARGE,
) = range(12)  # fmt: skip
OK, FOREIGN, NO_ID = range(3)
DECODED_COMMAND = 12


# -- hash


def _rotl(v: int, by: int) -> int:
    return (v << by | v >> (32 - by)) & 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """Compute MurmurHash3 x86 32 with seed 0."""
    h = 0
    whole = len(data) & ~3
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        h ^= _rotl(k * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        h = (_rotl(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    rest = int.from_bytes(data[whole:], "little")
    h ^= _rotl(rest * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    h ^= len(data) & 0xFFFFFFFF
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


# -- the client


def cut(total: int, tags: int, room: int) -> tuple[int, int, int] | None:
    """Return the number of fragments, and the payload bytes of each except the last and of the last.

    Returns:
        None: the message is too long.
    """
    most = room - HEADER.size
    if tags > most or total >= 1 << 31:
        return None
    count = max(1, -(-(total + tags) // most))
    while count <= 65535:
        size = most if count == 1 else min(most, total // (count - 1))
        last = total - size * (count - 1)
        if last + tags <= most:
            return count, size, last
        count += 1
    return None


def fragments(payload: bytes, id_: int, room: int = MOST, tags: bytes = b"") -> list[bytes]:
    plan = cut(len(payload), len(tags), room)
    if plan is None:
        raise ValueError("too long")
    count, size, last = plan
    hash_ = murmur3(payload)
    found = []
    for index in range(count):
        own = tags if index == count - 1 else b""
        part = payload[index * size :][: last if index == count - 1 else size]
        head = HEADER.pack(0, 1, count, index, size, id_, len(payload), hash_, len(own), 0)
        found.append(head + own + part)
    return found


def runs(datagrams: Iterable[bytes]) -> bytes:
    """Join datagrams to runs, in the form of a buffer."""
    groups: list[list[bytes]] = []
    for one in datagrams:
        group = groups[-1] if groups else []
        if (
            group
            and len(one) <= len(group[0]) == len(group[-1])
            and len(group) < SEGMENTS
            and sum(map(len, group)) + len(one) <= MOST
        ):
            group.append(one)
        else:
            groups.append([one])
    return b"".join(struct.pack("<II", sum(map(len, g)), len(g[0])) + b"".join(g) for g in groups)


def split(data: bytes) -> list[bytes]:
    """Split whole runs into datagrams.

    Raises:
        ValueError: the rest is not a run.
    """
    found, at = [], 0
    while at < len(data):
        if len(data) - at < 8:
            raise ValueError("torn")
        size, segment = struct.unpack_from("<II", data, at)
        at += 8
        if size > len(data) - at or (size and not segment):
            raise ValueError("torn")
        found += [data[at + i : at + min(i + segment, size)] for i in range(0, size, segment or 1)]
        if not size:
            found.append(b"")
        at += size
    return found


def carried(body: bytes, kind: int, seq: int, producer: bytes) -> tuple[bytes, bytes | None]:
    """Return the body as carried, and the bytes that identify it in the ledger; None: our id."""
    found = look(body, "uuid")
    if found is None:
        return body, body
    if found.own is not None:
        return body, found.own
    if kind & 3 == BYTES:
        return body, body
    comma = b"" if found.empty else b","
    return body[found.start : found.end - 1] + comma + (
        f'"uuid":"{producer.hex()}{seq:012x}"}}'.encode()
    ), None  # fmt: skip


def encode(
    events: Sequence[tuple[bytes, int]],
    producer: bytes,
    *,
    room: int = 1452,
    tags: bytes = b"",
    unboxed: bool = False,
    most: int = 262144,
    id_: int = 1,
    identity: bool = True,
) -> tuple[list[bytes], list[str], list[int]]:
    """Return the datagrams, and the status and hash (0: failed) of each event."""
    sent: list[bytes] = []
    outcomes, hashes = [], []
    for seq, (body, kind) in enumerate(events, 1):
        own = tags
        if kind >> 4:
            size = int.from_bytes(body[:2], "big")
            own, body = body[2 : 2 + size], body[2 + size :]
        text = carried(body, kind, seq, producer)[0] if identity else body
        if len(text) > most or cut(len(text), len(own), room) is None:
            outcomes.append("failed")
            hashes.append(0)
            continue
        if unboxed and not own and 0 < len(text) <= room and text[0] > 31:
            sent.append(text)
        else:
            sent += fragments(text, id_, room, own)
            id_ = id_ % ID_MOST + 1
        outcomes.append("inflight")
        hashes.append(xxh64(text, 42))
    return sent, outcomes, hashes


class Line(NamedTuple):
    """The result of encoding one event for TCP."""

    status: str
    reason: str
    hash: int
    """XXH64 of the body as it travels; 0: it failed."""
    end: int
    """The byte behind the line, counted from the first line."""


def encode_lines(
    events: Sequence[tuple[bytes, int]], producer: bytes, *, most: int = 262144, identity: bool = True
) -> tuple[bytes, list[Line]]:
    """Encode events as plog over TCP carries them.

    Args:
        events: bodies, each with its kind.
        producer: 10 bytes.
        most: bytes of a message at most, with the id.
        identity: insert the id.

    Returns:
        The bytes of all lines, and the result for each event.
    """
    data = b""
    results = []
    for seq, (body, kind) in enumerate(events, 1):
        text = carried(body, kind, seq, producer)[0] if identity else body
        reason = ""
        if len(text) > most:
            reason = "too_large"
        elif kind >> 4 or b"\n" in text or text.endswith(b"\r"):
            reason = "unencodable"
        else:
            data += text + b"\n"
        status, hash_ = ("failed", 0) if reason else ("inflight", xxh64(text, 42))
        results.append(Line(status, reason, hash_, len(data)))
    return data, results


# -- the server


class Open(NamedTuple):
    count: int
    size: int
    hash: int
    total: int
    parts: dict[int, bytes]
    tags: list[bytes]


class Verdict(NamedTuple):
    verdict: int
    payload: bytes = b""
    tags: bytes = b""


class Server:
    """A server that keeps all incomplete messages."""

    def __init__(self, max_message: int = 262144) -> None:
        self.max_message = max_message
        self.open: dict[tuple[int, int], Open] = {}

    def feed(self, datagram: bytes, stream: int = 0) -> Verdict:
        if not datagram:
            return Verdict(EMPTY)
        if datagram[0] > 31:
            return Verdict(SIMPLE, datagram)
        if datagram[0]:
            return Verdict(BAD_VERSION)
        if len(datagram) == 1 or datagram[1] > 1:
            return Verdict(BAD_TYPE)
        if datagram[1] == 0:
            return Verdict(COMMAND, datagram[2:])
        if len(datagram) < HEADER.size:
            return Verdict(BAD_HEADER)
        _, _, count, index, size, id_, total, hash_, length, _ = HEADER.unpack_from(datagram)
        if index >= count or total >= 1 << 31:
            return Verdict(BAD_HEADER)
        if length > len(datagram) - HEADER.size:
            return Verdict(OUT_OF_BOUNDS if length > 65536 - HEADER.size else BAD_HEADER)
        tags, payload = datagram[HEADER.size :][:length], datagram[HEADER.size + length :]
        if count == 1:
            good = murmur3(payload) == hash_
            return Verdict(MESSAGE if good else BAD_CHECKSUM, payload, tags)
        return self.part(Open(count, size, hash_, total, {}, []), (stream, id_), index, payload, tags)

    def part(self, new: Open, key: tuple[int, int], index: int, payload: bytes, tags: bytes) -> Verdict:
        known = self.open.get(key)
        one = known or new
        if (one.count, one.size, one.hash) != (new.count, new.size, new.hash):
            return Verdict(BAD_FRAGMENT)
        last = one.total - one.size * (one.count - 1)
        good = len(payload) == (last if index == one.count - 1 else one.size)
        if good and one.size * index + len(payload) > one.total:
            return Verdict(OUT_OF_BOUNDS)
        if known is None:
            if one.total > self.max_message:
                return Verdict(TOO_LARGE)
            self.open[key] = one
        if not good:
            return Verdict(BAD_FRAGMENT)
        one.parts[index] = payload
        if tags:
            one.tags[:] = [tags]
        if len(one.parts) < one.count:
            return Verdict(FRAGMENT)
        del self.open[key]
        whole = b"".join(one.parts[i] for i in range(one.count))
        good = murmur3(whole) == one.hash
        return Verdict(MESSAGE if good else BAD_CHECKSUM, whole, b"".join(one.tags))


# -- the decoder


class Row(NamedTuple):
    status: int
    sequence: int
    hash: int
    length: int
    id_hash: tuple[int, int]


def decode_body(body: bytes, producers: Sequence[bytes], identity: bool = True) -> Row:
    hash_ = xxh64(body, 42)
    if not identity:
        return Row(NO_ID, 0, hash_, len(body), (0, 0))
    found = look(body, "uuid")
    own = body if found is None or found.own is None else found.own
    sequence = 0
    if re.fullmatch(rb"[0-9a-f]{32}", own) and found is not None and found.own is not None:
        raw = bytes.fromhex(own.decode())
        sequence = int.from_bytes(raw[10:], "big")
        if not producers or raw[:10] in producers:
            return Row(OK, sequence, hash_, len(body), (0, 0))
    return Row(FOREIGN, sequence, hash_, len(body), words(own))


def decode(
    datagrams: Iterable[bytes], producers: Sequence[bytes], identity: bool = True
) -> list[tuple[int, Row]]:
    """Return the unit and row of each message, fault and command."""
    server = Server((1 << 31) - 1)
    rows = []
    for unit, datagram in enumerate(datagrams):
        found = server.feed(datagram)
        if found.verdict in (MESSAGE, SIMPLE):
            rows.append((unit, decode_body(found.payload, producers, identity)))
        elif found.verdict == COMMAND:
            rows.append((unit, Row(DECODED_COMMAND, 0, 0, len(found.payload), (0, 0))))
        elif found.verdict != FRAGMENT:
            rows.append((unit, Row(found.verdict, 0, 0, -1, (0, 0))))
    return rows
