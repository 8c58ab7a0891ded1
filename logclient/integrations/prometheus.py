"""Prometheus: the counts of all clients of the process.

A client that has ended stays in the counts, so that no counter goes back. The label ``url`` is the URL of the
client without options and secrets; clients with the same URL are added up.

With ``PROMETHEUS_MULTIPROC_DIR`` a thread writes them into the files of ``prometheus_client`` every second,
and the end of the process does. docs/metrics.md describes the metrics.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

from logclient.delivery import error_log, lifecycle
from logclient.errors import MissingExtra, describe_error
from logclient.integrations.counts import COUNTERS, GAUGES, REASONS, Counts, Totals
from logclient.threads import Thread

__all__ = ["COUNTERS", "GAUGES", "Collector", "register"]

EVERY = 1.0  # seconds from one update of the files to the next, in the mode for many processes


def _labels(name: str) -> tuple[str, ...]:
    return ("url", "reason") if name in REASONS else ("url",)


def _values(name: str, url: str, reason: str) -> tuple[str, ...]:
    return (url, reason) if name in REASONS else (url,)


class Collector:
    """A collector of ``prometheus_client`` for one process: it reads the counts at each scrape."""

    def __init__(self) -> None:
        self._totals = Totals()

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; the registry calls this."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counts = self._totals.read()
        for name, text in (COUNTERS | GAUGES).items():
            family = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            metric = family(f"logclient_{name}", text, labels=_labels(name))
            for key, value in counts.items():
                if key[0] == name:
                    metric.add_metric(_values(*key), value)
            yield metric


class _Files(lifecycle.Observer):
    """Writes the counts into the files of ``prometheus_client``, from where all processes' are added up."""

    def __init__(self) -> None:
        self._totals = Totals()
        lifecycle.observe(self)
        self.after_fork()
        os.register_at_fork(before=self._before_fork, after_in_parent=self._in_parent)

    def process_ends(self) -> None:
        # In a thread: a signal handler may have interrupted the one that holds a lock of `prometheus_client`.
        thread = Thread(target=self._try_update, name="logclient-metrics", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends
            self._try_update()
        else:
            thread.join(EVERY)

    def _try_update(self) -> None:
        try:
            self.update()
        except Exception as error:
            words = f"the counts for Prometheus are not written: {describe_error(error)}"
            error_log.process.warn_limited("metrics", words)

    def update(self) -> None:
        with self._lock:
            # No counter is missing later on, but gauges of clients that have ended.
            for key, value in (dict.fromkeys(self._written, 0) | self._totals.read()).items():
                metric = self._metrics[key[0]]
                if key[0] in GAUGES:
                    metric.labels(*_values(*key)).set(value)
                elif more := value - self._written.get(key, 0):
                    metric.labels(*_values(*key)).inc(more)
                self._written[key] = value

    def _run(self) -> None:
        stop = threading.Event()
        while not stop.wait(EVERY):
            self._try_update()

    def _before_fork(self) -> None:
        """Let an update end: the child would find the locks of ``prometheus_client`` held for ever."""
        if self._lock.acquire(timeout=EVERY):
            self._forking = threading.get_ident()

    def _in_parent(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = 0
            self._lock.release()

    def after_fork(self) -> None:
        """Write for the child; its counts begin at 0."""
        from prometheus_client import Counter, Gauge

        # The parent's would refer to its closed files for ever, if the child cannot open its own at once.
        self._metrics: dict[str, Any] = {
            name: Counter(f"logclient_{name}", text, _labels(name), registry=None)
            for name, text in COUNTERS.items()
        } | {
            name: Gauge(f"logclient_{name}", text, ("url",), registry=None, multiprocess_mode="livesum")
            for name, text in GAUGES.items()
        }
        self._lock = threading.Lock()
        self._forking = 0
        self._written: Counts = {}
        Thread(target=self._run, name="logclient-metrics", daemon=True).start()


_files = functools.cache(_Files)  # one for the process


def register(registry: Any = None) -> Any:
    """Have Prometheus see the counts of all clients of this process: those there are, and those to come.

    Args:
        registry: of ``prometheus_client``; None: its default one. With ``PROMETHEUS_MULTIPROC_DIR`` none is
            needed: ``MultiProcessCollector`` reads the files.

    Returns:
        The collector that was registered; with ``PROMETHEUS_MULTIPROC_DIR`` an object whose ``update()``
        writes the files at once, the same one for each call.

    Raises:
        MissingExtra: ``prometheus_client`` is not installed.
    """
    try:
        import prometheus_client
    except ImportError:
        raise MissingExtra("prometheus_client", "prometheus") from None
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        return _files()
    collector = Collector()
    (prometheus_client.REGISTRY if registry is None else registry).register(collector)
    return collector
