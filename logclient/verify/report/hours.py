"""The page over a table of `logclient.verify.append`: how whole each service was, interval by interval.

Others can write into the table: its columns are checked, its texts are cut, and the page has bounds.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import compute, parquet

from logclient.errors import ConfigError, ExitCode, LedgerError
from logclient.evidence import storage
from logclient.evidence.frames import counted
from logclient.verify import output
from logclient.verify.report import charts, pages, tables, words
from logclient.verify.verdict import BREAKING, Counts, Timeline

MAX_INTERVALS, MAX_SERVICES = 24 * 14, 50
UNKNOWN = "not known"
_MAX_TEXT, _MAX_SENTENCE = 100, 500  # characters
_MINUTE_US, _HOUR_US, _DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000
_BAD, _DOUBTFUL = ("lost", "corrupted", "unexpected"), ("missing", "dropped", "unknown", "pending")
_TONES: dict[int, str] = {ExitCode.BROKEN: "bad", ExitCode.OK: "good"}
_COLOURS = {"bad": "red", "maybe": "unproven", "good": "green"}  # the worst first
_severity = [*_COLOURS].index
_MARKS = {"bad": "✗", "maybe": "!", "good": "", "": ""}

_LATENCIES = [f"latency_{name}" for name in charts.LATENCIES]
_TYPES = {
    **dict.fromkeys(("hour", "until"), pa.timestamp("us", "UTC")),
    **dict.fromkeys(("producer", "service", "host", "sentence"), pa.string()),
    **dict.fromkeys(("exit_code", *Counts._fields), pa.int64()),
    **dict.fromkeys(_LATENCIES, pa.float64()),
    "breaks": pa.list_(pa.string()),
}
_LATER = ("until", "service", *_LATENCIES)  # older tables do not have these

Place = tuple[bool, str, str]  # whether there is a ledger, service, host


class Interval(NamedTuple):
    """An interval, and the counts of its services."""

    hour: int
    until: int
    code: int
    sentence: str
    latency: Sequence[float | None]
    places: dict[Place, Counts]
    broken: set[Place]

    @property
    def counts(self) -> Counts:
        return _sum(self.places.values())

    @property
    def tone(self) -> str:
        return _TONES.get(self.code, "maybe")

    @property
    def rank(self) -> tuple[Any, ...]:
        """Its place in a list with the worst first."""
        return _severity(self.tone), *_badness(self.counts), -self.hour

    def tone_of(self, place: Place) -> str:
        """Return the colour of a service; empty: it has no events."""
        counts = self.places.get(place, Counts())
        bad, doubtful = _badness(counts)
        if bad or place in self.broken:
            return "bad"
        return "maybe" if doubtful else "good" if any(counts) else ""


def hours_page(table: storage.Folder) -> str:
    """Return the page over the hours of a table of `append`, which loads nothing and needs no script.

    Args:
        table: the folder or URL of the table.

    Raises:
        LedgerError: the table has no files, or one that cannot be read or lacks a column.
        ConfigError: the place is wrong.
    """
    folder = storage.resolve(table, "report")
    every = sorted(_intervals(folder), key=lambda x: x.hour)
    step = max(min(x.until - x.hour for x in every), _MINUTE_US)
    end = every[-1].hour + step
    start = max(end - MAX_INTERVALS * step, every[0].hour)
    recent = sorted((x for x in every if x.hour >= start), key=lambda x: x.rank)
    columns: list[Interval | None] = [None] * -(-(end - start) // step)
    for x in reversed(recent):
        columns[(x.hour - start) // step] = x
    tone = min((x.tone for x in every), key=_severity)
    older = [x for x in every if x.hour < start]
    latency = [[x.latency[i] if x else None for x in columns] for i in range(len(_LATENCIES))]
    no_events = [[0] * len(columns)] * len(Timeline._fields[2:-1])
    quantiles = dict(zip(charts.LATENCIES, latency, strict=True))
    timeline = Timeline._make([start, step, *no_events, quantiles])
    known = any(value is not None for row in latency for value in row)
    names = _names(place for x in recent for place in x.places)
    rows, left = _rows(columns, names)
    return pages.hours(
        tone,
        headline=_headline(tone, every),
        numbers=_numbers(folder, every),
        columns=[x and _cell(x.tone, x, f"exit code {x.code}") for x in columns],
        days=_days(start, step, len(columns)),
        rows=rows,
        left=left,
        shown=_table(recent, older, names),
        chart=charts.latency(timeline) if known else None,
    )


# -- reading


def _intervals(place: str) -> list[Interval]:
    """Read a table. Older intervals than the page shows keep no services, for there may be many."""
    remote = storage.is_url(place)
    with output.errors_named(place, "report"):
        listed = storage.list_names(place, "report")
    names = sorted(x for x in listed if x.endswith(".parquet") and x[0] not in "._")
    if not names:
        raise LedgerError(f"report: {place} has no Parquet files: give the table of verify --append")
    found: dict[tuple[int, int], Interval] = {}
    files = [storage.join(place, name) for name in names]
    due = 2 * MAX_INTERVALS
    for rows in storage.for_each(_read, files, remote):
        for row in rows:
            _add(found, row)
        if len(found) >= due:
            due = len(found) + 2 * MAX_INTERVALS
            for times in sorted(found)[:-MAX_INTERVALS]:
                old = found[times]
                found[times] = old._replace(places={(True, "", ""): old.counts}, broken=set())
    if not found:
        raise LedgerError(f"report: {place} has no rows")
    return [*found.values()]


def _add(found: dict[tuple[int, int], Interval], row: dict[str, Any]) -> None:
    hour, until = row["hour"], row["until"] or row["hour"] + _HOUR_US
    latency = [x if x is not None and 0 <= x < math.inf else None for x in map(row.get, _LATENCIES)]
    sentence = _cut(row["sentence"], _MAX_SENTENCE)
    new = Interval(hour, until, row["exit_code"], sentence, latency, {}, set())
    x = found.get((hour, until), new)
    # Several files may have the interval: the worst verdict counts.
    if _severity(new.tone) < _severity(x.tone):
        x = x._replace(code=new.code, sentence=new.sentence)
    found[hour, until] = x
    place = row["known"], _cut(row["service"]), _cut(row["host"])
    counts = Counts(*(row[f"{word}_sum"] for word in Counts._fields))
    x.places[place] = x.places.get(place, Counts()).plus(counts)
    if row["broken_sum"]:
        x.broken.add(place)


def _cut(text: str, most: int = _MAX_TEXT) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _read(place: str) -> list[dict[str, Any]]:
    """Return the sums of a file by interval and service."""
    try:
        with storage.open_file(place, "report") as file:
            opened = parquet.ParquetFile(file)
            there = opened.schema_arrow.names
            for name in _TYPES:
                if there.count(name) > 1 or (name not in there and name not in _LATER):
                    raise LedgerError(f"report: {place}: it must have one column {name}")
            rows = opened.read([name for name in _TYPES if name in there])
    except (ConfigError, LedgerError):
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise LedgerError(f"report: {place}: {reason}") from error
    columns = {name: _column(place, rows, name) for name in _TYPES}
    columns["known"] = compute.not_equal(columns.pop("producer"), "")
    lengths = compute.list_value_length(columns.pop("breaks")).fill_null(0)
    columns["broken"] = compute.greater(lengths, 0)
    sums = (*Counts._fields, "broken")
    keys = [name for name in columns if name not in sums]
    found = pa.table(columns).group_by(keys).aggregate([(name, "sum") for name in sums])
    return list(found.to_pylist())


def _column(place: str, rows: pa.Table, name: str) -> Any:
    """Return a column in its type; times are microseconds."""
    kind = _TYPES[name]
    if name not in rows.column_names:
        column = pa.nulls(len(rows), kind)
    else:
        try:
            column = rows[name].cast(kind)
            column.validate(full=True)  # also that texts are UTF-8
        except (ValueError, pa.ArrowException):
            raise LedgerError(
                f"report: {place}: column {name} must be {kind}, and is {rows[name].type}"
            ) from None
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    if name in ("hour", "exit_code") and column.null_count:
        raise LedgerError(f"report: {place}: column {name} has no value in some rows")
    return column.fill_null("" if kind == pa.string() else 0) if kind in (pa.string(), pa.int64()) else column


# -- the parts of the page


def _sum(every: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*every, strict=True)))


def _badness(counts: Counts) -> tuple[int, int]:
    """Return how many events are bad, and doubtful; as negative numbers, by which the worst comes first."""
    bad, doubtful = (sum(getattr(counts, word) for word in group) for group in (_BAD, _DOUBTFUL))
    return -bad, -doubtful


def _colours(every: Sequence[Interval]) -> str:
    tones = [x.tone for x in every]
    return ", ".join(f"{tones.count(tone):,} {name}" for tone, name in _COLOURS.items() if tone in tones)


def _headline(tone: str, every: Sequence[Interval]) -> str:
    n = sum(x.tone == tone for x in every)
    if tone == "good":
        return f"The promise holds in {'all ' * (n > 1)}{counted(n, 'interval')}"
    word = "broken" if tone == "bad" else "unproven"
    return f"The promise is {word} in {n:,} of {counted(len(every), 'interval')}"


def _numbers(place: str, every: Sequence[Interval]) -> dict[str, str]:
    counts = _sum(x.counts for x in every)
    arrived = counts.ok + counts.recovered
    return {
        "Time (UTC)": words.span(every[0].hour, max(x.until for x in every), 1_000_000),
        "Intervals": f"{len(every):,}: {_colours(every)}",
        "Events": f"{counts.events:,}",
        "Complete": (words.share(arrived, counts.events) or "0 %") if counts.events else "no events",
        "Not ok": _said(counts, [word for word in counts._fields if word not in ("events", "ok")]) or "none",
        "Table": place,
    }


def _said(counts: Counts, names: Iterable[str] = Counts._fields) -> str:
    return ", ".join(f"{n:,} {word}" for word in names if (n := getattr(counts, word)))


def _time(us: int) -> str:
    return words.clock(us, 1_000_000)[:16]


def _anchor(x: Interval) -> str:
    return f"t{abs(x.hour) // _MINUTE_US}"


def _cell(tone: str, x: Interval, text: str) -> tuple[str, str, str, str]:
    """Return the colour, mark, anchor and title of a cell of the map."""
    return tone, _MARKS[tone], _anchor(x), f"{_time(x.hour)} UTC: {text}"


def _days(start: int, step: int, n: int) -> list[tuple[str, int]]:
    """Return the heads of the map, by day or hour: a label, and how many columns it spans."""
    unit, part = (_DAY_US, slice(5, 10)) if step >= _HOUR_US else (_HOUR_US, slice(5, 16))
    groups = itertools.groupby(range(start, start + n * step, step), lambda us: us // unit)
    found = [(next(times), 1 + sum(1 for _ in times)) for _, times in groups]
    return [(_time(us)[part] if span >= 4 or len(found) == 1 else "", span) for us, span in found]


def _names(places: Iterable[Place]) -> dict[Place, str]:
    """Return the names of services, with the host where a service has several."""
    every = set(places)
    hosts = Counter(service for known, service, _ in every if known)
    return {
        x: (x[1] or UNKNOWN) + f" @ {x[2] or UNKNOWN}" * (hosts[x[1]] > 1) if x[0] else "no ledger"
        for x in every
    }


def _rows(columns: Sequence[Interval | None], names: dict[Place, str]) -> tuple[list[Any], str]:
    """Return the rows of the map, the worst services first, and which are left out."""
    recent = [x for x in columns if x]
    found: dict[Place, Counts] = {}
    broken: Counter[Place] = Counter()
    for x in recent:
        broken.update(x.broken)
        for place, counts in x.places.items():
            if any(counts):
                found[place] = found.get(place, Counts()).plus(counts)
    ranked = sorted(found, key=lambda x: (_badness(found[x]), -broken[x], -found[x].events, names[x]))
    rows = [
        (names[place], _said(found[place]), [
            x and (tone := x.tone_of(place)) and _cell(tone, x, _said(x.places[place])) for x in columns
        ])
        for place in ranked[:MAX_SERVICES]
    ]  # fmt: skip
    left = [found[x] for x in ranked[MAX_SERVICES:]]
    return rows, f"and {counted(len(left), 'more row')}, in all: {_said(_sum(left))}" if left else ""


def _table(recent: Sequence[Interval], older: Sequence[Interval], names: dict[Place, str]) -> tables.Table:
    """Return the table of intervals, whose worst come first."""
    counts = [x.counts for x in recent]
    columns: dict[str, Sequence[Any]] = {
        "time (UTC)": [words.span(x.hour, x.until, 1_000_000) for x in recent],
        "exit code": [f"{_MARKS[x.tone]} {x.code} {_COLOURS[x.tone]}".strip() for x in recent],
        "worst services": [_worst(x, names) for x in recent],
        **{word: [getattr(x, word) for x in counts] for word in Counts._fields},
        "sentence": [x.sentence for x in recent],
    }
    more = f"and {counted(len(older), 'older interval')}: {_colours(older)}" if older else ""
    ids, note = [_anchor(x) for x in recent], "The worst come first, then the newest."
    return tables.Table("Intervals", note, columns, more, [_BAD] * len(recent), ids=ids).folded()


def _worst(x: Interval, names: dict[Place, str]) -> str:
    faulty = [place for place in x.places if x.tone_of(place) in ("bad", "maybe")]
    faulty.sort(key=lambda place: (_badness(x.places[place]), place))
    said = [f"{names[place]}: {_said(x.places[place], (*BREAKING, *_DOUBTFUL))}" for place in faulty[:3]]
    return "; ".join(said + [f"and {len(faulty) - 3:,} more"] * (len(faulty) > 3))
