"""The pytest fixture ``log_collector``: a server that shows a test what its program has shipped.

::

    def test_ships(log_collector):
        handler = logclient.Handler(log_collector.url)
        ...
        assert log_collector.events(1)[0]["message"] == "hi"

A fixture of your own named ``log_collector_options`` returns what else ``Collector`` is to be told:
``{"tls": server_context("server.pem", ca="clients.pem")}`` makes it ask for client certificates.

Every pytest of everybody who has this package installed loads this file: it imports nothing of ours
until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from logclient.collectors.lumberjack import Collector


@pytest.fixture
def log_collector_options() -> dict[str, Any]:
    """Options of the ``Collector`` behind ``log_collector``: none."""
    return {}


@pytest.fixture
def log_collector(log_collector_options: dict[str, Any]) -> Iterator[Collector]:
    """A Lumberjack server on 127.0.0.1 that keeps its events in memory; see its ``url`` and ``events``."""
    from logclient.collectors.lumberjack import Collector

    with Collector(keep=True, **log_collector_options) as collector:
        yield collector
