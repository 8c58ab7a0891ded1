"""Row `delay`: prebuilt JSON events until all are acknowledged, over a relay with a delay.

The relay (`relay.c`) keeps the bytes of each direction for half of the delay, so the round trip is longer by
all of it. It takes bytes as they come, which leaves the number of windows in flight as the only limit. The
peers are pylogbeat, which waits for each window, and go-lumber's asynchronous client with 1 and 5 windows in
flight (two more are on the wire), compressed to the size that is nearest to ours. The events are those of the
row `compressed`.

A delay of 20 ms may be meant of the round trip or of each direction, so both are judged.

Ours begins each run with two windows in flight when it had nothing to send for 10 s before, as here.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench import peers
from bench.compressed import OURS, PYLOGBEAT, documents, with_ids
from bench.data import source
from bench.harness import Row, Spread, Target, claim, judge, lines, ratio
from bench.lumberjack import WINDOW, Way, client, measure
from bench.program import Program
from bench.sink import Sink, compiled

SOURCE = Path(__file__).with_name("relay.c")
BINARY = SOURCE.parent.parent / "build" / "bench" / "relay"
DELAYS = (20, 40, 100)  # milliseconds of the round trip
JUDGED = (20, 40)
WINDOWS = (1, 2, 4, 8, 16)  # in flight, ours
GO = (1, 5)  # in flight, go-lumber
LEVEL = 1  # of go-lumber, see the row `compressed`
TIMES = 25  # the number of times that all documents are sent in a run
ROUNDS = 5
RELAY_BOUND = 0.5


class Totals(NamedTuple):
    """What a relay has done; `late` is the most seconds that bytes left too late since the last totals."""

    bytes: int
    full: int
    late: float
    cpu: float


class Relay:
    """A running relay to `port`, with a round trip that is longer by `milliseconds`."""

    def __init__(self, port: int, milliseconds: float) -> None:
        program = compiled(SOURCE, BINARY, ())
        self._program = Program([str(program), str(port), str(round(milliseconds * 500))], "the relay")
        self.port = int(self._program.read()["port"])
        self.url = f"lumberjack://127.0.0.1:{self.port}"
        self.close = self._program.close

    def totals(self) -> Totals:
        """Return the totals since the start."""
        return Totals(**self._program.ask())


class Through:
    """The work of a contender, with the relay's share of a core and the greatest lateness, run by run."""

    def __init__(self, relay: Relay, work: Callable[[], Mapping[str, float] | None]) -> None:
        self._relay = relay
        self._work = work
        self.shares: list[float] = []
        self.late: list[float] = []

    def __call__(self) -> Mapping[str, float] | None:
        before, start = self._relay.totals(), time.perf_counter()
        own = self._work()
        wall, after = time.perf_counter() - start, self._relay.totals()
        self.shares.append((after.cpu - before.cpu) / wall)
        self.late.append(after.late)
        return own


def _ways(
    relay: Relay, delay: int, plain: list[bytes], full: list[bytes], file: Path, times: int, stack: ExitStack
) -> Iterator[Way]:
    def named(name: str) -> str:
        return f"{name}, {delay} ms"

    def few(windows: int) -> int:
        # as many as are sent in about two seconds
        return max(1, min(times, times * windows * 20 // (16 * delay)))

    for name in (OURS, f"{OURS} (again)"):
        yield Way(named(name), times * len(plain), client(relay.url, plain, times, stack))
    for windows in WINDOWS:
        some = few(windows)
        work = client(relay.url, plain, some, stack, inflight=windows)
        yield Way(named(f"{OURS}, inflight={windows}"), some * len(plain), work)
    some = 8
    if slow := peers.pylogbeat(relay.port, full[:WINDOW], some):
        yield Way(named(PYLOGBEAT), some * WINDOW, slow)
    if program := peers.golumber():
        for inflight in GO:
            go = peers.GoLumber(program, relay.port, file, WINDOW, LEVEL, inflight)
            stack.callback(go.close)
            some = few(inflight + 2)

            def run_go(go: peers.GoLumber = go, some: int = some) -> Mapping[str, float]:
                return go.work(some)

            yield Way(named(f"go-lumber, {inflight} in flight"), some * len(full), run_go)


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure all contenders over one relay for each delay, one after the other, in random order."""
    times = 2 if quick else TIMES
    rounds = rounds or (2 if quick else ROUNDS)
    plain = documents()
    full = with_ids(plain)
    with Sink(peek=True) as sink, ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "events"
        file.write_bytes(b"\n".join(full) + b"\n")
        ways = []
        relays = {}
        for delay in DELAYS:
            relays[delay] = relay = Relay(sink.port, delay)
            stack.callback(relay.close)
            made = _ways(relay, delay, plain, full, file, times, stack)
            ways += [way._replace(work=Through(relay, way.work)) for way in made]
        for name, options in ((OURS, {}), (f"{OURS}, inflight=2", {"inflight": 2})):
            work = client(sink.url, plain, times, stack, **options)
            ways.append(Way(f"{name}, no relay", times * len(plain), work))
        got = measure(ways, sink, rounds, Random(seed), warm=1)
        crowded = sum(relay.totals().full for relay in relays.values())
    samples = got.samples

    def at(name: str, delay: int) -> str:
        return f"{name}, {delay} ms"

    ours = at(OURS, JUDGED[0])
    golumber = [f"go-lumber, {inflight} in flight" for inflight in GO]
    targets = [
        Target(at(name, delay), at(OURS, delay), ">=", least, "wall")
        for delay in JUDGED
        for name, least in ((PYLOGBEAT, 4.0), *((name, 1.5) for name in golumber))
    ]
    numbers = [f"{OURS}, inflight={windows}" for windows in WINDOWS]
    printed = [(at(name, delay), at(OURS, delay)) for delay in DELAYS for name in numbers]
    printed += [
        (at(name, delay), at(OURS, delay))
        for delay in DELAYS
        if delay not in JUDGED
        for name in (PYLOGBEAT, *golumber)
    ]
    share = {way.name: way.work.shares[1:] for way in ways if isinstance(way.work, Through)}
    late = {way.name: way.work.late[1:] for way in ways if isinstance(way.work, Through)}
    relay_share = Spread.of(share[ours])
    verdicts = [
        claim(f"A/A: {ours} against itself", ratio(samples, at(f"{OURS} (again)", JUDGED[0]), ours, "wall")),
        *judge(samples, targets),
        *(claim(f"{a} / {b}", ratio(samples, a, b, "wall")) for a, b in printed if a in samples),
        claim(
            f"{OURS}, inflight=2, no relay / {OURS}, no relay",
            ratio(samples, f"{OURS}, inflight=2, no relay", f"{OURS}, no relay", "wall"),
        ),
        claim("the relay's share of a core, ours", relay_share, "<=", RELAY_BOUND),
    ]
    notes = []
    for name, clocks in samples.items():
        rate, busy = 1 / Spread.of(clocks["wall"]).median, Spread.of(got.busy[name]).median
        note = f"{name}: {rate:.3g} M events/s, {got.wire[name]:.0f} bytes an event, sink {busy:.2f} cores"
        if name in share:
            most = max(late[name]) * 1e3
            note += f", relay {Spread.of(share[name]).median:.2f} (at most {most:.1f} ms late)"
        notes.append(note)
    kind = "; a quick run" if quick else ""
    notes.append(
        f"{len(plain):,} documents of {source()}, up to {times} times in a run; windows of {WINDOW} (ours at "
        f"most 1 MiB); every run counted by the sink{kind}"
    )
    notes.append(
        "the round trip is longer by the milliseconds of the name, half of them in each direction; the "
        f"relay's buffers were full {crowded} times"
    )
    notes.append(
        f"go-lumber: level {LEVEL}, prebuilt bytes, its clocks are those of its own process; on the wire it "
        "has two more windows than in flight"
    )
    notes.append("pylogbeat: zlib 6, one window after the other")
    title = "prebuilt JSON to acknowledged, over a longer round trip"
    facts = {"sink": got.busy, "relay": share}
    return Row("delay", title, "us/event", lines(samples), verdicts, notes, facts)
