"""What devices published and a consumer's capture lacks: gaps in their numbers.

A Logjam device numbers all it publishes from 1, heartbeats too, over all app-envs. The rules are those of
``logclient.collectors.subscriber``: what came before the first message seen is not missing; a number that
is not higher than the one before is a restart, or the row has come to its end (`WRAPS`) and begins anew, and
what the device numbered below it since is missing; device 0 has no numbers of its own. Missing messages and
restarts are lower bounds.

One task sees a stretch of what a device published (`Stretch`), the driver puts them together (`joined`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logclient.verify.sources import U64

__all__ = ["FOLLOWED", "Device", "Stretches", "joined"]

WRAPS = 1 << 53
FOLLOWED = 4096  # devices at one listener: numbers are what somebody sends
LONGEST = 5


class Device(NamedTuple):
    """What a listener got of a device, from its first to its last message there."""

    listener: str
    device: int
    received: int  # messages, heartbeats too
    heartbeats: int
    first: int  # numbers
    last: int
    missing_at_least: int  # messages
    gaps: int  # that were seen
    restarts_at_least: int
    wraps: int
    longest_gaps: list[list[int]]  # [first, last] of the longest, longest first


def _step(before: Device, number: int) -> Device:
    """A message after another one."""
    first = before.last + 1
    restarts, wraps = before.restarts_at_least, before.wraps
    if number <= before.last:
        first = 1
        ended = before.last >= WRAPS and number < WRAPS
        restarts, wraps = restarts + (not ended), wraps + ended
    missing = max(number - first, 0)
    gaps = [*before.longest_gaps, [first, number - 1]] if missing else before.longest_gaps
    return before._replace(
        last=number,
        missing_at_least=before.missing_at_least + missing,
        gaps=before.gaps + (missing > 0),
        restarts_at_least=restarts,
        wraps=wraps,
        longest_gaps=_longest(gaps),
    )


def _longest(gaps: list[list[int]]) -> list[list[int]]:
    return sorted(gaps, key=lambda gap: (gap[0] - gap[1], gap))[:LONGEST]


def joined(a: Device, b: Device) -> Device:
    """One stretch, and the one that follows it at the same listener."""
    across = _step(a, b.first)
    return b._replace(
        received=a.received + b.received,
        heartbeats=a.heartbeats + b.heartbeats,
        first=a.first,
        missing_at_least=across.missing_at_least + b.missing_at_least,
        gaps=across.gaps + b.gaps,
        restarts_at_least=across.restarts_at_least + b.restarts_at_least,
        wraps=across.wraps + b.wraps,
        longest_gaps=_longest([*across.longest_gaps, *b.longest_gaps]),
    )


class Stretches:
    """What one segment has of each device."""

    def __init__(self, listener: str) -> None:
        self.listener = listener
        self.devices: dict[int, Device] = {}
        self.left_out = 0  # messages of devices beyond `FOLLOWED`

    def add(self, device: npt.NDArray[Any], number: U64, beat: npt.NDArray[np.bool_]) -> None:
        """Messages in the order of arrival; none of device 0."""
        if (device != device[0]).any():
            order = np.argsort(device, kind="stable")
            device, number, beat = device[order], number[order], beat[order]
        edges = np.flatnonzero(np.concatenate(([True], device[1:] != device[:-1], [True])))
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            which = int(device[low])
            before = self.devices.get(which)
            if before is None and len(self.devices) >= FOLLOWED:
                self.left_out += high - low
                continue
            mine = self._stretch(which, number[low:high], int(beat[low:high].sum()))
            self.devices[which] = mine if before is None else joined(before, mine)

    def _stretch(self, which: int, number: U64, beats: int) -> Device:
        before, after = number[:-1], number[1:]
        back = after <= before
        first = np.where(back, np.uint64(1), before + np.uint64(1))  # what wraps here is replaced
        holes = np.flatnonzero(after > first)
        ended = back & (before >= np.uint64(WRAPS)) & (after < np.uint64(WRAPS))
        # Python's integers: whoever makes numbers up may make the sum large.
        gaps = np.stack((first[holes], after[holes] - np.uint64(1)), axis=1).tolist()
        return Device(
            self.listener,
            which,
            len(number),
            beats,
            int(number[0]),
            int(number[-1]),
            sum(last - first + 1 for first, last in gaps),
            len(gaps),
            int(back.sum() - ended.sum()),
            int(ended.sum()),
            _longest(gaps),
        )
