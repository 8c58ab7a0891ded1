"""The way from a tally to a verdict: totals, broken promises, the sentence and the exit code."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient.errors import ExitCode
from logclient.evidence import captures
from logclient.evidence.arrays import I64, starts_of, sum_by_key
from logclient.evidence.decode import QUIET
from logclient.evidence.reports import SegmentReport
from logclient.evidence.segments import Problem
from logclient.evidence.selection import EVERYTHING, Selection
from logclient.evidence.urls import redact_url
from logclient.verify import endpoints, schema
from logclient.verify.devices import MAX_DEVICES, Device, joined
from logclient.verify.ledger_facts import EVIDENCE, HOLES, UNCLOSED, WHOLE
from logclient.verify.outside import contained
from logclient.verify.overview import (
    DUPLICATED,
    KINDS,
    LOST_SENT,
    MISSING_SENT,
    PARTS,
    REORDERED,
    cell_value,
    part_width,
)
from logclient.verify.producer_tables import SCALES, WORDS, Column
from logclient.verify.sentence import counted, sentence
from logclient.verify.tally import BEYOND, SHARE, Tally
from logclient.verify.verdict import (
    Counts,
    Destination,
    Gap,
    Latency,
    LeftOut,
    Limits,
    Listener,
    Map,
    ProducerVerdict,
    Timeline,
    Verdict,
    severity,
    severity_columns,
)

BREAKING = ("lost", "corrupted", "unexpected", "reordered")
"""Words that break the promise; ``reordered`` only where the protocol promises order."""

ORDERED = ("lumberjack", "logjam")  # protocols that promise the order of what they acknowledge

QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
CLOCK_US = 1_000  # smaller differences of clocks are not reported: times are exact to some microseconds
MAX_MAPS = 50  # the most producers whose faults are shown by sequence
MAX_NAMED = 1000  # the most producers, problems, listeners, URLs and runs that a verdict names

PRODUCERS = pa.schema(
    [
        *((name, pa.string()) for name in ("producer", "protocol", "url", "host")),
        ("pid", pa.int64()),
        *((word, pa.int64()) for word in Counts._fields),
        ("breaks", pa.list_(pa.string())),
        ("ledger", pa.string()),
        ("capture_complete", pa.bool_()),
    ]
)
"""The columns of `Summary.producer_table`."""


class _Totals(NamedTuple):
    """Sums over all producers."""

    total: Counts
    broken: dict[str, int]  # words of `BREAKING` that break the promise
    unproven_order: bool  # some events are reordered, but by incomplete evidence only
    behind: int  # reordered behind devices
    worst: list[int]  # producers that are named
    mapped: list[int]  # producers whose faults are shown by sequence
    by_url: I64  # counts, a row for each URL
    producers_of_url: I64


class Summary:
    """The verdict of a tally, after `Tally.stitch` and `Tally.count_unlisted`.

    Attributes:
        problems: the reasons why the captures may be incomplete.
        doubtful: protocols with incomplete captures.
        disordered: those of them whose units may not be in the order of arrival.
    """

    def __init__(self, tally: Tally) -> None:
        tally.finish()
        self.tally = tally
        self.plan = tally.plan
        self.ledger = tally.ledger
        self.sums = tally.sums
        self.selection = Selection.load(self.plan.selection)
        self.problems, self.doubtful, self.disordered = captures.find_doubts(
            tally.reports,
            tally.foreign,
            tally.other_runs,
            self.plan.left_out,
            self.ledger.families,
            self.selection.since_us,
        )
        self._numbers: dict[str, I64] = {}  # rows: keys and values
        self._uncompared = sum(report.events - report.outside for report in tally.foreign)
        self._unassigned = tally.unknown_producers.plus(Counts(unknown=self._uncompared))
        self._routes = self._find_routes()
        uncaptured = {(route.family, endpoint) for route in self._routes for endpoint in route.missing}
        for family, endpoint in sorted(uncaptured):
            why = f"it is in a ledger of {family}, and has no listener in this capture"
            self.problems.append(Problem("endpoint", endpoint, -1, why))
            self.doubtful.add(family)
        if self.plan.records is not None:
            # Records have their own order, even if some are missing.
            self.disordered = set()

    def verdict(self, limits: Limits, allow_open: bool = False) -> Verdict:
        """Make the verdict, without examples and times."""
        ledger, reports = self.ledger, self.tally.reports
        unknown = self._unassigned
        totals = self._add_up(MAX_NAMED - any(unknown))
        total = totals.total.plus(unknown)
        named = sorted(totals.worst)
        self._read_numbers([*named, *totals.mapped])
        verdicts = self._producers(named)
        left_out = None
        judged = int(np.count_nonzero(ledger.selected))
        if judged > len(named):
            rest = totals.total
            for x in verdicts:
                rest = rest.plus(Counts(*(-n for n in x.counts)))
            left_out = LeftOut(judged - len(named), rest)
        if any(unknown):
            breaks = _breaks(unknown, ordered=False)
            verdicts.append(ProducerVerdict("", "", "", "", "not checked", False, unknown, 0, None, breaks))
        broken_by = totals.broken | {"unexpected": totals.broken["unexpected"] + unknown.unexpected}
        broken = [f"{n:,} {word}" for word, n in broken_by.items() if n]
        broken += limits.broken(total)
        faults, still_open = self._ledger_faults(allow_open)
        faults += self._selection_problems(total)[0]
        if nowhere := int(self.sums[:, Column.NOWHERE].sum()):
            faults.append(f"{nowhere:,} acknowledged events of producers of other runs arrived in no run")
        if unread := [problem.segment for problem in self.problems if problem.kind == "unread"]:
            more = f" and {len(unread) - 1:,} more" if len(unread) > 1 else ""
            faults.append(f"{unread[0]}{more} may be of the capture and is not read")
        unproven = total.unknown or faults or totals.unproven_order
        code = ExitCode.BROKEN if broken else ExitCode.UNREACHABLE if unproven else ExitCode.OK
        undecodable, quiet = (
            _summed(getattr(report, name) for report in reports) for name in ("undecodable", "quiet")
        )
        addressed = ledger.addressed[ledger.selected] if self.plan.ordered else np.zeros(1, bool)
        reasons = [*faults, *["the capture is incomplete"] * bool(self.doubtful or self._uncompared)]
        verdict_line = sentence(
            code, broken, total, reasons, still_open, self.selection.phrase, self.plan.by_id
        )
        if totals.behind:
            verdict_line += f" {totals.behind:,} reordered behind a device, where order is no promise."
        problems, more_problems = self._problems(total)
        runs = captures.list_runs(reports, [*self.tally.foreign, *self.tally.other_runs])
        destinations = self._destinations(totals)
        cells = self.tally.cells
        return Verdict(
            exit_code=code,
            sentence=verdict_line,
            broken=tuple(broken),
            counts=total,
            producers=tuple(verdicts),
            gaps=int(self.sums[:, Column.GAPS].sum()),
            longest_gaps=tuple(Gap(ledger.name(p), first, n) for p, first, n in self.tally.longest_gaps()),
            latency=_latency(np.flatnonzero(cells), cells[cells > 0], self.tally.longest_us),
            order="checked" if addressed.all() else "partly" if addressed.any() else "not checked",
            bodies="not compared" if self.plan.by_id else "compared",
            examples={},
            undecodable=undecodable,
            undecoded=[row for report in reports for row in report.undecoded][: self.plan.examples],
            capture={
                "listeners": sorted({report.listener for report in reports}),
                "segments": len(reports),
                "bytes": sum(report.size for report in reports),
                "units": sum(report.units for report in reports),
                "acks": sum(report.acks for report in reports),
                "events": sum(report.events for report in reports),
                **{f"{word}s": quiet.get(word, 0) for word in QUIET},
                "first_us": min((report.first_us for report in reports if report.last_us), default=0),
                "last_us": max((report.last_us for report in reports), default=0),
                "complete": not self.problems,
                "published": self.plan.published,
                "runs": runs[:MAX_NAMED],
                "runs_left_out": max(len(runs) - MAX_NAMED, 0),
            },
            ledger={
                "producers": judged,
                "closed": int(np.count_nonzero(ledger.rows["closed"][ledger.selected])),
                "listed": int(ledger.rows["listed"][ledger.selected].sum()),
                "complete": ledger.all_whole,
                "unread": len(ledger.unread),
            },
            problems=problems,
            limits=limits,
            seconds={},
            timeline=self._timeline(),
            maps=tuple(map(self._map, totals.mapped)),
            maps_left_out=int(np.count_nonzero(self.tally.faulty)) - len(totals.mapped),
            devices=self._devices(),
            producers_left_out=left_out,
            problems_left_out=more_problems,
            listeners=self._listeners(destinations),
            destinations=tuple(destinations[:MAX_NAMED]),
            selection=self._selection(),
        )

    def producer_table(self) -> pa.Table:
        """Return the counts of all producers that are judged, also of those that a verdict does not name.

        The first row counts the events of no producer, and has an empty name.
        """
        chosen = np.flatnonzero(self.ledger.selected).tolist()
        breaks = _breaks(self._unassigned, ordered=False)
        rows: list[list[Any]] = [["", "", "", "", 0, *self._unassigned, breaks, "", not self.doubtful]]
        for p, numbers, doubt, ordered in self._counted(chosen):
            x, counts = self.ledger.producers[p], Counts(*numbers)
            names = [x.producer, x.protocol, redact_url(x.url), x.host, x.pid]
            rows.append([*names, *counts, _breaks(counts, ordered), EVIDENCE[x.evidence], not doubt])
        columns = zip(PRODUCERS, zip(*rows, strict=True), strict=True)
        return pa.table([pa.array(values, field.type) for field, values in columns], PRODUCERS)

    def _selection(self) -> dict[str, Any] | None:
        """Return what is judged and what is left out; None: everything is judged."""
        fields = self.selection.to_json()
        if fields is None:
            return None
        ledger, chosen = self.ledger, self.ledger.selected
        by_hash = ledger.shared[(ledger.shared[:, 2] != 0) & ledger.addressed[ledger.shared_by]]
        more = by_hash[chosen[by_hash[:, 0]] & ~contained(ledger.outside, by_hash[:, 0], by_hash[:, 1])]
        left_out = {
            "producers": int(np.count_nonzero(~chosen)),
            "events": int(np.where(chosen, ledger.rows["left_out"], ledger.last).sum())
            + self.tally.elsewhere
            + len(more),
            "without_id": int(ledger.last[~ledger.addressed].sum()) + len(by_hash),
        }
        return {**fields, "left_out": left_out}

    # -- producers

    def _add_up(self, limit: int) -> _Totals:
        """Add up all producers, some thousand at a time, and find the worst of them to name."""
        n = len(self.ledger)
        doubt = self._families_where(lambda name: name in self.doubtful)
        proven = self._ordered_families()
        published = self._families_where(lambda name: name in self.plan.published)
        total = np.zeros(len(Counts._fields), np.int64)
        broken = dict.fromkeys(BREAKING, 0)
        unproven_order = False
        behind = 0
        worst, mapped = [np.empty((0, 3), np.int64)], [np.empty((0, 4), np.int64)]
        by_url = np.zeros((len(self.ledger.urls), len(Counts._fields)), np.int64)
        producers_of_url = np.zeros(len(self.ledger.urls), np.int64)
        for low in range(0, n, SHARE):
            high = min(low + SHARE, n)
            rows = self.ledger.rows[low:high]
            family = rows["family"]
            counts = _count_table(self.sums[low:high], doubt[family])
            columns = dict(zip(Counts._fields, counts.T, strict=True))
            ordered = self._promises_order(rows)
            unproven_order |= bool(columns["reordered"][ordered & ~proven[family]].any())
            breaking = {word: columns[word] for word in BREAKING}
            breaking["reordered"] = np.where(ordered & proven[family], columns["reordered"], 0)
            for word, column in breaking.items():
                broken[word] += int(column.sum())
            total += counts.sum(axis=0)
            np.add.at(by_url, rows["url"], counts)
            of_url = rows["url"][self.ledger.selected[low:high]]
            producers_of_url += np.bincount(of_url, minlength=len(producers_of_url))
            behind += int(columns["reordered"][published[family]].sum())
            p = low + np.arange(high - low)
            some = self.ledger.selected[low:high]
            breaks = np.sum([*breaking.values()], axis=0)
            worst.append(np.column_stack((-breaks, -columns["events"], p))[some])
            severest = [-column for column in severity_columns(columns)]
            mapped.append(np.column_stack((*severest, p))[self.tally.faulty[low:high]])
        return _Totals(
            Counts(*total.tolist()),
            broken,
            unproven_order,
            behind,
            _lowest(worst, limit),
            _lowest(mapped, MAX_MAPS),
            by_url,
            producers_of_url,
        )

    def _promises_order(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return the rows of producers for which order is promised and whose ledger can prove it.

        A ledger with holes may lack the line that records a deliberate overtaking.
        """
        promised = self._families_where(lambda name: name in ORDERED and name not in self.plan.published)
        ordered: npt.NDArray[np.bool_] = promised[rows["family"]] & ~rows["one_way"]
        ordered &= rows["evidence"] != HOLES
        return ordered

    def _ordered_families(self) -> npt.NDArray[np.bool_]:
        """Return the protocols whose units are in the order of arrival."""
        return self._families_where(lambda name: name not in self.disordered)

    def _families_where(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = np.array([test(name) for name in self.ledger.families], np.bool_)
        return found

    def _read_numbers(self, producers: list[int]) -> None:
        """Keep what the tasks counted of some producers, sorted by key."""
        for table, parts in self.tally.numbers.items():
            found = [np.stack(part)[:, np.isin(part[0] // SCALES[table], producers)] for part in parts]
            numbers = np.concatenate(found, axis=1)
            self._numbers[table] = numbers[:, np.argsort(numbers[0], kind="stable")]

    def _numbers_of(self, table: str, p: int) -> tuple[I64, I64]:
        """Return codes and values of a producer in a table; a code may be there more than once."""
        keys, values = self._numbers.get(table, np.empty((2, 0), np.int64))
        first = p * SCALES[table]
        some = slice(*np.searchsorted(keys, (first, first + SCALES[table])))
        return keys[some] - first, values[some]

    def _when(self, p: int) -> dict[str, list[int]]:
        """Return for each word when the first and the last such event of a producer were made."""
        codes, values = self._numbers_of("made", p)
        starts = starts_of(codes)
        pairs = np.maximum.reduceat(values, starts).reshape(-1, 2).tolist() if len(codes) else []
        words = [WORDS[code // 2] for code in codes[starts[::2]].tolist()]
        return {word: [-first, last] for word, (first, last) in sorted(zip(words, pairs, strict=True))}

    def _producers(self, named: list[int]) -> list[ProducerVerdict]:
        return [
            self._producer(p, Counts(*counts), doubt, ordered)
            for p, counts, doubt, ordered in self._counted(named)
        ]

    def _counted(self, some: list[int]) -> Iterable[tuple[int, list[int], bool, bool]]:
        """Return producers with their counts, whether captures are in doubt, and whether order is proven."""
        rows = self.ledger.rows[some]
        doubt = self._families_where(lambda name: name in self.doubtful)[rows["family"]]
        proven = self._ordered_families()[rows["family"]]
        columns = _count_table(self.sums[some], doubt), doubt, self._promises_order(rows) & proven
        return zip(some, *(column.tolist() for column in columns), strict=True)

    def _producer(self, p: int, counts: Counts, doubt: bool, ordered: bool) -> ProducerVerdict:
        x = self.ledger.producers[p]
        when = self._when(p)
        longest = int(self._numbers_of("longest", p)[1].max(initial=0))
        listeners, arrived = (column.tolist() for column in sum_by_key(*self._numbers_of("listeners", p)))
        if doubt:
            times = [when.pop(word) for word in ("lost", "missing", "unknown") if word in when]
            if times:
                when["unknown"] = [min(first for first, _ in times), max(last for _, last in times)]
        return ProducerVerdict(
            producer=x.producer,
            protocol=x.protocol,
            url=redact_url(x.url),
            identity=x.identity,
            order="checked" if x.identity == "id" and self.plan.ordered else "not checked",
            closed=x.closed,
            counts=counts,
            gaps=int(self.sums[p, Column.GAPS]),
            latency=_latency(*self._numbers_of("latency", p), longest),
            breaks=_breaks(counts, ordered),
            mode=x.mode,
            early=int(self.sums[p, Column.EARLY]),
            early_us=int(self.sums[p, Column.EARLY_US]),
            ledger=EVIDENCE[x.evidence],
            host=x.host,
            pid=x.pid,
            started_us=x.started_us,
            reasons=self.ledger.reasons_of(p),
            when=when,
            listeners=self._by_name(dict(zip(listeners, arrived, strict=True))),
            shared=len(self.ledger.shared_of(p)) if x.identity == "id" else 0,
        )

    def _map(self, p: int) -> Map:
        last = int(self.ledger.last[p])
        counts = np.zeros(KINDS * PARTS, np.int64)
        np.add.at(counts, *self._numbers_of("places", p))
        doubt = self.ledger.families[self.ledger.family[p]] in self.doubtful
        kinds = _resolve_sent(counts.reshape(KINDS, PARTS), doubt)
        parts = {}
        for code, word in enumerate((*schema.STATES, "duplicated", "reordered")):
            at = np.flatnonzero(kinds[code])
            if len(at):
                parts[word] = np.stack((at, kinds[code][at]), axis=1).tolist()
        return Map(self.ledger.name(p), last, int(part_width(last)), parts)

    # -- endpoints, listeners and devices

    def _find_routes(self) -> list[endpoints.Route]:
        """Return the route of each URL of the ledgers, in their order."""
        urls = self.ledger.urls
        if self.plan.records is not None:
            return [endpoints.unrouted(protocol, url) for protocol, url in urls]
        arrived = [schema.OK, schema.RECOVERED, schema.CORRUPTED, schema.UNEXPECTED]
        seen, busy = np.zeros((2, len(urls)), bool)
        for low in range(0, len(self.ledger), SHARE):
            some = slice(low, low + SHARE)
            of = self.ledger.rows["url"][some]
            seen[of[(self.sums[some][:, arrived] > 0).any(axis=1)]] = True
            busy[of[(self.sums[some] > 0).any(axis=1)]] = True
        here = {report.listener for report in self.tally.reports}
        # A URL of producers that are not selected may be of another time, with other listeners. One of
        # producers without an event proves nothing.
        used = [i for i in self._used_urls() if busy[i]]
        found = endpoints.routes(
            [(*urls[i], bool(seen[i])) for i in used], [x for x in self.plan.listeners if x["name"] in here]
        )
        routes = [endpoints.unrouted(protocol, url) for protocol, url in urls]
        for i, route in zip(used, found, strict=True):
            routes[i] = route
        return routes

    def _used_urls(self) -> list[int]:
        used: list[int] = np.unique(self.ledger.rows["url"][self.ledger.selected]).tolist()
        return used

    def _destinations(self, totals: _Totals) -> list[Destination]:
        """Return the destinations, one for each URL, the worst first."""
        found = []
        for i in self._used_urls():
            (protocol, url), route = self.ledger.urls[i], self._routes[i]
            pairs = [list(pair) for pair in route.endpoints]
            counts, n = Counts(*totals.by_url[i].tolist()), int(totals.producers_of_url[i])
            found.append(Destination(redact_url(url), protocol, pairs, not route.missing, n, counts))
        return sorted(found, key=lambda x: (x.captured, severity(x.counts), -x.counts.events, x.url))

    def _listeners(self, destinations: list[Destination]) -> tuple[Listener, ...]:
        """Return the listeners, with the events that arrived there and those that did not."""
        words = ("lost", "missing", "unknown")
        alone: dict[str, list[int]] = {}
        shared: dict[str, list[int]] = {}
        for x in destinations:
            for listener in {listener for _, listener in x.endpoints if listener}:
                numbers = (alone if len(x.endpoints) == 1 else shared).setdefault(listener, [0, 0, 0])
                for i, word in enumerate(words):
                    numbers[i] += getattr(x.counts, word)
        found = []
        at = self._by_name(self.tally.at)
        reports: dict[str, list[SegmentReport]] = {}
        for report in self.tally.reports:
            reports.setdefault(report.listener, []).append(report)
        for name in sorted(reports)[:MAX_NAMED]:
            own = sorted(reports[name], key=lambda report: report.number)
            seen, duplicated, corrupted, reordered = at.get(name, np.zeros(4, np.int64)).tolist()
            lost, missing, unknown = alone.get(name, [0, 0, 0])
            elsewhere = dict(zip(words, shared.get(name, [0, 0, 0]), strict=True))

            def distinct(what: str, own: list[SegmentReport] = own) -> list[str]:
                return list(dict.fromkeys(filter(None, (getattr(report, what) for report in own))))

            found.append(
                Listener(
                    listener=name,
                    protocol="+".join(distinct("protocol")),
                    urls=[redact_url(url) for url in distinct("url")],
                    source="+".join(distinct("source")),
                    hosts=distinct("host"),
                    runs=distinct("run")[:MAX_NAMED],
                    segments=len(own),
                    events=sum(report.events for report in own),
                    first_us=min((report.first_us for report in own if report.last_us), default=0),
                    last_us=max((report.last_us for report in own), default=0),
                    seen=seen,
                    duplicated=duplicated,
                    corrupted=corrupted,
                    reordered=reordered,
                    lost=lost,
                    missing=missing,
                    unknown=unknown,
                    elsewhere={word: n for word, n in elsewhere.items() if n},
                    problems=sum(sum(report.counts.values()) for report in own),
                )
            )
        return tuple(found)

    def _by_name(self, numbers: Mapping[int, Any]) -> dict[str, Any]:
        """Turn sums by number of a listener into sums by its name."""
        records = self.plan.records
        if records is None:
            names = [x["name"] for x in self.plan.listeners]
        else:
            names = [place[0] for place in records["places"]]
        found: dict[str, Any] = {}
        for i, some in sorted(numbers.items()):
            name = names[i]
            found[name] = found[name] + some if name in found else some
        return found

    def _devices(self) -> tuple[Device, ...]:
        found: dict[tuple[str, int], Device] = {}
        every = self.tally.reports + self.tally.foreign
        for report in sorted(every, key=lambda report: (report.listener, report.number)):
            for fields in report.devices:
                own = Device(*fields)
                before = found.get((own.listener, own.device))
                found[own.listener, own.device] = own if before is None else joined(before, own)
        return tuple(found[key] for key in sorted(found))

    # -- what is wrong with the evidence

    def _ledger_faults(self, allow_open: bool) -> tuple[list[str], int]:
        """Return the faults of the ledgers, the worst first, and the number of allowed open ledgers."""
        evidence = np.where(self.ledger.selected, self.ledger.rows["evidence"], WHOLE)
        evidence[self.ledger.continued & (evidence == UNCLOSED)] = WHOLE
        ended = np.flatnonzero(self.ledger.continued & (evidence != WHOLE))
        evidence[ended[~self.sums[ended].any(axis=1)]] = WHOLE  # nothing of it is judged
        allowed = int(np.count_nonzero(evidence == UNCLOSED)) if allow_open else 0
        wrong = int(np.count_nonzero(evidence != WHOLE)) - allowed
        faults = []
        if wrong:
            faults.append(self.ledger.producers[int(evidence.argmax())].fault)
        if wrong > 1:
            faults.append(f"{counted(wrong - 1, 'other ledger')} {'is' if wrong == 2 else 'are'} not whole")
        if unread := self.ledger.unread:
            more = f" and {len(unread) - 1:,} more" if len(unread) > 1 else ""
            faults.append(f"{unread[0]}{more} may be a ledger and is not read")
        return faults, allowed

    def _problems(self, total: Counts) -> tuple[tuple[str, ...], int]:
        """Return the first problems of ledgers and captures, and the number of further ones."""
        counts = self.ledger.rows["problems"]
        nothing, missing_runs = self._selection_problems(total)
        of_ledgers = (
            f"ledger: {problem}"
            for p in map(int, np.flatnonzero(counts)[:MAX_NAMED])
            for problem in self.ledger.producers[p].problem_lines
        )
        others = [
            *(f"selection: {why}" for why in nothing),
            *missing_runs,
            *self._rewritten_bodies(total),
            *self._clock_problems(),
            *self._left_out_devices(),
            *(f"capture: {x.place}: {x.kind}: {x.reason}" for x in self.problems),
            *(f"ledger: {name}: it may be a ledger and is not read" for name in self.ledger.unread),
            *(f"ledger: {copy}" for copy in self.ledger.copies),
        ]
        named = tuple(itertools.islice(itertools.chain(others, of_ledgers), MAX_NAMED))
        return named, len(others) + int(counts.sum()) - len(named)

    def _selection_problems(self, total: Counts) -> tuple[list[str], list[str]]:
        """Return why the selected events prove nothing, and the producers with events in no run."""
        empty = self.selection != EVERYTHING and not total.events
        nothing = [f"the ledgers have no events {self.selection.phrase}"] if empty else []
        column = self.sums[:, Column.NOWHERE]
        return nothing, [
            f"missing_run: {self.ledger.producers[p].label}: {column[p]:,} acknowledged events arrived in no "
            "run; the producer is left out because others arrived in runs that are not selected"
            for p in np.flatnonzero(column).tolist()
        ]

    def _rewritten_bodies(self, total: Counts) -> list[str]:
        """Return the problem of a topic or table with mostly changed bodies; empty: there is none."""
        intact = total.ok + total.recovered
        if self.plan.records is None or total.corrupted <= intact:
            return []
        seen = intact + total.corrupted
        changed = f"{total.corrupted:,} of the {seen:,} events that are seen have another body than was sent"
        rule = "they must be kept byte for byte; a stage that drops a field such as @metadata or rewrites"
        return [f"bodies: {changed}: {rule} JSON changes them, and may remove their ids"]

    def _clock_problems(self) -> list[str]:
        if not self.plan.timed:
            return []
        early = self.sums[:, Column.EARLY_US]
        wrong = np.flatnonzero(early >= CLOCK_US)
        wrong = wrong[np.argsort(-early[wrong], kind="stable")]
        problems = []
        for p in wrong[: self.plan.examples].tolist():
            x = self.ledger.producers[p]
            problems.append(
                f"clocks: {self.sums[p, Column.EARLY]:,} events of {x.label} arrived before "
                f"they were sent: the clocks differ by at least {early[p] / 1e6:,.3f} s"
            )
        if len(wrong) > len(problems):
            problems.append(f"clocks: the same holds for {len(wrong) - len(problems):,} more producers")
        for report in self.tally.reports:
            if n := report.timeless:
                why = "received before 1970 or after 2255: they have no latency"
                problems.append(f"clocks: {report.name}: {n:,} units {why}")
        return problems

    def _left_out_devices(self) -> list[str]:
        if not any(report.devices_left_out for report in self.tally.reports):
            return []
        return [f"capture: more than {MAX_DEVICES:,} devices at a listener; the others are not followed"]

    # -- over time

    def _timeline(self) -> Timeline | None:
        times = self.tally.times
        grid = times.grid
        if not grid.n:
            return None
        kinds = np.zeros(times.words.shape[1:], np.int64)
        for family, name in enumerate(self.ledger.families):
            kinds += _resolve_sent(times.words[family].T, name in self.doubtful).T
        drops = self.ledger.drops
        drops = drops[self.ledger.selected[drops[:, 0]]]
        dropped = np.bincount(grid.step(drops[:, 1]), drops[:, 2], grid.n)
        latency: dict[str, list[float | None]] = {"p50": [], "p99": [], "max": []}
        for row in times.latency.sum(axis=0):
            used = np.flatnonzero(row)
            for word, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                value = _quantile(used, row[used], q, self.tally.longest_us) if len(used) else None
                latency[word].append(value)

        codes = [schema.OK, schema.LOST, schema.MISSING, schema.UNKNOWN, schema.PENDING]
        words = ("lost", "missing", "recovered", "corrupted", "unknown", "pending")
        shown = {word: schema.STATES.index(word) for word in words}
        shown |= {"duplicated": DUPLICATED, "reordered": REORDERED}
        return Timeline(
            start_us=grid.start_us,
            width_us=grid.width_us,
            # Kind `OK` counts everything that arrived, recovered and corrupted events too.
            events=kinds[:, codes].sum(axis=1).tolist(),
            dropped=dropped.astype(np.int64).tolist(),
            latency=latency,
            **{word: kinds[:, code].tolist() for word, code in shown.items()},
        )


def _breaks(counts: Counts, ordered: bool) -> tuple[str, ...]:
    return tuple(word for word in BREAKING if getattr(counts, word) and (word != "reordered" or ordered))


def _count_table(rows: I64, doubt: npt.NDArray[np.bool_]) -> I64:
    """Return the `Counts` of some producers, one row each, from their `Tally.sums`.

    With an incomplete capture (`doubt`) sent events that were not seen are unknown.
    """
    states = rows[:, : len(schema.STATES)].copy()
    for code, column in ((schema.LOST, Column.LOST_SENT), (schema.MISSING, Column.MISSING_SENT)):
        moved = np.where(doubt, rows[:, column], 0)
        states[:, code] -= moved
        states[:, schema.UNKNOWN] += moved
    events = states.sum(axis=1)
    named = {word: states[:, i] for i, word in enumerate(schema.STATES)}
    for word, column in BEYOND.items():
        named[word] = named[word] + rows[:, column]
    named |= {
        "events": events, "duplicated": rows[:, Column.DUPLICATED], "reordered": rows[:, Column.REORDERED],
    }  # fmt: skip
    return np.stack([named[word] for word in Counts._fields], axis=1)


def _resolve_sent(kinds: I64, doubt: bool) -> I64:
    """Add the kinds `LOST_SENT` and `MISSING_SENT` to lost and missing, or in doubt to unknown."""
    kinds = kinds.copy()
    for sent, code in ((LOST_SENT, schema.LOST), (MISSING_SENT, schema.MISSING)):
        kinds[schema.UNKNOWN if doubt else code] += kinds[sent]
        kinds[sent] = 0
    return kinds


def _quantile(cells: I64, counts: I64, q: float, longest: int) -> float:
    """Return a quantile of the histogram, in microseconds. The cells rise."""
    reach = np.cumsum(counts)
    at = int(np.searchsorted(reach, max(1, int(np.ceil(q * int(reach[-1]))))))
    return min(round(cell_value(int(cells[at])), 1), float(longest))


def _latency(cells: I64, counts: I64, longest: int) -> Latency | None:
    """Return the quantiles of a histogram; a cell may be there more than once."""
    if not len(cells):
        return None
    cells, counts = sum_by_key(cells, counts)
    quantiles = {word: _quantile(cells, counts, q, longest) for word, q in QUANTILES}
    return Latency(events=int(counts.sum()), max=longest, **quantiles)


def _lowest(parts: list[I64], limit: int) -> list[int]:
    """Return the last values of the rows with the lowest values."""
    rows = np.concatenate(parts)
    lowest: list[int] = rows[np.lexsort(rows.T[::-1])[:limit], -1].tolist()
    return lowest


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for some in counts:
        for word, n in some.items():
            total[word] = total.get(word, 0) + n
    return total
