"""The life of a client's delivery: close, exit, fork, and the client object going away.

A sender *leaves* when every event has its outcome, or at a deadline; events without an outcome then fail with
the reason ``closed``. At interpreter exit it leaves its role to the callers: they deliver later events in
the calls that log them. ``lifecycle`` calls this around forks and at exit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from logclient import threads
from logclient._ext.constants import R_CLOSED
from logclient._ext.record import mark_sender_thread
from logclient.delivery import error_log, lifecycle
from logclient.delivery.contract import FOREVER, LONGEST
from logclient.delivery.outcomes import Outcome
from logclient.delivery.pump import REPORT_EVERY
from logclient.delivery.sender import SLICE, Sender, held

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient.delivery.bookkeeping import Bookkeeper
    from logclient.delivery.connections import Connections
    from logclient.delivery.contract import Link, Transport
    from logclient.delivery.endpoints import Endpoints
    from logclient.delivery.error_log import ErrorLog
    from logclient.delivery.requests import Requests
    from logclient.delivery.spool.adoption import Adoption
    from logclient.delivery.spool.owner import Spool
    from logclient.delivery.trials import Trials

TURN = 1.0
"""Seconds after which a pump comes back even when nothing happened."""

GRACE = 0.1
"""Seconds that callbacks have to run in when `close` has used up its time."""

ORPHAN_TIMEOUT = 50.0
"""Seconds in which a client without references, or with a closed handler, delivers its events."""

OVERTIME = 1.0
"""Seconds for a sender to end beyond the deadline that it was given."""


class Lifetime(Sender):
    """Begins and ends delivery. A base class of `Engine`.

    Attributes:
        closed: no more events are taken.
        keeps_connected: connect even if there is nothing to send.
        at_exit: the end of the process has begun.
        given_up: events that were not delivered in time.
        on_end: called when the client has ended, before its last callbacks have run.
    """

    url: str
    in_flight: InflightBatches
    link: Link | None
    requests: Requests
    error_log: ErrorLog
    endpoints: Endpoints
    books: Bookkeeper
    trials: Trials
    closed: bool
    keeps_connected: bool
    spool: Spool | Adoption | None
    on_end: Callable[[], object]
    _transport: Transport

    def _begin(self) -> None:
        super()._begin()
        self._ended = False  # closed, and every event has its outcome
        self._orphaned = False
        self._leave_by = FOREVER  # when the sender stops trying, and ends
        self._most_linger = LONGEST  # seconds for what the transport holds at the end
        self._leave_at = 0  # the sequence with whose outcome it may end before that; 0: the last
        self._part_at = FOREVER  # when it leaves the remaining events to callers
        self._parting = False  # it will, at exit
        self.at_exit = False
        self.given_up = 0
        self._bypassed = False  # the end of the process gave up its events while it looked a name up

    def _run(self) -> None:
        lifecycle.start_next()
        with self._role:
            self.sender_ident = threads.get_ident()
            mark_sender_thread(True)
            leaves = False
            try:
                while not self._stopping and not self._ended and (self._parting or not self.exiting):
                    leaves = self._may_leave()
                    if leaves:
                        break
                    pause = REPORT_EVERY if self.submissions.deliveries else TURN
                    self.turn(min(time.monotonic() + pause, self._part_at, self._leave_by))
            except BaseException as error:
                # A bug of ours must not end in silence; the next event starts a new sender.
                self.diagnostics.complain(f"the sender stopped: {type(error).__name__}: {error}", "sender")
                leaves = self._leave_by < FOREVER
                raise
            finally:
                try:
                    if leaves:
                        self._leave()
                finally:
                    self.sender_ident = 0
                    self._running = False
                    self.queue.needs_sender = True
                    self._thread_ended.set()
        # The stop may have been requested for a fork that is over already.
        if not self._stopping and self._has_work:
            self._start(wait=True)

    @property
    def _stopped(self) -> bool:
        """Whether the sender must not begin anything that takes long."""
        return self._stopping or time.monotonic() >= min(self._leave_by, self._drive_by)

    @property
    def _has_work(self) -> bool:
        if self._ended or self.exiting:
            return False
        return not self.settled_all or self._leave_by < FOREVER or (self.keeps_connected and not self.closed)

    @property
    def lanes(self) -> Sequence[Connections]:
        """What has connections, of which each has one at a time."""
        raise NotImplementedError

    # -- close -------------------------------------------------------------------------------------

    def close(self, timeout: float) -> int:
        """Take no more events, deliver the queued ones, and end; return how many events were given up.

        A call that was interrupted may be made again: it goes on. Until then the sender goes on by
        itself, and the end of the process waits for it.

        While the interpreter exits, only the queued events are delivered: more may come from
        later exit handlers, and are delivered in their call.
        """
        if self.queue.forked:
            self.after_fork()
        timeout = max(0.0, min(timeout, LONGEST))
        if self.exiting and not self.closed:
            left = self.flush(min(timeout, self._patience))
            with held(self._role, SLICE) as has_role:
                if has_role:
                    self.books.write_totals()
            return left
        if not self._ended:
            self.retire(timeout)
            if not lifecycle.cannot_wait(self.sender_ident):
                self.wait_left(self._leave_by, OVERTIME)
                self.drain_callbacks(max(self._leave_by, time.monotonic() + GRACE), "when close() ended")
        return self.remaining

    @property
    def remaining(self) -> int:
        """The number of events that were given up, or have no outcome yet."""
        counts = self.queue.counters()
        # A sender that is stuck in a name look-up ends when it comes back.
        return int(self.given_up + counts["queued"] + counts["inflight"])

    def begin_close(self, timeout: float) -> bool:
        """Begin to close, without waiting; return whether there is something to wait for."""
        if self.queue.forked:
            self.after_fork()
        if not self._ended:
            self.retire(max(0.0, min(timeout, LONGEST)))
        return not self._ended

    def end_idle(self) -> None:
        """Finish ``begin_close`` where there is no sender: all is settled, or the time is over."""
        if not self._running:
            self.wait_left(time.monotonic(), 0.0)

    def retire(self, seconds: float) -> None:
        """Take no more events; have the sender deliver the queued ones, for `seconds` at most, and end."""
        self.closed = True
        self.queue.close()
        self._leave_until(time.monotonic() + seconds)

    def retire_in_background(self, patience: float) -> None:
        """Retire for a caller that may not wait for a server.

        Args:
            patience: seconds to wait at most, for a sender that ends by itself within them; 0 in finalizers,
                which run in any thread.
        """
        if self.queue.forked:
            self.after_fork()
        if self.exiting or self._ended:
            return
        self.retire(ORPHAN_TIMEOUT)
        if self.inline:
            if patience:
                self.wait_left(time.monotonic() + patience, 0.0)
            return
        if not self._running and self.spool is not None:
            self._start()  # nothing is queued, but files have to go
        if patience and self.may_be_reachable:
            self._join(patience)

    def orphan(self) -> None:
        """Deliver the queued events within `ORPHAN_TIMEOUT` seconds, then end: the client is unreferenced."""
        self._orphaned = True
        if self._ended or self.exiting:
            return
        has_files = self.spool is not None and not self.inline
        if self._running or has_files or not (self.inline or self.settled_all):
            self._leave_until(min(self._leave_by, time.monotonic() + ORPHAN_TIMEOUT))
            if has_files and not self._running:
                self._start()  # nothing is queued, but files have to go, and that takes long
        else:
            with held(self._role, 0.0) as has_role:
                if has_role:
                    self._leave()

    # -- leaving -----------------------------------------------------------------------------------

    def _leave_until(self, by: float) -> None:
        """Have the sender end once every event has its outcome, or at the monotonic second `by`."""
        self._leave_by = by
        now = time.monotonic()
        for lane in self.lanes:
            lane.trials.deadline = now + (by - now) / 2.0
            lane.endpoints.not_before = 0.0
        if not self._running and not self.inline and not self.settled_all:
            self._start()
        self.pump.poke()
        self.queue.wake()

    def _may_leave(self) -> bool:
        """Return whether the sender is to end now."""
        if self._leave_by == FOREVER:
            return False
        target = self._leave_at or self.queue.next_seq - 1
        if self.queue.settled >= target or time.monotonic() >= min(self._part_at, self._leave_by):
            return True
        self.queue.set_flush_target(target)
        return False

    def wait_left(self, by: float, grace: float) -> bool:
        """Wait for the end of a sender that leaves; be the sender when no thread is.

        Args:
            by: the monotonic second at which it ends.
            grace: seconds to wait beyond that.

        Returns:
            Whether it has ended.
        """
        if self._running:
            self._join(by - time.monotonic() + grace)
        if not self._ended and not self.exiting:
            with held(self._role, SLICE) as has_role:
                if has_role:
                    self._leave_inline(by)
        return self._ended or self.exiting

    def _leave_inline(self, by: float) -> None:
        """Do the rest of a sender's work in the calling thread, which holds the role."""
        with self._as_sender(by):
            self._part_at = FOREVER  # or one client would take the time of the next
            while not self._may_leave() and (now := time.monotonic()) < by:
                self.turn(min(by, now + SLICE))
            if self._may_leave():
                self._leave()

    def _leave(self) -> None:
        """End the sender; the caller holds the role."""
        if self._parting:
            self._part()
        else:
            self.closed = True
            self.queue.close()
            self._end()

    def _settle_rest(self) -> int:
        """Leave the events that have no outcome in the spool, or fail them; return how many failed."""
        if self.spool is None or not self.spool.is_open:
            left = self.in_flight.fail(R_CLOSED)
            self.in_flight.commit()
            return left
        self.spool.make_room()
        before = self.queue.counters()
        self.in_flight.keep()
        self.in_flight.commit()
        after = self.queue.counters()
        if stored := after["stored"] - before["stored"]:
            what = error_log.counted(stored, "event")
            where = self.spool.directory
            how = f"the next client that opens it sends them, or: logclient spool drain {where} --to URL"
            text = f"{self.url}: {what} left in the spool {where}: {how}"
            self.diagnostics.complain(text, "stored")
        return int(after["failed"].get("closed", 0) - before["failed"].get("closed", 0))

    def _end(self) -> None:
        """End, and fail the events without an outcome. The caller holds the role."""
        if self._ended:
            return
        left = self._settle_rest()
        self.books.record()
        self.submissions.settle_rest(Outcome("failed", "closed"))
        self.books.close()
        self._give_up(left)
        self._disconnect(self._leave_by)
        if self.spool is not None:
            self.spool.close(self._leave_by)
        self._transport.close()
        self._ended = True
        self.queue.needs_sender = True
        self.queue.release()
        self.on_end()

    def _give_up(self, events: int) -> None:
        """Count and report events that were not delivered in time; at exit, one line for all clients."""
        self.given_up += events
        if events and not self.at_exit:
            what = error_log.counted(events, "event")
            text = f"{self.url}: {what} given up: the client ended before delivery"
            self.diagnostics.last_error = text
            lifecycle.given_up(self.error_log, events, text)

    def _disconnect(self, deadline: float) -> None:
        """Close the link; data that the transport holds may drain until `deadline`."""
        link, self.link = self.link, None
        if link is not None:
            link.close(max(0.0, min(deadline - time.monotonic(), self._most_linger)))
            self.requests.connection_lost()

    def drain_callbacks(self, deadline: float, when: str = "before exit") -> int:
        """Have callbacks run until the monotonic `deadline`; report and return how many have not."""
        left = self.submissions.callbacks.drain(deadline)
        if left:
            calls = "callback" if left == 1 else "callbacks"
            words = "did not run" if when == "before exit" else "had not run"
            more = "" if when == "before exit" else "; that goes on while the process lives"
            self.error_log.complain("callbacks", f"{self.url}: {left} {calls} {words} {when}{more}", 40)
        return left

    # -- exit (called by lifecycle) ----------------------------------------------------------------

    def begin_exit(self, deadline: float) -> bool:
        """Have the sender end by the monotonic `deadline`; return whether there is one to wait for.

        Called for all clients first.
        """
        if self.queue.forked:
            self.after_fork()
        if self._ended or self.exiting:
            return False
        self.at_exit = True
        if not self.closed and not self._orphaned:
            self._parting = True
            self._leave_at = self.queue.next_seq - 1
            # Daemon threads that log on can be faster than delivery: half of the time without them.
            self._part_at = (time.monotonic() + deadline) / 2
        # Often a client is dropped just before, by a function that ends the program.
        self._leave_until(deadline if self._orphaned else min(self._leave_by, deadline))
        return True

    def finish(self, deadline: float) -> None:
        """Exit alone: deliver until the monotonic `deadline`; events that are left then fail.

        The sender's thread ends here. Later events are delivered in the call that logs them.
        """
        lifecycle.finish([self], lambda engine: deadline)

    def _begin_inline(self) -> None:
        """Begin inline delivery: callers deliver their own events."""
        self.exiting = True
        for lane in self.lanes:
            lane.trials.stop()
        self.queue.needs_sender = True

    def _part(self) -> None:
        """Leave the role to callers at exit; queued events have the rest of the time."""
        self._begin_inline()
        # Daemon threads may log on: this thread delivers their events so far, they deliver later ones.
        target = self.queue.next_seq - 1
        while self.queue.settled < target and (now := time.monotonic()) < self._leave_by:
            self.queue.set_flush_target(target)
            self.turn(min(self._leave_by, now + SLICE))
        if self.queue.settled < target:
            self._give_up(self._settle_rest())
        self._drain_at_exit(self._leave_by)
        self.books.record()
        self.books.write_totals()
        self._patience = max(0.0, self._leave_by - time.monotonic())
        self._leave_by = FOREVER
        self._parting = False

    def _drain_at_exit(self, deadline: float) -> None:
        """Wait for the data in a transport without acknowledgements: clients are not closed at exit.

        Later events make a connection of their own.
        """
        if self.link is not None and self.link.drains_on_close:
            self._disconnect(deadline)

    def _turned_at_exit(self, done: Callable[[], bool], deadline: float) -> None:
        if done():
            self._drain_at_exit(deadline)
        self.books.write_totals()
        if self.spool is not None and self.settled_all:
            self.spool.leave()

    def leave_spool(self) -> None:
        """Keep only the files of the spool that events lie in. Called when delivery at exit is over."""
        if self.spool is not None and not self._ended:
            with held(self._role, 0.0) as has_role:
                if has_role:
                    self.spool.leave()

    def undelivered(self, before: int) -> int:
        """Return how many events were given up since `given_up` was `before`, after the wait at exit."""
        if self._ended or self.exiting:
            return self.given_up - before
        # Its thread is stuck in a name look-up. Later events are delivered in the call that logs them.
        self._begin_inline()
        self._patience = 0.0
        left = int(self.queue.next_seq - 1 - self.queue.settled)
        self._parting = False
        if self.endpoints.attempt_at:
            # It is stuck there and touches nothing else: its events fail here, and are listed.
            self._bypassed = True
            left = self._settle_rest()
            self.books.open()
            self.books.record()
            self.books.write_totals()
        return left

    # -- the child of a fork -----------------------------------------------------------------------

    def after_fork(self) -> None:
        """Start anew in the child: empty queue, new producer, no connection. The parent keeps its own."""
        ledger, deliveries = self.books.ledger, self.submissions.deliveries
        parents = [(lane.link, lane._attempt) for lane in self.lanes]
        self.error_log.after_fork()
        self.submissions.callbacks.after_fork()
        if self.spool is not None:
            self.spool.abandon()
        self.queue.renew()
        for lane in self.lanes:
            lane.in_flight.renew()
        self._begin()
        if self.closed:
            self.queue.close()
            self.queue.release()
            self._ended = True
        for link, attempt in parents:
            if link is not None:
                link.abandon()
            if attempt is not None:
                attempt.abandon()
        if ledger is not None:
            ledger.abandon()
        for delivery in deliveries.values():
            delivery._after_fork(Outcome("failed", "forked"))
