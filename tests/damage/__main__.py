"""Thousands of damaged runs, each protocol's in one Spark query, against two oracles.

    python -m tests.damage --cases 20000           # all protocols, in equal shares
    python -m tests.damage --show lumberjack:26    # one case: its files, the verdict, and the differences

A case is a run with damage to its files; a seed determines it. Each case is in a separate folder, where a
worker runs the verifier's tasks. Exit code: 0 no difference, 1 differences.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.damage import cases, show
from tests.damage.cases import PROTOCOLS, Judged

MOST_SHOWN = 20
"""The most failing cases of a protocol that are printed."""

PIECE = 50
"""The number of cases of one task."""


def in_process(ledger: Path, capture: Path) -> Any:
    """Return the verdict of the verifier's own tasks, all run in this process."""
    from tests.support import verify_inprocess

    return verify_inprocess.run(ledger, capture)


def _judge_in(protocol: str, first: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from tests.damage import __main__ as main
        from tests.damage import cases

        for batch in batches:
            for number in batch.column(0).to_pylist():
                judged = cases.judge(first + number, protocol, main.in_process)
                yield pa.record_batch([[json.dumps(judged)]], names=["judged"])

    return run


def all_of(spark: Any, protocol: str, first: int, n: int) -> list[Judged]:
    """Judge the cases of a protocol with the seeds from `first` on, in one query."""
    from logclient.verify.spark import no_pandas

    pieces = -(-n // PIECE)
    with no_pandas():
        rows = spark.range(0, n, 1, pieces).mapInArrow(_judge_in(protocol, first), "judged string").collect()
    return [Judged(*json.loads(row.judged)) for row in rows]


def table(judged: Iterable[Judged]) -> str:
    """Format the share of each exit code for each kind of damage."""
    codes: dict[str, Counter[int]] = defaultdict(Counter)
    for one in judged:
        codes[one.kind][one.exit_code] += 1
    width = max(len(kind) for kind in codes)
    lines = [f"{'':{width}}  cases  exit 0  exit 1  exit 3  refused"]
    total = sum(codes.values(), Counter[int]())
    for kind in [*(kind for kind in cases.KINDS if kind in codes), ""]:
        mine = codes[kind] if kind else total
        n = sum(mine.values())
        shares = "".join(f"{mine[code] / n:8.1%}" for code in (0, 1, 3, -1))
        lines.append(f"{kind or 'all':{width}}  {n:5}{shares}")
    return "\n".join(lines)


def failing(judged: Iterable[Judged]) -> list[str]:
    """Describe the cases with differences."""
    return [f"{one.text}\n    " + "\n    ".join(one.wrong) for one in judged if one.wrong]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="of all protocols together")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--protocol", choices=PROTOCOLS, help="this one alone")
    parser.add_argument("--show", metavar="PROTOCOL:SEED", help="print one case and judge it")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if given.show:
        protocol, _, seed = given.show.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            print(show.text(cases.make(int(seed), protocol, Path(folder))))
        judged = cases.judge(int(seed), protocol, in_process)
        print(f"exit code {judged.exit_code}")
        print("\n".join(judged.wrong) or "the oracles agree")
        return 1 if judged.wrong else 0
    from logclient.verify.job import Session

    protocols = [given.protocol] if given.protocol else list(PROTOCOLS)
    every: list[Judged] = []
    with Session("local[*]") as session:
        for protocol in protocols:
            begin = time.monotonic()
            mine = all_of(session.spark, protocol, given.first, given.cases // len(protocols))
            every += mine
            wrong = failing(mine)
            print("\n".join(wrong[:MOST_SHOWN]))
            print(
                f"{protocol}: {len(mine)} cases in {time.monotonic() - begin:.0f} s, {len(wrong)} differ",
                flush=True,
            )
    print(table(every))
    for kind, why in cases.OFF.items():
        print(f"switched off: {kind}: {why}")
    return 1 if any(one.wrong for one in every) else 0


if __name__ == "__main__":
    sys.exit(main())
