"""``logclient demo``: the whole way, three times, and the proof that the verifier can be believed.

An *honest* run ships log lines to a collector that cuts connections at the worst moments;
nothing may be lost, and what was resent must be counted to the event. Where there are no connections
and no acknowledgements (plog), a bad network drops datagrams and doubles others, and the verdict must
name each event that is missing for that. Then two *liars*: collectors that throw away what they took,
or tamper with what they keep. They write down whom they cheated; the verifier, in a process of its own,
never sees that file. Afterwards its findings are compared with it, id by id.

Every collector is a process of its own, and so is the verifier, which judges one run after another in one
Spark session. A further protocol is a row in ``PROTOCOLS``.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from logclient.cli import Progress
from logclient.errors import ConfigError, ConnectFailed, ExitCode, LogclientError, MissingExtra
from logclient.samples import Line, choose

if TYPE_CHECKING:
    from logclient.handler import Handler

__all__ = ["run"]

_MARKER = ".logclient-demo"  # in every folder that the next demo may delete
_PROGRESS_S = 0.1
_STALLED_S = 60.0
_LIFE_S = 1800.0  # of a collector whose demo was killed
_START_S = 30.0  # for a collector to listen
_STOP_S = 30.0  # ... and to write its last record
_VERIFY_S = 900.0

#: What a liar or the network does, and under which word the verdict must show it; what nobody has
#: acknowledged is missing, not lost.
_FOUND_AS = {
    "drop": "missing",
    "discard": "lost",
    "swap": "reordered",
    "duplicate": "duplicated",
    "corrupt": "corrupted",
    "add": "unexpected",
}
_WORDS = (
    "ok",
    "lost",
    "missing",
    "recovered",
    "duplicated",
    "unexpected",
    "corrupted",
    "reordered",
    "dropped",
    "unknown",
)
_NAMED = ("lost", "missing", "duplicated", "unexpected", "corrupted", "reordered")  # sets of ids are compared


class Part(NamedTuple):
    """One run of a protocol. Units are small enough for the faults to have something to hit."""

    name: str
    liar: bool
    faults: str  # {seventh} and so on: that share of the wire units expected
    handlers: int  # clients that are a logging.Handler, fed by several threads each
    senders: int  # clients fed by client.send
    unit: int  # events in a wire unit
    least: int  # events per client at least, whatever --events says


class Protocol(NamedTuple):
    name: str
    listen: str
    path: str  # of the clients' URLs
    unit: str  # the option that says how many events are in a wire unit; empty: always one
    unit_name: str
    acks: bool  # whether servers acknowledge; else events are handed over, and a network may lose them
    parts: tuple[Part, ...]


_THREADS = 4  # per Handler

PROTOCOLS = (
    Protocol(
        "lumberjack",
        listen="lumberjack://127.0.0.1:0",
        path="",
        unit="window",
        unit_name="windows",
        acks=True,
        parts=(
            Part(
                "lumberjack-honest",
                liar=False,
                # After the write and before the ack (these make the duplicates), before the write,
                # after the ack; and acks that are late. All over the run, not at its beginning.
                faults="cut-before-ack=every:{seventh}:max:5,cut-before-write=every:{third}:max:2,"
                "cut-after-ack=every:{half}:max:1,delay-ack=p:0.05:20ms,seed=1",
                handlers=1,
                senders=1,
                unit=1000,
                least=20_000,
            ),
            Part(
                "lumberjack-discards",
                liar=True,
                faults="discard=every:5:max:8:per-connection,seed=2",
                handlers=1,
                senders=2,
                unit=200,
                least=10_000,
            ),
            Part(
                "lumberjack-tampers",
                liar=True,
                faults="swap=every:9:max:1,duplicate=every:14:max:1,corrupt=every:19:max:1,add=every:24:max:1,seed=3",
                handlers=1,
                senders=2,
                unit=200,
                least=10_000,
            ),
        ),
    ),
    Protocol(
        "logjam",
        listen="logjam://127.0.0.1:0",
        path="/demo-production",
        unit="",
        unit_name="messages",
        acks=True,
        parts=(
            Part(
                "logjam-honest",
                liar=False,
                faults="cut-before-ack=every:{seventh}:max:5,cut-before-write=every:{third}:max:2,"
                "cut-after-ack=every:{half}:max:1,delay-ack=p:0.001:20ms,seed=4",
                handlers=1,
                senders=1,
                unit=1,
                least=10_000,
            ),
            Part(
                "logjam-discards",
                liar=True,
                faults="discard=every:500:max:8:per-connection,seed=5",
                handlers=1,
                senders=2,
                unit=1,
                least=5_000,
            ),
            Part(
                "logjam-tampers",
                liar=True,
                faults="swap=every:900:max:5,duplicate=every:1400:max:5,corrupt=every:1900:max:5,"
                "add=every:2400:max:5,seed=6",
                handlers=1,
                senders=2,
                unit=1,
                least=5_000,
            ),
        ),
    ),
    Protocol(
        "plog",
        # Small datagrams, so that there are messages of several fragments.
        listen="plog://127.0.0.1:0",
        path="?mtu=600",
        unit="",
        unit_name="datagrams",
        acks=False,
        parts=(
            Part(
                "plog-honest",
                liar=False,
                faults="drop=p:0.01,duplicate=p:0.01,seed=7",
                handlers=1,
                senders=2,
                unit=1,
                least=10_000,
            ),
            Part(
                "plog-discards",
                liar=True,
                faults="discard=every:500:max:8:per-connection,seed=8",
                handlers=1,
                senders=2,
                unit=1,
                least=5_000,
            ),
            Part(
                "plog-tampers",
                liar=True,
                faults="swap=every:900:max:5,duplicate=every:1400:max:5,corrupt=every:1900:max:5,"
                "add=every:2400:max:5,seed=9",
                handlers=1,
                senders=2,
                unit=1,
                least=5_000,
            ),
        ),
    ),
    Protocol(
        "logux",
        listen="logux://127.0.0.1:0",
        path="",
        unit="window",
        unit_name="syncs",
        acks=True,
        parts=(
            Part(
                "logux-honest",
                liar=False,
                # With partial-cut the server says of some actions what became of them, and of others nothing.
                faults="cut-before-ack=every:{seventh}:max:5,cut-before-write=every:{third}:max:2,"
                "partial-cut=every:300:max:2,cut-after-ack=every:{half}:max:1,"
                "delay-ack=p:0.05:20ms,seed=10",
                handlers=1,
                senders=1,
                unit=100,
                least=20_000,
            ),
            Part(
                "logux-discards",
                liar=True,
                faults="discard=every:5:max:8:per-connection,seed=11",
                handlers=1,
                senders=2,
                unit=100,
                least=5_000,
            ),
            Part(
                "logux-tampers",
                liar=True,
                faults="swap=every:9:max:1,duplicate=every:14:max:1,corrupt=every:19:max:1,add=every:24:max:1,"
                "seed=12",
                handlers=1,
                senders=2,
                unit=100,
                least=5_000,
            ),
        ),
    ),
)


#: (ledger, a folder for what is found, what arrived and what is asked) -> (exit code, counts by word).
#: The third holds arguments of `logclient.verify.job.run`.
Verify = Callable[[Path, Path, Mapping[str, Any]], tuple[int, dict[str, Any]]]


class Result(NamedTuple):
    """What came of one run; ``troubles`` are the reasons why it did not go as it must."""

    part: Part
    protocol: str
    sent: int
    collector: dict[str, Any]
    verdict: dict[str, Any]
    exit: int
    caught: bool
    troubles: list[str]
    sentence: str
    report: Path


def _say(text: str = "") -> None:
    """A line for whoever watches: at once, so that it stands where it belongs among those on stderr."""
    print(text, flush=True)


def run(
    inputs: Sequence[str] = (),
    events: int = 200_000,
    out: str = "logclient-demo",
    verify: Verify | None = None,
    kafka: str | None = None,
    packages: str | None = None,
) -> int:
    """The demo; an `ExitCode`: OK when every run went as it must.

    Args:
        inputs: Log files; none: the text logs in /var/log, else generated lines.
        events: how many the honest run sends. A liar's run sends what it needs to lie to.
        out: a folder for captures, ledgers, reports and verdict.json.
        verify: who judges, in place of a `Verifier`; for tests.
        kafka: HOST:PORT of a broker: what plog's collector receives goes there, and is judged by its topics.
        packages: as for ``logclient verify``.

    Raises:
        ConfigError: no log lines, or `out` holds what is not a demo's.
        MissingExtra: what verify needs is not installed.
    """
    if verify is None:
        _extras()  # or it would be told only after the first run
    folder = Path(out)
    lines, source = choose(inputs)
    parts = [(protocol, part) for protocol in PROTOCOLS for part in protocol.parts]
    for _, part in parts:
        _clear(folder / part.name)
    _say(f"{len(lines):,} log lines from {source}, repeated as needed; everything goes to {folder}")
    begun = time.monotonic()
    with ExitStack() as stack:
        if verify is None:
            # Spark starts while the first events are on their way.
            verify = stack.enter_context(Verifier(folder / "verify.log", _packages(kafka, packages))).verify
        results = [
            _run(protocol, part, lines, events, folder / part.name, verify, kafka) for protocol, part in parts
        ]
    _write_verdict(folder / "verdict.json", results)
    _say()
    _say(_tables(results))
    _say()
    for result in results:
        _say(f"{result.part.name}: {result.sentence}")
        for trouble in result.troubles:
            _say(f"  NOT AS IT MUST BE: {trouble}")
    _say()
    for result in results:
        _say(f"report: {result.report}")
    _say(f"verdict: {folder / 'verdict.json'} ({time.monotonic() - begun:.0f}s in all)")
    return ExitCode.BROKEN if any(result.troubles for result in results) else ExitCode.OK


def _extras() -> None:
    from importlib.util import find_spec

    for module, extra in (
        ("pyspark", "verify"),
        ("pyarrow", "verify"),
        ("numpy", "verify"),
        ("zmq", "logjam"),
        ("websockets", "logux"),
    ):
        if find_spec(module) is None:
            raise MissingExtra(module, extra)


def _packages(kafka: str | None, packages: str | None) -> str | None:
    """What Spark's JVM must bring to read a topic."""
    from logclient.verify import job

    return (packages or job.connector()) if kafka is not None else None


# -- one run


def _clear(folder: Path) -> None:
    """A fresh folder; one that an earlier demo left is deleted, any other is refused."""
    if folder.exists() and not (folder / _MARKER).exists():
        if not folder.is_dir() or any(folder.iterdir()):
            raise ConfigError(f"out: {folder} exists and is not a demo's")
    elif folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()


def _run(
    protocol: Protocol,
    part: Part,
    lines: list[Line],
    events: int,
    folder: Path,
    verify: Verify,
    kafka: str | None,
) -> Result:
    clients = part.handlers + part.senders
    wanted = clients * part.least if part.liar else max(events, clients * part.least)
    ledger, capture, checked = folder / "ledger", folder / "capture", folder / "verify"
    units = wanted // part.unit
    faults = part.faults.format(seventh=units // 7, third=units // 3, half=units // 2)
    _say(f"\n{part.name}")
    listen = protocol.listen
    asked: dict[str, Any] = {"capture": str(capture)}
    if kafka is not None and protocol.name == "plog":
        topic = f"{part.name}-{os.urandom(4).hex()}"  # nothing of an earlier demo is in it
        listen += f"?kafka={kafka}&kafka_topic={topic}"
        asked = {"kafka": f"{kafka}/{topic}"}
    # The witness lies where no argument of the verifier points to, until the verdict is there.
    with tempfile.TemporaryDirectory(prefix="logclient-witness-") as apart:
        witness = Path(apart) / "witness.jsonl"
        tells = part.liar or not protocol.acks
        with Collector(listen, faults, tells, capture, witness, folder) as collector:
            _ship(collector.url + protocol.path, protocol, part, lines, wanted, ledger, folder / "client.log")
            counts = collector.stop()
        if part.liar and not protocol.acks:
            # Nobody promised that what was handed over arrives: a liar breaks what is asked of it.
            asked["max_missing"] = 0
        code, verdict = verify(ledger, checked, asked)
        lied = read_witness(witness) if tells else {}
        if tells:
            shutil.copy(witness, folder / "witness.jsonl")
    if part.liar:
        troubles = judge_liar(protocol, code, verdict, read_violations(checked), lied, counts, faults)
    elif protocol.acks:
        troubles = judge_honest(code, verdict, counts, wanted)
    else:
        troubles = judge_network(protocol, code, verdict, read_violations(checked), lied, counts, wanted)
    return Result(
        part,
        protocol.name,
        wanted,
        counts,
        verdict,
        code,
        part.liar and not troubles,
        troubles,
        _sentence(protocol, part, wanted, verdict, counts, lied, caught=not troubles),
        checked / "report.html",
    )


def _ship(
    url: str, protocol: Protocol, part: Part, lines: list[Line], events: int, ledger: Path, log: Path
) -> None:
    """Send `events` events, wait until each is acknowledged; the clients complain to the file `log`."""
    from logclient.client import connect
    from logclient.handler import Handler

    # Nothing is dropped by policy: whoever is too fast waits.
    options: dict[str, Any] = {"overflow": "block", "ledger": str(ledger)}
    if protocol.unit:
        options[protocol.unit] = part.unit
    clients: list[Any] = []
    handlers: list[Handler] = []
    threads: list[threading.Thread] = []
    troubles: list[BaseException] = []

    def start(feed: Callable[[int, int], None], first: int, count: int) -> None:
        def work() -> None:
            try:
                feed(first, count)
            except BaseException as error:
                troubles.append(error)

        threads.append(threading.Thread(target=work, name=f"demo-{len(threads)}", daemon=True))

    shares = _shares(events, part.handlers + part.senders)
    first = 0
    for index in range(part.handlers):
        handler = Handler(url, **options)
        handlers.append(handler)
        clients.append(handler.client)
        for count in _shares(shares[index], _THREADS):
            feed = _request_feed if hasattr(handler.client, "request") else _logger_feed
            start(feed(handler, lines, len(threads)), first, count)
            first += count
    for index in range(part.senders):
        client = connect(url, **options)
        clients.append(client)
        start(_send_feed(client, lines), first, shares[part.handlers + index])
        first += shares[part.handlers + index]

    complaints = logging.FileHandler(log, encoding="utf-8")
    logging.getLogger("logclient").addHandler(complaints)
    begun = time.monotonic()
    try:
        for thread in threads:
            thread.start()
        _wait(clients, threads, events, part)
        if troubles:
            raise troubles[0]
        stats = [client.stats() for client in clients]
        took = time.monotonic() - begun
        if protocol.acks:
            acked, resent = (sum(getattr(one, name) for one in stats) for name in ("acked", "resent"))
            fates = f"{acked:,} acknowledged, {resent:,} resent"
        else:
            fates = f"{sum(one.handed for one in stats):,} handed over"
        _say(f"  shipped {events:,} events in {took:.1f}s: {fates}")
    finally:
        for handler in handlers:
            handler.close()
        for client in clients:
            client.close(timeout=5.0)
        logging.getLogger("logclient").removeHandler(complaints)
        complaints.close()


def _shares(total: int, parts: int) -> list[int]:
    return [total // parts + (index < total % parts) for index in range(parts)]


def _logger_feed(handler: logging.Handler, lines: list[Line], number: int) -> Callable[[int, int], None]:
    logger = logging.Logger(f"demo.thread-{number}", logging.DEBUG)
    logger.addHandler(handler)

    def feed(first: int, count: int) -> None:
        for index in range(first, first + count):
            line = lines[index % len(lines)]
            logger.log(line.level, "%s", line.text, extra={"log.file.path": line.file})

    return feed


def _request_feed(handler: Handler, lines: list[Line], number: int) -> Callable[[int, int], None]:
    """Requests of an application that logs: each is an event, with three lines in it."""
    logger = logging.Logger(f"demo.thread-{number}", logging.DEBUG)
    logger.addHandler(handler)
    client: Any = handler.client

    def feed(first: int, count: int) -> None:
        for index in range(first, first + count):
            with client.request(f"Demo::Thread{number}#line"):
                for line in (lines[(index + step) % len(lines)] for step in range(3)):
                    logger.log(line.level, "%s", line.text)

    return feed


def _send_feed(client: Any, lines: list[Line]) -> Callable[[int, int], None]:
    def feed(first: int, count: int) -> None:
        for index in range(first, first + count):
            line = lines[index % len(lines)]
            client.send({"message": line.text, "log.file.path": line.file, "log.file.line": index})

    return feed


def _wait(clients: list[Any], threads: list[threading.Thread], events: int, part: Part) -> None:
    """Until every thread is done and every event has its fate.

    Raises:
        ConnectFailed: nothing moved for a minute.
    """
    progress = Progress()
    moved, since = -1, time.monotonic()
    while True:
        alive = [thread for thread in threads if thread.is_alive()]
        left = 0
        if alive:
            alive[0].join(_PROGRESS_S)
        else:
            left = sum(client.flush(timeout=_PROGRESS_S) for client in clients)
        stats = [client.stats() for client in clients]
        done = sum(one.acked + one.handed for one in stats)
        progress.show(f"  {done:,} of {events:,} delivered")
        now = time.monotonic()
        if done != moved:
            moved, since = done, now
        if not alive and not left:
            progress.done()
            return
        if now - since > _STALLED_S:
            progress.done()
            why = next((str(one.last_error) for one in stats if one.last_error), "no error was seen")
            raise ConnectFailed(f"{part.name}: nothing moved for {_STALLED_S:g}s: {why}")


# -- processes


class _Process:
    """A module in a process of its own that tells lines of JSON. A context manager, which ends it."""

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        self._log = log
        self._errors: IO[bytes] = open(log, "wb")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self._told: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="demo-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            self._told.put(json.loads(raw))
        self._told.put(None)  # it has ended: nobody need wait any longer

    def _next(self, timeout: float) -> dict[str, Any] | None:
        """What it tells next; None when it has ended.

        Raises:
            queue.Empty: nothing in that time.
        """
        return self._told.get(timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            assert file is not None
            file.close()


class Collector(_Process):
    """A collector in a process of its own."""

    def __init__(
        self, listen: str, faults: str, tells: bool, capture: Path, witness: Path, folder: Path
    ) -> None:
        arguments = ["collect", listen, "--capture", str(capture), "--faults", faults, "--json"]
        arguments += ["--for", f"{_LIFE_S:g}s"]
        if tells:
            arguments += ["--witness", str(witness)]
        super().__init__(folder / "collector.log", "logclient", *arguments)
        self.url = ""

    def __enter__(self) -> Self:
        ready = None
        with suppress(queue.Empty):
            ready = self._next(_START_S)
        if ready is None:
            self.__exit__()
            raise ConnectFailed(f"collector: did not start: {_tail(self._log)}")
        self.url = ready["url"]
        return self

    def stop(self) -> dict[str, Any]:
        """Let it write its last record; its counts."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise LogclientError(f"collector: did not stop within {_STOP_S:g}s") from None
        counts = self._next(_STOP_S)
        if self._process.returncode or counts is None:
            raise LogclientError(f"collector: ended with {self._process.returncode}: {_tail(self._log)}")
        return counts


class Verifier(_Process):
    """The verifier, in a process that is told about nothing but ledgers and where things arrived.

    Args:
        log: a file for what goes wrong.
        packages: as for ``logclient verify``.
    """

    def __init__(self, log: Path, packages: str | None = None) -> None:
        super().__init__(log, "logclient.verify.service", *([packages] if packages else []))

    def verify(self, ledger: Path, checked: Path, asked: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """One verdict: the exit code and the counts; see `Verify`.

        Raises:
            LogclientError: there is none.
        """
        progress = Progress()
        begun = time.monotonic()
        request = {"ledger": str(ledger), "out": str(checked), **asked}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and told why
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        while True:
            try:
                answer = self._next(_PROGRESS_S) or {"error": f"it ended: {_tail(self._log)}"}
                break
            except queue.Empty:
                taken = time.monotonic() - begun
                progress.show(f"  Spark is judging, {taken:.0f}s")
                if taken > _VERIFY_S:
                    answer = {"error": f"not done after {_VERIFY_S:g}s"}
                    break
        progress.done()
        if "error" in answer:
            raise LogclientError(f"verify: {answer['error']}")
        _say(f"  verify ended with {answer['exit']} after {time.monotonic() - begun:.1f}s")
        return answer["exit"], answer["counts"]

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(_STOP_S)  # it ends Spark, and deletes what is temporary
        super().__exit__(*exception)


def _tail(log: Path) -> str:
    """The last line that says something."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


# -- the judgement


def read_witness(path: Path) -> dict[str, list[list[str]]]:
    """What the liar wrote down: fault -> the ids of each time."""
    lied: dict[str, list[list[str]]] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            lied.setdefault(entry["fault"], []).append(entry["ids"])
    return lied


def read_violations(checked: Path) -> dict[str, set[str]]:
    """The verifier's findings: word -> ids."""
    from logclient.verify import violations

    found: dict[str, set[str]] = {word: set() for word in _NAMED}
    for word, event_id in violations(checked):
        found.setdefault(word, set()).add(event_id)
    return found


def judge_honest(code: int, verdict: dict[str, Any], counts: dict[str, Any], sent: int) -> list[str]:
    """Why an honest run is not as it must be; empty: it is."""
    troubles = []
    if code != ExitCode.OK:
        troubles.append(f"verify ended with {code}, must be 0")
    if verdict["ok"] != sent:
        troubles.append(f"ok is {verdict['ok']}, must be all {sent}")
    troubles += [
        f"{word} is {verdict[word]}, must be 0"
        for word in ("lost", "missing", "unexpected", "corrupted", "reordered", "dropped", "unknown")
        if verdict[word]
    ]
    if counts["cuts"] < 5:
        troubles.append(f"{counts['cuts']} cuts, must be at least 5")
    if counts["cuts_before_ack"] < 2:
        troubles.append(f"{counts['cuts_before_ack']} cuts between write and ack, must be at least 2")
    if not verdict["duplicated"]:
        troubles.append("nothing was duplicated: no resend was put to the test")
    if verdict["duplicated"] != counts["copies"]:
        troubles.append(f"duplicated is {verdict['duplicated']}, the collector counted {counts['copies']}")
    return troubles


def _compared(
    protocol: Protocol,
    verdict: dict[str, Any],
    found: dict[str, set[str]],
    lied: dict[str, list[list[str]]],
) -> list[str]:
    """Where the ids that were found are not those that were written down."""
    troubles = []
    truth: dict[str, set[str]] = {word: set() for word in _NAMED}
    for fault, times in lied.items():
        word = "missing" if fault == "discard" and not protocol.acks else _FOUND_AS[fault]
        for ids in times:
            truth[word].update(ids)
    for word in _NAMED:
        if found[word] != truth[word]:
            troubles.append(
                f"{word}: {len(found[word])} ids found, {len(truth[word])} written down, "
                f"{len(found[word] & truth[word])} of them the same"
            )
        if verdict[word] != len(found[word]):
            troubles.append(f"{word} is {verdict[word]}, but {len(found[word])} ids are listed")
    troubles += [f"{word} is {verdict[word]}, must be 0" for word in ("dropped", "unknown") if verdict[word]]
    return troubles


def _kernel(counts: dict[str, Any]) -> list[str]:
    """What the kernel dropped is nobody's lie, and would be in the verdict all the same."""
    dropped = counts.get("kernel_drops")
    return [f"the kernel dropped {dropped} datagrams of its own: run it again"] if dropped else []


def judge_network(
    protocol: Protocol,
    code: int,
    verdict: dict[str, Any],
    found: dict[str, set[str]],
    lied: dict[str, list[list[str]]],
    counts: dict[str, Any],
    sent: int,
) -> list[str]:
    """Why a run over a bad network is not as it must be; empty: each event that it cost was named."""
    troubles = _kernel(counts)
    if code != ExitCode.OK:
        troubles.append(f"verify ended with {code}, must be 0")
    troubles += _compared(protocol, verdict, found, lied)
    if verdict["ok"] + verdict["missing"] != sent:
        troubles.append(f"ok and missing are {verdict['ok'] + verdict['missing']}, must be all {sent}")
    for word in ("missing", "duplicated"):
        if verdict[word] < 100:
            troubles.append(f"{word} is {verdict[word]}, must be at least 100 for anything to be at stake")
    return troubles


def judge_liar(
    protocol: Protocol,
    code: int,
    verdict: dict[str, Any],
    found: dict[str, set[str]],
    lied: dict[str, list[list[str]]],
    counts: dict[str, Any],
    planned: str,
) -> list[str]:
    """Why a liar counts as not caught; empty: every id it wrote down was found, and no other."""
    troubles = []
    if code != ExitCode.BROKEN:
        troubles.append(f"verify ended with {code}, must be 1")
    if counts.get("cuts"):
        troubles.append(f"{counts['cuts']} cuts, must be none")
    troubles += _kernel(counts)
    troubles += _compared(protocol, verdict, found, lied)
    # Whether there was enough at stake.
    for fault in _FOUND_AS:
        if f"{fault}=" in planned and not lied.get(fault):
            troubles.append(f"{fault}: never happened")
    discards = lied.get("discard")
    if discards:
        connections = len({event_id[:20] for ids in discards for event_id in ids})
        largest = max(map(len, discards))
        if len(discards) < 20 or connections < 3 or largest > 200:
            troubles.append(
                f"discarded {len(discards)} units of up to {largest} events over {connections} connections, "
                "must be 20 of at most 200 over 3"
            )
    return troubles


def _events(lied: dict[str, list[list[str]]], fault: str) -> int:
    """How many events it struck."""
    return len({event_id for ids in lied.get(fault, ()) for event_id in ids})


def _sentence(
    protocol: Protocol,
    part: Part,
    sent: int,
    verdict: dict[str, Any],
    counts: dict[str, Any],
    lied: dict[str, list[list[str]]],
    caught: bool,
) -> str:
    if not part.liar and not protocol.acks:
        return (
            f"the network dropped {_events(lied, 'drop'):,} of {sent:,} events "
            f"and doubled {_events(lied, 'duplicate'):,}: "
            + ("each of them was named, and no other." if caught else "NOT found to the event.")
        )
    if not part.liar:
        return (
            f"{counts['cuts']} connections were cut ({counts['cuts_before_ack']} between write and ack): "
            f"{verdict['lost']:,} of {sent:,} events were lost, "
            f"{verdict['duplicated']:,} copies arrived besides "
            f"(the collector counted {counts['copies']:,})."
        )
    did = {
        "discard": "acknowledged {} and threw them away" if protocol.acks else "threw {} away",
        "swap": "swapped {} with the next ones",
        "duplicate": "kept {} twice",
        "corrupt": "flipped a byte of {}",
        "add": "invented {}",
    }
    deeds = []
    for fault, times in lied.items():
        events = sum(map(len, times))
        units = f" in {len(times)} {protocol.unit_name}" if events > len(times) > 1 else ""
        deeds.append(did[fault].format(f"{events:,} event{'s' if events > 1 else ''}{units}"))
    end = "every one was found, and nothing else." if caught else "NOT found to the event."
    return f"the collector {', '.join(deeds)}; {end}"


# -- what the user gets


def _tables(results: list[Result]) -> str:
    """A table a protocol, a run a column: narrow enough for any terminal."""
    tables = []
    for protocol in dict.fromkeys(result.protocol for result in results):
        mine = [result for result in results if result.protocol == protocol]
        rows = [
            ["", *(result.part.name for result in mine)],
            ["sent", *(f"{result.sent:,}" for result in mine)],
            *([word, *(f"{result.verdict[word]:,}" for result in mine)] for word in _WORDS),
            ["connections cut", *(str(result.collector.get("cuts", 0)) for result in mine)],
            ["exit code of verify", *(str(result.exit) for result in mine)],
            ["as it must be", *("NO" if result.troubles else "yes" for result in mine)],
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in rows
        ]
        lines.insert(1, "-" * len(lines[0]))
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _write_verdict(path: Path, results: list[Result]) -> None:
    runs = [
        {
            "name": result.part.name,
            "protocol": result.protocol,
            "liar": result.part.liar,
            "events": result.sent,
            **{word: result.verdict[word] for word in _WORDS},
            "cuts": result.collector.get("cuts", 0),
            "cuts_before_ack": result.collector.get("cuts_before_ack", 0),
            "collector_duplicated": result.collector["copies"],
            "exit": result.exit,
            "caught": result.caught,
            "troubles": result.troubles,
            "report": str(result.report),
        }
        for result in results
    ]
    text = json.dumps({"runs": runs}, indent=2) + "\n"
    # Whole or not at all: whoever reads it must not find an older run's figures beside new ones.
    fresh = path.with_suffix(".tmp")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
