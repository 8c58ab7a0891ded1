"""A generator of ledgers and captures of any size, in the formats of docs/formats.md, with the true verdict.

Some clients log in turn (sixteen, or a `Shape`); every event is a separate window of 324 bytes with its id;
there are no acks. The fault of each event is drawn first and counted, so the verdict is known without a
comparison. Only `reordered` follows from the places of events: an event is reordered if its sequence is below
the highest earlier one.
"""

from __future__ import annotations

import json
import os
import shutil
from binascii import b2a_base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from logclient._ext.hash import xxh64

UNIT = 324
BATCH = 2048  # events in one line of a ledger
CHUNK = 16 * BATCH  # events made at a time
SEGMENT_BYTES = 256 << 20
FAR = 200_000  # the greatest delay of an event, in events
START_US = 1_767_225_600_000_000
EVERY_US = 5
LATENCY_US = 2_500

# The share of all events with each fault; an event has one fault at most.
FAULTS = {
    "lost": 1e-3,
    "missing": 5e-4,  # failed, and never seen
    "recovered": 5e-4,  # failed, and seen
    "dropped": 2e-4,
    "duplicated": 6e-4,
    "corrupted": 2e-4,
    "late": 1.2e-2,
}
LOST, MISSING, RECOVERED, DROPPED, DUPLICATED, CORRUPTED, LATE, NONE = range(8)
UNEXPECTED = 1e-4  # ids that were never sent, half of them of a known producer
WORDS = (
    *("ok", "lost", "missing", "recovered", "corrupted"),
    *("dropped", "unexpected", "duplicated", "reordered"),
)

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

RECORD_HEAD, UNIT_HEAD, FRAME_HEADS = 8, 27, 16
BODY = UNIT - FRAME_HEADS
STRIDE = RECORD_HEAD + UNIT_HEAD + UNIT  # bytes from record to record
HEX = np.array([int.from_bytes(b"%02x" % i, "little") for i in range(256)], np.uint16)
TEMPLATE = (
    b'{"@timestamp":"2026-01-01T00:00:00.000Z","log.level":"INFO","log.logger":"app.worker","message":"'
    b'PacketResponder 0 for block blk_%s terminating"'
    b',"@metadata":{"_id":"%s"},"event.id":"%s"}'
)


class Shape(NamedTuple):
    """The producers of a data set."""

    producers: int = 16
    skewed: bool = False  # the first producer has nine of ten events

    def who(self, index: I64) -> tuple[I64, I64]:
        """Return producer and sequence of events by their index."""
        if not self.skewed:
            return index % self.producers, index // self.producers + 1
        small = index // 10
        first = index % 10 != 9
        return (
            np.where(first, 0, 1 + small % (self.producers - 1)),
            np.where(first, index - small + 1, small // (self.producers - 1) + 1),
        )

    def sizes(self, events: int) -> I64:
        """Return the number of events of each producer."""
        if not self.skewed:
            return (events - np.arange(self.producers) + self.producers - 1) // self.producers
        small = np.arange(self.producers - 1)
        rest = (events // 10 - small + self.producers - 2) // (self.producers - 1)
        return np.append([events - events // 10], np.maximum(rest, 0))


EVEN = Shape()


class Set(NamedTuple):
    """A generated data set."""

    path: Path
    events: int
    truth: dict[str, dict[str, int]]  # producer ("": none) -> word -> count
    arrivals: int
    capture_bytes: int
    ledger_bytes: int

    @property
    def ledger(self) -> Path:
        return self.path / "ledger"

    @property
    def capture(self) -> Path:
        return self.path / "capture"


def make(path: Path, events: int, seed: int = 1, shape: Shape = EVEN) -> Set:
    """Generate a data set, or use an existing one of the same size, seed and shape."""
    told = path / "truth.json"
    mine = {"version": 3, "events": events, "seed": seed, "shape": [*shape]}
    if told.exists():
        found = json.loads(told.read_text())
        if found["of"] == mine:
            return Set(path, events, **found["made"])
    shutil.rmtree(path, ignore_errors=True)
    for name in ("ledger", "capture"):
        (path / name).mkdir(parents=True, mode=0o700)
    made = _Maker(path, events, seed, shape).run()
    told.write_text(json.dumps({"of": mine, "made": made}))
    return Set(path, events, **made)


def _hex(values: npt.NDArray[np.uint64]) -> U8:
    """Return 16 hex digits for each value."""
    return HEX[values.astype(">u8").view(np.uint8)].view(np.uint8).reshape(-1, 16)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class _Maker:
    def __init__(self, path: Path, events: int, seed: int, shape: Shape) -> None:
        self.path = path
        self.events = events
        self.shape = shape
        self.producers = shape.producers
        self.turn = 16 if shape.skewed else min(shape.producers, 1000)  # events between two of a producer
        self.draw = np.random.Generator(np.random.PCG64(seed))
        # The last one has no ledger.
        names = [self.draw.bytes(10) for _ in range(self.producers + 1)]
        self.names = [name.hex() for name in names]
        self.prefixes = np.frombuffer("".join(self.names).encode(), np.uint8).reshape(-1, 20)
        self.last = shape.sizes(events)
        # Hash and fault of each event, by producer and sequence.
        self.firsts = np.cumsum(self.last) - self.last
        self.hashes: npt.NDArray[np.uint64] = np.memmap(path / "hashes", np.uint64, "w+", shape=(events,))
        self.kinds: npt.NDArray[np.uint8] = np.memmap(path / "kinds", np.uint8, "w+", shape=(events,))
        self.indices: I64 = np.memmap(path / "indices", np.int64, "w+", shape=(events,))
        template = np.frombuffer(TEMPLATE.replace(b"%s", b"0" * 64, 1).replace(b"%s", b"0" * 32), np.uint8)
        assert len(template) <= BODY, len(template)
        self.body = np.append(template[:-1], np.full(BODY - len(template), 32, np.uint8))
        self.body = np.append(self.body, template[-1:])
        text = self.body.tobytes()
        self.at_time = text.index(b"00:00:00")
        self.at_text = text.index(b"blk_") + 4
        self.at_ids = (text.index(b'"_id":"') + 7, text.index(b'"event.id":"') + 12)
        self.reordered = np.zeros(self.producers, np.int64)
        self.highest = np.zeros(self.producers, np.int64)
        self.unexpected = np.zeros(self.producers + 1, np.int64)  # ids so far, by producer
        self.arrivals = 0
        self.waiting = self._rows(*(np.empty(0, np.int64) for _ in range(4)), np.empty((0, BODY), np.uint8))
        self.capture_bytes = 0
        self.segment = 0
        self.room = 0
        self.file: BinaryIO | None = None

    @staticmethod
    def _rows(key: I64, producer: I64, sequence: I64, first: I64, body: U8) -> dict[str, npt.NDArray[Any]]:
        return {"key": key, "producer": producer, "sequence": sequence, "first": first, "body": body}

    def run(self) -> dict[str, Any]:
        for low in range(0, self.events, CHUNK):
            self._chunk(low, min(low + CHUNK, self.events))
        self._emit(self.waiting, 1 << 62)
        self._end("closed")
        truth = {name: self._ledger(p, name) for p, name in enumerate(self.names[:-1])}
        truth[""] = dict.fromkeys(WORDS, 0) | {"unexpected": int(self.unexpected[-1])}
        for name in ("hashes", "kinds", "indices"):
            (self.path / name).unlink()
        return {
            "truth": truth,
            "arrivals": self.arrivals,
            "capture_bytes": self.capture_bytes,
            "ledger_bytes": sum(entry.stat().st_size for entry in os.scandir(self.path / "ledger")),
        }

    def _ledger(self, p: int, name: str) -> dict[str, int]:
        """Write the ledger of a producer, and return its true counts."""
        mine = slice(int(self.firsts[p]), int(self.firsts[p] + self.last[p]))
        hashes, kinds, indices = self.hashes[mine], self.kinds[mine], self.indices[mine]
        total = dict.fromkeys(("acked", "failed", "dropped"), 0)
        with (self.path / "ledger" / f"{name}-0001.ledger").open("wb") as file:
            self._line(
                file,
                {"t": "open", "version": 1, "producer": name, "part": 1, "protocol": "lumberjack",
                 "url": "lumberjack://127.0.0.1:5044", "identity": "id", "pid": 1, "host": "bench",
                 "at_us": START_US},
            )  # fmt: skip
            for low in range(0, len(hashes), BATCH):
                some = slice(low, low + BATCH)
                sequence = np.arange(low + 1, low + 1 + len(hashes[some]))
                self._lines(file, total, sequence, kinds[some], self._us(indices[some]), hashes[some])
            self._line(
                file,
                {"t": "close", "at_us": self._us(self.events), "last": int(self.last[p]),
                 "acked": total["acked"], "handed": 0, "failed": {"refused": total["failed"]},
                 "dropped": {"full": total["dropped"]}},
            )  # fmt: skip
        count = np.bincount(kinds, minlength=8).tolist()
        truth = dict.fromkeys(WORDS, 0) | {
            word: count[code] for code, word in enumerate(FAULTS) if word != "late"
        }
        truth["ok"] = count[NONE] + count[LATE] + count[DUPLICATED]
        truth["unexpected"], truth["reordered"] = int(self.unexpected[p]), int(self.reordered[p])
        return truth

    def _us(self, index: Any) -> Any:
        return START_US + index * EVERY_US

    # -- events and ledgers

    def _bodies(self, index: I64, producer: I64, sequence: I64) -> U8:
        out = np.empty((len(index), BODY), np.uint8)
        out[:] = self.body
        ms = index * EVERY_US // 1000 % 86_400_000
        at = self.at_time
        for size, places in (
            (3_600_000, (0, 1)), (60_000, (3, 4)), (1000, (6, 7)), (1, (9, 10, 11)),
        ):  # fmt: skip
            value, ms = np.divmod(ms, size)
            for place in reversed(places):
                value, digit = np.divmod(value, 10)
                out[:, at + place] = digit + 48
        some = index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for i in range(4):
            some = _mixed(some + np.uint64(i))
            out[:, self.at_text + 16 * i : self.at_text + 16 * i + 16] = _hex(some)
        low = _hex(sequence.astype(np.uint64))[:, 4:]
        for at in self.at_ids:
            out[:, at : at + 20] = self.prefixes[producer]
            out[:, at + 20 : at + 32] = low
        return out

    def _chunk(self, low: int, high: int) -> None:
        index = np.arange(low, high, dtype=np.int64)
        n = len(index)
        producer, sequence = self.shape.who(index)
        kind = np.searchsorted(np.cumsum(list(FAULTS.values())), self.draw.random(n), side="right")
        body = self._bodies(index, producer, sequence)
        hashes = np.fromiter(map(xxh64, body), np.uint64, n)
        at = self.firsts[producer] + sequence - 1
        self.hashes[at], self.kinds[at], self.indices[at] = hashes, kind, index
        self._arrive(index, producer, sequence, kind, body)

    @staticmethod
    def _line(file: BinaryIO, fields: dict[str, Any]) -> None:
        file.write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")

    def _lines(
        self, file: BinaryIO, total: dict[str, int], sequence: I64, kind: I64, created: I64,
        hashes: npt.NDArray[np.uint64],
    ) -> None:  # fmt: skip
        listed = kind != DROPPED
        if listed.any():
            base = int(created[listed][0])
            deltas = (created[listed] - base).astype("<i4").tobytes()
            self._line(
                file,
                {"t": "batch", "seqs": _ranges(sequence[listed]), "n": int(listed.sum()), "base": base,
                 "created": b2a_base64(deltas, newline=False).decode(),
                 "hashes": b2a_base64(hashes[listed].astype("<u8").tobytes(), newline=False).decode()},
            )  # fmt: skip
        failed = (kind == MISSING) | (kind == RECOVERED)
        at = int(created[-1]) + LATENCY_US
        for which, fields in (
            (listed & ~failed, {"t": "outcome", "at_us": at, "status": "acked", "reason": ""}),
            (failed, {"t": "outcome", "at_us": at, "status": "failed", "reason": "refused"}),
            (~listed, {"t": "dropped", "at_us": at, "reason": "full"}),
        ):
            if which.any():
                self._line(file, {**fields, "seqs": _ranges(sequence[which])})
                total[fields.get("status", "dropped")] += int(which.sum())

    # -- arrivals

    def _arrive(self, index: I64, producer: I64, sequence: I64, kind: I64, body: U8) -> None:
        """Assign a place of arrival to each event; late events wait for a later chunk."""
        n = len(index)
        seen = (kind != LOST) & (kind != MISSING) & (kind != DROPPED)
        key = 2 * index
        late = np.flatnonzero(kind == LATE)
        key[late] += 2 * self._delays(len(late)) + 1
        bad = np.flatnonzero(kind == CORRUPTED)
        body[bad, self.at_text + self.draw.integers(0, 64, len(bad))] ^= 1  # a hex digit becomes another
        again = np.flatnonzero(kind == DUPLICATED)
        extra = np.flatnonzero(self.draw.random(n) < UNEXPECTED)
        whose = np.where(extra % 2 == 0, producer[extra], self.producers)
        made = np.empty(len(extra), np.int64)
        for i, p in enumerate(whose.tolist()):
            self.unexpected[p] += 1
            made[i] = self.unexpected[p] + (self.last[p] if p < self.producers else 0)
        parts = [
            self.waiting,
            self._rows(
                key[seen], producer[seen], sequence[seen], np.ones(int(seen.sum()), np.int64), body[seen]
            ),
            self._rows(
                key[again] + 2 * self._delays(len(again)) + 1, producer[again], sequence[again],
                np.zeros(len(again), np.int64), body[again],
            ),
            self._rows(
                key[extra] + 1, whose, made, np.zeros(len(extra), np.int64),
                self._bodies(index[extra], whose, made),
            ),
        ]  # fmt: skip
        rows = {name: np.concatenate([part[name] for part in parts]) for name in self.waiting}
        self._emit(rows, 2 * (int(index[-1]) + 1))

    def _delays(self, n: int) -> I64:
        """Draw delays in events: mostly a few events of the same producer, but far in one case of ten."""
        near = self.turn * self.draw.integers(1, 65, n) + self.turn // 2
        return np.where(self.draw.random(n) < 0.9, near, self.draw.integers(self.turn, FAR, n))

    def _emit(self, rows: dict[str, npt.NDArray[Any]], until: int) -> None:
        """Write the events that arrive before `until`, and keep the rest."""
        now = rows["key"] < until
        self.waiting = {name: column[~now] for name, column in rows.items()}
        which = np.flatnonzero(now)
        which = which[np.argsort(rows["key"][which], kind="stable")]
        if not len(which):
            return
        producer, sequence = rows["producer"][which], rows["sequence"][which]
        self._order(producer, sequence, rows["first"][which] == 1)
        received = self._us(rows["key"][which] // 2) + LATENCY_US
        received += (_mixed(which.astype(np.uint64)) % np.uint64(1000)).astype(np.int64)
        for low in range(0, len(which), CHUNK):
            some = which[low : low + CHUNK]
            self._write(producer[low : low + CHUNK], received[low : low + CHUNK], rows["body"][some])

    def _order(self, producer: I64, sequence: I64, first: npt.NDArray[np.bool_]) -> None:
        """Count the events whose sequence is below the highest earlier one of their producer."""
        producer, sequence = producer[first], sequence[first]
        by = np.argsort(producer, kind="stable")
        producer, sequence = producer[by], sequence[by]
        # The producer stands above the bits of a sequence, so that one pass serves all of them.
        bits = int(self.last.max() + self.unexpected.max()).bit_length()
        keys = (producer << bits) + np.maximum(sequence, self.highest[producer])
        highest = np.maximum.accumulate(keys) & ((1 << bits) - 1)
        self.reordered += np.bincount(producer[sequence < highest], minlength=self.producers)
        np.maximum.at(self.highest, producer, sequence)

    def _write(self, producer: I64, received: I64, body: U8) -> None:
        n = len(producer)
        records = np.zeros((n, STRIDE), np.uint8)
        payload = STRIDE - RECORD_HEAD
        records[:, 0:4] = np.frombuffer(payload.to_bytes(4, "little"), np.uint8)
        records[:, 8] = 3
        arrival = self.arrivals + 1 + np.arange(n)
        for at, values in ((11, producer + 1), (19, arrival), (27, received)):
            records[:, at : at + 8] = values.astype("<i8").view(np.uint8).reshape(-1, 8)
        frames = b"2W\0\0\0\1" + b"2J\0\0\0\1" + BODY.to_bytes(4, "big")
        records[:, STRIDE - UNIT : STRIDE - BODY] = np.frombuffer(frames, np.uint8)
        records[:, STRIDE - BODY :] = body
        data = memoryview(records.reshape(-1))
        sums = [crc32(data[at + RECORD_HEAD : at + STRIDE]) for at in range(0, n * STRIDE, STRIDE)]
        records[:, 4:8] = np.array(sums, "<u4").view(np.uint8).reshape(-1, 4)
        done = 0
        while done < n:
            if self.room < STRIDE:
                self._next(self.arrivals + done + 1)
            some = min(n - done, self.room // STRIDE)
            self._append(data[done * STRIDE : (done + some) * STRIDE])
            done += some
        self.arrivals += n

    def _next(self, arrival: int) -> None:
        if self.file is not None:
            self._end("rotated", arrival)
        self.segment += 1
        self.file = (self.path / "capture" / f"lumberjack-0-{self.segment:06d}.cap").open("wb")
        self.room = SEGMENT_BYTES
        fields = {"run": "bench", "protocol": "lumberjack", "listener": "lumberjack-0",
                  "url": "lumberjack://127.0.0.1:5044", "segment": self.segment,
                  "first_arrival": arrival}  # fmt: skip
        self._record(b"\1\1\0\0\0" + json.dumps(fields).encode())
        for stream in range(1, self.producers + 2):
            self._record(b"\2" + stream.to_bytes(8, "little") + b"127.0.0.1:%d" % (1024 + stream % 64000))

    def _end(self, reason: str, arrival: int = 0) -> None:
        arrival = arrival or self.arrivals + 1
        self._record(b"\4" + arrival.to_bytes(8, "little") + reason.encode())
        assert self.file is not None
        self.file.close()

    def _record(self, payload: bytes) -> None:
        self._append(len(payload).to_bytes(4, "little") + crc32(payload).to_bytes(4, "little") + payload)

    def _append(self, data: Any) -> None:
        assert self.file is not None
        self.file.write(data)
        self.capture_bytes += len(data)
        self.room -= len(data)


def _ranges(sequences: I64) -> list[list[int]]:
    edges = np.flatnonzero(np.diff(sequences) != 1)
    first = sequences[np.concatenate(([0], edges + 1))]
    last = sequences[np.concatenate((edges, [len(sequences) - 1]))]
    return np.stack((first, last), axis=1).tolist()


def total(truth: dict[str, dict[str, int]]) -> dict[str, int]:
    """Add up the counts of all producers."""
    return {word: sum(counts[word] for counts in truth.values()) for word in WORDS}


def named(rows: Iterator[tuple[Any, ...]], names: list[str]) -> dict[str, dict[str, int]]:
    """Return the same structure from rows of the producer's index (-1: none) and the counts of `WORDS`."""
    out = {name: dict.fromkeys(WORDS, 0) for name in [*names, ""]}
    for p, *counts in rows:
        out[names[p] if p >= 0 else ""] = dict(zip(WORDS, map(int, counts), strict=True))
    return out
