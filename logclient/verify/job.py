"""One verification, from two folders to a verdict: the Spark session, the two stages, the files it leaves.

::

    verdict = run("run/ledger", "run/capture", out="run/verdict")
    verdict.exit_code, verdict.counts.lost, verdict.to_json()

Spark is asked for three jobs: pack the ledgers, compare, and, seldom, compare some buckets again. All data
is read by the Python workers themselves, from folders that every worker must see (on a cluster: shared
storage, `work` too).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from logclient.errors import ConfigError, ExitCode, LedgerError, LogclientError, MissingExtra

if TYPE_CHECKING:
    import argparse

    import pyarrow as pa

    from logclient.verify.records import Source
    from logclient.verify.verdict import Verdict

__all__ = ["Session", "VerifyError", "main", "run", "violations"]

BITS = 18  # a bucket has 262,144 sequences: 10 MB while it is judged
TAIL = 4096  # arrivals of a bucket that its later ones are compared with, without a second pass
POOL_SHARE = 1 << 18  # events without ids in one share
TASK_BYTES = 64 << 20  # of segments in one task
PACK_BYTES = 32 << 20  # of ledgers in one task
HEAP = "1g"


class VerifyError(LogclientError):
    """The comparison itself could not be done: Java, Spark or a worker failed. One line says why."""


# -- Spark


def _java() -> str:
    """The java program PySpark will start.

    Raises:
        VerifyError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    if not java or not os.path.exists(java):
        raise VerifyError(
            f"java: Spark needs Java 17 or newer, and there is none ({where}): install a JRE or set JAVA_HOME"
        )
    found = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', found)
    if version is None or int(version[1]) < 17:
        is_ = f"version {version[1]}" if version else "of no version"
        raise VerifyError(f"java: Spark needs Java 17 or newer, and {java} is {is_}: set JAVA_HOME")
    return java


def _extras() -> None:
    for module in ("pyspark", "pyarrow", "numpy"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "verify")


_LOG4J = """\
status = fatal
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:logclient.log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Session:
    """A Spark session of our own: quiet, on this Python, nothing left behind. A context manager.

    Args:
        master: where to run; ``local[*]`` is this machine, on the loopback address.
        heap: of the JVM (the driver's, with ``local``).
        log: the JVM's log and stderr go to this folder; one of its own, deleted at the end, when empty.
        conf: more settings.

    Raises:
        MissingExtra: no PySpark.
        VerifyError: no Java, or Spark does not start.
    """

    def __init__(
        self, master: str = "local[*]", *, heap: str = HEAP, log: str = "", conf: dict[str, str] | None = None
    ) -> None:
        _extras()
        _java()
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        self._own = tempfile.mkdtemp(prefix="logclient-spark-")
        self.log = os.path.join(log or self._own, "spark.log")
        with open(os.path.join(self._own, "log4j2.properties"), "w") as file:
            file.write(_LOG4J)
        local = master.startswith("local")
        options = " ".join(
            [
                # The JVM's part is small and short: one compiler and the simplest collector cost least.
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                f"-Dlog4j2.configurationFile=file:{self._own}/log4j2.properties",
                f"-Dlogclient.log={self.log}",
            ]
        )
        settings = {
            "spark.master": master,
            "spark.app.name": "logclient verify",
            "spark.driver.memory": heap,
            "spark.driver.extraJavaOptions": options,
            "spark.pyspark.python": sys.executable,
            "spark.pyspark.driver.python": sys.executable,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": self._own,
            "spark.sql.warehouse.dir": os.path.join(self._own, "warehouse"),
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "32",
            # Trivial plans: compiling them costs more than it can save.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.task.maxFailures": "1" if local else "4",
        }
        if local:
            settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        settings |= conf or {}
        spark_conf = SparkConf(loadDefaults=False)
        for key, value in settings.items():
            spark_conf.set(key, value)
        # The setting alone does not do: without the variable, workers are whatever `python3` is on PATH.
        environment = {"PYSPARK_PYTHON": sys.executable} | ({"SPARK_LOCAL_IP": "127.0.0.1"} if local else {})
        try:
            with open(os.path.join(self._own, "stderr"), "wb") as errors, _environment(environment):
                # Not inherited: the JVM and its workers write there what is of no use to a user.
                gateway = launch_gateway(spark_conf, {"stderr": errors, "stdout": errors})  # type: ignore[no-untyped-call]
                self.context = SparkContext(gateway=gateway, conf=spark_conf)
            self.spark = SparkSession(self.context)
        except Exception as error:
            why = self._why() or str(error).split("\n")[0]
            shutil.rmtree(self._own, ignore_errors=True)
            raise VerifyError(f"spark: it does not start: {why}") from error
        self._gateway = gateway

    def _why(self) -> str:
        """The last error line of the JVM, for one-line reports."""
        lines = []
        for path in (self.log, os.path.join(self._own, "stderr")):
            try:
                with open(path, errors="replace") as file:
                    lines += [
                        line.strip()
                        for line in file
                        if "ERROR" in line or "Exception" in line or "Error" in line
                    ]
            except OSError:
                continue
        return lines[-1][:500] if lines else ""

    def stop(self) -> None:
        """End the session and its JVM. Idempotent."""
        if not self._own:
            return
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        with contextlib.suppress(Exception):
            self.spark.stop()
        # SparkContext keeps the gateway for the next one of this process; the JVM would stay with it.
        proc = getattr(self._gateway, "proc", None)
        with contextlib.suppress(Exception):
            self._gateway.shutdown()
        if proc is not None:
            if proc.stdin is not None:
                proc.stdin.close()
            try:
                proc.wait(timeout=10)
            except subprocess.TimeoutExpired:
                proc.kill()
                proc.wait()
        if SparkContext._gateway is self._gateway:
            SparkContext._gateway = None
            SparkContext._jvm = None
        SparkSession._instantiatedSession = None
        shutil.rmtree(self._own, ignore_errors=True)
        self._own = ""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def no_pandas() -> Iterator[None]:
    """`mapInArrow` asks for pandas although nothing here ever makes a DataFrame of it: not asked then."""
    functions: Any = importlib.import_module("pyspark.sql.pandas.functions")
    asked = functions.require_minimum_pandas_version
    if importlib.util.find_spec("pandas") is None:
        functions.require_minimum_pandas_version = lambda: None
    try:
        yield
    finally:
        functions.require_minimum_pandas_version = asked


# What the workers run. Functions made here are sent by value, what they call is imported there.


@functools.cache
def _settle() -> None:
    """Once in a worker, with everything imported: PySpark collects garbage after each task, and would look
    through all of that again and again."""
    gc.freeze()


def _pack_in(jobs: list[list[int]], parts: list[Any], work: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def pack(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from logclient.verify import ledger

        _settle()
        for batch in batches:
            for job in batch.column(0).to_pylist():
                facts = ledger.pack([ledger.Part(*parts[index]) for index in jobs[job]], job, work)
                yield pa.record_batch([[job], [json.dumps(facts)]], names=["file", "facts"])

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
        from logclient.verify import compare

        _settle()
        yield from compare.reduce_task(batches, work, later)

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

    def _over(self, n: int, function: Any, ddl: str) -> Any:
        with no_pandas():
            return self.spark.range(0, n, 1, n).mapInArrow(function, ddl)

    def pack(self, parts: list[Any], work: str) -> list[list[dict[str, Any]]]:
        jobs = _share([part.size for part in parts], PACK_BYTES)
        listed = [tuple(part) for part in parts]
        rows = self._over(len(jobs), _pack_in(jobs, listed, work), "file bigint, facts string").collect()
        return [json.loads(row.facts) for row in sorted(rows, key=lambda row: int(row.file))]

    def compare(
        self, plan: Any, only: frozenset[int] | None = None, later: dict[tuple[int, int], int] | None = None
    ) -> Iterator[dict[str, Any]]:
        from logclient.verify.compare import ARRIVALS, RESULTS

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
            results = ordered.mapInArrow(_reduce_in(plan.work, later), _ddl(RESULTS))
            with self._in_large_batches():
                results = results.toArrow()
        for batch in results.to_batches():
            yield from batch.to_pylist()

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
    connector: str | None = None,
    table: str | None = None,
    columns: Mapping[str, str] | None = None,
    out: str | os.PathLike[str] | None = None,
    master: str = "local[*]",
    max_missing: int | str | None = None,
    max_duplicated: int | str | None = None,
    max_dropped: int | str | None = None,
    examples: int = 20,
    work: str | os.PathLike[str] | None = None,
    spark: Any = None,
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
        connector: Spark's Kafka connector: a folder of jars, or Maven coordinates; that of PySpark's
            version when not given. For a session of our own.
        table: a table, a folder of Parquet files, or ``FORMAT:PATH``: each row has the body of an event.
        columns: some of ``body`` (``value`` when not given), ``received``, ``key``, ``listener`` and
            ``arrival`` -> the table's column.
        out: folder for ``verdict.json``, ``report.html`` and ``violations/`` (every fault, as Parquet:
            `violations` reads it); made with mode 0700 when missing.
        master: Spark master; ignored when `spark` is given.
        max_missing, max_duplicated, max_dropped: more than this count, or ``"0.1%"`` of all events,
            breaks the promise.
        examples: how many of each fault are shown with their bytes.
        work: where the packed ledgers go (16 bytes an event) and what arrived (24), deleted at the end; on
            a cluster it must be shared. The system's temporary folder when not given.
        spark: a SparkSession to use instead of one of our own.
        bits, tail, units, chunk: sizes of buckets, tails, batches and reads; for tests.

    Raises:
        LedgerError: a folder cannot be read, holds nothing, or `out` cannot be written; no such topic or
            table.
        ConfigError: a limit that is neither a count nor a share, a protocol that cannot be decoded, or not
            exactly one of `capture`, `kafka` and `table`.
        MissingExtra: PySpark, pyarrow or numpy is not installed.
        VerifyError: no Java, or Spark fails.
    """
    _extras()
    from logclient.verify import ledger as ledgers
    from logclient.verify import records, sources
    from logclient.verify.verdict import Limits

    if sum(given is not None for given in (capture, kafka, table)) != 1:
        raise ConfigError("capture, kafka, table: exactly one of them says what arrived")
    started = time.monotonic()
    limits = Limits.read(missing=max_missing, duplicated=max_duplicated, dropped=max_dropped)
    parts = ledgers.parts(os.fspath(ledger))
    segments = sources.segments(os.fspath(capture)) if capture is not None else []
    settings: Mapping[str, str] = {}
    if kafka is not None:
        records.parse_address(kafka)
        if isinstance(kafka_config, str | os.PathLike):
            kafka_config = records.read_config(kafka_config)
        settings = kafka_config or {}
    folder = _out(out)
    own = tempfile.mkdtemp(prefix="logclient-verify-", dir=work)
    session = None
    try:
        entries = _entries(segments)
        if spark is None:
            session = Session(master, conf=_connector(connector) if kafka is not None else None)
            spark = session.spark
        ready = time.monotonic()
        source: Source | None = None
        if kafka is not None:
            source = records.Kafka(spark, kafka, settings)
        elif table is not None:
            source = records.Table(spark, table, columns or {})
        jobs = _Spark(spark, source)
        verdict = _Verification(jobs, source, own, folder, entries, examples, bits, tail, units, chunk).run(
            [part._replace(path=os.path.abspath(part.path)) for part in parts], limits
        )
    except LogclientError:
        raise
    except Exception as error:
        raise VerifyError(_reason(error)) from error
    finally:
        if session is not None:
            session.stop()
        shutil.rmtree(own, ignore_errors=True)
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


def _connector(given: str | None) -> dict[str, str]:
    """Settings that bring Spark's Kafka connector.

    Raises:
        LedgerError: a folder without jars.
    """
    from pyspark import __version__

    if given is None:
        given = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"
    if not os.path.isdir(given):
        return {"spark.jars.packages": given}
    jars = sorted(entry.path for entry in os.scandir(given) if entry.name.endswith(".jar"))
    if not jars:
        raise LedgerError(f"connector: {given} has no jar")
    return {"spark.jars": ",".join(map(os.path.abspath, jars))}


def _reason(error: Exception) -> str:
    """One line of what Spark says in hundreds."""
    text = str(error)
    found = re.findall(
        r"^(?:: |Caused by: )?(?:[\w.]*\.)?(\w*(?:Error|Exception)): (.+)$", text, re.MULTILINE
    )
    own = [
        f"{kind}: {words}"
        for kind, words in found
        if not kind.startswith(("Py4J", "SparkException", "PythonException"))
    ]
    return f"spark: {(own or [text.strip().split(chr(10))[0] or type(error).__name__])[-1][:500]}"


def _out(out: str | os.PathLike[str] | None) -> str:
    if out is None:
        return ""
    folder = os.path.abspath(out)
    faults = os.path.join(folder, "violations")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.makedirs(faults, mode=0o700, exist_ok=True)
        for name in os.listdir(faults):  # of an earlier verdict; what is not ours stays
            if name.endswith(".parquet"):
                os.unlink(os.path.join(faults, name))
    except OSError as error:
        raise LedgerError(f"out: {folder}: {error.strerror}") from error
    return folder


def _write(path: str, text: str) -> None:
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        fd = os.open(path, flags, 0o600)
        with open(fd, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise LedgerError(f"out: {path}: {error.strerror}") from error


def _entries(segments: list[Any]) -> list[list[Any]]:
    """Segments with listener index, rank among its listener's, and protocol."""
    from logclient.verify import compare, decode, sources

    headers = [sources.read_header(segment) for segment in segments]
    of_listener = {
        segment.listener: header.protocol for segment, header in zip(segments, headers, strict=True) if header
    }
    listeners = sorted({segment.listener for segment in segments})
    if len(listeners) > compare.LISTENER:
        raise LedgerError(f"capture: more than {compare.LISTENER} listeners")
    ranks: dict[str, int] = {}
    entries = []
    for segment, header in zip(segments, headers, strict=True):
        # A segment whose header is damaged is read as the others of its listener are.
        protocol = header.protocol if header else of_listener.get(segment.listener, "")
        if protocol:
            decode.decoder(protocol)
        rank = ranks.get(segment.listener, 0)
        ranks[segment.listener] = rank + 1
        if rank >> compare.RANK_BITS:
            raise LedgerError(f"capture: {segment.listener} has more than {rank} segments")
        entries.append(
            [
                [*segment._replace(path=os.path.abspath(segment.path))],
                listeners.index(segment.listener),
                rank,
                protocol,
            ]
        )
    return entries


class _Verification:
    def __init__(
        self,
        spark: _Spark,
        source: Source | None,
        work: str,
        out: str,
        entries: list[list[Any]],
        examples: int,
        bits: int,
        tail: int,
        units: int,
        chunk: int,
    ) -> None:
        from logclient.verify import sources

        self.spark = spark
        self.source = source
        self.work = work
        self.out = out
        self.entries = entries
        self.examples = examples
        self.bits = bits
        self.tail = tail
        self.units = units or sources.UNITS
        self.chunk = chunk or sources.CHUNK

    def run(self, parts: list[Any], limits: Any) -> Verdict:
        from logclient.verify import compare, verdict
        from logclient.verify import ledger as ledgers

        began = time.monotonic()
        groups = self.spark.pack(parts, self.work)
        packed = ledgers.merge(groups, self.work, self.bits)
        plan = self.plan(packed, groups)
        plan.save()
        done = time.monotonic()
        seconds = {"pack": round(done - began, 3)}
        tally = verdict.Tally(plan, packed, lambda only, later: self.spark.compare(plan, only, later))
        for row in self.spark.compare(plan):
            tally.take(row)
        if self.source is not None:
            tally.facts += self.source.silent(tally.facts)
        writer = compare._Violations(plan.violations, packed)
        tally.stitch(writer)
        tally.unlisted(writer)
        tally.files.append(writer.close())
        found = tally.verdict(limits)
        doubtful = tally.doubts()[1]
        if plan.violations:
            _keep(plan.violations, set(tally.files), packed, doubtful)
        from logclient.verify import examples

        pick = self.spark.pick if self.source is not None else None
        shown = examples.resolve(tally.chosen(), plan, doubtful, packed, pick)
        examples.undecoded(found.undecoded, plan, pick)
        if self.source is not None and not self.source.timed:
            found = found.untimed()
        seconds["compare"] = round(time.monotonic() - done, 3)
        seconds["second_passes"] = float(tally.second_passes)
        return found._replace(examples=shown, seconds=seconds)

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

    def plan(self, packed: Any, groups: list[list[dict[str, Any]]]) -> Any:
        from logclient.verify.compare import Plan
        from logclient.verify.overview import Grid

        tasks: list[dict[str, list[int]]] = [{"segments": group} for group in self.groups()]
        # Files with events that are compared by hash alone are a task each.
        by_hash = {
            x.producer
            for p, x in enumerate(packed.producers)
            if x.identity == "none" or len(packed.pooled_of(p))
        }
        events = sum(fact["events"] for group in groups for fact in group if fact["producer"] in by_hash)
        pools = max(16, -(-events // POOL_SHARE)) if by_hash else 0
        tasks += [
            {"pool": [file]}
            for file, group in enumerate(groups)
            if any(fact["producer"] in by_hash for fact in group)
        ]
        tasks = tasks or [{}]  # somebody must say of each bucket that it is there
        n = len(packed.live)
        for i, task in enumerate(tasks):
            task["live"] = [i * n // len(tasks), (i + 1) * n // len(tasks)]
        cores = self.spark.cores
        return Plan(
            work=self.work,
            bits=self.bits,
            units=self.units,
            chunk=self.chunk,
            tail=self.tail,
            examples=self.examples,
            # No more than 16 buckets in one: tasks of a second or so, whatever the size of the whole.
            partitions=max(cores, min(4 * cores, n), n // 16),
            pools=pools,
            segments=self.entries,
            tasks=tasks,
            violations=os.path.join(self.out, "violations") if self.out else "",
            grid=[*Grid.over(*packed.span.tolist())],
            families=len(packed.families),
            app_envs=_app_envs(packed.producers),
            ordered=self.source is None or self.source.numbered,
            records=self.source.plan(_only(packed.families)) if self.source is not None else None,
        )


def _app_envs(producers: list[Any]) -> list[str]:
    """Those of the Logjam producers' URLs; nothing when one has none: a server has the messages of many."""
    found = {
        x.url.partition("://")[2].partition("?")[0].partition("/")[2]
        for x in producers
        if x.protocol == "logjam"
    }
    return [] if "" in found else sorted(found)


def _only(families: list[str]) -> str:
    """The protocol of records: the ledgers'."""
    from logclient.verify import decode

    named = [family for family in families if family]
    if len(named) != 1:
        what = " and ".join(named) or "no protocol"
        raise ConfigError(f"ledger: it is of {what}: the bodies of a topic or table are of one protocol")
    decode.bodies(named[0])
    return named[0]


def _keep(folder: str, names: set[str], packed: Any, doubtful: set[str]) -> None:
    """Keep the files of the tasks that count; in doubt, what was sent and not seen becomes unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from logclient.verify.compare import VIOLATIONS
    from logclient.verify.decode import protocol_of

    touched = pa.array(
        [x.producer for x in packed.producers if protocol_of(x.protocol) in doubtful], pa.string()
    )
    number = 0
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name not in names:
            if name.endswith(".parquet"):
                os.unlink(path)
            continue
        number += 1
        final = os.path.join(folder, f"part-{number:05d}.parquet")
        if not len(touched):
            os.rename(path, final)
            continue
        with pq.ParquetFile(path) as source, pq.ParquetWriter(final, VIOLATIONS, compression="zstd") as sink:
            for group in range(source.num_row_groups):
                table = source.read_row_group(group)
                unseen = pc.and_(
                    pc.and_(pc.is_in(table["kind"], pa.array(["lost", "missing"])), table["sent"]),
                    pc.is_in(table["producer"], touched),
                )
                kind = pc.if_else(unseen, "unknown", table["kind"])
                sink.write_table(table.set_column(0, "kind", kind).cast(VIOLATIONS))
        os.unlink(path)


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


def main(arguments: argparse.Namespace) -> int:
    """``logclient verify``, its command line already read: prints, and gives the exit code."""
    from logclient.protocols.readable import escape
    from logclient.verify import report

    given = vars(arguments)
    try:
        verdict = run(
            given["ledger"],
            given["capture"],
            kafka=given.get("kafka"),
            kafka_config=given.get("kafka_config"),
            connector=given.get("connector"),
            table=given.get("table"),
            columns=given.get("columns"),
            out=given.get("out"),
            master=given.get("master") or "local[*]",
            max_missing=given.get("max_missing"),
            max_duplicated=given.get("max_duplicated"),
            max_dropped=given.get("max_dropped"),
        )
    except VerifyError as error:
        if given.get("debug"):
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
