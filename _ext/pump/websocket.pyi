"""The pump for WebSocket."""

from collections.abc import Callable
from typing import Any, Self

from logclient._ext.inflight import InflightBatches
from logclient._ext.pump.base import CompiledPump

class WebSocketPump(CompiledPump):
    @classmethod
    def over(
        cls, carrier: Callable[..., Any], in_flight: InflightBatches, core: Any, **limits: Any
    ) -> Self: ...
    def connected(self) -> None: ...
