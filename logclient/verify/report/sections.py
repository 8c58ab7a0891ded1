"""Sections of the page: totals, faults by producer, over time, and by sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from logclient.verify.report import charts
from logclient.verify.report.charts import duration
from logclient.verify.report.elements import counted, dot, scrolling
from logclient.verify.report.markup import Html, el, join
from logclient.verify.report.words import (
    MAX_EXPLAINED,
    WORDS,
    breaking_words,
    explain,
    explain_unknown,
    fault_line,
    fault_words,
    faulty_producers,
    process_line,
    unlisted_faults,
)

if TYPE_CHECKING:
    from logclient.verify.verdict import Map, Verdict

__all__ = ["by_sequence", "faulty", "over_time", "totals"]


OPEN_MAPS = 6  # producers whose faults by sequence are unfolded
MAX_MAPS = 20  # the same, with those that are folded


def _share(n: int, total: int) -> str:
    if not n or not total:
        return ""
    part = 100 * n / total
    return (
        "< 0.01 %"
        if part < 0.01
        else "> 99.99 %"
        if 99.99 < part < 100
        else f"{part:.2f} %".replace(".00 ", " ")
    )


def totals(verdict: Verdict) -> Html:
    """Return the section with the number of events of each word."""
    counts = verdict.counts
    breaking = breaking_words(verdict)
    rows = [
        el("tr", el("td", "events"), el("td", f"{counts.events:,}", class_="n"), el("td", "", class_="n"),
           el("td", "made by the producers", class_="say")),
    ]  # fmt: skip
    for word, meaning in WORDS:
        n = getattr(counts, word)
        name = el("a", word, href=f"#{word}") if verdict.examples.get(word) else word
        tag = el("span", "breaks the promise", class_="tag") if word in breaking else None
        rows.append(
            el(
                "tr",
                el("td", dot(word), name, " \u2717" if word in breaking else None),
                el("td", f"{n:,}", class_="n"),
                el("td", _share(n, counts.events), class_="n"),
                el("td", meaning, ". " if tag else None, tag, class_="say"),
                class_="bad" if word in breaking else None if n else "none",
            )
        )
    head = el(
        "tr", el("th", ""), el("th", "number", class_="n"), el("th", "share", class_="n"), el("th", "meaning")
    )
    stack = [(word, getattr(counts, word)) for word, _ in WORDS if word not in ("duplicated", "reordered")]
    return join(
        el("h2", "Events by word"),
        charts.share(stack),
        scrolling(
            el("table", el("thead", head), el("tbody", *rows), class_="totals"), "Events by word"
        ),
    )


def _figure(title: str, chart: Html, keys: Sequence[Html]) -> Html:
    return el("figure", el("figcaption", el("b", title), *keys), chart, el("output"))


def over_time(verdict: Verdict) -> Html | None:
    """Return the section with the charts over time; None without times."""
    timeline = verdict.timeline
    if timeline is None:
        return None
    breaking = breaking_words(verdict)
    figures = [_figure("Events sent", charts.events_over_time(timeline), [])]
    words = [word for word in charts.FAULTS if any(getattr(timeline, word))]
    for title, own in (
        ("Breaks the promise", [word for word in words if word in breaking]),
        ("Does not break the promise", [word for word in words if word not in breaking]),
    ):
        if own:
            keys = [el("span", dot(word), word, class_="key") for word in own]
            figures.append(_figure(title, charts.faults_over_time(timeline, own), keys))
    if any(value is not None for value in timeline.latency["max"]):
        keys = [
            el("span", el("span", class_=f"keyline k-{word}"), word, class_="key")
            for word in reversed(charts.LINES)
        ]
        figures.append(_figure("Latency", charts.latency_over_time(timeline), keys))
    note = f"Counted at the time at which the events were made, in steps of {duration(timeline.width_us)}."
    if any(timeline.dropped):
        note += " Dropped events count at the time at which the drop was recorded."
    return join(el("h2", "Over time"), el("p", note, class_="soft small"), *figures)


def by_sequence(verdict: Verdict) -> Html | None:
    """Return the section with the faults by sequence, and the longest gaps; None without faults."""
    if not verdict.maps:
        return None
    shown = [_map(place) for place in verdict.maps[:MAX_MAPS]]
    more = None
    if len(shown) > OPEN_MAPS:
        more = el(
            "details",
            el("summary", f"{counted(len(shown) - OPEN_MAPS, 'more producer')}"),
            el("div", *shown[OPEN_MAPS:]),
        )
    longest = None
    if verdict.gaps:
        rows = []
        for gap in verdict.longest_gaps:
            numbers = gap.first, gap.first + gap.events - 1, gap.events
            cells = (el("td", f"{n:,}", class_="n") for n in numbers)
            rows.append(el("tr", el("td", el("code", gap.producer)), *cells))
        head = el("tr", el("th", "producer"), *(el("th", x, class_="n") for x in ("from", "to", "events")))
        name = f"{counted(verdict.gaps, 'gap')} of events that never arrived"
        longest = join(
            el("h3", f"{name}; the longest" if verdict.gaps > 1 else name),
            scrolling(el("table", el("thead", head), el("tbody", *rows)), "Longest gaps"),
        )
    left = verdict.maps_left_out + len(verdict.maps) - len(shown)
    return join(
        el("h2", "By sequence"),
        el(
            "p",
            "The faults of each producer by sequence, from its first to its last event. The worst producers "
            "come first.",
            class_="soft small",
        ),
        *shown[:OPEN_MAPS],
        more,
        el(
            "p",
            f"{counted(left, 'more producer')} with faults not shown here; verdict.json counts them.",
            class_="soft small",
        )
        if left
        else None,
        longest,
    )


def _map(place: Map) -> Html:
    rows = []
    for word in charts.PLACES:
        if word in place.parts:
            n = sum(count for _, count in place.parts[word])
            rows += [el("span", dot(word), f"{n:,} {word}", class_="small"), charts.strip(place, word)]
    ends = el("div", el("span", "1"), el("span", f"{place.last:,}"), class_="ends")
    return el("div", el("p", el("code", place.producer)), *rows, ends, class_="map")


def faulty(verdict: Verdict) -> Html | None:
    """Return the section that describes each faulty producer: process, places, times and reasons."""
    worst = faulty_producers(verdict)
    unknown = [x for x in verdict.producers if not x.producer]
    if not worst and not unknown:
        return None
    items = []
    for x in (*worst[:MAX_EXPLAINED], *unknown):
        words = [
            el("li", dot(word), fault_line(x, word), class_="bad" if word in x.breaks else None)
            for word in fault_words(x)
        ]
        reasons = explain(verdict, x) if x.producer else explain_unknown(verdict)
        process = (process_line(x) or "process not recorded in the ledger") if x.producer else ""
        items.append(
            el(
                "div",
                el("p", el("code", x.producer or "no producer of these ledgers"), " ", el("b", process)),
                el("ul", *words, class_="plain") if words else None,
                el(
                    "dl",
                    *(join(el("dt", name), el("dd", texts)) for name, texts in reasons),
                    class_="reasons",
                ),
                class_="producer",
            )
        )
    listed = len(worst) - MAX_EXPLAINED
    more = [f"{listed:,} more, in the table of producers"] if listed > 0 else []
    if unlisted := unlisted_faults(verdict):
        more.append(unlisted)
    return join(
        el("h2", "Faulty producers"),
        el("p", "Producers with events that are not ok, the worst first.", class_="soft small"),
        *items,
        el("p", f"and {', and '.join(more)}", class_="soft") if more else None,
    )
