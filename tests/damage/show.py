"""The files of a case as text, short enough to read."""

from __future__ import annotations

import json
import struct
import zlib

from tests.damage import rules
from tests.damage.cases import Case
from tests.damage.damages import lines_of, records_of


def text(case: Case) -> str:
    rows = [case.text()]
    for name, data in sorted(case.evidence.ledger.items()):
        rows.append(f"ledger {name}")
        rows += [f"    {at:3} {_line(line)}" for at, line in enumerate(lines_of(data))]
    for name, data in sorted(case.evidence.capture.items()):
        rows.append(f"capture {name}")
        rows += [f"    {at:3} {_record(piece, case.protocol)}" for at, piece in enumerate(records_of(data))]
    lost = sorted(case.truth.acked - case.truth.arrived)
    rows.append(f"acknowledged and not arrived: {case.truth.lost} {lost[:20]}; lies: {case.truth.lies}")
    rows.append(f"undecidable: {sorted(case.evidence.limits)}")
    return "\n".join(rows)


def _line(line: bytes) -> str:
    try:
        fields = json.loads(line)
        short = {
            name: value for name, value in fields.items() if name not in ("created", "hashes", "ids", "at_us")
        }
        return json.dumps(short, separators=(",", ":")) + ("" if line.endswith(b"\n") else " TORN")
    except (ValueError, AttributeError):
        return f"{line[:100]!r}, {len(line)} bytes"


def _record(piece: bytes, protocol: str) -> str:
    if len(piece) < 9 or zlib.crc32(piece[8:]) != struct.unpack_from("<I", piece, 4)[0]:
        return f"{piece[:40]!r}, {len(piece)} bytes"
    payload = piece[8:]
    if payload[0] == 1:
        return f"header {payload[5:].decode()}"
    if payload[0] == 2:
        return f"stream {struct.unpack_from('<Q', payload, 1)[0]:#x} {payload[9:].decode()}"
    if payload[0] == 4:
        return f"end({payload[9:].decode()}), next arrival {struct.unpack_from('<Q', payload, 1)[0]}"
    _, direction, _, stream, arrival, _ = struct.unpack_from("<BBBQQq", payload)
    if direction:
        return f"{arrival}: an answer"
    events = rules.events_of(payload[27:], protocol)
    told = [
        f"{event.producer[:4]}:{event.seq}" if event.producer else f"~{event.hash:016x}" for event in events
    ]
    return f"{arrival}: stream {stream:#x}: {' '.join(told) or f'{len(payload) - 27} bytes'}"
