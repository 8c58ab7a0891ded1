"""Lumberjack's public face: the protocol's own verbs over the common client.

::

    with logclient.lumberjack.Writer("lumberjack://127.0.0.1:5044", window=500) as writer:
        acked = writer.write({"message": f"line {n}"} for n in range(10_000))

For the frames alone, without any I/O, see ``logclient.protocols.lumberjack``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from logclient.client import Client, Event
from logclient.config import parse
from logclient.errors import ConfigError

if TYPE_CHECKING:
    from typing import Unpack

    from logclient.options import Options

__all__ = ["Writer"]


class Writer(Client):
    """A client that writes and waits: as many events as the reader acknowledged, no guessing.

    Takes the options of ``logclient.connect``; ``overflow`` is ``block``, so that an iterable of any
    length goes through a queue of bounded size.

    Raises:
        ConfigError: the URL is not Lumberjack's, or an option breaks a rule.
    """

    def __init__(self, url: str, /, **options: Unpack[Options]) -> None:
        given: dict[str, Any] = {"overflow": "block", **options}
        config = parse(url, **given)
        if config.protocol != "lumberjack":
            raise ConfigError(f"scheme: a Writer speaks lumberjack, not {config.scheme}")
        super().__init__(config)

    def write(self, events: Iterable[Event], timeout: float | None = None) -> int:
        """Send the events in windows and wait for their acks; how many were acknowledged.

        Args:
            events: mappings, strings or bytes, as for ``send``.
            timeout: seconds to wait for the acks after the last event was queued; None: ``flush_timeout``.

        Raises:
            EncodeError: an event has no encoding; those before it were sent.
        """
        deliveries = [self.submit(event) for event in events]
        deadline = time.monotonic() + (self.config.flush_timeout if timeout is None else timeout)
        self.flush(max(0.0, deadline - time.monotonic()))
        outcomes = (d.result(max(0.0, deadline - time.monotonic())) for d in deliveries)
        return sum(outcome is not None and outcome.status == "acked" for outcome in outcomes)
