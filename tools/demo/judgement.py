"""Decide whether a run of the demo went as expected, and report it: the output and the files at the end.

The functions that judge return the deviations, as messages. They take from verify its exit code, its counts
(``verdict``) and the ids that it lists (``found``), by word; and from the collector its counts, and the
faults of its ``plan`` and those that happened.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from logclient.errors import ExitCode
from tools.demo.scenarios import Protocol, Run

Counts = dict[str, Any]
Found = dict[str, set[str]]
FaultLog = dict[str, list[list[str]]]  # by kind of fault: the ids of the events at each occurrence

FOUND_AS = {
    "drop": "missing",
    "discard": "lost",
    "swap": "reordered",
    "duplicate": "duplicated",
    "corrupt": "corrupted",
    "add": "unexpected",
}  # the word of the verdict for each fault; events discarded without acknowledgement are missing
NAMED = ("lost", "missing", "duplicated", "unexpected", "corrupted", "reordered")  # compared by their ids
_LEAST_NAMED = 100  # lost events, and duplicated ones, with which a run over a bad network counts


def read_fault_log(path: Path) -> FaultLog:
    """Read the file in which a collector lists the events that its faults changed."""
    faults: FaultLog = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            faults.setdefault(entry["fault"], []).append(entry["ids"])
    return faults


def read_violations(out: Path) -> Found:
    """Read the ids that the verifier lists, by word."""
    from logclient.verify import violation_ids

    found: Found = {word: set() for word in NAMED}
    for word, event_id in violation_ids(out):
        found.setdefault(word, set()).add(event_id)
    return found


def judge_honest(code: int, verdict: Counts, counts: Counts, sent: int) -> list[str]:
    """Judge a run with an honest collector."""
    troubles = _must_end(code, ExitCode.OK)
    wrong = ("lost", "missing", "unexpected", "corrupted", "reordered", "dropped", "unknown")
    troubles += _must_be_none(verdict, *wrong)
    ok, copies, cuts, late = verdict["ok"], verdict["duplicated"], counts["cuts"], counts["cuts_before_ack"]
    checks = (
        (ok == sent, f"ok is {ok}, must be all {sent}"),
        (cuts >= 5, f"{cuts} cuts, must be at least 5"),
        (late >= 2, f"{late} cuts between write and ack, must be at least 2"),
        (copies, "no event was duplicated: the run tested no resend"),
        (copies == counts["copies"], f"duplicated is {copies}, the collector counted {counts['copies']}"),
    )
    return troubles + [trouble for right, trouble in checks if not right]


def _must_end(code: int, expected: int) -> list[str]:
    return [] if code == expected else [f"verify ended with {code}, must be {int(expected)}"]


def _must_be_none(verdict: Counts, *words: str) -> list[str]:
    return [f"{word} is {verdict[word]}, must be 0" for word in words if verdict[word]]


def _compare(protocol: Protocol, verdict: Counts, found: Found, faults: FaultLog) -> list[str]:
    troubles = []
    expected: Found = {word: set() for word in NAMED}
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
    return troubles + _must_be_none(verdict, "dropped", "unknown")


def _kernel_drops(counts: Counts) -> list[str]:
    """Report datagrams that the kernel dropped: they are in the verdict, but not in the fault log."""
    dropped = counts.get("kernel_drops")
    return [f"the kernel dropped {dropped} datagrams; run the demo again"] if dropped else []


def judge_network(
    protocol: Protocol, code: int, verdict: Counts, found: Found, faults: FaultLog, counts: Counts, sent: int
) -> list[str]:
    """Judge a run over a bad network: the verdict must name exactly the events that it lost or duplicated."""
    troubles = _kernel_drops(counts) + _must_end(code, ExitCode.OK)
    troubles += _compare(protocol, verdict, found, faults)
    if verdict["ok"] + verdict["missing"] != sent:
        troubles.append(f"ok and missing are {verdict['ok'] + verdict['missing']}, must be all {sent}")
    few = [word for word in ("missing", "duplicated") if verdict[word] < _LEAST_NAMED]
    least = f"must be at least {_LEAST_NAMED} to show anything"
    return troubles + [f"{word} is {verdict[word]}, {least}" for word in few]


def judge_liar(
    protocol: Protocol, code: int, verdict: Counts, found: Found, faults: FaultLog, counts: Counts, plan: str
) -> list[str]:
    """Judge a run with a collector that discards or changes events, which the verdict must name exactly."""
    troubles = _must_end(code, ExitCode.BROKEN)
    troubles += [f"{cuts} cuts, must be none"] if (cuts := counts.get("cuts")) else []
    troubles += _kernel_drops(counts) + _compare(protocol, verdict, found, faults)
    # Each planned fault must have happened, and often enough.
    missing = [fault for fault in FOUND_AS if f"{fault}=" in plan and not faults.get(fault)]
    troubles += [f"{fault}: never happened" for fault in missing]
    if discards := faults.get("discard"):
        connections = len({event_id[:20] for ids in discards for event_id in ids})
        largest = max(map(len, discards))
        if len(discards) < 20 or connections < 3 or largest > 200:
            troubles.append(
                f"discarded {len(discards)} units of up to {largest} events over {connections} connections, "
                "must be at least 20 of at most 200 over at least 3"
            )
    return troubles


WORDS = (
    "ok", "lost", "missing", "recovered", "duplicated", "unexpected", "corrupted", "reordered", "dropped",
    "unknown",
)  # fmt: skip


class Result(NamedTuple):
    """The result of one run."""

    run: Run
    protocol: str
    sent: int
    collector: Counts  # its counts
    verdict: Counts  # the counts of verify, by word
    exit: int  # of verify
    seconds: float  # that verify took
    troubles: list[str]  # deviations; empty: the run went as expected
    sentence: str
    report: Path


def _events(faults: FaultLog, fault: str) -> int:
    return len({event_id for ids in faults.get(fault, ()) for event_id in ids})


def sentence(
    protocol: Protocol,
    run: Run,
    sent: int,
    verdict: Counts,
    counts: Counts,
    faults: FaultLog,
    *,
    as_expected: bool,
) -> str:
    """Describe a run and its verdict, by word, in a sentence."""
    right = "the verdict names exactly these." if as_expected else "the verdict does NOT name exactly these."
    if not run.liar and not protocol.acks:
        return (
            f"the network dropped {_events(faults, 'drop'):,} of {sent:,} events "
            f"and duplicated {_events(faults, 'duplicate'):,}: {right}"
        )
    if not run.liar:
        return (
            f"{counts['cuts']} connections were cut ({counts['cuts_before_ack']} between write and ack): "
            f"{verdict['lost']:,} of {sent:,} events were lost, "
            f"{verdict['duplicated']:,} further copies arrived "
            f"(the collector counted {counts['copies']:,})."
        )
    phrases = {
        "discard": "acknowledged and discarded {}" if protocol.acks else "discarded {}",
        "swap": "swapped {} with later ones",
        "duplicate": "kept {} twice",
        "corrupt": "changed a byte of {}",
        "add": "added {}",
    }
    actions = []
    for fault, occurrences in faults.items():
        events, times = sum(map(len, occurrences)), len(occurrences)
        units = f" in {times} {protocol.unit_name}" if events > times > 1 else ""
        actions.append(phrases[fault].format(f"{events:,} event{'s' if events > 1 else ''}{units}"))
    return f"the collector {', '.join(actions)}; {right}"


def tables(results: list[Result]) -> str:
    """Make a table for each protocol with a column for each run."""
    tables = []
    for protocol in dict.fromkeys(result.protocol for result in results):
        of_protocol = [result for result in results if result.protocol == protocol]
        rows = [
            ["", *(result.run.name for result in of_protocol)],
            ["sent", *(f"{result.sent:,}" for result in of_protocol)],
            *([word, *(f"{result.verdict[word]:,}" for result in of_protocol)] for word in WORDS),
            ["connections cut", *(str(result.collector.get("cuts", 0)) for result in of_protocol)],
            ["exit code of verify", *(str(result.exit) for result in of_protocol)],
            ["as expected", *("NO" if result.troubles else "yes" for result in of_protocol)],
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in rows
        ]
        lines.insert(1, "-" * len(lines[0]))
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def write_index(path: Path, results: list[Result]) -> None:
    """Write the page that lists the reports."""
    rows = ["<!DOCTYPE html><meta charset='utf-8'><title>Reports of logclient demo</title><table>"]
    for result in results:
        link = result.report.relative_to(path.parent).as_posix()
        cells = (
            f'<a href="{escape(link)}">{escape(result.run.name)}</a>',
            result.exit,
            escape(result.sentence),
        )
        rows.append("<tr><td>{}</td><td>{}</td><td>{}</td></tr>".format(*cells))
    path.write_text("\n".join([*rows, "</table>\n"]), encoding="utf-8")


def write_verdict(path: Path, results: list[Result]) -> None:
    """Write ``verdict.json``."""
    runs = [
        {
            "name": result.run.name,
            "protocol": result.protocol,
            "liar": result.run.liar,
            "events": result.sent,
            **{word: result.verdict[word] for word in WORDS},
            "cuts": result.collector.get("cuts", 0),
            "cuts_before_ack": result.collector.get("cuts_before_ack", 0),
            "collector_duplicated": result.collector["copies"],
            "exit": result.exit,
            "caught": result.run.liar and not result.troubles,
            "troubles": result.troubles,
            "report": str(result.report),
        }
        for result in results
    ]
    text = json.dumps({"runs": runs}, indent=2) + "\n"
    # Replace the file in one step: a reader never sees an incomplete one.
    fresh = path.with_suffix(".tmp")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
