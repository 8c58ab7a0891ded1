"""Ledgers and captures that an earlier version wrote, in format version 1.

Each folder of ``tests/vectors/evidence`` has a ledger, a capture and the fault log of the collector. The
collector discarded, duplicated and corrupted some of 60 events.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import support
from tests.support import recordings

support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")

EVIDENCE = recordings.OWN / "evidence"
EVENTS = 60
WORDS = {"discard": "lost", "duplicate": "duplicated", "corrupt": "corrupted"}


def copy(protocol: str, suffix: str, folder: Path) -> Path:
    """Copy the files with this suffix to a private folder: a checkout's may be open to others."""
    folder.mkdir(mode=0o700)
    for path in (EVIDENCE / protocol).glob(f"*{suffix}"):
        shutil.copy(path, folder)
    return folder


def read_faults(protocol: str) -> dict[str, set[tuple[str, int]]]:
    """Return word of the verdict -> (producer, sequence) of the events that the collector changed."""
    truth: dict[str, set[tuple[str, int]]] = {}
    for line in (EVIDENCE / protocol / "faults.jsonl").read_text().splitlines():
        fault = json.loads(line)
        word = "missing" if (protocol, fault["fault"]) == ("plog", "discard") else WORDS[fault["fault"]]
        truth.setdefault(word, set()).update((i[:20], int(i[20:], 16)) for i in fault["ids"])
    return truth


@pytest.mark.parametrize("protocol", ["lumberjack", "logjam", "plog", "logux"])
def test_verdict_names_the_events_of_the_fault_log(protocol: str, tmp_path: Path) -> None:
    verdict = inprocess.run(
        copy(protocol, ".ledger", tmp_path / "ledger"),
        copy(protocol, ".cap", tmp_path / "capture"),
        out=tmp_path / "out",
    )
    truth = read_faults(protocol)
    assert inprocess.found(tmp_path / "out") == truth
    assert verdict.counts.events == EVENTS
    wrong = sum(len(events) for word, events in truth.items() if word != "duplicated")
    assert verdict.counts.ok == EVENTS - wrong
