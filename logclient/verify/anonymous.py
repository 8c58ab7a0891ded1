"""The comparison of events without an id of their own, as a multiset of hashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient.verify.arrays import I64, U64
from logclient.verify.ledger import ACKED, HANDED, NONE, PackedLedger
from logclient.verify.overview import DUPLICATED, LOST_SENT, MISSING_SENT, SequenceCounts, TimeCounts
from logclient.verify.plan import Plan
from logclient.verify.schema import (
    EVENT_BITS,
    EXCLUDED,
    LISTENER,
    LOST,
    MISSING,
    OK,
    PENDING,
    RECOVERED,
    STATES,
    UNIT_BITS,
    UNKNOWN,
    WITHOUT_ID,
)
from logclient.verify.unlisted import split_id, unknown_result
from logclient.verify.violation_files import ViolationWriter
from logclient.verify.work_files import result_row

__all__ = ["AnonymousReducer"]


class AnonymousReducer:
    """The comparison of one share of the hashes: events without an id, with arrived bodies without an id.

    Copies of one body cannot be distinguished. As many events as copies arrived count as seen, acknowledged
    ones first. ``lost`` therefore counts only events that no assignment can explain.

    Args:
        plan: of the comparison.
        packed: the ledgers.
        writer: for the faults.
        times: the task's counts over time.
        key: the share.
    """

    def __init__(
        self, plan: Plan, packed: PackedLedger, writer: ViolationWriter, times: TimeCounts, key: int
    ) -> None:
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
            ("owner", np.int32),
            ("sequence", np.int64),
            ("outcome", np.int32),
            ("created_us", np.int64),
        ]
    )
    ARRIVED = np.dtype([("hash", np.uint64), ("n", np.int64), ("listener", np.int64), ("position", np.int64)])

    def add(
        self, listener: int, owner: npt.NDArray[np.int32], hashes: U64, positions: I64, outcome: U64
    ) -> None:
        """Add one row.

        Args:
            listener: with the device; -1 for events of the ledgers.
            owner: producers of the ledgers' events.
            hashes: of the bodies.
            positions: of the arrivals; the sequences of the ledgers' events.
            outcome: outcome and time step of the ledgers' events.
        """
        if listener < 0:
            rows = np.empty(len(hashes), self.LEDGER)
            rows["hash"], rows["owner"], rows["sequence"] = hashes, owner, positions
            # `gather` packs the outcome and the time step of the grid into one number.
            rows["outcome"] = outcome & np.uint64(7)
            rows["created_us"] = self.times.grid.start_us
            rows["created_us"] += (outcome >> np.uint64(3)).astype(np.int64) * self.times.grid.width_us
            self.ledger.append(rows)
            return
        part = np.empty(len(hashes), self.ARRIVED)
        part["hash"], part["n"], part["listener"], part["position"] = hashes, 1, listener, positions
        self.parts.append(part)
        self.waiting += len(part)
        if self.waiting > max(1 << 20, len(self.arrived)):
            self.compact()

    def compact(self) -> None:
        """Merge the collected arrivals: one row for each hash and segment, with its first arrival."""
        rows = np.concatenate((self.arrived, *self.parts))
        self.parts.clear()
        self.waiting = 0
        if len(rows):
            rows = rows[np.lexsort((rows["position"], rows["listener"], rows["hash"]))]
            self.arrived = _sum_by_key(rows, np.stack((rows["hash"], *_segments_of(rows)), axis=1))

    def finish(self) -> Iterator[dict[str, Any]]:
        """Judge the share, and return its rows of `RESULTS`."""
        self.compact()
        rows = np.concatenate(self.ledger) if self.ledger else np.empty(0, self.LEDGER)
        rows = rows[np.lexsort((rows["sequence"], rows["owner"], -rows["outcome"], rows["hash"]))]
        starts = (
            np.concatenate(([True], rows["hash"][1:] != rows["hash"][:-1]))
            if len(rows)
            else np.empty(0, bool)
        )
        group = np.cumsum(starts) - 1
        begins = np.flatnonzero(starts)
        nth = np.arange(len(rows)) - begins[group] if len(rows) else np.empty(0, np.int64)
        hashes = rows["hash"][begins]
        arrived = self.arrived
        if len(arrived):
            ours = arrived[np.isin(arrived["hash"], hashes)]
            for listener, rank in np.unique(np.stack(_segments_of(ours), axis=1), axis=0).tolist():
                yield result_row("matched", self.key, int(listener), json.dumps(int(rank)))
            arrived = _sum_by_key(arrived, arrived["hash"][:, None])
        have = arrived["hash"]
        copies = np.zeros(len(hashes), np.int64)
        matched = np.zeros(len(have), bool)
        if len(have) and len(hashes):
            at = np.minimum(np.searchsorted(have, hashes), len(have) - 1)
            hit = have[at] == hashes
            copies[hit] = arrived["n"][at[hit]]
            matched[at[hit]] = True
        seen = nth < copies[group] if len(rows) else np.empty(0, bool)
        sure, acked = rows["outcome"] >= HANDED, rows["outcome"] == ACKED
        owner = rows["owner"]
        undecided = np.where(rows["sequence"] > self.packed.pending_after[owner], PENDING, UNKNOWN)
        open_ = (rows["outcome"] == NONE) & ~self.packed.whole[owner]
        unseen = np.where(acked, LOST, np.where(open_, undecided, MISSING))
        state = np.where(seen, np.where(sure, OK, RECOVERED), unseen)
        sizes = np.diff(np.append(begins, len(rows)))
        extra = np.maximum(copies - sizes, 0)
        leading = rows["owner"][begins]  # the producer to whom extra copies are charged
        for p in np.unique(rows["owner"]).tolist():
            own = rows["owner"] == p
            family = int(self.packed.family[p])
            counts = SequenceCounts(int(self.packed.last[p]))
            self.times.add(family, rows["created_us"][own & seen], OK)
            head: dict[str, Any] = {
                "p": p,
                "counts": np.bincount(state[own], minlength=EXCLUDED).tolist(),
                "duplicated": int(extra[leading == p].sum()),
                "examples": {},
                "when": {},
            }
            for code in (LOST, MISSING, RECOVERED, UNKNOWN, PENDING):
                some = own & (state == code)
                sequences = np.sort(rows["sequence"][some])
                kind = {LOST: LOST_SENT, MISSING: MISSING_SENT}.get(code, code)
                self.times.add(family, rows["created_us"][some], kind)
                counts.add(sequences, kind)
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
            counts.add(sequences, DUPLICATED, extra[which])
            self.writer.add("duplicated", p, sequences, sequences, extra[which] + sizes[which], True)
            yield result_row("anonymous", self.key, -1, json.dumps(head), *counts.row(), p=p)
        unknown = arrived[~matched]
        if len(unknown):
            named = ((*split_id(WITHOUT_ID, row["hash"], 0), row) for row in unknown)
            yield unknown_result(
                self.plan, self.packed, self.writer, self.key, WITHOUT_ID, len(unknown), named
            )


def _segments_of(rows: npt.NDArray[Any]) -> tuple[U64, U64]:
    """Return listener and rank of the segments of rows of `AnonymousReducer.ARRIVED`."""
    ranks = rows["position"] >> (UNIT_BITS + EVENT_BITS)
    return (rows["listener"] & LISTENER).astype(np.uint64), ranks.astype(np.uint64)


def _sum_by_key(rows: npt.NDArray[Any], keys: U64) -> npt.NDArray[Any]:
    """Return the first row of each key with the sum of their counts. The keys are in order."""
    starts = np.flatnonzero(np.concatenate(([True], (keys[1:] != keys[:-1]).any(axis=1))))
    counts = np.add.reduceat(rows["n"], starts)
    rows = rows[starts]
    rows["n"] = counts
    return rows
