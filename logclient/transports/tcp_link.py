"""TCP: moves bytes over a non-blocking socket."""

from __future__ import annotations

import _socket
import errno
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from types import FunctionType
from typing import TYPE_CHECKING, Any

from logclient._ext.queue import socket_identity, socket_recv, socket_send
from logclient.config.hosts import dns_name
from logclient.delivery.contract import FOREVER, Link
from logclient.descriptors import lifted
from logclient.errors import described
from logclient.standard import os
from logclient.threads import original

Endpoint = tuple[str, int]
RECEIVE = 65536

# SO_NOSIGPIPE of macOS: no SIGPIPE from this socket, however the application handles that signal. Not every
# Python names the option.
NO_SIGPIPE = 0x1022 if sys.platform == "darwin" else 0

NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)  # the same for one call, where there is that

COUNTS_RECEIVED = sys.platform == "linux"
"""Whether the kernel reports how many bytes a connection has received: see `bytes_received`."""

_BYTES_RECEIVED = 128  # where Linux's struct tcp_info has tcpi_bytes_received, a u64


if TYPE_CHECKING:
    from socket import socket as _Socket
else:  # neither gevent's, which switches to another greenlet, nor one of the program's tests
    _bases = getattr(original(socket, "socket"), "__mro__", ())
    _Socket = next((base for base in _bases if base.__module__ == "socket"), _socket.socket)


class OwnSocket(_Socket):
    """The socket of a descriptor that was just opened. It closes no other file than its own."""

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=lifted(fileno))
        self.identity = socket_identity(self.fileno()) or (0, 0)

    def close(self) -> None:
        """Close the socket, or only forget its number if that is another file's now."""
        if socket_identity(self.fileno()) != self.identity:
            self.detach()
        super().close()


class TcpLink(Link):
    """One connected stream socket."""

    hint = "does the server want TLS?"

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = sock
        self.identity = socket_identity(sock.fileno()) or (0, 0)
        self.file = (sock.fileno(), *self.identity)
        self._unsent = memoryview(b"")

    def fileno(self) -> int:
        return self._socket.fileno()

    def _check(self) -> None:
        if socket_identity(self._socket.fileno()) != self.identity:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        # A copy: the core may reuse its buffer after `sent`.
        self._unsent = memoryview(b"".join((self._unsent, *buffers)))
        return self.flush()

    def flush(self) -> bool:
        while self._unsent:
            written = self._write(self._unsent)
            if not written:
                return False
            self._unsent = self._unsent[written:]
        return True

    @property
    def unsent(self) -> int:
        return len(self._unsent)

    def _write(self, data: memoryview) -> int:
        """Return how many bytes were taken; 0: the socket is full."""
        try:
            return socket_send(self._socket.fileno(), self.identity, data, NO_SIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0

    def receive(self) -> bytes | None:
        try:
            return socket_recv(self._socket.fileno(), self.identity, RECEIVE)
        except (BlockingIOError, InterruptedError):
            return None

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        fds = [self._socket.fileno()]
        return fds, fds if writable else [], FOREVER

    def close(self, flush_for: float = 0.0) -> None:
        """Close the socket; the kernel goes on sending the bytes it has."""
        self._socket.close()

    abandon = close  # of the socket alone, whatever a subclass adds to it

    def detach(self) -> socket.socket:
        """Give the socket to the caller; the link cannot be used any more."""
        sock = OwnSocket(fileno=self._socket.detach())
        sock.setblocking(False)
        return sock

    def __del__(self) -> None:
        # The engine keeps its link to the end of the process, so that there is no leak to warn of.
        self._socket.close()


def _call(name: str, *given: Any, **options: Any) -> Any:
    """Call a function or class of the module ``socket``, as the program has it.

    It may have replaced one for a purpose, as pytest-socket does, and whatever that raises is an error of
    connecting. A mock is not meant for us.
    """
    found = original(socket, name)
    call = found if isinstance(found, (type, FunctionType)) else getattr(_socket, name)
    try:
        return call(*given, **options)
    except (OSError, UnicodeError):
        raise
    except Exception as error:
        raise OSError(described(error)) from None


def make_socket(*given: Any, **options: Any) -> OwnSocket:
    """Make a native socket; OSError: why there is none."""
    return OwnSocket(fileno=_call("socket", *given, **options).detach())


def resolve(host: str, port: int, kind: int) -> tuple[bytes, list[Any]]:
    """Look a host up; return its name as it was looked up, and the entries of ``socket.getaddrinfo``.

    Raises:
        OSError: the host has no address, or its name is not valid.
    """
    name = encode_hostname(host)
    try:
        return name, _call("getaddrinfo", name, port, 0, kind)
    except UnicodeError:
        raise OSError(f"{host!r} is no host name") from None


def encode_hostname(host: str) -> bytes:
    """Return the name of a host as it is looked up; OSError: it is not valid."""
    try:
        # As bytes: for a str Python would import its IDNA codec here, in the sender's thread; a child that
        # is forked in the middle of an import can never import that module.
        return dns_name(host)
    except ValueError as error:
        raise OSError(str(error)) from None


def bytes_received(tcp: int) -> int:
    """Return the bytes that the TCP connection of this descriptor has received; 0: unknown."""
    if tcp < 0 or not COUNTS_RECEIVED:
        return 0
    try:
        with closing(make_socket(socket.AF_INET, socket.SOCK_STREAM, 0, os.dup(tcp))) as sock:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
    except OSError:
        return 0  # the connection is gone
    return int.from_bytes(info[_BYTES_RECEIVED : _BYTES_RECEIVED + 8], sys.byteorder)
