"""Hostile peers of the Logjam client and of the device: memory and time stay bounded.

The victim is a process of its own and measured from outside. The attacker speaks ZMTP by hand.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

zmq = pytest.importorskip("zmq")

from logclient.delivery import attempt  # noqa: E402
from logclient.delivery.attempt import Attempt  # noqa: E402
from logclient.transports import zmq as zmq_transport  # noqa: E402
from tests.support import transports  # noqa: E402
from tests.support.logjam_rig import ACCEPTED, APP_ENV, DeviceProcess, Producer, message  # noqa: E402
from tests.support.measured_process import MIB, MeasuredProcess  # noqa: E402
from tests.support.patience import PATIENCE  # noqa: E402

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")

MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(8) + b"\x7f\3\0" + b"NULL".ljust(20, b"\0") + bytes(32)


def zframe(part: bytes, flags: int = 0) -> bytes:
    """A frame of ZMTP 3."""
    if len(part) < 256:
        return bytes((flags, len(part))) + part
    return bytes((flags | LONG,)) + struct.pack(">Q", len(part)) + part


def zmessage(parts: list[bytes]) -> bytes:
    return b"".join(zframe(part, MORE) for part in parts[:-1]) + zframe(parts[-1])


def ready(kind: bytes) -> bytes:
    command = b"\5READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind + b"\x08Identity" + bytes(4)
    return zframe(command, COMMAND)


class Peer:
    """One TCP connection on which the test speaks ZMTP by hand."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(PATIENCE)
        self._file = sock.makefile("rb")

    def handshake(self, kind: bytes) -> None:
        self.send(GREETING)
        assert len(self._take(64)) == 64
        self.send(ready(kind))
        self.frame()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def tell(self, *messages: list[bytes]) -> None:
        self.send(b"".join(map(zmessage, messages)))

    def _take(self, n: int) -> bytes:
        data = self._file.read(n)
        if len(data) < n:
            raise ConnectionError("the peer has closed the connection")
        return data

    def frame(self) -> tuple[int, bytes]:
        flags = self._take(1)[0]
        size = struct.unpack(">Q", self._take(8))[0] if flags & LONG else self._take(1)[0]
        return flags, self._take(size)

    def hear(self) -> list[bytes]:
        """Return the next message; skip ZeroMQ's own commands."""
        parts = []
        flags = MORE
        while flags & (MORE | COMMAND):
            flags, part = self.frame()
            if not flags & COMMAND:
                parts.append(part)
        return parts

    def answer(self, n: int) -> None:
        for _ in range(n):
            assert self.hear()[0] == b""
            self.tell(ACCEPTED)

    def try_send(self, data: bytes) -> None:
        """Send to a peer that may close the connection meanwhile."""
        with suppress(ConnectionError):
            self.sock.sendall(data)

    def flood(self, data: bytes, most: int) -> int:
        """Send again and again until the peer closes; return the accepted bytes, at most `most`."""
        said = 0
        self.sock.setblocking(False)
        while said < most:
            readable, writable, _ = select.select([self.sock], [self.sock], [], PATIENCE)
            assert readable or writable, "it neither reads nor hangs up"
            try:
                if readable and not self.sock.recv(MIB):
                    break
                if writable:
                    said += self.sock.send(memoryview(data)[said % len(data) :])
            except BlockingIOError:
                pass
            except ConnectionError:
                break
        self.sock.settimeout(PATIENCE)
        return said

    def wait_closed(self) -> None:
        """Read until the other side closes the connection."""
        try:
            while self.sock.recv(1 << 20):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        self._file.close()
        self.sock.close()


class HonestServer:
    """Answer every message on a connection until it ends."""

    def __init__(self, peer: Peer) -> None:
        self.received = 0
        self._peer = peer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError, ValueError):
            while True:
                request = self._peer.hear()[0] == b""
                self.received += 1
                if request:
                    self._peer.tell(ACCEPTED)

    def close(self) -> None:
        with suppress(OSError):
            self._peer.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class Server:
    """A listener whose connections the test plays."""

    def __init__(self, kind: bytes) -> None:
        self._kind = kind
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.port: int = self._listener.getsockname()[1]
        self._peers: list[Peer] = []

    def accept(self) -> Peer:
        """Accept a connection; nothing has been sent on it."""
        peer = Peer(self._listener.accept()[0])
        self._peers.append(peer)
        return peer

    def is_dialed(self, seconds: float) -> bool:
        """Return whether a client connects in that time."""
        return bool(select.select([self._listener], [], [], seconds)[0])

    def accept_handshake(self) -> Peer:
        peer = self.accept()
        peer.handshake(self._kind)
        return peer

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()
        self._listener.close()


CLIENT = """if 1:
    import json, sys, time
    import logclient
    from logclient.transports.zmq import Zmq

    url, compiled, size = json.loads(sys.argv[1])

    def refuse(self):
        raise ImportError("a test needs the link in Python")
    if not compiled:
        Zmq.load_pump = refuse

    client = logclient.connect(url, connect_timeout=1.0, backoff_max=0.05)
    assert (client.stats().pump == "compiled") == bool(compiled)
    body = b'{"line":"%s"}' % (b"x" * size)

    def say(what):
        print(json.dumps(what), flush=True)

    say("ready")
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word == "put":
            say([client.send(body) > 0 for _ in range(int(number))].count(True))
        elif word == "ping":
            try:
                say(client.ping(float(number)).host)
            except logclient.ConnectFailed as error:
                say([str(error)])
        elif word == "flush":
            say(client.flush(float(number)))
        else:
            say(client.stats()._asdict())
    client.close(2.0)
"""

COMPILED = pytest.mark.parametrize("compiled", [True, False], ids=["C", "Python"])


# -- at the client: a ROUTER ----------------------------------------------------------------------
#
# Each attack receives 20 requests and returns how many of them it has answered correctly.

SENT = 20
AFTER = 60  # so many that the client may have as many in flight as before the attack


def replies_with(*messages: list[bytes]) -> Callable[[Peer], int]:
    def attack(peer: Peer) -> int:
        for _ in range(SENT):
            peer.hear()
        peer.try_send(b"".join(map(zmessage, messages)))
        return 0

    return attack


def sends_bytes(data: bytes) -> Callable[[Peer], int]:
    def attack(peer: Peer) -> int:
        peer.hear()
        peer.try_send(data)
        return 0

    return attack


def more_replies_than_requests(peer: Peer) -> int:
    peer.answer(SENT)
    peer.tell(*[ACCEPTED] * 3)
    return SENT


def reply_of_another_between(peer: Peer) -> int:
    peer.answer(3)
    peer.tell([b"other-production", b"202 Accepted"], ACCEPTED)
    return 3


def faster_than_requests(peer: Peer) -> int:
    peer.answer(5)
    assert peer.flood(zmessage(ACCEPTED) * 2000, 1 << 30) < 1 << 30
    return SENT  # one reply counts for each request, and none beyond


def never_answers(peer: Peer) -> int:
    for _ in range(SENT):
        peer.hear()
    return 0


def hangs_up(peer: Peer) -> int:
    peer.answer(2)
    peer.send(zmessage(ACCEPTED)[:-3])
    peer.sock.shutdown(socket.SHUT_RDWR)
    return 2


ATTACKS: dict[str, Callable[[Peer], int]] = {
    "replies without requests": more_replies_than_requests,
    "another app-env": replies_with([b"other-production", b"202 Accepted"]),
    "another app-env between": reply_of_another_between,
    "another status": replies_with([APP_ENV, b"200 OK"]),
    "a pong": replies_with([b"ping", b"200 OK", b"host"]),
    "an empty frame before": replies_with([b"", *ACCEPTED]),
    "one frame": replies_with([b"202 Accepted"]),
    "1,000 frames": replies_with([*ACCEPTED, *[b"x"] * 998]),
    "1,000 empty frames": replies_with([b""] * 1000),
    "50,000 frames": replies_with([b"x"] * 50_000),
    "30 KB": replies_with([APP_ENV, b"x" * 30_000]),
    "1,000 replies of 30 KB": replies_with(*[[APP_ENV, b"x" * 30_000]] * 1000),
    "a frame over the limit": replies_with([APP_ENV, b"x" * 40_000]),
    "1 GiB announced": sends_bytes(bytes((LONG,)) + struct.pack(">Q", 1 << 30) + bytes(MIB)),
    "1 GiB announced behind a good frame": sends_bytes(
        zframe(APP_ENV, MORE) + bytes((LONG,)) + struct.pack(">Q", 1 << 30) + bytes(MIB)
    ),
    "2**63 announced": sends_bytes(bytes((LONG,)) + b"\x80" + bytes(7) + bytes(MIB)),
    "2**64 - 1 announced": sends_bytes(bytes((LONG,)) + b"\xff" * 8 + bytes(MIB)),
    "a command of 1 GiB announced": sends_bytes(bytes((COMMAND | LONG,)) + struct.pack(">Q", 1 << 30)),
    "garbage": sends_bytes(b"\x80\xff\xfe" * 50_000),
    "half a reply": sends_bytes(zframe(APP_ENV, MORE)),
    "half a frame": sends_bytes(zmessage(ACCEPTED)[:-3]),
    "faster than requests": faster_than_requests,
    "never answers": never_answers,
    "hangs up inside a reply": hangs_up,
}


Attacked = tuple[Server, MeasuredProcess]
Make = Callable[..., Attacked]


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Attacked]]:
    made: dict[str, Attacked] = {}
    yield made
    for server, client in made.values():
        with server, client:
            pass


@pytest.fixture
def attacked(kept: dict[str, Attacked], request: pytest.FixtureRequest) -> Iterator[Make]:
    """Return a maker of (server, client in its own process); clients that survive are shared by all tests."""
    used: list[str] = []

    def make(
        compiled: bool, scheme: str = "logjam", options: str = "?silence=1", size: int = 1000
    ) -> Attacked:
        key = f"{scheme} {compiled} {options} {size}"
        used.append(key)
        if key not in kept:
            server = Server(b"PULL" if scheme == "logjam+push" else b"ROUTER")
            url = f"{scheme}://127.0.0.1:{server.port}/shop-production{options}"
            kept[key] = server, MeasuredProcess(CLIENT, url, compiled, size)
            assert kept[key][1].read() == "ready"
        return kept[key]

    failed = request.session.testsfailed
    yield make
    if request.session.testsfailed > failed:
        for key in used:
            server, client = kept.pop(key)
            with server:
                client.end()


@pytest.mark.slow
@COMPILED
@pytest.mark.parametrize("attack", ATTACKS)
def test_client_survives_a_hostile_router(attacked: Make, attack: str, compiled: bool) -> None:
    """It closes the connection, takes no reply for another, and delivers all events over the next one.

    It waits for 1 s of silence, and uses at most 48 MiB.
    """
    server, client = attacked(compiled)
    start = client.ask("stats")
    assert client.ask(f"put {SENT}") == SENT
    peer = server.accept_handshake()
    before = client.reset_peak()
    begin = time.monotonic()
    answered = ATTACKS[attack](peer)
    peer.wait_closed()
    assert client.ask(f"put {AFTER}") == AFTER
    honest = HonestServer(server.accept_handshake())
    assert client.ask("flush 15") == 0
    assert time.monotonic() - begin < PATIENCE
    assert client.peak() - before < 48 * MIB
    honest.close()
    stats = client.ask("stats")
    assert stats["acked"] - start["acked"] == SENT + AFTER
    assert stats["connects"] - start["connects"] == 2
    assert (stats["queued"], stats["inflight"], stats["failed"], stats["dropped"]) == (0, 0, {}, {})
    # Replies right before the end of the connection may be unread; those requests are sent again.
    lost = honest.received - (SENT + AFTER - answered)
    assert 0 <= lost <= (answered if attack == "hangs up inside a reply" else 0)


def sends_nothing(peer: Peer) -> None:
    pass


def slow_loris(peer: Peer) -> None:
    for byte in GREETING:
        try:
            peer.send(bytes((byte,)))
        except ConnectionError:
            return
        if select.select([peer.sock], [], [], 0.1)[0]:
            peer.sock.recv(1000)  # its greeting, or the end of the connection


def half_shaken(data: bytes) -> Callable[[Peer], None]:
    def attack(peer: Peer) -> None:
        peer.try_send(GREETING + data)

    return attack


def commands(peer: Peer) -> None:
    peer.send(GREETING)
    peer.flood(zframe(b"\x05HELLO" + bytes(200), COMMAND) * 2000, 1 << 30)


HANDSHAKES: dict[str, Callable[[Peer], None]] = {
    "silent": sends_nothing,
    "slow loris": slow_loris,
    "no READY": half_shaken(b""),
    "a READY of 1 GiB announced": half_shaken(bytes((COMMAND | LONG,)) + struct.pack(">Q", 1 << 30)),
    "a READY with a property of 4 GiB announced": half_shaken(
        zframe(b"\5READY\x0bSocket-Type\xff\xff\xff\xff", COMMAND)
    ),
    "a READY with 3,000 properties": half_shaken(
        zframe(b"\5READY" + b"".join(b"\4X%03d\0\0\0\1x" % (n % 1000) for n in range(3000)), COMMAND)
    ),
    "no command": half_shaken(zmessage(ACCEPTED) * 1000),
    "other commands": commands,
    "HTTP": lambda peer: peer.try_send(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n" + b"x" * MIB),
    "garbage": lambda peer: peer.try_send(bytes(range(256)) * 4096),
    "no ROUTER": half_shaken(ready(b"PUB")),
}

PASS = {"a READY with a property of 4 GiB announced", "a READY with 3,000 properties"}
"""libzmq accepts these as a peer without a type; only silence ends them."""


@pytest.mark.slow
@pytest.mark.parametrize("attack", HANDSHAKES)
def test_hostile_handshake_fails_in_time(attacked: Make, attack: str) -> None:
    """The attempt ends within its second, and the next one is made, within 16 MiB."""
    server, client = attacked(True)
    start = client.ask("stats")
    before = client.reset_peak()
    begin = time.monotonic()
    assert client.ask(f"put {SENT}") == SENT
    peer = server.accept()
    HANDSHAKES[attack](peer)
    peer.wait_closed()
    honest = HonestServer(server.accept_handshake())
    assert client.ask("flush 15") == 0
    assert time.monotonic() - begin < PATIENCE
    assert client.peak() - before < 16 * MIB
    honest.close()
    stats = client.ask("stats")
    assert stats["acked"] - start["acked"] == honest.received == SENT
    assert stats["connects"] - start["connects"] == 1 + (attack in PASS)


# -- at the client: peers that flood or read nothing -----------------------------------------------


@COMPILED
def test_endless_pings_are_cut(attacked: Make, compiled: bool) -> None:
    """Within 16 MiB."""
    server, client = attacked(compiled)
    assert client.ask("put 1") == 1
    peer = server.accept_handshake()
    before = client.reset_peak()
    begin = time.monotonic()
    assert peer.flood(zframe(b"\4PING\0\0" + bytes(16), COMMAND) * 4000, 256 * MIB) < 256 * MIB
    assert time.monotonic() - begin < PATIENCE
    peer.close()
    honest = HonestServer(server.accept_handshake())
    assert client.ask("flush 15") == 0
    assert client.peak() - before < 16 * MIB
    honest.close()


PONGS: dict[str, list[list[bytes]]] = {
    "another reply": [ACCEPTED],
    "1,000 frames": [[b"ping", b"200 OK", *[b"x"] * 998]],
    "a name of 30 KB": [[b"ping", b"200 OK", b"x" * 30_000]],
    "two of them": [[b"ping", b"200 OK", b"a"], [b"ping", b"200 OK", b"b"]],
    "none": [],
}


@pytest.mark.slow
@COMPILED
@pytest.mark.parametrize("attack", PONGS)
def test_hostile_pong_is_answer_or_error(attacked: Make, attack: str, compiled: bool) -> None:
    """The caller of ping gets an answer or an error, within 16 MiB."""
    server, client = attacked(compiled)
    assert client.ask("put 1") == 1
    peer = server.accept_handshake()
    peer.answer(1)
    assert client.ask("flush 10") == 0
    before = client.reset_peak()
    begin = time.monotonic()
    client.write("ping 10")
    assert peer.hear()[:2] == [b"", b"ping"]
    peer.tell(*PONGS[attack])
    said = client.read()
    peer.wait_closed()
    assert isinstance(said, list) or (said == "a" and attack == "two of them")
    assert client.ask("put 1") == 1
    honest = HonestServer(server.accept_handshake())
    assert client.ask("flush 15") == 0
    assert time.monotonic() - begin < PATIENCE
    assert client.peak() - before < 16 * MIB
    honest.close()


def endless(peer: Peer, size: int) -> None:
    most = 64 * MIB if size < 2 else 2 << 30  # each frame takes 64 bytes and its content
    assert peer.flood(zframe(b"x" * size, MORE) * (MIB // (size + 2)), most) < most


@COMPILED
@pytest.mark.parametrize("scheme", ["logjam", "logjam+push"])
@pytest.mark.parametrize("idle", [False, True], ids=["waiting", "idle"])
@pytest.mark.parametrize("size", [0, 30_000])
def test_endless_reply_is_cut(attacked: Make, scheme: str, size: int, idle: bool, compiled: bool) -> None:
    """It is cut although libzmq does not show it. Up to 4 MiB of it are taken (128 in memory, if its
    frames are empty), and what arrives in a tenth of a second, within 512 MiB."""
    server, client = attacked(compiled, scheme)
    start = client.ask("stats")
    assert client.ask("put 1") == 1
    peer = server.accept_handshake()
    if idle and scheme == "logjam":
        peer.answer(1)
        assert client.ask("flush 10") == 0
    before = client.reset_peak()
    begin = time.monotonic()
    endless(peer, size)
    peer.wait_closed()
    assert client.ask("put 5") == 5
    honest = HonestServer(server.accept_handshake())
    assert client.ask("flush 15") == 0
    assert time.monotonic() - begin < PATIENCE
    assert client.peak() - before < 512 * MIB
    stats = client.ask("stats")
    assert stats["acked"] + stats["handed"] - start["acked"] - start["handed"] == 6
    honest.close()


@pytest.mark.slow
@COMPILED
def test_many_replies_at_once_are_no_endless_reply(attacked: Make, compiled: bool) -> None:
    """The peer answers all requests in one go after a pause."""
    server, client = attacked(compiled, "logjam", "?inflight=65536&silence=60", 10)
    before = client.ask("stats")["connects"]
    assert client.ask("put 20000") == 20_000
    peer = server.accept_handshake()
    for _ in range(20_000):
        peer.hear()
    peer.send(zmessage(ACCEPTED) * 20_000)
    assert client.ask("flush 20") == 0
    stats = client.ask("stats")
    assert (stats["acked"], stats["connects"] - before, stats["disconnects"]) == (20_000, 1, 0)
    peer.close()


@COMPILED
@pytest.mark.parametrize("size", [0, 30_000])
def test_messages_from_a_pull_socket_are_cut(attacked: Make, size: int, compiled: bool) -> None:
    """A PUSH socket reads nothing, so that these messages would only pile up."""
    server, client = attacked(compiled, "logjam+push")
    assert client.ask("put 1") == 1
    peer = server.accept_handshake()
    before = client.reset_peak()
    begin = time.monotonic()
    most = 64 * MIB if size < 2 else 2 << 30
    assert peer.flood(zmessage([b"x" * size]) * (MIB // (size + 2)), most) < most
    assert client.ask("put 5") == 5
    honest = HonestServer(server.accept_handshake())
    assert client.ask("flush 15") == 0
    assert time.monotonic() - begin < PATIENCE
    assert client.peak() - before < 512 * MIB
    honest.close()


def test_heartbeats_do_not_count_as_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ's own heartbeats end no connection, however long it is idle."""
    now, came = 1000.0, 300
    monkeypatch.setattr(zmq_transport, "bytes_received", lambda tcp: came)
    for module in (attempt, zmq_transport):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        link = transports.zmq(5.0).connect(("127.0.0.1", port), Attempt())
        for _ in range(1000):
            now += 600
            came += 600 * 100
            assert link.receive() is None
        now += 1
        came += zmq_transport.OVERSIZED + 1000
        with pytest.raises(OSError, match="too long"):
            link.receive()
        link.close()


@pytest.mark.slow
@COMPILED
@pytest.mark.parametrize("scheme", ["logjam", "logjam+push"])
def test_peer_that_reads_nothing_costs_bounded_memory(attacked: Make, scheme: str, compiled: bool) -> None:
    """Memory grows by `max_bytes` (64 MiB) and a little; with push, by `hwm` messages more."""
    server, client = attacked(compiled, scheme, "?compression=none&silence=60", 50_000)
    before = client.reset_peak()
    begin = time.monotonic()
    assert client.ask("put 1") == 1
    peer = server.accept_handshake()
    assert client.ask("put 4000") < 2000
    most = 96 if scheme == "logjam" else 96 + 50
    assert client.peak() - before < most * MIB
    peer.close()
    honest = HonestServer(server.accept_handshake())
    assert client.ask("flush 20") == 0
    honest.close()
    assert time.monotonic() - begin < PATIENCE


# -- at the device --------------------------------------------------------------------------------
#
# See test_logjam_device.py for 1,000 frames, 1 GiB announced, unknown compressions and other framings, long
# names, unread replies, other protocols, and garbage behind the handshake.


class Target(DeviceProcess):
    """A device that accepts frames of up to 1 MiB."""

    def __init__(self, files: int = 0) -> None:
        super().__init__(files, max_bytes=MIB, max_connections=5000)

    def dial(self, kind: bytes = b"DEALER", port: int = 0) -> Peer:
        peer = Peer(socket.create_connection(("127.0.0.1", port or self.port)))
        peer.handshake(kind)
        return peer

    def assert_serves(self) -> None:
        """Assert that a new producer gets replies."""
        with Producer(self.port) as producer:
            assert producer.ship(1, 2, 3) == [ACCEPTED] * 3


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target() as target:
        target.assert_serves()
        yield target


@pytest.mark.parametrize("push", [False, True], ids=["ROUTER", "PULL"])
@pytest.mark.parametrize("size", [0, 1, 30_000])
def test_endless_message_to_the_device_is_cut(target: Target, push: bool, size: int) -> None:
    """It is cut although libzmq does not show it, within 512 MiB; others are served."""
    before = target.reset_peak()
    begin = time.monotonic()
    sender = target.dial(b"PUSH" if push else b"DEALER", target.push_port if push else 0)
    target.assert_serves()
    endless(sender, size)
    assert time.monotonic() - begin < PATIENCE
    assert target.peak() - before < 512 * MIB
    sender.close()
    target.assert_serves()
    assert target.ask()[1]["frames: no end"] >= 1


@pytest.mark.parametrize("push", [False, True], ids=["ROUTER", "PULL"])
def test_fast_producer_of_large_messages_is_not_cut(push: bool) -> None:
    with (
        Target() as target,
        Producer(target.push_port if push else target.port, zmq.PUSH if push else zmq.DEALER) as large,
        Producer(target.port) as small,
    ):
        for _ in range(200):
            large.tell(message(b"x" * (MIB - 100)))
            small.tell(message(1))
        end = time.monotonic() + PATIENCE
        counts, reasons = target.ask()
        while counts["captured_events"] < 400 and time.monotonic() < end:
            counts, reasons = target.ask()
        assert (counts["captured_events"], reasons) == (400, {})


@pytest.mark.slow
def test_thousands_of_connections_are_served() -> None:
    """Each takes at most 128 KiB."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 5000 if hard == resource.RLIM_INFINITY else min(hard, 5000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))
    try:
        with Target() as target:
            target.assert_serves()
            many_connections(target, min(3000, files - 500))
            target.assert_serves()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def many_connections(target: Target, count: int) -> None:
    before = target.reset_peak()
    begin = time.monotonic()
    request = zmessage([b"", *message(1)])
    peers = []
    try:
        for n in range(count):
            peers.append(target.dial())
            peers[n].send(request)
        for peer in peers:
            assert peer.hear() == ACCEPTED
        target.assert_serves()
        assert time.monotonic() - begin < PATIENCE
        grown = target.peak() - before
        assert grown < count * 128 * 1024
    finally:
        for peer in peers:
            peer.close()


@pytest.mark.slow
def test_slow_handshakes_do_not_block_others(target: Target) -> None:
    """300 connections never end their greeting, within 16 MiB."""
    before = target.reset_peak()
    begin = time.monotonic()
    peers = [Peer(socket.create_connection(("127.0.0.1", target.port))) for _ in range(300)]
    try:
        for byte in GREETING[:12]:
            for peer in peers:
                peer.send(bytes((byte,)))
        target.assert_serves()
        assert time.monotonic() - begin < PATIENCE
        assert target.peak() - before < 16 * MIB
    finally:
        for peer in peers:
            peer.close()


@pytest.mark.long
def test_half_a_handshake_is_cut_after_30_seconds(target: Target) -> None:
    """That is libzmq's own limit."""
    peer = Peer(socket.create_connection(("127.0.0.1", target.port)))
    peer.sock.settimeout(2 * PATIENCE)
    peer.send(GREETING[:20])
    peer.wait_closed()
    peer.close()


def test_connections_beyond_the_descriptors_do_no_harm() -> None:
    """Connected producers are served, and new ones when the others are gone, within 16 MiB."""
    with Target(files=64) as target, Producer(target.port) as producer:
        assert producer.ship(1) == [ACCEPTED]
        before = target.reset_peak()
        begin = time.monotonic()
        peers = []
        try:
            for _ in range(100):
                peers.append(Peer(socket.create_connection(("127.0.0.1", target.port))))
                peers[-1].send(GREETING)
            for n in range(100):
                assert producer.ship(n) == [ACCEPTED]
        finally:
            for peer in peers:
                peer.close()
        target.assert_serves()
        assert time.monotonic() - begin < PATIENCE
        assert target.peak() - before < 16 * MIB


def test_oversized_subscription_is_cut(target: Target) -> None:
    """One of 1 GiB or of 5,000 bytes ends its connection, within 16 MiB."""
    before = target.reset_peak()
    for data in (
        bytes((LONG,)) + struct.pack(">Q", 1 << 30) + b"\1" + bytes(MIB),
        zmessage([b"\1" + b"x" * 5000]),
        bytes((COMMAND | LONG,)) + struct.pack(">Q", 1 << 30) + b"\x09SUBSCRIBE",
    ):
        peer = target.dial(b"SUB", target.publish_port)
        peer.try_send(data)
        peer.wait_closed()
        peer.close()
    target.assert_serves()
    assert target.peak() - before < 16 * MIB


# -- at a consumer --------------------------------------------------------------------------------

SUBSCRIBER = """if 1:
    import json, sys
    import logclient.logjam
    (url,) = json.loads(sys.argv[1])
    def say(what): print(json.dumps(what), flush=True)
    with logclient.logjam.Subscriber(url, max_bytes=1 << 20) as subscriber:
        say("ready")
        for line in sys.stdin:
            message = subscriber.receive(float(line))
            say([None if message is None else message.sequence, subscriber.refused])
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 30_000])
def test_endless_publication_is_cut_and_reconnected(size: int) -> None:
    """The consumer waits for a message meanwhile, within 512 MiB."""
    with Server(b"PUB") as server, MeasuredProcess(SUBSCRIBER, f"tcp://127.0.0.1:{server.port}") as process:
        assert process.read() == "ready"
        peer = server.accept_handshake()
        peer.frame()  # its subscription
        before = process.reset_peak()
        begin = time.monotonic()
        process.write("20")
        endless(peer, size)
        peer.wait_closed()
        again = server.accept_handshake()
        again.frame()
        published = [APP_ENV, b"logs", b"{}", struct.pack(">HBBIQQ", 0xCABD, 0, 1, 3, 1, 7)]
        again.tell(published)
        assert process.read() == [7, {"frames: no end": 1}]
        assert time.monotonic() - begin < PATIENCE
        assert process.peak() - before < 512 * MIB
        again.tell([b"x"] * 1000, published)
        assert process.ask("20")[0] == 7
