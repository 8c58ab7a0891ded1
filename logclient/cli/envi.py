"""``logclient envi``: print the settings of plog servers."""

from __future__ import annotations

import argparse
import json

from logclient import config
from logclient.cli.parser import add_endpoint_arguments
from logclient.cli.queries import answers, plog_question
from logclient.errors import ExitCode
from logclient.readable import escape

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_endpoint_arguments(parser, "asked", "the answer", "settings")


def run(arguments: argparse.Namespace) -> int:
    """Print the settings of each endpoint.

    Returns:
        OK when all endpoints answer, else UNREACHABLE.
    """
    given = config.parse(arguments.url)
    ask = plog_question(given, "envi", "for settings", lambda client: client.envi(arguments.timeout))
    code = ExitCode.OK
    for name, settings, reason in answers(given.endpoints, ask):
        if settings is None:
            code = ExitCode.UNREACHABLE
        if arguments.json:
            print(json.dumps({"endpoint": name, "why": reason, "envi": settings}), flush=True)
        else:
            print(escape(f"{name}: {reason}".rstrip()))
            for line in settings.splitlines() if settings is not None else ():
                print(escape(f"  {line}"), flush=True)
    return code
