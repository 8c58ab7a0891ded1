"""Readers: one for each kind of value of an option.

A reader takes a user's value: a string from a URL, or any plain value from a keyword. It returns the checked
value, or raises ValueError with the rule; the caller puts the option's name before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from logclient.config.hosts import dns_name, echo
from logclient.config.secrets import absolute, read_secret

_TRUE = frozenset(("true", "yes", "on", "1"))
_FALSE = frozenset(("false", "no", "off", "0"))
_TIMES = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {
    "": 1, "b": 1,
    "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*")
_KEY = re.compile(r"[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50, "FATAL": 50}
_NO_LEVEL = 60
"""Above every level that the queue knows: it keeps a level divided by ten, up to 5."""


class Reader:
    """Reads values of one kind, which the documentation calls `kind`.

    `read` returns the value, or raises ValueError with the rule. A `secret` is never written in a URL.
    """

    __slots__ = ("choices", "kind", "read", "secret")

    def __init__(
        self, kind: str, read: Callable[[Any], Any], *, choices: tuple[str, ...] = (), secret: bool = False
    ) -> None:
        self.kind = kind
        self.read = read
        self.choices = choices
        self.secret = secret

    def __call__(self, value: Any) -> Any:
        """Read a keyword. A member of an Enum of texts is its text, not its name, which ``str`` returns."""
        return self.read(str.__str__(value) if isinstance(value, str) else value)

    def read_text(self, value: str) -> Any:
        """Read a value from a URL or a variable, where no secret may stand."""
        if self.secret and not value.startswith(("env:", "file:")):
            rule = "must not be written in a URL or a variable"
            raise ValueError(f"{rule}; give env:NAME, file:PATH or a keyword")
        return self.read(value)


# -- numbers, durations, sizes


def _quantity(value: object, units: Mapping[str, float]) -> float | None:
    """Read a number, without sign and exponent, and its unit; None: it is none."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or len(match[1].replace(".", "")) > 18 or match[2].lower() not in units:
        return None
    return float(match[1]) * units[match[2].lower()]


def parse_duration(value: object) -> float:
    """Read seconds: ``5``, ``5s``, ``200ms``, ``5m``, ``1.5h``, or a number; ValueError: the rule."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value < 1e15:
            raise ValueError(f"must be a duration of 0 or more, got {echo(value)}")
        return float(value)
    found = _quantity(value, _TIMES)
    if found is None:
        raise ValueError(f"must be a duration such as 5s, 200ms or 5m, got {echo(value)}")
    return found


def parse_size(value: object) -> int:
    """Read bytes: ``1048576``, ``64MiB``, ``1k``, or a number; ValueError: the rule.

    k, M, G and KiB, MiB, GiB are powers of 1024; kB, MB and GB are powers of 1000.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _quantity(value, _SIZES)
    if found is None or found != int(found):
        raise ValueError(f"must be a size in bytes such as 65536 or 64MiB, got {echo(value)}")
    return int(found)


def integer(low: int, high: int) -> Reader:
    """Make a reader of whole numbers within bounds."""

    def read(value: Any) -> int:
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str):
            digits = value.strip().replace("_", "")
            if digits.isascii() and digits.isdigit() and len(digits) <= 18:
                number = int(digits)
        if number is None or not low <= number <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, got {echo(value)}")
        return number

    return Reader("number", read)


def size(low: int, high: int) -> Reader:
    """Make a reader of sizes within bounds, in bytes."""

    def read(value: Any) -> int:
        found = parse_size(value)
        if not low <= found <= high:
            raise ValueError(f"must be from {low} to {high} bytes, got {echo(value)}")
        return found

    return Reader("size", read)


def duration(low: float, high: float) -> Reader:
    """Make a reader of durations within bounds, in seconds."""

    def read(value: Any) -> float:
        seconds = parse_duration(value)
        if not low <= seconds <= high:
            raise ValueError(f"must be from {_seconds(low)} to {_seconds(high)}, got {echo(value)}")
        return seconds

    return Reader("duration", read)


def _seconds(value: float) -> str:
    return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:.10g}s"


# -- words


def optional(reader: Reader) -> Reader:
    """Make a reader that also takes ``none``, which is None."""

    def read(value: Any) -> Any:
        return None if value is None or value == "none" else reader.read(value)

    return Reader(reader.kind, read, choices=reader.choices, secret=reader.secret)


def choice(*words: str, instead: str = "") -> Reader:
    """Make a reader of one of several words. Errors show `instead`, if the value may hold a secret."""

    def read(value: Any) -> str:
        if value not in words:
            found = f"; {instead}" if instead else f", got {echo(value)}"
            raise ValueError(f"must be one of {', '.join(words)}{found}")
        return str(value)

    return Reader("choice", read, choices=words)


@partial(Reader, "boolean")
def boolean(value: Any) -> bool:
    """Read yes or no."""
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"must be true or false, got {echo(value)}")


@partial(Reader, "level")
def level(value: Any) -> int:
    """Read a level of ``logging``; none: above all of them."""
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
    raise ValueError(f"must be a level name, a number from 0 to {_NO_LEVEL} or none, got {echo(value)}")


@partial(Reader, "text")
def text(value: Any) -> str:
    """Read any text."""
    if not isinstance(value, str):
        raise ValueError(f"must be text, got {echo(value)}")
    return value


@partial(Reader, "policy")
def policy(value: Any) -> str:
    """Read a policy at a bound; ``block`` may be followed by a time."""
    policy, colon, time = value.partition(":") if isinstance(value, str) else ("", "", "")
    if policy not in ("drop_oldest", "drop_new", "block", "raise") or (colon and policy != "block"):
        raise ValueError(f"must be drop_oldest, drop_new, block, block:TIME or raise, got {echo(value)}")
    if colon:
        duration(0, 365 * 86400)(time)
    return str(value)


@partial(Reader, "names")
def names(value: Any) -> tuple[str, ...]:
    """Read names with commas between them; a keyword may also be a list of them."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"must be names with commas between them, got {echo(value)}")
    return tuple(part.strip() for part in parts if part.strip())


SECRETS = (
    *("password", "passwd", "pwd", "passphrase", "secret", "client_secret", "secret_key", "credentials"),
    *("api_key", "apikey", "x_api_key", "x-api-key", "auth", "authorization", "proxy-authorization"),
    *("token", "access_token", "refresh_token", "private_key", "privatekey", "mysql_pwd"),
    *("cookie", "set_cookie", "set-cookie", "session", "sessionid", "csrftoken", "csrf_token"),
    *("x_csrftoken", "x-csrftoken", "_csrf", "_xsrf", "xsrf-token"),
    # of forms and of META in Django, and in other spellings
    *("csrfmiddlewaretoken", "password1", "password2", "old_password", "new_password", "new_password1"),
    *("new_password2", "http_authorization", "http_cookie", "http_x_api_key", "accesstoken", "access-token"),
    *("refreshtoken", "refresh-token", "clientsecret", "client-secret", "aws_secret_access_key"),
)
"""Names of fields whose values are left out by default."""


@partial(Reader, "names")
def redacted(value: Any) -> tuple[str, ...]:
    """Read names to leave out; unless ``none`` is among them, an empty one and `SECRETS` come after them."""
    if isinstance(value, tuple) and "" in value:
        return value  # it was read before
    given = names.read(value)
    own = tuple(name for name in given if name.lower() != "none")
    return own if len(own) < len(given) else (*own, "", *SECRETS)


@partial(Reader, "fields")
def fields(value: Any) -> dict[str, Any]:
    """Read fields by name: a mapping, or a JSON object as text."""
    found = value
    if value == "":
        found = {}
    elif isinstance(value, str):
        from json import loads

        try:
            found = loads(value)
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, Mapping):
        raise ValueError(f"must be a mapping, or a JSON object, got {echo(value)}")
    for name in found:
        if not isinstance(name, str) or not name:
            raise ValueError(f"must have texts as names, got {echo(name)}")
    return dict(found)


def _pairs(value: Any, what: str) -> Mapping[Any, Any]:
    """Read values by name: a mapping, or ``name=value`` with commas between them."""
    pairs: Any = value
    if isinstance(value, str):
        pairs = dict(part.partition("=")[::2] for part in value.split(",") if part.strip())
    if not isinstance(pairs, Mapping):
        raise ValueError(f"must be a mapping, or name={what} with commas between them, got {echo(value)}")
    return pairs


def _texts(value: Any) -> dict[str, str]:
    """Read texts by name."""
    found: dict[str, str] = {}
    for name, text in _pairs(value, "text").items():
        if not (isinstance(name, str) and isinstance(text, str) and name.strip() and text.strip()):
            raise ValueError(f"must have a text for each name, got {echo({name: text})}")
        found[name.strip()] = text.strip()
    return found


@partial(Reader, "texts")
def rename(value: Any) -> dict[str, str]:
    """Read new names by the old ones."""
    found = _texts(value)
    for place in found.values():
        if place in found or place[0] == "@" or place == "message" or [*found.values()].count(place) > 1:
            raise ValueError(f"must give new names, each once, not message or with @, got {echo(place)}")
        if not all(place.split(".")):
            raise ValueError(f"must have no empty part between dots in a new name, got {echo(place)}")
    return found


@partial(Reader, "text")
def prefix(value: Any) -> str:
    """Read the name of an object; empty: none."""
    if not isinstance(value, str) or not re.fullmatch(r"([A-Za-z_][\w-]*(\.[\w-]+)*)?", value, re.ASCII):
        raise ValueError(f"must be a name of letters, digits, _ and -, or some with dots, got {echo(value)}")
    return value


@partial(Reader, "texts")
def metadata(value: Any) -> dict[str, str]:
    """Read constant entries of ``@metadata``."""
    found = _texts(value)
    if "_id" in found:
        raise ValueError("must not have _id, which is the id of each event")
    if sum(len(name) + len(text) for name, text in found.items()) > 1024:
        raise ValueError("must be at most 1024 characters")
    return found


@partial(Reader, "shares")
def shares(value: Any) -> dict[str, float]:
    """Read shares by name."""
    found: dict[str, float] = {}
    for name, share in _pairs(value, "share").items():
        try:
            number = float(share)
        except (TypeError, ValueError, OverflowError):
            number = -1.0
        if not isinstance(name, str) or not name.strip() or not 0 <= number <= 1:
            raise ValueError(f"must have a share from 0 to 1 for each name, got {echo({name: share})}")
        if name.strip() not in _LEVELS and name.strip().upper() in _LEVELS:
            raise ValueError(f"must have the names of levels in capitals, got {echo(name)}")
        found[name.strip()] = number
    return found


@partial(Reader, "patterns")
def patterns(value: Any) -> tuple[str, ...]:
    """Read regular expressions: one as text, or a list of them."""
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    found = tuple(value) if several else () if value == "" else (value,)
    for pattern in found:
        if not isinstance(pattern, str):
            raise ValueError(f"must be regular expressions, got {echo(pattern)}")
        try:
            empty = re.compile(pattern).search("")
        except (re.error, OverflowError, RecursionError) as error:  # the last two: out of bounds, too deep
            raise ValueError(f"must be regular expressions, got {echo(pattern)}: {error}") from None
        if empty:
            raise ValueError(f"must not match empty text, got {echo(pattern)}")
    return found


@partial(Reader, "function")
def function(value: Any) -> Any:
    """Read a function. A URL cannot name one: whoever may change the URL could run any code."""
    if not callable(value):
        raise ValueError(f"must be a function, given as a keyword, got {echo(value)}")
    return value


def words(*known: str) -> Reader:
    """Make a reader of some of these words, with commas between them; ``all`` is all, ``none`` is none."""

    def read(value: Any) -> tuple[str, ...]:
        found: tuple[str, ...] = names.read(value)
        if found in (("none",), ("all",)):
            return () if found == ("none",) else known
        for word in found:
            if word not in known:
                raise ValueError(f"must be some of {', '.join(known)}, all or none, got {echo(word)}")
        return tuple(word for word in known if word in found)

    return Reader("names", read)


# -- places and keys


def _path(kind: str, what: str, *words: str) -> Reader:
    """Make a reader of paths, which makes them absolute: the program may change its directory later."""

    def read(value: Any) -> str:
        found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if not isinstance(found, str) or not found or "\0" in found:
            raise ValueError(f"must be {what}, got {echo(value)}")
        return found if found in words else absolute(found)

    return Reader(kind, read)


@partial(Reader, "host")
def host(value: Any) -> str:
    """Read a name or an address, as a certificate has it."""
    name = value.rstrip(".") if isinstance(value, str) else ""
    if not name or len(name) > 253 or name[0] == "." or not all(c.isalnum() or c in "._-:" for c in name):
        raise ValueError(f"must be a host name or an address, got {echo(value)}")
    dns_name(name)
    return name


def is_key(value: object) -> bool:
    """Return whether the value is a CURVE key as text: 40 characters of the Z85 alphabet."""
    return isinstance(value, str) and _KEY.fullmatch(value) is not None


@partial(Reader, "text")
def curve_key(value: Any) -> str:
    """Read a CURVE key as text."""
    if not is_key(value):
        raise ValueError(f"must be a key of 40 characters of Z85, got {echo(value)}")
    return str(value)


directory = _path("directory", "the path of a directory")
file_path = _path("path", "a path")
file_or_stderr = _path("path", "a path, or stderr", "stderr")
secret = Reader("secret", read_secret, secret=True)
