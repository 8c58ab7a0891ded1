"""``logclient stat``: print the counters or settings of plog servers, and the counters of Logjam devices."""

from __future__ import annotations

import argparse
import json
from typing import Any, NamedTuple

from logclient.cli.parser import duration, parse_url, port
from logclient.cli.progress import ClientMessages
from logclient.config.common import Config, Endpoint
from logclient.config.hosts import host_port
from logclient.errors import ConfigError, ExitCode, LogclientError, MissingExtra
from logclient.logjam import subscriber
from logclient.logjam.config import LogjamConfig
from logclient.plog import Client
from logclient.readable import escape


class _Answer(NamedTuple):
    title: str
    fields: Any  # for ``--json``
    lines: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", metavar="URL", help="the servers; each endpoint is asked separately")
    add("--settings", action="store_true", help="print the settings of plog servers, which include secrets")
    add("--port", type=port, metavar="N", help="where Logjam devices publish their counters (default: 9621)")
    add("--timeout", type=duration, default=5.0, metavar="TIME", help="of each answer (default: 5s)")
    add("--json", action="store_true", help="print the answers as JSON, one line per endpoint")


def run(arguments: argparse.Namespace) -> int:
    """Print the answer of each endpoint. UNREACHABLE: one does not answer."""
    given = parse_url(arguments.url)
    logjam = isinstance(given, LogjamConfig)
    if arguments.port is not None and not logjam:
        raise ConfigError("--port: only for Logjam devices, which publish their counters there")
    if given.scheme != "plog" and (arguments.settings or not logjam):
        option, others = ("--settings", "") if arguments.settings else ("scheme", " and Logjam devices")
        raise ConfigError(f"{option}: {given.scheme} servers cannot be asked, only plog servers{others}")
    ask = _ask_logjam if logjam else _ask_plog
    code = ExitCode.OK
    for host, number in given.endpoints:
        endpoint = (host, arguments.port or subscriber.STATS_PORT) if logjam else (host, number)
        place, answer, why = host_port(*endpoint), None, ""
        try:
            answer = ask(given, endpoint, arguments)
        except MissingExtra:
            raise
        except (LogclientError, OSError) as error:
            why = str(error)
            code = ExitCode.UNREACHABLE
        if arguments.json:
            name = "settings" if arguments.settings else "stat"
            print(json.dumps({"endpoint": place, "why": why, name: answer and answer.fields}), flush=True)
            continue
        print(escape(f"{place}: {answer.title if answer else why}".rstrip()))
        for line in answer.lines if answer else ():
            print(escape(f"  {line}"), flush=True)
    return code


def _ask_logjam(given: Any, endpoint: Endpoint, arguments: argparse.Namespace) -> _Answer:
    secret = None if given.curve_secret is None else given.curve_secret.reveal()
    curve = {"curve_server": given.curve_server, "curve_secret": secret}
    counters = subscriber.stat(*endpoint, arguments.timeout, **curve)
    rate = "unknown" if counters.per_second is None else f"{counters.per_second:,.0f}"
    lines = [f"sequence: {counters.sequence}", f"published per second: {rate}"]
    return _Answer(f"device {counters.device}", counters._asdict(), lines)


def _ask_plog(given: Config, endpoint: Endpoint, arguments: argparse.Namespace) -> _Answer:
    with ClientMessages():  # the error includes them
        client = Client(given.for_tests().replace(endpoints=(endpoint,)))
        try:
            if not arguments.settings:
                counters = client.command("stat", timeout=arguments.timeout)
                lines = [f"{n.replace('_', ' ')}: {_shown(x)}" for n, x in counters.items() if n != "uptime"]
                return _Answer(f"up {describe_uptime(counters['uptime'])}", counters, lines)
            settings = client.command("envi", timeout=arguments.timeout)
            return _Answer("", settings, settings.splitlines())
        finally:
            client.close(timeout=0.0)


def _shown(value: Any) -> str:
    """Describe a counter. One that is kept by size, in lists, is added up."""
    rows = value if isinstance(value, list) else [value]
    numbers = [number for row in rows for number in (row if isinstance(row, list) else [row])]
    if all(isinstance(number, int) and abs(number) < 1 << 63 for number in numbers):
        return str(sum(numbers))
    return value if isinstance(value, str) else json.dumps(value)


def describe_uptime(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
