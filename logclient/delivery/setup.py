"""What the delivery of a client is made of, in each of its processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logclient.delivery import error_log

if TYPE_CHECKING:
    from logclient.config.common import Config
    from logclient.delivery.contract import Core, CoreEvent, Transport
    from logclient.delivery.spool.owner_files import OrphanSpool


class Setup:
    """What an engine is made of: in a new client, and again in each forked child.

    Args:
        transports: one for each endpoint, to connect to all of them at a time;
            or one, to try them in turn, beginning with the last one that worked.
        ledger: (directory, fields of its ``open`` lines) or None.
        make_replayer: makes the sender of what a dead owner left in the spool, with a function for `on_end`.
        orphan: what a dead owner left: the engine sends that, and nothing else.
        on_end: called when the client has ended, before its last callbacks have run.

    Attributes:
        on_message: called by the sender with messages of the server that answer no request.
        keeps_connected: connect even if there is nothing to send.
    """

    def __init__(
        self,
        make_core: Callable[[bytes], Core],
        transports: list[Transport],
        config: Config,
        *,
        ledger: tuple[str, dict[str, Any]] | None = None,
        make_replayer: Callable[[OrphanSpool, Callable[[], object]], Any] | None = None,
        orphan: OrphanSpool | None = None,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.make_core = make_core
        self.transports = transports
        self.config = config
        self.ledger = ledger
        self.log = error_log.process
        self.make_replayer = make_replayer
        self.orphan = orphan
        self.on_end = on_end
        self.on_message: Callable[[CoreEvent], object] = lambda event: None
        self.keeps_connected = False
