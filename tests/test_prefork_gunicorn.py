"""gunicorn with the sample application of docs/examples/gunicorn: three workers, real requests, signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.prefork import (
    EXAMPLES,
    Load,
    Server,
    Site,
    gone,
    open_files,
    owed,
    program,
    serving,
    wait_for,
)  # fmt: skip
from tests.shared import need

pytestmark = pytest.mark.tree

RECENT_S = 0.2
"""What a worker logged before this much time, counted from its kill, must have arrived."""

LOADED = "application loaded"


class Running(NamedTuple):
    site: Site
    server: Server
    port: int


@contextmanager
def gunicorn(site: Site, *options: str, preload: bool) -> Iterator[Running]:
    need("flask")
    # The example's configuration, on a port of the system's, with nothing of the machine in the way.
    config = site.folder / "gunicorn.conf.py"
    example = (EXAMPLES / "gunicorn" / "gunicorn.conf.py").read_text()
    config.write_text(f"{example}\npreload_app = {preload}\nbind = '127.0.0.1:0'\n")
    command = [program("gunicorn"), "--config", str(config), *options, "app:app"]
    out = site.folder / "gunicorn.out"
    with serving(command, EXAMPLES / "gunicorn", out, LOG_URL=site.url, HOME=str(site.folder)) as server:
        port = int(server.said(r"Listening at: http://127\.0\.0\.1:(\d+)")[0])
        yield Running(site, server, port)


@pytest.mark.parametrize("preload", [True, False], ids=["preload", "no-preload"])
def test_workers_end_and_are_replaced(
    preload: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One worker by SIGTERM, one by -9, all by HUP, in the end the master: under load all the time."""
    with Site(tmp_path) as site, gunicorn(site, preload=preload) as run:
        with Load(run.port) as load:
            wait_for(lambda: len(load.workers()) == 3, "three workers at work")
            load.more(100)
            master, first = run.server.pid, load.workers()

            # Nobody holds a ledger or a connection to the collector that another holds too.
            held = [open_files(pid, site.collector.port) for pid in (master, *first)]
            assert [len(files) for files in held] == [2 if preload else 0, 2, 2, 2]
            assert len(set().union(*held)) == sum(map(len, held))

            terminated, killed, _ = sorted(first)
            os.kill(terminated, signal.SIGTERM)
            wait_for(lambda: gone(terminated), "the worker's end")
            since = len(load.answers)
            wait_for(lambda: load.workers(since) - first, "a new worker")
            load.more(100)

            os.kill(killed, signal.SIGKILL)
            moment = time.monotonic()
            since = len(load.answers)
            wait_for(lambda: len(load.workers(since) - {killed}) == 3, "three workers again")
            load.more(100)

            before = load.workers(since) - {killed}
            os.kill(master, signal.SIGHUP)
            wait_for(lambda: all(map(gone, before)), "the end of all workers")
            since = len(load.answers)
            wait_for(lambda: len(load.workers(since)) == 3, "three new workers")
            load.more(100)
        assert run.server.end(signal.SIGTERM) == 0

        messages = site.messages()
        assert owed([a for a in load.answers if a.worker != killed], messages) == []
        of_killed = [a for a in load.answers if a.worker == killed]
        old = [a for a in of_killed if a.at < moment - RECENT_S]
        assert len(old) > 10
        assert owed(old, messages) == []
        # Each process that loads the application says so once: the master, or every worker there was.
        workers = load.workers()
        assert messages[LOADED] == (1 if preload else len(workers))

        verdict = site.verdict(monkeypatch)
        with capsys.disabled():
            late = [moment - a.at for a in of_killed if owed([a], messages)]
            print(
                f"\n{len(load.answers)} orders by {len(workers)} workers, {load.refused} not answered; "
                f"the worker that was killed: {len(old)} older than {RECENT_S} s, "
                f"{len(of_killed) - len(old)} younger, {len(late)} of them incomplete; {verdict.counts}"
            )
        closed = {lines[0]["pid"]: lines[-1]["t"] == "close" for lines in site.ledgers().values()}
        assert {pid for pid, end in closed.items() if not end} == {killed}
        assert set(closed) == (workers | {master} if preload else workers)
        assert verdict.exit_code in (0, 3)
        for producer in verdict.producers:
            if producer.closed:
                assert producer.counts.ok == producer.counts.events
