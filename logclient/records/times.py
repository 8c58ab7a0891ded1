"""Times that the application gives an event: read in many forms, written as RFC 3339 wants them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["corrected", "read"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 64
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
_UTC = re.compile(r"\s*(?:UTC|GMT|Z)$")
_OFFSET = re.compile(r"\s+(?=[+-]\d)")


def read(given: Any) -> datetime | None:
    """Return a time in UTC; None: it makes no sense as a time.

    Text is that of RFC 3339 or ISO 8601, also with a space for the T. Numbers count from 1970: seconds below
    1e11, milliseconds below 1e14, microseconds below 1e17, else nanoseconds. What has no zone is local.
    """
    if given is None:
        return None
    try:
        if getattr(type(given), "astimezone", None) is datetime.astimezone:
            moment: datetime = given
            return moment.astimezone(UTC)
        if hasattr(given, "dtype"):  # of numpy, whose times are in UTC
            given = f"{given.astype('M8[us]')}Z" if given.dtype.kind == "M" else given.item()
        if isinstance(given, str):
            found = _parsed(given)
        elif hasattr(given, "isoformat"):  # Timestamp of pandas has no other way that holds without a zone
            found = _parsed(given.isoformat()).replace(fold=getattr(given, "fold", 0))
        elif isinstance(given, bool):
            return None
        else:
            size = abs(given)
            per_second = 1 if size < 1e11 else 10**3 if size < 1e14 else 10**6 if size < 1e17 else 10**9
            found = _EPOCH + timedelta(microseconds=round(given * 10**6 / per_second))
        return found.astimezone(UTC)
    except Exception:
        return None


def _parsed(given: str) -> datetime:
    given = _OFFSET.sub("", _UTC.sub("Z", given[:_LONGEST].strip().upper()))
    if given[16:19] == ":60":  # a leap second, which POSIX has no number for
        return datetime.fromisoformat(f"{given[:16]}:59{given[19:]}") + timedelta(seconds=1)
    return datetime.fromisoformat(given)


def corrected(event: dict[Any, Any], label: str = "labels.timestamp") -> tuple[dict[Any, Any], int]:
    """Return an event, or a copy whose ``@timestamp`` is right, and how many fields have moved.

    What makes no sense as a time becomes now, and is kept in the field `label`.
    """
    given = event["@timestamp"]
    if type(given) is str and _RFC3339.fullmatch(given):
        with suppress(ValueError):
            datetime.fromisoformat(given)
            return event, 0
    found = read(given)
    moment = found or datetime.now(UTC)
    made = {**event, "@timestamp": moment.isoformat(timespec="microseconds")[:-6] + "Z"}
    if found is not None or given is None or (type(given) is str and not given):
        return made, 0
    free, number = label, 1
    while free in made:
        number += 1
        free = f"{label}_{number}"
    made[free] = given
    return made, 1
