"""The compiled pump for TLS."""

from logclient._ext.pump.base import CompiledPump

class TlsPump(CompiledPump):
    @property
    def errno(self) -> int: ...
    @property
    def failure(self) -> OSError | None: ...
