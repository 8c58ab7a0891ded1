"""Phrases that both reports use, about producers, faults, times and places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from logclient.evidence.selection import Selection
from logclient.verify.report.charts import clock, duration

if TYPE_CHECKING:
    from logclient.verify.devices import Device
    from logclient.verify.verdict import Destination, Latency, ProducerVerdict, Verdict

__all__ = [
    "EVIDENCE",
    "MAX_EXPLAINED",
    "WORDS",
    "breaking_words",
    "devices_line",
    "endpoints_line",
    "explain",
    "explain_unknown",
    "fault_line",
    "fault_words",
    "faulty_producers",
    "listener_name",
    "process_line",
    "quantiles",
    "selected_line",
    "unlisted_faults",
    "where_it_leads",
    "worst_devices",
]

MAX_EXPLAINED = 10  # producers whose faults are explained in words


WORDS = (
    ("ok", "acknowledged or handed over, and arrived as it was sent"),
    ("lost", "acknowledged, never seen"),
    ("missing", "handed over, failed or undecided, never seen"),
    ("recovered", "failed or undecided, but seen"),
    ("duplicated", "copies beyond the first"),
    ("unexpected", "seen, but never sent"),
    ("corrupted", "seen with another body than was sent"),
    ("reordered", "the first copy arrived after that of a later event, at one listener"),
    ("dropped", "refused or pushed out by a bound, never sent"),
    ("unknown", "undecidable, because the ledger or the capture is incomplete there"),
    ("pending", "possibly newer than --until, and not decided yet"),
)
QUANTILES = (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max"))

EVIDENCE = {
    "unclosed": "ledger not closed", "stopped": "ledger stopped", "holes": "ledger with holes",
}  # fmt: skip


def quantiles(latency: Latency) -> str:
    """Return the quantiles of a latency in one line."""
    return ", ".join(f"{word} {duration(getattr(latency, field))}" for field, word in QUANTILES)


def selected_line(verdict: Verdict) -> str:
    """Return which events are judged, and how many are left out."""
    chosen = verdict.selection or {}
    selection = Selection(chosen["since_us"], chosen["until_us"], tuple(chosen["runs"]))
    left_out = chosen["left_out"]
    rest = f"{left_out['events']:,} others are left out"
    if left_out["without_id"]:
        rest += f" ({left_out['without_id']:,} because they have no id of their own)"
    if left_out["producers"]:
        rest += f", and {left_out['producers']:,} producers without any selected event"
    return f"events {selection.phrase}; {rest}"


def worst_devices(verdict: Verdict) -> list[Device]:
    """Return the devices, those with the most missing messages first."""

    def rank(x: Device) -> tuple[int, int, str, int]:
        return -x.missing_at_least, -x.restarts_at_least, x.listener, x.device

    return sorted(verdict.devices, key=rank)


def devices_line(verdict: Verdict) -> str:
    """Return one line about the devices."""
    lacking = [x for x in worst_devices(verdict) if x.missing_at_least]
    worst = [f"at least {x.missing_at_least:,} of device {x.device} at {x.listener}" for x in lacking[:3]]
    if len(lacking) > 3:
        worst.append(f"of {len(lacking) - 3:,} more too")
    missing = (
        f"missing messages: {', '.join(worst)}" if worst else "no missing message was detected"
    )
    return f"devices: {len(verdict.devices):,}, {missing}"


# The words for faults of a producer, the worst first.
_FAULTS = ("lost", "corrupted", "unexpected", "reordered", "missing", "unknown", "dropped", "recovered")


def faulty_producers(verdict: Verdict) -> list[ProducerVerdict]:
    """Return the producers with faults or incomplete evidence, the worst first."""

    def weight(x: ProducerVerdict) -> tuple[int, ...]:
        return (-sum(getattr(x.counts, word) for word in x.breaks), *(-getattr(x.counts, w) for w in _FAULTS))

    found = [
        x for x in verdict.producers if x.producer and (fault_words(x) or x.ledger in EVIDENCE or _clock(x))
    ]
    return sorted(found, key=lambda x: (*weight(x), -x.early_us, x.producer))


def fault_words(x: ProducerVerdict) -> list[str]:
    """Return the words of a producer's faults."""
    return [word for word in _FAULTS if getattr(x.counts, word)]


def unlisted_faults(verdict: Verdict) -> str:
    """Return the faults of producers that the verdict does not name, in one phrase."""
    left = verdict.producers_left_out
    if left is None:
        return ""
    faults = [f"{n:,} {word}" for word in _FAULTS if (n := getattr(left.counts, word))]
    return f"{', '.join(faults)} of {left.producers:,} producers not listed" if faults else ""


def listener_name(listener: str) -> str:
    """Return the name of a listener; rows of a table may have none."""
    return listener or "the table"


def _clock(x: ProducerVerdict) -> str:
    """Return a phrase about clocks that differ by a millisecond or more."""
    if x.early_us < 1_000:
        return ""
    difference = f"its clock and the collector's differ by at least {duration(x.early_us)}"
    return f"{x.early:,} arrived before they were sent: {difference}"


def process_line(x: ProducerVerdict) -> str:
    """Return the process of a producer: host, pid and start."""
    parts = [f"host {x.host}"] * bool(x.host) + [f"pid {x.pid}"] * bool(x.pid)
    if x.started_us:
        parts.append(f"since {clock(x.started_us, 1_000)}")
    return ", ".join(parts)


def _span(times: Sequence[int]) -> str:
    """Return a phrase for a span of time."""
    first, last = times
    if first == last:
        return clock(first, 1_000)
    return f"{clock(first, 1_000)} to {clock(last, 1_000, clock(first)[:10] != clock(last)[:10])}"


_NO_REASON = "without a reason"


def fault_line(x: ProducerVerdict, word: str) -> str:
    """Return the number of events with a fault, and when they were made."""
    return f"{getattr(x.counts, word):,} {word}" + (f", made {_span(x.when[word])}" if word in x.when else "")


def explain(verdict: Verdict, x: ProducerVerdict) -> list[tuple[str, str]]:
    """Return the reasons, destinations and arrivals of a faulty producer, as pairs of name and text."""
    rows = []
    why = ["lost: acknowledged, but never arrived"] * ("lost" in x.breaks)
    why += [
        f"{outcome}: {', '.join(f'{n:,} {reason or _NO_REASON}' for reason, n in reasons.items())}"
        for outcome, reasons in x.reasons.items()
    ]
    if x.ledger in EVIDENCE:
        why.append(EVIDENCE[x.ledger] + (": killed, or still running" if x.ledger == "unclosed" else ""))
    elif x.counts.unknown:
        why.append("the capture is incomplete")
    if x.shared:
        why.append(f"{x.shared:,} with an id that another event has: identified by their bytes alone")
    if difference := _clock(x):
        why.append(difference)
    rows.append(("why", "; ".join(why)))
    rows.append(("sent to", endpoints_line(verdict, x.url) or x.url))
    if x.listeners:
        rows.append(
            ("arrived at", ", ".join(f"{listener_name(name)} ({n:,})" for name, n in x.listeners.items()))
        )
    return [row for row in rows if row[1]]


def explain_unknown(verdict: Verdict) -> list[tuple[str, str]]:
    """Return the origin of events from no producer of these ledgers, as pairs of name and text."""
    rows: list[tuple[str, str]] = []
    selected = verdict.selection["runs"] if verdict.selection else []
    for run in verdict.capture.get("runs", ()):
        if selected and run["run"] not in selected:
            continue
        if not run["ours"] and len(rows) < MAX_EXPLAINED:
            host = f" of host {run['host']}" * bool(run["host"])
            events = f"{run['events']:,} events, received {_span((run['first_us'], run['last_us']))}"
            rows.append(("another run", f"{run['run']}{host}, listener {run['listener']}: {events}"))
    known = {x.producer for x in verdict.producers if x.producer}
    places: dict[str, int] = {}
    for word in ("unexpected", "unknown"):
        for row in verdict.examples.get(word, ()):
            if "segment" in row and (row["producer"] or "") not in known:
                place = f"listener {row['listener']}" if row["listener"] else listener_name("")
                place += f" from {row['peer']}" * bool(row["peer"])
                places[place] = places.get(place, 0) + 1
    if places:
        rows.append(("arrived at", "; ".join([*places][:MAX_EXPLAINED])))
    return rows


def endpoints_line(verdict: Verdict, url: str) -> str:
    """Return the endpoints of a URL, each with its listener."""
    found = [x for x in verdict.destinations if x.url == url]
    return (
        " or ".join(
            f"{endpoint} ({place})" if (place := where_it_leads(found[0], listener)) else endpoint
            for endpoint, listener in found[0].endpoints
        )
        if found
        else ""
    )


def where_it_leads(x: Destination, listener: str) -> str:
    """Return a phrase for the listener behind an endpoint; empty: unknown."""
    if listener:
        return f"listener {listener}"
    return "" if x.captured else "no listener in this capture"


def breaking_words(verdict: Verdict) -> set[str]:
    """Return the words whose counts break the promise, limits included."""
    return {word for word, _ in WORDS if any(f" {word}" in broken for broken in verdict.broken)}
