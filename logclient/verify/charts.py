"""The pictures of the report, as inline SVG.

A picture is as wide as the page lets it be: what is drawn is placed in percent, so that it stretches while
lines and letters keep their size. No picture says anything that is not in a table or a title as well.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from logclient.verify.markup import Html, el, join

if TYPE_CHECKING:
    from logclient.verify.verdict import Map, Timeline

__all__ = ["clock", "duration", "events_over_time", "faults_over_time", "latency_over_time", "share", "strip"]

# In the order in which they are stacked, the worst at the bottom.
FAULTS = ("lost", "corrupted", "reordered", "missing", "unknown", "pending", "dropped", "recovered",
          "duplicated")  # fmt: skip
PLACES = ("lost", "corrupted", "unexpected", "reordered", "missing", "unknown", "pending", "dropped",
          "recovered", "duplicated")  # fmt: skip
LINES = ("max", "p99", "p50")

_HIGH = 112  # pixels of a chart, without its axis
_AXIS = 20
_EPOCH = datetime.datetime(1970, 1, 1)


def clock(us: int, finest_us: int = 1, date: bool = True) -> str:
    """A time of day in UTC, as fine as needed."""
    try:
        at = _EPOCH + datetime.timedelta(microseconds=us)
    except OverflowError:
        return f"{us} us"
    if finest_us >= 86_400_000_000:
        return at.strftime("%Y-%m-%d")
    digits = "" if finest_us >= 1_000_000 else f".{at.microsecond:06d}"[: 4 if finest_us >= 1000 else 7]
    return at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S") + digits


def duration(us: float) -> str:
    """A duration with the unit that suits it."""
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


def _pc(part: float) -> str:
    return f"{100 * part:.2f}%".replace(".00%", "%")


def _bar(x: float, width: float, top: float, height: float, kind: str) -> Html:
    return el("rect", x=_pc(x), width=_pc(width), y=f"{top:.1f}", height=f"{height:.1f}", class_=f"c-{kind}")


def _picture(title: str, height: int, *content: object) -> Html:
    return el("svg", *content, role="img", aria_label=title, width="100%", height=height, class_="chart")


def _axis(timeline: Timeline) -> Html:
    """Begin, middle and end, below."""
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
                x=_pc(at / n),
                y=_HIGH + 15,
                text_anchor=("start", "middle", "end")[i],
                class_="tick",
            )
        )
    return join(el("line", x1=0, x2="100%", y1=_HIGH + 0.5, y2=_HIGH + 0.5, class_="axis"), *labels)


def _level(y: float, name: str) -> Html:
    """A level, and what it stands for."""
    return join(
        el("line", x1=0, x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="level"),
        el("text", name, x=2, y=f"{max(y - 3, 10):.1f}", class_="tick"),
    )


def _nice(top: int) -> int:
    """A round number not below `top`."""
    unit = 10 ** max(len(str(top)) - 1, 0)
    return next(n for n in (int(unit * f) for f in (1, 1.5, 2, 3, 4, 5, 6, 8, 10)) if n >= top and n)


def _titles(timeline: Timeline, told: Sequence[str]) -> Html:
    """What each step says when it is pointed at."""
    n, width = len(timeline.events), timeline.width_us
    return join(
        *(
            el(
                "rect",
                el("title", f"{clock(timeline.start_us + i * width, width)} UTC: {words}"),
                x=_pc(i / n),
                width=_pc(1 / n),
                y=0,
                height=_HIGH,
                class_="hit",
            )
            for i, words in enumerate(told)
            if words
        )
    )


def events_over_time(timeline: Timeline) -> Html:
    """How many were made."""
    n = len(timeline.events)
    top = _nice(max(timeline.events, default=0))
    room = _HIGH - 14
    bars = [
        _bar(i / n, 1 / n, _HIGH - room * count / top, room * count / top, "events")
        for i, count in enumerate(timeline.events)
        if count
    ]
    told = [f"{count:,} events" for count in timeline.events]
    title = f"events made in each {duration(timeline.width_us)}"
    return _picture(
        title,
        _HIGH + _AXIS,
        _level(_HIGH - room, f"{top:,}"),
        *bars,
        _axis(timeline),
        _titles(timeline, told),
    )


def faults_over_time(timeline: Timeline, words: Sequence[str]) -> Html:
    """What went wrong, stacked, with a scale of its own: a thousandth of all would not be seen otherwise."""
    n = len(timeline.events)
    rows = {word: getattr(timeline, word) for word in words}
    sums = [sum(rows[word][i] for word in words) for i in range(n)]
    top = _nice(max(sums, default=0))
    room = _HIGH - 14
    bars = []
    told = []
    for i in range(n):
        foot = float(_HIGH)
        for word in words:
            if rows[word][i]:
                height = max(room * rows[word][i] / top, 3)
                foot -= height
                bars.append(_bar(i / n, 1 / n, max(foot, 0), height, word))
        told.append(", ".join(f"{rows[word][i]:,} {word}" for word in words if rows[word][i]))
    title = f"{', '.join(words)} among the events made in each {duration(timeline.width_us)}"
    return _picture(
        title,
        _HIGH + _AXIS,
        _level(_HIGH - room, f"{top:,}"),
        *bars,
        _axis(timeline),
        _titles(timeline, told),
    )


def latency_over_time(timeline: Timeline) -> Html:
    """Quantiles of each step on a logarithmic scale."""
    n = len(timeline.events)
    rows = timeline.latency
    values = [value for word in LINES for value in rows[word] if value is not None]
    low = math.floor(math.log10(max(min(values, default=1.0), 1.0)))
    high = max(math.ceil(math.log10(max(*values, 10.0))) if values else 1, low + 1)
    room = _HIGH - 14

    def y(value: float) -> float:
        return _HIGH - room * (math.log10(max(value, 10.0**low)) - low) / (high - low)

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
            # A step is a stroke from its begin to its end: one that stands alone is seen too.
            path.append(f"{'L' if pen else 'M'}{i} {y(value):.1f}H{i + 1}")
            pen = True
        lines.append(el("path", d="".join(path), class_=f"line l-{word}", vector_effect="non-scaling-stroke"))
    told = [
        ", ".join(
            f"{word} {duration(value)}" for word in reversed(LINES) if (value := rows[word][i]) is not None
        )
        for i in range(n)
    ]
    inner = el(
        "svg", *lines, width="100%", height=_HIGH, viewBox=f"0 0 {n} {_HIGH}", preserveAspectRatio="none"
    )
    title = f"latency of the events made in each {duration(timeline.width_us)}"
    return _picture(title, _HIGH + _AXIS, *levels, inner, _axis(timeline), _titles(timeline, told))


def share(counts: Sequence[tuple[str, int]]) -> Html:
    """One bar of all events, by what became of them; nothing is thinner than can be seen."""
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
                    x=_pc(x),
                    width=_pc(width),
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
    """Where a word is in a producer's sequences 1..last: the more of a part it is, the stronger."""
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
                x=_pc((first - 1) / place.last),
                width=_pc(max((last - first + 1) / place.last, 0.003)),
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
