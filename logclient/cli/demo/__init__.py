"""``logclient demo``: ship log lines over each protocol, and check the verdicts of the verifier.

docs/commands.md describes its runs. A further protocol is a row in `scenarios.PROTOCOLS`.
"""

from __future__ import annotations

import argparse

from logclient.cli.parser import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add(
        "--input",
        nargs="+",
        metavar="FILE",
        default=[],
        help="log files to send (default: text logs of /var/log, else generated lines)",
    )
    add(
        "--events",
        type=positive,
        default=200_000,
        metavar="N",
        help="events of an honest run, at least 40000 (default: 200000)",
    )
    add(
        "--kafka",
        metavar="HOST:PORT",
        help="a Kafka broker: plog's events go through it, and the verifier reads them from there",
    )
    add("--packages", metavar="WHAT,...", help="with --kafka: as for verify")
    add(
        "--out",
        default="logclient-demo",
        metavar="DIR",
        help="directory for everything (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo. OK: every run went as expected, else BROKEN."""
    from logclient.cli.demo.runs import demo

    return demo(
        inputs=arguments.input,
        events=arguments.events,
        out=arguments.out,
        kafka=arguments.kafka,
        packages=arguments.packages,
    )
