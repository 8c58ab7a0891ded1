"""Flask and other WSGI applications: events have the fields of their request. Flask itself is not needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from logclient.integrations.exchange import Environ, WsgiApplication, WsgiResponse
from logclient.integrations.request_fields import KEY, REQUEST_ID, Middleware, RequestFields, wsgi_path
from logclient.records import context

__all__ = ["RequestContext", "init_app"]


def init_app(
    app: Any, *, client_ip: bool = True, logger: str | None = None, skip: Collection[str | int] = ()
) -> None:
    """Bind the fields of each request of a Flask application.

    Call it last, or wrap ``app.wsgi_app`` before: what is wrapped around later is not part of the request.

    Args:
        app: the ``flask.Flask``.
        client_ip: whether events have the address of the client. Behind a proxy, that is the proxy's, unless
            ``ProxyFix`` of werkzeug is wrapped around later.
        logger: the name of a logger that gets one record for each finished request.
        skip: paths and statuses whose requests have no record, such as ``["/health", "/static/*", 304]``.

    Raises:
        TypeError: it is not an application of Flask.
    """
    if not callable(getattr(app, "wsgi_app", None)):
        raise TypeError(
            f"app: must be a flask.Flask, got {type(app).__name__}; "
            "for another WSGI application use app = RequestContext(app)"
        )
    app.wsgi_app = RequestContext(app.wsgi_app, client_ip=client_ip, logger=logger, skip=skip)


class RequestContext(Middleware[WsgiApplication]):
    """Middleware around a WSGI application that binds the fields of each request.

    The fields last until the response is closed, and while its chunks are made. Without `client_ip`, events
    do not have the address of the client. The logger named `logger` gets one record for each finished
    request, all but those that `skip` covers.
    """

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Call the application with the fields bound; return its response."""
        if KEY in environ:
            return self.app(environ, start_response)
        fields = RequestFields(
            environ.get("REQUEST_METHOD"),
            wsgi_path(environ),
            environ.get("HTTP_X_REQUEST_ID"),
            environ.get("HTTP_TRACEPARENT"),
            environ.get("REMOTE_ADDR") if self.client_ip else None,
            self.log,
        )
        environ[KEY] = fields.id
        try:
            return _Response(fields, environ).of(self.app, start_response, files=True)
        finally:
            fields.end()


class _Response(WsgiResponse):
    """Each call has the fields of the request, and those that the application binds itself."""

    def __init__(self, fields: RequestFields, environ: Environ) -> None:
        super().__init__((REQUEST_ID, fields.id), environ)
        self._fields = fields
        self._code = 500
        self._rule: Any = None
        self._inside = context.current.get()

    @contextmanager
    def _active(self) -> Iterator[None]:
        outside = context.current.get()
        context.current.set(self._inside)
        try:
            yield
        finally:
            self._inside = context.current.get()
            context.current.set(outside)

    def _started(self, code: int | None) -> None:
        self._code = code or 0
        self._rule = getattr(self._environ.get("werkzeug.request"), "url_rule", None)  # Flask removes it

    def _failed(self, error: BaseException, unsent: bool) -> None:
        if unsent:
            self._code = 500

    def _end(self) -> None:
        with self._active():
            self._fields.log(self._code, lambda: self._rule, lambda: self._environ.get("REMOTE_USER"))
