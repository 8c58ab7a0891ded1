"""The server's side of WebSocket, by hand; and which pump clients use."""

from __future__ import annotations

import base64
import hashlib
import socket
import struct

from tests.support import transports

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def read_request(sock: socket.socket) -> bytes:
    """Read the head of the request."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = sock.recv(4096)
        if not data:
            raise ConnectionError
        head += data
    return head


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

    return transports.websocket(transports.tcp(1.0)).why_python()
