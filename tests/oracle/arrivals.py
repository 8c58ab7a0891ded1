"""The reference of ``logclient._ext.arrivals``: one arrival after the other."""

from __future__ import annotations

NO_TIME = (1 << 32) - 1
FAR = (1 << 63) - 1


def join(
    places: list[int],
    hashes: list[int],
    positions: list[int],
    after: list[int],
    received_us: int,
    shift: int,
    expected: list[int],
    listed: list[int],
    copies: list[int],
    first: list[int],
    received: list[int],
) -> tuple[int, list[int]]:
    of_listed, wrong = 0, []
    for i, place in enumerate(places):
        copies[place] += 1
        of_listed += listed[place]
        first[place] = min(first[place], positions[i])
        if after[i] != NO_TIME:
            received[place] = min(received[place], received_us + (after[i] << shift))
        if hashes[i] != expected[place]:
            wrong.append(i)
    return of_listed, wrong


def locate(
    producers: list[int],
    sequences: list[int],
    last: list[int],
    bases: list[int],
    starts: list[int],
    bits: int,
) -> list[tuple[int, int]]:
    """Return bucket and place of each event; bucket -1 for none."""
    found = []
    for p, sequence in zip(producers, sequences, strict=True):
        if 0 <= p < len(last) and 1 <= sequence <= last[p]:
            bucket, place = divmod(sequence - 1, 1 << bits)
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
    buckets: list[int], columns: list[list[int]], received: list[int], base: dict[int, int], shift: int
) -> list[list[int]]:
    """Return the columns and ``after``, sorted by bucket, without the events that have none."""
    order = sorted((i for i, bucket in enumerate(buckets) if bucket >= 0), key=lambda i: buckets[i])
    after = [NO_TIME if received[i] == FAR else (received[i] - base[buckets[i]]) >> shift for i in order]
    return [*([column[i] for i in order] for column in columns), after]
