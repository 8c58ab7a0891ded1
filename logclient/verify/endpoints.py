"""The assignment of endpoints in a ledger's URLs to the listeners of a capture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from logclient.config.registry import SCHEMES
from logclient.evidence.decode import protocol_of

MAX_ENDPOINTS = 64  # of one URL


class _Endpoint(NamedTuple):
    host: str
    port: int  # 0: any

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


_Place = tuple[str, list[_Endpoint]]  # a listener, and where it listens; empty: unknown


def _endpoints(url: str) -> list[_Endpoint]:
    """Return the endpoints of a URL, or of several joined by commas; none for anything else."""
    found: list[_Endpoint] = []
    port = 0
    for part in url.split(","):
        scheme, mark, rest = part.strip().rpartition("://")
        if mark:
            port = SCHEMES[scheme].port if scheme in SCHEMES else 0
        authority = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
        if not authority:
            break  # there is no endpoint
        host, colon, digits = authority.rpartition(":")
        if not colon or digits.endswith("]"):
            host, digits = authority, ""
        if digits and not (digits.isascii() and digits.isdigit()):
            return []
        one = _Endpoint(host.strip("[]").lower(), int(digits[:5] or port))
        if one not in found and len(found) < MAX_ENDPOINTS:
            found.append(one)
        if "/" in rest or "?" in rest:
            break
    return found


def _may_be(endpoint: _Endpoint, listens: _Endpoint) -> bool:
    if listens.port and endpoint.port != listens.port:
        return False
    here = ("", "*", "0.0.0.0", "::", endpoint.host)
    addresses = (":" in x.host or x.host.replace(".", "").isdigit() for x in (endpoint, listens))
    return listens.host in here or not all(addresses)


class Route(NamedTuple):
    """The endpoints of a URL in the ledgers, with their listeners."""

    family: str
    endpoints: list[tuple[str, str]]  # endpoint and its listener; empty: none, or not known
    missing: list[str]  # endpoints without a listener


def unrouted(protocol: str, url: str) -> Route:
    """Return the route of a URL for records, which have no listeners."""
    return Route(protocol_of(protocol), [(str(endpoint), "") for endpoint in _endpoints(url)], [])


def routes(urls: Iterable[tuple[str, str, bool]], listeners: Iterable[dict[str, Any]]) -> list[Route]:
    """Find a route for each URL, given with its protocol and whether any event sent there arrived."""
    places: dict[tuple[str, bool], list[_Place]] = {}
    for listener in listeners:
        key = protocol_of(listener["protocol"]), listener["source"] == "devices"
        listens = [x for url in listener["urls"] for x in _endpoints(url)]
        places.setdefault(key, []).append((listener["name"], listens))
    found = []
    for protocol, url, seen in urls:
        family, wanted = protocol_of(protocol), _endpoints(url)
        here = places.get((family, False), []) if family else []
        if published := places.get((family, True)):
            # A consumer receives the events of all devices.
            every = published + here
            names = dict.fromkeys(range(len(wanted)), every[0][0] if len(every) == 1 else "")
        else:
            names = _matched(wanted, here)
        unmatched = [str(endpoint) for i, endpoint in enumerate(wanted) if i not in names]
        # A proxy or a published port changes the address, so any other listener may be the right one.
        excused = seen and len(unmatched) <= len(here) - len(names)
        endpoints = [(str(endpoint), names.get(i, "")) for i, endpoint in enumerate(wanted)]
        found.append(Route(family, endpoints, [] if excused else unmatched))
    return found


def _matched(wanted: list[_Endpoint], here: list[_Place]) -> dict[int, str]:
    """Give as many endpoints as possible, by index, a listener of their own (maximum bipartite matching)."""
    owner: dict[int, int] = {}  # listener -> endpoint

    def take(i: int, tried: set[int]) -> bool:
        for j, (_, listens) in enumerate(here):
            if j not in tried and (not listens or any(_may_be(wanted[i], x) for x in listens)):
                tried.add(j)
                if j not in owner or take(owner[j], tried):
                    owner[j] = i
                    return True
        return False

    for i in range(len(wanted)):
        take(i, set())
    return {i: here[j][0] for j, i in owner.items()}
