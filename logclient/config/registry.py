"""The core, transport and client of each URL scheme: names only, imported when used.

Protocols and transports never import each other; they are paired here. A new protocol is a row in `SCHEMES`
for each of its schemes. Another package names its rows as entry points of a group::

    [project.entry-points."logclient.schemes"]
    toy = "toy_protocol:SCHEME"
"""

from __future__ import annotations

from typing import Any, NamedTuple

from logclient.errors import ConfigError


class Scheme(NamedTuple):
    """One URL scheme. ``config``, ``core``, ``transport`` and ``client`` are written ``module:attribute``."""

    protocol: str  # its name, which is also that of its folder
    config: str  # the class that declares its options
    core: str
    transport: str
    client: str  # the class of its clients
    port: int  # the default
    tls: bool = False
    path: bool = False  # whether the URL may have a path
    hosts_in: tuple[str, ...] = ()  # environment variables that name hosts where the URL has none
    port_in: str = ""  # and the variable with the port of those without one


_LUMBERJACK = Scheme(
    protocol="lumberjack",
    config="logclient.lumberjack.config:LumberjackConfig",
    core="logclient.lumberjack.core:Lumberjack",
    transport="logclient.transports.tcp:Tcp",
    client="logclient.client:Client",
    port=5044,
)
_LOGJAM = Scheme(
    protocol="logjam",
    config="logclient.logjam.config:LogjamConfig",
    core="logclient.logjam.core:Logjam",
    transport="logclient.transports.zmq:Zmq",
    client="logclient.logjam.client:Client",
    port=9605,
    path=True,
)
_PLOG = Scheme(
    protocol="plog",
    config="logclient.plog.config:PlogConfig",
    core="logclient.plog.core:Plog",
    transport="logclient.transports.udp:Udp",
    client="logclient.plog.client:Client",
    port=23456,
)
_LOGUX = Scheme(
    protocol="logux",
    config="logclient.logux.config:LoguxConfig",
    core="logclient.logux.core:Logux",
    transport="logclient.transports.websocket:WebSocket",
    client="logclient.logux.client:Client",
    port=31337,
    path=True,
)

SCHEMES: dict[str, Scheme] = {
    "lumberjack": _LUMBERJACK,
    "lumberjack+tls": _LUMBERJACK._replace(transport="logclient.transports.tls:Tls", tls=True),
    "logjam": _LOGJAM._replace(
        port=9604,
        hosts_in=("LOGJAM_AGENT_ZMQ_ENDPOINTS", "LOGJAM_BROKER"),
        port_in="LOGJAM_AGENT_ZMQ_PORT",
    ),
    "logjam+push": _LOGJAM,
    "plog": _PLOG,
    "plog+tcp": _PLOG._replace(
        core="logclient.plog.core:Lines",
        transport="logclient.transports.tcp:OneWay",
    ),
    "logux": _LOGUX,
    "logux+tls": _LOGUX._replace(tls=True),
}


OFF = "none"
"""The scheme of clients that ship nothing. It is no protocol, and has all options."""

_NONE = Scheme(OFF, "logclient.config.off:OffConfig", "", "", "logclient.off:Client", port=0, path=True)


def lookup(scheme: str) -> Scheme:
    """Return the row of a scheme; ConfigError: there is none."""
    row = _NONE if scheme == OFF else SCHEMES.get(scheme)
    if row is not None:
        return row
    from importlib.metadata import entry_points

    others = entry_points(group="logclient.schemes")
    for other in others.select(name=scheme):
        found: Scheme = other.load()
        return found
    known = [*SCHEMES, *sorted(others.names - SCHEMES.keys())]
    raise ConfigError(f"scheme: {scheme[:32]!r} is none of {', '.join(known)}")


def configs() -> list[str]:
    """Return the classes of options of our protocols, in the order of the documentation."""
    return list(dict.fromkeys(row.config for row in SCHEMES.values()))


def load(name: str) -> Any:
    """Import ``module:attribute``."""
    from importlib import import_module

    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
