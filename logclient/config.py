"""A URL and keywords become validated options.

``scheme://host[:port][,host[:port]...][/path][?option=value[&option=value...]]``

The parser is written by hand: ``urllib.parse`` costs every importing program milliseconds, knows no
list of hosts, and accepts what must be an error here. Every error is one line that names the field
and the rule; a value is echoed only where it cannot be part of a password.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from logclient import registry
from logclient.errors import ConfigError

__all__ = [
    "OPTIONS",
    "Config",
    "Option",
    "Secret",
    "dns_name",
    "host_port",
    "is_key",
    "options_markdown",
    "parse",
    "parse_duration",
    "parse_size",
]

Endpoint = tuple[str, int]


class Secret:
    """A value that no repr, log line, report or pickle shows.

    Args:
        value: the secret.
        source: where it was read, as ``env:NAME`` or ``file:PATH``. A pickle holds this alone, and who
            loads it reads the value anew.
    """

    __slots__ = ("_value", "source")

    def __init__(self, value: str, source: str = "") -> None:
        self._value = value
        self.source = source

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[Callable[[str], Secret], tuple[str]]:
        if not self.source:
            raise TypeError("a secret is not pickled; give it as env:NAME or file:PATH, to be read anew")
        return _secret_text, (self.source,)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self


T = TypeVar("T")


class Option(NamedTuple):
    """One row of the table of options.

    ``read`` turns what the user gave (a string from the URL; any plain value from a keyword) into
    the value, or raises ValueError with the rule it breaks.
    """

    name: str
    kind: str  # as shown in the docs
    read: Callable[[Any], Any]
    default: Any
    shown: str  # the default as a user would write it
    help: str
    protocols: tuple[str, ...] = ()  # empty: every protocol; "+tls": schemes with TLS
    secret: bool = False


# -- readers: one per kind of value. Each raises ValueError with the rule alone; the caller puts the
# option's name before it.

_TRUE = frozenset(("true", "yes", "on", "1"))
_FALSE = frozenset(("false", "no", "off", "0"))
_TIMES = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {
    "": 1, "b": 1,
    "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3,
}  # fmt: skip
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50, "FATAL": 50}
_NO_LEVEL = 60  # above every level the hand-off knows (it keeps levelno // 10, at most 5)


def _echo(value: object) -> str:
    """The value as an error shows it: short, and without what may be the password of a URL."""
    text = repr(value)
    before, at, after = text.rpartition("@")
    if at:
        scheme, mark, _ = before.partition("://")
        text = f"{scheme + mark if mark else before[:1]}***@{after}"
    return text if len(text) <= 40 else text[:37] + "..."


def _number(text: str) -> float | None:
    """ASCII digits with at most one point; None for anything else (no signs, no exponents)."""
    whole, point, part = text.partition(".")
    digits = whole + part
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18 or (point and not part):
        return None
    return float(text)


def _split_unit(text: str) -> tuple[str, str]:
    stripped = text.strip()
    end = len(stripped)
    while end and not (stripped[end - 1].isdigit() or stripped[end - 1] == "."):
        end -= 1
    return stripped[:end], stripped[end:].strip().lower()


def parse_duration(value: object) -> float:
    """Seconds from ``5``, ``5s``, ``200ms``, ``5m``, ``1.5h``, or a number.

    Raises:
        ValueError: with the rule.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value < 1e15:
            raise ValueError(f"must be a duration of 0 or more, got {_echo(value)}")
        return float(value)
    if isinstance(value, str):
        text, unit = _split_unit(value)
        number = _number(text)
        if number is not None and unit in _TIMES:
            return number * _TIMES[unit]
    raise ValueError(f"must be a duration such as 5s, 200ms or 5m, got {_echo(value)}")


def parse_size(value: object) -> int:
    """Bytes from ``1048576``, ``64MiB``, ``1k``, or a number.

    k, M, G and KiB, MiB, GiB count in 1024, kB, MB and GB in 1000.

    Raises:
        ValueError: with the rule.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        text, unit = _split_unit(value)
        number = _number(text)
        if number is not None and unit in _SIZES:
            size = number * _SIZES[unit]
            if size == int(size):
                return int(size)
    raise ValueError(f"must be a size in bytes such as 65536 or 64MiB, got {_echo(value)}")


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str):
            digits = value.strip().replace("_", "")
            if digits.isascii() and digits.isdigit() and len(digits) <= 18:
                number = int(digits)
        if number is None or not low <= number <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, got {_echo(value)}")
        return number

    return read


def _size(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        size = parse_size(value)
        if not low <= size <= high:
            raise ValueError(f"must be from {low} to {high} bytes, got {_echo(value)}")
        return size

    return read


def _duration(low: float, high: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        seconds = parse_duration(value)
        if not low <= seconds <= high:
            raise ValueError(f"must be from {_seconds(low)} to {_seconds(high)}, got {_echo(value)}")
        return seconds

    return read


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_or_none(value: Any) -> Any:
        return None if value is None or value == "none" else read(value)

    return read_or_none


class _choice:
    """One of these names.

    Args:
        hint: what an error says in place of the value, which may hold a secret.
    """

    __slots__ = ("hint", "names")

    def __init__(self, *names: str, hint: str = "") -> None:
        self.names = names
        self.hint = hint

    def __call__(self, value: Any) -> str:
        if value not in self.names:
            found = f"; {self.hint}" if self.hint else f", got {_echo(value)}"
            raise ValueError(f"must be one of {', '.join(self.names)}{found}")
        return str(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else str(value) if value in (0, 1) else ""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"must be true or false, got {_echo(value)}")


def _level(value: Any) -> int:
    if value is None:
        return _NO_LEVEL
    if isinstance(value, str):
        name = value.strip().upper()
        if name == "NONE":
            return _NO_LEVEL
        if name in _LEVELS:
            return _LEVELS[name]
        if name.isascii() and name.isdigit() and len(name) <= 3:
            value = int(name)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NO_LEVEL:
        return value
    raise ValueError(f"must be a level name, a number from 0 to {_NO_LEVEL} or none, got {_echo(value)}")


def _directory(value: Any) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"must be the path of a directory, got {_echo(value)}")
    return path


def _path(value: Any) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"must be a path, got {_echo(value)}")
    return path


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, got {_echo(value)}")
    return value


def _names(value: Any) -> tuple[str, ...]:
    """From a URL with commas between them; from a keyword also as a list."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"must be names with commas between them, got {_echo(value)}")
    return tuple(part.strip() for part in parts if part.strip())


def is_key(value: object) -> bool:
    """Whether it is a CURVE key as text: 40 characters, of those that Z85 has."""
    return (
        isinstance(value, str)
        and len(value) == 40
        and all(char.isascii() and (char.isalnum() or char in ".-:+=^!/*?&<>()[]{}@%$#") for char in value)
    )


def _z85(value: Any) -> str:
    if not is_key(value):
        raise ValueError(f"must be a key of 40 characters of Z85, got {_echo(value)}")
    return str(value)


def _user(value: Any) -> str:
    """The first part of a node id."""
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= 128
        or value == "server"
        or any(char <= " " or char in ":\x7f" or 0xD800 <= ord(char) < 0xE000 for char in value)
    ):
        raise ValueError(
            f"must be 1 to 128 characters without a colon or a space, and not server, got {_echo(value)}"
        )
    return value


def _subprotocol(value: Any) -> int | str:
    """A number, or (the protocol's text, see strict_spec) a version such as 1.0.0."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= 64:
        numbers = value.partition("+")[0].partition("-")[0].split(".")
        if len(numbers) == 3 and all(number.isdigit() for number in numbers):
            return value
    try:
        return _integer(0, (1 << 53) - 1)(value)
    except ValueError:
        pass
    raise ValueError(f"must be a whole number, or a version such as 1.0.0, got {_echo(value)}")


def _action_type(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= 256
        or value.startswith("logux/")
        or any(char < " " or char == "\x7f" or 0xD800 <= ord(char) < 0xE000 for char in value)
    ):
        raise ValueError(f"must be 1 to 256 characters, and not begin with logux/, got {_echo(value)}")
    return value


def _host(value: Any) -> str:
    """A name or an address, as in a certificate."""
    name = value.rstrip(".") if isinstance(value, str) else ""
    if not name or len(name) > 253 or name[0] == "." or not all(c.isalnum() or c in "._-:" for c in name):
        raise ValueError(f"must be a host name or an address, got {_echo(value)}")
    dns_name(name)
    return name


# Letters that IDNA 2003 takes for others: such a name may be somebody else's.
_OTHERS_BEFORE = frozenset("\u00df\u1e9e\u03c2")


def dns_name(host: str) -> bytes:
    """The name of a host as the DNS has it, by IDNA 2008; an address as it is.

    Without the package idna this is Python's own codec, IDNA 2003. The two differ in a few letters, so a name
    with one of these is refused then.

    Raises:
        ValueError: it is none, or the package is needed.
    """
    if host.isascii():
        return host.encode()
    try:
        import idna
    except ImportError:
        if not _OTHERS_BEFORE.isdisjoint(host):
            needs = 'needs IDNA 2008, and the package idna for it: pip install "logclient[idna]"'
            raise ValueError(f"{_echo(host)} {needs}") from None
        return _spelled(host, lambda label: label.encode("idna"))
    return _spelled(host, lambda label: idna.encode(label, uts46=True))


def _spelled(host: str, spell: Callable[[str], bytes]) -> bytes:
    try:
        return b".".join(label.encode() if label.isascii() else spell(label) for label in host.split("."))
    except UnicodeError:
        raise ValueError(f"{_echo(host)} is no host name") from None


def _secret_text(value: Any) -> Secret:
    """A keyword's value, which may be the secret itself; see `_secret_from_url` for the URL's."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("must be the secret, env:NAME or file:PATH")
    if value.startswith("env:"):
        found = os.environ.get(value[4:])
        if not found:
            raise ValueError(f"environment variable {_echo(value[4:])} is not set")
        return Secret(found, value)
    if value.startswith("file:"):
        try:
            with open(value[5:], encoding="utf-8") as file:
                text = file.read(65537).rstrip("\r\n")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "is no UTF-8 text"
            raise ValueError(f"file {_echo(value[5:])} cannot be read: {why}") from None
        if not text or len(text) > 65536:
            raise ValueError(f"file {_echo(value[5:])} must hold 1 to 65536 characters")
        return Secret(text, value)
    return Secret(value)


def _secret_from_url(value: str, read: Callable[[Any], Any] = _secret_text) -> Any:
    if not value.startswith(("env:", "file:")):
        raise ValueError("must not be written in a URL; give env:NAME, file:PATH or a keyword")
    return read(value)


_HTTP_OWNED = frozenset((
    "host", "connection", "upgrade", "content-length", "transfer-encoding", "te", "trailer", "expect",
    "keep-alive",
))  # fmt: skip
_HTTP_MAX = 16384


def _http_headers(value: Any) -> tuple[tuple[str, Secret], ...]:
    """A mapping; or text with a line ``Name: value`` for each."""
    if isinstance(value, str):
        lines = [line.partition(":") for line in _secret_text(value).reveal().split("\n") if line.strip()]
        if not all(colon for _, colon, _ in lines):
            raise ValueError("each line must be Name: value")
        pairs: list[tuple[Any, Any]] = [(name.strip(), Secret(text.strip())) for name, _, text in lines]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise ValueError(
            "must be a mapping of names to values, or env:NAME or file:PATH of lines Name: value"
        )
    found: dict[str, tuple[str, Secret]] = {}
    for name, given in pairs:
        # Not echoed when it is no name: it may be a value in the wrong place.
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= 256
            or not all(char.isascii() and (char.isalnum() or char in "!#$%&'*+-.^_`|~") for char in name)
        ):
            raise ValueError("a name must be 1 to 256 ASCII letters, digits and !#$%&'*+-.^_`|~")
        lower = name.lower()
        if lower in _HTTP_OWNED or lower.startswith(("sec-websocket-", "proxy-")):
            raise ValueError(f"{name} is the WebSocket handshake's own")
        if lower in found:
            raise ValueError(f"{name} is given twice")
        try:
            text = _secret_text(given).reveal()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if not all(" " <= char <= "~" or char == "\t" for char in text) or not text.strip():
            raise ValueError(f"the value of {name} must be printable ASCII in one line")
        found[lower] = (name, Secret(text.strip()))
    if sum(len(name) + len(text.reveal()) for name, text in found.values()) > _HTTP_MAX:
        raise ValueError(f"must have {_HTTP_MAX} bytes together at most")
    return tuple(found.values())


def _seconds(value: float) -> str:
    return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:g}s"


_LJ = ("lumberjack",)
_LOGJAM = ("logjam",)
_PLOG = ("plog",)
_LOGUX = ("logux",)
_DATAGRAMS = frozenset(("mtu", "unboxed", "topic", "tags", "pace", "burst", "pace_bytes", "feedback"))
_TLS = ("+tls",)
_SLOW = ("+tls", "logjam", "logux")
_DAY = 86400.0

_TABLE = (
    Option("max_events", "number", _integer(1, 100_000_000), 250_000, "250000",
           "Events held at most: queued, in flight and kept for resend."),
    Option("max_bytes", "size", _size(1024, 1 << 40), 64 << 20, "64MiB",
           "Bytes held at most, counted the same way."),
    Option("max_event_bytes", "size", _size(64, 1 << 30), 1 << 20, "1MiB",
           "An encoded event longer than this fails as too_large."),
    Option("max_event_bytes", "size", _size(64, (64 << 20) - 64), 8 << 20, "8MiB",
           "An encoded event longer than this fails as too_large; servers cannot take more than 64 MiB.",
           _LOGJAM),
    Option("max_event_bytes", "size", _size(64, (1 << 31) - 1), 256 << 10, "256KiB",
           "An encoded event longer than this, the id in, fails as too_large; a server takes no more unless "
           "its defrag.max_size is raised.", _PLOG),
    Option("truncate", "boolean", _boolean, False, "false",
           "Cut the message of an event that is too large, and mark it, instead of failing it."),
    Option("overflow", "choice", _choice("drop_oldest", "drop_new", "block", "raise"), "drop_new",
           "drop_new (Handler: drop_oldest)",
           "What happens at a bound: drop_oldest, drop_new, block (callers wait, first come, first served), "
           "raise (QueueFull; not in a Handler)."),
    Option("block_timeout", "duration", _optional(_duration(0, 365 * _DAY)), None, "none",
           "How long overflow=block waits before it drops the event; none: until there is room."),
    Option("keep_level", "level", _level, 40, "ERROR",
           "Events of this level and above are dropped last; none: no level is kept."),
    Option("window", "number", _integer(1, 10_000), 2048, "2048",
           "Events in a window (batch) at most. Servers refuse more than 10000.", _LJ),
    Option("window_bytes", "size", _size(1024, 64 << 20), 1 << 20, "1MiB",
           "Bytes of events in a window at most, without ids, uncompressed; a longer event travels alone.",
           _LJ),
    Option("inflight", "number", _integer(1, 64), 2, "2",
           "Windows sent and not yet acknowledged.", _LJ),
    Option("compression", "number", _integer(0, 9), 3, "3",
           "zlib level; 0 sends uncompressed frames.", _LJ),
    Option("mode", "choice", _choice("request", "async"), "request", "request (logjam+push: async)",
           "request: the server answers each message, and it is acked; async: it is handed.", _LOGJAM),
    Option("topic", "text", _text, "", "logs.<app>.<env>",
           "Topic of events that are of no other; <app>-<env> is the path of the URL.", _LOGJAM),
    Option("inflight", "number", _integer(1, 65536), 256, "256",
           "Requests without a reply at one time.", _LOGJAM),
    Option("compression", "choice", _choice("auto", "none", "zlib", "snappy", "lz4"), "auto", "auto",
           "Of bodies from compress_over on; auto: the first of snappy, lz4 and zlib that goes without "
           "the GIL here; see logjam.md.", _LOGJAM),
    Option("compress_over", "size", _size(0, 64 << 20), 1024, "1KiB",
           "Shorter bodies are not compressed.", _LOGJAM),
    Option("event_type", "text", _text, "log", "log",
           "The type that event documents say; a server's pipeline may know only a few.", _PLOG),
    Option("mtu", "number", _optional(_integer(576, 65_535)), None, "the path's",
           "Bytes of an IP packet at most; longer events travel in fragments.", _PLOG),
    Option("unboxed", "boolean", _boolean, False, "false",
           "Send without a header what may travel so; the server then sees no holes, and checks nothing.",
           _PLOG),
    Option("topic", "text", _text, "", "the server's",
           "Kafka topic of each event (tag kt:).", _PLOG),
    Option("tags", "text", _text, "", "none",
           "More tags of each event, with commas between them.", _PLOG),
    Option("pace", "number", _integer(0, 1_000_000_000), 10_000, "10000",
           "Packets a second; 0: as fast as it goes.", _PLOG),
    Option("burst", "number", _optional(_integer(1, 1_000_000)), None, "6.4 ms of the pace, 64 at least",
           "Packets sent at once after a pause.", _PLOG),
    Option("pace_bytes", "size", _size(0, 1 << 50), 64 << 20, "64MiB",
           "Bytes a second; 0: as many as go.", _PLOG),
    Option("feedback", "choice", _choice("none", "auto", "stat"), "none", "none",
           "auto: the pace follows the server's receive queue where it is on this machine, else its counters "
           "(STAT); stat: its counters; none: pace alone, after a slow start.", _PLOG),
    Option("window", "number", _integer(1, 10_000), 100, "100",
           "Actions in a sync message at most.", _LOGUX),
    Option("window_bytes", "size", _size(1024, 64 << 20), 256 << 10, "256KiB",
           "Bytes of actions in a sync message at most, without ids; a longer action travels alone.", _LOGUX),
    Option("inflight", "number", _integer(1, 64), 4, "4",
           "Sync messages sent whose actions have not all got their fate.", _LOGUX),
    Option("user", "text", _user, "false", "false",
           "The user of the connection, the first part of the node id; false: nobody is logged in.", _LOGUX),
    Option("subprotocol", "version", _subprotocol, 1, "1",
           "Version of the application's own protocol, which the server may refuse; 0: say none.", _LOGUX),
    Option("strict_spec", "boolean", _boolean, False, "false",
           "Speak to the letter of the protocol's text where released servers differ; see lumberjack.md and "
           "logux.md.", (*_LJ, *_LOGUX)),
    Option("action_type", "text", _action_type, "log/add", "log/add",
           "The type of actions that are made of events.", _LOGUX),
    Option("ack", "choice", _choice("processed", "synced"), "processed", "processed",
           "What acked means: processed by the server's code, or only received.", _LOGUX),
    Option("on_doubt", "choice", _choice("new_client", "same", "drop"), "new_client", "new_client",
           "What happens after a break to actions that were sent and have no answer: they are added again "
           "under a new client id, under the same, or fail as doubt; see logux.md.", _LOGUX),
    Option("ping", "duration", _duration(0.001, 3600), 10.0, "10s",
           "A ping goes out when nothing was sent or heard for so long.", _LOGUX),
    Option("jam_after", "duration", _duration(0.001, _DAY), 20.0, "20s",
           "A server that has received actions and processes none of the oldest for so long has a jammed "
           "queue: what is in doubt is handled, under a new client id.", _LOGUX),
    Option("deflate", "choice", _choice("off", "on"), "off", "off",
           "Compress WebSocket messages where the server agrees.", _LOGUX),
    Option("max_message", "size", _size(1024, 1 << 30), 16 << 20, "16MiB",
           "A longer message from the server ends the connection.", _LOGUX),
    # Whoever writes the proxy itself here writes its password, too.
    Option("proxy", "choice", _choice("env", "none", hint="the environment names it, as in https_proxy"),
           "env", "env",
           "env: through the proxy that the environment names, as in https_proxy and no_proxy; "
           "none: directly.", _LOGUX),
    Option("http_headers", "headers", _http_headers, None, "none",
           "More headers of the HTTP request that opens the WebSocket, such as Cookie, Authorization, "
           "Origin: as a keyword a mapping; in a URL env:NAME or file:PATH, each line Name: value. "
           "Values are secrets.", _LOGUX, True),
    Option("state", "path", _path, None, "none",
           "A file in which one client keeps its client id and what it has received, over restarts.", _LOGUX),
    Option("version", "number", _integer(1, 2), 2, "2",
           "Protocol version: 2 sends JSON frames, 1 sends pairs of strings.", _LJ),
    Option("frames", "choice", _choice("json", "data"), "json", "json (version=1: data)",
           "What events travel in: json, or data, pairs of strings. A choice only with strict_spec, where "
           "the default is json.", _LJ),
    Option("identity", "choice", _choice("id", "own", "none"), "id", "id",
           "Whether each event carries its id; own: one that the application gave it instead, which must be "
           "unique; none: verify compares multisets of hashes. See formats.md."),
    Option("trust", "choice", _choice("none", "metadata"), "none", "none",
           "metadata: an application's @metadata is sent, all but its _id; none: it is left out. "
           "Raw bytes are not changed.", _LJ),
    Option("check", "boolean", _boolean, True, "true",
           "Check that raw bytes are one JSON object in UTF-8 before they are sent."),
    Option("connect_timeout", "duration", _duration(0.001, 3600), 10.0, "10s",
           "For one attempt to connect to one address."),
    Option("silence", "duration", _duration(0.001, _DAY), 30.0, "30s",
           "A connection is dropped when something is awaited and nothing is heard for so long."),
    Option("no_progress", "duration", _duration(0.001, 30 * _DAY), 300.0, "5m",
           "A connection is dropped when nothing is acknowledged for so long; keep-alives do not count."),
    Option("backoff_min", "duration", _duration(0.001, 3600), 0.1, "100ms",
           "First bound of the random wait before a new attempt to connect."),
    Option("backoff_max", "duration", _duration(0.001, _DAY), 30.0, "30s",
           "Last bound of that wait."),
    Option("slow_min", "duration", _duration(0.001, _DAY), 30.0, "30s",
           "First bound of the wait after a certificate, key or token that was not accepted; "
           "half of it is random.", _SLOW),
    Option("slow_max", "duration", _duration(0.001, _DAY), 300.0, "5m",
           "Last bound of that wait.", _SLOW),
    Option("max_age", "duration", _optional(_duration(0.001, 365 * _DAY)), None, "none",
           "Events that wait longer than this fail as max_age; none: they are kept until sent."),
    Option("poison", "choice", _choice("fail", "keep"), "fail", "fail",
           "What happens to an event that ends the server's connections while others are taken: it fails as "
           "poison, or stays in quarantine and is tried now and then."),
    Option("flush_timeout", "duration", _duration(0, _DAY), 5.0, "5s",
           "What flush() waits when the call does not say."),
    Option("close_timeout", "duration", _duration(0, _DAY), 5.0, "5s",
           "What a client's close() waits when the call does not say."),
    Option("atexit_timeout", "duration", _duration(0, 3600), 2.0, "2s",
           "What the end of the process waits for the last events."),
    Option("nap", "duration", _duration(0, 1), 0.005, "5ms",
           "The sender's pause between two looks at the queue while traffic flows."),
    Option("ledger", "directory", _optional(_directory), None, "none",
           "Directory of the ledger; see formats.md."),
    Option("ca", "path", _optional(_path), None, "the system's",
           "Certificates of the authorities that are trusted: a PEM file, or a directory of them.", _TLS),
    Option("cert", "path", _optional(_path), None, "none",
           "Our own certificate, with what leads up to its authority: a PEM file.", _TLS),
    Option("key", "path", _optional(_path), None, "none",
           "Its private key: a PEM file; none: it is in the file of cert.", _TLS),
    Option("tls_password", "secret", _secret_text, None, "none",
           "Password of that key.", _TLS, True),
    Option("server_name", "host", _optional(_host), None, "the host of the URL",
           "The name or address that the server's certificate must be for.", _TLS),
    Option("verify", "choice", _choice("full", "none"), "full", "full",
           "none: take any certificate, from whomever. For tests.", _TLS),
    Option("token", "secret", _secret_text, None, "none",
           "Credentials of the connection.", _LOGUX, True),
    Option("hwm", "number", _integer(1, 10_000_000), 1000, "1000",
           "Messages that ZeroMQ takes and holds for one connection; what it holds is lost with that, "
           "or (requests) sent again.", _LOGJAM),
    Option("heartbeat", "duration", _duration(0, 3600), 0.0, "0",
           "Time between two of ZeroMQ's own pings; a connection without an answer to two of them is "
           "dropped; 0: none.", _LOGJAM),
    Option("curve_server", "text", _optional(_z85), None, "none",
           "The server's public CURVE key, 40 characters of Z85: encrypted, and only with that server.",
           _LOGJAM),
    Option("curve_secret", "secret", _secret_text, None, "a new one for each process",
           "Our own secret CURVE key, 40 characters of Z85, for servers that know their clients.",
           _LOGJAM, True),
    Option("zone", "text", _optional(_text), None, "this machine's",
           "Time zone of the importer, as in Europe/Berlin: it reads started_at as its own local time.",
           _LOGJAM),
    Option("host_name", "text", _optional(_text), None, "this machine's",
           "What documents say of where they were made.", (*_LOGJAM, *_PLOG)),
    Option("cluster", "text", _optional(_text), None, "none", "The same.", _LOGJAM),
    Option("datacenter", "text", _optional(_text), None, "none", "The same.", _LOGJAM),
    Option("namespace", "text", _optional(_text), None, "none", "The same.", _LOGJAM),
    Option("revision", "text", _optional(_text), None, "none", "The same.", _LOGJAM),
    Option("mask", "names", _names, (), "none",
           "More parts of names, with commas between them, = before a whole name: values of headers and "
           "parameters with such a name are masked, besides those with password, token and the like.",
           _LOGJAM),
)  # fmt: skip

# Of options that are different things to different protocols, the first.
OPTIONS: dict[str, Option] = {option.name: option for option in reversed(_TABLE)}


class Config(NamedTuple):
    """Everything a client needs to know, checked. Durations are seconds, sizes bytes.

    ``redacted`` is the URL in its plain form, fit for logs, ledgers and reports.
    """

    scheme: str
    protocol: str
    tls: bool
    endpoints: tuple[Endpoint, ...]
    path: str
    redacted: str
    given: frozenset[str]  # options that the URL or a keyword set

    max_events: int
    max_bytes: int
    max_event_bytes: int
    truncate: bool
    overflow: str
    block_timeout: float | None
    keep_level: int  # a level number; 60 keeps none
    window: int
    window_bytes: int
    inflight: int
    compression: int | str  # a level, or a name
    mode: str
    topic: str
    compress_over: int
    event_type: str
    mtu: int | None
    unboxed: bool
    tags: str
    pace: int
    burst: int | None
    pace_bytes: int
    feedback: str
    user: str
    subprotocol: int | str  # a version as text only with strict_spec
    strict_spec: bool
    action_type: str
    ack: str
    on_doubt: str
    ping: float
    jam_after: float
    deflate: str
    max_message: int
    proxy: str
    http_headers: tuple[tuple[str, Secret], ...] | None
    state: str | None
    version: int
    frames: str
    identity: str
    trust: str
    check: bool
    connect_timeout: float
    silence: float
    no_progress: float
    backoff_min: float
    backoff_max: float
    slow_min: float
    slow_max: float
    max_age: float | None
    poison: str
    flush_timeout: float
    close_timeout: float
    atexit_timeout: float
    nap: float
    ledger: str | None
    ca: str | None
    cert: str | None
    key: str | None
    tls_password: Secret | None
    server_name: str | None
    verify: str
    token: Secret | None
    hwm: int
    heartbeat: float
    curve_server: str | None
    curve_secret: Secret | None
    zone: str | None
    host_name: str | None
    cluster: str | None
    datacenter: str | None
    namespace: str | None
    revision: str | None
    mask: tuple[str, ...]

    @property
    def options(self) -> Mapping[str, Any]:
        """All options by name; secrets stay wrapped."""
        return {name: getattr(self, name) for name in OPTIONS}

    # The fields as they are would show nothing secret (Secret hides itself); this is about reading.
    def __repr__(self) -> str:
        given = (f", {name}={getattr(self, name)!r}" for name in OPTIONS if name in self.given)
        return f"Config({self.redacted!r}{''.join(given)})"


def parse(url: str, /, *, handler: bool = False, listen: bool = False, **keywords: Any) -> Config:
    """Read and check a URL and keywords; a keyword wins over the same option in the URL.

    Args:
        url: ``scheme://host[:port][,host[:port]...][/path][?option=value...]``.
        handler: apply a Handler's rules: ``overflow`` is ``drop_oldest`` unless given, and never
            ``raise``.
        listen: the URL is of a server to be: port 0 is allowed and means any free one.
        keywords: options by name, as plain values; None means the default.

    Raises:
        ConfigError: with one line that names the field and the rule.
    """
    name, endpoints, path, pairs = _split(url, 0 if listen else 1)
    row = registry.lookup(name)
    if path and not row.path:
        raise ConfigError(f"path: {name} takes none")
    if not endpoints and not (row.hosts_in and not listen):
        raise ConfigError("host: must not be empty")
    hosts = tuple((host, row.port if port is None else port) for host, port in endpoints) or _hosts_in(row)

    values: dict[str, Any] = {}
    for option in _TABLE:
        if option.name not in values or _takes(row, option):
            values[option.name] = option.default
    if handler:
        values["overflow"] = "drop_oldest"
    given: set[str] = set()
    for key, text in pairs:
        option = _find(key, row)
        if key in given:
            raise ConfigError(f"{key}: given twice in the URL")
        values[key] = _read(option, text, in_url=True)
        given.add(key)
    for key, value in keywords.items():
        option = _find(key, row)
        if value is not None:
            values[key] = _read(option, value)
            given.add(key)

    if name == "plog+tcp" and given & _DATAGRAMS:
        raise ConfigError(f"{min(given & _DATAGRAMS)}: only for datagrams, which plog+tcp does not send")
    if handler and values["overflow"] == "raise":
        raise ConfigError("overflow: a Handler never raises; use drop_oldest, drop_new or block")
    if values["backoff_min"] > values["backoff_max"]:
        raise ConfigError("backoff_min: must not be above backoff_max")
    if values["slow_min"] > values["slow_max"]:
        raise ConfigError("slow_min: must not be above slow_max")
    if values["key"] is not None and values["cert"] is None:
        raise ConfigError("key: needs cert")
    if values["curve_secret"] is not None and values["curve_server"] is None:
        raise ConfigError("curve_secret: needs curve_server")
    if values["ca"] is not None and values["verify"] == "none":
        raise ConfigError("ca: has no use with verify=none")
    if row.protocol == "lumberjack":
        _choose_frames(values, given)
    if values["strict_spec"] and "subprotocol" not in given:
        values["subprotocol"] = f"{values['subprotocol']}.0.0"
    if values["strict_spec"] != isinstance(values["subprotocol"], str):
        raise ConfigError("subprotocol: a version such as 1.0.0 goes with strict_spec, else a whole number")
    if values["max_event_bytes"] > values["max_bytes"]:
        if "max_event_bytes" in given:
            raise ConfigError("max_event_bytes: must not be above max_bytes")
        values["max_event_bytes"] = values["max_bytes"]

    return Config(
        scheme=name,
        protocol=row.protocol,
        tls=row.tls,
        endpoints=hosts,
        path=path,
        redacted=_redacted(name, hosts, path, pairs),
        given=frozenset(given),
        **values,
    )


def _choose_frames(values: dict[str, Any], given: set[str]) -> None:
    """What Lumberjack's events travel in: the version says it, and the protocol's text has both in version 1.

    Raises:
        ConfigError: a version and frames that do not go together.
    """
    strict = values["strict_spec"]
    if strict:
        if values["version"] == 2 and "version" in given:
            raise ConfigError("version: the protocol's text has 1 alone (strict_spec)")
        values["version"] = 1
    own = "data" if values["version"] == 1 and not strict else "json"
    if "frames" not in given:
        values["frames"] = own
    if values["frames"] != own and not strict:
        raise ConfigError(f"frames: version {values['version']} has {own} alone; strict_spec=true has both")


def _read(option: Option, value: Any, in_url: bool = False) -> Any:
    try:
        return _secret_from_url(value, option.read) if in_url and option.secret else option.read(value)
    except ValueError as error:
        # From None: the cause's traceback would show the value, which may be a secret.
        raise ConfigError(f"{option.name}: {error}") from None


def _takes(row: registry.Scheme, option: Option) -> bool:
    only = option.protocols
    return not only or row.protocol in only or (row.tls and "+tls" in only)


def _find(name: str, row: registry.Scheme) -> Option:
    option = OPTIONS.get(name)
    if option is not None:
        own = [other for other in _TABLE if other.name == name and _takes(row, other)]
        if own:
            return own[-1]
        if option.protocols == _TLS:
            raise ConfigError(f"{name}: only for a scheme with TLS")
        raise ConfigError(f"{name}: not an option of {row.protocol}")
    if not (name.isascii() and name.isidentifier() and len(name) <= 40):
        raise ConfigError("options: each must be name=value, joined by &")
    from difflib import get_close_matches

    near = get_close_matches(name, OPTIONS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{name}: unknown option{hint}")


# -- the URL

_USERINFO = "URL: user:password@ is not accepted; secrets are given as env:NAME, file:PATH or a keyword"


def _split(
    url: str, lowest_port: int
) -> tuple[str, list[tuple[str, int | None]], str, list[tuple[str, str]]]:
    """(scheme, [(host, port or None)], path, [(option, text)]), all checked for form alone; no host: []."""
    if not isinstance(url, str):
        raise ConfigError(f"URL: must be a string, got {type(url).__name__}")
    if any(char < " " or char == "\x7f" for char in url):
        raise ConfigError("URL: must not have control characters")
    scheme, found, rest = url.partition("://")
    if not found:
        raise ConfigError("URL: must begin with a scheme, as in lumberjack://host:5044")
    if not scheme or not all(char.isascii() and (char.isalnum() or char in "+-.") for char in scheme):
        raise ConfigError("scheme: must be letters, digits, + - and .")
    place, question, query = rest.partition("?")
    # The whole of what stands before the options, path included: a password may hold a slash.
    # One that holds a question mark leaves its @ in the name of the first option.
    if "@" in place or "@" in query.partition("=")[0]:
        raise ConfigError(_USERINFO)
    if "#" in place:
        raise ConfigError("URL: must not have a # part")
    authority, _, path = place.partition("/")
    endpoints = [_endpoint(text, lowest_port) for text in authority.split(",")] if authority else []
    path = _decode("path", path)
    pairs: list[tuple[str, str]] = []
    if question and query:
        for part in query.split("&"):
            key, equals, text = part.partition("=")
            if not equals or not key:
                raise ConfigError("options: each must be name=value, joined by &")
            name = key if key.isascii() and key.isidentifier() and len(key) <= 40 else "options"
            pairs.append((key, _decode(name, text)))
    return scheme.lower(), endpoints, path if path == "" else "/" + path, pairs


def _hosts_in(row: registry.Scheme) -> tuple[Endpoint, ...]:
    """The hosts that the environment names, as other agents of the protocol read them: with commas between
    them, each as ``host``, ``host:port`` or ``tcp://host:port``.

    Raises:
        ConfigError: it names none, or what is no host.
    """
    name = next((name for name in row.hosts_in if os.environ.get(name, "").strip()), None)
    if name is None:
        raise ConfigError(f"host: the URL has none, and neither {' nor '.join(row.hosts_in)} is set")
    default = row.port
    found = []
    try:
        for text in os.environ[name].split(","):
            if text.strip():
                host, port = _endpoint(text.strip().removeprefix("tcp://"), 1)
                found.append((host, port))
        if not found:
            raise ConfigError("host: must not be empty")
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if os.environ.get(row.port_in, "").strip():
        try:
            default = _integer(1, 65535)(os.environ[row.port_in])
        except ValueError as error:
            raise ConfigError(f"{row.port_in}: {error}") from None
    return tuple((host, default if port is None else port) for host, port in found)


def _endpoint(text: str, lowest_port: int) -> tuple[str, int | None]:
    port = ""
    if text.startswith("["):
        host, bracket, tail = text[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise ConfigError("host: an IPv6 address is written [address] or [address]:port")
        from ipaddress import IPv6Address

        host = host.replace("%25", "%")
        try:
            IPv6Address(host)
        except ValueError:
            raise ConfigError("host: what stands in brackets must be an IPv6 address") from None
        colon, port = tail[:1], tail[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise ConfigError("host: more than one colon; an IPv6 address goes in brackets")
        if not host:
            raise ConfigError("host: must not be empty")
        if len(host) > 253 or not all(char.isalnum() or char in "._-" for char in host):
            raise ConfigError("host: must be a name or an address")
        try:
            dns_name(host)
        except ValueError as error:
            raise ConfigError(f"host: {error}") from None
    if not colon:
        return host, None
    digits = port.isascii() and port.isdigit()
    if digits and len(port) <= 5 and lowest_port <= int(port) <= 65535:
        return host, int(port)
    # Only what can be no password is echoed: in user:password/... that stands where the port should.
    got = f"{len(port)} characters that are no number"
    if not port:
        got = "nothing"
    elif digits:
        got = port if len(port) <= 5 else f"a number of {len(port)} digits"
    raise ConfigError(f"port: must be a whole number from {lowest_port} to 65535, got {got}")


def _decode(name: str, text: str) -> str:
    """Percent-decoding; + stays a plus."""
    if "%" not in text:
        return text
    out = bytearray()
    raw = text.encode("utf-8", "surrogatepass")
    at = 0
    while at < len(raw):
        if raw[at] != 0x25:
            out.append(raw[at])
            at += 1
            continue
        digits = raw[at + 1 : at + 3]
        try:
            if len(digits) != 2 or not digits.isalnum():
                raise ValueError
            out.append(int(digits, 16))
        except ValueError:
            raise ConfigError(f"{name}: % must be followed by two hexadecimal digits") from None
        at += 3
    try:
        decoded = out.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: must be UTF-8 after percent-decoding") from None
    if any(char < " " or char == "\x7f" for char in decoded):
        raise ConfigError(f"{name}: must not have control characters")
    return decoded


def host_port(host: str, port: int) -> str:
    """Both in one text, as a URL has them: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _redacted(scheme: str, endpoints: tuple[Endpoint, ...], path: str, pairs: list[tuple[str, str]]) -> str:
    places = ",".join(host_port(*endpoint) for endpoint in endpoints)
    # A secret in a URL is never literal (see _secret_from_url), but where it lies is nobody's business.
    query = "&".join(f"{key}={'***' if OPTIONS[key].secret else _encode(text)}" for key, text in pairs)
    return f"{scheme}://{places}{_encode(path)}" + (f"?{query}" if query else "")


def _encode(text: str) -> str:
    """Percent-encode what would change the meaning of the URL."""
    return "".join(f"%{ord(char):02X}" if char in "%&#? " else char for char in text)


# -- the documentation


def options_of(kind: type[T], config: Any, *, fixed: tuple[str, ...] = (), **given: Any) -> T:
    """Take the options of `kind` from a configuration; every field must have a source.

    Args:
        kind: a NamedTuple, such as a core's ``Options``.
        config: has the options as attributes, like `Config`.
        fixed: fields that are no option of users: they keep their defaults.
        given: fields with other values, or that go by another name in `config`.

    Raises:
        AttributeError: `config` has no option of a field's name.
        TypeError: `kind` has no field of a given name.
    """
    row: Any = kind
    taken = {name: getattr(config, name) for name in row._fields if name not in fixed and name not in given}
    made: T = row(**taken, **{name: row._field_defaults[name] for name in fixed}, **given)
    return made


def options_markdown() -> str:
    """docs/options.md, made from the table: ``python -m logclient.config > docs/options.md``."""
    lines = [
        "# Options",
        "",
        "Made from the table in `logclient/config.py`: `python -m logclient.config > docs/options.md`.",
        "",
        "An option stands in the URL (`?window=500&overflow=block`) or is given as a keyword, which wins.",
        "Values in a URL may be percent-encoded. Durations: `5`, `5s`, `200ms`, `5m`, `1h`. Sizes: bytes, or",
        "`64KiB`, `64k`, `1MiB`, `1M` (1024) and `64kB`, `1MB` (1000). Secrets are never written in a URL:",
        "`env:NAME`, `file:PATH`, or a keyword.",
        "",
        "Type checkers and editors know them as keywords: `logclient.Options` is a `TypedDict`, for",
        "`**options: Unpack[logclient.Options]` in functions of your own.",
        "",
        "An option of a protocol counts there in place of one of the same name for every protocol.",
    ]
    # Those that this version has.
    here = {row.protocol for row in registry.SCHEMES.values() if row.transport}
    titles = {"lumberjack": "Lumberjack", "logjam": "Logjam", "plog": "plog", "logux": "Logux"}
    groups = [("Every protocol", ""), ("TLS", "+tls")]
    groups += [(title, protocol) for protocol, title in titles.items() if protocol in here]
    for title, group in groups:
        lines += ["", f"## {title}", ""]
        if group == "+tls":
            lines += ["For schemes that end in `+tls`.", ""]
        lines += ["| option | kind | default | what it does |", "|---|---|---|---|"]
        lines += [
            f"| `{option.name}` | {option.kind} | {option.shown} | {option.help} |"
            for option in _TABLE
            if group in (option.protocols or ("",))
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(options_markdown(), end="")
