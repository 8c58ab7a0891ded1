"""Waiting and giving up while a transport makes a connection."""

from __future__ import annotations

import select
from collections.abc import Callable

from logclient.threads import original

STOP_CHECK_S = 0.05
"""Seconds between two calls of ``stopped``."""


class Attempt:
    """An attempt to connect.

    Args:
        stopped: returns whether to give up; called again and again.
    """

    def __init__(self, stopped: Callable[[], bool] = lambda: False) -> None:
        self.stopped = stopped

    def wait(self, reading: list[int], writing: list[int], seconds: float) -> bool:
        """Sleep until a descriptor is ready, or until it is time to call ``stopped`` again.

        Args:
            reading: descriptors to become readable.
            writing: descriptors to become writable.
            seconds: how long to wait at most.

        Returns:
            Whether a descriptor is ready.
        """
        return sleep(reading, writing, min(seconds, STOP_CHECK_S))


def sleep(reading: list[int], writing: list[int], seconds: float) -> bool:
    """Sleep until one of these descriptors is ready.

    Args:
        reading: descriptors to become readable.
        writing: descriptors to become writable.
        seconds: how long to wait at most.

    Returns:
        Whether one is ready.
    """
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
