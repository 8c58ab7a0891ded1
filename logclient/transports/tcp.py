"""TCP: connect without blocking for ever, and move bytes over a non-blocking socket."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from logclient.config import dns_name
from logclient.delivery.contract import Core, Link, Pump, PumpLimits, Transport
from logclient.errors import CredentialError
from logclient.threads import original
from logclient.transports.attempt import Attempt, sleep

if TYPE_CHECKING:
    from typing import Unpack

    from logclient._ext.flight import Flight

Endpoint = tuple[str, int]
L = TypeVar("L")

RECEIVE = 65536

# macOS: no SIGPIPE from this socket, whatever the application made of that signal. Not every Python names it.
NO_SIGPIPE = 0x1022 if sys.platform == "darwin" else 0

COUNTED = sys.platform == "linux"
"""Whether the kernel says how much came over a connection: see `brought`."""

_BROUGHT = 128  # where Linux's struct tcp_info has tcpi_bytes_received, a u64


class TcpLink(Link):
    """One connected stream socket."""

    hint = "does the server want TLS?"

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = sock
        self._unsent: list[memoryview] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        """Take these bytes; whether all of them, and all before, are with the kernel now."""
        self._unsent.extend(memoryview(b) for b in buffers if len(b))
        return self.flush()

    def flush(self) -> bool:
        """Go on with what an earlier ``send`` could not write. OSError when the connection is gone."""
        while self._unsent:
            written = self._write(self._unsent[0])
            if not written:
                # Ours to keep: the core may reuse its buffer once it was told `sent`.
                self._unsent = [v if type(v.obj) is bytes else memoryview(bytes(v)) for v in self._unsent]
                return False
            if written < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][written:]
            else:
                self._unsent.pop(0)
        return True

    def _write(self, data: memoryview) -> int:
        """How many bytes were taken; 0: it is full."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def receive(self) -> bytes | None:
        """What has arrived; None when there is nothing, b"" when the peer closed."""
        try:
            return self._socket.recv(RECEIVE)
        except (BlockingIOError, InterruptedError):
            return None

    def wait(self, wake: int, seconds: float, writable: bool) -> None:
        """Sleep until the socket is readable (or, if asked, writable), `wake` is, or time is over."""
        reading = [self._socket.fileno()]
        if wake >= 0:
            reading.append(wake)
        else:
            seconds = min(seconds, 0.005)  # nothing to be woken by: look again soon
        sleep(reading, reading[:1] if writable else [], seconds)

    def close(self, linger: float = 0.0) -> None:
        self._socket.close()

    def detach(self) -> socket.socket:
        """Its socket, for somebody else; the link is none any more."""
        sock: socket.socket = original(socket, "socket")(fileno=self._socket.detach())
        sock.setblocking(False)
        return sock

    def abandon(self) -> None:
        """In a forked child: let go of the descriptor without a word to the peer."""
        self._socket.close()

    def __del__(self) -> None:
        # The engine keeps its link to the very end of the process: no leak to warn of.
        self._socket.close()


class OneWayLink(TcpLink):
    """A link whose peer acknowledges nothing: what the kernel has taken is all that is known."""

    drains_on_close = True

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken."""
        return sum(map(len, self._unsent))


def resolve(host: str, port: int, kind: socket.SocketKind) -> tuple[bytes, list[Any]]:
    """The name as it is looked up, and its addresses, as ``socket.getaddrinfo`` has them.

    Raises:
        OSError: it has none, or is no name.
    """
    name = spelled(host)
    try:
        return name, original(socket, "getaddrinfo")(name, port, type=kind)
    except UnicodeError:
        raise OSError(f"{host!r} is no host name") from None


def spelled(host: str) -> bytes:
    """The name of a host as it is looked up.

    Raises:
        OSError: it is none.
    """
    try:
        # As bytes: a str would have Python import its IDNA codec, here in the sender's thread, and
        # a child forked in the middle of an import never gets that module.
        return dns_name(host)
    except ValueError as error:
        raise OSError(str(error)) from None


def reach(
    endpoint: Endpoint,
    timeout: float,
    attempt: Attempt,
    link: Callable[[Callable[[], socket.socket], bytes, float], L],
) -> L:
    """What `link` makes of the first address of `endpoint` with which it can.

    Args:
        endpoint: host and port.
        timeout: seconds for one address.
        attempt: asked whether to give up.
        link: is given what dials that address, the host's name as it was looked up, and the deadline.

    Raises:
        OSError: nobody answers in time, or the name is not known.
    """
    host, port = endpoint
    failure: OSError | None = None
    name, found = resolve(host, port, socket.SOCK_STREAM)
    for family, kind, number, _, address in found:
        deadline = time.monotonic() + timeout
        dial = partial(_dial, family, kind, number, address, attempt, deadline)
        try:
            return link(dial, name, deadline)
        except OSError as error:
            # Of several, the one that somebody has to mend.
            if not isinstance(failure, CredentialError):
                failure = error
    raise failure or OSError(f"{host} has no address")


def _dial(
    family: int, kind: int, number: int, address: Any, attempt: Attempt, deadline: float
) -> socket.socket:
    sock: socket.socket = original(socket, "socket")(family, kind, number)
    try:
        sock.setblocking(False)
        error = sock.connect_ex(address)
        if error not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            raise OSError(error, _words(error))
        _finish(sock, attempt, deadline)
        if sock.getsockname() == sock.getpeername():
            # Nobody listens on a port that the system gave to this very socket.
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if NO_SIGPIPE:
            sock.setsockopt(socket.SOL_SOCKET, NO_SIGPIPE, 1)
        return sock
    except BaseException:
        sock.close()
        raise


def _finish(sock: socket.socket, attempt: Attempt, deadline: float) -> None:
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer to the connection attempt in time")
        if attempt.rest([], [sock.fileno()], left):
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, _words(error))
            return
        if attempt.stopped():
            raise InterruptedError("stopped while connecting")


class Tcp(Transport):
    """Connects, one endpoint at a time."""

    secure = False
    link: type[TcpLink] = TcpLink

    def __init__(self, connect_timeout: float) -> None:
        self.connect_timeout = connect_timeout

    @classmethod
    def from_config(cls, config: Any) -> Tcp:
        return cls(config.connect_timeout)

    def connect(self, endpoint: Endpoint, attempt: Attempt) -> TcpLink:
        """A link to the first address of `endpoint` that answers.

        Args:
            endpoint: host and port.
            attempt: asked whether to give up.

        Raises:
            OSError: nobody answers in time, or the name is not known.
        """
        host, port = endpoint

        def link(dial: Callable[[], socket.socket], name: bytes, deadline: float) -> TcpLink:
            return self._link(dial, name, f"{host}:{port}", attempt, deadline)

        return reach(endpoint, self.connect_timeout, attempt, link)

    def _link(
        self,
        dial: Callable[[], socket.socket],
        name: bytes,
        peer: str,
        attempt: Attempt,
        deadline: float,
    ) -> TcpLink:
        """A link to `peer`, whose host is `name`, over a connection that `dial` makes."""
        return self.link(dial(), peer)

    def pump(self, flight: Flight, core: Core, **limits: Unpack[PumpLimits]) -> Pump | None:
        """The compiled pump for this transport, or None where there is none."""
        if core.hot is None:
            return None
        try:
            from logclient._ext.tcpsend import TcpPump
        except ImportError:
            return None
        return TcpPump(flight, core, **limits)


class OneWay(Tcp):
    """The same, to a peer that acknowledges nothing."""

    link = OneWayLink


def _words(error: int) -> str:
    """What a socket's error number means; the C library of Windows does not know them."""
    table: dict[int, str] = getattr(socket, "errorTab", {})
    return table.get(error) or os.strerror(error)


def brought(tcp: int) -> int:
    """Bytes that came over the TCP connection of this descriptor; 0 where nobody says."""
    if tcp < 0 or not COUNTED:
        return 0
    try:
        with original(socket, "socket")(socket.AF_INET, socket.SOCK_STREAM, 0, os.dup(tcp)) as sock:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BROUGHT + 8)
    except OSError:
        return 0  # it is gone
    return int.from_bytes(info[_BROUGHT : _BROUGHT + 8], sys.byteorder)
