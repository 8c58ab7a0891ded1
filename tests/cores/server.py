"""The server of the test cores, scripted by the test, in memory or on a socket.

A server reads all bytes and answers by its ``script`` (by default it acknowledges everything at once). A test
may also take a `Peer`, one connection, and send anything on it.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from logclient.delivery.attempt import Attempt
from logclient.delivery.contract import FOREVER, Link, Transport
from tests.support.patience import PATIENCE


class Got(NamedTuple):
    """An event that arrived."""

    number: int  # of the connection (by_id), or its place in it
    producer: str
    seq: int
    body: bytes
    payload: bytes


class Peer:
    """The server's side of one connection. All its methods may be called from any thread."""

    def __init__(self, server: Server, say: Callable[[bytes], None], end: Callable[[str], None]) -> None:
        self.server = server
        self.number = len(server.peers)
        self.got: list[Got] = []
        self.waiting: list[Got] = []  # events without an answer
        self.received = b""
        self.open = True
        self.raw = say  # of a transport of messages: bytes beside them
        self._say = say
        self._end = end
        self._rest = b""
        self._windows: deque[list[int]] = deque()  # cumulative: [left, acknowledged]

    # -- input

    def feed(self, data: bytes) -> None:
        """Handle bytes of the link, and answer by the server's script."""
        with self.server.changed:
            self.received += data
            self._rest += data
            while used := self._unit(self._rest):
                self._rest = self._rest[used:]
            self.server.changed.notify_all()
            if self.open:
                self.server.script(self)

    def _unit(self, data: bytes) -> int:
        kind = data[:1]
        if kind == b"W" and len(data) >= 3:
            count, at = int.from_bytes(data[1:3], "big"), 3
            payloads = []
            for _ in range(count):
                size = int.from_bytes(data[at : at + 4], "big")
                if len(data) < at + 4 + size:
                    return 0
                payloads.append(data[at + 4 : at + 4 + size])
                at += 4 + size
            self._windows.append([count, 0])
            for payload in payloads:
                self._event(payload, len(self.got) + 1)
            return at
        if kind in (b"E", b"D") and kind:
            numbered = kind == b"E" and self.server.kind in ("by_id", "by_message")
            head = 13 if numbered else 5
            if len(data) < head:
                return 0
            size = int.from_bytes(data[head - 4 : head], "big")
            if len(data) < head + size:
                return 0
            number = int.from_bytes(data[1:9], "big") if numbered else len(self.got) + 1
            self._event(data[head : head + size], number)
            return head + size
        if kind == b"P" and len(data) >= 9:
            self._say(data[:9])
            return 9
        assert kind in b"WEDP", f"garbage from the client: {data[:20]!r}"
        return 0

    def _event(self, payload: bytes, number: int) -> None:
        got = Got(number, payload[:20].decode(), int(payload[20:32], 16), payload[32:], payload)
        self.got.append(got)
        self.waiting.append(got)

    # -- output

    def ack(self, n: int | None = None) -> None:
        """Acknowledge the `n` oldest waiting events; None: all."""
        with self.server.changed:
            self._answer(b"k", self.waiting[:n])

    def reject(self, n: int = 1) -> None:
        with self.server.changed:
            self._answer(b"n", self.waiting[:n])

    def again(self, n: int = 1) -> None:
        with self.server.changed:
            self._answer(b"r", self.waiting[:n])

    def answer(self, word: bytes, found: list[Got]) -> None:
        """Answer any waiting events in any order (`by_id`)."""
        self._answer(word, found)

    def _answer(self, word: bytes, found: list[Got]) -> None:
        with self.server.changed:
            found = list(found)
            self.waiting = [g for g in self.waiting if g not in found]
            if self.server.kind in ("by_id", "by_message"):
                self.say(b"".join(word + g.number.to_bytes(8, "big") for g in found))
            elif self.server.kind == "fifo":
                self.say(word * len(found))
            elif self.server.kind == "cumulative":
                assert word == b"k"
                self._count(len(found))

    def _count(self, n: int) -> None:
        while n:
            window = self._windows[0]
            some = min(n, window[0])
            self.say(b"A" + some.to_bytes(2, "big"))
            window[0] -= some
            n -= some
            if not window[0]:
                self._windows.popleft()

    def alive(self) -> None:
        self.say(b".")

    def say(self, data: bytes) -> None:
        if data and self.open:
            self._say(data)

    def cut(self) -> None:
        """End it: what was said before still arrives."""
        self.open = False
        self._end("cut")

    def reset(self) -> None:
        """End it with an error."""
        self.open = False
        self._end("reset")


def acknowledge(peer: Peer) -> None:
    """The honest script."""
    peer.ack()


def silent(peer: Peer) -> None:
    """Nothing, ever."""


class Server:
    """What the two have in common. ``up``/``down``: whether anybody listens."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.peers: list[Peer] = []
        self.changed = threading.Condition()
        self.script: Callable[[Peer], None] = acknowledge if kind != "none" else silent
        self.attempts = 0
        self.stuck = False  # takes no bytes

    def wait(self, what: Callable[[], Any]) -> Any:
        """Until `what` is true; its value."""
        with self.changed:
            assert self.changed.wait_for(what, PATIENCE), f"never: {what}"
            return what()

    def peer(self, number: int) -> Peer:
        """The connection with this number, once there is one."""
        self.wait(lambda: len(self.peers) > number)
        return self.peers[number]

    def events(self, n: int, peer: int | None = None) -> list[Got]:
        """All that arrived, once there are `n` (on one connection)."""

        def found() -> list[Got]:
            peers = self.peers if peer is None else self.peers[peer : peer + 1]
            return [got for p in peers for got in p.got]

        self.wait(lambda: len(found()) >= n)
        return found()

    def up(self) -> None: ...
    def down(self) -> None: ...
    def close(self) -> None: ...

    @property
    def endpoint(self) -> Any:
        return ("test", 1)


# -- in memory ---------------------------------------------------------------------------------------


class MemoryLink(Link):
    """A connection without a socket; ``send`` is the server's ``feed``."""

    peer = "test:1"

    def __init__(self, server: MemoryServer) -> None:
        self._in: deque[bytes] = deque()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._gone = ""
        self._closed = False
        self._lock = threading.Lock()
        self._unsent: list[bytes] = []
        self._server = server
        self.far = Peer(server, self._deliver, self._finish)

    def _poke(self) -> None:
        with self._lock:
            if not self._closed:
                try:
                    os.write(self._write, b"x")
                except BlockingIOError:
                    pass

    def _deliver(self, data: bytes) -> None:
        self._in.append(data)
        self._poke()

    def _finish(self, how: str) -> None:
        self._gone = how
        self._poke()

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        self._unsent += [bytes(b) for b in buffers]
        return self.flush()

    def flush(self) -> bool:
        if self._gone == "reset":
            raise ConnectionResetError(104, "reset")
        if self._server.stuck:
            return False
        data, self._unsent = b"".join(self._unsent), []
        if data and not self._gone:
            self.far.feed(data)
        return True

    def receive(self) -> bytes | None:
        try:
            os.read(self._read, 65536)
        except BlockingIOError:
            pass
        if self._in:
            return self._in.popleft()
        if self._gone == "reset":
            raise ConnectionResetError(104, "reset")
        return b"" if self._gone else None

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        ready = self._in or self._gone or (writable and not self._server.stuck)
        return [self._read], [], 0.0 if ready else FOREVER

    def close(self, flush_for: float = 0.0) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
        self.far.open = False

    abandon = close


class MemoryServer(Server):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.listening = True

    def up(self) -> None:
        self.listening = True

    def down(self) -> None:
        self.listening = False


class MemoryTransport(Transport):
    def __init__(self, server: MemoryServer) -> None:
        self.server = server

    def connect(self, endpoint: Any, attempt: Attempt) -> MemoryLink:
        server = self.server
        with server.changed:
            server.attempts += 1
            server.changed.notify_all()
            if not server.listening:
                raise ConnectionRefusedError(111, "Connection refused")
            link = MemoryLink(server)
            server.peers.append(link.far)
            server.changed.notify_all()
        return link


# -- on a socket -------------------------------------------------------------------------------------


class SocketServer(Server):
    """A thread for accepting and one for each connection."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._port = 0
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._bind()
        self.up()

    @property
    def endpoint(self) -> Any:
        return ("127.0.0.1", self._port)

    def _bind(self) -> None:
        # Bound and not listening: the port stays ours, and who connects is refused.
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)

    def up(self) -> None:
        assert self._listener is not None
        self._listener.listen(16)
        thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def down(self) -> None:
        assert self._listener is not None
        self._stop(self._listener)
        self._bind()

    @staticmethod
    def _stop(sock: socket.socket) -> None:
        try:
            sock.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept or recv
        except OSError:
            pass
        sock.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.changed:
                self.attempts += 1
                self._sockets.append(sock)
                peer = Peer(self, self._sayer(sock), self._ender(sock))
                thread = threading.Thread(target=self._serve, args=(sock, peer), daemon=True)
                self.peers.append(peer)
                self._threads.append(thread)
                self.changed.notify_all()
            thread.start()

    def _sayer(self, sock: socket.socket) -> Callable[[bytes], None]:
        def say(data: bytes) -> None:
            try:
                sock.sendall(data)
            except OSError:
                pass

        return say

    @staticmethod
    def _ender(sock: socket.socket) -> Callable[[str], None]:
        def end(how: str) -> None:
            try:
                if how == "reset":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    # The reader's own close sends the reset.
                    sock.shutdown(socket.SHUT_RD)
                else:
                    sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass

        return end

    def _serve(self, sock: socket.socket, peer: Peer) -> None:
        with sock:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: not self.stuck, PATIENCE)
                try:
                    data = sock.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                if peer.open:
                    peer.feed(data)

    def close(self) -> None:
        assert self._listener is not None
        with self.changed:
            self.stuck = False
            self.changed.notify_all()
        self._stop(self._listener)
        for sock in self._sockets:
            self._stop(sock)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
