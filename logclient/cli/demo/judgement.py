"""Decide whether a run of the demo went as expected: compare the verdict with the collector's fault log.

The functions that judge return the deviations, as messages. They take from verify its exit code, its counts
(``verdict``) and the ids that it lists (``found``), by word; and from the collector its counts, and the
faults that were ``planned`` and that happened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from logclient.cli.demo.scenarios import Protocol
from logclient.errors import ExitCode

FaultLog = dict[str, list[list[str]]]
"""The faults that happened: for each kind of fault, the ids of the events at each occurrence."""

FOUND_AS = {
    "drop": "missing",
    "discard": "lost",
    "swap": "reordered",
    "duplicate": "duplicated",
    "corrupt": "corrupted",
    "add": "unexpected",
}
"""The word of the verdict for each fault. Events discarded without acknowledgement are missing, not lost."""

NAMED = ("lost", "missing", "duplicated", "unexpected", "corrupted", "reordered")
"""The words whose ids are compared with the fault log."""

_LEAST_NAMED = 100
"""The least number of lost events, and of duplicated ones, with which a run over a bad network counts."""


def read_fault_log(path: Path) -> FaultLog:
    """Read the file in which a collector lists the events that its faults changed."""
    faults: FaultLog = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            faults.setdefault(entry["fault"], []).append(entry["ids"])
    return faults


def read_violations(out: Path) -> dict[str, set[str]]:
    """Read the ids that the verifier lists, by word."""
    from logclient.verify import violation_ids

    found: dict[str, set[str]] = {word: set() for word in NAMED}
    for word, event_id in violation_ids(out):
        found.setdefault(word, set()).add(event_id)
    return found


def judge_honest(code: int, verdict: dict[str, Any], counts: dict[str, Any], sent: int) -> list[str]:
    """Judge a run with an honest collector."""
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
        troubles.append("no event was duplicated: the run tested no resend")
    if verdict["duplicated"] != counts["copies"]:
        troubles.append(f"duplicated is {verdict['duplicated']}, the collector counted {counts['copies']}")
    return troubles


def _compare(
    protocol: Protocol, verdict: dict[str, Any], found: dict[str, set[str]], faults: FaultLog
) -> list[str]:
    troubles = []
    expected: dict[str, set[str]] = {word: set() for word in NAMED}
    for fault, occurrences in faults.items():
        word = "missing" if fault == "discard" and not protocol.acks else FOUND_AS[fault]
        for ids in occurrences:
            expected[word].update(ids)
    for word in NAMED:
        if found[word] != expected[word]:
            troubles.append(
                f"{word}: {len(found[word])} ids found, {len(expected[word])} in the fault log, "
                f"{len(found[word] & expected[word])} in both"
            )
        if verdict[word] != len(found[word]):
            troubles.append(f"{word} is {verdict[word]}, but {len(found[word])} ids are listed")
    troubles += [f"{word} is {verdict[word]}, must be 0" for word in ("dropped", "unknown") if verdict[word]]
    return troubles


def _kernel_drops(counts: dict[str, Any]) -> list[str]:
    """Report datagrams that the kernel dropped: they are in the verdict, but not in the fault log."""
    dropped = counts.get("kernel_drops")
    return [f"the kernel dropped {dropped} datagrams; run the demo again"] if dropped else []


def judge_network(
    protocol: Protocol,
    code: int,
    verdict: dict[str, Any],
    found: dict[str, set[str]],
    faults: FaultLog,
    counts: dict[str, Any],
    sent: int,
) -> list[str]:
    """Judge a run over a bad network: the verdict must name exactly the events that it lost or duplicated."""
    troubles = _kernel_drops(counts)
    if code != ExitCode.OK:
        troubles.append(f"verify ended with {code}, must be 0")
    troubles += _compare(protocol, verdict, found, faults)
    if verdict["ok"] + verdict["missing"] != sent:
        troubles.append(f"ok and missing are {verdict['ok'] + verdict['missing']}, must be all {sent}")
    for word in ("missing", "duplicated"):
        if verdict[word] < _LEAST_NAMED:
            troubles.append(f"{word} is {verdict[word]}, must be at least {_LEAST_NAMED} to show anything")
    return troubles


def judge_liar(
    protocol: Protocol,
    code: int,
    verdict: dict[str, Any],
    found: dict[str, set[str]],
    faults: FaultLog,
    counts: dict[str, Any],
    planned: str,
) -> list[str]:
    """Judge a run with a collector that discards or changes events, which the verdict must name exactly."""
    troubles = []
    if code != ExitCode.BROKEN:
        troubles.append(f"verify ended with {code}, must be 1")
    if counts.get("cuts"):
        troubles.append(f"{counts['cuts']} cuts, must be none")
    troubles += _kernel_drops(counts)
    troubles += _compare(protocol, verdict, found, faults)
    # Each planned fault must have happened, and often enough.
    for fault in FOUND_AS:
        if f"{fault}=" in planned and not faults.get(fault):
            troubles.append(f"{fault}: never happened")
    discards = faults.get("discard")
    if discards:
        connections = len({event_id[:20] for ids in discards for event_id in ids})
        largest = max(map(len, discards))
        if len(discards) < 20 or connections < 3 or largest > 200:
            troubles.append(
                f"discarded {len(discards)} units of up to {largest} events over {connections} connections, "
                "must be at least 20 of at most 200 over at least 3"
            )
    return troubles
