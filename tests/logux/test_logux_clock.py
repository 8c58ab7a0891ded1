"""Wrong clocks of server and client, by an hour and more, and clocks that jump.

The server must record each action's time by its own clock at the moment the action was made.
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

from tests.support import ROOT, clean_environment
from tests.support.kill_scenes import wait_for
from tests.support.logux_server import LoguxServer
from tests.support.patience import PATIENCE

pytest.importorskip("websockets")

pytestmark = [pytest.mark.tree, pytest.mark.timeout(4 * PATIENCE)]

HOUR = 3600.0
WITHIN_MS = 100
BETWEEN = 40
"""Actions between two changes of a clock."""

_PRODUCER = (
    f"PATIENCE = {PATIENCE}"
    """
import json
import select
import sys
import time
import logclient

client = logclient.connect(sys.argv[1], token="secret", user="clock", backoff_max=0.05)
n = 0
while not select.select([sys.stdin], [], [], 0.005)[0]:
    n += 1
    client.send({"n": n, "mono": time.monotonic_ns() // 1000})
left = client.close(PATIENCE)
stats = client.stats()
print(json.dumps([n, left, stats.acked, stats.last_error, time.time()]))
"""
)


class Clock:
    """A wall clock that the test sets, for processes with its `environment`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not sys.platform.startswith("linux") or compiler is None:
            pytest.skip("no C compiler for a shifted clock")
        library = folder / "clock_shift.so"
        source = ROOT / "tests" / "clock_shift.c"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        file = folder / "clock_shift"
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._file = mmap.mmap(opened.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(file)}

    def set(self, seconds: float) -> None:
        """Shift the clock by so many seconds from now on."""
        self._file[:] = struct.pack("=q", round(seconds * 1e9))


class Run:
    """A server, and a producer in a process with another clock that sends all the time."""

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

    def wait_for_actions(self) -> None:
        """Wait for some more actions at the server."""
        target = self.written() + BETWEEN
        wait_for(lambda: self.written() >= target, PATIENCE, "actions")

    def written(self) -> int:
        return int(self.server.tell("state")["written"])

    def end(self) -> list[Any]:
        """Stop the producer, check its actions and return its report."""
        output, _ = self.process.communicate("\n", timeout=2 * PATIENCE)
        lines = list(self.server.lines())
        self.server.end()
        assert self.process.returncode == 0
        report: list[Any] = json.loads(output)
        sent, left, acked, _, _ = report
        assert (left, acked) == (0, sent)
        events = [json.loads(line["body"])["data"] for line in lines]
        assert {event["n"] for event in events} == set(range(1, sent + 1))
        # The moment of making each action, by the server's clock.
        wrong = [
            line["time"] - (line["now"] - (line["mono"] - event["mono"]) / 1000)
            for line, event in zip(lines, events, strict=True)
        ]
        assert max(map(abs, wrong)) <= WITHIN_MS
        ids = [line["metaId"] for line in lines]
        assert len(ids) == len(set(ids))
        assert len(lines) >= sent
        return report

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self.server.end()


@pytest.mark.slow
@pytest.mark.parametrize("skew", [0, HOUR, -HOUR], ids=["right", "ahead", "behind"])
def test_times_stay_true_when_the_clock_jumps(tmp_path: Path, skew: float) -> None:
    """The producer's clock jumps by an hour and two, with and without a break of the connection."""
    run = Run(tmp_path, skew)
    run.start()
    try:
        run.wait_for_actions()
        for jump in (HOUR, -HOUR, 0.0):
            run.clock.set(jump)
            run.wait_for_actions()
        for jump in (HOUR, -HOUR):
            run.clock.set(jump)
            run.server.tell("cut")
            run.wait_for_actions()
        *_, now = run.end()
    finally:
        run.close()
    assert abs(now - time.time() + HOUR) < 60  # the producer's clock was shifted


def test_times_stay_true_when_the_clock_jumps_at_connect(tmp_path: Path) -> None:
    """It jumps between question and answer, from which the difference of the clocks is computed."""
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
            run.wait_for_actions()
            run.server.tell("cut")
        run.wait_for_actions()
        run.end()
    finally:
        run.close()
