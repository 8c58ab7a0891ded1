"""The verdict on ledgers and captures, from the text of docs/verify-rules.md and docs/formats.md alone.

It reads the files themselves, one at a time and whole, and judges each event by itself. The bytes of the four
protocols are decoded by the other references of this folder.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import stat
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.oracle import logjam, logux_decoder, lumberjack, plog
from tests.oracle.xxh64 import words, xxh64

LAST = (1 << 48) - 1
PROTOCOLS = ("lumberjack", "logjam", "plog", "logux")
STRENGTH = {"acked": 4, "handed": 3, "failed": 2, "dropped": 1}
CHECKS = "c4ec0000"
CLOCKS_US = 10_000_000  # the clocks of machines differ by less
NEVER = 1 << 62
EARLIEST_US, LATEST_US = 0, 9_000_000_000_000_000  # a unit received outside has no time (1970 to 2255)

Name = tuple[int, int]
Event = tuple[str, int]


# --- the ledgers --------------------------------------------------------------------------------


class Damaged(Exception):
    """A line that does not count."""


@dataclass
class Ledger:
    producer: str
    identity: str = "id"
    protocol: str = ""
    url: str = ""
    mode: str = ""
    in_batches: Counter[int] = field(default_factory=Counter)
    hashes: dict[int, int] = field(default_factory=dict)
    created: dict[int, int] = field(default_factory=dict)
    claimed: set[int] = field(default_factory=set)  # by `own`
    ids: list[tuple[int, Name]] = field(default_factory=list)
    seconds: list[tuple[int, Name]] = field(default_factory=list)
    outcomes: dict[int, str] = field(default_factory=dict)
    decided_us: dict[int, int] = field(default_factory=dict)  # when the first line about it was written
    deferred: set[int] = field(default_factory=set)
    last: int = 0
    last_line_us: int = 0  # the time of the last line that has one
    waiting: int = 0
    goes_on: bool = False  # in a part that is not here
    ended: bool = False  # no process writes it any more
    begun_us: int | None = None
    ended_us: int | None = None
    closed: bool = False
    stopped: bool = False
    holes: bool = False
    twice: bool = False  # two files of a part differ

    @property
    def state(self) -> str:
        if self.holes:
            return "holes"
        if self.stopped:
            return "stopped"
        return "whole" if self.closed else "unclosed"

    @property
    def open(self) -> bool:
        return self.state != "whole"

    @property
    def listed(self) -> list[int]:
        named = {seq for seq, _ in self.ids}
        return sorted(
            seq for seq, n in self.in_batches.items() if n == 1 and (seq not in self.claimed or seq in named)
        )

    def fate(self, seq: int) -> str:
        return self.outcomes.get(seq, "undecided")


def _whole(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise Damaged
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Damaged
    return value


def _ranges(value: Any) -> list[int]:
    if not isinstance(value, list) or not value:
        raise Damaged
    found: list[int] = []
    before = 0
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise Damaged
        first = _whole(pair[0], before + 1, LAST)
        before = _whole(pair[1], first, LAST)
        if before - first > 1_000_000:
            raise MemoryError("histories are small")
        found += range(first, before + 1)
    return found


def _items(value: Any, form: str, n: int) -> list[tuple[int, ...]]:
    size = struct.calcsize(form)
    try:
        data = base64.b64decode(_text(value).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise Damaged from error
    if len(data) != size * n:
        raise Damaged
    return list(struct.iter_unpack(form, data))


def _counts(value: Any) -> int:
    if not isinstance(value, dict):
        raise Damaged
    return sum(_whole(n, 0, (1 << 63) - 1) for n in value.values())


class Line(NamedTuple):
    kind: str
    content: dict[str, Any]


def _json(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Damaged from error
    if not isinstance(content, dict) or not isinstance(content.get("t"), str):
        raise Damaged
    return content


def check_line(line: bytes) -> Line:
    """Return the checked content of a line; its ranges become lists of sequences.

    Raises:
        Damaged: the line does not count.
    """
    content = _json(line)
    kind = content["t"]
    made = dict(content)
    if kind in ("batch", "ids", "outcome", "deferred", "dropped"):
        made["seqs"] = _ranges(content.get("seqs"))
    if kind in ("batch", "ids"):
        n = len(made["seqs"])
        if _whole(content.get("n"), 0, LAST) != n:
            raise Damaged
    if kind == "batch":
        base = _whole(content.get("base"), -(1 << 60), 1 << 60)
        made["created"] = [base + delta for (delta,) in _items(content.get("created"), "<i", n)]
        made["hashes"] = [one for (one,) in _items(content.get("hashes"), "<Q", n)]
        made["own"] = _ranges(content["own"]) if "own" in content else []
        if not set(made["own"]) <= set(made["seqs"]):
            raise Damaged
    elif kind == "ids":
        made["ids"] = _items(content.get("ids"), "<QQ", n)
        made["beside"] = _ranges(content["beside"]) if "beside" in content else []
        if not set(made["beside"]) <= set(made["seqs"]):
            raise Damaged
        made["second"] = _items(content.get("second"), "<QQ", len(made["beside"])) if made["beside"] else []
    elif kind == "outcome":
        if content.get("status") not in ("acked", "handed", "failed"):
            raise Damaged
    elif kind == "stopped":
        _text(content.get("reason"))
    elif kind == "alive":
        _whole(content.get("waiting"), 0, LAST)
    elif kind == "close":
        _whole(content.get("last"), 0, LAST)
        for name in ("acked", "handed"):
            _whole(content.get(name), 0, (1 << 63) - 1)
        if "bytes" in content:
            _whole(content["bytes"], 0, (1 << 63) - 1)
        made["failed"], made["dropped"] = _counts(content.get("failed")), _counts(content.get("dropped"))
    elif kind == "open":
        if _whole(content.get("version"), 1, 1) and content.get("identity") not in ("id", "none"):
            raise Damaged
        for name in ("producer", "protocol", "url"):
            _text(content.get(name))
        _whole(content.get("part"), -(1 << 63), (1 << 63) - 1)
    return Line(kind, made)


def _is_open(line: bytes) -> bool:
    try:
        return bool(_json(line)["t"] == "open")
    except Damaged:
        return False


def read_ledger(producer: str, parts: dict[int, bytes]) -> Ledger:
    """Read the parts of one producer."""
    ledger = Ledger(producer)
    head: dict[str, Any] | None = None
    if sorted(parts) != list(range(1, len(parts) + 1)):
        ledger.holes = True
    final = max(parts)
    before = 0
    close: tuple[dict[str, Any], int] | None = None
    for part, data in sorted(parts.items()):
        *lines, torn = data.split(b"\n")
        close, ledger.goes_on, ledger.ended = None, False, False
        complete = [line for line in lines if line]
        if torn and part != final:
            ledger.holes = True
        if not complete:
            ledger.holes |= part != final
            before += len(data)
            continue
        try:
            first = check_line(complete[0])
        except Damaged:
            first = Line("", {})
        fits = first.kind == "open" and (first.content["producer"], first.content["part"]) == (producer, part)
        if fits and head is not None:
            fits = all(first.content[name] == head[name] for name in ("identity", "protocol"))
        if not fits:
            ledger.holes = True
            before += len(data)
            continue
        if head is None:
            head = first.content
            ledger.identity, ledger.protocol, ledger.url = head["identity"], head["protocol"], head["url"]
            ledger.mode = head.get("mode", "")
        if part == 1 and type(first.content.get("at_us")) is int:
            ledger.begun_us = first.content["at_us"]
        ledger.last_line_us = _time_of(first) or ledger.last_line_us
        at, begun, ended = 0, False, False
        for text in lines:
            begin, at = at, at + len(text) + 1
            if not text:
                continue
            if not begun:
                begun = True
                continue
            close, ledger.goes_on, ledger.ended = None, False, False
            if _is_open(text):
                ledger.holes = ended = True
                break
            try:
                line = check_line(text)
            except Damaged:
                ledger.holes = True
                continue
            _take(ledger, line)
            ledger.last_line_us = _time_of(line) or ledger.last_line_us
            ledger.goes_on, ledger.ended = line.kind == "continued", line.kind == "ended"
            if line.kind == "close":
                close = line.content, before + begin
        if torn and not ended:
            close = None
        before += len(data)
    if close is not None:
        ledger.closed = True
        if type(close[0].get("at_us")) is int:
            ledger.ended_us = close[0]["at_us"]
    _find_holes(ledger, close)
    return ledger


def _time_of(line: Line) -> int:
    at = line.content.get("at_us")
    return at if type(at) is int and 0 < at < LATEST_US else 0


def _take(ledger: Ledger, line: Line) -> None:
    content = line.content
    seqs = content.get("seqs", [])
    if line.kind == "batch":
        ledger.in_batches.update(seqs)
        ledger.claimed.update(content["own"])
        ledger.hashes.update(zip(seqs, content["hashes"], strict=True))
        ledger.created.update(zip(seqs, content["created"], strict=True))
    elif line.kind == "ids":
        ledger.ids += zip(seqs, content["ids"], strict=True)
        ledger.seconds += zip(content["beside"], content["second"], strict=True)
    elif line.kind in ("outcome", "dropped"):
        status = content.get("status") if line.kind == "outcome" else "dropped"
        at = content.get("at_us")
        for seq in seqs:
            if line.kind == "outcome" and type(at) is int:
                ledger.decided_us[seq] = min(at, ledger.decided_us.get(seq, at))
            if STRENGTH[status] > STRENGTH.get(ledger.outcomes.get(seq, ""), 0):
                ledger.outcomes[seq] = status
    elif line.kind == "deferred":
        ledger.deferred.update(seqs)
    elif line.kind == "stopped":
        ledger.stopped = True
    elif line.kind == "alive":
        ledger.waiting = line.content["waiting"]
    if line.kind in ("batch", "outcome", "dropped"):
        ledger.last = max(ledger.last, seqs[-1])
    elif line.kind == "close":
        ledger.last = max(ledger.last, content["last"])


def _find_holes(ledger: Ledger, close: tuple[dict[str, Any], int] | None) -> None:
    named = {seq for seq, _ in ledger.ids}
    batched = set(ledger.in_batches)
    if any(n > 1 for n in ledger.in_batches.values()) or ledger.claimed - named or named - batched:
        ledger.holes = True
    if any(fate in ("acked", "handed") and seq not in batched for seq, fate in ledger.outcomes.items()):
        ledger.holes = True
    if close is None:
        return
    content, size = close
    fates = Counter(ledger.outcomes.values())
    if content["last"] < ledger.last or content.get("bytes", size) != size:
        ledger.holes = True
    if any(content[name] != fates[name] for name in STRENGTH):
        ledger.holes = True
    if any(seq not in batched and seq not in ledger.outcomes for seq in range(1, ledger.last + 1)):
        ledger.holes = True


# --- the files ----------------------------------------------------------------------------------


class Found(NamedTuple):
    files: list[Path]
    unread: list[Path]


def find(folders: Sequence[Path], *, ledgers: bool) -> Found:
    """Return the files of a kind, and what is left out."""
    found = Found([], [])

    def ours(name: str) -> bool:
        return ".ledger" in name.lower() if ledgers else name.endswith(".cap")

    def walk(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                if path.is_dir() or ours(path.name):
                    found.unread.append(path)
            elif stat.S_ISDIR(mode):
                if ours(path.name):
                    found.unread.append(path)
                else:
                    walk(path)
            elif ours(path.name):
                good = stat.S_ISREG(mode) and (not ledgers or ledger_name(path.name) is not None)
                (found.files if good else found.unread).append(path)

    empty = []
    for folder in dict.fromkeys(folders):
        before = len(found.files)
        walk(folder)
        if len(found.files) == before:
            empty.append(folder)
    if found.files:
        found.unread.extend(empty)
    return found


def ledger_name(name: str) -> tuple[str, int] | None:
    matched = re.fullmatch(r"([0-9a-f]{20})-([0-9]{4}|[1-9][0-9]{4,})\.ledger", name)
    return (matched[1], int(matched[2])) if matched and int(matched[2]) else None


def read_ledgers(folders: Sequence[Path]) -> tuple[dict[str, Ledger], int, bool]:
    """Return the ledger of each producer, the number of unread files, and whether there are copies."""
    files, unread = find(folders, ledgers=True)
    left_out = len(unread)
    copied = False
    twice: set[str] = set()
    contents: dict[tuple[str, int], list[bytes]] = {}
    for path in files:
        name = ledger_name(path.name)
        assert name
        contents.setdefault(name, []).append(path.read_bytes())
    parts: dict[str, dict[int, bytes]] = {}
    for (producer, part), copies in contents.items():
        longest = max(copies, key=len)
        copies.remove(longest)
        differing = sum(not longest.startswith(copy) for copy in copies)
        left_out += differing
        if differing:
            twice.add(producer)
        copied |= any(longest.startswith(copy) for copy in copies)
        parts.setdefault(producer, {})[part] = longest
    found = {producer: read_ledger(producer, some) for producer, some in parts.items()}
    for producer in twice:
        found[producer].twice = found[producer].holes = True
    return found, left_out, copied


# --- the captures -------------------------------------------------------------------------------


class Unit(NamedTuple):
    direction: int
    stream: int
    arrival: int
    received_us: int
    raw: bytes


@dataclass
class Segment:
    path: Path
    data: bytes
    header: dict[str, Any] | None = None
    units: list[Unit] = field(default_factory=list)
    end: tuple[int, str] | None = None
    damaged: bool = False
    unclosed: bool = False
    gap: bool = False
    gap_before: bool = False  # between it and the segment before
    continued: bool = False  # a segment must follow, and is missing

    @property
    def name(self) -> tuple[str, int] | None:
        matched = re.fullmatch(r"(.+)-([0-9]{6,})\.cap", self.path.name)
        return (matched[1], int(matched[2])) if matched else None

    @property
    def misnamed(self) -> bool:
        if self.name is None:
            return True
        if self.header is None:
            return False
        name, number = self.name
        listener = self.header["listener"]
        return number != self.header["segment"] or (name != listener and not name.endswith("." + listener))

    @property
    def protocol(self) -> str:
        return "" if self.header is None else self.header["protocol"].split("+")[0]

    @property
    def run(self) -> tuple[str, str] | None:
        return None if self.header is None else (self.header["run"], self.header.get("host", ""))

    @property
    def decodable(self) -> bool:
        return self.header is None or self.protocol in PROTOCOLS


def read_header(payload: bytes) -> dict[str, Any] | None:
    """Return the fields of a first record, or None."""
    if len(payload) < 5 or struct.unpack_from("<I", payload, 1)[0] != 1:
        return None
    try:
        header = json.loads(payload[5:].decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict):
        return None
    texts = [header.get(name) for name in ("run", "protocol", "listener", "url")]
    texts += [header[name] for name in ("host", "source") if name in header]
    numbers = [header.get(name) for name in ("segment", "first_arrival")]
    good = all(isinstance(one, str) for one in texts)
    good = good and all(type(one) is int and 1 <= one < 1 << 63 for one in numbers)
    return header if good else None


def read_segment(path: Path) -> Segment:
    """Read the records of a segment."""
    data = path.read_bytes()
    segment = Segment(path, data)
    at, first = 0, True
    while len(data) - at >= 8:
        if segment.end is not None:
            segment.damaged |= any(data[at:])
        length, crc = struct.unpack_from("<II", data, at)
        if not length or length > 1 << 30:
            segment.damaged |= bool(length) or any(data[at:])
            break
        payload = data[at + 8 : at + 8 + length]
        if len(payload) < length:
            break
        at += 8 + length
        if zlib.crc32(payload) != crc:
            segment.damaged = True
        else:
            _take_record(segment, payload, first)
        first = False
    if segment.end is not None:
        segment.damaged |= any(data[at:])
    segment.unclosed = segment.end is None
    segment.damaged |= segment.header is None
    if segment.header is not None and not segment.decodable:
        segment.damaged = True
    return segment


def _take_record(segment: Segment, payload: bytes, first: bool) -> None:
    kind = payload[0]
    if kind == 1 and first:
        segment.header = read_header(payload)
    elif kind == 2 and len(payload) >= 9:
        segment.damaged |= first
    elif kind == 3 and len(payload) >= 27:
        direction, _, stream, arrival, received_us = struct.unpack_from("<BBQQq", payload, 1)
        if direction > 1 or not 1 <= arrival < 1 << 63:
            segment.damaged = True
        else:
            segment.units.append(Unit(direction, stream, arrival, received_us, payload[27:]))
    elif kind == 4 and len(payload) >= 9:
        (arrival,) = struct.unpack_from("<Q", payload, 1)
        if 1 <= arrival < 1 << 63:
            segment.end = arrival, payload[9:].decode(errors="replace")
        else:
            segment.damaged = True
    else:
        segment.damaged = True


def without_copies(segments: Iterable[Segment]) -> tuple[list[Segment], list[Segment]]:
    """Return the segments to compare or to call misnamed, and the copies of them."""
    groups: dict[Any, list[Segment]] = {}
    for segment in segments:
        header = segment.header
        names = ("run", "host", "listener", "segment", "first_arrival")
        key = str(segment.path) if header is None else tuple(header.get(name) for name in names)
        groups.setdefault(key, []).append(segment)
    kept: list[Segment] = []
    copies: list[Segment] = []
    for group in groups.values():
        chosen: list[Segment] = []
        for one in sorted(group, key=lambda s: (s.misnamed, -len(s.data), len(s.path.name), str(s.path))):
            if any(_same_start(one.data, other.data) for other in chosen):
                copies.append(one)
            else:
                chosen.append(one)
        kept += chosen
    return kept, copies


def _same_start(one: bytes, other: bytes) -> bool:
    size = max(0, min(len(one), len(other)) - 64)
    return one[:size] == other[:size]


@dataclass
class Listener:
    name: str
    segments: list[Segment]

    @property
    def protocol(self) -> str:
        return next((s.protocol for s in self.segments if s.protocol in PROTOCOLS), "")

    @property
    def end_us(self) -> int:
        """When the last unit was received; 0: it is not known."""
        units = [unit for segment in self.segments for unit in segment.units]
        at = units[-1].received_us if units else 0
        return at if 0 < at < 1 << 53 else 0

    @property
    def hosts(self) -> set[str]:
        return {s.header.get("host", "") for s in self.segments if s.header is not None}

    @property
    def urls(self) -> set[str]:
        return {s.header["url"] for s in self.segments if s.header is not None}


def listeners_of(segments: Sequence[Segment]) -> list[Listener]:
    """Tell listeners apart, and note the gaps of each series."""
    by_folder: dict[tuple[str, Path], list[Segment]] = {}
    for segment in segments:
        assert segment.name
        by_folder.setdefault((segment.name[0], segment.path.parent), []).append(segment)
    found: list[Listener] = []
    for name in sorted({name for name, _ in by_folder}):
        series = [Listener(name, some) for (one, _), some in sorted(by_folder.items()) if one == name]
        for host in sorted({min(one.hosts, default="") for one in series} - {""}):
            same = [one for one in series if one.hosts == {host}]
            numbers = Counter(s.name[1] for one in same for s in one.segments if s.name)
            if len(same) > 1 and max(numbers.values()) == 1:
                series = [one for one in series if one not in same]
                series.append(Listener(name, [s for one in same for s in one.segments]))
        found += series
    for listener in found:
        listener.segments.sort(key=lambda s: (s.name or ("", 0))[1])
        _note_gaps(listener)
    return found


def begin_of(segment: Segment) -> int:
    """Return when the first unit of a segment was received, if its header can be read; 0: it is not known."""
    if segment.header is None or not segment.units:
        return 0
    at = segment.units[0].received_us
    return at if 0 < at < 1 << 53 else 0


def _note_gaps(listener: Listener) -> None:
    number, arrival = 1, 1
    after_nothing = False  # nobody knows how many units the segment before had
    for segment in listener.segments:
        assert segment.name
        if segment.name[1] != number:
            segment.gap_before = True
        number = segment.name[1] + 1
        if segment.header is not None and segment.header["first_arrival"] != arrival:
            segment.gap_before |= not after_nothing
            arrival = segment.header["first_arrival"]
        for i, unit in enumerate(segment.units):
            if i == 0 and segment.header is None:
                segment.gap_before |= unit.arrival != arrival
            else:
                segment.gap |= unit.arrival != arrival
            arrival = unit.arrival + 1
        if segment.end is not None:
            if segment.end[0] != arrival:
                segment.gap = True
            arrival = segment.end[0]
        after_nothing = segment.header is None and not segment.units and segment.end is None
    final = listener.segments[-1].end
    if final is not None and final[1] in ("rotated", "recovered", "resumed"):
        listener.segments[-1].continued = True


# --- the arrivals -------------------------------------------------------------------------------


class Arrival(NamedTuple):
    listener: int
    segment: int
    received_us: int
    hash: int
    name: Name | None
    digits: bool  # the id has 32 of them
    app_env: str = ""

    @property
    def event(self) -> Event | None:
        if self.name is None or not self.digits:
            return None
        high, low = self.name
        return f"{high:016x}{low >> 48:04x}", low & LAST


class Body(NamedTuple):
    hash: int
    name: Name | None = None
    digits: bool = False
    app_env: str = ""


def _digits(high: int, low: int, seq: int) -> Name:
    return high, low << 48 | seq


def _lumberjack(raw: bytes) -> Iterator[Body]:
    for row in lumberjack.decode_unit(raw, []):
        if row.status == lumberjack.OK:
            yield Body(row.hash, _digits(row.high, row.low, row.sequence), True)
        elif row.status == lumberjack.FOREIGN:
            yield Body(row.hash, row.id_hash)
        elif row.status == lumberjack.NO_ID:
            yield Body(row.hash)


def _logjam(raw: bytes) -> Iterator[Body]:
    row = logjam.decode(raw, [])
    app_env = row.app_env.decode("latin-1")
    if row.status == logjam.OK:
        yield Body(row.hash, _digits(row.prefix_high, row.prefix_low, row.sequence), True, app_env)
    elif row.status == logjam.FOREIGN:
        yield Body(row.hash, row.id_hash, False, app_env)
    elif row.status == logjam.NO_ID:
        yield Body(row.hash, None, False, app_env)


def _logux(raw: bytes) -> Iterator[Body]:
    for row in logux_decoder.decode(raw, []):
        if row.status == logux_decoder.OK:
            yield Body(row.hash, _digits(row.prefix_high, row.prefix_low, row.sequence), True)
        elif row.status == logux_decoder.FOREIGN:
            yield Body(row.hash, row.id_hash)
        elif row.status == logux_decoder.NO_ID:
            yield Body(row.hash)


class _Plog:
    """Puts the fragments of a listener together; a message is given up ten seconds after its last one."""

    def __init__(self) -> None:
        self.server = plog.Server((1 << 31) - 1)
        self.seen: dict[tuple[int, int], int] = {}

    def feed(self, unit: Unit) -> Iterator[Body]:
        raw = unit.raw
        key = None
        if len(raw) >= plog.HEADER.size and raw[:2] == b"\0\1":
            key = unit.stream, plog.HEADER.unpack_from(raw)[5]
        if key in self.server.open and unit.received_us - self.seen[key] >= 10_000_000:
            del self.server.open[key]
        found = self.server.feed(raw, unit.stream)
        if key is not None:
            self.seen[key] = unit.received_us
        if found.verdict in (plog.MESSAGE, plog.SIMPLE):
            yield from self.body(found.payload)

    def body(self, payload: bytes) -> Iterator[Body]:
        found = logjam.look(payload, "uuid")
        own = payload if found is None or found.own is None else found.own
        digits = found is not None and found.own is not None and is_digits(own)
        if digits:
            yield Body(xxh64(payload), (int(own[:16], 16), int(own[16:], 16)), True)
        else:
            yield Body(xxh64(payload), words(own))


def is_digits(own: bytes) -> bool:
    return re.fullmatch(rb"[0-9a-f]{32}", own) is not None


def arrivals_of(listeners: Sequence[Listener]) -> list[Arrival]:
    """Decode all units, in the order of each listener."""
    found = []
    for i, listener in enumerate(listeners):
        decoders = {"lumberjack": _lumberjack, "logjam": _logjam, "logux": _logux}
        datagrams = _Plog()
        for k, segment in enumerate(listener.segments):
            protocol = listener.protocol if segment.header is None else segment.protocol
            for unit in segment.units:
                if unit.direction or protocol not in PROTOCOLS:
                    continue
                bodies = datagrams.feed(unit) if protocol == "plog" else decoders[protocol](unit.raw)
                found += [Arrival(i, k, unit.received_us, *body) for body in bodies]
    return found


# --- the judgement ------------------------------------------------------------------------------


@dataclass
class Options:
    since_us: int | None = None
    until_us: int | None = None
    allow_open: bool = False
    max_missing: int | None = None
    max_duplicated: int | None = None
    max_dropped: int | None = None
    by_id: bool = False

    @property
    def selects(self) -> bool:
        return self.since_us is not None or self.until_us is not None

    def has(self, time_us: int) -> bool:
        return (self.since_us is None or time_us >= self.since_us) and (
            self.until_us is None or time_us < self.until_us
        )


@dataclass
class Judgement:
    exit_code: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_hash: set[str] = field(default_factory=set)  # ids of events compared as a multiset
    states: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] | None = None
    problems: set[str] = field(default_factory=set)
    order: dict[str, str] = field(default_factory=dict)
    listeners: list[dict[str, int]] = field(default_factory=list)
    checks: int = 0
    others: int = 0
    unread: int = 0


class Wrong(Exception):
    """Wrong usage: exit code 2."""


class Names(NamedTuple):
    """Which sequences have which own id, and what is compared as a multiset."""

    owner: dict[Name, Event]
    ambiguous: set[Name]
    shared: set[Event]  # listed
    shared_names: set[Name]  # theirs


def names_of(ledgers: dict[str, Ledger]) -> Names:
    """Find the sequences of own ids, and those that share one."""
    holders: dict[Name, list[Event]] = {}
    for ledger in ledgers.values():
        for seq, name in [*ledger.ids, *ledger.seconds]:
            holders.setdefault(name, []).append((ledger.producer, seq))
    owner: dict[Name, Event] = {}
    ambiguous: set[Name] = set()
    shared: set[Event] = set()
    for name, some in holders.items():
        high, low = name
        made = f"{high:016x}{low >> 48:04x}", low & LAST
        known = made[0] in ledgers and ledgers[made[0]].identity != "none"
        others = [one for one in some if not known or one != made]
        if len(some) > 1 or (known and others):
            ambiguous.add(name)
            shared.update(some)
            if known:
                shared.add(made)
        else:
            owner[name] = some[0]
    listed = {producer: set(ledger.listed) for producer, ledger in ledgers.items()}
    shared = {(producer, seq) for producer, seq in shared if seq in listed[producer]}
    shared_names = {name for name, some in holders.items() if not shared.isdisjoint(some)}
    return Names(owner, ambiguous, shared, shared_names)


class Judge:
    """One judgement."""

    def __init__(
        self, ledger_folders: Sequence[Path], capture_folders: Sequence[Path], options: Options, skip: bool
    ) -> None:
        self.options = options
        self.result = Judgement()
        self.ledgers, self.result.unread, self.ledgers_copied = read_ledgers(ledger_folders)
        found = find(capture_folders, ledgers=False)
        self.capture_unread = bool(found.unread)
        self.nothing = not self.ledgers or not found.files
        self.segments, self.copies = without_copies([read_segment(path) for path in found.files])
        self.misnamed = [s for s in self.segments if s.misnamed]
        self.listeners = listeners_of([s for s in self.segments if not s.misnamed])
        self.names = names_of(self.ledgers)
        self.skipped = self.of_other_times() if skip else set()
        self.none = {p for p, ledger in self.ledgers.items() if ledger.identity == "none"}
        self.by_hash = set(self.names.shared)
        for producer in self.none:
            self.by_hash |= {(producer, seq) for seq in self.ledgers[producer].listed}
        self.hashes = {self.ledgers[p].hashes[seq] for p, seq in self.by_hash}
        self.result.by_hash = {f"{p}{seq:012x}" for p, seq in self.by_hash}

    def of_other_times(self) -> set[int]:
        """Return the segments (by `id`) that are not read because of when they and the next ones begin."""
        options = self.options
        low = 0 if options.since_us is None else options.since_us - 10_000_000
        high = 1 << 53 if options.until_us is None else options.until_us + 60_000_000
        found: set[int] = set()
        for listener in self.listeners:
            begins = [begin_of(segment) for segment in listener.segments]
            known = [begin or 1 << 53 for begin in begins]
            for i, segment in enumerate(listener.segments):
                carries = any(one.protocol == "plog" for one in listener.segments)
                before = [
                    k + 1 < len(begins) and bool(begins[k + 1]) and max(begins[: k + 2]) < low
                    for k in ((i, i + 1) if carries else (i,))
                ]
                if all(before) or (begins[i] and min(known[i:]) > high):
                    found.add(id(segment))
        return found

    # -- arrivals

    def assigned(self, arrival: Arrival) -> Event | None:
        """Return the sequence that an arrival belongs to; None: it is unassigned."""
        if arrival.name in self.names.ambiguous or arrival.name is None:
            return None
        event = arrival.event
        if event is None or event[0] not in self.ledgers or event[0] in self.none:
            event = self.names.owner.get(arrival.name)
        return None if event in self.by_hash else event

    def has_known_id(self, arrival: Arrival) -> bool:
        """Say whether the ledgers have the id of an arrival."""
        if arrival.name in self.names.ambiguous or self.is_of_multiset(arrival):
            return True
        return self.assigned(arrival) is not None

    def is_of_multiset(self, arrival: Arrival) -> bool:
        """Say whether an arrival has the id of an event that is compared as a multiset."""
        return arrival.event in self.by_hash or arrival.name in self.names.shared_names

    def run_of(self, arrival: Arrival) -> tuple[str, str] | None:
        return self.listeners[arrival.listener].segments[arrival.segment].run

    def judge(self) -> Judgement:
        if self.nothing:
            raise Wrong("nothing to compare")
        if self.options.by_id and self.by_hash and not self.options.selects:
            raise Wrong("events without an id of their own")
        self.sort_arrivals()
        self.find_other_runs()
        self.select()
        self.find_doubt()
        self.judge_sequences()
        self.judge_by_hash()
        self.judge_unassigned()
        self.judge_order()
        self.finish()
        return self.result

    def sort_arrivals(self) -> None:
        self.arrivals: list[Arrival] = []
        self.checks: list[Arrival] = []
        for arrival in arrivals_of(self.listeners):
            if id(self.listeners[arrival.listener].segments[arrival.segment]) in self.skipped:
                continue
            event = arrival.event
            known = arrival.name in self.names.owner or arrival.name in self.names.ambiguous
            if event and event[0].startswith(CHECKS) and event[0] not in self.ledgers and not known:
                self.checks.append(arrival)
                continue
            self.arrivals.append(arrival)

    # -- runs

    def find_other_runs(self) -> None:
        """Find the runs whose events all come from other producers."""
        by_id: set[Any] = set()
        by_hash: set[Any] = set()
        events: Counter[Any] = Counter()
        times: dict[Any, list[int]] = {}
        for arrival in self.arrivals:
            run = self.run_of(arrival)
            events[run] += 1
            times.setdefault(run, []).append(arrival.received_us)
            if self.assigned(arrival) is not None or self.has_known_id(arrival):
                by_id.add(run)
            elif arrival.hash in self.hashes:
                by_hash.add(run)
        for arrival in self.checks:
            times.setdefault(self.run_of(arrival), []).append(arrival.received_us)
        created = [made for one in self.ledgers.values() for made in one.created.values()]
        ours = by_id | by_hash
        for run in by_hash - by_id:
            early = bool(created) and EARLIEST_US < min(times[run]) <= max(times[run]) < min(created)
            if early and any(max(times[other]) >= min(created) for other in ours - {run}):
                ours = ours - {run}
        self.other_runs = set(events) - ours - {None}  # a header that cannot be read names no run
        runs = {segment.run for listener in self.listeners for segment in listener.segments}
        self.no_run_of_ours = bool(self.other_runs) and not runs - self.other_runs
        self.foreign = [a for a in self.arrivals if self.run_of(a) in self.other_runs]
        self.arrivals = [a for a in self.arrivals if self.run_of(a) not in self.other_runs]
        self.result.others = sum(map(self.is_other, self.arrivals))
        self.result.checks = sum(self.run_of(a) not in self.other_runs for a in self.checks)
        self.arrivals = [a for a in self.arrivals if not self.is_other(a)]

    def is_other(self, arrival: Arrival) -> bool:
        """Say whether an arrival is a message of another application."""
        if self.listeners[arrival.listener].protocol != "logjam":
            return False
        if self.has_known_id(arrival):
            return False
        urls = [one.url for one in self.ledgers.values() if one.protocol == "logjam"]
        ours = {urlsplit(url).path.strip("/") for url in urls}
        return bool(ours) and not ours & {"", arrival.app_env}

    # -- the selection

    def select(self) -> None:
        self.seen: dict[Event, list[Arrival]] = {}
        self.unassigned: list[Arrival] = []
        for arrival in self.arrivals:
            event = self.assigned(arrival)
            if event is None:
                self.unassigned.append(arrival)
            else:
                self.seen.setdefault(event, []).append(arrival)
        self.producers_out: set[str] = set()
        self.unjudged: set[str] = set()  # nothing of them is selected
        self.out: set[Event] = set()
        if not self.options.selects:
            return
        self.producers_out |= self.none
        for producer, ledger in self.ledgers.items():
            listed = set(ledger.listed)
            places = range(1, ledger.last + 1)
            by_time = {seq for seq in places if not self.in_time(ledger, listed, seq)}
            by_hash = {seq for seq in places if (producer, seq) in self.by_hash}
            ended = not self.in_time(ledger, listed, ledger.last + 1)
            if len(by_time) == ledger.last and ended:
                self.producers_out.add(producer)
            gone = set(places) if producer in self.producers_out else by_time | by_hash
            self.out |= {(producer, seq) for seq in gone}
            if ended and len(gone) == ledger.last:
                self.unjudged.add(producer)
        without_id = len(self.names.shared) + sum(self.ledgers[producer].last for producer in self.none)
        without_id -= sum(producer in self.none for producer, _ in self.names.shared)
        self.result.left_out = {
            "producers": len(self.producers_out),
            "events": len(self.out),
            "without_id": without_id,
        }

    def in_time(self, ledger: Ledger, listed: set[int], seq: int) -> bool:
        """Say whether a sequence is of the selected time."""
        options = self.options
        if seq in listed:
            return options.has(ledger.created[seq])
        below = [ledger.created[max(s for s in listed if s < seq)]] if any(s < seq for s in listed) else []
        if not below and ledger.begun_us is not None:
            below = [ledger.begun_us]
        above = [ledger.created[min(s for s in listed if s > seq)]] if any(s > seq for s in listed) else []
        if not above and ledger.ended_us is not None:
            above = [ledger.ended_us]
        if options.since_us is not None and above and above[0] < options.since_us:
            return False
        return not (options.until_us is not None and below and below[0] >= options.until_us)

    # -- doubt

    def find_doubt(self) -> None:
        """Find the protocols whose captures are incomplete, and note the problems."""
        doubt: set[str] = set()
        self.unordered: set[str] = set()
        self.ends: dict[str, int] = {}  # of protocols whose captures go on, when the last unit was received
        kinds = self.result.problems

        def doubts(protocol: str) -> set[str]:
            return {protocol} if protocol in PROTOCOLS else set(PROTOCOLS)

        if self.capture_unread:
            kinds.add("unread")
            doubt |= set(PROTOCOLS)
        if self.copies or self.ledgers_copied:
            kinds.add("copy")
        for segment in self.misnamed:
            kinds.add("misnamed")
            doubt |= doubts(segment.protocol)
        for listener in self.listeners:
            protocols: set[str] = set()
            for segment in listener.segments:
                protocols |= doubts(listener.protocol if segment.header is None else segment.protocol)
            around = [None, *listener.segments, None]
            for before, segment, after in zip(around, listener.segments, around[2:], strict=False):
                found = {x for x in ("damage", "unclosed", "gap") if self.has_problem(segment, x, before)}
                kinds |= found
                wrong = segment.damaged or segment.gap or self.is_gap_before(segment, before)
                goes_on = after is None and not wrong
                if found and goes_on and len(protocols) == 1 and (end_us := listener.end_us):
                    [protocol] = protocols
                    self.ends[protocol] = min(end_us, self.ends.get(protocol, end_us))
                elif found and not self.is_before(after):
                    doubt |= protocols
                    self.unordered |= protocols if found != {"unclosed"} else set()
        if any(self.is_received(a) for a in self.foreign):
            kinds.add("other run")
            if self.no_run_of_ours:
                doubt |= set(PROTOCOLS)
        for ledger in self.ledgers.values():
            if ledger.producer not in self.producers_out and self.lacks_listener(ledger):
                kinds.add("endpoint")
                doubt.add(ledger.protocol)
        self.doubt = doubt

    def is_compared(self, segment: Segment) -> bool:
        return segment.run not in self.other_runs

    def has_problem(self, segment: Segment, kind: str, before: Segment | None) -> bool:
        if id(segment) in self.skipped:
            return False
        return {
            "damage": segment.damaged,
            "unclosed": segment.unclosed,
            "gap": segment.gap or segment.continued or self.is_gap_before(segment, before),
        }[kind]

    def is_gap_before(self, segment: Segment, before: Segment | None) -> bool:
        return segment.gap_before and (before is None or id(before) not in self.skipped)

    def is_before(self, segment: Segment | None) -> bool:
        """Say whether a segment has a unit received before the selected time."""
        since = self.options.since_us
        if segment is None or since is None:
            return False
        return any(EARLIEST_US < unit.received_us < since for unit in segment.units)

    def lacks_listener(self, ledger: Ledger) -> bool:
        """Say whether an endpoint of a producer has no listener."""
        endpoints = endpoints_of(ledger.url)
        places = {(ledger.producer, seq) for seq in range(1, ledger.last + 1)}
        listed = set(ledger.listed)
        seen = {event for event in self.seen if event[0] == ledger.producer}
        seen = {(_, seq) for _, seq in seen if self.in_time(ledger, listed, seq)}
        if not (places | seen) - self.out:
            return False
        listeners = [
            one
            for one in self.listeners
            if one.protocol == ledger.protocol and any(map(self.is_compared, one.segments))
        ]
        free = list(listeners)
        without = 0
        for endpoint in endpoints:
            match = next((one for one in free if any(may_be(endpoint, url) for url in one.urls)), None)
            if match is None:
                without += 1
            else:
                free.remove(match)
        if not without:
            return False
        senders = {p for p, one in self.ledgers.items() if one.url == ledger.url}
        arrived = any(
            p in senders
            and (p, seq) not in self.out
            and self.listed_word(self.ledgers[p], seq) not in ("", "unknown")
            for p, seq in self.seen
        )
        if not self.options.selects:
            hashes = {arrival.hash for arrival in self.unassigned}
            arrived |= any(self.ledgers[p].hashes[seq] in hashes for p, seq in self.by_hash if p in senders)
        return not (arrived and len(free) >= without)

    # -- words

    @property
    def judged(self) -> dict[str, Ledger]:
        return {p: ledger for p, ledger in self.ledgers.items() if p not in self.producers_out}

    @property
    def whole(self) -> bool:
        return not self.result.unread and all(one.state == "whole" for one in self.judged.values())

    def is_pending(self, ledger: Ledger, seq: int) -> bool:
        until = self.options.until_us
        if until is None or ledger.state != "unclosed" or ledger.ended:
            return False
        return seq > max((s for s in ledger.listed if ledger.created[s] < until), default=0)

    def add(self, word: str, ident: str, n: int = 1) -> None:
        self.result.counts[word] += n
        if word != "ok":
            self.result.violations[word, ident] += 1

    def judge_sequences(self) -> None:
        result = self.result
        for producer, ledger in self.ledgers.items():
            result.states[producer] = ledger.state
            listed = set(ledger.listed)
            own = {seq for seq, _ in ledger.ids}
            for seq in range(1, ledger.last + 1):
                if (producer, seq) in self.out:
                    continue
                result.counts["events"] += 1
                if (producer, seq) in self.by_hash:
                    continue
                copies = self.seen.get((producer, seq), [])
                word = self.word(ledger, seq, seq in listed, seq in own, copies)
                self.add(word, f"{producer}{seq:012x}")
                if seq in listed and len(copies) > 1:
                    self.add("duplicated", f"{producer}{seq:012x}", len(copies) - 1)
        for (producer, seq), _ in sorted(self.seen.items()):
            ledger = self.ledgers[producer]
            if producer in self.producers_out or 1 <= seq <= ledger.last:
                continue
            if not self.in_time(ledger, set(ledger.listed), seq):
                continue
            word = "unexpected"
            if seq != 0 and ledger.state != "whole":
                word = self.unlisted_word(ledger, seq, self.seen[producer, seq])
            self.add(word, f"{producer}{seq:012x}")

    def word(self, ledger: Ledger, seq: int, listed: bool, own: bool, copies: list[Arrival]) -> str:
        fate = ledger.fate(seq)
        doubtful = "pending" if self.is_pending(ledger, seq) else "unknown"
        if listed and copies:
            if not self.options.by_id and any(copy.hash != ledger.hashes[seq] for copy in copies):
                return "unknown" if ledger.twice or (own and not self.whole) else "corrupted"
            return "ok" if fate in ("acked", "handed") else "recovered"
        if listed:
            return self.unseen(ledger, seq)
        if copies:
            return self.unlisted_word(ledger, seq, copies)
        return {"dropped": "dropped", "failed": "missing"}.get(fate, doubtful)

    def listed_word(self, ledger: Ledger, seq: int) -> str:
        """Return the word of an event that arrived, if it is listed."""
        own = seq in {number for number, _ in ledger.ids}
        copies = self.seen[ledger.producer, seq]
        return self.word(ledger, seq, True, own, copies) if seq in ledger.listed else ""

    def unlisted_word(self, ledger: Ledger, seq: int, copies: list[Arrival]) -> str:
        """Return the word of an event that arrived, and is not listed."""
        fate = ledger.fate(seq)
        received = min((a.received_us for a in copies if self.has_time(a)), default=NEVER)
        if fate == "dropped" or (fate == "undecided" and received <= self.complete_us(ledger)):
            return "unexpected"
        until = self.options.until_us
        if until is not None and received < until - CLOCKS_US:
            return "unknown"
        return "pending" if self.is_pending(ledger, seq) else "unknown"

    def complete_us(self, ledger: Ledger) -> int:
        """Return until when an event that arrived must be listed."""
        if ledger.state == "whole" or (ledger.state == "unclosed" and ledger.ended):
            return NEVER
        known = ledger.state == "unclosed" and ledger.last_line_us > 0
        return ledger.last_line_us - CLOCKS_US if known else -NEVER

    def unseen(self, ledger: Ledger, seq: int) -> str:
        """Return the word of a listed event that did not arrive."""
        fate = ledger.fate(seq)
        if fate == "undecided" and ledger.open:
            return "pending" if self.is_pending(ledger, seq) else "unknown"
        end_us = self.ends.get(ledger.protocol)
        if end_us is not None and ledger.decided_us.get(seq, end_us) >= end_us - CLOCKS_US:
            return "unknown"
        if ledger.protocol in self.doubt:
            return "unknown"
        return "lost" if fate == "acked" else "missing"

    def judge_by_hash(self) -> None:
        """Compare events without ids of their own, as a multiset."""
        self.left: Counter[int] = Counter(arrival.hash for arrival in self.unassigned)
        if self.options.selects:
            return
        by_hash: dict[int, list[Event]] = {}
        for producer, seq in sorted(self.by_hash):
            by_hash.setdefault(self.ledgers[producer].hashes[seq], []).append((producer, seq))
        for value, events in by_hash.items():
            events.sort(key=lambda e: -STRENGTH.get(self.ledgers[e[0]].fate(e[1]), 0))
            arrived = self.left.pop(value, 0)
            if arrived > len(events):
                producer, seq = events[0]
                self.add("duplicated", f"{producer}{seq:012x}", arrived - len(events))
            for i, (producer, seq) in enumerate(events):
                ledger = self.ledgers[producer]
                if i >= arrived:
                    word = self.unseen(ledger, seq)
                else:
                    word = "ok" if ledger.fate(seq) in ("acked", "handed") else "recovered"
                self.add(word, f"{producer}{seq:012x}")

    def judge_unassigned(self) -> None:
        options = self.options
        complete_us = min((self.complete_us(one) for one in self.judged.values()), default=NEVER)
        if self.result.unread or any(one.state in ("stopped", "holes") for one in self.ledgers.values()):
            complete_us = -NEVER
        word = "unexpected" if complete_us == NEVER else "unknown"
        if self.by_hash and not options.selects:
            for value in self.left:
                self.add(word, f"~{value:016x}")
        else:
            early: dict[bool, list[Arrival]] = {True: [], False: []}
            first: dict[object, int] = {}
            chosen = [a for a in self.unassigned if self.is_selected(a)]
            for a in chosen:
                at = a.received_us if self.has_time(a) else NEVER
                first[self.ident_of(a)] = min(at, first.get(self.ident_of(a), NEVER))
            for a in chosen:
                ours = a.name is not None and a.digits and a.name[1] % (1 << 48) < 1 << 40
                new = ours and options.until_us is not None  # its ledger may not be copied yet
                early[first[self.ident_of(a)] <= complete_us and not new].append(a)
            self.add_each("unexpected", early[True])
            self.add_each("unknown", early[False])
        foreign = [a for a in self.foreign if self.is_received(a)]
        self.result.counts["unknown"] += len(foreign)

    def add_each(self, word: str, arrivals: Iterable[Arrival]) -> None:
        """Count events once for each id, or hash."""
        for ident in sorted({self.ident_of(arrival) for arrival in arrivals}):
            self.add(word, ident)

    def ident_of(self, arrival: Arrival) -> str:
        if arrival.name is None:
            return f"~{arrival.hash:016x}"
        digits = f"{arrival.name[0]:016x}{arrival.name[1]:016x}"
        return digits if arrival.digits else "~" + digits

    def has_time(self, arrival: Arrival) -> bool:
        """Say whether somebody knows when an arrival was received."""
        return EARLIEST_US <= arrival.received_us <= LATEST_US

    def is_received(self, arrival: Arrival) -> bool:
        """Say whether an arrival was received in the selected time, or nobody knows when."""
        return not self.has_time(arrival) or self.options.has(arrival.received_us)

    def is_selected(self, arrival: Arrival) -> bool:
        if not self.options.selects:
            return True
        if arrival.name is None or self.is_of_multiset(arrival) or arrival.hash in self.hashes:
            return False
        if not arrival.digits and arrival.name[0] == arrival.hash:
            return False  # plog has no place for an id outside of a body, and this one has none
        return self.is_received(arrival)

    # -- order

    def judge_order(self) -> None:
        self.breaking: set[str] = set()
        self.doubtful: set[str] = set()
        found: set[Event] = set()
        for i, listener in enumerate(self.listeners):
            highest: dict[str, int] = {}
            passed: set[Event] = set()
            row: Counter[str] = Counter(events=0, seen=0, duplicated=0, corrupted=0, reordered=0)
            for arrival in self.arrivals:
                if arrival.listener != i:
                    continue
                row["events"] += 1
                event = self.assigned(arrival)
                if event is None or event in self.out:
                    continue
                producer, seq = event
                ledger = self.ledgers[producer]
                if seq not in ledger.listed:
                    continue
                row["corrupted"] += not self.options.by_id and arrival.hash != ledger.hashes[seq]
                row["duplicated"] += event in passed
                if event in passed:
                    continue
                passed.add(event)
                row["seen"] += 1
                if self.options.by_id:
                    continue
                if seq in ledger.deferred or (ledger.open and ledger.fate(seq) == "undecided"):
                    continue
                if seq < highest.get(producer, 0):
                    found.add(event)
                    row["reordered"] += 1
                highest[producer] = max(seq, highest.get(producer, 0))
            if any(map(self.is_compared, listener.segments)):
                self.result.listeners.append(dict(row))
        for producer, seq in sorted(found):
            ledger = self.ledgers[producer]
            self.add("reordered", f"{producer}{seq:012x}")
            if self.promises_order(ledger) and not ledger.holes:
                (self.doubtful if ledger.protocol in self.unordered else self.breaking).add(producer)

    def promises_order(self, ledger: Ledger) -> bool:
        if ledger.identity == "none":
            return False
        return ledger.protocol == "lumberjack" or (ledger.protocol == "logjam" and ledger.mode != "async")

    # -- the exit code

    def finish(self) -> None:
        options, result = self.options, self.result
        counts = result.counts
        for producer, ledger in self.judged.items():
            checked = ledger.identity != "none" and not options.by_id
            result.order[producer] = "checked" if checked else "not checked"
        result.states = {p: state for p, state in result.states.items() if p not in self.producers_out}
        limits = {
            "missing": options.max_missing,
            "duplicated": options.max_duplicated,
            "dropped": options.max_dropped,
        }
        broken = any(counts[word] for word in ("lost", "corrupted", "unexpected")) or bool(self.breaking)
        broken = broken or any(limit is not None and counts[word] > limit for word, limit in limits.items())
        doubtful = bool(counts["unknown"] or result.unread or self.capture_unread or self.doubtful)
        doubtful = doubtful or any(map(self.is_incomplete, self.judged.values()))
        arrived = any(counts[word] for word in ("ok", "recovered", "corrupted", "unexpected"))
        doubtful = doubtful or (counts["events"] and not arrived)
        if options.selects and not counts["events"]:
            result.problems.add("selection")
            doubtful = True
        result.exit_code = 1 if broken else 3 if doubtful else 0

    def is_incomplete(self, ledger: Ledger) -> bool:
        """Say whether a ledger that is not whole gives exit code 3."""
        if ledger.producer in self.unjudged:
            return False
        if ledger.state == "unclosed":
            until = self.options.until_us
            listed = ledger.listed
            goes_on = until is not None and bool(listed) and ledger.created[listed[-1]] >= until
            heard = not ledger.goes_on
            if until is not None:
                heard = ledger.ended or (ledger.last_line_us >= until and not ledger.waiting)
            return not goes_on and not (heard and (self.options.allow_open or until is not None))
        return ledger.state != "whole"


def endpoints_of(url: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a URL."""
    matched = re.match(r"[a-z0-9+]+://([^/?]*)", url)
    found = []
    for one in matched[1].split(",") if matched else []:
        host, _, port = one.rpartition(":")
        if port.isdecimal():
            found.append((host, int(port)))
    return found


def may_be(endpoint: tuple[str, int], urls: str) -> bool:
    """Say whether a listener may be an endpoint."""
    for url in urls.split(","):
        for host, port in endpoints_of(url):
            names = [re.fullmatch(r"[0-9.]+|\[.*\]", one) is None for one in (host, endpoint[0])]
            if port == endpoint[1] and (host in (endpoint[0], "0.0.0.0") or names[0] != names[1]):
                return True
    return False


def judge(ledger_folders: Sequence[Path], capture_folders: Sequence[Path], options: Options) -> Judgement:
    """Judge ledgers and captures.

    Raises:
        Wrong: the usage is wrong.
    """
    some = Judge(ledger_folders, capture_folders, options, skip=True)
    result = some.judge()
    if some.skipped and any(result.counts[word] for word in ("lost", "missing", "unknown", "pending")):
        return Judge(ledger_folders, capture_folders, options, skip=False).judge()
    return result


if __name__ == "__main__":
    from tests.verify.random_histories import main

    raise SystemExit(main())
