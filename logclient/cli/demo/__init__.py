"""``logclient demo``: ship log lines over each protocol, and check the verdicts of the verifier.

There are three runs for each protocol. In the *honest* run the collector cuts connections at bad moments: no
event may be lost, and the number of copies must be exact. For plog, which has no connections and no
acknowledgements, a bad network drops and duplicates datagrams instead, and the verdict must name each event
concerned. In the other two runs the collector *lies*: it acknowledges and discards events, or changes the
events that it keeps. It lists these events in a fault log, which the verifier, a separate process, never
sees. Afterwards the demo compares the verdict with the fault log, id by id.

Each collector is a separate process, too. One Spark session judges all runs. A further protocol is a row in
`scenarios.PROTOCOLS`.
"""

from __future__ import annotations

import argparse

from logclient.cli.parser import positive


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
        help="a Kafka broker: plog's events go through it, and the verifier reads them from there",
    )
    parser.add_argument("--packages", metavar="WHAT,...", help="with --kafka: as for verify")
    parser.add_argument(
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
