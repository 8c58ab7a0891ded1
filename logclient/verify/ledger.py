"""Ledgers made addressable: the hash, the birth and the fate of any sequence, without reading JSON again.

The format is in ``docs/formats.md``. `pack` turns some files into flat arrays in a work folder (a task of
the first stage); `merge`, on the driver, puts their tables together; `Ledger` is what the tasks of the
second stage open: small tables in memory, hashes and creation times read by range from where they lie.

A ledger is evidence only as far as it goes. ``horizon`` of a producer is the last sequence of which its
ledger speaks with certainty: none beyond it that is not listed can be called lost or never sent.
"""

from __future__ import annotations

import json
import os
import re
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logclient._ext.capture import unbase64
from logclient.errors import LedgerError
from logclient.verify.decode import protocol_of

__all__ = ["ACKED", "DROPPED", "FAILED", "HANDED", "Ledger", "Part", "merge", "pack", "parts"]

# Fates, weakest first: where a ledger names two for one sequence, the stronger one holds.
NONE, DROPPED, FAILED, HANDED, ACKED = range(5)
_FATES = {"failed": FAILED, "handed": HANDED, "acked": ACKED}
FATES = ("undecided", "dropped", "failed", "handed", "acked")  # what they are called

LAST_SEQUENCE = (1 << 48) - 1
_FAR = 1 << 60  # microseconds: no time lies beyond
_LINE = 256 << 20  # a longer line is damage
_NAME = re.compile(r"([0-9a-f]{20})-(\d{4,})\.ledger")
_EXAMPLES = 20

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class Part(NamedTuple):
    """One file of a producer's ledger."""

    producer: str  # 20 hex digits
    number: int  # from 1
    path: str
    size: int


def parts(directory: str) -> list[Part]:
    """The ledger files of a folder, by producer and part.

    Raises:
        LedgerError: no such folder, or no ledger in it.
    """
    found = []
    try:
        for entry in os.scandir(directory):
            match = _NAME.fullmatch(entry.name)
            if match and entry.is_file():
                found.append(Part(match[1], int(match[2]), entry.path, entry.stat().st_size))
    except OSError as error:
        raise LedgerError(f"ledger: {directory}: {error.strerror}") from error
    if not found:
        raise LedgerError(f"ledger: {directory} has no ledger: their names are <producer>-<part>.ledger")
    return sorted(found)


class _Ranges:
    """Inclusive ranges as they come, joined where one continues the other."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def add(self, first: int, last: int, tag: int) -> None:
        if self.rows:
            row = self.rows[-1]
            if row[1] + 1 == first and row[2] == tag:
                row[1] = last
                return
        self.rows.append([first, last, tag])


def _seqs(value: Any) -> list[tuple[int, int]]:
    """Checked `seqs`: rising inclusive ranges of sequences."""
    before = 0
    out = []
    for first, last in value:
        if not (type(first) is int and type(last) is int and before < first <= last <= LAST_SEQUENCE):
            raise ValueError("seqs that do not rise")
        out.append((first, last))
        before = last
    return out


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
    """Reads the lines of one part; hashes and creation times go to two flat files, from event `start` on."""

    def __init__(self, part: Part, hashes: IO[bytes], created: IO[bytes], start: int) -> None:
        self.part = part
        self.hashes = hashes
        self.created = created
        self.start = start
        self.events = 0
        self.spans: list[list[int]] = []  # first, last, position in the files
        self.fates = _Ranges()
        self.noted: list[tuple[int, int]] = []  # when some were dropped, and how many
        self.ids: list[bytes] = []
        self.id_seqs: list[tuple[int, int]] = []
        self.last = 0
        self.facts: dict[str, Any] = {
            "producer": part.producer,
            "part": part.number,
            "path": part.path,
            "protocol": "",
            "url": "",
            "identity": "",
            "mode": "",
            "opened": False,
            "closed": None,
            "stopped": "",
            "torn": False,
            "damage": 0,
            "problems": [],
        }

    def damage(self, line: int, why: str) -> None:
        self.facts["damage"] += 1
        if len(self.facts["problems"]) < _EXAMPLES:
            self.facts["problems"].append(f"{os.path.basename(self.part.path)} line {line}: {why}")

    def read(self, file: IO[bytes]) -> None:
        number = 0
        while True:
            line = file.readline(_LINE)
            if not line:
                break
            number += 1
            if not line.endswith(b"\n"):
                if len(line) == _LINE:
                    self.damage(number, f"longer than {_LINE} bytes")
                    while len(line) == _LINE and not line.endswith(b"\n"):
                        line = file.readline(_LINE)
                    continue
                self.facts["torn"] = True
                break
            try:
                self.line(_fields(line))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                self.damage(number, str(error).split("\n")[0][:200])

    def line(self, fields: dict[str, Any]) -> None:
        kind = fields["t"]
        if kind == "batch":
            self.batch(fields)
        elif kind == "outcome":
            seqs = _seqs(fields["seqs"])
            fate = _FATES[fields["status"]]
            for first, last in seqs:
                self.fates.add(first, last, fate)
                self.last = max(self.last, last)
        elif kind == "dropped":
            seqs = _seqs(fields["seqs"])
            for first, last in seqs:
                self.fates.add(first, last, DROPPED)
                self.last = max(self.last, last)
            at = fields.get("at_us")
            if type(at) is int and abs(at) < _FAR:
                self.noted.append((at, sum(last - first + 1 for first, last in seqs)))
        elif kind == "ids":
            seqs = _seqs(fields["seqs"])
            n = sum(last - first + 1 for first, last in seqs)
            self.ids.append(_base64(fields["ids"], 16 * n, "ids"))
            self.id_seqs.extend(seqs)
        elif kind == "open":
            if fields["version"] != 1:
                raise ValueError(f"version {fields['version']}: only 1 is known")
            if fields["producer"] != self.part.producer:
                raise ValueError(f"it speaks of producer {str(fields['producer'])[:40]}")
            if fields["identity"] not in ("id", "none"):
                raise ValueError("identity must be id or none")
            self.facts["opened"] = True
            for name in ("protocol", "url", "identity"):
                self.facts[name] = str(fields[name])
            self.facts["mode"] = str(fields.get("mode", ""))
        elif kind == "stopped":
            self.facts["stopped"] = str(fields["reason"]) or "?"
        elif kind == "close":
            last = int(fields["last"])
            if not 0 <= last <= LAST_SEQUENCE:
                raise ValueError("last is no sequence")
            self.facts["closed"] = {
                "last": last,
                "acked": int(fields["acked"]),
                "handed": int(fields["handed"]),
                "failed": sum(map(int, fields["failed"].values())),
                "dropped": sum(map(int, fields["dropped"].values())),
            }
        # An unknown kind of line is one a later version added: it takes nothing away from the others.

    def batch(self, fields: dict[str, Any]) -> None:
        seqs = _seqs(fields["seqs"])
        n = sum(last - first + 1 for first, last in seqs)
        if n != fields["n"]:
            raise ValueError(f"n is {fields['n']}, its seqs are {n}")
        base = int(fields["base"])
        if abs(base) >= _FAR:
            raise ValueError("base is no time")
        hashes = _base64(fields["hashes"], 8 * n, "hashes")
        deltas = np.frombuffer(_base64(fields["created"], 4 * n, "created"), "<i4")
        self.hashes.write(hashes)
        self.created.write((deltas.astype("<i8") + base).tobytes())
        at = self.start + self.events
        for first, last in seqs:
            span = self.spans[-1] if self.spans else None
            # Joined where sequences and places both go on: a quiet producer has a line an event.
            if span is not None and span[1] + 1 == first and span[2] + first - span[0] == at:
                span[1] = last
            else:
                self.spans.append([first, last, at])
            at += last - first + 1
        self.events += n
        self.last = max(self.last, seqs[-1][1] if seqs else 0)


def pack(group: list[Part], index: int, work: str) -> list[dict[str, Any]]:
    """Pack some files; what each says besides its events, as plain JSON values.

    Writes to `work` ``<index>.hashes`` and ``.created`` (int64 an event, in the order of their lines) and
    the tables ``.spans.npy`` (place in the group, first, last, position), ``.fates.npy`` (place, first, last,
    fate), ``.noted.npy`` (time, events dropped) and ``.ids.npy`` (two halves of the hash, sequence, place).
    Written again from the start by a task that is tried again.
    """
    stem = os.path.join(work, str(index))
    facts = []
    spans, fates = [], []
    noted: list[tuple[int, int]] = []
    ids = [np.empty((0, 4), np.uint64)]
    start = 0
    with open(stem + ".hashes", "wb") as hashes, open(stem + ".created", "wb") as created:
        for place, part in enumerate(group):
            packer = _Packer(part, hashes, created, start)
            with open(part.path, "rb", buffering=1 << 20) as file:
                packer.read(file)
            start += packer.events
            spans += [[place, *row] for row in packer.spans]
            fates += [[place, *row] for row in packer.fates.rows]
            noted += packer.noted
            if packer.ids:
                table = np.empty((sum(len(i) for i in packer.ids) // 16, 4), np.uint64)
                table[:, :2] = np.frombuffer(b"".join(packer.ids), "<u8").reshape(-1, 2)
                table[:, 2] = expand(np.array(packer.id_seqs, np.int64)).astype(np.uint64)
                table[:, 3] = place
                ids.append(table)
            facts.append(
                {
                    **packer.facts,
                    "file": index,
                    "last": packer.last,
                    "events": packer.events,
                    "size": part.size,
                }
            )
    np.save(stem + ".spans.npy", np.array(spans, np.int64).reshape(-1, 4))
    np.save(stem + ".fates.npy", np.array(fates, np.int64).reshape(-1, 4))
    np.save(stem + ".noted.npy", np.array(noted, np.int64).reshape(-1, 2))
    np.save(stem + ".ids.npy", np.concatenate(ids))
    if start:
        # All at once: looking at each batch of a few events would cost more than the batch.
        births = np.fromfile(stem + ".created", "<i8")
        facts[0]["span"] = [int(births.min()), int(births.max())]
    return facts


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


def intersect(a: I64, b: I64) -> I64:
    """What is in both; both sorted and disjoint."""
    if not len(a) or not len(b):
        return np.empty((0, 2), np.int64)
    first = np.searchsorted(b[:, 1], a[:, 0], side="left")
    stop = np.searchsorted(b[:, 0], a[:, 1], side="right")
    counts = np.maximum(stop - first, 0)
    which = np.repeat(np.arange(len(a)), counts)
    other = np.arange(int(counts.sum())) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    out = np.stack((np.maximum(a[which, 0], b[other, 0]), np.minimum(a[which, 1], b[other, 1])), axis=1)
    return out[out[:, 0] <= out[:, 1]]


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
    horizon: int  # of what lies beyond and is not listed nothing can be said
    closed: bool
    events: int  # listed
    problems: list[str]
    mode: str  # where a protocol has several: Logjam's "request" and "async"


_TABLES = ("prefixes", "bounds", "bases", "spans", "fates", "live", "ids", "pooled", "noted", "span")


def merge(groups: list[list[dict[str, Any]]], work: str, bits: int) -> Ledger:
    """Put the tables of all packed files together and save them in `work`.

    Args:
        groups: what `pack` returned, in the order of its indices.
        bits: a bucket has ``2 ** bits`` sequences.
    """
    names = sorted({fact["producer"] for group in groups for fact in group})
    index = {name: p for p, name in enumerate(names)}
    of_producer: list[list[dict[str, Any]]] = [[] for _ in names]
    spans, fates, ids, noted = [], [], [], []
    for file, group in enumerate(groups):
        whose = np.array([index[fact["producer"]] for fact in group], np.int64)
        for p, fact in zip(whose.tolist(), group, strict=True):
            of_producer[p].append(fact)
        stem = os.path.join(work, str(file))
        span = np.load(stem + ".spans.npy")
        spans.append(np.column_stack((whose[span[:, 0]], span[:, 1:], np.full(len(span), file))))
        fate = np.load(stem + ".fates.npy")
        fates.append(np.column_stack((whose[fate[:, 0]], fate[:, 1:])))
        noted.append(np.load(stem + ".noted.npy"))
        table = np.load(stem + ".ids.npy")
        table[:, 3] = whose.astype(np.uint64)[table[:, 3].astype(np.int64)]
        ids.append(table)
    producers = [_producer(name, mine) for name, mine in zip(names, of_producer, strict=True)]
    span_table = np.concatenate(spans)
    span_table = span_table[np.lexsort((span_table[:, 1], span_table[:, 0]))]
    fate_table = np.concatenate(fates)
    # Weakest first within a producer: filled in this order, the strongest is what stays.
    fate_table = fate_table[np.lexsort((fate_table[:, 1], fate_table[:, 3], fate_table[:, 0]))]
    id_table, pooled = _ids(ids)
    last = np.array([producer.last for producer in producers], np.int64)
    buckets = (last + (1 << bits) - 1) >> bits
    bases = np.concatenate(([0], np.cumsum(buckets)))
    addressed = np.array([producer.identity == "id" for producer in producers])
    live = _live(span_table, bases, addressed, bits)
    families = sorted({protocol_of(x.protocol) for x in producers})
    when = np.concatenate(noted)
    span = np.array(
        [fact["span"] for group in groups for fact in group if "span" in fact]
        + ([[int(when[:, 0].min()), int(when[:, 0].max())]] if len(when) else []),
        np.int64,
    ).reshape(-1, 2)
    arrays: dict[str, npt.NDArray[Any]] = {
        "prefixes": np.frombuffer(bytes.fromhex("".join(names)), np.uint8),
        "bounds": np.array(
            [
                [x.last, x.horizon, x.closed, x.identity == "id", families.index(protocol_of(x.protocol))]
                for x in producers
            ],
            np.int64,
        ).reshape(-1, 5),
        "bases": bases,
        "spans": span_table,
        "fates": fate_table,
        "live": live,
        "ids": id_table,
        "pooled": pooled,
        "noted": when,
        "span": np.array([span[:, 0].min(), span[:, 1].max()] if len(span) else [0, -1], np.int64),
    }
    for name in _TABLES:
        np.save(os.path.join(work, name + ".npy"), arrays[name])
    with open(os.path.join(work, "producers.json"), "w") as file_:
        json.dump([list(producer) for producer in producers], file_)
    return Ledger(work, bits)


def _producer(name: str, facts: list[dict[str, Any]]) -> Producer:
    facts = sorted(facts, key=lambda fact: int(fact["part"]))
    problems = [problem for fact in facts for problem in fact["problems"]]
    damaged = any(fact["damage"] for fact in facts)

    def bad(why: str) -> None:
        nonlocal damaged
        damaged = True
        problems.append(f"{name}: {why}")

    for due, fact in enumerate(facts, 1):
        if fact["part"] != due:
            bad(f"part {fact['part']} where {due} was due")
            break
    for fact in facts:
        if not fact["opened"]:
            if fact is facts[-1] and len(facts) > 1 and not fact["events"] and not fact["damage"]:
                continue  # killed between making the file and its first line
            bad(f"part {fact['part']} has no open line")
        if fact["torn"] and fact is not facts[-1]:
            bad(f"part {fact['part']} ends in a torn line and is not the last")
    identities = {fact["identity"] for fact in facts if fact["opened"]}
    if len(identities) > 1:
        bad("its parts say different things of identity")
    listed = max(fact["last"] for fact in facts)
    closes = [fact["closed"] for fact in facts if fact["closed"]]
    last = max([listed, *(close["last"] for close in closes)])
    stopped = next((fact["stopped"] for fact in facts if fact["stopped"]), "")
    if stopped:
        problems.append(f"{name}: the ledger stopped ({stopped})")
    horizon = LAST_SEQUENCE if closes and not stopped else listed
    return Producer(
        name,
        next((fact["protocol"] for fact in facts if fact["protocol"]), ""),
        next((fact["url"] for fact in facts if fact["url"]), ""),
        "none" if identities == {"none"} else "id",
        last,
        0 if damaged else horizon,
        bool(closes),
        sum(fact["events"] for fact in facts),
        problems,
        next((fact["mode"] for fact in facts if fact["mode"]), ""),
    )


def _ids(tables: list[U64]) -> tuple[U64, I64]:
    """(first half, second half, producer, sequence) by first half; and (producer, sequence) of the rest.

    An id that the user gave to two events cannot say which one arrived: those events are compared like
    events without ids, as a multiset of hashes.
    """
    table = np.concatenate(tables)[:, [0, 1, 3, 2]]
    if not len(table):
        return table, np.empty((0, 2), np.int64)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    same = (table[1:, 0] == table[:-1, 0]) & (table[1:, 1] == table[:-1, 1])
    shared = np.zeros(len(table), bool)
    shared[1:] |= same
    shared[:-1] |= same
    pooled = table[shared][:, 2:].astype(np.int64)
    pooled = pooled[np.lexsort((pooled[:, 1], pooled[:, 0]))]
    # One row stays for a shared id, with a producer that does not exist: found, and sent to the pool.
    keep = np.concatenate(([True], ~same))
    table[shared, 2] = np.uint64(1 << 32)
    return table[keep], pooled


def _live(spans: I64, bases: I64, addressed: npt.NDArray[np.bool_], bits: int) -> I64:
    """The buckets (over all producers) in which something is listed."""
    mine = spans[addressed[spans[:, 0]]] if len(spans) else spans
    if not len(mine):
        return np.empty(0, np.int64)
    base = bases[mine[:, 0]]
    ranges = np.stack((base + ((mine[:, 1] - 1) >> bits), base + ((mine[:, 2] - 1) >> bits)), axis=1)
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


class Ledger:
    """The packed ledgers of a work folder, as tasks open them."""

    def __init__(self, work: str, bits: int) -> None:
        self.work = work
        self.bits = bits
        tables = {
            name: np.load(os.path.join(work, name + ".npy"))
            for name in _TABLES
            if name not in ("ids", "noted")
        }
        # By far the largest when users fill the carriers: mapped, and only looked at where needed.
        self.ids: U64 = np.load(os.path.join(work, "ids.npy"), mmap_mode="r")
        self.prefixes: bytes = tables["prefixes"].tobytes()
        bounds = tables["bounds"]
        self.last: I64 = bounds[:, 0]
        self.horizon: I64 = bounds[:, 1]
        self.closed: npt.NDArray[np.bool_] = bounds[:, 2].astype(bool)
        self.addressed: npt.NDArray[np.bool_] = bounds[:, 3].astype(bool)
        self.family: I64 = bounds[:, 4]  # protocols, as numbers: `families` has their names
        self.span: I64 = tables["span"]  # from the first to the last time that is known, none: first > last
        self.bases: I64 = tables["bases"]
        self.spans: I64 = tables["spans"]
        self.fates: I64 = tables["fates"]
        self.live: I64 = tables["live"]
        self.pooled: I64 = tables["pooled"]
        # Where each producer's rows start.
        at = np.arange(len(self.last) + 1)
        self._spans_at = np.searchsorted(self.spans[:, 0], at)
        self._fates_at = np.searchsorted(self.fates[:, 0], at)
        self._pooled_at = np.searchsorted(self.pooled[:, 0], at)

    def __len__(self) -> int:
        return len(self.last)

    @property
    def producers(self) -> list[Producer]:
        with open(os.path.join(self.work, "producers.json")) as file:
            return [Producer(*row) for row in json.load(file)]

    @property
    def families(self) -> list[str]:
        return sorted({protocol_of(x.protocol) for x in self.producers})

    @property
    def noted(self) -> I64:
        """Rows of (time, events dropped), in no order."""
        rows: I64 = np.load(os.path.join(self.work, "noted.npy"))
        return rows

    def spans_of(self, p: int) -> I64:
        """Rows of (producer, first, last, position, file), by first."""
        return self.spans[self._spans_at[p] : self._spans_at[p + 1]]

    def fates_of(self, p: int) -> I64:
        """Rows of (producer, first, last, fate), the weakest fate first."""
        return self.fates[self._fates_at[p] : self._fates_at[p + 1]]

    def pooled_of(self, p: int) -> I64:
        """Sequences whose id the user gave twice."""
        return self.pooled[self._pooled_at[p] : self._pooled_at[p + 1], 1]

    def owner(self, bucket: int) -> int:
        """The producer of a bucket."""
        return int(np.searchsorted(self.bases, bucket, side="right")) - 1

    def read(self, file: int, position: int, n: int) -> tuple[U64, I64]:
        """Hashes and creation times of `n` events of a packed file."""
        stem = os.path.join(self.work, str(file))
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
        return Bucket(p, first, hashes, created, listed, self.fate(p, first, n), pooled)

    def fate(self, p: int, first: int, n: int) -> npt.NDArray[np.uint8]:
        """The fates of a range of sequences."""
        fate = np.zeros(n, np.uint8)
        rows = self.fates_of(p)
        # Sorted by fate, so not searched: few, because ranges are merged.
        for _, a, b, code in rows[(rows[:, 1] < first + n) & (rows[:, 2] >= first)].tolist():
            fate[max(a - first, 0) : b - first + 1] = code
        return fate

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


def _overlapping(spans: I64, first: int, last: int) -> I64:
    """Rows of spans (sorted by their first sequence) that touch first .. last."""
    stop = int(np.searchsorted(spans[:, 1], last, side="right"))
    # A long span may start far before: spans of one producer do not overlap unless the ledger is
    # damaged, so the last sequences rise as well, and only then one must look at all of them.
    rows = spans[:stop]
    if len(rows) and (rows[1:, 2] >= rows[:-1, 2]).all():
        return rows[int(np.searchsorted(rows[:, 2], first, side="left")) :]
    return rows[rows[:, 2] >= first]
