"""Submitted events: their deliveries, callers that wait for outcomes, and callbacks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from logclient import threads
from logclient.delivery.contract import LONGEST
from logclient.delivery.outcomes import CallbackThread, Delivery, Outcome

if TYPE_CHECKING:
    from logclient._ext.queue import EventQueue, Ticket
    from logclient.delivery.error_log import ErrorLog

MAX_UNREPORTED_DELIVERIES = 100_000
"""Submitted events, in addition to `max_events`, whose outcome or callback is still due."""


class Submissions:
    """The submitted events of one client.

    Args:
        has_log: whether the spool has a log, so that callers can wait for the disk.
    """

    def __init__(self, queue: EventQueue, max_events: int, log: ErrorLog, has_log: bool = False) -> None:
        self._queue = queue
        self.has_log = has_log
        self._most = max_events + MAX_UNREPORTED_DELIVERIES
        # Weak references: an engine without references is freed at once, also at exit.
        self.callbacks = CallbackThread(
            log.complain,
            weakref.WeakMethod(self.request_flush),
            weakref.WeakMethod(self.is_crowded),
            weakref.WeakMethod(self.wait_stored),
        )

    def begin(self, poke: Callable[[], object]) -> None:
        """Start empty: in a new client, and in the child of a fork. ``poke()`` makes the pump return soon."""
        self.deliveries: dict[int, Delivery] = {}
        self._watched: dict[object, tuple[int, Callable[[], object]]] = {}
        self._flush_target = 0
        self._poke = poke
        # Re-entrant: a signal handler may submit while this thread does.
        self._lock = threads.RLock()

    def is_crowded(self) -> bool:
        """Return whether too many submitted events have no outcome, or callbacks that are due."""
        return len(self.deliveries) + self.callbacks.waiting >= self._most

    def push(
        self, body: bytes, level: int, kind: int, delivery: Delivery | None, ticket: Ticket | None = None
    ) -> int:
        """Queue an event, followed by `delivery` if there is one; return what ``EventQueue.push`` does."""
        if delivery is None:
            return self._queue.push(body, level, kind, 0, ticket)
        # The sender looks for the delivery under this lock: never before it is there.
        with self._lock:
            seq = self._queue.push(body, level, kind, 0, ticket)
            if seq > 0:
                delivery.seq = seq
                self.deliveries[seq] = delivery
        return seq

    def request_flush(self, seq: int) -> None:
        """Report the outcome of this event as soon as it is there: a caller waits for it."""
        if self._queue.forked:  # the parent's
            return
        self._flush_target = max(self._flush_target, seq)
        self._queue.set_flush_target(seq)
        if self._queue.settled >= seq:
            self._poke()  # it is there, and was not reported yet
        self._queue.wake()

    def wait_stored(self, seq: int, timeout: float | None) -> bool:
        """Wait until the disk has every event up to this one; see ``Delivery.stored``."""
        if self._queue.forked:
            return False
        if not self.has_log:
            raise ValueError("stored: needs spool_sync=interval or batch")
        if threads.is_green():
            return bool(threads.wait_until(lambda: self._queue.wait_stored(seq, 0.0), timeout))
        return self._queue.wait_stored(seq, LONGEST if timeout is None else timeout)

    def restore_flush_target(self) -> None:
        """Set the target of `request_flush` again: the queue has one at a time."""
        if self._flush_target > self._queue.settled:
            self._queue.set_flush_target(self._flush_target)

    def settle(self, outcomes: list[tuple[int, int, str, str]]) -> None:
        """Settle deliveries: each outcome is (first sequence, last sequence, status, reason)."""
        done: list[tuple[int, Outcome]] = []
        with self._lock:
            for first, last, status, reason in outcomes:
                if last - first < len(self.deliveries):
                    found = [seq for seq in range(first, last + 1) if seq in self.deliveries]
                else:
                    found = [seq for seq in self.deliveries if first <= seq <= last]
                outcome = Outcome(status, reason)
                done.extend((seq, outcome) for seq in found)
        self._settle(done)

    def settle_rest(self, outcome: Outcome) -> None:
        """Settle all remaining deliveries."""
        with self._lock:
            rest = list(self.deliveries)
        self._settle([(seq, outcome) for seq in rest])

    def _settle(self, done: list[tuple[int, Outcome]]) -> None:
        if not done:
            return
        deliveries = self.deliveries  # a child has others: a signal handler may fork meanwhile
        for seq, outcome in done:
            deliveries[seq]._settle(outcome)
        # Removed afterwards: in the child of a fork in between, the remaining deliveries fail.
        with self._lock:
            for seq, _ in done:
                del deliveries[seq]

    def explain(self, seq: int, details: Mapping[str, Any]) -> None:
        """Add details to the outcome of an event that is not settled yet. Called by the sender."""
        with self._lock:
            delivery = self.deliveries.get(seq)
        if delivery is not None:
            delivery._explain(details)

    def watch(self, target: int, callback: Callable[[], object]) -> object:
        """Call ``callback()`` once every event up to `target` has its outcome: by the sender, or at once.

        It must be quick, and not raise.

        Returns:
            The key for ``unwatch``.
        """
        key = object()
        with self._lock:
            self._watched[key] = (target, callback)
        self._queue.set_flush_target(target)
        self._queue.wake()
        self.notify_watchers()
        return key

    def unwatch(self, key: object) -> None:
        """Cancel a ``watch``."""
        with self._lock:
            self._watched.pop(key, None)

    def notify_watchers(self) -> None:
        """Call the callbacks of ``watch`` that are due."""
        if not self._watched:
            return
        settled = self._queue.settled
        with self._lock:
            due = [key for key, (target, _) in self._watched.items() if target <= settled]
            found = [self._watched.pop(key)[1] for key in due]
            if self._watched:
                self._queue.set_flush_target(min(target for target, _ in self._watched.values()))
        for callback in found:
            callback()
