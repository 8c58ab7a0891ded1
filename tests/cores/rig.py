"""An engine and a server around one of the cores, with the checks at the end of every run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from logclient._ext.hash import xxh64
from logclient.delivery import lifecycle
from logclient.delivery.ending import State
from logclient.delivery.engine import Engine
from logclient.delivery.error_log import ErrorLog
from logclient.delivery.peer import Peer
from logclient.delivery.producer import Producer
from logclient.delivery.sender import Sender
from logclient.delivery.setup import Setup as Parts
from logclient.delivery.stats import Stats
from logclient.files import private_directory
from tests.cores import plain
from tests.cores.compiled import Compiled
from tests.cores.recount import Books, recount
from tests.cores.server import MemoryServer, MemoryTransport, Server, SocketServer
from tests.support import transports
from tests.support.configs import config_for
from tests.support.patience import PATIENCE


class Setup(NamedTuple):
    """A core, with the kind of its pump."""

    kind: str
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.kind}-{'C' if self.compiled else 'Python'}"


SETUPS = [Setup(k) for k in ("cumulative", "fifo", "by_id", "none")]
SETUPS += [Setup("fifo", True), Setup("by_id", True)]

PLAIN: dict[str, type[plain.Base]] = {
    "cumulative": plain.Cumulative,
    "fifo": plain.Fifo,
    "by_id": plain.ById,
    "none": plain.NoAcks,
    "frames": plain.Frames,
}


def core_for(setup: Setup, producer: bytes, **options: Any) -> plain.PlainCore:
    if setup.compiled:
        return Compiled(setup.kind, producer, **options)
    return plain.core_of(PLAIN[setup.kind], producer, **options)


class Recorder(ErrorLog):
    """An error log that keeps its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def warn_limited(self, kind: str, text: str, level: int = 30) -> bool:
        self.lines.append((kind, text))
        return True

    def of(self, kind: str) -> list[str]:
        return [text for k, text in self.lines if k == kind or k.startswith(f"{kind} ")]


def adds_up(stats: Stats) -> bool:
    given = stats.acked + stats.handed + sum(stats.failed.values()) + sum(stats.dropped.values())
    return stats.sent == stats.queued + stats.inflight + given and min(stats.queued, stats.inflight) >= 0


class Rig:
    """An engine with its server; `limits` are for the engine, `inflight` and `silence` for the core."""

    def __init__(
        self,
        setup: Setup,
        ledger: Path | None,
        *,
        inflight: int = 64,
        silence: float = 30.0,
        server: Server | None = None,
        transport: Any = None,
        reporter: ErrorLog | None = None,
        **limits: Any,
    ) -> None:
        self.setup = setup
        self.ledger = ledger
        self.server = server or (SocketServer(setup.kind) if setup.compiled else MemoryServer(setup.kind))
        if transport is None:
            transport = (
                MemoryTransport(self.server)
                if isinstance(self.server, MemoryServer)
                else transports.tcp(PATIENCE)
            )
        self.reporter = reporter or Recorder()
        self.received: list[Any] = []
        limits = {"linger": 0.001, "backoff_min": 0.001, "backoff_max": 0.02, "batch_events": 50} | limits
        limits["window"] = limits.pop("batch_events")
        about = {"redacted": "test://server", "endpoints": (self.server.endpoint,)}
        self.limits = config_for("lumberjack").replace(**about, **limits)  # not checked against each other
        parts = Parts(
            lambda producer: core_for(setup, producer, inflight=inflight, silence=silence),
            [transport],
            self.limits,
            ledger=None
            if ledger is None
            else (
                private_directory(ledger, "ledger"),
                {"protocol": "test", "url": "test://server", "identity": "id", "host": "here"},
            ),
        )
        parts.log = self.reporter
        self.sender = Sender(parts)
        self.producer, self.waiter = Producer(self.sender), self.sender.waiter
        self.peer = Peer(self.sender)
        self.peer.on_message(self.received.append)
        self.bodies: dict[int, bytes] = {}
        self.finished = False

    @property
    def engine(self) -> Engine:
        """That of this process."""
        return self.sender.engine

    @property
    def lines(self) -> Recorder:
        assert isinstance(self.reporter, Recorder)
        return self.reporter

    # -- events

    def put(self, body: bytes = b"", level: int = 2, kind: int = 0) -> int:
        """Put one event, by default with a unique body, and return its sequence."""
        body = body or b"event %d" % (len(self.bodies) + 1)
        seq = self.producer.put(body, level, kind)
        if seq:
            self.bodies[seq] = body
        return seq

    def many(self, n: int, level: int = 2) -> list[int]:
        return [self.put(level=level) for _ in range(n)]

    def settle(self) -> Stats:
        """Wait until every event has its outcome."""
        assert self.waiter.flush(PATIENCE) == 0
        return self.stats()

    def stats(self) -> Stats:
        stats = self.sender.stats()
        assert adds_up(stats), stats
        return stats

    def until(self, what: Callable[[Stats], Any], timeout: float = PATIENCE) -> Stats:
        """Wait until the counts fulfil a condition."""
        pause = threading.Event()
        for _ in range(int(timeout * 500)):
            stats = self.stats()
            if what(stats):
                return stats
            pause.wait(0.002)
        raise AssertionError(f"never: {stats}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Check continuously from another thread that the counts add up."""
        wrong: list[Stats] = []
        looks = 0
        over = threading.Event()

        def look() -> None:
            nonlocal looks
            while not over.is_set() and not wrong:
                stats = self.sender.stats()
                looks += 1
                if not adds_up(stats):
                    wrong.append(stats)
                over.wait(0.0005)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        assert not wrong and looks > 1

    # -- the end

    def reopen(self) -> None:
        """After the exit of its engine, let it be closed for good."""
        self.sender.ending.state = State.RUNNING

    def exit(self, deadline: float) -> None:
        """Deliver as at the end of the process, until the monotonic `deadline`."""
        lifecycle.finish([self.sender], lambda sender: deadline)

    def finish(self, timeout: float = PATIENCE) -> Stats:
        """Close the engine, and check the conditions of every run."""
        if self.finished:
            return self.stats()
        self.finished = True
        try:
            self.waiter.close(timeout)
        finally:
            self.server.close()
        stats = self.stats()
        assert stats.queued == stats.inflight == 0 and stats.queued_bytes == 0
        ours = self.engine.producer.hex()
        arrived = [got for peer in self.server.peers for got in peer.got if got.producer == ours]
        for got in arrived:
            assert self.bodies[got.seq] == got.body
        if self.ledger is not None and list(self.ledger.glob(f"{ours}-*")):
            self.check_books(stats, arrived)
        return stats

    def books(self) -> Books:
        assert self.ledger is not None
        return recount(self.ledger, self.engine.producer.hex())

    def check_books(self, stats: Stats, arrived: list[Any]) -> None:
        books = self.books()
        if stats.ledger_error:
            assert books.closed is None
            return
        assert not books.stopped
        assert books.closed is not None
        assert books.last == books.closed["last"] == stats.sent
        assert sorted(books.outcomes) == list(range(1, stats.sent + 1)), "an event has no outcome"
        assert sum(books.count("acked").values()) == books.closed["acked"] == stats.acked
        assert sum(books.count("handed").values()) == books.closed["handed"] == stats.handed
        assert books.count("failed") == books.closed["failed"] == stats.failed
        assert books.count("dropped") == books.closed["dropped"] == stats.dropped
        assert books.count("sent") == {}
        assert books.before == books.closed["bytes"]
        seen = {got.seq for got in arrived}
        for got in arrived:
            assert books.hashes[got.seq] == xxh64(got.payload)
        for seq, (status, _) in books.outcomes.items():
            assert status not in ("acked", "handed") or seq in seen or status == "handed", (
                f"{seq} never arrived"
            )
            assert status != "dropped" or seq not in seen, f"{seq} was dropped, but arrived"
