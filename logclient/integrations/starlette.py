"""Starlette, FastAPI and other ASGI applications: events have the fields of their request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from logclient.integrations.request_fields import (
    CLIENT_CLOSED,
    KEY,
    REQUEST_ID,
    RequestFields,
    check_logger,
    joined,
)

__all__ = ["RequestContext"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_ID = REQUEST_ID.lower().encode()
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
_ENDS = ("http.response.body", "websocket.http.response.body")


class RequestContext:
    """Middleware that binds the fields of HTTP requests and of WebSockets. Other scopes pass through.

    The fields last as long as the application handles the request: while it streams the response, in thread
    pools and tasks that it starts, and in background tasks. If it raises, they last until the task of the
    request ends, so that the server's own record of the exception has them.

    Args:
        app: the application.
        client_ip: whether events have the address of the client.
        logger: the name of a logger that gets one record for each finished request.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        client_ip: bool = True,
        logger: str | None = None,
    ) -> None:
        self.app = app
        self.client_ip = client_ip
        self.logger = check_logger(logger)

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
            self.logger,
        )
        scope[KEY] = fields.id
        shown = (_ID, fields.id.encode())
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            kind = message["type"]
            if kind == "websocket.close" and not status:
                status = 403  # what servers answer to the handshake then
            if kind in _STARTS:
                status = message.get("status", 101)
                others = [pair for pair in message.get("headers") or () if bytes(pair[0]).lower() != _ID]
                message = {**message, "headers": [*others, shown]}
            await send(message)
            if kind in _ENDS and not message.get("more_body"):
                fields.log(status, route, user)  # background tasks may go on

        def route() -> object:
            return getattr(scope.get("route"), "path", None)

        def user() -> object:
            found: Any = scope.get("user")
            return found.display_name if getattr(found, "is_authenticated", False) else None

        try:
            try:
                await self.app(scope, receive, send_with_id)
            except BaseException as error:
                gone = isinstance(error, asyncio.CancelledError) or type(error).__name__ == "ClientDisconnect"
                fields.log(status or (CLIENT_CLOSED if gone else 500), route, user)
                raise
            fields.log(status or 500, route, user)
        except Exception:
            # Servers run each request in a task of its own, and log the exception there.
            if fields.nested:
                fields.end()
            raise
        except BaseException:
            fields.end()
            raise
        fields.end()
