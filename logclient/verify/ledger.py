"""Ledgers made addressable: the hash, the birth and the fate of any sequence, without reading JSON again.

The format is in ``docs/formats.md``. `pack` turns some files into flat arrays in a work folder (a task of
the first stage); `merge`, on the driver, puts their tables together; `Ledger` is what the tasks of the
second stage open: small tables in memory, hashes and creation times read by range from where they lie.

A ledger is evidence only as far as it is whole. The rules are in ``docs/verify.md``: what a file must be to
be read, what makes a ledger unclosed, stopped or gives it holes, and what then cannot be told. A file is read
by one task; what only all parts of a producer can tell (`merge`) is told on the driver, for all producers at
once, in ranges.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from logclient._ext.capture import unbase64
from logclient.errors import LedgerError
from logclient.verify.decode import protocol_of

__all__ = [
    "ACKED",
    "DROPPED",
    "FAILED",
    "HANDED",
    "NONE",
    "Ledger",
    "Part",
    "Parts",
    "Producer",
    "merge",
    "pack",
    "parts",
    "unread",
]

# Fates, weakest first: where a ledger names two for one sequence, the stronger one holds.
NONE, DROPPED, FAILED, HANDED, ACKED = range(5)
_FATES = {"failed": FAILED, "handed": HANDED, "acked": ACKED}
FATES = ("undecided", "dropped", "failed", "handed", "acked")  # what they are called

LAST_SEQUENCE = (1 << 48) - 1
_FAR = 1 << 60  # microseconds: no time lies beyond
_LINE = 256 << 20  # a longer line is damage
_OPEN_LINE = 1 << 20  # a longer `open` line is not waited for
_NAME = re.compile(r"([0-9a-f]{20})-(\d{4}|[1-9]\d{4,17})\.ledger", re.ASCII)
_EXAMPLES = 20
_UNREAD = 1000  # files that are named and not read; there may be more of them
_REASONS = 64  # that are told apart, in a file; and four times as many of all files
_REASON = 200  # characters of one
OTHER = "other reasons"

# What a ledger is: the last that holds.
WHOLE, UNCLOSED, STOPPED, HOLES = range(4)
EVIDENCE = ("whole", "unclosed", "stopped", "holes")

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class Part(NamedTuple):
    """One file of a producer's ledger."""

    producer: str  # 20 hex digits
    number: int  # from 1
    path: str
    size: int  # when it was looked for: what was written later is not read


_FILE = np.dtype([("producer", "u1", 10), ("number", "<i8"), ("size", "<i8")])


class Parts(Sequence[Part]):
    """The ledger files of a folder, by producer and part: a few bytes for each, as there may be very many."""

    def __init__(self, directory: str, rows: npt.NDArray[Any]) -> None:
        self.directory = directory
        high, low = _halves(rows["producer"])
        self.rows = rows[np.lexsort((rows["number"], low, high))]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, i: int) -> Part: ...
    @overload
    def __getitem__(self, i: slice) -> list[Part]: ...
    def __getitem__(self, i: int | slice) -> Part | list[Part]:
        if isinstance(i, slice):
            return [self[at] for at in range(*i.indices(len(self)))]
        producer, number, size = self.rows[i]
        name = f"{producer.tobytes().hex()}-{number:04d}.ledger"
        return Part(name[:20], int(number), os.path.join(self.directory, name), int(size))

    @property
    def sizes(self) -> list[int]:
        sizes: list[int] = self.rows["size"].tolist()
        return sizes

    def plus(self, other: Parts) -> Parts:
        """Both of one folder."""
        return Parts(self.directory, np.concatenate((self.rows, other.rows)))

    def save(self, path: str) -> None:
        np.save(path, self.rows)

    @classmethod
    def load(cls, directory: str, path: str, some: slice) -> Parts:
        """Some of those that were saved."""
        return cls(directory, np.array(np.load(path, mmap_mode="r")[some]))


def _halves(prefixes: npt.NDArray[Any]) -> tuple[U64, npt.NDArray[np.uint16]]:
    """Producers, ten bytes each, as two numbers that sort as they do."""
    whole = np.ascontiguousarray(prefixes)
    high = whole[:, :8].copy().view(">u8").reshape(-1).astype(np.uint64)
    return high, whole[:, 8:].copy().view(">u2").reshape(-1).astype(np.uint16)


def parts(directory: str) -> Parts:
    """The ledger files of a folder, by producer and part.

    Raises:
        LedgerError: no such folder, or no ledger in it.
    """
    producers, numbers, sizes = bytearray(), array("q"), array("q")
    try:
        # All names come before the first size: what has a next part is written no more.
        with os.scandir(directory) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    producers += bytes.fromhex(match[1])
                    numbers.append(int(match[2]))
        for i, number in enumerate(numbers):
            name = f"{producers[10 * i : 10 * i + 10].hex()}-{number:04d}.ledger"
            sizes.append(os.stat(os.path.join(directory, name)).st_size)
    except OSError as error:
        raise LedgerError(f"ledger: {directory}: {error.strerror}") from error
    if not numbers:
        others = unread(directory)
        more = f"; {others[0]} is not read" if others else ""
        raise LedgerError(
            f"ledger: {directory} has no ledger: their names are <producer>-<part>.ledger{more}"
        )
    rows = np.zeros(len(numbers), _FILE)
    rows["producer"] = np.frombuffer(producers, np.uint8).reshape(-1, 10)
    rows["number"], rows["size"] = numbers, sizes
    return Parts(os.path.abspath(directory), rows)


def newcomers(directory: str, before: Parts) -> Parts:
    """The ledgers of producers that have none in `before`, and of each only the line that says who it is:
    what it sent since is known to be somebody's, and nothing else is known of it."""
    now = parts(directory)
    rows = np.concatenate((before.rows, now.rows))
    high, low = _halves(rows["producer"])
    order = np.lexsort((low, high))  # stable: what was there before comes first
    first = np.ones(len(rows), bool)
    first[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    fresh = order[first & (order >= len(before))] - len(before)
    found = Parts(now.directory, now.rows[fresh])
    for i, part in enumerate(found):
        with open(part.path, "rb") as file:
            line = file.readline(_OPEN_LINE)
        found.rows["size"][i] = len(line) if line.endswith(b"\n") else 0
    return found


def unread(directory: str) -> list[str]:
    """What is in a folder, or below it, and called a ledger, but is none that `parts` finds."""
    found: list[str] = []
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted([*names, *(x for x in folders if os.path.islink(os.path.join(folder, x)))]):
            if ".ledger" not in name.lower():
                continue
            path = os.path.join(folder, name)
            plain = os.path.isfile(path) and not os.path.islink(path)
            if folder != directory or not plain or not _NAME.fullmatch(name):
                found.append(os.path.relpath(path, directory))
                if len(found) == _UNREAD:
                    return found
    return found


class _Ranges:
    """Inclusive ranges as they come, joined where one continues the other."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def add(self, first: int, last: int, *tags: int) -> None:
        if self.rows:
            row = self.rows[-1]
            if row[1] + 1 == first and row[2:] == [*tags]:
                row[1] = last
                return
        self.rows.append([first, last, *tags])


def _seqs(value: Any) -> list[tuple[int, int]]:
    """Checked `seqs`: rising inclusive ranges of sequences."""
    before = 0
    out = []
    for first, last in value:
        if not (type(first) is int and type(last) is int and before < first <= last <= LAST_SEQUENCE):
            raise ValueError("seqs that do not rise")
        out.append((first, last))
        before = last
    if not out:
        raise ValueError("seqs are empty")
    return out


def _whole(value: Any, name: str, low: int, high: int) -> int:
    """A checked whole number."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is no whole number from {low} to {high}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value


def _inside(some: list[tuple[int, int]], ranges: list[tuple[int, int]]) -> bool:
    """Whether all of `some` is in `ranges`; both rise."""
    whole = union(np.array(ranges, np.int64))
    return not len(subtract(union(np.array(some, np.int64)), whole))


_CREATED, _HASHES, _END = b',"created":"', b'","hashes":"', b'"}\n'


def _fields(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. The two long strings of a `batch` line, which are most of a ledger, are
    taken as the bytes they are when they stand at its end, the way it is written."""
    if line.startswith(b'{"t":"batch",') and line.endswith(_END):
        at = line.find(_CREATED)
        created, _, hashes = line[at + len(_CREATED) : -len(_END)].partition(_HASHES)
        if at > 0 and hashes and not any(x in text for x in (b'"', b"\\") for text in (created, hashes)):
            fields: dict[str, Any] = json.loads(line[:at] + b"}")
            return {**fields, "created": created, "hashes": hashes}
    whole: dict[str, Any] = json.loads(line)
    return whole


def _base64(value: str | bytes, size: int, what: str) -> bytes:
    try:
        return unbase64(value if isinstance(value, bytes) else value.encode(), size)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


class _Packer:
    """Reads the lines of one part; hashes and creation times go to two flat files, from event `start` on.

    Args:
        until_us: events that were made later may be undecided.
    """

    def __init__(
        self, part: Part, hashes: IO[bytes], created: IO[bytes], start: int, until_us: int | None = None
    ) -> None:
        self.part = part
        self.hashes = hashes
        self.created = created
        self.start = start
        self.until_us = until_us
        self.events = 0
        self.spans: list[list[int]] = []  # first, last, position in the files
        self.fates = _Ranges()
        self.noted: list[tuple[int, int]] = []  # when some were dropped, and how many
        self.ids: list[bytes] = []
        self.id_seqs: list[tuple[int, int]] = []
        self.own: list[tuple[int, int]] = []  # that must be in `id_seqs`
        self.deferred: list[tuple[int, int]] = []
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
            "empty": True,  # there is no complete line
            "closed": None,  # the close line, if it is the last
            "stopped": "",
            "torn": False,
            "holes": 0,
            "problems": [],
            # The highest sequence that was made by `until_us`.
            "old": LAST_SEQUENCE if until_us is None else 0,
        }

    def hole(self, line: int, why: str) -> None:
        self.facts["holes"] += 1
        if len(self.facts["problems"]) < _EXAMPLES:
            self.facts["problems"].append(f"{os.path.basename(self.part.path)} line {line}: {why}")

    def read(self, file: IO[bytes]) -> None:
        """Read as much as the file had when it was found: its producer may go on."""
        facts = self.facts
        number = 0
        at = 0
        while at < self.part.size:
            line = file.readline(min(_LINE, self.part.size - at))
            begin = at
            at += len(line)
            number += 1
            if not line.endswith(b"\n"):
                if len(line) < _LINE:
                    facts["torn"] = True
                    return
                while line and not line.endswith(b"\n"):
                    line = file.readline(min(_LINE, self.part.size - at))
                    at += len(line)
                line = b""
            elif line == b"\n":
                continue
            facts["empty"] = False
            facts["closed"] = None
            fields: Any = None
            try:
                if not line:
                    raise ValueError(f"longer than {_LINE} bytes")
                fields = _fields(line)
                if facts["opened"] and _kind(fields) == "open":
                    self.hole(number, f"another open line ({_who(fields)}): it is not read on")
                    return
                if not facts["opened"]:
                    self.open(fields)
                    continue
                self.line(fields, begin)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                why = str(error).split("\n")[0][:200]
                if not facts["opened"]:
                    self.hole(number, f"it does not begin with its open line, and is not read: {why}")
                    return
                self.hole(number, why)

    def open(self, fields: Any) -> None:
        """The first line, which must be what the name of the file says."""
        if _kind(fields) != "open":
            raise ValueError(f"a line {_kind(fields)[:40]!r}")
        _whole(fields["version"], "version", 1, 1)
        producer, part = _text(fields["producer"], "producer"), fields["part"]
        if producer != self.part.producer or type(part) is not int or part != self.part.number:
            raise ValueError(_who(fields))
        if fields["identity"] not in ("id", "none"):
            raise ValueError("identity must be id or none")
        for name in ("protocol", "url", "identity"):
            self.facts[name] = _text(fields[name], name)
        self.facts["mode"] = str(fields.get("mode", ""))
        # Who this is, as far as it says so: nothing depends on it.
        host, pid, at = (fields.get(name) for name in ("host", "pid", "at_us"))
        self.facts["host"] = host[:_REASON] if isinstance(host, str) else ""
        self.facts["pid"] = pid if type(pid) is int and 0 < pid < 1 << 63 else 0
        self.facts["started_us"] = at if type(at) is int and abs(at) < _FAR else 0
        self.facts["opened"] = True

    def line(self, fields: dict[str, Any], begin: int) -> None:
        """A line that begins at byte `begin` of the file."""
        kind = _kind(fields)
        if kind == "batch":
            self.batch(fields)
        elif kind == "outcome":
            seqs = _seqs(fields["seqs"])
            fate = _FATES[_text(fields["status"], "status")]
            self.fated(fields, seqs, fate)
            self.last = max(self.last, seqs[-1][1])
        elif kind == "dropped":
            seqs = _seqs(fields["seqs"])
            self.fated(fields, seqs, DROPPED)
            self.last = max(self.last, seqs[-1][1])
            at = fields.get("at_us")
            if type(at) is int and abs(at) < _FAR:
                self.noted.append((at, sum(last - first + 1 for first, last in seqs)))
        elif kind == "ids":
            seqs = _seqs(fields["seqs"])
            n = _count(seqs, fields)
            ids = _base64(fields["ids"], 16 * n, "ids")
            if "beside" in fields:
                beside = _seqs(fields["beside"])
                if not _inside(beside, seqs):
                    raise ValueError("beside that are not in its seqs")
                ids += _base64(fields["second"], 16 * _many(beside), "second")
                seqs = seqs + beside
            self.ids.append(ids)
            self.id_seqs.extend(seqs)
        elif kind == "deferred":
            self.deferred.extend(_seqs(fields["seqs"]))
        elif kind == "stopped":
            self.facts["stopped"] = _text(fields["reason"], "reason") or "?"
        elif kind == "close":
            last = _whole(fields["last"], "last", 0, LAST_SEQUENCE)
            most = (1 << 63) - 1
            close = {
                "last": last,
                "acked": _whole(fields["acked"], "acked", 0, most),
                "handed": _whole(fields["handed"], "handed", 0, most),
                "before": begin,
                "bytes": _whole(fields["bytes"], "bytes", 0, most) if "bytes" in fields else None,
            }
            for name in ("failed", "dropped"):
                close[name] = sum(_whole(n, name, 0, most) for n in fields[name].values())
            self.facts["closed"] = close
            self.last = max(self.last, last)
        # An unknown kind of line is one a later version added: it takes nothing away from the others.

    def fated(self, fields: dict[str, Any], seqs: list[tuple[int, int]], fate: int) -> None:
        """The fate of some sequences, and the reason that is given for it."""
        given = fields.get("reason")
        reason = given[:_REASON] if isinstance(given, str) else ""
        reasons = self.facts["reasons"]
        if reason not in reasons:
            if len(reasons) >= _REASONS:
                reason = OTHER
            if reason not in reasons:
                reasons.append(reason)
        for first, last in seqs:
            self.fates.add(first, last, fate, reasons.index(reason))

    def batch(self, fields: dict[str, Any]) -> None:
        seqs = _seqs(fields["seqs"])
        n = _count(seqs, fields)
        base = _whole(fields["base"], "base", 1 - _FAR, _FAR - 1)
        hashes = _base64(fields["hashes"], 8 * n, "hashes")
        deltas = np.frombuffer(_base64(fields["created"], 4 * n, "created"), "<i4")
        if "own" in fields:
            own = _seqs(fields["own"])
            if not _inside(own, seqs):
                raise ValueError("own that are not in its seqs")
            self.own.extend(own)
        created = deltas.astype("<i8") + base
        if self.until_us is not None:
            old = np.flatnonzero(created <= self.until_us)
            if len(old):
                sequence = int(expand(np.array(seqs, np.int64))[old[-1]])
                self.facts["old"] = max(self.facts["old"], sequence)
        self.hashes.write(hashes)
        self.created.write(created.tobytes())
        at = self.start + self.events
        for first, last in seqs:
            span = self.spans[-1] if self.spans else None
            # Places go on by themselves, so sequences decide: a quiet producer has a line an event.
            if span is not None and span[1] + 1 == first:
                span[1] = last
            else:
                self.spans.append([first, last, at])
            at += last - first + 1
        self.events += n
        self.last = max(self.last, seqs[-1][1])


def _kind(fields: Any) -> str:
    if not isinstance(fields, dict):
        raise ValueError("it is no object")
    return _text(fields["t"], "t")


def _who(fields: dict[str, Any]) -> str:
    """Whose an open line is."""
    return f"it speaks of producer {str(fields.get('producer'))[:40]}, part {str(fields.get('part'))[:40]}"


def _many(seqs: list[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in seqs)


def _count(seqs: list[tuple[int, int]], fields: dict[str, Any]) -> int:
    n = _many(seqs)
    if type(fields["n"]) is not int or n != fields["n"]:
        raise ValueError(f"n is {str(fields['n'])[:40]}, its seqs are {n}")
    return n


def pack(group: Sequence[Part], index: int, work: str, until_us: int | None = None) -> str:
    """Pack some files; returns the stem of the names of what is written.

    Writes to `work` ``<stem>.hashes`` and ``.created`` (int64 an event, in the order of their lines), the
    tables ``.spans.npy`` (place in the group, first, last, position), ``.fates.npy`` (place, first, last,
    fate, reason), ``.deferred.npy``, ``.own.npy`` and ``.owned.npy`` (place, first, last), ``.noted.npy``
    (place, time, events dropped) and ``.ids.npy`` (two halves of the hash, sequence, place), and what each
    file says besides, ``.facts`` (JSON).
    The stem is of this attempt alone: what another attempt of the task writes, before, meanwhile or later,
    is in other files.
    """
    stem = f"{index}-{uuid.uuid4().hex}"
    path = os.path.join(work, stem)
    facts = []
    tables: dict[str, list[list[int]]] = {
        name: [] for name in ("spans", "fates", "deferred", "own", "owned", "noted")
    }
    ids = [np.empty((0, 4), np.uint64)]
    start = 0
    with open(path + ".hashes", "xb") as hashes, open(path + ".created", "xb") as created:
        for place, part in enumerate(group):
            packer = _Packer(part, hashes, created, start, until_us)
            with open(part.path, "rb", buffering=1 << 20) as file:
                packer.read(file)
            start += packer.events
            for name, rows in (
                ("spans", packer.spans),
                ("fates", packer.fates.rows),
                ("deferred", packer.deferred),
                ("own", packer.own),
                ("owned", packer.id_seqs),
                ("noted", packer.noted),
            ):
                tables[name] += [[place, *row] for row in rows]
            if packer.ids:
                table = np.empty((sum(len(i) for i in packer.ids) // 16, 4), np.uint64)
                table[:, :2] = np.frombuffer(b"".join(packer.ids), "<u8").reshape(-1, 2)
                table[:, 2] = expand(np.array(packer.id_seqs, np.int64)).astype(np.uint64)
                table[:, 3] = place
                ids.append(table)
            facts.append({**packer.facts, "last": packer.last, "size": part.size})
    for name, rows in tables.items():
        np.save(f"{path}.{name}.npy", np.array(rows, np.int64).reshape(-1, _WIDTHS[name]))
    np.save(path + ".ids.npy", np.concatenate(ids))
    if start:
        # All at once: looking at each batch of a few events would cost more than the batch.
        births = np.fromfile(path + ".created", "<i8")
        facts[0]["span"] = [int(births.min()), int(births.max())]
    with open(path + ".facts", "xb") as file:
        file.write(json.dumps(facts).encode())
    return stem


_WIDTHS = {"spans": 4, "fates": 5, "deferred": 3, "own": 3, "owned": 3, "noted": 3}


# -- ranges as arrays of shape (n, 2), inclusive


def expand(ranges: I64) -> I64:
    """All the numbers of some ranges, one after the other."""
    sizes = ranges[:, 1] - ranges[:, 0] + 1
    total = int(sizes.sum())
    starts = np.cumsum(sizes) - sizes
    numbers: I64 = np.arange(total, dtype=np.int64) + np.repeat(ranges[:, 0] - starts, sizes)
    return numbers


def union(ranges: I64) -> I64:
    """Sorted and disjoint."""
    if len(ranges) < 2:
        return ranges.reshape(-1, 2)
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    starts = np.concatenate(([True], ranges[1:, 0] > reach[:-1] + 1))
    ends = np.concatenate((starts[1:], [True]))
    return np.stack((ranges[starts, 0], reach[ends]), axis=1)


def subtract(a: I64, b: I64) -> I64:
    """What of `a` is not in `b`; both sorted and disjoint."""
    if not len(a) or not len(b):
        return a
    # The gaps around b, cut with a: each pair that overlaps gives a piece.
    low = np.concatenate(([np.iinfo(np.int64).min], b[:, 1] + 1))
    high = np.concatenate((b[:, 0] - 1, [np.iinfo(np.int64).max]))
    return intersect(a, np.stack((low, high), axis=1))


def pieces(a: I64, b: I64) -> tuple[I64, I64]:
    """What of each of `a` is in `b`: its index and a range. Only `b` must be sorted and disjoint."""
    if not len(a) or not len(b):
        return np.empty(0, np.int64), np.empty((0, 2), np.int64)
    first = np.searchsorted(b[:, 1], a[:, 0], side="left")
    stop = np.searchsorted(b[:, 0], a[:, 1], side="right")
    counts = np.maximum(stop - first, 0)
    which = np.repeat(np.arange(len(a)), counts)
    other = np.arange(int(counts.sum())) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    out = np.stack((np.maximum(a[which, 0], b[other, 0]), np.minimum(a[which, 1], b[other, 1])), axis=1)
    inside = out[:, 0] <= out[:, 1]
    return which[inside], out[inside]


def intersect(a: I64, b: I64) -> I64:
    """What is in both; both sorted and disjoint."""
    return pieces(a, b)[1]


def twice(ranges: I64) -> I64:
    """What is in more than one of some ranges; sorted and disjoint."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    last = np.minimum(ranges[1:, 1], np.maximum.accumulate(ranges[:, 1])[:-1])
    return union(np.stack((ranges[1:, 0], last), axis=1)[ranges[1:, 0] <= last])


def length(ranges: I64) -> int:
    return int((ranges[:, 1] - ranges[:, 0] + 1).sum()) if len(ranges) else 0


# -- the tables of all producers


class Producer(NamedTuple):
    """What a producer's ledger says as a whole."""

    producer: str
    protocol: str
    url: str
    identity: str  # "id" or "none"
    last: int  # N: the highest sequence that is known to have been made
    since: int  # what cannot be told of sequences beyond is pending
    closed: bool
    events: int  # listed
    evidence: int  # index of EVIDENCE
    problems: list[str]
    mode: str  # where a protocol has several: Logjam's "request" and "async"
    host: str  # empty when it does not say
    pid: int  # 0 likewise
    started_us: int  # when its ledger was begun, microseconds since 1970; 0 likewise

    @property
    def why(self) -> str:
        """What keeps its ledger from being whole; empty when nothing does."""
        if self.evidence == WHOLE:
            return ""
        words = self.problems[0] if self.problems else ""
        named = words.removeprefix(f"{self.producer}: ")
        said = named if named != words else f"has holes ({words})"
        return f"the ledger of {self.named} {said}"

    @property
    def named(self) -> str:
        """Its name, and the process behind it."""
        return f"{self.producer}{who(self.host, self.pid)}"

    @property
    def told(self) -> list[str]:
        """Its problems, each with its name."""
        own = f"{self.producer}: "
        return [
            f"{self.named}: {words.removeprefix(own)}" if words.startswith(own) else words
            for words in self.problems
        ]


def who(host: str, pid: int) -> str:
    """A process, in brackets behind the name of the producer; nothing when it is not known."""
    told = [f"host {host}"] * bool(host) + [f"pid {pid}"] * bool(pid)
    return f" ({', '.join(told)})" if told else ""


# A producer in the tables: what all of them together are counted by.
_ROW = np.dtype(
    [
        ("prefix", "u1", 10),
        ("last", "<i8"),
        ("since", "<i8"),
        ("listed", "<i8"),
        ("evidence", "u1"),
        ("addressed", "?"),
        ("closed", "?"),
        ("one_way", "?"),  # nothing is acknowledged
        ("family", "<i4"),
        ("url", "<i4"),
        ("problems", "<i4"),  # how many
        ("line", "<i8"),  # where the rest of it is in `producers.lines`
        ("spans", "<i8"),  # where its rows begin in the other tables
        ("fates", "<i8"),
        ("deferred", "<i8"),
        ("owned", "<i8"),
        ("reasons", "<i8"),
    ]
)

# Tables of all producers, a file each: rows of int64, by producer.
_TABLES = {
    "bases": 0, "spans": 5, "fates": 5, "live": 0, "deferred": 3, "owned": 3, "noted": 2, "reasons": 4,
}  # fmt: skip


class _Merge:
    """Puts the tables of all packed files together, one of these after the other: the memory it takes does
    not depend on how many there are."""

    def __init__(self, work: str, bits: int) -> None:
        self.work = work
        self.bits = bits
        self.done = 0  # producers
        self.files = 0
        self.ids = [np.empty((0, 4), np.uint64)]
        self.low, self.high = LAST_SEQUENCE << 14, -(LAST_SEQUENCE << 14)  # times
        self.families: dict[str, int] = {}
        self.urls: dict[tuple[str, str], int] = {}
        self.reasons = {"": 0}
        # Of the producer whose parts may go on in the next file.
        self.facts: list[dict[str, Any]] = []
        self.rows = {name: np.empty((0, n + (name == "spans")), np.int64) for name, n in _WIDTHS.items()}
        self.base = 0
        self.sizes = dict.fromkeys(_TABLES, 0)
        self.line = 0
        for name in (*(f"{name}.rows" for name in (*_TABLES, "producers")), "producers.lines"):
            with open(os.path.join(work, name), "wb"):
                pass
        self._append("bases", np.zeros(1, np.int64))

    def _append(self, name: str, rows: npt.NDArray[Any]) -> None:
        with open(os.path.join(self.work, name + ".rows"), "ab") as file:
            file.write(np.ascontiguousarray(rows).data)
        if name in self.sizes:
            self.sizes[name] += len(rows)

    def take(self, stem: str, last: bool) -> None:
        """What one task packed; its producers are not before those of the task before."""
        path = os.path.join(self.work, stem)
        with open(path + ".facts", "rb") as file:
            facts: list[dict[str, Any]] = json.load(file)
        for fact in facts:
            if "span" in fact:
                self.low, self.high = min(self.low, fact["span"][0]), max(self.high, fact["span"][1])
        groups: list[list[dict[str, Any]]] = [self.facts] if self.facts else []
        index = []
        for fact in facts:
            if not groups or groups[-1][0]["producer"] != fact["producer"]:
                groups.append([])
            groups[-1].append(fact)
            index.append(self.done + len(groups) - 1)
        for mine in groups:
            _disown(mine)
        whose = np.array(
            [p if fact["opened"] else -1 for p, fact in zip(index, facts, strict=True)], np.int64
        )
        reasons = [self._reasons(fact["reasons"]) for fact in facts]
        for name in _WIDTHS:
            rows = np.load(f"{path}.{name}.npy")
            if name == "fates" and len(rows):
                starts = np.cumsum([0, *map(len, reasons)])
                rows[:, 4] = np.concatenate(reasons)[starts[rows[:, 0]] + rows[:, 4]]
            rows[:, 0] = whose[rows[:, 0]]
            rows = rows[rows[:, 0] >= 0]
            if name == "spans":
                rows = np.column_stack((rows, np.full(len(rows), self.files, np.int64)))
            self.rows[name] = np.concatenate((self.rows[name], rows))
        table = np.load(path + ".ids.npy")
        owner = whose[table[:, 3].astype(np.int64)]
        table[:, 3] = np.maximum(owner, 0).astype(np.uint64)
        self.ids.append(table[owner >= 0])
        self.files += 1
        self.facts = [] if last else groups.pop()
        self._producers(groups)

    def _reasons(self, found: list[str]) -> I64:
        """Their numbers among those of all files."""
        numbers = []
        for reason in found:
            if reason not in self.reasons and len(self.reasons) >= 4 * _REASONS:
                reason = OTHER
            numbers.append(self.reasons.setdefault(reason, len(self.reasons)))
        return np.array(numbers, np.int64)

    def _producers(self, groups: list[list[dict[str, Any]]]) -> None:
        """Add some to the tables, with all that is there of them."""
        if not groups:
            return
        n = len(groups)
        some = {}
        for name, rows in self.rows.items():
            mine = rows[:, 0] < self.done + n
            some[name] = _by_producer(rows[mine])
            self.rows[name] = rows[~mine]
        checked = _Checked(self.done, n, *(some[name] for name in ("spans", "fates", "own", "owned")))
        producers = [_producer(mine[0]["producer"], mine, checked, p) for p, mine in enumerate(groups)]
        fates = some["fates"]
        tables = {
            "spans": checked.spans,
            # Weakest first within a producer: filled in this order, the strongest is what stays.
            "fates": fates[np.lexsort((fates[:, 1], fates[:, 3], fates[:, 0]))],
            "deferred": some["deferred"],
            "owned": some["owned"],
            "reasons": checked.reasons,
        }
        whole = np.zeros(n, _ROW)
        whole["prefix"] = np.frombuffer(
            bytes.fromhex("".join(x.producer for x in producers)), np.uint8
        ).reshape(-1, 10)
        at = np.arange(self.done, self.done + n)
        for name, table in tables.items():
            whole[name] = self.sizes[name] + np.searchsorted(table[:, 0], at)
        lines = []
        for row, x in zip(whole, producers, strict=True):
            family = protocol_of(x.protocol)
            row["last"], row["since"], row["listed"] = x.last, x.since, x.events
            row["evidence"], row["closed"], row["one_way"] = x.evidence, x.closed, x.mode == "async"
            row["addressed"] = x.identity == "id"
            row["family"] = self.families.setdefault(family, len(self.families))
            row["url"] = self.urls.setdefault((x.protocol, x.url), len(self.urls))
            row["problems"], row["line"] = len(x.problems), self.line
            lines.append(json.dumps(x).encode() + b"\n")
            self.line += len(lines[-1])
        with open(os.path.join(self.work, "producers.lines"), "ab") as file:
            file.write(b"".join(lines))
        bases = self.base + np.cumsum((whole["last"] + (1 << self.bits) - 1) >> self.bits)
        starts = np.concatenate(([self.base], bases))
        live = checked.spans[whole["addressed"][checked.spans[:, 0] - self.done]]
        self._append("producers", whole)
        self._append("bases", bases)
        self._append("live", _live(live, starts[live[:, 0] - self.done], self.bits))
        self._append("noted", some["noted"][:, 1:])
        if len(some["noted"]):
            when = some["noted"][:, 1]
            self.low, self.high = min(self.low, int(when.min())), max(self.high, int(when.max()))
        for name, table in tables.items():
            self._append(name, table)
        self.base = int(bases[-1])
        self.done += n


def merge(stems: Sequence[str], work: str, bits: int, unread: list[str] | None = None) -> Ledger:
    """Put the tables of all packed files together and save them in `work`.

    Args:
        stems: what `pack` returned, in the order of the producers.
        bits: a bucket has ``2 ** bits`` sequences.
        unread: files that may be ledgers, too.
    """
    whole = _Merge(work, bits)
    for i, stem in enumerate(stems):
        whole.take(stem, i == len(stems) - 1)
    ids, pooled = _ids(whole.ids, _mapped(work, "producers", _ROW))
    np.save(os.path.join(work, "ids.npy"), ids)
    np.save(os.path.join(work, "pooled.npy"), pooled)
    files = {
        "stems": list(stems),
        "unread": list(unread or ()),
        "families": list(whole.families),
        "urls": list(whole.urls),
        "reasons": list(whole.reasons),
        "span": [whole.low, whole.high] if whole.low <= whole.high else [0, -1],
    }
    with open(os.path.join(work, "files.json"), "w") as file:
        json.dump(files, file)
    return Ledger(work, bits)


def _mapped(work: str, name: str, dtype: Any = np.int64, width: int = 0) -> npt.NDArray[Any]:
    """A table as it lies in its file: what is not looked at takes no memory, and what is can be let go."""
    path = os.path.join(work, name + ".rows")
    rows: npt.NDArray[Any] = (
        np.memmap(path, dtype, "r").view(np.ndarray) if os.path.getsize(path) else np.empty(0, dtype)
    )
    return rows.reshape(-1, width) if width else rows


def _by_producer(table: I64) -> I64:
    """By producer and first sequence."""
    return table[np.lexsort((table[:, 1], table[:, 0]))]


def _disown(facts: list[dict[str, Any]]) -> None:
    """Take back what was read of parts that are of another ledger than the first one."""
    first = next((fact for fact in facts if fact["opened"]), None)
    for fact in facts:
        if first is None or not fact["opened"]:
            continue
        for name in ("identity", "protocol"):
            if fact[name] != first[name]:
                why = f"its {name} is {fact[name][:40]}, that of part {first['part']} {first[name][:40]}"
                fact["problems"] = [f"{os.path.basename(fact['path'])}: {why}: it is not read"]
                fact.update(opened=False, holes=1, closed=None, stopped="", torn=False, last=0, old=0)
                break


class _Checked:
    """What the lines of all parts of a producer say of each other, for some producers at once.

    Ranges of many producers are one sorted table when the producer is put above the 48 bits of a sequence.
    """

    MOST = 1 << 14  # producers

    def __init__(self, base: int, n: int, spans: I64, fates: I64, own: I64, owned: I64) -> None:
        self.base = base
        self.listed = np.zeros(n, np.int64)
        self.accounted = np.zeros(n, np.int64)  # listed by any line, or with a fate
        self.twice = np.zeros(n, np.int64)
        self.unnamed = np.zeros(n, np.int64)
        self.nameless = np.zeros(n, np.int64)
        self.unlisted = np.zeros(n, np.int64)
        self.of_fate = np.zeros((5, n), np.int64)
        if n > self.MOST:
            raise OverflowError(f"{n} producers at once, at most {self.MOST}")
        reasons = [np.empty((0, 4), np.int64)]  # producer, fate, reason, sequences
        self.spans = self._check(n, spans, fates, own, owned, reasons)
        self.reasons = _by_producer(np.concatenate(reasons))

    def _check(self, n: int, spans: I64, fates: I64, own: I64, owned: I64, reasons: list[I64]) -> I64:
        def keyed(rows: I64) -> I64:
            keys: I64 = rows[:, 1:3] + ((rows[:, :1] - self.base) << 48)
            return keys

        def sizes(ranges: I64) -> I64:
            out = np.zeros(n, np.int64)
            np.add.at(out, ranges[:, 0] >> 48, ranges[:, 1] - ranges[:, 0] + 1)
            return out

        all_spans = keyed(spans)
        listed = union(all_spans)
        again = twice(all_spans)
        own_ids, named = union(keyed(own)), union(keyed(owned))
        unnamed = subtract(own_ids, named)
        self.twice[:] = sizes(again)
        self.unnamed[:] = sizes(unnamed)
        self.nameless[:] = sizes(subtract(named, listed))
        taken = np.empty((0, 2), np.int64)
        for code in (ACKED, HANDED, FAILED, DROPPED):
            mine = subtract(union(keyed(fates[fates[:, 3] == code])), taken)
            self.of_fate[code] = sizes(mine)
            if code in (FAILED, DROPPED):
                self._reasons(mine, fates[fates[:, 3] == code], code, keyed, sizes, reasons)
            taken = union(np.concatenate((taken, mine)))
            if code == HANDED:
                self.unlisted[:] = sizes(subtract(taken, listed))
        self.accounted[:] = sizes(union(np.concatenate((listed, taken))))
        away = union(np.concatenate((again, unnamed)))
        if len(away):
            edges = away.reshape(-1)
            low = np.concatenate(([np.iinfo(np.int64).min], edges[1::2] + 1))
            high = np.concatenate((edges[::2] - 1, [np.iinfo(np.int64).max]))
            from_, rest = pieces(all_spans, np.stack((low, high), axis=1))
            moved = rest[:, 0] - all_spans[from_, 0]
            spans = spans[from_].copy()
            spans[:, 1] += moved
            spans[:, 2] = spans[:, 1] + rest[:, 1] - rest[:, 0]
            spans[:, 3] += moved
        self.listed[:] = sizes(keyed(spans))
        return spans

    def _reasons(
        self,
        mine: I64,
        rows: I64,
        code: int,
        keyed: Callable[[I64], I64],
        sizes: Callable[[I64], I64],
        out: list[I64],
    ) -> None:
        """How many of some sequences have each reason; the first of several."""
        for reason in np.unique(rows[:, 4]).tolist():
            some = intersect(mine, union(keyed(rows[rows[:, 4] == reason])))
            mine = subtract(mine, some)
            counts = sizes(some)
            at = np.flatnonzero(counts)
            columns = self.base + at, np.full(len(at), code), np.full(len(at), reason), counts[at]
            out.append(np.stack(columns, axis=1).astype(np.int64))


def _producer(name: str, facts: list[dict[str, Any]], checked: _Checked, p: int) -> Producer:
    """What its parts say together; by part."""
    holes = any(fact["holes"] for fact in facts)
    told: list[str] = []
    end = facts[-1]

    def hole(why: str) -> None:
        nonlocal holes
        holes = True
        told.append(f"{name}: {why}")

    for due, fact in enumerate(facts, 1):
        if fact["part"] != due:
            hole(f"has part {fact['part']} where {due} was due")
            break
    for fact in facts[:-1]:
        if not fact["opened"] and not fact["holes"]:
            hole(f"has an empty part {fact['part']} that is not the last")
        elif fact["torn"]:
            hole(f"has a torn line at the end of part {fact['part']}, which is not the last")
    for number, why in (
        (checked.twice[p], "has {} sequences in more than one batch line"),
        (checked.unnamed[p], "has {} sequences with an id of their own that no ids line tells"),
        (checked.nameless[p], "has {} sequences in an ids line that are in no batch line"),
        (checked.unlisted[p], "has {} sequences acknowledged or handed over that are in no batch line"),
    ):
        if number:
            hole(why.format(f"{number:,}"))
    last = max(fact["last"] for fact in facts)
    close = None if end["torn"] else end["closed"]
    if close is not None:
        for number, word in (
            (checked.of_fate[code, p], FATES[code]) for code in (ACKED, HANDED, FAILED, DROPPED)
        ):
            if number != close[word]:
                hole(f"ends with {close[word]:,} {word}, and its lines say {number:,}")
        size = sum(fact["size"] for fact in facts[:-1]) + close["before"]
        if close["bytes"] not in (None, size):
            hole(f"had {close['bytes']:,} bytes before its end, and has {size:,}")
        if close["last"] != last:
            hole(f"ends with sequence {close['last']:,}, and has {last:,}")
        if last > checked.accounted[p]:
            hole(f"is closed, and has no line of {last - checked.accounted[p]:,} sequences")
    stopped = next((fact["stopped"] for fact in facts if fact["stopped"]), "")
    if stopped:
        told.append(f"{name}: was stopped ({stopped})")
    if close is None:
        told.append(f"{name}: has no end: it was not closed")
    problems = [*told, *(problem for fact in facts for problem in fact["problems"])]
    evidence = HOLES if holes else STOPPED if stopped else UNCLOSED if close is None else WHOLE
    first = next((fact for fact in facts if fact["opened"]), facts[0])
    return Producer(
        name,
        first["protocol"],
        first["url"],
        first["identity"] or "id",
        last,
        max(fact["old"] for fact in facts) if evidence == UNCLOSED else LAST_SEQUENCE,
        close is not None,
        int(checked.listed[p]),
        evidence,
        problems,
        first["mode"],
        first["host"],
        first["pid"],
        first["started_us"],
    )


def _ids(tables: list[U64], producers: npt.NDArray[Any]) -> tuple[U64, I64]:
    """(first half, second half, producer, sequence) by first half; and (producer, sequence) of the rest.

    An id that the user gave to two events cannot say which one arrived: those events are compared like
    events without ids, as a multiset of hashes. So are an event and the one whose id it was given.

    Args:
        producers: rows of `_ROW`.
    """
    table = np.concatenate(tables)[:, [0, 1, 3, 2]]
    if not len(table):
        return table, np.empty((0, 2), np.int64)
    table = np.concatenate((table, _named(table, producers)))
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    same = (table[1:, 0] == table[:-1, 0]) & (table[1:, 1] == table[:-1, 1])
    shared = np.zeros(len(table), bool)
    shared[1:] |= same
    shared[:-1] |= same
    # Each once and sorted, though a line may stand in a ledger twice.
    pooled = np.unique(table[shared][:, 2:].astype(np.int64), axis=0)
    # One row stays for a shared id, with a producer that does not exist: found, and sent to the pool.
    keep = np.concatenate(([True], ~same))
    table[shared, 2] = np.uint64(1 << 32)
    return table[keep], pooled


def _named(table: U64, producers: npt.NDArray[Any]) -> U64:
    """Rows for the events of these producers whose ids other events were given by users."""
    addressed = np.flatnonzero(producers["addressed"])
    prefixes, rest = _halves(producers["prefix"][addressed])
    rows = set()
    for high, low, *given in table[np.isin(table[:, 0], prefixes)].tolist():
        first, last = np.searchsorted(prefixes, np.array([high, high], np.uint64), side="left"), len(prefixes)
        for i in range(int(first[0]), last):
            if int(prefixes[i]) != high:
                break
            event = [int(addressed[i]), low & ((1 << 48) - 1)]
            if int(rest[i]) == low >> 48 and event != given:
                rows.add((high, low, *event))
    return np.array(sorted(rows), np.uint64).reshape(-1, 4)


def _live(spans: I64, bases: I64, bits: int) -> I64:
    """The buckets (over all producers) in which something is listed; `bases` is each span's producer's."""
    if not len(spans):
        return np.empty(0, np.int64)
    ranges = np.stack((bases + ((spans[:, 1] - 1) >> bits), bases + ((spans[:, 2] - 1) >> bits)), axis=1)
    return expand(union(ranges))


class Bucket(NamedTuple):
    """What the ledger says of the sequences first .. first + n - 1 of a producer."""

    producer: int
    first: int
    hashes: U64  # 0 where nothing is listed
    created_us: I64  # likewise
    listed: npt.NDArray[np.bool_]
    fate: npt.NDArray[np.uint8]
    pooled: npt.NDArray[np.bool_] | None  # events compared by hash alone
    deferred: npt.NDArray[np.bool_] | None  # events that later ones may have overtaken
    owned: npt.NDArray[np.bool_] | None  # events with an id of their own; not told where all is whole


class Ledger:
    """The packed ledgers of a work folder, as tasks open them; what there is of each producer stays in
    files.

    ``whole``, ``addressed``, ``last``, ``since``, ``family``: of each producer. ``all_whole``: nothing is
    missing at all.
    """

    def __init__(self, work: str, bits: int) -> None:
        self.work = work
        self.bits = bits
        # By far the largest when users fill the carriers: mapped, and only looked at where needed.
        self.ids: U64 = np.load(os.path.join(work, "ids.npy"), mmap_mode="r")
        self.rows = _mapped(work, "producers", _ROW)
        self.last: I64 = self.rows["last"]
        self.since: I64 = self.rows["since"]
        self.whole: npt.NDArray[np.bool_] = self.rows["evidence"] == WHOLE
        self.addressed: npt.NDArray[np.bool_] = self.rows["addressed"]
        self.family = self.rows["family"]  # protocols, as numbers: `families` has their names
        tables = {name: _mapped(work, name, np.int64, width) for name, width in _TABLES.items()}
        self.bases: I64 = tables["bases"]
        self.spans: I64 = tables["spans"]
        self.fates: I64 = tables["fates"]
        self.live: I64 = tables["live"]
        self.deferred: I64 = tables["deferred"]
        self.owned: I64 = tables["owned"]
        self.noted: I64 = tables["noted"]  # rows of (time, events dropped), in no order
        self.pooled: I64 = np.load(os.path.join(work, "pooled.npy"))
        self._pooled_by = np.ascontiguousarray(self.pooled[:, 0])
        self._reasons: I64 = tables["reasons"]
        with open(os.path.join(work, "files.json")) as file:
            files = json.load(file)
        self._stems: list[str] = files["stems"]
        self.unread: list[str] = files["unread"]
        self.families: list[str] = files["families"]
        self.urls: list[tuple[str, str]] = [(protocol, url) for protocol, url in files["urls"]]
        self.reasons: list[str] = files["reasons"]
        # From the first to the last time that is known, none: first > last.
        self.span: tuple[int, int] = tuple(files["span"])
        self.all_whole = bool(self.whole.all()) and not self.unread

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def prefixes(self) -> bytes:
        """Ten bytes for each producer."""
        return np.ascontiguousarray(self.rows["prefix"]).tobytes()

    def name(self, p: int) -> str:
        """The 20 digits of a producer."""
        name: str = self.rows["prefix"][p].tobytes().hex()
        return name

    def find(self, name: str) -> int:
        """The number of a producer, -1 when it has no ledger here."""
        at = bisect.bisect_left(range(len(self)), name, key=self.name)
        return at if at < len(self) and self.name(at) == name else -1

    @property
    def producers(self) -> Producers:
        return Producers(self)

    def _rows_of(self, p: int, name: str, table: I64) -> I64:
        end = int(self.rows[name][p + 1]) if p + 1 < len(self.rows) else len(table)
        return table[int(self.rows[name][p]) : end]

    def spans_of(self, p: int) -> I64:
        """Rows of (producer, first, last, position, file), by first."""
        return self._rows_of(p, "spans", self.spans)

    def fates_of(self, p: int) -> I64:
        """Rows of (producer, first, last, fate, reason), the weakest fate first."""
        return self._rows_of(p, "fates", self.fates)

    def reasons_of(self, p: int) -> dict[str, dict[str, int]]:
        """Why events failed or were dropped: fate -> reason -> how many, the most first."""
        out: dict[str, dict[str, int]] = {}
        rows = self._rows_of(p, "reasons", self._reasons)
        for _, fate, reason, n in rows[np.argsort(-rows[:, 3], kind="stable")].tolist():
            out.setdefault(FATES[fate], {})[self.reasons[reason]] = n
        return out

    def pooled_of(self, p: int) -> I64:
        """Sequences whose id the user gave twice."""
        low, high = np.searchsorted(self._pooled_by, (p, p + 1))
        return self.pooled[low:high, 1]

    def by_hash(self) -> tuple[list[int], int]:
        """The packed files with events that are compared by hash alone, and how many events are listed by
        their producers."""
        mine = ~self.addressed & (self.rows["listed"] > 0)
        mine[self._pooled_by] = True
        if not mine.any():
            return [], 0
        files = np.unique(self.spans[mine[self.spans[:, 0]], 4]).tolist()
        return files, int(self.rows["listed"][mine].sum())

    def owner(self, bucket: int) -> int:
        """The producer of a bucket."""
        return int(np.searchsorted(self.bases, bucket, side="right")) - 1

    def read(self, file: int, position: int, n: int) -> tuple[U64, I64]:
        """Hashes and creation times of `n` events of a packed file."""
        stem = os.path.join(self.work, self._stems[file])
        hashes = np.fromfile(stem + ".hashes", "<u8", n, offset=8 * position)
        created = np.fromfile(stem + ".created", "<i8", n, offset=8 * position)
        return hashes, created

    def event(self, p: int, sequence: int) -> tuple[int, int] | None:
        """Hash and time of creation of one event, None when it is not listed."""
        rows = _overlapping(self.spans_of(p), sequence, sequence).tolist()
        if not rows:
            return None
        _, first, _, position, file = rows[-1]
        hashes, created = self.read(file, position + sequence - first, 1)
        return int(hashes[0]), int(created[0])

    def bucket(self, bucket: int) -> Bucket:
        """Read one bucket from where it lies."""
        p = self.owner(bucket)
        first = ((bucket - int(self.bases[p])) << self.bits) + 1
        n = min(1 << self.bits, int(self.last[p]) - first + 1)
        hashes = np.zeros(n, np.uint64)
        created = np.zeros(n, np.int64)
        listed = np.zeros(n, bool)
        spans = self.spans_of(p)
        for _, a, b, position, file in _overlapping(spans, first, first + n - 1).tolist():
            low, high = max(a, first), min(b, first + n - 1)
            where = slice(low - first, high - first + 1)
            hashes[where], created[where] = self.read(file, position + low - a, high - low + 1)
            listed[where] = True
        pooled = None
        mine = self.pooled_of(p)
        if len(mine):
            inside = mine[np.searchsorted(mine, first) : np.searchsorted(mine, first + n)]
            if len(inside):
                pooled = np.zeros(n, bool)
                pooled[inside - first] = True
                pooled &= listed  # an `ids` line whose batch line is damaged takes nothing out
        deferred = _marked(self._rows_of(p, "deferred", self.deferred), first, n)
        owned = None
        if not self.all_whole:
            owned = _marked(self._rows_of(p, "owned", self.owned), first, n)
        return Bucket(p, first, hashes, created, listed, self.fate(p, first, n), pooled, deferred, owned)

    def fate(self, p: int, first: int, n: int) -> npt.NDArray[np.uint8]:
        """The fates of a range of sequences."""
        fate = np.zeros(n, np.uint8)
        rows = self.fates_of(p)
        # Sorted by fate, so not searched: few, because ranges are merged.
        for _, a, b, code, _ in rows[(rows[:, 1] < first + n) & (rows[:, 2] >= first)].tolist():
            fate[max(a - first, 0) : b - first + 1] = code
        return fate

    def reason(self, p: int, sequence: int) -> str:
        """Why a sequence has the fate that it has; empty where nothing is said."""
        rows = self.fates_of(p)
        rows = rows[(rows[:, 1] <= sequence) & (rows[:, 2] >= sequence)]
        return self.reasons[int(rows[-1, 4])] if len(rows) else ""

    def fates_at(self, p: int, sequences: I64) -> npt.NDArray[np.uint8]:
        """The fates of single sequences."""
        fate = np.zeros(len(sequences), np.uint8)
        rows = self.fates_of(p)
        for code in range(DROPPED, ACKED + 1):
            ranges = union(rows[rows[:, 3] == code][:, 1:3])
            if len(ranges):
                at = np.searchsorted(ranges[:, 0], sequences, side="right") - 1
                fate[(at >= 0) & (sequences <= ranges[np.maximum(at, 0), 1])] = code
        return fate


class Producers(Sequence[Producer]):
    """All producers, each read when it is asked for."""

    def __init__(self, packed: Ledger) -> None:
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, p: int) -> Producer: ...
    @overload
    def __getitem__(self, p: slice) -> list[Producer]: ...
    def __getitem__(self, p: int | slice) -> Producer | list[Producer]:
        if isinstance(p, slice):
            return [self[i] for i in range(*p.indices(len(self)))]
        if not 0 <= p < len(self):
            raise IndexError(p)
        with open(os.path.join(self._packed.work, "producers.lines"), "rb") as file:
            file.seek(int(self._packed.rows["line"][p]))
            return Producer(*json.loads(file.readline()))

    def __iter__(self) -> Iterator[Producer]:
        with open(os.path.join(self._packed.work, "producers.lines"), "rb") as file:
            for line in file:
                yield Producer(*json.loads(line))


def _marked(rows: I64, first: int, n: int) -> npt.NDArray[np.bool_] | None:
    """Which of the sequences from `first` on are in ranges of (producer, first, last); None: none of them."""
    rows = rows[(rows[:, 1] < first + n) & (rows[:, 2] >= first)]
    if not len(rows):
        return None
    found = np.zeros(n, bool)
    for _, a, b in rows.tolist():
        found[max(a - first, 0) : b - first + 1] = True
    return found


def _overlapping(spans: I64, first: int, last: int) -> I64:
    """Rows of the disjoint spans of a producer (sorted) that touch first .. last."""
    rows = spans[: int(np.searchsorted(spans[:, 1], last, side="right"))]
    return rows[int(np.searchsorted(rows[:, 2], first, side="left")) :]
