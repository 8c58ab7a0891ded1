"""Fields of an HTTP request, which every event of the request has; docs/web.md lists them."""

from __future__ import annotations

import fnmatch
import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Generic, TypeVar

from logclient import readable
from logclient.delivery import error_log
from logclient.errors import described
from logclient.records import context

REQUEST_ID = "X-Request-Id"  # header of the request and of its response
KEY = "logclient.request_id"  # in what a framework keeps for a request whose fields are bound already
CLIENT_CLOSED = 499  # status of a request whose client has gone before the response, as in nginx

Fact = Callable[[], object]

beside: Callable[[logging.Logger, logging.LogRecord], object] | None = None
"""Ships records of requests that the level of the root alone leaves out: under ``logclient run``."""

_NAMES = ("http.request.id", "http.request.method", "url.path", "client.ip", "trace.id")
_SANE = re.compile(r"[!#-&(-~]{1,128}")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class RequestLog:
    """Where records of finished requests or tasks go, and which of them are left out.

    Args:
        logger: the name of the logger.
        skip: paths, or names of tasks, in which ``*`` stands for any characters, and statuses. A path covers
            no request that has failed with 500 or above.

    Raises:
        TypeError: `logger` is no text, or `skip` no list of texts and numbers.
    """

    def __init__(self, logger: str, skip: Collection[str | int]) -> None:
        if not isinstance(logger, str):
            raise TypeError(f"logger: must be the name of a logger, got {type(logger).__name__}")
        if isinstance(skip, str) or not all(isinstance(one, (str, int)) for one in skip):
            raise TypeError(f"skip: must be a list of paths and statuses, got {skip!r:.80}")
        self.name = logger
        paths = [fnmatch.translate(one) for one in skip if isinstance(one, str)]
        self._paths = re.compile("|".join(paths)) if paths else None
        self._statuses = frozenset(one for one in skip if isinstance(one, int))

    def skips(self, path: str, status: int) -> bool:
        """Return whether a request has no record."""
        if status in self._statuses:
            return True
        return status < 500 and self._paths is not None and self._paths.match(path) is not None

    def write(self, text: str, *args: object, fields: dict[str, Any]) -> None:
        """Log at INFO."""
        logger = at = logging.getLogger(self.name)
        while at.parent is not None and not at.level:
            at = at.parent
        off = logger.disabled or logger.manager.disable >= logging.INFO
        if beside is None or off or at is not logging.root or logger.isEnabledFor(logging.INFO):
            logger.info(text, *args, extra=fields)
        else:
            place = __file__, 0, text, args, None, "write", fields
            record = logger.makeRecord(self.name, logging.INFO, *place)
            if found := logger.filter(record):
                beside(logger, record if found is True else found)

    @classmethod
    def make(cls, logger: str | None, skip: Collection[str | int] = ()) -> RequestLog | None:
        """Return one for a logger; None: there is none."""
        return None if logger is None else cls(logger, skip)


class RequestFields:
    """The fields of one request: its method, path, ids and peer. They are bound from here on, until `end`.

    Fields that were bound before stay, all but those of another request.

    Args:
        method: of HTTP.
        path: without the query.
        given_id: that the request has come with.
        traceparent: its header of that name.
        ip: the address of the client.
        log: gets a record when the request has ended; None: there is none.
    """

    __slots__ = ("_begun", "_binding", "_fields", "_log", "_path", "_shown", "id", "nested")

    def __init__(
        self,
        method: str | None,
        path: str,
        given_id: str | None,
        traceparent: str | None,
        ip: object,
        log: RequestLog | None = None,
    ) -> None:
        self._log, self._path = log, path or "/"
        self._begun = time.perf_counter()
        self._shown = readable.escape(f"{method or 'request'} {path or '/'}")
        self.id = sane_id(given_id) or secrets.token_hex(16)
        fields = {"http.request.id": self.id, "url.path": self._path}
        if method:
            fields["http.request.method"] = method
        if (address := _address(ip) if isinstance(ip, str) else None) is not None:
            fields["client.ip"] = address
        if (trace := trace_id(traceparent)) is not None:
            fields["trace.id"] = trace
        bound = context.bound()
        self.nested = "http.request.id" in bound
        taken = {name: context.TAKEN for name in _NAMES if name in bound}
        self._binding = context.Binding({**taken, **fields}, request=True)
        self._fields = context.current.get()

    def log(self, status: int, route: Fact, user: Fact = lambda: None) -> None:
        """Log once that the request has ended. What a filter raises is reported.

        Args:
            status: of the response.
            route: returns the pattern of the URL, or None: there is none.
            user: returns the name of the user, or None: there is none.
        """
        log, self._log = self._log, None
        if log is None or log.skips(self._path, status):
            return
        took = time.perf_counter() - self._begun
        fields: dict[str, Any] = {"http.response.status_code": status, "event.duration": round(took * 1e9)}
        before = context.current.get()
        # A server may end a response in another task.
        if before is None or before.fields.get("http.request.id") != self.id:
            context.current.set(self._fields)
        try:
            for name, fact in (("http.route", route), ("user.name", user)):
                with suppress(Exception):  # of the application's classes
                    if value := fact():
                        fields[name] = str(value)
            log.write("%s: %d in %.1f ms", self._shown, status, took * 1e3, fields=fields)
        except Exception as error:
            text = f"a request has no record, logger {log.name!r} raised {described(error)}"
            error_log.process.warn_limited("request", text)
        finally:
            context.current.set(before)

    def end(self) -> None:
        """Take the fields away, and what was bound during the request, where they are bound."""
        self._binding.reset()


App = TypeVar("App")


class Middleware(Generic[App]):
    """Middleware that binds the fields of each request; the arguments are those of its subclasses."""

    def __init__(
        self,
        app: App,
        *,
        client_ip: bool = True,
        logger: str | None = None,
        skip: Collection[str | int] = (),
    ) -> None:
        self.app = app
        self.client_ip = client_ip
        self.log = RequestLog.make(logger, skip)


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
