"""The client of plog URLs, and its event documents; see the package."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from logclient import client
from logclient._ext.constants import K_TOPIC_SHIFT
from logclient._ext.record import Encoder
from logclient.config.common import Config
from logclient.delivery.producer import INFO_LEVEL
from logclient.errors import ConfigError, EncodeError, described
from logclient.plog.config import PlogConfig
from logclient.plog.core import TAGGED
from logclient.plog.messages import join_tags, parse_stat
from logclient.records.host import node_name

__all__ = ["Client"]

FLAG = '["truncated"]'
CUTTER_BYTES = len('{"message":"","log.flags":["truncated"]}')
ID_BYTES = len('"uuid":"",') + 32
"""The room that a truncated document leaves for its id."""


class EventFormatter(logging.Formatter):
    """Marks a Handler without a formatter of the user's: records become whole documents, not texts."""


class Documents:
    """Makes the event documents of one client, and ships those of log records."""

    formatter = EventFormatter()

    def __init__(self, config: PlogConfig, sink: client.Sink) -> None:
        self._sink = sink
        self._event_type = config.event_type
        self._host = node_name()
        self._encoder = Encoder(max_event_bytes=config.max_event_bytes, ecs=False, carriers=())
        self._records = Encoder(
            max_event_bytes=config.max_event_bytes,
            truncate=config.truncate,
            carriers=(),
            flat=True,
            fingerprint=config.error_fingerprint,
        )

    def ship(self, record: logging.LogRecord, made: str | dict[str, Any] | None = None) -> bool:
        """Ship the document of a log record; return whether there is one. Errors are counted and reported.

        `made` is the output of the user's formatter: ``data``, or its fields.
        """
        try:
            if isinstance(made, str):
                data: str | dict[str, str] = made
            elif made is not None:
                data = self.strings(made)
            else:
                body, _, *changed = self._records.encode_record(record)
                self._sink.count_changed(*changed)
                data = _strings(body)
                data.pop("@timestamp", None)
            found = self.document(data, timestamp=int(record.created * 1000))
            self._sink.ship(self._encode(found), record.levelno, 0)
        except Exception as error:
            self._sink.lost(error)
            name = getattr(record, "name", "?")
            kind = type(error).__name__
            self._sink.report(f"plog:{kind}", f"a record of logger {name!r}: {described(error)}")
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
        return self._fitted(found, found["data"], room)

    def _fitted(self, found: dict[str, Any], data: dict[str, str], room: int) -> bytes:
        """Encode a document with as much of its message as `room` bytes have room for, and a flag."""
        message, other = data.get("message"), data.get("log.flags", FLAG)
        if message is None:
            return self._encoder.encode(found)[0]
        moved = {} if other == FLAG else {"labels.log_flags": other}

        def encoded(text: str) -> bytes:
            fields = {**data, **moved, "message": text, "log.flags": FLAG}
            return self._encoder.encode({**found, "data": fields})[0]

        bound = max(0, room - len(encoded(""))) + CUTTER_BYTES
        cutter = Encoder(max_event_bytes=bound, truncate=True, ecs=False, carriers=())
        # One that would fit without the flag gets it, too.
        cut = json.loads(cutter.encode({"message": message + "-" * CUTTER_BYTES})[0])["message"]
        return encoded(cut[: len(message)])

    def text(self, text: str) -> dict[str, Any]:
        """Return the event document of a plain text, without its id."""
        return self.document(text)

    def document(
        self, data: Mapping[str, str] | str, *, type: str | None = None, timestamp: int | None = None
    ) -> dict[str, Any]:
        """Return an event document without its id. The timestamp is in ms since 1970; None: now."""
        return {
            "type": self._event_type if type is None else type,
            "host": self._host,
            "timestamp": int(time.time() * 1000) if timestamp is None else timestamp,
            "data": data,
        }

    def strings(self, fields: Mapping[Any, Any]) -> dict[str, str]:
        """Return a mapping of strings to strings. Values that are not strings are written in JSON."""
        body, _, *changed = self._encoder.encode(fields)
        self._sink.count_changed(*changed)
        return _strings(body)


class Client(client.Client):
    """The client of ``logclient.connect("plog://...")``, and of ``plog+tcp://...``.

    An event is ``handed`` when the kernel has taken all of its datagrams, or its line. The server sends no
    acknowledgement.
    """

    documents: Documents
    _encoder_options = {"carriers": ("uuid",), "ecs": False}

    def _documents(self, config: Config) -> Documents:
        assert isinstance(config, PlogConfig)
        return Documents(config, self.sink)

    def event(
        self,
        data: Mapping[Any, Any] | str,
        *,
        type: str | None = None,
        timestamp: int | None = None,
        topic: str = "",
        key: str = "",
        tags: Iterable[str] = (),
        level: int = client.INFO,
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
        found = data if isinstance(data, str) else self.documents.strings(data)
        made = self.documents.document(found, type=type, timestamp=timestamp)
        return self.publish(made, topic=topic, key=key, tags=tags, level=level)

    def publish(
        self,
        event: Mapping[str, Any] | str | bytes,
        *,
        topic: str = "",
        key: str = "",
        tags: Iterable[str] = (),
        level: int = client.INFO,
    ) -> int:
        """Send an event with tags of its own.

        With any of ``topic``, ``key`` and ``tags``, the options ``topic`` and ``tags`` do not apply to it.
        Lines over TCP have no tags.

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
        joined = join_tags(tags, topic, key)
        if not joined:
            return self.send(event, level)
        if self.config.scheme != "plog":
            raise ConfigError("tags: lines over TCP have none")
        kept = INFO_LEVEL
        try:
            kept = client.level_index(level)
            body, kind, *changed = client.encoded(self.encoder, event)
            self.queue.count_changed(*changed)
        except (TypeError, ValueError) as error:
            self.sink.lost(error, kept)  # as `send` does
            raise
        tagged = len(joined).to_bytes(2, "big") + joined + body
        return self.sink.put_or_raise(tagged, kept, kind | TAGGED << K_TOPIC_SHIFT)

    def command(self, name: str, payload: bytes = b"", timeout: float = 2.0) -> Any:
        """Give a command to the server. There are none over TCP.

        ========  ====================================================================================
        command   what is returned
        ========  ====================================================================================
        ``ping``  the seconds that the answer took
        ``stat``  the counters of all clients since the server's start, as the server's JSON object
        ``envi``  the server's settings as text, secrets included
        ``kill``  None: the server gives no answer, is deaf at once, and its process ends 10 s later
        ========  ====================================================================================

        Args:
            name: one of these.
            payload: of a ``ping``, to fill the datagram; its answer has the same.
            timeout: seconds to wait for the answer. An earlier question of the same kind may get it, too.

        Raises:
            ConnectFailed: no answer within `timeout` seconds. Datagrams may be lost, so ask again.
            ProtocolError: the answer has no counters.
            ValueError: there is no such command, or its payload does not fit into a datagram.
        """
        if self.config.scheme != "plog":
            raise ConfigError("command: there are none over TCP")
        answer, seconds = self._peer.request(name, payload, timeout)
        if name == "ping":
            return seconds
        if name == "stat":
            return parse_stat(answer)
        return answer and answer.decode("utf-8", "replace")


def _strings(body: bytes) -> dict[str, str]:
    write = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    found = json.loads(body).items()
    return {name: value if isinstance(value, str) else write(value) for name, value in found}
