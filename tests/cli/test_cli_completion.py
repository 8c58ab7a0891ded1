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
from tests.support import clean_environment
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.unit

COMMANDS = "send collect check decode verify push spool stat completion demo"
URLS = "lumberjack:// lumberjack+tls:// logjam:// logjam+push:// plog:// plog+tcp:// logux:// logux+tls://"

LINES = {
    "": COMMANDS,
    "ve": "verify",
    "--debug de": "decode demo",
    "--ver": "--version",
    "send ": URLS,
    "send logj": "logjam:// logjam+push://",
    "send --for": "--format",
    "send --format ": "text ndjson",
    "send --format n": "ndjson",
    "send --ledger ": "folder/",
    "send --rate ": "",
    "send --rate 5 lum": "lumberjack:// lumberjack+tls://",
    "send lumberjack://h:5044 ": "a.log b.log folder/",
    "send --format text lumberjack://h:5044 a.log b": "b.log",
    "demo --input a.log b": "b.log",
    "collect plog://127.0.0.1 logux+": "logux+tls://",
    "decode ": "a.log b.log folder/",
    "decode --protocol p": "plog",
    "spool ": "ls drain purge check",
    "spool drain f": "folder/",
    "spool purge --y": "--yes",
    "completion ": "bash zsh fish",
    "no-such-command ": "",
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
    file.write_text(completion.SHELLS[shell])
    return file


def environment(tmp_path: Path) -> dict[str, str]:
    command = tmp_path.parent / "bin" / "logclient"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m logclient "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    return clean_environment(HOME=str(tmp_path.parent), PATH=path, TERM="dumb", PS1="$ ", LC_ALL="C.UTF-8")


def run(tmp_path: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_completion_in_bash(folder: Path, line: str) -> None:
    program = (
        f"source {script('bash', folder)}; COMP_LINE=$1; COMP_POINT=${{#1}}; _logclient\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    found = run(folder, installed("bash"), "-c", program, "bash", f"logclient {line}").split()
    # bash itself puts the slash behind a folder, when it is typed.
    assert sorted(found) == sorted(LINES[line].replace("folder/", "folder").split())


@pytest.mark.parametrize("line", LINES)
def test_completion_in_fish(folder: Path, line: str) -> None:
    program = f"source {script('fish', folder)}; complete -C $argv[1]"
    found = run(folder, installed("fish"), "-N", "-c", program, f"logclient {line}").splitlines()
    assert sorted(one.partition("\t")[0] for one in found) == sorted(LINES[line].split())


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
    assert capsys.readouterr().out == completion.SHELLS[shell]


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh' (choose from" in capsys.readouterr().err


def test_every_command_and_option_is_completed(capsys: pytest.CaptureFixture[str]) -> None:
    def fitting(*words: str) -> list[str]:
        assert cli.main(["completion", "bash", *words]) == 0
        return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()[1:]]

    assert fitting("") == COMMANDS.split()
    for command in COMMANDS.split():
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)
        assert [name for name in fitting(command, "-") if name.startswith("--")] == shown
