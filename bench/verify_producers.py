"""Row `verify-producers`: what `logclient verify` costs with many small producers, and with a large one.

The same number of events (`--events`, 10 M) comes from 100 producers, from a producer for each 1,000 events,
and from 100 producers of which one has nine of ten events. 100,000 ledgers of one event come on top. Every
answer is compared with the truth of the generator.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from bench import verify, verify_data
from bench.harness import ROOT, Line, Row, Spread, Verdict, claim

EVENTS = 10_000_000
LEDGERS = 100_000  # of one event
RUNS = 3  # warm ones
FEW, MANY, SKEWED = "100 producers", "producers of 1,000 events", "one producer with 90 %"
TINY = "ledgers of one event"
RATIOS = {MANY: 1.5, SKEWED: 1.2}  # bounds of the CPU per event, over that of 100 producers
TINY_MS = 2.0  # CPU of a ledger of one event
NOTES = (
    f"windows of one event, {verify_data.UNIT} bytes; all producers log in turn; every answer is exact",
    "CPU of all processes of a warm run, in a session of two cores",
    "driver: peak resident memory of the Python process, with PySpark, and its growth during the runs",
)


def run(
    rounds: int | None = None, seed: int = 1, quick: bool = False, events: str = "", dir: str = "",
    keep: bool = False, record: bool = False,
) -> Row:  # fmt: skip
    """Run the row. Its options are those of row `verify`."""
    n = verify.count(events) if events else 200_000 if quick else EVENTS
    ledgers = 1_000 if quick else LEDGERS
    shapes = {
        f"{FEW} ({verify.short(n)})": (FEW, n, verify_data.Shape(100)),
        f"{n // 1000:,} {MANY}": (MANY, n, verify_data.Shape(n // 1000)),
        SKEWED: (SKEWED, n, verify_data.Shape(100, skewed=True)),
        f"{ledgers:,} {TINY}": (TINY, ledgers, verify_data.Shape(ledgers)),
    }
    lines, notes = [], []
    cost: dict[str, float] = {}
    for name, (kind, size, shape) in shapes.items():
        runs = _measure(name, size, shape, Path(dir) if dir else ROOT / "build", rounds or RUNS, seed, keep)
        scale = 1e6 / size
        cpu, wall = (Spread.of([run[clock] * scale for run in runs[1:]]) for clock in ("cpu", "wall"))
        lines.append(Line(name, {"process": cpu, "wall": wall}))
        cost[kind] = cpu.median
        peak, growth = (max(run[what] for run in runs) / (1 << 20) for what in ("driver", "driver_growth"))
        all_ = max(run["peak"] for run in runs) / (1 << 30)
        notes.append(
            f"{name}: driver {peak:.0f} MiB, {growth:.0f} more than before its first run"
            f" ({growth * 1024 / shape.producers:.2f} KiB a producer); all processes {all_:.2f} GiB;"
            f" last run: pack {runs[-1]['seconds']['pack']:.2f} s, compare"
            f" {runs[-1]['seconds']['compare']:.2f} s"
        )
    verdicts: list[Verdict] = [
        claim(f"CPU an event, {kind} / {FEW}", cost[kind] / cost[FEW], "" if quick else "<=", bound)
        for kind, bound in RATIOS.items()
    ]
    verdicts.append(claim(f"{TINY}: CPU ms each", cost[TINY] / 1e3, "" if quick else "<=", TINY_MS))
    title = "many small producers, and one large one"
    return Row("verify-producers", title, "us/event", lines, verdicts, [*notes, *NOTES], {})


def _measure(
    name: str, events: int, shape: verify_data.Shape, folder: Path, rounds: int, seed: int, keep: bool
) -> list[dict[str, Any]]:
    """Make the data, run the verification on it, and delete it.

    Returns:
        The first run, which is cold, and `rounds` more.
    """
    verify.print_progress(f"{name}: making ledger and capture")
    path = folder / f"verify-{events}-{'-'.join(map(str, map(int, shape)))}"
    data = verify_data.make(path, events, seed, shape)
    try:
        with verify.Contender(verify.OURS, data.path) as ours:
            runs = []
            for _ in range(rounds + 1):
                verify.print_progress(f"{name}: run {len(runs) + 1} of {rounds + 1}")
                runs.append(ours.run())
                verify.exact(name, runs[-1], data.truth)
        return runs
    finally:
        if not keep:
            shutil.rmtree(data.path, ignore_errors=True)
