"""Servers that no client of ours gets on with: closed ports, silent hosts, other protocols.

Each is a context manager that yields its port.
"""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tests import support
from tests.support.dead_servers import BlackHole


@contextmanager
def serve_each(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Run a server that handles each connection with `answer` in its own thread; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as open_ones:
        end = threading.Event()

        def handle(sock: socket.socket) -> None:
            try:
                answer(sock)
            except OSError:  # also because the socket is closed below
                if not end.is_set():
                    raise

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                if end.is_set():
                    sock.close()
                    return
                open_ones.enter_context(sock)
                threading.Thread(target=handle, args=(sock,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        end.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join()


@contextmanager
def dead() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@contextmanager
def black_hole() -> Iterator[int]:
    try:
        hole = BlackHole()
    except RuntimeError as error:
        support.missing(str(error))
    with hole:
        yield int(hole.url.rpartition(":")[2])


def never_reads() -> AbstractContextManager[int]:
    return serve_each(lambda sock: None)


def closes() -> AbstractContextManager[int]:
    return serve_each(lambda sock: (sock.recv(65536), sock.close()))


def banner() -> AbstractContextManager[int]:
    return serve_each(lambda sock: sock.sendall(b"SSH-2.0-\x1b[31mserver\r\n"))


@contextmanager
def web() -> Iterator[int]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def tls() -> Iterator[int]:
    trustme = support.need("trustme")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def shake(sock: socket.socket) -> None:
        try:
            context.wrap_socket(sock, server_side=True).close()
        except OSError:
            pass

    with serve_each(shake) as port:
        yield port
