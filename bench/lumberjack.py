"""Row `lumberjack`: `send(bytes)` of prebuilt events until all are acknowledged, uncompressed.

The peer writes the same bytes, encoded beforehand, to the same kind of socket in the same windows, two in
flight.

The pre-encoded writer only calls `sendall` and `recv`, so it is the lower bound with this socket and sink.
Judged are events of 1 KiB; of 300 bytes, copying them once costs more than the target would leave.
The sink may use 60 % of a core in its runs, else the row measures the sink and is invalid. Two other clients
are used with their defaults; they always compress.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import repeat
from random import Random
from typing import Any, NamedTuple

from bench import peers
from bench.data import records, source
from bench.harness import CLOCKS, NotExact, Row, Spread, claim, lines, ratio
from bench.ours import NOWHERE, QueueOnly
from bench.sink import Counts, Sink

WINDOW = 2048
INFLIGHT = 2
SIZE = 300
LARGE = 1024
EVENTS = 1_000 * WINDOW
PEER_EVENTS = 40 * WINDOW
LOGSTASH_EVENTS = 6_000
BOUND = 0.6  # at 1 KiB; of 300 bytes the copy alone is beyond it
SINK_BOUND = 0.6
ROUNDS = 7
PRE = "pre-encoded"
OURS = "logclient send(bytes)"


class Way(NamedTuple):
    """One way to send events to the sink. `work` returns its clocks in seconds, or None to use ours."""

    name: str
    events: int
    work: Callable[[], Mapping[str, float] | None]
    sink: Sink | None = None  # None: that of the row


class Measured(NamedTuple):
    """The results of `measure`, by contender.

    Attributes:
        samples: microseconds per event by clock, round by round.
        busy: the sink's cores.
        wire: bytes per event, decrypted.
        cipher: of its connection; empty: plain.
    """

    samples: dict[str, dict[str, list[float]]]
    busy: dict[str, list[float]]
    wire: dict[str, float]
    cipher: dict[str, str]


def event(size: int = SIZE, extra: bytes = b"") -> bytes:
    """Make a JSON object of exactly `size` bytes, plus the members `extra` before its closing brace."""
    head = (
        b'{"@timestamp":"2026-01-01T12:34:56.789Z","log.level":"INFO","log.logger":"app.worker","message":"'
        b"081109 203807 222 INFO dfs.DataNode$PacketResponder: PacketResponder 0 for block blk_-69522958684 "
    )
    return head + b"x" * (size - len(head) - 2) + b'"' + extra + b"}"


def carriers(some: bytes = b"0123456789abcdef" * 2) -> bytes:
    """Return the members that the default identity adds to an event."""
    return b',"@metadata":{"_id":"' + some + b'"},"event.id":"' + some + b'"'


def window(body: bytes, n: int = WINDOW) -> bytes:
    """Encode a version 2 window of `n` J frames."""
    frames = [b"2W" + n.to_bytes(4, "big")]
    size = len(body).to_bytes(4, "big")
    for i in range(1, n + 1):
        frames += [b"2J", i.to_bytes(4, "big"), size, body]
    return b"".join(frames)


def measure(ways: Sequence[Way], sink: Sink, rounds: int, draw: Random, warm: int = 3) -> Measured:
    """Measure all ways, one after the other in random order.

    Raises:
        NotExact: the sink has another count.
    """
    got = Measured({}, {}, {}, {})
    for way in ways:
        got.samples[way.name], got.busy[way.name] = {}, []
        for _ in range(warm if way.name.startswith((PRE, OURS)) else 1):
            _run(way, sink)  # the kernel's buffers of a connection grow with its use
    for _ in range(rounds):
        for way in draw.sample(ways, len(ways)):
            seconds, before, after = _run(way, sink)
            for clock, spent in seconds.items():
                got.samples[way.name].setdefault(clock, []).append(spent / way.events * 1e6)
            got.busy[way.name].append((after.cpu - before.cpu) / seconds["wall"])
            got.wire[way.name] = (after.bytes - before.bytes) / way.events
            got.cipher[way.name] = getattr(after, "cipher", "")
    return got


def _run(way: Way, sink: Sink) -> tuple[Mapping[str, float], Counts, Counts]:
    sink = way.sink or sink
    before = sink.counts()
    times = time.thread_time_ns(), time.process_time_ns(), time.perf_counter_ns()
    own = way.work()
    after = time.thread_time_ns(), time.process_time_ns(), time.perf_counter_ns()
    counts = sink.wait(before.events + way.events)
    if counts.events != before.events + way.events:
        raise NotExact(f"{way.name}: {counts.events - before.events} events received, {way.events} sent")
    seconds = own or {k: (b - a) / 1e9 for k, a, b in zip(CLOCKS, times, after, strict=True)}
    return seconds, before, counts


def pre_encoded(port: int, data: bytes, windows: int, stack: ExitStack) -> Callable[[], None]:
    """Make the work of sending the same window `windows` times over one connection, two in flight."""
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def work() -> None:
        inflight = got = 0
        for _ in repeat(None, windows):
            sock.sendall(data)
            inflight += 1
            while inflight >= INFLIGHT:
                got += len(sock.recv(4096))
                inflight, got = inflight - got // 6, got % 6
        while inflight:
            got += len(sock.recv(4096))
            inflight, got = inflight - got // 6, got % 6

    return work


def client(
    url: str, bodies: Sequence[bytes], times: int, stack: ExitStack, **options: Any
) -> Callable[[], None]:
    """Make the work of sending all bodies `times` times by `send`, followed by `flush`."""
    import logclient

    made = stack.enter_context(logclient.connect(url, overflow="block", **options))

    def work() -> None:
        send = made.send
        for _ in repeat(None, times):
            for body in bodies:
                send(body)
        if left := made.flush(60.0):
            raise NotExact(f"{left} events were not acknowledged")

    return work


def _ways(sink: Sink, events: int, stack: ExitStack) -> Iterator[Way]:
    port, url, windows = sink.port, sink.url, events // WINDOW
    small, large = [event()] * WINDOW, [event(LARGE)] * WINDOW
    encoded = window(event(extra=carriers()))
    yield Way(PRE, events, pre_encoded(port, encoded, windows, stack))
    yield Way(f"{PRE} (again)", events, pre_encoded(port, encoded, windows, stack))
    yield Way(OURS, events, client(url, small, windows, stack, compression=0))
    # A caller faster than the sender fills the queue: with this bound it stays in the caches.
    few = client(url, small, windows, stack, compression=0, max_bytes="8MiB")
    yield Way(f"{OURS}, max_bytes=8MiB", events, few)
    yield Way(f"{OURS}, check=false", events, client(url, small, windows, stack, compression=0, check=False))
    yield Way(
        f"{OURS}, check=false, identity=none",
        events,
        client(url, small, windows, stack, compression=0, check=False, identity="none"),
    )
    # A window of either holds a mebibyte of events of this size.
    fit = (1 << 20) // len(event(LARGE, carriers()))
    some = events // 4 // fit * fit
    encoded = window(event(LARGE, carriers()), fit)
    yield Way(f"{PRE}, 1 KiB", some, pre_encoded(port, encoded, some // fit, stack))
    yield Way(f"{OURS}, 1 KiB", some, client(url, large[:fit], some // fit, stack, compression=0))
    some = min(PEER_EVENTS, events)
    if work := peers.pylogbeat(port, [event(extra=carriers())] * WINDOW, some // WINDOW):
        yield Way("pylogbeat", some, work)
    some = min(LOGSTASH_EVENTS, events // 100)
    if work := peers.logstash_beats(port, records(1000), some // 1000, stack):
        yield Way("python-logstash-async", some // 1000 * 1000, work)


def stages(rounds: int) -> dict[str, float]:
    """Measure the stages of our two threads alone, with warm caches.

    Returns:
        Stage -> nanoseconds per event, the best of `rounds`.
    """
    import logclient
    from logclient._ext.inflight import InflightBatches
    from logclient._ext.lumberjack import Codec
    from logclient._ext.queue import EventQueue

    body, best = event(), {}

    def note(name: str, start: int) -> None:
        spent = (time.perf_counter_ns() - start) / WINDOW
        best[name] = min(best.get(name, spent), spent)

    with logclient.connect(NOWHERE) as made:
        parked, send = QueueOnly(made), made.send
        for _ in repeat(None, rounds):
            start = time.perf_counter_ns()
            for _ in repeat(None, WINDOW):
                send(body)
            note("send()", start)
            parked.count()
    raw = 1
    writers = {
        "encode": Codec(bytes(10), compression=0, window_bytes=1 << 24),
        "encode, check=false": Codec(bytes(10), compression=0, window_bytes=1 << 24, check=False),
    }
    for name, codec in writers.items():
        for _ in repeat(None, rounds):
            queue = EventQueue()
            for _ in repeat(None, WINDOW):
                queue.push(body, 2, raw)
            in_flight = InflightBatches(queue)
            codec.connected(0.0)
            start = time.perf_counter_ns()
            batch = in_flight.take(WINDOW, 1 << 30)
            note("take", start)
            capsule = batch.capsule
            start = time.perf_counter_ns()
            codec.encode(capsule, WINDOW, 0.0)
            note(name, start)
            codec.take_bytes()
    return best


def _limit(got: Measured, rounds: int) -> list[str]:
    # The cost of each part, and so the best possible rate of two cores.
    def median(values: Sequence[float]) -> float:
        return statistics.median(values) * 1e3

    part = stages(rounds)
    wall = median(got.samples[PRE]["wall"])
    send = median(got.samples[PRE]["process"])
    sink = median([share * of for share, of in zip(got.busy[PRE], got.samples[PRE]["wall"], strict=True)])
    ours = got.samples[OURS]
    caller = median(ours["cpu"])
    sender = median(ours["process"]) - caller
    work = part["take"] + part["encode"] + send
    least = part["send()"] + work + sink
    alone = ", ".join(f"{name} {spent:.0f}" for name, spent in part.items())
    bounds = (
        f"bounds, ns/event: all of that on two cores that never rest {least / 2:.0f}, the sender with a core "
        f"of its own {work:.0f}; {BOUND} of the pre-encoded rate {wall / BOUND:.0f}, measured "
        f"{median(ours['wall']):.0f}"
    )
    return [
        f"ns/event, each alone and caches warm: {alone}",
        f"ns/event, CPU in the pre-encoded run: its send(2) {send:.0f}, the sink {sink:.0f}",
        f"ns/event, CPU in our run: the caller {caller:.0f}, the sender {sender:.0f}",
        bounds,
    ]


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure all contenders with one sink, one after the other, in random order."""
    events = EVENTS // 10 if quick else EVENTS
    rounds = rounds or (3 if quick else ROUNDS)
    with Sink() as sink, ExitStack() as stack:
        ways = list(_ways(sink, events, stack))
        got = measure(ways, sink, rounds, Random(seed), warm=1 if quick else 3)
    samples, busy = got.samples, got.busy
    pre = Spread.of(busy[f"{PRE}, 1 KiB"])
    both = claim(
        f"{PRE} / {OURS}, both 1 KiB",
        ratio(samples, f"{PRE}, 1 KiB", f"{OURS}, 1 KiB", "wall"), ">=", BOUND,
    )  # fmt: skip
    if pre.median > SINK_BOUND:
        both = both._replace(reached=None, why="invalid: the sink is the limit")
    verdicts = [
        claim("A/A: pre-encoded against itself", ratio(samples, f"{PRE} (again)", PRE, "wall")),
        both,
        claim("the sink's share of a core, pre-encoded, 1 KiB", pre, "<=", SINK_BOUND),
        *(
            claim(f"{PRE} / {name}", ratio(samples, PRE, name, "wall"))
            for name in samples
            if name.startswith(OURS) and not name.endswith("1 KiB")
        ),
        *(
            claim(f"{name} / {OURS}", ratio(samples, name, OURS, "wall"))
            for name in samples
            if not name.startswith((PRE, OURS))
        ),
        claim("the sink's share of a core, pre-encoded", Spread.of(busy[PRE])),
    ]
    notes = []
    for name, clocks in samples.items():
        rate = 1 / Spread.of(clocks["wall"]).median
        notes.append(
            f"{name}: {rate:.3g} M events/s, {got.wire[name]:.0f} bytes an event on the wire, "
            f"sink {Spread.of(busy[name]).median:.2f} cores"
        )
    notes += _limit(got, 20 if quick else 200)
    notes += [
        f"{events:,} events of {SIZE} bytes a run ({len(event(extra=carriers()))} with the id), fewer for "
        f"the last four; windows of {WINDOW} or 1 MiB, {INFLIGHT} in flight; every run counted by the sink"
        + ("; a quick run" if quick else ""),
        "pylogbeat: one send() of 2048 prebuilt events after the other, zlib 6",
        "python-logstash-async: handle() of records (its own documents), windows of 25, two a connection",
        f"its records: {source()}",
        "neither sets TCP_NODELAY, so a window may wait 40 ms for TCP's delayed acknowledgement: see the CPU",
    ]
    title = "send(bytes) to acknowledged, uncompressed, against pre-encoded bytes"
    return Row("lumberjack", title, "us/event", lines(samples), verdicts, notes, {"sink": busy})
