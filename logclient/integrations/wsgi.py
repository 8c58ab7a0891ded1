"""WSGI middleware: one Logjam document per request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from logclient.integrations import http
from logclient.integrations.request_fields import wsgi_path
from logclient.logjam import Request

__all__ = ["LogjamMiddleware"]

Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]

KEY = "logclient.logjam.request"  # in the environ


class LogjamMiddleware(http.Middleware[Application, Environ]):
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
            name = (http.REQUEST_ID, request.full_id)
        except Exception as error:
            self.agent.note_lost(error, "a WSGI request")
            return self.app(environ, start_response)

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if exc_info is None:
                write = start_response(status, [*headers, name])
            else:
                try:
                    request.failed_with(exc_info[1])
                    write = start_response(status, [*headers, name], exc_info)
                finally:
                    exc_info = None  # PEP 3333: avoid a reference cycle through the traceback
            # Set it afterwards: a status that the server refuses is not sent.
            code = str(status)[:3]
            request.code = int(code) if code.isascii() and code.isdigit() else None
            self._look(request, environ)
            return write

        environ[KEY] = request
        request.find_action = lambda: self._found_action(environ)
        try:
            with request.active():
                chunks = self.app(environ, start)
        except BaseException as error:
            request.code = None
            request.failed_with(error)
            self._end(request, environ)
            raise
        if isinstance(chunks, (list, tuple)):
            # Return the list itself: servers derive Content-Length from a list of one chunk.
            self._end(request, environ)
            return chunks
        return _Chunks(self, request, environ, chunks)

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

    def _end(self, request: Request, environ: Environ) -> None:
        if not request.ended:
            self._look(request, environ)
            request.end()


class _Chunks:
    """The chunks of a response, made while the request is the current one."""

    def __init__(
        self, middleware: LogjamMiddleware, request: Request, environ: Environ, chunks: Iterable[bytes]
    ) -> None:
        self._middleware = middleware
        self._request = request
        self._environ = environ
        self._chunks = chunks
        self._iterator: Iterator[bytes] | None = None
        self._begun = False  # the server got a chunk, so it has sent the status
        self._whole = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        request = self._request
        try:
            with request.active():
                if self._iterator is None:
                    self._iterator = iter(self._chunks)
                chunk = next(self._iterator)
            self._begun = True
            return chunk
        except StopIteration:
            self._whole = True
            request.stop_clock()
            raise
        except BaseException as error:
            self._whole = True
            if not self._begun:
                request.code = None
            request.failed_with(error)
            raise

    def close(self) -> None:
        request = self._request
        try:
            if not self._whole and not request.ended:
                http.disconnected(request)
            close = getattr(self._chunks, "close", None)
            if close is not None:
                with request.active():
                    close()
        except BaseException as error:
            request.failed_with(error)
            raise
        finally:
            self._middleware._end(request, self._environ)

    def __del__(self) -> None:
        # The server has not called close(): end the request now.
        request = getattr(self, "_request", None)
        if request is not None and not request.ended:
            self._middleware._end(request, self._environ)
