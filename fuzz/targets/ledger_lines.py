"""Lines of ledgers.

An input has four bytes of options, and ledger files with `CUT` between them. The options are bits (a selected
time, the caller's own rows), the number of the allocation that fails (0: none), the room for
events, and the number of bytes at the end of each file that are not to be read. `LineReader` must stop at the
same lines as the reference in plain Python, and have the same rows.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from array import array
from collections.abc import Iterator
from typing import Any

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, check, exact
from logclient._ext import ledger
from tests.oracle import ledger as oracle

EXTENSIONS = ("ledger",)
MAX_LEN = 4096

CUT = b"\xff\xfe"
# Bits of the options.
SINCE = 1
UNTIL = 2
OWN_ROWS = 4  # for each line that was not read the caller adds a row to each table

SINCE_US, UNTIL_US = 1005, 1010
REASONS = {b"": 0, b"refused": 3, b"full": 1}
TABLES = {"spans": 4, "outcomes": 5, "drops": 3, "when": 4}

DICTIONARY = [
    b'{"t":"batch","seqs":[[', b'{"t":"outcome","at_us":', b'{"t":"dropped","at_us":', b',"n":', b',"base":',
    b',"created":"', b'","hashes":"', b'"}\n', b',"status":"', b"acked", b"handed", b"failed",
    b'","reason":"', b"refused", b"full", b'","seqs":[[', b"[1,1]", b"]]}\n", b"],[", b"281474976710655",
    b"281474976710656", b"999999999999999999", b"1000000000000000000", b"-1", b"0", b"1004", b"1005", b"1009",
    b"1010", b"AAAA", b"/////w==", b"AQAAAA==", b"=", b"==", b"\n", CUT,
]  # fmt: skip

ROOTS = ("LineReader", "Table")
APART = {"raise ValueError": "a caller's mistake, no input's: tests/verify/test_ledger_lines.py"}
_ENDS = "end - p < (4 * n + 2) // 3 * 4 + 12 + (8 * n + 2) // 3 * 4 + 3:"
PLANTS = (
    Plant("length", "_ext/ledger.pyx", _ENDS, "end - p < (4 * n + 2) // 3 * 4 + 12:",
          (ASAN, "AssertionError")),
    Plant("room", "_ext/ledger.pyx", "        if n > room or ", "        if n > room + 1 or ", (ASAN,)),
    Plant("allocation", "_ext/ledger.pyx", "row, 8 * <size_t> t.width)",
          "row, (8 * <size_t> t.width) << 28)", (MEMORY,)),
    Plant("endless", "_ext/ledger.pyx", "        if got > 0:\n            at[0] = p\n        return got\n",
          "        if got > 0:\n            got = 1\n        return got\n", (TIMEOUT, MEMORY)),
    Plant("alphabet", "_ext/ledger/base64.h", "return bad & 0x80000000u ? -1 : 0;",
          "return bad & 0x40000000u ? -1 : 0;", ("AssertionError",)),
)  # fmt: skip


def _bytes(n: int, seed: str = "") -> bytes:
    """Return some bytes, the same ones in each run."""
    return hashlib.shake_128(seed.encode()).digest(n)


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _batch(ranges: list[list[int]], base: int = 1006, spread: int = 3, **changed: Any) -> bytes:
    n = sum(last - first + 1 for first, last in ranges)
    deltas = [i % (spread + 1) for i in range(n)]
    created = _base64(struct.pack(f"<{n}i", *deltas))
    hashes = _base64(_bytes(8 * n, str(ranges)))
    made = {"seqs": ranges, "n": n, "base": base, "created": created, "hashes": hashes}
    return _encode({"t": "batch", **made, **changed})


def _outcome(status: str, ranges: list[list[int]], reason: str = "") -> bytes:
    return _encode({"t": "outcome", "at_us": 1007, "status": status, "reason": reason, "seqs": ranges})


def _dropped(ranges: list[list[int]], at_us: int = 1007) -> bytes:
    return _encode({"t": "dropped", "at_us": at_us, "reason": "full", "seqs": ranges})


def _lines() -> Iterator[bytes]:
    """Yield lines: those that are read, and some that are not."""
    last = oracle.LAST_SEQUENCE
    ranges: tuple[list[list[int]], ...] = (
        [[1, 1]], [[1, 3]], [[4, 4], [6, 9]], [[last, last]], [[1, 2], [3, 4]], [[3, 4], [4, 5]], [[2, 1]],
        [], [[0, 1]], [[-1, 1]], [[last, last + 1]], [[1, 2], [4, 4], [6, 7], [9, 9]], [[10, 10**9]],
    )  # fmt: skip
    for seqs in ranges:
        for status in ("acked", "handed", "failed", "other"):
            yield _outcome(status, seqs, "refused")
        yield _dropped(seqs)
        if all(b - a < 20 for a, b in seqs):
            yield _batch(seqs)
    for us in (0, -5, 1004, 1005, 1009, 1010, 10**18 - 1, 10**18, 1 - 10**18):
        yield _batch([[1, 2]], us, 0) + _batch([[3, 3]], us, 0)
        yield _batch([[1, 4]], us)
        yield _dropped([[1, 2]], us) + _dropped([[3, 3]], us)
    for reason in ("", "full", "refused", "refused twice", "else", 'a "word"'):
        yield _outcome("failed", [[1, 2]], reason) + _outcome("failed", [[3, 3]], reason)
    for n in (1, 2, 7, 8, 9, 23, 24, 25, 31, 48, 49, 96, 150):
        yield _batch([[1, n]])
        yield _batch([[1, n]], n=n + 1)
    deltas = struct.pack("<4i", -(2**31), 2**31 - 1, 0, -1)
    yield _batch([[1, 4]], created=_base64(deltas)) + _batch([[1, 4]], created="A" * 24, hashes="/" * 44)
    yield from (b"\n", b"{}\n", b'{"t":"stopped","reason":"full"}\n', b'{"t":"batch","seqs":[[1,1]],"n":1')
    yield _outcome("acked", [[1, 1], [3, 3]]).replace(b"],[", b"][")
    yield _batch([[1, 1]]).replace(b",", b", ")


def seeds() -> Iterator[bytes]:
    """Yield each line alone and in files, with each option, little room, and failing allocations."""
    lines = list(_lines())
    for line in lines:
        yield bytes([0, 0, 200, 0]) + line
        yield bytes([SINCE | UNTIL | OWN_ROWS, 0, 200, 0]) + line + lines[0]
    for options in range(8):
        for low in range(0, len(lines), 9):
            some = lines[low : low + 9]
            yield bytes([options, 0, 20, low % 5]) + b"".join(some)
            yield bytes([options, 0, 200, 0]) + CUT.join([*some, b"".join(some)])
    for n in (1, 2, 8, 24, 30):
        for room in (n - 1, n, n + 1):
            yield bytes([0, 0, room, 0]) + _batch([[1, n]])
    for failing in range(1, 16):
        yield bytes([SINCE | OWN_ROWS, failing, 200, 0]) + b"".join(lines[:24])


def run(data: memoryview) -> None:
    if len(data) < 4:
        return
    options, failing, room, unread = data[:4]
    times = SINCE_US if options & SINCE else None, UNTIL_US if options & UNTIL else None
    ours, theirs = ledger.LineReader(*times), oracle.LineReader(*times)
    hashes, created = array("Q", [0]) * room, array("q", [0]) * room
    for reader in (ours, theirs):
        for reason, number in REASONS.items():
            reader.know(reason, number)
    memory.fail_at(failing)
    try:
        for index, text in enumerate(bytes(data[4:]).split(CUT)):
            _read(ours, theirs, index, text, len(text) - unread, hashes, created, bool(options & OWN_ROWS))
            _compare(ours, theirs)
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        for name, columns in TABLES.items():
            _rows(ours, name, columns)
    finally:
        memory.fail_at(0)


def _read(
    ours: Any,
    theirs: oracle.LineReader,
    index: int,
    text: bytes,
    stop: int,
    hashes: array[int],
    created: array[int],
    own_rows: bool,
) -> None:
    """Read one file with both, as logclient/verify/ledger_lines.py does."""
    for reader in (ours, theirs):
        reader.begin_file(index)
    view, start = exact(text), 0
    while start < stop:
        end = ours.read(view, start, stop, hashes, created)
        check(end == theirs.read(text, start, stop, len(hashes)), "another line", text[start:], end)
        check(ours.lines == theirs.lines, "lines", ours.lines, theirs.lines)
        check(hashes[: ours.events].tolist() == theirs.hashes, "hashes", text[start:])
        check(created[: ours.events].tolist() == theirs.created, "times", text[start:])
        start = text.find(b"\n", end) + 1 or stop
        if own_rows:
            _add_rows(ours, theirs, index, theirs.last + 1)


def _add_rows(ours: Any, theirs: oracle.LineReader, index: int, seq: int) -> None:
    """Add one event to each table, whose range may continue the last one."""
    rows = {"spans": [theirs.position], "outcomes": [2, 3], "drops": [], "when": [0]}
    for name, tags in (("spans", 0), ("outcomes", 2), ("when", 1)):
        getattr(ours, name).append(index, seq, seq, *rows[name])
        oracle.join(getattr(theirs, name), [index, seq, seq, *rows[name]], tags)
    ours.drops.append(index, 1007, 1)
    theirs.drops.append([index, 1007, 1])


def _rows(reader: Any, name: str, columns: int) -> list[list[int]]:
    table = getattr(reader, name)
    values = array("q", table.rows()).tolist()
    check(len(values) == columns * len(table), "the length of a table", name)
    return [values[i : i + columns] for i in range(0, len(values), columns)]


def _compare(ours: Any, theirs: oracle.LineReader) -> None:
    for name, columns in TABLES.items():
        rows, expected = _rows(ours, name, columns), getattr(theirs, name)
        check(rows == expected, name, rows, expected)
    check(ours.index == theirs.index and ours.last == theirs.last, "last", ours.last, theirs.last)
    check(ours.position == theirs.position, "position", ours.position, theirs.position)
    if theirs.times:
        check(ours.begin_us == min(theirs.times), "begin", ours.begin_us)
    if theirs.selected:
        span = min(theirs.selected), max(theirs.selected)
        check((ours.first_us, ours.last_us) == span, "selected", ours.first_us, ours.last_us, span)
    else:
        check(ours.first_us > ours.last_us, "selected", ours.first_us, ours.last_us)
