"""ASGI middleware: one Logjam document per HTTP request. Other scopes pass through unchanged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from logclient.integrations import http
from logclient.logjam import Request

__all__ = ["LogjamMiddleware"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class LogjamMiddleware(http.Middleware[Application, Scope]):
    """Middleware around an ASGI application.

    The request is ``logjam.current()`` while the application runs, including its background tasks after the
    response; its duration ends with the last part of the response. Its action is the first of: the one that
    the application has set on ``logjam.current()``, the result of `action`, the endpoint that Starlette or
    FastAPI has found, ``Unknown#<method>``. The arguments are those of ``http.Middleware``.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, within a request if the scope is HTTP."""
        if scope.get("type") != "http":
            await self.app(scope, receive, send)
            return
        try:
            request = self._begin(scope)
            wire = _Wire(request, receive, send)
        except Exception as error:
            self.agent.note_lost(error, "an ASGI request")
            await self.app(scope, receive, send)
            return
        request.find_action = lambda: self._found_action(scope)
        try:
            with request.active():
                await self.app(scope, wire.receive, wire.send)
        except BaseException as error:
            if wire.gone or not isinstance(error, Exception):  # cancelled
                wire.gone = True
                request.exception(error, soft=True)
            else:
                request.failed_with(error)
            raise
        finally:
            if wire.gone and not wire.whole:
                http.disconnected(request)
            try:
                self._name(request, scope, scope.get("method", ""))
            except Exception as error:
                self.agent.note_lost(error, "an ASGI request")
            request.end()

    def _begin(self, scope: Scope) -> Request:
        client = scope.get("client")
        return http.begin(
            self.agent,
            scope.get("method", ""),
            scope.get("path", ""),
            bytes(scope.get("query_string", b"")).decode("latin-1"),
            [
                (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
                for name, value in scope.get("headers", ())
            ],
            str(client[0]) if client else None,
        )

    def _endpoint(self, context: Scope) -> str | None:
        """Return ``<module>#<function>``, or ``<module>::<Class>#<method>`` if the endpoint is a class."""
        endpoint = context.get("endpoint")
        if endpoint is None:
            return None
        while hasattr(endpoint, "func"):  # functools.partial
            endpoint = endpoint.func
        module = getattr(endpoint, "__module__", "") or "app"
        name = getattr(endpoint, "__qualname__", type(endpoint).__qualname__).rpartition("<locals>.")[2]
        if isinstance(endpoint, type):
            return f"{module}::{name}#{context.get('method', '').lower()}"
        owner, _, function = name.rpartition(".")  # the class of a method
        return f"{module}::{owner}#{function}" if owner else f"{module}#{function}"


class _Wire:
    """The messages between the server and the application."""

    def __init__(self, request: Request, receive: Receive, send: Send) -> None:
        self._request = request
        self._receive = receive
        self._send = send
        self._name = (http.REQUEST_ID.lower().encode(), request.full_id.encode())
        self.gone = False  # the client has disconnected
        self.whole = False  # the response is complete

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        if message.get("type") == "http.disconnect" and not self.whole:
            self.gone = True
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), self._name]}
        last = kind == "http.response.body" and not message.get("more_body", False)
        # Set this before sending: afterwards servers report http.disconnect. Some servers accept messages to
        # a client that is gone, and Starlette completes such a response as usual.
        self.whole = self.whole or (last and not self.gone)
        try:
            await self._send(message)
        except OSError:  # servers raise it for a client that is gone
            self.gone = True
            self.whole = False
            raise
        if kind == "http.response.start":
            code = message.get("status")
            self._request.code = code if isinstance(code, int) else None
        elif last:
            self._request.stop_clock()
