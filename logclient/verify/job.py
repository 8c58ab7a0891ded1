"""A whole verification, from two folders to a verdict.

Workers read the files themselves, so every worker must see the folders. The driver alone writes, and only to
`out`.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from logclient.errors import ConfigError, LedgerError, LogclientError, VerifyError
from logclient.evidence import storage
from logclient.evidence.selection import Selection
from logclient.evidence.storage import Folder
from logclient.verify import output
from logclient.verify.spark import Session, quiet, require_spark
from logclient.verify.tuning import Tuning
from logclient.verify.watch import Watch

if TYPE_CHECKING:
    import pyarrow as pa

    from logclient.verify.verdict import Verdict

__all__ = ["Session", "Tuning", "VerifyError", "connector", "run"]

MOST_EXAMPLES = 100_000  # of each fault

_MISTAKES = {
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "NameError",
    "OverflowError",
    "RecursionError",
    "TypeError",
    "UnboundLocalError",
    "ZeroDivisionError",
}  # of this package


def run(
    ledger: Folder | Sequence[Folder],
    capture: Folder | Sequence[Folder] | None = None,
    *,
    kafka: str | None = None,
    kafka_config: str | os.PathLike[str] | Mapping[str, str] | None = None,
    table: str | None = None,
    arrived: Any = None,
    columns: Mapping[str, str] | None = None,
    match: str = "body",
    out: Folder | None = None,
    master: str | None = None,
    heap: str | None = None,
    packages: str | None = None,
    conf: Mapping[str, str] | None = None,
    max_missing: int | str | None = 0,
    max_duplicated: int | str | None = None,
    max_dropped: int | str | None = 0,
    max_lost: int | str | None = None,
    max_unexpected: int | str | None = None,
    max_latency: str | None = None,
    others: str = "break",
    allow_open: bool = False,
    allow_empty: bool = False,
    since: float | str | None = None,
    until: float | str | None = None,
    examples: int = 20,
    runner: str = "spark",
    spark: Any = None,
    progress: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    producers: Callable[[pa.Table], None] | None = None,
    tuning: Tuning | None = None,
) -> Verdict:
    """Compare ledgers with the events that arrived: a capture, a Kafka topic, a table, or any DataFrame.

    Args:
        ledger: the folder of the producers' ledgers, or several: paths, also with ``*``, and URLs such as
            ``s3://bucket/run``. Subfolders are searched, too.
        capture: likewise of the collectors' captures.
        kafka: ``host:port[,host:port…]/topic[,topic…]``. The value of each record is the body of an event.
        kafka_config: settings of the consumer, as Kafka names them, or a file of such lines.
        table: a table, a folder of Parquet files, or ``FORMAT:PATH``. Each row has the body of an event.
            With the runner ``local`` a file or folder of Parquet, JSON lines or Arrow.
        arrived: likewise a DataFrame. It is read several times, and must have the same rows each time. With
            the runner ``local`` a Table, RecordBatchReader or Dataset of pyarrow.
        columns: maps ``body`` (default: ``value``), ``received``, ``key``, ``listener`` and ``arrival`` to
            columns of the records, or with dots to fields of them. With ``match="id"``, ``id`` may name the
            column of the events' ids, in place of ``body``.
        match: ``id``: find events by their ids alone, where bodies were changed on the way. Then neither
            bodies nor order are judged.
        out: the folder or URL for ``verdict.json``, ``report.html`` and ``violations/`` (every fault, as
            Parquet, see `violations`). A new folder has mode 0700.
        master: the Spark master. The default is that of ``spark-submit`` or its files, else ``local[*]``.
        heap: memory of the driver's JVM, such as ``1g``.
        packages: Maven coordinates and folders of jars, separated by commas. With `kafka` and no packages,
            Spark's Kafka connector is fetched in PySpark's version.
        conf: more settings of Spark.
        max_missing: a limit, as a count or a share such as ``"0.1%"`` of all events; None: no limit. An
            excess breaks the promise.
        max_duplicated: likewise.
        max_dropped: likewise.
        max_lost: likewise, but without it one lost event breaks the promise.
        max_unexpected: likewise, without it one unexpected event does.
        max_latency: limits on quantiles of the latency, such as ``"p50=1s,p99=5s"``, also ``p90``, ``p999``
            and ``max``. An excess breaks the promise.
        others: what events do that are in none of these ledgers: ``break`` the promise, ``count``: they are
            counted apart and break nothing, or ``ignore``.
        allow_open: accept ledgers without a ``close`` line, because their producers may be alive.
        allow_empty: accept ledgers without an event of the selected time.
        since: judge only events made then or later. Seconds since 1970, or ISO 8601 (UTC by default).
        until: judge only events made before.
        examples: how many examples of each fault are shown with their bytes, 100,000 at most.
        runner: ``spark``, or ``local``: in this process, without Spark and Java, for everything but `kafka`.
            It needs some 40 bytes of memory for each event.
        spark: a SparkSession. The default is the active one, or a new one that is stopped at the end.
        progress: called a few times a second, from another thread, with a line such as
            ``comparing 43%, 12 s``; with an empty line at the end.
        stop: an event that ends the verification with a `VerifyError` when another thread sets it.
        producers: called at the end with a table of the counts of all judged producers. Its columns are those
            of ``docs/verify.md`` that belong to a producer.
        tuning: sizes of buckets and reads.

    Returns:
        The verdict.

    Raises:
        LedgerError: a folder cannot be read, holds nothing or is not visible to workers; `out` cannot be
            written, in which case the attribute ``verdict`` of the error has what was found; or there is no
            such topic or table.
        ConfigError: an argument has an impossible value, a protocol cannot be decoded, not exactly one of
            `capture`, `kafka`, `table` and `arrived` is given, `match` is ``id`` and events have none, or a
            setting comes too late for the session.
        MissingExtra: PySpark, pyarrow or numpy is not installed.
        VerifyError: there is no Java, or Spark fails.
    """
    output.remove_verdict(out)
    if sum(given is not None for given in (capture, kafka, table, arrived)) != 1:
        raise ConfigError("capture, kafka, table, arrived: exactly one of them must be given")
    if match not in ("body", "id"):
        raise ConfigError(f"match: {str(match)[:40]!r} must be body or id")
    if columns and capture is not None:
        raise ConfigError("columns: a capture has none")
    if columns and "id" in columns and match != "id":
        raise ConfigError("columns: id needs match=id")
    local = runner == "local"
    if arrived is not None and not local and (not hasattr(arrived, "mapInArrow") or arrived.isStreaming):
        what = 'a DataFrame of Spark, and no stream (with runner="local" a table of pyarrow)'
        raise ConfigError(f"arrived: {type(arrived).__name__} must be {what}")
    started = time.monotonic()
    selection = Selection.read(since, until)
    if runner not in ("spark", "local"):
        raise ConfigError(f"runner: {str(runner)[:40]!r} is neither spark nor local")
    if local and kafka is not None:
        raise ConfigError('runner: a topic is read by Spark: leave runner="local" (--local) out')
    if local and spark is not None:
        raise ConfigError("runner: a session is given, and local needs none")
    if not local:
        require_spark()
    from logclient.evidence import captures, ledger_files
    from logclient.verify import readers
    from logclient.verify.verdict import OTHERS, Limits

    columns = readers.checked_columns(columns or {})
    limits = Limits.read(
        max_latency, missing=max_missing, duplicated=max_duplicated, dropped=max_dropped, lost=max_lost,
        unexpected=max_unexpected,
    )  # fmt: skip
    if others not in OTHERS:
        raise ConfigError(f"others: {str(others)[:40]!r} is none of {', '.join(OTHERS)}")
    if not hasattr(examples, "__index__") or not 0 <= examples <= MOST_EXAMPLES:
        raise ConfigError(f"examples: {str(examples)[:40]} is no whole number from 0 to {MOST_EXAMPLES:,}")
    session = source = None
    folders: dict[str, list[str]] = {}
    made: list[str] = []
    with output.removed_on_error(made), nullcontext() if local else quiet(), Watch(progress, stop) as watch:
        try:
            folders["ledger"] = storage.expand(ledger, "ledger")
            ledgers = ledger_files.find_ledgers(folders["ledger"])
            survey = captures.Survey([], [], [])
            if capture is not None:
                folders["capture"] = storage.expand(capture, "capture")
                survey = captures.survey(folders["capture"])
                ledgers = ledgers.plus(ledger_files.find_new_producers(folders["ledger"], ledgers.parts))
            if kafka is not None:
                readers.parse_address(kafka)
                if isinstance(kafka_config, str | os.PathLike):
                    kafka_config = readers.read_config(kafka_config)
            place, found = output.prepare_folder(out)
            made += found
            if not local:
                watch.step("starting Spark")
                own = spark if arrived is None else arrived.sparkSession
                jar = connector() if kafka is not None else ""
                session = Session(master, heap=heap, packages=packages, conf=conf, spark=own, connector=jar)
                watch.use(session)
            watch.check()
            ready = time.monotonic()
            from logclient.verify.comparison import Comparison
            from logclient.verify.runners import LocalRunner, SparkRunner

            if capture is None:
                # Read the ledgers before the end of the topic: it then has all events that they acknowledge.
                ledgers = ledger_files.find_ledgers(folders["ledger"])
                source = _open_source(session, kafka, kafka_config, table, arrived, columns)
                ledgers = ledgers.plus(ledger_files.find_new_producers(folders["ledger"], ledgers.parts))
            steps = LocalRunner(source) if session is None else SparkRunner(session, source)
            comparison = Comparison(
                steps=steps, source=source, watch=watch, ledgers=ledgers, survey=survey, examples=examples,
                violations=bool(place), tuning=tuning or Tuning(), selection=selection, others=others,
                by_id=match == "id",
            )  # fmt: skip
            verdict = comparison.run(limits, allow_open=allow_open, allow_empty=allow_empty)
            watch.step("writing the report")
        except Exception as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None  # PySpark failed while it handled a Ctrl-C
            watch.check()
            known = isinstance(error, LogclientError) or type(error).__name__ in _MISTAKES
            if local or known:
                raise
            raise _error(error, folders) from error
        finally:
            watch.release()
            if session is not None:
                session.stop()
    seconds = {"start": round(ready - started, 3), **verdict.seconds}
    verdict = verdict._replace(
        seconds={**seconds, "total": round(time.monotonic() - started, 3)},
        made_us=time.time_ns() // 1000,
        ledger={"folder": _named(ledger), **verdict.ledger},
        capture={"folder": source.title if source else _named(capture or ""), **verdict.capture},
    )
    if producers is not None:
        producers(comparison.summary.producer_table())
    if place:
        from logclient.verify import report
        from logclient.verify.violation_files import publish

        try:
            summary = comparison.summary
            with output.errors_named(place):
                files, faults = filter(None, summary.tally.files), storage.join(place, "violations")
                publish(faults, files, summary.ledger, summary.doubtful)
            # The verdict comes last: where it is, everything is.
            output.write_text(storage.join(place, "report.html"), report.page(verdict))
            text = json.dumps(verdict.to_json(), indent=1) + "\n"
            output.write_text(storage.join(place, "verdict.json"), text)
        except BaseException as error:
            output.discard(place, made)
            if isinstance(error, LedgerError):
                raise output.UnwrittenVerdict(str(error), verdict) from error
            raise
    return verdict


def _open_source(
    session: Session | None, kafka: str | None, config: Any, table: str | None, arrived: Any,
    columns: Mapping[str, str],
) -> Any:  # fmt: skip
    """Return the records that arrived in a topic or table, after a check of their columns."""
    from logclient.verify import readers
    from logclient.verify.records import FrameSource

    if session is None:
        from logclient.verify import tables

        found = tables.open_arrived(arrived) if table is None else tables.open_table(table, columns.values())
        return tables.TableSource(found, columns)
    if kafka is not None:
        rows = readers.read_kafka(session.spark, kafka, config or {})
    elif table is not None:
        rows = readers.read_table(session.spark, table)
    else:
        rows = readers.Arrived(arrived, {}, "DataFrame")
    return FrameSource(rows._replace(columns={**columns, **rows.columns}))


def _named(folders: Folder | Sequence[Folder]) -> str:
    several = [folders] if isinstance(folders, str | os.PathLike) else folders
    return ", ".join(os.fspath(one) for one in several)


def connector() -> str:
    """Return the Maven coordinates of Spark's Kafka connector, in PySpark's version."""
    from pyspark import __version__

    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"


def _error(error: Exception, folders: Mapping[str, list[str]]) -> Exception:
    """Shorten hundreds of lines from Spark to one. Our errors keep their text, our mistakes their kind."""
    text = str(error)
    found = re.findall(
        r"^(?:: |Caused by: )?(?:[\w.]*\.)?(\w*(?:Error|Exception)): (.+)$", text, re.MULTILINE
    )
    own = [pair for pair in found if not pair[0].startswith(("Py4J", "SparkException", "PythonException"))]
    if not own:
        words = found[-1][1] if found else text.strip().split("\n")[0] or type(error).__name__
        return VerifyError(f"spark: {words[:500]}")
    kind, words = own[-1][0], own[-1][1][:500]
    for what, place in ((what, place) for what, places in folders.items() for place in places):
        if kind == "LedgerError" and words.startswith(f"{what}: {place}") and not storage.is_url(place):
            how = "workers read it themselves: put it on storage that all machines share"
            return LedgerError(f"{what}: a worker cannot see {place}: {how} ({words})")
    if kind in ("ConfigError", "LedgerError"):
        return (ConfigError if kind == "ConfigError" else LedgerError)(words)
    if kind in _MISTAKES:
        return RuntimeError(f"in a worker: {kind}: {words}")
    return VerifyError(f"spark: {kind}: {words}")
