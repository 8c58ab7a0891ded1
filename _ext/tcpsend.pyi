"""The compiled pump for TCP."""

from logclient._ext.pump import CompiledPump

class TcpPump(CompiledPump): ...
