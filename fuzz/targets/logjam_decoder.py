"""Logjam's decoder of captures, and the decompression of bodies.

An input has a byte of options, the number of the allocation that fails (0: none), and a unit. The decoder's
rows are compared with the reference in plain Python, with `expand` and with `unpack`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, check, exact, use_compiled_hashes
from logclient._ext.hash import xxh64
from logclient._ext.logjam import STATUS_NAMES, Decoded, Decoder, unpack
from logclient.evidence.frames.logjam import expand
from tests.oracle import logjam as oracle
from tests.support import recordings

EXTENSIONS = ("logjam", "jsonscan")
MAX_LEN = 4096

PRODUCERS: tuple[list[bytes], ...] = (
    [], [bytes(range(10))], [bytes(range(1, 11))], [bytes(10), bytes(range(10)), b"\xff" * 10],
)  # fmt: skip
LIMITS = (1 << 20, 1 << 16, 64, 0)
IDENTITY, PACKED, TWICE, OUTSIDE = 1, 32, 64, 128  # bits of the options; 2 and 4: producers, 8 and 16: limit

sys.setrecursionlimit(20_000)  # the reference's JSON parser recurses as deep as ours
use_compiled_hashes(oracle, xxh64=xxh64)


ID = bytes(range(10)).hex().encode() + b"00000000002a"
METAS = [oracle.META.pack(0xCABD, method, 1, 0, 1, 1) for method in range(5)]

DICTIONARY = [
    b"\xca\xbd\x00\x01", b"\xca\xbd\x01\x01", b"\xca\xbd\x02\x01", b"\xca\xbd\x03\x01", b"\xbd\xca\x00\x01",
    b"shop-production", b"ping", b"heartbeat", b"tcp://", *oracle.TOPICS,
    b"\x18\x00\x00\x00", b"\x16\x00\x00\x00", b"\x00\x00\x00\x80", b"\x04\x00\x00\x80", b"\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff", b"x\x9c", b"\x80\x80\x80\x20", b"\x04\x00\x00\x00",
    b'{"request_id":"', b',"uuid":"', b'"}', ID, b"{}", b"[]", b'\\u0072equest_id', b"\\u00e9", b"\xc3\xb6",
    b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"true", b"false", b"null", b"-0.5e+3", b"1e999",
    b"17976931348623158",
    b'"@metadata":{"_id":', b'"event.id":', b'"event":{"id":', b"\\n", b"\\/",
]  # fmt: skip

ROOTS = ("Decoder", "unpack")
PYTHON = "where a library is not linked: tests/project/test_fallbacks.py"
MISTAKE = "a caller's mistake, no input's: tests/logjam/test_logjam_core.py"
APART = {
    **dict.fromkeys(("python_unpack()", "block_module()", "zstream_refused()"), PYTHON),
    **dict.fromkeys(
        ("UNPACK_MISSING", "NO_LIBRARY", "is not installed"), "where a package is missing: as above"
    ),
    **dict.fromkeys(("python_inflate()", "with gil:", "import zlib", "return zlib"), PYTHON),
    **dict.fromkeys(("d.python = ", "python_inflate("), PYTHON),
    **dict.fromkeys(("k.snappy = ", "k.lz4_block = ", "= python_unpack("), PYTHON),
    **dict.fromkeys(("raise TypeError", "producers: 10 bytes", "producers: not asc"), MISTAKE),
    "room = 1 << 30": "a body over a gibibyte",
    "return INFLATE_MEMORY": "libz's own memory: what it asks for does not fail here",
}

_BOUNDED = """        room = lc_get32(data)
        if room > limit:
            return INFLATE_TOO_LARGE
        data += 4
        size -= 4
        if room // LZ4_RATIO > size:
"""
PLANTS = (
    Plant("length", "_ext/logjam/decoder.pyx", "    if meta.size != META_SIZE or not has_tag(meta.at):",
          "    if meta.size + 1 < META_SIZE or not has_tag(meta.at):", (ASAN,)),
    Plant("allocation", "_ext/logjam/blocks.pyx", _BOUNDED, _BOUNDED.replace(":\n", " and False:\n"),
          (MEMORY, "a body over the bound", "the reference says too_large")),
    Plant("inflate", "_ext/deflate.pxd", "    return INFLATE_ALL if s.avail_out else 0",
          "    return INFLATE_ALL if s.avail_out and s.avail_in else 0", (TIMEOUT,)),
)  # fmt: skip


BIG = b"%d" % (2**1024 - 2**970)  # the least that no double holds
BODIES = [
    b"{}",
    b'{"request_id":"%s"}' % ID,
    b'{"uuid":"%s","a":{"b":[]}}' % ID,
    b'{"a":[1,-2.5e3,0.1E-2,true,false,null,"\\u00e9\\n\xc3\xb6\xe2\x82\xac\xf0\x9f\x98\x80"],"request_id":"%s"}'
    % ID,
    b'{"event":{"id":"%s"},"uuid":"x","@metadata":{"_id":1,"x":"y"},"event.id":[2],"e":{}}' % ID,
    b'{"\\u0072equest_id":"%s","\\u0075uid":7,"request_i\\u0064":"x","request\\nid":1,"\\u00e9":0}' % ID,
    b" " + b'{"message":"' + b"x" * 200 + b'","request_id":"%s"} ' % ID,
    b'{"message":"' + b"x" * 80 + b'","ok":true,"no":false,"nil":null,"n":-12.5e-3,"uuid":"%s"}' % ID,
    b'{"message":"' + b"x" * 80 + b'","event":7,"event.id":"x","@metadata":{}}',
    b'{"a":0.%s,"b":%s,"c":1%sE-1,"request_id":null}' % (b"0" * 320 + b"1e9", BIG[:-1] + b"1", b"0" * 308),
    b'{"a":%s}' % BIG,
    b'{"a":%s.%se100}' % (BIG[:209], BIG[209:-1]),
    b'{"a":1e999}',
    b'{"a":"' + b"x" * 70_000 + b'"}',
    b'{"a":%s%s}' % (b"[" * 990, b"]" * 990),
    b'{"a":%s%s}' % (b"[" * 1000, b"]" * 1000),
]


def seeds() -> Iterator[bytes]:
    """Yield every recorded message and reply, a message of each kind, and failing allocations."""
    for case in recordings.cases(recordings.LOGJAM):
        for parts in (case["frames_in_hex"], *case["reply_frames_hex"], *case["published_frames_hex"]):
            if parts:
                yield bytes([IDENTITY, 0]) + oracle.join([bytes.fromhex(part) for part in parts])
    app_env = b"shop-production"
    for number, body in enumerate(BODIES):
        for method in range(4):
            for topic in oracle.TOPICS if number < 3 else oracle.TOPICS[:2]:
                yield bytes([IDENTITY | PACKED | number % 4 << 1, 0]) + oracle.join(
                    [app_env, topic, body, METAS[method]]
                )
            packed = oracle.join([b"", app_env, b"logs", oracle.pack(method, body), METAS[method]])
            for limit in range(4):
                yield bytes([method > 1 | TWICE | limit << 3, 0]) + packed
            yield bytes([IDENTITY | OUTSIDE, 0]) + packed
            for failing in range(1, 28) if number in (0, 6, 8) else ():
                yield bytes([IDENTITY | TWICE, failing]) + packed
    for parts in ([b"", b"ping", app_env, b"{}", METAS[0]], [b"heartbeat", b"tcp://h:9606", b"{}", METAS[0]],
                  [app_env, b"logs", b"{}"], [app_env, b"logs", b"{}", METAS[0][:22]], [app_env, b"logs"],
                  [app_env, b"logs", b"\0" * 200 + b"{}", METAS[4]]):  # fmt: skip
        yield bytes([IDENTITY, 0]) + oracle.join(parts)
    for body in (b"{", b'{"a"', b'{"a" : 1 , "b":"x"}', b'{"a"x', b'{"a":01}', b'{"a":-}', b'{"a":1.}',
    b'{"a":1e}', b'{"a":tru}',
                 b'{"a":[1,]}', b'{"a":{"b" 1}}', b'{"a":"\\x"}', b'{"a":"\\u12g4"}', b'{"a":"\x01"}',
                 b'{"a":"\xc1"}',
                 b'{"a":"\xc3."}', b'{"a":"\xe0\x80\x80"}', b'{"a":"\xf5"}', b'{"\\u0172":1,"\\u00":2}',
                 b'{"a":1} x', b"[1]",
                 b'{"request_id":"zz%s"}' % ID[2:], b'{"request_id":"%szzzz"}' % ID[:28]):  # fmt: skip
        for padding in (b"", b'"p":"' + b"x" * 70 + b'",'):
            text = body[:1] + padding + body[1:]
            yield bytes([IDENTITY, 0]) + oracle.join([app_env, b"logs", text, METAS[0]])
            yield bytes([IDENTITY | TWICE | 2, 0]) + oracle.join([app_env, b"logs", text, METAS[0]])
    for method, body in (
        (2, b""),
        (2, b"\xff" * 5),
        (3, b"\0"),
        (1, b"x"),
        (2, b"\x80\x80\x80\x20" + b"x" * 20),
    ):
        yield bytes([IDENTITY, 0]) + oracle.join([app_env, b"logs", body, METAS[method]])


def _packed(unit: bytes) -> bytes:
    """Compress the body of a unit according to its meta, because a fuzzer cannot find a checksum."""
    try:
        parts, end = oracle.split_one(unit)
    except ValueError:
        return unit
    if end != len(unit) or len(parts) not in (4, 5) or len(parts[-1]) < 3 or parts[-1][2] not in (1, 2, 3):
        return unit
    return oracle.join([*parts[:-2], oracle.pack(parts[-1][2], parts[-2]), parts[-1]])


def run(data: memoryview) -> None:
    if len(data) < 2:
        return
    options, failing, unit = data[0], data[1], data[2:]
    if options & PACKED:
        unit = exact(_packed(bytes(unit)))
    identity, producers, limit = (
        bool(options & IDENTITY),
        PRODUCERS[options >> 1 & 3],
        LIMITS[options >> 3 & 3],
    )
    n = len(unit)
    places = [(0, n), (0, n), (n // 2, n - n // 2)] if options & TWICE else [(0, n)]
    if options & OUTSIDE:
        places.append((n - n // 4, n // 4 + 1))
    offsets, lengths = (array("q", column) for column in zip(*places, strict=True))
    memory.fail_at(failing)
    try:
        decoder = Decoder(b"".join(producers), identity=identity, max_unpacked=limit)
        rows = decoder.decode(unit, offsets, lengths)
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        return
    except ValueError as error:
        check(options & OUTSIDE, "every unit is in the data", str(error))
        return
    finally:
        memory.fail_at(0)
    check(not options & OUTSIDE, "a unit that leaves the data")
    check(rows.unit.tolist() == list(range(len(places))), "a row a unit", rows.unit.tolist())
    for i, (at, size) in enumerate(places):
        _check(rows, i, bytes(unit[at : at + size]), producers, identity, limit)
    if failing:
        _unpacked_without_memory(bytes(unit), failing)


def _unpacked_without_memory(unit: bytes, failing: int) -> None:
    row = oracle.decode(unit, [], limit=LIMITS[0])
    if row.body is None:
        return
    memory.fail_at(failing % 3 + 1)
    try:
        check(
            unpack(row.compression, oracle.split_one(unit)[0][-2], LIMITS[0]) == row.body,
            "unpacked otherwise",
        )
    except MemoryError:
        pass
    finally:
        memory.fail_at(0)


def _check(rows: Decoded, i: int, unit: bytes, producers: list[bytes], identity: bool, limit: int) -> None:
    def cell(name: str) -> int:
        return int(getattr(rows, name)[i])

    status, offset, length = cell("status"), cell("offset"), cell("length")
    want = oracle.decode(unit, producers, identity, limit)
    got = oracle.Row(
        status, cell("producer"), cell("prefix_high"), cell("prefix_low"), cell("sequence"), cell("hash"),
        want.body,
        (int(rows.id_hash[2 * i]), int(rows.id_hash[2 * i + 1])), cell("compression"), cell("device"),
        cell("created_ms"), cell("number"), cell("request"),
        unit[cell("app_env_offset") :][: cell("app_env_length")],
        unit[cell("topic_offset") :][: cell("topic_length")],
    )  # fmt: skip
    check(got == want, f"{STATUS_NAMES[status]}, the reference says {STATUS_NAMES[want.status]}", got, want)
    check(0 <= offset <= len(unit), "where the body begins", offset, len(unit))
    if want.body is None:
        return
    body = oracle.split_one(unit)[0][-2]
    check(unit[offset:].startswith(body), "the body is not where it is said to be")
    check(expand(unit)[offset : offset + length] == want.body, "the expanded unit has another body")
    check(xxh64(want.body) == want.hash, "the hash")
    check(unpack(want.compression, body, limit) == want.body, "unpacked otherwise")
    if want.body:
        try:
            unpack(want.compression, body, len(want.body) - 1)
        except ValueError as error:
            check(
                "the limit is " in str(error) or "more than" in str(error),
                "one byte over the bound",
                str(error),
            )
        else:
            check(False, "a body over the bound")
