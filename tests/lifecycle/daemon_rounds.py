"""Programs that become daemons: ``python -m tests.lifecycle.daemon_rounds [--rounds 1000] [--only TEXT]``.

A program makes a handler, and may log with it. Then it forks and closes all descriptors, as a library does
and as people write it by hand, or closes them in the same process. It opens sockets and files of its own,
which get the numbers that were freed, and logs. Not a byte of its own may be added, be missing, or have its
file closed, and all events arrive. A table shows what was found; the exit status is 1 if anything was
wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import logclient
from logclient.testing import logjam, logux, lumberjack, plog
from tests.support import clean_environment
from tests.support.patience import PATIENCE

EVENTS = 6
MOST = 256
"""Descriptors of a program, so that closing all of them is quick."""

COLLECTORS = {"lumberjack": lumberjack, "logux": logux, "logjam": logjam, "plog": plog}


def by_library() -> None:
    import daemon

    daemon.DaemonContext().open()


def by_hand() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(3, MOST)


WAYS: dict[str, Callable[[], None]] = {
    "library": by_library,
    "by hand": by_hand,
    "same process": lambda: os.closerange(3, MOST),
}


class Case(NamedTuple):
    """A kind of program."""

    protocol: str
    way: str
    used: bool

    @property
    def name(self) -> str:
        return f"{self.protocol}, {self.way}, {'used' if self.used else 'unused'}"


# libzmq owns its descriptors, and ends the process without them (docs/fork-and-exit.md).
CASES = [
    Case(protocol, way, used)
    for protocol in COLLECTORS
    for way in WAYS
    for used in (False, True)
    if not (protocol == "logjam" and way == "same process" and used)
]


class Own:
    """The program's own sockets, with bytes under way in both directions, and files."""

    def __init__(self, folder: str) -> None:
        self._sockets: list[socket.socket] = []
        for _ in range(12):
            self._sockets += socket.socketpair()
        for number, sock in enumerate(self._sockets):
            sock.setblocking(False)
            sock.send(self._known(number ^ 1))
        self._files = [os.open(f"{folder}/{i}", os.O_RDWR | os.O_CREAT | os.O_TRUNC) for i in range(6)]
        for number, fd in enumerate(self._files):
            os.write(fd, self._known(number) * 2)
            os.lseek(fd, len(self._known(number)), os.SEEK_SET)
        self._all = [sock.fileno() for sock in self._sockets] + self._files
        self._before = [os.fstat(fd) for fd in self._all]

    @staticmethod
    def _known(number: int) -> bytes:
        return b"for the program's own number %04d " % number * 20

    def faults(self) -> dict[str, int]:
        """Bytes that are alien or missing, and files that are closed."""
        found = {"alien": 0, "missing": 0, "closed": 0}
        for fd, before in zip(self._all, self._before, strict=True):
            try:
                found["closed"] += not os.path.samestat(os.fstat(fd), before)
            except OSError:
                found["closed"] += 1
        got = []
        for sock in self._sockets:
            data = b""
            with suppress(OSError):
                while part := sock.recv(1 << 16):
                    data += part
            got.append((data, self._known(len(got))))
        for number, fd in enumerate(self._files):
            with suppress(OSError):
                at = os.lseek(fd, 0, os.SEEK_CUR)
                got.append((os.pread(fd, 1 << 20, 0)[at:], self._known(number)))
        for data, known in got:
            common = next((i for i, (a, b) in enumerate(zip(data, known, strict=False)) if a != b), None)
            same = min(len(data), len(known)) if common is None else common
            found["alien"] += len(data) - same
            found["missing"] += len(known) - same
        return found


def program(case: Case, url: str, number: int, folder: str, answers: str) -> None:
    """Be one program; the last of its processes tells what it found."""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (MOST, MOST))
        handler = logclient.Handler(url)
        log = logging.Logger("program")
        log.addHandler(handler)
        if case.used:
            log.warning("before %d", number)
            handler.client.flush(PATIENCE)
        WAYS[case.way]()
        own = Own(folder)
        left = 0
        for i in range(EVENTS):  # the sender sleeps before each
            log.warning("event %d.%d.", number, i)
            left += handler.client.flush(PATIENCE)
        left += handler.client.close(PATIENCE)
        told = {"left": left, "error": handler.client.stats().last_error, **own.faults()}
    except BaseException:
        told = {"error": traceback.format_exc().splitlines()[-1], "failed": 1}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(json.dumps(told).encode(), answers)


def serve() -> None:
    """Fork a program for each line of standard input; it imports nothing any more."""
    for line in sys.stdin:
        case, *rest = json.loads(line)
        if not (pid := os.fork()):
            program(Case(*case), *rest)
            os._exit(0)
        os.waitpid(pid, 0)


class Site:
    """A collector for each protocol, and the process that forks the programs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exit = ExitStack()
        self._rounds = 0

    def __enter__(self) -> Site:
        self._collectors = {
            name: self._exit.enter_context(module.Collector(keep=True)) for name, module in COLLECTORS.items()
        }
        self._answers = self._exit.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._answers.bind(str(self._folder / "answers"))
        environment = clean_environment(PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
        command = [sys.executable, "-m", "tests.lifecycle.daemon_rounds", "--programs"]
        self._forker = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environment)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._forker.stdin is not None
        self._forker.stdin.close()
        self._forker.wait(PATIENCE)
        self._exit.close()

    def url(self, scheme: str) -> str:
        """For clients."""
        collector: Any = self._collectors[scheme]
        if scheme == "logjam":
            return f"{collector.url.partition('/shop')[0]}/shop-production"
        return (
            str(collector.url).replace("plog:", f"{scheme}:") if scheme == "plog+tcp" else str(collector.url)
        )

    def run(self, case: Case) -> dict[str, Any]:
        """Run one program; return its faults, and how many events are missing or came twice."""
        self._rounds += 1
        collector: Any = self._collectors[case.protocol]
        collector.take()
        arguments = [
            list(case),
            self.url(case.protocol),
            self._rounds,
            str(self._folder),
            str(self._folder / "answers"),
        ]
        assert self._forker.stdin is not None
        self._forker.stdin.write(json.dumps(arguments) + "\n")
        self._forker.stdin.flush()
        if not select.select([self._answers], [], [], 3 * PATIENCE)[0]:
            return {"failed": 1, "error": "no answer"}
        told = json.loads(self._answers.recv(1 << 16))
        arrived: list[str] = []
        wanted = {str(i) for i in range(EVENTS)} if "failed" not in told else set()
        deadline = time.monotonic() + PATIENCE
        while not wanted <= set(arrived) and time.monotonic() < deadline:
            arrived += re.findall(rf"event {self._rounds}\.(\d+)\.", json.dumps(collector.take()))
            time.sleep(0.002)
        return {**told, "lost": len(wanted - set(arrived)), "twice": len(arrived) - len(set(arrived))}


WRONG = ("alien", "missing", "closed", "lost", "left", "failed")


def main() -> int:
    """Print a table of all cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000, help="programs in all")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--programs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.programs:
        serve()
        return 0
    cases = [case for case in CASES if options.only in case.name]
    columns = (*WRONG, "twice")
    print(f"{'case':36} {'rounds':>7}", *(f"{name:>8}" for name in columns), flush=True)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, Site(Path(folder)) as site:
        for index, case in enumerate(cases):
            rounds = len(range(index, options.rounds, len(cases)))
            total = dict.fromkeys(columns, 0)
            errors = set()
            for _ in range(rounds):
                found = site.run(case)
                for name in columns:
                    total[name] += found.get(name, 0)
                if any(found.get(name) for name in WRONG):
                    errors.add(found.get("error", ""))
            wrong += sum(total[name] for name in WRONG)
            print(
                f"{case.name:36} {rounds:7}", *(f"{total[name]:8}" for name in columns), *errors, flush=True
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
