"""Log records that are held back before anything is made of them: samples, rates and repetitions.

The options ``sample``, ``rate_limit`` and ``dedupe`` say which. It runs in the caller's thread, takes no
lock, and keeps a bounded table. What it holds back is counted in ``stats().filtered``. The next record of the
same message that passes says how many were held back before it, in ``labels.suppressed``.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from random import random
from typing import Any

from logclient._ext.constants import FILTER_DEDUPE, FILTER_RATE_LIMIT, FILTER_SAMPLE
from logclient._ext.hash import xxh64
from logclient.records import context, spans
from logclient.standard import time

SUPPRESSED = "labels.suppressed"
LARGEST = 4096  # templates, texts and pairs of logger and level that are remembered

_WINDOW = 1.0
_SHORT = 256  # characters of a template that is kept as it is
_PLACES = re.compile(r"%(\(.*?\))?[-#0 +*.\d]*[hlL]?[a-zA-Z%]|\{.*?\}|\$\w+")


class Sampling:
    """Decides which records pass, by the options of the same names (docs/options.md).

    `count` is called with a number of ``FILTERS`` for each record that is held back. `clock` returns
    monotonic seconds, `random` a number in [0, 1).
    """

    def __init__(
        self,
        sample: Mapping[str, float],
        rate_limit: int,
        dedupe: float,
        count: Callable[[int], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random,
    ) -> None:
        self._count = count
        self._clock = clock
        self._random = random
        self._windows: dict[Any, list[Any]] = {}  # key: [end of the window, passed, held back]
        self.change(sample, rate_limit, dedupe)

    def change(self, sample: Mapping[str, float], rate_limit: int, dedupe: float) -> None:
        """Decide by other options from now on; other threads may use it meanwhile."""
        known = logging.getLevelNamesMapping()
        levels = {known[name]: share for name, share in sample.items() if name in known}
        loggers = {name: share for name, share in sample.items() if name not in known}
        self._share = lru_cache(LARGEST)(partial(_share, levels, loggers)) if sample else None
        self._rate = rate_limit
        self._dedupe = dedupe

    def call(self, logger: str, level: int, msg: object, args: Any, exc_info: Any) -> int:
        """Return what ``admit`` does of a log call that has no record."""
        return self.admit(logger, level, msg, lambda: str(msg) % args if args else str(msg), exc_info)

    def record(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """Return the record to ship: itself, or a copy that says how many were held back; None: none."""
        held = self.admit(record.name, record.levelno, record.msg, record.getMessage, record.exc_info)
        if held <= 0:
            return None if held < 0 else record
        made = copy.copy(record)
        setattr(made, SUPPRESSED, held)
        return made

    def admit(
        self, logger: str, level: int, message: object, text: Callable[[], object], error: object
    ) -> int:
        """Return how many of a record's message were held back since one passed; -1: it does not pass.

        The message is what it was logged with, before its arguments; `text` returns its text, and `error` is
        its exception, as `exc_info` or by the name of its type.
        """
        if (shares := self._share) is not None:
            share = shares(logger, level)
            if share < 1.0 and self._random() >= share:
                self._count(FILTER_SAMPLE)
                return -1
        held = found = 0
        if dedupe := self._dedupe:
            try:
                said = text()
            except Exception:  # arguments that do not fit, or an object without a text
                said = template(message)
            held = self._pass(hash((logger, level, said, _kind(error))), dedupe, 1)
            if held < 0:
                self._count(FILTER_DEDUPE)
                return -1
        if rate := self._rate:
            said = template(message)
            if _has_no_words(said):
                with suppress(Exception):
                    said = template(text())
            found = self._pass((logger, said), _WINDOW, rate, held)
            if found < 0:
                self._count(FILTER_RATE_LIMIT)
                return -1
        return held + found

    def _pass(self, key: Any, seconds: float, most: int, held: int = 0) -> int:
        """Count one of `key`, for which `held` others were held back by another rule.

        Return how many were held back before it, or -1 if `most` have passed.
        """
        now = self._clock()
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= LARGEST:
                self._forget(now)
            self._windows[key] = [now + seconds, 1, 0]
            return 0
        if now >= window[0]:
            before: int = window[2]
            window[:] = now + seconds, 1, 0
            return before
        if window[1] < most:
            window[1] += 1
            return 0
        window[2] += 1 + held
        return -1

    def _forget(self, now: float) -> None:
        """Make room: forget what is over and held nothing back, or else the oldest half."""
        entries = list(self._windows.items())
        over = [key for key, (end, _, held) in entries if now >= end and not held]
        for key in over or [key for key, _ in entries[: LARGEST // 2]]:
            self._windows.pop(key, None)


def _share(levels: Mapping[int, float], loggers: Mapping[str, float], logger: str, level: int) -> float:
    name = logger if level < logging.WARNING else ""
    while name and name not in loggers:
        name = name.rpartition(".")[0]
    return loggers[name] if name else levels.get(level, 1.0)


def template(message: object) -> object:
    """Return what is equal for messages that a reader calls the same, however their arguments differ.

    It is hashable and small, and no object of the application.
    """
    try:
        if isinstance(message, str):
            text = str.__str__(message)
            return text if len(text) <= _SHORT else hash(text)
        if isinstance(message, Mapping):
            for name in ("message", "event", "msg"):
                found = message.get(name)
                if found is not None and not isinstance(found, Mapping) and (made := template(found)) != "":
                    return made
        elif isinstance(message, BaseException):
            return type(message).__qualname__, template(str(message))
        else:
            for name in ("fmt", "format", "template", "msg"):  # of objects that format themselves
                found = getattr(message, name, None)
                if isinstance(found, str) and any(mark in found for mark in "{%$"):
                    return template(found)
        return template(str(message))
    except Exception:
        return f"<unprintable {type(message).__name__}>"


@lru_cache(LARGEST)
def _has_no_words(said: object) -> bool:
    """Return whether a template is nothing but places for arguments, such as ``%s`` or ``[%(name)s] {}``."""
    return isinstance(said, str) and not re.search(r"\w", _PLACES.sub("", said))


def draw_of_trace() -> float:
    """Return the number in [0, 1) of this context's trace as OpenTelemetry has it, else of its request.

    With it, all records of a trace or a request pass, or none, as far as shares decide.
    """
    fields = {**context.bound(), **spans.active_fields()}
    with suppress(KeyError, TypeError, ValueError):
        return int(fields["trace.id"][-16:], 16) / 2**64
    request = fields.get("http.request.id")
    try:
        return random() if request is None else xxh64(str(request).encode(errors="replace")) / 2**64
    except Exception:  # what was bound has no text
        return random()


def _kind(error: Any) -> str:
    if isinstance(error, str):
        return error
    kind = error[0] if isinstance(error, tuple) and error else type(error)
    return getattr(kind, "__qualname__", "")
