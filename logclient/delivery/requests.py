"""Requests to the server: made by any thread, started and answered by the sender.

``Core.call`` and its `Reply` have a token. Requests under way end with their connection; those not yet
started wait for the next one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from logclient import threads
from logclient.delivery.contract import Core, CoreEvent, Reply
from logclient.errors import ConnectFailed

__all__ = ["Request", "Requests"]


class Request:
    """One request.

    Args:
        kind: as in ``Core.call``.
        payload: its content.
        when_done: called by the sender after the answer.

    Attributes:
        done: it is answered, or has failed.
        reply: the answer.
        error: the reason for a missing answer.
        seconds: from its first byte to its answer.
    """

    def __init__(self, kind: str, payload: Any, when_done: Callable[[], object] = lambda: None) -> None:
        self.kind = kind
        self.payload = payload
        self.reply: Any = None
        self.error: Exception | None = None
        self.seconds = 0.0
        self.done = False
        self._when_done = when_done
        self._started = 0.0
        self._answered = threads.Event()

    def wait(self, timeout: float) -> bool:
        """Wait until it is done; return whether it is."""
        return self._answered.wait(timeout)

    def start(self, core: Core) -> int | None:
        """Pass it to the core; return its token, or None when the core does not take it."""
        self._started = time.monotonic()
        try:
            return core.call(self.kind, self.payload)
        except ValueError as error:
            self.settle(error=error)
            return None

    def settle(self, reply: Any = None, error: Exception | None = None) -> None:
        """Settle it; later calls have no effect."""
        if not self.done:
            self.reply, self.error = reply, error
            self.seconds = time.monotonic() - self._started
            self.done = True
            self._answered.set()
            self._when_done()


class Requests:
    """The requests of one client, and unsolicited messages of the server.

    Attributes:
        on_event: called by the sender with events that answer no request.
    """

    def __init__(self, on_event: Callable[[CoreEvent], object]) -> None:
        self.on_event = on_event
        self.begin()

    def begin(self) -> None:
        """Start empty: in a new client, and in the child of a fork."""
        self._waiting: deque[Request] = deque()
        self._started: dict[int, Request] = {}

    @property
    def waiting(self) -> bool:
        """Whether one is still to be started."""
        while self._waiting and self._waiting[0].done:  # its caller waits no longer
            self._waiting.popleft()
        return bool(self._waiting)

    def add(self, kind: str, payload: Any, when_done: Callable[[], object]) -> Request:
        """Have the sender start a request."""
        request = Request(kind, payload, when_done)
        self._waiting.append(request)
        return request

    def start(self, core: Core) -> bool:
        """Start those that wait; return whether the core has something to send for it."""
        started = False
        while self.waiting:
            request = self._waiting.popleft()
            token = request.start(core)
            if token is not None:
                self._started[token] = request
                started = True
        return started

    def received(self, event: CoreEvent) -> None:
        """Settle the request that this event answers, or pass it on."""
        request = self._started.pop(event.token, None) if isinstance(event, Reply) else None
        if request is not None and isinstance(event, Reply):
            request.settle(event.payload)
        else:
            self.on_event(event)

    def connection_lost(self) -> None:
        """Fail the requests that are under way."""
        started, self._started = self._started, {}
        for request in started.values():
            request.settle(error=ConnectFailed("the connection ended before the answer"))
