"""Formatting: a LogRecord or a mapping becomes the bytes to send, in the caller's thread."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from logclient._ext.queue import EventQueue
from logclient._ext.tracebacks import ExceptionFormatter
from logclient.records.spans import Spans

ECS_VERSION: str
REDACTED: str

class Redaction:
    """The names of the fields to leave out.

    An entry is compared with the last part of a field's name, letters in either case (``str.casefold``);
    ``*`` in it stands for any characters. ``message`` is the text of an event and stays.

    Args:
        names: the entries.
    """

    def __init__(self, names: Iterable[str]) -> None: ...
    def covers(self, name: str) -> bool:
        """Return whether the value of a field of this name is left out."""

class Encoder:
    """Encoder of log records and mappings, and the way into the queue.

    A document is a JSON object (Lumberjack version 2 and the other protocols) or a pair block (Lumberjack
    version 1): a 32-bit count, then that many keys and values, each behind its 32-bit length.

    Args:
        queue: the queue that ``put`` writes to; None if only bytes are wanted.
        max_event_bytes: largest document in bytes; a longer one fails as too_large.
        truncate: cut the message of a document that is too large, and mark it in ``log.flags``.
        pairs: write pair blocks instead of JSON objects.
        text: returns the mapping for a string; None: ``{"message": ...}``.
        complete: returns a copy of a dict with the fields that the protocol requires; None: dicts are not
            changed.
        ecs: write documents of ECS: a field that has the name of an ECS object but is no mapping moves to
            ``labels.<name>``, and so does a scalar whose name is the prefix of another field.
        carriers: the fields that may carry the event's id; ``@metadata`` stands for the two of Lumberjack.
        identity: ``id``: the application's values in these fields move to `labels`, so that no one mistakes
            them for ours; ``own``: they stay and are the event's id; ``none``: they stay, and events have no
            id.
        trust_metadata: keep the application's ``@metadata``, all but its ``_id``.
        flat: the protocol turns mappings into text, so they are not objects.
        labels: the prefix of fields that move.
        timestamp: give mappings the field ``@timestamp``, unless they have it.
        fields: fields of every document, encoded once. The application's own win.
        bound: the context variable with further fields, a ``logclient.records.context.Fields`` or None, which win over
            `fields`; None: there is none.
        spans: a ``logclient.records.spans.Spans``, which finds the active span and its service; None: documents have
            none.
        fingerprint: give records with an exception an ``error.fingerprint``.
        redact: names of fields whose values are left out, at any depth; see `Redaction`.
    """

    def __init__(
        self,
        queue: EventQueue | None = None,
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
        nested: bool = False,
        timestamp: bool = False,
        fields: dict[str, Any] | None = None,
        bound: ContextVar[Any] | None = None,
        spans: Spans | None = None,
        fingerprint: bool = False,
        redact: tuple[str, ...] = (),
    ) -> None: ...
    @property
    def queue(self) -> EventQueue | None: ...
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
    @property
    def nested(self) -> bool: ...
    @property
    def timestamp(self) -> bool: ...
    @property
    def fingerprint(self) -> bool: ...
    @property
    def exceptions(self) -> ExceptionFormatter: ...
    def encode(self, obj: Mapping[Any, Any] | str) -> tuple[bytes, int, int, int]:
        """Encode a mapping or a string.

        Returns:
            The body, its kind (``K_DOCUMENT`` and flags), and the numbers of sanitized values and moved fields.

        Raises:
            EncodeError: a cycle, nesting deeper than 128 levels, or a document that is too large.
            EncodeTypeError: it is neither.
        """

    def set_fields(self, fields: Mapping[str, Any]) -> None:
        """Replace the fields of every document; see ``Client.reconfigure``.

        Other threads may encode meanwhile: each document has the old fields, or the new ones.
        """

    def encode_record(
        self, record: logging.LogRecord, made: str | dict[str, Any] | None = None
    ) -> tuple[bytes, int, int, int]:
        """Encode a LogRecord.

        Args:
            record: the record.
            made: a formatter's result for it: its message, or a dict with its fields; None: there is none.

        Returns:
            As ``encode``.

        Raises:
            EncodeError: as ``encode``.
        """

class Splice:
    """Fields as the bytes of a document, for `Encoder` alone."""

class Shared:
    """Fields that many documents have, for `Encoder` alone."""

class SpanFound:
    """What was found in a context of OpenTelemetry, for `Encoder` alone."""

class LineEncoder:
    """Encoder of log records as Logjam's documents, each with one line.

    It encodes ordinary records only, and leaves the others to ``logclient.logjam.Agent``. A record is
    ordinary if it is a LogRecord itself, without an exception or a stack; no request is running; its texts
    need neither change nor cut; additional fields are scalars with names that may stay; the document is no
    longer than 8 KiB.

    Args:
        encoder: an encoder of JSON objects; the largest size of a document is its.
        request: the context variable with the running request; None: there is none.
        texts: called with whole seconds since 1970; returns ``started_at``, and the time of a line up to the
            seconds. The results are kept for that second.
        place: the fields of each document that name the machine.
        reserved: names that no additional field may have.
        kind: of the documents, as the queue keeps it.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        request: ContextVar[Any],
        texts: Callable[[int], tuple[str, str]],
        place: dict[str, str],
        reserved: Iterable[str],
        kind: int,
    ) -> None: ...
    @property
    def kind(self) -> int: ...
    def encode(self, record: logging.LogRecord, text: str | None = None) -> tuple[bytes, int] | None:
        """Encode an ordinary record.

        Args:
            record: the record.
            text: the text of the line; None: the record's message.

        Returns:
            The body, and the level as the queue keeps it; None if the record is not an ordinary one.
        """

def failure_reason(error: BaseException | None) -> int:
    """Return the reason, one of ``R_*``, under which an event fails that this exception is about."""

def level_index(level: int | str) -> int:
    """Return a level of ``logging``, a number or a name, as the queue keeps it: 0 to 5."""

def record_level(levelno: object) -> int:
    """Return the ``levelno`` of a record, whatever it is, as the queue keeps it: 0 to 5."""

class FastClient:
    """Base of ``logclient.Client`` with a compiled ``send``."""

    @property
    def encoder(self) -> Encoder: ...
    @property
    def queue(self) -> EventQueue: ...
    def _bind(
        self,
        encoder: Encoder,
        fallback: Callable[[int, Any, int], int],
        count_lost: Callable[[BaseException, int], object],
        revise: Callable[[Any, int], int] | None = None,
    ) -> None: ...
    def send(self, event: Mapping[str, Any] | str | bytes, level: int | str = 20) -> int:
        """Queue one event: a mapping, a string (``{"message": ...}``) or bytes (a JSON object).

        Bytes are sent unchanged but for the id. If an exception is raised about an event, it has a sequence,
        too, and becomes ``failed`` in its turn.

        Args:
            event: what to send.
            level: a level of ``logging``, as a number or by its name, for ``keep_level``.

        Returns:
            The event's sequence, or 0 if it was dropped at once: the queue is full and ``overflow`` is
            ``drop_new``, the client is closed, or ``before_send`` has held it back.

        Raises:
            EncodeTypeError: it is none of the three (a TypeError).
            EncodeError: it has no encoding: a cycle, too deep, too large (a ValueError).
            ConfigError: there is no such level (a ValueError).
            QueueFull: with ``overflow=raise``.
            TypeError: ``__init__`` has not run.
        """

class FastHandler:
    """Base of ``logclient.Handler`` with a compiled ``handle`` that takes no lock.

    It must be the first base, before ``logging.Handler``.
    """

    @property
    def encoder(self) -> Encoder: ...
    @property
    def filters(self) -> list[Any]:
        """The list of ``logging.Filterer``."""

    @filters.setter
    def filters(self, value: list[Any]) -> None: ...
    @property
    def formatter(self) -> logging.Formatter | None:
        """The application's formatter, or the one that stands for our own documents."""

    @formatter.setter
    def formatter(self, value: logging.Formatter | None) -> None: ...
    def _bind(
        self,
        encoder: Encoder,
        on_wakeup_needed: Callable[[], object],
        put_fallback: Callable[[int, bytes, int, int], object],
        ship: Callable[[logging.LogRecord, str | dict[str, Any] | None], object] | None,
        line_encoder: LineEncoder | None,
        formatter: logging.Formatter,
        own_emit: bool,
        own_format: bool,
        json: bool = False,
        sampling: Callable[[logging.LogRecord], logging.LogRecord | None] | None = None,
    ) -> None: ...
    def handle(self, record: logging.LogRecord) -> Any:
        """Ship a record unless a filter refuses it.

        Never raises an ``Exception``. Ignores records before ``__init__``.

        Returns:
            The record, or False if it was refused.
        """

    def emit(self, record: logging.LogRecord) -> None:
        """Ship a record without asking the filters. Ignores records before ``__init__``."""

def mark_sender_thread(own: bool = True) -> bool:
    """Mark or unmark the calling thread as a sender's, whose own log records are ignored.

    Returns:
        Whether it was marked before.
    """
