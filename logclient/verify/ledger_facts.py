"""What ledgers say about their producers and events, in tables."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient.evidence.arrays import I64, U64
from logclient.evidence.selection import CLOCKS_US
from logclient.verify.schema import NEVER

# Outcomes, weakest first. Where a ledger has two for one sequence, the stronger one holds.
NONE, DROPPED, FAILED, HANDED, ACKED = range(5)
AFTER_END = 8  # added to an outcome that a capture which goes on may not have yet
OUTCOMES = ("undecided", "dropped", "failed", "handed", "acked")  # their names
LAST_SEQUENCE = (1 << 48) - 1
NEVER_COMPLETE = int(np.iinfo(np.int64).min)  # in place of a time: a ledger may lack any event

# The completeness of a ledger. The last value that applies counts.
WHOLE, UNCLOSED, STOPPED, HOLES = range(4)
EVIDENCE = ("whole", "unclosed", "stopped", "holes")


class Producer(NamedTuple):
    """A producer's ledger as a whole."""

    producer: str
    protocol: str
    url: str
    identity: str  # "id" or "none"
    last: int  # the highest known sequence
    pending_after: int  # undecided sequences above this one are pending, not unknown
    last_line_us: int  # the time of its last line that has one; 0: none has
    waiting: int  # events without an outcome, by its last ``alive`` line
    goes_on: bool  # in a part that is not here
    ended: bool  # no process writes it any more, although it has no ``close`` line
    closed: bool
    evidence: int  # index of EVIDENCE
    problems: list[str]
    mode: str  # of protocols with several: Logjam's "request" or "async"
    host: str  # of the process; empty: not known
    service: str  # likewise, and its version
    service_version: str
    pid: int  # 0: not known
    started_us: int  # when its ledger was begun, in microseconds since 1970; 0: not known

    @property
    def fault(self) -> str:
        """The reason why the ledger is not whole."""
        words = self.problems[0]
        fault = words.removeprefix(f"{self.label}: ")
        return f"the ledger of {self.label} {fault if fault != words else f'has holes ({words})'}"

    @property
    def label(self) -> str:
        """The name, with the process in brackets."""
        parts = [f"host {self.host}"] * bool(self.host) + [f"pid {self.pid}"] * bool(self.pid)
        return f"{self.producer} ({', '.join(parts)})" if parts else self.producer


# The row of a producer.
PRODUCER_ROW = np.dtype(
    [
        ("prefix", "u1", 10),
        ("last", "<i8"),
        ("before", "<i8"),  # sequences before the first that has a place in a bucket
        ("places", "<i8"),
        ("pending_after", "<i8"),
        ("last_line_us", "<i8"),
        ("waiting", "<i8"),
        ("goes_on", "?"),
        ("ended", "?"),
        ("listed", "<i8"),
        ("evidence", "u1"),
        ("addressed", "?"),
        ("closed", "?"),
        ("one_way", "?"),  # its events are never acknowledged
        ("family", "<i4"),
        ("url", "<i4"),
        ("service", "<i4"),
        ("problems", "<i4"),  # how many there are
        ("left_out", "<i8"),  # sequences from 1 to `last` that are not selected
    ]
)

PACKED_ROWS = 1 << 14  # of a table from which on tasks get `PackedRows`, and of one block

# Tables of all producers: int64, sorted by producer. The number of columns; 0: one dimension.
TABLES = {"bases": 0, "starts": 0, "live": 0, "spans": 5, "outcomes": 5, "reasons": 4}
TABLES |= dict.fromkeys(("deferred", "has_id", "drops", "outside", "settled"), 3)


class PackedRows:
    """Rows of a table in little memory, of which a task needs a few at a time. Neighbours are alike."""

    def __init__(self, rows: I64) -> None:
        self.width = rows.shape[1]
        parts = (rows[low : low + PACKED_ROWS] for low in range(0, len(rows), PACKED_ROWS))
        # By column, and each number as the distance from the one before.
        self.blocks = [
            pa.compress(np.diff(part.T, prepend=0).tobytes(), "zstd", asbytes=True) for part in parts
        ]
        self.sizes = [min(PACKED_ROWS, len(rows) - low) for low in range(0, len(rows), PACKED_ROWS)]

    def __getitem__(self, rows: slice) -> I64:
        low, high = int(rows.start), int(rows.stop)
        first = low // PACKED_ROWS
        found = [np.empty((0, self.width), np.int64)]
        for i in range(first, -(-high // PACKED_ROWS)):
            n = self.sizes[i] * self.width
            data = pa.decompress(self.blocks[i], 8 * n, "zstd", asbytes=True)
            found.append(np.cumsum(np.frombuffer(data, np.int64).reshape(self.width, -1), axis=1).T)
        return np.concatenate(found)[low - first * PACKED_ROWS : high - first * PACKED_ROWS]


@dataclass(eq=False)
class LedgerFacts:
    """All that the ledgers say, but for the hashes and the times of their events.

    `ledger_merge.merge` makes it on the driver, and every task gets a copy. Producers are numbered in the
    order of their names; such a number is called `p`.

    Attributes:
        starts: the place of each producer's first sequence behind `before` in its bucket of `bases`.
        live: the buckets in which an event is listed.
        spans: rows of producer, first, last, position and group of files, by first.
        outcomes: rows of producer, first, last, outcome and reason, by outcome (weakest first) and first.
        drops: rows of producer, time and number of events dropped.
        outside: rows of producer, first and last: the sequences that are not selected, see ``outside.py``.
        settled: likewise, where a capture goes on: all that arrived of these is in it.
    """

    rows: npt.NDArray[Any]  # of `PRODUCER_ROW`
    tables: Mapping[str, I64]  # those of `TABLES`
    ids: U64  # ids that applications chose: two halves of the hash, producer, sequence, by first half
    # Sequences whose id another one has too: rows of producer, sequence, whether the event is listed, and
    # whether any with that id is. Of those that are not listed only where that is the client's own id.
    shared: I64
    bits: int  # a bucket has 2 ** bits sequences
    producers: list[Producer]  # on the driver alone
    unread: list[str]  # files that may be ledgers and were not read
    copies: list[str]  # copies of ledger files, as problems
    families: list[str]  # names of the protocols that `family` counts
    urls: list[tuple[str, str]]  # protocol and URL of the producers
    services: list[tuple[str, str]]  # service and host of the producers
    reasons: list[str]  # texts that outcomes refer to
    span: tuple[int, int]  # first and last selected time of any line, in µs since 1970; first > last: none
    steps: list[I64]  # of each group of files, see `ledger_lines.survey`
    begin: int | None  # the first time at which any event was made; None: there is none
    # Of protocols whose capture goes on, the time of receipt of its last unit, in µs since 1970.
    ends: Mapping[str, int]

    def __post_init__(self) -> None:
        rows, tables = self.rows, self.tables
        self.last: I64 = rows["last"]
        self.before: I64 = rows["before"]
        self.places: I64 = rows["places"]
        self.pending_after: I64 = rows["pending_after"]
        self.whole: npt.NDArray[np.bool_] = rows["evidence"] == WHOLE
        # An event that arrived by then is in the producer's ledger, or is not an event of it. Lines that an
        # unclosed ledger still lacks list events that were sent after its last line was written.
        complete_us = np.where(rows["last_line_us"] > 0, rows["last_line_us"] - CLOCKS_US, NEVER_COMPLETE)
        complete_us[rows["ended"]] = NEVER
        complete_us[rows["evidence"] >= STOPPED] = NEVER_COMPLETE
        self.complete_us: I64 = np.where(self.whole, NEVER, complete_us)
        self.addressed: npt.NDArray[np.bool_] = rows["addressed"]
        self.family = rows["family"]
        # The first bucket of each producer, and the number of all buckets: see ``ledger_buckets.py``.
        self.bases, self.starts, self.live = tables["bases"], tables["starts"], tables["live"]
        self.spans, self.drops, self.outside = tables["spans"], tables["drops"], tables["outside"]
        producers = np.arange(len(rows) + 1)
        self._first_rows = {
            name: np.searchsorted(tables[name][:, 0], producers) for name, width in TABLES.items() if width
        }
        self.shared_by = np.ascontiguousarray(self.shared[:, 0])
        # Rising, of the events that a selection leaves out because only their hashes identify them.
        self.left_out_hashes = np.empty(0, np.uint64)
        tail = self.outside[:, 2] == LAST_SEQUENCE
        # Producers that list an event after the selection, so that a missing end does not matter.
        self.continued = np.zeros(len(rows), bool)
        self.continued[self.outside[tail, 0]] = True
        self.selected = np.ones(len(rows), bool)  # of these any sequence may be selected
        self.selected[self.outside[tail & (self.outside[:, 1] <= 1), 0]] = False
        # Whether nothing is missing from the ledgers of selected producers.
        self.all_whole = bool(self.whole[self.selected].all()) and not self.unread
        # An event that arrived by then, with an id that no ledger lists, is of no producer: lines that are
        # missing from a ledger may list it, also if that ledger is left out. What an unclosed one still has
        # to list is left out with it.
        damaged = bool(self.unread) or bool((self.rows["evidence"] >= STOPPED).any())
        earliest_us = int(self.complete_us[self.selected].min(initial=NEVER))
        self.all_complete_us = NEVER_COMPLETE if damaged else earliest_us

    def __getstate__(self) -> dict[str, Any]:
        tables: dict[str, Any] = dict(self.tables)
        if len(outcomes := self.tables["outcomes"]) > PACKED_ROWS:
            tables["outcomes"] = PackedRows(outcomes)
        return self.__dict__ | {"producers": [], "tables": tables}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def prefixes(self) -> bytes:
        """Ten bytes for each producer."""
        return np.ascontiguousarray(self.rows["prefix"]).tobytes()

    def name(self, p: int) -> str:
        """Return the 20 hex digits of a producer."""
        return bytes(self.rows["prefix"][p]).hex()

    def find(self, name: str) -> int:
        """Return the number of a producer, or -1 when it has no ledger here."""
        at = bisect.bisect_left(range(len(self)), name, key=self.name)
        return at if at < len(self) and self.name(at) == name else -1

    def reasons_of(self, p: int) -> dict[str, dict[str, int]]:
        """Return outcome -> reason -> number of failed or dropped events, the most frequent first."""
        out: dict[str, dict[str, int]] = {}
        rows = self.rows_of("reasons", p)
        for _, outcome, reason, n in rows[np.argsort(-rows[:, 3], kind="stable")].tolist():
            out.setdefault(OUTCOMES[outcome], {})[self.reasons[reason]] = n
        return out

    def shared_of(self, p: int) -> I64:
        """Return the sequences of a producer's listed events whose id another event has too."""
        rows = self.shared[slice(*np.searchsorted(self.shared_by, (p, p + 1)))]
        sequences: I64 = rows[rows[:, 2] != 0, 1]
        return sequences

    def by_hash(self, p: int, first: int, last: int) -> I64:
        """Return which sequences of a range are compared by hash alone."""
        if not self.addressed[p]:
            return np.arange(first, last + 1, dtype=np.int64)
        shared = self.shared_of(p)
        return shared[np.searchsorted(shared, first) : np.searchsorted(shared, last + 1)]

    def anonymous_files(self) -> tuple[list[int], int]:
        """Return the groups of files with events compared by hash, and how many their producers list."""
        hashed = ~self.addressed & (self.rows["listed"] > 0)
        hashed[self.shared_by[self.shared[:, 2] != 0]] = True
        files = np.unique(self.spans[hashed[self.spans[:, 0]], 4]).tolist()
        return files, int(self.rows["listed"][hashed].sum())

    def own_buckets(self, p: int) -> int:
        """Return how many buckets a producer has for itself; 0: it shares one, or has none."""
        places = int(self.places[p])
        return -(-places >> self.bits) if places > 1 << self.bits else 0

    def rows_of(self, name: str, p: int, end: int | None = None) -> I64:
        """Return the rows of a producer in a table, or of all from `p` to ``end - 1``."""
        first = self._first_rows[name]
        return self.tables[name][first[p] : first[end or p + 1]]

    def reason(self, p: int, sequence: int) -> str:
        """Return the reason for a sequence's outcome, empty when there is none."""
        rows = self.rows_of("outcomes", p)
        rows = rows[(rows[:, 1] <= sequence) & (rows[:, 2] >= sequence)]
        return self.reasons[int(rows[-1, 4])] if len(rows) else ""

    def outcomes_at(self, p: int, sequences: I64) -> npt.NDArray[np.uint8]:
        """Return the outcomes of some sequences."""
        outcome = np.zeros(len(sequences), np.uint8)
        _, first, last, codes, _ = self.rows_of("outcomes", p).T
        edges = np.searchsorted(codes, np.arange(DROPPED, ACKED + 2)).tolist()
        for code, low, high in zip(range(DROPPED, ACKED + 1), edges[:-1], edges[1:], strict=True):
            if low < high:
                reach = np.maximum.accumulate(last[low:high])
                at = np.searchsorted(first[low:high], sequences, side="right") - 1
                outcome[(at >= 0) & (sequences <= reach[at])] = code
        return outcome
