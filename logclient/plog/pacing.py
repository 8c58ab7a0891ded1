"""The pace of datagrams, adapted to the receiver. No socket, no clock.

``ByQueue`` reads the receive queue of the server's socket, which needs the same machine. Between two looks it
allows only what fits into the queue, so that nothing is lost even if the server reads nothing. ``ByStat``
asks the server how many messages arrived (STAT): it speeds up a bit while all arrive, and slows down to what
arrives when many do not. ``slow_start`` is for a receiver whose state is unknown: it may have just started.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Grant(NamedTuple):
    """What the queue may be charged until the next look, what it holds, and the seconds until then."""

    room: float
    most: float
    look: float


class ByQueue:
    """Allows no more between two looks than the receiver's queue has room for.

    The kernel charges a queue for allocated memory. The codec knows the most that it may charge for a
    datagram.
    """

    _ACTIVE = 0.001
    _IDLE = 0.1
    _MIN_SHARE = 1 / 8

    def __init__(self) -> None:
        self._share = 1.0
        self._drops: int | None = None
        self._idle = self._ACTIVE

    def look(self, held: int, most: int, drops: int, used: float) -> Grant:
        """Compute the allowance from the queue's content, size and drops, and the bytes `used` meanwhile."""
        if self._drops is not None and drops > self._drops:
            # Others use the queue too, or it holds less than we think.
            self._share = max(self._MIN_SHARE, self._share / 2)
        else:
            self._share = min(1.0, self._share * 1.001)
        self._drops = drops
        self._idle = self._ACTIVE if used or held else min(self._idle * 2, self._IDLE)
        # Datagrams sent since the last look may not have reached the queue yet.
        return Grant((most - held - used) * self._share, most * self._share, self._idle)


class Sent(NamedTuple):
    """What the client has sent at a time: commands with ``stat`` among them, messages, and their packets."""

    at: float
    commands: int
    messages: int
    packets: int


class ByStat:
    """Follows what arrives, from `base` packets per second on and never below one.

    Where more than a quarter of the messages is lost, the rate falls to what has arrived. A smaller loss may
    have other reasons than the path: the rate falls slowly, not below the best of what arrived lately, and
    now and then it rises all the same.

    An answer does not name its question. One that comes after `PATIENCE` is compared with what was sent by a
    later question: what was on its way counts as lost, until an answer comes in time.
    """

    INTERVAL = 0.25
    """Seconds between two questions."""
    PATIENCE = 2.0
    """Seconds after which a question without an answer is asked again."""
    _PROBE = 4  # answers from one rise in spite of losses to the next

    def __init__(self, base: float) -> None:
        self.base = base
        self.rate = base
        self.due = 0.0
        """When to call `asks`."""
        self._asked = self._last = Sent(0.0, 0, 0, 0)  # by the last question, and by the last with an answer
        self._waits = False  # for the answer to the last question
        self._first: tuple[dict[str, Any], Sent] | None = None  # the answer that later ones are compared with
        self._lost = 0  # of the messages sent since then
        self._best = 0.0  # of the rates of arrivals, forgotten slowly
        self._answers = self._silent = 0

    def asks(self, sent: Sent) -> bool:
        """Return whether to ask now, with so much `sent` before. There is one question at a time."""
        if self._waits and sent.at >= self._asked.at + self.PATIENCE:
            self._waits = False
            self._silent += 1
            if self._silent > 1:  # one question or answer is easily lost
                taken = self.rate if self._first is None else self._taken(sent)
                self.rate = max(1.0, min(self.rate, taken) / 2)
        if sent.at < self.due:
            return False
        self.due = sent.at + self.INTERVAL
        if self._waits or (self._first is not None and sent.packets == self._asked.packets):
            return False
        self._asked, self._waits = sent, True
        return True

    def answered(self, stat: dict[str, Any]) -> int:
        """Adapt the rate to an answer; return how many more messages are lost, or fewer, than at the last."""
        if not self._waits:
            return 0  # to a question of the application
        sent, self._waits, self._silent = self._asked, False, 0
        self._answers += 1
        lost = None if self._first is None else lost_between(*self._first, stat, sent)
        if lost is None:  # counting begins again
            self._first, self._lost, self._last = (stat, sent), 0, sent
            self.rate = min(self.rate, self.base)
            return 0
        more, taken = lost - self._lost, self._taken(sent)
        share = max(0.0, more / max(sent.messages - self._last.messages, more, 1))
        arrived = taken * (1 - share)
        self._lost, self._last = lost, sent
        if share > 0.25:
            self._best = arrived
            self.rate = max(1.0, arrived, min(self.rate, taken) / 2)
            return more
        self._best = max(arrived, self._best * 63 / 64)
        if share and self._answers % self._PROBE:
            self.rate = max(1.0, self.rate * 0.9, self._best)
        elif taken >= 0.7 * self.rate:
            self.rate += self.base / 2 if self.rate >= self.base else self.rate / 8
        return more

    def _taken(self, sent: Sent) -> float:
        """Return the packets per second since the last question that has an answer."""
        return (sent.packets - self._last.packets) / max(sent.at - self._last.at, 1e-3)


def lost_between(before: dict[str, Any], then: Sent, after: dict[str, Any], now: Sent) -> int | None:
    """Return how many messages were lost between two answers to ``stat``; None: unknown.

    A counter that fell tells of a restart, and one that grew by more than we sent of another client.
    """
    first, last = _arrivals(before), _arrivals(after)
    if first is None or last is None:
        return None
    _, asked, begun, seen = grown = [new - old for old, new in zip(first, last, strict=True)]
    sent = now.messages - then.messages
    if min(grown) < 0 or asked > now.commands - then.commands or max(begun, seen) > sent:
        return None
    return sent - seen


def _arrivals(stat: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """Return uptime, commands, messages whose first fragment arrived, and those that the handlers saw."""
    try:
        handler, begun = stat["handlers"][0], stat["v0_fragments"][0] + stat["udp_simple_messages"]
        seen = handler.get("seen_messages", handler.get("logged"))
        found = stat["uptime"], stat["v0_commands"], begun, seen
    except (AttributeError, LookupError, TypeError):
        return None
    return found if all(type(number) is int for number in found) else None


FIRST = 500.0  # packets per second at the slow start
SLOW_BURST = 16.0  # packets sent at once
SLOW_LOOK = 0.02  # seconds between two changes of the pace; half of the idle time if that is more
SLOW_LOOK_AT_QUEUE = 0.004  # the same where the receive queue is visible
_GROWTH = 1.4  # packets per second for each packet sent: twice the natural logarithm of 2


def slow_start(pace: float, packets: int) -> float:
    """Return the packets per second after so many to a new receiver: `FIRST`, then twice each half second.

    A server that has just started reads slowly and pauses now and then. Linux gives its socket room for 280
    small datagrams: at `FIRST` it may pause for half a second. The pace grows with the packets sent, because
    an idle client does not warm up a server.
    """
    return min(pace, FIRST + _GROWTH * packets)
