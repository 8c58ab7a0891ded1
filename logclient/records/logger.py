"""A logger whose calls make no log record where nobody but a ``logclient.Handler`` would read it.

::

    logging.setLoggerClass(logclient.Logger)     # before the loggers of the program are made
"""

from __future__ import annotations

import logging

from logclient._ext.record import compile_methods, obstacle

__all__ = ["Logger"]


class Logger(logging.Logger):
    """A logger of the standard library with compiled methods.

    A call goes the fast way, in which the document is made from the arguments, if every handler on the way up
    is a ``logclient.Handler`` without a filter or formatter, and nothing of ``logging`` is replaced. Every
    other call is made by the standard library, as ever. Both ways make the same document.
    """

    def obstacle(self) -> str:
        """Return what keeps its calls off the fast way; empty: nothing."""
        return obstacle(self)

    @staticmethod
    def why_slow(name: str | None = None) -> str:
        """Return what keeps the calls of a logger off the fast way, in one line; empty: nothing.

        Args:
            name: of the logger; None: the root.
        """
        logger = logging.getLogger(name)
        if not isinstance(logger, Logger):
            return "it was made before logging.setLoggerClass, or is the root"
        return logger.obstacle()


compile_methods(Logger)
