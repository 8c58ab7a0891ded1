"""Row `compressed`: prebuilt JSON events until all are acknowledged, compressed.

The peers are pylogbeat with its defaults and go-lumber's asynchronous client.

All contenders send the same bytes: documents made of log lines, each with its own id. Ours inserts the id;
the others get documents with the id. go-lumber is judged at the level whose output size is nearest to ours.
The sink inflates only the first header of each window (`--peek`). Before that, one run of each contender goes
to a sink that inflates and counts everything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import NamedTuple

import logclient
from bench import peers
from bench.certificates import Certificate
from bench.data import records, source
from bench.harness import Row, Spread, Target, Verdict, claim, judge, lines, ratio
from bench.lumberjack import WINDOW, Measured, Way, carriers, client, measure
from bench.ours import NOWHERE, QueueOnly
from bench.sink import Sink

WINDOWS = 20  # windows with different documents
TIMES = 10  # the number of times that they are sent in a run
LEVELS = (1, 2, 3, 6)  # compression levels of go-lumber
NEAR = 0.02
ROUNDS = 7
OURS = "logclient send(bytes)"
PYLOGBEAT = "pylogbeat"


def documents() -> list[bytes]:
    """Make documents of log lines by our handler."""
    made = records(WINDOWS * WINDOW)
    handler = logclient.Handler(NOWHERE, max_events=1 << 20, max_bytes=1 << 28)
    with closing(handler):
        parked = QueueOnly(handler.client)
        for record in made:
            handler.handle(record)
        return parked.take()


def with_ids(plain: list[bytes]) -> list[bytes]:
    """Return documents as they are on the wire: with their ids, each of its own."""
    return [
        body[:-1] + carriers(f"0123456789abcdef0123{i:012x}".encode()) + b"}"
        for i, body in enumerate(plain, 1)
    ]


def _ways(sink: Sink, plain: list[bytes], full: list[bytes], times: int, stack: ExitStack) -> Iterator[Way]:
    many = times * len(full)
    for name in (OURS, f"{OURS} (again)"):
        yield Way(name, many, client(sink.url, plain, times, stack, **sink.options))

    def in_windows() -> Callable[[], None] | None:
        sends = [
            peers.pylogbeat(sink.port, full[first : first + WINDOW], 1, sink.ca)
            for first in range(0, len(full), WINDOW)
        ]
        if None in sends:
            return None

        def work() -> None:
            for send in sends:
                send()

        return work

    if work := in_windows():
        yield Way(PYLOGBEAT, len(full), work)
    if program := peers.golumber():
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "events"
        file.write_bytes(b"\n".join(full) + b"\n")
        for level in LEVELS:
            go = peers.GoLumber(program, sink.port, file, WINDOW, level, ca=sink.ca)
            stack.callback(go.close)

            def work(go: peers.GoLumber = go, times: int = max(1, times // 5)) -> Mapping[str, float]:
                return go.work(times)

            yield Way(f"go-lumber, level {level}", max(1, times // 5) * len(full), work)


class Results(NamedTuple):
    """The results of `measure_all`.

    Attributes:
        got: the figures.
        size: the share of the bytes that are left, by contender.
        documents: their number.
        raw: bytes of an event, uncompressed.
    """

    got: Measured
    size: dict[str, float]
    documents: int
    raw: float

    @property
    def levels(self) -> list[str]:
        """All contenders that are go-lumber."""
        return [name for name in self.size if name.startswith("go-lumber")]

    @property
    def nearest(self) -> str:
        """The level of go-lumber whose output is nearest to ours in size."""
        ours = self.size[OURS]
        return min(self.levels, key=lambda name: abs(self.size[name] - ours), default="go-lumber")

    def judge(self, pylogbeat: float, golumber: float) -> list[Verdict]:
        """Compare by wall time how much faster ours is than both peers, at least."""
        samples, near = self.got.samples, self.nearest
        targets = [
            Target(PYLOGBEAT, OURS, ">=", pylogbeat, "wall"), Target(near, OURS, ">=", golumber, "wall"),
        ]  # fmt: skip
        made = judge(samples, targets)
        if self.levels and abs(self.size[near] - self.size[OURS]) > NEAR:
            made[1] = made[1]._replace(reached=None, why=f"no level of go-lumber within {NEAR:.0%}")
        made += [
            claim(f"{name} / {OURS}, CPU of the process", ratio(samples, name, OURS, "process"))
            for name in (PYLOGBEAT, near)
            if name in samples
        ]
        made += [
            claim(f"{name} / {OURS}", ratio(samples, name, OURS, "wall"))
            for name in self.levels
            if name != near
        ]
        return made

    def notes(self) -> list[str]:
        return [
            f"{name}: {1 / Spread.of(clocks['wall']).median:.3g} M events/s, {self.size[name]:.1%} of the "
            f"bytes, sink {Spread.of(self.got.busy[name]).median:.2f} cores"
            + (f", {self.got.cipher[name]}" if self.got.cipher[name] else "")
            for name, clocks in self.got.samples.items()
        ] + [
            f"{self.documents:,} documents of {source()}; {self.raw - 10:.0f} bytes with the id",
            f"windows of {WINDOW} (ours at most 1 MiB), two in flight (pylogbeat: one); counted by the sink",
            "go-lumber: prebuilt bytes, its clocks are those of its own process",
            "pylogbeat: zlib 6; without TCP_NODELAY each window may wait 40 ms, which its CPU does not show",
        ]


def measure_all(rounds: int, seed: int, times: int, tls: Certificate | None = None) -> Results:
    """Measure all contenders with one sink, one after the other, in random order."""
    plain = documents()
    full = with_ids(plain)
    raw = sum(map(len, full)) / len(full) + 10
    with Sink(tls=tls) as sink, ExitStack() as stack:
        if not sink.zlib:
            raise RuntimeError("the sink was built without zlib")
        measure(list(_ways(sink, plain, full, 1, stack)), sink, 0, Random(seed), warm=1)
    with Sink(peek=True, tls=tls) as sink, ExitStack() as stack:
        ways = list(_ways(sink, plain, full, times, stack))
        got = measure(ways, sink, rounds, Random(seed), warm=1)
    return Results(got, {name: got.wire[name] / raw for name in got.samples}, len(plain), raw)


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure all contenders over plain connections."""
    results = measure_all(rounds or (3 if quick else ROUNDS), seed, 1 if quick else TIMES)
    samples = results.got.samples
    again = ratio(samples, f"{OURS} (again)", OURS, "wall")
    verdicts = [claim(f"A/A: {OURS} against itself", again), *results.judge(10.0, 2.0)]
    notes = results.notes() + ["a quick run"] * quick
    title = "prebuilt JSON to acknowledged, compressed"
    return Row("compressed", title, "us/event", lines(samples), verdicts, notes, {"sink": results.got.busy})
