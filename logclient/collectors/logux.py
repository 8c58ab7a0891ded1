"""A real Logux server for demos and tests: captures what it acknowledges, and lies on request.

WebSocket over TCP or TLS, at any path. What it answers is `logclient.logux.node`'s: that of the
released server, but for what that one falls over. A message is one unit of the capture, in either direction.
A sync is answered after the capture was handed to the operating system, connection by connection in the
order of arrival: with ``synced``, and with a word on each of its actions.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient._ext.logux import FOREIGN, NO_ID, OK, Decoder
from logclient.collectors.lies import flipped, foreign_id
from logclient.collectors.running import IDLE, MAX_CONNECTIONS
from logclient.collectors.streams import NEVER, Connection, Step, Streams
from logclient.collectors.tally import Tally
from logclient.errors import ConfigError, MissingExtra
from logclient.logux.frames import masked
from logclient.logux.messages import Connect, Ping, Sync, compact, parse
from logclient.logux.node import Heard, Judge, Login, Rules, Server, ServerNode

try:
    from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Request
    from websockets.protocol import State
    from websockets.server import ServerProtocol
except ImportError as error:
    raise MissingExtra("websockets", "logux") from error

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["Collector", "Counts", "decode"]

_FAREWELL = 2.0  # seconds for a client to take its leave, once it was told that we do
_ACTIONS = (OK, FOREIGN, NO_ID)
# It would show whole messages, and the token in them, to an application that logs at DEBUG level.
_SILENT = logging.Logger("websockets", logging.CRITICAL + 1)


class Counts(NamedTuple):
    """What a collector has seen and done since it was made; units are syncs that have actions."""

    connections: int = 0
    open: int = 0  # connections now
    messages: int = 0  # received whole, of any type
    syncs: int = 0  # those with actions
    events: int = 0  # actions in them
    bytes: int = 0  # on the wire
    captured_syncs: int = 0
    captured_events: int = 0
    acks: int = 0  # syncs answered with all there is to say
    outcomes: int = 0  # actions that were told what became of them
    undone: int = 0  # ... and that is an undo, sent or not
    pings: int = 0  # of clients
    logins: int = 0
    refused_logins: int = 0
    cuts_before_write: int = 0
    cuts_before_ack: int = 0
    cuts_after_ack: int = 0
    stalls: int = 0
    unanswered: int = 0  # no-reply: syncs
    timeouts: int = 0  # connections
    idle_closes: int = 0
    truncated: int = 0  # connections that ended inside a message
    protocol_errors: int = 0
    capture_errors: int = 0
    duplicates: int = 0  # ids captured more than once (count_duplicates)
    copies: int = 0  # captured copies beyond the first (count_duplicates)

    @property
    def cuts(self) -> int:
        return self.cuts_before_write + self.cuts_before_ack + self.cuts_after_ack


# --- one sync, taken apart and put together again: for lies, ids and the fixture ----------------


class _Unit(NamedTuple):
    """A sync that has actions."""

    raw: bytes
    heard: Heard
    size: int


class _Action(NamedTuple):
    """Where the text of an action lies in its sync, and its id when it has one of our form."""

    start: int
    end: int
    event_id: str


def _actions(decoder: Decoder, raw: bytes) -> list[_Action]:
    found = decoder.decode(raw, array("q", [0]), array("q", [len(raw)]))
    columns = (found.status, found.offset, found.length, found.prefix_high, found.prefix_low, found.sequence)
    return [
        _Action(offset, offset + length, f"{high:016x}{low:04x}{sequence:012x}" if sequence else "")
        for status, offset, length, high, low, sequence in zip(*(c.tolist() for c in columns), strict=True)
        if status in _ACTIONS
    ]


def decode(raw: bytes) -> list[Any]:
    """The actions of one captured message; none when it is no sync.

    Raises:
        ValueError: it is no message.
    """
    message = parse(raw)
    return [action for action, _ in message.entries] if isinstance(message, Sync) else []


def _altered(before: Any, after: Any) -> bool:
    """Something changed, but neither a name nor what carries the id."""
    if not isinstance(before, dict) or not isinstance(after, dict) or before.keys() != after.keys():
        return False
    return before != after and all(before.get(name) == after.get(name) for name in ("id", "type"))


# --- the server --------------------------------------------------------------------------------


class _Connection(Connection):
    def __init__(self, *what: Any, protocol: ServerProtocol, node: ServerNode) -> None:
        super().__init__(*what)
        self.protocol = protocol
        self.node = node
        self.partial: bytearray | None = None  # a message whose last fragment has not come
        self.leave_by = NEVER  # we have taken our leave
        self.shut = False  # ... and will not write again


class Collector(Streams[Counts, _Unit, _Connection]):
    """A Logux server in a thread of its own. A context manager; starts and stops any number of times.

    Args:
        host: an address to listen on; IPv6 without brackets.
        port: 0 picks a free one, which ``port`` then says, and a restart keeps.
        capture: directory of the capture; none is kept without.
        faults: see ``logclient.collectors.faults``.
        witness: a file for the ids of the events that were lied about.
        run: a name for this run, kept in the capture.
        listener: name in the capture; default protocol, host and port.
        node_id: of the server.
        token: what clients must show; None: nothing.
        authenticate: who is let in, in place of `token`. Called in the collector's thread, as is `judge`,
            and neither may call the collector.
        subprotocol, minimum: of the application: ours, and the lowest that is taken (0: any).
        types: of actions; None: all but those that begin with ``logux/``.
        judge: what becomes of an action: see ``logclient.logux.node.Judge``.
        headers: what is said of the server to clients.
        development: as the real server does in development: what went wrong is told to the client.
        keep_log: an id that was processed is known, and a second action under it ignored.
        strict_spec: to the letter of the text: see ``logclient.logux.node``.
        timeout: seconds for an answer of the client's; 0: no end.
        ping: seconds of silence before we ask whether the client is there; 0: never.
        max_message: bytes of a message; who sends a larger one is disconnected (close code 1009).
        deflate: accept permessage-deflate where a client offers it.
        count_duplicates: count the ids that are captured more than once.
        keep: keep what was captured in memory, for ``events``.
        tls: speak TLS, as this context says: see ``logclient.transports.tls.server_context``.
        clock: milliseconds since 1970.

    Raises:
        ConfigError: an argument that breaks its rule.
        LedgerError: capture or witness cannot be used (``start``).
        ConnectFailed: the address cannot be listened on (``start``).
    """

    _CAPTURED = "captured_syncs"

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        capture: str | None = None,
        faults: str | None = None,
        witness: str | None = None,
        run: str | None = None,
        listener: str | None = None,
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
        idle: float = IDLE,
        max_connections: int = MAX_CONNECTIONS,
        timeout: float = 70.0,
        ping: float = 20.0,
        max_message: int = 16 << 20,
        deflate: bool = False,
        count_duplicates: bool = False,
        keep: bool = False,
        tls: SSLContext | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(
            "logux",
            Counts._fields,
            host,
            port,
            capture=capture,
            faults=faults,
            witness=witness,
            run=run,
            listener=listener,
            idle=idle,
            max_connections=max_connections,
            count_duplicates=count_duplicates,
            keep=keep,
            tls=tls,
        )
        if token is not None and authenticate is not None:
            raise ConfigError("authenticate: has no use beside token")
        if token is not None:
            authenticate = _shows(token)
        if strict_spec and isinstance(subprotocol, int):
            subprotocol = f"{subprotocol}.0.0"
        self._rules = Rules(
            node_id=node_id,
            subprotocol=subprotocol,
            minimum=minimum,
            authenticate=authenticate,
            judge=judge,
            types=None if types is None else frozenset(types),
            headers=dict(headers or {}),
            development=development,
            keep_log=keep_log,
            strict_spec=strict_spec,
            timeout=timeout,
            ping=ping,
        )
        self._server = Server(self._rules)
        self._max_message = max_message
        self._deflate = deflate
        self._clock = clock
        self._decoder = Decoder()
        self._pushed: deque[tuple[str | None, Mapping[str, Any]]] = deque()

    # --- what the user's threads call

    def _counts(self) -> Counts:
        self._count["open"] = len(self._connections)
        return Counts(**self._count)

    def start(self) -> Collector:
        """Listen. Returns the collector itself."""
        self._server = Server(self._rules)
        self._listen()
        return self

    def push(self, action: Mapping[str, Any], client: str | None = None) -> None:
        """Send an action of the server's own.

        Args:
            client: ``user:client``, its user and client id; None: to all that are connected.

        Raises:
            ValueError: it has no form in JSON.
            TypeError: the same, for what is of a type that has none.
        """
        compact(action)
        with self._changed:
            self._pushed.append((client, action))
        self._wake()

    @property
    def clients(self) -> dict[str, dict[str, Any]]:
        """The headers of those that are connected, by node id."""
        with self._changed:
            return {node.node_id: dict(node.headers) for node in self._server.clients.values()}

    def _values(self, raw: bytes) -> list[Any]:
        return decode(raw)

    # --- the thread

    def _connection(self, sock: socket.socket, peer: str, number: int, now: float) -> _Connection:
        extensions = [ServerPerMessageDeflateFactory()] if self._deflate else None
        # Before it is let in, nobody has that much to say.
        most = min(self._rules.max_early, self._max_message)
        protocol = ServerProtocol(max_size=most, extensions=extensions, logger=_SILENT)
        node = ServerNode(self._server, peer.rpartition(":")[0], now)
        return _Connection(sock, peer, number, now, protocol=protocol, node=node)

    def _gone(self, connection: _Connection) -> None:
        connection.node.connection_lost()
        half = connection.partial is not None or connection.protocol.reader.buffer
        if half and not connection.doomed and connection.leave_by == NEVER:
            self._count["truncated"] += 1

    def _due(self, connection: _Connection) -> float:
        due = min(super()._due(connection), connection.leave_by)
        if connection.stalled != 1 and connection.leave_by == NEVER and not connection.doomed:
            if connection.node.closed:
                return 0.0
            timeout = connection.node.next_timeout()
            due = due if timeout is None else min(due, timeout)
        return due

    def _turn(self, listener: socket.socket) -> None:
        super()._turn(listener)
        if self._pushed:
            with self._changed:
                self._push_all()

    def _push_all(self) -> None:
        now, wall = time.monotonic(), self._clock()
        while self._pushed:
            to, action = self._pushed.popleft()
            for connection in self._connections.values():
                node = connection.node
                if node.open and not node.closed and to in (None, node.client_id):
                    # `add` counts the answer it asks for.
                    connection.steps.append(self._step(connection, [node.add(dict(action), now, wall)], ""))

    # --- in: bytes -> messages -> capture

    def _incoming(self, connection: _Connection, data: memoryview, now: float) -> None:
        protocol = connection.protocol
        protocol.receive_data(bytes(data))
        for event in protocol.events_received():
            if connection.doomed:  # what came behind a cut has not arrived
                return
            if isinstance(event, Request):
                protocol.send_response(protocol.accept(event))
            elif isinstance(event, Frame):
                self._frame(connection, event, now)
        self._gather(connection)
        if protocol.eof_sent and not connection.doomed:
            self._over(connection, now)

    @staticmethod
    def _gather(connection: _Connection) -> None:
        """What the WebSocket itself has to say: the end of the handshake, pongs, close frames."""
        for data in connection.protocol.data_to_send():
            connection.out += data  # the sign for the end is no bytes

    def _over(self, connection: _Connection, now: float) -> None:
        """No more messages either way: the client has taken its leave, or broken the rules of WebSocket."""
        connection.steps.clear()  # behind a close frame there are no messages
        error = connection.protocol.parser_exc or connection.protocol.handshake_exc
        if error is None:
            self._doom(connection, "")
        elif connection.leave_by == NEVER:
            self._broke(f"websocket: {type(error).__name__}")
        connection.leave_by = min(connection.leave_by, now + _FAREWELL)  # to one that does not read, too

    def _frame(self, connection: _Connection, frame: Frame, now: float) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            if frame.fin:
                self._message(connection, bytes(frame.data), now)
            else:
                connection.partial = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT and connection.partial is not None:
            connection.partial += frame.data
            if frame.fin:
                whole, connection.partial = bytes(connection.partial), None
                self._message(connection, whole, now)

    def _message(self, connection: _Connection, raw: bytes, now: float) -> None:
        self._count["messages"] += 1
        node = connection.node
        for heard in node.receive(raw, now, self._clock()):
            if connection.doomed:
                break
            if isinstance(heard.message, Sync) and heard.message.entries:
                self._count["syncs"] += 1
                self._count["events"] += len(heard.message.entries)
                self._unit(connection, _Unit(heard.raw, heard, len(heard.message.entries)), now)
            else:
                self._control(connection, heard)
        if node.closed:
            self._leave(connection, now)

    def _control(self, connection: _Connection, heard: Heard) -> None:
        """A message without an action: nothing is done to it but by a stall."""
        message = heard.message
        if self._capture is not None:
            self._capture.unit(connection.stream, masked(heard.raw))
        if message is None:
            self._broke(heard.reason)
        elif isinstance(message, Connect):
            if connection.node.open:
                connection.protocol.max_message_size = self._max_message
                self._count["logins"] += 1
            else:
                self._count["refused_logins"] += 1
        elif isinstance(message, Ping):
            self._count["pings"] += 1
        if heard.answers and connection.stalled != 1:
            connection.steps.append(self._step(connection, heard.answers, ""))

    def _unit(self, connection: _Connection, unit: _Unit, now: float) -> None:
        """Capture one sync, and line up its answers; or do what the faults say."""
        plan = self._planned(connection)
        end = plan.end.fault.name if plan.end is not None else ""
        if end == "cut-before-write":
            self._doom(connection, "cuts_before_write")
            return
        heard = unit.heard
        told = heard.outcomes
        if end == "no-reply":
            told = []
        elif end == "partial-cut" and plan.end is not None:
            some = int(plan.end.fault.value) or unit.size // 2
            if 0 < some < len(told):
                told = told[:some]
            else:  # a part of one there is not
                self._faults.give_back(plan.end)
                end = ""
        count = {"no-reply": "unanswered", "partial-cut": ""}.get(end, "acks")
        answers = [*heard.answers, *(one for outcome in told for one in outcome)]
        if connection.stalled or end in ("stall", "cut-before-ack"):
            answers, told = [], []
        ack = self._step(connection, answers, count, len(told))
        self._captured(connection, unit, plan, ack, now)
        self._count["undone"] += heard.undone

        if end == "stall" and plan.end is not None:
            connection.stalled = 2 if plan.end.fault.value else 1
            self._count["stalls"] += 1
        if connection.stalled:
            return
        if end == "cut-before-ack":
            self._doom(connection, "cuts_before_ack", ack.due)
            return
        connection.steps.append(ack)
        if end in ("partial-cut", "cut-after-ack"):
            self._doom(connection, "cuts_before_ack" if end == "partial-cut" else "cuts_after_ack")

    def _raw(self, unit: _Unit) -> bytes:
        return unit.raw

    def _size(self, unit: _Unit) -> int:
        return unit.size

    def _ids(self, unit: _Unit) -> list[str]:
        return [action.event_id for action in _actions(self._decoder, unit.raw) if action.event_id]

    def _corrupted(self, unit: _Unit, random: Random) -> tuple[bytes, list[str]] | None:
        actions = _actions(self._decoder, unit.raw)
        for start, end, event_id in random.sample(actions, len(actions)):
            changed = flipped(unit.raw[start:end], random, json.loads, _altered)
            if changed is not None:
                return unit.raw[:start] + changed + unit.raw[end:], [event_id] if event_id else []
        return None

    def _added(self, unit: _Unit, random: Random) -> tuple[bytes, list[str]]:
        """The copy goes to the end, with the meta of the last action."""
        actions = _actions(self._decoder, unit.raw)
        start, end, old = random.choice(actions)
        new = foreign_id(old, random) if old else ""
        body = unit.raw[start:end]
        body = body.replace(old.encode(), new.encode()) if old else body
        close = unit.raw.rindex(b"]")
        tail = unit.raw[actions[-1].end : close]  # a comma, and the last meta
        return unit.raw[:close] + b"," + body + tail + unit.raw[close:], [new] if new else []

    def _count_ids(self, tally: Tally, unit: bytes) -> None:
        tally.add(self._decoder.decode(unit, array("q", [0]), array("q", [len(unit)])))

    # --- out

    def _step(self, connection: _Connection, messages: Iterable[bytes], count: str, syncs: int = 0) -> Step:
        """Messages to send, in frames; none when the client has taken its leave already."""
        protocol = connection.protocol
        if protocol.state is not State.OPEN:
            return Step(b"", count)
        self._gather(connection)  # what the WebSocket had to say came first
        rows: list[bytes] = []
        for message in messages:
            protocol.send_text(message)
            rows.append(message)
            if message.startswith(b'["error"'):  # it may quote what was heard
                rows[-1] = masked(message)
        return Step(b"".join(protocol.data_to_send()), count, rows=rows, syncs=syncs)

    def _said(self, connection: _Connection, step: Step, now: float) -> None:
        self._count["outcomes"] += step.syncs
        if step.syncs:
            connection.node.sent(step.syncs, now)

    def _leave(self, connection: _Connection, now: float) -> None:
        """The node has closed: say so as the real server does, without a code, and wait for the echo.

        To close with bytes unread would make the kernel reset the connection, and the client might never
        read why.
        """
        if connection.leave_by != NEVER or connection.doomed:
            return
        connection.leave_by = now + _FAREWELL
        if connection.node.closed == "timeout":
            self._count["timeouts"] += 1
        if connection.protocol.state is not State.OPEN:
            self._doom(connection, "")
            return
        self._gather(connection)
        connection.protocol.send_close()
        connection.steps.append(Step(b"".join(connection.protocol.data_to_send()), ""))

    def _beside(self, connection: _Connection, now: float) -> None:
        node = connection.node
        if connection.stalled == 1 or connection.doomed:
            return
        due = node.next_timeout()
        if due is not None and due <= now:
            for message in node.handle_timeout(now):
                connection.steps.append(self._step(connection, [message], ""))
        if node.closed:
            self._leave(connection, now)

    def _expired(self, connection: _Connection, now: float) -> bool:
        if now >= connection.leave_by:
            self._close(connection)
            return True
        if super()._expired(connection, now):
            return True
        leaves = connection.leave_by != NEVER and connection.protocol.eof_sent
        if leaves and not connection.out and not connection.shut:
            connection.shut = True
            try:
                connection.sock.shutdown(socket.SHUT_WR)  # a client that has read so far closes now
            except OSError:
                pass
        return False


def _shows(token: str) -> Callable[[Login], bool]:
    """Whether a client shows this token."""
    expected = token.encode()

    def authenticate(login: Login) -> bool:
        shown = login.token
        return isinstance(shown, str) and hmac.compare_digest(shown.encode("utf-8", "replace"), expected)

    return authenticate
