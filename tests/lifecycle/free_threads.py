"""Threads that log through one handler while others change it; run by the interpreter that is to be tried.

    python -m tests.lifecycle.free_threads SECONDS

Prints what was counted as JSON. The lock must stay off, and every record must be counted once.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from random import Random
from typing import Any

import logclient
import logclient._ext
import logclient._ext.hash as hash_
from logclient._ext.record import Encoder
from logclient.errors import MissingExtra
from logclient.records.context import Fields, Part
from logclient.testing.lumberjack import Collector

LOGGING = 8


class Plain(logging.Formatter):
    pass


class Thing:
    def __repr__(self) -> str:
        return "thing"


class Counted(logging.Filter):
    """Takes everything; a new one each time, so that the old one is freed while others read it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return True


def extensions() -> list[str]:
    return sorted(p.stem.split(".")[0] for p in Path(logclient._ext.__path__[0]).glob("*.pyi"))


def storm(handler: logclient.Handler, seconds: float) -> list[int]:
    """How many records each thread logged."""
    loggers = [kind("storm") for kind in (logging.Logger, logclient.Logger)]
    for logger in loggers:
        logger.addHandler(handler)
    end = time.monotonic() + seconds
    counts = [0] * LOGGING
    shared: dict[str, Any] = {"n": 1, "list": [1, 2, "x"], "inner": {"a": 1}}
    stop = threading.Event()

    def log(n: int) -> None:
        i = 0
        logger = loggers[n % 2]
        while time.monotonic() < end:
            for _ in range(50):
                i += 1
                match i % 4:
                    case 0:
                        logger.info("plain")
                    case 1:
                        logger.info("%s did %d things", "bob", i)
                    case 2:
                        logger.info("%r", Thing(), extra={"shared": shared, "i": i})
                    case _:
                        logger.warning({"event": "structured", "shared": shared})
            time.sleep(0)
        counts[n] = i

    def formatter() -> None:
        while not stop.is_set():
            handler.setFormatter(Plain("%(message)s"))
            handler.formatter is None  # noqa: B015
            handler.setFormatter(None)
            handler.formatter is None  # noqa: B015

    def filters() -> None:
        while not stop.is_set():
            one = Counted()
            handler.addFilter(one)
            handler.filters = [Counted() for _ in range(3)]
            list(handler.filters)
            handler.filters = []
            handler.removeFilter(one)

    def changes() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            shared[f"key{i % 50}"] = [i] * (i % 7)
            shared["list"].append(i)
            if i % 40 == 0:
                shared["list"].clear()
                shared.clear()
                shared.update(list=[], inner={"b": i})

    def snapshots() -> None:
        while not stop.is_set():
            s = handler.client.stats()
            outcomes = s.queued + s.inflight + s.acked + s.handed + sum(s.failed.values())
            assert s.sent == outcomes + sum(s.dropped.values()), s
            time.sleep(0.005)

    failures: list[BaseException] = []

    def safely(what: Callable[..., None], *given: Any) -> None:
        try:
            what(*given)
        except BaseException as error:  # a thread's own end is nobody's to see
            failures.append(error)

    workers = [threading.Thread(target=safely, args=(log, n)) for n in range(LOGGING)]
    others = [threading.Thread(target=safely, args=(f,)) for f in (formatter, filters, changes, snapshots)]
    for thread in (*workers, *others):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]
    handler.setFormatter(None)
    handler.filters = []
    return counts


def closing(url: str) -> None:
    """Threads that log while the handler is closed, and the counts of each."""
    handler = logclient.Handler(url, timeout=5.0)
    logger = logging.Logger("closing")
    logger.addHandler(handler)
    begun = threading.Barrier(5)

    def log() -> None:
        begun.wait()
        for i in range(300):
            logger.info("%s", i)

    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    handler.close()
    for thread in threads:
        thread.join()
    s = handler.client.stats()
    assert s.sent + s.refused == 1200, s


def forking(handler: logclient.Handler) -> None:
    """A child whose threads are the first to log at the same time, each finding the parent's hand-off."""
    logger = logging.Logger("forked")
    logger.addHandler(handler)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            begun = threading.Barrier(6)

            def log() -> None:
                begun.wait()
                for i in range(200):
                    logger.info("of a child %d", i)

            threads = [threading.Thread(target=log) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            handler.client.flush(10.0)
            s = handler.client.stats()
            code = 0 if s.sent == s.acked == 1200 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def others(seconds: float) -> dict[str, int]:
    """The same over other protocols, as far as what they need is installed: how many were delivered."""
    delivered = {}
    for scheme in ("plog", "logux"):
        try:
            module = importlib.import_module(f"logclient.testing.{scheme}")
            with module.Collector() as collector:
                url = f"{scheme}://127.0.0.1:{collector.port}"
                handler = logclient.Handler(url, overflow="block", timeout=20.0)
                logged = sum(storm(handler, seconds))
                handler.client.close()
                s = handler.client.stats()
                assert s.sent == logged == s.acked + s.handed, s
        except MissingExtra:
            continue
        delivered[scheme] = s.sent
    return delivered


def functions() -> None:
    """Hashes, and what a capture's reader does, in several threads at once."""
    data = Random(1).randbytes(100_000)
    wanted = {n: hash_.xxh64(data[:n]) for n in range(0, len(data), 997)}
    wrong: list[int] = []

    def look() -> None:
        for n, value in wanted.items():
            if hash_.xxh64(data[:n]) != value:
                wrong.append(n)

    threads = [threading.Thread(target=look) for _ in range(LOGGING)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def fields(seconds: float) -> None:
    """An encoder whose fields are replaced meanwhile: each document has the old ones, or the new ones."""
    bound: ContextVar[Fields | None] = ContextVar("bound", default=None)
    end = time.monotonic() + seconds
    wrong: list[object] = []

    def made(n: int) -> dict[str, object]:
        return {"one": n, "two": "x" * (n % 50), "three": [n]}

    encoder = Encoder(fields=made(0), bound=bound)

    def encode(n: int) -> None:
        try:
            if n % 2:
                bound.set(Fields([Part({"bound": n})]))
            while time.monotonic() < end:
                document = json.loads(encoder.encode({"n": n})[0])
                expected = made(document["one"]) | {"n": n} | ({"bound": n} if n % 2 else {})
                if document != expected:
                    wrong.append(document)
        except BaseException as error:
            wrong.append(error)

    def replace() -> None:
        n = 0
        while time.monotonic() < end:
            n += 1
            encoder.set_fields(made(n))

    threads = [threading.Thread(target=encode, args=(n,)) for n in range(LOGGING)]
    threads.append(threading.Thread(target=replace))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    encoder.set_fields({"last": 1})
    assert json.loads(encoder.encode({"n": 1})[0]) == {"last": 1, "n": 1}


def main(seconds: float) -> None:
    for name in extensions():
        importlib.import_module(f"logclient._ext.{name}")
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    with Collector() as collector:
        url = f"lumberjack://127.0.0.1:{collector.port}"
        handler = logclient.Handler(url, overflow="block", timeout=20.0)
        counts = storm(handler, seconds)
        for _ in range(5):
            forking(handler)
        handler.flush()
        handler.close()
        s = handler.client.stats()
        for _ in range(20):
            closing(url)
    functions()
    fields(seconds / 4)
    more = others(seconds / 4)
    print(json.dumps({"locked": locked, "logged": sum(counts), "sent": s.sent, "acked": s.acked,
                      "failed": s.failed, "dropped": s.dropped, "ignored": s.ignored,
                      "more": more}))  # fmt: skip


if __name__ == "__main__":
    main(float(sys.argv[1]))
