"""A socket emptied by a thread without the GIL against one that Python reads; `make bench ROW=functions`.

What it brings is no speed: nothing is lost while Python is busy.
A round: 500 datagrams of 300 bytes, sent and read.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from logclient.testing import plog_datagrams as datagrams

DATAGRAMS = 500


@pytest.fixture(params=["compiled", "python"])
def bound(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[datagrams.Datagrams]:
    if request.param == "python":
        monkeypatch.setattr(datagrams, "BESIDE", False)
    bound = datagrams.Datagrams("127.0.0.1", 0, 8 << 20)
    yield bound
    bound.close()


@pytest.mark.benchmark(group="plog, 500 datagrams received")
def test_receive(benchmark: Any, bound: datagrams.Datagrams) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", bound.port))

        def run() -> None:
            for _ in range(DATAGRAMS):
                sock.send(bytes(300))
            got = 0
            while got < DATAGRAMS:
                select.select([bound], [], [], 0 if bound.more else 10)
                batch = bound.read()
                got += 0 if batch is None else len(batch)

        benchmark(run)
    assert bound.drops == 0
