"""plog's public face: event documents, messages for Kafka topics, and the server's commands.

::

    with logclient.connect("plog://127.0.0.1:23456", event_type="orders") as client:
        client.event({"order": 7, "state": "paid"})         # an event document
        client.publish(b"any bytes", topic="audit", key="7")
        client.ping().seconds, client.stat().seen_messages
        watch = client.watch()                              # then send, and ask how much was lost
        watch.loss().lost

An event document is a JSON object with these fields, and ``uuid``, which is the id:

=============  ====================================================================================
``type``       the option ``event_type``, unless a call says another
``host``       the option ``host_name``: this machine's name unless it is given
``timestamp``  milliseconds since 1970
``data``       a mapping of strings to strings, or a string
=============  ====================================================================================

Over TCP (``plog+tcp://``) each of these is a line, and that is all: no tags, and no questions.

A log record's ``data`` has the fields of the ECS document that other protocols ship, but for its time, each
as a string: what is none is written in JSON. What a formatter of yours makes is taken instead: a string as it
is, the fields of a dict. A plain text (``send("text")``) is ``data`` itself. Mappings and bytes that are
sent travel as they are: ``send({"type": ..., "data": ...})``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from logclient import client, threads
from logclient._ext.constants import K_RAW, K_TOPIC_SHIFT
from logclient._ext.record import Encoder
from logclient.config import Config
from logclient.delivery.engine import Engine
from logclient.delivery.error_log import ErrorLog
from logclient.errors import ConnectFailed, ProtocolError
from logclient.protocols.plog import (
    TAGGED,
    Defragmenter,
    Loss,
    Stat,
    estimate_loss,
    join_tags,
    kafka_tags,
)

__all__ = ["Client", "Defragmenter", "Documents", "Lines", "Loss", "Pong", "Stat", "Watch"]

INFO = 20
SETTLE = 0.1
"""Seconds between two looks at a server's counters."""
TAGGED_KIND = TAGGED << K_TOPIC_SHIFT

AROUND = 1024
"""Bytes of a document around its data, the id and what strings take more than numbers."""

Sink = Callable[[bytes, int, int], object]
"""``sink(body, level, kind)``: takes a document; the level is one of ``logging``'s."""


class EventFormatter(logging.Formatter):
    """What a Handler has where the user has set none: it makes the whole document, not a text."""


class Documents:
    """Makes event documents.

    Args:
        sink: takes the documents of records. What it raises is counted and reported, never passed on.
        event_type: what kind of events they are; a pipeline may know only a few.
        host: None: this machine's name.
        max_event_bytes: a longer document is not made.
        truncate: cut the message of a record that is too long, and mark it (``log.flags``).
        reporter: where own errors are said.
        lost: called for each record whose document was not made or not taken.
        changed: called with the number of values that could not be said in JSON as they were, and of fields
            that moved.
    """

    formatter = EventFormatter()

    def __init__(
        self,
        sink: Sink,
        *,
        event_type: str = "log",
        host: str | None = None,
        max_event_bytes: int = 262_144,
        truncate: bool = False,
        reporter: ErrorLog | None = None,
        lost: Callable[[], object] | None = None,
        changed: Callable[[int, int], object] | None = None,
    ) -> None:
        self.sink = sink
        self.event_type = event_type
        self.host = client.node_name() if host is None else host
        self.failed = 0
        """Records whose document was not made or not taken."""
        self._encoder = Encoder(max_event_bytes=max_event_bytes, ecs=False, carriers=())
        # What is cut must leave room for what is around it.
        room = max(64, max_event_bytes - AROUND) if truncate else max_event_bytes
        self._records = Encoder(max_event_bytes=room, truncate=truncate, carriers=(), flat=True)
        self._reporter = reporter or ErrorLog()
        self._lost = lost
        self._changed = changed

    def ship(self, record: logging.LogRecord, made: str | dict[str, Any] | None = None) -> bool:
        """The document of a record; whether it was taken.

        Args:
            made: what a formatter has made of it: ``data``, or the fields of it.
        """
        try:
            if isinstance(made, str):
                data: str | dict[str, str] = made
            elif made is not None:
                data = self.strings(made)
            else:
                body, _, *changed = self._records.encode_record(record)
                self._count(*changed)
                data = _strings(body)
                data.pop("@timestamp", None)
            found = self.document(data, timestamp=int(record.created * 1000))
            self.sink(self._encoder.encode(found)[0], record.levelno, 0)
        except Exception as error:
            self.failed += 1
            if self._lost is not None:
                self._lost()
            name = getattr(record, "name", "?")
            self._reporter.complain(
                f"plog:{type(error).__name__}",
                f"a record of logger {name!r}: {type(error).__name__}: {error}",
            )
            return False
        return True

    def text(self, text: str) -> dict[str, Any]:
        """The document of a plain text."""
        return self.document(text)

    def document(
        self, data: Mapping[str, str] | str, *, type: str | None = None, timestamp: int | None = None
    ) -> dict[str, Any]:
        """An event document without its id; `data` is taken as it is.

        Args:
            timestamp: milliseconds since 1970; None: now.
        """
        return {
            "type": self.event_type if type is None else type,
            "host": self.host,
            "timestamp": int(time.time() * 1000) if timestamp is None else timestamp,
            "data": data,
        }

    def strings(self, fields: Mapping[Any, Any]) -> dict[str, str]:
        """A mapping as one of strings to strings: a value that is none is written in JSON.

        Raises:
            EncodeError: a cycle, nesting deeper than 128 levels, or more than ``max_event_bytes``.
        """
        body, _, *changed = self._encoder.encode(fields)
        self._count(*changed)
        return _strings(body)

    def _count(self, mangled: int, moved: int) -> None:
        if (mangled or moved) and self._changed is not None:
            self._changed(mangled, moved)


class Pong(NamedTuple):
    """A server's answer to a ping."""

    payload: bytes
    seconds: float
    """From the ping's way into the kernel to its answer."""


class Watch:
    """Counts what arrives from now on; made by ``Client.watch``."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._client.flush(timeout)
        self._stats = client.stats()
        self._commands = client._asked
        self._before: Stat | None = None
        self._reason = ""
        try:
            self._before = client.stat(timeout)
            time.sleep(SETTLE)
            # Before anything is sent: whose would it be?
            self._reason = estimate_loss(self._before, client.stat(timeout), 0).reason
        except (ConnectFailed, ProtocolError) as error:
            self._reason = str(error)

    def loss(self, timeout: float = 5.0) -> Loss:
        """How many of the messages sent since then did not arrive; waits until the server has no more coming.

        It can be told when nobody else sends to that server, and no socket broke.
        """
        end = time.monotonic() + timeout
        self._client.flush(timeout)
        now = self._client.stats()
        sent = now.handed - self._stats.handed
        if now.disconnects != self._stats.disconnects or now.producer != self._stats.producer:
            return Loss(None, sent, None, "the socket is not the one it was")
        if self._before is None or self._reason:
            return Loss(None, sent, None, self._reason)
        found = Loss(None, sent, None, "the server gives no answer")
        last: int | None = -1
        while True:
            try:
                after = self._client.stat(max(SETTLE, min(1.0, end - time.monotonic())))
                commands = self._client._asked - self._commands - 1  # all but this one
                found = estimate_loss(self._before, after, sent, commands)
                if found.seen in (last, sent) or found.lost is None:
                    return found
                last = found.seen
            except (ConnectFailed, ProtocolError) as error:
                found = found._replace(reason=found.reason and str(error))
            if time.monotonic() >= end:
                return found
            time.sleep(SETTLE)


class _DocumentClient(client.Client):
    """A client that makes event documents, however they travel."""

    documents: Documents = client.UNMADE

    def _documents(self, config: Config, engine: Engine) -> Documents:
        put, lost = client.make_sink(engine)
        return Documents(
            put,
            event_type=config.event_type,
            host=config.host_name,
            max_event_bytes=config.max_event_bytes,
            truncate=config.truncate,
            reporter=engine.error_log,
            lost=lost,
            changed=engine.handoff.count_changed,
        )

    def _encoder_options(self, config: Config) -> dict[str, Any]:
        """An event document says more than ECS, and carries its id in `uuid`."""
        return {"carriers": ("uuid",), "ecs": False}

    def _document(
        self, data: Mapping[Any, Any] | str, type: str | None, timestamp: int | None
    ) -> dict[str, Any]:
        found = data if isinstance(data, str) else self.documents.strings(data)
        return self.documents.document(found, type=type, timestamp=timestamp)


class Lines(_DocumentClient):
    """The client of ``logclient.connect("plog+tcp://...")``.

    An event is ``handed`` when the kernel has all of its line. The server says nothing of it.
    """

    def event(
        self,
        data: Mapping[Any, Any] | str,
        *,
        type: str | None = None,
        timestamp: int | None = None,
        level: int = INFO,
    ) -> int:
        """Send an event document; its sequence, or 0 when it was dropped at once.

        Args:
            data: text, or fields: values that are no strings are written in JSON.
            type: None: the option ``event_type``.
            timestamp: milliseconds since 1970; None: now.

        Raises:
            EncodeError: it has no encoding: a cycle, too deep, too large.
        """
        return self.send(self._document(data, type, timestamp), level)


class Client(_DocumentClient):
    """The client of ``logclient.connect("plog://...")``.

    An event is ``handed`` when the kernel has all of its datagrams. The server says nothing of it.
    """

    _questions: Any = client.UNMADE

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # One at a time: an answer does not say to which question it is.
        self._questions = threads.Lock()

    def event(
        self,
        data: Mapping[Any, Any] | str,
        *,
        type: str | None = None,
        timestamp: int | None = None,
        topic: str = "",
        key: str = "",
        tags: Iterable[str] = (),
        level: int = INFO,
    ) -> int:
        """Send an event document; its sequence, or 0 when it was dropped at once.

        Args:
            data: text, or fields: values that are no strings are written in JSON.
            type: None: the option ``event_type``.
            timestamp: milliseconds since 1970; None: now.
            topic, key, tags: as of `publish`.

        Raises:
            EncodeError: it has no encoding: a cycle, too deep, too large.
            ValueError: a tag breaks a rule.
        """
        made = self._document(data, type, timestamp)
        return self.publish(made, topic=topic, key=key, tags=tags, level=level)

    def publish(
        self,
        event: Mapping[str, Any] | str | bytes,
        *,
        topic: str = "",
        key: str = "",
        tags: Iterable[str] = (),
        level: int = INFO,
    ) -> int:
        """Like ``send``, with tags for this event alone; its sequence, or 0 when it was dropped at once.

        Without any of them the options ``topic`` and ``tags`` hold, else only what is said here.

        Args:
            topic: of Kafka.
            key: of the message there.
            tags: more; servers ignore those that they do not know.

        Raises:
            EncodeError: it has no encoding.
            ValueError: a tag breaks a rule.
        """
        joined = join_tags([*kafka_tags(topic, key), *tags])
        if not joined:
            return self.send(event, level)
        if isinstance(event, bytes):
            body, kind = event, K_RAW
        else:
            body, kind, *changed = self.encoder.encode(event)
            self.handoff.count_changed(*changed)
        tagged = len(joined).to_bytes(2, "big") + joined + body
        return self._engine.put(tagged, client.tens(level), kind | TAGGED_KIND)

    def ping(self, payload: bytes | str | None = None, timeout: float = 2.0) -> Pong:
        """Ask for a sign of life; the answer has the same payload. None: one of our own.

        Raises:
            ConnectFailed: no answer within `timeout` seconds. A datagram may be lost: ask again.
            ValueError: the payload does not fit a datagram.
        """
        return self.pong(*self._ask("ping", payload, timeout))

    @staticmethod
    def pong(answer: Any, seconds: float) -> Pong:
        """What ``ping`` returns, of an answer and the time that it took.

        Raises:
            ConnectFailed, ProtocolError: the answer says why there is none.
        """
        return Pong(_answered(answer), seconds)

    def stat(self, timeout: float = 2.0) -> Stat:
        """The server's counters, of all its clients.

        Raises:
            ConnectFailed: no answer within `timeout` seconds.
            ProtocolError: an answer that is none.
        """
        found: Stat = self._ask("stat", None, timeout)[0]
        return found

    def envi(self, timeout: float = 2.0) -> str:
        """The server's configuration as text, secrets and all.

        Raises:
            ConnectFailed: no answer within `timeout` seconds.
        """
        return str(self._ask("envi", None, timeout)[0])

    def kill(self, *, really: bool = False, timeout: float = 2.0) -> None:
        """End the server process: it is deaf at once, and gone some 10 s later. It gives no answer.

        Raises:
            ValueError: not `really`.
            ConnectFailed: it could not be sent within `timeout` seconds.
        """
        if really is not True:
            raise ValueError("kill: it ends the server process; say really=True")
        self._ask("kill", True, timeout)

    def watch(self, timeout: float = 5.0) -> Watch:
        """From now on count what arrives; ``loss()`` of the result tells. What was sent is waited for."""
        return Watch(self, timeout)

    @property
    def _asked(self) -> int:
        """Commands ever, those of the core's own among them."""
        found: int = self._engine.core.asked  # type: ignore[attr-defined]
        return found

    def _ask(self, kind: str, payload: Any, timeout: float) -> tuple[Any, float]:
        end = time.monotonic() + timeout
        alone = kind == "ping" or threads.acquire(self._questions, timeout)
        if not alone:
            raise ConnectFailed(f"{kind}: another is asked already, and has no answer")
        try:
            left = max(0.0, round(end - time.monotonic(), 3))
            found, seconds = self._engine.request(kind, payload, left)
        finally:
            if kind != "ping":
                self._questions.release()
        return _answered(found), seconds


def _answered(found: Any) -> Any:
    if isinstance(found, TimeoutError):
        raise ConnectFailed(str(found))
    if isinstance(found, Exception):
        raise found
    return found


def _strings(body: bytes) -> dict[str, str]:
    """The members of a JSON object, those that are no strings as JSON."""
    import json

    def text(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    found = json.loads(body).items()
    return {name: value if isinstance(value, str) else text(value) for name, value in found}
