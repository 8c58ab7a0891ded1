"""Documents by name, and the default one as a formatter for any handler.

``ecs``: one JSON object in the Elastic Common Schema, keys with dots as written here, in this order:

======================== ==========================================================================
``@timestamp``           ``record.created``, UTC, microseconds, ``2026-01-01T12:34:56.789012Z``
``log.level``            the level's name in lower case
``message``              ``record.getMessage()``; absent when the message is a mapping without one
``ecs.version``          ``8.11.0``
``log.logger``           the logger's name
``log.origin.file.name`` ``record.filename``; with ``log.origin.file.line`` and ``log.origin.function``
``process.pid``          with ``process.name``, ``process.thread.id`` and ``process.thread.name``
``error.type``           with ``error.message`` and ``error.stack_trace``, from ``exc_info``;
                         ``stack_info`` is in ``error.stack_trace`` too
``log.flags``            ``["truncated"]`` when ``truncate`` has cut the message
the user's own           ``extra``, at the top; a message that is a mapping is taken as fields too
======================== ==========================================================================

A user's field that has the name of one of these replaces it, but for ``@timestamp`` and ``log.level``, so
no key is there twice. A field that cannot be there, such as a plain ``event`` or ``error``, moves below
``labels`` (docs/formats.md). Of a message's
field and an ``extra`` of the same name the message's stays. A mapping without ``message`` whose
``event`` is a string has that as its message (structlog's way).

What cannot be said in JSON is changed and counted (``stats().sanitized``); arguments that do not fit
their message are shown beside it: ``%d items % ('two',)``.
"""

from __future__ import annotations

import logging
import time

from logclient._ext.record import ECS_VERSION, Encoder

__all__ = ["DOCUMENTS", "ECS_VERSION", "EcsFormatter", "timestamp"]

DOCUMENTS = ("ecs",)
"""Names of documents, as ``registry`` pairs them with schemes."""


class EcsFormatter(logging.Formatter):
    """A record as an ECS document on one line.

    ``logclient.Handler`` needs none: this is for other handlers, so that a file holds the documents
    that the server gets. A document is never too large here.

    Raises:
        EncodeError: from ``format``, for a record with a cycle in its fields.
    """

    def __init__(self) -> None:
        super().__init__()
        self._encoder = Encoder(max_event_bytes=1 << 31)

    def format(self, record: logging.LogRecord) -> str:
        return self._encoder.encode_record(record)[0].decode()


def timestamp() -> str:
    """Now, as ``@timestamp`` of documents has it."""
    seconds, ms = divmod(time.time_ns() // 1_000_000, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{ms:03d}Z"
