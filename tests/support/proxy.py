"""An HTTP proxy that makes tunnels, and the variables that name one."""

from __future__ import annotations

import base64
import os
import select
import socket
from collections.abc import Callable

import pytest

from tests.support.patience import PATIENCE
from tests.support.tls import HOST

NAME, PASSWORD = "name@here", "pass:w/rd"
USERINFO = "name%40here:pass%3Aw%2Frd@"


def read_request(sock: socket.socket) -> bytes:
    """Read the head of the request."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = sock.recv(4096)
        if not data:
            raise ConnectionError
        head += data
    return head


class ProxyServer:
    """A proxy that records its requests and may ask for a name and password."""

    def __init__(self, answer: bytes = b"", closed: bool = False) -> None:
        self.heads: list[bytes] = []
        self.answer = answer
        self.closed = closed

    def __call__(self, near: socket.socket) -> None:
        head = read_request(near)
        self.heads.append(head)
        pair = base64.b64encode(f"{NAME}:{PASSWORD}".encode())
        if self.closed and b"\r\nProxy-Authorization: Basic %b\r\n" % pair not in head:
            near.sendall(b"HTTP/1.1 407 Who Are You\r\nProxy-Authenticate: Basic\r\n\r\n")
            return
        if self.answer:
            near.sendall(self.answer)
            return
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        assert method == "CONNECT"
        host, _, port = target.rpartition(":")
        # A name that only the proxy knows.
        with socket.create_connection((HOST if host == "only.proxy.example" else host, int(port))) as far:
            near.sendall(b"HTTP/1.0 200 Connection established\r\nVia: x\r\n\r\n")
            ends = {near: far, far: near}
            while ends:
                for one in select.select(list(ends), [], [], PATIENCE)[0]:
                    data = one.recv(65536)
                    if not data:
                        return
                    ends[one].sendall(data)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets these variables and removes all other proxy variables."""

    def put(**variables: str) -> None:
        for name in list(os.environ):
            if name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    put()
    return put
