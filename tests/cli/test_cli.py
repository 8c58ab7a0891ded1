"""The command line: refused arguments, exit codes and one-line errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest

import logclient
from logclient import cli
from logclient.errors import ConnectFailed, ExitCode, LedgerError, LogclientError, MissingExtra, ProtocolError
from tests.support.patience import PATIENCE


def command(
    *arguments: str, stdin: bytes = b"", timeout: float = 2 * PATIENCE
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "logclient", *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout,
        check=False,
    )


def error_line(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], code: int = 2) -> str:
    """Run in this process; return the one line on stderr."""
    assert cli.main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("logclient: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["nonsense"], "invalid choice: 'nonsense'"),
            (["--nonsense"], "required: COMMAND"),
            (["send"], "required: URL (see"),
            (["send", "lumberjack://h", "--nonsense"], "unrecognized arguments: --nonsense"),
            (["send", "lumberjack://h", "--rate", "fast"], "--rate: must be events a second"),
            (["send", "lumberjack://h", "--rate", "0"], "--rate: must be events a second"),
            (["send", "lumberjack://h", "--rate", "nan/s"], "--rate: must be events a second"),
            (["send", "lumberjack://h", "--repeat", "0"], "--repeat: must be a whole number from 1"),
            (["send", "lumberjack://h", "--repeat", "2"], "--repeat: standard input cannot be read again"),
            (["send", "lumberjack://h", "--timeout", "soon"], "--timeout: must be a duration"),
            (["send", "lumberjack://h", "--format", "xml"], "--format: invalid choice: 'xml'"),
            (["send", "lumberjack://h:0", "x"], "port: must be a whole number from 1 to 65535"),
            (["send", "lumberjack://h?windw=5", "x"], "windw: unknown option; did you mean window?"),
            (["send", "h:5044", "x"], "URL: must begin with a scheme"),
            (
                ["collect", "lumberjack+tls://h", "--capture", "x"],
                "cert: needed to listen on lumberjack+tls://h",
            ),
            (["send", "lumberjack://h", "no/such/file"], "no/such/file: No such file"),
            (["send", "lumberjack://h", "."], ".: Is a directory"),
            (["collect", "--capture", "x"], "required: URL"),
            (["collect", "lumberjack://h"], "--capture, --print: at least one of them is required"),
            (["verify", "--ledger", "x"], "--capture --kafka --table is required"),
            (["verify", "--ledger", "x", "--capture", "y", "--kafka", "h:1/t"], "not allowed with"),
            (["verify", "--ledger", "x", "--table", "t", "--columns", "body"], "must be as body=value"),
            (
                ["verify", "--ledger", "x", "--capture", "y", "--max-missing", "few"],
                "must be a count such as 100",
            ),
            (
                ["verify", "--ledger", "x", "--capture", "y", "--max-missing", "0.5"],
                "must be whole, or a share",
            ),
            (
                ["verify", "--ledger", "x", "--capture", "y", "--max-lost", "none"],
                "must be a count such as 100",
            ),
            (["decode", "run", "--limit", "-1"], "--limit"),
        ],
    )
    def test_wrong_usage_is_exit_2_and_one_line(
        self, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
    ) -> None:
        assert says in error_line(capsys, arguments)

    @pytest.mark.parametrize(
        "url",
        [
            "lumberjack://me:hunter2@host:5044",
            "lumberjack://host?token=hunter2",
            "me:hunter2@host",
            "lumberjack://h:hunter2",
        ],
    )
    def test_a_password_in_a_url_is_never_printed(self, capsys: pytest.CaptureFixture[str], url: str) -> None:
        assert "hunter2" not in error_line(capsys, ["send", url, "x"])
        assert cli.main(["--debug", "send", url, "x"]) == 2
        assert "hunter2" not in "".join(capsys.readouterr())

    def test_debug_shows_the_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in (
            ["--debug", "send", "h", "x"],
            ["send", "h", "x", "--debug"],
            ["--debug", "nonsense"],
        ):
            assert cli.main(arguments) == 2
            err = capsys.readouterr().err
            assert "Traceback" in err
            assert err.splitlines()[-1].startswith("logclient: ")

    def test_version_and_help_are_exit_0(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in (["--version"], ["--help"], ["send", "--help"], ["verify", "--help"]):
            with pytest.raises(SystemExit) as exit:
                cli.main(arguments)
            assert exit.value.code == 0
        out = capsys.readouterr().out
        assert out.startswith(f"logclient {logclient.__version__}\n")
        for word in ("decode", "send", "collect", "verify"):
            assert word in out

    def test_without_arguments_each_command_has_one_line(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as exit:
            cli.main([])
        assert exit.value.code == 0
        table = capsys.readouterr().out.partition("  COMMAND\n")[2].partition("\n\n")[0].splitlines()
        assert len(table) == 11
        assert all(re.fullmatch(r"    [a-z]+ +\S.*", line) for line in table)

    def test_the_package_runs_as_a_module(self) -> None:
        done = command("send", "lumberjack://me:hunter2@h")
        assert done.returncode == 2
        assert done.stderr.count(b"\n") == 1
        assert b"user:password@ is not accepted" in done.stderr
        assert b"hunter2" not in done.stderr + done.stdout
        done = command("--version")
        assert done.returncode == 0
        assert done.stdout.decode().split() == ["logclient", logclient.__version__]

    def test_help_loads_no_command_and_no_heavy_module(self) -> None:
        script = (
            "import sys\n"
            "before = set(sys.modules)\n"  # a measurement of coverage is there already
            "from logclient import cli\n"
            "try: cli.main(['--help'])\n"
            "except SystemExit: pass\n"
            "heavy = {'logclient.client', 'logclient.handler', 'pyspark', 'socket', 'json', 'asyncio'}\n"
            "heavy |= {f'logclient.cli.{name}' for name in ('send', 'verify', 'check')}\n"
            "print(sorted(heavy & set(sys.modules) - before), file=sys.stderr)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=2 * PATIENCE
        )
        assert done.stderr.strip() == "[]"


class TestErrorsOfCommands:
    """An error that a command raises ends in one line and its exit code."""

    @pytest.mark.parametrize(
        ("error", "code", "says"),
        [
            (ConnectFailed("nobody\nlistens"), ExitCode.UNREACHABLE, "nobody listens"),
            (ProtocolError("stat: no JSON"), ExitCode.UNREACHABLE, "stat: no JSON"),
            (MissingExtra("pyspark", "verify"), ExitCode.USAGE, 'pip install "logclient[verify]"'),
            (LedgerError("ledger: x is owned by uid 5"), ExitCode.USAGE, "owned by uid 5"),
            (
                FileNotFoundError(2, "No such file or directory", "x"),
                ExitCode.USAGE,
                "x: No such file or directory",
            ),
            (LogclientError("broken"), ExitCode.BROKEN, "broken"),
            (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted"),
        ],
    )
    def test_errors_of_commands_are_one_line(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        error: BaseException,
        code: ExitCode,
        says: str,
    ) -> None:
        def fail(arguments: object) -> int:
            raise error

        monkeypatch.setattr("logclient.cli.completion.run", fail)
        assert says in error_line(capsys, ["completion", "bash"], code)

    def test_a_closed_output_pipe_is_no_error(self) -> None:
        read, write = os.pipe()
        os.close(read)
        script = "import sys; from logclient import cli; sys.exit(cli.main(['send', '--help']))"
        done = subprocess.run(
            [sys.executable, "-u", "-c", script],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=2 * PATIENCE,
            check=False,
        )
        os.close(write)
        assert b"Traceback" not in done.stderr
        assert b"Exception ignored" not in done.stderr
