"""Event documents of plog, and captures of datagrams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support import verify_files as files

Datagram = tuple[int, bytes]  # stream and datagram


def document(producer: str, seq: int, size: int, fill: bytes = b"x") -> bytes:
    ident = files.event_id(producer, seq).encode()
    return b'{"type":"log","uuid":"%b","host":"h","timestamp":1,"data":"%b"}' % (ident, fill * size)


def write_datagrams(
    folder: Path, sent: Sequence[Datagram], per_segment: int, *, protocol: str = "plog", name: str = "main"
) -> None:
    """A capture of these datagrams, with an answer between them."""
    folder.mkdir(exist_ok=True)
    arrival = 1
    pieces = [sent[i : i + per_segment] for i in range(0, len(sent), per_segment)] or [[]]
    for number, piece in enumerate(pieces, 1):
        data = [files.header_record(name, number, arrival, protocol)]
        data += [files.stream_record(stream, f"10.0.0.{stream}:9") for stream in (1, 2)]
        for stream, raw in piece:
            data.append(files.unit_record(arrival, raw, stream=stream, received_us=50_000 + arrival))
            arrival += 1
        data.append(files.unit_record(arrival, b"PONG", direction=1))
        arrival += 1
        data.append(files.end_record(arrival, "closed" if number == len(pieces) else "rotated"))
        (folder / f"{name}-{number:06d}.cap").write_bytes(b"".join(data))
