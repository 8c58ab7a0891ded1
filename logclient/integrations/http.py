"""Logjam requests of HTTP requests, for the WSGI and the ASGI middleware."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs

from logclient.integrations.request_fields import CLIENT_CLOSED, trace_id
from logclient.logjam import Agent, Client, Request

App = TypeVar("App")
Context = TypeVar("Context")

REQUEST_ID = "X-Logjam-Request-Id"  # of the response: ``<app>-<environment>-<request_id>``
WARNING = 30
LONGEST_WAIT = 3600.0


def begin(
    agent: Agent, method: str, path: str, query: str, headers: Iterable[tuple[str, str]], ip: str | None
) -> Request:
    """Begin a request; its action is not known yet."""
    given: dict[str, list[str]] = {}
    for name, value in headers:
        given.setdefault(_shown_name(name), []).append(value)
    found = {name: ", ".join(values) for name, values in given.items()}
    request = agent.request(
        caller_id=found.get("X-Logjam-Caller-Id"),
        caller_action=found.get("X-Logjam-Action", found.get("X-Logjam-Caller-Action")),
        trace_id=trace_id(found.get("Traceparent")) or found.get("X-Logjam-Trace-Id"),
    )
    request.ip = ip
    url = f"{path}?{query}" if query else path or "/"
    info: dict[str, Any] = {"method": method.upper(), "url": url, "headers": found}
    if query:
        parameters = parse_qs(query[:65536], keep_blank_values=True)
        info["query_parameters"] = {
            name: values[0] if len(values) == 1 else values for name, values in parameters.items()
        }
    request.request_info = info
    started = found.get("X-Request-Start") or found.get("X-Queue-Start") or found.get("X-Starttime")
    if waited := wait_seconds(started, time.time()):
        request.waited(waited)
    return request


def wait_seconds(header: str | None, now: float) -> float:
    """Return how many seconds ago the front server accepted the request, or 0 if the header is invalid.

    Servers write seconds, milliseconds or microseconds since 1970, some with the prefix ``t=``.
    """
    text = (header or "").strip().removeprefix("t=")
    if not re.fullmatch(r"\d{9,17}(\.\d{1,9})?", text):
        return 0.0
    since = float(text)
    since /= 1e6 if since >= 1e14 else 1e3 if since >= 1e11 else 1.0
    waited = now - since
    return waited if 0.0 < waited <= LONGEST_WAIT else 0.0


class Middleware(Generic[App, Context]):
    """What the middleware of WSGI and ASGI share.

    Args:
        app: the application.
        client: a client of ``connect("logjam://...")``, or an agent.
        action: returns the action for an environ or a scope; None or an empty string if it is not known. It
            is called when the application has begun its response (WSGI) or returned (ASGI), and by
            ``caller_headers``.
    """

    def __init__(
        self, app: App, client: Client | Agent, *, action: Callable[[Context], object] | None = None
    ) -> None:
        self.app = app
        self.agent = client if isinstance(client, Agent) else client.agent
        self.action = action

    def _endpoint(self, context: Context) -> str | None:
        """Return the action by the endpoint that the application's framework has found."""
        raise NotImplementedError

    def _found_action(self, context: Context) -> object:
        """Return the action by the application's callable, else by its framework; None: neither knows it."""
        for find in (self.action, self._endpoint):
            if find is None:
                continue
            try:
                found = find(context)
            except Exception as error:  # an error of the application's callable must not fail the request
                self.agent.note_lost(error, "the action of a request")
                continue
            if found:
                return found
        return None

    def _name(self, request: Request, context: Context, method: str) -> None:
        """Set the action of the request, unless the application has. Never use the path: it has no bound."""
        if request.action is None:
            request.action = self._found_action(context) or f"Unknown#{method.lower() or 'unknown_method'}"


def disconnected(request: Request) -> None:
    """Note that the client disconnected before the end of the response."""
    request.fields["client_disconnected"] = True
    if request.code is None:
        request.code = CLIENT_CLOSED
    request.line(WARNING, "client disconnected before the end of the response")


@lru_cache(256)
def _shown_name(name: str) -> str:
    """Return the name of a header as the importer writes it: ``User-Agent``."""
    return "-".join(part.capitalize() for part in name.split("-"))
