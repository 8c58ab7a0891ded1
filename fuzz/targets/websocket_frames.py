"""The bytes of a WebSocket server: the compiled split into messages, and the link above it.

An input has a byte of options (the limit of a message, whether fragments are open, the offset of the first
frame), the number of bytes that arrive at a time (0: all), and the bytes. `split` and `seal` are compared
with the reference in plain Python; a link's messages with the protocol of ``websockets`` for the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.uri import WebSocketURI

from fuzz.target import ASAN, TIMEOUT, Plant, check, exact, pieces
from logclient._ext.websocket import seal, split
from logclient.transports.websocket import WebSocketLink
from tests.oracle import websocket as oracle
from tests.support import recordings

EXTENSIONS = ("websocket",)
MAX_LEN = 2048

LIMITS = (1 << 24, 1000, 126, 3)
OPEN, LATER, LONG, OUTSIDE = 4, 8, 16, 32  # bits of the options; 1 and 2: the limit
KEYS = bytes(range(1, 13))

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, bits: int = 0, form: int = 0) -> bytes:
    """Make a frame like a server; `form`: 126 or 127, for a longer length field than necessary."""
    size = len(data)
    head = bytes([bits | opcode | 128 * fin])
    if size < 126 and not form:
        return head + bytes([size]) + data
    if size < 65536 and form != 127:
        return head + b"\x7e" + struct.pack("!H", size) + data
    return head + b"\x7f" + struct.pack("!Q", size) + data


DICTIONARY = [
    *(frame(opcode) for opcode in (0, TEXT, BINARY, CLOSE, PING, PONG)), frame(TEXT, b"[1]"),
    frame(CLOSE, b"\x03\xe8bye"), frame(TEXT, b"x", fin=False), frame(0, b"y"), frame(TEXT, b"[2]", form=126),
    frame(TEXT, b"[3]", form=127), b"\x81\x7e\x00\x7e", b"\x81\x7f" + bytes(8), b"\x81\x7f" + b"\xff" * 8,
    b"\x81\x7f\x80" + bytes(7), b"\x81\x83mask", b"\xc1\x01x", b"\x83\x00", b"\x09\x00", b"\x81\x7e\xff\xff",
    b"\x00\x00\x00\x00\x01\x00\x00\x00",
]  # fmt: skip

ROOTS = ("split", "seal")
MISTAKE = "a caller's mistake, no input's: tests/transports/test_websocket_frames.py"
APART = {"four bytes are needed": MISTAKE}

_LIMIT = "            if length > limit:\n                return at, head\n"
PLANTS = (
    Plant("length", "_ext/websocket.pyx", "if unfinished or left - head < length or",
          "if unfinished or left < length or", (ASAN, "says otherwise")),
    Plant("allocation", "_ext/websocket.pyx", _LIMIT,
          _LIMIT.replace(":\n", " and PyBytes_FromStringAndSize(NULL, <Py_ssize_t>length) is None:\n"),
          ("MemoryError", "SystemError", "out-of-memory", "the reference says")),
    Plant("endless", "_ext/websocket.pyx", "                messages.append(b\" \")\n",
          "                at -= head\n", (TIMEOUT,)),
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Yield recorded bytes of servers, and frames of each kind and form, also forbidden ones, in pieces."""
    messages = [
        step["raw"].encode()
        for case in recordings.cases(recordings.LOGUX)
        for step in case["steps"]
        if step["dir"] == "S" and "raw" in step
    ]
    for i in range(0, len(messages), 10):
        wire = b"".join(frame(TEXT, message) for message in messages[i : i + 10])
        for step in (0, 1, 7, 100):
            yield bytes([i // 10 % 16, step]) + wire[: MAX_LEN - 2]
    wires = [
        b"", frame(TEXT), frame(BINARY, b"x"), frame(PING, b"p") + frame(TEXT, b"x"), frame(PONG),
        frame(TEXT, b"a", fin=False) + frame(PING) + frame(0, b"b", fin=False) + frame(0, b"c"),
        frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), frame(0, b"a"), frame(3),
        frame(TEXT, b"x", bits=64),
        frame(TEXT, b"x") + frame(CLOSE, b"\x03\xe8bye") + frame(TEXT, b"y"), frame(CLOSE, b"\x03"),
        frame(PING, bytes(126)), frame(PING, fin=False), b"\x81\x83mask123", b"\x81\x7e\xff\xff",
        b"\x81\x7f" + b"\xff" * 8, b"\x81\x7f\x80" + bytes(7), b"\x81\x7f\x00\x00\x7f" + bytes(5),
        *(frame(TEXT, bytes(size)) for size in (1030, 2, 3, 4, 124, 125, 126, 127, 128, 999, 1000, 1001)),
        frame(TEXT, b"[1]", form=126) + frame(TEXT, b"[2]", form=127) + frame(TEXT, b"[3]"),
        frame(TEXT, bytes(1000), fin=False) + frame(0, b"x", fin=False) + frame(0),
        *(frame(TEXT, b"[1]" * 50)[:cut] for cut in range(1, 6)),
        *(frame(TEXT, b"[1]", form=127)[:cut] for cut in range(1, 13)),
    ]  # fmt: skip
    for wire in wires:
        for options in range(16):
            yield bytes([options, options % 3]) + wire
            yield bytes([options | LONG | OUTSIDE, 100]) + wire
            yield bytes([options, 0]) + frame(TEXT, b"first") + wire + frame(TEXT, b"last")


class Carrier:
    """A carrier that yields given pieces, then nothing."""

    peer = tls = ""

    def __init__(self, come: Sequence[bytes]) -> None:
        self.come = list(come)[::-1]
        self.sent = b""

    def receive(self) -> bytes | None:
        return self.come.pop() if self.come else None

    def send(self, buffers: Sequence[bytes]) -> bool:
        self.sent += b"".join(buffers)
        return True

    def flush(self) -> bool:
        return True


def run(data: memoryview) -> None:
    if len(data) < 2:
        return
    options, step, wire = data[0], data[1], data[2:]
    limit = LIMITS[options & 3]
    at = len(wire) // 3 if options & LATER else 0
    got: list[bytes] = []
    want: list[bytes] = []
    found = split(exact(bytes(wire)), at, limit, bool(options & OPEN), got)  # type: ignore[arg-type]
    expected = oracle.split(bytes(wire), at, limit, bool(options & OPEN), want)
    check(found == expected, "where it ends: the reference says otherwise", found, expected)
    check(got == want, "the reference says otherwise", got, want)
    message = bytes(wire) * (64 if options & LONG else 1)
    check(
        seal(exact(message), KEYS, at & 4) == oracle.seal(message, KEYS, at & 4),
        "the reference seals otherwise",
    )
    if options & OUTSIDE:
        try:
            split(wire, len(wire) + 1, limit, False, got)  # type: ignore[arg-type]
        except ValueError:
            pass
        else:
            check(False, "a frame beyond the end")
    _link([bytes(piece) for piece in pieces(wire, step) if len(piece)], limit)


def _protocol(limit: int) -> ClientProtocol:
    return ClientProtocol(WebSocketURI(False, "h", 1, "/", ""), state=State.OPEN, max_size=limit)


def _link(come: list[bytes], limit: int) -> None:
    protocol = _protocol(limit)
    protocol.receive_data(b"".join(come))
    want: list[bytes] = []
    partial = b""
    for event in protocol.events_received():
        if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):  # type: ignore[union-attr]
            partial += event.data  # type: ignore[union-attr]
            if event.fin:  # type: ignore[union-attr]
                want.append(partial or b" ")
                partial = b""
    carrier = Carrier(come)
    link = WebSocketLink(carrier, _protocol(limit), limit)  # type: ignore[arg-type]
    got: list[bytes] = []
    over = False
    try:
        while carrier.come or link._ready:
            message = link.receive()
            if message == b"":  # a close frame without a code
                break
            if message is not None:
                got.append(message)
        over = link.receive() == b""
    except OSError:
        over = True
    check(got == want, "received: the protocol says otherwise", got, want)
    ended = protocol.close_rcvd is not None or protocol.parser_exc is not None
    # The link finds an error when the whole frame is there, but the protocol when its head is.
    check(over == ended or (ended and link._incomplete), "the end: the protocol says otherwise", over, ended)
