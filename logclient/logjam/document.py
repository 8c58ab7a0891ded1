"""The rules for documents that importers accept: limits, names and values. No clock, no I/O.

A Logjam device never opens a body. The importer behind it does. It is written in C and trusts its input: a
``null`` where it expects a string ends the process, and so does an action of two thousand characters, because
it fills a buffer of that size without checking the length. Therefore all documents keep these rules:

* ``started_at`` is present, and its first 19 characters are the importer's local time; a document more than
  48 hours away from its clock is dropped;
* a string has no NUL and at most 10,000 bytes of UTF-8; an action, an id, an exception and a key 1,000;
* keys have no ``.`` and no ``$``, and none is empty;
* objects and arrays are nested 32 deep at most (the importer's JSON parser gives up beyond);
* integers fit 64 bits, numbers are finite;
* ``lines`` is an array of at most 10,000 ``[severity, time, text]``; ``exceptions`` and
  ``soft_exceptions`` are arrays of strings, ``request_info`` and its ``headers`` are objects.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

MAX_LINE = 2048  # characters of a line below ERROR
MAX_LINES = 10_000
MAX_LINES_BYTES = 1 << 20  # all lines of a request, as UTF-8
MAX_STRING = 10_000  # bytes
MAX_NAME = 1_000  # bytes
MAX_DEPTH = 16  # below a field; the document adds three levels of its own
MAX_VALUES = 10_000  # in a document, not counting lines
MAX_VALUES_BYTES = 128 << 10
MAX_ALIKE = 100  # keys of one object that became equal to another

LINE_TRUNCATED = " ... [LINE TRUNCATED]"
LINES_DROPPED = "... [LINES DROPPED]"
DROPPED = "[DROPPED]"
CYCLE = "[CYCLE]"
FILTERED = "[FILTERED]"

MASKED = (
    "authorization", "bearer", "cookie", "passw", "passphrase", "pwd", "secret", "token", "apikey",
    "credential", "session", "sessid", "signature", "privatekey", "creditcard", "cardnumber", "cvv", "cvc",
    "jwt", "=auth", "=oauth", "=xauth", "=otp", "=totp", "=sid", "=code", "=key",
)  # fmt: skip
"""Parts of names whose values are masked. A ``=`` before it: the whole name, or the whole part in brackets or
between dots. Only letters and digits are compared, in any case."""

# Fields of a document, fields that the importer adds, and those that it takes for ids of its database.
OWN = frozenset({
    "action", "started_at", "started_ms", "total_time", "code", "severity", "request_id", "caller_id",
    "caller_action", "trace_id", "lines", "exceptions", "soft_exceptions", "request_info", "host",
    "process_id", "ip", "cluster", "datacenter", "namespace", "revision", "uuid", "wait_time", "page",
    "response_code", "minute", "other_time", "metrics", "module", "logjam_action", "logjam_request_id",
    "_id", "rts", "description", "label",
})  # fmt: skip

INFO, ERROR = 1, 3


def severity_of(level: float) -> int:
    """Return a severity, 0 DEBUG, 1 INFO, 2 WARN, 3 ERROR or 4 FATAL, for a level number of ``logging``."""
    return 0 if level < 20 else 4 if level >= 50 else int(level) // 10 - 1


# -- strings


def text_of(value: object) -> str:
    """Return any object as text without NUL that can be encoded as UTF-8. Never raises."""
    if isinstance(value, str):
        text = str.__str__(value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        text = bytes(value).decode("utf-8", "replace")
    else:
        try:
            text = str.__str__(str(value))
        except Exception:
            text = f"<{type(value).__name__}>"
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def cut(text: str, limit: int, mark: str = "") -> str:
    """Cut a text to `limit` bytes of UTF-8, at a character. A text that was cut ends with `mark`."""
    if len(text) * 4 <= limit or (text.isascii() and len(text) <= limit):
        return text
    data = text[: limit + 1].encode()
    if len(data) <= limit:
        return text
    return data[: limit - len(mark.encode())].decode("utf-8", "ignore") + mark


def line_text(value: object, severity: int) -> str:
    """Return the text of a line, cut at 2048 characters or, from ERROR on, as late as possible."""
    text = text_of(value)
    if severity < ERROR and len(text) > MAX_LINE:
        return text[:MAX_LINE] + LINE_TRUNCATED
    return cut(text, MAX_STRING, LINE_TRUNCATED)


def name_text(value: object) -> str:
    """Return an id, a caller's action, or the name of an exception, cut to its bound."""
    return cut(text_of(value), MAX_NAME)


_KEY = re.compile(rf"[ !\"#%-\-/-~]{{1,{MAX_NAME}}}")  # a key that may stay: printing ASCII without . and $
_BLANK = re.compile(r"[\x00-\x20\x7f]+")
_UNKNOWN = "unknown_method"


def action_name(value: object) -> str:
    """Return ``<module>#<method>``; the importer names a missing part so. None: both are missing."""
    text = "" if value is None else _BLANK.sub("_", text_of(value))
    if not text:
        return f"Unknown#{_UNKNOWN}"
    text = cut(text, MAX_NAME)
    if "#" not in text:
        return f"{cut(text, MAX_NAME - 1 - len(_UNKNOWN))}#{_UNKNOWN}"
    return cut(text, MAX_NAME - len(_UNKNOWN)) + _UNKNOWN if text.endswith("#") else text


# -- times


def local_time(seconds: float, zone: datetime.tzinfo | None) -> str:
    """Return ``started_at``: whole seconds of the importer's local time, and the offset, which it ignores."""
    moment = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
    if zone is None:
        # Not by `astimezone`, which ends Python 3.13 with SIGSEGV in late destructors.
        local = datetime.datetime.fromtimestamp(int(seconds))
        zone = datetime.timezone(local - moment.replace(tzinfo=None))
    return moment.astimezone(zone).isoformat()


_STARTED = re.compile(r"\d{4}-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d:[0-6]\d")
_APART = 48 * 3600


class Clock:
    """The ``started_at`` of an importer: how it is written, and which values the importer accepts.

    A few results are kept, because most documents come in the same second as the one before.
    """

    def __init__(self, zone: datetime.tzinfo | None) -> None:
        self._started = lru_cache(4)(partial(local_time, zone=zone))
        self._second = lru_cache(4)(lambda whole: timestamp(whole, zone)[:19])

    def text(self, seconds: float) -> str:
        return self._started(int(seconds))

    def texts(self, whole: int) -> tuple[str, str]:
        """Return ``started_at`` for a whole second, and the time of a line in it without the microseconds."""
        return self.text(whole), self._second(whole)

    def line_time(self, seconds: float) -> str:
        """Return the time of a line as `timestamp` does, for many lines, most of them in the same second."""
        try:
            fraction, whole = math.modf(seconds)
            more, microseconds = divmod(round(fraction * 1e6), 10**6)
            second = self._second(int(whole) + more)
        except (OverflowError, ValueError, OSError, TypeError):  # a record made by the application
            return self.line_time(0.0)
        return f"{second}.{microseconds:06d}"

    def takes(self, started: object, now: float) -> bool:
        """Return whether the importer accepts this ``started_at``, of any type."""
        text = text_of(started)  # a datetime, as it is encoded
        if not _STARTED.match(text):
            return False
        first, last = (self.text(int(now) + apart)[:19] for apart in (-_APART, _APART))
        # These texts sort by time.
        return first <= text[:19].replace(" ", "T") <= last


def timestamp(seconds: float, zone: datetime.tzinfo | None) -> str:
    """Return the time of a line: local time with microseconds, without the offset."""
    return datetime.datetime.fromtimestamp(seconds, zone).replace(tzinfo=None).isoformat("T", "microseconds")


# -- names that must not be shown


_USERINFO = re.compile(r"([A-Za-z][\w+.-]*:)?//[^/?#]*@")
_SEPARATORS = re.compile("([?#&;])")
_MAX_NESTED = 3  # levels of URLs in parameters of URLs


class Masks:
    """Decides by their names, as in ``MASKED``, which values must not leave the application."""

    def __init__(self, names: Iterable[str] = MASKED) -> None:
        plain = [(name, _plain_name(name)) for name in names]
        parts = [re.escape(part) for name, part in plain if part and name[0] != "="]
        self._hidden = re.compile("|".join(parts) or r"(?!)")
        self._whole = {part for name, part in plain if name[:1] == "="}
        self._known: dict[str, bool] = {}  # requests have the same names again and again

    def hides(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            plain = _plain_name(name)
            known = bool(self._hidden.search(plain)) or not self._whole.isdisjoint(_BRACKETS.split(plain))
            if len(name) <= 100 and len(self._known) < 1000:
                self._known[name] = known
        return known

    def url(self, url: str, nested: int = _MAX_NESTED) -> str:
        """Return the URL without user and password, and with the values of masked parameters replaced.

        A parameter follows ``?``, ``#``, ``&`` or ``;``. A value that is a URL with something masked is
        replaced as a whole.
        """
        if "@" in url and (user := _USERINFO.match(url)):
            url = f"{user[1] or ''}//{url[user.end() :]}"
        pieces = _SEPARATORS.split(url)
        for n in range(2, len(pieces), 2):
            name, equals, value = pieces[n].partition("=")
            if equals and (self.hides(_unquoted(name)) or self._tells(_unquoted(value), nested)):
                pieces[n] = f"{name}={FILTERED}"
        return "".join(pieces)

    def _tells(self, value: str, nested: int) -> bool:
        """Return whether a URL contains something masked. Assume so when it is nested too deep."""
        if "//" not in value and not _SEPARATORS.search(value):
            return False
        return not nested or self.url(value, nested - 1) != value


def _unquoted(text: str) -> str:
    if "%" not in text and "+" not in text:
        return text
    from urllib.parse import unquote_plus

    return unquote_plus(text)


_NO_PART = re.compile(r"[^\w\[\].]|_")
_BRACKETS = re.compile(r"[\[\].]+")


def _plain_name(name: str) -> str:
    """Return the letters and digits of a name, in lower case, with its brackets and dots."""
    if not name.isascii():
        from unicodedata import normalize

        name = normalize("NFKC", name)
    return name.lower() if name.isalnum() else _NO_PART.sub("", name.lower())


# -- values


class Alike:
    """Finds free names for keys that have become equal to a key of the same object.

    Each number is tried once per object, so the keys that are there cost one step each at most.
    """

    __slots__ = ("_count", "_number")

    def __init__(self) -> None:
        self._count = 0
        self._number = 1

    def other(self, key: str, taken: Container[str]) -> str | None:
        """Return the key with ``_``, ``_2``, ``_3``, ... appended, or None after `MAX_ALIKE` of them."""
        if self._count == MAX_ALIKE:
            return None
        self._count += 1
        mark = "_"
        while (found := cut(key, MAX_NAME - len(mark)) + mark) in taken:
            self._number += 1
            mark = f"_{self._number}"
        return found


class Values:
    """Converts any Python value to a JSON value within the limits of one document. Never raises an Exception.

    A value beyond the limits becomes ``"[DROPPED]"``, a container inside itself ``"[CYCLE]"``, and, while
    ``masks`` is set, a masked value ``"[FILTERED]"``.
    """

    def __init__(self) -> None:
        self.masks: Masks | None = None
        self._left = MAX_VALUES
        self._room = MAX_VALUES_BYTES
        self._inside: list[int] = []

    def plain(self, value: object) -> Any:
        """Return the value as None, bool, int, float, str, list or dict."""
        self._left -= 1
        if self._left < 0:
            return DROPPED
        if type(value) is str:
            return self.string(value if self.masks is None or "//" not in value else self.masks.url(value))
        try:
            return self._plain(value)
        except Exception:
            return f"<{type(value).__name__}>"

    def mapping(self, value: object) -> dict[str, Any]:
        """Return the value as an object, which is empty if the value is not a mapping."""
        found = self.plain(value) if isinstance(value, Mapping) else {}
        return found if isinstance(found, dict) else {}

    def string(self, value: object) -> str:
        """Return the value as a string within the limits."""
        if type(value) is str and value.isascii() and "\0" not in value:  # as most are
            size = len(value)
            if size <= MAX_STRING and size <= self._room:
                self._room -= size
                return value
        text = cut(text_of(value), MAX_STRING)
        size = len(text) if text.isascii() else len(text.encode())
        if size > self._room:
            return DROPPED
        self._room -= size
        return text

    def key(self, value: object) -> str:
        """Return a name as a key that the importer accepts."""
        if type(value) is str and _KEY.fullmatch(value) and len(value) <= self._room:
            self._room -= len(value)
            return value
        text = self.string(value).replace(".", "_").replace("$", "_")
        return cut(text, MAX_NAME) or "_"

    def _plain(self, value: object) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            number = int.__index__(value)
            return number if -(1 << 63) <= number < 1 << 63 else self.string(hex(number))
        if isinstance(value, float):
            real = float.__add__(value, 0.0)
            return real if real - real == 0.0 else None  # neither NaN nor infinite
        if isinstance(value, Mapping):
            return self._container(value, self._object)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._container(value, self._array)
        return self.string(value)

    def _container(self, value: Any, how: Callable[[Any], Any]) -> Any:
        if id(value) in self._inside:
            return CYCLE
        if len(self._inside) == MAX_DEPTH:
            return DROPPED
        self._inside.append(id(value))
        try:
            return how(value)
        finally:
            self._inside.pop()

    def _array(self, values: Iterable[object]) -> list[Any]:
        found = []
        for value in list(values):
            if self._left <= 0:
                break
            found.append(self.plain(value))
        return found

    def _object(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        alike = Alike()
        for name, inner in list(value.items()):
            if self._left <= 0:
                break
            key: str | None = self.key(name)
            if key in found:
                key = alike.other(key, found) if key != DROPPED else None
            if key is None:
                self._left -= 1
            elif self.masks is not None and self.masks.hides(name if type(name) is str else text_of(name)):
                self._left -= 1
                found[key] = FILTERED
            else:
                found[key] = self.plain(inner)
        return found
