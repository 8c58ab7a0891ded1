"""The verdict in plain Python: one event after the other, dictionaries, no cleverness.

What it is given is what the files say, already read: the lines of each ledger as dictionaries, the arrivals
as a list. It shares no code with the package.
"""

from __future__ import annotations

import base64
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

WORDS = ("ok", "lost", "missing", "recovered", "corrupted", "dropped", "unexpected", "unknown")
FOREVER = 1 << 48
STRENGTH = {"": 0, "dropped": 1, "failed": 2, "handed": 3, "acked": 4}


class Arrival(NamedTuple):
    """One event that arrived; the list of them is in the order of arrival at each listener."""

    listener: str  # or what else has an order of its own: a device at a consumer
    producer: str  # of its id; "" when it has none
    seq: int
    hash: int
    user: tuple[int, int] | None = None  # hash of the user's own id
    received_us: int = 0


class Part(NamedTuple):
    """One file of a ledger: its lines, None for one that is damaged; and whether its last line is torn."""

    lines: list[dict[str, Any] | None]
    torn: bool = False


class Facts:
    """What a producer's ledger says."""

    def __init__(self, producer: str, parts: dict[int, Part]) -> None:
        self.producer = producer
        self.hash: dict[int, int] = {}
        self.fate: dict[int, str] = {}
        self.created: dict[int, int] = {}
        self.noted: list[tuple[int, int]] = []  # when how many were dropped
        self.users: list[tuple[int, tuple[int, int]]] = []
        self.identity = "id"
        self.protocol = ""
        self.mode = ""
        closes = []
        stopped = False
        listed = 0
        numbers = sorted(parts)
        damaged = numbers != list(range(1, len(numbers) + 1))
        for number in numbers:
            part = parts[number]
            opened = False
            damaged |= part.torn and number != numbers[-1]
            for line in part.lines:
                if line is None:
                    damaged = True
                    continue
                seqs = [s for a, b in line.get("seqs", []) for s in range(a, b + 1)]
                if line["t"] != "ids":
                    listed = max([listed, *seqs])
                if line["t"] == "open":
                    opened = True
                    self.identity, self.protocol = line["identity"], line["protocol"]
                    self.mode = line.get("mode", "")
                elif line["t"] == "batch":
                    packed = base64.b64decode(line["hashes"])
                    after = base64.b64decode(line["created"])
                    for i, seq in enumerate(seqs):
                        self.created[seq] = line["base"] + struct.unpack_from("<i", after, 4 * i)[0]
                        self.hash[seq] = struct.unpack_from("<Q", packed, 8 * i)[0]
                elif line["t"] == "ids":
                    packed = base64.b64decode(line["ids"])
                    for i, seq in enumerate(seqs):
                        self.users.append((seq, struct.unpack_from("<QQ", packed, 16 * i)))
                elif line["t"] in ("outcome", "dropped"):
                    if line["t"] == "dropped":
                        self.noted.append((line["at_us"], len(seqs)))
                    fate = line.get("status", "dropped")
                    for seq in seqs:
                        if STRENGTH[fate] > STRENGTH[self.fate.get(seq, "")]:
                            self.fate[seq] = fate
                elif line["t"] == "stopped":
                    stopped = True
                elif line["t"] == "close":
                    closes.append(line["last"])
            damaged |= not opened
        self.closed = bool(closes)
        self.last = max([listed, *closes])
        self.horizon = 0 if damaged else FOREVER if closes and not stopped else listed


class Result(NamedTuple):
    counts: dict[str, dict[str, int]]  # producer ("" = nobody's) -> word -> number
    ids: dict[str, set[tuple[str, int]]]  # word -> (producer, sequence)
    strangers: int
    gaps: dict[str, int]
    facts: dict[str, Facts]
    copies: Counter[tuple[str, int]]  # beyond the first
    took: list[tuple[int, int]]  # when it was made, and the latency of its first copy: events with an id


def judge(
    ledgers: dict[str, dict[int, Part]], arrivals: Sequence[Arrival], doubtful: Iterable[str] = ()
) -> Result:
    """The verdict over some producers.

    Args:
        doubtful: protocols whose captures are not complete.
    """
    facts = {producer: Facts(producer, parts) for producer, parts in ledgers.items()}
    doubt = set(doubtful)
    owners: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for producer, mine in facts.items():
        for seq, user in mine.users:
            owners[user].append((producer, seq))
    shared = {event for events in owners.values() if len(events) > 1 for event in events}
    pool_exists = bool(shared) or any(mine.identity == "none" for mine in facts.values())

    by_event: dict[str, dict[int, list[tuple[int, Arrival]]]] = {
        producer: defaultdict(list) for producer in facts
    }
    pooled: list[Arrival] = []
    strangers: set[Any] = set()
    for place, arrival in enumerate(arrivals):
        known = arrival.producer in facts and facts[arrival.producer].identity == "id"
        if known:
            by_event[arrival.producer][arrival.seq].append((place, arrival))
            continue
        events = owners.get(arrival.user, []) if arrival.user else []
        if len(events) == 1:
            producer, seq = events[0]
            by_event[producer][seq].append((place, arrival))
        elif pool_exists:
            pooled.append(arrival)
        elif arrival.producer:
            strangers.add(("id", arrival.producer, arrival.seq))
        elif arrival.user:
            strangers.add(("user", arrival.user))
        else:
            strangers.add(("hash", arrival.hash))

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
            if seq in mine.hash and ((producer, seq) in shared or mine.identity == "none"):
                unseen_before = False
                continue
            copies = seen.get(seq, [])
            word, sent = _word(mine, seq, [arrival.hash for _, arrival in copies])
            gap = sent and word in ("lost", "missing")
            gaps[producer] += gap and not unseen_before
            unseen_before = gap
            if sent and mine.protocol in doubt and word in ("lost", "missing"):
                word = "unknown"
            tell["events"] += 1
            tell[word] += 1
            ids[word].add((producer, seq))
            if sent and len(copies) > 1:
                tell["duplicated"] += len(copies) - 1
                ids["duplicated"].add((producer, seq))
                extra[producer, seq] = len(copies) - 1
            if sent and copies:
                first = min(arrival.received_us for _, arrival in copies)
                took.append((mine.created[seq], max(first - mine.created[seq], 0)))
        for seq in seen:
            if not 1 <= seq <= mine.last:
                beyond = seq >= 1 and seq > mine.horizon and not mine.closed
                word = "unknown" if beyond else "unexpected"
                tell[word] += 1
                ids[word].add((producer, seq))
        for seq in _reordered(mine, {s: copies for s, copies in seen.items() if (producer, s) not in shared}):
            tell["reordered"] += 1
            ids["reordered"].add((producer, seq))
    strangers |= _pool(facts, shared, pooled, doubt, counts, ids, extra)
    return Result(
        {p: dict(c) for p, c in counts.items()}, dict(ids), len(strangers), gaps, facts, extra, took
    )


def _word(mine: Facts, seq: int, hashes: list[int]) -> tuple[str, bool]:
    """What became of a sequence, and whether it was sent."""
    fate = mine.fate.get(seq, "")
    if seq in mine.hash:
        if any(h != mine.hash[seq] for h in hashes):
            return "corrupted", True
        if hashes:
            return ("ok" if fate in ("acked", "handed") else "recovered"), True
        return ("lost" if fate == "acked" else "missing"), True
    if fate == "dropped":
        return ("unexpected" if hashes else "dropped"), False
    if seq > mine.horizon:
        return "unknown", False
    if hashes:
        return "unexpected", False
    return ("lost" if fate == "acked" else "missing"), False


def _reordered(mine: Facts, seen: dict[int, list[tuple[int, Arrival]]]) -> set[int]:
    """Events whose first copy at a listener came after the first copy of a later one there."""
    first: dict[str, dict[int, int]] = defaultdict(dict)
    for seq, copies in seen.items():
        if seq in mine.hash:
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


def _pool(
    facts: dict[str, Facts],
    shared: set[tuple[str, int]],
    pooled: list[Arrival],
    doubt: set[str],
    counts: dict[str, Counter[str]],
    ids: dict[str, set[tuple[str, int]]],
    extra: Counter[tuple[str, int]],
) -> set[Any]:
    """Events without an id of their own, as a multiset of hashes; the hashes of nobody."""
    arrived = Counter(arrival.hash for arrival in pooled)
    events: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
    for producer, mine in facts.items():
        for seq, h in mine.hash.items():
            if mine.identity == "none" or (producer, seq) in shared:
                events[h].append((-STRENGTH[mine.fate.get(seq, "")], producer, seq))
    for h, rows in events.items():
        rows.sort()
        copies = arrived.pop(h, 0)
        if copies > len(rows):
            _, producer, seq = rows[0]
            counts[producer]["duplicated"] += copies - len(rows)
            ids["duplicated"].add((producer, seq))
            extra[producer, seq] = copies - len(rows)
        for nth, (_, producer, seq) in enumerate(rows):
            fate = facts[producer].fate.get(seq, "")
            if nth < copies:
                word = "ok" if fate in ("acked", "handed") else "recovered"
            else:
                word = "lost" if fate == "acked" else "missing"
                if facts[producer].protocol in doubt:
                    word = "unknown"
            counts[producer]["events"] += 1
            counts[producer][word] += 1
            ids[word].add((producer, seq))
    return {("hash", h) for h in arrived}


# -- what devices published


class Published(NamedTuple):
    """One message of a device at a consumer, in the order of arrival there."""

    listener: str
    device: int
    number: int
    heartbeat: bool = False


def gaps_of(messages: Iterable[Published]) -> dict[tuple[str, int], tuple[int, ...]]:
    """(received, heartbeats, first, last, missing, gaps, restarts, wraps) by listener and device."""
    found: dict[tuple[str, int], list[int]] = {}
    for listener, device, number, heartbeat in messages:
        if device == 0:
            continue
        mine = found.get((listener, device))
        if mine is None:
            found[listener, device] = [1, int(heartbeat), number, number, 0, 0, 0, 0]
            continue
        last = mine[3]
        due = last + 1
        if number <= last:
            due = 1
            mine[7 if last >= 2**53 > number else 6] += 1
        if number > due:
            mine[4] += number - due
            mine[5] += 1
        mine[0] += 1
        mine[1] += heartbeat
        mine[3] = number
    return {key: tuple(mine) for key, mine in found.items()}
