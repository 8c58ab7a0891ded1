"""Row `tls`: Lumberjack over TLS, beside plain TCP, a loop in C over `SSL_write`, and the peers over TLS.

Uncompressed, our client sends the same events over plain TCP and over TLS. The loop in C writes the same
bytes, encoded beforehand, with the same cipher in the same records to the same sink: what it spends in
`SSL_write` (encryption and `send(2)`) is what TLS may cost us, with 15 % for all the rest. The sink decrypts
in its own process. A note has what OpenSSL needs to encrypt records without a connection: no TLS is faster.

Compressed, the peers of row `compressed` are compared over TLS. Each negotiates its own cipher.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from bench import compressed
from bench.certificates import HOST, Certificate, certificate, ssl_library
from bench.harness import ROOT, Line, NotExact, Row, Spread, Verdict, claim, lines, ratio
from bench.lumberjack import (
    INFLIGHT,
    LARGE,
    SIZE,
    WINDOW,
    Measured,
    Way,
    carriers,
    client,
    event,
    measure,
    pre_encoded,
    window,
)
from bench.sink import Sink, compiled

SOURCE = Path(__file__).with_name("tlsloop.c")
BINARY = ROOT / "build" / "bench" / "tlsloop.so"
EVENTS = 500 * WINDOW
ROUNDS = 7
CPU_BOUND = 1.15  # what we may cost beyond plain TCP, as a share of SSL_write in C
WALL_BOUND = 0.65
PYLOGBEAT_BOUND, GOLUMBER_BOUND = 10.0, 1.9

SEND, LOOP, PLAIN, OURS = "C send", "C SSL_write", "logclient, plain", "logclient, TLS"
IN_TLS = "in SSL_write"  # a clock of the loop in C
BOTH = {"300 B": SIZE, "1 KiB": LARGE}
SEALED_SECONDS = 0.5
CIPHERS = {  # what OpenSSL calls the cipher of a suite, where that differs
    "AES_256_GCM": "aes-256-gcm", "AES_128_GCM": "aes-128-gcm", "CHACHA20_POLY1305": "chacha20-poly1305",
    "AES256-GCM": "aes-256-gcm", "AES128-GCM": "aes-128-gcm", "CHACHA20-POLY1305": "chacha20-poly1305",
}  # fmt: skip


class Loop:
    """The loop in C, with the OpenSSL of Python's ssl."""

    def __init__(self) -> None:
        shared = ("-shared", "-fPIC")
        self._program = ctypes.CDLL(str(compiled(SOURCE, BINARY, (*shared, "-ldl"), shared)))
        if self._program.load(ssl_library().encode()):
            raise RuntimeError("the C loop found no libssl")
        self._program.open_tls.restype = ctypes.c_void_p
        self._program.close_tls.argtypes = [ctypes.c_void_p]
        self._program.run.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long, ctypes.c_long,
            ctypes.POINTER(ctypes.c_double),
        ]  # fmt: skip
        self._program.run.restype = ctypes.c_long
        self._program.seal.argtypes = [ctypes.c_char_p, ctypes.c_double]
        self._program.seal.restype = ctypes.c_double

    def work(
        self, sink: Sink, cipher: str, data: bytes, windows: int, stack: ExitStack
    ) -> Callable[[], dict[str, float]]:
        """Make the work of sending the same window `windows` times over one connection."""
        sock = stack.enter_context(socket.create_connection((HOST, sink.port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made = self._program.open_tls(sock.fileno(), str(sink.ca).encode(), cipher.encode())
        if not made:
            raise RuntimeError(f"the C loop could not connect with {cipher}")
        stack.callback(self._program.close_tls, made)
        timed = _clocks()

        def work() -> dict[str, float]:
            cpu = ctypes.c_double()
            before = timed()
            acked = self._program.run(made, data, len(data), windows, INFLIGHT, cpu)
            after = timed()
            if acked != windows:
                raise NotExact(f"the C loop has {acked} acks for {windows} windows")
            return {clock: after[clock] - before[clock] for clock in after} | {IN_TLS: cpu.value}

        return work

    def sealed(self, suite: str, seconds: float = SEALED_SECONDS) -> float:
        """Return the bytes per second of CPU that the cipher of this suite encrypts; 0: unknown."""
        name = next((name for part, name in CIPHERS.items() if part in suite), "")
        return float(self._program.seal(name.encode(), seconds)) if name else 0.0


def _clocks() -> Callable[[], dict[str, float]]:
    import time

    return lambda: {
        "cpu": time.thread_time(), "process": time.process_time(), "wall": time.perf_counter(),
    }  # fmt: skip


def suite_of(sink: Sink) -> str:
    """Return the cipher suite that our client negotiates."""
    import logclient

    with logclient.connect(sink.url, overflow="block", **sink.options) as made:
        made.send(event())
        if made.flush(60.0):
            raise NotExact("an event was not acknowledged")
        return made.stats().tls.split(" ")[1]


def _ways(plain: Sink, tls: Sink, loop: Loop, suite: str, events: int, stack: ExitStack) -> Iterator[Way]:
    for label, size in BOTH.items():
        body = event(size)
        whole = event(size, carriers())
        fit = min(WINDOW, (1 << 20) // len(whole))  # a window of ours holds a mebibyte
        windows = max(INFLIGHT, events * SIZE // size // fit)
        many, data = windows * fit, window(whole, fit)

        def way(name: str, work: Callable[[], Any], sink: Sink, label: str = label, n: int = many) -> Way:
            return Way(f"{name}, {label}", n, work, sink)

        bodies = [body] * fit

        def ours(sink: Sink, bodies: Sequence[bytes] = bodies, times: int = windows) -> Callable[[], None]:
            return client(sink.url, bodies, times, stack, compression=0, **sink.options)

        yield way(SEND, pre_encoded(plain.port, data, windows, stack), plain)
        yield way(LOOP, loop.work(tls, suite, data, windows, stack), tls)
        yield way(PLAIN, ours(plain), plain)
        yield way(OURS, ours(tls), tls)
        if label == "1 KiB":
            yield way(f"{OURS} (again)", ours(tls), tls)


def uncompressed(rounds: int, seed: int, events: int, made: Certificate, loop: Loop) -> Measured:
    """Measure ours and the loops in C, over plain TCP and TLS, in random order.

    Raises:
        NotExact: the loop in C has another cipher than our client.
    """
    with Sink() as plain, Sink(tls=made) as tls, ExitStack() as stack:
        suite = suite_of(tls)
        got = measure(list(_ways(plain, tls, loop, suite, events, stack)), tls, rounds, Random(seed))
    others = {name: cipher for name, cipher in got.cipher.items() if cipher not in ("", suite)}
    if others:
        raise NotExact(f"not all have {suite}: {others}")
    return got


def allowed(samples: Mapping[str, Mapping[str, Sequence[float]]], label: str, sending: bool = True) -> Spread:
    """Return our CPU over TLS as a ratio to what it may be, round by round: at most 1.

    Args:
        samples: of `measure`.
        label: the size of the events.
        sending: allow for what `SSL_write` spends in `send(2)`, which is also in the CPU of plain TCP.
    """
    values = zip(
        samples[f"{OURS}, {label}"]["process"], samples[f"{PLAIN}, {label}"]["process"],
        samples[f"{LOOP}, {label}"][IN_TLS], samples[f"{SEND}, {label}"]["process"], strict=True,
    )  # fmt: skip
    return Spread.of([
        ours / (plain + CPU_BOUND * (loop if sending else max(loop - send, 0.0)))
        for ours, plain, loop, send in values
    ])  # fmt: skip


def judge_uncompressed(got: Measured) -> list[Verdict]:
    """Compare CPU and wall time over TLS with plain TCP and the loop in C."""
    samples = got.samples
    again = ratio(samples, f"{OURS} (again), 1 KiB", f"{OURS}, 1 KiB", "wall")
    made = [claim(f"A/A: {OURS}, 1 KiB against itself, by wall", again)]
    what = f"{OURS} / (plain + {CPU_BOUND} x SSL_write in C), CPU of the process"
    for label in BOTH:
        wall = ratio(samples, f"{PLAIN}, {label}", f"{OURS}, {label}", "wall")
        judged = label == "1 KiB"
        made += [
            claim(f"{what}, {label}", allowed(samples, label), "<=", 1.0),
            claim(
                f"{OURS} / (plain + {CPU_BOUND} x (SSL_write - send) in C), CPU of the process, {label}",
                allowed(samples, label, sending=False),
            ),
            claim(f"{PLAIN} / {OURS}, by wall, {label}", wall, *((">=", WALL_BOUND) if judged else ())),
            claim(
                f"{PLAIN} / {LOOP}, by wall, {label}",
                ratio(samples, f"{PLAIN}, {label}", f"{LOOP}, {label}", "wall"),
            ),
        ]
    # Only printed: a sink that is the limit makes the ratio of wall times worse for us, never better.
    for name in (LOOP, OURS):
        busy = Spread.of(got.busy[f"{name}, 1 KiB"])
        made.append(claim(f"the sink's share of a core, which decrypts, {name}, 1 KiB", busy))
    return made


def limits(got: Measured, loop: Loop) -> list[str]:
    """Return what no client can pass: the cipher alone, by the size of an event on the wire."""
    suite = got.cipher[f"{OURS}, 1 KiB"]
    speed = loop.sealed(suite)
    if not speed:
        return [f"{suite}: the cipher alone was not measured"]
    each = {label: got.wire[f"{OURS}, {label}"] / speed * 1e9 for label in BOTH}
    parts = ", ".join(f"{spent:.0f} ns an event of {label}" for label, spent in each.items())
    return [f"{suite}: the cipher alone, records of 16 KiB, {speed / 1e9:.2f} GB/s of a core: {parts}"]


def _rates(got: Measured) -> list[str]:
    return [
        f"{name}: {1 / Spread.of(clocks['wall']).median:.3g} M events/s, {got.wire[name]:.0f} bytes each, "
        f"sink {Spread.of(got.busy[name]).median:.2f} cores"
        + (f", {Spread.of(clocks[IN_TLS]).median * 1e3:.0f} ns in SSL_write" if IN_TLS in clocks else "")
        for name, clocks in got.samples.items()
    ]


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure uncompressed events, then the peers with compressed ones."""
    rounds = rounds or (3 if quick else ROUNDS)
    made, loop = certificate(), Loop()
    got = uncompressed(rounds, seed, EVENTS // 10 if quick else EVENTS, made, loop)
    packed = compressed.measure_all(rounds, seed, 1 if quick else compressed.TIMES, made)
    verdicts = judge_uncompressed(got)
    verdicts += [
        v._replace(what=f"compressed: {v.what}") for v in packed.judge(PYLOGBEAT_BOUND, GOLUMBER_BOUND)
    ]
    rows = lines(got.samples) + [
        Line(f"compressed: {line.name}", line.spread) for line in lines(packed.got.samples)
    ]
    notes = [*_rates(got), *limits(got, loop)]
    notes += [
        f"uncompressed: windows of {WINDOW} or 1 MiB, {INFLIGHT} in flight, the same bytes by all",
        "those of C are encoded beforehand; every run counted by the sink, which decrypts in its own process",
        *(f"compressed: {note}" for note in packed.notes()),
    ]
    title = "send(bytes) to acknowledged over TLS, against plain TCP, SSL_write in C, and the peers over TLS"
    notes += ["a quick run"] * quick
    return Row("tls", title, "us/event", rows, verdicts, notes, {"sink": got.busy | packed.got.busy})
