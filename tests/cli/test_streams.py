"""Commands whose standard streams are closed or full, and options between positional arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logclient.cli import main
from logclient.cli.parser import make_parser
from logclient.testing.lumberjack import Collector
from tests.support import clean_environment
from tests.support.patience import PATIENCE

COMMANDS = {
    "version": ["--version"],
    "help": ["--help"],
    "send": ["send", "URL", "lines"],
    "send nothing": ["send", "URL", "no-file"],
    "send standard input": ["send", "URL", "-"],
    "collect": ["collect", "lumberjack://127.0.0.1:0", "--print", "--for", "100ms"],
    "collect json": ["collect", "plog://127.0.0.1:0", "--print", "--json", "--for", "100ms"],
    "check": ["check", "URL"],
    "check json": ["check", "URL", "--json"],
    "check a dead server": ["check", "lumberjack://127.0.0.1:1", "--timeout", "1s"],
    "decode": ["decode", "--protocol", "lumberjack", "lines"],
    "decode standard input": ["decode", "--protocol", "plog", "-"],
    "verify": ["verify", "--local", "--ledger", "no-ledger", "--capture", "no-capture"],
    "report": ["report", "no-table", "--out", "page.html"],
    "push": ["push", ".", "no-url"],
    "spool ls": ["spool", "ls", "."],
    "spool purge": ["spool", "purge", "."],
    "stat": ["stat", "plog://127.0.0.1:1", "--timeout", "50ms"],
    "completion": ["completion", "bash"],
}
WAYS = {
    "as they are": "",
    "no input": "<&-",
    "no output": ">&-",
    "no errors": "2>&-",
    "none": "<&- >&- 2>&-",
    "full output": ">/dev/full",
    "full errors": "2>/dev/full",
}
READS = ("send standard input", "decode standard input")


def ended(folder: Path, url: str, name: str, way: str) -> subprocess.CompletedProcess[str]:
    """Run a command with its streams redirected by a shell."""
    words = [url if word == "URL" else word for word in COMMANDS[name]]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {WAYS[way]}', "sh", sys.executable, "-m", "logclient", *words],
        cwd=folder,
        env=clean_environment(PYTHONPATH=":".join(filter(None, sys.path))),
        input="",
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_closed_and_full_streams_are_no_error_of_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / "lines").write_text("one\n")
    with Collector(keep=True) as collector:
        found = {way: ended(tmp_path, collector.url, name, way) for way in WAYS}
    usual = found["as they are"].returncode
    for way, done in found.items():
        assert "Traceback" not in done.stderr, (way, done.stderr)
        if way in ("no input", "none") and name in READS:
            assert done.returncode == 2, way
            assert way == "none" or "standard input: is closed" in done.stderr
        elif way == "full output" and found["as they are"].stdout:
            assert done.returncode == 2 and "standard output: No space left on device" in done.stderr
        else:
            assert done.returncode == usual, (way, done.stderr)
    assert usual in (0, 1, 2, 3)


def test_our_descriptors_are_never_standard_ones(tmp_path: Path) -> None:
    """What is opened for the events would get the number of a closed stream, and the output."""
    (tmp_path / "lines").write_text("one\n")
    with Collector(keep=True) as collector:
        words = ["send", collector.url, "lines", "--ledger", "ledger"]
        COMMANDS["with a ledger"] = words
        try:
            assert ended(tmp_path, collector.url, "with a ledger", "none").returncode == 0
        finally:
            del COMMANDS["with a ledger"]
        assert [event["message"] for event in collector.events(1)] == ["one"]
    [ledger] = (tmp_path / "ledger").iterdir()
    assert all(line.startswith(b"{") for line in ledger.read_bytes().splitlines()), ledger.read_bytes()


@pytest.mark.parametrize(
    ("words", "dest", "found"),
    [
        (["send", "u", "--rate", "100", "a"], "files", ["a"]),
        (["send", "u", "a", "--rate", "100", "b", "--json", "c"], "files", ["a", "b", "c"]),
        (["send", "--rate", "100", "u", "--json", "a"], "files", ["a"]),
        (["send", "u", "--json", "-"], "files", ["-"]),
        (["send", "u", "--json", "--", "-a", "b"], "files", ["-a", "b"]),
        (["send", "u", "--json"], "files", []),
        (["collect", "u", "--capture", "x", "v"], "urls", ["u", "v"]),
        (["collect", "--print", "u", "v", "--for", "1s", "w"], "urls", ["u", "v", "w"]),
        (["push", "a", "--json", "b"], "target", "b"),
        (["check", "u", "--timeout", "5s"], "url", "u"),
        (["decode", "--limit", "5", "a", "--json"], "file", "a"),
        (["spool", "purge", "a", "--yes"], "folder", "a"),
    ],
)
def test_options_may_stand_anywhere(words: list[str], dest: str, found: object) -> None:
    assert getattr(make_parser().parse_args(words), dest) == found


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["send", "u", "--bogus", "a"], "--bogus"),
        (["send", "u", "a", "-z"], "-z"),
        (["check", "u", "v"], "v"),
        (["spool", "ls", "a", "b"], "b"),
        (["collect", "u", "--print", "v", "--bogus"], "--bogus"),
    ],
)
def test_what_is_unknown_names_the_help_of_its_command(
    words: list[str], left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    help_of = " ".join(words[: 2 if words[0] == "spool" else 1])
    assert capsys.readouterr().err == (
        f"logclient: unrecognized arguments: {left} (see logclient {help_of} --help)\n"
    )
