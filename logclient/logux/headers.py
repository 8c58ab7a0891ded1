"""Logux: our headers, in order with the events that they are for."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import Any, NamedTuple

from logclient._ext.inflight import InflightBatches
from logclient._ext.logux import Codec
from logclient.logux.messages import Headers, pack, parse

MAX_SEQUENCE = (1 << 64) - 1
"""The highest sequence of an event."""

HEADERS_KEPT = 16 << 20
"""Bytes of former headers kept for events that are not settled. Beyond that the oldest are forgotten, and
their events travel with the next ones."""


class _Mark(NamedTuple):
    first: int
    text: bytes


_first_of = attrgetter("first")


NONE = pack(Headers({}))
"""The message of a node that has not set any headers."""


class HeaderSender:
    """Keeps the headers that were set until no event needs them any more, and sends them before these events.

    `note` may be called by any thread, one at a time. All else is for the sender.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._new: deque[_Mark] = deque()  # not seen by the sender yet
        self._marks = [_Mark(0, NONE)]  # in the order of events
        self._size = len(NONE)
        self._in_flight: InflightBatches | None = None
        self.begin()

    def begin(self) -> None:
        """Begin a connection, on which no headers were sent."""
        self._sent = NONE
        self._check = True  # there may be headers to send

    def note(self, payload: Any, first: int, in_flight: InflightBatches | None) -> None:
        """Set the headers of the events from `first` on; a ValueError says why servers refuse them."""
        if not isinstance(payload, dict) or type(payload.get("length")) in (int, float, bool):
            raise ValueError("headers: a mapping, without a number as length")
        try:
            text = pack(Headers(payload))
            parse(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"headers: {error}") from None
        self._in_flight = in_flight
        try:
            if self._new[-1].first == first:
                self._new[-1] = _Mark(first, text)
                return
        except IndexError:  # the sender has just taken them
            pass
        self._new.append(_Mark(first, text))

    def take(self) -> None:
        if self._new:
            self._update()
            self._check = True

    def order(self) -> None:
        """Send the newest headers if no event needs others first, and see whether others are left to send."""
        if not self._check:
            return
        self._update()
        in_flight = self._in_flight
        if not (
            self._codec.open
            or self._codec.suspects
            or (in_flight is not None and (in_flight.waiting or in_flight.queue.queued[0]))
        ):
            self.send_newest()
        marks = self._marks
        self._check = bool(self._new) or len(marks) > 1 or self._sent != marks[-1].text

    def send_wanted(self) -> None:
        """Send the headers of the event that waits for them, or block."""
        self._update()
        self._check = True
        seq = self._codec.wanted
        text, _, _ = self._of(seq)
        if text != self._sent and self._codec.open:
            self._codec.block()
            return
        self._send(text)
        self._set_range(seq)

    def send_newest(self) -> None:
        text, first, _ = self._of(MAX_SEQUENCE)
        self._send(text)
        self._set_range(first)

    def _set_range(self, seq: int) -> None:
        """Tell the codec which events have the headers of `seq`, which were sent."""
        while True:
            text, first, last = self._of(seq)
            if text != self._sent:
                first, last = 1, 0
            self._codec.set_headers(first, last)
            if not self._new:
                return
            self._update()  # others were set meanwhile

    def _send(self, text: bytes) -> None:
        if text != self._sent:
            self._codec.say(text)
            self._sent = text

    def _update(self) -> None:
        """Take the headers that were set, and forget those that no event needs any more."""
        marks = self._marks
        while self._new:
            mark = self._new.popleft()
            if marks[-1].first == mark.first:
                self._size -= len(marks.pop().text)
            marks.append(mark)
            self._size += len(mark.text)
        settled = 0 if self._in_flight is None else self._in_flight.queue.settled
        last, useless = len(marks) - 1, bisect_right(marks, settled + 1, key=_first_of) - 1
        kept = self._size - sum(len(mark.text) for mark in marks[:useless])
        while kept > HEADERS_KEPT and useless < last:
            kept -= len(marks[useless].text)
            useless += 1
        if useless:
            del marks[:useless]
            marks[0] = _Mark(0, marks[0].text)
            self._size = kept

    def _of(self, seq: int) -> tuple[bytes, int, int]:
        """Return the headers of an event, and the first and the last event with the same headers."""
        marks = self._marks
        after = bisect_right(marks, seq, key=_first_of)
        last = marks[after].first - 1 if after < len(marks) else MAX_SEQUENCE
        return marks[after - 1].text, marks[after - 1].first, last
