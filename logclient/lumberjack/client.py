"""A Lumberjack client that writes events and waits for their acknowledgements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from logclient.client import Client, Event
from logclient.config.parsing import resolve
from logclient.errors import ConfigError
from logclient.standard import time

if TYPE_CHECKING:
    from typing import Unpack

    from logclient.config.options import Options

__all__ = ["Writer"]


class Writer(Client):
    """A Lumberjack client with a ``write`` that waits for acknowledgements and counts them.

    Args:
        url: a Lumberjack URL, as for ``logclient.connect``.
        options: as for ``logclient.connect``. The default of ``overflow`` is ``block``, so that an iterable
            of any length fits through a queue of bounded size.

    Raises:
        ConfigError: the URL is not a Lumberjack URL, or an option breaks a rule.
        LedgerError: the ledger's directory cannot be used.
    """

    def __init__(self, url: str | None = None, /, **options: Unpack[Options]) -> None:
        config = resolve(url, options, defaults={"overflow": "block"})
        if config.protocol != "lumberjack":
            raise ConfigError(f"scheme: a Writer speaks lumberjack, not {config.scheme}")
        super().__init__(config)

    def write(self, events: Iterable[Event], timeout: float | None = None) -> int:
        """Send events and wait for their acknowledgements.

        Args:
            events: mappings, strings or bytes, as for ``send``.
            timeout: seconds to wait after the last event was queued; None: the option ``timeout``.

        Returns:
            How many of these events the server has acknowledged.

        Raises:
            EncodeError: an event cannot be encoded; those before it were sent.
        """
        deliveries = [self.submit(event) for event in events]
        deadline = time.monotonic() + (self.config.timeout if timeout is None else timeout)
        self.flush(max(0.0, deadline - time.monotonic()))
        outcomes = (d.result(max(0.0, deadline - time.monotonic())) for d in deliveries)
        return sum(outcome is not None and outcome.status == "acked" for outcome in outcomes)
