"""The compiled framing of WebSocket equals its reference in Python and the websockets library."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from logclient._ext import websocket
from tests.oracle import websocket as reference
from tests.support import need

pytestmark = pytest.mark.unit

LENGTHS = [0, 1, 7, 8, 9, 125, 126, 127, 65535, 65536, 65537, 200_000]

pieces = some.one_of(
    some.builds(
        lambda first, length, more: bytes([first, length]) + more[:length],
        some.sampled_from([0x81, 0x82]), some.integers(0, 20), some.just(bytes(range(20))),
    ),
    some.builds(
        lambda first, second, more: bytes([first, second]) + more,
        some.integers(0, 255), some.integers(0, 255), some.binary(max_size=12),
    ),
    some.builds(
        lambda first, length, more: bytes([first, 126]) + length.to_bytes(2, "big") + more,
        some.sampled_from([0x81, 0x01, 0x80]), some.integers(0, 300), some.binary(max_size=300),
    ),
    some.builds(
        lambda length, more: b"\x81\x7f" + length.to_bytes(8, "big") + more,
        some.one_of(some.integers(0, 300), some.integers(0, (1 << 64) - 1)), some.binary(max_size=300),
    ),
)  # fmt: skip


@given(
    some.lists(pieces, max_size=8).map(b"".join), some.integers(0, 40), some.integers(0, 400), some.booleans()
)
def test_split_equals_the_reference(data: bytes, at: int, limit: int, unfinished: bool) -> None:
    at = min(at, len(data))
    for given_ in data, bytearray(data):
        mine: list[bytes] = []
        its: list[bytes] = []
        assert websocket.split(given_, at, limit, unfinished, mine) == reference.split(
            data, at, limit, unfinished, its
        )
        assert mine == its


@given(some.lists(some.binary(max_size=20) | some.integers(125, 128).map(bytes), max_size=3))
def test_split_waits_for_whole_frames(messages: list[bytes]) -> None:
    """Whole frames are taken, and the rest is needed again."""
    frames = [reference.seal(message, bytes(4), 0) for message in messages]
    whole = [
        bytes([one[0], one[1] - 128]) + one[2 : -4 - len(m)] + m
        for one, m in zip(frames, messages, strict=True)
    ]
    data = b"".join(whole)
    for end in range(len(data) + 1):
        found: list[bytes] = []
        at, size = websocket.split(data[:end], 0, 1000, False, found)
        assert at == sum(map(len, whole[: len(found)])) and end - at < size
        assert found == [message or b" " for message in messages[: len(found)]]
        assert len(found) == len(messages) or at + len(whole[len(found)]) > end


@pytest.mark.parametrize("length", LENGTHS)
def test_split_equals_the_websockets_library(length: int) -> None:
    need("websockets")
    from websockets.frames import Frame, Opcode
    from websockets.protocol import State
    from websockets.server import ServerProtocol

    message = bytes(n * 7 % 251 for n in range(length))
    wire = Frame(Opcode.TEXT, message).serialize(mask=False) + Frame(Opcode.PING, b"?").serialize(mask=False)
    found: list[bytes] = []
    assert websocket.split(wire, 0, length or 1, False, found) == (len(wire) - 3, 3)
    assert found == [message or b" "]
    server = ServerProtocol(state=State.OPEN)
    server.receive_data(websocket.seal(message, b"..\x81\x42\xff\x00", 2))
    events: list[Any] = server.events_received()
    assert [(one.opcode, one.fin, bytes(one.data)) for one in events] == [(Opcode.TEXT, True, message)]


@given(some.binary(max_size=300), some.binary(min_size=4, max_size=12), some.data())
def test_seal_equals_the_reference(message: bytes, keys: bytes, data: some.DataObject) -> None:
    at = data.draw(some.integers(0, len(keys) - 4))
    for given_ in message, bytearray(message), memoryview(message):
        assert websocket.seal(given_, keys, at) == reference.seal(message, keys, at)


@pytest.mark.parametrize("length", LENGTHS)
def test_seal_takes_any_length(length: int) -> None:
    message = bytes(n * 7 % 251 for n in range(length))
    assert websocket.seal(message, b"\x01\x80\x00\xfe", 0) == reference.seal(message, b"\x01\x80\x00\xfe", 0)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="beyond the end"):
        websocket.split(b"123", 4, 10, False, [])
    for keys, at in (b"", 0), (b"123", 0), (b"12345", 2), (b"1234", 1 << 62):
        with pytest.raises(ValueError, match="four bytes are needed"):
            websocket.seal(b"x", keys, at)
    with pytest.raises(OverflowError):
        websocket.split(b"", -1, 10, False, [])
    with pytest.raises(TypeError):
        websocket.split("text", 0, 10, False, [])  # type: ignore[arg-type]
