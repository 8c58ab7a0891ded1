"""Ledger files: what is needed before a comparison (`survey`), and later the events (`events`).

A `LineReader` reads nearly all lines, because logclient writes one form. The others are read here, as JSON.
See ``docs/formats.md`` for the format and ``docs/verify-rules.md`` for damaged, stopped and unclosed ledgers.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from logclient._ext.ledger import LineReader, Table
from logclient.evidence import storage
from logclient.evidence.arrays import I64, U64, expand, starts_of, subtract, union
from logclient.evidence.decode import protocol_of
from logclient.evidence.ledger_files import Part
from logclient.evidence.segments import YEAR_2255
from logclient.evidence.selection import EVERYTHING, MAX_TIME_US, Selection
from logclient.verify.ledger_facts import ACKED, AFTER_END, DROPPED, FAILED, HANDED, LAST_SEQUENCE
from logclient.verify.worker import without_collection

VERSION = 1  # of the format
READ_BYTES = 1 << 20  # of a ledger at a time
AHEAD = 16  # files that are opened before they are read
STEP = 1 << 15  # events, at least, between two lines from which on a file can be read again
_OUTCOME_CODES = {"failed": FAILED, "handed": HANDED, "acked": ACKED}
MAX_LINE = 256 << 20  # a longer line is damage
_MAX_PROBLEMS = 20  # the most problems of one file that are named
MAX_REASONS = 256  # the most different reasons of all files together
_REASON_CHARS = 200
_PLAIN = re.compile(r"[ !#-\[\]-~]{,200}")  # texts that stand in JSON as they are
OTHER_REASONS = "other reasons"

# Tables of a survey, and their columns.
WIDTHS = {"spans": 4, "outcomes": 5, "deferred": 3, "expects_id": 3, "has_id": 3, "drops": 3, "when": 4}
_SHOWN = ("host", "service", "service_version")  # texts of the ``open`` line that are only for display
_TEXTS = ("protocol", "url", "identity", "mode", "stopped", *_SHOWN)
UNSTATED: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, ""),
    **dict.fromkeys(("pid", "started_us", "holes", "last"), 0),
    "last_line_us": 0,  # the time of the last line that has one; 0: none has
    "waiting": None,  # events without an outcome, by the last ``alive`` line; None: there is none
    "opened": False,
    "end": "",  # the last line, if it is "continued" (in another part) or "ended" (no process writes another)
    "closed": None,  # the ``close`` line, when it is the last
    "torn": False,
    "problems": [],
}
"""Facts about a file before it is read."""
_WITH_SEQS = {"batch", "outcome", "dropped", "ids", "deferred"}  # kinds of lines


def survey(
    group: Sequence[Part], selection: Selection = EVERYTHING, ends: Mapping[str, int] = {}
) -> dict[str, Any]:
    """Read what some ledger files say, but for hashes and times.

    `ends` has times for some protocols: outcomes that were written then or later are `AFTER_END`.

    The result has tables, whose rows begin with the index of a file in the group, and as ``facts`` all else:
    ``spans``: first, last, position among all events of the group;
    ``outcomes``: first, last, outcome, number of the reason in the group;
    ``deferred``: first, last;
    ``expects_id`` and ``has_id``: first, last of events that an ``ids`` line must name, and that one names;
    ``drops``: time, number of events dropped;
    ``when``: first, last, and -1, 0 or 1 for events before, in and after the selected time;
    ``ids``, which ends with the index: two halves of an id's hash, sequence;
    ``steps``, if the selection has a time: byte of a line, and position of the next event there.
    """
    reader = LedgerReader(selection, ends)
    with without_collection():
        for _ in reader.read(group):
            pass
    lines = reader.lines
    facts: dict[str, Any] = {"files": reader.files, "reasons": list(reader.reasons)}
    if lines.position:
        facts["begin"] = lines.begin_us
        if lines.first_us <= lines.last_us:
            facts["span"] = [lines.first_us, lines.last_us]
    steps = np.array(reader.steps, np.int64).reshape(-1, 3)
    found: dict[str, Any] = {
        name: np.frombuffer(table.rows(), np.int64).reshape(-1, WIDTHS[name])
        for name, table in reader.tables.items()
    }
    has_id = found["has_id"]
    ids = np.empty((sum(map(len, reader.ids)) // 16, 4), np.uint64)
    ids[:, :2] = np.frombuffer(b"".join(reader.ids), "<u8").reshape(-1, 2)
    ids[:, 2] = expand(has_id[:, 1:])
    ids[:, 3] = np.repeat(has_id[:, 0], has_id[:, 2] - has_id[:, 1] + 1)
    return {"facts": facts, "ids": ids, "steps": steps, **found}


def events(group: Sequence[Part], least: int, begin: int = 0) -> Iterator[tuple[U64, I64]]:
    """Yield hashes and times of all events of ledger files in order, at least so many at a time.

    In the first file a line begins at byte `begin`, and those before it are not read.
    """
    reader = LedgerReader()
    pieces: list[tuple[U64, I64]] = []
    reader.events = pieces
    done = 0
    for _ in reader.read(group, begin):
        if reader.lines.position - done >= least:
            yield _joined(pieces)
            done = reader.lines.position
            pieces.clear()
    if pieces:
        yield _joined(pieces)


def _joined(pieces: list[tuple[U64, I64]]) -> tuple[U64, I64]:
    hashes, created = zip(*pieces, strict=True)
    return np.concatenate(hashes), np.concatenate(created)


def _opened(group: Sequence[Part]) -> Iterator[tuple[Part, io.RawIOBase]]:
    """Open each file some time before its turn, so that the disk has several to read at a time."""
    ahead: deque[tuple[Part, io.RawIOBase]] = deque()
    try:
        for part in group:
            try:
                file = storage.open_file(part.path, "ledger")
            except OSError as error:
                raise storage.failure(error, part.path, "ledger") from error
            ahead.append((part, file))
            if isinstance(file, io.FileIO) and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, READ_BYTES, os.POSIX_FADV_WILLNEED)  # it does not wait
            if len(ahead) > AHEAD:
                yield ahead[0]
                ahead.popleft()[1].close()
        while ahead:
            yield ahead[0]
            ahead.popleft()[1].close()
    finally:
        for _, file in ahead:
            file.close()


class LedgerReader:
    """A reader of ledger files into the tables that `survey` describes."""

    def __init__(self, selection: Selection = EVERYTHING, ends: Mapping[str, int] = {}) -> None:
        self.selection = selection
        self.ends = ends
        self.lines = LineReader(selection.since_us, selection.until_us)
        self.lines.know(b"", 0)
        self.reasons = {"": 0}
        own = {name: Table(WIDTHS[name]) for name in ("deferred", "expects_id", "has_id")}
        read = {name: getattr(self.lines, name) for name in ("spans", "outcomes", "drops", "when")}
        self.tables: dict[str, Table] = {**own, **read}
        self.ids: list[bytes] = []
        self.files: list[dict[str, Any]] = []
        self.events: list[tuple[U64, I64]] | None = None  # hashes and times, if they are wanted
        self.steps: list[tuple[int, int, int]] = []  # see `survey`
        # An event takes 16 characters of a line.
        self._buffer = bytearray(min(READ_BYTES, MAX_LINE))
        self._hashes = np.empty(READ_BYTES // 16, np.uint64)
        self._created = np.empty(READ_BYTES // 16, np.int64)

    def read(self, group: Sequence[Part], begin: int = 0) -> Iterator[None]:
        """Read files, some lines at a time, each up to the size at which it was found; it may still grow.

        The first file is read from byte `begin`.
        """
        for index, (part, file) in enumerate(_opened(group)):
            self.part, self.index = part, index
            self.facts: dict[str, Any] = dict(UNSTATED, problems=[], producer=part.producer, part=part.number)
            self.facts.update(path=part.path, size=part.size)
            self.files.append(self.facts)
            self.lines.begin_file(index)
            if begin:
                file.seek(begin)
                self.facts["opened"] = True
            yield from self._read_lines(_Lines(file, part.size, self._buffer, begin))
            begin = 0
            self.facts.update(last=self.lines.last, last_line_us=self.lines.last_line_us)

    def _add_hole(self, line: int, why: str) -> None:
        self.facts["holes"] += 1
        if len(self.facts["problems"]) < _MAX_PROBLEMS:
            self.facts["problems"].append(f"{storage.base_name(self.part.path)} line {line}: {why}")

    def _read_lines(self, lines: _Lines) -> Iterator[None]:
        facts, reader = self.facts, self.lines
        number = 0
        due = reader.position
        while lines.find():
            yield
            if self.selection != EVERYTHING and reader.position >= due:
                self.steps.append((self.index, lines.at, reader.position))
                due = reader.position + STEP
            if facts["opened"]:
                # Read lines up to the first one without the usual form.
                lines.low = reader.read(lines.data, lines.low, lines.high, self._hashes, self._created)
                n = reader.events
                if n and self.events is not None:
                    self.events.append((self._hashes[:n].copy(), self._created[:n].copy()))
                if reader.lines:
                    number += reader.lines
                    facts.update(closed=None, end="")
                    continue
            number += 1
            begin = lines.at
            line = lines.take()
            if line == b"\n":
                continue
            facts.update(closed=None, end="")
            try:
                if not line:
                    raise ValueError(f"longer than {MAX_LINE} bytes")
                fields = json.loads(line.decode())
                if not facts["opened"]:
                    self._open(fields)
                elif _kind(fields) == "open":
                    self._add_hole(number, f"another open line ({_ledger_of(fields)}): the rest is not read")
                    return
                else:
                    self._line(fields, begin)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                why = str(error).split("\n")[0][:200]
                if not facts["opened"]:
                    self._add_hole(number, f"it does not begin with its open line and is not read: {why}")
                    return
                self._add_hole(number, why)
        facts["torn"] = lines.at < self.part.size

    def _open(self, fields: Any) -> None:
        """Read the first line, which must agree with the name of the file."""
        if _kind(fields) != "open":
            raise ValueError(f"the first line is {_kind(fields)[:40]!r}")
        if type(fields["version"]) is not int or fields["version"] != VERSION:
            raise ValueError(f"version {str(fields['version'])[:20]}: only {VERSION} is known")
        producer, part = _read_text(fields["producer"], "producer"), fields["part"]
        if producer != self.part.producer or type(part) is not int or part != self.part.number:
            raise ValueError(_ledger_of(fields))
        if fields["identity"] not in ("id", "none"):
            raise ValueError("identity must be id or none")
        for name in ("protocol", "url", "identity"):
            self.facts[name] = _read_text(fields[name], name)
        self.lines.end_us = self.ends.get(protocol_of(fields["protocol"]), (1 << 63) - 1)
        self.facts["mode"] = str(fields.get("mode", ""))
        # These are only for display.
        for name in _SHOWN:
            text = fields.get(name)
            self.facts[name] = text[:_REASON_CHARS] if isinstance(text, str) else ""
        pid = fields.get("pid")
        self.facts["pid"] = pid if type(pid) is int and 0 < pid < 1 << 63 else 0
        self.facts["started_us"] = _read_time(fields) or 0
        self._note_time(fields)
        self.facts["opened"] = True

    def _line(self, fields: dict[str, Any], begin: int) -> None:
        """Read another line, which begins at byte `begin` of the file."""
        kind = _kind(fields)
        seqs = _read_ranges(fields["seqs"]) if kind in _WITH_SEQS else []
        if kind == "batch":
            self._batch(fields, seqs)
        elif kind in ("outcome", "dropped"):
            code = DROPPED if kind == "dropped" else _OUTCOME_CODES[_read_text(fields["status"], "status")]
            reason = self._reason(fields.get("reason"))
            at_us, end_us = _read_time(fields), self.lines.end_us
            if kind == "outcome" and end_us < MAX_TIME_US and (at_us is None or at_us >= end_us):
                code += AFTER_END
            for first, last in seqs:
                self.lines.outcomes.append(self.index, first, last, code, reason)
            if kind == "dropped" and at_us is not None and self.selection.place(np.int64(at_us)) == 0:
                self.lines.drops.append(self.index, at_us, _size(seqs))
        elif kind == "ids":
            ids = _read_base64(fields["ids"], 16 * _read_count(seqs, fields), "ids")
            if "beside" in fields:
                beside = _read_some(fields, "beside", seqs)
                ids += _read_base64(fields["second"], 16 * _size(beside), "second")
                seqs = seqs + beside
            self.ids.append(ids)
            self._add("has_id", seqs)
        elif kind == "deferred":
            self._add("deferred", seqs)
        elif kind == "stopped":
            self.facts["stopped"] = _read_text(fields["reason"], "reason") or "?"
        elif kind == "close":
            most = (1 << 63) - 1
            close: dict[str, Any] = {"before": begin, "bytes": None, "at_us": _read_time(fields)}
            close["last"] = _read_integer(fields["last"], "last", 0, LAST_SEQUENCE)
            for name in ("acked", "handed", *(["bytes"] if "bytes" in fields else [])):
                close[name] = _read_integer(fields[name], name, 0, most)
            for name in ("failed", "dropped"):
                close[name] = sum(_read_integer(n, name, 0, most) for n in fields[name].values())
            self.facts["closed"] = close
        elif kind == "alive":
            self.facts["waiting"] = _read_integer(fields["waiting"], "waiting", 0, LAST_SEQUENCE)
        elif kind in ("continued", "ended"):
            self.facts["end"] = kind
        # Ignore other kinds, which a later version may add.
        self._note_time(fields)
        if kind in ("batch", "outcome", "dropped", "close"):
            last = fields["last"] if kind == "close" else seqs[-1][1]
            self.lines.last = max(self.lines.last, last)

    def _note_time(self, fields: dict[str, Any]) -> None:
        at = _read_time(fields) or 0
        if 0 < at < YEAR_2255:
            self.lines.last_line_us = at

    def _add(self, table: str, seqs: list[tuple[int, int]]) -> None:
        for first, last in seqs:
            self.tables[table].append(self.index, first, last)

    def _reason(self, given: Any) -> int:
        """Return the number of the reason in a line."""
        reason = given[:_REASON_CHARS] if isinstance(given, str) else ""
        new = reason not in self.reasons
        number = number_reason(self.reasons, reason)
        if new and _PLAIN.fullmatch(given):
            self.lines.know(given.encode(), number)
        return number

    def _batch(self, fields: dict[str, Any], seqs: list[tuple[int, int]]) -> None:
        n = _read_count(seqs, fields)
        base = _read_integer(fields["base"], "base", 1 - MAX_TIME_US, MAX_TIME_US - 1)
        hashes = _read_base64(fields["hashes"], 8 * n, "hashes")
        deltas = np.frombuffer(_read_base64(fields["created"], 4 * n, "created"), "<i4")
        if "own" in fields:
            self._add("expects_id", _read_some(fields, "own", seqs))
        created = deltas.astype("<i8") + base
        if self.events is not None:
            self.events.append((np.frombuffer(hashes, np.uint64), created))
        lines = self.lines
        for first, last in seqs:
            lines.spans.append(self.index, first, last, lines.position)
            lines.position += last - first + 1
        lines.begin_us = min(lines.begin_us, int(created.min()))
        if self.selection != EVERYTHING:
            when = self.selection.place(created)
            rows = [(first, last, int(when[0])) for first, last in seqs]
            if (when != when[0]).any():
                sequences = expand(np.array(seqs, np.int64))
                starts = starts_of(sequences - np.arange(n), when)
                ends = np.append(starts[1:], n) - 1
                rows = np.column_stack((sequences[starts], sequences[ends], when[starts])).tolist()
            for row in rows:
                lines.when.append(self.index, *row)
            created = created[when == 0]
        if len(created):
            lines.first_us = min(lines.first_us, int(created.min()))
            lines.last_us = max(lines.last_us, int(created.max()))


class _Lines:
    """The lines of an unbuffered file from byte `begin` to byte `size`.

    They stand in the buffer `data` from `low` to `high`. A larger one replaces it if there is a longer line.
    """

    def __init__(self, file: io.RawIOBase, size: int, data: bytearray, begin: int) -> None:
        self.file = file
        self.data = data
        self.low = self.high = 0
        self._begin = begin  # of the buffer, in the file
        self._left = size - begin  # bytes of the file that are not in the buffer yet

    @property
    def at(self) -> int:
        """Where the next line begins in the file."""
        return self._begin + self.low

    def find(self) -> bool:
        """Read on until the buffer has a whole line, or the beginning of one that is too long.

        False: there is none, and the rest of the file is a torn line.
        """
        searched = self.low
        while self.data.find(b"\n", searched, self.high) < 0:
            size = self.high - self.low
            if size >= MAX_LINE:
                break
            if not self._fill():
                return False
            searched = self.low + size
        return True

    def take(self) -> bytes:
        """Return the line that was found, with its newline; empty: it is longer than `MAX_LINE`."""
        end = self.data.find(b"\n", self.low, self.high) + 1
        line = bytes(self.data[self.low : end])
        while not end:
            self.low = self.high
            if not self._fill():
                return b""
            end = self.data.find(b"\n", self.low, self.high) + 1
        self.low = end
        return line

    def _fill(self) -> bool:
        """Read more of the file, and return whether there was more."""
        if not self._left:
            return False
        size = self.high - self.low
        if self.low:
            self.data[:size] = self.data[self.low : self.high]
            self._begin += self.low
            self.low, self.high = 0, size
        elif size == len(self.data):
            self.data = self.data + bytes(min(size, MAX_LINE - size))
        with memoryview(self.data) as view:
            n = self.file.readinto(view[size : size + self._left]) or 0
        self.high += n
        self._left -= n
        return n > 0


def number_reason(reasons: dict[str, int], reason: str) -> int:
    """Return the number of a reason in a table, to which it is added; if that is full, that of all others."""
    if reason not in reasons and len(reasons) >= MAX_REASONS:
        reason = OTHER_REASONS
    return reasons.setdefault(reason, len(reasons))


def _read_ranges(value: Any) -> list[tuple[int, int]]:
    """Check and return `seqs`: ascending inclusive ranges of sequences."""
    before = 0
    out = []
    for first, last in value:
        if not (type(first) is int and type(last) is int and before < first <= last <= LAST_SEQUENCE):
            raise ValueError("seqs do not rise")
        out.append((first, last))
        before = last
    if not out:
        raise ValueError("seqs are empty")
    return out


def _read_integer(value: Any, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is not a whole number from {low} to {high}")
    return value


def _read_time(fields: dict[str, Any]) -> int | None:
    """Return when a line was written; None: it does not say that, or what makes no sense."""
    at = fields.get("at_us")
    return at if type(at) is int and abs(at) < MAX_TIME_US else None


def _read_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _read_some(fields: dict[str, Any], name: str, seqs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of a field, which must be in `seqs`."""
    some = _read_ranges(fields[name])
    if len(subtract(*(union(np.array(ranges, np.int64)) for ranges in (some, seqs)))):
        raise ValueError(f"{name} has sequences that are not in seqs")
    return some


def _read_base64(value: str, size: int, what: str) -> bytes:
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError:
        data = b""
    if len(data) != size:
        raise ValueError(f"{what}: not the base64 of {size} bytes")
    return data


def _kind(fields: Any) -> str:
    if not isinstance(fields, dict):
        raise ValueError("it is no object")
    return _read_text(fields["t"], "t")


def _ledger_of(fields: dict[str, Any]) -> str:
    """Return a phrase that names the ledger file an ``open`` line belongs to."""
    return f"it speaks of producer {str(fields.get('producer'))[:40]}, part {str(fields.get('part'))[:40]}"


def _size(seqs: list[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in seqs)


def _read_count(seqs: list[tuple[int, int]], fields: dict[str, Any]) -> int:
    n = _size(seqs)
    if type(fields["n"]) is not int or n != fields["n"]:
        raise ValueError(f"n is {str(fields['n'])[:40]}, its seqs are {n}")
    return n
