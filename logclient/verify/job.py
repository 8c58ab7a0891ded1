"""One verification, from two folders to a verdict: the Spark session, the two stages, the files it leaves.

::

    verdict = run("run/ledger", "run/capture", out="run/verdict")
    verdict.exit_code, verdict.counts.lost, verdict.to_json()

Spark is asked for three jobs: pack the ledgers, compare, and, seldom, compare some buckets again. All data
is read by the Python workers themselves, from folders that every worker must see (on a cluster: shared
storage, `work` too). What goes to `out` is written by the driver.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from logclient.errors import ConfigError, ExitCode, LedgerError, LogclientError
from logclient.verify.spark import Session, VerifyError, Watch, extras, is_local, no_pandas, quiet, remove

if TYPE_CHECKING:
    import argparse

    import pyarrow as pa

    from logclient.verify import captures
    from logclient.verify.ledger import Ledger, Parts
    from logclient.verify.records import Source
    from logclient.verify.verdict import Tally, Verdict

__all__ = ["Session", "VerifyError", "connector", "main", "run", "violations"]

BITS = 18  # a bucket has 262,144 sequences: 10 MB while it is judged
TAIL = 4096  # arrivals of a bucket that its later ones are compared with, without a second pass
POOL_SHARE = 1 << 18  # events without ids in one share
SMALL_BUCKETS = 4096  # in one task
TASK_BYTES = 64 << 20  # of segments in one task
PACK_BYTES = 32 << 20  # of ledgers in one task
PARTS = "parts.npy"  # in the work folder: which files there are


# What the workers run. Functions made here are sent by value, what they call is imported there.


@functools.cache
def _settle() -> None:
    """Once in a worker, with everything imported: PySpark collects garbage after each task, and would look
    through all of that again and again."""
    gc.freeze()


def _look_in(places: list[tuple[str, str]]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def look(_: Iterable[Any]) -> Iterator[tuple[str, str, str]]:
        import socket

        for what, folder in places:
            if not os.path.isdir(folder):
                yield what, folder, f"the worker on {socket.gethostname()}"

    return look


def _pack_in(
    jobs: list[tuple[int, int]], folder: str, work: str, until_us: int | None
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def pack(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from logclient.verify import ledger

        _settle()
        for batch in batches:
            for job in batch.column(0).to_pylist():
                low, high = jobs[job]
                group = ledger.Parts.load(folder, os.path.join(work, PARTS), slice(low, high))
                yield pa.record_batch(
                    [[job], [ledger.pack(group, job, work, until_us)]], names=["job", "stem"]
                )

    return pack


def _map_in(work: str, only: frozenset[int] | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run_map(batches: Iterable[Any]) -> Iterator[Any]:
        from logclient.verify import gather

        _settle()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from gather.map_task(work, task, only)

    return run_map


def _records_in(work: str, only: frozenset[int] | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run_records(batches: Iterable[Any]) -> Iterator[Any]:
        from logclient.verify import records

        _settle()
        yield from records.map_task(work, batches, only)

    return run_records


def _reduce_in(
    work: str, later: dict[tuple[int, int], int] | None
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run_reduce(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from logclient.verify import compare

        _settle()
        yield pa.record_batch([[compare.reduce_to_file(batches, work, later)]], names=["name"])

    return run_reduce


def _ddl(schema: pa.Schema) -> str:
    names = {"int32": "int", "int64": "bigint", "string": "string", "binary": "binary"}
    return ", ".join(f"`{field.name}` {names[str(field.type)]}" for field in schema)


class _Spark:
    """The three jobs, on a session; with records, what arrived is a frame of its own."""

    def __init__(self, spark: Any, source: Source | None = None) -> None:
        self.spark = spark
        self.source = source
        self.cores: int = spark.sparkContext.defaultParallelism

    def look(self, work: str, folders: dict[str, str]) -> None:
        """See whether workers elsewhere see the folders that they read and write.

        Raises:
            LedgerError: one does not; it would otherwise be found later, and many times.
        """
        if is_local(self.spark.sparkContext.master):
            return
        places = [("work", work), *((what, os.path.abspath(path)) for what, path in folders.items() if path)]
        # No SQL and no Arrow, whose first use takes seconds: somebody waits for the error.
        n = 2 * self.cores
        asked = self.spark.sparkContext.parallelize(range(n), n).mapPartitions(_look_in(places))
        for unseen in asked.collect()[:1]:
            raise _unseen(*unseen)

    def _over(self, n: int, function: Any, ddl: str) -> Any:
        with no_pandas():
            return self.spark.range(0, n, 1, n).mapInArrow(function, ddl)

    def pack(self, parts: Parts, work: str, until_us: int | None) -> list[str]:
        jobs = [(some[0], some[-1] + 1) for some in _share(parts.sizes, PACK_BYTES)]
        parts.save(os.path.join(work, PARTS))
        task = _pack_in(jobs, parts.directory, work, until_us)
        rows = self._over(len(jobs), task, "job bigint, stem string").collect()
        return [row.stem for row in sorted(rows, key=lambda row: int(row.job))]

    def compare(
        self, plan: Any, only: frozenset[int] | None = None, later: dict[tuple[int, int], int] | None = None
    ) -> list[str]:
        """The names of the files that tasks left in the work folder; see `compare.results`."""
        from logclient.verify.compare import ARRIVALS

        arrivals = self._over(len(plan.tasks), _map_in(plan.work, only), _ddl(ARRIVALS))
        if self.source is not None:
            with no_pandas():
                records = self.source.frame.mapInArrow(_records_in(plan.work, only), _ddl(ARRIVALS))
            arrivals = arrivals.union(records)
        if hasattr(arrivals, "repartitionById"):
            spread = arrivals.repartitionById(plan.partitions, "part")
        else:  # PySpark 4.0: by a hash of the same number, a little less even
            spread = arrivals.repartition(plan.partitions, "part")
        ordered = spread.sortWithinPartitions("key", "listener", "x")
        with no_pandas():
            results = ordered.mapInArrow(_reduce_in(plan.work, later), "name string")
            with self._in_large_batches():
                return [row.name for row in results.collect()]

    def pick(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
        """See `records.Source.pick`."""
        assert self.source is not None
        with no_pandas(), self._in_large_batches():
            return self.source.pick(wanted)

    @contextlib.contextmanager
    def _in_large_batches(self) -> Iterator[None]:
        """Records come from the JVM by the thousand; our own rows, which are few, by the dozen."""
        from logclient.verify.records import BATCH_BYTES, RECORDS

        settings = {"maxRecordsPerBatch": RECORDS, "maxBytesPerBatch": BATCH_BYTES} if self.source else {}
        before = {}
        for name, value in settings.items():
            key = f"spark.sql.execution.arrow.{name}"
            before[key] = self.spark.conf.get(key, None)
            self.spark.conf.set(key, str(value))
        try:
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    self.spark.conf.unset(key)
                else:
                    self.spark.conf.set(key, old)


def _share(sizes: list[int], most: int) -> list[list[int]]:
    """Indices in groups of about `most` bytes, the order kept."""
    groups: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if not groups or room < size or len(groups[-1]) >= 512:
            groups.append([])
            room = most
        groups[-1].append(index)
        room -= size
    return groups


# -- the verification


def run(
    ledger: str | os.PathLike[str],
    capture: str | os.PathLike[str] | None = None,
    *,
    kafka: str | None = None,
    kafka_config: str | os.PathLike[str] | Mapping[str, str] | None = None,
    table: str | None = None,
    columns: Mapping[str, str] | None = None,
    out: str | os.PathLike[str] | None = None,
    master: str | None = None,
    heap: str | None = None,
    packages: str | None = None,
    conf: Mapping[str, str] | None = None,
    max_missing: int | str | None = None,
    max_duplicated: int | str | None = None,
    max_dropped: int | str | None = None,
    allow_open: bool = False,
    until: float | str | None = None,
    examples: int = 20,
    work: str | os.PathLike[str] | None = None,
    spark: Any = None,
    progress: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    bits: int = BITS,
    tail: int = TAIL,
    units: int = 0,
    chunk: int = 0,
) -> Verdict:
    """Compare a ledger with what arrived: a capture, a Kafka topic, or a table.

    Args:
        ledger: folder of the producers' ledgers.
        capture: folder of the collectors' captures.
        kafka: ``host:port[,host:port…]/topic[,topic…]``: each record's value is the body of an event.
        kafka_config: settings of the consumer, as Kafka names them, or a file of such lines.
        table: a table, a folder of Parquet files, or ``FORMAT:PATH``: each row has the body of an event.
        columns: some of ``body`` (``value`` when not given), ``received``, ``key``, ``listener`` and
            ``arrival`` -> the table's column.
        out: folder for ``verdict.json``, ``report.html`` and ``violations/`` (every fault, as Parquet:
            `violations` reads it); made with mode 0700 when missing.
        master: Spark master; when nobody says it, here, to ``spark-submit`` or in its files, ``local[*]``.
        heap: of the driver's JVM, as ``1g``.
        packages: Maven coordinates and folders of jars, with commas between them. Spark's Kafka connector
            (of PySpark's version) is fetched when `kafka` is given and no packages are.
        conf: more settings of Spark.
        max_missing, max_duplicated, max_dropped: more than this count, or ``"0.1%"`` of all events,
            breaks the promise.
        allow_open: a ledger without a ``close`` line is no fault by itself: its producer may be alive.
        until: what was made later need not be decided yet: seconds since 1970, or ISO 8601 (UTC unless it
            says otherwise). Needs `allow_open`.
        examples: how many of each fault are shown with their bytes.
        work: where the packed ledgers go (16 bytes an event) and what arrived (24), deleted at the end; on
            a cluster it must be shared. The system's temporary folder when not given.
        spark: a SparkSession. When not given the active one, or else one of our own, which is stopped.
        progress: called a few times a second, from another thread, with a line such as
            ``comparing 43%, 12 s``; with an empty one when it is over.
        stop: once it is set, by another thread, the verification ends with a `VerifyError`.
        bits, tail, units, chunk: sizes of buckets, tails, batches and reads; for tests.

    Raises:
        LedgerError: a folder cannot be read, holds nothing, cannot be seen by workers, or `out` cannot be
            written; no such topic or table, or one that cannot be read as asked.
        ConfigError: a limit that is neither a count nor a share, a protocol that cannot be decoded, not
            exactly one of `capture`, `kafka` and `table`, or a setting that comes too late for a session.
        MissingExtra: PySpark, pyarrow or numpy is not installed.
        VerifyError: no Java, or Spark fails.
    """
    extras()
    from logclient.verify import captures, records
    from logclient.verify import ledger as ledgers
    from logclient.verify.verdict import Limits

    if sum(given is not None for given in (capture, kafka, table)) != 1:
        raise ConfigError("capture, kafka, table: exactly one of them says what arrived")
    started = time.monotonic()
    limits = Limits.read(missing=max_missing, duplicated=max_duplicated, dropped=max_dropped)
    until_us = _until(until)
    if until is not None and not allow_open:
        raise ConfigError("until: it needs allow_open, which says that producers may be alive")
    parts = ledgers.parts(os.fspath(ledger))
    survey = captures.survey(os.fspath(capture)) if capture is not None else captures.Survey([], [], [])
    if capture is not None:
        parts = parts.plus(ledgers.newcomers(os.fspath(ledger), parts))
    unread = ledgers.unread(os.fspath(ledger))
    settings: Mapping[str, str] = {}
    if kafka is not None:
        records.parse_address(kafka)
        if isinstance(kafka_config, str | os.PathLike):
            kafka_config = records.read_config(kafka_config)
        settings = kafka_config or {}
    folder, made = _out(out)
    own = _work(work)
    session = None
    hard = True
    with _taken_back(made), quiet(), Watch(progress, stop) as watch:
        try:
            session = Session(
                master, heap=heap, packages=packages, conf=conf, spark=spark,
                connector=connector() if kafka is not None else "",
            )  # fmt: skip
            watch.use(session)
            watch.check()
            ready = time.monotonic()
            source: Source | None = None
            if capture is None:
                # What is acknowledged by now is in the topic by the time it is asked how long it is.
                parts = ledgers.parts(os.fspath(ledger))
            if kafka is not None:
                source = records.Kafka(session.spark, kafka, settings)
            elif table is not None:
                source = records.Table(session.spark, table, columns or {})
            if capture is None:
                parts = parts.plus(ledgers.newcomers(os.fspath(ledger), parts))
            jobs = _Spark(session.spark, source)
            jobs.look(own, {"ledger": os.fspath(ledger), "capture": os.fspath(capture or "")})
            verdict = _Verification(
                jobs, source, watch, own, folder, survey, examples, bits, tail, units, chunk
            ).run(
                parts,
                unread,
                limits,
                allow_open,
                until_us,
            )
            watch.step("writing the report")
            hard = False
        except LogclientError:
            hard = watch.stop.is_set()
            raise
        except Exception as error:
            hard = watch.stop.is_set()
            watch.check()
            raise _error(error, own) from error
        finally:
            watch.release()
            if session is not None:
                session.stop(hard=hard)
            remove(own)
    seconds = {
        "start": round(ready - started, 3),
        **verdict.seconds,
        "total": round(time.monotonic() - started, 3),
    }
    verdict = verdict._replace(
        seconds=seconds,
        made_us=time.time_ns() // 1000,
        ledger={"folder": os.fspath(ledger), **verdict.ledger},
        capture={"folder": source.told if source else os.fspath(capture or ""), **verdict.capture},
    )
    if folder:
        from logclient.verify import report

        _write(os.path.join(folder, "verdict.json"), json.dumps(verdict.to_json(), indent=1) + "\n")
        _write(os.path.join(folder, "report.html"), report.page(verdict))
    return verdict


def connector() -> str:
    """The Maven coordinates of Spark's Kafka connector."""
    from pyspark import __version__

    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"


def _error(error: Exception, work: str) -> LogclientError:
    """One line of what Spark says in hundreds; what a task says in our own words is told as it is."""
    text = str(error)
    found = re.findall(
        r"^(?:: |Caused by: )?(?:[\w.]*\.)?(\w*(?:Error|Exception)): (.+)$", text, re.MULTILINE
    )
    own = [
        (kind, words)
        for kind, words in found
        if not kind.startswith(("Py4J", "SparkException", "PythonException"))
    ]
    if not own:
        words = text.strip().split(chr(10))[0] or type(error).__name__
        return VerifyError(f"spark: {words[:500]}")
    kind, words = own[-1]
    words = words[:500]
    if kind in ("ConfigError", "LedgerError"):
        return (ConfigError if kind == "ConfigError" else LedgerError)(words)
    if kind == "FileNotFoundError" and work in words:
        return _unseen("work", work, "a worker")
    return VerifyError(f"spark: {kind}: {words}")


def _unseen(what: str, folder: str, who: str) -> LedgerError:
    if what == "work":
        how = "give --work (work=) a folder that all machines share"
    else:
        how = "workers read it themselves: put it on storage that all machines share"
    return LedgerError(f"{what}: {who} cannot see {folder}: {how}")


def _work(work: str | os.PathLike[str] | None) -> str:
    try:
        return os.path.abspath(tempfile.mkdtemp(prefix="logclient-verify-", dir=work))
    except OSError as error:
        raise LedgerError(f"work: {os.fspath(work or tempfile.gettempdir())}: {error.strerror}") from error


def _until(given: float | str | None) -> int | None:
    """A time, in microseconds since 1970.

    Raises:
        ConfigError: it is none.
    """
    if given is None:
        return None
    try:
        if isinstance(given, str) and not given.replace(".", "", 1).isdigit():
            at = datetime.datetime.fromisoformat(given)
            at = at.replace(tzinfo=at.tzinfo or datetime.UTC)
            since = at - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            return since // datetime.timedelta(microseconds=1)
        us = round(float(given) * 1_000_000)
        if abs(us) < 1 << 60:
            return us
    except (ValueError, OverflowError):
        pass
    raise ConfigError(f"until: {str(given)[:40]!r} must be a time such as 2026-05-01T12:00:00Z")


def _out(out: str | os.PathLike[str] | None) -> tuple[str, list[str]]:
    """The folder, ready to be written to; and which folders are new."""
    if out is None:
        return "", []
    folder = os.path.abspath(out)
    faults = os.path.join(folder, "violations")
    made = [path for path in (faults, folder) if not os.path.lexists(path)]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.makedirs(faults, mode=0o700, exist_ok=True)
        os.chmod(faults, 0o700)
        for name in os.listdir(faults):  # of an earlier verdict; what is not ours stays
            if name.endswith(".parquet"):
                os.unlink(os.path.join(faults, name))
    except OSError as error:
        raise LedgerError(f"out: {folder}: {error.strerror}") from error
    return folder, made


@contextlib.contextmanager
def _taken_back(made: list[str]) -> Iterator[None]:
    """When it fails, these folders go, the inner ones first, unless there is something in them."""
    try:
        yield
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        raise


def _create(path: str) -> IO[bytes]:
    """A new file that its owner alone may read."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return open(os.open(path, flags, 0o600), "wb")


def _write(path: str, text: str) -> None:
    try:
        with _create(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise LedgerError(f"out: {path}: {error.strerror}") from error


class _Verification:
    def __init__(
        self,
        spark: _Spark,
        source: Source | None,
        watch: Watch,
        work: str,
        out: str,
        survey: captures.Survey,
        examples: int,
        bits: int,
        tail: int,
        units: int,
        chunk: int,
    ) -> None:
        from logclient.verify import sources

        self.spark = spark
        self.source = source
        self.watch = watch
        self.work = work
        self.out = out
        self.survey = survey
        self.entries = survey.entries
        self.examples = examples
        self.bits = bits
        self.tail = tail
        self.units = units or sources.UNITS
        self.chunk = chunk or sources.CHUNK

    def run(
        self, parts: Parts, unread: list[str], limits: Any, allow_open: bool, until_us: int | None
    ) -> Verdict:
        from logclient.verify import captures, compare
        from logclient.verify import ledger as ledgers

        began = time.monotonic()
        self.watch.step("packing ledgers")
        stems = self.spark.pack(parts, self.work, until_us)
        packed = ledgers.merge(stems, self.work, self.bits, unread)
        plan = self.plan(packed)
        plan.save()
        done = time.monotonic()
        seconds = {"pack": round(done - began, 3)}
        tally = self.tally(plan, packed, "comparing")
        since = packed.span[0] if packed.span[0] <= packed.span[1] else None
        others = captures.foreign(tally.facts, tally.matched, since)
        if others:  # once more without them: what is theirs is in all the sums
            facts = [fact for fact in tally.facts if fact["name"] in others]
            plan = plan.without(others)
            plan.save()
            tally = self.tally(plan, packed, "comparing without other runs")
            tally.others = facts
        self.watch.step("adding up")
        if self.source is not None:
            self.source.check(tally.facts)
            tally.facts += self.source.silent(tally.facts)
        writer = compare._Violations(plan.violations, packed)
        tally.stitch(writer)
        tally.unlisted(writer)
        tally.files.append(writer.close())
        found = tally.verdict(limits, allow_open)
        doubtful = tally.doubts()[1]
        if plan.violations:
            faults = os.path.join(self.out, "violations")
            _keep(plan.violations, faults, set(tally.files), packed, doubtful)
        from logclient.verify import examples

        self.watch.step("reading examples")

        pick = self.spark.pick if self.source is not None else None
        shown = examples.resolve(tally.chosen(), plan, doubtful, packed, pick)
        examples.undecoded(found.undecoded, plan, pick)
        if not plan.timed:
            found = found.untimed()
        seconds["compare"] = round(time.monotonic() - done, 3)
        seconds["second_passes"] = float(tally.second_passes)
        return found._replace(examples=shown, seconds=seconds)

    def tally(self, plan: Any, packed: Ledger, step: str) -> Tally:
        """Compare: what all tasks have counted."""
        from logclient.verify import verdict

        tally = verdict.Tally(plan, packed, functools.partial(self.again, plan))
        self.watch.step(step)
        for name in self.spark.compare(plan):
            self.watch.check()
            tally.read(name)
        return tally

    def again(self, plan: Any, only: frozenset[int], later: dict[tuple[int, int], int]) -> list[str]:
        self.watch.step("comparing again")
        return self.spark.compare(plan, only, later)

    def groups(self) -> list[list[int]]:
        """Segments for each task: some, or where events have several units all of a listener, in order."""
        from logclient.verify import decode

        alone = []
        of_listener: dict[int, list[int]] = {}
        for index, (_, listener, _, protocol) in enumerate(self.entries):
            if protocol and decode.carries(protocol):
                of_listener.setdefault(listener, []).append(index)
            else:
                alone.append(index)
        shared = _share([self.entries[index][0][3] for index in alone], TASK_BYTES)
        return [*([alone[i] for i in group] for group in shared), *of_listener.values()]

    def plan(self, packed: Ledger) -> Any:
        from logclient.verify import captures
        from logclient.verify.compare import Plan
        from logclient.verify.overview import Grid

        tasks: list[dict[str, list[int]]] = [{"segments": group} for group in self.groups()]
        # Files with events that are compared by hash alone are a task each.
        files, events = packed.by_hash()
        pools = max(16, -(-events // POOL_SHARE)) if files else 0
        tasks += [{"pool": [file]} for file in files]
        tasks = tasks or [{}]  # somebody must say of each bucket that it is there
        n = len(packed.live)
        for i, task in enumerate(tasks):
            task["live"] = [i * n // len(tasks), (i + 1) * n // len(tasks)]
        cores = self.spark.cores
        # Tasks of a second or so, whatever the size of the whole: 16 full buckets, or some thousand nearly
        # empty ones, of producers that were short-lived.
        listed = int(packed.rows["listed"].sum())
        shares = max(listed // (16 << self.bits), n // SMALL_BUCKETS)
        violations = os.path.join(self.work, "violations") if self.out else ""
        if violations:
            os.mkdir(violations, 0o700)
        unjudged, published = captures.orders(self.survey.listeners)
        if self.source is not None:
            published = [family for family in packed.families if family == "logjam"]  # it came by a device
        return Plan(
            work=self.work,
            bits=self.bits,
            units=self.units,
            chunk=self.chunk,
            tail=self.tail,
            examples=self.examples,
            partitions=max(cores, min(4 * cores, n), min(shares, n)),
            pools=pools,
            segments=self.entries,
            tasks=tasks,
            violations=violations,
            grid=[*Grid.over(*packed.span)],
            families=len(packed.families),
            app_envs=_app_envs(packed.urls),
            ordered=self.source is None or self.source.numbered,
            timed=self.source is None or self.source.timed,
            records=self.source.plan(_only(packed.families)) if self.source is not None else None,
            listeners=self.survey.listeners,
            left_out=self.survey.left_out,
            unjudged=unjudged,
            published=published,
        )


def _app_envs(urls: list[tuple[str, str]]) -> list[str]:
    """Those of the Logjam producers' URLs; nothing when one has none: a server has the messages of many."""
    found = {
        url.partition("://")[2].partition("?")[0].partition("/")[2]
        for protocol, url in urls
        if protocol == "logjam"
    }
    return [] if "" in found else sorted(found)


def _only(families: list[str]) -> str:
    """The protocol of records: the ledgers'."""
    from logclient.verify import decode

    named = [family for family in families if family]
    if len(named) != 1:
        what = " and ".join(sorted(named)) or "no protocol"
        raise ConfigError(f"ledger: it is of {what}: the bodies of a topic or table are of one protocol")
    decode.bodies(named[0])
    return named[0]


def _names(packed: Ledger, families: set[str]) -> pa.Array:
    """The producers of some protocols."""
    import numpy as np
    import pyarrow as pa

    which = np.isin(packed.family, [i for i, family in enumerate(packed.families) if family in families])
    n = int(which.sum())
    digits = pa.py_buffer(packed.rows["prefix"][which].tobytes().hex().encode())
    return pa.StringArray.from_buffers(n, pa.py_buffer(np.arange(0, 20 * n + 1, 20, dtype=np.int32)), digits)


def _keep(work: str, folder: str, names: set[str], packed: Ledger, doubtful: set[str]) -> None:
    """Bring the files of the tasks that count to `folder`; in doubt, what was sent and not seen becomes
    unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from logclient.verify.compare import VIOLATIONS

    touched = _names(packed, doubtful)
    for number, name in enumerate(sorted(names - {""}), 1):
        path = os.path.join(work, name)
        final = os.path.join(folder, f"part-{number:05d}.parquet")
        with open(path, "rb") as source, _create(final) as sink:
            if not len(touched):
                shutil.copyfileobj(source, sink, 1 << 20)
                continue
            with (
                pq.ParquetFile(source) as file,
                pq.ParquetWriter(sink, VIOLATIONS, compression="zstd") as out,
            ):
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group)
                    unseen = pc.and_(
                        pc.and_(pc.is_in(table["kind"], pa.array(["lost", "missing"])), table["sent"]),
                        pc.is_in(table["producer"], touched),
                    )
                    kind = pc.if_else(unseen, "unknown", table["kind"])
                    out.write_table(table.set_column(0, "kind", kind).cast(VIOLATIONS))


def violations(out: str | os.PathLike[str], kind: str | None = None) -> Iterator[tuple[str, str]]:
    """(kind, id) of every fault of a verdict, ids as 32 hex digits; of one kind only when given.

    What carries no such id comes as the hash of its own id (32 digits behind ``~``) or of its body
    (16 digits behind ``~``).

    Args:
        out: the folder that `run` was given.
    """
    import pyarrow.parquet as pq

    folder = os.path.join(out, "violations")
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".parquet")):
        with pq.ParquetFile(os.path.join(folder, name)) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    if kind is not None and row["kind"] != kind:
                        continue
                    if row["producer"] is None:
                        yield row["kind"], "~" + row["other"]
                        continue
                    for sequence in range(row["first"], row["last"] + 1):
                        yield row["kind"], f"{row['producer']}{sequence:012x}"


def main(
    arguments: argparse.Namespace,
    progress: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> int:
    """``logclient verify``, its command line already read: prints, and gives the exit code.

    Args:
        progress, stop: as for `run`.
    """
    from logclient.readable import escape
    from logclient.verify import report

    given = vars(arguments)
    names = ("kafka", "kafka_config", "table", "columns", "out", "master", "heap", "packages", "work")
    limits = ("max_missing", "max_duplicated", "max_dropped", "until")
    options: dict[str, Any] = {name: given.get(name) for name in (*names, *limits)}
    try:
        verdict = run(
            given["ledger"],
            given["capture"],
            conf=dict(given.get("conf") or ()),
            allow_open=bool(given.get("allow_open")),
            progress=progress,
            stop=stop,
            **options,
        )
    except VerifyError as error:
        if given.get("debug") or (stop is not None and stop.is_set()):
            raise
        print(f"logclient: {escape(str(error))}", file=sys.stderr)
        return ExitCode.UNREACHABLE
    if given.get("json"):
        print(json.dumps(verdict.to_json()))
    else:
        print(report.text(verdict))
        if given.get("out"):
            print(escape(os.path.join(given["out"], "report.html")))
    return verdict.exit_code
