"""Logux: the client's core.

States of a connection::

    state         waiting for          encode      becomes
    DISCONNECTED  a connection         refused     connected: headers and `connect` are sent: CONNECTING
    CONNECTING    `connected`          refused     `connected`: SYNCHRONIZED; `error`: broken
    SYNCHRONIZED  nothing              -> SENDING  --
    SENDING       outcomes of actions  while       all have an outcome: SYNCHRONIZED
                                       there is
                                       room

    connection_lost: any -> DISCONNECTED

The server answers each `sync` at once with `synced`, which only says that it arrived. The outcome of an
action comes later, in a `sync` of the server: ``logux/processed`` or ``logux/undo``. It is not repeated if
the connection ends before it arrives. Actions that were sent and have no outcome then are *in doubt* (option
``on_doubt``).

Outcome of an undone action by its reason:

=====================  =========================================================================
``denied``             failed(denied); the server undoes its other queued actions
``unknownType``        failed(unknown_type); the same
``error``              this action or an earlier one broke the server's code: the first of those that
                       are undone together is sent alone, after the others
any other              failed(rejected)
=====================  =========================================================================

Headers keep their order with actions. A server reads them when it processes an action, not when the action
arrives, so changed headers wait until no action is in flight. An action that is sent again has the same
headers before it. The newest headers precede `connect`.

A server can jam (on a duplicate of an action that it keeps): it answers `synced`, and processes nothing more
of that client id. Then the connection is closed, and the next one uses another client id.

``logclient._ext.logux`` sends actions and reads their outcomes, and describes the bodies of events. `Logux`
begins connections, puts headers in order with actions, and reads the messages that the codec leaves to it:
rare ones, and usual ones in an unusual form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from logclient._ext.constants import R_DENIED, R_ERROR, R_REJECTED, R_UNKNOWN_TYPE
from logclient._ext.inflight import InflightBatches
from logclient._ext.logux import Codec
from logclient.delivery.contract import FOREVER, CloseWanted, Core, CoreEvent, Fatal, Inbound, Reply
from logclient.errors import CredentialError, ProtocolError
from logclient.logux import messages
from logclient.logux.config import LoguxConfig
from logclient.logux.headers import HeaderSender
from logclient.readable import escape

_CONNECTING = "connecting"
_REASONS = {"denied": R_DENIED, "unknownType": R_UNKNOWN_TYPE, "error": R_ERROR}
_MAX_TEXT = 256  # characters of a server's text in our messages
_MAX_NODE_ID = 1024  # characters of a server's node id, which becomes part of the id of each of its actions
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-"  # of client ids


# Events of the core besides outcomes, as payloads of `Inbound`. A message with headers is its own.


class Action(NamedTuple):
    """An action from the server. In ``meta``, ``id`` is a text and ``time`` is in ms of this host's clock."""

    action: dict[str, Any]
    meta: dict[str, Any]


class DebugText(NamedTuple):
    """A text for developers, sent by a server in development mode."""

    text: str


class Opened(NamedTuple):
    """The server has accepted the connection. It knows nothing of earlier connections."""

    server_id: str


class Received(NamedTuple):
    """Every action of the server up to this ``added`` has arrived and was reported."""

    added: int | float


class Undone(NamedTuple):
    """The server has undone an action of ours, finally: the ``logux/undo`` as it was sent."""

    seq: int
    action: dict[str, Any]
    meta: dict[str, Any]


WHOLE, WHOLE_WITH_META = 1 << 4, 2 << 4
"""Kinds of bodies: a whole action, and one behind its time and subprotocol."""
META_SIZE = 16
"""Bytes of these two."""


def _name_parts(name: bytes) -> tuple[str, str]:
    """Make the second and the third part of a node id from 10 bytes, six bits in each character."""
    number = int.from_bytes(name, "big")
    letters = "".join(ALPHABET[number >> 6 * place & 63] for place in range(14))
    return letters[:8], letters[8:]


class Logux(Core):
    """The client's side of one connection at a time. See ``delivery.contract.Core``."""

    def __init__(self, config: LoguxConfig, producer: bytes) -> None:
        super().__init__(self._make_codec(config, producer))
        self._config = config
        self.wall: Callable[[], float] = lambda: 0.0  # without an engine, ids begin in 1970
        self.server_id = ""
        """The server's node id, once there was a connection."""
        self.client, self._tab = _name_parts(producer)
        """The second part of our first node id."""
        self.clients = 1
        """Client ids used so far."""
        self.node_id = self._make_node_id()
        self._headers = HeaderSender(self._codec)
        self._token = 0
        self._last_received: int | float = 0
        self._reported_received: int | float = 0
        self._new_client = False  # the next connection uses another client id
        self._old_form: bool | None = None  # of the subprotocol: None: not tried, False: it did not help
        self._now = 0.0
        self._begin()

    def event_of(self, body: bytes, kind: int) -> bytes:
        return body[META_SIZE:] if kind & WHOLE_WITH_META else body

    def _make_codec(self, config: LoguxConfig, producer: bytes) -> Any:
        """Return the codec; a reference in the tests puts its own in this place."""
        return Codec(
            producer,
            messages.compact(config.action_type),
            window=config.window,
            window_bytes=config.window_bytes,
            inflight=config.inflight,
            identity=config.identity != "none",
            check=config.check,
            synced=config.ack == "synced",
            silence=config.silence,
            ping=config.ping,
            processing_timeout=config.processing_timeout,
            adaptive="inflight" not in config.given,
        )

    def _make_node_id(self) -> str:
        count = f"-{self.clients}" if self.clients > 1 else ""
        return f"{self._config.user}:{self.client}{count}:{self._tab}"

    def resume(self, client: str, clients: int, received: int | float) -> None:
        """Continue as the client that an earlier process was; called before the first connection.

        The last part of the node id stays ours, so that no id of an action is used twice.
        """
        self.client, self.clients = client, clients
        self.node_id = self._make_node_id()
        self._last_received = self._reported_received = received

    def take_over(self, name: bytes) -> None:
        """See ``delivery.contract.Core``.

        Every action that it left is in doubt, so the option ``on_doubt`` decides as after a break. The ids of
        these actions are unknown, so they are sent under new ones.
        """
        client, self._tab = _name_parts(name)
        if self._config.on_doubt != "same":
            self.client = client
        self.node_id = self._make_node_id()

    @property
    def received(self) -> int | float:
        """The last ``added`` received from the server."""
        received: int | float = max(self._last_received, self._codec.received)
        return received

    def _begin(self) -> None:
        self._events: list[CoreEvent] = []
        self._headers.begin()
        self._ended = False
        self._base = 0
        self._began = 0.0
        self._calls: list[int] = []  # tokens of calls that wait for `connected`

    # -- connections

    def connected(self, now: float) -> None:
        """Begin a connection: send the headers and `connect`."""
        if self._new_client:
            self._new_client = False
            self.clients += 1
            # A counter: a seeded generator would make equal ids in several processes.
            self.node_id = self._make_node_id()
        self._begin()
        self.sample_clocks(now)
        self._codec.connecting(now)
        self._began = now
        self._headers.send_newest()
        token, subprotocol = self._secret, self._config.subprotocol
        if self._old_form and isinstance(subprotocol, int):
            subprotocol = f"{subprotocol}.0.0"
        options = {"token": token, "subprotocol": subprotocol}
        kept = {name: value for name, value in options.items() if value}
        self._codec.say(messages.pack(messages.Connect(messages.PROTOCOL, self.node_id, self.received, kept)))

    def connection_lost(self) -> None:
        """Forget the actions in flight. The option ``on_doubt`` decides about actions in doubt."""
        policy = self._config.on_doubt
        self._new_client = self._new_client or self._codec.jammed
        keep = policy == "same" and not self._new_client
        doubts = self._codec.connection_lost(keep=keep, drop=policy == "drop")
        if doubts and policy == "new_client":
            self._new_client = True
        self._begin()

    def receive_eof(self) -> None:
        """Use protocol 4's form for the next connection if this one ended without an answer to `connect`.

        Servers of protocol 4 end it so when the subprotocol is a number.
        """
        if self._codec.state != _CONNECTING or self._codec.over or self._config.strict_spec:
            return
        if self._old_form is None and self._config.subprotocol:
            self._old_form = True
            theirs, ours = messages.version(4), messages.version(messages.PROTOCOL)
            self._break(
                ProtocolError(
                    f"the server ends the connection without an answer to connect, as with {theirs};"
                    f" we speak {ours}; asking once more in the older form"
                )
            )
        elif self._old_form:
            self._old_form = False

    @property
    def _secret(self) -> str:
        token = self._config.token
        return "" if token is None else token.reveal()

    @property
    def state(self) -> str:
        """``disconnected``, ``connecting``, ``synchronized`` or ``sending``. Any thread may read it."""
        return str(self._codec.state)

    compressor = ""  # messages are not compressed here

    # -- sending

    def call(self, kind: str, payload: Any = None) -> int:
        """Send a ping. The payload of its ``Reply`` is the server's node id."""
        if kind != "ping":
            return super().call(kind, payload)
        self._token += 1
        if self._synchronized:
            self._codec.ping(self._token, self._now)
        else:
            self._calls.append(self._token)
        return self._token

    def post_command(
        self, kind: str, payload: Any, first: int, in_flight: InflightBatches | None = None
    ) -> None:
        """Set the ``headers`` of this node: a JSON object, which replaces earlier ones."""
        if kind != "headers":
            raise ValueError(f"command: Logux has no {kind!r}")
        self._headers.note(payload, first, in_flight)
        self._codec.hold_before(first)

    @property
    def _synchronized(self) -> bool:
        return self._codec.state in ("synchronized", "sending")

    # -- in

    def _read_on(self) -> None:
        codec = self._codec
        self._take_undos()
        while (data := codec.next_message()) is not None:
            self._read(data, codec.received_at)
            codec.read_on()
            self._take_undos()

    def _read(self, data: bytes, now: float) -> None:
        try:
            self._take(messages.parse(data), now)
        except messages.UnknownMessage as error:
            if self._config.strict_spec:
                self._codec.say(messages.pack(messages.wrong_format(error.error.options[:_MAX_TEXT])))
        except messages.Refused as error:
            undos = _parse_large_undo(data)
            if undos is not None:
                self._take(undos, now)
                return
            why = f"the server sent an invalid message: {escape(str(error)[:_MAX_TEXT])}"
            self._break(ProtocolError(why))

    def _take_undos(self) -> None:
        """Report the undos by which the codec has failed an action."""
        for seq, data in self._codec.undos():
            try:
                message: messages.Message | None = messages.parse(data)
            except messages.Refused:
                message = _parse_large_undo(data)
            assert isinstance(message, messages.Sync)
            ((action, meta),) = message.entries
            self._events.append(Inbound(Undone(seq, action, self._absolute(meta))))

    def _take(self, message: messages.Message, now: float) -> None:
        if isinstance(message, messages.Error):
            self._error(message)
        elif isinstance(message, messages.Headers):
            self._events.append(Inbound(message))
        elif isinstance(message, messages.Debug):
            self._events.append(Inbound(DebugText(messages.hide(message.data, self._secret))))
        elif isinstance(message, messages.Connected) and self._codec.state == _CONNECTING:
            self._connected(message, now)
        elif not self._synchronized or isinstance(message, (messages.Connect, messages.Connected)):
            self._break(ProtocolError(f"the server sent {type(message).__name__.lower()} out of turn"))
        elif isinstance(message, messages.Sync):
            self._sync(message, now)
        elif isinstance(message, messages.Synced):
            if message.synced > self._codec.added:
                words = f"synced: {message.synced!r}, and {self._codec.added} actions were sent"
                self._break(ProtocolError(f"the server sent {words}"))
            else:
                self._codec.synced(message.synced, now)
        elif isinstance(message, messages.Ping):
            self._received(message.synced)
            self._codec.say(messages.pack(messages.Pong(self._codec.added)))
        else:
            self._received(message.synced)
            self._codec.pong()

    def _connected(self, message: messages.Connected, now: float) -> None:
        if message.protocol < messages.MIN_PROTOCOL:
            self._break(ProtocolError(messages.describe_versions(message.protocol)), forever=True)
            return
        if self._old_form:
            self._old_form = False
            self._break(ProtocolError(f"the server speaks {messages.version(message.protocol)} after all"))
            return
        if len(message.node_id) > _MAX_NODE_ID:
            self._break(ProtocolError(f"connected: a node id of more than {_MAX_NODE_ID} characters"))
            return
        start, base = message.start, message.end
        if base != int(base) or not 0 <= base < messages.MAX_NUMBER:
            self._break(ProtocolError(f"connected: a base time of {base!r} ms"))
            return
        # The server's clock when its answer arrived: the way back took half of the time that the server did
        # not spend itself (`timeFix` of the reference).
        way = (now - self._began) * 1e3
        self._base = int(base)
        self.server_id = message.node_id
        node = messages.compact(self.node_id)[1:-1]
        lead = (way - min(max(base - start, 0), way)) / 2
        self._codec.connected(node, self._base, now, lead)
        self._events.append(Inbound(Opened(message.node_id)))
        for token in self._calls:
            self._codec.ping(token, now)
        self._calls.clear()

    def _error(self, error: messages.Error) -> None:
        described = messages.describe(error, self._secret)
        words = f"the server says {described}"
        if error.type == "wrong-credentials":
            self._break(CredentialError(words))
        elif error.type == "wrong-format" and self._codec.open:
            # It does not name the action. The engine finds a poison event by the connections that the server
            # ends, so end this one in the same way.
            self._events.append(Inbound(DebugText(described)))
            self._break(None)
        else:
            if messages.is_of_protocol_4(error) and not self._config.strict_spec:
                words = f"{messages.describe_versions(4)}: {described}"
            self._break(ProtocolError(words), forever=error.type in ("wrong-protocol", "wrong-subprotocol"))

    def _break(self, error: Exception | None, *, forever: bool = False) -> None:
        """End the connection, once; None: as if the server had ended it."""
        if not self._ended:
            self._ended = True
            self._codec.end()
            self._events.append(CloseWanted() if error is None else Fatal(error, forever))

    def _received(self, added: int | float) -> None:
        self._last_received = max(self._last_received, added)

    def _sync(self, message: messages.Sync, now: float) -> None:
        if isinstance(message.added, int):
            self._codec.add_answer(message.added)
        else:
            self._codec.say(messages.pack(messages.Synced(message.added)))
        self._received(message.added)
        for action, meta in message.entries:
            kind = action["type"]
            if kind in ("logux/processed", "logux/undo"):
                node, ms, counter = messages.read_id(action.get("id"))
                if kind == "logux/processed":
                    if node == self.node_id:
                        self._codec.acknowledge(ms, counter, now)
                    continue
                if node in ("", self.node_id):
                    why = action.get("reason")
                    reason = _REASONS.get(why, R_REJECTED) if isinstance(why, str) else R_REJECTED
                    seq, failed = self._codec.undo(ms, counter, reason, now) if node else (0, False)
                    if failed:
                        self._events.append(Inbound(Undone(seq, action, self._absolute(meta))))
                    continue
            self._events.append(Inbound(Action(action, self._absolute(meta))))

    def _absolute(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Return the meta of a server's action with its whole id, and its time in this host's clock."""
        full = dict(meta)
        full["id"] = messages.decode_id(meta["id"], self._base, self.server_id)
        full["time"] = round(self._codec.to_wall(meta["time"]))
        return full

    def _read_events(self) -> Iterator[CoreEvent]:
        self._read_on()
        if self._codec.wanted:
            self._headers.send_wanted()
        events, self._events = self._events, []
        yield from events
        for token in self._codec.pongs():
            yield Reply(token, self.server_id)
        if self._config.state and self.received > self._reported_received:
            self._reported_received = self.received
            yield Inbound(Received(self.received))

    # -- clocks

    dates_events = True

    def set_wall_clock(self, wall: Callable[[], float]) -> None:
        self.wall = wall

    def sample_clocks(self, now: float) -> None:
        """Sample the clocks, and take new headers.

        Once a second at least: else an event that is made while the wall clock is set gets a wrong time.
        """
        self._now = now
        self._headers.take()
        self._codec.sample(now, self.wall())

    def regulate(self, now: float) -> float:
        """Send headers that were set, if no event needs others first."""
        if self._synchronized and not self._codec.over:
            self._headers.order()
        return FOREVER


def _parse_large_undo(data: bytes) -> messages.Sync | None:
    """Parse a message of undos, without the actions that they repeat.

    Such an action may be nested deeper, or have more values, than a server's message may.
    """
    if b'"logux/undo"' not in data:
        return None
    try:
        message = messages.parse(messages.outline(data))
    except messages.Refused:
        return None
    if not isinstance(message, messages.Sync):
        return None
    return message if all(one["type"] == "logux/undo" for one, _ in message.entries) else None
