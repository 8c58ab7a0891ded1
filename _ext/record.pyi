"""Documents: a LogRecord or a mapping becomes the bytes that travel, in the caller's thread."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from logclient._ext.handoff import Handoff

ECS_VERSION: str

class Encoder:
    """Makes documents, and puts them into a hand-off.

    Args:
        handoff: where ``send`` puts them; None when only bytes are wanted.
        max_event_bytes: a longer document fails as too_large.
        truncate: cut the message of such a document instead, and mark it (``log.flags``).
        pairs: make pair blocks (Lumberjack version 1) instead of JSON objects.
        text: what makes a mapping of a string; None: ``{"message": ...}``.
        complete: what adds to a dictionary what the protocol asks for, in a copy; None: nothing does.
        ecs: documents are those of ECS: what is no mapping and has the name of one of its objects moves to
            ``labels.<name>``, and no scalar stays beside a field below it.
        carriers: the fields that may carry the event's id; ``@metadata``: Lumberjack's two. What an
            application has there moves to `labels`.
        identity: ``own``: it stays there, and is the event's id; ``none``: it stays, no event has an id.
        trust_metadata: keep ``@metadata`` of the application's, all but its ``_id``.
        flat: mappings become text in the end, and are no objects.
        labels: what the names of fields that move begin with.
    """

    def __init__(
        self,
        handoff: Handoff | None = None,
        *,
        max_event_bytes: int = 1 << 20,
        truncate: bool = False,
        pairs: bool = False,
        text: Callable[[str], dict[str, Any]] | None = None,
        complete: Callable[[dict[Any, Any]], dict[Any, Any]] | None = None,
        ecs: bool = True,
        carriers: tuple[str, ...] = ("@metadata",),
        identity: str = "id",
        trust_metadata: bool = False,
        flat: bool = False,
        labels: str = "labels.",
    ) -> None: ...
    @property
    def handoff(self) -> Handoff | None: ...
    @property
    def max_event_bytes(self) -> int: ...
    @property
    def truncate(self) -> bool: ...
    @property
    def pairs(self) -> bool: ...
    @property
    def ecs(self) -> bool: ...
    @property
    def carriers(self) -> tuple[str, ...]: ...
    @property
    def identity(self) -> str: ...
    @property
    def trust_metadata(self) -> bool: ...
    @property
    def flat(self) -> bool: ...
    @property
    def labels(self) -> str: ...
    def encode(self, obj: Mapping[Any, Any] | str) -> tuple[bytes, int, int, int]:
        """(body, kind, mangled values, moved fields) of a mapping or a string.

        Raises:
            EncodeError: a cycle, nesting deeper than 128 levels, or a document that is too large.
            EncodeTypeError: it is neither.
        """

    def encode_record(self, record: logging.LogRecord) -> tuple[bytes, int, int, int]:
        """(body, kind, mangled values, moved fields) of a record.

        Raises:
            EncodeError: as above.
        """

def tens(level: int | str) -> int:
    """A level of ``logging``, a number or a name, as the hand-off keeps it: 0 to 5."""

class Sender:
    """The compiled half of ``logclient.Client``: ``send`` in one call."""

    @property
    def encoder(self) -> Encoder: ...
    @property
    def handoff(self) -> Handoff: ...
    def _bind(self, encoder: Encoder, slowly: Callable[[int, Any, int], int]) -> None: ...
    def send(self, event: Mapping[str, Any] | str | bytes, level: int | str = 20) -> int:
        """Queue one event: a mapping, a string (``{"message": ...}``) or bytes (a JSON object).

        Bytes are sent unchanged but for the id. What cannot be encoded is counted as failed, then
        raised. Returns the event's sequence, or 0 when it was dropped at once (a full queue with
        ``overflow=drop_new``, a closed client).

        Args:
            event: what to send.
            level: a level of ``logging``, as a number or by its name, for ``keep_level``.

        Raises:
            EncodeTypeError: it is none of the three (a TypeError).
            EncodeError: it has no encoding: a cycle, too deep, too large (a ValueError).
            ConfigError: there is no such level (a ValueError).
            QueueFull: with ``overflow=raise``.
            TypeError: ``__init__`` has not run.
        """

class Emitter:
    """The compiled half of ``logclient.Handler``: ``handle`` in one call, without the handler's lock."""

    @property
    def encoder(self) -> Encoder: ...
    @property
    def filters(self) -> list[Any]:
        """``logging.Filterer``'s list."""

    @filters.setter
    def filters(self, value: list[Any]) -> None: ...
    @property
    def formatter(self) -> logging.Formatter | None:
        """The formatter; without one of the user's, the one of our own documents."""

    @formatter.setter
    def formatter(self, value: logging.Formatter | None) -> None: ...
    def _bind(
        self,
        encoder: Encoder,
        attend: Callable[[], object],
        put_slowly: Callable[[int, bytes, int, int], object],
        maker: Callable[[logging.LogRecord, str | dict[str, Any] | None], object] | None,
        formatter: logging.Formatter,
        own_emit: bool,
        own_format: bool,
    ) -> None: ...
    def handle(self, record: logging.LogRecord) -> Any:
        """Ship a record unless a filter refuses it: the record, or False. Never raises an Exception.

        Before ``__init__`` a record is ignored.
        """

    def emit(self, record: logging.LogRecord) -> None:
        """Ship a record, whatever the filters say. Before ``__init__`` it is ignored."""

def own_thread(own: bool = True) -> bool:
    """Mark (or unmark) the calling thread as one of a sender's: what it logs is ignored.

    Returns what it was before.
    """

def encode_mapping(obj: Mapping[Any, Any] | str, max_bytes: int = 1 << 20) -> tuple[bytes, int, int, int]:
    """What ``Encoder.encode`` makes of a mapping or a string: a JSON object."""

def encode_pairs(obj: Mapping[Any, Any] | str, max_bytes: int = 1 << 20) -> tuple[bytes, int, int, int]:
    """What ``Encoder.encode`` makes of a mapping or a string: a pair block."""
