"""Kill -9 of Logjam's device and of its producers; the Spark verifier says what it did to the events.

And why a client of ours never lets ZeroMQ reconnect: what that would acknowledge.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient import registry, samples
from logclient.verify.job import run as verify
from tests.support.kill_scenes import (
    KILLS,
    RESENT,
    Figures,
    Fleet,
    forget,
    kill_producers,
    ship_through_kills,
    wait_for,
)
from tests.support.patience import PATIENCE
from tests.support.processes import CollectorProcess

zmq = pytest.importorskip("zmq")

from logclient.transports.attempt import Attempt  # noqa: E402
from logclient.transports.zmq import Zmq, ZmqLink  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(20 * PATIENCE)]

REQUESTS = 2_000_000


@pytest.fixture
def event() -> Callable[[int], dict[str, Any]]:
    lines = [line.text for line in samples.generate(2000)]
    return lambda number: {"action": "Shop::Blocks#show", "message": lines[number % len(lines)], "n": number}


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints what a run has reached."""

    def say(words: str) -> None:
        with capsys.disabled():
            print(f"\n{words}")

    return say


def devices(folder: Path, n: int = 1, scheme: str = "logjam") -> list[CollectorProcess]:
    """All with one capture."""
    return [CollectorProcess(folder / "capture", scheme=scheme) for _ in range(n)]


class TestDeviceKilled:
    """Each event with a 202 is in the capture, whenever the device died."""

    def judge(self, folder: Path, spark: Any, figures: Figures, say: Callable[[str], None]) -> None:
        verdict = verify(folder / "ledger", folder / "capture", spark=spark)
        counts = verdict.counts
        say(
            f"device killed {figures.kills} times: {figures.sent:,} requests, {figures.acked:,} with a 202, "
            f"{figures.resent:,} resent, {counts.duplicated:,} duplicated (written before a kill, not "
            f"answered), {counts.lost:,} lost"
        )
        assert figures.kills >= KILLS
        assert figures.resent >= RESENT
        assert figures.acked == figures.sent == counts.events == counts.ok
        assert counts.duplicated > 0  # at least one kill was between the write and its ack
        wrong = (counts.lost, counts.missing, counts.corrupted, counts.unexpected, counts.reordered)
        assert wrong == (0,) * 5
        assert verdict.exit_code == 0

    def test_one(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any]
    ) -> None:
        """Several clients come back at once while it is born again."""
        figures = ship_through_kills(tmp_path, devices(tmp_path), event, monkeypatch, clients=3)
        self.judge(tmp_path, spark, figures, say)

    def test_two_in_turn(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any]
    ) -> None:
        """Fail-over: what the dead one had not answered goes to the other."""
        both = devices(tmp_path, 2)
        figures = ship_through_kills(tmp_path, both, event, monkeypatch, inflight=512)
        self.judge(tmp_path, spark, figures, say)
        assert len({path.name.rpartition("-")[0] for path in (tmp_path / "capture").glob("*.cap")}) == 2

    @pytest.mark.long
    @pytest.mark.timeout(120 * PATIENCE)
    def test_two_million_requests(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any]
    ) -> None:
        figures = ship_through_kills(
            tmp_path, devices(tmp_path), event, monkeypatch,
            clients=2, events=REQUESTS, between=REQUESTS // 25, max_events=50_000,
        )  # fmt: skip
        assert figures.sent == REQUESTS
        self.judge(tmp_path, spark, figures, say)
        shutil.rmtree(tmp_path / "capture")  # most of a GB

    def test_control_without_resend(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, event: Callable[[int], Any]
    ) -> None:
        """The same run with clients that take a broken connection for a 202: the verifier must see it."""
        figures = ship_through_kills(
            tmp_path, devices(tmp_path), event, monkeypatch, requeue=forget, clients=3
        )
        verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark)
        assert figures.resent == 0
        assert verdict.counts.lost > 0
        assert verdict.exit_code == 1

    @pytest.mark.parametrize("scheme", ["logjam", "logjam+push"])
    def test_without_replies(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any], scheme: str
    ) -> None:
        """Nobody promised anything: what was under way is missing, and not lost."""
        figures = ship_through_kills(
            tmp_path, devices(tmp_path, scheme=scheme), event, monkeypatch, mode="async"
        )
        verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark)
        counts = verdict.counts
        say(
            f"device killed {figures.kills} times: {figures.handed:,} handed over ({scheme}), "
            f"{counts.missing:,} missing (in doubt {figures.in_doubt:,}, "
            f"estimate {figures.in_doubt_estimate:,}), {counts.lost:,} lost"
        )
        assert figures.kills >= KILLS
        assert figures.handed == figures.sent == counts.events
        assert 0 < counts.missing <= figures.in_doubt  # something was at stake, and the client says so
        assert 0 < figures.in_doubt_estimate <= figures.in_doubt
        wrong = (counts.lost, counts.duplicated, counts.corrupted, counts.unexpected)
        assert wrong == (0,) * 4
        assert counts.ok == counts.events - counts.missing
        assert verdict.exit_code == 0


def test_producer_killed(tmp_path: Path, spark: Any, say: Callable[[str], None]) -> None:
    """A producer that dies in mid-stream leaves a ledger without an end: its tail is no loss."""
    (device,) = devices(tmp_path)
    with device:
        kill_producers(device, tmp_path / "ledger")
    verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark, allow_open=True)
    counts = verdict.counts
    say(f"producer killed {KILLS} times: {counts}")
    assert (counts.lost, counts.unexpected, counts.corrupted, counts.reordered) == (0,) * 4
    assert counts.ok > 0
    assert counts.recovered + counts.unknown > 0
    assert verdict.exit_code == (3 if counts.unknown else 0)


class Reconnecting(Zmq):
    """What this transport would be with ZeroMQ's own reconnect: nobody is told of a lost connection."""

    def _prepare(self, sock: Any, address: str) -> None:
        super()._prepare(sock, address)
        sock.RECONNECT_IVL = 100  # the default, and that of IMMEDIATE: what waits goes to the next one
        sock.IMMEDIATE = 0

    def connect(self, endpoint: Any, attempt: Attempt) -> ZmqLink:
        link = super().connect(endpoint, attempt)
        link.socket.disable_monitor()
        link.monitor.close(0)
        # Of a socket that never listens; the address of the other monitor is not free at once.
        link.monitor = link.socket.get_monitor_socket(zmq.EVENT_LISTENING, f"inproc://quiet-{id(link)}")
        return link


PIPELINED = 40_000


def credited(folder: Path, spark: Any, event: Callable[[int], Any]) -> int:
    """Kill a device under many pipelined requests: how many have a 202 and are not in the capture."""
    folder.mkdir()
    (device,) = devices(folder)
    with device:
        fleet = Fleet(
            device.url, folder, event, 1, PIPELINED, inflight=PIPELINED, hwm=PIPELINED, max_events=PIPELINED
        )
        wait_for(lambda: fleet.settled > PIPELINED // 10, 2 * PATIENCE, "replies")
        device.end(signal.SIGKILL)
        device.start()
        # Where replies are taken for those to other requests, the last requests have none, ever.
        fleet.stop(2.0)
    verdict = verify(folder / "ledger", folder / "capture", spark=spark)
    assert verdict.exit_code == (1 if verdict.counts.lost else 0)
    return int(verdict.counts.lost)


def test_why_zeromq_may_not_reconnect(
    tmp_path: Path,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    say: Callable[[str], None],
    event: Callable[[int], Any],
) -> None:
    """A reply says nothing of its request, so those of a new connection would be taken for those of the
    old one. The measurement behind "one socket, one connection": the same run both ways."""
    row = registry.SCHEMES["logjam"]
    theirs = 0
    for attempt in range(5):
        ours = credited(tmp_path / f"ours {attempt}", spark, event)
        with monkeypatch.context() as patch:
            patch.setitem(registry.SCHEMES, "logjam", row._replace(transport=f"{__name__}:Reconnecting"))
            theirs = credited(tmp_path / f"theirs {attempt}", spark, event)
        say(
            f"of {PIPELINED:,} pipelined requests were credited with a 202 and never arrived: "
            f"{ours:,}; where ZeroMQ reconnects by itself {theirs:,}"
        )
        assert ours == 0
        if theirs:
            break
    assert theirs > 0
