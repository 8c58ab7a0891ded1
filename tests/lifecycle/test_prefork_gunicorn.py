"""gunicorn with the sample application of docs/examples/gunicorn: three workers, real requests, signals."""

from __future__ import annotations

import http.client
import math
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.app_servers import Load, Site, children, gone, gunicorn, open_files, owed, wait_for
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.tree

RECENT_S = 0.2
"""What a worker logged before this much time, counted from its kill, must have arrived."""

LOADED = "application loaded"


@pytest.mark.parametrize("preload", [True, False], ids=["preload", "no-preload"])
@pytest.mark.parametrize("rounds", [1, pytest.param(15, marks=pytest.mark.long)])
def test_gunicorn_workers_deliver_through_signals(
    rounds: int,
    preload: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One worker by SIGTERM, one by -9, all by HUP, in the end the master: under load all the time."""
    randomly = random.Random(3)
    killed: dict[int, float] = {}
    with Site(tmp_path) as site, gunicorn(site, preload=preload) as run:
        with Load(run.port) as load:

            def three_at_work() -> set[int]:
                found = load.at_work(3, killed)
                load.more(100)
                return found

            master, first = run.server.pid, three_at_work()
            site.heard(first | {master} if preload else first)
            # Nobody holds a ledger or a connection to the collector that another holds too.
            held = [open_files(pid, site.collector.port) for pid in (master, *first)]
            assert [len(files) for files in held] == [2 if preload else 0, 2, 2, 2]
            assert len(set().union(*held)) == sum(map(len, held))

            for _ in range(rounds):
                before = three_at_work()
                terminated = randomly.choice(sorted(before))
                os.kill(terminated, signal.SIGTERM)
                wait_for(lambda pid=terminated: gone(pid), "the worker's end")

                before = three_at_work()
                victim = randomly.choice(sorted(before))
                begun = next(a.at for a in load.answers if a.worker == victim)
                wait_for(lambda at=begun: time.monotonic() > at + 3 * RECENT_S, "something old")
                load.more(randomly.randrange(50))
                os.kill(victim, signal.SIGKILL)
                killed[victim] = time.monotonic()

            before = three_at_work()
            os.kill(master, signal.SIGHUP)
            wait_for(lambda: all(map(gone, before)), "the end of all workers")
            three_at_work()
        assert run.server.end(signal.SIGTERM) == 0

        messages = site.messages()
        assert owed([a for a in load.answers if a.worker not in killed], messages) == []
        old = [a for a in load.answers if a.at < killed.get(a.worker, 0.0) - RECENT_S]
        young = [a for a in load.answers if a.at >= killed.get(a.worker, math.inf) - RECENT_S]
        assert {a.worker for a in old} == set(killed)
        assert owed(old, messages) == []
        # Each process that loads the application says so once: the master, or every worker there was.
        workers = load.workers()
        assert messages[LOADED] == (1 if preload else len(workers))

        verdict = site.verdict()
        with capsys.disabled():
            incomplete = sum(1 for a in young if owed([a], messages))
            print(
                f"\n{len(load.answers)} orders by {len(workers)} workers, {load.refused} not answered; "
                f"by those killed {len(old)} older than {RECENT_S} s, all here, {len(young)} younger, "
                f"{incomplete} of them incomplete; {verdict.counts}"
            )
        closed = {lines[0]["pid"]: lines[-1]["t"] == "close" for lines in site.ledgers().values()}
        assert {pid for pid, end in closed.items() if not end} == set(killed)
        assert set(closed) == (workers | {master} if preload else workers)
        assert verdict.exit_code == 3
        for producer in verdict.producers:
            if producer.closed:
                assert producer.counts.ok == producer.counts.events


@pytest.mark.slow
def test_records_queued_before_the_fork_arrive_once(tmp_path: Path) -> None:
    """The collector is away while master and workers log for the first time."""
    with Site(tmp_path) as site:
        site.collector.end(signal.SIGTERM)  # its port stays known
        with gunicorn(site, preload=True) as run:
            with Load(run.port) as load:
                wait_for(lambda: len(load.workers()) == 3, "three workers at work")
            answers = load.answers
            site.collector.start()
            site.arrived(LOADED)
            assert run.server.end(signal.SIGTERM) == 0
        messages = site.messages()
        assert messages[LOADED] == 1
        assert owed(answers, messages) == []
        assert sum(messages.values()) == 1 + 3 * len(answers)
        verdict = site.verdict()
        assert verdict.exit_code == 0 and verdict.counts.ok == verdict.counts.events
        assert len(verdict.producers) == 4


@pytest.mark.slow
def test_gunicorn_threads_and_max_requests_lose_nothing(tmp_path: Path) -> None:
    """Workers of several threads, which end by themselves."""
    options = ("--worker-class", "gthread", "--threads", "4", "--max-requests", "100")
    with Site(tmp_path) as site, gunicorn(site, *options, preload=True) as run:
        with Load(run.port) as load:
            wait_for(lambda: len(load.workers()) >= 6, "workers after workers")
            assert run.server.end(signal.SIGTERM) == 0
        assert owed(load.answers, site.messages()) == []
        verdict = site.verdict()
        assert verdict.exit_code == 0 and verdict.counts.ok == verdict.counts.events


@pytest.mark.slow
def test_gunicorn_upgrade_loses_nothing(tmp_path: Path) -> None:
    """USR2 forks and executes a second master; the first ends gracefully, the second without grace."""
    with Site(tmp_path) as site, gunicorn(site, preload=True) as run:
        with Load(run.port) as load:
            wait_for(lambda: len(load.workers()) == 3, "three workers at work")
            first = load.workers()
            os.kill(run.server.pid, signal.SIGUSR2)
            wait_for(lambda: len(load.workers() - first) == 3, "three workers of the new master")
            (second,) = children(run.server.pid) - first
            assert run.server.end(signal.SIGTERM) == 0
            wait_for(lambda: all(map(gone, first)), "the end of its workers")
            load.more(100)
            os.kill(second, signal.SIGINT)
            wait_for(lambda: gone(second), "the new master's end")
        messages = site.messages()
        assert messages[LOADED] == 2
        assert owed(load.answers, messages) == []
        verdict = site.verdict()
        assert verdict.exit_code == 0 and verdict.counts.ok == verdict.counts.events
        assert len(verdict.producers) == 8


HANGS = """
import threading
from app import app, log

@app.get("/hang")
def hang():
    log.info("about to hang")
    threading.Event().wait(600)
    return ""
"""


@pytest.mark.slow
def test_a_hanging_gunicorn_worker_delivers_its_queue(tmp_path: Path) -> None:
    """The master sends SIGABRT at the timeout: Python ends by its exit handlers."""
    (tmp_path / "hangs.py").write_text(HANGS)
    options = ("--timeout", "1", "hangs:app")
    with Site(tmp_path) as site, gunicorn(site, *options, preload=False) as run:
        connection = http.client.HTTPConnection("127.0.0.1", run.port, timeout=2 * PATIENCE)
        connection.request("GET", "/hang")
        assert connection.getresponse().status == 500
        connection.close()
        (pid,) = {e["process.pid"] for e in site.events() if e["message"] == "about to hang"}
        wait_for(lambda: gone(pid), "the worker's end")
        lines = next(lines for lines in site.ledgers().values() if lines[0]["pid"] == pid)
        assert lines[-1]["t"] == "close"
        assert run.server.end(signal.SIGTERM) == 0
        assert site.verdict().exit_code == 0
