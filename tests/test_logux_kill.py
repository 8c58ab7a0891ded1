"""Kill -9 of the released @logux/server and of its producers; the Spark verifier says what it did.

The server writes each action to a table before it says that it has processed it; that is what is judged.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.verify.job import run
from logclient.verify.verdict import Verdict
from tests.kills import (
    KILLS,
    RESENT,
    Figures,
    Fleet,
    forget,
    kill_producers,
    ship_through_kills,
    wait_for,
)
from tests.logux_server import LoguxServer
from tests.shared import shared_path

pytest.importorskip("websockets")

pytestmark = [pytest.mark.spark, pytest.mark.tree, pytest.mark.timeout(600)]

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
    lines = (shared_path("data") / "HDFS_2k.log").read_text().splitlines()
    return lambda number: {"message": lines[number % len(lines)], "n": number}


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints what a run has reached."""

    def say(words: str) -> None:
        with capsys.disabled():
            print(f"\n{words}")

    return say


def verify(folder: Path, server: LoguxServer, spark: Any) -> Verdict:
    """Of the ledger and what the server has processed."""
    columns = {"body": "body", "arrival": "arrival", "received": "received"}
    return run(folder / "ledger", table=f"json:{server.processed}", columns=columns, spark=spark)


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
    folder: Path, server: LoguxServer, spark: Any, figures: Figures, say: Callable[[str], None]
) -> Verdict:
    verdict = verify(folder, server, spark)
    counts = verdict.counts
    actions, again, clients = processed(server)
    kept = "kept" if server.options["keep"] else "not kept"
    say(
        f"Logux server killed {figures.kills} times, its log {kept}: {figures.sent:,} actions of {clients} "
        f"clients, {figures.acked:,} acked, {figures.resent:,} added again, {counts.duplicated:,} duplicated "
        f"(processed before a kill, not told), {counts.lost:,} lost"
    )
    assert figures.acked == figures.sent == counts.events == counts.ok == actions
    assert again == counts.duplicated <= figures.resent
    wrong = (counts.lost, counts.missing, counts.corrupted, counts.unexpected, counts.unknown)
    assert wrong == (0,) * 5
    assert verdict.exit_code == 0
    return verdict


class TestServerKilled:
    """Each acknowledged action was processed, whenever the server died."""

    @pytest.mark.parametrize("keep", [None, "file"], ids=["log not kept", "log kept"])
    def test_short(
        self, tmp_path: Path, spark: Any, monkeypatch: Any, say: Any, event: Callable[[int], Any], keep: Any
    ) -> None:
        server = Server(tmp_path, keep=keep)
        figures = ship_through_kills(tmp_path, [server], event, monkeypatch, clients=2, kills=FEW, **OPTIONS)
        verdict = judge(tmp_path, server, spark, figures, say)
        assert figures.kills >= FEW
        assert figures.resent >= RESENT / 10
        assert verdict.counts.duplicated > 0  # at least one kill was between processing and telling

    @pytest.mark.long
    @pytest.mark.timeout(3600)
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
    """A server that keeps its log, gets an action twice and processes nothing more of that client."""

    def jam(
        self, folder: Path, event: Callable[[int], Any], events: int, between: int, jams: int, **options: Any
    ) -> tuple[LoguxServer, Figures]:
        server = LoguxServer(folder, keep="file")
        hits = 0
        with server:
            fleet = Fleet(server.url, folder, event, 2, events, jam_after=JAM_AFTER, **OPTIONS, **options)
            try:
                for _ in range(jams):
                    before = [client.stats().acked for client in fleet.clients]
                    if not fleet.flows(between):
                        break
                    # The first action of each connection is to come again: they must have had a word of it.
                    wait_for(
                        lambda before=before: all(
                            client.stats().acked > n for client, n in zip(fleet.clients, before, strict=True)
                        ),
                        60, "all in turn",
                    )  # fmt: skip
                    ids = {client.node_id for client in fleet.clients}
                    assert server.tell("again")["again"] == len(ids)
                    wait_for(
                        lambda ids=ids: ids.isdisjoint(client.node_id for client in fleet.clients),
                        60, "new client ids",
                    )  # fmt: skip
                    hits += 1
            finally:
                left = fleet.stop(300)
            assert left == 0
        return server, Figures(hits, *(fleet.total(field) for field in Figures._fields[1:]))

    def test_short(self, tmp_path: Path, spark: Any, say: Any, event: Callable[[int], Any]) -> None:
        server, figures = self.jam(tmp_path, event, 0, 500, 3)
        self.judge(tmp_path, server, spark, figures, say)
        assert figures.kills == 3

    @pytest.mark.long
    @pytest.mark.timeout(3600)
    def test_half_a_million(self, tmp_path: Path, spark: Any, say: Any, event: Callable[[int], Any]) -> None:
        server, figures = self.jam(tmp_path, event, ACTIONS, ACTIONS // 25, 20, max_events=50_000)
        assert figures.sent == ACTIONS
        self.judge(tmp_path, server, spark, figures, say)
        assert figures.kills >= KILLS
        assert figures.resent >= RESENT
        server.processed.unlink()

    def judge(
        self, folder: Path, server: LoguxServer, spark: Any, figures: Figures, say: Callable[[str], None]
    ) -> None:
        verdict = verify(folder, server, spark)
        counts = verdict.counts
        actions, again, clients = processed(server)
        say(
            f"Logux server jammed {figures.kills} times: {figures.sent:,} actions of {clients} clients, "
            f"{figures.acked:,} acked, {figures.resent:,} added again, {counts.duplicated:,} duplicated, "
            f"{counts.lost:,} lost"
        )
        assert figures.acked == figures.sent == counts.events == counts.ok == actions
        # What a jam has swallowed was not processed; of the rest a word may have been on its way.
        assert again == counts.duplicated <= figures.resent
        assert clients == 2 * (figures.kills + 1)
        assert (counts.lost, counts.missing, counts.corrupted, counts.unexpected, counts.unknown) == (0,) * 5
        assert verdict.exit_code == 0


@pytest.mark.parametrize("kills", [FEW, pytest.param(KILLS, marks=pytest.mark.long)])
def test_producer_killed(tmp_path: Path, spark: Any, say: Callable[[str], None], kills: int) -> None:
    """A producer that dies in mid-stream leaves a ledger without an end: its tail is no loss."""
    with LoguxServer(tmp_path) as server:
        kill_producers(server, tmp_path / "ledger", kills, **OPTIONS)
    verdict = verify(tmp_path, server, spark)
    counts = verdict.counts
    say(f"producer killed {kills} times: {counts}")
    assert (counts.lost, counts.unexpected, counts.corrupted) == (0,) * 3
    assert counts.ok > 0
    assert counts.recovered + counts.unknown > 0
    assert verdict.exit_code in (0, 3)
