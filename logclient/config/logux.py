"""Options of Logux."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from logclient.config.common import Config
from logclient.config.echo import echo
from logclient.config.option import option, redeclared
from logclient.config.readers import Reader, boolean, choice, duration, file_path, integer, secret, size
from logclient.config.secrets import Secret, read_secret
from logclient.errors import ConfigError

__all__ = ["LoguxConfig", "subprotocol_version"]

_DAY = 86400.0
_MAX_INTEGER = (1 << 53) - 1
"""The largest that JavaScript keeps exactly."""
_HANDSHAKE_HEADERS = frozenset((
    "host", "connection", "upgrade", "content-length", "transfer-encoding", "te", "trailer", "expect",
    "keep-alive",
))  # fmt: skip
_MAX_HEADER_BYTES = 16384


def _user(value: Any) -> str:
    """Read the first part of a node id."""
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= 128
        or value == "server"
        or any(char <= " " or char in ":\x7f" or 0xD800 <= ord(char) < 0xE000 for char in value)
    ):
        raise ValueError(
            f"must be 1 to 128 characters without a colon or a space, and not server, got {echo(value)}"
        )
    return value


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


def _action_type(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= 256
        or value.startswith("logux/")
        or any(char < " " or char == "\x7f" or 0xD800 <= ord(char) < 0xE000 for char in value)
    ):
        raise ValueError(f"must be 1 to 256 characters, and not begin with logux/, got {echo(value)}")
    return value


def _http_headers(value: Any) -> tuple[tuple[str, Secret], ...]:
    """Read a mapping, or text with a line ``Name: value`` for each header."""
    if isinstance(value, str):
        lines = [line.partition(":") for line in read_secret(value).reveal().split("\n") if line.strip()]
        if not all(colon for _, colon, _ in lines):
            raise ValueError("each line must be Name: value")
        pairs: list[tuple[Any, Any]] = [(name.strip(), Secret(content.strip())) for name, _, content in lines]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise ValueError(
            "must be a mapping of names to values, or env:NAME or file:PATH of lines Name: value"
        )
    found: dict[str, tuple[str, Secret]] = {}
    for name, given in pairs:
        # A wrong name is not shown: it may be a value in the wrong place.
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= 256
            or not all(char.isascii() and (char.isalnum() or char in "!#$%&'*+-.^_`|~") for char in name)
        ):
            raise ValueError("a name must be 1 to 256 ASCII letters, digits and !#$%&'*+-.^_`|~")
        lower = name.lower()
        if lower in _HANDSHAKE_HEADERS or lower.startswith(("sec-websocket-", "proxy-")):
            raise ValueError(f"{name} is the WebSocket handshake's own")
        if lower in found:
            raise ValueError(f"{name} is given twice")
        try:
            content = read_secret(given).reveal()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if not all(" " <= char <= "~" or char == "\t" for char in content) or not content.strip():
            raise ValueError(f"the value of {name} must be printable ASCII in one line")
        found[lower] = (name, Secret(content.strip()))
    if sum(len(name) + len(content.reveal()) for name, content in found.values()) > _MAX_HEADER_BYTES:
        raise ValueError(f"must have {_MAX_HEADER_BYTES} bytes together at most")
    return tuple(found.values())


subprotocol_version = Reader("version", _subprotocol)


class LoguxConfig(Config):
    """The configuration of a Logux client."""

    title = "Logux"

    window: int = option(
        integer(1, 10_000),
        "100",
        "Actions in a sync message at most.",
    )
    window_bytes: int = option(
        size(1024, 64 << 20),
        "256KiB",
        "Bytes of actions in a sync message at most, without ids; a longer action travels alone.",
    )
    inflight: int = option(
        integer(1, 64),
        "4",
        "Sync messages sent whose actions have not all got their outcome.",
    )
    user: str = option(
        Reader("text", _user),
        "false",
        "The user of the connection, the first part of the node id; false: nobody is logged in.",
    )
    subprotocol: int | str = option(
        subprotocol_version,
        "1",
        "Version of the application's own protocol, which the server may refuse; 0: say none.",
    )
    strict_spec: bool = option(
        boolean,
        "false",
        "Speak to the letter of the protocol's text where released servers differ; see logux.md.",
    )
    action_type: str = option(
        Reader("text", _action_type),
        "log/add",
        "The type of actions that are made of events.",
    )
    ack: str = option(
        choice("processed", "synced"),
        "processed",
        "What acked means: processed by the server's code, or only received.",
    )
    on_doubt: str = option(
        choice("new_client", "same", "drop"),
        "new_client",
        "What happens after a break to actions that were sent and have no answer: they are added again under "
        "a new client id, under the same, or fail as doubt; see logux.md.",
    )
    ping: float = option(
        duration(0.001, 3600),
        "10s",
        "A ping goes out when nothing was sent or heard for so long.",
    )
    jam_after: float = option(
        duration(0.001, _DAY),
        "20s",
        "A server that has received actions and processes none of the oldest for so long has a jammed queue: "
        "what is in doubt is handled, under a new client id.",
    )
    deflate: str = option(
        choice("off", "on"),
        "off",
        "Compress WebSocket messages where the server agrees.",
    )
    max_message: int = option(
        size(1024, 1 << 30),
        "16MiB",
        "A longer message from the server ends the connection.",
    )
    proxy: str = option(
        # The value is not shown: it may be a proxy with its password.
        choice("env", "none", instead="the environment names it, as in https_proxy"),
        "env",
        "env: through the proxy that the environment names, as in https_proxy and no_proxy; none: directly.",
    )
    http_headers: tuple[tuple[str, Secret], ...] | None = option(
        Reader("headers", _http_headers, secret=True),
        None,
        "More headers of the HTTP request that opens the WebSocket, such as Cookie, Authorization, Origin: "
        "as a keyword a mapping; in a URL env:NAME or file:PATH, each line Name: value. Values are secrets.",
    )
    state: str | None = option(
        file_path,
        None,
        "A file in which one client keeps its client id and what it has received, over restarts.",
    )
    slow_min: float = redeclared(Config, "slow_min", tls_only=False)
    slow_max: float = redeclared(Config, "slow_max", tls_only=False)
    token: Secret | None = option(
        secret,
        None,
        "Credentials of the connection.",
    )

    @classmethod
    def complete(cls, scheme: str, values: dict[str, Any], given: set[str]) -> None:
        """Check the form of the subprotocol, which strict_spec decides.

        Raises:
            ConfigError: Options contradict each other.
        """
        super().complete(scheme, values, given)
        strict = values["strict_spec"]
        if strict and "subprotocol" not in given:
            values["subprotocol"] = f"{values['subprotocol']}.0.0"
        if strict != isinstance(values["subprotocol"], str):
            raise ConfigError(
                "subprotocol: a version such as 1.0.0 goes with strict_spec, else a whole number"
            )

    @property
    def batch_limits(self) -> tuple[int, int]:
        """A sync message."""
        return self.window, self.window_bytes

    def without_files(self) -> Self:
        """Return a copy that keeps no ledger and no state: for clients that only test a server."""
        return super().without_files().replace(state=None)
