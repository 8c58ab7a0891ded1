"""The off switch: the client of the URL ``none:``, which ships nothing, opens nothing and starts nothing."""

from __future__ import annotations

import itertools
import logging
import weakref
from typing import TYPE_CHECKING, Any

from logclient import client
from logclient.client import Event, Level, level_number
from logclient.config.common import Config
from logclient.config.parsing import changed
from logclient.delivery import error_log
from logclient.delivery.outcomes import CallbackThread, Delivery, Outcome
from logclient.delivery.stats import Stats
from logclient.logjam.agent import Agent, AgentMethods

if TYPE_CHECKING:
    from typing import Unpack

    from logclient.config.options import Options

__all__ = ["Client"]

DROPPED = "disabled"
"""The reason under which events are counted as dropped."""

_MOST = 1 << 62

_said: list[str] = []
"""The line that this process has written about it."""


class _Nothing:
    """The sender, sink and waiter of a client that ships nothing: nothing waits."""

    inline = True  # callers never wait for a thread
    closed = False
    producer = "0" * 20

    def flush(self, timeout: float, if_reachable: bool = False) -> int:
        return 0

    def background(self, patience: float = 0.0) -> None:
        pass

    def close(self, timeout: float) -> int:
        self.closed = True
        return 0

    def report(self, kind: str, text: str) -> None:
        error_log.process.warn_limited(kind, text)


class Client(AgentMethods[int], client.Client):
    """A client that ships nothing: that of ``logclient.connect("none:")``, and of an empty LOGCLIENT_URL.

    Events are neither encoded nor kept; their outcome is ``dropped`` with the reason ``disabled``. A Handler
    with it ignores its records, which are not counted. Neither ledger nor spool nor fallback is written.
    Requests of Logjam can be made, so that programs and middlewares with them run.

    Attributes:
        agent: makes the documents of these requests.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.documents = None
        self.front_ends = weakref.WeakSet()
        nothing: Any = _Nothing()
        self._sender = self._waiter = self.sink = nothing
        self._callbacks = CallbackThread(self.warn_limited)
        # Two counters, by whether the client was closed, which need no lock: `next` counts one event, and
        # `_MOST` minus what remains were counted.
        self._countdowns = {closed: itertools.repeat(None, _MOST) for closed in (False, True)}
        self.agent = Agent(lambda *_: self.send(""), "off-none")
        if not _said:
            _said.append("nothing is shipped: the URL is none, or LOGCLIENT_URL is empty")
            error_log.process.warn_limited("off", _said[0], logging.INFO)

    def send(self, event: Event, level: Level = client.INFO) -> int:
        """Count one event, and return 0: it is dropped."""
        next(self._countdowns[self.closed])
        return 0

    def submit(self, event: Event, level: Level = client.INFO) -> Delivery:
        """Return the delivery of an event that is dropped as ``disabled``."""
        delivery = Delivery(self.send(event), self._callbacks)
        delivery._settle(Outcome("dropped", "closed" if self.closed else DROPPED))
        return delivery

    def reconfigure(self, *, level: Level | None = None, **options: Unpack[Options]) -> None:
        """Check the values and set the level. The client goes on to ship nothing."""
        number = None if level is None else level_number(level)
        changed(self.config, options)
        if number is not None:
            self._set_level(number)

    def stats(self) -> Stats:
        """Return the counts: all events are dropped as ``disabled``."""
        sent, refused = (_MOST - self._countdowns[closed].__length_hint__() for closed in (False, True))
        counts: dict[str, Any] = dict.fromkeys(Stats._fields, 0)
        texts = ("last_error", "ledger_error", "spool_error", "tls", "pump", "compressor")
        counts |= dict.fromkeys(texts, "")
        counts |= {"failed": {}, "filtered": {}, "dropped": {DROPPED: sent} if sent else {}, "sent": sent}
        about = {"url": self.config.redacted, "producer": self.producer}
        return Stats(**{**counts, "refused": refused, **about})
