"""Logux: finds the action for which a server undid others.

When one action fails, the server undoes everything that it has queued behind it, with the reason ``error``.
The first action of such a run is the suspect. The others are added again at once, under new ids. When all of
them have an outcome, the suspect is added again, alone: if it is undone once more, it is
failed(error). Meanwhile nothing new is sent. If nothing at all is processed between two runs, fewer actions
are sent at a time, down to one, and more again once some are processed.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from logclient._ext.logux import ActionTracker

__all__ = ["AGAIN", "MAX_SEQUENCE", "NARROW", "Suspect", "UndoneRuns"]

MAX_SEQUENCE = (1 << 64) - 1
"""The highest sequence of an event."""

NARROW = 8
"""The divisor of the limit of actions in flight when nothing was processed between two runs."""

AGAIN = "again"
"""Not a reason: the action is sent again."""

_REASONS = {"denied": "denied", "unknownType": "unknown_type"}


class Suspect(NamedTuple):
    """An action for which others may have been undone."""

    seq: int
    text: bytes
    time: int
    subprotocol: int


class UndoneRuns:
    """See the module.

    Args:
        tracker: the actions in flight.
        max_actions: actions in flight at most.
    """

    def __init__(self, tracker: ActionTracker, max_actions: int) -> None:
        self._tracker = tracker
        self._max_actions = max_actions
        self.reset()

    def reset(self) -> None:
        """Forget everything: the connection is lost."""
        self._suspects: deque[Suspect] = deque()
        self._alone = 0  # the sequence of the suspect in flight
        self._offered = False  # there was room for the innocent since the last `encode`
        self._drained = False  # none of the innocent is left
        self._last_innocent = 0  # the last sequence that is sent before the suspects
        self._run_added = -1  # up to here, an action that is undone with the reason error is collateral
        self._run_processed = -1  # actions processed when the run began
        self._limit = 0  # of actions in flight; 0: none but `max_actions`
        self._limit_processed = 0

    @property
    def suspects(self) -> bool:
        """Whether suspects wait to be sent."""
        return bool(self._suspects)

    def room(self) -> int:
        """Return how many actions the next sync may have."""
        tracker = self._tracker
        if self._limit and tracker.processed - self._limit_processed >= self._limit:
            self._limit_processed = tracker.processed
            self._limit *= 2
            if self._limit >= self._max_actions:
                self._limit = 0
        return tracker.credit(self._limit or self._max_actions)

    def next_step(self, closing: bool) -> int | Suspect:
        """Decide about the next sync. While there are suspects: first the innocent, then each suspect alone.

        Args:
            closing: nothing but suspects is sent any more.

        Returns:
            The number of actions that the next sync may have, or a suspect to send alone.
        """
        tracker = self._tracker
        if not self._suspects and not self._alone:
            return 0 if closing else self.room()
        if self._suspects and not self._alone and not self._drained:
            room = self.room()
            if closing or (room and self._offered):
                self._drained = True  # there was room, and no innocent action came
            else:
                self._offered = room > 0
                return room
        if tracker.open:
            return 0
        self._alone = 0
        if not self._suspects:
            self._drained = False
            return 0 if closing else self.room()
        suspect = self._suspects.popleft()
        self._alone = suspect.seq
        return suspect

    def begin_encode(self) -> int:
        """Return the last sequence that may be encoded now."""
        self._offered = False
        return self._last_innocent if self._suspects else MAX_SEQUENCE

    def set_drained(self) -> None:
        """Note that the next event is beyond the limit of `begin_encode`: all innocent actions were sent."""
        self._drained = True

    def undone(self, suspect: Suspect, added: int, reason: Any) -> str:
        """Decide about an action that the server has undone.

        Args:
            suspect: the action.
            added: of the sync that the action was sent in.
            reason: as the server wrote it.

        Returns:
            The reason for which the action fails, `AGAIN` if it is sent again with others, or empty if it is
            a suspect now.
        """
        if reason != "error":
            name = _REASONS.get(reason, "rejected") if isinstance(reason, str) else "rejected"
            if name != "rejected":
                self._begin_run()
            return name
        if suspect.seq == self._alone:
            return "error"
        if added <= self._run_added and self._tracker.processed == self._run_processed:
            self._last_innocent = max(self._last_innocent, suspect.seq)
            self._offered = self._drained = False
            return AGAIN
        self._begin_run()
        self._suspects.append(suspect)
        return ""

    def _begin_run(self) -> None:
        """Begin a run: actions sent before this point may be undone together with this one."""
        processed = self._tracker.processed
        if processed == self._run_processed:
            self._limit = max(1, (self._limit or self._max_actions) // NARROW)
            self._limit_processed = processed
        self._run_added, self._run_processed = self._tracker.added, processed
