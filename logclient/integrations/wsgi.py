"""WSGI middleware: one Logjam document per request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from logclient.integrations import http
from logclient.integrations.exchange import Environ, WsgiApplication, WsgiResponse
from logclient.integrations.request_fields import wsgi_path
from logclient.logjam import Request

__all__ = ["LogjamMiddleware"]


class LogjamMiddleware(http.Middleware[WsgiApplication, Environ]):
    """Middleware around a WSGI application.

    The request is ``logjam.current()`` while the application is called and while it makes the chunks of its
    response; it ends when the response is closed, or at once if the response is a list. Its action is the
    first of: the one that the application has set on ``logjam.current()``, the result of `action`, Flask's
    endpoint, ``Unknown#<method>``. An exception that Flask handles itself is included if it is logged, as
    Flask does. The arguments are those of ``http.Middleware``.
    """

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Call the application within a request; return its response."""
        try:
            request = self._begin(environ)
        except Exception as error:
            self.agent.note_lost(error, "a WSGI request")
            return self.app(environ, start_response)
        request.find_action = lambda: self._found_action(environ)
        return _Response(self, request, environ).of(self.app, start_response, files=False)

    def _begin(self, environ: Environ) -> Request:
        headers = [
            (name.removeprefix("HTTP_").replace("_", "-"), value)
            for name, value in environ.items()
            if (name.startswith("HTTP_") or (name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value))
            and isinstance(value, str)
        ]
        return http.begin(
            self.agent,
            environ.get("REQUEST_METHOD", ""),
            wsgi_path(environ),
            environ.get("QUERY_STRING", ""),
            headers,
            environ.get("REMOTE_ADDR"),
        )

    def _endpoint(self, context: Environ) -> str | None:
        """Return ``<blueprint>#<function>`` of the endpoint that Flask has found."""
        endpoint = getattr(context.get("werkzeug.request"), "endpoint", None)
        if not isinstance(endpoint, str) or not endpoint:
            return None
        blueprint, _, function = endpoint.rpartition(".")
        return f"{blueprint or 'app'}#{function}"

    def _look(self, request: Request, environ: Environ) -> None:
        """Read the action and the form from the environ; Flask removes them at the end of its request."""
        try:
            self._name(request, environ, environ.get("REQUEST_METHOD", ""))
            # The form, if werkzeug has parsed it for the application; never read the body.
            form = getattr(environ.get("werkzeug.request"), "__dict__", {}).get("form")
            if form:
                found = {name: one[0] if len(one) == 1 else one for name, one in form.lists()}
                request.request_info.setdefault("body_parameters", found)
        except Exception as error:
            self.agent.note_lost(error, "a WSGI request")


class _Response(WsgiResponse):
    def __init__(self, middleware: LogjamMiddleware, request: Request, environ: Environ) -> None:
        super().__init__((http.REQUEST_ID, request.full_id), environ)
        self._middleware = middleware
        self._request = request
        self._active = request.active  # type: ignore[method-assign]
        self._sent = request.stop_clock  # type: ignore[method-assign]

    def _started(self, code: int | None) -> None:
        self._request.code = code
        self._middleware._look(self._request, self._environ)

    def _failed(self, error: BaseException, unsent: bool) -> None:
        if unsent:
            self._request.code = None
        self._request.failed_with(error)

    def _left(self) -> None:
        if not self._request.ended:
            http.disconnected(self._request)

    def _end(self) -> None:
        if not self._request.ended:
            self._middleware._look(self._request, self._environ)
            self._request.end()

    def __del__(self) -> None:
        self._end()  # the server has not called close()
