"""The base of collectors over TCP or TLS: one thread and a selector serve all connections."""

from __future__ import annotations

import re
import selectors
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from logclient.config.hosts import host_port
from logclient.files.capture import TO_PEER
from logclient.testing.fault_gate import NEVER, Captured, Peer, Reply
from logclient.testing.loop import C, CollectorOptions, GatedCollector, bound_socket

_RECEIVE = 1 << 20
_RECORD = 1 << 14  # bytes of a TLS record, at most
_OUT_MAX = 1 << 16  # with more unsent bytes, reading from the peer stops
_HEAD = 16
_LANGUAGES = (
    (rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|CONNECT|PATCH|TRACE|PRI) ", "it speaks HTTP"),
    (rb"\x16\x03", "it speaks TLS"),
    (rb"(?:\d+ )?<\d{1,3}>", "it speaks syslog"),
    (rb"SSH-", "it speaks SSH"),
    (rb"PROXY |\r\n\r\n\0\r\nQUIT", "a proxy puts its own header before the events (the PROXY protocol)"),
    (rb"\s*[{\[]", "it sends JSON as lines"),
)
"""How peers begin that speak something else."""


@dataclass(eq=False, kw_only=True)
class Connection(Peer[bytes]):
    """The connection of one peer."""

    sock: socket.socket
    peer: str
    alive_at: float  # time of the last byte in either direction
    wrote_at: float  # time of the last byte to the peer
    out: bytearray = field(default_factory=bytearray)
    head: bytes = b""  # the first bytes of the peer
    interest: int = 0  # the events that the selector watches
    tls_must_write: bool = False  # whether TLS has to send bytes before it can read
    eof: bool = False  # whether the peer has ended its direction


K = TypeVar("K", bound=Connection)


class StreamCollector(GatedCollector[C, K, bytes], Generic[C, K]):
    """The base of a collector over TCP or TLS; `captured` is its counter of captured units."""

    def __init__(
        self,
        protocol: str,
        counts: type[C],
        captured: str,
        decoder: Any,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        options: CollectorOptions,
    ) -> None:
        super().__init__(protocol, counts, decoder, host, options, port=port)
        self._captured = captured
        self.port: int = port  #: the listening port
        self._tls = tls
        self._accepting: Any = None
        self._connections = self._replying

    # --- for protocols to implement

    if TYPE_CHECKING:
        # The bytes are only valid during the call: it passes each unit in them to `_admit`.
        def _new_connection(self, number: int, **facts: Any) -> K: ...
        def _data_received(self, connection: K, data: memoryview, now: float) -> None: ...
        def _connection_closed(self, connection: K) -> None: ...
        # After the due replies: sends keep-alives, and handles time-outs.
        def _after_replies(self, connection: K, now: float) -> None: ...
        # After the data of a reply was added to the output.
        def _reply_sent(self, connection: K, reply: Reply[bytes], now: float) -> None: ...

    def _close_if_idle(self, connection: K, now: float) -> bool:
        if not self._idle or now - connection.alive_at < self._idle:
            return False
        self._count["idle_closes"] += 1
        self._close(connection)
        return True

    @property
    def url(self) -> str:
        """The URL for clients."""
        scheme = self._protocol if self._tls is None else f"{self._protocol}+tls"
        return f"{scheme}://{host_port(self.host, self.port)}"

    def _open(self) -> None:
        self._accepting = bound_socket(socket.SOCK_STREAM, self.host, self.port)
        self.port = self._accepting.getsockname()[1]
        self._capture = self._open_capture(self.port, self.url)
        self._buffer = memoryview(bytearray(_RECEIVE))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._accepting, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._select = self._selector.select

    def _close_sockets(self) -> None:
        if self._accepting is not None:
            self._accepting.close()

    def _end(self) -> None:
        self._close_all()
        self._selector.close()
        self._flush()

    def _close_all(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)

    def _read(self, ready: list[Any], now: float) -> None:
        for key, mask in ready:
            if key.data is not None:
                connection: K = key.data
                if mask & selectors.EVENT_WRITE and connection.out:
                    self._send(connection)
                readable = mask & selectors.EVENT_READ or connection.tls_must_write
                if readable and connection.number in self._connections:
                    self._receive(connection, now)
            elif key.fileobj is self._accepting:
                self._accept(key.fileobj, now)
            else:
                self._clear_wakeup()

    def _due_at(self) -> float:
        return min([self._gate.due, *map(self._due, self._connections.values())])

    def _due(self, connection: K) -> float:
        due = NEVER
        if connection.replies and not self._holding and not connection.out:
            due = connection.replies[0].due
        if self._idle:
            due = min(due, connection.alive_at + self._idle)
        return due

    def _accept(self, listener: socket.socket, now: float) -> None:
        accepted = self._accepted(listener, len(self._connections))
        if accepted is None:
            return
        sock, address = accepted
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            # The first reads do the handshake.
            try:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:  # the peer has closed the connection already
                sock.close()
                return
        self._count["connections"] += 1
        number = self._count["connections"]
        peer = host_port(*address)
        facts = {"sock": sock, "peer": peer, "alive_at": now, "wrote_at": now}
        connection = self._new_connection(number, **facts)
        if self._capture is not None:
            connection.stream = self._capture.stream(peer)
        self._connections[number] = connection
        self._watch(connection)

    def _watch(self, connection: K) -> None:
        events = 0
        if not connection.closing and not connection.eof and len(connection.out) < _OUT_MAX:
            events |= selectors.EVENT_READ
        if connection.out or connection.tls_must_write:
            events |= selectors.EVENT_WRITE
        if events == connection.interest:
            return
        if not connection.interest:
            self._selector.register(connection.sock, events, connection)
        elif not events:
            self._selector.unregister(connection.sock)
        else:
            self._selector.modify(connection.sock, events, connection)
        connection.interest = events

    def _close(self, connection: K) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._abort_swap(connection)
        if connection.interest:
            self._selector.unregister(connection.sock)
        connection.sock.close()
        self._connection_closed(connection)
        if self._capture is not None:
            self._capture.end_stream(connection.stream)

    def _receive(self, connection: K, now: float) -> None:
        try:
            if self._tls is None:
                size = connection.sock.recv_into(self._buffer)
            else:
                size = self._decrypt(connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset
            self._close(connection)
            return
        if not size:
            # _send_replies still sends the due replies, and then closes the connection.
            connection.eof = True
            self._abort_swap(connection)
            self._watch(connection)
            return
        self._count["bytes"] += size
        data = self._buffer[:size]
        connection.head = connection.head or bytes(data[:_HEAD])
        self._data_received(connection, data, now)
        connection.alive_at = now
        if connection.number in self._connections:
            self._watch(connection)

    def _decrypt(self, connection: K) -> int:
        """Read all available TLS records that fit in the buffer, like ``recv_into``.

        Only whole ones: the rest of a record would wait in OpenSSL, where no selector sees it.
        """
        size = 0
        connection.tls_must_write = False
        try:
            while size <= len(self._buffer) - _RECORD:
                some = connection.sock.recv_into(self._buffer[size:])
                size += some
                if not some:  # the end; the next read returns it again
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if isinstance(error, ssl.SSLWantWriteError):
                connection.tls_must_write = True
                self._watch(connection)
            if not size:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            if not size:
                reason = f"tls: {(error.reason or 'error').replace('_', ' ').lower()}"
                self._protocol_error(connection, reason)
                raise
        return size

    def _protocol_error(self, connection: K, reason: str, *, foreign: bool = True) -> None:
        """Count an error and note it for `take_refusals`; a `foreign` one by what the peer speaks."""
        self._count["protocol_errors"] += 1
        found = (text for pattern, text in _LANGUAGES if foreign and re.match(pattern, connection.head))
        reason = next(found, reason)
        self._count_reason(reason)
        self._refusals.append(f"{connection.peer}: {reason}")

    def _reject(self, connection: K, reason: str) -> None:
        self._protocol_error(connection, reason)
        self._close_after_replies(connection)

    def _close_after_replies(self, connection: K) -> None:
        connection.closing = True
        self._abort_swap(connection)
        connection.replies.append(Reply(None, ""))

    def _add_reply(self, connection: K, reply: Reply[bytes]) -> None:
        connection.closing = connection.closing or reply.data is None
        connection.replies.append(reply)

    def _not_captured(self, connection: K) -> None:
        self._close(connection)

    def _was_captured(self, unit: Captured) -> None:
        self._count[self._captured] += 1

    def _send_replies(self, connection: K, now: float) -> None:
        replies = connection.replies
        while replies and replies[0].due <= now and not self._holding:
            reply = replies[0]
            if reply.data is None and connection.out:  # a close waits for the replies before it
                self._send(connection)
                if connection.out:
                    break
            replies.popleft()
            if reply.count:
                self._count[reply.count] += 1
            if reply.data is None:
                self._close(connection)
                return
            self._send_reply(connection, reply, now)
        self._after_replies(connection, now)
        if connection.out:
            self._send(connection)
        if connection.number not in self._connections:
            return
        if not self._close_if_idle(connection, now) and connection.eof and not replies and not connection.out:
            self._close(connection)

    def _send_reply(self, connection: K, reply: Reply[bytes], now: float) -> None:
        connection.out += reply.data or b""
        connection.wrote_at = connection.alive_at = now
        if self._capture is not None:
            for row in reply.rows:
                self._capture.unit(connection.stream, row, TO_PEER)
        self._reply_sent(connection, reply, now)

    def _send(self, connection: K) -> None:
        try:
            sent = connection.sock.send(connection.out)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sent = 0
        except OSError:  # reset: the peer sends unacknowledged events again
            self._close(connection)
            return
        del connection.out[:sent]
        if connection.number in self._connections:
            self._watch(connection)
