"""Listening sockets for TCP connections."""

from __future__ import annotations

import errno
import socket
import time

from logclient.errors import ConnectFailed

__all__ = ["accept", "listen"]


def listen(host: str, port: int, kind: str = "port") -> socket.socket:
    """Return a non-blocking listening socket.

    Args:
        host: an address; IPv6 without brackets.
        port: the port; 0: a free one.
        kind: the description of `port` in the error.

    Raises:
        ConnectFailed: listening on the address failed.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConnectFailed(f"listen: {host} {kind} {port}: {error.strerror or error}") from error
    except BaseException:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket) -> tuple[socket.socket, tuple[str, int]] | None:
    """Accept a connection without blocking; return it with the peer's address, or None."""
    try:
        sock, address = listener.accept()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            time.sleep(0.01)  # no descriptor is left: the connection waits in the backlog
        return None
    sock.setblocking(False)
    return sock, address[:2]
