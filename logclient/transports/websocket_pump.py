"""The compiled pump for WebSocket, over that of TCP or TLS."""

from __future__ import annotations

from logclient._ext.pump.websocket import WebSocketPump as CompiledWebSocketPump
from logclient.transports.refusals import RefusalPump

__all__ = ["WebSocketPump"]


class WebSocketPump(RefusalPump, CompiledWebSocketPump):
    """The compiled pump; TLS below it may be refused."""
