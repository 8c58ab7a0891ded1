"""Application servers as processes under HTTP load, and what became of the records they logged.

The clients keep which orders were answered, by which worker, and when; the capture says what arrived; the
verifier compares it with the ledgers. None of the three knows of the others.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from logclient.files.capture import CaptureReader
from logclient.testing.lumberjack import decode
from tests.support import ROOT, clean_environment, missing, need
from tests.support.documents import dotted
from tests.support.patience import PATIENCE
from tests.support.processes import CollectorProcess

EXAMPLES = ROOT / "docs" / "examples"

LIMIT_S = 2 * PATIENCE
"""Nothing here takes so long unless it hangs."""

STEPS = ("received", "priced", "answered")
"""What the sample applications log for each order."""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = LIMIT_S) -> Any:
    """Poll until `condition` is true; its value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        threading.Event().wait(0.01)
    return found


def program(name: str) -> str:
    """The path of a command that an installed package has brought along."""
    path = shutil.which(name, path=os.path.dirname(sys.executable))
    if path is None:
        missing(f"{name} is not installed")
    return path


class Site:
    """A collector in a process of its own, a folder for the ledgers, and questions about both."""

    def __init__(self, folder: Path, scheme: str = "lumberjack") -> None:
        if not os.path.isdir("/proc/self/fd"):
            pytest.skip("this system has no /proc")
        self.folder = folder
        self.ledger = folder / "ledger"
        self.capture = folder / "capture"
        self.collector = CollectorProcess(self.capture, scheme=scheme)

    @property
    def url(self) -> str:
        return f"{self.collector.url}?ledger={quote(str(self.ledger), safe='/')}"

    def __enter__(self) -> Site:
        self.collector.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.collector.__exit__(kind, error, trace)

    def events(self) -> list[dict[str, Any]]:
        """What has arrived so far, copies and all; names with dots in place of objects."""
        units = (unit for unit in CaptureReader(self.capture) if unit.direction == 0)
        return [dotted(event) for unit in units for event in decode(unit.raw)]

    def messages(self) -> Counter[str]:
        return Counter(event["message"] for event in self.events())

    def heard(self, processes: set[int]) -> None:
        """Wait until something of each of these processes has arrived."""
        wait_for(lambda: processes <= {event["process.pid"] for event in self.events()}, "all processes")

    def arrived(self, message: str, n: int = 1) -> None:
        """Wait until a message has arrived so often."""
        wait_for(lambda: self.messages()[message] >= n, f"{n} x {message!r}")

    def ledgers(self) -> dict[str, list[dict[str, Any]]]:
        """Producer -> the lines of its ledger; without a torn last one, and one that has no line yet."""
        found = {}
        for path in self.ledger.glob("*.ledger"):
            assert path.name.endswith("-0001.ledger")
            lines = path.read_bytes().split(b"\n")[:-1]
            if lines:
                found[path.name[:20]] = [json.loads(line) for line in lines]
        return found

    def verdict(self) -> Any:
        """The verifier's, and what must hold whatever was killed. Ends the collector."""
        need("pyarrow")
        need("numpy")
        from tests.support.verify_inprocess import run

        self.collector.end(signal.SIGTERM)
        verdict = run(self.ledger, self.capture)
        counts = verdict.counts
        assert (counts.lost, counts.unexpected, counts.corrupted, counts.reordered) == (0,) * 4, counts
        assert (counts.duplicated, counts.dropped) == (0, 0), counts
        # One producer for each process, one ledger for each producer, and nobody speaks for another.
        processes = {producer: lines[0]["pid"] for producer, lines in self.ledgers().items()}
        assert len(set(processes.values())) == len(processes)
        said = {(event["event.id"][:20], event["process.pid"]) for event in self.events()}
        assert said == set(processes.items())
        return verdict


class Answer(NamedTuple):
    order: str
    worker: int
    at: float
    """time.monotonic() when the whole answer was here."""


class Load:
    """Clients that order, each one order after the other, all the time. A context manager.

    Args:
        port: of the server.
        clients: how many.
        name: what all their orders begin with.
    """

    def __init__(self, port: int, clients: int = 6, name: str = "") -> None:
        self.port = port
        self.name = name
        self.answers: list[Answer] = []
        self.refused = 0
        self.pause = 0.004  # seconds between two orders of a client: a load, not a flood
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(k,)) for k in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """No new orders; those under way are waited for."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _client(self, k: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                self.answers.append(ask(self.port, f"{self.name}{k}-{number}"))
            except (OSError, http.client.HTTPException):
                self.refused += 1
            self._stop.wait(self.pause)

    def workers(self, since: int = 0) -> set[int]:
        """The workers that have answered, from the answer with this index on."""
        return {answer.worker for answer in self.answers[since:]}

    def at_work(self, n: int, killed: Collection[int] = ()) -> set[int]:
        """Wait until `n` workers that live have answered from now on; an answer may be older than the end."""
        since = len(self.answers)

        def found() -> set[int]:
            alive = {worker for worker in self.workers(since).difference(killed) if not gone(worker)}
            return alive if len(alive) == n else set()

        return set(wait_for(found, f"{n} workers at work"))

    def more(self, n: int) -> None:
        """Wait for `n` more answers."""
        before = len(self.answers)
        wait_for(lambda: len(self.answers) >= before + n, f"{n} more answers")


def ask(port: int, order: str) -> Answer:
    """One order over a connection of its own.

    Raises:
        OSError, HTTPException: it was not answered.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("GET", f"/order/{order}")
        response = connection.getresponse()
        body = response.read()
        at = time.monotonic()
    finally:
        connection.close()
    if response.status != 200 or not body.startswith(b"{"):
        # A worker that is ended quickly may get as far as the status line, or writes another behind it.
        raise http.client.HTTPException(f"status {response.status}, {len(body)} bytes")
    answer = json.loads(body)
    assert answer["order"] == order
    return Answer(order, answer["worker"], at)


class Server:
    """An application server, in the folder of its example; all it says goes to a file."""

    def __init__(
        self, command: Sequence[str], folder: Path, out: Path, *, path: str = "", **environment: str
    ) -> None:
        self.out = out
        # What a test adds to the example lies beside the output.
        python = os.pathsep.join(p for p in [path, str(out.parent), str(ROOT), *sys.path] if p)
        with open(out, "ab") as file:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
                env=clean_environment(
                    PYTHONPATH=python, PYTHONDONTWRITEBYTECODE="1", PYTHONFAULTHANDLER="1", **environment
                ),
            )  # fmt: skip
        self.pid = self._process.pid

    def said(self, pattern: str, n: int = 1) -> list[Any]:
        """Wait until `pattern` is found `n` times in what the server says; all that was found."""

        def found() -> list[Any]:
            assert n == 0 or self._process.poll() is None or self._done(pattern, n), self.text
            return self._done(pattern, n)

        return list(wait_for(found, f"{pattern} in what the server says"))

    def _done(self, pattern: str, n: int) -> list[Any]:
        matches = re.findall(pattern, self.text)
        return matches if len(matches) >= n else []

    @property
    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send the signal and wait for the end; the exit code."""
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; the exit code. faulthandler shows where it hangs, and its children too."""
        try:
            return self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            said = len(self.text)
            os.killpg(self.pid, signal.SIGABRT)
            self._process.wait(LIMIT_S)
            raise AssertionError(f"{self._process.args} hangs\n{self.text[said:]}") from None

    def clear_away(self) -> None:
        """Whatever went wrong, nothing of it stays: it has a process group of its own."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(LIMIT_S)


@contextmanager
def serving(
    command: Sequence[str], folder: Path, out: Path, *, path: str = "", **environment: str
) -> Iterator[Server]:
    server = Server(command, folder, out, path=path, **environment)
    try:
        yield server
    except BaseException:
        print(server.text)
        raise
    finally:
        server.clear_away()


class Running(NamedTuple):
    site: Site
    server: Server
    port: int


@contextmanager
def gunicorn(site: Site, *options: str, preload: bool) -> Iterator[Running]:
    """Run its sample application under gunicorn."""
    need("flask")
    # The example's configuration, on a port of the system's, with nothing of the machine in the way.
    config = site.folder / "gunicorn.conf.py"
    example = (EXAMPLES / "gunicorn" / "gunicorn.conf.py").read_text()
    config.write_text(f"{example}\npreload_app = {preload}\nbind = '127.0.0.1:0'\n")
    command = [program("gunicorn"), "--config", str(config), *options]
    if not options or ":" not in options[-1]:
        command.append("app:app")
    out = site.folder / "gunicorn.out"
    with serving(command, EXAMPLES / "gunicorn", out, LOG_URL=site.url, HOME=str(site.folder)) as server:
        port = int(server.said(r"Listening at: http://127\.0\.0\.1:(\d+)")[0])
        yield Running(site, server, port)


# -- what the answers are owed --------------------------------------------------------------------------


def owed(answers: Sequence[Answer], messages: Counter[str]) -> list[str]:
    """The records of answered orders that did not arrive, or more than once."""
    wanted = [f"order {answer.order} {step}" for answer in answers for step in STEPS]
    return [message for message in wanted if messages[message] != 1]


def gone(pid: int) -> bool:
    """Whether a process has ended (one that nobody has waited for yet counts as ended)."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def children(pid: int) -> set[int]:
    """The processes whose parent is `pid`."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def open_files(pid: int, port: int) -> set[str]:
    """A process's ledgers, and its sockets whose other end is `port`."""
    links = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.add(os.readlink(path))
        except OSError:
            continue
    to_collector = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port:
            to_collector.add(f"socket:[{fields[9]}]")
    return {link for link in links if link.endswith(".ledger")} | (links & to_collector)
