"""``_ext.websocket.ClientFrames`` once more, plainly; the frames to send are a list, without masks."""

from __future__ import annotations

import zlib

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
FIN, PACKED = 128, 64
TAIL = b"\x00\x00\xff\xff"
WINDOW = 15  # bits, whatever the server has agreed to


class ViolationError(Exception):
    """The end of a connection: how it is called, the close code, and its reason."""


class ClientFrames:
    """The state of one connection.

    Attributes:
        sent: frames, each as its first byte and the payload.
    """

    def __init__(self, max_message: int, *, deflate: tuple[bool, int, bool, int] | None = None) -> None:
        self.max_message = max_message
        self.deflate = deflate
        self.sent: list[tuple[int, bytes]] = []
        self.over, self.code, self.reason = "", 0, b""
        self._closed = False
        self._pong: bytes | None = None
        self._data = b""
        self._left: int | None = None  # of the payload of the frame that has begun
        self._first = 0
        self._payload = b""  # of a control frame
        self._message: bytes | None = None
        self._packed = False
        if deflate is not None:
            self._keeps_sent, self._window_sent, self._keeps_received, _ = deflate
            self._packer = zlib.compressobj(wbits=-self._window_sent, memLevel=5)
            self._unpacker = zlib.decompressobj(wbits=-WINDOW)

    # -- to send

    def send(self, data: bytes) -> None:
        if self.over or self._closed:
            return
        if self.deflate is None:
            self.sent.append((FIN | TEXT, data))
            return
        if not self._keeps_sent:
            self._packer = zlib.compressobj(wbits=-self._window_sent, memLevel=5)
        packed = b"\x00" + TAIL
        if data:
            packed = self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        self.sent.append((FIN | PACKED | TEXT, packed.removesuffix(TAIL)))

    def close(self, code: int = 1000, reason: bytes = b"") -> None:
        self.answer()
        if not self._closed:
            self._closed = True
            self.sent.append((FIN | CLOSE, b"" if code == 1005 else code.to_bytes(2, "big") + reason))

    def answer(self) -> None:
        """Answer the last ping."""
        if self._pong is not None and not self._closed:
            self.sent.append((FIN | PONG, self._pong))
        self._pong = None

    # -- received

    def receive(self, data: bytes) -> list[bytes]:
        """Take bytes; return the messages."""
        self._data += data
        found: list[bytes] = []
        try:
            while not self.over and self._step(found):
                pass
        except ViolationError as error:
            self.over, self.code, self.reason = error.args
            self.close(self.code, self.reason)
        return found

    def _step(self, found: list[bytes]) -> bool:
        if self._left is None and not self._begin():
            return False
        assert self._left is not None
        some, self._data = self._data[: self._left], self._data[self._left :]
        self._left -= len(some)
        control = self._first & 8
        if control:
            self._payload += some
        else:
            self._add(some)
        if self._left:
            return False
        self._left = None
        if control:
            self._control(self._first & 15)
        elif self._first & FIN:
            if self._packed:
                self._add(TAIL)
            found.append(self._message or b" ")
            self._message = None
        return True

    def _begin(self) -> bool:
        """Read a head."""
        if len(self._data) < 2:
            return False
        first, size = self._data[:2]
        opcode = first & 15
        if opcode not in (0, TEXT, BINARY, CLOSE, PING, PONG):
            raise broken(b"invalid opcode")
        if size & 128:
            raise broken(b"incorrect masking")
        head = 2 + {126: 2, 127: 8}.get(size, 0)
        if len(self._data) < head:
            return False
        size = int.from_bytes(self._data[2:head], "big") if head > 2 else size
        reserved = bool(first & 112)
        if opcode >= CLOSE:
            if reserved:
                raise broken(b"reserved bits must be 0")
            if size > 125:
                raise broken(b"control frame too long")
            if not first & FIN:
                raise broken(b"fragmented control frame")
        elif size > self._room(first):
            raise ViolationError("too big", 1009, b"")
        elif opcode == 0:
            if self._message is not None and self._packed and first & PACKED:
                raise broken(b"RSV1 bit set in continuation frame")
            if reserved:
                raise broken(b"reserved bits must be 0")
            if self._message is None:
                raise broken(b"unexpected continuation frame")
        else:
            if first & (48 if self.deflate else 112):
                raise broken(b"reserved bits must be 0")
            if self._message is not None:
                raise broken(b"expected a continuation frame")
            self._message = b""
            self._packed = bool(first & PACKED)
            if self._packed and not self._keeps_received:
                self._unpacker = zlib.decompressobj(wbits=-WINDOW)
        self._first, self._left, self._payload = first, size, b""
        self._data = self._data[head:]
        return True

    def _room(self, first: int) -> int:
        """Return the bytes that a frame of a message may have."""
        room = self.max_message - len(self._message or b"")
        packed = self._packed and self._message is not None if first & 15 == 0 else first & PACKED
        return room + room // 256 + 64 if self.deflate and packed else room

    def _add(self, data: bytes) -> None:
        assert self._message is not None
        if not self._packed:
            self._message += data
            return
        while data:
            room = self.max_message - len(self._message) + 1
            try:
                self._message += self._unpacker.decompress(data, room)
            except zlib.error:
                raise broken(b"decompression failed") from None
            if len(self._message) > self.max_message:
                raise ViolationError("too big", 1009, b"")
            data = self._unpacker.unconsumed_tail
            if self._unpacker.eof:
                data = self._unpacker.unused_data
                self._unpacker = zlib.decompressobj(wbits=-WINDOW)

    def _control(self, opcode: int) -> None:
        data = self._payload
        if opcode == PING and not self._closed:
            self._pong = data
        if opcode != CLOSE:
            return
        if len(data) == 1:
            raise broken(b"close frame too short")
        code = int.from_bytes(data[:2], "big") if data else 1005
        try:
            data[2:].decode()
        except UnicodeDecodeError as error:
            words = f"{error.reason} at position {error.start}"
            raise ViolationError("broken", 1007, words.encode()) from None
        if data and not (1000 <= code < 1004 or 1007 <= code < 1015 or 3000 <= code < 5000):
            raise broken(b"invalid status code")
        if self._message is not None:
            raise broken(b"incomplete fragmented message")
        raise ViolationError("closed", code, data[2:])


def broken(words: bytes) -> ViolationError:
    return ViolationError("broken", 1002, words)


def frames_of(wire: bytes) -> list[tuple[int, bytes, bytes]]:
    """Take a client's frames apart: the first byte, the payload, and the mask of each."""
    found = []
    while wire:
        first, size, at = wire[0], wire[1] & 127, 2
        assert wire[1] & 128, "no mask"
        if size > 125:
            at = 4 if size == 126 else 10
            assert int.from_bytes(wire[2:at], "big") >= (126 if at == 4 else 65536), "a longer form"
            size = int.from_bytes(wire[2:at], "big")
        key, data = wire[at : at + 4], wire[at + 4 : at + 4 + size]
        assert len(data) == size, "cut short"
        whole = (key * (size // 4 + 1))[:size]
        plain = (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")
        found.append((first, plain, key))
        wire = wire[at + 4 + size :]
    return found
