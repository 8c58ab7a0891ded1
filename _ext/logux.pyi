"""Logux, compiled: the decoder of captures."""

from typing import Final, final

from _typeshed import ReadableBuffer

from logclient._ext.views import Events

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
class Decoder:
    """Decodes captured units, a message each: a row for each action of a sync, one for any other message.

    A sync with anything wrong in it has one row, as a server takes nothing of it. `offset` and `length` are of
    the action's text, or from what is wrong to the end of the unit.

    Args:
        producers: 10 bytes each, ascending and distinct, joined. With them an ``id`` counts when its prefix
            is one of these, else it is hashed. Without them anything of 32 hex digits is an id.
        identity: False when the producers wrote no ids (``identity=none``): none is looked for.
        messages: False when a unit is the text of an action and nothing else.

    Keeps scratch memory between calls; one decoder per thread.
    """

    def __init__(
        self, producers: ReadableBuffer = b"", *, identity: bool = True, messages: bool = True
    ) -> None: ...
    def decode(self, data: ReadableBuffer, offsets: ReadableBuffer, lengths: ReadableBuffer) -> Events:
        """Decode the units ``data[offset:offset + length]``; the GIL is let go of.

        Args:
            offsets, lengths: int64 each, equally many.

        Raises:
            ValueError: sizes differ, or a unit leaves `data`.
        """

def decode_messages(
    data: ReadableBuffer,
    offsets: ReadableBuffer,
    lengths: ReadableBuffer,
    producers: ReadableBuffer = b"",
    *,
    identity: bool = True,
) -> Events:
    """``Decoder(producers, ...).decode(...)`` in one call."""

def expand(unit: ReadableBuffer) -> bytes:
    """The unit: nothing in it is compressed."""
