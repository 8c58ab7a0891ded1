"""What a transport asks, and how it sleeps, while it makes a connection."""

from __future__ import annotations

import select
from collections.abc import Callable

from logclient.threads import original

LOOK = 0.05
"""Seconds between two questions whether to stop."""


class Attempt:
    """An attempt to connect.

    Args:
        stopped: whether to give up; asked again and again.
    """

    def __init__(self, stopped: Callable[[], bool] = lambda: False) -> None:
        self.stopped = stopped

    def rest(self, reading: list[int], writing: list[int], seconds: float) -> bool:
        """Sleep until one of these descriptors is ready, it is time to ask ``stopped`` (again), or time is
        over; whether one of them is ready."""
        return sleep(reading, writing, min(seconds, LOOK))


def sleep(reading: list[int], writing: list[int], seconds: float) -> bool:
    """Until one of these descriptors is ready or time is over; whether one is."""
    try:
        poll = original(select, "poll")()
    except AttributeError:  # Windows
        return any(original(select, "select")(reading, writing, writing, seconds))
    wanted = dict.fromkeys(reading, select.POLLIN)
    for fd in writing:
        wanted[fd] = wanted.get(fd, 0) | select.POLLOUT
    for fd, events in wanted.items():
        poll.register(fd, events)
    return bool(poll.poll(seconds * 1000.0))
