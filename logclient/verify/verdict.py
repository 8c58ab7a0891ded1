"""The verdict: the result of a comparison, in plain values. ``docs/verify-rules.md`` has words and fields.

Each sequence that a producer made has exactly one of the words except ``duplicated`` and ``reordered``, which
it may also have. ``unexpected``, ``unknown`` and ``pending`` also count distinct ids of no known producer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from logclient.config.readers import parse_duration
from logclient.errors import ConfigError, ExitCode
from logclient.evidence.frames import counted

VERSION = 1  # of the JSON form
CLOCK_US = 1_000  # smaller differences of clocks are not reported: times are exact to some microseconds
_LIMIT = re.compile(r"[0-9]{1,18}|(?!.*\..*\.)(?:\.?[0-9]){1,18}\.?%")  # more digits say nothing

OTHERS = ("break", "count", "ignore")  # what events of no ledger do
BREAKING = ("lost", "corrupted", "unexpected", "reordered")  # `reordered` only where order is promised
DOUBTFUL, UNUSUAL = ("missing", "unknown", "dropped"), ("duplicated", "recovered")


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
    """The time from ``send`` to the collector's write, in microseconds of both clocks."""

    events: int
    p50: float  # quantiles are within 1.6 %
    p90: float
    p99: float
    p999: float
    max: int  # exact


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
    service: str = ""  # likewise, and its version
    service_version: str = ""
    pid: int = 0
    started_us: int = 0  # when its ledger was opened, microseconds since 1970; 0: not known
    reasons: dict[str, dict[str, int]] = {}  # `failed` and `dropped` -> reason -> how many, by the ledger
    when: dict[str, list[int]] = {}  # word -> when the first and last such event was made, where listed
    listeners: dict[str, int] = {}  # name -> how many listed events of it arrived there
    shared: int = 0  # listed events whose id another event also has: compared by hash alone

    @property
    def breaking(self) -> int:
        """The number of events that break the promise."""
        return sum(getattr(self.counts, word) for word in self.breaks)


class LeftOut(NamedTuple):
    """The sum over all producers that a verdict does not name."""

    producers: int
    counts: Counts


class Listener(NamedTuple):
    """The events of one listener, counting those with ids that the ledgers list."""

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
    lost: int  # this and the next two: of producers that sent to this listener alone
    missing: int
    unknown: int
    elsewhere: dict[str, int]  # these of producers that could also have sent to others
    problems: int  # in its segments


class Destination(NamedTuple):
    """A URL that some producers sent to."""

    url: str
    protocol: str
    endpoints: list[list[str]]  # endpoint, and its listener; empty: none, or not known
    captured: bool  # every endpoint has a listener in the captures
    producers: int
    counts: Counts


class Service(NamedTuple):
    """The producers of one service at one host."""

    service: str  # empty: not known
    host: str  # likewise
    producers: int
    counts: Counts


class Gap(NamedTuple):
    """Consecutive events that never arrived."""

    producer: str
    first: int
    events: int


class Timeline(NamedTuple):
    """The words of the events by the time they were made, in steps of `width_us` from `start_us`."""

    start_us: int
    width_us: int
    events: list[int]  # listed events
    lost: list[int]
    missing: list[int]
    recovered: list[int]
    duplicated: list[int]
    corrupted: list[int]
    reordered: list[int]
    dropped: list[int]  # by the time at which the ledger recorded the drop: their own times are unknown
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
    """Limits on counts, as a number or a share of all events, and on latency. More breaks the promise.

    None: no limit, but of `lost` and `unexpected` one breaks it.
    """

    missing: str | None = None
    duplicated: str | None = None
    dropped: str | None = None
    lost: str | None = None
    unexpected: str | None = None
    latency: str | None = None  # such as ``p50=1s,p99=5s``

    @classmethod
    def read(cls, latency: str | None = None, **given: int | str | None) -> Limits:
        """Check limits such as ``100`` and ``"0.1%"``, and ``"p99=5s"`` on latency."""
        limits: dict[str, str | None] = {"latency": latency}
        _, *quantiles = Latency._fields
        for name, time in _latencies(latency):
            if name not in quantiles:
                known = ", ".join(quantiles)
                raise ConfigError(f"max_latency: {name[:40]!r} is none of {known}, as in p99=5s")
            try:
                parse_duration(time)
            except ValueError as error:
                raise ConfigError(f"max_latency: {name}: {error}") from None
        for word, value in given.items():
            try:
                text = limits[word] = None if value is None else str(value)
            except ValueError:  # Python does not write it
                text = "a number of thousands of digits"
            if text is not None and not _LIMIT.fullmatch(text):
                what = "must be a count such as 100 or a share such as 0.1%"
                raise ConfigError(f"max_{word}: {text[:40]!r} {what}")
        return cls(**limits)

    def allowed(self, counts: Counts) -> dict[str, bool]:
        """Return for each word with a limit whether these numbers are within it."""
        allowed = {}
        for word, text in self._asdict().items():
            if text is not None and word != "latency":
                n = getattr(counts, word)
                share = text.endswith("%")
                allowed[word] = 100 * n <= Fraction(text[:-1]) * counts.events if share else n <= int(text)
        return allowed

    def broken(self, counts: Counts, latency: Latency | None = None) -> list[str]:
        """Return a phrase for each limit that these numbers exceed."""
        out = [
            f"{getattr(counts, word):,} {word}, more than {getattr(self, word)}"
            for word, allowed in self.allowed(counts).items()
            if not allowed
        ]
        for name, time in _latencies(self.latency if latency else None):
            if (us := getattr(latency, name)) > 1e6 * parse_duration(time):
                out.append(f"latency {name} {us / 1e6:,.3g} s, more than {time}")
        return out


def _latencies(limit: str | None) -> list[tuple[str, str]]:
    """Return the quantiles and times of a limit on latency."""
    if limit is None:
        return []
    pairs = (pair.partition("=") for pair in str(limit).split(","))
    return [(name.strip(), time.strip()) for name, _, time in pairs]


class Verdict(NamedTuple):
    """The result of a comparison. `to_json` is documented in ``docs/verify-rules.md``."""

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
    producers_left_out: LeftOut | None = None
    problems_left_out: int = 0
    harmless: int = 0  # problems, the last ones, that leave no doubt
    listeners: tuple[Listener, ...] = ()
    destinations: tuple[Destination, ...] = ()
    services: tuple[Service, ...] = ()
    others: dict[str, Any] = {}  # the rule for events of no ledger, and with ``count`` how many there are
    selection: dict[str, Any] | None = None  # `since_us`, `until_us`, `runs`, and what is left out; None: all
    bodies: str = "compared"  # or "not compared": events are matched by their ids alone

    @property
    def ok(self) -> bool:
        """Whether the promise holds: exit code 0."""
        return self.exit_code == ExitCode.OK

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""

        def plain(value: Any) -> Any:
            if hasattr(value, "_asdict"):
                value = value._asdict()
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [plain(item) for item in value]
            return int(value) if isinstance(value, ExitCode) else value

        return {"version": VERSION, **plain(self)}


def severity(counts: Mapping[str, Any]) -> list[Any]:
    """Return a key that sorts the worst counts first."""
    return [-sum(counts[word] for word in words) for words in (BREAKING, DOUBTFUL, UNUSUAL)]


def sentence(
    code: ExitCode,
    broken: list[str],
    counts: Counts,
    why: list[str],
    unclosed: int,
    chosen: str,
    by_id: bool,
    unlisted: int,
) -> str:
    """Return the verdict in a sentence. `unlisted` of the unknown events are in no ledger."""
    events = f"{counts.events:,} events{' ' * bool(chosen)}{chosen}{' (bodies not compared)' * by_id}"
    because = ", and ".join(why)
    if code == ExitCode.BROKEN:
        parts = [re.sub(", (.+)", r" (\1)", phrase) for phrase in broken]
        also = f"; also, {because}" if why else ""
        return f"The promise is broken: {', '.join(parts)}, of {events}{also}."
    if code == ExitCode.UNREACHABLE:
        if not counts.events and chosen:
            return f"The promise is unproven: {because}."
        n, are = counts.unknown - unlisted, "is" if unlisted == 1 else "are"
        unknown = f": {n:,} of {events} are unknown" if n else ""
        more = f", and {counted(unlisted, 'arrived event')} {are} in none of these ledgers" * bool(unlisted)
        because = because or "a ledger is still open or not here"
        return f"The promise is unproven{unknown}, because {because}{more}."
    are = "is" if unclosed == 1 else "are"
    open_ = f"; {counted(unclosed, 'ledger')} {are} still open" if unclosed else ""
    if not counts.events:
        return f"The promise holds, but nothing was sent{open_}."
    others = ("missing", "dropped", "recovered", "duplicated", "reordered", "pending")
    rest = [f"{n:,} {word}" for word in others if (n := getattr(counts, word))]
    more = f"; {', '.join(rest)}" if rest else ""
    arrived = f"{counts.ok + counts.recovered:,} of {events} arrived{'' if by_id else ' intact'}"
    return f"The promise holds: {arrived}{more}{open_}."
