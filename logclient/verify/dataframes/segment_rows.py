"""Segments of captures as rows: how they are shared out over tasks, and how a task reads its share."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from logclient.errors import ConfigError, LedgerError
from logclient.evidence import captures, decode, storage
from logclient.evidence.segments import Segment, SegmentReader
from logclient.files.capture import Problem
from logclient.verify import worker
from logclient.verify.dataframes.columns import BODIES, IDENTITY, Columns, Rows
from logclient.verify.plan import FILES, TASK_BYTES, share_out

UNITS = 1 << 14  # read at a time
ROWS = 1 << 14  # in one batch, and as many as its last unit has
BODY_BYTES = 8 << 20  # likewise
PATHS = "paths"  # the option in which Spark, too, passes several paths, as JSON


class Series(NamedTuple):
    """Segments of one listener, in order."""

    protocol: str  # empty: not known
    segments: list[Segment]


def folders_of(options: Any, what: str, *names: str) -> list[str]:
    """Return the places of some options, each of them a place or a list of them as JSON."""
    given: list[str] = []
    for name in names:
        text = str(options.get(name) or "")
        found: Any = [text] if text else []
        if text and (name == PATHS or text.startswith("[")):
            try:
                found = json.loads(text)
            except ValueError:
                found = None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ConfigError(f"{name}: it must be a list of paths as JSON: give them to load()")
        given += found
    if not given:
        raise ConfigError(f"{names[0]}: the folder of a {what} must be given")
    return storage.resolve_all(given, what)


def find_series(
    folders: Sequence[str], protocol: str = ""
) -> tuple[list[Series], list[captures.LeftOutFile]]:
    """Find the segments that the verifier would compare, and unreadable files whose rows no other one has."""
    series: list[Series] = []
    chosen, left_out = captures.choose(storage.expand(folders, "capture"))
    for _, group in itertools.groupby(chosen, lambda one: one.segment.listener):
        segments, headers = zip(*group, strict=True)
        known = (header.protocol for header in headers if header and captures.decodable(header.protocol))
        series.append(Series(next(known, ""), [*segments]))
    unread = [one for one in left_out if one.doubt]
    if not protocol:
        return series, unread
    wanted = decode.protocol_of(protocol)
    series = [one for one in series if decode.protocol_of(one.protocol) == wanted]
    return series, [one for one in unread if decode.protocol_of(one.protocol) in (wanted, "")]


def share(series: Iterable[Series], columns: Columns) -> list[list[Series]]:
    """Share out segments over tasks: all of a listener to one if an event may have several units."""
    parts = []
    for one in series:
        whole = not columns.of_units and bool(one.protocol) and decode.carries(one.protocol)
        for segments in [one.segments] if whole else [[segment] for segment in one.segments]:
            size = sum(segment.size for segment in segments)
            parts.append((one._replace(segments=segments), size, len(segments)))
    return share_out(parts, TASK_BYTES, FILES)


def read(
    series: Iterable[Series], columns: Columns, *, quiet: bool, strict: bool
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task.

    With `quiet`, pings, heartbeats and the like are rows. If `strict`, damage is an error, not a row.
    """
    new = functools.partial(
        decode.bounded_decoder,
        rows=ROWS,
        body_bytes=BODY_BYTES if columns.any_of(BODIES) else 0,
        identity=columns.any_of(IDENTITY) or strict,
        hashes=columns.any_of({"hash"}),
    )
    shared = functools.cache(new)
    for one in series:
        find = None
        if one.protocol and not columns.of_units:
            find = (new if decode.carries(one.protocol) else shared)(one.protocol)
        for segment in one.segments:
            opened = SegmentReader(segment, units=UNITS)
            for batch in opened:
                if columns.of_units:
                    yield columns.batch(Rows(batch, np.arange(len(batch.offset)), opened, one.protocol))
                    continue
                inbound = np.flatnonzero(batch.direction == 0)
                if find is None or not len(inbound):
                    continue
                if len(inbound) < len(batch.offset):
                    batch = batch.take(inbound)
                for events, kept in find(batch):
                    rows = Rows(batch, events.unit, opened, one.protocol, events, kept)
                    if strict:
                        _check(rows)
                    words = [i for i, name in enumerate(events.names) if name in decode.QUIET and not quiet]
                    yield columns.batch(rows, ~np.isin(events.status, words))
            for problem in _problems(opened, one.protocol):
                if strict:
                    raise LedgerError(f"capture: {problem.place}: {problem.kind}: {problem.reason}")
                if not columns.of_units:
                    yield columns.problem(segment, one.protocol, problem)


def _check(rows: Rows) -> None:
    """Raise an error that names the first of the rows that is no event and should be one."""
    names = rows.events.names
    wrong = [i for i, name in enumerate(names) if i >= decode.NOT_JSON and name not in decode.QUIET]
    for row in np.flatnonzero(np.isin(rows.events.status, wrong))[:1]:
        at, word = int(rows.batch.offset[rows.unit[row]]), names[rows.events.status[row]]
        raise LedgerError(f"capture: {rows.source.segment.name} at byte {rows.batch.base + at}: {word}")


def _problems(reader: SegmentReader, protocol: str) -> Iterator[Problem]:
    """Yield the places of a segment that cannot be read."""
    name = reader.segment.name
    if not protocol:
        yield Problem("unknown_protocol", name, 0, "its header names no protocol that is known")
    wrong = [problem for problem in reader.problems if problem.kind in ("unread", "damage")]
    yield from wrong
    explained = any(problem.kind == "unread" or problem.offset >= reader.position for problem in wrong)
    if reader.position < reader.segment.size and not explained:
        yield Problem("torn_record", name, reader.position, "the record is not whole")


@dataclasses.dataclass
class _Part(InputPartition):
    """What one task reads, and files that are only named."""

    series: list[Series]
    left_out: Sequence[captures.LeftOutFile] = ()


class SegmentRowReader(DataSourceReader):
    """Reads captures for Spark."""

    def __init__(self, source: Any, schema: StructType | None) -> None:
        source.check_options()
        self.columns: Columns = source.columns(schema)
        self.quiet: bool = source.quiet
        self.strict: bool = source.strict
        self.folders = folders_of(source.options, "capture", "path", PATHS)
        self.protocol = str(source.options.get("protocol", ""))
        if self.protocol:
            decode.wire(self.protocol)

    def partitions(self) -> list[InputPartition]:
        series, left_out = find_series(self.folders, self.protocol)
        if left_out and self.strict:
            raise LedgerError(f"capture: {left_out[0].segment}: {left_out[0].reason}")
        parts = [_Part(some) for some in share(series, self.columns)]
        return [*parts, _Part([], left_out)] if left_out and not self.columns.of_units else [*parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):  # Spark makes one when there are none
            return
        worker.prepare_in_task()
        for one in partition.left_out:
            yield self.columns.problem(Segment("", 0, "", 0, one.segment), one.protocol, one.problem())
        yield from read(partition.series, self.columns, quiet=self.quiet, strict=self.strict)
