"""From whole wire units to events: producer, sequence and hash of each, with the codecs of ``_ext``.

`decoder` gives the compiled decoder of a protocol; `Events` is what one batch of units holds, as columns.
A fifth protocol is a line in `_CODECS`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logclient.errors import ConfigError
from logclient.verify.sources import I64, U8, U64, Batch

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Events", "bodies", "carries", "decoder", "expand", "protocol_of", "waiting", "without_others"]


def _alone_lumberjack(body: bytes) -> tuple[bytes, bytes]:
    return b"2W\0\0\0\x012J\0\0\0\x01" + len(body).to_bytes(4, "big"), b""


def _alone_logjam(body: bytes) -> tuple[bytes, bytes]:
    """Its topic says where the id is, and only the message has a topic: where there is one."""
    topic = b"logs"
    if b'"uuid"' in body and not (b'"request_id"' in body and _has_request_id(body)):
        topic = b"events"
    more = 1 << 31
    frames = [
        (more | 7).to_bytes(4, "little") + b"app-env",
        (more | len(topic)).to_bytes(4, "little") + topic,
    ]
    meta = b"\xca\xbd\0\x01" + bytes(20)
    head = b"".join(frames) + (more | len(body)).to_bytes(4, "little")
    return head, len(meta).to_bytes(4, "little") + meta


def _has_request_id(body: bytes) -> bool:
    """Itself, not in something inside."""
    try:
        return "request_id" in json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return True


class _Codec(NamedTuple):
    """A module with ``Decoder``, ``STATUS_NAMES`` and ``expand``, and the columns that only it has.

    `alone` gives what stands before and behind a body in the unit that carries nothing else; or it is the
    decoder's argument that is False where bodies come as they are. With `carries` it keeps of units what is
    not whole until the next: they must come to one decoder, in order, each with its stream and time.
    """

    module: str
    own: dict[str, type[np.generic]]
    alone: Callable[[bytes], tuple[bytes, bytes]] | str
    carries: bool = False
    options: tuple[tuple[str, int], ...] = ()  # of the decoder


_CODECS = {
    "lumberjack": _Codec("logclient._ext.lumberjack", {}, _alone_lumberjack),
    "logjam": _Codec(
        "logclient._ext.logjam",
        {
            "request": np.uint8,
            "app_env_offset": np.int32,
            "app_env_length": np.int32,
            "topic_offset": np.int32,
            "topic_length": np.int32,
            "device": np.uint32,
            "created_ms": np.uint64,
            "number": np.uint64,
        },
        _alone_logjam,
    ),
    # Whatever a client may have been told to send.
    "plog": _Codec(
        "logclient._ext.plog", {}, "datagrams", carries=True, options=(("max_message", (1 << 31) - 1),)
    ),
    "logux": _Codec("logclient._ext.logux", {}, "messages"),
}

_LINES = ("plog+tcp",)
"""Of captures: a unit is a body."""

# The same for every codec: see logclient/_ext/lumberjack.pyi.
OK, FOREIGN, NO_ID, NOT_JSON = 0, 1, 2, 3

QUIET = ("ping", "heartbeat", "other", "command", "control")
"""Names of statuses: whole, and no event that anybody here asks about."""
NO_LIBRARY = "no_library"
"""Nothing can be said of it on this machine."""
NO_VALUE = "no_value"
"""What is undecodable because there is nothing: a tombstone of a topic, a null of a table."""

I32 = npt.NDArray[np.int32]


class Events(NamedTuple):
    """The events of a batch, a row each, and a row for each thing that did not decode."""

    status: U8
    producer: I32
    high: U64  # bytes 0..7 of an id of 32 hex digits
    low: npt.NDArray[np.uint16]  # bytes 8..9
    sequence: I64
    hash: U64
    unit: I32
    offset: I64  # in the unit, compressed frames inflated
    length: I32
    id_hash: U64  # shape (n, 2)
    within: I64  # index of the row in its unit
    own: dict[str, npt.NDArray[Any]]  # what only this protocol has
    names: tuple[str, ...]  # of the statuses

    def part(self, rows: slice) -> Events:
        """Some of the rows, as views."""
        if rows.start == 0 and rows.stop >= len(self.unit):
            return self
        own = {name: column[rows] for name, column in self.own.items()}
        columns = (column[rows] for column in self[:-2])
        return Events(*columns, own=own, names=self.names)  # type: ignore[arg-type, misc]


def without_others(batch: Batch, events: Events, app_envs: list[bytes]) -> Events:
    """The events, those without an id of ours that are of none of these app-envs marked as ``other``."""
    no_library = events.names.index(NO_LIBRARY)
    status = events.status
    rows = np.flatnonzero(((status > OK) & (status <= NOT_JSON)) | (status == no_library))
    if not len(rows):
        return events
    begin = batch.offset[events.unit[rows]] + events.own["app_env_offset"][rows]
    length = events.own["app_env_length"][rows]
    data = np.frombuffer(batch.data, np.uint8)
    other = np.ones(len(rows), bool)
    for app_env in app_envs:
        some = np.flatnonzero(length == len(app_env))
        places = begin[some, None] + np.arange(len(app_env))
        other[some[(data[places] == np.frombuffer(app_env, np.uint8)).all(axis=1)]] = False
    status = status.copy()
    status[rows[other]] = len(events.names)
    return events._replace(status=status, names=(*events.names, "other"))


def protocol_of(name: str) -> str:
    """``lumberjack+tls`` is ``lumberjack``."""
    return name.partition("+")[0]


def decoder(protocol: str, producers: bytes = b"", identity: bool = True) -> Callable[[Batch], Events]:
    """The decoder of a protocol, for one thread.

    Args:
        producers: 10 bytes each, rising, joined: whose ids are looked for; without any, every id is.
        identity: False when no producer wrote ids.

    Raises:
        ConfigError: no such protocol.
    """
    if protocol in _LINES:
        lines = bodies(protocol, producers, identity)
        return lambda batch: lines(batch.data, batch.offset, batch.length)
    decode_units = _decoder(_codec(protocol), producers, identity)
    if carries(protocol):
        return lambda batch: decode_units(
            batch.data, batch.offset, batch.length, batch.stream, batch.received_us
        )
    return lambda batch: decode_units(batch.data, batch.offset, batch.length)


def carries(protocol: str) -> bool:
    """An event may come in several units: those of a listener must be decoded in order, by one decoder."""
    return protocol not in _LINES and _codec(protocol).carries


def waiting(protocol: str) -> Callable[[Batch], set[tuple[int, int]]]:
    """Of a protocol that `carries`: gives the messages, by stream and number, that are not whole after a
    batch. For one thread, which passes all batches in order.
    """
    codec = _codec(protocol)
    decoder: Any = importlib.import_module(codec.module).Decoder(b"", **dict(codec.options))

    def run(batch: Batch) -> set[tuple[int, int]]:
        decoder.decode(batch.data, batch.offset, batch.length, batch.stream, batch.received_us)
        return {(stream, number) for stream, number, *_ in decoder.open}

    return run


def bodies(
    protocol: str, producers: bytes = b"", identity: bool = True
) -> Callable[[ReadableBuffer, I64, I64], Events]:
    """The decoder of bodies that stand alone, outside any unit: by data, offset and length of each.

    Each has one row, whose `offset` is 0. For one thread; arguments and errors as those of `decoder`.
    """
    codec = _codec(protocol)
    alone = codec.alone
    if isinstance(alone, str):
        return _decoder(codec, producers, identity, **{alone: False})
    decode_units = _decoder(codec, producers, identity)

    def run(data: ReadableBuffer, offset: I64, length: I64) -> Events:
        view = memoryview(data)
        parts: list[bytes] = []
        edges = [0]
        for at, size in zip(offset.tolist(), length.tolist(), strict=True):
            body = bytes(view[at : at + size])
            head, tail = alone(body)
            parts += (head, body, tail)
            edges.append(edges[-1] + len(head) + size + len(tail))
        at_ = np.array(edges, np.int64)
        found = decode_units(b"".join(parts), at_[:-1], np.diff(at_))
        return found._replace(offset=np.zeros(len(found.unit), np.int64), own={})

    return run


def _codec(protocol: str) -> _Codec:
    try:
        return _CODECS[protocol_of(protocol)]
    except KeyError:
        raise ConfigError(f"protocol: {protocol!r} cannot be decoded: {', '.join(_CODECS)}") from None


def _decoder(codec: _Codec, producers: bytes, identity: bool, **how: bool) -> Callable[..., Events]:
    module: Any = importlib.import_module(codec.module)
    decode_units = module.Decoder(producers, identity=identity, **dict(codec.options), **how).decode
    names: tuple[str, ...] = module.STATUS_NAMES

    return lambda *units: _events(decode_units(*units), codec.own, names)


def _events(found: Any, own: dict[str, type[np.generic]], names: tuple[str, ...]) -> Events:
    unit = np.frombuffer(found.unit, np.int32)
    n = len(unit)
    if n and int(unit[-1]) == n - 1 and bool((unit == np.arange(n, dtype=np.int32)).all()):  # an event a unit
        within = np.zeros(n, np.int64)
    else:
        within = np.arange(n, dtype=np.int64)
        starts = np.concatenate(([True], unit[1:] != unit[:-1])) if n else np.empty(0, bool)
        within -= np.maximum.accumulate(np.where(starts, within, 0))
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
        {name: np.frombuffer(getattr(found, name), kind) for name, kind in own.items()},
        names,
    )


def expand(protocol: str, unit: bytes) -> bytes:
    """The bytes of a unit in which `Events.offset` counts."""
    inflate: Callable[[bytes], bytes] = importlib.import_module(_CODECS[protocol_of(protocol)].module).expand
    return inflate(unit)
