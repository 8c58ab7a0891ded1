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
``error``              this action or an earlier one broke the server's code: see ``undone``
any other              failed(rejected)
=====================  =========================================================================

Headers keep their order with actions. A server reads them when it processes an action, not when the action
arrives, so changed headers wait until no action is in flight. An action that is sent again has the same
headers before it. The newest headers precede `connect`.

A server can jam (on a duplicate of an action that it keeps): it answers `synced`, and processes nothing more
of that client id. Then the connection is closed, and the next one uses another client id.

``logclient._ext.logux`` describes the bodies of events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from logclient._ext.constants import REASONS, STATUSES
from logclient._ext.inflight import Batch as InflightBatch
from logclient._ext.inflight import InflightBatches
from logclient._ext.logux import ActionTracker
from logclient.config import Secret
from logclient.delivery.compiled import has_ids
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
from logclient.errors import CredentialError, ProtocolError
from logclient.logux.config import LoguxConfig
from logclient.logux.events import Action, DebugText, Headers, Opened, Received, Undone
from logclient.logux.frames import Probe, frames
from logclient.logux.headers import HeaderHistory
from logclient.logux.jam import JamDetector
from logclient.logux.messages import (
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
    printable,
    read_id,
    version,
    wrong_format,
)
from logclient.logux.messages import Headers as HeadersMessage
from logclient.logux.options import Options
from logclient.logux.undone import AGAIN, Suspect, UndoneRuns

__all__ = ["Logux", "Options", "Probe", "frames"]

DISCONNECTED, CONNECTING, SYNCHRONIZED, SENDING = "disconnected", "connecting", "synchronized", "sending"

MAX_ANSWERS = 100_000
"""Answers that wait to be sent. A server that asks for more without reading is disconnected."""

_MAX_TEXT = 256  # characters of a server's text in our messages
_MAX_NODE_ID = 1024  # characters of a server's node id, which becomes part of the id of each of its actions
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-"
_MAX_NUMBER = 1 << 53


def _letters(number: int, digits: int) -> str:
    """Write a number in characters that a node id may have, six bits each."""
    return "".join(_ALPHABET[number >> 6 * place & 63] for place in range(digits))


class Logux(Core):
    """The client's side of one connection at a time. See ``delivery.contract.Core``.

    The engine gives the wall clock, and calls `sample_clocks` between connections too.

    Args:
        options: see `Options`; ``logclient.config`` checks their ranges.
        producer: the 10 bytes that begin every id of this producer.

    Raises:
        ConfigError: `identity` is not one of its values.
    """

    def __init__(self, options: Options, producer: bytes) -> None:
        self._tracker = ActionTracker(
            producer,
            compact(options.action_type),
            window=options.window,
            window_bytes=options.window_bytes,
            inflight=options.inflight,
            identity=has_ids(options.identity),
            check=options.check,
            synced=options.ack == "synced",
        )
        self.options = options
        self.wall: Callable[[], float] = _no_clock
        self.server_id = ""
        """The server's node id, once there was a connection."""
        self.unknown = 0
        """Messages of unknown types."""
        self._unmatched = 0
        number = int.from_bytes(producer, "big")
        self.client = _letters(number, 8)
        """The second part of our first node id."""
        self.clients = 1
        """Client ids used so far."""
        self._tab = _letters(number >> 48, 6)
        self.node_id = self._make_node_id()
        self._undone = UndoneRuns(self._tracker, options.inflight * options.window)
        self._history = HeaderHistory()
        self._token = 0
        self._last_received: int | float = 0
        self._reported_received: int | float = 0
        self._new_client = False  # the next connection uses another client id
        self._old_form: bool | None = None  # of the subprotocol: None: not tried, False: it did not help
        self._jam = JamDetector(self._tracker, options.processing_timeout)
        self._now = 0.0
        self._state = DISCONNECTED
        self._out: list[Wire] = []
        self._events: list[CoreEvent] = []
        self._reset()

    def _make_node_id(self) -> str:
        count = f"-{self.clients}" if self.clients > 1 else ""
        return f"{self.options.user}:{self.client}{count}:{self._tab}"

    def resume(self, client: str, clients: int, received: int | float) -> None:
        """Continue as the client that an earlier process was; called before the first connection.

        The last part of the node id stays ours, so that no id of an action is used twice.

        Args:
            client: see the attribute.
            clients: see the attribute.
            received: the last ``added`` of the server that was received.
        """
        self.client, self.clients = client, clients
        self.node_id = self._make_node_id()
        self._last_received = self._reported_received = received

    @property
    def received(self) -> int | float:
        """The last ``added`` received from the server."""
        return max(self._last_received, self._tracker.received)

    @classmethod
    def from_config(cls, config: LoguxConfig, producer: bytes) -> Logux:
        """Make a core with the options of a URL.

        Raises:
            ConfigError: an option is outside its range.
        """
        return cls(Options.from_config(config), producer)

    def _reset(self) -> None:
        self._out.clear()
        self._events.clear()
        self._headers = HeaderHistory.NONE  # sent on this connection
        self._check_headers = True  # there may be headers to send
        self._headers_blocked = False  # until nothing is in flight
        self._over = False  # Fatal or CloseWanted was reported
        self._closing = False
        self._began = 0.0
        self._received_at = 0.0  # the last message
        self._sent_at = 0.0
        self._awaited_since = 0.0
        self._base = 0
        self._calls: list[int] = []  # tokens of calls that wait for `connected`
        self._pings: deque[int] = deque()  # tokens of pings without a pong; 0: our own
        self._undone.reset()

    # -- connections

    def connected(self, now: float, random: Callable[[], float]) -> None:
        """Begin a connection: send the headers and `connect`."""
        self._reset()
        if self._new_client:
            self._new_client = False
            self.clients += 1
            # A counter, not `random`: a seeded generator would make equal ids in several processes.
            self.node_id = self._make_node_id()
        self.sample_clocks(now)
        self._state = CONNECTING
        self._began = self._received_at = self._sent_at = now
        self._send_headers(self._history.newest)
        token, subprotocol = self._secret, self.options.subprotocol
        if (self.options.strict_spec or self._old_form) and isinstance(subprotocol, int) and subprotocol:
            subprotocol = f"{subprotocol}.0.0"
        options = {"token": token, "subprotocol": subprotocol}
        kept = {name: value for name, value in options.items() if value}
        self._send(pack(Connect(PROTOCOL, self.node_id, self.received, kept)))

    def connection_lost(self) -> None:
        """Forget the actions in flight. The option ``on_doubt`` decides about actions in doubt."""
        policy = self.options.on_doubt
        keep = policy == "same" and not self._new_client
        doubts, dropped = self._tracker.connection_lost(keep=keep, drop=policy == "drop")
        if doubts and policy == "new_client":
            self._new_client = True
        self._state = DISCONNECTED
        self._reset()
        self._add_outcomes(dropped)

    def receive_eof(self) -> None:
        """Use protocol 4's form for the next connection if this one ended without an answer to `connect`.

        Servers of protocol 4 end it so when the subprotocol is a number.
        """
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
        """``disconnected``, ``connecting``, ``synchronized`` or ``sending``. Any thread may read it."""
        busy = self._state == SYNCHRONIZED and (self._tracker.open or self._undone.suspects)
        return SENDING if busy else self._state

    @property
    def unmatched(self) -> int:
        """Outcomes received for actions that are not in flight."""
        return self._unmatched + self._tracker.unmatched

    @property
    def _awaits(self) -> bool:
        return bool(self._tracker.open or self._pings or self._undone.suspects)

    def _begin_wait(self, now: float) -> None:
        """Start the clock of silence, unless it runs; called before something is sent that has an answer."""
        if not self._tracker.open and not self._pings:
            self._awaited_since = now

    # -- sending

    def credit(self, now: float) -> tuple[int, int]:
        """Return how many events, and bytes of them, may be encoded now."""
        self.sample_clocks(now)
        if self._state != SYNCHRONIZED or self._over:
            return 0, 0
        if self._check_headers:
            self._order_headers()
            if self._headers_blocked:
                return 0, 0
        step = self._undone.next_step(self._closing)
        if isinstance(step, Suspect):
            self._send_alone(step, now)
            return 0, 0
        return step, self.options.window_bytes

    def _send_alone(self, suspect: Suspect, now: float) -> None:
        # The headers sent last are its own: events with other headers wait until no suspect is left.
        self._begin_wait(now)
        self._send(self._tracker.encode_alone(*suspect, now, self.wall()))
        self._sent_at = now

    def encode(self, batch: Batch, events: int, now: float) -> int:
        """Encode events of `batch` as one sync; failures are marked in the batch.

        Args:
            batch: an ``_ext.inflight.Batch``.
            events: how many events at most.
            now: monotonic seconds.

        Returns:
            The number of actions in the sync.

        Raises:
            MemoryError: nothing was encoded.
        """
        assert isinstance(batch, InflightBatch)
        allowed = last = self._undone.begin_encode()
        if self._history.changed or self._check_headers:
            last = self._headers_before(batch, allowed)
            if self._headers_blocked:
                return 0
        self._begin_wait(now)
        n, text, held = self._tracker.encode(batch.capsule, events, now, self.wall(), last)
        if held and not n and last == allowed:
            self._undone.set_drained()
        if n:
            self._send(text)
            self._sent_at = now
        return n

    def call(self, kind: str, payload: Any = None) -> int:
        """Send a ping. The payload of its ``Reply`` is the server's node id.

        Raises:
            ValueError: `kind` is not ``ping``.
        """
        if kind != "ping":
            raise ValueError(f"call: Logux has no {kind!r}")
        self._token += 1
        if self._state == SYNCHRONIZED:
            self._ping(self._token, self._now)
        else:
            self._calls.append(self._token)
        return self._token

    def post_command(
        self, kind: str, payload: Any, first: int, in_flight: InflightBatches | None = None
    ) -> None:
        """Set the ``headers`` of this node for the events from the sequence `first` on.

        Any thread may call it, one at a time, with a `first` that does not fall.

        Args:
            kind: ``headers``.
            payload: a JSON object. It replaces earlier headers.
            first: a sequence.
            in_flight: the batches, which know the events that wait and those that are settled.

        Raises:
            ValueError: another kind, or headers that are no JSON object.
        """
        if kind != "headers":
            raise ValueError(f"command: Logux has no {kind!r}")
        self._history.note(payload, first, in_flight)

    def _update_headers(self) -> None:
        self._check_headers = True
        self._history.update()

    def _order_headers(self) -> None:
        """Send the newest headers if no event needs others first, and see whether others are left to send."""
        self._update_headers()
        history = self._history
        if not self._tracker.open:
            self._headers_blocked = False
            if not self._undone.suspects and not history.events_waiting:
                self._send_headers(history.newest)
        self._check_headers = history.several or self._headers != history.newest

    def _headers_before(self, batch: InflightBatch, last: int) -> int:
        """Send the headers of the next event in `batch`, unless it is beyond `last`, or block.

        Returns:
            The last event, up to `last`, that has the same headers.
        """
        self._update_headers()
        pending = batch.pending(1)
        if not pending or pending[0].seq > last:
            return last
        text, same = self._history.of(pending[0].seq)
        self._headers_blocked = text != self._headers and self._tracker.open > 0
        if not self._headers_blocked:
            self._send_headers(text)
        return min(last, same)

    def _send_headers(self, text: bytes) -> None:
        if text != self._headers:
            self._send(text)
            self._headers = text

    def _ping(self, token: int, now: float) -> None:
        self._begin_wait(now)
        self._pings.append(token)
        self._send(pack(Ping(self._tracker.added)))

    def _send(self, text: bytes) -> None:
        self._out.append(Wire([text]))

    def data_to_send(self) -> list[Wire]:
        """Return the messages to send; valid until `sent`."""
        if self._tracker.answers_waiting:
            self._out += [Wire([text]) for text in self._tracker.drain_answers()]
        return self._out

    def sent(self, rest: int = 0) -> None:
        """Forget the messages of `data_to_send`: they were sent."""
        self._out.clear()

    # -- in

    def receive_data(self, data: bytes, now: float) -> None:
        """Take one whole message."""
        self._received_at = now
        if self._over or self._tracker.receive(data, now):
            return
        why = ""
        try:
            self._take(parse(data), now)
        except UnknownMessage as error:
            self.unknown += 1
            if self.options.strict_spec:
                self._send(pack(wrong_format(error.error.options[:_MAX_TEXT])))
        except Refused as error:
            why = f"the server sent an invalid message: {printable(str(error), _MAX_TEXT)}"
        if why and not self._take_large_undo(data, now):
            self._break(ProtocolError(why))

    def _take_large_undo(self, data: bytes, now: float) -> bool:
        """Take a message of undos that exceeds the limits for messages of a server.

        An undo repeats the action, which may be nested deeper, or have more values, than a server's message
        may. The action itself is not read.
        """
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
            self._tracker.synced(message.synced, now)
        elif isinstance(message, Ping):
            self._received(message.synced)
            self._send(pack(Pong(self._tracker.added)))
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
        if len(message.node_id) > _MAX_NODE_ID:
            self._break(ProtocolError(f"connected: a node id of more than {_MAX_NODE_ID} characters"))
            return
        start, base = message.start, message.end
        if base != int(base) or not 0 <= base < _MAX_NUMBER:
            self._break(ProtocolError(f"connected: a base time of {base!r} ms"))
            return
        # The server's clock when its answer arrived: the way back took half of the time that the server did
        # not spend itself (`timeFix` of the reference).
        way = (now - self._began) * 1e3
        self._base = int(base)
        self.server_id = message.node_id
        node = compact(self.node_id)[1:-1]
        self._tracker.connected(node, self._base, now, (way - min(max(base - start, 0), way)) / 2)
        self._state = SYNCHRONIZED
        self._events.append(Inbound(Opened(message.node_id)))
        self._jam.synchronized(now)
        for token in self._calls:
            self._ping(token, now)
        self._calls.clear()

    def _error(self, error: Error) -> None:
        described = describe(error, self._secret)
        words = f"the server says {described}"
        if error.type == "wrong-credentials":
            self._break(CredentialError(words))
        elif error.type == "wrong-format" and self._tracker.open:
            # It does not name the action. The engine finds a poison event by the connections that the server
            # ends, so end this one in the same way.
            self._events.append(Inbound(DebugText(described)))
            self._over = True
            self._events.append(CloseWanted())
        else:
            options = error.options if isinstance(error.options, dict) else {}
            ranges = error.type == "wrong-subprotocol" and isinstance(options.get("supported"), str)
            if ranges and not self.options.strict_spec:
                words = f"the server speaks {version(4)}, we speak {version(PROTOCOL)}: {described}"
            self._break(ProtocolError(words), forever=error.type in ("wrong-protocol", "wrong-subprotocol"))

    def _break(self, error: Exception, *, forever: bool = False) -> None:
        if not self._over:
            self._over = True
            self._events.append(Fatal(error, forever))

    def _received(self, added: int | float) -> None:
        self._last_received = max(self._last_received, added)

    def _sync(self, message: Sync, now: float) -> None:
        if isinstance(message.added, int):
            self._tracker.add_answer(message.added)
        else:
            self._send(pack(Synced(message.added)))
        self._received(message.added)
        for action, meta in message.entries:
            kind = action["type"]
            if kind in ("logux/processed", "logux/undo"):
                node, ms, counter = read_id(action.get("id"))
                if kind == "logux/processed":
                    if node != self.node_id or not self._tracker.acknowledge(ms, counter, now):
                        self._unmatched += 1
                    continue
                if node in ("", self.node_id):
                    taken = self._tracker.remove(ms, counter, now) if node else None
                    if taken is None:
                        self._unmatched += 1
                    else:
                        self._take_undone(Suspect(*taken[:4]), taken[4], action, meta)
                    continue
            self._events.append(Inbound(Action(action, self._absolute(meta))))

    def _absolute(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Return the meta of a server's action with its whole id, and its time in this host's clock."""
        full = dict(meta)
        full["id"] = decode_id(meta["id"], self._base, self.server_id)
        full["time"] = round(self._tracker.to_wall(meta["time"]))
        return full

    def _take_undone(
        self, suspect: Suspect, added: int, action: dict[str, Any], meta: dict[str, Any]
    ) -> None:
        seq = suspect.seq
        why = self._undone.undone(suspect, added, action.get("reason"))
        if why == AGAIN:
            self._events.append(Retry([(seq, seq)], "undone with another"))
        elif why:
            self._events.append(Inbound(Undone(seq, action, self._absolute(meta))))
            self._events.append(Settled("failed", why, [(seq, seq)]))

    def _add_outcomes(self, outcomes: Iterable[tuple[int, int, int, int]]) -> None:
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for first, last, status, reason in outcomes:
            found.setdefault((status, reason), []).append((first, last))
        for (status, reason), ranges in found.items():
            self._events.append(Settled(STATUSES[status], REASONS[reason], ranges))

    def events_received(self) -> Iterator[CoreEvent]:
        """Return the events since the last call."""
        outcomes, alive, progress = self._tracker.outcomes()
        if progress:
            self._add_outcomes(outcomes)
            self._events.append(Progress())
        elif alive:
            self._events.append(Alive())
        if self._tracker.answers_waiting > MAX_ANSWERS or len(self._out) > MAX_ANSWERS:
            self._break(ProtocolError("the server asks for answers and does not read them"))
        if self._closing and not self._over and not self._awaits:
            self._over = True
            self._events.append(CloseWanted())
        if self.options.state and self.received > self._reported_received:
            self._reported_received = self.received
            self._events.append(Inbound(Received(self.received)))
        events, self._events = self._events, []
        return iter(events)

    # -- clocks

    def set_wall_clock(self, wall: Callable[[], float]) -> None:
        """Use `wall` as the wall clock: seconds since 1970."""
        self.wall = wall

    def sample_clocks(self, now: float) -> None:
        """Sample the clocks, and take new headers.

        Must be called at least once a second: an event made while the wall clock is set gets a wrong time
        otherwise.
        """
        self._now = now
        if self._history.changed:
            self._update_headers()
        self._tracker.sample_clocks(now, self.wall())
        self._jam.look()

    def next_timeout(self, now: float) -> float | None:
        """Return when `handle_timeout` must be called."""
        if self._state == DISCONNECTED:
            return None
        silence = self.options.silence
        if self._state == CONNECTING:
            return self._began + silence
        tracker = self._tracker
        if tracker.open or self._pings:
            timeout = max(self._received_at, self._awaited_since) + silence
            jam = self._jam.deadline
            if jam is not None:
                timeout = min(timeout, jam)
            if self._pings:
                return timeout
            return min(timeout, max(self._received_at, self._sent_at) + self.options.ping)
        return max(self._received_at, self._sent_at) + self.options.ping

    def handle_timeout(self, now: float) -> None:
        """Send a ping, or report silence or a jam, if it is time."""
        timeout = self.next_timeout(now)
        if timeout is None or now < timeout or self._over:
            return
        options, tracker = self.options, self._tracker
        awaits, jam = tracker.open or self._pings, self._jam.deadline
        if self._state == CONNECTING:
            self._break(TimeoutError("silence: no answer to connect in time"))
        elif awaits and now >= max(self._received_at, self._awaited_since) + options.silence:
            self._break(TimeoutError(f"silence: no answer in time, with {tracker.open} actions in flight"))
        elif jam is not None and now >= jam:
            words = (
                f"jam: the server has got {tracker.open} actions and processes none of the first for "
                f"{self._jam.patience:g} s; going on under a new client id"
            )
            self._new_client = True
            self._jam.close()
            self._break(ProtocolError(words))
        else:
            self._ping(0, now)
            self._sent_at = now


def _no_clock() -> float:
    """Stand in for the wall clock in a core without an engine: ids begin in 1970."""
    return 0.0
