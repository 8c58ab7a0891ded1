"""The server of the cores over ZeroMQ: a ROUTER, behind a wire that a test can cut."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from typing import Any

import zmq

from tests.cores.server import Peer, Server
from tests.support.patience import PATIENCE


class Wire:
    """A port that forwards TCP connections to another one, until they are cut."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            with self._lock:
                self._sockets += [near, far]
                for a, b in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._copy, args=(a, b), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        for sock in (source, target):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self) -> None:
        """End every connection with a reset."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


class RouterServer(Server):
    """A thread with a ROUTER socket; a routing id is a peer."""

    def __init__(self) -> None:
        super().__init__("fifo")
        self._context: zmq.Context[Any] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.LINGER = 0
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.wire = Wire(("127.0.0.1", port))
        self.by_id: dict[bytes, Peer] = {}
        self._words: deque[tuple[bytes, bytes]] = deque()
        self._wake, self._woken = os.pipe()
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> Any:
        return ("127.0.0.1", self.wire.port)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while not self._over:
            ready = dict(poller.poll())
            if self._wake in ready:
                os.read(self._wake, 4096)
            while self._words:
                who, word = self._words.popleft()
                self._router.send_multipart([who, word])
            if self._router in ready:
                who, *frames = self._router.recv_multipart()
                assert frames[0] == b"E" and len(frames) == 2
                self._peer(who).feed(b"E" + len(frames[1]).to_bytes(4, "big") + frames[1])

    def send(self, who: bytes, frame: bytes) -> None:
        self._words.append((who, frame))
        os.write(self._woken, b"x")

    def _peer(self, who: bytes) -> Peer:
        def say(data: bytes) -> None:
            for byte in data:
                self.send(who, bytes([byte]))

        with self.changed:
            if who not in self.by_id:
                self.by_id[who] = Peer(self, say, lambda how: self.wire.cut())
                self.peers.append(self.by_id[who])
            return self.by_id[who]

    def close(self) -> None:
        self._over = True
        os.write(self._woken, b"x")
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self.wire.close()
        self._router.close()
        self._context.term()
        os.close(self._wake)
        os.close(self._woken)
