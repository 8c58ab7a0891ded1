"""The base of all collectors: the serving thread, evidence, counters, and the methods for other threads.

The collector of a protocol adds the sockets and the rules.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar

from logclient.errors import ConfigError, ConnectFailed, LedgerError, LogclientError, ProtocolError
from logclient.files.capture import CaptureWriter
from logclient.testing.duplicates import DuplicateCounter, decode_units
from logclient.testing.fault_gate import NEVER, Captured, FaultGate, Peer, Reply, Unit
from logclient.testing.faults import FaultLog, Faults
from logclient.threads import Thread

TOO_MANY = "connections: too many"

_REASONS_MAX = 1000
_REFUSALS_MAX = 10
_SLEEP_MAX = 3600.0  # seconds: the system refuses to wait for weeks, as `idle` may ask for


@dataclass(frozen=True, kw_only=True)
class Counts:
    """A snapshot of a collector's counters since its creation."""

    connections: int = 0
    open: int = 0  # connections now
    bytes: int = 0  # received
    events: int = 0  # received in whole units
    captured_events: int = 0
    idle_closes: int = 0
    capture_errors: int = 0
    duplicates: int = 0  # ids captured more than once (count_duplicates)
    copies: int = 0  # captured copies beyond the first (count_duplicates)

    @property
    def cuts(self) -> int:
        """Connections that faults have cut."""
        return 0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, without `cuts`, which is a sum of some of them."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class AckCounts(Counts):
    """The counters of a collector that acknowledges units, with faults that cut or stall a connection."""

    acks: int = 0
    cuts_before_write: int = 0
    cuts_before_ack: int = 0
    cuts_after_ack: int = 0
    stalls: int = 0

    @property
    def cuts(self) -> int:
        """Connections that faults have cut."""
        return self.cuts_before_write + self.cuts_before_ack + self.cuts_after_ack


C = TypeVar("C", bound=Counts)


class CollectorOptions(TypedDict, total=False):
    """The options of collectors that do not depend on the protocol.

    Attributes:
        capture: directory of the capture; None: no capture.
        faults: see docs/testing.md.
        fault_log: a file for the ids of the events that data faults changed.
        run: a name for this run, kept in the capture.
        listener: name in the capture; default protocol, host and port.
        idle: seconds without traffic after which a connection is closed; default 900, 0 = never.
        max_connections: connections open at one time, default 1000; a further one is closed at once.
        count_duplicates: count the ids that are captured more than once.
        keep: keep captured units in memory, for ``events``.
        rotate: seconds after which a segment of the capture ends that has a unit; default: only by its size.
    """

    capture: str | None
    faults: str | None
    fault_log: str | None
    run: str | None
    listener: str | None
    idle: float
    max_connections: int
    count_duplicates: bool
    keep: bool
    rotate: float


class CollectorBase(Generic[C]):
    """A server in its own thread. All public methods may be called from any thread."""

    def __init__(
        self,
        protocol: str,
        counts: type[C],
        decoder: Any,
        host: str,
        options: CollectorOptions,
        **ports: int | None,
    ) -> None:
        if unknown := options.keys() - CollectorOptions.__optional_keys__:
            raise TypeError(f"{min(unknown)}: not an option of a collector")
        for name, number in ports.items():
            if number is not None and not 0 <= number <= 65535:
                raise ConfigError(f"{name}: {number} must be 0 to 65535")
        self.host = host
        self._protocol = protocol
        self._snapshot = counts
        self._count = counts().as_dict()
        self._options = options.copy()
        if capture := options.get("capture"):
            self._options["capture"] = os.path.abspath(capture)
        if fault_log := options.get("fault_log"):
            self._options["fault_log"] = os.path.abspath(fault_log)
        self._idle = options.get("idle", 900.0)
        self._max_connections = options.get("max_connections", 1000)
        self._keep = options.get("keep", False)
        self._faults = Faults(options.get("faults") or "", protocol)
        self._fault_log: FaultLog | None = None
        self._capture: CaptureWriter | None = None
        self._captures: list[CaptureWriter] = []  # the open ones
        self._decoder = decoder  # finds the ids in units
        self._duplicates = DuplicateCounter() if options.get("count_duplicates") else None
        self._kept: list[bytes] = []
        # The thread holds the lock for a whole turn, so that counters include an ack before its peer has it.
        self._changed = threading.Condition(threading.Lock())
        self._reasons: dict[str, int] = {}
        self._refusals: deque[str] = deque(maxlen=_REFUSALS_MAX)
        self._holding = False
        self._cut_all = False
        self._stopping = False
        self._select: Callable[[float], list[Any]]  # of what `_open` makes
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None  #: the error that ended the thread, if any
        self.capture_error = ""  #: the first error for which units were not captured
        self.unreached: list[str] = []  #: endpoints of a client that did not answer; a server has none

    def _counts(self) -> C:
        """Return the counters. The caller holds the lock."""
        self._count["open"] = len(self._connections)
        return self._snapshot(**self._count)

    port: int | None
    _connections: Any  # those that are open
    _values: Callable[[bytes], list[Any]]

    @property
    def url(self) -> str:
        """The URL for clients."""
        raise NotImplementedError

    @property
    def listens(self) -> dict[str, Any]:
        """The addresses of the collector for programs: ``url``, ``port``, and more by protocol."""
        return {"url": self.url, "port": self.port}

    @property
    def counts(self) -> C:
        """A snapshot of the counters."""
        with self._changed:
            return self._counts()

    @property
    def reasons(self) -> dict[str, int]:
        """The reasons for refusals, drops and closes after protocol errors, with their counts."""
        with self._changed:
            return dict(self._reasons)

    @property
    def report(self) -> dict[str, Any]:
        """All counters, for programs."""
        with self._changed:
            counts, faults = self._counts(), self._faults.done
        return {**counts.as_dict(), "cuts": counts.cuts, "faults": faults, "reasons": self.reasons}

    @property
    def summary(self) -> str:
        """The counters as a phrase."""
        counts = self.counts
        return f"{counts.captured_events} events over {counts.connections} connections"

    def start(self) -> Self:
        """Listen, and return the collector itself."""
        if self._thread is not None:
            raise ConfigError("start: the collector is running")
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        fault_log, capture = self._options.get("fault_log"), self._options.get("capture")
        try:
            self._fault_log = None if fault_log is None else FaultLog(fault_log, capture)
            self._open()
        except BaseException:
            self._close_sockets()
            self._close_evidence()
            self._close_wakeup()
            raise
        self._stopping = False
        self.error = None
        self._thread = Thread(target=self._serve, name="logclient-collector", daemon=True)
        self._thread.start()
        return self

    if TYPE_CHECKING:  # for protocols to implement; the first runs in the caller's thread

        def _open(self) -> None: ...
        def _close_sockets(self) -> None: ...
        def _due_at(self) -> float: ...
        def _read(self, ready: list[Any], now: float) -> None: ...
        def _close_all(self) -> None: ...
        def _respond(self, now: float) -> None: ...
        def _end(self) -> None: ...

    def _count_reason(self, reason: str) -> None:
        """Count a reason; the number of different reasons is bounded."""
        reason = reason if len(self._reasons) < _REASONS_MAX else "other"
        self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def _open_capture(
        self, port: int | None, url: str, *, protocol: str = "", suffix: str = ""
    ) -> CaptureWriter | None:
        directory = self._options.get("capture")
        if directory is None:
            return None
        place = re.sub(r"[^A-Za-z0-9.-]", "_", f"{self.host}-{port}")
        name = (self._options.get("listener") or f"{self._protocol}-{place}") + suffix
        run = self._options.get("run")
        every = self._options.get("rotate", NEVER)
        given = protocol or self._protocol
        capture = CaptureWriter(directory, name, given, url=url, run=run, segment_seconds=every)
        self._captures.append(capture)
        return capture

    def _close_evidence(self) -> None:
        for capture in self._captures:
            self._tried(capture.close)
        self._captures.clear()
        if self._fault_log is not None:
            self._fault_log.close()

    def _hand_over(self, capture: CaptureWriter | None) -> bool:
        return capture is None or self._tried(capture.flush)

    def _tried(self, step: Callable[[], object]) -> bool:
        """Do a step of a capture; False: it failed, which is counted."""
        try:
            step()
        except LedgerError as error:
            self._count["capture_errors"] += 1
            self.capture_error = self.capture_error or str(error)
            return False
        return True

    def _record_fault(self, fault: str, ids: list[str], **more: str | int) -> None:
        if self._fault_log is not None:
            self._fault_log.write(fault, ids, **more)

    def _count_duplicates(self, units: list[bytes]) -> None:
        if self._duplicates is not None and units:
            self._duplicates.add(decode_units(self._decoder, units))
            self._count["duplicates"] = self._duplicates.duplicates
            self._count["copies"] = self._duplicates.copies

    # --- the thread

    def _serve(self) -> None:
        try:
            while not self._stopping and self.error is None:
                due = min([self._due_at(), *(capture.due for capture in self._captures)])
                ready = self._wait(max(0.0, min(due - time.monotonic(), _SLEEP_MAX)))
                with self._changed:
                    now = time.monotonic()
                    self._read(ready, now)
                    if self._cut_all:
                        self._cut_all = False
                        self._close_all()
                    self._respond(now)
                    self._rotate(now)
                    self._changed.notify_all()
        except BaseException as error:
            self.error = error  # other threads stop waiting at once
            raise
        finally:
            with self._changed:
                try:
                    self._end()
                finally:
                    self._close_sockets()
                    self._close_evidence()
                    self._changed.notify_all()

    def _rotate(self, now: float) -> None:
        for capture in self._captures:
            if now >= capture.due:
                self._tried(capture.rotate)

    def _accepted(self, listener: socket.socket, now: int) -> tuple[socket.socket, Any] | None:
        """Accept a connection beside the `now` that are open; one too many is closed at once."""
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.01)  # no descriptor is left: the connection waits in the backlog
            return None
        if now >= self._max_connections:
            self._count_reason(TOO_MANY)
            sock.close()
            return None
        sock.setblocking(False)
        return sock, address[:2]

    def _wait(self, timeout: float) -> list[Any]:
        """Wait for what is ready; before a sleep, hand over the rows of replies in the capture."""
        if timeout != 0 and self._capture is not None and self._capture.pending:
            ready = self._select(0)
            if ready:
                return ready
            with self._changed:
                self._hand_over(self._capture)
        return self._select(timeout)

    def _wake(self) -> None:
        try:
            self._wake_out.send(b"!")
        except (OSError, AttributeError):
            pass  # a wake-up is pending, or the collector was never started

    def _clear_wakeup(self) -> None:
        try:
            self._wake_in.recv(4096)
        except BlockingIOError:
            pass

    # --- for other threads

    def stop(self) -> None:
        """Close all connections, the listening sockets and the capture, without sending pending answers.

        Idempotent.
        """
        thread = self._thread
        if thread is None:
            return
        with self._changed:
            self._stopping = True
        self._wake()
        thread.join()
        self._thread = None
        self._close_wakeup()

    def _close_wakeup(self) -> None:
        self._wake_in.close()
        self._wake_out.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def hold(self) -> None:
        """Send no answers until ``release``; units are still read and captured."""
        with self._changed:
            self._holding = True

    def release(self) -> None:
        """Send the answers that were held back."""
        with self._changed:
            self._holding = False
        self._wake()

    def cut(self, timeout: float = 10.0) -> bool:
        """Cut all open connections, and wait until that is done.

        Returns:
            False: not done within `timeout` seconds, or the collector has failed.
        """
        with self._changed:
            if self._thread is None:
                return True
            self._cut_all = True
            self._wake()
            done = self._changed.wait_for(lambda: not self._cut_all or self.error is not None, timeout)
            return done and self.error is None

    def wait_for(
        self, predicate: Callable[[C], bool] | None = None, *, events: int = 0, timeout: float = 10.0
    ) -> bool:
        """Wait until `events` events are captured and `predicate` is true for the counters.

        Returns:
            False: not reached within `timeout` seconds, or the collector has failed.
        """

        def reached() -> bool:
            counts = self._counts()
            enough = counts.captured_events >= events
            return self.error is not None or (enough and (predicate is None or predicate(counts)))

        with self._changed:
            return self._changed.wait_for(reached, timeout) and self.error is None

    def events(self, n: int | None = None, timeout: float = 10.0) -> list[Any]:
        """Return the events captured so far, decoded, in the order of arrival.

        Args:
            n: the number of events to wait for; None: do not wait.
            timeout: seconds to wait for them.

        Raises:
            ConfigError: the collector keeps nothing: it was made without ``keep=True``.
            TimeoutError: fewer than `n` events came within `timeout` seconds.
            ValueError: the body of an event is not the JSON that its framing announces, or is nested too
                deep.
        """
        __tracebackhide__ = True  # of pytest: a failure shows the line of the test
        self._check_kept()
        if n is not None and not self.wait_for(events=n, timeout=timeout):
            raise TimeoutError(f"{self.counts.captured_events} of {n} events came within {timeout} s")
        with self._changed:
            kept = list(self._kept)
        try:
            return [event for raw in kept for event in self._values(raw)]
        except RecursionError:
            raise ProtocolError("event: nested too deep") from None

    def take(self) -> list[Any]:
        """Return the events captured since the last call, as JSON values; what is no JSON becomes a text.

        Raises:
            ConfigError: see `events`.
        """
        self._check_kept()
        with self._changed:
            kept, self._kept = self._kept, []
        found: list[Any] = []
        for raw in kept:
            try:
                found += self._values(raw)
            except (LogclientError, ValueError, RecursionError):
                found.append(raw.decode("utf-8", "backslashreplace"))
        return found

    def take_refusals(self) -> list[str]:
        """Return the last connections closed for a protocol error since the last call: address and reason."""
        with self._changed:
            refusals = list(self._refusals)
            self._refusals.clear()
        return refusals

    def _check_kept(self) -> None:
        if not self._keep:
            raise ConfigError("keep: without keep=True a collector keeps no events in memory")


def bound_socket(kind: socket.SocketKind, host: str, port: int, what: str = "port") -> socket.socket:
    """Return a non-blocking socket at an address, which listens if it is a stream; errors say `what` port."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    try:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(128)
        sock.setblocking(False)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise ConnectFailed(f"listen: {host} {what} {port}: {error.strerror or error}") from error
        raise
    return sock


P = TypeVar("P", bound=Peer[Any])
D = TypeVar("D")


class GatedCollector(CollectorBase[C], Generic[C, P, D]):
    """The base of a collector whose units pass a fault gate, and are answered when they are captured."""

    def __init__(self, *arguments: Any, **ports: Any) -> None:
        super().__init__(*arguments, **ports)
        self._gate: FaultGate[P, D] = FaultGate(self._faults, self._count, self._record_fault)
        self._unflushed: list[tuple[P, Captured]] = []  # not yet handed to the operating system
        self._replying: dict[Any, P] = {}  # those that may have replies
        self._clock_us: Callable[[], int] = lambda: 0  # for the capture; 0: its own

    if TYPE_CHECKING:  # for protocols to implement

        def _add_reply(self, peer: P, reply: Reply[D]) -> None: ...
        def _send_replies(self, peer: P, now: float) -> None: ...
        def _not_captured(self, peer: P) -> None: ...
        def _was_captured(self, unit: Captured) -> None: ...

    def _admit(self, peer: P, unit: Unit[D], now: float) -> str:
        """Pass a unit through the fault gate, capture it, queue its replies; return the connection fault."""
        decision = self._gate.admit(peer, unit, now)
        for captured in decision.captured:
            self._keep_unit(peer, captured)
        for reply in decision.replies:
            self._add_reply(peer, reply)
        return decision.fault

    def _abort_swap(self, peer: P) -> None:
        for unit in self._gate.abort_swap(peer):
            self._keep_unit(peer, unit)

    def _keep_unit(self, peer: P, unit: Captured) -> None:
        if self._capture is not None:
            self._capture.unit(peer.stream, unit.raw, received_us=self._clock_us())
        self._unflushed.append((peer, unit))

    def _respond(self, now: float) -> None:
        for peer, unit in self._gate.expire(now):
            self._keep_unit(peer, unit)
        self._flush()
        now = time.monotonic()
        for peer in list(self._replying.values()):
            self._send_replies(peer, now)

    def _flush(self) -> None:
        """Hand the capture to the operating system, before any reply is sent."""
        unflushed, self._unflushed = self._unflushed, []
        if not self._hand_over(self._capture):
            # They get no acknowledgement, so that they send it again.
            for peer in {peer for peer, _ in unflushed}:
                self._not_captured(peer)
            return
        for _, unit in unflushed:
            self._count["captured_events"] += unit.events
            if self._keep:
                self._kept.append(unit.raw)
            self._was_captured(unit)
        self._count_duplicates([unit.raw for _, unit in unflushed])
