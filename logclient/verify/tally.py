"""The tally: the results of all tasks added up on the driver."""

from __future__ import annotations

import itertools
import json
from array import array
from collections import defaultdict
from typing import Any

import numpy as np

from logclient.evidence import captures
from logclient.evidence.arrays import I64, intersect, subtract, total_length, union
from logclient.evidence.reports import SegmentReport
from logclient.files.capture import Problem
from logclient.verify.ledger_facts import DROPPED, FAILED, HANDED, LAST_SEQUENCE, LedgerFacts
from logclient.verify.order import StretchEdges
from logclient.verify.overview import CELLS, TimeCounts
from logclient.verify.plan import Plan
from logclient.verify.producer_tables import SCALES, Column, ProducerTables
from logclient.verify.schema import STATES, Example
from logclient.verify.verdict import Counts
from logclient.verify.violation_files import ViolationWriter

MAX_NAMED = 200  # the most producers with examples, for each word
SHARE = 1 << 14  # producers that `Summary` counts at a time
LONGEST = 5  # the most gaps that are reported

BEYOND = {word: Column[f"{word.upper()}_BEYOND"] for word in ("unexpected", "unknown", "pending")}
"""Words that also count distinct ids of no known producer."""


class Tally:
    """The sum of all rows of the tasks, on the driver.

    Call `add_row` for the results of the tasks, then `count_unlisted`, then `finish`.
    """

    def __init__(self, plan: Plan, facts: LedgerFacts) -> None:
        self.plan = plan
        self.ledger = facts
        # One row for each producer: a column for each state, then those of `Column`.
        self.sums: I64 = np.zeros((len(facts), len(STATES) + len(Column)), np.int64)
        self.faulty = np.zeros(len(facts), bool)  # producers that have any fault
        self.cells = np.zeros(CELLS, np.int64)  # the histogram of all latencies
        self.longest_us = 0
        self.unknown_producers = Counts()
        # Listener -> seen, duplicated, corrupted and reordered events.
        self.at: defaultdict[int, I64] = defaultdict(lambda: np.zeros(4, np.int64))
        # Of segments, or shares of records: those that were compared, those that were not because they
        # are of foreign runs, and those of runs that are not selected.
        self.reports: list[SegmentReport] = []
        self.foreign: list[SegmentReport] = []
        self.matched: set[str] = set()  # names of segments in which bodies without an id matched
        self.numbers: dict[str, list[tuple[I64, I64]]] = {}  # `ProducerTables`: keys and values, in parts
        self.files: list[bytes] = []  # of violations, see `ViolationWriter.take`
        self.times = TimeCounts(plan.grid, plan.families)
        self.edges = StretchEdges(facts)
        self._open_gaps: dict[int, list[list[int]]] = {}  # producer -> ranges that end where a bucket does
        self._gaps: list[tuple[int, int, int]] = []  # the longest: producer, first, events
        self._seen_unlisted = array("q"), array("q")  # producer, sequence
        self._found: dict[str, dict[str, list[Example]]] = {}  # word -> producer -> examples

    # -- rows of the tasks

    def add_row(self, row: dict[str, Any]) -> None:
        """Add one row of `rows.RESULTS`."""
        kind, head = row["kind"], json.loads(row["head"])
        if kind == "file":
            self.files.append(row["values"])
            return
        if kind == "times" or kind in SCALES:
            keys, values = (np.frombuffer(row[column], np.int64) for column in ("keys", "values"))
            if kind == "times":
                self.times.take(head, keys, values)
            else:
                self._add_table(kind, keys, values)
            return
        if kind in ("bucket", "unlisted"):
            for word, found in head["examples"].items():
                self._add_examples(word, [Example(*example) for example in found])
        if kind == "fact":
            self.reports.append(report := SegmentReport(**head))
            if report.matched:
                self.matched.add(report.name)
        elif kind == "matched":
            self.matched.add(head)
        elif kind == "order":
            self.edges.add(row)
        elif kind == "unlisted" and head["p"] < 0:
            self.unknown_producers = self.unknown_producers.plus(Counts(**head["counts"]))
        elif kind == "unlisted":
            self._seen_unlisted[0].extend([head["p"]] * (len(row["values"]) // 8))
            self._seen_unlisted[1].frombytes(row["values"])
        else:
            self._add_bucket(head)

    def _add_table(self, table: str, keys: I64, values: I64) -> None:
        if table == "sums":
            flat = self.sums.reshape(-1)
            longest = keys % SCALES[table] == Column.EARLY_US
            np.add.at(flat, keys[~longest], values[~longest])
            np.maximum.at(flat, keys[longest], values[longest])
            return
        self.numbers.setdefault(table, []).append((keys, values))
        if table == "latency":
            self.cells += np.bincount(keys % CELLS, values, CELLS).astype(np.int64)
        elif table == "places":
            self.faulty[keys // SCALES[table]] = True

    def _add_bucket(self, head: dict[str, Any]) -> None:
        for listener, *numbers in head.get("at", ()):
            self.at[listener] += numbers
        if gaps := head.get("gaps"):
            self._gaps += [(p, first, size) for p, first, size in gaps["longest"]]
            if len(self._gaps) > 4096:
                self._gaps = self.longest_gaps()
            for p, first, size in gaps["open"]:
                self._open_gaps.setdefault(p, []).append([first, first + size - 1])
        self.longest_us = max(self.longest_us, head.get("longest_us", 0))

    def producers_without_ledger(self) -> list[str]:
        """Return some producers of unknown events that have no ledger here."""
        found = self._found.get("unknown", {})
        return sorted(name for name in found if name != "~" and self.ledger.find(name) < 0)

    def doubts(self) -> tuple[list[Problem], set[str], set[str], dict[str, int]]:
        """Find what makes the captures incomplete, see `captures.find_doubts`."""
        plan = self.plan
        given = self.reports, self.foreign, plan.left_out, self.ledger.families, plan.selection.since_us
        return captures.find_doubts(*given)

    # -- examples

    def _add_examples(self, word: str, found: list[Example]) -> None:
        """Keep the first few of each producer, whatever the order of the tasks."""
        kept = self._found.setdefault(word, {})
        for example in found:
            own = kept.setdefault(example.producer or "~", [])
            own.append(example)
            if len(own) > 5 * self.plan.examples:
                self._trim(own)
        if len(kept) > 2 * MAX_NAMED:
            for name in self._ranked(kept)[MAX_NAMED:]:
                del kept[name]

    def _ranked(self, kept: dict[str, list[Example]]) -> list[str]:
        """Return the producers by the arrival of their first example, and by name."""
        for examples in kept.values():
            self._trim(examples)
        return sorted(kept, key=lambda name: ([example.position for example in kept[name][:1]], name))

    def _trim(self, examples: list[Example]) -> None:
        examples.sort(key=lambda e: (-1 if e.sequence is None else e.sequence, e.other or ""))
        del examples[self.plan.examples :]

    def choose_examples(self) -> dict[str, list[Example]]:
        """Choose a few examples for each word from many producers, sorted by producer and sequence.

        Of many producers those are chosen whose first examples arrived first, because `examples.resolve`
        reads segments up to their last example. Where the capture is incomplete, it will show some as
        ``unknown``, and cut that list again.
        """
        out = {}
        for word, kept in self._found.items():
            turns = itertools.zip_longest(*(kept[name] for name in self._ranked(kept)[:MAX_NAMED]))
            found = [example for turn in turns for example in turn if example is not None]
            out[word] = sorted(
                found[: self.plan.examples],
                key=lambda e: (e.producer or "~", -1 if e.sequence is None else e.sequence, e.other or ""),
            )
        return out

    # -- sequences that are in no bucket

    def count_unlisted(self, writer: ViolationWriter) -> None:
        """Count the sequences outside all live buckets, by ranges: no events are listed there."""
        owners, seen = (np.frombuffer(values, np.int64) for values in self._seen_unlisted)
        order = np.lexsort((seen, owners))
        owners, seen = owners[order], seen[order]
        ledger, last = self.ledger, self.ledger.last
        own = np.maximum(-(-ledger.places >> ledger.bits), 1)  # buckets with places of the producer
        first, end = (np.searchsorted(ledger.live, ledger.bases[:-1] + n) for n in (0, own))
        judged = np.where(ledger.addressed, end - first == own, ledger.rows["listed"] == last)
        for p in np.flatnonzero((last > 0) & ~judged & ledger.selected).tolist():
            arrived = seen[slice(*np.searchsorted(owners, (p, p + 1)))]
            live = ledger.live[first[p] : end[p]]
            self._count_unlisted_of(p, live, union(arrived[:, None].repeat(2, axis=1)), writer)

    def _count_unlisted_of(self, p: int, live: I64, seen: I64, writer: ViolationWriter) -> None:
        """Count the sequences of a producer that no bucket has, or no share of the events without ids."""
        judged = self.ledger.rows_of("spans", p)[:, 1:3]
        if self.ledger.addressed[p]:
            first = self.ledger.before[p] + ((live - self.ledger.bases[p]) << self.ledger.bits) + 1
            judged = np.stack((first, first + (1 << self.ledger.bits) - 1), axis=1)
        judged = union(np.concatenate((judged, self.ledger.rows_of("outside", p)[:, 1:])))
        region = subtract(np.array([[1, self.ledger.last[p]]]), judged)
        if not len(region):
            return
        rows = self.ledger.rows_of("outcomes", p)
        # The sequences with each of these outcomes, or a stronger one.
        dropped, failed, sent = (union(rows[rows[:, 3] >= code, 1:3]) for code in (DROPPED, FAILED, HANDED))
        dropped = intersect(region, subtract(dropped, failed))
        missing = intersect(region, subtract(failed, sent))
        undecided = subtract(subtract(region, dropped), missing)
        newer = np.array([[int(self.ledger.pending_after[p]) + 1, LAST_SEQUENCE + 1]], np.int64)
        tables = ProducerTables(self.ledger.last)
        for word, ranges in (
            ("dropped", dropped),
            ("missing", missing),
            ("unknown", subtract(undecided, newer)),
            ("pending", intersect(undecided, newer)),
        ):
            self.sums[p, STATES.index(word)] += total_length(ranges)
            ranges = subtract(ranges, seen)
            tables.add_ranges(p, ranges, STATES.index(word))
            writer.add(word, p, ranges[:, 0], ranges[:, 1], 0, False)
            if word in ("missing", "unknown"):
                some = ranges[: self.plan.examples, 0].tolist()
                name = self.ledger.name(p)
                self._add_examples(word, [Example(name, s, None, sent=False) for s in some])
        for row in tables.rows():
            self.add_row(row)

    # -- gaps

    def longest_gaps(self) -> list[tuple[int, int, int]]:
        """Return producer, first sequence and number of events of the longest gaps, longest first."""
        return sorted(self._gaps, key=lambda gap: (-gap[2], gap))[:LONGEST]

    def finish(self) -> None:
        """Join the gaps that reach over the edges of buckets."""
        for p, ranges in self._open_gaps.items():
            joined = union(np.array(ranges, np.int64)).tolist()
            self.sums[p, Column.GAPS] += len(joined)
            self._gaps += [(p, first, last - first + 1) for first, last in joined]
