"""The compiled pump for UDP."""

from typing import Final

from logclient._ext.pump import CompiledPump

METHODS: Final[tuple[str, ...]]

class UdpPump(CompiledPump):
    def connected(self) -> None: ...
    @property
    def send_method(self) -> str:
        """How datagrams are given to the kernel now: one of `METHODS`."""
