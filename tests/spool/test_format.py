"""Files of a spool, sound and damaged: what the extension finds there equals a reader in plain Python."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient._ext.hash import xxh64
from logclient._ext.queue import EventQueue
from logclient._ext.spool import HEAD, SEGMENT, LogReader, Segments
from logclient.delivery.spool import owner_files
from logclient.delivery.spool.adoption import merged, without
from logclient.delivery.spool.owner_files import LOG_MAGIC, Head
from tests.spool.scene import NOBODY, Scene
from tests.support.patience import PATIENCE

PLACE, PLACES = 65536, 64
SETTLED, LEVELS = 0x80, 5
LAST_SEQUENCE = (1 << 48) - 1
EVENT = struct.Struct("=QqIBBH")
SIZES = (0, 7, 300, 5000, 40_000, 70_000, 200_000, 1_000_000)
PRODUCER = bytes(range(10))


class Chunk(NamedTuple):
    """Events of a chunk that wait: (sequence, body), and whether they are of `keep_level`."""

    events: list[tuple[int, bytes]]
    kept: bool


class Found(NamedTuple):
    """What a reader finds: the chunks in their order, and how many make no sense."""

    chunks: list[Chunk]
    damaged: int


def _events(data: bytes, at: int, end: int, last: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (where, sequence, level, body) as docs/formats.md has it."""
    while end - at >= EVENT.size:
        seq, _, size, level, _, _ = EVENT.unpack_from(data, at)
        room = EVENT.size + (size + 7) // 8 * 8
        if not last < seq <= LAST_SEQUENCE or room > end - at or level & ~SETTLED > LEVELS:
            return
        last = seq
        yield at, seq, level, data[at + EVENT.size : at + EVENT.size + size]
        at += room


def _read_segment(data: bytes, settled: set[int]) -> Found:
    chunks, damaged, place = [], 0, 0
    while place < PLACES:
        base = HEAD + place * PLACE
        (capacity,) = struct.unpack_from("=I", data, base + 8)
        (live,) = struct.unpack_from("=Q", data, base + 56)
        taken, rest = divmod(capacity + 64, PLACE)
        if not live:
            taken = 1
        elif rest or not 0 < taken <= PLACES - place:
            damaged += 1
            taken = 1
        else:
            begin, waiting, unused = base + 64, [], 0
            for _, seq, level, body in _events(data, begin, begin + capacity, live - 1):
                if level & SETTLED or seq in settled:
                    unused += EVENT.size + (len(body) + 7) // 8 * 8
                    if waiting and unused > 0xFFFF:
                        break
                else:
                    waiting.append((seq, body))
                    unused = 0
            if waiting:
                chunks.append(Chunk(waiting, data[base + 49] != 0))
        place += taken
    return Found(chunks, damaged)


def _in_order(found: list[Found]) -> Found:
    """Return the chunks by their first event, without those that begin before the end of another."""
    chunks: list[Chunk] = []
    damaged = sum(part.damaged for part in found)
    ends = {False: 0, True: 0}
    for chunk in sorted((c for part in found for c in part.chunks), key=lambda chunk: chunk.events[0][0]):
        if chunk.events[0][0] <= ends[chunk.kept]:
            damaged += 1
            continue
        ends[chunk.kept] = chunk.events[-1][0]
        chunks.append(chunk)
    return Found(chunks, damaged)


class Original(NamedTuple):
    """Files of a client that waits for its server."""

    segments: list[bytes]
    log: bytes


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    folder = tmp_path_factory.mktemp("original")
    options = {"spool_sync": "interval", "ledger": None, "spool_bytes": "12MiB", "keep_level": "ERROR"}
    with Scene(folder, **options) as scene, scene.client(NOBODY) as client:
        for n in range(300):
            body = b'"' + b"%d " % n * ((SIZES[n * n % 8] if n % 20 == 0 else SIZES[n % 4]) // 4) + b'"'
            last = client.submit(body, "ERROR" if n % 7 == 0 else "INFO")
        assert last.stored(PATIENCE)
        files = {path.name: path.read_bytes() for path in scene.spool.iterdir()}
        client.close(0.0)
    segments = [data for name, data in sorted(files.items()) if name.endswith(".seg")]
    (log,) = [data for name, data in files.items() if name.endswith(".log")]
    return Original(segments, log)


class Restored:
    """What the extension finds; a context manager.

    Attributes:
        pending: sequences of the events that wait.
        damaged: chunks that make no sense.
        queued: events.
    """

    def __init__(self, folder: Path, segments: list[bytes], settled: list[tuple[int, int]]) -> None:
        queue = EventQueue(max_event_bytes=SEGMENT, policy="drop_new")
        mapped = Segments(queue, str(folder), PRODUCER, bytes(16), os.getpid(), len(segments), True, 0)
        fds = []
        for number, data in enumerate(segments):
            path = folder / str(number)
            path.write_bytes(data)
            fds.append((number, os.open(path, os.O_RDWR)))
        try:
            self.pending, expired, self.damaged = mapped.restore(fds, settled, 0)
            assert expired == []
            self.queued = mapped.events
        finally:
            for _, fd in fds:
                os.close(fd)
            mapped.close()


def _check(folder: Path, segments: list[bytes], settled: list[tuple[int, int]]) -> Found:
    among = {seq for first, last in settled for seq in range(first, last + 1)}
    parts = [_read_segment(data, among) for data in segments]
    expected = _in_order(parts)
    restored = Restored(folder, segments, settled)
    waiting = merged((seq, seq) for part in parts for chunk in part.chunks for seq, _ in chunk.events)
    assert merged(restored.pending) == waiting
    assert restored.damaged == expected.damaged
    assert restored.queued == sum(len(chunk.events) for chunk in expected.chunks)
    return expected


def test_sound_files_have_every_event(original: Original, tmp_path: Path) -> None:
    found = _check(tmp_path, original.segments, [])
    assert sorted(seq for chunk in found.chunks for seq, _ in chunk.events) == list(range(1, 301))
    assert {chunk.kept for chunk in found.chunks} == {False, True}
    assert found.damaged == 0


def _targets(segments: list[bytes]) -> list[tuple[int, int]]:
    """Return where a reader looks: (segment, offset) of heads of chunks and of events."""
    found = []
    for number, data in enumerate(segments):
        for place in range(PLACES):
            base = HEAD + place * PLACE
            found += [(number, base + 8), (number, base + 49), (number, base + 56)]
            (live,) = struct.unpack_from("=Q", data, base + 56)
            if live:
                for at, *_ in _events(data, base + 64, base + PLACE, live - 1):
                    found += [(number, at), (number, at + 16), (number, at + 20)]
    return found


VALUES = st.one_of(
    st.integers(0, 400).map(lambda n: struct.pack("=Q", n)),
    st.integers(0, 8).map(lambda n: struct.pack("=I", n * PLACE - 64 if n else 0)),
    st.integers(0, 200_000).map(lambda n: struct.pack("=I", n)),
    st.binary(min_size=1, max_size=12),
    st.just(bytes(512)),
    st.just(b"\xff" * 8),
)
RANGES = st.lists(st.tuples(st.integers(1, 320), st.integers(0, 40)), max_size=4).map(
    lambda found: merged((first, first + more) for first, more in found)
)


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_segments_are_read_as_in_plain_python(
    data: Any, original: Original, tmp_path_factory: pytest.TempPathFactory
) -> None:
    segments = [bytearray(segment) for segment in original.segments]
    targets = _targets(original.segments)
    for _ in range(data.draw(st.integers(0, 6))):
        number, at = data.draw(st.sampled_from(targets))
        value = data.draw(VALUES)
        segments[number][at : at + len(value)] = value[: SEGMENT - at]
    settled = data.draw(RANGES)
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    _check(folder, [bytes(segment) for segment in segments], settled)


def _read_log(data: bytes, salt: int) -> dict[int, bytes]:
    """Return the events in the blocks that are whole, up to the first that is not."""
    at, found = 120, dict[int, bytes]()
    while len(data) - at >= 16:
        total, size, kind = struct.unpack_from("=QII", data, at)
        end = at + 16 + size
        if end > len(data) or size % 8 or xxh64(data[at + 8 : end], salt) != total:
            break
        if kind == 1:
            events = _events(data, at + 16, end, 0)
            found |= {seq: body for _, seq, level, body in events if not level & SETTLED}
        at = end
    return found


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_logs_are_read_as_in_plain_python(
    data: Any, original: Original, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = bytearray(original.log)
    head = Head.decode(original.log, LOG_MAGIC)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(120, len(log) - 1))
        if data.draw(st.booleans()):
            log[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del log[at:]
            break
    settled = data.draw(RANGES)
    expected = _read_log(bytes(log), head.salt)
    waiting = without(merged((seq, seq) for seq in expected), settled)
    folder = tmp_path_factory.getbasetemp() / "log"
    folder.mkdir(exist_ok=True)
    path = folder / "log"
    path.write_bytes(log)
    queue = EventQueue(max_event_bytes=SEGMENT, policy="drop_new")
    boot = owner_files.boot_id()
    (folder / f"{PRODUCER.hex()}.lock").touch()
    written = Segments(queue, str(folder), PRODUCER, boot, os.getpid(), 8, True, 0)
    fd = os.open(path, os.O_RDONLY)
    try:
        count = LogReader([(fd, len(log), head.salt)]).write(written, settled)
    finally:
        os.close(fd)
        written.close()
    made = sorted(folder.glob("*.seg"))
    found = {
        seq: body
        for segment in made
        for chunk in _read_segment(segment.read_bytes(), set()).chunks
        for seq, body in chunk.events
    }
    for segment in made:
        segment.unlink()
    assert count == len(found)
    assert merged((seq, seq) for seq in found) == waiting
    assert all(found[seq] == expected[seq] for seq in found)
