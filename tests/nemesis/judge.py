"""The judgement of a run: violations by the verdict on its ledger and capture, and by its processes."""

from __future__ import annotations

import bisect
import json
import signal
import struct
from pathlib import Path
from typing import Any, NamedTuple

from logclient.files.ledger import read_record, without
from tests.nemesis.scene import Evidence, Life, Strike
from tests.nemesis.schedule import ONE_WAY, Schedule

Tally = dict[str, int]
"""Kind of fault -> count."""

MIB = 1 << 20
RSS = 64 * MIB
"""The most bytes by which a producer may grow: two clients with 8 MiB of events each, and old handlers."""

DESCRIPTORS = 60
"""The most descriptors of a producer: 5 of its own, 12 of each of two clients and an old handler's client,
and the 16 that a client opens for a moment to see whether libzmq can start."""

SPOOL_DESCRIPTORS = 96
"""The same with a spool: each client has a lock, a log, and an engine for what a dead one has left."""

BEFORE_NS = 500_000_000
"""The age at which a snapshot no longer shows the events in flight."""


class Result(NamedTuple):
    """The result of one run, a line of the results file."""

    seed: int
    lane: str
    violations: list[str]
    trouble: str
    """The reason why there is no verdict; empty: there is one."""
    exit_code: int
    counts: dict[str, int]
    snapshots: int
    resent: int
    breaks: int
    """The number of connections that ended."""
    rss: int
    descriptors: int
    strikes: dict[str, int]
    hits: dict[str, int]
    """The strikes with events in flight, by kind."""
    seconds: float

    @property
    def failed(self) -> bool:
        return bool(self.violations)

    def line(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def read(cls, line: str) -> Result:
        return cls(**json.loads(line))

    def text(self) -> str:
        counts = self.counts
        word = "FAILED" if self.violations else "trouble" if self.trouble else "ok"
        some = [f"{n} {name}" for name, n in counts.items() if n and name not in ("events", "ok")]
        head = f"seed {self.seed:4} {self.lane:15} {word:7} {counts.get('events', 0):6} events"
        more = f"{self.breaks} breaks, {self.resent} resent, {self.rss // MIB} MiB, {self.seconds:.1f} s"
        lines = [f"{head}, {more}; {', '.join(some) or 'all ok'}"]
        return "\n".join([*lines, *(f"    {text}" for text in (*self.violations, self.trouble) if text)])


def judge(schedule: Schedule, evidence: Evidence, spark: Any, seconds: float = 0.0) -> Result:
    """Judge the evidence of one run.

    Args:
        schedule: the schedule of the run.
        evidence: the files and processes of the run.
        spark: the session; None: run the verifier's stages in this process.
        seconds: how long the run took.
    """
    verdict = verify(evidence.folder, spark)
    violations = [f"collector: {text}" for text in evidence.collectors]
    for life in evidence.lives:
        violations += [f"{life.name}: {text}" for text in of_process(life, schedule)]
    violations += of_verdict(verdict, evidence, schedule)
    stats = [client for life in evidence.lives for client in (life.report or {}).get("clients", ())]
    strikes, hits = in_flight(evidence.strikes, evidence.lives, schedule.lane in ONE_WAY)
    return Result(
        seed=schedule.seed,
        lane=schedule.lane,
        violations=violations,
        trouble="",
        exit_code=int(verdict.exit_code),
        counts=verdict.counts._asdict(),
        snapshots=sum(life.report["snapshots"] for life in evidence.lives if life.report),
        resent=sum(client["resent"] for client in stats),
        breaks=sum(client["disconnects"] for client in stats),
        rss=max((life.rss for life in evidence.lives), default=0),
        descriptors=max((life.descriptors for life in evidence.lives), default=0),
        strikes=strikes,
        hits=hits,
        seconds=round(seconds, 2),
    )


def verify(folder: Path, spark: Any) -> Any:
    from logclient.verify import job

    # Some producers are killed: a ledger without an end is judged below, by the end of its process.
    out = folder / "verdict"
    given = {"spark": spark, "out": out, "allow_open": True, "max_missing": None, "max_dropped": None}
    return job.run(folder / "ledger", folder / "capture", **given)


# -- processes ---------------------------------------------------------------------------------------


def of_process(life: Life, schedule: Schedule) -> list[str]:
    """Return the violations in a producer's end, its snapshots and its use of the machine."""
    wrong = []
    due = -signal.SIGTERM if schedule.ending == "sigterm" else 0
    if life.code is None:
        wrong.append(f"it hung: {life.said[-3000:]}")
    elif not life.killed and life.code != due:
        wrong.append(f"it ended with {life.code}: {life.said[-3000:]}")
    if "Traceback" in life.said or "Fatal Python error" in life.said:
        wrong.append(f"it wrote: {life.said[-3000:]}")
    if life.rss > RSS:
        wrong.append(f"its memory grew by {life.rss // MIB} MiB")
    if life.descriptors > (SPOOL_DESCRIPTORS if schedule.spooled else DESCRIPTORS):
        wrong.append(f"it had {life.descriptors} descriptors")
    report = life.report
    if report is None:
        if not life.killed and life.code == due:
            wrong.append("it left no report")
        return wrong
    wrong += report["wrong"]
    if report["stuck"]:
        wrong.append(f"threads do not end: {report['stuck']}")
    if report["left"]:
        wrong.append(f"{report['left']} events were given up although the servers were alive")
    if report["callbacks"] and report["callbacks"][0] != report["callbacks"][1]:
        wrong.append(f"{report['callbacks'][1]} of {report['callbacks'][0]} callbacks ran")
    if report["untold"]:
        wrong.append(f"{report['untold']} deliveries have no outcome")
    for child in report["children"]:
        due = -signal.SIGKILL if child["how"] == "kill" else 0
        if child.get("status", "hangs") != due:
            wrong.append(f"a forked child ({child['how']}) ended with {child.get('status', 'hangs')}")
    for client in report["clients"]:
        reasons = {k: n for k, n in client["failed"].items() if k not in ("closed", "forked")}
        if reasons:
            wrong.append(f"failed: {reasons}; last error: {client['last_error']}")
        if client["ledger_error"]:
            wrong.append(f"its ledger stopped: {client['ledger_error']}")
    if schedule.ending == "close":
        left = [name for name in report["threads"] if name.startswith("logclient")]
        if left:
            wrong.append(f"threads are left after close: {left}")
        if report["descriptors"] > 10:
            wrong.append(f"{report['descriptors']} descriptors more than before are open after close")
    return wrong


# -- the verdict -------------------------------------------------------------------------------------


def of_verdict(verdict: Any, evidence: Evidence, schedule: Schedule) -> list[str]:
    counts = verdict.counts
    wrong = [
        f"{getattr(counts, word)} {word}"
        for word in ("lost", "corrupted", "unexpected")
        if getattr(counts, word)
    ]
    if schedule.lane in ONE_WAY and counts.duplicated and not schedule.spooled:
        wrong.append(f"{counts.duplicated} duplicated by a protocol without resends")
    if not verdict.capture["complete"]:
        wrong.append(f"the capture is not whole: {verdict.problems}")
    if schedule.durable:
        wrong += of_accepted(evidence.folder)
        if counts.unknown:
            wrong.append(f"{counts.unknown} unknown, although the spool was drained")
    pids = producer_pids(evidence.folder / "ledger")
    whole = orderly(evidence.lives, schedule)
    for producer in verdict.producers:
        name, of = producer.producer, producer.counts
        if not name and of.unknown:
            wrong.append(f"{of.unknown} arrived without a known producer")
        # With `overflow` a killed process takes along what lay in memory, and its ledger is continued.
        holes = schedule.spooled and not schedule.durable and pids.get(name) not in whole
        if name and producer.ledger not in ("whole", "unclosed", *(["holes"] if holes else [])):
            wrong.append(f"the ledger of {name} was changed ({producer.ledger})")
        if pids.get(name) not in whole:
            continue
        if not producer.closed:
            wrong.append(f"the ledger of {name} has no end, although its process ended normally")
        elif of.unknown:
            wrong.append(f"{of.unknown} unknown of {name}, although its process ended normally")
        if of.missing and schedule.lane not in ONE_WAY:
            wrong.append(f"{of.missing} of {name} never arrived, although its process ended normally")
    return wrong


def of_accepted(folder: Path) -> list[str]:
    """Return the violations in the ledgers of clients that drop nothing: an event without an outcome."""
    wrong = []
    for path in folder.glob("*.told"):
        told = path.read_bytes()
        if len(told) < 32:  # killed before its first event
            continue
        name, (last,) = told[:20].decode(), struct.unpack("=Q", told[24:])
        record = read_record(str(folder / "ledger"), name)
        if left := without([(1, last)] if last else [], record.settled):
            wrong.append(f"{path.stem}: events of {name} were accepted and have no outcome: {left[:5]}")
        if dropped := [reason for status, reason in record.counts if status == "dropped"]:
            wrong.append(f"{path.stem}: events of {name} were accepted and dropped: {dropped}")
    return wrong


def producer_pids(ledger: Path) -> dict[str, int]:
    """Return the process id for each producer, from its ledger, unless others wrote all of it."""
    found = {}
    for path in ledger.glob("*-0001.ledger"):
        with path.open() as file:
            line = file.readline()
        if line.endswith("\n") and "continues" not in (head := json.loads(line)):
            found[path.name[:20]] = int(head["pid"])
    return found


def orderly(lives: list[Life], schedule: Schedule) -> set[int]:
    """Return the processes whose kind of end delivers all events."""
    found = set()
    for life in lives:
        if life.code == 0 and not life.killed:
            found.add(life.pid)
        for child in (life.report or {}).get("children", ()):
            if child["how"] in ("close", "exit") and child.get("status") == 0:
                found.add(child["pid"])
    return found


# -- events in flight----------------------------------------------------------------------------------


def in_flight(strikes: list[Strike], lives: list[Life], one_way: bool) -> tuple[Tally, Tally]:
    """Count the strikes of each kind, and those with events in flight.

    Without acknowledgements, events in flight are those handed to the transport since the previous snapshot,
    and those that wait.
    """
    samples = {life.name: read_samples(life.samples) for life in lives}
    done: Tally = {}
    hits: Tally = {}
    for strike in strikes:
        done[strike.kind] = done.get(strike.kind, 0) + 1
        if any(_busy(samples.get(name, []), strike.at_ns, one_way) for name in strike.producers):
            hits[strike.kind] = hits.get(strike.kind, 0) + 1
    return done, hits


def read_samples(path: Path) -> list[tuple[int, ...]]:
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [tuple(map(int, line.split())) for line in lines if line.count(b" ") == 3]


def _busy(samples: list[tuple[int, ...]], at_ns: int, one_way: bool) -> bool:
    index = bisect.bisect_right(samples, (at_ns, 1 << 60)) - 1
    if index < 0 or at_ns - samples[index][0] > BEFORE_NS:
        return False
    _, inflight, queued, settled = samples[index]
    if inflight:
        return True
    return one_way and (queued > 0 or (index > 0 and settled > samples[index - 1][3]))
