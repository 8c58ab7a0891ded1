"""What is noticed and said of a dead path and of a wait, and what becomes of connections given up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path as File
from typing import Any

import pytest

import logclient
from logclient._ext.queue import EventQueue
from logclient.delivery import lanes
from logclient.delivery import path as path_module
from logclient.delivery.backoff import Backoff
from logclient.delivery.contract import FOREVER
from logclient.delivery.endpoints import Endpoints
from logclient.delivery.error_log import Diagnostics
from logclient.delivery.path import LATE, SMALL, STOPPED, Path, TcpState
from logclient.transports.addresses import KEEP_ALIVE
from tests.cores.rig import Recorder, Rig, Setup
from tests.cores.server import silent
from tests.support import clean_environment, need
from tests.support.configs import config_for
from tests.support.patience import PATIENCE, wait_until

SILENCE = 30.0
DEAD = TcpState(waiting=700, acked=1, ack_age=99.0, owes=True, gap=False, segment=1448)

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what TCP has acknowledged")


class TestClock:
    """The state machine, with given clocks and states."""

    def test_nothing_is_due_before_a_write_and_after_all_has_arrived(self) -> None:
        path = Path(SILENCE)
        path.begin(500)
        path.wrote(1.0, 500)
        assert path.due == FOREVER
        path.wrote(2.0, 501)
        path.wrote(3.0, 502)
        assert path.due == 2.0 + LATE
        assert not path.look(path.due, DEAD._replace(waiting=0)) and path.due == FOREVER
        path.wrote(100.0, 502)
        assert path.due == FOREVER, "nothing new"
        path.wrote(101.0, 503)
        assert path.due == 101.0 + LATE

    def test_a_dead_path_is_reported_after_ten_seconds_and_ends_after_the_silence(self) -> None:
        path = Path(SILENCE)
        path.wrote(100.0, 1)
        assert not path.look(110.0, DEAD._replace(ack_age=60.0)) and path.late
        assert path.due == 100.0 + SILENCE
        assert path.look(130.0, DEAD._replace(ack_age=80.0))

    def test_a_short_silence_comes_before_the_report(self) -> None:
        path = Path(3.0)
        path.wrote(100.0, 1)
        assert path.due == 103.0 and path.look(103.0, DEAD) and not path.late

    def test_the_wait_begins_with_the_last_acknowledgement(self) -> None:
        path = Path(SILENCE)
        path.wrote(0.0, 1)
        assert not path.look(10.0, DEAD._replace(acked=900, ack_age=4.0))
        assert not path.late and path.due == 6.0 + LATE
        assert not path.look(16.0, DEAD._replace(acked=900, ack_age=10.0)) and path.late
        assert not path.look(36.0 - 0.1, DEAD._replace(acked=901, ack_age=0.5)) and not path.late
        assert path.look(35.4 + SILENCE, DEAD._replace(acked=901))

    def test_acknowledgements_without_progress_prolong_nothing(self) -> None:
        """The first bytes are lost again and again; the peer acknowledges later ones."""
        path = Path(SILENCE)
        path.wrote(0.0, 1)
        assert not path.look(10.0, DEAD._replace(ack_age=10.0))
        for now in (20.0, 29.0):
            assert not path.look(now, DEAD._replace(ack_age=0.1))
        assert path.look(30.0, DEAD._replace(ack_age=0.1))

    def test_a_peer_that_has_no_room_and_says_so_is_alive(self) -> None:
        path = Path(SILENCE)
        path.wrote(0.0, 1)
        for now in range(10, 400, 10):
            assert not path.look(float(now), DEAD._replace(owes=False, ack_age=120.0)) and not path.late
        assert not path.look(400.0, DEAD)
        assert path.look(390.0 + SILENCE, DEAD)

    def test_a_process_that_was_stopped_looks_twice(self) -> None:
        """What waits after that may have been written just now."""
        path = Path(2.0)
        path.wrote(0.0, 1)
        assert not path.look(2.4, DEAD._replace(acked=900, ack_age=2.4)) and path.due == 2.4 + STOPPED
        assert not path.look(2.6, DEAD._replace(acked=901, ack_age=0.1)) and path.due == 2.5 + 2.0
        assert path.look(4.6, DEAD._replace(acked=901, ack_age=2.1))
        path.begin(1)
        path.wrote(10.0, 2)
        assert not path.look(13.0, DEAD._replace(acked=5, ack_age=3.0))
        assert path.look(13.2, DEAD._replace(acked=5, ack_age=3.2)), "nothing has come since"

    def test_without_knowledge_nothing_is_concluded(self) -> None:
        path = Path(SILENCE)
        path.wrote(0.0, 1)
        assert not path.look(1000.0, None) and path.due == FOREVER

    def test_a_new_connection_begins_anew(self) -> None:
        path = Path(SILENCE)
        path.wrote(0.0, 1)
        path.look(10.0, DEAD)
        path.begin(1)
        assert path.due == FOREVER and not path.late


class TestWords:
    def test_a_silent_server_is_told_from_a_dead_path(self) -> None:
        silent_server, full = DEAD._replace(waiting=0), DEAD._replace(owes=False)
        assert silent_server.explain(False).startswith("no answer in time: the server's system has taken")
        assert full.explain(True).startswith("the server's process reads nothing: 700 bytes wait")
        assert DEAD.explain(False).endswith("is dead: the server's system has not acknowledged 700 bytes")

    @pytest.mark.parametrize(("state", "is_new"), [(DEAD._replace(gap=True), False), (DEAD, True)])
    def test_lost_large_packets_are_told_from_a_dead_path(self, state: TcpState, is_new: bool) -> None:
        assert state.loses_large(is_new)
        assert "are packets of 1448 bytes too large for it (MTU)?" in state.explain(is_new)
        for other in (state._replace(segment=SMALL), state._replace(owes=False), state._replace(waiting=0)):
            assert not other.loses_large(is_new) and "MTU" not in other.explain(is_new)


# -- connections --------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        found.bind(("127.0.0.1", 0))
        found.listen()
        found.settimeout(PATIENCE)
        yield found


def accepted(listener: socket.socket) -> socket.socket:
    peer, _ = listener.accept()
    peer.settimeout(PATIENCE)
    return peer


def options_of(link: Any) -> list[int]:
    return [link._socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in KEEP_ALIVE]


def state_of(pump: Any) -> TcpState | None:
    found = pump.tcp_state()
    return None if found is None else TcpState._make(found)


@linux
def test_the_state_of_a_connection(listener: socket.socket) -> None:
    """What was read, what waits in the peer's system, and what waits for room there."""
    url = f"plog+tcp://127.0.0.1:{listener.getsockname()[1]}"
    with logclient.connect(url, max_bytes="64MiB", overflow="drop_new") as client:
        client.send("first")
        with accepted(listener) as peer:
            pump = client._sender.engine.lanes.first.pump
            wait_until(lambda: client.stats().handed == 1)
            link: Any = client._sender.engine.lanes.first.link
            state = wait_until(lambda: (found := state_of(pump)) and not found.waiting and found)
            _, acked, age, owes, gap, segment = state
            assert acked > 5 and 0 <= age < PATIENCE and owes and not gap and segment > 500
            assert options_of(link) == [15, 5, 3]
            while client.stats().queued < 100:
                client.send("x" * 10_000)
            state = wait_until(lambda: (found := state_of(pump)) and not found.owes and found)
            assert state.waiting and state.acked > acked
            assert state.explain(True).startswith("the server's process reads nothing")
            while client.stats().queued:
                peer.recv(1 << 20)
        client.close(0)
    assert state_of(pump) is None


def test_an_attempt_can_ask_for_small_packets(listener: socket.socket) -> None:
    from logclient.delivery.attempt import Attempt
    from tests.support import transports

    attempt = Attempt()
    attempt.segment = SMALL
    link = transports.tcp(PATIENCE).connect(listener.getsockname(), attempt)
    with accepted(listener) as peer:
        for sock in (link._socket, peer):
            assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= SMALL
    link.close()


def test_a_connection_that_is_given_up_is_reset(listener: socket.socket) -> None:
    """Its events are sent again on the next one: the kernel must not go on sending them on this one."""
    url = f"lumberjack://127.0.0.1:{listener.getsockname()[1]}"
    client = logclient.connect(url, silence=0.2)
    client.send({"message": "hello"})
    with accepted(listener) as peer, pytest.raises(ConnectionResetError):
        while peer.recv(65536):
            pass
    client.close(0)


def test_a_connection_without_acknowledgements_is_never_reset(listener: socket.socket) -> None:
    """What the kernel has of it may still arrive, and nothing else sends it."""
    url = f"plog+tcp://127.0.0.1:{listener.getsockname()[1]}"
    client = logclient.connect(url, progress_timeout=0.2, max_bytes="64MiB", overflow="drop_new")
    client.send("first")
    with accepted(listener) as peer:
        wait_until(lambda: client.stats().handed)
        while not client.stats().disconnects:
            client.send("x" * 10_000)
        while peer.recv(1 << 20):
            pass
    line = client.stats().last_error
    client.close(0)
    assert "reads nothing" in line or sys.platform != "linux", line


def test_a_dead_path_ends_a_connection_without_acknowledgements(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes.Lane, "_tcp_state", lambda lane: DEAD._replace(acked=0))
    lines: list[str] = []
    url = f"plog+tcp://127.0.0.1:{listener.getsockname()[1]}"
    client = logclient.connect(url, silence=0.2, on_error=lines.append)
    for n in range(7):
        client.send({"n": n})
    first = accepted(listener)
    wait_until(lambda: client.stats().disconnects)
    first.close()
    wait_until(lambda: lines)
    stats = client.stats()
    assert stats.in_doubt == stats.handed == 7
    assert "the path is dead: the server's system has not acknowledged 700 bytes" in lines[0]
    assert "; 7 events were in doubt" in lines[0]
    assert client._sender.engine.lanes.first.connector.segment == SMALL, "large packets may be what is lost"
    monkeypatch.undo()
    client.send("later")
    with accepted(listener) as peer:
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= SMALL
    client.close()


def test_a_dead_path_ends_a_connection_whose_server_still_sends(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the way to the server is dead."""
    monkeypatch.setattr(lanes.Lane, "_tcp_state", lambda lane: DEAD._replace(acked=0))
    url = f"lumberjack://127.0.0.1:{listener.getsockname()[1]}"
    client = logclient.connect(url, silence=0.5)
    client.send({"message": "hello"})
    with accepted(listener) as peer, pytest.raises(ConnectionError):
        peer.settimeout(0.05)
        for _ in range(int(PATIENCE / 0.05)):
            with suppress(TimeoutError):
                peer.recv(65536)
            peer.sendall(b"2A\0\0\0\0")
    client.close(0)


@pytest.mark.parametrize("setup", [Setup("fifo"), Setup("fifo", True)], ids=str)
def test_a_wait_is_reported_while_it_lasts(
    setup: Setup, tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LATE", 0.05)
    rig = Rig(setup, tmp_path / "run")
    rig.server.script = silent
    rig.many(3)
    stats = rig.until(lambda s: s.last_error)
    peer = ":".join(map(str, rig.server.endpoint))
    assert stats.last_error.startswith(f"test://server: {peer} has acknowledged nothing since ")
    assert stats.last_error.endswith(" UTC, 3 events are in flight")
    rig.server.script = lambda peer: peer.ack()
    rig.server.peers[0].ack()
    rig.until(lambda s: not s.last_error)
    assert not rig.lines.lines, "a server may take its time"
    rig.finish()


@pytest.mark.parametrize("setup", [Setup("fifo"), Setup("fifo", True)], ids=str)
def test_a_wait_for_an_event_that_woke_nobody_is_reported(
    setup: Setup, tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came while the sender lingered for more, after all others had their outcome."""
    monkeypatch.setattr(lanes, "LATE", 0.05)
    monkeypatch.setattr(path_module, "LATE", 1000.0)
    rig = Rig(setup, tmp_path / "run", linger=0.5, silence=1000.0)
    rig.put()
    rig.until(lambda s: s.acked == 1)
    rig.server.script = silent
    rig.put()
    rig.until(lambda s: "has acknowledged nothing since" in s.last_error)
    rig.server.peers[0].ack()
    rig.finish()


def test_a_later_error_is_not_forgotten_with_the_wait(
    tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LATE", 0.05)
    rig = Rig(Setup("fifo"), tmp_path / "run")
    rig.server.script = silent
    rig.put()
    rig.until(lambda s: s.last_error)
    rig.engine.diagnostics.last_error = "another"
    rig.server.peers[0].ack()
    assert rig.settle().last_error == "another"
    rig.finish()


FROZEN = """
import os, sys, logclient
client = logclient.connect(sys.argv[1], silence=2.0)
client.submit({"n": 0}).result(60)
for task in os.listdir("/proc/self/task"):  # libzmq's thread comes last when all go on
    os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})
    if open(f"/proc/self/task/{task}/comm").read().startswith("ZMQbg/IO"):
        os.setpriority(os.PRIO_PROCESS, int(task), 19)
found = [client.submit({"n": n}).result(60).status for n in (1, 2, 3)]
print(*found, client.stats().disconnects, client.stats().last_error, flush=True)
client.close()
"""


@linux
@pytest.mark.slow
def test_a_client_that_was_frozen_reads_its_answers_first() -> None:
    zmq = need("zmq")
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.RCVTIMEO = int(PATIENCE * 1000)
    url = f"logjam://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}/a-b"
    command = [sys.executable, "-c", FROZEN, url]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment())
    try:
        for number in range(4):
            who, *_ = router.recv_multipart()
            if number:
                os.kill(child.pid, signal.SIGSTOP)
            router.send_multipart([who, b"a-b", b"202 Accepted"])
            if number:
                time.sleep(2.4)  # what is tested is this time itself: it is longer than the silence
                os.kill(child.pid, signal.SIGCONT)
        out, _ = child.communicate(timeout=PATIENCE)
    finally:
        child.kill()
        child.communicate()
        router.close(0)
        context.term()
    assert out.split() == ["acked", "acked", "acked", "0"], out


# -- rounds of endpoints ------------------------------------------------------------------------------


def test_the_wait_is_one_for_each_round_of_all_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logclient.delivery.endpoints.random", lambda: 0.5)
    monkeypatch.setattr("logclient.delivery.endpoints.time.monotonic", lambda: 0.0)
    limits = config_for("lumberjack").replace(backoff_min=0.1, backoff_max=30.0)
    diagnostics = Diagnostics("test://a", Recorder(), EventQueue())
    three = Endpoints(("a", "b", "c"), limits, diagnostics)
    three.backoff = Backoff(0.1, 30.0, lambda: 1.0)
    waits = []
    for _ in range(12 * 3):
        three.advance()
        three.failed("cannot connect", "connect")
        waits.append(three.not_before)
    assert [w for i, w in enumerate(waits) if i % 3 < 2] == [pytest.approx(0.05)] * 24
    assert waits[2::3] == [pytest.approx(min(30.0, 0.1 * 3**i)) for i in range(12)]
    three.advance()
    three.failed("no descriptor is left", "shortage")
    assert three.not_before == 30.0, "another endpoint would not help"


def test_a_single_endpoint_waits_after_each_failure() -> None:
    one = Endpoints(("a",), config_for("lumberjack"), Diagnostics("test://a", Recorder(), EventQueue()))
    for _ in range(5):
        one.advance()
        one.failed("cannot connect", "connect")
    assert one.backoff.attempts == 5
