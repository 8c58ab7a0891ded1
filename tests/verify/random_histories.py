"""Seeded random histories: ledgers of a few producers, captures of a few listeners and runs, and damage."""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import random
import shutil
import struct
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from logclient.errors import ConfigError, LedgerError
from logclient.verify import job, violation_ids
from logclient.verify.spark import Session
from logclient.verify.tuning import Tuning
from tests.oracle import logjam, plog
from tests.oracle.histories import Options, Wrong, judge
from tests.oracle.xxh64 import words, xxh64
from tests.support import verify_inprocess

START_US = 1_767_225_600_000_000
SECOND = 1_000_000
PORTS = {"lumberjack": 5044, "logjam": 9604, "plog": 23456, "logux": 31337}
PATHS = {"logjam": "/shop-production"}
STRANGERS = (
    "foreign", "check", "nameless", "own", "zero", "above", "garbage", "before 1970", "run", "application",
)  # fmt: skip
CHECK = "c4ec0000" + "5" * 12


@dataclass
class Event:
    producer: Producer
    seq: int
    created_us: int
    fate: str  # of the ledger: acked, handed, failed, undecided, dropped; "absent": no line has it
    listed: bool
    own: bytes | None = None
    second: bytes | None = None
    beside: bool = False  # the own id is beside ours
    deferred: bool = False
    body: bytes = b""


@dataclass
class Producer:
    name: str
    protocol: str
    identity: str
    version: int
    ports: list[int]
    events: list[Event] = field(default_factory=list)

    @property
    def url(self) -> str:
        return urls(self.protocol, self.ports) + PATHS.get(self.protocol, "")


@dataclass
class Segment:
    folder: str
    listener: str
    number: int
    header: dict[str, Any]
    records: list[bytes]

    @property
    def name(self) -> str:
        return f"{self.listener}-{self.number:06d}.cap"


@dataclass
class History:
    ledgers: list[Path]
    captures: list[Path]
    options: Options
    told: list[str]  # what was done to the files


def urls(protocol: str, ports: Iterable[int]) -> str:
    return f"{protocol}://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def ranges(seqs: Iterable[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for seq in sorted(set(seqs)):
        if found and found[-1][1] + 1 == seq:
            found[-1][1] = seq
        else:
            found.append([seq, seq])
    return found


def line(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def packed(form: str, values: Iterable[Sequence[int]]) -> str:
    return base64.b64encode(b"".join(struct.pack(form, *one) for one in values)).decode()


def record(payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def unit(arrival: int, received_us: int, raw: bytes, stream: int = 1, direction: int = 0) -> bytes:
    return struct.pack("<BBBQQq", 3, direction, 0, stream, arrival, received_us) + raw


# --- bodies and units ---------------------------------------------------------------------------


def body_of(
    protocol: str, version: int, text: str, rng: random.Random, ours: str | None, event: Event
) -> bytes:
    """Make the body as it travels."""
    own = None if event.own is None else event.own.decode()
    ident = own if own is not None and not event.beside else ours
    made: dict[str, Any] = {"message": text}
    if protocol == "lumberjack" and version == 1:
        pairs = [("message", text)] + ([("event.id", ident)] if ident is not None else [])
        data = struct.pack(">I", len(pairs))
        for one in (part.encode() for pair in pairs for part in pair):
            data += struct.pack(">I", len(one)) + one
        return data
    if protocol == "lumberjack":
        if event.second is not None:
            made |= {"@metadata": {"_id": own}, "event.id": event.second.decode()}
        elif event.beside:
            made |= {"@metadata": {"_id": ours}, "event.id": own}
        elif ident is not None:
            form = rng.randrange(3) if own is not None else 3
            if form in (0, 3):
                made["@metadata"] = {"_id": ident}
            if form in (1, 3):
                made["event.id"] = ident
            if form == 2:
                made["event"] = {"id": ident}
    elif protocol == "plog":
        if own is not None and own.startswith("raw"):
            return own.encode()
        made = {"type": "a", "data": text} | ({} if ident is None else {"uuid": ident})
    elif protocol == "logux":
        made = {"type": "log/add", "data": text} | ({} if ident is None else {"id": ident})
    elif ident is not None:
        made["request_id"] = ident
    return json.dumps(made, separators=(",", ":")).encode()


def units_of(
    protocol: str, version: int, bodies: list[bytes], rng: random.Random, number: int
) -> list[bytes]:
    """Make the wire units of a group of events."""
    if protocol == "lumberjack":
        frames = b"".join(
            b"1D" + struct.pack(">I", i) + body
            if version == 1
            else b"2J" + struct.pack(">II", i, len(body)) + body
            for i, body in enumerate(bodies, 1)
        )
        if version == 1 or rng.random() < 0.3:
            small = zlib.compress(frames)
            frames = b"%dC" % version + struct.pack(">I", len(small)) + small
        return [b"%dW" % version + struct.pack(">I", len(bodies)) + frames]
    if protocol == "logux":
        parts = [part for i, body in enumerate(bodies) for part in (body, b'{"id":%d,"time":1}' % i)]
        return [b'["sync",%d,' % number + b",".join(parts) + b"]"]
    found = []
    for i, body in enumerate(bodies):
        if protocol == "logjam":
            found.append(message(body, number * 10 + i, compress=rng.random() < 0.2))
        elif rng.random() < 0.4 and body[0] > 31:
            found.append(body)
        else:
            found += plog.fragments(body, number * 10 + i, room=rng.choice((65507, 24 + 20)))
    return found


def message(
    body: bytes, number: int, *, app_env: bytes = b"shop-production", compress: bool = False
) -> bytes:
    meta = logjam.META.pack(0xCABD, int(compress), 1, 0, 1, number)
    content = zlib.compress(body) if compress else body
    return logjam.join([b"", app_env, b"logs.shop.production", content, meta])


# --- the makers ---------------------------------------------------------------------------------


class Maker:
    """Makes one history."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.seed = seed
        self.rng = random.Random(seed)
        self.told: list[str] = []
        self.own_ids: list[bytes] = []
        self.number = 0

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def make(self) -> History:
        rng = self.rng
        self.protocols = rng.sample(sorted(PORTS), rng.choice((1, 1, 1, 2)))
        self.hosts = ["alpha"] if self.chance(0.7) else ["alpha", "beta"]
        self.shared_ids = self.chance(0.25)
        self.nameless = self.chance(0.3)
        self.places = {p: [PORTS[p] + i for i in range(rng.choice((1, 1, 2)))] for p in self.protocols}
        self.faults = self.chance(0.5)
        self.same_names = random.Random(~self.seed).random() < 0.15  # of two listeners
        self.producers = [self.producer() for _ in range(rng.choice((1, 1, 2, 3)))]
        self.segments = [
            segment for p in self.protocols for port in self.places[p] for segment in self.listener(p, port)
        ]
        self.add_strangers()
        self.damage_records()
        self.write()
        self.damage_files()
        captures = [self.root / name for name in self.capture_folders]
        ledgers = [self.root / name for name in self.ledger_folders]
        return History(ledgers, captures, self.options(), self.told)

    # -- producers

    def producer(self) -> Producer:
        rng = self.rng
        protocol = rng.choice(self.protocols)
        name = f"{rng.getrandbits(80):020x}"
        ports = [rng.choice(self.places[protocol])] if self.chance(0.7) else list(self.places[protocol])
        identity = "none" if self.nameless and self.chance(0.6) else "id"
        made = Producer(name, protocol, identity, rng.choice((1, 2, 2)), ports)
        at = START_US + rng.randrange(20) * SECOND
        for seq in range(1, rng.choice((1, 3, 6, 12)) + 1):
            at += rng.choice((0, 1, 250_000, SECOND, 5 * SECOND))
            made.events.append(self.event(made, seq, at))
        return made

    def event(self, producer: Producer, seq: int, at: int) -> Event:
        rng = self.rng
        good = "handed" if producer.protocol == "plog" else "acked"
        fate = (
            good
            if self.chance(0.8)
            else rng.choice(
                ("acked", "handed", "failed", "undecided", "dropped", "unsent")
                + (("absent",) if self.faults else ())
            )
        )
        event = Event(producer, seq, at, fate, fate not in ("dropped", "unsent", "absent"))
        if fate == "unsent":
            event.fate = "failed"
        event.deferred = self.chance(0.05)
        if producer.identity == "id" and self.chance(0.3 if self.shared_ids else 0.08):
            event.own = self.own_id(producer)
            v2 = producer.protocol == "lumberjack" and producer.version == 2
            if v2 and self.chance(0.5):
                if self.chance(0.5):
                    event.beside = True
                else:
                    event.second = self.own_id(producer)
                    if event.second == event.own:
                        event.second = None
        text = rng.choice(("red", "green", "blue")) if producer.identity == "none" else f"event {seq}"
        ours = f"{producer.name}{seq:012x}" if producer.identity == "id" else None
        event.body = body_of(producer.protocol, producer.version, text, rng, ours, event)
        return event

    def own_id(self, producer: Producer) -> bytes:
        rng = self.rng
        if self.shared_ids and self.own_ids and self.chance(0.4):
            return rng.choice(self.own_ids)
        if self.shared_ids and self.chance(0.3):
            other = rng.choice([*getattr(self, "producers", []), producer])
            made = b"%s%012x" % (other.name.encode(), rng.randrange(1, 9))
        elif producer.protocol == "plog" and self.chance(0.4):
            made = b"raw text %d" % rng.randrange(10**6)
        else:
            made = rng.choice((b"order-%d" % rng.randrange(10**6), b"%032x" % rng.getrandbits(127)))
        self.own_ids.append(made)
        return made

    # -- captures

    def listener(self, protocol: str, port: int) -> list[Segment]:
        rng = self.rng
        second = port != PORTS[protocol]
        listener = {"lumberjack": "beats", "logjam": "router", "plog": "udp", "logux": "sockets"}[protocol]
        if second and self.same_names:
            self.told.append("listeners of one name")
        listener += "2" if second and not self.same_names else ""
        host = self.hosts[-1] if second else self.hosts[0]
        arrived: list[tuple[int, Event | None, bytes]] = []
        for producer in self.producers:
            if producer.protocol != protocol or port not in producer.ports:
                continue
            for event in producer.events:
                chosen = rng.choice(producer.ports)
                if chosen != port:
                    continue
                share = {"acked": 0.95 if self.faults else 1, "handed": 0.9, "failed": 0.3, "undecided": 0.5}
                likely = (
                    share.get(event.fate, 0.05 if self.faults else 0) if event.listed else 0.05 * self.faults
                )
                copies = int(self.chance(likely)) + int(self.chance(0.05))
                for _ in range(copies if event.listed or self.faults else 0):
                    late = (
                        rng.choice((1000, 100_000, SECOND))
                        if self.chance(0.9)
                        else rng.randrange(40 * SECOND)
                    )
                    body = event.body
                    if self.faults and self.chance(0.03):
                        body = (
                            body.replace(b"event", b"evenT")
                            if b"event " in body
                            else body.replace(b"e", b"E", 1)
                        )
                    arrived.append((event.created_us + late, event, body))
        arrived.sort(key=lambda one: one[0])
        if len(arrived) > 1 and self.chance(0.15):
            i = rng.randrange(len(arrived) - 1)
            arrived[i], arrived[i + 1] = arrived[i + 1], arrived[i]
        return self.series(protocol, port, listener, host, arrived)

    def series(
        self,
        protocol: str,
        port: int,
        listener: str,
        host: str,
        arrived: list[tuple[int, Event | None, bytes]],
    ) -> list[Segment]:
        rng = self.rng
        pieces = rng.choice((1, 1, 2, 3))
        cuts = sorted(rng.randrange(len(arrived) + 1) for _ in range(pieces - 1))
        run, arrival, found = 1, 1, []
        folder = "" if self.chance(0.9) else "sub"
        if self.same_names and port != PORTS[protocol]:
            folder = "second"
        for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(arrived)], strict=True), 1):
            header = {
                "run": f"{self.protocols.index(protocol)}r{run}" if self.chance(0.98) else "0r1",
                "protocol": protocol, "host": host, "listener": listener, "segment": number,
                "url": urls(protocol, [port]), "source": "producers", "first_arrival": arrival,
            }  # fmt: skip
            if protocol != "logjam" or self.chance(0.3):
                del header["source"]
            segment = Segment(
                folder, listener, number, header, [b"\x02" + struct.pack("<Q", 1) + b"127.0.0.1:4"]
            )
            part = arrived[begin:end]
            while part:
                size = rng.randrange(1, 4)
                group, part = part[:size], part[size:]
                for version in (1, 2):
                    bodies = [body for _, e, body in group if (e.producer.version if e else 2) == version]
                    self.number += 1
                    for raw in units_of(protocol, version, bodies, rng, self.number) if bodies else []:
                        segment.records.append(unit(arrival, group[0][0], raw))
                        arrival += 1
                if self.chance(0.5):
                    segment.records.append(unit(arrival, group[0][0], b"ok", direction=1))
                    arrival += 1
            again = self.chance(0.4)
            run += again
            why = (
                "closed" if number == pieces else rng.choice(("resumed", "recovered")) if again else "rotated"
            )
            segment.records.append(b"\x04" + struct.pack("<Q", arrival) + why.encode())
            found.append(segment)
        return found

    def insert(self, segment: Segment, raw: bytes, at_us: int | None = None) -> None:
        """Add a unit at the end of a listener's last segment, with right numbers."""
        end = segment.records.pop()
        (arrival,) = struct.unpack_from("<Q", end, 1)
        received = at_us if at_us is not None else START_US + self.rng.randrange(60 * SECOND)
        segment.records.append(unit(arrival, received, raw, stream=9))
        segment.records.append(b"\x04" + struct.pack("<Q", arrival + 1) + end[9:])

    def last_segments(self) -> list[Segment]:
        return [s for s in self.segments if s.records[-1][9:] == b"closed"]

    def add_strangers(self) -> None:
        rng = self.rng
        for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
            segment = rng.choice(self.last_segments())
            protocol = segment.header["protocol"]
            kind = rng.choice(
                ("foreign", "check", "nameless", "own", "zero", "above", "garbage", "before 1970", "run")
            )
            self.told.append(f"stranger {kind} at {segment.name}")
            some = rng.choice(self.producers)
            stranger = Producer(f"{rng.getrandbits(80):020x}", protocol, "id", 2, [])
            event = Event(stranger, 1, 0, "acked", True)
            ident: str | None = {
                "foreign": stranger.name + f"{rng.randrange(1, 4):012x}",
                "check": CHECK + f"{1:012x}",
                "zero": some.name + f"{0:012x}",
                "above": some.name + f"{len(some.events) + rng.randrange(1, 4):012x}",
            }.get(kind)
            if kind == "own":
                event.own = b"order-x"
            if kind == "application":
                if protocol == "logjam":
                    body = b'{"message":"strange","request_id":"%032x"}' % rng.getrandbits(100)
                    self.insert(segment, message(body, 7, app_env=b"other-test"))
                continue
            if kind == "run":
                self.other_run(segment, stranger)
                continue
            raw = b"\x09garbage"
            if kind != "garbage":
                body = body_of(protocol, 2, rng.choice(("strange", "red")), rng, ident, event)
                self.number += 1
                for raw in units_of(protocol, 2, [body], rng, self.number):
                    self.insert(segment, raw, -5 if kind == "before 1970" else None)
            else:
                self.insert(segment, raw)

    def other_run(self, segment: Segment, stranger: Producer) -> None:
        """Add a run whose events are all of a stranger."""
        end = segment.records.pop()
        (arrival,) = struct.unpack_from("<Q", end, 1)
        segment.records.append(end[:9] + b"resumed")
        header = segment.header | {"run": "strange", "segment": segment.number + 1, "first_arrival": arrival}
        added = Segment(segment.folder, segment.listener, segment.number + 1, header, [end])
        self.segments.append(added)
        for seq in range(1, self.rng.choice((2, 3))):
            ident = stranger.name + f"{seq:012x}"
            body = body_of(
                stranger.protocol, 2, "strange", self.rng, ident, Event(stranger, seq, 0, "acked", True)
            )
            self.number += 1
            at = START_US + self.rng.randrange(60 * SECOND)
            for raw in units_of(stranger.protocol, 2, [body], self.rng, self.number):
                self.insert(added, raw, at)
                if self.chance(0.3):
                    self.insert(added, raw, at + 1)

    # -- damage to captures, before it is written

    def damage_records(self) -> None:
        self.damaged = self.chance(0.6)
        if not self.damaged or self.chance(0.5):
            return
        rng = self.rng
        segment = rng.choice(self.segments)
        units = [i for i, one in enumerate(segment.records) if one[0] == 3]
        kinds: dict[str, Callable[[], None]] = {
            "second header": lambda: segment.records.insert(1, b"\x01" + struct.pack("<I", 1) + b"{}"),
            "header lacks a field": lambda: (
                segment.header.pop(rng.choice(("run", "url", "protocol", "segment"))) and None
            ),
            "header of another type": lambda: segment.header.update(first_arrival="1"),
            "unknown protocol": lambda: segment.header.update(protocol="syslog"),
            "unknown record": lambda: segment.records.insert(1, b"\x07????????????????"),
            "short record": lambda: segment.records.insert(1, b"\x03\x00\x00"),
            "no end": lambda: segment.records.pop() and None,
            "record behind the end": lambda: segment.records.append(segment.records[-2]),
            "end of another reason": lambda: self._end(
                segment, rng.choice((b"rotated", b"resumed", b"recovered"))
            ),
            "end of another number": lambda: self._end(segment, None),
            "other port": lambda: self._port(segment),
            "other first arrival": lambda: segment.header.update(first_arrival=7),
            "no host": lambda: segment.header.pop("host") and None,
        }
        if units:
            at = rng.choice(units)
            kinds |= {
                "unit twice": lambda: segment.records.insert(at, segment.records[at]),
                "unit gone": lambda: segment.records.pop(at) and None,
                "other direction": lambda: segment.records.__setitem__(
                    at, b"\x03\x05" + segment.records[at][2:]
                ),
                "arrival 0": lambda: segment.records.__setitem__(
                    at, segment.records[at][:11] + bytes(8) + segment.records[at][19:]
                ),
                "unit cut": lambda: segment.records.__setitem__(at, segment.records[at][:-3]),
            }
        if len(units) > 1:
            kinds["units swapped"] = lambda: self._swap(segment, *rng.sample(units, 2))
        kind = rng.choice(sorted(kinds))
        self.told.append(f"capture: {kind} in {segment.name}")
        kinds[kind]()

    def _end(self, segment: Segment, reason: bytes | None) -> None:
        end = segment.records.pop()
        number = end[1:9] if reason else struct.pack("<Q", struct.unpack("<Q", end[1:9])[0] + 2)
        segment.records.append(b"\x04" + number + (reason or end[9:]))

    def _port(self, segment: Segment) -> None:
        for one in self.segments:
            if one.listener == segment.listener:
                one.header["url"] = f"{one.header['protocol']}://127.0.0.1:4444"

    def _swap(self, segment: Segment, i: int, j: int) -> None:
        segment.records[i], segment.records[j] = segment.records[j], segment.records[i]

    # -- the files

    def write(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        split = self.chance(0.2)
        self.ledger_folders = ["ledger0", "ledger1"] if split and len(self.producers) > 1 else ["ledger0"]
        several = len({s.listener for s in self.segments}) > 1
        self.capture_folders = ["capture0", "capture1"] if split and several else ["capture0"]
        for name in self.ledger_folders + self.capture_folders:
            (self.root / name).mkdir(parents=True)
        names = sorted({s.listener for s in self.segments})
        self.segment_files: list[Path] = []
        for segment in self.segments:
            folder = (
                self.root / self.capture_folders[names.index(segment.listener) % len(self.capture_folders)]
            )
            folder /= segment.folder
            folder.mkdir(exist_ok=True)
            head = b"\x01" + struct.pack("<I", 1) + json.dumps(segment.header).encode()
            data = b"".join(map(record, [head, *segment.records]))
            path = folder / segment.name
            path.write_bytes(data)
            self.segment_files.append(path)
        self.ledger_files: list[Path] = []
        for i, producer in enumerate(self.producers):
            folder = self.root / self.ledger_folders[i % len(self.ledger_folders)]
            for part, lines in enumerate(self.ledger(producer), 1):
                path = folder / f"{producer.name}-{part:04d}.ledger"
                path.write_bytes(b"".join(lines))
                self.ledger_files.append(path)

    def ledger(self, producer: Producer) -> list[list[bytes]]:
        """Return the lines of each part."""
        rng = self.rng
        begun = producer.events[0].created_us - rng.choice((0, 1000, SECOND))
        parts: list[list[bytes]] = []
        other = random.Random(f"{self.seed} {producer.name}")  # the other choices stay as they are

        def late() -> int:
            return producer.events[-1].created_us + other.choice((0, 5, 11, 60, 3600)) * SECOND

        def begin() -> None:
            if parts and other.random() < 0.5:
                parts[-1].append(line(t="continued", at_us=begun))
            head: dict[str, Any] = {
                "t": "open", "version": 1, "producer": producer.name, "part": len(parts) + 1,
                "protocol": producer.protocol, "url": producer.url, "identity": producer.identity,
                "pid": 7, "host": "web", "at_us": begun,
            }  # fmt: skip
            if producer.protocol == "logjam":
                head["mode"] = "request"
            parts.append([line(**head)])

        begin()
        rest = list(producer.events)
        many = self.chance(0.3)
        while rest:
            size = rng.randrange(1, 6)
            group, rest = rest[:size], rest[size:]
            if many and len(parts) < 3 and self.chance(0.4):
                begin()
            parts[-1] += self.lines(group)
        state = rng.choice(("closed",) * 8 + ("open", "open", "stopped", "stopped and closed", "twice"))
        state = "open" if other.random() < 0.1 else state
        done = Counter(event.fate for event in producer.events)
        if state.startswith("stopped"):
            parts[-1].append(line(t="stopped", reason="disk"))
        if state in ("closed", "twice", "stopped and closed"):
            for _ in range(1 + (state == "twice")):
                counts: dict[str, Any] = {
                    "last": len(producer.events),
                    "acked": done["acked"],
                    "handed": done["handed"],
                }
                counts["failed"] = {"rejected": done["failed"]} if done["failed"] else {}
                counts["dropped"] = {"overflow": done["dropped"]} if done["dropped"] else {}
                if self.chance(0.8):
                    counts["bytes"] = sum(len(one) for part in parts for one in part)
                at = producer.events[-1].created_us + rng.choice((0, SECOND, 10 * SECOND))
                parts[-1].append(line(t="close", at_us=at, **counts))
        if state == "open" and other.random() < 0.7:
            parts[-1].append(line(t="alive", at_us=late(), waiting=other.choice((0, 0, 2))))
        if state == "open" and other.random() < 0.3:
            parts[-1].append(line(t=other.choice(("continued", "ended", "ended")), at_us=late()))
        if state != "closed":
            self.told.append(f"{producer.name[:4]} {state}")
        return parts

    def lines(self, group: list[Event]) -> list[bytes]:
        found = []
        listed = [event for event in group if event.listed]
        own = [event for event in listed if event.own is not None]
        if listed:
            base = listed[0].created_us
            some: dict[str, Any] = {"own": ranges(e.seq for e in own)} if own else {}
            some["created"] = packed("<i", ((e.created_us - base,) for e in listed))
            some["hashes"] = packed("<Q", ((xxh64(e.body),) for e in listed))
            found.append(
                line(t="batch", seqs=ranges(e.seq for e in listed), n=len(listed), base=base, **some)
            )
        if own:
            names = [words(e.own) for e in own if e.own is not None]
            beside = [e for e in own if e.second is not None]
            some = {}
            if beside:
                some["beside"] = ranges(e.seq for e in beside)
                some["second"] = packed("<QQ", (words(e.second) for e in beside if e.second is not None))
            found.append(
                line(t="ids", seqs=ranges(e.seq for e in own), n=len(own), ids=packed("<QQ", names), **some)
            )
        at = group[-1].created_us + 1000
        late = [e.seq for e in group if e.deferred and e.listed]
        if late:
            found.append(line(t="deferred", at_us=at, seqs=ranges(late)))
        for fate in ("acked", "handed", "failed"):
            seqs = [e.seq for e in group if e.fate == fate]
            if seqs:
                reason = "rejected" if fate == "failed" else ""
                found.append(line(t="outcome", at_us=at, status=fate, reason=reason, seqs=ranges(seqs)))
        dropped = [e.seq for e in group if e.fate == "dropped"]
        if dropped:
            found.append(line(t="dropped", at_us=at, reason="overflow", seqs=ranges(dropped)))
        return found

    # -- damage to the files

    def damage_files(self) -> None:
        if not self.damaged:
            return
        for _ in range(self.rng.choice((0, 1, 1))):
            self.damage_ledgers()
        for _ in range(self.rng.choice((0, 0, 1))):
            self.damage_captures()

    def add_folder(self, names: list[str], kind: str) -> Path:
        name = f"{kind}{len(names)}"
        names.append(name)
        (self.root / name).mkdir()
        return self.root / name

    def damage_ledgers(self) -> None:
        rng = self.rng
        path = rng.choice(self.ledger_files)
        data = path.read_bytes()
        lines = data.splitlines(keepends=True)
        at = rng.randrange(len(lines))
        folder = path.parent
        other = rng.choice(lines[1:] or lines)

        def put(*parts: bytes) -> Callable[[], Any]:
            return lambda: path.write_bytes(b"".join(parts))

        def flip() -> None:
            i = rng.randrange(len(data))
            path.write_bytes(data[:i] + bytes([data[i] ^ 1 << rng.randrange(7)]) + data[i + 1 :])

        def change(kind: bytes, old: bytes, new: bytes) -> Callable[[], Any]:
            changed = [one.replace(old, new, 1) if b'"t":"%s"' % kind in one else one for one in lines]
            return put(*changed)

        def close(**fields: Any) -> Callable[[], Any]:
            done = [json.loads(one) for one in lines]
            for one in done:
                if one["t"] == "close":
                    one.update({name: one.get(name, 0) + by for name, by in fields.items()})
            return put(*(line(**one) for one in done))

        def elsewhere(content: bytes) -> None:
            (self.add_folder(self.ledger_folders, "ledger") / path.name).write_bytes(content)

        def linked_folder() -> None:
            behind = self.root / "behind"
            behind.mkdir()
            path.rename(behind / path.name)
            (folder / "host").symlink_to(behind)

        def link() -> None:
            path.rename(self.root / "behind.file")
            path.symlink_to(self.root / "behind.file")

        batches = [one for one in lines if b'"t":"batch"' in one]
        kinds: dict[str, Callable[[], Any]] = {
            "byte flipped": flip,
            "byte flipped again": flip,
            "tail cut": put(data[: rng.randrange(len(data))]),
            "last line torn": put(data[:-1]),
            "line gone": put(*lines[:at], *lines[at + 1 :]),
            "line twice": put(*lines[: at + 1], *lines[at:]),
            "batch twice": put(*lines[:-1], *(batches[:1]), lines[-1]),
            "garbage line": put(*lines[: at + 1], b"nonsense\n", *lines[at + 1 :]),
            "unknown kind": put(*lines[: at + 1], b'{"t":"later","x":1}\n', *lines[at + 1 :]),
            "empty line": put(*lines[: at + 1], b"\n", *lines[at + 1 :]),
            "second open": put(*lines[: at + 1], lines[0], *lines[at + 1 :]),
            "damaged open inside": put(*lines[: at + 1], b'{"t":"open"}\n', *lines[at + 1 :]),
            "moved line": put(*lines[:at], *lines[at + 1 :], lines[at]),
            "line of another place": put(*lines, other),
            "damaged ids": change(b"ids", b'"ids":"', b'"ids":"AAAA'),
            "ids of another n": change(b"ids", b'"n":', b'"n":1'),
            "damaged batch": change(b"batch", b'"base":', b'"base":"",'),
            "batch without own": change(b"batch", b'"own":', b'"owned":'),
            "last too low": close(last=-1),
            "last too high": close(last=2),
            "acked wrong": close(acked=1),
            "bytes wrong": close(bytes=1),
            "gone": path.unlink,
            "empty": put(),
            "renamed": lambda: path.rename(folder / (path.name + rng.choice((".bak", ".gz", "~")))),
            "upper case": lambda: path.rename(folder / path.name.upper()),
            "part of other zeros": lambda: path.rename(folder / path.name.replace("-000", "-0000")),
            "other part": lambda: path.rename(folder / path.name.replace("-0001", "-0009")),
            "empty last part": lambda: (folder / f"{path.name[:20]}-0004.ledger").write_bytes(b""),
            "torn next part": lambda: (folder / f"{path.name[:20]}-0002.ledger").write_bytes(b'{"t":"op'),
            "link": link,
            "linked folder": linked_folder,
            "folder of the name": lambda: (folder / ("f" * 20 + "-0001.ledger")).mkdir(),
            "fifo": lambda: os.mkfifo(folder / ("e" * 20 + "-0001.ledger")),
            "empty folder given": lambda: self.add_folder(self.ledger_folders, "ledger"),
            "empty folder below": lambda: (folder / "below").mkdir(),
            "copy elsewhere": lambda: elsewhere(data),
            "beginning elsewhere": lambda: elsewhere(data[: rng.randrange(len(data))]),
            "another elsewhere": lambda: elsewhere(data[: len(data) // 2] + b"!"),
            "all parts gone": lambda: [p.unlink() for p in folder.glob(path.name[:20] + "*")],
            "other file": lambda: (folder / "notes.txt").write_bytes(b"hello"),
        }
        kind = rng.choice(sorted(kinds))
        self.told.append(f"ledger: {kind} in {path.name[:4]}{path.name[20:25]}")
        kinds[kind]()

    def damage_captures(self) -> None:
        rng = self.rng
        path = rng.choice(self.segment_files)
        data = path.read_bytes()
        folder = path.parent

        def put(content: bytes) -> Callable[[], Any]:
            return lambda: path.write_bytes(content)

        def flip() -> None:
            i = rng.randrange(len(data))
            path.write_bytes(data[:i] + bytes([data[i] ^ 1 << rng.randrange(8)]) + data[i + 1 :])

        def elsewhere(content: bytes, name: str) -> None:
            (self.add_folder(self.capture_folders, "capture") / name).write_bytes(content)

        def linked_folder() -> None:
            behind = self.root / "behind.captures"
            behind.mkdir()
            path.rename(behind / path.name)
            (folder / "host").symlink_to(behind)

        def link() -> None:
            path.rename(self.root / "behind.segment")
            path.symlink_to(self.root / "behind.segment")

        number = int(path.stem[-6:])
        kinds: dict[str, Callable[[], Any]] = {
            "byte flipped": flip,
            "byte flipped again": flip,
            "tail cut": put(data[: rng.randrange(len(data))]),
            "torn record": put(data + record(b"\x03" + bytes(60))[:30]),
            "zeros behind": put(data + bytes(rng.choice((3, 8, 100)))),
            "bytes behind the end": put(data + b"abc"),
            "zero length behind": put(data + bytes(8) + b"a"),
            "huge length": put(data[: rng.randrange(len(data))] + b"\xff" * 9),
            "empty": put(b""),
            "gone": path.unlink,
            "renamed": lambda: path.rename(folder / f"other-{number:06d}.cap"),
            "renumbered": lambda: path.rename(
                path.with_name(path.name.replace(f"{number:06d}", f"{number + 5:06d}"))
            ),
            "prefixed": lambda: path.rename(folder / f"x.{path.name}"),
            "no number": lambda: path.rename(folder / "main.cap"),
            "copy of a prefix": lambda: (folder / f"x.{path.name}").write_bytes(data),
            "copy elsewhere": lambda: elsewhere(data, path.name),
            "shorter copy elsewhere": lambda: elsewhere(data[: -rng.randrange(1, 40)], path.name),
            "link": link,
            "linked folder": linked_folder,
            "fifo": lambda: os.mkfifo(folder / "pipe-000001.cap"),
            "folder of the name": lambda: (folder / "main-000001.cap").mkdir(),
            "empty folder given": lambda: self.add_folder(self.capture_folders, "capture"),
            "other file": lambda: (folder / "notes.txt").write_bytes(b"hello"),
        }
        kind = rng.choice(sorted(kinds))
        self.told.append(f"capture: {kind} in {path.name}")
        kinds[kind]()

    # -- what is selected

    def options(self) -> Options:
        rng = self.rng
        options = Options(allow_open=self.chance(0.2))
        if self.chance(0.1):
            options.max_missing = rng.choice((0, 1, 3))
        if self.chance(0.1):
            options.max_duplicated = rng.choice((0, 1))
        if self.chance(0.1):
            options.max_dropped = rng.choice((0, 1))
        times = sorted(event.created_us for producer in self.producers for event in producer.events)
        kind = rng.choice(("",) * 5 + ("since", "until", "both", "both"))
        if kind in ("since", "both"):
            options.since_us = self.moment(times)
        if kind in ("until", "both"):
            options.until_us = self.moment(times)
        if kind == "both" and options.since_us is not None and options.until_us is not None:
            first, last = sorted((options.since_us, options.until_us))
            options.since_us, options.until_us = first, max(last, first + SECOND)
        return options

    def moment(self, times: list[int]) -> int:
        """Choose a time with a whole number of half seconds near that of an event."""
        return (self.rng.choice(times) + self.rng.choice((-1, 0, 1)) * SECOND // 2) // 500_000 * 500_000


def make(root: Path, seed: int) -> History:
    """Make the history of a seed below a folder."""
    return Maker(root, seed).make()


# --- the comparison -----------------------------------------------------------------------------


def verify(
    history: History, out: Path, run: Callable[..., Any] = verify_inprocess.run
) -> tuple[int, dict[str, Any], Counter[tuple[str, str]]]:
    """Return the exit code, verdict.json and the violations.

    Exit code 2 means wrong usage, and ``error`` is in the place of the verdict.
    """
    options = history.options
    shutil.rmtree(out, ignore_errors=True)
    arguments: dict[str, Any] = {
        "since": None if options.since_us is None else options.since_us / 1e6,
        "until": None if options.until_us is None else options.until_us / 1e6,
        "allow_open": options.allow_open,
        "max_missing": options.max_missing,
        "max_duplicated": options.max_duplicated,
        "max_dropped": options.max_dropped,
        "match": "id" if options.by_id else "body",
    }
    try:
        run(history.ledgers, history.captures, out=out, bits=3, **arguments)
    except (ConfigError, LedgerError) as error:
        return 2, {"error": str(error)}, Counter()
    verdict = json.loads((out / "verdict.json").read_text())
    return verdict["exit_code"], verdict, Counter(violation_ids(out))


def differences(history: History, out: Path, run: Callable[..., Any] = verify_inprocess.run) -> list[str]:
    """Return what the verifier and the reference say differently."""
    code, verdict, found = verify(history, out, run)
    try:
        wanted = judge(history.ledgers, history.captures, history.options)
    except Wrong:
        return [] if code == 2 else [f"exit code {code}, not 2"]
    if code == 2:
        return [f"exit code 2, not {wanted.exit_code}"]
    wrong = []

    def same(what: str, one: object, other: object) -> None:
        if one != other:
            wrong.append(f"{what}: {one}, not {other}")

    same("exit code", code, wanted.exit_code)
    for word, number in verdict["counts"].items():
        same(f"counts.{word}", number, wanted.counts[word])
    shared = Counter(word for word, ident in found.elements() if ident in wanted.by_hash)
    same(
        "by hash", shared, Counter(w for w, ident in wanted.violations.elements() if ident in wanted.by_hash)
    )
    for word, ident in sorted(set(found) | set(wanted.violations)):
        if ident not in wanted.by_hash:
            same(f"{word} {ident}", found[word, ident], wanted.violations[word, ident])
    producers = {row["producer"]: row for row in verdict["producers"] if row["producer"]}
    same("ledgers", {p: row["ledger"] for p, row in producers.items()}, wanted.states)
    same("order", {p: row["order"] for p, row in producers.items()}, wanted.order)
    left_out = None if verdict["selection"] is None else verdict["selection"]["left_out"]
    names = ("events", "seen", "duplicated", "corrupted", "reordered")
    rows = sorted(tuple(row[name] for name in names) for row in verdict["listeners"])
    expected = sorted(tuple(row[name] for name in names) for row in wanted.listeners)
    same("listeners", [row for row in rows if any(row)], [row for row in expected if any(row)])
    same("left_out", left_out, wanted.left_out)
    same("ledger.unread", verdict["ledger"]["unread"], wanted.unread)
    same("capture.checks", verdict["capture"].get("checks", 0), wanted.checks)
    same("capture.others", verdict["capture"]["others"], wanted.others)
    kinds = {
        kind
        for text in verdict["problems"]
        for kind in KINDS
        if f": {kind}: " in text or text.startswith(f"{kind}: ")
    }
    timed = history.options.since_us is not None or history.options.until_us is not None
    compared = set(KINDS) - ({"other run"} if timed else set())  # also said of runs of another time
    same("problems", kinds & compared, wanted.problems & compared)
    return wrong


KINDS = (
    "damage", "gap", "unclosed", "unread", "misnamed", "copy", "other run", "endpoint", "selection",
)  # fmt: skip


def _run_on_spark(spark: Any, ledger: Any, capture: Any, *, bits: int, **options: Any) -> Any:
    given = {"max_missing": None, "max_dropped": None, **options}
    return job.run(ledger, capture, spark=spark, tuning=Tuning(bits, 1, together_bytes=0), **given)


def main() -> int:
    """Compare the histories of many seeds; list the differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.histories", description=main.__doc__)
    parser.add_argument("--seeds", default="1-150", help="first-last")
    parser.add_argument("--keep", type=Path, help="a folder for the files of histories that differ")
    parser.add_argument("--spark", action="store_true", help="judge them with Spark")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    wrong = 0
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        run: Callable[..., Any] = verify_inprocess.run
        if arguments.spark:
            run = partial(_run_on_spark, stack.enter_context(Session("local[2]")).spark)
        for seed in range(int(first), int(last or first) + 1):
            folder = (arguments.keep or Path(temporary)) / str(seed)
            history = make(folder / "history", seed)
            try:
                found = differences(history, folder / "out", run)
            except Exception:
                found = [traceback.format_exc(limit=-3)]
            if found:
                wrong += 1
                print(f"seed {seed}: {history.options}; {'; '.join(history.told)}")
                print("".join(f"    {one}\n" for one in found), end="", flush=True)
            else:
                shutil.rmtree(folder)
    print(f"{wrong} histories differ")
    return int(wrong > 0)
