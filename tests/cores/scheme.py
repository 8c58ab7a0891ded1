"""The test cores with a URL scheme: ``Client`` and ``Handler`` over a server in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from logclient.config import registry
from tests.cores import plain
from tests.cores.server import MemoryServer, MemoryTransport

URL = "test://server"
_servers: list[MemoryServer] = []


def Core(config: Any, producer: bytes) -> plain.PlainCore:
    return plain.core_of(plain.Fifo, producer, inflight=256, silence=config.silence)


def Transport(config: Any) -> MemoryTransport:
    return MemoryTransport(_servers[-1])


@contextmanager
def served() -> Iterator[MemoryServer]:
    """Provide a server for every client of the scheme ``test`` that is made in the block."""
    server = MemoryServer("fifo")
    row = registry.SCHEMES["logux"]._replace(  # whose options have a secret among them
        core=f"{__name__}:Core",
        transport=f"{__name__}:Transport",
        client="logclient.client:Client",
        port=1,
    )
    _servers.append(server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.SCHEMES, "test", row)
        try:
            yield server
        finally:
            _servers.pop()
