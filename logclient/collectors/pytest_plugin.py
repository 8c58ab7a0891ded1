"""The pytest fixture ``log_collector``: a server that receives the events of a program under test.

::

    def test_ships(log_collector):
        handler = logclient.Handler(log_collector.url)
        ...
        assert log_collector.events(1)[0]["message"] == "hi"

The protocol is Lumberjack unless a test chooses another one::

    @pytest.mark.parametrize("log_collector_scheme", ["logjam"])
    def test_ships(log_collector):
        handler = logclient.Handler(f"{log_collector.url}/shop-production")

A fixture of your own named ``log_collector_scheme``, in a class, a module or ``conftest.py``, chooses it for
all tests there. One named ``log_collector_options`` returns further arguments of the ``Collector``:
``{"tls": server_context("server.pem", ca="clients.pem")}`` makes a Lumberjack server ask for client
certificates, ``{"device": 7}`` is the number of a Logjam device.

Every run of pytest loads this file where the package is installed. Therefore it imports nothing of the
package until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from logclient.collectors.loop import CollectorBase


@pytest.fixture
def log_collector_scheme() -> str:
    """Return the protocol of ``log_collector``: ``lumberjack``, ``logjam``, ``plog`` or ``logux``."""
    return "lumberjack"


@pytest.fixture
def log_collector_options() -> dict[str, Any]:
    """Return further arguments of the ``Collector`` behind ``log_collector``: none."""
    return {}


@pytest.fixture
def log_collector(
    log_collector_scheme: str, log_collector_options: dict[str, Any]
) -> Iterator[CollectorBase[Any]]:
    """Run a server on 127.0.0.1 that keeps its events in memory; see its ``url`` and ``events``."""
    make: Callable[..., CollectorBase[Any]]
    if log_collector_scheme == "lumberjack":
        from logclient.lumberjack import collector as lumberjack

        make = lumberjack.Collector
    elif log_collector_scheme == "logjam":
        from logclient.logjam import collector as logjam

        make = logjam.Collector
    elif log_collector_scheme == "plog":
        from logclient.plog import collector as plog

        make = plog.Collector
    elif log_collector_scheme == "logux":
        from logclient.logux import collector as logux

        make = logux.Collector
    else:
        from logclient.errors import ConfigError

        known = "lumberjack, logjam, plog, logux"
        raise ConfigError(f"log_collector_scheme: {log_collector_scheme!r} is none of {known}")
    with make(keep=True, **log_collector_options) as collector:
        yield collector
