"""WebSocket (RFC 6455) over TCP or TLS: each send is one message, each message is received as one.

``websockets`` does the opening handshake, in its sans-IO form. Everything after it is done by
``_ext.websocket``. Its pump drives that object and the link below without the GIL
(``_ext/websocket/pump.pyx``); the link here does so elsewhere, and closes the connection in both cases.

Messages are written when there are many bytes of them, or when there is nothing else to do, so that many
short messages cost one system call. If answers to pings cannot be written as fast as pings arrive, only the
last one is answered (section 5.5.3 allows that), so that a peer cannot fill memory with pings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from logclient._ext.websocket import LINKED, ClientFrames, WebSocketPump
from logclient.config.hosts import host_port
from logclient.config.secrets import Secret
from logclient.delivery.attempt import Attempt, renew
from logclient.delivery.contract import Link, Transport
from logclient.errors import CredentialError, MissingExtra
from logclient.standard import time
from logclient.transports.addresses import Connect
from logclient.transports.http import REFUSALS, ask, printable
from logclient.transports.tcp import Tcp
from logclient.transports.tcp_link import Endpoint, TcpLink

# Imported now: in the sender's thread a fork might interrupt the import.
try:
    from websockets.client import ClientProtocol
    from websockets.extensions.permessage_deflate import PerMessageDeflate, enable_client_permessage_deflate
    from websockets.frames import CloseCode
    from websockets.protocol import State
    from websockets.uri import WebSocketURI
except ImportError as error:
    raise MissingExtra("websockets", "logux") from error

MAX_BUFFERED = 65536
"""Bytes of messages that are gathered for one write."""

CLOSE_TIMEOUT = 1.0
"""Seconds at most for the peer's answer to our close frame."""

MIN_SECRET = 6
"""Characters of the shortest header value that is hidden in messages of the peer."""

# Its log lines would show whole messages, with the token in them, to an application that logs at DEBUG level.
_SILENT = logging.Logger("websockets", logging.CRITICAL + 1)


class WebSocketLink(Link):
    """A connection whose opening handshake is done, over a link of TCP or TLS.

    `hide` removes secrets from text of the peer.
    """

    ack_coalesce_delay = 0.001
    takes_messages = True

    def __init__(
        self, inner: TcpLink, frames: ClientFrames, max_message: int, hide: Callable[[str], str] = str
    ) -> None:
        self.peer = inner.peer
        self.tls = inner.tls
        self.inner = inner
        self.file = inner.file
        self.frames = frames
        self._max_message = max_message
        self._hide = hide
        self._broken: OSError | None = None  # the last write failed; reported after the received messages

    def facts(self) -> dict[str, Any]:
        return self.inner.facts()

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        """Take these bytes as one text message; False: no more before ``flush`` returns True."""
        # After the end it is discarded: `receive` reports that.
        self.frames.send(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        return self.frames.unsent < MAX_BUFFERED or self.flush()

    def flush(self) -> bool:
        """Write the buffered bytes; return whether the kernel has all of it. ``receive`` reports errors."""
        try:
            if self._broken is None and self.inner.flush():
                data = self.frames.data_to_send()
                return not data or self.inner.send([data])
        except OSError as error:
            self._broken = error
        if self._broken is None:
            return False
        self.frames.data_to_send()
        return True

    def receive(self) -> bytes | None:
        """Return the next message, or None when there is none; an empty message is a space.

        ``b""``: the connection was closed, also by a close frame without a code.

        Raises:
            OSError: the connection is over; the message has the close code.
        """
        frames = self.frames
        message = frames.next_message()
        if message is None and not frames.over:
            if frames.unsent:
                self.flush()  # one write for each read, however fast messages arrive
            data = self.inner.receive()
            if data is None:
                if self._broken is not None:
                    raise self._broken
                return None
            if data:
                frames.receive_data(data)
                message = frames.next_message()
            else:
                frames.receive_eof()
        if message is not None or not frames.over:
            return message
        self.flush()  # our close frame
        if frames.over == "closed" and frames.code == CloseCode.NO_STATUS_RCVD:
            return b""
        raise self.error

    @property
    def error(self) -> OSError:
        """Why the connection is over."""
        frames = self.frames
        if frames.over == "ended":
            words = "the server ended the connection without a close frame (1006)"
            return self._broken or ConnectionError(words)
        if frames.over == "too big":
            words = f"the server sent a message of more than {self._max_message} bytes"
            return ConnectionError(words)
        reason = frames.reason.decode()
        if frames.over == "closed":
            words = _describe(frames.code, self._hide(reason))
            return ConnectionError(f"the server closed the connection: {words}")
        return ConnectionError(f"the server broke the WebSocket protocol: {_describe(frames.code, reason)}")

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        """Write the buffered bytes; return what to wait for: see `Link`."""
        if self.frames.ready or self.frames.over:
            return [], [], 0.0
        full = not self.flush()
        if self._broken is not None:
            return [], [], 0.0
        return self.inner.waits_for(writable or full)

    def close(self, flush_for: float = 0.0) -> None:
        """Send what is buffered and a close frame, as far as possible at once or in `flush_for` seconds.

        The answer of a peer that answers is read, so that the system does not reset the connection.
        """
        now = time.monotonic()
        frames = self.frames
        try:
            if not frames.over:
                frames.close(CloseCode.NORMAL_CLOSURE)
            while not self.flush() and (left := now + flush_for - time.monotonic()) > 0:
                self.inner.wait(left, True)
            over = now + min(flush_for, CLOSE_TIMEOUT)
            while self._broken is None:
                while frames.next_message() is not None:
                    pass
                left = over - time.monotonic()
                if frames.over or left <= 0:
                    break
                data = self.inner.receive()
                if data:
                    frames.receive_data(data)
                elif data is None:
                    self.inner.wait(left, False)
                else:
                    break
        except OSError:
            pass
        self.inner.close()

    def abandon(self) -> None:
        self.inner.abandon()


class WebSocket(Transport):
    """Connects with the opening handshake of WebSocket."""

    def __init__(self, config: Any) -> None:
        self._tls = config.tls
        self._carrier = Tcp(config)
        if config.tls:
            from logclient.transports.tls import Tls

            self._carrier = Tls(config)
        self._path = quote(config.path or "/", safe="/:@!$&'()*+,;=-._~")
        offers = config.deflate == "on" and LINKED
        self._extensions = enable_client_permessage_deflate(None) if offers else None
        self._max_message = config.max_message
        self._headers: Sequence[tuple[str, Secret]] = config.http_headers or ()
        self._token: Secret | None = config.token

    def load_pump(self) -> Callable[..., Any]:
        carrier = self._carrier.load_pump()
        return partial(WebSocketPump.over, carrier)

    def connect(self, endpoint: Endpoint, attempt: Attempt) -> WebSocketLink:
        """Connect to the first address of `endpoint` that answers, and do the opening handshake."""
        renew([("token", self._token), *(("http_headers", value) for _, value in self._headers)], attempt)

        def link(connect: Connect, name: bytes, deadline: float) -> WebSocketLink:
            inner = self._carrier.make_link(connect, name, host_port(*endpoint), attempt, deadline)
            try:
                return self._open(inner, name, endpoint[1], attempt, deadline)
            except BaseException:
                inner.close()
                raise

        return self._carrier.connect_any(endpoint, attempt, link)

    def proxy_of(self, endpoint: Endpoint) -> str:
        return self._carrier.proxy_of(endpoint)

    def _open(
        self, inner: TcpLink, name: bytes, port: int, attempt: Attempt, deadline: float
    ) -> WebSocketLink:
        """Do the opening handshake (section 4.1)."""
        host = name.partition(b"%")[0].decode("ascii")  # the zone of an address means nothing to the server
        protocol = ClientProtocol(
            WebSocketURI(self._tls, host, port, self._path, ""),
            extensions=self._extensions,
            logger=_SILENT,
        )
        request = protocol.connect()
        request.headers["User-Agent"] = "logclient"
        for header, value in self._headers:
            request.headers.pop(header, None)
            request.headers[header] = value.reveal()
        protocol.send_request(request)
        answer = ask(inner, b"".join(protocol.data_to_send()), "the server", attempt, deadline)
        words = self._hidden(answer.words)
        if answer.status in REFUSALS:
            raise CredentialError(f"the server refuses the connection: {words}")
        if 300 <= answer.status < 400:
            raise ConnectionError(
                f"the server answers {words}: redirections are not followed, give the address itself"
            )
        if answer.status != 101:
            raise ConnectionError(f"the server opens no WebSocket: {words}; is the path right?")
        protocol.receive_data(answer.head)
        if protocol.handshake_exc is not None or protocol.state is not State.OPEN:
            why = printable(self._hidden(str(protocol.handshake_exc)), 120)
            raise ConnectionError(f"the server's answer opens no WebSocket: {why}")
        frames = ClientFrames(self._max_message, deflate=_agreed(protocol))
        frames.receive_data(answer.rest)
        return WebSocketLink(inner, frames, self._max_message, self._hidden)

    def _hidden(self, text: str) -> str:
        """Cut text of the peer where it begins to repeat one of our secrets."""
        for _, value in self._headers:
            secret = value.reveal()
            if len(secret) >= MIN_SECRET:
                before, found, _ = text.partition(secret[:MIN_SECRET])
                text = f"{before}***" if found else text
        return text


def _agreed(protocol: ClientProtocol) -> tuple[bool, int, bool, int] | None:
    """Return what was negotiated for compression: see `ClientFrames`."""
    for found in protocol.extensions:
        assert isinstance(found, PerMessageDeflate)  # the only one that is offered
        return (
            not found.local_no_context_takeover,
            found.local_max_window_bits,
            not found.remote_no_context_takeover,
            found.remote_max_window_bits,
        )
    return None


def _describe(code: int, reason: str) -> str:
    """Describe a close code (section 7.4.1) and the peer's reason."""
    try:
        name = f" ({CloseCode(code).name.lower().replace('_', ' ')})"
    except ValueError:
        name = ""
    return f"{int(code)}{name}{': ' if reason else ''}{printable(reason, 123)}"
