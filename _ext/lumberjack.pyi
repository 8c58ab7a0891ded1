"""Lumberjack's compiled half: the writer (`Codec`), the reader (`Reader`), the decoder of captures.

Where real servers differ from the protocol text, this follows the servers.
"""

from typing import Final, final

from _typeshed import ReadableBuffer

from logclient._ext.codec_base import CodecBase
from logclient._ext.decoder import BatchDecoder, Events

MAX_WINDOW: Final[int]
"""10,000 events: the limit of go-lumber's server."""
MAX_INFLIGHT: Final[int]
"""16 windows in flight: the end of what `adaptive` allows."""
MAX_DEPTH: Final[int]
"""1,000 levels of nesting: the limit of Logstash's JSON parser."""
MAX_DIGITS: Final[int]
"""1,000 characters in a number: that parser's limit, too."""

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
class Decoder(BatchDecoder[Events]):
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
    """Return the unit with its compressed frames inflated in place, which `Events.offset` refers to.

    A frame that does not inflate, or inflates beyond `max_inflated` bytes, stays as it is, and so does the
    rest.
    """

# -- the reader (server role) --------------------------------------------------------------------

@final
class Window:
    """One whole window of a writer; in the literal form one 'D', 'J' or 'C' frame with its events."""

    @property
    def version(self) -> int:
        """1 or 2."""
    @property
    def ack(self) -> int:
        """The number that acknowledges all of it.

        That is the highest sequence number, as in Logstash, or in the literal form the last one.
        """
    @property
    def unit(self) -> bytes:
        """The bytes as received, from the W frame to the last frame; in the literal form the one frame."""
    def __len__(self) -> int:
        """Number of events."""
    @property
    def events(self) -> list[bytes]:
        """The bodies: JSON texts, or pair blocks of version 1 (u32 count and the pairs)."""
    @property
    def sequences(self) -> list[int]:
        """The frames' sequence numbers, for partial acknowledgements."""
    @property
    def types(self) -> str:
        """A letter for each event: ``J`` for a JSON text, ``D`` for a pair block."""

@final
class Reader:
    """Sans-IO reader: bytes in, windows out, versions 1 and 2 on one connection.

    It accepts everything that Logstash or go-lumber accept, except where that would lose events. At anything
    else it stops, and `error` has the reason. Lengths are checked before memory is allocated for them.

    Args:
        max_window: bound on the events in a window; in the literal form, in one compressed frame.
        max_frame: bound on the bytes of one event.
        max_unit: bound on the bytes of a window as received.
        max_inflated: bound on the bytes of a window, uncompressed.
        strict_spec: read the literal form: version 1 only, with 'json' frames, and with window frames that
            announce how many frames may be unacknowledged. Before the first of these there is no bound.
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
        """Take bytes, and return the windows that they complete. After an `error` all bytes are ignored.

        Raises:
            RuntimeError: another thread is in it.
        """
    def acknowledge(self, events: int, /) -> None:
        """Allow the writer this many more unacknowledged events (literal form)."""
    def receive_eof(self) -> None:
        """Note that the writer has closed: an unfinished window becomes an `error`."""
    @property
    def window_size(self) -> int | None:
        """The number in the last window frame (literal form); None before the first."""
    @property
    def error(self) -> str | None:
        """The writer's violation of the protocol in one line, or None."""
    @property
    def pending(self) -> int:
        """Bytes held of the unfinished window."""

def encode_ack(version: int, number: int, /) -> bytes:
    """Encode an 'ack' frame; `number` 0 is a keep-alive."""

# -- the writer ----------------------------------------------------------------------------------

@final
class Codec(CodecBase):
    """The writer: windows out, acknowledgements in, driven by a pump without the GIL through `capsule`.

    ``logclient.config`` checks the options of users; they are not checked again here.

    Args:
        producer: the 10 bytes that begin every id.
        version: 2 ('json' frames) or 1 ('data' frames, always in a compressed frame).
        window: events in one window, 1 to 10,000.
        window_bytes: bound on the bodies of one window, each rounded up to 8 bytes and 24 more, as the queue
            counts them, so that a batch of that size is one window. A larger event travels alone.
        inflight: bound on unacknowledged windows.
        adaptive: `inflight` is where the bound begins; it follows the round trip up to `MAX_INFLIGHT`.
        inflight_bytes: bound on the bytes of unacknowledged events beyond `inflight` windows, counted as for
            `window_bytes`.
        compression: 0 for none, 1 to 9 as zlib's levels; 1 to 3 use the fastest compressor there is.
        identity: insert ids into events.
        check: check that the protocol can carry raw bodies.
        silence: seconds without a byte from the reader after which the connection counts as dead.
        frames: ``json`` or ``data``; empty for the version's own, or ``json`` with `strict_spec`.
        strict_spec: write the literal form, in version 1. Frames are numbered over the whole connection. The
            window frame announces `window` times `inflight`, the bound on unacknowledged frames.
        first: with `strict_spec`, the number of the first frame of each connection.
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
        adaptive: bool = False,
        inflight_bytes: int = 33554432,
    ) -> None: ...
    @property
    def compressor(self) -> str:
        """The compressor: ``none``, ``isal 1``, ``zlib 3``; after ``python``, one with the GIL."""
    @property
    def windows(self) -> int:
        """The number of windows in flight."""
    @property
    def limit(self) -> int:
        """How many windows may be in flight now."""
    @property
    def careful(self) -> int:
        """How many more windows are sent one at a time, after a break with several in flight."""
    @property
    def error(self) -> str | None:
        """The reader's violation of the protocol, or None; kept until the next `connected`."""
    def connected(self, now: float) -> None:
        """Begin a connection."""
    def connection_lost(self) -> int:
        """Forget the windows in flight; return their number."""

# -- the checking pass ---------------------------------------------------------------------------

def check_json(body: ReadableBuffer, /) -> tuple[int, int, int, bytes | None] | None:
    """Check a body as the writer does.

    Returns:
        None when the body is not one JSON object in UTF-8, else (start, end, taken, user_id). The object
        without the white space around it is ``body[start:end]``. `taken` has ``K_ID1_TAKEN`` when
        ``@metadata`` cannot carry our id, ``K_ID2_TAKEN`` when ``event.id`` cannot, and both when the body
        has an id of its own. `user_id` is that id, as its raw bytes between the quotes, or None.
    """

def check_pairs(body: ReadableBuffer, /) -> tuple[int, bytes | None] | None:
    """Check a pair block of version 1 as the writer does.

    Returns:
        None when its lengths do not add up, else (taken, user_id) as from `check_json`.
    """
