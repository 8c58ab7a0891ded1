"""``logclient run``: execute a command, and ship the records of each Python process that it starts."""

from __future__ import annotations

import argparse

from logclient.run.command import execute


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command", metavar="COMMAND", nargs=argparse.REMAINDER, help="the program and its arguments"
    )


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the command."""
    return execute(arguments.command)
