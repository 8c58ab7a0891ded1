"""SIGINT and SIGTERM for commands that must end in order."""

from __future__ import annotations

import signal
import threading
from typing import Any

__all__ = ["TerminationSignals"]


class TerminationSignals:
    """Notes SIGINT and SIGTERM while it is entered, so that they interrupt nothing halfway.

    A signal after the first raises KeyboardInterrupt while `raises` is set. An ignored signal stays ignored.
    """

    def __init__(self) -> None:
        self.first = 0
        """The number of the first signal; 0: there was none."""
        self.raises = False
        self._before: dict[int, Any] = {}

    @property
    def word(self) -> str:
        """What the first signal did to the command; empty: there was none."""
        return {0: "", int(signal.SIGINT): "interrupted"}.get(self.first, "terminated")

    def _note(self, number: int, frame: object) -> None:
        if self.first and self.raises:
            raise KeyboardInterrupt
        self.first = number

    def __enter__(self) -> TerminationSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
