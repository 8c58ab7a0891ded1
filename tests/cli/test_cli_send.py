"""``logclient send`` and ``collect``: delivered events, counts, and how they end."""

from __future__ import annotations

import bz2
import fcntl
import gzip
import io
import json
import lzma
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import IO, Any

import pytest

from logclient import cli, connect
from logclient.cli.progress import ProgressLine, RateEstimate
from logclient.errors import EncodeError
from logclient.testing.lumberjack import Collector
from tests.support import need
from tests.support.patience import PATIENCE, wait_until
from tests.support.processes import end_reader
from tests.support.wrong_servers import dead


def zstd(data: bytes) -> bytes:
    module = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    compressed: bytes = need(module).compress(data)
    return compressed


COMPRESS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstd}


@pytest.fixture
def server() -> Iterator[Collector]:
    with Collector(keep=True) as collector:
        yield collector


@pytest.fixture
def dead_url() -> Iterator[str]:
    """A URL whose port refuses connections."""
    with dead() as port:
        yield f"lumberjack://127.0.0.1:{port}?backoff_max=100ms"


def messages(server: Collector, n: int) -> list[str]:
    return [event["message"] for event in server.events(n)]


def send(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run ``send --json`` in this process; return the printed result."""
    assert cli.main(["send", *arguments, "--json"]) == code, capsys.readouterr().err
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["exit"] == code
    return result


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "logclient", *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def _wait_until_it_reads(process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
    """Wait until the command reads its standard input: the pipe is empty."""
    import fcntl
    import struct
    import termios

    deadline = time.monotonic() + PATIENCE
    while struct.unpack("i", fcntl.ioctl(pipe.fileno(), termios.FIONREAD, b"\0" * 4))[0]:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestText:
    def test_lines_arrive_in_order_and_are_acked(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        one, two = tmp_path / "one.log", tmp_path / "two.log"
        one.write_bytes("first\nsecond\r\n\nthird ☃\n".encode())
        two.write_bytes(b"last line without an end")
        result = send(capsys, server.url, str(one), str(two))
        assert messages(server, 4) == ["first", "second", "third ☃", "last line without an end"]
        assert (result["sent"], result["acked"], result["blank"]) == (4, 4, 1)
        assert result["failed"] == result["dropped"] == {}
        assert result["outstanding"] == result["replaced"] == result["refused"] == 0
        assert result["connects"] == 1
        assert result["url"] == server.url

    def test_repeat_sends_the_files_again(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_text("a\nb\n")
        assert send(capsys, server.url, str(file), "--repeat", "3")["acked"] == 6
        assert messages(server, 6) == ["a", "b"] * 3

    def test_invalid_bytes_are_replaced_and_counted(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_bytes(
            b"ok \xff\xfe end\nalready \xef\xbf\xbd replaced\nboth \xef\xbf\xbd\xff\nnul \x00 end\n"
        )
        result = send(capsys, server.url, str(file))
        assert result["replaced"] == 3
        assert result["acked"] == 4
        assert messages(server, 4) == [
            "ok \ufffd\ufffd end",
            "already \ufffd replaced",
            "both \ufffd\ufffd",
            "nul \x00 end",
        ]

    def test_a_line_too_long_fails_alone(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_bytes(b"before\n" + b"x" * 10_000 + b"\nafter\n")
        result = send(capsys, f"{server.url}?max_event_bytes=1k", str(file), code=1)
        assert result["failed"] == {"too_large": 1}
        assert (result["sent"], result["acked"]) == (3, 2)
        assert messages(server, 2) == ["before", "after"]

    def test_a_ledger_is_kept_on_request(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_text("a\nb\n")
        send(capsys, server.url, str(file), "--ledger", str(tmp_path / "ledger"))
        (ledger,) = (tmp_path / "ledger").glob("*.ledger")
        assert json.loads(ledger.read_text().splitlines()[-1])["acked"] == 2

    def test_rate_is_an_upper_bound(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_text("a\n" * 21)
        result = send(capsys, server.url, str(file), "--rate", "100/s")
        assert result["acked"] == 21
        assert result["seconds"] >= 0.2

    def test_text_output_has_all_counts(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_bytes(b"a\n\n\xff\n" + b"x" * 2000)
        assert cli.main(["send", f"{server.url}?max_event_bytes=1k", str(file)]) == 1
        out = capsys.readouterr().out
        assert out.startswith("sent 3 in ")
        for words in ("acked 2,", "failed 1 (too_large 1)", "dropped 0", "blank lines 1", "bytes replaced 1"):
            assert words in out

    def test_an_empty_file_is_exit_0(
        self, dead_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "empty").touch()
        assert send(capsys, dead_url, str(tmp_path / "empty"))["sent"] == 0


class TestFiles:
    """Kinds of files, and the fields that describe the origin of a line."""

    def test_a_line_has_its_time_and_file(
        self,
        server: Collector,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("a.log").write_text("a line\n")
        before = datetime.now(UTC)
        send(capsys, server.url, "a.log")
        [event] = server.events(1)
        assert event["message"] == "a line"
        assert event["log"]["file"]["path"] == str(tmp_path / "a.log")
        millisecond = timedelta(milliseconds=1)
        assert before - millisecond <= datetime.fromisoformat(event["@timestamp"]) <= datetime.now(UTC)

    def test_standard_input_has_no_path(self, server: Collector) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "logclient", "send", server.url],
            input=b"a line\n",
            capture_output=True,
            timeout=2 * PATIENCE,
            check=True,
        )
        assert done.stderr == b""
        [event] = server.events(1)
        assert event["message"] == "a line"
        assert "@timestamp" in event
        assert "log" not in event

    @pytest.mark.parametrize("format", ["text", "ndjson"])
    @pytest.mark.parametrize("method", COMPRESS)
    def test_compressed_files_are_read(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, format: str
    ) -> None:
        random = Random(1)
        lines = [json.dumps({"message": f"{n} {random.randbytes(40).hex()}"}) for n in range(2000)]
        data = "\n".join(lines).encode()
        file = tmp_path / "a.log.1"  # the name says nothing
        file.write_bytes(COMPRESS[method](data[:50_000]) + COMPRESS[method](data[50_000:]))  # two members
        assert send(capsys, server.url, str(file), "--format", format)["acked"] == 2000
        got = messages(server, 2000)
        assert got == (lines if format == "text" else [json.loads(line)["message"] for line in lines])

    def test_compressed_standard_input_is_read(self, server: Collector) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "logclient", "send", server.url, "-", "--json"],
            input=gzip.compress(b"one\ntwo\n"),
            capture_output=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert messages(server, 2) == ["one", "two"]

    def test_compressed_standard_input_may_come_byte_by_byte(self, server: Collector) -> None:
        data = gzip.compress(b"one\ntwo\n")
        command = [sys.executable, "-m", "logclient", "send", server.url, "-"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            assert process.stdin is not None
            process.stdin.write(data[:1])
            process.stdin.flush()
            pipe = process.stdin.fileno()
            wait_until(
                lambda: not any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))), "the first byte is read"
            )
            process.stdin.write(data[1:])
            process.stdin.close()
            assert process.wait(2 * PATIENCE) == 0
        assert messages(server, 2) == ["one", "two"]

    @pytest.mark.slow
    @pytest.mark.parametrize("method", COMPRESS)
    def test_the_readable_part_of_damaged_data_is_sent(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
    ) -> None:
        random = Random(2)
        lines = [f"{n} {random.randbytes(100).hex()}" for n in range(20_000)]
        data = bytearray(COMPRESS[method]("\n".join(lines).encode()))
        short, damaged = tmp_path / "short", tmp_path / "damaged"
        short.write_bytes(data[: len(data) // 2])
        data[len(data) // 2 : len(data) // 2 + 20] = bytes(20)
        damaged.write_bytes(data)
        for file, why in ((short, "ends in the middle of"), (damaged, "damaged")):
            assert cli.main(["send", server.url, str(file), "--json"]) == 1
            out, err = capsys.readouterr()
            acked = json.loads(out)["acked"]
            assert acked >= 1000
            got = messages(server, acked)
            # Damage may show late: gzip has a checksum at its end and bzip2 at the end of a block, and what
            # a decoder makes of the bytes between may have any number of lines.
            assert got[:1000] == lines[:1000]
            assert file == damaged or (acked < len(lines) and got == lines[:acked])
            assert err.startswith(f"logclient: {file}: ")
            assert why in err
            assert f"{method} data" in err
            assert err.endswith(": the rest was not sent\n")
            server.take()

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (b"PK\x03\x04" + bytes(100), "a zip archive"),
            (b"a.log".ljust(257, b"\0") + b"ustar\x0000" + bytes(1000), "a tar archive"),
            (gzip.compress(b"a.log".ljust(257, b"\0") + b"ustar\x0000" + bytes(1000)), "a tar archive"),
            ("text".encode("utf-16"), "UTF-16 text (iconv"),
            (b"LPKSHHRH" + bytes(100), "a journal of systemd (journalctl -o json"),
            (b"\x7fELF" + bytes(100), "binary data"),
            (bytes(range(256)) * 40, "binary data"),
            (bytes(10_000) + b"text\n" * 10_000, "binary data"),
        ],
        ids=["zip", "tar", "tar.gz", "utf-16", "journal", "elf", "bytes", "sparse"],
    )
    def test_binary_files_are_refused_before_sending(
        self, dead_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, says: str
    ) -> None:
        good, bad = tmp_path / "good.log", tmp_path / "bad.log"
        good.write_text("a line\n")
        bad.write_bytes(data)
        assert cli.main(["send", dead_url, str(good), str(bad)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"logclient: {bad}: not text, but {says}")
        assert err.count("\n") == 1

    def test_binary_standard_input_is_refused(self, dead_url: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "logclient", "send", dead_url],
            input=b"PK\x03\x04" + bytes(100),
            capture_output=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert done.returncode == 1
        said = b"logclient: standard input: not text, but a zip archive: the rest was not sent\n"
        assert done.stderr == said

    @pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1251", "koi8-r", "shift_jis", "iso2022_jp"])
    def test_text_in_any_encoding_is_sent(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str], encoding: str
    ) -> None:
        words = {"latin-1": "\xe4\xf6\xfc", "cp1251": "Привет", "koi8-r": "Привет"}.get(encoding, "日本語")
        file = tmp_path / "a.log"
        file.write_bytes(f"\x1b[31m{words * 10}\x1b[0m\a\n".encode(encoding) * 50)
        assert send(capsys, server.url, str(file))["acked"] == 50

    def test_a_missing_library_is_named(
        self,
        dead_url: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name in ("compression", "backports.zstd"):
            monkeypatch.setitem(sys.modules, name, None)
        if find_spec("backports") is not None:
            monkeypatch.delattr("backports.zstd", raising=False)
        file = tmp_path / "a.zst"
        file.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
        assert cli.main(["send", dead_url, str(file)]) == 2
        err = capsys.readouterr().err
        assert err == 'logclient: backports.zstd is not installed: pip install "logclient[zstd]"\n'


class TestNdjson:
    def test_json_objects_are_sent_unchanged(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.ndjson"
        file.write_text('{"a": [1.50, "☃", null]}\n\n  {"message": "x"}  \r\n', encoding="utf-8")
        result = send(capsys, server.url, str(file), "--format", "ndjson")
        assert (result["sent"], result["acked"], result["blank"]) == (2, 2, 1)
        first, second = server.events(2)
        assert first["a"] == [1.5, "☃", None]
        assert second["message"] == "x"

    def test_invalid_json_lines_are_refused_by_number(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bad = ["[1]", '"text"', "5", "null", "{", '{"a": NaN}', '{"a": 1} x', "{'a': 1}", "[" * 100_000]
        file = tmp_path / "a.ndjson"
        file.write_text(
            '{"message": "first"}\n' + "".join(f"{line}\n" for line in bad) + '{"message": "last"}\n'
        )
        assert cli.main(["send", server.url, str(file), "--format", "ndjson", "--json"]) == 1
        out, err = capsys.readouterr()
        result = json.loads(out)
        assert (result["sent"], result["acked"], result["refused"]) == (2, 2, len(bad))
        assert messages(server, 2) == ["first", "last"]
        for number in range(2, 2 + len(bad)):
            assert f"a.ndjson:{number}: not a JSON object\n" in err

    def test_a_number_that_is_not_finite_is_refused_by_its_line(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.ndjson"
        file.write_text('{"message": 1e308}\n{"a": [1e999]}\n{"a": -1e999}\n{"message": 1e-999}\n')
        assert cli.main(["send", server.url, str(file), "--format", "ndjson", "--json"]) == 1
        out, err = capsys.readouterr()
        result = json.loads(out)
        assert (result["sent"], result["acked"], result["refused"], result["failed"]) == (2, 2, 2, {})
        assert all(f"a.ndjson:{number}: a number is too large\n" in err for number in (2, 3))

    def test_many_refusals_are_counted_and_ten_listed(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.ndjson"
        file.write_text("no\n" * 500)
        assert cli.main(["send", server.url, str(file), "--format", "ndjson"]) == 1
        out, err = capsys.readouterr()
        assert "lines refused 500" in out
        assert err.count("not a JSON object") == 10

    def test_a_json_line_too_long_is_refused(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.ndjson"
        file.write_text('{"a": "' + "x" * 5000 + '"}\n{"message": "after"}\n')
        assert cli.main(["send", f"{server.url}?max_event_bytes=1k", str(file), "--format", "ndjson"]) == 1
        assert "a.ndjson:1: longer than 1024 bytes" in capsys.readouterr().err
        assert messages(server, 1) == ["after"]


class TestFallback:
    def test_what_a_client_lost_is_sent_as_it_was(
        self, server: Collector, dead_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "lost.jsonl"
        lost = {"message": "☃" * 300, "big": 2**60 + 1, "share": 1e-7, "deep": [{"a": None}]}
        with connect(f"{dead_url}&fallback={file}&max_event_bytes=1k") as client:
            client.send(lost)
            with pytest.raises(EncodeError):
                client.send({"message": "x" * 2000})
            client.close(timeout=0)
        capsys.readouterr()
        assert cli.main(["send", server.url, str(file), "--format", "fallback", "--json"]) == 1
        out, err = capsys.readouterr()
        assert json.loads(out)["acked"] == json.loads(out)["refused"] == 1
        assert "no event, only what became of it" in err
        (event,) = server.events(1)
        assert {name: event[name] for name in lost} == lost

    def test_bytes_of_json_keep_each_digit(
        self, server: Collector, dead_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "lost.jsonl"
        body = b'{"a": 1.10, "b":1E5,"b":0.1234567890123456789,"event":"c"}'
        with connect(f"{dead_url}&fallback={file}") as client:
            client.send(body)
            client.close(timeout=0)
        capsys.readouterr()
        again = tmp_path / "again.jsonl"
        url = f"{dead_url}&fallback={again}"
        assert cli.main(["send", url, str(file), "--format", "fallback", "--timeout", "100ms"]) == 3
        assert [path.read_bytes().split(b',"event":', 1)[1] for path in (file, again)] == [body + b"}\n"] * 2

    def test_texts_and_bytes_are_sent_as_they_were(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = [{"text": f'{{"a":{" " * 900}1}}'}, {"base64": "eyJhIjoyfQ=="}]
        lines += [{"text": "\ud800"}, {"base64": "!"}, {"id": "00"}]
        file = tmp_path / "lost.jsonl"
        file.write_text("".join(json.dumps({"status": "failed"} | line) + "\n" for line in lines))
        url = f"{server.url}?max_event_bytes=1k"
        assert cli.main(["send", url, str(file), "--format", "fallback", "--json"]) == 1
        result = json.loads(capsys.readouterr().out)
        assert (result["sent"], result["refused"]) == (2, 3)
        assert [event["a"] for event in server.events(2)] == [1, 2]


class TestFailures:
    def test_a_dead_server_is_exit_3_with_one_line(
        self, dead_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_text("a\n" * 100)
        assert cli.main(["send", dead_url, str(file), "--timeout", "300ms", "--json"]) == 3
        out, err = capsys.readouterr()
        result = json.loads(out)
        assert (result["exit"], result["connects"], result["acked"]) == (3, 0, 0)
        assert sum(result["failed"].values()) + sum(result["dropped"].values()) == 100
        assert [line for line in err.splitlines() if "nothing could be reached for 0.3s" in line]
        assert "Traceback" not in err

    def test_a_full_queue_times_out(
        self, dead_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_text("a\n" * 5000)
        url = f"{dead_url}&max_events=100"
        result_code = cli.main(["send", url, str(file), "--timeout", "300ms", "--json"])
        assert result_code == 3
        assert json.loads(capsys.readouterr().out)["sent"] < 5000

    def test_a_server_that_never_answers_is_exit_3(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_text("a\n")
        with Collector(faults="stall=every:1") as server:
            assert cli.main(["send", server.url, str(file), "--timeout", "300ms", "--json"]) == 3
        out, err = capsys.readouterr()
        assert json.loads(out)["connects"] == 1
        assert "connected, but nothing was acknowledged for 0.3s" in err

    @pytest.mark.skipif(sys.platform != "linux", reason="needs a file that opens and cannot be read")
    def test_an_unreadable_file_is_exit_2(
        self, dead_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_text("a\n")
        assert cli.main(["send", dead_url, str(file), "/proc/self/mem"]) == 2
        assert capsys.readouterr().err == "logclient: /proc/self/mem: Input/output error\n"

    def test_a_file_cut_short_is_exit_1(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file, short = tmp_path / "a.log", tmp_path / "short.gz"
        file.write_text("a\n")
        short.write_bytes(gzip.compress(b"b\n")[:-1])
        assert cli.main(["send", server.url, str(file), str(short), str(file), "--json"]) == 1
        out, err = capsys.readouterr()
        assert (json.loads(out)["acked"], json.loads(out)["exit"]) == (2, 1)
        assert err == f"logclient: {short}: ends in the middle of its gzip data: the rest was not sent\n"

    def test_overflow_of_the_url_is_respected(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "a.log"
        file.write_text("".join(f"{n}\n" for n in range(3000)))
        server.hold()
        threading.Timer(0.3, server.release).start()
        result = send(
            capsys, f"{server.url}?overflow=raise&max_events=100&keep_level=none", str(file), code=1
        )
        assert result["dropped"]["overflow"] > 0
        assert result["acked"] + result["dropped"]["overflow"] == result["sent"] == 3000


class TestProcesses:
    @pytest.mark.slow
    def test_a_pause_of_standard_input_does_not_time_out(self, server: Collector) -> None:
        process = _start("send", server.url, "--timeout", "200ms", "--json")
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        server.events(1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.6)
        out, err = process.communicate(b"two\n", timeout=PATIENCE)
        assert process.returncode == 0, err
        assert json.loads(out)["acked"] == 2

    def test_an_interrupt_while_reading_delivers_and_reports(self, server: Collector) -> None:
        process = _start("send", server.url, "-")
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        server.events(1)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        assert process.returncode == 130
        assert b"acked 1" in out
        assert b"interrupted" in err
        assert b"Traceback" not in err
        assert b"Fatal" not in err

    def test_sigterm_delivers_the_lines_read(self, server: Collector, tmp_path: Path) -> None:
        process = _start("send", server.url, "--ledger", str(tmp_path / "ledger"))
        server.hold()
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        server.events(1)  # it was sent, and has no acknowledgement yet
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)  # it waits for that
        server.release()
        process.wait(PATIENCE)  # standard input is open: the signal ends it
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        assert (process.returncode, err) == (143, b"logclient: terminated\n")
        assert b"acked 1, handed 0, failed 0, dropped 0\n" in out
        (ledger,) = (tmp_path / "ledger").glob("*.ledger")
        last = json.loads(ledger.read_text().splitlines()[-1])
        assert (last["t"], last["acked"]) == ("close", 1)

    def test_an_ignored_signal_stays_ignored(self, server: Collector) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = _start("send", server.url, "-", "--json")
        finally:
            signal.signal(signal.SIGINT, before)
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        server.events(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(b"two\n", timeout=PATIENCE)
        assert (process.returncode, err) == (0, b"")
        assert json.loads(out)["acked"] == 2

    def test_a_named_pipe_is_read_to_its_end(self, server: Collector, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        process = subprocess.Popen(
            [sys.executable, "-m", "logclient", "send", server.url, str(tmp_path / "pipe"), "--json"],
            stdout=subprocess.PIPE,
        )
        with open(tmp_path / "pipe", "wb", buffering=0) as pipe:  # as soon as somebody reads
            pipe.write(b"one\n")
            server.events(1)
            pipe.write(b"two\n")
        out, _ = process.communicate(timeout=PATIENCE)
        assert json.loads(out)["acked"] == 2

    @pytest.mark.parametrize(
        "arguments", [["send", "{dead}", "-"], ["decode", "--protocol", "lumberjack", "-"]]
    )
    def test_an_interrupt_ends_an_idle_command(self, dead_url: str, arguments: list[str]) -> None:
        process = _start(*(word.format(dead=dead_url) for word in arguments))
        assert process.stdin is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        _wait_until_it_reads(process, process.stdin)
        once = end_reader(process, signal.SIGINT)
        err = process.communicate()[1].splitlines()
        assert process.returncode == 130
        assert err[-1] == b"logclient: interrupted"
        assert len(err) <= 2 or not once  # and why it waited

    def test_an_unreachable_server_is_exit_3(self, dead_url: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "logclient", "send", dead_url, "--timeout", "0.2"],
            input=b"line\n",
            capture_output=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert done.returncode == 3
        assert b"nothing could be reached" in done.stderr
        assert b"Traceback" not in done.stderr

    def test_collect_prints_its_port_and_counts(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "logclient", "collect", "lumberjack://127.0.0.1:0"),
                *(
                    "--capture",
                    str(tmp_path / "capture"),
                    "--faults",
                    "cut-before-ack=every:2:max:1",
                    "--json",
                ),
            ],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        file = tmp_path / "a.log"
        file.write_text("".join(f"{n}\n" for n in range(500)))
        result = send(capsys, f"{url}?window=100", str(file))
        assert result["acked"] == 500
        assert result["connects"] == 2
        process.terminate()
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        counts = json.loads(out)
        assert counts["cuts"] == counts["cuts_before_ack"] == 1
        assert counts["captured_events"] == 500 + counts["copies"]
        assert os.listdir(tmp_path / "capture")

    def test_collect_ends_after_the_given_time(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capture = str(tmp_path / "capture")
        assert cli.main(["collect", "lumberjack://127.0.0.1:0", "--capture", capture, "--for", "50ms"]) == 0
        assert "0 events in 0 windows over 0 connections" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (["lumberjack://127.0.0.1:0", "--faults", "explode=every:1"], 2, "'explode' is not a fault"),
            (["http://127.0.0.1:0"], 2, "scheme: 'http' is none of"),
            (["lumberjack://127.0.0.1:0?window=5"], 2, "window: not an option of a collector"),
            (["lumberjack://me:hunter2@127.0.0.1:0"], 2, "user:password@ is not accepted"),
        ],
    )
    def test_collect_refuses_wrong_arguments(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
    ) -> None:
        assert cli.main(["collect", *arguments, "--capture", str(tmp_path / "c")]) == code
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1
        assert "hunter2" not in err

    def test_collect_on_a_used_port_is_exit_3(
        self, server: Collector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["collect", server.url, "--capture", str(tmp_path / "c")]) == 3
        assert "in use" in capsys.readouterr().err


class TestProgress:
    def test_progress_has_percent_rate_and_time_left(self) -> None:
        estimate = RateEstimate()
        assert estimate.text(100.0, 0, 0.0) == "0%, "  # too early to say more
        assert estimate.text(102.0, 5000, 0.25) == "25%, 2,500/s, 0:06 left, "
        assert estimate.text(104.0, 5000, 0.25) == "25%, 1,250/s, 0:12 left, "
        for second in range(105, 116):
            said = estimate.text(float(second), 5000, 0.25)
        assert said == "25%, 0/s, "  # it stands still
        assert estimate.text(116.0, 5010, 0.2501) == "25%, 1/s, 20:49:50 left, "
        assert estimate.text(117.0, 20_000, 0.999) == "99%, 1,500/s, 0:00 left, "

    @pytest.mark.slow
    def test_progress_is_shown_in_a_terminal(self, server: Collector, tmp_path: Path) -> None:
        from tests.cli.terminal import Terminal

        file = tmp_path / "a.log"
        file.write_text("".join(f"line {n}\n" for n in range(3000)))
        command = (sys.executable, "-m", "logclient", "send", server.url, str(file), "--rate", "1000/s")
        with Terminal(*command, environment=dict(os.environ), folder=tmp_path) as terminal:
            terminal.until(r"\r\d+%, [\d,]+/s, 0:0\d left, sent \d+, acked \d+, waiting \d+")
            terminal.until(r"\r +\rsent 3000 in .*: acked 3000, ")
            assert terminal.process.wait(PATIENCE) == 0

    def test_progress_without_a_size_has_only_the_rate(self) -> None:
        estimate = RateEstimate()
        assert estimate.text(0.0, 0, None) == ""
        assert estimate.text(4.0, 10, None) == "2/s, "

    def test_a_terminal_gets_one_rewritten_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        progress = ProgressLine()
        progress.show("a long line")
        progress.show("short")
        progress.clear()
        progress.clear()
        assert screen.getvalue() == "\ra long line\rshort      \r     \r"

    def test_a_file_gets_a_line_every_ten_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        screen = io.StringIO()
        monkeypatch.setattr(sys, "stderr", screen)
        progress = ProgressLine()
        progress.show("too early")
        progress.last -= 11
        progress.show("time for a line")
        progress.show("too early again")
        progress.clear()
        assert screen.getvalue() == "time for a line\n"
