"""Events and outcomes in the files of a spool, for the recovery from a log, and for people.

docs/formats.md describes the files, which are never changed here.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from mmap import mmap
from typing import NamedTuple, TypeVar

from logclient._ext.constants import REASONS, STATUSES
from logclient._ext.hash import xxh64
from logclient._ext.spool import HEAD, SEGMENT
from logclient.files.ledger import LAST_SEQUENCE, Ranges

T = TypeVar("T", int, tuple[int, int, int])

Outcome = tuple[int, int, str, str]
"""First and last sequence, status, reason."""

CHUNK_HEAD = 64
LOG_HEAD = 120

_SLOT = 65536
_JOURNAL_AT = 1024
_SETTLED = 0x80  # a flag of an event's level: it has its outcome

_JOURNAL = struct.Struct("=QQQ")  # number of outcomes; whether some found no room; whether some are in memory
_OUTCOME = struct.Struct("=QQBB6x")
_CHUNK = struct.Struct("=8xI44xQ")  # bytes of its events; the first sequence it may have, 0: it is free
_EVENT = struct.Struct("=QqIBBH")
_BLOCK = struct.Struct("=QII")  # checksum, size, kind


class Journal(NamedTuple):
    """Outcomes that the owner had not written to its ledger."""

    outcomes: list[Outcome]
    complete: bool  # it has all of them
    unspooled: bool  # the owner had events in memory only


class Event(NamedTuple):
    """An event in a file."""

    seq: int
    created_us: int
    size: int  # of its body
    level: int
    kind: int
    begin: int  # where its head begins
    end: int  # where the next event begins

    @property
    def settled(self) -> bool:
        """Whether it has its outcome."""
        return self.level & _SETTLED != 0

    @property
    def body(self) -> int:
        """Where its body begins."""
        return self.begin + _EVENT.size


def read_events(data: bytes | mmap, at: int, end: int, last: int = 0) -> Iterator[Event]:
    """Yield the events that lie one behind the other, with sequences above `last`."""
    while end - at >= _EVENT.size:
        seq, created_us, size, level, kind, _ = _EVENT.unpack_from(data, at)
        behind = at + _EVENT.size + (size + 7) // 8 * 8
        if not last < seq <= LAST_SEQUENCE or behind > end or level & ~_SETTLED > 5:
            return  # the unused end of a chunk
        yield Event(seq, created_us, size, level, kind, at, behind)
        at, last = behind, seq


def _read_outcomes(data: bytes) -> list[Outcome]:
    """Return outcomes as the journal and the log have them, without those that make no sense."""
    whole = data[: len(data) // _OUTCOME.size * _OUTCOME.size]
    return [
        (first, last, STATUSES[status], REASONS[reason])
        for first, last, status, reason in _OUTCOME.iter_unpack(whole)
        if 0 < first <= last <= LAST_SEQUENCE and status < len(STATUSES) and reason < len(REASONS)
    ]


def read_journal(head: bytes) -> Journal:
    """Read the journal in the head of the first segment."""
    n, full, unspooled = _JOURNAL.unpack_from(head, _JOURNAL_AT)
    at = _JOURNAL_AT + _JOURNAL.size
    outcomes = _read_outcomes(head[at : at + min(n, 120) * _OUTCOME.size])
    return Journal(outcomes, not full and len(outcomes) == n, unspooled != 0)


def read_segment(data: bytes) -> tuple[list[Event], list[tuple[int, int | None]]]:
    """Read the events in all slots of a segment.

    Returns:
        The events. What makes no sense: (offset, capacity) of a chunk with an impossible capacity, and
        (offset, None) of what is behind the last event of a chunk.
    """
    found: list[Event] = []
    faults: list[tuple[int, int | None]] = []
    at = HEAD
    while at < SEGMENT:
        capacity, live = _CHUNK.unpack_from(data, at)
        size = capacity + CHUNK_HEAD if live else _SLOT
        if size % _SLOT or size > SEGMENT - at:
            faults.append((at, capacity))
            size = _SLOT
        elif live:
            begin, end = at + CHUNK_HEAD, at + size
            events = list(read_events(data, begin, end, live - 1))
            behind = events[-1].end if events else begin
            if end - behind >= 8 and any(data[behind : behind + 8]):
                faults.append((behind, None))
            found += events
        at += size
    return found, faults


class LogEvents:
    """Iterates over the events of a log's file, up to the first block that is not whole.

    What was synced lies before that block. A log may have millions of events: none is kept.
    """

    def __init__(self, data: bytes | mmap, salt: int) -> None:
        self._data, self._salt = data, salt
        self.outcomes: list[Outcome] = []
        """The outcomes that were passed."""
        self.at = min(LOG_HEAD, len(data))
        """Where the first block begins that is not whole, or was not reached; the size of the file: none."""

    def __iter__(self) -> Iterator[Event]:
        data = self._data
        while len(data) - self.at >= _BLOCK.size:
            total, size, kind = _BLOCK.unpack_from(data, self.at)
            begin = self.at + _BLOCK.size
            end = begin + size
            if end > len(data) or size % 8 or xxh64(data[self.at + 8 : end], self._salt) != total:
                break
            if kind == 1:
                yield from read_events(data, begin, end)
            elif kind == 2:
                self.outcomes += _read_outcomes(data[begin:end])
            self.at = end


def waiting(found: Iterable[T], settled: Ranges, sequence: Callable[[T], int]) -> list[T]:
    """Return, sorted, the items of events that have no outcome, one for each event.

    Args:
        found: items that sort by the sequences of their events.
        settled: sequences that have their outcome, merged.
        sequence: returns that of an item.
    """
    left = []
    ranges = iter(settled)
    last = first_settled = last_settled = 0
    for item in sorted(found):
        seq = sequence(item)
        while last_settled < seq:
            first_settled, last_settled = next(ranges, (sys.maxsize, sys.maxsize))
        if last != seq < first_settled:
            last = seq
            left.append(item)
    return left
