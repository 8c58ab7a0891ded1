"""A path that takes an event for longer than `silence` is no silence: what moves arrives."""

from __future__ import annotations

import select
import socket
import threading
from importlib import import_module

import pytest

import logclient
from tests.support.patience import PATIENCE

RATE = 256 << 10  # bytes a second
TURN = 0.05  # seconds between two reads of the relay


class SlowPath:
    """A relay that takes so many bytes a second from its client, and little before it passes them on."""

    def __init__(self, port: int) -> None:
        self._far = ("127.0.0.1", port)
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 << 10)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = self._listener.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> SlowPath:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        self._listener.close()

    def _serve(self) -> None:
        self._listener.settimeout(TURN)
        while not self._over.is_set():
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            try:
                with near, socket.create_connection(self._far) as far:
                    self._relay(near, far)
            except OSError:
                continue

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        while not self._over.wait(TURN):
            for one in select.select([near, far], [], [], 0)[0]:
                data = one.recv(int(RATE * TURN))
                if not data:
                    return
                (far if one is near else near).sendall(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "option"),
    [("lumberjack", "compression=0"), ("logjam", "compression=none"), ("logux", "window=100")],
)
def test_event_that_is_longer_under_way_than_silence_arrives(scheme: str, option: str) -> None:
    collector = import_module(f"logclient.testing.{scheme}").Collector(keep=True)
    with collector, SlowPath(collector.port) as path:
        app_env = "/shop-test" if scheme == "logjam" else ""
        url = f"{collector.url.replace(str(collector.port), str(path.port))}{app_env}?{option}"
        with logclient.connect(url, silence=2, max_event_bytes=16 * RATE) as client:
            client.send({"message": "x" * (8 * RATE)})
            assert client.flush(PATIENCE) == 0
            assert client.stats().acked == 1
