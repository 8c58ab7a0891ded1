"""The log messages of clients, for commands that report them themselves."""

from __future__ import annotations

import logging
import sys

__all__ = ["ClientMessages"]


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
        """Keep the message."""
        self.kept.append(record.getMessage().removeprefix(self.prefix))

    def print(self, skip: str = "") -> None:
        """Print the kept messages, but for those that contain `skip`, and clear them."""
        for text in self.kept:
            if not skip or skip not in text:
                print(f"logclient: {text}", file=sys.stderr, flush=True)
        self.kept.clear()
