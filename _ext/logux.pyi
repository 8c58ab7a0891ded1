"""Logux: the client's compiled half (`Codec`), the decoder of captures."""

from typing import Final, final

from _typeshed import ReadableBuffer

from logclient._ext.codec_base import CodecBase
from logclient._ext.decoder import BatchDecoder, Events

# -- the client ----------------------------------------------------------------------------------

@final
class Codec(CodecBase):
    """The client: actions out, their outcomes in, driven by a pump without the GIL through `capsule`.

    ``logclient.logux.core`` does the rest: the beginning of a connection, headers, and every message that is
    rare or has an unusual form. ``logclient.config`` checks the options of users.

    Args:
        producer: the 10 bytes that begin every id.
        action_type: JSON of the type of the actions that are made from bodies.
        window: actions in a sync, at most.
        window_bytes: bytes of bodies in a sync, at most; a larger body travels alone.
        inflight: syncs in flight, at most.
        identity: insert the id.
        check: check that raw bodies are one JSON object in UTF-8.
        synced: an action is acknowledged when its sync is.
        silence: seconds without a message after which a server that owes an answer counts as dead.
        ping: seconds without a message after which to send a ping.
        processing_timeout: seconds without an outcome after which a server that has got an action counts as
            jammed.
    """

    def __init__(
        self,
        producer: bytes,
        action_type: bytes,
        *,
        window: int = 100,
        window_bytes: int = 262144,
        inflight: int = 4,
        identity: bool = True,
        check: bool = True,
        synced: bool = False,
        silence: float = 30.0,
        ping: float = 10.0,
        processing_timeout: float = 20.0,
    ) -> None: ...
    def sample_clocks(self, now: float, wall: float) -> None:
        """Sample the clocks."""
    def made_at(self, us: int, now: float, seq: int) -> float:
        """Return the monotonic second at which an event was made."""
    def to_wall(self, relative: float) -> float:
        """Convert ms relative to the base time into ms since 1970 of this host's clock."""
    def connecting(self, now: float) -> None:
        """Begin a connection: the core sends `connect`."""
    def connected(self, node: bytes, base: int, now: float, lead: float) -> None:
        """Synchronize, after the server's `connected`."""
    def connection_lost(
        self, *, keep: bool = False, drop: bool = False
    ) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Forget the actions in flight; return their number, and outcomes."""
    def end(self) -> None:
        """Send and read nothing more on this connection: the core ends it."""
    @property
    def state(self) -> str:
        """``disconnected``, ``connecting``, ``synchronized``, or ``sending``: an outcome is awaited."""
    @property
    def over(self) -> bool:
        """Whether nothing more is sent and read on this connection."""
    @property
    def wrong(self) -> str:
        """Why the codec has ended the connection: ``answers``, ``silence`` or ``jam``; empty: it has not."""
    @property
    def jammed_for(self) -> float:
        """Seconds that were waited for the first outcome before the last jam."""
    def begin_close(self) -> None:
        """Send nothing new, only suspects."""
    def set_wall(self, wall: float) -> None:
        """Set the wall clock for ids, in seconds since 1970."""
    def buffers(self) -> list[memoryview]:
        """Return views of the messages to send since the last `sent`."""
    def say(self, text: bytes) -> None:
        """Add a message to those to send."""
    def ping(self, token: int, now: float) -> None:
        """Send a ping; see `pongs`."""
    def set_headers(self, first: int, last: int) -> None:
        """Note that the headers sent last are those of the events `first` to `last`."""
    def hold_before(self, first: int) -> None:
        """Note, in any thread, that the event `first` and later ones have other headers."""
    def block(self) -> None:
        """Encode nothing until no action is in flight."""
    @property
    def wanted(self) -> int:
        """The sequence of an event whose headers must be sent before it; 0: none waits for its headers."""
    def timeout(self, now: float) -> int:
        """Act on a deadline that is over: 0: a ping was sent, or nothing was due; 1: silence; -2: a jam."""
    def next_message(self) -> bytes | None:
        """Return the oldest message that the core must read, or None. Then call `read_on`."""
    def read_on(self) -> None:
        """Take the messages that were kept, up to the next one for the core."""
    def undos(self) -> list[tuple[int, bytes]]:
        """Return (sequence, message) of the syncs that failed an action, since the last call."""
    def pongs(self) -> list[int]:
        """Return the tokens of pings that were answered since the last call."""
    def pong(self) -> None:
        """Take an answer to the oldest ping."""
    def synced(self, added: float, now: float) -> None:
        """Take an answer: the server has received all syncs up to this one."""
    def add_answer(self, added: int) -> None:
        """Answer a sync of the server."""
    def acknowledge(self, ms: int, counter: int, now: float) -> bool:
        """Acknowledge the action with this id; return whether it was in flight."""
    def undo(self, ms: int, counter: int, reason: int, now: float) -> tuple[int, bool]:
        """Take an undo; return the sequence of the action, 0 if it is not in flight, and whether it failed."""
    @property
    def open(self) -> int:
        """Actions in flight."""
    @property
    def suspects(self) -> int:
        """Actions that wait to be sent alone, because others may have been undone for them."""
    @property
    def awaited(self) -> int:
        """Actions and pings without an outcome, and suspects."""
    @property
    def added(self) -> int:
        """Actions sent so far: the last ``added``."""
    @property
    def received(self) -> int:
        """The highest whole ``added`` of the server."""
    @property
    def received_at(self) -> float:
        """When the last message arrived, in monotonic seconds."""
    @property
    def unmatched(self) -> int:
        """Outcomes received in the usual form for actions that are not in flight."""

# -- the decoder of captures ---------------------------------------------------------------------

OK: Final = 0
"""An action with an id of one of the producers."""
FOREIGN: Final = 1
"""An action with an id of the user's own."""
NO_ID: Final = 2
"""An action without an id."""
NOT_JSON: Final = 3
"""A body that is no JSON object; never used for a message."""
BAD_JSON: Final = 4
"""No JSON text in UTF-8, or nested deeper than `MAX_DEPTH`. `offset` is where it stops being JSON."""
BAD_MESSAGE: Final = 5
"""No list that begins with a type, or not the form of its type."""
UNKNOWN_MESSAGE: Final = 6
"""An unknown type."""
BAD_SYNC: Final = 7
"""A sync without a number behind the type, or with an action without a meta."""
BAD_ACTION: Final = 8
"""An action that is no object, has no string as its type, or has a number as its ``length``."""
BAD_META: Final = 9
"""A meta without a number as its time, or with an id in none of the three forms."""
PING: Final = 10
"""A ping or a pong."""
CONTROL: Final = 11
"""Any other message without events: connect, connected, headers, synced, error, debug."""

STATUS_NAMES: Final[tuple[str, ...]]
"""Lower-case names of these, for reports."""
MAX_DEPTH: Final = 1024
"""Levels of nesting in a message, at most."""

@final
class Decoder(BatchDecoder[Events]):
    """Decodes captured messages: a row for each action of a sync, one for any other message."""

    def __init__(
        self, producers: ReadableBuffer = b"", *, identity: bool = True, messages: bool = True
    ) -> None: ...

def expand(unit: ReadableBuffer) -> bytes:
    """Return the unit as bytes: nothing in it is compressed."""
