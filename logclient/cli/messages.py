"""The log messages of clients, for commands that report them themselves."""

from __future__ import annotations

import logging
import sys

__all__ = ["ClientMessages"]


class ClientMessages(logging.Handler):
    """Keeps the log messages of clients while it is entered, so that a command can report them itself.

    Args:
        prefix: What messages begin with and is left out.
    """

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
        """Print the kept messages and forget them.

        Args:
            skip: Messages with this text in them are not printed.
        """
        for text in self.kept:
            if not skip or skip not in text:
                print(f"logclient: {text}", file=sys.stderr, flush=True)
        self.kept.clear()
