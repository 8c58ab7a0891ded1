"""Logux: its nine messages, ids and errors, for either end of a connection.

A message is a JSON array that begins with its type (protocol text, "Messages"). `parse` checks everything: a
message that it returns has the form that the text requires. Other messages raise `Refused`,
which carries the error to answer with. Two rules come from the released server, which uses
JavaScript: it does not recognise an object with a number under ``length``, and it crashes on ``null`` in
place of an object. Both are refused here, and so are numbers that JSON does not have (NaN, Infinity, 1e999).

An id is a text, ``<ms> <node id> <counter>``. It travels in one of three forms relative to the base time, the
second time of ``connected``: see `decode_id`.

The released @logux/server and @logux/client speak protocol 5; only lower versions are refused. @logux/core
0.12 has protocol 7, with other ids, and refuses all others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import accumulate
from json import JSONDecoder, JSONEncoder
from typing import Any, NamedTuple

from logclient.errors import ProtocolError
from logclient.readable import escape

PROTOCOL = 5
MIN_PROTOCOL = 5

_RELEASES = {4: "@logux/server 0.13 and older", 5: "@logux/server 0.14", 7: "@logux/core 0.12 and newer"}

MAX_NESTING = 500
"""Levels of arrays and objects, including the message itself."""
MAX_NUMBER = 1 << 53
"""The first whole number that JavaScript cannot distinguish from its neighbour."""

_MAX_VALUES = 1_000_000  # in a message: each costs tens of bytes as a Python object
ECHOED = 4096  # characters of a bad message that are returned to its sender
_TOKEN = re.compile(r'token\\*".*', re.DOTALL)  # of `connect`, quoted in a text

_MS, _COUNTER = re.compile(r"-?[0-9]{1,16}"), re.compile(r"[0-9]{1,16}")
_NUMBERS = (int, float)
Number = int | float


# --- messages ----------------------------------------------------------------------------------


class Connect(NamedTuple):
    """The first message of a client. ``synced``: the last ``added`` received from the server."""

    protocol: Number
    node_id: str
    synced: Number
    options: dict[str, Any] = {}  # token and subprotocol


class Connected(NamedTuple):
    """The answer. ``start``: when ``connect`` arrived; ``end``: the base time; both in ms since 1970."""

    protocol: Number
    node_id: str
    start: Number
    end: Number
    options: dict[str, Any] = {}


class Headers(NamedTuple):
    """The headers of a node. They replace all earlier ones."""

    data: dict[str, Any]


class Ping(NamedTuple):
    """A sign of life, answered with `Pong`. ``synced``: the sender's last ``added``."""

    synced: Number


class Pong(NamedTuple):
    """The answer to `Ping`."""

    synced: Number


class Sync(NamedTuple):
    """Actions with their metas, in which ``id`` and ``time`` are relative: see `decode_id`."""

    added: Number
    entries: list[tuple[dict[str, Any], dict[str, Any]]]


class Synced(NamedTuple):
    """The answer to `Sync`: it arrived. The actions need not be processed yet."""

    synced: Number


class Debug(NamedTuple):
    """A text for developers. The only type is ``error``."""

    type: str
    data: str


class Error(NamedTuple):
    """A fault of the other end. ``None``: no options."""

    type: str
    options: Any = None


Message = Connect | Connected | Headers | Ping | Pong | Sync | Synced | Debug | Error


# --- errors ------------------------------------------------------------------------------------


def wrong_format(text: str) -> Error:
    """Refuse a text that is no message, and quote its beginning."""
    return Error("wrong-format", text[:ECHOED])


def version(number: Number) -> str:
    """Describe a version of the protocol, with the software that speaks it."""
    release = _RELEASES.get(int(number) if -1e9 < number < 1e9 else 0)
    return f"protocol {number}{f' ({release})' if release else ''}"


def describe_versions(theirs: Number) -> str:
    """Describe that a server speaks a version that we do not speak."""
    return f"the server speaks {version(theirs)}, we speak {version(PROTOCOL)}"


def is_of_protocol_4(error: Error) -> bool:
    """Return whether only servers of protocol 4 send this error: they know ranges of subprotocols."""
    options = error.options if isinstance(error.options, dict) else {}
    return error.type == "wrong-subprotocol" and isinstance(options.get("supported"), str)


def hide(text: str, secret: str) -> str:
    """Remove our token from a text of the other end, which may quote a received message, or its beginning."""
    text = _TOKEN.sub("token ***", text)
    for form in {secret, _encode(secret)[1:-1], _encode_ascii(secret)[1:-1]} if secret else ():
        text = text.replace(form, "***")
    return text


def describe(error: Error, secret: str = "") -> str:
    """Describe a received error in one line of safe length, without control characters and our token."""
    options = hide(error.options, secret) if isinstance(error.options, str) else error.options
    if error.type == "wrong-protocol" and isinstance(options, dict) and _is_number(options.get("supported")):
        details = f"it wants {version(options['supported'])}, we speak {version(PROTOCOL)}"
    elif isinstance(options, dict) and "supported" in options:
        details = f"{options['supported']!r} is supported, {options.get('used')!r} is used"
    elif error.type == "timeout":
        details = f"{options!r} ms"
    else:
        details = "" if options is None else repr(options)
    kind = escape(hide(error.type, secret))
    return kind[:64] + (f": {hide(details, secret)[:200]}" if details else "")


class Refused(ProtocolError):
    """A text that is no valid message; ``error`` is the answer to it."""

    def __init__(self, reason: str, error: Error) -> None:
        super().__init__(reason)
        self.error = error


class UnknownMessage(Refused):
    """A message of an unknown type; ``message`` is the whole of it."""

    def __init__(self, reason: str, error: Error, message: list[Any]) -> None:
        super().__init__(reason, error)
        self.message = message


# --- text -> message ---------------------------------------------------------------------------

# Opening brackets become 1, closing ones 255 (-1), commas 0. Quotes delimit strings.
_UP_AND_DOWN = bytes(1 if c in b"[{" else 255 if c in b"]}" else 0 if c == 0x2C else c for c in range(256))
_NESTING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
_OUTLINE = 3  # levels kept: the message, its actions, their members
_REST = bytes(c for c in range(256) if c not in b'[]{},"')


def _check_size(raw: bytes) -> None:
    """Check the nesting and the number of values of a text before it is parsed."""
    if len(raw) <= MAX_NESTING:
        return
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    kept = raw.translate(_UP_AND_DOWN, _REST)
    if kept.count(b'"') > 4 * _MAX_VALUES:
        raise ValueError(f"more than {2 * _MAX_VALUES} texts")
    outside = b"".join(kept.split(b'"')[::2])
    if len(outside) > 3 * _MAX_VALUES:
        raise ValueError(f"more than {_MAX_VALUES} values")
    # Exact up to the first syntax error, where the parser stops anyway.
    if max(accumulate(memoryview(outside).cast("b")), default=0) > MAX_NESTING:
        raise ValueError(f"nested deeper than {MAX_NESTING}")


def outline(raw: bytes) -> bytes:
    """Replace everything nested in the members of a message's actions and metas by null."""
    parts: list[bytes] = []
    depth = at = 0
    for found in _NESTING.finditer(raw):
        byte = raw[found.start()]
        if byte in b"[{":
            depth += 1
            if depth == _OUTLINE + 1:
                parts += raw[at : found.start()], b"null"
        elif byte in b"]}":
            depth -= 1
            if depth == _OUTLINE:
                at = found.end()
    return b"".join([*parts, raw[at:]])


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number beyond any")
    return value


_decode = JSONDecoder(parse_constant=_constant, parse_float=_float).decode
_encode = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_ascii = JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def compact(value: Any) -> bytes:
    """Encode a value as compact JSON."""
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:  # a lone surrogate, which needs an escape
        return _encode_ascii(value).encode()


def _is_number(value: Any) -> bool:
    return type(value) in _NUMBERS and -MAX_NUMBER <= value <= MAX_NUMBER


def _node_id(name: str, value: Any) -> str:
    if type(value) is not str or " " in value:
        raise ValueError(f"{name}: must be a text without spaces")
    return value


def _number(name: str, value: Any) -> Number:
    if not _is_number(value):
        raise ValueError(f"{name}: must be a number")
    number: Number = value
    return number


def _object(name: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict or type(value.get("length")) in _NUMBERS:
        raise ValueError(f"{name}: must be an object without a number as length")
    found: dict[str, Any] = value
    return found


def _times(name: str, value: Any) -> list[Number]:
    if type(value) is not list or len(value) != 2:
        raise ValueError(f"{name}: must be two numbers")
    return [_number("start", value[0]), _number("end", value[1])]


def _text(name: str, value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{name}: its type must be a text")
    return value


def _length(message: list[Any], least: int, most: int) -> None:
    if not least <= len(message) <= most:
        raise ValueError(f"{message[0]}: {len(message)} elements")


def _sync(message: list[Any]) -> Sync:
    if len(message) < 2 or len(message) % 2:
        raise ValueError("sync: an action without a meta")
    added = _number("added", message[1])
    actions, metas = message[2::2], message[3::2]
    for action in actions:
        if type(_object("action", action).get("type")) is not str:
            raise ValueError("action: type must be a text")
    for meta in metas:
        if not _is_number(_object("meta", meta).get("time")):
            raise ValueError("meta: time must be a number")
        if not _is_relative(meta.get("id")):
            raise ValueError("meta: id must be a number, two numbers, or a number, a node id and a number")
    return Sync(added, list(zip(actions, metas, strict=True)))


def _is_relative(value: Any) -> bool:
    if type(value) is not list:
        return _is_number(value)
    named = len(value) == 3 and type(value[1]) is str and " " not in value[1]
    numbers = value[::2] if named else value
    return len(numbers) == 2 and all(map(_is_number, numbers))


def _debug(message: list[Any]) -> Debug:
    _length(message, 3, 3)
    if message[1] != "error" or type(message[2]) is not str:
        raise ValueError("debug: must be of type error, and a text")
    return Debug("error", message[2])


_OPTIONS = {"options": _object}
_FORMS: dict[str, tuple[Callable[..., Message], dict[str, Callable[[str, Any], Any]], dict[str, Any]]] = {
    "connect": (Connect, {"protocol": _number, "node id": _node_id, "synced": _number}, _OPTIONS),
    "connected": (
        lambda protocol, node_id, times, *options: Connected(protocol, node_id, *times, *options),
        {"protocol": _number, "node id": _node_id, "times": _times},
        _OPTIONS,
    ),
    "error": (Error, {"error": _text}, {"options": lambda _, value: value}),
    "headers": (Headers, {"headers": _object}, {}),
    "ping": (Ping, {"ping": _number}, {}),
    "pong": (Pong, {"pong": _number}, {}),
    "synced": (Synced, {"synced": _number}, {}),
}
"""Of each type the class, the elements that a message has, and those that it may have in addition."""


def _read(message: list[Any]) -> Message | None:
    """Return a message; None: its type is unknown."""
    kind = message[0]
    if kind == "sync":
        return _sync(message)
    if kind == "debug":
        return _debug(message)
    if kind not in _FORMS:
        return None
    make, needed, more = _FORMS[kind]
    _length(message, 1 + len(needed), 1 + len(needed) + len(more))
    elements = zip({**needed, **more}.items(), message[1:], strict=False)
    return make(*(read(name, value) for (name, read), value in elements))


def parse(raw: str | bytes | bytearray | memoryview) -> Message:
    """Parse a message, or raise `Refused`, for a message of an unknown type `UnknownMessage`."""
    data = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else bytes(raw)
    try:
        text = data.decode()
        _check_size(data)
        message = _decode(text)
    except (ValueError, RecursionError) as error:
        # RecursionError: the caller's stack was nearly full.
        why = "no UTF-8" if isinstance(error, UnicodeDecodeError) else str(error) or "nested too deep"
        bad = data[: 4 * ECHOED].decode("utf-8", "replace")
        raise Refused(f"message: no JSON: {why}", wrong_format(bad)) from None
    try:
        if type(message) is not list or not message or type(message[0]) is not str:
            raise ValueError("message: must be an array with a type in front")
        found = _read(message)
        if found is not None:
            return found
    except ValueError as error:
        raise Refused(str(error), wrong_format(compact(message).decode())) from None
    kind = message[0]
    answer = Error("unknown-message", kind[:ECHOED])
    raise UnknownMessage(f"message: unknown type {kind[:64]!r}", answer, message)


# --- message -> text ---------------------------------------------------------------------------


def pack(message: Message) -> bytes:
    """Encode a message in UTF-8; a ValueError or TypeError: a value has no form in JSON."""
    made = _PACKERS.get(type(message), lambda m: [type(m).__name__.lower(), *m])
    return compact(made(message))


def _optional(options: dict[str, Any]) -> list[Any]:
    return [options] if options else []


_PACKERS: dict[type, Callable[[Any], list[Any]]] = {
    Connect: lambda m: ["connect", m.protocol, m.node_id, m.synced, *_optional(m.options)],
    Connected: lambda m: ["connected", m.protocol, m.node_id, [m.start, m.end], *_optional(m.options)],
    Sync: lambda m: ["sync", m.added, *(part for entry in m.entries for part in entry)],
    Error: lambda m: ["error", m.type] if m.options is None else ["error", m.type, m.options],
}


# --- ids ---------------------------------------------------------------------------------------


def plain(number: Number) -> Number:
    """Convert a float without a fraction to an integer, as JavaScript writes it."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def decode_id(relative: Any, base: Number, node_id: str) -> str:
    """Convert a relative id to an absolute one (protocol text, "sync": `id`).

    It is ``shift``, ``[shift, counter]`` or ``[shift, node id, counter]``, relative to the `base` in ms. The
    node id is the sender's if it has none.
    """
    counter: Number = 0
    if type(relative) is list:
        if len(relative) == 3:
            relative, node_id, counter = relative
        else:
            relative, counter = relative
    return f"{plain(relative + base)} {node_id} {plain(counter)}"


def read_id(id: Any) -> tuple[str, int, int]:
    """Split an action's id into node id, ms and counter. An empty node id: it is no id.

    A counter of -1: it is none that we could have given.
    """
    parts = id.split(" ") if type(id) is str and len(id) <= 1024 else ()
    if len(parts) != 3:
        return "", 0, 0
    ms, node, counter = parts
    if len(ms) > 16 or not _MS.fullmatch(ms) or not _COUNTER.fullmatch(counter):
        return node, 0, -1
    return node, int(ms), int(counter)
