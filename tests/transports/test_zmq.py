"""The ZeroMQ transport without an engine, and an engine over it with both pumps."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logclient
from logclient.config.parsing import parse
from logclient.delivery import engine as engine_module
from logclient.delivery.contract import find_frames, join_frames
from logclient.errors import CredentialError
from tests.cores import messages
from tests.cores.rig import Rig, Setup
from tests.cores.server import Peer, silent
from tests.support import transports
from tests.support.patience import PATIENCE
from tests.support.pumps import refuse_pump

zmq = pytest.importorskip("zmq")

from logclient.delivery.attempt import Attempt  # noqa: E402
from logclient.transports.zmq import RECEIVE, Zmq, ZmqLink  # noqa: E402
from tests.cores.router import RouterServer, Wire  # noqa: E402

SETUPS = [Setup("frames"), Setup("frames", True)]
MESSAGES = st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=6), max_size=8)


@pytest.fixture
def bound() -> Iterator[Callable[..., Any]]:
    """Makes sockets of a kind, with options, bound to a free port."""
    context = zmq.Context()
    sockets = []

    def make(kind: str, **options: Any) -> Any:
        sock = context.socket(getattr(zmq, kind))
        sockets.append(sock)
        sock.RCVTIMEO = int(PATIENCE * 1000)
        for name, value in options.items():
            setattr(sock, name, value)
        sock.bind("tcp://127.0.0.1:*")
        return sock

    yield make
    for sock in sockets:
        sock.close(0)
    context.term()


@pytest.fixture
def router(bound: Callable[..., Any]) -> Any:
    return bound("ROUTER", RCVHWM=10)


def port_of(bound: Any) -> int:
    return int(bound.LAST_ENDPOINT.rpartition(b":")[2])


# -- the form of messages -----------------------------------------------------------------------------


@given(MESSAGES)
def test_a_message_and_its_reply_travel(sent: list[list[bytes]]) -> None:
    data = b"".join(map(join_frames, sent))
    assert data == messages.join(sent)
    found = []
    at = 0
    while at < len(data):
        spans = find_frames(data, at)
        found.append([data[begin:end] for begin, end in spans])
        at = spans[-1][1]
    assert found == sent


# -- the link -----------------------------------------------------------------------------------------


def read_next(link: ZmqLink) -> bytes:
    """Return the next messages; an empty answer is the end of the connection."""
    for _ in range(1000):
        data = link.receive()
        if data is not None:
            return data
        link.wait(PATIENCE, False)
    raise AssertionError("nothing")


def test_many_messages_travel_both_ways(router: Any) -> None:
    link = transports.zmq(5.0).connect(("127.0.0.1", port_of(router)), Attempt())
    assert (link.peer, link.tls, link.facts()) == (f"127.0.0.1:{port_of(router)}", "", {})
    assert link.receive() is None
    last = memoryview(messages.join([[b"d" * 100_000]]))
    assert link.send([messages.join([[b"", b"a", b"b"], [b"c"]]), last])
    who, *frames = router.recv_multipart()
    assert frames == [b"", b"a", b"b"]
    assert [router.recv_multipart()[1:] for _ in range(2)] == [[b"c"], [b"d" * 100_000]]
    router.send_multipart([who, b"202", b""])
    assert read_next(link) == messages.join([[b"202", b""]])
    link.close()
    link.close()


def test_a_full_socket_takes_the_rest_later(router: Any) -> None:
    link = transports.zmq(5.0, hwm=10).connect(("127.0.0.1", port_of(router)), Attempt())
    body = b"x" * 10_000
    sent = 0
    while link.send([messages.join([[body, sent.to_bytes(4, "big")]])]):
        sent += 1
    for number in range(sent + 1):
        _, _, got = router.recv_multipart()
        assert got == number.to_bytes(4, "big")
        while number < sent and not router.poll(0):
            if link.flush():
                break
            link.wait(PATIENCE, True)
    link.close()


def test_the_end_of_the_peer_is_noticed(router: Any) -> None:
    wire = Wire(("127.0.0.1", port_of(router)))
    try:
        link = transports.zmq(5.0).connect(("127.0.0.1", wire.port), Attempt())
        link.send([messages.join([[b"a"]])])
        who, _ = router.recv_multipart()
        router.send_multipart([who, b"last"])
        assert read_next(link) == messages.join([[b"last"]])
        wire.cut()
        assert read_next(link) == b""
        link.close()
    finally:
        wire.close()


@pytest.mark.parametrize("kind", ["refused", "silent", "web", "publisher"])
def test_a_peer_without_zeromq_is_refused(kind: str, bound: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            with listener.accept()[0] as peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        if kind == "refused":
            listener.close()
        elif kind == "web":
            threading.Thread(target=answer, daemon=True).start()
        elif kind == "publisher":
            port = port_of(bound("PUB"))
        words = {
            "refused": "connection refused",
            "silent": r"no answer to the handshake in time|not a ZeroMQ socket",
            "web": "not a ZeroMQ socket",
            "publisher": "not a ZeroMQ socket",
        }
        with pytest.raises(OSError, match=words[kind]):
            transports.zmq(0.5 if kind == "silent" else 5.0).connect(("127.0.0.1", port), Attempt())


def test_connect_can_be_interrupted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(InterruptedError):
        transports.zmq(PATIENCE).connect(("127.0.0.1", listener.getsockname()[1]), Attempt(lambda: True))


def test_an_unknown_host_raises_os_error() -> None:
    with pytest.raises(OSError, match=r"not known|no address|name resolution"):
        transports.zmq(5.0).connect(("no such host", 1), Attempt())


def test_curve_needs_the_right_keys(bound: Callable[..., Any]) -> None:
    if not zmq.has("curve"):
        pytest.skip("this libzmq has no CURVE")
    server_public, server_secret = zmq.curve_keypair()
    public, secret = (key.decode() for key in zmq.curve_keypair())
    port = port_of(bound("ROUTER", curve_server=True, curve_secretkey=server_secret))
    transport = transports.zmq(5.0, curve=(server_public.decode(), public, secret))
    link = transport.connect(("127.0.0.1", port), Attempt())
    assert (link.tls, link.facts()) == ("CURVE", {"mechanism": "CURVE"})
    link.close()
    with pytest.raises(CredentialError, match="curve_server"):
        transports.zmq(5.0, curve=(public, public, secret)).connect(("127.0.0.1", port), Attempt())
    with pytest.raises(ConnectionError, match="wants CURVE keys"):
        transports.zmq(5.0).connect(("127.0.0.1", port), Attempt())


def test_close_lingers_until_messages_are_sent(bound: Callable[..., Any]) -> None:
    puller = bound("PULL", RCVHWM=1)
    push = transports.zmq(5.0, kind="PUSH", hwm=1000)
    link = push.connect(("127.0.0.1", port_of(puller)), Attempt())
    count = 0
    while count < 500 and link.send([messages.join([[b"x" * 20_000]])]):
        count += 1
    closer = threading.Thread(target=link.close, args=(PATIENCE,))
    closer.start()
    for _ in range(count):
        assert puller.recv() == b"x" * 20_000
    closer.join(PATIENCE)
    assert not closer.is_alive()


# -- the engine over it -------------------------------------------------------------------------------


class RecordedZmq(Zmq):
    """ZeroMQ with the pump that the test is about."""

    def __init__(self, compiled: bool) -> None:
        super().__init__(parse("logjam://127.0.0.1/a-b", connect_timeout=5.0))
        self._compiled = compiled

    def load_pump(self) -> Any:
        if not self._compiled:
            raise ImportError("the test is about the link")
        return super().load_pump()


@pytest.fixture(params=SETUPS, ids=str)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def build(**options: Any) -> Rig:
        setup = request.param
        rig = Rig(
            setup, tmp_path / "run", server=RouterServer(), transport=RecordedZmq(setup.compiled), **options
        )
        assert (rig.stats().pump == "compiled") is setup.compiled
        made.append(rig)
        return rig

    yield build
    for rig in made:
        if not rig.finished:
            rig.finish(0.5)


@pytest.mark.slow
def test_events_are_delivered_over_zmq(make: Callable[..., Rig]) -> None:
    rig = make()
    with rig.watched():
        rig.many(5000)
        stats = rig.settle()
    assert (stats.acked, stats.resent, stats.connects) == (5000, 0, 1)
    assert [got.seq for got in rig.server.events(5000)] == list(range(1, 5001))


@pytest.mark.slow
def test_cuts_lose_and_reorder_no_event(make: Callable[..., Rig]) -> None:
    rig = make(overflow="block", max_events=500)
    randomly = random.Random(7)

    def script(peer: Peer) -> None:
        if randomly.random() < 0.01:
            peer.cut()  # with requests behind it that were received and not answered
        else:
            peer.ack()

    rig.server.script = script
    rig.many(1500)
    stats = rig.settle()
    assert stats.acked == 1500 and stats.disconnects > 5 and stats.resent > 0
    first = list(dict.fromkeys(got.seq for peer in rig.server.peers for got in peer.got))
    assert first == list(range(1, 1501))


def test_a_cut_wakes_the_pump(make: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noticed neither at the pump's next turn nor by polling."""
    monkeypatch.setattr(engine_module, "TURN", 1000.0)
    rig = make()
    rig.server.script = lambda peer: peer.ack() if len(rig.server.peers) > 1 or len(peer.got) == 1 else None
    rig.put()
    rig.settle()
    rig.put()
    (peer,) = rig.server.peers
    rig.until(lambda s: len(peer.got) == 2)
    peer.cut()
    assert rig.settle().acked == 2


def test_an_unexpected_reply_ends_the_connection(make: Callable[..., Rig]) -> None:
    rig = make()

    def script(peer: Peer) -> None:
        peer.say(b"k" * (len(peer.waiting) + 3 * (len(rig.server.peers) == 1)))
        peer.waiting.clear()

    rig.server.script = script
    rig.put()
    rig.settle()
    rig.until(lambda s: s.disconnects == 1)
    rig.many(10)
    assert rig.settle().acked == 11


def test_an_oversized_reply_ends_the_connection(make: Callable[..., Rig]) -> None:
    rig = make()

    def script(peer: Peer) -> None:
        if len(rig.server.peers) == 1:
            server = rig.server
            assert isinstance(server, RouterServer)
            server.send(next(who for who, p in server.by_id.items() if p is peer), b"k" * RECEIVE)
        else:
            peer.ack()

    rig.server.script = script
    rig.put()
    stats = rig.settle()
    assert (stats.acked, stats.disconnects) == (1, 1)


def test_silence_ends_a_connection(make: Callable[..., Rig]) -> None:
    rig = make(silence=0.05)
    rig.server.script = silent
    rig.put()
    rig.until(lambda s: s.disconnects >= 2)
    rig.server.script = lambda peer: peer.ack()
    assert rig.settle().acked == 1


def test_a_forked_child_has_its_own_sockets(make: Callable[..., Rig]) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    rig = make()
    rig.many(100)
    rig.settle()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in range(50):
                rig.producer.put(b"child", 2, 0)
            code = 0 if rig.waiter.flush(PATIENCE) == 0 and rig.engine.stats().acked == 50 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    rig.many(100)
    assert rig.settle().acked == 200
    assert len({got.producer for peer in rig.server.peers for got in peer.got}) == 2
    rig.server.peers = [p for p in rig.server.peers if p.got[0].body != b"child"]


def test_a_forked_child_drops_its_parents_sockets_without_a_word(router: Any) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    transport = transports.zmq(5.0)
    link = transport.connect(("127.0.0.1", port_of(router)), Attempt())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(int(PATIENCE))  # ending ZeroMQ without its threads may wait for ever
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                link.abandon()
                del link, transport
                gc.collect()
            code = 2 if warned else 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert link.send([messages.join([[b"parent"]])])
    assert router.recv_multipart()[1:] == [b"parent"]
    link.close()


def test_the_compiled_pump_needs_the_same_libzmq() -> None:
    from logclient._ext.pump import ZmqPump

    with pytest.raises(ImportError, match="cannot be reached"):
        ZmqPump.find(None, None, "/no/such/library.so")  # type: ignore[arg-type]


# -- a frame that is refused --------------------------------------------------------------------------


class RefusingSocket:
    """A pyzmq socket that refuses one frame, as zmq_again.c does."""

    def __init__(self, sock: Any, refuse_at: int, error: int) -> None:
        self._sock = sock
        self._kept: list[Any] = []
        self._dropping = False
        self._sent = 0
        self.refuse_at, self.error = refuse_at, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send(self, frame: Any, flags: int = 0) -> Any:
        more = bool(flags & zmq.SNDMORE)
        self._sent += 1
        if self._sent - 1 == self.refuse_at:
            self.refuse_at = -1
            if self._kept:
                self._kept.clear()
                self._dropping = more
            raise zmq.Again(self.error)
        if self._dropping:
            self._dropping = more
            return None
        self._kept.append(bytes(frame))
        if not more:
            self._sock.send_multipart(self._kept, zmq.DONTWAIT)
            self._kept.clear()
        return None

    def send_multipart(self, frames: list[Any], flags: int) -> None:
        for place, frame in enumerate(frames):
            self.send(frame, flags | (zmq.SNDMORE if place < len(frames) - 1 else 0))


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """tests/zmq_again.c over pyzmq's own libzmq."""
    from zmq.backend.cython import _zmq

    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("no compiler for a libzmq of its own")
    with open("/proc/self/maps") as maps:
        real = {line.split()[-1] for line in maps if "libzmq" in line.rpartition("/")[2]}
    if len(real) != 1:
        pytest.skip("no libzmq in a file of its own")
    path = tmp_path_factory.mktemp("again") / "zmq_again.so"
    source = Path(__file__).with_name("zmq_again.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", path, source, "-Wl,--no-as-needed", *real, "-ldl"]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(path))
    library.path, library.real = str(path), real.pop().encode()
    assert _zmq.__file__
    return library


# EINTR: pyzmq tries again by itself.
@pytest.mark.parametrize(
    ("compiled", "error"),
    [(False, "EAGAIN"), (True, "EAGAIN"), (True, "EINTR")],
    ids=["Python", "C", "C-interrupted"],
)
@pytest.mark.parametrize("frame", range(8))
def test_a_refused_frame_is_not_sent_twice(
    frame: int, compiled: bool, error: str, again: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUSH promises at most once; a message refused in its middle has not been taken."""
    from zmq.backend import cython

    from logclient.testing.logjam import Collector

    number = getattr(errno, error)
    refuse_at = 4 * 25 + frame
    linked: list[RefusingSocket] = []
    if compiled:
        again.again_set(again.real, ctypes.c_long(refuse_at), number)
        monkeypatch.setattr(cython._zmq, "__file__", again.path)
    else:
        monkeypatch.setattr(Zmq, "load_pump", refuse_pump("a test needs the link in Python"))
        connect = Zmq.connect

        def wrapped(self: Zmq, *given: Any) -> ZmqLink:
            link = connect(self, *given)
            linked.append(RefusingSocket(link.socket, -1 if linked else refuse_at, number))
            link.socket = linked[-1]  # type: ignore[assignment]
            return link

        monkeypatch.setattr(Zmq, "connect", wrapped)
    with Collector(push_port=0, keep=True) as device:
        url = f"logjam+push://127.0.0.1:{device.push_port}/shop-production?backoff_max=0.01"
        client = logclient.connect(url, linger=0.05)
        for n in range(100):
            assert client.send({"n": n})
        assert client.flush(PATIENCE) == 0, client.stats()
        stats = client.stats()
        assert client.close(PATIENCE) == 0
        assert stats.handed == 100
        assert not again.again_left() if compiled else linked[0].refuse_at < 0
        broken = error == "EAGAIN" and frame % 4 > 0
        assert stats.connects == (2 if broken else 1)
        end = time.monotonic() + PATIENCE
        while 99 not in (got := [event["n"] for event in device.events()]) and time.monotonic() < end:
            time.sleep(0.005)
        # A break loses what ZeroMQ had taken and not written, as ever. What it has written on the broken
        # connection may be read after what came first on the next.
        first = refuse_at // 4 if broken else 0
        assert [n for n in got if n >= first] == list(range(first, 100))
        before = [n for n in got if n < first]
        assert before == sorted(set(before))
