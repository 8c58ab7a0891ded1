"""The client of Logux URLs; see the package."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from logclient import client, threads
from logclient._ext.record import Encoder
from logclient.config.common import Config
from logclient.delivery import error_log, memory
from logclient.delivery.contract import Core, CoreEvent, Inbound
from logclient.delivery.outcomes import Delivery
from logclient.delivery.peer import Peer
from logclient.delivery.producer import INFO_LEVEL, Producer
from logclient.delivery.sender import Waiter
from logclient.errors import EncodeError, EncodeTypeError, described
from logclient.logux.config import LoguxConfig
from logclient.logux.core import WHOLE, WHOLE_WITH_META, Action, DebugText, Logux, Opened, Received, Undone
from logclient.logux.messages import MAX_NUMBER, Headers
from logclient.logux.state import State
from logclient.standard import time

__all__ = ["Client", "Pong"]

INFO, URGENT = 20, 40
NO_TIME, NO_SUBPROTOCOL = -(1 << 63), -1

SUBSCRIBE, UNDO = "logux/subscribe", "logux/undo"
REFUSED = frozenset(("denied", "unknown_type", "rejected", "error"))
"""Reasons for which a channel is not subscribed to again."""

MAX_WAITING = 100_000
"""Received actions that wait for callbacks, at most."""

MAX_DETAILS = 64 << 10
"""Bytes (about) of an undo without its action that are kept for its `Delivery`."""

SAVE_INTERVAL = 1.0
"""Seconds after which the state is saved although newer changes wait to be saved."""

Callback = Callable[[dict[str, Any], dict[str, Any]], object]
"""``callback(action, meta)``. Other callbacks get the same objects: do not change them."""


class Pong(NamedTuple):
    """The server's answer to a ping.

    Attributes:
        node_id: the node id of the server.
        seconds: the time from handing the ping to the transport to the answer.
    """

    node_id: str
    seconds: float


class Client(client.Client):
    """The client of ``logclient.connect("logux://...")``.

    An event is ``acked`` when the server has processed its action, or with ``ack=synced`` when it has
    received the action.
    """

    _encoder_options = {"carriers": ()}  # the id is in the action, beside the event

    def __init__(self, config: Config) -> None:
        assert isinstance(config, LoguxConfig)
        state = None if config.state is None else State(config.state, error_log.process.warn_limited)
        self._inbox = Inbox(config.max_bytes, state)
        super().__init__(config)
        self._inbox.bind(self.sink, self._peer, self._waiter)
        if state is not None:
            self._peer.on_end(partial(_release, state, self._peer))
        take = weakref.WeakMethod(self._inbox.take)
        self._peer.on_message(lambda event: (found := take()) and found(event))
        # Actions are never truncated.
        plain: dict[str, Any] = {"max_event_bytes": config.max_event_bytes, "ecs": False}
        self._actions = Encoder(**plain, carriers=("id",), identity=config.identity)
        self._plain = Encoder(**plain, carriers=())

    def _core_factory(self, config: Config) -> Callable[[bytes], Core]:
        make, found, state = super()._core_factory(config), weakref.ref(self._inbox), self._inbox.state

        def begin(producer: bytes) -> Core:
            core = make(producer)
            assert isinstance(core, Logux)
            inbox = found()
            if inbox is not None:
                inbox.begin()
                if inbox.headers:
                    core.post_command("headers", inbox.headers, 0)
            if state is not None:
                state.begin(core)
            return core

        return begin

    # -- to the server

    def add(
        self, action: Mapping[str, Any], meta: Mapping[str, Any] | None = None, level: client.Level = INFO
    ) -> Delivery:
        """Send a whole action and follow it: ``add(action).result(5.0)``.

        Args:
            action: a mapping with a ``type``. The client sets its ``id``. An ``id`` of the application moves
                to ``labels.id``, unless ``identity=own`` keeps it.
            meta: ``time`` (milliseconds since 1970; by default the time of this call) and ``subprotocol`` (a
                number; by default the option's). Servers deny an action with other members.
            level: a level of ``logging``, for ``keep_level``.

        Returns:
            The delivery of the action.

        Raises:
            EncodeTypeError: `action` is no mapping, or its type is no string (a TypeError).
            EncodeError: it breaks another rule, or has no encoding (a ValueError).
        """
        kept = INFO_LEVEL
        try:
            kept = client.level_index(level)
            if not isinstance(action, Mapping):
                raise EncodeTypeError(f"action: must be a mapping, got {type(action).__name__}")
            if not isinstance(kind := action.get("type"), str):
                raise EncodeTypeError(f"type: an action's must be a string, got {type(kind).__name__}")
            _check_names("action", action)
            head = _head(meta)
            body, _, sanitized, moved = self._actions.encode(action)
        except (TypeError, ValueError) as error:
            self.sink.lost(error, kept)  # as `send` does
            raise
        if sanitized or moved:
            self.queue.count_changed(sanitized, moved)
        return self.sink.submit(head + body, kept, WHOLE_WITH_META if head else WHOLE)

    def subscribe(self, channel: str, **more: Any) -> Delivery:
        """Subscribe to a channel, now and on each later connection.

        The delivery is ``acked`` when the server has accepted the subscription. Callbacks set with ``on``
        then get the actions of the channel. A subscription that the server denies is not repeated.

        Args:
            channel: the name of the channel.
            more: further members of the action, such as ``filter``.

        Returns:
            The delivery of the action.

        Raises:
            EncodeError: see ``add``.
        """
        action = {**more, "type": SUBSCRIBE, "channel": channel}
        delivery = self.add(action, level=URGENT)
        self._inbox.channels[self._actions.encode(action)[0]] = delivery
        return delivery

    def unsubscribe(self, channel: str, **more: Any) -> Delivery:
        """End a subscription. The arguments are those of its ``subscribe``.

        Args:
            channel: the name of the channel.
            more: the further members of the action.

        Returns:
            The delivery of the action.

        Raises:
            EncodeError: see ``add``.
        """
        action = {**more, "type": SUBSCRIBE, "channel": channel}
        self._inbox.forget_channel(self._actions.encode(action)[0])
        return self.add({**action, "type": "logux/unsubscribe"}, level=URGENT)

    def ping(self, timeout: float = 5.0) -> Pong:
        """Ask the server for a sign of life, after everything sent before.

        Args:
            timeout: seconds to wait for the answer.

        Returns:
            The server's node id, and the seconds until the answer.

        Raises:
            ConnectFailed: no answer within `timeout` seconds, or no connection.
        """
        return self.pong(*self._peer.request("ping", None, timeout))

    pong = Pong  # for `AsyncClient`

    @property
    def headers(self) -> dict[str, Any]:
        """The headers of this node: a JSON object.

        Headers keep their order with actions. The server processes actions sent before a change with the
        former headers, and later ones with the new headers (with ``ack=synced`` it receives them in this
        order). They are sent at once if nothing else waits; on each new connection the newest headers are
        sent first.

        This is a copy. Assign to change the headers:
        ``client.headers = {**client.headers, "locale": "fr"}``.

        Raises:
            EncodeError: the headers have no encoding, or a number as ``length``, which servers refuse.
        """
        return dict(self._inbox.headers)

    @headers.setter
    def headers(self, headers: Mapping[str, Any]) -> None:
        from json import loads

        if not isinstance(headers, Mapping):
            raise EncodeTypeError(f"headers: must be a mapping, got {type(headers).__name__}")
        _check_names("headers", headers)
        # A deep copy, with the values that the server will read.
        self._inbox.set_headers(loads(self._plain.encode(headers)[0]))

    # -- from the server

    def on(self, type: str | None, callback: Callback) -> Callable[[], None]:
        """Call ``callback(action, meta)`` with each action of a type that the server sends.

        Callbacks run one after the other on a thread of their own. Their exceptions are reported. From the
        first ``on`` on, the client keeps a connection and reconnects when it is lost. When `MAX_WAITING`
        actions (or ``max_bytes`` of them) wait for callbacks, later ones are dropped and counted in
        ``missed``.

        Args:
            type: the type of the actions; None: every type. If the server undoes an action of this client,
                only callbacks for the type ``logux/undo`` get the undo. The `Delivery` of the action reports
                it too (``result().details``).
            callback: takes the action and its meta.

        Returns:
            A function that removes the callback.
        """
        return self._inbox.add(type, callback)

    @property
    def missed(self) -> int:
        """How many received actions were dropped because too many waited for callbacks."""
        return self._inbox.missed

    @property
    def server_headers(self) -> dict[str, Any]:
        """The last headers of the server, from any connection."""
        return dict(self._inbox.server_headers)

    @property
    def state(self) -> str:
        """The state of the connection.

        ``disconnected``
            no connection: nothing to send yet, or waiting before the next attempt
        ``connecting``
            the server has not answered yet
        ``sending``
            actions are in flight
        ``synchronized``
            no actions are in flight
        ``denied``
            the server does not accept user and token, or the certificate is not accepted; retried slowly
        ``stopped``
            the server speaks another version of the protocol, or requires another subprotocol. Nothing more
            is sent; see ``stats().last_error``
        """
        connection = self._peer.connection
        if connection == "connected":
            return self._core.state
        if connection == "refused":
            return "disconnected" if self.closed else "denied"
        return connection

    @property
    def node_id(self) -> str:
        """The node id of this client: ``<user>:<client>:<tab>``.

        It changes in a forked child, and when actions in doubt are added again under a new client id.
        """
        return self._core.node_id

    @property
    def _core(self) -> Logux:
        core = self._peer.core
        assert isinstance(core, Logux)
        return core


class Inbox:
    """Passes events from the server to callbacks, and keeps our headers and channels.

    It outlives connections and forks. The client owns it; the sender has a weak reference.
    """

    def __init__(self, most: int, state: State | None = None) -> None:
        self.state = state
        self.headers: dict[str, Any] = {}
        self.server_headers: dict[str, Any] = {}
        self.missed = 0
        self.channels: dict[bytes, Delivery] = {}  # by the action that subscribes
        self._most = most  # bytes
        self._callbacks: dict[str | None, tuple[Callback, ...]] = {}
        self.begin()

    def begin(self) -> None:
        """Start in this process: in a forked child another thread of the parent may hold the lock."""
        self._lock = threads.RLock()  # the garbage collector may run `remove` while it is held
        self._waiting = 0
        self._bytes = 0
        self._received: int | float = 0  # the newest to be saved
        self._saved_at = 0.0

    def bind(self, sink: Producer, peer: Peer, waiter: Waiter) -> None:
        """Begin to use a client's."""
        self._sink, self._peer, self._waiter = sink, peer, waiter

    def add(self, type: str | None, callback: Callback) -> Callable[[], None]:
        if type is not None and not isinstance(type, str):
            raise EncodeTypeError(f"type: must be a string or None, got {type.__class__.__name__}")
        if not callable(callback):
            raise EncodeTypeError(f"callback: must be callable, got {callback.__class__.__name__}")
        # A new object, so that the same callable may be added twice.
        one: Callback = lambda action, meta: callback(action, meta)  # noqa: E731
        # Replaced, never changed: readers need no lock, and a fork cannot leave it half done.
        with self._lock:
            self._callbacks = {**self._callbacks, type: (*self._callbacks.get(type, ()), one)}
        self._peer.keep_connected(True)

        def remove() -> None:
            with self._lock:
                left = tuple(other for other in self._callbacks.get(type, ()) if other is not one)
                others = {name: them for name, them in self._callbacks.items() if name != type}
                self._callbacks = {**others, type: left} if left else others
            if not self._callbacks:
                self._peer.keep_connected(False)

        return remove

    def set_headers(self, headers: dict[str, Any]) -> None:
        with self._lock:  # the core must see the changes of two threads in the order of `self.headers`
            self.headers = headers
            self._peer.post_command("headers", headers)

    def take(self, event: CoreEvent) -> None:
        """Take an event of the core; called by the sender. Never waits, never raises."""
        payload = event.payload if isinstance(event, Inbound) else None
        if isinstance(payload, Action):
            self._enqueue(payload.action, payload.meta)
        elif isinstance(payload, Undone):
            self._peer.explain(payload.seq, _details(payload.action))
            if UNDO in self._callbacks:
                self._enqueue(payload.action, payload.meta, ours=True)
        elif isinstance(payload, Received):
            self._save_later(payload.added)
        elif isinstance(payload, Opened):
            self._subscribe(every=True)
            core = self._peer.core
            if self.state is not None and isinstance(core, Logux):
                self._save_later(core.received)
        elif isinstance(payload, Headers):
            self.server_headers = payload.data
        elif isinstance(payload, DebugText):
            text = payload.text[:1000]
            self._peer.warn("debug", f"the server says: {text}")

    def _save_later(self, received: int | float) -> None:
        """Save it after the callbacks for everything received before."""
        self._received = received
        self._peer.queue_callback(self._save, received)

    def _save(self, received: int | float) -> None:
        """Save the state; called on the callbacks' thread."""
        now = time.monotonic()
        if self.state is not None and (received == self._received or now - self._saved_at >= SAVE_INTERVAL):
            self._saved_at = now
            self.state.keep(received)

    def forget_channel(self, channel: bytes) -> None:
        with self._lock:
            self.channels.pop(channel, None)

    def _subscribe(self, every: bool = False) -> None:
        """Subscribe again to `every` channel, or to those for which there was no room."""
        seqs = []
        with self._lock:
            for action, delivery in list(self.channels.items()):
                outcome = delivery.result(0)
                if outcome is None:
                    pass  # in flight
                elif outcome.reason in REFUSED:
                    del self.channels[action]
                elif every or outcome.status == "dropped":
                    again = self._sink.submit(action, client.level_index(URGENT), WHOLE)
                    self.channels[action] = again
                    seqs.append(again.seq)
        if seqs and not self._sink.closed:
            subscribe = weakref.WeakMethod(self._subscribe)
            # The next outcome of an event makes room for one that found none.
            target = max(seqs) if all(seqs) else self._waiter.settled + 1
            self._waiter.when(target, lambda: (found := subscribe()) and found())

    def _enqueue(self, action: dict[str, Any], meta: dict[str, Any], ours: bool = False) -> None:
        """Queue an action for the callbacks; one that undoes `ours` only for those that name its type."""
        if None not in self._callbacks and action.get("type") not in self._callbacks:
            return
        size = memory.weight(action)
        with self._lock:
            full = self._waiting >= MAX_WAITING or self._bytes + size > max(self._most, size)
            if full:
                self.missed += 1
            else:
                self._waiting += 1
                self._bytes += size
        if full:
            self._peer.warn("inbox", "callbacks are too slow: actions of the server were dropped")
        else:
            self._peer.queue_callback(self._call, action, meta, size, ours)

    def _call(self, action: dict[str, Any], meta: dict[str, Any], size: int, ours: bool) -> None:
        with self._lock:
            self._waiting -= 1
            self._bytes -= size
        callbacks = self._callbacks
        others = () if ours else callbacks.get(None, ())
        for callback in (*callbacks.get(action["type"], ()), *others):
            try:
                callback(action, meta)
            except BaseException as error:  # neither the thread nor the next callback must suffer
                what = f"a callback for {action['type'][:100]!r}"
                self._peer.warn("callback", f"{what} raised {described(error)}")


def _release(state: State, peer: Peer) -> None:
    """Release the file of a client that has ended, after the changes that wait were saved."""
    if peer.callbacks:
        peer.queue_callback(state.release)
    else:
        state.release()


def _check_names(what: str, fields: Mapping[Any, Any]) -> None:
    for name, value in fields.items():
        # Converted to a string, it might be another `type` or `length`.
        if not isinstance(name, str):
            raise EncodeTypeError(f"{what}: each name in it must be a string, got {type(name).__name__}")
        if name == "length" and isinstance(value, (int, float)) and not isinstance(value, bool):
            raise EncodeError(f"length: servers end the connection on {what} with a number as its length")


def _head(meta: Mapping[str, Any] | None) -> bytes:
    """Encode the time and subprotocol of a meta, to put before the action; empty if there are none."""
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
        time = _whole("time", meta["time"], -MAX_NUMBER, "milliseconds since 1970")
    if meta.get("subprotocol") is not None:
        subprotocol = _whole("subprotocol", meta["subprotocol"], -1, "a whole number")
    if (time, subprotocol) == (NO_TIME, NO_SUBPROTOCOL):
        return b""
    return time.to_bytes(8, "little", signed=True) + subprotocol.to_bytes(8, "little", signed=True)


def _whole(name: str, value: object, above: int, rule: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise EncodeTypeError(f"{name}: must be {rule}, got {type(value).__name__}")
    if not above < value < MAX_NUMBER or (name == "subprotocol" and value != int(value)):  # refuses NaN, too
        raise EncodeError(f"{name}: must be {rule}, got {str(value)[:40]}")
    return int(value)


def _details(undo: dict[str, Any]) -> Mapping[str, Any]:
    """Return the members of an undo besides its action; only the reason if they are too large."""
    details = {name: value for name, value in undo.items() if name not in ("type", "id", "action")}
    if memory.weight(details) > MAX_DETAILS:
        reason = details.get("reason")
        details = {"reason": reason[:1000]} if isinstance(reason, str) else {}
    return details
