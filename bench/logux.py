"""Row `logux`: 300-byte actions until the server has reported each as processed.

The servers are the released @logux/server, and a stub in C that gives the same answers at almost no cost; our
client also sends to the stub over TLS.

Each contender is a separate process for all rounds, so that its CPU can be measured. It makes a new
connection for each run, because the server checks all connections for each action, and sends some actions
before the timed ones. The judged figures are wall time and CPU of @logux/client over ours, from the first
`send` to the end of `flush`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench.certificates import Certificate, certificate, server_arguments
from bench.harness import ROOT, NotExact, Row, Spread, Target, claim, judge, lines, ratio
from bench.logux_program import CREDENTIALS
from bench.lumberjack import SINK_BOUND
from bench.program import Program, SinkError
from bench.sink import compiled
from tests.support import logux_server

SINK_SOURCE = Path(__file__).with_name("wssink.c")
PEERS_SOURCE = Path(__file__).with_name("logux_peers.js")
BINARY = ROOT / "build" / "bench" / "wssink"
SIZE = 300
ROUNDS = 11
WARM = 2_000
COLD = 20_000
"""Warm-up actions for a new server, whose first thousands take five times as long."""
JS, NODE, OURS = "@logux/client", "core ClientNode", "logclient"
PACED = f"{JS}, 100 at a time"
REAL, STUB, TLS = "@logux/server", "stub", "stub over TLS"
RATE = 1.2
"""The least rate to the stub, in million actions a second."""
CLOCKS = {"wall": "until processed", "process": "CPU"}


def action() -> str:
    """Make an action of exactly `SIZE` bytes with an id of zeros."""
    made = {
        "type": "log/add",
        "data": {
            "@timestamp": "2026-01-01T12:34:56.789Z",
            "log.level": "INFO",
            "message": "081109 203807 222 INFO dfs.DataNode$PacketResponder: PacketResponder 0 for block ",
        },
        "id": "0" * 32,
    }
    text = json.dumps(made, separators=(",", ":"))
    made["data"]["message"] += "x" * (SIZE - len(text))  # type: ignore[index]
    return json.dumps(made, separators=(",", ":"))


class Counts(NamedTuple):
    """Totals since the server started."""

    events: int  # actions that were processed
    cpu: float
    answered: int | None = None  # the server's syncs that the client answered; None: unknown
    bytes: int | None = None  # received
    busy: float = 0.0  # the share of a core, from the first byte to the last
    cipher: str = ""  # of the connection that has sent the last byte; empty: plain


class Stub:
    """`wssink.c` as a process.

    Args:
        tls: show this certificate on all connections, and decrypt them in the stub's process.

    Attributes:
        address: for any WebSocket client.
        url: for our client, with `options`.
    """

    def __init__(self, tls: Certificate | None = None) -> None:
        program = compiled(SINK_SOURCE, BINARY, ("-ldl",), ())
        self.name = TLS if tls else STUB
        self._program = Program([str(program), *server_arguments(tls)], "the stub")
        port = self._program.read()["port"]
        self.address = f"{'wss' if tls else 'ws'}://127.0.0.1:{port}"
        self.url = f"{'logux+tls' if tls else 'logux'}://127.0.0.1:{port}"
        self.options: dict[str, Any] = CREDENTIALS | ({"ca": tls.ca} if tls else {})

    def counts(self) -> Counts:
        report = self._program.ask()
        if report["errors"]:
            raise SinkError("a client broke the protocol, see stderr")
        cpu = report["user"] + report["system"]
        wall = report["last"] - report["first"]
        busy = cpu / wall if wall > 0 else 0.0
        return Counts(report["events"], cpu, report["answered"], report["bytes"], busy, report["cipher"])

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *exc: object) -> None:
        self._program.close()


class Real:
    """The released server, without a log."""

    name = REAL

    def __init__(self, folder: Path) -> None:
        self._server = logux_server.LoguxServer(folder, out=None)

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def options(self) -> dict[str, Any]:
        return CREDENTIALS

    def counts(self) -> Counts:
        report = self._server.tell("state")
        return Counts(report["written"], report["cpu"])

    def __enter__(self) -> Real:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.end()


Server = Stub | Real


class Way(NamedTuple):
    """A contender: its program, the options of a run besides the count, and its share of a run's actions."""

    name: str
    command: Callable[[str], Sequence[str]]
    options: Mapping[str, Any]
    share: float = 1.0


class Contender:
    """A way to one server, as a process."""

    def __init__(self, way: Way, server: Server, actions: int, stack: ExitStack) -> None:
        self.name = f"{way.name}, {server.name}"
        self.actions = int(actions * way.share)
        self._options = way.options
        self._server = server
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"NODE_ENV": "production", "PYTHONPATH": path}
        self._process = subprocess.Popen(
            list(way.command(server.address)), cwd=ROOT, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        stack.callback(self._end)

    def run(self, warm: int = WARM, actions: int = 0) -> tuple[dict[str, float], float, float]:
        """Do one run.

        Returns:
            The contender's seconds by clock, the server's CPU seconds, and bytes per action received.
        """
        n = actions or self.actions
        before = self._server.counts()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"n": n, "warm": warm, **self._options}) + "\n")
        self._process.stdin.flush()
        text = self._process.stdout.readline()
        if not text:
            raise NotExact(f"{self.name}: it ended early, exit {self._process.wait()}")
        report, after = json.loads(text), self._server.counts()
        deadline = time.monotonic() + 10.0
        while after.answered is not None and after.answered - before.answered < n + warm:
            if time.monotonic() > deadline:
                raise NotExact(f"{self.name}: {after.answered - before.answered} of {n + warm} answers came")
            time.sleep(0.005)  # the last answers are in flight
            after = self._server.counts()
        if report["processed"] != n or after.events - before.events != n + warm:
            raise NotExact(
                f"{self.name}: {after.events - before.events} actions were processed, {report['processed']} "
                f"by the answers after the first {warm}; {n + warm} were sent"
            )
        size = (after.bytes - before.bytes) / (n + warm) if before.bytes is not None else 0.0
        return {"process": report["cpu"], "wall": report["wall"]}, after.cpu - before.cpu, size

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _node(kind: str) -> Callable[[str], Sequence[str]]:
    program = logux_server.program(PEERS_SOURCE)
    return lambda address: ["node", str(program), kind, address, action()]


def _python(kind: str) -> Callable[[str], Sequence[str]]:
    def command(address: str) -> Sequence[str]:
        url = address.replace("wss:", "logux+tls:").replace("ws:", "logux:") if kind == OURS else address
        return [sys.executable, "-m", "bench.logux_program", kind, url, action()]

    return command


def _ways(server: Server, folder: Path) -> Iterator[Way]:
    real = server.name == REAL

    def ours(what: str = "", **options: Any) -> Way:
        options = {**server.options, **options}
        return Way(f"{OURS}{what}", _python(OURS), {"options": options}, 1.0 if real else 5.0)

    yield ours()
    yield ours(" (again)")
    if server.name == TLS:
        return
    yield Way(JS, _node("client"), {"ahead": 1 << 30}, 0.5)
    # For each action its log scans all actions without an outcome: it is fastest with 100 of them.
    for again in ("", " (again)"):
        yield Way(f"{PACED}{again}", _node("client"), {"ahead": 100}, 0.5)
    yield Way(NODE, _node("node"), {"ahead": 1000}, 0.5)
    loops = ["websockets"]
    try:
        import picows  # noqa: F401

        loops.append("picows")
    except ImportError:
        pass
    for name in loops:
        for each in (1, 100):
            options = {"each": each, "ahead": 1000}
            yield Way(f"{name}, {each} a sync", _python(name), options, 0.5)
    yield ours(", with a ledger", ledger=str(folder))
    if not real:
        yield ours(", check=false", check=False)
        yield ours(", window=1000", window=1000)


class Measured(NamedTuple):
    """The microseconds per action by contender, clock and round; the server's cores and CPU per action."""

    samples: dict[str, dict[str, list[float]]]
    busy: dict[str, list[float]]
    spent: dict[str, list[float]]
    wire: dict[str, float]


def measure(contenders: Sequence[Contender], rounds: int, draw: Random) -> Measured:
    """Measure all contenders, one after the other in random order."""
    got = Measured({}, {}, {}, {})
    for contender in contenders:
        got.samples[contender.name] = {"process": [], "wall": []}
        got.busy[contender.name], got.spent[contender.name] = [], []
        contender.run()  # a first run, for just-in-time compilers and caches
    for _ in range(rounds):
        for contender in draw.sample(contenders, len(contenders)):
            took, server, got.wire[contender.name] = contender.run()
            for clock, seconds in took.items():
                got.samples[contender.name][clock].append(seconds / contender.actions * 1e6)
            each = server / (contender.actions + WARM) * 1e6
            got.spent[contender.name].append(each)
            got.busy[contender.name].append(each / got.samples[contender.name]["wall"][-1])
    return got


def _rate_note(got: Measured, name: str) -> str:
    wall, cpu = Spread.of(got.samples[name]["wall"]), Spread.of(got.samples[name]["process"])
    wire = f", {got.wire[name]:.0f} bytes an action to it" if got.wire[name] else ""
    return (
        f"{name}: {1e6 / wall.median:,.0f} actions/s [{1e6 / wall.high:,.0f}-{1e6 / wall.low:,.0f}], "
        f"{cpu.median / wall.median:.2f} cores; the server {statistics.median(got.spent[name]):.1f} us "
        f"an action, {statistics.median(got.busy[name]):.2f} cores{wire}"
    )


def _verdicts(got: Measured) -> Iterator[Any]:
    samples = got.samples
    for server in (REAL, STUB):
        ours = f"{OURS}, {server}"
        for name in (PACED, OURS):
            for clock, what in CLOCKS.items():
                pair = f"{name} (again), {server}", f"{name}, {server}"
                yield claim(f"A/A: {pair[1]} against itself, {what}", ratio(samples, *pair, clock))
        for js in (f"{JS}, {server}", f"{PACED}, {server}"):
            # The server itself is the limit of a peer that is held to what it can bear.
            bounds = (1.4, 10) if js == f"{PACED}, {REAL}" else (2, 5)
            for clock, bound in zip(("wall", "process"), bounds, strict=True):
                (verdict,) = judge(samples, [Target(js, ours, ">=", bound, clock)])
                yield verdict._replace(what=f"{verdict.what}, {CLOCKS[clock]}")
        for other in samples:
            if other.endswith(server) and not other.startswith((JS, OURS)):
                for clock, what in CLOCKS.items():
                    yield claim(f"{other} / {ours}, {what}", ratio(samples, other, ours, clock))
    for server, bound in ((STUB, (">=", RATE)), (TLS, ())):
        ours = f"{OURS}, {server}"
        yield claim(f"{ours}: M actions/s", Spread.of([1 / wall for wall in samples[ours]["wall"]]), *bound)
    over_tls = f"{OURS}, {TLS}"
    for clock, what in CLOCKS.items():
        slower, plain = (statistics.median(samples[name][clock]) for name in (over_tls, f"{OURS}, {STUB}"))
        yield claim(f"{over_tls} / {OURS}, {STUB}, {what}, medians", slower / plain)
    yield claim("the stub's share of a core, over TLS", Spread.of(got.busy[over_tls]))
    # Our client is the fastest, so the stub's share is the greatest with it.
    yield claim("the stub's share of a core", Spread.of(got.busy[f"{OURS}, {STUB}"]), "<=", SINK_BOUND)


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Measure all contenders with the one server, then with the other, each in random order."""
    if why := logux_server.absent():
        raise RuntimeError(why)
    actions = 2_000 if quick else 20_000
    rounds = rounds or (3 if quick else ROUNDS)
    got = Measured({}, {}, {}, {})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for server in (Real(folder), Stub(), Stub(certificate())):
            with server, ExitStack() as stack:
                ways = _ways(server, folder / f"ledger of {server.name.strip('@').replace('/', '-')}")
                contenders = [Contender(way, server, actions, stack) for way in ways]
                contenders[0].run(COLD)
                one = measure(contenders, rounds, Random(seed))
            for mine, theirs in zip(got, one, strict=True):
                mine.update(theirs)  # type: ignore[arg-type]
    samples = got.samples
    floor = min(statistics.median(values) for name, values in got.spent.items() if name.endswith(REAL))
    js, paced = (statistics.median(samples[f"{name}, {REAL}"]["wall"]) for name in (JS, PACED))
    verdicts = [
        v._replace(why=f"the server's own limit is {paced / floor:.2g} times")
        if v.reached is False and v.what == f"{PACED}, {REAL} / {OURS}, {REAL}, {CLOCKS['wall']}"
        else v
        for v in _verdicts(got)
    ]
    if verdicts[-1].value > SINK_BOUND:
        verdicts = [
            v._replace(reached=None, why="invalid: the stub is the limit")
            if v.op == ">=" and STUB in v.what
            else v
            for v in verdicts
        ]
    notes = [_rate_note(got, name) for name in samples]
    limit = (
        f"the physical limit: {REAL} takes {floor:.1f} us of its one thread for an action at best, so no "
        f"client has more than {1e6 / floor:,.0f} actions/s: {js / floor:.2g} times what {JS} has, and "
        f"{paced / floor:.2g} times what it has with 100 at a time"
    )
    counted = (
        f"{actions:,} actions a run for {OURS}, to the stub five times as many, half for the others; {SIZE} "
        f"bytes of JSON each; {WARM:,} before them on the same connection; counted by the server and by each "
        "contender; the stub has seen each of its syncs answered" + ("; a quick run" if quick else "")
    )
    peers = (
        f"{JS}: client.sync() of all at once, as {OURS} is called; its log looks at all that have no fate "
        "for each one, so it is fastest where the caller keeps them to about 100; core ClientNode: log.add() "
        "to a log that keeps nothing, up to 1,000 without a fate"
    )
    notes += [
        limit,
        counted,
        "NODE_ENV=production; the server keeps and writes nothing; its CPU has the actions before in it",
        peers,
        "loops: the text of a sync put together, a search in each answer; up to 1,000 without a fate",
        f"{OURS}: send(bytes), JSON checked, id put in, the fate of each by its id; 100 actions a sync",
    ]
    title = "actions until processed, to the released server and to a stub, against the JavaScript client"
    return Row("logux", title, "us/action", lines(samples), verdicts, notes, {"server": got.busy})
