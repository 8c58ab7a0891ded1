"""A whole verification, from two folders to a verdict.

::

    verdict = run("run/ledger", "run/capture", out="run/verdict")
    verdict.exit_code, verdict.counts.lost, verdict.to_json()

Spark runs up to three jobs (``stages.py``): pack the ledgers, compare, and, rarely, compare some buckets
again. A small comparison on this machine is a single task. The Python workers read all data themselves, so
every worker must see the folders; on a cluster they are on shared storage, `work` too. The driver alone
writes to `out`.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from logclient.errors import ConfigError, LedgerError, LogclientError
from logclient.evidence import storage
from logclient.evidence.selection import EVERYTHING, Selection
from logclient.evidence.storage import Folder
from logclient.verify import output
from logclient.verify.spark import Session, VerifyError, quiet, remove, require_extras
from logclient.verify.stages import SparkStages, not_visible, share_out
from logclient.verify.tuning import Tuning
from logclient.verify.watch import Watch

if TYPE_CHECKING:
    from logclient.evidence import captures
    from logclient.evidence.ledger_files import Ledgers
    from logclient.verify.packed_ledger import PackedLedger
    from logclient.verify.plan import Plan
    from logclient.verify.records import Source
    from logclient.verify.tally import Tally
    from logclient.verify.verdict import Limits, Verdict

__all__ = ["Session", "Tuning", "VerifyError", "connector", "run"]

ANONYMOUS_SHARE = 1 << 18  # events without an id in one share
BUCKET_PLACES = 1 << 10  # what a bucket costs on top of its places
TASK_BYTES = 64 << 20  # bytes of segments in one task
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # reasons why a file cannot grow
_MISTAKES = {"AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "OverflowError",
             "RecursionError", "TypeError", "UnboundLocalError", "ZeroDivisionError"}  # of this package
TOGETHER_PLACES = 1 << 18  # events in the ledgers of a comparison that is one task


def run(
    ledger: Folder | Sequence[Folder],
    capture: Folder | Sequence[Folder] | None = None,
    *,
    kafka: str | None = None,
    kafka_config: str | os.PathLike[str] | Mapping[str, str] | None = None,
    table: str | None = None,
    columns: Mapping[str, str] | None = None,
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
    work: Folder | None = None,
    keep_work: bool = False,
    spark: Any = None,
    progress: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    tuning: Tuning | None = None,
) -> Verdict:
    """Compare ledgers with the events that arrived: a capture, a Kafka topic, or a table.

    Args:
        ledger: the folder of the producers' ledgers, or several: paths, URLs such as ``s3://bucket/run``, and
            patterns with ``*``. Subfolders are searched, too.
        capture: likewise of the collectors' captures.
        kafka: ``host:port[,host:port…]/topic[,topic…]``. The value of each record is the body of an event.
        kafka_config: settings of the consumer, as Kafka names them, or a file of such lines.
        table: a table, a folder of Parquet files, or ``FORMAT:PATH``. Each row has the body of an event.
        columns: maps ``body`` (default: ``value``), ``received``, ``key``, ``listener`` and ``arrival`` to
            columns of the table.
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
        work: the folder or URL for temporary files: 16 bytes per event for the packed ledgers and 24 for the
            arrivals, deleted at the end. On a cluster it must be shared, or a URL; then Spark's shuffle has
            the arrivals. The default is the system's temporary folder.
        keep_work: leave the temporary files in `work`, in a folder of their own.
        spark: a SparkSession. The default is the active one, or a new one that is stopped at the end.
        progress: called a few times a second, from another thread, with a line such as
            ``comparing 43%, 12 s``; with an empty line at the end.
        stop: an event that ends the verification with a `VerifyError` when another thread sets it.
        tuning: sizes of buckets and reads.

    Returns:
        The verdict.

    Raises:
        LedgerError: a folder cannot be read, holds nothing or is not visible to workers; `out` cannot be
            written, in which case the attribute ``verdict`` of the error has what was found; or there is no
            such topic or table.
        ConfigError: an argument has an impossible value, a protocol cannot be decoded, not exactly one of
            `capture`, `kafka` and `table` is given, or a setting comes too late for the session.
        MissingExtra: PySpark, pyarrow or numpy is not installed.
        VerifyError: there is no Java, or Spark fails.
    """
    require_extras()
    output.remove_verdict(out)
    if sum(given is not None for given in (capture, kafka, table)) != 1:
        raise ConfigError("capture, kafka, table: exactly one of them must be given")
    started = time.monotonic()
    selection = Selection.read(since, until, run)
    if selection.runs and capture is None:
        raise ConfigError("run: a topic or table has no runs")
    inputs = _Inputs(ledger, capture, kafka, kafka_config, out, work)

    limits = {"missing": max_missing, "duplicated": max_duplicated, "dropped": max_dropped}
    session = None
    hard = True
    with output.removed_on_error(inputs.made), quiet(), Watch(progress, stop) as watch:
        try:
            session = Session(
                master, heap=heap, packages=packages, conf=conf, spark=spark,
                connector=connector() if kafka is not None else "", stop=watch.stop,
                meanwhile=functools.partial(inputs.find, selection, limits),
            )  # fmt: skip
            watch.use(session)
            watch.check()
            ready = time.monotonic()
            if capture is None:
                # Read the ledgers before the end of the topic: it then has all events that they acknowledge.
                inputs.find_ledgers()
            source = inputs.records(session, table, columns)
            if capture is None:
                inputs.find_new_producers()
            stages = SparkStages(session, source)
            stages.check_visible(inputs.places())
            verification = _Verification(
                stages, source, watch, inputs.work, inputs.out, inputs.survey, examples, tuning or Tuning()
            )
            verdict = verification.run(inputs.ledgers, inputs.limits, allow_open, selection)
            watch.step("writing the report")
            hard = False
        except LogclientError:
            hard = watch.stop.is_set()
            raise
        except Exception as error:
            hard = watch.stop.is_set()
            watch.check()
            if session is None or type(error).__name__ in _MISTAKES:
                raise
            raise _error(error, inputs.work) from error
        finally:
            watch.release()
            if session is not None:
                session.stop(hard=hard)
            if inputs.work and not keep_work:
                _remove_work(inputs.work)
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


def _named(folders: Folder | Sequence[Folder]) -> str:
    """Return folders as they were given, separated by commas."""
    several = [folders] if isinstance(folders, str | os.PathLike) else folders
    return ", ".join(os.fspath(one) for one in several)


def connector() -> str:
    """Return the Maven coordinates of Spark's Kafka connector, in PySpark's version."""
    from pyspark import __version__

    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"


def _error(error: Exception, work: str) -> Exception:
    """Shorten hundreds of lines from Spark to one. Our errors keep their text, our mistakes their kind."""
    text = str(error)
    full = re.search(r"OSError: \[Errno (\d+)\]", f"{type(error).__name__}: {text}")
    if full is not None and int(full[1]) in _FULL:
        return LedgerError(f"work: {os.path.dirname(work)}: {os.strerror(int(full[1]))}")
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
    if kind in ("ConfigError", "LedgerError"):
        return (ConfigError if kind == "ConfigError" else LedgerError)(words)
    if kind == "FileNotFoundError" and work in words:
        return not_visible("work", work, "a worker")
    if kind in _MISTAKES:
        return RuntimeError(f"in a worker: {kind}: {words}")
    return VerifyError(f"spark: {kind}: {words}")


def _work(work: Folder | None) -> str:
    """Make a work folder."""
    place = storage.resolve(work, "work") if work is not None else tempfile.gettempdir()
    if storage.is_url(place):
        storage.check_writable(place, "work")
        return storage.join(place, f"logclient-verify-{uuid.uuid4().hex}")
    try:
        return os.path.abspath(tempfile.mkdtemp(prefix="logclient-verify-", dir=place))
    except OSError as error:
        raise LedgerError(f"work: {place}: {error.strerror}") from error


def _remove_work(work: str) -> None:
    from logclient.evidence import local_copies

    if storage.is_url(work):
        local_copies.forget()
        storage.remove_all(work)
    else:
        remove(work)


class _Inputs:
    """What a verification reads, and the folders that it writes to.

    Attributes:
        limits: of the verdict.
        ledgers: the ledger files.
        survey: of the captures.
        out: the place of the verdict; empty: none is wanted.
        made: folders that were made for it.
        work: the place of temporary files; empty: not made yet.
    """

    def __init__(
        self,
        ledger: Folder | Sequence[Folder],
        capture: Folder | Sequence[Folder] | None,
        kafka: str | None,
        kafka_config: str | os.PathLike[str] | Mapping[str, str] | None,
        out: Folder | None,
        work: Folder | None,
    ) -> None:
        self._ledger = ledger
        self._capture = capture
        self._kafka = kafka
        self._kafka_config = kafka_config
        self._out = out
        self._work = work
        self._ledger_folders: list[str] = []
        self._capture_folders: list[str] = []
        self.made: list[str] = []
        self.work = ""

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
        from logclient.verify import records
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
            records.parse_address(self._kafka)
            if isinstance(self._kafka_config, str | os.PathLike):
                self._kafka_config = records.read_config(self._kafka_config)
        self.out, made = output.prepare_folder(self._out)
        self.made += made
        self.work = _work(self._work)

    def find_ledgers(self) -> None:
        """List the ledgers."""
        from logclient.evidence import ledger_files

        self.ledgers: Ledgers = ledger_files.find_ledgers(self._ledger_folders)

    def find_new_producers(self) -> None:
        """List the ledgers of producers that have begun since the others were listed."""
        from logclient.evidence import ledger_files

        new = ledger_files.find_new_producers(self._ledger_folders, self.ledgers.parts)
        self.ledgers = self.ledgers.plus(new)

    def records(
        self, session: Session, table: str | None, columns: Mapping[str, str] | None
    ) -> Source | None:
        """Return the records that arrived; None: a capture did."""
        from logclient.verify import records

        if self._kafka is not None:
            assert not isinstance(self._kafka_config, str | os.PathLike)
            return records.Kafka(session.spark, self._kafka, self._kafka_config or {})
        return records.Table(session.spark, table, columns or {}) if table is not None else None

    def places(self) -> list[tuple[str, str]]:
        """Return what each folder is that workers read or write, and its place."""
        return [
            ("work", self.work),
            *(("ledger", place) for place in self._ledger_folders),
            *(("capture", place) for place in self._capture_folders),
        ]


class _Verification:
    """The stages of one verification, in their order."""

    def __init__(
        self,
        stages: SparkStages,
        source: Source | None,
        watch: Watch,
        work: str,
        out: str,
        survey: captures.Survey,
        examples: int,
        tuning: Tuning,
    ) -> None:
        self.stages = stages
        self.source = source
        self.watch = watch
        self.work = work
        self.out = out
        self.survey = survey
        self.entries = survey.entries
        self.examples = examples
        self.tuning = tuning
        self.unwritten: LedgerError | None = None
        """Why the files of violations could not be written."""

    def run(
        self, ledgers: Ledgers, limits: Limits, allow_open: bool, selection: Selection
    ) -> Verdict:
        from logclient.evidence import captures
        from logclient.verify import examples, ledger_merge
        from logclient.verify.packed_ledger import PackedLedger
        from logclient.verify.summary import Summary
        from logclient.verify.violation_files import ViolationWriter, publish

        began = time.monotonic()
        self.watch.step("packing ledgers")
        stems = self.stages.pack(ledgers.parts, self.work, selection)
        packed = ledger_merge.merge(
            stems, self.work, self.tuning.bucket_bits, ledgers.unread, ledgers.copies, selection
        )
        plan = self.plan(packed, selection)
        present = self.find_presence(plan, packed) if plan.other_runs else {}
        if present:
            plan = plan.without_other_runs(present, len(packed))
            packed = PackedLedger(self.work, plan.bits, plan.left_out_producers)
        plan.save()
        done = time.monotonic()
        seconds = {"pack": round(done - began, 3)}
        tally = self.tally(plan, packed, "comparing", present)
        foreign = captures.find_foreign(tally.facts, tally.matched, packed.begin)
        if foreign:
            # Their events are in all the sums, so everything is compared again without them.
            facts = [fact for fact in tally.facts if fact["name"] in foreign]
            plan = plan.without_segments(foreign)
            plan.save()
            tally = self.tally(plan, packed, "comparing without other runs", present)
            tally.foreign = facts
        self.watch.step("adding up")
        if self.source is not None:
            self.source.check(tally.facts)
            tally.facts += self.source.unseen(tally.facts)
        writer = ViolationWriter(plan.violations, packed)
        tally.stitch(writer)
        tally.count_unlisted(writer)
        tally.files.append(writer.close())
        summary = Summary(tally)
        found = summary.verdict(limits, allow_open)
        if plan.violations:
            faults = storage.join(self.out, "violations")
            try:
                with output.errors_named(self.out):
                    publish(plan.violations, faults, set(tally.files), packed, summary.doubtful)
            except LedgerError as error:
                self.unwritten = error

        self.watch.step("reading examples")
        pick = self.stages.pick if self.source is not None else None
        shown = examples.resolve(tally.choose_examples(), plan, summary.doubtful, packed, pick)
        examples.explain_undecoded(found.undecoded, plan, pick)
        if not plan.timed:
            found = found.untimed()
        seconds["compare"] = round(time.monotonic() - done, 3)
        seconds["second_passes"] = float(tally.second_passes)
        return found._replace(examples=shown, seconds=seconds)

    def find_presence(self, plan: Plan, packed: PackedLedger) -> dict[str, dict[str, Any]]:
        """Find out which producers have events in which segments.

        Returns:
            Name of a segment -> its facts, with ``present``: ranges of producers.
        """
        only = plan._replace(presence=True)
        only.save()
        return {fact["name"]: fact for fact in self.tally(only, packed, "looking for the run", {}).facts}

    def tally(
        self, plan: Plan, packed: PackedLedger, step: str, present: Mapping[str, dict[str, Any]]
    ) -> Tally:
        """Compare, and add up the counts of all tasks.

        Args:
            plan: saved.
            packed: the ledgers.
            step: for the progress line.
            present: see `find_presence`.
        """
        from logclient.evidence.segments import Segment
        from logclient.verify.tally import Tally

        tally = Tally(plan, packed, functools.partial(self.second_pass, plan))
        self.watch.step(step)
        for name in self.stages.compare(plan):
            self.watch.check()
            tally.read_file(name)
        if plan.other_runs and not plan.presence:
            names = {Segment(*plan.segments[i][0]).name for i in plan.other_runs}
            tally.other_runs = [fact for name, fact in sorted(present.items()) if name in names]
            tally.facts = [fact for fact in tally.facts if fact["name"] not in names]
        return tally

    def second_pass(self, plan: Plan, only: frozenset[int], later: dict[tuple[int, int], int]) -> list[str]:
        self.watch.step("comparing again")
        return self.stages.compare(plan, only, later)

    def groups(self) -> list[list[int]]:
        """Distribute the segments over tasks.

        If an event may come in several units, all segments of a listener are one task.
        """
        from logclient.evidence import decode
        from logclient.verify.plan import MAX_TASKS

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

    def fits_one_task(self, packed: PackedLedger, events: int) -> bool:
        """Return whether one task on this machine compares everything in less time than a shuffle takes.

        Args:
            packed: the ledgers.
            events: how many of their events are compared by hash alone.
        """
        from logclient.verify.ledger_buckets import places_of

        if not self.stages.local or self.source is not None:
            return False
        size = sum(entry[0][3] for entry in self.entries)
        places = int(places_of(packed, packed.live).sum()) + events
        return size < self.tuning.together_bytes and places < TOGETHER_PLACES

    def plan(self, packed: PackedLedger, selection: Selection) -> Plan:
        from logclient.evidence import captures
        from logclient.verify.ledger_buckets import places_of
        from logclient.verify.overview import Grid
        from logclient.verify.plan import Plan, share_evenly

        tasks: list[dict[str, list[int]]] = [{"segments": group} for group in self.groups()]
        # Each packed file with events that are compared by hash alone is a task.
        files, events = packed.anonymous_files() if selection == EVERYTHING else ([], 0)
        anonymous_shares = max(16, -(-events // ANONYMOUS_SHARE)) if files else 0
        tasks += [{"anonymous": [file]} for file in files]
        tasks = tasks or [{}]  # at least one task, to report the buckets
        together = self.fits_one_task(packed, events)
        if together:
            every: dict[str, list[int]] = {}
            for task in tasks:
                for what, numbers in task.items():
                    every.setdefault(what, []).extend(numbers)
            tasks = [every]
        n = len(packed.live)
        for i, task in enumerate(tasks):
            task["live"] = [i * n // len(tasks), (i + 1) * n // len(tasks)]
        bits = self.tuning.bucket_bits
        cores = self.stages.cores
        edges = [] if together else share_evenly(places_of(packed, packed.live) + BUCKET_PLACES, cores)
        violations = storage.join(self.work, "violations") if self.out else ""
        if violations and not storage.is_url(violations):
            os.mkdir(violations, 0o700)
        unjudged, published = captures.order_rules(self.survey.listeners)
        if self.source is not None:
            # Logjam events reach a topic or table through a device.
            published = [family for family in packed.families if family == "logjam"]
        return Plan(
            work=self.work,
            bits=bits,
            units=self.tuning.batch_units,
            chunk=self.tuning.chunk_bytes,
            tail=self.tuning.tail,
            examples=self.examples,
            partitions=1 if together else max(cores, len(edges) + 1),
            edges=packed.live[edges].tolist(),
            anonymous_shares=anonymous_shares,
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
            selection=[*selection],
            other_runs=self.survey.find_other_runs(selection.runs),
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
