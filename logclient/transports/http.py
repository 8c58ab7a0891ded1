"""What WebSocket needs of HTTP: the head of one answer, and the way through a proxy."""

from __future__ import annotations

import os
import re
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from logclient.config import Secret
from logclient.errors import ConfigError, CredentialError
from logclient.transports.attempt import Attempt
from logclient.transports.tcp import Endpoint, TcpLink, reach, spelled

__all__ = ["HEAD", "REFUSALS", "Answer", "Proxy", "ask", "plain"]

L = TypeVar("L")

HEAD = 65536
"""Bytes of an answer's head, at most."""

REFUSALS = {401, 403, 407}
"""What somebody has to mend before it makes sense to ask again."""

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: ([^\r\n]*))?\r\n")


class Answer(NamedTuple):
    """What came in answer to a request."""

    status: int
    words: str
    """The status as it may be shown: ``HTTP 404 Not Found``."""
    head: bytes
    """The empty line at its end included."""
    rest: bytes
    """What has come behind it."""


def plain(text: str, length: int) -> str:
    """What a peer said, as part of a line."""
    return "".join(c if c.isprintable() else "?" for c in text[:length])


def ask(link: TcpLink, request: bytes, whose: str, attempt: Attempt, deadline: float) -> Answer:
    """Send a request that has no body; the head of the answer to it.

    Args:
        link: a new connection.
        request: whole.
        whose: who answers, for the words of errors.
        attempt: asked whether to give up.
        deadline: monotonic seconds.

    Raises:
        OSError: no answer in time, none that is HTTP/1, or one whose head has no end.
    """
    hint = "" if link.tls else ": see whether the port is right, and whether it wants TLS"
    ended = ConnectionError(f"{whose} ended the connection instead of an answer to the HTTP request{hint}")
    try:
        return _answer(link, request, whose, attempt, deadline, ended)
    except (ConnectionResetError, BrokenPipeError):
        if link.tls:
            raise  # its words say more
        raise ended from None


def _answer(
    link: TcpLink, request: bytes, whose: str, attempt: Attempt, deadline: float, ended: ConnectionError
) -> Answer:
    sent = link.send([request])
    come = b""
    while True:
        end = come.find(b"\r\n\r\n") + 4
        if end > 3:
            found = _STATUS.match(come)
            if not found:
                raise ConnectionError(f"{whose} answers with no HTTP status")
            reason = plain((found[2] or b"").decode("latin-1"), 60).strip()
            words = f"HTTP {found[1].decode()} {reason}".rstrip()
            return Answer(int(found[1]), words, come[:end], come[end:])
        if not come.startswith(b"HTTP/1."[: len(come)]):
            raise ConnectionError(
                f"{whose} does not speak HTTP: see whether the port is right, and whether it wants TLS"
            )
        if len(come) > HEAD:
            raise ConnectionError(f"{whose} answers with headers of more than {HEAD} bytes")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{whose} did not answer the HTTP request in time")
        if attempt.stopped():
            raise InterruptedError("stopped while connecting")
        fds = [link.fileno()]
        attempt.rest(fds, [] if sent else fds, left)
        sent = sent or link.flush()
        data = link.receive()
        if data == b"":
            raise ended
        come += data or b""


class Proxy:
    """A HTTP proxy that makes tunnels (RFC 9110, section 9.3.6), and for whom.

    Args:
        variable: of the environment, where it stands.
        url: what stands there.
        around: whether a host, given as ``host:port``, is reached without it.

    Raises:
        ConfigError: it is of a kind that is not supported.
    """

    def __init__(self, variable: str, url: str, around: Callable[[str], bool]) -> None:
        # Never shown, any of it: it may hold a password.
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
        self.peer = f"the proxy {host}:{port or 80}"
        self._variable = variable
        self._around = around
        self._authorization: Secret | None = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._authorization = Secret(b64encode(pair.encode("utf-8", "surrogateescape")).decode())

    @classmethod
    def from_environment(cls, tls: bool, endpoints: Iterable[Endpoint]) -> Proxy | None:
        """The one that the environment names for connections with TLS, or without, if one of `endpoints`
        is reached through it.

        ``https_proxy`` (with TLS) or ``http_proxy``, else ``all_proxy``, in small or capital letters; and
        ``no_proxy``.
        """
        if not any(name.lower().endswith("_proxy") for name in os.environ):
            return None  # as nearly always: spare the import
        from urllib import request

        # What it leaves out: HTTP_PROXY where that may be a header of a request to a CGI script.
        proxies = request.getproxies_environment()
        for kind in ("https" if tls else "http", "all"):
            if url := proxies.get(kind):
                break
        else:
            return None

        def around(host: str) -> bool:
            return bool(request.proxy_bypass_environment(host, proxies))  # type: ignore[attr-defined]

        if all(around(f"{host}:{port}") for host, port in endpoints):
            return None
        return cls(f"{kind}_proxy", url, around)

    def leads_to(self, endpoint: Endpoint) -> bool:
        """Whether the way to `endpoint` is through it."""
        host, port = endpoint
        return not self._around(f"{host}:{port}")

    def reach(
        self,
        endpoint: Endpoint,
        timeout: float,
        attempt: Attempt,
        link: Callable[[Callable[[], socket.socket], bytes, float], L],
    ) -> L:
        """As ``tcp.reach``, by a tunnel; the name of `endpoint` is looked up at its other end."""
        host, port = endpoint
        name = spelled(host)
        target = (b"[%b]:%d" if b":" in name else b"%b:%d") % (name, port)

        def through(dial: Callable[[], socket.socket], _: bytes, deadline: float) -> L:
            return link(partial(self._dig, dial, target, attempt, deadline), name, deadline)

        return reach(self.endpoint, timeout, attempt, through)

    def _dig(
        self, dial: Callable[[], socket.socket], target: bytes, attempt: Attempt, deadline: float
    ) -> socket.socket:
        """A connected socket whose other end is `target`."""
        request = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n" % (target, target)
        if self._authorization is not None:
            request += f"Proxy-Authorization: Basic {self._authorization.reveal()}\r\n".encode()
        try:
            near = TcpLink(dial(), self.peer)
        except InterruptedError:
            raise
        except OSError as error:
            raise ConnectionError(f"{self.peer}: {error.strerror or error}") from None
        try:
            self._judge(ask(near, request + b"\r\n", self.peer, attempt, deadline))
        except BaseException:
            near.close()
            raise
        return near.detach()

    def _judge(self, answer: Answer) -> None:
        if answer.status == 407:
            words = (
                f"{self.peer} wants a name and a password: {self._variable}=http://name:password@host:port"
                if self._authorization is None
                else f"{self.peer} does not accept the name and password of {self._variable}"
            )
            raise CredentialError(f"{words} ({answer.words})")
        if answer.status in REFUSALS:
            raise CredentialError(f"{self.peer} does not let us through: {answer.words}")
        if not 200 <= answer.status < 300:
            raise ConnectionError(f"{self.peer} makes no tunnel: {answer.words}")
        if answer.rest:
            raise ConnectionError(f"{self.peer} says more than was asked")
