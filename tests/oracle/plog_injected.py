"""What a bad network cost, from the log of who was the network: which events never came, which came twice.

    python tests/oracle/plog_injected.py WITNESS LEDGER

Read are the fault log of ``logclient collect --fault-log`` and the ledger's lines (docs/formats.md). Of
an act only what was done to which datagram counts: ``fault``, ``event``, ``index`` and ``count``. Its
``ids``, what the injector itself makes of it, are not looked at: that is worked out here. A message is whole
when all its fragments are there, and what comes after that begins another one. Datagrams come in their
order, a second copy right behind the first.

It shares no code with the package.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Injected(NamedTuple):
    """Ids, as 32 hex digits."""

    missing: set[str]
    duplicated: set[str]
    unnamed: int  # faults on datagrams of unknown events
    foreign: int  # faults on events that are in no ledger


def sent_ids(ledger: str | os.PathLike[str]) -> set[str]:
    """Every event of which a ledger says that its bytes were to be sent."""
    found: set[str] = set()
    for path in sorted(Path(ledger).glob("*.ledger")):
        producer = path.name[:20]
        with open(path, encoding="ascii") as file:
            for line in file:
                entry = json.loads(line)
                if entry["t"] == "batch":
                    for first, last in entry["seqs"]:
                        found.update(f"{producer}{seq:012x}" for seq in range(first, last + 1))
    return found


def times_whole(copies: Sequence[int]) -> int:
    """How often a message is whole, of whose fragments so many copies come, one fragment after the other."""
    whole = 0
    here: set[int] = set()
    for index, times in enumerate(copies):
        for _ in range(times):
            here.add(index)
            if len(here) == len(copies):
                whole += 1
                here.clear()
    return whole


def injected(acts: Iterable[dict[str, Any]], sent: set[str]) -> Injected:
    """What these acts did to those events.

    Raises:
        ValueError: an act that is neither ``drop`` nor ``duplicate``, or two on one datagram.
    """
    struck: dict[str, dict[int, int]] = {}  # event -> index of the fragment -> copies that came
    counts: dict[str, int] = {}
    unnamed = 0
    for act in acts:
        if act["fault"] not in ("drop", "duplicate"):
            raise ValueError(f"{act['fault']}: only drop and duplicate are understood")
        if not act["event"]:
            unnamed += 1
            continue
        count = max(1, act["count"])  # 0: without a box
        fragments = struck.setdefault(act["event"], {})
        if act["index"] in fragments or counts.setdefault(act["event"], count) != count:
            raise ValueError(f"{act['event']}: struck twice at fragment {act['index']}")
        fragments[act["index"]] = 0 if act["fault"] == "drop" else 2
    missing, duplicated = set(), set()
    for event in struck.keys() & sent:
        times = times_whole([struck[event].get(index, 1) for index in range(counts[event])])
        if times == 0:
            missing.add(event)
        elif times > 1:
            duplicated.add(event)
    return Injected(missing, duplicated, unnamed, len(struck.keys() - sent))


def read(fault_log: str | os.PathLike[str], ledger: str | os.PathLike[str]) -> Injected:
    with open(fault_log, encoding="utf-8") as file:
        return injected(map(json.loads, file), sent_ids(ledger))


if __name__ == "__main__":
    found = read(*sys.argv[1:])
    shown = {
        name: sorted(value) if isinstance(value, set) else value for name, value in found._asdict().items()
    }
    print(json.dumps(shown))
