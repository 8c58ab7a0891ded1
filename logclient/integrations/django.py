"""Django: every event of a request has the fields of the request.

With ``LOGCLIENT_CLIENT_IP = False`` in the settings, events do not have the address of the client. With
``LOGCLIENT_REQUEST_LOGGER = "access"``, that logger gets one record for each finished request,
all but those with a path or a status in ``LOGCLIENT_REQUEST_SKIP = ["/health", "/static/*", 304]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from logclient.errors import MissingExtra
from logclient.integrations.request_fields import CLIENT_CLOSED, REQUEST_ID, RequestFields, RequestLog

try:
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django.conf import settings
except ImportError:
    raise MissingExtra("django") from None

__all__ = ["RequestContext"]


class RequestContext:
    """Middleware that binds the fields of each request, under WSGI and ASGI.

    The fields last until the response is closed. Let it be the first one: what middleware before it logs has
    no fields.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self.client_ip = bool(getattr(settings, "LOGCLIENT_CLIENT_IP", True))
        skip = getattr(settings, "LOGCLIENT_REQUEST_SKIP", ())
        self.log = RequestLog.make(getattr(settings, "LOGCLIENT_REQUEST_LOGGER", None), skip)
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        """Return the response, or under ASGI what makes it."""
        if self._is_async:
            return self._respond(request)
        with self._begun(request) as fields:
            return self._ending(request, self.get_response(request), fields)

    async def _respond(self, request: Any) -> Any:
        with self._begun(request) as fields:
            return self._ending(request, await self.get_response(request), fields)

    @contextmanager
    def _begun(self, request: Any) -> Iterator[RequestFields]:
        found = request.META
        fields = RequestFields(
            request.method,
            request.path,
            found.get("HTTP_X_REQUEST_ID"),
            found.get("HTTP_TRACEPARENT"),
            found.get("REMOTE_ADDR") if self.client_ip else None,
            self.log,
        )
        try:
            yield fields
        except BaseException as error:
            status = CLIENT_CLOSED if isinstance(error, asyncio.CancelledError) else 500
            fields.log(status, partial(_route, request), partial(_user, request))
            fields.end()
            raise

    def _ending(self, request: Any, response: Any, fields: RequestFields) -> Any:
        response[REQUEST_ID] = fields.id
        response.close = _Close(request, response, fields)
        return response


class _Close:
    """The ``close`` of a response, which ends its request. A copy in a cache has the one of its class."""

    def __init__(self, request: Any, response: Any, fields: RequestFields) -> None:
        self._request = request
        self._response = response
        self._fields = fields
        self._close = response.close

    def __call__(self) -> None:
        try:
            self._close()
        finally:
            request = self._request
            self._fields.log(self._response.status_code, partial(_route, request), partial(_user, request))
            self._fields.end()
            vars(self._response).pop("close", None)  # else the response would be part of a cycle

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._response, "close")


def _route(request: Any) -> object:
    return getattr(request.resolver_match, "route", None)


def _user(request: Any) -> object:
    """Return the name of the user, whom only the program looks up: that is a query."""
    user: Any = getattr(request, "_cached_user", None)
    return user.get_username() if user is not None and user.is_authenticated else None
