"""Questions to the server: asked by any thread, put and answered by the sender.

A core's ``call`` and its ``Reply`` have a token; a connection that is lost takes the questions on it
along. Those not yet asked wait for the next one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from logclient import threads
from logclient.delivery.contract import Core, CoreEvent, Reply
from logclient.errors import ConnectFailed

__all__ = ["Call", "Calls"]


class Call:
    """One question. ``seconds`` is the time from its first byte to its answer, once there is one."""

    def __init__(self, kind: str, payload: Any, when_done: Callable[[], object] = lambda: None) -> None:
        self.kind = kind
        self.payload = payload
        self.reply: Any = None
        self.error: Exception | None = None
        self.seconds = 0.0
        self.done = False
        self._when_done = when_done
        self._began = 0.0
        self._answered = threads.Event()

    def wait(self, timeout: float) -> bool:
        return self._answered.wait(timeout)

    def ask(self, core: Core) -> int | None:
        """Its token; None when the core does not take it."""
        self._began = time.monotonic()
        try:
            return core.call(self.kind, self.payload)
        except ValueError as error:
            self.settle(error=error)
            return None

    def settle(self, reply: Any = None, error: Exception | None = None) -> None:
        """Its end; the first one counts."""
        if not self.done:
            self.reply, self.error = reply, error
            self.seconds = time.monotonic() - self._began
            self.done = True
            self._answered.set()
            self._when_done()


class Calls:
    """The questions of one client."""

    def __init__(self) -> None:
        self._waiting: deque[Call] = deque()
        self._asked: dict[int, Call] = {}

    @property
    def waiting(self) -> bool:
        """Whether one is to be asked still."""
        while self._waiting and self._waiting[0].done:  # nobody waits for it any more
            self._waiting.popleft()
        return bool(self._waiting)

    def add(self, kind: str, payload: Any, when_done: Callable[[], object]) -> Call:
        call = Call(kind, payload, when_done)
        self._waiting.append(call)
        return call

    def ask(self, core: Core) -> bool:
        """Ask those that wait; whether the core has something to send for it."""
        asked = False
        while self.waiting:
            call = self._waiting.popleft()
            token = call.ask(core)
            if token is not None:
                self._asked[token] = call
                asked = True
        return asked

    def heard(self, event: CoreEvent) -> bool:
        """Whether it is an answer to one of them."""
        call = self._asked.pop(event.token, None) if isinstance(event, Reply) else None
        if call is not None and isinstance(event, Reply):
            call.settle(event.payload)
        return call is not None

    def lost(self) -> None:
        """The connection is over."""
        asked, self._asked = self._asked, {}
        for call in asked.values():
            call.settle(error=ConnectFailed("the connection ended before the answer"))
