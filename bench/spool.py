"""Row `spool`: what events cost whose memory lies in mapped files, against the same client without a spool.

The caller's cost is measured up to the queue, as in the rows `handler` and `send`. The files lie on the disk
of the checkout. Beside it: a database for each event (python-logstash-async), a row of SQLite for each batch,
and a `write` for each event, which keeps events as well as a mapping does when the process is killed.

The longest call is looked for in a process of its own that sends at a steady pace, while another process
writes and syncs on the same disk without a pause.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from bench import saturated
from bench.data import records
from bench.handler import alone, forget, loop
from bench.harness import (
    OUT,
    ROOT,
    Contender,
    Line,
    NotExact,
    Row,
    Spread,
    Target,
    Verdict,
    claim,
    compare,
    judge,
    lines,
)
from bench.lumberjack import event
from bench.ours import NOWHERE, QueueOnly
from bench.sink import Sink

CALLS = 2000
PLAIN = "logclient send(bytes)"
HANDLER = "logclient.Handler"
SYNCS = ("none", "interval")
PACE = 20_000  # calls a second, when the longest is looked for
EVENTS = 400_000
LONGEST_MS = 1.0
TARGETS = [
    target
    for sync in SYNCS
    for target in (
        Target(f"{HANDLER}, sync={sync}", HANDLER, "<=", 1.2),
        Target(f"{PLAIN}, sync={sync}", PLAIN, "<=", 1.6),
    )
]


@contextmanager
def folder() -> Iterator[Path]:
    """Make an empty folder on the disk of the checkout."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="spool-", dir=OUT))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def options(path: Path, sync: str) -> dict[str, Any]:
    """Return the options of a client with a spool."""
    return {"spool": str(path), "spool_mode": "always", "spool_sync": sync}


def _callers(rounds: int, seed: int) -> dict[str, Any]:
    """Measure calls up to the queue."""
    import logclient

    bodies = [event(300)] * CALLS
    made = records(CALLS)
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        senders, handlers = [], []
        for name, given in (
            ("", {}),
            (" (again)", {}),
            *((f", sync={sync}", options(stack.enter_context(folder()), sync)) for sync in SYNCS),
        ):
            client = stack.enter_context(logclient.connect(NOWHERE, **given))
            senders.append((PLAIN + name, client.send, _parked(client)))
            given = given and options(stack.enter_context(folder()), given["spool_sync"])
            handler = logclient.Handler(NOWHERE, **given)
            stack.callback(handler.close)
            handlers.append((HANDLER + name, handler.handle, _parked(handler.client)))
        write = os.open(stack.enter_context(folder()) / "written", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        stack.callback(os.close, write)
        contenders = [Contender(name, loop(call, bodies), CALLS, q.count) for name, call, q in senders]
        contenders += [
            Contender(name, loop(call, made), CALLS, q.count, before=forget(made))
            for name, call, q in handlers
        ]
        contenders.append(Contender("write(2) an event", loop(lambda b: os.write(write, b), bodies), CALLS))
        contenders.append(Contender("loop alone", alone(bodies), CALLS))
        found |= compare(contenders, rounds=rounds, seed=seed)
        few = CALLS // 20
        found |= compare(
            [
                Contender("SQLite WAL, a row a batch of 2000", _sqlite(stack, bodies), CALLS),
                *_logstash(stack, few),
            ],
            rounds=max(3, rounds // 3),
            seed=seed,
        )
    return found


def _parked(client: Any) -> QueueOnly:
    queue = QueueOnly(client)
    if client._sender.engine.spool is not None:
        client._sender.engine.spool.start()
    return queue


def _sqlite(stack: ExitStack, bodies: list[bytes]) -> Callable[[], None]:
    database = sqlite3.connect(stack.enter_context(folder()) / "rows")
    stack.callback(database.close)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute("CREATE TABLE rows (body BLOB)")

    def work() -> None:
        database.execute("INSERT INTO rows VALUES (?)", (b"".join(bodies),))
        database.commit()

    return work


def _logstash(stack: ExitStack, calls: int) -> Iterator[Contender]:
    try:
        from logstash_async.database import DatabaseCache
    except ImportError:
        return
    cache = DatabaseCache(str(stack.enter_context(folder()) / "events"))
    text = event(300).decode()
    yield Contender("python-logstash-async, database", loop(cache.add_event, [text] * calls), calls)


# -- the longest call ------------------------------------------------------------------------------


def paced(seconds: float, given: dict[str, Any]) -> dict[str, Any]:
    """Send at a steady pace in this process; return the times of the calls in nanoseconds."""
    import logclient

    body, clock = event(300), time.perf_counter_ns
    times = array("q")
    with Sink() as sink, logclient.connect(sink.url, compression=0, **given) as client:
        send = client.send
        for _ in range(1000):
            send(body)
        begun = clock()
        count = int(seconds * PACE)
        for i in range(count):
            at = begun + i * 1_000_000_000 // PACE
            while (now := clock()) < at:
                pass
            send(body)
            times.append(clock() - now)
        left = client.flush(60.0)
        if left or client.stats().dropped:
            raise NotExact(f"{left} events were not acknowledged")
    found = sorted(times)
    return {"longest": found[-1], **{f"p{p:g}": found[int(len(found) * p / 100)] for p in (50, 99, 99.9)}}


SYNCER = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
print("ready", flush=True)
while os.getppid() == int(sys.argv[2]):
    os.pwrite(fd, bytes(1 << 20), 0)
    os.fdatasync(fd)
"""


def _longest(seconds: float) -> tuple[list[Line], list[Verdict]]:
    rows, verdicts = [], []
    for sync in ("", *SYNCS):
        with folder() as path, folder() as other:
            syncer = subprocess.Popen(
                [sys.executable, "-c", SYNCER, str(other / "synced"), str(os.getpid())],
                stdout=subprocess.PIPE,
            )
            assert syncer.stdout is not None
            syncer.stdout.readline()
            try:
                given = options(path, sync) if sync else {}
                said = saturated.said_by(
                    [
                        sys.executable,
                        "-m",
                        "bench.spool",
                        "--seconds",
                        str(seconds),
                        "--options",
                        json.dumps(given),
                    ]
                )
            finally:
                syncer.kill()
                syncer.communicate()
        name = f"{PLAIN}, sync={sync}" if sync else PLAIN
        rows += [
            Line(f"{name}, beside a syncing process: {key}", {"wall": Spread.of([said[key] / 1e3])})
            for key in ("p99.9", "longest")
        ]
        what = f"{name}: longest call beside a process that syncs, ms"
        bound = LONGEST_MS if sync == "interval" else 0.0
        verdicts.append(claim(what, said["longest"] / 1e6, "<=" if bound else "", bound))
    return rows, verdicts


# -- to the server ---------------------------------------------------------------------------------


def _end_to_end(rounds: int, seed: int) -> tuple[list[Line], list[Verdict], list[str]]:
    """Compare rates until everything is acknowledged, and the rate of what a dead process left."""
    import logclient

    ways = ("", *SYNCS)
    walls: dict[str, list[float]] = {way: [] for way in (*ways, "adopted")}
    draw = Random(seed)
    with Sink() as sink, ExitStack() as stack:
        clients = {
            way: stack.enter_context(
                logclient.connect(
                    sink.url,
                    compression=0,
                    overflow="block",
                    **(options(stack.enter_context(folder()), way) if way else {}),
                )
            )
            for way in ways
        }
        body = event(300)
        for _ in range(rounds):
            for way in draw.sample(ways, len(ways)):
                send = clients[way].send
                begun = time.perf_counter()
                for _ in range(EVENTS):
                    send(body)
                if clients[way].flush(60.0):
                    raise NotExact("events were not acknowledged")
                walls[way].append(time.perf_counter() - begun)
        for _ in range(max(1, rounds // 2)):
            walls["adopted"].append(_adopted(sink))
    rates = {way: [EVENTS / wall for wall in walls[way]] for way in walls}
    base = statistics.median(rates[""])
    rows = [
        Line(f"{PLAIN}{f', sync={way}' if way else ''}, to acknowledged", {"wall": _per_event(walls[way])})
        for way in ways
    ]
    rows.append(Line("what a killed process left, to acknowledged", {"wall": _per_event(walls["adopted"])}))
    verdicts = [
        claim(
            f"{PLAIN}, sync={sync}: rate to acknowledged, of that without", _of(rates[sync], base), ">=", 0.8
        )
        for sync in SYNCS
    ]
    verdicts.append(
        claim("what a killed process left: rate, of that without", _of(rates["adopted"], base), ">=", 0.5)
    )
    adopted = statistics.median(rates["adopted"])
    notes = [f"what a killed process left: {adopted:,.0f} events/s, from `connect` on"]
    waits: dict[str, list[float]] = {"": [], "none": []}
    for _ in range(max(1, rounds // 2)):
        for way in draw.sample(("", "none"), 2):
            waits[way].append(_returned(way))
    plain, spooled = (EVENTS / statistics.median(waits[way]) for way in ("", "none"))
    words = f"{spooled:,.0f} events/s, {spooled / plain:.2f} of that without a spool"
    notes.append(f"what waited in the spool for a dead server, after its return: {words}")
    return rows, verdicts, notes


def _per_event(walls: list[float]) -> Spread:
    return Spread.of([wall / EVENTS * 1e6 for wall in walls])


def _of(rates: list[float], base: float) -> Spread:
    return Spread.of([rate / base for rate in rates])


KILLED = """
import json, os, sys
import logclient
client = logclient.connect("lumberjack://127.0.0.1:9", **json.loads(sys.argv[1]))
body = sys.argv[2].encode()
for _ in range(int(sys.argv[3])):
    client.send(body)
os.kill(os.getpid(), 9)
"""


def _adopted(sink: Sink) -> float:
    """Return the seconds from `connect` until a sink has what a killed process left."""
    import logclient

    with folder() as path:
        given = options(path, "none")
        command = [sys.executable, "-c", KILLED, json.dumps(given), event(300).decode(), str(EVENTS)]
        subprocess.run(command, check=False, cwd=ROOT, stderr=subprocess.DEVNULL)
        before = sink.counts().events
        begun = time.perf_counter()
        with logclient.connect(sink.url, compression=0, **given):
            sink.wait(before + EVENTS, 60.0)
            return time.perf_counter() - begun


def _returned(way: str) -> float:
    """Return the seconds from a dead server's return until it has all that waited for it."""
    import logclient

    with ExitStack() as stack:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))  # and nobody listens there
        port = bound.getsockname()[1]
        memory = {"max_bytes": 1 << 30, "max_events": EVENTS}
        given = options(stack.enter_context(folder()), way) if way else memory
        url = f"lumberjack://127.0.0.1:{port}"
        client = stack.enter_context(logclient.connect(url, compression=0, backoff_max=0.01, **given))
        body = event(300)
        for _ in range(EVENTS):
            client.send(body)
        bound.close()
        sink = stack.enter_context(Sink(port=port))
        begun = time.perf_counter()
        sink.wait(EVENTS, 60.0)
        seconds = time.perf_counter() - begun
        if client.flush(60.0) or client.stats().acked != EVENTS:
            raise NotExact("events were not acknowledged")
        return seconds


def _saturated(seconds: float, runs: int) -> tuple[list[Line], list[Verdict]]:
    rows, verdicts = [], []
    for sync in SYNCS:
        found = []
        for _ in range(runs):
            with folder() as path:
                given = {**saturated.UNCOMPRESSED, **options(path, sync)}
                kind = saturated.Kind(f"{HANDLER}, sync={sync}", Sink, "", given)
                found.append(saturated.run_kind("spool", kind, seconds))
        name = f"{HANDLER}, sync={sync}, four threads"
        verdicts += saturated.judged(name, found)
        rows += [
            Line(f"{name}: handle() {key}", {"wall": Spread.of([r.said[key] / 1e3 for r in found])})
            for key in ("p50", "p99", "p99.9")
        ]
    return rows, verdicts


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure callers, the longest call, four threads, and the way to the server."""
    samples = _callers(rounds or (3 if quick else 15), seed)
    verdicts = judge(samples, TARGETS, (f"{PLAIN} (again)", PLAIN))
    rows, more = _longest(2.0 if quick else 10.0)
    verdicts += more
    others, more = _saturated(2.0 if quick else 10.0, 1 if quick else 3)
    rows += others
    verdicts += more
    others, more, notes = _end_to_end(2 if quick else 6, seed)
    rows += others
    verdicts += more
    notes += [
        "300 bytes; spool_mode=always; the files on the disk of the checkout",
        f"the longest of {PACE:,} calls a second for 10 s; the syncing process writes 1 MiB each time",
    ]
    return Row(
        "spool",
        "events whose memory lies in mapped files, against memory alone",
        "us/call",
        lines(samples) + rows,
        verdicts,
        notes,
        {},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--options", type=json.loads, required=True)
    chosen = parser.parse_args()
    print(json.dumps(paced(chosen.seconds, chosen.options)))
