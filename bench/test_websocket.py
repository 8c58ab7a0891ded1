"""WebSocket frames, compiled, by `websockets` and in plain Python; `make bench ROW=functions`.

A round: 640 messages of 100 bytes decoded from one read, or 500 of 20 bytes encoded as frames.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from logclient._ext import websocket
from tests.oracle import websocket as reference

COME = b"\x81\x64" + b"x" * 100
SENT = b'["synced",123456789]'
CALLS = {"compiled": websocket, "plain": reference}


def protocol() -> Any:
    from websockets.client import ClientProtocol
    from websockets.protocol import State
    from websockets.uri import WebSocketURI

    return ClientProtocol(WebSocketURI(False, "h", 1, "/", ""), state=State.OPEN)


def takes(kind: str) -> Callable[[bytes], int]:
    if kind == "websockets":
        whole = protocol()

        def read(data: bytes) -> int:
            whole.receive_data(data)
            return len([bytes(frame.data) for frame in whole.events_received()])

        return read

    def split(data: bytes) -> int:
        found: list[bytes] = []
        CALLS[kind].split(data, 0, 1 << 20, False, found)
        return len(found)

    return split


def makes(kind: str) -> Callable[[bytes, int], bytes]:
    if kind == "websockets":
        whole = protocol()

        def send(data: bytes, _: int) -> bytes:
            whole.send_text(data)
            return bytes(whole.data_to_send()[0])

        return send
    keys = os.urandom(4096)
    return lambda data, n: CALLS[kind].seal(data, keys, 4 * n)


@pytest.mark.parametrize("kind", ["compiled", "websockets", "plain"])
@pytest.mark.benchmark(group="WebSocket, 640 messages of 100 bytes taken")
def test_split(benchmark: Any, kind: str) -> None:
    assert benchmark(takes(kind), COME * 640) == 640


@pytest.mark.parametrize("kind", ["compiled", "websockets", "plain"])
@pytest.mark.benchmark(group="WebSocket, 500 messages of 20 bytes made")
def test_seal(benchmark: Any, kind: str) -> None:
    make = makes(kind)

    def run() -> int:
        return sum(len(make(SENT, n)) for n in range(500))

    assert benchmark(run) == 500 * 26
