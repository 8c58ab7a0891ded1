"""Forwarding to Kafka like plog's own handler: topic and key from tags, and the payload unchanged."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from logclient.errors import ConfigError, MissingExtra

# A short outage of the broker loses nothing, and a retry makes no second copy.
_DEFAULTS = {
    "client.id": "plog",
    "enable.idempotence": True,
    "linger.ms": 20,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 << 10,
    "message.timeout.ms": 60_000,
    "log_level": 2,  # errors are counted by reason, so librdkafka need not print them
}
_SHOWN = ("bootstrap.servers", "client.id")
_WAIT = 60.0  # seconds for room in the queue, as Kafka's own producer waits


class Forwarder:
    """A producer that counts the results of its messages. Not thread-safe: one thread sends and polls.

    The settings are librdkafka's, by name; messages without a tag ``kt:`` go to `topic`.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise MissingExtra("confluent_kafka", "kafka") from error
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
        """Queue a message. It counts as delivered or failed when the broker has answered."""
        self.seen_messages += 1
        topic, key = self._topic, None
        for tag in tags:  # the last one of each kind counts
            if tag.startswith("kt:"):
                topic = tag[3:]
            elif tag.startswith("pk:"):
                key = tag[3:]
        if topic == "null":  # the real server drops these without an error
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

    def poll(self) -> None:
        self._producer.poll(0)

    def close(self) -> None:
        """Wait for messages in flight, at most 30 seconds; the rest counts as failed."""
        self._producer.flush(30.0)
        self._producer.purge()
        self._producer.flush(1.0)

    def stats(self) -> dict[str, Any]:
        """Return the counters, with the names of STAT."""
        names = ("seen_messages", "failed_to_send", "delivered")
        return {**{name: getattr(self, name) for name in names}, "name": "kafka"}

    def public_settings(self) -> dict[str, Any]:
        """Return the settings without secrets, for ENVI."""
        shown = {name: value if name in _SHOWN or name in _DEFAULTS else "***"
                 for name, value in self._settings.items()}  # fmt: skip
        return {"default_topic": self._topic, "producer_config": shown}
