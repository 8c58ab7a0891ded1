"""Schedules of faults, with targets and times, as a pure function of a seed. They are stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.support.patience import PATIENCE

LONG_ENOUGH = 5 * PATIENCE
"""Seconds after which a process counts as hanging, even on a busy machine."""

LANES = (
    "lumberjack",
    "logjam",
    "logux+tls",
    "logjam+push",
    "lumberjack+tls",
    "plog",
    "logux",
)
"""The schemes of producers, in turn: one for each seed."""

ONE_WAY = frozenset(("logjam+push", "plog"))
"""The schemes without acknowledgements."""

SERVERS = ("alpha", "beta")
PRODUCERS = ("one", "two")

NETWORK = ("cut", "stall", "delay", "half-close", "refuse")
PROCESSES = ("kill-collector", "kill-producer", "stop-collector", "stop-producer")
MACHINE = ("descriptors", "clock", "dns", "certificate")
PROGRAM = ("fork", "dictconfig", "signals", "destructors", "callbacks", "burst")
KINDS = NETWORK + PROCESSES + MACHINE + PROGRAM
LINK = ("link-cut", "link-loss", "link-slow", "link-forget")
"""Faults of the emulated link, which only schedules `with_link` have."""

TENTH = 10
"""The interval of seeds at which descriptors are exhausted for `Form.exhausted` seconds."""


class Form(NamedTuple):
    """The size of a run."""

    seconds: float
    """The time in which faults strike, in seconds."""
    events: int
    """The number of events of all producers together."""
    faults: int
    exhausted: float


LONG = Form(seconds=9.0, events=40_000, faults=10, exhausted=20.0)
SHORT = Form(seconds=4.0, events=8_000, faults=8, exhausted=2.0)


class Fault(NamedTuple):
    """One fault of a schedule."""

    at: float
    """The time of the fault, in seconds since all producers send."""
    kind: str
    target: str
    """The target: a server, a producer, or ``all``."""
    seconds: float = 0.0
    """The duration in seconds; 0: none."""
    how: str = ""
    amount: int = 0

    def __str__(self) -> str:
        more = [f"for {self.seconds:g} s"] if self.seconds else []
        more += [self.how] if self.how else []
        more += [str(self.amount)] if self.amount else []
        return f"{self.at:6.2f} s  {self.kind:15} {self.target:6} {', '.join(more)}".rstrip()


class Schedule(NamedTuple):
    """The schedule of one run."""

    seed: int
    lane: str
    seconds: float
    events: int
    options: dict[str, Any]
    """The options of the producers' clients."""
    injected: str
    """The faults of the collectors (see `logclient.testing.faults`)."""
    latency: float
    """The delay of each direction in seconds, so that events are in flight most of the time."""
    ending: str
    """The end of producers: ``close``, ``exit`` or ``sigterm``."""
    faults: tuple[Fault, ...]
    disk: int = 0
    """The size of the spool's file system in MiB; 0: that of the run's folder, which does not become full."""
    link: dict[str, Any] = {}
    """The conditions of the emulated link (`tests.support.networks`) to the servers; empty: there is none."""

    @property
    def spooled(self) -> bool:
        """Whether producers have a spool."""
        return "spool_mode" in self.options

    @property
    def durable(self) -> bool:
        """Whether every event that was accepted outlives its process."""
        return self.options.get("spool_mode") == "always" and not self.disk

    def text(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        head = f"seed {self.seed}: {self.lane}, {self.events} events in {self.seconds:g} s, "
        head += f"latency {self.latency * 1000:g} ms, end by {self.ending}"
        if self.disk:
            head += f", a disk of {self.disk} MiB"
        if self.link:
            head += f", a link with {self.link}"
        injected = self.injected or "collectors without faults of their own"
        return "\n".join([head, f"  {options}", f"  {injected}", *(f"  {fault}" for fault in self.faults)])

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "faults": [fault._asdict() for fault in self.faults]}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Schedule:
        return cls(**{**given, "faults": tuple(Fault(**fault) for fault in given["faults"])})

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Schedule:
        return cls.from_json(json.loads(path.read_text()))


def make(seed: int, form: Form = LONG, lanes: Sequence[str] = LANES) -> Schedule:
    """Make the schedule of a seed, for one of these lanes in turn."""
    random = Random(f"nemesis {seed}")
    lane = lanes[seed % len(lanes)]
    faults = _faults(random, lane, form)
    if seed % TENTH == 0:
        faults = [fault for fault in faults if fault.kind != "descriptors"]
        faults += _exhausted(random, form)
    length = max([form.seconds, *(fault.at + fault.seconds for fault in faults)])
    return Schedule(
        seed=seed,
        lane=lane,
        seconds=round(length, 2),
        events=form.events,
        options=_options(random, lane),
        injected=_injected(random, lane),
        latency=random.choice((0.002, 0.01, 0.03)),
        ending=random.choice(("close", "close", "exit", "sigterm")),
        faults=tuple(sorted(faults)),
    )


def with_spool(made: Schedule) -> Schedule:
    """Return the schedule with a spool for all producers, which are killed more often."""
    random = Random(f"spool {made.seed}")
    mode = random.choice(("overflow", "always", "always"))
    options = {
        "spool_mode": mode,
        "spool_sync": random.choice(("none", "interval", "batch")) if mode == "always" else "none",
        "spool_bytes": random.choice((8 << 20, 32 << 20)),
        "spool_age": 90 * 86_400,  # far more than all jumps of the clock
    }
    kills = [
        Fault(round(random.uniform(0.3, made.seconds - 0.3), 2), "kill-producer", random.choice(PRODUCERS))
        for _ in range(random.randint(1, 4))
    ]
    return made._replace(
        options={**made.options, **options},
        faults=tuple(sorted((*made.faults, *kills))),
        disk=random.choice((6, 14, 40)) if random.random() < 0.2 else 0,
    )


def balanced(made: Schedule) -> Schedule:
    """Return the schedule with ``balance=true`` for all producers, which speak Lumberjack."""
    return made._replace(options={**made.options, "balance": True})


def with_link(made: Schedule) -> Schedule:
    """Return the schedule with an emulated link between producers and servers, and its faults."""
    random = Random(f"link {made.seed}")
    rate, loss = random.choice((0, 1_500_000, 4_000_000)), random.choice((0.0, 0.01, 0.05))
    conditions = {
        "rate": [rate, rate],
        "queue": random.choice((32_768, 500_000)),
        "delay": random.choice((0.001, 0.02, 0.1)),
        "jitter": random.choice((0.0, 0.0, 0.05)),
        "loss": [loss, loss],
    }
    faults = [
        _of_link(random, random.choice(LINK), round(random.uniform(0.3, made.seconds - 0.5), 2))
        for _ in range(random.randint(2, 5))
    ]
    # Logjam's smallest number of requests in flight takes a minute for so many, over the longest link,
    # and the smallest windows of the others take 100 round trips.
    at_once = made.options.get("window", SHORT.events) * made.options.get("inflight", 1)
    most = min(made.events, SHORT.events, 100 * at_once)
    faults += [
        fault._replace(amount=min(fault.amount, most)) if fault.kind == "burst" else fault
        for fault in made.faults
    ]
    return made._replace(link=conditions, events=most, faults=tuple(sorted(faults)))


def _of_link(random: Random, kind: str, at: float) -> Fault:
    long = round(random.uniform(0.5, 4.0), 2)
    match kind:
        case "link-cut":
            return Fault(at, kind, "all", long, how=random.choice(("up", "down", "both")))
        case "link-loss":
            return Fault(at, kind, "all", long, amount=random.choice((10, 30, 60)))
        case "link-slow":
            return Fault(at, kind, "all", long, amount=random.choice((5_000, 30_000, 200_000)))
        case _:
            return Fault(at, kind, "all")


def kinds_of(lane: str) -> list[str]:
    """Return the kinds of faults for a lane."""
    without = set()
    if "tls" not in lane:
        without.add("certificate")
    if lane == "plog":
        without |= {"half-close", "refuse"}
    return [kind for kind in KINDS if kind not in without]


def _faults(random: Random, lane: str, form: Form) -> list[Fault]:
    kinds = kinds_of(lane)
    random.shuffle(kinds)
    kinds = (kinds * 2)[: form.faults]
    # Not in the first and last moments.
    return [_fault(random, kind, round(random.uniform(0.3, form.seconds - 0.5), 2), form) for kind in kinds]


def _fault(random: Random, kind: str, at: float, form: Form) -> Fault:
    server, producer = random.choice(SERVERS), random.choice(PRODUCERS)
    # Clients stay with the first server that works, so most faults target that one.
    server = SERVERS[0] if random.random() < 0.5 else server
    long, brief = round(random.uniform(0.5, 2.5), 2), round(random.uniform(0.1, 1.0), 2)
    match kind:
        case "cut":
            return Fault(at, kind, random.choice((server, "all")), how=random.choice(("fin", "rst")))
        case "stall":
            return Fault(at, kind, server, long, how=random.choice(("up", "down", "both")))
        case "delay":
            return Fault(at, kind, "all", long, amount=random.choice((5, 20, 100, 400)))
        case "half-close":
            return Fault(at, kind, random.choice((server, "all")), how=random.choice(("up", "down")))
        case "refuse":
            return Fault(at, kind, random.choice((server, "all")), brief)
        case "kill-collector":
            return Fault(at, kind, random.choice((server, server, "all")), brief)
        case "stop-collector":
            return Fault(at, kind, server, long)
        case "kill-producer":
            return Fault(at, kind, producer)
        case "stop-producer":
            return Fault(at, kind, producer, long)
        case "descriptors":
            return Fault(at, kind, producer, round(min(brief, form.exhausted), 2))
        case "clock":
            jump = random.choice((-86_400, -3_600, -30, -1, 1, 30, 3_600, 86_400))
            return Fault(at, kind, random.choice(("producers", "servers")), amount=jump)
        case "dns":
            return Fault(at, kind, server, brief, how=random.choice(("move", "gone", "again", "slow")))
        case "certificate":
            return Fault(at, kind, server, brief, how=random.choice(("renew", "authority", "wrong")))
        case "fork":
            how = random.choice(("close", "exit", "kill", "quiet"))
            return Fault(at, kind, producer, how=how, amount=random.randint(1, 3))
        case "signals":
            return Fault(at, kind, producer, brief)
        case "callbacks":
            return Fault(at, kind, producer, amount=random.randint(5, 50))
        case "destructors":
            return Fault(at, kind, producer, amount=random.randint(20, 300))
        case "burst":
            return Fault(at, kind, producer, amount=random.choice((500, 2_000, 5_000)))
        case _:
            return Fault(at, kind, producer)


def _exhausted(random: Random, form: Form) -> list[Fault]:
    """Make faults that use up all descriptors of a producer for long and cut its connection meanwhile."""
    at = round(random.uniform(0.5, 1.5), 2)
    cuts = [round(at + part * form.exhausted, 2) for part in (0.05, 0.5)]
    return [
        Fault(at, "descriptors", random.choice((*PRODUCERS, "all")), form.exhausted),
        *(Fault(when, "cut", "all", how=random.choice(("fin", "rst"))) for when in cuts),
    ]


def _options(random: Random, lane: str) -> dict[str, Any]:
    """Choose options of clients: deadlines short enough for several breaks in a run, and window sizes."""
    options: dict[str, Any] = {
        "backoff_max": 0.2,
        "connect_timeout": 2,
        "silence": 3,
        "progress_timeout": 5,
        "max_age": 600,
        "max_bytes": 8 << 20,
        "max_events": random.choice((2_000, 20_000)),
        "atexit_timeout": LONG_ENOUGH,
        "timeout": LONG_ENOUGH,
    }
    base = lane.partition("+")[0]
    if base == "lumberjack":
        options |= {
            "window": random.choice((10, 50, 200, 2048)),
            "inflight": random.choice((1, 2, 4, 8)),
            "compression": random.choice((0, 3)),
        }
    elif base == "logux":
        options |= {"window": random.choice((10, 100)), "inflight": random.choice((1, 4))}
        options |= {"user": "nemesis", "on_doubt": random.choice(("new_client", "same"))}
    elif lane == "logjam":
        options |= {"inflight": random.choice((16, 256))}
    elif lane == "plog":
        options |= {"mtu": random.choice((1_400, 9_000)), "pace": 0}
    return options


def _injected(random: Random, lane: str) -> str:
    """Choose faults of collectors, without those that lose acknowledged events."""
    if lane == "plog" or random.random() < 0.2:
        return ""
    base = lane.partition("+")[0]
    often = "0.0005" if base == "logjam" else "0.01"
    choices = [
        f"cut-before-write=p:{often}",
        f"cut-before-ack=p:{often}",
        f"cut-after-ack=p:{often}",
        f"stall=p:{often}:max:2",
        f"delay-ack=p:0.1:{random.choice((2, 10, 50))}ms",
    ]
    if base != "logjam":
        choices.append("partial-cut=p:0.02")
    if base == "lumberjack":
        choices += ["partial-ack=p:0.05", "keepalive=p:0.05"]
    picked = random.sample(choices, random.randint(1, 3))
    return ",".join([*picked, f"seed={random.randint(1, 999)}"])
