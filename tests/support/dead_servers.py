"""Three servers that take nothing until they come to life, and programs that log to one of them.

``python -m tests.support.dead_servers storm '{"url": ..., "calls": ...}'`` measures itself and prints JSON.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from math import exp, log
from types import TracebackType
from typing import Any

from tests.cores.sink import Sink
from tests.support import TESTED, clean_environment
from tests.support.patience import PATIENCE


class Refusing(Sink):
    """The port is ours and nothing listens on it: connections are refused."""

    def __init__(self) -> None:
        self._bound = socket.socket()
        self._bound.bind(("127.0.0.1", 0))
        super().__init__(self._bound)

    def __enter__(self) -> Refusing:
        return self

    def come_alive(self) -> None:
        self._bound.listen(200)
        super().__enter__()


class Mute(Sink):
    """Accepts and never reads: windows fill the socket's buffers, then nothing moves."""

    def __init__(self) -> None:
        super().__init__()
        self._alive = threading.Event()

    def _serve(self, sock: socket.socket) -> None:
        self._alive.wait()
        super()._serve(sock)

    def come_alive(self) -> None:
        self._alive.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._alive.is_set():
            for sock in self._sockets:
                sock.close()
        self._alive.set()
        super().__exit__(kind, error, trace)


class BlackHole(Sink):
    """Listens, but its backlog is full: an attempt to connect gets no answer at all."""

    def __init__(self) -> None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        super().__init__(listener)
        self._crowd: list[socket.socket] = []
        while len(self._crowd) < 64:
            one = socket.socket()
            one.settimeout(0.2)
            try:
                one.connect(listener.getsockname())
            except TimeoutError:
                one.close()
                return
            self._crowd.append(one)
        raise RuntimeError("a backlog of none takes 64 connections: this system answers every attempt")

    def __enter__(self) -> BlackHole:
        return self

    def come_alive(self) -> None:
        for one in self._crowd:
            one.close()
        super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._crowd:
            one.close()
        super().__exit__(kind, error, trace)


KINDS: dict[str, type[Refusing | Mute | BlackHole]] = {
    "connection refused": Refusing,
    "accepts and never reads": Mute,
    "no answer": BlackHole,
}


# -- the programs ---------------------------------------------------------------------------------------


def run(program: str, **what: Any) -> list[dict[str, Any]]:
    """The program in a process of its own; what it said, line by line."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.dead_servers", program, json.dumps(what)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=TESTED,
        env=clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def rss() -> dict[str, int]:
    """Bytes: resident now (VmRSS), and at most since the peak was last reset (VmHWM)."""
    with open("/proc/self/status") as file:
        pairs = (line.split(":", 1) for line in file)
        return {k: int(v.split()[0]) * 1024 for k, v in pairs if k in ("VmRSS", "VmHWM")}


def reset_peak() -> int:
    """Forget the peak; bytes resident now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return rss()["VmRSS"]


def outcomes(stats: Any) -> dict[str, int]:
    """Return the numbers of events by outcome, and of those without one yet."""
    return {
        "queued": stats.queued,
        "inflight": stats.inflight,
        "acked": stats.acked,
        "handed": stats.handed,
        "failed": sum(stats.failed.values()),
        "dropped": sum(stats.dropped.values()),
    }


def messages(smallest: int, largest: int, seed: int) -> Iterator[str]:
    """Texts whose lengths are log-uniform, for ever."""
    draw = random.Random(seed)
    words = ["session", "opened", "for", "user", "root", "from", "host", "closed", "block", "served"]
    text = " ".join(draw.choices(words, k=largest // 4))
    assert len(text) >= largest
    sizes = [round(exp(draw.uniform(log(smallest), log(largest)))) for _ in range(65_536)]
    while True:
        for size in sizes:
            yield text[:size]


def storm(
    url: str,
    calls: int,
    *,
    smallest: int = 100,
    largest: int = 20 * 1024,
    warm: int = 100,
    rest: float = 0.0,
    options: dict[str, Any] | None = None,
) -> None:
    """Log `calls` messages, look at memory and outcomes, rest, close, look again."""
    import logclient

    handler = logclient.Handler(url, **(options or {}))
    logger = logging.getLogger("app")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    source = messages(smallest, largest, seed=calls)
    info = logger.info
    for i in range(warm):
        info("warm %d", i)
    deadline = time.monotonic() + PATIENCE
    while handler.client.stats().turns == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    idle = reset_peak()
    began, cpu = time.perf_counter(), time.process_time()
    for _, message in zip(range(calls - warm), source, strict=False):
        info(message)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
    grown = rss()["VmHWM"] - idle
    stats = handler.client.stats()
    said = {"idle": idle, "grown": grown, "seconds": seconds, "cpu": cpu, "bytes": stats.queued_bytes}
    print(json.dumps(said | outcomes(stats)), flush=True)
    if rest:
        cpu = time.process_time()
        time.sleep(rest)
        print(json.dumps({"rest": rest, "cpu": time.process_time() - cpu}), flush=True)
    left = handler.client.close(0.1)
    print(json.dumps({"left": left} | outcomes(handler.client.stats())), flush=True)


def sizes(url: str, phases: list[tuple[int, int]], volume: int, options: dict[str, Any]) -> None:
    """Send `volume` bytes of events of these lengths, phase after phase; memory after each."""
    import logclient

    with logclient.connect(url, timeout=0.1, **options) as client:
        client.send(b"{}")
        idle = reset_peak()
        for smallest, largest in phases:
            sent = 0
            for text in messages(smallest, largest, seed=1):
                client.send(b'{"message":"%s"}' % text.encode())
                sent += len(text)
                if sent >= volume:
                    break
            said = {"grown": rss()["VmHWM"] - idle, "bytes": client.stats().queued_bytes}
            print(json.dumps(said), flush=True)


def follow(url: str, calls: int, options: dict[str, Any]) -> None:
    """Submit events that are pushed out again; memory, and how many have their outcome at the end."""
    import logclient

    told = 0
    with logclient.connect(url, overflow="drop_oldest", timeout=0.1, **options) as client:
        pending: deque[Any] = deque()
        idle = reset_peak()
        for n in range(calls):
            pending.append(client.submit({"n": n}))
            while pending and pending[0].done():
                pending.popleft()
                told += 1
        print(json.dumps({"grown": rss()["VmHWM"] - idle, "told": told, "pending": len(pending)}), flush=True)


if __name__ == "__main__":
    {"storm": storm, "sizes": sizes, "follow": follow}[sys.argv[1]](**json.loads(sys.argv[2]))
