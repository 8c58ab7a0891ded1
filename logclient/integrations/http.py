"""Logjam requests of HTTP requests, for the WSGI and the ASGI middleware."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from logclient.integrations.request_fields import trace_id
from logclient.logjam import Agent, Request

__all__ = ["CLIENT_CLOSED", "REQUEST_ID", "begin", "disconnected", "found_action", "named", "wait_seconds"]

REQUEST_ID = "X-Logjam-Request-Id"
"""Response header with the id of the request: ``<app>-<environment>-<request_id>``."""

CLIENT_CLOSED = 499
"""Code of a request whose client disconnected before the response, as in nginx."""

WARNING = 30
LONGEST_WAIT = 3600.0


def begin(
    agent: Agent,
    method: str,
    path: str,
    query: str,
    headers: Iterable[tuple[str, str]],
    ip: str | None,
) -> Request:
    """Begin a request; its action is not known yet."""
    from urllib.parse import parse_qs

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
    info: dict[str, Any] = {
        "method": method.upper(),
        "url": f"{path}?{query}" if query else path or "/",
        "headers": found,
    }
    if query:
        parameters = parse_qs(query[:65536], keep_blank_values=True)
        info["query_parameters"] = {
            name: values[0] if len(values) == 1 else values for name, values in parameters.items()
        }
    request.request_info = info
    waited = wait_seconds(
        found.get("X-Request-Start") or found.get("X-Queue-Start") or found.get("X-Starttime"), time.time()
    )
    if waited:
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


def found_action(
    complain: Callable[[BaseException, str], object],
    context: Any,
    action: Callable[[Any], object] | None,
    default: Callable[[Any], str | None],
) -> object:
    """Return the action by the application's callable, else by its framework; None if neither knows it."""
    for find in (action, default):
        if find is None:
            continue
        try:
            found = find(context)
        except Exception as error:  # an error of the application's callable must not fail the request
            complain(error, "the action of a request")
            continue
        if found:
            return found
    return None


def named(
    request: Request,
    context: Any,
    method: str,
    action: Callable[[Any], object] | None,
    default: Callable[[Any], str | None],
) -> None:
    """Set the action of the request, unless the application has.

    Never use the path: the importer keeps every action in memory and in tables.
    """
    if request.action is None:
        found = found_action(request.agent.complain, context, action, default)
        request.action = found or f"Unknown#{method.lower() or 'unknown_method'}"


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
