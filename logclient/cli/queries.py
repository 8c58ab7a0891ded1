"""Questions to servers, for ``logclient stat`` and ``envi``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from logclient import config
from logclient.cli.progress import ClientMessages
from logclient.errors import ConfigError, ExitCode, LogclientError, MissingExtra
from logclient.plog import Client
from logclient.readable import escape

__all__ = ["Answer", "plog_question", "print_answers"]


class Answer(NamedTuple):
    """The answer of one endpoint."""

    title: str
    fields: Any  # the answer for ``--json``
    lines: list[str]  # the answer as text


def plog_question(
    given: config.Config, name: str, subject: str, ask: Callable[[Client], Answer]
) -> Callable[[config.Endpoint], Answer]:
    """Make a function that asks the plog server at an endpoint through a new client."""
    if given.scheme != "plog":
        raise ConfigError(f"{name}: {given.scheme} servers cannot be asked {subject}, only plog servers")

    def ask_endpoint(endpoint: config.Endpoint) -> Answer:
        with ClientMessages():  # the error includes them
            client = Client(given.for_tests().replace(endpoints=(endpoint,)))
            try:
                return ask(client)
            finally:
                client.close(timeout=0.0)

    return ask_endpoint


def print_answers(
    endpoints: Iterable[config.Endpoint], ask: Callable[[config.Endpoint], Answer], name: str, as_json: bool
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
