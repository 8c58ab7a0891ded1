"""A Logjam producer by hand, for the tests of the device and of the consumer."""

from __future__ import annotations

import json
import re
import struct
from types import TracebackType
from typing import Any

import pytest

from tests.cores.sink import Arrived
from tests.support.measured_process import MeasuredProcess
from tests.support.patience import PATIENCE

zmq = pytest.importorskip("zmq")

from logclient.testing.logjam import Collector  # noqa: E402

DEADLINE = int(PATIENCE * 1000)  # ms
NOW = 1_795_155_232_892
PRODUCER = "0a" * 10
APP_ENV, TOPIC = b"shop-production", b"logs.shop.production"
ACCEPTED, REFUSED = [APP_ENV, b"202 Accepted"], [APP_ENV, b"400 Bad Request"]

Frames = list[bytes]


def name(sequence: int, producer: str = PRODUCER) -> str:
    return f"{producer}{sequence:012x}"


def event(sequence: int, producer: str = PRODUCER, **more: object) -> bytes:
    """A document as our producer carries it."""
    text = json.dumps({"message": f"line {sequence}", **more}, separators=(",", ":"))
    return f'{text[:-1]},"request_id":"{name(sequence, producer)}"}}'.encode()


def meta(sequence: int = 1, method: int = 0, created_ms: int = NOW, tag: int = 0xCABD) -> bytes:
    return struct.pack(">HBBIQQ", tag, method, 1, 0, created_ms, sequence)


def message(body: bytes | int, method: int = 0, topic: bytes = TOPIC) -> Frames:
    """The four frames of a data message: an event's number, or its body."""
    if isinstance(body, int):
        return [APP_ENV, topic, event(body), meta(body, method)]
    return [APP_ENV, topic, body, meta(1, method)]


class Producer:
    """A socket on one connection: when that is lost there is no other."""

    def __init__(self, port: int | None, kind: int = zmq.DEALER, **options: Any) -> None:
        self.context = zmq.Context()
        self.sock = self.context.socket(kind)
        self.sock.setsockopt(zmq.RECONNECT_IVL, -1)
        self.sock.setsockopt(zmq.LINGER, 0)
        for option, value in options.items():
            self.sock.setsockopt(getattr(zmq, option), value)
        self._monitor = self.sock.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.sock.connect(f"tcp://127.0.0.1:{port}")

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.context.destroy(linger=0)

    def tell(self, frames: Frames) -> None:
        self.sock.send_multipart(frames)

    def ask(self, frames: Frames) -> None:
        self.sock.send_multipart([b"", *frames])

    def reply(self) -> Frames:
        if not self.sock.poll(DEADLINE):
            raise TimeoutError("no reply")
        return self.sock.recv_multipart()

    def ship(self, *bodies: bytes | int) -> list[Frames]:
        """Requests in one go, and the answers to them."""
        for body in bodies:
            self.ask(message(body))
        return [self.reply() for _ in bodies]

    def silent(self) -> bool:
        """Nothing has come so far: for when something else has shown that nothing can."""
        return not self.sock.poll(50)

    def cut(self) -> bool:
        """The connection is lost (waits for it)."""
        return bool(self._monitor.poll(DEADLINE))

    def connected(self) -> bool:
        return not self._monitor.poll(0)


class DeviceSink(Arrived):
    """A device that forgets nothing, for processes under test that end by themselves."""

    ID = re.compile(rb'"request_id":"([0-9a-f]{20})([0-9a-f]{12})"')

    def __init__(self, scheme: str = "logjam") -> None:
        super().__init__()
        self._device = Collector(keep=True, heartbeat=0.01)
        self._scheme = scheme

    @property
    def url(self) -> str:
        device = self._device
        return f"{device.push_url if self._scheme == 'logjam+push' else device.url}/shop-production"

    @staticmethod
    def message(body: bytes) -> str:
        return str(json.loads(body)["lines"][0][2])

    def __enter__(self) -> DeviceSink:
        self._device.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._drain()
        finally:
            self._device.stop()
        for document in self._device.events():
            body = json.dumps(document, separators=(",", ":")).encode()
            found = self.ID.search(body)
            assert found is not None, body
            self.got.setdefault(found[1].decode(), []).append((int(found[2], 16), body))
        if self._scheme == "logjam+push":  # of several connections it promises no order
            for arrived in self.got.values():
                arrived.sort()

    def _drain(self) -> None:
        """Nobody is connected any more, and two turns (each may bring a heartbeat) have found nothing."""
        assert self._device.wait_for(lambda counts: counts.open == 0)
        before, now = -1, self._device.counts
        while now.messages != before:
            before, beats = now.messages, now.heartbeats + 2
            assert self._device.wait_for(lambda counts, beats=beats: counts.heartbeats >= beats)
            now = self._device.counts


class DeviceProcess(MeasuredProcess):
    """A device in a process of its own; to any line it answers with its counts and its reasons.

    Args:
        files: how many it may have open; 0: as many as we.
        options: of the `Collector`.
    """

    PROGRAM = """if 1:
        import json, sys
        from logclient.testing.logjam import Collector
        files, options = json.loads(sys.argv[1])
        if files:
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        def say(what): print(json.dumps(what), flush=True)
        with Collector(**options) as collector:
            say([collector.port, collector.push_port, collector.publish_port])
            for line in sys.stdin:
                say([collector.counts.as_dict(), collector.reasons])
    """

    def __init__(self, files: int = 0, **options: Any) -> None:
        super().__init__(self.PROGRAM, files, options)
        self.port, self.push_port, self.publish_port = self.read()
