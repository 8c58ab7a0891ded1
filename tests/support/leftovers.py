"""Processes with a temporary folder of their own, and what they leave: files in it, and processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests import support


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    """The environment of a fresh process with a temporary folder of its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    return support.clean_environment(PYTHONPATH=paths, TMPDIR=str(temporary), **extra)


def remaining_files(tmp_path: Path) -> list[str]:
    """What is in that temporary folder, without the JVM's own statistics."""
    return sorted(x.name for x in (tmp_path / "tmp").iterdir() if not x.name.startswith("hsperfdata_"))


def processes_of(tmp_path: Path) -> list[int]:
    """Processes that have this temporary folder in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={tmp_path / 'tmp'}\0".encode() in path.read_bytes() + b"\0":
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has ended, or another user owns it
    return found
