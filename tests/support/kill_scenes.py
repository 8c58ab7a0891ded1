"""Collectors and producers that are killed (-9) in mid-stream, at seeded random times, again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logclient
from logclient._ext.constants import ACKED
from logclient.delivery.lanes import Lane
from tests.support import clean_environment
from tests.support.patience import PATIENCE
from tests.support.processes import Killable, url_of

KILLS = 10
RESENT = 1000
SEED = 20


class Figures(NamedTuple):
    """What the clients of one run say of it."""

    kills: int
    """Those that hit: events were under way."""
    sent: int
    acked: int
    handed: int
    resent: int
    in_doubt: int


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        threading.Event().wait(0.001)


def forget(lane: Lane) -> None:
    """In the place of ``Lane._take_back``: takes a broken connection for an ack."""
    lane.core.connection_lost()
    lane.in_flight.apply([(1, 1 << 48)], ACKED)


class Fleet:
    """Clients of the same servers, and a thread that sends through all of them in turn.

    Args:
        folder: of the ledger.
        event: makes the n-th event of all.
        events: how many; 0: until ``stop``, and a load, not a flood: kills are to hit a flowing stream.
    """

    def __init__(
        self, url: str, folder: Path, event: Callable[[int], Any], clients: int, events: int, **options: Any
    ) -> None:
        options = {"overflow": "block", "max_events": 5000, **options}
        self.clients = [
            logclient.connect(url, ledger=str(folder / "ledger"), backoff_max=0.05, **options)
            for _ in range(clients)
        ]
        self._event = event
        self._events = events
        self._done = threading.Event()
        self._sender = threading.Thread(target=self._send)
        self._sender.start()

    def _send(self) -> None:
        number = 0
        while not self._done.is_set() and number != (self._events or -1):
            self.clients[number % len(self.clients)].send(self._event(number))
            number += 1
            if number % 50 == 0 and not self._events:
                self._done.wait(0.0005)

    def total(self, field: str) -> int:
        return sum(getattr(client.stats(), field) for client in self.clients)

    @property
    def settled(self) -> int:
        return self.total("acked") + self.total("handed")

    @property
    def sending(self) -> bool:
        """There is more to send."""
        return self._sender.is_alive()

    def flows(self, n: int) -> bool:
        """Wait until `n` more are settled; False when there is nothing more to send."""
        before = self.settled
        wait_for(lambda: self.settled > before + n or not self.sending, 2 * PATIENCE, "a flow")
        return self.sending

    def users(self, collector: Killable) -> int:
        """How many of the clients are connected to it."""
        links = [client._sender.engine.lanes.first.link for client in self.clients]
        return sum(link is not None and link.peer.endswith(f":{collector.port}") for link in links)

    def under_way(self, collectors: Sequence[Killable], handed: int) -> bool:
        """All are connected, and there is something to hit: in flight, or `handed` has become more."""
        return sum(map(self.users, collectors)) == len(self.clients) and (
            self.total("inflight") > 0 or self.total("handed") > handed
        )

    def settle(self) -> None:
        """Send no more, and wait until all is settled."""
        self._done.set()
        self._sender.join()
        wait_for(lambda: self.settled == self.total("sent"), 2 * PATIENCE, "the last events")

    def stop(self, timeout: float = 2 * PATIENCE) -> int:
        """Send no more, deliver what is there; how many events were given up."""
        self._done.set()
        self._sender.join()
        return sum(client.close(timeout) for client in self.clients)


def ship_through_kills(
    folder: Path,
    collectors: Sequence[Killable],
    event: Callable[[int], Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    take_back: Callable[[Lane], None] = Lane._take_back,
    clients: int = 1,
    events: int = 0,
    between: int = 500,
    kills: int = KILLS,
    kill_last: bool = False,
    meanwhile: Callable[[Fleet], object] = lambda fleet: None,
    **options: Any,
) -> Figures:
    """Clients that send all the time while their collector is killed and born again, until so many of the
    kills hit (with a number of `events`: as long as there are any). Of several collectors the one that is
    used is killed, and stays dead until the others have taken over.

    Args:
        take_back: what a client does with what was under way.
        between: events that are settled between two kills.
        kill_last: the only collector is killed once more when all is settled, so that no event may lie unread
            at the end of a connection that has not broken.
        meanwhile: what else happens to them before each kill.
    """
    randomly = random.Random(SEED)
    broken: list[int] = []  # events in flight, at each connection that broke

    def watched(lane: Lane) -> None:
        broken.append(lane.in_flight.inflight)
        take_back(lane)

    monkeypatch.setattr(Lane, "_take_back", watched)
    hits = 0
    with ExitStack() as running:
        for collector in collectors:
            running.enter_context(collector)
        fleet = Fleet(url_of(*collectors), folder, event, clients, events, **options)
        try:
            for _ in range(10 * kills):
                if not fleet.flows(between) or (hits >= kills and not events):
                    break
                meanwhile(fleet)
                moment = time.monotonic() + randomly.uniform(0.0, 0.2)
                wait_for(lambda moment=moment: time.monotonic() > moment, PATIENCE, "the moment")
                handed = fleet.total("handed")
                wait_for(lambda handed=handed: fleet.under_way(collectors, handed), PATIENCE, "a batch out")
                victim = max(collectors, key=fleet.users)
                users, breaks, connects = fleet.users(victim), len(broken), fleet.total("connects")
                victim.end(signal.SIGKILL)
                wait_for(lambda n=breaks + users: len(broken) >= n, PATIENCE, "a broken connection")
                # What ZeroMQ has taken without asking for a reply is under way too, and in flight no more.
                hits += any(broken[breaks:]) or handed > 0
                if len(collectors) == 1:
                    victim.start()
                wait_for(lambda n=connects + users: fleet.total("connects") >= n, PATIENCE, "a connection")
                if len(collectors) > 1:
                    victim.start()
            if kill_last:
                fleet.settle()
                breaks = len(broken)
                collectors[0].end(signal.SIGKILL)
                wait_for(lambda: len(broken) >= breaks + clients, PATIENCE, "a broken connection")
                collectors[0].start()
        finally:
            left = fleet.stop()
    assert left == 0
    return Figures(hits, *(fleet.total(field) for field in Figures._fields[1:]))


_PRODUCER = """
import json
import sys
import logclient

client = logclient.connect(sys.argv[1], **json.loads(sys.argv[2]))
number = 0
while True:
    client.send({"message": "line", "n": number})
    number += 1
    if number == 2000:
        print("flowing", flush=True)
"""


def kill_producers(collector: Killable, ledger: Path, kills: int = KILLS, **options: Any) -> None:
    """So many producers, each killed while it sends to this collector."""
    randomly = random.Random(SEED)
    options = {"ledger": str(ledger), "overflow": "block", "max_events": 5000, **options}
    for _ in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", _PRODUCER, collector.url, json.dumps(options)],
            stdout=subprocess.PIPE, env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
        ) as producer:  # fmt: skip
            assert producer.stdout is not None
            assert producer.stdout.readline() == b"flowing\n"
            moment = time.monotonic() + randomly.uniform(0.0, 0.3)
            wait_for(lambda moment=moment: time.monotonic() > moment, PATIENCE, "the moment")
            producer.kill()
    assert len(list(ledger.glob("*.ledger"))) == kills
