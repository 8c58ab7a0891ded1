"""Transports with options by name, and the defaults of a client's `Config` for the rest."""

from __future__ import annotations

from typing import Any

from logclient.config.parsing import parse
from tests.support.patience import PATIENCE


def tcp(connect_timeout: float, kind: Any = None) -> Any:
    from logclient.transports.tcp import Tcp

    return (kind or Tcp)(parse("lumberjack://127.0.0.1", connect_timeout=connect_timeout))


def tls(connect_timeout: float, **options: Any) -> Any:
    from logclient.transports.tls import Tls

    return Tls(parse("lumberjack+tls://127.0.0.1", connect_timeout=connect_timeout, **options))


def udp() -> Any:
    from logclient.transports.udp import Udp

    return Udp(parse("plog://127.0.0.1"))


def websocket(carrier: Any = None, kind: Any = None, **options: Any) -> Any:
    """A `WebSocket`, or one of a subclass, over connections of this transport."""
    from logclient.transports.websocket import WebSocket

    options |= {"proxy": "none", "deflate": "on" if options.get("deflate") else "off"}
    made = (kind or WebSocket)(parse("logux://127.0.0.1").replace(**options))
    made._carrier = carrier or tcp(PATIENCE)
    return made


def zmq(connect_timeout: float, kind: str = "DEALER", curve: Any = None, **options: Any) -> Any:
    from logclient.transports.zmq import Zmq

    scheme = "logjam+push" if kind == "PUSH" else "logjam"
    made = Zmq(parse(f"{scheme}://127.0.0.1/a-b", connect_timeout=connect_timeout, **options))
    made.curve = curve
    return made
