"""The server's side of WebSocket, by hand and by the library; and links and transports of clients."""

from __future__ import annotations

import base64
import hashlib
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.support import transports
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from websockets.sync.server import ServerConnection

    from logclient.transports.websocket import WebSocket, WebSocketLink
    from tests.support.tls import Authority

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10

FAR = logging.Logger("far", 60)
"""What servers of the library log to: it logs nothing."""


def accept_answer(head: bytes, *more: str) -> bytes:
    """Return the answer that opens a WebSocket."""
    (key,) = (line[19:] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: "))
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    lines = [
        "HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}", *more, "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


def server_frame(opcode: int, data: bytes = b"", fin: bool = True, bits: int = 0, form: int = 0) -> bytes:
    """Return a frame as a server sends it; `form`: 126 or 127, for a longer length field than necessary."""
    size = len(data)
    head = bytes([bits | opcode | 128 * fin])
    if size < 126 and not form:
        return head + bytes([size]) + data
    if size < 65536 and form != 127:
        return head + b"\x7e" + struct.pack("!H", size) + data
    return head + b"\x7f" + struct.pack("!Q", size) + data


def why_python() -> str:
    """Return why clients of this process use the pump in Python; empty: they do not."""
    try:
        transports.websocket(transports.tcp(1.0)).load_pump()
    except ImportError as error:
        return str(error)
    return ""


@contextmanager
def serve_library(handler: Callable[[ServerConnection], object], **options: Any) -> Iterator[int]:
    """Run a server of the library; yield its port."""
    from websockets.sync.server import serve

    with serve(handler, "127.0.0.1", 0, logger=FAR, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()


def echo(far: ServerConnection) -> None:
    """Send back what comes: a handler for `serve_library`."""
    for message in far:
        far.send(message)


def transport_by_url(*endpoints: tuple[str, int], ours: Authority | None = None, **options: Any) -> WebSocket:
    """Return the transport that a client makes."""
    from logclient.transports.websocket import WebSocket

    given = {
        "connect_timeout": PATIENCE, "path": "", "deflate": "off", "max_message": 1 << 20, "proxy": "env",
        "tls": ours is not None, "ca": ours and ours.ca, "cert": None, "key": None, "tls_password": None,
        "server_name": None, "verify": "full", "endpoints": endpoints, "http_headers": (), "token": None,
    }  # fmt: skip
    return WebSocket(SimpleNamespace(**(given | options)))


def read_message(link: WebSocketLink) -> bytes:
    """Return the next message."""
    deadline = time.monotonic() + PATIENCE
    while (data := link.receive()) is None:
        assert time.monotonic() < deadline
        link.wait(PATIENCE, False)
    return data


def read_error(link: WebSocketLink) -> str:
    """Return the text of the error with which reading ends."""
    try:
        while read_message(link):
            pass
    except OSError as error:
        assert "\n" not in str(error)
        return str(error)
    raise AssertionError("reading does not end with an error")
