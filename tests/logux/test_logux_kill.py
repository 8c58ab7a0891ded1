"""Kill -9 of the released @logux/server and of its producers; the Spark verifier says what it did.

The server writes each action to a table before it says that it has processed it; that is what is judged.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logclient import samples
from logclient.verify.job import run
from tests.logux_server import LoguxServer
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

pytest.importorskip("websockets")

if TYPE_CHECKING:
    from logclient.verify.verdict import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.tree, pytest.mark.timeout(20 * PATIENCE)]

ACTIONS = 500_000
FEW = 3
"""Kills of a short run, with a tenth of the resends."""
OPTIONS: dict[str, Any] = {"token": "secret", "user": "kill"}
JAM_AFTER = 0.5


class Server(LoguxServer):
    """Every second kill finds it between processing an action and saying so."""

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
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints what a run has reached."""

    def say(words: str) -> None:
        with capsys.disabled():
            print(f"\n{words}")

    return say


def verify(folder: Path, server: LoguxServer, spark: Any, **options: Any) -> Verdict:
    """Of the ledger and what the server has processed."""
    columns = {"body": "body", "arrival": "arrival", "received": "received"}
    return run(folder / "ledger", table=f"json:{server.processed}", columns=columns, spark=spark, **options)


def client_of(meta_id: str) -> str:
    return ":".join(meta_id.split(" ")[1].split(":")[:2])


def processed(server: LoguxServer) -> tuple[int, int, int]:
    """How many actions, how many more times, by how many client ids; no copy is a plain resend."""
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
        # A copy is there because a new client added again what the one before had no word of.
        assert client not in seen
        again += bool(seen)
        seen.add(client)
    return len(first), again, len(clients)


def judge(
    folder: Path,
    server: LoguxServer,
    spark: Any,
    figures: Figures,
    say: Callable[[str], None],
    jams: int = 0,
) -> Verdict:
    verdict = verify(folder, server, spark)
    counts = verdict.counts
    actions, again, clients = processed(server)
    kept = "kept" if server.options["keep"] else "not kept"
    jammed = f", jammed {jams} times" if jams else ""
    say(
        f"Logux server killed {figures.kills} times{jammed}, its log {kept}: {figures.sent:,} actions of "
        f"{clients} client ids, {figures.acked:,} acked, {figures.resent:,} added again, "
        f"{counts.duplicated:,} duplicated (processed before a kill, not told), {counts.lost:,} lost"
    )
    assert figures.acked == figures.sent == counts.events == counts.ok == actions
    assert again == counts.duplicated <= figures.resent
    wrong = (counts.lost, counts.missing, counts.corrupted, counts.unexpected, counts.unknown)
    assert wrong == (0,) * 5
    assert verdict.exit_code == 0
    return verdict


class TestServerKilled:
    """Each acknowledged action was processed, whenever the server died."""

    def test_server_killed(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any]
    ) -> None:
        server = Server(tmp_path, keep=None)
        figures = ship_through_kills(tmp_path, [server], event, monkeypatch, clients=2, kills=FEW, **OPTIONS)
        verdict = judge(tmp_path, server, spark, figures, say)
        assert figures.kills >= FEW
        assert figures.resent >= RESENT / 10
        assert verdict.counts.duplicated > 0  # at least one kill was between processing and telling

    @pytest.mark.long
    @pytest.mark.timeout(120 * PATIENCE)
    @pytest.mark.parametrize("keep", [None, "file"], ids=["log not kept", "log kept"])
    def test_half_a_million(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any], keep: Any
    ) -> None:
        server = Server(tmp_path, keep=keep)
        figures = ship_through_kills(
            tmp_path, [server], event, monkeypatch,
            clients=2, events=ACTIONS, between=ACTIONS // 25, max_events=50_000, **OPTIONS,
        )  # fmt: skip
        assert figures.sent == ACTIONS
        verdict = judge(tmp_path, server, spark, figures, say)
        assert figures.kills >= KILLS
        assert figures.resent >= RESENT
        assert verdict.counts.duplicated > 0
        server.processed.unlink()

    def test_control_without_resend(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, event: Callable[[int], Any]
    ) -> None:
        """The same run with clients that take a broken connection for an ack: the verifier must see it."""
        server = Server(tmp_path)
        figures = ship_through_kills(
            tmp_path, [server], event, monkeypatch, requeue=forget, clients=2, kills=FEW, **OPTIONS
        )
        verdict = verify(tmp_path, server, spark)
        assert figures.resent == 0
        assert verdict.counts.lost > 0
        assert verdict.exit_code == 1


class TestJammed:
    """The same with a server that keeps its log and gets an action twice before each kill: it processes
    nothing more of that client."""

    def ship(
        self, folder: Path, event: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch, **options: Any
    ) -> tuple[Server, Figures, int]:
        server = Server(folder, keep="file")
        jams = 0

        def jam(fleet: Fleet) -> None:
            nonlocal jams
            # The first action of each connection is to come again: they must have had a word of it.
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

    def test_server_jammed(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any]
    ) -> None:
        server, figures, jams = self.ship(tmp_path, event, monkeypatch, kills=FEW)
        judge(tmp_path, server, spark, figures, say, jams)
        assert figures.kills >= FEW
        assert jams >= FEW

    @pytest.mark.long
    @pytest.mark.timeout(120 * PATIENCE)
    def test_half_a_million_through_jams(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any]
    ) -> None:
        server, figures, jams = self.ship(
            tmp_path, event, monkeypatch, events=ACTIONS, between=ACTIONS // 25, max_events=50_000
        )
        assert figures.sent == ACTIONS
        verdict = judge(tmp_path, server, spark, figures, say, jams)
        assert figures.kills >= KILLS
        assert figures.resent >= RESENT
        assert verdict.counts.duplicated > 0
        assert jams >= KILLS
        server.processed.unlink()


@pytest.mark.parametrize("kills", [FEW, pytest.param(KILLS, marks=pytest.mark.long)])
def test_producer_killed(tmp_path: Path, spark: Any, say: Callable[[str], None], kills: int) -> None:
    """A producer that dies in mid-stream leaves a ledger without an end: its tail is no loss."""
    with LoguxServer(tmp_path) as server:
        kill_producers(server, tmp_path / "ledger", kills, **OPTIONS)
    verdict = verify(tmp_path, server, spark, allow_open=True)
    counts = verdict.counts
    say(f"producer killed {kills} times: {counts}")
    assert (counts.lost, counts.unexpected, counts.corrupted) == (0,) * 3
    assert counts.ok > 0
    assert counts.recovered + counts.unknown > 0
    assert verdict.exit_code == (3 if counts.unknown else 0)


def test_our_server_killed(
    tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any]
) -> None:
    """Our collector, judged by its capture. Late words keep actions in flight, so that there is more to
    hit than the real server has."""
    faults = "delay-ack=p:0.5:40ms,cut-before-write=every:29,seed=5"
    collector = CollectorProcess(tmp_path / "capture", faults, scheme="logux")
    figures = ship_through_kills(tmp_path, [collector], event, monkeypatch, clients=2, kills=FEW)
    verdict = run(tmp_path / "ledger", tmp_path / "capture", spark=spark)
    counts = verdict.counts
    say(
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
