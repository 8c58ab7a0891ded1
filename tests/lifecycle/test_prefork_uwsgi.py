"""uwsgi with the sample application of docs/examples/uwsgi: three workers, real requests, signals."""

from __future__ import annotations

import http.client
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.app_servers import (
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
)
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.tree

RECENT_S = 0.2
LOADED = "application loaded"


class Running(NamedTuple):
    site: Site
    server: Server
    port: int


@contextmanager
def uwsgi(site: Site, **lines: str) -> Iterator[Running]:
    """The example's configuration on a port of the system's; `lines` replaces what is there."""
    ini = (EXAMPLES / "uwsgi" / "uwsgi.ini").read_text()
    for name, line in {"http-socket": "http-socket = 127.0.0.1:0", **lines}.items():
        ini, n = re.subn(rf"(?m)^{name} = .*$", line, ini)
        assert n == 1, name
    (site.folder / "uwsgi.ini").write_text(ini)
    command = [program("uwsgi"), "--ini", str(site.folder / "uwsgi.ini")]
    out = site.folder / "uwsgi.out"
    with serving(command, EXAMPLES / "uwsgi", out, LOG_URL=site.url) as server:
        port = int(server.said(r"bound to TCP address 127\.0\.0\.1:(\d+)")[0])
        yield Running(site, server, port)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hooks", "no-hooks", "lazy"])
def test_uwsgi_workers_deliver_through_signals(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One worker ends gracefully, one by -9, in the end the master: under load all the time."""
    lines = {
        "hooks": {},
        "no-hooks": {"py-call-uwsgi-fork-hooks": ""},
        "lazy": {"py-call-uwsgi-fork-hooks": "lazy-apps = true"},
    }[way]
    with Site(tmp_path) as site, uwsgi(site, **lines) as run:
        site.arrived(LOADED, 3 if way == "lazy" else 1)
        with Load(run.port) as load:
            wait_for(lambda: len(load.workers()) == 3, "three workers at work")
            load.more(100)
            master, first = run.server.pid, load.workers()
            site.heard(first)
            if way == "no-hooks":  # a sender beside a fork from C would now and then stop the child for ever
                assert len(os.listdir(f"/proc/{master}/task")) == 1
            held = [open_files(pid, site.collector.port) for pid in (master, *first)]
            assert [len(files) for files in held] == [0 if way == "lazy" else 2, 2, 2, 2]
            assert len(set().union(*held)) == sum(map(len, held))

            ended, killed, _ = sorted(first)
            os.kill(ended, signal.SIGHUP)
            wait_for(lambda: gone(ended), "the worker's end")
            since = len(load.answers)
            wait_for(lambda: load.workers(since) - first, "a new worker")
            load.more(100)

            os.kill(killed, signal.SIGKILL)
            moment = time.monotonic()
            load.at_work(3, {killed})
            load.more(100)
            os.kill(run.server.pid, signal.SIGTERM)  # under load: a request at hand is answered
            run.server.wait()
        messages = site.messages()
        assert owed([a for a in load.answers if a.worker != killed], messages) == []
        of_killed = [a for a in load.answers if a.worker == killed]
        old = [a for a in of_killed if a.at < moment - RECENT_S]
        assert len(old) > 10
        assert owed(old, messages) == []
        workers = load.workers()
        assert messages[LOADED] == (len(workers) if way == "lazy" else 1)

        verdict = site.verdict()
        with capsys.disabled():
            print(
                f"\n{len(load.answers)} orders by {len(workers)} workers, {load.refused} not answered; "
                f"{verdict.counts}"
            )
        closed = {lines[0]["pid"]: lines[-1]["t"] == "close" for lines in site.ledgers().values()}
        # uwsgi's master runs no exit handler of Python's.
        assert {pid for pid, end in closed.items() if not end} == {killed} | set(closed) - workers
        assert set(closed) == (workers if way == "lazy" else workers | {master})
        assert verdict.exit_code == 3
        for producer in verdict.producers:
            if producer.closed:
                assert producer.counts.ok == producer.counts.events


WAITS = """
import threading
from app import application as quick, log

def application(environ, start_response):
    if environ["PATH_INFO"] != "/wait":
        return quick(environ, start_response)
    log.info("waits")
    threading.Event().wait(600)
"""


@pytest.mark.slow
def test_sigint_ends_uwsgi_workers_without_false_ledgers(tmp_path: Path) -> None:
    """Exit handlers run in an idle worker and not in a busy one."""
    (tmp_path / "waits.py").write_text(WAITS)
    lines = {"wsgi-file": f"module = waits\npythonpath = {EXAMPLES / 'uwsgi'}\npythonpath = {tmp_path}"}
    with Site(tmp_path) as site, uwsgi(site, **lines) as run:
        with Load(run.port) as load:
            wait_for(lambda: len(load.workers()) == 3, "three workers at work")
        connection = http.client.HTTPConnection("127.0.0.1", run.port, timeout=2 * PATIENCE)
        connection.request("GET", "/wait")
        site.arrived("waits")
        (busy,) = {event["process.pid"] for event in site.events() if event["message"] == "waits"}
        assert run.server.end(signal.SIGINT) == 0
        connection.close()
        assert owed(load.answers, site.messages()) == []
        ends = {lines[0]["pid"]: lines[-1]["t"] for lines in site.ledgers().values()}
        assert {ends[worker] for worker in load.workers() - {busy}} == {"close"}
        assert ends[busy] != "close"
        site.verdict()


@pytest.mark.long  # uwsgi takes its time
def test_recycled_uwsgi_workers_deliver_all(tmp_path: Path) -> None:
    """They end by max-requests."""
    with Site(tmp_path) as site, uwsgi(site, processes="processes = 3\nmax-requests = 100") as run:
        with Load(run.port) as load:
            wait_for(lambda: len(load.workers()) >= 6, "workers after workers")
            os.kill(run.server.pid, signal.SIGTERM)
            run.server.wait()
        assert owed(load.answers, site.messages()) == []
        assert site.verdict().counts.unknown == 0


STARVED = """
import logging, sys, types
uwsgi = types.ModuleType("uwsgi")  # as a worker of uwsgi 2.0.23 without enable-threads has it
uwsgi.has_threads, uwsgi.opt = 0, {}
uwsgi.worker_id, uwsgi.mule_id, uwsgi.i_am_the_spooler = lambda: 1, lambda: 0, lambda: False
sys.modules["uwsgi"] = uwsgi
import app
"""


def test_uwsgi_without_threads_is_reported_and_delivers(tmp_path: Path) -> None:
    """One line names the option to set; the records are delivered at the exit."""
    (tmp_path / "starved.py").write_text(STARVED)
    command = [sys.executable, "starved.py"]
    with Site(tmp_path) as site:
        path = str(EXAMPLES / "uwsgi")
        with serving(command, tmp_path, tmp_path / "out", path=path, LOG_URL=site.url) as process:
            assert process.wait() == 0
        assert process.text.replace(f"{LOADED}\n", "", 1) == (
            f"logclient: {site.url}: uwsgi runs no threads between requests, "
            "so records wait for the next one: set enable-threads = true\n"
        )
        assert site.messages() == {LOADED: 1}
