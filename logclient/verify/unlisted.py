"""Ids that arrived and belong to no bucket: those of unknown producers, and unlisted sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient.evidence.arrays import I64, starts_of
from logclient.verify import rules, schema
from logclient.verify.ledger_facts import LAST_SEQUENCE
from logclient.verify.plan import Task
from logclient.verify.producer_tables import Column, ProducerTables
from logclient.verify.rows import Row, result_row

RANDOM = 1 << 40  # a client has made fewer events; ids at random seldom end with a lower number
NAMED = 1 << 16  # ids that become text at a time


class FirstArrivals:
    """Arrivals, one row for those with the same key: the first at the lowest listener, and the number ``n``.

    `split` gives rows of one key different numbers that must stay apart.
    """

    LEAST = 1 << 20  # rows that are collected before they are merged

    def __init__(self, *key: tuple[str, Any], split: Callable[[Any], I64] | None = None) -> None:
        self.key = [name for name, _ in key]
        self.split = split
        self.rows = np.empty(0, [*key, ("listener", np.int64), ("position", np.int64), ("n", np.int64)])
        self.parts: list[npt.NDArray[Any]] = []
        self.waiting = 0

    def add(self, row: Row, *key: npt.NDArray[Any]) -> None:
        """Add the arrivals of a row with the columns of their key."""
        part = np.empty(len(key[0]), self.rows.dtype)
        for name, column in zip(self.key, key, strict=True):
            part[name] = column
        part["listener"], part["position"], part["n"] = row.listener, row.positions(len(part)), 1
        self.parts.append(part)
        self.waiting += len(part)
        if self.waiting > max(self.LEAST, len(self.rows)):
            self.merge()

    def merge(self) -> npt.NDArray[Any]:
        """Return all rows, in the order of their keys."""
        rows = np.concatenate((self.rows, *self.parts))
        self.parts, self.waiting = [], 0
        rows = rows[np.lexsort([rows[name] for name in ("position", "listener", *reversed(self.key))])]
        apart = [self.split(rows)] if self.split is not None else []
        self.rows = sum_rows(rows, *(rows[name] for name in self.key), *apart)
        return self.rows


def sum_rows(rows: npt.NDArray[Any], *key: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the first row of each run of equal keys, with the sum of their ``n``."""
    starts = starts_of(*key)
    counts = np.add.reduceat(rows["n"], starts) if len(rows) else rows["n"]
    rows = rows[starts]
    rows["n"] = counts
    return rows


class UnlistedReducer:
    """A counter of the distinct ids in one of `UNLISTED_SHARES` shares, all of which it holds in memory."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.plan, self.ledger, self.writer, *_ = task
        self.tables = ProducerTables(self.ledger.last)
        # By id, those with the most marks first: they are stored as negative numbers.
        id_, marks = (("owner", np.int32), ("a", np.uint64), ("b", np.uint64)), ("marks", np.int64)
        self.arrivals = FirstArrivals(*id_, marks)

    def add(self, row: Row) -> None:
        """Add one row: producer, or a substitute for one, and two halves of an id, the first a sequence."""
        a, b = (row.array(name, np.uint64) for name in ("hashes", "times"))
        self.arrivals.add(row, row.array("places", np.int32), a, b, np.full(len(a), -row.value("base")))

    def finish(self) -> Iterator[dict[str, Any]]:
        """Return the rows of `RESULTS`, one for each producer."""
        rows = self.arrivals.merge()
        rows = sum_rows(rows, rows["owner"], rows["a"], rows["b"])
        rows["marks"] *= -1
        overdue = rows["marks"] & rules.OVERDUE != 0
        owners, starts = np.unique(rows["owner"], return_index=True)
        parts = np.split(rows, starts[1:]), np.split(overdue, starts[1:])
        for p, own, late in zip(owners.tolist(), *parts, strict=True):
            yield self._known(p, own) if p >= 0 else unknown_result(self.task, p, own, late)
        yield from self.tables.rows()

    def _known(self, p: int, rows: npt.NDArray[Any]) -> dict[str, Any]:
        facts = self.ledger
        sequences = rows["a"].astype(np.int64)
        inside = (sequences >= 1) & (sequences <= facts.last[p])
        beyond = ~inside & ((sequences < 1) | facts.whole[p])
        marks = facts.outcomes_at(p, sequences) | (sequences > facts.pending_after[p]) * rules.NEW
        state = rules.RULES[marks | rows["marks"] | rules.SEEN] & rules.STATE
        state[beyond] = schema.UNEXPECTED
        # The columns of `tally.BEYOND` follow each other as the states do.
        columns = state + ~inside * (Column.UNEXPECTED_BEYOND - schema.UNEXPECTED)
        self.tables.count("sums", rows["owner"], columns)
        self.tables.add_places(rows["owner"][inside], sequences[inside], state[inside])
        # The states under which the driver counts these sequences, without knowing of their arrival.
        was = rules.RULES[marks[inside]] & rules.STATE
        self.tables.count("sums", rows["owner"][inside], was, np.full(len(was), -1))
        head: dict[str, Any] = {"p": p, "examples": {}}
        for code in (schema.UNEXPECTED, schema.UNKNOWN, schema.PENDING):
            which = state == code
            word = schema.STATES[code]
            some = rows[which]
            self.writer.add(word, p, sequences[which], sequences[which], some["n"], False)
            if len(some) and code != schema.PENDING:
                where = some[["a", "listener", "position", "n"]][: self.plan.examples].tolist()
                name = facts.name(p)
                head["examples"][word] = [[name, a, None, *at, False] for a, *at in where]
        # The driver removes these sequences from the ranges that never arrived.
        never = np.sort(sequences[inside]).tobytes()
        return result_row("unlisted", head, values=never)


def unknown_result(
    task: Task, p: int, rows: npt.NDArray[Any], overdue: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    """Return the row of ids or bodies that are in no ledger.

    They are unexpected if all ledgers list what they must, or if they are `overdue`, and unknown if missing
    lines may list them. Where events are selected up to a time, an id as clients make it is unknown, too.
    `p` is `UNKNOWN_PRODUCER`, `APPLICATION_ID` or `WITHOUT_ID`.
    """
    plan, facts, writer, *_ = task
    unexpected = overdue | (facts.all_complete_us == schema.NEVER)
    if p == schema.UNKNOWN_PRODUCER and plan.selection.until_us is not None:
        # The ledger of a producer that has just begun may not be copied yet.
        unexpected &= rows["b"] & np.uint64(LAST_SEQUENCE) >= np.uint64(RANDOM)
    counts: dict[str, int] = {}
    examples: dict[str, list[list[Any]]] = {}
    for code, of_word in ((schema.UNEXPECTED, rows[unexpected]), (schema.UNKNOWN, rows[~unexpected])):
        word = schema.STATES[code]
        counts[word] = len(of_word)
        found = examples[word] = []
        shown = of_word if writer.wanted else of_word[: plan.examples]
        shown = shown if plan.others == "break" else rows[:0]
        for low in range(0, len(shown), NAMED):
            some = shown[low : low + NAMED]
            named = [_name(p, row) for row in some]
            writer.add_unknown(word, named, some["n"])
            where = some[["listener", "position", "n"]][: plan.examples - len(found)].tolist()
            found += [[*name, *at, False] for name, at in zip(named, where, strict=False)]
    return result_row("unlisted", {"p": p, "counts": counts, "examples": examples})


def _name(p: int, row: Any) -> tuple[str | None, int | None, str | None]:
    """Return producer, sequence and other (see `VIOLATIONS`) of an id, or of a body without one."""
    if p == schema.WITHOUT_ID:
        return None, None, f"{row['a']:016x}"
    a, b = int(row["a"]), int(row["b"])
    if p == schema.APPLICATION_ID:
        return None, None, f"{a:016x}{b:016x}"
    return f"{a:016x}{b >> 48:04x}", b & LAST_SEQUENCE, None
