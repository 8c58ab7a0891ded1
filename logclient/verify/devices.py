"""Gaps in the numbers of messages that Logjam devices published: the messages missing from a capture.

A device numbers all that it publishes from 1, over all app-envs (``logclient.logjam.subscriber``). Messages
before the first one that arrived are not missing. A number not above the previous one means a restart, or a
wrap at `WRAPS`; then all messages below it are missing. Device 0 has no numbers.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logclient.evidence.arrays import U64, starts_of

WRAPS = 1 << 53
MAX_DEVICES = 4096  # devices that are followed at a listener; a bound, because peers choose the numbers
LONGEST = 5


class Device(NamedTuple):
    """The account of one device at a listener, from the first to the last message there."""

    listener: str
    device: int
    received: int  # messages, including heartbeats
    heartbeats: int
    first: int  # number of the first message
    last: int
    missing_at_least: int  # messages
    gaps: int  # that were observed
    restarts_at_least: int
    wraps: int
    longest_gaps: list[list[int]]  # [first, last] of the longest, longest first


def _longest(gaps: list[list[int]]) -> list[list[int]]:
    return sorted(gaps, key=lambda gap: (gap[0] - gap[1], gap))[:LONGEST]


def joined(a: Device, b: Device) -> Device:
    """Join two consecutive stretches of a device at the same listener."""
    backward = b.first <= a.last
    ended = backward and a.last >= WRAPS and b.first < WRAPS
    first = 1 if backward else a.last + 1
    gaps = [[first, b.first - 1]] if b.first > first else []
    return b._replace(
        received=a.received + b.received,
        heartbeats=a.heartbeats + b.heartbeats,
        first=a.first,
        missing_at_least=a.missing_at_least + max(b.first - first, 0) + b.missing_at_least,
        gaps=a.gaps + len(gaps) + b.gaps,
        restarts_at_least=a.restarts_at_least + (backward and not ended) + b.restarts_at_least,
        wraps=a.wraps + ended + b.wraps,
        longest_gaps=_longest([*a.longest_gaps, *gaps, *b.longest_gaps]),
    )


class DeviceStretches:
    """The devices of one segment, with their accounts."""

    def __init__(self, listener: str) -> None:
        self.listener = listener
        self.devices: dict[int, Device] = {}  # by number
        self.left_out = 0  # messages of devices beyond `MAX_DEVICES`

    def add(self, device: npt.NDArray[Any], number: U64, heartbeat: npt.NDArray[np.bool_]) -> None:
        """Add messages in the order of arrival, none of device 0: their numbers, and which are heartbeats."""
        if (device != device[0]).any():
            order = np.argsort(device, kind="stable")
            device, number, heartbeat = device[order], number[order], heartbeat[order]
        for low, high in itertools.pairwise([*starts_of(device).tolist(), len(device)]):
            which = int(device[low])
            before = self.devices.get(which)
            if before is None and len(self.devices) >= MAX_DEVICES:
                self.left_out += high - low
                continue
            stretch = self._stretch(which, number[low:high], int(heartbeat[low:high].sum()))
            self.devices[which] = stretch if before is None else joined(before, stretch)

    def _stretch(self, which: int, number: U64, heartbeats: int) -> Device:
        before, after = number[:-1], number[1:]
        backward = after <= before
        # The sum can overflow only where it is not used.
        first = np.where(backward, np.uint64(1), before + np.uint64(1))
        holes = np.flatnonzero(after > first)
        ended = backward & (before >= np.uint64(WRAPS)) & (after < np.uint64(WRAPS))
        # Python integers: the sum of forged numbers may need more than 64 bits.
        gaps = np.stack((first[holes], after[holes] - np.uint64(1)), axis=1).tolist()
        missing = sum(last - first + 1 for first, last in gaps)
        ends = int(number[0]), int(number[-1])
        back = int(backward.sum() - ended.sum()), int(ended.sum())
        return Device(
            self.listener, which, len(number), heartbeats, *ends, missing, len(gaps), *back, _longest(gaps)
        )
