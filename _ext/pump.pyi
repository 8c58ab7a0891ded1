"""The compiled pump: detach, encode, write the ledger, send, receive, scan acks, all without the GIL."""

from typing import Any, Final, Protocol

from logclient._ext.flight import Flight

ENDS: Final[tuple[str, ...]]

class _HasHot(Protocol):
    @property
    def hot(self) -> object | None: ...

class CompiledPump:
    flight: Flight
    windows: int
    bytes_sent: int
    progress: int
    def __init__(
        self,
        flight: Flight,
        core: _HasHot,
        *,
        batch_events: int = 2048,
        batch_bytes: int = 1048576,
        nap: float = 0.005,
        no_progress: float = 300.0,
    ) -> None: ...
    def connected(self) -> None: ...
    def stop(self) -> None: ...
    def resume(self) -> None: ...
    def set_ledger(self, fd: int) -> None: ...
    def take_ledger(self) -> tuple[int, int]: ...
    @property
    def errno(self) -> int: ...
    def run(self, link: Any, until: float) -> str: ...
