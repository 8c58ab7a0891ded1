"""All connections of one client: a group of lanes that one loop drives.

A client has one queue, one sender and one ledger. Its group has one lane; with ``balance`` one for each
endpoint. The loop gives the next batch to the lane with the fewest bytes in flight. With several lanes, an
attempt to connect has a thread of its own, so that a server that does not answer delays no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient._ext.constants import R_FATAL
from logclient._ext.inflight import InflightBatches
from logclient.delivery.lane import MOVE_WAIT, Lane
from logclient.errors import ConfigError

if TYPE_CHECKING:
    from logclient._ext.pump import PumpGroup
    from logclient.config import Config
    from logclient.delivery.bookkeeping import Bookkeeper
    from logclient.delivery.contract import Core, Link, Transport
    from logclient.delivery.diagnostics import Diagnostics
    from logclient.delivery.ending import Ending
    from logclient.delivery.requests import Requests
    from logclient.delivery.sender import Sender

MOST_ENDPOINTS = 64
"""As many lanes as one loop has room for."""

SHARE = 0.25
"""Seconds for an attempt to connect in a caller's thread while another server is connected."""

ALONE = 1.0
"""Seconds for it while none is, and there are others to try."""


class Move(NamedTuple):
    """A change of the server that was asked for, and by when the old connections end."""

    endpoints: tuple[Any, ...]
    transports: tuple[Transport, ...]
    url: str
    deadline: float


class Route(NamedTuple):
    """Where the connections of a client go.

    Attributes:
        endpoints: of the URL, in its order.
        transports: one for each lane, at first one.
        make_transport: makes that of a further lane; None: one lane has all endpoints.
    """

    endpoints: tuple[Any, ...]
    transports: list[Transport]
    make_transport: Callable[[], Transport] | None

    def check(self) -> None:
        """Check that each endpoint can have a lane.

        Raises:
            ConfigError: there are too many, or one twice.
        """
        if self.make_transport is None:
            return
        if len(self.endpoints) > MOST_ENDPOINTS:
            raise ConfigError(f"balance: for {MOST_ENDPOINTS} servers at most")
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ConfigError("balance: each server once")

    def order(self, place: int) -> tuple[tuple[Any, ...], bool]:
        """Return the endpoints in the order of one lane, and whether the first is its home."""
        first = place % len(self.endpoints)
        return self.endpoints[first:] + self.endpoints[:first], place < len(self.endpoints)


class Lanes:
    """The lanes of one client.

    Args:
        batches: the in-flight batches of each lane; more are made as needed.
    """

    def __init__(
        self,
        route: Route,
        batches: list[InflightBatches],
        make_core: Callable[[], Core],
        producer: bytes,
        pump: PumpGroup,
        limits: Config,
        ending: Ending,
        sender: Sender,
        books: Bookkeeper,
        requests: Requests,
        diagnostics: Diagnostics,
        keeps_connected: bool,
    ) -> None:
        self.route = route
        self.batches = batches
        self.moving: Move | None = None
        self._make_core = make_core
        self._producer = producer
        self._pump = pump
        self._limits = limits
        self._ending = ending
        self._sender = sender
        self._books = books
        self._requests = requests
        self._diagnostics = diagnostics
        self._keeps_connected = keeps_connected
        self._queue = batches[0].queue
        self._lanes: list[Lane] = []
        route.check()
        self._add_lanes()

    def _add_lanes(self) -> None:
        """Add the lanes that are missing. One that lost its home by a move stays."""
        make_transport = self.route.make_transport
        wanted = 1 if make_transport is None else max(len(self.route.endpoints), len(self.batches))
        for place in range(len(self._lanes), wanted):
            if place == len(self.batches):
                self.batches.append(InflightBatches(self._queue, self.batches[0]))
            if place == len(self.route.transports):
                assert make_transport is not None
                self.route.transports.append(make_transport())
            endpoints, has_home = self.route.order(place)
            lane = Lane(
                self._make_core(),
                self.batches[place],
                self.route.transports[place],
                endpoints,
                self._limits,
                self._producer,
                self._books,
                self._requests,
                self._diagnostics,
                self._pump.poke,
                alone=make_transport is None,
                has_home=has_home,
                handed=self._ending.is_handed,
                keeps_connected=self._keeps_connected,
            )
            self._pump.add(lane.pump)
            self._lanes.append(lane)

    def __iter__(self) -> Iterator[Lane]:
        return iter(tuple(self._lanes))

    @property
    def first(self) -> Lane:
        """The lane whose core answers requests."""
        return self._lanes[0]

    @property
    def fatal(self) -> Exception | None:
        """The reason for which nothing can be delivered any more."""
        return next((lane.fatal for lane in self if lane.fatal is not None), None)

    @property
    def may_be_reachable(self) -> bool:
        """Whether a server is reachable as far as is known; True before the first attempt."""
        return any(lane.may_be_reachable for lane in self)

    @property
    def holds_sender(self) -> bool:
        """Whether the sender's thread is in an attempt to connect."""
        return any(lane.holds_sender for lane in self)

    def keep_connected(self, on: bool) -> None:
        """Have the lanes connect even if there is nothing to send, or not."""
        self._keeps_connected = on
        for lane in self:
            lane.keeps_connected = on

    # -- what lanes ask ----------------------------------------------------------------------------

    @property
    def holds_attempts(self) -> bool:
        """Whether no attempt to connect may begin, or go on."""
        return self._ending.muted or self._sender.is_stopped or self.moving is not None

    def is_late(self, began: float) -> bool:
        """Return whether an attempt in the sender's thread takes the time of other servers."""
        if len(self._lanes) == 1:
            return False
        some = any(lane.link is not None for lane in self)
        return time.monotonic() - began > (SHARE if some else ALONE)

    def needs_thread(self) -> bool:
        """Return whether an attempt is to have a thread of its own."""
        return self.route.make_transport is not None and not self._sender.inline

    def record_gaps(self) -> None:
        """Record events that were dropped from the queue."""
        self.batches[0].report_gaps()
        self.batches[0].commit()
        self._books.record()

    # -- delivery ----------------------------------------------------------------------------------

    def deliver(self, until: float) -> None:
        """Connect where there is a use for it, and move bytes until the monotonic second `until` at most."""
        if self.moving is not None:
            until = self._plan_move(self.moving, until)
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
        requested = links[0] is not None and self._requests.start(lanes[0].core)
        for lane, link in zip(lanes, links, strict=True):
            if link is not None:
                until = lane.plan(until, requested and lane is lanes[0])
                if len(lanes) > 1 and not lane.trials.suspects:
                    lane.trials.hold_back(reserve)  # controls for the trials of another lane
        ends = self._pump.run(links, until)
        for lane, link, end in zip(lanes, links, ends, strict=True):
            if link is not None:
                lane.conclude(link, end)
        self.batches[0].report_gaps()
        self._books.record()

    def _fail_all(self, until: float) -> None:
        """Fail every event: nothing can be delivered any more."""
        for lane in self:
            if lane.link is not None:
                lane.leave(lane.link)
        self.fail(R_FATAL)
        self._books.record()
        self._rest(until)

    def _rest(self, until: float) -> None:
        """Sleep until an event comes, a caller wakes the sender, or `until`."""
        if self._queue.prepare_wait(True):
            self._queue.wait_for_wake(max(0.0, until - time.monotonic()))
        self._queue.finish_wait()

    def run_short(self, words: str) -> None:
        """End the connections at a shortage of descriptors, threads or memory; without any, wait a while."""
        connected = [(lane, lane.link) for lane in self if lane.link is not None]
        for lane, link in connected:
            lane.lost(link, words)
        if not connected:
            for lane in self:
                lane.endpoints.failed(f"{self._diagnostics.url}: {words}", "shortage")

    # -- a move ------------------------------------------------------------------------------------

    def plan_move(
        self, endpoints: tuple[Any, ...], make_transport: Callable[[], Transport], url: str
    ) -> None:
        """Deliver to other endpoints from now on. May be called from any thread.

        Events in flight get their outcomes first, within `MOVE_WAIT` seconds; what has none then is sent
        again to the new endpoints. What `make_transport` raises is raised here, and nothing has changed.
        """
        self.route._replace(endpoints=endpoints).check()
        wanted = 1 if self.route.make_transport is None else max(len(self._lanes), len(endpoints))
        transports = tuple(make_transport() for _ in range(wanted))
        self.moving = Move(endpoints, transports, url, time.monotonic() + MOVE_WAIT)

    def _plan_move(self, move: Move, until: float) -> float:
        """Leave the old endpoints once that is possible; return when to ask again, `until` at most."""
        now = time.monotonic()
        waits = False
        for lane in self:
            lane.park()
            lane.is_moving = True
            if lane.link is not None and lane.in_flight.inflight and now < move.deadline:
                waits = True
            elif lane.link is not None:
                lane.leave(lane.link)
        if waits:
            return min(until, move.deadline)
        if self.moving is move:
            self.moving = None
        self._apply_move(move)
        return until

    def _apply_move(self, move: Move) -> None:
        self._diagnostics.url = move.url
        for transport in self.route.transports:
            transport.close()
        self.route = self.route._replace(endpoints=move.endpoints, transports=list(move.transports))
        for place, lane in enumerate(self):
            lane.move(*self.route.order(place), self.route.transports[place])
        self._add_lanes()

    # -- ends --------------------------------------------------------------------------------------

    def plan_end(self, deadline: float) -> None:
        """Try all endpoints at once: delivery ends at the monotonic `deadline`."""
        now = time.monotonic()
        self._books.not_before = 0.0
        for lane in self:
            lane.trials.deadline = now + (deadline - now) / 2.0
            lane.endpoints.not_before = 0.0

    def stop_trials(self) -> None:
        """Begin no more trials while other events wait: the process ends."""
        for lane in self:
            lane.trials.stop()

    def fail(self, reason: int) -> int:
        """Fail the events that have no outcome; return how many."""
        left = self.batches[0].fail(reason)
        self.batches[0].commit()
        return left

    def disconnect(self, deadline: float) -> None:
        """Close all connections; data that transports hold may drain until `deadline`."""
        for lane in self:
            lane.park()
            lane.disconnect(deadline)

    def drain(self, deadline: float) -> None:
        """Wait for the data in a transport without acknowledgements; later events connect anew."""
        for lane in self:
            if lane.link is not None and lane.link.drains_on_close:
                lane.disconnect(deadline)

    def close(self, deadline: float) -> None:
        """Disconnect, and release the resources kept between connections."""
        self.disconnect(deadline)
        for transport in self.route.transports:
            transport.close()
