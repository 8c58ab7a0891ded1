"""The selection of one time out of the evidence. The rules: ``docs/verify-rules.md``."""

from __future__ import annotations

import datetime
import re
from typing import Any, NamedTuple

from logclient.errors import ConfigError

CLOCKS_US = 10_000_000
"""The clocks of two machines differ by less, where the time of one decides about events of the other."""

MAX_TIME_US = 1 << 60  # times are below it
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Selection(NamedTuple):
    """The events that a verification judges. Times are in microseconds since 1970; None: no bound."""

    since_us: int | None = None  # events made before are left out
    until_us: int | None = None  # events made then or later are left out

    @classmethod
    def read(cls, since: float | str | None = None, until: float | str | None = None) -> Selection:
        """Check the arguments of a verification."""
        since_us, until_us = read_time("since", since), read_time("until", until)
        if since_us is not None and until_us is not None and since_us >= until_us:
            raise ConfigError("since: it must be before until")
        return cls(since_us, until_us)

    def place(self, times: Any) -> Any:
        """Return for each time of an array, as int8, -1: before the selection, 0: in it, 1: after it."""
        after = times >= (MAX_TIME_US if self.until_us is None else self.until_us)
        before = times < (-MAX_TIME_US if self.since_us is None else self.since_us)
        return after.astype("i1") - before

    @property
    def phrase(self) -> str:
        """What is selected, as an attribute of events; empty: everything."""
        since, until = ("" if us is None else time_text(us) for us in (self.since_us, self.until_us))
        if since and until:
            return f"made from {since} to {until}"
        return f"made since {since}" if since else f"made until {until}" if until else ""


EVERYTHING = Selection()


def time_text(us: int) -> str:
    """Write a time in microseconds since 1970 as ISO 8601, in UTC."""
    try:
        at = _EPOCH + datetime.timedelta(microseconds=us)
    except OverflowError:
        return f"{us / 1e6:.0f} s"
    return f"{at.replace(tzinfo=None).isoformat()}Z"


def read_time(name: str, given: float | str | None) -> int | None:
    """Read a time, in microseconds since 1970. Errors begin with `name`, that of the argument.

    It is ISO 8601, in UTC unless it has a zone; or seconds since 1970, as a number or text behind ``@``.
    """
    if given is None:
        return None
    if isinstance(given, str) and re.fullmatch(r"\s*[+-]?\d+(\.\d*)?\s*", given):
        raise ConfigError(
            f"{name}: {given[:40]!r} is a number alone: write a time such as 2026-01-01T00:00:00Z, or"
            " @1767225600 for seconds since 1970"
        )
    try:
        if isinstance(given, str) and not re.fullmatch(r"@-?\d+(\.\d+)?", given, re.ASCII):
            at = datetime.datetime.fromisoformat(given)
            at = at.replace(tzinfo=at.tzinfo or datetime.UTC)
            return (at - _EPOCH) // datetime.timedelta(microseconds=1)
        us = round(float(given.removeprefix("@") if isinstance(given, str) else given) * 1_000_000)
        if abs(us) < MAX_TIME_US:
            return us
    except (ValueError, OverflowError):
        pass
    shown = repr(given[:40]) if isinstance(given, str) else "the number"
    raise ConfigError(
        f"{name}: {shown} must be a time such as 2026-05-01T12:00:00Z, or @ and seconds since 1970"
    )
