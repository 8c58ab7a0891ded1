"""plog: the client (`Codec`), fragments and their reassembly, the decoder of captures."""

from collections.abc import Iterable
from typing import Final, TypeVar, final

from _typeshed import ReadableBuffer

from logclient._ext.codec_base import CodecBase
from logclient._ext.decoder import BatchDecoder, Events

_Events = TypeVar("_Events", bound=Events, covariant=True)

HEADER: Final[int]
"""24: bytes of a fragment before its tags and payload."""
MAX_DATAGRAM: Final[int]
"""65,507: bytes of the largest datagram over IPv4."""
MAX_FRAGMENTS: Final[int]
"""65,535: the most fragments of a message."""
MAX_MESSAGE: Final[int]
"""2**31 - 1 bytes."""
MAX_ID: Final[int]
"""2**31 - 1: the highest number of a message; 1 follows it."""

# -- fragments -----------------------------------------------------------------------------------

def fragments(payload: ReadableBuffer, id: int, *, datagram: int = ..., tags: bytes = b"") -> list[bytes]:
    """Cut a boxed message into datagrams."""

def datagrams(runs: ReadableBuffer, /) -> list[bytes]:
    """Return the datagrams in whole runs."""

def join_runs(datagrams: Iterable[ReadableBuffer], /) -> bytes:
    """Join datagrams into as few runs as possible."""

# -- the client ----------------------------------------------------------------------------------

@final
class Codec(CodecBase):
    """The client: encodes events as runs of datagrams or as lines, and takes replies."""

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
    def now(self) -> float:
        """The latest time that was passed to a method, in seconds of the monotonic clock."""
    @property
    def datagram(self) -> int:
        """Bytes of a datagram at most, for messages encoded from now on."""
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
        """Set the pace: packets and bytes per second, and how many of them at once after a pause."""
    @property
    def room(self) -> float:
        """What the receiver's queue may still be charged; below 0 after a message larger than that."""
    def grant(self, room: float, most: float) -> None:
        """Set what the receiver's queue may be charged until the next grant, and when it is empty."""
    def ready(self, now: float) -> float:
        """Return when the pace allows the next message; 0: now."""
    @property
    def counts(self) -> tuple[int, int, int]:
        """Boxed messages, unboxed messages, and datagrams of both, encoded so far."""
    def connected(self, now: float) -> None:
        """Begin with a new socket."""
    def connection_lost(self) -> None:
        """Forget everything in flight and everything received."""
    @property
    def unsent(self) -> int:
        """Events in flight: the transport has not taken all of their datagrams."""
    def command(self, datagram: bytes) -> None:
        """Append a datagram to the bytes to send, regardless of the pace."""
    def take_replies(self) -> list[bytes]:
        """Return the datagrams received since the last call."""

# -- the reassembler -----------------------------------------------------------------------------

MESSAGE: Final = 0
"""A boxed message, complete with this datagram."""
SIMPLE: Final = 1
"""An unboxed message."""
FRAGMENT: Final = 2
"""A fragment that is kept because others of its message are missing. A second copy counts as one, too."""
COMMAND: Final = 3
"""A command. The payload is everything after the two zero bytes, with the letters."""
EMPTY: Final = 4
"""An empty datagram. The real server reads the rest of an earlier one in its buffer."""
BAD_VERSION: Final = 5
"""A first byte of 1 to 31."""
BAD_TYPE: Final = 6
"""Neither a command nor a fragment."""
BAD_HEADER: Final = 7
"""Too short, an index that is not below the count, a total below 0, or tags beyond the end."""
OUT_OF_BOUNDS: Final = 8
"""An offset beyond the total, or tags beyond the server's buffer, at which it throws."""
BAD_FRAGMENT: Final = 9
"""Another count, size, hash or length than its message. A good fragment may still arrive."""
BAD_CHECKSUM: Final = 10
"""A complete message with another hash."""
TOO_LARGE: Final = 11
"""A message that is too large to be kept."""

VERDICT_NAMES: Final[tuple[str, ...]]
"""Lower-case names of these, for reports."""

@final
class Judged(Events):
    """Judged datagrams: a row for each, in order."""

    @property
    def verdict(self) -> memoryview:
        """uint8: `MESSAGE` and so on."""
    @property
    def opened(self) -> memoryview:
        """uint8: 1 for the first fragment seen of its message, by which servers count holes."""
    @property
    def id(self) -> memoryview:
        """uint32: the id of the message; 0 without one."""
    @property
    def count(self) -> memoryview:
        """uint16: fragments of the message; 0 if it is not a fragment."""
    @property
    def index(self) -> memoryview:
        """uint16: the index of the fragment."""
    @property
    def tags_length(self) -> memoryview:
        """int32: bytes of the tags."""
    def payload(self, row: int) -> bytes:
        """Return the payload of a row, reassembled if it had several fragments."""
    def tags(self, row: int) -> bytes:
        """Return the tags of a row as they travelled."""

class Defragmenter(BatchDecoder[_Events]):
    """A decoder that keeps the fragments of incomplete messages between calls."""

    @property
    def open(self) -> list[tuple[int, int, int, int]]:
        """(stream, id, fragments arrived, fragments in all) of incomplete messages, by last touch."""

@final
class Reassembler(Defragmenter[Judged]):
    """Judges datagrams as the real server does, and reassembles messages."""

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
        """Judge the datagrams ``data[offset:offset + length]`` in order, without the GIL.

        Raises:
            RuntimeError: another thread is in it.
        """
    def expire(self, now: float) -> None:
        """Evict messages that were not touched for long; `feed` does so too."""
    @property
    def held(self) -> int:
        """Bytes that count against `max_bytes`."""
    def counters(self) -> dict[str, int | list[int] | list[list[int]] | dict[str, int]]:
        """Return the counters under the names of the real server's STAT, and ``empty``."""

# -- decoding captures ---------------------------------------------------------------------------

OK: Final = 0
"""The event has an id of a producer (one of `producers`, if they were given)."""
FOREIGN: Final = 1
"""It has no such id: `id_hash` has the hash of the user's own ``uuid``, or of the whole body."""
NO_ID: Final = 2
"""The body was not searched for an id: `identity` is False."""

STATUS_NAMES: Final[tuple[str, ...]]
"""Lower-case names, for reports: of these three, of one that is not used, of the faults from `EMPTY` on under
the same numbers, and ``command``."""

@final
class Decoder(Defragmenter[Events]):
    """Decodes captured datagrams, and keeps the fragments of incomplete messages between calls."""

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
    ) -> Events:
        """Decode the units ``data[offset:offset + length]``, without the GIL."""

def expand(unit: ReadableBuffer) -> bytes:
    """Return the unit as bytes: nothing in it is compressed."""
