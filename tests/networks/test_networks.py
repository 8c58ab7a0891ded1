"""Slow and broken networks: the rules of the emulated link, short cases, and in the long run all of them."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.networks import __main__ as program
from tests.networks.cases import CASES, FIRST, NAME, NOBODY, SECOND, Case, Change, Holds, Server
from tests.networks.cases import link as changed
from tests.support.networks import DOWN, UP, Answers, Conditions, Link, answer, read_segment, why_not
from tests.support.patience import PATIENCE


@pytest.fixture
def network() -> None:
    """Skip where there can be no emulated network."""
    if reason := why_not():
        pytest.skip(reason)


def packet(source: str, target: str, port: int = 1000, size: int = 100, flags: int = 0x10) -> bytes:
    """Return a packet of TCP with so many bytes in all, from `port` to 5044."""
    tcp = struct.pack("!HHIIBBHHH", port, 5044, 1, 1, 5 << 4, flags, 1000, 0, 0)
    if ":" in source:
        ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target)
        head = struct.pack("!IHBB", 6 << 28, size - 40, socket.IPPROTO_TCP, 64) + ends
    else:
        ends = socket.inet_aton(source) + socket.inet_aton(target)
        head = struct.pack("!BBHHHBBH", 0x45, 0, size, 1, 0, 64, socket.IPPROTO_TCP, 0) + ends
    return (head + tcp).ljust(size, b"x")


@pytest.mark.unit
class TestLink:
    up = packet("10.77.0.1", "10.77.0.2")
    down = packet("10.77.0.2", "10.77.0.1")

    @pytest.mark.parametrize(
        ("source", "target", "head"), [("10.77.0.1", "10.77.0.2", 40), ("fd77::1", "fd77::2", 60)]
    )
    def test_reads_the_ends_and_the_payload_of_a_segment(self, source: str, target: str, head: int) -> None:
        segment = read_segment(packet(source, target, 7, 1000, 0x02))
        assert segment is not None
        assert (segment.source[1], segment.target[1], segment.payload) == (7, 5044, 1000 - head)

    def test_reads_no_segment_in_a_later_fragment(self) -> None:
        fragment = bytearray(self.up)
        fragment[6:8] = (185).to_bytes(2)
        assert read_segment(bytes(fragment)) is None

    def test_delays_what_it_carries(self) -> None:
        assert Link(Conditions(delay=0.25)).carry(UP, self.up, 1.0) == 1.25

    def test_a_rate_holds_packets_back_and_drops_those_beyond_the_queue(self) -> None:
        link = Link(Conditions(rate=(100.0, 0.0), queue=250))
        assert [link.carry(UP, self.up, 1.0) for _ in range(5)] == [2.0, 3.0, 4.0, None, None]
        assert link.carry(DOWN, self.down, 1.0) == 1.0
        assert link.carry(UP, self.up, 10.0) == 11.0
        assert (link.packets, link.dropped) == ([6, 1], [2, 0])

    @pytest.mark.parametrize(
        ("cut", "passes"),
        [("", (1.0, 1.0)), ("up", (None, 1.0)), ("down", (1.0, None)), ("both", (None, None))],
    )
    def test_a_cut_is_of_one_way_or_both(self, cut: str, passes: tuple[Any, Any]) -> None:
        link = Link(Conditions(cut=cut))
        assert (link.carry(UP, self.up, 1.0), link.carry(DOWN, self.down, 1.0)) == passes

    def test_packets_larger_than_the_mtu_vanish(self) -> None:
        link = Link(Conditions(mtu=100))
        assert link.carry(UP, self.up, 1.0) == 1.0
        assert link.carry(UP, packet("10.77.0.1", "10.77.0.2", size=101), 1.0) is None

    def test_loses_the_given_share_of_each_way(self) -> None:
        link = Link(Conditions(loss=(0.2, 0.0)))
        for _ in range(2000):
            link.carry(UP, self.up, 1.0)
            link.carry(DOWN, self.down, 1.0)
        assert 300 < link.dropped[UP] < 500 and link.dropped[DOWN] == 0

    def test_a_forgotten_flow_never_passes_again_and_a_new_one_does(self) -> None:
        link = Link(Conditions())
        assert link.carry(UP, self.up, 1.0) == 1.0
        link.forget_flows()
        assert link.carry(UP, self.up, 1.0) is None and link.carry(
            DOWN, packet("10.77.0.2", "10.77.0.1"), 1.0
        )
        assert link.carry(UP, packet("10.77.0.1", "10.77.0.2", port=1001), 1.0) == 1.0

    def test_an_idle_flow_is_forgotten_both_ways(self) -> None:
        link = Link(Conditions(forget_after=10.0))
        reply = bytearray(self.down)
        reply[20:24] = struct.pack("!HH", 5044, 1000)
        assert link.carry(UP, self.up, 1.0) == 1.0
        assert link.carry(DOWN, bytes(reply), 10.0) == 10.0
        assert link.carry(DOWN, bytes(reply), 20.5) is None
        assert link.carry(UP, self.up, 20.6) is None

    def test_a_dead_address_gets_and_says_nothing(self) -> None:
        link = Link(Conditions(dead=("10.77.0.2",)))
        assert link.carry(UP, self.up, 1.0) is None and link.carry(DOWN, self.down, 1.0) is None
        assert link.carry(UP, packet("10.77.0.1", "10.77.0.3"), 1.0) == 1.0

    def test_counts_attempts_to_connect(self) -> None:
        link = Link(Conditions(cut="both"))
        link.carry(UP, packet("fd77::1", "fd77::9", flags=0x02), 7.0)
        link.carry(UP, packet("fd77::1", "fd77::9", flags=0x12), 8.0)
        assert link.attempts == [(7.0, "fd77::9 5044")]


@pytest.mark.unit
def test_the_name_server_answers_the_kind_that_was_asked_for() -> None:
    given = Answers(a=("10.77.0.2", "10.77.0.3"), aaaa=("fd77::9",))
    name = b"\4logs\4test\0"
    for kind, addresses in ((1, given.a), (28, given.aaaa), (15, ())):
        query = b"id\1\0\0\1\0\0\0\0\0\0" + name + struct.pack("!HH", kind, 1)
        said = answer(query, given)
        assert said[:2] == b"id" and struct.unpack("!H", said[6:8]) == (len(addresses),)
        assert [said.count(socket.inet_pton((10 if kind == 28 else 2), one)) for one in addresses] == [
            1 for _ in addresses
        ]
        failed = answer(query, given._replace(code=2))
        assert failed[3] & 15 == 2 and failed[6:8] == b"\0\0"


def short(name: str, protocol: str, **more: Any) -> Case:
    given = {"link": {"delay": 0.01}, "per_second": 100.0, "seconds": 2.5, "end": PATIENCE, **more}
    return Case(name, protocol, **given)


TEN: dict[str, Any] = {"program": "lines", "events": 10, "seconds": 0.1, "end": 0.0}
SOON: dict[str, Any] = {"options": {"silence": 1.0}}
TWO: dict[str, Any] = {"hosts": f"{FIRST},{SECOND}", "servers": (Server(FIRST), Server(SECOND))}
DOWN_ONCE = (changed(0.5, cut="both"), changed(1.5, cut=""))

SHORT = [
    short("slow", "lo", link={"rate": (64_000, 64_000)}, events=150, per_second=0, holds=Holds(waste=1.3)),
    short("lossy", "lj", link={"loss": (0.2, 0.2)}, events=300, per_second=0, holds=Holds(unbroken=True)),
    short("far", "jam", link={"delay": 0.3}, events=300, per_second=0, holds=Holds(unbroken=True)),
    short("down", "plt", changes=DOWN_ONCE, holds=Holds(unbroken=True)),
    short("forgotten", "lj", changes=(Change(0.5, "forget"),), **SOON),
    short("forgotten", "jam", changes=(Change(0.5, "forget"),), **SOON),
    short("one way", "lo", changes=(changed(0.5, cut="down"), changed(2.0, cut="")), **SOON),
    short("dead", "lj", **TWO, changes=(changed(0.5, dead=(FIRST,)),), **SOON),
    short("black hole", "pl", link={"mtu": 1300}, size=3000, query="mtu=1280"),
    short("no route", "lj", hosts=NAME, names={"a": (FIRST,), "aaaa": ("2001:db8::9",)}, **TEN),
    short("refused", "jam", hosts=NAME, names={"a": (FIRST,), "aaaa": ("fd77::3",)}, **TEN),
    short("balance", "lj", hosts=f"{NOBODY},{FIRST}", query="balance=true", **TEN),
]  # fmt: skip


@pytest.mark.xdist_group("networks")
@pytest.mark.timeout(20 * PATIENCE)
@pytest.mark.parametrize("case", SHORT, ids=lambda case: f"{case.name} {case.protocol}")
def test_what_must_hold_in_a_short_case(network: None, case: Case, tmp_path: Path) -> None:
    assert program.run(case, tmp_path)[1] == []


@pytest.mark.long
@pytest.mark.xdist_group("networks")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", sorted({name.partition("_")[0] for name in CASES}))
def test_what_must_hold_in_every_case(
    network: None, family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that begin alike, some at a time: they wait for most of their time."""
    cases = [case for name, case in CASES.items() if name.partition("_")[0] == family]
    with capsys.disabled():
        assert program.run_all(cases, 4, tmp_path) == []
