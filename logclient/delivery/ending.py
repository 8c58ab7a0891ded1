"""How the delivery of one client ends: its states, and what may happen in each.

::

    state     close, or in the background  exit begins                 all is settled, or no time is left
    running   draining, then ended         draining, then callers      -
    draining  a new deadline, then ended   the deadline of the exit    callers, or ended
    callers   -                            -                           -
    ended     -                            -                           -

In the state `CALLERS`, callers deliver later events in the calls that log them, because the process ends. No
time is left for draining at its deadline; of an exit, after half of the time if daemon threads log on; and
when the sender dies meanwhile (`cut_short`). A sender that does not come back by then is written off
(`write_off`). The child of a fork begins running; in the state of its parent if that was `CALLERS`; ended
if its parent was closed.

The sender's thread::

    thread    an event, or work   a fork begins               the fork is over   it ends, or dies
    absent    running             no thread starts meanwhile  -                  -
    running   -                   stopping, unless paused     running            absent
    stopping  -                   -                           running            absent

A thread that cannot be started is tried again after `START_AGAIN` seconds; never again once the interpreter
ends: then callers deliver. Nothing here reads a clock, waits, or takes a lock.
"""

from __future__ import annotations

from enum import Enum

from logclient.delivery import lifecycle
from logclient.delivery.contract import FOREVER

START_AGAIN = 0.1
"""Seconds between two attempts to start a thread when none can be started."""


class State(Enum):
    """States of the delivery of one client."""

    RUNNING = "running"
    DRAINING = "draining"
    CALLERS = "callers deliver"
    ENDED = "ended"


class Ending:
    """The state of one client's delivery. All times are monotonic seconds.

    Args:
        patience: seconds that calls may wait in total once the process ends.
        closed: begin ended.
        callers_deliver: the process ends already.

    Attributes:
        closed: no more events are taken.
        deadline: when the sender stops trying.
        exit_by: the deadline of the end of the process, once that has begun.
        hand_over_at: when a sender leaves the events that are left to callers.
        muted: nothing may be sent any more: a sender that does not come back has the role.
        running: the sender's thread is there.
        parking: it was asked to end, for a fork.
        forking: a fork is under way, so no thread may be started.
        threadless: no thread can be started any more.
        start_at: when to try to start a thread again.
        caller_by: when a caller that delivers has no more time.
    """

    def __init__(self, patience: float, *, closed: bool = False, callers_deliver: bool = False) -> None:
        self.state = State.ENDED if closed else State.CALLERS if callers_deliver else State.RUNNING
        self.closed = closed
        self.patience = patience
        self.deadline = FOREVER
        self.exit_by = FOREVER
        self.hand_over_at = FOREVER
        self.muted = False
        self.running = self.parking = self.forking = self.threadless = False
        self.start_at = 0.0
        self.caller_by = FOREVER
        self._next = State.ENDED  # after draining
        self._goal: int | None = None  # the sequence with whose outcome draining is over; None: the last one
        self._bound = False  # a caller has set the deadline

    # -- queries -----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a thread may be the sender: delivery runs, or drains."""
        return self.state in (State.RUNNING, State.DRAINING)

    @property
    def is_draining(self) -> bool:
        """Whether delivery ends when every event has its outcome."""
        return self.state is State.DRAINING

    @property
    def callers_deliver(self) -> bool:
        """Whether callers deliver, because the process ends."""
        return self.state is State.CALLERS

    @property
    def is_ended(self) -> bool:
        return self.state is State.ENDED

    @property
    def inline(self) -> bool:
        """Whether callers deliver the events that they wait for, because there is no thread for it."""
        return self.threadless or self.callers_deliver or lifecycle.forks_unseen()

    @property
    def stop_at(self) -> float:
        """When the sender, or a caller that delivers, stops trying."""
        return 0.0 if self.muted or self.parking else min(self.deadline, self.caller_by)

    def goal(self, last: int) -> int:
        """Return the sequence with whose outcome draining is over; `last` is that of the last event."""
        return last if self._goal is None else self._goal

    def is_over(self, settled: int, last: int, now: float) -> bool:
        """Return whether draining is over; every event up to `settled` has its outcome."""
        if not self.is_draining:
            return False
        return settled >= self.goal(last) or now >= min(self.hand_over_at, self.deadline)

    # -- transitions -------------------------------------------------------------------------------

    def close(self, by: float) -> bool:
        """Take no more events, and deliver the others until `by`; return False when that is over already."""
        return self._drain(min(by, self.exit_by), True)

    def close_in_background(self, by: float) -> bool:
        """Close for a caller that does not wait; an exit may give it more time, or less."""
        return self._drain(min(by, self.deadline), self._bound)

    def _drain(self, by: float, bound: bool) -> bool:
        if not self.is_open:
            return False
        self.state, self._next = State.DRAINING, State.ENDED
        self.closed = True
        self.deadline, self._bound = by, bound
        self.hand_over_at, self._goal = FOREVER, None
        return True

    def exit(self, by: float, now: float, last: int) -> bool:
        """Begin the end of the process, until `by` at most; return whether there is something to wait for."""
        if not self.is_open:
            return False
        self.exit_by = min(self.exit_by, by)
        if self.state is State.RUNNING:
            self.state, self._next = State.DRAINING, State.CALLERS
            self._goal = last
            # Daemon threads that log on can be faster than delivery: half of the time without them.
            self.hand_over_at = (now + by) / 2
            self.deadline = by
        elif self._bound or self._next is State.CALLERS:
            self.deadline = min(self.deadline, by)
        else:
            # Often a client is dropped just before, by a function that ends the program.
            self.deadline = self.exit_by
        return True

    def use_all_time(self) -> None:
        """Drain until the deadline: no thread is there that could log on faster than delivery."""
        self.hand_over_at = FOREVER

    def hand_over(self) -> bool:
        """Let callers deliver, when draining is over; return False when delivery ends instead."""
        if self._next is State.CALLERS:
            self.state = State.CALLERS
        return self.callers_deliver

    def end(self) -> None:
        """End: draining is over, and nothing is left to do."""
        self.state = State.ENDED
        self.closed = True

    def handed_over(self, now: float) -> None:
        """Leave the rest of the time to callers."""
        self.patience = max(0.0, self.deadline - now)
        self.deadline = FOREVER

    def write_off(self, muted: bool) -> None:
        """Let callers deliver at the deadline of an exit, because a sender does not come back."""
        self.state = State.CALLERS
        self.patience = 0.0
        self.muted = muted

    def cut_short(self, now: float) -> None:
        """Take the rest of the time: a bug of ours would use it up."""
        self.deadline = min(self.deadline, now)

    def waited(self, seconds: float) -> None:
        """Count the time of a call that has delivered."""
        self.patience = max(0.0, self.patience - seconds)

    # -- the thread --------------------------------------------------------------------------------

    def thread_started(self) -> None:
        self.running = True

    def thread_failed(self, now: float, forever: bool) -> None:
        self.running = False
        self.threadless = forever
        # An attempt is expensive, and each log call may make one.
        self.start_at = 0.0 if forever else now + START_AGAIN

    def thread_ended(self) -> None:
        self.running = False

    def fork_begins(self, paused: bool) -> None:
        """Have the thread end, unless it is paused; none starts until the fork is over."""
        self.forking = True
        self.parking = self.parking or not paused

    def fork_over(self) -> None:
        self.forking = self.parking = False
