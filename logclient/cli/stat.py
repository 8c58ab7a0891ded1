"""``logclient stat``: print the counters of plog servers and Logjam devices.

A plog server answers a request for its counters. A Logjam device publishes its counters each second on a
separate port.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logclient import config
from logclient.cli.parser import add_endpoint_arguments, port
from logclient.cli.queries import Answer, plog_question, print_answers
from logclient.errors import ConfigError
from logclient.logjam.config import LogjamConfig

if TYPE_CHECKING:
    from logclient.logjam import subscriber
    from logclient.plog.messages import Stat as PlogStat

__all__ = ["add_arguments", "describe_uptime", "run"]

_DERIVED = ("seen_messages", "failed_to_send")
"""Properties of a plog server's answer that are printed in addition to its fields."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_endpoint_arguments(parser, "asked", "the answer", "counters")
    parser.add_argument(
        "--port", type=port, metavar="N", help="where Logjam devices publish their counters (default: 9621)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the counters of each endpoint; returns the exit code of `print_answers`."""
    given = config.parse(arguments.url)
    endpoints: tuple[config.Endpoint, ...] = given.endpoints
    if isinstance(given, LogjamConfig):
        endpoints, ask = _logjam_devices(given, arguments)
    elif arguments.port is not None:
        raise ConfigError("--port: only for Logjam devices, which publish their counters there")
    else:
        ask = plog_question(
            given, "stat", "for counters", lambda client: _plog_counters(client.stat(arguments.timeout))
        )
    return print_answers(endpoints, ask, "stat", arguments.json)


# -- Logjam


def _logjam_devices(
    given: LogjamConfig, arguments: argparse.Namespace
) -> tuple[tuple[config.Endpoint, ...], Callable[[config.Endpoint], Answer]]:
    """Return the endpoints at which devices publish counters, and a function that reads one device's."""
    from logclient.logjam import subscriber

    stats_port = subscriber.STATS_PORT if arguments.port is None else arguments.port
    secret = None if given.curve_secret is None else given.curve_secret.reveal()

    def ask(endpoint: config.Endpoint) -> Answer:
        return _device_counters(
            subscriber.stat(
                *endpoint, arguments.timeout, curve_server=given.curve_server, curve_secret=secret
            )
        )

    return tuple((host, stats_port) for host, _ in given.endpoints), ask


def _device_counters(counters: subscriber.Stat) -> Answer:
    rate = "unknown" if counters.per_second is None else f"{counters.per_second:,.0f}"
    lines = [f"sequence: {counters.sequence}", f"published per second: {rate}"]
    return Answer(f"device {counters.device}", counters._asdict(), lines)


# -- plog


def _plog_counters(counters: PlogStat) -> Answer:
    derived = dict(zip(_DERIVED, (counters.seen_messages, counters.failed_to_send), strict=True))
    values: dict[str, Any] = {**derived, **counters._asdict()}
    fields = {**counters._asdict(), **derived, "defragmenter": counters.defragmenter._asdict()}
    return Answer(f"up {describe_uptime(counters.uptime)}", fields, _plog_lines(values))


def _plog_lines(values: dict[str, Any]) -> list[str]:
    """Format counters as lines: add up those by size, and leave out empty ones."""
    lines = []
    for name, value in values.items():
        if name in ("uptime", "raw") or value in (None, "", ()):
            continue
        if name == "defragmenter":
            value = ", ".join(f"{part} {number}" for part, number in value._asdict().items())
        elif name == "handlers":
            value = json.dumps(value)
        elif isinstance(value, tuple):
            value = sum(number if isinstance(number, int) else sum(number) for number in value)
        lines.append(f"{name.replace('_', ' ')}: {value}")
    return lines


def describe_uptime(milliseconds: int) -> str:
    """Describe an uptime in its two largest units."""
    seconds = milliseconds // 1000
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
