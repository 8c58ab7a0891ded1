"""plog's compiled half: the client (`Hot`), fragments and what is made of them again, the decoder of captures.

What is to be sent and what was received are runs of datagrams, each behind its head: u32 bytes of the run and
u32 segment, little-endian; a run's datagrams are `segment` bytes each, the last may be shorter (``hot.pxd``).
"""

from collections.abc import Iterable
from typing import Final, final

from _typeshed import ReadableBuffer

from logclient._ext.codec_base import CodecBase
from logclient._ext.decoder import BatchDecoder, Column, Events

HEADER: Final[int]
"""24: bytes of a fragment before its tags and payload."""
MAX_DATAGRAM: Final[int]
"""65,507: bytes of the largest datagram over IPv4."""
MAX_FRAGMENTS: Final[int]
"""65,535, of a message."""
MAX_MESSAGE: Final[int]
"""2**31 - 1 bytes."""
MAX_ID: Final[int]
"""2**31 - 1: after it comes 1."""

# -- fragments -----------------------------------------------------------------------------------

def fragments(payload: ReadableBuffer, id: int, *, datagram: int = ..., tags: bytes = b"") -> list[bytes]:
    """The datagrams of one boxed message.

    Args:
        id: of the message, 0 to 2**31 - 1.
        datagram: bytes of each, at most.
        tags: as they travel.

    Raises:
        ValueError: an argument outside its range, or more than 65,535 fragments.
    """

def datagrams(runs: ReadableBuffer, /) -> list[bytes]:
    """The datagrams in whole runs.

    Raises:
        ValueError: the data are no whole runs.
    """

def join_runs(datagrams: Iterable[ReadableBuffer], /) -> bytes:
    """Datagrams as runs, as many in one as go: one send with UDP GSO takes a run.

    Raises:
        ValueError: one is longer than a datagram can be.
    """

# -- the client ----------------------------------------------------------------------------------

@final
class Hot(CodecBase):
    """The client: events out as runs of datagrams, replies in, all of it without the GIL behind `capsule`.

    An event whose kind has the high nibble 1 has its own tags before its body: u16 big-endian, and as many
    bytes. The id goes into ``uuid`` of what is one JSON object without it, unless the kind says that it is
    bytes; all else travels as it is, and the ledger keeps the hash of the user's ``uuid``, or of the body.

    Args:
        producer: the 10 bytes that begin every id.
        datagram: bytes of a datagram at most, 25 to 65,507.
        tags: of messages that have none of their own, as they travel.
        unboxed: send without a box what may travel so: no tags, in one datagram, a first byte above 31.
        max_message: bytes of a message at most, the id in; a longer one fails as too_large, as does one of
            more than 65,535 fragments.
        batch_bytes: bodies encoded at once, at most; a larger one goes alone.
        identity: splice the id in.
        check: check that raw bodies are one JSON object in UTF-8 before the id goes in.
        packets, burst: a second, and at once after a pause; 0 packets a second: no bound.
        size, size_burst: the same in bytes of datagrams.
        number: of the first message of each socket; after 2**31 - 1 comes 1.
        lines: for TCP: each message is a line, without box and tags. One with a line end in it, or a CR at
            its end, fails as unencodable.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self,
        producer: bytes,
        *,
        datagram: int = 1452,
        tags: bytes = b"",
        unboxed: bool = False,
        max_message: int = 262144,
        batch_bytes: int = 1048576,
        identity: bool = True,
        check: bool = True,
        packets: float = 10000.0,
        burst: float = 64.0,
        size: float = 67108864.0,
        size_burst: float = 131072.0,
        number: int = 1,
        lines: bool = False,
    ) -> None: ...
    @property
    def compressor(self) -> str: ...
    @property
    def error(self) -> None: ...
    @property
    def now(self) -> float:
        """The clock when it was seen last, by whoever drives this."""
    @property
    def datagram(self) -> int:
        """Bytes of a datagram at most; of what is encoded from now on.

        Raises:
            ValueError: 25 to 65,507, and room for the tags.
        """

    @datagram.setter
    def datagram(self, size: int) -> None: ...
    def pace(
        self,
        now: float,
        packets: float,
        size: float,
        *,
        burst: float | None = None,
        size_burst: float | None = None,
    ) -> None:
        """Packets and bytes a second from now on, 0: no bound; between two calls of a pump, never beside one."""
    def ready(self, now: float) -> float:
        """When the pace lets the next message go; 0: now."""
    @property
    def counts(self) -> tuple[int, int, int]:
        """Messages encoded with a box, without one, and the datagrams of both."""
    def connected(self, now: float) -> None:
        """A new socket: messages are numbered anew."""
    def connection_lost(self) -> None: ...
    def sent(self, rest: int = 0) -> None:
        """The kernel has taken all that was ready but its last `rest` bytes, whole runs."""
    @property
    def unsent(self) -> int:
        """Events that are in flight: the transport has not all of their datagrams."""
    def command(self, datagram: bytes) -> None:
        """Put a datagram behind what is to be sent; the pace is not asked."""
    def heard(self) -> list[bytes]:
        """The datagrams that came since the last call; at most 1 MiB of them wait."""

# -- put together again --------------------------------------------------------------------------

MESSAGE: Final = 0
"""A boxed message, whole with this datagram."""
SIMPLE: Final = 1
"""An unboxed message."""
FRAGMENT: Final = 2
"""One of several fragments, kept: others are missing. A second copy of one is that too."""
COMMAND: Final = 3
"""What follows the two zeroes is the payload: the letters and all."""
EMPTY: Final = 4
"""No message: an empty datagram. The real server takes it for what an earlier one left in its buffer."""
BAD_VERSION: Final = 5
"""No message: a first byte of 1 to 31."""
BAD_TYPE: Final = 6
"""No message: neither a command nor a fragment."""
BAD_HEADER: Final = 7
"""No message: shorter than the header, a count of 0, an index not below it, a total below 0, tags beyond it."""
OUT_OF_BOUNDS: Final = 8
"""No message: an offset beyond the total, tags beyond the server's buffer; it throws."""
BAD_FRAGMENT: Final = 9
"""No fragment of its message: another count, size, hash or length. A good one may still come."""
BAD_CHECKSUM: Final = 10
"""No message: all of it is there, and its hash is another."""
TOO_LARGE: Final = 11
"""No message: a total that is not kept."""

VERDICT_NAMES: Final[tuple[str, ...]]
"""Lower-case words for them, for reports."""

@final
class Judged:
    """Datagrams, judged: a row each, in order."""

    def __len__(self) -> int: ...
    @property
    def verdict(self) -> Column:
        """uint8: `MESSAGE` and so on."""
    @property
    def opened(self) -> Column:
        """uint8: 1 for the first fragment that was seen of its message: what a server counts holes by."""
    @property
    def id(self) -> Column:
        """uint32: the message's, 0 where there is none."""
    @property
    def count(self) -> Column:
        """uint16: fragments of the message, 0 where it is none."""
    @property
    def index(self) -> Column:
        """uint16: of the fragment."""
    @property
    def begin(self) -> Column:
        """int64: where the payload begins in the data; below 0: not there, see `payload`."""
    @property
    def length(self) -> Column:
        """int32: of the payload."""
    @property
    def tags_begin(self) -> Column:
        """int64: the same of the tags."""
    @property
    def tags_length(self) -> Column:
        """int32"""
    def payload(self, row: int) -> bytes:
        """The payload of a row, put together where it had several fragments; the data must still be there.

        Raises:
            IndexError: there is no such row.
        """
    def tags(self, row: int) -> bytes:
        """The tags of a row as they travelled; of several fragments those that came last."""

@final
class Reassembler:
    """Judges datagrams as the real server does, and puts messages together.

    Fragments may come in any order and more than once. A message that is whole is forgotten: a second one is
    delivered again, and a fragment too many begins a message that is never whole.

    Args:
        max_message: bytes of a message of several fragments, at most.
        max_bytes: for all messages that are not whole, what they say to be and 1/8 byte a fragment; the one
            that was not touched for longest goes first. Nothing is made room for beyond it.
        expire: seconds after which a message that was not touched is given up.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self, *, max_message: int = 262144, max_bytes: int = 1048576, expire: float = 10.0
    ) -> None: ...
    def feed(
        self,
        data: ReadableBuffer,
        offsets: ReadableBuffer,
        lengths: ReadableBuffer,
        streams: ReadableBuffer,
        now: float,
    ) -> Judged:
        """Judge the datagrams ``data[offset:offset + length]``, in order; the GIL is let go of.

        Args:
            offsets, lengths: int64 each, equally many.
            streams: uint64, as many: of whom a datagram is. The real server looks at the port alone.
            now: seconds of any clock that does not go back.

        Raises:
            ValueError: sizes differ, or a datagram leaves `data`.
        """
    def expire(self, now: float) -> None:
        """Give up what was not touched for long; `feed` does so too."""
    @property
    def open(self) -> list[tuple[int, int, int, int]]:
        """(stream, id, fragments that are there, fragments in all) of messages that are not whole, the one
        that was not touched for longest first."""
    @property
    def held(self) -> int:
        """Bytes that count in `max_bytes`."""
    def counters(self) -> dict[str, int | list[int] | list[list[int]] | dict[str, int]]:
        """What was judged so far, under the names of the real server's STAT; and ``empty``."""

# -- decoding captures ---------------------------------------------------------------------------

OK: Final = 0
"""The event carries an id of a producer (of `producers`, when they were given)."""
FOREIGN: Final = 1
"""It carries none of those ids: `id_hash` has the hash of the user's own ``uuid``, or of the whole body."""
NO_ID: Final = 2
"""Nobody looked for an id: `identity` is False."""

STATUS_NAMES: Final[tuple[str, ...]]
"""Lower-case words for them, for reports: these three, one that never is, the faults from `EMPTY` on under
the same numbers, ``command``."""

@final
class Decoded(Events):
    """Decoded datagrams: a row for each whole message, and one for each fault and command.

    `offset` and `length` are those of the body in the unit. For a message of several fragments `length` is
    that of the whole, `unit` the one that completed it, and `offset` where the last part of it begins.
    """

    @property
    def simple(self) -> Column:
        """uint8: 1 when the message was unboxed."""
    @property
    def fragments(self) -> Column:
        """uint16: fragments of the message; 0 when it was unboxed."""
    @property
    def number(self) -> Column:
        """uint32: the message's id, by which servers count holes; 0 when it was unboxed."""

@final
class Decoder(BatchDecoder[Decoded]):
    """Decodes captured datagrams, and keeps the fragments of incomplete messages between calls.

    Use one decoder for each listener.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. With them an id counts when it begins with
            one of these. Without them any 32 hex digits in ``uuid`` are an id.
        identity: False when the producers wrote no ids (``identity=none``): bodies are not searched.
        datagrams: False when units are bodies, as in a Kafka topic.
        max_message, max_bytes, expire: as for `Reassembler`. None for max_bytes: 64 MiB, or one message if
            that is larger.
    """

    def __init__(
        self,
        producers: ReadableBuffer = b"",
        *,
        identity: bool = True,
        datagrams: bool = True,
        max_message: int = 67108864,
        max_bytes: int | None = None,
        expire: float = 10.0,
    ) -> None: ...
    def decode(
        self,
        data: ReadableBuffer,
        offsets: ReadableBuffer,
        lengths: ReadableBuffer,
        streams: ReadableBuffer | None = None,
        received_us: ReadableBuffer | None = None,
    ) -> Decoded:
        """Decode the units ``data[offset:offset + length]``, without the GIL.

        Args:
            data: the bytes of all units.
            offsets: int64, where each unit begins.
            lengths: int64, the bytes of each unit.
            streams: uint64, the sender of each unit; None: one sender.
            received_us: int64, the time of arrival of each unit in microseconds; None: nothing expires.

        Raises:
            ValueError: the columns differ in size, or a unit is not inside `data`.
        """
    @property
    def open(self) -> list[tuple[int, int, int, int]]:
        """As `Reassembler.open`."""

def expand(unit: ReadableBuffer) -> bytes:
    """Return the unit as bytes: nothing in it is compressed."""
