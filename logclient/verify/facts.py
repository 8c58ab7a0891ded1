"""The report of a task about a segment or a share of records, in addition to its events."""

from __future__ import annotations

from typing import Any

import numpy as np

from logclient.evidence import decode
from logclient.evidence.arrays import I64
from logclient.evidence.selection import Selection
from logclient.verify.plan import Plan

YEAR_2255 = 1 << 53  # microseconds; a later time of arrival, or one before 1970, is taken as unknown


class Facts:
    """The report of a task about a segment or a share of records, in addition to the events."""

    def __init__(self, plan: Plan, **where: int) -> None:
        self.most = plan.examples
        self.selection = Selection.load(plan.selection)
        self.where = where
        self.fields: dict[str, Any] = {
            "acks": 0,
            "events": 0,
            "outside": 0,
            "quiet": {},
            "undecodable": {},
            "undecoded": [],
            "first_us": 0,
            "last_us": 0,
            "timeless": 0,
            "devices": [],
            "devices_left_out": 0,
        }

    def count(self, name: str, at: I64, received: I64, events: decode.Events) -> None:
        """Count some units and their events."""
        fields = self.fields
        bad = events.status >= decode.NOT_JSON
        fields["events"] += int((events.status <= decode.NOT_JSON).sum())
        if self.selection.timed:
            out = (self.selection.place(received) != 0) & (received >= 0) & (received < YEAR_2255)
            fields["outside"] += int((out[events.unit] & (events.status <= decode.NOT_JSON)).sum())
        timed = received[(received >= 0) & (received < YEAR_2255)]
        fields["timeless"] += len(received) - len(timed)
        if len(timed):
            first, last = int(timed.min()), int(timed.max())
            fields["first_us"] = min(fields["first_us"] or first, first)
            fields["last_us"] = max(fields["last_us"], last)
        if not bad.any():
            return
        for code, word in enumerate(events.names):
            if word in decode.QUIET:
                matching = events.status == code
                if n := int(matching.sum()):
                    fields["quiet"][word] = fields["quiet"].get(word, 0) + n
                    bad &= ~matching
        for row in np.flatnonzero(bad):
            word = events.names[events.status[row]]
            self.undecodable(word, name, int(at[events.unit[row]]), int(events.offset[row]))

    def undecodable(self, word: str, name: str, at: int, offset: int) -> None:
        """Count data that could not be decoded."""
        fields = self.fields
        fields["undecodable"][word] = fields["undecodable"].get(word, 0) + 1
        if len(fields["undecoded"]) < self.most:
            fields["undecoded"].append(
                {"segment": name, "unit_at": at, "reason": word, "offset": offset, **self.where}
            )
