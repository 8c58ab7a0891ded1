"""Row `send`: the cost of `client.send` for the calling thread, against putting the same object into a queue.

`SimpleQueue.put` is the cheapest way in Python to pass an object to another thread. It keeps the object,
whereas `send` copies bytes, or makes a JSON document of six fields. After each run both queues are emptied
and counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

from bench.data import mapping
from bench.handler import alone, loop
from bench.harness import Contender, NotExact, Row, Target, compare, judge, lines
from bench.lumberjack import event
from bench.ours import NOWHERE, QueueOnly
from bench.peers import drain
from tests.support.documents import dotted

CALLS = 2000
PUT = "SimpleQueue.put(bytes)"
PUT_DICT = "SimpleQueue.put(dict)"
BYTES = "logclient send(bytes)"
DICT = "logclient send(dict)"
TARGETS = [Target(BYTES, PUT, "<=", 3.0), Target(DICT, PUT_DICT, "<=", 10.0)]


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure 300 bytes, and six fields that make 300 bytes of JSON."""
    import logclient

    body = event(300)
    bodies = [body] * CALLS
    dicts = [mapping(i % 10) for i in range(CALLS)]
    with ExitStack() as stack:
        clients = [stack.enter_context(logclient.connect(NOWHERE)) for _ in range(3)]
        parked = [QueueOnly(client) for client in clients]
        loop(clients[0].send, bodies)()
        if parked[0].take() != bodies:
            raise NotExact("send(bytes) changed the bytes")
        loop(clients[1].send, dicts)()
        if [dotted(json.loads(b)) for b in parked[1].take()] != dicts:
            raise NotExact("send(dict) made another document")
        queue: SimpleQueue[Any] = SimpleQueue()
        contenders = [
            Contender(BYTES, loop(clients[0].send, bodies), CALLS, parked[0].count),
            Contender(BYTES + " (again)", loop(clients[2].send, bodies), CALLS, parked[2].count),
            Contender(DICT, loop(clients[1].send, dicts), CALLS, parked[1].count),
            Contender(PUT, loop(queue.put, bodies), CALLS, lambda: drain(queue)),
            Contender(PUT_DICT, loop(queue.put, dicts), CALLS, lambda: drain(queue)),
            Contender("json.dumps", loop(_compact(), dicts), CALLS),
            Contender("loop alone", alone(bodies), CALLS),
        ]
        try:
            import msgspec

            contenders.append(
                Contender("msgspec.json encode", loop(msgspec.json.Encoder().encode, dicts), CALLS)
            )
        except ImportError:
            pass
        samples = compare(contenders, rounds=rounds or (3 if quick else 15), seed=seed)
    size = len(json.dumps(dicts[0], separators=(",", ":")))
    notes = [
        f"{len(body)} bytes; {len(dicts[0])} fields, {size} bytes as JSON",
        "json.dumps and msgspec only encode: they hand nothing to anybody",
    ]
    return Row(
        "send",
        "client.send(bytes) and client.send(dict) into the queue",
        "us/call",
        lines(samples),
        judge(samples, TARGETS, (BYTES + " (again)", BYTES)),
        notes,
        {},
    )


def _compact() -> Callable[[Any], object]:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return lambda x: encode(x).encode()
