"""Lumberjack's frames in a reader and in the decoder of captures.

An input has a byte of options, the number of bytes that arrive at a time (0: all), the number of the
allocation that fails (0: none), and a stream. Both results are compared with the reference in plain Python.
An option selects the literal form (``strict_spec``).
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterator

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, check, exact, pieces, use_compiled_hashes
from logclient._ext.hash import xxh64
from logclient._ext.lumberjack import Decoder
from logclient.evidence.frames.lumberjack import expand
from logclient.lumberjack.reader import Reader
from tests.oracle import lumberjack as oracle
from tests.support import recordings

EXTENSIONS = ("lumberjack", "jsonscan")
MAX_LEN = 4096

PRODUCERS: tuple[list[bytes], ...] = (
    [], [bytes(range(10))], [bytes(range(1, 11))], [bytes(10), bytes(range(10)), b"\xff" * 10],
)  # fmt: skip
BOUNDS = (1 << 20, 1 << 14, 80, 0)
LIMITS = [oracle.Limits(max_window=1000 if i else 10_000, max_frame=1 << 16 if i < 2 else 40,
                        max_unit=1 << 17 if i < 2 else 120, max_inflated=bound) for i,
                        bound in enumerate(BOUNDS)]  # fmt: skip
IDENTITY, PACKED, TWICE, LITERAL = 1, 32, 64, 128  # bits of the options; 2 and 4: producers, 8 and 16: bounds

sys.setrecursionlimit(20_000)  # the reference's JSON parser recurses as deep as ours
use_compiled_hashes(oracle, xxh64=xxh64)

ID = bytes(range(10)).hex().encode() + b"00000000002a"
OURS = b'"@metadata":{"_id":"%s"},"event.id":"%s"}' % (ID, ID)

DICTIONARY = [
    b"2W\x00\x00\x00\x01", b"1W\x00\x00\x00\x01", b"2J\x00\x00\x00\x01\x00\x00\x00\x02{}",
    b"1D\x00\x00\x00\x01", b"1J\x00\x00\x00\x01\x00\x00\x00\x02{}", b"1W\xff\xff\xff\xff",
    b"2C\x00\x00", b"1C\x00\x00", b"2A", b"x\x9c", b"\x00\x00\x00\x08event.id\x00\x00\x00 ",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00", b"\x00\x00'\x10", b"\x00\x00'\x11", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", ID,
    OURS,
    b'{"event":{"id":"', b'"@metadata":{"_id":"', b'"event.id":"', b'"}', b"{}", b"\\u0065", b"1e999",
    b"\xc3\xb6",
]  # fmt: skip

ROOTS = ("Decoder",)
PYTHON = "where zlib is not linked: tests/project/test_fallbacks.py"
MISTAKE = "a caller's mistake, no input's: tests/lumberjack/test_lumberjack_decoder.py"
APART = {
    **dict.fromkeys(("python_inflate()", "zstream_refused()"), PYTHON),
    **dict.fromkeys(("d.python = ", "return zlib", "with gil:", "python_inflate("), PYTHON),
    **dict.fromkeys(("raise TypeError", "producers: 10 bytes", "producers: not asc"), MISTAKE),
    **dict.fromkeys(("leaves the data", "return i"), MISTAKE),
    "room = 1 << 30": "a frame over a gibibyte",
}

PLANTS = (
    Plant("length", "_ext/lumberjack/decoder.pyx",
          "    return size if size <= left else 0\n", "    return size if size <= left + 1 else 0\n",
          (ASAN, "AssertionError: rows", "AssertionError: a row")),
    Plant("allocation", "_ext/deflate.pxd",
          "room = min(min(room, most - out.size), (<size_t> 1 << 30) - 1) + 1", "room = <size_t> 1 << 28",
          (MEMORY,)),
    Plant("inflate", "_ext/deflate.pxd", "    return INFLATE_ALL if s.avail_out else 0",
          "    return INFLATE_ALL if s.avail_out and s.avail_in else 0", (TIMEOUT,)),
)  # fmt: skip


def _window(n: int, *frames: bytes, version: int = 2) -> bytes:
    return b"%dW" % version + struct.pack(">I", n) + b"".join(frames)


def _json(sequence: int, body: bytes) -> bytes:
    return b"2J" + struct.pack(">II", sequence, len(body)) + body


def _data(sequence: int, *pairs: tuple[bytes, bytes]) -> bytes:
    return b"1D" + struct.pack(">I", sequence) + oracle.join_pairs(list(pairs))


def _compressed(content: bytes, version: int = 2) -> bytes:
    small = zlib.compress(content)
    return b"%dC" % version + struct.pack(">I", len(small)) + small


def seeds() -> Iterator[bytes]:
    """What was recorded of writers and readers, windows of each kind, and memory that ends at each place."""
    head = bytes([IDENTITY, 0, 0])
    for case in recordings.cases(recordings.LUMBERJACK):
        for data in (bytes.fromhex(case["writer_hex"]), bytes.fromhex(case["reader_hex"])):
            yield head + data
    for case in recordings.cases(recordings.LUMBERJACK_EDGE):
        yield head + b"".join(map(bytes.fromhex, case["writer_chunks_hex"]))
    from fuzz.targets.logjam_decoder import BODIES

    own = [b"{" + OURS, b'{"a":1,' + OURS, b'{"a":1,' + OURS.replace(ID, ID[::-1], 1),
    b'{"event":{"id":"%s"}}' % ID,
           b'{"@metadata":{"_id":"x"},"event.id":[],"event":{"id":{}}}',
           b'{"event.id":"%s"}' % ID.upper()]  # fmt: skip
    for number, body in enumerate([*own, *(body for body in BODIES if len(body) < 3000)]):
        for bound in range(4):
            some = IDENTITY | number % 4 << 1 | bound << 3
            yield bytes([some, number % 9, 0]) + _window(2, _json(1, body), _compressed(_json(2, b"{}")))
            yield bytes([some | PACKED, 0, 0]) + _window(1, _json(1, body))
        yield bytes([IDENTITY | TWICE, 0, 0]) + _window(1, _compressed(_compressed(_json(1, body))))
    pairs = [(b"line", b"x"), (b"event.id", ID), (b"", b"")]
    old = [_data(1, *pairs), _data(2, *pairs[:1]), _data(3), _data(4, (b"event.id", b"x"))]
    for step in (0, 1, 7):
        yield bytes([IDENTITY, step, 0]) + _window(4, *old, version=1)
        yield bytes([IDENTITY, step, 0]) + _window(4, *old[:2], _compressed(b"".join(old[2:]), 1), version=1)
    numbers = (1, 0xFFFFFFFF, 0)
    literal = [b"1J" + _json(n, own[1])[2:] for n in numbers] + [_data(2, *pairs)]
    for step in (0, 1, 7):
        for some in range(0, 32, 8):
            head = bytes([IDENTITY | LITERAL | some, step, 0])
            for size in (0, 1, 2, 4, 1 << 31):
                yield head + _window(size, *literal, version=1)
                yield head + _window(size, _compressed(b"".join(literal), 1), *literal[:1], version=1)
            yield head + b"".join(literal)
            yield (
                head + _compressed(_window(3, *literal[:2], version=1), 1) + _compressed(b"", 1) + literal[3]
            )
            yield head + _window(9, _compressed(_compressed(literal[0], 1), 1), b"2J", version=1)
            yield head + _window(9, _compressed(literal[0][:-1], 1), version=1)
            yield head + _window(9, b"1X", version=1)
            yield head + _window(9, _compressed(b"1W\0\0", 1), version=1)
    whole = _window(3, _json(1, own[0]), _compressed(_json(2, own[4]) + _compressed(_json(3, b"{}"))))
    for failing in range(1, 24):
        yield bytes([IDENTITY, 0, failing]) + whole
        yield bytes([IDENTITY, 9, failing]) + whole
    for data in (
        _window(0), _window(1001), _window(10_001), _window(1, _data(1)), _window(1, b"1J"), b"2X", b"3W",
        b"2J",
        _window(2, _json(1, b"{}"), _window(1)), _window(1, b"2X"), _window(1, _json(1, b"")), _window(1,
        b"2C\0\0\0\0"),
        _window(1, b"2J\0\0\0\1\xff\xff\xff\xff"), _window(1, b"2C\xff\xff\xff\xff"), _window(1,
        _compressed(b"2J\0\0")),
        _window(1, _compressed(_json(1, b"{}") * 2)), _window(1, _compressed(_window(1))), _window(1,
        b"2C\0\0\0\1x"),
        _window(1, _compressed(_compressed(_compressed(_json(1, b"{}"))))), _window(1, _compressed(_json(1,
        b"x" * 5000))),
        _window(1, b"1D\0\0\0\1\xff\xff\xff\xff", version=1), _window(1,
        b"1D\0\0\0\1\0\0\0\1\xff\xff\xff\xff", version=1),
        _window(1, b"1D\0\0\0\1\0\0\0\1\0\0\0\1x\xff\xff\xff\xff", version=1), _window(2, *[_json(1 << 31,
        b"{}")] * 2),
    ):  # fmt: skip
        for some in range(0, 32, 8):
            yield bytes([IDENTITY | some, 0, 0]) + data
            yield bytes([IDENTITY | some, 1, 0]) + data


def _packed(data: bytes) -> bytes:
    """Compress the bytes behind the window frame, because a fuzzer cannot find a checksum."""
    return data[:6] + _compressed(data[6:], data[0] & 1 or 2) if len(data) > 6 else data


def run(data: memoryview) -> None:
    if len(data) < 3:
        return
    options, step, failing = data[:3]
    stream = data[3:]
    if options & PACKED:
        stream = exact(_packed(bytes(stream)))
    limits, producers = LIMITS[options >> 3 & 3], PRODUCERS[options >> 1 & 3]
    if options & LITERAL:
        _read_literal(stream, limits, step, failing)
    else:
        _read(stream, limits, step, failing)
    _decode(stream, producers, bool(options & IDENTITY), limits.max_inflated, bool(options & TWICE), failing)


def _read(stream: memoryview, limits: oracle.Limits, step: int, failing: int) -> None:
    memory.fail_at(failing)
    got = []
    try:
        reader = Reader(**limits._asdict())
        for piece in pieces(stream, step):
            got += reader.receive_data(piece)
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        return
    finally:
        memory.fail_at(0)
    windows, broken, pending = oracle.read(bytes(stream), limits)
    reads = [oracle.Read(w.version, w.ack, w.unit, w.events, w.sequences) for w in got]
    check(reads == windows, "windows", reads, windows)
    check((reader.error is not None) == broken, "broken", reader.error, broken)
    check(broken or reader.pending == pending, "pending", reader.pending, pending)
    check(all(len(w) == len(w.events) for w in got), "counts")
    reader.receive_eof()
    check((reader.error is not None) == (broken or bool(pending)), "cut", reader.error)


def _read_literal(stream: memoryview, limits: oracle.Limits, step: int, failing: int) -> None:
    """Read the literal form, and acknowledge the units of every second piece at once."""
    expected = oracle.LiteralReader(limits)
    memory.fail_at(failing)
    try:
        reader = Reader(**limits._asdict(), strict_spec=True)
        for number, piece in enumerate(pieces(stream, step)):
            got = reader.receive_data(piece)
            reads = [oracle.Read(w.version, w.ack, w.unit, w.events, w.sequences, w.types) for w in got]
            want = expected.feed(bytes(piece))
            check(reads == want, "units", reads, want)
            check((reader.error is not None) == expected.broken, "broken", reader.error, expected.broken)
            check(
                expected.broken or reader.pending == len(expected.left),
                "pending",
                reader.pending,
                expected.left,
            )
            check(reader.window_size == expected.credit, "the window", reader.window_size, expected.credit)
            if number % 2:
                reader.acknowledge(sum(map(len, got)))
                expected.acknowledge(sum(map(len, got)))
        reader.receive_eof()
        check((reader.error is not None) == (expected.broken or bool(expected.left)), "cut", reader.error)
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
    finally:
        memory.fail_at(0)


def _decode(
    stream: memoryview, producers: list[bytes], identity: bool, bound: int, twice: bool, failing: int
) -> None:
    n = len(stream)
    places = [(0, n), (n // 2, n - n // 2), (0, n)] if twice else [(0, n)]
    offsets, lengths = (array("q", column) for column in zip(*places, strict=True))
    memory.fail_at(failing)
    try:
        got = Decoder(b"".join(producers), identity=identity, max_inflated=bound).decode(
            stream, offsets, lengths
        )
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        return
    finally:
        memory.fail_at(0)
    hashes = got.id_hash.tolist()
    columns = zip(
        got.status.tolist(), got.producer.tolist(), got.prefix_high.tolist(), got.prefix_low.tolist(),
        got.sequence.tolist(), got.hash.tolist(), got.offset.tolist(),
        got.length.tolist(), zip(hashes[::2], hashes[1::2], strict=True), strict=True,
    )  # fmt: skip
    rows = [oracle.Row(*row) for row in columns]
    units = got.unit.tolist()
    want = [
        (i, row)
        for i, (at, size) in enumerate(places)
        for row in oracle.decode_unit(bytes(stream[at : at + size]), producers, identity, bound)
    ]
    check(len(rows) == len(want), "rows", rows, want)
    for unit, row, (place, expected) in zip(units, rows, want, strict=True):
        # A body with our own ending is accepted without a check of the rest.
        accepted = (expected.status, row.status) == (oracle.NOT_JSON_ROW, oracle.OK)
        check(accepted or (unit, row) == (place, expected), "a row", unit, row, expected)
    whole = [expand(bytes(stream[at : at + size]), bound) for at, size in places]
    for unit, row in zip(units, rows, strict=True):
        if row.status <= oracle.NOT_JSON_ROW:
            body = whole[unit][row.offset : row.offset + row.length]
            check(xxh64(body) == row.hash, "the place of the body", row)
