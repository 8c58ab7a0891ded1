"""A real Lumberjack server for demos and tests: captures acknowledged events, commits faults on request.

A window is one wire unit, acknowledged as a whole by its highest sequence. The reader in
``logclient._ext.lumberjack`` describes where Logstash and go-lumber differ.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from random import Random
from ssl import SSLContext
from typing import Any, NamedTuple, Unpack

from logclient._ext.lumberjack import NOT_JSON, Decoder
from logclient.lumberjack.reader import Reader, Window, encode_ack
from logclient.testing import fault_gate
from logclient.testing.duplicates import decode_units
from logclient.testing.fault_gate import ALIVE, Captured, Reply, ReplyPlan, flip_bit, under_foreign_id
from logclient.testing.loop import AckCounts, CollectorOptions
from logclient.testing.streams import Connection, StreamCollector

__all__ = ["Collector", "Counts", "decode"]

KEEPALIVE = b"2A\0\0\0\0"  # also for version 1, as Logstash sends it


@dataclass(frozen=True, kw_only=True)
class Counts(AckCounts):
    """Counters of a Lumberjack collector; windows are wire units."""

    windows: int = 0  # received whole
    captured_windows: int = 0
    partial_acks: int = 0  # not in `acks`
    keepalives: int = 0  # not in `acks`
    truncated: int = 0  # connections that ended inside a window
    protocol_errors: int = 0


class Frame(NamedTuple):
    """One event of a window: a JSON text, or version 1's block of pairs."""

    seq: int
    body: bytes
    type: str = "J"  # "D": a block of pairs


_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">BBI")  # version, type, window size or length or sequence
_W, _C, _J, _D = b"WCJD"


def _frames(window: Window) -> list[Frame]:
    return list(map(Frame, window.sequences, window.events, window.types))


def _rebuilt(window: Window, frames: list[Frame]) -> bytes:
    """Return a unit of the same form with these events, compressed when the original was."""
    version = window.unit[0]
    parts = []
    for frame in frames:
        if frame.type == "D":
            parts.append(_HEAD.pack(version, _D, frame.seq))
        else:
            parts.append(_HEAD.pack(version, _J, frame.seq) + _U32.pack(len(frame.body)))
        parts.append(frame.body)
    content = b"".join(parts)
    head = b"" if window.unit[1] != _W else _HEAD.pack(version, _W, len(frames))
    if window.unit[len(head) + 1] == _C:
        content = zlib.compress(content, 3)
        content = _HEAD.pack(version, _C, len(content)) + content
    return head + content


def _document(type: str, body: bytes) -> Any:
    """Return a JSON value, or a block of pairs as a map, in which the last of equal keys wins."""
    if type != "D":
        return json.loads(body)
    texts, at = [], 4
    while at < len(body):
        length = int.from_bytes(body[at : at + 4], "big")
        texts.append(body[at + 4 : at + 4 + length].decode("utf-8", "replace"))
        at += 4 + length
    return dict(zip(texts[::2], texts[1::2], strict=True))


def decode(unit: bytes, **limits: int) -> list[Any]:
    """Return the events of one captured window: JSON values, or maps of strings for 'data' frames.

    Raises:
        ValueError: `unit` is not one whole window within the limits of a `Reader`, or an event is not JSON.
    """
    reader = Reader(strict_spec=unit[:1] == b"1" and unit[1:2] in b"JDC", **limits)
    windows = reader.receive_data(unit) if unit else []
    if len(windows) != 1 or reader.pending:
        raise ValueError(f"unit: {reader.error or 'not one whole window'}")
    return list(map(_document, windows[0].types, windows[0].events))


@dataclass(eq=False, slots=True)
class _Unit(fault_gate.Unit[bytes]):
    window: Window

    def corrupted(self, random: Random) -> fault_gate.Changed | None:
        frames = _frames(self.window)
        for index in random.sample(range(len(frames)), len(frames)):
            _, body, type = frames[index]
            changed = flip_bit(body, random, partial(_document, type), ("@metadata", "event.id", "event"))
            if changed is not None:
                frames[index] = frames[index]._replace(body=changed)
                ids = list(filter(None, [self.ids()[index]]))
                return [Captured(_rebuilt(self.window, frames), len(frames))], ids
        return None

    def with_added(self, random: Random) -> fault_gate.Changed | None:
        frames = _frames(self.window)
        if not frames:  # an empty window, such as that of ``logclient check``
            return None
        index = random.randrange(len(frames))
        _, body, type = frames[index]
        body, ids = under_foreign_id(body, self.ids()[index], random)
        frames.append(Frame(max(frame.seq for frame in frames) + 1 & 0xFFFFFFFF, body, type))
        return [Captured(_rebuilt(self.window, frames), len(frames))], ids

    def replies(self, plan: ReplyPlan) -> list[Reply[bytes]]:
        window = self.window
        replies = [_reply(KEEPALIVE, "keepalives") for _ in range(plan.keepalives)]
        if plan.partial:
            data = encode_ack(window.version, window.sequences[plan.partial - 1])
            replies.append(_reply(data, "partial_acks", plan.partial))
        if plan.fault != "partial-cut":
            data = encode_ack(window.version, window.ack)
            replies.append(_reply(data, "acks", len(window) - plan.partial, plan.due))
        return replies


def _reply(data: bytes, count: str, settles: int = 0, due: float = 0.0) -> Reply[bytes]:
    return Reply(data, count, due, (data,), settles)


@dataclass(eq=False, kw_only=True)
class _Connection(Connection):
    reader: Reader


class Collector(StreamCollector[Counts, _Connection]):
    """A Lumberjack server in a thread of its own. A context manager that can be started again.

    Args:
        host: an address to listen on; IPv6 without brackets.
        port: 0 picks a free one; ``port`` has it then, and a restart keeps it.
        keepalive: seconds without a byte from the collector after which a waiting writer (its window is not
            whole or not answered) gets a keep-alive; 0 = never.
        max_window: events in a window; a larger one is a protocol error.
        max_bytes: bytes of a window, on the wire and decompressed.
        check: an event that is not one JSON object in UTF-8 is a protocol error, as with Logstash.
        strict_spec: read the literal form of the protocol's text, see docs/lumberjack.md. Each frame with
            events is a unit and has its own ack. There are no keep-alives.
        tls: the context for TLS, see ``logclient.transports.tls.server_context``; None: in clear.
            A certificate that is loaded into it later serves later connections.
        options: see `CollectorOptions`.

    Raises:
        ConfigError: an argument that breaks its rule.
        LedgerError: the capture or the fault log cannot be used (``start``).
        ConnectFailed: the address cannot be listened on (``start``).
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        keepalive: float = 5.0,
        max_window: int = 10_000,
        max_bytes: int = 64 << 20,
        check: bool = True,
        tls: SSLContext | None = None,
        strict_spec: bool = False,
        **options: Unpack[CollectorOptions],
    ) -> None:
        super().__init__("lumberjack", Counts, "captured_windows", Decoder(), host, port, tls, options)
        self._keepalive = 0.0 if strict_spec else keepalive
        self._check = check
        limits: dict[str, Any] = {"max_window": max_window, "max_unit": max_bytes, "max_inflated": max_bytes}
        self._make_reader = partial(Reader, **limits, strict_spec=strict_spec)
        self._values = partial(decode, **limits)

    @property
    def summary(self) -> str:
        """A short text with the counters."""
        counts = self.counts
        events = f"{counts.captured_events} events in {counts.captured_windows} windows"
        return f"{events} over {counts.connections} connections"

    def _new_connection(self, number: int, **facts: Any) -> _Connection:
        return _Connection(number, reader=self._make_reader(), **facts)

    def _connection_closed(self, connection: _Connection) -> None:
        if connection.reader.pending and not connection.closing:
            self._count["truncated"] += 1

    def _due(self, connection: _Connection) -> float:
        due = super()._due(connection)
        if self._keepalive and self._is_waiting(connection):
            due = min(due, connection.wrote_at + self._keepalive)
        return due

    @staticmethod
    def _is_waiting(connection: _Connection) -> bool:
        """Return True when the writer waits for the collector and is to get keep-alives meanwhile."""
        if connection.stalled:
            return connection.stalled == ALIVE
        return bool(connection.replies or connection.reader.pending) and not connection.closing

    def _data_received(self, connection: _Connection, data: memoryview, now: float) -> None:
        if not self._is_waiting(connection):
            connection.wrote_at = now
        reader = connection.reader
        for window in reader.receive_data(data):
            self._count["windows"] += 1
            self._count["events"] += len(window)
            if self._check and NOT_JSON in bytes(decode_units(self._decoder, [window.unit]).status):
                self._reject(connection, "json: an event is not one JSON object in UTF-8")
            else:
                whole = Captured(window.unit, len(window))
                self._admit(connection, _Unit(whole, self._decoder, window), now)
            if connection.closing:  # windows after a cut have not arrived
                break
        else:
            if reader.error is not None:
                self._reject(connection, reader.error)

    def _reply_sent(self, connection: _Connection, reply: Reply[bytes], now: float) -> None:
        if reply.settles:
            connection.reader.acknowledge(reply.settles)

    def _after_replies(self, connection: _Connection, now: float) -> None:
        if self._keepalive and now - connection.wrote_at >= self._keepalive and self._is_waiting(connection):
            self._count["keepalives"] += 1
            self._send_reply(connection, _reply(KEEPALIVE, ""), now)
