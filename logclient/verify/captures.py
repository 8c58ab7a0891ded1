"""The files of a capture's folder: which are compared and which are left out, what of their series is
missing, and what that leaves open. The rules are in ``docs/verify.md``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from logclient.errors import ConfigError, LedgerError
from logclient.files import open_regular
from logclient.registry import SCHEMES
from logclient.verify import decode, sources
from logclient.verify.compare import LISTENER, RANK_BITS
from logclient.verify.decode import protocol_of
from logclient.verify.sources import Header, Problem, Segment

__all__ = [
    "Chosen", "LeftOut", "Route", "Survey", "choose", "doubts", "foreign", "orders", "routes", "survey",
    "unrouted",
]  # fmt: skip

_TAIL = 64  # bytes at the end of a segment that may differ from those of a copy: its end record
_ENDPOINTS = 64  # of one URL that are looked for


class LeftOut(NamedTuple):
    """A file that is not compared."""

    kind: str  # "unread", "misnamed" or "copy"
    segment: str
    reason: str
    protocol: str  # empty: not known
    doubt: bool  # it may hold what nothing else does

    def problem(self) -> Problem:
        return Problem(self.kind, self.segment, -1, self.reason)


class Chosen(NamedTuple):
    """A segment that is compared, and its header when that can be read."""

    segment: Segment
    header: Header | None


class Survey(NamedTuple):
    """A capture's folder, as a plan has it."""

    entries: list[list[Any]]  # Segment, listener, rank, protocol
    listeners: list[dict[str, Any]]  # name, protocol, urls, source
    left_out: list[list[Any]]


def shown(name: str) -> str:
    """A file's name as text, whatever its bytes are."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def choose(directory: str) -> tuple[list[Chosen], list[LeftOut]]:
    """The segments of a folder that are compared, by listener and number, and all that is left out.

    Raises:
        LedgerError: no such folder, or nothing of a capture in it.
    """
    taken: list[Chosen] = []
    left_out: list[LeftOut] = []
    misnamed: list[Chosen] = []
    for found in sources.segments(directory):
        segment = found._replace(listener=shown(found.listener))
        try:
            os.close(open_regular(found.path))
            header = sources.read_header(found)
        except (OSError, LedgerError) as error:
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            left_out.append(LeftOut("unread", segment.name, why, "", True))
            continue
        if header is None and not found.number:
            why = "its name is not <listener>-<nnnnnn>.cap, and it has no header that can be read"
            left_out.append(LeftOut("misnamed", segment.name, why, "", True))
        elif header is None or _fits(found, header):
            taken.append(Chosen(segment, header))
        else:
            misnamed.append(Chosen(segment, header))
    taken, copies = _without_copies(taken)
    left_out += copies
    by_identity = {_identity(one.header): one for one in taken if one.header}
    for one in misnamed:
        assert one.header is not None
        original = by_identity.get(_identity(one.header))
        if original is not None and _same(original.segment, one.segment):
            left_out.append(_copy(one, original))
            continue
        name = f"{one.header.listener[:200]}-{one.header.number:06d}.cap"
        why = f"its header says that it is {name}: give it that name, or <host>.{name} beside another host's"
        left_out.append(LeftOut("misnamed", one.segment.name, why, one.header.protocol, True))
    return sorted(taken, key=lambda one: one.segment), sorted(left_out, key=lambda one: one.segment)


def _fits(segment: Segment, header: Header) -> bool:
    """Whether a file is called what its header says: ``main-000001.cap``, or ``b.main-000001.cap``."""
    mine = segment.listener == header.listener or segment.listener.endswith(f".{header.listener}")
    return mine and segment.number == header.number


def _identity(header: Header | None) -> tuple[str, str, str, int, int] | None:
    """What no two segments have in common, unless one is a copy or somebody gave two runs one name."""
    return header and (header.run, header.host, header.listener, header.number, header.first_arrival)


def _same(a: Segment, b: Segment) -> bool:
    """Whether two files hold the same, as far as the shorter one goes and but for the end record."""
    left = min(a.size, b.size) - _TAIL
    with open(open_regular(a.path), "rb") as one, open(open_regular(b.path), "rb") as other:
        while left > 0:
            n = min(left, 1 << 20)
            if one.read(n) != other.read(n):
                return False
            left -= n
    return True


def _copy(one: Chosen, original: Chosen) -> LeftOut:
    protocol = one.header.protocol if one.header else ""
    return LeftOut("copy", one.segment.name, f"it is a copy of {original.segment.name}", protocol, False)


def _without_copies(taken: list[Chosen]) -> tuple[list[Chosen], list[LeftOut]]:
    kept: list[Chosen] = []
    left_out: list[LeftOut] = []
    originals: dict[Any, list[Chosen]] = {}
    for one in sorted(taken, key=lambda one: (len(one.segment.listener), one.segment)):
        same = originals.setdefault(_identity(one.header), []) if one.header else []
        original = next((x for x in same if _same(x.segment, one.segment)), None)
        if original is not None:
            left_out.append(_copy(one, original))
            continue
        same.append(one)
        kept.append(one)
    return kept, left_out


def survey(directory: str) -> Survey:
    """A capture's folder, for a plan.

    Raises:
        LedgerError: no such folder, nothing of a capture in it, or too many listeners or segments.
    """
    chosen, left_out = choose(directory)
    names = sorted({one.segment.listener for one in chosen})
    if len(names) > LISTENER:
        raise LedgerError(f"capture: more than {LISTENER} listeners")
    listeners: list[dict[str, Any]] = [
        {"name": name, "protocol": "", "urls": [], "source": ""} for name in names
    ]
    index = {name: i for i, name in enumerate(names)}
    unknown: set[str] = set()
    for segment, header in chosen:
        mine = listeners[index[segment.listener]]
        if header is None:
            continue
        if not decodable(header.protocol):
            if header.protocol not in unknown:
                unknown.add(header.protocol)
                why = f"its header says protocol {header.protocol[:40]!r}, which is none we know"
                left_out.append(LeftOut("damage", segment.name, why, "", True))
            continue
        mine["protocol"] = mine["protocol"] or header.protocol
        if header.url not in mine["urls"]:
            mine["urls"].append(header.url)
        if header.source:
            mine["source"] = max(mine["source"], header.source, key=("", "producers", "devices").index)
    ranks: dict[int, int] = {}
    entries = []
    for segment, header in chosen:
        i = index[segment.listener]
        # A segment whose header is damaged is read as the others of its listener are.
        protocol = header.protocol if header and decodable(header.protocol) else ""
        if header is None:
            protocol = listeners[i]["protocol"]
        rank = ranks.get(i, 0)
        ranks[i] = rank + 1
        if rank >> RANK_BITS:
            raise LedgerError(f"capture: {segment.listener} has more than {rank} segments")
        entries.append([[*segment._replace(path=os.path.abspath(segment.path))], i, rank, protocol])
    return Survey(entries, listeners, [list(one) for one in left_out])


def decodable(protocol: str) -> bool:
    try:
        decode.decoder(protocol)
    except ConfigError:
        return False
    return True


def orders(listeners: list[dict[str, Any]]) -> tuple[list[int], list[str]]:
    """The listeners at which order is not judged, and the protocols of which only devices' order is.

    What devices published is judged only where nothing of that protocol is in the order of its producers.
    """
    families = [protocol_of(listener["protocol"]) for listener in listeners]
    devices = {family for family, x in zip(families, listeners, strict=True) if x["source"] == "devices"}
    producers = {family for family, x in zip(families, listeners, strict=True) if x["source"] != "devices"}
    unjudged = [
        i
        for i, (family, x) in enumerate(zip(families, listeners, strict=True))
        if x["source"] == "devices" and family in producers
    ]
    return unjudged, sorted(devices - producers)


# -- runs


def foreign(
    facts: Iterable[dict[str, Any]], matched: set[tuple[int, int]], since: int | None
) -> set[str]:
    """The segments of runs in which nothing of these ledgers arrived, though something did.

    Args:
        facts: of all segments, as `gather` has them.
        matched: listeners and ranks of those with an event that the ledgers have by its hash.
        since: when the first event of the ledgers was made.
    """
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for fact in facts:
        if "run" in fact and fact["header"]:
            runs.setdefault((fact["host"], fact["run"]), []).append(fact)

    def arrived(some: list[dict[str, Any]], what: str) -> int:
        return sum(fact[what] for fact in some)

    def alike(some: list[dict[str, Any]]) -> bool:
        return any((fact["index"], fact["rank"]) in matched for fact in some)

    # Bodies without ids may be the same in any run: there the time tells.
    early = {
        key
        for key, some in runs.items()
        if since is not None and max(fact["last_us"] for fact in some) < since
    }
    ours = {
        key
        for key, some in runs.items()
        if arrived(some, "known") or (alike(some) and key not in early)
    }
    return {
        fact["name"]
        for key, some in runs.items()
        if key not in ours and arrived(some, "events") and (ours or not alike(some))
        for fact in some
    }


def told_runs(facts: Iterable[dict[str, Any]], others: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of each listener, in the order of its segments."""
    rows: list[dict[str, Any]] = []
    left = {fact["name"] for fact in others}
    every = [fact for fact in (*facts, *others) if "run" in fact and fact["header"]]
    for fact in sorted(every, key=lambda fact: (fact["listener"], fact["number"])):
        same = {key: fact[key] for key in ("listener", "run", "host")}
        if not rows or any(rows[-1][key] != value for key, value in same.items()):
            rows.append(
                {
                    **same, "url": fact["url"], "source": fact["source"], "segments": 0, "events": 0,
                    "first_us": 0, "last_us": 0, "ours": True,
                }
            )  # fmt: skip
        row = rows[-1]
        row["segments"] += 1
        row["events"] += fact["events"]
        if fact["last_us"]:
            row["first_us"] = min(row["first_us"] or fact["first_us"], fact["first_us"])
            row["last_us"] = max(row["last_us"], fact["last_us"])
        row["ours"] &= fact["name"] not in left
    return rows


# -- what the captures cannot speak for


def doubts(
    facts: list[dict[str, Any]],
    others: list[dict[str, Any]],
    left_out: Iterable[list[Any]],
    families: Iterable[str],
) -> tuple[list[Problem], set[str], set[str]]:
    """Why the captures cannot speak for everything, the protocols that this touches, and those of them whose
    units may not stand in the order in which they came.

    Args:
        facts: of the segments that were compared, or of the shares of some records.
        others: of segments of other runs, which were not.
        left_out: as a plan has them.
        families: the ledgers' protocols.
    """
    problems: list[Problem] = []
    doubtful: set[str] = set()
    disordered: set[str] = set()
    every = set(families)
    for one in (LeftOut(*fields) for fields in left_out):
        problems.append(one.problem())
        if one.doubt:
            doubtful |= {protocol_of(one.protocol)} if one.protocol else every
    aside = {fact["name"] for fact in others}
    by_listener: dict[Any, list[dict[str, Any]]] = {}
    for fact in (*facts, *others):
        by_listener.setdefault(fact["index"], []).append(fact)
    for some in by_listener.values():
        some.sort(key=lambda fact: int(fact["number"]))
        found = torn = False
        previous = None
        for i, fact in enumerate(some):
            segment = Segment(fact["listener"], fact["number"], fact["name"], fact["size"])
            mine = [Problem(*problem) for problem in fact["problems"]]
            told = {kind: sum(problem.kind == kind for problem in mine) for kind in fact["counts"]}
            for kind, n in fact["counts"].items():
                if n > told[kind]:
                    mine.append(Problem(kind, fact["name"], -1, f"{n - told[kind]:,} more of this kind"))
            if not fact["header"] and not told.get("unread") and not told.get("damage"):
                mine.append(Problem("damage", fact["name"], 0, "no header that can be read"))
            holes = sources.continuity(segment, fact, previous, i == len(some) - 1)
            problems += mine + holes
            previous = fact
            # Damage of another run is none of our business, a hole in the series may be.
            doubts = holes if fact["name"] in aside else mine + holes
            found |= bool(doubts)
            torn |= any(problem.kind in ("damage", "gap") for problem in doubts)
        if found:
            named = {protocol_of(fact["protocol"]) for fact in some if fact["protocol"]} or every
            doubtful |= named
            disordered |= named if torn else set()
    for (host, run), some in _by_run(others).items():
        n = sum(fact["events"] for fact in some)
        names = ", ".join(fact["name"] for fact in some[:3]) + (", ..." if len(some) > 3 else "")
        at = f" of host {host}" if host else ""
        why = f"it is of run {run}{at}, of which no event is in these ledgers: {n:,} not compared"
        problems.append(Problem("other run", names, -1, why))
        kinds = {protocol_of(fact["protocol"]) for fact in some if fact["protocol"]}
        # Without a run of ours the folder may be the wrong one.
        doubtful |= kinds - {protocol_of(fact["protocol"]) for fact in facts}
    return problems, doubtful & every, disordered & every


def _by_run(facts: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for fact in facts:
        runs.setdefault((fact["host"], fact["run"]), []).append(fact)
    return runs


# -- endpoints


class _Endpoint(NamedTuple):
    host: str
    port: int  # 0: any

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def _endpoints(url: str) -> list[_Endpoint]:
    """Those of a URL, or of several joined by commas; nothing of what is none."""
    found: list[_Endpoint] = []
    port = 0
    for part in url.split(","):
        scheme, mark, rest = part.strip().rpartition("://")
        if mark:
            port = SCHEMES[scheme].port if scheme in SCHEMES else 0
        authority = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
        if not authority:
            break  # it does not say
        host, colon, digits = authority.rpartition(":")
        if not colon or digits.endswith("]"):
            host, digits = authority, ""
        if digits and not (digits.isascii() and digits.isdigit()):
            return []
        one = _Endpoint(host.strip("[]").lower(), int(digits[:5] or port))
        if one not in found and len(found) < _ENDPOINTS:
            found.append(one)
        if "/" in rest or "?" in rest:
            break
    return found


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _may_be(endpoint: _Endpoint, listens: _Endpoint) -> bool:
    """Whether a listener may be what an endpoint leads to."""
    if listens.port and endpoint.port != listens.port:
        return False
    anywhere = listens.host in ("", "*", "0.0.0.0", "::")
    both = _is_address(endpoint.host) and _is_address(listens.host)
    return anywhere or endpoint.host == listens.host or not both


class Route(NamedTuple):
    """Where a URL of the ledgers leads to."""

    family: str
    endpoints: list[tuple[str, str]]  # endpoint, and the listener; empty: none, or it cannot be told
    missing: list[str]  # endpoints that no listener has


def unrouted(protocol: str, url: str) -> Route:
    """A URL of which no listener is to be found: what arrived is records."""
    return Route(protocol_of(protocol), [(str(endpoint), "") for endpoint in _endpoints(url)], [])


def routes(urls: Iterable[tuple[str, str, bool]], listeners: Iterable[dict[str, Any]]) -> list[Route]:
    """The listeners that URLs lead to.

    Args:
        urls: protocol, URL, and whether anything arrived that was sent there.
        listeners: of the plan, those with a run of ours.
    """
    places: dict[str, list[tuple[str, list[_Endpoint]]]] = {}
    published: dict[str, list[str]] = {}
    for listener in listeners:
        family = protocol_of(listener["protocol"])
        if listener["source"] == "devices":
            # A consumer's has what came by any device.
            published.setdefault(family, []).append(listener["name"])
        elif family:
            here = [x for url in listener["urls"] for x in _endpoints(url)]
            places.setdefault(family, []).append((listener["name"], here))
    found = []
    for protocol, url, seen in urls:
        family = protocol_of(protocol)
        wanted = _endpoints(url)
        if family in published:
            names = published[family]
            only = names[0] if len(names) == 1 and family not in places else ""
            found.append(Route(family, [(str(endpoint), only) for endpoint in wanted], []))
            continue
        some = places.get(family, [])
        owner = _matched(wanted, [listens for _, listens in some])
        unmatched = [str(endpoint) for i, endpoint in enumerate(wanted) if i not in owner]
        # Behind another address, of a proxy or a published port, any listener may be the one.
        excused = seen and len(unmatched) <= len(some) - len(owner)
        endpoints = [
            (str(endpoint), some[owner[i]][0] if i in owner else "") for i, endpoint in enumerate(wanted)
        ]
        found.append(Route(family, endpoints, [] if excused else unmatched))
    return found


def _matched(wanted: list[_Endpoint], here: list[list[_Endpoint]]) -> dict[int, int]:
    """Endpoint -> a listener that may be what it leads to, each another one, for as many as can be."""
    owner: dict[int, int] = {}  # listener -> endpoint

    def take(i: int, tried: set[int]) -> bool:
        for j, listens in enumerate(here):
            if j not in tried and (not listens or any(_may_be(wanted[i], x) for x in listens)):
                tried.add(j)
                if j not in owner or take(owner[j], tried):
                    owner[j] = i
                    return True
        return False

    for i in range(len(wanted)):
        take(i, set())
    return {i: j for j, i in owner.items()}
