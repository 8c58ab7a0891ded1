"""The charts of the report, as shapes for ``assets/picture.html.j2``, as wide as the page.

Coordinates are percentages, so that a chart stretches while lines and letters keep their size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from logclient.verify.report.words import FAULTS, MEANINGS, clock, duration, numbers
from logclient.verify.verdict import Counts, Map, Timeline

LATENCIES = {"p50": "duplicated", "p99": "missing", "max": "dropped"}  # quantile -> whose colour it has

_HEIGHT = 112  # of a chart without its axis, in pixels
_ROOM = _HEIGHT - 14  # for bars and lines


class Bar(NamedTuple):
    """A rectangle. Horizontal measures are parts of the width, vertical ones are pixels from the top."""

    x: float
    width: float
    y: float
    height: float
    colour: str  # a word, or "box"; empty: invisible, only for its title
    title: str = ""
    opacity: float = 1


class Chart(NamedTuple):
    """A chart, with its name for screen readers."""

    name: str
    bars: Sequence[Bar]
    heading: str = ""
    words: Sequence[str] = ()  # of the legend
    levels: Sequence[tuple[float, str]] = ()  # horizontal lines: pixels from the top, and label
    curves: Sequence[tuple[str, str]] = ()  # quantile, and path over `steps`
    ticks: Sequence[tuple[float, str, str]] = ()  # of the time: part of the width, anchor, and label
    steps: int = 0
    axis: int = _HEIGHT


def _chart(timeline: Timeline, what: str, titles: Sequence[str], bars: Sequence[Bar] = ()) -> Chart:
    n, width, start = len(timeline.events), timeline.width_us, timeline.start_us
    days = width >= 3_600_000_000 or clock(start)[:10] != clock(start + n * width)[:10]
    ticks = [
        (at / n, anchor, clock(start + at * width, min(width, 86_400_000_000 - 1), days))
        for at, anchor in ((0, "start"), (n // 2, "middle"), (n, "end"))[: 3 if n > 1 else 1]
    ]
    hits = [
        Bar(i / n, 1 / n, 0, _HEIGHT, "", f"{clock(start + i * width, width)} UTC: {text}")
        for i, text in enumerate(titles)
        if text
    ]
    return Chart(f"{what} made in each {duration(width)}", [*bars, *hits], ticks=ticks, steps=n)


def _stacked(timeline: Timeline, heading: str, words: Sequence[str]) -> Chart:
    """Return a chart of the numbers of some words in each step, the first at the bottom."""
    steps = list(zip(*(getattr(timeline, word) for word in words), strict=True))
    highest = max(map(sum, steps), default=0)
    unit = 10 ** (len(str(highest)) - 1)
    top = next(n for n in (int(unit * f) for f in (1, 1.5, 2, 3, 4, 5, 6, 8, 10)) if n >= highest and n)
    bars, titles = [], []
    for i, step in enumerate(steps):
        foot = float(_HEIGHT)
        for word, n in zip(words, step, strict=True):
            if n:
                height = max(_ROOM * n / top, 0 if word == "events" else 3)
                foot -= height
                bars.append(Bar(i / len(steps), 1 / len(steps), max(foot, 0), height, word))
        said = (f"{n:,} {word}" for word, n in zip(words, step, strict=True) if n or word == "events")
        titles.append(", ".join(said))
    what = "events" if words == ["events"] else f"{', '.join(words)} among the events"
    levels = [(_HEIGHT - _ROOM, f"{top:,}")]
    return _chart(timeline, what, titles, bars)._replace(heading=heading, words=words, levels=levels)


def latency(timeline: Timeline) -> Chart:
    rows = {word: timeline.latency[word] for word in LATENCIES}
    values = [value for row in rows.values() for value in row if value is not None]
    low = math.floor(math.log10(max(min(values), 1.0)))
    high = max(math.ceil(math.log10(max(*values, 10.0))), low + 1)

    def y(value: float) -> float:
        return _HEIGHT - _ROOM * (math.log10(max(value, 10.0**low)) - low) / (high - low)

    levels = [(y(10.0**e), duration(10.0**e)) for e in range(high, low - 1, -max((high - low + 2) // 3, 1))]
    curves = []
    for word, row in reversed(rows.items()):
        # Each step is a horizontal stroke, so that a single one is visible.
        strokes = ["" if value is None else f"{i} {y(value):.1f}H{i + 1}" for i, value in enumerate(row)]
        runs = itertools.groupby(strokes, bool)
        curves.append((word, "".join(f"M{'L'.join(run)}" for known, run in runs if known)))
    titles = [
        ", ".join(f"{word} {duration(us)}" for word, us in zip(rows, step, strict=True) if us is not None)
        for step in zip(*rows.values(), strict=True)
    ]
    chart = _chart(timeline, "latency of the events", titles)
    return chart._replace(heading="Latency", words=[*rows], levels=levels, curves=curves)


def over_time(timeline: Timeline, breaking: Collection[str]) -> Iterator[Chart]:
    """Return the charts over time, with the words that break the promise in one of their own."""
    yield _stacked(timeline, "Events sent", ["events"])
    words = [word for word in FAULTS if any(getattr(timeline, word, ()))]
    for heading, breaks in (("Breaks the promise", True), ("Does not break the promise", False)):
        if own := [word for word in words if (word in breaking) == breaks]:
            yield _stacked(timeline, heading, own)
    if any(value is not None for value in timeline.latency["max"]):
        yield latency(timeline)


def share(counts: Counts) -> Chart:
    """Return one bar of all events by word. Each part has a visible width."""
    found = {word: getattr(counts, word) for word in MEANINGS if word not in ("duplicated", "reordered")}
    wide = {word: max(n / sum(found.values()), 0.004) for word, n in found.items() if n}
    bars: list[Bar] = []
    for word, width in wide.items():
        x = bars[-1].x + bars[-1].width if bars else 0.0
        bars.append(Bar(x, width / sum(wide.values()), 0, 18, word, f"{found[word]:,} {word}"))
    return Chart(", ".join(bar.title for bar in bars), bars, axis=18)


def strip(place: Map, word: str) -> Chart:
    """Return a strip of a producer's sequences, with stronger marks where a word has more events."""
    runs: list[list[int]] = []  # first part, last part, events, strength
    for part, count in place.parts[word]:
        strength = min(4 * count // place.width, 4)
        if runs and runs[-1][1] + 1 == part and runs[-1][3] == strength:
            runs[-1][1:3] = part, runs[-1][2] + count
        else:
            runs.append([part, part, count, strength])
    bars = [Bar(0, 1, 0, 14, "box")]
    for low, high, count, strength in runs:
        first, last = low * place.width + 1, min((high + 1) * place.width, place.last)
        width = max((last - first + 1) / place.last, 0.003)
        title = f"{count:,} {word} in {numbers(first, last)}"
        bars.append(Bar((first - 1) / place.last, width, 0, 14, word, title, 0.6 + 0.1 * strength))
    name = f"{word}: in {len(place.parts[word])} of {-(-place.last // place.width)} parts"
    return Chart(name, bars, axis=14)
