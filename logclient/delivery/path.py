"""Whether what was written to a connection arrives, as far as its TCP knows."""

from __future__ import annotations

from typing import NamedTuple

from logclient.delivery.contract import FOREVER

LATE = 10.0
"""Seconds without an outcome, or an acknowledgement by TCP, after which ``last_error`` reports it."""

STOPPED = 0.2
"""Seconds after the time of a look, from which on it needs another one, so many seconds later."""

SMALL = 1200
"""Bytes of a packet, without headers, that pass each path that can carry IPv6."""


class TcpState(NamedTuple):
    """What the system knows of a TCP connection: see ``_ext/pump/path.h``."""

    waiting: int  # bytes that the peer's system has not acknowledged
    acked: int  # bytes that it has
    ack_age: float  # seconds since its last acknowledgement
    owes: bool  # one is due: not while it has no room, and answers to questions for that
    gap: bool  # it has later bytes than the first that it has not acknowledged
    segment: int  # bytes of a packet of full size, without headers

    def loses_large(self, is_new: bool) -> bool:
        """Return whether large packets seem to be lost. `is_new`: the first, small ones have just arrived."""
        return self.waiting > 0 and self.owes and self.segment > SMALL and (self.gap or is_new)

    def explain(self, is_new: bool) -> str:
        """Describe where a connection hangs."""
        if not self.waiting:
            return "no answer in time: the server's system has taken everything, its process does not answer"
        if not self.owes:
            return f"the server's process reads nothing: {self.waiting} bytes wait for room in its system"
        words = f"the path is dead: the server's system has not acknowledged {self.waiting} bytes"
        if self.loses_large(is_new):
            words += f"; or are packets of {self.segment} bytes too large for it (MTU)?"
        return words


class Path:
    """Notices a path that takes nothing, where a protocol has no acknowledgements or the peer still sends.

    It reads no clock and no socket. TCP is looked at when a clock runs out that began with the first write or
    the last acknowledgement known: at the second `due`. `late`: that was `LATE` seconds ago.
    """

    def __init__(self, silence: float) -> None:
        self.silence = silence
        self.begin(0)

    def begin(self, sent: int) -> None:
        """Begin a connection, before which `sent` bytes were written."""
        self.due, self.late = FOREVER, False
        self._sent, self._acked, self._since = sent, 0, 0.0

    def wrote(self, now: float, sent: int) -> None:
        """Note how many bytes were written by now. Called in every turn."""
        if sent != self._sent:
            self._sent = sent
            if self.due == FOREVER:
                self._since = now
                self.due = now + min(LATE, self.silence)

    def look(self, now: float, state: TcpState | None) -> bool:
        """Draw the conclusions from a look that is due; return whether the path is dead."""
        if state is None or not state.waiting:
            self.due, self.late = FOREVER, False
            return False
        # This process was stopped, and goes on: what waits may have been written just now.
        stopped = now - self.due > STOPPED and state.acked != self._acked
        if not state.owes:
            self._since = now
        elif state.acked != self._acked:
            self._since = max(self._since, now - state.ack_age)
        self._acked = state.acked
        self.late = now - self._since >= LATE
        self.due = self._since + (self.silence if self.late else min(LATE, self.silence))
        dead = now - self._since >= self.silence
        if dead and stopped:
            self.due = now + STOPPED
            return False
        return dead
