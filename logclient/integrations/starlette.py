"""Starlette, FastAPI and other ASGI applications: events have the fields of their request."""

from __future__ import annotations

import asyncio
from typing import Any

from logclient.integrations.exchange import AsgiApplication, AsgiMessages, Receive, Scope, Send
from logclient.integrations.request_fields import (
    CLIENT_CLOSED,
    KEY,
    REQUEST_ID,
    Middleware,
    RequestFields,
    joined,
)
from logclient.records import context, spans

__all__ = ["RequestContext"]

_ID = REQUEST_ID.lower().encode()


class RequestContext(Middleware[AsgiApplication]):
    """Middleware that binds the fields of HTTP requests and of WebSockets. Other scopes pass through.

    The fields last as long as the application handles the request: while it streams the response, in thread
    pools and tasks that it starts, and in background tasks. If it raises, they last until the task of the
    request ends, so that the server's own record of the exception has them.

    Args:
        app: the application.
        client_ip: whether events have the address of the client.
        logger: the name of a logger that gets one record for each finished request.
        skip: paths and statuses whose requests have no record, such as ``["/health", "/static/*", 304]``.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, with the fields bound if the scope is of a new request."""
        if scope["type"] not in ("http", "websocket") or KEY in scope:
            await self.app(scope, receive, send)
            return
        client, headers = scope.get("client"), scope.get("headers") or ()
        fields = RequestFields(
            scope.get("method"),
            scope.get("path", ""),
            joined([bytes(value).decode("latin-1") for name, value in headers if name == _ID]),
            joined([bytes(value).decode("latin-1") for name, value in headers if name == b"traceparent"]),
            client[0] if client and self.client_ip else None,
            self.log,
        )
        scope[KEY] = fields.id
        status, span = 0, {}

        def started(code: int) -> None:
            nonlocal status, span
            status = code
            span = spans.active_fields()  # middleware around the request's may end it

        def end(gone: bool = False) -> None:  # without the messages, which refer to it
            fields.log(status or (CLIENT_CLOSED if gone else 500), route, user)

        def route() -> object:
            return getattr(scope.get("route"), "path", None)

        def user() -> object:
            found: Any = scope.get("user")
            return found.display_name if getattr(found, "is_authenticated", False) else None

        # The record does not wait for background tasks.
        messages = AsgiMessages((REQUEST_ID, fields.id), receive, send, started, end)
        try:
            await self.app(scope, messages.receive, messages.send)
        except BaseException as error:
            end(messages.gone or isinstance(error, asyncio.CancelledError))
            # Servers run each request in a task of its own, and log an exception there.
            if fields.nested or not isinstance(error, Exception):
                fields.end()
            else:
                context.bind(spans.active_fields() or span)
            raise
        end(messages.gone)
        fields.end()
