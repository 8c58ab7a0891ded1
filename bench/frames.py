"""Row `frames`: reading the bodies of a capture with Spark, against the same bodies as Parquet and as text.

Every contender is a query on one Spark session, set up as users have it, that has to look at each body: it
sums their lengths. Each wire unit has one event, which is the most costly form. The limit beside them is a
plain read of the same files.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from bench import frames_data
from bench.harness import ROOT, Line, NotExact, Row, Spread, claim, own_seconds
from bench.verify_run import Used

BODY = "logclient: body, {}"
ALL = "logclient: all columns"
PARSED = "logclient: body, from_json in SQL"
DETAILED = "lumberjack"  # the protocol of all but the bodies
AGAIN = f"{BODY.format(DETAILED)} (again)"
PARQUET, TEXT, READ = "Parquet: body", "spark.read.text", "plain read of the capture"
EVENTS = 2_000_000
ROUNDS = 5
RATE = 1.0  # million rows per CPU second
NOTES = (
    "bodies of 280 to 360 bytes, one event in a unit, uncompressed; CRC checked; files lay in the page cache",
    "`body` alone is neither hashed nor searched for ids; the JSON around that of Logux is read",
    "CPU of all processes: JVM and Python workers; 2 cores; each query sums the length of what it reads",
    "a session as `SparkSession.builder` makes it; `logclient verify` starts a JVM that compiles less",
    f"Parquet (snappy) and text (one body a line) have the same bodies; they, and all but `body`: {DETAILED}",
    "`from_json` makes a map of the body in the JVM",
)


def run(rounds: int | None = None, seed: int = 1, quick: bool = False) -> Row:
    """Run the row."""
    events = 200_000 if quick else EVENTS
    folder = ROOT / "build" / f"frames-{events}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    size = {name: frames_data.make(folder / name, name, events) for name in frames_data.PROTOCOLS}
    spark = _session()
    try:
        queries = _queries(spark, folder)
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in queries}
        truth = {name: query() for name, query in queries.items()}  # and once to warm up
        _compare(truth, size)
        draw = Random(seed)
        for i in range(rounds or (1 if quick else ROUNDS)):
            print(f"frames: round {i + 1}", file=sys.stderr, flush=True)
            for name in draw.sample(list(queries), len(queries)):
                with Used() as used:
                    found = queries[name]()
                if found != truth[name]:
                    raise NotExact(f"{name}: {found} bytes, there are {truth[name]}")
                samples[name].append((used.cpu, used.wall))
    finally:
        forgotten = _end(spark)
        shutil.rmtree(folder, ignore_errors=True)
    n = events
    lines = [
        Line(
            name,
            {
                clock: Spread.of([run[i] * 1e6 / n for run in runs])
                for i, clock in enumerate(("process", "wall"))
            },
        )
        for name, runs in samples.items()
    ]
    rates = {name: n / 1e6 / Spread.of([run[0] for run in runs]).median for name, runs in samples.items()}
    bodies = [BODY.format(protocol) for protocol in frames_data.PROTOCOLS]
    verdicts = [claim(f"{name}: million rows per CPU second", rates[name], ">=", RATE) for name in bodies]
    pairs = zip(samples[AGAIN], samples[BODY.format(DETAILED)], strict=True)
    again = Spread.of([a[0] / b[0] for a, b in pairs])
    verdicts.insert(0, claim(f"A/A: {BODY.format(DETAILED)} against itself, CPU", again))
    notes = [f"{name}: {rate:.2f} M rows per CPU second" for name, rate in rates.items()]
    return Row(
        "frames", "bodies of a capture in Spark, against Parquet and text", "us/row", lines, verdicts,
        [*notes, *NOTES], {"rows": n, "forgotten": forgotten},
    )  # fmt: skip


def _session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable  # else the workers are the first python3 on PATH
    return SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()


def _end(spark: Any) -> float:
    """Stop the session and its JVM; return the CPU seconds of workers, which no parent has after that."""
    jvm = spark.sparkContext._gateway.proc
    before = own_seconds()
    spark.stop()
    jvm.stdin.close()
    jvm.wait(timeout=60)
    return max(0.0, before - own_seconds())


def _compare(found: dict[str, Any], size: dict[str, int]) -> None:
    """Check that the contenders have read all bodies."""
    expected = {BODY.format(protocol): n for protocol, n in size.items()}
    expected |= {PARQUET: size[DETAILED], TEXT: size[DETAILED]}
    if any(found[name] != n for name, n in expected.items()):
        raise NotExact(f"bytes of bodies: {found}, there are {expected}")


def _queries(spark: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    capture = folder / DETAILED

    def logs(schema: str, protocol: str = DETAILED) -> Any:
        return spark.read.format("logclient").schema(schema).load(str(folder / protocol))

    bodies = logs("body binary, error string").where("error is null").select("body")
    bodies.write.parquet(str(folder / "parquet"))
    bodies.selectExpr("cast(body as string) as value").write.text(str(folder / "text"))

    def summed(frame: Any, expression: str) -> Callable[[], Any]:
        return lambda: frame.selectExpr(f"sum({expression}) as n").collect()[0].n

    every = spark.read.format("logclient").load(str(capture))
    chunk = bytearray(4 << 20)

    def read() -> int:
        size = 0
        for path in sorted(capture.iterdir()):
            with open(path, "rb", buffering=0) as file:
                while got := file.readinto(chunk):
                    size += got
        return size

    return {
        **{
            BODY.format(protocol): summed(logs("body binary", protocol), "length(body)")
            for protocol in frames_data.PROTOCOLS
        },
        AGAIN: summed(logs("body binary"), "length(body)"),
        ALL: summed(every, "length(body) + length(peer) + hash % 2"),
        PARSED: summed(
            logs("body binary"),
            "length(from_json(cast(body as string), 'map<string,string>')['message'])",
        ),
        PARQUET: summed(spark.read.parquet(str(folder / "parquet")), "length(body)"),
        TEXT: summed(spark.read.text(str(folder / "text")), "length(value)"),
        READ: read,
    }
