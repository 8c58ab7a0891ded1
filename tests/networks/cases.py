"""The cases: what happens to a network, and what must hold for the client behind it.

Names begin with what happens and end with the protocol: ``lj`` lumberjack, ``ljt`` lumberjack+tls, ``lo``
logux, ``jam`` logjam, ``async`` logjam with ``mode=async``, ``push`` logjam+push, ``plt`` plog+tcp, ``pl``
plog.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.support.networks import DEAD, UNROUTED

FIRST, SECOND, THIRD, MOVED = "10.77.0.2", "10.77.0.3", "10.77.0.4", "10.77.0.66"
NOBODY, NOBODY_6 = DEAD[0], DEAD[2]
NAME = "logs.test."

NOTICED, SAID = 35.0, 15.0
"""Seconds in which a dead path is noticed, and told in last_error: the rules say 30 and 10."""

WASTE = 1.3
"""Bytes of TCP that the link may carry, for each byte that the same events need on a fast one."""


class Protocol(NamedTuple):
    scheme: str
    listen: str
    """The URL of the collector, with its address as ``{}``."""
    port: int = 5044
    behind: str = ""
    """What the client's URL has behind the port."""
    acknowledges: bool = True
    real: bool = False
    """A real server speaks it: go-lumber's, where there is Go."""


PROTOCOLS = {
    "lj": Protocol("lumberjack", "lumberjack://{}:5044", real=True),
    "ljt": Protocol("lumberjack+tls", "lumberjack+tls://{}:5044", real=True),
    "lo": Protocol("logux", "logux://{}:5044"),
    "jam": Protocol("logjam", "logjam://{}:5044", behind="/shop-production"),
    "async": Protocol("logjam", "logjam://{}:5044", behind="/shop-production?mode=async", acknowledges=False),
    "push": Protocol("logjam+push", "logjam+push://{}:5044", behind="/shop-production", acknowledges=False),
    "plt": Protocol("plog+tcp", "plog://{}:5044?tcp=5045", port=5045, acknowledges=False),
    "pl": Protocol("plog", "plog://{}:5044", acknowledges=False),
}
ACKNOWLEDGING = ("lj", "ljt", "lo", "jam")
STREAMS = (*ACKNOWLEDGING, "push", "plt")


class Server(NamedTuple):
    address: str = FIRST
    faults: str = ""
    """As of ``logclient collect``; a server with faults is never go-lumber's."""
    running: bool = True
    """Whether it runs from the beginning."""


class Change(NamedTuple):
    """What happens so many seconds after the client's start."""

    at: float
    what: str
    """``link`` or ``names`` with `how`, ``forget``; ``stop``, ``continue``, ``kill``, ``start`` of `who`."""
    how: dict[str, Any] = {}
    who: int | None = 0
    """The number of a server; None: the client."""


class Holds(NamedTuple):
    """What must hold. None: not judged."""

    all: bool = True
    """Everything that was sent has arrived, and is acknowledged where the protocol does so."""
    waste: float | None = None
    """The most bytes carried, for each one that is needed."""
    first: float | None = None
    """The longest time to the first outcome."""
    gap: float | None = None
    """The longest time without an outcome while events wait."""
    resumed: float | None = None
    """The longest time from the last change to the next outcome."""
    noticed: float | None = None
    """The longest time from the first change to the end of a connection."""
    said: float | None = None
    """The longest time from the first change to a last_error."""
    lost: float | None = None
    """The most seconds of events that may be lost; each of them is counted as in doubt."""
    kept: float | None = None
    """The least share of what was handed that has arrived."""
    unbroken: bool = False
    """No connection ends, and nothing is sent again."""
    says: str = ""
    """What the client's standard error has."""
    code: int | None = None
    """The exit code."""
    woken: float | None = None
    """The most wake-ups of a thread in a minute."""
    crowd: float | None = None
    """The largest share of the clients that come back within one second."""


class Case(NamedTuple):
    name: str
    protocol: str
    program: str = "send"
    link: dict[str, Any] = {"delay": 0.02}
    changes: tuple[Change, ...] = ()
    events: int = 0
    size: int = 600
    kind: str = "random"
    per_second: float = 0.0
    """0: all events at once."""
    seconds: float = 100.0
    """Of a steady rate: how long; of all at once: the most time to deliver them."""
    end: float = 20.0
    """Seconds of the flush at the end."""
    hosts: str = FIRST
    """Of the client's URL, separated by commas, without ports."""
    query: str = ""
    servers: tuple[Server, ...] = (Server(),)
    names: dict[str, Any] | None = None
    options: dict[str, Any] = {}
    clients: int = 0
    holds: Holds = Holds()

    @property
    def url(self) -> str:
        given = PROTOCOLS[self.protocol]
        hosts = ",".join(f"{host}:{given.port}" for host in self.hosts.split(","))
        url = f"{given.scheme}://{hosts}{given.behind}"
        return url + ("&" if "?" in url else "?") * bool(self.query) + self.query


CASES: dict[str, Case] = {}


def add(name: str, protocol: str, **more: Any) -> None:
    assert name not in CASES, name
    CASES[name] = Case(name, protocol, **more)


def steady(name: str, protocol: str, **more: Any) -> None:
    """Add a case of 100 events a second."""
    add(f"{name}_{protocol}", protocol, **{"per_second": 100.0, **more})


def link(at: float, **how: Any) -> Change:
    return Change(at, "link", how)


def names(at: float, *a: str, **how: Any) -> Change:
    return Change(at, "names", {"a": a, **how})


def rate(bytes_per_second: float, **more: Any) -> dict[str, Any]:
    return {"delay": 0.02, "rate": (bytes_per_second, bytes_per_second), **more}


# -- slow links -------------------------------------------------------------------------------------------

_MINUTE = 75.0
for _kilo in (2, 8, 15, 64):
    for _size in (600, 100_000):
        _events = max(2, int(_kilo * 1000 * _MINUTE / (_size + 150)))
        for _p in STREAMS:
            add(
                f"r_{_p}_{_kilo}_{_size}", _p, link=rate(1000 * _kilo), events=_events, size=_size,
                seconds=max(4 * _MINUTE, 4 * _events * _size / (1000 * _kilo)),
                holds=Holds(waste=WASTE),
            )  # fmt: skip
add(
    "r8m_jam_256", "jam", link=rate(256_000, queue=65_536), events=3, size=8_000_000, seconds=300.0,
    holds=Holds(waste=WASTE),
)  # fmt: skip
# go-lumber's server ends a window after 30 s, and each of the two large events needs 36 s: the others arrive.
_IMPATIENT = Holds(all=False, kept=82 / 84)
for _p in ("lj", "lo", "jam"):
    add(
        f"mix_{_p}_20", _p, link=rate(20_000), events=84, size=900_000, kind="mixed", per_second=4.0,
        seconds=25.0, end=300.0, holds=_IMPATIENT if _p == "lj" else Holds(waste=WASTE),
    )  # fmt: skip
add(
    "poisonbig_lj", "lj", link=rate(20_000), events=84, size=900_000, kind="mixed", per_second=4.0,
    seconds=25.0, end=400.0, options={"silence": 300}, holds=_IMPATIENT,
)  # fmt: skip
for _kilo in (2, 15, 64):
    # The least pace is one packet a second: what the link takes arrives, but for what its queue drops until
    # the first questions have found no answer. At 2 kB/s the queue holds the answers back for 16 s. The link
    # takes 300 events in all, of those 2,000 that are sent until then.
    add(
        f"fb_pl_{_kilo}", "pl", link=rate(1000 * _kilo), per_second=300.0, seconds=90.0, end=5.0,
        query="feedback=stat", holds=Holds(all=False, kept=0.1 if _kilo == 2 else 0.5, said=45.0),
    )  # fmt: skip
add(
    "nofb_pl_15", "pl", link=rate(15_000), per_second=300.0, seconds=60.0, end=5.0,
    holds=Holds(all=False),
)  # fmt: skip
add(
    "asym_lj", "lj", link={"delay": 0.05, "rate": (64_000, 300)}, events=10_000, size=100, kind="words",
    seconds=200.0, holds=Holds(waste=WASTE),
)  # fmt: skip
add(
    "asym_lo", "lo", link={"delay": 0.05, "rate": (64_000, 1000)}, events=2000, size=100, kind="words",
    seconds=300.0, holds=Holds(waste=WASTE),
)  # fmt: skip
for _p in STREAMS:
    add(
        f"bloat_{_p}", _p, link=rate(32_000, queue=1_000_000), events=5000, seconds=300.0,
        holds=Holds(waste=WASTE, unbroken=True),
    )  # fmt: skip

# -- links that are long, lossy or short of packets ---------------------------------------------------------

for _p in STREAMS:
    for _percent in (1, 5, 20):
        add(
            f"loss{_percent}_{_p}", _p, link={"delay": 0.02, "loss": (_percent / 100, _percent / 100)},
            events=3000, seconds=180.0, holds=Holds(unbroken=True),
        )  # fmt: skip
    add(
        f"loss50_{_p}", _p, link={"delay": 0.02, "loss": (0.5, 0.5)}, events=100, seconds=400.0,
        holds=Holds(all=_p in ACKNOWLEDGING, lost=NOTICED),
    )  # fmt: skip
    for _ms, _seconds in ((300, 60.0), (1500, 200.0)):  # Logjam has 256 events in flight, one a request
        add(
            f"rtt{_ms}_{_p}", _p, link={"delay": _ms / 2000}, events=20_000, seconds=_seconds,
            holds=Holds(unbroken=True),
        )  # fmt: skip
    add(
        f"jit_{_p}", _p, link={"delay": 0.05, "jitter": 0.3}, events=5000, seconds=100.0,
        holds=Holds(unbroken=True),
    )  # fmt: skip
    # Nothing can arrive whose packets are too large; the client must say so, and that it is not the server.
    steady(
        "mtu", _p, link={"delay": 0.02, "mtu": 1300}, seconds=50.0, end=2.0, changes=(link(0.0),),
        holds=Holds(all=False, said=SAID + 5, noticed=NOTICED + 5),
    )  # fmt: skip
# The server's kernel tells plog nothing of fragments that vanish: `mtu` is for that.
for _name, _query in (("mtu", ""), ("mtuset", "mtu=1280")):
    steady(
        _name, "pl", link={"delay": 0.02, "mtu": 1300}, size=3000, seconds=10.0, per_second=20.0,
        query=_query, holds=Holds(all=bool(_query)),
    )  # fmt: skip

# -- paths that die ---------------------------------------------------------------------------------------

_DOWN = (link(5.05, cut="both"), link(45.0, cut=""))
_FLAPS = tuple(
    change
    for n in range(8)
    for change in (link(5.0 + 10 * n, cut="both"), link(8.0 + 10 * n, cut=""))
)  # fmt: skip
for _p in (*STREAMS, "async"):
    _sure = PROTOCOLS[_p].acknowledges
    _dies = Holds(all=_sure, noticed=NOTICED, said=SAID, lost=NOTICED)
    steady("nat", _p, changes=(Change(5.05, "forget"),), seconds=90.0, holds=_dies._replace(gap=NOTICED))
    add(
        f"natidle_{_p}", _p, link={"delay": 0.02, "forget_after": 10.0}, per_second=0.05, seconds=170.0,
        holds=Holds(all=_sure, lost=NOTICED * 2),
    )  # fmt: skip
for _p in STREAMS:
    _sure = PROTOCOLS[_p].acknowledges
    _dies = Holds(all=_sure, noticed=NOTICED, said=SAID, lost=NOTICED, resumed=10.0)
    steady("cut", _p, changes=_DOWN, seconds=90.0, holds=_dies)
    steady(
        "cut10", _p, changes=(link(5.05, cut="both"), link(15.0, cut="")), seconds=40.0,
        holds=Holds(unbroken=True, resumed=15.0),
    )  # fmt: skip
    _back = (link(8.0, cut="down"), link(48.0, cut=""))
    steady("cutdown", _p, changes=_back, seconds=90.0, holds=_dies)
    steady("flap", _p, changes=_FLAPS, seconds=95.0, holds=Holds(unbroken=True))
    steady(
        "stop", _p, changes=(Change(5.05, "stop"), Change(65.0, "continue")), seconds=110.0,
        holds=Holds(all=_sure, said=SAID if _sure else None, lost=NOTICED, resumed=10.0),
    )  # fmt: skip
    steady(
        "pause", _p, link={"delay": 0.1}, per_second=200.0, seconds=140.0,
        changes=(
            Change(5.0, "stop", who=None), Change(75.0, "continue", who=None),
            Change(80.0, "stop", who=None), Change(115.0, "continue", who=None),
        ),
        holds=Holds(unbroken=_p != "lo"),  # Logux's server ends a connection that says nothing for 70 s
    )  # fmt: skip
steady(
    "cut", "pl", changes=(link(10.0, cut="both"), link(30.0, cut="")), per_second=50.0, seconds=40.0,
    holds=Holds(all=False),
)  # fmt: skip
steady(
    "dead", "pl", servers=(), per_second=50.0, seconds=20.0, changes=(link(0.0),),
    holds=Holds(all=False, said=SAID),
)  # fmt: skip
for _p in ("lj", "lo", "jam"):
    add(
        f"flood_{_p}", _p, link={"delay": 0.01, "cut": "both"}, events=400_000, size=100, kind="words",
        seconds=25.0, end=1.0, changes=(link(0.0),), holds=Holds(all=False, said=SAID),
    )  # fmt: skip
    add(
        f"floodmid_{_p}", _p, link=rate(100_000), events=400_000, size=100, kind="words",
        seconds=25.0, end=1.0, holds=Holds(all=False, unbroken=True),
    )  # fmt: skip

# -- names ------------------------------------------------------------------------------------------------

_EVERYWHERE = (Server("0.0.0.0"),)
_NAMED: dict[str, Any] = {
    "hosts": NAME, "servers": _EVERYWHERE, "per_second": 100.0, "kind": "words", "end": 10.0,
}  # fmt: skip
_AGAIN = Change(20.0, "forget")
for _p in (*STREAMS,):
    add(
        f"dnsdead6_{_p}", _p, names={"a": (FIRST,), "aaaa": (NOBODY_6,)}, seconds=20.0,
        holds=Holds(first=5.0), **_NAMED,
    )  # fmt: skip
    add(f"dnsdeada_{_p}", _p, names={"a": (DEAD[1], MOVED)}, seconds=20.0, holds=Holds(first=5.0), **_NAMED)
    _sure = PROTOCOLS[_p].acknowledges
    add(
        f"dnsmove_{_p}", _p, names={"a": (THIRD,)}, seconds=75.0,
        changes=(link(10.0, dead=(THIRD,)), names(10.1, MOVED)),
        holds=Holds(all=_sure, noticed=NOTICED, said=SAID, lost=NOTICED, gap=NOTICED + 5), **_NAMED,
    )  # fmt: skip
add(
    "dnsmove_pl", "pl", names={"a": (THIRD,)}, seconds=90.0,
    changes=(link(10.0, dead=(THIRD,)), names(10.1, MOVED)),
    holds=Holds(all=False, kept=0.2), **_NAMED,
)  # fmt: skip
add(
    "dnsagain_lj", "lj", names={"a": (DEAD[1], MOVED), "aaaa": (NOBODY_6,)}, seconds=70.0,
    changes=(_AGAIN,), holds=Holds(first=5.0, noticed=NOTICED, gap=NOTICED), **_NAMED,
)  # fmt: skip
add(
    "dnsdead63_lj", "lj", names={"a": (FIRST,), "aaaa": DEAD[2:5]}, seconds=40.0,
    holds=Holds(first=5.0), **_NAMED,
)  # fmt: skip
add(
    "dnsnoroute6_lj", "lj", names={"a": (FIRST,), "aaaa": (UNROUTED,)}, seconds=10.0,
    holds=Holds(first=5.0, unbroken=True), **_NAMED,
)  # fmt: skip
_WORKS = (names(40.0, FIRST),)
for _name, _given, _changes, _holds in (
    ("dnsslow4", {"a": (FIRST,), "delay": 4.0}, (), Holds(first=15.0)),
    ("dnsslow10", {"a": (FIRST,), "delay": 10.0}, (), Holds(all=False, said=30.0)),
    ("dnsnone", {"silent": True}, _WORKS, Holds(said=15.0)),
    ("dnsfail", {"code": 2}, _WORKS, Holds(said=15.0)),
):
    add(
        f"{_name}_lj", "lj", names=_given, changes=(*_changes,) or (link(0.0),), seconds=80.0,
        holds=_holds, **_NAMED,
    )  # fmt: skip

# -- several endpoints --------------------------------------------------------------------------------------

_TWO = (Server(FIRST), Server(SECOND))
_BLACK = (link(5.05, dead=(FIRST,)), link(75.0, dead=()))
for _p in STREAMS:
    _sure = PROTOCOLS[_p].acknowledges
    steady("epb", _p, hosts=f"{NOBODY},{FIRST}", seconds=20.0, holds=Holds(first=5.0))
    steady(
        "e2bh", _p, hosts=f"{FIRST},{SECOND}", servers=_TWO, changes=_BLACK, seconds=90.0,
        holds=Holds(all=_sure, noticed=NOTICED, said=SAID, gap=NOTICED, lost=NOTICED),
    )  # fmt: skip
steady("epr", "lj", hosts=f"{THIRD},{FIRST}", seconds=10.0, holds=Holds(first=5.0))
steady(
    "e2kill", "lj", hosts=f"{FIRST},{SECOND}", servers=_TWO, changes=(Change(5.0, "kill"),), seconds=20.0,
    holds=Holds(gap=10.0, said=SAID),
)  # fmt: skip
for _name, _faults, _seconds, _holds in (
    ("e2never", "stall=every:1", 80.0, Holds(first=NOTICED + 5)),
    ("e2slow", "delay-ack=every:1:5s", 40.0, Holds(first=NOTICED)),
    ("e2keep", "stall=every:1:alive", 350.0, Holds(first=330.0)),
    ("e2half", "partial-cut=every:1", 40.0, Holds(first=15.0)),
):
    _servers = (Server(FIRST, _faults), Server(SECOND))
    for _query in ("", "balance=true"):
        steady(
            f"{_name}{'bal' * bool(_query)}", "lj", hosts=f"{FIRST},{SECOND}", query=_query,
            servers=_servers, seconds=60.0 if _query else _seconds, end=40.0, kind="words",
            holds=_holds if not _query else Holds(first=5.0, all=_name != "e2keep"),
        )  # fmt: skip
steady(
    "e2deadbal", "lj", hosts=f"{NOBODY},{SECOND}", query="balance=true", servers=_TWO, seconds=20.0,
    holds=Holds(first=5.0),
)  # fmt: skip
steady(
    "e2bhbal", "lj", hosts=f"{FIRST},{SECOND}", query="balance=true", servers=_TWO, changes=_BLACK,
    seconds=60.0, end=40.0, holds=Holds(gap=10.0),
)  # fmt: skip
for _number, _hosts in ((1, FIRST), (3, f"{FIRST},{SECOND},{THIRD}")):
    steady(
        f"e{_number}back", "lj", hosts=_hosts, servers=(Server(FIRST, running=False),), per_second=5.0,
        size=100, changes=(link(0.0), Change(60.0, "start")), seconds=120.0,
        holds=Holds(said=SAID, resumed=35.0),
    )  # fmt: skip

# -- ten lines and the end --------------------------------------------------------------------------------

_TEN: dict[str, Any] = {
    "program": "lines",
    "events": 10,
    "seconds": 0.1,
    "end": 0.0,
    "link": {"delay": 0.005},
}
_ENDS: tuple[tuple[str, dict[str, Any], Holds], ...] = (
    ("good", {}, Holds()),
    ("dead", {"hosts": f"{NOBODY},{FIRST}"}, Holds()),
    ("dead5", {"hosts": f"{NOBODY},{FIRST}", "seconds": 5.0}, Holds()),
    ("refused", {"hosts": f"{THIRD},{FIRST}"}, Holds()),
    ("dead6", {"hosts": NAME, "names": {"a": (FIRST,), "aaaa": (NOBODY_6,)}}, Holds()),
    ("refused6", {"hosts": NAME, "names": {"a": (FIRST,), "aaaa": ("fd77::3",)}}, Holds()),
    ("deada", {"hosts": NAME, "names": {"a": (DEAD[1], MOVED)}, "servers": _EVERYWHERE}, Holds()),
    ("dns1", {"hosts": NAME, "names": {"a": (FIRST,), "delay": 1.0}}, Holds()),
    ("dnsnone", {"hosts": NAME, "names": {"silent": True}}, Holds(all=False, says="logs.test")),
    # Connecting and the answer take two round trips. Logux's and ZeroMQ's handshakes take two more, which are
    # more than the 2 s of `atexit_timeout`.
    ("rtt800", {"link": {"delay": 0.4}}, Holds()),
    # The name, or the first answer, takes longer than the process has.
    ("dns3", {"hosts": NAME, "names": {"a": (FIRST,), "delay": 3.0}}, Holds(all=False, says="logs.test")),
    ("rtt1500", {"link": {"delay": 0.75}}, Holds(all=False)),
    ("alldead", {"hosts": f"{NOBODY},{DEAD[1]}"}, Holds(all=False, says=NOBODY)),
)
for _name, _more, _holds in _ENDS:
    for _p in ("lj",) if _name in ("dead5", "dns3", "rtt1500") else ("lj", "lo", "jam", "plt"):
        _late = _name == "rtt800" and _p in ("lo", "jam")
        add(f"ten_{_name}_{_p}", _p, **{**_TEN, **_more, "holds": Holds(all=False) if _late else _holds})
add("ten_deadbal_lj", "lj", **{**_TEN, "hosts": f"{NOBODY},{FIRST}", "query": "balance=true"}, holds=Holds())
_HUNG: dict[str, Any] = {
    **_TEN, "events": 600, "seconds": 3.0, "hosts": f"{FIRST},{SECOND}",
    "servers": (Server(FIRST, "stall=every:1"), Server(SECOND)),
}  # fmt: skip
for _p in ("lj", "lo", "jam"):
    add(f"hung_{_p}", _p, **_HUNG)
add("hungbal_lj", "lj", **{**_HUNG, "query": "balance=true"})
add("hungflush_lj", "lj", **{**_HUNG, "end": 10.0})

# -- sleep ------------------------------------------------------------------------------------------------

_REST: dict[str, Any] = {"program": "idle", "kind": "words", "events": 1, "seconds": 120.0, "end": 10.0}
for _p in (*STREAMS, "pl"):
    # Logux sends pings, and looks at the clocks each second while events wait, which have their time by them.
    _pings, _clocks = (12.0, 60.0) if _p == "lo" else (0.0, 0.0)
    add(f"idle_{_p}", _p, holds=Holds(woken=4.0 + _pings), **_REST)
    if _p != "pl":
        # A connection attempt waits 10 s, and the longest time between two is 30 s.
        _asleep = Holds(all=False, woken=30.0 + _clocks)
        add(f"idledead_{_p}", _p, holds=_asleep, **{**_REST, "hosts": NOBODY, "servers": (), "end": 0.0})
        add(f"idlerefused_{_p}", _p, holds=_asleep, **{**_REST, "servers": (), "end": 0.0})

# -- a crowd, and the command -----------------------------------------------------------------------------

for _down in (2, 45):
    add(
        f"herd{_down}_lj", "lj", program="herd", clients=200, link={"delay": 0.005}, seconds=65.0 + _down,
        changes=(Change(15.0, "kill"), Change(15.0 + _down, "start")), end=40.0, holds=Holds(crowd=0.5),
    )  # fmt: skip

_SEEN: dict[str, Any] = {"program": "check", "link": {"delay": 0.005}, "seconds": 60.0}
_CHECKS: tuple[tuple[str, str, dict[str, Any], Holds], ...] = (
    ("good", "lj", {}, Holds(all=False, code=0)),
    # The server is reached at its other address, and gets no blame.
    ("dead6", "lj", {"hosts": NAME, "names": {"a": (FIRST,), "aaaa": (NOBODY_6,)}}, Holds(all=False, code=0)),
    ("mtu", "lj", {"link": {"delay": 0.005, "mtu": 1300}}, Holds(all=False, code=3)),
    ("keep", "lj", {"servers": (Server(FIRST, "stall=every:1:alive"),)}, Holds(all=False, code=3)),
    ("slow", "lj", {"link": rate(2000)}, Holds(all=False, code=0)),
    ("rtt1500", "lj", {"link": {"delay": 0.75}}, Holds(all=False, code=0)),
    ("cut", "push", {"link": {"cut": "both"}}, Holds(all=False, code=3)),
)
for _name, _p, _more, _holds in _CHECKS:
    add(f"check_{_name}_{_p}", _p, holds=_holds, **{**_SEEN, **_more})
