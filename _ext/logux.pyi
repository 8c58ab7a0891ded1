"""Logux's compiled half: the client's actions in flight (`Hot`), the decoder of captures."""

from typing import Final, final

from _typeshed import ReadableBuffer

from logclient._ext.decoder import BatchDecoder, Events

# -- the client ----------------------------------------------------------------------------------

@final
class Hot:
    """What a client does for each action: its sync, its ids and times, its outcome, the answers to the server.

    An action in flight is told by the two numbers of its id, (ms, counter). What comes besides, and what to
    do about it, is ``logclient.logux.core``'s.

    Args:
        producer: the 10 bytes that begin every id.
        action_type: JSON of the type of actions that are made of bodies.
        window: actions in a sync.
        window_bytes: bytes of bodies in a sync, at most; a larger one goes alone.
        inflight: syncs with actions that have no outcome.
        identity: splice the id in.
        check: check that raw bodies are one JSON object in UTF-8.
        synced: an action is acknowledged as soon as its sync is.

    Raises:
        ValueError: an argument outside its range.
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
    ) -> None: ...
    def look(self, now: float, wall: float) -> None:
        """The wall clock shows `wall`, the monotonic one a little more than `now`: seconds."""
    def when(self, us: int, now: float, seq: int) -> float:
        """The monotonic second at which an event was made that the wall clock then called `us` (µs since 1970).

        Of the offsets that the clock was seen to have, the newest under which that is possible: not in the
        future, not when another one was seen, not long before the event of the sequence before.
        """
    def to_wall(self, relative: float) -> float:
        """Ms since 1970 of this host's clock, of a time relative to the base time."""
    def connected(self, node: bytes, base: int, now: float, lead: float) -> None:
        """The connection is ready.

        Args:
            node: our node id, as it stands in JSON.
            base: the base time, ms since 1970 of the server's clock.
            now: when that came.
            lead: how far the server's clock was beyond `base` then, ms.
        """
    def lost(self, *, keep: bool = False, drop: bool = False) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Forget what is in flight: (how many actions, outcomes as of `outcomes`).

        Args:
            keep: they are to go under the same ids once more.
            drop: they are failed(doubt).
        """
    def credit(self, most: int) -> int:
        """How many actions the next sync may have; `most`: in flight altogether."""
    def encode(
        self, batch: object, events: int, now: float, wall: float, upto: int = ...
    ) -> tuple[int, bytes, bool]:
        """One sync of pending events of the batch (a capsule): (how many, the message, whether it ended before
        one beyond the sequence `upto`).

        Raises:
            MemoryError: and nothing was encoded.
        """
    def again(
        self, seq: int, text: bytes, time: int, subprotocol: int, now: float, wall: float
    ) -> bytes:
        """A sync of one action that `take` has given, under a new id.

        Raises:
            ValueError: there is no room.
        """
    def receive(self, data: ReadableBuffer, now: float) -> bool:
        """Whether this message is one of those that come all the time, and was taken: ``synced``, or a ``sync``
        with one ``logux/processed``, written as JavaScript does."""
    def synced(self, added: float, now: float) -> None:
        """The server has got all syncs up to this one."""
    def answer(self, added: int) -> None:
        """A sync of the server's is to be answered."""
    def processed(self, ms: int, counter: int, now: float) -> bool:
        """An action of that id is processed; False: there is none."""
    def take(self, ms: int, counter: int, now: float) -> tuple[int, bytes, int, int, int] | None:
        """Take an action out of flight: (sequence, text, time, subprotocol or -1, `added` of its sync);
        None: it is not there."""
    def outcomes(self) -> list[tuple[int, int, int, int]]:
        """(first, last, fate, reason) since the last call."""
    def told(self) -> tuple[int, int, int]:
        """Since the last call: messages and acknowledgements that `receive` took; how many answers wait."""
    def answers(self) -> list[bytes]:
        """The answers that wait, and from now on do not."""
    @property
    def waiting(self) -> int:
        """Answers that wait to be sent."""
    @property
    def open(self) -> int:
        """Actions in flight."""
    @property
    def oldest(self) -> int:
        """``added`` of the oldest sync in flight; 0: there is none."""
    @property
    def synced_first(self) -> bool:
        """Whether the oldest sync in flight has its answer."""
    @property
    def moved(self) -> float:
        """When the oldest sync in flight got an outcome or its answer last, or became the oldest."""
    @property
    def added(self) -> int:
        """Actions sent in all: the last ``added``."""
    @property
    def done(self) -> int:
        """Actions acknowledged in all."""
    @property
    def received(self) -> int:
        """The highest ``added`` of the server's in what `receive` took."""
    @property
    def strangers(self) -> int:
        """Outcomes that `receive` took, for actions that are not in flight."""

# -- the decoder of captures ---------------------------------------------------------------------

OK: Final = 0
"""An action with an id of one of the producers that are looked for."""
FOREIGN: Final = 1
"""An action whose id is the user's own."""
NO_ID: Final = 2
"""An action without any id."""
NOT_JSON: Final = 3
"""A body that is no JSON object; of a message there is none such."""
BAD_JSON: Final = 4
"""No event: no JSON text in UTF-8, or nested deeper than `MAX_DEPTH`. `offset` is where it stops being one."""
BAD_MESSAGE: Final = 5
"""No event: no list that begins with a type, or another form than its type has."""
UNKNOWN_MESSAGE: Final = 6
"""No event: a type that nobody knows."""
BAD_SYNC: Final = 7
"""No event: a sync without a number behind the type, or with an action that has no meta."""
BAD_ACTION: Final = 8
"""No event: an action that is no object, has no string as its type, or has a number as its ``length``."""
BAD_META: Final = 9
"""No event: a meta without a number as its time, or whose id has none of the three forms."""
PING: Final = 10
"""No event: a ping or a pong."""
CONTROL: Final = 11
"""No event: connect, connected, headers, synced, error, debug."""

STATUS_NAMES: Final[tuple[str, ...]]
"""Lower-case words for them, for reports."""
MAX_DEPTH: Final = 1024
"""Levels of a message."""

@final
class Decoder(BatchDecoder[Events]):
    """Decodes captured units, a message each: a row for each action of a sync, one for any other message.

    A sync with anything wrong in it has one row, as servers reject all of it. `offset` and `length` are those
    of the action's text, or of the rest of the unit from the fault on.

    A decoder keeps scratch memory between calls. Use one per thread.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. With them an ``id`` counts when it begins
            with one of these, else it is hashed. Without them any 32 hex digits are an id.
        identity: False when the producers wrote no ids (``identity=none``): bodies are not searched.
        messages: False when a unit is the text of an action and nothing else.
    """

    def __init__(
        self, producers: ReadableBuffer = b"", *, identity: bool = True, messages: bool = True
    ) -> None: ...

def expand(unit: ReadableBuffer) -> bytes:
    """The unit: nothing in it is compressed."""
