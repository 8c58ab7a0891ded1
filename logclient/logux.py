"""Logux's public face: actions both ways, headers, the state of the connection.

::

    with logclient.connect("logux://127.0.0.1:31337", user="10", token="env:TOKEN") as client:
        client.send({"message": "hello"})                   # data of a log/add action
        client.add({"type": "chat/add", "text": "hi"}).result(5.0)
        client.on("chat/add", lambda action, meta: print(action["text"]))
        client.headers = {"locale": "fr"}
        client.state, client.node_id, client.ping().seconds

An event that is sent becomes ``{"type": "log/add", "data": <the event>, "id": <its id>}``; so does a log
record, as the ECS document that other protocols ship. A whole action of your own goes by ``add``.

Hold the client while you listen: one that nobody holds delivers what it has, and ends.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from logclient import client, threads
from logclient._ext.record import Encoder
from logclient.config import Config
from logclient.delivery import error_log
from logclient.delivery.contract import Core, CoreEvent, Inbound
from logclient.delivery.engine import Engine
from logclient.delivery.outcomes import CallbackThread, Delivery, described
from logclient.errors import EncodeError, EncodeTypeError
from logclient.logux_state import State
from logclient.protocols.logux import Action, DebugText, Headers, Opened, Received, Undone

__all__ = ["Client", "Pong"]

INFO, URGENT = 20, 40
WHOLE, WHOLE_WITH_META = 1 << 4, 2 << 4
"""Kinds of bodies: a whole action, and one behind its time and subprotocol."""
NO_TIME, NO_SUBPROTOCOL = -(1 << 63), -1

SUBSCRIBE, UNDO = "logux/subscribe", "logux/undo"
REFUSED = frozenset(("denied", "unknown_type", "rejected", "error"))
"""Why a channel is not asked for again."""

MOST = 1 << 53
"""The first whole number that JavaScript cannot tell from its neighbour."""

WAITING = 100_000
"""Actions received that wait for callbacks, at most."""

DETAILS = 64 << 10
"""Bytes, about, of what an undo has besides its action, that are kept for its `Delivery`."""

KEEP = 1.0
"""Seconds after which what was received is kept although more of it waits to be kept."""

Callback = Callable[[dict[str, Any], dict[str, Any]], object]
"""``callback(action, meta)``; both are shared with other callbacks: do not change them."""


class Pong(NamedTuple):
    """The server's answer to a ping."""

    node_id: str
    """The server's."""
    seconds: float
    """From the ping's way into the transport to its answer."""


class Client(client.Client):
    """The client of ``logclient.connect("logux://...")``.

    An event is ``acked`` when the server has processed its action (``ack=synced``: received it).
    """

    _inbox: Inbox = client.UNMADE
    _actions: Encoder = client.UNMADE
    _plain: Encoder = client.UNMADE

    def __init__(self, config: Config) -> None:
        state = None if config.state is None else State(config.state, error_log.process.complain)
        self._inbox = Inbox(config.max_bytes, state)
        super().__init__(config)
        self._inbox.engine = self._engine
        if state is not None:
            self._engine.on_end = partial(_release, state, self._engine.submissions.callbacks)
        self._engine.requests.on_event = _weakly(self._inbox)
        # None is cut.
        plain: dict[str, Any] = {"max_event_bytes": config.max_event_bytes, "ecs": False}
        self._actions = Encoder(**plain, carriers=("id",), identity=config.identity)
        self._plain = Encoder(**plain, carriers=())

    def _core_factory(self, config: Config) -> Callable[[bytes], Core]:
        make, found, state = super()._core_factory(config), weakref.ref(self._inbox), self._inbox.state

        def begin(producer: bytes) -> Core:
            core = make(producer)
            inbox = found()
            if inbox is not None:
                inbox.begin()
                if inbox.headers:
                    core.post_command("headers", inbox.headers, 0)
            if state is not None:
                state.begin(core)  # type: ignore[arg-type]
            return core

        return begin

    def _encoder_options(self, config: Config) -> dict[str, Any]:
        """Events are data of actions: the id is beside them."""
        return {"carriers": ()}

    def _ledger_metadata(self, config: Config) -> dict[str, str]:
        """Whether acked means processed."""
        return {"ack": config.ack}

    # -- to the server

    def add(
        self, action: Mapping[str, Any], meta: Mapping[str, Any] | None = None, level: client.Level = INFO
    ) -> Delivery:
        """Send an action as it is, but for its ``id``, and follow it: ``add(action).result(5.0)``.

        Args:
            action: has a ``type``. Its ``id`` is ours: one that it has moves to ``labels.id``, unless
                ``identity=own`` leaves it there.
            meta: ``time`` (milliseconds since 1970; else the time of this call) and ``subprotocol`` (a
                number; else the option's). A server denies an action with anything else.
            level: a level of ``logging``, for ``keep_level``.

        Raises:
            EncodeTypeError: it is no mapping, or its type no string (a TypeError).
            EncodeError: it breaks another rule, or has no encoding (a ValueError).
        """
        try:
            _check_action(action)
            head = _head(meta)
            body, _, mangled, moved = self._actions.encode(action)
        except (TypeError, ValueError):
            self._lost()  # counted, as what `send` cannot encode
            raise
        if mangled or moved:
            self.handoff.count_changed(mangled, moved)
        return self._engine.submit(head + body, client.tens(level), WHOLE_WITH_META if head else WHOLE)

    def subscribe(self, channel: str, **more: Any) -> Delivery:
        """Ask the server for what happens in a channel, now and on each connection that follows.

        `acked` when it has said yes; then ``on`` hears what it sends. One that it denies is not asked for
        again.

        Args:
            more: of the action, such as ``filter``.

        Raises:
            EncodeError: see ``add``.
        """
        action = {**more, "type": SUBSCRIBE, "channel": channel}
        delivery = self.add(action, level=URGENT)
        self._inbox.channels[self._actions.encode(action)[0]] = delivery
        return delivery

    def unsubscribe(self, channel: str, **more: Any) -> Delivery:
        """The end of what ``subscribe`` with the same arguments has begun."""
        action = {**more, "type": SUBSCRIBE, "channel": channel}
        self._inbox.leave(self._actions.encode(action)[0])
        return self.add({**action, "type": "logux/unsubscribe"}, level=URGENT)

    def ping(self, timeout: float = 5.0) -> Pong:
        """Ask the server for a sign of life, in line with what is sent already.

        Raises:
            ConnectFailed: no answer within `timeout` seconds, or no connection.
        """
        return self.pong(*self._engine.request("ping", None, timeout))

    @staticmethod
    def pong(answer: Any, seconds: float) -> Pong:
        """What ``ping`` returns, of an answer and the time that it took."""
        return Pong(answer, seconds)

    @property
    def headers(self) -> dict[str, Any]:
        """What we tell the server of ourselves: a JSON object. Set it to replace the whole.

        It keeps its order with actions: the server processes those sent before with the former headers,
        those sent after with these (``ack=synced``: receives them so). With nothing to send before, it goes
        out at once; on each connection the newest goes before anything else. Its parts are not watched, so
        change it by setting it: ``client.headers = {**client.headers, "locale": "fr"}``.

        Raises:
            EncodeError: it has no encoding, or a number as its ``length``: servers refuse that.
        """
        return dict(self._inbox.headers)

    @headers.setter
    def headers(self, headers: Mapping[str, Any]) -> None:
        from json import loads

        if not isinstance(headers, Mapping):
            raise EncodeTypeError(f"headers: must be a mapping, got {type(headers).__name__}")
        _check_names("headers", headers)
        # As the server will have them, and nobody else's to change.
        self._inbox.say(loads(self._plain.encode(headers)[0]))

    # -- from the server

    def on(self, type: str | None, callback: Callback) -> Callable[[], None]:
        """Call ``callback(action, meta)`` with each action of this type that the server sends.

        Callbacks run one after the other on a thread of their own. One that raises is told of, no more.
        From the first ``on`` on the client keeps a connection, and makes another when that is lost. Of
        `WAITING` actions (or ``max_bytes`` of them) that wait for callbacks, later ones are dropped, and
        counted in ``missed``.

        Args:
            type: None: of every type. Only who names ``logux/undo`` hears that the server has undone an
                action of ours, which its `Delivery` tells too (``result().details``).

        Returns:
            What ends it, when called.
        """
        return self._inbox.add(type, callback)

    @property
    def missed(self) -> int:
        """Actions received that no callback was called with, for want of room."""
        return self._inbox.missed

    @property
    def server_headers(self) -> dict[str, Any]:
        """What the server has last told of itself, on any connection."""
        return dict(self._inbox.server_headers)

    @property
    def state(self) -> str:
        """What the connection does:

        ``disconnected``
            there is none: nothing to send yet, or the wait before the next attempt
        ``connecting``
            the server has not said who it is
        ``sending``
            actions are on their way that have no answer yet
        ``synchronized``
            none are
        ``denied``
            the server does not accept user and token (or the certificate is not accepted); tried again at
            the slow pace
        ``stopped``
            the server speaks another version of the protocol, or wants another subprotocol: nothing
            more is sent; ``stats().last_error`` has the words
        """
        engine = self._engine
        if engine.fatal is not None:
            return "stopped"
        if engine.link is None:
            return "denied" if engine.endpoints.all_refused and not engine.closed else "disconnected"
        state: str = engine.core.state  # type: ignore[attr-defined]
        return state

    @property
    def node_id(self) -> str:
        """Ours: ``<user>:<client>:<tab>``. Another one after a fork, and after what is in doubt was added
        again under a new client id."""
        found: str = self._engine.core.node_id  # type: ignore[attr-defined]
        return found

    def _lost(self) -> None:
        client.make_sink(self._engine)[1]()


class Inbox:
    """What the server says, on its way to callbacks, and what we tell of ourselves: all that outlives a
    connection, and a fork. Held by the client; the engine looks at it weakly."""

    def __init__(self, most: int, state: State | None = None) -> None:
        self.engine: Engine
        self.state = state
        self.headers: dict[str, Any] = {}
        self.server_headers: dict[str, Any] = {}
        self.missed = 0
        self.channels: dict[bytes, Delivery] = {}  # by the action that subscribes
        self._most = most  # bytes
        self._callbacks: dict[str | None, tuple[Callback, ...]] = {}
        self.begin()

    def begin(self) -> None:
        """In each process anew: another thread of the parent may have held the lock."""
        self._lock = threads.RLock()  # the collector of garbage may come to `end` in the middle of it
        self._waiting = 0
        self._bytes = 0
        self._received: int | float = 0  # to be kept at last
        self._kept_at = 0.0

    def add(self, type: str | None, callback: Callback) -> Callable[[], None]:
        if type is not None and not isinstance(type, str):
            raise EncodeTypeError(f"type: must be a string or None, got {type.__class__.__name__}")
        if not callable(callback):
            raise EncodeTypeError(f"callback: must be callable, got {callback.__class__.__name__}")
        # Its own, so that the same callable may be there twice.
        one: Callback = lambda action, meta: callback(action, meta)  # noqa: E731
        # Replaced whole, never changed: read without a lock, and nothing a fork could leave half done.
        with self._lock:
            self._callbacks = {**self._callbacks, type: (*self._callbacks.get(type, ()), one)}
        self.engine.keep_connected(True)

        def end() -> None:
            with self._lock:
                left = tuple(other for other in self._callbacks.get(type, ()) if other is not one)
                others = {name: them for name, them in self._callbacks.items() if name != type}
                self._callbacks = {**others, type: left} if left else others
            if not self._callbacks:
                self.engine.keep_connected(False)

        return end

    def say(self, headers: dict[str, Any]) -> None:
        """Tell the server `headers` from the next event on."""
        with self._lock:  # of two threads, the last in line must be the last here
            self.headers = headers
            self.engine.post_command("headers", headers)

    def hear(self, event: CoreEvent) -> None:
        """From the sender: never waits, never raises."""
        said = event.payload if isinstance(event, Inbound) else None
        if isinstance(said, Action):
            self._take(said.action, said.meta)
        elif isinstance(said, Undone):
            self.engine.submissions.explain(said.seq, _details(said.action))
            if UNDO in self._callbacks:
                self._take(said.action, said.meta, ours=True)
        elif isinstance(said, Received):
            self._keep_later(said.added)
        elif isinstance(said, Opened):
            self._subscribe()
            if self.state is not None:
                self._keep_later(self.engine.core.received)  # type: ignore[attr-defined]
        elif isinstance(said, Headers):
            self.server_headers = said.data
        elif isinstance(said, DebugText):
            self.engine.error_log.complain("debug", f"{self.engine.url}: the server says: {said.text[:1000]}")

    def _keep_later(self, received: int | float) -> None:
        """Keep it when the callbacks have been called with what came before."""
        self._received = received
        self.engine.submissions.callbacks.run(self._keep, received)

    def _keep(self, received: int | float) -> None:
        """On the callbacks' thread."""
        now = time.monotonic()
        if self.state is not None and (received == self._received or now - self._kept_at >= KEEP):
            self._kept_at = now
            self.state.keep(received)

    def leave(self, channel: bytes) -> None:
        with self._lock:
            self.channels.pop(channel, None)

    def _subscribe(self) -> None:
        """Ask again for the channels that another connection had."""
        with self._lock:
            for action, delivery in list(self.channels.items()):
                outcome = delivery.result(0)
                if outcome is None:
                    pass  # on its way
                elif outcome.reason in REFUSED:
                    del self.channels[action]
                else:
                    self.channels[action] = self.engine.submit(action, client.tens(URGENT), WHOLE)

    def _take(self, action: dict[str, Any], meta: dict[str, Any], ours: bool = False) -> None:
        """`ours`: it is about an action of ours, and only for callbacks that name its type."""
        if None not in self._callbacks and action.get("type") not in self._callbacks:
            return
        size = _weight(action)
        with self._lock:
            full = self._waiting >= WAITING or self._bytes + size > max(self._most, size)
            if full:
                self.missed += 1
            else:
                self._waiting += 1
                self._bytes += size
        if full:
            self.engine.error_log.complain(
                "inbox", f"{self.engine.url}: callbacks are too slow: actions of the server were dropped"
            )
        else:
            self.engine.submissions.callbacks.run(self._tell, action, meta, size, ours)

    def _tell(self, action: dict[str, Any], meta: dict[str, Any], size: int, ours: bool) -> None:
        """On the callbacks' thread."""
        with self._lock:
            self._waiting -= 1
            self._bytes -= size
        callbacks = self._callbacks
        others = () if ours else callbacks.get(None, ())
        for callback in (*callbacks.get(action["type"], ()), *others):
            try:
                callback(action, meta)
            except BaseException as error:  # the thread goes on, and the next callback is called
                self.engine.error_log.complain(
                    "callback", f"a callback for {action['type'][:100]!r} raised {described(error)}"
                )


def _release(state: State, callbacks: CallbackThread) -> None:
    """The end of a client: let go of its file, once what waits for its turn was kept there."""
    if callbacks.waiting:
        callbacks.run(state.release)
    else:
        state.release()


def _weakly(inbox: Inbox) -> Callable[[CoreEvent], object]:
    """An inbox that nobody holds any more hears nothing."""
    found = weakref.ref(inbox)

    def heard(event: CoreEvent) -> None:
        inbox = found()
        if inbox is not None:
            inbox.hear(event)

    return heard


def _check_action(action: object) -> None:
    if not isinstance(action, Mapping):
        raise EncodeTypeError(f"action: must be a mapping, got {type(action).__name__}")
    kind = action.get("type")
    if not isinstance(kind, str):
        raise EncodeTypeError(f"type: an action's must be a string, got {type(kind).__name__}")
    _check_names("action", action)


def _check_names(what: str, fields: Mapping[Any, Any]) -> None:
    for name, value in fields.items():
        # What is made a string might be another `type`, or a `length`.
        if not isinstance(name, str):
            raise EncodeTypeError(f"{what}: each name in it must be a string, got {type(name).__name__}")
        if name == "length" and isinstance(value, (int, float)) and not isinstance(value, bool):
            raise EncodeError(f"length: servers end the connection on {what} with a number as its length")


def _head(meta: Mapping[str, Any] | None) -> bytes:
    """Time and subprotocol for in front of the action; nothing when neither is given."""
    if meta is None:
        return b""
    if not isinstance(meta, Mapping):
        raise EncodeTypeError(f"meta: must be a mapping, got {type(meta).__name__}")
    for name in meta:
        if name not in ("time", "subprotocol"):
            raise EncodeError(
                f"meta: only time and subprotocol; servers deny an action with {str(name)[:40]!r} in it"
            )
    time, subprotocol = NO_TIME, NO_SUBPROTOCOL
    if meta.get("time") is not None:
        time = _whole("time", meta["time"], -MOST, "milliseconds since 1970")
    if meta.get("subprotocol") is not None:
        subprotocol = _whole("subprotocol", meta["subprotocol"], -1, "a whole number")
    if (time, subprotocol) == (NO_TIME, NO_SUBPROTOCOL):
        return b""
    return time.to_bytes(8, "little", signed=True) + subprotocol.to_bytes(8, "little", signed=True)


def _whole(name: str, value: object, above: int, rule: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise EncodeTypeError(f"{name}: must be {rule}, got {type(value).__name__}")
    if not above < value < MOST or (name == "subprotocol" and value != int(value)):  # no NaN either
        raise EncodeError(f"{name}: must be {rule}, got {str(value)[:40]}")
    return int(value)


def _details(undo: dict[str, Any]) -> Mapping[str, Any]:
    """What an undo says besides which action it is of; only its reason when it says too much."""
    details = {name: value for name, value in undo.items() if name not in ("type", "id", "action")}
    if _weight(details) > DETAILS:
        reason = details.get("reason")
        details = {"reason": reason[:1000]} if isinstance(reason, str) else {}
    return details


def _weight(action: dict[str, Any]) -> int:
    """About how many bytes an action holds here."""
    size = 0
    todo: list[Any] = [action]
    while todo:
        one = todo.pop()
        size += 64
        if isinstance(one, dict):
            for name, value in one.items():
                size += 64 + len(name)
                todo.append(value)
        elif isinstance(one, list):
            todo.extend(one)
        elif isinstance(one, str):
            size += len(one)
    return size
