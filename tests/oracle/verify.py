"""The verdict in plain Python: one event after the other, with dictionaries.

Its input are the parsed files: the lines of each ledger as dictionaries, and the arrivals as a list. It
shares no code with the package.
"""

from __future__ import annotations

import base64
import bisect
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

WORDS = ("ok", "lost", "missing", "recovered", "corrupted", "dropped", "unexpected", "unknown", "pending")
FOREVER = 1 << 60
CLOCKS_US = 10_000_000  # the clocks of machines differ by less
STRENGTH = {"": 0, "dropped": 1, "failed": 2, "handed": 3, "acked": 4}


class Arrival(NamedTuple):
    """One event that arrived; lists are in the order of arrival at each listener."""

    listener: str  # or a device at a consumer, which has a separate order
    producer: str  # of its id; "" when it has none
    seq: int
    hash: int
    user: tuple[int, int] | None = None  # hash of the user's own id
    received_us: int = 0


class Part(NamedTuple):
    """One file of a ledger: its lines (None: damaged), and whether its last line is torn."""

    lines: list[dict[str, Any] | None]
    torn: bool = False
    sizes: list[int] = []


def _seqs(line: dict[str, Any], name: str = "seqs") -> list[int]:
    return [seq for first, last in line.get(name, []) for seq in range(first, last + 1)]


class Facts:
    """The facts of a producer's ledger, by the rules of docs/verify-rules.md.

    Args:
        since: events made before are left out; None: none are.
        until: events made then or later are left out; None: none are.
    """

    def __init__(
        self,
        producer: str,
        parts: dict[int, Part],
        since: int | None = None,
        until: int | None = None,
    ) -> None:
        self.producer = producer
        self.began: int | None = None
        self.since, self.until = since, until
        self.hash: dict[int, int] = {}
        self.outcome: dict[int, str] = {}
        self.decided_us: dict[int, int] = {}  # when the first line about it was written
        self.created: dict[int, int] = {}
        self.noted: list[tuple[int, int]] = []  # when how many were dropped
        self.users: list[tuple[int, tuple[int, int]]] = []
        self.deferred: set[int] = set()
        self.identity, self.protocol, self.mode = "id", "", ""
        self.last = 0
        self.end: dict[str, Any] | None = None  # the close line, when it is the last
        self.before = 0  # bytes before it
        self.stopped = False
        self.last_line_us = 0  # the time of the last line that has one
        self.waiting = 0
        self.goes_on = False  # in a part that is not here
        self.ended = False  # no process writes it any more
        self.lines: Counter[int] = Counter()  # sequence -> batch lines that have it
        self.own: set[int] = set()
        numbers = sorted(parts)
        self.holes = numbers != list(range(1, len(numbers) + 1))
        first: dict[str, Any] | None = None
        for number in numbers:
            part = parts[number]
            self.end, self.goes_on, self.ended = None, False, False
            if not part.lines and number == numbers[-1]:
                continue
            head = part.lines[0] if part.lines else None
            ours = head is not None and (head["t"], head.get("producer"), head.get("part")) == (
                "open", producer, number,
            )  # fmt: skip
            if ours and first and any(head[x] != first[x] for x in ("identity", "protocol")):  # type: ignore[index]
                ours = False
            if not ours:
                self.holes = True
                self.before += sum(part.sizes)
                continue
            if first is None and head is not None:
                first = head
                self.identity, self.protocol = head["identity"], head["protocol"]
                self.mode = head.get("mode", "")
                self.began = (head.get("at_us") or None) if number == 1 else None
            self._note_time(head)
            self.holes |= part.torn and number != numbers[-1]
            for i, line in enumerate(part.lines[1:], 1):
                self.end, self.goes_on, self.ended = None, False, False
                if line is None:
                    self.holes = True
                elif line["t"] == "open":
                    self.holes = True
                    break
                else:
                    self._line(line)
                    self._note_time(line)
                    self.goes_on, self.ended = line["t"] == "continued", line["t"] == "ended"
                    if line["t"] == "close":
                        self.end = line
                        self.start = self.before + sum(part.sizes[:i])
            if part.torn:
                self.end = None
            self.before += sum(part.sizes)
        self._check()

    def _note_time(self, line: dict[str, Any] | None) -> None:
        at = line.get("at_us", 0) if line is not None else 0
        if 0 < at < 9_000_000_000_000_000:
            self.last_line_us = at

    def _line(self, line: dict[str, Any]) -> None:
        seqs = _seqs(line)
        if line["t"] in ("batch", "outcome", "dropped"):
            self.last = max([self.last, *seqs])
        if line["t"] == "batch":
            packed = base64.b64decode(line["hashes"])
            after = base64.b64decode(line["created"])
            self.own.update(_seqs(line, "own"))
            for i, seq in enumerate(seqs):
                self.lines[seq] += 1
                self.created[seq] = line["base"] + struct.unpack_from("<i", after, 4 * i)[0]
                self.hash[seq] = struct.unpack_from("<Q", packed, 8 * i)[0]
        elif line["t"] == "ids":
            packed = base64.b64decode(line["ids"])
            packed += base64.b64decode(line.get("second", ""))
            for i, seq in enumerate(seqs + _seqs(line, "beside")):
                self.users.append((seq, struct.unpack_from("<QQ", packed, 16 * i)))
        elif line["t"] in ("outcome", "dropped"):
            if line["t"] == "dropped":
                self.noted.append((line["at_us"], len(seqs)))
            outcome = line.get("status", "dropped")
            for seq in seqs:
                if outcome != "dropped":
                    self.decided_us[seq] = min(self.decided_us.get(seq, FOREVER), line["at_us"])
                if STRENGTH[outcome] > STRENGTH[self.outcome.get(seq, "")]:
                    self.outcome[seq] = outcome
        elif line["t"] == "deferred":
            self.deferred.update(seqs)
        elif line["t"] == "stopped":
            self.stopped = True
        elif line["t"] == "alive":
            self.waiting = line["waiting"]
        elif line["t"] == "close":
            self.last = max(self.last, line["last"])

    def _check(self) -> None:
        """Holes that only all lines together show; and what then is listed."""
        named = {seq for seq, _ in self.users}
        away = {seq for seq, n in self.lines.items() if n > 1} | (self.own - named)
        sent = {seq for seq, outcome in self.outcome.items() if outcome in ("acked", "handed")}
        self.holes |= bool(away or named - self.lines.keys() or sent - self.lines.keys())
        if self.end is not None:
            outcomes = Counter(self.outcome.values())
            says = {
                "acked": self.end["acked"],
                "handed": self.end["handed"],
                "failed": sum(self.end["failed"].values()),
                "dropped": sum(self.end["dropped"].values()),
            }
            self.holes |= self.end["last"] != self.last
            self.holes |= any(outcomes[word] != n for word, n in says.items())
            self.holes |= self.end.get("bytes", self.start) != self.start
            self.holes |= len(self.lines.keys() | self.outcome.keys()) < self.last
        self.all_created = dict(self.created)
        for seq in away:
            del self.hash[seq], self.created[seq]
        self.owned = named
        self.apart: set[int] = set()  # compared by hash, and so left out
        self.closed = self.end is not None
        self.whole = self.closed and not self.stopped and not self.holes
        merely_open = not (self.closed or self.stopped or self.holes)
        old = [seq for seq, at in self.created.items() if self.until is not None and at < self.until]
        waits = merely_open and not self.ended and self.until is not None
        self.settled = max(old, default=0) if waits else FOREVER
        self.listed = sorted(self.created)
        # All sequences above the last one have the same neighbours.
        self.selected = True
        self.selected = not all(self.is_outside(seq) for seq in range(1, self.last + 2))
        self.left_out = sum(self.is_outside(seq) for seq in range(1, self.last + 1))

    def undecided(self, seq: int) -> str:
        """What a sequence is of which the ledger does not say enough."""
        return "pending" if seq > self.settled else "unknown"

    def unlisted_word(self, seq: int, received: int) -> str:
        """What an event is that arrived, and is not listed."""
        outcome = self.outcome.get(seq, "")
        if outcome == "dropped" or (not outcome and received <= self.complete_us):
            return "unexpected"
        before_end = self.until is not None and received < self.until - CLOCKS_US
        return "unknown" if before_end else self.undecided(seq)

    @property
    def complete_us(self) -> int:
        """Until when an event that arrived must be listed."""
        if self.whole or (self.kind == "unclosed" and self.ended):
            return FOREVER
        known = self.kind == "unclosed" and self.last_line_us > 0
        return self.last_line_us - CLOCKS_US if known else -FOREVER

    @property
    def has_later_lines(self) -> bool:
        """Whether an open ledger says all that matters here."""
        if self.until is None:
            return not self.goes_on
        return self.ended or (self.last_line_us >= self.until and not self.waiting)

    def leave_out(self) -> None:
        """Select nothing: none of its events has an id."""
        self.selected, self.left_out = False, self.last

    def is_outside(self, seq: int) -> bool:
        """Whether a sequence is not selected; one that is not listed has the place of its neighbours."""
        if not self.selected or seq in self.apart:
            return True
        if seq in self.created:
            return not is_within(self.created[seq], self.since, self.until)
        at = bisect.bisect(self.listed, seq)
        below = self.created[self.listed[at - 1]] if at else self.began
        ended = self.end.get("at_us") if self.end is not None else None
        above = self.created[self.listed[at]] if at < len(self.listed) else ended
        late = below is not None and self.until is not None and below >= self.until
        early = above is not None and self.since is not None and above < self.since
        if 0 < at < len(self.listed) and below > above:  # the clock was set back
            return not any(is_within(us, self.since, self.until) for us in (below, above))
        return late or early

    @property
    def kind(self) -> str:
        return (
            "holes" if self.holes else "stopped" if self.stopped else "whole" if self.closed else "unclosed"
        )


def is_within(at: int, since: int | None, until: int | None) -> bool:
    return (since is None or at >= since) and (until is None or at < until)


class Result(NamedTuple):
    counts: dict[str, dict[str, int]]  # producer ("" = nobody's) -> word -> number
    ids: dict[str, set[tuple[str, int]]]  # word -> (producer, sequence)
    unknown_ids: dict[str, int]  # word -> number
    exit_code: int  # without limits
    gaps: dict[str, int]
    facts: dict[str, Facts]
    copies: Counter[tuple[str, int]]  # beyond the first
    took: list[tuple[int, int]]  # when it was made, and the latency of its first copy: events with an id
    without_id: int = 0  # left out because nothing but a hash could identify them


def judge(
    ledgers: dict[str, dict[int, Part]],
    arrivals: Sequence[Arrival],
    doubtful: Iterable[str] = (),
    ends: Mapping[str, int] = {},
    allow_open: bool = False,
    since: int | None = None,
    until: int | None = None,
) -> Result:
    """The verdict over some producers.

    Args:
        doubtful: protocols whose captures are not complete.
        ends: of protocols whose captures go on, when the last unit was received.
        since: the events made then or later, in microseconds since 1970.
        until: the events made before.
    """
    facts = {producer: Facts(producer, parts, since, until) for producer, parts in ledgers.items()}
    doubt = set(doubtful)

    def may_arrive(mine: Facts, seq: int) -> bool:
        end_us = ends.get(mine.protocol, 2 * FOREVER) - CLOCKS_US
        return mine.protocol in doubt or mine.decided_us.get(seq, FOREVER) >= end_us

    owners: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for producer, mine in facts.items():
        for seq, user in mine.users:
            owners[user].append((producer, seq))
    shared = {
        (producer, seq)
        for events in owners.values() if len(events) > 1
        for producer, seq in events if seq in facts[producer].hash
    }  # fmt: skip
    selecting = since is not None or until is not None
    hashed = {
        (producer, seq)
        for producer, mine in facts.items()
        for seq in mine.hash if mine.identity == "none" or (producer, seq) in shared
    }  # fmt: skip
    hashes = {facts[producer].hash[seq] for producer, seq in hashed}
    without_id = 0
    if selecting:
        for producer, mine in facts.items():
            if mine.identity == "none":
                without_id += mine.last
                mine.leave_out()
            else:
                mine.apart = {seq for owner, seq in shared if owner == producer}
                without_id += len(mine.apart)
                mine.left_out = sum(mine.is_outside(seq) for seq in range(1, mine.last + 1))

    def event_of(arrival: Arrival) -> tuple[str, int] | None:
        if arrival.producer in facts and facts[arrival.producer].identity == "id":
            return arrival.producer, arrival.seq
        events = owners.get(arrival.user, []) if arrival.user else []
        return events[0] if len(events) == 1 else None

    by_event: dict[str, dict[int, list[tuple[int, Arrival]]]] = {
        producer: defaultdict(list) for producer in facts
    }
    by_hash: list[Arrival] = []
    unknown_ids: dict[Any, int] = {}  # with the first time of arrival
    for place, arrival in enumerate(arrivals):
        if event := event_of(arrival):
            producer, seq = event
            by_event[producer][seq].append((place, arrival))
        elif hashed and not selecting:
            by_hash.append(arrival)
        elif (
            selecting
            and (
                not (arrival.producer or arrival.user)
                or hashed.intersection(owners.get(arrival.user, []) if arrival.user else [])
                or arrival.hash in hashes
            )
        ) or not is_within(arrival.received_us, since, until):
            pass
        else:
            key: Any = ("hash", arrival.hash)
            if arrival.producer:
                key = ("id", arrival.producer, arrival.seq)
            elif arrival.user:
                key = ("user", arrival.user)
            unknown_ids[key] = min(arrival.received_us, unknown_ids.get(key, FOREVER))

    all_whole = all(mine.whole for mine in facts.values() if mine.selected)
    counts: dict[str, Counter[str]] = {producer: Counter() for producer in facts}
    ids: dict[str, set[tuple[str, int]]] = defaultdict(set)
    gaps = dict.fromkeys(facts, 0)
    extra: Counter[tuple[str, int]] = Counter()
    took = []
    for producer, mine in facts.items():
        tell = counts[producer]
        seen = by_event[producer]
        unseen_before = False
        for seq in range(1, mine.last + 1):
            if (producer, seq) in hashed or mine.is_outside(seq):
                unseen_before = False
                continue
            copies = seen.get(seq, [])
            word, sent = _word(mine, seq, [arrival for _, arrival in copies], all_whole)
            gap = sent and word in ("lost", "missing")
            gaps[producer] += gap and not unseen_before
            unseen_before = gap
            if sent and word in ("lost", "missing") and may_arrive(mine, seq):
                word = "unknown"
            tell["events"] += 1
            tell[word] += 1
            ids[word].add((producer, seq))
            if sent and len(copies) > 1:
                tell["duplicated"] += len(copies) - 1
                ids["duplicated"].add((producer, seq))
                extra[producer, seq] = len(copies) - 1
            if sent and copies and word != "unknown":
                first = min(arrival.received_us for _, arrival in copies)
                took.append((mine.created[seq], first - mine.created[seq]))
        for seq, copies in seen.items():
            if not 1 <= seq <= mine.last and not mine.is_outside(seq):
                received = min(arrival.received_us for _, arrival in copies)
                word = "unexpected" if mine.whole or seq == 0 else mine.unlisted_word(seq, received)
                tell[word] += 1
                ids[word].add((producer, seq))
        judged = {
            seq: copies
            for seq, copies in seen.items() if (producer, seq) not in shared and not mine.is_outside(seq)
        }  # fmt: skip
        for seq in _reordered(mine, judged):
            tell["reordered"] += 1
            ids["reordered"].add((producer, seq))
    if not selecting:
        left = _compare_by_hash(facts, hashed, by_hash, may_arrive, counts, ids, extra)
        unknown_ids |= dict.fromkeys(left, FOREVER)
    complete_us = min([FOREVER, *(mine.complete_us for mine in facts.values() if mine.selected)])
    if any(mine.kind in ("stopped", "holes") for mine in facts.values()):
        complete_us = -FOREVER
    without_producer = Counter(
        "unknown"
        if at > complete_us or (until is not None and key[0] == "id" and key[2] < 1 << 40)
        else "unexpected"
        for key, at in unknown_ids.items()
    )
    code = 0
    for producer, tell in [*counts.items(), ("", Counter(without_producer))]:
        owner = facts.get(producer)
        if tell["unknown"] or (
            owner is not None
            and owner.selected
            and not owner.whole
            and not (owner.kind == "unclosed" and owner.has_later_lines and (allow_open or until is not None))
            and not (owner.kind == "unclosed" and owner.is_outside(owner.last + 1))
        ):
            code = max(code, 1)
        ordered = owner is not None and (
            owner.protocol == "lumberjack" or (owner.protocol == "logjam" and owner.mode != "async")
        )
        if tell["lost"] or tell["corrupted"] or tell["unexpected"]:
            code = 2
        if owner is not None and ordered and tell["reordered"] and not owner.holes:
            code = 2
    found = Counter[str](without_producer)
    for tell in counts.values():
        found.update(tell)
    if found["events"] and not any(found[x] for x in ("ok", "recovered", "corrupted", "unexpected")):
        code = max(code, 1)
    if selecting and not sum(tell["events"] for tell in counts.values()):
        code = max(code, 1)
    return Result(
        {p: dict(c) for p, c in counts.items()},
        dict(ids),
        dict(without_producer),
        (0, 3, 1)[code],
        gaps,
        facts,
        extra,
        took,
        without_id,
    )


def _word(mine: Facts, seq: int, copies: list[Arrival], all_whole: bool) -> tuple[str, bool]:
    """Return the word of a sequence, and whether it is listed."""
    hashes = [arrival.hash for arrival in copies]
    outcome = mine.outcome.get(seq, "")
    if seq in mine.hash:
        if any(h != mine.hash[seq] for h in hashes):
            return ("corrupted" if all_whole or seq not in mine.owned else "unknown"), True
        if hashes:
            return ("ok" if outcome in ("acked", "handed") else "recovered"), True
        if outcome == "acked":
            return "lost", True
        return (mine.undecided(seq) if outcome == "" and not mine.whole else "missing"), True
    if hashes:
        return mine.unlisted_word(seq, min(arrival.received_us for arrival in copies)), False
    return ({"dropped": "dropped", "failed": "missing"}.get(outcome) or mine.undecided(seq)), False


def _reordered(mine: Facts, seen: dict[int, list[tuple[int, Arrival]]]) -> set[int]:
    """Events whose first copy at a listener came after the first copy of a later one there; but for
    those that the producer has deferred."""
    first: dict[str, dict[int, int]] = defaultdict(dict)
    for seq, copies in seen.items():
        if seq in mine.hash and seq not in mine.deferred and (mine.whole or mine.outcome.get(seq)):
            for place, arrival in copies:
                at = first[arrival.listener]
                at[seq] = min(at.get(seq, place), place)
    late = set()
    for at in first.values():
        earliest = None
        for seq in sorted(at, reverse=True):
            if earliest is not None and at[seq] > earliest:
                late.add(seq)
            earliest = at[seq] if earliest is None else min(earliest, at[seq])
    return late


def _compare_by_hash(
    facts: dict[str, Facts],
    hashed: set[tuple[str, int]],
    by_hash: list[Arrival],
    may_arrive: Callable[[Facts, int], bool],
    counts: dict[str, Counter[str]],
    ids: dict[str, set[tuple[str, int]]],
    extra: Counter[tuple[str, int]],
) -> set[Any]:
    """Events without an id of their own, as a multiset of hashes; the hashes of nobody."""
    arrived = Counter(arrival.hash for arrival in by_hash)
    events: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
    for producer, seq in hashed:
        mine = facts[producer]
        events[mine.hash[seq]].append((-STRENGTH[mine.outcome.get(seq, "")], producer, seq))
    for h, rows in events.items():
        rows.sort()
        copies = arrived.pop(h, 0)
        if copies > len(rows):
            _, producer, seq = rows[0]
            counts[producer]["duplicated"] += copies - len(rows)
            ids["duplicated"].add((producer, seq))
            extra[producer, seq] = copies - len(rows)
        for nth, (_, producer, seq) in enumerate(rows):
            outcome = facts[producer].outcome.get(seq, "")
            if nth < copies:
                word = "ok" if outcome in ("acked", "handed") else "recovered"
            else:
                word = "lost" if outcome == "acked" else "missing"
                if outcome == "" and not facts[producer].whole:
                    word = facts[producer].undecided(seq)
                elif may_arrive(facts[producer], seq):
                    word = "unknown"
            counts[producer]["events"] += 1
            counts[producer][word] += 1
            ids[word].add((producer, seq))
    return {("hash", h) for h in arrived}
