"""Row `import`: what `import logclient` adds to a program, and what it loads.

Each import happens in a fresh interpreter (`-I`: no user site, no environment), in random order. The
best of twenty is judged, as the target says: an import has a floor, and what is above it is the machine.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

from bench.harness import Line, Row, Spread, Verdict, holds, ratio

TIMES = 20
BOUND = 2.0
FORBIDDEN = ("dataclasses", "json", "urllib.parse", "concurrent.futures", "ssl", "sqlite3", "socket", "selectors",
             "zlib", "asyncio", "isal", "msgspec", "zmq", "websockets", "snappy", "lz4", "pyspark", "pyarrow")
CASES = {
    "logging": "import logging",
    "logging (again)": "import logging",
    "logclient": "import logclient",
    "logclient.Handler, connect": "import logclient; logclient.Handler; logclient.connect",
}
PROGRAM = """
import sys, time
wall, cpu = time.perf_counter_ns(), time.process_time_ns()
{statement}
cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
print([wall, cpu, [m for m in {forbidden} if m in sys.modules]])
"""


def _once(statement: str) -> tuple[float, float, list[str], float]:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-I", "-c", PROGRAM.format(statement=statement, forbidden=FORBIDDEN)],
                          capture_output=True, text=True, check=False,
                          env={"PATH": os.environ.get("PATH", "")})
    whole = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{statement}: {done.stderr.strip().splitlines()[-1]}")
    wall, cpu, loaded = json.loads(done.stdout.replace("'", '"'))
    return wall / 1e6, cpu / 1e6, loaded, whole * 1e3


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """The row; needs logclient importable by this interpreter under `-I`."""
    times = rounds or (5 if quick else TIMES)
    draw = random.Random(seed)
    samples: dict[str, dict[str, list[float]]] = {name: {"process": [], "wall": []} for name in CASES}
    whole: dict[str, list[float]] = {name: [] for name in CASES}
    loaded: dict[str, list[str]] = {}
    for statement in CASES.values():
        _once(statement)   # compiled files are written, pages are warm
    for _ in range(times):
        for name in draw.sample(list(CASES), len(CASES)):
            wall, cpu, loaded[name], process = _once(CASES[name])
            samples[name]["wall"].append(wall)
            samples[name]["process"].append(cpu)
            whole[name].append(process)
    best = {name: min(values["wall"]) for name, values in samples.items()}
    verdicts = [
        Verdict("A/A: logging against itself, best of each", best["logging (again)"] / best["logging"],
                *ratio(samples, "logging (again)", "logging", "wall")[1:], "", 1.0, None),
        _best(samples, best, "logclient", "<=", BOUND),
        _best(samples, best, "logclient.Handler, connect", "", 0.0),
        Verdict("forbidden modules that import logclient loads", len(loaded["logclient"]), len(loaded["logclient"]),
                len(loaded["logclient"]), "==", 0, not loaded["logclient"], "", ", ".join(loaded["logclient"])),
        Verdict("forbidden modules that Handler and connect load", n := len(loaded["logclient.Handler, connect"]),
                n, n, "==", 0, n == 0, "", ", ".join(loaded["logclient.Handler, connect"])),
    ]
    notes = [f"best of {times}, ms: " + ", ".join(f"{k} {v:.2f}" for k, v in best.items()),
             "best whole process, start to end, ms: " + ", ".join(f"{k} {min(v):.1f}" for k, v in whole.items()),
             "wall and CPU are of the import statement alone"]
    return Row("import", "import logclient against import logging, fresh interpreters", "ms",
               [Line(n, {k: Spread.of(v) for k, v in c.items()}) for n, c in samples.items()], verdicts, notes, {})


def _best(samples: dict, best: dict[str, float], name: str, op: str, bound: float) -> Verdict:
    value = best[name] / best["logging"]
    _, low, high = ratio(samples, name, "logging", "wall")
    return Verdict(f"{name} / logging, best of each", value, low, high, op, bound,
                   holds(value, op, bound) if op else None)
