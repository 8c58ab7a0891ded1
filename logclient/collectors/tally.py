"""Which ids were captured more than once."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Tally"]


class _Column(Protocol):
    def tolist(self) -> list[int]: ...


class Decoded(Protocol):
    """Columns of a decoder, a row an event."""

    @property
    def prefix_high(self) -> _Column: ...
    @property
    def prefix_low(self) -> _Column: ...
    @property
    def sequence(self) -> _Column: ...


class Tally:
    """Ids seen more than once: a byte a sequence, in pages, for tens of millions of events."""

    def __init__(self) -> None:
        self.duplicates = 0  # ids
        self.copies = 0  # beyond the first of each
        self._pages: dict[tuple[int, int, int], bytearray] = {}

    def add(self, decoded: Decoded) -> None:
        high, low, sequences = (
            column.tolist() for column in (decoded.prefix_high, decoded.prefix_low, decoded.sequence)
        )
        if not sequences:
            return
        first, n = sequences[0], len(sequences)
        # What a writer sends is a run of one producer nearly always: compared without a loop.
        if (
            first
            and sequences == list(range(first, first + n))
            and high.count(high[0]) == n == low.count(low[0])
        ):
            self._run(high[0], low[0], first, first + n)
        else:
            for one, two, sequence in zip(high, low, sequences, strict=True):
                if sequence:  # 0: carries none
                    self._run(one, two, sequence, sequence + 1)

    def _run(self, high: int, low: int, first: int, end: int) -> None:
        while first < end:
            page = self._pages.setdefault((high, low, first >> 12), bytearray(4096))
            start = first & 4095
            stop = min(4096, start + end - first)
            seen = page[start:stop]
            fresh = seen.count(0)
            if fresh == len(seen):
                page[start:stop] = b"\1" * fresh
            else:
                self.copies += len(seen) - fresh
                self.duplicates += seen.count(1)
                page[start:stop] = bytes(min(2, times + 1) for times in seen)
            first += stop - start
