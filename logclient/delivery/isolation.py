"""Find the events that a server cannot take, and condemn none by chance.

A server that cannot take an event ends the connection without a reason, often after it has delivered the
neighbours. Sent again unchanged, the window would be delivered again and again. But servers and balancers
also end connections for other reasons. So there are two hypotheses for each suspect: *this event ends
connections*, or *connections end anyway*::

    CALM ──two breaks in a row at the same event──> NARROW ──one event left──> ALONE
      ^                                               │                          │
      ├────────── all suspected events are past ──────┘                          │ three breaks
      │                                                                          v
      │      ALONE again <─── the server takes no other event either ─────── PROBE another event
      │      (then with one more withheld: poisons come in rows)                 │
      │                                                                          │ the other one is taken
      └──────────── the neighbours go on <── withheld events: QUARANTINE <───────┘

Events in quarantine are decided by a randomized experiment, one after the other. Each *trial* is a fresh
connection on which one event is sent first and alone: the suspect, or a *control*, the next event of the
queue. A random draw with equal chances decides which. A suspect that is taken once is innocent and settled.

If the server did not look at events, a trial that is taken would be as likely the suspect's as the
control's. So let the evidence against a suspect double with each control that is taken, and become 0 when the
suspect itself is taken: for a blind server this is a martingale that begins at 1, whatever the pattern of its
breaks (every other connection, crash loops, caps on requests). By Ville's inequality it ever reaches 10⁹, and
condemns the suspect, with a probability of 10⁻⁹ at most, however long the trials go on. The random draw makes
this hold; a fixed order would not.

Between two trials the neighbours flow, for at least half of the time. Some of the queue is kept back as
controls for the next trials, so a suspect can be decided although little is sent. While nothing else waits
there is no control: then the suspects are sent in turn, and can only be found innocent.

Events that overtake a suspect stay ahead of it: the ledger lists the suspect as `deferred`.

This is data only: no clock, no socket. ``delivery.trials`` asks before and after each connection and outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from logclient.delivery.backoff import Backoff
from logclient.delivery.contract import FOREVER

if TYPE_CHECKING:
    from logclient.config.common import Config

STEP = 8
"""Each break divides the limit of events on the wire by this: a window of 2048 is one event after four."""

BREAKS = 2
"""Breaks in a row at the same event before anything is suspected: servers do restart."""

ALONE = 3
"""Breaks in a row with one event alone on the wire before another event is tried without it."""

CERTAIN = 30
"""Controls that are taken, and the suspect never: evidence of 2³⁰, more than 10⁹, condemns it."""

RESERVE = 48
"""Events of the queue that are kept back as controls for each suspect: more than `CERTAIN`, because some of
them become suspects, or are taken before a trial."""

MOST = 10 * RESERVE
"""Events that are kept back for all suspects, at most."""

SHARE = 1.5
"""Time that the neighbours flow, as a multiple of the time that the trials took."""

LONGEST = 10.0
"""Seconds that they flow between two trials, at most: an outage is not compensated."""

FLOW, PROBE, CONTROL, SUSPECT = range(4)
"""Uses of a connection: the queue; one event ahead of withheld ones; a trial with a control; a trial with a
suspect."""

NOTHING, WITHHOLD, TRIAL = range(3)
"""Meanings of a break: none; withhold some events and try the same server at once with another one; the end
of a trial, to be followed by the next one soon."""


class Suspect:
    """An event in quarantine, and its evidence."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.evidence = 0  # controls that were taken in its place
        self.exempt = False  # never condemned: it is too long under way for the server
        self.due = 0.0  # its next trial


class Isolation:
    """The search of one engine.

    The configured back-off of connections paces the trials, and that of credentials those of an event that is
    too long under way.
    """

    def __init__(self, servers: int, random: Callable[[], float], config: Config) -> None:
        self.withheld = 0
        """Events that are held back while another one is tried."""
        self.kind = FLOW
        self.suspects: dict[int, Suspect] = {}
        self._servers = servers
        self._random = random
        self._pace = min(config.backoff_min, config.backoff_max)
        self._narrow = 0  # events on the wire, 0: any number
        self._first = 0  # suspected: from here
        self._last = 0  # to here
        self._breaks = 0  # in a row at _first
        self._alone = 0  # of these, with nothing else in flight
        self._spread = 1  # to be withheld the next time
        self._tried = Suspect(0)  # on this connection, or a control in its place
        self._flow_until = 0.0
        self._stopped = 0.0  # since when the neighbours wait for a trial; 0: they flow
        self._idle = Backoff(config.backoff_min, config.backoff_max, random)
        self._idle_until = 0.0  # no trial before that while nothing else waits
        self._slow = Backoff(config.auth_backoff_min, config.auth_backoff_max, random, 0.5)

    # -- questions ---------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Events that may be on the wire; 0: any number."""
        return self._narrow if self.kind == FLOW else 1

    @property
    def trying(self) -> bool:
        """Whether the first outcome on this connection is awaited before anything else is sent."""
        return self.kind != FLOW

    def reserve(self) -> int:
        """Return how many events of the queue to keep back as controls."""
        return min(MOST, sum(RESERVE - s.evidence for s in self.suspects.values() if not s.exempt))

    def next_trial(self, others: int) -> float:
        """Return the monotonic second of the next trial, while `others` wait; FOREVER: something must change.

        From then on, this connection should be left for it.
        """
        if self.kind != FLOW or not self.suspects:
            return FOREVER
        return max(self._flow_until if others else self._idle_until, self._next().due)

    def leave(self, now: float, others: int) -> None:
        """Note that the connection is left for a trial; `others` events wait for that."""
        if others:
            self._stopped = self._stopped or now

    def connected(self, now: float, others: int, trials: bool = True) -> int:
        """Decide the purpose of a fresh connection, while `others` wait; `trials`: there is time for one.

        Returns:
            The sequence of the suspect to send alone, or 0.
        """
        self.kind = FLOW
        if self.withheld:
            self.kind = PROBE
        elif trials and now >= self.next_trial(others):
            suspect = self._tried = self._next()
            self.kind = CONTROL if others and self._random() >= 0.5 else SUSPECT
            if not others:
                suspect.due = now  # the other suspects have their turn before it has the next one
            if self.kind == SUSPECT:
                return suspect.seq
        return 0

    def _next(self) -> Suspect:
        return min(self.suspects.values(), key=lambda suspect: suspect.due)

    def quarantine(self, seqs: list[int]) -> None:
        """Take the withheld events into quarantine: another one was taken."""
        self.withheld = 0
        for seq in seqs:
            self.suspects[seq] = Suspect(seq)

    def forget(self, left: list[int]) -> None:
        """Drop all suspects but these: the others were settled in other ways."""
        if len(left) < len(self.suspects):
            keep = set(left)
            self.suspects = {seq: s for seq, s in self.suspects.items() if seq in keep}

    # -- observations ----------------------------------------------------------------------------

    def settled(self, now: float, reached: int) -> int:
        """Note that an event was settled; all up to `reached` are, or are in quarantine.

        Returns:
            The sequence of an event that is condemned: the server ends the connection on it, while it takes
            others. 0: of none.
        """
        kind, self.kind = self.kind, FLOW
        self._spread = 1
        if self._stopped:
            rest = self._pace * self._random()
            self._flow_until = now + max(min(SHARE * (now - self._stopped), LONGEST), rest)
            self._stopped = 0.0
        if self._narrow and reached >= self._last:
            self._narrow = 0
        suspect = self._tried
        if kind == CONTROL:
            suspect.evidence += 1
        condemned = suspect.evidence >= CERTAIN and not suspect.exempt and suspect.seq in self.suspects
        if kind == SUSPECT or condemned:
            self._idle.reset()
            self._slow.reset()
            self.suspects.pop(suspect.seq, None)
        return suspect.seq if condemned else 0

    def broke(self, first: int, last: int, events: int, others: int, now: float, moving: bool = False) -> int:
        """Note that the server ended a connection with these events on the wire, while `others` wait.

        `moving`: it had not got them yet. That is no evidence: an event that is too long under way for this
        server is set aside for the others, and never condemned.

        Returns:
            NOTHING, WITHHOLD or TRIAL.
        """
        kind = self.kind
        if self.suspects and (others or kind != SUSPECT):
            self._stopped = self._stopped or now
        if kind == SUSPECT:
            if events and moving:
                self._tried.exempt = True
            self.ended(now)
            return TRIAL
        self.kind = FLOW
        if self.withheld:
            self.no_proof()
            return NOTHING
        if not events:
            return NOTHING
        if first != self._first:
            narrowing = self._narrow > 0 and first <= self._last
            self._first = first
            self._breaks = BREAKS - 1 if narrowing else 0
            self._alone = 0
            self._last = last
            if not narrowing:
                self._narrow = 0
        self._breaks += 1
        self._alone = self._alone + 1 if events == 1 else 0
        if self._breaks >= BREAKS:
            self._narrow = max(1, events // STEP)
            self._last = last
        # A server that is too impatient for an event alone is that again.
        if self._alone >= max(1 if moving else ALONE, self._servers) and others:
            self.withheld = min(self._spread, others)
            return WITHHOLD
        return NOTHING

    def ended(self, now: float) -> None:
        """Note an end that has nothing to do with events: by a deadline, or by us."""
        if self.kind == SUSPECT:
            self._idle_until = now + self._idle.delay()
            if self._tried.exempt:
                self._tried.due = now + self._slow.delay()
        self.kind = FLOW
        if self.withheld:
            self.no_proof()

    def no_proof(self) -> None:
        """Release the withheld events: no other event was taken either."""
        self.kind = FLOW
        self.withheld = 0
        self._alone -= 1
        self._spread += max(1, self._spread // 2)
