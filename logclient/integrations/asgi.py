"""ASGI middleware: one Logjam document per HTTP request. Other scopes pass through unchanged."""

from __future__ import annotations

from functools import partial

from logclient.integrations import http
from logclient.integrations.exchange import AsgiApplication, AsgiMessages, Receive, Scope, Send
from logclient.logjam import Request

__all__ = ["LogjamMiddleware"]


class LogjamMiddleware(http.Middleware[AsgiApplication, Scope]):
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
            header = (http.REQUEST_ID, request.full_id)
            started = partial(setattr, request, "code")
            messages = AsgiMessages(header, receive, send, started, request.stop_clock)
        except Exception as error:
            self.agent.note_lost(error, "an ASGI request")
            await self.app(scope, receive, send)
            return
        request.find_action = lambda: self._found_action(scope)
        try:
            with request.active():
                await self.app(scope, messages.receive, messages.send)
        except BaseException as error:
            if messages.gone or not isinstance(error, Exception):  # cancelled
                messages.gone = True
                request.exception(error, soft=True)
            else:
                request.failed_with(error)
            raise
        finally:
            if messages.gone and not messages.whole:
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
