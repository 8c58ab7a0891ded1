"""The verdict on a ledger and a capture by the rules of docs/verify-rules.md and docs/formats.md.

It reads the files as bytes and shares no code with the verifier. The oracles of their decoders split plog,
Logjam and Logux units.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import xxhash

from tests.oracle import logjam, logux_decoder, plog

LAST = (1 << 48) - 1
STRENGTH = {"dropped": 1, "failed": 2, "handed": 3, "acked": 4}
EXPECTED_TO_COME = ("acked", "handed")
FOLLOWED = ("rotated", "recovered", "resumed")

Folder = dict[str, bytes]


class Nothing(Exception):
    """The error of a case without any ledger or capture."""


class Result(NamedTuple):
    exit_code: int
    counts: dict[str, dict[str, int]]  # producer ("": none) -> word -> number
    ledgers: dict[str, str]  # producer -> whole, unclosed, stopped, holes
    ledger_complete: bool
    capture_complete: bool


# -- ledgers


class Damaged(Exception):
    pass


def _number(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise Damaged
    return value


def _seqs(value: Any) -> list[int]:
    """Return the sequences of some ranges."""
    found: list[int] = []
    if not isinstance(value, list) or not value:
        raise Damaged
    before = 0
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise Damaged
        first, last = (_number(x, 1, LAST) for x in pair)
        if not before < first <= last:
            raise Damaged
        if last - first > 1 << 16:
            raise AssertionError("a range that no case of ours has")
        found += range(first, last + 1)
        before = last
    return found


def _packed(value: Any, size: int) -> bytes:
    if not isinstance(value, str):
        raise Damaged
    try:
        data = base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise Damaged from None
    if len(data) != size or base64.b64encode(data).decode() != value:
        raise Damaged
    return data


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Damaged
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Damaged
    return value


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    """Check a line.

    Raises:
        Damaged: it breaks a rule of its kind.
    """
    kind = _text(line.get("t"))
    found: dict[str, Any] = {"t": kind}
    if kind in ("batch", "ids", "outcome", "deferred", "dropped"):
        seqs = found["seqs"] = _seqs(line.get("seqs"))
    if kind in ("batch", "ids") and _number(line.get("n"), 0, 1 << 62) != len(seqs):
        raise Damaged
    if kind == "batch":
        found["base"] = _number(line.get("base"), -(1 << 60), 1 << 60)
        after = struct.unpack(f"<{len(seqs)}i", _packed(line.get("created"), 4 * len(seqs)))
        found["created"] = [found["base"] + us for us in after]
        hashes = _packed(line.get("hashes"), 8 * len(seqs))
        found["hashes"] = struct.unpack(f"<{len(seqs)}Q", hashes)
        found["own"] = _seqs(line["own"]) if "own" in line else []
        if not set(found["own"]) <= set(seqs):
            raise Damaged
    elif kind == "ids":
        words = struct.unpack(f"<{2 * len(seqs)}Q", _packed(line.get("ids"), 16 * len(seqs)))
        found["ids"] = list(zip(seqs, zip(words[::2], words[1::2], strict=True), strict=True))
        if "beside" in line:
            beside = _seqs(line["beside"])
            if not set(beside) <= set(seqs):
                raise Damaged
            words = struct.unpack(f"<{2 * len(beside)}Q", _packed(line.get("second"), 16 * len(beside)))
            found["ids"] += zip(beside, zip(words[::2], words[1::2], strict=True), strict=True)
    elif kind == "outcome":
        found["status"] = _text(line.get("status"))
        if found["status"] not in ("acked", "handed", "failed"):
            raise Damaged
    elif kind == "stopped":
        _text(line.get("reason"))
    elif kind == "open":
        _number(line.get("version"), 1, 1)
        for name in ("producer", "protocol", "url", "identity"):
            found[name] = _text(line.get(name))
        if found["identity"] not in ("id", "none"):
            raise Damaged
        found["part"] = _number(line.get("part"), -(1 << 80), 1 << 80)
        found["mode"] = line.get("mode", "")
    elif kind == "close":
        found["last"] = _number(line.get("last"), 0, LAST)
        for name in ("acked", "handed"):
            found[name] = _number(line.get(name), 0, (1 << 63) - 1)
        for name in ("failed", "dropped"):
            values = _object(line.get(name)).values()
            found[name] = sum(_number(value, 0, (1 << 63) - 1) for value in values)
        if "bytes" in line:
            found["bytes"] = _number(line["bytes"], 0, (1 << 63) - 1)
    return found


class Line(NamedTuple):
    at: int
    fields: dict[str, Any] | None  # None: damaged
    opens: bool


class Part:
    """A file of a ledger, with the lines that count."""

    def __init__(self, producer: str, number: int, data: bytes) -> None:
        self.producer = producer
        self.number = number
        self.size = len(data)
        *whole, rest = data.split(b"\n")
        self.torn = bool(rest)
        self.lines: list[Line] = []
        at = 0
        for text in whole:
            if text:
                self.lines.append(self._line(at, text))
            at += len(text) + 1
        self.complete = len(whole) > 0
        first = self.lines[0].fields if self.lines else None
        self.open: dict[str, Any] | None = None
        if first and first["t"] == "open" and (first["producer"], first["part"]) == (producer, number):
            self.open = first
        self.second_open = False
        for i, line in enumerate(self.lines):
            if i and line.opens:
                self.second_open = True
                del self.lines[i:]
                break

    @staticmethod
    def _line(at: int, text: bytes) -> Line:
        try:
            value = json.loads(text.decode())
        except (ValueError, RecursionError):
            return Line(at, None, False)
        if not isinstance(value, dict):
            return Line(at, None, False)
        opens = value.get("t") == "open"
        try:
            return Line(at, _checked(value), opens)
        except Damaged:
            return Line(at, None, opens)


class Producer:
    """The ledger of one producer."""

    def __init__(self, name: str, parts: list[Part]) -> None:
        self.name = name
        parts.sort(key=lambda part: part.number)
        holes = [part.number for part in parts] != list(range(1, len(parts) + 1))
        counting: list[Part] = []
        for part in parts:
            if part is parts[-1] and not part.complete:
                continue  # an empty part
            about = counting[0].open if counting else part.open
            if (
                part.open is None
                or about is None
                or any(part.open[word] != about[word] for word in ("identity", "protocol"))
            ):
                holes = True
                continue
            counting.append(part)
            holes |= part.second_open
            holes |= part.torn and part is not parts[-1] and not part.second_open
        first = counting[0].open if counting else None
        self.identity = first["identity"] if first else "id"
        self.protocol = first["protocol"] if first else ""
        self.mode = first["mode"] if first else ""
        self.url = first["url"] if first else ""
        self.created: dict[int, int] = {}
        self.hash: dict[int, int] = {}
        self.ids: list[tuple[int, tuple[int, int]]] = []
        self.deferred: set[int] = set()
        self._outcomes: dict[int, str] = {}
        batches: Counter[int] = Counter()
        own: set[int] = set()
        stopped = False
        self.last = 0
        for part in counting:
            for line in part.lines:
                fields = line.fields
                if fields is None:
                    holes = True
                    continue
                kind, seqs = fields["t"], fields.get("seqs", [])
                if kind == "batch":
                    batches.update(seqs)
                    own |= set(fields["own"])
                    self.hash.update(zip(seqs, fields["hashes"], strict=True))
                    self.created.update(zip(seqs, fields["created"], strict=True))
                elif kind == "ids":
                    self.ids += fields["ids"]
                elif kind in ("outcome", "dropped"):
                    outcome = fields.get("status", "dropped")
                    for seq in seqs:
                        if STRENGTH[outcome] > STRENGTH.get(self._outcomes.get(seq, ""), 0):
                            self._outcomes[seq] = outcome
                elif kind == "deferred":
                    self.deferred |= set(seqs)
                elif kind == "stopped":
                    stopped = True
                if kind in ("batch", "outcome", "dropped"):
                    self.last = max([self.last, *seqs])
                elif kind == "close":
                    self.last = max(self.last, fields["last"])
        # Closed.
        tail = parts[-1]
        end = tail.lines[-1] if tail in counting and tail.lines and not tail.second_open else None
        close = end.fields if end and end.fields and end.fields["t"] == "close" and not tail.torn else None
        # Holes.
        with_id = {seq for seq, _ in self.ids}
        holes |= any(n > 1 for n in batches.values())
        holes |= bool(own - with_id) or bool(with_id - batches.keys())
        holes |= any(
            outcome in EXPECTED_TO_COME and seq not in batches for seq, outcome in self._outcomes.items()
        )
        if close:
            assert end is not None
            outcomes = Counter(self._outcomes.values())
            holes |= close["last"] < self.last
            holes |= any(close[word] != outcomes[word] for word in STRENGTH)
            before = sum(part.size for part in parts if part is not tail) + end.at
            holes |= close.get("bytes", before) != before
            made = set(range(1, min(self.last, 1 << 17) + 1))
            holes |= bool(made - batches.keys() - self._outcomes.keys())
        for seq in [seq for seq, n in batches.items() if n > 1 or (seq in own and seq not in with_id)]:
            del self.hash[seq], self.created[seq]
        self.state = "holes" if holes else "stopped" if stopped else "whole" if close else "unclosed"

    @property
    def whole(self) -> bool:
        return self.state == "whole"

    @property
    def promises_order(self) -> bool:
        return self.protocol == "lumberjack" or (self.protocol == "logjam" and self.mode != "async")

    def outcome(self, seq: int) -> str:
        return self._outcomes.get(seq, "")


def read_ledgers(folder: Folder) -> tuple[dict[str, Producer], int]:
    """Return the producers, and the number of unread files."""
    copies: dict[str, list[bytes]] = defaultdict(list)
    unread = 0
    for path, data in folder.items():
        name = path.rpartition("/")[2]  # a ledger may be in a subfolder
        found = re.fullmatch(r"[0-9a-f]{20}-([0-9]{4,})\.ledger", name)
        if found and found[1] == f"{int(found[1]):04d}":
            copies[name].append(data)
        elif ".ledger" in name.lower():
            unread += 1
    parts: dict[str, list[Part]] = defaultdict(list)
    for name, found_data in copies.items():
        longest = max(found_data, key=len)
        unread += sum(not longest.startswith(data) for data in found_data)
        parts[name[:20]].append(Part(name[:20], int(name[21:-7]), longest))
    return {name: Producer(name, some) for name, some in parts.items()}, unread


# -- captures


class Arrival(NamedTuple):
    """An event with its place of arrival."""

    listener: str
    producer: str  # of an id of 32 digits, with its sequence
    seq: int
    own: tuple[int, int] | None  # the hash of any id it has
    hash: int
    received_us: int


class Unit(NamedTuple):
    stream: int
    direction: int
    received_us: int
    raw: bytes


class Segment:
    """One file of a capture."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        found = re.fullmatch(r"(.+)-([0-9]{6,})\.cap", name)
        self.listener = found[1] if found else name
        self.number = int(found[2]) if found else 0
        self.named = found is not None
        self.problems = 0
        self.header: dict[str, Any] | None = None
        self.units: list[Unit] = []
        self.first = self.next = 0  # arrivals; 0: not known
        self.end = ""
        self._read()

    def _read(self) -> None:
        data, at, ended = self.data, 0, False
        while len(data) - at >= 8:
            length, crc = struct.unpack_from("<II", data, at)
            if not 0 < length <= 1 << 30:
                if length or any(data[at:]):
                    self.problems += 1
                break
            payload = data[at + 8 : at + 8 + length]
            if len(payload) < length:
                break
            if zlib.crc32(payload) != crc:
                self.problems += 1 + ended
            else:
                self.problems += ended
                ended |= self._record(payload, at == 0, ended)
            at += 8 + length
        self.problems += self.header is None
        self.unclosed = not ended

    def _record(self, payload: bytes, first: bool, ended: bool) -> bool:
        """Handle one record; return whether it is an end."""
        kind = payload[0]
        if kind == 1 and len(payload) >= 5:
            header = _header(payload) if first else None
            if header is None:
                self.problems += 1
            else:
                self.header = header
                self.first = self.next = header["first_arrival"]
        elif kind == 3 and len(payload) >= 27 and payload[1] <= 1:
            _, direction, _, stream, arrival, received_us = struct.unpack_from("<BBBQQq", payload)
            if not 0 < arrival < 1 << 63:
                self.problems += 1
                return False
            if self.next and arrival != self.next:
                self.problems += 1
            self.first = self.first or arrival
            self.next = arrival + 1
            self.units.append(Unit(stream, direction, received_us, payload[27:]))
        elif (
            kind == 4
            and len(payload) >= 9
            and 0 < (after := struct.unpack_from("<Q", payload, 1)[0]) < 1 << 63
        ):
            if self.next and after != self.next:
                self.problems += 1
            self.next = after
            self.end = payload[9:].decode("utf-8", "replace")
            return True
        elif kind != 2 or len(payload) < 9:
            self.problems += 1
        return False

    def fits(self) -> bool:
        """Return whether its name agrees with its header."""
        assert self.header is not None
        mine = self.header["listener"]
        named = self.listener == mine or self.listener.endswith("." + mine)
        return named and self.number == self.header["segment"]

    def identity(self) -> tuple[Any, ...] | None:
        header = self.header
        if header is None:
            return None
        return header.get("host", ""), *(header[x] for x in ("run", "listener", "segment", "first_arrival"))

    def same(self, other: Segment) -> bool:
        n = max(min(len(self.data), len(other.data)) - 64, 0)
        return self.identity() == other.identity() and self.data[:n] == other.data[:n]


def _header(payload: bytes) -> dict[str, Any] | None:
    if struct.unpack_from("<I", payload, 1)[0] != 1 or len(payload) > 65536:
        return None
    try:
        fields = json.loads(payload[5:].decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    texts = [fields.get(name) for name in ("run", "protocol", "listener", "url")]
    texts += [fields.get(name, "") for name in ("host", "source")]
    numbers = [fields.get(name) for name in ("segment", "first_arrival")]
    good = all(isinstance(x, str) for x in texts)
    good = good and all(type(x) is int and 0 < x < 1 << 63 for x in numbers)
    return fields if good and fields.get("source", "") in ("", "producers", "devices") else None


class Capture:
    """The segments to compare, with their events and doubts."""

    def __init__(self, folder: Folder, protocol: str) -> None:
        every = [
            Segment(name, data)
            for name, data in sorted(folder.items())
            if "/" not in name and name.endswith(".cap")
        ]
        if not every:
            raise Nothing
        self.problems = 0
        self.doubt = False
        self.disordered = False
        taken: list[Segment] = []
        misnamed: list[Segment] = []
        for segment in every:
            if segment.header is None and not segment.named:
                self._problem()
            elif segment.header is None or segment.fits():
                taken.append(segment)
            else:
                misnamed.append(segment)
        kept: list[Segment] = []
        for segment in sorted(taken, key=lambda one: (len(one.listener), one.listener, one.number)):
            if segment.header and any(segment.same(other) for other in kept):
                self._problem(doubt=False)
            else:
                kept.append(segment)
        for segment in misnamed:
            self._problem(doubt=not any(segment.same(other) for other in kept))
        self.protocol = protocol
        self.series: dict[str, list[Segment]] = defaultdict(list)
        for segment in sorted(kept, key=lambda one: (one.listener, one.number)):
            self.series[segment.listener].append(segment)

    def _problem(self, n: int = 1, *, doubt: bool = True) -> None:
        self.problems += n
        self.doubt |= bool(n) and doubt

    def look(self, others: set[str]) -> None:
        """Find gaps in the series, and damage except in the segments `others`."""
        for some in self.series.values():
            number = arrival = 1
            for segment in some:
                ours = segment.name not in others
                self._problem(segment.problems + segment.unclosed, doubt=ours)
                gaps = int(segment.number != number)
                gaps += bool(arrival and segment.first and segment.first != arrival)
                gaps += segment is some[-1] and segment.end in FOLLOWED
                self._problem(gaps)
                self.disordered |= bool(gaps or (ours and segment.problems))
                number, arrival = segment.number + 1, segment.next

    def compared(self) -> Iterator[Segment]:
        for some in self.series.values():
            yield from some

    def events(self) -> dict[str, list[Arrival]]:
        """Return for each segment the events that arrived, in the order of each listener."""
        found: dict[str, list[Arrival]] = {}
        for listener, some in self.series.items():
            server = plog.Server((1 << 31) - 1)
            readable = any(segment.header for segment in some)
            for segment in some:
                rows = found[segment.name] = []
                for unit in segment.units if readable else ():
                    if unit.direction == 0:
                        rows += [
                            row._replace(listener=listener, received_us=unit.received_us)
                            for row in self._rows(unit, server)
                        ]
        return found

    def _rows(self, unit: Unit, server: plog.Server) -> list[Arrival]:
        if self.protocol != "plog":
            return events_of(unit.raw, self.protocol)
        told = server.feed(unit.raw, unit.stream)
        return [_plog(told.payload)] if told.verdict in (plog.MESSAGE, plog.SIMPLE) else []


def events_of(raw: bytes, protocol: str) -> list[Arrival]:
    """Decode a self-contained wire unit."""
    decoders = {"lumberjack": _lumberjack, "logjam": _logjam, "logux": _logux}
    return list(decoders[protocol](raw)) if protocol in decoders else []


def _arrival(ident: bytes | None, body: bytes) -> Arrival:
    producer, seq, own = "", 0, None
    if ident is not None:
        own = xxhash.xxh64_intdigest(ident, seed=42), xxhash.xxh64_intdigest(ident, seed=43)
        if re.fullmatch(rb"[0-9a-f]{32}", ident):
            producer, seq = ident[:20].decode(), int(ident[20:], 16)
    return Arrival("", producer, seq, own, xxhash.xxh64_intdigest(body, seed=42), 0)


def _carried(body: bytes, *carriers: str) -> bytes | None:
    """Return the id of one of our bodies, which are JSON objects in all protocols."""
    fields = json.loads(body)
    for name in carriers:
        value = fields
        for step in name.split("/"):
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, str):
            return value.encode()
    return None


@lru_cache(1024)
def _lumberjack(raw: bytes) -> tuple[Arrival, ...]:
    data, found = raw, []
    while data:
        if data[:2] == b"2W":
            data = data[6:]
        elif data[:2] == b"2C":
            (n,) = struct.unpack_from(">I", data, 2)
            assert len(data) == 6 + n
            data = zlib.decompress(data[6:])
        else:
            assert data[:2] == b"2J"
            _, n = struct.unpack_from(">II", data, 2)
            body = data[10 : 10 + n]
            data = data[10 + n :]
            found.append(_arrival(_carried(body, "@metadata/_id", "event.id", "event/id"), body))
    return tuple(found)


@lru_cache(1024)
def _logjam(raw: bytes) -> tuple[Arrival, ...]:
    row = logjam.decode(raw, [], limit=1 << 20)
    assert row.body is not None
    return (_arrival(_carried(row.body, logjam.carrier_of(row.topic)), row.body),)


def _plog(body: bytes) -> Arrival:
    # A body without an id is its own.
    ident = _carried(body, "uuid")
    return _arrival(body if ident is None else ident, body)


@lru_cache(1024)
def _logux(raw: bytes) -> tuple[Arrival, ...]:
    message = logux_decoder.parse(raw)
    if json.loads(raw)[0] != "sync":
        return ()
    bodies = [node.text(raw) for node in message.items[2::2]]
    return tuple(_arrival(_carried(body, "id"), body) for body in bodies)


# -- both


def _port(url: str) -> str:
    """Those of our cases differ in that alone."""
    return url.rpartition(":")[2]


def judge(ledger: Folder, capture: Folder, protocol: str) -> Result:
    """The verdict.

    Raises:
        Nothing: a folder has no file to speak of.
    """
    producers, unread = read_ledgers(ledger)
    if not producers:
        raise Nothing
    return Judgement(producers, unread, Capture(capture, protocol)).result()


class Judgement:
    def __init__(self, producers: dict[str, Producer], unread: int, capture: Capture) -> None:
        self.producers = producers
        self.capture = capture
        self.whole = not unread and all(mine.whole for mine in producers.values())
        self.uncaptured: set[str] = set()  # protocols with an endpoint that no listener has
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in ("", *producers)}
        self.owners: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
        for name, mine in producers.items():
            for seq, own in mine.ids:
                self.owners[own].append((name, seq))
        self.shared = {event for events in self.owners.values() if len(events) > 1 for event in events}
        self.has_hashed = bool(self.shared) or any(
            mine.identity == "none" and mine.hash for mine in producers.values()
        )

    def owner(self, arrival: Arrival) -> tuple[str, int] | str | None:
        """Return its event; "by hash": it is compared by its hash; None: it has no producer."""
        mine = self.producers.get(arrival.producer)
        if mine is not None and mine.identity != "none":
            return arrival.producer, arrival.seq
        events = self.owners.get(arrival.own, []) if arrival.own else []
        if len(events) == 1 and events[0] not in self.shared:
            return events[0]
        return "by hash" if events or self.has_hashed else None

    def by_hash(self, name: str, seq: int) -> bool:
        mine = self.producers[name]
        return seq in mine.hash and (mine.identity == "none" or (name, seq) in self.shared)

    def result(self) -> Result:
        found = self.capture.events()
        others = self.other_runs(found)
        self.capture.look(others)
        self.seen: dict[tuple[str, int], list[tuple[int, Arrival]]] = defaultdict(list)
        unknown_ids: set[Any] = set()
        hashes: Counter[int] = Counter()
        place = 0
        for segment, arrivals in found.items():
            if segment in others:
                self.counts[""]["unknown"] += len(arrivals)
                continue
            for arrival in arrivals:
                place += 1
                owner = self.owner(arrival)
                if isinstance(owner, tuple):
                    self.seen[owner].append((place, arrival))
                elif owner == "by hash":
                    hashes[arrival.hash] += 1
                elif arrival.producer:
                    unknown_ids.add((arrival.producer, arrival.seq))
                elif arrival.own:
                    unknown_ids.add(arrival.own)
                else:
                    unknown_ids.add(arrival.hash)
        before = {name: Counter(mine) for name, mine in self.counts.items()}
        left = Counter(hashes)
        self.all_of(left)
        self.uncaptured = self.without_listener(others)
        if self.uncaptured:
            self.capture.problems += 1
            self.counts, left = before, Counter(hashes)
            self.all_of(left)
        hashes = left
        unknown_ids |= set(hashes)
        self.counts[""]["unexpected" if self.whole else "unknown"] += len(unknown_ids)
        return Result(
            self.exit_code(),
            {name: dict(+mine) for name, mine in self.counts.items()},
            {name: mine.state for name, mine in self.producers.items()},
            self.whole,
            not self.capture.problems,
        )

    # -- runs and endpoints

    def other_runs(self, found: dict[str, list[Arrival]]) -> set[str]:
        """The segments of runs that have nothing of these ledgers."""
        runs: dict[tuple[str, str], list[Segment]] = defaultdict(list)
        for segment in self.capture.compared():
            if segment.header:
                runs[segment.header.get("host", ""), segment.header["run"]].append(segment)
        begin = min((at for mine in self.producers.values() for at in mine.created.values()), default=None)
        hashes = {
            mine.hash[seq] for name, mine in self.producers.items() for seq in mine.hash
            if self.by_hash(name, seq)
        }  # fmt: skip
        ours, others = set(), []
        for key, some in runs.items():
            events = [arrival for segment in some for arrival in found[segment.name]]
            owners = [self.owner(arrival) for arrival in events]
            known = any(isinstance(owner, tuple) for owner in owners)
            known |= any(arrival.own in self.owners for arrival in events)
            early = begin is not None and all(arrival.received_us < begin for arrival in events)
            alike = any(
                owner == "by hash" and arrival.hash in hashes
                for owner, arrival in zip(owners, events, strict=True)
            )
            if not events:
                continue
            if known or (alike and not early):
                ours.add(key)
            else:
                others.append((key, alike))
        names = {segment.name for key, alike in others if ours or not alike for segment in runs[key]}
        if names:
            self.capture.problems += 1
            self.capture.doubt |= not any(
                segment.header and segment.name not in names for segment in self.capture.compared()
            )
        return names

    def without_listener(self, others: set[str]) -> set[str]:
        """The protocols of endpoints in the ledgers that no listener has, and to which an event was sent."""
        found: set[str] = set()
        arrived: dict[tuple[str, str], bool] = {}
        for name, mine in self.producers.items():
            if not any(self.counts[name].values()):
                continue
            some = any(self.counts[name][word] for word in ("ok", "recovered", "corrupted", "unexpected"))
            key = mine.protocol, mine.url
            arrived[key] = arrived.get(key, False) or some
        listeners = [
            {_port(x) for segment in some if segment.header for x in segment.header["url"].split(",")}
            for some in self.capture.series.values()
            if any(segment.name not in others for segment in some)
        ]
        for (protocol, url), some in arrived.items():
            wanted = {_port(x) for x in url.split(",")} - {""}
            free = list(listeners) if protocol == self.capture.protocol else []
            unmatched = 0
            for port in sorted(wanted):
                taken = next((x for x in free if port in x), None)
                if taken is None:
                    unmatched += 1
                else:
                    free.remove(taken)
            anywhere = [x for x in free if not x - {""}]
            spared = min(unmatched, len(anywhere))
            unmatched -= spared
            if unmatched and not (some and unmatched <= len(free) - spared):
                found.add(protocol)
        return found

    # -- sequences

    def all_of(self, hashes: Counter[int]) -> None:
        for mine in self.producers.values():
            self.of(mine)
        self.compare_by_hash(hashes)

    def of(self, mine: Producer) -> None:
        tell = self.counts[mine.name]
        for seq in range(1, mine.last + 1):
            if self.by_hash(mine.name, seq):
                continue
            copies = [arrival for _, arrival in self.seen.get((mine.name, seq), [])]
            tell["events"] += 1
            tell[self.word(mine, seq, [arrival.hash for arrival in copies])] += 1
            if seq in mine.hash and len(copies) > 1:
                tell["duplicated"] += len(copies) - 1
        for name, seq in self.seen:
            if name == mine.name and not 1 <= seq <= mine.last:
                tell["unexpected" if mine.whole or seq == 0 else "unknown"] += 1
        tell["reordered"] += self.reordered(mine)

    def word(self, mine: Producer, seq: int, copies: list[int]) -> str:
        outcome = mine.outcome(seq)
        if seq in mine.hash:
            if any(copy != mine.hash[seq] for copy in copies):
                has_own = any(other == seq for other, _ in mine.ids)
                return "unknown" if has_own and not self.whole else "corrupted"
            if copies:
                return "ok" if outcome in EXPECTED_TO_COME else "recovered"
            return self.unseen(mine, outcome)
        if copies:
            return "unexpected" if outcome == "dropped" else "unknown"
        return {"dropped": "dropped", "failed": "missing"}.get(outcome, "unknown")

    def unseen(self, mine: Producer, outcome: str) -> str:
        """Of what is listed."""
        if self.capture.doubt or mine.protocol in self.uncaptured or (not outcome and not mine.whole):
            return "unknown"
        return "lost" if outcome == "acked" else "missing"

    def reordered(self, mine: Producer) -> int:
        first: dict[str, dict[int, int]] = defaultdict(dict)
        for (name, seq), copies in self.seen.items():
            if name != mine.name or seq not in mine.hash or seq in mine.deferred or self.by_hash(name, seq):
                continue
            if not mine.outcome(seq) and not mine.whole:
                continue
            for place, arrival in copies:
                first[arrival.listener].setdefault(seq, place)
        late = set()
        for places in first.values():
            late |= {
                seq for seq, place in places.items()
                if any(other > seq and before < place for other, before in places.items())
            }  # fmt: skip
        return len(late)

    def compare_by_hash(self, hashes: Counter[int]) -> None:
        """Compare events as a multiset; leave hashes without an event in `hashes`."""
        events: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
        for name, mine in self.producers.items():
            for seq, hash_ in mine.hash.items():
                if self.by_hash(name, seq):
                    events[hash_].append((-STRENGTH.get(mine.outcome(seq), 0), name, seq))
        for hash_, rows in events.items():
            rows.sort()
            copies = hashes.pop(hash_, 0)
            if copies > len(rows):
                self.counts[rows[0][1]]["duplicated"] += copies - len(rows)
            for i, (_, name, seq) in enumerate(rows):
                mine = self.producers[name]
                outcome = mine.outcome(seq)
                word = "ok" if outcome in EXPECTED_TO_COME else "recovered"
                if i >= copies:
                    word = self.unseen(mine, outcome)
                self.counts[name]["events"] += 1
                self.counts[name][word] += 1

    def exit_code(self) -> int:
        if any(mine[word] for mine in self.counts.values() for word in ("lost", "corrupted", "unexpected")):
            return 1
        late = any(
            self.counts[name]["reordered"] and mine.state != "holes" and mine.promises_order
            for name, mine in self.producers.items()
        )
        if late and not self.capture.disordered:
            return 1
        unknown = any(mine["unknown"] for mine in self.counts.values())
        return 3 if unknown or late or not self.whole else 0


__all__ = ["Nothing", "Result", "judge"]
