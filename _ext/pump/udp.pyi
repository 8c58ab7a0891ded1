"""The compiled pump for UDP."""

from logclient._ext.pump.base import CompiledPump

class UdpPump(CompiledPump):
    def connected(self) -> None: ...
    @property
    def send_method(self) -> str:
        """How datagrams are given to the kernel now: one of `UDP_METHODS`."""
