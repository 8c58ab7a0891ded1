"""The pytest fixtures ``log_collector`` and ``log_delivery``: a server for a program under test.

``log_collector`` keeps its events in memory; ``log_delivery`` has a capture, and proves at the end of the
test that everything arrived that clients with its ledger sent. Fixtures of your own named
``log_collector_scheme`` and ``log_collector_options``, in a class, a module or ``conftest.py``, choose the
protocol and further arguments of the ``Collector``, such as ``{"device": 7}``.

Every run of pytest loads this file where the package is installed. Therefore it imports nothing of the
package until the fixture is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from logclient.testing.delivery import Delivery
    from logclient.testing.loop import CollectorBase


@pytest.fixture
def log_collector_scheme() -> str:
    """Return the protocol of ``log_collector``: ``lumberjack``, ``logjam``, ``plog`` or ``logux``."""
    return "lumberjack"


@pytest.fixture
def log_collector_options() -> dict[str, Any]:
    """Return further arguments of the ``Collector`` behind ``log_collector``: none."""
    return {}


def _collector(scheme: str, **options: Any) -> CollectorBase[Any]:
    __tracebackhide__ = True
    from logclient.errors import ConfigError

    schemes = ("lumberjack", "logjam", "plog", "logux")
    if scheme not in schemes:
        raise ConfigError(f"log_collector_scheme: {scheme!r} is none of {', '.join(schemes)}")
    module = importlib.import_module(f"logclient.testing.{scheme}")
    try:
        made: CollectorBase[Any] = module.Collector(**options)
    except ConfigError as error:  # its text says it all
        raise error.with_traceback(None) from None
    return made


@pytest.fixture
def log_collector(
    log_collector_scheme: str, log_collector_options: dict[str, Any]
) -> Iterator[CollectorBase[Any]]:
    """Run a server on 127.0.0.1 that keeps its events in memory; see its ``url`` and ``events``."""
    __tracebackhide__ = True
    with _collector(log_collector_scheme, keep=True, **log_collector_options) as collector:
        yield collector


@pytest.fixture
def log_delivery(
    log_collector_scheme: str, log_collector_options: dict[str, Any], tmp_path: Path
) -> Iterator[Delivery]:
    """Run a server on 127.0.0.1, and check at the end of the test that everything arrived."""
    __tracebackhide__ = True
    from logclient.testing import Delivery

    make = partial(_collector, log_collector_scheme, **log_collector_options)
    with Delivery(make, tmp_path) as delivery:
        yield delivery
