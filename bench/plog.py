"""Row `plog`: `send(bytes)` until the kernel has it all.

The peers are a loop in C over `sendmmsg`, one with UDP GSO, and plain Python (`struct`, mmh3, `send`).
A loop with GSO that does not hash shows the price of the hash.

All contenders send the same payloads, boxed and hashed message by message, over separate sockets on the
loopback; the bodies of the others already have the member that ours inserts. Each of our three ways to the
kernel is compared with the loop that has the same limit. The sink's receive buffer holds a whole run, and the
sink counts complete messages.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench.harness import NotExact, Row, Spread, Target, claim, judge, lines, ratio
from bench.lumberjack import Measured, Way, event, measure
from bench.program import Program, SinkError
from bench.sink import compiled

SINK_SOURCE = Path(__file__).with_name("udpsink.c")
LOOP_SOURCE = Path(__file__).with_name("udploop.c")
BUILT = SINK_SOURCE.parent.parent / "build" / "bench"
HEADERS = 28  # bytes of the IPv4 and UDP headers
HEADER = struct.Struct(">BBHHHIIIHH")
CARRIER = len(',"uuid":""') + 32
ROUNDS = 7
LOOP, GSO, PYTHON, OURS = "C sendmmsg", "C GSO", "Python", "logclient"
UNHASHED = "C GSO, no hash"
WAYS = ("gso", "mmsg", "send")
BOUND = 0.95
"""What ours by GSO is to have of the rate of the loop with GSO, which hashes, too."""


class Case(NamedTuple):
    """A case: `messages` of `size` bytes a run, in IP packets of `mtu` bytes."""

    name: str
    size: int
    mtu: int
    messages: int

    @property
    def datagram(self) -> int:
        return self.mtu - HEADERS


CASES = (
    Case("300 B, MTU 1400", 300, 1400, 50_000),
    Case("8 KiB, MTU 1400", 8 << 10, 1400, 6_000),
    Case("8 KiB, MTU 8192", 8 << 10, 8192, 6_000),
    Case("64 KiB, MTU 1400", 64 << 10, 1400, 1_000),
    Case("64 KiB, MTU 8192", 64 << 10, 8192, 1_000),
)


class Counts(NamedTuple):
    """Totals since the sink started."""

    events: int  # messages whose fragments all arrived in order
    datagrams: int
    bytes: int
    payload: int
    simple: int
    torn: int  # fragments out of order
    last: float
    cpu: float


class UdpSink:
    """`udpsink.c` as a process; see ``bench.sink.Sink``."""

    def __init__(self) -> None:
        program = compiled(SINK_SOURCE, BUILT / "udpsink", ())
        self._program = Program([str(program)], "the sink")
        line = self._program.read()
        self.port: int = line["port"]
        self.buffer: int = line["buffer"]
        self.url = f"plog://127.0.0.1:{self.port}"

    def counts(self) -> Counts:
        """Return the totals of everything that has arrived."""
        return Counts(**self._program.ask())

    def wait(self, events: int, timeout: float = 10.0) -> Counts:
        """Wait until at least `events` messages are complete, and return the totals.

        Raises:
            SinkError: they are not complete within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            counts = self.counts()
            if counts.torn:
                raise SinkError(f"{counts.torn} fragments out of their place")
            if counts.events >= events:
                return counts
            if time.monotonic() > deadline:
                raise SinkError(
                    f"{counts.events} messages are complete, {events} were sent: a receive buffer of "
                    f"{self.buffer:,} bytes does not hold a run"
                )
            time.sleep(0.005)

    def __enter__(self) -> UdpSink:
        return self

    def __exit__(self, *exc: object) -> None:
        self._program.close()


def body_of(size: int) -> bytes:
    """Make an event document without its id, which our client turns into `size` bytes."""
    return event(size - CARRIER)


def carried(size: int) -> bytes:
    """Make the same document with an id."""
    return event(size - CARRIER, b',"uuid":"' + b"0123456789abcdef" * 2 + b'"')


class Sockets:
    """A maker of connected sockets."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._port, self._stack = port, stack

    def __call__(self) -> socket.socket:
        sock = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.connect(("127.0.0.1", self._port))
        return sock


def loop(sock: socket.socket, case: Case, gso: bool, hashed: bool = True) -> Callable[[], None]:
    """Make the work of the loop in C; without `hashed` (GSO only), its messages have the hash 0."""
    program = ctypes.CDLL(str(compiled(LOOP_SOURCE, BUILT / "udploop.so", ("-shared", "-fPIC"))))
    program.run.argtypes = [
        ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_long, ctypes.c_uint32,
        ctypes.c_int, ctypes.c_int,
    ]  # fmt: skip
    program.run.restype = ctypes.c_long
    body, first = carried(case.size), 1

    def work() -> None:
        nonlocal first
        sent = program.run(
            sock.fileno(), body, len(body), case.datagram, case.messages, first, int(gso), int(hashed)
        )
        if sent != case.messages:
            raise NotExact(f"the C loop has sent {sent} messages of {case.messages}")
        first += case.messages

    return work


def plain(sock: socket.socket, case: Case, messages: int) -> Callable[[], None]:
    """Make the work of straightforward plain Python."""
    import mmh3

    body, each, number = carried(case.size), case.datagram - HEADER.size, 0

    def work() -> None:
        nonlocal number
        send, pack, murmur, size = sock.send, HEADER.pack, mmh3.hash, len(body)
        count = -(-size // each)
        for _ in repeat(None, messages):
            number += 1
            found = murmur(body, 0, signed=False)
            for index in range(count):
                head = pack(0, 1, count, index, each, number, size, found, 0, 0)
                send(head + body[index * each : (index + 1) * each])

    return work


def client(url: str, case: Case, stack: ExitStack, way: str = "gso", **options: Any) -> Callable[[], None]:
    """Make the work of our client: `send` for each event, then `flush`, which waits for the kernel."""
    import logclient
    from logclient.transports.udp import UdpLink

    made = stack.enter_context(
        logclient.connect(url, overflow="block", pace=0, pace_bytes=0, mtu=case.mtu, **options)
    )
    UdpLink.send_method = way
    body = body_of(case.size)

    def work() -> None:
        send = made.send
        for _ in repeat(None, case.messages):
            send(body)
        if left := made.flush(60.0):
            raise NotExact(f"{left} events were not handed over")

    return work


def _ways(case: Case, sink: UdpSink, stack: ExitStack) -> Iterator[Way]:
    sockets = Sockets(sink.port, stack)

    def way(name: str, work: Callable[[], None], messages: int = case.messages) -> Way:
        return Way(f"{name}, {case.name}", messages, work)

    yield way(LOOP, loop(sockets(), case, gso=False))
    yield way(f"{LOOP} (again)", loop(sockets(), case, gso=False))
    yield way(GSO, loop(sockets(), case, gso=True))
    yield way(UNHASHED, loop(sockets(), case, gso=True, hashed=False))
    few = case.messages // 4
    yield way(PYTHON, plain(sockets(), case, few), few)
    for name in WAYS:
        yield way(f"{OURS} {name}", client(sink.url, case, stack, name))
    some = "8MiB"  # so that the queue stays in the caches
    yield way(f"{OURS} gso, max_bytes={some}", client(sink.url, case, stack, max_bytes=some))
    if case.size == CASES[0].size:
        yield way(f"{OURS} gso (again)", client(sink.url, case, stack))
        yield way(f"{OURS} gso, check=false", client(sink.url, case, stack, check=False))


def _rate_note(got: Measured, name: str) -> str:
    wall = Spread.of(got.samples[name]["wall"])
    return (
        f"{name}: {1e6 / wall.median:,.0f} messages/s, {got.wire[name]:.0f} bytes each in datagrams, "
        f"sink {Spread.of(got.busy[name]).median:.2f} cores"
    )


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure case by case all contenders in random order, each over a separate socket."""
    rounds = rounds or (3 if quick else ROUNDS)
    got = Measured({}, {}, {}, {})
    buffer = 0
    for case in CASES:
        fit = case._replace(messages=case.messages // 10) if quick else case
        with UdpSink() as sink, ExitStack() as stack:
            buffer = sink.buffer
            ways = list(_ways(fit, sink, stack))
            one = measure(ways, sink, rounds, Random(seed), warm=1)  # type: ignore[arg-type]
        got.samples.update(one.samples)
        got.busy.update(one.busy)
        got.wire.update(one.wire)
    samples = got.samples
    small = CASES[0].name
    targets = [
        *(Target(f"{GSO}, {case.name}", f"{OURS} gso, {case.name}", ">=", BOUND, "wall") for case in CASES),
        Target(f"{LOOP}, {small}", f"{OURS} gso, {small}", ">=", 1.0, "wall"),
    ]
    verdicts = [
        *(
            claim(
                f"A/A: {name} against itself",
                ratio(samples, f"{name} (again), {small}", f"{name}, {small}", "wall"),
            )
            for name in (LOOP, f"{OURS} gso")
        ),
        *judge(samples, targets),
    ]
    by_gso = f"{OURS} gso"
    limits = [(LOOP, by_gso), (UNHASHED, by_gso), (LOOP, f"{OURS} mmsg"), (PYTHON, f"{OURS} send")]
    for case in CASES:
        for over, under in limits[case.name == small :]:
            a, b = f"{over}, {case.name}", f"{under}, {case.name}"
            verdicts.append(claim(f"{a} / {b}", ratio(samples, a, b, "wall")))
    notes = [_rate_note(got, name) for name in samples]
    notes += [
        f"{', '.join(f'{case.messages:,} of {case.name}' for case in CASES)} a run, plain Python a quarter; "
        f"every run counted by the sink, message by message; its receive buffer: {buffer:,} bytes"
        + ("; a quick run" if quick else ""),
        f"{OURS}: send(bytes), JSON checked, id put in, pace=0; wall ends when the kernel has all datagrams",
        "the others: bodies with the id made before, no check, no queue between two threads",
    ]
    title = "send(bytes) until the kernel has it, against loops in C over the same kind of socket"
    return Row("plog", title, "us/message", lines(samples), verdicts, notes, {"sink": got.busy})
