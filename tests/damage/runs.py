"""A run of some producers and collectors from a seed: the files it leaves, and what really happened.

The ledger and the capture are written by the product's own writers, through a disk of `disk.py`. What is
between them is played here: networks that cut, servers that lie, processes that are killed and come again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from logclient.errors import LedgerError
from logclient.files import capture as captures
from logclient.files import ledger as ledgers
from tests.damage.disk import Disk, Fault, Killed, instead_of_os
from tests.oracle import plog
from tests.support import verify_files as files

PROTOCOLS = ("lumberjack", "logjam", "plog", "logux")
BEGAN = 1_700_000_000_000_000

Name = tuple[str, int]
"""Producer and sequence."""


class Event(NamedTuple):
    name: Name
    body: bytes
    own: str  # its own id; empty: it has none
    created: int
    topic: str


class Truth:
    """What happened, whatever is written of it."""

    def __init__(self) -> None:
        self.made = 0
        self.acked: set[Name] = set()  # the producer was told so
        self.arrived: set[Name] = set()  # the capture had it
        self.lies: list[str] = []  # beyond events that were acknowledged and thrown away
        self.alike: dict[Name, bytes] = {}  # bodies of events that nothing else tells apart
        self.copies: Counter[bytes] = Counter()  # of them, in the capture

    @property
    def lost(self) -> int:
        """Acknowledged events that did not arrive. Of those that are alike, how many too few came."""
        alike = Counter(body for name, body in self.alike.items() if name in self.acked)
        short = sum(max(n - self.copies[body], 0) for body, n in alike.items())
        return len(self.acked - self.arrived - self.alike.keys()) + short

    @property
    def broken(self) -> bool:
        return bool(self.lost or self.lies)

    def came(self, events: list[Event]) -> None:
        self.arrived |= {event.name for event in events}
        self.copies.update(event.body for event in events)

    def add(self, other: Truth) -> None:
        self.made += other.made
        self.acked |= other.acked
        self.arrived |= other.arrived
        self.lies += other.lies
        self.alike |= other.alike
        self.copies += other.copies


class Plan(NamedTuple):
    """What a run is to be like."""

    protocol: str
    lying: bool = False
    faults: tuple[tuple[str, Fault], ...] = ()  # "ledger" or "capture", of the first process there
    restarts: str = ""  # a collector is "killed" or "closed" and starts again
    ending: str = "closed"  # of producers: "closed", "late" (lines behind a close), "alive"
    names: tuple[str, ...] = ("main",)  # of listeners
    port: int = 5000
    began: int = BEGAN
    run: str = "run-1"
    most: int = 30  # events of a producer, about


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def tick(self, rng: random.Random) -> int:
        self.now += rng.choice((1, 30, 2_000))
        return self.now


class Ledger(ledgers.Ledger):
    """The product's, by a clock of ours."""

    clock: Clock

    def write(self, kind: str, **fields: Any) -> None:
        super().write(kind, at_us=self.clock.now, **fields)


# -- what travels


class Wire(NamedTuple):
    """A protocol's bytes."""

    window: int  # events in a unit, at most
    ack: bytes  # empty: nothing is acknowledged
    ordered: bool


def wire_of(protocol: str, mode: str) -> Wire:
    if protocol == "lumberjack":
        return Wire(5, b"2A\0\0\0\1", True)
    if protocol == "logjam":
        return Wire(1, files.ACCEPTED if mode == "request" else b"", mode == "request")
    if protocol == "plog":
        return Wire(1, b"", False)
    return Wire(4, b'["synced",1]', False)


def body_of(protocol: str, ident: str | None, text: str, own: str, topic: str) -> bytes:
    user = own or None
    if protocol == "lumberjack":
        return files.body(ident, text, user=user)
    if protocol == "logjam":
        return files.document(ident, text, topic=topic, user=user)
    carried = user or ident
    if protocol == "plog":
        return b'{"type":"log"%s,"data":"%s"}' % (
            f',"uuid":"{carried}"'.encode() if carried else b"",
            text.encode(),
        )
    return b'{"type":"log/add","data":{"m":"%s"}%s}' % (
        text.encode(),
        f',"id":"{carried}"'.encode() if carried else b"",
    )


class Units:
    """Wire units out of events; plog's have numbers."""

    def __init__(self, protocol: str, rng: random.Random) -> None:
        self.protocol = protocol
        self.rng = rng
        self._number = 0

    def of(self, events: Sequence[tuple[bytes, str]], mode: str) -> list[bytes]:
        """Of bodies with their topics."""
        bodies = [body for body, _ in events]
        self._number += 1
        if self.protocol == "lumberjack":
            return [files.window(bodies, compress=self.rng.random() < 0.3)]
        if self.protocol == "logjam":
            return [files.message(raw, topic=topic, request=mode == "request") for raw, topic in events]
        if self.protocol == "plog":
            room = self.rng.choice((1452, 80, 60))
            found = []
            for raw in bodies:
                self._number += 1
                found += plog.fragments(raw, self._number, room=room)
            return found
        pairs = [
            b',%b,{"id":[%d,%d],"time":%d}' % (raw, self._number, n, self._number)
            for n, raw in enumerate(bodies)
        ]
        return [b'["sync",%d%b]' % (len(bodies), b"".join(pairs))]


# -- collectors


class Listener:
    """A collector on its part of the capture, and those that come after it."""

    def __init__(self, run: Run, name: str, port: int, fault: Fault | None) -> None:
        self.run = run
        self.name = name
        self.url = f"{run.plan.protocol}://127.0.0.1:{port}"
        self.disk = Disk(fault)
        self.starts = 0
        self.writer: captures.CaptureWriter | None = None
        self.streams: dict[str, int] = {}
        self.start()

    def _do(self, action: Callable[[], Any]) -> bool:
        """Run a piece of the collector; False when the disk refused or the process is gone."""
        try:
            with instead_of_os(captures, self.disk):
                action()
        except LedgerError:
            return False
        except Killed:
            self.die()
            return False
        return True

    def start(self) -> None:
        plan = self.run.plan
        self.starts += 1

        def begin() -> None:
            self.writer = captures.CaptureWriter(
                self.run.capture,
                self.name,
                plan.protocol,
                url=self.url,
                run=f"{plan.run}-{self.starts}",
                segment_bytes=self.run.segment_bytes,
            )

        self.streams = {}
        if not self._do(begin):
            self.disk.end()
            self.writer = None

    def die(self) -> None:
        self.writer = None
        self.disk.end()

    def again(self, how: str) -> None:
        """The process ends, and the next one starts on what it left."""
        if how == "killed":
            self.die()
        else:
            self.close()
        self.disk = Disk(None)
        self.start()

    def close(self) -> None:
        if self.writer is not None:
            self._do(self.writer.close)
        self.writer = None
        self.disk.end()

    def take(self, peer: str, units: Sequence[bytes], ack: bytes) -> tuple[bool, bool]:
        """(The units are in the capture, the peer got its answer.)"""
        writer = self.writer
        if writer is None:
            return False, False
        if peer not in self.streams:
            self.streams[peer] = writer.stream(peer)
        stream, now = self.streams[peer], self.run.clock.tick(self.run.rng)
        due, before = writer._next, self.disk.writes

        def write() -> None:
            for raw in units:
                writer.unit(stream, raw, captures.FROM_PEER, now)
            writer.flush()

        try:
            with instead_of_os(captures, self.disk):
                write()
        except LedgerError:
            self.streams.pop(peer, None)
            # They are there when it was the end of the segment behind them that had no room.
            return writer._next > due, False
        except Killed as killed:
            self.die()
            # The first write has the units, what follows is the end of a segment and the next one's header.
            return killed.whole or self.disk.writes > before + 1, False
        if not ack:
            return True, True

        def answer() -> None:
            writer.unit(stream, ack, captures.TO_PEER, now)
            writer.flush()

        return True, self._do(answer)


# -- producers


class Producer:
    """A process that logs: what it makes, its ledger, and what it waits for."""

    def __init__(self, run: Run, fault: Fault | None) -> None:
        rng, plan = run.rng, run.plan
        self.run = run
        self.name = rng.randbytes(10).hex()
        self.identity = "none" if rng.random() < 0.12 else "id"
        self.mode = rng.choice(("request", "request", "async")) if plan.protocol == "logjam" else ""
        self.wire = wire_of(plan.protocol, self.mode)
        self.units = Units(plan.protocol, rng)
        self.users = rng.choice((0.0, 0.0, 0.3)) if self.identity == "id" else 0.0
        url = ",".join(f"127.0.0.1:{plan.port + i}" for i in range(len(plan.names)))
        about = {
            "protocol": plan.protocol,
            "url": f"{plan.protocol}://{url}",
            "identity": self.identity,
            "pid": 1,
            "host": "h",
        }
        if self.mode:
            about["mode"] = self.mode
        self.disk = Disk(fault)
        self.ledger = Ledger(str(run.ledger), self.name, about)
        self.ledger.clock = run.clock
        self.alive = True
        self.last = 0
        self.size = 0
        self.pending: list[Event] = []
        self.aside: list[Event] = []  # deferred
        self.undecided: dict[tuple[str, str], list[int]] = {}
        self.outcomes: dict[str, int] = {"acked": 0, "handed": 0, "failed": 0, "dropped": 0}
        self.tries = 0

    def _do(self, action: Callable[[], Any]) -> None:
        try:
            with instead_of_os(ledgers, self.disk):
                action()
        except Killed:
            self.alive = False
            self.disk.end()

    def write(self, kind: str, **fields: Any) -> None:
        """A line that the sender writes."""

        def write() -> None:
            self.ledger.open()
            self.ledger.write(kind, **fields)

        self._do(write)

    def pump(self, lines: Sequence[dict[str, Any]]) -> None:
        """Lines that the pump writes by itself."""
        data = b"".join(map(files.encode_line, lines))

        def write() -> None:
            fd = self.ledger.open()
            if fd < 0:
                return
            at = error = 0
            try:
                while at < len(data):
                    at += self.disk.write(fd, data[at:])
            except OSError as problem:
                error = problem.errno or 5
            self.ledger.wrote(at, error)

        self._do(write)

    def make(self, n: int) -> None:
        rng, plan = self.run.rng, self.run.plan
        batch: list[Event] = []
        for _ in range(n):
            self.last += 1
            self.run.truth.made += 1
            luck = rng.random()
            if luck < 0.06:
                self._outcomes("dropped", "overflow", self.last)
            elif luck < 0.09:
                self._outcomes("failed", "encode", self.last)
            else:
                own = f"own-{rng.getrandbits(40)}" if rng.random() < self.users else ""
                if own and rng.random() < 0.1:
                    own = "shared"
                topic = rng.choice(("logs.shop.production", "mobile")) if plan.protocol == "logjam" else ""
                ident = files.event_id(self.name, self.last) if self.identity == "id" else None
                text = f"line {self.last if ident else rng.randint(1, 4)} of {plan.run}"
                body = body_of(plan.protocol, ident, text, own, topic)
                created = self.run.clock.tick(rng)
                if ident is None or own == "shared":
                    self.run.truth.alike[self.name, self.last] = body
                batch.append(Event((self.name, self.last), body, own, created, topic))
        if batch:
            theirs = [event.name[1] for event in batch if event.own]
            lines = [
                files.batch_line(
                    [(event.name[1], event.created, files.xxh64(event.body)) for event in batch], own=theirs
                )
            ]
            if theirs:
                lines.append(files.ids_line([(event.name[1], event.own) for event in batch if event.own]))
            self.pump(lines)
            if self.alive:
                self.pending += batch

    def _outcomes(self, status: str, reason: str, *seqs: int) -> None:
        if seqs:
            self.outcomes[status] += len(seqs)
            self.undecided.setdefault((status, reason), []).extend(seqs)

    def settle(self) -> None:
        """Write down what became of some."""
        undecided, self.undecided = self.undecided, {}
        for (status, reason), seqs in undecided.items():
            if not self.alive:
                return
            if status == "dropped":
                self.write("dropped", reason=reason, seqs=files.ranges(seqs))
            else:
                self.write("outcome", status=status, reason=reason, seqs=files.ranges(seqs))

    def send(self, listener: Listener) -> None:
        rng, run = self.run.rng, self.run
        waiting = self.pending or self.aside
        events = waiting[: rng.randint(1, self.wire.window)]
        if not events:
            return
        lie = rng.choice(LIES) if run.plan.lying and rng.random() < 0.35 else ""
        came, told = run.network(self, listener, events, lie)
        if came:
            run.truth.came(events)
        if not self.wire.ack:
            # Gone as soon as the kernel has it.
            del waiting[: len(events)]
            self._outcomes("handed", "", *(event.name[1] for event in events))
        elif told:
            run.truth.acked |= {event.name for event in events}
            del waiting[: len(events)]
            self._outcomes("acked", "", *(event.name[1] for event in events))
            self.tries = 0
        else:
            self.tries += 1
            if self.tries > 2 and rng.random() < 0.5:
                self.tries = 0
                if waiting is self.pending and rng.random() < 0.6:
                    # To find out which one the server does not take.
                    self.aside += events
                    del self.pending[: len(events)]
                    self.write("deferred", seqs=files.ranges(event.name[1] for event in events))
                else:
                    del waiting[:1]
                    self._outcomes("failed", "rejected", events[0].name[1])

    def close(self) -> None:
        self._outcomes("failed", "closed", *(event.name[1] for event in (*self.pending, *self.aside)))
        self.pending, self.aside = [], []
        self.settle()
        if not self.alive:
            return
        self.write(
            "close",
            last=self.last,
            acked=self.outcomes["acked"],
            handed=self.outcomes["handed"],
            failed={"some": self.outcomes["failed"]} if self.outcomes["failed"] else {},
            dropped={"overflow": self.outcomes["dropped"]} if self.outcomes["dropped"] else {},
            **self._bytes(),
        )

    def _bytes(self) -> dict[str, int]:
        if self.ledger.fd < 0:
            return {}
        paths = self.run.ledger.glob(f"{self.name}-*.ledger")
        return {"bytes": sum(path.stat().st_size for path in paths)}


LIES = ("discard", "discard", "corrupt", "phantom", "twice", "swap")


class Run:
    """See the module. All is done when it is made."""

    def __init__(self, seed: int | str, plan: Plan, ledger: Path, capture: Path) -> None:
        self.rng = rng = random.Random(f"run {seed}")
        self.plan = plan
        self.ledger, self.capture = ledger, capture
        ledger.mkdir(parents=True, exist_ok=True)
        self.truth = Truth()
        self.clock = Clock(plan.began)
        self.segment_bytes = rng.choice((1 << 20, 700, 1500))
        self.held: list[tuple[Listener, str, list[bytes], Producer, list[Event]]] = []
        rotate = rng.choice((1 << 20, 1 << 20, 900))
        before, ledgers.ROTATE_AT = ledgers.ROTATE_AT, rotate
        try:
            self._play()
        finally:
            ledgers.ROTATE_AT = before

    def _play(self) -> None:
        rng, plan = self.rng, self.plan
        faults = dict(plan.faults)
        self.listeners = [
            Listener(self, name, plan.port + i, faults.get("capture") if not i else None)
            for i, name in enumerate(plan.names)
        ]
        self.producers = [
            Producer(self, faults.get("ledger") if not i else None) for i in range(rng.choice((1, 1, 2, 3)))
        ]
        again = rng.randint(3, 12) if plan.restarts else -1
        for step in range(rng.randint(6, 24)):
            if step == again:
                self.listeners[0].again(plan.restarts)
            producer = rng.choice(self.producers)
            self._step(producer)
        for listener in self.listeners:
            if listener.writer is None and plan.restarts:
                listener.again("killed")
        if plan.ending != "alive":
            for producer in self.producers:
                for _ in range(rng.choice((0, 20, 20))):
                    self._deliver(producer)
                if producer.alive:
                    producer.close()
                if producer.alive and plan.ending == "late":
                    producer.make(rng.randint(1, 3))
                    for _ in range(4):
                        self._deliver(producer)
                    if producer.alive and rng.random() < 0.7:
                        producer.close()
        self._release()
        for producer in self.producers:
            producer.disk.end()
        for listener in self.listeners:
            listener.close()

    def _step(self, producer: Producer) -> None:
        if not producer.alive:
            return
        luck = self.rng.random()
        if luck < 0.3 and producer.last < self.plan.most:
            producer.make(self.rng.randint(1, 5))
        elif luck < 0.85:
            self._deliver(producer)
        else:
            producer.settle()

    def _deliver(self, producer: Producer) -> None:
        if producer.alive:
            producer.send(self.rng.choice(self.listeners))

    def _release(self) -> None:
        """What a liar has held back goes to the capture, behind what came later."""
        for listener, peer, units, producer, events in self.held:
            came, _ = listener.take(peer, units, b"")
            if came:
                self.truth.came(events)
                if producer.wire.ordered:
                    self.truth.lies.append("swap")
        self.held = []

    def network(
        self, producer: Producer, listener: Listener, events: list[Event], lie: str
    ) -> tuple[bool, bool]:
        """(All of them are in the capture, the producer was told so.)"""
        rng, wire = self.rng, producer.wire
        peer = f"{producer.name[:4]}:{rng.randint(1, 2)}"
        sent = [(event.body, event.topic) for event in events]
        units = producer.units.of(sent, producer.mode)
        luck = rng.random()
        if luck < 0.1:  # nothing of it comes
            return False, False
        if luck < 0.18 and len(units) > 1:  # a datagram is lost
            del units[rng.randrange(len(units))]
            came, _ = listener.take(peer, units, b"")
            return False, came
        if lie == "discard":
            return False, listener.writer is not None
        if lie == "corrupt":
            at = rng.randrange(len(sent))
            body, topic = sent[at]
            sent[at] = body.replace(b"line", b"LINE"), topic
            came, told = listener.take(peer, producer.units.of(sent, producer.mode), wire.ack)
            if came:
                self.truth.lies.append(lie)
            return came, told
        if lie == "phantom":
            name = rng.choice((producer.name, "0e" * 10))
            seq = rng.choice((1 << 40, 7777, 0))
            body = body_of(self.plan.protocol, files.event_id(name, seq), "phantom", "", sent[0][1])
            if listener.take(peer, producer.units.of([(body, sent[0][1])], producer.mode), b"")[0]:
                self.truth.lies.append(lie)
        if lie == "twice":
            if listener.take(peer, units, b"")[0]:
                self.truth.came(events)
            units = producer.units.of(sent, producer.mode)
        if lie == "swap" and listener.writer is not None:
            if self.held:
                self._release()
            else:
                self.held.append((listener, peer, units, producer, events))
                return False, True
        came, told = listener.take(peer, units, wire.ack)
        if told and luck > 0.9:  # its answer is lost
            told = False
        return came, told


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


__all__ = ["PROTOCOLS", "Fault", "Plan", "Run", "Truth", "files_in"]
