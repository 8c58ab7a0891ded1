"""Logux: notices that the server's queue is jammed.

A server can jam on a duplicate of an action that it keeps: it answers `synced`, and processes nothing more of
that client id. A server that is merely slow looks the same for a while, so the wait doubles with each jam
that did not end quickly under another client id.
"""

from __future__ import annotations

from logclient._ext.logux import ActionTracker

__all__ = ["MAX_PATIENCE", "JamDetector"]

MAX_PATIENCE = 8
"""The longest wait, in units of the first one."""


class JamDetector:
    """See the module.

    Args:
        tracker: the actions in flight.
        after: seconds without an outcome of the oldest sync, which the server has received, to wait at first.
    """

    def __init__(self, tracker: ActionTracker, after: float) -> None:
        self._tracker = tracker
        self._after = after
        self.patience = after
        """Seconds to wait now."""
        self._synchronized_at = 0.0
        self._processed = -1  # actions processed when a connection was closed for a jam
        self._added = 0  # the `added` of the last jammed action, once it is sent again

    def synchronized(self, now: float) -> None:
        """Note that a connection is ready."""
        self._synchronized_at = now

    @property
    def deadline(self) -> float | None:
        """When the queue counts as jammed; None while the server has not received the oldest sync."""
        tracker = self._tracker
        return tracker.progress_at + self.patience if tracker.oldest_synced else None

    def close(self) -> None:
        """Note that the connection is closed for a jam."""
        tracker = self._tracker
        self.patience = min(2 * self.patience, MAX_PATIENCE * self._after)
        self._processed = tracker.processed
        self._added = tracker.added + tracker.open

    def look(self) -> None:
        """Reset the wait if the jammed actions were processed quickly on the new connection."""
        tracker = self._tracker
        ended = self._processed >= 0 and tracker.processed != self._processed
        if ended and not 0 < tracker.oldest_added <= self._added:
            self._processed = -1
            if tracker.progress_at - self._synchronized_at <= self._after:
                self.patience = self._after
