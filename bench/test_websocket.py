"""WebSocket frames, compiled, by `websockets` and in plain Python; `make bench ROW=functions`.

A round: 640 messages of 100 bytes decoded from one read, or 500 of 20 bytes encoded as frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from logclient._ext import websocket
from tests.oracle import websocket as reference

COME = b"\x81\x64" + b"x" * 100
SENT = b'["synced",123456789]'


def protocol() -> Any:
    from websockets.client import ClientProtocol
    from websockets.protocol import State
    from websockets.uri import WebSocketURI

    return ClientProtocol(WebSocketURI(False, "h", 1, "/", ""), state=State.OPEN)


def takes(kind: str) -> Callable[[bytes], int]:
    if kind == "websockets":
        whole = protocol()

        def read_all(data: bytes) -> int:
            whole.receive_data(data)
            return len([bytes(frame.data) for frame in whole.events_received()])

        return read_all

    def read(data: bytes) -> int:
        if kind == "plain":
            return len(reference.ClientFrames(1 << 20).receive(data))
        frames = websocket.ClientFrames(1 << 20)
        frames.receive_data(data)
        found = 0
        while frames.next_message() is not None:
            found += 1
        return found

    return read


def makes(kind: str) -> Callable[[bytes], object]:
    if kind == "websockets":
        whole = protocol()

        def send(data: bytes) -> object:
            whole.send_text(data)
            return whole.data_to_send()

        return send
    return (websocket if kind == "compiled" else reference).ClientFrames(1 << 20).send


@pytest.mark.parametrize("kind", ["compiled", "websockets", "plain"])
@pytest.mark.benchmark(group="WebSocket, 640 messages of 100 bytes taken")
def test_receive(benchmark: Any, kind: str) -> None:
    assert benchmark(takes(kind), COME * 640) == 640


@pytest.mark.parametrize("kind", ["compiled", "websockets", "plain"])
@pytest.mark.benchmark(group="WebSocket, 500 messages of 20 bytes made")
def test_send(benchmark: Any, kind: str) -> None:
    make = makes(kind)

    def run() -> None:
        for _ in range(500):
            make(SENT)

    benchmark(run)
