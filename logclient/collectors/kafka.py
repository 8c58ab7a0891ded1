"""Messages to Kafka, as plog's own handler sends them: topic and key from tags, the payload as it came."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from logclient.errors import ConfigError, MissingExtra

__all__ = ["Forwarder"]

# A broker that is away for a moment costs nothing, and a message never stands twice because of us.
_DEFAULTS = {
    "client.id": "plog",
    "enable.idempotence": True,
    "linger.ms": 20,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 << 10,
    "message.timeout.ms": 60_000,
    "log_level": 2,  # what goes wrong is counted and in the reasons, not on stderr as well
}
_SHOWN = ("bootstrap.servers", "client.id")
_WAIT = 60.0  # seconds for room in the queue, as Kafka's own producer waits


class Forwarder:
    """A producer, and what became of what it was given. Not thread-safe: one thread sends and polls.

    Args:
        settings: librdkafka's, ``bootstrap.servers`` among them.
        topic: of messages without a tag ``kt:``.

    Raises:
        MissingExtra: confluent-kafka is not installed.
        ConfigError: a setting that librdkafka does not know, or does not take.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise MissingExtra("confluent_kafka", "kafka") from error
        if not topic:
            raise ConfigError("kafka_topic: needed, for messages that name none")
        self._topic = topic
        self._settings = {**_DEFAULTS, **settings}
        self._exception = confluent_kafka.KafkaException
        self.errors: list[str] = []
        try:
            self._producer = confluent_kafka.Producer({**self._settings, "error_cb": self._failed})
        except confluent_kafka.KafkaException as error:
            raise ConfigError(f"kafka: {error.args[0].str()}") from None
        self.seen_messages = 0
        self.failed_to_send = 0
        self.delivered = 0

    def _failed(self, error: Any) -> None:
        if len(self.errors) < 1000:
            self.errors.append(f"kafka: {error.name()}")

    def send(self, payload: bytes, tags: list[str]) -> None:
        """Queue it; what becomes of it is counted when the broker has said so."""
        self.seen_messages += 1
        topic, key = self._topic, None
        for tag in tags:  # the last of each counts
            if tag.startswith("kt:"):
                topic = tag[3:]
            elif tag.startswith("pk:"):
                key = tag[3:]
        if topic == "null":  # the real server drops these without a word
            return
        end = 0.0
        while True:
            try:
                self._producer.produce(topic, payload, key, on_delivery=self._reported)
                return
            except BufferError:
                now = time.monotonic()
                end = end or now + _WAIT
                if now >= end:
                    break
                self._producer.poll(0.05)
            except (self._exception, ValueError, TypeError):
                break
        self.failed_to_send += 1

    def _reported(self, error: Any, message: Any) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed_to_send += 1
            self._failed(error)

    def poll(self) -> bool:
        """Hear what became of them; True: some are still under way."""
        self._producer.poll(0)
        return len(self._producer) > 0

    def close(self, timeout: float = 30.0) -> None:
        """Wait for those under way; what is not there by then has failed."""
        self._producer.flush(timeout)
        self._producer.purge()
        self._producer.flush(1.0)

    def stats(self) -> dict[str, Any]:
        return {
            "seen_messages": self.seen_messages,
            "failed_to_send": self.failed_to_send,
            "delivered": self.delivered,
            "name": "kafka",
        }

    def shown(self) -> dict[str, Any]:
        """Its settings, for everybody's eyes."""
        shown = {name: value if name in _SHOWN or name in _DEFAULTS else "***"
                 for name, value in self._settings.items()}  # fmt: skip
        return {"default_topic": self._topic, "producer_config": shown}
