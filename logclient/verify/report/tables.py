"""The tables of the report."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

from logclient.verify.report import words
from logclient.verify.verdict import Counts, Verdict

MAX_PRODUCERS, MAX_ROWS = 500, 200  # the most rows of the table of producers, and of all others


class Shown(float):
    """A number that is shown as a text."""

    text: str

    def __new__(cls, n: float, text: str) -> Self:
        self = super().__new__(cls, n)
        self.text = text
        return self


class Table(NamedTuple):
    """A table, by columns."""

    title: str
    note: str  # empty: it has no heading of its own
    columns: Mapping[str, Sequence[Any]]  # of texts, numbers, or mappings of endpoint to place
    more: str = ""  # which rows are left out
    breaks: Sequence[Collection[str]] = ()  # for each row the columns whose numbers break the promise
    titles: Sequence[str] = ()  # what a pointer on each row shows
    zeros: str = ""  # which columns of numbers are left out
    ids: Sequence[str] = ()  # the anchor of each row

    def folded(self) -> Table:
        """Return the table without columns in which everything is zero or empty."""
        empty = [head for head, cells in self.columns.items() if cells and not any(cells)]
        zeros = ", ".join(head for head in empty if 0 in self.columns[head])
        return self._replace(
            columns={head: cells for head, cells in self.columns.items() if head not in empty},
            zeros=f"Zero in every row: {zeros}." if zeros else "",
        )


def _times(times: Sequence[int], finest_us: int = 1) -> list[str]:
    return [words.clock(us, finest_us) if us else "" for us in times]


def _counts(names: Collection[str], rows: Sequence[Any]) -> dict[str, list[int]]:
    return {name.replace("_", " "): [getattr(x, name) for x in rows] for name in names}


def _more(found: Sequence[Any], what: str) -> str:
    return f"and {len(found) - MAX_ROWS:,} more{what}" if len(found) > MAX_ROWS else ""


def producers(verdict: Verdict) -> Table:
    ranked = sorted(verdict.producers, key=lambda x: (-x.breaking, -x.counts.events, x.producer))
    rows = ranked[:MAX_PRODUCERS]
    left, sums = verdict.producers_left_out or (0, Counts())
    for x in ranked[MAX_PRODUCERS:]:
        left, sums = left + 1, sums.plus(x.counts)
    limited = words.breaking_words(verdict) & {*verdict.limits._fields}
    columns: dict[str, Sequence[Any]] = {
        "producer": [x.producer or "none" for x in rows],
        "service": [f"{x.service} {x.service_version}".strip() for x in rows],
        "host": [x.host for x in rows],
        "pid": [Shown(x.pid, str(x.pid)) if x.pid else "" for x in rows],
        "events": [x.counts.events for x in rows],
        **_counts(words.MEANINGS, [x.counts for x in rows]),
        "gaps": [x.gaps for x in rows],
    }
    for name in ("p50", "p99"):
        values = [getattr(x.latency, name, None) for x in rows]
        columns[name] = ["" if us is None else Shown(us, words.duration(us)) for us in values]
    columns |= {
        "started": _times([x.started_us for x in rows], 1_000_000),
        "remarks": [words.remarks(x) for x in rows],
        "URL": [x.url or x.protocol for x in rows],
    }
    rest = ", ".join(f"{n:,} {word}" for word, n in sums._asdict().items() if n)
    more = f"and {left:,} more producers, in all: {rest}" if left else ""
    breaks = [limited.union(x.breaks) for x in rows]
    note = "Those with events that break the promise come first, then the largest."
    return Table("Producers", note, columns, more, breaks, columns["URL"]).folded()


def services(verdict: Verdict) -> Table:
    """Return the table of services at their hosts; no row: there is one."""
    rows = verdict.services[:MAX_ROWS] if len(verdict.services) > 1 else ()
    columns: dict[str, Sequence[Any]] = {
        "service": [x.service for x in rows],
        "host": [x.host for x in rows],
        "producers": [x.producers for x in rows],
        **_counts(("events", *words.MEANINGS), [x.counts for x in rows]),
    }
    more = _more(verdict.services, ", see verdict.json")
    breaks = [words.breaking_words(verdict)] * len(rows)
    return Table("Services", "By the options of their clients.", columns, more, breaks).folded()


def destinations(verdict: Verdict) -> Table:
    """Return the table of endpoints: their listeners, and the events sent to them by word."""
    rows = verdict.destinations[:MAX_ROWS]
    columns: dict[str, Sequence[Any]] = {
        "endpoint": [dict(words.endpoints(x)) or x.url or x.protocol for x in rows],
        "producers": [x.producers for x in rows],
        **_counts(("events", *words.MEANINGS), [x.counts for x in rows]),
    }
    note = "The endpoints in the URLs of producers, with the listeners behind them."
    more = _more(verdict.destinations, ", see verdict.json")
    breaks = [words.breaking_words(verdict)] * len(rows)
    return Table("Endpoints", note, columns, more, breaks, [x.url for x in rows]).folded()


def listeners(verdict: Verdict) -> Table:
    """Return the table of listeners: events that arrived at each, and events that did not."""
    rows = verdict.listeners[:MAX_ROWS]

    def unseen(word: str) -> list[float]:
        numbers = [(getattr(x, word), x.elsewhere.get(word, 0)) for x in rows]
        return [Shown(n + m, f"{n:,}, up to {n + m:,}") if m else n for n, m in numbers]

    columns: dict[str, Sequence[Any]] = {
        "listener": [words.listener_name(x.listener) for x in rows],
        "host": [", ".join(x.hosts) for x in rows],
        "arrived": [x.events for x in rows],
        "listed": [x.seen for x in rows],
        **_counts(("duplicated", "corrupted", "reordered"), rows),
        **{word: unseen(word) for word in ("lost", "missing", "unknown")},
        **_counts(("problems",), rows),
        "first": _times([x.first_us for x in rows], 1_000),
        "last": _times([x.last_us for x in rows], 1_000),
        "listens at": [", ".join(x.urls) for x in rows],
    }
    note = (
        "Duplicated: copies beyond the first one at the listener. Lost, missing and unknown: events of "
        "producers that sent to this listener only; “up to” adds those of producers that also sent to others."
    )
    more = _more(verdict.listeners, ", see verdict.json")
    breaks = [words.breaking_words(verdict)] * len(rows)
    return Table("Listeners", note, columns, more, breaks, columns["listens at"]).folded()


def gaps(verdict: Verdict) -> Table:
    rows = verdict.longest_gaps
    ends = [x.first + x.events - 1 for x in rows]
    columns = _counts(("producer", "first"), rows) | {"last": ends} | _counts(("events",), rows)
    return Table("Longest gaps", "", columns)


def captures(verdict: Verdict) -> Table:
    """Return the table of the runs in the captures, without rows if there is only the one compared."""
    found = verdict.capture.get("runs", [])
    rows = found[:MAX_ROWS] if len(found) > 1 or not all(run["ours"] for run in found) else []
    columns = {
        "listener": [run["listener"] for run in rows],
        "host": [run["host"] or "unknown" for run in rows],
        "run": [run["run"] + " (another run: not compared)" * (not run["ours"]) for run in rows],
        "listened at": [run["url"] for run in rows],
        **{name: [run[name] for run in rows] for name in ("segments", "events")},
        "from": _times([run["first_us"] for run in rows]),
        "to": _times([run["last_us"] for run in rows]),
    }
    note = "The runs of each listener, in the order of its segments."
    return Table("Captures", note, columns, _more(found, ""))


def unseen(verdict: Verdict, word: str) -> Table:
    """Return the table of examples without a known arrival, by the ledger; neighbours share a row."""

    def neighbours(given: tuple[int, dict[str, Any]]) -> tuple[Any, ...]:
        i, row = given
        return row["producer"], words.outcome(row), str(i) if row["seq"] is None else row["seq"] - i

    found = enumerate(row for row in verdict.examples[word] if "segment" not in row)
    groups = [[row for _, row in group] for _, group in itertools.groupby(found, neighbours)]
    ends = [(group[0], group[-1]) for group in groups]
    times: list[Any] = [(x.get("created_us"), y.get("created_us", x.get("created_us"))) for x, y in ends]
    columns = {
        "first id": [x["id"] or f"hash {x.get('hash', '')}" for x, _ in ends],
        "process": [words.process_line(x.get("host", ""), x.get("pid", 0)) for x, _ in ends],
        "sequence": ["" if x["seq"] is None else words.numbers(x["seq"], y["seq"]) for x, y in ends],
        "outcome in the ledger": [words.outcome(x) for x, _ in ends],
        "made": ["not listed" if first is None else words.span(first, last, 1) for first, last in times],
        "sent to": [words.endpoints_line(verdict, x.get("url", "")) for x, _ in ends],
    }
    return Table("Events that never arrived", "", columns)
