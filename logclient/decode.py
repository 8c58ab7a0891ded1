"""``logclient decode``: captured bytes as readable frames, with offsets and what is wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from logclient import registry
from logclient.errors import ConfigError, ExitCode
from logclient.protocols.readable import BODY_KEPT, BODY_SHOWN, Bytes, escape, fields, lines

__all__ = ["run"]


class _Part(NamedTuple):
    """Bytes to decode, and what to say of them first."""

    data: Bytes
    head: str
    fields: dict[str, Any]


def run(arguments: argparse.Namespace) -> int:
    """Print the frames of a file; `BROKEN` when anything in it is wrong."""
    name: str = arguments.file
    frames = registry.load_sibling(arguments.protocol, "frames")
    as_json: bool = arguments.json
    limit: int | None = arguments.limit
    width: int = arguments.bytes or (BODY_KEPT if as_json else BODY_SHOWN)
    capture = None
    if arguments.hex or name == "-" or not (os.path.isdir(name) or name.endswith(".cap")):
        parts = iter([_Part(_read(name, arguments.hex), "", {})])
    else:
        from logclient.collectors.capture import CaptureReader

        capture = CaptureReader(name)
        parts = _units(capture, arguments.protocol)
    seen = wrong = 0
    for part in parts:
        if part.head and not as_json:
            print(part.head)
        for frame in frames(part.data):
            if seen == limit:
                print(f"logclient: stopped after {limit} frames, there are more", file=sys.stderr)
                return ExitCode.BROKEN if wrong else ExitCode.OK
            seen += 1
            wrong += bool(frame.wrong)
            if as_json:
                print(json.dumps({**part.fields, **fields(frame, width)}))
            else:
                print("\n".join(lines(frame, width)))
    problems = capture.problems if capture is not None else []
    for problem in problems:
        # A capture that is still being written, or whose collector was killed, is not wrong for that.
        wrong += problem.kind != "unclosed"
        where = f"{problem.segment} at byte {problem.offset}"
        print(f"logclient: {escape(where)}: {escape(problem.reason)}", file=sys.stderr)
    if not as_json:
        print(f"{seen:,} frame{'s'[: seen != 1]}, {wrong:,} wrong", file=sys.stderr)
    return ExitCode.BROKEN if wrong else ExitCode.OK


def _read(name: str, hexadecimal: bool) -> Bytes:
    if name == "-":
        data: Bytes = sys.stdin.buffer.read()
    elif hexadecimal or not os.path.isfile(name) or os.path.getsize(name) == 0:
        with open(name, "rb") as file:
            data = file.read()
    else:
        import mmap

        with open(name, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if not hexadecimal:
        return data
    try:
        return bytes.fromhex(bytes(data).decode("ascii"))
    except ValueError:
        shown = "standard input" if name == "-" else name
        raise ConfigError(f"{shown}: --hex wants hexadecimal digits, two a byte") from None


def _units(capture: Any, protocol: str) -> Iterator[_Part]:
    for unit in capture:
        if unit.protocol.partition("+")[0] != protocol:
            continue
        way = "to" if unit.direction else "from"
        at = _time(unit.received_us)
        yield _Part(
            unit.raw,
            f"{escape(unit.segment)} at byte {unit.offset}: stream {unit.stream} {way} "
            f"{escape(unit.peer) or 'unknown'}, arrival {unit.arrival}, {at}",
            {
                "segment": unit.segment,
                "unit_at": unit.offset,
                "listener": unit.listener,
                "stream": unit.stream,
                "peer": unit.peer,
                "direction": way,
                "arrival": unit.arrival,
                "received_us": unit.received_us,
            },
        )


def _time(us: int) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us // 1_000_000)) + f".{us % 1_000_000:06d}Z"
    except (ValueError, OverflowError, OSError):
        return f"{us} us"  # damage that the CRC does not show: whoever wrote it wrote that
