"""Starlette, FastAPI and other ASGI applications: events have the fields of their request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from logclient.integrations.request_fields import KEY, REQUEST_ID, RequestFields, joined

__all__ = ["RequestContext"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_ID = REQUEST_ID.lower().encode()
_STARTS = ("http.response.start", "websocket.accept")


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
        self.logger = logger

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
        )
        scope[KEY] = fields.id
        shown = (_ID, fields.id.encode())
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] in _STARTS:
                status = message.get("status", 101)
                others = [pair for pair in message.get("headers") or () if bytes(pair[0]).lower() != _ID]
                message = {**message, "headers": [*others, shown]}
            await send(message)

        try:
            try:
                await self.app(scope, receive, send_with_id)
            finally:
                user = scope.get("user")
                named = getattr(user, "is_authenticated", False)
                route = getattr(scope.get("route"), "path", None)
                fields.log(self.logger, status, route, user.display_name if named else None)
        except Exception:
            # Servers run each request in a task of its own, and log the exception there.
            if fields.nested:
                fields.end()
            raise
        except BaseException:
            fields.end()
            raise
        fields.end()
