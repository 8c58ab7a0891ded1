"""One Kafka broker for the whole test run; ``tests/conftest.py`` makes the fixture known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from tests import support
from tools.kafka import Broker, Unavailable, jars


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
