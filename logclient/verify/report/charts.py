"""The charts of the report, as inline SVG.

A chart is as wide as the page. Its coordinates are percentages, so that it stretches while lines and letters
keep their size. A table or a title repeats everything that a chart shows.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from logclient.verify.report.markup import Html, el, join

if TYPE_CHECKING:
    from logclient.verify.verdict import Map, Timeline

__all__ = ["clock", "duration", "events_over_time", "faults_over_time", "latency_over_time", "share", "strip"]

# The order of the stacked words, the worst at the bottom.
FAULTS = ("lost", "corrupted", "reordered", "missing", "unknown", "pending", "dropped", "recovered",
          "duplicated")  # fmt: skip
PLACES = ("lost", "corrupted", "unexpected", "reordered", "missing", "unknown", "pending", "dropped",
          "recovered", "duplicated")  # fmt: skip
LINES = ("max", "p99", "p50")

_HEIGHT = 112  # of a chart without its axis, in pixels
_AXIS = 20
_EPOCH = datetime.datetime(1970, 1, 1)


def clock(us: int, finest_us: int = 1, date: bool = True) -> str:
    """Format a time in UTC.

    Args:
        us: microseconds since 1970.
        finest_us: the resolution in microseconds.
        date: whether to include the date.
    """
    try:
        at = _EPOCH + datetime.timedelta(microseconds=us)
    except OverflowError:
        return f"{us} us"
    if finest_us >= 86_400_000_000:
        return at.strftime("%Y-%m-%d")
    digits = "" if finest_us >= 1_000_000 else f".{at.microsecond:06d}"[: 4 if finest_us >= 1000 else 7]
    return at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S") + digits


def duration(us: float) -> str:
    """Format a duration, given in microseconds, in a unit of its magnitude."""
    for limit, unit, name in (
        (1_000, 1, "µs"),
        (1_000_000, 1_000, "ms"),
        (120_000_000, 1_000_000, "s"),
        (7_200_000_000, 60_000_000, "min"),
        (172_800_000_000, 3_600_000_000, "h"),
    ):
        if us < limit:
            n = us / unit
            return f"{n:.0f} {name}" if n >= 100 else f"{n:.1f}".removesuffix(".0") + f" {name}"
    return f"{us / 86_400_000_000:,.1f} days"


def _percent(part: float) -> str:
    return f"{100 * part:.2f}%".replace(".00%", "%")


def _bar(x: float, width: float, top: float, height: float, kind: str) -> Html:
    y, size = f"{top:.1f}", f"{height:.1f}"
    return el("rect", x=_percent(x), width=_percent(width), y=y, height=size, class_=f"c-{kind}")


def _picture(title: str, height: int, *content: object) -> Html:
    return el("svg", *content, role="img", aria_label=title, width="100%", height=height, class_="chart")


def _axis(timeline: Timeline) -> Html:
    """Return the time axis, with labels at the beginning, the middle and the end."""
    n, width = len(timeline.events), timeline.width_us
    ends = (0, n // 2, n) if n > 1 else (0,)
    days = clock(timeline.start_us)[:10] != clock(timeline.start_us + n * width)[:10]
    labels = []
    for i, at in enumerate(ends):
        name = clock(
            timeline.start_us + at * width,
            min(width, 86_400_000_000 - 1),
            days or width >= 3_600_000_000,
        )
        labels.append(
            el(
                "text",
                name,
                x=_percent(at / n),
                y=_HEIGHT + 15,
                text_anchor=("start", "middle", "end")[i],
                class_="tick",
            )
        )
    return join(el("line", x1=0, x2="100%", y1=_HEIGHT + 0.5, y2=_HEIGHT + 0.5, class_="axis"), *labels)


def _level(y: float, name: str) -> Html:
    """Return a horizontal line with its label."""
    return join(
        el("line", x1=0, x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="level"),
        el("text", name, x=2, y=f"{max(y - 3, 10):.1f}", class_="tick"),
    )


def _round_up(top: int) -> int:
    """Return the next round number from `top` on."""
    unit = 10 ** max(len(str(top)) - 1, 0)
    return next(n for n in (int(unit * f) for f in (1, 1.5, 2, 3, 4, 5, 6, 8, 10)) if n >= top and n)


def _titles(timeline: Timeline, titles: Sequence[str]) -> Html:
    """Return invisible bars that show a title for each step."""
    n, width = len(timeline.events), timeline.width_us
    return join(
        *(
            el(
                "rect",
                el("title", f"{clock(timeline.start_us + i * width, width)} UTC: {words}"),
                x=_percent(i / n),
                width=_percent(1 / n),
                y=0,
                height=_HEIGHT,
                class_="hit",
            )
            for i, words in enumerate(titles)
            if words
        )
    )


def events_over_time(timeline: Timeline) -> Html:
    """Return the chart of the number of events made in each step."""
    n = len(timeline.events)
    top = _round_up(max(timeline.events, default=0))
    room = _HEIGHT - 14
    bars = [
        _bar(i / n, 1 / n, _HEIGHT - room * count / top, room * count / top, "events")
        for i, count in enumerate(timeline.events)
        if count
    ]
    titles = [f"{count:,} events" for count in timeline.events]
    title = f"events made in each {duration(timeline.width_us)}"
    return _picture(
        title,
        _HEIGHT + _AXIS,
        _level(_HEIGHT - room, f"{top:,}"),
        *bars,
        _axis(timeline),
        _titles(timeline, titles),
    )


def faults_over_time(timeline: Timeline, words: Sequence[str]) -> Html:
    """Return the chart of the faults in each step, stacked."""
    n = len(timeline.events)
    rows = {word: getattr(timeline, word) for word in words}
    sums = [sum(rows[word][i] for word in words) for i in range(n)]
    top = _round_up(max(sums, default=0))
    room = _HEIGHT - 14
    bars = []
    titles = []
    for i in range(n):
        foot = float(_HEIGHT)
        for word in words:
            if rows[word][i]:
                height = max(room * rows[word][i] / top, 3)
                foot -= height
                bars.append(_bar(i / n, 1 / n, max(foot, 0), height, word))
        titles.append(", ".join(f"{rows[word][i]:,} {word}" for word in words if rows[word][i]))
    title = f"{', '.join(words)} among the events made in each {duration(timeline.width_us)}"
    return _picture(
        title,
        _HEIGHT + _AXIS,
        _level(_HEIGHT - room, f"{top:,}"),
        *bars,
        _axis(timeline),
        _titles(timeline, titles),
    )


def latency_over_time(timeline: Timeline) -> Html:
    """Return the chart of latency quantiles in each step, on a logarithmic scale."""
    n = len(timeline.events)
    rows = timeline.latency
    values = [value for word in LINES for value in rows[word] if value is not None]
    low = math.floor(math.log10(max(min(values, default=1.0), 1.0)))
    high = max(math.ceil(math.log10(max(*values, 10.0))) if values else 1, low + 1)
    room = _HEIGHT - 14

    def y(value: float) -> float:
        return _HEIGHT - room * (math.log10(max(value, 10.0**low)) - low) / (high - low)

    step = max((high - low + 2) // 3, 1)
    levels = [
        _level(y(10.0**e), duration(10.0**e)) for e in range(low + 1, high + 1) if (high - e) % step == 0
    ]
    lines = []
    for word in LINES:
        path, pen = [], False
        for i, value in enumerate(rows[word]):
            if value is None:
                pen = False
                continue
            # Each step is a horizontal stroke, so that a single one is visible.
            path.append(f"{'L' if pen else 'M'}{i} {y(value):.1f}H{i + 1}")
            pen = True
        lines.append(el("path", d="".join(path), class_=f"line l-{word}", vector_effect="non-scaling-stroke"))
    titles = [
        ", ".join(
            f"{word} {duration(value)}" for word in reversed(LINES) if (value := rows[word][i]) is not None
        )
        for i in range(n)
    ]
    inner = el(
        "svg", *lines, width="100%", height=_HEIGHT, viewBox=f"0 0 {n} {_HEIGHT}", preserveAspectRatio="none"
    )
    title = f"latency of the events made in each {duration(timeline.width_us)}"
    return _picture(title, _HEIGHT + _AXIS, *levels, inner, _axis(timeline), _titles(timeline, titles))


def share(counts: Sequence[tuple[str, int]]) -> Html:
    """Return one bar of all events by word. Each part has a visible width."""
    total = sum(n for _, n in counts) or 1
    least = 0.004
    wide = {word: max(n / total, least) for word, n in counts if n}
    scale = sum(wide.values()) or 1
    bars, x = [], 0.0
    for word, n in counts:
        if n:
            width = wide[word] / scale
            bars.append(
                el(
                    "rect",
                    el("title", f"{n:,} {word}"),
                    x=_percent(x),
                    width=_percent(width),
                    y=0,
                    height=18,
                    class_=f"c-{word}",
                )
            )
            x += width
    return el(
        "svg",
        *bars,
        role="img",
        width="100%",
        height=18,
        class_="share",
        aria_label=", ".join(f"{n:,} {word}" for word, n in counts if n),
    )


def strip(place: Map, word: str) -> Html:
    """Return a strip of a producer's sequences, with stronger marks where a word has more events."""
    high = 14
    n = -(-place.last // place.width)
    runs: list[list[int]] = []  # first part, last part, events, strength
    for part, count in place.parts[word]:
        strength = min(4 * count // place.width, 4)
        if runs and runs[-1][1] + 1 == part and runs[-1][3] == strength:
            runs[-1][1] = part
            runs[-1][2] += count
        else:
            runs.append([part, part, count, strength])
    marks = []
    for low, high_part, count, strength in runs:
        first, last = low * place.width + 1, min((high_part + 1) * place.width, place.last)
        where = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        marks.append(
            el(
                "rect",
                el("title", f"{count:,} {word} in {where}"),
                x=_percent((first - 1) / place.last),
                width=_percent(max((last - first + 1) / place.last, 0.003)),
                y=0,
                height=high,
                class_=f"c-{word} s{strength}",
            )
        )
    return el(
        "svg",
        el("rect", x=0, y=0, width="100%", height=high, class_="ground"),
        *marks,
        role="img",
        aria_label=f"{word}: in {len(place.parts[word])} of {n} parts",
        width="100%",
        height=high,
        class_="strip",
    )
