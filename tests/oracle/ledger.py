"""The reference of ``logclient._ext.ledger.LineReader``: regular expressions, json, base64 and lists."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct

CODES = {b"acked": 4, b"handed": 3, b"failed": 2, b"dropped": 1}
LAST_SEQUENCE = (1 << 48) - 1

_INTEGER = rb"(0|-?[1-9][0-9]{0,17})"
_RANGES = rb"(\[\[[0-9,\[\]]*\]\])"
_BATCH = re.compile(
    rb'\{"t":"batch","seqs":%b,"n":%b,"base":%b,"created":"([^"\n]*)","hashes":"([^"\n]*)"\}\n'
    % (_RANGES, _INTEGER, _INTEGER)
)
_OUTCOME = re.compile(
    rb'\{"t":"outcome","at_us":%b,"status":"(acked|handed|failed)","reason":"([^"\n]*)","seqs":%b\}\n'
    % (_INTEGER, _RANGES)
)
_DROPPED = re.compile(rb'\{"t":"dropped","at_us":%b,"reason":"([^"\n]*)","seqs":%b\}\n' % (_INTEGER, _RANGES))


def unbase64(text: bytes, size: int) -> bytes | None:
    """Decode padded base64 of exactly `size` bytes; None: it is anything else."""
    if len(text) != (size + 2) // 3 * 4:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return data if len(data) == size else None


def read_ranges(text: bytes) -> list[tuple[int, int]] | None:
    """Read ``[[first,last],...]``; None: these are not rising ranges of sequences."""
    one = rb"\[%b,%b\]" % (_INTEGER, _INTEGER)
    if not re.fullmatch(rb"\[%b(,%b)*\]" % (one, one), text):
        return None
    before = 0
    ranges = []
    for first, last in json.loads(text):
        if not before < first <= last <= LAST_SEQUENCE:
            return None
        ranges.append((first, last))
        before = last
    return ranges or None


def join(rows: list[list[int]], row: list[int], tags: int) -> None:
    """Add a range to a table, or join it to the last row."""
    if rows:
        last = rows[-1]
        same = last[0] == row[0] and last[len(last) - tags :] == row[len(row) - tags :]
        if same and last[2] + 1 == row[1]:
            last[2] = row[2]
            return
    rows.append(row)


class LineReader:
    """Reads lines as the compiled class does."""

    def __init__(self, since_us: int | None = None, until_us: int | None = None) -> None:
        self.since_us = since_us
        self.until_us = until_us
        self.spans: list[list[int]] = []
        self.outcomes: list[list[int]] = []
        self.drops: list[list[int]] = []
        self.when: list[list[int]] = []
        self.times: list[int] = []
        self.selected: list[int] = []
        self.position = 0
        self.end_us: int | None = None
        self.last_line_us = 0
        self.reasons: dict[bytes, int] = {}

    def begin_file(self, index: int) -> None:
        self.index = index
        self.last = 0
        self.end_us = None
        self.last_line_us = 0

    def know(self, reason: bytes, number: int) -> None:
        self.reasons[reason] = number

    def read(self, data: bytes, start: int, stop: int, room: int) -> int:
        self.lines = 0
        self.hashes: list[int] = []
        self.created: list[int] = []
        while start < stop:
            end = data.find(b"\n", start, stop) + 1
            if not end or not self._line(data[start:end], room):
                break
            self.lines += 1
            start = end
        return start

    def _when(self, time_us: int) -> int:
        if self.since_us is not None and time_us < self.since_us:
            return -1
        return 1 if self.until_us is not None and time_us >= self.until_us else 0

    def _note_time(self, time_us: int) -> None:
        if 0 < time_us < 9_000_000_000_000_000:
            self.last_line_us = time_us

    def _line(self, line: bytes, room: int) -> bool:
        if found := _BATCH.fullmatch(line):
            return self._batch(room, *found.groups())
        if found := _OUTCOME.fullmatch(line):
            at, status, reason, seqs = found.groups()
            late = self.end_us is not None and int(at) >= self.end_us
            if self._outcome(CODES[status] + 8 * late, reason, seqs) is None:
                return False
            self._note_time(int(at))
            return True
        if found := _DROPPED.fullmatch(line):
            at, reason, seqs = found.groups()
            ranges = self._outcome(CODES[b"dropped"], reason, seqs)
            if ranges is None:
                return False
            self._note_time(int(at))
            if self._when(int(at)) == 0:
                self.drops.append([self.index, int(at), sum(last - first + 1 for first, last in ranges)])
            return True
        return False

    def _batch(self, room: int, seqs: bytes, count: bytes, base: bytes, times: bytes, texts: bytes) -> bool:
        ranges = read_ranges(seqs)
        n = int(count)
        if ranges is None or n != sum(last - first + 1 for first, last in ranges):
            return False
        if n > room - len(self.hashes):
            return False
        deltas, hashes = unbase64(times, 4 * n), unbase64(texts, 8 * n)
        if deltas is None or hashes is None:
            return False
        created = [int(base) + delta for delta in struct.unpack(f"<{n}i", deltas)]
        places = {self._when(time_us) for time_us in created}
        if len(places) > 1:
            return False
        [when] = places
        for first, last in ranges:
            join(self.spans, [self.index, first, last, self.position], 0)
            self.position += last - first + 1
            if self.since_us is not None or self.until_us is not None:
                join(self.when, [self.index, first, last, when], 1)
        self.last = max(self.last, ranges[-1][1])
        self.times += created
        if when == 0:
            self.selected += created
        self.hashes += struct.unpack(f"<{n}Q", hashes)
        self.created += created
        return True

    def _outcome(self, code: int, reason: bytes, seqs: bytes) -> list[tuple[int, int]] | None:
        ranges = read_ranges(seqs)
        if ranges is None or reason not in self.reasons:
            return None
        for first, last in ranges:
            join(self.outcomes, [self.index, first, last, code, self.reasons[reason]], 2)
        self.last = max(self.last, ranges[-1][1])
        return ranges
