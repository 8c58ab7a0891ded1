"""Connects to the address that answers first, among those of a name and of several servers (RFC 8305)."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import ne
from typing import Any, TypeVar

from logclient.config.hosts import host_port
from logclient.delivery.attempt import Attempt, Elsewhere
from logclient.delivery.contract import FOREVER
from logclient.errors import CredentialError, describe_error, described
from logclient.standard import os, time
from logclient.threads import CONNECT, join, make_thread
from logclient.transports.tcp_link import NO_SIGPIPE, Endpoint, OwnSocket, make_socket, resolve

L = TypeVar("L")

Connect = Callable[[], socket.socket]
"""Makes a connection to one address."""

MakeLink = Callable[[Connect, bytes, float], L]
"""Makes a link: see `connect_any`."""

STAGGER = 0.25
"""Seconds between the first attempts at two addresses (RFC 8305, section 5)."""

RESOLVED = 10.0
"""Seconds for a look-up where there is no time for a connection."""

PARTING = 0.04
"""Seconds that an attempt which is stopped waits for its look-ups."""

NO_ANSWER = "no answer to the connection attempt in time"

KEEP_ALIVE = {
    "TCP_KEEPALIVE" if sys.platform == "darwin" else "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}
"""Seconds without a packet until the system asks whether the peer is there, seconds between its questions,
and their number: a dead path is noticed within 30 s, also where no answer is due."""


class Lookup:
    """A look-up of an endpoint. With `wake`, which tells of its end, it has a thread: nothing can stop it."""

    def __init__(self, endpoint: Endpoint, kind: int, wake: Callable[[], object] | None) -> None:
        self.endpoint, self._kind, self._wake = endpoint, kind, wake
        self.name, self.error = b"", OSError(f"{endpoint[0]} has no address")
        self.addresses: list[Any] | None = None  # each with the arguments of ``socket.socket`` before it
        self.sock: OwnSocket | None = None  # connected to the first of them
        if wake is not None and not (":" in endpoint[0] or endpoint[0].replace(".", "").isdigit()):
            self.thread = make_thread(self._run, CONNECT)
            with suppress(RuntimeError, MemoryError):  # none can be started, as when the interpreter ends
                self.thread.start()
                return
        self._run()

    def _run(self) -> None:
        try:
            self.name, found = resolve(*self.endpoint, self._kind)
            families = [entry[0] for entry in found]
            turns = [families[:place].count(family) for place, family in enumerate(families)]
            turns = sorted(range(len(found)), key=turns.__getitem__)  # the families take turns (section 4)
            self.addresses = [(*found[place][:3], found[place][4]) for place in turns]
        except Exception as error:
            self.error = error if isinstance(error, OSError) else OSError(described(error))
        finally:
            self.addresses = self.addresses or []
            if self._wake is not None:
                self._wake()


class _Race:
    """Attempts at the addresses of an endpoint, and of the attempt's others.

    They begin `STAGGER` seconds apart, the last good address before others, with `timeout` seconds for each.
    """

    def __init__(self, first: Endpoint, kind: int, attempt: Attempt, timeout: float) -> None:
        self._first, self._kind, self._attempt, self._timeout = first, kind, attempt, timeout
        self._lookups: list[Lookup] = []
        self._known: dict[Any, Lookup] = {}  # of each address, in the order in which they are tried
        self._tried: set[Any] = set()
        self._running: dict[Any, tuple[OwnSocket, float]] = {}  # and since when
        self._failure: OSError | None = None
        self._next_at = time.monotonic() + STAGGER

    def winner(self) -> Lookup:
        """Return the endpoint that answers first, and as the first of its `addresses` the one that did.

        A single address is returned without an attempt to connect to it, and of datagrams the first one is.
        """
        attempt, running = self._attempt, self._running
        resolved_by = time.monotonic() + (self._timeout or RESOLVED)
        try:
            while True:
                pending = self._look_up()
                if not (pending or self._tried) and (
                    len(self._known) == 1 or self._kind != socket.SOCK_STREAM
                ):
                    return next(iter(self._known.values()), self._lookups[0])
                left = [where for where in self._known if where not in self._tried]
                now = time.monotonic()
                early = running or (pending and left and self._known[left[0]] is not self._lookups[0])
                if left and (now >= self._next_at or not early):
                    self._begin(left[0], now)
                    continue
                if not (running or pending):
                    raise self._failure or self._lookups[0].error
                if not running and now >= resolved_by:
                    raise self._failure or TimeoutError("no answer from the resolver in time")
                until = [began + self._timeout for _, began in running.values()] or [resolved_by]
                until.append(self._next_at if left else FOREVER)
                ready = attempt.rest([], [sock.fileno() for sock, _ in running.values()], min(until))
                for where in [*running]:
                    if self._has_answered(where, ready, time.monotonic()):
                        return self._won(where)
        except InterruptedError:
            parting = time.monotonic() + PARTING
            for one in self._lookups:
                if one.addresses is None:  # a fork is to find none under way
                    join(one.thread, max(0.0, parting - time.monotonic()))
            raise
        finally:
            for sock, _ in running.values():
                sock.close()

    def _look_up(self) -> bool:
        """Begin the look-ups of endpoints that have joined, and take addresses; return whether some lack."""
        others = self._attempt.others if self._kind == socket.SOCK_STREAM else ()  # in UDP nothing answers
        known = self._attempt.known
        for endpoint in (self._first, *others)[len(self._lookups) :]:
            last = known.get((endpoint, self._kind))  # it may go on
            if last is None or last.addresses is not None:
                last = known[endpoint, self._kind] = Lookup(endpoint, self._kind, self._attempt.wake)
            self._lookups.append(last)
        pending = any(one.addresses is None for one in self._lookups)
        self._known = {}
        for one in self._lookups:
            for where in sorted(one.addresses or (), key=partial(ne, known.get(one.endpoint))):
                self._known.setdefault(where, one)
        return pending

    def _begin(self, where: Any, now: float) -> None:
        self._tried.add(where)
        try:
            self._running[where] = begin_connecting(self._attempt, *where), now
            self._next_at = now + STAGGER
        except OSError as error:
            self._failed(where, error, now)

    def _failed(self, where: Any, error: OSError, now: float) -> None:
        if self._failure is None or self._known[where] is self._lookups[0]:
            self._failure = error
        self._next_at = now

    def _has_answered(self, where: Any, ready: bool, now: float) -> bool:
        sock, began = self._running[where]
        try:
            if ready and is_connected(sock):
                return True
            if now >= began + self._timeout:
                raise TimeoutError(NO_ANSWER)
        except OSError as error:
            self._failed(where, error, now)
            self._running.pop(where)[0].close()
        return False

    def _won(self, where: Any) -> Lookup:
        """Report the servers and addresses that were tried before this one."""
        won, warn, now = self._known[where], self._attempt.warn, time.monotonic()
        won.addresses = sorted(won.addresses or (), key=partial(ne, where))
        won.sock = self._running.pop(where)[0]
        if self._failure is not None and won is not self._lookups[0]:
            warn(f"cannot connect to {host_port(*self._first)}: {describe_error(self._failure)}")
        silent = [at for at, (_, since) in self._running.items() if now >= since + STAGGER]
        if names := ", ".join(host_port(*at[-1][:2]) for at in silent):
            warn(f"no answer from {names}: {host_port(*where[-1][:2])} is used")
        return won


def first_address(
    endpoint: Endpoint, kind: int, make: Callable[..., L], attempt: Attempt, timeout: float
) -> L:
    """Return what `make` makes of the first address of an endpoint with which it succeeds.

    It gets the host's name as it was looked up, the arguments of ``socket.socket``, and the address. The one
    that answers first is the first.

    Raises:
        Elsewhere: another endpoint of the attempt has answered first.
        OSError: it fails with every address, or the name is unknown.
    """
    failure: OSError | None = None
    won = attempt.won
    if won is None:
        won = attempt.won = _Race(endpoint, kind, attempt, timeout).winner()
        if won.endpoint != endpoint:
            attempt.endpoint = won.endpoint
            raise Elsewhere
    try:
        for where in won.addresses:
            try:
                made = make(won.name, *where)
                attempt.known[endpoint] = where
                return made
            except InterruptedError:
                raise
            except OSError as error:
                # Prefer an error that a person has to correct to a passing one.
                if not isinstance(failure, CredentialError):
                    failure = error
    finally:
        attempt.won = None
        if won.sock is not None:
            won.sock.close()
    raise failure or won.error


def connect_any(endpoint: Endpoint, timeout: float, attempt: Attempt, link: MakeLink[L]) -> L:
    """Connect to the first address of an endpoint that works, with so many seconds for each.

    `link` makes the result. It gets a function that connects to one address, the host's name as it was looked
    up, and the deadline in monotonic seconds. Errors are those of `first_address`.
    """

    def make(name: bytes, *address: Any) -> L:
        deadline = time.monotonic() + timeout
        return link(partial(_connect, attempt, deadline, *address), name, deadline)

    return first_address(endpoint, socket.SOCK_STREAM, make, attempt, timeout)


def _connect(attempt: Attempt, deadline: float, *where: Any) -> socket.socket:
    won: Lookup = attempt.won
    if won.sock is not None and where in (won.addresses or ())[:1]:
        sock, won.sock = won.sock, None
        return sock
    sock = begin_connecting(attempt, *where)
    try:
        while not (attempt.wait([], [sock.fileno()], deadline, NO_ANSWER) and is_connected(sock)):
            pass
        return sock
    except BaseException:
        sock.close()
        raise


def begin_connecting(attempt: Attempt, family: int, kind: int, number: int, address: Any) -> OwnSocket:
    """Return a non-blocking socket that connects to this address."""
    sock = make_socket(family, kind, number)
    try:
        sock.setblocking(False)
        if attempt.segment:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, attempt.segment)
        error = sock.connect_ex(address)
        if error not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            raise OSError(error, os.strerror(error))
        return sock
    except BaseException:
        sock.close()
        raise


def is_connected(sock: socket.socket) -> bool:
    """Return whether a socket has connected; its options are set then. OSError: it cannot."""
    if number := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(number, os.strerror(number))
    try:
        if sock.getsockname() == sock.getpeername():
            # The system gave this socket the very port it connects to: no server listens there.
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with suppress(OSError):  # some sandboxes have no such options
            for name, value in KEEP_ALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if NO_SIGPIPE:
            sock.setsockopt(socket.SOL_SOCKET, NO_SIGPIPE, 1)
        return True
    except OSError as error:
        if error.errno == errno.ENOTCONN:  # not yet
            return False
        raise
