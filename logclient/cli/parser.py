"""The parser of the command line, and the types of its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NoReturn

from logclient import __version__, config
from logclient.config.common import Config
from logclient.config.parsing import resolve
from logclient.config.readers import parse_duration
from logclient.errors import ConfigError

# Name, one line of help, arguments of an example.
_COMMANDS = (
    ("send", "ship the lines of files", "lumberjack://127.0.0.1:5044 /var/log/syslog --ledger run/ledger"),
    ("collect", "run servers that print or capture what they receive",
     "lumberjack://127.0.0.1:5044 --capture run/capture --print"),
    ("check", "find out why events do not arrive, and how to fix it", "lumberjack+tls://logs.example.org"),
    ("decode", "show captured bytes as frames, with their errors", "run/capture --limit 20"),
    ("verify", "compare a ledger with the events that arrived",
     "--ledger run/ledger --capture run/capture --out run"),
    ("report", "show the hours of a table of verify as a page", "run/hours --out hours.html"),
    ("push", "copy ledgers and closed segments to a bucket, for verify", "/var/lib/shop s3://logs/run/host1"),
    ("spool", "list, send, remove or test what ended processes left", "ls /var/lib/shop/spool"),
    ("stat", "print the counters of plog servers and Logjam devices", "plog://logs.example.org:23456"),
    ("run", "run a program, and ship the records that it logs", "gunicorn shop:app"),
    ("completion", "print a script that completes this command line", "zsh > ~/.zfunc/_logclient"),
)  # fmt: skip


class UsageError(ConfigError):
    """A command line with an error."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class CommandParser(_Parser):
    """The parser of one command, which loads its arguments from the command's module at its first use."""

    module = ""  # empty: there is nothing to load

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def load(self) -> None:
        module, self.module = self.module, ""
        if module:
            command = import_module(module)
            command.add_arguments(self)
            self.set_defaults(run=command.run)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Load the command, then parse: argparse calls this method only for the command that is given.

        Options may stand between positional arguments. argparse leaves over those that follow an option.
        """
        self.load()
        found, left = super().parse_known_args(args, namespace)
        last = next((one for one in reversed(self._actions) if not one.option_strings), None)
        if last is not None and last.nargs in ("*", "+"):
            end = left.index("--") if "--" in left else len(left)
            more = [text for text in left[:end] if text == "-" or text[:1] != "-"]
            setattr(found, last.dest, [*(getattr(found, last.dest) or ()), *more, *left[end + 1 :]])
            left = [text for text in left[:end] if text not in more]
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, []


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command line; its results have ``run``, the function of the command."""
    parser = _Parser(
        prog="logclient",
        description="Ships logs, and can prove what arrived.",
        epilog="See logclient COMMAND --help for the arguments of a command. Exit codes: 0 success (all "
        "events delivered, the promise holds); 1 events lost or failed, or the promise is broken; 2 wrong "
        "command line, option or file, or a missing package; 3 no server could be reached, or the evidence "
        "is incomplete; 70 an error in logclient; 130 or 143 SIGINT or SIGTERM stopped it.",
    )
    version = f"logclient {__version__}"
    parser.add_argument(
        "-V", "--version", action="version", version=version, help="print the version and exit"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    for name, text, example in _COMMANDS:
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"Example: logclient {name} {example}",
        )
        command.module = f"logclient.cli.{name}"
    return parser


def parse_url(url: str | None, options: Mapping[str, Any] = {}, **how: Any) -> Config:
    """Read the URL of a server, None: the variable's; ConfigError: it breaks a rule, or is the off switch."""
    given = resolve(url, options, **how)
    if given.protocol == config.registry.OFF:
        raise UsageError("URL: none is the off switch, which ships nothing: give the URL of a server")
    return given


def argument_type(read: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """Make an argparse type of this name that shows the text of a ValueError to the user."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    convert.__name__ = name
    return convert


def _duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("must be a duration above 0")
    return seconds


def _whole(text: str, most: int = 10**15 - 1, bound: str = "") -> int:
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not (digits and 0 < int(text) <= most):
        raise ValueError(f"must be a whole number from 1{bound}, got {text[:40]!r}")
    return int(text)


def _rate(text: str) -> float:
    number = text.removesuffix("/s")
    try:
        events = float(number)
    except ValueError:
        events = 0.0
    if not 0 < events < 1e9:
        raise ValueError(f"must be events a second such as 500 or 500/s, got {text[:40]!r}")
    return events


duration = argument_type(_duration, "duration")
positive = argument_type(_whole, "number")
port = argument_type(lambda text: _whole(text, 65535, " to 65535"), "port")
rate = argument_type(_rate, "rate")
