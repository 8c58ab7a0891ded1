"""Certificates for tests of TLS, and servers that show them."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logclient.transports import tls
from logclient.transports.tls import server_context
from tests.support import need
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from logclient.client import Client
    from logclient.testing.lumberjack import Collector

trustme = need("trustme")

HOST = "127.0.0.1"
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """A certificate authority, and what it has signed, as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *identities: str, expired: bool = False) -> str:
        """A file with a certificate and its key; one that exists is replaced."""
        times = {}
        if expired:
            times = {"not_before": LONG_AGO, "not_after": LONG_AGO + datetime.timedelta(days=1)}
        path = self.folder / f"{name}.pem"
        signed = self._authority.issue_cert(*(identities or (HOST,)), **times)
        new = path.with_suffix(".new")
        signed.private_key_and_cert_chain_pem.write_to_path(str(new))
        new.chmod(0o600)
        new.replace(path)
        return str(path)

    def alone(self) -> str:
        """The certificate of the authority itself, with its key."""
        path = self.folder / "alone.pem"
        key = self._authority.private_key_pem.bytes()
        path.write_bytes(key + self._authority.cert_pem.bytes())
        return str(path)


def use_pump(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients use the compiled pump for TLS, or the one in Python; skip where there is none."""
    try:
        tls.find_openssl()
    except ImportError as error:
        if kind == "compiled":
            pytest.skip(f"no compiled pump for TLS: {error}")
        return

    def find() -> None:
        raise ImportError("a test needs the pump in Python")

    if kind == "python":
        monkeypatch.setattr(tls, "find_openssl", find)


def context(version: str, cert: str, ca: str | None = None) -> ssl.SSLContext:
    """A server's, for one version of TLS."""
    made = server_context(cert, ca=ca)
    made.minimum_version = made.maximum_version = VERSIONS[version]
    return made


def replace_certificate(tls: ssl.SSLContext, cert: str, ca: str | None = None) -> None:
    """Show another certificate from the next handshake on.

    ``load_cert_chain`` on a context in use is no way to do that: it sets the certificate before the key, and
    a handshake between the two has neither and fails with a reason of its own.
    """
    other = server_context(cert, ca=ca)

    def replace(sock: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        sock.context = other

    tls.sni_callback = replace  # called whether the client names a server or not


def assert_arrived(collector: Collector, client: Client, n: int) -> None:
    """All of the client's events are there, each of them once and in order, and acknowledged."""
    assert client.flush(PATIENCE) == 0, client.stats()
    stats = client.stats()
    assert (stats.sent, stats.acked) == (n, n)
    assert [event["n"] for event in collector.events(n)] == list(range(n))


@contextmanager
def serving(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that does this with every connection; its port. Errors of the network end a connection."""
    with socket.create_server((HOST, 0)) as listener:
        over = threading.Event()
        threads = []

        def one(sock: socket.socket) -> None:
            with sock:
                try:
                    sock.settimeout(PATIENCE)
                    talk(sock)
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                if over.is_set():
                    sock.close()
                    return
                threads.append(threading.Thread(target=one, args=(sock,)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            socket.create_connection(listener.getsockname()).close()
            acceptor.join()
            for thread in threads:
                thread.join()
