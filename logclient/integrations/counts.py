"""The counts of all clients of the process, for the systems that collect metrics."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from logclient.delivery import lifecycle
from logclient.delivery.stats import Stats

# The name in Prometheus, a description, and the name and the unit in OpenTelemetry, of each.
_COUNTERS = (
    ("events_sent", "Events given to clients", "events.sent", "{event}"),
    ("events_acked", "Events that a server has acknowledged", "events.acked", "{event}"),
    ("events_handed", "Events that the kernel or ZeroMQ has taken", "events.handed", "{event}"),
    ("events_stored", "Events left in a spool for the next process", "events.stored", "{event}"),
    ("events_failed", "Events given up", "events.failed", "{event}"),
    ("events_dropped", "Events refused or removed because of a bound", "events.dropped", "{event}"),
    ("events_filtered", "Events that an option held back before they were queued", "events.filtered",
     "{event}"),
    ("events_refused", "Events given to a client after its close", "events.refused", "{event}"),
    ("events_resent", "Events sent again", "events.resent", "{event}"),
    ("values_sanitized", "Values changed because they have no encoding", "values.sanitized", "{value}"),
    ("fields_moved", "Fields moved because of their name", "fields.moved", "{field}"),
    ("connects", "Connections established", "connections.opened", "{connection}"),
    ("disconnects", "Connections that ended before close", "connections.lost", "{connection}"),
    ("batches", "Batches sent", "batches.sent", "{batch}"),
    ("bytes_sent", "Bytes written to connections", "network.sent", "By"),
)  # fmt: skip
_GAUGES = (
    ("events_queued", "Events that wait", "events.queued", "{event}"),
    ("events_in_flight", "Events sent and not yet acknowledged", "events.in_flight", "{event}"),
    ("queue_bytes", "Bytes that count against max_bytes", "queue.size", "By"),
    ("events_spooled", "Events in the files of the spool", "events.spooled", "{event}"),
    ("connected", "Connections that are open", "connections.open", "{connection}"),
)
COUNTERS = {name: text for name, text, _, _ in _COUNTERS}
GAUGES = {name: text for name, text, _, _ in _GAUGES}
# Names and units in OpenTelemetry.
METRICS = {name: (f"logclient.{metric}", unit) for name, _, metric, unit in (*_COUNTERS, *_GAUGES)}
REASONS = ("events_failed", "events_dropped", "events_filtered")  # counters by reason

Key = tuple[str, str, str]  # name of a metric, URL, reason (or empty)
Counts = dict[Key, int]


class Totals(lifecycle.Observer):
    """The counts of all clients that this process has had; a child of a fork begins anew."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._live: list[Any] = []  # a strong reference: the last counts of a client are wanted, too
        self._ended: list[tuple[weakref.ref[Any], Counts]] = []
        self._gone: Counts = {}
        lifecycle.observe(self)

    def add(self, sender: Any) -> None:
        """Count a client from now on. Take the last counts of those that have ended meanwhile."""
        with self._lock:
            if any(one.ended for one in self._live):
                self.read()
            if not any(sender is one for one in self._live):
                self._live.append(sender)

    def after_fork(self) -> None:
        """Forget the counts of the parent."""
        self._lock = threading.RLock()
        self._live = lifecycle.senders()  # another thread may have been reading them
        self._ended, self._gone = [], {}

    def read(self) -> Counts:
        """Return the counters of all clients, and the gauges of those that have not ended."""
        found: Counts = {}
        with self._lock:
            # Signal handlers may raise here, or read themselves: all changes come at the end.
            live, gone, left = self._live[:], dict(self._gone), []
            still: list[tuple[weakref.ref[Any], Counts]] = []
            for reference, last in self._ended:
                sender = reference()
                if sender is None:
                    _add(gone, last)
                    continue
                last = _counters(sender.stats())  # events after close count as refused
                _add(found, last)
                still.append((reference, last))
            for sender in live:
                ended = sender.ended  # before the counts are read
                stats = sender.stats()
                counts = _counters(stats)
                _add(found, counts)
                if ended:
                    still.append((weakref.ref(sender), counts))
                else:
                    left.append(sender)
                    _add(found, _gauges(stats))
            _add(found, gone)
            self._live = left + self._live[len(live) :]  # and those that came meanwhile
            self._ended, self._gone = still, gone
        return found


def _add(to: Counts, more: Counts) -> None:
    for key, value in more.items():
        to[key] = to.get(key, 0) + value


def _counters(stats: Stats) -> Counts:
    url = stats.url.partition("?")[0]
    counts: Counts = {}
    for name in COUNTERS:
        what, _, rest = name.partition("_")
        found = getattr(stats, rest if what in ("events", "values", "fields") else name)
        by_reason = found if name in REASONS else {"": found}
        counts |= {(name, url, reason): value for reason, value in by_reason.items()}
    return counts


def _gauges(stats: Stats) -> Counts:
    url = stats.url.partition("?")[0]
    found = {
        "events_queued": stats.queued,
        "events_in_flight": stats.inflight,
        "queue_bytes": stats.queued_bytes,
        "events_spooled": stats.spooled,
        "connected": max(0, stats.connects - stats.disconnects),
    }
    return {(name, url, ""): value for name, value in found.items()}
