"""Options of Logux."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

from logclient.config.documents import DocumentConfig, proxy_option
from logclient.config.hosts import echo
from logclient.config.option import option
from logclient.config.readers import Reader, choice, duration, file_path, integer, secret
from logclient.config.secrets import Secret, absolute_source, read_secret
from logclient.errors import ConfigError

_DAY = 86400.0
_MAX_INTEGER = (1 << 53) - 1
"""The largest that JavaScript keeps exactly."""
_HANDSHAKE_HEADERS = frozenset((
    "host", "connection", "upgrade", "content-length", "transfer-encoding", "te", "trailer", "expect",
    "keep-alive",
))  # fmt: skip
_MAX_HEADER_BYTES = 16384
_HEADER_NAME = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]{1,256}")


def _text(pattern: str, rule: str) -> Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"must be {rule}, got {echo(value)}")
        return value

    return Reader("text", read)


def _subprotocol(value: Any) -> int | str:
    """Read a number, or a version such as 1.0.0, which the protocol's text has (see strict_spec)."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= 64:
        numbers = value.partition("+")[0].partition("-")[0].split(".")
        if len(numbers) == 3 and all(number.isdigit() for number in numbers):
            return value
    try:
        number: int = integer(0, _MAX_INTEGER)(value)
    except ValueError:
        raise ValueError(f"must be a whole number, or a version such as 1.0.0, got {echo(value)}") from None
    return number


def _header_lines(source: str) -> list[tuple[str, str]]:
    """Read text with a line ``Name: value`` for each header."""
    lines = [line.partition(":") for line in read_secret(source).reveal().split("\n") if line.strip()]
    if not all(colon for _, colon, _ in lines):
        raise ValueError("each line must be Name: value")
    return [(name.strip(), content.strip()) for name, _, content in lines]


def _header_of_lines(source: str, name: str) -> str:
    for found, content in _header_lines(source):
        if found.lower() == name.lower():
            return content
    raise ValueError("it is not there any more")


def _header_value(name: str, content: str) -> str:
    if not all(" " <= char <= "~" or char == "\t" for char in content) or not content.strip():
        raise ValueError(f"the value of {name} must be printable ASCII in one line")
    return content.strip()


def _header_of(name: str, given: Any) -> Secret:
    """Read the value of a header: the value itself, ``env:NAME``, ``file:PATH`` or a function."""
    try:
        inner = read_secret(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None

    def read() -> str:
        try:
            inner.renew()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return _header_value(name, inner.reveal())

    return Secret(_header_value(name, inner.reveal()) if inner.is_known else None, read=read)


def _http_headers(value: Any) -> tuple[tuple[str, Secret], ...]:
    """Read a mapping, or text with a line ``Name: value`` for each header."""
    pairs: list[tuple[Any, Any]]
    if isinstance(value, str):
        read = partial(_header_of_lines, absolute_source(value))
        pairs = [(name, Secret(content, read=partial(read, name))) for name, content in _header_lines(value)]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise ValueError(
            "must be a mapping of names to values, or env:NAME or file:PATH of lines Name: value"
        )
    found: dict[str, tuple[str, Secret]] = {}
    for name, given in pairs:
        # A wrong name is not shown: it may be a value in the wrong place.
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValueError("a name must be 1 to 256 ASCII letters, digits and !#$%&'*+-.^_`|~")
        lower = name.lower()
        if lower in _HANDSHAKE_HEADERS or lower.startswith(("sec-websocket-", "proxy-")):
            raise ValueError(f"{name} is the WebSocket handshake's own")
        if lower in found:
            raise ValueError(f"{name} is given twice")
        found[lower] = (name, _header_of(name, given))
    if sum(len(name) + len(content.reveal()) for name, content in found.values()) > _MAX_HEADER_BYTES:
        raise ValueError(f"must have {_MAX_HEADER_BYTES} bytes together at most")
    return tuple(found.values())


subprotocol_version = Reader("version", _subprotocol)


class LoguxConfig(DocumentConfig):
    """The configuration of a Logux client."""

    title = "Logux"
    credentials = ("token", "http_headers")
    max_message: ClassVar[int] = 16 << 20
    """A longer message from the server ends the connection."""
    window_bytes: ClassVar[int] = 256 << 10
    """Largest size of the actions in a sync message, without ids; a longer action is sent alone."""

    window: int = option(integer(1, 10_000), "100", "Largest number of actions in a sync message.")
    inflight: int = option(
        integer(1, 64),
        "4",
        "Largest number of sync messages whose actions have no outcome yet. By default it follows the round "
        "trip; see logux.md. A value fixes it.",
        shown="4 to 64",
    )
    user: str = option(
        _text(
            r"(?!server\Z)[^\0- :\x7f\ud800-\udfff]{1,128}",
            "1 to 128 characters without a colon or a space, and not server",
        ),
        "false",
        "User of the connection, the first part of the node id; false: not logged in.",
    )
    subprotocol: int | str = option(
        subprotocol_version,
        "1",
        "Version of the application's own protocol, which the server may refuse; 0: none is sent.",
    )
    action_type: str = option(
        _text(
            r"(?!logux/)[^\0-\x1f\x7f\ud800-\udfff]{1,256}", "1 to 256 characters, and not begin with logux/"
        ),
        "log/add",
        "Type of the actions that events become.",
    )
    ack: str = option(
        choice("processed", "synced"),
        "processed",
        "What acked means. processed: the server's code has processed the action; synced: the server has "
        "received it.",
    )
    on_doubt: str = option(
        choice("new_client", "same", "drop"),
        "new_client",
        "What happens to actions without an answer after a break: new_client adds them again under a new "
        "client id, same under the same id, drop fails them as doubt. See logux.md.",
    )
    ping: float = option(duration(0.001, 3600), "10s", "Send a ping after this time without any message.")
    processing_timeout: float = option(
        duration(0.001, _DAY),
        "20s",
        "If the server processes none of the oldest actions for this time, its queue counts as blocked: "
        "unanswered actions are then treated as after a break, under a new client id.",
    )
    deflate: str = option(choice("off", "on"), "off", "Compress WebSocket messages if the server agrees.")
    proxy: str = proxy_option("env")
    http_headers: tuple[tuple[str, Secret], ...] | None = option(
        Reader("headers", _http_headers, secret=True),
        None,
        "Further headers of the HTTP request that opens the WebSocket, such as Cookie, Authorization or "
        "Origin. As a keyword a mapping; in a URL env:NAME or file:PATH with lines Name: value. Values are "
        "secrets.",
    )
    state: str | None = option(
        file_path,
        None,
        "File in which one client keeps its client id, and the number of the last action received, across "
        "restarts.",
    )
    token: Secret | None = option(secret, None, "Credentials of the connection.")

    @classmethod
    def complete(cls, scheme: str, values: dict[str, Any], given: set[str]) -> None:
        """Check the form of the subprotocol, which strict_spec decides."""
        super().complete(scheme, values, given)
        strict = values["strict_spec"]
        if strict and "subprotocol" not in given:
            values["subprotocol"] = f"{values['subprotocol']}.0.0"
        if strict != isinstance(values["subprotocol"], str):
            raise ConfigError(
                "subprotocol: a version such as 1.0.0 goes with strict_spec, else a whole number"
            )

    @property
    def ledger_fields(self) -> dict[str, str]:
        return {**super().ledger_fields, "ack": self.ack}

    @property
    def batch_limits(self) -> tuple[int, int]:
        return self.window, self.window_bytes

    def for_tests(self) -> Self:
        """Return a copy for clients that only test a server."""
        return super().for_tests().replace(state=None)
