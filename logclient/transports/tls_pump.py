"""TLS for the compiled pump: settings, links and the pump itself, over ``_ext/tls.pyx``."""

from __future__ import annotations

import os
import ssl

from logclient._ext.pump.tls import TlsPump as CompiledTlsPump
from logclient._ext.tls import OpenSsl, TlsContext, TlsSocket
from logclient.delivery.attempt import sleep
from logclient.transports.refusals import RefusalPump
from logclient.transports.tls_link import TlsLink

__all__ = ["CompiledTlsLink", "TlsPump", "find", "make_context"]


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

    def wait(self, wake: int, seconds: float, writable: bool) -> None:
        """Sleep until TLS can go on, `wake` is readable, or time is over."""
        if self.tls_socket.has_unread:
            return
        reads, writes = self.tls_socket.waits_for(writable)
        fds = [self.tls_socket.fileno()]
        reading = fds if reads else []
        if wake >= 0:
            reading = [*reading, wake]
        else:
            seconds = min(seconds, 0.005)  # nothing can wake us: look again soon
        sleep(reading, fds if writes else [], seconds)

    def failure(self) -> OSError | None:
        """Return why the pump could not go on; None: it could. To be asked before the link is closed."""
        if self._failure is None:
            error = self.tls_socket.failure()
            if error is not None:
                self._received = self._received or self.tls_socket.received
                is_tls = isinstance(error, ssl.SSLError)
                self._failure = self._explain(error) if is_tls else self._reason_of(error)
        return self._failure


class TlsPump(RefusalPump, CompiledTlsPump):
    """The compiled pump; either side may refuse the other's certificate."""
