"""One case: its network, servers and client as processes, and what was found."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from logclient.verify import job
from tests.networks.cases import PROTOCOLS, Case, Change, Server
from tests.networks.programs import SAMPLED
from tests.support import clean_environment, golumber
from tests.support.networks import SERVERS, UP, Network
from tests.support.patience import PATIENCE
from tests.support.tls import Authority

HERD = 4
"""Processes of a crowd."""

QUIET = 5.0
"""Seconds after which a link that carries nothing more for a client that has ended is empty."""


class Sample(NamedTuple):
    """The counts of a client at a time."""

    at: float
    sent: int
    queued: int
    inflight: int
    acked: int
    handed: int
    resent: int
    connects: int
    disconnects: int
    in_doubt: int
    last_error: str

    @property
    def settled(self) -> int:
        return self.acked + self.handed


assert Sample._fields[1:] == SAMPLED


class Found(NamedTuple):
    """What a case left. Times are in seconds since the client's start."""

    stats: dict[str, Any]
    samples: list[Sample]
    changed: list[float]
    """When each change was made."""
    arrived: int | None
    """Different events; None: not counted."""
    copies: int
    verdict: dict[str, int]
    """The verifier's counts; empty without a capture of ours."""
    payload: int
    """Bytes that TCP carried to the servers, headers not counted."""
    attempts: list[float]
    asked: int
    """Queries that the name server got."""
    code: int
    said: str
    """The standard error of the client."""
    output: str


class Process:
    """A process in the network, whose output and errors are in files."""

    def __init__(self, network: Network, side: str, command: list[str], log: Path) -> None:
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self.log = log
        with log.with_suffix(".out").open("ab") as output, log.with_suffix(".err").open("ab") as errors:
            self.popen = subprocess.Popen(
                network.inside(side, command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env=clean_environment(PYTHONPATH=path),
            )

    @property
    def output(self) -> str:
        return self.log.with_suffix(".out").read_text(errors="replace")

    @property
    def errors(self) -> str:
        return self.log.with_suffix(".err").read_text(errors="replace")

    def wait(self, seconds: float) -> int | None:
        try:
            return self.popen.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return None

    def tell_end(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()

    def end(self, *numbers: int) -> None:
        """End the process: go-lumber's ends with its input, the collectors with a signal."""
        self.tell_end()
        for number in numbers:
            self.popen.send_signal(number)
        if self.wait(PATIENCE) is None:
            self.popen.kill()
            self.popen.wait()


class Scene:
    """Runs a case. Files are left in the folder."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.protocol = PROTOCOLS[case.protocol]
        self.folder = folder
        self.servers: dict[int, Process] = {}
        self.lives: Counter[int] = Counter()
        self.clients: list[Process] = []
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.program: Path | None = None
        if self.protocol.real and not any(server.faults for server in case.servers):
            with suppress(golumber.Missing):
                self.program = golumber.program()
        self.authority = Authority(folder / "tls") if "tls" in self.protocol.scheme else None

    def run(self) -> Found:
        with ExitStack() as stack:
            self.network = stack.enter_context(Network(self.folder, self.case.names, **self.case.link))
            stack.callback(self._end_all)
            for number, server in enumerate(self.case.servers):
                if server.running:
                    self._start(number)
            for number in self.servers:
                self._listening(number)
            return self._run()

    # -- servers -----------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        server = self.case.servers[number]
        self.lives[number] += 1
        log = self.folder / f"server-{number}-{self.lives[number]}"
        self.servers[number] = Process(self.network, "server", self._command(server, log), log)

    def _command(self, server: Server, log: Path) -> list[str]:
        pem = self.authority.issue("server", "logs.test", *SERVERS) if self.authority else ""
        if self.program is not None:
            out = str(log.with_suffix(".events"))
            command = [str(self.program), "serve", "-host", server.address, "-port", "5044", "-out", out]
            return command + (["-cert", pem] if pem else [])
        url = self.protocol.listen.format(server.address) + (f"?cert={pem}" if pem else "")
        capture = str(self.folder / "capture")
        command = [sys.executable, "-m", "logclient", "collect", url, "--capture", capture]
        return command + (["--faults", server.faults] if server.faults else [])

    def _listening(self, number: int) -> None:
        end = time.monotonic() + PATIENCE
        while "port" not in (server := self.servers[number]).output:
            if server.popen.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.case.name}: server {number}: {server.errors[-1000:]}")
            time.sleep(0.02)

    def _end_all(self) -> None:
        for process in self.clients:
            process.end(signal.SIGKILL)
        for process in self.servers.values():
            process.end(signal.SIGCONT, signal.SIGTERM)

    # -- the client ---------------------------------------------------------------------------------------

    def _client_command(self, part: int) -> list[str]:
        case = self.case
        if case.program == "check":
            command = [sys.executable, "-m", "logclient", "check", case.url]
            return command + (["--ca", self.authority.ca] if self.authority else [])
        options = dict(case.options)
        if case.program in ("send", "lines"):
            options["ledger"] = str(self.folder / "ledger")
        if self.authority:
            options["ca"] = self.authority.ca
        setting = {
            "url": case.url,
            "options": options,
            "events": case.events,
            "size": case.size,
            "kind": case.kind,
            "per_second": case.per_second,
            "seconds": case.seconds,
            "end": case.end,
            "settle": 5.0,
            "clients": case.clients // HERD,
            "samples": str(self.folder / "samples"),
        }
        return [sys.executable, "-m", "tests.networks.programs", case.program, json.dumps(setting)]

    def _run(self) -> Found:
        begin = time.monotonic()
        for part in range(HERD if self.case.program == "herd" else 1):
            log = self.folder / f"client-{part}"
            self.clients.append(Process(self.network, "client", self._client_command(part), log))
        changed = []
        for change in sorted(self.case.changes, key=lambda change: change.at):
            if self._wait(begin + change.at):
                break
            self._make(change)
            changed.append(time.monotonic())
        limit = begin + self.case.seconds + self.case.end + 4 * PATIENCE
        while self.case.program == "send" and "flushed" not in self.clients[0].output:
            if self._wait(time.monotonic() + 0.1) or time.monotonic() > limit:
                break
        if self.case.program == "send" and not self.protocol.acknowledges:
            self._let_arrive()
        for client in self.clients:
            client.tell_end()
        codes = [client.wait(limit - time.monotonic()) for client in self.clients]
        if None in codes:
            raise RuntimeError(f"{self.case.name}: the client hangs: {self.clients[0].errors[-1000:]}")
        if self.case.program == "lines" and not self.protocol.acknowledges:
            self._let_arrive()
        counts = self.network.counts()
        asked = self.network.rename() if self.case.names is not None else 0
        self._end_all()
        return self._collect(changed, counts, asked, max(code or 0 for code in codes))

    def _wait(self, until: float) -> bool:
        """Wait for a time, or for the end of the client; return whether it has ended."""
        while (left := until - time.monotonic()) > 0:
            if self.clients[0].wait(left) is not None:
                return True
        return False

    def _make(self, change: Change) -> None:
        match change.what:
            case "link":
                self.network.change(**change.how)
            case "forget":
                self.network.forget_flows()
            case "names":
                self.network.rename(**change.how)
            case "start":
                assert change.who is not None
                self._start(change.who)
                self._listening(change.who)
            case what:
                number = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "kill": signal.SIGKILL}[what]
                process = self.clients[0] if change.who is None else self.servers[change.who]
                process.popen.send_signal(number)
                if what == "kill":
                    process.end()

    def _let_arrive(self) -> None:
        """Wait for what the kernel still sends for the client, then for what the link holds."""
        payload, last = -1, time.monotonic()
        end = last + self.case.seconds + PATIENCE
        rate, _ = self.case.link.get("rate", (float("inf"), 0))
        trip = 2 * self.case.link.get("delay", 0.0) + 32_768 / rate  # with a full queue
        quiet = QUIET + 4 * trip  # TCP sends the last packet again after so many
        if max(self.case.link.get("loss", (0.0,))) >= 0.5:
            quiet += 100.0  # and often, with pauses that double
        while (now := time.monotonic()) < min(end, last + quiet):
            if (carried := self.network.counts()["payload"][UP]) != payload:
                payload, last = carried, now
            if not self.case.link.get("rate") and now > last + quiet - QUIET + 1.0:
                return
            time.sleep(0.1)

    # -- what was found -----------------------------------------------------------------------------------

    def _collect(self, changed: list[float], counts: dict[str, Any], asked: int, code: int) -> Found:
        case = self.case
        outputs = [client.output for client in self.clients]
        stats: dict[str, Any] = {}
        if case.program != "check":
            for output in outputs:
                if not output.strip():
                    raise RuntimeError(f"{case.name}: {self.clients[0].errors[-1000:]}")
                for name, value in json.loads(output.strip().splitlines()[-1]).items():
                    stats[name] = stats[name] + value if case.program == "herd" and name in stats else value
        samples, begin = [], stats.get("begin", 0.0)
        if case.program == "send":
            for line in (self.folder / "samples").read_text().splitlines():
                at, *rest = json.loads(line)
                samples.append(Sample(at - begin, *rest))
        arrived, copies, verdict = self._arrived()
        return Found(
            stats, samples, [at - begin for at in changed], arrived, copies, verdict,
            counts["payload"][UP], [at - begin for at, _ in counts["attempts"]], asked, code,
            "".join(client.errors for client in self.clients), "".join(outputs),
        )  # fmt: skip

    def _arrived(self) -> tuple[int | None, int, dict[str, int]]:
        if self.program is not None:
            numbers: Counter[bytes] = Counter()
            for path in self.folder.glob("server-*.events"):
                for line in path.read_bytes().splitlines():
                    number = re.search(rb'"_id":"([0-9a-f]{32})"', line)
                    numbers[number[1] if number else line] += 1
            return len(numbers), sum(numbers.values()) - len(numbers), {}
        if not (self.folder / "ledger").exists() or not (self.folder / "capture").exists():
            return None, 0, {}
        ledger, capture = self.folder / "ledger", self.folder / "capture"
        counts = job.run(ledger, capture, runner="local", allow_open=True).counts
        return counts.ok + counts.recovered + counts.corrupted, counts.duplicated, counts._asdict()
