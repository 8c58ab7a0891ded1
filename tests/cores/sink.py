"""A tiny Lumberjack server for processes under test: acknowledges everything, forgets nothing."""

from __future__ import annotations

import json
import re
import socket
import threading
from types import TracebackType

from logclient.lumberjack.reader import Reader, encode_ack
from tests.support.patience import PATIENCE

ID = re.compile(rb'"_id":"([0-9a-f]{20})([0-9a-f]{12})"')


class Arrived:
    """What a server has got: {producer: [(seq, body), ...]}."""

    def __init__(self) -> None:
        self.got: dict[str, list[tuple[int, bytes]]] = {}

    @staticmethod
    def message(body: bytes) -> str:
        return str(json.loads(body)["message"])

    def messages(self, producer: str) -> list[str]:
        return [self.message(body) for _, body in self.got[producer]]

    def exact(self, producer: str, n: int) -> None:
        """All of this producer's events, each once, in order."""
        seqs = [seq for seq, _ in self.got.get(producer, [])]
        if seqs != list(range(1, n + 1)):
            missing = sorted(set(range(1, n + 1)) - set(seqs))
            raise AssertionError(
                f"{len(seqs)} arrived of {n}; missing {missing[:10]} ({len(missing)}), "
                f"more than once {len(seqs) - len(set(seqs))}, in order {seqs == sorted(seqs)}"
            )


class Sink(Arrived):
    """A thread for accepting and one for each connection."""

    def __init__(self, listener: socket.socket | None = None) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self._listener = listener or socket.create_server(("127.0.0.1", 0), backlog=200)
        self.url = f"lumberjack://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Sink:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in [self._listener, *self._sockets]:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(PATIENCE)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        reader = Reader()
        with sock:
            while True:
                try:
                    data = sock.recv(1 << 18)
                except OSError:
                    return
                if not data:
                    return
                for window in reader.receive_data(data):
                    self._take(window.events)
                    try:
                        sock.sendall(encode_ack(window.version, window.ack))
                    except OSError:
                        return
                assert reader.error is None, reader.error

    def _take(self, bodies: list[bytes]) -> None:
        with self.lock:
            for body in bodies:
                found = ID.search(body)
                assert found is not None, body
                producer, seq = found[1].decode(), int(found[2], 16)
                self.got.setdefault(producer, []).append((seq, body))
