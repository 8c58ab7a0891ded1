"""Lumberjack's compiled half: the writer (`Hot`), the reader (`Reader`), the decoder of captures.

Section names are those of the protocol text; where real servers differ, they win.
"""

from typing import Final, final

from _typeshed import ReadableBuffer

from logclient._ext.codec_base import CodecBase
from logclient._ext.decoder import BatchDecoder, Column, Events

MAX_WINDOW: Final[int]
"""10,000 events: what go-lumber's server accepts."""
MAX_DEPTH: Final[int]
"""1,000 levels of nesting: what Logstash's JSON parser accepts."""
MAX_DIGITS: Final[int]
"""1,000 characters in a number: likewise."""

# -- decoding captures ---------------------------------------------------------------------------

OK: Final = 0
"""The event carries an id of a producer (of `producers`, when they were given)."""
FOREIGN: Final = 1
"""It carries an id, but none of `producers`: `id_hash` has the hash of the user's own id."""
NO_ID: Final = 2
"""A whole body without any id."""
NOT_JSON: Final = 3
"""A whole frame whose body is not one JSON object in UTF-8 (version 1: no block of pairs)."""
TORN: Final = 4
"""No event: the unit stops inside a frame, or before as many events as its window announced."""
BAD_ZLIB: Final = 5
"""No event: a compressed frame that does not inflate, or inflates beyond the bound."""
BAD_FRAME: Final = 6
"""No event: a version, a type, a length, a nesting or a frame too many."""

STATUS_NAMES: Final[tuple[str, ...]]
"""Lower-case words for the seven, for reports."""

@final
class Decoded(Events):
    """Decoded windows; rows from `TORN` on are faults."""

    @property
    def wire_sequence(self) -> Column:
        """uint32: the sequence number in the frame."""

@final
class Decoder(BatchDecoder[Decoded]):
    """Decodes captured units, one window each: its W frame to its last frame.

    A unit that begins with a 'J', 'D' or 'C' frame of version 1 has the literal form (``strict_spec``):
    its number of events is not announced, and it may have 'json' frames.

    A decoder keeps scratch memory between calls. Use one per thread.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. With them ``@metadata._id`` is
            the id when it begins with one of these, else ``event.id``, else the user's own id is
            hashed. Without them any 32 hex digits are an id.
        identity: False when the producers wrote no ids (``identity=none``): bodies are not searched.
        max_inflated: bound on the inflated bytes of one unit.
    """

    def __init__(
        self, producers: ReadableBuffer = b"", *, identity: bool = True, max_inflated: int = 67108864
    ) -> None: ...

def expand(unit: ReadableBuffer, max_inflated: int = 67108864) -> bytes:
    """The unit with its compressed frames inflated in place: what `offset` counts in.

    Inflates as far as it can: what is damaged is kept as it is.
    """

# -- the reader (server role) --------------------------------------------------------------------

@final
class Window:
    """One whole window from a writer; in the literal form one 'D', 'J' or 'C' frame with its events."""

    @property
    def version(self) -> int:
        """1 or 2."""
    @property
    def ack(self) -> int:
        """The number that acknowledges all of it: its highest sequence number, as Logstash does; in the
        literal form its last one."""
    @property
    def unit(self) -> bytes:
        """The bytes as they came, W frame to the last frame; in the literal form the one frame."""
    @property
    def inflated(self) -> int:
        """Bytes of its frames, uncompressed."""
    def __len__(self) -> int:
        """Number of events."""
    @property
    def events(self) -> list[bytes]:
        """The bodies: JSON texts, or version 1's pair blocks (u32 count and pairs)."""
    @property
    def sequences(self) -> list[int]:
        """The frames' sequence numbers, for partial acks."""
    @property
    def types(self) -> str:
        """A letter an event: ``J`` for a JSON text, ``D`` for a pair block."""

@final
class Reader:
    """Sans-IO reader: bytes in, windows out, versions 1 and 2 on one connection.

    Accepts what Logstash or go-lumber accept where that loses nothing, and stops with words
    (`error`) otherwise. Lengths are checked before anything is allocated.

    Args:
        max_window: events in a window; in the literal form, in one compressed frame.
        max_frame: bytes of one event.
        max_unit: bytes of a window as carried.
        max_inflated: bytes of a window, uncompressed.
        strict_spec: read the literal form: version 1 alone, 'json' frames in it, and window frames that
            say how many frames may be without an acknowledgement. Before the first there is no bound.
    """

    def __init__(
        self,
        *,
        max_window: int = 10000,
        max_frame: int = 16777216,
        max_unit: int = 67108864,
        max_inflated: int = 67108864,
        strict_spec: bool = False,
    ) -> None: ...
    def receive_data(self, data: ReadableBuffer, /) -> list[Window]:
        """Take bytes; the windows that they complete. After an `error` all is ignored."""
    def acknowledge(self, events: int, /) -> None:
        """So many events more are acknowledged: the writer may send as many again (literal form)."""
    def receive_eof(self) -> None:
        """The writer closed: an unfinished window becomes an `error`."""
    @property
    def window_size(self) -> int | None:
        """What the last window frame said (literal form); None: there was none."""
    @property
    def error(self) -> str | None:
        """One line: what the writer did that the protocol does not allow."""
    @property
    def pending(self) -> int:
        """Bytes of the unfinished window held."""

def encode_ack(version: int, number: int, /) -> bytes:
    """An 'ack' frame; `number` 0 is a keep-alive."""

def decode_acks(data: ReadableBuffer, /) -> list[tuple[int, int]]:
    """Whole 'ack' frames as (version, number).

    Raises:
        ValueError: anything else is in `data`.
    """

# -- the writer ----------------------------------------------------------------------------------

@final
class Hot(CodecBase):
    """The writer: windows out, acks in, all of it without the GIL behind `capsule`.

    Args:
        producer: the 10 bytes that begin every id.
        version: 2 ('json' frames) or 1 ('data' frames, always in a compressed frame).
        window: events in one window, 1..10,000.
        window_bytes: of the bodies of one window, each rounded up to 8 and 24 more, as the hand-off counts them:
            a batch of that size is one window. A larger event goes alone.
        inflight: windows without an ack at one time.
        compression: 0 off, 1..9 as zlib's; 1..3 take the fastest compressor there is.
        identity: splice the id in.
        check: check that raw bodies are what the protocol carries.
        silence: seconds without a byte from the reader before the connection counts as dead.
        frames: ``json`` or ``data``; empty: what the version has, and ``json`` with `strict_spec`.
        strict_spec: write the literal form, in version 1: numbers run over the connection, and its window
            frame, `window` times `inflight`, is how many frames go without an acknowledgement.
        first: with `strict_spec`, the number of the first frame of each connection.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self,
        producer: bytes,
        *,
        version: int = 2,
        window: int = 2048,
        window_bytes: int = 1048576,
        inflight: int = 2,
        compression: int = 3,
        identity: bool = True,
        check: bool = True,
        silence: float = 30.0,
        frames: str = "",
        strict_spec: bool = False,
        first: int = 1,
    ) -> None: ...
    @property
    def compressor(self) -> str:
        """What compresses: ``none``, ``isal 1``, ``zlib 3``, ``python zlib 3`` (with the GIL)."""
    @property
    def windows(self) -> int:
        """Windows in flight."""
    @property
    def careful(self) -> int:
        """Windows that still go one at a time, after a silence or a reset with more of them out."""
    @property
    def error(self) -> str | None:
        """What the reader did that the protocol does not allow; until the next `connected`."""
    def connected(self, now: float) -> None: ...
    def connection_lost(self) -> int:
        """Forget what was in flight; the number of windows there were."""

# -- the checking pass ---------------------------------------------------------------------------

def check_json(body: ReadableBuffer, /) -> tuple[int, int, int, bytes | None] | None:
    """What the checking pass finds in a body; None when it is not one JSON object in UTF-8.

    Returns:
        (start, end, taken, user_id): the object is ``body[start:end]`` without the white space
        around it; `taken` has ``K_ID1_TAKEN`` where ``@metadata`` is not ours to write and
        ``K_ID2_TAKEN`` where ``event.id`` is not, both where it has an id of its own; `user_id` the
        raw bytes of that id (between the quotes), if any.
    """

def check_pairs(body: ReadableBuffer, /) -> tuple[int, bytes | None] | None:
    """The same for version 1's pair block: (taken, user_id)."""
