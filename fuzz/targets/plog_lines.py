"""plog over TCP: events encoded as lines, and handed over as the kernel takes the bytes.

An input consists of a byte of options, the largest message in units of 8 bytes (0: the default), the number
of the allocation that fails (0: none), and events. Each event has a byte for its kind and a length, u16
little-endian, before its body. `Codec` encodes them in one batch. The reference in plain Python returns the
bytes, the outcome of each event, and the events that are handed over after each part of the bytes.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, check, use_compiled_hashes
from logclient._ext.constants import K_BYTES, K_DOCUMENT, K_RAW
from logclient._ext.hash import xxh64
from logclient._ext.inflight import InflightBatches
from logclient._ext.plog import Codec
from logclient._ext.queue import EventQueue
from tests.oracle import plog as oracle

EXTENSIONS = ("plog",)
MAX_LEN = 2048

PRODUCER = bytes(range(10))
KINDS = (K_RAW, K_BYTES, K_DOCUMENT, K_RAW | oracle.TAGGED)
# Bits of the options.
IDENTITY = 1
TRUSTED = 2  # the codec does not check bodies, and all of them are JSON objects without an id
SMALL_BATCHES = 4  # a call encodes about 64 bytes
FAIL_HANDING = 8  # the allocation fails while events are handed over, not while they are encoded

sys.setrecursionlimit(20_000)  # the reference's JSON parser recurses as deep as ours
use_compiled_hashes(oracle, xxh64=xxh64)

ID = PRODUCER.hex().encode() + b"00000000002a"
DICTIONARY = [
    b"\n", b"\r", b"\r\n", b"{}", b'{"uuid":"', b'"}', ID, b'"uuid":', b"null", b"\\n", b"\x00", b"\x01",
    b"\x10\x00", b"\xff\xff",
]  # fmt: skip

ROOTS = ("lines_encode", "lines_receive", "plog_sent")
APART: dict[str, str] = {}
_RESERVE = "wire_reserve(wire, size + TAIL_SIZE + SCAN_PAD + 1)"
_TAKEN = "        h.head = h.head + 1 if h.head + 1 < h.room else 0\n        h.count -= 1\n"
_LINE_END = "memchr(p, c'\\n', done)"
PLANTS = (
    Plant("length", "_ext/plog/client.pyx", _RESERVE, "wire_reserve(wire, size + 1)", (ASAN,)),
    Plant("allocation", "_ext/plog/client.pyx", _RESERVE,
          "wire_reserve(wire, (size << 16) + TAIL_SIZE + SCAN_PAD + 1)", (MEMORY,)),
    Plant("line_end", "_ext/plog/client.pyx", _LINE_END, "memchr(p, c'\\n', done - 1)", (ASAN, "outcomes")),
    Plant("endless", "_ext/codec.pxd", _TAKEN, "        h.head += 0\n        h.count -= 0\n",
          (TIMEOUT, MEMORY)),
)  # fmt: skip


def _event(body: bytes, kind: int = 0) -> bytes:
    return bytes([kind]) + len(body).to_bytes(2, "little") + body


def seeds() -> Iterator[bytes]:
    """Yield documents of each kind, line ends at each place, limits, and failing allocations."""
    from fuzz.targets.logjam_decoder import BODIES

    documents = [body.replace(b"request_id", b"uuid") for body in BODIES if len(body) < 600]
    for number, body in enumerate(documents):
        for options in (0, IDENTITY, IDENTITY | SMALL_BATCHES):
            events = _event(body, number % 4) + _event(body + b"\n") + _event(b"x" * (number % 70), 1)
            yield bytes([options, number % 30, 0]) + events
    lines = [b"", b"\n", b"\r", b"a\nb", b"a\r\n", b"a\rb", b"{}", b"{}\r", b" {} ", b'{"a":"\n"}']
    lines.append(b"x" * 500)
    every = b"".join(_event(line, kind) for line in lines for kind in range(4))
    for options in range(16):
        for failing in range(8):
            yield bytes([options, failing * 3, failing]) + every
            yield bytes([options, 0, failing]) + _event(b'{"uuid":"own"}') + _event(b'{"a":1}', 2) * 3


def _parse(data: bytes, trusted: bool) -> list[tuple[bytes, int]]:
    """Cut the bytes of an input into bodies with their kinds."""
    events: list[tuple[bytes, int]] = []
    at = 0
    while len(data) - at >= 3 and len(events) < 100:
        kind, size = KINDS[data[at] & 3], int.from_bytes(data[at + 1 : at + 3], "little")
        body = data[at + 3 : at + 3 + size]
        at += 3 + size
        if trusted:
            kind = K_RAW
            body = b'{"text":%s}' % json.dumps(body.decode("latin-1")).encode() if body else b" {} "
        events.append((body, kind))
    return events


def run(data: memoryview) -> None:
    """Run one input."""
    if len(data) < 3:
        return
    options, limit, failing = data[:3]
    identity, trusted = bool(options & IDENTITY), bool(options & TRUSTED)
    events = _parse(bytes(data[3:]), trusted)
    if not events:
        return
    most = limit * 8 or 262144
    codec = Codec(
        PRODUCER, lines=True, identity=identity, check=not trusted, max_message=most, packets=0.0, size=0.0,
        batch_bytes=64 if options & SMALL_BATCHES else 1 << 20,
    )  # fmt: skip
    codec.connected(0.0)
    wire, results = oracle.encode_lines(events, PRODUCER, most=most, identity=identity)
    _encode(codec, events, wire, results, 0 if options & FAIL_HANDING else failing)
    _hand_over(codec, wire, results, failing if options & FAIL_HANDING else 0)
    check(codec.receive(b"no answer", 1.0) == 0, "a peer that answers is ignored")


def _encode(
    codec: Codec, events: list[tuple[bytes, int]], wire: bytes, results: list[oracle.Line], failing: int
) -> None:
    """Encode all events, again after a failed allocation, and compare the bytes and outcomes."""
    queue = EventQueue(max_bytes=1 << 24, max_event_bytes=1 << 16)
    for body, kind in events:
        check(queue.push(body, 2, kind) > 0, "an event is queued", body)
    in_flight = InflightBatches(queue)
    batch = in_flight.take(len(events), 1 << 24)
    assert batch is not None
    reasons: dict[int, str] = {}
    hashes: dict[int, int] = {}
    now = 0.0
    memory.fail_at(failing)
    try:
        while batch.pending():
            now += 1.0
            done = codec.encode(batch.capsule, len(events), now)
            check(done >= 0 or failing, "no memory, although no allocation failed", done)
            hashes |= {seq: hash_ for seq, hash_ in batch.hashes().items() if hash_}
            in_flight.encoded(batch)
            for first, last, _, reason in in_flight.take_report():
                reasons |= dict.fromkeys(range(first, last + 1), reason)
    finally:
        memory.fail_at(0)
    got = codec.take_bytes()
    check(got == wire, "bytes", got, wire)
    want = {seq: one.reason for seq, one in enumerate(results, 1) if one.reason}
    check(reasons == want, "outcomes", reasons, want)
    want_hashes = {seq: one.hash for seq, one in enumerate(results, 1) if one.hash}
    check(hashes == want_hashes, "hashes", hashes, want_hashes)


def _hand_over(codec: Codec, wire: bytes, results: list[oracle.Line], failing: int) -> None:
    """Let the kernel take the bytes in three parts, and compare the events that are handed over."""
    handed = array("Q")
    half = len(wire) // 2
    taken = 0
    for more in (0, half, len(wire) - half):
        memory.fail_at(failing)
        codec.sent(more)
        memory.fail_at(0)
        codec.sent(0)  # again, for events that a failed allocation has left
        for first, last, *_ in codec.outcomes()[0]:
            handed.extend(range(first, last + 1))
        taken += more
        want = [seq for seq, one in enumerate(results, 1) if not one.reason and one.end <= taken]
        check(handed.tolist() == want, "handed over", handed, want)
