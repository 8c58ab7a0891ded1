"""``logclient completion``: print the script with which a shell asks argcomplete what fits into a line."""

from __future__ import annotations

import argparse
from typing import Any

from logclient.cli.parser import CommandParser
from logclient.config import registry
from logclient.errors import ExitCode, MissingExtra

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="%(choices)s")


def run(arguments: argparse.Namespace) -> int:
    print(_argcomplete().shellcode(["logclient"], shell=arguments.shell))
    return ExitCode.OK


def answer(parser: argparse.ArgumentParser) -> None:
    """Tell the shell that asks what may stand in its line, and end this process."""
    completers = _argcomplete().completers
    places = {
        "FILE": completers.FilesCompleter(),
        "DIR": completers.DirectoriesCompleter(),
        "URL": completers.ChoicesCompleter([f"{scheme}://" for scheme in registry.SCHEMES]),
    }
    _prepare(parser, places, completers.ChoicesCompleter(()))
    _argcomplete().autocomplete(parser, always_complete_options=False)


def _prepare(parser: Any, places: dict[str, Any], nothing: Any) -> None:
    """Load all commands, and give each argument without choices a completer."""
    if isinstance(parser, CommandParser):
        parser.load()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _prepare(command, places, nothing)
        elif not action.choices:
            action.completer = places.get(str(action.metavar), nothing)


def _argcomplete() -> Any:
    try:
        import argcomplete.completers
    except ImportError as error:
        raise MissingExtra("argcomplete", "completion") from error
    return argcomplete
