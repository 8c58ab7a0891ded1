"""Compiled pumps over connections whose ends may refuse credentials: TLS, and WebSocket over it."""

from __future__ import annotations

from typing import Any

from logclient._ext.pump.base import CompiledPump
from logclient.delivery.contract import Fatal
from logclient.errors import CredentialError

__all__ = ["RefusalPump"]


class RefusalPump(CompiledPump):
    """A compiled pump that tells a refusal of credentials from other failures.

    It comes before the pump of a transport among the bases of a class.
    """

    _refusal: Fatal | None = None

    @property
    def fatal(self) -> Fatal | None:
        """A refusal by one side; None: there was none, or the core has the reason."""
        return self._refusal or super().fatal

    def connected(self) -> None:
        """Begin a new connection."""
        super().connected()
        self._refusal = None

    def run(self, link: Any, until: float) -> str:
        """Move bytes until there is something to report; see ``delivery.contract.Pump``."""
        end = super().run(link, until)
        if end == "error" and isinstance(failure := self.failure, CredentialError):
            self._refusal = Fatal(failure)
            return "protocol"
        return end
