"""WebSocket through an engine: the link in C and the adapter for it leave equal traces and words."""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logclient import standard
from logclient.transports.tcp import Tcp
from tests.support import need, transports
from tests.support.patience import PATIENCE

need("websockets")

from logclient._ext import websocket  # noqa: E402
from logclient._ext.inflight import InflightBatches  # noqa: E402
from logclient._ext.pump import LinkPump, PumpGroup, TcpPump  # noqa: E402
from logclient._ext.queue import EventQueue  # noqa: E402
from logclient.delivery.attempt import Attempt  # noqa: E402
from logclient.transports.websocket import WebSocket  # noqa: E402
from tests.cores.compiled import Compiled  # noqa: E402
from tests.cores.rig import Rig, Setup  # noqa: E402
from tests.cores.scripts import SCRIPTS  # noqa: E402
from tests.cores.server import Peer, silent  # noqa: E402
from tests.cores.websocket import DEFLATE, Interpreted, WebSocketServer  # noqa: E402
from tests.oracle.websocket import PACKED  # noqa: E402
from tests.support.proxy import read_request  # noqa: E402
from tests.support.tls import HOST, Authority, context  # noqa: E402
from tests.support.websocket import (  # noqa: E402
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    accept_answer,
    server_frame,
)

MIB = 1 << 20
KINDS: dict[str, Callable[..., WebSocket]] = {"compiled": WebSocket, "python": Interpreted}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def running(
    kind: str,
    server: WebSocketServer,
    ledger: Path | None = None,
    *,
    carrier: Tcp | None = None,
    **options: Any,
) -> Iterator[Rig]:
    """Run an engine with this server, over this kind of pump."""
    more = {name: options.pop(name) for name in ("deflate", "max_message") if name in options}
    transport = transports.websocket(carrier, KINDS[kind], **more)
    rig = Rig(Setup("by_message", True), ledger, server=server, transport=transport, **options)
    assert isinstance(rig.engine.pump.pumps[0], LinkPump if kind == "python" else websocket.WebSocketPump)
    try:
        yield rig
    finally:
        rig.finish()


@contextmanager
def by_hand(
    inflight: int = 64,
) -> Iterator[tuple[EventQueue, InflightBatches, Any, PumpGroup, Any, socket.socket]]:
    """A compiled pump that the test runs, over a link whose far end is a plain socket."""
    queue = EventQueue()
    in_flight = InflightBatches(queue)
    core = Compiled("by_message", bytes(10), inflight=inflight)
    driven = websocket.WebSocketPump.over(TcpPump, in_flight, core)
    group = PumpGroup()
    group.add(driven)
    with socket.create_server((HOST, 0)) as listener, ThreadPoolExecutor(1) as pool:

        def accept() -> socket.socket:
            far = listener.accept()[0]
            far.sendall(accept_answer(read_request(far)))
            return far

        accepted = pool.submit(accept)
        link = transports.websocket().connect((HOST, listener.getsockname()[1]), Attempt())
    core.connected(time.monotonic())
    driven.connected()
    with accepted.result() as far:
        yield queue, in_flight, driven, group, link, far
    link.close()


def dressed(data: bytes) -> bytes:
    """An answer in fragments, with pings between them."""
    parts = [data[at : at + 7] for at in range(0, len(data), 7)]
    return b"".join(
        server_frame(0 if n else TEXT, part, fin=n == len(parts) - 1) + server_frame(PING, b"%d" % n)
        for n, part in enumerate(parts)
    )


def squeezed(data: bytes) -> bytes:
    """An answer that is compressed, with a stream of its own."""
    packer = zlib.compressobj(wbits=-15)
    return server_frame(TEXT, packer.compress(data) + packer.flush() + b"\0", bits=PACKED)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("form", ["plain", "fragments", "deflate"])
def test_c_and_the_adapter_leave_equal_traces(script: str, form: str, tmp_path: Path) -> None:
    traces = []
    for kind in KINDS:
        server = WebSocketServer(*[DEFLATE] * (form == "deflate"))
        server.dress = {"plain": server.dress, "fragments": dressed, "deflate": squeezed}[form]
        server.asked = set()  # type: ignore[attr-defined]
        server.script = SCRIPTS[script]
        server.down()
        options = {"inflight": 25, "batch_events": 25, "linger": 0.0, "deflate": form == "deflate"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(standard.os, "urandom", lambda n: bytes(range(n)))
            running_rig = running(kind, server, tmp_path / kind, **options)
            rig = running_rig.__enter__()
        for i in range(150):
            rig.put((b"\xff" if i % 17 == 5 else b"") + b"body %d " % i * (1 + i % 5), 4 if i % 9 == 0 else 2)
        server.up()
        rig.settle()
        stats = rig.finish()
        books = rig.books()
        counts = {name: getattr(stats, name) for name in ("sent", "acked", "failed", "disconnects")}
        wire = [peer.received for peer in server.peers if peer.received]
        traces.append(
            (wire if script == "whole windows" else len(wire), books.outcomes, books.hashes, counts)
        )
        assert stats.acked > 100
    assert traces[0] == traces[1]


class TestMessages:
    @pytest.mark.parametrize("size", [1, 125, 126, 65_500, 65_536, 300_000])
    def test_events_of_any_size_arrive(self, kind: str, size: int) -> None:
        server = WebSocketServer()
        with running(kind, server) as rig:
            for n in range(5):
                rig.put(b"%d" % n * size)
            rig.settle()
            assert [got.body for got in server.events(5)] == [b"%d" % n * size for n in range(5)]

    def test_a_long_answer_in_pieces_counts(self, kind: str) -> None:
        """Longer than any single read."""
        server = WebSocketServer()
        server.dress = lambda data: server_frame(BINARY, b"." * 200_000 + data)
        with running(kind, server) as rig:
            rig.many(100)
            assert rig.settle().acked == 100

    def test_what_follows_the_handshake_is_received(self, kind: str) -> None:
        """Nothing else wakes the pump for it."""
        server = WebSocketServer()
        server.greeting = server_frame(PING, b"hello")
        server.script = silent
        with running(kind, server) as rig:
            rig.put()
            server.wait(lambda: (PONG, b"hello") in server.controls)
            server.peers[0].ack()
            assert rig.settle().acked == 1

    @pytest.mark.slow
    def test_a_server_that_does_not_read_delays_events(self, kind: str) -> None:
        server = WebSocketServer()
        server.stuck = True
        random = Random(1)
        with running(kind, server, inflight=2000) as rig:
            for _ in range(300):
                rig.put(random.randbytes(20_000).hex().encode())
            rig.until(lambda stats: stats.inflight > 1)
            assert rig.stats().acked == 0
            with server.changed:
                server.stuck = False
                server.changed.notify_all()
            assert rig.settle().acked == 300

    def test_messages_need_no_gil(self) -> None:
        """A busy thread delays none: the far end reads them all in one call that holds it."""
        size, count = 20_000, 500  # more than the sockets buffer
        received = bytearray(count * size)
        with by_hand(count) as (queue, _, _, group, link, far):
            far.settimeout(None)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(PATIENCE), 0))
            for _ in range(count):
                queue.push(bytes(size))
            with ThreadPoolExecutor(1) as pool:
                pool.submit(group.run, [link], time.monotonic() + 2 * PATIENCE)
                assert select.select([far], [], [], PATIENCE)[0]
                whole = ctypes.PyDLL(None).recv(
                    far.fileno(),
                    (ctypes.c_char * len(received)).from_buffer(received),
                    len(received),
                    socket.MSG_WAITALL,
                )
                far.shutdown(socket.SHUT_RDWR)
        assert whole == len(received)

    @pytest.mark.skipif(not websocket.LINKED, reason="this build is not linked to zlib")
    def test_events_travel_compressed(self, kind: str) -> None:
        server = WebSocketServer(DEFLATE)
        server.dress = squeezed
        with running(kind, server, deflate=True) as rig:
            for n in range(200):
                rig.put(b'{"n":%d,"text":"' % n + b"again and " * 50 + b'"}')
            assert rig.settle().acked == 200


class TestTheEnd:
    def test_close_exchanges_close_frames(self, kind: str) -> None:
        server = WebSocketServer()
        with running(kind, server) as rig:
            rig.many(10)
            rig.settle()
        assert server.controls == [(CLOSE, b"\x03\xe8")]
        assert rig.stats().disconnects == 0

    VIOLATED = "the server broke the WebSocket protocol: "
    UNCLOSED = "the server ended the connection without a close frame (1006)"
    ENDS: dict[str, tuple[bytes, str]] = {
        "code": (
            server_frame(CLOSE, b"\x03\xe9bye"),
            "the server closed the connection: 1001 (going away): bye",
        ),
        "no code": (
            server_frame(CLOSE),
            "the server closed the connection before it acknowledged everything",
        ),
        "no close": (b"", UNCLOSED),
        "half a frame": (b"\x81\x7e\x01\x00abc", UNCLOSED),
        "masked": (b"\x81\x83mask123", f"{VIOLATED}1002 (protocol error): incorrect masking"),
        "reserved": (
            server_frame(TEXT, b"x", bits=32),
            f"{VIOLATED}1002 (protocol error): reserved bits must be 0",
        ),
        "utf-8": (
            server_frame(CLOSE, b"\x03\xe8\xff"),
            f"{VIOLATED}1007 (invalid data): invalid start byte at position 0",
        ),
        "length": (
            b"\x82\x7f" + struct.pack("!Q", 1 << 63),
            "the server sent a message of more than 1048576 bytes",
        ),
    }

    @pytest.mark.parametrize("end", ENDS)
    def test_ends_have_the_same_words_and_answers(self, kind: str, end: str) -> None:
        """Messages before the end count; events without an answer are sent again."""
        data, words = self.ENDS[end]
        server = WebSocketServer()

        def script(peer: Peer) -> None:
            if peer.number:
                peer.ack()
            elif len(peer.got) == 10:
                answers = (server.dress(b"k" + got.number.to_bytes(8, "big")) for got in peer.got[:4])
                peer.raw(b"".join(answers) + data)
                peer.cut()

        server.script = script
        server.down()
        with running(kind, server, max_message=MIB) as rig:
            rig.many(10)
            server.up()
            stats = rig.settle()
            assert stats.acked == 10 and stats.resent == 6
            assert any(line.endswith(words) for _, line in rig.lines.lines), rig.lines.lines
            if data and end != "half a frame":
                server.wait(lambda: any(opcode == CLOSE for opcode, _ in server.controls))

    def test_a_reset_is_told_alike(self, kind: str) -> None:
        server = WebSocketServer()
        server.script = lambda peer: peer.ack() if peer.number else peer.reset()
        with running(kind, server) as rig:
            rig.many(10)
            assert rig.settle().acked == 10
            assert any("reset" in line for _, line in rig.lines.lines), rig.lines.lines

    @pytest.mark.skipif(sys.platform != "linux", reason="not every system keeps what came before a reset")
    @pytest.mark.parametrize("more", [1, 50_000], ids=["one-write", "more-than-is-buffered"])
    def test_messages_before_a_failed_write_count(self, more: int) -> None:
        """A server may answer and close while we write. The pump runs by hand, so that it writes first."""
        with by_hand() as (queue, in_flight, driven, group, link, far):
            for _ in range(10):
                queue.push(b"event")
            assert group.run([link], time.monotonic()) == ["until"]
            assert far.recv(65536, socket.MSG_PEEK)
            far.sendall(b"".join(server_frame(BINARY, b"k" + n.to_bytes(8, "big")) for n in range(1, 5)))
            far.close()  # with bytes unread: a reset
            assert select.select([link.inner], [], [], PATIENCE)[0]
            gone = select.poll()
            gone.register(link.inner, 0)
            assert gone.poll(PATIENCE * 1000)
            for _ in range(10):
                queue.push(b"event" * more)
            assert group.run([link], time.monotonic() + PATIENCE) == ["error"]
            assert driven.error in (errno.ECONNRESET, errno.EPIPE) and driven.failure is None
            assert [line[:3] for line in in_flight.take_report()] == [(1, 4, "acked")]

    @pytest.mark.skipif(not websocket.LINKED, reason="this build is not linked to zlib")
    def test_a_bomb_ends_the_connection(self, kind: str) -> None:
        server = WebSocketServer(DEFLATE)
        packer = zlib.compressobj(9, wbits=-15)
        bomb = server_frame(TEXT, packer.compress(bytes(64 * MIB)) + packer.flush() + b"\0", bits=PACKED)

        def script(peer: Peer) -> None:
            if peer.number:
                peer.ack()
            else:
                peer.raw(bomb)

        server.script = script
        server.dress = squeezed
        with running(kind, server, deflate=True, max_message=MIB) as rig:
            rig.many(5)
            assert rig.settle().acked == 5
            assert any("more than 1048576 bytes" in line for _, line in rig.lines.lines)


class TestHostile:
    def test_endless_pings_keep_nobody_busy(self, kind: str) -> None:
        """Events go on, and the last ping is answered."""
        server = WebSocketServer()

        def script(peer: Peer) -> None:
            for n in range(50):
                peer.raw(server_frame(PING, b"%d" % n) * 100)
            peer.ack()

        server.script = script
        with running(kind, server) as rig:
            rig.many(50)
            assert rig.settle().acked == 50
            server.wait(lambda: (PONG, b"49") in server.controls)
        assert len([1 for opcode, _ in server.controls if opcode == PONG]) <= 50 * 50

    def test_close_frames_without_end_are_answered_once(self, kind: str) -> None:
        server = WebSocketServer()

        def script(peer: Peer) -> None:
            if peer.number:
                peer.ack()
            else:
                peer.raw(server_frame(CLOSE, b"\x03\xe8") * 20_000)

        server.script = script
        with running(kind, server) as rig:
            rig.put()
            assert rig.settle().acked == 1
        assert len(server.controls) == 2  # one for each connection

    def test_half_a_close_reads_the_last_answers(self, kind: str) -> None:
        """A server that closes its side after the answers has taken everything."""
        server = WebSocketServer()

        def script(peer: Peer) -> None:
            peer.ack()
            if len(peer.got) >= 20:
                peer.cut()

        server.script = script
        with running(kind, server, inflight=20) as rig:
            rig.many(20)
            stats = rig.settle()
        assert stats.acked == 20 and stats.resent == 0


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_events_travel_over_tls(kind: str, version: str, ours: Authority) -> None:
    tls = transports.tls(PATIENCE, ca=ours.ca)
    if kind == "compiled":
        try:
            tls.load_pump()
        except ImportError as error:
            pytest.skip(str(error))
    server = WebSocketServer(tls=context(version, ours.issue("server")))
    server.dress = dressed
    with running(kind, server, carrier=tls) as rig:
        for n in range(300):
            rig.put(b"%d " % n * 500)
        assert rig.settle().acked == 300
