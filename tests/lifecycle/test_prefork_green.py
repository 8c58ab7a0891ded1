"""gunicorn's gevent workers: requests, TERM and HUP."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import missing, need
from tests.support.app_servers import EXAMPLES, Load, Server, Site, gone, owed, program, serving, wait_for

pytestmark = pytest.mark.tree


@contextmanager
def gevent(site: Site, preload: bool = True) -> Iterator[tuple[Server, int]]:
    """gunicorn with the sample application; its workers are patched after the master loaded it."""
    installed("gevent")
    need("flask")
    config = site.folder / "gunicorn.conf.py"
    example = (EXAMPLES / "gunicorn" / "gunicorn.conf.py").read_text()
    config.write_text(f"{example}\npreload_app = {preload}\nbind = '127.0.0.1:0'\nworker_class = 'gevent'\n")
    command = [program("gunicorn"), "--config", str(config), "app:app"]
    out = site.folder / "gunicorn.out"
    with serving(command, EXAMPLES / "gunicorn", out, LOG_URL=site.url, HOME=str(site.folder)) as server:
        yield server, int(server.said(r"Listening at: http://127\.0\.0\.1:(\d+)")[0])


def installed(framework: str) -> None:
    from importlib.util import find_spec

    if find_spec(framework) is None:
        missing(f"{framework} is not installed")


def through_signals(site: Site, server: Server, port: int, requests: int, rounds: int) -> Load:
    """Load all the time; one worker gets TERM, then the master HUP, and so on; in the end TERM for all."""
    with Load(port) as load:
        for turn in range(rounds):
            load.more(max(1, (requests - len(load.answers)) // (rounds + 1 - turn)))
            ended = load.at_work(3)
            if turn % 2:
                os.kill(server.pid, signal.SIGHUP)
            else:
                ended = {min(ended)}
                os.kill(min(ended), signal.SIGTERM)
            wait_for(lambda ended=ended: all(map(gone, ended)), "the end of workers")
        load.at_work(3)
        load.more(max(1, requests - len(load.answers)))
        assert server.end(signal.SIGTERM) == 0
    return load


LATER = pytest.param(partial(gevent, preload=False), marks=pytest.mark.long, id="gevent-no-preload")


@pytest.mark.parametrize("framework", [gevent, LATER])
def test_green_workers_deliver_through_signals(framework: Any, tmp_path: Path) -> None:
    with Site(tmp_path) as site, framework(site) as (server, port):
        load = through_signals(site, server, port, 300, 2)
        assert owed(load.answers, site.messages()) == []
        verdict = site.verdict()
        assert verdict.exit_code == 0 and verdict.counts.ok == verdict.counts.events
        assert len(verdict.producers) >= 7


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["lumberjack", "logux"])
@pytest.mark.parametrize("framework", [gevent])
def test_green_workers_deliver_20_000_requests(
    framework: Any, scheme: str, tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every record of every answered request arrives, and the verifier finds nothing else to report."""
    from logclient.verify.job import run as verify

    with Site(tmp_path, scheme) as site, framework(site) as (server, port):
        load = through_signals(site, server, port, 20_000, 8)
        site.collector.end(signal.SIGTERM)
        verdict = verify(site.ledger, site.capture, spark=spark)
    counts = verdict.counts
    with capsys.disabled():
        print(
            f"\n{framework.__name__}, {scheme}: {len(load.answers)} requests answered by "
            f"{len(load.workers())} workers, {load.refused} not answered; exit {verdict.exit_code}, {counts}"
        )
    assert len(load.answers) >= 20_000
    assert verdict.exit_code == 0
    assert counts.ok == counts.events >= 3 * len(load.answers)
    if scheme == "lumberjack":
        assert owed(load.answers, site.messages()) == []
