"""The sequences of each producer outside a selection of time, as ranges. The rules: ``docs/verify-rules.md``.

A listed event has a time. Any other sequence is outside if the next listed event above it was made before the
selected time, or the next one below it after that. Between two listed events whose clock was set back it is
outside if both of them are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from logclient.evidence.arrays import I64, keyed, overlaps, union
from logclient.evidence.selection import Selection
from logclient.verify.ledger_facts import LAST_SEQUENCE


class Outside(NamedTuple):
    """The selection's effect on some producers."""

    ranges: I64  # rows of producer, first, last: what is left out, from sequence 0 to `LAST_SEQUENCE`
    selected: I64  # likewise: the listed events that are selected
    settled: I64  # for each producer the highest listed sequence made before `until`; without it, the highest


def find_outside(
    when: I64, spans: I64, base: int, started_us: I64, ended_us: I64, selection: Selection
) -> Outside:
    """Find the sequences that are left out.

    `when` has rows of producer, first, last and the time, see `ledger_lines.survey`; `spans` those of listed
    events, sorted and disjoint. `base` is the number of the first producer. An unknown time of a ledger's
    beginning is the lowest number, one of its end the highest.
    """
    n = len(started_us)
    listed = union(keyed(spans, base))
    index, parts = overlaps(keyed(when, base), listed)
    p = when[index, 0]
    parts -= (p - base)[:, None] << 48
    known = np.column_stack((p, parts, when[index, 3]))
    # The beginning and the end of a ledger are neighbours, too.
    producers = base + np.arange(n)
    none, last = np.full(n, -1, np.int64), np.full(n, LAST_SEQUENCE + 1, np.int64)
    begin = np.column_stack((producers, none, none, selection.place(started_us) > 0))
    end = np.column_stack((producers, last, last, -(selection.place(ended_us) < 0).astype(np.int64)))
    known = np.concatenate((begin, known, end))
    known = known[np.lexsort((known[:, 1], known[:, 0]))]
    below, above = known[:-1], known[1:]
    out = (below[:, 0] == above[:, 0]) & (below[:, 2] + 1 < above[:, 1])
    set_back = (below[:, 3] > above[:, 3]) & (below[:, 1] >= 0) & (above[:, 1] <= LAST_SEQUENCE)
    out &= np.where(set_back, below[:, 3] * above[:, 3] != 0, (below[:, 3] > 0) | (above[:, 3] < 0))
    gaps = np.column_stack((below[out, 0], below[out, 2] + 1, above[out, 1] - 1))
    real = known[(known[:, 1] >= 0) & (known[:, 1] <= LAST_SEQUENCE)]
    settled = np.full(n, LAST_SEQUENCE if selection.until_us is None else 0)
    early = real[real[:, 3] <= 0]
    np.maximum.at(settled, early[:, 0] - base, early[:, 2])
    left_out = np.concatenate((gaps, real[real[:, 3] != 0, :3]))
    return Outside(_joined(left_out), _joined(real[real[:, 3] == 0, :3]), settled)


def _joined(rows: I64) -> I64:
    """Return disjoint rows of producer, first and last in order, with neighbours joined."""
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    edges = np.ones(len(rows) + 1, bool)  # before and behind each row
    edges[1:-1] = (rows[1:, 0] != rows[:-1, 0]) | (rows[1:, 1] != rows[:-1, 2] + 1)
    return np.column_stack((rows[edges[:-1], :2], rows[edges[1:], 2]))


def contained(rows: I64, p: I64, sequences: I64) -> npt.NDArray[np.bool_]:
    """Return which sequences of producers are in sorted and disjoint rows of producer, first and last."""
    n = len(rows)
    if not n:
        return np.zeros(len(p), bool)
    # Both in one order: a range comes before the sequences in it.
    owners, numbers = np.concatenate((rows[:, 0], p)), np.concatenate((rows[:, 1], sequences))
    order = np.lexsort((np.arange(len(owners)) >= n, numbers, owners))
    at = np.empty(len(owners), np.int64)
    at[order] = np.cumsum(order < n) - 1
    at = at[n:]
    row = rows[np.maximum(at, 0)]
    inside: npt.NDArray[np.bool_] = (at >= 0) & (row[:, 0] == p) & (sequences <= row[:, 2])
    return inside
