"""How commands end: exit codes of signals and errors, and readers of their output that end first."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from logclient import cli
from tests.support import verify_files as files
from tests.support.patience import PATIENCE, wait_until
from tests.support.processes import end_reader
from tests.support.wrong_servers import dead

BOTH = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "logclient", *arguments], **{**pipes, **options})


@contextmanager
def stream_server() -> Iterator[tuple[str, Callable[[ExitStack], None]]]:
    """A TCP server that says nothing: its address, and a function that waits until it was asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)

        def asked(stack: ExitStack) -> None:
            while True:  # check connects once without a word
                peer = stack.enter_context(server.accept()[0])
                peer.settimeout(PATIENCE)
                if peer.recv(1):
                    return

        yield f"127.0.0.1:{server.getsockname()[1]}", asked


@contextmanager
def datagram_server() -> Iterator[tuple[str, Callable[[ExitStack], None]]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(PATIENCE)
        yield f"127.0.0.1:{server.getsockname()[1]}", lambda _: server.recv(1) and None


class TestSignals:
    @pytest.mark.slow
    @pytest.mark.parametrize(("number", "code", "word"), BOTH)
    @pytest.mark.parametrize(
        ("command", "scheme", "server"),
        [
            (["check"], "lumberjack", stream_server),
            (["stat"], "plog", datagram_server),
            (["stat", "--settings"], "plog", datagram_server),
        ],
    )
    def test_a_signal_ends_a_command_that_waits(
        self, command: list[str], scheme: str, server: Any, number: int, code: int, word: str
    ) -> None:
        with server() as (place, asked), ExitStack() as stack:
            process = start(*command, f"{scheme}://{place}", "--timeout", "1h")
            asked(stack)
            process.send_signal(number)
            _, error = process.communicate(timeout=PATIENCE)
        assert (process.returncode, error.decode()) == (code, f"logclient: {word}\n")

    @pytest.mark.parametrize(("number", "code", "word"), BOTH)
    def test_a_signal_ends_a_command_that_reads(
        self, tmp_path: Path, number: int, code: int, word: str
    ) -> None:
        os.mkfifo(tmp_path / "pipe")
        process = start("decode", "--protocol", "lumberjack", str(tmp_path / "pipe"))
        with open(tmp_path / "pipe", "wb"):  # as soon as somebody reads
            end_reader(process, number)
        assert process.communicate() == (b"", f"logclient: {word}\n".encode())
        assert process.returncode == code

    @pytest.mark.slow
    @pytest.mark.parametrize(("number", "code", "word"), BOTH)
    def test_a_signal_ends_a_drain_with_events_left(
        self, tmp_path: Path, number: int, code: int, word: str
    ) -> None:
        """The server does not answer, so that the events stay."""
        spool = tmp_path / "spool"
        script = (
            "import logclient, os, sys\n"
            "client = logclient.connect('lumberjack://127.0.0.1:1', spool=sys.argv[1], spool_mode='always')\n"
            "client.send({'message': 'left'})\n"
            "os._exit(0)\n"
        )
        subprocess.run([sys.executable, "-c", script, str(spool)], check=True, timeout=2 * PATIENCE)
        with stream_server() as (place, asked), ExitStack() as stack:
            process = start("spool", "drain", str(spool), "--to", f"lumberjack://{place}", "--json")
            asked(stack)
            process.send_signal(number)
            out, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == code
        assert error.decode().splitlines()[-1] == f"logclient: {word}"
        assert (json.loads(out)["left"], json.loads(out)["exit"]) == (1, code)

    @pytest.mark.parametrize(("number", "code", "word"), BOTH)
    def test_a_signal_during_the_imports_is_silent(
        self, tmp_path: Path, number: int, code: int, word: str
    ) -> None:
        (tmp_path / "argparse.py").write_text(
            f"import pathlib\npathlib.Path({str(tmp_path / 'began')!r}).touch()\nwhile True: pass\n"
        )
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        process = start("--version", env={**os.environ, "PYTHONPATH": path})
        wait_until((tmp_path / "began").exists, "nothing was imported")
        process.send_signal(number)
        assert process.communicate(timeout=PATIENCE) == (b"", b"")
        assert process.returncode == code


class TestErrors:
    def test_an_unexpected_error_asks_for_a_report(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(arguments: object) -> int:
            raise ZeroDivisionError("oops\x1b[m")

        monkeypatch.setattr("logclient.cli.completion.run", fail)
        assert cli.main(["completion", "bash"]) == 70
        out, error = capsys.readouterr()
        assert out == ""
        assert error == (
            "logclient: an error in logclient, please report it with the traceback that --debug shows: "
            "ZeroDivisionError: oops\\x1b[m\n"
        )
        assert (
            cli.main(["--debug", "completion", "bash"]) == cli.main(["completion", "bash", "--debug"]) == 70
        )
        assert capsys.readouterr().err.count("Traceback (most recent call last)") == 2


@pytest.fixture
def closed_pipe() -> Iterator[IO[bytes]]:
    """The end of a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe:
        yield pipe


class TestReadersThatEnd:
    def run(self, pipe: Any, *arguments: str, **options: Any) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "logclient", *arguments],
            stderr=subprocess.PIPE, stdout=pipe, timeout=2 * PATIENCE, check=False, **options,
        )  # fmt: skip
        return done.returncode, done.stderr.decode()

    @pytest.mark.parametrize("as_json", [[], ["--json"]])
    def test_decode_ends_with_its_reader(
        self, closed_pipe: IO[bytes], tmp_path: Path, as_json: list[str]
    ) -> None:
        """It reads no further, so the errors behind the first line are none of its business."""
        (tmp_path / "wire").write_bytes(files.window([b'{"a":1}']) + b"nonsense" * 10_000)
        command = ["decode", "--protocol", "lumberjack", str(tmp_path / "wire"), *as_json]
        assert self.run(closed_pipe, *command)[0] == 0

    @pytest.mark.slow
    def test_the_list_of_a_spool_ends_with_its_reader(self, closed_pipe: IO[bytes], tmp_path: Path) -> None:
        script = (
            "import logclient, os, sys\n"
            "for _ in range(3):\n"
            "    logclient.connect('lumberjack://127.0.0.1:1', spool=sys.argv[1], spool_mode='always')"
            ".send('left')\n"
            "os._exit(0)\n"
        )
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=2 * PATIENCE)
        assert self.run(closed_pipe, "spool", "ls", str(tmp_path)) == (0, "")

    def test_other_commands_keep_their_code(self, closed_pipe: IO[bytes]) -> None:
        with dead() as port:
            url = f"lumberjack://127.0.0.1:{port}"
            assert self.run(closed_pipe, "check", url) == (3, "")
            assert self.run(closed_pipe, "send", url, "--timeout", "0.2", input=b"line\n")[0] == 3
        assert self.run(closed_pipe, "--help") == (0, "")

    def test_an_error_after_the_end_of_the_reader_is_reported(self, closed_pipe: IO[bytes]) -> None:
        script = (
            "import sys\n"
            "from logclient.cli.exits import run_command\n"
            "def work():\n"
            "    print('a line that nobody reads', flush=True)\n"
            "    raise OSError(28, 'No space left on device', 'capture')\n"
            "sys.exit(run_command(work))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            stderr=subprocess.PIPE, stdout=closed_pipe, timeout=2 * PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr == b"logclient: capture: No space left on device\n"

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_a_full_disk_behind_the_output_is_named(self, tmp_path: Path, unbuffered: str) -> None:
        (tmp_path / "wire").write_bytes(files.window([b'{"a":1}']))
        command = ["decode", "--protocol", "lumberjack", str(tmp_path / "wire")]
        with open("/dev/full", "wb") as full:
            code, error = self.run(full, *command, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
        assert code == 2
        assert error.splitlines()[-1] == "logclient: standard output: No space left on device"

    def test_closed_stderr_changes_nothing(self, closed_pipe: IO[bytes]) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "logclient", "check", "nonsense"],
            stderr=closed_pipe, timeout=2 * PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 2
