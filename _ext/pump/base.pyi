"""The pump of one connection, which runs without the GIL."""

from typing import Any, Protocol

from logclient._ext.inflight import InflightBatches

class _HasCodec(Protocol):
    @property
    def codec(self) -> object | None: ...

class CompiledPump:
    in_flight: InflightBatches
    windows: int
    bytes_sent: int
    progress: int
    why: str
    """Why the GIL is taken for every batch; empty: it is not."""
    def __init__(
        self,
        in_flight: InflightBatches,
        core: _HasCodec,
        *,
        batch_events: int = 2048,
        batch_bytes: int = 1048576,
        linger: float = 0.005,
        progress_timeout: float = 300.0,
        report_every: float = 0.1,
    ) -> None: ...
    def connected(self) -> None: ...
    def send_ready(self) -> None: ...
    def drain_events(self) -> list[Any]: ...
    def set_ledger(self, fd: int) -> None: ...
    def take_ledger(self) -> tuple[int, int]: ...
    @property
    def errno(self) -> int: ...
    @property
    def failure(self) -> OSError | None: ...
    @property
    def fatal(self) -> Any: ...
