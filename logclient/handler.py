"""The handler for the logging of the standard library.

::

    logging.getLogger().addHandler(logclient.Handler("lumberjack://127.0.0.1:5044"))

or in ``dictConfig``: ``{"class": "logclient.Handler", "url": "lumberjack://127.0.0.1:5044"}``.
"""

from __future__ import annotations

import logging
import sys
import weakref
from typing import TYPE_CHECKING

from logclient._ext.record import FastHandler
from logclient.client import Client, check_source, open_client
from logclient.config.parsing import resolve
from logclient.errors import ConfigError, described
from logclient.records.formatters import EcsFormatter

if TYPE_CHECKING:
    from typing import Unpack

    from logclient.config.options import Options

__all__ = ["Handler"]

RETIRE_WAIT = 0.05
"""Seconds that ``close`` waits at most, for a client that is about to end."""


def _locks_logging() -> bool:
    """Return whether this thread holds the lock that ``getLogger`` and ``dictConfig`` take."""
    owned = getattr(getattr(logging, "_lock", None), "_is_owned", None)
    return owned is not None and bool(owned())


class Handler(FastHandler, logging.Handler):
    """A handler of the standard library's logging that ships log records.

    A log call formats the record and copies it into the queue. It never waits for the network, takes no lock
    that Python code could hold, and never raises. So log calls in destructors and signal handlers are safe,
    also in the middle of another log call. A record that cannot be encoded is counted as failed. When the
    queue is full, the oldest record is dropped and counted, unless the option ``overflow`` says otherwise.

    A record becomes an ECS document. With a ``logjam`` URL it is a line of the request that is running
    in its context, or a document of its own (``logclient.logjam``); with a ``plog`` URL an event document
    (``logclient.plog``).

    A custom formatter changes the message: a string that it returns becomes ``message``, a dict becomes
    fields like a message that is a mapping, and bytes are a JSON object that is sent unchanged except for the
    id. With ``formatter_json=true`` a string that is a JSON object is treated as such bytes. Without a
    formatter, or with ``EcsFormatter``, the document is made in compiled code. So is that of Logjam for a
    record outside of any request, unless it has an exception or something else that is not ordinary.

    Records of the loggers ``logclient``, ``zmq`` and ``websockets`` and of the sender's own thread are
    ignored (and counted), because a shipper that ships its own messages never ends. Records of destructors
    that a garbage collection runs in that thread belong to the application and are shipped.

    The attributes ``encoder`` and ``ships_logs`` are for logclient itself.

    Args:
        url: the server, as for ``logclient.connect``; without it and `client` that of the variable
            LOGCLIENT_URL. The first record opens the connection and starts a thread.
        level: a level of ``logging``; records below it are ignored.
        client: a client to use instead of `url`. It is not closed with the handler.
        options: as for ``logclient.connect``; plain values, fit for ``dictConfig``.

    Attributes:
        client: the client that ships the records.

    Raises:
        ConfigError: the URL or an option breaks a rule, or there is no URL.
        LedgerError: the ledger's directory cannot be used.
        MissingExtra: a package that the protocol needs is not installed.
        TypeError: `url` or options are given with a client, or that is no ``logclient.Client``.
    """

    ships_logs = True
    """Keeps the log of our own errors from using this handler."""

    def __init__(
        self,
        url: str | None = None,
        level: int | str = logging.NOTSET,
        *,
        client: Client | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_source(url, client, options)
        self._owner = client is None
        if client is None:
            config = resolve(url, options, defaults={"overflow": "drop_oldest"})
            if config.overflow == "raise":
                name = config.given["overflow"]
                raise ConfigError(f"{name}: a Handler never raises; use drop_oldest, drop_new or block")
            client = open_client(config)
        self.client = client
        kind = type(self)
        documents = client.documents
        revision = client.revision
        if client.encoder is not None:  # else the URL is none: the handler stays unbound, and ignores records
            self._bind(
                client.encoder,
                client.sink,
                ship=revision.ship if revision is not None else None if documents is None else documents.ship,
                line_encoder=client.line_encoder,
                formatter=EcsFormatter() if documents is None else documents.formatter,
                own_emit=kind.emit is not Handler.emit,
                own_format=kind.format is not Handler.format,
                json=getattr(client.config, "formatter_json", False),
                sampling=client.sampling,
            )
        # Afterwards: it sets `formatter` and `filters`.
        logging.Handler.__init__(self, level)
        client.front_ends.add(self)
        if client.encoder is not None and client.config.hold_below is not None:
            from logclient.records.held import HoldBelow

            self.addFilter(HoldBelow(self, client.config.hold_below, client.queue.count_filtered))

    def flush(self) -> None:
        """Wait until the records so far have an outcome, for the option ``timeout`` at most.

        This does not wait for a server that cannot be reached. It does not wait either while ``dictConfig``
        calls it, because then every other thread waits for a lock of ``logging``.
        """
        if not _locks_logging():
            self.client._waiter.flush(self.client.config.timeout, if_reachable=True)

    def close(self) -> None:
        """Take no more records, and deliver the queued ones in the background.

        This returns at once. Delivery has some 50 seconds, and at the end of the process the rest of
        ``atexit_timeout``; one line reports how many records were given up. To wait for them, call
        ``handler.client.close()``.

        ``dictConfig`` and ``basicConfig(force=True)`` close every handler, also those that stay with their
        loggers. There the handler goes on, and the rest of this happens when nobody refers to it any more. A
        handler that ``dictConfig`` has made may first need a garbage collection: its maker is in a cycle.
        """
        if self._owner and _locks_logging():
            # A finalizer, which may run in any thread, and does not wait.
            weakref.finalize(self, self.client._sender.background).atexit = False
            logging.Handler.close(self)
            return
        try:
            if self._owner:
                self.client._sender.background(RETIRE_WAIT)
            else:
                self.flush()
        finally:
            logging.Handler.close(self)

    def handleError(self, record: logging.LogRecord) -> None:
        """Report an error of a record in the error log, without the record's content.

        There is at most one line a minute for each kind of error.
        """
        error = sys.exc_info()[1]
        if error is not None and logging.raiseExceptions:
            name = getattr(record, "name", "?")
            kind = f"record:{type(error).__name__}"
            self.client.warn_limited(kind, f"a record of logger {name!r}: {described(error)}")

    def __repr__(self) -> str:
        if not hasattr(self, "client"):
            return f"<{type(self).__name__} before its __init__>"
        return f"<{type(self).__name__} {self.client.config.redacted} ({logging.getLevelName(self.level)})>"
