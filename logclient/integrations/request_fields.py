"""Fields of an HTTP request, which every event of the request has; docs/web.md lists them."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from logclient.records import context

REQUEST_ID = "X-Request-Id"  # header of the request and of its response
KEY = "logclient.request_id"  # in what a framework keeps for a request whose fields are bound already

_NAMES = ("http.request.id", "http.request.method", "url.path", "client.ip", "trace.id")
_SANE = re.compile(r"[!#-&(-~]{1,128}")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class RequestFields:
    """The fields of one request: its method, path, ids and peer. They are bound from here on, until `end`.

    Fields that were bound before stay, all but those of another request.
    """

    __slots__ = ("_before", "_begun", "_shown", "id", "nested")

    def __init__(
        self, method: str | None, path: str, given_id: str | None, traceparent: str | None, ip: object
    ) -> None:
        self._begun = time.perf_counter()
        self._shown = f"{method or 'request'} {path or '/'}"
        self.id = sane_id(given_id) or secrets.token_hex(16)
        fields = {"http.request.id": self.id, "url.path": path or "/"}
        if method:
            fields["http.request.method"] = method
        if (address := _address(ip) if isinstance(ip, str) else None) is not None:
            fields["client.ip"] = address
        if (trace := trace_id(traceparent)) is not None:
            fields["trace.id"] = trace
        before = context.current.get()
        others: Mapping[str, Any] = before.fields if before is not None else {}
        self.nested = "http.request.id" in others
        kept = {name: value for name, value in others.items() if name not in _NAMES}
        self._before = before
        context.current.set(context.Fields({**kept, **fields}))

    def log(self, logger: str | None, status: int, route: object = None, user: object = None) -> None:
        """Log that the request has ended, to the logger of this name; None: to none."""
        if logger is None:
            return
        took = time.perf_counter() - self._begun
        fields = {"http.response.status_code": status, "event.duration": round(took * 1e9)}
        fields |= {name: str(value) for name, value in (("http.route", route), ("user.name", user)) if value}
        text = "%s: %d in %.1f ms"
        logging.getLogger(logger).info(text, self._shown, status, took * 1e3, extra=fields)

    def end(self) -> None:
        """Bring back the fields from before. Where another request's fields are bound, do nothing."""
        now = context.current.get()
        if now is not None and now.fields.get("http.request.id") == self.id:
            context.current.set(self._before)


def sane_id(given: str | None) -> str | None:
    """Return an id that another program has sent, or None if it is not fit to be logged and sent on."""
    return given if given is not None and _SANE.fullmatch(given) else None


def joined(headers: Sequence[str]) -> str | None:
    """Return the headers of one name as WSGI servers do; None: there are none."""
    return ",".join(headers) if headers else None


def trace_id(traceparent: str | None) -> str | None:
    """Return the trace of a W3C header ``traceparent``; None if the header is missing or invalid."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match is None:
        return None
    version, trace, parent, more = match.groups()
    if version == "ff" or (version == "00" and more) or not (trace.strip("0") and parent.strip("0")):
        return None
    return trace


def wsgi_path(environ: Mapping[str, Any]) -> str:
    """Return the path of a WSGI request, which has bytes decoded as Latin-1."""
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return path.encode("latin-1", "replace").decode("utf-8", "replace")


@lru_cache(256)
def _address(text: str) -> str | None:
    """Return an IP address, without the zone of a local one; None for the name of a host or of a socket."""
    try:
        return str(ip_address(text.partition("%")[0]))
    except ValueError:
        return None
