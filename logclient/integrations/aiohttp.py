"""aiohttp's server: every event of a request has the fields of `logclient.integrations.request_fields`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from logclient.errors import MissingExtra
from logclient.integrations.request_fields import (
    CLIENT_CLOSED,
    KEY,
    REQUEST_ID,
    RequestFields,
    RequestLog,
    joined,
)

try:
    from aiohttp import web
except ImportError:
    raise MissingExtra("aiohttp") from None

__all__ = ["install"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Newer versions warn of keys that are text.
_KEY: Any = web.RequestKey(KEY, str) if hasattr(web, "RequestKey") else KEY
_STATUS: Any = web.RequestKey("logclient.status", int) if hasattr(web, "RequestKey") else "logclient.status"


def install(
    app: web.Application,
    *,
    client_ip: bool = True,
    logger: str | None = None,
    skip: Collection[str | int] = (),
) -> None:
    """Bind the fields of each request of an application and of those below it.

    The fields last as long as the task of the request. This is more than a middleware, which cannot add a
    header to a response that has begun, nor to the one that the server makes of an exception.

    Args:
        app: the application, before it runs.
        client_ip: whether events have the address of the client.
        logger: the name of a logger that gets one record for each finished request.
        skip: paths and statuses whose requests have no record, such as ``["/health", "/static/*", 304]``.

    Raises:
        TypeError: it is not an application of aiohttp.
    """
    if not isinstance(app, web.Application):
        raise TypeError(f"app: must be an aiohttp.web.Application, got {type(app).__name__}")
    log = RequestLog.make(logger, skip)

    @web.middleware
    async def request_context(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _KEY in request:
            return await handler(request)
        fields = RequestFields(
            request.method,
            request.path,
            joined(request.headers.getall(REQUEST_ID, ())),
            joined(request.headers.getall("traceparent", ())),
            request.remote if client_ip else None,
            log,
        )
        request[_KEY] = fields.id

        def route() -> object:
            return getattr(request.match_info.route.resource, "canonical", None)

        try:
            response = await handler(request)
        except BaseException as error:
            transport = request.transport
            if isinstance(error, web.HTTPException):
                status = error.status
            elif isinstance(error, asyncio.CancelledError) or transport is None or transport.is_closing():
                status = CLIENT_CLOSED
            else:
                status = 500
            fields.log(request.get(_STATUS) or status, route)
            raise
        # A handler may have returned nothing, which aiohttp reports.
        fields.log(getattr(response, "status", 500), route)
        return response

    app.middlewares.insert(0, request_context)
    app.on_response_prepare.append(_add_id)


async def _add_id(request: web.Request, response: web.StreamResponse) -> None:
    if _KEY in request:
        response.headers[REQUEST_ID] = request[_KEY]
        request[_STATUS] = response.status
