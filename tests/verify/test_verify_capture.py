"""The compiled walker over capture segments, and how the segment reader treats damage."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import LedgerError
from tests import support
from tests.oracle import capture as oracle
from tests.support import verify_files as files

walker = pytest.importorskip("logclient._ext.capture")
np = support.need("numpy")
captures = pytest.importorskip("logclient.evidence.captures")
segments = pytest.importorskip("logclient.evidence.segments")
SegmentReport = pytest.importorskip("logclient.evidence.reports").SegmentReport


# -- CRC-32


def has_crc(data: bytes, start: int, crc: int) -> bool:
    """Return whether a record of `data` with this CRC is sound, `start` bytes from an alignment."""
    record = memoryview(bytes(start) + struct.pack("<II", len(data), crc) + data)[start:]
    found = walker.walk(record)
    return [kind for kind, *_ in found.others] != [walker.BAD_CRC]


@given(st.binary(min_size=1, max_size=600), st.integers(0, 31), st.integers(0, 31))
def test_crc32_equals_zlib(data: bytes, start: int, bit: int) -> None:
    assert has_crc(data, start, zlib.crc32(data))
    assert not has_crc(data, start, zlib.crc32(data) ^ 1 << bit)


def test_crc32_equals_zlib_at_every_length_and_alignment() -> None:
    data = Random(1).randbytes(400)
    for start in (0, 1, 3, 8, 15):
        for size in range(1, len(data)):
            assert has_crc(data[:size], start, zlib.crc32(data[:size]))


# -- walk


def walk_as_tuples(data: bytes, start: int = 0, limit: int = 0) -> oracle.Walk:
    """The result of the compiled walker in the form of the reference."""
    found = walker.walk(data, start, limit=limit)
    columns = [
        np.frombuffer(getattr(found, name), kind).tolist()
        for name, kind in (
            ("offset", "int64"), ("length", "int64"), ("arrival", "uint64"), ("stream", "uint64"),
            ("received_us", "int64"), ("direction", "uint8"),
        )
    ]  # fmt: skip
    return oracle.Walk(list(zip(*columns, strict=True)), found.others, found.end, found.stop)


u64 = st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
records = st.one_of(
    st.builds(
        lambda arrival, raw, direction, stream, at: files.unit_record(
            arrival, raw, direction=direction, stream=stream, received_us=at
        ),
        u64, st.binary(max_size=80), st.integers(0, 2), u64, st.integers(-(1 << 63), (1 << 63) - 1),
    ),
    st.builds(files.stream_record, u64, st.text(max_size=10)),
    st.builds(files.end_record, u64),
    st.builds(lambda n: files.header_record("main", n, 1), st.integers(1, 9)),
    st.binary(min_size=1, max_size=40).map(files.record),
    st.builds(
        lambda payload, crc: struct.pack("<II", len(payload), crc) + payload,
        st.binary(min_size=1, max_size=30), st.integers(0, 0xFFFFFFFF),
    ),
)  # fmt: skip


@given(st.lists(records, max_size=12), st.binary(max_size=20), st.integers(0, 5))
def test_walk_equals_the_reference(parts: list[bytes], tail: bytes, limit: int) -> None:
    data = b"".join(parts) + tail
    assert walk_as_tuples(data, limit=limit) == oracle.walk(data, limit=limit)


@given(st.lists(records, min_size=1, max_size=8), st.data())
def test_walk_over_damage_equals_the_reference(parts: list[bytes], draw: st.DataObject) -> None:
    data = bytearray(b"".join(parts))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    assert walk_as_tuples(bytes(data)) == oracle.walk(bytes(data))


@given(st.lists(records, max_size=12), st.data())
def test_walk_lists_streams_behind_the_end_only(parts: list[bytes], draw: st.DataObject) -> None:
    data = bytearray(b"".join(parts))
    for _ in range(draw.draw(st.integers(0, 2)) if data else 0):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    whole, found = oracle.walk(bytes(data)), walker.walk(data, streams=False)
    assert (len(found.direction), found.end, found.stop) == (len(whole.units), whole.end, whole.stop)
    ends = [at for kind, at, _ in whole.others if kind == walker.END]
    behind = ends[0] if ends else len(data)
    assert found.others == [
        (kind, at, length) for kind, at, length in whole.others if kind != walker.STREAM or at > behind
    ]


@given(st.lists(records, min_size=1, max_size=5))
def test_walk_of_every_prefix_equals_the_reference(parts: list[bytes]) -> None:
    data = b"".join(parts)
    for end in range(len(data) + 1):
        assert walk_as_tuples(data[:end]) == oracle.walk(data[:end])


def test_walk_starts_at_the_given_offset() -> None:
    data = files.stream_record(1, "p") + files.unit_record(1, b"x")
    start = len(files.stream_record(1, "p"))
    assert walk_as_tuples(data, start) == oracle.walk(data, start)
    assert walk_as_tuples(data, len(data)).end == len(data)
    for wrong in (-1, len(data) + 1):
        with pytest.raises(ValueError, match="start"):
            walker.walk(data, wrong)


def test_flood_of_other_records_is_walked_in_pieces() -> None:
    piece = files.record(b"\x09")
    data = piece * 70_000
    found = walker.walk(data)
    assert found.stop == walker.LIMIT
    assert len(found.others) == 65536
    rest = walker.walk(data, found.end)
    assert rest.stop == walker.MORE
    assert len(found.others) + len(rest.others) == 70_000


def test_length_beyond_the_data_is_not_read() -> None:
    for length in (1 << 30, (1 << 30) + 1, 0xFFFFFFFF, 0):
        data = struct.pack("<II", length, 0) + b"x" * 50
        found = walker.walk(data)
        assert (found.offset, found.end, found.others) == (b"", 0, [])
        assert found.stop == (walker.MORE if length == 1 << 30 else walker.LENGTH)


# -- the reader above it


def read(path: Path, **options: int) -> tuple[segments.SegmentReader, list[bytes]]:
    [segment] = [s for s in segments.list_segments([str(path.parent)])[0] if s.path == str(path)]
    reader = segments.SegmentReader(segment, **options)
    raws = []
    ordinal = 0
    for batch in reader:
        assert batch.ordinal == ordinal
        ordinal += len(batch.offset)
        for at, size in zip(batch.offset.tolist(), batch.length.tolist(), strict=True):
            raws.append(bytes(batch.data[at : at + size]))
    assert reader.units == len(raws)
    return reader, raws


UNITS = [(bytes([i]) * (7 * i % 300), i % 5 == 4, 1000 + i) for i in range(60)]


@pytest.mark.parametrize("chunk", [64, 100, 333, 1 << 20])
@pytest.mark.parametrize("units", [1, 7, 1 << 20])
def test_chunk_and_batch_size_change_nothing(tmp_path: Path, chunk: int, units: int) -> None:
    [path] = files.write_segments(tmp_path, "main", UNITS)
    reader, raws = read(path, chunk=chunk, units=units)
    assert raws == [raw for raw, _, _ in UNITS]
    assert reader.problems == []
    assert reader.closed == "closed"
    assert (reader.first_arrival, reader.next_arrival) == (1, 61)
    assert reader.peers == {1: "127.0.0.1:9"}
    assert reader.header is not None
    assert reader.header.protocol == "lumberjack"
    assert reader.position == path.stat().st_size


@pytest.mark.slow
@given(
    st.lists(records, max_size=12),
    st.sampled_from([1, 2, 100]),
    st.sampled_from([64, 1 << 20]),
    st.booleans(),
)
def test_reader_without_peers_finds_the_same(
    parts: list[bytes], units: int, chunk: int, header: bool
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "main-000001.cap"
        path.write_bytes(b"".join([files.header_record("main", 1, 1)] * header + parts))
        whole, raws = read(path, units=units, chunk=chunk)
        other, same = read(path, units=units, chunk=chunk, peers=False)
    assert same == raws
    assert (other.problems, other.counts, other.closed) == (whole.problems, whole.counts, whole.closed)
    assert (other.first_arrival, other.next_arrival) == (whole.first_arrival, whole.next_arrival)


def test_damage_at_every_byte_equals_the_python_reader(tmp_path: Path) -> None:
    """The same units survive as in files/capture.py."""
    plain_reader = pytest.importorskip("logclient.files.capture").CaptureReader
    [path] = files.write_segments(tmp_path, "main", [(b"one", 0, 1), (b"two", 0, 2), (b"three", 0, 3)])
    whole = path.read_bytes()
    for at in range(len(whole)):
        for change in (1, 0x80):
            data = bytearray(whole)
            data[at] ^= change
            path.write_bytes(data)
            expected = plain_reader(tmp_path)
            units = [unit.raw for unit in expected]
            reader, raws = read(path)
            assert raws == units
            assert {problem.kind for problem in expected.problems} <= {
                problem.kind for problem in reader.problems
            }, at


def test_every_torn_tail_is_unclosed(tmp_path: Path) -> None:
    [path] = files.write_segments(tmp_path, "main", [(b"one", 0, 1), (b"two", 0, 2)])
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        reader, raws = read(path, chunk=64)
        assert raws == [raw for raw in (b"one", b"two") if whole.rindex(raw) + 3 <= end]
        assert [problem.kind for problem in reader.problems] == ["unclosed"]


@pytest.mark.parametrize(
    ("tail", "kinds"),
    [
        (b"\0" * 100, ["unclosed"]),  # what a crash of the machine leaves
        (b"\0" * 100 + b"x", ["damage", "unclosed"]),
        (b"\0" * 3_000_000, ["unclosed"]),
        (b"\0" * 3_000_000 + b"x", ["damage", "unclosed"]),
        (b"\xff" * 100, ["damage", "unclosed"]),
        (files.record(b"\x07rest"), ["damage", "unclosed"]),
        (struct.pack("<II", 1 << 29, 0) + b"short", ["unclosed"]),
        (files.unit_record(5, b"x"), ["gap", "unclosed"]),
        (files.unit_record(1, b"x"), ["gap", "unclosed"]),
        (files.end_record(2) + files.unit_record(2, b"x"), ["damage", "gap"]),
        (files.end_record(2) + files.end_record(2), ["damage"]),
        (files.end_record(2) + files.stream_record(2, "p"), ["damage"]),
        (files.end_record(2) + files.record(b"\x07rest"), ["damage"]),
        (files.end_record(2) + b"abc", ["damage"]),
        (files.end_record(2) + b"\0\0\1", ["damage"]),
        (files.end_record(2) + b"\0" * 4 + b"\1", ["damage"]),
        (files.end_record(2) + b"\0" * 100, []),
        (files.end_record(2) + b"\0" * 3, []),
        (files.end_record(2) + files.unit_record(2, b"x")[:-1], ["damage"]),
        (files.end_record(2) + files.unit_record(2, b"x" * 300)[:40], ["damage"]),
        (files.end_record(2) + b"\xff" * 100, ["damage"]),
        (b"\0" * 4 + b"\1", ["damage", "unclosed"]),
        (b"\xff" * 5, ["damage", "unclosed"]),
        (b"abc", ["unclosed"]),
        (files.end_record(7), ["gap"]),
        (files.header_record("main", 1, 1) + files.end_record(2), ["damage"]),
        (files.record(b"\x01\x01\0\0\0notjson"), ["damage", "unclosed"]),
    ],
)
def test_kind_of_damage_is_named(tmp_path: Path, tail: bytes, kinds: list[str]) -> None:
    [path] = files.write_segments(tmp_path, "main", [(b"one", 0, 1)], closed=False)
    path.write_bytes(path.read_bytes() + tail)
    reader, raws = read(path)
    assert raws[0] == b"one"
    assert sorted({problem.kind for problem in reader.problems}) == kinds
    for chunk, units in ((64, 100), (1 << 20, 1), (path.stat().st_size - 2, 1)):
        reader, _ = read(path, chunk=chunk, units=units)
        found = {problem.kind for problem in reader.problems}
        assert found - {"gap"} == {*kinds} - {"gap"}


def test_listed_problems_are_bounded_and_all_counted(tmp_path: Path) -> None:
    [path] = files.write_segments(tmp_path, "main", [(b"one", 0, 1)], closed=False)
    path.write_bytes(path.read_bytes() + files.record(b"\x07") * 1000)
    reader, _ = read(path)
    assert reader.counts["damage"] == 1000
    assert len(reader.problems) == segments.MAX_PROBLEMS + 1


def test_segment_truncated_during_reading_is_unclosed(tmp_path: Path) -> None:
    [path] = files.write_segments(tmp_path, "main", [(b"x" * 500, 0, i) for i in range(10)])
    [segment] = segments.list_segments([str(tmp_path)])[0]
    reader = segments.SegmentReader(segment, chunk=600)
    batches = iter(reader)
    next(batches)
    os.truncate(path, 1500)
    for _ in batches:
        pass
    assert [problem.kind for problem in reader.problems] == ["unclosed"]


def test_segment_of_another_version_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "main-000001.cap"
    path.write_bytes(files.record(b"\x01" + struct.pack("<I", 2) + b"{}"))
    [segment] = segments.list_segments([str(tmp_path)])[0]
    assert segments.read_header(segment) is None
    reader, _ = read(path)
    assert [problem.reason for problem in reader.problems] == ["version 2: only 1 is known", "no end record"]


@pytest.mark.parametrize(
    "data", [b"", b"x" * 50, files.stream_record(1, "p"), files.record(b"\x01\x01\0\0\0[]")]
)
def test_segment_without_header_has_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "main-000001.cap").write_bytes(data)
    [segment] = segments.list_segments([str(tmp_path)])[0]
    assert segments.read_header(segment) is None


def test_segments_are_sorted_by_listener_and_number(tmp_path: Path) -> None:
    for name in (
        "b-000002.cap",
        "b-000001.cap",
        "a-b-000001.cap",
        "a.cap",
        "b-1.cap",
        "b-0000010.cap",
        "x.txt",
    ):
        (tmp_path / name).write_bytes(b"")
    found = [(s.listener, s.number, s.name) for s in segments.list_segments([str(tmp_path)])[0]]
    assert found == [
        ("a-b", 1, "a-b-000001.cap"), ("a.cap", 0, "a.cap"), ("b", 1, "b-000001.cap"),
        ("b", 2, "b-000002.cap"), ("b", 10, "b-0000010.cap"), ("b-1.cap", 0, "b-1.cap"),
    ]  # fmt: skip
    with pytest.raises(LedgerError, match="no segment"):
        (tmp_path / "empty").mkdir()
        segments.list_segments([str(tmp_path / "empty")])
    with pytest.raises(LedgerError, match="No such file"):
        segments.list_segments([str(tmp_path / "nowhere")])


def continuity_problems(*facts: tuple[int, int, int, str]) -> list[str]:
    """Problems between segments given as (number, first_arrival, next_arrival, closed)."""
    found: list[Any] = []
    previous = None
    for number, first, following, closed in facts:
        mine = SegmentReport(
            "main", f"main-{number:06d}.cap", 0, number,
            first_arrival=first, next_arrival=following, closed=closed,
        )  # fmt: skip
        found += captures.continuity(mine, previous)
        previous = mine
    return [problem.reason for problem in found]


def test_missing_segments_are_continuity_problems() -> None:
    assert continuity_problems((1, 1, 5, "rotated"), (2, 5, 9, "closed")) == []
    assert continuity_problems((1, 1, 5, "recovered"), (2, 5, 5, "closed")) == []
    assert continuity_problems((2, 5, 9, "closed")) == [
        "segment 2 where 1 was due",
        "arrival 5 where 1 was due",
    ]
    assert continuity_problems((1, 1, 5, "rotated"), (3, 8, 9, "closed")) == [
        "segment 3 where 2 was due", "arrival 8 where 5 was due"
    ]  # fmt: skip
    assert continuity_problems((1, 1, 5, "closed")) == []
