"""Reading captures; run by `make bench ROW=functions`. 2048 records of a message each, 400 bytes."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from bench.lumberjack import carriers, event
from logclient._ext.capture import walk
from tests.oracle import capture as reference

RECORDS = 2048
RAW = event(300, carriers())


def record(arrival: int) -> bytes:
    payload = struct.pack("<BBBQQq", 3, 0, 0, 1, arrival, 1_795_155_232_892_000) + RAW
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


DATA = b"".join(map(record, range(1, RECORDS + 1)))


@pytest.mark.benchmark(group="capture, 2048 records")
def test_walk(benchmark: Any) -> None:
    assert len(benchmark(walk, DATA).arrival) == 8 * RECORDS


@pytest.mark.benchmark(group="capture, 2048 records")
def test_walk_reference(benchmark: Any) -> None:
    assert len(benchmark(reference.walk, DATA).units) == RECORDS
