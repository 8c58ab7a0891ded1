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

Events in quarantine are decided by a randomized experiment. Each *trial* is a fresh connection on which
one event is sent first and alone: one of the suspects, or a *control*, the next event of the queue. A
random draw with equal chances decides which. A suspect that is taken once is innocent and settled.

If the server did not look at events, a trial that is taken would be as likely the suspect's as the
control's. So let the evidence against a suspect double with each control that is taken, and become 0 when the
suspect itself is taken: for a blind server this is a martingale that begins at 1, whatever the pattern of its
breaks (every other connection, crash loops, caps on requests). By Ville's inequality it ever reaches 10⁹, and
condemns the suspect, with a probability of 10⁻⁹ at most, however long the trials go on. The random draw makes
this hold; a fixed order would not.

Between two trials the neighbours flow, for at least half of the time. Some of the queue is kept back as
controls for the next trials, so a suspect can be decided although little is sent. A suspect without a
decision after `TRIALS` trials or `PATIENCE` seconds is reported and from then on tried at a slow pace.

Events that overtake a suspect stay ahead of it: the ledger lists the suspect as `deferred`.

This is data only: no clock, no socket. ``delivery.trials`` asks before and after each connection and outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from logclient.delivery.backoff import Backoff

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

TRIALS = 400
"""Trials, its own and those of controls, before a suspect is reported as undecided."""

PATIENCE = 300.0
"""Seconds since its first trial before a suspect is reported as undecided."""

ACTIVE = 16
"""Suspects among which a trial is drawn, at most; later ones wait."""

RESERVE = 48
"""Events of the queue that are kept back as controls for each `ACTIVE` suspects, four times at most."""

SHARE = 1.5
"""Time that the neighbours flow, as a multiple of the time that the trials took."""

LONGEST = 10.0
"""Seconds that they flow between two trials, at most: an outage is not compensated."""

FLOW, PROBE, CONTROL, SUSPECT, LONE = range(5)
"""Uses of a connection: the queue; one event ahead of withheld ones; a trial with a control; a trial with a
suspect; a suspect when nothing else waits, which is no trial."""

NOTHING, WITHHOLD, TRIAL = range(3)
"""Meanings of a break: none; withhold some events and try the same server at once with another one; the end
of a trial, to be followed by the next one soon."""


class Suspect:
    """An event in quarantine, and its evidence. Once it is undecided, `pace` waits between its trials."""

    def __init__(self, seq: int, now: float, pace: Backoff) -> None:
        self.seq = seq
        self.since = 0.0  # when its trials began
        self.trials = 0  # of its own
        self.controls = 0  # trials of a control that could have been its own
        self.control_breaks = 0  # of these: broken
        self.slow = False  # tried at the slow pace
        self.kept = False  # condemned, and not to be failed; or its ends are no evidence
        self.due = now  # its next trial
        self.pace = pace


class Findings(NamedTuple):
    """Conclusions from an outcome."""

    quarantined: bool = False
    """Whether the withheld events go into quarantine."""
    condemned: tuple[int, ...] = ()
    """Sequences on which the server ends the connection, while it takes others."""


class Isolation:
    """The search of one engine.

    Args:
        servers: number of endpoints that are tried in turn.
        random: in [0, 1).
        config: its back-offs pace the trials: that of connections while other events wait and while none do,
            that of credentials for a suspect that could not be decided. ``poison=keep``: a condemned event
            stays in quarantine.
    """

    def __init__(self, servers: int, random: Callable[[], float], config: Config) -> None:
        self.withheld = 0
        """Events that are held back while another one is tried."""
        self.kind = FLOW
        self.suspects: dict[int, Suspect] = {}
        self._servers = servers
        self._random = random
        self._pace = min(config.backoff_min, config.backoff_max)
        self._slow = config.auth_backoff_min, config.auth_backoff_max
        self.keep = config.poison == "keep"
        self._narrow = 0  # events on the wire, 0: any number
        self._first = 0  # suspected: from here
        self._last = 0  # to here
        self._breaks = 0  # in a row at _first
        self._alone = 0  # of these, with nothing else in flight
        self._spread = 1  # to be withheld the next time
        self._candidates: list[Suspect] = []  # of the trial on this connection
        self._drawn: Suspect | None = None
        self._flow_until = 0.0
        self._stopped = 0.0  # since when the neighbours wait for a trial; 0: they flow
        self._lone = Backoff(config.backoff_min, config.backoff_max, random)
        self._lone_due = 0.0

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
        active = sum(not s.slow for s in self.suspects.values())
        return RESERVE * min(4, -(-active // ACTIVE))

    def due(self, now: float, others: int) -> bool:
        """Return whether this connection should be left for a trial; `others` events wait."""
        if self.kind != FLOW or not self.suspects:
            return False
        return now >= (self._flow_until if others else self._lone_due) and bool(self._pick(now))

    def next_trial(self, others: int) -> float | None:
        """Return the monotonic second at which `due` may be true; None: not before something changes."""
        if not self.suspects:
            return None
        return max(
            self._flow_until if others else self._lone_due,
            min(s.due if s.slow else 0.0 for s in self.suspects.values()),
        )

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
        self._candidates = []
        self._drawn = None
        if self.withheld:
            self.kind = PROBE
        elif not trials or not self.due(now, others):
            return 0
        elif not others:
            # Nothing to compare with: it can only be found innocent.
            self.kind = LONE
            self._drawn = min(self._pick(now), key=lambda s: (s.due, s.seq))
            self._drawn.due = now
            self._drawn.since = 0.0  # no trial is possible: this time does not count
        else:
            self._candidates = self._pick(now)
            for suspect in self._candidates:
                suspect.since = suspect.since or now
            index = int(self._random() * (len(self._candidates) + 1))
            self.kind = SUSPECT if index < len(self._candidates) else CONTROL
            self._drawn = self._candidates[index] if self.kind == SUSPECT else None
        return self._drawn.seq if self._drawn is not None else 0

    def _pick(self, now: float) -> list[Suspect]:
        active = [s for s in self.suspects.values() if not s.slow][:ACTIVE]
        return active + [s for s in self.suspects.values() if s.slow and s.due <= now][: ACTIVE - len(active)]

    def quarantine(self, seqs: list[int], now: float) -> None:
        """Take events into quarantine."""
        for seq in seqs:
            self.suspects[seq] = Suspect(seq, now, Backoff(*self._slow, self._random, 0.5))

    def forget(self, left: list[int]) -> None:
        """Drop all suspects but these: the others were settled in other ways."""
        if len(left) < len(self.suspects):
            keep = set(left)
            self.suspects = {seq: s for seq, s in self.suspects.items() if seq in keep}

    def undecided(self, now: float) -> list[Suspect]:
        """Return the suspects that are to be reported as undecided; each once."""
        found = []
        for suspect in self.suspects.values():
            if suspect.slow or not suspect.since:
                continue
            if suspect.trials + suspect.controls >= TRIALS or now - suspect.since >= PATIENCE:
                self._slow_down(suspect, now)
                found.append(suspect)
        return found

    def _slow_down(self, suspect: Suspect, now: float) -> None:
        suspect.slow = True
        suspect.due = now + suspect.pace.delay()

    # -- observations ----------------------------------------------------------------------------

    def settled(self, now: float, reached: int) -> Findings:
        """Note that an event was settled; all up to `reached` are, or are in quarantine."""
        kind, self.kind = self.kind, FLOW
        self._spread = 1
        if kind == PROBE:
            self.withheld = 0
        elif kind in (SUSPECT, LONE):
            assert self._drawn is not None
            self.suspects.pop(self._drawn.seq, None)
            self._lone.reset()
        elif kind == CONTROL:
            for suspect in self._candidates:
                suspect.controls += 1
        if self._stopped:
            rest = self._pace * self._random()
            self._flow_until = now + max(min(SHARE * (now - self._stopped), LONGEST), rest)
            self._stopped = 0.0
        if self._narrow and reached >= self._last:
            self._narrow = 0
        condemned = tuple(
            s.seq for s in self.suspects.values() if s.controls - s.control_breaks >= CERTAIN and not s.kept
        )
        for seq in condemned:
            if self.keep:
                self.suspects[seq].kept = True
                self._slow_down(self.suspects[seq], now)
            else:
                del self.suspects[seq]
        return Findings(kind == PROBE, condemned)

    def broke(self, first: int, last: int, events: int, others: int, now: float, moving: bool = False) -> int:
        """Note that the server ended a connection with these events on the wire, while `others` wait.

        `moving`: it had not got them yet. That is no evidence: an event that is too long under way for this
        server is set aside for the others, and never condemned.

        Returns:
            NOTHING, WITHHOLD or TRIAL.
        """
        kind, self.kind = self.kind, FLOW
        if self.suspects and kind != LONE:
            self._stopped = self._stopped or now
        if kind in (SUSPECT, LONE):
            if events:
                suspect = self._drawn
                assert suspect is not None
                if moving:
                    suspect.kept = suspect.slow = True
                if suspect.slow:
                    suspect.due = now + suspect.pace.delay()
                if kind == LONE:
                    self._lone_due = now + self._lone.delay()
                else:
                    suspect.trials += 1
            return TRIAL
        if kind == CONTROL and events and not moving:
            for suspect in self._candidates:
                suspect.controls += 1
                suspect.control_breaks += 1
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
        if self.kind == LONE:
            self._lone_due = now + self._lone.delay()
        self.kind = FLOW
        if self.withheld:
            self.no_proof()

    def no_proof(self) -> None:
        """Release the withheld events: no other event was taken either."""
        self.kind = FLOW
        self.withheld = 0
        self._alone -= 1
        self._spread += max(1, self._spread // 2)
