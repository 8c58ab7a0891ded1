"""Random captures of all four protocols, with the rows that the data source ``logclient`` must give.

Each listener has units of one protocol: events in every form, compressed or not, with ids of ours, of the
application or none; pings and answers; and everything that does not decode. A row is what was put in, taken
apart by the plain Python of tests/oracle.
"""

from __future__ import annotations

import datetime
import json
import random
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from tests.oracle import logjam as oracle_logjam
from tests.oracle import plog as oracle_plog
from tests.oracle.lumberjack import join_pairs
from tests.support import verify_files as files

Row = dict[str, Any]
PROTOCOLS = ("lumberjack", "logjam", "plog", "plog+tcp", "logux")
PRODUCERS = tuple(f"{i:02x}" * 10 for i in range(0xA0, 0xA8))
START_US = 1_795_000_000_000_000
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


class Body:
    """One body, with the id that its carrier has."""

    def __init__(self, raw: bytes, ident: str | None) -> None:
        self.raw = raw
        ours = ident is not None and len(ident) == 32 and set(ident) <= set("0123456789abcdef")
        self.row: Row = {
            "id": ident,
            "producer": ident[:20] if ident and ours else None,
            "sequence": int(ident[20:], 16) if ident and ours else None,
            "body": raw,
            "hash": signed(files.xxh64(raw)),
            "error": None,
        }


FAULT: Row = dict.fromkeys(("id", "producer", "sequence", "body", "hash", "error"))


class Listener:
    """A listener's capture under construction."""

    def __init__(self, rng: random.Random, name: str, protocol: str) -> None:
        self.rng = rng
        self.name = name
        self.protocol = protocol
        self.units: list[tuple[int, bytes, int, int]] = []  # stream, raw, direction, received
        self.rows: list[Row] = []
        self.now = START_US + rng.randrange(10**9)
        self.number = 0

    def ident(self) -> str | None:
        rng = self.rng
        if rng.random() < 0.7:
            return files.event_id(rng.choice(PRODUCERS), rng.randrange(1, 1 << 30))
        return rng.choice([None, "my own", "größe", "0" * 31, "A" * 32])

    def add(self, raw: bytes, rows: list[Row], *, direction: int = 0, stream: int | None = None) -> None:
        stream = self.rng.randrange(1, 4) if stream is None else stream
        # Clocks may be set back.
        self.now += self.rng.choice([0, 1, 1000, 3_000_000, -500])
        self.units.append((stream, raw, direction, self.now))
        place = {"listener": self.name, "peer": f"10.0.0.{stream}:9", "received": self.now}
        self.rows += [row | place for row in rows]

    def fill(self, n: int) -> None:
        make = getattr(self, self.protocol.replace("+", "_"))
        for _ in range(n):
            make()
            if self.rng.random() < 0.3:
                self.add(b"an answer", [], direction=1)

    def text(self) -> str:
        return "".join(self.rng.choice('abcé€"\\\n😀 ') for _ in range(self.rng.choice([0, 3, 20, 200])))

    def fields(self) -> dict[str, Any]:
        rng = self.rng
        made: dict[str, Any] = {
            "@timestamp": rng.choice(["2026-11-21T18:03:11.152093Z", "2026-11-21T18:03:11+02:00", "x", 17]),
            "log.level": rng.choice(["info", "WARNING", 3, None]),
            "message": self.text(),
            "order": rng.randrange(100),
            "nested": {"a": [1, {"b": None}]},
            "é": None,
        }
        return {name: value for name, value in made.items() if rng.random() < 0.7}

    def json(self, made: dict[str, Any]) -> bytes:
        return json.dumps(made, ensure_ascii=self.rng.random() < 0.3, separators=(",", ":")).encode()

    # -- Lumberjack

    def lumberjack(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.05:
            self.add(b"2W\0\0\0\1junk", [FAULT | {"error": "bad_frame"}])
        elif kind < 0.1:
            self.add(files.window([b"{}"])[:-1], [FAULT | {"error": "torn"}])
        elif kind < 0.15:
            self.add(b"2W\0\0\0\1" + b"2C\0\0\0\4abcd", [FAULT | {"error": "bad_zlib"}])
        elif kind < 0.25:
            self.version_1()
        else:
            bodies = [self.document() for _ in range(rng.choice([1, 1, 3, 40]))]
            self.add(
                files.window([body.raw for body in bodies], compress=rng.random() < 0.5),
                [body.row for body in bodies],
            )

    def document(self) -> Body:
        rng = self.rng
        if rng.random() < 0.05:
            body = Body(rng.choice([b"[1]", b"{]", b'{"a":1} x']), None)
            body.row = body.row | {"error": "not_json"}
            return body
        ident = self.ident()
        made = self.fields()
        if ident is not None:
            carrier = rng.randrange(4)
            if carrier < 2:
                made["@metadata"] = {"_id": ident}
            if carrier in (0, 2):
                made["event.id"] = ident
            if carrier == 3:
                made["event"] = {"id": ident}
            # Escapes in an id stay as they are.
            return Body(json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode(), ident)
        return Body(self.json(made), None)

    def version_1(self) -> None:
        ident = files.event_id(PRODUCERS[0], self.rng.randrange(1, 99)) if self.rng.random() < 0.5 else None
        made = {name: str(value) for name, value in self.fields().items()}
        if ident:
            made["event.id"] = ident
        raw = join_pairs([(name.encode(), value.encode()) for name, value in made.items()])
        frame = b"1D\0\0\0\1" + raw
        packed = zlib.compress(frame)
        inside = b"1C" + struct.pack(">I", len(packed)) + packed if self.rng.random() < 0.5 else frame
        self.add(b"1W\0\0\0\1" + inside, [Body(raw, ident).row])

    # -- Logjam

    def logjam(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.05:
            self.add(files.heartbeat(3, 7), [])
        elif kind < 0.1:
            raw = oracle_logjam.join([b"shop-production", b"logs", b"{}", b"short"])
            self.add(raw, [FAULT | {"error": "bad_meta"}])
        elif kind < 0.15:
            raw = oracle_logjam.join([b"shop-production", b"logs", b"\1\2\3", files.meta(1)])
            self.add(raw, [FAULT | {"error": "bad_zlib"}])
        else:
            topic = rng.choice(["logs.shop.production", "events.shop.production", "mobile"])
            made_ms = rng.choice([0, 1_795_179_630_668])
            ident = self.ident()
            made: dict[str, Any] = self.fields()
            made["started_ms"] = rng.choice([1_795_179_630_000, "x"])
            made["severity"] = rng.randrange(8)
            if rng.random() < 0.5:
                made["lines"] = [[1, "t", self.text()] for _ in range(rng.randrange(3))]
            if ident is not None:
                made[oracle_logjam.carrier_of(topic.encode())] = ident
            body = Body(json.dumps(made, ensure_ascii=False).encode(), ident)
            unit = files.message(
                body.raw, topic=topic, request=rng.random() < 0.5, compression=rng.choice([0, 0, 1]),
                device=rng.choice([0, 5]), created_ms=made_ms,
            )  # fmt: skip
            self.add(unit, [body.row])

    # -- plog

    def event_document(self) -> Body:
        rng = self.rng
        if rng.random() < 0.15:
            return Body(rng.choice([b"plain text", b"caf\xe9 !", b"[1]"]) + b"%d" % rng.randrange(9), None)
        ident = self.ident()
        made: dict[str, Any] = {"type": "log", "host": "h", "timestamp": 1_795_179_630_668}
        made["data"] = rng.choice(
            [self.fields(), {"message": self.text(), "type": "inner"}, self.text(), None]
        )
        if ident is not None:
            made["uuid"] = ident
        return Body(json.dumps(made, ensure_ascii=False).encode(), ident)

    def plog(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.05:
            self.add(b"\0\0PING12", [])
        elif kind < 0.1:
            raw, error = rng.choice([(b"\0\3", "bad_type"), (b"\1\0" + bytes(30), "bad_version")])
            self.add(raw, [FAULT | {"error": error}])
        elif kind < 0.3:
            body = self.event_document()
            self.add(body.raw, [body.row])
        else:
            body = self.event_document()
            self.number += 1
            stream = rng.randrange(1, 4)
            parts = oracle_plog.fragments(body.raw, self.number, rng.choice([60, 1400]))
            if rng.random() < 0.3:
                rng.shuffle(parts)
            for i, part in enumerate(parts):
                last = i == len(parts) - 1
                if last and len(parts) > 1 and rng.random() < 0.1:
                    continue  # never complete
                self.add(part, [body.row] if last else [], stream=stream)

    def plog_tcp(self) -> None:
        body = self.event_document()
        self.add(body.raw, [body.row])

    # -- Logux

    def logux(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            self.add(rng.choice([b'["ping",1]', b'["connect",5,"10:a:b",0]']), [])
        elif kind < 0.2:
            raw, error = rng.choice(
                [
                    (b"no", "bad_json"),
                    (b'{"a":1}', "bad_message"),
                    (b'["what",1]', "unknown_message"),
                    (b'["sync",1,{"type":"log/add"}]', "bad_sync"),
                    (b'["sync",1,{"type":"a","id":"my own"},{"id":[1,0],"time":1},7,{}]', "bad_action"),
                    (b'["sync",1,{"type":"log/add"},{"id":[1,0]}]', "bad_meta"),
                ]
            )
            self.add(raw, [FAULT | {"error": error}])
        else:
            bodies = []
            for _ in range(rng.choice([1, 1, 3, 30])):
                ident = self.ident()
                made: dict[str, Any] = {"type": "log/add", "data": self.fields()}
                if rng.random() < 0.2:
                    made = {"type": "chat/add", "text": self.text(), "message": "hi"}
                if ident is not None:
                    made["id"] = ident
                bodies.append(Body(json.dumps(made, ensure_ascii=False).encode(), ident))
            pairs = [b',%b,{"id":[%d,0],"time":1}' % (body.raw, n) for n, body in enumerate(bodies)]
            self.add(b'["sync",%d%b]' % (len(bodies), b"".join(pairs)), [body.row for body in bodies])

    # -- files

    def write(self, folder: Path, *, damage: bool = True) -> None:
        """Write the segments, some of them with bytes that are no record, or without an end."""
        rng = self.rng
        folder.mkdir(parents=True, exist_ok=True)
        size = rng.choice([1, 3, 10, 10_000])
        arrival = 1
        pieces = [self.units[i : i + size] for i in range(0, len(self.units), size)] or [[]]
        for number, piece in enumerate(pieces, 1):
            data = [files.header_record(self.name, number, arrival, self.protocol)]
            told: set[int] = set()
            for stream, raw, direction, received in piece:
                if stream not in told:
                    told.add(stream)
                    data.append(files.stream_record(stream, f"10.0.0.{stream}:9"))
                data.append(
                    files.unit_record(arrival, raw, direction=direction, stream=stream, received_us=received)
                )
                arrival += 1
                if damage and rng.random() < 0.01:
                    broken = bytearray(files.record(b"\x03" + bytes(40)))
                    broken[4] ^= 1
                    data.append(bytes(broken))
                    self.lost("damage")
            if number < len(pieces):
                data.append(files.end_record(arrival, "rotated"))
            elif damage and rng.random() < 0.1:
                data.append(files.unit_record(arrival, b"torn")[:-2])
                self.lost("torn_record")
            else:
                data.append(files.end_record(arrival))
            (folder / f"{self.name}-{number:06d}.cap").write_bytes(b"".join(data))

    def lost(self, error: str) -> None:
        self.rows.append(FAULT | {"listener": self.name, "peer": None, "received": None, "error": error})


def make(
    folder: Path, seed: int, listeners: int, units: int, *, damage: bool = True, apart: bool = False
) -> list[Row]:
    """Write a capture of many listeners, and return its rows in no order.

    Args:
        apart: each listener has a folder of its own.
    """
    rows: list[Row] = []
    for i in range(listeners):
        rng = random.Random(seed * 1_000_003 + i)
        one = Listener(rng, f"l{i:05d}", PROTOCOLS[i % len(PROTOCOLS)])
        one.fill(rng.randrange(units + 1))
        one.write(folder / one.name if apart else folder, damage=damage)
        rows += one.rows
    return rows


# -- what is read


def plain(row: Row) -> Row:
    """Return a row with its time in microseconds."""
    made = dict(row)
    if isinstance(made.get("received"), datetime.datetime):
        stamp = made["received"].replace(tzinfo=made["received"].tzinfo or datetime.UTC)
        made["received"] = (stamp - EPOCH) // datetime.timedelta(microseconds=1)
    if made.get("body") is not None:
        made["body"] = bytes(made["body"])
    return made


def counted(rows: list[Row]) -> Counter[str]:
    """Return how often there is each row."""
    return Counter(repr(sorted(plain(row).items())) for row in rows)


def assert_equal(found: list[Row], expected: list[Row]) -> None:
    """Compare rows in any order."""
    ours, theirs = counted(found), counted(expected)
    more, less = sorted((ours - theirs).elements())[:3], sorted((theirs - ours).elements())[:3]
    assert more == less == [], f"too many: {more}, too few: {less}"


def log_source(folder: Path | str, **options: Any) -> Any:
    """Return the data source ``logclient`` over a capture, as Spark makes it."""
    from logclient.verify.dataframes.sources import LogSource

    return LogSource({"path": str(folder), **{name: str(x) for name, x in options.items()}})


def read(folder: Path | str, schema: Any = None, **options: Any) -> list[Row]:
    """Read a capture as a task of Spark does, without Spark."""
    reader = log_source(folder, **options).reader(schema)
    rows: list[Row] = []
    for part in reader.partitions():
        for batch in reader.read(part):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows
