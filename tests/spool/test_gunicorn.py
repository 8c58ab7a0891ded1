"""gunicorn with four workers on one spool: whoever is killed, what answered requests logged arrives."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import logclient
from tests.support import need
from tests.support.app_servers import STEPS, Answer, Load, Site, children, gone, gunicorn, wait_for
from tests.support.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.tree]

WORKERS = 4


class SpoolSite(Site):
    """A site whose processes share a spool."""

    @property
    def url(self) -> str:
        spool = quote(str(self.folder / "spool"), safe="/")
        options = "spool_mode=always&spool_bytes=8MiB&overflow=block&backoff_max=0.2"
        return f"{super().url}&spool={spool}&{options}"

    def owners(self) -> set[str]:
        """Return the producers that have files in the spool."""
        return {path.name[:20] for path in (self.folder / "spool").glob("*.lock")}

    def drain(self) -> None:
        """Open the spool with a client until nothing of others is left there."""
        with logclient.connect(self.url) as client:
            wait_for(lambda: self.owners() <= {client.producer}, "the dead owners are adopted")
        assert list((self.folder / "spool").iterdir()) == []

    def copies(self) -> dict[str, set[str]]:
        """Return the ids that have arrived for each message."""
        found: dict[str, set[str]] = {}
        for event in self.events():
            found.setdefault(event["message"], set()).add(event["event.id"])
        return found

    def counts(self) -> Any:
        """End the collector, and return the verifier's counts."""
        need("pyarrow")
        need("numpy")
        from tests.support.verify_inprocess import run

        self.collector.end(signal.SIGTERM)
        return run(self.ledger, self.capture).counts


def _live(site: SpoolSite, name: str, kills: int, preload: bool, draw: random.Random) -> Sequence[Answer]:
    """Let gunicorn work under load while its workers are killed, and then its master; return the answers."""
    options = ("--workers", str(WORKERS))
    (site.folder / "gunicorn.out").unlink(missing_ok=True)  # it says the port
    with gunicorn(site, *options, preload=preload) as run, Load(run.port, name=name) as load:
        killed: set[int] = set()
        for _ in range(kills):
            victim = draw.choice(sorted(load.at_work(WORKERS, killed)))
            load.more(draw.randrange(50))
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        load.at_work(WORKERS, killed)
        workers = children(run.server.pid)
        load.more(draw.randrange(50))
        if draw.random() < 0.5:
            os.killpg(run.server.pid, signal.SIGKILL)
        else:  # the workers end by themselves: each looks for the master when nobody waits for an answer
            run.server.end(signal.SIGKILL)
            load.pause = 0.2
        wait_for(lambda: all(map(gone, workers)), "the end of all workers")
        load.stop()
        return load.answers


@pytest.mark.timeout(60 * PATIENCE)
@pytest.mark.parametrize("preload", [True, False], ids=["preload", "no-preload"])
@pytest.mark.parametrize(
    ("lives", "kills"), [(2, 3), pytest.param(20, 10, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_records_of_answered_requests_survive_kills(
    lives: int,
    kills: int,
    preload: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    draw = random.Random(f"gunicorn {preload}")
    answers: list[Answer] = []
    with SpoolSite(tmp_path) as site:
        for life in range(lives):
            # The server is away in every other life: then nothing but the spool has what is logged.
            away = life % 2 == 0
            if away:
                site.collector.end(signal.SIGTERM)
            answers += _live(site, f"{life}-", kills, preload, draw)
            if away:
                site.collector.start()
        site.drain()
        copies = site.copies()
        wanted = [f"order {answer.order} {step}" for answer in answers for step in STEPS]
        assert [message for message in wanted if len(copies.get(message, ())) != 1] == []
        assert len({answer.worker for answer in answers}) == lives * (kills + WORKERS)
        counts = site.counts()
        with capsys.disabled():
            print(f"\n{len(answers)} orders; {counts}")
        assert (counts.lost, counts.corrupted, counts.unexpected, counts.unknown) == (0, 0, 0, 0)
        assert counts.ok == counts.events >= len(wanted)
