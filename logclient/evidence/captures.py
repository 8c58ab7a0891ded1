"""The files below the folders of captures to compare or not, and the doubts: ``docs/verify-rules.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from logclient.errors import LedgerError
from logclient.evidence import decode, segments, storage
from logclient.evidence.decode import protocol_of
from logclient.evidence.libraries import np
from logclient.evidence.reports import SegmentReport
from logclient.evidence.segments import MIN_UNIT, YEAR_2255, Segment
from logclient.evidence.selection import CLOCKS_US, EVERYTHING, Selection
from logclient.evidence.wires import WIRES
from logclient.files.capture import SOURCES, Header, Problem

MOST_LISTENERS = (1 << 16) - 1
UNIT_BITS = 40  # units of a listener are numbered with so many bits

CONTINUED = ("rotated", "recovered", "resumed")  # reasons in end records after which another segment follows
_AGAIN_US = 60_000_000  # after which a client has sent again what was not acknowledged
_END_RECORD = 64  # bytes at the end of a segment in which a copy may differ: its end record


class LeftOutFile(NamedTuple):
    """A file that is not compared, with the reason."""

    kind: str  # "unread", "misnamed" or "copy"
    segment: str
    reason: str
    protocol: str  # empty: not known
    doubt: bool  # it may hold events that no other file holds

    def problem(self) -> Problem:
        """Return the file as a problem of the capture."""
        return Problem(self.kind, self.segment, -1, self.reason)


class Chosen(NamedTuple):
    """A segment to compare, with its header if that is readable."""

    segment: Segment
    header: Header | None


class Survey(NamedTuple):
    """The content of captures that a plan needs."""

    entries: list[tuple[Segment, int, int, str]]  # see `Plan.segments`
    listeners: list[dict[str, Any]]  # name, protocol, urls, source
    left_out: list[LeftOutFile]
    headers: list[Header | None] = []  # of each entry; None: it cannot be read

    def find_outside(self, selection: Selection) -> list[SegmentReport]:
        """Find the segments that were received before or after all selected events and their copies.

        A segment lasts until the next one of its listener begins.
        """
        since, until = selection.since_us, selection.until_us
        low = since - CLOCKS_US if since is not None else 0
        high = until + _AGAIN_US if until is not None else YEAR_2255
        found: list[SegmentReport] = []
        if selection == EVERYTHING:
            return found
        for _, group in groupby(zip(self.entries, self.headers, strict=True), lambda one: one[0][1]):
            some = list(group)
            heads = [header or Header("", "", "", "", 0, 0) for _, header in some]
            begins = np.array([header.first_us for header in heads], np.int64)
            # When the latest of the segments so far began, and the earliest of those from here on.
            latest = np.maximum.accumulate(begins)
            earliest = np.minimum.accumulate(np.where(begins, begins, YEAR_2255)[::-1])[::-1]
            before = np.append((latest[1:] < low) & (begins[1:] > 0), False)
            carries = any(protocol and decode.carries(protocol) for (*_, protocol), _ in some)
            if carries:  # an event may have units in two segments
                before[:-1] &= before[1:]
            after = (earliest > high) & (begins > 0)
            for i in np.flatnonzero(before | after).tolist():
                (segment, listener, _, protocol), header = some[i][0], heads[i]
                given = segment.listener, segment.name, listener, segment.number, segment.size, protocol
                report = SegmentReport(*given, True, header.run, header.host, header.url, header.source)
                report.skipped, report.first_us = True, header.first_us
                found.append(report)
        return found


def choose(places: Sequence[str]) -> tuple[list[Chosen], list[LeftOutFile]]:
    """Choose the segments below some folders to compare, by listener and number; and all that is left out.

    The listeners of several folders have different names, see `_name_listeners`.
    """
    listed, unread = segments.list_segments(places)
    left_out = [LeftOutFile("unread", one.segment, one.reason, "", True) for one in unread]

    def read(segment: Segment) -> Header | OSError | None:
        try:
            return segments.read_header(segment)
        except LedgerError:
            raise  # a server, which may fail for all of them
        except OSError as error:
            return error

    taken: list[Chosen] = []
    misnamed: list[Chosen] = []
    remote = any(map(storage.is_url, places))
    for found, header in zip(listed, storage.for_each(read, listed, remote), strict=True):
        segment = found._replace(listener=storage.display_name(found.listener))
        if isinstance(header, OSError):
            left_out.append(LeftOutFile("unread", segment.name, header.strerror or str(header), "", True))
            continue
        if header is None and not found.number:
            why = "its name is not <listener>-<nnnnnn>.cap, and it has no header that can be read"
            left_out.append(LeftOutFile("misnamed", segment.name, why, "", True))
            continue
        fits = header is None or (  # it is named as its header says: ``main`` or ``b.main``
            found.number == header.number and f".{found.listener}".endswith(f".{header.listener}")
        )
        (taken if fits else misnamed).append(Chosen(segment, header))
    taken, more = _without_copies(taken, misnamed)
    by_segment = attrgetter("segment")
    return sorted(_name_listeners(taken), key=by_segment), sorted(left_out + more, key=by_segment)


def _name_listeners(taken: list[Chosen]) -> list[Chosen]:
    """Name the listeners of several folders apart.

    Files of one folder with the same listener in their names are a series, whichever hosts wrote them. Files
    of several folders are, too, when one host wrote them and no number is there twice. Of several series each
    gets the name ``<host>.<listener>``, or ``<folder>/<listener>`` where hosts do not tell them apart.
    """
    folders: dict[str, dict[str, list[Chosen]]] = {}  # listener -> folder -> segments
    for one in taken:
        folder = storage.folder_of(one.segment.path)
        folders.setdefault(one.segment.listener, {}).setdefault(folder, []).append(one)
    named: list[Chosen] = []
    used = {listener for listener, some in folders.items() if len(some) == 1}
    for listener, some in folders.items():
        series: list[tuple[str, str, list[Chosen]]] = []  # host, folder, segments
        for folder in sorted(some):
            hosts = {one.header.host for one in some[folder] if one.header}
            host = hosts.pop() if len(hosts) == 1 else ""
            numbers = {one.segment.number for one in some[folder]}
            for known, _, others in series:
                if host and known == host and not numbers & {one.segment.number for one in others}:
                    others += some[folder]
                    break
            else:
                series.append((host, folder, some[folder]))
        hosts_of = [host for host, _, _ in series]
        for host, folder, own in series:
            name = f"{host}.{listener}"
            if len(series) == 1:
                name = listener
            elif not host or hosts_of.count(host) > 1 or name in used:
                name = f"{storage.display_name(folder)}/{listener}"
            used.add(name)
            named += [one._replace(segment=one.segment._replace(listener=name)) for one in own]
    return named


def _same(a: Segment, b: Segment) -> bool:
    """Return whether two files are equal up to the end of the shorter one, except for the end record."""
    return storage.begin_equally(a.path, b.path, "capture", min(a.size, b.size) - _END_RECORD)


def _without_copies(taken: list[Chosen], misnamed: list[Chosen]) -> tuple[list[Chosen], list[LeftOutFile]]:
    kept: list[Chosen] = []
    left_out: list[LeftOutFile] = []
    # By what differs between all segments, except for copies and for runs with the same name.
    originals: dict[tuple[Any, ...], list[Segment]] = {}
    # The longest file first, and of files of the same length the one with the shortest name.
    order = sorted(taken, key=lambda x: (-x.segment.size, len(x.segment.listener), *x.segment[:2]))
    for i, one in enumerate([*order, *misnamed]):
        segment, head = one
        if head is None:
            kept.append(one)
            continue
        key = (head.run, head.host, head.listener, head.number, head.first_arrival)
        same = originals.setdefault(key, [])
        fits = i < len(order)
        original = next((x for x in same if _same(x, segment)), None)
        if original is not None:
            why = f"it is a copy of {original.name}"
            left_out.append(LeftOutFile("copy", segment.name, why, head.protocol, False))
        elif fits:
            same.append(segment)
            kept.append(one)
        else:
            due = f"{head.listener[:200]}-{head.number:06d}.cap"
            why = f"its header names it {due}: rename it so, or to <host>.{due} if another host has that name"
            left_out.append(LeftOutFile("misnamed", segment.name, why, head.protocol, True))
    return kept, left_out


def survey(places: Sequence[str]) -> Survey:
    chosen, left_out = choose(places)
    names = sorted({one.segment.listener for one in chosen})
    if len(names) > MOST_LISTENERS:
        raise LedgerError(f"capture: more than {MOST_LISTENERS} listeners")
    index = {name: i for i, name in enumerate(names)}
    listeners: list[dict[str, Any]]
    listeners = [{"name": name, "protocol": "", "urls": [], "source": ""} for name in names]
    for segment, header in chosen:
        if header is None or not decodable(header.protocol):
            continue
        listener = listeners[index[segment.listener]]
        listener["protocol"] = listener["protocol"] or header.protocol
        if header.url not in listener["urls"]:
            listener["urls"].append(header.url)
        listener["source"] = max(listener["source"], header.source, key=("", *SOURCES).index)
    units = dict.fromkeys(index.values(), 0)  # that the segments so far may have
    entries = []
    for segment, header in chosen:
        i = index[segment.listener]
        # Without a readable header, take the protocol of the listener's other segments.
        protocol = listeners[i]["protocol"] if header is None else header.protocol
        entries.append((segment, i, units[i], protocol if decodable(protocol) else ""))
        units[i] += segment.size // MIN_UNIT + 1
        if units[i] > 1 << UNIT_BITS:
            raise LedgerError(
                f"capture: {segment.listener} has too many bytes: all segments of a listener may have"
                f" {(MIN_UNIT << UNIT_BITS) // 10**12} TB, because units are numbered with {UNIT_BITS} bits"
            )
    return Survey(entries, listeners, left_out, [one.header for one in chosen])


def decodable(protocol: str) -> bool:
    return protocol_of(protocol) in WIRES


def order_rules(listeners: list[dict[str, Any]]) -> tuple[list[int], list[str]]:
    """Return the listeners at which order is not judged, and the protocols with only the order of devices.

    The order of devices is judged only for a protocol without a listener in the order of its producers.
    """
    families = [(protocol_of(one["protocol"]), one["source"] == "devices") for one in listeners]
    producers = {family for family, is_device in families if not is_device}
    devices = {family for family, is_device in families if is_device}
    unjudged = [i for i, (family, is_device) in enumerate(families) if is_device and family in producers]
    return unjudged, sorted(devices - producers)


def find_foreign(reports: Iterable[SegmentReport], matched: set[str], since: int | None) -> set[str]:
    """Find the segments of other runs: they have events, but none of these ledgers."""
    runs = _grouped((report for report in reports if report.run is not None), "host", "run")
    with_known = {key for key, some in runs.items() if any(report.known for report in some)}
    alike = {key for key, some in runs.items() if any(report.name in matched for report in some)}
    # A body without an id may be the same in any run, so such a run counts only if it ends after
    # the first event was made.
    early = {key for key, some in runs.items() if 0 < max(report.last_us for report in some) < (since or 0)}
    ours = with_known | (alike - early)
    return {
        report.name
        for key, some in runs.items()
        if key not in ours and any(report.events for report in some) and (ours or key not in alike)
        for report in some
    }


def list_runs(reports: Iterable[SegmentReport], others: Iterable[SegmentReport]) -> list[dict[str, Any]]:
    """List the runs of each listener, in the order of its segments."""
    left = {report.name for report in others}
    every = [report for report in (*reports, *others) if report.run is not None]
    every.sort(key=attrgetter("listener", "number"))
    rows = []
    for key, group in groupby(every, attrgetter("listener", "run", "host")):
        some = list(group)
        timed = [report for report in some if report.last_us]
        rows.append(
            {
                **dict(zip(("listener", "run", "host"), key, strict=True)),
                "url": some[0].url,
                "source": some[0].source,
                "segments": len(some),
                "events": sum(report.events for report in some),
                "first_us": min((report.first_us for report in timed), default=0),
                "last_us": max((report.last_us for report in timed), default=0),
                "ours": not any(report.name in left for report in some),
            }
        )
    return rows


def find_doubts(
    reports: list[SegmentReport],
    others: list[SegmentReport],
    left_out: Iterable[LeftOutFile],
    families: Iterable[str],
    since_us: int | None = None,
) -> tuple[list[Problem], set[str], set[str], dict[str, int]]:
    """Find the gaps and damage that make captures incomplete, and the protocols that they concern.

    The third result is those of them whose units may not be in the order of arrival. The last one is of
    protocols whose captures lack nothing but what follows: until when they have everything, in microseconds
    since 1970.
    """
    problems: list[Problem] = []
    doubtful: set[str] = set()
    disordered: set[str] = set()
    ends: dict[str, int] = {}
    every = set(families)
    for one in left_out:
        problems.append(one.problem())
        if one.doubt:
            doubtful |= {protocol_of(one.protocol)} if decodable(one.protocol) else every
    for some in _grouped((*reports, *others), "index").values():
        some.sort(key=attrgetter("number"))
        found = order_uncertain = False
        named = {protocol_of(report.protocol) for report in some}
        for i, report in enumerate(some):
            own = [Problem(*problem) for problem in report.problems]
            listed = Counter(problem.kind for problem in own)
            for kind, n in report.counts.items():
                if n > listed[kind]:
                    own.append(Problem(kind, report.name, -1, f"{n - listed[kind]:,} more of this kind"))
            if not report.header and not listed["unread"] and not listed["damage"]:
                own.append(Problem("damage", report.name, 0, "no header that can be read"))
            if not (report.skipped or (i and some[i - 1].skipped)):
                own += continuity(report, some[i - 1] if i else None)
            if i == len(some) - 1 and report.closed in CONTINUED:
                why = f"it was {report.closed}, and the segment that follows is missing"
                own.append(Problem("gap", report.name, 0, why))
            problems += own
            if since_us is not None and i + 1 < len(some) and 0 < some[i + 1].first_us < since_us:
                continue  # whatever is missing arrived before any event that is judged was made
            goes_on = i == len(some) - 1 and (listed["unclosed"] or report.closed in CONTINUED)
            alone = len(own) == len(named) == 1 and "" not in named
            if goes_on and alone and (end_us := next((x.end_us for x in reversed(some) if x.units), 0)):
                # A unit is written before it is acknowledged, so what is missing was not acknowledged yet.
                [family] = named
                end_us -= CLOCKS_US
                ends[family] = min(ends.get(family, end_us), end_us)
                continue
            found |= bool(own)
            order_uncertain |= any(problem.kind in ("damage", "gap") for problem in own)
        if found:
            named = every if "" in named else named
            doubtful |= named
            disordered |= named if order_uncertain else set()
    for (host, run), some in _grouped(others, "host", "run").items():
        n = sum(report.events - report.outside for report in some)
        kinds = {protocol_of(report.protocol) for report in some if report.protocol}
        # If no segment of a protocol belongs to this run, the folder may be the wrong one.
        kinds -= {protocol_of(report.protocol) for report in reports}
        doubtful |= kinds
        if not n and not kinds:
            continue
        names = ", ".join(report.name for report in some[:3]) + (", ..." if len(some) > 3 else "")
        at = f" of host {host}" if host else ""
        why = f"it belongs to run {run}{at} without an event in these ledgers: {n:,} not compared"
        problems.append(Problem("other run", names, -1, why))
    ends = {family: at for family, at in ends.items() if family in every - doubtful}
    return problems, doubtful & every, disordered & every, ends


def continuity(report: SegmentReport, previous: SegmentReport | None) -> list[Problem]:
    """Find gaps between a segment and the one before."""
    gaps = []
    due_number, due_arrival = (previous.number + 1, previous.next_arrival) if previous else (1, 1)
    if report.number != due_number:
        gaps.append(f"segment {report.number} where {due_number} was due")
    if report.first_arrival and due_arrival and report.first_arrival != due_arrival:
        gaps.append(f"arrival {report.first_arrival} where {due_arrival} was due")
    return [Problem("gap", report.name, 0, reason) for reason in gaps]


def _grouped(reports: Iterable[SegmentReport], *fields: str) -> dict[Any, list[SegmentReport]]:
    key = attrgetter(*fields)
    groups: dict[Any, list[SegmentReport]] = {}
    for report in reports:
        groups.setdefault(key(report), []).append(report)
    return groups
