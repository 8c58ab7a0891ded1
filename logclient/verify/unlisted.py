"""Ids that arrived and belong to no bucket: those of unknown producers, and unlisted sequences."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient.evidence.arrays import starts_of
from logclient.verify import schema
from logclient.verify.ledger_facts import DROPPED, FAILED, LAST_SEQUENCE
from logclient.verify.plan import Task
from logclient.verify.rows import Row, result_row


class UnlistedReducer:
    """A counter of the distinct ids in one of `UNLISTED_SHARES` shares, all of which it holds in memory."""

    COMPACT = 1 << 20  # rows that are collected before they are merged

    def __init__(self, task: Task, key: int) -> None:
        self.task = task
        self.plan, self.ledger, self.writer, *_ = task
        self.key = key
        self.whole: npt.NDArray[Any] = np.empty(0, self.ROW)
        self.parts: list[npt.NDArray[Any]] = []
        self.waiting = 0

    ROW = np.dtype(
        [
            ("owner", np.int32),
            ("listener", np.int64),
            ("a", np.uint64),
            ("b", np.uint64),
            ("position", np.int64),
            ("n", np.int64),
        ]
    )

    def add(self, row: Row) -> None:
        """Add one row: producer, or a substitute for one, and two halves of an id, the first a sequence."""
        owner = row.array("places", np.int32)
        part = np.empty(len(owner), self.ROW)
        part["owner"], part["listener"], part["n"] = owner, row.listener, 1
        part["a"], part["b"] = row.array("hashes", np.uint64), row.array("times", np.uint64)
        part["position"] = row.positions(len(owner))
        self.parts.append(part)
        self.waiting += len(part)
        if self.waiting > max(self.COMPACT, len(self.whole)):
            self.compact()

    def compact(self) -> None:
        """Merge the collected rows: one row for each distinct id, with its first arrival and its copies."""
        rows = np.concatenate((self.whole, *self.parts))
        self.parts.clear()
        self.waiting = 0
        rows = rows[np.lexsort((rows["position"], rows["listener"], rows["b"], rows["a"], rows["owner"]))]
        if len(rows):
            starts = starts_of(rows["owner"], rows["a"], rows["b"])
            copies = np.add.reduceat(rows["n"], starts)
            rows = rows[starts]
            rows["n"] = copies
        self.whole = rows

    def finish(self) -> Iterator[dict[str, Any]]:
        """Return the rows of `RESULTS`, one for each producer."""
        self.compact()
        rows = self.whole
        owners, starts = np.unique(rows["owner"], return_index=True)
        for p, own in zip(owners.tolist(), np.split(rows, starts[1:]), strict=True):
            yield self._known(p, own) if p >= 0 else self._unknown(p, own)

    def _known(self, p: int, rows: npt.NDArray[Any]) -> dict[str, Any]:
        """Judge unlisted sequences of a producer that has a ledger."""
        packed = self.ledger
        sequences = rows["a"].astype(np.int64)
        outcome = packed.outcomes_at(p, sequences)
        inside = (sequences >= 1) & (sequences <= packed.last[p])
        beyond = ~inside & ((sequences < 1) | packed.whole[p])
        undecided = np.where(sequences > packed.pending_after[p], schema.PENDING, schema.UNKNOWN)
        state = np.where((outcome == DROPPED) | beyond, schema.UNEXPECTED, undecided)
        # The states under which the driver counts these sequences, without knowing of their arrival.
        was = np.where(outcome == FAILED, schema.MISSING, undecided)
        was = np.where(outcome == DROPPED, schema.DROPPED_STATE, was)[inside]
        counts = np.bincount(was, minlength=schema.EXCLUDED).tolist()
        head: dict[str, Any] = {"p": p, "was": counts, "examples": {}}
        for code in (schema.UNEXPECTED, schema.UNKNOWN, schema.PENDING):
            which = state == code
            head[schema.STATES[code]] = [int((which & inside).sum()), int((which & ~inside).sum())]
            some = rows[which]
            self.writer.add(schema.STATES[code], p, sequences[which], sequences[which], some["n"], False)
            if len(some) and code != schema.PENDING:
                head["examples"][schema.STATES[code]] = [
                    [int(row["a"]), int(row["listener"]), int(row["position"]), int(row["n"]), False]
                    for row in some[: self.plan.examples]
                ]
        # The driver removes these sequences from the ranges that never arrived.
        return result_row(
            "unlisted", self.key, text=json.dumps(head), values=np.sort(sequences[inside]).tobytes(), p=p
        )

    def _unknown(self, p: int, rows: npt.NDArray[Any]) -> dict[str, Any]:
        named = ((*split_id(p, row["a"], row["b"]), row) for row in rows)
        return unknown_result(self.task, self.key, p, len(rows), named)


def unknown_result(
    task: Task,
    key: int,
    p: int,
    n: int,
    named: Iterator[tuple[str | None, int | None, str | None, Any]],
) -> dict[str, Any]:
    """Return the row of `n` ids or bodies that are in no ledger.

    They are unexpected if all ledgers are whole. Otherwise missing lines may list them, and they are unknown.
    `p` is `UNKNOWN_PRODUCER`, `APPLICATION_ID` or `WITHOUT_ID`. `named` has producer, sequence, other (see
    `VIOLATIONS`) and the arrival's row.
    """
    plan, facts, writer, *_ = task
    word = schema.STATES[schema.UNEXPECTED if facts.all_whole else schema.UNKNOWN]
    examples: list[list[Any]] = []
    while some := list(itertools.islice(named, 1 << 16 if writer.wanted else plan.examples)):
        writer.add_unknown(
            word, [(producer, seq, other, int(row["n"])) for producer, seq, other, row in some]
        )
        for *ident, row in some[: plan.examples - len(examples)]:
            examples.append([*ident, int(row["listener"]), int(row["position"]), int(row["n"])])
        if not writer.wanted:
            break
    head = {"p": p, word: n, "examples": {word: examples}}
    return result_row("unlisted", key, text=json.dumps(head))


def split_id(p: int, a: Any, b: Any) -> tuple[str | None, int | None, str | None]:
    """Return producer, sequence and other (see `VIOLATIONS`) of an id, given as two halves."""
    a, b = int(a), int(b)
    if p == schema.UNKNOWN_PRODUCER:
        return f"{a:016x}{b >> 48:04x}", b & LAST_SEQUENCE, None
    if p == schema.APPLICATION_ID:
        return None, None, f"{a:016x}{b:016x}"
    return None, None, f"{a:016x}"
