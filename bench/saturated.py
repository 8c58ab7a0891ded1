"""Row `saturated`: four threads log as fast as Python lets them, for ten seconds, to sinks in C.

The sinks read Lumberjack, plain (twice, as the control, and once with `logclient.Logger`) and over TLS,
Logjam's requests, and Logux, plain and over TLS. They decrypt in their own process, whose share of a core is
printed.

Every run is a separate process. Most calls are `logger.log(...)` as in a program; one in 61 builds its record
first and times only `handler.handle(record)`, between two clock reads whose own cost is measured and
subtracted. No event may be dropped, and the sink must have counted exactly the logged events. `turns` is the
number of times that the sender returned to Python, each of which takes the GIL. A link in Python also takes
it for each window, so there the windows count as well: a lower bound.

The same program with a handler whose `emit` is empty, and with one whose `handle` is empty (without the
lock), shows the cost of the threads alone: four threads that share a `logging.Handler` wait for its lock, and
for the GIL while one of them holds it.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench.certificates import certificate
from bench.data import calls, source
from bench.harness import OUT, ROOT, Line, Row, Spread, Verdict, claim, load
from bench.peers import EmptyHandle, EmptyHandler
from bench.sink import Sink

THREADS = 4
SECONDS = 10.0
RUNS = 3
SAMPLE = 61  # a prime, so that the sampled calls have different records
P99_BOUND = 4.0
TURNS_BOUND = 15.0  # a second
PEERS = {"none": EmptyHandle, "empty": EmptyHandler}
OURS = "logclient.Handler"
AGAIN = "again"  # the kind whose runs are compared with those of `plain` in the same round
PYTHON = "at least, as the link in Python takes it for each window"


class Kind(NamedTuple):
    """A handler and its sink; `sink` is None for the peers, whose records go nowhere."""

    label: str
    sink: Callable[[], Any] | None = None
    path: str = ""  # of the URL
    options: Mapping[str, Any] = {}
    fast: bool = False  # the loggers are of `logclient.Logger`


def _stub(tls: bool) -> Any:
    from bench.logux import Stub

    return Stub(certificate() if tls else None)


UNCOMPRESSED = {"compression": 0}
KINDS = {
    "none": Kind("empty handle"),
    "empty": Kind("empty emit (logging's lock)"),
    "plain": Kind(OURS, Sink, "", UNCOMPRESSED),
    AGAIN: Kind(f"{OURS} (again)", Sink, "", UNCOMPRESSED),
    "logger": Kind("logclient.Logger", Sink, "", UNCOMPRESSED, fast=True),
    "ledger": Kind(f"{OURS}, ledger", Sink, "", UNCOMPRESSED),
    "tls": Kind(f"{OURS}, TLS", lambda: Sink(tls=certificate()), "", UNCOMPRESSED),
    "logux": Kind(f"{OURS}, Logux", lambda: _stub(False)),
    "logux+tls": Kind(f"{OURS}, Logux over TLS", lambda: _stub(True)),
    "logjam": Kind(f"{OURS}, Logjam", lambda: Sink(zmtp=True), "/shop-production", {"compression": "none"}),
}


class Run(NamedTuple):
    """The results of one process and the sink."""

    kind: str
    said: dict[str, Any]
    received: int
    sink_busy: float
    load: float
    cipher: str  # empty: plain


# -- inside the process --------------------------------------------------------------------------


def _worker(
    handler: logging.Handler, made: list, start: threading.Barrier, seconds: float, out: dict
) -> None:
    clock = time.perf_counter_ns
    samples = array("q")
    logged = 0
    start.wait()
    cpu, end = time.thread_time(), clock() + int(seconds * 1e9)
    at = 0
    while True:
        for _ in range(SAMPLE - 1):
            logger, level, message, arguments, extra = made[at]
            logger.log(level, message, *arguments, extra=extra)
            at = at + 1 if at + 1 < len(made) else 0
        logger, level, message, arguments, extra = made[at]
        at = at + 1 if at + 1 < len(made) else 0
        record = logger.makeRecord(logger.name, level, __file__, 70, message, arguments, None, "serve", extra)
        begun = clock()
        handler.handle(record)
        done = clock()
        samples.append(done - begun)
        logged += SAMPLE
        if done >= end:
            break
    out["logged"] += logged
    out["cpu"] += time.thread_time() - cpu
    out["samples"].append(samples)


def _clock_cost() -> float:
    clock = time.perf_counter_ns
    pairs = array("q")
    for _ in range(20_000):
        begun = clock()
        pairs.append(clock() - begun)
    return statistics.median(pairs)


def child(url: str, seconds: float, options: Mapping[str, Any], fast: bool = False) -> dict[str, Any]:
    """Do one run in this process; `url` may be one of `PEERS`, `options` are those of the handler."""
    if fast:
        import logclient

        logging.setLoggerClass(logclient.Logger)
    if url in PEERS:
        handler: Any = PEERS[url]()
    else:
        import logclient

        handler = logclient.Handler(url, **options)
    top = logging.getLogger("app")
    top.addHandler(handler)
    top.setLevel(logging.DEBUG)
    top.propagate = False
    made = [
        (logging.getLogger(name), level, message, arguments, extra)
        for name, level, message, arguments, extra in calls(1000)
    ]
    out: dict[str, Any] = {"logged": 0, "cpu": 0.0, "samples": []}
    start = threading.Barrier(THREADS + 1)
    outs = [dict(out, samples=[]) for _ in range(THREADS)]
    shift = len(made) // THREADS
    threads = [
        threading.Thread(
            target=_worker, args=(handler, made[i * shift :] + made[: i * shift], start, seconds, o)
        )
        for i, o in enumerate(outs)
    ]
    for t in threads:
        t.start()
    process, wall = time.process_time(), time.perf_counter()
    start.wait()
    for t in threads:
        t.join()
    wall, process = time.perf_counter() - wall, time.process_time() - process
    callers = sum(o["cpu"] for o in outs)
    cost = _clock_cost()
    ns = sorted(x - cost for o in outs for s in o["samples"] for x in s)
    said: dict[str, Any] = {
        "logged": sum(o["logged"] for o in outs),
        "wall": wall,
        "callers_cpu": callers,
        "sender_cpu": process - callers,
        "samples": len(ns),
        "clock": cost,
        **{f"p{p:g}": ns[min(len(ns) - 1, int(len(ns) * p / 100))] for p in (50, 90, 99, 99.9)},
    }
    if url not in PEERS:
        turns, python = _turns(handler.client)
        said["left"] = handler.client.flush(60.0)
        said["flush"] = time.perf_counter()
        stats = handler.client.stats()
        said.update(
            turns=turns,
            python=python,
            acked=stats.acked,
            dropped=_total(stats.dropped),
            failed=_total(stats.failed),
            resent=getattr(stats, "resent", None),
        )
        handler.close()
    return said


def _total(x: Any) -> int:
    return sum(x.values()) if isinstance(x, dict) else int(x)


def _turns(client: Any) -> tuple[int, bool]:
    # How often the sender has taken the GIL, and whether that is only a lower bound.
    stats = client.stats()
    python = stats.pump != "compiled"
    return max(stats.turns, stats.batches) if python else stats.turns, python


# -- outside -------------------------------------------------------------------------------------


def run_kind(name: str, kind: Kind, seconds: float) -> Run:
    """Do one run of a kind of handler and its sink."""
    before = load()
    command = [sys.executable, "-m", "bench.saturated", "--seconds", str(seconds)]
    if kind.sink is None:
        return Run(name, said_by([*command, "--url", name]), 0, 0.0, before, "")
    ledger = OUT / "ledger"
    shutil.rmtree(ledger, ignore_errors=True)
    with kind.sink() as sink:
        options = {**kind.options, **sink.options}
        if name == "ledger":
            options["ledger"] = str(ledger)
        command += ["--url", sink.url + kind.path, "--options", json.dumps(options)]
        said = said_by([*command, "--fast"] if kind.fast else command)
        counts = sink.counts()
    said["ledger_bytes"] = sum(p.stat().st_size for p in ledger.glob("*")) if ledger.exists() else 0
    shutil.rmtree(ledger, ignore_errors=True)
    return Run(name, said, counts.events, counts.busy, before, counts.cipher)


def said_by(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def judged(name: str, mine: list[Run]) -> list[Verdict]:
    """Compare the runs of one kind of handler with the bounds of the row."""
    said = [r.said for r in mine]
    dropped = [s["dropped"] + s["failed"] for s in said]
    exact = [
        r.received == r.said["acked"] == r.said["logged"] - lost and not r.said["left"]
        for r, lost in zip(mine, dropped, strict=True)
    ]
    tail = _tail(said)
    turns = [s["turns"] / s["wall"] for s in said]
    most = Spread(max(turns), min(turns), max(turns))
    often = claim(f"{name}: the sender takes the GIL, times/s, worst run", most, "<=", TURNS_BOUND)
    if any(s["python"] for s in said):  # what was counted is a lower bound
        often = often._replace(reached=None if often.reached else False, why=PYTHON)
    return [
        claim(f"{name}: dropped or failed, all {len(said)} runs", sum(dropped), "==", 0),
        claim(f"{name}: runs whose delivered count is exact", sum(exact), "==", len(exact)),
        claim(f"{name}: p99 / p50 of handle(), worst run", tail._replace(median=tail.high), "<=", P99_BOUND),
        often,
    ]


def _tail(said: list[dict[str, Any]]) -> Spread:
    tails = [s["p99"] / s["p50"] for s in said]
    return Spread(statistics.median(tails), min(tails), max(tails))


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Do `rounds` runs of each kind of handler and sink, and of the empty handlers."""
    seconds = 2.0 if quick else SECONDS
    draw = random.Random(seed)
    runs: list[Run] = []
    for _ in range(rounds or (1 if quick else RUNS)):
        order = draw.sample(list(KINDS), len(KINDS))
        runs += [run_kind(k, KINDS[k], min(seconds, 2.0) if k in PEERS else seconds) for k in order]
    verdicts: list[Verdict] = []
    notes: list[str] = []
    rows: list[Line] = []
    for kind, (name, *_) in KINDS.items():
        mine = [r for r in runs if r.kind == kind]
        said = [r.said for r in mine]
        rows.append(Line(f"{name}: handle() p50", {"wall": Spread.of([s["p50"] / 1e3 for s in said])}))
        rows.append(Line(f"{name}: handle() p99", {"wall": Spread.of([s["p99"] / 1e3 for s in said])}))
        rate = Spread.of([s["logged"] / s["wall"] for s in said])
        notes.append(
            f"{name}: {rate.median:,.0f} calls/s [{rate.low:,.0f}-{rate.high:,.0f}], callers' CPU "
            f"{statistics.median(s['callers_cpu'] / s['wall'] for s in said):.2f} cores, p99.9 "
            f"{statistics.median(s['p99.9'] for s in said) / 1e3:.1f} us, load before each run "
            + ", ".join(f"{r.load:.1f}" for r in mine)
        )
        if kind == AGAIN:
            first = [r.said["p50"] for r in runs if r.kind == "plain"]
            pairs = [s["p50"] / p50 for s, p50 in zip(said, first, strict=True)]
            verdicts.append(claim(f"A/A: {name} against itself, p50", Spread.of(pairs)))
        if kind in PEERS:
            verdicts.append(claim(f"{name}: p99 / p50 of handle()", _tail(said)))
            continue
        verdicts += judged(name, mine)
        turns = Spread.of([s["turns"] / s["wall"] for s in said])
        notes.append(
            f"{name}: the sender took the GIL {turns.median:.1f} times/s"
            f"{' or more' if any(s['python'] for s in said) else ''}; "
            f"its CPU {statistics.median(s['sender_cpu'] / s['wall'] for s in said):.2f} cores, the sink's "
            f"{statistics.median(r.sink_busy for r in mine):.2f}; logged {[s['logged'] for s in said]}, "
            f"acked {[s['acked'] for s in said]}, received {[r.received for r in mine]}, "
            f"dropped {[s['dropped'] for s in said]}, resent {[s['resent'] for s in said]}"
            + "".join(f"; {cipher}" for cipher in sorted({r.cipher for r in mine}) if cipher)
        )
        if kind == "ledger":
            notes.append(
                f"ledger: {statistics.median(s['ledger_bytes'] / s['logged'] for s in said):.1f} bytes/event"
            )
    notes.append(
        f"{THREADS} threads, {seconds:g} s a run, uncompressed, {source()}; one call in {SAMPLE} timed, "
        f"the clock's own {statistics.median(r.said['clock'] for r in runs):.0f} ns taken off"
        + ("; a quick run" if quick else "")
    )
    notes.append("Logjam: requests")
    return Row(
        "saturated",
        f"{THREADS} threads at full speed to sinks in C",
        "us",
        rows,
        verdicts,
        notes,
        {"runs": [r._asdict() for r in runs]},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--fast", action="store_true", help="log with logclient.Logger")
    chosen = parser.parse_args()
    print(json.dumps(child(chosen.url, chosen.seconds, chosen.options, chosen.fast)))
