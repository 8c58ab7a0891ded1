"""``logclient stat``: print the counters of plog servers and Logjam devices."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from logclient import config
from logclient.cli.parser import add_endpoint_arguments, port
from logclient.cli.progress import ClientMessages
from logclient.errors import ConfigError, ExitCode, LogclientError, MissingExtra
from logclient.logjam.config import LogjamConfig
from logclient.plog import Client
from logclient.readable import escape

_DERIVED = ("seen_messages", "failed_to_send")  # printed in addition to the fields of a plog server's answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_endpoint_arguments(parser, "asked", "the answer", "counters")
    parser.add_argument(
        "--port", type=port, metavar="N", help="where Logjam devices publish their counters (default: 9621)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the counters of each endpoint."""
    given = config.parse(arguments.url)
    if not isinstance(given, LogjamConfig):
        if arguments.port is not None:
            raise ConfigError("--port: only for Logjam devices, which publish their counters there")
        return ask_plog(given, arguments, "stat", "for counters", _plog_counters)
    from logclient.logjam import subscriber

    stats_port = subscriber.STATS_PORT if arguments.port is None else arguments.port
    secret = None if given.curve_secret is None else given.curve_secret.reveal()

    def ask(endpoint: config.Endpoint) -> Answer:
        counters = subscriber.stat(
            *endpoint, arguments.timeout, curve_server=given.curve_server, curve_secret=secret
        )
        rate = "unknown" if counters.per_second is None else f"{counters.per_second:,.0f}"
        lines = [f"sequence: {counters.sequence}", f"published per second: {rate}"]
        return Answer(f"device {counters.device}", counters._asdict(), lines)

    endpoints = [(host, stats_port) for host, _ in given.endpoints]
    return _print_answers(endpoints, ask, "stat", arguments.json)


def _plog_counters(client: Client, timeout: float) -> Answer:
    """Return counters as lines, too: with those by size added up, and without empty ones."""
    counters = client.stat(timeout)
    derived = {name: getattr(counters, name) for name in _DERIVED}
    fields = {**counters._asdict(), **derived, "defragmenter": counters.defragmenter._asdict()}
    lines = []
    for name, value in {**derived, **fields}.items():
        if name in ("uptime", "raw") or value in (None, "", ()):
            continue
        if name == "defragmenter":
            value = ", ".join(f"{part} {number}" for part, number in value.items())
        elif name == "handlers":
            value = json.dumps(value)
        elif isinstance(value, tuple):
            value = sum(number if isinstance(number, int) else sum(number) for number in value)
        lines.append(f"{name.replace('_', ' ')}: {value}")
    return Answer(f"up {describe_uptime(counters.uptime)}", fields, lines)


def describe_uptime(milliseconds: int) -> str:
    """Describe an uptime in its two largest units."""
    seconds = milliseconds // 1000
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"


class Answer(NamedTuple):
    """The answer of one endpoint."""

    title: str
    fields: Any  # the answer for ``--json``
    lines: list[str]  # the answer as text


def ask_plog(
    given: config.Config,
    arguments: argparse.Namespace,
    name: str,
    subject: str,
    ask: Callable[[Client, float], Answer],
) -> ExitCode:
    """Ask each plog server through a new client, and print what it says."""
    if given.scheme != "plog":
        raise ConfigError(f"{name}: {given.scheme} servers cannot be asked {subject}, only plog servers")

    def ask_endpoint(endpoint: config.Endpoint) -> Answer:
        with ClientMessages():  # the error includes them
            client = Client(given.for_tests().replace(endpoints=(endpoint,)))
            try:
                return ask(client, arguments.timeout)
            finally:
                client.close(timeout=0.0)

    return _print_answers(given.endpoints, ask_endpoint, name, arguments.json)


def _print_answers(
    endpoints: Sequence[config.Endpoint], ask: Callable[[config.Endpoint], Answer], name: str, as_json: bool
) -> ExitCode:
    """Ask each endpoint in turn, and print what it says; `name` is that of its fields in JSON."""
    code = ExitCode.OK
    for endpoint in endpoints:
        place, answer, why = config.host_port(*endpoint), None, ""
        try:
            answer = ask(endpoint)
        except MissingExtra:
            raise
        except (LogclientError, OSError) as error:
            why = str(error)
            code = ExitCode.UNREACHABLE
        if as_json:
            fields = None if answer is None else answer.fields
            print(json.dumps({"endpoint": place, "why": why, name: fields}), flush=True)
            continue
        print(escape(f"{place}: {why if answer is None else answer.title}".rstrip()))
        for line in () if answer is None else answer.lines:
            print(escape(f"  {line}"), flush=True)
    return code
