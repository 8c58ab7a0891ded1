"""Captures of all protocols for row `frames`: one event in each wire unit, as a collector writes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from logclient.files.capture import CaptureWriter
from tests.support import verify_files as files

__all__ = ["PROTOCOLS", "make"]

PRODUCER = "ab" * 10
START_US = 1_767_225_600_000_000
NUMBER = b"%012x" % 0  # the part of a unit that differs
FLUSH = 1000  # units
MESSAGE = f"PacketResponder 0 for block blk_{'5e2f' * 18} terminating"
LOG: dict[str, Any] = {
    "@timestamp": "2026-01-01T00:00:00.000Z", "log.level": "INFO", "log.logger": "app.worker",
    "message": MESSAGE,
}  # fmt: skip


def _text(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _lumberjack(ident: str) -> tuple[bytes, bytes]:
    body = _text(LOG | {"@metadata": {"_id": ident}, "event.id": ident})
    return body, b"2W\0\0\0\1" + b"2J" + struct.pack(">II", 1, len(body)) + body


def _logjam(ident: str) -> tuple[bytes, bytes]:
    fields = {"action": "Orders::create", "started_ms": START_US // 1000, "severity": 1}
    more = {"lines": [[1, "", MESSAGE]], "host": "app-17", "process_id": 4711, "request_id": ident}
    body = _text(fields | more)
    return body, files.message(body, created_ms=START_US // 1000)


def _plog(ident: str) -> tuple[bytes, bytes]:
    fields = {"type": "log", "host": "app-17", "timestamp": START_US // 1000, "uuid": ident, "data": LOG}
    return _text(fields), _text(fields)


def _logux(ident: str) -> tuple[bytes, bytes]:
    body = _text({"type": "log/add", "id": ident, "data": LOG})
    return body, b'["sync",1,%b,{"id":[1,0],"time":1}]' % body


PROTOCOLS: dict[str, Callable[[str], tuple[bytes, bytes]]] = {
    "lumberjack": _lumberjack,
    "logjam": _logjam,
    "plog": _plog,
    "logux": _logux,
}
"""For each protocol a function that returns the body of an event with an id, and the unit that carries it."""


def make(folder: Path, protocol: str, events: int) -> int:
    """Write the capture of one listener.

    Args:
        folder: for the segments.
        protocol: of the listener.
        events: how many.

    Returns:
        The bytes of all bodies.
    """
    body, unit = PROTOCOLS[protocol](files.event_id(PRODUCER, 0))
    with closing(CaptureWriter(folder, protocol, protocol)) as capture:
        stream = capture.stream("127.0.0.1:9")
        for n, raw in enumerate(_numbered(unit, events), 1):
            capture.unit(stream, raw, received_us=START_US + n)
            if n % FLUSH == 0:
                capture.flush()
        capture.flush()
    return events * len(body)


def _numbered(unit: bytes, events: int) -> Iterator[bytes]:
    """Yield the unit with another sequence of its producer in each id."""
    mark = PRODUCER.encode() + NUMBER
    pieces = unit.split(mark)
    for n in range(1, events + 1):
        yield (PRODUCER.encode() + b"%012x" % n).join(pieces)
