"""An independent encoding of the messages that cores and ZeroMQ's transport exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def join(messages: Sequence[Sequence[bytes]]) -> bytes:
    data = b""
    for frames in messages:
        for place, frame in enumerate(frames):
            more = 0x80 if place + 1 < len(frames) else 0
            size = len(frame)
            data += bytes([size & 255, size >> 8 & 255, size >> 16 & 255, size >> 24 | more]) + frame
    return data


def frames_of(data: bytes) -> Iterator[list[bytes]]:
    frames: list[bytes] = []
    while data:
        size = data[0] | data[1] << 8 | data[2] << 16 | (data[3] & 0x7F) << 24
        frames.append(data[4 : 4 + size])
        assert len(frames[-1]) == size, "whole messages only"
        if not data[3] & 0x80:
            yield frames
            frames = []
        data = data[4 + size :]
    assert not frames
