"""Prometheus: the counts of all clients of the process.

::

    import prometheus_client
    from logclient.integrations import prometheus

    prometheus.register()
    prometheus_client.start_http_server(9000)

A client that has ended stays in the counts, so that no counter goes back. The label ``url`` is the URL of the
client without options and secrets; clients with the same URL are added up.

With ``PROMETHEUS_MULTIPROC_DIR`` (gunicorn, uwsgi) the counts are written into the files of
``prometheus_client``, where ``MultiProcessCollector`` finds those of all processes, also of those that have
ended. A thread does that every second, and the end of the process does. So a worker that is killed with -9
may lack what it counted in its last second.

======================================= ======= =======================================================
``logclient_events_sent_total``         counter events given to clients
``logclient_events_acked_total``        counter events that a server has acknowledged
``logclient_events_handed_total``       counter events that the kernel or ZeroMQ has taken
``logclient_events_stored_total``       counter events left in a spool for the next process
``logclient_events_failed_total``       counter events given up, by ``reason``
``logclient_events_dropped_total``      counter events refused or removed because of a bound, by ``reason``
``logclient_events_filtered_total``     counter events that an option held back, by ``reason``: its name
``logclient_events_refused_total``      counter events given to a client after its close
``logclient_events_resent_total``       counter events sent again
``logclient_values_sanitized_total``    counter values changed because they have no encoding
``logclient_fields_moved_total``        counter fields moved because of their name
``logclient_connects_total``            counter connections established
``logclient_disconnects_total``         counter connections that ended before close
``logclient_batches_total``             counter batches sent
``logclient_bytes_sent_total``          counter bytes written to connections
``logclient_events_queued``             gauge   events that wait
``logclient_events_in_flight``          gauge   events sent and not yet acknowledged
``logclient_queue_bytes``               gauge   bytes that count against ``max_bytes``
``logclient_events_spooled``            gauge   events in the files of the spool
``logclient_connected``                 gauge   connections that are open
======================================= ======= =======================================================
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from logclient.delivery import lifecycle
from logclient.errors import MissingExtra

if TYPE_CHECKING:
    from logclient.delivery.stats import Stats

__all__ = ["COUNTERS", "GAUGES", "Collector", "register"]

EVERY = 1.0
"""Seconds from one update of the files to the next, in the mode for many processes."""

COUNTERS = {
    "events_sent": "Events given to clients",
    "events_acked": "Events that a server has acknowledged",
    "events_handed": "Events that the kernel or ZeroMQ has taken",
    "events_stored": "Events left in a spool for the next process",
    "events_failed": "Events given up",
    "events_dropped": "Events refused or removed because of a bound",
    "events_filtered": "Events that an option held back before they were queued",
    "events_refused": "Events given to a client after its close",
    "events_resent": "Events sent again",
    "values_sanitized": "Values changed because they have no encoding",
    "fields_moved": "Fields moved because of their name",
    "connects": "Connections established",
    "disconnects": "Connections that ended before close",
    "batches": "Batches sent",
    "bytes_sent": "Bytes written to connections",
}
GAUGES = {
    "events_queued": "Events that wait",
    "events_in_flight": "Events sent and not yet acknowledged",
    "queue_bytes": "Bytes that count against max_bytes",
    "events_spooled": "Events in the files of the spool",
    "connected": "Connections that are open",
}
_REASONS = ("events_failed", "events_dropped", "events_filtered")

Key = tuple[str, str, str]
"""Name of a metric, URL, reason (or empty)."""
Counts = dict[Key, int]


class Totals:
    """The counts of all clients that this process has had; a child of a fork begins anew."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._live: list[Any] = []  # a strong reference: the last counts of a client are wanted, too
        self._ended: list[tuple[weakref.ref[Any], Counts]] = []
        self._gone: Counts = {}
        lifecycle.observe(self)

    def add(self, engine: Any) -> None:
        """Count an engine from now on. Take the last counts of those that have ended meanwhile."""
        with self._lock:
            if any(one.ended for one in self._live):
                self.read()
            if not any(engine is one for one in self._live):
                self._live.append(engine)

    def process_ends(self) -> None:
        """Do nothing: whoever reads does it when it needs the counts."""

    def after_fork(self) -> None:
        """Forget the counts of the parent."""
        self._lock = threading.RLock()
        self._ended, self._gone = [], {}

    def read(self) -> tuple[Counts, Counts]:
        """Return the counters, and the gauges."""
        counters: Counts = {}
        gauges: Counts = {}
        with self._lock:
            live, self._live = self._live, []
            for engine in live:
                ended = engine.ended  # before the counts are read
                stats = engine.stats()
                counts = _counters(stats)
                _add(counters, counts)
                if ended:
                    self._ended.append((weakref.ref(engine), counts))
                else:
                    self._live.append(engine)
                    _add(gauges, _gauges(stats))
            still: list[tuple[weakref.ref[Any], Counts]] = []
            for reference, last in self._ended:
                engine = reference()
                if engine is None:
                    _add(self._gone, last)
                    continue
                if engine not in live:  # events after close count as refused
                    last = _counters(engine.stats())
                    _add(counters, last)
                still.append((reference, last))
            self._ended = still
            _add(counters, self._gone)
        return counters, gauges


def _add(to: Counts, more: Counts) -> None:
    for key, value in more.items():
        to[key] = to.get(key, 0) + value


def _counters(stats: Stats) -> Counts:
    url = stats.url.partition("?")[0]
    found = {
        "events_sent": stats.sent,
        "events_acked": stats.acked,
        "events_handed": stats.handed,
        "events_stored": stats.stored,
        "events_refused": stats.refused,
        "events_resent": stats.resent,
        "values_sanitized": stats.sanitized,
        "fields_moved": stats.moved,
        "connects": stats.connects,
        "disconnects": stats.disconnects,
        "batches": stats.batches,
        "bytes_sent": stats.bytes_sent,
    }
    counts = {(name, url, ""): value for name, value in found.items()}
    counts |= {("events_failed", url, reason): value for reason, value in stats.failed.items()}
    counts |= {("events_dropped", url, reason): value for reason, value in stats.dropped.items()}
    counts |= {("events_filtered", url, reason): value for reason, value in stats.filtered.items()}
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


def _labels(name: str) -> tuple[str, ...]:
    return ("url", "reason") if name in _REASONS else ("url",)


def _values(name: str, url: str, reason: str) -> tuple[str, ...]:
    return (url, reason) if name in _REASONS else (url,)


class Collector:
    """A collector of ``prometheus_client`` for one process: it reads the counts at each scrape."""

    def __init__(self) -> None:
        self._totals = Totals()

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; the registry calls this."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for words, counts, family in zip(
            (COUNTERS, GAUGES), self._totals.read(), (CounterMetricFamily, GaugeMetricFamily), strict=True
        ):
            for name, text in words.items():
                metric = family(f"logclient_{name}", text, labels=_labels(name))
                for key, value in counts.items():
                    if key[0] == name:
                        metric.add_metric(_values(*key), value)
                yield metric


class _Files:
    """Writes the counts into the files of ``prometheus_client``, from where all processes' are added up."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge

        self._totals = Totals()
        self._lock = threading.Lock()
        self._written: Counts = {}
        self._pid = os.getpid()
        self._metrics: dict[str, Any] = {
            name: Counter(f"logclient_{name}", text, _labels(name), registry=None)
            for name, text in COUNTERS.items()
        } | {
            name: Gauge(f"logclient_{name}", text, ("url",), registry=None, multiprocess_mode="livesum")
            for name, text in GAUGES.items()
        }
        lifecycle.observe(self)
        self._start()

    def add(self, engine: Any) -> None:
        """Do nothing: `Totals` counts it."""

    def process_ends(self) -> None:
        """Write the last counts."""
        self.update()

    def update(self) -> None:
        """Write what was counted since the last time."""
        with self._lock:
            counters, gauges = self._totals.read()
            for key, value in counters.items():
                if more := value - self._written.get(key, 0):
                    self._metrics[key[0]].labels(*_values(*key)).inc(more)
                    self._written[key] = value
            for key in {key for key in self._written if key[0] in GAUGES} - gauges.keys():
                self._metrics[key[0]].labels(*_values(*key)).set(0)
            for key, value in gauges.items():
                self._metrics[key[0]].labels(*_values(*key)).set(value)
                self._written[key] = value

    def _start(self) -> None:
        threading.Thread(target=self._run, name="logclient-metrics", daemon=True).start()

    def _run(self) -> None:
        stop = threading.Event()
        while not stop.wait(EVERY):
            self.update()

    def after_fork(self) -> None:
        """Write for the child; its counts begin at 0."""
        self._lock = threading.Lock()
        self._written = {}
        self._start()


def register(registry: Any = None) -> Any:
    """Have Prometheus see the counts of all clients of this process: those there are, and those to come.

    Args:
        registry: of ``prometheus_client``; None: its default one. With ``PROMETHEUS_MULTIPROC_DIR`` none is
            needed: ``MultiProcessCollector`` reads the files.

    Returns:
        The collector that was registered; with ``PROMETHEUS_MULTIPROC_DIR`` an object whose ``update()``
        writes the files at once.

    Raises:
        MissingExtra: ``prometheus_client`` is not installed.
    """
    try:
        import prometheus_client
    except ImportError:
        raise MissingExtra("prometheus_client", "prometheus") from None
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        return _Files()
    collector = Collector()
    (prometheus_client.REGISTRY if registry is None else registry).register(collector)
    return collector
