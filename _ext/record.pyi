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
    """

    def __init__(
        self,
        handoff: Handoff | None = None,
        *,
        max_event_bytes: int = 1 << 20,
        truncate: bool = False,
        pairs: bool = False,
        text: Callable[[str], dict[str, Any]] | None = None,
    ) -> None: ...
    @property
    def handoff(self) -> Handoff | None: ...
    @property
    def max_event_bytes(self) -> int: ...
    @property
    def truncate(self) -> bool: ...
    @property
    def pairs(self) -> bool: ...
    def encode(self, obj: Mapping[Any, Any] | str) -> tuple[bytes, int, int]:
        """(body, kind, mangled values) of a mapping or a string.

        Raises:
            EncodeError: a cycle, nesting deeper than 128 levels, or a document that is too large.
            EncodeTypeError: it is neither.
        """

    def encode_record(self, record: logging.LogRecord) -> tuple[bytes, int, int]:
        """(body, kind, mangled values) of a record.

        Raises:
            EncodeError: as above.
        """

class Sender:
    """The compiled half of ``logclient.Client``: ``send`` in one call."""

    @property
    def encoder(self) -> Encoder: ...
    @property
    def handoff(self) -> Handoff: ...
    def _bind(self, encoder: Encoder, slowly: Callable[[int, Any, int], int]) -> None: ...
    def send(self, event: Mapping[str, Any] | str | bytes, level: int = 20) -> int:
        """Queue one event: a mapping, a string (``{"message": ...}``) or bytes (a JSON object).

        Bytes are sent unchanged but for the id. What cannot be encoded is counted as failed, then
        raised. Returns the event's sequence, or 0 when it was dropped at once (a full queue with
        ``overflow=drop_new``, a closed client).

        Raises:
            EncodeTypeError: it is none of the three (a TypeError).
            EncodeError: it has no encoding: a cycle, too deep, too large (a ValueError).
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

def encode_mapping(obj: Mapping[Any, Any] | str, max_bytes: int = 1 << 20) -> tuple[bytes, int, int]:
    """(body, kind, mangled values): a mapping or a string as a JSON object; see ``Encoder.encode``."""

def encode_pairs(obj: Mapping[Any, Any] | str, max_bytes: int = 1 << 20) -> tuple[bytes, int, int]:
    """(body, kind, mangled values): a mapping or a string as a pair block; see ``Encoder.encode``."""
