"""Deliberate breaks of the engine, and the first seed at which the nemesis notices each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutants.__main__ import Mutant, applied, copy_tree, environment, read_list

LIST = Path(__file__).parent / "engine_mutants.toml"
SPOOL_LIST = Path(__file__).parent / "spool_mutants.toml"
PATIENCE = "6"
"""The patience, in seconds, for mutants that cause a hang; waits last five times as long."""


class Catch(NamedTuple):
    """The run that caught a mutant."""

    runs: int
    """The number of runs until then."""
    words: str


def listed(words: Sequence[str] = (), spool: bool = False) -> list[Mutant]:
    """Return the mutants whose name or file contains one of `words`; without words, all."""
    mutants = read_list(SPOOL_LIST if spool else LIST)
    return [m for m in mutants if not words or any(w in m.name or w in m.file for w in words)]


def nemesis(tree: Path, seeds: Sequence[int], jobs: int, spool: bool = False) -> Catch | None:
    """Run these seeds briefly, until one fails.

    Raises:
        SystemExit: the runs could not be made.
    """
    chosen = ",".join(map(str, seeds))
    command = [sys.executable, "-m", "tests.nemesis", "--short", "--stop", "--again", "0"]
    command += ["--spool"] if spool else []
    done = subprocess.run(
        [*command, "--seeds", chosen, "--jobs", str(jobs)],
        cwd=tree, env={**environment(tree), "LOGCLIENT_PATIENCE": PATIENCE}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        said = done.stderr[-2000:] + done.stdout[-2000:]
        raise SystemExit(f"the nemesis ended with {done.returncode}: {said}")
    runs = 0
    lines = iter(done.stdout.splitlines())
    for line in lines:
        runs += line.startswith("seed ")
        if line.startswith("seed ") and " FAILED " in line:
            return Catch(runs, f"{' '.join(line.split()[:3])}: {next(lines, '').strip()[:120]}")
    return None


def run(words: Sequence[str], seeds: Sequence[int], jobs: int, spool: bool = False) -> int:
    """Try each mutant with these seeds, and return the exit code."""
    mutants = listed(words, spool)
    survived = 0
    with tempfile.TemporaryDirectory(prefix="nemesis-mutants-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        for mutant in mutants:
            begin = time.monotonic()
            with applied(tree, mutant):
                catch = nemesis(tree, seeds, jobs, spool)
            survived += catch is None
            words_ = f"caught by run {catch.runs}: {catch.words}" if catch else "SURVIVED"
            print(f"{mutant.name}: {words_} ({time.monotonic() - begin:.0f} s)", flush=True)
    print(f"{len(mutants)} mutants, {len(mutants) - survived} caught within {len(seeds)} seeds")
    return 1 if survived else 0
