"""The Logux client with a server's messages and actions in flight.

An input has options (actions in flight, the kind of acknowledgement, the policy for events in doubt), the
number of the allocation that fails (0: none), and messages with a zero byte between them. They go to the
compiled half, which is compared with the reference in plain Python, and to a core, which must report one
outcome at most for each action in flight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, check
from logclient._ext.inflight import InflightBatches
from logclient._ext.logux import ActionTracker
from logclient._ext.queue import EventQueue
from logclient.delivery.contract import CloseWanted, Fatal, Retry, Settled
from logclient.logux.core import Logux
from logclient.logux.messages import parse
from logclient.logux.options import Options
from tests.oracle import logux_client as oracle
from tests.support import recordings

EXTENSIONS = ("logux",)
MAX_LEN = 4096

COUNT, SYNCED, LOST = 15, 16, 128  # bits of the options; 32 and 64: the policy for events in doubt
DOUBTS = ("new_client", "same", "drop", "new_client")
WINDOW = 4
PRODUCER = bytes(range(10))
BASE = 1_795_155_088_000  # of connected, ms
NODE = Logux(Options(token="t"), PRODUCER).node_id
CONNECTED = b'["connected",5,"server:gold",[%d,%d],{"subprotocol":1}]' % (BASE, BASE)


def _id(counter: int, ms: int = BASE, node: str = NODE) -> bytes:
    return b"%d %b %d" % (ms, node.encode(), counter)


def processed(id: bytes, added: int = 0, *, turned: bool = False) -> bytes:
    parts = [b'"id":"%b"' % id, b'"type":"logux/processed"']
    return b'["sync",%d,{%b},{"id":[5,1],"time":5,"subprotocol":1}]' % (
        added,
        b",".join(parts[::-1] if turned else parts),
    )


def undo(id: bytes, reason: bytes = b'"error"') -> bytes:
    action = b'{"action":{"type":"log/add"},"id":"%b","reason":%b,"type":"logux/undo"}' % (id, reason)
    return b'["sync",0,%b,{"id":4,"time":4}]' % action


DICTIONARY = [
    b"\0", CONNECTED, *map(_id, range(3)), NODE.encode(), str(BASE).encode(), processed(_id(0)),
    processed(_id(1), turned=True), b'["synced",1]', b'["synced",4]', b'["sync",0,', b'{"id":"',
    b'","type":"logux/processed"},', b'"type":"logux/processed","id":"', b'"},', b'{"id":', b',"time":',
    b',"subprotocol":', b"}]", b"[5,1]", undo(_id(0)), b'"denied"', b'"unknownType"', b'["ping",1]',
    b'["pong",1]', b'["headers",{}]', b'["error","wrong-format"]', b"999999999999999", b"1e999", b"-0",
    b"9" * 30, b"null", b'"length":1',
]  # fmt: skip

ROOTS = tuple(f"ActionTracker.{name}" for name in (
    "receive", "synced", "add_answer", "acknowledge", "remove", "outcomes", "drain_answers",
    "connection_lost", "connected", "to_wall",
))  # fmt: skip
MISTAKE = "a caller's mistake, no input's: tests/logux/test_logux_core.py"
APART = {
    "raise TypeError": MISTAKE,
    "raise MemoryError()": "where doubts are kept: the memory of a lost connection does not fail here",
    "if not w.ready:": "before a connection: tests/logux/test_logux_core.py",
}

PLANTS = (
    Plant("length", "_ext/jsonscan.pxd", "    if <size_t> (end - p[0]) < n or memcmp",
          "    if <size_t> (end - p[0]) + 12 < n or memcmp", (ASAN,)),
    Plant("allocation", "_ext/logux/receive.pyx", "realloc(w.answers, room * sizeof(lc_answer))",
          "realloc(w.answers, (room + <size_t> added) * sizeof(lc_answer))", (MEMORY,)),
    Plant("endless", "_ext/logux/inflight.pyx", "        i = w.actions[i].next\n    return i\n",
          "        i = i\n    return i\n", (TIMEOUT,)),
    Plant("twice", "_ext/logux/inflight.pyx", "    p[0] = a.next\n    a.seq = 0\n",
          "    p[0] = p[0]\n    a.seq = 0\n", ("the reference says", ASAN, TIMEOUT)),
)  # fmt: skip

OTHERS = [
    b'["sync",0]', b'["sync",-3,{"type":"a"},{"id":1,"time":1}]',
    b'["sync",1.5,{"type":"a"},{"id":1,"time":1}]',
    b'["sync",1,{"type":"a"},{"id":[1,"n",0],"time":-1e308}]', b'["sync",%d]' % 10**30, b'["sync",1e308]',
    b'["synced",%d]' % 10**400, b'["synced",-1]', b'["synced",2.5]', b'["ping",1]', b'["pong",1]',
    b'["ping",%d]' % 10**400, b'["pong",1e400]', b'["headers",{"env":"development"}]',
    b'["debug","error","x"]',
    b'["error","wrong-credentials"]', b'["error","wrong-format","[1"]', b'["error","timeout",70000]',
    b'["error","wrong-protocol",{"supported":7,"used":5}]', b'["error","wrong-subprotocol",null]',
    b'["ready",1]', b"null", b"[]", b"{}", b'"x"', b"[1", b"\xff", b"[" * 200, b'["headers",null]',
    b'["sync",1,null,{"id":1,"time":1}]', b'["sync",1,{"type":"a","length":1},{"id":1,"time":1}]',
    b'["connected",4,"s",[1,1]]', b'["connected",5,"s",[1,-1]]', b'["connected",5,"s",[1,1.5]]',
    b'["connected",5,"s",[-1e308,1e15]]', CONNECTED, b'["connect",5,"s",0]', b'["duilian","x"]',
    b'["sync",1,{"type":"logux/processed"},{"id":1,"time":1}]',
    b'["sync",1,{"type":"logux/processed","id":7},{"id":1,"time":1}]',
    b'["sync",1,{"type":"logux/undo","id":null,"reason":[]},{"id":1,"time":1}]',
]  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Yield recorded messages of servers, outcomes in order and out of order, and unusual forms."""
    for case in recordings.cases(recordings.LOGUX):
        texts = [step["raw"].encode() for step in case["steps"] if step["dir"] == "S" and "raw" in step]
        yield bytes([9, 0]) + b"\0".join(texts)
    ids = [_id(n) for n in range(10)]
    for options in (8, 3, 15, 8 | SYNCED, 8 | LOST, 8 | LOST | 32, 8 | LOST | 64, 3 | SYNCED | LOST | 32, 0):
        for texts in (
            [b'["synced",4]', *map(processed, ids)],
            [b'["synced",8]', *(processed(id, n, turned=True) for n, id in enumerate(ids[::-1]))],
            [processed(ids[1]), processed(ids[1]), undo(ids[1]), b'["synced",99]'],
            [*map(undo, ids[:8])],
            [undo(ids[0], b'"denied"'), *map(undo, ids[1:4]), processed(ids[4]), undo(ids[5])],
            [undo(ids[2], b'"unknownType"'), undo(ids[3], b'"wrongChannel"'), undo(ids[4], b"7")],
        ):
            yield bytes([options, 0]) + b"\0".join(texts)
            for failing in range(1, 6) if options in (8, 8 | SYNCED) else ():
                yield bytes([options, failing]) + b"\0".join(texts)
    both = b'["sync",2,%b,{"id":1,"time":1},%b,{"id":[1,"x",2],"time":1}]'
    one = [b'{"id":"%b","type":"logux/processed"}' % id for id in ids]
    for text in (
        *OTHERS,
        both % (one[0], one[1]),
        both % (one[0], b'{"type":"news/add","n":1}'),
        processed(ids[0]).replace(b",", b" , "),
        processed(_id(0, BASE + 1)), processed(_id(0, -BASE)), processed(_id(0, node="other:a:b")),
        processed(_id(0, 0)), processed(b"x"), processed(ids[0][:-1]), processed(b"0%b" % ids[0]),
        processed(ids[0] + b"0" * 20), processed(ids[0], 999_999_999_999_999),
        processed(ids[0], -1), processed(ids[0]).replace(b'"time":5', b'"time":5.5'),
        processed(ids[0]).replace(b"[5,1]", b"5"), processed(ids[0]).replace(b"[5,1]", b'[5,"a",1]'),
        processed(ids[0]).replace(b',"subprotocol":1', b""),
        processed(ids[0]).replace(b"processed", b"pr\\u006fcessed"),
    ):  # fmt: skip
        yield bytes([6, 0]) + text
        yield bytes([6 | SYNCED, 0]) + b"\0".join([text, processed(ids[0]), text])
        yield bytes([1, 0]) + text[:-1]
    for cut in range(len(processed(ids[0]))):
        yield bytes([1, 0]) + processed(ids[0])[:cut]
    yield bytes([4, 0]) + b"\0".join(processed(ids[0], n) for n in range(40))


class _Actions:
    """Fifteen events that can be sent repeatedly."""

    def __init__(self) -> None:
        queue = EventQueue(max_bytes=1 << 20, max_event_bytes=1 << 16)
        for _ in range(COUNT):
            queue.push(b'{"n":1}', 2, 1)
        self.in_flight = InflightBatches(queue)
        batch = self.in_flight.take(100, 1 << 20)
        assert batch is not None
        self.batch: Any = batch

    def send(self, tracker: ActionTracker, wanted: int) -> list[list[int]]:
        """Send the first events; return the sequences by sync."""
        self.in_flight.requeue()
        syncs: list[list[int]] = []
        while wanted:
            n, _, _ = tracker.encode(self.batch.capsule, min(wanted, WINDOW), 100.0, BASE / 1e3)
            check(n == min(wanted, WINDOW), "a sync is encoded")
            self.in_flight.encoded(self.batch)
            first = syncs[-1][-1] + 1 if syncs else 1
            syncs.append(list(range(first, first + n)))
            wanted -= n
        return syncs


class _Reference:
    """The expected state: actions in flight, by id."""

    def __init__(self, syncs: list[list[int]], synced_mode: bool) -> None:
        self.at = {(BASE, seq - 1): seq for sync in syncs for seq in sync}
        self.syncs = [(sync[-1], {(BASE, seq - 1) for seq in sync}) for sync in syncs]
        self.unsynced = {added for added, _ in self.syncs}
        self.synced_mode = synced_mode
        self.acked: list[int] = []
        self.answers: list[int] = []
        self.alive = self.unknown_ids = 0

    def synced(self, n: float) -> None:
        for added, ids in self.syncs:
            if added in self.unsynced and added <= n:
                self.unsynced.discard(added)
                for id in sorted(ids & self.at.keys()) if self.synced_mode else ():
                    self.processed(id)

    def take(self, id: tuple[int, int]) -> int:
        seq = self.at.pop(id, 0)
        for added, ids in self.syncs:
            if id in ids and not ids & self.at.keys():
                self.unsynced.discard(added)  # nothing of it is awaited
        return seq

    def processed(self, id: tuple[int, int]) -> bool:
        seq = self.take(id)
        self.acked += [seq] * bool(seq)
        return bool(seq)

    def synced_first(self) -> bool:
        oldest = next((added for added, ids in self.syncs if ids & self.at.keys()), None)
        return oldest is not None and oldest not in self.unsynced

    def receive(self, text: bytes) -> bool:
        found = oracle.recognise(text, NODE)
        if found is None:
            return False
        self.alive += 1
        if len(found) == 1:
            self.synced(found[0])
        else:
            self.answers.append(found[0])
            self.unknown_ids += not self.processed((found[1], found[2]))
        return True


_actions = _Actions()


def run(data: memoryview) -> None:
    if len(data) < 2:
        return
    texts = bytes(data[2:]).split(b"\0")
    _compiled(data[0], data[1], texts)
    _core(data[0], texts)


def _compiled(options: int, failing: int, texts: list[bytes]) -> None:
    synced = bool(options & SYNCED)
    tracker = ActionTracker(PRODUCER, b'"log/add"', window=WINDOW, inflight=4, synced=synced)
    tracker.connected(NODE.encode(), BASE, 100.0, 0.0)
    expected = _Reference(_actions.send(tracker, options & COUNT), synced)
    memory.fail_at(failing)
    try:
        for text in texts:
            taken = tracker.receive(text, 101.0)
            check(taken is expected.receive(text), "received, the reference says otherwise", text)
            slow = _slow(text)
            if slow is None:
                continue
            added, outcomes = slow
            if outcomes is None:
                tracker.synced(added, 101.0)
                expected.synced(added)
                continue
            tracker.add_answer(added)
            expected.answers.append(added)
            for undone, id in outcomes:
                if undone:
                    taken = tracker.remove(*id, 101.0)
                    check(
                        (taken[0] if taken else 0) == expected.take(id),
                        "undone, the reference says otherwise",
                        id,
                    )
                else:
                    check(
                        tracker.acknowledge(*id, 101.0) is expected.processed(id),
                        "the reference says otherwise",
                        id,
                    )
    except MemoryError:
        check(failing, "no memory, although no allocation failed")
        return
    finally:
        memory.fail_at(0)
    answers_waiting = tracker.answers_waiting
    outcomes, alive, progress = tracker.outcomes()
    acked = [seq for first, last, _, _ in outcomes for seq in range(first, last + 1)]
    check(
        sorted(acked) == sorted(expected.acked),
        "acknowledged, the reference says otherwise",
        acked,
        expected.acked,
    )
    found = alive, progress, answers_waiting
    check(
        found == (expected.alive, len(expected.acked), len(expected.answers)),
        "what came, the reference says otherwise",
    )
    answers = [b'["synced",%d]' % n for n in expected.answers]
    check(tracker.drain_answers() == answers, "answers, the reference says otherwise")
    left = tracker.open, tracker.oldest_synced, tracker.unmatched, tracker.answers_waiting
    want = len(expected.at), expected.synced_first(), expected.unknown_ids, 0
    check(left == want, "in flight, the reference says otherwise", left, want)
    if options & LOST:
        policy = DOUBTS[options >> 5 & 3]
        doubts, dropped = tracker.connection_lost(keep=policy == "same", drop=policy == "drop")
        gone = [seq for first, last, _, _ in dropped for seq in range(first, last + 1)]
        check(doubts == len(expected.at), "doubts, the reference says otherwise")
        check(gone == (sorted(expected.at.values()) if policy == "drop" else []), "dropped", gone)
        check(tracker.open == 0 and not tracker.oldest_synced, "forgotten")
        check(not tracker.receive(processed(_id(0)), 102.0), "forgotten")
        tracker.connected(NODE.encode(), BASE, 103.0, 0.0)
        _actions.send(tracker, options & COUNT)  # under the ids of before, where they are kept


_Slow = tuple[int, list[tuple[bool, tuple[int, int]]] | None]


def _slow(text: bytes) -> _Slow | None:
    """(added, [(undone, id)]) of a sync, (added, None) of synced, where it is not read at once."""
    if oracle.recognise(text, NODE) is not None:
        return None
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if type(message) is not list or len(message) < 2:
        return None
    kind, added, *rest = message
    if type(added) is not int or abs(added) >= 1 << 53:
        return None
    if kind == "synced":
        return added, None
    if kind != "sync":
        return None
    outcomes = []
    for action in rest[::2]:
        id = action.get("id") if type(action) is dict else None
        found = re.fullmatch("([0-9]{1,16}) [^ ]* ([0-9]{1,16})", id) if type(id) is str else None
        if found:
            outcomes.append((action.get("type") == "logux/undo", (int(found[1]), int(found[2]))))
    return added, outcomes


def _core(options: int, texts: list[bytes]) -> None:
    doubt = DOUBTS[options >> 5 & 3]
    ack = "synced" if options & SYNCED else "processed"
    core = Logux(Options(token="t", window=WINDOW, on_doubt=doubt, ack=ack), PRODUCER)
    core.wall = lambda: BASE / 1e3
    core.connected(100.0, lambda: 0.5)
    core.receive_data(CONNECTED, 100.0)
    _actions.in_flight.requeue()
    left = options & COUNT
    while left:
        left -= core.encode(_actions.batch, min(left, WINDOW), 100.0)
        _actions.in_flight.encoded(_actions.batch)
    waiting = set(range(1, (options & COUNT) + 1))
    for text in texts:
        core.receive_data(text, 101.0)
        _events(core, waiting)
        core.credit(101.0)
        for wire in core.data_to_send():
            said = b"".join(map(bytes, wire.buffers))
            check(type(parse(said)) is not None, "not sent by anybody", said)
        core.sent()
        core.next_timeout(101.0)
        core.handle_timeout(102.0)
    if options & LOST:
        core.connection_lost()
        for event in core.events_received():
            if isinstance(event, Settled):
                check(event.reason == "doubt", "an outcome of a lost connection", event)
        check(core.next_timeout(1e9) is None and core.state == "disconnected", "forgotten")


def _events(core: Logux, waiting: set[int]) -> None:
    for event in core.events_received():
        if isinstance(event, Settled):
            for first, last in event.ranges:
                for seq in range(first, last + 1):
                    check(seq in waiting, "an outcome of what is not in flight", event)
                    waiting.discard(seq)
        elif isinstance(event, Retry):
            for first, last in event.ranges:
                check(set(range(first, last + 1)) <= waiting, "again, what is not in flight", event)
        elif isinstance(event, Fatal | CloseWanted):
            check(core.credit(101.0) == (0, 0), "something may be sent after the end")
