"""The Logjam client with a server's replies, through a core with requests and pings in flight.

An input has the number of awaited replies (low four bits) with options (AGAIN, LOST), a mask of pings among
them, the number of bytes that arrive at a time (0: all), the number of the allocation that fails (0: none),
and the bytes. The results are compared with the reference in plain Python.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, check, enough_memory, pieces, read
from logclient._ext.constants import ACKED
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from logclient.delivery.contract import Reply
from logclient.logjam.core import Logjam
from tests.oracle import logjam as oracle
from tests.support import recordings
from tests.support.configs import config_for

EXTENSIONS = ("logjam",)
MAX_LEN = 6000  # a reply may have 4096 bytes

APP_ENV = b"shop-production"
AGAIN, LOST = 16, 32  # connect again and feed all bytes again; lose the connection before that
REPLY_BYTES, REPLY_FRAMES = 4096, 3
INFLIGHT = 16

DICTIONARY = [
    b"\x0f\x00\x00\x80" + APP_ENV, b"\x0c\x00\x00\x00202 Accepted", b"\x0f\x00\x00\x00400 Bad Request",
    b"\x04\x00\x00\x80ping", b"\x06\x00\x00\x80200 OK", b"\x04\x00\x00\x00host", b"\x00\x00\x00\x80",
    b"\x00\x00\x00\x00", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\xf8\x0f\x00\x00", b"\xfc\x0f\x00\x00",
    APP_ENV, b"shop-staging", b"ping", b"202 Accepted", b"400 Bad Request", b"200 OK",
]  # fmt: skip

ROOTS = (
    "client_receive", "client_deadline", "client_credit", "client_answers", "Codec.error", "Codec.pongs",
    "Codec.ping", "Codec.connected", "Codec.connection_lost",
)  # fmt: skip
APART = {
    **dict.fromkeys(("handing_room()", "handing_took()"), "of clients that ask for no replies"),
    "w.number = 1": "the message after 2**64 - 1: tests/logjam/test_logjam_core.py",
    "raise MemoryError": "an allocation of Python's",
    'raise ValueError(f"ping': "a caller's mistake, no input's: tests/logjam/test_logjam_core.py",
}

_SHAPE = "        if n[0] == REPLY_FRAMES or at + 4 + size > REPLY_LIMIT:\n"
PLANTS = (
    Plant("length", "_ext/logjam/client.pyx", "        if left - at - 4 < size:\n            return 0\n",
          "        if left - at - 3 < size:\n            return 0\n", (ASAN,)),
    Plant("allocation", "_ext/logjam/client.pyx", _SHAPE,
          _SHAPE.replace("or", "or wire_reserve(&w.packed, size) == NULL and False or"), (MEMORY,)),
    Plant("endless", "_ext/logjam/client.pyx",
          "        if left - at < 4:\n            return 0\n        head = lc_get_frame(p + at)",
          "        if left - at < 4:\n            continue\n        head = lc_get_frame(p + at)", (TIMEOUT,)),
)  # fmt: skip

GOOD, BAD = [APP_ENV, b"202 Accepted"], [APP_ENV, b"400 Bad Request"]
PONG, NO_PONG = [b"ping", b"200 OK", b"server.example"], [b"ping", b"400 Bad Request"]


def _input(
    awaited: int, pings: int, step: int, failing: int, *messages: list[bytes], rest: bytes = b""
) -> bytes:
    return bytes([awaited, pings, step, failing]) + b"".join(map(oracle.join, messages)) + rest


def seeds() -> Iterator[bytes]:
    """Yield every recorded reply, each kind in order and out of order, in pieces, and failing allocations."""
    for case in recordings.cases(recordings.LOGJAM):
        for parts in case["reply_frames_hex"]:
            reply = [bytes.fromhex(part) for part in parts]
            yield _input(2, 0, 0, 0, [APP_ENV, *reply[1:]], reply)
            yield _input(1, 1, 3, 0, reply)
    for step in (0, 1, 5, 40):
        yield _input(15, 0b1000010, step, 0, GOOD, PONG, BAD, *[GOOD] * 3, NO_PONG, *[BAD] * 3, *[GOOD] * 5)
        yield _input(3 | AGAIN, 2, step, 0, GOOD, PONG, BAD)
        yield _input(3 | AGAIN | LOST, 0, step, 0, GOOD, BAD, rest=oracle.join(GOOD)[:9])
        for failing in range(1, 10):
            yield _input(4, 2, step, failing, GOOD, PONG, BAD, GOOD)
    for wrong in (GOOD[::-1], [b"shop-staging", GOOD[1]], [*GOOD, b""], [APP_ENV], [APP_ENV, b"203"], PONG,
    NO_PONG,
                  [b""] * 4, [b"", b""], [b"x" * 4000, b"y" * 87], [b"x" * 4000, b"y" * 88],
                  [b"x" * 4093]):  # fmt: skip
        for awaited, pings in ((2, 0), (2, 1), (2, 3), (0, 0)):
            yield _input(awaited, pings, 0, 0, wrong, GOOD)
            yield _input(awaited, pings, 7, 0, wrong)
    yield _input(1, 1, 100, 0, [b"ping", b"200 OK", b"h" * 1500])  # kept in pieces, and given back
    for size in (1 << 30, 1 << 24, 4092, 4093, 0x7FFFFFFF):
        yield _input(1, 0, 0, 0, rest=struct.pack("<I", size))
        yield _input(1, 0, 0, 0, rest=oracle.join(GOOD)[:19] + struct.pack("<I", size) + b"x" * 20)


class _Reference:
    """The expected result of some bytes."""

    def __init__(self, waiting: list[int]) -> None:
        self.replies = oracle.Replies(APP_ENV, waiting)
        self.data = b""

    def feed(self, data: bytes) -> None:
        self.data += data
        while not self.replies.wrong:
            parts: list[bytes] = []
            at, more = 0, True
            while more:
                if len(self.data) - at < 4:
                    return
                (head,) = struct.unpack_from("<I", self.data, at)
                size, more = head & ~oracle.MORE, bool(head & oracle.MORE)
                if len(parts) == REPLY_FRAMES or at + 4 + size > REPLY_BYTES:
                    self.replies.wrong = True
                    return
                if len(self.data) - at - 4 < size:
                    return
                parts.append(self.data[at + 4 : at + 4 + size])
                at += 4 + size
            self.data = self.data[at:]
            self.replies.take(parts)


class _Requests:
    """Fifteen events that can be sent repeatedly."""

    def __init__(self) -> None:
        queue = EventQueue(max_bytes=1 << 20, max_event_bytes=1 << 16)
        for _ in range(15):
            queue.push(b'{"n":1}', 2, 1)
        self.in_flight = InflightBatches(queue)
        batch = self.in_flight.take(100, 1 << 20)
        assert batch is not None
        self.batch = batch

    def send(self, core: Logjam, awaited: int, pings: int) -> list[int]:
        """Send requests and pings; return the sequences (0: a ping)."""
        self.in_flight.requeue()
        waiting = []
        requests = 0
        for i in range(awaited):
            if pings >> i & 1:
                core.call("ping")
            else:
                if not core.codec.encode(self.batch.capsule, 1, 100.0):
                    break  # after a break, less is in flight
                self.in_flight.encoded(self.batch)
                requests += 1
            waiting.append(0 if pings >> i & 1 else requests)
        enough_memory(core.codec.answers())
        core.codec.take_bytes()
        return waiting


_requests = _Requests()


def run(data: memoryview) -> None:
    if len(data) < 4:
        return
    how, pings, step, failing = data[:4]
    core = Logjam(
        config_for("logjam", "/shop-production", compression="none", inflight=INFLIGHT), bytes(range(10))
    )
    for again in range(2 if how & AGAIN else 1):
        core.connected(100.0)
        check(not core.codec.deadline(), "nothing is awaited")
        if not _feed(core, how & 15, pings, data[4:], step, failing, fresh=not again):
            return
        if how & LOST:
            core.connection_lost()
            check(not core.codec.deadline(), "forgotten")


def _feed(
    core: Logjam, awaited: int, pings: int, data: memoryview, step: int, failing: int, fresh: bool
) -> bool:
    """Feed the bytes and compare; return False if an allocation failed."""
    waiting = _requests.send(core, awaited, pings)
    check(not fresh or len(waiting) == awaited, "a request is encoded")
    expected = _Reference(waiting)
    outcomes: dict[str, list[int]] = {"acked": [], "failed": []}
    hosts: list[str | None] = []
    errors: list[str] = []
    memory.fail_at(failing)
    try:
        for piece in pieces(data, step):
            enough_memory(core.codec.receive(piece, 101.0) if len(piece) else 0)
            expected.feed(bytes(piece))
            found, events = read(core)
            for seq, status, _ in found:
                outcomes["acked" if status == ACKED else "failed"].append(seq)
            hosts += [event.payload for event in events if isinstance(event, Reply)]
            errors += [str(event.error) for event in events if not isinstance(event, Reply)]
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        return False
    finally:
        memory.fail_at(0)
    want = expected.replies
    named = [None if host is None else host.decode("utf-8", "backslashreplace") for host in want.pongs]
    check(
        outcomes == {"acked": want.acked, "failed": want.rejected},
        "outcomes",
        outcomes,
        want.acked,
        want.rejected,
    )
    check(hosts == named, "pongs", hosts, named)
    check(len(errors) == int(want.wrong), "errors", errors, want.wrong)
    check(bool(core.codec.deadline()) == bool(want.waiting), "what is awaited", want.waiting)
    check((not core.codec.deadline()) == (not want.waiting), "the deadline")
    room = INFLIGHT - len(want.waiting)
    free = not want.wrong and (not want.waiting or room >= INFLIGHT // 4)
    credit = core.codec.credit(101.0)
    check(not fresh or credit == ((room, 1 << 20) if free else (0, 0)), "the credit", credit, room)
    return True
