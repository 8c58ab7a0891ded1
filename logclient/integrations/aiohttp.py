"""aiohttp's server: every event of a request has the fields of `logclient.integrations.request_fields`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from logclient.errors import MissingExtra
from logclient.integrations.request_fields import KEY, REQUEST_ID, RequestFields, joined

try:
    from aiohttp import web
except ImportError:
    raise MissingExtra("aiohttp") from None

__all__ = ["install"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Newer versions warn of keys that are text.
_KEY: Any = web.RequestKey(KEY, str) if hasattr(web, "RequestKey") else KEY


def install(app: web.Application, *, client_ip: bool = True, logger: str | None = None) -> None:
    """Bind the fields of each request of an application and of those below it.

    The fields last as long as the task of the request. This is more than a middleware, which cannot add a
    header to a response that has begun, nor to the one that the server makes of an exception.

    Args:
        app: the application, before it runs.
        client_ip: whether events have the address of the client.
        logger: the name of a logger that gets one record for each finished request.

    Raises:
        TypeError: it is not an application of aiohttp.
    """
    if not isinstance(app, web.Application):
        raise TypeError(f"app: must be an aiohttp.web.Application, got {type(app).__name__}")

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
        )
        request[_KEY] = fields.id
        status = 500
        try:
            response = await handler(request)
            status = response.status
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            resource = request.match_info.route.resource
            fields.log(logger, status, None if resource is None else resource.canonical)
        return response

    app.middlewares.insert(0, request_context)
    app.on_response_prepare.append(_add_id)


async def _add_id(request: web.Request, response: web.StreamResponse) -> None:
    if _KEY in request:
        response.headers[REQUEST_ID] = request[_KEY]
