"""The pump for ZeroMQ."""

from typing import Any

from logclient._ext.inflight import InflightBatches
from logclient._ext.pump.base import CompiledPump

class ZmqPump(CompiledPump):
    @classmethod
    def find(cls, in_flight: InflightBatches, core: Any, library: str, **limits: Any) -> ZmqPump: ...
    def connected(self) -> None: ...
