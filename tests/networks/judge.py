"""The figures of a case, and what does not hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.networks.cases import PROTOCOLS, Case
from tests.networks.scene import Found, Sample

HEAD = (
    "case", "sent", "acked", "handed", "given up", "arrived (copies)", "lost", "in doubt", "resent",
    "connections", "carried", "needed x", "first s", "gap s", "noticed s", "said s", "resumed s",
    "what does not hold",
)  # fmt: skip


CALL_MS = 2000.0
"""The longest call that is no wait for the network, on a machine with other work."""


class Figures(NamedTuple):
    """What a case shows. Times are in seconds, those of `noticed`, `said` and `resumed` since a change.

    What was said before it, and still holds, counts as said: its time is since the beginning.
    """

    sent: int
    settled: int
    given_up: int
    lost: int | None
    """Events that are acknowledged or handed, and did not arrive; of a program that ends: any."""
    first: float | None
    gap: float | None
    noticed: float | None
    said: float | None
    resumed: float | None
    waste: float | None


def figures(case: Case, found: Found, needed: int | None) -> Figures:
    """Return the figures; `needed`: bytes that the same events need on a fast link."""
    stats, samples = found.stats, found.samples
    settled = stats.get("acked", 0) + stats.get("handed", 0)
    given_up = total(stats.get("failed", 0)) + total(stats.get("dropped", 0))
    change = found.changed[0] if found.changed else None
    last = found.changed[-1] if len(found.changed) > 1 else change
    ends = lambda one: one.disconnects  # noqa: E731
    return Figures(
        sent=stats.get("sent", 0),
        settled=settled,
        given_up=given_up,
        lost=lost(found, settled if case.program == "send" else stats.get("sent", 0)),
        first=next((one.at for one in samples if one.settled), None),
        gap=longest_gap(samples),
        noticed=None if change is None else after(samples, change, ends),
        said=first_error(samples, change or 0.0) or first_error(samples, 0.0),
        resumed=None if last is None else after(samples, last, lambda one: one.settled),
        waste=found.payload / needed if needed else None,
    )


def total(counts: Any) -> int:
    return sum(counts.values()) if isinstance(counts, dict) else int(counts)


def lost(found: Found, settled: int) -> int | None:
    if found.verdict and found.samples:
        # What was given up and did not arrive is `missing`, too.
        gone = total(found.stats.get("failed", 0)) - found.verdict["recovered"]
        return found.verdict["lost"] + max(0, found.verdict["missing"] - max(0, gone))
    return None if found.arrived is None else max(0, settled - found.arrived)


def longest_gap(samples: list[Sample]) -> float | None:
    """Return the longest time without an outcome while events waited; None: there never was one."""
    longest, since, before = 0.0, None, 0
    for one in samples:
        waits = one.queued + one.inflight > 0
        if one.settled != before or (since is None and waits):
            since, before = (one.at if waits else None), one.settled
        if since is not None and before:
            longest = max(longest, one.at - since)
    return longest if before else None


def after(samples: list[Sample], change: float, of: Any) -> float | None:
    """Return how long after a change a count grew."""
    before = max((of(one) for one in samples if one.at <= change), default=0)
    return next((one.at - change for one in samples if one.at > change and of(one) > before), None)


def first_error(samples: list[Sample], change: float) -> float | None:
    before = [one.last_error for one in samples if one.at <= change]
    known = before[-1] if before else ""
    return next(
        (one.at - change for one in samples if one.at > change and one.last_error not in ("", known)), None
    )


def judge(case: Case, found: Found, shown: Figures) -> list[str]:
    """Return what does not hold."""
    return [
        *_of_delivery(case, found, shown),
        *_of_times(case, shown),
        *_of_ends(case, found),
    ]


def _of_delivery(case: Case, found: Found, shown: Figures) -> Iterator[str]:
    holds, stats = case.holds, found.stats
    sure = PROTOCOLS[case.protocol].acknowledges
    if case.program in ("send", "lines"):
        if holds.all and found.arrived is not None and found.arrived != shown.sent:
            yield f"{found.arrived} of {shown.sent} arrived"
        if case.program == "send":
            if holds.all and shown.settled != shown.sent:
                yield f"{shown.settled} of {shown.sent} have their outcome"
            if sure and shown.lost:
                yield f"{shown.lost} acknowledged events are lost"
    if holds.waste is not None and shown.waste is not None and shown.waste > holds.waste:
        yield f"{shown.waste:.1f} times the needed bytes"
    if holds.lost is not None and not sure and shown.lost:
        most = holds.lost * (case.per_second or case.events)
        if shown.lost > most:
            yield f"{shown.lost} are lost, more than {most:.0f}"
        if shown.lost > stats["in_doubt"]:
            yield f"{shown.lost} are lost, and {stats['in_doubt']} counted as in doubt"
    if holds.kept is not None and (found.arrived or 0) < holds.kept * shown.settled:
        yield f"{found.arrived} of {shown.settled} that were handed arrived"
    if (
        case.program == "send"
        and not any(one.who is None for one in case.changes)
        and (longest := stats["longest_ms"]) > CALL_MS
    ):
        yield f"a call took {longest:.0f} ms"
    if holds.unbroken and (stats["disconnects"] or stats["resent"]):
        yield f"{stats['disconnects']} connections ended, {stats['resent']} were sent again"


def _of_times(case: Case, shown: Figures) -> Iterator[str]:
    if case.program != "send":
        return
    for name in ("first", "gap", "resumed", "noticed", "said"):
        bound, value = getattr(case.holds, name), getattr(shown, name)
        if bound is not None and (value is None or value > bound):
            yield f"{name} {'never' if value is None else f'after {value:.0f} s'}, not within {bound:.0f} s"


def _of_ends(case: Case, found: Found) -> Iterator[str]:
    holds = case.holds
    if holds.says and holds.says not in found.said:
        yield f"nothing is said of {holds.says}: {found.said.strip()[-200:]!r}"
    if holds.code is not None and found.code != holds.code:
        yield f"exit code {found.code}, not {holds.code}"
    if case.program == "check" and holds.code == 0 and "FAILED" in found.output:
        yield "a path that works has FAILED"
    if holds.woken is not None:
        for thread, times in found.stats["per_minute"].items():
            if times > holds.woken:
                yield f"{thread} wakes {times} times a minute"
    if holds.crowd is not None:
        second, most = busiest(found, case)
        if most > holds.crowd * case.clients:
            yield f"{most} of {case.clients} come back within second {second}"
        if found.stats["acked"] != found.stats["sent"]:
            yield f"{found.stats['acked']} of {found.stats['sent']} are acknowledged"


def busiest(found: Found, case: Case) -> tuple[int, int]:
    """Return the second after the restart with the most attempts to connect, and their number."""
    up = found.changed[-1]
    seconds = Counter(int(at - up) for at in found.attempts if at >= up)
    return max(seconds.items(), key=lambda item: item[1], default=(0, 0))


def row(case: Case, found: Found, shown: Figures, wrong: list[str]) -> tuple[str, ...]:
    """Return the cells of the table."""
    stats = found.stats

    def seconds(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    notes = list(wrong)
    if case.program == "idle":
        notes.append(f"wakes {json.dumps(stats['per_minute'])}, {stats['cpu_ms_per_minute']} ms a minute")
    if case.program == "herd":
        notes.append("busiest second {}: {} attempts".format(*busiest(found, case)))
    if case.program == "check":
        notes.append(f"exit code {found.code}")
    return (
        case.name,
        str(shown.sent),
        str(stats.get("acked", "")),
        str(stats.get("handed", "")),
        str(shown.given_up),
        "-" if found.arrived is None else f"{found.arrived} ({found.copies})",
        "-" if shown.lost is None else str(shown.lost),
        str(stats.get("in_doubt", "")),
        str(stats.get("resent", "")),
        str(stats.get("connects", "")),
        f"{found.payload / 1e6:.2f} MB",
        "" if shown.waste is None else f"{shown.waste:.2f}",
        *map(seconds, (shown.first, shown.gap, shown.noticed, shown.said, shown.resumed)),
        "; ".join(notes) or "holds",
    )
