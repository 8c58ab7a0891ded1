"""The Logux client with a server's messages and actions in flight.

An input has options (actions in flight, the kind of acknowledgement, the policy for events in doubt), the
number of the allocation that fails (0: none) with the time that passes after each message, and messages with
a zero byte between them, or a 1 where they arrive together. They go to a core with the compiled codec and to
one with the codec in plain Python, which must report the same and send the same, and one outcome at most for
each action in flight. Where an allocation fails, only the first gets them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Outcomes, Plant, check, enough_memory, exact, read
from logclient._ext.constants import PENDING, STATUSES
from logclient._ext.inflight import InflightBatches
from logclient._ext.queue import EventQueue
from logclient.delivery.contract import Fatal
from logclient.logux.client import WHOLE_WITH_META, _head
from logclient.logux.core import Logux
from logclient.logux.messages import parse
from tests.oracle import logux_codec as oracle
from tests.support import recordings
from tests.support.configs import logux_config
from tests.support.connections import split

EXTENSIONS = ("logux",)
MAX_LEN = 4096

COUNT, SYNCED, LOST = 15, 16, 128  # bits of the options; 32 and 64: the policy for events in doubt
DOUBTS = ("new_client", "same", "drop", "new_client")
STEPS = (1.0, 11.0, 25.0, 40.0)  # seconds after a message, by two bits: until a ping, a jam and a silence
PINGED, JAMMED, SILENT = 64, 128, 192
WINDOW = 4
ACTION = _head({"subprotocol": 3}) + b'{"type":"news/add"}', WHOLE_WITH_META
PRODUCER = bytes(range(10))
BASE = 1_795_155_088_000  # of connected, ms
NODE = Logux(logux_config(token="t"), PRODUCER).node_id
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

ROOTS = (
    "client_receive", "client_credit", "next_timeout", "act_on_timeout", "move_ready",
    "Codec.acknowledge", "Codec.add_answer", "Codec.connected", "Codec.connecting", "Codec.connection_lost",
    "Codec.next_message", "Codec.pong", "Codec.synced", "Codec.to_wall", "Codec.undo",
    "Codec.undos",
)  # fmt: skip
MISTAKE = "a caller's mistake, no input's: tests/logux/test_logux_core.py"
APART = {
    "raise TypeError": MISTAKE,
    "key_is()": "undoes escapes in keys of events that are sent: the target logux_decoder",
    "is_ours()": "not called: receive.pyx has a variable of this name",
    "raise MemoryError()": "where doubts are kept: the memory of a lost connection does not fail here",
    "w.wrong = WRONG_ANSWERS": "more answers than an input can ask for: tests/logux/test_logux_core.py",
}

PLANTS = (
    Plant("length", "_ext/jsontext.pxd", "    if <size_t> (end - p[0]) < n or memcmp",
          "    if <size_t> (end - p[0]) + 12 < n or memcmp", (ASAN,)),
    Plant("allocation", "_ext/logux/receive.pyx", "wire_reserve(&w.scratch, object_size + SCAN_PAD)",
          "wire_reserve(&w.scratch, object_size + SCAN_PAD + (<size_t> added << 8))", (MEMORY,)),
    Plant("endless", "_ext/logux/inflight.pyx", "        i = w.actions[i].next\n    return i\n",
          "        i = i\n    return i\n", (TIMEOUT,)),
    Plant("twice", "_ext/logux/inflight.pyx", "    p[0] = a.next\n    a.seq = 0\n",
          "    p[0] = p[0]\n    a.seq = 0\n", ("not in flight", "the reference says", ASAN, TIMEOUT)),
)  # fmt: skip

OTHERS = [
    b'["sync",0]', b'["sync",-3,{"type":"a"},{"id":1,"time":1}]',
    b'["sync",1.5,{"type":"a"},{"id":1,"time":1}]',
    b'["sync",1,{"type":"a"},{"id":[1,"n",0],"time":-1e308}]', b'["sync",%d]' % 10**30, b'["sync",1e308]',
    b'["synced",%d]' % 10**400, b'["synced",-1]', b'["synced",2.5]', b'["ping",1]', b'["pong",1]',
    b'["ping",%d]' % 10**400, b'["pong",1e400]', b'["pong", 1]', b'["headers",{"env":"development"}]',
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
            [undo(ids[0], b'"denied"'), *map(processed, ids[1:])],
            [undo(ids[0], b'"denied"'), *map(undo, ids[1:4]), processed(ids[4]), undo(ids[5])],
            [undo(ids[2], b'"unknownType"'), undo(ids[3], b'"wrongChannel"'), undo(ids[4], b"7")],
        ):
            yield bytes([options, 0]) + b"\0".join(texts)
            for failing in range(1, 6) if options in (8, 8 | SYNCED) else ():
                yield bytes([options, failing]) + b"\0".join(texts)
            timed = b"\0".join([b'["ping",1]', *texts, b'["pong",1]', b'["ping",1]'])
            for time in PINGED, JAMMED, SILENT:
                yield bytes([options, time]) + timed
    both = b'["sync",2,%b,{"id":1,"time":1},%b,{"id":[1,"x",2],"time":1}]'
    one = [b'{"id":"%b","type":"logux/processed"}' % id for id in ids]
    broken = (b"{,}", b"{}", b"{1:2}", b'{"a}', b'{"a"}', b'{"a":}', b'{"a":]}', b'{"a":1 "b"}', b'{"a":1,}')
    for text in (
        *OTHERS,
        *(b'["sync",0,%b,{"id":4,"time":4}]' % action for action in broken),
        undo(ids[0], b'"err\\u006fr"'),
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
        yield bytes([6, PINGED]) + b"\0".join([text, text, processed(ids[0])])
        yield bytes([6, 0]) + b"\1".join([text, processed(ids[0]), text])
        yield bytes([1, 0]) + text[:-1]
    for cut in range(len(processed(ids[0]))):
        yield bytes([1, 0]) + processed(ids[0])[:cut]
    yield bytes([4, 0]) + b"\0".join(processed(ids[0], n) for n in range(40))


class _Side:
    """A core with fifteen events, of which some are in flight."""

    def __init__(self, kind: type[Logux], options: int, step: float) -> None:
        self.now, self.step = 100.0, step
        doubt = DOUBTS[options >> 5 & 3]
        ack = "synced" if options & SYNCED else "processed"
        self.core = kind(logux_config(token="t", window=WINDOW, on_doubt=doubt, ack=ack), PRODUCER)
        self.core.set_wall_clock(lambda: BASE / 1e3)
        self.begin()
        queue = EventQueue(max_bytes=1 << 20, max_event_bytes=1 << 16)
        for n in range(COUNT):
            body, form = ACTION if n % 3 == 2 else (b'{"n":1}', 1)
            queue.push(body, 2, form)
        self.in_flight = InflightBatches(queue)
        self.batch: Any = self.in_flight.take(100, 1 << 20)
        self.send(options & COUNT)
        self.waiting = set(range(1, (options & COUNT) + 1))

    def begin(self, after: float = 0.0) -> None:
        """Begin a connection, which the server accepts after so many seconds."""
        codec, now = self.core.codec, self.now + after
        self.core.connected(self.now)
        if codec.deadline() <= now:
            codec.timeout(now)
        codec.receive(CONNECTED, now)
        read(self.core)

    def send(self, wanted: int) -> None:
        self.core.codec.sample(self.now, BASE / 1e3)
        while wanted:
            n = self.core.codec.encode(self.batch.capsule, min(wanted, WINDOW), self.now)
            check(n == min(wanted, WINDOW), "a sync is encoded")
            self.in_flight.encoded(self.batch)
            wanted -= n

    def take(self, text: bytes) -> list[Any]:
        """Receive a message; return everything that can be seen of it."""
        core, codec = self.core, self.core.codec
        for message in text.split(b"\1"):
            enough_memory(codec.receive(exact(message), self.now) if message else 0)
        found: list[Any] = [self.seen()]
        self.sample()
        found.append(codec.credit(self.now))
        enough_memory(codec.answers())
        said = self.said()
        for message in said:
            check(type(parse(message)) is not None, "not sent by anybody", message)
        self.now += self.step
        deadline = codec.deadline()
        if 0 < deadline <= self.now:
            stop = codec.timeout(self.now)
            enough_memory(stop)
            found.append(stop)
        found.append(self.seen())
        return [*found, said, core.state, codec.deadline(), core.received, codec.open, codec.suspects]

    def sample(self) -> None:
        self.core.sample_clocks(self.now)
        self.core.regulate(self.now)
        self.core.codec.sample(self.now, BASE / 1e3)

    def said(self) -> list[bytes]:
        """Return the messages to send."""
        return split(self.core.codec.take_bytes())

    def seen(self) -> list[str]:
        """Return outcomes and events in a form that can be compared, and check them."""
        outcomes, events = read(self.core)
        for event in events:
            if event == "closed" or isinstance(event, Fatal):
                check(self.core.codec.credit(self.now) == (0, 0), "something may be sent after the end")
        return sorted([*self.checked(outcomes), *map(str, events)])

    def checked(self, outcomes: Outcomes) -> list[str]:
        for seq, status, _ in outcomes:
            check(seq in self.waiting, "an outcome of what is not in flight", seq)
            if status != PENDING:
                self.waiting.discard(seq)
        return [f"{seq} {STATUSES[status]} {reason}" for seq, status, reason in outcomes]

    def lose(self) -> list[str]:
        """Lose the connection and make another; return the events of that."""
        core = self.core
        core.connection_lost()
        events = self.seen()
        check(not core.codec.deadline() and core.state == "disconnected", "forgotten")
        self.begin(self.step)
        self.in_flight.requeue()
        return events


def run(data: memoryview) -> None:
    if len(data) < 2:
        return
    options, failing, step = data[0], data[1] & 63, STEPS[data[1] >> 6]
    texts = bytes(data[2:]).split(b"\0")
    ours = _Side(Logux, options, step)
    if failing:
        memory.fail_at(failing)
        try:
            for text in texts:
                ours.take(text)
        except MemoryError:
            return
        finally:
            memory.fail_at(0)
        return
    reference = _Side(oracle.PythonLogux, options, step)
    for text in texts:
        found, wanted = ours.take(text), reference.take(text)
        check(found == wanted, "received, the reference says otherwise", text, found, wanted)
    if options & LOST:
        for _ in range(2):
            check(ours.lose() == reference.lose(), "lost, the reference says otherwise")
