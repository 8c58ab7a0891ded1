"""The documents of log records, as formatters for any handler.

``ecs``: one JSON object in the Elastic Common Schema, with these fields in this order. Names with dots are
objects, as in ecs-logging: ``{"log": {"logger": ...}}``, all but ``log.level`` and ``ecs.version``. In the
form ``ecs_dotted`` they keep the dots. The other forms are described in ``logclient.records.formats``.

======================== ==========================================================================
``@timestamp``           ``record.created``, UTC, microseconds, ``2026-01-01T12:34:56.789012Z``
``log.level``            the level's name in lower case
``message``              ``record.getMessage()``; absent if the message is a mapping without one
``ecs.version``          ``8.11.0``
``log.logger``           the logger's name
``log.origin.file.name`` ``record.filename``; with ``log.origin.file.line`` and ``log.origin.function``
``process.pid``          with ``process.name``, ``process.thread.id`` and ``process.thread.name``
``error.type``           with ``error.message`` and ``error.stack_trace``, from ``exc_info``;
                         ``error.stack_trace`` also has ``stack_info``
``error.fingerprint``    on request: the same for exceptions of the same type from the same functions
``log.flags``            ``["truncated"]`` if ``truncate`` has cut the message
your own fields          ``extra``, at the top; also the fields of a message that is a mapping
======================== ==========================================================================

A field of yours with one of these names replaces it, except for ``@timestamp`` and ``log.level``, so no key
appears twice. A field that conflicts with ECS, such as a string named ``event`` or ``error``, moves below
``labels`` (docs/formats.md). If a message that is a mapping and ``extra`` have a field of the same name, the
message's wins. If such a message has no ``message`` and its ``event`` is a string (as structlog's), that
becomes the message.

A value that JSON cannot represent is replaced and counted (``stats().sanitized``). Arguments that do not fit
their message are appended to it: ``%d items % ('two',)``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from logclient._ext.record import ECS_VERSION, Encoder
from logclient.errors import ConfigError
from logclient.records import context

if TYPE_CHECKING:
    from logclient._ext.record import Form

__all__ = ["ECS_VERSION", "DocumentFormatter", "EcsFormatter", "timestamp"]


class DocumentFormatter(logging.Formatter):
    """A formatter that makes a document of one line, as ``logclient.Handler`` sends it.

    Use it with other handlers, for example to write the documents that a server gets to a file as well.
    ``logclient.Handler`` needs no formatter. A document may have up to 2 GiB. ``formatException`` may be
    overridden.

    ``logging.config`` may name it as ``class``: it takes the arguments of ``logging.Formatter`` (`fmt` in
    place of `form`, and `defaults` as fields), of which a format and a date format change nothing.

    Args:
        form: ``ecs``, ``ecs_dotted``, ``logstash``, ``otel``, ``gelf`` or ``json``, as the option ``format``.
        fields: fields of every document; a record's own of the same name win. A ``logclient.Handler`` has the
            option ``fields`` for that, and ``error_fingerprint``.
        error_fingerprint: give records with an exception an ``error.fingerprint``.
    """

    def __init__(
        self,
        form: str | None = None,
        fields: Mapping[str, Any] | str | None = None,
        style: Literal["%", "{", "$"] = "%",
        validate: bool = True,
        *,
        error_fingerprint: bool = False,
        fmt: str | None = None,
        datefmt: str | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(fields, str):
            datefmt, fields = fields, None
        super().__init__(None, datefmt, style, validate)
        self.fields = {**(defaults or {}), **(fields or {})}
        self.error_fingerprint = error_fingerprint
        name = form if fmt is None else fmt
        self._name = "ecs" if name is None or any(mark in name for mark in "%{$") else name
        self._make_encoders()

    def _make_encoders(self) -> None:
        self._encoder = Encoder(
            max_event_bytes=1 << 31,
            nested=self._name == "ecs",
            form=form_of(self._name),
            fingerprint=self.error_fingerprint,
            fields=self.fields,
            bound=context.current,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_encoder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_encoders()

    def format(self, record: logging.LogRecord) -> str:
        """Return the document of a record: a JSON object on one line.

        Raises:
            EncodeError: the document is too large.
        """
        own = type(self).formatException is not DocumentFormatter.formatException
        if own and record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return self._encoder.encode_record(record)[0].decode()

    def formatException(self, ei: Any) -> str:
        """Return the text of an exception, equal to that of ``logging.Formatter``."""
        return self._encoder.exceptions.format(ei)


class EcsFormatter(DocumentFormatter):
    """A formatter that makes an ECS document of one line.

    Args:
        fields: as for `DocumentFormatter`; so are the others. A text is a format, which changes nothing.
    """

    def __init__(
        self,
        fields: Mapping[str, Any] | str | None = None,
        datefmt: str | None = None,
        *standard: Any,
        fmt: str | None = None,
        **options: Any,
    ) -> None:
        given = None if isinstance(fields, str) else fields
        super().__init__("ecs", given, *standard, datefmt=datefmt, **options)


def form_of(name: str) -> Form | None:
    """Return what the option ``format`` names; None: it is one of ECS."""
    if name in ("ecs", "ecs_dotted"):
        return None
    from logclient.records.formats import FORMS, form
    from logclient.records.host import node_name

    if name not in FORMS:
        raise ConfigError(f"form: must be ecs, ecs_dotted, logstash, otel, gelf or json, got {name!r}")
    return form(name, node_name())


def timestamp() -> str:
    """Return the current time in UTC, in milliseconds, such as ``2026-01-01T12:34:56.789Z``."""
    seconds, ms = divmod(time.time_ns() // 1_000_000, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{ms:03d}Z"
