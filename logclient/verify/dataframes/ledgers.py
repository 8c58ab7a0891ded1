"""Ledgers as rows: those of `LEDGER` for each event that a producer names, those of `EVENTS` with its word.

A task reads whole producers, because the outcome of an event may be in any later file, and reads them twice:
for everything else, and for hashes and times. Words are the violations of a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logclient.errors import LedgerError
from logclient.evidence import ledger_files
from logclient.evidence.arrays import I64, U64, expand, keyed, subtract, total_length, union
from logclient.verify import ledger_lines, ledger_merge, ledger_rows
from logclient.verify.dataframes import arrow
from logclient.verify.ledger_facts import OUTCOMES
from logclient.verify.rows import row_batch

ROWS = 1 << 14  # in one batch
MOST_PRODUCERS = 1 << 13  # that are read at once
MOST_ROWS = 1 << 40  # sequences that no line lists may be as many as a damaged number says

LEDGER = pa.schema(
    [
        ("producer", pa.string()),  # 20 hex digits
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("sequence", pa.int64()),
        ("created", arrow.TIME),  # null: no line lists the event
        ("hash", pa.int64()),  # Spark's xxhash64(body); likewise
        ("outcome", pa.string()),  # null: no line names the event
        ("reason", pa.string()),
    ]
)
"""The columns of ``logclient-ledger``."""
EVENTS = pa.schema(
    [
        ("id", pa.string()),  # 32 hex digits; else ~ and the hash of the own id or the body
        *LEDGER,
        ("verdict", pa.string()),
        ("copies", pa.int64()),  # how often it arrived; null where that is not known
        ("reordered", pa.bool_()),
    ]
)
"""The columns of ``logclient-events``."""
_COPIES = {"lost": 0, "missing": 0, "dropped": 0, "recovered": 1, "corrupted": 1}  # at least


class _Ranges:
    """Disjoint ranges of keys, at least one, with values. A key is a producer's number above a sequence."""

    def __init__(self, rows: I64, values: I64) -> None:
        order = np.argsort(rows[:, 0], kind="stable")
        self.first, self.last, self.value = rows[order, 0], rows[order, 1], values[order]

    def find(self, keys: I64) -> tuple[npt.NDArray[np.bool_], I64]:
        """Return which of some keys are in a range, and the values of these."""
        at = np.maximum(np.searchsorted(self.first, keys, side="right") - 1, 0)
        inside = (self.first[at] <= keys) & (keys <= self.last[at])
        return inside, self.value[at[inside]]


class _Words:
    def __init__(self, violations: pa.Table, names: list[str]) -> None:
        owner = np.asarray(pc.index_in(violations["producer"], pa.array(names, pa.string())))
        first, last, copies = (np.asarray(violations[name]) for name in ("first", "last", "copies"))
        self.keys = keyed(np.column_stack((owner, first, last)).astype(np.int64).reshape(-1, 3))
        kind_of = np.asarray(violations["kind"])
        self.kinds = ["ok", *violations["kind"].unique().to_pylist()]
        self.tables: dict[str, _Ranges] = {}
        for kind in self.kinds[1:]:
            some = kind_of == kind
            known = copies[some].astype(np.int64)
            if kind != "duplicated":
                # Along a range the number may differ. More than one is a row of `duplicated`, too.
                known = np.where(first[some] == last[some], known, _COPIES.get(kind, -1))
            self.tables[kind] = _Ranges(self.keys[some], known)

    def columns(self, keys: I64, listed: bool) -> list[pa.Array]:
        """Return verdict, copies and reordered of some events, all of them listed or none."""
        n = len(keys)
        word, again, copies = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, int(listed))
        reordered = np.zeros(n, bool)
        for kind, table in self.tables.items():
            inside, values = table.find(keys)
            if kind == "reordered":
                reordered = inside
            elif kind == "duplicated":
                again[inside] = values
            else:
                word[inside], copies[inside] = self.kinds.index(kind), values
        copies = np.where(again > 0, again, copies)
        words = pa.array(self.kinds).take(pa.array(word))
        return [words, pa.array(copies, mask=copies < 0), pa.array(reordered)]


def rows_of(
    parts: Sequence[ledger_files.Part], violations: pa.Table | None = None, *, strict: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the events of some producers.

    `parts` are all files of their ledgers; none: of producers in the violations that have none. With the
    violations of a verdict on these and on others without a ledger, rows are those of `EVENTS`. If `strict`,
    a line that cannot be read is an error.
    """
    found = ledger_lines.survey(parts)
    for fact in found["facts"]["files"] if strict else ():
        for problem in fact.get("problems", ()):
            raise LedgerError(f"ledger: {fact['path']} {problem.partition(' ')[2]}")  # line and reason
    facts = ledger_merge.merge([found], 1)
    words = None
    names = [one.producer for one in facts.producers]
    if violations is not None:
        producer = violations["producer"]
        others = sorted({*producer.unique().to_pylist()} - {*names, None})
        if parts:
            # Ids of applications, and bodies without any, that are of no event of a ledger.
            for some in violations.filter(pc.is_null(producer)).to_batches(ROWS):
                ids = pc.binary_join_element_wise("~", some["other"], "")
                yield row_batch(
                    len(some), EVENTS, id=ids, verdict=some["kind"], copies=some["copies"], reordered=False
                )
            for low in range(0, len(others), MOST_PRODUCERS):
                share = pa.array(others[low : low + MOST_PRODUCERS])
                yield from rows_of([], violations.filter(pc.is_in(producer, share)))
            violations = violations.filter(pc.is_in(producer, pa.array(names)))
        names = names or others
        words = _Words(violations, names)
    nothing = [None] * len(names)
    owners = [
        pa.array(names, pa.string()),
        pa.array([one.host or None for one in facts.producers] + nothing, pa.string()),
        pa.array([one.pid or None for one in facts.producers] + nothing, pa.int64()),
    ]
    prefixes = np.frombuffer(bytes.fromhex("".join(names)), np.uint8).reshape(-1, 10)
    head, tail = ledger_files.prefix_words(prefixes)
    reasons = pa.array(facts.reasons)
    rows = facts.tables["outcomes"]
    outcomes = []
    # The strongest outcome counts, and the first of its reasons: they come last.
    for code, reason in sorted({(code, -reason) for code, reason in rows[:, 3:].tolist()}):
        those = union(keyed(rows[(rows[:, 3] == code) & (rows[:, 4] == -reason)]))
        outcomes.append((code, -reason, _Ranges(those, those[:, 0])))

    def batch(keys: I64, hashes: U64 | None = None, created: I64 | None = None) -> pa.RecordBatch:
        n, listed = len(keys), hashes is not None
        p, sequences = keys >> 48, keys & ((1 << 48) - 1)
        outcome, reason = np.full(n, 0 if listed else -1), np.zeros(n, np.int64)
        for code, number, table in outcomes:
            inside, _ = table.find(keys)
            outcome[inside], reason[inside] = code, number
        columns = [
            *(column.take(pa.array(p)) for column in owners),
            pa.array(sequences),
            pa.nulls(n, arrow.TIME) if created is None else arrow.times(created),
            pa.nulls(n, pa.int64()) if hashes is None else pa.array(hashes.view(np.int64)),
            pa.array(OUTCOMES).take(pa.array(outcome, mask=outcome < 0)),
            reasons.take(pa.array(reason, mask=outcome < 0)),
        ]
        if words is None:
            return pa.record_batch(columns, schema=LEDGER)
        ids = arrow.ids(head[p], tail[p], sequences, np.ones(n, bool))
        return pa.record_batch([ids, *columns, *words.columns(keys, listed)], schema=EVENTS)

    for spans, hashes, created in ledger_rows.pieces(parts, 0, facts, facts.spans):
        at = expand(np.column_stack((spans[:, 3], spans[:, 3] + spans[:, 2] - spans[:, 1])))
        yield batch(expand(keyed(spans)), hashes[at], created[at])
    named = union(np.concatenate((keyed(rows), *([words.keys] if words else []))))
    unlisted = subtract(named, union(keyed(facts.spans)))
    if (total := total_length(unlisted)) > MOST_ROWS:
        raise LedgerError(f"ledger: {total} sequences that no line lists are too many for a table")
    ends = np.cumsum(unlisted[:, 1] - unlisted[:, 0] + 1)
    for low in range(0, total, ROWS):
        at = np.arange(low, min(low + ROWS, total))
        which = np.searchsorted(ends, at, side="right")
        yield batch(unlisted[which, 1] + 1 - ends[which] + at)
