"""Row `verify-producers`: what `logclient verify` costs with many small producers, and with a large one.

`--events` (10 M) come from a producer for each 1,000 events, and from 100 producers of which one has nine of
ten events. Rounds alternate with those of the base, events of 100 producers, so that both see the same speed
of the machine; a ratio is that of two runs in a row. The base has 50 M events at most, because the disk and
the page cache hold no second capture of 100 M. 100,000 ledgers of one event come on top. Every answer is
compared with the truth of the generator.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import verify, verify_data
from bench.harness import ROOT, Line, Row, Spread, claim

EVENTS = 10_000_000
BASE = 50_000_000  # events of the base at most
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
    folder = Path(dir) if dir else ROOT / "build"
    some = Shape(FEW, min(n, BASE), verify_data.Shape(100))
    cases = {
        f"{n // 1000:,} {MANY}": Shape(MANY, n, verify_data.Shape(n // 1000)),
        SKEWED: Shape(SKEWED, n, verify_data.Shape(100, skewed=True)),
    }
    tiny = Shape(TINY, ledgers, verify_data.Shape(ledgers))
    lines, notes, verdicts, bases = [], [], [], []
    forgotten: list[float] = []  # see `verify.Contender`

    def report(name: str, shape: Shape, runs: list[dict[str, Any]]) -> None:
        line, note = _described(name, shape, runs)
        lines.append(line)
        notes.append(note)

    with ExitStack() as stack:
        ours = stack.enter_context(_ready(some, folder, seed, keep, forgotten))
        for name, shape in cases.items():
            with _ready(shape, folder, seed, keep, forgotten) as other:
                base, case = [], []
                for at in range((rounds or RUNS) + 1):
                    verify.print_progress(f"{name}: run {at + 1} of {(rounds or RUNS) + 1}")
                    base.append(ours())
                    case.append(other())
            bases.append([run["cpu"] for run in base[1:]])
            scale = some.events / shape.events
            ratios = Spread.of([scale * b["cpu"] / a["cpu"] for a, b in zip(base[1:], case[1:], strict=True)])
            bound = RATIOS[shape.kind]
            verdicts.append(
                claim(f"CPU an event, {shape.kind} / {FEW}", ratios, "" if quick else "<=", bound)
            )
            report(f"{FEW} ({verify.short(some.events)}), beside {shape.kind}", some, base)
            report(name, shape, case)
    again = Spread.of([b / a for a, b in zip(*bases, strict=True)])
    verdicts.insert(0, claim(f"A/A: {FEW} beside the one against those beside the other, CPU", again))
    with _ready(tiny, folder, seed, keep, forgotten) as once:
        runs = [once() for _ in range((rounds or RUNS) + 1)]
    report(f"{ledgers:,} {TINY}", tiny, runs)
    each = Spread.of([run["cpu"] * 1e3 / ledgers for run in runs[1:]])
    verdicts.append(claim(f"{TINY}: CPU ms each", each, "" if quick else "<=", TINY_MS))
    title = "many small producers, and one large one"
    facts = {"forgotten": sum(forgotten)}
    return Row("verify-producers", title, "us/event", lines, verdicts, [*notes, *NOTES], facts)


class Shape(NamedTuple):
    """What the data of a contender are like."""

    kind: str
    events: int
    data: verify_data.Shape


def _described(name: str, shape: Shape, runs: list[dict[str, Any]]) -> tuple[Line, str]:
    """Return a line and a note on some runs, of which the first is cold."""
    scale = 1e6 / shape.events
    cpu, wall = (Spread.of([run[clock] * scale for run in runs[1:]]) for clock in ("cpu", "wall"))
    peak, growth = (max(run[what] for run in runs) / (1 << 20) for what in ("driver", "driver_growth"))
    note = (
        f"{name}: driver {peak:.0f} MiB, {growth:.0f} more than before its first run"
        f" ({growth * 1024 / shape.data.producers:.2f} KiB a producer);"
        f" all processes {max(run['peak'] for run in runs) / (1 << 30):.2f} GiB;"
        f" last run: pack {runs[-1]['seconds']['pack']:.2f} s,"
        f" compare {runs[-1]['seconds']['compare']:.2f} s"
    )
    return Line(name, {"process": cpu, "wall": wall}), note


@contextmanager
def _ready(
    shape: Shape, folder: Path, seed: int, keep: bool, forgotten: list[float]
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Make the data, yield what verifies them and compares the answer, and delete them."""
    verify.print_progress(f"{shape.kind}: making ledger and capture")
    path = folder / f"verify-{shape.events}-{'-'.join(map(str, map(int, shape.data)))}"
    data = verify_data.make(path, shape.events, seed, shape.data)
    try:
        with verify.Contender(verify.OURS, data.path) as ours:

            def once() -> dict[str, Any]:
                answer = ours.run()
                verify.exact(shape.kind, answer, data.truth)
                return answer

            yield once
        forgotten.append(ours.forgotten)
    finally:
        if not keep:
            shutil.rmtree(data.path, ignore_errors=True)
