"""The comparison: every event of the ledgers against every arrival of the captures, exact, order included.

Two stages and one shuffle between them. A *map* task (``gather.py``) reads a few segments itself (their
bytes never pass through the JVM), decodes them, and packs what arrived into a file of the work folder, one
stretch for each bucket: a bucket is ``2 ** bits`` sequences of one producer. What is shuffled is a short row
for each stretch, which says where it is. A *reduce* task sees the rows of a bucket in the order of arrival,
reads the stretches and the bucket's ledger from where they lie, and says what became of each event. Cost does
not depend on the order of arrival, on skew (a large producer is many buckets) or on the number of faults;
memory is one bucket.

Order needs a word across buckets: an event is reordered when its first copy arrived after the first copy
of a later one, at the same listener. Inside a bucket that is a minimum from behind. Across buckets the
reduce tells, for each listener, the earliest first copy and the latest, and leaves in the work folder the
latest ones that are in order so far (at most ``tail``). The driver reads those of the few buckets whose
latest came after the earliest of a later bucket; a producer's last bucket has none later, and needs no tail.
When even all of those came too late there may be more of them: such buckets (``again``) are passed over once
more with the later minimum known.

What arrived and is no event of a bucket goes by other rows: `PHANTOM` ids (sequences beyond the ledger, ids
of nobody), spread by hash, because somebody may flood us with them; and the `POOL`, events without an id of
their own, compared as a multiset of hashes.
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from logclient.verify.ledger import ACKED, DROPPED, FAILED, HANDED, I64, LAST_SEQUENCE, NONE, U64, Ledger
from logclient.verify.overview import DUPLICATED, LOST_SENT, MISSING_SENT, REORDERED, Grid, Places, Times
from logclient.verify.sources import Segment

__all__ = ["ARRIVALS", "RESULTS", "VIOLATIONS", "Plan", "reduce_task", "reduce_to_file", "results"]

# Keys of rows that belong to no bucket: facts, then phantoms, then the pool.
FACT = -1
PHANTOMS = 64
PHANTOM = -2  # down to PHANTOM - PHANTOMS + 1
POOL = PHANTOM - PHANTOMS  # down to POOL - plan.pools + 1

# Who an unexpected id belongs to, when it is nobody of the ledger.
STRANGER, USERS_OWN, NOBODY = -1, -2, -3

# Where an event arrived, as one number that rises with the order of arrival at a listener:
# rank of the segment, unit in the segment, event in the unit.
RANK_BITS, UNIT_BITS, EVENT_BITS = 14, 26, 23
NEVER = np.iinfo(np.int64).max
TIMELESS = (1 << 32) - 1  # instead of a time, in 32 bits

# What has an order of its own, as one number: a listener, and from this bit on the device (32 bits) whose
# publications it got. More devices in one batch or bucket are `OTHERS`, where order is not judged: their
# numbers are what somebody sends, and each costs memory.
LISTENER_BITS, DEVICES, OTHERS = 16, 64, 1 << 32
LISTENER = (1 << LISTENER_BITS) - 1

ARRIVALS = pa.schema(
    [
        ("part", pa.int32()),  # where the row goes
        ("key", pa.int64()),
        ("listener", pa.int64()),  # with the device: LISTENER_BITS
        ("x", pa.int64()),  # the first of xs: rows of a bucket come in this order
        ("received_us", pa.int64()),
        ("shift", pa.int32()),
        ("file", pa.string()),  # in the work folder; four columns of n values lie there, at
        ("n", pa.int32()),
        ("offs", pa.int64()),  # int32, sequence in the bucket
        ("hashes", pa.int64()),  # uint64
        ("xs", pa.int64()),  # int64, rising
        ("after", pa.int64()),  # uint32: received_us + (after << shift)
    ]
)
RESULTS = pa.schema(
    [
        ("kind", pa.string()),
        ("key", pa.int64()),
        ("p", pa.int32()),  # the producer that it is about; less than 0: none
        ("listener", pa.int64()),
        ("head", pa.string()),  # JSON
        ("offs", pa.binary()),
        ("xs", pa.binary()),
    ]
)
VIOLATIONS = pa.schema(
    [
        ("kind", pa.string()),
        ("producer", pa.string()),  # 20 hex digits; null for what carries no such id
        ("first", pa.int64()),  # sequences, inclusive
        ("last", pa.int64()),
        ("copies", pa.int64()),  # that arrived, of each
        ("sent", pa.bool_()),  # listed in a ledger
        ("other", pa.string()),  # what carries no id of ours: 32 hex of its own id's hash, 16 of the body's
    ]
)

# What becomes of a sequence; each has exactly one.
STATES = ("ok", "lost", "missing", "recovered", "corrupted", "dropped", "unexpected", "unknown", "pending")
OK, LOST, MISSING, RECOVERED, CORRUPTED, DROPPED_, UNEXPECTED, UNKNOWN, PENDING = range(9)
EXCLUDED = 9  # in the pool, counted there


class Example(NamedTuple):
    """One event of a fault, and where it is in the capture."""

    producer: str | None
    sequence: int | None
    other: str | None  # of an id that is nobody's
    listener: int = -1  # -1: it never arrived
    x: int = 0
    copies: int = 0
    sent: bool = True


class Plan(NamedTuple):
    """What all tasks know; kept as JSON in the work folder."""

    work: str
    bits: int
    units: int  # in one batch
    chunk: int
    tail: int
    examples: int
    partitions: int
    pools: int
    segments: list[list[Any]]  # sources.Segment, listener index, rank, protocol
    tasks: list[dict[str, list[int]]]  # {"segments": [...]} or {"pool": [file, ...]}, and "live": [from, to]
    violations: str  # folder, empty for none
    grid: list[int]  # overview.Grid
    families: int  # of protocols that a doubt touches together
    app_envs: list[str]  # of the Logjam producers; none: not known
    ordered: bool = True  # arrivals have an order
    timed: bool = True  # and times
    records: dict[str, Any] | None = None  # of a source that is no capture: see records.Source.plan
    listeners: list[dict[str, Any]] = []  # see captures.Survey; none: of records
    left_out: list[list[Any]] = []  # captures.LeftOut
    unjudged: list[int] = []  # listeners at which order is not judged
    published: list[str] = []  # protocols of which there is only what devices published: order is no promise

    def without(self, names: set[str]) -> Plan:
        """The same, some segments left out."""
        skip = {i for i, entry in enumerate(self.segments) if Segment(*entry[0]).name in names}
        tasks = [dict(task) for task in self.tasks]
        for task in tasks:
            task["segments"] = [i for i in task.get("segments", ()) if i not in skip]
        return self._replace(tasks=tasks)

    def save(self) -> None:
        with open(os.path.join(self.work, "plan.json"), "w") as file:
            json.dump(self._asdict(), file)

    @classmethod
    def load(cls, work: str) -> Plan:
        with open(os.path.join(work, "plan.json")) as file:
            return cls(**json.load(file))


def reduce_task(
    batches: Iterable[pa.RecordBatch], work: str, later: dict[tuple[int, int], int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Judge the rows of one partition, which come by key, listener and x.

    Args:
        later: a second pass over some buckets: (bucket, listener) -> the earliest first copy of all
            later buckets. Only the order is judged then.
    """
    plan = Plan.load(work)
    packed = Ledger(work, plan.bits)
    writer = _Violations(plan.violations, packed)
    times = Times(Grid(*plan.grid), plan.families)
    stretches = _Stretches(work)
    tails = _Tails(work)
    current: _Bucket | _Phantoms | _Pool | None = None
    key: int | None = None
    out: list[dict[str, Any]] = []

    def finish() -> None:
        if current is not None:
            out.extend(current.finish())

    for batch in batches:
        for row in batch.to_pylist():
            if row["key"] != key:
                finish()
                key = row["key"]
                if key == FACT:
                    current = None
                elif key >= 0:
                    current = _Bucket(plan, packed, writer, times, tails, key, later)
                elif key > POOL:
                    current = _Phantoms(plan, packed, writer, key)
                else:
                    current = _Pool(plan, packed, writer, times, key)
            if current is None:
                text = stretches.read(row, "offs", np.uint8).tobytes()
                out.append(_result("fact", FACT, text=text.decode()))
                continue
            if not row["n"]:
                continue  # skeleton
            offs = stretches.read(row, "offs", np.int32)
            hashes = stretches.read(row, "hashes", np.uint64)
            xs = stretches.read(row, "xs", np.int64)
            if isinstance(current, _Bucket):
                after = stretches.read(row, "after", np.uint32).astype(np.int64)
                received = (after << row["shift"]) + row["received_us"]
                if int(after.max()) == TIMELESS:
                    received[after == TIMELESS] = NEVER
                current.add(row["listener"], offs, hashes, xs, received)
            else:
                current.add(row["listener"], offs, hashes, xs, stretches.read(row, "after", np.uint64))
        if len(out) >= 256:
            yield _results(out)
            out = []
    finish()
    for name, family, keys, counts in times.rows():
        out.append(_result("times", FACT, family, name, keys.tobytes(), counts.tobytes()))
    stretches.close()
    tails.close()
    name = writer.close()
    if name:
        out.append(_result("file", FACT, text=name))
    yield _results(out)


def reduce_to_file(
    batches: Iterable[pa.RecordBatch], work: str, later: dict[tuple[int, int], int] | None = None
) -> str:
    """`reduce_task`, its rows written to a file of this attempt alone; returns the file's name."""
    return _save(work, reduce_task(batches, work, later))


def save_results(work: str, rows: list[dict[str, Any]]) -> str:
    """Put some rows into a file of their own; returns its name."""
    return _save(work, [_results(rows)])


def _save(work: str, batches: Iterable[pa.RecordBatch]) -> str:
    name = f"{uuid.uuid4().hex}.results"
    with open(os.path.join(work, name), "xb") as file, pa.ipc.new_stream(file, RESULTS) as out:
        for batch in batches:
            out.write_batch(batch)
    return name


def results(work: str, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """The rows of some files, a few hundred at a time."""
    for name in names:
        with open(os.path.join(work, name), "rb") as file, pa.ipc.open_stream(file) as rows:
            yield from rows


class _Stretches:
    """Reads what rows stand for."""

    OPEN = 64  # files at a time

    def __init__(self, work: str) -> None:
        self.work = work
        self._files: dict[str, IO[bytes]] = {}

    def read(self, row: dict[str, Any], column: str, dtype: Any) -> npt.NDArray[Any]:
        at = row[column]
        if at is None:
            return np.empty(0, dtype)
        file = self._files.get(row["file"])
        if file is None:
            if len(self._files) >= self.OPEN:
                self.close()
            file = open(os.path.join(self.work, row["file"]), "rb", buffering=0)  # noqa: SIM115
            self._files[row["file"]] = file
        size = row["n"] * np.dtype(dtype).itemsize
        file.seek(at)
        data = file.read(size)
        if len(data) != size:
            raise EOFError(f"{row['file']}: {len(data)} bytes at {at} where {size} were written")
        return np.frombuffer(data, dtype)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _Tails:
    """The latest arrivals of buckets, in a file of the work folder that is this attempt's alone."""

    def __init__(self, work: str) -> None:
        self.name = f"{uuid.uuid4().hex}.tails"
        self._path = os.path.join(work, self.name)
        self._file: IO[bytes] | None = None

    def write(self, offs: I64, xs: I64) -> int:
        """Where in the file they are now; see `read_tail`."""
        if self._file is None:
            self._file = open(self._path, "xb")  # noqa: SIM115
        at = self._file.tell()
        self._file.write(np.stack((offs, xs)).astype(np.int64).tobytes())
        return at

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_tail(work: str, name: str, at: int, n: int) -> tuple[I64, I64]:
    """Sequences in the bucket, and when each arrived."""
    offs, xs = np.fromfile(os.path.join(work, name), np.int64, 2 * n, offset=at).reshape(2, n)
    return offs, xs


def _result(
    kind: str, key: int, listener: int = -1, text: str = "", offs: bytes = b"", xs: bytes = b"", p: int = -1
) -> dict[str, Any]:
    return {"kind": kind, "key": key, "p": p, "listener": listener, "head": text, "offs": offs, "xs": xs}


def _results(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=RESULTS)


class _Violations:
    """Writes every fault to a Parquet file of its own; nothing when no folder is wanted."""

    def __init__(self, folder: str, packed: Ledger) -> None:
        self.folder = folder
        self.name = ""
        self.packed = packed
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[pa.RecordBatch] = []
        self._count = 0

    def add(self, kind: str, p: int, first: I64, last: I64, copies: I64 | int, sent: bool) -> None:
        """Ranges of sequences of one producer."""
        if not self.folder or not len(first):
            return
        n = len(first)
        self._add(
            [
                pa.repeat(pa.scalar(kind), n),
                pa.repeat(pa.scalar(self.packed.name(p)), n),
                pa.array(first, pa.int64()),
                pa.array(last, pa.int64()),
                pa.array(np.broadcast_to(np.asarray(copies, np.int64), n)),
                pa.repeat(pa.scalar(sent), n),
                pa.nulls(n, pa.string()),
            ]
        )

    def strangers(self, kind: str, rows: list[tuple[str | None, int | None, str | None, int]]) -> None:
        """Ids of nobody in the ledger: (producer, sequence, other, copies)."""
        if not self.folder or not rows:
            return
        producer, sequence, other, copies = zip(*rows, strict=True)
        n = len(rows)
        self._add(
            [
                pa.repeat(pa.scalar(kind), n),
                pa.array(producer, pa.string()),
                pa.array(sequence, pa.int64()),
                pa.array(sequence, pa.int64()),
                pa.array(copies, pa.int64()),
                pa.repeat(pa.scalar(False), n),
                pa.array(other, pa.string()),
            ]
        )

    def _add(self, columns: list[pa.Array]) -> None:
        self._rows.append(pa.record_batch(columns, schema=VIOLATIONS))
        self._count += len(columns[0])
        if self._count >= 1 << 17:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            # A name of its own for each attempt: the driver keeps those of the attempts that count.
            self.name = f"{uuid.uuid4().hex}.parquet"
            self._writer = pq.ParquetWriter(
                os.path.join(self.folder, self.name), VIOLATIONS, compression="zstd"
            )
        self._writer.write_table(pa.Table.from_batches(self._rows, VIOLATIONS))
        self._rows.clear()
        self._count = 0

    def close(self) -> str:
        """The name of the file, empty when there was nothing to write."""
        if self._rows:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        return self.name


def runs(where: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
    """First and last index of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], where, [False])).astype(np.int8)))
    return edges[::2], edges[1::2] - 1


class _Bucket:
    """What arrived of one bucket, folded row by row."""

    def __init__(
        self,
        plan: Plan,
        packed: Ledger,
        writer: _Violations,
        times: Times,
        tails: _Tails,
        key: int,
        later: dict[tuple[int, int], int] | None,
    ) -> None:
        self.tails = tails
        self.plan = plan
        self.ledger = packed
        self.writer = writer
        self.times = times
        self.key = key
        self.later = later
        self.bucket = packed.bucket(key)
        self.family = int(packed.family[self.bucket.producer])
        n = len(self.bucket.hashes)
        self.copies = np.zeros(n, np.int32)
        self.place = np.empty(n, np.int32)  # scratch
        self.bad = np.zeros(n, bool)
        self.bad_at: dict[int, tuple[int, int]] = {}
        self.arrivals: dict[int, list[int]] = {}  # listener -> how many, and of them with another hash
        self.first: dict[int, I64] = {}  # listener -> where the first copy of each event arrived
        self.received = np.full(n, NEVER, np.int64)  # of the first copy at any listener

    def add(self, listener: int, offs: npt.NDArray[np.int32], hashes: U64, xs: I64, received: I64) -> None:
        n = len(self.copies)
        first = self.first.get(listener)
        if first is None:
            if len(self.first) >= DEVICES and listener >> LISTENER_BITS:
                listener = (listener & LISTENER) + (OTHERS << LISTENER_BITS)
            first = self.first.setdefault(listener, np.full(n, NEVER, np.int64))
        told = self.arrivals.setdefault(listener & LISTENER, [0, 0])
        told[0] += len(offs)
        low = int(offs[0])
        if int(offs[-1]) - low == len(offs) - 1 and bool((offs[1:] - offs[:-1] == 1).all()):
            # In order and without a hole, the way most rows come: slices instead of gathers.
            where = slice(low, low + len(offs))
            wrong = hashes != self.bucket.hashes[where]
            self.copies[where] += 1
            before = first[where]
            if int(before.min()) == NEVER:
                first[where] = xs
            else:
                np.minimum(before, xs, out=before)
            mine = self.received[where]
            np.minimum(mine, received, out=mine)
        else:
            wrong = hashes != self.bucket.hashes[offs]
            # The first copy of each in this row: written from behind, it is what stays.
            order = np.arange(len(offs), dtype=np.int32)
            self.place[offs[::-1]] = order[::-1]
            again = self.place[offs] != order
            if again.any():
                some, rest = ~again, offs[again]
                np.add.at(self.copies, rest, 1)  # they come later than the first
                np.minimum.at(self.received, rest, received[again])
                offs_, xs_, received_ = offs[some], xs[some], received[some]
            else:
                offs_, xs_, received_ = offs, xs, received
            self.copies[offs_] += 1
            first[offs_] = np.minimum(first[offs_], xs_)
            self.received[offs_] = np.minimum(self.received[offs_], received_)
        if wrong.any():
            which = np.flatnonzero(wrong)
            told[1] += len(which)
            self.bad[offs[which]] = True
            for i in which[: self.plan.examples].tolist():
                self.bad_at.setdefault(int(offs[i]), (listener, int(xs[i])))

    def finish(self) -> Iterator[dict[str, Any]]:
        bucket = self.bucket
        state, counted = self.states()
        listed = bucket.listed if bucket.pooled is None else bucket.listed & ~bucket.pooled
        late, keeps, late_at = self.order(self.in_order(listed))
        if self.later is not None:
            yield from self.second(late, keeps)
            return
        seen = self.copies > 0
        twice = listed & (self.copies > 1)
        head: dict[str, Any] = {
            "p": bucket.producer,
            "counts": np.bincount(state, minlength=EXCLUDED + 1)[:EXCLUDED].tolist(),
            "sent": [int((counted & (state == LOST)).sum()), int((counted & (state == MISSING)).sum())],
            "duplicated": int(self.copies[twice].sum() - twice.sum()),
            "reordered": int(late.sum()),
            "gaps": self.gaps(counted & ((state == LOST) | (state == MISSING))),
            "at": self.at(listed, late_at),
        }
        head["when"] = self.when(state, late, head["counts"])
        arrived = listed & seen & (state != UNKNOWN)
        timed = arrived & (self.received != NEVER)
        if bool(timed.any()):
            head["latency"], head["early"] = self.latency(timed)
        if int(timed.sum()) < int(arrived.sum()):
            self.times.add(self.family, bucket.created_us[arrived & ~timed], OK)
        head["examples"] = self.examples(state, twice, late)
        self.write(state, counted, twice, late)
        places = self.overview(state, counted, twice, late)
        yield _result("bucket", self.key, -1, json.dumps(head), *places, p=bucket.producer)
        yield from self.edges(keeps)

    def at(self, listed: npt.NDArray[np.bool_], late: dict[int, int]) -> list[list[int]]:
        """What came to each listener: its number, listed events, copies of them there beyond the first, of
        them with another hash, reordered."""
        out = []
        for listener, (n, wrong) in sorted(self.arrivals.items()):
            some = [first for key, first in self.first.items() if key & LISTENER == listener]
            seen = some[0] != NEVER
            for first in some[1:]:
                seen |= first != NEVER
            # What is not listed is none of the copies, and has no hash that it could differ from.
            strange = seen & ~listed
            if strange.any():
                m = int(self.copies[strange].sum()) if len(self.arrivals) == 1 else int(strange.sum())
                n, wrong = n - m, max(wrong - m, 0)
                seen &= listed
            distinct = int(np.count_nonzero(seen))
            out.append([listener, distinct, max(n - distinct, 0), wrong, late.get(listener, 0)])
        return out

    def when(
        self, state: npt.NDArray[np.int8], late: npt.NDArray[np.bool_], counts: list[int]
    ) -> dict[str, list[int]]:
        """When the first and the last event of each fault was made, of those that are listed."""
        faults = [
            (STATES[code], (state == code) & self.bucket.listed)
            for code in (LOST, MISSING, RECOVERED, CORRUPTED, UNKNOWN, PENDING)
            if counts[code]
        ]
        out = {}
        for word, which in (*faults, ("reordered", late)):
            if which.any():
                made = self.bucket.created_us[which]
                out[word] = [int(made.min()), int(made.max())]
        return out

    def edges(self, keeps: dict[int, tuple[int, I64, I64]]) -> Iterator[dict[str, Any]]:
        """What the order across buckets needs: nothing of a producer's only one, no tail of its last."""
        p = self.bucket.producer
        live = self.ledger.live
        at, low, high = np.searchsorted(live, (self.key, *self.ledger.bases[p : p + 2])).tolist()
        if high - low < 2:
            return
        for listener, (minimum, offs, xs) in keeps.items():
            head: dict[str, Any] = {"min": minimum}
            if at < high - 1 and len(xs):
                some = slice(-self.plan.tail, None)
                head |= {
                    "max": int(xs[-1]),
                    "cut": len(xs) > self.plan.tail,
                    "tail": [self.tails.name, self.tails.write(offs[some], xs[some]), len(xs[some])],
                }
            yield _result("order", self.key, listener, json.dumps(head), p=p)

    def states(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
        """The state of each sequence, and which of them were sent and are judged here."""
        bucket = self.bucket
        n = len(self.copies)
        seen = self.copies > 0
        sure = bucket.fate >= HANDED
        acked = bucket.fate == ACKED
        # Sent: by fate and by what was seen.
        state = np.where(
            seen,
            np.where(self.bad, CORRUPTED, np.where(sure, OK, RECOVERED)),
            np.where(acked, LOST, MISSING),
        ).astype(np.int8)
        if not self.ledger.whole[bucket.producer]:
            state[~seen & (bucket.fate == NONE)] = UNKNOWN
        if bucket.owned is not None:
            state[self.bad & bucket.owned] = UNKNOWN
        if not bucket.listed.all():
            dropped = bucket.fate == DROPPED
            unlisted = np.where(
                seen,
                np.where(dropped, UNEXPECTED, UNKNOWN),
                np.where(dropped, DROPPED_, np.where(bucket.fate == FAILED, MISSING, UNKNOWN)),
            )
            state = np.where(bucket.listed, state, unlisted).astype(np.int8)
        since = int(self.ledger.since[bucket.producer])
        if since < bucket.first + n - 1:
            told = max(since + 1 - bucket.first, 0)
            untold = (state[told:] == UNKNOWN) & ~(seen[told:] & bucket.listed[told:])
            state[told:][untold] = PENDING
        counted = bucket.listed
        if bucket.pooled is not None:
            state[bucket.pooled] = EXCLUDED
            counted = counted & ~bucket.pooled
        return state, counted

    def in_order(self, listed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The events whose order is judged."""
        bucket = self.bucket
        if bucket.deferred is not None:
            # A suspect of the producer's was set aside, and others went ahead of it on purpose.
            listed = listed & ~bucket.deferred
        if not self.ledger.whole[bucket.producer]:
            # That is written before the fate is known, and may be where the ledger ends.
            listed = listed & (bucket.fate != NONE)
        return listed

    def order(
        self, listed: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.bool_], dict[int, tuple[int, I64, I64]], dict[int, int]]:
        """Who is late inside the bucket at any listener; for each listener the earliest first copy, and
        sequence and arrival of those that are in order so far; and how many are late there."""
        late = np.zeros(len(self.copies), bool)
        kept: dict[int, tuple[int, I64, I64]] = {}
        late_at: dict[int, int] = {}
        if not self.plan.ordered:
            return late, kept, late_at
        for listener, first in self.first.items():
            if listener >> LISTENER_BITS == OTHERS or listener & LISTENER in self.plan.unjudged:
                continue
            which = np.flatnonzero(listed & (first != NEVER))
            if not len(which):
                continue
            z = first[which]
            after = np.minimum.accumulate(z[::-1])[::-1]
            good = np.ones(len(z), bool)
            good[:-1] = z[:-1] < after[1:]
            late[which[~good]] = True
            place = listener & LISTENER
            late_at[place] = late_at.get(place, 0) + len(z) - int(np.count_nonzero(good))
            kept[listener] = int(after[0]), which[good], z[good]
        if len(kept) > 1 and late.any():
            # Counted already, whatever later buckets say at another listener.
            kept = {
                listener: (minimum, which[~late[which]], z[~late[which]])
                for listener, (minimum, which, z) in kept.items()
            }
        return late, kept, late_at

    def second(
        self, late: npt.NDArray[np.bool_], keeps: dict[int, tuple[int, I64, I64]]
    ) -> Iterator[dict[str, Any]]:
        """Second pass: who else is late, now that the later minimum is known."""
        assert self.later is not None
        more = np.zeros(len(late), bool)
        at: dict[int, tuple[int, int]] = {}
        late_at: dict[int, int] = {}
        for listener, (_, which, z) in keeps.items():
            behind = z > self.later.get((self.key, listener), NEVER)
            more[which[behind]] = True
            place = listener & LISTENER
            late_at[place] = late_at.get(place, 0) + int(np.count_nonzero(behind))
            for i in np.flatnonzero(behind)[: self.plan.examples].tolist():
                at.setdefault(int(which[i]), (listener, int(z[i])))
        first, last = runs(more)
        self.writer.add(
            "reordered", self.bucket.producer, first + self.bucket.first, last + self.bucket.first, 1, True
        )
        examples = [[self.bucket.first + off, *at[off]] for off in sorted(at)[: self.plan.examples]]
        places = Places(int(self.ledger.last[self.bucket.producer]))
        which = np.flatnonzero(more)
        self.times.add(self.family, self.bucket.created_us[which], REORDERED)
        places.add(which + self.bucket.first, REORDERED)
        head = {
            "p": self.bucket.producer, "reordered": len(which), "examples": examples,
            "at": [[listener, 0, 0, 0, n] for listener, n in late_at.items() if n],
            "when": self.when(np.zeros(0, np.int8), more, [0] * EXCLUDED),
        }  # fmt: skip
        yield _result("again", self.key, -1, json.dumps(head), *places.row(), p=self.bucket.producer)

    def gaps(self, unseen: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """Runs of events that never arrived: those at the edges apart, the driver joins them."""
        if not unseen.any():
            return {}
        first, last = runs(unseen)
        n = len(unseen)
        sizes = last - first + 1
        out: dict[str, Any] = {"n": n, "first": self.bucket.first, "left": 0, "right": 0}
        if int(first[0]) == 0:
            out["left"] = int(sizes[0])
            first, sizes = first[1:], sizes[1:]
        if len(first) and int(first[-1] + sizes[-1]) == n:
            out["right"] = int(sizes[-1])
            first, sizes = first[:-1], sizes[:-1]
        out["inside"] = len(first)
        top = np.argsort(-sizes, kind="stable")[:5]
        out["longest"] = [[int(first[i]) + self.bucket.first, int(sizes[i])] for i in top]
        return out

    def latency(self, which: npt.NDArray[np.bool_]) -> tuple[list[list[int]], list[int]]:
        """[cell, count] pairs behind the longest, see `cell`; how many were early, and by how much."""
        created, received = self.bucket.created_us, self.received
        if not which.all():
            created, received = created[which], received[which]
        took = self.times.took(self.family, created, received)
        used = np.flatnonzero(took.counts)
        cells = np.stack((used + took.first, took.counts[used]), axis=1).tolist()
        return [[took.longest, 0], *cells], [took.early, took.early_us]

    def overview(
        self,
        state: npt.NDArray[np.int8],
        counted: npt.NDArray[np.bool_],
        twice: npt.NDArray[np.bool_],
        late: npt.NDArray[np.bool_],
    ) -> tuple[bytes, bytes]:
        """Count what is not as it should be over time and over the sequences: the row of the latter."""
        odd = np.flatnonzero((state != OK) & (state != EXCLUDED))
        again, behind = np.flatnonzero(twice), np.flatnonzero(late)
        if not (len(odd) or len(again) or len(behind)):
            return b"", b""
        created = self.bucket.created_us
        places = Places(int(self.ledger.last[self.bucket.producer]))
        if len(odd):
            kind = state[odd]
            sent = counted[odd]
            kind[sent & (kind == LOST)] = LOST_SENT
            kind[sent & (kind == MISSING)] = MISSING_SENT
            self.times.add(self.family, created[odd[sent]], kind[sent])
            places.add(odd + self.bucket.first, kind)
        extra = self.copies[again].astype(np.int64) - 1
        for which, what, n in ((again, DUPLICATED, extra), (behind, REORDERED, None)):
            self.times.add(self.family, created[which], what, n)
            places.add(which + self.bucket.first, what, n)
        return places.row()

    def examples(
        self, state: npt.NDArray[np.int8], twice: npt.NDArray[np.bool_], late: npt.NDArray[np.bool_]
    ) -> dict[str, list[list[int]]]:
        """Some of each fault: [sequence, listener, x, copies, sent]; listener -1: it never arrived."""
        out: dict[str, list[list[int]]] = {}
        limit = self.plan.examples
        faults = [(STATES[code], state == code) for code in range(1, PENDING) if code != DROPPED_]
        for word, which in [*faults, ("duplicated", twice), ("reordered", late)]:
            if not which.any():
                continue
            rows = []
            # A bad copy is what shows; there are as many of them as examples.
            some = sorted(off for off in self.bad_at if which[off]) if word == "corrupted" else []
            for off in some[:limit] or np.flatnonzero(which)[:limit].tolist():
                listener, x = self.bad_at[off] if some else (-1, 0)
                if not some and self.copies[off]:
                    listener, x = min(
                        (i, int(first[off])) for i, first in self.first.items() if first[off] != NEVER
                    )
                rows.append(
                    [
                        self.bucket.first + off,
                        listener,
                        x,
                        int(self.copies[off]),
                        bool(self.bucket.listed[off]),
                    ]
                )
            out[word] = rows
        return out

    def write(
        self,
        state: npt.NDArray[np.int8],
        counted: npt.NDArray[np.bool_],
        twice: npt.NDArray[np.bool_],
        late: npt.NDArray[np.bool_],
    ) -> None:
        if not self.writer.folder:
            return
        p, base = self.bucket.producer, self.bucket.first
        for code in range(1, EXCLUDED):
            which = state == code
            if which.any():
                for sent in (True, False):
                    first, last = runs(which & (counted == sent))
                    # Copies may differ along a run: told exactly under `duplicated`.
                    self.writer.add(
                        STATES[code], p, first + base, last + base, self.copies[first].astype(np.int64), sent
                    )
        for copies in np.unique(self.copies[twice]).tolist():
            first, last = runs(twice & (self.copies == copies))
            self.writer.add("duplicated", p, first + base, last + base, copies, True)
        first, last = runs(late)
        self.writer.add("reordered", p, first + base, last + base, self.copies[first].astype(np.int64), True)


class _Phantoms:
    """Distinct ids that are no event of a bucket. Memory: one of `PHANTOMS` shares of the distinct ones."""

    COMPACT = 1 << 20

    def __init__(self, plan: Plan, packed: Ledger, writer: _Violations, key: int) -> None:
        self.plan = plan
        self.ledger = packed
        self.writer = writer
        self.key = key
        self.whole: npt.NDArray[Any] = np.empty(0, self.ROW)
        self.parts: list[npt.NDArray[Any]] = []
        self.waiting = 0

    ROW = np.dtype(
        [
            ("whose", np.int32),
            ("listener", np.int64),
            ("a", np.uint64),
            ("b", np.uint64),
            ("x", np.int64),
            ("n", np.int64),
        ]
    )

    def add(self, listener: int, whose: npt.NDArray[np.int32], a: U64, xs: I64, b: U64) -> None:
        part = np.empty(len(whose), self.ROW)
        part["whose"], part["listener"], part["a"], part["b"], part["x"], part["n"] = (
            whose,
            listener,
            a,
            b,
            xs,
            1,
        )
        self.parts.append(part)
        self.waiting += len(part)
        if self.waiting > max(self.COMPACT, len(self.whole)):
            self.compact()

    def compact(self) -> None:
        rows = np.concatenate((self.whole, *self.parts))
        self.parts.clear()
        self.waiting = 0
        rows = rows[np.lexsort((rows["x"], rows["listener"], rows["b"], rows["a"], rows["whose"]))]
        if len(rows):
            same = (rows["whose"][1:] == rows["whose"][:-1]) & (rows["a"][1:] == rows["a"][:-1])
            starts = np.flatnonzero(np.concatenate(([True], ~(same & (rows["b"][1:] == rows["b"][:-1])))))
            copies = np.add.reduceat(rows["n"], starts)
            rows = rows[starts]
            rows["n"] = copies
        self.whole = rows

    def finish(self) -> Iterator[dict[str, Any]]:
        self.compact()
        rows = self.whole
        for p in np.unique(rows["whose"]).tolist():
            mine = rows[rows["whose"] == p]
            yield self.known(p, mine) if p >= 0 else self.strange(p, mine)

    def known(self, p: int, rows: npt.NDArray[Any]) -> dict[str, Any]:
        packed = self.ledger
        sequences = rows["a"].astype(np.int64)
        fate = packed.fates_at(p, sequences)
        inside = (sequences >= 1) & (sequences <= packed.last[p])
        beyond = ~inside & ((sequences < 1) | packed.whole[p])
        untold = np.where(sequences > packed.since[p], PENDING, UNKNOWN)
        state = np.where((fate == DROPPED) | beyond, UNEXPECTED, untold)
        # What the driver has counted as never seen.
        was = np.where(fate == DROPPED, DROPPED_, np.where(fate == FAILED, MISSING, untold))[inside]
        head: dict[str, Any] = {"p": p, "was": np.bincount(was, minlength=EXCLUDED).tolist(), "examples": {}}
        for code in (UNEXPECTED, UNKNOWN, PENDING):
            which = state == code
            head[STATES[code]] = [int((which & inside).sum()), int((which & ~inside).sum())]
            some = rows[which]
            self.writer.add(STATES[code], p, sequences[which], sequences[which], some["n"], False)
            if len(some) and code != PENDING:
                head["examples"][STATES[code]] = [
                    [int(row["a"]), int(row["listener"]), int(row["x"]), int(row["n"]), False]
                    for row in some[: self.plan.examples]
                ]
        # The driver tells the ranges of what was never seen: these are not part of them.
        return _result(
            "phantom", self.key, text=json.dumps(head), xs=np.sort(sequences[inside]).tobytes(), p=p
        )

    def strange(self, p: int, rows: npt.NDArray[Any]) -> dict[str, Any]:
        named = ((*name(p, row["a"], row["b"]), row) for row in rows)
        return _nobodys(self.plan, self.ledger, self.writer, self.key, p, len(rows), named)


def _nobodys(
    plan: Plan,
    packed: Ledger,
    writer: _Violations,
    key: int,
    p: int,
    n: int,
    named: Iterator[tuple[str | None, int | None, str | None, Any]],
) -> dict[str, Any]:
    """The row of `n` things that are nobody's: whose lines may be what is missing of the ledgers."""
    word = STATES[UNEXPECTED if packed.all_whole else UNKNOWN]
    examples: list[list[Any]] = []
    while some := list(itertools.islice(named, 1 << 16 if writer.folder else plan.examples)):
        writer.strangers(word, [(producer, seq, other, int(row["n"])) for producer, seq, other, row in some])
        for *ident, row in some[: plan.examples - len(examples)]:
            examples.append([*ident, int(row["listener"]), int(row["x"]), int(row["n"])])
        if not writer.folder:
            break
    head = {"p": p, word: n, "examples": {word: examples}}
    return _result("phantom", key, text=json.dumps(head))


def name(p: int, a: Any, b: Any) -> tuple[str | None, int | None, str | None]:
    """(producer, sequence, other) of an id that is nobody's."""
    a, b = int(a), int(b)
    if p == STRANGER:
        return f"{a:016x}{b >> 48:04x}", b & LAST_SEQUENCE, None
    if p == USERS_OWN:
        return None, None, f"{a:016x}{b:016x}"
    return None, None, f"{a:016x}"


def _segments(rows: npt.NDArray[Any]) -> tuple[U64, U64]:
    """The listeners of rows of `_Pool.ARRIVED`, and the ranks of the segments among theirs."""
    ranks = rows["x"] >> (UNIT_BITS + EVENT_BITS)
    return (rows["listener"] & LISTENER).astype(np.uint64), ranks.astype(np.uint64)


def _summed(rows: npt.NDArray[Any], keys: U64) -> npt.NDArray[Any]:
    """The first row of each key, with what all of them count; `keys` are in order."""
    starts = np.flatnonzero(np.concatenate(([True], (keys[1:] != keys[:-1]).any(axis=1))))
    counts = np.add.reduceat(rows["n"], starts)
    rows = rows[starts]
    rows["n"] = counts
    return rows


class _Pool:
    """A share of the hashes: events of the ledgers without an id of their own, and what arrived without one.

    The copies of one body cannot be told apart. As many as arrived are said to be seen, acknowledged
    ones first: `lost` is what no assignment could explain.
    """

    def __init__(self, plan: Plan, packed: Ledger, writer: _Violations, times: Times, key: int) -> None:
        self.plan = plan
        self.packed = packed
        self.writer = writer
        self.times = times
        self.key = key
        self.ledger: list[npt.NDArray[Any]] = []
        self.arrived = np.empty(0, self.ARRIVED)
        self.parts: list[npt.NDArray[Any]] = []
        self.waiting = 0

    LEDGER = np.dtype(
        [
            ("hash", np.uint64),
            ("whose", np.int32),
            ("sequence", np.int64),
            ("fate", np.int32),
            ("created_us", np.int64),
        ]
    )
    ARRIVED = np.dtype([("hash", np.uint64), ("n", np.int64), ("listener", np.int64), ("x", np.int64)])

    def add(self, listener: int, whose: npt.NDArray[np.int32], hashes: U64, xs: I64, fate: U64) -> None:
        if listener < 0:
            rows = np.empty(len(hashes), self.LEDGER)
            rows["hash"], rows["whose"], rows["sequence"] = hashes, whose, xs
            # What `gather` put together: the fate, and when it was made in steps of the grid.
            rows["fate"] = fate & np.uint64(7)
            rows["created_us"] = self.times.grid.start_us
            rows["created_us"] += (fate >> np.uint64(3)).astype(np.int64) * self.times.grid.width_us
            self.ledger.append(rows)
            return
        part = np.empty(len(hashes), self.ARRIVED)
        part["hash"], part["n"], part["listener"], part["x"] = hashes, 1, listener, xs
        self.parts.append(part)
        self.waiting += len(part)
        if self.waiting > max(1 << 20, len(self.arrived)):
            self.compact()

    def compact(self) -> None:
        rows = np.concatenate((self.arrived, *self.parts))
        self.parts.clear()
        self.waiting = 0
        if len(rows):
            rows = rows[np.lexsort((rows["x"], rows["listener"], rows["hash"]))]
            self.arrived = _summed(rows, np.stack((rows["hash"], *_segments(rows)), axis=1))

    def finish(self) -> Iterator[dict[str, Any]]:
        self.compact()
        rows = np.concatenate(self.ledger) if self.ledger else np.empty(0, self.LEDGER)
        rows = rows[np.lexsort((rows["sequence"], rows["whose"], -rows["fate"], rows["hash"]))]
        starts = (
            np.concatenate(([True], rows["hash"][1:] != rows["hash"][:-1]))
            if len(rows)
            else np.empty(0, bool)
        )
        group = np.cumsum(starts) - 1
        begins = np.flatnonzero(starts)
        nth = np.arange(len(rows)) - begins[group] if len(rows) else np.empty(0, np.int64)
        hashes = rows["hash"][begins]
        come = self.arrived
        if len(come):
            ours = come[np.isin(come["hash"], hashes)]
            for listener, rank in np.unique(np.stack(_segments(ours), axis=1), axis=0).tolist():
                yield _result("matched", self.key, int(listener), json.dumps(int(rank)))
            come = _summed(come, come["hash"][:, None])
        have = come["hash"]
        copies = np.zeros(len(hashes), np.int64)
        matched = np.zeros(len(have), bool)
        if len(have) and len(hashes):
            at = np.minimum(np.searchsorted(have, hashes), len(have) - 1)
            hit = have[at] == hashes
            copies[hit] = come["n"][at[hit]]
            matched[at[hit]] = True
        seen = nth < copies[group] if len(rows) else np.empty(0, bool)
        sure, acked = rows["fate"] >= HANDED, rows["fate"] == ACKED
        whose = rows["whose"]
        untold = np.where(rows["sequence"] > self.packed.since[whose], PENDING, UNKNOWN)
        open_ = (rows["fate"] == NONE) & ~self.packed.whole[whose]
        unseen = np.where(acked, LOST, np.where(open_, untold, MISSING))
        state = np.where(seen, np.where(sure, OK, RECOVERED), unseen)
        sizes = np.diff(np.append(begins, len(rows)))
        extra = np.maximum(copies - sizes, 0)
        leading = rows["whose"][begins]
        for p in np.unique(rows["whose"]).tolist():
            mine = rows["whose"] == p
            family = int(self.packed.family[p])
            places = Places(int(self.packed.last[p]))
            self.times.add(family, rows["created_us"][mine & seen], OK)
            head: dict[str, Any] = {
                "p": p,
                "counts": np.bincount(state[mine], minlength=EXCLUDED).tolist(),
                "duplicated": int(extra[leading == p].sum()),
                "examples": {},
                "when": {},
            }
            for code in (LOST, MISSING, RECOVERED, UNKNOWN, PENDING):
                some = mine & (state == code)
                sequences = np.sort(rows["sequence"][some])
                kind = {LOST: LOST_SENT, MISSING: MISSING_SENT}.get(code, code)
                self.times.add(family, rows["created_us"][some], kind)
                places.add(sequences, kind)
                self.writer.add(STATES[code], p, sequences, sequences, int(code == RECOVERED), True)
                if len(sequences):
                    made = rows["created_us"][some]
                    head["when"][STATES[code]] = [int(made.min()), int(made.max())]
                if len(sequences) and code != PENDING:
                    head["examples"][STATES[code]] = [
                        [s, -1, 0, 0, True] for s in sequences[: self.plan.examples].tolist()
                    ]
            which = np.flatnonzero((leading == p) & (extra > 0))
            sequences = rows["sequence"][begins[which]]
            self.times.add(family, rows["created_us"][begins[which]], DUPLICATED, extra[which])
            places.add(sequences, DUPLICATED, extra[which])
            self.writer.add("duplicated", p, sequences, sequences, extra[which] + sizes[which], True)
            yield _result("pool", self.key, -1, json.dumps(head), *places.row(), p=p)
        strange = come[~matched]
        if len(strange):
            named = ((*name(NOBODY, row["hash"], 0), row) for row in strange)
            yield _nobodys(self.plan, self.packed, self.writer, self.key, NOBODY, len(strange), named)
