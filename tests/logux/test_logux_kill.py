"""The released @logux/server and its producers are killed (-9); the Spark verifier judges the actions.

The server writes each action to a table before it says that it has processed it. The table is judged.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logclient.verify.job import run
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
from tests.support.logux_server import LoguxServer
from tests.support.patience import PATIENCE
from tests.support.processes import CollectorProcess
from tools.demo import samples

pytest.importorskip("websockets")

if TYPE_CHECKING:
    from logclient.verify.verdict import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.tree, pytest.mark.timeout(20 * PATIENCE)]

ACTIONS = 500_000
FEW = 3
"""Kills of a short run, which has a tenth of the resends."""
OPTIONS: dict[str, Any] = {"token": "secret", "user": "kill"}
JAM_AFTER = 0.5


class KilledServer(LoguxServer):
    """Every second kill hits between processing an action and saying so."""

    kills = 0

    def end(self, number: int = 0) -> None:
        if number == signal.SIGKILL:
            self.kills += 1
        if number == signal.SIGKILL and self.kills % 2 and self.running:
            self.die()
        else:
            super().end(number)


@pytest.fixture
def event() -> Callable[[int], dict[str, Any]]:
    lines = [line.text for line in samples.generate(2000)]
    return lambda number: {"message": lines[number % len(lines)], "n": number}


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print progress past pytest's capture."""

    def show(words: str) -> None:
        with capsys.disabled():
            print(f"\n{words}")

    return show


def verify(folder: Path, server: LoguxServer, spark: Any, **options: Any) -> Verdict:
    """Compare the ledger with what the server has processed."""
    columns = {"body": "body", "arrival": "arrival", "received": "received"}
    return run(folder / "ledger", table=f"json:{server.processed}", columns=columns, spark=spark, **options)


def client_of(meta_id: str) -> str:
    return ":".join(meta_id.split(" ")[1].split(":")[:2])


def count_processed(server: LoguxServer) -> tuple[int, int, int]:
    """Return counts of actions, of copies and of client ids; assert that no copy is a plain resend."""
    first: dict[str, set[str]] = {}
    clients: set[str] = set()
    again = 0
    metas = set()
    for line in server.lines():
        body = json.loads(line["body"])
        client = client_of(line["metaId"])
        assert line["metaId"] not in metas
        metas.add(line["metaId"])
        clients.add(client)
        seen = first.setdefault(body["id"], set())
        # Only a new client id adds an action again, if the former one got no outcome.
        assert client not in seen
        again += bool(seen)
        seen.add(client)
    return len(first), again, len(clients)


def assert_nothing_lost(
    folder: Path,
    server: LoguxServer,
    spark: Any,
    figures: Figures,
    show: Callable[[str], None],
    jams: int = 0,
) -> Verdict:
    verdict = verify(folder, server, spark)
    counts = verdict.counts
    actions, again, clients = count_processed(server)
    kept = "kept" if server.options["keep"] else "not kept"
    jammed = f", jammed {jams} times" if jams else ""
    show(
        f"Logux server killed {figures.kills} times{jammed}, its log {kept}: {figures.sent:,} actions of "
        f"{clients} client ids, {figures.acked:,} acked, {figures.resent:,} added again, "
        f"{counts.duplicated:,} duplicated (processed before a kill, not answered), {counts.lost:,} lost"
    )
    assert figures.acked == figures.sent == counts.events == counts.ok == actions
    assert again == counts.duplicated <= figures.resent
    wrong = (counts.lost, counts.missing, counts.corrupted, counts.unexpected, counts.unknown)
    assert wrong == (0,) * 5
    assert verdict.exit_code == 0
    return verdict


class TestServerKilled:
    """Each acknowledged action was processed, whenever the server was killed."""

    def test_killed_server_loses_no_acknowledged_action(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, show: Any, event: Callable[[int], Any]
    ) -> None:
        server = KilledServer(tmp_path, keep=None)
        figures = ship_through_kills(tmp_path, [server], event, monkeypatch, clients=2, kills=FEW, **OPTIONS)
        verdict = assert_nothing_lost(tmp_path, server, spark, figures, show)
        assert figures.kills >= FEW
        assert figures.resent >= RESENT / 10
        assert verdict.counts.duplicated > 0  # at least one kill was between processing and answering

    @pytest.mark.long
    @pytest.mark.timeout(120 * PATIENCE)
    @pytest.mark.parametrize("keep", [None, "file"], ids=["log not kept", "log kept"])
    def test_half_a_million_actions_survive_kills(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, show: Any, event: Callable[[int], Any], keep: Any
    ) -> None:
        server = KilledServer(tmp_path, keep=keep)
        figures = ship_through_kills(
            tmp_path, [server], event, monkeypatch,
            clients=2, events=ACTIONS, between=ACTIONS // 25, max_events=50_000, **OPTIONS,
        )  # fmt: skip
        assert figures.sent == ACTIONS
        verdict = assert_nothing_lost(tmp_path, server, spark, figures, show)
        assert figures.kills >= KILLS
        assert figures.resent >= RESENT
        assert verdict.counts.duplicated > 0
        server.processed.unlink()

    @pytest.mark.slow
    def test_logux_client_without_resend_is_judged_lossy(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, event: Callable[[int], Any]
    ) -> None:
        """The control: clients that take a broken connection for an ack must be caught by the verifier."""
        server = KilledServer(tmp_path)
        figures = ship_through_kills(
            tmp_path, [server], event, monkeypatch, take_back=forget, clients=2, kills=FEW, **OPTIONS
        )
        verdict = verify(tmp_path, server, spark)
        assert figures.resent == 0
        assert verdict.counts.lost > 0
        assert verdict.exit_code == 1


class TestJammed:
    """A server with a log gets an action twice before each kill, which jams the queue of that client."""

    def ship_through_jams(
        self, folder: Path, event: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch, **options: Any
    ) -> tuple[KilledServer, Figures, int]:
        server = KilledServer(folder, keep="file")
        jams = 0

        def jam(fleet: Fleet) -> None:
            nonlocal jams
            # The first action of each connection comes again: each client must have its outcome.
            before = [client.stats().acked for client in fleet.clients]

            def all_had() -> bool:
                pairs = zip(fleet.clients, before, strict=True)
                return all(client.stats().acked > acked for client, acked in pairs) or not fleet.sending

            wait_for(all_had, 2 * PATIENCE, "acks of all")
            ids = {client.node_id for client in fleet.clients}
            assert server.tell("again")["again"] == len(ids)
            wait_for(
                lambda: ids.isdisjoint(client.node_id for client in fleet.clients) or not fleet.sending,
                60, "new client ids",
            )  # fmt: skip
            jams += 1

        figures = ship_through_kills(
            folder, [server], event, monkeypatch,
            meanwhile=jam, clients=2, processing_timeout=JAM_AFTER, **OPTIONS, **options,
        )  # fmt: skip
        return server, figures, jams

    @pytest.mark.slow
    def test_jammed_server_loses_no_acknowledged_action(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, show: Any, event: Callable[[int], Any]
    ) -> None:
        server, figures, jams = self.ship_through_jams(tmp_path, event, monkeypatch, kills=FEW)
        assert_nothing_lost(tmp_path, server, spark, figures, show, jams)
        assert figures.kills >= FEW
        assert jams >= FEW

    @pytest.mark.long
    @pytest.mark.timeout(120 * PATIENCE)
    def test_half_a_million_actions_survive_jams(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, show: Any, event: Callable[[int], Any]
    ) -> None:
        server, figures, jams = self.ship_through_jams(
            tmp_path, event, monkeypatch, events=ACTIONS, between=ACTIONS // 25, max_events=50_000
        )
        assert figures.sent == ACTIONS
        verdict = assert_nothing_lost(tmp_path, server, spark, figures, show, jams)
        assert figures.kills >= KILLS
        assert figures.resent >= RESENT
        assert verdict.counts.duplicated > 0
        assert jams >= KILLS
        server.processed.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [FEW, pytest.param(KILLS, marks=pytest.mark.long)])
def test_killed_logux_producer_loses_nothing(
    tmp_path: Path, spark: Any, show: Callable[[str], None], kills: int
) -> None:
    """A killed producer leaves a ledger without an end, whose tail is not counted as lost."""
    with LoguxServer(tmp_path) as server:
        kill_producers(server, tmp_path / "ledger", kills, **OPTIONS)
    verdict = verify(tmp_path, server, spark, allow_open=True)
    counts = verdict.counts
    show(f"producer killed {kills} times: {counts}")
    assert (counts.lost, counts.unexpected, counts.corrupted) == (0,) * 3
    assert counts.ok > 0
    assert counts.recovered + counts.unknown > 0
    assert verdict.exit_code == (3 if counts.unknown else 0)


@pytest.mark.slow
def test_killed_logux_collector_loses_nothing(
    tmp_path: Path, spark: Any, monkeypatch: Any, show: Any, event: Callable[[int], Any]
) -> None:
    """It is judged by its capture. Late answers keep actions in flight, so that kills hit some."""
    faults = "delay-ack=p:0.5:200ms,cut-before-write=every:29,seed=5"
    collector = CollectorProcess(tmp_path / "capture", faults, scheme="logux")
    figures = ship_through_kills(tmp_path, [collector], event, monkeypatch, clients=2, kills=FEW)
    verdict = run(tmp_path / "ledger", tmp_path / "capture", spark=spark)
    counts = verdict.counts
    show(
        f"Logux collector killed {figures.kills} times: {figures.sent:,} sent, "
        f"{figures.resent:,} added again, {counts.duplicated:,} duplicated, {counts.lost:,} lost"
    )
    assert figures.kills >= FEW
    assert figures.resent >= RESENT / 10
    assert figures.acked == figures.sent == counts.events == counts.ok
    assert counts.duplicated > 0
    wrong = (counts.lost, counts.missing, counts.corrupted, counts.unexpected, counts.unknown)
    assert wrong == (0,) * 5
    assert verdict.exit_code == 0
