"""A plain UDP client of a plog server, and the events it sends."""

from __future__ import annotations

import socket

from logclient.testing.plog import Collector
from tests.support.patience import PATIENCE

PRODUCER = "0123456789abcdef0123"


def name(sequence: int, producer: str = PRODUCER) -> str:
    """Return the id of an event."""
    return f"{producer}{sequence:012x}"


def event(sequence: int, size: int = 0) -> bytes:
    """Make an event document with its id."""
    return b'{"type":"t","data":{"line":"%s"},"uuid":"%s"}' % (b"x" * (size or 5), name(sequence).encode())


class Client:
    """A UDP socket with a port of its own: the collector counts messages by port."""

    def __init__(self, collector: Collector) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.settimeout(PATIENCE)
        self.sock.connect((collector.host, collector.port))

    def send(self, *datagrams: bytes) -> None:
        for one in datagrams:
            self.sock.send(one)

    def ask(self, question: bytes) -> bytes:
        self.sock.send(question)
        return self.sock.recv(65536)

    def settle(self) -> None:
        """Wait until the collector has judged everything sent before."""
        assert self.ask(b"\0\0PINGsettled") == b"PONGsettled"

    def close(self) -> None:
        self.sock.close()
