"""The contenders of row `verify`, each a separate process that answers with one line for each run.

``python -m bench.verify_run NAME FOLDER`` prints a JSON line when it is ready, and one for each line of
input: the counts of every producer, and the resources that the process and its children used for the run.

- ``ours``: `logclient.verify.job.run` on one Spark session, from the ledger and capture files.
- ``whole``: the same with all that it can write: violations, report and verdict.
- ``local``: the same as ``whole`` in this process, without Spark.
- ``decode``: the preparation for the peers: ledger and capture are decoded by our codecs into two Parquet
  files, in two processes.
- ``duckdb``, ``polars``: the same counts from those files.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from binascii import a2b_base64
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from bench.verify_data import named

THREADS = 2
MEMORY_GB = 4
PR_SET_CHILD_SUBREAPER = 36
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


# -- resources of a tree of processes


def tree(root: int) -> list[int]:
    """Return `root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu(root: int) -> float:
    """Return the CPU seconds of the tree; a process includes the ended children for which it waited."""
    ticks = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(value) for value in fields[11:15])
    return ticks / TICK


def resident(root: int) -> int:
    """Return the resident bytes of the tree; shared pages count for each process."""
    pages = 0
    for pid in tree(root):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * PAGE


class Used:
    """The CPU, wall time and peak memory of this process and its children. A context manager."""

    def __enter__(self) -> Used:
        self.peak = self.driver = 0  # `driver`: this process alone
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._cpu, self._wall = cpu(os.getpid()), time.monotonic()
        self._thread.start()
        return self

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, resident(os.getpid()))
            self.driver = max(self.driver, int(Path("/proc/self/statm").read_text().split()[1]) * PAGE)
            if self._stop.wait(0.1):
                return

    def __exit__(self, *_: object) -> None:
        self.wall = time.monotonic() - self._wall
        self.cpu = cpu(os.getpid()) - self._cpu
        self._stop.set()
        self._thread.join()


# -- ours


def _ours(folder: Path, **options: Any) -> dict[str, Any]:
    from logclient.verify import job

    verdict = job.run(folder / "ledger", folder / "capture", **options)
    counts = {x.producer: x.counts._asdict() for x in verdict.producers}
    return {"counts": counts, "total": verdict.counts._asdict(), "seconds": verdict.seconds}


@contextmanager
def ours(folder: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    from logclient.verify import job

    with job.Session(f"local[{THREADS}]") as session:
        yield lambda: _ours(folder, spark=session.spark)


@contextmanager
def whole(folder: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    from logclient.verify import job

    with job.Session(f"local[{THREADS}]") as session:
        yield lambda: _ours(folder, spark=session.spark, out=folder / "verdict")


@contextmanager
def local(folder: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    yield lambda: _ours(folder, runner="local", out=folder / "verdict")


# -- the Parquet files for the peers


def _ledger_table(path: str, p: int) -> Any:
    """Read one ledger file into a table with a row for each sequence."""
    import pyarrow as pa

    fates = {"dropped": 1, "failed": 2, "handed": 3, "acked": 4}
    sequences, hashes, listed = [], [], []
    ranges: list[tuple[int, int, int]] = []
    with Path(path).open("rb") as file:
        for line in file:
            fields = json.loads(line)
            if fields["t"] == "batch":
                sequences += [np.arange(a, b + 1) for a, b in fields["seqs"]]
                hashes.append(np.frombuffer(a2b_base64(fields["hashes"]), "<u8"))
                listed.append(np.ones(fields["n"], bool))
            elif fields["t"] in ("outcome", "dropped"):
                fate = fates[fields.get("status", "dropped")]
                ranges += [(a, b, fate) for a, b in fields["seqs"]]
                if fate == 1:
                    gone = [np.arange(a, b + 1) for a, b in fields["seqs"]]
                    sequences += gone
                    n = sum(map(len, gone))
                    hashes.append(np.zeros(n, np.uint64))
                    listed.append(np.zeros(n, bool))
    sequence = np.concatenate(sequences)
    fate_of = np.zeros(int(sequence.max()) + 1, np.int8)
    for a, b, fate in ranges:
        fate_of[a : b + 1] = np.maximum(fate_of[a : b + 1], fate)
    mask = ~np.concatenate(listed)
    return pa.table(
        {
            "producer": pa.array(np.full(len(sequence), p, np.int32)),
            "sequence": pa.array(sequence),
            "hash": pa.array(np.concatenate(hashes), mask=mask if mask.any() else None),
            "fate": pa.array(fate_of[sequence]),
        }
    )


def _decode_ledgers(paths: list[str], out: str) -> None:
    import pyarrow.parquet as pq

    writer = None
    for p, path in enumerate(paths):
        table = _ledger_table(path, p)
        writer = writer or pq.ParquetWriter(out, table.schema, **STORED)
        writer.write_table(table, ROWS)
    assert writer is not None
    writer.close()


def _decode_segments(listed: list[tuple[int, Any]], prefixes: bytes, out: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from logclient.evidence import decode, segments

    find = decode.decoder("lumberjack", prefixes)
    writer = None
    for rank, segment in listed:
        for batch in segments.SegmentReader(segments.Segment(*segment)):
            part = batch.take(np.flatnonzero(batch.direction == 0))
            events = find(part)
            known, named = events.status == decode.OK, events.id_hash
            table = pa.table(
                {
                    "producer": pa.array(events.producer),
                    # An id without a producer is identified by its own bits, or those of its hash.
                    "sequence": pa.array(
                        np.where(known, events.sequence, (named[:, 0] ^ named[:, 1]).astype(np.int64))
                    ),
                    "hash": pa.array(events.hash),
                    "arrival": pa.array(part.arrival[events.unit].astype(np.int64) + (rank << 40)),
                }
            )
            writer = writer or pq.ParquetWriter(out, table.schema, **STORED)
            writer.write_table(table, ROWS)
    assert writer is not None
    writer.close()


STORED: dict[str, Any] = {
    "compression": "lz4",
    "use_dictionary": ["producer", "fate"],
}
ROWS = 1 << 18  # rows in a row group


@contextmanager
def decoded(folder: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    from logclient.evidence import ledger_files
    from logclient.evidence.segments import list_segments

    def once() -> dict[str, Any]:
        parts = ledger_files.find_ledgers([str(folder / "ledger")]).parts
        prefixes = b"".join(bytes.fromhex(part.producer) for part in parts)
        segments = [(0, tuple(segment)) for segment in list_segments([str(folder / "capture")])[0]]
        plain = folder / "plain"
        plain.mkdir(exist_ok=True)
        for old in plain.iterdir():
            old.unlink()
        half = (len(segments) + 1) // 2
        with ProcessPoolExecutor(THREADS) as pool:
            waiting = [
                pool.submit(_decode_segments, some, prefixes, str(plain / f"arrivals-{i}.parquet"))
                for i, some in enumerate((segments[:half], segments[half:]))
                if some
            ]
            waiting.append(
                pool.submit(_decode_ledgers, [part.path for part in parts], str(plain / "ledger.parquet"))
            )
            for future in waiting:
                future.result()
        return {"counts": {}}

    yield once


# -- peers: for one listener, closed ledgers, and events with ids; the words of docs/verify-rules.md

DUCKDB = """
with arrived as (
    select producer, sequence, count(*) as copies, min(arrival) as first,
           min(hash) as low, max(hash) as high
    from read_parquet('{plain}/arrivals-*.parquet') group by all
), judged as (
    select coalesce(l.producer, a.producer) as producer, l.fate, l.hash is not null as listed,
           copies, first, low <> l.hash or high <> l.hash as bad,
           first > min(first) over (
               partition by l.producer order by l.sequence desc
               rows between unbounded preceding and 1 preceding
           ) and listed as late
    from read_parquet('{plain}/ledger.parquet') l full join arrived a
      on a.producer = l.producer and a.sequence = l.sequence
)
select producer,
       count(*) filter (listed and copies > 0 and not bad and fate >= 3),
       count(*) filter (listed and copies is null and fate = 4),
       count(*) filter (listed and copies is null and fate <> 4),
       count(*) filter (listed and copies > 0 and not bad and fate < 3),
       count(*) filter (listed and copies > 0 and bad),
       count(*) filter (not listed and copies is null),
       count(*) filter (not listed and copies > 0),
       coalesce(sum(copies - 1) filter (listed and copies > 0), 0),
       count(*) filter (late)
from judged group by producer
"""


@contextmanager
def duckdb(folder: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    import duckdb as db

    names = [path.name.partition("-")[0] for path in sorted((folder / "ledger").iterdir())]
    connection = db.connect()
    connection.execute(f"set threads = {THREADS}")
    connection.execute(f"set memory_limit = '{MEMORY_GB}GB'")
    connection.execute(f"set temp_directory = '{folder / 'spill'}'")
    connection.execute("set preserve_insertion_order = false")

    def once() -> dict[str, Any]:
        rows = connection.execute(DUCKDB.format(plain=folder / "plain")).fetchall()
        return {"counts": named(iter(rows), names)}

    yield once
    connection.close()


@contextmanager
def polars(folder: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    os.environ["POLARS_MAX_THREADS"] = str(THREADS)
    import polars as pl

    names = [path.name.partition("-")[0] for path in sorted((folder / "ledger").iterdir())]

    def once() -> dict[str, Any]:
        arrived = (
            pl.scan_parquet(folder / "plain" / "arrivals-*.parquet")
            .group_by("producer", "sequence")
            .agg(
                pl.len().alias("copies"),
                pl.col("arrival").min().alias("first"),
                pl.col("hash").min().alias("low"),
                pl.col("hash").max().alias("high"),
            )
        )
        listed, seen = pl.col("hash").is_not_null(), pl.col("copies").is_not_null()
        bad = (pl.col("low") != pl.col("hash")) | (pl.col("high") != pl.col("hash"))
        first = pl.when(listed).then(pl.col("first"))
        after = first.cum_min(reverse=True).shift(-1).fill_null(strategy="backward")
        joined = (
            pl.scan_parquet(folder / "plain" / "ledger.parquet")
            .join(arrived, on=["producer", "sequence"], how="full", coalesce=True)
            .sort("producer", "sequence")
            .with_columns(late=first > after.over("producer"))
        )
        fate = pl.col("fate")
        rows = (
            joined.group_by("producer")
            .agg(
                (listed & seen & ~bad & (fate >= 3)).sum(),
                (listed & ~seen & (fate == 4)).sum().alias("lost"),
                (listed & ~seen & (fate != 4)).sum().alias("missing"),
                (listed & seen & ~bad & (fate < 3)).sum().alias("recovered"),
                (listed & seen & bad).sum().alias("corrupted"),
                (~listed & ~seen).sum().alias("dropped"),
                (~listed & seen).sum().alias("unexpected"),
                (pl.col("copies").cast(pl.Int64) - 1).filter(listed & seen).sum().alias("duplicated"),
                pl.col("late").sum().alias("reordered"),
            )
            .collect(engine="streaming")
        )
        return {"counts": named(rows.iter_rows(), names)}

    yield once


CONTENDERS = {
    "ours": ours, "whole": whole, "local": local, "decode": decoded, "duckdb": duckdb, "polars": polars,
}  # fmt: skip


def adopt() -> None:
    """Become the parent of all descendants whose own parents end, on Linux."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> None:
    """Wait for all children: the CPU of others is taken for that of other programs."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    adopt()
    answers, sys.stdout = sys.stdout, sys.stderr
    first: dict[str, int] = {}  # the memory of this process when it was ready

    def answer(used: Used, fields: dict[str, Any]) -> None:
        ready = first.setdefault("driver", used.driver)
        fields |= {"cpu": used.cpu, "wall": used.wall, "peak": used.peak}
        fields |= {"driver": used.driver, "driver_growth": used.driver - ready}
        print(json.dumps(fields), file=answers, flush=True)

    with ExitStack() as stack:
        with Used() as used:
            once = stack.enter_context(CONTENDERS[name](folder))
        answer(used, {"ready": name})
        for _ in sys.stdin:
            with Used() as used:
                found = once()
            answer(used, found)
    if (spark := sys.modules.get("pyspark")) and (gateway := spark.SparkContext._gateway):
        gateway.proc.stdin.close()  # else the JVM stays until this process ends
    reap()


if __name__ == "__main__":
    main()
