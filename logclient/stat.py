"""``logclient stat`` and ``envi``: a server's counters and settings, where its protocol tells them.

A plog server is asked; a Logjam device says its counters each second, on a port of its own for them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from logclient import config, registry
from logclient.cli import Complaints
from logclient.client import open_client
from logclient.errors import ConfigError, ExitCode, LogclientError, MissingExtra
from logclient.protocols.readable import escape

__all__ = ["envi", "run"]

_Told = tuple[str, dict[str, Any], list[str]]
"""Of one that answered: a title, all for programs, lines for people."""

_DERIVED = ("seen_messages", "failed_to_send")
"""What a record tells besides its fields; None where the server does not say."""


def run(arguments: argparse.Namespace) -> int:
    """Print the counters of each endpoint; `UNREACHABLE` unless all of them answer."""
    given = config.parse(arguments.url)
    if given.protocol == "logjam":
        endpoints, ask, tell = *_devices(given, arguments), _device
    elif arguments.port is not None:
        raise ConfigError("--port: where a Logjam device says its counters; other servers are asked")
    else:
        endpoints, tell = given.endpoints, _server
        ask = _asked(given, "stat", "for counters", arguments.timeout)
    code = ExitCode.OK
    for name, found, why in _answers(endpoints, ask):
        title, fields, lines = (why, None, []) if found is None else tell(found)
        if found is None:
            code = ExitCode.UNREACHABLE
        if arguments.json:
            print(json.dumps({"endpoint": name, "why": why, "stat": fields}), flush=True)
        else:
            print(escape(f"{name}: {title}"))
            for line in lines:
                print(escape(f"  {line}"), flush=True)
    return code


def envi(arguments: argparse.Namespace) -> int:
    """Print the settings of each endpoint; `UNREACHABLE` unless all of them answer."""
    given = config.parse(arguments.url)
    ask = _asked(given, "envi", "for settings", arguments.timeout)
    code = ExitCode.OK
    for name, found, why in _answers(given.endpoints, ask):
        if found is None:
            code = ExitCode.UNREACHABLE
        if arguments.json:
            print(json.dumps({"endpoint": name, "why": why, "envi": found}), flush=True)
        else:
            print(escape(f"{name}: {why}".rstrip()))
            for line in found.splitlines() if found is not None else ():
                print(escape(f"  {line}"), flush=True)
    return code


def _devices(
    given: config.Config, arguments: argparse.Namespace
) -> tuple[Iterable[config.Endpoint], Callable[[config.Endpoint], Any]]:
    """Where Logjam devices say their counters, and what listens to one."""
    from logclient.collectors import subscriber

    port = subscriber.STATS_PORT if arguments.port is None else arguments.port
    secret = None if given.curve_secret is None else given.curve_secret.reveal()

    def ask(endpoint: config.Endpoint) -> subscriber.Stat:
        host, port = endpoint
        timeout: float = arguments.timeout
        return subscriber.stat(host, port, timeout, curve_server=given.curve_server, curve_secret=secret)

    return [(host, port) for host, _ in given.endpoints], ask


def _device(found: Any) -> _Told:
    rate = "unknown" if found.per_second is None else f"{found.per_second:,.0f}"
    lines = [f"sequence: {found.sequence}", f"published per second: {rate}"]
    return f"device {found.device}", found._asdict(), lines


def _server(found: Any) -> _Told:
    return f"up {_time(found.uptime)}", _fields(found), _lines(found)


def _asked(
    given: config.Config, question: str, what: str, timeout: float
) -> Callable[[config.Endpoint], Any]:
    """What asks an endpoint, through a client of its own."""
    if not hasattr(registry.load(registry.lookup(given.scheme).client), question):
        raise ConfigError(f"{question}: a {given.scheme} server is not asked {what}; plog's are")

    def ask(endpoint: config.Endpoint) -> Any:
        with Complaints():  # what they say is in the line
            client: Any = open_client(given._replace(endpoints=(endpoint,), ledger=None))
            try:
                return getattr(client, question)(timeout)
            finally:
                client.close(timeout=0.0)

    return ask


def _answers(
    endpoints: Iterable[config.Endpoint], ask: Callable[[config.Endpoint], Any]
) -> Iterator[tuple[str, Any, str]]:
    """(the endpoint, its answer or None, why there is none) for each of them."""
    for endpoint in endpoints:
        name = config.host_port(*endpoint)
        try:
            yield name, ask(endpoint), ""
        except MissingExtra:
            raise
        except (LogclientError, OSError) as error:
            yield name, None, str(error)


def _fields(found: Any) -> dict[str, Any]:
    """For programs: all fields, and what follows from them."""
    fields = {name: getattr(found, name) for name in (*found._fields, *_DERIVED)}
    fields["defragmenter"] = found.defragmenter._asdict()
    return fields


def _lines(found: Any) -> list[str]:
    """For people: counters by size are added up, what is empty is left out."""
    shown = []
    for name in (*_DERIVED, *found._fields):
        value = getattr(found, name)
        if name in ("uptime", "raw") or value in (None, "", ()):
            continue
        if name == "defragmenter":
            value = ", ".join(f"{part} {n}" for part, n in value._asdict().items())
        elif name == "handlers":
            value = json.dumps(value)
        elif isinstance(value, tuple):
            value = sum(n if isinstance(n, int) else sum(n) for n in value)
        shown.append(f"{name.replace('_', ' ')}: {value}")
    return shown


def _time(ms: int) -> str:
    """An uptime in words."""
    seconds = ms // 1000
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
