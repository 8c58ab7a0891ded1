"""The network between producers and collectors, as a process: relays that cut, stall, delay and half-close.

Its argument is a JSON list of gates (``name``, ``kind`` tcp or udp, ``address``, ``port``, ``upstream``,
``latency`` in seconds). It prints "ready" once all gates listen, obeys lines of JSON on its standard input
(see `Gate.obey`) and answers each with the numbers of connections and of held bytes. It ends with its input.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tests.nemesis.schedule import LONG_ENOUGH
from tests.support import clean_environment

HOLD = 1 << 20
"""The most bytes held in one direction of a connection; beyond, the sender's own buffers fill."""

RESET = struct.pack("ii", 1, 0)


class Pipe:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        self.source = source
        self.sink = sink
        self.way = way
        self.held: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.ended = False  # whether the source has ended its direction
        self.shut = False  # whether this was passed on to the sink


class Pair:
    """A connection from a producer, with its connection to the collector."""

    def __init__(self, down: socket.socket, up: socket.socket) -> None:
        self.sockets = (down, up)
        self.connected = False
        self.pipes = (Pipe(down, up, "up"), Pipe(up, down, "down"))

    def close(self, reset: bool) -> None:
        for sock in self.sockets:
            if reset:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()


class Gate:
    """The address at which producers connect for one collector."""

    def __init__(self, name: str, address: str, port: int, upstream: int, latency: float, **_: Any) -> None:
        self.name = name
        self.port = port
        self.upstream = upstream
        self.pairs: list[Pair] = []
        self.stalled: set[str] = set()
        self.latency = self.delay = latency
        self.listener: socket.socket | None = None
        self.address = address
        self.open(address)

    def open(self, address: str) -> None:
        self.address = address
        self.shut()
        for _ in range(500):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((address, self.port))
                sock.listen(64)
            except OSError:
                sock.close()
                time.sleep(0.01)
                continue
            sock.setblocking(False)
            self.listener = sock
            return
        raise OSError(f"cannot listen on {address}:{self.port}")

    def shut(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    @property
    def held(self) -> int:
        return sum(pipe.size for pair in self.pairs for pipe in pair.pipes)

    def obey(self, order: dict[str, Any]) -> None:
        """``do``: cut (``how``), stall and flow (``how``), delay (``seconds``), half-close (``how``),
        refuse, accept, move (``address``)."""
        what, how = order["do"], order.get("how", "")
        if what == "cut":
            self.cut(how == "rst")
        elif what == "stall":
            self.stalled |= {"up", "down"} if how == "both" else {how}
        elif what == "flow":
            self.stalled.clear()
        elif what == "delay":
            self.delay = self.latency + order["seconds"]
        elif what == "half-close":
            self.half_close(how)
        elif what == "refuse":
            self.shut()
        elif what == "accept" and self.listener is None:
            self.open(self.address)
        elif what == "move":
            self.open(order["address"])
            self.cut(True)

    def cut(self, reset: bool) -> None:
        for pair in self.pairs:
            pair.close(reset)
        self.pairs.clear()

    def half_close(self, way: str) -> None:
        for pair in self.pairs:
            pipe = pair.pipes[way == "down"]
            with suppress(OSError):
                pipe.sink.shutdown(socket.SHUT_WR)
            pipe.shut = pipe.ended = True
            pipe.held.clear()
            pipe.size = 0

    # -- moving bytes ------------------------------------------------------------------------------

    def wishes(self, now: float, reads: list[Any], writes: list[Any]) -> float:
        """Add the sockets to wait for, and return the latest time."""
        until = now + 1.0
        if self.listener is not None:
            reads.append(self.listener)
        for pair in self.pairs:
            if not pair.connected:
                writes.append(pair.sockets[1])
                continue
            for pipe in pair.pipes:
                if not pipe.ended and pipe.size < HOLD:
                    reads.append(pipe.source)
                if pipe.held and pipe.way not in self.stalled:
                    if pipe.held[0][0] <= now:
                        writes.append(pipe.sink)
                    else:
                        until = min(until, pipe.held[0][0])
        return until

    def serve(self, readable: set[Any], writable: set[Any]) -> None:
        if self.listener in readable:
            self._accept()
        now = time.monotonic()
        for pair in list(self.pairs):
            try:
                self._move(pair, readable, writable, now)
            except OSError as error:
                pair.close(error.errno == errno.ECONNRESET)
                self.pairs.remove(pair)

    def _accept(self) -> None:
        assert self.listener is not None
        try:
            down, _ = self.listener.accept()
        except OSError:
            return
        up = socket.socket()
        for sock in (down, up):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = Pair(down, up)
        if up.connect_ex(("127.0.0.1", self.upstream)) not in (0, errno.EINPROGRESS):
            pair.close(True)
        else:
            self.pairs.append(pair)

    def _move(self, pair: Pair, readable: set[Any], writable: set[Any], now: float) -> None:
        if not pair.connected:
            if pair.sockets[1] in writable:
                number = pair.sockets[1].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if number:
                    raise OSError(errno.ECONNRESET, os.strerror(number))
                pair.connected = True
            return
        for pipe in pair.pipes:
            if pipe.source in readable and not pipe.ended:
                piece = pipe.source.recv(65536)
                if piece:
                    pipe.held.append((now + self.delay, piece))
                    pipe.size += len(piece)
                else:
                    pipe.ended = True
            while pipe.held and pipe.way not in self.stalled and pipe.held[0][0] <= now:
                due, piece = pipe.held[0]
                try:
                    sent = pipe.sink.send(piece)
                except BlockingIOError:
                    break
                pipe.size -= sent
                if sent < len(piece):
                    pipe.held[0] = (due, piece[sent:])
                    break
                pipe.held.popleft()
            if pipe.ended and not pipe.held and not pipe.shut:
                pipe.sink.shutdown(socket.SHUT_WR)
                pipe.shut = True
        if all(pipe.shut for pipe in pair.pipes):
            pair.close(False)
            self.pairs.remove(pair)


class Datagrams(Gate):
    """A gate for datagrams: a cut or a refusal drops them, a stall holds them."""

    def open(self, address: str) -> None:
        self.address = address
        self.shut()
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        sock.bind((address, self.port))
        sock.setblocking(False)
        self.listener = sock
        self.onward = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.onward.connect(("127.0.0.1", self.upstream))
        self.onward.setblocking(False)
        self.waiting: deque[tuple[float, bytes]] = deque()

    @property
    def held(self) -> int:
        return sum(len(piece) for _, piece in self.waiting)

    def cut(self, reset: bool) -> None:
        self.waiting.clear()

    def half_close(self, way: str) -> None:
        pass

    def wishes(self, now: float, reads: list[Any], writes: list[Any]) -> float:
        if self.listener is not None:
            reads.append(self.listener)
        if self.waiting and not self.stalled:
            return max(now, min(self.waiting[0][0], now + 1.0))
        return now + 1.0

    def serve(self, readable: set[Any], writable: set[Any]) -> None:
        now = time.monotonic()
        for _ in range(512):
            try:
                assert self.listener is not None
                self.waiting.append((now + self.delay, self.listener.recv(65536)))
            except (OSError, AssertionError):
                break
        while self.waiting and not self.stalled and self.waiting[0][0] <= now:
            with suppress(OSError):  # no receiver: the datagram is lost
                self.onward.send(self.waiting[0][1])
            self.waiting.popleft()


def main() -> None:
    gates: dict[str, Gate] = {}
    for given in json.loads(sys.argv[1]):
        gates[given["name"]] = (Datagrams if given["kind"] == "udp" else Gate)(**given)
    print("ready", flush=True)
    text = b""
    while True:
        reads: list[Any] = [sys.stdin]
        writes: list[Any] = []
        now = time.monotonic()
        until = min(gate.wishes(now, reads, writes) for gate in gates.values())
        readable, writable, _ = select.select(reads, writes, [], max(0.0, until - now))
        for gate in gates.values():
            gate.serve(set(readable), set(writable))
        if sys.stdin not in readable:
            continue
        piece = os.read(0, 65536)
        if not piece:
            return
        text += piece
        while b"\n" in text:
            line, _, text = text.partition(b"\n")
            order = json.loads(line)
            held, pairs = sum(g.held for g in gates.values()), sum(len(g.pairs) for g in gates.values())
            for name, gate in gates.items():
                if order["gate"] in (name, "all"):
                    gate.obey(order)
            print(json.dumps({"connections": pairs, "held": held}), flush=True)


class Relay:
    """The relay as a process, for a scene. A context manager.

    Args:
        gates: of the relay.
        inside: the begin of the command, which takes it into a namespace.
    """

    def __init__(self, gates: list[dict[str, Any]], inside: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*inside, sys.executable, "-m", "tests.nemesis.relay", json.dumps(gates)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=clean_environment(PYTHONPATH=os.pathsep.join(p or os.getcwd() for p in sys.path)),
        )  # fmt: skip
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the relay did not start")

    def order(self, gate: str, do: str, **more: Any) -> dict[str, int]:
        """Send an order; return the numbers of connections and held bytes just before it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"gate": gate, "do": do, **more}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the relay has ended")
        answer: dict[str, int] = json.loads(line)
        return answer

    def heal(self) -> None:
        self.order("all", "delay", seconds=0.0)
        self.order("all", "flow")

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=LONG_ENOUGH)


if __name__ == "__main__":
    main()
