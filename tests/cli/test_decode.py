"""``logclient decode`` and its parts: any bytes of the wire become readable lines."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient import cli
from logclient.evidence import frames as readable
from logclient.evidence.frames import Frame, lumberjack
from logclient.evidence.frames.lumberjack import frames
from logclient.files.capture import CaptureWriter
from logclient.lumberjack.reader import Reader, encode_ack
from logclient.readable import escape
from tests.support import recordings
from tests.support.lumberjack_inputs import pair_block
from tests.support.patience import PATIENCE


def window(n: int) -> bytes:
    return b"2W" + struct.pack(">I", n)


def event(sequence: int, body: bytes) -> bytes:
    return b"2J" + struct.pack(">II", sequence, len(body)) + body


def compressed(content: bytes, version: bytes = b"2") -> bytes:
    payload = zlib.compress(content)
    return version + b"C" + struct.pack(">I", len(payload)) + payload


def decoded_lines(data: bytes, limit: int = readable.BODY_SHOWN) -> list[str]:
    return [line for frame in frames(data) for line in readable.lines(frame, limit)]


def recorded_sequences() -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yield (name, bytes of one direction, case) of every recorded sequence."""
    for kind in (recordings.LUMBERJACK, recordings.LUMBERJACK_EDGE):
        for case in recordings.cases(kind):
            for key in ("writer_hex", "reader_hex", "writer_chunks_hex"):
                if key in case:
                    text = case[key] if isinstance(case[key], str) else "".join(case[key])
                    yield f"{case['name']} {key}", bytes.fromhex(text), case


def refused_by_reader(data: bytes) -> bool:
    """Whether the reader of our servers refuses these bytes."""
    reader = Reader()
    reader.receive_data(data)
    reader.receive_eof()
    return reader.error is not None


def has_reader_fault(found: list[Frame]) -> bool:
    """Whether a fault is shown that a reader looks for; a reader does not look into bodies."""
    return any(frame.wrong not in ("", "not one JSON object in UTF-8") for frame in found)


def assert_frames_cover(data: bytes, found: list[Frame]) -> None:
    """Assert the rules for any bytes: frames follow each other and cover all of them."""
    at = 0
    for frame in found:
        if frame.depth == 0:
            assert frame.offset == at  # no byte is left out, none is shown twice
            at += frame.size
        assert frame.title or frame.wrong
        assert bool(frame.wrong) == bool(frame.around) or not data
        for line in readable.lines(frame, 50):
            assert line.isprintable()
        json.dumps(readable.fields(frame), allow_nan=False)
    assert at == len(data)


class TestVectors:
    def test_every_recorded_sequence_is_shown(self) -> None:
        for name, data, _ in recorded_sequences():
            found = list(frames(data))
            assert_frames_cover(data, found)
            if not name.endswith("reader_hex"):
                assert has_reader_fault(found) == refused_by_reader(data), name

    def test_decoded_frames_equal_the_recorded_ones(self) -> None:
        compared = 0
        for name, data, case in recorded_sequences():
            side = name.rpartition(" ")[2].replace("_hex", "_frames")
            if side not in case:
                continue
            expected = []
            for outer in case[side]:
                expected += [(0, outer), *((1, inner) for inner in outer.get("inner", ()))]
            found = list(frames(data))
            assert len(found) == len(expected)
            for frame, (depth, frame_expected) in zip(found, expected, strict=True):
                shown = readable.fields(frame)
                assert frame.depth == depth
                assert (str(shown["version"]), shown["type"]) == (frame_expected["v"], frame_expected["t"])
                if shown["type"] in "WA":
                    assert shown["window" if shown["type"] == "W" else "ack"] == frame_expected["n"]
                if shown["type"] in "JD":
                    assert shown["sequence"] == frame_expected["seq"]
                if shown["type"] == "J":
                    assert shown["body"] == frame_expected["json"]
                if shown["type"] == "D":
                    assert shown["pairs"] == [list(pair) for pair in frame_expected["pairs"]]
                compared += 1
        assert compared or recordings.FOLDER != recordings.OWN

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("win5_send3_then_W2_2ev", "WRONG at byte 60: a window frame after 3 of 5 events"),
            ("win2_send3_plain", "WRONG at byte 42: a 'J' frame without a window frame before it"),
            ("no_window_first_C_J", "WRONG at byte 0: a 'C' frame without a window frame before it"),
            ("W_outside_and_inside_C", "a window frame in a compressed frame"),
            ("C_len0", "WRONG at byte 6: a 'C' frame of length 0"),
            ("J_null", "WRONG at byte 6: not one JSON object in UTF-8"),
            ("J_bad_utf8", r'{"a":"\xff\xfe"}'),
            ("zlib_bad_adler", "incorrect data check"),
            ("zlib_bad_adler", '2J sequence 3, 8 bytes: {"i": 3}'),
            ("zlib_trailing_garbage", "8 bytes behind the stream"),
            ("gzip_in_C", "no zlib stream"),
            ("win10001", "a window of 10001 events; the limit is 10000"),
            ("win_0xffffffff_2ev", "a window of 4294967295 events"),
            ("ack_frame_from_writer", "frame type 0x41 from a writer of version 2"),
            ("unknown_frame_X", "WRONG at byte 6: no frame: its type is byte 0x58"),
            ("version_byte_0x01", "WRONG at byte 0: no frame: its version is byte 0x01"),
            ("win3_send2_in_one_C", "closed after 2 of 3 events"),
            ("synthetic_v1J_1", "frame type 0x4a from a writer of version 1"),
            ("synthetic_v1W0", "1W window of 0 events"),
        ],
    )
    def test_recorded_faults_are_named(self, name: str, says: str) -> None:
        if name.startswith("synthetic"):
            data = bytes.fromhex(recordings.example(recordings.LUMBERJACK, name)["writer_hex"])
        else:
            chunks = recordings.example(recordings.LUMBERJACK_EDGE, name)["writer_chunks_hex"]
            data = bytes.fromhex("".join(chunks))
        assert any(says in line for line in decoded_lines(data))


class TestFrames:
    def test_a_compressed_window_shows_its_frames(self) -> None:
        data = window(2) + compressed(event(1, b'{"a":1}') + event(2, b'{"b":"\xe2\x98\x83"}'))
        size = len(data) - 12
        assert decoded_lines(data) == [
            "       0  2W window of 2 events",
            f"       6  2C compressed, {size} bytes, 38 inflated",
            '           0  2J sequence 1, 7 bytes: {"a":1}',
            '          17  2J sequence 2, 11 bytes: {"b":"☃"}',
        ]

    def test_version_1_and_acks_are_shown(self) -> None:
        block = pair_block({"line": "x", "host": "h"})
        assert decoded_lines(b"1W\0\0\0\1" + compressed(b"1D\0\0\0\1" + block, b"1"))[-1].endswith(
            "1D sequence 1, 2 pairs: line=x, host=h"
        )
        assert decoded_lines(encode_ack(2, 0) + encode_ack(1, 7)) == [
            "       0  2A ack 0 (keep-alive)",
            "       6  1A ack 7",
        ]
        assert "a 'W' frame among acks" in "".join(decoded_lines(encode_ack(2, 1) + window(0)))

    def test_a_cut_frame_is_shown_as_far_as_it_goes(self) -> None:
        data = window(1) + event(1, b'{"message":"hello"}')[:-8]
        found = decoded_lines(data)
        assert found[1].endswith('2J sequence 1, 19 bytes: {"message":')
        assert "WRONG at byte 6: cut: 21 of its 29 bytes" in found[2]
        assert (
            found[3]
            == "          00000000  32 57 00 00 00 01 32 4a  00 00 00 01 00 00 00 13  |2W....2J........|"
        )
        for at in range(1, len(data)):
            shorter = list(frames(data[:at]))
            assert_frames_cover(data[:at], shorter)
            assert shorter[-1].wrong

    def test_after_a_fault_the_next_window_is_judged_again(self) -> None:
        good = window(1) + event(1, b"{}")
        found = [
            bool(frame.wrong) for frame in frames(window(3) + event(1, b"{}") + good + good + event(1, b"{}"))
        ]
        assert found == [False, False, True, False, False, False, True]

    def test_long_bodies_are_cut_between_characters(self) -> None:
        body = b'{"a":"' + "☃".encode() * 1000 + b'"}'
        (_, line) = decoded_lines(window(1) + event(1, body), 10)
        assert line.endswith('3,008 bytes: {"a":"☃ ... of 3,008 bytes')
        block = pair_block({f"key{n}": "v" * 50 for n in range(100)})
        (_, line) = decoded_lines(b"1W\0\0\0\1" + b"1D\0\0\0\1" + block, 80)
        assert line.endswith(f"key1={'v' * 50}, ... of {len(block):,} bytes")

    def test_control_characters_are_escaped(self) -> None:
        nasty = "\x1b[31m\x00\r\n\x7f\x9b2J\u202e\u2066\u200f\u2028\ufeff\ud800"
        body = b'{"a":"' + nasty.encode("utf-8", "surrogatepass") + b'"}'
        (text, *_) = decoded_lines(window(1) + event(1, body))[1:]
        assert text.isprintable()
        assert r"\x1b[31m\x00\x0d\x0a\x7f\u{9b}2J\u{202e}\u{2066}\u{200f}\u{2028}\u{feff}\xed\xa0\x80" in text

    @given(st.binary(max_size=300))
    def test_arbitrary_bytes_are_decoded(self, data: bytes) -> None:
        assert_frames_cover(data, list(frames(data)))

    @given(st.lists(st.sampled_from(b"12WJDCAx\x00\x01\x02\x0a\xff"), max_size=60).map(bytes))
    def test_bytes_like_frames_are_decoded(self, data: bytes) -> None:
        found = list(frames(data))
        assert_frames_cover(data, found)
        if data[1:2] != b"A":
            assert has_reader_fault(found) == refused_by_reader(data)

    @given(st.data())
    def test_flipped_bits_are_decoded(self, data: st.DataObject) -> None:
        bodies = [b'{"a":%d}' % n for n in range(3)]
        content = b"".join(event(n + 1, body) for n, body in enumerate(bodies))
        pairs = b"1D\0\0\0\1" + pair_block({"line": "hello", "": ""})
        wire = bytearray(window(3) + compressed(content) + window(3) + content + b"1W\0\0\0\1" + pairs)
        for _ in range(data.draw(st.integers(1, 3))):
            wire[data.draw(st.integers(0, len(wire) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        found = list(frames(bytes(wire)))
        assert_frames_cover(bytes(wire), found)
        if bytes(wire[1:2]) != b"A":
            assert has_reader_fault(found) == refused_by_reader(bytes(wire))


class TestDecompressionBombs:
    def test_a_bomb_is_not_inflated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lumberjack, "MAX_INFLATED", 50_000)
        data = window(1) + compressed(event(1, b'{"a":"' + b" " * 100_000 + b'"}'))
        found = list(frames(data))
        assert len(found) == 2
        assert "not opened: it inflates to more than 50,000 bytes" in found[1].wrong

    def test_nested_frames_share_one_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inner = compressed(event(1, b'{"a":"' + b" " * 900 + b'"}'))
        data = window(1) + compressed(inner)
        for bound, too_small in ((2000, False), (930, True)):
            monkeypatch.setattr(lumberjack, "MAX_INFLATED", bound)
            assert ("not opened" in "".join(frame.wrong for frame in frames(data))) == too_small
        monkeypatch.undo()
        for _ in range(50):
            inner = compressed(inner)
        found = list(frames(window(1) + inner))
        assert max(frame.depth for frame in found) == 2
        assert found[-1].wrong == "a compressed frame nested more than once is not opened"

    def test_only_a_few_of_many_pairs_are_kept(self) -> None:
        n = 200_000
        (_, frame) = frames(b"1W\0\0\0\1" + b"1D\0\0\0\1" + struct.pack(">I", n) + bytes(8 * n))
        assert frame.length == 4 + 8 * n
        assert len(frame.body) == 1000
        assert not frame.wrong

    def test_memory_is_bounded_for_bombs(self, tmp_path: Path) -> None:
        """512 MiB of one event, 512 MiB of tiny ones: only 64 MiB are inflated, here and in the reader."""
        for name, head, filler in (
            ("one", b"2J\0\0\0\1\x20\0\0\0", b" " * (1 << 20)),
            ("many", b"", b"2C\0\0\0\0" * (1 << 17)),
        ):
            packer = zlib.compressobj(1)
            payload = packer.compress(head) + b"".join(
                packer.compress(filler) for _ in range((512 << 20) // len(filler))
            )
            payload += packer.flush()
            file = tmp_path / name
            file.write_bytes(window(1) + b"2C" + struct.pack(">I", len(payload)) + payload)
            script = (
                "import re, sys\n"
                "from logclient import cli\n"
                f"code = cli.main(['decode', '--protocol', 'lumberjack', {str(file)!r}])\n"
                # Not ru_maxrss: that begins with what the process that started this one had.
                "status = open('/proc/self/status').read()\n"
                "print(code, re.search(r'VmHWM:\\s*(\\d+)', status)[1], file=sys.stderr)\n"
            )
            done = subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                text=True,
                check=True,
                timeout=4 * PATIENCE,
            )
            code, peak = map(int, done.stderr.split()[-2:])
            assert code == 1
            assert "not opened: it inflates to more than 67,108,864 bytes" in done.stdout
            assert peak < 250 << 10  # KiB


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[list[str], list[str]]:
    assert cli.main(["decode", "--protocol", "lumberjack", *arguments]) == code
    out, err = capsys.readouterr()
    return out.splitlines(), err.splitlines()


GOOD = window(2) + compressed(event(1, b'{"a":1}') + event(2, b'{"a":2}'))


class TestCommand:
    def test_raw_bytes_are_decoded(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "raw"
        file.write_bytes(GOOD + b"HTTP/1.1 400")
        out, err = run(capsys, str(file), code=1)
        assert out[0] == "       0  2W window of 2 events"
        assert out[4].endswith(
            f"WRONG at byte {len(GOOD)}: no frame: its version is byte 0x48, not '1' or '2'"
        )
        assert out[-1].endswith("|1.1 400|")
        assert err == ["5 frames, 1 wrong"]
        file.write_bytes(GOOD)
        assert run(capsys, str(file))[1] == ["4 frames, 0 wrong"]
        file.write_bytes(b"")
        assert run(capsys, str(file)) == ([], ["0 frames, 0 wrong"])

    def test_json_limit_and_bytes_shape_the_output(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "raw"
        file.write_bytes(GOOD)
        out, err = run(capsys, str(file), "--json")
        assert err == []
        found = [json.loads(line) for line in out]
        assert found[0] == {
            "offset": 0, "depth": 0, "size": 6, "version": 2, "type": "W", "window": 2, "wrong": None,
        }  # fmt: skip
        assert [frame.get("body") for frame in found] == [None, None, '{"a":1}', '{"a":2}']
        out, err = run(capsys, str(file), "--limit", "3", "--bytes", "2")
        assert len(out) == 3
        assert out[2].endswith('7 bytes: {" ... of 7 bytes')
        assert err == ["logclient: stopped after 3 frames; there are more"]
        assert run(capsys, str(file), "--limit", "4")[1] == ["4 frames, 0 wrong"]

    def test_hexadecimal_input_is_decoded(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "hex"
        file.write_text("32 41 00 00\n00 05\n")
        assert run(capsys, str(file), "--hex")[0] == ["       0  2A ack 5"]
        file.write_text("3")
        assert "--hex needs hexadecimal digits" in run(capsys, str(file), "--hex", code=2)[1][0]

    def test_what_tshark_prints_is_decoded(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Of tshark 4.0, ``follow,tcp,raw``: a line for each piece, after a tab if the server has sent it."""
        printed = (
            "\n===================================================================\nFollow: tcp,raw\n"
            "Filter: tcp.stream eq 0\nNode 0: 127.0.0.1:34400\nNode 1: 127.0.0.1:5044\n"
            "32570000\n0001324a00000001\n\t324100000001\n000000027b7d\n"
            "===================================================================\n"
        )
        sent, answered = ["2W window of 1 event", "2J sequence 1"], ["2A ack 1"]
        for pattern, expected in {"^[0-9a-f]": sent, "^\t": answered}.items():
            lines = [line for line in printed.splitlines() if re.match(pattern, line)]
            (tmp_path / "hex").write_text("\n".join(lines))
            out, err = run(capsys, str(tmp_path / "hex"), "--hex")
            assert len(out) == len(expected) and all(map(str.__contains__, out, expected)), err

    @pytest.mark.parametrize("magic", ["d4c3b2a1", "0a0d0d0a"])
    def test_a_pcap_is_named(self, magic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "trace.pcap").write_bytes(bytes.fromhex(magic) + bytes(40))
        [line] = run(capsys, str(tmp_path / "trace.pcap"), code=2)[1]
        assert "it is a pcap; cut out the bytes of one direction: tshark -r FILE" in line

    def test_standard_input_and_a_closed_output_pipe(self) -> None:
        command = [sys.executable, "-m", "logclient", "decode", "--protocol", "lumberjack", "-"]
        done = subprocess.run(command, input=GOOD, capture_output=True, check=True, timeout=2 * PATIENCE)
        assert done.stdout.count(b"\n") == 4
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            command, input=GOOD, stdout=write, stderr=subprocess.PIPE, check=False, timeout=2 * PATIENCE
        )
        os.close(write)
        assert done.returncode == 0
        assert done.stderr in (b"", b"4 frames, 0 wrong\n")  # noticed at the first line, or at the last

    def test_unprintable_characters_are_replaced(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "logclient", "decode", "--protocol", "lumberjack", "-"],
            input=window(1) + event(1, '{"a":"☃"}'.encode()),
            capture_output=True,
            check=True,
            timeout=2 * PATIENCE,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )
        assert rb'{"a":"\u2603"}' in done.stdout

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([], "required: FILE"),
            (["x", "--protocol", "telegraph"], "--protocol: invalid choice: 'telegraph'"),
            (["-"], "one of logjam, logux, lumberjack, plog for bytes that are no capture"),
            (["/dev/null"], "--protocol: must be one of logjam, "),
            (["no/such"], "no/such: No such file"),
            (["no/such.cap"], "no/such.cap: No such file"),
            (["x", "--limit", "0"], "--limit: must be a whole number from 1"),
        ],
    )
    def test_wrong_decode_usage_is_explained(
        self, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
    ) -> None:
        assert cli.main(["decode", *arguments]) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1


class TestCapture:
    @pytest.fixture
    def capture(self, tmp_path: Path) -> Path:
        with closing(CaptureWriter(tmp_path / "capture", "main", "lumberjack+tls")) as writer:
            stream = writer.stream("10.0.0.1:\x1b5000")
            writer.unit(stream, GOOD, received_us=1_700_000_000_123_456)
            writer.unit(stream, encode_ack(2, 2), direction=1, received_us=-(1 << 62))
            writer.unit(stream, window(2) + event(1, b"{}"))
            writer.unit(stream, GOOD)
        with closing(CaptureWriter(tmp_path / "capture", "other", "telegraph")) as writer:
            writer.unit(writer.stream("x"), b"stop")
        return tmp_path / "capture"

    def test_each_unit_has_a_heading(self, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out, err = run(capsys, str(capture), code=1)
        heads = [line for line in out if not line.startswith(" ")]
        assert len(heads) == 4
        assert "from 10.0.0.1:\\x1b5000, arrival 1, 2023-11-14T22:13:20.123456Z" in heads[0]
        assert " to 10.0.0.1" in heads[1]
        assert "arrival 4" in heads[3]
        assert any("closed after 1 of 2 events" in line for line in out)
        assert err == ["12 frames, 1 wrong"]
        assert run(capsys, str(capture / "main-000001.cap"), code=1)[0] == out

    def test_a_capture_says_which_protocols_it_has(
        self, capture: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with closing(CaptureWriter(capture, "another", "logux+tls")) as writer:
            writer.unit(writer.stream("10.0.0.2:5000"), b'["ping",1]')
        assert cli.main(["decode", str(capture)]) == 2
        out, err = capsys.readouterr()
        assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == [
            "another-000001.cap", *["main-000001.cap"] * 4
        ]  # fmt: skip
        assert "ping, added 1" in out and '2J sequence 2, 7 bytes: {"a":2}' in out
        assert err == "logclient: protocol: 'telegraph' is none of logjam, logux, lumberjack, plog\n"
        assert cli.main(["decode", str(capture), "--limit", "1"]) == 0
        out, err = capsys.readouterr()
        assert "ping, added 1" in out and "main-000001.cap" not in out
        assert err == "logclient: stopped after 1 frames; there are more\n"

    def test_a_capture_is_decoded_as_json(self, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = [json.loads(line) for line in run(capsys, str(capture), "--json", code=1)[0]]
        assert {row["listener"] for row in found} == {"main"}
        assert [row["arrival"] for row in found if row["depth"] == 0 and row["offset"] == 0] == [1, 2, 3, 4]
        assert found[4]["direction"] == "to"
        assert found[4]["ack"] == 2

    def test_damage_of_a_capture_is_named(self, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
        segment = capture / "main-000001.cap"
        data = bytearray(segment.read_bytes())
        data[data.index(GOOD) + 10] ^= 1
        segment.write_bytes(data[:-5])
        _, err = run(capsys, str(segment), code=1)
        assert "CRC of a record" in err[0]
        assert "arrival 2 where 1 was due" in err[1]
        assert "no end record" in err[2]
        assert err[3] == "8 frames, 3 wrong"

    def test_a_segment_without_a_header_has_the_protocol_of_an_earlier_one(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for _ in range(3):
            with closing(CaptureWriter(tmp_path, "main", "lumberjack")) as writer:
                writer.unit(writer.stream("x"), GOOD)

        def damage(number: int) -> None:
            segment = tmp_path / f"main-00000{number}.cap"
            segment.write_bytes(segment.read_bytes().replace(b'{"run"', b'["run"'))

        damage(2)
        assert cli.main(["decode", str(tmp_path)]) == 1
        out, err = capsys.readouterr()
        assert out.count("2J sequence 2") == 3
        assert err.endswith("12 frames, 1 wrong\n")
        damage(1)  # then nothing says it, except --protocol
        assert cli.main(["decode", str(tmp_path)]) == 1
        found, err = capsys.readouterr()
        assert [line for line in found.splitlines() if line[0] != " "] == [
            line for line in out.splitlines() if line[0] != " "
        ]
        assert found.count("WRONG at byte 0: the protocol is unknown") == 2
        assert err.endswith("6 frames, 4 wrong\n")  # two units, two headers
        assert run(capsys, str(tmp_path), code=1)[0] == out.splitlines()

    def test_a_directory_without_a_segment_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "capture").mkdir()
        _, err = run(capsys, str(tmp_path), code=2)
        assert err == [
            f"logclient: capture: {tmp_path} has no segment: their names are <listener>-<nnnnnn>.cap"
        ]


def test_escape_keeps_printable_text() -> None:
    assert escape("plain ☃ text") == "plain ☃ text"
    assert readable.hexdump(b"\x00A\xff", 32) == [
        "00000020  00 41 ff                                          |.A.|"
    ]
    assert readable.shown(b"") == ""
