"""From the results of the reduce tasks to the verdict: sums, order across buckets, words, exit code.

The words are those of Jepsen's checks of queues. Each sequence that a producer made is exactly one of
``ok``, ``lost``, ``missing``, ``recovered``, ``corrupted``, ``dropped``, ``unexpected``, ``unknown``,
``pending``; it may be ``duplicated`` and ``reordered`` besides, and ``unexpected``, ``unknown`` and
``pending`` also count distinct ids beyond all that was made. ``docs/verify.md`` has a table.
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logclient.config import all_options
from logclient.errors import ConfigError, ExitCode
from logclient.verify import captures, compare
from logclient.verify.compare import (
    LISTENER,
    LOST,
    MISSING,
    NEVER,
    PENDING,
    STATES,
    UNEXPECTED,
    UNKNOWN,
    Example,
    Plan,
)
from logclient.verify.decode import QUIET
from logclient.verify.devices import FOLLOWED, Device, joined
from logclient.verify.ledger import (
    DROPPED,
    EVIDENCE,
    FAILED,
    HOLES,
    I64,
    LAST_SEQUENCE,
    UNCLOSED,
    WHOLE,
    Ledger,
    intersect,
    length,
    subtract,
    union,
)
from logclient.verify.overview import (
    CELLS,
    DUPLICATED,
    KINDS,
    LOST_SENT,
    MISSING_SENT,
    REORDERED,
    Grid,
    Places,
    Times,
    cell_value,
)
from logclient.verify.sources import Problem

__all__ = ["Counts", "Latency", "Limits", "Map", "ProducerVerdict", "Tally", "Timeline", "Verdict"]

FORMAT = 1

#: What breaks the promise; `reordered` only where the protocol promises order.
BREAKING = ("lost", "corrupted", "unexpected", "reordered")

#: What distinct ids are that nobody made.
BEYOND = ("unexpected", "unknown", "pending")

#: Protocols whose promise includes order, of what is acknowledged.
ORDERED = ("lumberjack", "logjam")
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
MOST_NAMED = 200  # producers of which examples are kept, for each word
CLOCK_US = 1_000  # less is no word: times are kept to some microseconds
MAPS = 50  # producers whose faults are told by place
LISTED = 1000  # producers, problems, listeners and URLs that a verdict names: it stays small with very many
SHARE = 1 << 14  # producers that are counted at a time
SOME = 256  # rows that are written together


class Counts(NamedTuple):
    """How many of each. ``duplicated`` counts the copies beyond the first, all others count ids."""

    events: int = 0
    ok: int = 0
    lost: int = 0
    missing: int = 0
    recovered: int = 0
    duplicated: int = 0
    unexpected: int = 0
    corrupted: int = 0
    reordered: int = 0
    dropped: int = 0
    unknown: int = 0
    pending: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class Latency(NamedTuple):
    """From ``send`` to the collector's write, microseconds by both clocks; within 1.6 % but for ``max``."""

    events: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: int


class ProducerVerdict(NamedTuple):
    """One producer, or all that belongs to none (``producer`` is empty then)."""

    producer: str
    protocol: str
    url: str
    identity: str
    order: str  # "checked", or "not checked" where events have no ids
    closed: bool
    counts: Counts
    gaps: int
    latency: Latency | None
    breaks: tuple[str, ...] = ()  # words of its counts that break the promise by themselves
    mode: str = ""  # of its protocol, where that has several: Logjam's "request" or "async"
    early: int = 0  # events that arrived before they were sent, by the clocks of the two machines
    early_us: int = 0  # by how much at most: the clocks differ by at least that
    ledger: str = ""  # "whole", "unclosed", "stopped" or "holes"
    host: str = ""  # of the process, as its ledger has it; empty when it does not say
    pid: int = 0
    started_us: int = 0  # when its ledger was begun, since 1970; 0: not known
    reasons: dict[str, dict[str, int]] = {}  # `failed` and `dropped` -> why -> how many, by the ledger
    when: dict[str, list[int]] = {}  # word -> when the first and the last such event was made, if listed
    listeners: dict[str, int] = {}  # that got listed events of it, and how many
    shared: int = 0  # listed events whose id another event has, too: compared by hash alone


class LeftOut(NamedTuple):
    """The producers that a verdict does not name."""

    producers: int
    counts: Counts


class Listener(NamedTuple):
    """What came to one listener, of the events with ids that are in the ledgers, and what did not.

    ``lost``, ``missing`` and ``unknown``: of producers that sent to this listener alone; ``elsewhere``: of
    those that could also have sent to others.
    """

    listener: str
    protocol: str
    urls: list[str]
    source: str
    hosts: list[str]
    runs: list[str]
    segments: int
    events: int  # that arrived, whatever they are
    first_us: int
    last_us: int
    seen: int  # listed events
    duplicated: int  # copies of them here, beyond the first
    corrupted: int  # copies of them here with another hash
    reordered: int
    lost: int
    missing: int
    unknown: int
    elsewhere: dict[str, int]
    problems: int  # of its segments


class Destination(NamedTuple):
    """Where some producers sent to: what is the same URL."""

    url: str
    protocol: str
    endpoints: list[list[str]]  # endpoint, and the listener that it leads to; empty: none, or not known
    captured: bool  # whether the captures speak for all of it
    producers: int
    counts: Counts


class Gap(NamedTuple):
    """Consecutive events that never arrived."""

    producer: str
    first: int
    events: int


class Timeline(NamedTuple):
    """What became of the events by the time they were made, in steps of `width_us` from `start_us`.

    ``dropped`` counts when the ledger noted it; what was never listed has no time of its own.
    """

    start_us: int
    width_us: int
    events: list[int]  # that were listed
    lost: list[int]
    missing: list[int]
    recovered: list[int]
    duplicated: list[int]
    corrupted: list[int]
    reordered: list[int]
    dropped: list[int]
    unknown: list[int]
    pending: list[int]
    latency: dict[str, list[float | None]]  # p50, p99, max: microseconds, all within 1.6 %


class Map(NamedTuple):
    """Where in a producer's sequences 1..last its faults are: numbers for parts of `width` sequences."""

    producer: str
    last: int
    width: int
    parts: dict[str, list[list[int]]]  # word -> [part (from 0), how many], where there are any


class Limits(NamedTuple):
    """More than this many, or more than this share of all events, breaks the promise. None = any number."""

    missing: str | None = None
    duplicated: str | None = None
    dropped: str | None = None

    @classmethod
    def read(cls, **given: int | str | None) -> Limits:
        """Check ``100`` and ``"0.1%"``.

        Raises:
            ConfigError: neither a count nor a share.
        """
        limits = {}
        for word, value in given.items():
            text = None if value is None else str(value)
            if text is not None:
                number = text.removesuffix("%")
                whole = number == text
                if not (number.isascii() and number.replace(".", "", 0 if whole else 1).isdigit()):
                    raise ConfigError(
                        f"max_{word}: {text[:40]!r} must be a count such as 100 or a share such as 0.1%"
                    )
            limits[word] = text
        return cls(**limits)

    def broken(self, counts: Counts) -> list[str]:
        out = []
        for word, text in zip(self._fields, self, strict=True):
            n: int = getattr(counts, word)
            if text is None:
                continue
            most = float(text[:-1]) / 100 * counts.events if text.endswith("%") else int(text)
            if n > most:
                out.append(f"{n:,} {word}, more than {text}")
        return out


class Verdict(NamedTuple):
    """What the comparison found. ``to_json`` is documented in ``docs/verify.md``."""

    exit_code: ExitCode
    sentence: str
    broken: tuple[str, ...]
    counts: Counts
    producers: tuple[ProducerVerdict, ...]
    gaps: int
    longest_gaps: tuple[Gap, ...]
    latency: Latency | None
    order: str  # "checked", "not checked", or "partly"
    examples: dict[str, list[dict[str, Any]]]
    undecodable: dict[str, int]
    undecoded: list[dict[str, Any]]
    capture: dict[str, Any]
    ledger: dict[str, Any]
    problems: tuple[str, ...]
    limits: Limits
    seconds: dict[str, float]
    made_us: int = 0  # when, since 1970
    timeline: Timeline | None = None
    maps: tuple[Map, ...] = ()
    maps_left_out: int = 0
    devices: tuple[Device, ...] = ()
    producers_left_out: LeftOut | None = None
    problems_left_out: int = 0
    listeners: tuple[Listener, ...] = ()
    destinations: tuple[Destination, ...] = ()

    @property
    def ok(self) -> bool:
        """Exit code 0."""
        return self.exit_code == ExitCode.OK

    def untimed(self) -> Verdict:
        """The same where nobody knows when events arrived."""
        timeline = self.timeline
        if timeline is not None:
            timeline = timeline._replace(
                latency={word: [None] * len(values) for word, values in timeline.latency.items()}
            )
        producers = tuple(producer._replace(latency=None, early=0, early_us=0) for producer in self.producers)
        return self._replace(producers=producers, latency=None, timeline=timeline)

    def worst(self, most: int) -> tuple[list[ProducerVerdict], LeftOut]:
        """Some producers, what is broken first, then the largest; and what all others sum up to."""
        ranked = sorted(
            self.producers,
            key=lambda x: (-sum(getattr(x.counts, word) for word in x.breaks), -x.counts.events, x.producer),
        )
        left, rest = self.producers_left_out or LeftOut(0, Counts())
        for left_out in ranked[most:]:
            left, rest = left + 1, rest.plus(left_out.counts)
        return ranked[:most], LeftOut(left, rest)

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple) and hasattr(value, "_asdict"):
                return {key: plain(item) for key, item in value._asdict().items()}
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [plain(item) for item in value]
            return int(value) if isinstance(value, ExitCode) else value

        return {"version": FORMAT, **plain(self)}


# What is added up for each producer, a column each: its states, what is beyond them, and
_LOST_SENT, _MISSING_SENT, _DUPLICATED, _REORDERED, _EARLY, _EARLY_US, _GAPS = range(
    len(STATES) + len(BEYOND), len(STATES) + len(BEYOND) + 7
)
COLUMNS = _GAPS + 1
_BEYOND = {word: len(STATES) + i for i, word in enumerate(BEYOND)}


def _table(rows: I64, doubt: npt.NDArray[np.bool_]) -> I64:
    """`Counts` of some producers, a row each.

    Args:
        rows: of `Tally.sums`.
        doubt: where a hole in the capture may hide what was sent; not what never was.
    """
    states = rows[:, : len(STATES)].copy()
    for code, column in ((LOST, _LOST_SENT), (MISSING, _MISSING_SENT)):
        moved = np.where(doubt, rows[:, column], 0)
        states[:, code] -= moved
        states[:, UNKNOWN] += moved
    events = states.sum(axis=1)
    named = {word: states[:, i] for i, word in enumerate(STATES)}
    for word, column in _BEYOND.items():
        named[word] = named[word] + rows[:, column]
    named |= {"events": events, "duplicated": rows[:, _DUPLICATED], "reordered": rows[:, _REORDERED]}
    return np.stack([named[word] for word in Counts._fields], axis=1)


class _Worst:
    """The first few of many, by the lowest keys."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows = np.empty((0, 0), np.int64)

    def take(self, *columns: I64) -> None:
        """Some more: keys, the first one first; the last one is what is wanted."""
        mine = np.stack(columns, axis=1)
        rows = np.concatenate((self.rows, mine)) if len(self.rows) else mine
        self.rows = rows[np.lexsort(rows.T[::-1])[: self.most]]

    def found(self) -> list[int]:
        last: list[int] = self.rows[:, -1].tolist() if len(self.rows) else []
        return last


class _Added(NamedTuple):
    """What all producers sum up to."""

    total: Counts
    broken: dict[str, int]  # words of `BREAKING` that break the promise
    untold_order: bool  # reordered where that would break it, but it cannot be told
    behind: int  # reordered behind devices
    worst: list[int]
    mapped: list[int]
    by_url: I64
    of_url: I64  # producers


class _Shown:
    """What is told of one producer that is shown, beside its sums."""

    def __init__(self) -> None:
        self.cells: dict[int, int] = {}
        self.longest_us = 0
        self.when: dict[str, list[int]] = {}
        self.listeners: dict[int, Any] = {}
        self.places: list[tuple[bytes, bytes]] = []


def _latency(cells: dict[int, int], longest: int) -> Latency | None:
    if not cells:
        return None
    index = np.array(sorted(cells), np.int64)
    counts = np.array([cells[i] for i in index.tolist()], np.int64)
    reach = np.cumsum(counts)
    total = int(reach[-1])
    values = {}
    for word, q in QUANTILES:
        at = int(np.searchsorted(reach, max(1, int(np.ceil(q * total)))))
        values[word] = min(round(cell_value(int(index[at])), 1), float(longest))
    return Latency(events=total, max=longest, **values)


class Tally:
    """Takes the rows of the reduce tasks and makes the verdict of them. Runs on the driver.

    There may be very many producers. What is added up for each is in a file of the work folder (`sums`); what
    only those have that are shown is read from the tasks' files once it is known which these are.

    Args:
        plan, packed: as the tasks had them.
        again: runs a second pass: ``again(buckets, later)`` gives the names of its files.
    """

    def __init__(
        self,
        plan: Plan,
        packed: Ledger,
        again: Callable[[frozenset[int], dict[tuple[int, int], int]], Iterable[str]],
    ) -> None:
        self.plan = plan
        self.ledger = packed
        self.again = again
        self.sums = _columns(plan.work, len(packed))
        self.faulty = np.zeros(len(packed), bool)  # has places
        self.cells = np.zeros(CELLS, np.int64)  # of all latencies
        self.longest_us = 0
        self.strangers = Counts()
        self.order: dict[int, dict[int, dict[str, Any]]] = {}
        self.gap_rows: dict[int, dict[str, Any]] = {}  # of producers with several buckets
        self.longest: list[tuple[int, int, int]] = []  # gaps: producer, first, events
        self.at: dict[int, I64] = {}  # listener -> seen, duplicated, corrupted, reordered
        self.facts: list[dict[str, Any]] = []
        self.matched: set[tuple[int, int]] = set()  # segments with events compared by hash: listener, rank
        self.others: list[dict[str, Any]] = []  # of segments of other runs, which are not compared
        self.results: list[str] = []  # files of rows
        self.files: list[str] = []
        self.seen_unlisted = array("q"), array("q")  # producer, sequence
        self.examples: dict[str, dict[str, list[Example]]] = {}  # word -> producer -> some
        self.second_passes = 0
        self.times = Times(Grid(*plan.grid), plan.families)
        self._own: list[dict[str, Any]] = []  # rows of ours
        self._doubts: tuple[list[Problem], set[str], set[str]] | None = None
        self._routes: list[captures.Route] = []

    def read(self, name: str) -> None:
        """The rows of a task, in a file of the work folder."""
        self.results.append(name)
        for batch in compare.results(self.plan.work, [name]):
            for row in batch.to_pylist():
                self.take(row)

    def take(self, row: dict[str, Any]) -> None:
        """One row of `compare.RESULTS`."""
        kind = row["kind"]
        if kind == "file":
            self.files.append(row["head"])
            return
        if kind == "times":
            keys, counts = np.frombuffer(row["offs"], np.int64), np.frombuffer(row["xs"], np.int64)
            self.times.take(row["head"], row["listener"], keys, counts)
            return
        head = json.loads(row["head"])
        if kind == "fact":
            self.facts.append(head)
        elif kind == "matched":
            self.matched.add((row["listener"], head))
        elif kind == "order":
            self.order.setdefault(row["key"], {})[row["listener"]] = head
        elif kind == "phantom" and head["p"] < 0:
            self.strangers = self.strangers.plus(
                Counts(unexpected=head.get("unexpected", 0), unknown=head.get("unknown", 0))
            )
            for word, found in head["examples"].items():
                self._examples(word, [Example(*example)._replace(sent=False) for example in found])
        else:
            self._producer(kind, head, row)

    def _producer(self, kind: str, head: dict[str, Any], row: dict[str, Any]) -> None:
        p = head["p"]
        total = self.sums[p]
        name = self.ledger.name(p)
        if kind == "phantom":
            total[: len(STATES)] -= np.array(head["was"])
            for word in BEYOND:
                inside, beyond = head[word]
                total[STATES.index(word)] += inside
                total[_BEYOND[word]] += beyond
            for word, found in head["examples"].items():
                self._examples(word, [Example(name, s, None, *where) for s, *where in found])
            self.seen_unlisted[1].frombytes(row["xs"])
            self.seen_unlisted[0].extend([p] * (len(row["xs"]) // 8))
            return
        self.faulty[p] |= bool(row["xs"])
        for listener, *numbers in head.get("at", ()):
            self._count_at(listener, *numbers)
        if kind == "again":
            total[_REORDERED] += head["reordered"]
            self._examples(
                "reordered", [Example(name, s, None, listener, x, 1) for s, listener, x in head["examples"]]
            )
            return
        for word, found in head["examples"].items():
            self._examples(word, [Example(name, s, None, *where) for s, *where in found])
        total[: len(STATES)] += np.array(head["counts"])
        total[_DUPLICATED] += head["duplicated"]
        if kind == "pool":
            total[_LOST_SENT] += head["counts"][LOST]
            total[_MISSING_SENT] += head["counts"][MISSING]
            return
        total[_LOST_SENT] += head["sent"][0]
        total[_MISSING_SENT] += head["sent"][1]
        total[_REORDERED] += head["reordered"]
        if head["gaps"]:
            self._gaps(row["key"], p, head["gaps"])
        if "latency" in head:
            (longest, _), *cells = head["latency"]
            early, early_us = head["early"]
            self.longest_us = max(self.longest_us, longest)
            total[_EARLY] += early
            total[_EARLY_US] = max(int(total[_EARLY_US]), early_us)
            for cell, n in cells:
                self.cells[cell] += n

    def _count_at(self, listener: int, *numbers: int) -> None:
        self.at.setdefault(listener, np.zeros(4, np.int64))[:] += numbers

    def _note(self, p: int, places: Places, **head: Any) -> None:
        """A row of ours, as the tasks have them."""
        offs, xs = places.row()
        self.faulty[p] |= bool(xs)
        if xs or head:
            text = json.dumps({"p": p, **head})
            self._own.append(
                {"kind": "own", "key": -1, "p": p, "listener": -1, "head": text, "offs": offs, "xs": xs}
            )
        if len(self._own) >= SOME:
            self._save()

    def _save(self) -> None:
        """Put rows of ours where those of the tasks are."""
        if self._own:
            self.results.append(compare.save_results(self.plan.work, self._own))
            self._own = []

    def _examples(self, word: str, found: list[Example]) -> None:
        """Keep the first few of each producer: which ones does not depend on the tasks."""
        mine = self.examples.setdefault(word, {})
        for example in found:
            mine.setdefault(example.producer or "~", []).append(example)
        for name in {example.producer or "~" for example in found}:
            if len(mine[name]) > 5 * self.plan.examples:
                self._trim(mine[name])
        if len(mine) > 2 * MOST_NAMED:
            for name in sorted(mine)[MOST_NAMED:]:
                del mine[name]

    def _trim(self, mine: list[Example]) -> None:
        mine.sort(key=lambda e: (-1 if e.sequence is None else e.sequence, e.other or ""))
        del mine[self.plan.examples :]

    def chosen(self) -> dict[str, list[Example]]:
        """Of each word a few, from as many producers as there are, by producer and sequence."""
        out = {}
        for word, mine in self.examples.items():
            for some in mine.values():
                self._trim(some)
            turns = itertools.zip_longest(*(mine[name] for name in sorted(mine)[:MOST_NAMED]))
            found = [example for turn in turns for example in turn if example is not None]
            # In doubt some of them will be `unknown`, beside those that are: examples.py cuts.
            out[word] = sorted(
                found[: self.plan.examples],
                key=lambda e: (e.producer or "~", -1 if e.sequence is None else e.sequence, e.other or ""),
            )
        return out

    # -- order across buckets

    def stitch(self, writer: compare._Violations) -> None:
        """Who is late because of a later bucket."""
        later: dict[int, int] = {}
        again: dict[tuple[int, int], int] = {}
        owner = -1
        for key in sorted(self.order, reverse=True):
            p = self.ledger.owner(key)
            if p != owner:
                owner = p
                later = {}
            rows = self.order[key]
            late: dict[int, tuple[int, int]] = {}
            late_at: dict[int, int] = {}
            more = False
            for listener, head in rows.items():
                limit = later.get(listener, NEVER)
                if head.get("max", -1) <= limit:
                    continue
                offs, xs = compare.read_tail(self.plan.work, *head["tail"])
                behind = np.flatnonzero(xs > limit)
                more |= head["cut"] and len(behind) == len(xs)
                place = listener & LISTENER
                late_at[place] = late_at.get(place, 0) + len(behind)
                for i in behind.tolist():
                    late.setdefault(int(offs[i]), (listener, int(xs[i])))
            if more:
                for listener in rows:
                    again[key, listener] = later.get(listener, NEVER)
            elif late:
                self._late(p, key, late, writer)
                for place, n in late_at.items():
                    self._count_at(place, 0, 0, 0, n)
            for listener, head in rows.items():
                later[listener] = min(later.get(listener, NEVER), head["min"])
        if again:
            self.second_passes += 1
            for name in self.again(frozenset(key for key, _ in again), again):
                self.read(name)

    def _late(self, p: int, key: int, late: dict[int, tuple[int, int]], writer: compare._Violations) -> None:
        base = ((key - int(self.ledger.bases[p])) << self.ledger.bits) + 1
        self.sums[p, _REORDERED] += len(late)
        offs = np.array(sorted(late), np.int64)
        made = self.ledger.bucket(key).created_us[offs]
        self.times.add(int(self.ledger.family[p]), made, REORDERED)
        places = Places(int(self.ledger.last[p]))
        places.add(base + offs, REORDERED)
        self._note(p, places, when={"reordered": [int(made.min()), int(made.max())]})
        ranges = union(np.stack((offs, offs), axis=1)) + base
        writer.add("reordered", p, ranges[:, 0], ranges[:, 1], 1, True)
        name = self.ledger.name(p)
        self._examples(
            "reordered",
            [Example(name, base + off, None, *late[off], 1) for off in offs[: self.plan.examples].tolist()],
        )

    # -- what no bucket knows

    def unlisted(self, writer: compare._Violations) -> None:
        """Sequences outside all live buckets: nothing is listed there, so intervals are enough."""
        whose, seen = (np.frombuffer(values, np.int64) for values in self.seen_unlisted)
        order = np.lexsort((seen, whose))
        whose, seen = whose[order], seen[order]
        bases, live = self.ledger.bases, self.ledger.live
        for low in range(0, len(self.ledger), SHARE):
            edges = bases[low : low + SHARE + 1]
            last = self.ledger.last[low : low + SHARE]
            listed = np.diff(np.searchsorted(live, edges)) == np.diff(edges)
            some = (last > 0) & ~(self.ledger.addressed[low : low + SHARE] & listed)
            for p in (low + np.flatnonzero(some)).tolist():
                mine = seen[slice(*np.searchsorted(whose, (p, p + 1)))]
                self._unlisted(p, union(mine[:, None].repeat(2, axis=1)), writer)
        self._save()

    def _unlisted(self, p: int, seen: I64, writer: compare._Violations) -> None:
        live, last = self.ledger.live, int(self.ledger.last[p])
        low, high = np.searchsorted(live, self.ledger.bases[p : p + 2])
        if self.ledger.addressed[p]:
            first = ((live[low:high] - self.ledger.bases[p]) << self.ledger.bits) + 1
            taken = union(np.stack((first, first + (1 << self.ledger.bits) - 1), axis=1))
        else:
            taken = union(self.ledger.spans_of(p)[:, 1:3])
        region = subtract(np.array([[1, last]], np.int64), taken)
        if not len(region):
            return
        rows = self.ledger.fates_of(p)
        stronger = union(rows[rows[:, 3] > DROPPED][:, 1:3])
        sent = union(rows[rows[:, 3] > FAILED][:, 1:3])
        dropped = intersect(region, subtract(union(rows[rows[:, 3] == DROPPED][:, 1:3]), stronger))
        missing = intersect(region, subtract(union(rows[rows[:, 3] == FAILED][:, 1:3]), sent))
        untold = subtract(subtract(region, dropped), missing)
        newer = np.array([[int(self.ledger.since[p]) + 1, LAST_SEQUENCE + 1]], np.int64)
        places = Places(last)
        for word, ranges in (
            ("dropped", dropped),
            ("missing", missing),
            ("unknown", subtract(untold, newer)),
            ("pending", intersect(untold, newer)),
        ):
            self.sums[p, STATES.index(word)] += length(ranges)
            was = intersect(ranges, seen)
            if word == "dropped":
                places.add_ranges(was, UNEXPECTED)
            else:
                places.add_ranges(subtract(was, newer), UNKNOWN)
                places.add_ranges(intersect(was, newer), PENDING)
            ranges = subtract(ranges, seen)
            places.add_ranges(ranges, STATES.index(word))
            writer.add(word, p, ranges[:, 0], ranges[:, 1], 0, False)
            if word in ("missing", "unknown"):
                some = ranges[: self.plan.examples, 0].tolist()
                name = self.ledger.name(p)
                self._examples(word, [Example(name, s, None, sent=False) for s in some])
        self._note(p, places)

    # -- the whole

    def doubts(self) -> tuple[list[Problem], set[str], set[str]]:
        """See `captures.doubts`; `stitch` and `unlisted` come before."""
        if self._doubts is None:
            problems, doubtful, disordered = captures.doubts(
                self.facts, self.others, self.plan.left_out, self.ledger.families
            )
            self._routes = self._routed()
            uncaptured = {(route.family, endpoint) for route in self._routes for endpoint in route.missing}
            for family, endpoint in sorted(uncaptured):
                why = f"it is in a ledger of {family}, and no listener of this capture has it"
                problems.append(Problem("endpoint", endpoint, -1, why))
                doubtful.add(family)
            # Records come with an order of their own, whatever is missing among them.
            self._doubts = problems, doubtful, disordered if self.plan.records is None else set()
        return self._doubts

    def _routed(self) -> list[captures.Route]:
        """Where each URL of the ledgers leads to, in their order."""
        urls = self.ledger.urls
        if self.plan.records is not None:
            return [captures.unrouted(protocol, url) for protocol, url in urls]
        arrived = [compare.OK, compare.RECOVERED, compare.CORRUPTED, UNEXPECTED]
        seen = np.zeros(len(urls), bool)
        for low in range(0, len(self.ledger), SHARE):
            some = slice(low, low + SHARE)
            which = (self.sums[some][:, arrived] > 0).any(axis=1)
            seen[self.ledger.rows["url"][some][which]] = True
        here = {fact["listener"] for fact in self.facts}
        return captures.routes(
            [(protocol, url, bool(was)) for (protocol, url), was in zip(urls, seen, strict=True)],
            [x for x in self.plan.listeners if x["name"] in here],
        )

    def _clocks(self) -> list[str]:
        """What is said of times that cannot be."""
        if not self.plan.timed:
            return []
        early = self.sums[:, _EARLY_US]
        wrong = np.flatnonzero(early >= CLOCK_US)
        wrong = wrong[np.argsort(-early[wrong], kind="stable")]
        told = []
        for p in wrong[: self.plan.examples].tolist():
            x = self.ledger.producers[p]
            told.append(
                f"clocks: {self.sums[p, _EARLY]:,} events of {x.named} arrived before "
                f"they were sent: the clocks differ by at least {early[p] / 1e6:,.3f} s"
            )
        if len(wrong) > len(told):
            told.append(f"clocks: so did events of {len(wrong) - len(told):,} more producers")
        for fact in self.facts:
            if n := fact["timeless"]:
                why = "received before 1970 or after 2255: they have no latency"
                told.append(f"clocks: {fact['name']}: {n:,} units {why}")
        return told

    def devices(self) -> tuple[Device, ...]:
        """What devices published and the captures lack, by listener and device."""
        found: dict[tuple[str, int], Device] = {}
        every = self.facts + self.others
        for fact in sorted(every, key=lambda fact: (fact["listener"], fact["number"])):
            for fields in fact["devices"]:
                mine = Device(*fields)
                before = found.get((mine.listener, mine.device))
                found[mine.listener, mine.device] = mine if before is None else joined(before, mine)
        return tuple(found[key] for key in sorted(found))

    def _faults(self, allow_open: bool) -> tuple[list[str], int]:
        """What is wrong with the ledgers, the worst first; and how many are open that may be."""
        evidence = self.ledger.rows["evidence"]
        allowed = int(np.count_nonzero(evidence == UNCLOSED)) if allow_open else 0
        wrong = int(np.count_nonzero(evidence != WHOLE)) - allowed
        told = []
        if wrong:
            worst = self.ledger.producers[int(evidence.argmax())]
            told.append(worst.why)
        if wrong > 1:
            told.append(f"{_ledgers(wrong - 1, 'other')} {'is' if wrong == 2 else 'are'} not whole")
        if unread := self.ledger.unread:
            more = f" and {len(unread) - 1:,} more" if len(unread) > 1 else ""
            told.append(f"{unread[0]}{more} may be a ledger and is not read")
        return told, allowed

    def _devices_left_out(self) -> list[str]:
        if not any(fact["devices_left_out"] for fact in self.facts):
            return []
        return [f"capture: more than {FOLLOWED:,} devices at a listener, gaps of the others are not told"]

    def _gap(self, p: int, first: int, events: int) -> None:
        self.sums[p, _GAPS] += 1
        self.longest.append((p, first, events))

    def _gaps(self, key: int, p: int, row: dict[str, Any]) -> None:
        """The gaps of a bucket; those at its edges may go on in the next one."""
        self.sums[p, _GAPS] += row["inside"]
        self.longest += [(p, first, size) for first, size in row["longest"]]
        if len(self.longest) > 4096:
            self.longest = self._longest()
        if int(self.ledger.bases[p + 1] - self.ledger.bases[p]) > 1:
            self.gap_rows[key] = {"p": p, **row}
            return
        if row["left"]:
            self._gap(p, row["first"], row["left"])
        if row["right"]:
            self._gap(p, row["first"] + row["n"] - row["right"], row["right"])

    def _longest(self) -> list[tuple[int, int, int]]:
        return sorted(self.longest, key=lambda gap: (-gap[2], gap))[:5]

    def _join_gaps(self) -> None:
        """Count those that buckets have at their edges, joined where buckets meet."""
        open_: tuple[int, int, int, int] | None = None  # key of its last bucket, producer, first, events

        def close() -> None:
            nonlocal open_
            if open_ is not None:
                self._gap(*open_[1:])
                open_ = None

        for key in sorted(self.gap_rows):
            row = self.gap_rows[key]
            p, n = row["p"], row["n"]
            if open_ is not None and not (open_[0] == key - 1 and open_[1] == p and row["left"]):
                close()
            if row["left"]:
                first, events = (open_[2], open_[3]) if open_ is not None else (row["first"], 0)
                open_ = (key, p, first, events + row["left"])
                if row["left"] < n:
                    close()
            if row["right"]:
                open_ = (key, p, row["first"] + n - row["right"], row["right"])
        close()
        self.gap_rows = {}

    def timeline(self, doubtful: set[str]) -> Timeline | None:
        """What the tasks counted by time, over all producers."""
        grid = self.times.grid
        if not grid.n:
            return None
        kinds = np.zeros(self.times.words.shape[1:], np.int64)
        for family, name in enumerate(self.ledger.families):
            kinds += _doubted(self.times.words[family].T, name in doubtful).T
        noted = self.ledger.noted
        dropped = np.bincount(grid.step(noted[:, 0]), noted[:, 1], grid.n)
        latency: dict[str, list[float | None]] = {"p50": [], "p99": [], "max": []}
        most = self.longest_us
        for row in self.times.latency.sum(axis=0):
            used = np.flatnonzero(row)
            reach = np.cumsum(row[used])
            for word, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                value = None
                if len(used):
                    at = int(np.searchsorted(reach, max(1, int(np.ceil(q * int(reach[-1]))))))
                    value = min(round(cell_value(int(used[at])), 1), float(most))
                latency[word].append(value)

        def told(code: int) -> list[int]:
            numbers: list[int] = kinds[:, code].tolist()
            return numbers

        # The first kind is what arrived, recovered and corrupted ones too.
        return Timeline(
            start_us=grid.start_us,
            width_us=grid.width_us,
            events=kinds[:, [compare.OK, LOST, MISSING, UNKNOWN, PENDING]].sum(axis=1).tolist(),
            lost=told(LOST),
            missing=told(MISSING),
            recovered=told(compare.RECOVERED),
            duplicated=told(DUPLICATED),
            corrupted=told(compare.CORRUPTED),
            reordered=told(REORDERED),
            dropped=dropped.astype(np.int64).tolist(),
            unknown=told(UNKNOWN),
            pending=told(PENDING),
            latency=latency,
        )

    def _map(self, p: int, shown: _Shown, doubtful: set[str]) -> Map:
        """A producer's faults by sequence."""
        last = int(self.ledger.last[p])
        places = Places(last)
        places.take(shown.places)
        doubt = self.ledger.families[self.ledger.family[p]] in doubtful
        kinds = _doubted(places.counts.reshape(KINDS, -1), doubt)
        parts = {}
        for code, word in enumerate((*STATES, "duplicated", "reordered")):
            at = np.flatnonzero(kinds[code])
            if len(at):
                parts[word] = np.stack((at, kinds[code][at]), axis=1).tolist()
        return Map(self.ledger.name(p), last, places.width, parts)

    def _shown(self, which: set[int], places: set[int]) -> dict[int, _Shown]:
        """What the tasks' files have of some producers, and of some of them by place."""
        shown = {p: _Shown() for p in which | places}
        wanted = pa.array(sorted(shown), pa.int32())
        for batch in compare.results(self.plan.work, self.results):
            for row in batch.filter(pc.is_in(batch["p"], wanted)).to_pylist():
                mine = shown[row["p"]]
                if row["kind"] in ("order", "phantom"):
                    continue
                if row["xs"] and row["p"] in places:
                    mine.places.append((row["offs"], row["xs"]))
                head = json.loads(row["head"])
                for word, (first, last) in head.get("when", {}).items():
                    before = mine.when.get(word, [first, last])
                    mine.when[word] = [min(before[0], first), max(before[1], last)]
                for listener, seen, *_ in head.get("at", ()):
                    if seen:
                        mine.listeners[listener] = mine.listeners.get(listener, 0) + seen
                if "latency" in head:
                    (longest, _), *cells = head["latency"]
                    mine.longest_us = max(mine.longest_us, longest)
                    for cell, n in cells:
                        mine.cells[cell] = mine.cells.get(cell, 0) + n
        return shown

    def _told(self, p: int, shown: _Shown, doubtful: set[str], disordered: set[str]) -> ProducerVerdict:
        """One producer.

        Args:
            doubtful, disordered: protocols, see `captures.doubts`.
        """
        family = self.ledger.families[self.ledger.family[p]]
        doubt = family in doubtful
        counts = Counts(*_table(self.sums[p : p + 1], np.array([doubt]))[0].tolist())
        ordered = bool(self._ordered(p, p + 1)[0]) and family not in disordered
        x = self.ledger.producers[p]
        when = dict(sorted(shown.when.items()))
        if doubt:
            times = [when.pop(word) for word in ("lost", "missing", "unknown") if word in when]
            if times:
                when["unknown"] = [min(first for first, _ in times), max(last for _, last in times)]
        return ProducerVerdict(
            producer=x.producer,
            protocol=x.protocol,
            url=harmless(x.url),
            identity=x.identity,
            order="checked" if x.identity == "id" and self.plan.ordered else "not checked",
            closed=x.closed,
            counts=counts,
            gaps=int(self.sums[p, _GAPS]),
            latency=_latency(shown.cells, shown.longest_us),
            breaks=tuple(
                word for word in BREAKING if getattr(counts, word) and (word != "reordered" or ordered)
            ),
            mode=x.mode,
            early=int(self.sums[p, _EARLY]),
            early_us=int(self.sums[p, _EARLY_US]),
            ledger=EVIDENCE[x.evidence],
            host=x.host,
            pid=x.pid,
            started_us=x.started_us,
            reasons=self.ledger.reasons_of(p),
            when=when,
            listeners={name: int(n) for name, n in self._by_listener(shown.listeners).items()},
            shared=len(self.ledger.pooled_of(p)) if x.identity == "id" else 0,
        )

    def _by_listener(self, numbers: Mapping[int, I64]) -> dict[str, I64]:
        """What is told of listeners by number, by name."""
        records = self.plan.records
        if records is None:
            names = [x["name"] for x in self.plan.listeners]
        else:
            names = [place[0] for place in records["places"]] if records["numbered"] else []
        # Of records without an order, a number is that of a task.
        here = {fact["listener"] for fact in self.facts}
        only = here.pop() if len(here) == 1 else None
        found: dict[str, I64] = {}
        for i, mine in sorted(numbers.items()):
            name = names[i] if names else only
            if name is not None:
                found[name] = found[name] + mine if name in found else mine
        return found

    def _ordered(self, low: int, high: int) -> npt.NDArray[np.bool_]:
        """Whose order is promised and told by a ledger: where lines may be missing, so may one that says
        that an event was overtaken on purpose."""
        rows = self.ledger.rows[low:high]
        promised = self._of_families(lambda name: name in ORDERED and name not in self.plan.published)
        ordered: npt.NDArray[np.bool_] = promised[rows["family"]] & ~rows["one_way"]
        ordered &= rows["evidence"] != HOLES
        return ordered

    def _of_families(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = np.array([test(name) for name in self.ledger.families], np.bool_)
        return found

    def _add_up(self, doubtful: set[str], disordered: set[str], most: int) -> _Added:
        """Sum up all producers, some thousand at a time, and find the worst of them."""
        n = len(self.ledger)
        doubt = self._of_families(lambda name: name in doubtful)
        told = self._of_families(lambda name: name not in disordered)
        published = self._of_families(lambda name: name in self.plan.published)
        total = np.zeros(len(Counts._fields), np.int64)
        broken = dict.fromkeys(BREAKING, 0)
        untold_order = False
        behind = 0
        worst, mapped = _Worst(most), _Worst(MAPS)
        by_url = np.zeros((len(self.ledger.urls), len(Counts._fields)), np.int64)
        of_url = np.zeros(len(self.ledger.urls), np.int64)
        for low in range(0, n, SHARE):
            high = min(low + SHARE, n)
            rows = self.ledger.rows[low:high]
            family = rows["family"]
            counts = _table(self.sums[low:high], doubt[family])
            columns = dict(zip(Counts._fields, counts.T, strict=True))
            ordered = self._ordered(low, high)
            untold_order |= bool(columns["reordered"][ordered & ~told[family]].any())
            breaking = {word: columns[word] for word in BREAKING}
            breaking["reordered"] = np.where(ordered & told[family], columns["reordered"], 0)
            for word, column in breaking.items():
                broken[word] += int(column.sum())
            total += counts.sum(axis=0)
            np.add.at(by_url, rows["url"], counts)
            of_url += np.bincount(rows["url"], minlength=len(of_url))
            behind += int(columns["reordered"][published[family]].sum())
            p = low + np.arange(high - low)
            worst.take(-np.sum([*breaking.values()], axis=0), -columns["events"], p)
            some = np.flatnonzero(self.faulty[low:high])
            if len(some):
                mapped.take(*(-column[some] for column in _severity(columns)), p[some])
        return _Added(
            Counts(*total.tolist()),
            broken,
            untold_order,
            behind,
            worst.found(),
            mapped.found(),
            by_url,
            of_url,
        )

    def verdict(self, limits: Limits, allow_open: bool = False) -> Verdict:
        """Add everything up; `stitch` and `unlisted` come before.

        Args:
            allow_open: a ledger without an end is no fault by itself.
        """
        problems, doubtful, disordered = self.doubts()
        self._join_gaps()
        self._save()
        ledger = self.ledger
        aside = sum(fact["events"] for fact in self.others)
        nobodys = self.strangers.plus(Counts(unknown=aside))
        added = self._add_up(doubtful, disordered, LISTED - any(nobodys))
        total = added.total.plus(nobodys)
        shown = sorted(added.worst)
        details = self._shown(set(shown), set(added.mapped))
        verdicts = [self._told(p, details[p], doubtful, disordered) for p in shown]
        left_out = None
        if len(ledger) > len(shown):
            rest = added.total
            for x in verdicts:
                rest = rest.plus(Counts(*(-n for n in x.counts)))
            left_out = LeftOut(len(ledger) - len(shown), rest)
        if any(nobodys):
            breaks = ("unexpected",) if nobodys.unexpected else ()
            verdicts.append(ProducerVerdict("", "", "", "", "not checked", False, nobodys, 0, None, breaks))
        broken_by = added.broken | {"unexpected": added.broken["unexpected"] + nobodys.unexpected}
        broken = [f"{n:,} {word}" for word, n in broken_by.items() if n]
        broken += limits.broken(total)
        faults, still_open = self._faults(allow_open)
        untold = total.unknown or faults or added.untold_order
        code = ExitCode.BROKEN if broken else ExitCode.UNREACHABLE if untold else ExitCode.OK
        undecodable, quiet = (_summed(fact[name] for fact in self.facts) for name in ("undecodable", "quiet"))
        addressed = ledger.addressed if self.plan.ordered else np.zeros(1, bool)
        because = [*faults, *_CAPTURE[: bool(doubtful or aside)]]
        said = _sentence(code, broken, total, because, still_open)
        if added.behind:
            said += f" {added.behind:,} reordered behind a device, where order is no promise."
        named, unnamed = self._problems(problems, total)
        destinations = self._destinations(added)
        return Verdict(
            exit_code=code,
            sentence=said,
            broken=tuple(broken),
            counts=total,
            producers=tuple(verdicts),
            gaps=int(self.sums[:, _GAPS].sum()),
            longest_gaps=tuple(Gap(ledger.name(p), first, n) for p, first, n in self._longest()),
            latency=_latency(
                {cell: int(self.cells[cell]) for cell in np.flatnonzero(self.cells).tolist()}, self.longest_us
            ),
            order="checked" if addressed.all() else "partly" if addressed.any() else "not checked",
            examples={},
            undecodable=undecodable,
            undecoded=[row for fact in self.facts for row in fact["undecoded"]][: self.plan.examples],
            capture={
                "listeners": sorted({fact["listener"] for fact in self.facts}),
                "segments": len(self.facts),
                "bytes": sum(fact["size"] for fact in self.facts),
                "units": sum(fact["units"] for fact in self.facts),
                "acks": sum(fact["acks"] for fact in self.facts),
                "events": sum(fact["events"] for fact in self.facts),
                **{f"{word}s": quiet.get(word, 0) for word in QUIET},
                "first_us": min((fact["first_us"] for fact in self.facts if fact["last_us"]), default=0),
                "last_us": max((fact["last_us"] for fact in self.facts), default=0),
                "complete": not problems,
                "published": self.plan.published,
                "runs": captures.told_runs(self.facts, self.others),
            },
            ledger={
                "producers": len(ledger),
                "closed": int(np.count_nonzero(ledger.rows["closed"])),
                "listed": int(ledger.rows["listed"].sum()),
                "complete": ledger.all_whole,
                "unread": len(ledger.unread),
            },
            problems=named,
            limits=limits,
            seconds={},
            timeline=self.timeline(doubtful),
            maps=tuple(self._map(p, details[p], doubtful) for p in added.mapped),
            maps_left_out=int(np.count_nonzero(self.faulty)) - len(added.mapped),
            devices=self.devices(),
            producers_left_out=left_out,
            problems_left_out=unnamed,
            listeners=self._listeners(destinations),
            destinations=tuple(destinations[:LISTED]),
        )

    def _rewritten(self, total: Counts) -> list[str]:
        """What is said of a topic or table whose bodies are not those that were sent."""
        intact = total.ok + total.recovered
        if self.plan.records is None or total.corrupted <= intact:
            return []
        seen = intact + total.corrupted
        what = f"{total.corrupted:,} of the {seen:,} events that are seen have another body than was sent"
        why = "what drops a field such as @metadata, or writes JSON anew, changes it, and may take its id"
        return [f"bodies: {what}: each must be there byte for byte; {why}"]

    def _problems(self, of_captures: list[Problem], total: Counts) -> tuple[tuple[str, ...], int]:
        """What is wrong with ledgers and captures: as much as is named, and how much more there is."""
        counts = self.ledger.rows["problems"]
        of_ledgers = (
            f"ledger: {problem}"
            for p in map(int, np.flatnonzero(counts)[:LISTED])
            for problem in self.ledger.producers[p].told
        )
        others = [
            *self._rewritten(total),
            *self._clocks(),
            *self._devices_left_out(),
            *(f"capture: {x.place}: {x.kind}: {x.reason}" for x in of_captures),
            *(f"ledger: {name}: it may be a ledger and is not read" for name in self.ledger.unread),
        ]
        named = tuple(itertools.islice(itertools.chain(others, of_ledgers), LISTED))
        return named, len(others) + int(counts.sum()) - len(named)

    def _destinations(self, added: _Added) -> list[Destination]:
        """One for each URL, the worst first."""
        found = []
        for i, ((protocol, url), route) in enumerate(zip(self.ledger.urls, self._routes, strict=True)):
            endpoints = [list(one) for one in route.endpoints]
            mine, n = Counts(*added.by_url[i].tolist()), int(added.of_url[i])
            found.append(Destination(harmless(url), protocol, endpoints, not route.missing, n, mine))
        return sorted(found, key=lambda x: (x.captured, severity(x.counts), -x.counts.events, x.url))

    def _listeners(self, destinations: list[Destination]) -> tuple[Listener, ...]:
        """What came to each, and what did not that was sent to it."""
        words = ("lost", "missing", "unknown")
        alone: dict[str, list[int]] = {}
        shared: dict[str, list[int]] = {}
        for x in destinations:
            places = {listener for _, listener in x.endpoints if listener}
            for listener in places:
                mine = (alone if len(x.endpoints) == 1 else shared).setdefault(listener, [0, 0, 0])
                for i, word in enumerate(words):
                    mine[i] += getattr(x.counts, word)
        found = []
        at = self._by_listener(self.at)
        facts: dict[str, list[dict[str, Any]]] = {}
        for fact in self.facts:
            facts.setdefault(fact["listener"], []).append(fact)
        for name in sorted(facts)[:LISTED]:
            some = sorted(facts[name], key=lambda fact: int(fact["number"]))
            seen, duplicated, corrupted, reordered = at.get(name, np.zeros(4, np.int64)).tolist()
            lost, missing, unknown = alone.get(name, [0, 0, 0])
            elsewhere = dict(zip(words, shared.get(name, [0, 0, 0]), strict=True))

            def all_of(what: str, some: list[dict[str, Any]] = some) -> list[str]:
                return list(dict.fromkeys(fact[what] for fact in some if fact.get(what)))

            found.append(
                Listener(
                    listener=name,
                    protocol="+".join(all_of("protocol")),
                    urls=[harmless(url) for url in all_of("url")],
                    source="+".join(all_of("source")),
                    hosts=all_of("host"),
                    runs=all_of("run"),
                    segments=len(some),
                    events=sum(fact["events"] for fact in some),
                    first_us=min((fact["first_us"] for fact in some if fact["last_us"]), default=0),
                    last_us=max((fact["last_us"] for fact in some), default=0),
                    seen=seen,
                    duplicated=duplicated,
                    corrupted=corrupted,
                    reordered=reordered,
                    lost=lost,
                    missing=missing,
                    unknown=unknown,
                    elsewhere={word: n for word, n in elsewhere.items() if n},
                    problems=sum(sum(fact["counts"].values()) for fact in some),
                )
            )
        return tuple(found)


def _columns(work: str, n: int) -> I64:
    """What is added up for `n` producers, in a file."""
    path = os.path.join(work, f"{uuid.uuid4().hex}.sums")
    rows: I64 = np.memmap(path, np.int64, "w+", shape=(n, COLUMNS)).view(np.ndarray)
    return rows


def _severity(columns: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """What breaks the promise, what may, what is only odd."""
    return (
        columns["lost"] + columns["corrupted"] + columns["unexpected"] + columns["reordered"],
        columns["missing"] + columns["unknown"] + columns["dropped"],
        columns["duplicated"] + columns["recovered"],
    )


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for some in counts:
        for word, n in some.items():
            total[word] = total.get(word, 0) + n
    return total


def harmless(url: str) -> str:
    """A URL of a ledger. Ours are redacted when they are written; whoever else wrote one may not have."""
    head, mark, query = url.partition("?")
    scheme, colons, rest = head.partition("://")
    if "@" in rest:
        head = f"{scheme}{colons}***@{rest.rpartition('@')[2]}"
    pairs = []
    known = all_options()
    for pair in query.split("&") if mark else ():
        name, equals, _ = pair.partition("=")
        open_ = name in known and not any(option.reader.secret for option in known[name])
        pairs.append(pair if open_ or not equals else f"{name}=***")
    return head + mark + "&".join(pairs)


def severity(counts: Counts) -> tuple[int, ...]:
    """Sorts the worst first."""
    return tuple(-n for n in _severity(counts._asdict()))


def _doubted(kinds: I64, doubt: bool) -> I64:
    """A row for each kind: those of what was sent go where they belong."""
    kinds = kinds.copy()
    for sent, code in ((LOST_SENT, LOST), (MISSING_SENT, MISSING)):
        kinds[UNKNOWN if doubt else code] += kinds[sent]
        kinds[sent] = 0
    return kinds


_CAPTURE = ["the capture is not complete"]


def _ledgers(n: int, what: str = "") -> str:
    return f"{n:,} {what}{' ' * bool(what)}ledger{'s' * (n != 1)}"


def _sentence(code: ExitCode, broken: list[str], counts: Counts, faults: list[str], still_open: int) -> str:
    """The verdict in a sentence.

    Args:
        faults: what keeps ledgers and captures from being whole.
        still_open: ledgers without an end that are allowed.
    """
    because = ", and ".join(faults)
    if code == ExitCode.BROKEN:
        told = [
            f"{words} ({limit})" if limit else words
            for words, _, limit in (x.partition(", ") for x in broken)
        ]
        besides = f"; besides, {because}" if faults else ""
        return f"The promise is broken: {', '.join(told)}, of {counts.events:,} events{besides}."
    if code == ExitCode.UNREACHABLE:
        unknown = f"{counts.unknown:,} of {counts.events:,} events are unknown"
        return f"It cannot be told: {unknown}, because {because or _MAY_BE_OPEN}."
    if still_open:
        open_ = f"; {_ledgers(still_open)} {'is' if still_open == 1 else 'are'} still open"
    else:
        open_ = ""
    if not counts.events:
        return f"The promise holds, but nothing was sent{open_}."
    rest = [
        f"{n:,} {word}"
        for word in ("missing", "dropped", "recovered", "duplicated", "reordered", "pending")
        if (n := getattr(counts, word))
    ]
    more = f"; {', '.join(rest)}" if rest else ""
    return f"The promise holds: {counts.ok:,} of {counts.events:,} events arrived intact{more}{open_}."


_MAY_BE_OPEN = "a ledger is still open"
