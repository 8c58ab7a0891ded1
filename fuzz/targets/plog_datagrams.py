"""plog's datagrams: checked, reassembled, and decoded from captures.

An input has a byte of options, the number of the allocation that fails (0: none), and datagrams. Each
datagram has a byte for its sender, the time before it and its preparation, and a length, u16 little-endian.
The datagrams go to a reassembler without tight bounds, which is compared with the reference in plain Python;
to a reassembler with tight bounds, which it must keep; and to the decoder.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections.abc import Iterator
from random import Random
from typing import Any

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, check, exact, use_compiled_hashes
from logclient._ext.hash import murmur3, xxh64
from logclient._ext.plog import MESSAGE, SIMPLE, VERDICT_NAMES, Decoder, Judged, Reassembler
from tests.oracle import plog as oracle
from tests.support import recordings

EXTENSIONS = ("plog", "jsonscan")
MAX_LEN = 2048

PRODUCERS: tuple[list[bytes], ...] = (
    [], [bytes(range(10))], [bytes(range(1, 11))], [bytes(10), bytes(range(10)), b"\xff" * 10],
)  # fmt: skip
MOST = 65536  # bytes of a message of several fragments
IDENTITY, BODIES = 1, 8  # bits of the options; 2 and 4: producers; BODIES: of the decoder, units are bodies
# Bits of the byte before a datagram; 1 and 2: its sender, 4 and 8: PAUSES.
CUT, MENDED = 16, 32
PAUSES = (0.0, 0.4, 1.0, 3.0)
SMALL = {"max_message": 2000, "max_bytes": 20_000, "expire": 2.0}

sys.setrecursionlimit(20_000)  # the reference's JSON parser recurses as deep as ours
use_compiled_hashes(oracle, xxh64=xxh64, murmur3=murmur3)

ID = bytes(range(10)).hex().encode() + b"00000000002a"
DICTIONARY = [
    b"\x00\x01\x00\x01\x00\x00", b"\x00\x01\x00\x02\x00\x01", b"\x00\x01\xff\xff\xff\xfe", b"\x00\x00PING",
    b"\x00\x00STAT", b"\x00\x00ENVI", b"\x00\x00KILL", b"\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x00", b'{"uuid":"', b'"}', ID, b"{}", b"kt:logs", b"\x10", b"\x20", b"\x01\x00",
    b"\x18\x00",
]  # fmt: skip

ROOTS = ("Defragmenter", "Reassembler", "Judged", "Decoder")
MISTAKE = "a caller's mistake, not an input's: tests/plog/test_plog_core.py"
APART = {
    **dict.fromkeys(("raise TypeError", "raise IndexError"), MISTAKE),
    **dict.fromkeys(("raise ValueError", "leaves the data", "return i", "open_defrag()"), MISTAKE),
    **dict.fromkeys(("fragments()", "datagrams()"), "the client's"),
}

PLANTS = (
    Plant("length", "_ext/plog/reassembler.pyx", "    if tags > size - HEADER_SIZE:\n",
          "    if tags > size - HEADER_SIZE + 1:\n", (ASAN, "the reference says bad_header")),
    Plant("allocation", "_ext/plog/reassembler.pyx", "        if total > d.max_message:\n",
          "        if total > d.max_message and False:\n",
          (MEMORY, "the reference says too_large", "held beyond the bound")),
    Plant("endless", "_ext/plog/reassembler.pyx", "d.expire:\n        evict(d, d.oldest)",
          "d.expire:\n        count_dropped(d, d.oldest)", (TIMEOUT,)),
)  # fmt: skip


def _datagram(data: bytes, how: int = 0) -> bytes:
    return bytes([how]) + len(data).to_bytes(2, "little") + data


def _message(payload: bytes, *, room: int = 60, tags: int = 0, id_: int = 1, order: int = 0) -> bytes:
    return bytes([order, room, id_, tags]) + payload


def seeds() -> Iterator[bytes]:
    """Yield every recorded datagram, messages of each kind in any order, and failing allocations."""
    for case in recordings.cases(recordings.PLOG):
        # The longest datagrams are not recorded in full.
        sent = [bytes.fromhex(one) for one in case.get("datagrams", ()) if isinstance(one, str)]
        yield bytes([IDENTITY, 0]) + b"".join(map(_datagram, sent))
    body = b'{"message":"' + b"x" * 150 + b'","uuid":"%s"}' % ID
    for number, payload in enumerate((b"", b"x", body, b'{"uuid":"x"}', b"{}", body * 6, b"\0" * 300)):
        for order in range(3):
            for room in (40, 60, 255):
                one = _message(payload, room=room, order=order, tags=number)
                two = _message(body, room=room, order=order + 1, id_=number % 2)
                for options in (IDENTITY, IDENTITY | 2, 4, BODIES):
                    pause = number % 4 << 2
                    yield bytes([options, 0]) + _datagram(one, CUT | pause) + _datagram(two, CUT | 1)
                    yield bytes([options, 0]) + _datagram(two, CUT | pause) + _datagram(one[:-9], CUT) * 2
    from fuzz.targets.logjam_decoder import BODIES as DOCUMENTS

    for text in (text for text in DOCUMENTS if len(text) < MAX_LEN):
        yield bytes([IDENTITY, 0]) + _datagram(text) + _datagram(_message(text, room=255), CUT)
        yield bytes([IDENTITY | 2 | BODIES, 0]) + _datagram(text.replace(b"request_id", b"uuid"))
    heads = [oracle.HEADER.pack(0, 1, 3, i % 4, 900, i % 30, 2000, 7, 0, 0) for i in range(40)]
    yield bytes([IDENTITY, 0]) + b"".join(map(_datagram, heads))
    for count, index in ((1, 0), (2, 0), (2, 1)):
        for tags in range(6):  # up to the end of the datagram, and beyond
            one = oracle.HEADER.pack(0, 1, count, index, 0, 5, 0, 0, tags, 0) + b"tags"
            yield bytes([IDENTITY, 0]) + _datagram(one) + _datagram(one, MENDED)
    parts = oracle.fragments(body, 7, 80, b"tag")
    for failing in range(1, 40):
        for how in (0, 3 << 2):
            yield bytes([IDENTITY, failing]) + b"".join(_datagram(part, how) for part in reversed(parts))
            yield bytes([IDENTITY, failing]) + _datagram(body) + _datagram(b"\0\0PING")
    for at, put in ((2, b"\0\0"), (2, b"\xff\xff"), (4, b"\xff\xff"), (6, b"\0\1"), (12, b"\x7f\xff\xff\xff"),
                    (12, b"\x80\0\0\0"), (12, b"\0\0\0\1"), (16, b"\0\0\0\0"), (20, b"\xff\xff"), (20,
                    b"\0\xff"),
                    (0, b"\1"), (1, b"\2"), (0, b"")):  # fmt: skip
        for index in (0, len(parts) - 1):
            wrong = parts[index][:at] + put + parts[index][at + len(put) :]
            for last in (wrong, wrong[:-1], wrong[:23]):
                yield bytes([IDENTITY, 0]) + b"".join(map(_datagram, [*parts[:2], last, *parts]))
                yield bytes([IDENTITY, 0]) + _datagram(last, MENDED) + _datagram(b"")


def _datagrams(data: bytes) -> list[tuple[bytes, int, float]]:
    """Cut `data` into datagrams, each with its sender and time."""
    found: list[tuple[bytes, int, float]] = []
    at, now = 0, 1.0
    while len(data) - at >= 3 and len(found) < 60:
        how, size = data[at], int.from_bytes(data[at + 1 : at + 3], "little")
        part = data[at + 3 : at + 3 + size]
        at += 3 + size
        now += PAUSES[how >> 2 & 3]
        whole = [part]
        if how & CUT and len(part) >= 4:
            # A fuzzer cannot find a hash: make a whole message, with its fragments in some order.
            order, room, id_, tags = part[:4]
            room = max(room, 40)
            whole = oracle.fragments(part[4:], id_, room, b"t" * min(tags, room - 40))
            if order:
                Random(order).shuffle(whole)
        elif how & MENDED and len(part) >= 24:
            tags = int.from_bytes(part[20:22], "big")
            whole = [part[:16] + murmur3(part[24 + tags :]).to_bytes(4, "big") + part[20:]]
        found += [(one, how & 3, now) for one in whole]
    return found


def _columns(found: list[tuple[bytes, int, float]]) -> tuple[memoryview, array[int], array[int], array[int]]:
    offsets, lengths, streams = array("q"), array("q"), array("Q")
    at = 0
    for one, stream, _ in found:
        offsets.append(at)
        lengths.append(len(one))
        streams.append(stream)
        at += len(one)
    return exact(b"".join(one for one, _, _ in found)), offsets, lengths, streams


def run(data: memoryview) -> None:
    if len(data) < 2:
        return
    options, failing = data[0], data[1]
    found = _datagrams(bytes(data[2:]))
    _judge(found, failing)
    _bounded(found, failing)
    _decode(found, options, failing)


def _without(failing: int, call: Any, *given: Any, **named: Any) -> Any:
    """Return the result of the call; None: the chosen allocation failed."""
    memory.fail_at(failing)
    try:
        return call(*given, **named)
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        return None
    finally:
        memory.fail_at(0)


def _judge(found: list[tuple[bytes, int, float]], failing: int) -> None:
    reassembler = Reassembler(max_message=MOST, max_bytes=1 << 25, expire=1e6)
    columns = _columns(found)
    judged: Judged | None = _without(failing, reassembler.feed, *columns, 1.0)
    if judged is None:
        reassembler.feed(*columns, 1.0)  # its state is still consistent
        return
    check(len(judged) == len(found), "a row a datagram", len(judged))
    server = oracle.Server(MOST)
    for row, (one, stream, _) in enumerate(found):
        want = server.feed(one, stream)
        got = judged.verdict[row]
        check(
            got == want.verdict,
            f"{VERDICT_NAMES[got]}, the reference says {VERDICT_NAMES[want.verdict]}",
            row,
            one,
        )
        if got in (oracle.MESSAGE, oracle.SIMPLE, oracle.COMMAND, oracle.BAD_CHECKSUM):
            check(judged.payload(row) == want.payload, "the payload", row, judged.payload(row), want.payload)
            check(judged.tags(row) == want.tags, "the tags", row, judged.tags(row), want.tags)
    want_open = {(*key, len(o.parts), o.count) for key, o in server.open.items()}
    check(set(reassembler.open) == want_open, "what is not whole", reassembler.open, want_open)
    check(bool(reassembler.held) == bool(want_open), "what is held", reassembler.held)


def _bounded(found: list[tuple[bytes, int, float]], failing: int) -> None:
    reassembler = Reassembler(**SMALL)  # type: ignore[arg-type]
    now = 0.0
    for now, same in itertools.groupby(found, lambda one: one[2]):
        some = list(same)
        judged: Judged | None = _without(failing, reassembler.feed, *_columns(some), now)
        check(reassembler.held <= SMALL["max_bytes"], "held beyond the bound", reassembler.held)
        if judged is None:
            failing = 0
            continue
        for row, verdict in enumerate(judged.verdict.tolist()):
            if verdict == MESSAGE:
                check(murmur3(judged.payload(row)) == int.from_bytes(some[row][0][16:20], "big"), "the hash")
    counted: Any = reassembler.counters()
    check(
        counted["defragmenter"]["hits"] + counted["defragmenter"]["misses"] <= len(found), "counters", counted
    )
    reassembler.expire(now + 5)
    check(not reassembler.open and not reassembler.held, "given up")


def _decode(found: list[tuple[bytes, int, float]], options: int, failing: int) -> None:
    identity, producers = bool(options & IDENTITY), PRODUCERS[options >> 1 & 3]
    decoder = Decoder(b"".join(producers), identity=identity, datagrams=not options & BODIES,
                      max_message=MOST,
                      max_bytes=1 << 25, expire=1e6)  # fmt: skip
    data, offsets, lengths, streams = _columns(found)
    times = array("q", [int(when * 1e6) for _, _, when in found])
    got = _without(failing, decoder.decode, data, offsets, lengths, streams, times)
    if got is None:
        decoder.decode(data, offsets, lengths, streams)
        return
    server = oracle.Server(MOST)
    want: list[tuple[int, oracle.Row]] = []
    for unit, (one, stream, _) in enumerate(found):
        verdict = oracle.Verdict(SIMPLE, one) if options & BODIES else server.feed(one, stream)
        if verdict.verdict in (oracle.MESSAGE, oracle.SIMPLE):
            want.append((unit, oracle.decode_body(verdict.payload, producers, identity)))
        elif verdict.verdict == oracle.COMMAND:
            want.append((unit, oracle.Row(oracle.DECODED_COMMAND, 0, 0, len(verdict.payload), (0, 0))))
        elif verdict.verdict != oracle.FRAGMENT:
            want.append((unit, oracle.Row(verdict.verdict, 0, 0, -1, (0, 0))))
    check(got.unit.tolist() == [unit for unit, _ in want], "units", got.unit.tolist(), want)
    hashes = got.id_hash.tolist()
    for i, (_, row) in enumerate(want):
        mine = oracle.Row(got.status[i], got.sequence[i], got.hash[i],
                          got.length[i] if row.length >= 0 else -1,
                          (hashes[2 * i], hashes[2 * i + 1]))  # fmt: skip
        check(mine == row, "a row", mine, row)
    check(set(decoder.open) == {(*key, len(o.parts), o.count) for key, o in server.open.items()}, "open")
