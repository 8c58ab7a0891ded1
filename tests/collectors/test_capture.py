"""Captures: a reader finds every unit again, whatever happens to the writer or to the file."""

import json
import os
import re
import resource
import shutil
import socket
import stat
import struct
import sys
import tracemalloc
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient import cli, standard
from logclient.errors import ConfigError, LedgerError
from logclient.files import capture
from logclient.files.capture import TO_PEER, CaptureReader, CaptureWriter
from tests.support.examples import examples

pytestmark = pytest.mark.unit


def write(directory: Path, *raws: bytes, close: bool = True, **options) -> CaptureWriter:
    writer = CaptureWriter(directory, "here", "lumberjack", **options)
    stream = writer.stream("peer:1")
    for raw in raws:
        writer.unit(stream, raw)
    writer.flush()
    if close:
        writer.close()
    return writer


def kill_writer(writer: CaptureWriter) -> None:
    """Leave what kill -9 leaves: descriptors closed by the kernel, no end record."""
    os.close(writer._file.fd)
    writer._file.fd = -1


def read(path: Path) -> tuple[list[bytes], list[int], list[str]]:
    reader = CaptureReader(path)
    units = list(reader)
    return [u.raw for u in units], [u.arrival for u in units], [p.kind for p in reader.problems]


def segments(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


def payloads(path: Path) -> list[bytes]:
    """Return the records of a segment, read by the text of docs/formats.md."""
    data, out = path.read_bytes(), []
    while data:
        length, crc = struct.unpack_from("<II", data)
        assert zlib.crc32(data[8 : 8 + length]) == crc
        out.append(data[8 : 8 + length])
        data = data[8 + length :]
    return out


class TestFormat:
    def test_records_are_as_the_documentation_says(self, tmp_path):
        options = {"url": "lumberjack://h:1", "run": "r"}
        with closing(CaptureWriter(tmp_path, "here", "lumberjack", **options)) as writer:
            stream = writer.stream("1.2.3.4:5")
            assert writer.unit(stream, b"window", received_us=77) == 1
            assert writer.unit(stream, b"ack", TO_PEER, received_us=78) == 2
        head, peer, unit, ack, end = payloads(tmp_path / "here-000001.cap")
        assert head[:5] == b"\x01" + struct.pack("<I", 1)
        assert json.loads(head[5:]) == {
            "run": "r",
            "protocol": "lumberjack",
            "host": socket.gethostname(),
            "listener": "here",
            "url": "lumberjack://h:1",
            "source": "producers",
            "segment": 1,
            "first_arrival": 1,
        }
        assert peer == b"\x02" + struct.pack("<Q", stream) + b"1.2.3.4:5"
        assert unit == b"\x03" + struct.pack("<BBQQq", 0, 0, stream, 1, 77) + b"window"
        assert ack == b"\x03" + struct.pack("<BBQQq", 1, 0, stream, 2, 78) + b"ack"
        assert end == b"\x04" + struct.pack("<Q", 3) + b"closed"

    def test_the_reader_returns_every_field(self, tmp_path):
        with closing(CaptureWriter(tmp_path, "here", "lumberjack", run="r")) as writer:
            first, second = writer.stream("a"), writer.stream("b")
            writer.unit(second, b"2", received_us=5)
            writer.unit(first, b"1", TO_PEER)
        one, two = CaptureReader(tmp_path)
        assert (one.listener, one.protocol, one.segment) == ("here", "lumberjack", "here-000001.cap")
        assert (one.peer, one.stream, one.direction, one.received_us, one.raw) == ("b", second, 0, 5, b"2")
        assert (two.peer, two.stream, two.direction, two.arrival, two.raw) == ("a", first, 1, 2, b"1")

    @given(
        raws=st.lists(st.binary(max_size=300), max_size=20),
        flush=st.integers(1, 5),
        segment_bytes=st.sampled_from([1, 200, 1000, 1 << 20]),
    )
    @examples(40)
    def test_any_written_units_are_read_back(self, tmp_path_factory, raws, flush, segment_bytes):
        directory = tmp_path_factory.mktemp("c")
        with closing(CaptureWriter(directory, "here", "x", segment_bytes=segment_bytes)) as writer:
            stream = writer.stream("p")
            for n, raw in enumerate(raws):
                writer.unit(stream, raw)
                if n % flush == 0:
                    writer.flush()
        assert read(directory) == (raws, list(range(1, len(raws) + 1)), [])

    def test_a_unit_may_be_any_buffer(self, tmp_path):
        buffer = bytearray(b"abcdef")
        with closing(CaptureWriter(tmp_path, "here", "x")) as writer:
            writer.unit(writer.stream("p"), memoryview(buffer)[1:4])
            writer.flush()
            buffer[:] = b"------"
        assert read(tmp_path)[0] == [b"bcd"]

    @pytest.mark.skipif(not hasattr(os, "writev"), reason="this system has no writev")
    @pytest.mark.parametrize("most", [1, 7, 50])
    def test_short_writes_of_the_kernel_are_continued(self, tmp_path, monkeypatch, most):
        real = os.write
        monkeypatch.setattr(os, "writev", lambda fd, parts: real(fd, b"".join(parts)[:most]))
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:most]))
        raws = [bytes([n]) * n for n in range(40)]
        write(tmp_path, *raws)
        assert read(tmp_path) == (raws, list(range(1, 41)), [])

    def test_more_parts_than_one_writev_takes(self, tmp_path):
        raws = [b"%d" % n for n in range(3000)]
        write(tmp_path, *raws)
        assert read(tmp_path)[0] == raws

    def test_other_files_are_ignored(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "here-1.cap").write_text("mine")
        write(tmp_path, b"a")
        assert read(tmp_path) == ([b"a"], [1], [])

    def test_listeners_have_separate_segments(self, tmp_path):
        for name, raw in (("b-1", b"in b"), ("a", b"in a")):
            with closing(CaptureWriter(tmp_path, name, "x")) as writer:
                writer.unit(writer.stream("p"), raw)
        reader = CaptureReader(tmp_path)
        assert [(u.listener, u.arrival, u.raw) for u in reader] == [("a", 1, b"in a"), ("b-1", 1, b"in b")]
        assert reader.listeners == ["a", "b-1"]

    @pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "-a", "a" * 300, "a\n"])
    def test_listener_names_must_be_file_names(self, tmp_path, name):
        with pytest.raises(ConfigError, match="listener"):
            CaptureWriter(tmp_path, name, "x")

    def test_a_wrong_path_is_explained(self, tmp_path):
        with pytest.raises(LedgerError, match="No such file"):
            CaptureReader(tmp_path / "none")
        (tmp_path / "x.txt").touch()
        with pytest.raises(LedgerError, match="no segment"):
            CaptureReader(tmp_path / "x.txt")


class TestRotation:
    def test_segments_continue_each_other(self, tmp_path):
        writer = CaptureWriter(tmp_path, "here", "x", segment_bytes=1)
        stream = writer.stream("p")
        for raw in (b"a", b"b"):
            writer.unit(stream, raw)
            writer.flush()
        writer.close()
        assert segments(tmp_path) == [f"here-{n:06d}.cap" for n in (1, 2, 3)]
        assert payloads(tmp_path / "here-000001.cap")[-1] == b"\x04" + struct.pack("<Q", 2) + b"rotated"
        # Each segment can be read by itself: the peer is named again.
        assert [u.peer for u in CaptureReader(tmp_path / "here-000002.cap")] == ["p"]
        assert json.loads(payloads(tmp_path / "here-000003.cap")[0][5:])["first_arrival"] == 3
        assert read(tmp_path) == ([b"a", b"b"], [1, 2], [])

    def test_a_segment_ends_after_its_time_if_it_has_a_unit(self, tmp_path, monkeypatch):
        now = [100.0]
        monkeypatch.setattr("logclient.files.capture.time.monotonic", lambda: now[0])
        writer = CaptureWriter(tmp_path, "here", "x", segment_seconds=5.0)
        stream = writer.stream("p")
        now[0] = 200.0
        writer.rotate()
        assert segments(tmp_path) == ["here-000001.cap"] and writer.due == float("inf")
        writer.unit(stream, b"a")
        writer.flush()
        assert writer.due == 205.0
        now[0] = 204.9
        writer.unit(stream, b"b")
        writer.rotate()
        assert segments(tmp_path) == ["here-000001.cap"] and writer.due == 205.0
        now[0] = 205.0
        writer.rotate()
        assert segments(tmp_path) == ["here-000001.cap", "here-000002.cap"] and writer.due == float("inf")
        writer.unit(stream, b"c")
        writer.flush()
        now[0] = 210.0
        writer.unit(stream, b"d")
        writer.flush()
        writer.close()
        assert segments(tmp_path) == [f"here-{n:06d}.cap" for n in (1, 2, 3)]
        assert read(tmp_path) == ([b"a", b"b", b"c", b"d"], [1, 2, 3, 4], [])

    def test_a_segment_that_begins_late_names_its_peers(self, tmp_path):
        """The rotation fails, and the next flush begins the segment."""
        writer = CaptureWriter(tmp_path, "here", "x", segment_bytes=1)
        stream = writer.stream("p")
        writer.unit(stream, b"a")
        obstacle = tmp_path / "here-000002.cap"
        obstacle.touch()
        writer.flush()
        obstacle.unlink()
        writer.unit(stream, b"b")
        writer.close()
        assert [(u.raw, u.peer) for u in CaptureReader(obstacle)] == [(b"b", "p")]

    def test_a_missing_segment_is_a_gap(self, tmp_path):
        writer = CaptureWriter(tmp_path, "here", "x", segment_bytes=1)
        stream = writer.stream("p")
        for raw in (b"a", b"b", b"c"):
            writer.unit(stream, raw)
            writer.flush()
        writer.close()
        for name, due in (("here-000001.cap", 1), ("here-000002.cap", 2)):
            copy = tmp_path / f"without {name}"
            shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns(name, "without*"))
            reader = CaptureReader(copy)
            list(reader)
            found = [(p.kind, p.reason) for p in reader.problems]
            assert found == [("gap", f"arrival {due + 1} where {due} was due")]

    def test_a_segment_by_itself_has_no_gap_before_it(self, tmp_path):
        for n in range(3):
            write(tmp_path, b"%d" % n)
        assert read(tmp_path / "here-000003.cap") == ([b"2"], [3], [])

    def test_numbers_of_seven_digits_follow_those_of_six(self, tmp_path):
        write(tmp_path, b"a")
        (tmp_path / "here-000001.cap").rename(tmp_path / "here-999999.cap")
        for raw in (b"b", b"c"):
            write(tmp_path, raw)
        assert segments(tmp_path) == ["here-1000000.cap", "here-1000001.cap", "here-999999.cap"]
        assert read(tmp_path) == ([b"a", b"b", b"c"], [1, 2, 3], [])


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners, modes and locks of files")
class TestModes:
    def test_capture_files_are_private(self, tmp_path):
        before = os.umask(0)
        try:
            write(tmp_path / "new" / "deep", b"a")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "new" / "deep").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "new" / "deep" / "here-000001.cap").stat().st_mode) == 0o600

    def test_another_users_directory_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(standard.os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(LedgerError, match="belongs to uid"):
            write(tmp_path, b"a")
        assert segments(tmp_path) == []

    def test_a_file_in_place_of_the_directory_is_refused(self, tmp_path):
        (tmp_path / "c").touch()
        with pytest.raises(LedgerError, match="File exists"):
            write(tmp_path / "c")

    def test_a_link_is_not_followed(self, tmp_path):
        (tmp_path / "victim").write_bytes(b"precious")
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "here-000001.cap").symlink_to(tmp_path / "victim")
        with pytest.raises(LedgerError):
            write(tmp_path / "c", b"a")
        assert (tmp_path / "victim").read_bytes() == b"precious"

    def test_a_capture_is_locked_for_one_collector(self, tmp_path):
        writer = write(tmp_path, b"a", close=False)
        with pytest.raises(LedgerError, match="in use by another collector"):
            write(tmp_path, b"b")
        writer.close()
        write(tmp_path, b"b")
        assert read(tmp_path) == ([b"a", b"b"], [1, 2], [])


class TestRecovery:
    def test_a_cut_in_the_last_record_is_recovered(self, tmp_path):
        source = tmp_path / "source"
        kill_writer(write(source, b"first", b"second", close=False))
        whole = (source / "here-000001.cap").read_bytes()
        last = len(whole) - (8 + struct.calcsize("<BBBQQq") + len(b"second"))
        for size in range(last, len(whole) + 1):
            directory = tmp_path / str(size)
            shutil.copytree(source, directory)
            os.truncate(directory / "here-000001.cap", size)
            kept = [b"first", b"second"] if size == len(whole) else [b"first"]
            assert read(directory) == (kept, list(range(1, len(kept) + 1)), ["unclosed"])

            write(directory, b"after")
            assert read(directory) == ([*kept, b"after"], list(range(1, len(kept) + 2)), [])
            end = payloads(directory / "here-000001.cap")[-1]
            assert end == b"\x04" + struct.pack("<Q", len(kept) + 1) + b"recovered"

    def test_a_cut_in_the_header_is_recovered(self, tmp_path):
        source = tmp_path / "source"
        write(source, b"first")
        kill_writer(CaptureWriter(source, "here", "x"))
        header = (source / "here-000002.cap").stat().st_size
        for size in (0, 1, 7, 8, 9, header - 1, header):
            directory = tmp_path / str(size)
            shutil.copytree(source, directory)
            os.truncate(directory / "here-000002.cap", size)
            write(directory, b"after")
            assert read(directory) == ([b"first", b"after"], [1, 2], [])

    def test_a_segment_of_a_torn_header_is_reused(self, tmp_path):
        (tmp_path / "here-000001.cap").touch()
        write(tmp_path, b"a")
        assert read(tmp_path) == ([b"a"], [1], [])
        assert segments(tmp_path) == ["here-000001.cap"]

    def test_a_tail_of_zeros_is_torn(self, tmp_path):
        kill_writer(write(tmp_path, b"a", close=False))
        with open(tmp_path / "here-000001.cap", "ab") as file:
            file.write(bytes(5000))
        assert read(tmp_path) == ([b"a"], [1], ["unclosed"])
        write(tmp_path, b"b")
        assert read(tmp_path) == ([b"a", b"b"], [1, 2], [])

    def test_a_torn_record_takes_no_memory_for_what_its_head_claims(self, tmp_path):
        kill_writer(write(tmp_path, b"a", close=False))
        with open(tmp_path / "here-000001.cap", "ab") as file:
            file.write(struct.pack("<II", capture.MAX_RECORD, 1) + b"torn")
        tracemalloc.start()
        try:
            assert read(tmp_path) == ([b"a"], [1], ["unclosed"])
            write(tmp_path, b"b")
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
        assert read(tmp_path) == ([b"a", b"b"], [1, 2], [])

    def test_a_closed_capture_is_continued(self, tmp_path):
        """The closed segment then says that another one follows."""
        for n in range(3):
            write(tmp_path, b"%d" % n)
        ends = [payloads(tmp_path / name)[-1][9:] for name in segments(tmp_path)]
        assert ends == [b"resumed", b"resumed", b"closed"]
        assert read(tmp_path) == ([b"0", b"1", b"2"], [1, 2, 3], [])

    def test_stream_numbers_are_never_reused(self, tmp_path):
        for _ in range(3):
            write(tmp_path, b"a", b"b")
        assert len({u.stream for u in CaptureReader(tmp_path)}) == 3

    def test_repeated_kills_lose_no_unit(self, tmp_path):
        for n in range(5):
            kill_writer(write(tmp_path, b"%d" % n, close=False))
        assert read(tmp_path) == ([b"0", b"1", b"2", b"3", b"4"], [1, 2, 3, 4, 5], ["unclosed"])

    def test_a_unit_may_look_like_an_end_record(self, tmp_path):
        end = b"\x04" + struct.pack("<Q", 99) + b"closed"
        kill_writer(write(tmp_path, struct.pack("<II", len(end), zlib.crc32(end)) + end, close=False))
        write(tmp_path, b"b")
        assert payloads(tmp_path / "here-000001.cap")[-1].endswith(b"recovered")
        assert read(tmp_path)[1:] == ([1, 2], [])

    def test_a_capture_of_another_version_is_refused(self, tmp_path):
        payload = b"\x01" + struct.pack("<I", 2) + b"{}"
        (tmp_path / "here-000001.cap").write_bytes(
            struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
        )
        with pytest.raises(LedgerError, match="version 2"):
            write(tmp_path, b"a")
        reader = CaptureReader(tmp_path)
        assert list(reader) == []
        assert "version 2: only 1 is known" in [problem.reason for problem in reader.problems]


class TestDamage:
    def test_any_changed_byte_is_noticed(self, tmp_path):
        """None makes up a unit."""
        source = tmp_path / "source"
        write(source, b"first", b"second", b"third")
        name = source / "here-000001.cap"
        whole = name.read_bytes()
        for at in range(len(whole)):
            name.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
            raws, _, problems = read(source)
            assert problems
            assert set(raws) <= {b"first", b"second", b"third"}

    def test_damage_is_kept_as_evidence(self, tmp_path):
        kill_writer(write(tmp_path, b"first", b"second", b"third", close=False))
        name = tmp_path / "here-000001.cap"
        broken = bytearray(name.read_bytes())
        broken[broken.index(b"second")] ^= 1
        name.write_bytes(broken)
        write(tmp_path, b"after")
        assert name.read_bytes().startswith(bytes(broken))
        raws, arrivals, problems = read(tmp_path)
        assert (raws, arrivals) == ([b"first", b"third", b"after"], [1, 3, 4])
        assert problems == ["damage", "gap"]

    def test_an_impossible_length_is_damage(self, tmp_path):
        kill_writer(write(tmp_path, b"first", b"second", close=False))
        name = tmp_path / "here-000001.cap"
        broken = bytearray(name.read_bytes())
        at = broken.index(b"second") - struct.calcsize("<BBBQQq") - 8
        broken[at : at + 4] = b"\xff\xff\xff\xff"
        name.write_bytes(broken)
        write(tmp_path, b"after")
        assert name.read_bytes().startswith(bytes(broken))
        raws, _, problems = read(tmp_path)
        assert raws == [b"first", b"after"]
        assert "damage" in problems

    def test_a_lost_arrival_is_a_gap(self, tmp_path):
        writer = CaptureWriter(tmp_path, "here", "x")
        stream = writer.stream("p")
        writer.unit(stream, b"a")
        writer._next += 2
        writer.unit(stream, b"b")
        writer.close()
        reader = CaptureReader(tmp_path)
        assert [u.arrival for u in reader] == [1, 4]
        assert [(p.kind, p.reason) for p in reader.problems] == [("gap", "arrival 4 where 2 was due")]

    def test_a_last_unit_that_is_missing_is_a_gap(self, tmp_path):
        write(tmp_path, b"first", b"second")
        name = tmp_path / "here-000001.cap"
        left = [payload for payload in payloads(name) if not payload.endswith(b"second")]
        name.write_bytes(b"".join(map(record, left)))
        reader = CaptureReader(tmp_path)
        assert [u.raw for u in reader] == [b"first"]
        assert [(p.kind, p.reason) for p in reader.problems] == [("gap", "arrival 3 where 2 was due")]

    @pytest.mark.parametrize("zeros", [100, 1 << 20, 2 << 20])
    def test_zeros_with_more_behind_them_are_damage(self, zeros, tmp_path):
        kill_writer(write(tmp_path, b"first", close=False))
        name = tmp_path / "here-000001.cap"
        with open(name, "ab") as file:
            file.write(bytes(zeros) + b"more")
        before = name.read_bytes()
        assert read(tmp_path) == ([b"first"], [1], ["damage", "unclosed"])
        write(tmp_path, b"after")
        assert name.read_bytes().startswith(before)
        assert read(tmp_path) == ([b"first", b"after"], [1, 2], ["damage", "unclosed"])


class TestFullDisk:
    @pytest.fixture
    def limit(self):
        """At most so many bytes in a file: the kernel's own partial write, then an error."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)

        def limit(size: int) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

        yield limit
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def test_a_full_disk_leaves_no_half_unit(self, tmp_path, limit):
        writer = write(tmp_path, b"a", close=False)
        size = (tmp_path / "here-000001.cap").stat().st_size
        writer.unit(stream := writer.stream("q"), b"x" * 1000)
        limit(size + 500)
        with pytest.raises(LedgerError, match=r"capture: .*File too large"):
            writer.flush()
        assert (tmp_path / "here-000001.cap").stat().st_size == size
        limit(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        assert writer.unit(stream, b"b") == 2
        writer.close()
        units = list(CaptureReader(tmp_path))
        assert [(u.raw, u.peer) for u in units] == [(b"a", "peer:1"), (b"b", "q")]
        assert read(tmp_path)[1:] == ([1, 2], [])

    def test_a_full_disk_at_the_start_is_named(self, tmp_path, limit):
        kill_writer(write(tmp_path, b"a", close=False))
        limit(1)
        with pytest.raises(LedgerError, match=f"capture: {re.escape(str(tmp_path))}: File too large"):
            write(tmp_path)
        limit(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        write(tmp_path, b"b")
        assert read(tmp_path) == ([b"a", b"b"], [1, 2], [])

    def test_a_failed_rotation_is_tried_again(self, tmp_path, limit):
        writer = CaptureWriter(tmp_path, "here", "x", segment_bytes=1)
        stream = writer.stream("p")
        writer.unit(stream, b"a")
        # Room for the stream's record and the unit's, and not for all of the end record.
        limit((tmp_path / "here-000001.cap").stat().st_size + 18 + 36 + 23)
        writer.flush()  # the unit is written
        writer.unit(stream, b"lost")
        limit(1)
        with pytest.raises(LedgerError):
            writer.flush()
        assert segments(tmp_path) == ["here-000001.cap"]
        limit(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        writer.unit(stream, b"b")
        writer.close()
        assert read(tmp_path) == ([b"a", b"b"], [1, 2], ["unclosed"])


def test_capture_needs_only_the_standard_library():
    """The pytest fixture must need nothing else."""
    source = Path(capture.__file__).read_text()
    lines = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    modules = {line.split()[1].split(".")[0] for line in lines}
    assert modules <= set(sys.stdlib_module_names) | {"logclient"}


def record(payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


NESTED = b"[" * 60_000
HOSTILE = [
    record(b"\x03\0\0"), record(b"\x04"), record(b"\x01"), record(b"\x02\0"),
    record(b"\x03" + struct.pack("<BBQQq", 0, 0, 1, (1 << 64) - 1, 1) + b"late"),
    record(b"\x03" + struct.pack("<BBQQq", 0, 0, 1, 0, 1) + b"none"),
    record(b"\x03" + struct.pack("<BBQQq", 7, 0, 1, 2, 1) + b"nowhere"),
    record(b"\x04" + struct.pack("<Q", 1 << 63) + b"closed"),
    *(record(b"\x01" + struct.pack("<I", 1) + text) for text in (
        NESTED, b"[]", b"5", b"\xff{",
        *(b'{"run":"r","protocol":"x","listener":"here","url":"","segment":1,"first_arrival":%s}' % first
          for first in (b"-1", b"0", b"Infinity", b"1e400", b"9223372036854775808", b'"1"', b"true")),
    )),
]  # fmt: skip


class TestHostile:
    """Records with right CRCs and impossible content."""

    @pytest.mark.parametrize("evil", HOSTILE)
    def test_impossible_records_count_as_damage(self, tmp_path, evil):
        kill_writer(write(tmp_path, b"a", close=False))
        name = tmp_path / "here-000001.cap"
        place = name.stat().st_size
        with open(name, "ab") as file:
            file.write(evil)
        for _ in range(2):
            reader = CaptureReader(tmp_path)
            assert b"a" in [unit.raw for unit in reader]
            assert ("damage", place) in [(problem.kind, problem.offset) for problem in reader.problems]
            write(tmp_path, b"b")
        assert [unit.arrival for unit in CaptureReader(tmp_path)] == [1, 2, 3]

    @pytest.mark.parametrize("evil", HOSTILE[:3] + HOSTILE[8:])
    def test_a_segment_may_begin_with_an_impossible_record(self, tmp_path, evil):
        (tmp_path / "here-000001.cap").write_bytes(evil)
        assert read(tmp_path)[2][0] == "damage"
        write(tmp_path, b"b")
        assert read(tmp_path)[0] == [b"b"]

    def test_an_arrival_that_is_too_high_is_not_continued(self, tmp_path):
        kill_writer(write(tmp_path, b"a", close=False))
        high = (1 << 63) - 1
        with open(tmp_path / "here-000001.cap", "ab") as file:
            file.write(record(b"\x03" + struct.pack("<BBQQq", 0, 0, 1, high, 1) + b"late"))
        write(tmp_path, b"b")
        assert read(tmp_path)[:2] == ([b"a", b"late", b"b"], [1, high, 2])

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
    def test_only_regular_files_are_read(self, tmp_path, capsys):
        """A FIFO without a writer would block its reader for ever."""
        os.mkfifo(tmp_path / "x-000001.cap")
        write(tmp_path, b"a")
        os.symlink(tmp_path / "here-000001.cap", tmp_path / "y-000001.cap")
        (tmp_path / "z-000001.cap").mkdir()
        raws, _, problems = read(tmp_path)
        assert raws == [b"a"]
        assert problems == ["damage"] * 3
        for name, what in (("x", "a FIFO"), ("y", "a link")):
            path = tmp_path / f"{name}-000001.cap"
            with pytest.raises(LedgerError, match=f"is {what}, not a regular file"):
                CaptureReader(path)
            with pytest.raises(LedgerError, match=f"is {what}, not a regular file"):
                CaptureWriter(tmp_path, name, "lumberjack")
            assert cli.main(["decode", str(path)]) == 2
            assert what in capsys.readouterr().err
