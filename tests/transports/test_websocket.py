"""The WebSocket transport without an engine: messages, handshake, ends, proxies and hostile peers."""

from __future__ import annotations

import base64
import logging
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from logclient._ext.websocket import LINKED, ClientFrames
from logclient.config.secrets import Secret
from logclient.errors import ConfigError, CredentialError
from tests.support import clean_environment, need, transports
from tests.support.patience import PATIENCE, assert_returns

need("websockets")

from websockets.frames import Close, Frame, Opcode  # noqa: E402
from websockets.protocol import State  # noqa: E402
from websockets.server import ServerProtocol  # noqa: E402
from websockets.sync.server import ServerConnection  # noqa: E402

from logclient.delivery.attempt import Attempt  # noqa: E402
from logclient.transports.http import Proxy  # noqa: E402
from logclient.transports.websocket import WebSocketLink  # noqa: E402
from tests.oracle.websocket import frames_of  # noqa: E402
from tests.support.proxy import NAME, PASSWORD, USERINFO, ProxyServer, read_request  # noqa: E402
from tests.support.proxy import environment as environment  # noqa: E402
from tests.support.tls import HOST, Authority, context, serving  # noqa: E402
from tests.support.websocket import (  # noqa: E402
    BINARY,
    CLOSE,
    FAR,
    PING,
    PONG,
    TEXT,
    accept_answer,
    echo,
    read_error,
    read_message,
    serve_library,
    server_frame,
    transport_by_url,
)

compresses = pytest.mark.skipif(not LINKED, reason="this build is not linked to zlib")


def plain_link(port: int, **options: Any) -> WebSocketLink:
    return transports.websocket(**options).connect((HOST, port), Attempt())


def assert_echoes(link: WebSocketLink) -> None:
    """Send a message to a server that sends it back, and close."""
    link.send([b"[1]"])
    assert read_message(link) == b"[1]"
    link.close()


def flush_all(link: WebSocketLink) -> None:
    """Flush until the kernel has taken all that was sent."""
    deadline = time.monotonic() + PATIENCE
    while not link.flush():
        assert time.monotonic() < deadline
        link.wait(PATIENCE, True)


# -- the far ends


class RawServer:
    """One connection of a server that is only a socket, its opening handshake done."""

    def __init__(self, *more: str, **options: Any) -> None:
        self.more = more
        self.options = options
        self._reader = ServerProtocol(state=State.OPEN, max_size=None, logger=FAR)
        self._frames: list[Any] = []

    def __enter__(self) -> RawServer:
        with socket.create_server((HOST, 0)) as listener:

            def accept() -> None:
                self.far, _ = listener.accept()
                self.far.settimeout(PATIENCE)
                self.head = read_request(self.far)
                self.far.sendall(accept_answer(self.head, *self.more))

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
        while len(self._frames) < n:
            data = self.far.recv(65536)
            assert data, "the end"
            self._reader.receive_data(data)
            self._frames += self._reader.events_received()
        found = self._frames[:n]
        del self._frames[:n]
        return found


class ScriptedCarrier:
    """A carrier that gives these pieces and then nothing."""

    peer = "far:1"
    tls = ""
    file = (-1, 0, 0)

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

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        assert self.pieces, "slept with messages at hand"
        return [], [], 0.0

    def wait(self, seconds: float, writable: bool) -> None:
        self.waits_for(writable)

    def close(self, flush_for: float = 0.0) -> None:
        self.closed = True


def frames_of_whole(wire: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return the frames, none while one is incomplete."""
    try:
        return frames_of(wire)
    except (AssertionError, IndexError):
        return []


def scripted(pieces: Sequence[bytes], max_message: int = 1 << 20) -> tuple[WebSocketLink, ScriptedCarrier]:
    carrier = ScriptedCarrier(pieces)
    return WebSocketLink(carrier, ClientFrames(max_message), max_message), carrier  # type: ignore[arg-type]


class TestMessages:
    def test_messages_travel_both_ways(self) -> None:
        with serve_library(echo) as port:
            link = plain_link(port)
            assert link.receive() is None
            assert link.send([b'["one",', memoryview(b'"tw'), b"", 'ö"]'.encode()])
            assert read_message(link) == '["one","twö"]'.encode()
            assert (link.peer, link.tls, link.facts()) == (f"{HOST}:{port}", "", {})
            link.close()

    def test_text_is_sent_and_text_or_binary_received(self) -> None:
        kinds: list[type] = []

        def handler(far: ServerConnection) -> None:
            kinds.append(type(far.recv()))
            far.send(b"binary")
            far.send("text")
            far.send("")
            far.recv()

        with serve_library(handler) as port:
            link = plain_link(port)
            link.send([b"[]"])
            assert [read_message(link) for _ in range(3)] == [b"binary", b"text", b" "]
            link.close()
        assert kinds == [str]

    @pytest.mark.parametrize("size", [125, 126, 65535, 65536, 3 << 20])
    def test_messages_of_any_length_travel(self, size: int) -> None:
        message = Random(size).randbytes(size // 2).hex().encode() + b"x" * (size % 2)
        with serve_library(echo, max_size=None) as port:
            link = plain_link(port)
            if not link.send([message[:100], memoryview(message)[100:]]):
                flush_all(link)
            assert read_message(link) == message
            link.close()

    def test_send_copies_its_buffers(self) -> None:
        buffer = bytearray(b"before")
        with serve_library(echo) as port:
            link = plain_link(port)
            link.send([memoryview(buffer)])
            buffer[:] = b"after!"
            assert read_message(link) == b"before"
            link.close()

    def test_many_short_messages_share_one_write(self) -> None:
        with RawServer() as raw:
            for n in range(100):
                assert raw.link.send([b"[%d]" % n])
            assert select.select([raw.far], [], [], 0) == ([], [], [])
            raw.link.wait(0, False)
            found = raw.frames(100)
            assert [bytes(one.data) for one in found] == [b"[%d]" % n for n in range(100)]
            assert {one.opcode for one in found} == {Opcode.TEXT}

    def test_wait_writes_pending_messages_first(self) -> None:
        """Even when the pump does not know of pending output."""
        with serve_library(echo) as port:
            link = plain_link(port)
            assert link.send([b"[]"])
            deadline = time.monotonic() + PATIENCE
            while link.receive() is None:
                assert time.monotonic() < deadline
                link.wait(PATIENCE, False)
            link.close()

    def test_messages_of_one_read_need_no_further_wait(self) -> None:
        with RawServer() as raw:
            raw.far.sendall(
                server_frame(TEXT, b"[1]") + server_frame(TEXT, b"[2]") + server_frame(BINARY, b"[3]")
            )
            assert read_message(raw.link) == b"[1]"
            assert_returns(lambda: raw.link.wait(10_000, False), "it sleeps on a waiting message")
            assert raw.link.receive() == b"[2]"
            raw.link.wait(10_000, False)
            assert raw.link.receive() == b"[3]"
            assert raw.link.receive() is None

    def test_output_is_written_between_busy_reads(self) -> None:
        """There may never be a wait between two reads."""
        link, carrier = scripted(
            [server_frame(PING, b"?") + server_frame(TEXT, b"[%d]" % n) * 3 for n in range(4)]
        )
        for n in range(12):
            assert link.receive() == b"[%d]" % (n // 3)
            link.send([b"answer"])
        reader = ServerProtocol(state=State.OPEN)
        reader.receive_data(bytes(carrier.sent))
        sent: list[Any] = reader.events_received()
        assert [one.opcode for one in sent] == [Opcode.TEXT, Opcode.TEXT, Opcode.TEXT, Opcode.PONG] * 3

    def test_messages_may_follow_the_handshake_at_once(self) -> None:
        def talk(sock: socket.socket) -> None:
            sock.sendall(
                accept_answer(read_request(sock)) + server_frame(TEXT, b"[1]") + server_frame(TEXT, b"[2")
            )
            sock.recv(1)

        with serving(talk) as port:
            link = plain_link(port)
            assert read_message(link) == b"[1]"
            assert read_message(link) == b"[2"
            link.close()

    def test_a_peer_that_does_not_read_delays_messages(self) -> None:
        message = Random(1).randbytes(20_000).hex().encode()
        with RawServer() as raw:
            sent = 0
            while raw.link.send([b"%08d" % sent, message]):
                sent += 1
                assert sent < 100_000
            sent += 1
            assert not raw.link.flush()
            found: list[Frame] = []
            thread = threading.Thread(target=lambda: found.extend(raw.frames(sent)))
            thread.start()
            flush_all(raw.link)
            thread.join()
            assert [bytes(one.data) for one in found] == [b"%08d" % n + message for n in range(sent)]

    def test_simultaneous_writes_do_not_deadlock(self) -> None:
        count, message = 400, Random(2).randbytes(20_000).hex().encode()
        with serve_library(echo) as port:
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
                if got < count:
                    link.wait(PATIENCE, full)
            link.close()

    def test_each_frame_has_a_different_mask(self) -> None:
        lengths = [0, 1, 125, 126, 127, 65535, 65536, *[12] * 3000]
        link, carrier = scripted([])
        for size in lengths:
            link.send([b"x" * size])
        link.flush()
        wire = bytes(carrier.sent)
        reader = ServerProtocol(state=State.OPEN, max_size=None)
        reader.receive_data(wire)
        assert [(f.opcode, f.fin, len(f.data)) for f in reader.events_received()] == [
            (TEXT, True, size) for size in lengths
        ]
        short = [wire[-18 * n :][2:6] for n in range(1, 3001)]
        assert len(set(short)) > 2990

    @settings(deadline=None)
    @given(some.data())
    def test_messages_survive_any_cut_and_fragmentation(self, data: some.DataObject) -> None:
        """Any messages, cut into any fragments with control frames between them, read in any pieces."""
        lengths = some.sampled_from([125, 126, 127, 4095, 4096, 4097, 65535, 65536])
        message = some.binary(max_size=300) | lengths.map(bytes)
        messages = data.draw(some.lists(message, max_size=6))
        wire = b""
        pings = []
        for message in messages:
            cuts = sorted(data.draw(some.lists(some.integers(0, len(message)), max_size=3)))
            parts = [message[a:b] for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True)]
            for number, part in enumerate(parts):
                opcode = 0 if number else data.draw(some.sampled_from([TEXT, BINARY]))
                wire += server_frame(opcode, part, fin=number == len(parts) - 1)
                for control in data.draw(some.lists(some.sampled_from([PING, PONG]), max_size=1)):
                    body = data.draw(some.binary(max_size=125))
                    wire += server_frame(control, body)
                    pings += [body] * (control == PING)
        cuts = sorted(data.draw(some.sets(some.integers(1, max(1, len(wire))), max_size=40)))
        pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
        link, carrier = scripted([piece for piece in pieces if piece])
        got = []
        while carrier.pieces or link.frames.ready:
            link.wait(10_000, False)
            if (message := link.receive()) is not None:
                got.append(message)
        assert got == [message or b" " for message in messages]
        link.flush()
        reader = ServerProtocol(state=State.OPEN)
        reader.receive_data(bytes(carrier.sent))
        pongs: list[Any] = reader.events_received()
        assert [bytes(pong.data) for pong in pongs][-1:] == pings[-1:]

    @compresses
    def test_deflate_is_offered_on_request(self) -> None:
        heads: list[str | None] = []

        def handler(far: ServerConnection) -> None:
            heads.append(far.request.headers.get("Sec-WebSocket-Extensions"))  # type: ignore[union-attr]
            heads.append(far.response.headers.get("Sec-WebSocket-Extensions"))  # type: ignore[union-attr]
            echo(far)

        message = b"[" + b"0," * 50_000 + b"0]"
        with serve_library(handler) as port:
            for deflate in False, True:
                link = plain_link(port, deflate=deflate)
                for _ in range(3):
                    if not link.send([message]):
                        flush_all(link)
                    assert read_message(link) == message
                link.send([b""])
                assert read_message(link) == b" "
                link.close()
        assert heads[:2] == [None, None]
        assert heads[2] is not None and heads[2].startswith("permessage-deflate") and heads[3]

    @compresses
    def test_agreements_about_compression_are_kept(self) -> None:
        """The server keeps its context between messages; ours each stand alone."""
        agreed = "Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover"
        message = bytes(range(256)) * 2
        with RawServer(agreed, deflate=True) as raw:
            packer = zlib.compressobj(wbits=-15)
            for _ in range(2):
                packed = packer.compress(message) + packer.flush(zlib.Z_SYNC_FLUSH)
                raw.far.sendall(server_frame(TEXT, packed[:-4], bits=0x40))
                assert read_message(raw.link) == message
                raw.link.send([message])
            flush_all(raw.link)
            wire = b""
            while len(found := frames_of_whole(wire)) < 2:
                wire += raw.far.recv(65536)
            for _, data, _ in found:
                assert zlib.decompressobj(wbits=-15).decompress(data + b"\0\0\xff\xff") == message

    @compresses
    def test_a_server_may_decline_compression(self) -> None:
        with RawServer(deflate=True) as raw:
            assert b"permessage-deflate" in raw.head
            raw.far.sendall(server_frame(TEXT, b"[]"))
            assert read_message(raw.link) == b"[]"

    def test_compression_without_zlib_is_not_offered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("logclient.transports.websocket.LINKED", False)
        with RawServer(deflate=True) as raw:
            assert b"permessage-deflate" not in raw.head

    def test_messages_are_never_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG), RawServer() as raw:
            raw.link.send([b"a secret"])
            raw.far.sendall(server_frame(TEXT, b"a secret"))
            assert read_message(raw.link) == b"a secret"
        assert caplog.records == []


class TestTheEnd:
    def test_close_exchanges_close_frames(self) -> None:
        with RawServer() as raw:
            raw.link.send([b"last"])
            closing = threading.Thread(target=raw.link.close, args=(PATIENCE,))
            closing.start()
            text, close = raw.frames(2)
            assert bytes(text.data) == b"last"
            assert (close.opcode, Close.parse(bytes(close.data)).code) == (Opcode.CLOSE, 1000)
            assert select.select([raw.far], [], [], 0.05) == ([], [], [])  # it waits
            raw.far.sendall(server_frame(TEXT, b"[1]") + server_frame(CLOSE, bytes(close.data)))
            closing.join()
            assert raw.far.recv(1) == b""  # an ordinary end, no reset

    def test_close_without_linger_sends_a_close_frame(self) -> None:
        with RawServer() as raw:
            raw.link.send([b"last"])
            raw.link.close()
            assert [one.opcode for one in raw.frames(2)] == [Opcode.TEXT, Opcode.CLOSE]

    def test_close_gives_up_on_a_busy_or_silent_peer(self) -> None:
        """It waits neither for an answer nor for room, nor for a peer that keeps sending."""
        with RawServer() as raw:
            ends: list[OSError] = []
            over = threading.Event()

            def talk() -> None:
                raw.far.setblocking(False)
                while not ends and not over.is_set():
                    try:
                        raw.far.send(server_frame(TEXT, b"[1]") * 1000)
                    except BlockingIOError:
                        select.select([], [raw.far], [], 0.01)
                    except OSError as error:
                        ends.append(error)

            thread = threading.Thread(target=talk)
            thread.start()
            try:
                while raw.link.send([b"x" * 100_000]):
                    pass
                assert_returns(lambda: raw.link.close(0.1))
                assert raw.link.inner.fileno() == -1
                thread.join(PATIENCE)
                assert len(ends) == 1 and isinstance(ends[0], ConnectionError)
            finally:
                over.set()
                thread.join()
            raw.link.close(0.1)  # no harm in a second one
            assert raw.link.inner.fileno() == -1

    def test_a_close_without_a_code_is_an_ordinary_end(self) -> None:
        with RawServer() as raw:
            raw.far.sendall(server_frame(TEXT, b"[1]") + server_frame(CLOSE, b""))
            assert read_message(raw.link) == b"[1]"
            assert [raw.link.receive(), raw.link.receive()] == [b"", b""]

    @pytest.mark.parametrize(
        ("close", "says"),
        [
            (b"\x03\xe8", "the server closed the connection: 1000 (normal closure)"),
            (b"\x03\xe9bye", "the server closed the connection: 1001 (going away): bye"),
            (b"\x03\xf0no\nway", "the server closed the connection: 1008 (policy violation): no?way"),
            (b"\x03\xf1", "the server closed the connection: 1009 (message too big)"),
            (b"\x10\x68mine", "the server closed the connection: 4200: mine"),
            (
                b"\x03\xee",
                "the server broke the WebSocket protocol: 1002 (protocol error): invalid ",
            ),
            (
                b"\x03",
                "the server broke the WebSocket protocol: 1002 (protocol error): close frame too short",
            ),
            (b"\x03\xe8\xff", "the server broke the WebSocket protocol: 1007 (invalid data): "),
        ],
    )
    def test_a_close_frame_of_the_server_is_explained(self, close: bytes, says: str) -> None:
        """Messages before it are received; ours after it are discarded."""
        with RawServer() as raw:
            raw.far.sendall(
                server_frame(TEXT, b"[1]") + server_frame(TEXT, b"[2]") + server_frame(CLOSE, close) + b"more"
            )
            assert read_message(raw.link) == b"[1]"
            assert read_message(raw.link) == b"[2]"
            for _ in range(2):
                assert read_error(raw.link).startswith(says)
                assert raw.link.send([b"too late"])
            raw.link.wait(10_000, False)
            (answer,) = raw.frames(1)
            assert answer.opcode == Opcode.CLOSE
            if says.startswith("the server closed"):
                assert bytes(answer.data) == close

    def test_secrets_in_a_close_reason_are_hidden(self) -> None:
        headers = [("X-Short", Secret("go")), ("Cookie", Secret("session=hunter2"))]
        with RawServer(http_headers=headers) as raw:
            assert b"\r\nCookie: session=hunter2\r\n" in raw.head
            raw.far.sendall(server_frame(CLOSE, b"\x03\xf0go and take session=hunter2; away"))
            assert (
                read_error(raw.link)
                == "the server closed the connection: 1008 (policy violation): go and take ***"
            )

    @pytest.mark.parametrize("half", [b"", b"\x81", b"\x81\x7e\x01\x00abc"])
    def test_an_end_without_a_close_frame_is_an_error(self, half: bytes) -> None:
        with RawServer() as raw:
            raw.far.sendall(server_frame(TEXT, b"[1]") + half)
            raw.far.shutdown(socket.SHUT_WR)
            assert read_message(raw.link) == b"[1]"
            assert read_error(raw.link) == "the server ended the connection without a close frame (1006)"

    def test_a_reset_is_reported(self) -> None:
        with RawServer() as raw:
            raw.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.far.close()
            assert "reset" in read_error(raw.link)

    @pytest.mark.skipif(sys.platform != "linux", reason="not every system keeps what came before a reset")
    def test_messages_before_a_failed_write_are_received(self) -> None:
        """A server may explain itself and close while we write."""
        with RawServer() as raw:
            raw.far.sendall(server_frame(TEXT, b'["error","wrong-format"]'))
            raw.link.send([b"x"])
            flush_all(raw.link)
            raw.far.close()  # not all was read: a reset
            deadline = time.monotonic() + PATIENCE
            while raw.link._broken is None:
                raw.link.send([b"x" * 100_000])
                raw.link.flush()
                assert time.monotonic() < deadline
            raw.link.wait(10_000, True)
            assert read_message(raw.link) == b'["error","wrong-format"]'
            for _ in range(3):
                assert raw.link.send([b"x" * 100_000])  # for nobody
            assert read_error(raw.link)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_a_forked_child_sends_no_close_frame(self) -> None:
        with serve_library(echo) as port:
            link = plain_link(port)
            link.send([b"[1]"])
            child = os.fork()
            if not child:
                try:
                    link.abandon()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            assert read_message(link) == b"[1]"
            link.send([b"[2]"])
            assert read_message(link) == b"[2]"
            link.close()


MIB = 1 << 20


@contextmanager
def assert_memory_below(limit: int) -> Iterator[None]:
    """Fail if the block allocates more memory than this."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


class TestHostile:
    def test_a_message_of_100_mib_is_refused_by_its_head(self) -> None:
        head = b"\x81\x7f" + struct.pack("!Q", 100 * MIB)
        with RawServer() as raw, assert_memory_below(MIB):
            raw.far.sendall(server_frame(TEXT, b"[1]") + head + b"x" * 1000)
            assert read_message(raw.link) == b"[1]"
            assert read_error(raw.link) == f"the server sent a message of more than {16 * MIB} bytes"
            (close,) = raw.frames(1)
            assert Close.parse(bytes(close.data)).code == 1009

    @pytest.mark.parametrize("length", [1 << 40, (1 << 63) - 1, (1 << 64) - 1])
    def test_an_absurd_length_is_refused(self, length: int) -> None:
        link, _ = scripted([b"\x82\x7f" + struct.pack("!Q", length)])
        with assert_memory_below(MIB):
            assert "a message of more than" in read_error(link)

    def test_max_message_is_exact_for_fragments(self) -> None:
        for extra, fragment in (0, 1000), (0, 300), (1, 1000), (1, 300):
            message = bytes(1000 + extra)
            parts = [message[at : at + fragment] for at in range(0, len(message), fragment)]
            last = len(parts) - 1
            wire = b"".join(server_frame(BINARY * (not n), part, n == last) for n, part in enumerate(parts))
            link, _ = scripted([wire], max_message=1000)
            if extra:
                assert read_error(link) == "the server sent a message of more than 1000 bytes"
            else:
                assert link.receive() == message

    @pytest.mark.parametrize("size", [0, 1, 1500])
    def test_endless_fragments_are_bounded(self, size: int) -> None:
        """With payloads they exceed the limit; without any they cost no memory."""
        spree = server_frame(0, bytes(size), fin=False) * (2000 // (1 + size) + 1)
        link, carrier = scripted([server_frame(TEXT, b"", fin=False), *[spree] * 20], max_message=2000)
        with assert_memory_below(MIB):
            if size:
                assert "a message of more than" in read_error(link)
            else:
                while carrier.pieces:
                    assert link.receive() is None

    def test_a_fragment_beyond_the_limit_is_refused_early(self) -> None:
        """Its head is enough."""
        link, _ = scripted(
            [server_frame(TEXT, bytes(600), fin=False) + server_frame(0, bytes(500))[:4]], max_message=1000
        )
        assert read_error(link) == "the server sent a message of more than 1000 bytes"

    def test_small_fragments_cost_only_their_payload(self) -> None:
        count = 40_000
        link, carrier = scripted([server_frame(TEXT, b"", fin=False)])
        carrier.pieces += [server_frame(0, b"x", fin=False) * 1000] * (count // 1000)
        with assert_memory_below(MIB):
            while carrier.pieces:
                assert link.receive() is None
        carrier.pieces.append(server_frame(0, b"."))
        assert link.receive() == b"x" * count + b"."

    def test_endless_pings_are_bounded(self) -> None:
        """Each is answered while the answers can be written; then only the last."""
        with RawServer() as raw:
            while raw.link.send([b"x" * 10_000]):
                pass
            spree = b"".join(server_frame(PING, b"%0125d" % n) for n in range(500))
            with assert_memory_below(MIB):
                for _ in range(40):
                    raw.far.sendall(spree)
                    while raw.link.receive() is None and select.select([raw.link.inner], [], [], 0.01)[0]:
                        raw.link.wait(0, True)
            raw.far.sendall(server_frame(PING, b"the last") + server_frame(TEXT, b"[1]"))
            assert read_message(raw.link) == b"[1]"
            found: list[Frame] = []

            def read() -> None:
                while not found or found[-1].data != b"the last":
                    found.extend(raw.frames(1))

            thread = threading.Thread(target=read)
            thread.start()
            flush_all(raw.link)
            thread.join()
            assert Opcode.TEXT in {one.opcode for one in found}

    def test_a_ping_is_answered_on_an_idle_connection(self) -> None:
        with RawServer() as raw:
            raw.far.sendall(server_frame(PING, b"are you there?"))
            while raw.link.receive() is None:
                raw.link.wait(0.005, False)
                if select.select([raw.far], [], [], 0)[0]:
                    break
            (pong,) = raw.frames(1)
            assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"are you there?")

    @pytest.mark.parametrize(
        "wire",
        [
            b"\x81\x83mask123",
            server_frame(TEXT, b"x", bits=0x40),
            server_frame(TEXT, b"x", bits=0x20),
            server_frame(3, b"x"),
            server_frame(11, b"x"),
            server_frame(0, b"x"),
            server_frame(PING, bytes(126)),
            server_frame(PING, b"x", fin=False),
            server_frame(TEXT, b"x", fin=False) + server_frame(TEXT, b"y"),
            server_frame(TEXT, b"x", fin=False) + server_frame(CLOSE, b"\x03\xe8"),
        ],
    )
    def test_protocol_violations_end_the_connection(self, wire: bytes) -> None:
        for pieces in [wire], [wire[n : n + 1] for n in range(len(wire))]:
            link, carrier = scripted([server_frame(TEXT, b"[1]"), *pieces, b"", server_frame(TEXT, b"[2]")])
            assert link.receive() == b"[1]"
            words = read_error(link)
            assert words.startswith("the server broke the WebSocket protocol: 1002 (protocol error): ")
            assert bytes(carrier.sent[:1]) == b"\x88"

    def test_nothing_is_received_after_a_close_frame(self) -> None:
        farewell = server_frame(CLOSE, b"\x03\xe8bye")
        before, after = server_frame(TEXT, b"[1]"), server_frame(TEXT, b"[2]")
        for pieces in [before + farewell + after], [farewell, after]:
            link, _ = scripted(pieces)
            got: list[bytes] = []
            with pytest.raises(ConnectionError, match=r"closed the connection: 1000.*: bye"):
                while (message := link.receive()) is not None:
                    got.append(message)
            assert got == [b"[1]"] * (len(pieces) == 1)

    @pytest.mark.parametrize("limit", [1, 10, 125, 126, 4095, 4096, 5000])
    def test_max_message_is_exact(self, limit: int) -> None:
        link, _ = scripted([server_frame(TEXT, bytes(limit)), server_frame(TEXT, bytes(limit + 1))], limit)
        assert link.receive() == bytes(limit)
        assert read_error(link) == f"the server sent a message of more than {limit} bytes"

    @compresses
    def test_a_decompression_bomb_is_refused(self) -> None:
        """A short compressed message that is a long one."""
        packer = zlib.compressobj(9, wbits=-15)
        packed = packer.compress(bytes(64 * MIB)) + packer.flush(zlib.Z_SYNC_FLUSH)
        extension = "Sec-WebSocket-Extensions: permessage-deflate"
        with RawServer(extension, deflate=True, max_message=MIB) as raw, assert_memory_below(8 * MIB):
            raw.far.sendall(server_frame(TEXT, packed[:-4], bits=0x40))
            assert "a message of more than" in read_error(raw.link)

    @compresses
    def test_broken_compression_ends_the_connection(self) -> None:
        with RawServer("Sec-WebSocket-Extensions: permessage-deflate", deflate=True) as raw:
            raw.far.sendall(server_frame(TEXT, b"\xff\xff\xff", bits=0x40))
            assert "1002 (protocol error): decompression failed" in read_error(raw.link)

    @settings(deadline=None)
    @given(some.lists(some.binary(min_size=1, max_size=40), max_size=10))
    def test_any_bytes_give_messages_or_one_line_errors(self, pieces: list[bytes]) -> None:
        link, carrier = scripted(pieces, max_message=1000)
        try:
            while carrier.pieces or link.frames.ready:
                message = link.receive()
                assert message is None or 0 < len(message) <= 1000
        except ConnectionError as error:
            assert "\n" not in str(error)
        link.close()
        assert carrier.closed


class TestHandshake:
    def answered(self, answer: bytes, **options: Any) -> OSError:
        """The error of a server that answers that."""

        def talk(sock: socket.socket) -> None:
            read_request(sock)
            sock.sendall(answer)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass

        with serving(talk) as port, pytest.raises(OSError) as caught:
            plain_link(port, **options)
        assert "\n" not in str(caught.value) and "\r" not in str(caught.value)
        return caught.value

    def test_the_handshake_request_quotes_the_path(self) -> None:
        with RawServer(path="/a b/ö?c") as raw:
            lines = raw.head.decode("ascii").split("\r\n")
            assert lines[0] == "GET /a%20b/%C3%B6%3Fc HTTP/1.1"
            assert f"Host: {HOST}:{raw.far.getsockname()[1]}" in lines
            assert not any(line.startswith(("Origin", "Sec-WebSocket-Extensions")) for line in lines)

    @pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
    def test_an_ipv6_host_is_in_brackets(self) -> None:
        try:
            listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
        except OSError:
            pytest.skip("no address ::1")
        with listener:
            port = listener.getsockname()[1]
            heads: list[bytes] = []

            def talk() -> None:
                with listener.accept()[0] as sock:
                    heads.append(read_request(sock))
                    sock.sendall(accept_answer(heads[0]))

            thread = threading.Thread(target=talk)
            thread.start()
            transports.websocket().connect(("::1", port), Attempt()).close()
            thread.join()
        assert f"\r\nHost: [::1]:{port}\r\n".encode() in heads[0]

    @pytest.mark.parametrize("status", [403, 302, 500])
    def test_secrets_in_an_answer_are_hidden(self, status: int) -> None:
        answer = f"HTTP/1.1 {status} no session=hunter2 here\r\n\r\n".encode()
        error = self.answered(answer, http_headers=[("Cookie", Secret("session=hunter2"))])
        assert f"HTTP {status} no ***" in str(error) and "hunter2" not in str(error)

    @pytest.mark.parametrize("status", [401, 403, 407])
    def test_refused_credentials_raise_credential_error(self, status: int) -> None:
        error = self.answered(f"HTTP/1.1 {status} So Sorry\r\n\r\n".encode())
        assert isinstance(error, CredentialError)
        assert str(error) == f"the server refuses the connection: HTTP {status} So Sorry"

    @pytest.mark.parametrize(
        ("answer", "says"),
        [
            (b"404 Not Found", "the server opens no WebSocket: HTTP 404 Not Found; is the path right?"),
            (
                b"503 Busy\x1b[31m\xff",
                "the server opens no WebSocket: HTTP 503 Busy?[31mÿ; is the path right?",
            ),
            (b"200 OK", "the server opens no WebSocket: HTTP 200 OK; is the path right?"),
            (b"426 ", "the server opens no WebSocket: HTTP 426; is the path right?"),
            (b"302 Found\r\nLocation: ws://else/", "the server answers HTTP 302 Found: redirections are not"),
            (b"101 Switching", "the server's answer opens no WebSocket: missing Connection header"),
            (b"1010 Switching", "the server answers with no HTTP status"),
            (b"999 x", "the server answers with no HTTP status"),
        ],
    )
    def test_other_http_answers_are_explained(self, answer: bytes, says: str) -> None:
        error = self.answered(b"HTTP/1.1 " + answer + b"\r\n\r\n")
        assert str(error).startswith(says) and not isinstance(error, CredentialError)

    @pytest.mark.parametrize(
        ("answer", "says"),
        [
            (b"SSH-2.0-OpenSSH_9.2\r\n", "the server does not speak HTTP"),
            (b"\x15\x03\x01\x00\x02\x02\x46", "the server does not speak HTTP"),
            (b"HTTP/2.0 101 x\r\n\r\n", "the server answers with no HTTP status"),
            (b"", "the server ended the connection without an answer to the HTTP request"),
            (b"HTT", "the server ended the connection without an answer to the HTTP request"),
            (b"HTTP/1.1 101 x\r\nA: b\r\n", "the server ended the connection without"),
            (b"HTTP/1.1 101 x\r\n" + b"A: b\r\n" * 12_000, "the server answers with headers of more than"),
            (b"HTTP/1.1 200 " + b"x" * 70_000, "the server answers with headers of more than 65536 bytes"),
            (
                b"HTTP/1.1 101 x\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
                "the server's answer opens no WebSocket: ",
            ),
            (b"HTTP/1.1 101 x\r\nnonsense\r\n\r\n", "the server's answer opens no WebSocket: "),
            (b"HTTP/1.0 101 x\r\n\r\n", "the server's answer opens no WebSocket: "),
        ],
    )
    def test_answers_that_are_not_http_are_explained(self, answer: bytes, says: str) -> None:
        assert str(self.answered(answer)).startswith(says)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ((b"Upgrade: websocket", b"Upgrade: h2c"), "invalid Upgrade header: h2c"),
            ((b"Sec-WebSocket-Accept: ", b"Sec-WebSocket-Accept: x"), "invalid Sec-WebSocket-Accept header"),
            ((b"Sec-WebSocket-Accept", b"X"), "missing Sec-WebSocket-Accept header"),
            ((b"\r\n\r\n", b"\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"), "no extensions"),
            ((b"\r\n\r\n", b"\r\nSec-WebSocket-Protocol: chat\r\n\r\n"), "no subprotocols supported"),
        ],
    )
    def test_invalid_handshake_answers_are_explained(self, change: tuple[bytes, bytes], says: str) -> None:
        def talk(sock: socket.socket) -> None:
            sock.sendall(accept_answer(read_request(sock)).replace(*change))
            sock.recv(1)

        with serving(talk) as port, pytest.raises(ConnectionError) as caught:
            plain_link(port)
        assert str(caught.value).startswith(f"the server's answer opens no WebSocket: {says}")

    def test_an_answer_may_come_byte_by_byte(self) -> None:
        def talk(sock: socket.socket) -> None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in accept_answer(read_request(sock)) + server_frame(TEXT, b"[1]"):
                sock.sendall(bytes([byte]))
            sock.recv(1)

        with serving(talk) as port:
            link = plain_link(port)
            assert read_message(link) == b"[1]"
            link.close()

    @pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 101 Switching Protocols\r\nX: "])
    def test_a_stalled_handshake_times_out(self, begin: bytes) -> None:
        over = threading.Event()

        def talk(sock: socket.socket) -> None:
            sock.sendall(begin)
            while not over.wait(0.005):
                sock.sendall(b"x"[: len(begin)])

        with serving(talk) as port:
            late = time.monotonic() + PATIENCE / 2
            try:
                with pytest.raises(TimeoutError, match="the server did not answer the HTTP request in time"):
                    attempt = Attempt(lambda: time.monotonic() > late)
                    transports.websocket(transports.tcp(0.2)).connect((HOST, port), attempt)
            finally:
                over.set()

    def test_the_body_of_a_refusal_is_not_awaited(self) -> None:
        over = threading.Event()

        def talk(sock: socket.socket) -> None:
            read_request(sock)
            sock.sendall(b"HTTP/1.1 401 No\r\nContent-Length: 1000000\r\n\r\n")
            over.wait(PATIENCE)

        with serving(talk) as port:
            with pytest.raises(CredentialError):
                transports.websocket(transports.tcp(1000)).connect((HOST, port), Attempt())
            over.set()

    def test_a_handshake_can_be_interrupted(self) -> None:
        asked = threading.Event()
        over = threading.Event()

        def talk(sock: socket.socket) -> None:
            read_request(sock)
            asked.set()
            over.wait(PATIENCE)

        with serving(talk) as port:
            with pytest.raises(InterruptedError):
                transports.websocket(transports.tcp(1000)).connect((HOST, port), Attempt(asked.is_set))
            over.set()

    def test_a_refused_connection_raises(self) -> None:
        with socket.create_server((HOST, 0)) as listener:
            port = listener.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            plain_link(port)


def tls_context(ours: Authority, version: str) -> ssl.SSLContext:
    return context(version, ours.issue("server"))


class TestTls:
    @pytest.mark.parametrize("version", ["1.2", "1.3"])
    def test_messages_travel_both_ways_over_tls(self, ours: Authority, version: str) -> None:
        """Among them one larger than a record of TLS, and several in one."""
        messages = [b"[1]", b"[2]", b"x" * 100_000, b"[3]"]
        with serve_library(echo, ssl=tls_context(ours, version)) as port:
            link = transports.websocket(transports.tls(PATIENCE, ca=ours.ca)).connect((HOST, port), Attempt())
            assert link.tls.startswith(f"TLSv{version} ")
            assert HOST in link.facts()["names"]
            for message in messages:
                link.send([message])
            assert [read_message(link) for _ in messages] == messages
            link.close(PATIENCE)

    def test_messages_of_one_tls_record_need_no_wait(self, ours: Authority) -> None:
        tls = tls_context(ours, "1.3")

        def talk(sock: socket.socket) -> None:
            with tls.wrap_socket(sock, server_side=True) as far:
                far.sendall(accept_answer(read_request(far)))
                far.sendall(b"".join(server_frame(TEXT, b"[%d]" % n) for n in range(3000)))
                far.recv(1)

        with serving(talk) as port:
            link = transports.websocket(transports.tls(PATIENCE, ca=ours.ca)).connect((HOST, port), Attempt())
            for n in range(3000):
                while (message := link.receive()) is None:
                    link.wait(10_000, False)
                assert message == b"[%d]" % n
            link.close()

    def test_an_untrusted_certificate_is_refused(self, ours: Authority) -> None:
        tls, unsigned = tls_context(ours, "1.3"), pytest.raises(CredentialError, match="not signed by an")
        with serve_library(echo, ssl=tls) as port, unsigned:
            transports.websocket(transports.tls(PATIENCE)).connect((HOST, port), Attempt())

    def test_tls_on_one_side_only_is_explained(self, ours: Authority) -> None:
        with serve_library(echo, ssl=tls_context(ours, "1.3")) as port, pytest.raises(ConnectionError):
            plain_link(port)
        with serve_library(echo) as port, pytest.raises(ConnectionError, match=r"does it speak TLS\?"):
            transports.websocket(transports.tls(PATIENCE, ca=ours.ca)).connect((HOST, port), Attempt())

    def test_an_interrupted_tls_handshake_closes_the_socket(self, ours: Authority) -> None:
        tls = tls_context(ours, "1.3")
        asked = threading.Event()
        gone: list[bytes] = []

        def talk(sock: socket.socket) -> None:
            with tls.wrap_socket(sock, server_side=True) as far:
                read_request(far)
                asked.set()
                gone.append(far.recv(1))

        with serving(talk) as port, pytest.raises(InterruptedError):
            transport = transports.websocket(transports.tls(1000, ca=ours.ca))
            transport.connect((HOST, port), Attempt(asked.is_set))
        assert gone == [b""]


# -- proxies


ELSEWHERE = ("far.example", 9)
"""An endpoint that only a proxy may know."""


class TestProxies:
    @pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
    def test_a_proxy_tunnels_plain_connections(self, variable: str, environment: Callable[..., None]) -> None:
        tunnels = ProxyServer()
        with serve_library(echo) as port, serving(tunnels) as way:
            environment(**{variable: f"http://{HOST}:{way}/", "https_proxy": "http://127.0.0.1:1"})
            endpoint = ("only.proxy.example", port)
            link = transport_by_url(endpoint).connect(endpoint, Attempt())
            assert link.peer == f"only.proxy.example:{port}"
            link.send([b"[1]"])
            assert read_message(link) == b"[1]"
            link.close()
        assert [head.split(b"\r\n")[0] for head in tunnels.heads] == [
            f"CONNECT only.proxy.example:{port} HTTP/1.1".encode()
        ]
        assert b"Proxy-Authorization" not in tunnels.heads[0]

    @pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "ALL_PROXY"])
    def test_a_proxy_tunnels_tls_connections(
        self, variable: str, environment: Callable[..., None], ours: Authority
    ) -> None:
        """The certificate must be for the server's name, not the proxy's."""
        tls = context("1.3", ours.issue("far", "only.proxy.example"))
        with serve_library(echo, ssl=tls) as port, serving(ProxyServer()) as way:
            environment(**{variable: f"{HOST}:{way}", "http_proxy": "http://127.0.0.1:1"})
            endpoint = ("only.proxy.example", port)
            link = transport_by_url(endpoint, ours=ours).connect(endpoint, Attempt())
            link.send([b"x" * 100_000])
            flush_all(link)
            assert read_message(link) == b"x" * 100_000
            link.close()
            with pytest.raises(CredentialError, match=r"it names only\.proxy\.example"):
                transport_by_url((HOST, port), ours=ours).connect((HOST, port), Attempt())

    def test_proxy_credentials_are_sent_and_hidden(self, environment: Callable[..., None]) -> None:
        with serve_library(echo) as port, serving(ProxyServer(closed=True)) as way:
            environment(http_proxy=f"http://{USERINFO}{HOST}:{way}")
            transport = transport_by_url(("only.proxy.example", port))
            assert_echoes(transport.connect(("only.proxy.example", port), Attempt()))
            carrier = transport._carrier
            shown = repr(transport.__dict__ | carrier.__dict__) + repr(carrier._proxy.__dict__)  # type: ignore[union-attr]
            pair = base64.b64encode(f"{NAME}:{PASSWORD}".encode()).decode()
            assert not any(secret in shown for secret in ("pass", NAME, pair))

    def test_a_proxy_password_may_be_any_bytes(self, environment: Callable[..., None]) -> None:
        """The environment holds bytes; the proxy knows their encoding."""
        environment(http_proxy="http://name:p\udcffss@proxy:1")
        proxy = transport_by_url(ELSEWHERE)._carrier._proxy
        assert proxy is not None and proxy._authorization is not None
        assert base64.b64decode(proxy._authorization.reveal()) == b"name:p\xffss"

    @pytest.mark.parametrize("userinfo", ["", "name:wrong-secret@"])
    def test_refused_proxy_credentials_are_explained(
        self, userinfo: str, environment: Callable[..., None]
    ) -> None:
        with serving(ProxyServer(closed=True)) as way:
            environment(http_proxy=f"http://{userinfo}{HOST}:{way}")
            with pytest.raises(CredentialError) as caught:
                transport_by_url(ELSEWHERE).connect(ELSEWHERE, Attempt())
        words = str(caught.value)
        assert words.startswith(f"the proxy {HOST}:{way} ") and "407 Who Are You" in words
        assert ("does not accept" in words) == bool(userinfo) and "wrong-secret" not in words

    @pytest.mark.parametrize(
        ("answer", "kind", "says"),
        [
            (
                b"HTTP/1.1 403 Forbidden\r\n\r\n",
                CredentialError,
                "refuses the tunnel: HTTP 403 Forbidden",
            ),
            (b"HTTP/1.1 502 Bad\r\n\r\n<html>", ConnectionError, "cannot make a tunnel: HTTP 502 Bad"),
            (b"SSH-2.0-x\r\n", ConnectionError, "does not speak HTTP"),
            (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 101 x\r\n\r\n", ConnectionError, "sent more than its answer"),
            (b"HTTP/1.1 200 OK\r\n", ConnectionError, "ended the connection"),
        ],
    )
    def test_other_answers_of_a_proxy_are_explained(
        self, answer: bytes, kind: type[OSError], says: str, environment: Callable[..., None]
    ) -> None:
        with serving(ProxyServer(answer)) as way:
            environment(http_proxy=f"http://{USERINFO}{HOST}:{way}")
            with pytest.raises(kind) as caught:
                transport_by_url(ELSEWHERE).connect(ELSEWHERE, Attempt())
        assert str(caught.value).startswith(f"the proxy {HOST}:{way} {says}")
        assert isinstance(caught.value, CredentialError) == (kind is CredentialError)

    def test_an_unreachable_proxy_is_named(self, environment: Callable[..., None]) -> None:
        with socket.create_server((HOST, 0)) as listener:
            way = listener.getsockname()[1]
        environment(http_proxy=f"http://{USERINFO}{HOST}:{way}")
        with pytest.raises(ConnectionError) as caught:
            transport_by_url(ELSEWHERE).connect(ELSEWHERE, Attempt())
        assert str(caught.value) == f"the proxy {HOST}:{way}: Connection refused"

    def test_a_proxy_of_an_unknown_name_is_named(
        self, environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unknown(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        environment(http_proxy="http://proxy.example:3128")
        with pytest.raises(ConnectionError) as caught:
            transport_by_url(ELSEWHERE).connect(ELSEWHERE, Attempt())
        assert str(caught.value) == "the proxy proxy.example:3128: Name or service not known"

    def test_a_stalled_proxy_times_out(self, environment: Callable[..., None]) -> None:
        over = threading.Event()
        with serving(lambda sock: over.wait(PATIENCE)) as way:
            environment(http_proxy=f"{HOST}:{way}")
            with pytest.raises(TimeoutError, match=r"the proxy .* did not answer"):
                transport_by_url(ELSEWHERE, connect_timeout=0.2).connect(ELSEWHERE, Attempt())
            over.set()

    def test_a_proxy_request_can_be_interrupted(self, environment: Callable[..., None]) -> None:
        asked = threading.Event()
        over = threading.Event()

        def talk(sock: socket.socket) -> None:
            read_request(sock)
            asked.set()
            over.wait(PATIENCE)

        with serving(talk) as way:
            environment(http_proxy=f"{HOST}:{way}")
            with pytest.raises(InterruptedError):
                transport_by_url(ELSEWHERE, connect_timeout=1000).connect(ELSEWHERE, Attempt(asked.is_set))
            over.set()

    @pytest.mark.parametrize(
        "value", ["socks5://u:secret@h:1", "socks5h://h", "https://u:secret@h:443", "http://u:secret@",
                  "u:secret@h:port", "http://[::1", "http://h\u00b2 x:1"],
    )  # fmt: skip
    def test_unsupported_proxies_are_refused_unseen(
        self, value: str, environment: Callable[..., None]
    ) -> None:
        environment(ALL_PROXY=value)
        with pytest.raises(ConfigError) as caught:
            transport_by_url(ELSEWHERE)
        assert str(caught.value).startswith("proxy: all_proxy ") and "proxy=none" in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_each_endpoint_is_decided_alone(self, environment: Callable[..., None]) -> None:
        tunnels = ProxyServer()
        with serve_library(echo) as port, serving(tunnels) as way:
            environment(http_proxy=f"{HOST}:{way}")
            endpoints = (HOST, port), ("only.proxy.example", port)
            transport = transport_by_url(*endpoints)
            for endpoint in endpoints:
                assert_echoes(transport.connect(endpoint, Attempt()))
        assert [head.split(b"\r\n")[0] for head in tunnels.heads] == [
            f"CONNECT only.proxy.example:{port} HTTP/1.1".encode()
        ]

    def test_proxy_none_ignores_the_environment(self, environment: Callable[..., None]) -> None:
        with serve_library(echo) as port:
            environment(http_proxy="socks5://127.0.0.1:1")
            assert_echoes(transport_by_url((HOST, port), proxy="none").connect((HOST, port), Attempt()))

    def test_without_a_variable_there_is_no_proxy(self, environment: Callable[..., None]) -> None:
        environment(no_proxy="x", https_proxy="http://127.0.0.1:1", http_proxy="")
        assert Proxy.from_environment(False, [(HOST, 9)]) is None


def test_a_missing_websockets_package_is_named(tmp_path: Path) -> None:
    """The error is the `pip install` line."""
    (tmp_path / "websockets.py").write_text("raise ImportError")
    program = "import logclient.transports.websocket"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=clean_environment(PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, sys.path)])),
        timeout=2 * PATIENCE,
    )
    assert 'websockets is not installed: pip install "logclient[logux]"' in done.stderr.splitlines()[-1]


def test_all_modules_load_before_the_first_use() -> None:
    """In the sender's thread an import could be cut in two by a fork."""
    program = """
import sys
from logclient.delivery.attempt import Attempt
from tests.support.websocket import echo, read_error, read_message, serve_library, transport_by_url
deflate = "on"
with serve_library(echo) as port:
    transport = transport_by_url(("127.0.0.1", port), deflate=deflate)
    before = set(sys.modules)
    link = transport.connect(("127.0.0.1", port), Attempt())
    link.send([b"[]"])
    read_message(link)
    link.close(1.0)
    with serve_library(lambda far: far.close(1008, "no")) as port:
        link = transport.connect(("127.0.0.1", port), Attempt())
        read_error(link)
        link.close()
    new = set(sys.modules) - before
print(sorted(new))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=clean_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
        timeout=2 * PATIENCE,
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
