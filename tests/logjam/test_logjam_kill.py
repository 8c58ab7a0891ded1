"""Logjam's device and its producers are killed (-9); the Spark verifier judges the events.

Also measured is why our client must not let ZeroMQ reconnect.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.config import registry
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
from tools.demo import samples

zmq = pytest.importorskip("zmq")

from logclient.delivery.attempt import Attempt  # noqa: E402
from logclient.transports.zmq import Zmq, ZmqLink  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(20 * PATIENCE)]

REQUESTS = 2_000_000


@pytest.fixture
def event() -> Callable[[int], dict[str, Any]]:
    lines = [line.text for line in samples.generate(2000)]
    return lambda number: {"action": "Shop::Blocks#show", "message": lines[number % len(lines)], "n": number}


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print progress past pytest's capture."""

    def show(words: str) -> None:
        with capsys.disabled():
            print(f"\n{words}")

    return show


def devices(folder: Path, n: int = 1, scheme: str = "logjam") -> list[CollectorProcess]:
    """Make devices that share one capture."""
    return [CollectorProcess(folder / "capture", scheme=scheme) for _ in range(n)]


class TestDeviceKilled:
    """Each event with a 202 is in the capture, whenever the device was killed."""

    def assert_nothing_lost(
        self, folder: Path, spark: Any, figures: Figures, show: Callable[[str], None]
    ) -> int:
        """Return how many events the capture has twice: a kill between the write and its answer is rare."""
        verdict = verify(folder / "ledger", folder / "capture", spark=spark, max_missing=None)
        counts = verdict.counts
        show(
            f"device killed {figures.kills} times: {figures.sent:,} requests, {figures.acked:,} with a 202, "
            f"{figures.resent:,} resent, {counts.duplicated:,} duplicated (written before a kill, not "
            f"answered), {counts.lost:,} lost"
        )
        assert figures.kills >= KILLS
        assert figures.resent >= RESENT
        assert figures.acked == figures.sent == counts.events == counts.ok
        wrong = (counts.lost, counts.missing, counts.corrupted, counts.unexpected, counts.reordered)
        assert wrong == (0,) * 5
        assert verdict.exit_code == 0
        return counts.duplicated

    def test_killed_device_loses_no_accepted_request(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, show: Any, event: Callable[[int], Any]
    ) -> None:
        """Three clients reconnect at once when it is back."""
        figures = ship_through_kills(tmp_path, devices(tmp_path), event, monkeypatch, clients=3)
        self.assert_nothing_lost(tmp_path, spark, figures, show)

    @pytest.mark.slow
    def test_second_device_takes_over_from_a_killed_one(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, show: Any, event: Callable[[int], Any]
    ) -> None:
        """Requests that the killed device did not answer go to the other."""
        both = devices(tmp_path, 2)
        figures = ship_through_kills(tmp_path, both, event, monkeypatch, inflight=512)
        self.assert_nothing_lost(tmp_path, spark, figures, show)
        assert len({path.name.rpartition("-")[0] for path in (tmp_path / "capture").glob("*.cap")}) == 2

    @pytest.mark.long
    @pytest.mark.timeout(120 * PATIENCE)
    def test_two_million_requests_survive_kills(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, show: Any, event: Callable[[int], Any]
    ) -> None:
        figures = ship_through_kills(
            tmp_path, devices(tmp_path), event, monkeypatch,
            clients=2, events=REQUESTS, between=REQUESTS // 25, max_events=50_000,
        )  # fmt: skip
        assert figures.sent == REQUESTS
        assert self.assert_nothing_lost(tmp_path, spark, figures, show) > 0
        shutil.rmtree(tmp_path / "capture")  # most of a GB

    @pytest.mark.slow
    def test_logjam_client_without_resend_is_judged_lossy(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, event: Callable[[int], Any]
    ) -> None:
        """The control: clients that take a broken connection for a 202 must be caught by the verifier."""
        figures = ship_through_kills(
            tmp_path, devices(tmp_path), event, monkeypatch, take_back=forget, clients=3
        )
        verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark, max_missing=None)
        assert figures.resent == 0
        assert verdict.counts.lost > 0
        assert verdict.exit_code == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("scheme", ["logjam", "logjam+push"])
    def test_unanswered_events_of_a_kill_are_missing_not_lost(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, show: Any, event: Any, scheme: str
    ) -> None:
        """Without replies nothing was promised."""
        figures = ship_through_kills(
            tmp_path, devices(tmp_path, scheme=scheme), event, monkeypatch, mode="async", kill_last=True
        )
        verdict = verify(tmp_path / "ledger", tmp_path / "capture", spark=spark, max_missing=None)
        counts = verdict.counts
        show(
            f"device killed {figures.kills} times: {figures.handed:,} handed over ({scheme}), "
            f"{counts.missing:,} missing (in doubt {figures.in_doubt:,}), {counts.lost:,} lost"
        )
        assert figures.kills >= KILLS
        assert figures.handed == figures.sent == counts.events
        assert 0 < counts.missing <= figures.in_doubt  # some events were in flight, and counted as in doubt
        wrong = (counts.lost, counts.duplicated, counts.corrupted, counts.unexpected)
        assert wrong == (0,) * 4
        assert counts.ok == counts.events - counts.missing
        assert verdict.exit_code == 0


@pytest.mark.slow
def test_killed_logjam_producer_loses_nothing(
    tmp_path: Path, spark: Any, show: Callable[[str], None]
) -> None:
    """A killed producer leaves a ledger without an end, whose tail is not counted as lost."""
    (device,) = devices(tmp_path)
    with device:
        kill_producers(device, tmp_path / "ledger")
    verdict = verify(
        tmp_path / "ledger", tmp_path / "capture", spark=spark, max_missing=None, allow_open=True
    )
    counts = verdict.counts
    show(f"producer killed {KILLS} times: {counts}")
    assert (counts.lost, counts.unexpected, counts.corrupted, counts.reordered) == (0,) * 4
    assert counts.ok > 0
    assert counts.recovered + counts.unknown > 0
    assert verdict.exit_code == (3 if counts.unknown else 0)


class ReconnectingZmq(Zmq):
    """Our transport with ZeroMQ's own reconnect, which reports no lost connection."""

    def _prepare(self, sock: Any, address: str) -> None:
        super()._prepare(sock, address)
        sock.RECONNECT_IVL = 100  # the default, and that of IMMEDIATE: what waits goes to the next one
        sock.IMMEDIATE = 0

    def connect(self, endpoint: Any, attempt: Attempt) -> ZmqLink:
        link = super().connect(endpoint, attempt)
        link.socket.disable_monitor()
        link.monitor.close(0)
        # This monitor reports nothing, as the socket never listens. The old address is not free at once.
        link.monitor = link.socket.get_monitor_socket(zmq.EVENT_LISTENING, f"inproc://quiet-{id(link)}")
        return link


PIPELINED = 40_000


def count_false_credits(folder: Path, spark: Any, event: Callable[[int], Any]) -> int:
    """Kill a device under pipelined requests; return how many have a 202 and are not in the capture."""
    folder.mkdir()
    (device,) = devices(folder)
    with device:
        fleet = Fleet(
            device.url, folder, event, 1, PIPELINED, inflight=PIPELINED, hwm=PIPELINED, max_events=PIPELINED
        )
        wait_for(lambda: fleet.settled > PIPELINED // 10, 2 * PATIENCE, "replies")
        device.end(signal.SIGKILL)
        device.start()
        # With replies taken for other requests, the last requests never get one.
        fleet.stop(2.0)
    verdict = verify(folder / "ledger", folder / "capture", spark=spark, max_missing=None)
    assert verdict.exit_code == (1 if verdict.counts.lost else 0)
    return int(verdict.counts.lost)


@pytest.mark.slow
def test_reconnect_by_zeromq_credits_lost_requests(
    tmp_path: Path,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    show: Callable[[str], None],
    event: Callable[[int], Any],
) -> None:
    """A reply does not name its request: replies of a new connection would be taken for requests of the
    old one. The same run is made with our transport and with ZeroMQ's reconnect."""
    row = registry.SCHEMES["logjam"]
    theirs = 0
    for attempt in range(5):
        ours = count_false_credits(tmp_path / f"ours {attempt}", spark, event)
        with monkeypatch.context() as patch:
            patch.setitem(registry.SCHEMES, "logjam", row._replace(transport=f"{__name__}:ReconnectingZmq"))
            theirs = count_false_credits(tmp_path / f"theirs {attempt}", spark, event)
        show(
            f"of {PIPELINED:,} pipelined requests were credited with a 202 and never arrived: "
            f"{ours:,}; where ZeroMQ reconnects by itself {theirs:,}"
        )
        assert ours == 0
        if theirs:
            break
    assert theirs > 0
