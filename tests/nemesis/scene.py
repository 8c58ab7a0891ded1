"""One run: collectors, a relay and producers as processes, and the faults of a schedule at their times."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.nemesis import machine
from tests.nemesis.relay import Relay
from tests.nemesis.schedule import LINK, LONG_ENOUGH, ONE_WAY, PRODUCERS, SERVERS, Fault, Schedule
from tests.support import clean_environment
from tests.support.networks import SERVERS as REACHED
from tests.support.networks import Network, why_not
from tests.support.processes import PATHS

LOOK = 0.2


class Trouble(Exception):
    """The error of a run that could not be made, which is no fault of the product."""


class Strike(NamedTuple):
    """A fault that was carried out."""

    kind: str
    at_ns: int
    """The time by the monotonic clock, in nanoseconds."""
    producers: tuple[str, ...]
    """The producers whose events it may hit."""


class Life(NamedTuple):
    """A producer's process that has ended."""

    name: str
    pid: int
    code: int | None
    """The exit code; None: it hung and was killed."""
    killed: bool
    rss: int
    """The greatest growth of its memory, in bytes."""
    descriptors: int
    """The most descriptors at one time, without those held by the fault."""
    said: str
    """Its standard error."""
    report: dict[str, Any] | None
    samples: Path


class Evidence(NamedTuple):
    """The evidence of a run for the judge."""

    folder: Path
    strikes: list[Strike]
    lives: list[Life]
    collectors: list[str]
    """Violations found during the run."""


class Process:
    """A process that can be stopped, continued and killed, and writes its errors to a file."""

    def __init__(
        self, command: list[str], errors: Path, environment: dict[str, str], inside: Sequence[str] = ()
    ) -> None:
        self.errors = errors
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        with errors.open("ab") as file:
            self.popen = subprocess.Popen(
                [*inside, sys.executable, *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, bufsize=0, start_new_session=True,
                env=clean_environment(PYTHONPATH=path, **environment),
            )  # fmt: skip
        self.killed = False

    @property
    def alive(self) -> bool:
        return self.popen.poll() is None

    def line(self) -> bytes:
        """Return the next line of its output.

        Raises:
            Trouble: there is none.
        """
        assert self.popen.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self.popen.stdout], [], [], LONG_ENOUGH)[0]:
                raise Trouble(f"{self.errors.stem}: says nothing")
            piece = os.read(self.popen.stdout.fileno(), 1)
            if not piece:
                said = self.errors.read_text(errors="replace")[-2000:]
                raise Trouble(f"{self.errors.stem}: ended with {self.popen.wait()}: {said}")
            line += piece
        return line

    def signal(self, number: int) -> None:
        if self.alive:
            self.popen.send_signal(number)

    def kill(self) -> None:
        self.killed = True
        self.signal(signal.SIGKILL)
        self.wait(LONG_ENOUGH)

    def wait(self, seconds: float) -> int | None:
        try:
            return self.popen.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


class Collector(Process):
    """A process of ``logclient collect``."""

    listens = False

    def ready(self) -> None:
        """Wait until it listens."""
        if not self.listens:
            self.line()
            self.listens = True


class Producer(Process):
    """A process of `tests.nemesis.producer`."""

    def __init__(
        self,
        name: str,
        setting: dict[str, Any],
        folder: Path,
        environment: dict[str, str],
        inside: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.report = folder / f"{name}.json"
        self.samples = folder / f"{name}.samples"
        paths = {"name": name, "report": str(self.report), "samples": str(self.samples)}
        paths["told"] = str(folder / f"{name}.told")
        command = ["-m", "tests.nemesis.producer", json.dumps({**setting, **paths})]
        super().__init__(command, folder / f"{name}.err", environment, inside)
        self.base = self.rss = self.descriptors = 0

    def tell(self, line: str) -> None:
        assert self.popen.stdin is not None
        with suppress(OSError):
            self.popen.stdin.write(line.encode() + b"\n")

    def flowing(self) -> None:
        if self.line() != b"flowing\n":
            raise Trouble(f"{self.name}: no event was settled")
        self.look()
        self.base = self.rss

    def look(self) -> None:
        proc = Path(f"/proc/{self.popen.pid}")
        with suppress(OSError, IndexError, ValueError):
            resident, shared = map(int, (proc / "statm").read_text().split()[1:3])
            self.rss = max(self.rss, (resident - shared) * 4096)
            links = []
            for entry in (proc / "fd").iterdir():
                with suppress(OSError):
                    links.append(os.readlink(entry))
            held = os.readlink(proc / "fd" / "0")  # descriptors held by the fault are copies of this one
            self.descriptors = max(self.descriptors, sum(link != held for link in links) + 1)

    def life(self, code: int | None) -> Life:
        self.close()
        report = json.loads(self.report.read_text()) if self.report.exists() else None
        said = self.errors.read_text(errors="replace")
        return Life(
            self.name, self.popen.pid, code, self.killed, max(0, self.rss - self.base),
            self.descriptors, said, report, self.samples,
        )  # fmt: skip


class Scene:
    """The execution of a schedule; ``run`` returns the evidence.

    Args:
        schedule: the schedule.
        folder: an empty folder for all files.
    """

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule = schedule
        self.folder = folder
        self.strikes: list[Strike] = []
        self.lives: list[Life] = []
        self.wrong: list[str] = []
        self.collectors: dict[str, Collector] = {}
        self.producers: dict[str, Producer] = {}
        self.network: Network | None = None
        self.names = machine.Names(folder, REACHED[:2] if schedule.link else machine.ADDRESSES)
        self.clocks = {who: machine.Clock(folder / f"clock-{who}") for who in ("producers", "servers")}
        self.tls = machine.Certificates(folder) if "tls" in schedule.lane else None
        self.spool = folder / "spool"
        self.ports = machine.ports(2 * len(SERVERS))
        self.gates = dict(zip(SERVERS, self.ports, strict=False))
        self.upstream = dict(zip(SERVERS, self.ports[len(SERVERS) :], strict=True))

    # -- processes -----------------------------------------------------------------------------------

    def inside(self, side: str) -> list[str]:
        """Return the begin of a command that runs on this side of the link."""
        return self.network.inside(side, []) if self.network else []

    def start_collector(self, server: str) -> None:
        lane = self.schedule.lane
        query = f"?cert={self.tls.path(server)}" if self.tls else ""
        url = f"{lane}://127.0.0.1:{self.upstream[server]}{query}"
        command = ["-m", "logclient", "collect", url, "--capture", str(self.folder / "capture")]
        if self.schedule.injected:
            command += ["--faults", self.schedule.injected]
        if server in self.collectors:
            self.collectors[server].close()
        environment = self.clocks["servers"].environment(self.names)
        self.collectors[server] = Collector(
            command, self.folder / f"{server}.err", environment, self.inside("server")
        )

    def end_collector(self, server: str) -> None:
        """End a collector gracefully."""
        collector = self.collectors[server]
        collector.signal(signal.SIGCONT)
        if collector.alive:
            collector.ready()  # before, it has no signal handler, and would not close its capture
        collector.signal(signal.SIGTERM)
        code = collector.wait(LONG_ENOUGH)
        if code is None:
            collector.kill()
        collector.close()
        if code != 0 and not collector.killed:
            self.wrong.append(f"{server} ended with {code}: {collector.errors.read_text(errors='replace')}")

    @property
    def url(self) -> str:
        lane = self.schedule.lane
        hosts = ",".join(f"{server}.nemesis:{self.gates[server]}" for server in SERVERS)
        return f"{lane}://{hosts}{PATHS.get(lane, '')}"

    @property
    def options(self) -> dict[str, Any]:
        options = {**self.schedule.options, "ledger": str(self.folder / "ledger")}
        if self.tls:
            options["ca"] = str(self.tls.ca)
        if self.schedule.spooled:
            options["spool"] = str(self.spool)
        return options

    def start_producer(self, name: str, events: int, seconds: float) -> None:
        schedule = self.schedule
        setting = {
            "url": self.url,
            "options": self.options,
            "events": events,
            "seconds": seconds,
            "ending": schedule.ending,
            "one_way": schedule.lane in ONE_WAY,
        }
        environment = self.clocks["producers"].environment(self.names)
        number = 1 + sum(life.name.partition("-")[0] == name for life in self.lives)
        self.producers[name] = Producer(
            f"{name}-{number}", setting, self.folder, environment, self.inside("client")
        )

    # -- the run -------------------------------------------------------------------------------------

    def run(self) -> Evidence:
        kind = "udp" if self.schedule.lane == "plog" else "tcp"
        gates = [
            {"name": s, "kind": kind, "address": self.names.address[s], "port": self.gates[s],
             "upstream": self.upstream[s], "latency": self.schedule.latency}
            for s in SERVERS
        ]  # fmt: skip
        try:
            with self._linked(), Relay(gates, self.inside("server")) as self.relay:
                try:
                    self._run()
                finally:
                    for process in (*self.producers.values(), *self.collectors.values()):
                        if process.alive:
                            process.kill()
                        process.close()
                    for life in self.lives:  # children that hang
                        with suppress(OSError):
                            os.killpg(life.pid, signal.SIGKILL)
        finally:
            machine.release_ports(self.ports)
        return Evidence(self.folder, self.strikes, self.lives, self.wrong)

    @contextmanager
    def _linked(self) -> Iterator[None]:
        if not self.schedule.link:
            yield
            return
        try:
            self.network = Network(**self.schedule.link).__enter__()
        except OSError as error:
            raise Trouble(f"{why_not()} {error}") from None
        try:
            yield
        finally:
            self.network.__exit__(None, None, None)

    def _run(self) -> None:
        if self.schedule.disk:
            self.spool.mkdir(mode=0o700)
            with ExitStack() as stack:
                try:
                    stack.enter_context(machine.small_disk(self.spool, self.schedule.disk))
                except OSError as error:
                    raise Trouble(str(error)) from None
                self._run_processes()
        else:
            self._run_processes()

    def _run_processes(self) -> None:
        for server in SERVERS:
            self.start_collector(server)
        for collector in self.collectors.values():
            collector.ready()
        for name in PRODUCERS:
            self.start_producer(name, self.schedule.events // len(PRODUCERS), self.schedule.seconds)
        for producer in self.producers.values():
            producer.flowing()
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,), daemon=True)
        watcher.start()
        try:
            self._strike_all()
            self._heal()
            self._finish()
            if self.schedule.spooled:
                self._drain()
        finally:
            over.set()
            watcher.join()
        for server in SERVERS:
            self.end_collector(server)

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(LOOK):
            for producer in list(self.producers.values()):
                producer.look()

    def _strike_all(self) -> None:
        begin = time.monotonic()
        steps: list[tuple[float, int, Fault, bool]] = []
        for number, fault in enumerate(self.schedule.faults):
            steps.append((fault.at, number, fault, True))
            if fault.seconds and fault.kind not in ("signals", "descriptors"):
                steps.append((fault.at + fault.seconds, number, fault, False))
        for at, _, fault, first in sorted(steps, key=lambda step: step[0]):
            time.sleep(max(0.0, begin + at - time.monotonic()))
            self.left = max(0.1, self.schedule.seconds - (time.monotonic() - begin))
            if first:
                self._begin(fault)
            else:
                self._end(fault)
        time.sleep(max(0.0, begin + self.schedule.seconds - time.monotonic()))

    def _servers(self, fault: Fault) -> tuple[str, ...]:
        return SERVERS if fault.target == "all" else (fault.target,)

    def _named(self, fault: Fault) -> tuple[str, ...]:
        return (fault.target,) if fault.target in PRODUCERS else PRODUCERS

    def _begin(self, fault: Fault) -> None:
        now = time.monotonic_ns()
        names = tuple(self.producers[name].name for name in self._named(fault))
        self.strikes.append(Strike(fault.kind, now, names))
        match fault.kind:
            case "cut" | "half-close" | "stall" | "refuse":
                self.relay.order(fault.target, fault.kind, how=fault.how)
            case "delay":
                self.relay.order(fault.target, "delay", seconds=fault.amount / 1000)
            case "kill-collector":
                for server in self._servers(fault):
                    self.collectors[server].kill()
            case "stop-collector":
                self.collectors[fault.target].signal(signal.SIGSTOP)
            case "stop-producer":
                self.producers[fault.target].signal(signal.SIGSTOP)
            case "kill-producer":
                self._replace(fault.target)
            case "clock":
                self.clocks[fault.target].jump(fault.amount)
            case "dns":
                self._names_change(fault)
            case "certificate":
                self._rotate(fault)
            case kind if kind in LINK:
                self._harm_link(fault)
            case kind:
                for name in self._named(fault):
                    order = {"do": kind, "how": fault.how, "amount": fault.amount, "seconds": fault.seconds}
                    self.producers[name].tell(json.dumps(order))

    def _end(self, fault: Fault) -> None:
        match fault.kind:
            case "stall":
                self.relay.order(fault.target, "flow")
            case "delay":
                self.relay.order(fault.target, "delay", seconds=0.0)
            case "refuse":
                self.relay.order(fault.target, "accept")
            case "kill-collector":
                for server in self._servers(fault):
                    self._revive(server)
            case "stop-collector":
                self.collectors[fault.target].signal(signal.SIGCONT)
            case "stop-producer":
                self.producers[fault.target].signal(signal.SIGCONT)
            case "dns":
                self.names.say(fault.target)
            case "link-cut" | "link-loss" | "link-slow":
                self._heal_link()
            case "certificate" if self.tls and fault.how != "renew":
                self.tls.renew(fault.target)
                self._restart(fault.target)

    def _harm_link(self, fault: Fault) -> None:
        assert self.network is not None
        match fault.kind:
            case "link-cut":
                self.network.change(cut=fault.how)
            case "link-loss":
                self.network.change(loss=(fault.amount / 100, fault.amount / 100))
            case "link-slow":
                self.network.change(rate=(fault.amount, fault.amount))
            case _:
                self.network.forget_flows()

    def _heal_link(self) -> None:
        if self.network is not None:
            self.network.change(**{"cut": "", **self.schedule.link})

    def _names_change(self, fault: Fault) -> None:
        if fault.how == "move":  # the name changes later, at the end
            self.relay.order(fault.target, "move", address=self.names.moved(fault.target))
        else:
            self.names.say(fault.target, fault.how)
            self.relay.order(fault.target, "cut", how="rst")

    def _rotate(self, fault: Fault) -> None:
        assert self.tls is not None
        if fault.how == "authority":  # its certificate is used later, at the end
            self.tls.another_authority()
            return
        self.tls.renew(fault.target, "elsewhere" if fault.how == "wrong" else "")
        self._restart(fault.target)

    def _restart(self, server: str) -> None:
        if self.collectors[server].alive:
            self.end_collector(server)
        self.start_collector(server)

    def _revive(self, server: str) -> None:
        collector = self.collectors[server]
        if not collector.alive:
            if not collector.killed:
                self.wrong.append(f"{server} died: {collector.errors.read_text(errors='replace')[-2000:]}")
            self.start_collector(server)

    def _replace(self, name: str) -> None:
        producer = self.producers[name]
        producer.kill()
        self.lives.append(producer.life(producer.popen.returncode))
        events = self.schedule.events // len(PRODUCERS)
        self.start_producer(name, max(100, int(events * self.left / self.schedule.seconds)), self.left)

    def _heal(self) -> None:
        self.relay.heal()
        self._heal_link()
        for server in SERVERS:
            self.names.say(server)
            self.collectors[server].signal(signal.SIGCONT)
            self._revive(server)
            self.relay.order(server, "accept")
        for producer in self.producers.values():
            producer.signal(signal.SIGCONT)

    def _drain(self) -> None:
        """Send what ended producers have left in the spool."""
        options = {name: value for name, value in self.options.items() if not name.startswith("spool")}
        ledger = options.pop("ledger")
        command = ["-m", "logclient", "spool", "drain", str(self.spool), "--ledger", ledger]
        command += ["--to", f"{self.url}?{urlencode(options)}", "--timeout", str(LONG_ENOUGH)]
        errors = self.folder / "drain.err"
        environment = self.clocks["producers"].environment(self.names)
        drain = Process(command, errors, environment, self.inside("client"))
        code = drain.wait(2 * LONG_ENOUGH)
        if code is None:
            drain.kill()
        drain.close()
        if code != 0:
            self.wrong.append(f"the spool was not drained ({code}): {errors.read_text(errors='replace')}")

    def _finish(self) -> None:
        for producer in self.producers.values():
            producer.tell("stop")
        deadline = time.monotonic() + 2 * LONG_ENOUGH
        for producer in self.producers.values():
            code = producer.wait(deadline - time.monotonic())
            if code is None:
                producer.signal(signal.SIGABRT)  # prints its stacks
                producer.wait(LONG_ENOUGH)
                producer.signal(signal.SIGKILL)
            self.lives.append(producer.life(code))
