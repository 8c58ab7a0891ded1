"""A case from a seed: a run, the damage to its files, and the differences of the verdict from two oracles."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.damage import rules
from tests.damage.damages import AFTERWARDS, Evidence
from tests.damage.runs import BEGAN, PROTOCOLS, Fault, Plan, Run, Truth, files_in

MEANWHILE = (
    "nothing",
    "ledger: disk full",
    "ledger: killed",
    "capture: disk full",
    "capture: killed",
    "capture: recovered",
    "capture: resumed",
    "capture: recovered at any byte",
)
"""The kinds of damage while a run is written."""

OTHERS = ("another run's capture", "another run's ledgers", "another run", "another run beside it")

KINDS = (*MEANWHILE, *(kind.name for kind in AFTERWARDS), *OTHERS)

OFF: dict[str, str] = {}
"""Kind -> the reason why no case of it is made now."""

LIMITS = {
    "no part of a ledger is left": "nothing says that this producer was there",
    "a ledger ends at an earlier close line": "it is what the ledger was at that time, and was whole then",
}
"""Facts that are undecidable by docs/verify-rules.md: the second oracle skips them, the first does not."""


class Case(NamedTuple):
    """A case before its judgement."""

    seed: int
    protocol: str
    kind: str
    lying: bool
    evidence: Evidence
    truth: Truth

    def text(self) -> str:
        lying = "lying" if self.lying else "honest"
        return (
            f"{self.protocol} seed {self.seed}: {self.kind} ({lying}): {'; '.join(self.evidence.said) or '-'}"
        )


def make(seed: int, protocol: str, scratch: Path) -> Case:
    """Make a case; `scratch` is an empty folder for the files of its run."""
    rng = random.Random(f"case {seed} {protocol}")
    kinds = [kind for kind in KINDS if kind not in OFF]
    kind = kinds[seed % len(kinds)]
    lying = rng.random() < 0.4
    plan = Plan(
        protocol,
        lying,
        ending=rng.choice(("closed", "closed", "closed", "late", "alive")),
        names=rng.choice((("main",), ("main",), ("main", "other"))),
        most=rng.choice((6, 15, 30)),
    )
    fault = Fault(
        rng.randint(1, 25), rng.choice((0.0, 1.0, rng.random(), rng.random())), False, rng.random() < 0.6
    )
    if kind == "ledger: disk full":
        plan = plan._replace(faults=(("ledger", fault),))
    elif kind == "ledger: killed":
        plan = plan._replace(faults=(("ledger", fault._replace(kill=True)),))
    elif kind == "capture: disk full":
        plan = plan._replace(faults=(("capture", fault._replace(lasts=rng.choice((1, 1, 3)))),))
    elif kind == "capture: killed":
        plan = plan._replace(faults=(("capture", fault._replace(kill=True)),))
    elif kind == "capture: recovered at any byte":
        plan = plan._replace(faults=(("capture", fault._replace(kill=True)),), restarts="killed")
    elif kind in ("capture: recovered", "capture: resumed"):
        plan = plan._replace(restarts="killed" if kind.endswith("recovered") else "closed")
    ledgers, capture = scratch / "ledger", scratch / "capture"
    truth = Truth()
    if kind in OTHERS:
        # Before our run, in the same folders or in separate folders.
        beside = kind == "another run beside it"
        earlier = Plan(
            protocol,
            names=("elsewhere",) if beside else plan.names,
            port=6000,
            began=BEGAN - 3_600_000_000,
            run="run-0",
            most=12,
        )
        theirs = scratch / "their-ledger"
        place = scratch / "their-capture" if kind == "another run's ledgers" else capture
        other = Run(f"{seed} {protocol} other", earlier, theirs, place)
        if kind != "another run's capture":
            ledgers.mkdir()
            for path in theirs.iterdir():
                path.rename(ledgers / path.name)
            truth.add(other.truth)
    run = Run(f"{seed} {protocol}", plan, ledgers, capture)
    truth.add(run.truth)
    evidence = Evidence(files_in(ledgers), files_in(capture), rng)
    for one in AFTERWARDS:
        if one.name == kind and evidence.parts() and evidence.segments():
            one.act(evidence)
    return Case(seed, protocol, kind, lying, evidence, truth)


class Judged(NamedTuple):
    """The result of a case."""

    seed: int
    protocol: str
    kind: str
    exit_code: int  # -1: refused, because there was no ledger or no capture
    wrong: list[str]
    text: str


Verify = Callable[[Path, Path], Any]
"""The product: takes the folders of a ledger and a capture, and returns the verdict."""


def judge(seed: int, protocol: str, verify: Verify) -> Judged:
    """Make a case, let the product judge it, and compare with the oracles."""
    with tempfile.TemporaryDirectory(prefix="logclient-damage-") as folder:
        scratch = Path(folder)
        case = make(seed, protocol, scratch / "run")
        ledger, capture = scratch / "ledger", scratch / "capture"
        write(ledger, case.evidence.ledger)
        write(capture, case.evidence.capture)
        try:
            expected = rules.judge(case.evidence.ledger, case.evidence.capture, protocol)
        except rules.Nothing:
            expected = None
        from logclient.errors import LedgerError

        try:
            verdict = verify(ledger, capture)
        except LedgerError as error:
            wrong = [] if expected is None else [f"refused: {error}"]
            return Judged(seed, protocol, case.kind, -1, wrong, case.text())
        wrong = differences(expected, verdict) if expected else ["there is nothing, and yet a verdict"]
        wrong += untrue(case, verdict)
        if wrong:
            wrong += [f"  the product: {text}" for text in (verdict.sentence, *verdict.problems[:6])]
        return Judged(seed, protocol, case.kind, int(verdict.exit_code), wrong, case.text())


def write(folder: Path, found: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, data in found.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def differences(expected: rules.Result, verdict: Any) -> list[str]:
    """Return the differences of the verdict from the rules."""
    wrong = []
    if int(verdict.exit_code) != expected.exit_code:
        wrong.append(f"exit code {int(verdict.exit_code)}, the rules say {expected.exit_code}")
    for what, has, due in (
        ("the ledgers are whole", verdict.ledger["complete"], expected.ledger_complete),
        ("the capture is whole", verdict.capture["complete"], expected.capture_complete),
    ):
        if has != due:
            wrong.append(f"{what}: {has}, the rules say {due}")
    found = {x.producer: x for x in verdict.producers}
    for name, counts in expected.counts.items():
        has = {word: n for word, n in found[name].counts._asdict().items() if n} if name in found else {}
        if has != counts:
            wrong.append(f"{name or 'no producer'}: {has}, the rules say {counts}")
    for name, state in expected.ledgers.items():
        if name not in found or found[name].ledger != state:
            wrong.append(f"{name}: {getattr(found.get(name), 'ledger', None)}, the rules say {state}")
    if set(found) - {""} != set(expected.ledgers):
        wrong.append(f"producers {sorted(found)}, the rules say {sorted(expected.ledgers)}")
    return wrong


def untrue(case: Case, verdict: Any) -> list[str]:
    """Return the differences of the verdict from the truth."""
    if case.evidence.limits:
        assert case.evidence.limits <= LIMITS.keys()
        return []
    if verdict.exit_code == 0 and case.truth.lost:
        return [f"FALSE GREEN: {case.truth.lost} acknowledged events did not arrive"]
    if verdict.exit_code == 1 and not case.truth.broken:
        return [f"FALSE RED: {', '.join(verdict.broken)}, and nothing was broken"]
    return []


__all__ = ["KINDS", "LIMITS", "OFF", "PROTOCOLS", "Case", "Judged", "judge", "make"]
