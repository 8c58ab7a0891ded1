"""Pacing with and without feedback: the rules alone, and against a server with default buffers."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import logclient
from logclient._ext.constants import K_BYTES as BYTES
from logclient._ext.plog import HEADER, datagrams
from logclient.codec import Connection
from logclient.plog.core import Plog
from logclient.plog.messages import command, parse_stat
from logclient.plog.pacing import FIRST, ByQueue, ByStat, Sent, slow_start
from logclient.transports.udp import ReceiverQueue, UdpLink
from tests.oracle import plog as oracle
from tests.plog.stat import stat_of
from tests.support.configs import config_for
from tests.support.connections import load
from tests.support.patience import PATIENCE
from tests.support.processes import CollectorProcess

PRODUCER = bytes(10)
MOST = 212_992
DEFAULT = "/proc/sys/net/core/rmem_default"
BODY = b'{"type":"log","data":"' + b"x" * 200 + b'"}'  # 300 bytes with header and id
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the queues of other sockets")


# -- the rules


@pytest.mark.parametrize("held", [0, 1000, MOST // 2, MOST - 5000, MOST, MOST + 10_000])
@pytest.mark.parametrize(
    ("size", "mtu"), [(1, 0), (324, 0), (1400, 0), (9000, 0), (13_000, 576), (30_000, 1500)]
)
def test_messages_sent_fit_the_free_queue(held: int, size: int, mtu: int) -> None:
    core = Plog(config_for("plog", feedback="auto", mtu=mtu or None, identity="none"), PRODUCER)
    core.path_mtu(65_536, 28)
    core.receiver = lambda: (held, MOST, 0)
    connection = Connection(core)
    connection.connected(1.0)
    core.regulate(1.0)
    connection.encode(load(connection, [(b"x" * size, BYTES)] * 300), 300, 1.0)
    charge = 0
    for one in datagrams(connection.codec.take_bytes()):
        # As the kernel accounts it: head, payload and tail rounded up; or pages, if it cuts a run itself.
        charge += max(256 + (1 << (len(one) + 412 - 1).bit_length()), len(one) + 1080)
    assert held + charge <= max(held, MOST)
    assert charge > 0 or held > MOST - 90_000
    assert not charge or held + charge > MOST / 4  # it is used well


def test_drops_shrink_the_assumed_queue() -> None:
    queue = ByQueue()
    first = queue.look(0, MOST, 7, 1)  # dropped before we connected
    assert queue.look(0, MOST, 8, 1).room < 0.6 * first.room
    for _ in range(10):
        least = queue.look(0, MOST, queue._drops + 1, 1)  # type: ignore[operator]
    assert least.room > 0.1 * first.room
    for _ in range(5000):
        last = queue.look(0, MOST, queue._drops or 0, 1)
    assert last.room == first.room


def test_queue_is_read_rarely_while_idle() -> None:
    queue = ByQueue()
    busy = queue.look(0, MOST, 0, 5)
    for _ in range(20):
        idle = queue.look(0, MOST, 0, 0)
    assert idle.look == 0.1 > busy.look
    assert queue.look(0, MOST, 0, 1).look == busy.look


class Counted:
    """`ByStat`, asked each second, and a server that counts what arrives."""

    def __init__(self) -> None:
        self.pacer, self.sent = ByStat(1000.0), Sent(1.0, 0, 0, 0)
        self.seen = 0

    def ask(self, used: float = 1.0, lost: int = 0) -> bool:
        """Look a second later, in which `used` of the rate was sent; return whether it asks."""
        at, commands, messages, packets = self.sent
        more = int(self.pacer.rate * used)
        self.seen += more - lost
        self.sent = Sent(at + 1.0, commands + 1, messages + more, packets + more)
        return self.pacer.asks(self.sent)

    def answer(self, lost: int | None, used: float = 1.0) -> float:
        """Return the rate after an answer, when so many messages were lost; None: the server does not say."""
        assert self.ask(used, lost or 0)
        handler = {} if lost is None else {"seen_messages": self.seen}
        missing = self.pacer.answered(parse_stat(stat_of(
            uptime=int(self.sent.at * 1000), v0_commands=self.sent.commands, udp_simple_messages=self.seen,
            handlers=[handler],
        )))  # fmt: skip
        assert missing == (lost or 0)
        return self.pacer.rate


def test_counters_raise_and_lower_the_pace() -> None:
    counted = Counted()
    answer, pacer = counted.answer, counted.pacer
    answer(0, used=0.5)
    assert [answer(0), answer(0)] == [1500.0, 2000.0]
    assert answer(0, used=0.1) == 2000.0  # more would not be used
    assert answer(1000) == 1000.0, "half arrived"
    assert answer(750) == 500.0, "no more than half at a time"
    assert answer(0) == 562.5
    assert answer(0) == 632.8125
    assert answer(32) == 600.0, "what has arrived"
    assert answer(100) == 600.0 * 63 / 64 > 500.0, "not much below what has arrived lately"
    less = answer(60)
    assert answer(60) == less * 9 / 8, "at each fourth answer, also with a small loss"
    assert answer(None) == less * 9 / 8
    assert answer(0) == less * 9 / 8, "counting begins again"
    for _ in range(20):
        answer(int(pacer.rate))
    assert pacer.rate == 1.0, "nothing arrives"


def test_only_questions_that_go_unanswered_in_a_row_halve_the_pace() -> None:
    counted = Counted()
    counted.answer(0)
    assert [counted.ask(), counted.ask(), counted.ask()] == [True, False, True]
    assert [counted.ask(), counted.pacer.rate] == [False, 1000.0], "one question is easily lost"
    assert [counted.ask(0.4), counted.pacer.rate] == [True, 440.0], "half of what was sent"
    for _ in range(51):
        counted.ask()
    assert counted.pacer.rate == 1.0
    counted.answer(0)
    counted.answer(0)
    assert [counted.ask(), counted.ask(), counted.ask()] == [True, False, True]
    assert counted.pacer.rate > 1.0, "the first in a row"


# -- the core


def test_pace_0_reads_no_queue_and_asks_nothing() -> None:
    core = Plog(config_for("plog", pace=0), PRODUCER)
    core.receiver = lambda: pytest.fail("looked")
    connection = Connection(core)
    connection.connected(1.0)
    assert connection.send(1.0) == b""
    assert core.regulate(1.0) == float("inf")


# -- the slow start


def test_slow_start_doubles_each_half_second() -> None:
    sent, rates = 0.0, []
    for step in range(250):
        if step % 50 == 0:
            rates.append(slow_start(10_000, int(sent)))
        sent += slow_start(10_000, int(sent)) / 100
    assert rates[0] == FIRST
    assert all(1.9 < after / before < 2.1 for before, after in pairwise(rates))
    assert slow_start(10_000, 7000) == 10_000
    assert slow_start(100, 0) == 100  # slower than any start


class Simulated:
    """A core in simulated time, and the queue of its server."""

    ROOM = 280  # small datagrams, in what Linux gives a socket by default

    def __init__(self, events: int, **options: Any) -> None:
        self.core = Plog(config_for("plog", **options), PRODUCER)
        self.connection = Connection(self.core)
        self.connection.connected(0.0)
        self.batch = load(self.connection, [(BODY, 1)] * events)
        self.events, self.now, self.look = events, 0.0, 0.0
        self.queued = self.taken = self.dropped = 0

    @property
    def sent(self) -> int:
        return int(self.core.codec.counts[2])

    def run(self, seconds: float, takes: Any) -> None:
        """Advance in steps of 0.5 ms; `takes` (seconds, taken so far) gives the server's rate."""
        end, owed = self.now + seconds, 0.0
        while self.now < end and self.taken + self.dropped < self.events:
            if self.now >= self.look:
                self.look = self.core.regulate(self.now)
            before = self.sent
            credit = self.connection.credit(self.now)[0]
            if credit and before < self.events:
                self.connection.encode(self.batch, credit, self.now)
                self.connection.sent(len(self.connection.codec.take_bytes()))
            self.queued += self.sent - before
            self.dropped += max(0, self.queued - self.ROOM)
            self.queued = min(self.queued, self.ROOM)
            owed = min(owed + takes(self.now, self.taken) / 2000, self.queued)
            self.queued -= int(owed)
            self.taken += int(owed)
            owed -= int(owed)
            self.now += 0.0005
            self.look = min(self.look, self.now + 1.0)  # as a sender's turn ends


def cold(now: float, taken: int) -> float:
    """Take nothing for 300 ms, then ever more, with a pause in each second."""
    return 0.0 if now < 0.3 or 0.8 < now % 1 < 0.82 else min(20_000, 1000 + 3 * taken)


def test_slow_start_spares_a_cold_server() -> None:
    run = Simulated(2000)
    run.run(5.0, cold)
    assert (run.taken, run.dropped) == (2000, 0)


def test_cold_server_loses_events_without_slow_start() -> None:
    run = Simulated(2000)
    run.core.regulate = lambda now: float("inf")  # type: ignore[method-assign]
    run.run(5.0, cold)
    assert run.dropped > 100


def test_slow_start_ends_at_the_full_pace() -> None:
    run = Simulated(30_000)
    run.run(3.0, lambda *_: 50_000)
    assert run.sent > 7000
    before = run.sent
    run.run(0.5, lambda *_: 50_000)
    assert 4900 < run.sent - before < 5100
    assert run.core.regulate(run.now) == float("inf")
    run.core.connected(run.now)  # perhaps another server
    assert run.core.regulate(run.now) < float("inf")


def test_visible_queue_gets_the_full_pace_at_once() -> None:
    run = Simulated(2000)
    run.core.receiver = lambda: (run.queued * 768, MOST, 0)
    run.run(0.25, lambda *_: 50_000)
    assert run.sent == 2000


def test_full_queue_is_waited_for() -> None:
    run = Simulated(2000)
    run.core.receiver = lambda: (run.queued * 768, MOST, 0)
    run.run(2.0, lambda *_: 0)
    assert 100 < run.sent < run.ROOM and run.dropped == 0
    run.run(0.7, lambda *_: 5000)  # it reads again, and is not kept waiting
    assert (run.taken, run.dropped) == (2000, 0)


def test_idle_core_reads_the_queue_rarely() -> None:
    core, looks = Plog(config_for("plog"), PRODUCER), []
    core.receiver = lambda: looks.append(1) or (0, MOST, 0)  # type: ignore[func-returns-value]
    core.connected(0.0)
    now = 0.0
    while now < 1000.0:
        now = core.regulate(now)
    assert len(looks) < 40


def test_feedback_auto_reads_the_queue_and_asks_nothing() -> None:
    core = Plog(config_for("plog", feedback="auto"), PRODUCER)
    core.receiver = lambda: (0, MOST, 0)
    connection = Connection(core)
    connection.connected(1.0)
    assert 1.0 < core.regulate(1.0) <= 1.1
    core.receiver = lambda: (MOST, MOST, 0)  # full: one packet at most
    core.regulate(1.1)
    assert connection.credit(1.2)[0] <= 1
    core.receiver = lambda: None  # gone, or for a moment
    core.regulate(1.15)
    assert connection.credit(1.15)[0] <= 1
    core.receiver = lambda: (0, MOST, 0)
    core.regulate(1.2)
    assert connection.codec.take_bytes() == b""
    batch = load(connection, [(BODY, 1)] * 1000)
    assert 50 < connection.encode(batch, 1000, 1.2) < MOST / 1280
    # and no more until the next look
    assert connection.encode(batch, 1000, 1.9) == connection.credit(1.9)[0] == 0


@pytest.mark.parametrize("feedback", ["stat", "auto"])
def test_server_is_asked_if_its_queue_is_not_visible(feedback: str) -> None:
    core = Plog(config_for("plog", feedback=feedback), PRODUCER)
    core.receiver = lambda: None if feedback == "auto" else pytest.fail("looked")
    connection = Connection(core)
    connection.connected(1.0)
    assert b"STAT" in connection.send(1.0)
    assert connection.send(core.regulate(1.0)) == b""  # one at a time
    assert connection.events() == []


class SlowPath:
    """A core with ``feedback=stat`` in simulated time, a path and a server.

    The path takes so many packets per second, behind a queue of 50, and loses a share of them.
    """

    STEP = 0.005

    def __init__(self, takes: float, loses: float = 0.0) -> None:
        self.core = Plog(config_for("plog", feedback="stat", pace=2000), PRODUCER)
        self.connection = Connection(self.core)
        self.connection.connected(0.0)
        load(self.connection, [(BODY, 1)] * 200_000)
        self.takes, self.loses, self.script = takes, loses, Random(1)
        self.queue: list[bool] = []  # whether it is a question
        self.now, self.owed = 0.0, 0.0
        self.seen = self.asked = 0

    @property
    def sent(self) -> int:
        return int(self.core.codec.counts[2])

    def enter(self, question: bool) -> None:
        if len(self.queue) < 50 and self.script.random() >= self.loses:
            self.queue.append(question)

    def leave(self) -> None:
        if not self.queue.pop(0):
            self.seen += 1
            return
        answer = stat_of(
            uptime=int(self.now * 1000) + 1000, udp_simple_messages=0, v0_fragments=[self.seen],
            v0_commands=self.asked, handlers=[{"seen_messages": self.seen}],
        )  # fmt: skip
        self.asked += 1
        self.connection.receive(oracle.runs([answer]), self.now)

    def run(self, seconds: float) -> tuple[float, float]:
        """Return the packets sent, and those that arrived, per second."""
        before, there, end = self.sent, self.seen, self.now + seconds
        while self.now < end:
            data = self.connection.send(self.now)
            for datagram in datagrams(data):
                self.enter(datagram == command("stat"))
            self.connection.sent(len(data))
            self.owed = min(self.owed + self.takes * self.STEP, max(1.0, len(self.queue)))
            while self.owed >= 1 and self.queue:
                self.owed -= 1
                self.leave()
            self.now += self.STEP
        return (self.sent - before) / seconds, (self.seen - there) / seconds


@pytest.mark.parametrize("takes", [200, 24, 3])
def test_feedback_reaches_the_rate_of_a_slow_path(takes: int) -> None:
    path = SlowPath(takes)
    path.run(40)
    sent, arrived = path.run(20)
    assert sent < 1.5 * takes + 1
    assert arrived > 0.5 * takes
    assert path.core.missing > 0


def test_feedback_goes_down_to_one_packet_a_second() -> None:
    path = SlowPath(0.2)
    path.run(60)
    assert 0.9 < path.run(60)[0] < 1.1


def test_a_small_loss_that_is_not_the_rates_slows_nothing() -> None:
    path = SlowPath(10_000, 0.05)
    path.run(10)
    sent, _ = path.run(10)
    assert sent > 2000


def test_counters_tell_what_is_missing() -> None:
    path = SlowPath(10_000, 0.05)
    path.run(10)
    path.connection.lost()
    path.connection.connected(path.now)  # what was counted stays
    before = path.core.missing
    assert 0 < before <= path.sent - path.seen
    path.run(0.1)
    assert path.core.missing == before, "the first answer"
    path.run(10)
    assert before < path.core.missing <= path.sent - path.seen


# -- the queue of a real socket


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: Any) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as server, socket.socket(family, socket.SOCK_DGRAM) as ours:
        try:
            server.bind((request.param, 0))
        except OSError as error:
            pytest.skip(f"no {request.param}: {error}")
        ours.connect(server.getsockname())
        yield server, ours


@linux
@pytest.mark.parametrize("tables", [False, True])
def test_queue_and_drops_of_a_local_socket_are_read(
    pair: tuple[socket.socket, socket.socket], tables: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ours = pair
    if tables:
        monkeypatch.setattr(ReceiverQueue, "_ask", lambda self: None)
    queue = ReceiverQueue(ours)
    before = queue.look()
    assert before is not None and before[0] == 0 and before[2] == 0
    default = int(Path(DEFAULT).read_text())
    assert before[1] == default
    ours.send(b"x" * 300)
    one = queue.look()
    assert one is not None and one[0] > 300
    sent = 1 + 2 * default // one[0]
    for _ in range(sent - 1):
        ours.send(b"x" * 300)
    full = queue.look()
    server.setblocking(False)
    there = 0
    try:
        while server.recv(1000):
            there += 1
    except BlockingIOError:
        pass
    assert full is not None and full[2] == sent - there > 0
    queue.close()
    assert tables or queue.look() is None


def test_queue_of_another_machine_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class RemoteSocket(socket.socket):
        def getpeername(self) -> Any:
            return ("192.0.2.1", 23456)

        def getsockname(self) -> Any:
            return ("192.0.2.2", 1024)

    with RemoteSocket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert ReceiverQueue(sock).look() is None


@pytest.mark.slow
@linux
@pytest.mark.parametrize("feedback", ["auto", "none"])
def test_server_that_reads_nothing_drops_nothing(feedback: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        url = f"plog://127.0.0.1:{server.getsockname()[1]}?feedback={feedback}&timeout=0"
        client = stack.enter_context(logclient.connect(url))
        for _ in range(2000):
            client.send(BODY)
        deadline = time.monotonic() + PATIENCE
        while client.stats().turns < 400 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert client.stats().turns >= 400  # it has read the queue that often
        link = client._sender.engine.lanes.first.link
        assert isinstance(link, UdpLink)
        seen = link.receiver()
        assert seen is not None and seen[0] > 0.9 * seen[1] and seen[2] == 0
        assert 100 < client.stats().handed < 2000


@linux
@pytest.mark.parametrize(("size", "mtu", "buffer", "count"), [
    (300, 576, 100_000, 1000), (13_000, 576, 100_000, 60),
    (60_000, 1500, 200_000, 20), (60_000, 65_535, 200_000, 20),
    (60_000, 65_535, 40_000, 10),  # one of these may need all of the queue
])  # fmt: skip
def test_server_that_pauses_loses_nothing(size: int, mtu: int, buffer: int, count: int) -> None:
    missing: dict[bytes, int] = {}  # fragments of each message
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, ExitStack() as stack:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        url = f"plog://127.0.0.1:{server.getsockname()[1]}?feedback=auto&mtu={mtu}&timeout=0"
        client = stack.enter_context(logclient.connect(url))
        for number in range(count):
            client.send(b"m%06d" % number + b"x" * (size - 7))
        deadline = time.monotonic() + PATIENCE
        while (len(missing) < count or any(missing.values())) and time.monotonic() < deadline:
            turns = client.stats().turns
            while client.stats().turns < turns + 20 and time.monotonic() < deadline:
                time.sleep(0.001)  # it has looked at the queue that often since we read
            with suppress(BlockingIOError):
                while True:
                    head = server.recv(65_536)[:HEADER]
                    fragments = int.from_bytes(head[2:4], "big")
                    missing[head[8:12]] = missing.get(head[8:12], fragments) - 1
        link = client._sender.engine.lanes.first.link
        assert isinstance(link, UdpLink)
        seen = link.receiver()
        assert seen is not None and seen[2] == 0  # the kernel dropped nothing
    assert len(missing) == count and not any(missing.values())


# -- with the collector as a process of its own


class Shipment:
    """One client against one collector with default buffers; what was dropped."""

    def __init__(self, folder: Path, events: int, **options: Any) -> None:
        self.folder = folder
        capture, ledger = str(folder / "capture"), str(folder / "ledger")
        with ExitStack() as stack:
            server = CollectorProcess(Path(capture), scheme="plog", query="?receive_buffer=0")
            stack.enter_context(server)

            client = stack.enter_context(
                logclient.connect(server.url, overflow="block", max_events=20_000, ledger=ledger, **options)
            )
            begin = time.monotonic()
            for _ in range(events):
                client.send(BODY)
            assert client.flush(15 * PATIENCE) == 0
            self.rate = events / (time.monotonic() - begin)
            link = client._sender.engine.lanes.first.link
            assert isinstance(link, UdpLink)
            seen = link.receiver()
            assert seen is not None and seen[1] == int(Path(DEFAULT).read_text())
            self.dropped = seen[2]

    def missing(self) -> int:
        """Return how many events are missing; assert that nothing else is found."""
        verdict = pytest.importorskip("tests.support.verify_inprocess")
        verdict.run(self.folder / "ledger", self.folder / "capture", out=self.folder / "out")
        found = verdict.found(self.folder / "out")
        found.pop("reordered", None)
        assert set(found) <= {"missing"}
        return len(found.get("missing", ()))


def _assert_at_most_one_in_10000_lost(folder: Path, events: int, tries: int) -> None:
    for attempt in range(tries):
        ran = Shipment(folder / str(attempt), events)
        missing = ran.missing()
        print(f"{events:,} events at {ran.rate:,.0f}/s: {missing} missing, {ran.dropped} dropped")
        assert missing == ran.dropped
        if missing <= events / 10_000:
            return
    pytest.fail(f"more than 0.01 % lost, {tries} times")


@pytest.mark.slow
@linux
def test_open_loop_loses_what_the_kernel_dropped(tmp_path: Path) -> None:
    # In a short run one stall of a busy machine exceeds 0.01 %; only the long form bounds the loss.
    ran = Shipment(tmp_path, 20_000)
    assert ran.missing() == ran.dropped
    assert ran.rate < 11_000


@linux
@pytest.mark.long
def test_open_loop_of_two_million_events(tmp_path: Path) -> None:
    _assert_at_most_one_in_10000_lost(tmp_path, 2_000_000, 2)


@pytest.mark.slow
@linux
def test_feedback_auto_loses_nothing(tmp_path: Path) -> None:
    ran = Shipment(tmp_path, 60_000, feedback="auto")
    assert ran.missing() == ran.dropped == 0
    print(f"{ran.rate:,.0f} events/s")


@linux
@pytest.mark.long
def test_feedback_auto_loses_none_of_two_million(tmp_path: Path) -> None:
    ran = Shipment(tmp_path, 2_000_000, feedback="auto")
    print(f"{ran.rate:,.0f} events/s, {ran.dropped} dropped")
    assert ran.missing() == ran.dropped == 0
    assert ran.rate >= 30_000
