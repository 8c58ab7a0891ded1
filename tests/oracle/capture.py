"""The reference of ``logclient._ext.capture.walk``: one record after the other, with struct and zlib."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

MAX_RECORD = 1 << 30
MORE, LIMIT, LENGTH = 0, 1, 2
BAD_CRC, BAD_RECORD = -1, -2
LEAST = {1: 5, 2: 9, 3: 27, 4: 9}
OTHERS = 65536


class Walk(NamedTuple):
    units: list[
        tuple[int, int, int, int, int, int]
    ]  # offset, length, arrival, stream, received_us, direction
    others: list[tuple[int, int, int]]
    end: int
    stop: int


def sound(payload: bytes) -> bool:
    kind = payload[0]
    if kind not in LEAST or len(payload) < LEAST[kind]:
        return False
    if kind == 3:
        _, direction, _, _, arrival, _ = struct.unpack_from("<BBBQQq", payload)
        return direction <= 1 and 1 <= arrival < 1 << 63
    return kind != 4 or 1 <= struct.unpack_from("<BQ", payload)[1] < 1 << 63


def walk(data: bytes, start: int = 0, *, limit: int = 0) -> Walk:
    units: list[tuple[int, int, int, int, int, int]] = []
    others: list[tuple[int, int, int]] = []
    at = start
    stop = MORE
    while len(data) - at >= 8:
        if (limit and len(units) == limit) or len(others) == OTHERS:
            stop = LIMIT
            break
        length, crc = struct.unpack_from("<II", data, at)
        if not 0 < length <= MAX_RECORD:
            stop = LENGTH
            break
        if at + 8 + length > len(data):
            break
        payload = data[at + 8 : at + 8 + length]
        kind = payload[0]
        if zlib.crc32(payload) != crc:
            others.append((BAD_CRC, at, length))
        elif not sound(payload):
            others.append((BAD_RECORD, at, length))
        elif kind == 3:
            _, direction, _, stream, arrival, received_us = struct.unpack_from("<BBBQQq", payload)
            units.append((at + 35, length - 27, arrival, stream, received_us, direction))
        else:
            others.append((kind, at, length))
        at += 8 + length
    return Walk(units, others, at, stop)
