"""Row `logjam`: the cost of a message for the thread that sends it, or for our caller and sender.

The judged figure is the CPU of the caller and of our sender together. libzmq's own thread does the same for
all contenders and is reported separately, as is the sustained rate: events by the time from the first `send`
until the sink has all of them.

All contenders send messages of four frames (a request has an empty one before them) with the same body of 300
bytes and an id, uncompressed, over sockets of the same kind and with the same high-water mark. The others
have prepared bodies, do not read the clock, and pack the meta frame with their own number. Ours checks the
JSON, inserts the id, reads the clock and hashes.
"""

from __future__ import annotations

import ctypes
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any

from bench.harness import ROOT, NotExact, Row, Spread, Target, claim, judge, lines, ratio
from bench.lumberjack import SINK_BOUND, SIZE, Measured, Way, event, measure
from bench.sink import Sink, compiled

APP_ENV = b"shop-production"
TOPIC = b"logs.shop.production"
META = Struct(">HBBIQQ")
TAG, VERSION = 0xCABD, 1
ACCEPTED = [APP_ENV, b"202 Accepted"]
INFLIGHT = 256
HWM = 1000
MORE = 2  # zmq.SNDMORE is an enumeration: `|` of two costs a microsecond
EVENTS = 1_500_000
ROUNDS = 15

MULTIPART = "send_multipart"
FOUR = "4 x send"
LOOP = "C loop, 4 x zmq_send"
OURS = "logclient"
BOUND = 1.1  # how much cheaper ours is to be than the loop in C, in CPU of caller and sender
WALL = ", by wall"
SOURCE = Path(__file__).with_name("zmqloop.c")
BINARY = ROOT / "build" / "bench" / "zmqloop.so"

Run = Callable[[int], object]


def carried(body: bytes) -> bytes:
    """Return a body with an id at the place where our client inserts it."""
    return body[:-1] + b',"request_id":"' + b"0123456789abcdef" * 2 + b'"}'


def library() -> str:
    """Return the path of the libzmq that pyzmq has loaded: a separate file, or pyzmq's extension."""
    from zmq.backend.cython import _zmq

    mapped = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split(maxsplit=5)[-1] for line in mapped if "libzmq" in line}
    return min(files, default=str(_zmq.__file__))


class Sockets:
    """A maker of pyzmq sockets, each with a separate context and I/O thread."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._port = port
        self._stack = stack

    def __call__(self, kind: str = "DEALER") -> Any:
        import zmq

        context: zmq.Context[Any] = zmq.Context(1)
        self._stack.callback(context.destroy, linger=0)
        sock = context.socket(getattr(zmq, kind))
        sock.SNDHWM, sock.RCVHWM = HWM, 0
        sock.connect(f"tcp://127.0.0.1:{self._port}")
        return sock


def multipart(sock: Any, body: bytes) -> Run:
    """Send by `send_multipart`, as in pyzmq's documentation."""

    def run(n: int) -> None:
        send, pack = sock.send_multipart, META.pack
        for number in range(n):
            send([APP_ENV, TOPIC, body, pack(TAG, 0, VERSION, 0, 1, number)])

    return run


def four(sock: Any, body: bytes) -> Run:
    """Send by `Socket.send` as fast as possible: integer flags, one method look-up, copied frames."""

    def run(n: int) -> None:
        send, pack = sock.send, META.pack
        for number in range(n):
            send(APP_ENV, MORE)
            send(TOPIC, MORE)
            send(body, MORE)
            send(pack(TAG, 0, VERSION, 0, 1, number))

    return run


def four_below(sock: Any, body: bytes) -> Run:
    """Send by the compiled method below `Socket.send`."""
    from zmq.backend import Socket

    below = Socket.send.__get__(sock)

    def run(n: int) -> None:
        send, pack = below, META.pack
        for number in range(n):
            send(APP_ENV, MORE)
            send(TOPIC, MORE)
            send(body, MORE)
            send(pack(TAG, 0, VERSION, 0, 1, number))

    return run


def requests(sock: Any, body: bytes, window: int) -> Run:
    """Send requests by `send_multipart` and `recv_multipart`, with up to `window` of them unanswered."""

    def run(n: int) -> None:
        send, receive, pack = sock.send_multipart, sock.recv_multipart, META.pack
        for number in range(n):
            if number >= window and receive() != ACCEPTED:
                raise NotExact("a request was not accepted")
            send([b"", APP_ENV, TOPIC, body, pack(TAG, 0, VERSION, 0, 1, number)])
        for _ in repeat(None, min(n, window)):
            if receive() != ACCEPTED:
                raise NotExact("a request was not accepted")

    return run


class Loop:
    """The loop in C, on sockets and with the libzmq of pyzmq."""

    def __init__(self) -> None:
        shared = ("-shared", "-fPIC")
        program = ctypes.CDLL(str(compiled(SOURCE, BINARY, shared, (*shared, "-ldl"))))
        if program.load(library().encode()):
            raise RuntimeError("the C loop found no libzmq")
        self._run = program.run
        number, text = ctypes.c_uint64, ctypes.c_char_p
        self._run.argtypes = [ctypes.c_void_p, text, text, text, ctypes.c_size_t, number, number,
                              ctypes.c_long, ctypes.c_long]  # fmt: skip
        self._run.restype = ctypes.c_long

    def __call__(self, sock: Any, body: bytes, window: int = 0) -> Run:
        def run(n: int) -> None:
            if self._run(sock.underlying, APP_ENV, TOPIC, body, len(body), 1, 1, n, window) != n:
                raise NotExact("the C loop has stopped early")

        return run


def client(url: str, body: bytes, stack: ExitStack, **options: Any) -> Run:
    """Send events one by one by `send`, then `flush`."""
    import logclient

    options = {"compression": "none", "hwm": HWM} | options
    made = stack.enter_context(logclient.connect(url, overflow="block", **options))

    def run(n: int) -> None:
        send = made.send
        for _ in repeat(None, n):
            send(body)
        if left := made.flush(60.0):
            raise NotExact(f"{left} events were not sent")

    return run


def _others() -> float:
    # The CPU of all Python threads except this one; libzmq's threads are not included.
    mine = threading.get_ident()
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.ident not in (None, mine)
    )


def way(name: str, events: int, run: Run, sink: Sink) -> Way:
    """Return the contender with its clocks.

    The clocks of caller and sender run until all messages are sent; that of libzmq and wall time run until
    all are received. The sink's CPU time is reported with them.
    """

    def work() -> Mapping[str, float]:
        before = sink.counts()
        start, process = time.monotonic(), time.process_time()
        caller, sender = time.thread_time(), _others()
        run(events)
        called, own = time.thread_time() - caller, time.thread_time() - caller + _others() - sender
        after = sink.wait(before.events + events)
        python = time.thread_time() - caller + _others() - sender
        return {
            "own": own,
            "caller": called,
            "io": max(time.process_time() - process - python, 0.0),
            "wall": after.last - start,
        }

    return Way(name, events, work)


def _ways(sink: Sink, events: int, stack: ExitStack) -> Iterator[Way]:
    from logclient.logjam.config import LogjamConfig

    stack.callback(setattr, LogjamConfig, "compress_over", LogjamConfig.compress_over)
    LogjamConfig.compress_over = 0  # the bodies are shorter than those that are compressed
    body, sockets, loop = event(), Sockets(sink.port, stack), Loop()
    full = carried(body)
    push = sink.url.replace("logjam:", "logjam+push:") + "/shop-production"
    request = f"{sink.url}/shop-production"
    tell = f"{request}?mode=async"
    folder = stack.enter_context(tempfile.TemporaryDirectory())

    def ours(url: str, **options: Any) -> Run:
        return client(url, body, stack, **options)

    each: list[tuple[str, float, Run]] = [
        (MULTIPART, 0.1, multipart(sockets(), full)),
        (f"{MULTIPART} (again)", 0.1, multipart(sockets(), full)),
        (FOUR, 0.3, four(sockets(), full)),
        (f"{FOUR}, backend's", 0.5, four_below(sockets(), full)),
        (LOOP, 1, loop(sockets(), full)),
        (f"{LOOP} (again)", 1, loop(sockets(), full)),
        (f"{LOOP}, PUSH", 1, loop(sockets("PUSH"), full)),
        (OURS, 1, ours(tell)),
        (f"{OURS} (again)", 1, ours(tell)),
        (f"{OURS}, PUSH", 1, ours(push)),
        (f"{OURS}, max_bytes=8MiB", 1, ours(tell, max_bytes="8MiB")),
        (f"{OURS}, hwm=10000", 1, ours(tell, hwm=10000)),
        (f"{OURS}, check=false, identity=none", 1, ours(tell, check=False, identity="none")),
        (f"{OURS}, with a ledger", 0.5, ours(tell, ledger=folder)),
        *((f"{OURS}, {method}", 0.2, ours(tell, compression=method)) for method in ("zlib", "snappy", "lz4")),
        ("requests, window 256: multipart", 0.05, requests(sockets(), full, INFLIGHT)),
        ("requests, window 256: C loop", 0.5, loop(sockets(), full, INFLIGHT)),
        (f"requests, window 256: {OURS}", 0.5, ours(request, inflight=INFLIGHT)),
        ("requests, one by one: multipart", 0.01, requests(sockets(), full, 1)),
        ("requests, one by one: C loop", 0.01, loop(sockets(), full, 1)),
        (f"requests, one by one: {OURS}", 0.01, ours(request, inflight=1)),
    ]
    for name, share, run in each:
        yield way(name, int(events * share), run, sink)


def _rate_note(got: Measured, name: str) -> str:
    wall, busy = Spread.of(got.samples[name]["wall"]), Spread.of(got.busy[name])
    return (
        f"{name}: {1 / wall.median:.3g} M messages/s [{1 / wall.high:.3g}-{1 / wall.low:.3g}], "
        f"{got.wire[name]:.0f} bytes each on the wire, sink {busy.median:.2f} cores"
    )


def _limit(got: Measured, name: str) -> str:
    # The cores that each part used at the sustained rate.
    samples = got.samples[name]

    def cores(clock: str) -> float:
        return statistics.median(a / b for a, b in zip(samples[clock], samples["wall"], strict=True))

    return (
        f"{name}: cores in use, caller and sender {cores('own'):.2f}, libzmq's I/O thread {cores('io'):.2f}, "
        f"the sink {statistics.median(got.busy[name]):.2f}"
    )


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure all contenders with one sink, one after the other, in random order."""
    events = EVENTS // 10 if quick else EVENTS
    rounds = rounds or (3 if quick else ROUNDS)
    with Sink(zmtp=True) as sink, ExitStack() as stack:
        ways = list(_ways(sink, events, stack))
        got = measure(ways, sink, rounds, Random(seed), warm=1)
    samples = got.samples
    sink_share = Spread.of(got.busy[LOOP])
    pairs: Sequence[tuple[str, str, str]] = [
        (MULTIPART, OURS, "own"),
        (FOUR, OURS, "own"),
        (f"{FOUR}, backend's", OURS, "own"),
        (LOOP, OURS, "wall"),
        (f"{LOOP}, PUSH", f"{OURS}, PUSH", "own"),
        *(
            (f"{form}: {peer}", f"{form}: {OURS}", clock)
            for form in ("requests, window 256", "requests, one by one")
            for peer in ("multipart", "C loop")
            for clock in ("own", "wall")
        ),
    ]
    verdicts = [
        claim(f"A/A: {MULTIPART} against itself", ratio(samples, f"{MULTIPART} (again)", MULTIPART, "own")),
        claim(f"A/A: {OURS} against itself", ratio(samples, f"{OURS} (again)", OURS, "own")),
        claim(f"A/A: {LOOP} against itself", ratio(samples, f"{LOOP} (again)", LOOP, "own")),
        *judge(samples, [Target(LOOP, OURS, ">=", BOUND, "own")]),
        *(
            claim(f"{over} / {under}{WALL if clock == 'wall' else ''}", ratio(samples, over, under, clock))
            for over, under, clock in pairs
        ),
        claim("the sink's share of a core, C loop", sink_share, "<=", SINK_BOUND),
    ]
    if sink_share.median > SINK_BOUND:
        verdicts = [
            v._replace(reached=None, why="invalid: the sink is the limit") if v.op == ">=" else v
            for v in verdicts
        ]
    notes = [_rate_note(got, name) for name in samples]
    notes += [_limit(got, name) for name in (LOOP, OURS)]
    called, own, loop = (
        statistics.median(samples[name][clock]) * 1e3
        for name, clock in ((OURS, "caller"), (OURS, "own"), (LOOP, "own"))
    )
    notes.append(
        f"ns/message, {OURS}: the caller {called:.0f}, the sender {own - called:.0f}, of which four zmq_send "
        f"are about what the C loop takes, {loop:.0f}; {BOUND} times cheaper than the loop would be "
        f"{loop / BOUND:.0f}"
    )
    notes += [
        f"{events:,} messages a run, fewer for slow ones; bodies of {SIZE} bytes ({len(carried(event()))} "
        f"with the id), hwm {HWM}; every run counted by the sink, which reads ZMTP without libzmq"
        + ("; a quick run" if quick else ""),
        "the others: bodies made before, the meta frame packed for each message; no clock, hash or check",
        f"{OURS}: send(bytes), JSON checked, id put in, hash, clock; no ledger but where it says so",
    ]
    title = "what a message costs caller and sender; async, 300 bytes"
    return Row("logjam", title, "us/message", lines(samples), verdicts, notes, {"sink": got.busy})
