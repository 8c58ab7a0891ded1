"""Row `saturated`: four threads log as fast as Python lets them, for ten seconds, to the C sink.

Every run is a separate process. Most calls are `logger.log(...)` as in a program; one in 61 builds its record
first and times only `handler.handle(record)`, between two clock reads whose own cost is measured and
subtracted. No event may be dropped, and the sink must have counted exactly the logged events. `turns` is the
number of times that the sender returned to Python, each of which takes the GIL.

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
from typing import Any, NamedTuple

from bench.data import calls, source
from bench.harness import OUT, ROOT, Line, Row, Spread, Verdict, claim, load
from bench.peers import EmptyHandle, EmptyHandler
from bench.sink import Sink

THREADS = 4
SECONDS = 10.0
RUNS = 3
SAMPLE = 61  # a prime, so that the sampled calls have different records
P99_BOUND = 4.0
OPTIONS = "?compression=0"
PEERS = {"none": EmptyHandle, "empty": EmptyHandler}
NAMES = {
    "none": "empty handle",
    "empty": "empty emit (logging's lock)",
    "plain": "logclient.Handler",
    "ledger": "logclient.Handler, ledger",
}


class Run(NamedTuple):
    """The results of one process and the sink."""

    kind: str
    said: dict[str, Any]
    received: int
    sink_busy: float
    load: float


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


def child(url: str, seconds: float, ledger: str | None) -> dict[str, Any]:
    """Do one run in this process; `url` may be one of `PEERS`."""
    if url in PEERS:
        handler: Any = PEERS[url]()
    else:
        import logclient

        handler = logclient.Handler(url + OPTIONS, **({"ledger": ledger} if ledger else {}))
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
        turns = _turns(handler.client.stats())
        said["left"] = handler.client.flush(60.0)
        said["flush"] = time.perf_counter()
        stats = handler.client.stats()
        said.update(
            turns=turns,
            acked=stats.acked,
            dropped=_total(stats.dropped),
            failed=_total(stats.failed),
            resent=getattr(stats, "resent", None),
        )
        handler.close()
    return said


def _total(x: Any) -> int:
    return sum(x.values()) if isinstance(x, dict) else int(x)


def _turns(stats: Any) -> int | None:
    return getattr(stats, "turns", None)


# -- outside -------------------------------------------------------------------------------------


def _run(kind: str, seconds: float) -> Run:
    before = load()
    command = [sys.executable, "-m", "bench.saturated", "--seconds", str(seconds)]
    ledger = OUT / "ledger"
    shutil.rmtree(ledger, ignore_errors=True)
    with Sink() as sink:
        command += ["--url", kind if kind in PEERS else sink.url]
        if kind == "ledger":
            command += ["--ledger", str(ledger)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(f"saturated ({kind}): {done.stderr.strip()}")
        said = json.loads(done.stdout.splitlines()[-1])
        counts = sink.close()
    said["ledger_bytes"] = sum(p.stat().st_size for p in ledger.glob("*")) if ledger.exists() else 0
    shutil.rmtree(ledger, ignore_errors=True)
    busy = counts.cpu / (counts.last - counts.first) if counts.last > counts.first else 0.0
    return Run(kind, said, counts.events, busy, before)


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Do `rounds` runs without and with a ledger, and with the empty handlers."""
    seconds = 2.0 if quick else SECONDS
    draw = random.Random(seed)
    runs: list[Run] = []
    for _ in range(rounds or RUNS):
        order = draw.sample(list(NAMES), len(NAMES))
        runs += [_run(kind, min(seconds, 2.0) if kind in PEERS else seconds) for kind in order]
    verdicts: list[Verdict] = []
    notes: list[str] = []
    rows: list[Line] = []
    for kind, name in NAMES.items():
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
        tails = [s["p99"] / s["p50"] for s in said]
        tail = Spread(statistics.median(tails), min(tails), max(tails))
        if kind == "plain" and len(said) > 1:
            p50 = [s["p50"] for s in said]
            verdicts.append(claim(f"A/A: {name}, p50 of the slowest run / the fastest", max(p50) / min(p50)))
        if kind in PEERS:
            verdicts.append(claim(f"{name}: p99 / p50 of handle()", tail))
            continue
        dropped = [s["dropped"] + s["failed"] for s in said]
        exact = [r.received == r.said["logged"] == r.said["acked"] and not r.said["left"] for r in mine]
        verdicts += [
            claim(f"{name}: dropped or failed, all {len(said)} runs", sum(dropped), "==", 0),
            claim(f"{name}: runs whose delivered count is exact", sum(exact), "==", len(exact)),
            claim(
                f"{name}: p99 / p50 of handle(), worst run", tail._replace(median=tail.high), "<=", P99_BOUND
            ),
        ]
        turns = [s["turns"] / s["wall"] for s in said if s["turns"] is not None]
        notes.append(
            f"{name}: the sender took the GIL {Spread.of(turns).median:.1f} times/s; "
            if turns
            else f"{name}: the sender's turns are not counted; "
        )
        notes[-1] += (
            f"its CPU {statistics.median(s['sender_cpu'] / s['wall'] for s in said):.2f} cores, the sink's "
            f"{statistics.median(r.sink_busy for r in mine):.2f}; logged {[s['logged'] for s in said]}, "
            f"acked {[s['acked'] for s in said]}, received {[r.received for r in mine]}, "
            f"resent {[s['resent'] for s in said]}"
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
    return Row(
        "saturated",
        f"{THREADS} threads at full speed to the C sink",
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
    parser.add_argument("--ledger")
    chosen = parser.parse_args()
    print(json.dumps(child(chosen.url, chosen.seconds, chosen.ledger)))
