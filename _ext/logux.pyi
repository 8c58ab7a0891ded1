"""Logux's compiled half: the client's actions in flight (`Hot`), the decoder of captures."""

from typing import Final, final

from _typeshed import ReadableBuffer

from logclient._ext.decoder import BatchDecoder, Events

# -- the client ----------------------------------------------------------------------------------

@final
class ActionTracker:
    """The actions in flight: their syncs, ids, times and outcomes, and the answers to the server.

    An action in flight is identified by the two numbers of its id, (ms, counter). ``logclient.logux.core``
    handles every other message.

    Args:
        producer: the 10 bytes that begin every id.
        action_type: JSON of the type of the actions that are made from bodies.
        window: actions in a sync, at most.
        window_bytes: bytes of bodies in a sync, at most; a larger body travels alone.
        inflight: syncs in flight, at most.
        identity: insert the id.
        check: check that raw bodies are one JSON object in UTF-8.
        synced: an action is acknowledged when its sync is.

    Raises:
        ValueError: an argument is outside its range.
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
    def sample_clocks(self, now: float, wall: float) -> None: ...
    def made_at(self, us: int, now: float, seq: int) -> float: ...
    def to_wall(self, relative: float) -> float: ...
    def connected(self, node: bytes, base: int, now: float, lead: float) -> None: ...
    def connection_lost(
        self, *, keep: bool = False, drop: bool = False
    ) -> tuple[int, list[tuple[int, int, int, int]]]: ...
    def credit(self, most: int) -> int: ...
    def encode(
        self, batch: object, events: int, now: float, wall: float, upto: int = ...
    ) -> tuple[int, bytes, bool]: ...
    def encode_alone(
        self, seq: int, text: bytes, time: int, subprotocol: int, now: float, wall: float
    ) -> bytes: ...
    def receive(self, data: ReadableBuffer, now: float) -> bool: ...
    def synced(self, added: float, now: float) -> None: ...
    def add_answer(self, added: int) -> None: ...
    def acknowledge(self, ms: int, counter: int, now: float) -> bool: ...
    def remove(self, ms: int, counter: int, now: float) -> tuple[int, bytes, int, int, int] | None: ...
    def outcomes(self) -> tuple[list[tuple[int, int, int, int]], int, int]: ...
    def drain_answers(self) -> list[bytes]: ...
    @property
    def answers_waiting(self) -> int: ...
    @property
    def open(self) -> int: ...
    @property
    def oldest_added(self) -> int: ...
    @property
    def oldest_synced(self) -> bool: ...
    @property
    def progress_at(self) -> float: ...
    @property
    def added(self) -> int: ...
    @property
    def processed(self) -> int: ...
    @property
    def received(self) -> int: ...
    @property
    def unmatched(self) -> int: ...

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
