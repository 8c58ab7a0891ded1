"""A real Logux server for demos and tests: captures acknowledged events, commits faults on request.

`logclient.testing.logux_node` makes the answers. A message is one unit of the capture, in either direction.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from ssl import SSLContext
from typing import Any, Unpack

from logclient._ext.logux import FOREIGN, NO_ID, OK, Decoder
from logclient.errors import ConfigError, MissingExtra
from logclient.evidence.frames.logux import masked
from logclient.logux.messages import Connect, Ping, Sync, compact, parse
from logclient.testing import fault_gate
from logclient.testing.duplicates import decode_units, event_ids
from logclient.testing.fault_gate import NEVER, SILENT, Captured, Reply, ReplyPlan, flip_bit, under_foreign_id
from logclient.testing.logux_node import Judge, Login, Received, Rules, Server, ServerNode
from logclient.testing.loop import AckCounts, CollectorOptions
from logclient.testing.streams import Connection, StreamCollector

try:
    from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Request
    from websockets.protocol import State
    from websockets.server import ServerProtocol
except ImportError as error:
    raise MissingExtra("websockets", "logux") from error

__all__ = ["Collector", "Counts", "decode"]

_CLOSE_TIMEOUT = 2.0  # seconds that a client has to answer our close frame
_ACTIONS = (OK, FOREIGN, NO_ID)
# Without it, an application that logs at DEBUG level would show whole messages, with the token in them.
_NO_LOGGING = logging.Logger("websockets", logging.CRITICAL + 1)


@dataclass(frozen=True, kw_only=True)
class Counts(AckCounts):
    """Counters of a Logux collector; units are syncs that have actions, events are actions."""

    messages: int = 0  # received whole, of any type
    syncs: int = 0  # those with actions
    captured_syncs: int = 0
    outcomes: int = 0  # actions whose outcome was sent
    undone: int = 0  # actions with an undo as their outcome, sent or not
    pings: int = 0  # of clients
    logins: int = 0
    refused_logins: int = 0
    unanswered: int = 0  # syncs, by the fault no-reply
    timeouts: int = 0  # connections
    truncated: int = 0  # connections that ended inside a message
    protocol_errors: int = 0


def _actions(decoder: Decoder, raw: bytes) -> list[tuple[int, int, str]]:
    """Return where each action of a sync begins and ends, and its id, "" when it has none of our form."""
    found = decode_units(decoder, [raw])
    columns = (found.status.tolist(), found.offset.tolist(), found.length.tolist(), event_ids(found))
    return [
        (offset, offset + length, event_id)
        for status, offset, length, event_id in zip(*columns, strict=True)
        if status in _ACTIONS
    ]


def decode(raw: bytes) -> list[Any]:
    """Return the actions of one captured message; a message of another type has none.

    Raises:
        ValueError: `raw` is not a message.
    """
    message = parse(raw)
    return [action for action, _ in message.entries] if isinstance(message, Sync) else []


@dataclass(eq=False, kw_only=True)
class _Connection(Connection):
    protocol: ServerProtocol
    node: ServerNode
    partial: bytearray | None = None  # a message whose last fragment has not come
    close_by: float = NEVER  # when it is closed, once a close frame was sent
    write_closed: bool = False

    def frames(
        self, messages: Iterable[bytes], count: str, due: float = 0.0, settles: int = 0
    ) -> Reply[bytes]:
        """Return a reply with messages in frames; with none once the client has closed the session."""
        if self.protocol.state is not State.OPEN:
            return Reply(b"", count, due)
        self.queue_control_frames()  # they were ready before these messages
        rows = []
        for message in messages:
            self.protocol.send_text(message)
            # An error may quote the client's message, with its token.
            rows.append(masked(message) if message.startswith(b'["error"') else message)
        return Reply(b"".join(self.protocol.data_to_send()), count, due, tuple(rows), settles)

    def queue_control_frames(self) -> None:
        """Queue the WebSocket's own bytes: the end of the handshake, pongs, close frames."""
        for data in self.protocol.data_to_send():
            self.out += data  # b"" stands for the end of the stream


@dataclass(eq=False, slots=True)
class _Unit(fault_gate.Unit[bytes]):
    connection: _Connection
    received: Received

    @property
    def answers(self) -> int:
        return len(self.received.outcomes)

    def corrupted(self, random: Random) -> fault_gate.Changed | None:
        raw = self.whole.raw
        actions = _actions(self.decoder, raw)
        for start, end, event_id in random.sample(actions, len(actions)):
            changed = flip_bit(raw[start:end], random, json.loads, ("id", "type"))
            if changed is not None:
                ids = [event_id] if event_id else []
                return [Captured(raw[:start] + changed + raw[end:], self.whole.events)], ids
        return None

    def with_added(self, random: Random) -> fault_gate.Changed | None:
        """Append a copy of one action under an id that was never sent, with the meta of the last action."""
        raw = self.whole.raw
        actions = _actions(self.decoder, raw)
        if not actions:  # a number in them is beyond any of JavaScript's
            return None
        start, end, old = random.choice(actions)
        body, ids = under_foreign_id(raw[start:end], old, random)
        close = raw.rindex(b"]")
        tail = raw[actions[-1][1] : close]  # a comma and the last meta
        changed = raw[:close] + b"," + body + tail + raw[close:]
        return [Captured(changed, self.whole.events + 1)], ids

    def replies(self, plan: ReplyPlan) -> list[Reply[bytes]]:
        outcomes = self.received.outcomes
        count = "acks"
        if plan.fault == "no-reply":
            outcomes, count = [], ""
        elif plan.fault == "partial-cut":
            outcomes, count = outcomes[: plan.partial], ""
        messages = [*self.received.answers, *(one for outcome in outcomes for one in outcome)]
        return [self.connection.frames(messages, count, plan.due, len(outcomes))]


class Collector(StreamCollector[Counts, _Connection]):
    """A Logux server in a thread of its own. A context manager that can be started again.

    Args:
        host: an address to listen on; IPv6 without brackets.
        port: 0 picks a free one; ``port`` has it then, and a restart keeps it.
        node_id: the server's node id.
        token: the token that clients must send; None: any or none.
        authenticate: decides on logins, in place of `token`. It is called in the collector's thread, like
            `judge`; neither may call the collector.
        subprotocol: the application's subprotocol, as the server announces it.
        minimum: the lowest subprotocol of a client that is accepted; 0: any.
        types: action types that are accepted; None: all but those that begin with ``logux/``.
        judge: decides the outcome of an action, see ``logclient.testing.logux_node.Judge``.
        headers: the server's headers.
        development: tell the client the reason of an error, as the real server does in development.
        keep_log: remember processed ids, and ignore a second action with one of them.
        strict_spec: follow the text literally, see ``logclient.testing.logux_node``.
        timeout: seconds in which a client must answer; 0: no limit.
        ping: seconds of silence after which the client is pinged; 0: never.
        max_message: bytes of a message; the sender of a larger one is disconnected (close code 1009).
        deflate: accept permessage-deflate where a client offers it.
        tls: the context for TLS, see ``logclient.transports.tls.server_context``; None: in clear.
        clock: milliseconds since 1970.
        options: see `CollectorOptions`.

    Raises:
        ConfigError: an argument that breaks its rule.
        LedgerError: the capture or the fault log cannot be used (``start``).
        ConnectFailed: the address cannot be listened on (``start``).
    """

    _values = staticmethod(decode)

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        node_id: str = "server:logclient",
        token: str | None = None,
        authenticate: Callable[[Login], bool] | None = None,
        subprotocol: int | str = 1,
        minimum: int | str = 0,
        types: Collection[str] | None = None,
        judge: Judge | None = None,
        headers: Mapping[str, Any] | None = None,
        development: bool = False,
        keep_log: bool = False,
        strict_spec: bool = False,
        timeout: float = 70.0,
        ping: float = 20.0,
        max_message: int = 16 << 20,
        deflate: bool = False,
        tls: SSLContext | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        **options: Unpack[CollectorOptions],
    ) -> None:
        super().__init__("logux", Counts, "captured_syncs", Decoder(), host, port, tls, options)
        if token is not None and authenticate is not None:
            raise ConfigError("authenticate: cannot be given together with token")
        if token is not None:
            authenticate = partial(_has_token, token.encode())
        if strict_spec and isinstance(subprotocol, int):
            subprotocol = f"{subprotocol}.0.0"
        self._rules = Rules(
            node_id, subprotocol, minimum, authenticate, judge,
            types=None if types is None else frozenset(types), headers=dict(headers or {}), timeout=timeout,
            development=development, keep_log=keep_log, strict_spec=strict_spec, ping=ping,
        )  # fmt: skip
        self._server = Server(self._rules)
        self._max_message = max_message
        self._deflate = deflate
        self._clock = clock
        self._pushed: deque[tuple[str | None, Mapping[str, Any]]] = deque()

    def push(self, action: Mapping[str, Any], client: str | None = None) -> None:
        """Send an action of the server.

        Args:
            action: the action.
            client: the receiver as ``user:client``, its user and client id; None: all connected clients.

        Raises:
            ValueError: the action cannot be written as JSON.
            TypeError: the same, for a value of an unsupported type.
        """
        compact(action)
        with self._changed:
            self._pushed.append((client, action))
        self._wake()

    @property
    def clients(self) -> dict[str, dict[str, Any]]:
        """The headers of the connected clients, by node id."""
        with self._changed:
            return {node.node_id: dict(node.headers) for node in self._server.clients.values()}

    def _new_connection(self, number: int, **facts: Any) -> _Connection:
        extensions = [ServerPerMessageDeflateFactory()] if self._deflate else None
        # The limit is low until the client has logged in.
        most = min(self._rules.max_early, self._max_message)
        protocol = ServerProtocol(max_size=most, extensions=extensions, logger=_NO_LOGGING)
        node = ServerNode(self._server, facts["peer"].rpartition(":")[0], facts["alive_at"])
        return _Connection(number, protocol=protocol, node=node, **facts)

    def _connection_closed(self, connection: _Connection) -> None:
        connection.node.connection_lost()
        half = connection.partial is not None or connection.protocol.reader.buffer
        if half and not connection.closing and connection.close_by == NEVER:
            self._count["truncated"] += 1

    def _due(self, connection: _Connection) -> float:
        due = min(super()._due(connection), connection.close_by)
        if connection.stalled != SILENT and connection.close_by == NEVER and not connection.closing:
            if connection.node.closed:
                return 0.0
            timeout = connection.node.next_timeout()
            due = due if timeout is None else min(due, timeout)
        return due

    def _open(self) -> None:
        super()._open()
        self._server = Server(self._rules)

    def _respond(self, now: float) -> None:
        super()._respond(now)
        now, wall = time.monotonic(), self._clock()
        while self._pushed:
            receiver, action = self._pushed.popleft()
            for connection in self._connections.values():
                node = connection.node
                if node.open and not node.closed and receiver in (None, node.client_id):
                    # `add` itself counts the answer that it asks for.
                    connection.replies.append(connection.frames([node.add(dict(action), now, wall)], ""))

    def _data_received(self, connection: _Connection, data: memoryview, now: float) -> None:
        protocol = connection.protocol
        if not connection.head[:1].isupper():  # no HTTP request, whose first line the protocol would wait for
            self._reject(connection, "websocket: no HTTP request")
            return
        protocol.receive_data(bytes(data))
        for event in protocol.events_received():
            if connection.closing:  # messages after a cut have not arrived
                return
            if isinstance(event, Request):
                protocol.send_response(protocol.accept(event))
            elif isinstance(event, Frame):
                self._frame_received(connection, event, now)
        connection.queue_control_frames()
        if protocol.eof_sent and not connection.closing:
            self._session_ended(connection, now)

    def _session_ended(self, connection: _Connection, now: float) -> None:
        """Handle the end of the WebSocket session, after a close frame or a protocol error."""
        connection.replies.clear()  # no messages may follow a close frame
        error = connection.protocol.parser_exc or connection.protocol.handshake_exc
        if error is None:
            self._close_after_replies(connection)
        elif connection.close_by == NEVER:
            foreign = connection.protocol.handshake_exc is not None
            self._protocol_error(connection, f"websocket: {type(error).__name__}", foreign=foreign)
        # This also ends the connection of a peer that does not read.
        connection.close_by = min(connection.close_by, now + _CLOSE_TIMEOUT)

    def _frame_received(self, connection: _Connection, frame: Frame, now: float) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            connection.partial = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT and connection.partial is not None:
            connection.partial += frame.data
        else:
            return
        if frame.fin:
            whole, connection.partial = bytes(connection.partial), None
            self._message_received(connection, whole, now)

    def _message_received(self, connection: _Connection, raw: bytes, now: float) -> None:
        self._count["messages"] += 1
        node = connection.node
        for result in node.receive(raw, now, self._clock()):
            if connection.closing:
                break
            if isinstance(result.message, Sync) and result.message.entries:
                size = len(result.message.entries)
                self._count["syncs"] += 1
                self._count["events"] += size
                unit = _Unit(Captured(result.raw, size), self._decoder, connection, result)
                if self._admit(connection, unit, now) != "cut-before-write":
                    self._count["undone"] += result.undone
            else:
                self._control_received(connection, result)
        if node.closed:
            self._start_close(connection, now)

    def _control_received(self, connection: _Connection, result: Received) -> None:
        """Answer a message without actions. No fault but a stall applies to it."""
        message = result.message
        if self._capture is not None:
            self._capture.unit(connection.stream, masked(result.raw))
        if message is None:
            self._protocol_error(connection, result.reason, foreign=False)
        elif isinstance(message, Connect):
            self._count["logins" if connection.node.open else "refused_logins"] += 1
            if connection.node.open:
                connection.protocol.max_message_size = self._max_message
        elif isinstance(message, Ping):
            self._count["pings"] += 1
        if result.answers and connection.stalled != SILENT:
            connection.replies.append(connection.frames(result.answers, ""))

    def _reply_sent(self, connection: _Connection, reply: Reply[bytes], now: float) -> None:
        self._count["outcomes"] += reply.settles
        if reply.settles:
            connection.node.sent(reply.settles, now)

    def _start_close(self, connection: _Connection, now: float) -> None:
        """Send a close frame without a code, as the real server does, and wait for the client's.

        Closing the socket with unread bytes would reset the connection, and the client might never read the
        reason.
        """
        if connection.close_by != NEVER or connection.closing:
            return
        connection.close_by = now + _CLOSE_TIMEOUT
        if connection.node.closed == "timeout":
            self._count["timeouts"] += 1
        if connection.protocol.state is not State.OPEN:
            self._close_after_replies(connection)
            return
        connection.queue_control_frames()
        connection.protocol.send_close()
        connection.replies.append(Reply(b"".join(connection.protocol.data_to_send()), ""))

    def _after_replies(self, connection: _Connection, now: float) -> None:
        node = connection.node
        if connection.stalled == SILENT or connection.closing:
            return
        due = node.next_timeout()
        if due is not None and due <= now:
            for message in node.handle_timeout(now):
                connection.replies.append(connection.frames([message], ""))
        if node.closed:
            self._start_close(connection, now)

    def _close_if_idle(self, connection: _Connection, now: float) -> bool:
        if now >= connection.close_by:
            self._close(connection)
            return True
        if super()._close_if_idle(connection, now):
            return True
        ended = connection.close_by != NEVER and connection.protocol.eof_sent
        if ended and not connection.out and not connection.write_closed:
            connection.write_closed = True
            try:
                connection.sock.shutdown(socket.SHUT_WR)  # a client that has read everything closes now
            except OSError:
                pass
        return False


def _has_token(expected: bytes, login: Login) -> bool:
    sent = login.token
    return isinstance(sent, str) and hmac.compare_digest(sent.encode("utf-8", "replace"), expected)
