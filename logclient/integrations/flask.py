"""Flask and other WSGI applications: events have the fields of their request. Flask itself is not needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from logclient.integrations.request_fields import KEY, REQUEST_ID, RequestFields, check_logger, wsgi_path
from logclient.records import context

__all__ = ["RequestContext", "init_app"]

Environ = dict[str, Any]
T = TypeVar("T")
Application = Callable[[Environ, Any], Iterable[bytes]]


def init_app(app: Any, *, client_ip: bool = True, logger: str | None = None) -> None:
    """Bind the fields of each request of a Flask application.

    Call it last, or wrap ``app.wsgi_app`` before: what is wrapped around later is not part of the request.

    Args:
        app: the ``flask.Flask``.
        client_ip: whether events have the address of the client. Behind a proxy, that is the proxy's, unless
            ``ProxyFix`` of werkzeug is wrapped around later.
        logger: the name of a logger that gets one record for each finished request.

    Raises:
        TypeError: it is not an application of Flask.
    """
    if not callable(getattr(app, "wsgi_app", None)):
        raise TypeError(
            f"app: must be a flask.Flask, got {type(app).__name__}; "
            "for another WSGI application use app = RequestContext(app)"
        )
    app.wsgi_app = RequestContext(app.wsgi_app, client_ip=client_ip, logger=logger)


class RequestContext:
    """Middleware around a WSGI application that binds the fields of each request.

    The fields last until the response is closed, and while its chunks are made. Without `client_ip`, events
    do not have the address of the client. The logger named `logger` gets one record for each finished
    request.
    """

    def __init__(self, app: Application, *, client_ip: bool = True, logger: str | None = None) -> None:
        self.app = app
        self.client_ip = client_ip
        self.logger = check_logger(logger)

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
            self.logger,
        )
        environ[KEY] = fields.id
        code, rule = 500, None

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            nonlocal code, rule
            rule = getattr(environ.get("werkzeug.request"), "url_rule", None)  # Flask removes it at the end
            others = [pair for pair in headers if pair[0].lower() != "x-request-id"]
            shown = [*others, (REQUEST_ID, fields.id)]
            try:
                write = start_response(status, shown, *(() if exc_info is None else (exc_info,)))
            finally:
                exc_info = None  # PEP 3333: avoid a reference cycle through the traceback
            # Afterwards: a status that the server refuses is not sent.
            code = int(status[:3]) if status[:3].isdecimal() else 0
            return write

        def log(failed: bool) -> None:
            fields.log(500 if failed else code, lambda: rule, lambda: environ.get("REMOTE_USER"))

        file_wrapper = environ.get("wsgi.file_wrapper")
        whole = failed = True
        try:
            chunks = self.app(environ, start)
            failed = False
            inside = context.current.get()
            # Servers derive Content-Length from a list of one chunk, and have the kernel send a file.
            whole = isinstance(chunks, (list, tuple)) or (
                isinstance(file_wrapper, type) and isinstance(chunks, file_wrapper)
            )
        finally:
            if whole:
                log(failed)
            fields.end()
        return chunks if whole else _Chunks(chunks, inside, log)


class _Chunks:
    """The chunks of a response: each is made, and the response closed, with the fields of the request."""

    def __init__(
        self, chunks: Iterable[bytes], inside: context.Fields | None, log: Callable[[bool], None]
    ) -> None:
        self._chunks = chunks
        self._inside = inside
        self._log = log
        self._iterator: Iterator[bytes] | None = None
        self._begun = False  # the server got a chunk, so it has sent the status
        self._failed = False  # before that

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._iterator is None:
                self._iterator = self._call(iter, self._chunks)
            chunk: bytes = self._call(next, self._iterator)
        except BaseException as error:
            self._failed = not self._begun and not isinstance(error, StopIteration)
            raise
        self._begun = True
        return chunk

    def close(self) -> None:
        close = getattr(self._chunks, "close", None)
        try:
            if close is not None:
                self._call(close)
        finally:
            self._call(self._log, self._failed)

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function with the fields of the request, and those that it binds itself."""
        outside = context.current.get()
        context.current.set(self._inside)
        try:
            return function(*arguments)
        finally:
            self._inside = context.current.get()
            context.current.set(outside)
