"""The pump for UDP."""

from logclient._ext.pump.base import CompiledPump

class UdpPump(CompiledPump):
    def connected(self) -> None: ...
    @property
    def send_method(self) -> str:
        """The method by which datagrams are sent now: one of `UDP_METHODS`."""
