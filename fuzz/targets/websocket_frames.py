"""The bytes of a WebSocket server: the compiled state of a connection.

An input has a byte of options (the limit of a message, the agreement about compression, whether messages are
sent in between, which allocation fails), the number of bytes that arrive at a time (0: all), and the bytes.
Messages, answers and the end are compared with the reference in plain Python after each piece, and with the
protocol of ``websockets`` where there is no compression.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import WebSocketURI

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, check, exact, pieces
from logclient._ext.websocket import ClientFrames
from tests.oracle import websocket as oracle
from tests.oracle.websocket import BINARY, CLOSE, PACKED, PING, PONG, TEXT, frames_of
from tests.support import recordings
from tests.support.websocket import server_frame as frame

EXTENSIONS = ("websocket",)
MAX_LEN = 2048

LIMITS = (1 << 24, 1000, 126, 3)
AGREED = (None, (True, 15, True, 15), (False, 9, False, 15), (True, 12, False, 9))
SENDS, CLOSES = 16, 32  # bits of the options; 1 and 2: the limit, 4 and 8: the agreement
FAILING = 6  # from this bit on: the allocation that fails


def packed(data: bytes, flush: int = zlib.Z_SYNC_FLUSH) -> bytes:
    packer = zlib.compressobj(wbits=-9)
    return (packer.compress(data) + packer.flush(flush)).removesuffix(oracle.TAIL)


DICTIONARY = [
    *(frame(opcode) for opcode in (0, TEXT, BINARY, CLOSE, PING, PONG)), frame(TEXT, b"[1]"),
    frame(CLOSE, b"\x03\xe8bye"), frame(TEXT, b"x", fin=False), frame(0, b"y"), frame(TEXT, b"[2]", form=126),
    frame(TEXT, b"[3]", form=127), b"\x81\x7e\x00\x7e", b"\x81\x7f" + bytes(8), b"\x81\x7f" + b"\xff" * 8,
    b"\x81\x7f\x80" + bytes(7), b"\x81\x83mask", b"\xc1\x01x", b"\x83\x00", b"\x09\x00", b"\x81\x7e\xff\xff",
    b"\x00\x00\x00\x00\x01\x00\x00\x00", frame(TEXT, packed(b"[1]"), bits=PACKED), packed(bytes(300)),
]  # fmt: skip

ROOTS = ("frames_add", "frames_output", "frames_taken", "frames_next")
APART = {
    "zstream_refused()": "another zlib than at the build",
    "a window has 9 to 15": "a caller's mistake, no input's: tests/transports/test_websocket_frames.py",
    "python_random_bytes()": "the system has no generator",
    "if key == NULL:": "the system has no generator",
}

PLANTS = (
    Plant("length", "_ext/websocket/receive.pyx", "        if n > f.left:\n", "        if n > f.left + 1:\n",
          (ASAN, "says otherwise", TIMEOUT)),
    Plant("allocation", "_ext/websocket/receive.pyx", "        if length > room:\n",
          "        if wire_reserve(&f.message, length) == NULL:\n",
          (MEMORY, "out-of-memory", "MemoryError", "says otherwise")),
    Plant("endless", "_ext/deflate.pxd", "    return INFLATE_ALL if s.avail_out else 0",
          "    return INFLATE_ALL if s.avail_out and s.avail_in else 0", (TIMEOUT,)),
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
            yield bytes([i // 10 % 4, step]) + wire[: MAX_LEN - 2]
    wires = [
        b"", frame(TEXT), frame(BINARY, b"x"), frame(PING, b"p") + frame(TEXT, b"x"), frame(PONG),
        frame(TEXT, b"a", fin=False) + frame(PING) + frame(0, b"b", fin=False) + frame(0, b"c"),
        frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), frame(0, b"a"), frame(3),
        frame(TEXT, b"x", bits=64), frame(TEXT, b"x", bits=32), frame(PING, bits=64),
        frame(TEXT, b"x") + frame(CLOSE, b"\x03\xe8bye") + frame(TEXT, b"y"), frame(CLOSE, b"\x03"),
        frame(CLOSE), frame(CLOSE, b"\x03\xe8\xff"), frame(CLOSE, b"\x03\xe8\xe2\x82"),
        frame(CLOSE, b"\x03\xe8" + b"x" * 100 + b"\xe2\x28"), frame(CLOSE, b"\x03\xec"),
        frame(CLOSE, "\x03\xe8é€𐍈".encode("latin-1", "ignore") + "é€𐍈".encode()),
        frame(TEXT, b"x", fin=False) + frame(CLOSE, b"\x03\xe8"),
        frame(PING, bytes(126)), frame(PING, fin=False), b"\x81\x83mask123", b"\x81\x7e\xff\xff",
        b"\x81\x7f" + b"\xff" * 8, b"\x81\x7f\x80" + bytes(7), b"\x81\x7f\x00\x00\x7f" + bytes(5),
        *(frame(TEXT, bytes(size)) for size in (1030, 2, 3, 4, 124, 125, 126, 127, 128, 999, 1000, 1001)),
        frame(TEXT, b"[1]", form=126) + frame(TEXT, b"[2]", form=127) + frame(TEXT, b"[3]"),
        frame(TEXT, bytes(1000), fin=False) + frame(0, b"x", fin=False) + frame(0),
        *(frame(TEXT, b"[1]" * 50)[:cut] for cut in range(1, 6)),
        *(frame(TEXT, b"[1]", form=127)[:cut] for cut in range(1, 13)),
        *(frame(TEXT, packed(bytes(size)), bits=PACKED) for size in (0, 1, 3, 4, 126, 127, 1000, 1001, 9000)),
        frame(TEXT, packed(b"ab")[:2], bits=PACKED, fin=False) + frame(0, packed(b"ab")[2:]),
        frame(TEXT, packed(b"ab")[:2], bits=PACKED, fin=False) + frame(0, packed(b"ab")[2:], bits=PACKED),
        frame(TEXT, packed(b"ab", zlib.Z_FINISH) + b"\0", bits=PACKED) * 2,
        frame(TEXT, b"\xff\xff\xff", bits=PACKED),
    ]  # fmt: skip
    for wire in wires:
        for options in range(64):
            if options % 16 < 4 or b"\xc1" in wire or b"\x41" in wire:
                yield bytes([options, options % 3]) + wire
        for failing in 1, 2, 3:
            yield bytes([failing << FAILING | len(wire) % 16, 0]) + wire
        yield bytes([SENDS, 0]) + frame(TEXT, b"first") + wire + frame(TEXT, b"last")


def run(data: memoryview) -> None:
    if len(data) < 2:
        return
    options, step, wire = data[0], data[1], data[2:]
    limit, agreed = LIMITS[options & 3], AGREED[options >> 2 & 3]
    if options >> FAILING and memory.CAN_FAIL:
        _run_short_of_memory(wire, step, ClientFrames(limit, deflate=agreed), options >> FAILING)
        return
    mine = ClientFrames(limit, deflate=agreed)
    its = oracle.ClientFrames(limit, deflate=agreed)
    found: list[bytes] = []
    for piece in pieces(wire, step):
        part = bytes(piece)
        got = []
        mine.receive_data(bytes(exact(part)))
        while (message := mine.next_message()) is not None:
            got.append(message)
        want = its.receive(part)
        check(got == want, "the reference says otherwise", got, want)
        check(
            (mine.over, mine.code, mine.reason) == (its.over, its.code, its.reason),
            "the end: the reference says otherwise", (mine.over, mine.code, mine.reason), its.reason,
        )  # fmt: skip
        if options & SENDS:
            for size in 1, len(part) * 70:
                mine.send((part * 70)[:size])
                its.send((part * 70)[:size])
            _compare(mine, its)
        found += got
    if options & CLOSES:
        mine.close()
        its.close()
    _compare(mine, its)
    mine.receive_eof()
    check(bool(mine.over), "an end is not noted")
    if agreed is None and not options & CLOSES:
        _library(bytes(wire), limit, found, mine.over == "ended")


def _run_short_of_memory(wire: memoryview, step: int, mine: ClientFrames, failing: int) -> None:
    memory.fail_at(failing)
    try:
        for piece in pieces(wire, step):
            mine.receive_data(bytes(piece))
            while mine.next_message() is not None:
                pass
            mine.send(bytes(piece))
            mine.send(b"")
        mine.close()
        mine.data_to_send()
    except MemoryError:
        pass
    finally:
        memory.fail_at(0)


def _compare(mine: ClientFrames, its: oracle.ClientFrames) -> None:
    its.answer()
    sent = [(first, data) for first, data, _ in frames_of(mine.data_to_send())]
    check(sent == its.sent, "sent: the reference says otherwise", sent, its.sent)
    its.sent.clear()


def _library(wire: bytes, limit: int, got: list[bytes], open_: bool) -> None:
    protocol = ClientProtocol(WebSocketURI(False, "h", 1, "/", ""), state=State.OPEN, max_size=limit)
    protocol.receive_data(wire)
    want: list[bytes] = []
    partial = b""
    for event in protocol.events_received():
        if event.opcode in (0, TEXT, BINARY):  # type: ignore[union-attr]
            partial += event.data  # type: ignore[union-attr]
            if event.fin:  # type: ignore[union-attr]
                want.append(partial or b" ")
                partial = b""
    ended = protocol.close_rcvd is not None or protocol.parser_exc is not None
    # The library counts control frames as parts of a message; and it looks at most of a head only when the
    # whole payload is there.
    counted = protocol.parser_exc is not None and "exceeds" in str(protocol.parser_exc)
    check(got == want or counted, "received: the library says otherwise", got, want)
    check(not (ended and open_) or counted, "the end: the library says otherwise", ended)
