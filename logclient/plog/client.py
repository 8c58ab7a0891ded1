"""The clients of plog URLs; see the package."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from logclient import client, threads
from logclient._ext.constants import K_TOPIC_SHIFT
from logclient._ext.record import Encoder
from logclient.config.common import Config
from logclient.delivery.engine import Engine
from logclient.delivery.error_log import ErrorLog
from logclient.errors import ConfigError, ConnectFailed, EncodeError, ProtocolError
from logclient.plog.config import PlogConfig
from logclient.plog.core import TAGGED, Plog
from logclient.plog.messages import Defragmenter, Loss, Stat, estimate_loss, join_tags, kafka_tags
from logclient.records.host import node_name
from logclient.standard import time as clock

__all__ = ["Client", "Defragmenter", "Documents", "Lines", "Loss", "Pong", "Stat", "Watch"]

INFO = 20
POLL_INTERVAL = 0.1
"""Seconds between two questions for a server's counters."""
TAGGED_KIND = TAGGED << K_TOPIC_SHIFT

ID_BYTES = len('"uuid":"",') + 32
"""The room that a truncated document leaves for its id."""

Sink = Callable[[bytes, int, int], object]
"""``sink(body, level, kind)``: takes a document. The level is one of ``logging``'s."""


class EventFormatter(logging.Formatter):
    """Marks a Handler without a formatter of the user's: records become whole documents, not texts."""


class Documents:
    """The maker of event documents. A client has one; it can also be used alone.

    The sink takes the documents of log records. Its exceptions are counted in `failed` and reported, never
    raised; `count_lost` is called for each of these records, and `count_changed` with the numbers of values
    that JSON cannot represent as they were, and of fields that were moved.
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
        fingerprint: bool = False,
        reporter: ErrorLog | None = None,
        count_lost: Callable[[], object] | None = None,
        count_changed: Callable[[int, int], object] | None = None,
    ) -> None:
        self.sink = sink
        self.event_type = event_type
        self.host = node_name() if host is None else host
        self.failed = 0
        self._encoder = Encoder(max_event_bytes=max_event_bytes, ecs=False, carriers=())
        self._records = Encoder(
            max_event_bytes=max_event_bytes,
            truncate=truncate,
            carriers=(),
            flat=True,
            fingerprint=fingerprint,
        )
        self._reporter = reporter or ErrorLog()
        self._count_lost = count_lost
        self._count_changed = count_changed

    def ship(self, record: logging.LogRecord, made: str | dict[str, Any] | None = None) -> bool:
        """Make the document of a log record and give it to the sink; return whether it was taken.

        `made` is the output of a formatter: ``data``, or its fields.
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
            self.sink(self._encode(found), record.levelno, 0)
        except Exception as error:
            self.failed += 1
            if self._count_lost is not None:
                self._count_lost()
            name = getattr(record, "name", "?")
            self._reporter.warn_limited(
                f"plog:{type(error).__name__}",
                f"a record of logger {name!r}: {type(error).__name__}: {error}",
            )
            return False
        return True

    def _encode(self, found: dict[str, Any]) -> bytes:
        room = self._encoder.max_event_bytes - ID_BYTES
        cuts = self._records.truncate and not isinstance(found["data"], str)
        try:
            body = self._encoder.encode(found)[0]
            if not cuts or len(body) <= room:
                return body
        except EncodeError:
            if not cuts:
                raise
        from logclient.records.revision import fitted

        flag = '["truncated"]'
        return fitted(
            lambda fields: self._encoder.encode({**found, "data": fields}), found["data"], room, flag
        )[0]

    def text(self, text: str) -> dict[str, Any]:
        """Return the event document of a plain text, without its id."""
        return self.document(text)

    def document(
        self, data: Mapping[str, str] | str, *, type: str | None = None, timestamp: int | None = None
    ) -> dict[str, Any]:
        """Return an event document without its id. The timestamp is in ms since 1970; None: now."""
        return {
            "type": self.event_type if type is None else type,
            "host": self.host,
            "timestamp": int(time.time() * 1000) if timestamp is None else timestamp,
            "data": data,
        }

    def strings(self, fields: Mapping[Any, Any]) -> dict[str, str]:
        """Return a mapping of strings to strings. Values that are not strings are written in JSON."""
        body, _, *changed = self._encoder.encode(fields)
        self._count(*changed)
        return _strings(body)

    def _count(self, sanitized: int, moved: int) -> None:
        if (sanitized or moved) and self._count_changed is not None:
            self._count_changed(sanitized, moved)


class Pong(NamedTuple):
    """A server's answer to a ping.

    Attributes:
        payload: the payload of the ping.
        seconds: the time from handing the ping to the kernel to the answer.
    """

    payload: bytes
    seconds: float


class Watch:
    """A count of the messages that arrive after its creation. ``Client.watch`` makes it.

    Args:
        client: the client whose messages are counted.
        timeout: seconds to wait for the messages sent so far, and for each answer of the server.
    """

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._client.flush(timeout)
        self._stats = client.stats()
        self._commands = client._commands
        self._before: Stat | None = None
        self._reason = ""
        try:
            self._before = client.stat(timeout)
            threads.wait_until(lambda: False, POLL_INTERVAL)
            # Nothing is sent yet: messages that arrive now come from another client.
            self._reason = estimate_loss(self._before, client.stat(timeout), 0).reason
        except (ConnectFailed, ProtocolError) as error:
            self._reason = str(error)

    def loss(self, timeout: float = 5.0) -> Loss:
        """Estimate how many of the messages sent since the creation did not arrive.

        This waits until the server's counters stop growing. The loss is known only if no other client sends
        to that server and the socket stayed the same.

        Args:
            timeout: seconds to wait at most.

        Returns:
            The numbers of messages that were sent, seen and lost.
        """
        end = clock.monotonic() + timeout
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
                after = self._client.stat(max(POLL_INTERVAL, min(1.0, end - clock.monotonic())))
                commands = self._client._commands - self._commands - 1  # without the first STAT
                found = estimate_loss(self._before, after, sent, commands)
                if found.seen in (last, sent) or found.lost is None:
                    return found
                last = found.seen
            except (ConnectFailed, ProtocolError) as error:
                found = found._replace(reason=found.reason and str(error))
            if clock.monotonic() >= end:
                return found
            threads.wait_until(lambda: False, POLL_INTERVAL)


class _DocumentClient(client.Client):
    documents: Documents = client.UNMADE

    def _documents(self, config: Config, engine: Engine) -> Documents:
        assert isinstance(config, PlogConfig)
        put, count_lost = client.make_sink(engine)
        return Documents(
            put,
            event_type=config.event_type,
            max_event_bytes=config.max_event_bytes,
            truncate=config.truncate,
            fingerprint=config.error_fingerprint,
            reporter=engine.error_log,
            count_lost=count_lost,
            count_changed=engine.queue.count_changed,
        )

    def _encoder_options(self, config: Config) -> dict[str, Any]:
        return {"carriers": ("uuid",), "ecs": False}

    def _document(
        self, data: Mapping[Any, Any] | str, type: str | None, timestamp: int | None
    ) -> dict[str, Any]:
        found = data if isinstance(data, str) else self.documents.strings(data)
        return self.documents.document(found, type=type, timestamp=timestamp)


class Lines(_DocumentClient):
    """The client of ``logclient.connect("plog+tcp://...")``.

    An event is ``handed`` when the kernel has taken all of its line. The server sends no acknowledgement.
    """

    def event(
        self,
        data: Mapping[Any, Any] | str,
        *,
        type: str | None = None,
        timestamp: int | None = None,
        level: int = INFO,
    ) -> int:
        """Send an event document, without tags; the arguments and errors are those of ``Client.event``."""
        return self.send(self._document(data, type, timestamp), level)


class Client(_DocumentClient):
    """The client of ``logclient.connect("plog://...")``.

    An event is ``handed`` when the kernel has taken all of its datagrams. The server sends no
    acknowledgement.
    """

    _questions: dict[int, Any] = client.UNMADE

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # One question at a time: answers do not name their question.
        self._questions = {}

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
        """Send an event document.

        Args:
            data: text, or fields. Values that are not strings are written in JSON.
            type: the type of the document; None: the option ``event_type``.
            timestamp: milliseconds since 1970; None: now.
            topic: see `publish`.
            key: see `publish`.
            tags: see `publish`.
            level: a level of ``logging``, for ``keep_level``.

        Returns:
            The sequence of the event, or 0 if it was dropped at once.

        Raises:
            EncodeError: the data have no encoding: a mapping that cannot be read, too large.
            ValueError: a tag breaks a rule.
            QueueFull: with ``overflow=raise``.
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
        """Send an event with tags of its own.

        With any of ``topic``, ``key`` and ``tags``, the options ``topic`` and ``tags`` do not apply to it.

        Args:
            event: as for ``send``.
            topic: a Kafka topic.
            key: the key of the message in Kafka.
            tags: more tags. Servers ignore tags that they do not know.
            level: a level of ``logging``, for ``keep_level``.

        Returns:
            The sequence of the event, or 0 if it was dropped at once.

        Raises:
            EncodeError: the event has no encoding, or is too large.
            ValueError: a tag breaks a rule.
            QueueFull: with ``overflow=raise``.
        """
        if isinstance(tags, str):
            raise ConfigError("tags: must be several tags, not one string")
        joined = join_tags([*kafka_tags(topic, key), *tags])
        if not joined:
            return self.send(event, level)
        kept = client.INFO_LEVEL
        try:
            kept = client.level_index(level)
            body, kind, *changed = client.encoded(self.encoder, event)
            self.queue.count_changed(*changed)
        except (TypeError, ValueError) as error:
            client.count_lost(self._engine, error, kept)  # as `send` does
            raise
        tagged = len(joined).to_bytes(2, "big") + joined + body
        return self._put(tagged, kept, kind | TAGGED_KIND)

    def ping(self, payload: bytes | str | None = None, timeout: float = 2.0) -> Pong:
        """Ask the server for a sign of life. Its answer has the same payload.

        Args:
            payload: any text or bytes that fit into a datagram; None: a new one.
            timeout: seconds to wait for the answer.

        Returns:
            The payload, and the seconds until the answer.

        Raises:
            ConnectFailed: no answer within `timeout` seconds. Datagrams may be lost, so ask again.
            ValueError: the payload does not fit into a datagram.
        """
        return self.pong(*self._engine.request("ping", payload, timeout))

    @staticmethod
    def pong(answer: Any, seconds: float) -> Pong:
        """Make the result of ``ping`` from an answer and its duration. For `AsyncClient`."""
        return Pong(_answered(answer), seconds)

    def stat(self, timeout: float = 2.0) -> Stat:
        """Ask for the server's counters, which include all of its clients.

        Args:
            timeout: seconds to wait for the answer.

        Raises:
            ConnectFailed: no answer within `timeout` seconds.
            ProtocolError: the answer is no statistics.
        """
        found: Stat = self._ask("stat", None, timeout)
        return found

    def envi(self, timeout: float = 2.0) -> str:
        """Ask for the server's configuration, a text that includes its secrets.

        Args:
            timeout: seconds to wait for the answer.

        Raises:
            ConnectFailed: no answer within `timeout` seconds.
        """
        return str(self._ask("envi", None, timeout))

    def kill(self, *, really: bool = False, timeout: float = 2.0) -> None:
        """End the server process.

        The server gives no answer. It stops listening at once and exits about 10 s later.

        Args:
            really: must be True.
            timeout: seconds until the command must have been sent.

        Raises:
            ValueError: `really` is not True.
            ConnectFailed: the command could not be sent within `timeout` seconds.
        """
        if really is not True:
            raise ValueError("kill: it ends the server process; pass really=True")
        self._ask("kill", True, timeout)

    def watch(self, timeout: float = 5.0) -> Watch:
        """Wait for the messages sent so far, then begin to count arrivals.

        Args:
            timeout: seconds to wait for these messages, and for each answer of the server.

        Returns:
            An object whose ``loss()`` estimates how many messages were lost.
        """
        return Watch(self, timeout)

    @property
    def _commands(self) -> int:
        """Commands sent so far, those of the feedback included."""
        core = self._engine.core
        assert isinstance(core, Plog)
        return core.commands

    def _ask(self, kind: str, payload: Any, timeout: float) -> Any:
        end = clock.monotonic() + timeout
        lock = threads.lock_here(self._questions)
        if not threads.acquire(lock, timeout):
            raise ConnectFailed(f"{kind}: another one is still without an answer")
        try:
            left = max(0.0, round(end - clock.monotonic(), 3))
            return _answered(self._engine.request(kind, payload, left)[0])
        finally:
            lock.release()


def _answered(found: Any) -> Any:
    if isinstance(found, TimeoutError):
        raise ConnectFailed(str(found))
    if isinstance(found, Exception):
        raise found
    return found


def _strings(body: bytes) -> dict[str, str]:
    write = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    found = json.loads(body).items()
    return {name: value if isinstance(value, str) else write(value) for name, value in found}
