"""The Lumberjack writer with a reader's bytes, through a connected core with windows in flight.

An input has the number of windows in flight and of events in each (two bits, three bits), options (two more
bits), the number of bytes that arrive at a time (0: all), the number of the allocation that fails (0: none),
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
from logclient.lumberjack.core import Lumberjack
from tests.oracle import lumberjack as oracle
from tests.support import recordings
from tests.support.configs import config_for

EXTENSIONS = ("lumberjack",)
MAX_LEN = 600

AGAIN = 32  # lose the connection, connect again and feed all bytes again
LITERAL = 64  # running numbers (``strict_spec``)
DICTIONARY = [b"2A\0\0\0" + bytes([n]) for n in range(9)] + [
    b"1A\0\0\0\1",
    b"2A\xff\xff\xff\xff",
    b"2A",
    b"HTTP/1.1 400",
]

ROOTS = ("writer_receive", "writer_deadline", "writer_credit", "Codec.error", "Codec.connected",
"Codec.connection_lost",
         "Codec.windows", "Codec.limit")  # fmt: skip
_TIMES = "times of round trips, which no input has: tests/lumberjack/test_lumberjack_limit.py"
APART = dict.fromkeys(("limit_decide()", "limit_start()"), _TIMES)
_NUMBER = "        if number > window.n:\n            w.wrong_window"
PLANTS = (
    Plant("length", "_ext/lumberjack/writer.pyx", _NUMBER, _NUMBER.replace("window.n:", "window.n + 1:"),
          (ASAN, TIMEOUT, "outcomes")),
    Plant("allocation", "_ext/lumberjack/writer.pyx", _NUMBER,
          _NUMBER.replace("if", "if wire_reserve(&w.raw, number) == NULL and False or"), (MEMORY,)),
    Plant("endless", "_ext/lumberjack/writer.pyx", "        data += some\n",
          "        data += some if w.partial[5] else 0\n",
          (TIMEOUT,)),
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Yield every recorded answer, and acks in order and out of order."""
    for case in recordings.cases(recordings.LUMBERJACK):
        data = bytes.fromhex(case["reader_hex"])
        for step in (0, 1):
            yield bytes([2 | 3 << 2, step, 0]) + data[:500]
    for windows in range(4):
        for events in range(8):
            for step in (0, 1, 5):
                acks = [0, 1, events + 1, 1, events + 1, events + 1, events + 2]
                data = b"".join(b"2A" + struct.pack(">I", ack) for ack in acks)
                yield bytes([windows | events << 2, step, 0]) + data
                yield bytes([windows | events << 2 | AGAIN, step, 0]) + data[: 6 * (events + 1)]
                yield bytes([windows | events << 2 | AGAIN, step, 1 + events % 3]) + data
                running = [1, 0, 1, events + 1, 2 * events + 2, events, 3 * events + 3, 25]
                data = b"".join(b"1A" + struct.pack(">I", ack) for ack in running)
                yield bytes([windows | events << 2 | LITERAL, step, 0]) + data
                yield bytes([windows | events << 2 | LITERAL | AGAIN, step, events % 4]) + data[: 6 * windows]
    for data in (b"2", b"2X", b"3A", b"HTTP/1.1", b"2A\0\0\0", b"\0" * 6):
        yield bytes([1, 0, 0]) + data
        yield bytes([1, 1, 0]) + data


class _Events:
    """Events that can be sent repeatedly, one of which has failed."""

    def __init__(self) -> None:
        queue = EventQueue(max_bytes=1 << 20, max_event_bytes=1 << 16)
        for _ in range(33):
            queue.push(b'{"n":1}', 2, 1)
        self.in_flight = InflightBatches(queue)
        batch = self.in_flight.take(100, 1 << 20)
        assert batch is not None
        self.batch = batch
        batch.mark(6, 4)
        self.in_flight.encoded(batch)

    def send(self, core: Lumberjack, windows: int, events: int) -> list[list[int]]:
        """Send `windows` windows of `events` events; return the sequences in each."""
        self.in_flight.requeue()
        left = [seq for seq in range(1, 34) if seq != 6]
        sent = []
        for _ in range(windows):
            if core.codec.credit(100.0)[0] == 0:
                break  # after a break, windows are sent one at a time
            # After a break, windows are smaller.
            count = core.codec.encode(self.batch.capsule, events, 100.0)
            check(0 < count <= events, "a window is encoded")
            self.in_flight.encoded(self.batch)
            sent.append(left[:count])
            del left[:count]
        core.codec.take_bytes()
        return sent


_events = _Events()


def run(data: memoryview) -> None:
    if len(data) < 3:
        return
    how, step, failing = data[:3]
    literal = bool(how & LITERAL)
    core = Lumberjack(
        config_for("lumberjack", strict_spec=literal, window=10, inflight=4, compression=0),
        bytes(range(10)),
    )
    core.connected(100.0)
    windows, events = how & 3, (how >> 2 & 7) + 1
    if not _feed(core, literal, windows, events, data[3:], step, failing) or not how & AGAIN:
        return
    out = core.codec.windows
    core.connection_lost()
    check(not core.codec.windows and not core.codec.deadline(), "forgotten")
    check(core.codec.limit == (1 if out > 1 else 4), "careful", core.codec.limit, out)
    core.connected(100.0)
    _feed(core, literal, windows, events, data[3:], step, failing)


def _feed(
    core: Lumberjack, literal: bool, windows: int, events: int, data: memoryview, step: int, failing: int
) -> bool:
    """Feed the bytes and compare; return False if an allocation failed."""
    sent = _events.send(core, windows, events)
    expected: oracle.Acks | oracle.RunningAcks
    if literal:
        expected = oracle.RunningAcks()
        expected.send([sequence for sequences in sent for sequence in sequences])
    else:
        expected = oracle.Acks()
        expected.windows = [(sequences, 0) for sequences in sent]
    acked: list[int] = []
    errors: list[str] = []
    broken = False
    memory.fail_at(failing)
    try:
        for piece in pieces(data, step):
            enough_memory(core.codec.receive(piece, 101.0) if len(piece) else 0)
            if not broken:
                try:
                    expected.feed(bytes(piece))
                except oracle.BrokenError:
                    broken = True
            outcomes, events_ = read(core)
            check({status for _, status, _ in outcomes} <= {ACKED}, "an outcome", outcomes)
            acked += [seq for seq, _, _ in outcomes]
            errors += [str(event.error) for event in events_]
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        return False
    finally:
        memory.fail_at(0)
    check(acked == expected.acked, "outcomes", acked, expected.acked)
    check(len(errors) == broken, "errors", errors, broken)
    left = len([sequences for sequences in sent if sequences[-1] not in expected.acked])
    check(core.codec.windows == left, "windows", core.codec.windows, left)
    check((not core.codec.deadline()) == (not left), "the deadline")
    return True
