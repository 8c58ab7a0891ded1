"""``logclient stat`` and ``envi``: a server's counters and settings, where its protocol tells them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from logclient import config, registry
from logclient.cli import Complaints
from logclient.client import open_client
from logclient.errors import ConfigError, ExitCode, LogclientError
from logclient.protocols.readable import escape

__all__ = ["envi", "run"]

_DERIVED = ("seen_messages", "failed_to_send")
"""What a record tells besides its fields; None where the server does not say."""


def run(arguments: argparse.Namespace) -> int:
    """Print the counters of each endpoint; `UNREACHABLE` unless all of them answer."""
    code = ExitCode.OK
    for name, found, why in _answers(arguments, "stat", "for counters"):
        if found is None:
            code = ExitCode.UNREACHABLE
        if arguments.json:
            fields = None if found is None else _fields(found)
            print(json.dumps({"endpoint": name, "why": why, "stat": fields}), flush=True)
        else:
            print(escape(f"{name}: {why or f'up {_time(found.uptime)}'}"))
            for line in _lines(found) if found is not None else ():
                print(escape(f"  {line}"), flush=True)
    return code


def envi(arguments: argparse.Namespace) -> int:
    """Print the settings of each endpoint; `UNREACHABLE` unless all of them answer."""
    code = ExitCode.OK
    for name, found, why in _answers(arguments, "envi", "for settings"):
        if found is None:
            code = ExitCode.UNREACHABLE
        if arguments.json:
            print(json.dumps({"endpoint": name, "why": why, "envi": found}), flush=True)
        else:
            print(escape(f"{name}: {why}".rstrip()))
            for line in found.splitlines() if found is not None else ():
                print(escape(f"  {line}"), flush=True)
    return code


def _answers(arguments: argparse.Namespace, question: str, what: str) -> Iterator[tuple[str, Any, str]]:
    """(the endpoint, its answer or None, why there is none) for each endpoint of the URL."""
    given = config.parse(arguments.url)
    if not hasattr(registry.load(registry.lookup(given.scheme).client), question):
        raise ConfigError(f"{question}: a {given.scheme} server is not asked {what}; plog's are")
    for endpoint in given.endpoints:
        host, port = endpoint
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with Complaints():  # what they say is in the line
            client: Any = open_client(given._replace(endpoints=(endpoint,), ledger=None))
            try:
                found, why = getattr(client, question)(arguments.timeout), ""
            except (LogclientError, OSError) as error:
                found, why = None, str(error)
            finally:
                client.close(timeout=0.0)
        yield name, found, why


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
