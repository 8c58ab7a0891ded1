"""What the tests of plog share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from logclient.testing.plog import Collector
from tests.plog.client import Client


@pytest.fixture
def client(collector: Collector) -> Iterator[Client]:
    client = Client(collector)
    yield client
    client.close()
