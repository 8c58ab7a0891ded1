"""Logux's codec in plain Python: an object for a ``PythonCodec``, with the methods of the compiled one.

It leaves every received message to the core, which reads it as JSON. So a comparison with the compiled codec
also compares what that reads by itself with what the core reads.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from logclient._ext.constants import (
    ACKED,
    FAILED,
    INFLIGHT,
    PENDING,
    R_DENIED,
    R_DOUBT,
    R_ERROR,
    R_UNKNOWN_TYPE,
    REASONS,
)
from logclient._ext.inflight import Batch
from logclient._ext.pump import Outcomes as Found
from logclient._ext.pump import PythonCodec
from logclient.logux.config import LoguxConfig
from logclient.logux.core import Logux
from logclient.logux.messages import compact
from tests.oracle import logux_client
from tests.oracle.lumberjack_limit import Piece, queue_bytes
from tests.oracle.xxh64 import xxh64

MAX_ANSWERS = 100_000
MAX_SEQUENCE = (1 << 64) - 1
MAX_PATIENCE = 8
NARROW = 8
DOUBTS = 4
BODY_LIMIT = 64 << 20


class Action(NamedTuple):
    seq: int
    text: bytes
    time: int
    subprotocol: int


class Sync:
    """A sync in flight: its actions by (ms, counter)."""

    def __init__(self, added: int, actions: dict[tuple[int, int], Action], size: int, sent: float) -> None:
        self.added = added
        self.actions = actions
        self.count, self.size, self.sent = len(actions), size, sent
        self.synced = False


class Outcomes:
    """Ranges of outcomes: one continues the last if it follows it."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, int, int]] = []
        self.progress = 0

    def add(self, seq: int, status: int, reason: int = 0) -> None:
        if self.ranges and self.ranges[-1][1:] == (seq - 1, status, reason):
            self.ranges[-1] = (self.ranges[-1][0], seq, status, reason)
        else:
            self.ranges.append((seq, seq, status, reason))

    def take(self) -> tuple[list[tuple[int, int, int, int]], int, int]:
        found = self.ranges, self.progress, 0
        self.ranges, self.progress = [], 0
        return found


class Runs:
    """Runs of actions that were undone together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.suspects: deque[Action] = deque()
        self.alone = 0
        self.offered = self.drained = False
        self.last_innocent = 0
        self.added = self.processed = -1
        self.limit = self.limit_processed = 0


class Target:
    """See the module."""

    def __init__(self, producer: bytes, options: LoguxConfig) -> None:
        self.producer = producer
        self.options = options
        start = options.window_bytes if "inflight" in options.given else (1 << 17) // options.inflight
        self.piece = Piece(options.window_bytes, start)
        self.identity = options.identity != "none"
        self.ids = logux_client.Ids()
        self.clocks = logux_client.Clocks()
        self.wall = self.now = 0.0
        self.added = self.processed = self.received = 0
        self.doubts: dict[int, tuple[int, int]] = {}
        self.patience = options.processing_timeout
        self.synchronized_at = 0.0
        self.jam_processed, self.jam_added = -1, 0
        self.headers = 0, MAX_SEQUENCE
        self.out = Outcomes()
        self.connection = "disconnected"
        self.forget()

    def forget(self) -> None:
        self.syncs: list[Sync] = []
        self.texts: list[bytes] = []
        self.tokens: deque[int] = deque()
        self.answered: list[int] = []
        self.inbox: list[bytes] = []
        self.runs = Runs(self.options.inflight * self.options.window)
        self.error: str | None = None
        self.jammed = self.over = self.is_blocked = False
        self.wanted = 0
        self.received_at = self.sent_at = self.awaited_since = self.began = self.progress_at = 0.0

    # -- clocks

    def sample(self, now: float, wall: float) -> None:
        self.now, self.wall = now, wall
        self.clocks.look(now, wall)
        ended = self.jam_processed >= 0 and self.processed != self.jam_processed
        oldest = self.syncs[0].added if self.syncs else 0
        if ended and not 0 < oldest <= self.jam_added:
            self.jam_processed = -1
            if self.progress_at - self.synchronized_at <= self.options.processing_timeout:
                self.patience = self.options.processing_timeout

    @property
    def ahead(self) -> float:
        return self.clocks.seen[-1][0] if self.clocks.seen else 0.0

    def to_wall(self, relative: float) -> float:
        at = self.connected_at + (relative - self.lead) * 1e-3
        return (at + self.ahead) * 1e3

    def server_time(self, at: float) -> int:
        ms = (at - self.connected_at) * 1e3 + self.lead
        return int(abs(ms) + 0.5) * (1 if ms >= 0 else -1)  # half a millisecond is rounded away from zero

    # -- connections

    def connecting(self, now: float) -> None:
        self.forget()
        self.out.take()
        self.connection = "connecting"
        self.piece.begin()
        self.began = self.received_at = self.sent_at = self.now = now

    def connected(self, node: bytes, base: int, now: float, lead: float) -> None:
        self.base = base
        self.connected_at = self.progress_at = self.synchronized_at = now
        self.lead = lead
        self.connection = "synchronized"

    def connection_lost(self, *, keep: bool = False, drop: bool = False) -> int:
        if self.syncs and not self.jammed:
            oldest = self.syncs[0]
            self.piece.lose(oldest.count, oldest.size)
        self.out.take()
        doubts = self.open
        flying = {one.seq: id for sync in self.syncs for id, one in sync.actions.items()}
        if drop:
            for seq in flying:
                self.out.add(seq, FAILED, R_DOUBT)
        kept = self.doubts | flying if keep else {}
        most = DOUBTS * self.runs.most
        self.doubts = dict(sorted(kept.items())[-most:])
        self.forget()
        self.connection = "disconnected"
        return doubts

    def end(self) -> None:
        self.over = True

    @property
    def state(self) -> str:
        busy = self.connection == "synchronized" and (self.syncs or self.runs.suspects)
        return "sending" if busy else self.connection

    # -- sending

    @property
    def open(self) -> int:
        return sum(len(sync.actions) for sync in self.syncs)

    @property
    def suspects(self) -> int:
        return len(self.runs.suspects)

    def room(self) -> int:
        runs = self.runs
        if runs.limit and self.processed - runs.limit_processed >= runs.limit:
            runs.limit_processed = self.processed
            runs.limit = 2 * runs.limit if 2 * runs.limit < runs.most else 0
        most = runs.limit or runs.most
        if self.open >= most or len(self.syncs) >= self.options.inflight:
            return 0
        if self.syncs and sum(sync.size for sync in self.syncs) >= self.piece.size * self.options.inflight:
            return 0
        return min(self.options.window, most - self.open)

    def credit(self, now: float) -> tuple[int, int]:
        if self.connection != "synchronized" or self.over or self.wanted:
            return 0, 0
        if self.is_blocked and self.open:
            return 0, 0
        self.is_blocked = False
        step = self.next_step()
        if step >= 0:
            return step, self.piece.size
        one = self.runs.suspects.popleft()
        self.runs.alone = one.seq
        self.begin_wait(now)
        self.send_sync([one], [self.ids.next(int(self.wall * 1000))], queue_bytes(len(one.text)), now)
        self.sent_at = now
        return 0, 0

    def next_step(self) -> int:
        runs = self.runs
        if not runs.suspects and not runs.alone:
            return self.room()
        if runs.suspects and not runs.alone and not runs.drained:
            room = self.room()
            if room and runs.offered:
                runs.drained = True
            else:
                runs.offered = room > 0
                return room
        if self.open:
            return 0
        runs.alone = 0
        if runs.suspects:
            return -1
        runs.drained = False
        return self.room()

    def begin_wait(self, now: float) -> None:
        if not self.syncs and not self.tokens:
            self.awaited_since = now

    def send_sync(self, actions: list[Action], ids: list[tuple[int, int]], size: int, now: float) -> None:
        rows = [(a.text, *id, a.time, a.subprotocol) for a, id in zip(actions, ids, strict=True)]
        self.texts.append(logux_client.sync(self.added, rows, self.base))
        if not self.syncs:
            self.progress_at = now
        self.added += len(actions)
        self.syncs.append(Sync(self.added, dict(zip(ids, actions, strict=True)), size, now))

    def encode(self, batch: Batch, events: int, now: float, wire: bytearray, out: Found) -> int:
        runs, options = self.runs, self.options
        blocked = self.is_blocked or self.wanted
        if self.connection != "synchronized" or self.over or blocked:
            return 0
        self.answers(wire)
        runs.offered = False
        allowed = last = runs.last_innocent if runs.suspects else MAX_SEQUENCE
        pending = batch.pending()
        if not pending:
            return 0
        if pending[0].seq <= allowed:
            if not self.headers[0] <= pending[0].seq <= self.headers[1]:
                self.wanted = pending[0].seq
                out.events += 1
                return 0
            last = min(last, self.headers[1])
        self.begin_wait(now)
        if len(self.syncs) >= options.inflight:
            return 0
        actions: list[Action] = []
        ids: list[tuple[int, int]] = []
        taken, held = 0, False
        for event in pending:
            if len(actions) == min(events, self.options.window):
                break
            if event.seq > last:
                held = True
                break
            if actions and taken + len(event.body) > self.piece.size:
                break
            found = logux_client.action(
                event.body, event.kind, event.seq, self.producer,
                type=options.action_type, identity=self.identity, check=options.check,
            )  # fmt: skip
            if isinstance(found, str):
                batch.mark(event.seq, FAILED, REASONS.index(found))
                continue
            if found.time is not None and self.clocks.seen:
                time = self.server_time(found.time * 1e-3 - self.ahead)
            else:
                time = self.server_time(self.clocks.when(event.created_us, now, event.seq))
            batch.mark(event.seq, INFLIGHT, 0, xxh64(found.text))
            id = self.doubts.pop(event.seq, None)
            ids.append(id or self.ids.next(int(self.wall * 1000)))
            actions.append(Action(event.seq, found.text, time, found.subprotocol))
            taken += queue_bytes(len(event.body))
        if actions:
            self.send_sync(actions, ids, taken, now)
            self.answers(wire)
            self.sent_at = now
        elif held and last == allowed:
            runs.drained = True
        return len(actions)

    def answers(self, wire: bytearray) -> None:
        for text in self.texts:
            wire += len(text).to_bytes(4, "little") + text
        self.texts = []
        self.waiting = 0

    waiting = 0  # messages that are no events

    def say(self, text: bytes) -> None:
        if self.over:
            return
        if self.waiting == MAX_ANSWERS:
            self.error = "the server asks for answers and does not read them"
            self.over = True
            return
        self.waiting += 1
        self.texts.append(text)

    def ping(self, token: int, now: float) -> None:
        self.say(b'["ping",%d]' % self.added)
        self.begin_wait(now)
        self.tokens.append(token)

    def set_headers(self, first: int, last: int) -> None:
        self.headers = first, last
        self.wanted = 0

    def hold_before(self, first: int) -> None:
        self.headers = self.headers[0], min(self.headers[1], max(first - 1, 0))

    def block(self) -> None:
        self.wanted = 0
        self.is_blocked = True

    # -- receiving

    def receive(self, data: bytes, now: float, out: Found) -> None:
        self.received_at = self.now = now
        if not self.over:
            self.inbox.append(data)
            out.events += 1

    def next_message(self) -> bytes | None:
        return self.inbox.pop(0) if self.inbox else None

    def read_on(self) -> None:
        if self.over:
            self.inbox.clear()

    def undos(self) -> list[tuple[int, bytes]]:
        return []  # the core has reported them

    def pongs(self) -> list[int]:
        found, self.answered = self.answered, []
        return found

    def pong(self) -> None:
        if self.tokens and (token := self.tokens.popleft()):
            self.answered.append(token)

    def synced(self, added: float, now: float) -> None:
        for sync in list(self.syncs):
            if not sync.synced and sync.added <= added:
                sync.synced = True
                if sync is self.syncs[0]:
                    self.progress_at = now
                for id in list(sync.actions) if self.options.ack == "synced" else ():
                    self.acknowledge(*id, now)

    def add_answer(self, added: int) -> None:
        self.say(b'["synced",%d]' % added)
        self.received = max(self.received, added)

    def take(self, ms: int, counter: int, now: float) -> tuple[Sync, Action] | None:
        for sync in self.syncs:
            if action := sync.actions.pop((ms, counter), None):
                if sync is self.syncs[0]:
                    self.progress_at = now
                self.piece.acked = True
                if not sync.actions:
                    self.syncs.remove(sync)
                    self.piece.settle(sync.size, sync.sent, now)
                return sync, action
        return None

    def acknowledge(self, ms: int, counter: int, now: float) -> None:
        if found := self.take(ms, counter, now):
            self.out.add(found[1].seq, ACKED)
            self.processed += 1
            self.out.progress += 1

    def undo(self, ms: int, counter: int, reason: int, now: float) -> tuple[int, bool]:
        runs = self.runs
        found = self.take(ms, counter, now)
        if found is None:
            return 0, False
        sync, action = found
        if reason == R_ERROR and action.seq != runs.alone:
            if sync.added <= runs.added and self.processed == runs.processed:
                self.out.add(action.seq, PENDING)
                runs.last_innocent = max(runs.last_innocent, action.seq)
                runs.offered = runs.drained = False
            else:
                runs.suspects.append(action)
                self.begin_run()
            return action.seq, False
        self.out.add(action.seq, FAILED, reason)
        if reason in (R_DENIED, R_UNKNOWN_TYPE):
            self.begin_run()
        return action.seq, True

    def begin_run(self) -> None:
        runs = self.runs
        limit, between = runs.limit or runs.most, self.processed - runs.processed
        if runs.processed >= 0 and between < limit:
            runs.limit = max(1, limit // NARROW, between)
            runs.limit_processed = self.processed
        runs.added, runs.processed = self.added, self.processed

    # -- timeouts

    @property
    def jam(self) -> float | None:
        return self.progress_at + self.patience if self.syncs and self.syncs[0].synced else None

    @property
    def silent_at(self) -> float:
        return max(self.received_at, self.awaited_since) + self.options.silence

    def deadline(self) -> float:
        if self.connection == "disconnected":
            return 0.0
        if self.connection == "connecting":
            return self.began + self.options.silence
        idle = max(self.received_at, self.sent_at) + self.options.ping
        if not self.syncs and not self.tokens:
            return idle
        timeout = self.silent_at if self.jam is None else min(self.silent_at, self.jam)
        return timeout if self.tokens else min(timeout, idle)

    def timeout(self, now: float) -> int:
        if self.over or not self.deadline() or now < self.deadline():
            return 0
        awaits = self.syncs or self.tokens
        if self.connection == "connecting" or (awaits and now >= self.silent_at):
            self.over = True
            return 1
        if self.jam is not None and now >= self.jam:
            self.over = self.jammed = True
            self.error = (
                f"jam: the server has got {self.open} actions and processes none of the first for "
                f"{self.patience:g} s; going on under a new client id"
            )
            self.patience = min(2 * self.patience, MAX_PATIENCE * self.options.processing_timeout)
            self.jam_processed, self.jam_added = self.processed, self.added + self.open
            return -2
        self.ping(0, now)
        self.sent_at = now
        return 0


class Codec(PythonCodec):
    """The target as a codec."""

    def outcomes(self) -> tuple[list[tuple[int, int, int, int]], int, int]:
        ours, theirs = super().outcomes(), self.target.out.take()
        return ours[0] + theirs[0], ours[1] + theirs[1], ours[2]


class PythonLogux(Logux):
    """The core with this codec."""

    def _make_codec(self, config: LoguxConfig, producer: bytes) -> Any:
        compact(config.action_type)
        return Codec(Target(producer, config))
