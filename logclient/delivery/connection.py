"""A connection of a lane: the attempt to make it, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient.delivery.attempt import Attempt, Elsewhere
from logclient.standard import time

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient._ext.pump import CompiledPump
    from logclient._ext.queue import EventQueue
    from logclient.delivery.contract import Link

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
        self._off = threads.Event()
        super().__init__(self._off.is_set, warn)
        self._connect = connect
        self._queue = queue
        self._poke = poke
        self._thread: threads.AnyThread | None = None
        self._link: Link | None = None
        self._error: BaseException | None = None
        self.done = False

    def start(self) -> bool:
        """Begin in a new thread; return False when none can be started."""
        self._thread = threads.make_thread(self._run, threads.CONNECT)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):
            self._thread = None
        return self._thread is not None

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
                self._link = self._connect(self.endpoint, self)
            self._link = self._link or self._connect(self.endpoint, self)
        except BaseException as error:
            self._error = error
        finally:
            if self._link is not None and self._off.is_set():
                self._link.close()
            if self.won is not None and self.won.sock is not None:
                self.won.sock.close()
            self.done = True
            if self._thread is not None:
                self._poke()
                self._queue.wake()

    def _sleep(self, reading: list[int], writing: list[int], seconds: float) -> bool:
        wake = self._queue.fileno()
        if self._thread is None and wake >= 0:  # a caller wakes the sender, too
            seconds = min(seconds, max(0.0, self._ask_at() - time.monotonic()))
            self._queue.enter_fork_safe()
            try:
                threads.wait_ready([*reading, wake], writing, seconds)
            finally:
                self._queue.leave_fork_safe()
            # First, so that a wake-up from now on is noticed by the next sleep.
            self._queue.finish_wait()
            seconds = 0.0
        return super()._sleep(reading, writing, seconds)

    def take(self) -> Link:
        """Return the connection, or raise what has prevented it."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        assert self._link is not None
        return self._link

    def call_off(self) -> None:
        """Have the attempt end soon; its connection is closed."""
        self._off.set()
        if self.done and self._link is not None:
            self._link.close()

    @property
    def is_called_off(self) -> bool:
        """Whether it was to end."""
        return self._off.is_set()

    @property
    def has_thread(self) -> bool:
        """Whether it has a thread of its own."""
        return self._thread is not None

    def join(self, timeout: float) -> None:
        """Wait for the end of its thread."""
        if self._thread is not None:
            threads.join(self._thread, max(0.0, timeout))

    def abandon(self) -> None:
        """In a forked child, release the connection that the parent is making, without sending anything."""
        if self._link is not None:
            self._link.abandon()
        super().abandon()


class ConnectionRecord:
    """The record of one connection after the other.

    Attributes:
        in_doubt: events of all connections that broke without acknowledgements; any may be missing.
    """

    def __init__(self, in_flight: InflightBatches, pump: CompiledPump) -> None:
        self.in_doubt = 0
        self._in_flight = in_flight
        self._pump = pump
        self._began = 0.0
        self._progress = self._windows = self._handed = 0

    def begin(self) -> None:
        """Begin the record of a new connection."""
        self._began = time.monotonic()
        self._progress = self._pump.progress
        self._windows = self._pump.windows
        self._handed = self._handed_so_far

    @property
    def _handed_so_far(self) -> int:
        handed: int = self._in_flight.queue.counters()["handed"]
        return handed

    @property
    def acknowledged(self) -> bool:
        """Whether the server has acknowledged something."""
        return self._pump.progress > self._progress

    @property
    def used(self) -> bool:
        """Whether the server has acknowledged something, or the connection has lasted."""
        return self.acknowledged or time.monotonic() - self._began > USED

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
        return time.monotonic() - self._began > min(bound, PROVEN)

    def broke(self) -> int:
        """Count the events of a connection without acknowledgements that broke, and return their number."""
        events = self._handed_so_far - self._handed
        self.in_doubt += events
        return events
