"""``logclient demo``: ship log lines over each protocol, and show that the verifier can be believed.

There are three runs for each protocol. In the *honest* one the collector cuts connections at bad moments:
nothing may be lost, and the copies must be counted to the event. For plog, which has no connections and no
acknowledgements, a bad network drops and duplicates datagrams instead, and the verdict must name each event
concerned. In the other two the collector *lies*: it acknowledges and discards events, or changes what it
keeps. It lists these in a fault log, which the verifier, a process of its own, never sees. Afterwards the
verdict is compared with the fault log, id by id.

Each collector is a process of its own, too. One Spark session judges all runs. A further protocol is a row in
`scenarios.PROTOCOLS`.
"""

from __future__ import annotations

import argparse

from logclient.cli.parser import positive

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--input",
        nargs="+",
        metavar="FILE",
        default=[],
        help="log files to send (default: text logs of /var/log, else generated lines)",
    )
    parser.add_argument(
        "--events",
        type=positive,
        default=200_000,
        metavar="N",
        help="events of an honest run, at least 40000 (default: 200000)",
    )
    parser.add_argument(
        "--kafka",
        metavar="HOST:PORT",
        help="a Kafka broker: plog's events go through it, and are judged there",
    )
    parser.add_argument("--packages", metavar="WHAT,...", help="with --kafka: as for verify")
    parser.add_argument(
        "--out",
        default="logclient-demo",
        metavar="DIR",
        help="directory for everything (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; returns OK when every run went as expected, else BROKEN."""
    from logclient.cli.demo.runs import demo

    return demo(
        inputs=arguments.input,
        events=arguments.events,
        out=arguments.out,
        kafka=arguments.kafka,
        packages=arguments.packages,
    )
