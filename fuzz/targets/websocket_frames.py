"""What is taken out of a WebSocket server's bytes without the protocol's library, and what is made for it.

An input: how many bytes a frame may bring (two bytes), whether fragments have come before (the top bit of
them), an allocation that fails (0: none), and what arrives; the same is sent as a message. Held against the
plain-Python twin.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, must
from logclient._ext import websocket
from tests.oracle import websocket as oracle

EXTENSIONS = ("websocket",)
MAX_LEN = 70_000
DICTIONARY = [b"\x81\x00", b"\x82\x01a", b"\x81\x7e", b"\x81\x7f\0\0\0\0\0\0", b"\x89\x00",
              b"\x88\x02\x03\xe8", b"\x01", b"\x00", b"\x80", b"\xc1", b"\xff\xff"]  # fmt: skip

ROOTS = ("split", "seal")
APART = {
    "at: beyond the end": "no caller's: a mistake",
    "keys: four bytes are needed": "no caller's: a mistake",
}
_WHOLE = "unfinished or left - head < length or"
_LIMIT = "            if length > limit:\n                return at, head\n"
_NEXT = "            at += head + <size_t>length\n"
PLANTS = (
    Plant("length", "_ext/websocket.pyx", _WHOLE, _WHOLE.replace("head <", "head + 1 <"), (ASAN, "taken")),
    Plant("allocation", "_ext/websocket.pyx", _LIMIT,
          _LIMIT.replace("head\n", "head + 0 * len(bytearray(length))\n"),
          (MEMORY, "MemoryError", "OverflowError")),
    Plant("endless", "_ext/websocket.pyx", _NEXT,
          "            at += head + <size_t>length if length else 0\n", (TIMEOUT, MEMORY)),
)  # fmt: skip


def _frame(first: int, body: bytes, head: int = 0) -> bytes:
    """Its length in as few bytes as it takes, or in `head` more."""
    size = len(body)
    if head == 8 or size > 65535:
        return bytes([first, 127]) + size.to_bytes(8, "big") + body
    if head == 2 or size > 125:
        return bytes([first, 126]) + size.to_bytes(2, "big") + body
    return bytes([first, size]) + body


def seeds() -> Iterator[bytes]:
    """Frames of every kind, whole and cut, allowed and too long."""
    kinds = [0x81, 0x82, 0x01, 0x80, 0x88, 0x89, 0x8A, 0xC1, 0x83]
    for limit in (0, 7, 200, 0x7FFF):
        for unfinished in (0, 0x80):
            how = bytes([limit >> 8 | unfinished, limit & 255, 0])
            for first in kinds:
                for size in (0, 1, 7, 8, 125, 126, 300):
                    for head in (0, 2, 8):
                        data = _frame(0x81, b"[1]") + _frame(first, bytes(size), head) + _frame(0x82, b"")
                        yield how + data
                        yield how + data[: 5 + size]
            yield how + b"\x81\x85mask12345"
            yield how + b"\x81\x7f" + b"\xff" * 8
    for size in (125, 126, 65_535, 65_536):
        yield b"\x7f\xff\0" + _frame(0x81, bytes(size))
        yield b"\x7f\xff\1" + bytes(size)


def run(data: memoryview) -> None:
    if len(data) < 3:
        return
    limit, failing, body = (data[0] & 0x7F) << 8 | data[1], data[2], data[3:]
    unfinished = bool(data[0] & 0x80)
    mine: list[bytes] = []
    memory.fail_at(failing)
    try:
        answer = websocket.split(body, 0, limit, unfinished, mine)  # type: ignore[arg-type]
        sealed = websocket.seal(body, b"\x01\x80\x00\xfe", 0)
    except MemoryError:
        must(failing, "no memory, although no allocation failed")
        return
    finally:
        memory.fail_at(0)
    its: list[bytes] = []
    must(answer == oracle.split(bytes(body), 0, limit, unfinished, its) and mine == its, "taken", answer, its)
    must(sealed == oracle.seal(body, b"\x01\x80\x00\xfe", 0), "made", len(body))
