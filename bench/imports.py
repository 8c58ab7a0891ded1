"""Row `import`: the time that `import logclient` adds to a program, and the modules that it loads.

Each import happens in a fresh interpreter (`-I`: no user site, no environment), in random order. The judged
figure is the best of twenty, as in the target: an import has a minimum, and the rest is noise of the machine.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

from bench.harness import Row, claim, lines

TIMES = 20
BOUND = 2.0
FORBIDDEN = (
    *(
        "dataclasses",
        "json",
        "urllib.parse",
        "concurrent.futures",
        "ssl",
        "sqlite3",
        "socket",
        "selectors",
        "zlib",
    ),
    *("asyncio", "isal", "msgspec", "zmq", "websockets", "snappy", "lz4", "pyspark", "pyarrow"),
)
FULL = "logclient.Handler, connect"
CASES = {
    "logging": "import logging",
    "logging (again)": "import logging",
    "logclient": "import logclient",
    FULL: "import logclient; logclient.Handler; logclient.connect",
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
    program = PROGRAM.format(statement=statement, forbidden=FORBIDDEN)
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    whole = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{statement}: {done.stderr.strip().splitlines()[-1]}")
    wall, cpu, loaded = json.loads(done.stdout.replace("'", '"'))
    return wall / 1e6, cpu / 1e6, loaded, whole * 1e3


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Run the row. This interpreter must be able to import logclient under `-I`."""
    times = rounds or (5 if quick else TIMES)
    draw = random.Random(seed)
    samples: dict[str, dict[str, list[float]]] = {name: {"process": [], "wall": []} for name in CASES}
    whole: dict[str, list[float]] = {name: [] for name in CASES}
    loaded: dict[str, list[str]] = {}
    for statement in CASES.values():
        _once(statement)  # writes compiled files and warms the page cache
    for _ in range(times):
        for name in draw.sample(list(CASES), len(CASES)):
            wall, cpu, loaded[name], process = _once(CASES[name])
            samples[name]["wall"].append(wall)
            samples[name]["process"].append(cpu)
            whole[name].append(process)
    best = {name: min(values["wall"]) for name, values in samples.items()}
    verdicts = [
        claim("A/A: logging against itself, best of each", best["logging (again)"] / best["logging"]),
        claim("logclient / logging, best of each", best["logclient"] / best["logging"], "<=", BOUND),
        claim("logclient with Handler and connect / logging", best[FULL] / best["logging"]),
        *(
            claim(f"forbidden modules loaded by {name}", len(loaded[name]), "==", 0, ", ".join(loaded[name]))
            for name in ("logclient", FULL)
        ),
    ]
    notes = [
        f"best of {times}, ms: " + ", ".join(f"{k} {v:.2f}" for k, v in best.items()),
        "best whole process, start to end, ms: " + ", ".join(f"{k} {min(v):.1f}" for k, v in whole.items()),
        "wall and CPU are of the import statement alone; judged is wall",
    ]
    title = "import logclient against import logging, fresh interpreters"
    return Row("import", title, "ms", lines(samples), verdicts, notes, {})
