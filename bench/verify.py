"""Row `verify`: from the files of a ledger and a capture to the verdict, against DuckDB and polars.

All contenders return the counts of each producer (`bench.verify_data.WORDS`), and every answer is compared
with the truth of the generator. Ours starts from the files. DuckDB and polars cannot read them: they start
from two Parquet files, decoded by our codecs, and only return the counts (without latency, gaps or examples,
which ours includes). The cost of that decoding is measured and printed; the judged ratios leave it out, to
their advantage.

Each contender is a process for all rounds: its first run is cold, followed by warm runs in random order.
Above 10 million events it runs alone, before the next one starts. CPU is that of the process and all its
children.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from bench import verify_data
from bench.harness import OUT, ROOT, Line, NotExact, Row, Spread, Verdict, claim, own_seconds, ratio

OURS, AGAIN = "logclient verify, counts alone", "logclient verify, counts alone (again)"
WHOLE, LOCAL = "logclient verify, with violations and report", "logclient verify --local, with both"
DUCKDB, POLARS, DECODE = "DuckDB", "polars", "decode"
PROGRAMS = {
    OURS: "ours", WHOLE: "whole", LOCAL: "local", DUCKDB: "duckdb", POLARS: "polars", DECODE: "decode",
}  # fmt: skip
ROUNDS = 9
SMALL = 10_000_000  # the largest size with rounds; larger sizes have one warm run of each contender
PEERS = 50_000_000  # the largest size with peers: beyond, polars needs all memory and DuckDB many minutes
BOUNDS = {10_000_000: {OURS: 0.70, WHOLE: 0.80}, 50_000_000: {WHOLE: 0.65}}  # our CPU over DuckDB's
LINEAR = 1.2
MEMORY = 4.0  # GiB
NOTES = (
    f"windows of one event, {verify_data.UNIT} bytes, uncompressed, no acks; CRC checked",
    f"{verify_data.Shape().producers} producers; every answer is what the generator knows",
    "logclient verify: from ledger and capture files, 2 cores; warm: the later runs of one session",
    "logclient verify --local: the same in one thread of one process, without Spark and Java",
    "DuckDB (2 threads, 4 GB) and polars (2 threads, streaming): from Parquet, the counts alone",
    "`decode` makes that Parquet in two processes; it is not in theirs unless a line says so",
    "peak memory: resident bytes of all processes, shared pages counted in each",
    "files lay in the page cache, as far as they fit; above 10 M one contender runs after the other",
)
PICTURE = "verify-growth.svg"


class Contender:
    """A process of `bench.verify_run`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.forgotten = 0.0  # CPU seconds of its processes that no parent has after its end
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.verify_run", PROGRAMS[name], str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip
        self.start = self._answer()

    def run(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        before = own_seconds()
        self._process.stdin.close()
        self._process.wait(timeout=60)
        # The daemon of PySpark's workers ignores SIGCHLD, so nobody gets the CPU time of ended workers.
        self.forgotten = max(0.0, before - own_seconds())


def count(text: str) -> int:
    """Read a number such as ``10M``, ``200k`` or plain digits."""
    scale = {"k": 1000, "M": 1_000_000}.get(text[-1:], 1)
    return round(float(text.rstrip("kM")) * scale)


def short(events: int) -> str:
    return f"{events / 1e6:g} M"


def exact(name: str, answer: dict[str, Any], truth: dict[str, dict[str, int]]) -> None:
    """Compare an answer with the truth of the generator.

    Raises:
        NotExact: they differ.
    """
    found = answer["counts"]
    if "total" in answer:  # it need not name all producers
        for word, n in verify_data.total(truth).items():
            if answer["total"][word] != n:
                raise NotExact(f"{name}: {answer['total'][word]} {word}, there are {n}")
        truth = {producer: counts for producer, counts in truth.items() if producer in found}
    for producer, counts in truth.items():
        mine = found.get(producer, dict.fromkeys(verify_data.WORDS, 0))
        for word, n in counts.items():
            if mine[word] != n:
                whose = producer or "nobody"
                raise NotExact(f"{name}: {mine[word]} {word} of producer {whose}, there are {n}")


class Size:
    """The measurements at one size."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.runs: dict[str, list[dict[str, Any]]] = {}  # the first run is cold
        self.start: dict[str, dict[str, Any]] = {}
        self.bytes = 0
        self.forgotten = 0.0  # see `Contender`

    def warm(self, name: str, clock: str) -> list[float]:
        runs = self.runs[name]
        return [run[clock] for run in runs[1:] or runs]

    def peak(self, name: str) -> float:
        return max(run["peak"] for run in self.runs[name]) / (1 << 30)

    def samples(self) -> dict[str, dict[str, list[float]]]:
        """Return the samples in the form of `harness.compare`, in microseconds per event."""
        scale = 1e6 / self.events
        return {
            name: {clock: [x * scale for x in self.warm(name, of)] for clock, of in CLOCKS.items()}
            for name in self.runs
        }


CLOCKS = {"process": "cpu", "wall": "wall"}


def measure(events: int, folder: Path, rounds: int, draw: Random, keep: bool) -> Size:
    """Make the data, run all contenders on it, and delete it."""
    print_progress(f"{short(events)}: making ledger and capture")
    data = verify_data.make(folder / f"verify-{events}", events)
    found = Size(events)
    found.bytes = data.capture_bytes + data.ledger_bytes
    try:
        if events <= SMALL:
            _run_in_turn(found, data.path, rounds, draw)
        else:
            _run_alone(found, data.path, rounds)
        for name, runs in found.runs.items():
            for run in runs if name != DECODE else ():
                exact(f"{name}, {short(events)}", run, data.truth)
    finally:
        if not keep:
            shutil.rmtree(data.path, ignore_errors=True)
    return found


def _run_in_turn(found: Size, folder: Path, rounds: int, draw: Random) -> None:
    """Start all contenders, and run them in a random order in each round."""
    with ExitStack() as stack:
        contenders = {}
        for name in (DECODE, OURS, WHOLE, LOCAL, DUCKDB, POLARS):
            contenders[name] = stack.enter_context(_begin(name, found, folder))
        contenders[AGAIN] = contenders[OURS]
        found.runs[AGAIN] = [found.runs[OURS][0]]
        for i in range(rounds):
            print_progress(f"{short(found.events)}: round {i + 1} of {rounds}")
            for name in draw.sample(list(contenders), len(contenders)):
                found.runs[name].append(contenders[name].run())
    del contenders[AGAIN]
    found.forgotten = sum(contender.forgotten for contender in contenders.values())


def _run_alone(found: Size, folder: Path, rounds: int) -> None:
    """Run one contender after the other: the memory that one keeps would evict the files of the next."""
    for name in [WHOLE] if found.events > PEERS else [DECODE, OURS, WHOLE, LOCAL, DUCKDB, POLARS]:
        with _begin(name, found, folder) as contender:
            for i in range(rounds):
                print_progress(f"{short(found.events)}: {name}, round {i + 1} of {rounds}")
                found.runs[name].append(contender.run())
        found.forgotten += contender.forgotten


def _begin(name: str, found: Size, folder: Path) -> Contender:
    """Start a contender and do its cold run."""
    print_progress(f"{short(found.events)}: {name}, cold")
    contender = Contender(name, folder)
    found.start[name] = contender.start
    found.runs[name] = [contender.run()]
    return contender


def print_progress(text: str) -> None:
    print(f"verify: {text}", file=sys.stderr, flush=True)


def run(
    rounds: int | None = None, seed: int = 1, quick: bool = False, events: str = "", dir: str = "",
    keep: bool = False,
) -> Row:  # fmt: skip
    """Run the row. `events` are sizes joined by commas; `dir` is the folder for data (380 bytes an event)."""
    sizes = sorted({count(text) for text in (events or ("200k" if quick else "10M")).split(",")})
    folder = Path(dir) if dir else ROOT / "build"
    draw = Random(seed)
    done = []
    for n in sizes:
        times = rounds or (ROUNDS if n <= SMALL and not quick else 1)
        done.append(measure(n, folder, times, draw, keep))
    lines = []
    verdicts: list[Verdict] = []
    notes = []
    for size in done:
        of = f", {short(size.events)}"
        samples = size.samples()
        lines += [
            Line(name + of, {clock: Spread.of(values) for clock, values in samples[name].items()})
            for name in (OURS, AGAIN, WHOLE, LOCAL, DUCKDB, POLARS, DECODE)
            if name in samples
        ]
        verdicts += _judged(size, samples, of, quick)
        notes += _notes(size, of)
    ten = next((size for size in done if size.events == SMALL), None)
    if ten is not None and done[-1].events > SMALL:
        last = Spread.of(done[-1].samples()[WHOLE]["process"]).median
        verdicts.append(
            claim(
                f"{WHOLE}: CPU an event at {short(done[-1].events)} / at {short(SMALL)}",
                last / Spread.of(ten.samples()[WHOLE]["process"]).median,
                "<=",
                LINEAR,
            )
        )
    notes += NOTES
    facts: dict[str, Any] = {
        "sizes": [vars(size) for size in done], "forgotten": sum(size.forgotten for size in done),
    }  # fmt: skip
    if len(done) >= 3 and _draw(done, OUT / PICTURE):
        notes.append(f"growth: [{PICTURE}]({PICTURE})")
        facts["pictures"] = [PICTURE]
    title = "from ledger and capture files to the verdict, against queries of decoded columns"
    return Row("verify", title, "us/event", lines, verdicts, notes, facts)


def _judged(size: Size, samples: Any, of: str, quick: bool) -> list[Verdict]:
    out = []
    if AGAIN in samples:
        out.append(claim(f"A/A: {OURS} against itself, CPU{of}", ratio(samples, AGAIN, OURS, "process")))
    if DUCKDB in samples:
        for ours in (OURS, WHOLE, LOCAL):
            bound = BOUNDS.get(size.events, {}).get(ours)
            out.append(
                claim(
                    f"{ours} / DuckDB without decoding, CPU{of}", ratio(samples, ours, DUCKDB, "process"),
                    "<=" if bound else "", bound or 0.0,
                )
            )  # fmt: skip
        out.append(
            claim(
                f"{LOCAL} / {WHOLE}, CPU{of}", ratio(samples, LOCAL, WHOLE, "process"),
                "<=" if size.events == SMALL and not quick else "", 1.0,
            )
        )  # fmt: skip
        both = {
            peer: {
                clock: [a + b for a, b in zip(samples[peer][clock], samples[DECODE][clock], strict=True)]
                for clock in CLOCKS
            }
            for peer in (DUCKDB, POLARS)
        }
        both[OURS] = samples[OURS]
        out += [
            claim(f"{OURS} / polars without decoding, CPU{of}", ratio(samples, OURS, POLARS, "process")),
            *(
                claim(f"{OURS} / decode and {peer}, CPU{of}", ratio(both, OURS, peer, "process"))
                for peer in (DUCKDB, POLARS)
            ),
        ]
    judged = size.events >= SMALL and not quick
    rates = Spread.of(sorted(1 / x for x in samples[WHOLE]["wall"]))
    out.append(claim(f"{WHOLE}: M events/s{of}", rates))
    out.append(claim(f"{WHOLE}: peak memory, GiB{of}", size.peak(WHOLE), "<=" if judged else "", MEMORY))
    return out


def _notes(size: Size, of: str) -> list[str]:
    out = []
    for name, runs in size.runs.items():
        if name == AGAIN:
            continue
        warm = Spread.of(size.warm(name, "cpu")).median
        text = (
            f"{name}{of}: {warm:.2f} CPU-s, {Spread.of(size.warm(name, 'wall')).median:.2f} s; "
            f"cold {runs[0]['cpu']:.2f} CPU-s, {runs[0]['wall']:.2f} s; peak {size.peak(name):.2f} GiB"
        )
        if "seconds" in runs[-1]:
            seconds = runs[-1]["seconds"]
            start = size.start[name]
            text += (
                f"; start of the session {start['cpu']:.1f} CPU-s, {start['wall']:.1f} s; last run: pack "
                f"{seconds['pack']:.2f} s, compare {seconds['compare']:.2f} s; {size.bytes / 1e9:.2f} GB read"
            )
        out.append(text)
    return out


COLOURS = {WHOLE: "#2f81f7", DUCKDB: "#d9822b", POLARS: "#8957e5"}
INK = "#7d8590"  # legible on white and on black


def _draw(done: list[Size], path: Path) -> bool:
    """Draw CPU and memory over size as SVG; return False without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    style = {
        "svg.fonttype": "none", "svg.hashsalt": "verify", "font.family": "sans-serif", "font.size": 10,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
        "ytick.color": INK,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        for name, colour in COLOURS.items():
            mine = [size for size in done if name in size.runs]
            x = [size.events / 1e6 for size in mine]
            cpu = [Spread.of(size.warm(name, "cpu")).median for size in mine]
            left.plot(x, cpu, "o-", color=colour, label=name)
            right.plot(x, [size.peak(name) for size in mine], "o-", color=colour, label=name)
        right.axhline(MEMORY, color=INK, linewidth=0.8, linestyle=":")
        for axes, what in ((left, "CPU seconds, warm"), (right, "peak memory, GiB")):
            axes.set_title(what, loc="left", fontsize=10)
            axes.set_xlabel("million events")
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.grid(color=INK, alpha=0.25, linewidth=0.5)
            axes.spines[["top", "right"]].set_visible(False)
        left.legend(frameon=False, labelcolor=INK)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return True
