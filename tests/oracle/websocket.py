"""``_ext.websocket`` once more, plainly."""

from __future__ import annotations

from itertools import cycle


def split(
    data: bytes | bytearray, at: int, limit: int, unfinished: bool, messages: list[bytes]
) -> tuple[int, int]:
    while True:
        frame = bytes(data[at : at + 10])
        if len(frame) < 2 or frame[1] >= 128:
            return at, 2
        more = {126: 2, 127: 8}.get(frame[1], 0)
        if len(frame) < 2 + more:
            return at, 2 + more
        length = int.from_bytes(frame[2 : 2 + more], "big") if more else frame[1]
        if length > limit:
            return at, 2 + more
        size = 2 + more + length
        if unfinished or len(data) - at < size or frame[0] not in (0x81, 0x82):
            return at, size
        messages.append(bytes(data[at + 2 + more : at + size]) or b" ")
        at += size


def seal(data: bytes | bytearray | memoryview, keys: bytes, at: int) -> bytes:
    length = len(data)
    if length < 126:
        head = bytes([0x81, 128 + length])
    elif length < 65536:
        head = b"\x81\xfe" + length.to_bytes(2, "big")
    else:
        head = b"\x81\xff" + length.to_bytes(8, "big")
    key = keys[at : at + 4]
    return head + key + bytes(byte ^ mask for byte, mask in zip(data, cycle(key), strict=False))
