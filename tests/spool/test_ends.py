"""The ends of processes: what they leave in the spool, as real processes do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spool.scene import NOBODY, Scene
from tests.support import clean_environment
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.slow

MODES = ("always", "overflow")

PROGRAM = """
import atexit, json, logging, os, signal, sys
url, options = json.loads(sys.argv[1])
late = []
atexit.register(lambda: [call() for call in late])  # runs after logclient's own
import logclient

def client(**more):
    return logclient.connect(url, **options, **more)

"""

DELIVERED = {
    "nothing was logged": "c = client()",
    "end of the program": "c = client(); c.send('one')",
    "a handler": "h = logclient.Handler(url, **options); logging.root.addHandler(h); logging.error('one')",
    "sys.exit": "c = client(); c.send('one'); sys.exit(0)",
    "an exception": "c = client(); c.send('one'); sys.excepthook = lambda *e: None; 1 / 0",
    "dropped just before": "c = client(); c.send('one'); del c",
    "never used, dropped": "c = client(); del c",
    "SIGTERM": "c = client(); c.send('one'); logclient.flush_on_sigterm(); os.kill(os.getpid(), 15)",
    "a late event": "c = client(); c.send('one'); late.append(lambda: c.send('late'))",
    "only a late event": "c = client(); late.append(lambda: c.send('late'))",
    "a late client": "late.append(lambda: globals().update(c=client()) or c.send('late'))",
    "a child": "c = client(); c.send('one'); pid = os.fork(); c.send('two'); pid and os.waitpid(pid, 0)",
    "a child that does nothing": "c = client(); c.send('one'); pid = os.fork(); pid and os.waitpid(pid, 0)",
    "two clients": "c = client(); d = client(); c.send('one'); d.send('two')",
}


def _run(scene: Scene, text: str, url: str, **options: object) -> subprocess.CompletedProcess[str]:
    given = {**scene.options, "atexit_timeout": PATIENCE, **options}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + text, json.dumps([url, given])],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", DELIVERED)
def test_a_process_that_has_delivered_leaves_no_files(end: str, mode: str, tmp_path: Path) -> None:
    with Scene(tmp_path, spool_mode=mode, spool_bytes="12MiB") as scene:
        done = _run(scene, DELIVERED[end], scene.url)
        assert done.stderr == ""
        assert done.returncode in (0, 1, -15)
        assert list(scene.spool.iterdir()) == []
        sends = DELIVERED[end].count("send(") + DELIVERED[end].count("error(") + (end == "a child")
        assert len(scene.arrived()) == sends


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["pass", "c.close(0.0)", "del c"])
def test_a_process_that_has_not_delivered_keeps_only_what_it_needs(
    mode: str, end: str, tmp_path: Path
) -> None:
    with Scene(tmp_path, spool_mode=mode, spool_bytes="64MiB") as scene:
        text = f"c = client()\nfor n in range(6000): c.send({{'n': n, 'message': 'm' * 1000}})\n{end}"
        done = _run(scene, text, NOBODY, atexit_timeout=0.2)
        assert done.returncode == 0, done.stderr
        names = {path.name[20:] for path in scene.spool.iterdir()}
        log = set() if end == "pass" else {".000000.log"}  # of a closed client, for the end of the machine
        assert names == {".000000.seg", ".000001.seg", ".lock"} | log
        scene.drain()
        assert sorted(event["n"] for event in scene.events()) == list(range(6000))


@pytest.mark.parametrize("mode", MODES)
def test_a_late_event_without_a_server_is_kept(mode: str, tmp_path: Path) -> None:
    """Before it, all is delivered, and the files are gone."""
    with Scene(tmp_path, spool_mode=mode, spool_bytes="64MiB") as scene:
        text = """
from logclient.testing.lumberjack import Collector
server = Collector().start()
c = logclient.connect(server.url, **options)
c.send({"n": 0})
c.flush(30)
def last():
    print(os.listdir(options["spool"]), c.stats().acked)
    server.stop()
    c.send({"n": 1})
late.append(last)
"""
        done = _run(scene, text, NOBODY, atexit_timeout=1.0)
        assert done.stdout == "[] 1\n", done.stderr
        if mode == "always":
            assert sorted(path.name[20:] for path in scene.spool.iterdir()) == [".000000.seg", ".lock"]
            scene.drain()
            assert [event["n"] for event in scene.events()] == [1]


@pytest.mark.parametrize("mode", MODES)
def test_the_first_events_of_many_threads_of_a_child_are_all_taken(mode: str, tmp_path: Path) -> None:
    """They come before the child has files; one thread makes them."""
    with Scene(tmp_path, spool_mode=mode, spool_bytes="12MiB") as scene:
        text = """
import threading
c = client()
for _ in range(10):
    if (pid := os.fork()):
        os.waitpid(pid, 0)
        continue
    together, sent = threading.Event(), []
    def first():
        while not together.is_set():
            pass
        sent.append(c.send("m"))
    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    together.set()
    for thread in threads:
        thread.join()
    print(sorted(sent), c.close(), flush=True)
    os._exit(0)
"""
        done = _run(scene, text, scene.url)
        assert done.stdout.splitlines() == [f"{list(range(1, 9))} 0"] * 10, done.stderr
        assert len(scene.arrived()) == 80
