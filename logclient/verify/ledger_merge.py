"""Merging: the driver combines the surveys of all ledger files, and checks each ledger as a whole.

A missing part, a total that disagrees with the lines or an outcome without a batch line makes *holes*, and
events that they may concern are ``unknown``. The rules are in ``docs/verify.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logclient.evidence import storage
from logclient.evidence.arrays import (
    I64,
    U64,
    expand,
    intersect,
    overlaps,
    repeated,
    starts_of,
    subtract,
    union,
)
from logclient.evidence.decode import protocol_of
from logclient.evidence.ledger_files import prefix_words
from logclient.evidence.selection import EVERYTHING, Selection
from logclient.verify.ledger_buckets import Placer
from logclient.verify.ledger_facts import (
    ACKED,
    DROPPED,
    FAILED,
    HANDED,
    HOLES,
    LAST_SEQUENCE,
    OUTCOMES,
    PRODUCER_ROW,
    STOPPED,
    TABLES,
    UNCLOSED,
    WHOLE,
    LedgerFacts,
    Producer,
)
from logclient.verify.ledger_lines import MAX_REASONS, OTHER_REASONS, WIDTHS
from logclient.verify.outside import Outside, contained, find_outside
from logclient.verify.worker import without_collection


def merge(
    surveys: Iterable[Mapping[str, Any]],
    bits: int,
    unread: Sequence[str] = (),
    copies: Sequence[str] = (),
    selection: Selection = EVERYTHING,
) -> LedgerFacts:
    """Combine the surveys of all groups of ledger files, in the order of the producers.

    `unread` are files that may be ledgers too, `copies` problems with copies of ledger files.
    """
    with without_collection():
        merger = _Merger(bits, selection)
        for found in surveys:
            merger.add(found)
        merger.end()
        tables = {name: np.concatenate(merger.tables.pop(name)) for name in ("producers", *TABLES)}
        rows = tables.pop("producers")
        ids, shared = _split_shared(merger.ids, rows, tables["spans"])
    return LedgerFacts(
        rows,
        tables,
        ids,
        shared,
        bits,
        merger.producers,
        unread=list(unread),
        copies=list(copies),
        families=list(merger.families),
        urls=list(merger.urls),
        reasons=list(merger.reasons),
        span=(merger.low, merger.high) if merger.low <= merger.high else (0, -1),
        begin=merger.begin,
    )


class _Merger:
    """Combines the surveys of groups of files, one after the other."""

    def __init__(self, bits: int, selection: Selection) -> None:
        self.selection = selection
        self.begin: int | None = None  # the first time of all
        self.bits = bits
        self.done = 0  # producers that are complete
        self.groups = 0
        self.ids = [np.empty((0, 4), np.uint64)]
        self.low, self.high = LAST_SEQUENCE << 14, -(LAST_SEQUENCE << 14)  # the first and the last time
        self.families: dict[str, int] = {}
        self.urls: dict[tuple[str, str], int] = {}
        self.reasons = {"": 0}
        # Facts and rows of the last producer, because its parts may continue in the next group.
        self.facts: list[dict[str, Any]] = []
        self.rows = {name: np.empty((0, n + (name == "spans")), np.int64) for name, n in WIDTHS.items()}
        self.placer = Placer(bits)
        self.live = -1  # the last live bucket so far
        self.tables: dict[str, list[npt.NDArray[Any]]] = {"producers": [np.empty(0, PRODUCER_ROW)]}
        for name, width in TABLES.items():
            self.tables[name] = [np.empty((0, width) if width else 0, np.int64)]
        self.producers: list[Producer] = []

    def end(self) -> None:
        self._add_producers([self.facts] if self.facts else [])
        self.tables["bases"].append(np.array([self.placer.end], np.int64))

    def add(self, found: Mapping[str, Any]) -> None:
        """Add the survey of a group. Its producers do not come before those of the group before."""
        said = found["facts"]
        facts: list[dict[str, Any]] = [dict(fact) for fact in said["files"]]
        if "span" in said:
            self.low, self.high = min(self.low, said["span"][0]), max(self.high, said["span"][1])
        if "begin" in said:
            self.begin = said["begin"] if self.begin is None else min(self.begin, said["begin"])
        groups: list[list[dict[str, Any]]] = [self.facts] if self.facts else []
        index = []
        for fact in facts:
            if not groups or groups[-1][0]["producer"] != fact["producer"]:
                groups.append([])
            groups[-1].append(fact)
            index.append(self.done + len(groups) - 1)
        for group in groups:
            _drop_foreign_parts(group)
        owners = np.array(
            [p if fact["opened"] else -1 for p, fact in zip(index, facts, strict=True)], np.int64
        )
        reasons = self._reasons(said["reasons"])
        for name in WIDTHS:
            rows = found[name].copy()
            if name == "outcomes" and len(rows):
                rows[:, 4] = reasons[rows[:, 4]]
            rows[:, 0] = owners[rows[:, 0]]
            rows = rows[rows[:, 0] >= 0]
            if name == "spans":
                rows = np.column_stack((rows, np.full(len(rows), self.groups, np.int64)))
            self.rows[name] = np.concatenate((self.rows[name], rows))
        table = found["ids"].copy()
        owner = owners[table[:, 3].astype(np.int64)]
        table[:, 3] = np.maximum(owner, 0).astype(np.uint64)
        self.ids.append(table[owner >= 0])
        self.groups += 1
        self.facts = groups.pop() if groups else []
        self._add_producers(groups)

    def _reasons(self, found: list[str]) -> I64:
        """Return the numbers of some reasons in the table of all files."""
        numbers = []
        for reason in found:
            if reason not in self.reasons and len(self.reasons) >= MAX_REASONS:
                reason = OTHER_REASONS
            numbers.append(_number(self.reasons, reason))
        return np.array(numbers, np.int64)

    def _add_producers(self, groups: list[list[dict[str, Any]]]) -> None:
        if not groups:
            return
        n = len(groups)
        some = {}
        for name, rows in self.rows.items():
            complete = rows[:, 0] < self.done + n
            some[name] = _by_producer(rows[complete])
            self.rows[name] = rows[~complete]
        checked = _ProducerChecks(
            self.done, n, *(some[name] for name in ("spans", "outcomes", "expects_id", "has_id"))
        )
        outside = self._outside(groups, some["when"], checked.spans) if self.selection.timed else None
        producers = [
            _producer(group[0]["producer"], group, checked, p, outside) for p, group in enumerate(groups)
        ]
        outcomes = some["outcomes"]
        left_out = outside.ranges if outside else np.empty((0, 3), np.int64)
        if self.selection != EVERYTHING:
            left_out = self._with_anonymous(left_out, [x.identity == "id" for x in producers])
        table_rows = np.zeros(n, PRODUCER_ROW)
        table_rows["prefix"] = np.frombuffer(
            bytes.fromhex("".join(x.producer for x in producers)), np.uint8
        ).reshape(-1, 10)
        # By column: a row at a time takes as long as reading the ledger.
        columns: dict[str, list[Any]] = {
            "last": [x.last for x in producers],
            "pending_after": [x.pending_after for x in producers],
            "listed": [x.events for x in producers],
            "evidence": [x.evidence for x in producers],
            "closed": [x.closed for x in producers],
            "one_way": [x.mode == "async" for x in producers],
            "addressed": [x.identity == "id" for x in producers],
            "family": [_number(self.families, protocol_of(x.protocol)) for x in producers],
            "url": [_number(self.urls, (x.protocol, x.url)) for x in producers],
            "problems": [len(x.problems) for x in producers],
        }
        for name, values in columns.items():
            table_rows[name] = values
        self.producers += producers
        buckets, starts = self.placer.place(np.where(table_rows["addressed"], table_rows["last"], 0))
        table_rows["left_out"] = self._count(left_out, table_rows["last"])
        spans = outside.selected if outside else checked.spans
        spans = spans[table_rows["addressed"][spans[:, 0] - self.done]]
        live = _live(spans, buckets[spans[:, 0] - self.done], self.bits)
        live = live[live > self.live]  # a bucket may be shared with producers of the previous file
        self.live = int(live[-1]) if len(live) else self.live
        tables = {
            "producers": table_rows,
            "bases": buckets,
            "starts": starts,
            "live": live,
            "drops": some["drops"],
            "spans": checked.spans,
            # Weakest first within a producer: a reader that fills an array in this order keeps the strongest.
            "outcomes": outcomes[np.lexsort((outcomes[:, 1], outcomes[:, 3], outcomes[:, 0]))],
            "deferred": some["deferred"],
            "has_id": some["has_id"],
            "reasons": checked.reasons,
            "outside": left_out,
        }
        for name, table in tables.items():
            self.tables[name].append(table)
        if len(some["drops"]):
            when = some["drops"][:, 1]
            self.low, self.high = min(self.low, int(when.min())), max(self.high, int(when.max()))
        self.done += n

    def _with_anonymous(self, outside: I64, addressed: list[bool]) -> I64:
        """Return the sequences that are not selected with all those of producers without ids."""
        p = self.done + np.flatnonzero(~np.array(addressed))
        every = np.column_stack((p, np.zeros(len(p), np.int64), np.full(len(p), LAST_SEQUENCE)))
        return _by_producer(np.concatenate((outside[~np.isin(outside[:, 0], p)], every)))

    def _outside(self, groups: list[list[dict[str, Any]]], when: I64, spans: I64) -> Outside:
        """Find the sequences of complete producers that are not selected."""
        most = np.iinfo(np.int64).max
        started = np.full(len(groups), -most)
        ended = np.full(len(groups), most)
        for i, facts in enumerate(groups):
            if facts[0]["opened"] and facts[0]["part"] == 1 and facts[0]["started_us"]:
                started[i] = facts[0]["started_us"]
            close = _close_of(facts)
            if close is not None and close["at_us"] is not None:
                ended[i] = close["at_us"]
        return find_outside(when, spans, self.done, started, ended, self.selection)

    def _count(self, ranges: I64, last: I64) -> I64:
        """Count the sequences from 1 to the last one of each producer that are in some ranges."""
        p = ranges[:, 0] - self.done
        sizes = np.minimum(ranges[:, 2], last[p]) - np.maximum(ranges[:, 1], 1) + 1
        counts = np.zeros(len(last), np.int64)
        np.add.at(counts, p, np.maximum(sizes, 0))
        return counts


def _number(numbers: dict[Any, int], key: Any) -> int:
    return numbers.setdefault(key, len(numbers))


def _close_of(facts: list[dict[str, Any]]) -> dict[str, Any] | None:
    close: dict[str, Any] | None = None if facts[-1]["torn"] else facts[-1]["closed"]
    return close


def _by_producer(table: I64) -> I64:
    return table[np.lexsort((table[:, 1], table[:, 0]))]


def _drop_foreign_parts(facts: list[dict[str, Any]]) -> None:
    """Exclude the parts of a producer that belong to another ledger than its first readable part."""
    first = next((fact for fact in facts if fact["opened"]), None)
    for fact in facts:
        if first is None or not fact["opened"]:
            continue
        for name in ("identity", "protocol"):
            if fact[name] != first[name]:
                why = f"its {name} is {fact[name][:40]}, that of part {first['part']} {first[name][:40]}"
                fact["problems"] = [f"{storage.base_name(fact['path'])}: {why}: it is not read"]
                fact.update(opened=False, holes=1, closed=None, stopped="", torn=False, last=0)
                break


_UNFIT = (
    "in more than one batch line",
    "with an id of their own that no ids line lists",
    "in an ids line that are in no batch line",
    "acknowledged or handed over that are in no batch line",
)
_OUTCOMES = tuple(OUTCOMES[code] for code in (ACKED, HANDED, FAILED, DROPPED))


class _ProducerChecks:
    """The comparison of the lines of all parts of a producer, for some producers at once.

    The producer is put above the 48 bits of a sequence. Ranges of many producers are then one sorted table.

    Attributes:
        spans: without the events that cannot be identified.
        reasons: rows of producer, outcome, reason and number of sequences.
        listed: events of each producer.
        accounted: sequences of each that are in a batch line or have an outcome.
        of_outcome: sequences of each with the outcomes acked, handed, failed and dropped.
        unfit: sequences of each for each text of `_UNFIT`.
    """

    LIMIT = 1 << 14  # producers at once

    def __init__(self, base: int, n: int, spans: I64, outcomes: I64, expects_id: I64, has_id: I64) -> None:
        self.base = base
        if n > self.LIMIT:
            raise OverflowError(f"{n} producers at once, at most {self.LIMIT}")
        self.n = n
        keyed, sizes = self._keyed, self._sizes
        reasons = [np.empty((0, 4), np.int64)]  # producer, outcome, reason, sequences
        all_spans = keyed(spans)
        listed = union(all_spans)
        listed_twice = repeated(all_spans)
        named = union(keyed(has_id))
        unnamed = subtract(union(keyed(expects_id)), named)
        unfit = [sizes(ranges) for ranges in (listed_twice, unnamed, subtract(named, listed))]
        of_outcome = []
        taken = np.empty((0, 2), np.int64)
        for code in (ACKED, HANDED, FAILED, DROPPED):
            rows = outcomes[outcomes[:, 3] == code]
            decided = subtract(union(keyed(rows)), taken)
            of_outcome.append(sizes(decided))
            if code in (FAILED, DROPPED):
                reasons += self._reasons(decided, rows, code)
            taken = union(np.concatenate((taken, decided)))
            if code == HANDED:
                unfit.append(sizes(subtract(taken, listed)))
        # As lists: a producer at a time takes them.
        self.unfit: list[list[int]] = np.stack(unfit, axis=1).tolist()
        self.of_outcome: list[list[int]] = np.stack(of_outcome, axis=1).tolist()
        self.accounted: list[int] = sizes(union(np.concatenate((listed, taken)))).tolist()
        # These events cannot be identified: remove them from the spans.
        removed = union(np.concatenate((listed_twice, unnamed)))
        if len(removed):
            edges = removed.reshape(-1)
            low = np.concatenate(([np.iinfo(np.int64).min], edges[1::2] + 1))
            high = np.concatenate((edges[::2] - 1, [np.iinfo(np.int64).max]))
            index, rest = overlaps(all_spans, np.stack((low, high), axis=1))
            moved = rest[:, 0] - all_spans[index, 0]
            spans = spans[index].copy()
            spans[:, 1] += moved
            spans[:, 2] = spans[:, 1] + rest[:, 1] - rest[:, 0]
            spans[:, 3] += moved
        self.listed: list[int] = sizes(keyed(spans)).tolist()
        self.spans = spans
        self.reasons = _by_producer(np.concatenate(reasons))

    def _keyed(self, rows: I64) -> I64:
        keys: I64 = rows[:, 1:3] + ((rows[:, :1] - self.base) << 48)
        return keys

    def _sizes(self, ranges: I64) -> I64:
        out = np.zeros(self.n, np.int64)
        np.add.at(out, ranges[:, 0] >> 48, ranges[:, 1] - ranges[:, 0] + 1)
        return out

    def _reasons(self, decided: I64, rows: I64, code: int) -> Iterator[I64]:
        """Count the sequences of one outcome by reason; the first of several reasons counts."""
        for reason in np.unique(rows[:, 4]).tolist():
            some = intersect(decided, union(self._keyed(rows[rows[:, 4] == reason])))
            decided = subtract(decided, some)
            counts = self._sizes(some)
            at = np.flatnonzero(counts)
            columns = self.base + at, np.full(len(at), code), np.full(len(at), reason), counts[at]
            yield np.stack(columns, axis=1).astype(np.int64)


def _producer(
    name: str, facts: list[dict[str, Any]], checked: _ProducerChecks, p: int, outside: Outside | None
) -> Producer:
    """Combine all parts of a producer."""
    holes = any(fact["holes"] for fact in facts)
    problems: list[str] = []

    def hole(why: str) -> None:
        nonlocal holes
        holes = True
        problems.append(f"{name}: {why}")

    for due, fact in enumerate(facts, 1):
        if fact["part"] != due:
            hole(f"has part {fact['part']} where {due} was due")
            break
    for fact in facts[:-1]:
        if not fact["opened"] and not fact["holes"]:
            hole(f"has an empty part {fact['part']} that is not the last")
        elif fact["torn"]:
            hole(f"has a torn line at the end of part {fact['part']}, which is not the last")
    for number, why in zip(checked.unfit[p], _UNFIT, strict=True):
        if number:
            hole(f"has {number:,} sequences {why}")
    last = max(fact["last"] for fact in facts)
    close = _close_of(facts)
    if close is not None:
        for number, word in zip(checked.of_outcome[p], _OUTCOMES, strict=True):
            if number != close[word]:
                hole(f"ends with {close[word]:,} {word}, and its lines have {number:,}")
        size = sum(fact["size"] for fact in facts[:-1]) + close["before"]
        if close["bytes"] not in (None, size):
            hole(f"had {close['bytes']:,} bytes before its end, and has {size:,}")
        if close["last"] != last:
            hole(f"ends with sequence {close['last']:,}, and has {last:,}")
        if last > checked.accounted[p]:
            hole(f"is closed, and has no line of {last - checked.accounted[p]:,} sequences")
    stopped = next((fact["stopped"] for fact in facts if fact["stopped"]), "")
    if stopped:
        problems.append(f"{name}: was stopped ({stopped})")
    if close is None:
        problems.append(f"{name}: has no end: it was not closed")
    problems += [problem for fact in facts for problem in fact["problems"]]
    evidence = HOLES if holes else STOPPED if stopped else UNCLOSED if close is None else WHOLE
    first = next((fact for fact in facts if fact["opened"]), facts[0])
    return Producer(
        name,
        sys.intern(first["protocol"]),
        sys.intern(first["url"]),
        sys.intern(first["identity"] or "id"),
        last,
        int(outside.settled[p]) if outside and evidence == UNCLOSED else LAST_SEQUENCE,
        close is not None,
        checked.listed[p],
        evidence,
        problems,
        sys.intern(first["mode"]),
        sys.intern(first["host"]),
        first["pid"],
        first["started_us"],
    )


def _split_shared(tables: list[U64], producers: npt.NDArray[Any], spans: I64) -> tuple[U64, I64]:
    """Separate ids that applications gave to several events, as `LedgerFacts.ids` and `LedgerFacts.shared`.

    Such an id does not identify an event. These events are compared by hash, like events without an id. The
    same holds for an event whose id was given to another one. A row of `tables` has two halves of an id's
    hash, sequence and producer.
    """
    table = np.concatenate(tables)[:, [0, 1, 3, 2]]
    if not len(table):
        return table, np.empty((0, 4), np.int64)
    copied = _rows_of_copied_ids(table, producers)
    made = np.arange(len(table) + len(copied)) >= len(table)  # ids that the client made
    table = np.concatenate((table, copied))
    order = np.lexsort((table[:, 1], table[:, 0]))
    table, made = table[order], made[order]
    begins = starts_of(table[:, 0], table[:, 1])
    sizes = np.diff(np.append(begins, len(table)))
    shared = np.repeat(sizes > 1, sizes)
    first = np.zeros(len(table), bool)
    first[begins] = True
    if not shared.any():
        return table, np.empty((0, 4), np.int64)
    p, sequence = table[shared, 2:].astype(np.int64).T
    listed = contained(spans[np.isin(spans[:, 0], p), :3], p, sequence)
    starts = np.flatnonzero(first[shared])
    by_hash = np.logical_or.reduceat(listed, starts)
    # Keep one row for a shared id, with a producer that does not exist: the first one if its arrivals are
    # compared by hash, the second one if no event with this id is listed.
    table = table[first]
    table[shared[first], 2] = len(producers) + ~by_hash
    by_hash = by_hash.repeat(np.diff(np.append(starts, len(listed))))
    # Arrivals with another id of an event that is not listed belong to it, so they need no row.
    events = np.column_stack((p, sequence, listed, by_hash))[listed | made[shared]]
    # Several rows of an event: a line may be in a ledger twice, and an event may share two ids.
    events = events[np.lexsort((-events[:, 3], events[:, 1], events[:, 0]))]
    again = (events[1:, :2] == events[:-1, :2]).all(axis=1)
    return table, np.delete(events, np.flatnonzero(again) + 1, axis=0)


def _rows_of_copied_ids(table: U64, producers: npt.NDArray[Any]) -> U64:
    """Return rows for events of these producers whose ids an application gave to other events."""
    addressed = np.flatnonzero(producers["addressed"])
    prefixes, rest = prefix_words(producers["prefix"][addressed])
    rows = set()
    for high, low, *given in table[np.isin(table[:, 0], prefixes)].tolist():
        first, last = np.searchsorted(prefixes, np.array([high, high], np.uint64), side="left"), len(prefixes)
        for i in range(int(first[0]), last):
            if int(prefixes[i]) != high:
                break
            event = [int(addressed[i]), low & ((1 << 48) - 1)]
            if int(rest[i]) == low >> 48 and event != given:
                rows.add((high, low, *event))
    return np.array(sorted(rows), np.uint64).reshape(-1, 4)


def _live(spans: I64, bases: I64, bits: int) -> I64:
    """Return the buckets in which an event is listed; `bases`: the first one of each span's producer."""
    if not len(spans):
        return np.empty(0, np.int64)
    ranges = np.stack((bases + ((spans[:, 1] - 1) >> bits), bases + ((spans[:, 2] - 1) >> bits)), axis=1)
    return expand(union(ranges))
