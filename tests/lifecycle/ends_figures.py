"""Measure how long many clients take to end: ``python -m tests.lifecycle.ends_figures`` prints lines of JSON.

Seconds, but for counts. ``tests/lifecycle/test_ends.py`` asserts ten times as much, of fewer clients.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import logclient
from tests.cores.sink import Sink
from tests.support import clean_environment
from tests.support.dead_servers import KINDS, BlackHole

EXIT = """
import sys, time, logclient
clients = [logclient.connect(sys.argv[1]) for _ in range(200)]
for client in clients:
    client.send("one")
time.sleep(1.0)
print(time.time(), flush=True)
"""

LOCK = """
import logging, logging.config, os, sys, threading, time
config = {"version": 1, "disable_existing_loggers": False, "root": {"handlers": ["h"], "level": "INFO"},
          "handlers": {"h": {"class": "logclient.Handler", "url": sys.argv[1]}}}
logging.config.dictConfig(config)
logging.info("one")
time.sleep(0.3)
worst = 0.0
over = False
def other():
    global worst
    while not over:
        begin = time.monotonic()
        logging.getLogger(f"other.{begin}")
        worst = max(worst, time.monotonic() - begin)
        time.sleep(0.001)
thread = threading.Thread(target=other)
thread.start()
begin = time.monotonic()
logging.config.dictConfig(config)
took = time.monotonic() - begin
logging.info("two")
time.sleep(0.3)
begin = time.monotonic()
logging.shutdown()
shutdown = time.monotonic() - begin
over = True
thread.join()
print(took, shutdown, worst, flush=True)
os._exit(0)
"""


def say(what: str, **figures: Any) -> None:
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({"what": what, **rounded}), flush=True)


def program(text: str, url: str) -> str:
    environment = clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    return subprocess.run(
        [sys.executable, "-c", text, url], stdout=subprocess.PIPE, text=True, check=True, env=environment
    ).stdout


def forks(make_ready: Callable[[], object]) -> list[float]:
    """Seconds that the parent is in ``os.fork``, sorted."""
    found = []
    for _ in range(7):
        make_ready()
        begin = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        found.append(time.monotonic() - begin)
        os.waitpid(pid, 0)
    return sorted(found)


def settle(clients: list[Any]) -> None:
    for client in clients:
        client.send("one")
    assert not any(client.flush(20.0) for client in clients)
    time.sleep(0.2)


def main() -> None:
    bare = forks(lambda: None)
    with BlackHole() as hole:
        ended = float(program(EXIT, hole.url))
        say("exit with 200 clients of a server that hangs", seconds=time.time() - ended)
        clients = [logclient.connect(hole.url) for _ in range(200)]
        for client in clients:
            client.send("one")
        found = forks(lambda: time.sleep(1.0))
        say("fork with them", bare=bare[3], best=found[0], median=found[3], worst=found[-1])
        for client in clients:
            client.close(0.0)
    with Sink() as sink:
        clients = [logclient.connect(sink.url) for _ in range(200)]
        found = forks(lambda: settle(clients))
        say("fork with 200 idle clients", best=found[0], median=found[3], worst=found[-1])
        for client in clients:
            client.close()
    for name, kind in KINDS.items():
        with kind() as dead:
            again, shutdown, worst = map(float, program(LOCK, dead.url).split())
            say(f"logging's lock, {name}", dict_config=again, shutdown=shutdown, get_logger=worst)
    with KINDS["connection refused"]() as dead:
        threads, descriptors = threading.active_count(), len(os.listdir("/dev/fd"))
        begin = time.monotonic()
        for _ in range(150):
            logclient.connect(dead.url).send("one")
        gc.collect()
        most = threading.active_count()
        while (threading.active_count(), len(os.listdir("/dev/fd"))) > (threads, descriptors):
            if time.monotonic() - begin > 120.0:
                break
            gc.collect()
            time.sleep(0.1)
        say(
            "150 dropped clients",
            seconds=time.monotonic() - begin,
            threads_before=threads,
            threads_most=most,
            threads_after=threading.active_count(),
            descriptors_before=descriptors,
            descriptors_after=len(os.listdir("/dev/fd")),
        )


if __name__ == "__main__":
    main()
