"""The decoding of whole wire units to events, with producer, sequence and hash, by the compiled codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient.delivery.contract import TEST_PRODUCERS
from logclient.errors import ConfigError
from logclient.evidence.arrays import I32, I64, U8, U64, starts_of
from logclient.evidence.libraries import np, npt
from logclient.evidence.segments import Batch
from logclient.evidence.wires import WIRES, Wire

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Statuses that all codecs share: see logclient/_ext/lumberjack.pyi.
OK, FOREIGN, NO_ID, NOT_JSON = 0, 1, 2, 3

QUIET = ("ping", "heartbeat", "other", "command", "control", "check")
"""Statuses of what the verdict counts besides events."""
CHECK = int.from_bytes(TEST_PRODUCERS, "big")  # the first 32 bits of the ids of the test events of `check`
NO_LIBRARY = "no_library"  # the status of a body that cannot be decompressed on this machine
BODY_MOST = 1 << 28  # decoders keep no body with more bytes
NO_VALUE = "no_value"  # the reason for a record without a body: a tombstone of a topic, or NULL in a table


class Events(NamedTuple):
    """The decoded events of a batch, one row each, and one row for each thing that did not decode."""

    status: U8
    producer: I32
    high: U64  # bytes 0..7 of an id of 32 hex digits
    low: npt.NDArray[np.uint16]  # bytes 8..9
    sequence: I64
    hash: U64
    unit: I32
    offset: I64  # of the body in the unit, with compressed frames inflated
    length: I32
    id_hash: U64  # shape (n, 2)
    within: I64  # index of the row in its unit
    own: dict[str, npt.NDArray[Any]]  # the columns that only this protocol has
    names: tuple[str, ...]  # of the statuses

    def part(self, rows: slice) -> Events:
        """Return some of the rows, as views."""
        own = {name: column[rows] for name, column in self.own.items()}
        columns = (column[rows] for column in self[:-2])
        return Events(*columns, own=own, names=self.names)  # type: ignore[arg-type, misc]


class Kept(NamedTuple):
    """The bodies of some `Events`, and the ids that applications chose."""

    data: memoryview  # of all bodies, joined
    edges: I64  # where the body of each row begins, and at the end where the last one ends; faults have none
    own_ids: memoryview  # joined, as they stand in the bodies
    own_id_edges: I64  # where each begins, and at the end where the last one ends
    own_id_rows: npt.NDArray[np.intp]  # the rows that have one; an empty one is none


def find_other_app_envs(batch: Batch, events: Events, app_envs: list[bytes]) -> npt.NDArray[np.intp]:
    """Return the rows of events of other app-envs without an id of ours: a server receives many."""
    no_library = events.names.index(NO_LIBRARY)
    status = events.status
    rows = np.flatnonzero(((status > OK) & (status <= NOT_JSON)) | (status == no_library))
    if not len(rows):
        return rows
    raw = np.frombuffer(batch.data, np.uint8)
    begin = batch.offset[events.unit[rows]] + events.own["app_env_offset"][rows]
    length = events.own["app_env_length"][rows]
    ours = np.zeros(len(rows), bool)
    for app_env in app_envs:
        which = np.flatnonzero(length == len(app_env))
        places = begin[which, None] + np.arange(len(app_env))
        ours[which[(raw[places] == np.frombuffer(app_env, np.uint8)).all(axis=1)]] = True
    others: npt.NDArray[np.intp] = rows[~ours]
    return others


def mark(events: Events, rows: npt.NDArray[np.intp], word: str) -> Events:
    """Return events with some rows that have a status of this name."""
    status = events.status.copy()
    status[rows] = len(events.names)
    return events._replace(status=status, names=(*events.names, word))


def protocol_of(name: str) -> str:
    """Return the protocol of a scheme: ``lumberjack`` for ``lumberjack+tls``."""
    return name.partition("+")[0]


def wire(protocol: str) -> Wire:
    """Return the row of a protocol; ConfigError: there is none."""
    found = WIRES.get(protocol_of(protocol))
    if found is None:
        raise ConfigError(f"protocol: {protocol!r} cannot be decoded: {', '.join(WIRES)}")
    return found


def decoder(protocol: str, producers: bytes = b"") -> Callable[[Batch], Events]:
    """Return a decoder of wire units, for one thread. The protocol is as a capture names it.

    `producers` are those whose ids are recognized: 10 bytes each, ascending, joined; empty: all ids.
    """
    spec, carried = wire(protocol), carries(protocol)
    in_lines = protocol in spec.lines
    decode_units = body_decoder(protocol, producers) if in_lines else _decoder(spec, producers)
    return lambda batch: decode_units(*_columns(batch, carried))


def _columns(batch: Batch, carried: bool) -> tuple[Any, ...]:
    columns = batch.data, batch.offset, batch.length
    return (*columns, batch.stream, batch.received_us) if carried else columns


def bounded_decoder(
    protocol: str, rows: int, body_bytes: int = 0, *, identity: bool = True, hashes: bool = True
) -> Callable[[Batch], Iterator[tuple[Events, Kept]]]:
    """Return a decoder of wire units whose results are small, for one thread.

    It yields the events of a batch in parts of whole units, of `rows` rows or `body_bytes` bytes of bodies;
    0: without bodies. Without `identity` there are neither ids nor errors of bodies: these are not searched,
    and no event is ``not_json``. Without `hashes` all are 0.
    """
    spec, carried = wire(protocol), carries(protocol)
    options = {spec.body_option: False} if protocol in spec.lines else {}
    compiled = spec.codec.Decoder(b"", identity=identity, **spec.options, **options)
    compiled.limit(rows, body_bytes, hashes=hashes)

    def run(batch: Batch) -> Iterator[tuple[Events, Kept]]:
        done = 0
        data, *columns = _columns(batch, carried)
        while done < len(batch.offset):
            found = compiled.decode(data, *(column[done:] for column in columns))
            events = _events(found, spec)
            if done:
                events = events._replace(unit=events.unit + np.int32(done))
            yield events, _kept(found, events)
            done += found.units

    return run


def _kept(found: Any, events: Events) -> Kept:
    data = memoryview(found.bodies)
    sizes = np.where((events.status <= NOT_JSON) & (events.length <= BODY_MOST), events.length, 0)
    edges = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    ends = np.frombuffer(found.own_id_ends, np.int64)
    own = np.flatnonzero(events.status == FOREIGN) if len(ends) else np.empty(0, np.intp)
    return Kept(data, edges, memoryview(found.own_ids), np.concatenate(([0], ends)), own)


def carries(protocol: str) -> bool:
    """Return whether an event may come in several units: one decoder must have a listener's in order."""
    spec = wire(protocol)
    return spec.reassembler is not None and protocol not in spec.lines


def body_decoder(protocol: str, producers: bytes = b"") -> Callable[[ReadableBuffer, I64, I64], Events]:
    """Return a decoder of bodies without a unit around them, for one thread.

    It takes the data, and offset and length of each body. Each body has one row, whose `offset` is 0.
    """
    spec = wire(protocol)
    wrap = spec.wrap_body
    if wrap is None:
        return _decoder(spec, producers, **{spec.body_option: False})
    decode_units = _decoder(spec, producers)

    def run(data: ReadableBuffer, offset: I64, length: I64) -> Events:
        view = memoryview(data)
        places = zip(offset.tolist(), (offset + length).tolist(), strict=True)
        units = [wrap(bytes(view[at:end])) for at, end in places]
        sizes = np.array([len(unit) for unit in units], np.int64)
        found = decode_units(b"".join(units), np.cumsum(sizes) - sizes, sizes)
        return found._replace(offset=np.zeros(len(found.unit), np.int64), own={})

    return run


def _decoder(spec: Wire, producers: bytes, **options: bool) -> Callable[..., Events]:
    decode_units = spec.codec.Decoder(producers, **spec.options, **options).decode
    return lambda *units: _events(decode_units(*units), spec)


def _events(found: Any, spec: Wire) -> Events:
    unit = np.frombuffer(found.unit, np.int32)
    n = len(unit)
    if n and int(unit[-1]) == n - 1 and bool((unit == np.arange(n, dtype=np.int32)).all()):
        within = np.zeros(n, np.int64)  # one event per unit
    else:
        starts = starts_of(unit)
        within = np.arange(n, dtype=np.int64) - np.repeat(starts, np.diff(starts, append=n))
    return Events(
        np.frombuffer(found.status, np.uint8),
        np.frombuffer(found.producer, np.int32),
        np.frombuffer(found.prefix_high, np.uint64),
        np.frombuffer(found.prefix_low, np.uint16),
        np.frombuffer(found.sequence, np.int64),
        np.frombuffer(found.hash, np.uint64),
        unit,
        np.frombuffer(found.offset, np.int64),
        np.frombuffer(found.length, np.int32),
        np.frombuffer(found.id_hash, np.uint64).reshape(-1, 2),
        within,
        {name: np.frombuffer(getattr(found, name), kind) for name, kind in spec.columns.items()},
        spec.codec.STATUS_NAMES,
    )
