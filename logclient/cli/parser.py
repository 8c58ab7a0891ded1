"""The parser of the command line, and the types of its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from logclient import config
from logclient.errors import ConfigError

# Name, one line of help, arguments of an example.
_COMMANDS = (
    ("demo", "ship log lines to servers with faults, and let Spark judge each run", "--out demo"),
    ("send", "ship the lines of files", "lumberjack://127.0.0.1:5044 /var/log/syslog --ledger run/ledger"),
    ("collect", "run servers that capture what they receive",
     "lumberjack://127.0.0.1:5044 --capture run/capture"),
    ("verify", "compare a ledger with the events that arrived, in Spark",
     "--ledger run/ledger --capture run/capture --out run"),
    ("evidence", "copy ledgers and closed segments to a bucket, for verify",
     "push /var/lib/shop s3://logs/run/host1"),
    ("ping", "test whether servers answer in their protocol", "lumberjack+tls://a.example.org,b.example.org"),
    ("doctor", "find out why events do not reach a server, and how to fix it", "lumberjack+tls://logs.example.org"),
    ("stat", "print the counters of plog servers and Logjam devices", "plog://logs.example.org:23456"),
    ("envi", "print the settings of plog servers, which include secrets", "plog://logs.example.org:23456"),
    ("spool", "list, send, remove or check the events that ended processes left", "ls /var/lib/shop/spool"),
    ("decode", "show captured bytes as frames, with their errors",
     "lumberjack run/capture --limit 20"),
    ("completion", "print a script that completes this command line in a shell", "zsh > ~/.zfunc/_logclient"),
)  # fmt: skip


class UsageError(ConfigError):
    """A command line with an error."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class CommandParser(_Parser):
    """The parser of one command, which loads its arguments from the command's module at its first use."""

    module = ""
    _loaded = False

    def load(self) -> None:
        """Import the command and add its arguments."""
        if self._loaded:
            return
        self._loaded = True
        command = import_module(self.module)
        command.add_arguments(self)
        self.set_defaults(run=command.run)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Load the command, then parse: argparse calls this method only for the command that is given."""
        self.load()
        return super().parse_known_args(args, namespace)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from logclient import __version__

        print(f"logclient {__version__}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command line; its results have ``run``, the function of the command."""
    parser = _Parser(
        prog="logclient",
        description="Ships logs, and can prove what arrived.",
        epilog="See logclient COMMAND --help for the arguments of a command. Exit codes: 0 success (all "
        "events delivered, the promise holds); 1 events lost or failed, or the promise is broken; 2 wrong "
        "command line, option or file; 3 no server could be reached, or the evidence is incomplete; 70 an "
        "error in logclient; 130 or 143 SIGINT or SIGTERM stopped it.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
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
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    return parser


def add_endpoint_arguments(
    parser: argparse.ArgumentParser, done: str, awaited: str, printed: str, count: str | None = None
) -> None:
    """Add the common arguments of the commands that handle each endpoint of a URL.

    The texts are for the help: a participle, the object of the time-out, and the output.
    """
    parser.add_argument(
        "url", metavar="URL", nargs=count, help=f"the servers; each endpoint is {done} separately"
    )
    parser.add_argument(
        "--timeout",
        type=duration,
        default=5.0,
        metavar="TIME",
        help=f"wait this long for {awaited} (default: 5s)",
    )
    parser.add_argument(
        "--json", action="store_true", help=f"print the {printed} as JSON, one line per endpoint"
    )


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
    seconds = config.parse_duration(text)
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
