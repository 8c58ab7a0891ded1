"""The sender for TCP: bytes into a plain, connected, non-blocking stream socket, and out of it."""

from logclient._ext.pump import CompiledPump

class TcpPump(CompiledPump): ...
