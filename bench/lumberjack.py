"""Row `lumberjack`: `send(bytes)` of prebuilt events until all are acknowledged, uncompressed, against the
same bytes encoded beforehand and written to the same kind of socket in the same windows, two in flight.

The pre-encoded writer does nothing but `sendall` and `recv`: it is the floor of this socket and this sink.
The sink may use 60 % of a core in its runs, else the row measures the sink and is invalid.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import repeat
from random import Random
from typing import Any

from bench.harness import CLOCKS, NotExact, Row, Spread, Target, claim, judge, lines, ratio
from bench.sink import Sink

WINDOW = 2048
INFLIGHT = 2
SIZE = 300
EVENTS = 1_000 * WINDOW
BOUND = 0.9
SINK_BOUND = 0.6
ROUNDS = 7


def event(size: int = SIZE, extra: bytes = b"") -> bytes:
    """One JSON object of exactly `size` bytes, then what an id adds before its closing brace."""
    head = (
        b'{"@timestamp":"2026-01-01T12:34:56.789Z","log.level":"INFO","log.logger":"app.worker","message":"'
        b"081109 203807 222 INFO dfs.DataNode$PacketResponder: PacketResponder 0 for block blk_-69522958684 "
    )
    return head + b"x" * (size - len(head) - 2) + b'"' + extra + b"}"


def carriers() -> bytes:
    """What the default identity adds to an event."""
    some = b"0123456789abcdef" * 2
    return b',"@metadata":{"_id":"' + some + b'"},"event.id":"' + some + b'"'


def window(body: bytes, n: int = WINDOW) -> bytes:
    """A version 2 window of `n` J frames."""
    frames = [b"2W" + n.to_bytes(4, "big")]
    size = len(body).to_bytes(4, "big")
    for i in range(1, n + 1):
        frames += [b"2J", i.to_bytes(4, "big"), size, body]
    return b"".join(frames)


def _pre_encoded(sink: Sink, events: int) -> Callable[[], None]:
    data = window(event(extra=carriers()))
    sock = socket.create_connection(("127.0.0.1", sink.port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def work() -> None:
        inflight = got = 0
        for _ in repeat(None, events // WINDOW):
            sock.sendall(data)
            inflight += 1
            while inflight >= INFLIGHT:
                got += len(sock.recv(4096))
                inflight, got = inflight - got // 6, got % 6
        while inflight:
            got += len(sock.recv(4096))
            inflight, got = inflight - got // 6, got % 6

    return work


def _client(url: str, events: int, stack: ExitStack, **options: Any) -> Callable[[], None]:
    import logclient

    client = stack.enter_context(logclient.connect(url, compression=0, overflow="block", **options))
    body = event()

    def work() -> None:
        send = client.send
        for _ in repeat(None, events):
            send(body)
        if left := client.flush(60.0):
            raise NotExact(f"{left} events were not acknowledged")

    return work


def _contenders(sink: Sink, events: int, stack: ExitStack) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "pre-encoded", _pre_encoded(sink, events)
    yield "pre-encoded (again)", _pre_encoded(sink, events)
    yield "logclient send(bytes)", _client(sink.url, events, stack)
    yield "logclient send(bytes), check=false", _client(sink.url, events, stack, check=False)
    yield (
        "logclient send(bytes), check=false, identity=none",
        _client(sink.url, events, stack, check=False, identity="none"),
    )


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """All contenders write to one sink, one after the other, in random order."""
    events = EVENTS // 10 if quick else EVENTS
    rounds = rounds or (3 if quick else ROUNDS)
    draw = Random(seed)
    samples: dict[str, dict[str, list[float]]] = {}
    busy: dict[str, list[float]] = {}
    with Sink() as sink, ExitStack() as stack:
        ways = list(_contenders(sink, events, stack))
        for name, work in ways:
            samples[name], busy[name] = {k: [] for k in CLOCKS}, []
            for _ in range(3):   # the kernel's buffers of a connection grow with use
                work()
        for _ in range(rounds):
            for name, work in draw.sample(ways, len(ways)):
                before = sink.counts()
                times = time.thread_time_ns(), time.process_time_ns(), time.perf_counter_ns()
                work()
                after = time.thread_time_ns(), time.process_time_ns(), time.perf_counter_ns()
                counts = sink.wait(before.events + events)
                if counts.events != before.events + events:
                    raise NotExact(f"{name}: {counts.events - before.events} events received, {events} sent")
                for clock, a, b in zip(CLOCKS, times, after, strict=True):
                    samples[name][clock].append((b - a) / events / 1e3)
                busy[name].append((counts.cpu - before.cpu) / ((after[2] - times[2]) / 1e9))
    pre = Spread.of(busy["pre-encoded"])
    verdicts = [
        claim(
            "A/A: pre-encoded against itself", ratio(samples, "pre-encoded (again)", "pre-encoded", "wall")
        ),
        *judge(samples, [Target("pre-encoded", "logclient send(bytes)", ">=", BOUND, "wall")]),
        *(
            claim(f"pre-encoded / {name}", ratio(samples, "pre-encoded", name, "wall"))
            for name in samples
            if name.startswith("logclient send(bytes),")
        ),
        claim("the sink's share of a core, pre-encoded", pre, "<=", SINK_BOUND),
    ]
    if pre.median > SINK_BOUND:
        verdicts = [
            v._replace(reached=None, why="invalid: the sink is the limit") if v.op == ">=" else v
            for v in verdicts
        ]
    notes = []
    for name, clocks in samples.items():
        rate = 1 / Spread.of(clocks["wall"]).median
        notes.append(f"{name}: {rate:.2f} M events/s, sink {Spread.of(busy[name]).median:.2f} cores")
    notes.append(
        f"{events:,} events of {SIZE} bytes a run ({len(event(extra=carriers()))} with the id), windows of "
        f"{WINDOW}, {INFLIGHT} in flight; every run counted by the sink" + ("; a quick run" if quick else "")
    )
    title = "send(bytes) to acknowledged, uncompressed, against pre-encoded bytes"
    return Row("lumberjack", title, "us/event", lines(samples), verdicts, notes, {"sink": busy})
