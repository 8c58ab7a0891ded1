"""A minimal Logux server on a WebSocket, which tests script and inspect.

It uses neither the codec nor the collector of the product, only the bytes on the wire.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.support import need
from tests.support.patience import PATIENCE

need("websockets")

from websockets.exceptions import ConnectionClosed  # noqa: E402
from websockets.sync.server import ServerConnection, serve  # noqa: E402

NODE_ID = "server:peer"


class Line:
    """One connection."""

    def __init__(self, peer: LoguxPeer, socket: ServerConnection) -> None:
        self.path = socket.request.path if socket.request is not None else ""
        self.http = dict(socket.request.headers.raw_items()) if socket.request is not None else {}
        self.received: list[list[Any]] = []
        self.connect: list[Any] = []
        self.headers: list[dict[str, Any]] = []
        self.order: list[str] = []  # of messages
        self.base = 0
        self._peer = peer
        self._socket = socket

    def say(self, *message: Any) -> None:
        try:
            self._socket.send(json.dumps(message))
        except ConnectionClosed:
            pass

    def send(self, *actions: dict[str, Any], time: int = 0) -> None:
        """Send actions of the server itself."""
        entries: list[Any] = []
        for action in actions:
            self._peer.counter += 1
            entries += [action, {"id": [time, NODE_ID, self._peer.counter], "time": time}]
        self.say("sync", 0, *entries)

    def close(self) -> None:
        self._socket.close()

    def hang_up(self) -> None:
        """Close without a code, as @logux/server does."""
        with self._socket.send_context():
            self._socket.protocol.send_close()

    def serve(self) -> None:
        for text in self._socket:
            message = json.loads(text)
            with self._peer.changed:
                self.received.append(message)
                self.order.append(message[0])
                self._take(message)
                self._peer.changed.notify_all()

    def _take(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == "headers":
            self.headers.append(message[1])
        elif kind == "connect":
            self.connect = message
            if self._peer.protocol == 4 and isinstance(message[4].get("subprotocol"), int):
                self.hang_up()
                return
            error = self._peer.refuse(message)
            if error:
                self.say("error", *error)
                self.close()
                return
            start = self._peer.now()
            if self._peer.headers:
                self.say("headers", self._peer.headers)
            self.base = self._peer.now()
            self.say("connected", self._peer.protocol, NODE_ID, [start, self.base])
        elif kind == "ping":
            self.say("pong", 0)
        elif kind == "sync":
            self.say("synced", message[1])
            for action, meta in zip(message[2::2], message[3::2], strict=True):
                self._action(action, meta)

    def _action(self, action: dict[str, Any], meta: dict[str, Any]) -> None:
        shift = meta["id"]
        parts = [shift, self.connect[2], 0] if isinstance(shift, int) else shift
        if len(parts) == 2:
            parts = [parts[0], self.connect[2], parts[1]]
        full = f"{parts[0] + self.base} {parts[1]} {parts[2]}"
        got = {**meta, "id": full, "time": meta["time"] + self.base}
        self._peer.actions.append((action, got))
        answer = self._peer.answer(action)
        if answer:
            self.send({**answer, "id": full})


class LoguxPeer:
    """A server on 127.0.0.1. Tests may set `protocol`, `refuse`, `answer` and `headers` at any time."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.lines: list[Line] = []
        self.actions: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.counter = 0
        self.headers: dict[str, Any] = {}
        self.protocol = 5
        self.refuse: Callable[[list[Any]], list[Any]] = lambda connect: []
        """Return the error for a ``connect``, or an empty list."""
        self.answer: Callable[[dict[str, Any]], dict[str, Any]] = processed
        """Return the outcome of an action, without its id; empty for no outcome."""
        self.now: Callable[[], int] = lambda: int(time.time() * 1000)
        self._server = serve(self._serve, "127.0.0.1", 0, compression=None)
        self.port: int = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"logux://127.0.0.1:{self.port}"

    def _serve(self, socket: ServerConnection) -> None:
        line = Line(self, socket)
        with self.changed:
            self.lines.append(line)
            self.changed.notify_all()
        try:
            line.serve()
        except ConnectionClosed:
            pass

    def wait(self, what: Callable[[], Any]) -> Any:
        """Wait until it is true, and return its value."""
        with self.changed:
            assert self.changed.wait_for(what, PATIENCE), "never"
            return what()

    def line(self, n: int = 0) -> Line:
        """Return the connection with this number once it is authenticated."""
        self.wait(lambda: len(self.lines) > n and self.lines[n].base)
        return self.lines[n]

    def __enter__(self) -> LoguxPeer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        for line in self.lines:
            line.close()
        self._thread.join(PATIENCE)


def processed(action: dict[str, Any]) -> dict[str, Any]:
    return {"type": "logux/processed"}


def undo(reason: str, **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda action: {"type": "logux/undo", "reason": reason, "action": action, **more}


def until(what: Callable[[], Any]) -> None:
    """Poll until it is true; fail after PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)
