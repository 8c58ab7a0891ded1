"""Send events to a plog server from a process of its own, half of them in several fragments.

    python -m tests.plog.load URL LEDGER EVENTS CLIENTS PACE

It prints the outcomes as JSON, and how far its memory grew meanwhile.
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

MTU = 600  # of an IP packet; less all headers it has room for 548 bytes of an event
SMALL, LARGE = (10, 200), (600, 1400)
HELD = 1 << 20  # max_bytes of a client


def send_events(client: Any, events: int, seed: int) -> None:
    """Send short and long texts in turn."""
    rng = random.Random(seed)
    # ASCII, so that characters are bytes. Slices cost next to nothing.
    text = "".join(rng.choices('abcdefghijklmnopqrstuvwxyz0123456789 "\\/', k=4096))
    for number in range(events):
        size, at = rng.randint(*(LARGE if number % 2 else SMALL)), rng.randrange(1024)
        client.send(text[at : at + size])


def settle(client: Any) -> None:
    """Wait until the server has read everything sent before: it has one queue."""
    for left in range(30, -1, -1):
        try:
            client.command("stat", timeout=PATIENCE)
            return
        except logclient.ConnectFailed:
            if not left:
                raise


def main(url: str, ledger: str, events: int, clients: int, pace: int) -> dict[str, Any]:
    # `block`: a client that is too fast waits and drops nothing.
    all_clients = [
        logclient.connect(url, mtu=MTU, ledger=ledger, pace=pace, overflow="block", max_bytes=HELD)
        for _ in range(clients)
    ]
    shares = [events // clients + (number < events % clients) for number in range(clients)]
    for client in all_clients:
        client.send("the first")  # imports and first allocations
        client.flush()
    before = rss()
    begun = time.monotonic()
    threads = [
        threading.Thread(target=send_events, args=(client, share - 1, number))
        for number, (client, share) in enumerate(zip(all_clients, shares, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = sum(client.flush(timeout=20 * PATIENCE) for client in all_clients)
    seconds = time.monotonic() - begun
    settle(all_clients[0])
    stats = [client.stats() for client in all_clients]
    for client in all_clients:
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
