"""The compiled pump for ZeroMQ."""

from typing import Any

from logclient._ext.flight import Flight
from logclient._ext.pump import CompiledPump

class ZmqPump(CompiledPump):
    @classmethod
    def find(cls, flight: Flight, core: Any, library: str, **limits: Any) -> ZmqPump | None: ...
    def connected(self) -> None: ...
