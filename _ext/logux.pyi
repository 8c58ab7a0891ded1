"""Logux: the actions that a client has in flight, the decoder of captures."""

from typing import Final, final

from _typeshed import ReadableBuffer

from logclient._ext.codec_base import OutcomeList
from logclient._ext.decoder import BatchDecoder, Events

# -- the client ----------------------------------------------------------------------------------

@final
class ActionTracker(OutcomeList):
    """The actions in flight: their syncs, ids, times and outcomes, and the answers to the server."""

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
    ) -> None: ...
    def sample_clocks(self, now: float, wall: float) -> None:
        """Sample the clocks."""
    def made_at(self, us: int, now: float, seq: int) -> float:
        """Return the monotonic second at which an event was made."""
    def to_wall(self, relative: float) -> float:
        """Convert ms relative to the base time into ms since 1970 of this host's clock."""
    def connected(self, node: bytes, base: int, now: float, lead: float) -> None:
        """Begin a connection, after the server's `connected`."""
    def connection_lost(
        self, *, keep: bool = False, drop: bool = False
    ) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Forget the actions in flight; return their number, and outcomes."""
    def credit(self, most: int) -> int:
        """Return how many actions the next sync may have, with `most` in flight altogether."""
    def encode(
        self, batch: object, events: int, now: float, wall: float, last: int = ...
    ) -> tuple[int, bytes, bool]:
        """Encode one sync: its actions, its message, and whether an event beyond `last` ended it."""
    def encode_alone(
        self, seq: int, text: bytes, time: int, subprotocol: int, now: float, wall: float
    ) -> bytes:
        """Encode a sync of one action that `remove` has returned, under a new id."""
    def receive(self, data: ReadableBuffer, now: float) -> bool:
        """Take a ``synced``, or a ``sync`` of one ``logux/processed``; return whether it was one."""
    def synced(self, added: float, now: float) -> None:
        """Take an answer: the server has received all syncs up to this one."""
    def add_answer(self, added: int) -> None:
        """Queue the answer to a sync of the server."""
    def acknowledge(self, ms: int, counter: int, now: float) -> bool:
        """Acknowledge the action with this id; return whether it was in flight."""
    def remove(self, ms: int, counter: int, now: float) -> tuple[int, bytes, int, int, int] | None:
        """Take an action out of those in flight: (sequence, text, time, subprotocol or -1, `added` of its sync)."""
    def outcomes(self) -> tuple[list[tuple[int, int, int, int]], int, int]:
        """Return the outcomes since the last call; see `OutcomeList.outcomes`."""
    def drain_answers(self) -> list[bytes]:
        """Return the answers that wait to be sent, and forget them."""
    @property
    def answers_waiting(self) -> int:
        """Answers that wait to be sent."""
    @property
    def open(self) -> int:
        """Actions in flight."""
    @property
    def oldest_added(self) -> int:
        """``added`` of the oldest sync in flight; 0: there is none."""
    @property
    def oldest_synced(self) -> bool:
        """Whether the server has answered the oldest sync in flight."""
    @property
    def progress_at(self) -> float:
        """When the oldest sync in flight last got an outcome or its answer, or became the oldest."""
    @property
    def added(self) -> int:
        """Actions sent so far: the last ``added``."""
    @property
    def processed(self) -> int:
        """Actions acknowledged so far."""
    @property
    def received(self) -> int:
        """The highest ``added`` of the server in messages that `receive` took."""
    @property
    def unmatched(self) -> int:
        """Outcomes taken by `receive` for actions that are not in flight."""

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
