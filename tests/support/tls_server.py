"""A server for TLS that can do what Python's ``ssl`` cannot: change keys, and ask for a new handshake."""

from __future__ import annotations

import ctypes
import ssl
from typing import Any

import pytest

from logclient.transports import tls

_FUNCTIONS = {
    "TLS_server_method": (ctypes.c_void_p, []),
    "SSL_CTX_new": (ctypes.c_void_p, [ctypes.c_void_p]),
    "SSL_CTX_free": (None, [ctypes.c_void_p]),
    "SSL_CTX_ctrl": (ctypes.c_long, [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p]),
    "SSL_CTX_use_certificate_chain_file": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
    "SSL_CTX_use_PrivateKey_file": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
    "SSL_CTX_set_num_tickets": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t]),
    "SSL_new": (ctypes.c_void_p, [ctypes.c_void_p]),
    "SSL_free": (None, [ctypes.c_void_p]),
    "SSL_set_fd": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "SSL_set_accept_state": (None, [ctypes.c_void_p]),
    "SSL_do_handshake": (ctypes.c_int, [ctypes.c_void_p]),
    "SSL_read": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
    "SSL_write": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
    "SSL_shutdown": (ctypes.c_int, [ctypes.c_void_p]),
    "SSL_get_error": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "SSL_key_update": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "SSL_renegotiate": (ctypes.c_int, [ctypes.c_void_p]),
    "ERR_clear_error": (None, []),
}
_MIN, _MAX, _MODE = 123, 124, 33
_PARTIAL, _MOVING = 1, 2
_NUMBERS = {"1.2": 0x0303, "1.3": 0x0304}
_AGAIN = (2, 3)  # SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE


def _library() -> Any:
    try:
        tls.find_openssl()
    except ImportError as error:
        pytest.skip(f"no OpenSSL to make a server with: {error}")
    import _ssl

    library = ctypes.CDLL(_ssl.__file__)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Server:
    """The server's side of one connection, over a non-blocking socket.

    Args:
        fd: of the socket, which stays the caller's.
        version: of TLS.
        cert: file with a certificate and its key.
        tickets: for the resumption of sessions, sent after the handshake.
    """

    def __init__(self, fd: int, version: str, cert: str, tickets: int = 2) -> None:
        o = self._o = _library()
        context = o.SSL_CTX_new(o.TLS_server_method())
        for code in (_MIN, _MAX):
            assert o.SSL_CTX_ctrl(context, code, _NUMBERS[version], None) == 1
        o.SSL_CTX_ctrl(context, _MODE, _PARTIAL | _MOVING, None)
        assert o.SSL_CTX_use_certificate_chain_file(context, cert.encode()) == 1
        assert o.SSL_CTX_use_PrivateKey_file(context, cert.encode(), 1) == 1
        assert o.SSL_CTX_set_num_tickets(context, tickets) == 1
        self._ssl = o.SSL_new(context)
        o.SSL_CTX_free(context)
        assert o.SSL_set_fd(self._ssl, fd) == 1
        o.SSL_set_accept_state(self._ssl)

    def close(self) -> None:
        """Free its memory."""
        ssl, self._ssl = self._ssl, None
        if ssl:
            self._o.SSL_free(ssl)

    def _result(self, result: int) -> int:
        """Return a result: 0 where there is none now.

        Raises:
            ssl.SSLError: the connection is over.
        """
        kind = 0 if result > 0 else self._o.SSL_get_error(self._ssl, result)
        self._o.ERR_clear_error()
        if kind and kind not in _AGAIN:
            raise ssl.SSLError(kind, "the connection is over")
        return max(result, 0)

    def shake(self) -> bool:
        """Go on with the handshake; return whether it is done."""
        return self._result(self._o.SSL_do_handshake(self._ssl)) == 1

    def read(self, size: int) -> bytes:
        """Return what was received; nothing: none now."""
        buffer = ctypes.create_string_buffer(size)
        got = self._result(self._o.SSL_read(self._ssl, buffer, size))
        return buffer.raw[:got]

    def write(self, data: bytes) -> int:
        """Return how many bytes were taken."""
        return self._result(self._o.SSL_write(self._ssl, data, len(data)))

    def end(self) -> None:
        """Send close_notify."""
        self._o.SSL_shutdown(self._ssl)
        self._o.ERR_clear_error()

    def update_keys(self, answer: bool) -> bool:
        """Change the keys, and if asked want the client to change its own; return whether that was sent."""
        self._o.SSL_key_update(self._ssl, int(answer))  # refused while one is under way
        self._o.ERR_clear_error()
        return self.shake()

    def ask_handshake(self) -> None:
        """Ask for a new handshake (TLS 1.2)."""
        assert self._o.SSL_renegotiate(self._ssl) == 1
        self.shake()
