"""Tables that this process reads without Spark: files of Parquet, JSON and Arrow, and tables of pyarrow.

The rows are those that `records.FrameSource` makes of the same table, in batches, so that memory is bounded.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import dataset

from logclient._ext.hash import xxh64
from logclient.errors import ConfigError, LedgerError
from logclient.evidence import storage
from logclient.evidence.arrays import I64
from logclient.evidence.captures import MOST_LISTENERS, UNIT_BITS
from logclient.evidence.segments import binary
from logclient.verify.records import Edges, Source

ROWS = 1 << 14  # in one batch
PART_BYTES = 64 << 20  # of rows that are sorted together
SEED = 42  # of the hashes
BLOCK_BYTES = 16 << 20  # of a file of JSON that are read at a time: no document may be larger
HEAD_BYTES = 1 << 16  # of each file of JSON by which the types of its columns are found out
FORMATS = {"json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet"}
FORMATS |= dict.fromkeys(("arrow", "feather", "ipc"), "ipc")

# The names that Spark has for types of Arrow.
_KINDS = {
    **dict.fromkeys(("string", "large_string", "string_view"), "string"),
    **dict.fromkeys(("binary", "large_binary", "binary_view"), "binary"),
    **dict.fromkeys(("date32[day]", "date64[ms]"), "date"),
    **dict.fromkeys(("int16", "uint8"), "smallint"),
    **dict.fromkeys(("int32", "uint16"), "int"),
    **dict.fromkeys(("int64", "uint32"), "bigint"),
    "int8": "tinyint",
    "bool": "boolean",
}


class Table(NamedTuple):
    """A table that can be read several times."""

    title: str
    schema: pa.Schema
    read: Callable[[dict[str, Any]], Iterator[pa.RecordBatch]]  # given expressions, by the names of columns


def open_table(name: str, columns: Iterable[str]) -> Table:
    """Open a file or folder, whose format the names of the files tell, or ``FORMAT:PATH``.

    Of JSON only the named columns are read.
    """
    named = re.fullmatch(r"([a-zA-Z_]\w*):(?!//)(.*)", name, re.DOTALL)
    form, path = named.groups() if named else ("", name)
    if named and form not in FORMATS:
        known = "parquet, json and arrow"
        raise LedgerError(f"table: without Spark there is no format {form!r}: there are {known}")
    system, place = storage.open_system(storage.resolve(path, "table"), "table")

    def opened(kind: Any, **schema: Any) -> Any:
        return dataset.dataset(place, format=kind, filesystem=system, partitioning="hive", **schema)

    with _errors_named(f"table: {name}"):
        files = opened("parquet", schema=pa.schema([])).files
        if not files:
            raise LedgerError(f"table: {name} has no file")
        ending = re.search(r"\.(\w+)(?:\.(?:gz|bz2|zst|lz4))?$", os.path.basename(files[0]))
        kind = FORMATS.get(form or (ending[1].lower() if ending else ""), "parquet")
        if kind == "json":
            return _json_lines(f"table {name}", system, files, columns)
        found = opened(kind)
        return Table(f"table {name}", found.schema, lambda wanted: _scan(found, wanted))


def open_arrived(arrived: Any) -> Table:
    """Open a table of pyarrow. A reader of batches can be read once, so these are copied to a file."""
    title = type(arrived).__name__
    if isinstance(arrived, pa.RecordBatchReader):
        with _errors_named(title):
            arrived = kept(arrived)
    elif not isinstance(arrived, pa.Table | dataset.Dataset):
        what = "a Table, RecordBatchReader or Dataset of pyarrow"
        raise ConfigError(f'arrived: {title} must be {what} where runner="local"')
    found = dataset.dataset(arrived) if isinstance(arrived, pa.Table) else arrived
    return Table(title, found.schema, lambda wanted: _scan(found, wanted))


def kept(reader: pa.RecordBatchReader) -> pa.Table:
    """Return all batches of a reader as a table in a file that vanishes with it."""
    handle, path = tempfile.mkstemp(prefix="logclient-")
    try:
        with open(handle, "wb") as file, pa.ipc.new_file(file, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
        return pa.ipc.open_file(pa.memory_map(path)).read_all()
    finally:
        os.unlink(path)


def _scan(found: Any, wanted: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    # Few batches ahead, and no row group as a whole: bodies may be large.
    few: dict[str, Any] = {"batch_size": ROWS, "batch_readahead": 2, "fragment_readahead": 1}
    if getattr(getattr(found, "format", None), "default_extname", "") == "parquet":
        few["fragment_scan_options"] = dataset.ParquetFragmentScanOptions(
            pre_buffer=False, use_buffered_stream=True
        )
    return iter(found.scanner(columns=wanted, **few).to_batches())


def _json_lines(title: str, system: Any, files: list[str], columns: Iterable[str]) -> Table:
    """Open files of JSON objects, one a line. A column has the type of its first values in each file.

    pyarrow's own dataset would look for types in all columns, and stop at one that has several.
    """
    from pyarrow import json as arrow_json

    heads = {path: _documents(system, path) for path in files}
    documents = list(itertools.chain(*heads.values()))
    tree: dict[str, Any] = {}
    for name in columns:
        path = [name] if any(name in document for document in documents) else name.split(".")
        values = [value for document in documents if (value := _walk(document, path)) is not None]
        if values or len(path) == 1:
            *above, last = path
            branch = tree
            for part in above:
                branch = branch.setdefault(part, {})
            branch[last] = _type_of(values)
    names = dict.fromkeys(itertools.chain(*documents))
    if not names:
        raise LedgerError(f"{title}: no object in its first lines: each must be one, as jq -c '.[]' writes")
    schema = pa.schema([(name, _as_type(tree.get(name, pa.null()))) for name in names])
    wanted_only = pa.schema([field for field in schema if field.name in tree])
    read = arrow_json.ReadOptions(block_size=BLOCK_BYTES)
    parse = arrow_json.ParseOptions(explicit_schema=wanted_only, unexpected_field_behavior="ignore")

    def batches(wanted: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        for path in filter(heads.get, files):
            with system.open_input_stream(path) as file:
                lines = arrow_json.open_json(file, read_options=read, parse_options=parse)
                yield from dataset.Scanner.from_batches(lines, columns=wanted).to_batches()

    return Table(title, schema, batches)


def _documents(system: Any, path: str) -> list[dict[str, Any]]:
    """Return the objects in the first lines of a file; none if it is empty."""
    found = []
    with io.BufferedReader(system.open_input_stream(path)) as file:
        while lines := file.readlines(HEAD_BYTES):
            for line in filter(bytes.strip, lines):
                with contextlib.suppress(ValueError, RecursionError):
                    found.append(json.loads(line))
            if any(map(bytes.strip, lines)):
                return [x for x in found if isinstance(x, dict)] or [{}]
    return []


def _walk(document: Any, path: list[str]) -> Any:
    for part in path:
        document = document.get(part) if isinstance(document, dict) else None
    return document


def _type_of(values: list[Any]) -> pa.DataType:
    """Return the type of some values; of different ones, or none, that of text, as for Spark."""
    try:
        kind = pa.array(values).type
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):  # half of a character in a text
        return pa.string()
    return pa.string() if pa.types.is_null(kind) else kind


def _as_type(tree: Any) -> pa.DataType:
    return pa.struct([(k, _as_type(v)) for k, v in tree.items()]) if isinstance(tree, dict) else tree


@contextlib.contextmanager
def _errors_named(title: str) -> Iterator[None]:
    try:
        yield
    except LedgerError:
        raise
    except FileNotFoundError:
        raise LedgerError(f"{title}: there is no such file or folder") from None
    except (pa.ArrowException, OSError, UnicodeEncodeError) as error:
        raise LedgerError(f"{title}: {' '.join(str(error).split())[:300]}") from error


class TableSource(Source):
    """The rows of a table."""

    def __init__(self, table: Table, columns: Mapping[str, str]) -> None:
        self._table = table
        self._fields: dict[str, Any] = {}
        super().__init__(table.title, columns)
        self._survey()

    def _kind(self, what: str, name: str) -> str:
        parts = [name] if name in self._table.schema.names else name.split(".")
        found = pa.struct(list(self._table.schema))
        for part in parts:
            at = found.get_field_index(part) if pa.types.is_struct(found) else -1
            if at < 0:
                raise self._missing(name, self._table.schema.names)
            found = found.field(at).type
        self._fields[what] = pc.field(*parts)
        plain = found.storage_type if isinstance(found, pa.BaseExtensionType) else found
        if what == "id" and pa.types.is_fixed_size_binary(plain) and plain.byte_width == 16:
            raise ConfigError(f"columns: {name} must have texts of 32 hexadecimal digits, not {found}")
        return _kind_of(found)

    def parts(self) -> Iterator[Iterable[pa.RecordBatch]]:
        """Yield all rows in parts, each in the order of arrival: place, at, received_us, key and body."""
        if not self.numbered:
            yield self._rows()
            return
        held: list[pa.RecordBatch] = []
        for batch in self._rows():
            held.append(batch)
            if sum(one.nbytes for one in held) >= PART_BYTES:
                yield _in_order(held)
                held = []
        if held:
            yield _in_order(held)

    def _read(self, *wanted: str) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        """Yield the number of rows of each batch, and some columns of it as plain arrays."""
        fields = {what: self._fields[what] for what in wanted if what in self._fields}
        with _errors_named(self.title):
            for batch in filter(len, self._table.read(fields)):
                columns = zip(fields, batch.columns, strict=True)
                yield len(batch), {what: _plain(column) for what, column in columns}

    def _places(self, n: int, columns: dict[str, pa.Array]) -> pa.Array:
        found = columns.get("listener")
        return pa.repeat("", n) if found is None else found.cast(pa.string()).fill_null("")

    def _received(self, columns: dict[str, pa.Array]) -> I64 | None:
        """Return when rows arrived; -1: unknown; None: of none is it known."""
        found = columns.get("received")
        if found is None or self._timed_by_text():
            return None if found is None else text_times(found)[0]
        if not pa.types.is_integer(found.type):
            found = found.cast(pa.timestamp("us"), safe=False)
        return np.asarray(found.cast(pa.int64()).fill_null(-1))

    def _rows(self) -> Iterator[pa.RecordBatch]:
        for n, columns in self._read(*self.columns):
            body = _documents_of(columns["id"]) if "id" in columns else columns["body"].cast(pa.binary())
            at = columns["arrival"].cast(pa.int64()) if self.numbered else _hashes(body)
            received = self._received(columns)
            key = columns["key"].cast(pa.binary()) if "key" in columns else pa.nulls(n, pa.binary())
            yield pa.record_batch(
                {
                    "place": self._places(n, columns),
                    "at": at,
                    "received_us": np.full(n, -1) if received is None else received,
                    "key": key,
                    "body": body,
                }
            )

    def _edges(self) -> Iterable[Edges]:
        found, wrong = None, dict[str, str]()
        asked = [("low", "min"), ("high", "max"), ("nulls", "sum")]
        for n, columns in self._read("listener", "arrival", "received"):
            places = self._places(n, columns)
            at = columns["arrival"].cast(pa.int64()) if self.numbered else pa.repeat(0, n)
            if self._timed_by_text():
                bad = pa.array(text_times(columns["received"])[1])
                pairs = zip(*(x.filter(bad).to_pylist() for x in (places, columns["received"])), strict=True)
                for place, text in pairs:
                    wrong[place] = min(text, wrong.get(place, text))
            rows = pa.table({"place": places, "low": at, "high": at, "nulls": at.is_null().cast(pa.int64())})
            rows = pa.concat_tables([rows] if found is None else [rows, found])
            found = rows.group_by("place").aggregate(asked).rename_columns(rows.column_names)
            if len(found) > MOST_LISTENERS:
                break
        rows = [] if found is None else found.to_pylist()
        return [(*row.values(), wrong.get(row["place"])) for row in rows]

    def _repeated(self, place: str) -> int | None:
        numbers = [
            np.asarray(columns["arrival"].filter(pc.equal(self._places(n, columns), place)))
            for n, columns in self._read("listener", "arrival")
        ]
        every = np.sort(np.concatenate(numbers))
        same = every[1:][every[1:] == every[:-1]]
        return int(same[0]) if len(same) else None

    def pick(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
        """Fetch records, as `Source.pick` does."""
        asked = {(self.places[listener].name, number): (listener, number) for listener, number in wanted}
        numbers = [number for _, number in asked]
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for batch in self._rows() if asked else ():
            for row in np.flatnonzero(np.isin(batch.column("at").to_numpy(), numbers)).tolist():
                [record] = batch.slice(row, 1).to_pylist()
                if place := asked.get((record["place"], record["at"])):
                    found.setdefault(place, record)
            if len(found) == len(asked):
                break
        return found


def _kind_of(found: pa.DataType) -> str:
    """Return the name that Spark has for a type of a table."""
    if isinstance(found, pa.BaseExtensionType):
        return _kind_of(found.storage_type)
    if pa.types.is_dictionary(found):
        return _kind_of(found.value_type)
    if pa.types.is_timestamp(found):
        return "timestamp_ntz" if found.tz is None else "timestamp"
    return "binary" if pa.types.is_fixed_size_binary(found) else _KINDS.get(str(found), str(found))


def _plain(column: pa.Array) -> pa.Array:
    """Return an array without an extension type or a dictionary."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _in_order(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    rows = pa.Table.from_batches(batches).sort_by([("place", "ascending"), ("at", "ascending")])
    return list(rows.to_batches(max_chunksize=ROWS))


def _hashes(bodies: pa.Array) -> I64:
    """Return the numbers of rows without one: bits of the hash, which of NULL is the seed in Spark."""
    found = (SEED if body is None else xxh64(body) for body in bodies.to_pylist())
    return (np.fromiter(found, np.uint64, len(bodies)) >> np.uint64(64 - UNIT_BITS)).astype(np.int64)


def _documents_of(ids: pa.Array) -> pa.Array:
    """Return the documents that Spark's ``to_json`` makes of some ids; NULL for an empty one."""
    ids = ids.cast(pa.binary())
    every, offset, length = binary(ids)
    data = np.frombuffer(every, np.uint8)[int(offset[0]) : int(offset[-1] + length[-1])]
    if ((data < 32) | (data > 126) | (data == ord('"')) | (data == ord("\\"))).any():
        quoted = [None if one is None else _quoted(one) for one in ids.to_pylist()]
        found = pc.binary_join_element_wise(b'{"event.id":', pa.array(quoted, pa.binary()), b"}", b"")
    else:
        found = pc.binary_join_element_wise(b'{"event.id":"', ids, b'"}', b"")
    return pc.if_else(pc.equal(pc.binary_length(ids), 0), pa.scalar(None, pa.binary()), found)


def _quoted(text: bytes) -> bytes:
    found = json.dumps(text.decode("utf-8", "replace"), ensure_ascii=False)
    return re.sub(r"\\(u....|.)", lambda x: x[0][:2] + x[0][2:].upper(), found).encode()


_PARTS = ("year", "month", "day", "hour", "minute", "second", "zone_hour", "zone_minute", "zone_second")
_ZONE = (
    r"Z|UTC|UT|GMT|(?:UTC|UT|GMT)?(?P<sign>[+-])(?P<zone_hour>\d\d?)"
    r"(?::?(?P<zone_minute>\d\d?)(?::?(?P<zone_second>\d\d))?)?"
)
_TIME = (
    r"^\s*\+?(?P<year>\d{4,5})(?:-(?P<month>\d\d?)(?:-(?P<day>\d\d?)(?:[ T](?P<hour>\d\d?)"
    rf"(?::(?P<minute>\d\d?)(?::(?P<second>\d\d?)(?:\.(?P<fraction>\d*))?\s*(?:{_ZONE})?)?)?)?)?)?\s*$"
)


def text_times(texts: pa.Array) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Return texts as microseconds since 1970, -1 for NULL, and which of them are no times.

    The forms are those of Spark, but for names of zones. Without a zone it is UTC.
    """
    groups = pc.extract_regex(texts.cast(pa.string()), _TIME)
    least = {"year": 1970, "month": 1, "day": 1}
    n = {name: _numbers(groups.field(name), least.get(name, 0)) for name in _PARTS}
    micros = pc.utf8_rpad(pc.utf8_slice_codeunits(groups.field("fraction"), 0, 6), 6, "0")
    months = ((n["year"] - 1970) * 12 + n["month"] - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (n["day"] - 1)
    seconds, offset = (n[f"{x}hour"] * 3600 + n[f"{x}minute"] * 60 + n[f"{x}second"] for x in ("", "zone_"))
    fits = (days.astype("datetime64[M]") == months) & (n["month"] >= 1) & (n["month"] <= 12)
    fits &= (n["hour"] < 24) & (offset <= 18 * 3600)
    for name in ("minute", "second", "zone_minute", "zone_second"):
        fits &= n[name] < 60
    west = np.asarray(pc.equal(groups.field("sign"), "-").fill_null(False))
    seconds += days.astype(np.int64) * 86_400 + np.where(west, offset, -offset)
    found = seconds * 1_000_000 + _numbers(micros, 0)
    given, matched = (np.asarray(x.is_valid()) for x in (texts, groups))
    return np.where(matched, found, -1), given & ~(matched & fits)


def _numbers(texts: pa.Array, missing: int) -> I64:
    empty = pc.equal(texts, "").fill_null(True)
    return np.asarray(pc.if_else(empty, str(missing), texts).cast(pa.int64()))
