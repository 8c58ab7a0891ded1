"""Handling of SIGINT and SIGTERM for commands that must end in order."""

from __future__ import annotations

import signal
import threading
from typing import Any

__all__ = ["TerminationSignals"]


class TerminationSignals:
    """A context manager that records SIGINT and SIGTERM, so that they interrupt no operation.

    After the first signal, a further one raises KeyboardInterrupt while `raises` is set. Ignored signals stay
    ignored.
    """

    def __init__(self) -> None:
        self.first = 0
        """The number of the first signal; 0: no signal came."""
        self.raises = False
        self._before: dict[int, Any] = {}

    @property
    def word(self) -> str:
        """The effect of the first signal, ``interrupted`` or ``terminated``; empty: no signal came."""
        return {0: "", int(signal.SIGINT): "interrupted"}.get(self.first, "terminated")

    def _record(self, number: int, frame: object) -> None:
        if self.first and self.raises:
            raise KeyboardInterrupt
        self.first = number

    def __enter__(self) -> TerminationSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
                    self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
