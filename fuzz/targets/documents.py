"""The columns of bodies: time, level, message and fields of documents.

An input has a byte of options (the protocol, and whether fields are asked for), the number of the allocation
that fails (0: none), and documents with `CUT` between them. All of them must have the columns of the
reference in plain Python.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fuzz import memory
from fuzz.target import ASAN, MEMORY, Plant, check
from logclient._ext.documents import DocumentReader, join
from logclient.evidence import decode
from tests.oracle import documents as oracle
from tests.oracle.lumberjack import join_pairs

EXTENSIONS = ("documents", "jsonscan")
MAX_LEN = 2048

CUT = b"\xff\xfe"
PROTOCOLS = tuple(sorted(oracle.RULES))
FIELDS = 4  # bit of the options; the lower ones: the protocol

sys.setrecursionlimit(20_000)

DICTIONARY = [
    b'{"', b'":"', b'","', b'"}', b"{}", b"[]", b"null", b"true", b'"@timestamp":', b'"log.level":',
    b'"log":{"level":', b'"data":{', b'"message":', b'"lines":[[1,"","', b'"severity":5', b'"started_ms":',
    b"1795179630668.5", b"2026-11-21T18:03:11.152093Z", b"+01:30", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d",
    b"\\", b"\\u12", b"\xc3\xa9", b"\xe2\x82", b"\x00\x00\x00\x01", b"\x00\x00\x00\x04line", CUT,
    b"253402300800000", b"-62135596800001", b"1" * 30,
]  # fmt: skip

ROOTS = ("DocumentReader", "read_document", "join")
_MISTAKE = "a caller's mistake, no input's: tests/verify/test_documents.py"
APART = {
    **dict.fromkeys(("raise TypeError", "raise ValueError", "done = -2"), _MISTAKE),
    "2**31": "columns of two gibibytes",
}
PLANTS = (
    Plant("escape", "_ext/documents/texts.pyx", "room_for(d, to, 2 * size + 4)", "room_for(d, to, size + 0)",
          (ASAN,)),
    Plant("allocation", "_ext/documents/members.pyx", "room_for(d, &d.unescaped, 2 * size + 8)",
          "room_for(d, &d.unescaped, (2 * size + 8) << 14)", (MEMORY,)),
    Plant("pairs", "_ext/documents/members.pyx", "        count -= 1\n    return p == end\n",
          "        count -= 1\n    return True\n", ("AssertionError",)),
)  # fmt: skip

TIMES = ("2026-11-21T18:03:11.152093Z", "2024-02-29 23:59:60,5+01:30", "0001-01-01T00:00:00Z", "now", "")
NUMBERS = (0, 5, 9, -1, 1795179630668, 10**25, 1.25)
VALUES = (*TIMES, *NUMBERS, None, True, [], {}, {"a": [1]}, 'q"\\/\n\té😀\ud800')
NAMES = (
    "@timestamp", "started_ms", "log.level", "severity", "message", "line", "lines", "label", "data", "a",
)  # fmt: skip


def _documents() -> Iterator[bytes]:
    for name in NAMES:
        for value in VALUES:
            yield json.dumps({name: value}).encode()
            yield json.dumps({"data": {name: value}, name: 1}).encode()
    for value in VALUES:
        yield json.dumps({"a": 1, "log": {"level": value}}).encode()
    lines: tuple[Any, ...] = ([1, "t", "one"], [2, "t", "tw\no"], [1, "t"], [1, 2, 3], "x", [1, "t", "\\"])
    for some in (lines[:2], *([line] for line in lines), [lines[0], 2]):
        yield json.dumps({"lines": some}, indent=1).encode()
    yield json.dumps({f"name {i % 40}": i for i in range(60)}).encode()
    yield b'{"a":1,"a":2,"\\u0061":3,"":4}'
    yield b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"
    yield json.dumps({"größe": "é", "😀": "ü"}, ensure_ascii=False).encode()
    yield join_pairs([(b"line", b"x"), (b"@timestamp", TIMES[0].encode()), (b"level", b"INFO")])
    yield join_pairs([(b"line", b"x")])[:-1]
    yield join_pairs([(b"line", b"\xff")])
    yield from (b"", b" ", b"{", b"{}x", b"plain text", b"\xe2\x82\xac \xe2\x82", b'{"a":"\\u12', b'{"a":1,}')


def seeds() -> Iterator[bytes]:
    """Yield documents of each kind for each protocol, alone and in a row, and failing allocations."""
    documents = list(_documents())
    for i, raw in enumerate(documents):
        yield bytes([i % 4 | FIELDS, 0]) + raw
    for protocol in range(4):
        for low in range(0, len(documents), 12):
            some = CUT.join(documents[low : low + 12])[:MAX_LEN]
            yield bytes([protocol | FIELDS, 0]) + some
            yield bytes([protocol, 0]) + some
        for failing in range(1, 12):
            yield bytes([protocol | FIELDS, failing]) + CUT.join(documents[-14:])


def run(data: memoryview) -> None:
    if len(data) < 2:
        return
    options, failing = data[:2]
    protocol, fields = PROTOCOLS[options & 3], bool(options & FIELDS)
    bodies = bytes(data[2:]).split(CUT)
    edges = array("q", [0])
    for body in bodies:
        edges.append(edges[-1] + len(body))
    lengths = array("q", map(len, bodies))
    memory.fail_at(failing)
    try:
        joined = join(b"".join(bodies), edges[:-1], lengths)
        found = DocumentReader(**decode.wire(protocol).DOCUMENT).read(joined, edges, fields=fields)
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        return
    finally:
        memory.fail_at(0)
    check(bytes(joined) == b"".join(bodies), "joined")
    rows = list(zip(*_columns(found, len(bodies)), strict=True))
    for body, row in zip(bodies, rows, strict=True):
        expected = oracle.document(protocol, body)
        check(row[:3] == expected[:3], "columns", body, row, expected)
        want = expected.fields if fields or expected.fields is None else {}
        check(row[3] == want, "fields", body, row[3], want)
    size = sum(len(part) for text in (found.level, found.message, found.keys, found.values) for part in text)
    # A byte gives at most two names or values, of at most three bytes, and 5 bytes beside each.
    check(size <= 32 * (len(data) + len(bodies)) + 64, "too much memory", size, len(data))


def _columns(found: Any, n: int) -> list[list[Any]]:
    level, message = _texts(found.level), _texts(found.message)
    keys, values = _texts(found.keys), _texts(found.values)
    ends, valid = found.field_ends.tolist(), found.field_valid.tolist()
    check(len(level) == len(message) == len(valid) == len(ends) - 1 == n, "rows")
    check(ends[-1] == len(keys) == len(values), "fields")
    maps = [dict(zip(keys[a:b], values[a:b], strict=True)) for a, b in pairwise(ends)]
    check(all(len(one) == b - a for one, (a, b) in zip(maps, pairwise(ends), strict=True)), "equal names")
    times = zip(found.time.tolist(), found.time_valid.tolist(), strict=True)
    return [
        [us if ok else None for us, ok in times],
        level,
        message,
        [one if ok else None for one, ok in zip(maps, valid, strict=True)],
    ]


def _texts(column: Any) -> list[str | None]:
    data, ends, valid = (part.tolist() if i else bytes(part) for i, part in enumerate(column))
    check(ends[0] == 0 and ends[-1] == len(data), "ends")
    texts = [data[a:b].decode() for a, b in pairwise(ends)]
    return [text if ok else None for text, ok in zip(texts, valid, strict=True)]
