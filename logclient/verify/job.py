"""A whole verification, from two folders to a verdict.

::

    verdict = run("run/ledger", "run/capture", out="run/verdict")
    verdict.exit_code, verdict.counts.lost, verdict.to_json()

The ledgers are surveyed, then one Spark job compares them with what arrived, and, rarely, another one
compares some buckets again (``judge.py``). Workers read the files themselves, so every worker must see the
folders. The driver alone writes, and only to `out`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from logclient import evidence
from logclient.errors import ConfigError, LedgerError, LogclientError
from logclient.evidence import storage
from logclient.evidence.selection import EVERYTHING, Selection
from logclient.evidence.storage import Folder
from logclient.verify import output
from logclient.verify.spark import Session, VerifyError, quiet, require_spark
from logclient.verify.tuning import Tuning
from logclient.verify.watch import Watch

if TYPE_CHECKING:
    import pyarrow as pa

    from logclient.evidence.arrays import U64
    from logclient.evidence.ledger_files import Ledgers
    from logclient.verify.ledger_facts import LedgerFacts
    from logclient.verify.plan import Plan
    from logclient.verify.records import Source
    from logclient.verify.runners import LocalRunner, SparkRunner
    from logclient.verify.summary import Summary
    from logclient.verify.tally import Tally
    from logclient.verify.verdict import Verdict

__all__ = ["Session", "Tuning", "VerifyError", "connector", "run"]

ANONYMOUS_SHARE = 1 << 18  # events without an id in one share
BUCKET_PLACES = 1 << 10  # what a bucket costs on top of its places
TASK_BYTES = 64 << 20  # bytes of segments in one task
_MISTAKES = {"AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "OverflowError",
             "RecursionError", "TypeError", "UnboundLocalError", "ZeroDivisionError"}  # of this package
NO_WORK = (
    "there is no work folder any more: Spark shuffles the rows, and its own scratch folder is spark.local.dir"
)
TOGETHER_PLACES = 1 << 18  # events in the ledgers of a comparison that is one task


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
    max_missing: int | str | None = None,
    max_duplicated: int | str | None = None,
    max_dropped: int | str | None = None,
    allow_open: bool = False,
    run: str | Sequence[str] | None = None,
    since: float | str | None = None,
    until: float | str | None = None,
    examples: int = 20,
    runner: str = "spark",
    spark: Any = None,
    progress: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    producers: Callable[[pa.Table], None] | None = None,
    tuning: Tuning | None = None,
    **gone: Any,
) -> Verdict:
    """Compare ledgers with the events that arrived: a capture, a Kafka topic, a table, or any DataFrame.

    Args:
        ledger: the folder of the producers' ledgers, or several: paths, URLs such as ``s3://bucket/run``, and
            patterns with ``*``. Subfolders are searched, too.
        capture: likewise of the collectors' captures.
        kafka: ``host:port[,host:port…]/topic[,topic…]``. The value of each record is the body of an event.
        kafka_config: settings of the consumer, as Kafka names them, or a file of such lines.
        table: a table, a folder of Parquet files, or ``FORMAT:PATH``. Each row has the body of an event.
        arrived: likewise a DataFrame. It is read several times, and must have the same rows each time.
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
        max_missing: a limit, as a count or a share such as ``"0.1%"`` of all events. An excess breaks the
            promise.
        max_duplicated: likewise.
        max_dropped: likewise.
        allow_open: accept ledgers without a ``close`` line, because their producers may be alive.
        run: judge only what belongs to this run of a collector, or to one of several. ``docs/verify.md`` has
            the rules of a selection.
        since: judge only events made then or later. Seconds since 1970, or ISO 8601 (UTC by default).
        until: judge only events made before.
        examples: the number of examples of each fault that are shown with their bytes.
        runner: ``spark``, or ``local``: in this process, without Spark and Java, for a capture that fits in
            memory (some 40 bytes for each event).
        spark: a SparkSession. The default is the active one, or a new one that is stopped at the end.
        progress: called a few times a second, from another thread, with a line such as
            ``comparing 43%, 12 s``; with an empty line at the end.
        stop: an event that ends the verification with a `VerifyError` when another thread sets it.
        producers: called at the end with a table of the counts of all judged producers. Its columns are those
            of ``docs/verify-hourly.md`` that belong to a producer.
        tuning: sizes of buckets and reads.
        **gone: options that earlier versions had: an error says why they are gone.

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
    evidence.require("pyarrow", "numpy")
    output.remove_verdict(out)
    _refuse(gone)
    if sum(given is not None for given in (capture, kafka, table, arrived)) != 1:
        raise ConfigError("capture, kafka, table, arrived: exactly one of them must be given")
    if match not in ("body", "id"):
        raise ConfigError(f"match: {str(match)[:40]!r} must be body or id")
    if columns and capture is not None:
        raise ConfigError("columns: a capture has none")
    if columns and "id" in columns and match != "id":
        raise ConfigError("columns: id needs match=id")
    if arrived is not None and (not hasattr(arrived, "mapInArrow") or arrived.isStreaming):
        raise ConfigError(f"arrived: {type(arrived).__name__} must be a DataFrame of Spark, and no stream")
    started = time.monotonic()
    selection = Selection.read(since, until, run)
    if selection.runs and capture is None:
        raise ConfigError("run: a topic or table has no runs")
    local = _is_local(runner, capture is None, spark)
    if not local:
        require_spark()
    inputs = _Inputs(ledger, capture, kafka, kafka_config, out)

    limits = {"missing": max_missing, "duplicated": max_duplicated, "dropped": max_dropped}
    session = None
    with output.removed_on_error(inputs.made), quiet(), Watch(progress, stop) as watch:
        try:
            inputs.find(selection, limits)
            if not local:
                session = Session(
                    master, heap=heap, packages=packages, conf=conf,
                    spark=spark if arrived is None else arrived.sparkSession,
                    connector=connector() if kafka is not None else "", stop=watch.stop,
                )  # fmt: skip
                watch.use(session)
            watch.check()
            ready = time.monotonic()
            source = None
            if capture is None:
                assert session is not None
                # Read the ledgers before the end of the topic: it then has all events that they acknowledge.
                inputs.find_ledgers()
                source = inputs.source(session, table, arrived, columns or {})
                inputs.find_new_producers()
            from logclient.verify.runners import LocalRunner, SparkRunner

            steps = SparkRunner(session, source) if session is not None else LocalRunner()
            tuning = tuning or Tuning()
            verification = _Verification(
                steps, source, watch, inputs, examples, tuning, selection, by_id=match == "id"
            )
            verdict, summary = verification.run(allow_open)
            watch.step("writing the report")
        except LogclientError:
            watch.check()
            raise
        except Exception as error:
            watch.check()
            if session is None or type(error).__name__ in _MISTAKES:
                raise
            raise _error(error, inputs.places()) from error
        finally:
            watch.release()
            if session is not None:
                session.stop()
    seconds = {
        "start": round(ready - started, 3),
        **verdict.seconds,
        "total": round(time.monotonic() - started, 3),
    }
    verdict = verdict._replace(
        seconds=seconds,
        made_us=time.time_ns() // 1000,
        ledger={"folder": _named(ledger), **verdict.ledger},
        capture={"folder": source.title if source else _named(capture or ""), **verdict.capture},
    )
    if producers is not None:
        producers(summary.producer_table())
    if inputs.out:
        from logclient.verify import report

        try:
            if verification.unwritten is not None:
                raise verification.unwritten
            # The verdict comes last: where it is, everything is.
            output.write_text(storage.join(inputs.out, "report.html"), report.page(verdict))
            text = json.dumps(verdict.to_json(), indent=1) + "\n"
            output.write_text(storage.join(inputs.out, "verdict.json"), text)
        except LedgerError as error:
            output.discard(inputs.out, inputs.made)
            raise output.UnwrittenVerdict(str(error), verdict) from error
    return verdict


def _refuse(options: Mapping[str, Any]) -> None:
    """Raise an error for an option that does not exist, or no longer does."""
    for name in options:
        if name in ("work", "keep_work"):
            raise ConfigError(f"{name}: {NO_WORK}")
        raise TypeError(f"run() got an unexpected keyword argument {name!r}")


def _is_local(runner: str, records: bool, spark: Any) -> bool:
    if runner not in ("spark", "local"):
        raise ConfigError(f"runner: {runner[:40]!r} is neither spark nor local")
    if runner == "local" and records:
        raise ConfigError("runner: a topic or table is read by Spark: leave runner=\"local\" (--local) out")
    if runner == "local" and spark is not None:
        raise ConfigError("runner: a session is given, and local needs none")
    return runner == "local"


def _named(folders: Folder | Sequence[Folder]) -> str:
    """Return folders as they were given, separated by commas."""
    several = [folders] if isinstance(folders, str | os.PathLike) else folders
    return ", ".join(os.fspath(one) for one in several)


def connector() -> str:
    """Return the Maven coordinates of Spark's Kafka connector, in PySpark's version."""
    from pyspark import __version__

    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"


def _error(error: Exception, places: list[tuple[str, str]]) -> Exception:
    """Shorten hundreds of lines from Spark to one. Our errors keep their text, our mistakes their kind."""
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
        words = found[-1][1] if found else text.strip().split("\n")[0] or type(error).__name__
        return VerifyError(f"spark: {words[:500]}")
    kind, words = own[-1]
    words = words[:500]
    for what, place in places:
        if kind == "LedgerError" and words.startswith(f"{what}: {place}") and not storage.is_url(place):
            how = "workers read it themselves: put it on storage that all machines share"
            return LedgerError(f"{what}: a worker cannot see {place}: {how} ({words})")
    if kind in ("ConfigError", "LedgerError"):
        return (ConfigError if kind == "ConfigError" else LedgerError)(words)
    if kind in _MISTAKES:
        return RuntimeError(f"in a worker: {kind}: {words}")
    return VerifyError(f"spark: {kind}: {words}")


class _Inputs:
    """What a verification reads, and the folders that it writes to.

    Attributes:
        limits: of the verdict.
        ledgers: the ledger files.
        survey: of the captures.
        out: the place of the verdict; empty: none is wanted.
        made: folders that were made for it.
    """

    def __init__(
        self,
        ledger: Folder | Sequence[Folder],
        capture: Folder | Sequence[Folder] | None,
        kafka: str | None,
        kafka_config: str | os.PathLike[str] | Mapping[str, str] | None,
        out: Folder | None,
    ) -> None:
        self._ledger = ledger
        self._capture = capture
        self._kafka = kafka
        self._kafka_config = kafka_config
        self._out = out
        self._ledger_folders: list[str] = []
        self._capture_folders: list[str] = []
        self.made: list[str] = []
        self.out = ""

    def find(self, selection: Selection, limits: Mapping[str, int | str | None]) -> None:
        """List the ledgers and captures, and make the folders.

        Args:
            selection: of events.
            limits: as `run` has them, without ``max_``.

        Raises:
            LedgerError: a folder cannot be read or written, or holds nothing.
            ConfigError: an argument has an impossible value.
        """
        from logclient.evidence import captures
        from logclient.verify import readers
        from logclient.verify.verdict import Limits

        self.limits = Limits.read(**limits)
        self._ledger_folders = storage.expand(self._ledger, "ledger")
        if self._capture is not None:
            self._capture_folders = storage.expand(self._capture, "capture")
        self.find_ledgers()
        found = self._capture_folders
        self.survey = captures.survey(found) if found else captures.Survey([], [], [])
        self.survey.find_other_runs(selection.runs)
        if found:
            self.find_new_producers()
        if self._kafka is not None:
            readers.parse_address(self._kafka)
            if isinstance(self._kafka_config, str | os.PathLike):
                self._kafka_config = readers.read_config(self._kafka_config)
        self.out, made = output.prepare_folder(self._out)
        self.made += made

    def find_ledgers(self) -> None:
        """List the ledgers."""
        from logclient.evidence import ledger_files

        self.ledgers: Ledgers = ledger_files.find_ledgers(self._ledger_folders)

    def find_new_producers(self) -> None:
        """List the ledgers of producers that have begun since the others were listed."""
        from logclient.evidence import ledger_files

        new = ledger_files.find_new_producers(self._ledger_folders, self.ledgers.parts)
        self.ledgers = self.ledgers.plus(new)

    def source(
        self, session: Session, table: str | None, arrived: Any, columns: Mapping[str, str]
    ) -> Source:
        """Return the records that arrived in place of a capture."""
        from logclient.verify import readers
        from logclient.verify.records import Source

        if self._kafka is not None:
            assert not isinstance(self._kafka_config, str | os.PathLike)
            found = readers.read_kafka(session.spark, self._kafka, self._kafka_config or {})
        elif table is not None:
            found = readers.read_table(session.spark, table)
        else:
            found = readers.Arrived(arrived, {}, "DataFrame")
        return Source(found._replace(columns={**columns, **found.columns}))

    def places(self) -> list[tuple[str, str]]:
        """Return what each folder is that workers read, and its place."""
        return [
            *(("ledger", place) for place in self._ledger_folders),
            *(("capture", place) for place in self._capture_folders),
        ]


class _Verification:
    """The steps of one verification, in their order."""

    def __init__(
        self,
        steps: SparkRunner | LocalRunner,
        source: Source | None,
        watch: Watch,
        inputs: _Inputs,
        examples: int,
        tuning: Tuning,
        selection: Selection,
        by_id: bool,
    ) -> None:
        self.by_id = by_id
        self.steps = steps
        self.source = source
        self.watch = watch
        self.inputs = inputs
        self.entries = inputs.survey.entries
        self.examples = examples
        self.tuning = tuning
        self.selection = selection
        self.unwritten: LedgerError | None = None
        """Why the files of violations could not be written."""

    def run(self, allow_open: bool) -> tuple[Verdict, Summary]:
        from logclient.evidence import captures
        from logclient.verify import examples, ledger_merge
        from logclient.verify.summary import Summary
        from logclient.verify.violation_files import ViolationWriter, publish

        began = time.monotonic()
        self.watch.step("reading ledgers")
        ledgers = self.inputs.ledgers
        surveys = self.steps.survey(ledgers.parts, self.selection)
        bits = self.tuning.bucket_bits
        facts = ledger_merge.merge(surveys, bits, ledgers.unread, ledgers.copies, self.selection)
        if self.selection != EVERYTHING:
            facts.left_out_hashes = self.left_out_hashes(facts)
        plan = self.plan(facts)
        present = self.find_presence(plan, facts) if plan.other_runs else {}
        if present:
            plan, left_out = plan.find_other_runs(present, len(facts))
            facts.leave_out(left_out)
        done = time.monotonic()
        seconds = {"pack": round(done - began, 3)}
        tally = self.tally(plan, facts, "comparing", present)
        foreign = captures.find_foreign(tally.facts, tally.matched, facts.begin)
        if foreign:
            # Their events are in all the sums, so everything is compared again without them.
            reports = [fact for fact in tally.facts if fact["name"] in foreign]
            plan = plan.without_segments(foreign)
            tally = self.tally(plan, facts, "comparing without other runs", present)
            tally.foreign = reports
        self.watch.step("adding up")
        if self.source is not None:
            first, last = facts.span
            self.source.complete(tally.facts, first if first <= last else None)
        writer = ViolationWriter(plan.violations, facts)
        tally.stitch(writer)
        tally.count_unlisted(writer)
        tally.files.append(writer.take())
        summary = Summary(tally)
        found = summary.verdict(self.inputs.limits, allow_open)
        if plan.violations:
            try:
                with output.errors_named(self.inputs.out):
                    faults = storage.join(self.inputs.out, "violations")
                    publish(faults, filter(None, tally.files), facts, summary.doubtful)
            except LedgerError as error:
                self.unwritten = error

        self.watch.step("reading examples")
        pick = self.source.pick if self.source is not None else None
        shown = examples.resolve(tally.choose_examples(), plan, summary.doubtful, facts, pick)
        examples.explain_undecoded(found.undecoded, plan, pick)
        if not plan.timed:
            found = found.untimed()
        seconds["compare"] = round(time.monotonic() - done, 3)
        seconds["second_passes"] = float(tally.second_passes)
        return found._replace(examples=shown, seconds=seconds), summary

    def left_out_hashes(self, facts: LedgerFacts) -> U64:
        """Return the hashes of the events that a selection leaves out because only these identify them."""
        import numpy as np

        from logclient.verify import ledger_rows, runners

        parts = self.inputs.ledgers.parts
        groups = runners.ledger_groups(parts)
        found = [
            ledger_rows.left_out_hashes(parts[slice(*groups[number])], number, facts)
            for number in facts.anonymous_files()[0]
        ]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *found]))

    def find_presence(self, plan: Plan, facts: LedgerFacts) -> dict[str, dict[str, Any]]:
        """Find out which producers have events in which segments.

        Returns:
            Name of a segment -> its facts, with ``present``: ranges of producers.
        """
        only = plan._replace(presence=True)
        return {fact["name"]: fact for fact in self.tally(only, facts, "looking for the run", {}).facts}

    def tally(
        self, plan: Plan, facts: LedgerFacts, step: str, present: Mapping[str, dict[str, Any]]
    ) -> Tally:
        """Compare, and add up the counts of all tasks.

        Args:
            plan: of the comparison.
            facts: what the ledgers say.
            step: for the progress line.
            present: see `find_presence`.
        """
        from logclient.evidence.segments import Segment
        from logclient.verify.tally import Tally

        compare = functools.partial(self.steps.judge, self.inputs.ledgers.parts, facts, plan)

        def second_pass(
            only: frozenset[int], later: dict[tuple[int, int], int]
        ) -> Iterable[pa.RecordBatch]:
            self.watch.step("comparing again")
            return compare(only, later)

        tally = Tally(plan, facts, second_pass)
        self.watch.step(step)
        for batch in compare():
            self.watch.check()
            tally.read([batch])
        if plan.other_runs and not plan.presence:
            names = {Segment(*plan.segments[i][0]).name for i in plan.other_runs}
            tally.other_runs = [fact for name, fact in sorted(present.items()) if name in names]
            tally.facts = [fact for fact in tally.facts if fact["name"] not in names]
        return tally

    def groups(self) -> list[list[int]]:
        """Distribute the segments over tasks.

        If an event may come in several units, all segments of a listener are one task.
        """
        from logclient.evidence import decode
        from logclient.verify.plan import MAX_TASKS
        from logclient.verify.runners import share_out

        alone = []
        of_listener: dict[int, list[int]] = {}
        for index, (_, listener, _, protocol) in enumerate(self.entries):
            if protocol and decode.carries(protocol):
                of_listener.setdefault(listener, []).append(index)
            else:
                alone.append(index)
        sizes = [self.entries[index][0][3] for index in alone]
        shared = share_out(sizes, max(TASK_BYTES, sum(sizes) // MAX_TASKS))
        return [*([alone[i] for i in group] for group in shared), *of_listener.values()]

    def fits_one_task(self, facts: LedgerFacts, events: int) -> bool:
        """Return whether one task on this machine compares everything in less time than a shuffle takes.

        Args:
            facts: what the ledgers say.
            events: how many of their events are compared by hash alone.
        """
        from logclient.verify.ledger_buckets import places_of

        size = sum(entry[0][3] for entry in self.entries)
        places = int(places_of(facts, facts.live).sum()) + events
        return self.steps.small and size < self.tuning.together_bytes and places < TOGETHER_PLACES

    def plan(self, facts: LedgerFacts) -> Plan:
        from logclient.evidence import captures
        from logclient.verify.ledger_buckets import places_of
        from logclient.verify.overview import Grid
        from logclient.verify.plan import Plan, share_evenly
        from logclient.verify.runners import ledger_groups

        events = facts.anonymous_files()[1] if self.selection == EVERYTHING else 0
        if self.by_id and events:
            raise ConfigError(f"match: {events:,} events have no id, or that of another event: match bodies")
        together = self.fits_one_task(facts, events)
        cores = self.steps.cores
        edges = [] if together else share_evenly(places_of(facts, facts.live) + BUCKET_PLACES, cores)
        survey = self.inputs.survey
        unjudged, published = captures.order_rules(survey.listeners)
        if self.source is not None:
            # Logjam events reach a topic or table through a device.
            published = [family for family in facts.families if family == "logjam"]
        return Plan(
            bits=self.tuning.bucket_bits,
            units=self.tuning.batch_units,
            chunk=self.tuning.chunk_bytes,
            tail=self.tuning.tail,
            examples=self.examples,
            partitions=1 if together else max(cores, len(edges) + 1),
            edges=facts.live[edges].tolist(),
            anonymous_shares=max(16, -(-events // ANONYMOUS_SHARE)) if events else 0,
            segments=self.entries,
            tasks=self.groups(),
            groups=ledger_groups(self.inputs.ledgers.parts),
            violations=bool(self.inputs.out),
            grid=[*Grid.over(*facts.span)],
            families=len(facts.families),
            app_envs=_app_envs(facts.urls),
            ordered=not self.by_id and (self.source is None or self.source.numbered),
            by_id=self.by_id,
            timed=self.source is None or self.source.timed,
            records=self.source.plan(_only(facts.families)) if self.source is not None else None,
            listeners=survey.listeners,
            left_out=survey.left_out,
            unjudged=unjudged,
            published=published,
            selection=[*self.selection],
            other_runs=survey.find_other_runs(self.selection.runs),
        )


def _app_envs(urls: list[tuple[str, str]]) -> list[str]:
    """Return the app-envs of the Logjam producers' URLs, or none when one of them has no app-env."""
    found = {
        url.partition("://")[2].partition("?")[0].partition("/")[2]
        for protocol, url in urls
        if protocol == "logjam"
    }
    return [] if "" in found else sorted(found)


def _only(families: list[str]) -> str:
    """Return the only protocol of the ledgers, which is also that of the records."""
    from logclient.evidence import decode

    named = [family for family in families if family]
    if len(named) != 1:
        what = " and ".join(sorted(named)) or "no protocol"
        raise ConfigError(f"ledger: it has {what}, but a topic or table has bodies of one protocol")
    decode.wire(named[0])
    return named[0]
