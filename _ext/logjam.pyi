"""Logjam's compiled half: the client (`Codec`), compressions, the decoder of captures.

Messages are frames, each behind its head: a u32, little-endian, of its length, with the top bit set when
another frame of the same message follows.
"""

from collections.abc import Sequence
from typing import Final, final

from _typeshed import ReadableBuffer

from logclient._ext.codec_base import CodecBase
from logclient._ext.decoder import BatchDecoder, Events

MAX_BODY: Final[int]
"""64 MiB: the importer's limit. Beyond it one server loops for ever and another aborts."""

LINKED: Final[tuple[str, ...]]
"""The libraries that this build is linked to, of ``zlib``, ``isal``, ``lz4`` and ``snappy``. They are called
without the GIL; Python's packages stand in for the others."""

# -- the client ----------------------------------------------------------------------------------

@final
class Codec(CodecBase):
    """The client: messages out, replies in, driven by a pump without the GIL through `capsule`.

    With a compressor that must be called in Python, `encode` holds the GIL; it takes it once for each call,
    not for each message. ``logclient.config`` checks the options of users; they are not checked again here.

    Args:
        producer: the 10 bytes that begin every id.
        app_env: the first frame of each message, 1 to 255 bytes.
        topics: six names, by the high nibble of an event's kind. The id goes into ``request_id`` when the
            topic begins with ``logs``, else into ``uuid``.
        request: ask for a reply to each message. Otherwise events are ``handed`` once ZeroMQ has taken them.
        inflight: bound on requests without a reply. When it is reached, encoding waits until a quarter is
            free.
        batch_bytes: bound on the bodies encoded at once; a larger one travels alone.
        compression: 0 for none, 1 for zlib, 2 for snappy, 3 for LZ4.
        level: zlib's, 1 to 9; 1 to 3 use the fastest compressor there is.
        compress_over: compress bodies of at least this many bytes, if that makes them smaller.
        identity: insert ids into events.
        check: check that raw bodies are one JSON object in UTF-8.
        silence: seconds without a reply after which the connection counts as dead.
        number: sequence number of the first message; after 2**64 - 1 comes 1.

    Raises:
        ValueError: the compression is not installed.
    """

    def __init__(
        self,
        producer: bytes,
        app_env: bytes,
        topics: Sequence[bytes],
        *,
        request: bool = True,
        inflight: int = 256,
        batch_bytes: int = 1048576,
        compression: int = 0,
        level: int = 3,
        compress_over: int = 1024,
        identity: bool = True,
        check: bool = True,
        silence: float = 30.0,
        number: int = 1,
    ) -> None: ...
    @property
    def compressor(self) -> str:
        """The compressor: ``none``, ``isal 1``, ``zlib 3``, ``lz4``; after ``python``, one with the GIL."""
    @property
    def holds_gil(self) -> bool:
        """Whether `encode` holds the GIL, because the compressor must be called in Python."""
    @property
    def requests(self) -> int:
        """The number of requests and pings without a reply."""
    @property
    def error(self) -> str | None:
        """The server's violation of the protocol, or None; kept until the next `connected`."""
    def connected(self, now: float) -> None:
        """Begin a connection."""
    def connection_lost(self) -> int:
        """Forget everything in flight; return the number of requests."""
    def ping(self) -> None:
        """Append a ping to the bytes to send.

        Raises:
            ValueError: too many pings wait for a reply.
        """
    def pongs(self) -> list[bytes | None]:
        """Return the replies to pings since the last call: the server's name, or None for a bad request."""

# -- compressions --------------------------------------------------------------------------------

def pack(compression: int, body: ReadableBuffer, /, *, level: int = 3) -> bytes:
    """Pack a body as messages carry it.

    Raises:
        ValueError: there is no such compression, or it is not installed.
    """

def unpack(compression: int, body: ReadableBuffer, most: int = ..., /) -> bytes:
    """Return the unpacked body, of at most so many bytes.

    Memory is allocated only as far as the compressed bytes can hold that much, whatever length they announce.

    Raises:
        ValueError: it is damaged; the message names the fault.
    """

# -- decoding captures ---------------------------------------------------------------------------

OK: Final = 0
"""The event carries an id of a producer (of `producers`, when they were given)."""
FOREIGN: Final = 1
"""It carries an id, but none of `producers`: `id_hash` has the hash of the user's own id."""
NO_ID: Final = 2
"""A whole body without any id."""
NOT_JSON: Final = 3
"""A whole body that is not one JSON object in UTF-8."""
TORN: Final = 4
"""No event: the unit stops inside a frame, or goes on behind the last one."""
BAD_FRAMES: Final = 5
"""No event: neither four frames nor an empty one and four."""
NO_META: Final = 6
"""No event: three frames; a PULL socket's server takes them, no client sends them."""
OLD_META: Final = 7
"""No event: the meta of 22 bytes that the producer text describes, with 16 bits for the device."""
BAD_META: Final = 8
"""No event: another size of the meta, tag or version."""
BAD_APP_ENV: Final = 9
"""No event: an app-env that the device refuses."""
BAD_TOPIC: Final = 10
"""No event: a topic that the device drops, although it answers a request with ``202``."""
BAD_COMPRESSION: Final = 11
"""No event: an unknown compression."""
BAD_ZLIB: Final = 12
"""No event: not a whole zlib stream (RFC 1950), such as gzip or raw deflate."""
BAD_SNAPPY: Final = 13
"""No event: not a raw snappy block, such as snappy's framed format."""
BAD_LZ4: Final = 14
"""No event: not an LZ4 block behind its length (u32 big-endian), such as LZ4's framed format."""
TOO_LARGE: Final = 15
"""No event: it unpacks to more than the bound."""
NO_LIBRARY: Final = 16
"""Cannot tell: python-snappy or lz4 is not installed here."""
PING: Final = 17
"""No event: a ping."""
HEARTBEAT: Final = 18
"""No event: a device's heartbeat."""

STATUS_NAMES: Final[tuple[str, ...]]
"""Lower-case words for them, for reports."""

@final
class Decoded(Events):
    """Decoded messages, a row each; rows from `TORN` on are faults.

    `offset` and `length` are those of the unpacked body in the unit as `expand` returns it.
    """

    @property
    def request(self) -> memoryview:
        """uint8: 1 when the first frame is empty."""
    @property
    def app_env_offset(self) -> memoryview:
        """int32: where the app-env begins in the unit."""
    @property
    def app_env_length(self) -> memoryview:
        """int32: bytes of the app-env; 0 without one."""
    @property
    def topic_offset(self) -> memoryview:
        """int32: where the topic begins in the unit."""
    @property
    def topic_length(self) -> memoryview:
        """int32: bytes of the topic; 0 without one."""
    @property
    def compression(self) -> memoryview:
        """uint8: the compression method in the meta info."""
    @property
    def device(self) -> memoryview:
        """uint32: the device number; 0 from a client."""
    @property
    def created_ms(self) -> memoryview:
        """uint64: milliseconds since 1970."""
    @property
    def number(self) -> memoryview:
        """uint64: the message's sequence number, from 1; a device's shows gaps."""

@final
class Decoder(BatchDecoder[Decoded]):
    """Decodes captured units, a message each, with or without the empty frame of a request.

    A decoder keeps scratch memory between calls. Use one per thread.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. With them an id counts when it begins with
            one of these, else it is hashed. Without them any 32 hex digits are an id.
        identity: False when the producers wrote no ids (``identity=none``): bodies are not searched.
        max_unpacked: bound on the bytes of one body.
    """

    def __init__(
        self, producers: ReadableBuffer = b"", *, identity: bool = True, max_unpacked: int = ...
    ) -> None: ...

def expand(unit: ReadableBuffer, max_unpacked: int = ...) -> bytes:
    """Return the unit with its body unpacked in place, which `Decoded.offset` refers to.

    A unit whose body cannot be unpacked is returned as it is.
    """
