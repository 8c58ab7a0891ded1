"""The released @logux/client and @logux/core, sending to our collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logclient.files.capture import CaptureReader
from tests.support import need as need_module
from tests.support.logux_server import JsClient, need
from tests.support.patience import PATIENCE

need()
need_module("websockets")

from logclient.testing.logux import Collector, decode  # noqa: E402

KINDS = ["client", "node"]


def address(collector: Collector) -> str:
    return f"ws://127.0.0.1:{collector.port}"


def numbers(actions: list[Any]) -> list[int]:
    return [action["data"]["n"] for action in actions]


@pytest.mark.parametrize("kind", KINDS)
class TestTheirClient:
    def test_every_action_is_processed_and_captured(self, kind: str, tmp_path: Path) -> None:
        with Collector(token="secret", capture=str(tmp_path / "capture"), keep=True) as collector:
            with JsClient(address(collector), tmp_path / "errors", kind=kind, n=300, offline=50) as client:
                done = client.until("done")
            assert (done["processed"], done["undone"], done["errors"]) == (300, {}, [])
            assert numbers(collector.events(300)) == list(range(300))
            counts = collector.counts
        assert (counts.protocol_errors, counts.undone, counts.refused_logins) == (0, 0, 0)
        units = [unit.raw for unit in CaptureReader(tmp_path / "capture") if unit.direction == 0]
        assert numbers([action for raw in units for action in decode(raw)]) == list(range(300))

    def test_cut_connections_lose_no_action(self, kind: str, tmp_path: Path) -> None:
        """It sends again after a cut, and gets an outcome for each action."""
        faults = "cut-before-ack=from:40:max:2,cut-before-write=from:42:max:1"
        with Collector(faults=faults, keep=True) as collector:
            with JsClient(address(collector), tmp_path / "errors", kind=kind, n=200) as client:
                done = client.until("done")
            assert done["processed"] == 200
            assert sorted(set(numbers(collector.events(200)))) == list(range(200))
            assert collector.counts.cuts == 3

    def test_wrong_token_is_refused(self, kind: str, tmp_path: Path) -> None:
        with Collector(token="another") as collector:
            with JsClient(address(collector), tmp_path / "errors", kind=kind, n=1, stay=True) as client:
                assert collector.wait_for(lambda counts: counts.refused_logins == 1, timeout=PATIENCE)
                assert client.end() == 0
            assert collector.counts.captured_events == 0

    def test_denied_action_alone_is_undone(self, kind: str, tmp_path: Path) -> None:
        def judge(action: dict[str, Any], meta: dict[str, Any]) -> str:
            return "denied" if action["data"]["n"] == 3 else ""

        with (
            Collector(judge=judge) as collector,
            JsClient(address(collector), tmp_path / "errors", kind=kind, n=5) as client,
        ):
            done = client.until("done")
        # One action in each message: nothing else is in the queue to be undone with it.
        assert (done["processed"], done["undone"]) == (4, {"denied": 1})

    def test_headers_and_pushed_actions_arrive(self, kind: str, tmp_path: Path) -> None:
        with (
            Collector(headers={"region": "north"}, development=True) as collector,
            JsClient(
                address(collector), tmp_path / "errors", kind=kind, n=0, stay=True, headers={"app": "x"}
            ) as client,
        ):
            assert collector.wait_for(lambda counts: counts.logins == 1, timeout=PATIENCE)
            assert list(collector.clients.values()) == [{"app": "x"}]
            collector.push({"type": "hello", "n": 1})
            assert client.until("received") == {"type": "hello", "n": 1}

    @pytest.mark.slow
    def test_pings_keep_the_connection_alive(self, kind: str, tmp_path: Path) -> None:
        with (
            Collector(ping=0.1, timeout=PATIENCE) as collector,
            JsClient(address(collector), tmp_path / "errors", kind=kind, n=0, stay=True, ping=50) as client,
        ):
            assert collector.wait_for(lambda counts: counts.pings >= 3, timeout=PATIENCE)
            assert collector.counts.connections == 1
            assert client.end() == 0
