"""The verifier in this process, without Spark, with sizes that tests make small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logclient.verify import job
from logclient.verify.tuning import Tuning
from logclient.verify.violation_files import violation_ids


def run(
    ledger_folder: Any,
    capture_folder: Any,
    *,
    bits: int = 18,
    tail: int = 4096,
    units: int = 1 << 18,
    chunk: int = 4 << 20,
    **options: Any,
) -> Any:
    """Run `job.run` in this process, without limits but those given. The sizes are those of `Tuning`."""
    given = {"max_missing": None, "max_dropped": None, "tuning": Tuning(bits, tail, units, chunk), **options}
    return job.run(ledger_folder, capture_folder, runner="local", **given)


def counts(verdict: Any) -> dict[str, int]:
    """Return the words that a verdict has, and their numbers."""
    return {word: n for word, n in verdict.counts._asdict().items() if n}


def found(out: Path) -> dict[str, set[tuple[str, int]]]:
    """Return word -> (producer, sequence) of a verdict's violations, without ids that are not ours."""
    ids: dict[str, set[tuple[str, int]]] = {}
    for word, ident in violation_ids(out):
        if not ident.startswith("~"):
            ids.setdefault(word, set()).add((ident[:20], int(ident[20:], 16)))
    return ids
