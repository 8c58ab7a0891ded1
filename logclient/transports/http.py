"""What transports need of HTTP: one request with the head of its answer, and tunnels through a proxy."""

from __future__ import annotations

import re
import socket
from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from ipaddress import ip_network
from typing import NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from logclient.config.hosts import host_port, ip, is_local
from logclient.config.secrets import Secret
from logclient.delivery.attempt import Attempt
from logclient.errors import ConfigError, CredentialError
from logclient.standard import os
from logclient.transports.addresses import Connect, MakeLink, connect_any
from logclient.transports.tcp_link import Endpoint, TcpLink, encode_hostname

L = TypeVar("L")

MAX_HEAD = 65536
"""Bytes of an answer's head, at most."""

REFUSALS = {401, 403, 407}
"""Statuses that mean refused credentials: asking again soon makes no sense."""

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: ([^\r\n]*))?\r\n")


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    words: str
    """The status as it may be shown: ``HTTP 404 Not Found``."""
    head: bytes
    """The bytes of the head, with the empty line at its end."""
    rest: bytes
    """The bytes that arrived after the head."""


def printable(text: str, length: int) -> str:
    """Return text of a peer for use in a message: `length` characters at most, unprintable ones replaced."""
    return "".join(c if c.isprintable() else "?" for c in text[:length])


def ask(link: TcpLink, request: bytes, server: str, attempt: Attempt, deadline: float) -> Answer:
    """Send a request without a body and read the head of the answer, by the monotonic second `deadline`."""
    hint = "" if link.tls else ": is the port right, and does it require TLS?"
    ended = ConnectionError(f"{server} ended the connection without an answer to the HTTP request{hint}")
    data = b""
    try:
        sent = link.send([request])
        while (end := data.find(b"\r\n\r\n") + 4) < 4:
            if not data.startswith(b"HTTP/1."[: len(data)]):
                words = "does not speak HTTP: is the port right, and does it require TLS?"
                raise ConnectionError(f"{server} {words}")
            if len(data) > MAX_HEAD:
                raise ConnectionError(f"{server} answers with headers of more than {MAX_HEAD} bytes")
            fds = [link.fileno()]
            late = f"{server} did not answer the HTTP request in time"
            attempt.wait(fds, [] if sent else fds, deadline, late)
            sent = sent or link.flush()
            more = link.receive()
            if more == b"":
                raise ended
            data += more or b""
    except (ConnectionResetError, BrokenPipeError):
        if link.tls:
            raise  # its message is better
        raise ended from None
    found = _STATUS.match(data)
    if not found:
        raise ConnectionError(f"{server} answers with no HTTP status")
    reason = printable((found[2] or b"").decode("latin-1"), 60).strip()
    words = f"HTTP {found[1].decode()} {reason}".rstrip()
    return Answer(int(found[1]), words, data[:end], data[end:])


def _is_without(endpoint: Endpoint, without: str) -> bool:
    """Return whether an endpoint is reached without a proxy: this machine, and what ``no_proxy`` lists.

    Its entries are names, which stand for those below them, addresses and networks, each with a port or
    without; or * for all hosts.
    """
    host, port = endpoint[0].rstrip(".").lower(), str(endpoint[1])
    if is_local(host):
        return True
    address = ip(host)
    for text in without.lower().replace(",", " ").split():
        entry, colon, number = text.rpartition(":")
        if not colon or (":" in entry and not entry.endswith("]")):  # no port
            entry, number = text, port
        entry = entry.strip("[]").removeprefix("*").strip(".")
        if number != port:
            continue
        if text == "*" or (entry and (host == entry or host.endswith("." + entry))):
            return True
        with suppress(ValueError):
            if address is not None and address in ip_network(entry, strict=False):
                return True
    return False


class Proxy:
    """An HTTP proxy that makes tunnels (RFC 9110, section 9.3.6).

    An environment variable names it. `excludes` returns whether an endpoint is reached without it.
    """

    def __init__(self, variable: str, url: str, excludes: Callable[[Endpoint], bool]) -> None:
        # Show nothing of it in errors: it may contain a password.
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not all(c.isalnum() or c in "._-:" for c in host):
            raise ConfigError(f"proxy: {variable} must be http://host:port; proxy=none goes without")
        if parts.scheme != "http":
            raise ConfigError(
                f"proxy: {variable} names a proxy of a kind that is not supported, only http:// is; "
                "proxy=none goes without"
            )
        self.endpoint: Endpoint = (host, port or 80)
        self.peer = f"the proxy {host_port(*self.endpoint)}"
        self._variable = variable
        self.excludes = excludes
        self._authorization: Secret | None = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._authorization = Secret(b64encode(pair.encode("utf-8", "surrogateescape")).decode())

    @classmethod
    def from_environment(cls, tls: bool, endpoints: Iterable[Endpoint]) -> Proxy | None:
        """Read the proxy from the environment; None: no endpoint is reached through one.

        The variables are ``https_proxy`` (with TLS) or ``http_proxy``, else ``all_proxy``, in lower or upper
        case, and ``no_proxy``.

        Raises:
            ConfigError: this kind of proxy is not supported.
        """
        if not any(name.lower().endswith("_proxy") for name in os.environ):
            return None  # the usual case, without the import
        from urllib import request

        # It ignores HTTP_PROXY where that may be a header of a request to a CGI script.
        proxies = request.getproxies_environment()
        for kind in ("https" if tls else "http", "all"):
            if url := proxies.get(kind):
                break
        else:
            return None
        excludes = partial(_is_without, without=proxies.get("no", ""))
        return None if all(map(excludes, endpoints)) else cls(f"{kind}_proxy", url, excludes)

    def connect_any(self, endpoint: Endpoint, timeout: float, attempt: Attempt, link: MakeLink[L]) -> L:
        """Connect through a tunnel as ``addresses.connect_any``; the proxy looks up the name."""
        host, port = endpoint
        name = encode_hostname(host)
        target = (b"[%b]:%d" if b":" in name else b"%b:%d") % (name, port)

        def through(connect: Connect, _: bytes, deadline: float) -> L:
            return link(partial(self._open_tunnel, connect, target, attempt, deadline), name, deadline)

        try:
            return connect_any(self.endpoint, timeout, attempt, through)
        except socket.gaierror as error:
            raise ConnectionError(f"{self.peer}: {error.strerror}") from None

    def _open_tunnel(
        self, connect: Connect, target: bytes, attempt: Attempt, deadline: float
    ) -> socket.socket:
        """Return a connected socket whose other end is `target`."""
        request = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n" % (target, target)
        if self._authorization is not None:
            request += f"Proxy-Authorization: Basic {self._authorization.reveal()}\r\n".encode()
        try:
            tunnel = TcpLink(connect(), self.peer)
        except InterruptedError:
            raise
        except OSError as error:
            raise ConnectionError(f"{self.peer}: {error.strerror or error}") from None
        try:
            self._check(ask(tunnel, request + b"\r\n", self.peer, attempt, deadline))
        except BaseException:
            tunnel.close()
            raise
        return tunnel.detach()

    def _check(self, answer: Answer) -> None:
        if answer.status == 407:
            words = (
                f"{self.peer} wants a name and a password: {self._variable}=http://name:password@host:port"
                if self._authorization is None
                else f"{self.peer} does not accept the name and password of {self._variable}"
            )
            raise CredentialError(f"{words} ({answer.words})")
        if answer.status in REFUSALS:
            raise CredentialError(f"{self.peer} refuses the tunnel: {answer.words}")
        if not 200 <= answer.status < 300:
            raise ConnectionError(f"{self.peer} cannot make a tunnel: {answer.words}")
        if answer.rest:
            raise ConnectionError(f"{self.peer} sent more than its answer")
