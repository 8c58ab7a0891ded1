"""TCP connections to servers, direct or through a proxy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from logclient.config.hosts import host_port
from logclient.delivery.attempt import Attempt
from logclient.delivery.contract import Transport
from logclient.errors import ConfigError
from logclient.transports.addresses import Connect, L, MakeLink, connect_any
from logclient.transports.tcp_link import Endpoint, TcpLink

if TYPE_CHECKING:
    from logclient.transports.http import Proxy


class Tcp(Transport):
    """Connects over TCP."""

    acknowledged = True

    def __init__(self, config: Any) -> None:
        self.connect_timeout = config.connect_timeout  # seconds for one address
        self._find_proxy: Callable[[], Proxy | None] | None = None
        self._proxy: Proxy | None = None
        if config.proxy == "env":
            from logclient.transports.http import Proxy

            find = partial(Proxy.from_environment, config.tls, config.endpoints)
            self._proxy = find()
            self._find_proxy = find if self._proxy is not None else None

    def connect(self, endpoint: Endpoint, attempt: Attempt) -> TcpLink:
        def link(connect: Connect, name: bytes, deadline: float) -> TcpLink:
            return self.make_link(connect, name, host_port(*endpoint), attempt, deadline)

        return self.connect_any(endpoint, attempt, link)

    def connect_any(self, endpoint: Endpoint, attempt: Attempt, link: MakeLink[L]) -> L:
        """Connect as ``addresses.connect_any``, or through a proxy, found anew if there was one at first."""
        if self._find_proxy is not None:
            try:
                self._proxy = self._find_proxy()
            except ConfigError as error:
                attempt.warn(f"{error}; the last proxy is used")
        if self._proxy is not None and self.proxy_of(endpoint):
            return self._proxy.connect_any(endpoint, self.connect_timeout, attempt, link)
        return connect_any(endpoint, self.connect_timeout, attempt, link)

    def proxy_of(self, endpoint: Endpoint) -> str:
        proxy = self._proxy
        return "" if proxy is None or proxy.excludes(endpoint) else proxy.peer

    def make_link(
        self, connect: Connect, name: bytes, peer: str, attempt: Attempt, deadline: float
    ) -> TcpLink:
        """Make a link to `peer` over a new connection, by the monotonic second `deadline`."""
        link = TcpLink(connect(), peer)
        link.drains_on_close = not self.acknowledged
        return link

    def load_pump(self) -> Callable[..., Any]:
        from logclient._ext.pump import TcpPump

        return TcpPump


class OneWay(Tcp):
    """Connects over TCP to a peer without acknowledgements."""

    acknowledged = False
