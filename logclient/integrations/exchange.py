"""Responses of WSGI and ASGI applications, as middleware sees them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

Environ = dict[str, Any]
WsgiApplication = Callable[[Environ, Any], Iterable[bytes]]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


def with_header(headers: Iterable[tuple[Any, Any]], header: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    """Return headers of text or of bytes with this one, in place of others of its name."""
    name = header[0].lower()
    return [*(pair for pair in headers if pair[0].lower() != name), header]


class WsgiResponse:
    """A response of a WSGI application. Its subclasses say what a middleware does meanwhile.

    `_started` gets a status that the server has taken (None: it is no number), and `_failed` what was raised;
    if that was `unsent`, the client has not got a status before it.
    """

    def __init__(self, header: tuple[str, str], environ: Environ) -> None:
        self._header = header
        self._environ = environ
        self._chunks: Iterable[bytes] = ()
        self._iterator: Iterator[bytes] | None = None
        self._begun = False  # the server got a chunk, so it has sent the status
        self._whole = False

    def _active(self) -> AbstractContextManager[object]:
        """Return a context manager for a call of the application."""
        raise NotImplementedError

    def _started(self, code: int | None) -> None: ...
    def _failed(self, error: BaseException, unsent: bool) -> None: ...
    def _sent(self) -> None: ...
    def _left(self) -> None: ...
    def _end(self) -> None: ...

    def of(self, app: WsgiApplication, start_response: Callable[..., Any], files: bool) -> Iterable[bytes]:
        """Call the application, and return what the server gets.

        Servers derive Content-Length from a list of one chunk, so they get the list itself. With `files`,
        they get a file itself, too, which they may have the kernel send.
        """

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            try:
                if exc_info is not None:
                    self._failed(exc_info[1], False)
                shown = with_header(headers, self._header)
                write = start_response(status, shown, *(() if exc_info is None else (exc_info,)))
            finally:
                exc_info = None  # PEP 3333: avoid a reference cycle through the traceback
            # Afterwards: a status that the server refuses is not sent.
            code = str(status)[:3]
            self._started(int(code) if code.isascii() and code.isdigit() else None)
            return write

        try:
            with self._active():
                chunks = app(self._environ, start)
        except BaseException as error:
            self._failed(error, True)
            self._end()
            raise
        wrapper = self._environ.get("wsgi.file_wrapper") if files else None
        if isinstance(chunks, (list, tuple, wrapper) if isinstance(wrapper, type) else (list, tuple)):
            self._end()
            return chunks
        self._chunks = chunks
        return self

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            with self._active():
                if self._iterator is None:
                    self._iterator = iter(self._chunks)
                chunk = next(self._iterator)
        except BaseException as error:
            self._whole = True
            if isinstance(error, StopIteration):
                self._sent()
            else:
                self._failed(error, not self._begun)
            raise
        self._begun = True
        return chunk

    def close(self) -> None:
        """Close the response of the application, and end the request."""
        try:
            if not self._whole:
                self._left()
            if (close := getattr(self._chunks, "close", None)) is not None:
                with self._active():
                    close()
        except BaseException as error:
            self._failed(error, False)
            raise
        finally:
            self._end()


class AsgiMessages:
    """The messages between an ASGI server and its application.

    `started` gets the status that the server has taken, and `sent` is called after the last part.
    """

    def __init__(
        self,
        header: tuple[str, str],
        receive: Receive,
        send: Send,
        started: Callable[[int], object],
        sent: Callable[[], object],
    ) -> None:
        self._header = (header[0].lower().encode(), header[1].encode())
        self._receive, self._send = receive, send
        self._started, self._sent = started, sent
        self._begun = False
        self.gone = False  # the client has disconnected
        self.whole = False  # the response is complete

    async def receive(self) -> Message:
        """Receive a message for the application."""
        message = await self._receive()
        if message.get("type") == "http.disconnect" and not self.whole:
            self.gone = True
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the application."""
        kind = message.get("type")
        starts = kind in ("http.response.start", "websocket.accept", "websocket.http.response.start")
        if starts:
            message = {**message, "headers": with_header(message.get("headers") or (), self._header)}
        last = kind in ("http.response.body", "websocket.http.response.body") and not message.get("more_body")
        # Set this before sending: afterwards servers report http.disconnect. Some servers accept messages to
        # a client that is gone, and Starlette completes such a response as usual.
        self.whole = self.whole or (last and not self.gone)
        try:
            await self._send(message)
        except OSError:  # servers raise it for a client that is gone
            self.gone = True
            self.whole = False
            raise
        if starts:
            self._begun = True
            self._started(message.get("status", 101))
        elif kind == "websocket.close" and not self._begun:
            self._started(403)  # what servers answer to the handshake then
        elif last:
            self._sent()
