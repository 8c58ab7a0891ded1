"""Ledgers, captures, Lumberjack windows and Logjam messages by a few plain lines, for the verifier's tests.

Nothing of the package is used: docs/formats.md alone says what the bytes are.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import xxhash

from tests import support
from tests.oracle import logjam as oracle


def event_id(producer: str, seq: int) -> str:
    return f"{producer}{seq:012x}"


def xxh64(data: bytes, seed: int = 42) -> int:
    return xxhash.xxh64_intdigest(data, seed=seed)


def words(own: bytes) -> tuple[int, int]:
    """How a user's own id is named: of the form of ours, by its number; else by its hash."""
    if re.fullmatch(rb"[0-9a-f]{32}", own) and int(own, 16):
        return int(own[:16], 16), int(own[16:], 16)
    return xxh64(own), xxh64(own, 43)


def body(ident: str | None, text: str, *, carrier: str = "both", user: str | None = None) -> bytes:
    """A JSON object with an id in its carriers: ``both``, ``metadata``, ``event`` or ``none``."""
    fields = f'{{"message":{json.dumps(text)}'
    if user is not None:
        fields += f',"event":{{"id":{json.dumps(user)}}}'
    elif ident is not None:
        if carrier in ("both", "metadata"):
            fields += f',"@metadata":{{"_id":"{ident}"}}'
        if carrier in ("both", "event"):
            fields += f',"event.id":"{ident}"'
    return (fields + "}").encode()


def window(bodies: Sequence[bytes], *, compress: bool = False) -> bytes:
    """A Lumberjack version 2 window."""
    frames = b"".join(b"2J" + struct.pack(">II", i, len(raw)) + raw for i, raw in enumerate(bodies, 1))
    if compress:
        packed = zlib.compress(frames)
        frames = b"2C" + struct.pack(">I", len(packed)) + packed
    return b"2W" + struct.pack(">I", len(bodies)) + frames


def columns(units: Sequence[bytes]) -> tuple[bytes, Any, Any]:
    """Return units as decoders take them: their bytes, offsets and lengths."""
    np = support.need("numpy")
    lengths = np.array([len(unit) for unit in units], np.int64)
    return b"".join(units), np.cumsum(lengths) - lengths, lengths


# -- Logjam

APP_ENV, TOPIC = "shop-production", "logs.shop.production"


def document(ident: str | None, text: str, *, topic: str = TOPIC, user: str | None = None) -> bytes:
    """A JSON object with an id in its carrier: `ident`, or the `user`'s own."""
    fields = f'{{"message":{json.dumps(text)}'
    carried = user if user is not None else ident
    if carried is not None:
        carrier = oracle.carrier_of(topic.encode())
        fields += f',"{carrier}":{json.dumps(carried)}'
    return (fields + "}").encode()


def meta(compression: int = 0, device: int = 0, created_ms: int = 0, number: int = 1) -> bytes:
    return oracle.META.pack(0xCABD, compression, 1, device, created_ms, number)


def message(
    raw: bytes,
    *,
    request: bool = True,
    compression: int = 0,
    device: int = 0,
    created_ms: int = 0,
    number: int = 1,
    app_env: str = APP_ENV,
    topic: str = TOPIC,
) -> bytes:
    """A Logjam data message: a request's first frame is empty."""
    parts = [app_env.encode(), topic.encode(), oracle.pack(compression, raw)]
    parts.append(meta(compression, device, created_ms, number))
    return oracle.join([b"", *parts] if request else parts)


def heartbeat(device: int, number: int) -> bytes:
    return oracle.join([b"heartbeat", b"tcp://h:9606", b"{}", meta(device=device, number=number)])


ACCEPTED = oracle.join([APP_ENV.encode(), b"202 Accepted"])


# -- ledger


def ranges(seqs: Iterable[int]) -> list[list[int]]:
    out: list[list[int]] = []
    for seq in sorted(seqs):
        if out and out[-1][1] + 1 == seq:
            out[-1][1] = seq
        else:
            out.append([seq, seq])
    return out


def open_line(
    producer: str,
    part: int = 1,
    identity: str = "id",
    protocol: str = "lumberjack",
    mode: str = "",
    path: str = "",
) -> dict[str, Any]:
    return {
        "t": "open", "version": 1, "producer": producer, "part": part, "protocol": protocol,
        "url": f"{protocol}://127.0.0.1:5044{path}", "identity": identity, "pid": 1, "host": "h", "at_us": 1,
        **({"mode": mode} if mode else {}),
    }  # fmt: skip


def batch_line(events: Sequence[tuple[int, int, int]], own: Iterable[int] = ()) -> dict[str, Any]:
    """`events` are (sequence, created_us, hash), rising; `own` those that an `ids` line has."""
    base = events[0][1] if events else 0
    theirs = ranges(own)
    return {
        "t": "batch",
        "seqs": ranges(seq for seq, _, _ in events),
        "n": len(events),
        **({"own": theirs} if theirs else {}),
        "base": base,
        "created": base64.b64encode(b"".join(struct.pack("<i", at - base) for _, at, _ in events)).decode(),
        "hashes": base64.b64encode(b"".join(struct.pack("<Q", h) for _, _, h in events)).decode(),
    }


def ids_line(events: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """`events` are (sequence, the user's id), rising."""
    packed = b"".join(struct.pack("<QQ", *words(user.encode())) for _, user in events)
    return {
        "t": "ids",
        "seqs": ranges(seq for seq, _ in events),
        "n": len(events),
        "ids": base64.b64encode(packed).decode(),
    }


def outcome_line(status: str, seqs: Iterable[int], reason: str = "", at_us: int = 1 << 53) -> dict[str, Any]:
    """By default it is written after everything in a capture."""
    return {"t": "outcome", "at_us": at_us, "status": status, "reason": reason, "seqs": ranges(seqs)}


def deferred_line(seqs: Iterable[int]) -> dict[str, Any]:
    return {"t": "deferred", "at_us": 5, "seqs": ranges(seqs)}


def dropped_line(seqs: Iterable[int], at_us: int = 5) -> dict[str, Any]:
    return {"t": "dropped", "at_us": at_us, "reason": "overflow", "seqs": ranges(seqs)}


def close_line(last: int, **totals: int) -> dict[str, Any]:
    """Of `acked`, `handed`, `failed`, `dropped` and `bytes`, what is given; none of them: `write_part`
    counts the lines before."""
    line: dict[str, Any] = {"t": "close", "at_us": 9, "last": last}
    if totals:
        line |= {"acked": totals.get("acked", 0), "handed": totals.get("handed", 0)}
        line |= {word: {"some": totals[word]} if totals.get(word) else {} for word in ("failed", "dropped")}
        line |= {"bytes": totals["bytes"]} if "bytes" in totals else {}
    return line


_STRENGTH = ("dropped", "failed", "handed", "acked")


def totals(lines: Iterable[dict[str, Any] | bytes]) -> dict[str, int]:
    """Count the sequences of some lines by outcome, the strongest of each."""
    strongest: dict[int, int] = {}
    for line in lines:
        if isinstance(line, dict) and line["t"] in ("outcome", "dropped"):
            strength = _STRENGTH.index(line.get("status", "dropped"))
            for first, last in line["seqs"]:
                for seq in range(first, last + 1):
                    strongest[seq] = max(strength, strongest.get(seq, 0))
    found = list(strongest.values())
    return {word: found.count(strength) for strength, word in enumerate(_STRENGTH)}


def encode_line(line: dict[str, Any] | bytes) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":")).encode() + b"\n"


def write_part(
    folder: Path,
    producer: str,
    part: int,
    lines: Iterable[dict[str, Any] | bytes],
    earlier: Iterable[dict[str, Any] | bytes] = (),
) -> Path:
    """`bytes` are written as they are: damage, or a torn line. `earlier`: the lines of the parts before."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{producer}-{part:04d}.ledger"
    before = list(earlier)
    data = b""
    size = sum(len(encode_line(line)) for line in before)
    for line in lines:
        if isinstance(line, dict) and line["t"] == "close" and "acked" not in line:
            end = close_line(line["last"], bytes=size + len(data), **totals(before))
            line = end | {"at_us": line["at_us"]}
        before.append(line)
        data += encode_line(line)
    path.write_bytes(data)
    return path


# -- capture


def record(payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def header_record(
    listener: str, number: int, first_arrival: int, protocol: str = "lumberjack", run: str = "r", **more: Any
) -> bytes:
    fields = {
        "run": run, "protocol": protocol, "listener": listener, "url": f"{protocol}://127.0.0.1:5044",
        "segment": number, "first_arrival": first_arrival, **more,
    }  # fmt: skip
    return record(b"\x01" + struct.pack("<I", 1) + json.dumps(fields).encode())


def stream_record(stream: int, peer: str) -> bytes:
    return record(b"\x02" + struct.pack("<Q", stream) + peer.encode())


def unit_record(
    arrival: int, raw: bytes, *, direction: int = 0, stream: int = 1, received_us: int = 0
) -> bytes:
    return record(b"\x03" + struct.pack("<BBQQq", direction, 0, stream, arrival, received_us) + raw)


def end_record(next_arrival: int, reason: str = "closed") -> bytes:
    return record(b"\x04" + struct.pack("<Q", next_arrival) + reason.encode())


def write_segments(
    folder: Path,
    listener: str,
    units: Sequence[tuple[bytes, int, int]],
    *,
    per_segment: int = 0,
    closed: bool = True,
    protocol: str = "lumberjack",
    first: int = 1,
    arrival: int = 1,
    end: str = "closed",
    runs: Sequence[str] = ("r",),
    **header: Any,
) -> list[Path]:
    """A whole capture of one listener; `units` are (raw, direction, received_us).

    Args:
        first, arrival: number of the first segment, and of the first unit in it.
        end: reason in the last one's end record.
        runs: share the segments, one after the other.
        header: more fields of the headers, or other values.
    """
    folder.mkdir(exist_ok=True)
    size = per_segment or max(len(units), 1)
    pieces = [units[i : i + size] for i in range(0, len(units), size)] or [[]]
    paths = []
    for number, piece in enumerate(pieces, first):
        run = runs[(number - first) * len(runs) // len(pieces)]
        head = header_record(listener, number, arrival, protocol, **{"run": run, **header})
        data = [head, stream_record(1, "127.0.0.1:9")]
        for raw, direction, received_us in piece:
            data.append(unit_record(arrival, raw, direction=direction, received_us=received_us))
            arrival += 1
        last = number == first + len(pieces) - 1
        if closed or not last:
            data.append(end_record(arrival, end if last else "rotated"))
        path = folder / f"{listener}-{number:06d}.cap"
        path.write_bytes(b"".join(data))
        paths.append(path)
    return paths
