"""Questions to servers, for ``logclient stat`` and ``envi``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from logclient import config
from logclient.cli.messages import ClientMessages
from logclient.errors import ConfigError, LogclientError, MissingExtra
from logclient.plog import Client

__all__ = ["answers", "plog_question"]

Answer = TypeVar("Answer")


def plog_question(
    given: config.Config, name: str, subject: str, ask: Callable[[Client], Answer]
) -> Callable[[config.Endpoint], Answer]:
    """Make a function that asks the plog server at an endpoint through a new client.

    Raises:
        ConfigError: The scheme is not ``plog``. It has the name of the command and the `subject`.
    """
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


def answers(
    endpoints: Iterable[config.Endpoint], ask: Callable[[config.Endpoint], Answer]
) -> Iterator[tuple[str, Answer | None, str]]:
    """Ask each endpoint in turn; yield its name, its answer or None, and the error or an empty text."""
    for endpoint in endpoints:
        name = config.host_port(*endpoint)
        try:
            yield name, ask(endpoint), ""
        except MissingExtra:
            raise
        except (LogclientError, OSError) as error:
            yield name, None, str(error)
