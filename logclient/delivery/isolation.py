"""Which event can the server not take? A poison is found by sending less and less.

A server that cannot take an event ends the connection, often after it delivered the neighbours, and
says nothing. Sent again as it was, the window would be delivered again and again for ever::

    CALM ──two breaks in a row at the same event──> NARROW ──one event left──> ALONE
      ^                                               │                          │
      ├────────── all of the suspected are past ──────┘                          │ three breaks
      │                                                                          v
      │      ALONE again <── the server does not take another one either ──── ASIDE
      │      (then with one more aside: poisons come in rows)                    │
      │                                                                          │ another one is taken
      │                                                                          v
      └────────────── acknowledged: it was the server <─── on that same connection: PROOF
      ^                                                                          │ the connection ends
      └────────────────────────── the poison fails ──────────────────────────────┘

Nothing is condemned on suspicion: the event must have ended three connections in a row with nothing
beside it (and each server must have had it), and a fourth that took another event just before. A
server, or a balancer in front of it, that drops everything is thus never taken for a poison: nothing
fails without an acknowledgement on the same connection. The order is kept, but for one case: if an
outage ends just while events are aside, the one other event is ahead of them.

Data only: no clock, no socket. The engine asks after every break, and after every acknowledgement.
"""

from __future__ import annotations

STEP = 8
"""Each break divides what may be on the wire by this: a window of 2048 is one event after four."""

BREAKS = 2
"""Breaks in a row at the same event before anything is suspected: servers do restart."""

ALONE = 3
"""Breaks in a row with one event alone on the wire before another one is tried without it."""

NOTHING, ASIDE, POISON = range(3)
"""What a break means: nothing special; hold some back and try the same server at once with another event;
the first one is a poison."""


class Isolation:
    """The search of one engine, which tries so many servers in turn.

    ``limit`` is how many events may be on the wire, 0 for any number; ``aside`` how many are held back.
    """

    def __init__(self, servers: int) -> None:
        self.limit = 0
        self.aside = 0
        self._servers = servers
        self._first = 0  # suspected: from here
        self._last = 0  # to here
        self._breaks = 0  # in a row at _first
        self._alone = 0  # of these, with nothing beside it
        self._spread = 1  # to be held back the next time
        self._proof = 0  # the sequence that comes next on a connection that took another one

    def broke(self, first: int, last: int, events: int, others: int) -> int:
        """The server ended a connection that had `events` events from `first` to `last` on the wire.

        Args:
            others: how many more wait to be sent.

        Returns:
            NOTHING, ASIDE or POISON.
        """
        if self.aside:
            self.no_proof()
            return NOTHING
        proof, self._proof = self._proof, 0
        if proof == first and events == 1:
            self._past(first)
            self._spread = max(1, self._spread - 1)  # those behind it have failed as proof already
            return POISON
        if first != self._first:
            narrowing = self.limit > 0 and first <= self._last
            self._first = first
            self._breaks = BREAKS - 1 if narrowing else 0
            self._alone = 0
            self._last = last
            if not narrowing:
                self.limit = 0
        self._breaks += 1
        self._alone = self._alone + 1 if events == 1 else 0
        if self._breaks >= BREAKS:
            self.limit = max(1, events // STEP)
            self._last = last
        if self._alone >= max(ALONE, self._servers) and others:
            self.aside = min(self._spread, others)
            return ASIDE
        return NOTHING

    def moved(self, settled: int) -> None:
        """Something was acknowledged, all up to `settled` has its fate. What was aside is to go next."""
        if self.aside:
            self._proof, self.aside = self._first, 0
        else:
            self._proof, self._spread = 0, 1
        self._past(settled)

    def no_proof(self) -> None:
        """No other event was taken either: what was aside is as good as any, and goes first again."""
        self.aside = 0
        self._alone -= 1
        self._spread += 1

    def _past(self, seq: int) -> None:
        if self.limit and seq >= self._last:
            self.limit = 0
