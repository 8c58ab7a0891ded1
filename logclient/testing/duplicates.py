"""The ids of captured events, and the count of those that were captured more than once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from logclient._ext.decoder import Events

_PAGE_BITS = 10  # 1,024 sequences in a page
_PAGE = 1 << _PAGE_BITS


class DuplicateCounter:
    """A counter of ids that are seen more than once.

    It keeps two bits for each sequence, in pages: tens of millions of our dense ids fit in a few megabytes.
    """

    def __init__(self) -> None:
        self.duplicates = 0  # ids
        self.copies = 0  # beyond the first of each
        self._once: dict[int, int] = {}  # page -> a bit for each sequence that was seen
        self._twice: dict[int, int] = {}

    def add(self, decoded: Events) -> None:
        """Add the ids of decoded events; sequence 0 means that an event has no id."""
        high, low, sequences = (
            column.tolist() for column in (decoded.prefix_high, decoded.prefix_low, decoded.sequence)
        )
        if not sequences:
            return
        first, n = sequences[0], len(sequences)
        # A unit usually holds consecutive ids of one producer, which need no loop over events.
        if (
            first
            and sequences == list(range(first, first + n))
            and high.count(high[0]) == n == low.count(low[0])
        ):
            self._add_run(_prefix(high[0], low[0]) | first, n)
        else:
            for one, two, sequence in zip(high, low, sequences, strict=True):
                if sequence:
                    self._add_run(_prefix(one, two) | sequence, 1)

    def _add_run(self, first: int, count: int) -> None:
        """Add `count` consecutive ids, from the 128-bit number `first` on."""
        while count > 0:
            page, start = first >> _PAGE_BITS, first & (_PAGE - 1)
            n = min(count, _PAGE - start)
            bits = (1 << n) - 1 << start
            once = self._once.get(page, 0)
            again = once & bits
            self._once[page] = once | bits
            if again:
                twice = self._twice.get(page, 0)
                self.copies += again.bit_count()
                self.duplicates += (again & ~twice).bit_count()
                self._twice[page] = twice | again
            first += n
            count -= n


def _prefix(high: int, low: int) -> int:
    """Return the producer's 80 bits at their place in an id."""
    return (high << 16 | low) << 48


def decode_units(decoder: Any, units: Sequence[bytes]) -> Events:
    offsets = array("q", [0, *accumulate(map(len, units))])
    found: Events = decoder.decode(b"".join(units), offsets[:-1], array("q", map(len, units)))
    return found


def event_ids(decoded: Events) -> list[str]:
    """Return the id of each row; "" where it has none of our form."""
    columns = (decoded.prefix_high.tolist(), decoded.prefix_low.tolist(), decoded.sequence.tolist())
    return [
        f"{high:016x}{low:04x}{sequence:012x}" if sequence else ""
        for high, low, sequence in zip(*columns, strict=True)
    ]
