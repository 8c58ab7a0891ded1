"""Logux: the client's core.

States of a connection::

    state         waiting for          encode      becomes
    DISCONNECTED  a connection         refused     connected: headers, `connect` go out: CONNECTING
    CONNECTING    `connected`          refused     `connected`: SYNCHRONIZED; `error`: broken
    SYNCHRONIZED  nothing              -> SENDING  --
    SENDING       outcomes of actions  while       all have theirs: SYNCHRONIZED
                                       there is
                                       room

    connection_lost: any -> DISCONNECTED

Each `sync` is answered at once with `synced`: it was received, no more. What became of an action is said
later, in a `sync` of the server's own: ``logux/processed`` or ``logux/undo``. Nobody repeats that when the
connection ends before it came, so what was sent and has no outcome then is *in doubt* (option ``on_doubt``).

Undone for what reason:

=====================  =========================================================================
``denied``             failed(denied); what else was queued at the server is undone with it
``unknownType``        failed(unknown_type); the same
``error``              either this action broke the server's code, or one before it did: see below
any other              failed(rejected)
=====================  =========================================================================

Headers keep their order with actions. A server reads them when it comes to an action, not when the action
arrives, so other headers go out only while no action is in flight. An action that is sent again has the same
headers before it. The newest go before `connect`.

When one action fails the server undoes all that it has queued behind it, with the reason ``error``. Of such a
run the first is the suspect, the others are added again at once, under new ids. When they have their outcome
the suspect is added again, with nothing beside it: undone once more, it is failed(error). Meanwhile nothing
new is sent. When nothing at all is processed between two runs, fewer actions go out at a time, down to one,
and more again once some are processed.

A server can jam (a duplicate of an action that it keeps): it answers `synced`, and processes nothing any more
of that client id. Then the connection is left, and the next one has another client id.

High nibble of an event's kind, what its body is, and what travels:

=====  ============================================  ===================================================
0      a JSON object                                 ``{"type":<action_type>,"data":<body>,"id":"<32 hex>"}``
1      an action: a JSON object with a ``type``      itself, with the id before its closing brace
2      an action behind ``<qq``: its time in ms      the same; `meta` has that time (wall clock) and that
       since 1970 or -2**63, subprotocol or -1       subprotocol
=====  ============================================  ===================================================

An action that has an ``id`` keeps its own. One without a ``type``, or with a number as ``length`` (for which
servers drop the connection), fails: unencodable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from logclient._ext.constants import REASONS, STATUSES
from logclient._ext.flight import Flight
from logclient._ext.logux import Hot
from logclient.config import Secret, options_of
from logclient.delivery.contract import (
    Alive,
    Batch,
    CloseWanted,
    Core,
    CoreEvent,
    Fatal,
    Inbound,
    Progress,
    Reply,
    Retry,
    Settled,
    Wire,
)
from logclient.errors import ConfigError, CredentialError, ProtocolError
from logclient.protocols.logux_frames import Probe, frames
from logclient.protocols.logux_messages import (
    MIN_PROTOCOL,
    PROTOCOL,
    Connect,
    Connected,
    Debug,
    Error,
    Message,
    Ping,
    Pong,
    Refused,
    Sync,
    Synced,
    UnknownMessage,
    compact,
    decode_id,
    describe,
    hide,
    outline,
    pack,
    parse,
    version,
    wrong_format,
)
from logclient.protocols.logux_messages import Headers as HeadersMessage

__all__ = [
    "Action",
    "DebugText",
    "Headers",
    "Logux",
    "Opened",
    "Options",
    "Probe",
    "Received",
    "Undone",
    "frames",
]

DISCONNECTED, CONNECTING, SYNCHRONIZED, SENDING = "disconnected", "connecting", "synchronized", "sending"

NARROW = 8
"""When nothing is processed between two runs of undos, so much less goes out at a time."""

MOST_PATIENCE = 8
"""Times `jam_after`: after each connection that was left for a jam the next has twice as long, up to that."""

MAX_ANSWERS = 100_000
"""Answers that wait to be sent: a server that asks and does not read is left."""

HEADERS_KEPT = 16 << 20
"""Bytes of former headers kept for actions that are not settled. Of more, the oldest are forgotten: their
actions get the next ones."""

_TEXT = 256  # characters of what a server says, in words of ours
_NODE_ID = 1024  # of a server's node id, which goes into the id of each of its actions
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-"
_EVERYTHING = (1 << 64) - 1
_WHOLE = 1 << 53


class Options(NamedTuple):
    """What a Logux core can be told."""

    token: Secret | str | None = None
    user: str = "false"
    """First part of the node id; ``false``: there are no users."""
    subprotocol: int | str = 1
    """0: say none. A version in SemVer with `strict_spec`."""
    strict_spec: bool = False
    """By the letter of the text: the subprotocol is SemVer, an unknown message is answered."""
    ack: str = "processed"
    """What acked means: ``processed``, or ``synced``: received."""
    on_doubt: str = "new_client"
    """``new_client``: add again under a new client id; ``same``: under the same; ``drop``: failed(doubt)."""
    action_type: str = "log/add"
    inflight: int = 4
    """Syncs with actions that have no outcome yet."""
    window: int = 100
    """Actions in a sync."""
    window_bytes: int = 256 << 10
    """Bytes of bodies in a sync; a larger one goes alone."""
    identity: str = "id"
    """``id``: splice the id into each action; ``none``: do not."""
    check: bool = True
    """Check that raw bodies are one JSON object in UTF-8."""
    silence: float = 30.0
    """Seconds without a word while one is awaited, before the server counts as dead."""
    ping: float = 10.0
    """Seconds without a word either way before a ping."""
    jam_after: float = 20.0
    """Seconds without an outcome of the oldest sync, which the server has got, before its queue counts as
    jammed."""
    state: str | None = None
    """A file: what was received is told, for who keeps it there."""


class Action(NamedTuple):
    """An action from the server. In ``meta``, ``id`` is a text and ``time`` is in ms of this host's clock."""

    action: dict[str, Any]
    meta: dict[str, Any]


class Headers(NamedTuple):
    """What the server says of itself, in place of all it said before."""

    data: dict[str, Any]


class DebugText(NamedTuple):
    """What a server under development has to tell."""

    text: str


class Opened(NamedTuple):
    """A server has let us in: a connection begins on which it knows nothing of the ones before."""

    server_id: str


class Received(NamedTuple):
    """Every action of the server's up to this ``added`` has come, and was told of."""

    added: int | float


class Undone(NamedTuple):
    """The server has undone an action of ours, for good: its ``logux/undo``, as it has sent it."""

    seq: int
    action: dict[str, Any]
    meta: dict[str, Any]


class _Suspect(NamedTuple):
    seq: int
    text: bytes
    time: int
    subprotocol: int


class _Mark(NamedTuple):
    """Headers, and the first event that they are for."""

    first: int
    text: bytes


_NO_HEADERS = pack(HeadersMessage({}))
_first_of = attrgetter("first")


def _spell(number: int, digits: int) -> str:
    """So many characters that may stand in a node id, six bits each."""
    return "".join(_ALPHABET[number >> 6 * place & 63] for place in range(digits))


class Logux(Core):
    """The client's side of one connection at a time. See ``delivery.contract.Core``.

    The engine gives the wall clock, and calls `sample_clocks` between connections too.

    Args:
        options: see `Options`.
        producer: the 10 bytes that begin every id of this producer.

    Raises:
        ConfigError: an option outside its range.
    """

    def __init__(self, options: Options, producer: bytes) -> None:
        for name, value, allowed in (
            ("ack", options.ack, ("processed", "synced")),
            ("on_doubt", options.on_doubt, ("new_client", "same", "drop")),
            ("identity", options.identity, ("id", "own", "none")),
        ):
            if value not in allowed:
                raise ConfigError(f"{name}: {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}")
        for name, seconds in (
            ("silence", options.silence), ("ping", options.ping), ("jam_after", options.jam_after),
        ):  # fmt: skip
            if not seconds > 0:
                raise ConfigError(f"{name}: more than 0 seconds, not {seconds}")
        if isinstance(options.subprotocol, str) and not options.strict_spec:
            raise ConfigError("subprotocol: a number; a version such as 1.0.0 needs strict_spec=true")
        try:
            self._hot = Hot(
                producer,
                compact(options.action_type),
                window=options.window,
                window_bytes=options.window_bytes,
                inflight=options.inflight,
                identity=options.identity != "none",
                check=options.check,
                synced=options.ack == "synced",
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self.options = options
        self.wall: Callable[[], float] = _no_clock
        self.server_id = ""
        """The server's node id, once there was a connection."""
        self.unknown = 0
        """Messages of unknown types."""
        self._strangers = 0
        number = int.from_bytes(producer, "big")
        self.client = _spell(number, 8)
        """The second part of our first node id."""
        self.clients = 1
        """Client ids that there were."""
        self._tab = _spell(number >> 48, 6)
        self.node_id = self._name()
        self._full = options.inflight * options.window
        self._notes: deque[_Mark] = deque()  # headers that the sender has not seen
        self._marks = [_Mark(0, _NO_HEADERS)]  # by the event; the last are the newest
        self._marks_size = len(_NO_HEADERS)
        self._flight: Flight | None = None
        self._token = 0
        self._last_received: int | float = 0
        self._told_received: int | float = 0
        self._renew = False  # the client id, at the next connection
        self._old_form: bool | None = None  # of the subprotocol: None: not tried, False: of no use
        self._patience = options.jam_after
        self._jam_done = -1  # what was processed when a jam was left
        self._jam_added = 0
        self._synchronized = 0.0  # when `connected` came
        self._now = 0.0
        self._state = DISCONNECTED
        self._out: list[Wire] = []
        self._events: list[CoreEvent] = []
        self._reset()

    def _name(self) -> str:
        count = f"-{self.clients}" if self.clients > 1 else ""
        return f"{self.options.user}:{self.client}{count}:{self._tab}"

    def resume(self, client: str, clients: int, received: int | float) -> None:
        """Before the first connection: be the client that another process was. The last part of the node id
        is ours, so that no id of an action comes twice."""
        self.client, self.clients = client, clients
        self.node_id = self._name()
        self._last_received = self._told_received = received

    @property
    def received(self) -> int | float:
        """The last ``added`` that we have of the server's."""
        return max(self._last_received, self._hot.received)

    @classmethod
    def from_config(cls, config: Any, producer: bytes) -> Logux:
        """From whatever has the options as attributes (a ``logclient.config.Config``).

        Raises:
            ConfigError: an option is outside its range.
        """
        return cls(options_of(Options, config), producer)

    def _reset(self) -> None:
        self._out.clear()
        self._events.clear()
        self._headers = _NO_HEADERS  # said on this connection
        self._mixed = True  # there may be headers to say
        self._blocked = False  # by headers: until nothing is in flight
        self._over = False  # Fatal or CloseWanted was said
        self._closing = False
        self._began = 0.0
        self._heard = 0.0  # when a message came
        self._said = 0.0  # ... or went
        self._since = 0.0  # when something began to be awaited
        self._base = 0
        self._asked: list[int] = []  # tokens of calls that wait for `connected`
        self._pings: deque[int] = deque()  # tokens of pings without a pong; 0: our own
        self._suspects: deque[_Suspect] = deque()
        self._alone = 0  # the suspect on the wire
        self._offered = self._drained = False
        self._innocent = 0  # the last sequence that goes before the suspects
        self._run_added = -1  # up to there, undone with the reason error is collateral
        self._run_done = -1  # what was processed when the run began
        self._limit = 0  # of actions in flight; 0: none
        self._limit_done = 0

    # -- connections

    def connected(self, now: float, random: Callable[[], float]) -> None:
        self._reset()
        if self._renew:
            self._renew = False
            self.clients += 1
            # Not by chance: who seeds `random` would make the same ids in several processes.
            self.node_id = self._name()
        self.sample_clocks(now)
        self._state = CONNECTING
        self._began = self._heard = self._said = now
        self._say_headers(self._marks[-1].text)
        token, subprotocol = self._secret, self.options.subprotocol
        if (self.options.strict_spec or self._old_form) and isinstance(subprotocol, int) and subprotocol:
            subprotocol = f"{subprotocol}.0.0"
        options = {"token": token, "subprotocol": subprotocol}
        kept = {name: value for name, value in options.items() if value}
        self._say(pack(Connect(PROTOCOL, self.node_id, self.received, kept)))

    def connection_lost(self) -> None:
        """Forget what was in flight: what was sent has no fate, or is failed(doubt), and goes under the ids
        that ``on_doubt`` says."""
        policy = self.options.on_doubt
        doubts, dropped = self._hot.lost(keep=policy == "same" and not self._renew, drop=policy == "drop")
        if doubts and policy == "new_client":
            self._renew = True
        self._state = DISCONNECTED
        self._reset()
        self._tell(dropped)

    def receive_eof(self) -> None:
        """All that a server of protocol 4 says to a `connect` with a number as the subprotocol. So the next
        connection has the form of that protocol, to be sure."""
        if self._state != CONNECTING or self._over or self.options.strict_spec:
            return
        if self._old_form is None and self.options.subprotocol:
            self._old_form = True
            self._break(
                ProtocolError(
                    f"the server ends the connection without an answer to connect, as with {version(4)};"
                    f" we speak {version(PROTOCOL)}; asking once more in the older form"
                )
            )
        elif self._old_form:
            self._old_form = False

    def begin_close(self, now: float) -> None:
        """Encode nothing new; ``CloseWanted`` follows when nothing is awaited any more."""
        self._closing = True

    @property
    def _secret(self) -> str:
        token = self.options.token
        return token.reveal() if isinstance(token, Secret) else token or ""

    @property
    def state(self) -> str:
        """``disconnected``, ``connecting``, ``synchronized``, ``sending``; may be asked by any thread."""
        return SENDING if self._state == SYNCHRONIZED and (self._hot.open or self._suspects) else self._state

    @property
    def strangers(self) -> int:
        """Outcomes that came for actions which are not in flight."""
        return self._strangers + self._hot.strangers

    @property
    def _awaits(self) -> bool:
        return bool(self._hot.open or self._pings or self._suspects)

    def _await(self, now: float) -> None:
        """Before something is sent that has an answer."""
        if not self._hot.open and not self._pings:
            self._since = now

    # -- out

    def credit(self, now: float) -> tuple[int, int]:
        self.sample_clocks(now)
        if self._state != SYNCHRONIZED or self._over:
            return 0, 0
        if self._mixed:
            self._order_headers()
            if self._blocked:
                return 0, 0
        if self._suspects or self._alone:
            return self._drain(now)
        if self._closing:
            return 0, 0
        return self._room(), self.options.window_bytes

    def _room(self) -> int:
        hot = self._hot
        if self._limit and hot.done - self._limit_done >= self._limit:
            self._limit_done = hot.done
            self._limit *= 2
            if self._limit >= self._full:
                self._limit = 0
        return hot.credit(self._limit or self._full)

    def _drain(self, now: float) -> tuple[int, int]:
        """While there are suspects: the innocent first, then each suspect alone."""
        hot = self._hot
        if self._suspects and not self._alone and not self._drained:
            room = self._room()
            if self._closing or (room and self._offered):
                self._drained = True  # there was room for them, and nothing came
            else:
                self._offered = room > 0
                return room, self.options.window_bytes
        if hot.open:
            return 0, 0
        self._alone = 0
        if not self._suspects:
            self._drained = False
            return (0 if self._closing else self._room()), self.options.window_bytes
        # The headers that were said are its own: what has others goes when no suspect is left.
        suspect = self._suspects.popleft()
        self._alone = suspect.seq
        self._await(now)
        self._say(hot.again(*suspect, now, self.wall()))
        self._said = now
        return 0, 0

    def encode(self, batch: Batch, events: int, now: float) -> int:
        """Encode events of `batch` (an ``_ext.flight.Batch``) as one sync; failures are marked in it.

        Raises:
            MemoryError: and nothing was encoded.
        """
        self._offered = False
        upto = self._innocent if self._suspects else _EVERYTHING
        if self._notes or self._mixed:
            upto = self._headers_before(batch, upto)
            if self._blocked:
                return 0
        self._await(now)
        n, text, held = self._hot.encode(batch.capsule, events, now, self.wall(), upto)
        if held and not n and self._suspects and upto == self._innocent:
            self._drained = True
        if n:
            self._say(text)
            self._said = now
        return n

    def call(self, kind: str, payload: Any = None) -> int:
        """``ping``: the payload of its ``Reply`` is the server's node id.

        Raises:
            ValueError: another kind.
        """
        if kind != "ping":
            raise ValueError(f"call: Logux has no {kind!r}")
        self._token += 1
        if self._state == SYNCHRONIZED:
            self._ping(self._token, self._now)
        else:
            self._asked.append(self._token)
        return self._token

    def post_command(self, kind: str, payload: Any, first: int, flight: Flight | None = None) -> None:
        """``headers`` of this node, in place of those before, for the events from the sequence `first` on.

        May be called by any thread, but by one at a time, and with a `first` that does not fall.

        Args:
            flight: tells what waits to be sent, and what is settled.

        Raises:
            ValueError: another kind, or headers that are no JSON object.
        """
        if kind != "headers":
            raise ValueError(f"command: Logux has no {kind!r}")
        if not isinstance(payload, dict) or type(payload.get("length")) in (int, float, bool):
            raise ValueError("headers: a mapping, without a number as length")
        try:
            text = pack(HeadersMessage(payload))
            parse(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"headers: {error}") from None
        self._flight = flight
        try:
            if self._notes[-1].first == first:
                self._notes[-1] = _Mark(first, text)
                return
        except IndexError:  # the sender takes them meanwhile
            pass
        self._notes.append(_Mark(first, text))

    def _take_notes(self) -> None:
        """Take headers that were noted; forget those that no event needs any more."""
        marks = self._marks
        self._mixed = True
        while self._notes:
            mark = self._notes.popleft()
            if marks[-1].first == mark.first:
                self._marks_size -= len(marks.pop().text)
            marks.append(mark)
            self._marks_size += len(mark.text)
        settled = 0 if self._flight is None else self._flight.handoff.settled
        last, useless = len(marks) - 1, bisect_right(marks, settled + 1, key=_first_of) - 1
        kept = self._marks_size - sum(len(mark.text) for mark in marks[:useless])
        while kept > HEADERS_KEPT and useless < last:
            kept -= len(marks[useless].text)
            useless += 1
        if useless:
            del marks[:useless]
            marks[0] = _Mark(0, marks[0].text)
            self._marks_size = kept

    def _order_headers(self) -> None:
        """Say the newest headers when no event needs others before; see whether there are others to say."""
        self._take_notes()
        hot, flight = self._hot, self._flight
        if not hot.open:
            self._blocked = False
            if not self._suspects and (flight is None or not (flight.waiting or flight.handoff.queued[0])):
                self._say_headers(self._marks[-1].text)
        self._mixed = len(self._marks) > 1 or self._headers != self._marks[-1].text

    def _headers_before(self, batch: Batch, upto: int) -> int:
        """Say the headers of the next event in `batch`, if it is one up to `upto`, or be blocked; the last up
        to `upto` that has the same."""
        self._take_notes()
        pending = batch.pending(1)
        if not pending or pending[0].seq > upto:
            return upto
        text, last = self._headers_of(pending[0].seq)
        self._blocked = text != self._headers and self._hot.open > 0
        if not self._blocked:
            self._say_headers(text)
        return min(upto, last)

    def _headers_of(self, seq: int) -> tuple[bytes, int]:
        """The headers of an event, and the last event that has the same."""
        marks = self._marks
        after = bisect_right(marks, seq, key=_first_of)
        last = marks[after].first - 1 if after < len(marks) else _EVERYTHING
        return marks[after - 1].text, last

    def _say_headers(self, text: bytes) -> None:
        if text != self._headers:
            self._say(text)
            self._headers = text

    def _ping(self, token: int, now: float) -> None:
        self._await(now)
        self._pings.append(token)
        self._say(pack(Ping(self._hot.added)))

    def _say(self, text: bytes) -> None:
        self._out.append(Wire([text]))

    def data_to_send(self) -> list[Wire]:
        if self._hot.waiting:
            self._out += [Wire([text]) for text in self._hot.answers()]
        return self._out

    def sent(self, rest: int = 0) -> None:
        self._out.clear()

    # -- in

    def receive_data(self, data: bytes, now: float) -> None:
        """One whole message."""
        self._heard = now
        if self._over or self._hot.receive(data, now):
            return
        why = ""
        try:
            self._take(parse(data), now)
        except UnknownMessage as error:
            self.unknown += 1
            if self.options.strict_spec:
                self._say(pack(wrong_format(error.error.options[:_TEXT])))
        except Refused as error:
            why = f"the server sent what is no message: {_cut(str(error))}"
        if why and not self._undone_at_length(data, now):
            self._break(ProtocolError(why))

    def _undone_at_length(self, data: bytes, now: float) -> bool:
        """An undo has the action in it, and that may be nested deeper, or have more in it, than is read of a
        server: nobody looks there."""
        if b'"logux/undo"' not in data:
            return False
        try:
            message = parse(outline(data))
        except Refused:
            return False
        if not isinstance(message, Sync) or any(one["type"] != "logux/undo" for one, _ in message.entries):
            return False
        self._take(message, now)
        return True

    def _take(self, message: Message, now: float) -> None:
        if isinstance(message, Error):
            self._error(message)
        elif isinstance(message, HeadersMessage):
            self._events.append(Inbound(Headers(message.data)))
        elif isinstance(message, Debug):
            self._events.append(Inbound(DebugText(hide(message.data, self._secret))))
        elif isinstance(message, Connected) and self._state == CONNECTING:
            self._connected(message, now)
        elif self._state != SYNCHRONIZED or isinstance(message, (Connect, Connected)):
            self._break(ProtocolError(f"the server sent {type(message).__name__.lower()} out of turn"))
        elif isinstance(message, Sync):
            self._sync(message, now)
        elif isinstance(message, Synced):
            self._hot.synced(message.synced, now)
        elif isinstance(message, Ping):
            self._received(message.synced)
            self._say(pack(Pong(self._hot.added)))
        else:
            self._received(message.synced)
            token = self._pings.popleft() if self._pings else 0
            if token:
                self._events.append(Reply(token, self.server_id))

    def _connected(self, message: Connected, now: float) -> None:
        if message.protocol < MIN_PROTOCOL:
            self._break(
                ProtocolError(f"the server speaks {version(message.protocol)}, we speak {version(PROTOCOL)}"),
                forever=True,
            )
            return
        if self._old_form:
            self._old_form = False
            self._break(ProtocolError(f"the server speaks {version(message.protocol)} after all"))
            return
        if len(message.node_id) > _NODE_ID:
            self._break(ProtocolError(f"connected: a node id of more than {_NODE_ID} characters"))
            return
        start, base = message.start, message.end
        if base != int(base) or not 0 <= base < _WHOLE:
            self._break(ProtocolError(f"connected: a base time of {base!r} ms"))
            return
        # What the server's clock was when its answer came: the way back took half of what it did not spend
        # itself (`timeFix` of the reference).
        way = (now - self._began) * 1e3
        self._base = int(base)
        self.server_id = message.node_id
        node = compact(self.node_id)[1:-1]
        self._hot.connected(node, self._base, now, (way - min(max(base - start, 0), way)) / 2)
        self._state = SYNCHRONIZED
        self._events.append(Inbound(Opened(message.node_id)))
        self._synchronized = now
        for token in self._asked:
            self._ping(token, now)
        self._asked.clear()

    def _error(self, error: Error) -> None:
        said = describe(error, self._secret)
        words = f"the server says {said}"
        if error.type == "wrong-credentials":
            self._break(CredentialError(words))
        elif error.type == "wrong-format" and self._hot.open:
            # One of our actions, and it does not say which: the engine finds a poison after connections that
            # the server ends, and so it does here.
            self._events.append(Inbound(DebugText(said)))
            self._over = True
            self._events.append(CloseWanted())
        else:
            options = error.options if isinstance(error.options, dict) else {}
            ranges = error.type == "wrong-subprotocol" and isinstance(options.get("supported"), str)
            if ranges and not self.options.strict_spec:
                words = f"the server speaks {version(4)}, we speak {version(PROTOCOL)}: {said}"
            self._break(ProtocolError(words), forever=error.type in ("wrong-protocol", "wrong-subprotocol"))

    def _break(self, error: Exception, *, forever: bool = False) -> None:
        if not self._over:
            self._over = True
            self._events.append(Fatal(error, forever))

    def _received(self, added: int | float) -> None:
        self._last_received = max(self._last_received, added)

    def _sync(self, message: Sync, now: float) -> None:
        if isinstance(message.added, int):
            self._hot.answer(message.added)
        else:
            self._say(pack(Synced(message.added)))
        self._received(message.added)
        for action, meta in message.entries:
            kind = action["type"]
            if kind in ("logux/processed", "logux/undo"):
                node, ms, counter = _read_id(action.get("id"))
                if kind == "logux/processed":
                    if node != self.node_id or not self._hot.processed(ms, counter, now):
                        self._strangers += 1
                    continue
                if node in ("", self.node_id):
                    taken = self._hot.take(ms, counter, now) if node else None
                    if taken is None:
                        self._strangers += 1
                    else:
                        why = self._undone(*taken, action.get("reason"))
                        if why:
                            self._events.append(Inbound(Undone(taken[0], action, self._whole_meta(meta))))
                            self._events.append(Settled("failed", why, [(taken[0], taken[0])]))
                    continue
            self._events.append(Inbound(Action(action, self._whole_meta(meta))))

    def _whole_meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        """The meta of an action of the server's, its id whole, its time in this host's clock."""
        full = dict(meta)
        full["id"] = decode_id(meta["id"], self._base, self.server_id)
        full["time"] = round(self._hot.to_wall(meta["time"]))
        return full

    def _undone(self, seq: int, text: bytes, time: int, subprotocol: int, added: int, reason: Any) -> str:
        """Why the action fails; empty: it is sent again."""
        if reason != "error":
            name = _UNDONE.get(reason, "rejected") if isinstance(reason, str) else "rejected"
            if name != "rejected":
                self._begin_run()
            return name
        if seq == self._alone:
            return "error"
        if added <= self._run_added and self._hot.done == self._run_done:
            self._innocent = max(self._innocent, seq)
            self._offered = self._drained = False
            self._events.append(Retry([(seq, seq)], "undone with another"))
        else:
            self._begin_run()
            self._suspects.append(_Suspect(seq, text, time, subprotocol))
        return ""

    def _begin_run(self) -> None:
        """What was sent up to now may be undone for this one's sake."""
        done = self._hot.done
        if done == self._run_done:
            self._limit = max(1, (self._limit or self._full) // NARROW)
            self._limit_done = done
        self._run_added, self._run_done = self._hot.added, done

    def _tell(self, outcomes: Iterable[tuple[int, int, int, int]]) -> None:
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for first, last, fate, reason in outcomes:
            found.setdefault((fate, reason), []).append((first, last))
        for (fate, reason), ranges in found.items():
            self._events.append(Settled(STATUSES[fate], REASONS[reason], ranges))

    def events_received(self) -> Iterator[CoreEvent]:
        alive, progress, waiting = self._hot.told()
        if progress:
            self._tell(self._hot.outcomes())
            self._events.append(Progress())
        elif alive:
            self._events.append(Alive())
        if waiting > MAX_ANSWERS or len(self._out) > MAX_ANSWERS:
            self._break(ProtocolError("the server asks for answers and does not read them"))
        if self._closing and not self._over and not self._awaits:
            self._over = True
            self._events.append(CloseWanted())
        if self.options.state and self.received > self._told_received:
            self._told_received = self.received
            self._events.append(Inbound(Received(self.received)))
        events, self._events = self._events, []
        return iter(events)

    # -- clocks

    def set_wall_clock(self, wall: Callable[[], float]) -> None:
        self.wall = wall

    def sample_clocks(self, now: float) -> None:
        """See how far the wall clock is ahead of the monotonic one; at least once a second, or what is made
        while that clock is set gets a wrong time. See what was noted."""
        self._now = now
        if self._notes:
            self._take_notes()
        hot = self._hot
        hot.look(now, self.wall())
        if self._jam_done >= 0 and hot.done != self._jam_done and not 0 < hot.oldest <= self._jam_added:
            # What was in it is processed: at once, so it was a jam and is over, or is this server that slow?
            self._jam_done = -1
            if hot.moved - self._synchronized <= self.options.jam_after:
                self._patience = self.options.jam_after

    def next_timeout(self, now: float) -> float | None:
        if self._state == DISCONNECTED:
            return None
        silence = self.options.silence
        if self._state == CONNECTING:
            return self._began + silence
        hot = self._hot
        if hot.open or self._pings:
            timeout = max(self._heard, self._since) + silence
            if hot.synced_first:
                timeout = min(timeout, hot.moved + self._patience)
            if self._pings:
                return timeout
            return min(timeout, max(self._heard, self._said) + self.options.ping)
        return max(self._heard, self._said) + self.options.ping

    def handle_timeout(self, now: float) -> None:
        timeout = self.next_timeout(now)
        if timeout is None or now < timeout or self._over:
            return
        options, hot = self.options, self._hot
        if self._state == CONNECTING:
            self._break(TimeoutError("silence: no answer to connect in time"))
        elif (hot.open or self._pings) and now >= max(self._heard, self._since) + options.silence:
            self._break(TimeoutError(f"silence: no answer in time, with {hot.open} actions in flight"))
        elif hot.synced_first and now >= hot.moved + self._patience:
            words = (
                f"jam: the server has got {hot.open} actions and processes none of the first for "
                f"{self._patience:g} s; going on under a new client id"
            )
            self._renew = True
            self._patience = min(2 * self._patience, MOST_PATIENCE * options.jam_after)
            self._jam_done = hot.done
            self._jam_added = hot.added + hot.open  # when it is sent again
            self._break(ProtocolError(words))
        else:
            self._ping(0, now)
            self._said = now


def _no_clock() -> float:
    """Of a core without an engine: ids begin in 1970."""
    return 0.0


_UNDONE = {"denied": "denied", "unknownType": "unknown_type"}


def _read_id(id: Any) -> tuple[str, int, int]:
    """(node id, ms, counter) of an action's id; an empty node id: it is none that we could have given."""
    parts = id.split(" ") if type(id) is str and len(id) <= 1024 else ()
    if len(parts) != 3:
        return "", 0, 0
    ms, node, counter = parts
    if max(len(ms), len(counter)) > 16 or not (f"{ms.removeprefix('-')}{counter}".isascii()):
        return node, 0, -1
    if not (ms.removeprefix("-").isdigit() and counter.isdigit()):
        return node, 0, -1
    return node, int(ms), int(counter)


def _cut(text: str) -> str:
    """Words of which some are the server's: not too many, and nothing in them that a terminal obeys."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_TEXT])
