"""Runs cases of slow and broken networks, and prints their table.

    python -m tests.networks [--list] [--jobs N] [--rest SECONDS] [CASE…]

A CASE is a name of `tests.networks.cases` or a pattern, as in ``'nat_*'``; without one all of them run, which
takes hours. The files of a case are left in build/networks, and its figures are added to results.jsonl there.
Exit code: 0 all hold, 1 some do not, 3 there can be no emulated network here.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from tests.networks.cases import CASES, Case
from tests.networks.judge import HEAD, figures, judge, row
from tests.networks.scene import Scene
from tests.support import ROOT
from tests.support.networks import why_not

FOLDER = ROOT / "build" / "networks"
_needed: dict[tuple[object, ...], int] = {}


def needed(case: Case, folder: Path) -> int:
    """Return the bytes of TCP that the case's events need on a fast link."""
    key = (case.protocol, case.events, case.size, case.kind, case.query)
    if key not in _needed:
        fast = case._replace(
            link={"delay": 0.005}, per_second=0.0, seconds=60.0, end=10.0, changes=(), options={}
        )
        _needed[key] = Scene(fast, folder / "needed").run().payload
    return _needed[key]


def run(case: Case, folder: Path = FOLDER) -> tuple[tuple[str, ...], list[str]]:
    """Run a case; return the cells of its row, and what does not hold."""
    found = Scene(case, folder / case.name).run()
    bytes_needed = needed(case, folder / case.name) if case.holds.waste is not None else None
    shown = figures(case, found, bytes_needed)
    wrong = judge(case, found, shown)
    line = {"case": case.name, "url": case.url, "wrong": wrong, **shown._asdict(), **found._asdict()}
    with (folder / "results.jsonl").open("a") as file:
        print(json.dumps({name: value for name, value in line.items() if name != "samples"}), file=file)
    return row(case, found, shown, wrong), wrong


def run_all(cases: list[Case], jobs: int, folder: Path = FOLDER) -> list[str]:
    """Run cases, some of them at a time, and print their rows; return what does not hold."""
    wrong: list[str] = []

    def one(case: Case) -> None:
        try:
            cells, found = run(case, folder)
        except RuntimeError as error:
            cells, found = (case.name, *[""] * (len(HEAD) - 2), str(error)), [str(error)]
        wrong.extend(f"{case.name}: {text}" for text in found)
        print(f"| {' | '.join(cells)} |", flush=True)

    for cells in (HEAD, ["---"] * len(HEAD)):
        print(f"| {' | '.join(cells)} |", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, cases))
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.networks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=["*"])
    parser.add_argument("--list", action="store_true", help="only print the names")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--rest", type=float, metavar="SECONDS", help="how long idle clients are watched")
    given = parser.parse_args()
    chosen = [case for name, case in CASES.items() if any(fnmatch(name, one) for one in given.cases)]
    if given.rest:
        chosen = [one._replace(seconds=given.rest) if one.program == "idle" else one for one in chosen]
    if given.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 3
    FOLDER.mkdir(parents=True, exist_ok=True)
    return int(bool(run_all(chosen, given.jobs)))


if __name__ == "__main__":
    sys.exit(main())
