"""The programs of the client's side. Each takes its setting as JSON, and prints what it found as JSON.

``python -m tests.networks.programs send|lines|idle|herd SETTING``
"""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import logclient

LOOK = 0.2
"""Seconds between two looks at the counts."""

SAMPLED = (
    "sent", "queued", "inflight", "acked", "handed", "resent", "connects", "disconnects", "in_doubt",
    "last_error",
)  # fmt: skip


def bodies(kind: str, size: int) -> Iterator[str]:
    """Return texts for ever: of ``words``, which compress, at ``random``, or ``mixed``.

    Of the mixed ones every fortieth has the size, and the others 80 characters.
    """
    draw = random.Random(5)
    number = 0
    while True:
        length = size if kind != "mixed" or number % 40 == 20 else 80
        if kind == "words":
            yield (f"the same words again and again {number} " + "abcdefgh " * (length // 9 + 1))[:length]
        else:
            yield base64.b85encode(draw.randbytes(length * 4 // 5)).decode()
        number += 1


class Sender:
    """Sends events at a rate, or all at once, and notes the counts whenever they change."""

    def __init__(self, setting: dict[str, Any]) -> None:
        self.setting = setting
        self.longest = 0.0
        self.bodies = bodies(setting["kind"], setting["size"])
        self.begin = time.monotonic()
        self.client = logclient.connect(setting["url"], **setting["options"])
        self._done = threading.Event()
        self._noted: tuple[Any, ...] = ()

    def run(self) -> None:
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        if self.setting["per_second"]:
            self._send_steadily()
        else:
            self._send_at_once()
        left = self.client.flush(self.setting["end"])
        print(json.dumps({"flushed": left}), flush=True)
        sys.stdin.read()  # until what was handed has arrived
        self.client.close(2)
        self._done.set()
        watcher.join()
        self._note()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        found = {"begin": self.begin, "left": left, "longest_ms": self.longest * 1e3, "mib": peak}
        print(json.dumps({**self.client.stats()._asdict(), **found}))

    def _send_steadily(self) -> None:
        events, rate = self.setting["events"], self.setting["per_second"]
        end = self.begin + self.setting["seconds"]
        number = 0
        while (now := time.monotonic()) < end and (not events or number < events):
            due = int((now - self.begin) * rate)
            while number < (min(due, events) if events else due):
                self._send(number)
                number += 1
            time.sleep(0.01)

    def _send_at_once(self) -> None:
        for number in range(self.setting["events"]):
            self._send(number)
        end = self.begin + self.setting["seconds"]
        while time.monotonic() < end:
            stats = self.client.stats()
            if stats.queued == stats.inflight == 0:
                return
            time.sleep(LOOK)

    def _send(self, number: int) -> None:
        event = {"message": next(self.bodies), "n": number}
        begin = time.perf_counter()
        self.client.send(event)
        self.longest = max(self.longest, time.perf_counter() - begin)

    def _watch(self) -> None:
        while not self._done.wait(LOOK):
            self._note()

    def _note(self) -> None:
        stats = self.client.stats()
        row = tuple(getattr(stats, name) for name in SAMPLED)
        if row != self._noted:
            self._noted = row
            with Path(self.setting["samples"]).open("a") as file:
                print(json.dumps([time.monotonic(), *row]), file=file)


def lines(setting: dict[str, Any]) -> None:
    """Log some lines through a handler of default options, and leave the rest to the end of the process."""
    handler = logclient.Handler(setting["url"], **setting["options"])
    log = logging.getLogger("program")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    for number in range(setting["events"]):
        log.info("line %d of the program", number)
        time.sleep(setting["seconds"] / setting["events"])
    if setting["end"]:
        handler.client.flush(setting["end"])
    print(json.dumps(handler.client.stats()._asdict()), flush=True)


def threads() -> dict[str, tuple[str, int]]:
    """Return the name and the wake-ups of each thread of this process."""
    found = {}
    for path in Path("/proc/self/task").iterdir():
        rows = (line.split(":", 1) for line in (path / "status").read_text().splitlines())
        status = {name: text.strip() for name, text in rows}
        found[path.name] = (status["Name"], int(status["voluntary_ctxt_switches"]))
    return found


def idle(setting: dict[str, Any]) -> None:
    """Send one event, and count the wake-ups and the processor's time of a client with nothing to do."""
    client = logclient.connect(setting["url"], **setting["options"])
    client.send({"message": "hello", "n": 0})
    client.flush(setting["end"])
    time.sleep(setting["settle"])
    seconds = setting["seconds"]
    before, cpu = threads(), time.process_time()
    time.sleep(seconds)
    after, cpu = threads(), time.process_time() - cpu
    main = str(os.getpid())
    woken = {
        f"{name} {number}": round((count - before.get(number, ("", 0))[1]) * 60 / seconds, 1)
        for number, (name, count) in after.items()
        if number != main
    }
    found = {"per_minute": woken, "cpu_ms_per_minute": round(cpu * 60e3 / seconds, 1)}
    print(json.dumps({**client.stats()._asdict(), **found}), flush=True)
    client.close(1)


def herd(setting: dict[str, Any]) -> None:
    """Run many clients, each of which sends an event a second."""
    clients = [logclient.connect(setting["url"], **setting["options"]) for _ in range(setting["clients"])]
    end = time.monotonic() + setting["seconds"]
    number = 0
    while time.monotonic() < end:
        for client in clients:
            client.send({"message": "x", "n": number})
            number += 1
        time.sleep(1.0)
    for client in clients:
        client.flush(setting["end"])
    names = ("sent", "acked", "handed", "resent", "connects", "disconnects", "in_doubt")
    found = [client.stats() for client in clients]
    print(json.dumps({name: sum(getattr(stats, name) for stats in found) for name in names}), flush=True)
    for client in clients:
        client.close(0)


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    {"send": lambda it: Sender(it).run(), "lines": lines, "idle": idle, "herd": herd}[sys.argv[1]](given)
