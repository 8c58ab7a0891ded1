"""Prometheus: the counts of all clients, of one process and of gunicorn's, through real scrapes."""

from __future__ import annotations

import gc
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import logclient
from logclient.delivery.stats import Stats
from logclient.integrations import prometheus
from logclient.testing.lumberjack import Collector
from tests.support import ROOT, clean_environment
from tests.support.app_servers import EXAMPLES, Load, Running, Site, program, serving, wait_for
from tests.support.forks import run_in_child
from tests.support.patience import PATIENCE, wait_until

prometheus_client = pytest.importorskip("prometheus_client")

Samples = dict[tuple[str, str], float]
"""Values by name, without its prefix, and reason."""


def _samples(registry: object) -> Samples:
    found: Samples = {}
    for metric in registry.collect():  # type: ignore[attr-defined]
        for sample in metric.samples:
            if sample.name.startswith("logclient_") and not sample.name.endswith("_created"):
                key = sample.name.removeprefix("logclient_"), sample.labels.get("reason", "")
                found[key] = found.get(key, 0) + sample.value
    return found


class TestOneProcess:
    @pytest.fixture
    def registry(self) -> object:
        found = prometheus_client.CollectorRegistry()
        prometheus.register(found)
        return found

    def test_counts_equal_those_of_the_clients(self, registry: object) -> None:
        with Collector() as server:
            before = _samples(registry)
            with logclient.connect(server.url, max_event_bytes=100) as client:
                for n in range(50):
                    client.send({"n": n, "nan": float("nan")})
                with pytest.raises(logclient.EncodeError):
                    client.send({"m": "m" * 200})
                assert client.flush(PATIENCE) == 0
                now = _samples(registry)
                assert now["connected", ""] == 1
                assert now["events_queued", ""] == now["events_in_flight", ""] == 0
            client.send({"n": 0})
        after = _samples(registry)
        grown = {key: after[key] - before.get(key, 0) for key in after}
        assert grown["events_sent_total", ""] == 51
        assert grown["events_acked_total", ""] == grown["values_sanitized_total", ""] == 50
        assert grown["events_failed_total", "too_large"] == 1
        assert grown["events_refused_total", ""] == grown["connects_total", ""] == 1
        assert ("connected", "") not in after or after["connected", ""] == 0

    def test_closed_clients_are_freed_without_a_scrape(self, registry: object) -> None:
        """A service that nobody scrapes may make clients for years."""
        freed: list[int] = []
        with Collector() as server:
            for n in range(5):
                with logclient.connect(server.url) as client:
                    weakref.finalize(client._sender, freed.append, n)
                    client.send({"n": n})
                del client
            with logclient.connect(server.url):
                wait_until(lambda: len(freed) == 5)
        assert _samples(registry)["events_acked_total", ""] >= 5

    def test_a_scrape_that_is_interrupted_loses_no_client(
        self, registry: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Collector() as server, logclient.connect(server.url) as client:
            client.send({"n": 1})
            assert client.flush(PATIENCE) == 0
            before = _samples(registry)

            def interrupted() -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
                context.setattr(type(client._sender), "stats", lambda sender: interrupted())
                _samples(registry)
            assert _samples(registry).keys() == before.keys()

    def test_a_registry_that_is_gone_keeps_no_client(self) -> None:
        gc.collect()
        with Collector() as server:
            prometheus.register(prometheus_client.CollectorRegistry())
            gc.collect()
            with logclient.connect(server.url) as client:
                engine = weakref.ref(client._sender)
            del client
        wait_until(lambda: engine() is None)

    def test_counters_keep_clients_that_are_gone(self, registry: object) -> None:
        last: Samples = {}
        with Collector() as server:
            for n in range(5):
                with logclient.connect(server.url) as client:
                    client.send({"n": n})
                    assert client.flush(PATIENCE) == 0
                del client
                now = _samples(registry)
                assert all(now[key] >= last[key] for key in last if key[0].endswith("_total"))
                last = now
        url = f"lumberjack://127.0.0.1:{server.port}"
        assert registry.get_sample_value("logclient_events_acked_total", {"url": url}) == 5  # type: ignore[attr-defined]

    def test_a_scrape_has_no_option_and_no_secret(self) -> None:
        program = (
            "import logclient, sys, prometheus_client\n"
            "from logclient.integrations import prometheus\n"
            "prometheus.register()\n"
            "client = logclient.connect('logux://127.0.0.1:9?window=9', token='hush')\n"
            "client.send({'n': 1})\n"
            "server, _ = prometheus_client.start_http_server(0, '127.0.0.1')\n"
            "print(server.server_port, flush=True)\n"
            "sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", program]
        environment = clean_environment(PYTHONPATH=os.pathsep.join(sys.path))
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                text = answer.read().decode()
            process.kill()
        assert 'logclient_events_sent_total{url="logux://127.0.0.1:9"} 1.0' in text
        assert "hush" not in text and "window" not in text

    def test_a_forked_child_counts_from_zero(self, registry: object) -> None:
        with Collector() as server, logclient.connect(server.url) as client:
            client.send({"n": 1})
            assert client.flush(PATIENCE) == 0
            assert _samples(registry)["events_sent_total", ""] >= 1

            def child() -> None:
                assert not _samples(registry).get(("events_sent_total", ""))

            run_in_child(child)

    def test_a_forked_child_counts_no_client_that_has_ended(self, registry: object) -> None:
        with Collector() as server:
            with logclient.connect(server.url) as client:
                client.send({"n": 1})
            engine = weakref.ref(client._sender)
            assert _samples(registry)["events_sent_total", ""] >= 1
            del client
            with logclient.connect(server.url):
                wait_until(lambda: engine() is None)

            def child() -> None:
                assert not _samples(registry).get(("events_sent_total", ""))

            run_in_child(child)

    def test_a_fork_during_a_scrape_leaves_the_child_its_clients(
        self, registry: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reads, forked = threading.Event(), threading.Event()
        with Collector() as server, logclient.connect(server.url) as client:
            stats = client._sender.stats

            def slow() -> Stats:
                if threading.current_thread() is scraper:
                    reads.set()
                    forked.wait(PATIENCE)
                return stats()

            monkeypatch.setattr(client._sender, "stats", slow)
            scraper = threading.Thread(target=_samples, args=(registry,))
            scraper.start()
            assert reads.wait(PATIENCE)

            def child() -> None:
                client.send({"n": 1})
                assert _samples(registry)["events_sent_total", ""] == 1

            run_in_child(child)
            forked.set()
            scraper.join(PATIENCE)

    def test_scrapes_from_many_threads_agree(self, registry: object) -> None:
        wrong: list[str] = []
        with Collector() as server:
            stop = threading.Event()

            def scrape() -> None:
                last = 0.0
                while not stop.is_set():
                    now = _samples(registry).get(("events_sent_total", ""), 0.0)
                    if now < last:
                        wrong.append(f"{last} -> {now}")
                    last = now

            threads = [threading.Thread(target=scrape) for _ in range(3)]
            for thread in threads:
                thread.start()
            for n in range(20):
                with logclient.connect(server.url) as client:
                    client.send({"n": n})
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert wrong == []


def test_every_name_is_documented() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = [f"logclient_{name}_total" for name in prometheus.COUNTERS]
    names += [f"logclient_{name}" for name in prometheus.GAUGES]
    assert [name for name in names if f"`{name}`" not in page] == []


APP = """
import sys
sys.path.insert(0, {folder!r})
from app import app
from logclient.integrations import prometheus
prometheus.register()
"""


@contextmanager
def _gunicorn(site: Site, metrics: Path, preload: bool) -> Iterator[Running]:
    folder = EXAMPLES / "gunicorn"
    config = site.folder / "gunicorn.conf.py"
    example = (folder / "gunicorn.conf.py").read_text()
    config.write_text(f"{example}\npreload_app = {preload}\nbind = '127.0.0.1:0'\n")
    (site.folder / "metrics_app.py").write_text(APP.format(folder=str(folder)))
    metrics.mkdir()
    command = [program("gunicorn"), "--config", str(config), "--pythonpath", str(site.folder)]
    more = {"LOG_URL": site.url, "HOME": str(site.folder), "PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    with serving([*command, "metrics_app:app"], folder, site.folder / "gunicorn.out", **more) as server:
        port = int(server.said(r"Listening at: http://127\.0\.0\.1:(\d+)")[0])
        yield Running(site, server, port)


@pytest.mark.slow
@pytest.mark.tree
@pytest.mark.parametrize("preload", [True, False], ids=["preload", "no-preload"])
@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_counters_of_gunicorn_never_go_back(kill: signal.Signals, preload: bool, tmp_path: Path) -> None:
    pytest.importorskip("flask")
    draw = random.Random(f"{kill} {preload}")
    metrics = tmp_path / "metrics"
    last: Samples = {}

    def scrape() -> Samples:
        nonlocal last
        now = _written(metrics)
        lower = {key: (last[key], now.get(key)) for key in last if now.get(key, -1.0) < last[key]}
        assert {key: pair for key, pair in lower.items() if key[0].endswith("_total")} == {}
        last = now
        return now

    with Site(tmp_path) as site, _gunicorn(site, metrics, preload) as run:
        with Load(run.port) as load:
            killed: set[int] = set()

            def three_at_work() -> list[int]:
                since = len(load.answers)
                wait_for(lambda: len(load.workers(since) - killed) == 3, "three workers at work")
                return sorted(load.workers(since) - killed)

            for _ in range(3):
                victim = draw.choice(three_at_work())
                scrape()
                os.kill(victim, kill)
                killed.add(victim)
                load.more(50)
                scrape()
            three_at_work()
            load.stop()
        run.server.end(signal.SIGTERM)
        final = scrape()
        closes = [lines[-1] for lines in site.ledgers().values() if lines[-1]["t"] == "close"]
        listed = sum(close["acked"] for close in closes)
        if kill == signal.SIGTERM:
            assert len(closes) == len(site.ledgers())
            assert final["events_acked_total", ""] == listed == final["events_sent_total", ""]
        else:
            arrived = len({event["event.id"] for event in site.events()})
            assert listed <= final["events_acked_total", ""] <= arrived


NOT_WRITTEN = "logclient: the counts for Prometheus are not written: no such file or directory\n"


def _environment(folder: Path) -> dict[str, str]:
    return clean_environment(PYTHONPATH=os.pathsep.join(sys.path), PROMETHEUS_MULTIPROC_DIR=str(folder))


def _written(folder: Path) -> Samples:
    """Return what the files of all processes say."""
    from prometheus_client import multiprocess

    registry = prometheus_client.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(folder))
    found: list[Samples] = []

    def read() -> bool:
        try:
            found.append(_samples(registry))
        except struct.error:  # prometheus_client has made a file, and not filled it yet
            return False
        return True

    wait_until(read, "every file has its first bytes")
    return found[0]


def _sent(program: str, folder: Path) -> float:
    """Run a program that sends to a collector; return what it and its children have counted in the files."""
    with Collector() as server:
        command = [sys.executable, "-W", "ignore", "-c", program, server.url]
        subprocess.run(command, env=_environment(folder), timeout=2 * PATIENCE, check=True)
    return _written(folder)["events_sent_total", ""]


def test_the_end_of_a_process_writes_its_last_counts(tmp_path: Path) -> None:
    program = (
        "import logclient, sys\n"
        "from logclient.integrations import prometheus\n"
        "prometheus.EVERY = 3600.0\n"
        "prometheus.register()\n"
        "client = logclient.connect(sys.argv[1])\n"
        "for n in range(7): client.send({'n': n})\n"
    )
    assert _sent(program, tmp_path) == 7


def test_a_signal_ends_a_process_that_holds_the_lock_of_the_counts(tmp_path: Path) -> None:
    program = (
        "import logclient, signal, sys\n"
        "from logclient.integrations import prometheus\n"
        "prometheus.register()\n"
        "logclient.flush_on_sigterm()\n"
        "with prometheus._files()._lock: signal.raise_signal(signal.SIGTERM)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=_environment(tmp_path), timeout=2 * PATIENCE
    )
    assert done.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_an_update_is_written_without_a_scrape(tmp_path: Path) -> None:
    program = (
        "import logclient, sys\n"
        "from logclient.integrations import prometheus\n"
        "prometheus.register()\n"
        "client = logclient.connect('lumberjack://127.0.0.1:9')\n"
        "for n in range(7): client.send({'n': n})\n"
        "print('sent', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(tmp_path),
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        wait_until(
            lambda: _written(tmp_path).get(("events_sent_total", "")) == 7, "the counts are in the files"
        )
        process.kill()


def test_a_failed_update_is_reported_and_made_later(tmp_path: Path) -> None:
    program = (
        "import logclient, sys\n"
        "from logclient.integrations import prometheus\n"
        "prometheus.EVERY = 0.01\n"
        "prometheus.register()\n"
        "client = logclient.connect(sys.argv[1])\n"
        "for n in range(7): client.send({'n': n})\n"
        "sys.stdin.read()\n"
    )
    folder = tmp_path / "later"
    with (
        Collector() as server,
        subprocess.Popen(
            [sys.executable, "-c", program, server.url],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(folder),
        ) as process,
    ):
        assert process.stderr is not None
        assert process.stderr.readline() == NOT_WRITTEN
        folder.mkdir()
        wait_until(
            lambda: _written(folder).get(("events_sent_total", "")) == 7, "the counts are in the files"
        )
        process.kill()


def test_the_end_of_a_process_reports_that_its_counts_are_lost(tmp_path: Path) -> None:
    program = (
        "import logclient, sys\n"
        "from logclient.integrations import prometheus\n"
        "prometheus.EVERY = 3600.0\n"
        "prometheus.register()\n"
        "logclient.connect(sys.argv[1]).send({'n': 1})\n"
    )
    with Collector() as server:
        command = [sys.executable, "-c", program, server.url]
        done = subprocess.run(
            command, env=_environment(tmp_path / "missing"), stderr=subprocess.PIPE, text=True, check=True
        )
    assert done.stderr == NOT_WRITTEN


def test_a_child_writes_after_its_first_update_has_failed(tmp_path: Path) -> None:
    program = (
        "import logclient, os, resource, sys\n"
        "from logclient.integrations import prometheus\n"
        "prometheus.EVERY = 3600.0\n"
        "files = prometheus.register()\n"
        "client = logclient.connect(sys.argv[1])\n"
        "client.send({'n': 1})\n"
        "files.update()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    client.send({'n': 2})\n"
        "    before = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))\n"
        "    try: files.update()\n"
        "    except OSError: resource.setrlimit(resource.RLIMIT_NOFILE, before)\n"
        "    files.update()\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert _sent(program, tmp_path) == 2


def test_registering_again_adds_nothing(tmp_path: Path) -> None:
    """As in the module of an application, and in gunicorn's post_fork."""
    program = (
        "import logclient, os, sys\n"
        "from logclient.integrations import prometheus\n"
        "files = prometheus.register()\n"
        "child = os.fork()\n"
        "prometheus.register()\n"
        "with logclient.connect(sys.argv[1]) as client:\n"
        "    client.send({'n': 1})\n"
        "files.update()\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert _sent(program, tmp_path) == 2


def test_a_fork_during_an_update_leaves_the_child_no_held_lock(tmp_path: Path) -> None:
    program = (
        "import logclient, os, signal, sys, threading\n"
        "from prometheus_client.mmap_dict import MmapedDict\n"
        "from logclient.integrations import prometheus\n"
        "prometheus.EVERY = 3600.0\n"
        "files = prometheus.register()\n"
        "client = logclient.connect(sys.argv[1])\n"
        "client.send({'n': 1})\n"
        "assert client.flush(20) == 0\n"
        "writes, forked = threading.Event(), threading.Event()\n"
        "write = MmapedDict.write_value\n"
        "def slow(*arguments):\n"
        "    if not writes.is_set():\n"
        "        writes.set()\n"
        "        forked.wait(0.5)\n"  # a fork that does not wait for it comes now
        "    write(*arguments)\n"
        "MmapedDict.write_value = slow\n"
        "updater = threading.Thread(target=files.update)\n"
        "updater.start()\n"
        "writes.wait()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(20)\n"
        "    client.send({'n': 2})\n"
        "    client.flush(20)\n"
        "    forked.set()\n"
        "    files.update()\n"
        "    os._exit(0)\n"
        "forked.set()\n"
        "updater.join()\n"
        "files.update()\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert _sent(program, tmp_path) == 2
