"""The contract between engine, pumps, transports and protocol cores.

The engine (``delivery.engine``) decides when to connect, resend and end. It drives a loop of pumps
(``_ext/pump``), which are compiled. Each moves bytes between a codec and a `Link`, without the GIL, until
there is something to report:

- a *codec* is the hot half of a protocol on one connection: functions that frame events and read answers
  (``lc_codec`` in ``_ext/codec.pxd``, which describes each). Cython compiles it, or a ``PythonCodec`` calls
  a Python object (``_ext/pump/adapters.pyx``).
- a `Core` is the rest of the protocol, in Python: what happens once a connection, and messages that are rare.
- a `Transport` makes connections of one kind, each of them a `Link`.

Codecs and cores have no I/O: bytes in, outcomes out. They open no socket, read no clock, draw no random
number and start no thread; ``now`` (monotonic seconds) is an argument. ``logclient.codec`` drives both
without an engine.

Events are known by the sequences of the engine; a codec's own numbers never leave it. Base classes hold the
defaults of optional parts, so that callers never ask whether a part is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient._ext.constants import FRAME_MORE
from logclient.errors import ProtocolError

if TYPE_CHECKING:
    from logclient._ext.inflight import InflightBatches
    from logclient.delivery.attempt import Attempt

FOREVER = float("inf")

LONGEST = 4e6
"""Seconds of the longest wait, some 46 days: more may overflow in the system."""

TEST_PRODUCERS = bytes.fromhex("c4ec0000")
"""How producers begin whose events only test a server, so that the verifier ignores these; no others do."""


# -- messages of frames, and events of a core ---------------------------------------------------------


def join_frames(frames: Sequence[bytes]) -> bytes:
    """Return one message of frames as pumps move it: ``lc_wire`` in ``_ext/codec.pxd`` has the form."""
    parts = []
    for place, frame in enumerate(frames, 1):
        head = len(frame) | FRAME_MORE if place < len(frames) else len(frame)
        parts += [head.to_bytes(4, "little"), frame]
    return b"".join(parts)


def find_frames(data: bytes | memoryview, at: int = 0) -> list[tuple[int, int]]:
    """Return begin and end of each frame of the message at `at`; ValueError: it is not whole."""
    found = []
    more = FRAME_MORE
    while more:
        if len(data) - at < 4:
            raise ValueError(f"unit: no head of a frame at offset {at}")
        head = int.from_bytes(data[at : at + 4], "little")
        more, size = head & FRAME_MORE, head & ~FRAME_MORE
        if len(data) - at - 4 < size:
            raise ValueError(f"unit: a frame at offset {at} of {size} bytes is not whole")
        found.append((at + 4, at + 4 + size))
        at += 4 + size
    return found


class Reply(NamedTuple):
    """The answer to a ``call``."""

    token: int
    payload: Any


class Inbound(NamedTuple):
    """An unsolicited message of the peer."""

    payload: Any


class Fatal(NamedTuple):
    """The end of this connection; ``forever`` when a new one is useless (configuration, version)."""

    error: Exception
    forever: bool = False


class CloseWanted(NamedTuple):
    """The end of this connection, as if the peer had closed it."""


CoreEvent = Reply | Inbound | Fatal | CloseWanted


LookAtReceiver = Callable[[], tuple[int, int, int] | None]
"""Looks at the receive queue of the server's socket, where it is on this machine: (bytes in it, bytes that it
holds, datagrams that found no room). None: unknown."""


# -- the core ------------------------------------------------------------------------------------------


class Core:
    """One protocol's state on one connection at a time, around the codec of the protocol.

    Its class is called with the client's ``Config`` and the 10 bytes that begin every id of the producer. It
    raises ConfigError for an option that breaks a rule.

    Args:
        codec: the protocol's ``Codec``.
    """

    missing: int = 0
    """Events handed over that did not arrive, by the peer's own counters."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self._ended = False  # `Fatal` or `CloseWanted` was reported

    @property
    def codec(self) -> Any:
        """The codec, a ``CodecBase``."""
        return self._codec

    @property
    def compressor(self) -> str:
        """The compressor in use: ``none``, ``isal 1``, ``zlib 3``, ...; empty: the protocol has none."""
        return str(self._codec.compressor)

    def event_of(self, body: bytes, kind: int) -> bytes:
        """Return the application's event in the body of a queued one."""
        return body

    def take_over(self, name: bytes) -> None:
        """Continue for a producer whose process has ended; called before the first connection.

        Args:
            name: 10 random bytes, for what must differ from that process.
        """

    def connected(self, now: float) -> None:
        """Begin a new connection, on which nothing is in flight."""
        self._reset()
        self._ended = False
        self._codec.connected(now)

    def connection_lost(self) -> None:
        """Forget everything in flight: it has no outcome and is to be sent again."""
        self._reset()
        self._codec.connection_lost()

    def _reset(self) -> None:
        self._codec.outcomes()

    def take_events(
        self, in_flight: InflightBatches
    ) -> tuple[list[Reply | Inbound], Fatal | None, bool, int]:
        """Read what the codec has left to the core, and apply the outcomes in it.

        Returns:
            The events since the last call, `Fatal` if there was one, whether `CloseWanted` was there, and the
            number of acknowledgements.
        """
        found = list(self._read_events())
        ranges, progress, _ = self._codec.outcomes()
        for first, last, status, reason in ranges:
            in_flight.apply([(first, last)], status, reason)
        fatal = next((event for event in found if isinstance(event, Fatal)), None)
        if not self._ended and (error := self._codec.error) is not None:
            self._ended, fatal = True, Fatal(ProtocolError(error))
        closed = any(isinstance(event, CloseWanted) for event in found)
        others = [event for event in found if not isinstance(event, Fatal | CloseWanted)]
        return others, fatal, closed, int(progress)

    def _read_events(self) -> Iterator[CoreEvent]:
        """Read what the codec has left to the core; return its events, and forget them."""
        return iter(())

    # Optional parts.

    def receive_eof(self) -> None:
        """Note that the peer has closed its side."""

    def call(self, kind: str, payload: Any) -> int:
        """Ask the peer something (ping, stat).

        Returns:
            The token that the `Reply` will carry.

        Raises:
            ValueError: the protocol has no such question.
        """
        raise ValueError(f"call: {type(self).__name__} has no {kind!r}")

    def post_command(
        self, kind: str, payload: Any, first: int, in_flight: InflightBatches | None = None
    ) -> None:
        """Apply `payload` to the events from the sequence `first` on. There is no answer.

        Called by any thread, but by one at a time, and with a `first` that does not fall.

        Args:
            kind: of the command, such as Logux's ``headers``.
            payload: its content.
            first: a sequence.
            in_flight: the batches, which know the events that wait and those that are settled.

        Raises:
            ValueError: there is no such kind, or it cannot have this payload.
        """
        raise ValueError(f"command: this protocol has no {kind!r}")

    def set_wall_clock(self, wall: Callable[[], float]) -> None:
        """Take the wall clock, in seconds since 1970. Called once, before the first connection.

        For cores that date events by the server's clock.
        """

    dates_events = False
    """Whether it needs ``sample_clocks`` once a second while events wait."""

    def sample_clocks(self, now: float) -> None:
        """Compare the wall clock with the monotonic one. Called in every turn of the sender."""

    def regulate(self, now: float) -> float:
        """Adjust the sending rate, between two runs of a pump; return the second of the next call."""
        return FOREVER

    def path_mtu(self, mtu: int, headers: int) -> None:
        """Take the size of packets on the path to the server. Called before ``connected``, where known.

        Args:
            mtu: bytes of an IP packet.
            headers: of them those of IP and UDP.
        """

    def watch_receiver(self, look: LookAtReceiver) -> None:
        """Take the function that looks at the server's receive queue. Called before ``connected``."""


# -- connections ---------------------------------------------------------------------------------------


class Link:
    """A connection as a pump needs it."""

    peer: str
    """Host and port, for messages."""
    tls: str = ""
    """The protection of the connection, in words."""
    hint: str = ""
    """A likely reason for a peer to end the first connections without an answer; empty: none is known."""

    coalesce_bytes: int = 0
    """Bytes to gather for one ``send``, where each call is expensive; 0: each window goes by itself."""
    ack_coalesce_delay: float = 0.0
    """Seconds for answers to gather, where each would be a wake-up of its own; 0: no delay."""

    drains_on_close: bool = False
    """True for transports without acknowledgements. Bytes that the link has not passed on (`unsent`), or
    holds when it is closed, are then worth a wait, because their loss would be silent."""
    takes_messages: bool = False
    """True where each ``send`` is one message, whose length the codec has put before it."""

    mtu: int = 0
    """Bytes of an IP packet on the path to the peer; 0: unknown, or not of interest."""
    headers: int = 0
    """Bytes of them that IP and UDP take."""

    file: tuple[int, int, int] = (-1, 0, 0)
    """Descriptor, device and inode of the socket; -1: they are unknown."""

    @property
    def unsent(self) -> int:
        """Bytes given to ``send``, in units with their heads, that were not passed on."""
        return 0

    def receiver(self) -> tuple[int, int, int] | None:
        """Look at the receive queue of the server's socket: see `LookAtReceiver`."""
        return None

    def has_moved(self) -> bool:
        """Return whether the server is elsewhere by now. Asked in turns that have outcomes."""
        return False

    def facts(self) -> dict[str, Any]:
        """Describe the protection of the connection, and the proven identity of the peer."""
        return {}

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        """Take these bytes; return whether they and all before are passed on."""
        raise NotImplementedError

    def flush(self) -> bool:
        """Send the rest of earlier ``send`` calls; return whether nothing is left.

        Raises:
            OSError: the connection is gone.
        """
        raise NotImplementedError

    def receive(self) -> bytes | None:
        """Return the received bytes: None when there are none, ``b""`` when the peer closed.

        Raises:
            OSError: the connection is gone.
        """
        raise NotImplementedError

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        """Return what to wait for until ``receive``, or ``flush``, can go on.

        Args:
            writable: whether to wait for room, too.

        Returns:
            Descriptors to become readable, and to become writable, two in all at most, and the seconds after
            which to ask again; 0: it can go on now.
        """
        raise NotImplementedError

    def wait(self, seconds: float, writable: bool) -> None:
        """Sleep for so many seconds at most until the link is readable; if asked, or writable."""
        from logclient.threads import wait_ready  # cores import this module, and load no `threading`

        reading, writing, most = self.waits_for(writable)
        if most > 0:
            wait_ready(reading, writing, min(seconds, most))

    def close(self, flush_for: float = 0.0) -> None:
        """End the connection; with `drains_on_close`, wait `flush_for` seconds for the bytes it holds."""
        raise NotImplementedError

    def abandon(self) -> None:
        """In a forked child, close the descriptors without sending anything to the peer."""
        raise NotImplementedError


class Transport:
    """Makes connections of one kind.

    Its class is called with the client's ``Config``. It raises ConfigError for an option that breaks a rule.
    """

    def __init__(self, config: Any) -> None:
        """Read the options of connections."""

    def connect(self, endpoint: Any, attempt: Attempt) -> Link:
        """Connect to one endpoint.

        Args:
            endpoint: host and port.
            attempt: decides when to give up; asked regularly.

        Raises:
            CredentialError: a certificate, token or key is refused, by the peer or by us.
            OSError: there is no connection in time.
        """
        raise NotImplementedError

    # Optional parts.

    def load_pump(self) -> Callable[..., Any]:
        """Import what makes the compiled pump of in-flight batches, a codec, and its limits.

        Raises:
            ImportError: there is none; the message is the reason.
        """
        raise ImportError("this transport has no compiled pump")

    def proxy_of(self, endpoint: Any) -> str:
        """Return the name of the proxy through which a connection would go; empty: through none."""
        return ""

    def close(self) -> None:
        """Release the resources kept between connections."""


# -- the pump ------------------------------------------------------------------------------------------


GOES_ON = frozenset({"until", "report", "target", "stopped"})
"""Ends of a run of the loop after which the connection goes on; see ``PumpGroup.run``."""
