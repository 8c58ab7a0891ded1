"""``logclient collect``: run collectors. See `logclient.testing.main`."""

from __future__ import annotations

import argparse
import threading

from logclient.cli.exits import signals_handled
from logclient.cli.parser import duration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL",
        help="where to listen; port 0 picks a free one; TLS needs ?cert=FILE; logjam+sub://HOST:PORT "
        "subscribes to a Logjam device",
    )
    parser.add_argument("--capture", required=True, metavar="DIR", help="directory for the capture")
    parser.add_argument("--faults", metavar="SPEC", help="misbehave, as in cut-before-ack=every:5,seed=3")
    parser.add_argument("--fault-log", metavar="FILE", help="list the ids of events that faults change")
    parser.add_argument("--for", dest="seconds", type=duration, metavar="TIME", help="stop after this time")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Listen until SIGINT, SIGTERM or the end of the time."""
    from logclient.testing import main

    stopped = threading.Event()
    with signals_handled(lambda *_: stopped.set()):
        return main.run(
            arguments.urls,
            capture=arguments.capture,
            faults=arguments.faults,
            fault_log=arguments.fault_log,
            seconds=arguments.seconds,
            as_json=arguments.json,
            stopped=stopped,
        )
