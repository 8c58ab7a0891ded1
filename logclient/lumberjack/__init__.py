"""Lumberjack: a client that writes and waits, and the protocol without I/O.

::

    with logclient.lumberjack.Writer("lumberjack://127.0.0.1:5044", window=500) as writer:
        acked = writer.write({"message": f"line {n}"} for n in range(10_000))

The reader of collectors is ``logclient.lumberjack.reader.Reader``.
"""

from __future__ import annotations

from logclient.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logclient.lumberjack.client import Writer as Writer

__all__ = ["Writer"]

__getattr__, __dir__ = lazy_names(__name__, {"Writer": "client"})
