"""A producer of the nemesis, as a process: a client and a handler that send continuously.

Its argument is JSON (see `Setting`). It prints "flowing" once events are acknowledged or handed, obeys lines
of its standard input (`Producer.obey`), samples ``stats()`` of all its clients continuously, and leaves a
report. After the line ``stop`` it sends the rest of its quota, delivers it and ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import json
import logging
import logging.config
import mmap
import os
import random
import resource
import select
import signal
import sys
import threading
import time
import weakref
from typing import Any, NamedTuple

import logclient
from logclient.config.common import Config
from tests.nemesis.schedule import LONG_ENOUGH

Config.auth_backoff_min, Config.auth_backoff_max = 0.1, 0.5

SAMPLE = 0.005
DESCRIPTORS = 400
"""The limit of descriptors of this process, low enough to use them up."""

LARGE = "x" * 40_000


class Setting(NamedTuple):
    name: str
    url: str
    options: dict[str, Any]
    events: int
    seconds: float
    ending: str
    report: str
    samples: str
    told: str
    one_way: bool


class Sampler(threading.Thread):
    """A thread that takes snapshots of all clients: it checks sums, and records events in flight."""

    def __init__(self, path: str) -> None:
        super().__init__(name="sampler", daemon=True)
        self.clients: list[Any] = []
        self.taken = 0
        self.wrong: list[str] = []
        self.done = threading.Event()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._before: dict[int, Any] = {}

    def run(self) -> None:
        while not self.done.wait(SAMPLE):
            self.sample()

    def sample(self) -> None:
        inflight = queued = settled = 0
        for client in list(self.clients):
            stats = client.stats()
            self.taken += 1
            self.check(client, stats)
            inflight += stats.inflight
            queued += stats.queued
            settled += stats.acked + stats.handed
        os.write(self._file, b"%d %d %d %d\n" % (time.monotonic_ns(), inflight, queued, settled))

    def check(self, client: Any, stats: Any) -> None:
        outcomes = stats.acked + stats.handed + stats.stored
        outcomes += sum(stats.failed.values()) + sum(stats.dropped.values())
        if stats.sent != stats.queued + stats.inflight + outcomes:
            self.complain(f"counts do not add up: {stats}")
        before = self._before.get(id(client))
        if before is not None:
            for name in ("sent", "acked", "handed", "resent", "connects", "disconnects", "batches"):
                if getattr(stats, name) < getattr(before, name):
                    self.complain(f"{name} went back from {getattr(before, name)}: {stats}")
        self._before[id(client)] = stats

    def complain(self, text: str) -> None:
        if len(self.wrong) < 10:
            self.wrong.append(text)


class Dying:
    """An object that logs when it is destroyed; it is in a cycle, so that garbage collection destroys it."""

    def __init__(self, number: int) -> None:
        self.me = self
        self.number = number

    def __del__(self) -> None:
        logging.getLogger("nemesis.dying").info("object %d is destroyed", self.number)


class Producer:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.random = random.Random(setting.name)
        self.hurry = threading.Event()
        self.over = False
        self.sampler = Sampler(setting.samples)
        self.children: dict[int, dict[str, Any]] = {}
        self.callbacks_run = [0, 0]  # expected callbacks, and those that ran
        self.left = 0
        self.held: list[int] = []
        self.release_at = 0.0
        self.hoarder: threading.Thread | None = None
        self.unconfigured = False
        self.deliveries: list[Any] = []
        options = {**setting.options, "overflow": "block"}
        self.client = logclient.connect(setting.url, **options)
        self.sampler.clients.append(self.client)
        # Outlives this process: the newest event that `send` returned for.
        with open(setting.told, "wb+") as file:
            file.write(self.client.producer.encode().ljust(24) + bytes(8))
            file.flush()
            self.told = memoryview(mmap.mmap(file.fileno(), 32)).cast("Q")
        self.handler: Any = None
        self.configure()
        shares = {self.send: 5, self.log: 4, self.follow: 1}  # of ten
        self.threads = [
            threading.Thread(target=self.flow, args=(one, setting.events * share // 10), name=one.__name__)
            for one, share in shares.items()
        ]

    def configure(self) -> None:
        """Call ``dictConfig``, which closes the present handler and makes another one."""
        handler = {"class": "logclient.Handler", "url": self.setting.url, **self.setting.options}
        logging.config.dictConfig(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "handlers": {"ship": handler},
                "loggers": {"nemesis": {"handlers": ["ship"], "level": "DEBUG", "propagate": False}},
            }
        )
        (self.handler,) = logging.getLogger("nemesis").handlers
        gc.collect()  # dictConfig leaves the handler before in a cycle, and it closes when it is gone
        self.sampler.clients.append(self.handler.client)

    # -- events ------------------------------------------------------------------------------------

    def send(self, number: int) -> None:
        size = self.random.randrange(200)
        event = {"message": f"event {number} of {self.setting.name}", "n": number, "pad": "p" * size}
        if number % 2_000 == 1_999:
            event["large"] = LARGE
        self.told[3] = self.client.send(event) or self.told[3]

    def log(self, number: int) -> None:
        logging.getLogger("nemesis.log").info("line %d of %s", number, self.setting.name)

    def follow(self, number: int) -> None:
        delivery = self.client.submit({"message": "followed", "n": number})
        if number % 50 == 0 and len(self.deliveries) < 1_000:
            self.deliveries.append(delivery)

    def flow(self, one: Any, quota: int) -> None:
        """Send the quota in small groups over the available time, or at once near the end."""
        begin = time.monotonic()
        for number in range(quota):
            due = begin + self.setting.seconds * number / quota
            if number % 8 == 0 and not self.hurry.is_set() and due > time.monotonic():
                self.hurry.wait(due - time.monotonic())
            one(number)

    # -- orders ------------------------------------------------------------------------------------

    def obey(self, order: dict[str, Any]) -> None:
        what = order["do"]
        if what == "dictconfig":
            try:
                self.configure()
            except ValueError:
                if self.hoarder is None:
                    raise
                self.unconfigured = True  # a new client needs descriptors: try again when some are free
        elif what == "fork":
            for _ in range(order["amount"]):
                self.fork(order["how"])
        elif what == "signals":
            self.signals(order["seconds"])
        elif what == "destructors":
            for number in range(order["amount"]):
                weakref.finalize(Dying(number), logging.getLogger("nemesis.dying").info, "finalized")
            gc.collect()
        elif what == "callbacks":
            self.callbacks(order["amount"])
        elif what == "burst":
            for number in range(order["amount"]):
                self.log(number)
        elif what == "descriptors":
            self.exhaust(order["seconds"])

    def fork(self, how: str) -> None:
        pid = os.fork()
        if pid:
            self.children[pid] = {"how": how, "until": time.monotonic() + LONG_ENOUGH}
            return
        if self.held:  # inherited by the child, which must close its copies
            time.sleep(max(0.0, self.release_at - time.monotonic()))
            self.release()
        for number in range(100):
            self.client.send({"message": "from a child", "n": number})
            logging.getLogger("nemesis.child").info("line %d of a child", number)
        if how == "exit":
            self.over = True
            sys.exit(0)
        elif how == "close":
            left = self.client.close(LONG_ENOUGH) + self.handler.client.close(LONG_ENOUGH)
            logging.shutdown()
            os._exit(1 if left else 0)
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)

    def reaped(self) -> bool:
        """Return whether every child has ended, or hangs."""
        for pid, child in self.children.items():
            if "status" not in child:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    child["status"] = os.waitstatus_to_exitcode(status)
        for pid, child in self.children.items():
            if "status" not in child and time.monotonic() > child["until"]:
                child["status"] = "hangs"
                os.kill(pid, signal.SIGABRT)  # prints its stacks
        return all("status" in child for child in self.children.values())

    def signals(self, seconds: float) -> None:
        """Log in the main thread, and in signal handlers that interrupt it."""

        def handle(number: int, frame: Any) -> None:
            logging.getLogger("nemesis.signal").info("signal %d", number)
            self.client.send({"message": "from a signal handler"})

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            number += 1
            self.log(number)
            self.client.send({"message": "interrupted", "n": number})
            time.sleep(0.001)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    def callbacks(self, amount: int) -> None:
        """Add callbacks, some of which raise; each event has another callback that must run anyway."""
        kinds = (ValueError, asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit)

        def fail(kind: type[BaseException], _: Any) -> None:
            raise kind("on purpose")

        def count(_: Any) -> None:
            self.callbacks_run[1] += 1

        for number in range(amount):
            kind = kinds[number % len(kinds)]
            delivery = self.client.submit({"message": "with callbacks", "n": number})
            delivery.add_done_callback(functools.partial(fail, kind))
            delivery.add_done_callback(count)
            self.callbacks_run[0] += 1

    def exhaust(self, seconds: float) -> None:
        """Hold all free descriptors, including those that become free, for some seconds.

        This is done in another thread, because this one may have to wait for room in the queue, which is only
        free after their release.
        """
        self.release_at = max(self.release_at, time.monotonic() + seconds)
        self.hold()
        if self.hoarder is None or not self.hoarder.is_alive():
            self.hoarder = threading.Thread(target=self.hoard, name="hoarder")
            self.hoarder.start()

    def hoard(self) -> None:
        while time.monotonic() < self.release_at:
            self.hold()
            time.sleep(0.02)
        self.release()

    def hold(self) -> None:
        while True:
            try:
                self.held.append(os.dup(0))
            except OSError:
                return

    def release(self) -> None:
        while self.held:
            os.close(self.held.pop())

    # -- the whole -----------------------------------------------------------------------------------

    def run(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        self.sampler.start()
        for thread in self.threads:
            thread.start()
        self.wait(lambda: self.client.stats().acked + self.client.stats().handed > 0)
        print("flowing", flush=True)
        text = b""
        while b"stop\n" not in text:
            lines = text.split(b"\n")
            text = lines.pop()
            for line in lines:
                if line:
                    self.obey(json.loads(line))
            self.reaped()
            self.configure_again()
            if select.select([0], [], [], 0.02)[0]:
                piece = os.read(0, 65536)
                if not piece:
                    return
                text += piece
        self.finish(before)

    def wait(self, condition: Any) -> bool:
        end = time.monotonic() + LONG_ENOUGH
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def configure_again(self) -> None:
        if self.unconfigured and not self.held:
            self.unconfigured = False
            self.configure()

    def finish(self, before: int) -> None:
        self.release_at = 0.0
        if self.hoarder is not None:
            self.hoarder.join()
        self.configure_again()
        ending = self.setting.ending
        if ending != "sigterm":
            self.hurry.set()
            for thread in self.threads:
                thread.join(LONG_ENOUGH)
        stuck = [thread.name for thread in self.threads if thread.is_alive() and ending != "sigterm"]
        self.wait(self.reaped)
        followed = None
        if ending == "close" and not stuck:
            self.left = self.client.flush(LONG_ENOUGH) + self.handler.client.flush(LONG_ENOUGH)
            self.wait(lambda: self.callbacks_run[1] >= self.callbacks_run[0])
            followed = sum(delivery.result(1.0) is None for delivery in self.deliveries)
            self.left += self.client.close(LONG_ENOUGH)
            logging.shutdown()
            self.wait(lambda: threading.active_count() <= 2)
        if ending != "sigterm":
            self.sampler.done.set()
            self.sampler.join()
            self.sampler.sample()
        report = {
            "pid": os.getpid(),
            "snapshots": self.sampler.taken,
            "wrong": self.sampler.wrong,
            "left": self.left,
            "stuck": stuck,
            "callbacks": self.callbacks_run if followed is not None else None,
            "untold": followed,
            "children": [{"pid": pid, **child} for pid, child in self.children.items()],
            "descriptors": len(os.listdir("/proc/self/fd")) - before,
            "threads": [thread.name for thread in threading.enumerate()],
            "clients": [client.stats()._asdict() for client in self.sampler.clients],
        }
        path = self.setting.report
        with open(path + ".new", "w") as file:
            json.dump(report, file)
        os.replace(path + ".new", path)
        if ending == "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)  # while its threads still send
            time.sleep(LONG_ENOUGH)


def main() -> None:
    faulthandler.enable()
    setting = Setting(**json.loads(sys.argv[1]))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    producer = Producer(setting)
    if setting.ending == "sigterm":
        logclient.flush_on_sigterm(LONG_ENOUGH)
    producer.run()


if __name__ == "__main__":
    main()
