"""The pump for TLS."""

from logclient._ext.pump.base import CompiledPump

class TlsPump(CompiledPump): ...
