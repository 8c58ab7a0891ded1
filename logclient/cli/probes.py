"""What ``logclient check`` asks a server of each protocol."""

from __future__ import annotations

from collections.abc import Callable
from os import urandom
from struct import Struct
from typing import Any

from logclient._ext.plog import datagrams
from logclient.errors import ConfigError, CredentialError, ProtocolError
from logclient.evidence.frames.logux import as_json
from logclient.logjam.messages import Meta, unit
from logclient.logux import messages
from logclient.plog.messages import command

_RUN = Struct("<II")  # the head of a run of plog datagrams
_MAX_TEXT = 256  # characters of what a Logux server says of itself


class Probe:
    """What ``logclient check`` asks a server of one protocol. No question is an event."""

    silence: str
    """What a silence may mean."""
    may_be_silent = False
    """Whether there are servers that answer only events."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        """The server's facts about itself; ``time_ms`` is its clock."""

    def ask(self) -> list[bytes]:
        """Return the next question; none where there are no answers. Called again after an answer."""
        raise NotImplementedError

    def insist(self) -> list[bytes]:
        """Return the bytes to send after a while without an answer."""
        return []

    def begin_again(self) -> bool:
        """Take another form of the question, for a new connection; return whether there is one."""
        return False

    def receive_data(self, data: bytes) -> bool | None:
        """Return True for an answer of the protocol, False for any other, None while it is incomplete.

        Raises:
            CredentialError: the server does not accept the token.
            ProtocolError: the server refuses the connection for another reason.
        """
        raise NotImplementedError


class LumberjackProbe(Probe):
    """Questions that a Lumberjack reader answers without taking them for events.

    The first is an empty window, which Logstash acknowledges at once, with 0. The server of go-lumber answers
    to nothing but events. Before silence counts as such, the head of another empty window is sent. Its number
    ends in line feeds, because an HTTP server waits for them before it complains.
    """

    silence = "it may be one that answers only events, as go-lumber's does: leave out --no-event"
    may_be_silent = True

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._version = str(config.version).encode()
        self._data = b""

    def ask(self) -> list[bytes]:
        self._data = b""
        return [self._version + b"W\0\0\0\0"]

    def insist(self) -> list[bytes]:
        return [self._version + b"W\0\0\n\n"]

    def receive_data(self, data: bytes) -> bool | None:
        self._data = (self._data + data)[:6]
        if self._data[:1] not in (b"", b"1", b"2") or self._data[1:2] not in (b"", b"A"):
            return False
        return True if len(self._data) == 6 else None


class LogjamProbe(Probe):
    """A ping, which is no event. A PUSH socket only tells that it is connected."""

    silence = "a logjam-device answers to a ping at once"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._app_env = config.path[1:].encode()
        self._push = config.scheme == "logjam+push"
        self._data = b""

    def ask(self) -> list[bytes]:
        self._data = b""
        if self._push:
            return []
        return [unit([b"", b"ping", self._app_env, b"{}", Meta().pack()])]

    def receive_data(self, data: bytes) -> bool | None:
        self._data += data
        expected = unit([b"ping", b"200 OK", b""])[:-4]
        if self._data[: len(expected)] != expected[: len(self._data)]:
            return False
        rest = self._data[len(expected) :]
        if len(rest) < 4:
            return None
        size = int.from_bytes(rest[:4], "little")
        return None if len(rest) - 4 < size < 1024 else len(rest) - 4 == size


class PlogProbe(Probe):
    """Asks whether a plog server listens, by pings."""

    silence = "no server listens there, or UDP is blocked on the way"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._lines = config.scheme == "plog+tcp"
        self._payload = b""
        self._asked = 0

    def ask(self) -> list[bytes]:
        """Return the next ping; nothing over TCP, which has no commands."""
        if self._lines:
            return []
        self._asked += 1
        self._payload = b"%x-%d" % (id(self), self._asked)
        return self.insist()

    def insist(self) -> list[bytes]:
        """Return the last question again: a datagram may be lost."""
        ping = command("ping", self._payload)
        return [_RUN.pack(len(ping), len(ping)) + ping]

    def receive_data(self, data: bytes) -> bool | None:
        for datagram in datagrams(data):
            if not datagram.startswith(b"PONG"):
                return False
            if datagram[4:] == self._payload:
                return True
        return None


class LoguxProbe(Probe):
    """Asks whether a Logux server listens, by `connect` and pings."""

    silence = "a Logux server answers to connect at once"

    def __init__(self, config: Any) -> None:
        super().__init__()
        options: dict[str, Any] = {}
        self._secret = "" if config.token is None else config.token.reveal()
        if self._secret:
            options["token"] = self._secret
        if config.subprotocol:
            options["subprotocol"] = config.subprotocol
        # Servers close other connections of the same client id.
        node_id = f"{config.user}:{urandom(8).hex()}:check"
        self._connect = messages.Connect(messages.PROTOCOL, node_id, 0, options)
        self._strict = isinstance(config.subprotocol, str)  # with strict_spec
        self._asked = 0

    def ask(self) -> list[bytes]:
        self._asked += 1
        return [messages.pack(self._connect if self._asked == 1 else messages.Ping(0))]

    def begin_again(self) -> bool:
        """Use protocol 4's form, if the last connection ended without an answer to `connect`."""
        used = self._connect.options.get("subprotocol")
        if self._asked > 1 or self._strict or not isinstance(used, int):
            return False
        self._asked = 0
        self._connect = self._connect._replace(
            options={**self._connect.options, "subprotocol": f"{used}.0.0"}
        )
        return True

    def receive_data(self, data: bytes) -> bool | None:
        try:
            message = messages.parse(data)
        except messages.Refused:
            return False
        if isinstance(message, messages.Error):
            if message.type == "wrong-credentials":
                raise CredentialError("the server does not accept the token (wrong-credentials)")
            older = messages.is_of_protocol_4(message) and not self._strict
            words = messages.describe_versions(4) if older else "the server refuses the connection"
            raise ProtocolError(f"{words}: {messages.describe(message, self._secret)}")
        if isinstance(message, messages.Headers) and "env" in message.data:
            self.about["env"] = str(message.data["env"])[:_MAX_TEXT]
        if isinstance(message, messages.Connected):
            if message.protocol < messages.MIN_PROTOCOL:
                raise ProtocolError(messages.describe_versions(message.protocol))
            self.about["node_id"] = message.node_id[:_MAX_TEXT]
            self.about["protocol"] = message.protocol
            if "subprotocol" in message.options:
                used = message.options["subprotocol"]
                self.about["subprotocol"] = used if isinstance(used, int) else as_json(used)
            self.about["time_ms"] = message.end
            return True
        if isinstance(message, messages.Connect):
            return False
        return True if isinstance(message, messages.Pong) and self._asked > 1 else None


PROBES: dict[str, Callable[[Any], Probe]] = {
    "logjam": LogjamProbe,
    "logux": LoguxProbe,
    "lumberjack": LumberjackProbe,
    "plog": PlogProbe,
}


def probe_of(config: Any) -> Probe:
    """Return a probe for a server; ConfigError: there is none for its protocol."""
    make = PROBES.get(config.protocol)
    if make is None:
        raise ConfigError(f"protocol: {config.protocol!r} cannot be checked: {', '.join(PROBES)}")
    return make(config)
