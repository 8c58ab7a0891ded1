"""Random fields of clients, contexts and events, which clash in every way; and records with them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from logclient._ext.record import Encoder

NAMES = st.sampled_from(
    (
        "a", "a.b", "a.b.c", "b", "b.a", "user", "user.id", "user.name", "service", "service.name", "labels",
        "labels.a", "labels.user", "event", "event.kind", "event.id", "error", "error.code", "error.type",
        "log", "log.level", "log.flags", "process.pid", "message", "@timestamp", "@metadata", "tags", "é",
        "é.x", "trace.id", "host", "host.name", "",
    )
)  # fmt: skip
VALUES = st.one_of(
    st.integers(-5, 5),
    st.text(max_size=5),
    st.none(),
    st.just([1, "x"]),
    st.dictionaries(st.sampled_from(("b", "id", "name", "x.y", "type")), st.integers(0, 9), max_size=2),
)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=4)
OURS = frozenset(
    json.loads(Encoder().encode_record(logging.LogRecord("n", 20, "/a/b.py", 3, "m", (), None, "f"))[0])
)


class Lazy:
    """An object whose class is not known before a query that fails, as of Django's SimpleLazyObject."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("the database is gone")

    @__class__.setter
    def __class__(self, _: Any) -> None: ...

    __str__ = __repr__ = __class__.fget  # type: ignore[attr-defined]


def record_of(extra: Mapping[str, Any], msg: Any = "text %d", args: Any = (1,)) -> logging.LogRecord:
    """Return a record with these attributes, as far as it has none of that name."""
    record = logging.LogRecord("shop", logging.INFO, "/srv/shop.py", 7, msg, args, None, "pay")
    record.__dict__.update({name: value for name, value in extra.items() if name not in record.__dict__})
    return record


def members_of(body: bytes) -> dict[str, Any]:
    """Return the members of a JSON object, none of which may occur twice, at any depth."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    found: dict[str, Any] = json.loads(body, object_pairs_hook=unique)
    return found
