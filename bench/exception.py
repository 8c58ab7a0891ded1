"""Row `exception`: the cost of the text of an exception, and of a storm of them.

20 exceptions, each ten frames deep, from functions in one file or in ten; no two exceptions share a function.
Each has its text made by the standard library (`formatException`), and by ours with frames seen before and
with frames seen for the first time. Before the timed runs all texts are compared. Beside them, what other
loggers make of the same exceptions: structlog's dictionaries, without local variables, and sentry-sdk's event
with its default options.

In the storm four threads call `logger.exception` as fast as they can, each time for an exception that was
raised just then, ten frames deep in ten files. The handler ships to a C sink. `standard` is the same with a
filter that makes the text by the standard library before the handler sees the record, as any other handler in
front of it would: then ours uses that one.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.handler import check, forget, loop
from bench.harness import Contender, Line, NotExact, Row, Spread, Target, claim, compare, judge, lines
from bench.ours import NOWHERE, QueueOnly
from bench.peers import sentry_exception, structlog_exception
from bench.saturated import said_by
from bench.sink import Sink

COUNT = 20
DEPTH = 10
THREADS = 4
SECONDS = 30.0
FILES = {"one file": 1, "ten files": 10}
STANDARD = "formatException"
SEEN = "seen before"
FIRST = "first time"
HANDLER = "logclient.Handler, seen before"
BOUNDS = {"one file": 0.08, "ten files": 0.15}
TARGETS = [
    *(Target(f"{files}: {SEEN}", f"{files}: {STANDARD}", "<=", bound) for files, bound in BOUNDS.items()),
    *(Target(f"{files}: {FIRST}", f"{files}: {STANDARD}", "<=", 1.1) for files in BOUNDS),
]

ExcInfo = Any


def write(folder: Path, files: int, count: int = COUNT) -> list[list[Callable[..., Any]]]:
    """Write modules, and return for each exception its ten functions, each of which calls the next."""
    texts = [""] * files
    for i in range(count * DEPTH):
        texts[i % files] += (
            f"\ndef serve{i}(request, rest):\n"
            f"    step = rest[0]\n"
            f"    return {{'took': step(request, rest[1:]) + {i}, 'path': request['path']}}\n"
        )
    spaces = []
    for n, text in enumerate(texts):
        path = folder / f"orders{files}_{n}.py"
        path.write_text(text, encoding="utf-8")
        spaces.append({"__name__": path.stem})
        exec(compile(text, str(path), "exec"), spaces[-1])
    return [[spaces[i % files][f"serve{i}"] for i in range(n * DEPTH, (n + 1) * DEPTH)] for n in range(count)]


def refuse(request: dict[str, str], rest: Sequence[Any]) -> int:
    raise ValueError(f"no such order: {request['path']}")


def failing(functions: Sequence[Callable[..., Any]]) -> ExcInfo:
    """Call the functions of one exception and return it, without the frame of this call."""
    try:
        functions[0]({"path": "/orders/17"}, [*functions[1:-1], refuse])
    except ValueError as error:
        assert error.__traceback__ is not None
        return ValueError, error, error.__traceback__.tb_next
    raise NotExact("nothing failed")


def record(exc_info: ExcInfo) -> logging.LogRecord:
    return logging.getLogger("app.orders").makeRecord(
        "app.orders", logging.ERROR, __file__, 60, "request failed", (), exc_info, func="serve"
    )


def texts_of(stack: ExitStack, folder: Path) -> list[Contender]:
    """Make the contenders, after all texts were compared."""
    import logclient
    from logclient._ext.tracebacks import ExceptionFormatter

    standard = logging.Formatter().formatException
    contenders = []
    for files, number in FILES.items():
        errors = [failing(functions) for functions in write(folder, number)]
        seen, again, first = (ExceptionFormatter() for _ in range(3))
        if not seen.cached:
            raise NotExact("frames are not kept in this Python")
        for one in (seen, again, first):
            for error in errors:
                text = standard(error)
                if not one.format(error) == one.format(error) == text or text.count("  File ") != DEPTH:
                    raise NotExact(f"the texts differ:\n{text}")
        contenders += [
            Contender(f"{files}: {STANDARD}", loop(standard, errors), COUNT),
            Contender(f"{files}: {STANDARD} (again)", loop(standard, errors), COUNT),
            Contender(f"{files}: {SEEN}", loop(seen.format, errors), COUNT),
            Contender(f"{files}: {FIRST}", loop(first.format, errors), COUNT, before=first.clear),
        ]
    handler = logclient.Handler(NOWHERE)
    stack.callback(handler.close)
    queue = QueueOnly(handler.client)
    made = [record(error) for error in errors]
    loop(handler.handle, made)()
    check(made, queue.take())
    forget_texts = forget(made)
    shipped = Contender(
        f"ten files: {HANDLER}", loop(handler.handle, made), COUNT, queue.count, before=forget_texts
    )
    contenders.append(shipped)
    for peer in (structlog_exception(), sentry_exception()):
        if peer is not None:
            name, call = peer
            contenders.append(Contender(f"ten files: {name}", loop(call, errors), COUNT))
    return contenders


# -- the storm ----------------------------------------------------------------------------------


class FormatFirst(logging.Filter):
    """A filter that makes the text by the standard library."""

    formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_text = self.formatter.formatException(record.exc_info)  # type: ignore[arg-type]
        return True


def _worker(chains: Sequence[Any], start: threading.Barrier, seconds: float, out: list[int]) -> None:
    logger = logging.getLogger("app.orders")
    request = {"path": "/orders/17"}
    logged, at = 0, 0
    start.wait()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        functions = chains[at]
        at = at + 1 if at + 1 < len(chains) else 0
        try:
            functions[0](request, [*functions[1:-1], refuse])
        except ValueError:
            logger.exception("request %d failed", logged)
        logged += 1
    out.append(logged)


def child(url: str, seconds: float, standard: bool) -> dict[str, Any]:
    """Do one storm in this process."""
    import logclient

    handler = logclient.Handler(url, compression=0)
    logger = logging.getLogger("app.orders")
    logger.addHandler(handler)
    logger.propagate = False
    if standard:
        handler.addFilter(FormatFirst())
    with tempfile.TemporaryDirectory() as folder:
        chains = write(Path(folder), 10)
        start = threading.Barrier(THREADS + 1)
        out: list[int] = []
        workers = [
            threading.Thread(target=_worker, args=(chains[i:] + chains[:i], start, seconds, out))
            for i in range(THREADS)
        ]
        for one in workers:
            one.start()
        process, wall = time.process_time(), time.perf_counter()
        start.wait()
        for one in workers:
            one.join()
        wall, process = time.perf_counter() - wall, time.process_time() - process
    left = handler.client.flush(60.0)
    stats = handler.client.stats()
    handler.close()
    lost = sum(stats.dropped.values()) + sum(stats.failed.values())
    said = {"logged": sum(out), "wall": wall, "cpu": process}
    return {**said, "acked": stats.acked, "lost": lost, "left": left}


def storm(seconds: float, standard: bool) -> dict[str, Any]:
    """Do one storm in a process, with a sink."""
    command = [sys.executable, "-m", "bench.exception", "--seconds", str(seconds)]
    with Sink() as sink:
        said = said_by([*command, "--url", sink.url, *(["--standard"] if standard else [])])
        received = sink.counts().events
    if received != said["acked"] or said["acked"] + said["lost"] != said["logged"] or said["left"]:
        raise NotExact(f"{received} events received, {said}")
    return said


def storms(seconds: float, rounds: int, seed: int) -> tuple[list[Any], list[str], list[dict[str, Any]]]:
    """Do storms in both ways, in random order."""
    draw = random.Random(seed)
    runs: list[dict[str, Any]] = []
    for _ in range(rounds):
        runs += [{"standard": one} | storm(seconds, one) for one in draw.sample([False, True], 2)]
    rates, costs, notes = {}, {}, []
    for standard, name in ((False, "ours"), (True, "standard")):
        mine = [r for r in runs if r["standard"] is standard]
        rates[standard] = [r["logged"] / r["wall"] for r in mine]
        costs[standard] = [r["cpu"] / r["logged"] * 1e6 for r in mine]
        notes.append(
            f"storm, {name}: {statistics.median(rates[standard]):,.0f} calls/s, "
            f"{statistics.median(costs[standard]):.1f} us of CPU a call (all threads), "
            f"{statistics.median([r['cpu'] / r['wall'] for r in mine]):.2f} cores; "
            f"logged {[r['logged'] for r in mine]}, dropped or failed {[r['lost'] for r in mine]}"
        )
    faster = Spread.of([a / b for a, b in zip(rates[False], rates[True], strict=True)])
    cheaper = Spread.of([a / b for a, b in zip(costs[False], costs[True], strict=True)])
    verdicts = [
        claim("storm: calls per second, ours / standard", faster),
        claim("storm: CPU a call, ours / standard", cheaper),
        claim("storm: dropped or failed, all runs", sum(r["lost"] for r in runs), "==", 0),
    ]
    return verdicts, notes, runs


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure texts, then storms."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        samples = compare(texts_of(stack, folder), rounds=rounds or (3 if quick else 15), seed=seed)
    verdicts = judge(samples, TARGETS, (f"one file: {STANDARD} (again)", f"one file: {STANDARD}"))
    seconds = 1.0 if quick else SECONDS
    more, notes, runs = storms(seconds, 1 if quick else min(rounds or 3, 3), seed)
    rows: list[Line] = lines(samples)
    return Row(
        "exception",
        f"the text of an exception {DEPTH} frames deep, and {THREADS} threads that log such ones",
        "us/exception",
        rows,
        [*verdicts, *more],
        [
            *notes,
            f"storm: {THREADS} threads, {seconds:g} s a run, each exception raised just before",
            "judged is the caller's CPU; all texts equal those of formatException",
        ],
        {"storms": runs},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--standard", action="store_true")
    chosen = parser.parse_args()
    print(json.dumps(child(chosen.url, chosen.seconds, chosen.standard)))
