"""Phrases of the reports, about numbers, times, producers, faults and places."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from logclient.errors import ExitCode
from logclient.evidence.frames import counted
from logclient.evidence.selection import Selection
from logclient.verify.verdict import BREAKING, CLOCK_US, Destination, ProducerVerdict, Verdict

MAX_EXPLAINED = 10  # producers whose faults are explained in words

MEANINGS = {
    "ok": "acknowledged or handed over, and arrived as it was sent",
    "lost": "acknowledged, never seen",
    "missing": "handed over, failed or undecided, never seen",
    "recovered": "failed or undecided, but seen",
    "duplicated": "copies beyond the first",
    "unexpected": "seen, but never sent",
    "corrupted": "seen with another body than was sent",
    "reordered": "the first copy arrived after that of a later event, at one listener",
    "dropped": "refused or pushed out by a bound, never sent",
    "unknown": "undecidable, because the ledger or the capture is incomplete there",
    "pending": "possibly newer than --until, and not decided yet",
}
FAULTS = (*BREAKING, "missing", "unknown", "pending", "dropped", "recovered", "duplicated")  # the worst first
_FAULTY = tuple(word for word in FAULTS if word not in ("pending", "duplicated"))  # of a faulty producer

EVIDENCE = {
    "unclosed": "ledger not closed: killed, or still running",
    "stopped": "ledger stopped",
    "holes": "ledger with holes",
}

_BREAKS = {
    "lost": "{} acknowledged and never arrived",
    "corrupted": "arrived with other bytes than were sent",
    "unexpected": "arrived but {} never sent",
    "reordered": "arrived after a later one",
}

NOWHERE = "no listener in this capture"
_NO_REASON = "without a reason"
_EPOCH = datetime.datetime(1970, 1, 1)
# Below so many microseconds a duration is shown in such a unit.
_UNITS = ((1e3, 1, "µs"), (1e6, 1e3, "ms"), (120e6, 1e6, "s"), (7200e6, 60e6, "min"), (172800e6, 3600e6, "h"))


def share(n: int, total: int) -> str:
    """Format a part of a total; empty for nothing."""
    if not n or not total:
        return ""
    part = 100 * n / total
    if part < 0.01 or 99.99 < part < 100:
        return "< 0.01 %" if part < 0.01 else "> 99.99 %"
    return f"{part:.2f} %".replace(".00 ", " ")


def clock(us: int, finest_us: int = 1, date: bool = True) -> str:
    """Format a time in UTC, from microseconds since 1970, with or without the date."""
    try:
        at = _EPOCH + datetime.timedelta(microseconds=us)
    except OverflowError:
        return f"{us} us"
    if finest_us >= 86_400_000_000:
        return at.strftime("%Y-%m-%d")
    digits = "" if finest_us >= 1_000_000 else f".{at.microsecond:06d}"[: 4 if finest_us >= 1000 else 7]
    return at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S") + digits


def numbers(first: int, last: int) -> str:
    return f"{first:,} to {last:,}" if last > first else f"{first:,}"


def span(first: int, last: int, finest_us: int = 1_000) -> str:
    """Format a span of time like `clock`, without the date of its end if it is that of its beginning."""
    if first == last:
        return clock(first, finest_us)
    return f"{clock(first, finest_us)} to {clock(last, finest_us, clock(first)[:10] != clock(last)[:10])}"


def others_line(verdict: Verdict) -> str:
    """Say what events of no ledger do; empty: they break the promise, or there are none."""
    n = verdict.others.get("events", 0)
    if verdict.others.get("rule") == "ignore":
        return "events in none of these ledgers are ignored"
    return f"{counted(n, 'event')} in none of these ledgers, which break nothing" if n else ""


def duration(us: float) -> str:
    """Format a duration, given in microseconds, in a unit of its magnitude."""
    for limit, unit, name in _UNITS:
        if us < limit:
            n = us / unit
            return f"{n:.0f} {name}" if n >= 100 else f"{n:.1f}".removesuffix(".0") + f" {name}"
    return f"{us / 86_400_000_000:,.1f} days"


def meanings(verdict: Verdict) -> list[tuple[str, str]]:
    """Return the words, with what each means in this verdict."""
    by_id = {"ok": "acknowledged or handed over, and seen", "corrupted": "bodies not compared"}
    return [*(MEANINGS | by_id if verdict.bodies == "not compared" else MEANINGS).items()]


def quantiles(verdict: Verdict) -> str:
    """Return the quantiles of the latency in one line; empty: there are none."""
    names = ("p50", "p90", "p99", "p99.9", "max") if verdict.latency else ()
    return ", ".join(f"{name} {duration(getattr(verdict.latency, name.replace('.', '')))}" for name in names)


def selected_line(verdict: Verdict) -> str:
    """Return which events are judged, and how many are left out."""
    chosen = verdict.selection or {}
    selection = Selection(chosen["since_us"], chosen["until_us"])
    left_out = chosen["left_out"]
    rest = f"{left_out['events']:,} others are left out"
    if left_out["without_id"]:
        rest += f" ({left_out['without_id']:,} because they have no id of their own)"
    if left_out["producers"]:
        rest += f", and {left_out['producers']:,} producers without any selected event"
    return f"events {selection.phrase}; {rest}"


def breaking_words(verdict: Verdict) -> set[str]:
    """Return the words whose counts break the promise, limits included."""
    return {word for word in MEANINGS if any(f" {word}" in broken for broken in verdict.broken)}


def _doubts(verdict: Verdict) -> Sequence[str]:
    """Return the problems that leave doubt."""
    return verdict.problems[: len(verdict.problems) - verdict.harmless]


def reasons(verdict: Verdict) -> list[str]:
    """Return sentences that say why the promise does not hold."""
    if verdict.exit_code == ExitCode.UNREACHABLE:
        # The problems of the evidence come first: they have to be repaired.
        doubts = _doubts(verdict)
        allowed = verdict.ledger["still_open"] if doubts else 0
        open_ = verdict.ledger["producers"] - verdict.ledger["closed"] - allowed
        still = f"{counted(open_, 'ledger')} without an end: the producer was killed or still runs."
        return [*doubts[:3], *[still] * bool(open_)]
    lines = []
    for broken in verdict.broken:
        number, _, word = broken.partition(" ")
        if phrase := _BREAKS.get(word):
            one = number == "1"
            lines.append(f"{number} event{'s' * (not one)} {phrase.format('was' if one else 'were')}.")
        else:
            lines.append(broken.replace(", more than ", "; the limit was ") + ".")
    return lines


def undecodable_line(verdict: Verdict) -> str:
    return ", ".join(f"{n:,} {reason}" for reason, n in sorted(verdict.undecodable.items()))


def faulty_producers(verdict: Verdict) -> list[ProducerVerdict]:
    """Return the producers with faults or incomplete evidence, the worst first."""

    def is_faulty(x: ProducerVerdict) -> bool:
        return bool(x.producer and (fault_lines(x) or x.ledger in EVIDENCE or x.early_us >= CLOCK_US))

    def rank(x: ProducerVerdict) -> tuple[Any, ...]:
        return -x.breaking, *(-getattr(x.counts, word) for word in _FAULTY), -x.early_us, x.producer

    return sorted(filter(is_faulty, verdict.producers), key=rank)


def fault_lines(x: ProducerVerdict) -> dict[str, str]:
    """Return for each word of a producer's faults the number of events, and when they were made."""
    made = {word: f", made {span(*times)}" for word, times in x.when.items()}
    return {word: f"{n:,} {word}{made.get(word, '')}" for word in _FAULTY if (n := getattr(x.counts, word))}


def further_faults(verdict: Verdict, faulty: Sequence[ProducerVerdict], shown: int) -> str:
    """Return which faulty producers are not shown, in one phrase; empty: none."""
    parts = [f"{len(faulty) - shown:,} more producers"] * (len(faulty) > shown)
    if left := verdict.producers_left_out:
        faults = [f"{n:,} {word}" for word in _FAULTY if (n := getattr(left.counts, word))]
        parts += [f"{', '.join(faults)} of {left.producers:,} producers not listed"] * bool(faults)
    return ", and ".join(parts)


def process_line(host: str, pid: int, started_us: int = 0) -> str:
    """Return the process of a producer, as far as it is known."""
    parts = [f"host {host}"] * bool(host) + [f"pid {pid}"] * bool(pid)
    return ", ".join(parts + [f"since {clock(started_us, 1_000)}"] * bool(started_us))


def outcome(row: Mapping[str, Any]) -> str:
    """Return the outcome of an event in its ledger, with the reason."""
    return ": ".join(filter(None, (row.get("fate"), row.get("reason"))))


def remarks(x: ProducerVerdict, is_open: bool = False) -> str:
    """Return what the ledger and the clock of a producer say about its events; empty: nothing special.

    `is_open`: that its ledger is open leaves no doubt.
    """
    found = ["" if is_open else EVIDENCE.get(x.ledger, "")]
    found += [f"order {x.order}"] * bool(x.producer and x.order != "checked")
    found += ["async: not acknowledged"] * (x.mode == "async")
    found += [
        f"{fate}: {', '.join(f'{n:,} {reason or _NO_REASON}' for reason, n in reasons.items())}"
        for fate, reasons in x.reasons.items()
    ]
    if x.shared:
        found.append(f"{x.shared:,} with an id that another event has: identified by their bytes alone")
    if x.early_us >= CLOCK_US:
        difference = f"its clock and the collector's differ by at least {duration(x.early_us)}"
        found.append(f"{x.early:,} arrived before they were sent: {difference}")
    return "; ".join(filter(None, found))


def explain(verdict: Verdict, x: ProducerVerdict) -> dict[str, str]:
    """Return the reasons, destinations and arrivals of a faulty producer; empty: not known."""
    why = ["lost: acknowledged, but never arrived"] * ("lost" in x.breaks)
    doubted = any(x.producer in problem for problem in _doubts(verdict) if problem.startswith("ledger: "))
    is_open = x.ledger == "unclosed" and not doubted
    if x.counts.unknown and (is_open or x.ledger not in EVIDENCE):
        incomplete = any(problem.startswith("capture: ") for problem in _doubts(verdict))
        why.append("the capture is incomplete" if incomplete else "another ledger is not whole")
    return {
        "why": "; ".join([*why, *filter(None, [remarks(x, is_open)])]),
        "sent to": endpoints_line(verdict, x.url) or x.url,
        "arrived at": ", ".join(f"{listener_name(name)} ({n:,})" for name, n in x.listeners.items()),
    }


def explain_unknown(verdict: Verdict) -> dict[str, str]:
    """Return the origin of events from no producer of these ledgers; empty: not known."""
    runs = []
    for run in verdict.capture.get("runs", ()):
        if not run["ours"]:
            host = f" of host {run['host']}" * bool(run["host"])
            when = f", received {span(run['first_us'], run['last_us'])}" * bool(run["last_us"])
            runs.append(f"{run['run']}{host}, listener {run['listener']}: {run['events']:,} events{when}")
    known = {x.producer for x in verdict.producers if x.producer}
    places = {
        (f"listener {row['listener']}" if row["listener"] else listener_name(""))
        + f" from {row['peer']}" * bool(row["peer"]): None
        for word in ("unexpected", "unknown")
        for row in verdict.examples.get(word, ())
        if "segment" in row and (row["producer"] or "") not in known
    }
    return {
        "another run": "; ".join(runs[:MAX_EXPLAINED]),
        "arrived at": "; ".join([*places][:MAX_EXPLAINED]),
    }


def listener_name(listener: str) -> str:
    """Return the name of a listener; rows of a table may have none."""
    return listener or "the table"


def endpoints(x: Destination) -> list[tuple[str, str]]:
    """Return the endpoints of a URL, each with a phrase for its listener; an empty phrase: unknown."""
    none = "" if x.captured else NOWHERE
    return [(endpoint, f"listener {listener}" if listener else none) for endpoint, listener in x.endpoints]


def endpoints_line(verdict: Verdict, url: str) -> str:
    """Return the endpoints of a URL, each with its listener; empty: none is known."""
    found = next((endpoints(x) for x in verdict.destinations if x.url == url), [])
    return " or ".join(f"{endpoint} ({place})" if place else endpoint for endpoint, place in found)
