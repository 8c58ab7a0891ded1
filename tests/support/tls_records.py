"""The records of a server for TLS, to be cut, reordered and injected on their way."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from logclient.transports.tls import server_context

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
AGAIN = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class RecordServer:
    """A server in memory, connected to a client by a pair of sockets.

    Args:
        version: of TLS.
        cert: file with a certificate and its key.
    """

    def __init__(self, version: str, cert: str) -> None:
        context = server_context(cert)
        context.minimum_version = context.maximum_version = VERSIONS[version]
        self._come, self._go = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._come, self._go, server_side=True)
        self.near, self._far = socket.socketpair()
        for end in (self.near, self._far):
            end.setblocking(False)

    def shake(self) -> bool:
        """Go on with the handshake; return whether it is done."""
        try:
            self._come.write(self._far.recv(1 << 16))
        except BlockingIOError:
            pass
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.send(self._go.read())
        return True

    def seal(self, data: bytes) -> bytes:
        """Return the record with these bytes."""
        self._tls.write(data)
        return self._go.read()

    def seal_end(self) -> bytes:
        """Return the record with close_notify."""
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        return self._go.read()

    def send(self, data: bytes) -> None:
        """Pass bytes to the client."""
        if data:
            self._far.sendall(data)

    def end(self) -> None:
        """End the stream, without close_notify."""
        self._far.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        self._far.close()

    @staticmethod
    def damage(wire: list[bytes], how: str, place: int) -> None:
        """Damage a list of records in place."""
        if not wire:
            return
        n = place % len(wire)
        at = place // len(wire) % max(1, len(wire[n]))
        if how == "cut":
            wire[n] = wire[n][:at]
        elif how == "swap":
            other = (n + 1) % len(wire)
            wire[n], wire[other] = wire[other], wire[n]
        elif how == "drop":
            del wire[n]
        elif how == "twice":
            wire.insert(n, wire[n])
        elif how == "flip" and wire[n]:
            wire[n] = wire[n][:at] + bytes([wire[n][at] ^ 1 << place % 8]) + wire[n][at + 1 :]
        elif how == "inject":
            wire.insert(n, (b"\x17\x03\x03\x00\x14" + bytes(20), b"\x15\x03\x03\x00\x02\x02\x50")[place % 2])


@contextmanager
def connect_client(server: RecordServer) -> Iterator[Any]:
    """Connect a client that accepts any certificate."""
    from logclient._ext.tls import OpenSsl, TlsContext, TlsSocket

    context = TlsContext(OpenSsl(), ssl.create_default_context(capath=os.devnull))
    context.set_verify(False)
    client = TlsSocket(context, server.near, b"a.example")
    try:
        shaken = done = False
        for _ in range(100):
            if not shaken:
                try:
                    client.do_handshake()
                    shaken = True
                except AGAIN:
                    pass
            done = done or server.shake()
            if shaken and done:
                break
        yield client
    finally:
        client.close()
        server.close()


def receive_all(client: Any) -> tuple[bytes, OSError | None]:
    """Return what a client receives to the end, and the error with which it ends; None: an ordinary end."""
    got = b""
    try:
        while data := client.recv(1 << 16):
            got += data
    except OSError as error:
        return got, error
    return got, None
