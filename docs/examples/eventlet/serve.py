"""A WSGI application under eventlet's own server, in three processes. Run it::

    LOG_URL=lumberjack://127.0.0.1:5044 python serve.py 8000

SIGHUP replaces the workers, SIGTERM ends them all: each answers the requests at hand, then delivers its
last records. The master imports no eventlet, so that it can fork and wait as usual.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

WORKERS = 3
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def work(listener: socket.socket) -> None:
    """One worker, from after the fork to its end."""
    import eventlet
    from eventlet import hubs, wsgi

    eventlet.monkey_patch()

    import logging

    import logclient

    # Nothing is connected and no thread is started here: the first record does that.
    ship = logclient.Handler(os.environ.get("LOG_URL", "lumberjack://127.0.0.1:5044"))
    logging.basicConfig(level="INFO", handlers=[logging.StreamHandler(), ship])
    log = logging.getLogger("shop")

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        order = environ["PATH_INFO"].rpartition("/")[2]
        log.info("order %s received", order)
        eventlet.sleep(0.001)  # as if a database were asked
        log.info("order %s priced", order)
        log.info("order %s answered", order)
        body = json.dumps({"order": order, "worker": os.getpid()}).encode()
        start("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    server = eventlet.getcurrent()

    # eventlet's loop sleeps for up to a minute when nothing happens, and no signal wakes it. A pipe does.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGTERM, lambda *_: None)

    def end() -> None:
        hubs.trampoline(reading, read=True)
        # Thrown into the greenlet that accepts connections: it takes no more, and waits for those it has.
        hubs.get_hub().schedule_call_global(0, server.throw, SystemExit)

    eventlet.spawn(end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    green = eventlet.greenio.GreenSocket(listener)
    wsgi.server(green, application, log=logging.getLogger("access"), log_output=False, debug=False)
    # Python's exit handlers deliver what is queued, for `atexit_timeout` (2 s) at most.


class Master:
    """Has as many workers as it should have."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.workers: set[int] = set()
        self.ending = False
        signal.signal(signal.SIGTERM, self.end)
        signal.signal(signal.SIGHUP, self.replace)

    def end(self, *_: object) -> None:
        self.ending = True
        self.replace()

    def replace(self, *_: object) -> None:
        for pid in self.workers:
            os.kill(pid, signal.SIGTERM)

    def run(self) -> None:
        while self.workers or not self.ending:
            while len(self.workers) < WORKERS and not self.ending:
                # A signal in the middle of this would miss the new worker, or find our handlers in it.
                signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
                pid = os.fork()
                if pid == 0:
                    for number in SIGNALS:
                        signal.signal(number, signal.SIG_DFL)
                else:
                    self.workers.add(pid)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                if pid == 0:
                    work(self.listener)
                    return
            pid, _ = os.wait()
            self.workers.discard(pid)


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=512) as listener:
        print(f"Listening at: http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        Master(listener).run()
