"""What commands tell while they run: progress lines with the rate and the time left, messages of clients."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections import deque

_LINE_S = 10.0  # seconds between two progress lines where stderr is not a terminal
_RATE_S = 10.0  # seconds over which the rate is measured
_RATE_FROM_S = 1.0  # seconds before the first rate is shown
_LONGEST_LEFT_S = 100 * 3600  # the longest time left that is shown, in seconds


class ProgressLine:
    """One line on stderr: rewritten on a terminal, repeated every ten seconds elsewhere."""

    def __init__(self) -> None:
        self.terminal = sys.stderr is not None and sys.stderr.isatty()
        self.last = time.monotonic()
        self._width = 0

    def show(self, text: str) -> None:
        """Show the text in place of the previous one; an empty one clears the line."""
        if not text:
            self.clear()
        elif self.terminal:
            text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps cannot be rewritten
            print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width = len(text)
        elif time.monotonic() - self.last >= _LINE_S:
            self.last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line, before other output and at the end."""
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0


class RateEstimate:
    """The rate over the last seconds, and the time left."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, float]] = deque()  # time, done, fraction

    def text(self, now: float, done: int, fraction: float | None) -> str:
        """Return the beginning of a progress line, as far as it is known: ``25%, 2,500/s, 0:06 left, ``.

        The fraction is the share of the work that is done, from 0 to 1; None: unknown.
        """
        self._samples.append((now, done, fraction or 0.0))
        while now - self._samples[0][0] > _RATE_S and len(self._samples) > 2:
            self._samples.popleft()
        since, done_then, fraction_then = self._samples[0]
        text = "" if fraction is None else f"{int(fraction * 100)}%, "
        if now - since >= _RATE_FROM_S:
            text += f"{(done - done_then) / (now - since):,.0f}/s, "
            if fraction is not None and fraction > fraction_then:
                left = (1.0 - fraction) * (now - since) / (fraction - fraction_then)
                text += f"{_clock(left)} left, " if left < _LONGEST_LEFT_S else ""
        return text


class ClientMessages(logging.Handler):
    """A log handler that keeps the messages of clients, without the `prefix`, for a command to report."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self.prefix = prefix
        self.kept: list[str] = []

    def __enter__(self) -> ClientMessages:
        logging.getLogger("logclient").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("logclient").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record.getMessage().removeprefix(self.prefix))

    def print(self, skip: str = "") -> None:
        """Print the kept messages, but for those that contain `skip`, and clear them."""
        for text in self.kept:
            if not skip or skip not in text:
                print(f"logclient: {text}", file=sys.stderr, flush=True)
        self.kept.clear()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
