"""Records with one message body each, from Kafka topics and tables, decoded as units with one event.

A row is known by its listener and a number: that of the column ``arrival``, by which order is judged; without
one, bits of the body's hash, so that each reading finds the row again, however Spark distributes the rows.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from logclient.errors import ConfigError, LedgerError
from logclient.evidence import decode
from logclient.evidence.arrays import I64
from logclient.evidence.captures import MOST_LISTENERS, UNIT_BITS
from logclient.evidence.reports import SegmentReport
from logclient.evidence.segments import binary
from logclient.files.capture import Problem
from logclient.verify.arrival_rows import BucketWriter, EventBuffer
from logclient.verify.ledger_facts import LedgerFacts
from logclient.verify.plan import Plan
from logclient.verify.readers import Arrived, Place
from logclient.verify.rows import report_row
from logclient.verify.schema import EVENT_BITS

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TEXTS = ("string", "varchar", "char")
_TYPES = {
    "body": (("binary", *_TEXTS), "binary or string"),
    "id": (("binary", *_TEXTS), "binary or string"),
    "key": (("binary", *_TEXTS), "binary or string"),
    "listener": ((*_INTEGERS, *_TEXTS, "boolean", "date"), "a string, a whole number, a boolean or a date"),
    "arrival": (_INTEGERS, "a whole number"),
    "received": (
        (*_INTEGERS, *_TEXTS, "timestamp", "timestamp_ntz", "date"),
        "a timestamp, the text of one, or a whole number of microseconds",
    ),
}

RECORDS = 4096  # in one batch from the JVM
BATCH_BYTES = 16 << 20  # of such a batch, where Spark has the setting


Edges = tuple[str, int, int, int, str | None]
"""What a survey of a table finds at one listener: its name, the lowest and the highest arrival number, how
many rows have none, and a text that is not a timestamp."""


class Source(ABC):
    """The records that a verification reads instead of a capture, from any kind of table.

    They are `numbered` if they have a number that rises with the order of arrival at a listener, and `timed`
    if they say when they arrived. `kinds` has the types of the columns, as Spark names them.
    """

    def __init__(self, title: str, columns: Mapping[str, str]) -> None:
        self.title, self.columns = title, columns
        self.kinds = {what: self._kind(what, name) for what, name in self.columns.items()}
        for what, kind in self.kinds.items():
            kinds, rule = _TYPES[what]
            if re.split(r"\W", kind)[0] not in kinds:
                raise ConfigError(f"columns: {what}: {self.columns[what]} is {kind[:100]}, must be {rule}")
        self.numbered, self.timed = "arrival" in columns, "received" in columns
        self.places = [Place("")]  # by number of the listener

    @abstractmethod
    def _kind(self, what: str, name: str) -> str:
        """Return the type of a column."""

    @abstractmethod
    def _edges(self) -> Iterable[Edges]:
        """Return what there is at each listener; beyond the most listeners not all."""

    @abstractmethod
    def _repeated(self, place: str) -> int | None:
        """Return an arrival number that two records of a listener have; None: there is none."""

    @abstractmethod
    def pick(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
        """Fetch records by listener and number, in one more pass over all; of equal bodies one."""

    def _missing(self, name: str, known: Iterable[str]) -> ConfigError:
        hint = "; name one as body, or as id with match=id" if name == "value" else ""
        return ConfigError(f"columns: {self.title} has no column {name}{hint} ({', '.join(known)})"[:400])

    def _survey(self) -> None:
        """Find the listeners, and check times and numbers, before any row is decoded."""
        if not self.numbered and "listener" not in self.columns and not self._timed_by_text():
            return
        self.places = []
        for place, low, high, nulls, wrong in sorted(self._edges()):
            number = f"{_where(self.title, place)}column {self.columns.get('arrival')}: "
            if wrong is not None:
                column = self.columns["received"]
                raise LedgerError(f"{self.title}: column {column}: {wrong[:100]!r} is not a timestamp")
            if nulls:
                raise LedgerError(f"{number}{nulls:,} NULL: every row needs its arrival number")
            if high - low >> UNIT_BITS:
                raise LedgerError(
                    f"{number}arrival numbers from {low} to {high}: "
                    "the range must be less than 2**40 (as microseconds: 12.7 days)"
                )
            self.places.append(Place(place, low))
        if len(self.places) > MOST_LISTENERS:
            raise LedgerError(f"{self.title}: more than {MOST_LISTENERS} listeners")

    def _timed_by_text(self) -> bool:
        return self.kinds.get("received", "").startswith(_TEXTS)

    def plan(self, protocol: str) -> dict[str, Any]:
        """Return the facts about the records that tasks need."""
        return {
            "protocol": protocol,
            "decoder": "lumberjack" if "id" in self.columns else protocol,
            "title": self.title,
            "numbered": self.numbered,
            "places": self.places,
        }

    def complete(self, reports: list[SegmentReport], begin: int | None) -> None:
        """Check the reports of all tasks together, and add what is missing of a topic."""
        rows = sum(report.units for report in reports)
        if "id" in self.columns and 0 < rows == sum(x.undecodable.get(decode.NO_VALUE, 0) for x in reports):
            raise ConfigError(f"columns: id: {self.columns['id']} is NULL or empty in all {rows:,} rows")
        ranges: dict[str, list[list[int]]] = {}
        for report in reports:
            if report.numbers:
                ranges.setdefault(report.listener, []).append(report.numbers)
        for name, some in ranges.items():
            if any(low <= before for (_, before), (low, _) in itertools.pairwise(sorted(some))):
                number = self._repeated(name)
                if number is not None:
                    raise _twice(self.title, name, number)
        for place in self.places:
            if place.end is None:
                continue
            own = [report for report in reports if report.listener == place.name]
            if not own:
                own = [SegmentReport(place.name, place.name, place.name)]
                reports += own
            units, n = sum(report.units for report in own), place.end - place.first
            oldest = min(report.first_us for report in own)  # 0: not known
            why = []
            # Records that were deleted before our first event was made do not matter.
            if place.first and not (begin is not None and 0 < oldest < begin):
                why.append(f"records before offset {place.first:,} are deleted")
            if units < n:
                lost = f"{n - units:,} of {n:,} offsets have no record"
                why.append(f"{lost}, because of compaction or transactions")
            own[0].problems = [list(Problem("gap", place.name, -1, reason)) for reason in why]
            own[0].counts = {"gap": len(why)} if why else {}


class FrameSource(Source):
    """The rows of a DataFrame. The columns of `frame` are place, at, received_us, key and body."""

    def __init__(self, arrived: Arrived) -> None:
        self._arrived = arrived
        self._sql: dict[str, str] = {}
        super().__init__(arrived.title, arrived.columns)
        sql = self._sql
        received, wrong = sql.get("received", "-1L"), "NULL"
        # An integer is microseconds since 1970.
        if self.timed and (kind := self.kinds["received"]) not in _INTEGERS:
            time = _micros(received, kind)
            if self._timed_by_text():
                wrong = f"CASE WHEN {time} IS NULL THEN {received} END"
            received = time
        body = sql.get("body")
        if "id" in sql:
            # The decoder reads it as that of a document.
            name = f"CAST({sql['id']} AS string)"
            body = f"CASE WHEN {name} != '' THEN to_json(named_struct('event.id', {name})) END"
        at = sql.get("arrival", f"shiftrightunsigned(xxhash64(CAST({body} AS binary)), {64 - UNIT_BITS})")
        self._rows = arrived.frame.selectExpr(
            f"coalesce(CAST({sql.get('listener', 'NULL')} AS string), '') AS place",
            f"CAST({at} AS bigint) AS at",
            f"coalesce(CAST({received} AS bigint), -1L) AS received_us",
            f"CAST({sql.get('key', 'NULL')} AS binary) AS key",
            f"CAST({body} AS binary) AS body",
            f"{wrong} AS wrong",
        )
        self.frame = self._rows.drop("wrong")
        if arrived.places:
            self.places = arrived.places
            return
        self._survey()
        if self.numbered:
            self.frame = self.frame.sortWithinPartitions("place", "at")

    def _kind(self, what: str, name: str) -> str:
        from pyspark.errors import AnalysisException

        frame = self._arrived.frame
        parts = [name] if name in frame.columns else name.split(".")
        quoted = ".".join(f"`{part.replace('`', '``')}`" for part in parts)
        try:
            [(_, kind)] = frame.selectExpr(f"{quoted} AS found").dtypes
        except AnalysisException as error:
            raise self._missing(name, frame.columns) from error
        self._sql[what] = quoted
        return str(kind)

    def _edges(self) -> Iterable[Edges]:
        at = "at" if self.numbered else "0L"
        columns = (f"{at} AS low", f"{at} AS high", f"CAST({at} IS NULL AS int) AS without")
        asked = {"low": "min", "high": "max", "without": "sum", "wrong": "min"}
        found = self._rows.selectExpr("place", *columns, "wrong").groupBy("place").agg(asked)
        for row in found.limit(MOST_LISTENERS + 1).collect():
            yield (row.place, *(row[f"{how}({name})"] for name, how in asked.items()))

    def _repeated(self, place: str) -> int | None:
        numbers = self.frame.where(self.frame["place"] == place).select("at")
        found = numbers.groupBy("at").count().where("count > 1").limit(1).collect()
        return found[0].at if found else None

    def pick(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
        """Fetch records, as `Source.pick` does."""
        numbers: dict[int, list[int]] = {}
        for listener, number in set(wanted):
            numbers.setdefault(listener, []).append(number)
        if not numbers:
            return {}
        names = {self.places[listener].name: listener for listener in numbers}
        place, at = self.frame["place"], self.frame["at"]
        which = [(place == name) & at.isin(numbers[listener]) for name, listener in names.items()]
        found = self.frame.where(functools.reduce(operator.or_, which)).dropDuplicates(["place", "at"])
        return {(names[row.place], row.at): row.asDict() for row in found.collect()}


def _micros(time: str, kind: str) -> str:
    """Return SQL for the microseconds since 1970 of a column. Without a zone it is of UTC in each session."""
    zoned, plain = f"unix_micros(try_cast({time} AS timestamp))", f"try_cast({time} AS timestamp_ntz)"
    if kind == "timestamp":
        return zoned
    seconds = f"unix_date(CAST({plain} AS date)) * 86400L + hour({plain}) * 3600L + minute({plain}) * 60L"
    utc = f"({seconds}) * 1000000L + CAST(extract(SECOND FROM {plain}) * 1000000 AS bigint)"
    has_zone = rf"{time} RLIKE '[0-9]:[0-9.]+ *[A-Za-z+-]'"
    return f"CASE WHEN {has_zone} THEN {zoned} ELSE {utc} END" if kind.startswith(_TEXTS) else utc


def _where(title: str, listener: str) -> str:
    return title + (f": listener {listener[:100]!r}: " if listener else ": ")


def _twice(title: str, listener: str, number: int) -> LedgerError:
    return LedgerError(f"{_where(title, listener)}two records have the arrival number {number}")


# -- in the workers


def record_rows(
    batches: Iterable[Any], facts: LedgerFacts, plan: Plan, only: frozenset[int] | None
) -> Iterator[pa.RecordBatch]:
    """Decode records, as `BucketWriter.segment` does with a segment."""
    assert plan.records is not None
    writer = BucketWriter(plan, facts, only)
    find = decode.body_decoder(plan.records["decoder"], facts.prefixes)
    listeners = {name: index for index, (name, *_) in enumerate(plan.records["places"])}
    readers: dict[str, _PlaceReader] = {}
    for batch in batches:
        places = batch.column(0).dictionary_encode()
        codes, at, received = (x.to_numpy() for x in (places.indices, batch.column(1), batch.column(2)))
        for code, name in enumerate(places.dictionary.to_pylist()):
            which = np.flatnonzero(codes == code)
            if name not in listeners:
                why = "it is new: each reading must find the same rows"
                raise LedgerError(f"{_where(plan.records['title'], name)}{why}")
            if name not in readers:
                readers[name] = _PlaceReader(plan.records, writer, find, listeners[name])
            yield from readers[name].take(batch.column(4).take(pa.array(which)), at[which], received[which])
    for reader in readers.values():
        yield from reader.buffer.flush()
        if only is None:
            reader.report.next_arrival = reader.report.units + 1
            yield report_row(reader.report)


class _PlaceReader:
    def __init__(
        self, records: dict[str, Any], writer: BucketWriter, find: Callable[..., Any], listener: int
    ) -> None:
        self.records, self.writer, self.find, self.listener = records, writer, find, listener
        self.place: Place = records["places"][listener]
        name = self.place.name
        # It continues no other one.
        self.report = SegmentReport(name, name, uuid.uuid4().hex, protocol=records["protocol"])
        self.buffer = EventBuffer(writer, listener)

    def take(self, bodies: pa.Array, at: I64, received: I64) -> Iterator[pa.RecordBatch]:
        report, most = self.report, self.writer.plan.examples
        if self.records["numbered"]:
            numbers = np.append(np.array(report.numbers[1:], np.int64), at)
            if len(same := np.flatnonzero(numbers[1:] == numbers[:-1])):
                raise _twice(self.records["title"], report.name, int(numbers[same[0]]))
            report.numbers = [*(report.numbers[:1] or [int(at[0])]), int(at[-1])]
        report.units += len(at)
        if bodies.null_count:
            empty = bodies.is_null().to_numpy(zero_copy_only=False)
            for number in at[empty].tolist():
                report.add_undecodable(decode.NO_VALUE, number, 0, most, listener=self.listener)
            bodies, at, received = bodies.drop_null(), at[~empty], received[~empty]
        if not len(at):
            return
        data, offset, length = binary(bodies)
        report.size += int(length.sum())
        events = self.writer.marked(self.find(data, offset, length))
        report.count(at, received, events, self.writer.selection, most, listener=self.listener)
        positions = (at[events.unit] - self.place.first) << EVENT_BITS
        yield from self.buffer.add(events, positions + events.within, received[events.unit])
