"""Recorded sessions of real clients and servers, of ``tests/vectors`` or the folder LOGCLIENT_VECTORS.

Tests replay every case that a folder has, whatever the cases are called and however many there are. What a
folder has none of is printed. ``tests/vectors/README.md`` describes the files.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import TESTED

OWN = TESTED / "tests" / "vectors"
"""The recordings of this repository."""

FOLDER = Path(os.environ.get("LOGCLIENT_VECTORS") or OWN).resolve()
"""The recordings to replay."""

Case = dict[str, Any]
Kinds = Mapping[str, Callable[[Case], object]]
"""Name of a kind of case -> whether a case is one."""

# A field that each case of a kind has.
LOGJAM = ("logjam", "frames_in_hex")
LOGUX = ("logux", "steps")
LUMBERJACK = ("lumberjack", "writer_hex")
LUMBERJACK_EDGE = ("lumberjack", "writer_chunks_hex")
PLOG = ("plog", "verdict")


@functools.cache
def documents(protocol: str, folder: Path = FOLDER) -> list[Any]:
    """What the files ``<protocol>.json`` and ``<protocol>-*.json`` hold.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"LOGCLIENT_VECTORS: no folder {folder}")
    names = [folder / f"{protocol}.json", *sorted(folder.glob(f"{protocol}-*.json"))]
    return [json.loads(path.read_text("utf-8")) for path in names if path.exists()]


@functools.cache
def cases(kind: tuple[str, str], folder: Path = FOLDER) -> list[Case]:
    """Every case of a protocol that has the field of its kind, in the order of the files."""
    protocol, field = kind
    found: list[Case] = []
    for document in documents(protocol, folder):
        some = document.get("cases", []) if isinstance(document, dict) else document
        found += [case for case in some if field in case]
    return found


def example(kind: tuple[str, str], name: str) -> Case:
    """The first case of that name in this repository, for a test that is about its bytes."""
    return next(case for case in cases(kind, OWN) if case["name"] == name)


def facts(protocol: str, name: str, folder: Path = FOLDER) -> Any:
    """What a protocol's files say beside their cases under this name; None when they say nothing."""
    documents_ = (document for document in documents(protocol, folder) if isinstance(document, dict))
    return next((document[name] for document in documents_ if name in document), None)


def is_upgrade(case: Case) -> bool:
    """Whether a case of Logux is an HTTP upgrade, which test_logux_collector.py tests over a socket."""
    return any(str(step.get("msg", "")).startswith("GET ") for step in case["steps"])


def lacking(found: Iterable[Case], kinds: Kinds) -> list[str]:
    """The kinds of which no case was found."""
    found = list(found)
    return [name for name, is_one in kinds.items() if not any(map(is_one, found))]


def assert_replayed(
    what: str,
    recorded: Sequence[Case],
    played: Sequence[Case],
    kinds: Kinds,
    *,
    deliberate: int = 0,
    missing: Iterable[str] = (),
) -> None:
    """Assert that there are cases of every kind, that tests replay them, and that not all of them differ.

    Another folder may lack kinds.

    Args:
        what: Which cases, and against what they were played.
        recorded: All cases that were recorded.
        played: Those of them that tests replay; the others hold nothing for these tests.
        kinds: The kinds of these cases.
        deliberate: How many of those played differ on purpose.
        missing: The kinds of which this repository has no recording.
    """
    lacks = lacking(recorded, kinds)
    if OWN.resolve() == FOLDER:
        assert lacks == [*missing], f"{what}: not recorded: {', '.join(lacks)}"
    unplayed = set(lacking(played, kinds)).difference(lacks)
    assert not unplayed, f"{what}: recorded, but not replayed: {', '.join(sorted(unplayed))}"
    assert deliberate < len(played) or not played


def summary(
    what: str, recorded: Sequence[Case], played: Sequence[Case], kinds: Kinds, *, deliberate: int = 0
) -> str:
    """Return one line about a replayed set of cases; arguments as for `assert_replayed`."""
    lacks = lacking(recorded, kinds)
    elsewhere = len(recorded) - len(played)
    counts = f"{len(played) - deliberate} passed, {deliberate} deliberate, {elsewhere} elsewhere"
    return f"recordings, {what}: {counts}" + (f"; no case of: {', '.join(lacks)}" if lacks else "")
