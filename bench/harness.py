"""A robust paired comparison.

Contenders do the same work in one process over several rounds, each in a new random (seeded) order. The
judged figure is the *ratio of two contenders of the same round*, as its median over the rounds: a slow minute
of the machine slows both. With it the harness reports

- an A/A control: the same contender twice under two names. Its ratio should be 1, and its distance from 1 is
  the uncertainty of every other ratio;
- the caller's own CPU time, the CPU of the whole process, and wall time;
- the machine's load before and after.

Every run counts its work, and an inexact count raises: a benchmark that loses work measures nothing. A
`Target` is either reached or not reached.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "bench"
QUIET = 0.2  # the most cores that other programs may use during a row whose figures are quoted
CLOCKS = {"cpu": "caller CPU", "process": "process CPU", "wall": "wall"}
TITLES = {"own": "caller + sender CPU", "io": "libzmq's I/O thread"} | CLOCKS


class NotExact(AssertionError):
    """The error of a run that did not do the work for which it was timed."""


def _nothing() -> None:
    return None


class Contender(NamedTuple):
    """One way to do the work.

    `work` is timed and does `events` units. `count` is not timed: it runs after each `work`, removes the
    product and returns the number of units. `settle` is not timed either and runs once a round, for
    contenders whose product can only be counted later: it returns the units of the whole round.
    """

    name: str
    work: Callable[[], object]
    events: int
    count: Callable[[], int] | None = None
    settle: Callable[[int], int] | None = None  # takes the expected number of units
    before: Callable[[], object] = _nothing  # not timed, before each `work`


class Spread(NamedTuple):
    """The median and quartiles of some values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


class Target(NamedTuple):
    """A bound for the ratio `over` / `under`: at most (`<=`), at least (`>=`) `bound`; "": there is none."""

    over: str
    under: str
    op: str
    bound: float
    clock: str = "cpu"


class Verdict(NamedTuple):
    """A claim with its measured value. `reached` is None without a target, and where it is undecidable."""

    what: str
    value: float
    low: float
    high: float
    op: str
    bound: float
    reached: bool | None
    unit: str = "x"
    why: str = ""


class Line(NamedTuple):
    """One contender's cost per unit, in `Row.unit`, per clock."""

    name: str
    spread: Mapping[str, Spread]


class Row(NamedTuple):
    """The result of one benchmark, for the table, the JSON, the plot and the page."""

    name: str
    title: str
    unit: str
    lines: Sequence[Line]
    verdicts: Sequence[Verdict]
    notes: Sequence[str]
    facts: Mapping[str, Any]
    uncontrolled: str = ""  # why there is no A/A control


def compare(
    contenders: Sequence[Contender],
    *,
    rounds: int = 11,
    seed: int = 1,
    at_least: float = 0.02,
    scale: float = 1e6,
) -> dict[str, dict[str, list[float]]]:
    """Measure the cost per unit of each contender, round by round.

    Each contender repeats its work for at least `at_least` seconds a round, because runs of two milliseconds
    are not reliable. An untimed first round finds the number of repeats, and also warms caches.

    Returns:
        name -> clock -> values (seconds x `scale`).
    """
    order = random.Random(seed)
    repeats: dict[str, int] = {}
    for c in contenders:
        repeats[c.name] = 1
        wall = _round(c, 1)["wall"] + _round(c, 1)["wall"]
        repeats[c.name] = max(1, round(2 * at_least / max(wall, 1e-7)))
    got: dict[str, dict[str, list[float]]] = {c.name: {k: [] for k in CLOCKS} for c in contenders}
    if len(got) != len(contenders):
        raise ValueError("two contenders have the same name")
    gc.collect()
    gc.freeze()  # so that no contender pays for the traversal of records and fixtures
    try:
        for _ in range(rounds):
            for c in order.sample(list(contenders), len(contenders)):
                seconds = _round(c, repeats[c.name])
                for clock in CLOCKS:
                    got[c.name][clock].append(seconds[clock] * scale / (repeats[c.name] * c.events))
    finally:
        gc.unfreeze()
    return got


def _round(c: Contender, repeats: int) -> dict[str, float]:
    total = [0, 0, 0]
    for _ in range(repeats):
        c.before()
        wall, process, thread = time.perf_counter_ns(), time.process_time_ns(), time.thread_time_ns()
        c.work()
        thread = time.thread_time_ns() - thread
        process, wall = time.process_time_ns() - process, time.perf_counter_ns() - wall
        total = [total[0] + thread, total[1] + process, total[2] + wall]
        if c.count is not None and (n := c.count()) != c.events:
            raise NotExact(f"{c.name}: {n} units counted, {c.events} were done")
    if c.settle is not None and (n := c.settle(repeats * c.events)) != repeats * c.events:
        raise NotExact(f"{c.name}: {n} units counted, {repeats * c.events} were done")
    return dict(zip(CLOCKS, (t / 1e9 for t in total), strict=True))


def lines(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Line]:
    """Return the medians and quartiles of the samples of `compare`."""
    return [Line(name, {k: Spread.of(v) for k, v in clocks.items()}) for name, clocks in samples.items()]


def ratio(
    samples: Mapping[str, Mapping[str, Sequence[float]]], over: str, under: str, clock: str = "cpu"
) -> Spread:
    """Return the ratio `over` / `under` for each pair of the same round."""
    pairs = zip(samples[over][clock], samples[under][clock], strict=True)
    return Spread.of([a / b if b else float("inf") for a, b in pairs])


def judge(
    samples: Mapping[str, Mapping[str, Sequence[float]]],
    targets: Sequence[Target],
    control: tuple[str, str] | None = None,
) -> list[Verdict]:
    """Compare each target with its ratio, after the A/A control, which has no target."""
    verdicts = []
    if control:
        s = ratio(samples, *control)
        verdicts.append(Verdict(f"A/A: {control[0]} against itself", *s, "", 1.0, None))
    for t in targets:
        if t.over not in samples or t.under not in samples:
            absent = t.over if t.over not in samples else t.under
            nan = float("nan")
            verdicts.append(
                Verdict(
                    f"{t.over} / {t.under}",
                    nan,
                    nan,
                    nan,
                    t.op,
                    t.bound,
                    None,
                    "x",
                    f"{absent} is not installed",
                )
            )
            continue
        s = ratio(samples, t.over, t.under, t.clock)
        reached = holds(s.median, t.op, t.bound) if t.op else None
        verdicts.append(Verdict(f"{t.over} / {t.under}", *s, t.op, t.bound, reached))
    return verdicts


def holds(value: float, op: str, bound: float) -> bool:
    """Return whether `value` `op` `bound`."""
    return {"<=": value <= bound, ">=": value >= bound, "==": value == bound}[op]


def claim(what: str, value: float | Spread, op: str = "", bound: float = 0.0, why: str = "") -> Verdict:
    """Compare a figure other than a ratio of two contenders with its bound; without `op`, only report it."""
    s = value if isinstance(value, Spread) else Spread(value, value, value)
    return Verdict(what, *s, op, bound, holds(s.median, op, bound) if op else None, "", why)


def load() -> float:
    """Return the machine's load average over the last minute; nan: unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


class OtherPrograms:
    """The number of cores that other programs used during a row; nan: unknown.

    All that this process has started is its own: children that were waited for, those that run, and orphans
    of theirs, such as a JVM whose parent has ended.
    """

    def __init__(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become our children
        self._start = self._now()

    def cores(self, forgotten: float = 0.0) -> float:
        """Return the cores. `forgotten` are CPU seconds of ours that `own_seconds` no longer has."""
        wall, machine, ours = (b - a for a, b in zip(self._start, self._now(), strict=True))
        return max(0.0, machine - ours - forgotten) / wall if wall > 0 else float("nan")

    @staticmethod
    def _now() -> tuple[float, float, float]:
        try:
            ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return time.monotonic(), float("nan"), 0.0
        busy = sum(ticks) - ticks[3] - ticks[4]  # without idle time and waits for disks
        return time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), own_seconds()


def own_seconds() -> float:
    """Return the CPU seconds of this process and of all that it has started, running or not (Linux)."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # a name may have spaces
        except OSError:  # it has ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
        # Its own time, and that of children which it has waited for.
        seconds[int(path.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    own, some = set(), {os.getpid()}
    while some:
        own |= some
        some = {pid for pid, parent in parents.items() if parent in some}
    return sum(seconds.get(pid, 0.0) for pid in own)


def processor() -> str:
    """Name the processor: maker, name and, on x86, family, model, stepping and MHz."""
    found: dict[str, str] = {}
    try:
        for text in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = text.partition(":")
            found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    name = found.get("model name") or platform.processor() or platform.machine()
    numbers = [found.get(key) for key in ("cpu family", "model", "stepping", "cpu MHz")]
    if None in numbers:
        return name
    family, model, stepping, mhz = numbers
    return f"{name} (family {family}, model {model}, stepping {stepping}), {float(mhz or 0):.0f} MHz"


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in the tree of the benchmarks."""
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)


PAGES = ("bench/results/README.md", "docs/performance.md", "README.md")
RECORDED = (*PAGES, "bench/results")
"""What recording a row writes: that alone makes no tree dirty."""


def commit() -> str:
    """Name the commit of the tree, with `-dirty` if something in it differs; "": there is no repository."""
    name = git("describe", "--always").stdout.strip()
    changed = git("status", "--porcelain", "--", ".", *(f":(exclude){path}" for path in RECORDED)).stdout
    return f"{name}-dirty" if name and changed else name


def machine(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the machine and software, without the identity of the machine."""
    from importlib import metadata

    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": versions,
        "commit": commit() or None,
    }


# -- output -------------------------------------------------------------------------------------


def _digits(x: float) -> str:
    if x != x:
        return "-"
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def _cell(s: Spread | None) -> str:
    return f"{_digits(s.median)} [{_digits(s.low)}-{_digits(s.high)}]" if s else "-"


def _result(v: Verdict) -> str:
    if v.why and v.reached is None:
        return v.why
    if not v.op:
        return "control" if v.what.startswith("A/A") else "printed"
    return f"{'reached' if v.reached else 'NOT reached'}{': ' + v.why if v.why else ''}"


def target_text(v: Verdict) -> str:
    """Format the bound; that of a control is 1."""
    return f"{v.op} {_digits(v.bound)}" if v.op else "1" if v.what.startswith("A/A") else "-"


def value_text(v: Verdict) -> str:
    """Format the measured value, without its quartiles."""
    return f"{_digits(v.value)}{' ' + v.unit if v.unit not in ('', 'x') else ''}"


def _value(v: Verdict) -> str:
    many = "" if v.low == v.high else f" [{_digits(v.low)}-{_digits(v.high)}]"
    return value_text(v) + many


def where(row: Row) -> str:
    """Describe date, machine, versions and load in a line."""
    f = row.facts
    packages = "".join(f", {k} {v}" for k, v in f["packages"].items() if v)
    commit = f"; commit {f['commit']}" if f["commit"] else ""
    others = f["others"]
    if others is None:
        others = float("nan")
    busy = f": busy, not to be quoted (more than {QUIET})" if others > QUIET else ""
    return (
        f"{f['date']}, {f['cpu']}, {f['cores']} cores, {f['system']}, {f['python']}{packages}{commit}; "
        f"load {f['load'][0]:.1f} before, {f['load'][1]:.1f} after, {f['seconds']:.0f} s; "
        f"other programs used {others:.2f} cores{busy}"
    )


def _notes(row: Row) -> list[str]:
    return [*row.notes, *([f"no A/A: {row.uncontrolled}"] if row.uncontrolled else [])]


def table(row: Row) -> str:
    """Format a row for a terminal."""
    out = [f"{row.name}: {row.title}"]
    if row.lines:
        width = max(len(line.name) for line in row.lines)
        clocks = [k for k in TITLES if any(k in line.spread for line in row.lines)]
        out.append(f"  {row.unit:{width}}  " + "  ".join(f"{TITLES[k]:>24}" for k in clocks))
        for line in row.lines:
            cells = [_cell(line.spread.get(k)) for k in clocks]
            out.append(f"  {line.name:{width}}  " + "  ".join(f"{c:>24}" for c in cells))
    if row.verdicts:
        width = max(len(v.what) for v in row.verdicts)
        for v in row.verdicts:
            goal = target_text(v)
            out.append(f"  {v.what:{width}}  {_value(v):>24}  target {goal:>8}  {_result(v)}")
    out += [f"  {note}" for note in (*_notes(row), where(row))]
    return "\n".join(out)


def markdown(row: Row) -> str:
    """Format a row as a section of bench/results/README.md, with machine and date."""
    out = [f"### {row.name}: {row.title}", ""]
    if row.lines:
        clocks = [k for k in TITLES if any(k in line.spread for line in row.lines)]
        out.append(f"| {row.unit}, median [quartiles] | " + " | ".join(TITLES[k] for k in clocks) + " |")
        out.append("|---" * (len(clocks) + 1) + "|")
        for line in row.lines:
            cells = [_cell(line.spread.get(k)) for k in clocks]
            out.append(f"| {line.name} | " + " | ".join(cells) + " |")
        out.append("")
    if row.verdicts:
        out += ["| claim | measured | target | |", "|---|---|---|---|"]
        for v in row.verdicts:
            out.append(f"| {v.what} | {_value(v)} | {target_text(v)} | {_result(v)} |")
        out.append("")
    out += [f"- {note}" for note in _notes(row)]
    out.append("- " + where(row))
    return "\n".join(out) + "\n"


def jsonable(x: Any) -> Any:
    """Return named tuples as dictionaries, and figures that are no number as None."""
    if isinstance(x, tuple) and hasattr(x, "_asdict"):
        return {k: jsonable(v) for k, v in x._asdict().items()}
    if isinstance(x, Mapping):
        return {k: jsonable(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [jsonable(v) for v in x]
    return None if isinstance(x, float) and (x != x or x in (float("inf"), float("-inf"))) else x


def _judged(line: Line) -> Spread:
    return next(line.spread[clock] for clock in ("own", "cpu", "wall") if clock in line.spread)


def plot(row: Row, path: Path) -> bool:
    """Draw the row's medians and quartiles; return False without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    shown = [line for line in row.lines if "cpu" in line.spread or "wall" in line.spread]
    if not shown:
        return False
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.42 * len(shown)), layout="constrained")
    for i, line in enumerate(reversed(shown)):
        s = _judged(line)
        ours = line.name.startswith("logclient")
        axes.barh(i, s.median, color="#2563a8" if ours else "#a0a7b0")
        axes.plot([s.low, s.high], [i, i], color="black", linewidth=1.5)
        axes.annotate(_digits(s.median), (s.high, i), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(shown)), [line.name for line in reversed(shown)])
    values = [_judged(line).median for line in shown]
    if min(values) > 0 and max(values) / min(values) > 30:
        axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    scale = "log scale, " if axes.get_xscale() == "log" else ""
    axes.set_xlabel(f"{row.unit} ({scale}median and quartiles; less is better)")
    axes.set_title(f"{row.name}: {row.title}", loc="left", fontsize=10)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def show(row: Row, out: Path = OUT) -> None:
    """Print the table; write the JSON, the markdown and, with matplotlib, the plot."""
    out.mkdir(parents=True, exist_ok=True)
    print(table(row), file=sys.stdout, flush=True)
    (out / f"{row.name}.json").write_text(json.dumps(jsonable(row), indent=1) + "\n", encoding="utf-8")
    (out / f"{row.name}.md").write_text(markdown(row), encoding="utf-8")
    drawn = plot(row, out / f"{row.name}.png")
    print(
        f"  -> {(out / row.name).relative_to(ROOT) if out.is_relative_to(ROOT) else out / row.name}"
        f".json .md{' .png' if drawn else ' (no plot: matplotlib is not installed)'}\n",
        flush=True,
    )
