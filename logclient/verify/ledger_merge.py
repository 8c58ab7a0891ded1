"""Merging: the driver combines the surveys of all ledger files, and checks each ledger as a whole.

A missing part, a total that disagrees with the lines or an outcome without a batch line makes *holes*, and
events that they may concern are ``unknown``. The rules are in ``docs/verify-rules.md``.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logclient.evidence import storage
from logclient.evidence.arrays import I64, U64, expand, keyed, overlaps, repeated, starts_of, subtract, union
from logclient.evidence.decode import protocol_of
from logclient.evidence.ledger_files import prefix_words
from logclient.evidence.selection import EVERYTHING, Selection, time_text
from logclient.verify.ledger_buckets import Placer
from logclient.verify.ledger_facts import (
    ACKED,
    AFTER_END,
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
from logclient.verify.ledger_lines import WIDTHS, number_reason
from logclient.verify.outside import Outside, contained, find_outside
from logclient.verify.worker import without_collection


def merge(
    surveys: Iterable[Mapping[str, Any]],
    bits: int,
    unread: Sequence[str] = (),
    copies: Sequence[str] = (),
    selection: Selection = EVERYTHING,
    ends: Mapping[str, int] = {},
    twice: Collection[str] = (),
) -> LedgerFacts:
    """Combine the surveys of all groups of ledger files, in the order of the producers.

    `unread` are files that may be ledgers too, `copies` problems with copies of ledger files, `ends` that of
    the surveys, `twice` the producers of two ledgers that differ.
    """
    with without_collection():
        merger = _Merger(bits, selection, ends, twice)
        for number, found in enumerate(surveys):
            merger.add(number, found)
        merger.add_producers([merger.facts] if merger.facts else [])
        merger.tables["bases"].append(np.array([merger.placer.end], np.int64))
        tables = {name: np.concatenate(merger.tables.pop(name)) for name in ("producers", *TABLES)}
        rows = tables.pop("producers")
        ids, shared = _split_shared(merger.ids, rows, tables["spans"])
    times = np.concatenate((np.array(merger.times, np.int64), tables["drops"][:, 1]))
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
        services=list(merger.services),
        reasons=list(merger.reasons),
        span=(int(times.min()), int(times.max())) if len(times) else (0, -1),
        begin=min(merger.begins, default=None),
        steps=merger.steps,
        ends=ends,
    )


class _Merger:
    """Combines the surveys of groups of files, one after the other."""

    def __init__(
        self, bits: int, selection: Selection, ends: Mapping[str, int], twice: Collection[str]
    ) -> None:
        self.twice = twice
        self.selection = selection
        self.ends = ends
        self.begins: list[int] = []  # the first times of events
        self.times: list[int] = []  # the first and last selected ones
        self.ids = [np.empty((0, 4), np.uint64)]
        self.families: dict[str, int] = {}
        self.urls: dict[tuple[str, str], int] = {}
        self.services: dict[tuple[str, str], int] = {}
        self.reasons = {"": 0}
        # Facts and rows of the last producer, because its parts may continue in the next group.
        self.facts: list[dict[str, Any]] = []
        self.rows = {name: np.empty((0, n + (name == "spans")), np.int64) for name, n in WIDTHS.items()}
        self.placer = Placer(bits)
        self.live = -1  # the last live bucket so far
        self.tables: dict[str, list[npt.NDArray[Any]]] = {"producers": [np.empty(0, PRODUCER_ROW)]}
        for name, width in TABLES.items():
            self.tables[name] = [np.empty((0, width) if width else 0, np.int64)]
        self.producers: list[Producer] = []  # those that are complete
        self.steps: list[I64] = []  # of each group

    def add(self, number: int, found: Mapping[str, Any]) -> None:
        """Add the survey of a group. Its producers do not come before those of the group before."""
        said = found["facts"]
        self.steps.append(found["steps"])
        self.times += said.get("span", ())
        self.begins += [said["begin"]] if "begin" in said else []
        every = [*self.facts, *said["files"]]
        groups = [[*facts] for _, facts in itertools.groupby(every, operator.itemgetter("producer"))]
        for facts in groups:
            _drop_foreign_parts(facts)
        numbered = [(p, fact) for p, facts in enumerate(groups, len(self.producers)) for fact in facts]
        owners = np.array([p if fact["opened"] else -1 for p, fact in numbered[len(self.facts) :]], np.int64)
        reasons = np.array([number_reason(self.reasons, reason) for reason in said["reasons"]], np.int64)
        for name in WIDTHS:
            rows = found[name].copy()
            if name == "outcomes":
                rows[:, 4] = reasons[rows[:, 4]]
            rows[:, 0] = owners[rows[:, 0]]
            rows = rows[rows[:, 0] >= 0]
            if name == "spans":
                rows = np.column_stack((rows, np.full(len(rows), number, np.int64)))
            self.rows[name] = np.concatenate((self.rows[name], rows))
        owner = owners[found["ids"][:, 3].astype(np.int64)]
        table = found["ids"][owner >= 0]
        table[:, 3] = owner[owner >= 0]
        self.ids.append(table)
        self.facts = groups.pop() if groups else []
        self.add_producers(groups)

    def add_producers(self, groups: list[list[dict[str, Any]]]) -> None:
        """Add complete producers, each by the facts about its parts."""
        if not groups:
            return
        base, n = len(self.producers), len(groups)
        some = {}
        for name, rows in self.rows.items():
            complete = rows[:, 0] < base + n
            some[name] = _by_producer(rows[complete])
            self.rows[name] = rows[~complete]
        outcomes = some["outcomes"]
        early = outcomes[(outcomes[:, 3] > DROPPED) & (outcomes[:, 3] < AFTER_END), :3]
        outcomes[:, 3] %= AFTER_END
        checked = _check(base, n, some["spans"], outcomes, some["expects_id"], some["has_id"])
        if self.twice:
            # Another hash than that in this ledger may be in the other one.
            named = [
                (p, 1, LAST_SEQUENCE) for p, x in enumerate(groups, base) if x[0]["producer"] in self.twice
            ]
            some["has_id"] = _by_producer(
                np.array([*some["has_id"].tolist(), *named], np.int64).reshape(-1, 3)
            )
        outside = None
        left_out = np.empty((0, 3), np.int64)
        if self.selection != EVERYTHING:
            most = np.iinfo(np.int64).max
            started = np.array([(x[0]["part"] == 1 and x[0]["started_us"]) or -most for x in groups])
            closed = ((_close_of(x) or {}).get("at_us") for x in groups)
            ended = np.array([most if at is None else at for at in closed])
            outside = find_outside(some["when"], checked.spans, base, started, ended, self.selection)
            left_out = outside.ranges
        producers = [_producer(group, checked, p, outside, self.twice) for p, group in enumerate(groups)]
        table = np.zeros(n, PRODUCER_ROW)
        names = bytes.fromhex("".join(x.producer for x in producers))
        table["prefix"] = np.frombuffer(names, np.uint8).reshape(-1, 10)
        # By column: a row at a time takes as long as reading the ledger.
        own = ("last", "pending_after", "last_line_us", "waiting", "goes_on", "ended", "evidence", "closed")
        for name in own:
            table[name] = [getattr(x, name) for x in producers]
        table["listed"] = checked.listed
        table["one_way"] = [x.mode == "async" for x in producers]
        table["addressed"] = [x.identity == "id" for x in producers]
        families, urls = self.families, self.urls
        table["family"] = [families.setdefault(protocol_of(x.protocol), len(families)) for x in producers]
        table["url"] = [urls.setdefault((x.protocol, x.url), len(urls)) for x in producers]
        services = self.services
        table["service"] = [services.setdefault((x.service, x.host), len(services)) for x in producers]
        table["problems"] = [len(x.problems) for x in producers]
        if self.selection != EVERYTHING:
            # Of producers without ids nothing is selected.
            p = base + np.flatnonzero(~table["addressed"])
            every = np.column_stack((p, np.zeros_like(p), np.full_like(p, LAST_SEQUENCE)))
            left_out = _by_producer(np.concatenate((left_out[~np.isin(left_out[:, 0], p)], every)))
        p = left_out[:, 0] - base
        sizes = np.minimum(left_out[:, 2], table["last"][p]) - np.maximum(left_out[:, 1], 1) + 1
        table["left_out"] = np.bincount(p, np.maximum(sizes, 0), n)
        # What is left out at the beginning and at the end needs no places.
        ends = table["last"].copy()
        for p, first, last in left_out[(left_out[:, 1] <= 1) | (left_out[:, 2] == LAST_SEQUENCE)].tolist():
            if first <= 1:
                table["before"][p - base] = min(last, int(table["last"][p - base]))
            if last == LAST_SEQUENCE:
                ends[p - base] = min(first - 1, int(table["last"][p - base]))
        table["places"] = np.where(table["addressed"], np.maximum(ends - table["before"], 0), 0)
        buckets, starts = self.placer.place(table["places"])
        spans = outside.selected if outside else checked.spans
        spans = spans[table["addressed"][spans[:, 0] - base]]
        own = spans[:, :1] - base
        at = (spans[:, 1:3] - table["before"][own] - 1) >> self.placer.bits
        live = expand(union(buckets[own] + at))
        live = live[live > self.live]  # a bucket may be shared with producers of the previous file
        self.live = int(live[-1]) if len(live) else self.live
        tables = {
            **some,
            "producers": table,
            "bases": buckets,
            "starts": starts,
            "live": live,
            "spans": checked.spans,
            # Weakest first within a producer: a reader that fills an array in this order keeps the strongest.
            "outcomes": outcomes[np.lexsort((outcomes[:, 1], outcomes[:, 3], outcomes[:, 0]))],
            "reasons": checked.reasons,
            "outside": left_out,
            "settled": self._settled(base, early, producers) if self.ends else early[:0],
        }
        for name, parts in self.tables.items():
            parts.append(tables[name])
        self.producers += producers

    def _settled(self, base: int, early: I64, producers: list[Producer]) -> I64:
        """Return the sequences of which a capture has all that arrived, by producer, first and last.

        Those are the ones with an `early` outcome, and all where the capture of their protocol is closed.
        """
        closed = [p for p, x in enumerate(producers, base) if protocol_of(x.protocol) not in self.ends]
        every = np.array([(p, 1, LAST_SEQUENCE) for p in closed], np.int64).reshape(-1, 3)
        rows = np.concatenate((early, every))
        keys = union(keyed(rows, base))
        return np.column_stack((base + (keys[:, 0] >> 48), keys & LAST_SEQUENCE))


def _close_of(facts: list[dict[str, Any]]) -> Any:
    return None if facts[-1]["torn"] else facts[-1]["closed"]


def _by_producer(table: I64) -> I64:
    return table[np.lexsort((table[:, 1], table[:, 0]))]


def _drop_foreign_parts(facts: list[dict[str, Any]]) -> None:
    """Exclude the parts of a producer that belong to another ledger than its first readable part."""
    opened = [fact for fact in facts if fact["opened"]]
    for fact in opened[1:]:
        first = opened[0]
        for name in ("identity", "protocol"):
            if fact["opened"] and fact[name] != first[name]:
                why = f"its {name} is {fact[name][:40]}, that of part {first['part']} {first[name][:40]}"
                fact["problems"] = [f"{storage.base_name(fact['path'])}: {why}: it is not read"]
                fact.update(opened=False, holes=1, closed=None, stopped="", torn=False, last=0)


_UNFIT = (
    "in more than one batch line",
    "with an id of their own that no ids line lists",
    "in an ids line that are in no batch line",
    "acknowledged or handed over that are in no batch line",
)
_DECIDED = (ACKED, HANDED, FAILED, DROPPED)


class _Checked(NamedTuple):
    """The comparison of the lines of all parts of a producer, for some producers at once."""

    spans: I64  # without the events that cannot be identified
    reasons: I64  # rows of producer, outcome, reason and number of sequences
    listed: list[int]  # events of each producer
    accounted: list[int]  # sequences of each that are in a batch line or have an outcome
    of_outcome: list[list[int]]  # sequences of each for each of `_DECIDED`
    unfit: list[list[int]]  # sequences of each for each text of `_UNFIT`


def _check(base: int, n: int, spans: I64, outcomes: I64, expects_id: I64, has_id: I64) -> _Checked:
    """Compare the lines of `n` producers, of which `base` is the first."""
    if n > 1 << 14:
        raise OverflowError(f"{n} producers at once, at most {1 << 14}")

    def sizes(ranges: I64) -> I64:
        return np.bincount(ranges[:, 0] >> 48, ranges[:, 1] - ranges[:, 0] + 1, n).astype(np.int64)

    all_spans = keyed(spans, base)
    listed, named = union(all_spans), union(keyed(has_id, base))
    listed_twice = repeated(all_spans)
    unnamed = subtract(union(keyed(expects_id, base)), named)
    unfit = [sizes(ranges) for ranges in (listed_twice, unnamed, subtract(named, listed))]
    of_outcome = []
    reasons = [np.empty((0, 4), np.int64)]
    taken = np.empty((0, 2), np.int64)
    for code in _DECIDED:
        rows = outcomes[outcomes[:, 3] == code]
        decided = subtract(union(keyed(rows, base)), taken)
        of_outcome.append(sizes(decided))
        taken = union(np.concatenate((taken, decided)))
        if code == HANDED:
            unfit.append(sizes(subtract(taken, listed)))
        # The first of several reasons counts.
        for reason in np.unique(rows[:, 4]).tolist() if code in (FAILED, DROPPED) else ():
            rest = subtract(decided, union(keyed(rows[rows[:, 4] == reason], base)))
            counts = sizes(decided) - sizes(rest)
            decided = rest
            p = np.flatnonzero(counts)
            reasons.append(np.column_stack(np.broadcast_arrays(base + p, code, reason, counts[p])))
    # These events cannot be identified: remove them from the spans.
    removed = union(np.concatenate((listed_twice, unnamed)))
    if len(removed):
        index, rest = overlaps(all_spans, subtract(listed, removed))
        moved = rest[:, 0] - all_spans[index, 0]
        spans = spans[index]
        spans[:, 1] += moved
        spans[:, 2] = spans[:, 1] + rest[:, 1] - rest[:, 0]
        spans[:, 3] += moved
    return _Checked(
        spans,
        _by_producer(np.concatenate(reasons)),
        sizes(keyed(spans, base)).tolist(),
        sizes(union(np.concatenate((listed, taken)))).tolist(),
        np.column_stack(of_outcome).tolist(),
        np.column_stack(unfit).tolist(),
    )


def _producer(
    facts: list[dict[str, Any]], checked: _Checked, p: int, outside: Outside | None, twice: Collection[str]
) -> Producer:
    """Combine all parts of a producer."""
    name = facts[0]["producer"]
    found: list[str] = []
    if name in twice:
        found.append("is here twice, and they differ: two processes had this id, or a file is damaged")
    for due, fact in enumerate(facts, 1):
        if fact["part"] != due:
            found.append(f"has part {fact['part']} where {due} was due")
            break
    for fact in facts[:-1]:
        if not fact["opened"] and not fact["holes"]:
            found.append(f"has an empty part {fact['part']} that is not the last")
        elif fact["torn"]:
            found.append(f"has a torn line at the end of part {fact['part']}, which is not the last")
    for number, why in zip(checked.unfit[p], _UNFIT, strict=True):
        if number:
            found.append(f"has {number:,} sequences {why}")
    last = max(fact["last"] for fact in facts)
    close = _close_of(facts)
    if close is not None:
        for number, code in zip(checked.of_outcome[p], _DECIDED, strict=True):
            word = OUTCOMES[code]
            if number != close[word]:
                found.append(f"ends with {close[word]:,} {word}, and its lines have {number:,}")
        size = sum(fact["size"] for fact in facts[:-1]) + close["before"]
        if close["bytes"] not in (None, size):
            found.append(f"had {close['bytes']:,} bytes before its end, and has {size:,}")
        if close["last"] != last:
            found.append(f"ends with sequence {close['last']:,}, and has {last:,}")
        if last > checked.accounted[p]:
            found.append(f"is closed, and has no line of {last - checked.accounted[p]:,} sequences")
    holes = bool(found) or any(fact["holes"] for fact in facts)
    stopped = next((fact["stopped"] for fact in facts if fact["stopped"]), "")
    if stopped:
        found.append(f"was stopped ({stopped})")
    last_line_us = next((fact["last_line_us"] for fact in reversed(facts) if fact["last_line_us"]), 0)
    waiting = next((fact["waiting"] for fact in reversed(facts) if fact["waiting"] is not None), 0)
    if close is None:
        found.append(_open_words(name, facts, last_line_us, waiting))
    evidence = HOLES if holes else STOPPED if stopped else UNCLOSED if close is None else WHOLE
    more = evidence == UNCLOSED and facts[-1]["end"] != "ended"  # it may list later events
    first = next((fact for fact in facts if fact["opened"]), facts[0])
    texts = ("protocol", "url", "mode", "host", "service", "service_version")
    about: dict[str, Any] = {key: sys.intern(first[key]) for key in texts}
    producer = Producer(
        name,
        **about,
        identity=sys.intern(first["identity"] or "id"),
        last=last,
        last_line_us=last_line_us,
        waiting=waiting,
        goes_on=facts[-1]["end"] == "continued",
        ended=facts[-1]["end"] == "ended",
        pending_after=int(outside.settled[p]) if outside and more else LAST_SEQUENCE,
        closed=close is not None,
        evidence=evidence,
        problems=[],
        pid=first["pid"],
        started_us=first["started_us"],
    )
    problems = [f"{producer.label}: {why}" for why in found]
    return producer._replace(problems=problems + [why for fact in facts for why in fact["problems"]])


def _open_words(name: str, facts: list[dict[str, Any]], last_line_us: int, waiting: int) -> str:
    """Say what a ledger lacks that was not closed."""
    if facts[-1]["end"] == "continued":
        return f"goes on in {name}-{facts[-1]['part'] + 1:04d}.ledger, which is not here"
    if facts[-1]["end"] == "ended":
        return "was not closed: its process was killed"
    since = f"; its last line is of {time_text(last_line_us)}" if last_line_us else ""
    left = f", when {waiting:,} events waited" if waiting else ""
    return f"has no end: it was not closed{since}{left}"


def _split_shared(tables: list[U64], producers: npt.NDArray[Any], spans: I64) -> tuple[U64, I64]:
    """Separate ids that applications gave to several events, as `LedgerFacts.ids` and `LedgerFacts.shared`.

    Such an id does not identify an event. These events are compared by hash, like events without an id. The
    same holds for an event whose id was given to another one. A row of `tables` has two halves of an id's
    hash, sequence and producer.
    """
    table = np.concatenate(tables)[:, [0, 1, 3, 2]]
    copied = _rows_of_copied_ids(table, producers)
    made = np.arange(len(table) + len(copied)) >= len(table)  # ids that the client made
    table = np.concatenate((table, copied))
    order = np.lexsort((table[:, 1], table[:, 0]))
    table, made = table[order], made[order]
    begins = starts_of(table[:, 0], table[:, 1])
    sizes = np.diff(np.append(begins, len(table)))
    several = sizes > 1
    if not several.any():
        return table, np.empty((0, 4), np.int64)
    shared = np.repeat(several, sizes)
    p, sequence = table[shared, 2:].astype(np.int64).T
    listed = contained(spans[np.isin(spans[:, 0], p), :3], p, sequence)
    sizes = sizes[several]
    by_hash = np.logical_or.reduceat(listed, np.cumsum(sizes) - sizes)
    # Keep one row for a shared id, with a producer that does not exist: the first one if its arrivals are
    # compared by hash, the second one if no event with this id is listed.
    table = table[begins]
    table[several, 2] = len(producers) + ~by_hash
    by_hash = by_hash.repeat(sizes)
    # Arrivals with another id of an event that is not listed belong to it, so they need no row.
    events = np.column_stack((p, sequence, listed, by_hash))[listed | made[shared]]
    # Several rows of an event: a line may be in a ledger twice, and an event may share two ids.
    events = events[np.lexsort((-events[:, 3], events[:, 1], events[:, 0]))]
    return table, events[starts_of(events[:, 0], events[:, 1])]


def _rows_of_copied_ids(table: U64, producers: npt.NDArray[Any]) -> U64:
    """Return rows for events of these producers whose ids an application gave to other events."""
    addressed = np.flatnonzero(producers["addressed"])
    prefixes, rest = prefix_words(producers["prefix"][addressed])
    table = table[np.isin(table[:, 0], prefixes)]
    low, high = (np.searchsorted(prefixes, table[:, 0], side) for side in ("left", "right"))
    given = table.repeat(high - low, axis=0)
    at = expand(np.column_stack((low, high - 1)))
    events = np.column_stack((addressed[at].astype(np.uint64), given[:, 1] & np.uint64((1 << 48) - 1)))
    copied = (rest[at] == given[:, 1] >> np.uint64(48)) & (events != given[:, 2:]).any(axis=1)
    return np.unique(np.column_stack((given[:, :2], events))[copied], axis=0)
