"""A collector that is reached over connections of TCP or TLS: one thread and a selector serve all of them.

What comes is made into units by the protocol's own collector. A unit is captured, and answered after the
capture was handed to the operating system, connection by connection in the order of arrival; or what the
faults say is done to it: see ``logclient.collectors.faults``.
"""

from __future__ import annotations

import errno
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from logclient.collectors.capture import TO_PEER, CaptureWriter
from logclient.collectors.faults import Act, Faults, Plan, Witness
from logclient.collectors.running import TOO_MANY, C, Running
from logclient.collectors.tally import Tally
from logclient.config import host_port
from logclient.errors import ConfigError, ConnectFailed, LedgerError

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["NEVER", "Connection", "Step", "Streams"]

NEVER = float("inf")
_RECEIVE = 1 << 20
_OUT_MAX = 1 << 16  # a peer that does not read its acks is not read from either

U = TypeVar("U")
"""A unit, as its protocol has it."""


class Step:
    """One thing to do on a connection; steps are done in order, each not before it is due."""

    __slots__ = ("count", "data", "due", "events", "rows", "syncs")

    def __init__(
        self,
        data: bytes | None,
        count: str,
        due: float = 0.0,
        rows: Sequence[bytes] = (),
        syncs: int = 0,
        events: int = 0,
    ) -> None:
        self.data = data  # None: close the connection
        self.count = count  # the field of the counts it adds to
        self.due = due
        self.rows = rows  # of the capture: what is sent, unit by unit
        self.syncs = syncs  # Logux: how many answers it asks for
        self.events = events  # Lumberjack: how many it acknowledges


class _Held(NamedTuple):
    """The first unit of a swap; its answer waits at `step`."""

    unit: Any
    act: Act
    step: Step
    until: float


class _Fresh(NamedTuple):
    """A unit that waits for the capture to be handed to the operating system."""

    connection: Any
    unit: bytes
    events: int


class Connection:
    """One peer's."""

    def __init__(self, sock: socket.socket, peer: str, number: int, now: float) -> None:
        self.sock = sock
        self.peer = peer
        self.number = number
        self.stream = 0
        self.steps: deque[Step] = deque()
        self.out = bytearray()
        self.held: _Held | None = None
        self.events = 0  # what the selector watches
        self.writes_first = False  # TLS has something to say before it can read on
        self.doomed = False  # no more units are taken from it
        self.ended = False  # the peer has said its last word
        self.stalled = 0  # 1: silent, 2: with signs of life
        self.alive_at = now  # last byte in either direction
        self.wrote_at = now  # last byte to the peer


K = TypeVar("K", bound=Connection)


class Streams(Running[C], Generic[C, U, K]):
    """See the module.

    Args:
        protocol: for the capture and the faults; its scheme is the same, with ``+tls`` behind it where
            there is a context.
        fields: of the counts.

    The others are those of the collectors.
    """

    def __init__(
        self,
        protocol: str,
        fields: tuple[str, ...],
        host: str,
        port: int,
        *,
        capture: str | None,
        faults: str | None,
        witness: str | None,
        run: str | None,
        listener: str | None,
        idle: float,
        max_connections: int,
        count_duplicates: bool,
        keep: bool,
        tls: SSLContext | None,
    ) -> None:
        if not 0 <= port <= 65535:
            raise ConfigError(f"port: {port} must be 0 to 65535")
        super().__init__(fields)
        self.host = host
        self._protocol = protocol
        self._port = port
        self._capture_dir = capture
        self._faults = Faults(faults or "", protocol)
        self._witness_path = witness
        self._run = run
        self._listener = listener
        self._idle = idle
        self._max_connections = max_connections
        self._tally = Tally() if count_duplicates else None
        self._keep = keep
        self._tls = tls
        self._fresh: list[_Fresh] = []
        self._connections: dict[int, K] = {}
        self._capture: CaptureWriter | None = None
        self._witness: Witness | None = None

    # --- what a protocol says

    _CAPTURED: str  # the field that counts units that were captured

    def _connection(self, sock: socket.socket, peer: str, number: int, now: float) -> K:
        """A new one."""
        raise NotImplementedError

    def _incoming(self, connection: K, data: memoryview, now: float) -> None:
        """Bytes came, which are gone afterwards: hand each whole unit to ``_unit``."""
        raise NotImplementedError

    def _gone(self, connection: K) -> None:
        """It was closed."""

    def _raw(self, unit: U) -> bytes:
        """The bytes of a unit."""
        raise NotImplementedError

    def _size(self, unit: U) -> int:
        """The events in it."""
        raise NotImplementedError

    def _ids(self, unit: U) -> list[str]:
        """Of those of its events that have one of our form."""
        raise NotImplementedError

    def _corrupted(self, unit: U, random: Random) -> tuple[bytes, list[str]] | None:
        """With a bit of one event flipped, and the id of that; None: it cannot be done to this one."""
        raise NotImplementedError

    def _added(self, unit: U, random: Random) -> tuple[bytes, list[str]]:
        """With an event that was never sent, and the id of that."""
        raise NotImplementedError

    def _count_ids(self, tally: Tally, unit: bytes) -> None:
        """Of a unit that was captured."""
        raise NotImplementedError

    def _beside(self, connection: K, now: float) -> None:
        """After the steps: what is to be said of our own accord."""

    def _expired(self, connection: K, now: float) -> bool:
        """Close it when it has been idle for too long; whether it was."""
        if not self._idle or now - connection.alive_at < self._idle:
            return False
        self._count["idle_closes"] += 1
        self._close(connection)
        return True

    def _said(self, connection: K, step: Step, now: float) -> None:
        """A step's bytes are on their way."""

    # --- what the user's threads call

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        scheme = self._protocol if self._tls is None else f"{self._protocol}+tls"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self._port}"

    @property
    def listens(self) -> dict[str, Any]:
        return {"url": self.url, "port": self.port}

    def _listen(self) -> None:
        """What ``start`` does."""
        self._check_stopped()
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # On Windows SO_REUSEADDR would let another process take the port over.
            option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                listener.bind((self.host, self._port))
                listener.listen(128)
            except OSError as error:
                why = error.strerror or error
                raise ConnectFailed(f"listen: {self.host} port {self._port}: {why}") from error
            listener.setblocking(False)
            self._port = listener.getsockname()[1]
            if self._witness_path is not None:
                self._witness = Witness(self._witness_path, self._capture_dir)
            if self._capture_dir is not None:
                place = re.sub(r"[^A-Za-z0-9.-]", "_", f"{self.host}-{self._port}")
                self._capture = CaptureWriter(
                    self._capture_dir,
                    self._listener or f"{self._protocol}-{place}",
                    self._protocol,
                    url=self.url,
                    run=self._run,
                )
        except BaseException:
            listener.close()
            if self._witness is not None:
                self._witness.close()
            raise
        self._run_in_thread(self._serve, listener)

    # --- the thread

    def _serve(self, listener: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._wake_in, selectors.EVENT_READ)
            self._buffer = memoryview(bytearray(_RECEIVE))
            try:
                while not self._stopping:
                    self._turn(listener)
            except BaseException as error:
                self.error = error  # for whoever waits: a dead thread must not look like a slow one
                raise
            finally:
                with self._changed:
                    for connection in list(self._connections.values()):
                        self._close(connection)
                    listener.close()
                    self._flush()
                    try:
                        if self._capture is not None:
                            self._capture.close()
                    except LedgerError as error:
                        self._not_captured(error)
                    if self._witness is not None:
                        self._witness.close()
                    self._changed.notify_all()

    def _turn(self, listener: socket.socket) -> None:
        """Wait, read, capture, answer."""
        capture = self._capture
        timeout = self._next_due()
        if capture is not None and capture.pending and timeout != 0:
            # Rows of acks go with the next units; before a sleep they go alone.
            ready = self._selector.select(0)
            if not ready:
                with self._changed:
                    self._flush()
                ready = self._selector.select(timeout)
        else:
            ready = self._selector.select(timeout)
        with self._changed:
            now = time.monotonic()
            for key, mask in ready:
                if key.data is not None:
                    connection: K = key.data
                    if mask & selectors.EVENT_WRITE and connection.out:
                        self._send(connection)
                    readable = mask & selectors.EVENT_READ or connection.writes_first
                    if readable and connection.number in self._connections:
                        self._receive(connection, now)
                elif key.fileobj is listener:
                    self._accept(listener, now)
                else:
                    self._drain()
            if self._cut_all:
                self._cut_all = False
                for connection in list(self._connections.values()):
                    self._close(connection)
            for connection in list(self._connections.values()):
                if connection.held is not None and connection.held.until <= now:
                    self._unhold(connection)
            self._flush()
            now = time.monotonic()
            for connection in list(self._connections.values()):
                self._answer(connection, now)
            self._changed.notify_all()

    def _drain(self) -> None:
        try:
            self._wake_in.recv(4096)
        except BlockingIOError:
            pass

    def _next_due(self) -> float | None:
        """Seconds until a timer of some connection, None when there is none."""
        due = NEVER
        for connection in self._connections.values():
            due = min(due, self._due(connection))
        return None if due == NEVER else max(0.0, due - time.monotonic())

    def _due(self, connection: K) -> float:
        """When something is to be done on it."""
        due = NEVER
        if connection.steps and not self._holding and not connection.out:
            due = connection.steps[0].due
        if connection.held is not None:
            due = min(due, connection.held.until)
        if self._idle:
            due = min(due, connection.alive_at + self._idle)
        return due

    def _accept(self, listener: socket.socket, now: float) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.01)  # no descriptor left: it stays in the backlog, those connected go on
            return
        if len(self._connections) >= self._max_connections:
            self._note(TOO_MANY)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            # Reading does the handshake.
            try:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:  # gone already
                sock.close()
                return
        self._count["connections"] += 1
        number = self._count["connections"]
        peer = host_port(*address[:2])
        connection = self._connection(sock, peer, number, now)
        if self._capture is not None:
            connection.stream = self._capture.stream(peer)
        self._connections[number] = connection
        self._watch(connection)

    def _watch(self, connection: K) -> None:
        """Tell the selector what we want of this connection now."""
        events = 0
        if not connection.doomed and not connection.ended and len(connection.out) < _OUT_MAX:
            events |= selectors.EVENT_READ
        if connection.out or connection.writes_first:
            events |= selectors.EVENT_WRITE
        if events == connection.events:
            return
        if not connection.events:
            self._selector.register(connection.sock, events, connection)
        elif not events:
            self._selector.unregister(connection.sock)
        else:
            self._selector.modify(connection.sock, events, connection)
        connection.events = events

    def _close(self, connection: K) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._unhold(connection)
        if connection.events:
            self._selector.unregister(connection.sock)
        connection.sock.close()
        self._gone(connection)
        if self._capture is not None:
            self._capture.end_stream(connection.stream)

    # --- in: bytes -> units -> capture

    def _receive(self, connection: K, now: float) -> None:
        try:
            if self._tls is None:
                size = connection.sock.recv_into(self._buffer)
            else:
                size = self._decrypt(connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset
            self._close(connection)
            return
        if not size:
            # Acks still due are sent, and only then is the connection closed: see _answer.
            connection.ended = True
            self._unhold(connection)
            self._watch(connection)
            return
        self._count["bytes"] += size
        self._incoming(connection, self._buffer[:size], now)
        connection.alive_at = now
        if connection.number in self._connections:
            self._watch(connection)

    def _decrypt(self, connection: K) -> int:
        """Like ``recv_into`` of a plain socket: all the records that are there, as far as the buffer goes."""
        import ssl

        size = 0
        connection.writes_first = False
        try:
            while size < len(self._buffer):
                some = connection.sock.recv_into(self._buffer[size:])
                size += some
                if not some:  # the end; it is there again the next time
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if isinstance(error, ssl.SSLWantWriteError):
                connection.writes_first = True
                self._watch(connection)
            if not size:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            if not size:
                self._broke(f"tls: {(error.reason or 'error').replace('_', ' ').lower()}")
                raise
        return size

    @staticmethod
    def _encrypt(connection: K) -> int:
        import ssl

        try:
            return connection.sock.send(connection.out)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def _broke(self, reason: str) -> None:
        """A peer broke the protocol."""
        self._count["protocol_errors"] += 1
        self._note(reason)

    def _doom(self, connection: K, count: str, due: float = 0.0) -> None:
        """Take nothing more from this connection; close it when what is owed has been sent."""
        connection.doomed = True
        self._unhold(connection)
        connection.steps.append(Step(None, count, due))

    def _planned(self, connection: K) -> Plan:
        """What the faults have for its next unit."""
        return self._faults.plan(connection.number, paired=connection.held is not None)

    def _captured(self, connection: K, unit: U, plan: Plan, ack: Step, now: float) -> None:
        """Capture one unit, or what a lie makes of it; `ack` is the answer that is owed for it."""
        if plan.delay is not None:
            ack.due = now + plan.delay.fault.value
        if plan.lie is None or not self._lie(connection, unit, plan.lie, ack, now):
            self._keep_unit(connection, self._raw(unit), self._size(unit))
        if connection.held is not None and connection.held.unit is not unit:
            self._swap(connection, connection.held)

    def _lie(self, connection: K, unit: U, act: Act, ack: Step, now: float) -> bool:
        """Do to the captured unit what the fault says; False when it cannot be done to this one."""
        name = act.fault.name
        if name == "swap":
            # Its ack waits until it is captured: a lie about the order, not about what is kept.
            connection.held = _Held(unit, act, ack, now + act.fault.value)
            ack.due = NEVER
            return True
        raw, count, ids = self._raw(unit), self._size(unit), self._ids(unit)
        if name == "discard":
            self._testify(name, ids)
            return True
        if name == "duplicate":
            self._keep_unit(connection, raw, count)
        else:
            random = act.random
            changed = self._corrupted(unit, random) if name == "corrupt" else self._added(unit, random)
            if changed is None:
                self._faults.give_back(act)
                return False
            raw, ids = changed
            count += name == "add"
        self._keep_unit(connection, raw, count)
        self._testify(name, ids)
        return True

    def _testify(self, fault: str, ids: list[str]) -> None:
        if self._witness is not None:
            self._witness.write(fault, ids)

    def _swap(self, connection: K, held: _Held) -> None:
        """The next unit is captured: now the one before it."""
        connection.held = None
        self._keep_unit(connection, self._raw(held.unit), self._size(held.unit))
        self._testify("swap", self._ids(held.unit))
        held.step.due = 0.0

    def _unhold(self, connection: K) -> None:
        """No next unit came: the swap is given up."""
        held = connection.held
        if held is not None:
            connection.held = None
            self._faults.give_back(held.act)
            self._keep_unit(connection, self._raw(held.unit), self._size(held.unit))
            held.step.due = 0.0

    def _keep_unit(self, connection: K, unit: bytes, events: int) -> None:
        if self._capture is not None:
            self._capture.unit(connection.stream, unit)
        self._fresh.append(_Fresh(connection, unit, events))

    def _flush(self) -> None:
        """Hand what was captured to the operating system; after this, and not before, it is answered."""
        fresh, self._fresh = self._fresh, []
        if self._capture is not None:
            try:
                self._capture.flush()
            except LedgerError as error:
                # Not kept, so not acknowledged: their peers send it again, elsewhere or later.
                self._not_captured(error)
                for connection in {unit.connection for unit in fresh}:
                    self._close(connection)
                return
        for _, unit, events in fresh:
            self._count[self._CAPTURED] += 1
            self._count["captured_events"] += events
            if self._keep:
                self._kept.append(unit)
            if self._tally is not None:
                self._count_ids(self._tally, unit)
                self._count["duplicates"] = self._tally.duplicates
                self._count["copies"] = self._tally.copies

    # --- out: acks

    def _answer(self, connection: K, now: float) -> None:
        steps = connection.steps
        while steps and steps[0].due <= now and not self._holding:
            step = steps[0]
            if step.data is None and connection.out:  # what was said before goes out first
                self._send(connection)
                if connection.out:
                    break
            steps.popleft()
            if step.count:
                self._count[step.count] += 1
            if step.data is None:
                self._close(connection)
                return
            self._say(connection, step, now)
        self._beside(connection, now)
        if connection.out:
            self._send(connection)
        if connection.number not in self._connections:
            return
        if not self._expired(connection, now) and connection.ended and not steps and not connection.out:
            self._close(connection)

    def _say(self, connection: K, step: Step, now: float) -> None:
        assert step.data is not None
        connection.out += step.data
        connection.wrote_at = connection.alive_at = now
        if self._capture is not None:
            for row in step.rows:
                self._capture.unit(connection.stream, row, TO_PEER)
        self._said(connection, step, now)

    def _send(self, connection: K) -> None:
        try:
            sent = self._encrypt(connection) if self._tls else connection.sock.send(connection.out)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # reset: the peer will send again what it got no ack for
            self._close(connection)
            return
        del connection.out[:sent]
        if connection.number in self._connections:
            self._watch(connection)
