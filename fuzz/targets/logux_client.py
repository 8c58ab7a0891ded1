"""What a Logux client makes of a server's messages: through the core, with actions on their way.

An input: how many actions are in flight (low four bits) and how it goes on (SYNCED, AGAIN), an allocation
that fails (0: none), and messages, each behind a byte 0x1E. The same messages with a space before them take
the long way, through the parser of all messages: what comes of them must be the same. And what is read at
once is what the plain-Python twin says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fuzz import memory
from fuzz.target import ASAN, MEMORY, TIMEOUT, Plant, exact, must, vectors
from logclient._ext.flight import Flight
from logclient._ext.handoff import Handoff
from logclient.errors import CredentialError
from logclient.protocols.core import Alive, CloseWanted, Fatal, Outcome, Progress, Reply, Retry
from logclient.protocols.logux import Logux, Options
from tests.oracle import logux_client as oracle

EXTENSIONS = ("logux",)
MAX_LEN = 4000

SYNCED, AGAIN = 16, 32  # acknowledge by synced; lose the connection, and hear it all again
NODE = 'u"1:c:t'
WIRED = json.dumps(NODE)[1:-1]
ID = f"1000 {WIRED} "
META = b'{"id":1,"time":1}'

DICTIONARY = [
    b'\x1e["synced",1]', b'\x1e["sync",0,', b'{"id":"', ID.encode(), b'","type":"logux/processed"},',
    b'{"type":"logux/processed","id":"', b'{"type":"logux/undo","id":"', b'","reason":"error"},',
    b'","reason":"denied"},', META + b"]", b'{"id":[1,2],"time":1,"subprotocol":1}]', b'\x1e["ping",1]',
    b'\x1e["pong",1]', b'\x1e["headers",{}]', b'\x1e["debug","error","x"]', b'\x1e["error","timeout",1]',
    b"null",
    b'"length":1', b"[[[[", b"1e999", b"-", b"0", b"999999999999999", b"1000000000000000",
]  # fmt: skip

ROOTS = ("Hot.receive", "Hot.synced", "Hot.processed", "Hot.take", "Hot.answer", "Hot.answers",
         "Hot.outcomes", "Hot.told", "Hot.to_wall")  # fmt: skip
APART = {
    "raise MemoryError": "an allocation of Python's",
    "return STOP_MEMORY": "memory that is out just there: those of the inputs that fail are few",
}

_ROOM = "        room = w.answer_room * 2 if w.answer_room else 64\n"
PLANTS = (
    Plant("length", "_ext/logux.pyx", "    if <size_t> (end - p[0]) < n or memcmp(",
          "    if <size_t> (end - p[0]) + 2 < n or memcmp(", (ASAN,)),
    Plant("allocation", "_ext/logux.pyx", _ROOM,
          _ROOM.replace("else 64", "else <size_t> max(64, added)"), (MEMORY,)),
    Plant("endless", "_ext/logux.pyx", "        v = v * 10 + q[0] - c'0'\n        q += 1\n",
          "        v = v * 10 + q[0] - c'0'\n        q += v != 7\n", (TIMEOUT,)),
)  # fmt: skip


def _processed(n: int, added: int = 0) -> bytes:
    return b'["sync",%d,{"id":"%s%d","type":"logux/processed"},%s]' % (added, ID.encode(), n, META)


def _undo(n: int, reason: str) -> bytes:
    action = b'{"type":"logux/undo","id":"%s%d","reason":"%s"}' % (ID.encode(), n, reason.encode())
    return b'["sync",0,%s,{"id":[1,2],"time":1}]' % action


def _input(how: int, failing: int, *messages: bytes) -> bytes:
    return bytes([how, failing]) + b"".join(b"\x1e" + message for message in messages)


def seeds() -> Iterator[bytes]:
    """Every recorded message of a server; outcomes in and out of order, memory that ends."""
    for case in vectors("logux.json"):
        for step in case["steps"]:
            if step["dir"] == "S" and "msg" in step:
                text = step.get("raw") or json.dumps(step["msg"])
                yield _input(3, 0, text.encode())
                if isinstance(step["msg"], list) and step["msg"][0] == "sync":
                    own = {**step["msg"][2], "id": f"1000 {NODE} 1"}
                    yield _input(3, 0, json.dumps(["sync", 0, own, *step["msg"][3:]]).encode())
    for how in (15, 15 | SYNCED, 15 | AGAIN, 0):
        yield _input(how, 0, b'["synced",7]', *[_processed(n, n) for n in range(15)])
        yield _input(how, 0, *[_processed(n) for n in range(14, -1, -1)], b'["synced",99]')
        for reason in ("error", "denied", "unknownType", "other"):
            yield _input(how, 0, _processed(0), *[_undo(n, reason) for n in range(1, 9)], _processed(9))
            yield _input(how, 0, _undo(3, reason), _undo(4, "error"), _processed(5), _undo(6, "error"))
        for failing in range(1, 4):
            yield _input(how, failing, *[_processed(n, n) for n in range(15)])
    for odd in (b'["sync",1]', b'["sync",-0,{}]', b'["synced",1.5]', b'["synced",-1]', b'["synced",1e3]',
                b'["ping",5]', b'["pong",6]', b'["headers",{"a":1}]', b'["debug","error","x"]', b'["new",1]',
                b'["error","wrong-format","x"]', b'["error","wrong-credentials"]',
                b'["sync",1,{"type":"a"},{"id":[1,"b:c",2],"time":-5}]'):  # fmt: skip
        yield _input(2, 0, odd, _processed(0))


class _Actions:
    """Fifteen events that can be sent again and again."""

    def __init__(self) -> None:
        handoff = Handoff(max_bytes=1 << 20, max_event_bytes=1 << 16)
        for _ in range(15):
            handoff.push(b'{"n":1}', 2, 1)
        self.flight = Flight(handoff)
        batch = self.flight.take(100, 1 << 20)
        assert batch is not None
        self.batch = batch

    def send(self, core: Logux, n: int) -> None:
        self.flight.requeue()
        for events in (n - n // 2, n // 2):
            if events:
                must(core.encode(self.batch, events, 1.0) == events, "actions are encoded")
                self.flight.encoded(self.batch)
        core.sent()


_actions = _Actions()


def _core(how: int) -> Logux:
    options = Options(ack="synced" if how & SYNCED else "processed", on_doubt="same", inflight=2, window=8)
    core = Logux(options, bytes(range(10)))
    core.wall = lambda: 1.0
    core.node_id = NODE
    return core


def _connect(core: Logux, how: int) -> None:
    core.connected(1.0, lambda: 0.5)
    core.receive_data(b'["connected",5,"server:x",[5,5]]', 1.0)
    _actions.send(core, how & 15)


def _heard(core: Logux, fates: dict[int, Any]) -> list[Any]:
    """What follows, with outcomes one by one; each event has one fate at most."""
    found: list[Any] = []
    for event in core.events_received():
        if isinstance(event, (Outcome, Retry)):
            status = (event.status, event.reason) if isinstance(event, Outcome) else "retry"
            for first, last in event.ranges:
                for seq in range(first, last + 1):
                    must(seq not in fates, "a second fate", seq, fates, status)
                    fates[seq] = status
                    found.append((seq, status))
        elif isinstance(event, Fatal):
            found.append(("fatal", isinstance(event.error, CredentialError), event.forever))
            must(str(event.error).isprintable() and len(str(event.error)) < 1000, "its words")
        elif not isinstance(event, (Alive, Progress, Reply)):
            found.append(event)
    return found


def run(data: memoryview) -> None:
    if len(data) < 2:
        return
    how, failing = data[:2]
    messages = bytes(data[2:]).split(b"\x1e")[1:]
    short, long = _core(how), _core(how)
    memory.fail_at(0)
    for _ in range(2 if how & AGAIN else 1):
        _connect(short, how)
        _connect(long, how)
        fates: dict[int, Any] = {}
        again: dict[int, Any] = {}
        for message in messages:
            ended = short._over
            read = oracle.recognise(message, NODE)
            memory.fail_at(failing)
            try:
                if not ended:
                    taken = short._hot.receive(exact(message), 2.0)
                    short._heard = 2.0
                    must(taken == (read is not None), "what is read at once", message, taken, read)
                    if not taken:
                        short.receive_data(message, 2.0)
            except MemoryError:
                must(failing, "no memory, although no allocation failed")
                return
            finally:
                memory.fail_at(0)
            long.receive_data(b" " + message, 2.0)
            first, second = _heard(short, fates), _heard(long, again)
            must(first == second, "what follows", message, first, second)
            must(short.data_to_send() == long.data_to_send(), "the answers", message)
            short.sent()
            long.sent()
            must(short.state == long.state and short.strangers == long.strangers, "the state", message)
            must(short.next_timeout(2.0) == long.next_timeout(2.0), "the deadline", message)
            if any(isinstance(e, CloseWanted) for e in first):
                break
        must(short._hot.open == (how & 15) - len(fates) - len(short._suspects), "what is in flight")
        short.connection_lost()
        long.connection_lost()
        must(short.state == "disconnected" and short._hot.open == 0, "forgotten")
