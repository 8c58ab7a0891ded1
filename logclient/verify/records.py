"""Records with one message body each, from Kafka topics and tables, read by Spark.

A capture has wire units, but a Kafka topic or a table has bodies, which a server has passed on. They come
through the JVM by Spark's own connectors and are decoded in ``mapInArrow``, each as a unit with one event.
The protocol is that of the ledgers.

A record is identified by its place and a number. For Kafka, and for tables with an ``arrival`` column, the
place is a listener (a partition), the number rises with the order of arrival, and order is judged. For other
tables the place is a piece of the table as Spark reads it, with a number that is the same in each pass.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from logclient.errors import ConfigError, LedgerError
from logclient.evidence import decode
from logclient.evidence.arrays import I64
from logclient.evidence.segments import Problem, binary
from logclient.verify.arrival_rows import BucketWriter, EventBuffer
from logclient.verify.facts import Facts
from logclient.verify.ledger_facts import LedgerFacts
from logclient.verify.plan import Plan
from logclient.verify.rows import text_row
from logclient.verify.schema import EVENT_BITS, FACT, LISTENER, UNIT_BITS

__all__ = ["COLUMNS", "Kafka", "Place", "Source", "Table", "pick_task", "record_rows"]

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TEXTS = ("string", "varchar", "char")
_TYPES = {
    "body": (("binary", *_TEXTS), "binary or string"),
    "arrival": (_INTEGERS, "a whole number"),
    "received": (
        (*_INTEGERS, *_TEXTS, "timestamp", "timestamp_ntz", "date"),
        "a timestamp, the text of one, or a whole number of microseconds",
    ),
}

COLUMNS = ("body", "received", "key", "listener", "arrival")
"""The names of columns for ``--columns``. Only ``body`` is required."""

RECORDS = 4096  # in one batch from the JVM
BATCH_BYTES = 16 << 20  # of such a batch, where Spark has the setting
PICKED = "listener bigint, at bigint, place string, received_us bigint, key binary, body binary"
ANSWER_MS = 10_000  # for a broker's answer


class Place(NamedTuple):
    """A partition of a topic, or a listener of a table."""

    name: str
    first: int = 0  # the lowest number of its records
    end: int = -1  # the number of the next record; -1: a table, whose numbers may have gaps


class Source:
    """The records that a verification reads instead of a capture.

    Attributes:
        title: a name for people, without secrets.
        places: by number of the listener.
        numbered: records have a number that rises with the order of arrival at a listener.
        timed: records say when they arrived.
        frame: columns place, at, received_us, key, body.
    """

    title: str
    places: list[Place]
    numbered: bool
    timed: bool
    frame: Any

    def plan(self, protocol: str) -> dict[str, Any]:
        """Return the facts about the records that tasks need."""
        places = [list(place) for place in self.places]
        return {"protocol": protocol, "title": self.title, "numbered": self.numbered, "places": places}

    def check(self, facts: list[dict[str, Any]]) -> None:
        """Check the facts of all tasks together.

        Raises:
            LedgerError: two records have the same number.
        """

    def unseen(self, facts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the facts of places without any record."""
        seen = {fact["listener"] for fact in facts}
        for index, place in enumerate(self.places):
            if place.name not in seen:
                problems = [_deleted(place)] if place.first and place.end >= 0 else []
                if place.end > place.first:
                    problems.append(_missing_offsets(place, 0))
                yield _fact(_NO_RECORDS, f"{index}", place.name, "", 0, 0, problems)

    def pick(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
        """Fetch records, in one more pass over all of them.

        Args:
            wanted: listeners and numbers.

        Returns:
            Listener and number -> the columns of `PICKED`.
        """
        asked = frozenset(wanted)
        if not asked:
            return {}
        names = {place.name: index for index, place in enumerate(self.places)}
        frame = self.frame.mapInArrow(_pick_rows(names, self.numbered, asked), PICKED)
        return {(row.listener, row.at): row.asDict() for row in frame.collect()}


_NO_RECORDS = {
    "acks": 0, "events": 0, "quiet": {}, "undecodable": {}, "undecoded": [], "first_us": 0, "last_us": 0,
    "timeless": 0,
    "devices": [], "devices_left_out": 0,
}  # fmt: skip


def _fact(
    fields: dict[str, Any],
    index: str,
    name: str,
    protocol: str,
    units: int,
    size: int,
    problems: list[Problem],
) -> dict[str, Any]:
    """Return the facts of a place in the form of a segment's facts."""
    return {
        **fields,
        "index": index,
        "listener": name,
        "name": name,
        "number": 1,
        "size": size,
        "protocol": protocol,
        "units": units,
        "problems": [list(problem) for problem in problems],
        "counts": {problem.kind: 1 for problem in problems},
        "first_arrival": 1,
        "next_arrival": units + 1,
        "closed": "closed",
        "header": True,
    }


def _deleted(place: Place) -> Problem:
    return Problem("gap", place.name, -1, f"records before offset {place.first:,} are deleted")


def _missing_offsets(place: Place, units: int) -> Problem:
    n = place.end - place.first
    why = f"{n - units:,} of {n:,} offsets have no record, because of compaction or transactions"
    return Problem("gap", place.name, -1, why)


# -- Kafka


class Kafka(Source):
    """One or more topics, from the first record to the current end.

    Args:
        spark: a session with Spark's Kafka connector.
        address: ``host:port[,host:port…]/topic[,topic…]``.
        config: settings of the consumer, as Kafka names them.

    Raises:
        ConfigError: the address has another form.
        LedgerError: there is no such topic.
    """

    def __init__(self, spark: Any, address: str, config: Mapping[str, str]) -> None:
        bootstrap, topics = parse_address(address)
        self.title = f"kafka://{bootstrap}/{','.join(topics)}"
        self.numbered = self.timed = True
        settings = {**config, "bootstrap.servers": bootstrap}
        offsets = _offsets(spark, topics, settings)
        self.places = [
            Place(f"{topic}[{partition}]", first, end)
            for topic, partitions in sorted(offsets.items())
            for partition, (first, end) in sorted(partitions.items())
        ]
        if len(self.places) > LISTENER:
            raise LedgerError(f"kafka: more than {LISTENER} partitions")
        reader = spark.read.format("kafka")
        for name, value in settings.items():
            reader = reader.option(f"kafka.{name}", value)
        # Fix the range now: the topic may grow meanwhile.
        assigned = {topic: sorted(partitions) for topic, partitions in offsets.items()}
        for option, which in (("startingOffsets", 0), ("endingOffsets", 1)):
            ends = {
                topic: {str(partition): pair[which] for partition, pair in partitions.items()}
                for topic, partitions in offsets.items()
            }
            reader = reader.option(option, json.dumps(ends))
        found = reader.option("assign", json.dumps(assigned)).load()
        self.frame = found.selectExpr(
            "concat(topic, '[', partition, ']') AS place",
            "offset AS at",
            "unix_micros(timestamp) AS received_us",
            "key",
            "value AS body",
        )


def parse_address(address: str) -> tuple[str, list[str]]:
    """Return the bootstrap servers and topics of ``host:port/topic``.

    Raises:
        ConfigError: it has another form.
    """
    bootstrap, slash, names = address.rpartition("/")
    topics = sorted(set(names.split(",")))
    if not slash or not bootstrap or "/" in bootstrap or "@" in bootstrap:
        shown = "the address" if "@" in address else repr(address[:200])
        raise ConfigError(f"kafka: {shown} must be HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC]")
    for topic in topics:
        if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic):
            raise ConfigError(f"kafka: {topic[:200]!r} is not the name of a topic")
    return bootstrap, topics


def read_config(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a file of settings as Kafka's own tools take it: lines of ``name=value``, and ``#`` for comments.

    Raises:
        LedgerError: the file cannot be read.
        ConfigError: a line has another form. The error names its number, not its content.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(
            f"kafka_config: {os.fspath(path)}: {getattr(error, 'strerror', 'no UTF-8')}"
        ) from error
    config = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"kafka_config: line {number} must be NAME=VALUE")
        config[name.strip()] = value.strip()
    return config


def _offsets(
    spark: Any, topics: list[str], settings: dict[str, str]
) -> dict[str, dict[int, tuple[int, int]]]:
    """Ask the brokers for the offsets of all partitions.

    The brokers are asked only once, because all stages must see the same records. The client is that of the
    connector.

    Returns:
        Topic -> partition -> offset of the first record, and of the next one.
    """
    if not hasattr(spark, "sparkContext"):
        raise ConfigError("kafka: it cannot be read through Spark Connect: use another master, or a table")
    jvm = spark.sparkContext._jvm
    client = jvm.org.apache.kafka.clients.consumer.KafkaConsumer
    if not isinstance(client, type(jvm.java.util.HashMap)):
        raise ConfigError("kafka: this Spark session has no Kafka connector (spark.jars.packages)")
    values = jvm.java.util.HashMap()
    bytes_ = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    own = {
        "key.deserializer": bytes_, "value.deserializer": bytes_, "allow.auto.create.topics": "false",
        "default.api.timeout.ms": str(ANSWER_MS), "request.timeout.ms": str(ANSWER_MS // 2),
    }  # fmt: skip
    for name, value in {**own, **settings}.items():
        values.put(name, value)
    consumer = client(values)
    try:
        found: dict[str, dict[int, tuple[int, int]]] = {}
        for topic in topics:
            numbers = [info.partition() for info in consumer.partitionsFor(topic) or ()]
            if not numbers:
                raise LedgerError(f"kafka: {settings['bootstrap.servers']} has no topic {topic}")
            partitions = jvm.java.util.ArrayList()
            for number in numbers:
                partitions.add(jvm.org.apache.kafka.common.TopicPartition(topic, number))
            first, end = consumer.beginningOffsets(partitions), consumer.endOffsets(partitions)
            found[topic] = {x.partition(): (int(first[x]), int(end[x])) for x in partitions}
        return found
    finally:
        consumer.close(jvm.java.time.Duration.ZERO)


# -- tables


class Table(Source):
    """Any table or files that Spark can read.

    Args:
        spark: a session.
        name: a table, a folder or file (Parquet), or ``FORMAT:PATH``.
        columns: some of `COLUMNS` -> the table's column. The default for ``body`` is ``value``.

    Raises:
        ConfigError: there is no such column, or it has another type.
        LedgerError: there is no such table.
    """

    def __init__(self, spark: Any, name: str, columns: Mapping[str, str]) -> None:
        from pyspark.errors import AnalysisException

        self.title = f"table {name}"
        self.places = []
        try:
            found = _load_table(spark, name)
        except AnalysisException as error:
            raise LedgerError(f"table: {str(error).splitlines()[0]}") from error
        columns = {"body": "value", **columns}
        for what, column in columns.items():
            if what not in COLUMNS:
                raise ConfigError(f"columns: {what[:100]!r} is none of {', '.join(COLUMNS)}")
            if column not in found.columns:
                raise ConfigError(
                    f"columns: {name} has no column {column} ({', '.join(found.columns)})"[:400]
                )
        types = {what: dict(found.dtypes)[column] for what, column in columns.items()}
        quoted = {what: f"`{column.replace('`', '``')}`" for what, column in columns.items()}
        for what, (kinds, rule) in _TYPES.items():
            if what in types and types[what].partition("(")[0] not in kinds:
                raise ConfigError(f"columns: {what}: {columns[what]} is {types[what]}, must be {rule}")
        self.columns = columns
        self.numbered, self.timed = "arrival" in columns, "received" in columns
        received, wrong = "0L", "NULL"
        if self.timed:
            # An integer is microseconds since 1970.
            received = quoted["received"]
            if types["received"] not in _INTEGERS:
                time = f"try_cast({received} AS timestamp)"
                if types["received"].startswith(_TEXTS):
                    wrong = f"CASE WHEN {time} IS NULL THEN {received} END"
                received = f"unix_micros({time})"
        place = f"CAST({quoted['listener']} AS string)" if "listener" in columns else "''"
        number = f"CAST({quoted.get('arrival', '0L')} AS bigint)"
        try:
            self.frame = found.selectExpr(
                f"coalesce({place}, '') AS place",
                f"{number} AS at",
                f"coalesce(CAST({received} AS bigint), 0L) AS received_us",
                f"CAST({quoted.get('key', 'NULL')} AS binary) AS key",
                f"CAST({quoted['body']} AS binary) AS body",
            )
        except AnalysisException as error:
            raise ConfigError(f"columns: {str(error).splitlines()[0][:400]}") from error
        if self.numbered or wrong != "NULL":
            self._survey(
                found.selectExpr(f"coalesce({place}, '') AS place", f"{number} AS at", f"{wrong} AS wrong")
            )
        if self.numbered:
            self.frame = self.frame.sortWithinPartitions("place", "at")

    def _survey(self, frame: Any) -> None:
        """Read the listeners, and the first number of each, before any row."""
        grouped = frame.groupBy("place") if self.numbered else frame.groupBy()
        asked = (
            "min(at) AS low",
            "max(at) AS high",
            "count_if(at IS NULL) AS without",
            "min(wrong) AS wrong",
        )
        from pyspark.sql.functions import expr

        rows = grouped.agg(*map(expr, asked)).limit(LISTENER + 1).collect()
        for row in rows:
            if row.wrong is not None:
                column = self.columns["received"]
                raise LedgerError(f"{self.title}: column {column}: {row.wrong[:100]!r} is not a timestamp")
        if not self.numbered:
            return
        if len(rows) > LISTENER:
            raise LedgerError(f"{self.title}: more than {LISTENER} listeners")
        for row in sorted(rows, key=lambda row: str(row.place)):
            where = f"{self.title}: {_prefix(row.place)}column {self.columns['arrival']}:"
            if row.without:
                raise LedgerError(f"{where} {row.without:,} NULL: every row needs its arrival number")
            if row.high - row.low >> UNIT_BITS:
                raise LedgerError(
                    f"{where} arrival numbers from {row.low} to {row.high}: "
                    "the range must be less than 2**40 (as microseconds: 12.7 days)"
                )
            self.places.append(Place(row.place, row.low))

    def check(self, facts: list[dict[str, Any]]) -> None:
        """Check that no two pieces of the table have a number in common. Tasks check inside a piece.

        Raises:
            LedgerError: two records have the same number.
        """
        ranges: dict[str, list[list[int]]] = {}
        for fact in facts:
            if fact.get("numbers"):
                ranges.setdefault(fact["listener"], []).append(fact["numbers"])
        names = [
            name
            for name, some in ranges.items()
            if any(low <= before for (_, before), (low, _) in itertools.pairwise(sorted(some)))
        ]
        if not names:
            return
        frame = self.frame.select("place", "at").where(self.frame.place.isin(names))
        for row in frame.groupBy("place", "at").count().where("count > 1").limit(1).collect():
            raise _twice(self.title, row.place, row.at)


def _prefix(listener: str) -> str:
    return f"listener {listener[:100]!r}: " if listener else ""


def _twice(title: str, listener: str, number: int) -> LedgerError:
    return LedgerError(f"{title}: {_prefix(listener)}two records have the arrival number {number}")


def _load_table(spark: Any, name: str) -> Any:
    form, colon, path = name.partition(":")
    if colon and form.isidentifier() and not path.startswith("//"):
        try:
            return _analysed(spark.read.format(form).load(path))
        except Exception as error:
            if "DATA_SOURCE_NOT_FOUND" not in str(error) and "ClassNotFoundException" not in str(error):
                raise
            raise LedgerError(
                f"table: Spark knows no format {form!r}: name the Maven coordinates of its package with"
                " --packages (packages=)"
            ) from error
    found = spark.read.parquet(name) if "/" in name or os.path.exists(name) else spark.read.table(name)
    return _analysed(found)


def _analysed(frame: Any) -> Any:
    """Return the frame if there is such a table; Spark Connect asks the server only when it must."""
    frame.schema  # noqa: B018
    return frame


# -- in the workers


def _by_place(
    batch: pa.RecordBatch, names: dict[str, int], numbered: bool, task: int, before: int
) -> Iterator[tuple[int, str, I64, I64]]:
    """Yield for each place of a batch its listener, its name, its rows, and their numbers."""
    places = batch.column(0).dictionary_encode()
    codes = places.indices.to_numpy()
    numbers = batch.column(1).to_numpy() if numbered else np.arange(before, before + batch.num_rows)
    for code, name in enumerate(places.dictionary.to_pylist()):
        which = np.flatnonzero(codes == code)
        yield names[name] if numbered else task, name, which, numbers[which]


def _task_number(before: int) -> int:
    """Return the number of the piece that this task reads.

    Args:
        before: the number of tasks that read no records.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number = context.partitionId() - before
    if number > LISTENER:
        raise OverflowError(f"table: Spark reads it in more than {LISTENER} pieces")
    return number


def record_rows(
    batches: Iterable[Any], facts: LedgerFacts, plan: Plan, only: frozenset[int] | None, before: int
) -> Iterator[pa.RecordBatch]:
    """Decode records, as `arrival_rows.segment_rows` does with segments.

    Args:
        batches: of the frame of a `Source`.
        facts: what the ledgers say.
        plan: of the comparison.
        only: for a second pass, the buckets whose arrivals are wanted.
        before: the number of tasks that read no records.

    Yields:
        Batches of `rows.ROWS`.
    """
    task = _RecordTask(plan, facts, BucketWriter(plan, facts, only), _task_number(before))
    for batch in batches:
        yield from task.take(batch)
    yield from task.finish(only is None)


class _RecordTask:
    """A reader of the records of one task."""

    def __init__(self, plan: Plan, facts: LedgerFacts, writer: BucketWriter, number: int) -> None:
        assert plan.records is not None
        self.plan = plan
        self.writer = writer
        self.number = number
        self.since = int(facts.span[0]) if facts.span[0] <= facts.span[1] else None
        self.protocol: str = plan.records["protocol"]
        self.title: str = plan.records["title"]
        self.numbered: bool = plan.records["numbered"]
        self.places = [Place(*fields) for fields in plan.records["places"]]
        self.names = {place.name: index for index, place in enumerate(self.places)}
        self.find = decode.body_decoder(self.protocol, writer.prefixes)
        self.rows = 0
        self.seen: dict[str, _PlaceReader] = {}

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        received = batch.column(2).to_numpy()
        for listener, name, which, at in _by_place(batch, self.names, self.numbered, self.number, self.rows):
            seen = self.seen.get(name)
            if seen is None:
                seen = self.seen[name] = _PlaceReader(self, listener, name)
            yield from seen.take(batch.column(4).take(pa.array(which)), at, received[which])
        self.rows += batch.num_rows

    def finish(self, report: bool) -> Iterator[pa.RecordBatch]:
        for seen in self.seen.values():
            yield from seen.buffer.flush()
            if report:
                yield text_row(0, FACT, json.dumps(seen.fact()))


class _PlaceReader:
    """A decoder of the records of one place, with their account."""

    def __init__(self, task: _RecordTask, listener: int, name: str) -> None:
        self.task = task
        self.listener = listener
        self.place = task.places[listener] if task.numbered else Place(name)
        self.facts = Facts(task.plan, listener=listener)
        self.buffer = EventBuffer(task.writer, listener)
        self.low: int | None = None  # its first number in this task
        self.high: int | None = None  # its last number so far
        self.units = 0
        self.size = 0
        self.began_us = 0  # when its first record arrived

    def take(self, bodies: pa.Array, at: I64, received: I64) -> Iterator[pa.RecordBatch]:
        name, first = self.place.name, self.place.first
        if int(at[-1]) - first >> UNIT_BITS:
            raise LedgerError(f"{self.task.title}: {name}: more than 2**40 records")
        if int(at[0]) == self.high:
            raise _twice(self.task.title, name, self.high)
        same = np.flatnonzero(at[1:] == at[:-1])
        if len(same):
            raise _twice(self.task.title, name, int(at[same[0]]))
        self.low, self.high = int(at[0]) if self.low is None else self.low, int(at[-1])
        if not self.units:
            self.began_us = int(received[0])
        self.units += len(at)
        if bodies.null_count:
            empty = bodies.is_null().to_numpy(zero_copy_only=False)
            for number in at[empty].tolist():
                self.facts.undecodable(decode.NO_VALUE, name, number, 0)
            bodies, at, received = bodies.drop_null(), at[~empty], received[~empty]
        if not len(at):
            return
        data, offset, length = binary(bodies)
        self.size += int(length.sum())
        events = self.task.writer.marked(self.task.find(data, offset, length))
        self.facts.count(name, at, received, events)
        positions = (at[events.unit] - first) << EVENT_BITS
        yield from self.buffer.add(events, positions + events.within, received[events.unit])

    def fact(self) -> dict[str, Any]:
        place, since = self.place, self.task.since
        problems = []
        # Records that were deleted before our first event was made do not matter.
        if place.first and place.end >= 0 and (since is None or self.began_us >= since):
            problems.append(_deleted(place))
        if place.end - place.first > self.units:
            problems.append(_missing_offsets(place, self.units))
        index = f"{self.task.number}/{self.listener}/{place.name}"
        self.facts.fields["numbers"] = [self.low, self.high] if self.task.numbered else []
        return _fact(
            self.facts.fields, index, place.name, self.task.protocol, self.units, self.size, problems
        )


def _pick_rows(
    names: dict[str, int], numbered: bool, asked: frozenset[tuple[int, int]]
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def pick(batches: Iterable[Any]) -> Iterator[Any]:
        from logclient.verify import records

        yield from records.pick_task(batches, names, numbered, asked)

    return pick


def pick_task(
    batches: Iterable[pa.RecordBatch],
    names: dict[str, int],
    numbered: bool,
    asked: frozenset[tuple[int, int]],
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted records of one piece.

    Args:
        batches: of the frame of a `Source`.
        names: place -> listener.
        numbered: see `Source`.
        asked: listeners and numbers.
    """
    task, before = _task_number(0), 0
    of_listener: dict[int, list[int]] = {}
    for listener, number in asked:
        of_listener.setdefault(listener, []).append(number)
    for batch in batches:
        for listener, _, which, at in _by_place(batch, names, numbered, task, before):
            which = which[np.isin(at, of_listener.get(listener, []))]
            if len(which):
                found = batch.take(pa.array(which))
                numbers = found.column(1) if numbered else pa.array(which + before)
                yield pa.record_batch(
                    [
                        pa.repeat(pa.scalar(listener), len(which)),
                        numbers,
                        *(found.column(i) for i in (0, 2, 3, 4)),
                    ],
                    names=["listener", "at", "place", "received_us", "key", "body"],
                )
        before += batch.num_rows
