"""A real Lumberjack server for demos and tests: captures what it acknowledges, and lies on request.

One thread and a selector serve all connections; versions 1 and 2 share the port, as with Logstash.
A window is one wire unit. It is acknowledged as a whole by its highest sequence, after the capture
was handed to the operating system, connection by connection in the order of arrival. Where
Logstash and go-lumber differ (``W`` as batch header, what closes a connection) see the reader in
``logclient._ext.lumberjack``; keep-alives are ``2A 0`` even for version 1, as Logstash sends them.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import zlib
from array import array
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient._ext.lumberjack import NOT_JSON, Decoded, Decoder, Reader, Window, encode_ack
from logclient.collectors.lies import flipped, foreign_id
from logclient.collectors.running import IDLE, MAX_CONNECTIONS
from logclient.collectors.streams import Connection, Step, Streams
from logclient.collectors.tally import Tally

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["Collector", "Counts", "decode"]

KEEPALIVE = b"2A\0\0\0\0"


class Counts(NamedTuple):
    """What a collector has seen and done since it was made; windows are wire units."""

    connections: int = 0
    open: int = 0  # connections now
    windows: int = 0  # received whole
    events: int = 0  # in them
    bytes: int = 0  # on the wire
    captured_windows: int = 0
    captured_events: int = 0
    acks: int = 0  # keep-alives and partial acks apart
    partial_acks: int = 0
    keepalives: int = 0
    cuts_before_write: int = 0
    cuts_before_ack: int = 0
    cuts_after_ack: int = 0
    stalls: int = 0
    idle_closes: int = 0
    truncated: int = 0  # connections that ended inside a window
    protocol_errors: int = 0
    capture_errors: int = 0
    duplicates: int = 0  # ids captured more than once (count_duplicates)
    copies: int = 0  # captured copies beyond the first (count_duplicates)

    @property
    def cuts(self) -> int:
        return self.cuts_before_write + self.cuts_before_ack + self.cuts_after_ack


# --- one window, taken apart and put together again: for lies, ids and the fixture -------------


class Frame(NamedTuple):
    """One event of a window: a JSON text, or version 1's block of pairs."""

    seq: int
    body: bytes
    type: str = "J"  # "D": a block of pairs


_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">BBI")  # version, type, window size or length or sequence
_W, _C, _J, _D = b"WCJD"
_ID = re.compile(r"[0-9a-f]{32}")


def _frames(window: Window) -> list[Frame]:
    return list(map(Frame, window.sequences, window.events, window.types))


def _rebuilt(window: Window, frames: list[Frame]) -> bytes:
    """A unit of the same form with these events; compressed when the original was."""
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
    """A JSON value, or the map of a block of pairs: of equal keys the last wins, as with both servers."""
    if type != "D":
        return json.loads(body)
    texts, at = [], 4
    while at < len(body):
        (length,) = _U32.unpack_from(body, at)
        texts.append(body[at + 4 : at + 4 + length].decode("utf-8", "replace"))
        at += 4 + length
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _event_id(type: str, body: bytes) -> str:
    """The id an event carries: ``@metadata._id``, else ``event.id``; "" when it has none of our form."""
    try:
        document = _document(type, body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(document, dict):
        return ""
    metadata = document.get("@metadata")
    found = (metadata.get("_id") if isinstance(metadata, dict) else None, document.get("event.id"))
    return next((text for text in found if isinstance(text, str) and _ID.fullmatch(text)), "")


def decode(unit: bytes) -> list[Any]:
    """The events of one captured window: JSON values ('json' frames) or maps of strings ('data' frames).

    Raises:
        ValueError: it is not one whole window, or an event is not JSON.
    """
    reader = Reader(strict_spec=unit[:1] == b"1" and unit[1:2] in b"JDC")
    windows = reader.receive_data(unit) if unit else []
    if len(windows) != 1 or reader.pending:
        raise ValueError(f"unit: {reader.error or 'not one whole window'}")
    return list(map(_document, windows[0].types, windows[0].events))


def _altered(before: Any, after: Any) -> bool:
    """Something changed, but neither a name nor what carries the id."""
    if not isinstance(before, dict) or before.keys() != after.keys():
        return False
    return before != after and all(before.get(name) == after.get(name) for name in ("@metadata", "event.id"))


def _corrupt(window: Window, random: Random) -> tuple[bytes, list[str]] | None:
    """Flip a bit in one event, which keeps its id and its form: (unit, ids), or None when none can be."""
    frames = _frames(window)

    for index in random.sample(range(len(frames)), len(frames)):
        _, body, type = frames[index]

        def read(body: bytes, type: str = type) -> Any:
            try:
                return _document(type, body)
            except struct.error as error:
                raise ValueError(str(error)) from error

        changed = flipped(body, random, read, _altered)
        if changed is not None:
            event_id = _event_id(type, body)
            frames[index] = frames[index]._replace(body=changed)
            return _rebuilt(window, frames), [event_id] if event_id else []
    return None


def _add(window: Window, random: Random) -> tuple[bytes, list[str]]:
    """Append a copy of one event under an id that was never sent: (unit, ids)."""
    frames = _frames(window)
    _, body, type = random.choice(frames)
    old = _event_id(type, body)
    new = foreign_id(old, random) if old else ""
    body = body.replace(old.encode(), new.encode()) if old else body
    frames.append(Frame(max(frame.seq for frame in frames) + 1 & 0xFFFFFFFF, body, type))
    return _rebuilt(window, frames), [new] if new else []


def _step(data: bytes, count: str, events: int = 0) -> Step:
    """Bytes for the writer, which are a row of the capture; `events` that they acknowledge."""
    return Step(data, count, rows=(data,), events=events)


# --- the server --------------------------------------------------------------------------------


class _Connection(Connection):
    def __init__(self, sock: socket.socket, peer: str, number: int, reader: Reader, now: float) -> None:
        super().__init__(sock, peer, number, now)
        self.reader = reader


class Collector(Streams[Counts, Window, _Connection]):
    """A Lumberjack server in a thread of its own. A context manager; starts and stops any number of times.

    Args:
        host: an address to listen on; IPv6 without brackets.
        port: 0 picks a free one, which ``port`` then says, and a restart keeps.
        capture: directory of the capture; none is kept without.
        faults: see ``logclient.collectors.faults``.
        witness: a file for the ids of the events that were lied about.
        run: a name for this run, kept in the capture.
        listener: name in the capture; default protocol, host and port.
        keepalive: seconds of silence after which a writer that waits for us (its window is not
            whole, or not answered) gets a keep-alive; 0 = never.
        idle: seconds after which a connection on which nothing happens is closed; 0 = never.
        max_connections: at one time; who comes then is sent away.
        max_window: events in a window; a larger one breaks the protocol.
        max_bytes: bytes of a window, on the wire and decompressed.
        check: an event that is not one JSON object in UTF-8 breaks the protocol, as with Logstash.
        strict_spec: read the literal form, as the protocol's text has it: see docs/lumberjack.md. Each
            frame with events is a unit, and has its ack. There are no keep-alives.
        count_duplicates: count the ids that are captured more than once.
        keep: keep what was captured in memory, for ``events``.
        tls: speak TLS, as this context says: see ``logclient.transports.tls.server_context``.
            A certificate that is loaded into it later is shown to those who connect later.

    Raises:
        ConfigError: an argument that breaks its rule.
        LedgerError: capture or witness cannot be used (``start``).
        ConnectFailed: the address cannot be listened on (``start``).
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        capture: str | None = None,
        faults: str | None = None,
        witness: str | None = None,
        run: str | None = None,
        listener: str | None = None,
        keepalive: float = 5.0,
        idle: float = IDLE,
        max_connections: int = MAX_CONNECTIONS,
        max_window: int = 10_000,
        max_bytes: int = 64 << 20,
        check: bool = True,
        count_duplicates: bool = False,
        keep: bool = False,
        tls: SSLContext | None = None,
        strict_spec: bool = False,
    ) -> None:
        super().__init__(
            "lumberjack",
            Counts._fields,
            host,
            port,
            capture=capture,
            faults=faults,
            witness=witness,
            run=run,
            listener=listener,
            idle=idle,
            max_connections=max_connections,
            count_duplicates=count_duplicates,
            keep=keep,
            tls=tls,
        )
        self._keepalive = 0.0 if strict_spec else keepalive
        self._strict_spec = strict_spec
        self._max_window = max_window
        self._max_bytes = max_bytes
        self._check = check
        self._decoder = Decoder()

    # --- what the user's threads call

    def _counts(self) -> Counts:
        self._count["open"] = len(self._connections)
        return Counts(**self._count)

    @property
    def summary(self) -> str:
        counts = self.counts
        events = f"{counts.captured_events} events in {counts.captured_windows} windows"
        return f"{events} over {counts.connections} connections"

    def start(self) -> Collector:
        """Listen. Returns the collector itself."""
        self._listen()
        return self

    def wait_for(
        self,
        predicate: Callable[[Counts], bool] | None = None,
        *,
        events: int = 0,
        windows: int = 0,
        timeout: float = 10.0,
    ) -> bool:
        """See ``Running.wait_for``; `windows` are those captured."""

        def reached(counts: Counts) -> bool:
            return counts.captured_windows >= windows and (predicate is None or predicate(counts))

        return super().wait_for(reached, events=events, timeout=timeout)

    def _values(self, raw: bytes) -> list[Any]:
        return decode(raw)

    # --- the thread

    _CAPTURED = "captured_windows"

    def _connection(self, sock: socket.socket, peer: str, number: int, now: float) -> _Connection:
        reader = Reader(
            max_window=self._max_window,
            max_unit=self._max_bytes,
            max_inflated=self._max_bytes,
            strict_spec=self._strict_spec,
        )
        return _Connection(sock, peer, number, reader, now)

    def _gone(self, connection: _Connection) -> None:
        if connection.reader.pending and not connection.doomed:
            self._count["truncated"] += 1

    def _due(self, connection: _Connection) -> float:
        due = super()._due(connection)
        if self._keepalive and self._busy(connection):
            due = min(due, connection.wrote_at + self._keepalive)
        return due

    def _busy(self, connection: _Connection) -> bool:
        """The writer waits for us, and we would let it know that we live."""
        if connection.stalled:
            return connection.stalled == 2
        return bool(connection.steps or connection.reader.pending) and not connection.doomed

    def _incoming(self, connection: _Connection, data: memoryview, now: float) -> None:
        if not self._busy(connection):
            connection.wrote_at = now
        reader = connection.reader
        for window in reader.receive_data(data):
            self._count["windows"] += 1
            self._count["events"] += len(window)
            if self._check and NOT_JSON in bytes(self._decoded(window.unit).status):
                self._refuse(connection, "json: an event is not one JSON object in UTF-8")
            else:
                self._unit(connection, window, now)
            if connection.doomed:  # what came behind a cut has not arrived
                break
        else:
            if reader.error is not None:
                self._refuse(connection, reader.error)

    def _decoded(self, unit: bytes) -> Decoded:
        return self._decoder.decode(unit, array("q", [0]), array("q", [len(unit)]))

    def _refuse(self, connection: _Connection, reason: str) -> None:
        """It broke the protocol: what came before is answered, then the connection is closed."""
        self._broke(reason)
        self._doom(connection, "")

    def _unit(self, connection: _Connection, window: Window, now: float) -> None:
        """Capture one window, and line up its answer; or do what the faults say."""
        plan = self._planned(connection)
        end = plan.end.fault.name if plan.end is not None else ""
        if end == "cut-before-write":
            self._doom(connection, "cuts_before_write")
            return
        ack = _step(encode_ack(window.version, window.ack), "acks", len(window))
        self._captured(connection, window, plan, ack, now)

        if end == "stall" and plan.end is not None:
            connection.stalled = 2 if plan.end.fault.value else 1
            self._count["stalls"] += 1
        if connection.stalled:
            return
        if plan.keepalive is not None:
            connection.steps.extend([_step(KEEPALIVE, "keepalives")] * int(plan.keepalive.fault.value))
        partial = plan.end if end == "partial-cut" else plan.partial
        if partial is not None:
            some = int(partial.fault.value) or len(window) // 2
            if 0 < some < len(window):
                number = window.sequences[some - 1]
                connection.steps.append(_step(encode_ack(window.version, number), "partial_acks", some))
                ack.events -= some
            else:  # a part of one event there is not
                self._faults.give_back(partial)
                end = "" if partial is plan.end else end
        if end in ("cut-before-ack", "partial-cut"):
            self._doom(connection, "cuts_before_ack", ack.due)
            return
        connection.steps.append(ack)
        if end == "cut-after-ack":
            self._doom(connection, "cuts_after_ack")

    def _raw(self, unit: Window) -> bytes:
        return unit.unit

    def _size(self, unit: Window) -> int:
        return len(unit)

    def _ids(self, unit: Window) -> list[str]:
        found = map(_event_id, unit.types, unit.events)
        return [event_id for event_id in found if event_id]

    def _corrupted(self, unit: Window, random: Random) -> tuple[bytes, list[str]] | None:
        return _corrupt(unit, random)

    def _added(self, unit: Window, random: Random) -> tuple[bytes, list[str]]:
        return _add(unit, random)

    def _count_ids(self, tally: Tally, unit: bytes) -> None:
        tally.add(self._decoded(unit))

    # --- out: acks

    def _said(self, connection: _Connection, step: Step, now: float) -> None:
        if step.events:
            connection.reader.acknowledge(step.events)

    def _beside(self, connection: _Connection, now: float) -> None:
        if self._keepalive and now - connection.wrote_at >= self._keepalive and self._busy(connection):
            self._count["keepalives"] += 1
            self._say(connection, _step(KEEPALIVE, ""), now)
