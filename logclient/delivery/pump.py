"""The pump in Python: the same operations and results as the compiled ones (``_ext/pump/base.pyx``).

It drives any core over any link: the cores of the tests, and all where there is no compiled pump. It takes
the GIL for every batch, which busy threads can make slow.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient._ext.inflight import InflightBatches
from logclient.delivery.contract import (
    Alive,
    CloseWanted,
    Core,
    CoreEvent,
    Fatal,
    Link,
    Progress,
    Pump,
    PumpLimits,
    Retry,
    Settled,
    Transport,
)
from logclient.errors import ConfigError, CredentialError

if TYPE_CHECKING:
    from logclient.config import Config

REPORT_EVERY = 0.1
"""Seconds between two reports to the engine."""

MAX_SENDS_PER_TURN = 64
"""Batches sent between two checks of acknowledgements, stop and clock."""

MAX_READS_PER_TURN = 64
"""Pieces received between two such checks."""

ACK_COALESCE_MIN_INFLIGHT = 64
"""From this many events in flight on, reads are delayed briefly, so that several answers need one wake-up."""


def make_pump(transport: Transport, in_flight: InflightBatches, core: Core, limits: Config) -> Pump:
    """Make the transport's compiled pump where it has one for this core, else the one in Python."""
    batch_events, batch_bytes = limits.batch_limits
    sizes: PumpLimits = {
        "batch_events": batch_events,
        "batch_bytes": batch_bytes,
        "linger": limits.linger,
        "progress_timeout": limits.progress_timeout,
    }
    pump = transport.pump(in_flight, core, **sizes)
    if pump is not None:
        return pump
    if core.codec is None:
        why = "the protocol's core has no compiled half"
    else:
        why = transport.why_python() or "the transport has none for this core"
    return PythonPump(in_flight, core, why=why, **sizes)


class OnePump:
    """A group with room for one pump, of any kind."""

    def __init__(self) -> None:
        self._pump: Any = None
        self._stopping = False

    def add(self, pump: Pump) -> None:
        """Add a pump."""
        if self._pump is not None:
            raise ConfigError("balance: needs a compiled pump")
        self._pump = pump

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pump, name)

    def run(self, links: list[Link | None], until: float) -> list[str]:
        """Move bytes."""
        return [self._pump.run(links[0], until)]

    def poke(self) -> None:
        """Make ``run`` return soon, once."""
        self._pump.poke()


def make_group(several: bool) -> Any:
    """Make a group for several pumps, or one."""
    if several:
        from logclient._ext.pump.group import PumpGroup

        return PumpGroup()
    return OnePump()


def describe_pump(pump: Pump) -> str:
    """Return ``compiled``, or ``python`` and the reason."""
    return f"python: {pump.why}" if isinstance(pump, PythonPump) else "compiled"


class PythonPump:
    """A pump for any core and any link; see ``delivery.contract.Pump`` and its `PumpLimits`.

    Args:
        clock: monotonic seconds.
        why: the reason for this pump.
    """

    def __init__(
        self,
        in_flight: InflightBatches,
        core: Core,
        *,
        batch_events: int = 2048,
        batch_bytes: int = 1 << 20,
        linger: float = 0.005,
        progress_timeout: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        why: str = "",
    ) -> None:
        self.in_flight = in_flight
        self.core = core
        self.batch_events = batch_events
        self.batch_bytes = batch_bytes
        self.linger = linger
        self.progress_timeout = progress_timeout
        self.clock = clock
        self.why = why
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
        self._linger_end = 0.0
        self._waited = False  # the peer's answers were waited for, which ends a linger
        self._drained = False  # something was received, and nothing is left
        self._last_report = -math.inf  # the first is due at once
        self._last_progress = 0.0
        self._ledger_fd = -1
        self._ledger_errno = 0
        self._ledger_bytes = 0

    def connected(self) -> None:
        """Begin a new connection."""
        self._full = False
        self._linger_end = 0.0
        self._waited = self._drained = False
        self._last_progress = self.clock()
        self.fatal = None

    def stop(self) -> None:
        """Make ``run`` return soon, and at once when called again, until ``resume``."""
        self._stopping = True

    def resume(self) -> None:
        """Undo ``stop``."""
        self._stopping = False

    def poke(self) -> None:
        """Make ``run`` return soon, once."""
        self._poked = True

    def send_ready(self) -> None:
        """Do nothing: the next ``run`` sends the core's messages anyway."""

    def drain_events(self) -> list[CoreEvent]:
        """Return what was received besides outcomes: replies, and unsolicited messages of the peer."""
        events = list(self._inbox)
        del self._inbox[: len(events)]
        return events

    def set_ledger(self, fd: int) -> None:
        """Write ``batch`` lines to this descriptor; -1: write none."""
        self._ledger_fd = fd
        self._ledger_errno = 0

    def take_ledger(self) -> tuple[int, int]:
        """Return (bytes written since the last call, errno of the write that failed or 0)."""
        answer = self._ledger_bytes, self._ledger_errno
        self._ledger_bytes = 0
        return answer

    def run(self, link: Link, until: float) -> str:
        """Move bytes until there is something to report; return the reason, see ``Pump.run``."""
        queue = self.in_flight.queue
        try:
            while True:
                now = self.clock()
                more = self._send(link, now)
                end = self._events(now)
                reached = self.in_flight.commit()
                if end:
                    return end
                if reached or self.in_flight.drained:
                    return "target"
                if self._stopping:
                    return "stopped"
                if now >= until:
                    return "until"
                if self._poked or self._inbox or (self.in_flight.has_report and self._report_due(now)):
                    self._poked = False
                    self._last_report = now
                    return "report"
                if self.in_flight.inflight and now - self._last_progress >= self.progress_timeout:
                    return "stalled"
                timeout = self.core.next_timeout(now)
                if timeout is not None and now >= timeout:
                    self.core.handle_timeout(now)
                    end = self._events(now)
                    if end:
                        self.in_flight.commit()
                        silent = self.fatal is not None and isinstance(self.fatal.error, TimeoutError)
                        return "silence" if end == "protocol" and silent else end
                    continue
                self._rest(link, now, 0.0 if more else until, timeout)
                end = self._read(link)
                if end:
                    self.in_flight.commit()
                    return end
        except CredentialError as error:
            self.fatal = Fatal(error)
            self.in_flight.commit()
            return "protocol"
        except OSError as error:
            self.errno = error.errno or 0
            self.failure = error
            self.in_flight.commit()
            return "error"
        except MemoryError:
            self.in_flight.commit()
            return "memory"
        finally:
            queue.finish_wait()

    def _read(self, link: Link) -> str:
        """Receive waiting bytes and take the core's events; return the end that follows, or empty."""
        end = ""
        self._drained = False
        try:
            for n in range(MAX_READS_PER_TURN):
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
            # Data before the error counts; and the peer may have sent the reason.
            if end := self._events(self.clock()):
                return end
            raise
        return self._events(self.clock()) or end

    def _send(self, link: Link, now: float) -> bool:
        """Fill the link; return whether it would take more at once."""
        if self._full:
            try:
                self._full = not link.flush()
            except OSError:
                self._settle_taken(link)
                raise
            if link.drains_on_close:
                self.core.sent(link.unsent)
        for _ in range(MAX_SENDS_PER_TURN):
            if self._full:
                return False
            events, size = self.core.credit(now)
            events = self.in_flight.limit_credit(events)
            if events > 0:
                batch = self.in_flight.pending()
                if batch is None and self._due(now):
                    self._waited = False
                    batch = self.in_flight.take(min(events, self.batch_events), min(size, self.batch_bytes))
            else:
                batch = None
                self._waited = True
            encoded = 0
            if batch is not None:
                idle = self.in_flight.inflight == 0
                encoded = self.core.encode(batch, events, now)
                lines = self.in_flight.encoded(batch)
                if idle:
                    self._last_progress = now
                if lines and self._ledger_fd >= 0:
                    self._write_ledger(lines)
            if encoded:
                self.windows += 1
                self._linger_end = now + self.linger
            if batch is not None and self._gathers(link):
                continue
            if not self._move(link) and batch is None:
                return False
        return not self._full

    def _report_due(self, now: float) -> bool:
        return self.in_flight.prompt or now - self._last_report >= REPORT_EVERY

    def _gathers(self, link: Link) -> bool:
        """Return whether another window may go into the same ``send``."""
        if not link.coalesce_bytes:
            return False
        return sum(len(b) for wire in self.core.data_to_send() for b in wire.buffers) < link.coalesce_bytes

    def _move(self, link: Link) -> bool:
        """Pass the core's bytes to the link; return whether there were any."""
        wires = list(self.core.data_to_send())
        for place, wire in enumerate(wires, 1):
            self.bytes_sent += sum(len(b) for b in wire.buffers)
            try:
                self._full = not link.send(wire.buffers)
            except OSError:
                self._settle_taken(link, sum(len(b) for later in wires[place:] for b in later.buffers))
                raise
        if wires:
            self.core.sent(link.unsent if link.drains_on_close else 0)
        return bool(wires)

    def _settle_taken(self, link: Link, kept: int = 0) -> None:
        """Settle the events that a broken link without acknowledgements took: they are not sent again.

        Args:
            link: it broke.
            kept: bytes that it was never given.
        """
        if link.drains_on_close:
            self.core.sent(link.unsent + kept)
            self._events(self.clock())

    def _due(self, now: float) -> bool:
        if self._waited or now >= self._linger_end or self.in_flight.flush_wanted:
            return True
        events, size = self.in_flight.queued
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
        """Take the core's events; return the end that they mean, or an empty string."""
        end = ""
        for event in self.core.events_received():
            if isinstance(event, (Settled, Retry)):
                event.apply(self.in_flight)
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
        if self.in_flight.has_report:
            limit = min(limit, self._last_report + REPORT_EVERY)
        if timeout is not None:
            limit = min(limit, timeout)
        if self.in_flight.inflight:
            limit = min(limit, self._last_progress + self.progress_timeout)
        queue = self.in_flight.queue
        seconds = 0.0
        if self._full or self.in_flight.limit_credit(self.core.credit(now)[0]) == 0:
            seconds = max(0.0, limit - now)  # only the peer can end this wait
        elif now < self._linger_end:
            queue.prepare_wait(False)
            if not self.in_flight.flush_wanted:
                seconds = max(0.0, min(limit, self._linger_end) - now)
        elif queue.prepare_wait(True):
            seconds = max(0.0, limit - now)
        many = self.in_flight.inflight >= ACK_COALESCE_MIN_INFLIGHT
        if self._drained and many and link.ack_coalesce_delay and link.flush():
            threads.sleep(min(seconds, link.ack_coalesce_delay))
        queue.enter_fork_safe()
        try:
            link.wait(queue.fileno(), seconds, self._full)
        finally:
            queue.leave_fork_safe()
        if queue.was_woken():
            self._linger_end = 0.0
        queue.finish_wait()
