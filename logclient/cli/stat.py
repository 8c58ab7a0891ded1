"""``logclient stat``: print the counters of plog servers and Logjam devices.

A plog server is asked. A Logjam device publishes its counters each second, on a port of their own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient import config
from logclient.cli.parser import add_endpoint_arguments, port
from logclient.cli.queries import answers, plog_question
from logclient.errors import ConfigError, ExitCode
from logclient.logjam.config import LogjamConfig
from logclient.readable import escape

if TYPE_CHECKING:
    from logclient.logjam import subscriber
    from logclient.plog.messages import Stat as PlogStat

__all__ = ["add_arguments", "describe_uptime", "run"]

_DERIVED = ("seen_messages", "failed_to_send")
"""Properties of a plog server's answer that are printed besides its fields."""


class _Counters(NamedTuple):
    """The answer of one endpoint."""

    title: str
    fields: dict[str, Any]
    """For ``--json``."""
    lines: list[str]
    """For people."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_endpoint_arguments(parser, "asked", "the answer", "counters")
    parser.add_argument(
        "--port", type=port, metavar="N", help="where Logjam devices publish their counters (default: 9621)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the counters of each endpoint; returns UNREACHABLE unless all of them answer."""
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
    code = ExitCode.OK
    for name, found, why in answers(endpoints, ask):
        if found is None:
            code = ExitCode.UNREACHABLE
        if arguments.json:
            fields = None if found is None else found.fields
            print(json.dumps({"endpoint": name, "why": why, "stat": fields}), flush=True)
            continue
        print(escape(f"{name}: {why if found is None else found.title}"))
        for line in () if found is None else found.lines:
            print(escape(f"  {line}"), flush=True)
    return code


# -- Logjam


def _logjam_devices(
    given: LogjamConfig, arguments: argparse.Namespace
) -> tuple[tuple[config.Endpoint, ...], Callable[[config.Endpoint], _Counters]]:
    """Return where the devices publish their counters, and a function that waits for those of one."""
    from logclient.logjam import subscriber

    stats_port = subscriber.STATS_PORT if arguments.port is None else arguments.port
    secret = None if given.curve_secret is None else given.curve_secret.reveal()

    def ask(endpoint: config.Endpoint) -> _Counters:
        return _device_counters(
            subscriber.stat(
                *endpoint, arguments.timeout, curve_server=given.curve_server, curve_secret=secret
            )
        )

    return tuple((host, stats_port) for host, _ in given.endpoints), ask


def _device_counters(found: subscriber.Stat) -> _Counters:
    rate = "unknown" if found.per_second is None else f"{found.per_second:,.0f}"
    lines = [f"sequence: {found.sequence}", f"published per second: {rate}"]
    return _Counters(f"device {found.device}", found._asdict(), lines)


# -- plog


def _plog_counters(found: PlogStat) -> _Counters:
    derived = dict(zip(_DERIVED, (found.seen_messages, found.failed_to_send), strict=True))
    values: dict[str, Any] = {**derived, **found._asdict()}
    fields = {**found._asdict(), **derived, "defragmenter": found.defragmenter._asdict()}
    return _Counters(f"up {describe_uptime(found.uptime)}", fields, _plog_lines(values))


def _plog_lines(values: dict[str, Any]) -> list[str]:
    """Write counters as lines: those by size are added up, and empty ones left out."""
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
    """Write an uptime in its two largest units."""
    seconds = milliseconds // 1000
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
