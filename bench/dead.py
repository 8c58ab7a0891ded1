"""Row `dead`: the cost of a log call with a dead server, against one with a live server.

Each contender is a separate process with one `logclient.Handler`, like a program: two that log to a live
server (the C sink; the second is the A/A control) and one for each dead server of
tests/support/dead_servers.py. They take turns, one block of calls at a time, in a new random order each
round; meanwhile only the senders of the others work. A ratio is that of two blocks of the same round. Every
call is timed, and the clock's own cost is subtracted.

- filling: the queue has room, and each call uses memory for the first time; as fast as possible
- full: `drop_oldest` pushes out an old event for each new one; as fast as possible
- paced: full, 20,000 calls a second in bursts of twenty, so that the live sender's work does not count
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import time
from array import array
from contextlib import ExitStack
from typing import Any

from bench.data import calls, source
from bench.harness import ROOT, Line, NotExact, Row, Spread, Verdict, claim
from bench.sink import Sink
from tests.support.dead_servers import KINDS, outcomes
from tests.support.dead_servers import run as program

LIVE, AGAIN = "live", "live (again)"
NAMES = (LIVE, AGAIN, *KINDS)
BLOCK = 20_000
FULL = 160_000  # calls that reach the bound of bytes, most of them timed
PACE = 20_000  # calls a second
BURST = 20
# Blocks per life, and calls a second.
PHASES = {"queue filling": (5, 0), "queue full": (10, 0), "paced": (6, PACE)}
QUANTILES = {"p50": (0.5, 1.1), "p99": (0.99, 2.0), "p99.9": (0.999, 3.0)}  # quantile, bound of the ratio
LIVES = 5
REST = 5.0
AT_REST = 1.0  # % of a core
STORM = 10_000_000
MAX_BYTES = 64 << 20
MIB = 1 << 20
OUTCOMES = ("queued", "inflight", "acked", "handed", "failed", "dropped")
OPTIONS = "?compression=0"  # the live sender at its cheapest


# -- inside a contender's process ------------------------------------------------------------------


class Child:
    """The program of a contender, which carries out one command for each line of JSON."""

    def __init__(self, url: str) -> None:
        import logclient

        self.handler = logclient.Handler(url + OPTIONS, max_bytes=MAX_BYTES)
        top = logging.getLogger("app")
        top.addHandler(self.handler)
        top.setLevel(logging.DEBUG)
        top.propagate = False
        self.made = [
            (logging.getLogger(name).info, (message, *arguments), {"extra": extra} if extra else {})
            for name, _, message, arguments, extra in calls(1000)
        ]
        self.logged = 0
        self.samples = array("q", bytes(8 * BLOCK))
        for _ in range(3):
            self._timed(2000, 0)
        clock = time.perf_counter_ns
        self.floor = statistics.median(-(clock() - clock()) for _ in range(20_000))
        gc.collect()
        gc.freeze()
        self.began = time.perf_counter(), time.process_time(), time.thread_time()

    def _timed(self, count: int, pace: int) -> None:
        made, samples, clock = self.made, self.samples, time.perf_counter_ns
        due, step, at = clock(), BURST * 1_000_000_000 // pace if pace else 0, 0
        for i in range(count):
            info, arguments, extra = made[at]
            at = at + 1 if at + 1 < len(made) else 0
            begun = clock()
            info(*arguments, **extra)
            samples[i] = clock() - begun
            if pace and i % BURST == BURST - 1:
                due += step
                if (left := due - clock()) > 0:
                    time.sleep(left / 1e9)
        self.logged += count

    def block(self, pace: int) -> dict[str, float]:
        """Do one block of calls, and return quantiles in microseconds."""
        self._timed(BLOCK, pace)
        ns = sorted(self.samples)
        found = {name: (ns[int(BLOCK * q)] - self.floor) / 1e3 for name, (q, _) in QUANTILES.items()}
        return found | {"max": (ns[-1] - self.floor) / 1e3}

    def fill(self, count: int) -> dict[str, Any]:
        for i in range(count):
            info, arguments, extra = self.made[i % len(self.made)]
            info(*arguments, **extra)
        self.logged += count
        return {}

    def flush(self, seconds: float) -> dict[str, Any]:
        return {"left": self.handler.client.flush(seconds)}

    def look(self) -> dict[str, Any]:
        """Return the outcomes, and the CPU of the whole process and of all threads except the logging one."""
        wall, process, thread = time.perf_counter(), time.process_time(), time.thread_time()
        wall, process, thread = wall - self.began[0], process - self.began[1], thread - self.began[2]
        report = {"logged": self.logged, "wall": wall, "cpu": process, "sender": process - thread}
        return report | {"outcomes": outcomes(self.handler.client.stats()), "floor": self.floor}

    def close(self) -> dict[str, Any]:
        self.handler.client.close(0.1)
        return self.look()


def child(url: str) -> None:
    """Carry out commands until the end of stdin."""
    it = Child(url)
    print("{}", flush=True)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(it, verb)(*arguments)), flush=True)


class Contender:
    """The process of a `Child`, as the row uses it."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.dead", "--url", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # errors about the dead server are expected
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"dead: a contender ended, exit {self._process.wait()}")
        return json.loads(line)

    def __call__(self, verb: str, *arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self._process.communicate(timeout=30)


# -- outside ---------------------------------------------------------------------------------------

Samples = dict[str, dict[str, list[dict[str, float]]]]  # phase -> contender -> blocks


def life(draw: random.Random, quick: bool, samples: Samples) -> dict[str, Any]:
    """Run all phases in fresh processes, and add to `samples`; return the final results by contender."""
    with ExitStack() as stack:
        sinks = {name: stack.enter_context(Sink()) for name in (LIVE, AGAIN)}
        servers = sinks | {name: stack.enter_context(kind()) for name, kind in KINDS.items()}
        contenders = {}
        for name, server in servers.items():
            contenders[name] = Contender(server.url)
            stack.callback(contenders[name].end)

        def settle(name: str) -> None:
            if name in sinks and (left := contenders[name]("flush", 30.0)["left"]):
                raise NotExact(f"{name}: {left} events were not acknowledged")

        for phase, (count, pace) in PHASES.items():
            if phase == "queue full":
                for name, contender in contenders.items():
                    before_fill = contender("look")
                    contender("fill", FULL - before_fill["logged"])
                    settle(name)
                    before = before_fill["outcomes"]["dropped"]
                    after = contender("look")["outcomes"]["dropped"]
                    if before or (after > 0) != (name in KINDS):
                        raise NotExact(f"{name}: {before} dropped while there was room, then {after}")
            for _ in range(2 if quick else count):
                for name in draw.sample(NAMES, len(NAMES)):
                    samples[phase][name].append(contenders[name]("block", pace))
                    settle(name)
        report: dict[str, Any] = {}
        for name in NAMES:
            report[name] = contenders[name]("look")
        time.sleep(1.0 if quick else REST)
        for name in NAMES:
            now = contenders[name]("look")
            for clock in ("cpu", "wall"):
                now[clock] -= report[name][clock]
            busy = report[name]["sender"] / report[name]["wall"]
            report[name] = contenders[name]("close") | {"rest": now["cpu"] / now["wall"], "busy": busy}
            exact(name, report[name], sinks.get(name))
        return report


def exact(name: str, report: dict[str, Any], sink: Sink | None) -> None:
    """Check that every event has one outcome, and that the live server has all events."""
    found, logged = report["outcomes"], report["logged"]
    if sum(found.values()) != logged:
        raise NotExact(f"{name}: {logged} events were logged, with outcomes {found}")
    if sink is not None and not (found["acked"] == sink.counts().events == logged):
        raise NotExact(f"{name}: of {logged} events {sink.counts().events} arrived: {found}")
    if sink is None and found["acked"]:
        raise NotExact(f"{name}: {found['acked']} events acknowledged by a dead server")


def storm(count: int) -> tuple[list[Verdict], list[str]]:
    """Measure memory: `count` calls of all sizes to each dead server, each in a separate process."""
    verdicts, notes = [], []
    bound = 1.25 * MAX_BYTES / MIB + 16
    for name, kind in KINDS.items():
        with kind() as server:
            calling, closed = program("storm", url=server.url, calls=count, options={"max_bytes": MAX_BYTES})
        sums = [sum(one[key] for key in OUTCOMES) for one in (calling, closed)]
        grown = calling["grown"] / MIB
        verdicts += [
            claim(f"{name}: peak RSS - idle RSS after {count:,} calls, MiB", grown, "<=", bound),
            # Both times: with a full queue, and after `close` settled the rest.
            claim(f"{name}: events with exactly one fate", min(sums), "==", max(*sums, count)),
        ]
        notes.append(
            f"{name}: {count:,} calls in {calling['seconds']:.0f} s, idle {calling['idle'] / MIB:.1f} MiB; "
            f"{closed['dropped']:,} dropped, {closed['failed']:,} failed(closed)"
        )
    return verdicts, notes


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Run `rounds` lives of all contenders, then measure memory."""
    lives = rounds or (1 if quick else LIVES)
    draw = random.Random(seed)
    samples: Samples = {phase: {name: [] for name in NAMES} for phase in PHASES}
    report = [life(draw, quick, samples) for _ in range(lives)]
    verdicts, notes = [], []
    rows = []
    for phase, by_name in samples.items():
        for name, blocks in by_name.items():
            rows.append(Line(f"{phase}: {name}, p50", {"wall": Spread.of([b["p50"] for b in blocks])}))
        for quantile, (_, bound) in QUANTILES.items():
            control = _ratio(by_name, AGAIN, quantile)
            # Of a thousand calls one decides: no control, but the bound is not below it.
            what = "" if quantile == "p99.9" else "A/A: "
            verdicts.append(claim(f"{what}{phase}, {AGAIN} / {LIVE}, {quantile}", control))
            if not what:
                bound = max(bound, control.median)
            for name in KINDS:
                spread = _ratio(by_name, name, quantile)
                verdicts.append(claim(f"{phase}: {name} / {LIVE}, {quantile}", spread, "<=", bound))
        cells = (
            f"{name} "
            + " / ".join(f"{statistics.median(b[q] for b in blocks):.2f}" for q in QUANTILES)
            + f" / {max(b['max'] for b in blocks):.0f}"
            for name, blocks in by_name.items()
        )
        notes.append(f"{phase}, us, median p50 / p99 / p99.9 / longest call of all: " + "; ".join(cells))
    for name in NAMES:
        rest = Spread.of([100 * one[name]["rest"] for one in report])
        op = "<=" if name in KINDS else ""
        verdicts.append(claim(f"{name}: CPU of the process at rest, % of a core", rest, op, AT_REST))
    busy = {name: statistics.median(100 * one[name]["busy"] for one in report) for name in NAMES}
    notes.append(
        "CPU of all but the logging thread over the whole run, % of a core: "
        + ", ".join(f"{name} {share:.2f}" for name, share in busy.items())
    )
    more, memory_notes = storm(300_000 if quick else STORM)
    verdicts += more
    notes += memory_notes
    notes.append(
        f"{lives} lives of {len(NAMES)} processes; blocks of {BLOCK:,} calls, per life "
        + ", ".join(f"{n} {phase}" for phase, (n, _) in PHASES.items())
        + f"; paced is {PACE:,} calls/s in bursts of {BURST}; {source()}; uncompressed"
    )
    floor = statistics.median(one[name]["floor"] for one in report for name in NAMES)
    notes.append(
        f"each call timed, the clock's own {floor:.0f} ns taken off" + ("; a quick run" if quick else "")
    )
    title = "logger.info with a dead server, beside a live one"
    return Row("dead", title, "us/call", rows, verdicts, notes, {})


def _ratio(by_name: dict[str, list[dict[str, float]]], name: str, quantile: str) -> Spread:
    pairs = zip(by_name[name], by_name[LIVE], strict=True)
    return Spread.of([a[quantile] / b[quantile] for a, b in pairs])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    child(parser.parse_args().url)
