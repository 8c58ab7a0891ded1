"""Clocks that are wrong, by an hour and more, and that jump: the server's and the client's.

What a server keeps as an action's time is to be its own clock's at the moment the action was made.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.logux_server import LoguxServer
from tests.support import ROOT, clean_environment
from tests.support.kill_scenes import wait_for
from tests.support.patience import PATIENCE

pytest.importorskip("websockets")

pytestmark = [pytest.mark.tree, pytest.mark.timeout(4 * PATIENCE)]

HOUR = 3600.0
WITHIN_MS = 100
BETWEEN = 40
"""Actions between two things that happen to a clock."""

_PRODUCER = f"PATIENCE = {PATIENCE}" + """
import json
import select
import sys
import time
import logclient

client = logclient.connect(sys.argv[1], token="secret", user="clock", backoff_min=0.01, backoff_max=0.05)
n = 0
while not select.select([sys.stdin], [], [], 0.005)[0]:
    n += 1
    client.send({"n": n, "mono": time.monotonic_ns() // 1000})
left = client.close(PATIENCE)
stats = client.stats()
print(json.dumps([n, left, stats.acked, stats.last_error, time.time()]))
"""


class Clock:
    """A wall clock that says what it is told to, for the processes with its `environment`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not sys.platform.startswith("linux") or compiler is None:
            pytest.skip("no compiler for a clock of its own")
        library = folder / "clock_shift.so"
        source = ROOT / "tests" / "clock_shift.c"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        file = folder / "clock_shift"
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._file = mmap.mmap(opened.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(file)}

    def set(self, seconds: float) -> None:
        """Wrong by so many seconds, from now on."""
        self._file[:] = struct.pack("=q", round(seconds * 1e9))


class Run:
    """A server, and a producer in a process with another clock, that sends all the time."""

    def __init__(self, folder: Path, skew: float, **options: Any) -> None:
        self.server = LoguxServer(folder, skew=skew * 1000, **options)
        self.server.start()
        self.clock = Clock(folder)
        self._seen = 0

    def start(self) -> None:
        environment = clean_environment(PYTHONPATH=os.pathsep.join(sys.path), **self.clock.environment)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PRODUCER, self.server.url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def flows(self) -> None:
        """Wait for some more actions at the server."""
        target = self.written() + BETWEEN
        wait_for(lambda: self.written() >= target, PATIENCE, "actions")

    def written(self) -> int:
        return int(self.server.tell("state")["written"])

    def end(self) -> list[Any]:
        """What the producer says at its end."""
        told, _ = self.process.communicate("\n", timeout=2 * PATIENCE)
        lines = list(self.server.lines())
        self.server.end()
        assert self.process.returncode == 0
        said: list[Any] = json.loads(told)
        sent, left, acked, _, _ = said
        assert (left, acked) == (0, sent)
        events = [json.loads(line["body"])["data"] for line in lines]
        assert {event["n"] for event in events} == set(range(1, sent + 1))
        # What was made when, by the clock of the server.
        wrong = [
            line["time"] - (line["now"] - (line["mono"] - event["mono"]) / 1000)
            for line, event in zip(lines, events, strict=True)
        ]
        assert max(map(abs, wrong)) <= WITHIN_MS
        ids = [line["metaId"] for line in lines]
        assert len(ids) == len(set(ids))
        assert len(lines) >= sent
        return said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.server.end()


@pytest.mark.parametrize("skew", [0, HOUR, -HOUR], ids=["right", "ahead", "behind"])
def test_a_clock_that_jumps(tmp_path: Path, skew: float) -> None:
    """The producer's, by an hour and two, on a connection and together with a break of it."""
    run = Run(tmp_path, skew)
    run.start()
    try:
        run.flows()
        for jump in (HOUR, -HOUR, 0.0):
            run.clock.set(jump)
            run.flows()
        for jump in (HOUR, -HOUR):
            run.clock.set(jump)
            run.server.tell("cut")
            run.flows()
        *_, now = run.end()
    finally:
        run.close()
    assert abs(now - time.time() + HOUR) < 60  # it was another clock


def test_a_clock_that_jumps_while_it_connects(tmp_path: Path) -> None:
    """Between question and answer, from which the difference of the clocks is told."""
    run = Run(tmp_path, HOUR, auth=300)
    run.clock.set(-HOUR)
    run.start()
    try:
        for jump in (HOUR, 0.0):
            wait_for(
                lambda: any("nodeId" in client for client in run.server.tell("state")["clients"]),
                30, "a connection",
            )  # fmt: skip
            run.clock.set(jump)
            run.flows()
            run.server.tell("cut")
        run.flows()
        run.end()
    finally:
        run.close()
