"""Putting events: the ways that an event takes when the queue does not take it at once.

``lc_put`` in ``_ext/queue`` is the usual way, without the code here: the compiled code of handlers and
clients calls it. It comes here only when the queue is full, not opened yet, or that of the parent of a fork,
or when no sender would notice the event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient import threads
from logclient._ext.constants import K_TOMB, PUT_FORKED, PUT_FULL, PUT_UNOPENED
from logclient._ext.record import failure_reason, level_index, record_level
from logclient.delivery import error_log, lifecycle
from logclient.delivery.contract import FOREVER
from logclient.delivery.outcomes import Delivery, Outcome
from logclient.standard import time

if TYPE_CHECKING:
    from logclient._ext.queue import Ticket
    from logclient.delivery.sender import Sender

INFO_LEVEL = level_index(20)


class Producer:
    """Puts events into the queue of a client. Handlers and makers of documents hold it, and never the client.

    Levels are as the queue keeps them, but for `ship`.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._queue = sender.queue
        self.log = sender.setup.log
        """The error log."""
        self._config = sender.setup.config
        self._blocks = self._config.policy == "block"

    @property
    def closed(self) -> bool:
        """Whether no more events are taken."""
        return self._sender.closed

    def put(self, body: bytes, level: int, kind: int) -> int:
        """Queue one encoded event; return its sequence, or 0 when it was dropped."""
        seq = self._queue.push(body, level, kind)
        if seq < 0:
            return self.put_slowly(seq, body, level, kind)
        if self._queue.needs_sender:
            self.ensure_sender()
        return seq

    def ship(self, body: bytes, level: int, kind: int) -> int:
        """Queue one encoded event with a level of ``logging``; return as ``put`` does."""
        return self.put(body, record_level(level), kind)

    def lost(self, error: BaseException | None = None, level: int = INFO_LEVEL) -> None:
        """Count an event that could not be made."""
        self.put(bytes([failure_reason(error)]), level, K_TOMB)

    def count_changed(self, sanitized: int, moved: int) -> None:
        """Count values that were changed to encode them, and fields that were moved for their name."""
        self._queue.count_changed(sanitized, moved)

    def report(self, kind: str, text: str) -> None:
        """Report an error of an event to `on_error`, and once a minute for each kind to the error log."""
        books = self._sender.engine.books
        if not books.submissions.callbacks.here:  # what `on_error` logs must not call it again, for ever
            books.watcher.failed(text)
        self.log.warn_limited(kind, text)

    def put_slowly(
        self,
        code: int,
        body: bytes,
        level: int,
        kind: int,
        delivery: Delivery | None = None,
        deadline: float | None = None,
    ) -> int:
        """Finish a put that the queue did not take at once, for the reason `code`; return as ``put`` does.

        A ``block`` gives up at the monotonic second `deadline`; None: as the options say.
        """
        sender = self._sender
        if code == PUT_FORKED:
            sender.notice_fork()
            code = self._push(body, level, kind, delivery)
        if code == PUT_UNOPENED:
            sender.engine.open_spool()
            code = self._push(body, level, kind, delivery)
        if code == PUT_FULL and self._blocks:
            self.ensure_sender()
            if deadline is None:
                deadline = self._block_until()
            code = self._push_in_turn(body, level, kind, delivery, deadline)
        if code in (PUT_FULL, PUT_UNOPENED):  # a signal handler logs while the spool is opened
            self._queue.refuse(body, kind)
        if self._queue.needs_sender:
            self.ensure_sender()
        return max(code, 0)

    def _push(
        self, body: bytes, level: int, kind: int, delivery: Delivery | None, ticket: Ticket | None = None
    ) -> int:
        return self._sender.engine.submissions.push(body, level, kind, delivery, ticket)

    def _push_in_turn(
        self, body: bytes, level: int, kind: int, delivery: Delivery | None, deadline: float
    ) -> int:
        """Wait for room until `deadline`, first come, first served; return what ``EventQueue.push`` does.

        A caller that must not wait goes first, if there is room.
        """
        sender, size = self._sender, len(body)
        ticket = self._queue.ticket(size)
        try:
            if lifecycle.must_not_block(sender.role.ident):
                return self._push(body, level, kind, delivery, ticket)
            while (left := deadline - time.monotonic()) > 0 and self._wait_room(ticket, size, left):
                code = self._push(body, level, kind, delivery, ticket)
                if code == PUT_FORKED:  # a signal handler has forked, from C
                    sender.notice_fork()
                elif code != PUT_FULL:
                    return code
            return PUT_FULL
        finally:
            ticket.leave()

    def _wait_room(self, ticket: Ticket, size: int, seconds: float) -> bool:
        """Wait until a push with this ticket finds room; return whether to try it."""
        sender = self._sender
        if sender.ending.inline:  # there is no other thread to make room
            return sender.waiter.drive(lambda: self._queue.fits(size), min(seconds, sender.ending.patience))
        return sender.waiter.until(
            ticket.is_ready, threads.unless_green(ticket.is_ready, ticket.wait), seconds
        )

    def _block_until(self) -> float:
        """Return when a ``block`` gives up that begins now: a monotonic second."""
        seconds = self._config.block_seconds
        return FOREVER if seconds is None else time.monotonic() + seconds

    def ensure_sender(self) -> None:
        """Have a sender; deliver in this call, while there is patience, if no thread can be one.

        Called after a put while ``EventQueue.needs_sender`` is true.
        """
        sender = self._sender
        sender.notice_fork()
        error_log.write_deferred()
        if sender.closed:
            if not sender.engine.books.report_refusal() and not sender.running and sender.ended:
                self._queue.needs_sender = False
        elif sender.ending.inline or (not sender.start() and sender.ending.threadless):
            sender.waiter.deliver_inline()

    # -- events that are followed ----------------------------------------------------------------------

    def submit(self, body: bytes, level: int, kind: int) -> Delivery:
        """Queue one event and follow it."""
        sender = self._sender
        sender.notice_fork()
        submissions = sender.engine.submissions
        delivery = Delivery(0, submissions.callbacks)
        seq, deadline = 0, None
        # A callback makes room by its end.
        crowded = submissions.is_crowded() and not submissions.callbacks.here
        if crowded and self._blocks:
            deadline = self._block_until()
            crowded = not self._wait_uncrowded(deadline)
        if crowded:
            self._queue.refuse(body, kind)
        else:
            seq = submissions.push(body, level, kind, delivery)
            if seq < 0:
                seq = self.put_slowly(seq, body, level, kind, delivery, deadline)
            elif self._queue.needs_sender:
                self.ensure_sender()
        if not seq:
            full = "overflow" if sender.engine.spool is None else "spool_full"
            delivery._settle(Outcome("dropped", "closed" if sender.closed else full))
        return delivery

    def refuse(self, reason: str) -> Delivery:
        """Return the delivery of an event that was dropped before it was queued."""
        delivery = Delivery(0, self._sender.engine.submissions.callbacks)
        delivery._settle(Outcome("dropped", reason))
        return delivery

    def _wait_uncrowded(self, deadline: float) -> bool:
        """Wait until one more event may be submitted; return whether it may."""
        sender, submissions = self._sender, self._sender.engine.submissions
        if lifecycle.must_not_block(sender.role.ident):
            return False

        def done() -> bool:
            return sender.closed or not submissions.is_crowded()

        left = deadline - time.monotonic()
        if sender.ending.inline:  # there may be no other thread to run them
            submissions.callbacks.wait_for_all(time.monotonic() + min(left, sender.ending.patience))
            return done()
        return sender.waiter.until(done, lambda seconds: threads.wait_until(done, seconds), left)
