"""What the device and the consumer need of pyzmq."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from logclient.config import is_key
from logclient.errors import ConfigError, MissingExtra
from logclient.transports.tcp import COUNTS_RECEIVED, bytes_received

__all__ = ["COUNTS_RECEIVED", "Curve", "Endless", "bytes_received", "load", "receive", "send"]

# As plain numbers: pyzmq's are enums, and to join two of them costs more than to send a frame.
_NOBLOCK, _SNDMORE = 1, 2

_WATCHED_FROM = 1 << 20

#: Frames of a message that are kept: one more than any that is taken, and a routing id.
FRAMES_MAX = 7


def load() -> Any:
    """The module ``zmq``."""
    try:
        import zmq
    except ImportError as error:
        raise MissingExtra("zmq", "logjam") from error
    return zmq


def receive(zmq: Any, sock: Any) -> tuple[list[bytes], Any, int] | None:
    """The next message: its first frames, the first as pyzmq has it, the bytes of all; None: there is none.

    Who sends a message of a million frames gets no list of a million here.
    """
    try:
        first = sock.recv(zmq.NOBLOCK, False)
    except zmq.Again:
        return None
    parts = [first.bytes]
    size = len(parts[0])
    more = first.more
    while more:
        frame = sock.recv(0, False)  # a message is there as a whole, or not at all
        if len(parts) < FRAMES_MAX:
            parts.append(frame.bytes)
        size += len(frame)
        more = frame.more
    return parts, first, size


def send(sock: Any, parts: list[bytes]) -> None:
    """A message, as a whole or not at all.

    Raises:
        zmq.ZMQError: it cannot be taken now, or by nobody.
    """
    for part in parts[:-1]:
        sock.send(part, _NOBLOCK | _SNDMORE)
    sock.send(parts[-1], _NOBLOCK)


class Curve:
    """CURVE on sockets that listen: encrypted, and only for who has the right keys.

    Args:
        secret: our secret key.
        clients: the public keys of those that are let in; None: all that know our public key.

    Raises:
        ConfigError: a key that is none, or a ZeroMQ without CURVE.
    """

    def __init__(self, secret: str, clients: Collection[str] | None) -> None:
        from logclient.transports.zmq import curve_keys

        self.public, self._secret = curve_keys(secret)
        self._clients = None if clients is None else frozenset(clients)
        for key in self._clients or ():
            if not is_key(key):
                raise ConfigError("curve_clients: each must be a key of 40 characters of Z85")

    def guard(self, sock: Any) -> None:
        """Before it is bound."""
        sock.CURVE_SERVER, sock.CURVE_SECRETKEY = True, self._secret.encode()

    def gate(self, zmq: Any, context: Any) -> Any:
        """The socket over which libzmq asks who is let in (RFC 27, ZAP), None where all are.

        It must be there before anybody connects.
        """
        if self._clients is None:
            return None
        gate = context.socket(zmq.REP)
        gate.setsockopt(zmq.LINGER, 0)
        gate.bind("inproc://zeromq.zap.01")
        return gate

    def answer(self, zmq: Any, gate: Any) -> bool:
        """Answer one question; whether that one is let in."""
        from zmq.utils import z85

        version, number, _, _, _, mechanism, *shown = gate.recv_multipart()
        known = mechanism == b"CURVE" and len(shown) == 1 and len(shown[0]) == 32
        welcome = known and z85.encode(shown[0]).decode() in (self._clients or ())
        said = (b"200", b"OK") if welcome else (b"400", b"this key is not let in")
        gate.send_multipart([version, number, *said, b"", b""])
        return welcome


class Endless:
    """Finds connections over which much comes and no message.

    libzmq gives us a message when it is whole, and holds what there is of it until then, however many
    frames that are: who never ends one makes it grow. The kernel counts what came over each connection
    (Linux: TCP_INFO). One that has brought a MiB is watched: when it brings `most` more without a message,
    it is to be cut. Only while one is watched need it be asked where messages come from.

    Args:
        most: bytes; more than the longest message that is taken.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._before: dict[int, int] = {}
        self.watched: dict[int, int] = {}  #: descriptor -> what it had brought when that began

    def heard(self, fd: int) -> None:
        """A whole message came over this one; -1: over one of them, nobody knows which."""
        if fd < 0:
            self.watched.clear()
        elif fd in self.watched:
            del self.watched[fd]
            self._before[fd] = bytes_received(fd)

    def forget(self, fd: int) -> None:
        """It is another connection now."""
        self.watched.pop(fd, None)
        self._before.pop(fd, None)

    def look(self, open_now: Collection[int]) -> list[int]:
        """Those of the connections that are to be cut."""
        for fd in [*self.watched]:
            if fd not in open_now:
                self.forget(fd)
        endless = []
        for fd in open_now:
            now = bytes_received(fd)
            if fd not in self.watched:
                if now - self._before.get(fd, 0) > _WATCHED_FROM:
                    self.watched[fd] = now
            elif now - self.watched[fd] > self._most:
                endless.append(fd)
                self.forget(fd)
        return endless
