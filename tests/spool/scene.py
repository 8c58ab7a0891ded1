"""A spool, ledgers, a collector, and producers as processes of their own that end as a test wants."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import logclient
from logclient.files.capture import CaptureReader
from logclient.testing.lumberjack import Collector, decode
from tests.support import clean_environment, need
from tests.support.documents import dotted
from tests.support.patience import PATIENCE, wait_until

NOBODY = "lumberjack://127.0.0.1:9"

PRODUCER = """
import json, mmap, os, sys, threading, time
import logclient
url, options, threads, told, sizes, end, rest = json.loads(sys.argv[1])
client = logclient.connect(url, **options)

def send(k):
    with open(os.path.join(told, f"thread-{k}"), "w") as file:
        print(threading.get_native_id(), file=file)
    with open(os.path.join(told, str(k)), "r+b") as file:
        seen = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    for n in range(1, len(seen)):
        # What `send` returned lies in a file of its own before the count says so.
        seen[n] = client.send({"message": "m" * sizes[(n * 7 + k) % len(sizes)], "n": n})
        seen[0] = n
        if rest:
            time.sleep(rest)

workers = [threading.Thread(target=send, args=(k,)) for k in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(client.producer, flush=True)
if end == "kill":
    os.kill(os.getpid(), 9)
elif end == "_exit":
    os._exit(0)
elif end == "stay":
    threading.Event().wait()
elif end == "close":
    client.close(0.0)
"""


class Scene:
    """The folders, and the collector; a context manager.

    Args:
        folder: for all files.
        options: of every client, in addition to spool and ledger.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.ledger = folder / "ledger"
        self.capture = folder / "capture"
        self.options = {
            "spool": str(self.spool),
            "spool_mode": "always",
            "ledger": str(self.ledger),
            "overflow": "block",
            **options,
        }
        self.collector = Collector(capture=str(self.capture))
        self._told = 0
        self._producers: list[Producer] = []

    def __enter__(self) -> Scene:
        self.collector.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for producer in self._producers:
            if producer.process.poll() is None:
                producer.kill()
        self.collector.__exit__(kind, error, trace)

    @property
    def url(self) -> str:
        return f"lumberjack://127.0.0.1:{self.collector.port}"

    def client(self, url: str = "", **options: Any) -> logclient.Client:
        return logclient.connect(url or self.url, **{**self.options, **options})

    def start(
        self,
        url: str = NOBODY,
        *,
        events: int = 1000,
        threads: int = 1,
        sizes: Sequence[int] = (10, 300, 2000),
        end: str = "kill",
        rest: float = 0.0,
        **options: Any,
    ) -> Producer:
        """Start a producer, whose threads rest for so many seconds after each event."""
        self._told += 1
        told = self.folder / f"told-{self._told}"
        told.mkdir()
        for k in range(threads):
            (told / str(k)).write_bytes(bytes(8 * (events + 1)))
        given = [url, {**self.options, **options}, threads, str(told), list(sizes), end, rest]
        self._producers.append(Producer(given, told))
        return self._producers[-1]

    def run(self, url: str = NOBODY, **given: Any) -> Producer:
        """Run a producer to its end."""
        producer = self.start(url, **given)
        producer.wait()
        return producer

    def owners(self) -> set[str]:
        """Return the producers that have files in the spool."""
        return {path.name[:20] for path in self.spool.glob("*.lock")}

    def drain(self, **options: Any) -> None:
        """Open the spool with a client until nothing of others is left there."""
        with self.client(**options) as client:
            wait_until(lambda: self.owners() <= {client.producer}, "the dead owners are adopted")
        assert list(self.spool.iterdir()) == []

    def arrived(self) -> Counter[str]:
        """Return the ids that have arrived, with their copies."""
        units = (unit for unit in CaptureReader(self.capture) if unit.direction == 0)
        return Counter(event["@metadata"]["_id"] for unit in units for event in decode(unit.raw))

    def events(self) -> list[dict[str, Any]]:
        """Return what has arrived, in order, copies and all; names with dots in place of objects."""
        units = (unit for unit in CaptureReader(self.capture) if unit.direction == 0)
        return [dotted(event) for unit in units for event in decode(unit.raw)]

    def verdict(self) -> Any:
        """End the collector, and return the verifier's counts."""
        need("pyarrow")
        need("numpy")
        from tests.support.verify_inprocess import run

        self.collector.__exit__(None, None, None)
        return run(self.ledger, self.capture).counts

    def parts(self, producer: str) -> list[int]:
        """Return the parts of a ledger that have been begun."""
        return [line["part"] for line in self.lines(producer) if line["t"] == "open"]

    def lines(self, producer: str) -> list[dict[str, Any]]:
        """Return the whole lines of all parts of a ledger."""
        found = []
        for path in sorted(self.ledger.glob(f"{producer}-*.ledger")):
            found += [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        return found


class Producer:
    """A process that sends, and what `send` returned there."""

    def __init__(self, given: list[Any], told: Path) -> None:
        self._told = told
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRODUCER, json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(PYTHONPATH=os.pathsep.join(sys.path)),
        )
        self.name = ""
        self.errors = ""

    def sent(self) -> int:
        """Return how many calls of `send` have returned so far."""
        return sum(struct.unpack("Q", path.read_bytes()[:8])[0] for path in self._told.glob("[0-9]"))

    def returned(self) -> set[int]:
        """Return the sequences that `send` returned, without drops."""
        found: set[int] = set()
        for path in self._told.glob("[0-9]"):
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
                seen = memoryview(data).cast("Q")
                found.update(seen[1 : 1 + seen[0]])
                seen.release()
        return found - {0}

    def threads(self) -> list[int]:
        """Return the kernel's ids of the threads that send, once all have begun."""
        paths = [self._told / f"thread-{path.name}" for path in sorted(self._told.glob("[0-9]"))]
        wait_until(
            lambda: all(p.exists() and p.read_text().endswith("\n") for p in paths), "the threads begin"
        )
        return [int(path.read_text()) for path in paths]

    def read_name(self) -> str:
        """Wait for the producer's name, which it says once it has sent all."""
        assert self.process.stdout is not None
        self.name = self.name or self.process.stdout.readline().strip()
        return self.name

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        out, self.errors = self.process.communicate(timeout=PATIENCE)
        self.name = self.name or out.strip()
