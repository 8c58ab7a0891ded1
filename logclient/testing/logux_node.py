"""Logux: the server's side of a connection, as @logux/server implements it.

`ServerNode` is one connection; `Server` has the state that all connections of a server share. Messages in,
messages out: no socket, no clock. ``now`` is in monotonic seconds, ``wall`` in milliseconds since 1970.

States of a connection::

    state     connect                          sync, ping, ...            error, debug, headers
    WAITING   -> OPEN, then the buffered ones  buffered                   taken
              -> CLOSED, after an error
    OPEN      -> CLOSED, without an answer     answered                   taken
    CLOSED    ignored                          ignored                    ignored

When an action is undone, the rest of its ``sync`` is undone with it (reason ``error``). docs/logux.md says
where it differs from the real server, and what ``strict_spec`` changes.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from logclient.errors import ConfigError
from logclient.logux.messages import (
    ECHOED,
    MIN_PROTOCOL,
    PROTOCOL,
    Connect,
    Connected,
    Debug,
    Error,
    Headers,
    Message,
    Number,
    Ping,
    Pong,
    Refused,
    Sync,
    Synced,
    UnknownMessage,
    compact,
    decode_id,
    pack,
    parse,
    plain,
    wrong_format,
)

ALLOWED_META = frozenset(("id", "time", "subprotocol"))  # in a meta of a client; others are denied
WRONG_CREDENTIALS = Error("wrong-credentials")

_BAD_LOGINS, _BAD_SECONDS = 3, 3.0  # after so many from an address in so long, no token is accepted
_ADDRESSES_MAX = 10_000
_KEPT_MAX = 250_000
_NODE_ID_MAX = 1024
_GREETING, _ANSWER = "金木水火土", "板城烧锅酒"  # of "duilian", a tenth message of the real server
_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")

Judge = Callable[[dict[str, Any], dict[str, Any]], str]
"""``judge(action, meta)``, with absolute ``id`` and ``time``, returns "" or the reason of an undo."""


class Login(NamedTuple):
    """A client that wants to connect. The token is any JSON value that it sent; ``None``: none."""

    user: str | None
    node_id: str
    token: Any
    headers: dict[str, Any]


class Rules(NamedTuple):
    """The behaviour of a server."""

    node_id: str = "server:logclient"
    subprotocol: int | str = 1
    minimum: int | str = 0  # the lowest subprotocol that is accepted; 0: any
    authenticate: Callable[[Login], bool] | None = None  # None: all but the user ``server`` may connect
    judge: Judge | None = None  # not called for types that begin with ``logux/``
    types: Collection[str] | None = None  # the known action types; None: all
    headers: dict[str, Any] = {}  # sent before ``connected``
    development: bool = False  # announce it in the headers, and report faults in ``debug``
    keep_log: bool = False  # remember the ids of processed actions, and ignore actions that repeat one
    strict_spec: bool = False
    timeout: float = 70.0  # seconds to wait for ``connect``, ``synced`` and ``pong``; 0: for ever
    ping: float = 20.0  # seconds without a message before a ping is sent; 0: never
    max_early: int = 1 << 18  # bytes of messages buffered before ``connect`` is accepted, at most


class Received(NamedTuple):
    """The result of one received message."""

    raw: bytes
    message: Message | None  # None: it was refused, see `reason`
    answers: list[bytes]  # messages to send at once, in this order: for a sync, ``synced``
    outcomes: list[tuple[bytes, ...]]  # the messages of each; the last is a ``sync``. Call `sent` for them
    reason: str = ""
    undone: int = 0  # the number of outcomes that are ``logux/undo``


class Server:
    """What all connections of a server share: connected clients, failed logins, ids of processed actions."""

    def __init__(self, rules: Rules) -> None:
        if " " in rules.node_id or not rules.node_id:
            raise ConfigError(f"node_id: {rules.node_id!r} must be a text without spaces")
        if rules.ping and not rules.timeout:
            raise ConfigError("ping: needs a timeout")
        self.rules = rules
        self.clients: dict[str, ServerNode] = {}  #: by user and client, in the order of arrival
        self.last_added = 0  #: of the log, which is empty without ``keep_log``
        self.kept: dict[str, None] = {}  #: ids of processed actions
        self._bad: dict[str, deque[float]] = {}
        self._last_ms = 0
        self._counter = 0

    def new_id(self, wall: int) -> tuple[int, int]:
        """Return milliseconds and counter of a new id; they rise even if the clock goes back."""
        if wall <= self._last_ms:
            self._counter += 1
        else:
            self._last_ms, self._counter = wall, 0
        return self._last_ms, self._counter

    def keep(self, action_id: str) -> None:
        self.last_added += 1
        self.kept[action_id] = None
        if len(self.kept) > _KEPT_MAX:
            del self.kept[next(iter(self.kept))]

    def bad_login(self, address: str, now: float) -> None:
        if len(self._bad) >= _ADDRESSES_MAX and address not in self._bad:
            self._bad = {one: times for one, times in self._bad.items() if now - times[-1] < _BAD_SECONDS}
            if len(self._bad) >= _ADDRESSES_MAX:
                del self._bad[next(iter(self._bad))]
        self._bad.setdefault(address, deque(maxlen=_BAD_LOGINS)).append(now)

    def is_brute_force(self, address: str, now: float) -> bool:
        times = self._bad.get(address)
        return times is not None and len(times) == _BAD_LOGINS and now - times[0] < _BAD_SECONDS


class ServerNode:
    """One connection; see the module. Failed logins are counted by the client's address."""

    def __init__(self, server: Server, address: str, now: float) -> None:
        self._server = server
        self._rules = server.rules
        self._address = address
        self.closed = ""  #: why the connection must be closed after the answers are sent; empty: it stays
        self.open = False  #: a ``connect`` was accepted
        self.node_id = ""
        self.client_id = ""
        self.headers: dict[str, Any] = {}  #: the last ones of the client
        self.base = 0  #: ms since 1970 that ids and times are relative to
        self._subprotocol = compact(self._rules.subprotocol).decode() if self._rules.subprotocol else ""
        self._remote_subprotocol: Any = 0
        self._last_sent: Number = 0
        self._early: list[tuple[bytes, Message]] = []
        self._early_bytes = 0
        self._waiting: deque[list[Any]] = deque()  # [deadline, number of answers due by then]
        self._active_at = now
        self._await(1, now)

    def receive(self, raw: bytes, now: float, wall: int) -> list[Received]:
        """Take a message, and return its result: none if it was buffered.

        After a successful ``connect``, the results of the buffered messages follow.
        """
        if self.closed:
            return []
        self._active_at = now
        if not self.open:
            self._early_bytes += len(raw)
            if self._early_bytes > self._rules.max_early:
                self.closed = f"connect: not accepted within {self._rules.max_early} bytes"
                return [Received(raw, None, [], [], self.closed)]
        try:
            message = parse(raw)
        except Refused as error:
            return [self._refused(raw, error)]
        if self.open:
            return [self._take(raw, message, wall)]
        if isinstance(message, Connect):
            return self._connect(raw, message, now, wall)
        if self._rules.strict_spec and not isinstance(message, Connected | Error):
            missed = Error("missed-auth", raw.decode()[:ECHOED])
            return [Received(raw, None, [pack(missed)], [], missed.type)]
        if isinstance(message, Connected | Error | Debug | Headers):
            return [self._take(raw, message, wall)]
        self._early.append((raw, message))
        return []

    def _refused(self, raw: bytes, error: Refused) -> Received:
        answer = error.error
        if isinstance(error, UnknownMessage):
            if error.message[0] == "duilian" and len(error.message) == 2 and not self._rules.strict_spec:
                greets = error.message[1] == _GREETING and self.open
                answers = [compact(["duilian", _ANSWER])] if greets else []
                return Received(raw, None, answers, [], str(error))
            if self._rules.strict_spec:
                answer = wrong_format(raw.decode("utf-8", "replace"))
        if not self._rules.strict_spec:
            self.closed = str(error)
        return Received(raw, None, [pack(answer)], [], str(error))

    def _connect(self, raw: bytes, message: Connect, now: float, wall: int) -> list[Received]:
        error = self._why_not(message, now)
        if error is not None:
            self.closed = error.type
            return [Received(raw, message, [pack(error)], [], error.type)]
        rules = self._rules
        self.open = True
        self.base = wall
        before = self._server.clients.get(self.client_id)
        if before is not None:
            before.closed = "zombie: the same client is connected again"
        self._server.clients[self.client_id] = self
        headers = rules.headers | ({"env": "development"} if rules.development else {})
        options = {"subprotocol": rules.subprotocol} if rules.subprotocol else {}
        answers = [pack(Headers(headers))] if headers else []
        answers.append(pack(Connected(PROTOCOL, rules.node_id, wall, wall, options)))
        self._answered()
        received = [Received(raw, message, answers, [])]
        early, self._early = self._early, []
        for one, waited in early:
            if not self.closed:
                received.append(self._take(one, waited, wall))
        return received

    def _why_not(self, message: Connect, now: float) -> Error | None:
        rules = self._rules
        if message.protocol < MIN_PROTOCOL:
            return Error("wrong-protocol", {"supported": MIN_PROTOCOL, "used": message.protocol})
        used = message.options.get("subprotocol")
        if used in (None, False, ""):
            used = 0
        if rules.minimum and falls_below(used, rules.minimum, rules.strict_spec):
            return Error("wrong-subprotocol", {"supported": rules.minimum, "used": used})
        if len(message.node_id) > _NODE_ID_MAX:
            return WRONG_CREDENTIALS
        user, client = parse_id(message.node_id)
        if "server" in (user, message.node_id):
            return WRONG_CREDENTIALS
        login = Login(user, message.node_id, message.options.get("token"), self.headers)
        try:
            good = rules.authenticate is None or rules.authenticate(login)
        except Exception:
            good = False
        if not good or self._server.is_brute_force(self._address, now):
            self._server.bad_login(self._address, now)
            return WRONG_CREDENTIALS
        self.node_id, self.client_id = message.node_id, client
        self._remote_subprotocol = used
        return None

    def _take(self, raw: bytes, message: Message, wall: int) -> Received:
        if isinstance(message, Sync):
            return self._sync(raw, message, wall)
        answers = []
        if isinstance(message, Synced):
            self._answered()
            self._last_sent = max(self._last_sent, message.synced)
        elif isinstance(message, Ping):
            answers.append(pack(Pong(self._server.last_added)))
        elif isinstance(message, Pong):
            self._answered()
        elif isinstance(message, Headers):
            self.headers = message.data
        elif isinstance(message, Connect):
            self.closed = "connect: a second one"
        # error and debug are for people; connected answers nothing that a server sends
        return Received(raw, message, answers, [], self.closed)

    def _sync(self, raw: bytes, message: Sync, wall: int) -> Received:
        server, base, own = self._server, self.base, self.node_id
        answers: list[bytes] = []
        outcomes: list[tuple[bytes, ...]] = []
        seen: set[str] = set()
        undone = 0
        poisoned = False  # the rest is undone with an action before
        for action, meta in message.entries:
            action_id = decode_id(meta["id"], base, own)
            if action_id in seen:  # still in the queue
                continue
            node = action_id.split(" ")[1]
            foreign = node != own and (len(node) > _NODE_ID_MAX or parse_id(node)[1] != self.client_id)
            if foreign or not meta.keys() <= ALLOWED_META:
                text = f'Action "{action_id}" was denied' if node == own else ""
                outcomes.append((self._undo(action, action_id, "denied", wall),))
                undone += 1
                answers += self._debug(text)
                continue
            seen.add(action_id)
            if poisoned:
                undone += 1
                outcomes.append((self._undo(action, action_id, "error", wall),))
                continue
            if action_id in server.kept:  # silently, as the protocol's text requires
                continue
            reason, debug = self._judged(action, action_id, meta)
            if not reason:
                if self._rules.keep_log:
                    server.keep(action_id)
                processed = {"id": action_id, "type": "logux/processed"}
                outcomes.append((self._own(compact(processed).decode(), wall),))
                continue
            undone += 1
            poisoned = True
            said = self._debug(debug)
            if reason == "unknownType":
                answers += said
                said = []
            outcomes.append((*said, self._undo(action, action_id, reason, wall)))
        answers.append(b'["synced",%s]' % compact(plain(message.added)))
        return Received(raw, message, answers, outcomes, undone=undone)

    def _judged(self, action: dict[str, Any], action_id: str, meta: dict[str, Any]) -> tuple[str, str]:
        """Return the reason to undo an action (empty: none) and a text for developers."""
        rules, kind = self._rules, action["type"]
        unknown = "unknownType", f"Action with unknown type {kind}"
        if kind.startswith("logux/"):
            if kind == "logux/subscribe" or (kind == "logux/unsubscribe" and "channel" not in action):
                return "wrongChannel", f"Wrong channel name {action.get('channel')}"
            return ("", "") if kind == "logux/unsubscribe" else unknown
        if rules.types is not None and kind not in rules.types:
            return unknown
        if rules.judge is None:
            return "", ""
        absolute = {"subprotocol": self._remote_subprotocol, **meta}
        absolute["id"], absolute["time"] = action_id, plain(meta["time"] + self.base)
        try:
            reason = rules.judge(action, absolute)
        except Exception as error:
            return "error", f"{type(error).__name__}: {error}"
        if reason == "unknownType":
            return unknown
        return reason, f'Action "{action_id}" was denied' if reason == "denied" else reason

    def _debug(self, text: str) -> list[bytes]:
        return [pack(Debug("error", text))] if text and self._rules.development else []

    def _own(self, action: str, wall: int) -> bytes:
        ms, counter = self._server.new_id(wall)
        shift = ms - self.base
        relative = f"[{shift},{counter}]" if counter else str(shift)
        subprotocol = f',"subprotocol":{self._subprotocol}' if self._subprotocol else ""
        added = max(self._server.last_added, self._last_sent)
        return f'["sync",{plain(added)},{action},{{"id":{relative},"time":{shift}{subprotocol}}}]'.encode()

    def _undo(self, action: dict[str, Any], action_id: str, reason: str, wall: int) -> bytes:
        undo = {"action": action, "id": action_id, "reason": reason, "type": "logux/undo"}
        return self._own(compact(undo).decode(), wall)

    def add(self, action: dict[str, Any], now: float, wall: int) -> bytes:
        """Return the message that sends an action of the server to this client."""
        message = self._own(compact(action).decode(), wall)
        self.sent(1, now)
        return message

    def sent(self, syncs: int, now: float) -> None:
        """Note that so many outcomes were sent: the client must answer each in time."""
        self._active_at = now
        if syncs:
            self._await(syncs, now)

    def _await(self, answers: int, now: float) -> None:
        if not self._rules.timeout:
            return
        deadline = now + self._rules.timeout
        if self._waiting and self._waiting[-1][0] >= deadline:
            self._waiting[-1][1] += answers
        else:
            self._waiting.append([deadline, answers])

    def _answered(self) -> None:
        """Count an answer for the oldest message that waits for one: answers do not name their message."""
        if self._waiting:
            oldest = self._waiting[0]
            oldest[1] -= 1
            if not oldest[1]:
                self._waiting.popleft()

    def next_timeout(self) -> float | None:
        if self.closed:
            return None
        times = [self._waiting[0][0]] if self._waiting else []
        if self._rules.ping and self.open:
            times.append(self._active_at + self._rules.ping)
        return min(times, default=None)

    def handle_timeout(self, now: float) -> list[bytes]:
        """Return the messages to send now: a ping, or the last words of a connection that has timed out."""
        rules = self._rules
        if self.closed:
            return []
        if self._waiting and self._waiting[0][0] <= now:
            self.closed = "timeout"
            return [pack(Error("timeout", round(rules.timeout * 1000)))] if rules.strict_spec else []
        if rules.ping and self.open and now >= self._active_at + rules.ping:
            self.sent(1, now)
            self._active_at = float("inf")  # only one ping until the next message
            return [pack(Ping(self._server.last_added))]
        return []

    def connection_lost(self) -> None:
        self.closed = self.closed or "lost"
        self._early.clear()
        if self._server.clients.get(self.client_id) is self:
            del self._server.clients[self.client_id]


# -- the node id and the subprotocol of a client that logs in


def parse_id(node_id: str) -> tuple[str | None, str]:
    """Return the user of a node id (``user:client:tab``), and ``user:client``, which servers distinguish."""
    user, *more = node_id.split(":", 2)
    return (user, f"{user}:{more[0]}") if more else (None, user)


def falls_below(used: Any, minimum: int | str, strict_spec: bool = False) -> bool:
    """Return whether an application's subprotocol, of any type, is too old.

    With `strict_spec`, versions are texts in SemVer (protocol text, "connect"). Otherwise they are compared
    as by the released server, with JavaScript's ``<``: no value that is not numeric is less than 3.
    """
    if strict_spec:
        return _semver(used) < _semver(minimum)
    if used is None or used == "":
        used = 0
    if type(used) is str and type(minimum) is str:
        return used < minimum
    return _to_number(used) < _to_number(minimum)


def _to_number(value: Any) -> float:
    """Convert like JavaScript's Number(): values that are not numeric give NaN, so comparisons are false."""
    if isinstance(value, list):
        value = ",".join("" if one is None else one if isinstance(one, str) else str(one) for one in value)
    if isinstance(value, str):
        value = value.strip()
        if not value:
            return 0.0
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value, re.ASCII):
            return int(value, 16) if re.fullmatch(r"0[xX][0-9a-fA-F]{1,13}", value) else math.nan
    try:
        return float(value)
    except (TypeError, OverflowError):
        return math.nan


def _semver(version: Any) -> tuple[Any, ...]:
    """Return a sort key of a version; an integer is a major version."""
    if type(version) is int:
        version = f"{version}.0.0"
    match = _SEMVER.fullmatch(version[:256]) if type(version) is str else None
    if match is None:
        return (-1,)
    major, minor, patch, before = match.groups()
    words = before.split(".") if before else ()
    order = tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in words)
    return int(major), int(minor), int(patch), not before, order  # a version comes after its pre-releases
