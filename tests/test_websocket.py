"""The WebSocket transport by itself: messages, handshake, ends, proxies, and peers that mean no good."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.shared import need

need("websockets")

from websockets.client import ClientProtocol  # noqa: E402
from websockets.frames import Frame, Opcode  # noqa: E402
from websockets.protocol import State  # noqa: E402
from websockets.server import ServerProtocol  # noqa: E402
from websockets.sync.server import ServerConnection, serve  # noqa: E402
from websockets.uri import WebSocketURI  # noqa: E402

from logclient.transports.tcp import Tcp  # noqa: E402
from logclient.transports.websocket import WebSocket, WebSocketLink  # noqa: E402
from tests.tls_rig import HOST, PATIENCE, serving  # noqa: E402


def never() -> bool:
    return False


def plain_link(port: int, **options: Any) -> WebSocketLink:
    return WebSocket(Tcp(PATIENCE), **options).connect((HOST, port), never)


def received(link: WebSocketLink) -> bytes:
    """The next message."""
    deadline = time.monotonic() + PATIENCE
    while (data := link.receive()) is None:
        assert time.monotonic() < deadline
        link.wait(-1, PATIENCE, False)
    return data


def ends(link: WebSocketLink) -> str:
    """The words of the error that reading ends with."""
    with pytest.raises(OSError) as caught:
        while received(link):
            pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def settled(link: WebSocketLink) -> None:
    """All that was sent is with the kernel."""
    deadline = time.monotonic() + PATIENCE
    while not link.flush():
        assert time.monotonic() < deadline
        link.wait(-1, PATIENCE, True)


# -- the far ends


@contextmanager
def served(handler: Callable[[ServerConnection], object], **options: Any) -> Iterator[int]:
    """A server of the library; its port."""
    with serve(handler, HOST, 0, logger=logging.Logger("far", 60), **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()


def echo(far: ServerConnection) -> None:
    for message in far:
        far.send(message)


def requested(sock: socket.socket) -> bytes:
    """The head of the request that comes."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = sock.recv(4096)
        if not data:
            raise ConnectionError
        head += data
    return head


def accepted(head: bytes, *more: str) -> bytes:
    """The answer that opens a WebSocket."""
    (key,) = (line[19:] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: "))
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    lines = [
        "HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}", *more, "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


def frame(opcode: int, data: bytes = b"", fin: bool = True, bits: int = 0) -> bytes:
    """As a server sends it."""
    size = len(data)
    head = bytes([bits | opcode | 128 * fin])
    if size < 126:
        return head + bytes([size]) + data
    if size < 65536:
        return head + b"\x7e" + struct.pack("!H", size) + data
    return head + b"\x7f" + struct.pack("!Q", size) + data


TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Raw:
    """One connection of a server that is only a socket, its opening handshake done."""

    def __init__(self, *more: str, **options: Any) -> None:
        self.more = more
        self.options = options

    def __enter__(self) -> Raw:
        with socket.create_server((HOST, 0)) as listener:

            def accept() -> None:
                self.far, _ = listener.accept()
                self.far.settimeout(PATIENCE)
                self.head = requested(self.far)
                self.far.sendall(accepted(self.head, *self.more))

            thread = threading.Thread(target=accept)
            thread.start()
            self.link = plain_link(listener.getsockname()[1], **self.options)
            thread.join()
        return self

    def __exit__(self, *_: object) -> None:
        self.far.close()
        self.link.close()

    def frames(self, n: int) -> list[Frame]:
        """What the link sends, `n` frames of it."""
        reader = ServerProtocol(state=State.OPEN, max_size=None)
        found: list[Any] = []
        while len(found) < n:
            data = self.far.recv(65536)
            assert data, "the end"
            reader.receive_data(data)
            found += reader.events_received()
        return found


class Scripted:
    """A carrier that gives these pieces, then nothing."""

    peer = "far:1"
    tls = ""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)
        self.sent = bytearray()
        self.closed = False

    def receive(self) -> bytes | None:
        return self.pieces.pop(0) if self.pieces else None

    def send(self, buffers: Sequence[bytes]) -> bool:
        self.sent += b"".join(buffers)
        return True

    def flush(self) -> bool:
        return True

    def wait(self, wake: int, seconds: float, writable: bool) -> None:
        assert self.pieces, "slept with messages at hand"

    def close(self, linger: float = 0.0) -> None:
        self.closed = True


def scripted(pieces: Sequence[bytes], max_message: int = 1 << 20) -> tuple[WebSocketLink, Scripted]:
    carrier = Scripted(pieces)
    protocol = ClientProtocol(WebSocketURI(False, "h", 1, "/", ""), state=State.OPEN, max_size=max_message)
    return WebSocketLink(carrier, protocol), carrier  # type: ignore[arg-type]


class TestMessages:
    def test_both_ways(self) -> None:
        with served(echo) as port:
            link = plain_link(port)
            assert link.receive() is None
            assert link.send([b'["one",', memoryview(b'"tw'), b"", 'ö"]'.encode()])
            assert received(link) == '["one","twö"]'.encode()
            assert (link.peer, link.tls, link.facts()) == (f"{HOST}:{port}", "", {})
            link.close()

    def test_text_goes_and_either_comes(self) -> None:
        kinds: list[type] = []

        def handler(far: ServerConnection) -> None:
            kinds.append(type(far.recv()))
            far.send(b"binary")
            far.send("text")
            far.send("")
            far.recv()

        with served(handler) as port:
            link = plain_link(port)
            link.send([b"[]"])
            assert [received(link) for _ in range(3)] == [b"binary", b"text", b" "]
            link.close()
        assert kinds == [str]

    @pytest.mark.parametrize("size", [125, 126, 65535, 65536, 3 << 20])
    def test_of_any_length(self, size: int) -> None:
        message = os.urandom(size // 2).hex().encode() + b"x" * (size % 2)
        with served(echo, max_size=None) as port:
            link = plain_link(port)
            if not link.send([message[:100], memoryview(message)[100:]]):
                settled(link)
            assert received(link) == message
            link.close()

    def test_the_buffers_are_free_at_once(self) -> None:
        buffer = bytearray(b"before")
        with served(echo) as port:
            link = plain_link(port)
            link.send([memoryview(buffer)])
            buffer[:] = b"after!"
            assert received(link) == b"before"
            link.close()

    def test_many_short_ones_are_one_write(self) -> None:
        with Raw() as raw:
            for n in range(100):
                assert raw.link.send([b"[%d]" % n])
            assert select.select([raw.far], [], [], 0) == ([], [], [])
            raw.link.wait(-1, 0, False)
            found = raw.frames(100)
            assert [bytes(one.data) for one in found] == [b"[%d]" % n for n in range(100)]
            assert {one.opcode for one in found} == {Opcode.TEXT}

    def test_a_message_goes_when_the_pump_waits_for_an_answer(self) -> None:
        """`wait` writes first, though it was not told that anything was left."""
        with served(echo) as port:
            link = plain_link(port)
            assert link.send([b"[]"])
            deadline = time.monotonic() + PATIENCE
            while link.receive() is None:
                assert time.monotonic() < deadline
                link.wait(-1, PATIENCE, False)
            link.close()

    def test_many_of_one_read_are_given_without_another(self) -> None:
        with Raw() as raw:
            raw.far.sendall(frame(TEXT, b"[1]") + frame(TEXT, b"[2]") + frame(BINARY, b"[3]"))
            assert received(raw.link) == b"[1]"
            raw.link.wait(-1, 10_000, False)  # no sleep: there is more
            assert raw.link.receive() == b"[2]"
            raw.link.wait(-1, 10_000, False)
            assert raw.link.receive() == b"[3]"
            assert raw.link.receive() is None

    def test_what_comes_with_the_end_of_the_handshake(self) -> None:
        def talk(sock: socket.socket) -> None:
            sock.sendall(accepted(requested(sock)) + frame(TEXT, b"[1]") + frame(TEXT, b"[2"))
            sock.recv(1)

        with serving(talk) as port:
            link = plain_link(port)
            assert received(link) == b"[1]"
            assert received(link) == b"[2"
            link.close()

    def test_a_peer_that_does_not_read_holds_us_back_and_loses_nothing(self) -> None:
        message = os.urandom(20_000).hex().encode()
        with Raw() as raw:
            sent = 0
            while raw.link.send([b"%08d" % sent, message]):
                sent += 1
                assert sent < 100_000
            sent += 1
            assert not raw.link.flush()
            found: list[Frame] = []
            thread = threading.Thread(target=lambda: found.extend(raw.frames(sent)))
            thread.start()
            settled(raw.link)
            thread.join()
            assert [bytes(one.data) for one in found] == [b"%08d" % n + message for n in range(sent)]

    def test_both_sides_write_and_neither_waits_for_the_other(self) -> None:
        count, message = 400, os.urandom(20_000).hex().encode()
        with served(echo) as port:
            link = plain_link(port)
            sent = got = 0
            full = False
            while got < count:
                if full:
                    full = not link.flush()
                while not full and sent < count:
                    full = not link.send([message])
                    sent += 1
                while (data := link.receive()) is not None:
                    assert data == message
                    got += 1
                link.wait(-1, PATIENCE, full)
            link.close()

    def test_wait_ends_with_a_wake(self) -> None:
        read, write = os.pipe()
        try:
            os.write(write, b"x")
            with Raw() as raw:
                raw.link.wait(read, 10_000, False)
        finally:
            os.close(read)
            os.close(write)

    @settings(deadline=None)
    @given(some.data())
    def test_however_it_is_cut(self, data: some.DataObject) -> None:
        """Any messages, cut into any fragments with control frames between them, read in any pieces."""
        messages = data.draw(some.lists(some.binary(max_size=300), max_size=6))
        wire = b""
        pings = []
        for message in messages:
            cuts = sorted(data.draw(some.lists(some.integers(0, len(message)), max_size=3)))
            parts = [message[a:b] for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True)]
            for number, part in enumerate(parts):
                opcode = 0 if number else data.draw(some.sampled_from([TEXT, BINARY]))
                wire += frame(opcode, part, fin=number == len(parts) - 1)
                for control in data.draw(some.lists(some.sampled_from([PING, PONG]), max_size=1)):
                    body = data.draw(some.binary(max_size=125))
                    wire += frame(control, body)
                    pings += [body] * (control == PING)
        cuts = sorted(data.draw(some.sets(some.integers(1, max(1, len(wire))), max_size=40)))
        pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
        link, carrier = scripted([piece for piece in pieces if piece])
        got = []
        while carrier.pieces or link._ready:
            link.wait(-1, 10_000, False)
            if (message := link.receive()) is not None:
                got.append(message)
        assert got == [message or b" " for message in messages]
        link.flush()
        reader = ServerProtocol(state=State.OPEN)
        reader.receive_data(bytes(carrier.sent))
        pongs: list[Any] = reader.events_received()
        assert [bytes(pong.data) for pong in pongs][-1:] == pings[-1:]

    def test_deflate(self) -> None:
        heads: list[str | None] = []

        def handler(far: ServerConnection) -> None:
            heads.append(far.request.headers.get("Sec-WebSocket-Extensions"))  # type: ignore[union-attr]
            heads.append(far.response.headers.get("Sec-WebSocket-Extensions"))  # type: ignore[union-attr]
            echo(far)

        message = b"[" + b"0," * 50_000 + b"0]"
        with served(handler) as port:
            for deflate in False, True:
                link = plain_link(port, deflate=deflate)
                for _ in range(3):
                    if not link.send([message]):
                        settled(link)
                    assert received(link) == message
                link.close()
        assert heads[:2] == [None, None]
        assert heads[2] is not None and heads[2].startswith("permessage-deflate") and heads[3]

    def test_a_server_may_leave_compression_out(self) -> None:
        with Raw(deflate=True) as raw:
            assert b"permessage-deflate" in raw.head
            raw.far.sendall(frame(TEXT, b"[]"))
            assert received(raw.link) == b"[]"

    def test_nothing_of_it_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG), Raw() as raw:
            raw.link.send([b"a secret"])
            raw.far.sendall(frame(TEXT, b"a secret"))
            assert received(raw.link) == b"a secret"
        assert caplog.records == []
