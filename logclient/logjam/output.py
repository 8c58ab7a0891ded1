"""The common part of an application's documents, and the way to their sink."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from logclient._ext.constants import K_ID1_TAKEN, K_TOPIC_SHIFT
from logclient._ext.record import Encoder
from logclient.delivery.error_log import ErrorLog
from logclient.errors import ConfigError
from logclient.logjam import document
from logclient.logjam.core import split_app_env
from logclient.logjam.document import MASKED
from logclient.records.place import node_name

__all__ = ["DocumentOutput", "Sink"]

Sink = Callable[[bytes, int, int], object]
"""``sink(body, level, kind)`` takes a document, with a level number of ``logging``."""

MAX_EVENT_BYTES = 8 << 20


class DocumentOutput:
    """The part of an `Agent` that encodes documents and gives them to a sink; it has the arguments."""

    def __init__(
        self,
        sink: Sink,
        app_env: str,
        *,
        zone: str | datetime.tzinfo | None = None,
        host: str | None = None,
        cluster: str | None = None,
        datacenter: str | None = None,
        namespace: str | None = None,
        revision: str | None = None,
        mask: Iterable[str] = MASKED,
        max_event_bytes: int = MAX_EVENT_BYTES,
        own_ids: bool = True,
        reporter: ErrorLog | None = None,
        lost: Callable[[], object] | None = None,
        moved: Callable[[int], object] | None = None,
    ) -> None:
        split_app_env(app_env)
        if isinstance(mask, str):
            raise ConfigError("mask: must be several parts of names, not one string")
        self.sink = sink
        self.app_env = app_env
        self.zone = _zone(zone)
        self._clock = document.Clock(self.zone)
        self.masks = document.Masks(mask)
        self.failed = 0  # documents that were not made or not taken
        place = {
            "host": node_name() if host is None else host,
            "cluster": cluster,
            "datacenter": datacenter,
            "namespace": namespace,
            "revision": revision,
        }
        self.place = {name: document.name_text(value) for name, value in place.items() if value is not None}
        self.own_ids = own_ids
        self._encoder = Encoder(max_event_bytes=max_event_bytes, ecs=False, carriers=())
        self._reporter = reporter or ErrorLog()
        self._lost = lost
        self._moved = moved

    def complain(self, error: BaseException, what: str) -> None:
        """Count a document that was lost here, and log it, at most once a minute for each kind of error."""
        self.failed += 1
        if self._lost is not None:
            self._lost()
        self._reporter.complain(f"logjam:{type(error).__name__}", f"{what}: {type(error).__name__}: {error}")

    def times(self, seconds: float) -> dict[str, Any]:
        """Return the fields for a time in seconds since 1970."""
        return {"started_at": self._clock.text(seconds), "started_ms": int(seconds * 1000)}

    def count_moved(self, count: int) -> None:
        """Count ids of the application that became other fields."""
        if count and self._moved is not None:
            self._moved(count)

    def add_fields(self, made: dict[str, Any], fields: Mapping[str, Any], values: document.Values) -> None:
        """Add the user's fields to a document, under names that are free."""
        ids = 0
        alike = document.Alike()
        if not isinstance(fields, Mapping):  # the application has replaced the dict
            fields = {"fields": fields}
        for name, value in list(fields.items()):
            key = values.key(name)
            plain = values.plain(value)
            if key in ("request_id", "uuid"):
                key = f"labels_{key}"
                ids += 1
            if key.endswith(("_time", "_calls")) and (
                isinstance(plain, bool) or not isinstance(plain, (int, float))
            ):
                # The importer would take it for a number.
                key = f"{document.cut(key, document.MAX_NAME - 1)}_"
            if key in made or key in document.OWN:
                other = alike.other(key, made)
                if other is None:
                    continue
                key = other
            made[key] = plain
        self.count_moved(ids)

    def trace(self, error: BaseException) -> str:
        """Return the text of an exception, with its traceback."""
        return self._encoder.exceptions.format((type(error), error, error.__traceback__))

    def put(self, made: Mapping[str, Any], topic: int, level: int) -> Any:
        """Encode a document and pass it to the sink; return the sink's result."""
        body = self._encoder.encode(made)[0]
        return self.sink(body, level, topic << K_TOPIC_SHIFT | (K_ID1_TAKEN if "request_id" in made else 0))


def _zone(zone: str | datetime.tzinfo | None) -> datetime.tzinfo | None:
    if zone is None or isinstance(zone, datetime.tzinfo):
        return zone
    if zone == "UTC":  # works without a time zone database
        return datetime.UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError, TypeError):
        raise ConfigError("zone: must be a name of the time zone database, such as Europe/Berlin") from None
