"""One Kafka broker for the whole test run, which ``tests/conftest.py`` makes known, and topics on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count

import pytest

from tests import support
from tests.support.patience import PATIENCE
from tools.kafka import Broker, Unavailable, jars

_NUMBERS = count(1)


@cache
def connector() -> tuple[list[str], str]:
    """Jars of Spark's Kafka connector, or why there are none."""
    try:
        return jars("spark"), ""
    except Unavailable as error:
        return [], str(error)


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """Where it is: ``127.0.0.1:port``."""
    support.need("confluent_kafka")
    try:
        broker = Broker()
    except Unavailable as error:
        support.missing(str(error))
    with broker:
        yield broker.bootstrap


class Record:
    """A record for a topic."""

    def __init__(
        self, value: bytes | None, partition: int = 0, at_ms: int = 50, key: bytes | None = None
    ) -> None:
        self.value = value
        self.partition = partition
        self.at_ms = at_ms
        self.key = key


def topic_name(prefix: str) -> str:
    """Return a name that no other topic of the broker has."""
    return f"{prefix}-{next(_NUMBERS)}"


def create_topic(bootstrap: str, partitions: int, some: Iterable[Record] = (), **config: str) -> str:
    """Create a topic with these records in this order."""
    client = support.need("confluent_kafka")
    admin = support.need("confluent_kafka.admin")
    name = topic_name("records")
    new = admin.NewTopic(name, num_partitions=partitions, config=config)
    asks = admin.AdminClient({"bootstrap.servers": bootstrap})
    for made in asks.create_topics([new]).values():
        made.result(PATIENCE)
    wrong = []
    # While a leader is elected the producer retries, and keeps the order.
    producer = client.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
    for record in some:
        producer.produce(
            name, record.value, record.key, record.partition, timestamp=record.at_ms,
            on_delivery=lambda error, _: wrong.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(2 * PATIENCE) == 0
    assert not wrong, wrong
    return name
