"""Files of a spool, sound and damaged: what the extension finds there equals a reader in plain Python."""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient._ext.constants import ACKED, FAILED, INFLIGHT, K_TOMB, R_CLOSED, R_COUNT, STORED
from logclient._ext.hash import xxh64
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from logclient._ext.spool import HEAD, SEGMENT, Segments
from logclient.delivery.spool import owner_files
from logclient.delivery.spool.events import LogEvents, read_journal, read_segment, waiting
from logclient.delivery.spool.owner_files import LOG_MAGIC, Head, read_orphan
from logclient.files.ledger import merged, without
from tests.spool.scene import NOBODY, Scene
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.slow

PLACE, PLACES = 65536, 64
SETTLED, LEVELS = 0x80, 5
LAST_SEQUENCE = (1 << 48) - 1
EVENT = struct.Struct("=QqIBBH")
LOG_HEAD = 120

Fields = dict[str, tuple[int, int]]
"""Names of the fields of a structure: where each begins, and its bytes."""

FILE_FIELDS: Fields = {
    "magic": (0, 8), "order": (8, 4), "version": (12, 4), "boot": (16, 16), "producer": (32, 16),
    "device": (48, 8), "inode": (56, 8), "number": (64, 4), "head": (68, 4), "size": (72, 4),
    "chunk": (76, 4), "always": (80, 8), "pid": (88, 8), "salt": (96, 8), "created_us": (104, 8),
    "sum": (112, 8),
}  # fmt: skip
JOURNAL_FIELDS: Fields = {"n": (0, 8), "full": (8, 8), "unspooled": (16, 8)}
OUTCOME_FIELDS: Fields = {
    "first": (0, 8), "last": (8, 8), "status": (16, 1), "reason": (17, 1), "pad": (18, 6)
}  # fmt: skip
CHUNK_FIELDS: Fields = {
    "next": (0, 8), "capacity": (8, 4), "used": (12, 4), "read": (16, 4), "last": (20, 4), "count": (24, 4),
    "owners": (28, 4), "place": (32, 4), "logged": (36, 4), "log_before": (40, 4), "log_behind": (44, 4),
    "size_class": (48, 1), "kept": (49, 1), "stays": (50, 1), "to_log": (51, 1), "pad": (52, 4),
    "live": (56, 8),
}  # fmt: skip
EVENT_FIELDS: Fields = {
    "seq": (0, 8), "created_us": (8, 8), "size": (16, 4), "level": (20, 1), "kind": (21, 1), "pad": (22, 2)
}  # fmt: skip
BLOCK_FIELDS: Fields = {"sum": (0, 8), "size": (8, 4), "kind": (12, 4)}
OWN = [name for name in CHUNK_FIELDS if name not in ("capacity", "kept", "live")]
"""Of the head of a chunk, what no reader may use."""
SIZES = (0, 7, 300, 5000, 40_000, 70_000, 200_000, 1_000_000)
PRODUCER = bytes(range(10))


class Chunk(NamedTuple):
    """Events of a chunk that wait: (sequence, body), and whether they are of `keep_level`.

    `fault`: something that makes no sense is behind its last event.
    """

    events: list[tuple[int, bytes]]
    kept: bool
    fault: bool = False


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


def _chunks(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield (where its head is, capacity, whether that is possible) of each chunk."""
    place = 0
    while place < PLACES:
        base = HEAD + place * PLACE
        (capacity,) = struct.unpack_from("=I", data, base + 8)
        taken, rest = divmod(capacity + 64, PLACE)
        possible = not rest and 0 < taken <= PLACES - place
        live = any(data[base + 56 : base + 64])
        if live:
            yield base, capacity, possible
        place += taken if live and possible else 1


def _chunk_events(data: bytes, base: int, capacity: int) -> Iterator[tuple[int, int, int, bytes]]:
    (live,) = struct.unpack_from("=Q", data, base + 56)
    return _events(data, base + 64, base + 64 + capacity, live - 1)


def _read_segment(data: bytes, settled: set[int]) -> Found:
    chunks, damaged = [], 0
    for base, capacity, possible in _chunks(data):
        if not possible:
            damaged += 1
            continue
        waiting, unused, end = [], 0, base + 64
        for at, seq, level, body in _chunk_events(data, base, capacity):
            room = EVENT.size + (len(body) + 7) // 8 * 8
            if level & SETTLED or seq in settled:
                unused += room
                if waiting and unused > 0xFFFF:
                    break
            else:
                waiting.append((seq, body))
                unused = 0
            end = at + room
        fault = base + 64 + capacity - end >= 8 and any(data[end : end + 8])
        damaged += fault
        if waiting:
            chunks.append(Chunk(waiting, data[base + 49] != 0, fault))
    return Found(chunks, damaged)


def _check_reader(segments: list[bytes], settled: list[tuple[int, int]]) -> None:
    """What the reader for people finds equals what is found here."""
    events = []
    among = {seq for first, last in settled for seq in range(first, last + 1)}
    sizes: dict[int, set[int]] = {}
    last = 0
    for data in segments:
        faults: list[tuple[int, int | None]] = []
        for base, capacity, possible in _chunks(data):
            if not possible:
                faults.append((base, capacity))
                continue
            end = base + 64
            for at, seq, level, body in _chunk_events(data, base, capacity):
                end = at + EVENT.size + (len(body) + 7) // 8 * 8
                last = max(last, seq)
                if not level & SETTLED and seq not in among:
                    sizes.setdefault(seq, set()).add(len(body))
            if base + 64 + capacity - end >= 8 and any(data[end : end + 8]):
                faults.append((end, None))
        some, found_faults = read_segment(data)
        assert found_faults == faults
        events += some
    found = waiting(((e.seq, e.created_us, e.size) for e in events if not e.settled), settled, itemgetter(0))
    assert [seq for seq, _, _ in found] == sorted(sizes)
    assert all(size in sizes[seq] for seq, _, size in found)
    assert max((event.seq for event in events), default=0) == last


def _in_order(found: list[Found]) -> Found:
    """Return the chunks by their first event, without those that begin before the end of another."""
    chunks: list[Chunk] = []
    damaged = sum(part.damaged for part in found)
    ends = {False: 0, True: 0}
    for chunk in sorted((c for part in found for c in part.chunks), key=lambda chunk: chunk.events[0][0]):
        if chunk.events[0][0] <= ends[chunk.kept]:
            damaged += not chunk.fault
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
    """What the extension finds, and that all of it can be sent.

    Attributes:
        pending: sequences of the events that wait.
        damaged: chunks that make no sense.
        queued: events.
        failed: how many were taken with an outcome already, by reason.
    """

    def __init__(
        self, folder: Path, segments: list[tuple[int, bytes]], settled: list[tuple[int, int]]
    ) -> None:
        queue = EventQueue(max_event_bytes=SEGMENT, policy="drop_new")
        most = segments[-1][0] + 1
        mapped = Segments(queue, str(folder), PRODUCER, bytes(16), os.getpid(), most, True, 0)
        fds = []
        for number, data in segments:
            path = folder / str(number)
            path.write_bytes(data)
            fds.append((number, os.open(path, os.O_RDWR)))
        try:
            self.pending, expired, self.damaged = mapped.restore(fds, settled, 0, -(1 << 63))
            assert expired == []
            self.queued = mapped.events
            self.drain(queue)
            assert (mapped.events, mapped.is_used) == (0, False)
            self.failed: dict[str, int] = queue.counters()["failed"]
        finally:
            for _, fd in fds:
                os.close(fd)
            mapped.close()

    @staticmethod
    def drain(queue: EventQueue) -> None:
        """Take all events, give them an outcome, and free their chunks."""
        in_flight = InflightBatches(queue)
        in_flight.adopt(0)
        while in_flight.take(100, SEGMENT) is not None:
            in_flight.fail(R_CLOSED)
            in_flight.commit()


def _check(folder: Path, segments: list[bytes], settled: list[tuple[int, int]]) -> Found:
    _check_reader(segments, settled)
    among = {seq for first, last in settled for seq in range(first, last + 1)}
    parts = [_read_segment(data, among) for data in segments]
    expected = _in_order(parts)
    restored = Restored(folder, list(enumerate(segments)), settled)
    waiting = merged((seq, seq) for chunk in expected.chunks for seq, _ in chunk.events)
    assert merged(restored.pending) == waiting
    assert restored.damaged == expected.damaged
    assert restored.queued == sum(len(chunk.events) for chunk in expected.chunks)
    return expected


def test_sound_files_have_every_event(original: Original, tmp_path: Path) -> None:
    found = _check(tmp_path, original.segments, [])
    assert sorted(seq for chunk in found.chunks for seq, _ in chunk.events) == list(range(1, 301))
    assert {chunk.kept for chunk in found.chunks} == {False, True}
    assert found.damaged == 0


def test_bytes_of_an_earlier_body_are_no_event(tmp_path: Path) -> None:
    """A body may hold what looks like the head of an event, and its place is used again."""
    forged = EVENT.pack(LAST_SEQUENCE, 1, 0, LEVELS, 1, 0)
    (tmp_path / f"{PRODUCER.hex()}.lock").touch()
    queue = EventQueue(max_event_bytes=SEGMENT, policy="drop_new")
    mapped = Segments(queue, str(tmp_path), PRODUCER, bytes(16), os.getpid(), 1, True, 0)
    try:
        mapped.grow()
        assert queue.push(forged * 100) == 1
        Restored.drain(queue)
        body = bytes(EVENT.size)  # behind it lies a whole forged head
        assert queue.push(body) == 2
        (segment,) = (path.read_bytes() for path in tmp_path.glob("*.seg"))
    finally:
        mapped.close()
    assert forged in segment
    assert _read_segment(segment, set()).chunks == [Chunk([(2, body)], False)]


def _two_chunks(folder: Path) -> bytearray:
    """Return a segment with 100 events of 1,000 bytes, in two chunks."""
    (folder / f"{PRODUCER.hex()}.lock").touch()
    queue = EventQueue(max_event_bytes=SEGMENT, policy="drop_new")
    mapped = Segments(queue, str(folder), PRODUCER, bytes(16), os.getpid(), 1, True, 0)
    mapped.grow()
    for _ in range(100):
        queue.push(bytes(1000))
    (segment,) = (path.read_bytes() for path in folder.glob("*.seg"))
    Restored.drain(queue)
    mapped.close()
    return bytearray(segment)


def test_what_is_behind_a_damaged_event_is_said_to_be_damaged(tmp_path: Path) -> None:
    """Otherwise these events would be dropped ones, of an owner who had no time to say so."""
    segment = _two_chunks(tmp_path)
    base, capacity, _ = next(_chunks(segment))
    at = next(at for at, seq, *_ in _chunk_events(segment, base, capacity) if seq == 30)
    segment[at + EVENT_FIELDS["level"][0]] = 0x7F
    assert read_segment(bytes(segment))[1] == [(at, None)]
    restored = Restored(tmp_path, [(0, bytes(segment))], [])
    assert merged(restored.pending)[0] == (1, 29)
    assert (restored.damaged, restored.queued) == (1, sum(b - a + 1 for a, b in restored.pending))


def test_events_of_a_chunk_that_is_not_queued_do_not_wait(tmp_path: Path) -> None:
    segment = _two_chunks(tmp_path)
    _, (base, capacity, _) = _chunks(segment)
    first = next(seq for _, seq, *_ in _chunk_events(segment, base, capacity))
    struct.pack_into("=Q", segment, base + 56, 1)
    struct.pack_into("=Q", segment, base + 64, 3)
    restored = Restored(tmp_path, [(0, bytes(segment))], [])
    assert restored.pending == [(1, first - 1)]
    assert (restored.damaged, restored.queued) == (1, first - 1)


def _places(segments: list[bytes]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return (segment, offset) of each place's head, and of each event."""
    heads, events = [], []
    for number, data in enumerate(segments):
        for place in range(PLACES):
            base = HEAD + place * PLACE
            heads.append((number, base))
        for base, capacity, _ in _chunks(data):
            events += [(number, at) for at, *_ in _chunk_events(data, base, capacity)]
    return heads, events


def _targets(segments: list[bytes]) -> list[tuple[int, int]]:
    """Return where a reader looks: (segment, offset) of every field of heads of chunks and of events."""
    heads, events = _places(segments)
    found = [(number, at + offset) for number, at in heads for offset, _ in CHUNK_FIELDS.values()]
    return found + [(number, at + offset) for number, at in events for offset, _ in EVENT_FIELDS.values()]


VALUES = st.one_of(
    st.integers(0, 400).map(lambda n: struct.pack("=Q", n)),
    st.integers(0, 8).map(lambda n: struct.pack("=I", n * PLACE - 64 if n else 0)),
    st.integers(0, 200_000).map(lambda n: struct.pack("=I", n)),
    st.binary(min_size=1, max_size=12),
    st.just(bytes(512)),
    st.just(b"\xff" * 8),
)


BOUNDS = (
    0, 1, 2, 4, LEVELS, 8, R_COUNT, 23, PLACES, 120, SETTLED, 255, 256, 4096, 0xFFFF, PLACE - 64,
    2 * PLACE - 64, 4 * PLACE - 64, HEAD, HEAD + PLACES * PLACE, 1 << 31, 1 << 32, 1 << 48, 1 << 63, 1 << 64,
)  # fmt: skip


def _values(size: int, chance: random.Random) -> list[bytes]:
    """Return values for a field of so many bytes: 0, 1, the largest, each bound and beside it, and any."""
    most = 1 << 8 * size
    near = {n + beside for n in BOUNDS for beside in (-1, 0, 1)}
    found = sorted(n for n in near if 0 <= n < most) + [most - 1, *(chance.randrange(most) for _ in range(4))]
    return [value.to_bytes(size, sys.byteorder) for value in found]


def _store(data: bytearray, at: int, value: bytes) -> None:
    data[at : at + len(value)] = value


def _scramble(data: bytearray, at: int, chance: random.Random) -> None:
    """Overwrite what only its owner may use in the head of a chunk."""
    for name in OWN:
        offset, size = CHUNK_FIELDS[name]
        _store(data, at + offset, chance.choice(_values(size, chance)))


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
    heads, _ = _places(original.segments)
    chance = random.Random(data.draw(st.integers(0, 1 << 32)))
    for number, at in data.draw(st.lists(st.sampled_from(heads), max_size=4)):
        _scramble(segments[number], at, chance)
    settled = data.draw(RANGES)
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    _check(folder, [bytes(segment) for segment in segments], settled)


@pytest.mark.parametrize("name", [*CHUNK_FIELDS, *EVENT_FIELDS])
def test_any_value_of_a_field_is_read_as_in_plain_python(
    name: str, original: Original, tmp_path: Path
) -> None:
    """Every field of the head of a chunk and of an event, while the owner's own fields are anything."""
    chance = random.Random(name)
    heads, events = _places(original.segments)
    live = [(k, at) for k, at in heads if any(original.segments[k][at + 56 : at + 64])]
    for where, fields in ((live, CHUNK_FIELDS), (events, EVENT_FIELDS)):
        if name not in fields:
            continue
        offset, size = fields[name]
        values = _values(size, chance)
        chance.shuffle(values)
        while values:
            segments = [bytearray(segment) for segment in original.segments]
            for number, at in chance.sample(live, 3):
                _scramble(segments[number], at, chance)
            for number, at in chance.sample(where, 3):
                if values:
                    _store(segments[number], at + offset, values.pop())
            _check(tmp_path, [bytes(segment) for segment in segments], [])


def test_the_fields_of_all_structures_are_known() -> None:
    """Each table covers its structure, so that no field of it stays untried."""
    tables = {120: FILE_FIELDS, 24: JOURNAL_FIELDS, 64: CHUNK_FIELDS, 16: BLOCK_FIELDS}
    for size, fields in [*tables.items(), (24, OUTCOME_FIELDS), (EVENT.size, EVENT_FIELDS)]:
        covered = [byte for at, n in fields.values() for byte in range(at, at + n)]
        assert covered == list(range(size))


def test_a_tombstone_without_its_reason_is_unencodable(tmp_path: Path) -> None:
    """It may be the last event of the last place, with nothing behind it."""
    segment = bytearray(SEGMENT)
    base = HEAD + (PLACES - 1) * PLACE
    struct.pack_into("=I", segment, base + 8, PLACE - 64)
    struct.pack_into("=Q", segment, base + 56, 1)
    at = base + 64
    for seq in range(1, 6):
        EVENT.pack_into(segment, at, seq, 1, 0, 2, K_TOMB, 0)
        at += EVENT.size
    EVENT.pack_into(segment, at, 6, 1, SEGMENT - at - 2 * EVENT.size, 2, 1, 0)
    EVENT.pack_into(segment, SEGMENT - EVENT.size, 7, 1, 0, 2, K_TOMB, 0)
    restored = Restored(tmp_path, [(0, bytes(segment))], [])
    assert (restored.pending, restored.queued) == ([(1, 7)], 7)
    assert restored.failed == {"unencodable": 6, "closed": 1}


def test_a_journal_is_complete_again_once_the_ledger_has_its_outcomes(tmp_path: Path) -> None:
    producer = bytes(10)
    (tmp_path / f"{producer.hex()}.lock").touch()
    queue = EventQueue()
    segments = Segments(queue, str(tmp_path), producer, bytes(16), 1, 2, True, 0)
    segments.grow()
    in_flight = InflightBatches(queue)

    def journal() -> tuple[int, bool]:
        head = (tmp_path / f"{producer.hex()}.000000.seg").read_bytes()[:HEAD]
        outcomes, complete, *_ = read_journal(head)
        return len(outcomes), complete

    for _ in range(400):
        queue.push(b"{}")
    batch = in_flight.take(2048, 1 << 20)
    assert batch is not None
    for seq in range(1, 401):
        batch.mark(seq, INFLIGHT)
    in_flight.encoded(batch)
    for seq in range(1, 401):
        in_flight.apply([(seq, seq)], ACKED if seq % 2 else FAILED)
    in_flight.commit()
    assert journal() == (120, False)
    in_flight.take_report()
    in_flight.recorded()
    assert journal() == (0, True)
    segments.close()


def test_equal_sequences_of_both_lists_are_sent(original: Original, tmp_path: Path) -> None:
    """A chunk that begins with the sequence of another one, of the other list, keeps nothing back."""
    segment = bytearray(SEGMENT)
    for place in range(2):
        base = HEAD + place * PLACE
        struct.pack_into("=I", segment, base + 8, PLACE - 64)
        segment[base + 49] = place
        struct.pack_into("=Q", segment, base + 56, 1)
        EVENT.pack_into(segment, base + 64, 1, 1, 8, 2, 1, 0)
        EVENT.pack_into(segment, base + 64 + 32, 2, 1, 8, 2, 1, 0)
    restored = Restored(tmp_path, [(0, bytes(segment))], [])
    assert (merged(restored.pending), restored.queued) == ([(1, 2)], 4)
    events, faults = read_segment(bytes(segment))
    assert faults == []
    left = waiting([(e.seq, e.created_us, e.size) for e in events], [], itemgetter(0))
    assert left == [(1, 1, 8), (2, 1, 8)], "each once"


@pytest.mark.parametrize("numbers", [[2], [0, 0], [1, 0, 1]])
def test_numbers_of_segments_are_checked(numbers: list[int], original: Original, tmp_path: Path) -> None:
    queue = EventQueue(max_event_bytes=SEGMENT, policy="drop_new")
    mapped = Segments(queue, str(tmp_path), PRODUCER, bytes(16), os.getpid(), 2, True, 0)
    path = tmp_path / "0"
    path.write_bytes(original.segments[0])
    fd = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(ValueError, match=rf"segment {numbers[-1]} is not one of 2"):
            mapped.restore([(number, fd) for number in numbers], [], 0)
    finally:
        os.close(fd)
        mapped.close()


def _sign(data: bytearray, place: os.stat_result, salt: int | None = None) -> None:
    """Make the checksum of a head right, and the file its own."""
    struct.pack_into("=QQ", data, 48, place.st_dev, place.st_ino)
    if salt is not None:
        struct.pack_into("=Q", data, 96, salt)
    struct.pack_into("=Q", data, 112, xxh64(bytes(data[:112])))


class OrphanSpool:
    """The files of a dead owner in a folder of their own, of this boot or an earlier one."""

    def __init__(self, folder: Path, original: Original, *, boot: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (head,) = {Head.decode(segment).producer for segment in original.segments}
        self.folder = folder
        self.files = owner_files.OwnerFiles(str(folder), head.hex())
        self.paths = []
        for number, segment in enumerate(original.segments):
            self.paths.append(Path(self.files.segment_path(number)))
            self.write(self.paths[-1], bytearray(segment), boot)
        self.paths.append(Path(self.files.log_path(0)))
        self.write(self.paths[-1], bytearray(original.log), boot)
        self.lock = Path(self.files.lock_path)
        self.lock.touch()

    def write(self, path: Path, data: bytearray, boot: bytes) -> None:
        path.touch()
        _store(data, 16, boot)
        _sign(data, path.stat())
        path.write_bytes(data)

    def damage(self, path: Path, at: int, value: bytes, *, sign: bool) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(value)
            if sign:
                file.seek(0)
                head = bytearray(file.read(LOG_HEAD))
                head[112:120] = xxh64(bytes(head[:112])).to_bytes(8, sys.byteorder)
                file.seek(0)
                file.write(head)

    def check(self, sequences: set[int]) -> bool:
        """Read it and send what is there; return whether it was refused instead."""
        assert self.files.lock()
        try:
            orphan, _ = read_orphan(self.files, owner_files.boot_id(), None)
        except ValueError:
            return True
        finally:
            self.files.unlock()
        if orphan is None:
            return False
        try:
            settled = merged((first, last) for first, last, _, _ in orphan.journal.outcomes)
            read = [(number, os.pread(fd, SEGMENT, 0)) for number, fd in orphan.segments]
        finally:
            orphan.close()
        restored = Restored(self.folder, read, settled)
        assert {n for first, last in restored.pending for n in range(first, last + 1)} <= sequences
        return False


SEQUENCES = set(range(1, 301))
DAMAGES = {f"segment {name}": (0, place) for name, place in FILE_FIELDS.items()}
DAMAGES |= {f"log {name}": (-1, place) for name, place in FILE_FIELDS.items()}
DAMAGES |= {f"journal {name}": (0, (1024 + at, size)) for name, (at, size) in JOURNAL_FIELDS.items()}
for item in (0, 1, 119, 120, 121):  # the last two lie behind the journal
    DAMAGES |= {
        f"outcome {item} {name}": (0, (1048 + 24 * item + at, size))
        for name, (at, size) in OUTCOME_FIELDS.items()
    }


@pytest.mark.parametrize("boot", ["this", "earlier"])
def test_damaged_heads_journals_and_locks_are_refused_or_read(
    boot: str, original: Original, tmp_path: Path
) -> None:
    """Every field, with any value, and with a checksum that is right and one that is wrong."""
    chance = random.Random(boot)
    known = owner_files.boot_id() if boot == "this" else bytes(range(16))
    refused = 0
    for name, (which, (at, size)) in DAMAGES.items():
        for sign in (True, False):
            for value in chance.sample(_values(size, chance), 2):
                orphan = OrphanSpool(tmp_path / "orphan", original, boot=known)
                if name.startswith("outcome"):
                    orphan.damage(orphan.paths[0], 1024, (121).to_bytes(8, sys.byteorder), sign=False)
                orphan.damage(orphan.paths[which], at, value, sign=sign)
                refused += orphan.check(SEQUENCES)
    for size in (0, 1, 15, 16, 17, 4096):
        for lock in (bytes(size), b"\xff" * size, chance.randbytes(size), (known * 256)[:size]):
            orphan = OrphanSpool(tmp_path / "orphan", original, boot=known)
            orphan.lock.write_bytes(lock)
            assert not orphan.check(SEQUENCES)
    assert refused > (10 if boot == "this" else 0)


@contextmanager
def _descriptors_left(count: int) -> Iterator[None]:
    """Let this process open so many descriptors more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, before[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for fd in taken[len(taken) - count :]:
            os.close(fd)
        del taken[len(taken) - count :]
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)


def test_a_shortage_of_descriptors_leaves_no_file_of_a_log_open(original: Original, tmp_path: Path) -> None:
    boot = bytes(range(16))
    orphan = OrphanSpool(tmp_path / "orphan", original, boot=boot)
    for number in range(1, 4):
        orphan.write(Path(orphan.files.log_path(number)), bytearray(original.log), boot)
    assert orphan.files.lock()
    before = os.listdir("/proc/self/fd")
    for count in range(1, 4):
        with _descriptors_left(count), pytest.raises(OSError, match="Too many open files"):
            read_orphan(orphan.files, owner_files.boot_id(), None)
        assert os.listdir("/proc/self/fd") == before
    orphan.files.unlock()
    assert not orphan.check(SEQUENCES)


def _blocks(log: bytes) -> list[int]:
    """Return where the blocks of a log begin."""
    at, found = LOG_HEAD, []
    while at < len(log):
        found.append(at)
        at += 16 + int(struct.unpack_from("=I", log, at + 8)[0])
    return found


def _read_log(data: bytes, salt: int) -> list[tuple[int, bytes]]:
    """Return the events without an outcome in the blocks that are whole, up to the first that is not."""
    at, found, outcomes = LOG_HEAD, list[tuple[int, bytes]](), []
    while len(data) - at >= 16:
        total, size, kind = struct.unpack_from("=QII", data, at)
        end = at + 16 + size
        if end > len(data) or size % 8 or xxh64(data[at + 8 : end], salt) != total:
            break
        if kind == 1:
            events = _events(data, at + 16, end, 0)
            found += [(seq, body) for _, seq, level, body in events if not level & SETTLED]
        elif kind == 2:
            for item in range(at + 16, end - 23, 24):
                first, last, status, reason = struct.unpack_from("=QQBB", data, item)
                if 0 < first <= last <= LAST_SEQUENCE and status <= STORED and reason < R_COUNT:
                    outcomes.append((first, last))
        at = end
    settled = merged(outcomes)
    return [(seq, body) for seq, body in found if without([(seq, seq)], settled)]


def _restored_log(folder: Path, original: Original, log: bytes) -> dict[int, bytes]:
    """Return the events that are put into new segments after another start of the machine."""
    left = OrphanSpool(folder / "log", Original(original.segments, log), boot=bytes(range(16)))
    assert left.files.lock()
    orphan, _ = read_orphan(left.files, owner_files.boot_id(), None)
    if orphan is None:
        left.files.unlock()
        return {}
    made = [os.pread(fd, SEGMENT, 0) for _, fd in orphan.segments]
    orphan.close()
    left.files.unlock()
    return {
        seq: body
        for data in made
        for chunk in _read_segment(data, set()).chunks
        for seq, body in chunk.events
    }


@pytest.mark.parametrize("signed", [True, False])
def test_any_value_of_a_field_of_a_log_is_read_as_in_plain_python(
    signed: bool, original: Original, tmp_path: Path
) -> None:
    """Every field of a block, and of an event and an outcome in it, with a right and a wrong checksum."""
    chance = random.Random(signed)
    salt = Head.decode(original.log, LOG_MAGIC).salt
    blocks = _blocks(original.log)
    for fields, shift in ((BLOCK_FIELDS, 0), (EVENT_FIELDS, 16), (OUTCOME_FIELDS, 16)):
        for name, (offset, size) in fields.items():
            for value in chance.sample(_values(size, chance), 8 if size > 1 else 4):
                log = bytearray(original.log)
                at = chance.choice(blocks)
                (length,) = struct.unpack_from("=I", log, at + 8)
                if fields is OUTCOME_FIELDS:
                    struct.pack_into("=I", log, at + 12, 2)
                _store(log, at + shift + offset, value)
                if signed and name != "sum":
                    (length,) = struct.unpack_from("=I", log, at + 8)
                    struct.pack_into("=Q", log, at, xxh64(bytes(log[at + 8 : at + 16 + length]), salt))
                found = _restored_log(tmp_path, original, bytes(log))
                expected = _read_log(bytes(log), salt)
                assert found.keys() == dict(expected).keys()
                assert found.items() <= set(expected)  # of equal sequences any may be kept


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
    expected = dict(_read_log(bytes(log), head.salt))
    assert _restored_log(tmp_path_factory.getbasetemp(), original, bytes(log)) == expected
    read = LogEvents(bytes(log), head.salt)
    events, outcomes = list(read), read.outcomes
    given = merged([*settled, *((first, last) for first, last, _, _ in outcomes)])
    found = waiting(((e.seq, e.created_us, e.size) for e in events if not e.settled), given, itemgetter(0))
    assert merged((seq, seq) for seq, _, _ in found) == without(
        merged((seq, seq) for seq in expected), settled
    )


@given(RANGES, RANGES)
def test_what_is_in_no_other_range_is_left(
    ranges: list[tuple[int, int]], taken: list[tuple[int, int]]
) -> None:
    numbers, others = ({n for a, b in some for n in range(a, b + 1)} for some in (ranges, taken))
    assert without(ranges, taken) == merged((n, n) for n in numbers - others)


def test_many_ranges_without_many_others() -> None:
    count = 100_000
    ranges, taken = ([(4 * n + 1, 4 * n + last) for n in range(count)] for last in (3, 2))
    assert without(ranges, taken) == [(4 * n + 3, 4 * n + 3) for n in range(count)]


def test_an_outcome_of_impossible_sequences_is_not_believed() -> None:
    """It would count, and list, more events than there can be."""
    for last in (LAST_SEQUENCE, LAST_SEQUENCE + 1, (1 << 64) - 1):
        head = bytearray(HEAD)
        struct.pack_into("=QQQQQBB", head, 1024, 1, 0, 0, 1, last, ACKED, 0)
        outcomes, complete, _ = read_journal(bytes(head))
        believed = last == LAST_SEQUENCE
        assert (outcomes, complete) == ([(1, last, "acked", "")] if believed else [], believed)


def test_a_log_that_was_cut_is_read_up_to_there(original: Original) -> None:
    for size in (0, 16, LOG_HEAD, LOG_HEAD + 15):
        read = LogEvents(original.log[:size], 0)
        assert (list(read), read.outcomes, read.at) == ([], [], min(size, LOG_HEAD))
