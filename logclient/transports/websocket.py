"""WebSocket (RFC 6455) over TCP or TLS: each send is one message, each message is received as one.

The protocol itself is implemented by ``websockets``, in its sans-IO form. Ordinary frames never reach it:
``_ext.websocket`` makes them and takes whole messages out of received bytes. Other frames (control frames,
fragments, compressed and forbidden ones) are passed to it one by one.

Messages are written when there are many bytes of them, or when there is nothing else to do, so that many
short messages cost one system call. If answers to pings cannot be written as fast as pings arrive, only the
last one is answered (section 5.5.3 allows that), so that a peer cannot fill memory with pings.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from logclient._ext.websocket import seal, split
from logclient.config import Secret
from logclient.delivery.contract import Link, Transport
from logclient.errors import CredentialError, MissingExtra
from logclient.transports.attempt import Attempt
from logclient.transports.http import REFUSALS, Proxy, ask, printable
from logclient.transports.tcp import Connect, Endpoint, Tcp, TcpLink, connect_any

# Imported now: in the sender's thread a fork might interrupt the import.
try:
    from websockets.client import ClientProtocol
    from websockets.extensions.permessage_deflate import enable_client_permessage_deflate
    from websockets.frames import CloseCode, Opcode
    from websockets.protocol import State
    from websockets.uri import WebSocketURI
except ImportError as error:
    raise MissingExtra("websockets", "logux") from error

__all__ = ["WebSocket", "WebSocketLink"]

MAX_BUFFERED = 65536
"""Bytes of messages that are gathered for one write."""

KEYS = 4096
"""Random bytes for masks, four for each frame, requested from the system at once."""

CLOSE_TIMEOUT = 1.0
"""Seconds at most for the peer's answer to our close frame."""

MAX_MESSAGE = 16 << 20

MIN_SECRET = 6
"""Characters of the shortest header value that is hidden in messages of the peer."""

# Its log lines would show whole messages, with the token in them, to an application that logs at DEBUG level.
_SILENT = logging.Logger("websockets", logging.CRITICAL + 1)


class WebSocketLink(Link):
    """A connection whose opening handshake is done.

    Args:
        inner: the link below, over TCP or TLS.
        protocol: its state, open.
        max_message: bytes of the largest message from the peer.
        rest: bytes that came after the handshake.
        hide: removes secrets from text of the peer.
    """

    ack_coalesce_delay = 0.001

    def __init__(
        self,
        inner: TcpLink,
        protocol: ClientProtocol,
        max_message: int,
        rest: bytes = b"",
        hide: Callable[[str], str] = str,
    ) -> None:
        self.peer = inner.peer
        self.tls = inner.tls
        self._inner = inner
        self._protocol = protocol
        self._max_message = max_message
        self._hide = hide
        self._out: list[bytes] = []
        self._buffered = 0
        self._pong = b""
        self._ready: list[bytes] = []  # received messages, the oldest at the end
        self._keys = b""
        self._key = 0  # where the next mask begins
        self._incomplete = bytearray()  # the beginning of a frame
        self._needed = 0  # bytes that it must have before it is examined again
        self._partial: bytearray | None = None  # fragments of a message whose last is missing
        self._over: OSError | None = None  # the reason for which nothing more can be received
        self._codeless = False  # the close frame of the peer had no code
        self._broken: OSError | None = None  # the last write failed; reported after the received messages
        if rest:
            self._take(rest)

    def facts(self) -> dict[str, Any]:
        """Describe the protection of the connection: see the link below."""
        return self._inner.facts()

    def fileno(self) -> int:
        """Return the descriptor of the link below."""
        return self._inner.fileno()

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        """Take these bytes as one text message.

        Returns:
            False when no more may be given before ``flush`` returns True.
        """
        if self._over is not None:
            return True  # the peer has closed: `receive` reports that
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        if self._protocol.extensions:
            self._protocol.send_text(data)
            self._gather()
        else:
            if self._key == len(self._keys):
                self._keys = os.urandom(KEYS)
                self._key = 0
            frame = seal(data, self._keys, self._key)
            self._key += 4
            self._out.append(frame)
            self._buffered += len(frame)
        return self._buffered < MAX_BUFFERED or self.flush()

    def _gather(self) -> None:
        """Collect the protocol's bytes to send."""
        for data in self._protocol.data_to_send():
            if data[:1] == b"\x8a":
                self._pong = data
            elif data:
                self._out.append(data)
                self._buffered += len(data)

    def flush(self) -> bool:
        """Write the buffered bytes; return whether the kernel has all of it. ``receive`` reports errors."""
        try:
            if self._broken is None and self._inner.flush():
                if self._pong:
                    self._out.append(self._pong)
                    self._pong = b""
                if not self._out:
                    return True
                data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
                self._out.clear()
                self._buffered = 0
                return self._inner.send([data])
        except OSError as error:
            self._broken = error
        if self._broken is None:
            return False
        self._out.clear()
        self._buffered = 0
        return True

    def receive(self) -> bytes | None:
        """Return the next message, or None when there is none.

        Returns:
            ``b""`` means that the connection was closed, also by a close frame without a code. An empty
            message is returned as a space.

        Raises:
            OSError: the connection is over; the message has the close code.
        """
        if not self._ready:
            if self._over is not None:
                return self._end(self._over)
            if self._buffered or self._pong:
                self.flush()  # one write for each read, however fast messages arrive
            data = self._inner.receive()
            if data is None:
                if self._broken is not None:
                    raise self._broken
                return None
            if data:
                self._take(data)
            else:
                words = "the server ended the connection without a close frame (1006)"
                self._over = self._broken or ConnectionError(words)
        if self._ready:
            return self._ready.pop()
        if self._over is not None:
            return self._end(self._over)
        return None

    def _end(self, over: OSError) -> bytes:
        if self._codeless:
            return b""
        raise over

    def _take(self, data: bytes) -> None:
        """Take bytes of the link below, while no message is ready."""
        frames: bytes | bytearray = data
        if self._incomplete:
            self._incomplete += data
            if len(self._incomplete) < self._needed:
                return
            frames = self._incomplete
        at = 0
        while self._over is None:
            partial = self._partial
            limit = self._max_message - (0 if partial is None else len(partial))
            at, size = split(frames, at, limit, partial is not None, self._ready)
            if len(frames) - at < size:
                self._needed = size
                break
            self._pass_on(bytes(frames[at : at + size]))
            at += size
        if frames is data:
            self._incomplete += data[at:]
        else:
            del self._incomplete[:at]
        self._ready.reverse()

    def _pass_on(self, data: bytes) -> None:
        """Pass one frame to the protocol."""
        protocol = self._protocol
        protocol.receive_data(data)
        frames: list[Any] = protocol.events_received()
        for frame in frames:
            opcode = frame.opcode
            if opcode is Opcode.TEXT or opcode is Opcode.BINARY:
                if frame.fin:
                    self._ready.append(bytes(frame.data) or b" ")
                else:
                    self._partial = bytearray(frame.data)
            elif opcode is Opcode.CONT and self._partial is not None:
                self._partial += frame.data
                if frame.fin:
                    self._ready.append(bytes(self._partial) or b" ")
                    self._partial = None
        self._gather()
        if protocol.close_rcvd is not None or protocol.parser_exc is not None:
            self._over = self._reason()
            self.flush()  # our close frame

    def _reason(self) -> ConnectionError:
        """Return why the protocol ended."""
        received, sent = self._protocol.close_rcvd, self._protocol.close_sent
        if received is not None and self._protocol.parser_exc is None:
            self._codeless = received.code == CloseCode.NO_STATUS_RCVD
            return ConnectionError(
                f"the server closed the connection: {_describe(received.code, self._hide(received.reason))}"
            )
        code = CloseCode.ABNORMAL_CLOSURE if sent is None else sent.code
        if code == CloseCode.MESSAGE_TOO_BIG:
            return ConnectionError(
                f"the server sent a message of more than max_message ({self._max_message}) bytes"
            )
        reason = "" if sent is None else sent.reason
        return ConnectionError(f"the server broke the WebSocket protocol: {_describe(code, reason)}")

    def wait(self, wake: int, seconds: float, writable: bool) -> None:
        """Write the buffered bytes, then sleep unless a message is ready."""
        if self._ready or self._over is not None:
            return
        full = not self.flush()
        if self._broken is None:
            self._inner.wait(wake, seconds, writable or full)

    def close(self, linger: float = 0.0) -> None:
        """Send the buffered bytes and a close frame, as far as possible at once or within `linger` seconds.

        The answer of a peer that answers is read, so that the system does not reset the connection.
        """
        now = time.monotonic()
        protocol = self._protocol
        try:
            if self._over is None and protocol.state is State.OPEN:
                protocol.send_close(CloseCode.NORMAL_CLOSURE)
                self._gather()
            while not self.flush() and (left := now + linger - time.monotonic()) > 0:
                self._inner.wait(-1, left, True)
            over = now + min(linger, CLOSE_TIMEOUT)
            while self._over is None and self._broken is None:
                data = self._inner.receive()
                if data:
                    self._take(data)
                    self._ready.clear()
                left = over - time.monotonic()
                if data == b"" or left <= 0:
                    break
                if data is None:
                    self._inner.wait(-1, left, False)
        except OSError:
            pass
        self._inner.close()

    def abandon(self) -> None:
        """In a forked child, close the descriptor without sending anything to the peer."""
        self._inner.abandon()


class WebSocket(Transport):
    """Connects with the opening handshake of WebSocket.

    Args:
        carrier: makes the connections below: ``Tcp``, or ``Tls``.
        path: of the request.
        deflate: whether to offer compression of messages (RFC 7692).
        max_message: bytes of the largest message from the server.
        proxy: an HTTP proxy to go through.
        headers: additional headers of the request.
    """

    def __init__(
        self,
        carrier: Tcp,
        *,
        path: str = "/",
        deflate: bool = False,
        max_message: int = MAX_MESSAGE,
        proxy: Proxy | None = None,
        headers: Sequence[tuple[str, Secret]] = (),
    ) -> None:
        self.connect_timeout = carrier.connect_timeout
        self._carrier = carrier
        self._path = quote(path, safe="/:@!$&'()*+,;=-._~")
        self._extensions = enable_client_permessage_deflate(None) if deflate else None
        self._max_message = max_message
        self._proxy = proxy
        self._headers = headers

    @classmethod
    def from_config(cls, config: Any) -> WebSocket:
        """Make a transport from a ``logclient.config.Config``.

        Raises:
            ConfigError: a file for TLS, or a proxy in the environment, cannot be used.
        """
        carrier = Tcp.from_config(config)
        if config.tls:
            from logclient.transports.tls import Tls

            carrier = Tls.from_config(config)
        proxy = None
        if config.proxy == "env":
            proxy = Proxy.from_environment(config.tls, config.endpoints)
        return cls(
            carrier,
            path=config.path or "/",
            deflate=config.deflate == "on",
            max_message=config.max_message,
            proxy=proxy,
            headers=config.http_headers or (),
        )

    def connect(self, endpoint: Endpoint, attempt: Attempt) -> WebSocketLink:
        """Connect to the first address of `endpoint` that answers, and do the opening handshake.

        Args:
            endpoint: host and port.
            attempt: decides when to give up.

        Raises:
            CredentialError: the server or the proxy refuses our credentials.
            OSError: no address answers in time, the name is unknown, or the server does not speak WebSocket.
        """
        host, port = endpoint

        def link(connect: Connect, name: bytes, deadline: float) -> WebSocketLink:
            inner = self._carrier.make_link(connect, name, f"{host}:{port}", attempt, deadline)
            try:
                return self._open(inner, name, port, attempt, deadline)
            except BaseException:
                inner.close()
                raise

        if self._proxy is not None and self.proxied(endpoint):
            return self._proxy.connect_any(endpoint, self.connect_timeout, attempt, link)
        return connect_any(endpoint, self.connect_timeout, attempt, link)

    def proxied(self, endpoint: Endpoint) -> bool:
        """Return whether connections to `endpoint` go through a proxy."""
        return self._proxy is not None and self._proxy.applies_to(endpoint)

    def _open(
        self, inner: TcpLink, name: bytes, port: int, attempt: Attempt, deadline: float
    ) -> WebSocketLink:
        """Do the opening handshake (section 4.1)."""
        host = name.partition(b"%")[0].decode("ascii")  # the zone of an address means nothing to the server
        protocol = ClientProtocol(
            WebSocketURI(self._carrier.secure, host, port, self._path, ""),
            extensions=self._extensions,
            max_size=self._max_message,
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
        protocol.events_received()
        return WebSocketLink(inner, protocol, self._max_message, answer.rest, self._hidden)

    def _hidden(self, text: str) -> str:
        """Cut text of the peer where it begins to repeat one of our secrets."""
        for _, value in self._headers:
            secret = value.reveal()
            if len(secret) >= MIN_SECRET:
                before, found, _ = text.partition(secret[:MIN_SECRET])
                text = f"{before}***" if found else text
        return text


def _describe(code: int, reason: str) -> str:
    """Describe a close code (section 7.4.1) and the peer's reason."""
    try:
        name = f" ({CloseCode(code).name.lower().replace('_', ' ')})"
    except ValueError:
        name = ""
    return f"{int(code)}{name}{': ' if reason else ''}{printable(reason, 123)}"
