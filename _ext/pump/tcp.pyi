"""The pump for TCP."""

from logclient._ext.pump.base import CompiledPump

class TcpPump(CompiledPump): ...
