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

import logclient
from bench import peers
from bench.data import records, source
from bench.harness import Row, Spread, Target, claim, judge, lines, ratio
from bench.lumberjack import WINDOW, Way, carriers, client, measure
from bench.ours import NOWHERE, QueueOnly
from bench.sink import Sink

WINDOWS = 20   # windows with different documents
TIMES = 10     # the number of times that they are sent in a run
LEVELS = (1, 2, 3, 6)   # compression levels of go-lumber
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


def _ways(sink: Sink, plain: list[bytes], full: list[bytes], times: int, stack: ExitStack) -> Iterator[Way]:
    many = times * len(full)
    for name in (OURS, f"{OURS} (again)"):
        yield Way(name, many, client(sink.url, plain, times, stack))

    def in_windows() -> Callable[[], None] | None:
        sends = [
            peers.pylogbeat(sink.port, full[first : first + WINDOW], 1)
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
            go = peers.GoLumber(program, sink.port, file, WINDOW, level)
            stack.callback(go.close)

            def work(go: peers.GoLumber = go, times: int = max(1, times // 5)) -> Mapping[str, float]:
                return go.work(times)

            yield Way(f"go-lumber, level {level}", max(1, times // 5) * len(full), work)


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure all contenders with one sink, one after the other, in random order."""
    times = 1 if quick else TIMES
    rounds = rounds or (3 if quick else ROUNDS)
    plain = documents()
    full = [
        body[:-1] + carriers(f"0123456789abcdef0123{i:012x}".encode()) + b"}"
        for i, body in enumerate(plain, 1)
    ]
    raw = sum(map(len, full)) / len(full) + 10
    with Sink() as sink, ExitStack() as stack:
        if not sink.zlib:
            raise RuntimeError("the sink was built without zlib")
        measure(list(_ways(sink, plain, full, 1, stack)), sink, 0, Random(seed), warm=1)
    with Sink(peek=True) as sink, ExitStack() as stack:
        ways = list(_ways(sink, plain, full, times, stack))
        got = measure(ways, sink, rounds, Random(seed), warm=1)
    samples = got.samples
    size = {name: got.wire[name] / raw for name in samples}
    levels = [name for name in samples if name.startswith("go-lumber")]
    nearest = min(levels, key=lambda name: abs(size[name] - size[OURS]), default="go-lumber")
    verdicts = [
        claim(f"A/A: {OURS} against itself", ratio(samples, f"{OURS} (again)", OURS, "wall")),
        *judge(
            samples, [Target(PYLOGBEAT, OURS, ">=", 5.0, "wall"), Target(nearest, OURS, ">=", 2.0, "wall")]
        ),
        *(
            claim(f"{name} / {OURS}, CPU of the process", ratio(samples, name, OURS, "process"))
            for name in (PYLOGBEAT, nearest)
            if name in samples
        ),
        *(
            claim(f"{name} / {OURS}", ratio(samples, name, OURS, "wall"))
            for name in levels
            if name != nearest
        ),
    ]
    if levels and abs(size[nearest] - size[OURS]) > NEAR:
        verdicts = [
            v._replace(reached=None, why=f"no level of go-lumber within {NEAR:.0%}")
            if v.what.startswith(nearest)
            else v
            for v in verdicts
        ]
    notes = [
        f"{name}: {1 / Spread.of(clocks['wall']).median:.3g} M events/s, {size[name]:.1%} of the bytes, "
        f"sink {Spread.of(got.busy[name]).median:.2f} cores"
        for name, clocks in samples.items()
    ]
    notes += [
        f"{len(plain):,} documents of {source()}; {raw - 10:.0f} bytes with the id, windows of {WINDOW} "
        f"(ours at most 1 MiB), two in flight (pylogbeat: one); every run counted by the sink"
        + ("; a quick run" if quick else ""),
        "go-lumber: prebuilt bytes, its clocks are those of its own process",
        "pylogbeat: zlib 6; without TCP_NODELAY each window may wait 40 ms, which its CPU does not show",
    ]
    title = "prebuilt JSON to acknowledged, compressed"
    return Row("compressed", title, "us/event", lines(samples), verdicts, notes, {"sink": got.busy})
