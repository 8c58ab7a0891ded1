"""Ships logs, and can prove what arrived.

::

    import logclient

    with logclient.connect("lumberjack://127.0.0.1:5044") as client:
        client.send({"message": "hello"})

Importing this package imports nothing else: a public name is loaded when it is first used.
"""

from __future__ import annotations

# Importing `typing` for this constant would slow down every import of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from logclient import logjam as logjam
    from logclient import logux as logux
    from logclient import lumberjack as lumberjack
    from logclient import plog as plog
    from logclient.aio import AsyncClient
    from logclient.client import Client, connect, flush_on_sigterm
    from logclient.config.options import Options
    from logclient.delivery.memory import limit_memory, memory_used
    from logclient.delivery.outcomes import Delivery
    from logclient.delivery.watching import Settlement
    from logclient.errors import (
        ConfigError,
        ConnectFailed,
        EncodeError,
        LedgerError,
        LogclientError,
        MissingExtra,
        ProtocolError,
        QueueFull,
    )
    from logclient.handler import Handler
    from logclient.records.context import bind, bound, unbind
    from logclient.records.logger import Logger
    from logclient.records.uncaught import log_uncaught

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "ConfigError",
    "ConnectFailed",
    "Delivery",
    "EncodeError",
    "Handler",
    "LedgerError",
    "LogclientError",
    "Logger",
    "MissingExtra",
    "Options",
    "ProtocolError",
    "QueueFull",
    "Settlement",
    "bind",
    "bound",
    "connect",
    "flush_on_sigterm",
    "limit_memory",
    "log_uncaught",
    "memory_used",
    "unbind",
]

_WHERE = {
    "AsyncClient": "aio",
    "Client": "client",
    "Delivery": "delivery.outcomes",
    "Handler": "handler",
    "Logger": "records.logger",
    "Options": "config.options",
    "Settlement": "delivery.watching",
    "bind": "records.context",
    "bound": "records.context",
    "connect": "client",
    "flush_on_sigterm": "client",
    "limit_memory": "delivery.memory",
    "log_uncaught": "records.uncaught",
    "memory_used": "delivery.memory",
    "unbind": "records.context",
}


_PROTOCOLS = ("logjam", "logux", "lumberjack", "plog")


def __getattr__(name: str) -> object:
    # Only public names import something.
    if name not in __all__ and name not in _PROTOCOLS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name in _PROTOCOLS:
        return import_module(f"{__name__}.{name}")  # which also sets it here
    value = getattr(import_module(f"{__name__}.{_WHERE.get(name, 'errors')}"), name)
    globals()[name] = value  # later look-ups do not call this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PROTOCOLS})
