"""The final output of the demo, and its ``index.html`` and ``verdict.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from logclient.cli.demo.judgement import FaultLog
from logclient.cli.demo.scenarios import Protocol, Run

__all__ = ["WORDS", "Result", "sentence", "tables", "write_index", "write_verdict"]

WORDS: tuple[str, ...] = (
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
"""The words of the verdict that the tables show."""


class Result(NamedTuple):
    """The result of one run."""

    run: Run
    protocol: str
    sent: int
    collector: dict[str, Any]  # its counts
    verdict: dict[str, Any]  # the counts of verify, by word
    exit: int  # of verify
    seconds: float  # that verify took
    troubles: list[str]  # deviations; empty: the run went as expected
    sentence: str
    report: Path

    @property
    def caught(self) -> bool:
        """Whether the verdict names exactly the events that a lying collector discarded or changed."""
        return self.run.liar and not self.troubles


def _events(faults: FaultLog, fault: str) -> int:
    return len({event_id for ids in faults.get(fault, ()) for event_id in ids})


def sentence(
    protocol: Protocol,
    run: Run,
    sent: int,
    verdict: dict[str, Any],
    counts: dict[str, Any],
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
    from logclient.verify.report import index

    rows = [
        (result.run.name, result.exit, result.sentence, result.report.relative_to(path.parent).as_posix())
        for result in results
    ]
    path.write_text(index("Reports of logclient demo", rows), encoding="utf-8")


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
            "caught": result.caught,
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
