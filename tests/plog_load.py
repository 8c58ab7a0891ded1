"""Clients in a process of their own send events to a plog server, half of them in several fragments.

    python -m tests.plog_load URL LEDGER EVENTS CLIENTS PACE

It prints what became of them, and how far its memory grew while they went.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any

import logclient
from tests.support.dead_servers import rss
from tests.support.patience import PATIENCE

MTU = 600  # of an IP packet: with its headers and ours it has room for 548 bytes of an event
SMALL, LARGE = (10, 200), (600, 1400)
HELD = 1 << 20  # bytes that a client holds at most


def feed(client: Any, events: int, seed: int) -> None:
    rng = random.Random(seed)
    # ASCII, so that characters are bytes; and slices of it, so that this costs nothing.
    text = "".join(rng.choices('abcdefghijklmnopqrstuvwxyz0123456789 "\\/', k=4096))
    for number in range(events):
        size, at = rng.randint(*(LARGE if number % 2 else SMALL)), rng.randrange(1024)
        client.send(text[at : at + size])


def settle(client: Any) -> None:
    """Until the server has read what came before this question: it has one queue for all."""
    for left in range(30, -1, -1):
        try:
            client.stat(timeout=PATIENCE)
            return
        except logclient.ConnectFailed:
            if not left:
                raise


def main(url: str, ledger: str, events: int, clients: int, pace: int) -> dict[str, Any]:
    # Nothing is dropped by policy: whoever is too fast waits.
    some = [
        logclient.connect(url, mtu=MTU, ledger=ledger, pace=pace, overflow="block", max_bytes=HELD)
        for _ in range(clients)
    ]
    shares = [events // clients + (number < events % clients) for number in range(clients)]
    for client in some:
        client.send("the first")  # whatever is imported and allocated once
        client.flush()
    before = rss()
    begun = time.monotonic()
    threads = [
        threading.Thread(target=feed, args=(client, share - 1, number))
        for number, (client, share) in enumerate(zip(some, shares, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = sum(client.flush(timeout=20 * PATIENCE) for client in some)
    seconds = time.monotonic() - begun
    settle(some[0])
    stats = [client.stats() for client in some]
    for client in some:
        client.close()
    return {
        "handed": sum(one.handed for one in stats),
        "left": left,
        "failed": sum(sum(one.failed.values()) + sum(one.dropped.values()) for one in stats),
        "bytes": sum(one.bytes_sent for one in stats),
        "seconds": seconds,
        "grown": rss()["VmHWM"] - before["VmRSS"],
        "ledger_error": next((one.ledger_error for one in stats if one.ledger_error), ""),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))))
