"""The compiled pump for WebSocket, over that of TCP or TLS."""

from __future__ import annotations

from typing import Any

from logclient._ext.pump.websocket import WebSocketPump as CompiledWebSocketPump
from logclient.delivery.contract import Fatal
from logclient.errors import CredentialError

__all__ = ["WebSocketPump"]


class WebSocketPump(CompiledWebSocketPump):
    """The compiled pump, which tells a refusal of credentials by TLS from other failures."""

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
