"""Waiting and giving up while a transport makes a connection."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from logclient.config.secrets import Secret
from logclient.descriptors import Identity, identity
from logclient.errors import CredentialError
from logclient.standard import os, time
from logclient.threads import wait_ready

STOP_CHECK_S = 0.05
"""Seconds between two calls of ``stopped``, where nothing ends the sleep."""


class Elsewhere(Exception):
    """Another endpoint has answered first, and is the attempt's now."""


class Attempt:
    """An attempt to connect.

    Args:
        stopped: returns whether to give up; called again and again.
        warn: reports, as a text, something that does not keep the connection from being made.
    """

    def __init__(
        self,
        stopped: Callable[[], bool] = lambda: False,
        warn: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.stopped = stopped
        self.warn = warn
        self.segment = 0
        """Bytes of a packet at most, without headers; 0: as the system chooses."""
        self.endpoint: Any = None  # that is tried, or connected
        self.others: tuple[Any, ...] = ()  # endpoints that are tried, too, while that one does not answer
        self.known: dict[Any, Any] = {}  # between attempts: look-ups, and the address that answered last
        self.won: Any = None  # the look-up of the endpoint that has answered first
        self.wake: Callable[[], object] | None = None  # ends its sleep, from any thread
        self.expires = inf  # when a server that has only accepted has had its time
        self._waits_for: list[tuple[int, Identity | None]] = []

    def wait(self, reading: list[int], writing: list[int], deadline: float, late: str) -> bool:
        """Sleep until a descriptor is ready, or until it is time to call this again; return whether one is.

        Raises:
            TimeoutError: it is later than the monotonic second `deadline`; the text is `late`.
            InterruptedError: none is ready, and ``stopped`` says to give up.
            ConnectionAbortedError: a descriptor is not ours any more.
        """
        deadline = min(deadline, self.expires)
        if time.monotonic() >= deadline:
            raise TimeoutError(late)
        return self.rest(reading, writing, deadline)

    def rest(self, reading: list[int], writing: list[int], until: float) -> bool:
        """Sleep as in ``wait``, but no later than the monotonic second `until`."""
        known = self._waits_for = [(fd, identity(fd)) for fd in reading + writing]
        try:
            ready = self._sleep(reading, writing, max(0.0, until - time.monotonic()))
        finally:
            self._waits_for = []
        if any(identity(fd) != file for fd, file in known):
            raise ConnectionAbortedError(errno.ECONNABORTED, "the program has closed the descriptor")
        if not ready and self.stopped():
            raise InterruptedError("stopped while connecting")
        return ready

    def _sleep(self, reading: list[int], writing: list[int], seconds: float) -> bool:
        return wait_ready(reading, writing, min(seconds, STOP_CHECK_S))

    def abandon(self) -> None:
        """In a forked child: release the connection that the parent is making.

        Else the peer would not see its end there. Its object belongs to a thread that does not exist here.
        """
        for fd, known in self._waits_for:
            if known == identity(fd) and stat.S_ISSOCK(os.fstat(fd).st_mode):  # else it is ZeroMQ's
                os.close(fd)


def renew(secrets: Iterable[tuple[str, Secret | None]], attempt: Attempt) -> None:
    """Read secrets anew, by the names of their options, before a connection that needs them.

    One that cannot be read keeps its last value, and `attempt` reports that.

    Raises:
        CredentialError: a secret cannot be read, and never was.
    """
    for name, secret in secrets:
        if secret is None:
            continue
        try:
            secret.renew()
        except ValueError as error:
            if not secret.is_known:
                raise CredentialError(f"{name}: {error}") from None
            attempt.warn(f"{name}: {error}; the last value is used")
