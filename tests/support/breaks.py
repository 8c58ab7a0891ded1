"""Servers that end connections whatever the events are: when they do, and a server that does so."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import IO

from tests.support.patience import PATIENCE

Breaks = Iterator[Iterator[bool]]
"""For each connection, for each window on it, whether it ends the connection."""


def at_random(rate: float, random: Random) -> Breaks:
    """Each window breaks with this probability."""
    while True:
        yield iter(lambda: random.random() < rate, None)


def by_connection(rate: float, random: Random) -> Breaks:
    """Some connections take nothing, the others fifty windows."""
    while True:
        taken = 0 if random.random() < rate else 50
        yield itertools.chain(itertools.repeat(False, taken), itertools.repeat(True))


def every(k: int) -> Breaks:
    """Each k-th window breaks, over all connections."""
    windows = itertools.count(1)
    while True:
        yield (next(windows) % k == 0 for _ in itertools.count())


def every_connection(k: int, taken: int) -> Breaks:
    """Each k-th connection takes nothing, the others so many windows."""
    for number in itertools.count(1):
        yield (number % k == 0 or n >= taken for n in itertools.count())


def bursts(random: Random) -> Breaks:
    """Good and bad times, both of random length."""
    state = {"left": 0, "bad": False}

    def window() -> bool:
        if not state["left"]:
            state["bad"] = not state["bad"]
            state["left"] = random.randrange(1, 40)
        state["left"] -= 1
        return state["bad"]

    while True:
        yield iter(window, None)


def crash_loop(down: int, up: int) -> Breaks:
    """So many connections that take nothing, then as many that take one window each."""
    while True:
        for _ in range(down):
            yield itertools.repeat(True)
        for _ in range(up):
            yield itertools.chain([False], itertools.repeat(True))


def capped(requests: int) -> Breaks:
    """A balancer that ends each connection after so many windows."""
    while True:
        yield itertools.chain(itertools.repeat(False, requests), itertools.repeat(True))


BLIND: dict[str, Callable[[Random], Breaks]] = {
    **{f"{p} %": lambda r, p=p: at_random(p / 100, r) for p in (5, 20, 50, 75, 90)},
    **{f"{p} % of connections": lambda r, p=p: by_connection(p / 100, r) for p in (5, 20, 50, 75, 90)},
    **{f"each window {k}": lambda r, k=k: every(k) for k in (2, 3, 4, 7)},
    **{
        f"each connection {k}, {n} windows": lambda r, k=k, n=n: every_connection(k, n)
        for k, n in ((2, 1), (2, 2), (2, 50), (3, 1), (3, 50), (5, 3))
    },
    "bursts": bursts,
    **{
        f"{d} down, {u} up": lambda r, d=d, u=u: crash_loop(d, u)
        for d, u in ((8, 6), (5, 1), (3, 3), (40, 40))
    },
    **{f"at most {n}": lambda r, n=n: capped(n) for n in (1, 2, 5)},
}


class PoisonedServer:
    """A Lumberjack server that ends connections as `breaks` says, and at events that it cannot take.

    Args:
        breaks: for each connection, for each window on it, whether it ends the connection instead of an
            acknowledgement.
        chokes: whether it cannot take an event.
    """

    def __init__(self, breaks: Breaks, chokes: Callable[[int], bool] = lambda n: False) -> None:
        self.breaks = breaks
        self.chokes = chokes
        self.cuts = 0
        self.arrived: list[tuple[float, int]] = []  # when, and the n of the event
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.url = f"lumberjack://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, peer.makefile("rb") as file:
                try:
                    self._connection(peer, file, next(self.breaks))
                except OSError:
                    pass

    def _connection(self, peer: socket.socket, file: IO[bytes], breaks: Iterator[bool]) -> None:
        while len(head := file.read(6)) == 6:
            count = struct.unpack(">2sI", head)[1]
            numbers = []
            for _ in range(count):
                _, size = struct.unpack(">2xII", file.read(10))
                numbers.append(json.loads(file.read(size))["n"])
            if any(map(self.chokes, numbers)) or next(breaks):
                self.cuts += 1
                return
            now = time.monotonic()
            self.arrived += [(now, n) for n in numbers]
            peer.sendall(b"2A" + struct.pack(">I", count))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(PATIENCE)
