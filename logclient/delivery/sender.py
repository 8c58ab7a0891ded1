"""The sender of one client: the thread that delivers, callers that deliver in its place, and the ends.

Only one thread at a time delivers: it has the *role*. Normally that is a daemon thread, which the first event
starts. Where no thread can be started, at interpreter exit or in uwsgi's master, callers take the role and
deliver in their call: delivery is *inline*. `Ending` has the states, and what may happen in each; four things
end delivery, or interrupt it:

- *close*: `close` asks, and `finish` waits, or delivers in place of a thread.
- *in the background*: `background`, for a closed handler or a client without references. The thread goes on.
- *exit*: ``delivery.lifecycle`` calls `exit` for all clients, then `finish`, then `undelivered`.
- *fork*: `park` before it. In the parent `unpark` goes on. In the child `notice_fork` begins anew, with an
  empty queue, an `Engine` of its own and no thread. What the parent had is the parent's.

Who wakes the sender: a put must be followed by a look at ``EventQueue.needs_sender``. It is true while no
thread would notice the event by itself: before the first event, after a thread has ended or died, and at
exit. Whoever has put then calls ``Producer.ensure_sender``. So a log call costs one look at a flag, and a
thread that died is replaced at the next event. Callers that wait look once a second.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from logclient import threads
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from logclient.delivery import error_log, fallback, lifecycle, memory
from logclient.delivery.contract import FOREVER, LONGEST
from logclient.delivery.ending import Ending
from logclient.delivery.engine import SLICE, Engine
from logclient.delivery.outcomes import CallbackThread, Delivery
from logclient.delivery.role import Role
from logclient.delivery.setup import Setup
from logclient.delivery.stats import Stats
from logclient.errors import described
from logclient.standard import os, time

ORPHAN_TIMEOUT = 50.0
"""Seconds in which a client without references, or with a closed handler, delivers its events."""

LOST_BYTES = 8 << 20
"""Bytes of lost events that wait for the fallback and `on_drop`, which get them once a second or sooner."""

REPLAY_DRAIN_S = 30.0
"""How long the sender of a dead owner's events waits for what the transport holds, once all are handed."""

CHECK = 1.0
"""Seconds after which a caller that waits looks whether there is still a sender."""

OVERTIME = 1.0
"""Seconds for a sender to end beyond the deadline that it was given."""


class Sender:
    """Delivers for one client, in this process and in forked children.

    Args:
        setup: what the engine of each process is made of.

    Attributes:
        queue: the events; it stays in a forked child, because handlers hold it.
        engine: does the work, in this process.
        ending: the state of delivery, in this process.
        role: the thread that delivers, or a caller in its place, in this process.

    Raises:
        ConfigError: no native thread can be started in this process.
    """

    def __init__(self, setup: Setup) -> None:
        threads.check()
        config = setup.config
        batch_events, batch_bytes = config.batch_limits
        self.setup = setup
        self.queue = EventQueue(
            max_events=config.max_events,
            max_bytes=config.max_bytes,
            max_event_bytes=config.queued_event_bytes,
            policy=config.policy,
            keep_level=config.keep_level // 10,
            full_events=batch_events,
            full_bytes=batch_bytes,
        )
        self._batches = [InflightBatches(self.queue)]
        self._beginning: dict[int, Any] = {}  # by process
        # Weak: an application that holds a delivery keeps no client alive.
        self._callbacks = CallbackThread(setup.log.warn_limited, weakref.ref(self))
        if config.fallback is not None:
            fallback.check_folder(config.fallback)
        self._begin(Ending(config.atexit_timeout, callers_deliver=lifecycle.shutting_down()))
        if self.engine.books.keeps_lost:
            self.queue.keep_lost(LOST_BYTES)
        self.engine.open_spool()
        lifecycle.watch(self)
        memory.join(self.queue)

    def _begin(self, ending: Ending) -> None:
        """Begin in this process, without a thread and with a new engine."""
        engine = Engine(self.setup, ending, self._batches, self._callbacks)
        self.role = Role(self.queue, engine, ending)
        self.ending, self.engine = ending, engine
        self._pid = os.getpid()  # last: until then another call begins anew

    @property
    def waiter(self) -> Waiter:
        return Waiter(self)

    @property
    def producer(self) -> str:
        """The first 20 hexadecimal digits of the ids of this process."""
        return self.engine.producer.hex()

    @property
    def closed(self) -> bool:
        return self.ending.closed

    @property
    def ended(self) -> bool:
        return self.ending.is_ended

    @property
    def running(self) -> bool:
        return self.ending.running

    @property
    def _has_work(self) -> bool:
        """Whether a thread is needed even if no event comes."""
        if not self.ending.is_open:
            return False
        return not self.engine.settled_all or self.ending.is_draining or self.setup.keeps_connected

    def stats(self) -> Stats:
        """Take a snapshot of all counts that adds up."""
        self.notice_fork()  # from C: the parent's mutex may be held for ever
        return self.engine.stats()

    # -- the thread --------------------------------------------------------------------------------

    def start(self, wait: bool = False) -> bool:
        """Start the thread, unless it runs or a fork goes on; return False when none can be started."""
        started = self.role.start(self._run, wait)
        self.engine.start_spool()
        return started

    def _run(self) -> None:
        lifecycle.start_next()
        ending = self.ending
        self.role.run(self._step, self.end_draining)
        # The stop may have been requested for a fork that is over already.
        if not ending.parking and self._has_work:
            self.start(wait=True)

    def _step(self) -> bool:
        """Deliver for a while; return False, without doing that, when draining is over."""
        if self.aim_at_end():
            return False
        ending, engine = self.ending, self.engine
        engine.turn(min(time.monotonic() + engine.pause, ending.hand_over_at, ending.deadline))
        return True

    def aim_at_end(self) -> bool:
        """Have the pump return when draining is over; return whether it is."""
        ending, last = self.ending, self.engine.last
        if ending.is_over(self.queue.settled, last, time.monotonic()):
            return True
        if ending.is_draining:
            self.queue.set_flush_target(ending.goal(last))
        return False

    # -- close -------------------------------------------------------------------------------------

    def close(self, seconds: float) -> bool:
        """Take no more events, deliver the queued ones, for `seconds` at most, and end.

        This does not wait. Until the sender has ended it goes on by itself, and the end of the process waits
        for it.

        Returns:
            Whether there is something to wait for, with ``finish``.
        """
        self.notice_fork()
        seconds = max(0.0, min(seconds, LONGEST))
        if self.ending.close(time.monotonic() + seconds):
            self._refuse_and_drain()
        return not self.ended

    def _refuse_and_drain(self) -> None:
        self.queue.close()
        self.setup.keeps_connected = False
        self._drain()

    def _drain(self) -> None:
        """Have the sender deliver what is left by the deadline."""
        self.engine.lanes.plan_end(self.ending.deadline)
        if not self.running and not self.ending.inline and not self.engine.settled_all:
            self.start()
        self.engine.wake()

    def background(self, patience: float = 0.0) -> None:
        """Close for a caller that may not wait for a server.

        It waits `patience` seconds at most, for a thread that ends by itself. Finalizers have none, and may
        run in any thread.
        """
        self.notice_fork()
        if not self.ending.is_open:
            return
        if self.ending.close_in_background(time.monotonic() + ORPHAN_TIMEOUT):
            self._refuse_and_drain()
        if self.ending.inline and patience:
            self.waiter.finish(time.monotonic() + patience, 0.0)
            return
        engine = self.engine
        if (
            not self.running
            and not self.ending.inline
            and (engine.spool is not None or engine.lanes.connected)
        ):
            self.start()  # to release files and connections may take long
        if not self.running and (self.ending.inline or engine.settled_all):
            with self.role.held(0.0) as has_role:
                if has_role:
                    self.end_draining()
        if patience and engine.lanes.may_be_reachable:
            self.role.join(patience)

    def end_draining(self) -> None:
        """End; or hand over to callers, at exit. The caller holds the role."""
        if not self.ending.is_open:
            return
        if self.ending.hand_over():
            self.queue.needs_sender = True
            self.engine.deliver_last()
            self.ending.handed_over(time.monotonic())
            return
        self.engine.end()
        self.ending.end()
        self.queue.needs_sender = True
        self.queue.release()
        self.setup.on_end()

    # -- exit: called by lifecycle -----------------------------------------------------------------

    def exit(self, deadline: float) -> bool:
        """Have the sender end by the monotonic `deadline`; return whether there is one to wait for.

        Called for all clients first.
        """
        self.notice_fork()
        begun = self.ending.exit(deadline, time.monotonic(), self.engine.last)
        if begun:
            self._drain()
        return begun

    def undelivered(self, before: int) -> int:
        """Return how many events were given up since `given_up` was `before`, after the wait at exit.

        Then only the files of the spool that events lie in are kept.
        """
        engine = self.engine
        engine.books.report_dropped(at_end=True)
        if self.ending.is_open or (self.ending.callers_deliver and self.running):
            # Its thread is stuck in a name look-up. Later events are delivered in the call that logs them.
            stuck = engine.lanes.holds_sender
            self.ending.write_off(stuck)
            self.queue.needs_sender = True
            # It touches nothing else: its events fail here, and are listed.
            left = engine.settle_stuck() if stuck else engine.last - self.queue.settled
        else:
            left = engine.given_up - before
        if engine.spool is not None and not self.ended:
            with self.role.held(0.0) as has_role:
                if has_role:
                    engine.spool.keep_used()
        return left

    # -- a fork: called by lifecycle ---------------------------------------------------------------

    def park(self, pause: bool) -> None:
        """Before a fork: have all threads end, so that the child finds no work half done.

        The next event, or ``unpark``, starts others. With `pause`, a sender that only sleeps stays asleep
        instead, which costs next to nothing.
        """
        self.ending.forking = True  # first: from now on no thread starts
        self.queue.needs_sender = True
        paused = lifecycle.in_sender(self.role.ident) or (pause and self.queue.pause_for_fork())
        self.ending.fork_begins(paused)
        if not paused:
            self.engine.pump.stop()
            if self.ending.running:
                self.queue.wake()
        self.engine.park()

    def wait_parked(self, deadline: float) -> None:
        """Wait, until the monotonic `deadline`, for the threads that were asked to end."""
        if self.ending.parking:
            self.role.join(deadline - time.monotonic())
        self.engine.wait_parked(deadline)

    def unpark(self) -> bool:
        """Go on in the parent after a fork; return whether a thread has work."""
        self.ending.fork_over()
        self.engine.pump.resume()
        self.queue.resume_after_fork()
        has_work = self._has_work
        if self.engine.spool is not None:
            self.engine.spool.unpark()
        return has_work

    def restart(self) -> bool:
        """Have a thread again, or deliver in this call; return whether a thread was started."""
        if self.ending.inline:
            self.waiter.deliver_inline()
            return False
        return not self.running and self.start() and self.running

    def notice_fork(self) -> None:
        """Begin anew in the child of a fork, once, whichever thread notices it first.

        A signal handler may raise meanwhile, and Python goes on after an error of a hook: then the next call
        tries again, as nothing of the parent's must be used.
        """
        if self.queue.forked or self._pid != os.getpid():
            with threads.lock_here(self._beginning):
                if self.queue.forked or self._pid != os.getpid():
                    self._after_fork()

    def _after_fork(self) -> None:
        """Begin anew in the child: empty queue, new engine and producer. The parent keeps its own."""
        parents = self.engine
        if parents.spool is not None:
            parents.spool.abandon()
        if self.engine is not parents:  # a signal handler has logged meanwhile
            return
        if self.queue.forked:
            self._callbacks.renew()
            self.queue.renew()
            for batches in self._batches:
                batches.renew()
        # Only the parent sends what a dead owner left.
        closed = self.closed or self.setup.orphan is not None
        timeout = self.setup.config.atexit_timeout
        self._begin(Ending(timeout, closed=closed, callers_deliver=self.ending.callers_deliver))
        parents.abandon()
        self.engine.submissions.fail_those_of(parents.submissions)


class Waiter:
    """Waits for a sender. It holds the sender, never the client."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def until(self, done: Callable[[], bool], wait: Callable[[float], bool], timeout: float) -> bool:
        """Wait `timeout` seconds at most for what the sender does; return whether it is done.

        ``wait(seconds)`` waits for a thread to do it, and returns whether it is done.
        """
        sender = self._sender
        if lifecycle.cannot_wait(sender.role.ident):
            return done()
        deadline = time.monotonic() + timeout
        while True:
            sender.notice_fork()  # by a signal handler
            left = deadline - time.monotonic()
            if sender.ending.inline:
                return self.drive(done, left)
            slice_ = min(left, CHECK)  # the sender may end meanwhile, and Python notices signals in between
            if sender.start():
                sender.queue.wake()
                found = wait(slice_) or done()
            else:
                found = self.drive(done, slice_)
            if found or left <= slice_:
                return found

    def _settled(self, engine: Engine, target: int, timeout: float) -> bool:
        """Wait until every event of `engine` up to `target` has its outcome; return whether it has.

        A child that was forked since then does not wait: its parent has these events.
        """
        queue, done = self._sender.queue, self._reaches(engine, target)

        def wait(seconds: float) -> bool:
            return queue.wait_settled(target, seconds)

        return queue.settled >= target or self.until(done, threads.unless_green(done, wait), timeout)

    def _reaches(self, engine: Engine, target: int) -> Callable[[], bool]:
        """Return a function: whether `target` is reached, or this is a child that was forked since then."""
        sender = self._sender
        return lambda: sender.engine is not engine or engine.aim_at(target)

    def flush(self, timeout: float, if_reachable: bool = False) -> int:
        """Wait until all events sent before this call have their outcome; return how many have not.

        With `if_reachable`, do not wait for a server that cannot be reached.
        """
        sender = self._sender
        sender.notice_fork()
        if sender.ending.callers_deliver:
            timeout = min(timeout, sender.ending.patience)
        deadline = time.monotonic() + timeout
        engine = sender.engine
        target = engine.last
        slice_ = SLICE if if_reachable else timeout
        while not (settled := self._settled(engine, target, min(slice_, deadline - time.monotonic()))):
            reachable = sender.engine.lanes.may_be_reachable and not lifecycle.cannot_wait(sender.role.ident)
            if not (if_reachable and reachable) or time.monotonic() >= deadline:
                break
        error_log.write_deferred()
        return 0 if settled else self.unsettled(target)

    def unsettled(self, target: int) -> int:
        """Return how many events up to this sequence have no outcome."""
        # Acks may come in any order: events beyond `settled` may have their outcome, too.
        counts = self._sender.queue.counters()
        return int(max(0, min(target - counts["settled"], counts["queued"] + counts["inflight"])))

    def delivered(self, delivery: Delivery, done: threads.Event, timeout: float | None) -> None:
        """Wait for the outcome of a delivery, which sets `done`; None: while the process lives."""
        sender = self._sender
        sender.notice_fork()
        seconds = FOREVER if timeout is None else timeout
        if sender.ending.inline:
            seconds = min(seconds, sender.ending.patience)
        self.until(delivery.done, done.wait, seconds)

    def close(self, timeout: float) -> int:
        """Take no more events, deliver the queued ones, and end; return how many events were given up.

        A call that was interrupted may be made again: it goes on.

        While the interpreter exits, only the queued events are delivered: more may come from later exit
        handlers, and are delivered in their call.
        """
        sender = self._sender
        sender.notice_fork()
        if sender.ending.callers_deliver and not sender.closed:
            left = self.flush(max(0.0, timeout))
            with sender.role.held(SLICE) as has_role:
                if has_role:
                    sender.engine.books.write_totals()
            return left
        if not sender.ended and sender.close(timeout) and not lifecycle.cannot_wait(sender.role.ident):
            deadline = sender.ending.deadline
            self.finish(deadline, OVERTIME)
            self.wait_for_callbacks(max(deadline, time.monotonic() + OVERTIME))
        return self.remaining

    # -- delivering in place of a thread -----------------------------------------------------------------

    def drive(self, done: Callable[[], bool], timeout: float) -> bool:
        """Be the sender until ``done()``, where no thread is; return whether that came true."""
        sender = self._sender
        begin = time.monotonic()
        deadline = begin + timeout
        sender.queue.wake()  # a sender that sleeps: a caller waits
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            role = sender.role  # a signal handler may fork meanwhile: the child has another
            with role.held(min(left, SLICE)) as has_role:
                if not has_role:
                    # A thread still has it, and does the work.
                    sender.queue.wake()
                    continue
                with role.delivering(deadline):
                    try:
                        sender.engine.turn(min(deadline, time.monotonic() + SLICE))
                    except Exception as error:
                        if not sys.is_finalizing():
                            raise
                        # Destructors may log when Python imports nothing any more, as pyzmq wants to.
                        sender.ending.write_off(True)
                        words = f"events of destructors are not delivered: {described(error)}"
                        sender.engine.diagnostics.report("exit", words)
                        break
                    if sender.ending.callers_deliver:
                        sender.engine.turned_at_exit(done(), deadline)
        if sender.ending.inline:
            sender.engine.submissions.callbacks.wait_for_all(deadline)
            sender.ending.waited(time.monotonic() - begin)
        return done()

    def deliver_inline(self) -> None:
        """Deliver what is queued in this call, unless it must not wait."""
        sender = self._sender
        if not sender.closed and not lifecycle.must_not_block(sender.role.ident):
            engine = sender.engine
            self.drive(self._reaches(engine, engine.last), sender.ending.patience)

    def finish(self, by: float, grace: float) -> bool:
        """Wait until `by`, and `grace` seconds more, for the end of delivery; return whether it has ended.

        Deliver in this call when no thread does.
        """
        sender = self._sender
        role, ending, engine = sender.role, sender.ending, sender.engine
        # In slices: a signal handler may fork, and the child has not this thread, and nothing to finish.
        while engine.is_ours and ending.running and (left := by + grace - time.monotonic()) > 0:
            role.join(min(left, CHECK))
        if ending.is_open:
            with role.held(SLICE) as has_role:
                if has_role:
                    with role.delivering(by):
                        ending.use_all_time()  # or one client would take the time of the next
                        while engine.is_ours and not sender.aim_at_end() and (now := time.monotonic()) < by:
                            engine.turn(min(by, now + SLICE))
                        if engine.is_ours and sender.aim_at_end():
                            sender.end_draining()
        return not (engine.is_ours and ending.is_open)

    def replay(self) -> None:
        """Send what a dead owner left, then end."""
        sender = self._sender
        for lane in sender.engine.lanes:
            lane.drain_timeout = REPLAY_DRAIN_S
        sender.close(LONGEST)
        if not sender.running:  # there is nothing to send
            self.finish(time.monotonic(), 0.0)

    # -- coroutines, which must not block their loop ---------------------------------------------------

    @property
    def inline(self) -> bool:
        """Whether callers have to deliver, and so to block: there is no thread for it."""
        self._sender.notice_fork()
        return self._sender.ending.inline

    @property
    def last(self) -> int:
        return self._sender.engine.last

    @property
    def settled(self) -> int:
        return self._sender.queue.settled

    @property
    def remaining(self) -> int:
        sender = self._sender
        counts = sender.queue.counters()
        # A sender that is stuck in a name look-up ends when it comes back.
        return int(sender.engine.given_up + counts["queued"] + counts["inflight"])

    def when(self, target: int, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback()`` once every event up to `target` has its outcome: in the sender, or here.

        It must be quick, and not raise.

        Returns:
            A function that cancels this.
        """
        submissions = self._sender.engine.submissions
        key = submissions.watch(target, callback)
        return lambda: submissions.unwatch(key)

    def ensure(self) -> None:
        """Have a sender, for a coroutine that waits for it."""
        self._sender.notice_fork()
        self._sender.restart()

    def ensure_outcomes(self) -> bool:
        """Have a sender, or fail submitted events; return whether some of these have no outcome."""
        self.ensure()
        sender, submissions = self._sender, self._sender.engine.submissions
        if sender.ending.inline and not sender.ending.patience:  # the process ends, and its time is over
            submissions.fail_rest()
        return bool(submissions.deliveries)

    def closing(self, timeout: float) -> Iterator[Callable[[], bool]]:
        """Close as ``close`` does; yield, one after the other, what is to become true before this goes on."""
        sender = self._sender
        if not sender.close(timeout):
            return
        yield lambda: not sender.running
        if not sender.running:
            self.finish(time.monotonic(), 0.0)
        yield lambda: not sender.engine.submissions.callbacks.unfinished
        self.wait_for_callbacks(0.0)

    def wait_for_callbacks(self, deadline: float) -> None:
        """Have callbacks run until the monotonic `deadline`; report how many have not when ``close`` ends."""
        words = "had not run when close() ended; that goes on while the process lives"
        self._sender.engine.wait_for_callbacks(deadline, words)
