"""``logclient decode``: print captured bytes as readable frames, with offsets and errors."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from logclient.cli.exits import check_input, end_with_reader
from logclient.cli.parser import UsageError, positive
from logclient.errors import ConfigError, ExitCode, LedgerError
from logclient.evidence.frames import BODY_KEPT, BODY_SHOWN, Bytes, Frame, counted, fields, lines
from logclient.evidence.selection import time_text
from logclient.evidence.wires import WIRES
from logclient.files.capture import CaptureReader
from logclient.readable import escape

_PCAP = tuple(map(bytes.fromhex, ("d4c3b2a1", "a1b2c3d4", "4d3cb2a1", "a1b23c4d", "0a0d0d0a")))
"""How recordings of packets begin, by tcpdump and Wireshark."""
_CUT = "tshark -r FILE -q -z follow,tcp,raw,0 | grep '^[0-9a-f]' | logclient decode --protocol NAME --hex -"


class _Part(NamedTuple):
    protocol: str  # empty: unknown
    data: Bytes
    heading: str = ""  # a line to print before the frames
    fields: dict[str, Any] = {}  # the origin, for ``--json``


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "file",
        metavar="FILE",
        help="the folder of a capture, one of its segments (.cap), or with --protocol the bytes of one "
        "direction; - is standard input",
    )
    add("--limit", type=positive, metavar="N", help="stop after N frames")
    add("--bytes", type=positive, metavar="N", help="show N bytes of the content of a frame (default: 200)")
    add("--json", action="store_true", help="print each frame as a line of JSON")
    add("--protocol", choices=list(WIRES), metavar="NAME",
        help="that of the bytes, or the only one to show of a capture: %(choices)s")  # fmt: skip
    add("--hex", action="store_true", help="FILE holds hexadecimal digits")


def run(arguments: argparse.Namespace) -> int:
    """Print the frames of a file. BROKEN: a frame or the capture has an error."""
    end_with_reader()
    name: str = arguments.file
    as_json: bool = arguments.json
    limit: int | None = arguments.limit
    width: int = arguments.bytes or (BODY_KEPT if as_json else BODY_SHOWN)
    capture = None
    if arguments.hex or name == "-" or not (os.path.isdir(name) or name.endswith(".cap")):
        if arguments.protocol is None and (name == "-" or os.path.exists(name)):
            raise UsageError(f"--protocol: must be one of {', '.join(WIRES)} for bytes that are no capture")
        parts = iter([_Part(arguments.protocol, _read(name, arguments.hex))])
    else:
        capture = CaptureReader(name)
        if not capture.listeners:
            raise LedgerError(f"capture: {name} has no segment: their names are <listener>-<nnnnnn>.cap")
        parts = _units(capture, arguments.protocol)
    seen = wrong = 0
    for part in parts:
        for number, frame in enumerate(_frames(part)):
            if seen == limit:
                print(f"logclient: stopped after {limit} frames; there are more", file=sys.stderr)
                return ExitCode.BROKEN if wrong else ExitCode.OK
            if number == 0 and part.heading and not as_json:
                print(part.heading)
            seen += 1
            wrong += bool(frame.wrong)
            if as_json:
                print(json.dumps({**part.fields, **fields(frame, width)}))
            else:
                print("\n".join(lines(frame, width)))
    problems = capture.problems if capture is not None else []
    for problem in problems:
        # An unclosed segment is not an error: it is still being written, or its collector was killed.
        wrong += problem.kind != "unclosed"
        print(f"logclient: {escape(f'{problem.place}: {problem.reason}')}", file=sys.stderr)
    if not as_json:
        print(f"{counted(seen, 'frame')}, {wrong:,} wrong", file=sys.stderr)
    return ExitCode.BROKEN if wrong else ExitCode.OK


def _read(name: str, hexadecimal: bool) -> Bytes:
    data: Bytes
    if name == "-":
        check_input()
        data = sys.stdin.buffer.read()
    else:
        with open(name, "rb") as file:
            if hexadecimal or not os.path.isfile(name) or os.path.getsize(name) == 0:
                data = file.read()
            else:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if bytes(data[:4]) in _PCAP:
        raise ConfigError(f"{name}: it is a pcap; cut out the bytes of one direction: {_CUT}")
    if not hexadecimal:
        return data
    try:
        return bytes.fromhex(bytes(data).decode("ascii"))
    except ValueError:
        source = "standard input" if name == "-" else name
        raise ConfigError(f"{source}: --hex needs hexadecimal digits, two per byte") from None


def _frames(part: _Part) -> Iterator[Frame]:
    if part.protocol:
        wire = WIRES.get(part.protocol)
        if wire is None:
            raise ConfigError(f"protocol: {part.protocol[:32]!r} is none of {', '.join(WIRES)}")
        yield from wire.frames(part.data)
    else:
        wrong = "the protocol is unknown, because the header of the segment is unreadable: give --protocol"
        yield Frame(0, 0, len(part.data), "", {}, wrong=wrong)


def _units(capture: Any, only: str | None) -> Iterator[_Part]:
    known: dict[str, str] = {}  # listener -> protocol, also for its segments without a readable header
    for unit in capture:
        protocol = unit.protocol.partition("+")[0] or known.get(unit.listener) or only or ""
        known[unit.listener] = protocol
        if protocol != (only or protocol):
            continue
        direction = "to" if unit.direction else "from"
        heading = f"{escape(unit.segment)} at byte {unit.offset}: stream {unit.stream} {direction} "
        heading += f"{escape(unit.peer) or 'unknown'}, arrival {unit.arrival}, {time_text(unit.received_us)}"
        found = {"segment": unit.segment, "unit_at": unit.offset}
        for field in ("listener", "stream", "peer", "direction", "arrival", "received_us"):
            found[field] = direction if field == "direction" else getattr(unit, field)
        yield _Part(protocol, unit.raw, heading, found)
