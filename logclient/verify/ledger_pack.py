"""Packing: ledger files are read once, and written to the work folder as flat arrays.

The format of a ledger is in ``docs/formats.md``; the rules for damaged, stopped and unclosed ledgers are in
``docs/verify.md``. One task reads a file. Checks that need all parts of a producer are in
``ledger_merge.py``.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import uuid
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from logclient._ext.capture import unbase64
from logclient.verify import storage
from logclient.verify.arrays import expand, subtract, union
from logclient.verify.ledger_files import Part
from logclient.verify.packed_ledger import ACKED, DROPPED, FAILED, HANDED, LAST_SEQUENCE
from logclient.verify.selection import EVERYTHING, Selection

__all__ = ["MAX_REASONS", "OTHER_REASONS", "WIDTHS", "LedgerPacker", "pack"]

VERSION = 1  # of the format
READ_BYTES = 1 << 20  # of a ledger at a time
_OUTCOME_CODES = {"failed": FAILED, "handed": HANDED, "acked": ACKED}
_MAX_TIME_US = 1 << 60  # a later time is damage
_MAX_LINE = 256 << 20  # a longer line is damage
_MAX_PROBLEMS = 20  # the most problems of one file that are named
MAX_REASONS = 64  # the most different reasons of one file; four times as many in all files together
_REASON_CHARS = 200
OTHER_REASONS = "other reasons"

# Tables of a packed file, and their columns.
WIDTHS = {"spans": 4, "outcomes": 5, "deferred": 3, "expects_id": 3, "has_id": 3, "drops": 3, "when": 4}
_CREATED, _HASHES, _END = b',"created":"', b'","hashes":"', b'"}\n'


def pack(group: Sequence[Part], index: int, work: str, selection: Selection = EVERYTHING) -> str:
    """Pack some ledger files.

    The files in the work folder have names that begin with the stem:

    - ``.hashes`` and ``.created``: int64 for each event, in the order of the lines.
    - ``.npz``: tables, and as ``facts`` the JSON with everything else about each file:
      ``spans``: index in the group, first, last, position in the two files above;
      ``outcomes``: index, first, last, outcome, reason;
      ``deferred``: index, first, last;
      ``expects_id``: index, first, last of events that an ``ids`` line must name;
      ``has_id``: index, first, last of events that an ``ids`` line names;
      ``drops``: index, time, number of events dropped;
      ``when``: index, first, last, and -1, 0 or 1 for events before, in and after the selected time;
      ``ids``: two halves of an id's hash, sequence, index.

    Args:
        group: the files.
        index: number of the task.
        work: the work folder.
        selection: the events to judge.

    Returns:
        The stem. It is new for each attempt of the task, so that attempts never write to the same file.
    """
    stem = f"{index}-{uuid.uuid4().hex}"
    with storage.staging(work, "work") as folder:
        _pack(group, os.path.join(folder, stem), selection)
    return stem


def _pack(group: Sequence[Part], path: str, selection: Selection) -> None:
    facts: list[dict[str, Any]] = []
    tables: dict[str, list[list[int]]] = {name: [] for name in WIDTHS}
    ids = [np.empty((0, 4), np.uint64)]
    start = 0
    with open(path + ".hashes", "xb") as hashes, open(path + ".created", "xb") as created:
        for place, part in enumerate(group):
            packer = LedgerPacker(part, hashes, created, start, selection)
            # A large buffer costs more than it saves when the file is small.
            room = min(max(part.size, 1 << 12), READ_BYTES)
            with io.BufferedReader(storage.open_file(part.path, "ledger"), room) as file:
                packer.read(file)
            start += packer.events
            for name, rows in (
                ("spans", packer.spans),
                ("outcomes", packer.outcomes.rows),
                ("deferred", packer.deferred),
                ("expects_id", packer.expects_id),
                ("has_id", packer.id_seqs),
                ("drops", packer.drops),
                ("when", packer.when.rows),
            ):
                tables[name] += [[place, *row] for row in rows]
            if packer.ids:
                table = np.empty((sum(len(i) for i in packer.ids) // 16, 4), np.uint64)
                table[:, :2] = np.frombuffer(b"".join(packer.ids), "<u8").reshape(-1, 2)
                table[:, 2] = expand(np.array(packer.id_seqs, np.int64)).astype(np.uint64)
                table[:, 3] = place
                ids.append(table)
            facts.append({**packer.facts, "last": packer.last, "size": part.size})
    if start:
        # Once for all events: batches may have only a few.
        created_us = np.fromfile(path + ".created", "<i8")
        facts[0]["begin"] = int(created_us.min())
        if selection.timed:
            created_us = created_us[selection.place(created_us) == 0]
        if len(created_us):
            facts[0]["span"] = [int(created_us.min()), int(created_us.max())]
    arrays: dict[str, Any] = {
        name: np.array(rows, np.int64).reshape(-1, WIDTHS[name]) for name, rows in tables.items()
    }
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with open(path + ".npz", "xb") as file:
        np.savez(file, facts=text, ids=np.concatenate(ids), **arrays)


class LedgerPacker:
    """A reader of one ledger file that appends hashes and creation times to two flat files.

    Args:
        part: the ledger file.
        hashes: the file for hashes.
        created: the file for creation times.
        start: the number of events in these two files.
        selection: the events to judge.
    """

    def __init__(
        self,
        part: Part,
        hashes: IO[bytes],
        created: IO[bytes],
        start: int,
        selection: Selection = EVERYTHING,
    ) -> None:
        self.part = part
        self.hashes = hashes
        self.created = created
        self.start = start
        self.selection = selection
        self.events = 0
        self.spans: list[list[int]] = []  # first, last, position in the files
        self.outcomes = _Ranges()
        self.drops: list[tuple[int, int]] = []  # time, and how many were dropped
        self.ids: list[bytes] = []
        self.id_seqs: list[tuple[int, int]] = []
        self.expects_id: list[tuple[int, int]] = []  # sequences that must be in `id_seqs`
        self.deferred: list[tuple[int, int]] = []
        self.when = _Ranges()  # whether events are before, in or after the selected time
        self.last = 0
        self.facts: dict[str, Any] = {
            "producer": part.producer,
            "part": part.number,
            "path": part.path,
            "protocol": "",
            "url": "",
            "identity": "",
            "mode": "",
            "host": "",
            "pid": 0,
            "started_us": 0,
            "reasons": [""],
            "opened": False,
            "empty": True,  # no complete line
            "closed": None,  # the ``close`` line, when it is the last
            "stopped": "",
            "torn": False,
            "holes": 0,
            "problems": [],
        }

    def _add_hole(self, line: int, why: str) -> None:
        self.facts["holes"] += 1
        if len(self.facts["problems"]) < _MAX_PROBLEMS:
            self.facts["problems"].append(f"{storage.base_name(self.part.path)} line {line}: {why}")

    def read(self, file: IO[bytes]) -> None:
        """Read the file up to the size at which it was found. Its producer may still append to it."""
        facts = self.facts
        number = 0
        at = 0
        while at < self.part.size:
            line = file.readline(min(_MAX_LINE, self.part.size - at))
            begin = at
            at += len(line)
            number += 1
            if not line.endswith(b"\n"):
                if len(line) < _MAX_LINE:
                    facts["torn"] = True
                    return
                while line and not line.endswith(b"\n"):
                    line = file.readline(min(_MAX_LINE, self.part.size - at))
                    at += len(line)
                line = b""
            elif line == b"\n":
                continue
            facts["empty"] = False
            facts["closed"] = None
            fields: Any = None
            try:
                if not line:
                    raise ValueError(f"longer than {_MAX_LINE} bytes")
                fields = _parse_line(line)
                if facts["opened"] and _kind(fields) == "open":
                    self._add_hole(number, f"another open line ({_ledger_of(fields)}): the rest is not read")
                    return
                if not facts["opened"]:
                    self._open(fields)
                    continue
                self._line(fields, begin)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                why = str(error).split("\n")[0][:200]
                if not facts["opened"]:
                    self._add_hole(number, f"it does not begin with its open line and is not read: {why}")
                    return
                self._add_hole(number, why)

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
        self.facts["mode"] = str(fields.get("mode", ""))
        # These are only for display.
        host, pid, at = (fields.get(name) for name in ("host", "pid", "at_us"))
        self.facts["host"] = host[:_REASON_CHARS] if isinstance(host, str) else ""
        self.facts["pid"] = pid if type(pid) is int and 0 < pid < 1 << 63 else 0
        self.facts["started_us"] = at if type(at) is int and abs(at) < _MAX_TIME_US else 0
        self.facts["opened"] = True

    def _line(self, fields: dict[str, Any], begin: int) -> None:
        """Read another line, which begins at byte `begin` of the file."""
        kind = _kind(fields)
        if kind == "batch":
            self._batch(fields)
        elif kind == "outcome":
            seqs = _read_ranges(fields["seqs"])
            outcome = _OUTCOME_CODES[_read_text(fields["status"], "status")]
            self._add_outcome(fields, seqs, outcome)
            self.last = max(self.last, seqs[-1][1])
        elif kind == "dropped":
            seqs = _read_ranges(fields["seqs"])
            self._add_outcome(fields, seqs, DROPPED)
            self.last = max(self.last, seqs[-1][1])
            at = fields.get("at_us")
            if type(at) is int and abs(at) < _MAX_TIME_US and self.selection.contains(at):
                self.drops.append((at, sum(last - first + 1 for first, last in seqs)))
        elif kind == "ids":
            seqs = _read_ranges(fields["seqs"])
            n = _read_count(seqs, fields)
            ids = _read_base64(fields["ids"], 16 * n, "ids")
            if "beside" in fields:
                beside = _read_ranges(fields["beside"])
                if not _is_subset(beside, seqs):
                    raise ValueError("beside has sequences that are not in seqs")
                ids += _read_base64(fields["second"], 16 * _size(beside), "second")
                seqs = seqs + beside
            self.ids.append(ids)
            self.id_seqs.extend(seqs)
        elif kind == "deferred":
            self.deferred.extend(_read_ranges(fields["seqs"]))
        elif kind == "stopped":
            self.facts["stopped"] = _read_text(fields["reason"], "reason") or "?"
        elif kind == "close":
            last = _read_integer(fields["last"], "last", 0, LAST_SEQUENCE)
            most = (1 << 63) - 1
            close = {
                "last": last,
                "acked": _read_integer(fields["acked"], "acked", 0, most),
                "handed": _read_integer(fields["handed"], "handed", 0, most),
                "before": begin,
                "bytes": _read_integer(fields["bytes"], "bytes", 0, most) if "bytes" in fields else None,
            }
            at = fields.get("at_us")
            close["at_us"] = at if type(at) is int and abs(at) < _MAX_TIME_US else None
            for name in ("failed", "dropped"):
                close[name] = sum(_read_integer(n, name, 0, most) for n in fields[name].values())
            self.facts["closed"] = close
            self.last = max(self.last, last)
        # Ignore other kinds, which a later version may add.

    def _add_outcome(self, fields: dict[str, Any], seqs: list[tuple[int, int]], outcome: int) -> None:
        """Add the outcome of some sequences, with the reason for it."""
        given = fields.get("reason")
        reason = given[:_REASON_CHARS] if isinstance(given, str) else ""
        reasons = self.facts["reasons"]
        if reason not in reasons:
            if len(reasons) >= MAX_REASONS:
                reason = OTHER_REASONS
            if reason not in reasons:
                reasons.append(reason)
        for first, last in seqs:
            self.outcomes.add(first, last, outcome, reasons.index(reason))

    def _batch(self, fields: dict[str, Any]) -> None:
        seqs = _read_ranges(fields["seqs"])
        n = _read_count(seqs, fields)
        base = _read_integer(fields["base"], "base", 1 - _MAX_TIME_US, _MAX_TIME_US - 1)
        hashes = _read_base64(fields["hashes"], 8 * n, "hashes")
        deltas = np.frombuffer(_read_base64(fields["created"], 4 * n, "created"), "<i4")
        if "own" in fields:
            own = _read_ranges(fields["own"])
            if not _is_subset(own, seqs):
                raise ValueError("own has sequences that are not in seqs")
            self.expects_id.extend(own)
        created = deltas.astype("<i8") + base
        if self.selection.timed:
            self._place(seqs, self.selection.place(created))
        self.hashes.write(hashes)
        self.created.write(created.tobytes())
        at = self.start + self.events
        for first, last in seqs:
            span = self.spans[-1] if self.spans else None
            # Positions are always consecutive, so join spans by sequence: a quiet producer writes one line
            # per event.
            if span is not None and span[1] + 1 == first:
                span[1] = last
            else:
                self.spans.append([first, last, at])
            at += last - first + 1
        self.events += n
        self.last = max(self.last, seqs[-1][1])


    def _place(self, seqs: list[tuple[int, int]], when: npt.NDArray[np.int8]) -> None:
        """Note whether the events of a ``batch`` line are before, in or after the selected time."""
        if bool((when == when[0]).all()):
            for first, last in seqs:
                self.when.add(first, last, int(when[0]))
            return
        sequences = expand(np.array(seqs, np.int64))
        cut = np.flatnonzero((np.diff(sequences) > 1) | (when[1:] != when[:-1])) + 1
        edges = [0, *cut.tolist(), len(sequences)]
        for low, high in itertools.pairwise(edges):
            self.when.add(int(sequences[low]), int(sequences[high - 1]), int(when[low]))


class _Ranges:
    """Inclusive ranges in the order of addition, joined where one continues the other."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def add(self, first: int, last: int, *tags: int) -> None:
        if self.rows:
            row = self.rows[-1]
            if row[1] + 1 == first and row[2:] == [*tags]:
                row[1] = last
                return
        self.rows.append([first, last, *tags])


def _parse_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line.

    The two long strings at the end of a ``batch`` line are most of a ledger. They are base64, so when a line
    has the usual form they are cut out as bytes and not decoded as JSON.
    """
    if line.startswith(b'{"t":"batch",') and line.endswith(_END):
        at = line.find(_CREATED)
        created, _, hashes = line[at + len(_CREATED) : -len(_END)].partition(_HASHES)
        if at > 0 and hashes and not any(x in text for x in (b'"', b"\\") for text in (created, hashes)):
            fields: dict[str, Any] = json.loads(line[:at] + b"}")
            return {**fields, "created": created, "hashes": hashes}
    parsed: dict[str, Any] = json.loads(line)
    return parsed


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
    """Check and return an integer."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is not a whole number from {low} to {high}")
    return value


def _read_text(value: Any, name: str) -> str:
    """Check and return a text."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _is_subset(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> bool:
    """Return whether all of `a` is in `b`. Both ascend."""
    return not len(subtract(union(np.array(a, np.int64)), union(np.array(b, np.int64))))


def _read_base64(value: str | bytes, size: int, what: str) -> bytes:
    try:
        return unbase64(value if isinstance(value, bytes) else value.encode(), size)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


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
