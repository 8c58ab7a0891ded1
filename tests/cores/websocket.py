"""A server for the cores of messages that speaks WebSocket, and the transports to it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

from websockets.protocol import State
from websockets.server import ServerProtocol

from logclient.transports.websocket import WebSocket
from tests.cores.server import Peer, SocketServer
from tests.support.patience import PATIENCE
from tests.support.proxy import read_request
from tests.support.pumps import refuse_pump
from tests.support.websocket import BINARY, FAR, TEXT, accept_answer, server_frame

DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate"


class Interpreted(WebSocket):
    """WebSocket without its compiled pump."""

    load_pump = refuse_pump("a test needs the link in Python")


class WebSocketServer(SocketServer):
    """A thread for each connection, as below.

    Args:
        headers: more lines of the answer that opens the WebSocket.
        tls: the context of the server; None: without TLS.

    Attributes:
        dress: makes the frames of an answer.
        greeting: bytes that come with the answer to the opening handshake.
        controls: the control frames that were received, each as its opcode and payload.
    """

    def __init__(self, *headers: str, tls: ssl.SSLContext | None = None) -> None:
        self.headers = headers
        self.tls = tls
        self.dress: Callable[[bytes], bytes] = lambda data: server_frame(BINARY, data)
        self.greeting = b""
        self.controls: list[tuple[int, bytes]] = []
        self._ends: dict[socket.socket, socket.socket] = {}
        super().__init__("by_message")

    def _sayer(self, sock: socket.socket) -> Callable[[bytes], None]:
        def say(data: bytes) -> None:
            self.say_raw(sock, self.dress(data))

        return say

    def say_raw(self, sock: socket.socket, data: bytes) -> None:
        try:
            self._ends.get(sock, sock).sendall(data)
        except (OSError, ValueError):
            pass

    def _serve(self, sock: socket.socket, peer: Peer) -> None:
        peer.raw = lambda data: self.say_raw(sock, data)
        try:
            sock.settimeout(PATIENCE)
            far = sock if self.tls is None else self.tls.wrap_socket(sock, server_side=True)
        except OSError:
            sock.close()
            return
        with far:
            self._ends[sock] = far
            try:
                far.sendall(accept_answer(read_request(far), *self.headers) + self.greeting)
                self._read(far, peer)
            except OSError:
                pass

    def _read(self, far: socket.socket, peer: Peer) -> None:
        reader = ServerProtocol(state=State.OPEN, max_size=None, logger=FAR)
        if self.headers:
            from websockets.extensions.permessage_deflate import PerMessageDeflate

            reader.extensions = [PerMessageDeflate(False, False, 15, 15, {})]
        while True:
            with self.changed:
                self.changed.wait_for(lambda: not self.stuck, PATIENCE)
            data = far.recv(65536)
            if not data:
                return
            reader.receive_data(data)
            for event in reader.events_received():
                opcode, payload = event.opcode, bytes(event.data)  # type: ignore[union-attr]
                if opcode == TEXT:
                    if peer.open:
                        peer.feed(payload)
                else:
                    with self.changed:
                        self.controls.append((opcode, payload))
                        self.changed.notify_all()
            assert reader.parser_exc is None, reader.parser_exc
            if answer := b"".join(reader.data_to_send()):  # to a close frame
                far.sendall(answer)
