"""The reference of ``logclient._ext.arrivals``: one arrival after the other."""

from __future__ import annotations

NO_TIME = (1 << 32) - 1


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
