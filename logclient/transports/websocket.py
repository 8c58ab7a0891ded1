"""WebSocket (RFC 6455) over TCP or TLS: what is sent at once is one message, what is received is one.

The protocol itself is that of ``websockets``, in its form without input and output. Ordinary frames never
reach it: whole messages are taken out of what comes, and made of what is sent, by ``_ext.websocket``; it is
given all others (control frames, fragments, compressed ones, forbidden ones), each frame by itself.

What is sent goes to the connection when there is much of it, or when nothing else is to be done: many short
messages cost one system call. Of pings only the last is answered where the answers cannot be written as fast
(section 5.5.3 allows it), so a peer that sends nothing else fills nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from logclient._ext.websocket import seal, split
from logclient.config import Secret
from logclient.delivery.contract import Link, Transport
from logclient.errors import CredentialError, MissingExtra
from logclient.transports.attempt import Attempt
from logclient.transports.http import REFUSALS, Proxy, ask, plain
from logclient.transports.tcp import Endpoint, Tcp, TcpLink, reach

# All of it now: in the sender's thread an import might be cut in two by a fork.
try:
    from websockets.client import ClientProtocol
    from websockets.extensions.permessage_deflate import enable_client_permessage_deflate
    from websockets.frames import CloseCode, Opcode
    from websockets.protocol import State
    from websockets.uri import WebSocketURI
except ImportError as error:
    raise MissingExtra("websockets", "logux") from error

__all__ = ["WebSocket", "WebSocketLink"]

HELD = 65536
"""Bytes kept back at most, until there is nothing else to do."""

KEYS = 4096
"""Random bytes to mask frames with, four each, had from the system at once."""

FAREWELL = 1.0
"""Seconds at most for the peer's answer to our close frame."""

MAX_MESSAGE = 16 << 20

SECRET = 6
"""Characters from which on the value of a header is looked for in what the peer says."""

# It would show whole messages, and the token in them, to an application that logs at DEBUG level.
_SILENT = logging.Logger("websockets", logging.CRITICAL + 1)


class WebSocketLink(Link):
    """A connection behind a finished opening handshake.

    Args:
        inner: what carries it.
        protocol: open.
        max_message: its limit, for the words of an error.
        rest: bytes that came with the end of the handshake.
        hide: takes secrets out of what the peer says.
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
        self._held = 0
        self._pong = b""
        self._ready: list[bytes] = []  # the first at the end
        self._keys = b""
        self._key = 0  # where the next of them begins
        self._come = bytearray()  # a frame that is not whole yet
        self._size = 0  # bytes that it must have before it is looked at again
        self._partial: bytearray | None = None  # a message whose last fragment has not come
        self._over: OSError | None = None  # why no more will come
        self._codeless = False  # the peer gave no code for its end
        self._broken: OSError | None = None  # why no more can be sent: what has come is heard first
        if rest:
            self._take(rest)

    def facts(self) -> dict[str, Any]:
        """What protects it, and who the peer has proved to be: see the carrier's."""
        return self._inner.facts()

    def fileno(self) -> int:
        return self._inner.fileno()

    def send(self, buffers: Sequence[bytes | memoryview]) -> bool:
        """Take these bytes as one text message; False: no more for now, until ``flush`` says True."""
        if self._over is not None:
            return True  # the peer has taken its leave: `receive` says so
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
            self._held += len(frame)
        return self._held < HELD or self.flush()

    def _gather(self) -> None:
        """Take what the protocol has to send."""
        for data in self._protocol.data_to_send():
            if data[:1] == b"\x8a":
                self._pong = data
            elif data:
                self._out.append(data)
                self._held += len(data)

    def flush(self) -> bool:
        """Write what is kept back; whether all is with the kernel now. What fails is told by ``receive``."""
        try:
            if self._broken is None and self._inner.flush():
                if self._pong:
                    self._out.append(self._pong)
                    self._pong = b""
                if not self._out:
                    return True
                data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
                self._out.clear()
                self._held = 0
                return self._inner.send([data])
        except OSError as error:
            self._broken = error
        if self._broken is None:
            return False
        self._out.clear()
        self._held = 0
        return True

    def receive(self) -> bytes | None:
        """The next message; None when there is none. An empty one comes as a space: b"" means the end.

        A close frame without a code is that end, too: it says no more than the end of a plain connection.

        Raises:
            OSError: the connection is over; its close code is in the words.
        """
        if not self._ready:
            if self._over is not None:
                return self._end(self._over)
            if self._held or self._pong:
                self.flush()  # one write for each read, however fast they come
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
        """Take what came over the carrier; nothing is ready."""
        come: bytes | bytearray = data
        if self._come:
            self._come += data
            if len(self._come) < self._size:
                return
            come = self._come
        at = 0
        while self._over is None:
            partial = self._partial
            limit = self._max_message - (0 if partial is None else len(partial))
            at, size = split(come, at, limit, partial is not None, self._ready)
            if len(come) - at < size:
                self._size = size
                break
            self._hand_on(bytes(come[at : at + size]))
            at += size
        if come is data:
            self._come += data[at:]
        else:
            del self._come[:at]
        self._ready.reverse()

    def _hand_on(self, data: bytes) -> None:
        """Give a frame to the protocol."""
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
            self._over = self._why()
            self.flush()  # our close frame

    def _why(self) -> ConnectionError:
        """What the end of the protocol means."""
        come, gone = self._protocol.close_rcvd, self._protocol.close_sent
        if come is not None and self._protocol.parser_exc is None:
            self._codeless = come.code == CloseCode.NO_STATUS_RCVD
            return ConnectionError(
                f"the server closed the connection: {_words(come.code, self._hide(come.reason))}"
            )
        code = CloseCode.ABNORMAL_CLOSURE if gone is None else gone.code
        if code == CloseCode.MESSAGE_TOO_BIG:
            return ConnectionError(
                f"the server sent a message of more than max_message ({self._max_message}) bytes"
            )
        reason = "" if gone is None else gone.reason
        return ConnectionError(f"the server broke the WebSocket protocol: {_words(code, reason)}")

    def wait(self, wake: int, seconds: float, writable: bool) -> None:
        """Write what is kept back; sleep, unless a message is here already."""
        if self._ready or self._over is not None:
            return
        full = not self.flush()
        if self._broken is None:
            self._inner.wait(wake, seconds, writable or full)

    def close(self, linger: float = 0.0) -> None:
        """Send what is kept back and a close frame, as far as that goes at once or in `linger` seconds; a
        peer that answers has its answer taken, so that the system does not reset the connection."""
        now = time.monotonic()
        protocol = self._protocol
        try:
            if self._over is None and protocol.state is State.OPEN:
                protocol.send_close(CloseCode.NORMAL_CLOSURE)
                self._gather()
            while not self.flush() and (left := now + linger - time.monotonic()) > 0:
                self._inner.wait(-1, left, True)
            over = now + min(linger, FAREWELL)
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
        """In a forked child: let go of the descriptor without a word to the peer."""
        self._inner.abandon()


class WebSocket(Transport):
    """Connects, one endpoint at a time.

    Args:
        carrier: makes the connections that carry it: ``Tcp``, or ``Tls``.
        path: that the request is for.
        deflate: whether to offer compression of messages (RFC 7692).
        max_message: bytes of a message from the server, at most.
        proxy: through which to go.
        headers: more of them, for the opening request.
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
        """
        Raises:
            ConfigError: a file for TLS, or a proxy in the environment, that cannot be used.
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
        """A link to the first address of `endpoint` that answers, its opening handshake done.

        Args:
            endpoint: host and port.
            attempt: asked whether to give up.

        Raises:
            OSError: nobody answers in time, the name is not known, or what answers is no WebSocket server.
            CredentialError: the server, or the proxy, does not let us in.
        """
        host, port = endpoint

        def link(dial: Callable[[], socket.socket], name: bytes, deadline: float) -> WebSocketLink:
            inner = self._carrier._link(dial, name, f"{host}:{port}", attempt, deadline)
            try:
                return self._open(inner, name, port, attempt, deadline)
            except BaseException:
                inner.close()
                raise

        if self._proxy is not None and self.proxied(endpoint):
            return self._proxy.reach(endpoint, self.connect_timeout, attempt, link)
        return reach(endpoint, self.connect_timeout, attempt, link)

    def proxied(self, endpoint: Endpoint) -> bool:
        """Whether the way to `endpoint` leads through a proxy."""
        return self._proxy is not None and self._proxy.leads_to(endpoint)

    def _open(
        self, inner: TcpLink, name: bytes, port: int, attempt: Attempt, deadline: float
    ) -> WebSocketLink:
        """The opening handshake (section 4.1)."""
        host = name.partition(b"%")[0].decode("ascii")  # the scope of an address is ours alone
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
            raise CredentialError(f"the server does not let us in: {words}")
        if 300 <= answer.status < 400:
            raise ConnectionError(
                f"the server answers {words}: redirections are not followed, give the address itself"
            )
        if answer.status != 101:
            raise ConnectionError(f"the server opens no WebSocket: {words}; is the path right?")
        protocol.receive_data(answer.head)
        if protocol.handshake_exc is not None or protocol.state is not State.OPEN:
            why = plain(self._hidden(str(protocol.handshake_exc)), 120)
            raise ConnectionError(f"the server's answer opens no WebSocket: {why}")
        protocol.events_received()
        return WebSocketLink(inner, protocol, self._max_message, answer.rest, self._hidden)

    def _hidden(self, text: str) -> str:
        """What the peer says, up to where it begins to repeat a secret of ours."""
        for _, value in self._headers:
            secret = value.reveal()
            if len(secret) >= SECRET:
                told, found, _ = text.partition(secret[:SECRET])
                text = f"{told}***" if found else text
        return text


def _words(code: int, reason: str) -> str:
    """A close code (section 7.4.1) and what the peer said of it."""
    try:
        name = f" ({CloseCode(code).name.lower().replace('_', ' ')})"
    except ValueError:
        name = ""
    return f"{int(code)}{name}{': ' if reason else ''}{plain(reason, 123)}"
