"""Record outcomes: ledger lines, deliveries, replies."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from logclient.delivery.backoff import Backoff, random
from logclient.delivery.diagnostics import describe_error

if TYPE_CHECKING:
    from typing import Any

    from logclient._ext.inflight import InflightBatches
    from logclient._ext.pump import PumpGroup
    from logclient.config import Config
    from logclient.delivery.diagnostics import Diagnostics
    from logclient.delivery.requests import Requests
    from logclient.delivery.submissions import Submissions
    from logclient.files.ledger import Ledger


class History(NamedTuple):
    """What happened to a producer's events before this process took them over.

    Attributes:
        counts: the number of events by status and reason.
        complete: whether every event that is not queued here is among them.
    """

    counts: dict[tuple[str, str], int]
    complete: bool

    def add_to(self, counts: dict[str, Any]) -> dict[str, Any]:
        """Return the counters of a queue with these added."""
        total = {**counts, "failed": dict(counts["failed"]), "dropped": dict(counts["dropped"])}
        for (status, reason), n in self.counts.items():
            if status in ("failed", "dropped"):
                total[status][reason] = total[status].get(reason, 0) + n
            elif status in total:
                total[status] += n
        return total


class Bookkeeper:
    """The books of one producer; used by the sender alone.

    Args:
        ledger: None: there is none.
        pump: writes ``batch`` lines itself, and has the events of the core.
        limits: of the waits when the ledger cannot be opened.
        producer: 20 hexadecimal digits.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        in_flight: InflightBatches,
        pump: PumpGroup,
        submissions: Submissions,
        requests: Requests,
        limits: Config,
        diagnostics: Diagnostics,
        producer: str,
    ) -> None:
        self.ledger = ledger
        self._in_flight = in_flight
        self._pump = pump
        self._submissions = submissions
        self._requests = requests
        self._backoff = Backoff(limits.backoff_min, limits.backoff_max, random)
        self.not_before = 0.0  # when to try again to open it, a monotonic second
        self._diagnostics = diagnostics
        self._producer = producer
        # By status and reason: outcomes that wait for the ledger. Nothing is sent meanwhile, so they are of
        # events that were dropped or given up, in no more ranges than the queue has events.
        self._unlisted: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.history: History | None = None

    def open(self) -> bool:
        """Open the ledger unless it is open or has stopped.

        Returns:
            False when the machine has no descriptor for it. Then nothing may be sent: an event that arrives
            without being listed looks like one that was never sent.
        """
        ledger = self.ledger
        if ledger is None or ledger.fd >= 0 or ledger.stopped:
            return True
        try:
            self._pump.set_ledger(ledger.open())
        except OSError as error:
            url = self._diagnostics.url
            words = f"{url}: nothing is sent, the ledger cannot be opened: {describe_error(error)}"
            self.not_before = time.monotonic() + self._backoff.delay()
            self._diagnostics.complain(words, "ledger")
            return False
        self._backoff.reset()
        if ledger.stopped:
            self._complain(ledger)
        else:
            self._list_outcomes(ledger)
        return True

    def _complain(self, ledger: Ledger) -> None:
        self._diagnostics.complain(f"the ledger stopped, delivery goes on: {ledger.stopped}", "ledger")

    def record(self) -> None:
        """Record everything since the last call."""
        self._take_written()
        for event in self._pump.drain_events():
            self._requests.received(event)
        self._record_outcomes()
        self._submissions.notify_watchers()

    def _record_outcomes(self) -> None:
        outcomes = self._in_flight.take_report()
        if not outcomes:
            return
        self._submissions.restore_flush_target()
        ledger = self.ledger
        if ledger is not None and not ledger.stopped:
            for first, last, status, reason in outcomes:
                self._unlisted.setdefault((status, reason), []).append((first, last))
            if self.open():
                self._list_outcomes(ledger)
                self._in_flight.recorded()
            else:
                self._unlisted = {kind: merged(seqs) for kind, seqs in self._unlisted.items()}
        else:
            self._in_flight.recorded()
        self._submissions.settle(outcomes)
        if self._diagnostics.watcher is not None:
            self._diagnostics.watcher.settled(self._producer, outcomes)

    def _list_outcomes(self, ledger: Ledger) -> None:
        """Write the lines of the outcomes that are not listed yet."""
        lines, self._unlisted = self._unlisted, {}
        write_outcomes(ledger, lines)
        if lines and ledger.stopped:
            self._pump.set_ledger(-1)
            self._complain(ledger)

    def take_over(self, lines: dict[tuple[str, str], list[tuple[int, int]]], history: History) -> None:
        """Go on with a producer whose process has ended.

        Args:
            lines: outcomes that its ledger has not, by status and reason.
            history: what its ledger and these lines say.
        """
        self.history = history
        if self.ledger is not None:
            self._unlisted = {kind: list(seqs) for kind, seqs in lines.items()}
        if self.open() and not self._unlisted:
            self._in_flight.recorded()

    def deferred(self, ranges: list[tuple[int, int]]) -> None:
        """List events, as (first, last), that others overtake from now on."""
        if self.ledger is not None and not self.ledger.stopped:
            self.ledger.write("deferred", seqs=merged(ranges))

    def _take_written(self) -> None:
        """Count the pump's bytes in the ledger."""
        ledger = self.ledger
        if ledger is None or ledger.fd < 0:
            return
        size, error = self._pump.take_ledger()
        if size or error:
            before = ledger.fd
            ledger.wrote(size, error)
            if ledger.fd != before:
                self._pump.set_ledger(ledger.fd)
            if ledger.stopped:
                self._complain(ledger)

    def write_totals(self) -> None:
        """Write the ``close`` line; a process that still logs while it exits writes another.

        Its totals are of the sequences that have their outcome. An event that a caller has just put while the
        process exits is delivered, listed and totalled in its own call, if the process lives so long.
        """
        self._take_written()
        ledger = self.ledger
        if self._unlisted:
            self.open()
        if ledger is None or ledger.fd < 0:
            return
        counts = self._in_flight.queue.counters()
        if self._in_flight.listed > counts["settled"]:
            return  # it was sent, perhaps over a connection that broke, and its caller is not done
        if counts["stored"]:
            return  # another client goes on
        if self.history is not None:
            if not self.history.complete:
                return
            counts = self.history.add_to(counts)
        write_close(ledger, counts["settled"], counts)

    def close(self) -> None:
        """Write the totals and close the ledger."""
        self.write_totals()
        if self.ledger is not None:
            self._pump.set_ledger(-1)
            self.ledger.close()


def write_outcomes(ledger: Ledger, lines: dict[tuple[str, str], list[tuple[int, int]]]) -> None:
    """Write the lines of outcomes, by status and reason."""
    for (status, reason), seqs in lines.items():
        if status == "dropped":
            ledger.write("dropped", reason=reason, seqs=merged(seqs))
        elif status != "stored":  # whoever sends those lists their outcome
            ledger.write("outcome", status=status, reason=reason, seqs=merged(seqs))


def write_close(ledger: Ledger, last: int, counts: dict[str, Any]) -> None:
    """Write the ``close`` line: the counters of a queue, for the events up to `last`."""
    ledger.write(
        "close",
        last=last,
        acked=counts["acked"],
        handed=counts["handed"],
        failed=counts["failed"],
        dropped={r: n for r, n in counts["dropped"].items() if r != "closed"},
        bytes=ledger.size,
    )


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges and join those that touch or overlap: acknowledgements may come in any order."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
