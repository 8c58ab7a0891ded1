"""The way from a tally to a verdict: totals, broken promises, the sentence and the exit code."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logclient.errors import ExitCode
from logclient.evidence import captures
from logclient.evidence.arrays import I64, starts_of, sum_by_key
from logclient.evidence.decode import QUIET, protocol_of
from logclient.evidence.frames import counted
from logclient.evidence.selection import EVERYTHING
from logclient.evidence.storage import encodable, redact_url
from logclient.files.capture import Problem
from logclient.verify import endpoints, schema
from logclient.verify.ledger_facts import EVIDENCE, HOLES, UNCLOSED, WHOLE
from logclient.verify.outside import contained
from logclient.verify.overview import KINDS, MISSING_SENT, PARTS, cell_value, part_width
from logclient.verify.producer_tables import SCALES, WORDS, Column
from logclient.verify.tally import BEYOND, SHARE, Tally
from logclient.verify.verdict import (
    BREAKING,
    CLOCK_US,
    Counts,
    Destination,
    Gap,
    Latency,
    LeftOut,
    Limits,
    Listener,
    Map,
    ProducerVerdict,
    Service,
    Timeline,
    Verdict,
    sentence,
    severity,
)

KIND_WORDS = (*schema.STATES, "duplicated", "reordered")
ORDERED = ("lumberjack", "logjam")  # protocols that promise the order of what they acknowledge
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
ABOUT = ("host", "service", "service_version")
KEPT = ("producer", "protocol", "identity", "closed", "mode", *ABOUT, "pid", "started_us")  # of `Producer`
MAX_MAPS = 50  # the most producers whose faults are shown by sequence
MAX_NAMED = 1000  # the most producers, problems, listeners, URLs and runs that a verdict names

PRODUCERS = pa.schema(  # of `Summary.producer_table`
    [
        *((name, pa.string()) for name in ("producer", "protocol", "url", *ABOUT)),
        *((name, pa.int64()) for name in ("pid", *Counts._fields)),
        ("breaks", pa.list_(pa.string())),
        ("ledger", pa.string()),
        ("capture_complete", pa.bool_()),
    ]
)


class Summary:
    """The verdict of a tally, after `Tally.count_unlisted`.

    `problems` are the reasons why captures may be incomplete, `doubtful` the protocols concerned, and
    `disordered` those of them whose units may not be in the order of arrival.
    """

    def __init__(self, tally: Tally) -> None:
        tally.finish()
        self.tally = tally
        self.plan = tally.plan
        self.ledger = tally.ledger
        self.sums = tally.sums
        self.selection = self.plan.selection
        families = self.ledger.families
        self.problems, self.doubtful, self.disordered, self._ends = tally.doubts()
        if not self.plan.timed:  # nothing has a latency
            self.sums[:, [Column.EARLY, Column.EARLY_US]] = 0
            tally.times.latency[:] = tally.cells[:] = 0
            tally.numbers.pop("latency", None)
        self._numbers: dict[str, I64] = {}  # rows: keys and values
        self._uncompared = sum(report.events - report.outside for report in tally.foreign)
        self._unassigned = tally.unknown_producers.plus(Counts(unknown=self._uncompared))
        self._others: dict[str, Any] = {"rule": self.plan.others}
        if self.plan.others != "break":
            if self.plan.others == "count":
                self._others["events"] = self._unassigned.unexpected + self._unassigned.unknown
            self._unassigned, self._uncompared = Counts(), 0
            self.problems = [problem for problem in self.problems if problem.kind != "other run"]
        self._allowed: dict[str, bool] = {}  # word with a limit -> whether the counts are within it
        urls = np.unique(self.ledger.rows["url"][self.ledger.selected], return_counts=True)
        # Of URLs with selected producers the index, and the number of these.
        self._used_urls: dict[int, int] = dict(zip(*(column.tolist() for column in urls), strict=True))
        self._routes = self._find_routes()
        uncaptured = {(route.family, endpoint) for route in self._routes for endpoint in route.missing}
        for family, endpoint in sorted(uncaptured):
            why = f"it is in a ledger of {family}, and has no listener in this capture"
            self.problems.append(Problem("endpoint", endpoint, -1, why))
            self.doubtful.add(family)
        if self.plan.records is not None:
            # Records have their own order, even if some are missing.
            self.disordered = set()
        # Of each protocol: captures are in doubt, units are in the order of arrival, order is promised.
        self._doubt = np.array([name in self.doubtful for name in families], np.bool_)
        self._proven = np.array([name not in self.disordered for name in families], np.bool_)
        ordered = [name in ORDERED and name not in self.plan.published for name in families]
        self._ordered = np.array(ordered, np.bool_)

    def verdict(self, limits: Limits, allow_open: bool = False, allow_empty: bool = False) -> Verdict:
        """Make the verdict, without examples and times."""
        ledger, reports = self.ledger, self.tally.reports
        unknown = self._unassigned
        by_url, by_service, breaking, unproven_order, worst, mapped = self._add_up(MAX_NAMED - any(unknown))
        assigned = Counts(*map(sum, zip(*by_url, strict=True)))
        total = assigned.plus(unknown)
        cells = self.tally.cells
        latency = _latency(np.flatnonzero(cells), cells[cells > 0], self.tally.longest_us)
        self._allowed = limits.allowed(total)
        named = sorted(worst)
        self._read_numbers([*named, *mapped])
        verdicts = [self._producer(*row) for row in self._counted(named)]
        left_out = None
        judged = int(np.count_nonzero(ledger.selected))
        if judged > len(named):
            rest = np.subtract(assigned, np.sum([x.counts for x in verdicts], axis=0))
            left_out = LeftOut(judged - len(named), Counts(*rest.tolist()))
        if any(unknown):
            breaks = self._breaks(unknown, ordered=False)
            verdicts.append(ProducerVerdict("", "", "", "", "not checked", False, unknown, 0, None, breaks))
        breaking["unexpected"] += unknown.unexpected
        broken = [f"{n:,} {word}" for word, n in breaking.items() if n and word not in self._allowed]
        broken += limits.broken(total, latency)
        evidence = self._evidence()
        wrong = evidence != WHOLE
        if allow_open:
            wrong &= ~((evidence == UNCLOSED) & self._has_later_lines())
        still_open = int(np.count_nonzero((evidence != WHOLE) & ~wrong))
        faults = self._ledger_faults(evidence, wrong)
        empty = self.selection != EVERYTHING and not total.events
        accepted = empty and allow_empty
        nothing = [f"the ledgers have no events {self.selection.phrase}"] * (empty and not accepted)
        faults += nothing
        undecodable, quiet = Counter[str](), Counter[str]()
        for report in reports:
            undecodable.update(report.undecodable)
            quiet.update(report.quiet)
        if total.events and not (total.ok or total.recovered or total.corrupted or total.unexpected):
            faults.append("nothing of what arrived can be decoded" if undecodable else "nothing has arrived")
        if limits.latency is not None and latency is None and not accepted:
            faults.append("no latency is known")
        if unread := [problem.segment for problem in self.problems if problem.kind == "unread"]:
            more = f" and {len(unread) - 1:,} more" if len(unread) > 1 else ""
            faults.append(f"{unread[0]}{more} may be of the capture and is not read")
        unproven = total.unknown or faults or unproven_order
        code = ExitCode.BROKEN if broken else ExitCode.UNREACHABLE if unproven else ExitCode.OK
        addressed = ledger.addressed[ledger.selected] if self.plan.ordered else np.zeros(1, bool)
        incomplete = self.doubtful or self._uncompared or (ledger.ends and total.unknown)
        reasons = [*faults, *["the capture is incomplete"] * bool(incomplete)]
        unlisted = unknown.unknown + int(self.sums[:, BEYOND["unknown"]].sum())
        chosen, by_id = self.selection.phrase, self.plan.by_id
        line = sentence(code, broken, total, reasons, still_open, chosen, by_id, unlisted)
        by_device = [protocol_of(protocol) in self.plan.published for protocol, _ in ledger.urls]
        if behind := sum(x.reordered for x in itertools.compress(by_url, by_device)):
            line += f" {behind:,} reordered behind a device, where order is no promise."
        if killed := int(np.count_nonzero(ledger.rows["ended"] & ledger.selected)):
            line += f" {counted(killed, 'producer')} ended without close: what waited there is in no ledger."
        problems, harmless, more_problems = self._problems(total, nothing, wrong)
        runs = captures.list_runs(reports, self.tally.foreign)
        destinations = self._destinations(by_url)
        return Verdict(
            exit_code=code,
            sentence=line,
            broken=tuple(broken),
            counts=total,
            producers=tuple(verdicts),
            gaps=int(self.sums[:, Column.GAPS].sum()),
            longest_gaps=tuple(Gap(ledger.name(p), first, n) for p, first, n in self.tally.longest_gaps()),
            latency=latency,
            order="checked" if addressed.all() else "partly" if addressed.any() else "not checked",
            bodies="not compared" if self.plan.by_id else "compared",
            examples={},
            undecodable=dict(undecodable),
            undecoded=[row for report in reports for row in report.undecoded][: self.plan.examples],
            capture={
                "listeners": sorted({report.listener for report in reports}),
                "segments": len(reports),
                "skipped": sum(report.skipped for report in reports),
                "bytes": sum(report.size for report in reports),
                **{word: sum(map(attrgetter(word), reports)) for word in ("units", "acks", "events")},
                **{f"{word}s": quiet[word] for word in QUIET},
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
                "still_open": still_open,
            },
            problems=problems,
            limits=limits,
            seconds={},
            timeline=self._timeline(),
            maps=tuple(map(self._map, mapped)),
            maps_left_out=int(np.count_nonzero(self.tally.faulty)) - len(mapped),
            producers_left_out=left_out,
            problems_left_out=more_problems,
            harmless=harmless,
            listeners=self._listeners(destinations),
            destinations=tuple(destinations[:MAX_NAMED]),
            services=self._services(by_service),
            others=self._others,
            selection=self._selection(),
        )

    def producer_table(self) -> pa.Table:
        """Return the counts of all judged producers; the first row, without a name, is of no producer."""
        chosen = np.flatnonzero(self.ledger.selected).tolist()
        breaks = self._breaks(self._unassigned, ordered=False)
        complete = not (self.doubtful or self._ends)
        names = [""] * PRODUCERS.get_field_index("pid")
        rows: list[list[Any]] = [[*names, 0, *self._unassigned, breaks, "", complete]]
        for p, numbers, doubt, ordered in self._counted(chosen):
            x, counts = self.ledger.producers[p], Counts(*numbers)
            about = (getattr(x, name) for name in ABOUT)
            names = [*map(encodable, (x.producer, x.protocol, redact_url(x.url), *about))]
            breaks = self._breaks(counts, ordered)
            complete = not doubt and protocol_of(x.protocol) not in self._ends
            rows.append([*names, x.pid, *counts, breaks, EVIDENCE[x.evidence], complete])
        return pa.table(dict(zip(PRODUCERS.names, zip(*rows, strict=True), strict=True)), PRODUCERS)

    def _selection(self) -> dict[str, Any] | None:
        """Return what is judged and what is left out; None: everything is judged."""
        if self.selection == EVERYTHING:
            return None
        ledger, chosen = self.ledger, self.ledger.selected
        by_hash = ledger.shared[(ledger.shared[:, 2] != 0) & ledger.addressed[ledger.shared_by]]
        more = by_hash[chosen[by_hash[:, 0]] & ~contained(ledger.outside, by_hash[:, 0], by_hash[:, 1])]
        events = int(np.where(chosen, ledger.rows["left_out"], ledger.last).sum())
        left_out = {
            "producers": int(np.count_nonzero(~chosen)),
            "events": events + len(more),
            "without_id": int(ledger.last[~ledger.addressed].sum()) + len(by_hash),
        }
        since, until = self.selection
        return {"since_us": since, "until_us": until, "runs": [], "left_out": left_out}

    # -- producers

    def _add_up(
        self, limit: int
    ) -> tuple[list[Counts], list[Counts], dict[str, int], bool, list[int], list[int]]:
        """Add up all producers, some thousand at a time.

        Return counts by URL, and by service and host, and the numbers of words that break the promise.

        Also return whether more are reordered by incomplete evidence, and the worst: to name, and to map.
        """
        broken = np.zeros(len(BREAKING), np.int64)
        unproven_order = False
        worst, mapped = [np.empty((0, 3), np.int64)], [np.empty((0, 4), np.int64)]
        groups = {"url": self.ledger.urls, "service": self.ledger.services}
        sums = {name: np.zeros((len(found), len(Counts._fields)), np.int64) for name, found in groups.items()}
        for low in range(0, len(self.ledger), SHARE):
            some = slice(low, low + SHARE)
            rows = self.ledger.rows[some]
            counts = _count_table(self.sums[some], self._doubt[rows["family"]])
            columns = dict(zip(Counts._fields, counts.T, strict=True))
            ordered, proven = self._promises_order(rows), self._proven[rows["family"]]
            unproven_order |= bool(columns["reordered"][ordered & ~proven].any())
            in_order = np.where(ordered & proven, columns["reordered"], 0)
            breaking = np.stack([in_order if word == "reordered" else columns[word] for word in BREAKING])
            broken += breaking.sum(axis=1)
            for name, total in sums.items():
                np.add.at(total, rows[name], counts)
            p = low + np.arange(len(rows))
            ranked = np.column_stack((-breaking.sum(axis=0), -columns["events"], p))
            worst.append(ranked[self.ledger.selected[some]])
            mapped.append(np.column_stack((*severity(columns), p))[self.tally.faulty[some]])
        by_url, by_service = ([Counts(*row) for row in total.tolist()] for total in sums.values())
        words = dict(zip(BREAKING, broken.tolist(), strict=True))
        return by_url, by_service, words, unproven_order, _lowest(worst, limit), _lowest(mapped, MAX_MAPS)

    def _promises_order(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        # A ledger with holes may lack the line that records a deliberate overtaking.
        ordered = self._ordered[rows["family"]] & ~rows["one_way"] & (rows["evidence"] != HOLES)
        return np.asarray(ordered, np.bool_)

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

    def _breaks(self, counts: Counts, ordered: bool) -> tuple[str, ...]:
        allowed = self._allowed if ordered else {**self._allowed, "reordered": True}
        return tuple(word for word in BREAKING if getattr(counts, word) and not allowed.get(word))

    def _counted(self, some: list[int]) -> Iterable[tuple[int, list[int], bool, bool]]:
        """Return producers with their counts, whether captures are in doubt, and whether order is proven."""
        rows = self.ledger.rows[some]
        doubt = self._doubt[rows["family"]]
        ordered = self._promises_order(rows) & self._proven[rows["family"]]
        columns = _count_table(self.sums[some], doubt), doubt, ordered
        return zip(some, *(column.tolist() for column in columns), strict=True)

    def _producer(self, p: int, numbers: list[int], doubt: bool, ordered: bool) -> ProducerVerdict:
        x, counts = self.ledger.producers[p], Counts(*numbers)
        when = self._when(p)
        longest = int(self._numbers_of("longest", p)[1].max(initial=0))
        listeners, arrived = (column.tolist() for column in sum_by_key(*self._numbers_of("listeners", p)))
        if doubt:
            times = [when.pop(word) for word in ("lost", "missing", "unknown") if word in when]
            if times:
                when["unknown"] = [min(first for first, _ in times), max(last for _, last in times)]
        return ProducerVerdict(
            **{name: getattr(x, name) for name in KEPT},
            url=redact_url(x.url),
            order="checked" if x.identity == "id" and self.plan.ordered else "not checked",
            counts=counts,
            gaps=int(self.sums[p, Column.GAPS]),
            latency=_latency(*self._numbers_of("latency", p), longest),
            breaks=self._breaks(counts, ordered),
            early=int(self.sums[p, Column.EARLY]),
            early_us=int(self.sums[p, Column.EARLY_US]),
            ledger=EVIDENCE[x.evidence],
            reasons=self.ledger.reasons_of(p),
            when=when,
            listeners=self._by_name(dict(zip(listeners, arrived, strict=True))),
            shared=len(self.ledger.shared_of(p)) if x.identity == "id" else 0,
        )

    def _map(self, p: int) -> Map:
        last = int(self.ledger.last[p])
        counts = np.zeros(KINDS * PARTS, np.int64)
        np.add.at(counts, *self._numbers_of("places", p))
        kinds = _resolve_sent(counts.reshape(KINDS, PARTS), self._doubt[self.ledger.family[p]])
        parts = {}
        for code, word in enumerate(KIND_WORDS):
            at = np.flatnonzero(kinds[code])
            if len(at):
                parts[word] = np.stack((at, kinds[code][at]), axis=1).tolist()
        return Map(self.ledger.name(p), last, int(part_width(last)), parts)

    # -- endpoints and listeners

    def _find_routes(self) -> list[endpoints.Route]:
        """Return the route of each URL of the ledgers, in their order."""
        urls = self.ledger.urls
        if self.plan.records is not None:
            return [endpoints.unrouted(*url) for url in urls]
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
        used = [i for i in self._used_urls if busy[i]]
        listeners = [x for x in self.plan.listeners if x["name"] in here]
        found = endpoints.routes([(*urls[i], bool(seen[i])) for i in used], listeners)
        routes = dict(zip(used, found, strict=True))
        return [routes.get(i) or endpoints.unrouted(*url) for i, url in enumerate(urls)]

    def _destinations(self, by_url: list[Counts]) -> list[Destination]:
        """Return the destinations, one for each URL, the worst first."""
        found = []
        for i, n in self._used_urls.items():
            (protocol, url), route = self.ledger.urls[i], self._routes[i]
            pairs, whole = [list(pair) for pair in route.endpoints], not route.missing
            found.append(Destination(redact_url(url), protocol, pairs, whole, n, by_url[i]))
        found.sort(key=lambda x: (x.captured, severity(x.counts._asdict()), -x.counts.events, x.url))
        return found

    def _services(self, counts: list[Counts]) -> tuple[Service, ...]:
        """Return the services at their hosts, the worst first."""
        judged = np.bincount(self.ledger.rows["service"][self.ledger.selected], minlength=len(counts))
        rows = zip(self.ledger.services, judged.tolist(), counts, strict=True)
        found = [Service(*names, n, of_it) for names, n, of_it in rows if n]
        found.sort(key=lambda x: (severity(x.counts._asdict()), -x.counts.events, x.service, x.host))
        return tuple(found[:MAX_NAMED])

    def _listeners(self, destinations: list[Destination]) -> tuple[Listener, ...]:
        words = ("lost", "missing", "unknown")
        alone, shared = defaultdict[str, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
        for x in destinations:
            for listener in {listener for _, listener in x.endpoints if listener}:
                numbers = (alone if len(x.endpoints) == 1 else shared)[listener]
                numbers.update({word: getattr(x.counts, word) for word in words})
        found = []
        at = self._by_name(self.tally.at)
        reports = sorted(self.tally.reports, key=attrgetter("listener", "number"))
        for name, group in itertools.islice(itertools.groupby(reports, attrgetter("listener")), MAX_NAMED):
            own = list(group)
            arrived = at.get(name, np.zeros(4, np.int64)).tolist()
            distinct = {
                what: list(dict.fromkeys(filter(None, map(attrgetter(what), own))))
                for what in ("protocol", "url", "source", "host", "run")
            }
            found.append(
                Listener(
                    listener=name,
                    protocol="+".join(distinct["protocol"]),
                    urls=[redact_url(url) for url in distinct["url"]],
                    source="+".join(distinct["source"]),
                    hosts=distinct["host"],
                    runs=distinct["run"][:MAX_NAMED],
                    segments=len(own),
                    events=sum(report.events for report in own),
                    first_us=min((report.first_us for report in own if report.last_us), default=0),
                    last_us=max((report.last_us for report in own), default=0),
                    **dict(zip(("seen", "duplicated", "corrupted", "reordered"), arrived, strict=True)),
                    **{word: alone[name][word] for word in words},
                    elsewhere={word: n for word, n in shared[name].items() if n},
                    problems=sum(sum(report.counts.values()) for report in own),
                )
            )
        return tuple(found)

    def _by_name(self, numbers: Mapping[int, Any]) -> dict[str, Any]:
        """Turn sums by number of a listener into sums by its name."""
        names = [x["name"] for x in self.plan.listeners]
        if self.plan.records is not None:
            names = [place.name for place in self.plan.records["places"]]
        found: dict[str, Any] = {}
        for i, some in sorted(numbers.items()):
            found[names[i]] = found.get(names[i], 0) + some
        return found

    # -- what is wrong with the evidence

    def _evidence(self) -> npt.NDArray[Any]:
        """Return the completeness of each ledger, as far as what is judged depends on it."""
        evidence = np.where(self.ledger.selected, self.ledger.rows["evidence"], WHOLE)
        complete = self.ledger.continued
        if self.selection.until_us is not None:
            complete = complete | self._has_later_lines()
        evidence[complete & (evidence == UNCLOSED)] = WHOLE
        ended = np.flatnonzero(self.ledger.continued & (evidence != WHOLE))
        evidence[ended[~self.sums[ended].any(axis=1)]] = WHOLE  # nothing of it is judged
        return np.asarray(evidence)

    def _has_later_lines(self) -> npt.NDArray[np.bool_]:
        """Return which ledgers have a line from the end of the selected time on, when no event waited.

        One that no process writes any more has all its lines. Without an end: which have all their parts.
        """
        rows, until_us = self.ledger.rows, self.selection.until_us
        if until_us is None:
            return np.asarray(~rows["goes_on"])
        return np.asarray(rows["ended"] | ((rows["last_line_us"] >= until_us) & (rows["waiting"] == 0)))

    def _ledger_faults(self, evidence: npt.NDArray[Any], wrong: npt.NDArray[np.bool_]) -> list[str]:
        """Return the faults of the ledgers that are `wrong`, the worst first."""
        faults, n = [], int(np.count_nonzero(wrong))
        if n:
            faults.append(self.ledger.producers[int((evidence * wrong).argmax())].fault)
        if n > 1:
            faults.append(f"{counted(n - 1, 'other ledger')} {'is' if n == 2 else 'are'} not whole")
        if unread := self.ledger.unread:
            more = f" and {len(unread) - 1:,} more" if len(unread) > 1 else ""
            faults.append(f"{unread[0]}{more} may be a ledger and is not read")
        return faults

    def _problems(
        self, total: Counts, nothing: list[str], wrong: npt.NDArray[np.bool_]
    ) -> tuple[tuple[str, ...], int, int]:
        """Return the first problems of ledgers and captures, how many are harmless, and how many follow.

        The harmless ones are the last. Those of ledgers that are not `wrong` are harmless.
        """
        counts = self.ledger.rows["problems"]
        seen = total.ok + total.recovered + total.corrupted
        bodies = (
            f"bodies: {total.corrupted:,} of the {seen:,} events that are seen have another body than was "
            "sent: they must be kept byte for byte; a stage that drops a field such as @metadata or rewrites "
            "JSON changes them, and may remove their ids"
        )

        def of_ledgers(some: npt.NDArray[np.bool_]) -> Iterable[str]:
            numbers = np.flatnonzero((counts > 0) & some)[:MAX_NAMED].tolist()
            return (f"ledger: {line}" for p in numbers for line in self.ledger.producers[p].problems)

        of_captures: dict[bool, list[str]] = {True: [], False: []}
        for x in self.problems:
            of_captures[x.kind == "copy"].append(f"capture: {x.place}: {x.kind}: {x.reason}")
        harmless = [
            *self._clock_problems(),
            *of_captures[True],
            *(f"ledger: {copy}" for copy in self.ledger.copies),
        ]
        others = [
            *(f"selection: {why}" for why in nothing),
            *[bodies] * (self.plan.records is not None and 2 * total.corrupted > seen),
            *of_captures[False],
            *(f"ledger: {name}: it may be a ledger and is not read" for name in self.ledger.unread),
            *(
                f"ledger: {name}-0001.ledger is not here, and events with ids of this producer arrived"
                for name in self.tally.producers_without_ledger()
            ),
        ]
        first = list(itertools.islice(itertools.chain(others, of_ledgers(wrong)), MAX_NAMED))
        named = tuple(itertools.islice(itertools.chain(first, harmless, of_ledgers(~wrong)), MAX_NAMED))
        further = len(others) + len(harmless) + int(counts.sum()) - len(named)
        return named, len(named) - len(first), further

    def _clock_problems(self) -> list[str]:
        early = self.sums[:, Column.EARLY_US]
        wrong = np.flatnonzero(early >= CLOCK_US)
        wrong = wrong[np.argsort(-early[wrong], kind="stable")]
        problems = [
            f"clocks: {self.sums[p, Column.EARLY]:,} events of {self.ledger.producers[p].label} arrived "
            f"before they were sent: the clocks differ by at least {early[p] / 1e6:,.3f} s"
            for p in wrong[: self.plan.examples].tolist()
        ]
        if len(wrong) > len(problems):
            problems.append(f"clocks: the same holds for {len(wrong) - len(problems):,} more producers")
        why = "received at no known time, or before 1970 or after 2255: they have no latency"
        return problems + [
            f"clocks: {report.name}: {report.timeless:,} units {why}"
            for report in self.tally.reports
            if report.timeless and self.plan.timed
        ]

    # -- over time

    def _timeline(self) -> Timeline | None:
        times, grid = self.tally.times, self.tally.times.grid
        if not grid.n:
            return None
        kinds = np.zeros(times.words.shape[1:], np.int64)
        for words, doubt in zip(times.words, self._doubt, strict=True):
            kinds += _resolve_sent(words.T, doubt).T
        drops = self.ledger.drops[self.ledger.selected[self.ledger.drops[:, 0]]]
        dropped = np.bincount(grid.step(drops[:, 1]), drops[:, 2], grid.n)
        steps = [(np.flatnonzero(row), row[row > 0]) for row in times.latency.sum(axis=0)]
        latency = {
            word: [_quantile(*step, q, self.tally.longest_us) if len(step[0]) else None for step in steps]
            for word, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        }
        codes = [schema.OK, schema.LOST, schema.MISSING, schema.UNKNOWN, schema.PENDING]
        shown = {x: i for i, x in enumerate(KIND_WORDS) if x in Timeline._fields and x != "dropped"}
        return Timeline(
            start_us=grid.start_us,
            width_us=grid.width_us,
            # Kind `OK` counts everything that arrived, recovered and corrupted events too.
            events=kinds[:, codes].sum(axis=1).tolist(),
            dropped=dropped.astype(np.int64).tolist(),
            latency=latency,
            **{word: kinds[:, code].tolist() for word, code in shown.items()},
        )


def _count_table(rows: I64, doubt: npt.NDArray[np.bool_]) -> I64:
    """Return rows of `Counts` from rows of `Tally.sums`. In doubt, sent events not seen are unknown."""
    states = rows[:, : len(schema.STATES)].copy()
    for code, column in ((schema.LOST, schema.LOST), (schema.MISSING, Column.MISSING_SENT)):
        moved = np.where(doubt, rows[:, column], 0)
        states[:, code] -= moved
        states[:, schema.UNKNOWN] += moved
    named = dict(zip(schema.STATES, states.T, strict=True), events=states.sum(axis=1))
    named |= {word: named[word] + rows[:, column] for word, column in BEYOND.items()}
    named |= {"duplicated": rows[:, Column.DUPLICATED], "reordered": rows[:, Column.REORDERED]}
    return np.stack([named[word] for word in Counts._fields], axis=1)


def _resolve_sent(kinds: I64, doubt: bool) -> I64:
    """Add the kind `MISSING_SENT` to missing, or in doubt this one and lost to unknown."""
    kinds = kinds.copy()
    kinds[schema.UNKNOWN if doubt else schema.MISSING] += kinds[MISSING_SENT]
    if doubt:
        kinds[schema.UNKNOWN] += kinds[schema.LOST]
        kinds[schema.LOST] = 0
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
