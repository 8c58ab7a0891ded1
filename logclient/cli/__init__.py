"""The ``logclient`` command, also ``python -m logclient``.

Each command is a module of this package with ``add_arguments(parser)`` and ``run(arguments)``. It is imported
when the command is given, so ``--help`` and ``--version`` load nothing that they do not need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from logclient.cli.exits import run_command
from logclient.cli.parser import make_parser

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code. All errors end as a line on stderr."""
    given = sys.argv[1:] if argv is None else argv

    def work() -> int:
        parser = make_parser()
        if "_ARGCOMPLETE" in os.environ:  # a shell asks, by the script of `logclient completion`
            from logclient.cli import completion

            completion.answer(parser)
        arguments = parser.parse_args(given or ["--help"])
        return int(arguments.run(arguments))

    return run_command(work, debug="--debug" in given)
