"""The sender for UDP: runs of datagrams, with UDP GSO where the system has it."""

from typing import Final

from logclient._ext.pump import CompiledPump

WAYS: Final[tuple[str, ...]]

class UdpPump(CompiledPump):
    def connected(self) -> None: ...
    @property
    def way(self) -> str:
        """How datagrams are given to the kernel now: one of `WAYS`."""
