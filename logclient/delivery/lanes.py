"""All connections of one client: a group of lanes that one loop drives.

A client has one queue, one sender and one ledger. Its group has one lane; with ``balance`` one for each
endpoint. The loop gives the next batch to the lane with the fewest bytes in flight. With several lanes, an
attempt to connect has a thread of its own, so that a server that does not answer delays no other.

A lane makes one connection after the other for a core: it begins it, uses it, and draws the conclusions from
its end. States of a lane::

    away ──an event, and the back-off is over──> connecting ──ok──> connected: takes from the queue
     ^                                               │                │
     │                                               │ failed         │ lost: what has no outcome goes again
     └───────────────────────────────────────────────┴────────────────┘

The first acknowledgement resets the back-off. Credential errors, the server's or ours, are reported once and
retried at a slower pace, each endpoint on its own. Fatal errors of configuration or version end in `fatal`.

A client has one lane, which tries its endpoints in turn; with ``balance`` it has one for each endpoint, its
*home*. What a broken connection leaves without an outcome stays with its lane, which sends it again over a
short connection to the next server that can be reached: as a *guest*. A guest takes nothing from the queue,
unless it needs other events to find poison, and goes home when its events have their outcome. So the search
for poison is that of a client with one connection. The ledger lists these events as ``deferred``, because
others overtake them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from logclient._ext.constants import R_FATAL
from logclient._ext.inflight import InflightBatches
from logclient._ext.pump import CompiledPump, LinkPump, PythonCodec
from logclient.delivery.books import REPORT_EVERY
from logclient.delivery.connection import ALONE, PROVEN, SHARE, ConnectionRecord, Connector, LaneAttempt
from logclient.delivery.contract import FOREVER, GOES_ON, Core, Link, Transport
from logclient.delivery.endpoints import Endpoints
from logclient.delivery.error_log import counted
from logclient.delivery.isolation import TRIAL, WITHHOLD
from logclient.delivery.path import LATE, SMALL, Path, TcpState
from logclient.delivery.trials import Trials
from logclient.errors import CredentialError, describe_error
from logclient.standard import os, time

if TYPE_CHECKING:
    from logclient._ext.pump import PumpGroup
    from logclient.config.common import Config
    from logclient.delivery.books import Books
    from logclient.delivery.ending import Ending
    from logclient.delivery.setup import Setup

MOST_ENDPOINTS = 64
"""As many lanes as one loop has room for."""

LEAVE_WAIT = 5.0
"""Seconds for what a transport without acknowledgements holds when a connection that works is closed."""

SOONEST = 0.01
"""Seconds between two questions whether a trial is due."""

MOVING = 5.0
"""Seconds without an outcome from which on a server may end a connection because it is impatient."""

NEW = 2.0
"""Seconds after which a connection that hangs has worked before."""

_ENDS = {
    "silence": "no sign of life from the server in time",
    "stalled": "the server is alive, but acknowledges nothing",
    "memory": "out of memory",
}


class Lane:
    """The connections of one core, one at a time.

    Alone, as the only one of its client, it is at home at every endpoint; else at the first one.

    Attributes:
        fatal: nothing can be delivered any more, for this reason.
        due: the monotonic second at which to look again; FOREVER: when an event comes.
        waits: only the time, or an attempt under way, can bring a connection.
    """

    def __init__(
        self,
        setup: Setup,
        ending: Ending,
        core: Core,
        in_flight: InflightBatches,
        transport: Transport,
        endpoints: tuple[Any, ...],
        books: Books,
        poke: Callable[[], object],
    ) -> None:
        config = setup.config
        self.core = core
        self.in_flight = in_flight
        self.transport = transport
        self.pump = _make_pump(transport, in_flight, core, config)
        self.endpoints = Endpoints(endpoints, config, books.diagnostics)
        self.connector = Connector(transport, self.endpoints, in_flight.queue, poke, books.diagnostics)
        self.trials = Trials(in_flight, config, len(endpoints), books, ending)
        self.connection = ConnectionRecord(in_flight, self.pump)
        self.path = Path(config.silence)
        self.link: Link | None = None
        self.tls = ""
        self.fatal: Exception | None = None
        self.connects = self.disconnects = 0
        self.due = FOREVER
        self.waits = False
        self.drain_timeout = FOREVER
        self._setup = setup
        self._queue = in_flight.queue
        self._books = books
        self._diagnostics = books.diagnostics
        self._alone = len(setup.transports) == 1
        self._at_home = False
        self._seen = self._queue.next_seq  # a later event is a reason to connect
        self._outcomes = 0  # of events in flight, that were looked at
        self._progress = 0  # the pump's, that was looked at
        self._missing = 0  # events, that were reported
        self._late = ""  # the last error that reports a wait, until that is over
        self._leave_at, self._progress_before = FOREVER, 0  # see `plan_end`

    @property
    def may_be_reachable(self) -> bool:
        """Whether its server is reachable as far as is known; True before the first attempt."""
        return self.link is not None or self.fatal is not None or self.endpoints.hopeful

    # -- connecting --------------------------------------------------------------------------------

    def look(self, now: float, group: Lanes) -> Link | None:
        """Begin or end a connection where that is due; return the connection, if there is one."""
        self.due, self.waits = FOREVER, False
        sent = self.in_flight
        if now >= self._leave_at:
            self._leave_hung(now)
        if self.link is not None and not (self._at_home or sent.inflight or self._searches or sent.to_send):
            self.close_link(self.link)  # a guest that is not needed any more
        if self.link is None:
            self._connect(now, group)
        if self.link is not None:
            self.in_flight.use_queue(takes=self._at_home or self._searches, notes=not self._at_home)
        return self.link

    @property
    def _searches(self) -> bool:
        """Whether it needs connections and other events to find poison."""
        isolation = self.trials.isolation
        return isolation.trying or bool(isolation.withheld or isolation.reserve())

    def _connect(self, now: float, group: Lanes) -> None:
        connector = self.connector
        if connector.attempt is None and not self._begin_attempt(now, group):
            return
        attempt = connector.attempt
        assert attempt is not None
        if not attempt.done:
            self.waits = True
            return
        self.due, self.waits = now, True  # at once: the attempt may have taken a wake-up of the sender
        if attempt.off.is_set():
            self._seen = 0  # what it was begun for still waits: any event is a reason to connect
        link = connector.end()
        if link is not None:
            self.due = FOREVER
            self._connected(link)
        elif not attempt.off.is_set():
            self.trials.give_back()

    def _begin_attempt(self, now: float, group: Lanes) -> bool:
        """Begin to connect if there is a use for it and the back-off is over; return whether it has."""
        if group.is_stopped:
            return False
        if not self._wants_connection(now):
            if self.trials.isolation.withheld:  # the others were dropped meanwhile
                self.trials.give_back()
            self.due = max(self.trials.isolation.next_trial(0), now + SOONEST)
            return False
        self.due, self.waits = self._choose(now), True
        if now < self.due:
            return False
        if not self._books.open():
            self.due = self._books.not_before
            return False
        self.due = FOREVER
        self._seen = self._queue.next_seq
        first = not self.connects or self.trials.deadline < FOREVER
        attempt = self.connector.prepare(now, self._others(now) if first else (), self._leave_at)
        if not (group.needs_thread() and attempt.start()):
            attempt.run_here(partial(group.is_over, attempt, now), group.ask_at)
        return True

    def _others(self, now: float) -> tuple[Any, ...]:
        return self.connector.others(now) if self._alone else ()

    def _wants_connection(self, now: float) -> bool:
        if self._books.requests.waiting or self._setup.keeps_connected or self.trials.is_due(now):
            return True
        # Another lane may have taken what came since this one lost its connection.
        return bool(self.trials.unsent) or (not self._alone and self._queue.next_seq > self._seen)

    def _choose(self, now: float) -> float:
        """Choose the endpoint to try next; return the monotonic second from which on."""
        if self._alone or self.in_flight.to_send or self._searches:
            self.endpoints.skip_refused(now)
            return self.endpoints.not_before
        return max(self.endpoints.not_before, self.endpoints.return_to_first())

    def _connected(self, link: Link) -> None:
        self.endpoints.failing = False
        self.connects += 1
        self.link = link
        self.tls = link.tls
        self._at_home = self._alone or self.endpoints.at_first
        self.connection.begin()
        self.path.begin(self.pump.bytes_sent)
        self._report_wait(link)  # the last error may report one on the last connection
        if link.mtu:
            self.core.path_mtu(link.mtu, link.headers)
        self.core.watch_receiver(link.receiver)
        self.core.connected(time.monotonic())
        self.pump.connected()
        self._outcomes = self.in_flight.outcomes
        self.trials.connected()

    @property
    def state(self) -> str:
        if self.fatal is not None:
            return "stopped"
        if self.link is not None:
            return "connected"
        return "refused" if self.endpoints.all_refused else "disconnected"

    def abandon(self) -> None:
        if self.link is not None:
            self.link.abandon()
        self.connector.abandon()

    # -- a connection is used ----------------------------------------------------------------------

    def plan(self, until: float) -> float:
        """Prepare a run of the pump; return the monotonic second at which it is to end, `until` at most."""
        now = time.monotonic()
        look = self.core.regulate(now)
        until = min(until, look, self._leave_at, now + PROVEN if self.endpoints.backoff.attempts else until)
        if self.trials.suspects:
            until = self.trials.plan(until)
        if not self._late and self._queue.settled + 1 < self._queue.next_seq:
            until = min(until, (self.pump.last_progress if self.in_flight.inflight else now) + LATE)
        return min(until, self.path.due)

    def conclude(self, link: Link, end: str) -> None:
        """Draw the conclusions from a run of the pump."""
        taken = self.in_flight.drain_taken()
        if taken:  # a guest's: the home lane of this server overtakes them
            self._books.deferred(taken)
        backoff = self.endpoints.backoff
        now = time.monotonic()
        self.path.wrote(now, self.pump.bytes_sent)
        if now >= self.path.due and self.path.look(now, self._tcp_state()) and end in GOES_ON:
            end = "silence"
        self._report_wait(link)
        if self.in_flight.outcomes != self._outcomes:
            self._outcomes = self.in_flight.outcomes
            self.trials.settled()
            if end in GOES_ON and link.has_moved():
                self.close_link(link)
                return
        if self.pump.progress != self._progress:
            self._progress = self.pump.progress
            self.endpoints.acknowledged()
        elif backoff.attempts and self.connection.proven(self._setup.keeps_connected, backoff.bound):
            self.endpoints.recovered()
        if self.core.missing > self._missing:
            self._missing = self.core.missing
            words = f"{link.peer}: events missing so far, by the server's counters: {self._missing}"
            self._diagnostics.report("missing", words, link.peer)
        if end not in GOES_ON:
            self.lost(link, end)
        elif self.in_flight.drained:
            self.close_link(link)  # for a trial on a fresh connection

    def _tcp_state(self) -> TcpState | None:
        found = self.pump.tcp_state()
        return None if found is None else TcpState._make(found)

    def _report_wait(self, link: Link) -> None:
        """Have the last error report a wait that has lasted `LATE` seconds, as long as it lasts."""
        events, now = self.in_flight.inflight, time.monotonic()
        waits = events > 0 and now - self.pump.last_progress >= LATE
        late = waits or self.path.late
        if late == bool(self._late):
            return
        if late:
            since = time.strftime("%H:%M:%S", time.gmtime(time.time() - LATE))
            what = "taken" if link.drains_on_close else "acknowledged"
            words = f"has {what} nothing since {since} UTC, {events} events are in flight"
            if not waits:
                words = f"gets nothing since {since} UTC of what was sent"
            self._late = self._diagnostics.note(f"{link.peer}{self.connector.way} {words}")
            return
        if self._diagnostics.last_error == self._late:
            self._diagnostics.last_error = ""
        self._late = ""

    # -- a connection ends -------------------------------------------------------------------------

    def disconnect(self, deadline: float) -> None:
        """Close the link; data that the transport holds may drain until `deadline`."""
        link, self.link = self.link, None
        self._at_home = False
        self._seen = self._queue.next_seq
        if link is not None:
            link.close(max(0.0, min(deadline - time.monotonic(), self.drain_timeout)))
            self._books.requests.connection_lost()

    def lost(self, link: Link, end: str) -> None:
        """End a connection that broke: events without an outcome are sent again on the next one."""
        peer, unacknowledged = link.peer + self.connector.way, link.drains_on_close
        state = self._tcp_state()
        moving = state is not None and state.waiting > 0
        moving = moving and time.monotonic() - self.pump.last_progress >= MOVING
        if end not in ("closed", "error", "protocol"):
            self._discard(link)
        self.disconnect(0.0)
        self.disconnects += 1
        # With nothing under way: that is how servers end an idle connection. But one that took nothing
        # and ended at once is a failure, or we would connect in a loop.
        idle = not self.in_flight.inflight and not self.in_flight.waiting and not self._setup.keeps_connected
        quiet = self.connection.used and idle and end in ("closed", "error")
        unanswered = 0 if unacknowledged else self.in_flight.inflight
        words, error, forever = _explain_end(end, self.pump, unanswered, self.connection.acknowledged)
        if state is not None and (end == "silence" or (end == "stalled" and unacknowledged)):
            is_new = time.monotonic() < self.connection.began + self.path.silence + NEW
            words = state.explain(is_new)
            self.connector.segment = SMALL if state.loses_large(is_new) else self.connector.segment
        if link.hint and end in ("closed", "error") and not self.pump.progress:
            words = f"{words}; {link.hint}"
        flying = self.in_flight.inflight_range
        self._take_back()
        refused = isinstance(error, CredentialError)
        # Without acknowledgements, events in flight have not even been taken by the transport.
        verdict = self.trials.broke("" if refused or unacknowledged else end, *flying, moving)
        self.in_flight.commit()
        if unacknowledged:
            events = self.connection.broke()
            if end == "silence":
                words = f"{words}; {counted(events, 'event')} in doubt"
        if forever:
            self.fatal = error
            self._diagnostics.report("fatal", f"{peer}: {words}; nothing more will be sent", link.peer)
        elif verdict == TRIAL:
            # It was to be expected: the next trial comes soon, unless the server takes nothing at all.
            self.endpoints.not_before = time.monotonic() + self.endpoints.backoff.soon()
        elif verdict == WITHHOLD:
            self._diagnostics.report(end, f"{peer}: {words}", link.peer)
        elif isinstance(error, CredentialError):
            self.endpoints.refused(peer, error)
        elif not quiet:
            self.endpoints.advance()
            self.endpoints.failed(f"{peer}: {words}", end, link.peer)

    def _take_back(self) -> None:
        """End the connection for the core; events that it does not fail are sent again."""
        self.core.connection_lost()
        self.core.take_events(self.in_flight)  # it may fail some
        self.in_flight.requeue()
        if not self._alone and (ranges := self.in_flight.to_send):
            self._books.deferred(ranges)

    def plan_end(self, half: float) -> None:
        """Have what hangs at one endpoint go to another at the monotonic second `half`."""
        self.trials.deadline = self._leave_at = half
        self._progress_before = self.pump.progress
        self.endpoints.not_before = 0.0
        if others := self._others(time.monotonic()):
            self.connector.try_others(others, half)

    def _leave_hung(self, now: float) -> None:
        self._leave_at = FOREVER
        hangs = self.in_flight.inflight and self.pump.progress == self._progress_before
        if hangs and self.link is not None and not self.link.drains_on_close and self.endpoints.others(now):
            self.lost(self.link, "nothing was acknowledged in half of the time that is left")
        self.endpoints.not_before = 0.0

    def _discard(self, link: Link) -> None:
        # Else the kernel goes on sending what the next connection sends.
        if self.in_flight.inflight and not link.drains_on_close:
            self.pump.discard()

    def close_link(self, link: Link) -> None:
        """Close a connection that works; events without an outcome are sent again."""
        flying = self.in_flight.inflight_range
        self._discard(link)
        self.disconnect(time.monotonic() + (LEAVE_WAIT if link.drains_on_close else 0.0))
        self.disconnects += 1
        self._take_back()
        self.trials.broke("", *flying)
        self.in_flight.drain(False)
        self.in_flight.commit()


def _make_pump(transport: Transport, in_flight: InflightBatches, core: Core, config: Config) -> CompiledPump:
    """Make the transport's pump for this core; an adapter stands in where the transport has none."""
    batch_events, batch_bytes = config.batch_limits
    sizes: dict[str, Any] = {
        "batch_events": batch_events,
        "batch_bytes": batch_bytes,
        "linger": config.linger,
        "progress_timeout": config.progress_timeout,
        "report_every": REPORT_EVERY,
    }
    why = "the protocol's codec is written in Python" if isinstance(core.codec, PythonCodec) else ""
    try:
        pump: CompiledPump = transport.load_pump()(in_flight, core, **sizes)
    except ImportError as error:
        pump = LinkPump(in_flight, core, **sizes)
        why = why or str(error)
    pump.why = why
    return pump


def _explain_end(
    end: str, pump: CompiledPump, unanswered: int, acknowledged: bool
) -> tuple[str, Exception | None, bool]:
    """Describe the end of a connection: the text, the error behind it, and whether a new one is useless.

    `end` is the result of ``PumpGroup.run``, or a text of its own. `unanswered`: events in flight, where the
    server acknowledges events.
    """
    if end == "protocol":
        if pump.fatal is None:
            return "the server broke the protocol", None, False
        return str(pump.fatal.error), pump.fatal.error, pump.fatal.forever
    if end == "error":
        if pump.failure is not None:
            return describe_error(pump.failure), pump.failure, False
        number = pump.error
        return os.strerror(number).lower() if number else "the connection broke", None, False
    if end != "closed":
        return _ENDS.get(end, end), None, False
    if not unanswered:
        return "the server closed the connection", None, False
    what = "everything" if acknowledged else "anything"
    return f"the server closed the connection before it acknowledged {what}", None, False


class Lanes:
    """The lanes of one client. `batches` has those of the first lane; those of the others are added."""

    def __init__(
        self,
        setup: Setup,
        batches: list[InflightBatches],
        producer: bytes,
        pump: PumpGroup,
        ending: Ending,
        books: Books,
    ) -> None:
        self.batches = batches
        self._pump = pump
        self._ending = ending
        self._books = books
        self._queue = batches[0].queue
        self._lanes: list[Lane] = []
        endpoints = setup.config.endpoints
        for index, transport in enumerate(setup.transports):
            if index == len(batches):
                batches.append(InflightBatches(self._queue, batches[0]))
            core = setup.make_core(producer)
            core.set_wall_clock(time.time)
            core.sample_clocks(time.monotonic())  # before the first event
            own = endpoints[index:] + endpoints[:index]
            lane = Lane(setup, ending, core, batches[index], transport, own, books, pump.poke)
            pump.add(lane.pump)
            self._lanes.append(lane)

    def __iter__(self) -> Iterator[Lane]:
        return iter(tuple(self._lanes))

    @property
    def first(self) -> Lane:
        return self._lanes[0]

    @property
    def fatal(self) -> Exception | None:
        return next((lane.fatal for lane in self if lane.fatal is not None), None)

    @property
    def may_be_reachable(self) -> bool:
        """Whether a server is reachable as far as is known; True before the first attempt."""
        return any(lane.may_be_reachable for lane in self)

    @property
    def connected(self) -> bool:
        return any(lane.link is not None for lane in self)

    @property
    def why(self) -> str:
        """What keeps events from being delivered, in words; empty: it is not known."""
        for lane in self:
            if lane.link is not None and (unanswered := lane.in_flight.inflight):
                return f"{unanswered} of them not acknowledged by {lane.link.peer}"
        said = self._books.diagnostics
        return "" if self.connected else said.last_error.removeprefix(f"{said.url}: ")

    @property
    def holds_sender(self) -> bool:
        return any(lane.connector.holds_sender for lane in self)

    # -- what lanes ask ----------------------------------------------------------------------------

    @property
    def is_stopped(self) -> bool:
        """Whether no attempt to connect may begin, or go on."""
        return time.monotonic() >= self._ending.stop_at

    def is_over(self, attempt: LaneAttempt, began: float) -> bool:
        """Return whether an attempt in the sender's thread is to end. Asked many times a second.

        It may take long, so events that are dropped meanwhile are recorded here.
        """
        if self.is_stopped:
            attempt.call_off()
        else:
            self.record_gaps()
        return attempt.off.is_set() or self._takes_time_of_others(began)

    def _takes_time_of_others(self, began: float) -> bool:
        if len(self._lanes) == 1:
            return False
        some = any(lane.link is not None for lane in self)
        return time.monotonic() - began > (SHARE if some else ALONE)

    def ask_at(self) -> float:
        """Return by when an attempt in the sender's thread asks whether to end: a monotonic second."""
        pause = SHARE if len(self._lanes) > 1 else self._books.pause
        return min(time.monotonic() + pause, self._ending.stop_at)

    def needs_thread(self) -> bool:
        return len(self._lanes) > 1 and not self._ending.inline

    def record_gaps(self) -> None:
        self.batches[0].report_gaps()
        self.batches[0].commit()
        self._books.record()

    # -- delivery ----------------------------------------------------------------------------------

    def deliver(self, until: float) -> None:
        """Connect where there is a use for it, and move bytes until the monotonic second `until` at most."""
        if self.fatal is not None:
            self._fail_all(until)
            return
        now = time.monotonic()
        lanes = tuple(self)
        links = [lane.look(now, self) for lane in lanes]
        until = min([until, *(lane.due for lane in lanes)])
        if not any(links):
            self.record_gaps()
            if any(lane.waits for lane in lanes):
                self._queue.wait_for_wake(max(0.0, until - time.monotonic()))
            else:
                self._rest(until)
            return
        self._run(lanes, links, until)

    def _run(self, lanes: tuple[Lane, ...], links: list[Link | None], until: float) -> None:
        reserve = max(lane.trials.reserve for lane in lanes) if len(lanes) > 1 else 0
        if links[0] is not None:
            self._books.requests.start(lanes[0].core)
        idle = self._queue.settled + 1 == self._queue.next_seq
        for lane, link in zip(lanes, links, strict=True):
            if link is not None:
                until = lane.plan(until)
                if len(lanes) > 1 and not lane.trials.suspects:
                    lane.trials.hold_back(reserve)  # controls for the trials of another lane
        ends = self._pump.run(links, until, idle=idle)
        for lane, link, end in zip(lanes, links, ends, strict=True):
            if link is not None:
                lane.conclude(link, end)
        self.batches[0].report_gaps()
        self._books.record()

    def _fail_all(self, until: float) -> None:
        """Fail every event: nothing can be delivered any more."""
        for lane in self:
            if lane.link is not None:
                lane.close_link(lane.link)
        self.fail(R_FATAL)
        self._books.record()
        self._rest(until)

    def _rest(self, until: float) -> None:
        """Sleep until an event comes, a caller wakes the sender, or `until`."""
        self._queue.wait_for_wake(max(0.0, until - time.monotonic()), for_event=True)

    def run_short(self, error: BaseException) -> None:
        """End the connections at a shortage of descriptors, threads or memory; without any, wait a while."""
        words = describe_error(error)
        connected = [(lane, lane.link) for lane in self if lane.link is not None]
        for lane, link in connected:
            lane.lost(link, words)
        if not connected:
            for lane in self:
                lane.endpoints.failed(words, "shortage")

    # -- ends --------------------------------------------------------------------------------------

    def plan_end(self, deadline: float) -> None:
        """Try all endpoints: delivery ends at the monotonic `deadline`."""
        self._books.not_before = 0.0
        for lane in self:
            lane.plan_end((time.monotonic() + deadline) / 2.0)

    def fail(self, reason: int) -> int:
        """Fail the events that have no outcome, as many at a time as are copied; return how many."""
        left = 0
        while True:
            some = self.batches[0].fail(reason)
            self.batches[0].commit()
            self._books.save_lost()
            left += some
            if not some:
                return left

    def wait_for_transports(self, deadline: float) -> None:
        """Wait for the data in a transport without acknowledgements; later events connect anew."""
        for lane in self:
            if lane.link is not None and lane.link.drains_on_close:
                lane.disconnect(deadline)

    def close(self, deadline: float) -> None:
        """Disconnect, and release what is kept between connections; data may drain until `deadline`."""
        for lane in self:
            lane.connector.park()
            lane.disconnect(deadline)
            lane.transport.close()
