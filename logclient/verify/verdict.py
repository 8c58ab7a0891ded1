"""The verdict: the result of a comparison, as plain values. ``docs/verify.md`` explains words and fields.

The words are those of Jepsen's checks of queues. Each sequence that a producer made has exactly one state:
``ok``, ``lost``, ``missing``, ``recovered``, ``corrupted``, ``dropped``, ``unexpected``, ``unknown`` or
``pending``. It may also be ``duplicated`` and ``reordered``. ``unexpected``, ``unknown`` and ``pending`` also
count distinct ids of no known producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from logclient.errors import ConfigError, ExitCode
from logclient.verify.devices import Device

VERSION = 1  # of the JSON form
_MAX_DIGITS = 18  # of a limit


class Counts(NamedTuple):
    """The number of events of each word. ``duplicated`` counts copies beyond the first, the others ids."""

    events: int = 0
    ok: int = 0
    lost: int = 0
    missing: int = 0
    recovered: int = 0
    duplicated: int = 0
    unexpected: int = 0
    corrupted: int = 0
    reordered: int = 0
    dropped: int = 0
    unknown: int = 0
    pending: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sum."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class Latency(NamedTuple):
    """The time from ``send`` to the collector's write, in microseconds of both clocks.

    Quantiles are within 1.6 %; ``max`` is exact.
    """

    events: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: int


class ProducerVerdict(NamedTuple):
    """The verdict on one producer; an empty ``producer``: on events that belong to none."""

    producer: str
    protocol: str
    url: str
    identity: str
    order: str  # "checked", or "not checked" where events have no ids
    closed: bool
    counts: Counts
    gaps: int
    latency: Latency | None
    breaks: tuple[str, ...] = ()  # words of its counts that break the promise
    mode: str = ""  # of protocols with several: Logjam's "request" or "async"
    early: int = 0  # events that arrived before they were sent, by the two clocks
    early_us: int = 0  # the longest such time: the clocks differ by at least that
    ledger: str = ""  # "whole", "unclosed", "stopped" or "holes"
    host: str = ""  # of the process, from its ledger; empty: not known
    pid: int = 0
    started_us: int = 0  # when its ledger was opened, microseconds since 1970; 0: not known
    reasons: dict[str, dict[str, int]] = {}  # `failed` and `dropped` -> reason -> how many, by the ledger
    when: dict[str, list[int]] = {}  # word -> when the first and last such event was made, where listed
    listeners: dict[str, int] = {}  # name -> how many listed events of it arrived there
    shared: int = 0  # listed events whose id another event also has: compared by hash alone


class LeftOut(NamedTuple):
    """The sum over all producers that a verdict does not name."""

    producers: int
    counts: Counts


class Listener(NamedTuple):
    """The events of one listener, counting those with ids that the ledgers list.

    ``lost``, ``missing`` and ``unknown`` are events of producers that sent to this listener alone;
    ``elsewhere`` has those of producers that could also have sent to others.
    """

    listener: str
    protocol: str
    urls: list[str]
    source: str
    hosts: list[str]
    runs: list[str]
    segments: int
    events: int  # everything that arrived
    first_us: int
    last_us: int
    seen: int  # listed events that arrived here
    duplicated: int  # copies of these beyond the first
    corrupted: int  # copies of these with another hash
    reordered: int
    lost: int
    missing: int
    unknown: int
    elsewhere: dict[str, int]
    problems: int  # in its segments


class Destination(NamedTuple):
    """A URL that some producers sent to."""

    url: str
    protocol: str
    endpoints: list[list[str]]  # endpoint, and its listener; empty: none, or not known
    captured: bool  # every endpoint has a listener in the captures
    producers: int
    counts: Counts


class Gap(NamedTuple):
    """Consecutive events that never arrived."""

    producer: str
    first: int
    events: int


class Timeline(NamedTuple):
    """The words of the events by the time they were made, in steps of `width_us` from `start_us`.

    ``dropped`` counts by the time at which the ledger recorded the drop: these events are not listed, so
    their own times are unknown.
    """

    start_us: int
    width_us: int
    events: list[int]  # listed events
    lost: list[int]
    missing: list[int]
    recovered: list[int]
    duplicated: list[int]
    corrupted: list[int]
    reordered: list[int]
    dropped: list[int]
    unknown: list[int]
    pending: list[int]
    latency: dict[str, list[float | None]]  # p50, p99, max in microseconds, within 1.6 %


class Map(NamedTuple):
    """The faults of a producer over its sequences 1..last, as counts for parts of `width` sequences."""

    producer: str
    last: int
    width: int
    parts: dict[str, list[list[int]]]  # word -> [part, from 0; how many] of parts that have any


class Limits(NamedTuple):
    """Limits on counts, as a number or a share of all events; None: no limit. More breaks the promise."""

    missing: str | None = None
    duplicated: str | None = None
    dropped: str | None = None

    @classmethod
    def read(cls, **given: int | str | None) -> Limits:
        """Check limits such as ``100`` and ``"0.1%"``."""
        limits = {}
        for word, value in given.items():
            text = None if value is None else _shown(value)
            if text is not None:
                number = text.removesuffix("%")
                whole = number == text
                # More digits than this say nothing, and Python refuses to read thousands of them.
                digits = number.replace(".", "", 0 if whole else 1)
                if not (number.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
                    raise ConfigError(
                        f"max_{word}: {text[:40]!r} must be a count such as 100 or a share such as 0.1%"
                    )
            limits[word] = text
        return cls(**limits)

    def broken(self, counts: Counts) -> list[str]:
        """Return a phrase for each limit that these counts exceed."""
        out = []
        for word, text in zip(self._fields, self, strict=True):
            if text is None:
                continue
            n: int = getattr(counts, word)
            limit = float(text[:-1]) / 100 * counts.events if text.endswith("%") else int(text)
            if n > limit:
                out.append(f"{n:,} {word}, more than {text}")
        return out


def _shown(limit: int | str) -> str:
    """Return a limit as text. Python does not write numbers of thousands of digits."""
    try:
        return str(limit)
    except ValueError:
        return "a number of thousands of digits"


class Verdict(NamedTuple):
    """The result of a comparison. `to_json` is documented in ``docs/verify.md``."""

    exit_code: ExitCode
    sentence: str
    broken: tuple[str, ...]
    counts: Counts
    producers: tuple[ProducerVerdict, ...]
    gaps: int
    longest_gaps: tuple[Gap, ...]
    latency: Latency | None
    order: str  # "checked", "not checked", or "partly"
    examples: dict[str, list[dict[str, Any]]]
    undecodable: dict[str, int]
    undecoded: list[dict[str, Any]]
    capture: dict[str, Any]
    ledger: dict[str, Any]
    problems: tuple[str, ...]
    limits: Limits
    seconds: dict[str, float]
    made_us: int = 0  # microseconds since 1970
    timeline: Timeline | None = None
    maps: tuple[Map, ...] = ()
    maps_left_out: int = 0
    devices: tuple[Device, ...] = ()
    producers_left_out: LeftOut | None = None
    problems_left_out: int = 0
    listeners: tuple[Listener, ...] = ()
    destinations: tuple[Destination, ...] = ()
    selection: dict[str, Any] | None = None  # `since_us`, `until_us`, `runs`, and what is left out; None: all
    bodies: str = "compared"  # or "not compared": events are matched by their ids alone

    @property
    def ok(self) -> bool:
        """Whether the promise holds: exit code 0."""
        return self.exit_code == ExitCode.OK

    def untimed(self) -> Verdict:
        """Return the verdict without latencies, for a source without times of arrival."""
        timeline = self.timeline
        if timeline is not None:
            timeline = timeline._replace(
                latency={word: [None] * len(values) for word, values in timeline.latency.items()}
            )
        producers = tuple(producer._replace(latency=None, early=0, early_us=0) for producer in self.producers)
        return self._replace(producers=producers, latency=None, timeline=timeline)

    def worst(self, limit: int) -> tuple[list[ProducerVerdict], LeftOut]:
        """Choose some producers: first those that break the promise, then the largest."""
        ranked = sorted(
            self.producers,
            key=lambda x: (-sum(getattr(x.counts, word) for word in x.breaks), -x.counts.events, x.producer),
        )
        left, rest = self.producers_left_out or LeftOut(0, Counts())
        for left_out in ranked[limit:]:
            left, rest = left + 1, rest.plus(left_out.counts)
        return ranked[:limit], LeftOut(left, rest)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple) and hasattr(value, "_asdict"):
                return {key: plain(item) for key, item in value._asdict().items()}
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [plain(item) for item in value]
            return int(value) if isinstance(value, ExitCode) else value

        return {"version": VERSION, **plain(self)}


def severity_columns(columns: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return three sums of counts: those that break the promise, may break it, or are only unusual."""
    return (
        columns["lost"] + columns["corrupted"] + columns["unexpected"] + columns["reordered"],
        columns["missing"] + columns["unknown"] + columns["dropped"],
        columns["duplicated"] + columns["recovered"],
    )


def severity(counts: Counts) -> tuple[int, ...]:
    """Return a key that sorts the worst counts first."""
    return tuple(-n for n in severity_columns(counts._asdict()))
