"""Row `start`: a whole `logclient verify` of 30,000 events, from the start of the command to its end.

Almost all of it is the start of Spark. The peer is the least program that does anything with PySpark: a
session on this machine, one job of two Python tasks, and a stop. Each run is a fresh process; the page cache
is warm. Wall time ends with the command. CPU is that of the command and of all processes that it starts,
until the last of them has ended, but for Spark's Python workers: PySpark's daemon ignores SIGCHLD, and so the
system drops their time.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import verify_data
from bench.harness import ROOT, Line, NotExact, Row, Spread, claim, ratio

EVENTS = 30_000
ROUNDS = 10
ENDING_S = 60.0  # seconds for the JVM and the workers of an ended command to end
VERIFY, AGAIN = "verify", "verify (again)"
SESSION = "a PySpark session with one job"
PARTS = ("start", "pack", "compare", "total")
PROGRAM = """
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
rows = spark.sparkContext.parallelize(range(2), 2).map(abs).collect()
spark.stop()
print(len(rows))
"""


def _adopt_orphans() -> None:
    """Make processes whose parent has ended children of this one, so that their CPU is counted here."""
    pr_set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _wait_for_orphans() -> None:
    """Wait for the processes that a command has left to end."""
    end = time.monotonic() + ENDING_S
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            if time.monotonic() > end:
                raise RuntimeError("a process that the command started does not end")
            time.sleep(0.01)


def _run(command: list[str], environment: Mapping[str, str]) -> tuple[float, float, str]:
    """Run a program to its end.

    Returns:
        Its wall time and its CPU time with that of all processes it started, in seconds, and its output.
    """
    used = os.times()
    began = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, check=False
    )
    wall = time.perf_counter() - began
    _wait_for_orphans()
    now = os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return wall, cpu, done.stdout


def _verify(data: verify_data.Set, out: Path) -> tuple[float, float, dict[str, float]]:
    command = [
        sys.executable, "-m", "logclient", "verify", "--ledger", str(data.ledger),
        "--capture", str(data.capture), "--out", str(out),
    ]  # fmt: skip
    wall, cpu, _ = _run(command, {})
    verdict = json.loads((out / "verdict.json").read_text())
    total = verify_data.total(data.truth)
    wrong = [word for word in verify_data.WORDS if verdict["counts"][word] != total[word]]
    if wrong:
        raise NotExact(f"{wrong[0]}: {verdict['counts'][wrong[0]]}, there are {total[wrong[0]]}")
    return wall, cpu, verdict["seconds"]


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Run the row."""
    rounds = rounds or (2 if quick else ROUNDS)
    _adopt_orphans()
    draw = random.Random(seed)
    samples: dict[str, dict[str, list[float]]] = {}
    parts: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
        data = verify_data.make(Path(folder, "data"), EVENTS)

        def once(name: str) -> None:
            out = Path(folder, "out")
            if name == SESSION:
                wall, cpu, _ = _run([sys.executable, "-c", PROGRAM], {"SPARK_LOCAL_IP": "127.0.0.1"})
            else:
                wall, cpu, seconds = _verify(data, out)
                parts.setdefault(name, []).append(seconds)
                shutil.rmtree(out)
            clocks = samples.setdefault(name, {"process": [], "wall": []})
            clocks["process"].append(cpu)
            clocks["wall"].append(wall)

        names = [VERIFY, AGAIN, SESSION]
        for name in names:
            once(name)
        samples.clear()
        parts.clear()
        for _ in range(rounds):
            for name in draw.sample(names, len(names)):
                once(name)
    verdicts = [
        claim("A/A: verify against itself, wall", ratio(samples, AGAIN, VERIFY, "wall")),
        claim(f"{VERIFY}: seconds", Spread.of(samples[VERIFY]["wall"])),
        claim(f"{VERIFY} / {SESSION}, wall", ratio(samples, VERIFY, SESSION, "wall")),
    ]
    notes = [_parts(VERIFY, parts[VERIFY], samples[VERIFY]["wall"])]
    spread = [Line(n, {clock: Spread.of(v) for clock, v in samples[n].items()}) for n in names]
    title = f"a whole `logclient verify` of {EVENTS:,} events, against PySpark's own start and stop"
    return Row("start", title, "s", spread, verdicts, notes, {"parts": parts, "events": EVENTS})


def _parts(name: str, runs: list[dict[str, Any]], walls: list[float]) -> str:
    median = {part: Spread.of([run[part] for run in runs]).median for part in PARTS}
    median["stop and report"] = median["total"] - median["start"] - median["pack"] - median["compare"]
    median["Python's own start and end"] = Spread.of(walls).median - median.pop("total")
    return f"{name}, parts: " + ", ".join(f"{part} {seconds:.2f} s" for part, seconds in median.items())
