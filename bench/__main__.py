"""`python -m bench [ROW…]`: run rows, print their tables, write build/bench/*.{json,md,png}.

`--record` also puts the results of undisturbed runs into bench/results and the pages that are made of it.
`--record-all` does so for every row: a complete set of one commit, in place of all older runs on this kind of
processor. After a failure, the same command goes on with the rows that are missing.
`make bench ROW=handler` sets ROW.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from importlib import import_module

from bench import data, pages
from bench.harness import ROOT, OtherPrograms, commit, load, machine, processor, show

# row -> module, and the packages whose versions are reported with it
ROWS = {
    "import": ("bench.imports", ()),
    "handler": ("bench.handler", ("python-logstash-async",)),
    "logger": ("bench.logger", ("picologging", "loguru", "structlog", "python-logstash-async")),
    "exception": ("bench.exception", ("structlog", "sentry-sdk")),
    "send": ("bench.send", ("msgspec",)),
    "saturated": ("bench.saturated", ()),
    "dead": ("bench.dead", ()),
    "spool": ("bench.spool", ("python-logstash-async",)),
    "lumberjack": ("bench.lumberjack", ("pylogbeat", "python-logstash-async")),
    "compressed": ("bench.compressed", ("isal", "pylogbeat")),
    "tls": ("bench.tls", ("pylogbeat",)),
    "delay": ("bench.delay", ("isal", "pylogbeat")),
    "logjam": ("bench.logjam", ("pyzmq",)),
    "plog": ("bench.plog", ("mmh3",)),
    "logux": ("bench.logux", ("websockets", "picows")),
    "web": ("bench.web", ("flask", "fastapi")),
    "names": ("bench.names", ("flask",)),
    "verify": ("bench.verify", ("pyspark", "duckdb", "polars")),
    "verify-producers": ("bench.verify_producers", ("pyspark",)),
    "start": ("bench.start", ("pyspark", "pyarrow", "numpy")),
    "frames": ("bench.frames", ("pyspark", "pyarrow")),
}
FUNCTIONS = "functions"  # pytest-benchmark over bench/test_*.py


def _functions() -> int:
    files = sorted(str(p) for p in (ROOT / "bench").glob("test_*.py"))
    if not files:
        print("functions: there is no bench/test_*.py")
        return 0
    print(f"functions: records made from {data.source()}")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--benchmark-only",
            "--benchmark-group-by=group",
            "--benchmark-columns=median,iqr,ops,rounds",
            f"--benchmark-json={ROOT / 'build' / 'bench' / 'functions.json'}",
            *files,
        ],
        cwd=ROOT,
        check=False,
    ).returncode


def main(argv: list[str] | None = None) -> int:
    """Run rows; return 1 when a row failed or was not recorded, and 0 also with missed targets."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "row",
        nargs="*",
        default=os.environ.get("ROW", "").replace(",", " ").split(),
        help=f"any of: {', '.join(ROWS)}, {FUNCTIONS} (all when none is named)",
    )
    parser.add_argument("--rounds", type=int, help="how many rounds (each row has its own default)")
    parser.add_argument("--seed", type=int, default=1, help="of the random order")
    parser.add_argument("--quick", action="store_true", help="short runs, to check the rows, not to quote")
    parser.add_argument(
        "--input",
        nargs="+",
        metavar="FILE",
        default=[],
        help="log files to take lines from (default: those of /var/log, or generated lines)",
    )
    parser.add_argument("--record", action="store_true", help="record the results, see bench/README.md")
    parser.add_argument("--record-all", action="store_true", help="record a complete set of one commit")
    verify = parser.add_argument_group("verify and verify-producers")
    verify.add_argument("--events", default="", help="sizes, such as 1M,10M,50M (10M)")
    verify.add_argument("--dir", default="", help="folder for its data, 380 bytes an event (build/)")
    verify.add_argument("--keep", action="store_true", help="keep the data for the next run")
    chosen = parser.parse_args(argv)
    unknown = [name for name in chosen.row if name not in ROWS and name != FUNCTIONS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}: there are {', '.join([*ROWS, FUNCTIONS])}")
    if chosen.record_all and chosen.row:
        parser.error("--record-all: it is for all rows")
    chosen.record |= chosen.record_all
    if chosen.record and chosen.quick:
        parser.error("--record: a quick run is not recorded")
    if chosen.record and commit().endswith("-dirty"):
        parser.error(f"--record: the tree differs from its commit: {commit()}")
    if chosen.input:
        os.environ[data.INPUT] = os.pathsep.join(map(os.path.abspath, chosen.input))
    failed = []
    (ROOT / "build" / "bench").mkdir(parents=True, exist_ok=True)
    for name in chosen.row or [*ROWS, FUNCTIONS]:
        if name == FUNCTIONS:
            if _functions():
                failed.append(name)
            continue
        module, packages = ROWS[name]
        if chosen.record_all and pages.has(name, processor(), commit()):
            print(f"{name}: recorded already\n")
            continue
        before, start, others = load(), time.monotonic(), OtherPrograms()
        try:
            more = {key: vars(chosen)[key] for key in ("events", "dir", "keep")}
            row = import_module(module).run(
                rounds=chosen.rounds,
                seed=chosen.seed,
                quick=chosen.quick,
                **(more if name.startswith("verify") else {}),
            )
        except Exception as error:
            if len(chosen.row) == 1:
                raise
            print(f"{name}: could not run: {type(error).__name__}: {error}\n", file=sys.stderr)
            failed.append(name)
            continue
        facts = machine(packages) | {
            "load": (before, load()),
            "seconds": round(time.monotonic() - start, 1),
            "others": round(others.cores(row.facts.get("forgotten", 0.0)), 2),
            "quick": chosen.quick,
        }
        row = row._replace(facts=facts | dict(row.facts))
        show(row)
        if chosen.record:
            try:
                pages.record(row)
            except pages.Refused as why:
                print(f"{why}\n", file=sys.stderr)
                failed.append(name)
    if chosen.record_all and not set(failed) & set(ROWS):
        pages.record_set(processor(), commit())
    if failed:
        print(f"bench: could not run, or not recorded: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
