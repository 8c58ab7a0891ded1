"""The reference of ``logclient._ext.arrivals``: one arrival after the other."""

from __future__ import annotations

import math

NO_TIME = (1 << 32) - 1
FAR = (1 << 63) - 1


def join(
    places: list[int],
    hashes: list[int],
    positions: list[int],
    after: list[int],
    received_us: int,
    expected: list[int],
    listed: list[int],
    copies: list[int],
    first: list[int],
    received: list[int],
) -> tuple[int, list[int], list[int]]:
    of_listed, wrong, touched = 0, [], []
    for i, place in enumerate(places):
        copies[place] += 1
        of_listed += listed[place]
        if first[place] == FAR:
            touched.append(place)
        first[place] = min(first[place], positions[i])
        if after[i] != NO_TIME:
            received[place] = min(received[place], received_us + after[i])
        if hashes[i] != expected[place]:
            wrong.append(i)
    return of_listed, wrong, touched


def locate(
    producers: list[int],
    sequences: list[int],
    before: list[int],
    size: list[int],
    bases: list[int],
    starts: list[int],
    bits: int,
) -> list[tuple[int, int]]:
    """Return bucket and place of each event; bucket -1 for none."""
    found = []
    for p, sequence in zip(producers, sequences, strict=True):
        if 0 <= p < len(size) and 1 <= sequence - before[p] <= size[p]:
            bucket, place = divmod(sequence - before[p] - 1, 1 << bits)
            found.append((bases[p] + bucket, starts[p] + place))
        else:
            found.append((-1, 0))
    return found


def measure(buckets: list[int], received: list[int]) -> dict[int, tuple[int, int, int]]:
    """Return for each bucket the number of events, and the first and last known time, else `FAR` and 0."""
    found: dict[int, tuple[int, int, int]] = {}
    for bucket, time in zip(buckets, received, strict=True):
        if bucket >= 0:
            n, first, last = found.get(bucket, (0, FAR, 0))
            found[bucket] = n + 1, min(first, time), last if time == FAR else max(last, time)
    return found


def spread(
    buckets: list[int], columns: list[list[int]], received: list[int], base: dict[int, int]
) -> list[list[int]]:
    """Return the columns and ``after``, sorted by bucket, without the events that have none."""
    order = sorted((i for i, bucket in enumerate(buckets) if bucket >= 0), key=lambda i: buckets[i])
    after = [NO_TIME if received[i] == FAR else received[i] - base[buckets[i]] for i in order]
    return [*([column[i] for i in order] for column in columns), after]


def paint(ranges: list[tuple[int, int]], values: list[int], out: list[int]) -> None:
    for (first, last), value in zip(ranges, values, strict=True):
        out[first : last + 1] = [value] * (last + 1 - first)


def copy_ranges(source: list[int], at: list[int], ranges: list[tuple[int, int]], out: list[int]) -> None:
    for begin, (first, last) in zip(at, ranges, strict=True):
        out[first : last + 1] = source[begin : begin + last + 1 - first]


# Marks and judgements of logclient/verify/rules.py.
SEEN, NEW = 1 << 8, 1 << 10
STATE, COUNTED, TIMED, ORDERED, LATE = 15, 1 << 4, 1 << 5, 1 << 6, 1 << 7


def judge(
    copies: list[int],
    marks: list[int],
    owners: list[int],
    common: list[int],
    newer: list[int],
    rules: list[int],
    before: list[int],
    states: int,
) -> tuple[list[int], list[list[int]], list[int], list[int]]:
    """Return judgements, the number of events in each state by owner, odd and repeated events."""
    counts = [[0] * states for _ in common]
    judgements, odd, repeated = [], [], []
    for i, owner in enumerate(owners):
        all_marks = marks[i] | common[owner] | SEEN * (copies[i] > 0) | NEW * (i >= newer[owner])
        judgement = rules[all_marks]
        state = judgement & STATE
        judgements.append(judgement | before[i] & LATE)
        counts[owner][state] += 1
        if 0 < state < states - 1:
            odd.append(i)
        if copies[i] > 1 and judgement & COUNTED:
            repeated.append(i)
    return judgements, counts, odd, repeated


def judge_order(
    touched: list[int], first: list[int], judgements: list[int], owners: list[int], limit: int
) -> tuple[list[int], int, int]:
    """Return the late events, the lowest position of those that are compared, and that of their last."""
    which = [i for i in touched if judgements[i] & ORDERED]
    late = [
        i
        for i in which
        if first[i] >= limit or any(j > i and owners[j] == owners[i] and first[j] <= first[i] for j in which)
    ]
    return late, min((first[i] for i in which), default=FAR), first[which[-1]] if which else FAR


def count_arrived(
    touched: list[int],
    first: list[int],
    judgements: list[int],
    owners: list[int],
    arrival: int,
    listener: int,
    counts: list[int],
    at: list[list[int]],
) -> None:
    """Count up `counts`. `at` has of each event the first arrival, its position, and the last listener."""
    for i in touched:
        if at[i][0] < 0:
            at[i][:2] = arrival, first[i]
        if at[i][2] != listener:
            at[i][2] = listener
            counts[owners[i]] += judgements[i] & COUNTED != 0


def cell(took: int) -> int:
    """Return the cell of a latency: 64 for each octave from 1 µs."""
    if not took:
        return 0
    fraction, octave = math.frexp(took)
    return 1 + 64 * (octave - 1) + int(64 * (2 * fraction - 1))


def count_latencies(
    created: list[int], received: list[int], judgements: list[int], owners: list[int], width: int
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int, int], int], dict[int, list[int]]]:
    """Return counts by owner and step, and by owner, step and cell; and for each owner the extremes."""
    words: dict[tuple[int, int], int] = {}
    latency: dict[tuple[int, int, int], int] = {}
    extremes: dict[int, list[int]] = {owner: [0, 0, 0] for owner in owners}
    for i, owner in enumerate(owners):
        if not judgements[i] & TIMED:
            continue
        step = created[i] // width
        words[owner, step] = words.get((owner, step), 0) + 1
        if received[i] == FAR:
            continue
        took = received[i] - created[i]
        longest, early, early_us = extremes[owner]
        extremes[owner] = [max(longest, took), early + (took < 0), max(early_us, -took)]
        if took >= 0:
            key = owner, step, cell(took)
            latency[key] = latency.get(key, 0) + 1
    return words, latency, extremes
