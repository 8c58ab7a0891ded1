"""The pump in Python: the same verbs and ends as the compiled ones (``_ext/pump.pyx``).

It drives any core over any link: TLS, WebSocket, the cores of the tests, and TCP where the compiled
pump cannot be had. It takes the GIL for every batch, which busy threads can make slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from logclient import threads
from logclient._ext.constants import PENDING, REASONS, STATUSES
from logclient._ext.flight import Flight
from logclient.errors import CredentialError
from logclient.protocols.core import (
    Alive,
    CloseWanted,
    Core,
    CoreEvent,
    Fatal,
    Outcome,
    Progress,
    Retry,
)

_REASON = {name: number for number, name in enumerate(REASONS)}
REPORT_EVERY = 0.1
"""Seconds between two reports to the engine."""

SPREE = 64
"""Batches sent between two looks at acknowledgements, stop and clock."""

GULP = 64
"""Pieces received between two such looks."""

PLENTY = 64
"""Events in flight, beside which the peer's answers may be left to gather: it does not wait for more."""


class Link(Protocol):
    """A connection as a pump needs it."""

    peer: str
    tls: str
    doubt: str
    """What may be wrong when the peer ends the first connections without an answer; empty: nothing."""

    bite: int
    """Bytes to gather for one ``send``, where each costs more than the window in it; 0: none."""

    lingers: bool
    """Whether it takes units for good: what it has not (`unsent`) and what it holds when it is closed are
    worth the wait, for nobody will say that they are missing."""
    holds: int
    """Units that it may hold when it has taken them, besides what the kernel does."""
    lull: float
    """Seconds for answers to gather that come one by one, each a wake-up for itself; 0: they do not."""
    unsent: int
    """Bytes of what it was given, in units with their heads, that it has not taken."""

    def fileno(self) -> int: ...
    def send(self, buffers: Sequence[bytes | memoryview]) -> bool: ...
    def flush(self) -> bool: ...
    def receive(self) -> bytes | None: ...
    def wait(self, wake: int, seconds: float, writable: bool) -> None: ...
    def close(self, linger: float = 0.0) -> None:
        """End it; what the transport holds may be waited for, `linger` seconds at most."""

    def abandon(self) -> None: ...


class Pump(Protocol):
    """What the engine drives. ``run`` returns the name of its end:

    ``until`` (the deadline), ``report`` (fates or answers to tell, or it was poked), ``target`` (a
    waiter's events are settled), ``stopped``, ``closed`` (by the peer), ``error`` (see ``errno``),
    ``protocol`` (the peer broke it, or the core gave up), ``silence``, ``stalled`` (no progress), ``memory``.
    """

    windows: int
    bytes_sent: int
    progress: int

    @property
    def errno(self) -> int: ...
    def connected(self) -> None: ...
    def stop(self) -> None: ...
    def resume(self) -> None: ...
    def poke(self) -> None: ...
    def post(self) -> None: ...
    def heard(self) -> list[CoreEvent]: ...
    def set_ledger(self, fd: int) -> None: ...
    def take_ledger(self) -> tuple[int, int]: ...
    def run(self, link: Any, until: float) -> str: ...


class PythonPump:
    """See ``Pump``; the limits are those of ``_ext.pump.CompiledPump``."""

    def __init__(
        self,
        flight: Flight,
        core: Core,
        *,
        batch_events: int = 2048,
        batch_bytes: int = 1 << 20,
        nap: float = 0.005,
        no_progress: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.flight = flight
        self.core = core
        self.batch_events = batch_events
        self.batch_bytes = batch_bytes
        self.nap = nap
        self.no_progress = no_progress
        self.clock = clock
        self.windows = 0
        self.bytes_sent = 0
        self.progress = 0
        self.errno = 0
        self.failure: OSError | None = None
        self.fatal: Fatal | None = None
        self._inbox: list[CoreEvent] = []
        self._stopping = False
        self._poked = False
        self._full = False
        self._nap_end = 0.0
        self._waited = False  # no more could be sent until the peer had answered: that ends a nap
        self._drained = False  # something has come, and all of it was taken
        self._last_report = 0.0
        self._last_progress = 0.0
        self._ledger_fd = -1
        self._ledger_errno = 0
        self._ledger_bytes = 0

    def connected(self) -> None:
        self._full = False
        self._nap_end = 0.0
        self._waited = self._drained = False
        self._last_progress = self.clock()
        self.fatal = None

    def stop(self) -> None:
        self._stopping = True

    def resume(self) -> None:
        self._stopping = False

    def poke(self) -> None:
        """Make ``run`` return soon, once: there is a call to make."""
        self._poked = True

    def post(self) -> None:
        """Nothing: what the core has to send goes out with the next ``run``."""

    def heard(self) -> list[CoreEvent]:
        """What came besides fates: answers to calls, and what the peer said of its own accord."""
        heard = list(self._inbox)
        del self._inbox[: len(heard)]
        return heard

    def set_ledger(self, fd: int) -> None:
        self._ledger_fd = fd
        self._ledger_errno = 0

    def take_ledger(self) -> tuple[int, int]:
        answer = self._ledger_bytes, self._ledger_errno
        self._ledger_bytes = 0
        return answer

    def run(self, link: Link, until: float) -> str:
        handoff = self.flight.handoff
        try:
            while True:
                now = self.clock()
                more = self._send(link, now)
                end = self._events(now)
                reached = self.flight.commit()
                if end:
                    return end
                if reached or self.flight.drained:
                    return "target"
                if self._stopping:
                    return "stopped"
                if now >= until:
                    return "until"
                if self._poked or self._inbox or (self.flight.reported and self._report_due(now)):
                    self._poked = False
                    self._last_report = now
                    return "report"
                if self.flight.inflight and now - self._last_progress >= self.no_progress:
                    return "stalled"
                timeout = self.core.next_timeout(now)
                if timeout is not None and now >= timeout:
                    self.core.handle_timeout(now)
                    end = self._events(now)
                    if end:
                        self.flight.commit()
                        silent = self.fatal is not None and isinstance(self.fatal.error, TimeoutError)
                        return "silence" if end == "protocol" and silent else end
                    continue
                self._rest(link, now, 0.0 if more else until, timeout)
                end = self._hear(link)
                if end:
                    self.flight.commit()
                    return end
        except CredentialError as error:
            self.fatal = Fatal(error)
            self.flight.commit()
            return "protocol"
        except OSError as error:
            self.errno = error.errno or 0
            self.failure = error
            self.flight.commit()
            return "error"
        except MemoryError:
            self.flight.commit()
            return "memory"
        finally:
            handoff.rouse()

    def _hear(self, link: Link) -> str:
        """Take what has come, and what follows from all of it; the name of the end that is, or empty."""
        end = ""
        self._drained = False
        try:
            for n in range(GULP):
                data = link.receive()
                if data is None:
                    self._drained = n > 0
                    break
                if data == b"":
                    self.core.receive_eof()
                    end = "closed"
                    break
                self.core.receive_data(data, self.clock())
        except OSError:
            # What came before it counts; and the peer may have said why.
            if end := self._events(self.clock()):
                return end
            raise
        return self._events(self.clock()) or end

    def _send(self, link: Link, now: float) -> bool:
        """Fill the link; whether it would take more at once."""
        if self._full:
            try:
                self._full = not link.flush()
            except OSError:
                self._given(link)
                raise
            if link.lingers:
                self.core.sent(link.unsent)
        for _ in range(SPREE):
            if self._full:
                return False
            events, size = self.core.credit(now)
            events = self.flight.bound(events)
            if events > 0:
                batch = self.flight.pending()
                if batch is None and self._due(now):
                    self._waited = False
                    batch = self.flight.take(min(events, self.batch_events), min(size, self.batch_bytes))
            else:
                batch = None
                self._waited = True
            encoded = 0
            if batch is not None:
                idle = self.flight.inflight == 0
                encoded = self.core.encode(batch, events, now)
                lines = self.flight.encoded(batch)
                if idle:
                    self._last_progress = now
                if lines and self._ledger_fd >= 0:
                    self._write_ledger(lines)
            if encoded:
                self.windows += 1
                self._nap_end = now + self.nap
            if batch is not None and self._gathers(link):
                continue
            if not self._move(link) and batch is None:
                return False
        return not self._full

    def _report_due(self, now: float) -> bool:
        return self.flight.prompt or now - self._last_report >= REPORT_EVERY

    def _gathers(self, link: Link) -> bool:
        """Whether another window may go into the same ``send``."""
        if not link.bite:
            return False
        return sum(len(b) for wire in self.core.data_to_send() for b in wire.buffers) < link.bite

    def _move(self, link: Link) -> bool:
        """Give the link what the core has ready; whether there was anything."""
        wires = list(self.core.data_to_send())
        for place, wire in enumerate(wires, 1):
            self.bytes_sent += sum(len(b) for b in wire.buffers)
            try:
                self._full = not link.send(wire.buffers)
            except OSError:
                self._given(link, sum(len(b) for later in wires[place:] for b in later.buffers))
                raise
        if wires:
            self.core.sent(link.unsent if link.lingers else 0)
        return bool(wires)

    def _given(self, link: Link, kept: int = 0) -> None:
        """Book what a broken link has taken for good: that is not sent again. `kept`: bytes it never got."""
        if link.lingers:
            self.core.sent(link.unsent + kept)
            self._events(self.clock())

    def _due(self, now: float) -> bool:
        if self._waited or now >= self._nap_end or self.flight.awaited:
            return True
        events, size = self.flight.queued
        return events >= self.batch_events or size >= self.batch_bytes

    def _write_ledger(self, lines: bytes) -> None:
        view = memoryview(lines)
        try:
            while view:
                written = os.write(self._ledger_fd, view)
                self._ledger_bytes += written
                view = view[written:]
        except OSError as error:
            self._ledger_errno = error.errno or 0
            self._ledger_fd = -1

    def _events(self, now: float) -> str:
        """Take the core's events; the name of the end they mean, or empty."""
        end = ""
        for event in self.core.events_received():
            if isinstance(event, Outcome):
                reason = _REASON.get(event.reason, 0)
                self.flight.apply(event.ranges, STATUSES.index(event.status), reason)
            elif isinstance(event, Retry):
                self.flight.apply(event.ranges, PENDING)
            elif isinstance(event, Progress):
                self._last_progress = now
                self.progress += 1
            elif isinstance(event, Alive):
                pass
            elif isinstance(event, Fatal):
                self.fatal = event
                end = "protocol"
            elif isinstance(event, CloseWanted):
                end = end or "closed"
            else:
                self._inbox.append(event)
        return end

    def _rest(self, link: Link, now: float, until: float, timeout: float | None) -> None:
        limit = until
        if self.flight.reported:
            limit = min(limit, self._last_report + REPORT_EVERY)
        if timeout is not None:
            limit = min(limit, timeout)
        if self.flight.inflight:
            limit = min(limit, self._last_progress + self.no_progress)
        handoff = self.flight.handoff
        seconds = 0.0
        if self._full or self.flight.bound(self.core.credit(now)[0]) == 0:
            seconds = max(0.0, limit - now)  # only the peer can move us
        elif now < self._nap_end:
            handoff.doze(False)
            if not self.flight.awaited:
                seconds = max(0.0, min(limit, self._nap_end) - now)
        elif handoff.doze(True):
            seconds = max(0.0, limit - now)
        if self._drained and self.flight.inflight >= PLENTY and link.lull and link.flush():
            threads.sleep(min(seconds, link.lull))
        handoff.rest()
        try:
            link.wait(handoff.fileno(), seconds, self._full)
        finally:
            handoff.rested()
        if handoff.woken():
            self._nap_end = 0.0
        handoff.rouse()
