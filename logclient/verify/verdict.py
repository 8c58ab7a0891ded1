"""From the results of the reduce tasks to the verdict: sums, order across buckets, words, exit code.

The words are those of Jepsen's checks of queues. Each sequence that a producer made is exactly one of
``ok``, ``lost``, ``missing``, ``recovered``, ``corrupted``, ``dropped``, ``unexpected``, ``unknown``,
``pending``; it may be ``duplicated`` and ``reordered`` besides, and ``unexpected``, ``unknown`` and
``pending`` also count distinct ids beyond all that was made. ``docs/verify.md`` has a table.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from logclient.config import OPTIONS
from logclient.errors import ConfigError, ExitCode
from logclient.verify import captures, compare
from logclient.verify.compare import (
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
from logclient.verify.decode import QUIET, protocol_of
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
    Producer,
    intersect,
    length,
    subtract,
    union,
)
from logclient.verify.overview import (
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
LISTED = 1000  # producers, and problems, that verdict.json names: it stays small with 30,000 short-lived ones


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

    def worst(self, most: int) -> tuple[list[ProducerVerdict], Counts]:
        """Some producers, what is broken first, then the largest; and what all others sum up to."""
        ranked = sorted(
            self.producers,
            key=lambda x: (-sum(getattr(x.counts, word) for word in x.breaks), -x.counts.events, x.producer),
        )
        rest = Counts()
        for left_out in ranked[most:]:
            rest = rest.plus(left_out.counts)
        return ranked[:most], rest

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; of very many producers and problems the first, and what is left."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple) and hasattr(value, "_asdict"):
                return {key: plain(item) for key, item in value._asdict().items()}
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [plain(item) for item in value]
            return int(value) if isinstance(value, ExitCode) else value

        listed, rest = self.worst(LISTED)
        problems = self.problems[:LISTED]
        if len(self.problems) > LISTED:
            problems += (f"and {len(self.problems) - LISTED:,} more problems",)
        names = {producer.producer for producer in listed}
        short = self._replace(
            producers=tuple(producer for producer in self.producers if producer.producer in names),
            problems=problems,
        )
        out: dict[str, Any] = {"version": FORMAT, **plain(short)}
        left_out = len(self.producers) - len(listed)
        out["producers_left_out"] = {"producers": left_out, "counts": plain(rest)} if left_out else None
        return out


class _Sum:
    """What is added up for one producer."""

    def __init__(self) -> None:
        self.states = np.zeros(len(STATES), np.int64)  # of the sequences it made
        self.beyond = dict.fromkeys(BEYOND, 0)  # distinct ids beyond those
        self.sent = [0, 0]  # lost, missing: those that were listed
        self.duplicated = 0
        self.reordered = 0
        self.cells: dict[int, int] = {}
        self.longest_us = 0
        self.early = 0  # events that arrived before they were made
        self.early_us = 0
        self.gaps = 0

    def counts(self, doubt: bool) -> Counts:
        states = self.states.copy()
        if doubt:
            # A hole in the capture may hide what was sent, not what never was.
            for code, n in zip((LOST, MISSING), self.sent, strict=True):
                states[code] -= n
                states[UNKNOWN] += n
        named = dict(zip(STATES, states.tolist(), strict=True))
        for word, n in self.beyond.items():
            named[word] += n
        return Counts(events=int(states.sum()), duplicated=self.duplicated, reordered=self.reordered, **named)


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

    Args:
        plan, packed: as the tasks had them.
        again: runs a second pass: ``again(buckets, later)`` gives the rows of it.
    """

    def __init__(
        self,
        plan: Plan,
        packed: Ledger,
        again: Callable[[frozenset[int], dict[tuple[int, int], int]], Iterable[dict[str, Any]]],
    ) -> None:
        self.plan = plan
        self.ledger = packed
        self.producers: list[Producer] = packed.producers
        self.again = again
        self.sums = [_Sum() for _ in self.producers]
        self.strangers = Counts()
        self.order: dict[int, dict[int, dict[str, Any]]] = {}
        self.gap_rows: dict[int, dict[str, Any]] = {}
        self.facts: list[dict[str, Any]] = []
        self.others: list[dict[str, Any]] = []  # of segments of other runs, which are not compared
        self.files: list[str] = []
        self.seen_unlisted: dict[int, list[I64]] = {}
        self.examples: dict[str, dict[str, list[Example]]] = {}  # word -> producer -> some
        self.second_passes = 0
        self.times = Times(Grid(*plan.grid), plan.families)
        self.places: dict[int, list[tuple[bytes, bytes]]] = {}

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
        name = self.producers[p].producer
        if kind != "phantom" and row["xs"]:
            self.places.setdefault(p, []).append((row["offs"], row["xs"]))
        if kind == "again":
            total.reordered += head["reordered"]
            self._examples(
                "reordered", [Example(name, s, None, listener, x, 1) for s, listener, x in head["examples"]]
            )
            return
        for word, found in head["examples"].items():
            self._examples(word, [Example(name, s, None, *where) for s, *where in found])
        if kind == "phantom":
            total.states -= np.array(head["was"])
            for word in BEYOND:
                inside, beyond = head[word]
                total.states[STATES.index(word)] += inside
                total.beyond[word] += beyond
            if row["xs"]:
                self.seen_unlisted.setdefault(p, []).append(np.frombuffer(row["xs"], np.int64))
            return
        total.states += np.array(head["counts"])
        total.duplicated += head["duplicated"]
        if kind == "pool":
            total.sent[0] += head["counts"][LOST]
            total.sent[1] += head["counts"][MISSING]
            return
        total.sent[0] += head["sent"][0]
        total.sent[1] += head["sent"][1]
        total.reordered += head["reordered"]
        if head["gaps"]:
            self.gap_rows[row["key"]] = {"p": p, **head["gaps"]}
        if "latency" in head:
            (longest, _), *cells = head["latency"]
            early, early_us = head["early"]
            total.longest_us = max(total.longest_us, longest)
            total.early += early
            total.early_us = max(total.early_us, early_us)
            for cell, n in cells:
                total.cells[cell] = total.cells.get(cell, 0) + n

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
            more = False
            for listener, head in rows.items():
                limit = later.get(listener, NEVER)
                if head.get("max", -1) <= limit:
                    continue
                offs, xs = compare.read_tail(self.plan.work, *head["tail"])
                behind = np.flatnonzero(xs > limit)
                more |= head["cut"] and len(behind) == len(xs)
                for i in behind.tolist():
                    late.setdefault(int(offs[i]), (listener, int(xs[i])))
            if more:
                for listener in rows:
                    again[key, listener] = later.get(listener, NEVER)
            elif late:
                self._late(p, key, late, writer)
            for listener, head in rows.items():
                later[listener] = min(later.get(listener, NEVER), head["min"])
        if again:
            self.second_passes += 1
            for row in self.again(frozenset(key for key, _ in again), again):
                self.take(row)

    def _late(self, p: int, key: int, late: dict[int, tuple[int, int]], writer: compare._Violations) -> None:
        base = ((key - int(self.ledger.bases[p])) << self.ledger.bits) + 1
        self.sums[p].reordered += len(late)
        offs = np.array(sorted(late), np.int64)
        self.times.add(int(self.ledger.family[p]), self.ledger.bucket(key).created_us[offs], REORDERED)
        places = Places(self.producers[p].last)
        places.add(base + offs, REORDERED)
        self.places.setdefault(p, []).append(places.row())
        ranges = union(np.stack((offs, offs), axis=1)) + base
        writer.add("reordered", p, ranges[:, 0], ranges[:, 1], 1, True)
        name = self.producers[p].producer
        self._examples(
            "reordered",
            [Example(name, base + off, None, *late[off], 1) for off in offs[: self.plan.examples].tolist()],
        )

    # -- what no bucket knows

    def unlisted(self, writer: compare._Violations) -> None:
        """Sequences outside all live buckets: nothing is listed there, so intervals are enough."""
        live = self.ledger.live
        for p, producer in enumerate(self.producers):
            last = producer.last
            if not last:
                continue
            low, high = np.searchsorted(live, self.ledger.bases[p : p + 2])
            whole = np.array([[1, last]], np.int64)
            if producer.identity == "id":
                if high - low == self.ledger.bases[p + 1] - self.ledger.bases[p]:
                    continue
                first = ((live[low:high] - self.ledger.bases[p]) << self.ledger.bits) + 1
                taken = union(np.stack((first, first + (1 << self.ledger.bits) - 1), axis=1))
            else:
                taken = union(self.ledger.spans_of(p)[:, 1:3])
            region = subtract(whole, taken)
            if not len(region):
                continue
            rows = self.ledger.fates_of(p)
            stronger = union(rows[rows[:, 3] > DROPPED][:, 1:3])
            sent = union(rows[rows[:, 3] > FAILED][:, 1:3])
            dropped = intersect(region, subtract(union(rows[rows[:, 3] == DROPPED][:, 1:3]), stronger))
            missing = intersect(region, subtract(union(rows[rows[:, 3] == FAILED][:, 1:3]), sent))
            untold = subtract(subtract(region, dropped), missing)
            newer = np.array([[producer.since + 1, LAST_SEQUENCE + 1]], np.int64)
            places = Places(last)
            seen = (
                union(np.concatenate(self.seen_unlisted[p])[:, None].repeat(2, axis=1))
                if p in self.seen_unlisted
                else np.empty((0, 2), np.int64)
            )
            for word, ranges in (
                ("dropped", dropped),
                ("missing", missing),
                ("unknown", subtract(untold, newer)),
                ("pending", intersect(untold, newer)),
            ):
                self.sums[p].states[STATES.index(word)] += length(ranges)
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
                    self._examples(word, [Example(producer.producer, s, None, sent=False) for s in some])
            self.places.setdefault(p, []).append(places.row())

    # -- the whole

    def doubts(self) -> tuple[list[Problem], set[str], set[str]]:
        """See `captures.doubts`."""
        families = {protocol_of(producer.protocol) for producer in self.producers}
        problems, doubtful, disordered = captures.doubts(
            self.facts, self.others, self.plan.left_out, families
        )
        if self.plan.records is None:
            for family, endpoint in self._uncaptured():
                why = f"it is in a ledger of {family}, and no listener of this capture has it"
                problems.append(Problem("endpoint", endpoint, -1, why))
                doubtful.add(family)
        # Records come with an order of their own, whatever is missing among them.
        return problems, doubtful, disordered if self.plan.records is None else set()

    def _clocks(self) -> list[str]:
        """What is said of times that cannot be."""
        if not self.plan.timed:
            return []
        wrong = [p for p, mine in enumerate(self.sums) if mine.early_us >= CLOCK_US]
        wrong.sort(key=lambda p: -self.sums[p].early_us)
        told = [
            f"clocks: {self.sums[p].early:,} events of {self.producers[p].producer} arrived before they were "
            f"sent: the clocks differ by at least {self.sums[p].early_us / 1e6:,.3f} s"
            for p in wrong[: self.plan.examples]
        ]
        if len(wrong) > len(told):
            told.append(f"clocks: so did events of {len(wrong) - len(told):,} more producers")
        for fact in self.facts:
            if n := fact["timeless"]:
                why = "received before 1970 or after 2255: they have no latency"
                told.append(f"clocks: {fact['name']}: {n:,} units {why}")
        return told

    def _behind(self, verdicts: list[ProducerVerdict]) -> str:
        """What is said of events that a device reordered."""
        n = sum(x.counts.reordered for x in verdicts if protocol_of(x.protocol) in self.plan.published)
        return f" {n:,} reordered behind a device, where order is no promise." if n else ""

    def _uncaptured(self) -> list[tuple[str, str]]:
        arrived = [compare.OK, compare.RECOVERED, compare.CORRUPTED, UNEXPECTED]
        ledgers = [
            (producer.protocol, producer.url, bool(mine.states[arrived].any()))
            for producer, mine in zip(self.producers, self.sums, strict=True)
        ]
        here = {fact["listener"] for fact in self.facts}
        return captures.uncaptured(ledgers, [x for x in self.plan.listeners if x["name"] in here])

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
        allowed = [x for x in self.producers if allow_open and x.evidence == UNCLOSED]
        wrong = [
            x for x in self.producers if x.evidence != WHOLE and not (allow_open and x.evidence == UNCLOSED)
        ]
        wrong.sort(key=lambda x: -x.evidence)
        told = [x.why for x in wrong[:1]]
        if len(wrong) > 1:
            told.append(f"{_ledgers(len(wrong) - 1, 'other')} {'is' if len(wrong) == 2 else 'are'} not whole")
        if unread := self.ledger.unread:
            more = f" and {len(unread) - 1:,} more" if len(unread) > 1 else ""
            told.append(f"{unread[0]}{more} may be a ledger and is not read")
        return told, len(allowed)

    def _devices_left_out(self) -> list[str]:
        if not any(fact["devices_left_out"] for fact in self.facts):
            return []
        return [f"capture: more than {FOLLOWED:,} devices at a listener, gaps of the others are not told"]

    def gaps(self) -> tuple[list[int], list[Gap]]:
        """Gaps of each producer, joined where buckets meet, and the longest of all."""
        counts = [0] * len(self.producers)
        longest: list[Gap] = []
        open_: tuple[int, int, int, int] | None = None  # key of its last bucket, producer, first, events

        def close() -> None:
            nonlocal open_
            if open_ is not None:
                _, p, first, events = open_
                counts[p] += 1
                longest.append(Gap(self.producers[p].producer, first, events))
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
            counts[p] += row["inside"]
            longest += [Gap(self.producers[p].producer, first, size) for first, size in row["longest"]]
            if row["right"]:
                open_ = (key, p, row["first"] + n - row["right"], row["right"])
            if len(longest) > 4096:
                longest = sorted(longest, key=lambda gap: (-gap.events, gap))[:5]
        close()
        return counts, sorted(longest, key=lambda gap: (-gap.events, gap))[:5]

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
        most = max((x.longest_us for x in self.sums), default=0)
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

    def maps(self, verdicts: list[ProducerVerdict], doubtful: set[str]) -> tuple[tuple[Map, ...], int]:
        """The worst producers' faults by sequence, and how many more there are."""
        faulty = [p for p in self.places if any(keys for keys, _ in self.places[p])]
        faulty.sort(key=lambda p: (severity(verdicts[p].counts), p))
        out = []
        for p in faulty[:MAPS]:
            producer = self.producers[p]
            places = Places(producer.last)
            places.take(self.places[p])
            kinds = _doubted(places.counts.reshape(KINDS, -1), protocol_of(producer.protocol) in doubtful)
            parts = {}
            for code, word in enumerate((*STATES, "duplicated", "reordered")):
                at = np.flatnonzero(kinds[code])
                if len(at):
                    parts[word] = np.stack((at, kinds[code][at]), axis=1).tolist()
            out.append(Map(producer.producer, producer.last, places.width, parts))
        return tuple(out), len(faulty) - len(out)

    def verdict(self, limits: Limits, allow_open: bool = False) -> Verdict:
        """Add everything up; `stitch` and `unlisted` come before.

        Args:
            allow_open: a ledger without an end is no fault by itself.
        """
        problems, doubtful, disordered = self.doubts()
        unordered = (*self.plan.published, *disordered)
        untold_order = False
        gap_counts, longest = self.gaps()
        aside = sum(fact["events"] for fact in self.others)
        nobodys = self.strangers.plus(Counts(unknown=aside))
        total = nobodys
        verdicts = []
        cells: dict[int, int] = {}
        for p, (producer, mine) in enumerate(zip(self.producers, self.sums, strict=True)):
            counts = mine.counts(protocol_of(producer.protocol) in doubtful)
            broken_words = breaks(producer, counts, unordered)
            untold_order |= broken_words != breaks(producer, counts, self.plan.published)
            total = total.plus(counts)
            for cell, n in mine.cells.items():
                cells[cell] = cells.get(cell, 0) + n
            verdicts.append(
                ProducerVerdict(
                    producer.producer,
                    producer.protocol,
                    _harmless(producer.url),
                    producer.identity,
                    "checked" if producer.identity == "id" and self.plan.ordered else "not checked",
                    producer.closed,
                    counts,
                    gap_counts[p],
                    _latency(mine.cells, mine.longest_us),
                    broken_words,
                    producer.mode,
                    mine.early,
                    mine.early_us,
                    EVIDENCE[producer.evidence],
                )
            )
        if any(nobodys):
            verdicts.append(
                ProducerVerdict(
                    "",
                    "",
                    "",
                    "",
                    "not checked",
                    False,
                    nobodys,
                    0,
                    None,
                    ("unexpected",) if nobodys.unexpected else (),
                )
            )
        broken = [
            f"{n:,} {word}"
            for word in BREAKING
            if (n := sum(getattr(x.counts, word) for x in verdicts if word in x.breaks))
        ]
        broken += limits.broken(total)
        faults, still_open = self._faults(allow_open)
        untold = total.unknown or faults or untold_order
        code = ExitCode.BROKEN if broken else ExitCode.UNREACHABLE if untold else ExitCode.OK
        maps, left_out = self.maps(verdicts, doubtful)
        undecodable, quiet = (_summed(fact[name] for fact in self.facts) for name in ("undecodable", "quiet"))
        orders = {x.order for x in verdicts if x.producer}
        listeners = sorted({fact["listener"] for fact in self.facts})
        return Verdict(
            exit_code=code,
            sentence=_sentence(
                code, broken, total, [*faults, *_CAPTURE[: bool(doubtful or aside)]], still_open
            )
            + self._behind(verdicts),
            broken=tuple(broken),
            counts=total,
            producers=tuple(verdicts),
            gaps=sum(gap_counts),
            longest_gaps=tuple(longest),
            latency=_latency(cells, max((x.longest_us for x in self.sums), default=0)),
            order="partly" if len(orders) > 1 else orders.pop() if orders else "not checked",
            examples={},
            undecodable=undecodable,
            undecoded=[row for fact in self.facts for row in fact["undecoded"]][: self.plan.examples],
            capture={
                "listeners": listeners,
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
                "producers": len(self.producers),
                "listed": sum(producer.events for producer in self.producers),
                "complete": self.ledger.all_whole,
                "unread": len(self.ledger.unread),
            },
            problems=(
                *self._clocks(),
                *self._devices_left_out(),
                *(f"capture: {x.place}: {x.kind}: {x.reason}" for x in problems),
                *(f"ledger: {name}: it may be a ledger and is not read" for name in self.ledger.unread),
                *(f"ledger: {problem}" for producer in self.producers for problem in producer.problems),
            ),
            limits=limits,
            seconds={},
            timeline=self.timeline(doubtful),
            maps=maps,
            maps_left_out=left_out,
            devices=self.devices(),
        )


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for some in counts:
        for word, n in some.items():
            total[word] = total.get(word, 0) + n
    return total


def breaks(producer: Producer, counts: Counts, unordered: Sequence[str] = ()) -> tuple[str, ...]:
    """Words of a producer's counts that break its promise.

    Args:
        unordered: protocols of whose order nothing can be told here.
    """
    family = protocol_of(producer.protocol)
    ordered = family in ORDERED and family not in unordered and producer.mode != "async"
    # Where lines may be missing, so may one that says that an event was overtaken on purpose.
    ordered = ordered and producer.evidence != HOLES
    return tuple(word for word in BREAKING if getattr(counts, word) and (word != "reordered" or ordered))


def _harmless(url: str) -> str:
    """A URL of a ledger. Ours are redacted when they are written; whoever else wrote one may not have."""
    head, mark, query = url.partition("?")
    scheme, colons, rest = head.partition("://")
    if "@" in rest:
        head = f"{scheme}{colons}***@{rest.rpartition('@')[2]}"
    pairs = []
    for pair in query.split("&") if mark else ():
        name, equals, _ = pair.partition("=")
        open_ = name in OPTIONS and not OPTIONS[name].secret
        pairs.append(pair if open_ or not equals else f"{name}=***")
    return head + mark + "&".join(pairs)


def severity(counts: Counts) -> tuple[int, ...]:
    """Sorts the worst first: what breaks the promise, what may, what is only odd."""
    return (
        -(counts.lost + counts.corrupted + counts.unexpected + counts.reordered),
        -(counts.missing + counts.unknown + counts.dropped),
        -(counts.duplicated + counts.recovered),
    )


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
