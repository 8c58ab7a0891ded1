"""UDP against plain sockets: each way to give datagrams to the kernel, and the engine over it."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logclient
from logclient._ext.constants import UDP_METHODS
from logclient._ext.plog import datagrams
from logclient.config.parsing import parse
from logclient.delivery.attempt import Attempt
from logclient.delivery.producer import Producer
from logclient.delivery.sender import Sender
from logclient.delivery.setup import Setup
from logclient.plog.config import PlogConfig
from logclient.transports.udp import Udp, UdpLink
from tests.oracle.plog import runs
from tests.support import transports
from tests.support.patience import PATIENCE, wait_until

LINUX = sys.platform == "linux"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(PATIENCE)
        yield sock


def receive_datagrams(server: socket.socket, n: int) -> list[bytes]:
    return [server.recv(65_536) for _ in range(n)]


class TestLink:
    @given(sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=40))
    @settings(max_examples=60, deadline=None)
    def test_runs_arrive_as_datagrams(self, sizes: list[int]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind(("127.0.0.1", 0))
            server.settimeout(PATIENCE)
            link = transports.udp().connect(server.getsockname(), Attempt())
            try:
                sent = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
                assert link.send([runs(sent)])
                assert receive_datagrams(server, len(sent)) == sent
            finally:
                link.close()

    def test_answers_are_received(self, server: socket.socket) -> None:
        link = transports.udp().connect(server.getsockname(), Attempt())
        assert link.receive() is None
        assert link.send([runs([b"hello"])])
        _, client = server.recvfrom(10)
        server.sendto(b"", client)
        server.sendto(b"answer", client)
        data = None
        while data is None:
            link.wait(0.1, False)
            data = link.receive()
        assert datagrams(data) == [b"answer"]
        link.close()

    @pytest.mark.skipif(not LINUX, reason="the path's MTU is not told here")
    def test_the_path_mtu_is_known(self, server: socket.socket) -> None:
        link = transports.udp().connect(server.getsockname(), Attempt())
        assert link.mtu >= 1280 and link.headers == 28
        link.close()

    def test_invalid_names_are_refused(self) -> None:
        with pytest.raises(OSError):
            transports.udp().connect(("no-such-host.invalid", 9), Attempt())


class RecordedUdp(Udp):
    """UDP whose pump the test can ask."""

    made: Any = None

    def load_pump(self) -> Any:
        return self.make

    def make(self, in_flight: Any, core: Any, **limits: Any) -> Any:
        self.made = super().load_pump()(in_flight, core, **limits)
        return self.made


class DatagramServer:
    """Reads all datagrams in its own thread."""

    def __init__(self) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.settimeout(0.05)
        self.port = self.sock.getsockname()[1]
        self.got: list[bytes] = []
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            try:
                data, peer = self.sock.recvfrom(65_536)
            except TimeoutError:
                continue
            if data.startswith(b"\0\0PING"):
                self.sock.sendto(b"PONG" + data[6:], peer)
            else:
                self.got.append(data)

    def close(self) -> None:
        self._over = True
        self._thread.join()
        self.sock.close()


@pytest.fixture
def far() -> Iterator[DatagramServer]:
    server = DatagramServer()
    yield server
    server.close()


def sender_of(way: str, url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Sender, RecordedUdp]:
    from logclient.plog.core import Plog

    monkeypatch.setattr(UdpLink, "send_method", way)
    config = parse(url)
    transport = RecordedUdp(config)
    sender = Sender(Setup(lambda producer: Plog(config, producer), [transport], config))
    return sender, transport


def bodies_of(got: list[bytes]) -> list[bytes]:
    """Return payloads of single fragments, and of several put together by index, in order of first
    arrival."""
    whole: dict[int, list[bytes | None]] = {}
    for one in got:
        count, index, size, number, total, _, tags = (
            int.from_bytes(one[a:b], "big")
            for a, b in ((2, 4), (4, 6), (6, 8), (8, 12), (12, 16), (16, 20), (20, 22))
        )
        assert one[:2] == b"\0\1" and index < count and (index == count - 1 or len(one) == 24 + size)
        parts = whole.setdefault(number, [None] * count)
        parts[index] = one[24 + tags :]
        assert sum(map(len, (part for part in parts if part))) <= total
    return [b"".join(part for part in parts if part is not None) for parts in whole.values()]


@pytest.mark.parametrize("way", UDP_METHODS)
def test_events_arrive_as_sent_over_udp(
    far: DatagramServer, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones, equal ones that share a run, ones in many fragments."""
    sender, transport = sender_of(
        way,
        f"plog://127.0.0.1:{far.port}?mtu=1400&identity=none&pace=20000&max_event_bytes=262144",
        monkeypatch,
    )
    sizes = [1, 300, 300, 300, 5_000, 12, 40_000, 300, 1376, 1377] * 30
    sent = [bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]
    for body in sent:
        assert Producer(sender).put(body, 2, 2)
    assert sender.waiter.flush(PATIENCE) == 0
    stats = sender.stats()
    assert (stats.handed, stats.acked, stats.failed) == (len(sent), 0, {})
    expected = sum(1 if size <= 1348 else -(-size // 1348) for size in sizes)
    wait_until(lambda: len(far.got) >= expected)
    assert transport.made.send_method == (way if LINUX else "send")
    sender.waiter.close(1.0)
    assert bodies_of(far.got) == sent


@pytest.mark.parametrize("way", UDP_METHODS)
def test_icmp_refusal_ends_the_socket(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that were not sent wait for the next socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    monkeypatch.setattr(PlogConfig, "burst", (4.0, 0.0))
    sender, _ = sender_of(
        way, f"plog://127.0.0.1:{port}?identity=none&backoff_max=0.05&pace=1000", monkeypatch
    )
    try:
        for _ in range(100):
            Producer(sender).put(b"x" * 50, 2, 2)
        if not LINUX:
            return
        wait_until(lambda: sender.stats().disconnects > 2)
        stats = sender.stats()
        assert "refused" in stats.last_error
        assert stats.in_doubt == stats.handed < 100, "only what the last refusal was for may be gone"
        assert stats.queued + stats.inflight + stats.handed == 100
    finally:
        sender.waiter.close(0.0)


@pytest.mark.skipif(not LINUX, reason="GSO is Linux's")
def test_the_mtu_option_allows_large_datagrams(far: DatagramServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path takes more than the usual 1500 bytes."""
    sender, transport = sender_of(
        "gso", f"plog://127.0.0.1:{far.port}?mtu=9000&identity=none&pace=0&pace_bytes=0", monkeypatch
    )
    for _ in range(20):
        Producer(sender).put(b"x" * 30_000, 2, 2)
    assert sender.waiter.flush(PATIENCE) == 0
    assert transport.made.send_method == "gso", "loopback takes it"
    sender.waiter.close(1.0)
    wait_until(lambda: len(bodies_of(far.got)) == 20)


def test_a_plog_url_uses_udp(far: DatagramServer) -> None:
    with logclient.connect(f"plog://127.0.0.1:{far.port}") as client:
        client.send({"message": "hi", "type": "log"})
        assert client.flush(PATIENCE) == 0
        assert client.stats().handed == 1
        identity = client.event_id(1)
    wait_until(lambda: far.got)
    (body,) = bodies_of(far.got)
    assert body == b'{"message":"hi","type":"log","uuid":"%s"}' % identity.encode()
