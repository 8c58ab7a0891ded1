"""The books of one client: the ledger, deliveries, requests, its errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient.delivery import error_log, lifecycle
from logclient.delivery.backoff import Backoff
from logclient.delivery.contract import Core, CoreEvent, Reply
from logclient.delivery.fallback import Fallback
from logclient.delivery.outcomes import Submissions
from logclient.delivery.watching import Settlement, Watcher
from logclient.errors import ConnectFailed, describe_error
from logclient.files.ledger import History, Ledger, Ranges, merged
from logclient.standard import time

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient._ext.pump import PumpGroup
    from logclient.delivery.outcomes import CallbackThread
    from logclient.delivery.setup import Setup


REPORT_EVERY, TURN, IDLE = 0.1, 1.0, 60.0
"""Seconds between two reports of the loop, looks at events that wait, and wake-ups without anything to do."""

NO_ROOM = {"overflow": "queue", "spool_full": "spool"}
"""What was full, by the reason of a drop."""


class Books:
    """The books of one client. Who has the role of the sender writes in them; callers submit and request.

    Attributes:
        watcher: tells the application of outcomes and errors.
        producer: 20 hexadecimal digits.
        not_before: when to try again to open the ledger, a monotonic second.
        history: what happened to a producer's events before this process took them over.
        core: of the protocol; set before the first event.
    """

    def __init__(
        self,
        setup: Setup,
        in_flight: InflightBatches,
        pump: PumpGroup,
        callbacks: CallbackThread,
        producer: str,
        ledger: Ledger | None,
    ) -> None:
        config = self._config = setup.config
        self.diagnostics = error_log.Diagnostics(config.redacted, setup.log, in_flight.queue)
        has_log = config.spool is not None and config.spool_sync != "none"
        self.submissions = Submissions(in_flight.queue, config.max_events, callbacks, pump.poke, has_log)
        self.requests = Requests(lambda event: setup.on_message(event))
        self.watcher = Watcher(config, callbacks)
        self.diagnostics.on_error = self.watcher.failed
        self.core: Core
        self._fallback = None if config.fallback is None else Fallback(config.fallback)
        self.keeps_lost = self._fallback is not None or config.on_drop is not None
        self.producer = producer
        self.ledger = ledger
        self.history: History | None = None
        self.not_before = 0.0
        self._in_flight = in_flight
        self._pump = pump
        self._backoff = Backoff(config.backoff_min, config.backoff_max)
        # By status and reason: outcomes that wait for the ledger. Nothing is sent meanwhile, so they are of
        # events that were dropped or given up, in no more ranges than the queue has events.
        self._unlisted: dict[tuple[str, str], Ranges] = {}
        self._saves_later = False
        self._refusal_reported = False
        self._dropped = 0
        self._look_at = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the sender, whatever it waits for, looks for drops and at the clocks."""
        if self.submissions.deliveries:
            return REPORT_EVERY
        events, size = self._in_flight.queue.queued
        looks = 2 * events > self._config.max_events or 2 * size > self._config.max_bytes
        looks = looks or bool(events and (self.keeps_lost or self.core.dates_events))
        return TURN if looks or self.submissions.callbacks.waiting else IDLE

    @property
    def hint(self) -> str:
        """What a report of lost events ends with."""
        return "" if self.keeps_lost else "; fallback=FILE, or stderr, would keep them"

    def open(self) -> bool:
        """Open the ledger unless it is open or has stopped; return False if there is no descriptor for it.

        Then nothing may be sent: an event that arrives unlisted looks like one that was never sent.
        """
        ledger = self.ledger
        if ledger is None or ledger.fd >= 0 or ledger.stopped:
            return True
        try:
            self._in_flight.set_ledger(ledger.open())
        except OSError as error:
            words = f"nothing is sent, the ledger cannot be opened: {describe_error(error)}"
            self.not_before = time.monotonic() + self._backoff.delay()
            self.diagnostics.report("ledger", words)
            return False
        self._backoff.reset()
        if ledger.stopped:
            self._warn(ledger)
        else:
            self._list_outcomes(ledger)
        return True

    def _warn(self, ledger: Ledger) -> None:
        self.diagnostics.report("ledger", f"the ledger stopped, delivery goes on: {ledger.stopped}")

    def record(self) -> None:
        """Record everything since the last call."""
        self._take_written()
        for pump in self._pump.pumps:
            for event in pump.drain_events():
                self.requests.received(event)
        self._record_outcomes()
        self.report_dropped()
        self.save_lost()
        self.submissions.notify_watchers()

    def _record_outcomes(self) -> None:
        outcomes = self._in_flight.take_report()
        if not outcomes:
            return
        self.submissions.restore_flush_target()
        ledger = self.ledger
        if ledger is not None and not ledger.stopped:
            for first, last, status, reason in outcomes:
                self._unlisted.setdefault((status, reason), []).append((first, last))
            if self.open():
                self._list_outcomes(ledger)
                self._in_flight.recorded()
            else:
                self._unlisted = {kind: merged(seqs) for kind, seqs in self._unlisted.items()}
        else:
            self._in_flight.recorded()
        self.submissions.settle(outcomes)
        self.watcher.settled(Settlement(self.producer, *one) for one in outcomes)

    def report_dropped(self, at_end: bool = False) -> None:
        """Report how many events found no room, from time to time and at the end."""
        now, log = time.monotonic(), self.diagnostics.log
        if now < self._look_at and not at_end:
            return
        counts = self._in_flight.queue.counters()["dropped"]
        full = [reason for reason in NO_ROOM if counts.get(reason)]
        dropped = sum(counts[reason] for reason in full)
        if dropped == self._dropped:
            self._look_at = now + 1.0
            return
        self._look_at = now + log.every
        when = "in all" if at_end else "so far"
        what = error_log.counted(dropped, "event")
        places = " and the ".join(NO_ROOM[reason] for reason in full)
        text = f"{self.diagnostics.url}: {what} dropped {when}: no room in the {places}{self.hint}"
        if at_end:
            lifecycle.report_given_up(log, dropped - self._dropped, text, "dropped")
            self._dropped = dropped
        elif log.warn_limited("dropped so far", text):
            self._dropped = dropped

    def save_lost(self) -> None:
        """Hand lost events to the fallback and to `on_drop`; not in a log call, because it writes."""
        self._saves_later = False
        if not self.keeps_lost:
            return
        try:
            lost, bare, omitted = self._in_flight.queue.take_lost()
            own, event_of = self.producer, self.core.event_of
            found = [
                Settlement(own, seq, seq, status, reason, event_of(body, kind) if body else None)
                for seq, status, reason, kind, body in lost
            ]
            found += [Settlement(own, *one) for one in bare]
            self.watcher.lost(found)
            if self._fallback is not None and (found or omitted):
                self._fallback.write(found, omitted)
        except (OSError, MemoryError) as error:
            target = self._fallback.target if self._fallback is not None else "on_drop"
            words = f"fallback: {target}: {describe_error(error)}; not all lost events were written"
            self.diagnostics.report("fallback", words)

    def report_refusal(self) -> bool:
        """Report once that events are dropped because they come after ``close``.

        Returns:
            Whether lost events are kept: the thread of callbacks will save them, as the client has ended.
        """
        if self.keeps_lost and not self._saves_later:
            self._saves_later = True
            self.submissions.callbacks.queue(self.save_lost)
        dropped = self._in_flight.queue.counters()["dropped"]
        if not self._refusal_reported and dropped.get("closed"):
            self._refusal_reported = True
            words = "closed, so later events are dropped (stats count them as refused)"
            self.diagnostics.report("refused", words)
        return self.keeps_lost

    def _list_outcomes(self, ledger: Ledger) -> None:
        """Write the lines of the outcomes that are not listed yet."""
        lines, self._unlisted = self._unlisted, {}
        ledger.write_outcomes(lines)
        if lines and ledger.stopped:
            self._in_flight.set_ledger(-1)
            self._warn(ledger)

    def take_over(self, lines: dict[tuple[str, str], Ranges], history: History) -> None:
        """Go on with a producer whose process has ended: `lines` are the outcomes that its ledger has not."""
        self.history = history
        if self.ledger is not None:
            self._unlisted = {kind: list(seqs) for kind, seqs in lines.items()}
        if self.open() and not self._unlisted:
            self._in_flight.recorded()

    def deferred(self, ranges: Ranges) -> None:
        """List events, as (first, last), that others overtake from now on."""
        if self.ledger is not None and not self.ledger.stopped:
            self.ledger.write("deferred", seqs=merged(ranges))

    def say_alive(self, until: float) -> float:
        """Have the ledger say that the process goes on if it is silent; return when to ask again."""
        if self.ledger is None:
            return until
        queue = self._in_flight.queue
        return self.ledger.say_alive(until, queue.next_seq - 1 - queue.settled)

    def _take_written(self) -> None:
        """Count the bytes that pumps wrote to the ledger."""
        ledger = self.ledger
        if ledger is None or ledger.fd < 0:
            return
        size, error = self._in_flight.take_ledger()
        if not ledger.is_ours:
            words = "the program closed the ledger's descriptor: a new part is begun"
            self.diagnostics.report("ledger part", words)
        ledger.wrote(size, error)
        self._in_flight.set_ledger(ledger.fd)
        if ledger.stopped:
            self._warn(ledger)

    def write_totals(self) -> None:
        """Write the ``close`` line; a process that still logs while it exits writes another.

        Its totals are of the sequences that have their outcome. An event that a caller has just put while the
        process exits is delivered, listed and totalled in its own call, if the process lives so long.
        """
        self._take_written()
        ledger = self.ledger
        if self._unlisted:
            self.open()
        if ledger is None or ledger.fd < 0:
            return
        counts = self._in_flight.queue.counters()
        if self._in_flight.listed > counts["settled"]:
            return  # it was sent, perhaps over a connection that broke, and its caller is not done
        if counts["stored"]:
            return  # another client goes on
        if self.history is not None:
            if not self.history.complete:
                return
            counts = self.history.add_to(counts)
        ledger.write_close(counts["settled"], counts)

    def close(self) -> None:
        self.report_dropped(at_end=True)
        self.write_totals()
        if self.ledger is not None:
            self._in_flight.set_ledger(-1)
            self.ledger.close()


class Request:
    """One request: see ``Core.call``. The sender calls `when_done` after the answer, which took `seconds`."""

    def __init__(self, kind: str, payload: Any, when_done: Callable[[], object] = lambda: None) -> None:
        self.kind = kind
        self.payload = payload
        self.reply: Any = None
        self.error: Exception | None = None
        self.seconds = 0.0
        self.done = False
        self._when_done = when_done
        self.started = 0.0
        self.answered = threads.Event()

    def settle(self, reply: Any = None, error: Exception | None = None) -> None:
        """Settle it; later calls have no effect."""
        if not self.done:
            self.reply, self.error = reply, error
            self.seconds = time.monotonic() - self.started
            self.done = True
            self.answered.set()
            self._when_done()


class Requests:
    """The requests of one client, and unsolicited messages of the server.

    Any thread makes them; the sender starts them, and settles them with the answer (``Core.call``, `Reply`).
    Requests under way end with their connection; those not yet started wait for the next one. The sender
    calls `on_message` with events that answer no request.
    """

    def __init__(self, on_message: Callable[[CoreEvent], object]) -> None:
        self._on_message = on_message
        self._waiting: deque[Request] = deque()
        self._started: dict[int, Request] = {}

    @property
    def waiting(self) -> bool:
        while self._waiting and self._waiting[0].done:  # its caller waits no longer
            self._waiting.popleft()
        return bool(self._waiting)

    def add(self, kind: str, payload: Any, when_done: Callable[[], object]) -> Request:
        request = Request(kind, payload, when_done)
        self._waiting.append(request)
        return request

    def start(self, core: Core) -> None:
        while self.waiting:
            request = self._waiting.popleft()
            request.started = time.monotonic()
            try:
                self._started[core.call(request.kind, request.payload)] = request
            except ValueError as error:
                request.settle(error=error)

    def received(self, event: CoreEvent) -> None:
        request = self._started.pop(event.token, None) if isinstance(event, Reply) else None
        if request is not None and isinstance(event, Reply):
            request.settle(event.payload)
        else:
            self._on_message(event)

    def connection_lost(self) -> None:
        started, self._started = self._started, {}
        for request in started.values():
            request.settle(error=ConnectFailed("the connection ended before the answer"))
