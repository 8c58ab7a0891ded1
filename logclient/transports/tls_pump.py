"""TLS for the compiled pump: settings and links, over ``_ext/tls.pyx``."""

from __future__ import annotations

import os
import ssl

from logclient._ext.tls import OpenSsl, TlsContext, TlsSocket
from logclient.delivery.contract import FOREVER
from logclient.transports.tls_link import TlsLink

__all__ = ["CompiledTlsLink", "find", "make_context"]


def find() -> OpenSsl:
    """Look up the functions of the OpenSSL that Python uses.

    Raises:
        ImportError: they cannot be used; the message is the reason.
    """
    if os.environ.get("SSLKEYLOGFILE"):
        raise ImportError("only Python's ssl writes SSLKEYLOGFILE")
    return OpenSsl()


def make_context(library: OpenSsl) -> TlsContext:
    """Make a context with the settings of ``ssl.create_default_context``, which trusts nobody yet."""
    # A place with authorities, even an empty one, keeps Python from loading the system's, which takes long.
    like = ssl.create_default_context(capath=os.devnull)
    like.options |= ssl.OP_NO_RENEGOTIATION
    return TlsContext(library, like)


class CompiledTlsLink(TlsLink):
    """A connection over TLS that the compiled pump can drive."""

    tls_socket: TlsSocket

    def __init__(self, sock: TlsSocket, peer: str, certified: bool, verified: bool) -> None:
        super().__init__(sock, peer, certified, verified)
        self.tls_socket = sock
        self._failure: OSError | None = None

    def flush(self) -> bool:
        """Write the rest of earlier ``send`` calls; return whether the kernel has all of it."""
        if not super().flush():
            return False
        try:
            return self.tls_socket.flush_sent()
        except OSError as error:
            raise self._reason_of(error) from None

    def waits_for(self, writable: bool) -> tuple[list[int], list[int], float]:
        """Return what TLS has to wait for: see `Link`."""
        reads, writes = self.tls_socket.waits_for(writable)
        fds = [self.tls_socket.fileno()]
        return fds if reads else [], fds if writes else [], 0.0 if self.tls_socket.has_unread else FOREVER

    def failure(self) -> OSError | None:
        """Return why the pump could not go on; None: it could. To be asked before the link is closed."""
        if self._failure is None:
            error = self.tls_socket.failure()
            if error is not None:
                self._received = self._received or self.tls_socket.received
                is_tls = isinstance(error, ssl.SSLError)
                self._failure = self._explain(error) if is_tls else self._reason_of(error)
        return self._failure
