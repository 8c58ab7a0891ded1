"""Completion of the command line, in the shells that are installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from logclient import cli
from logclient.cli import completion
from tests.support import clean_environment, need
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit

need("argcomplete")

COMMANDS = "send collect check decode verify report push spool stat run completion"
URLS = "lumberjack:// lumberjack+tls:// logjam:// logjam+push:// plog:// plog+tcp:// logux:// logux+tls://"

LINES = {
    "": COMMANDS,
    "ve": "verify",
    "--debug de": "decode",
    "--ver": "--version",
    "send ": URLS,
    "send logj": "logjam:// logjam+push://",
    "send --for": "--format",
    "send --format ": "text ndjson fallback",
    "send --format n": "ndjson",
    "send --ledger ": "folder/",
    "send --rate ": "",
    "send --rate 5 lum": "lumberjack:// lumberjack+tls://",
    "send lumberjack://h:5044 ": "a.log b.log folder/",
    "send --format text lumberjack://h:5044 a.log b": "b.log",
    "collect plog://127.0.0.1 logux+": "logux+tls://",
    "decode ": "a.log b.log folder/",
    "decode --protocol p": "plog",
    "spool ": "ls drain purge check",
    "spool drain f": "folder/",
    "spool purge --y": "--yes",
    "run ": "",
    "completion ": "bash zsh fish",
}
"""What may stand at the end of a line."""

KEYS = {
    "logclient ver\t": "logclient verify ",
    "logclient send lumberjack+\t": "logclient send lumberjack+tls://",
    "logclient send --format=n\t": "logclient send --format=ndjson ",
    "logclient send logux+tls://h:1 fo\t": "logclient send logux+tls://h:1 folder/",
    "logclient send logux+tls://h:1 --ledger fo\t": "logclient send logux+tls://h:1 --ledger folder/",
}
"""What a line becomes when its keys are typed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.log", "b.log"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


def installed(shell: str) -> str:
    return shutil.which(shell) or pytest.skip(f"{shell} is not installed")


def script(shell: str, tmp_path: Path) -> Path:
    file = tmp_path.parent / f"{tmp_path.name}.{shell}"
    file.write_text(run(tmp_path, "logclient", "completion", shell))
    return file


def environment(tmp_path: Path) -> dict[str, str]:
    command = tmp_path.parent / "bin" / "logclient"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m logclient "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    return clean_environment(HOME=str(tmp_path.parent), PATH=path, TERM="dumb", PS1="$ ", LC_ALL="C.UTF-8")


def run(tmp_path: Path, *command: str, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def fitting(folder: Path, line: str) -> list[str]:
    """Return what the command answers to a shell for a line."""
    answer = folder.parent / f"{folder.name}.answer"
    answer.touch()
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    run(folder, "logclient", _ARGCOMPLETE="1", _ARGCOMPLETE_IFS="\n", **asked)
    return answer.read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_what_may_stand_at_the_end_of_a_line(folder: Path, line: str) -> None:
    installed("bash")  # which lists the files
    found = [one.strip() for one in fitting(folder, f"logclient {line}")]
    assert sorted(found) == sorted(LINES[line].split())


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_of_typed_keys(folder: Path, shell: str) -> None:
    from tests.cli.terminal import Terminal

    begin = {
        "bash": ("--norc", "--noprofile", "-i"),
        "zsh": ("-f", "-i"),
    }[shell]
    with Terminal(installed(shell), *begin, environment=environment(folder), folder=folder) as terminal:
        if shell == "zsh":
            terminal.type("PS1='$ '; bindkey -e; setopt no_auto_remove_slash\n")
            terminal.type("autoload -U compinit; compinit -u -D\n")
        terminal.type(f"source {script(shell, folder)}; echo re''ady\n")
        terminal.until("ready")
        for keys, becomes in KEYS.items():
            # Then make of the line a word that is printed.
            terminal.type(f"{keys}\x01echo '[\x05]'\n")
            found = terminal.until(r"\n\[(.*)\]\r")[1]
            if shell == "zsh":  # it takes back the space that it has put there, when something else follows
                becomes = becomes.rstrip(" ")
            assert found == becomes


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_command_prints_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "logclient" in capsys.readouterr().out


def test_the_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert cli.main(["completion", "bash"]) == 2
    assert 'pip install "logclient[completion]"' in capsys.readouterr().err


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh' (choose from" in capsys.readouterr().err


def test_every_command_and_option_is_completed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS.split():
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)
        found = [one.strip() for one in fitting(folder, f"logclient {command} --")]
        assert sorted(found) == sorted(shown)
