"""The delivery of one client's events in one process: from the queue to their outcomes.

An engine has lanes, which connect when there is something to send; a pump, which moves bytes; and books,
which record what it reports: ledger, deliveries, counters. ``delivery.sender`` has the thread that calls
``Engine.turn``, and decides when delivery ends. A forked child makes an engine of its own, by the same
constructor.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from logclient._ext.constants import R_CLOSED
from logclient._ext.pump import PumpGroup
from logclient.delivery import error_log, lifecycle
from logclient.delivery.books import TURN, Books
from logclient.delivery.contract import FOREVER, TEST_PRODUCERS
from logclient.delivery.lanes import Lanes
from logclient.delivery.stats import COUNTED, Stats
from logclient.errors import is_shortage
from logclient.files.ledger import make_ledger
from logclient.standard import os, time

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient.config.common import Config
    from logclient.delivery.ending import Ending
    from logclient.delivery.outcomes import CallbackThread
    from logclient.delivery.setup import Setup
    from logclient.delivery.spool.owner import Spool
    from logclient.delivery.spool.owner_files import OrphanSpool
    from logclient.delivery.spool.replay import Replay


SLICE = 0.05
"""Seconds of a turn in place of a thread, in which other callers may want to deliver."""

MARKS = 64
"""Notes of `Ages` within `max_age`: an event fails late by 1/64 of `max_age` at most."""


class Engine:
    """Delivers the events of a queue. The sender alone calls what has no other caller named.

    Args:
        batches: the batches in flight of the first lane, or those of the parent's lanes, renewed.

    Attributes:
        is_ours: this is the process that has made it.
        producer: the 10 bytes that begin the id of each event.
        given_up: events that were not delivered in time.
        why: what kept the last of them from that, in words.
    """

    spool: Spool | Replay | None = None

    def __init__(
        self, setup: Setup, ending: Ending, batches: list[InflightBatches], callbacks: CallbackThread
    ) -> None:
        config = self.config = setup.config
        self.ending = ending
        self.in_flight = batches[0]
        self.queue = self.in_flight.queue
        self.given_up = 0
        self.why = ""
        self.turns = 0
        self.is_ours = True
        orphan = setup.orphan
        self.producer = _draw_producer(config) if orphan is None else orphan.producer
        record = None if orphan is None else orphan.record
        earlier = () if record is None else (record.parts, record.size)
        ledger = make_ledger(setup.ledger, self.producer, *earlier)
        self.pump = PumpGroup()
        self.books = Books(setup, self.in_flight, self.pump, callbacks, self.producer.hex(), ledger)
        self.diagnostics = self.books.diagnostics
        self.submissions = self.books.submissions
        self.lanes = Lanes(setup, batches, self.producer, self.pump, ending, self.books)
        self.core = self.books.core = self.lanes.first.core
        """The core that answers requests."""
        self._ages = None if config.max_age is None else Ages(config.max_age)
        self._spool_ages = None if config.spool is None else Ages(config.spool_age)
        if ending.closed:
            self.queue.close()
            self.queue.release()
        elif orphan is not None:
            self._begin_replay(orphan)
        elif config.spool is not None:
            from logclient.delivery.spool.owner import Spool  # only Linux has it

            assert setup.make_replayer is not None
            directory = None if setup.ledger is None else setup.ledger[0]
            self.spool = Spool(config, self.queue, self.diagnostics, setup.make_replayer, directory)
            self.queue.open_first(True)

    def open_spool(self) -> None:
        """Open the files of the spool, if there is one. Callers that put the first event call this."""
        if self.spool is not None:
            self.spool.open(self.producer)

    def start_spool(self) -> None:
        """Have the threads of the spool, if there is one: some may be missing after a shortage."""
        ending = self.ending
        if self.spool is not None and ending.is_open and not ending.is_draining and not ending.forking:
            self.spool.start()

    def _begin_replay(self, orphan: OrphanSpool) -> None:
        """Queue what a dead owner left, and continue its ledger."""
        from logclient.delivery.spool.replay import Replay

        age = self.config.spool_age
        self.spool = Replay(orphan, self.queue, self.in_flight, self.diagnostics, age)
        self.books.take_over(self.spool.unlisted, self.spool.history)
        self.core.take_over(os.urandom(10))

    # -- counts: any thread ------------------------------------------------------------------------

    @property
    def last(self) -> int:
        return self.queue.next_seq - 1

    @property
    def settled_all(self) -> bool:
        return self.queue.settled >= self.last

    def stats(self) -> Stats:
        """Take a snapshot of all counts that adds up."""
        counts = self.queue.counters()
        dropped = dict(counts["dropped"])
        ledger = self.books.ledger
        lanes = list(self.lanes)
        return Stats(
            **{name: counts[name] for name in COUNTED},
            refused=dropped.pop("closed", 0),
            dropped=dropped,
            callbacks=self.submissions.callbacks.waiting,
            connects=sum(lane.connects for lane in lanes),
            disconnects=sum(lane.disconnects for lane in lanes),
            in_doubt=sum(lane.connection.in_doubt for lane in lanes),
            missing=sum(lane.core.missing for lane in lanes),
            quarantined=sum(lane.trials.suspects for lane in lanes),
            batches=sum(lane.pump.windows for lane in lanes),
            bytes_sent=sum(lane.pump.bytes_sent for lane in lanes),
            turns=self.turns,
            last_error=self.diagnostics.last_error,
            ledger_error=ledger.stopped if ledger is not None else "",
            spooled=self.spool.events if self.spool is not None else 0,
            spool_error=self.spool.error if self.spool is not None else "",
            url=self.diagnostics.url,
            tls=next((lane.tls for lane in lanes if lane.tls), ""),
            pump=f"python: {why}" if (why := lanes[0].pump.why) else "compiled",
            compressor=self.core.compressor,
            producer=self.producer.hex(),
        )

    def aim_at(self, target: int) -> bool:
        """Have the pump return when every event up to `target` has its outcome; return whether it has."""
        self.queue.set_flush_target(target)
        return self.queue.settled >= target

    def wake(self) -> None:
        self.pump.poke()
        self.queue.wake()

    # -- the sender --------------------------------------------------------------------------------

    @property
    def pause(self) -> float:
        """Seconds of the next turn at most."""
        pause = self.books.pause
        if not self.settled_all and self.lanes.connected:
            pause = min(pause, TURN)
        return pause

    def turn(self, until: float) -> None:
        """Deliver, until the monotonic second `until` at most.

        A shortage of descriptors, threads or memory ends the connection at worst, never the sender.
        """
        try:
            self.turns += 1
            self.submissions.callbacks.ensure_thread()
            self.start_spool()
            self.queue.open_wake()
            for lane in self.lanes:
                lane.core.sample_clocks(time.monotonic())
            if self._ages is not None:
                until = self._expire(self._ages, until, drop=False)
            if self._spool_ages is not None:
                until = self._expire(self._spool_ages, until, drop=True)
            self.lanes.deliver(self.books.say_alive(until))
        except (OSError, MemoryError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            self.lanes.run_short(error)

    def _expire(self, ages: Ages, until: float, drop: bool) -> float:
        """Fail or drop events that have waited too long; return when to look again, `until` at most."""
        now = time.monotonic()
        old = ages.look(now, self.last)
        while old and self.in_flight.expire(old, drop):
            self.books.save_lost()
        waiting = any(lane.trials.unsent for lane in self.lanes)
        return min(until, now + ages.every) if waiting else until

    def turned_at_exit(self, done: bool, deadline: float) -> None:
        """Finish a turn of a caller that delivers while the process ends."""
        if done:
            self.lanes.wait_for_transports(deadline)
        self.books.write_totals()
        if self.spool is not None and self.settled_all:
            self.spool.keep_used()

    def end(self) -> None:
        """Fail the events without an outcome, or leave them in the spool, and release everything."""
        deadline = self.ending.deadline
        self.queue.close()
        left = self.settle_rest()
        self.books.record()
        self.submissions.fail_rest()
        self.books.close()
        self.give_up(left)
        self.lanes.close(deadline)
        if self.spool is not None:
            self.spool.close(deadline)

    def deliver_last(self) -> None:
        """Deliver the events so far, in the rest of the time; callers deliver later ones."""
        deadline = self.ending.deadline
        # Daemon threads may log on: this thread delivers their events so far, they deliver later ones.
        target = self.last
        while self._may_send and not self.aim_at(target) and time.monotonic() < deadline:
            self.turn(min(deadline, time.monotonic() + SLICE))
        if not self._may_send:
            return
        if self.queue.settled < target:
            self.give_up(self.settle_rest())
        self.lanes.wait_for_transports(deadline)
        self.books.record()
        self.books.write_totals()

    @property
    def _may_send(self) -> bool:
        """Whether this is the process of this engine, which was not given up meanwhile."""
        return self.is_ours and not self.ending.muted

    def settle_rest(self) -> int:
        """Leave the events that have no outcome in the spool, or fail them; return how many failed."""
        self.why = self.lanes.why
        if self.spool is None or not self.spool.is_open:
            return self.lanes.fail(R_CLOSED)
        before = self.queue.counters()
        self.spool.store(self.in_flight.keep)
        self.in_flight.keep()
        self.in_flight.commit()
        after = self.queue.counters()
        if stored := after["stored"] - before["stored"]:
            what = error_log.counted(stored, "event")
            where = self.spool.directory
            how = f"the next client that opens it sends them, or: logclient spool drain {where} --to URL"
            self.diagnostics.report("stored", f"{what} left in the spool {where}: {how}")
        return int(after["failed"].get("closed", 0) - before["failed"].get("closed", 0))

    def give_up(self, events: int) -> None:
        """Count and report events that were not delivered in time; at exit, one line for all clients."""
        self.given_up += events
        if events and self.ending.exit_by == FOREVER:
            what = error_log.counted(events, "event")
            words = f"{what} given up: the client ended before delivery{self.books.hint}"
            text = self.diagnostics.note(words)
            self.diagnostics.on_error(text)
            lifecycle.report_given_up(self.diagnostics.log, events, text)

    def settle_stuck(self) -> int:
        """Fail and list the events of a sender that does not come back; return how many."""
        left = self.settle_rest()
        self.books.open()
        self.books.record()
        self.books.write_totals()
        return left

    def wait_for_callbacks(self, deadline: float, words: str = "did not run before exit") -> None:
        """Have callbacks run until the monotonic `deadline`; report, with `words`, how many have not."""
        if left := self.submissions.callbacks.wait_for_all(deadline):
            calls = "callback" if left == 1 else "callbacks"
            text = f"{self.diagnostics.url}: {left} {calls} {words}"
            self.diagnostics.log.warn_limited("callbacks", text, 40)

    # -- a fork ------------------------------------------------------------------------------------

    def park(self) -> None:
        """Before a fork: ask all threads but the sender's to end."""
        if self.spool is not None:
            self.spool.park()
        self.submissions.callbacks.park()
        for lane in self.lanes:
            lane.connector.park()

    def wait_parked(self, deadline: float) -> None:
        """Wait, until the monotonic `deadline`, for these threads."""
        self.submissions.callbacks.wait_parked(deadline - time.monotonic())
        if self.spool is not None:
            self.spool.wait_parked(deadline - time.monotonic())
        for lane in self.lanes:
            lane.connector.wait_parked(deadline - time.monotonic())

    def abandon(self) -> None:
        """In a forked child, let go of connections and files, which the parent goes on with."""
        self.is_ours = False
        for lane in self.lanes:
            lane.abandon()
        if self.books.ledger is not None:
            self.books.ledger.close()


class Ages:
    """Finds events that have waited for more than `max_age` seconds, by the monotonic clock.

    An event carries the wall time of its creation, which may be far off: clocks are set, and a step must
    neither fail young events nor keep old ones. A second time stamp would cost each log call another clock
    reading. So the sender notes now and then the last sequence and the time.
    """

    def __init__(self, max_age: float) -> None:
        self.every = min(max(max_age / 8, 0.05), 1.0)
        """Seconds between two calls of `look`, at most, while events wait."""
        self._max_age = max_age
        self._last = (float("-inf"), 0)
        self._marks: deque[tuple[float, int]] = deque()

    def look(self, now: float, newest: int) -> int:
        """Return the last sequence that has waited too long, 0 when there is none."""
        last, seq = self._last
        if newest > seq and now - last >= self._max_age / MARKS:
            self._last = now, newest
            self._marks.append(self._last)
        old = 0
        while self._marks and now - self._marks[0][0] > self._max_age:
            old = self._marks.popleft()[1]
        return old


def _draw_producer(config: Config) -> bytes:
    if config.only_tests:
        return TEST_PRODUCERS + os.urandom(10 - len(TEST_PRODUCERS))
    while (drawn := os.urandom(10)).startswith(TEST_PRODUCERS):
        pass
    return drawn
