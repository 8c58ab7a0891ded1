"""The TCP transport by itself, and several endpoints."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logclient.delivery.attempt import Attempt
from logclient.transports import addresses
from logclient.transports.tcp_link import OwnSocket, TcpLink
from tests.cores.rig import Rig, Setup
from tests.cores.server import MemoryServer, MemoryTransport, acknowledge
from tests.support import transports
from tests.support.patience import PATIENCE

FIFO = Setup("fifo")


@pytest.fixture
def pair() -> Iterator[tuple[TcpLink, socket.socket]]:
    """A connected link, and the socket at its far end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = transports.tcp(5.0).connect(listener.getsockname()[:2], Attempt())
        far, _ = listener.accept()
        with far:
            yield link, far
        link.close()


def test_a_connection_is_non_blocking_with_nodelay_and_keepalive(
    pair: tuple[TcpLink, socket.socket],
) -> None:
    link, far = pair
    assert link.peer == "127.0.0.1:" + str(far.getsockname()[1])
    assert not os.get_blocking(link.fileno())
    option = link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert option, "an ack must not wait for Nagle"
    assert link._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_bytes_travel_both_ways_until_the_end(pair: tuple[TcpLink, socket.socket]) -> None:
    link, far = pair
    assert link.receive() is None
    assert link.send([b"one ", memoryview(b"two "), b"", b"three"])
    assert far.recv(100) == b"one two three"
    far.sendall(b"answer")
    link.wait(PATIENCE, False)
    assert link.receive() == b"answer"
    far.shutdown(socket.SHUT_WR)
    link.wait(PATIENCE, False)
    assert link.receive() == b""


def test_bytes_that_do_not_fit_are_copied_and_kept(pair: tuple[TcpLink, socket.socket]) -> None:
    link, far = pair
    buffer = bytearray(b"x" * (1 << 20))
    sent = 1 << 20
    while link.send([memoryview(buffer)]):
        sent += 1 << 20
    buffer[:] = b"y" * (1 << 20)  # the core may use it for the next
    received = bytearray()
    far.settimeout(PATIENCE)
    done = threading.Event()

    def read() -> None:
        while len(received) < sent:
            received.extend(far.recv(1 << 20))
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    while not link.flush():
        link.wait(PATIENCE, True)
    thread.join(PATIENCE)
    assert done.is_set() and received == b"x" * sent


def test_a_refused_connection_raises() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            transports.tcp(5.0).connect(bound.getsockname()[:2], Attempt())


@pytest.mark.parametrize(
    "host", ["nobody.invalid", "a" * 70 + ".example", "\N{LATIN SMALL LETTER SHARP S}" * 70]
)
def test_an_unknown_host_raises_os_error(host: str) -> None:
    with pytest.raises(OSError):
        transports.tcp(1.0).connect((host, 1), Attempt())


class UnansweredSocket(socket.socket):
    """A socket whose attempt to connect gets no answer."""

    def connect_ex(self, address: Any) -> int:
        return errno.EINPROGRESS


def test_connect_times_out_and_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", UnansweredSocket)
    monkeypatch.setattr("logclient.delivery.attempt.wait_ready", lambda *args: False)
    with pytest.raises(TimeoutError, match="no answer"):
        transports.tcp(0.01).connect(("127.0.0.1", 1), Attempt())
    with pytest.raises(InterruptedError):
        transports.tcp(PATIENCE).connect(("127.0.0.1", 1), Attempt(lambda: True))


def test_a_refused_address_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        found = [(*stream, bound.getsockname()), (*stream, listener.getsockname())]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kw: found)
        link = transports.tcp(5.0).connect(("two.addresses", 1), Attempt())
        assert link._socket.getpeername() == listener.getsockname()
        link.close()


def test_a_socket_connected_to_itself_counts_as_refused() -> None:
    """Linux gives a connecting socket the port it asks for, if that is free: forced here by binding it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    class Bound(OwnSocket):
        def connect_ex(self, address: Any) -> int:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(("127.0.0.1", port))
            return super().connect_ex(address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(addresses, "make_socket", lambda *given: Bound(socket.socket(*given).detach()))
        with pytest.raises(ConnectionRefusedError):
            transports.tcp(5.0).connect(("127.0.0.1", port), Attempt())


# -- several endpoints --------------------------------------------------------------------------------


class TwoEndpoints(MemoryTransport):
    """Two names for one server; each may be dead."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.asked: list[str] = []
        self.dead: set[str] = set()

    def connect(self, endpoint: Any, attempt: Attempt) -> Any:
        self.asked.append(endpoint)
        if endpoint in self.dead:
            raise ConnectionRefusedError(111, "Connection refused")
        return super().connect(endpoint, attempt)


def test_the_next_endpoint_is_tried_and_then_kept(tmp_path: Path) -> None:
    server = MemoryServer("fifo")
    transport = TwoEndpoints(server)
    transport.dead = {"a"}
    rig = Rig(FIFO, tmp_path / "run", server=server, transport=transport)
    rig.engine.lanes.first.endpoints._endpoints = ("a", "b")
    rig.many(3)
    rig.settle()
    assert transport.asked == ["a", "b"]
    server.peers[0].cut()  # all was acknowledged: an ordinary end
    rig.until(lambda s: s.disconnects == 1)
    rig.many(3)
    rig.settle()
    assert transport.asked == ["a", "b", "b"]
    transport.dead = {"b"}
    server.script = lambda peer: peer.cut()
    rig.put()
    rig.until(lambda s: len(transport.asked) >= 5)
    assert transport.asked[3] == "a"
    server.script = acknowledge
    assert rig.settle().acked == 7
    rig.finish()
