"""What a task found in a segment, or in its share of some records, in addition to the events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from logclient.evidence import decode
from logclient.evidence.arrays import I64
from logclient.evidence.libraries import np
from logclient.evidence.segments import YEAR_2255
from logclient.evidence.selection import EVERYTHING, Selection


@dataclass
class SegmentReport:
    """A report of a segment, which goes to the driver as JSON. A share of records is like a whole segment."""

    listener: str
    name: str
    index: int | str  # of the listener
    number: int = 1
    size: int = 0  # bytes
    protocol: str = ""
    header: bool = True  # it has a header that can be read
    run: str | None = None  # None: not known
    host: str = ""
    url: str = ""
    source: str = ""
    units: int = 0
    acks: int = 0
    first_arrival: int = 1
    next_arrival: int = 1
    skipped: bool = False  # not read, because it is of another time
    first_us: int = 0  # received, microseconds since 1970; 0: not known
    last_us: int = 0
    end_us: int = 0  # when the last unit in the file was received; 0: not known
    timeless: int = 0  # units
    closed: str = "closed"  # the reason in the end record
    events: int = 0
    known: int = 0  # events of producers that have a ledger
    outside: int = 0  # events received outside the selected time
    matched: bool = False  # a body has the hash of an event that is left out
    quiet: dict[str, int] = field(default_factory=dict)
    undecodable: dict[str, int] = field(default_factory=dict)
    undecoded: list[dict[str, Any]] = field(default_factory=list)
    problems: list[list[Any]] = field(default_factory=list)  # files.capture.Problem
    counts: dict[str, int] = field(default_factory=dict)  # of problems, by kind
    numbers: list[int] = field(default_factory=list)  # the first and the last of the records

    def count(
        self, at: I64, received: I64, events: decode.Events, selection: Selection, most: int, **where: int
    ) -> None:
        """Count some units, their places in the segment and times, and their events."""
        bad = events.status >= decode.NOT_JSON
        self.events += int((events.status <= decode.NOT_JSON).sum())
        known = (received >= 0) & (received < YEAR_2255)
        if selection != EVERYTHING:
            out = (selection.place(received) != 0) & known
            self.outside += int((out[events.unit] & (events.status <= decode.NOT_JSON)).sum())
        timed = received[known]
        self.timeless += len(received) - len(timed)
        if len(timed):
            first, last = int(timed.min()), int(timed.max())
            self.first_us = min(self.first_us or first, first)
            self.last_us = max(self.last_us, last)
        if not bad.any():
            return
        for code, word in enumerate(events.names):
            if word in decode.QUIET:
                matching = events.status == code
                if n := int(matching.sum()):
                    self.quiet[word] = self.quiet.get(word, 0) + n
                    bad &= ~matching
        for row in np.flatnonzero(bad):
            word = events.names[events.status[row]]
            self.add_undecodable(word, int(at[events.unit[row]]), int(events.offset[row]), most, **where)

    def add_undecodable(self, word: str, at: int, offset: int, most: int, **where: int) -> None:
        """Count data that could not be decoded, and describe the first `most`."""
        self.undecodable[word] = self.undecodable.get(word, 0) + 1
        if len(self.undecoded) < most:
            self.undecoded.append(
                {"segment": self.name, "unit_at": at, "reason": word, "offset": offset, **where}
            )
