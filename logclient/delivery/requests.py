"""The requests of one client to its server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from logclient import threads
from logclient.delivery.contract import Core, CoreEvent, Reply
from logclient.errors import ConnectFailed
from logclient.standard import time


class Request:
    """One request: see ``Core.call``. The sender calls `when_done` after the answer, which took `seconds`."""

    def __init__(self, kind: str, payload: Any, when_done: Callable[[], object] = lambda: None) -> None:
        self.kind = kind
        self.payload = payload
        self.reply: Any = None
        self.error: Exception | None = None
        self.seconds = 0.0
        self.done = False
        self._when_done = when_done
        self.started = 0.0
        self.answered = threads.Event()

    def settle(self, reply: Any = None, error: Exception | None = None) -> None:
        """Settle it; later calls have no effect."""
        if not self.done:
            self.reply, self.error = reply, error
            self.seconds = time.monotonic() - self.started
            self.done = True
            self.answered.set()
            self._when_done()


class Requests:
    """The requests of one client, and unsolicited messages of the server.

    Any thread makes them; the sender starts them, and settles them with the answer (``Core.call``, `Reply`).
    Requests under way end with their connection; those not yet started wait for the next one. The sender
    calls `on_message` with events that answer no request.
    """

    def __init__(self, on_message: Callable[[CoreEvent], object]) -> None:
        self._on_message = on_message
        self._waiting: deque[Request] = deque()
        self._started: dict[int, Request] = {}

    @property
    def waiting(self) -> bool:
        while self._waiting and self._waiting[0].done:  # its caller waits no longer
            self._waiting.popleft()
        return bool(self._waiting)

    def add(self, kind: str, payload: Any, when_done: Callable[[], object]) -> Request:
        request = Request(kind, payload, when_done)
        self._waiting.append(request)
        return request

    def start(self, core: Core) -> None:
        while self.waiting:
            request = self._waiting.popleft()
            request.started = time.monotonic()
            try:
                self._started[core.call(request.kind, request.payload)] = request
            except ValueError as error:
                request.settle(error=error)

    def received(self, event: CoreEvent) -> None:
        request = self._started.pop(event.token, None) if isinstance(event, Reply) else None
        if request is not None and isinstance(event, Reply):
            request.settle(event.payload)
        else:
            self._on_message(event)

    def connection_lost(self) -> None:
        started, self._started = self._started, {}
        for request in started.values():
            request.settle(error=ConnectFailed("the connection ended before the answer"))
