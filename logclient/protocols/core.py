"""What a protocol core is: the one place where core and engine meet.

A core is sans-IO: bytes in, events out. It opens no socket, reads no clock, draws no random
number and starts no thread; ``now`` (monotonic seconds) and ``random`` are arguments.

The way of a batch::

    core.connected(now, random)                 a new connection, nothing in flight on it
    events, size = core.credit(now)             may more be sent?
    core.encode(batch, events, now)             frames the batch's pending events
    for wire in core.data_to_send(): ...        the transport moves bytes
    core.sent()
    core.receive_data(data, now)                what the peer said
    for event in core.events_received(): ...    Outcome, Alive, Progress, Retry, Reply, ...
    core.connection_lost()                      what had no word yet is pending again

``ranges`` are engine sequences, inclusive, in any order; a core's own numbers never leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from logclient._ext.flight import Event, Flight

Ranges = Sequence[tuple[int, int]]


class Batch(Protocol):
    """A view of events detached from the hand-off; see ``_ext.flight.Batch``."""

    def pending(self, limit: int) -> list[Event]:
        """The first `limit` events that wait to be sent, in rising sequence."""

    def mark(self, seq: int, fate: int, reason: int = 0, hash: int = 0) -> None:
        """Set the fate of one event (``INFLIGHT`` when it was encoded, with the hash of its body)."""


class Wire(NamedTuple):
    """Bytes to move: stream, frames, datagrams or messages alike.

    Messages of frames (ZeroMQ) are whole messages in one stream of bytes, each frame behind its head: its
    length as u32 little-endian, with the top bit set when another frame of the same message follows.

    Datagrams (UDP) are runs in one stream of bytes, each run behind its head: its bytes and its segment, u32
    little-endian each. A run holds datagrams of `segment` bytes back to back, the last may be shorter; one
    send with UDP GSO takes a whole run.

    What such cores receive has the same form (``_ext/hot.pxd``).
    """

    buffers: Sequence[memoryview | bytes]


class Outcome(NamedTuple):
    """These events have got their fate: ``status`` is ``acked``, ``handed`` or ``failed``."""

    status: str
    reason: str
    ranges: Ranges


class Retry(NamedTuple):
    """These events must be sent again, in order."""

    ranges: Ranges
    reason: str


class Alive(NamedTuple):
    """The peer lives; resets the silence deadline, is no progress."""


class Progress(NamedTuple):
    """An acknowledgement moved something; resets both deadlines."""


class Reply(NamedTuple):
    """The answer to a ``call``."""

    token: int
    payload: Any


class Inbound(NamedTuple):
    """Something the peer sent of its own accord."""

    payload: Any


class Fatal(NamedTuple):
    """This connection is over. ``forever`` when no new one can help (configuration, version)."""

    error: Exception
    forever: bool = False


class CloseWanted(NamedTuple):
    """Everything asked for by ``begin_close`` is done."""


CoreEvent = Outcome | Retry | Alive | Progress | Reply | Inbound | Fatal | CloseWanted


class Core(Protocol):
    """One protocol's state on one connection at a time."""

    def connected(self, now: float, random: Callable[[], float]) -> None: ...

    def connection_lost(self) -> None: ...

    def credit(self, now: float) -> tuple[int, int]:
        """(events, bytes) that may be encoded now; 0 events means wait."""

    def encode(self, batch: Batch, events: int, now: float) -> int:
        """Frame up to `events` pending events of `batch`; the number that went on the wire."""

    def call(self, kind: str, payload: Any) -> int:
        """A verb of the protocol (ping, stat, headers); the token its ``Reply`` will carry."""

    def data_to_send(self) -> list[Wire]:
        """What waits to be moved; valid until ``sent()``."""

    def sent(self, rest: int = 0) -> None:
        """The transport has what was ready; of its last `rest` bytes, whole units, it has a copy to send."""

    def receive_data(self, data: bytes, now: float) -> None: ...

    def receive_eof(self) -> None: ...

    def events_received(self) -> Iterator[CoreEvent]: ...

    def next_timeout(self, now: float) -> float | None:
        """The monotonic second at which ``handle_timeout`` must be called, if any."""

    def handle_timeout(self, now: float) -> None: ...

    def begin_close(self, now: float) -> None: ...

    @property
    def hot(self) -> object | None:
        """The capsule with the core's compiled half (``_ext/hot.pxd``), where it has one."""


@runtime_checkable
class TakesNotes(Protocol):
    """What a core also is that does things in line with events, and for nobody who waits: Logux's headers."""

    def note(self, kind: str, payload: Any, first: int, flight: Flight | None = None) -> None:
        """Let `payload` hold for the events from the sequence `first` on.

        Called by any thread, but by one at a time, and with a `first` that does not fall.

        Args:
            flight: tells what waits to be sent, and what is settled.

        Raises:
            ValueError: there is no such kind, or it cannot have this payload.
        """
