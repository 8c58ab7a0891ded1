"""A connection of a lane: the attempt to make it, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient.delivery.attempt import Attempt, Elsewhere
from logclient.errors import CredentialError, describe_error, is_shortage
from logclient.standard import time

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient._ext.pump import CompiledPump
    from logclient._ext.queue import EventQueue
    from logclient.delivery.contract import Link, Transport
    from logclient.delivery.endpoints import Endpoints
    from logclient.delivery.error_log import Diagnostics

SHARE = 0.25
"""Seconds for an attempt to connect in a caller's thread while another server is connected."""

ALONE = 1.0
"""Seconds for it while none is, and there are others to try."""

PROVEN = 1.0
"""Seconds after which a connection that works has proved that its server is up."""

USED = 1.0
"""Seconds after which the end of a connection without traffic is no failure."""


class LaneAttempt(Attempt):
    """An attempt to connect: in the sender's thread, or in one of its own."""

    def __init__(
        self,
        connect: Callable[[Any, Attempt], Link],
        queue: EventQueue,
        poke: Callable[[], object],
        warn: Callable[[str], object],
    ) -> None:
        self.off = threads.Event()  # set: it is to end
        super().__init__(self.off.is_set, warn)
        self._connect = connect
        self._queue = queue
        self._poke = poke
        self.thread: threads.AnyThread | None = None  # of its own
        self.link: Link | None = None
        self.error: BaseException | None = None  # has prevented it
        self.done = False

    def start(self) -> bool:
        self.thread = threads.make_thread(self._run, threads.CONNECT)
        try:
            self.thread.start()
        except (RuntimeError, MemoryError):
            self.thread = None
        return self.thread is not None

    def run_here(self, stopped: Callable[[], bool], ask_at: Callable[[], float]) -> None:
        """Connect in the sender's thread, until ``stopped()``: asked by the monotonic ``ask_at()``."""
        before, self.stopped = self.stopped, stopped
        self.wake, self._ask_at = self._queue.wake, ask_at
        try:
            self._run()
        finally:
            self.stopped = before

    def _run(self) -> None:
        try:
            with suppress(Elsewhere):
                self.link = self._connect(self.endpoint, self)
            self.link = self.link or self._connect(self.endpoint, self)
        except BaseException as error:
            self.error = error
        finally:
            if self.link is not None and self.off.is_set():
                self.link.close()
            if self.won is not None and self.won.sock is not None:
                self.won.sock.close()
            self.done = True
            if self.thread is not None:
                self._poke()
                self._queue.wake()

    def _sleep(self, reading: list[int], writing: list[int], seconds: float) -> bool:
        wake = self._queue.fileno()
        if self.thread is None and wake >= 0:  # a caller wakes the sender, too
            seconds = min(seconds, max(0.0, self._ask_at() - time.monotonic()))
            self._queue.enter_fork_safe()
            try:
                threads.wait_ready([*reading, wake], writing, seconds)
            finally:
                # First, so that a wake-up from now on is noticed by the next sleep.
                self._queue.leave_fork_safe()
            seconds = 0.0
        return super()._sleep(reading, writing, seconds)

    def call_off(self) -> None:
        self.off.set()
        if self.done and self.link is not None:
            self.link.close()

    def abandon(self) -> None:
        """In a forked child, release the connection that the parent is making, without sending anything."""
        if self.link is not None:
            self.link.abandon()
        super().abandon()


class Connector:
    """Makes the connections of a lane, with one attempt at a time.

    Attributes:
        attempt: the one under way, or over and not taken yet.
        segment: of an `Attempt`, where large packets seem to be lost on the way.
    """

    def __init__(
        self,
        transport: Transport,
        endpoints: Endpoints,
        queue: EventQueue,
        poke: Callable[[], object],
        diagnostics: Diagnostics,
    ) -> None:
        self.attempt: LaneAttempt | None = None
        self.segment = 0
        self._transport = transport
        self._endpoints = endpoints
        self._queue = queue
        self._poke = poke
        self._diagnostics = diagnostics
        self._known: dict[Any, Any] = {}  # by the attempts so far

    @property
    def way(self) -> str:
        """The proxy on the way to the current endpoint, in words for reports; empty: there is none."""
        proxy = self._transport.proxy_of(self._endpoints.current)
        return proxy and f" through {proxy}"

    def others(self, now: float) -> tuple[Any, ...]:
        """Return the endpoints to be tried beside the current one; none where one of them has a proxy."""
        found = self._endpoints.others(now)
        return () if self.way or any(map(self._transport.proxy_of, found)) else tuple(found)

    def prepare(self, now: float, others: tuple[Any, ...], expires: float) -> LaneAttempt:
        """Make the next attempt, which the caller begins; see `Attempt` for `others` and `expires`."""
        self._endpoints.attempt_at = now
        warn = partial(self._diagnostics.report, "renewal")  # the connection is made all the same
        # No lane in it, which may end before the attempt does.
        attempt = LaneAttempt(self._transport.connect, self._queue, self._poke, warn)
        attempt.endpoint, attempt.known, attempt.segment = self._endpoints.current, self._known, self.segment
        if others:
            attempt.others, attempt.expires = others, expires
        self.attempt = attempt
        return attempt

    def try_others(self, others: tuple[Any, ...], expires: float) -> None:
        attempt = self.attempt  # which the sender may take meanwhile
        if attempt is not None:
            attempt.others, attempt.expires = others, expires

    def end(self) -> Link | None:
        """Return the connection of an attempt that is over; report a failure, and return None."""
        attempt, began = self.attempt, self._endpoints.attempt_at
        assert attempt is not None
        self.attempt, self._endpoints.attempt_at = None, 0.0
        if attempt.off.is_set():
            if (waited := time.monotonic() - began) >= SHARE:
                self._diagnostics.note(f"no answer from {self._endpoints.peer} in {waited:.1f} s")
            return None
        self._endpoints.use(attempt.endpoint)
        peer = self._endpoints.peer + self.way
        error = attempt.error
        if error is None:
            return attempt.link
        if not isinstance(error, OSError) and not is_shortage(error):
            raise error
        self._endpoints.failing = True
        if isinstance(error, CredentialError):
            self._endpoints.refused(peer, error)
        else:
            self._endpoints.advance()
            self._endpoints.failed(f"cannot connect to {peer}: {describe_error(error)}", "connect", peer)
        return None

    @property
    def holds_sender(self) -> bool:
        return self.attempt is not None and self.attempt.thread is None

    def park(self) -> None:
        if self.attempt is not None and self.attempt.thread is not None:
            self.attempt.call_off()

    def wait_parked(self, timeout: float) -> None:
        if self.attempt is not None and self.attempt.thread is not None:
            threads.join(self.attempt.thread, max(0.0, timeout))

    def abandon(self) -> None:
        if self.attempt is not None:
            self.attempt.abandon()


class ConnectionRecord:
    """The record of one connection after the other.

    Attributes:
        in_doubt: events of all connections that broke without acknowledgements; any may be missing.
        began: when the last one did.
    """

    def __init__(self, in_flight: InflightBatches, pump: CompiledPump) -> None:
        self.in_doubt = 0
        self._in_flight = in_flight
        self._pump = pump
        self.began = 0.0
        self._progress = self._windows = self._handed = 0

    def begin(self) -> None:
        self.began = time.monotonic()
        self._progress = self._pump.progress
        self._windows = self._pump.windows
        self._handed = self._handed_so_far

    @property
    def _handed_so_far(self) -> int:
        handed: int = self._in_flight.queue.counters()["handed"]
        return handed

    @property
    def acknowledged(self) -> bool:
        return self._pump.progress > self._progress

    @property
    def used(self) -> bool:
        """Whether the server has acknowledged something, or the connection has lasted."""
        return self.acknowledged or time.monotonic() - self.began > USED

    def proven(self, keeps_connected: bool, bound: float) -> bool:
        """Return whether it counts as proven, where there are no acknowledgements.

        It has sent something or need not, owes no answer, and has lasted longer than the next wait could be
        (`bound` seconds), or than `PROVEN` seconds, however long the waits are by now. So a server that
        accepts and drops connections at once sees few of them, and one that is up is not kept waiting for
        earlier breaks.
        """
        if self._handed_so_far == self._handed:
            sent = keeps_connected or self._pump.windows > self._windows
            if not sent or self._in_flight.inflight:
                return False
        return time.monotonic() - self.began > min(bound, PROVEN)

    def broke(self) -> int:
        """Count the events of a connection without acknowledgements that broke, and return their number."""
        events = self._handed_so_far - self._handed
        self.in_doubt += events
        return events
