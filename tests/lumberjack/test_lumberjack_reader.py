"""The reader: which windows it accepts, which errors it reports, and that its memory is bounded."""

import re
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.lumberjack.reader import Reader, Window, encode_ack
from tests.lumberjack.frames import c, cz, d, decode_acks, j, random_stream, u32, w
from tests.oracle import lumberjack as oracle
from tests.support import clean_environment
from tests.support.examples import examples
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit


def read(data: bytes, **limits: int) -> tuple[list[Window], Reader]:
    reader = Reader(**limits)
    return reader.receive_data(data), reader


def as_read(window: Window) -> oracle.Read:
    return oracle.Read(window.version, window.ack, window.unit, window.events, window.sequences)


class TestAcceptedWindows:
    def test_json_frames_of_version_2(self) -> None:
        unit = w(2) + j(1, b'{"a":1}') + j(2)
        (window,), reader = read(unit)
        assert (window.version, len(window), window.ack) == (2, 2, 2)
        assert window.events == [b'{"a":1}', b"{}"]
        assert window.sequences == [1, 2]
        assert window.unit == unit
        assert reader.error is None
        assert reader.pending == 0
        assert repr(window) == f"<Window: version 2, 2 events, {len(unit)} bytes>"

    def test_data_frames_of_version_1(self) -> None:
        unit = w(2, 1) + d(1, (b"line", b"x"), (b"", b"")) + d(2)
        (window,), _ = read(unit)
        assert (window.version, window.ack, window.unit) == (1, 2, unit)
        assert window.events == [oracle.join_pairs([(b"line", b"x"), (b"", b"")]), b"\0\0\0\0"]

    @pytest.mark.parametrize("content", [
        c(j(1) + j(2) + j(3)), j(1) + c(j(2) + j(3)), c(j(1)) + c(j(2) + j(3)), c(j(1) + j(2)) + j(3),
        c(c(j(1) + j(2) + j(3))),
        c(c(j(1)) + j(2) + c(j(3))), c(b"") + j(1) + j(2) + j(3), c(j(1) + j(2) + j(3), level=0),
    ])  # fmt: skip
    def test_events_may_be_spread_over_compressed_frames(self, content: bytes) -> None:
        unit = w(3) + content
        (window,), reader = read(unit + w(1))
        assert window.events == [b"{}"] * 3
        assert window.sequences == [1, 2, 3]
        assert window.unit == unit
        assert reader.pending == 6

    def test_several_windows_in_one_write(self) -> None:
        units = [w(1) + j(1, b'{"n":%d}' % i) for i in range(5)] + [w(1, 1) + c(d(1), 1)]
        windows, reader = read(b"".join(units))
        assert [x.unit for x in windows] == units
        assert reader.pending == 0

    def test_version_may_change_between_windows(self) -> None:
        windows, _ = read(w(1, 1) + d(1, (b"a", b"b")) + w(1) + j(1) + w(1, 1) + d(1))
        assert [x.version for x in windows] == [1, 2, 1]

    def test_empty_window_is_complete(self) -> None:
        (window,), _ = read(w(0, 1))
        assert (window.version, window.ack, window.events, window.unit) == (1, 0, [], w(0, 1))

    def test_unfinished_zlib_stream_yields_its_whole_events(self) -> None:
        packer = zlib.compressobj()
        stream = packer.compress(j(1) + j(2)) + packer.flush(zlib.Z_SYNC_FLUSH)
        windows, _ = read(w(2) + cz(stream))
        assert len(windows) == 1

    def test_bytes_after_the_zlib_stream_are_ignored(self) -> None:
        windows, _ = read(w(1) + cz(zlib.compress(j(1)) + b"garbage") + w(1) + j(1))
        assert len(windows) == 2

    @pytest.mark.parametrize(("sequences", "number"), [
        ([1, 2, 3], 3), ([101, 102], 102), ([3, 2, 1], 3), ([7, 7], 7), ([0, 0, 0], 3), ([0x7FFFFFFF,
        0x80000000], 0x7FFFFFFF),
        ([0x80000000, 0x80000001], 2), ([0xFFFFFFFE, 0xFFFFFFFF, 0, 1], 1), ([0xFFFFFFFF], 1),
    ])  # fmt: skip
    def test_ack_is_the_highest_number_or_else_the_count(self, sequences: list[int], number: int) -> None:
        """Logstash acknowledges the highest number, as a signed one; where there is none we do as go-
        lumber and acknowledge the count."""
        (window,), _ = read(w(len(sequences)) + b"".join(map(j, sequences)))
        assert window.ack == number

    def test_windows_are_the_same_for_every_split(self) -> None:
        stream = (
            w(2) + j(1, b'{"a":1}') + j(2) + w(0) + w(1, 1) + d(1, (b"key", b"value"), (b"", b"x"))
            + w(2) + c(j(1) + c(j(2))) + w(1)
        )  # fmt: skip
        whole, _ = read(stream)
        assert len(whole) == 4
        for at in range(len(stream) + 1):
            reader = Reader()
            windows = reader.receive_data(stream[:at]) + reader.receive_data(stream[at:])
            assert list(map(as_read, windows)) == list(map(as_read, whole))
            assert reader.error is None
            assert reader.pending == 6
        reader = Reader()
        windows = [x for byte in stream for x in reader.receive_data(bytes([byte]))]
        assert list(map(as_read, windows)) == list(map(as_read, whole))

    def test_any_buffer_but_no_text_is_accepted(self) -> None:
        unit = w(1) + j(1)
        for data in (bytearray(unit), memoryview(unit), memoryview(b"x" + unit)[1:]):
            assert len(Reader().receive_data(data)) == 1
        with pytest.raises(TypeError):
            Reader().receive_data("text")  # type: ignore[arg-type]


class TestProtocolErrors:
    @pytest.mark.parametrize(("data", "words", "kept"), [
        (b"\x01W", "expected version '1' or '2', received byte 0x01 .byte 0", 0),
        (b"\x16\x03\x01", "received byte 0x16", 0),
        (b"3W", "received byte 0x33", 0),
        (j(1), "a 'J' frame without a window frame before it", 0),
        (c(j(1)), "a 'C' frame without a window frame before it", 0),
        (b"2A\0\0\0\1", "frame type 0x41 from a writer of version 2", 0),
        (w(1) + b"2A\0\0\0\1", "frame type 0x41 from a writer of version 2 .byte 6", 0),
        (w(1) + b"2X", "frame type 0x58", 0),
        (w(10001), "a window of 10001 events; the limit is 10000", 0),
        (w(0xFFFFFFFF), "a window of 4294967295 events", 0),
        (w(1, 1) + b"1J\0\0\0\1", "frame type 0x4a from a writer of version 1", 0),
        (w(1) + b"2D\0\0\0\1", "frame type 0x44 from a writer of version 2", 0),
        (w(1, 1) + j(1), "a frame of version '2' in a window of the other", 0),
        (w(1) + c(d(1)), "a frame of version '1' in a window of the other", 0),
        (w(1) + b"\0", "received byte 0x00", 0),
        (w(5) + j(1) + w(1), "a window frame after 1 of 5 events .byte 18", 0),
        (w(1) + j(1) + j(2), "a 'J' frame without a window frame before it", 1),
        (w(2) + c(j(1) + j(2) + j(3)), "more than the 2 events of the window", 0),
        (w(1) + c(j(1) + b"2"), "ends inside a frame", 0),
        (w(1) + c(j(1)[:-1]), "ends inside a frame", 0),
        (w(1, 1) + c(d(1, (b"a", b"b"))[:-1], 1), "ends inside a frame", 0),
        (w(1) + c(w(1) + j(1)), "a window frame in a compressed frame", 0),
        (c(w(1) + j(1)), "a 'C' frame without a window", 0),
        (w(1) + c(c(c(j(1)))), "nested more than once", 0),
        (w(1) + b"2J\0\0\0\1\0\0\0\0", "a 'J' frame of length 0", 0),
        (w(1) + b"2C\0\0\0\0", "a 'C' frame of length 0", 0),
        (w(1) + cz(b"\x1f\x8b\x08" + bytes(20)), "no zlib stream", 0),
        (w(1) + cz(zlib.compress(j(1))[:-1] + b"?"), "no zlib stream", 0),
        (w(1) + cz(b"xxxxxxxx"), "no zlib stream", 0),
        (w(1) + cz(zlib.compress(j(1))[:2]) + j(1), None, 1),
    ])  # fmt: skip
    def test_protocol_error_names_frame_and_byte(self, data: bytes, words: str | None, kept: int) -> None:
        windows, reader = read(data)
        assert len(windows) == kept
        if words is None:
            assert reader.error is None
            return
        assert reader.error is not None
        assert re.search(words, reader.error), reader.error
        assert "\n" not in reader.error
        assert reader.receive_data(w(1) + j(1)) == []

    def test_end_inside_a_window_is_an_error(self) -> None:
        for data, words in (
            (b"", None), (w(1) + j(1), None), (b"2", "closed inside a window frame"),
            (w(3) + j(1), "closed after 1 of 3 events"), (w(1) + j(1)[:-1], "closed after 0 of 1 events"),
        ):  # fmt: skip
            _, reader = read(data)
            reader.receive_eof()
            assert (reader.error or "").split(" (")[0] == (words or "")


class TestBounds:
    LIMITS = {"max_window": 4, "max_frame": 100, "max_unit": 300, "max_inflated": 250}

    @pytest.mark.parametrize(("data", "words"), [
        (w(5), "5 events; the limit is 4"),
        (w(1) + b"2J" + u32(1, 101), "a frame of 101 bytes; the limit is 100"),
        (w(1) + b"2J" + u32(1, 0xFFFFFFFF), "a frame of 4294967295 bytes"),
        (w(1, 1) + b"1D" + u32(1, 0xFFFFFFFF), "a frame of 34359738360 bytes"),
        (w(1, 1) + b"1D" + u32(1, 2, 99), "a frame of"),
        (w(1, 1) + b"1D" + u32(1, 1, 1) + b"a" + u32(0xFFFFFFF0), "a frame of"),
        (w(1) + b"2C" + u32(289), "a window of more than 300 bytes"),
        (w(1) + b"2C" + u32(0xFFFFFFFF), "a window of more than 300 bytes"),
        (w(4) + j(1, b"x" * 90) * 3, "a window of more than 300 bytes"),
        (w(4, 1) + d(1, (b"", b"x" * 70)) * 4, "a window of more than 300 bytes"),
        (w(4) + c(j(1, b"x" * 80) * 3), "inflate to more than 250 bytes"),
        (w(4) + c(j(1, b"x" * 80)) * 3, "inflate to more than 250 bytes"),
        (w(4) + c(c(j(1, b"x" * 80) + j(1, b"x" * 80)) + j(1, b"x" * 90)), "inflate to more than 250 bytes"),
        (w(1) + c(bytes(1 << 20)), "a window of more than 300 bytes"),
    ])  # fmt: skip
    def test_length_beyond_a_bound_is_refused_before_its_bytes(self, data: bytes, words: str) -> None:
        _, reader = read(data, **self.LIMITS)
        assert reader.error is not None
        assert words in reader.error

    def test_sizes_equal_to_the_bounds_are_accepted(self) -> None:
        unit = w(2) + j(1, b"x" * 100) + j(2, b"x" * 100)
        assert len(read(unit, **self.LIMITS)[0]) == 1
        assert len(read(w(2) + c(unit[6:]), **self.LIMITS)[0]) == 1

    def test_compressed_bomb_stops_at_max_inflated(self) -> None:
        bomb = cz(zlib.compress(bytes(100_000_000), 9))
        _, reader = read(w(1) + bomb, max_inflated=1 << 20)
        assert reader.error is not None
        assert "inflate to more than 1048576 bytes" in reader.error

    @pytest.mark.slow
    @pytest.mark.parametrize("attack", [
        'w(1) + b"2J" + u32(1, 0xFFFFFF)',
        'w(10000) + b"2C" + u32(0x3FFFFFF)',
        'w(10000, 1) + b"1D" + u32(1, 0x1FFFFF)',
        'w(1) + cz(zlib.compress(bytes(300 << 20), 9))',
        'w(1) + cz(zlib.compress(cz(zlib.compress(bytes(60 << 20), 9)), 9)) * 20',
        'w(10000) + cz(zlib.compress(b"", 9)) * 100_000',
        '(w(10000) + b"2J" + u32(1, 1)) * 10_000',
    ])  # fmt: skip
    def test_hostile_writer_cannot_grow_memory(self, attack: str) -> None:
        """Measured is the peak memory beyond the bytes of the attack, in a process of its own."""
        pytest.importorskip("resource")
        program = f"""
import resource, zlib
from logclient.lumberjack.reader import Reader
from tests.lumberjack.frames import w, cz, u32
data = {attack}
readers = [Reader() for _ in range(4)]
readers[0].receive_data(w(1) + cz(zlib.compress(b"2J" + u32(1, 2) + b"{{}}")))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for reader in readers:
    for at in range(0, min(len(data), 1 << 20), 65536):
        reader.receive_data(data[at:at + 65536])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=2 * PATIENCE,
            env=clean_environment(PYTHONPATH=":".join(sys.path)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        # each reader: its bytes (here at most 1 MiB) and, for a bomb, what it may inflate (64 MiB, doubled)
        bound = 4 * 140 if "bytes(" in attack else 4 * 4
        assert int(done.stdout) < bound << 10

    def test_large_window_leaves_nothing_pending(self) -> None:
        reader = Reader()
        big = w(1) + j(1, b"x" * (10 << 20))
        assert len(reader.receive_data(big)) == 1
        assert reader.pending == 0


streams = st.integers(0, 2**32).map(random_stream) | st.binary(max_size=30)
small = st.sampled_from([oracle.Limits(), oracle.Limits(), oracle.Limits(3, 40, 120, 80)])


class TestReference:
    @pytest.mark.slow
    @examples(300)
    @given(streams, small, st.data())
    def test_reader_equals_the_reference_on_any_pieces(
        self, stream: bytes, limits: oracle.Limits, data: st.DataObject
    ) -> None:
        windows, broken, pending = oracle.read(stream, limits)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
        reader = Reader(**limits._asdict())
        got = []
        for at, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            got += reader.receive_data(stream[at:end])
        assert list(map(as_read, got)) == windows
        assert (reader.error is not None) is broken
        if not broken:
            assert reader.pending == pending

    @given(streams)
    def test_reader_equals_the_reference_byte_by_byte(self, stream: bytes) -> None:
        windows, broken, _ = oracle.read(stream)
        reader = Reader()
        got = [x for i in range(len(stream)) for x in reader.receive_data(stream[i : i + 1])]
        assert list(map(as_read, got)) == windows
        assert (reader.error is not None) is broken


class TestAcks:
    @given(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 2**32 - 1))))
    def test_decoded_acks_equal_the_encoded_ones(self, acks: list[tuple[int, int]]) -> None:
        assert decode_acks(b"".join(encode_ack(*a) for a in acks)) == acks

    def test_ack_frame_has_version_type_and_number(self) -> None:
        assert encode_ack(2, 1) == b"2A\0\0\0\1"
        assert encode_ack(1, 0x01020304) == b"1A\1\2\3\4"

    def test_invalid_ack_frames_are_refused(self) -> None:
        for data in (b"2A\0\0\0", b"2J\0\0\0\1", b"3A\0\0\0\1", b"2A\0\0\0\1x"):
            with pytest.raises(ValueError, match="no ack frame at byte"):
                decode_acks(data)
        with pytest.raises(ValueError, match="version: 1 or 2, not 3"):
            encode_ack(3, 1)
        with pytest.raises(OverflowError):
            encode_ack(2, 2**32)
