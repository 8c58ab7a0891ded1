"""A real Lumberjack server for demos and tests: captures what it acknowledges, and lies on request.

One thread and a selector serve all connections; versions 1 and 2 share the port, as with Logstash.
A window is one wire unit. It is acknowledged as a whole by its highest sequence, after the capture
was handed to the operating system, connection by connection in the order of arrival. Where
Logstash and go-lumber differ (``W`` as batch header, what closes a connection) see the reader in
``logclient._ext.lumberjack``; keep-alives are ``2A 0`` even for version 1, as Logstash sends them.
"""

from __future__ import annotations

import errno
import json
import re
import selectors
import socket
import struct
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient._ext.lumberjack import NOT_JSON, Decoded, Decoder, Reader, Window, encode_ack
from logclient.collectors.capture import TO_PEER, CaptureWriter
from logclient.collectors.faults import Act, Faults, Witness
from logclient.collectors.lies import flipped, foreign_id
from logclient.collectors.running import Running
from logclient.collectors.tally import Tally
from logclient.errors import ConfigError, ConnectFailed, LedgerError

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["Collector", "Counts", "decode"]

KEEPALIVE = b"2A\0\0\0\0"
_RECEIVE = 1 << 20
_OUT_MAX = 1 << 16  # a writer that does not read its acks is not read from either
_REASONS_MAX = 1000
_NEVER = float("inf")


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


_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">BBI")  # version, type, window size or length or sequence
_W, _C, _J, _D = b"WCJD"
_ID = re.compile(r"[0-9a-f]{32}")


def _frames(window: Window) -> list[Frame]:
    return [Frame(seq, body) for seq, body in zip(window.sequences, window.events, strict=True)]


def _rebuilt(window: Window, frames: list[Frame]) -> bytes:
    """A window of the same version with these events; compressed when the original was."""
    version = window.unit[0]
    parts = []
    for seq, body in frames:
        if window.version == 1:
            parts.append(_HEAD.pack(version, _D, seq))
        else:
            parts.append(_HEAD.pack(version, _J, seq) + _U32.pack(len(body)))
        parts.append(body)
    content = b"".join(parts)
    if window.unit[7] == _C:
        content = zlib.compress(content, 3)
        content = _HEAD.pack(version, _C, len(content)) + content
    return _HEAD.pack(version, _W, len(frames)) + content


def _document(version: int, body: bytes) -> Any:
    """A JSON value, or the map of a block of pairs: of equal keys the last wins, as with both servers."""
    if version != 1:
        return json.loads(body)
    texts, at = [], 4
    while at < len(body):
        (length,) = _U32.unpack_from(body, at)
        texts.append(body[at + 4 : at + 4 + length].decode("utf-8", "replace"))
        at += 4 + length
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _event_id(version: int, body: bytes) -> str:
    """The id an event carries: ``@metadata._id``, else ``event.id``; "" when it has none of our form."""
    try:
        document = _document(version, body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(document, dict):
        return ""
    metadata = document.get("@metadata")
    found = (metadata.get("_id") if isinstance(metadata, dict) else None, document.get("event.id"))
    return next((text for text in found if isinstance(text, str) and _ID.fullmatch(text)), "")


def _ids(window: Window) -> list[str]:
    return [found for found in (_event_id(window.version, body) for body in window.events) if found]


def decode(unit: bytes) -> list[Any]:
    """The events of one captured window: JSON values (version 2) or maps of strings (version 1).

    Raises:
        ValueError: it is not one whole window, or an event is not JSON.
    """
    reader = Reader()
    windows = reader.receive_data(unit) if unit else []
    if len(windows) != 1 or reader.pending:
        raise ValueError(f"unit: {reader.error or 'not one whole window'}")
    return [_document(windows[0].version, body) for body in windows[0].events]


def _altered(before: Any, after: Any) -> bool:
    """Something changed, but neither a name nor what carries the id."""
    if not isinstance(before, dict) or before.keys() != after.keys():
        return False
    return before != after and all(before.get(name) == after.get(name) for name in ("@metadata", "event.id"))


def _corrupt(window: Window, random: Random) -> tuple[bytes, list[str]] | None:
    """Flip a bit in one event, which keeps its id and its form: (unit, ids), or None when none can be."""
    frames, version = _frames(window), window.version

    def read(body: bytes) -> Any:
        try:
            return _document(version, body)
        except struct.error as error:
            raise ValueError(str(error)) from error

    for index in random.sample(range(len(frames)), len(frames)):
        body = frames[index].body
        changed = flipped(body, random, read, _altered)
        if changed is not None:
            event_id = _event_id(version, body)
            frames[index] = frames[index]._replace(body=changed)
            return _rebuilt(window, frames), [event_id] if event_id else []
    return None


def _add(window: Window, random: Random) -> tuple[bytes, list[str]]:
    """Append a copy of one event under an id that was never sent: (unit, ids)."""
    frames = _frames(window)
    body = random.choice(frames).body
    old = _event_id(window.version, body)
    new = foreign_id(old, random) if old else ""
    body = body.replace(old.encode(), new.encode()) if old else body
    frames.append(Frame(max(frame.seq for frame in frames) + 1, body))
    return _rebuilt(window, frames), [new] if new else []


# --- the server --------------------------------------------------------------------------------


class _Step:
    """One thing to do on a connection; steps are done in order, each not before it is due."""

    __slots__ = ("count", "data", "due")

    def __init__(self, data: bytes | None, count: str, due: float = 0.0) -> None:
        self.data = data  # None: close the connection
        self.count = count  # the field of Counts it adds to
        self.due = due


class _Held(NamedTuple):
    """The first unit of a swap; its answer waits at `step`."""

    window: Window
    act: Act
    step: _Step
    until: float


class _Fresh(NamedTuple):
    """A unit that waits for the capture to be handed to the operating system."""

    connection: _Connection
    unit: bytes
    events: int


class _Connection:
    def __init__(self, sock: socket.socket, peer: str, number: int, reader: Reader, now: float) -> None:
        self.sock = sock
        self.peer = peer
        self.number = number
        self.reader = reader
        self.stream = 0
        self.steps: deque[_Step] = deque()
        self.out = bytearray()
        self.held: _Held | None = None
        self.events = 0  # what the selector watches
        self.writes_first = False  # TLS has something to say before it can read on
        self.doomed = False  # no more units are taken from it
        self.ended = False  # the writer has said its last word
        self.stalled = 0  # 1: silent, 2: with keep-alives
        self.alive_at = now  # last byte in either direction
        self.wrote_at = now  # last byte to the writer, or when it began to wait for one


class Collector(Running[Counts]):
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
        max_window: events in a window; a larger one breaks the protocol.
        max_bytes: bytes of a window, on the wire and decompressed.
        check: an event that is not one JSON object in UTF-8 breaks the protocol, as with Logstash.
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
        idle: float = 0.0,
        max_window: int = 10_000,
        max_bytes: int = 64 << 20,
        check: bool = True,
        count_duplicates: bool = False,
        keep: bool = False,
        tls: SSLContext | None = None,
    ) -> None:
        if not 0 <= port <= 65535:
            raise ConfigError(f"port: {port} must be 0 to 65535")
        super().__init__(Counts._fields)
        self.host = host
        self._port = port
        self._capture_dir = capture
        self._faults = Faults(faults or "")
        self._witness_path = witness
        self._run = run
        self._listener = listener
        self._keepalive = keepalive
        self._idle = idle
        self._max_window = max_window
        self._max_bytes = max_bytes
        self._check = check
        self._decoder = Decoder()
        self._tally = Tally() if count_duplicates else None
        self._keep = keep
        self._tls = tls
        self._fresh: list[_Fresh] = []
        self._connections: dict[int, _Connection] = {}
        self._capture: CaptureWriter | None = None
        self._witness: Witness | None = None

    # --- what the user's threads call

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        scheme = "lumberjack" if self._tls is None else "lumberjack+tls"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self._port}"

    @property
    def listens(self) -> dict[str, Any]:
        return {"url": self.url, "port": self.port}

    def _counts(self) -> Counts:
        self._count["open"] = len(self._connections)
        return Counts(**self._count)

    def start(self) -> Collector:
        """Listen. Returns the collector itself."""
        self._check_stopped()
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # On Windows SO_REUSEADDR would let another process take the port over.
            option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                listener.bind((self.host, self._port))
                listener.listen(128)
            except OSError as error:
                why = error.strerror or error
                raise ConnectFailed(f"listen: {self.host} port {self._port}: {why}") from error
            listener.setblocking(False)
            self._port = listener.getsockname()[1]
            if self._witness_path is not None:
                self._witness = Witness(self._witness_path, self._capture_dir)
            if self._capture_dir is not None:
                place = re.sub(r"[^A-Za-z0-9.-]", "_", f"{self.host}-{self._port}")
                self._capture = CaptureWriter(
                    self._capture_dir,
                    self._listener or f"lumberjack-{place}",
                    "lumberjack",
                    url=self.url,
                    run=self._run,
                )
        except BaseException:
            listener.close()
            if self._witness is not None:
                self._witness.close()
            raise
        self._run_in_thread(self._serve, listener)
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

    def _serve(self, listener: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._wake_in, selectors.EVENT_READ)
            self._buffer = memoryview(bytearray(_RECEIVE))
            try:
                while not self._stopping:
                    self._turn(listener)
            except BaseException as error:
                self.error = error  # for whoever waits: a dead thread must not look like a slow one
                raise
            finally:
                with self._changed:
                    for connection in list(self._connections.values()):
                        self._close(connection)
                    listener.close()
                    self._flush()
                    try:
                        if self._capture is not None:
                            self._capture.close()
                    except LedgerError:
                        self._count["capture_errors"] += 1
                    if self._witness is not None:
                        self._witness.close()
                    self._changed.notify_all()

    def _turn(self, listener: socket.socket) -> None:
        """Wait, read, capture, answer."""
        capture = self._capture
        timeout = self._next_due()
        if capture is not None and capture.pending and timeout != 0:
            # Rows of acks go with the next units; before a sleep they go alone.
            ready = self._selector.select(0)
            if not ready:
                with self._changed:
                    self._flush()
                ready = self._selector.select(timeout)
        else:
            ready = self._selector.select(timeout)
        with self._changed:
            now = time.monotonic()
            for key, mask in ready:
                if key.data is not None:
                    connection: _Connection = key.data
                    if mask & selectors.EVENT_WRITE and connection.out:
                        self._send(connection)
                    readable = mask & selectors.EVENT_READ or connection.writes_first
                    if readable and connection.number in self._connections:
                        self._receive(connection, now)
                elif key.fileobj is listener:
                    self._accept(listener, now)
                else:
                    self._drain()
            if self._cut_all:
                self._cut_all = False
                for connection in list(self._connections.values()):
                    self._close(connection)
            for connection in list(self._connections.values()):
                if connection.held is not None and connection.held.until <= now:
                    self._unhold(connection)
            self._flush()
            now = time.monotonic()
            for connection in list(self._connections.values()):
                self._answer(connection, now)
            self._changed.notify_all()

    def _drain(self) -> None:
        try:
            self._wake_in.recv(4096)
        except BlockingIOError:
            pass

    def _next_due(self) -> float | None:
        """Seconds until a timer of some connection, None when there is none."""
        due = _NEVER
        for connection in self._connections.values():
            due = min(due, self._due(connection))
        return None if due == _NEVER else max(0.0, due - time.monotonic())

    def _due(self, connection: _Connection) -> float:
        due = _NEVER
        if connection.steps and not self._holding and not connection.out:
            due = connection.steps[0].due
        if connection.held is not None:
            due = min(due, connection.held.until)
        if self._keepalive and self._busy(connection):
            due = min(due, connection.wrote_at + self._keepalive)
        if self._idle:
            due = min(due, connection.alive_at + self._idle)
        return due

    def _busy(self, connection: _Connection) -> bool:
        """The writer waits for us, and we would let it know that we live."""
        if connection.stalled:
            return connection.stalled == 2
        return bool(connection.steps or connection.reader.pending) and not connection.doomed

    def _accept(self, listener: socket.socket, now: float) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.01)  # no descriptor left: it stays in the backlog, those connected go on
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            # Reading does the handshake.
            try:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:  # gone already
                sock.close()
                return
        self._count["connections"] += 1
        number = self._count["connections"]
        peer = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        reader = Reader(max_window=self._max_window, max_unit=self._max_bytes, max_inflated=self._max_bytes)
        connection = _Connection(sock, peer, number, reader, now)
        if self._capture is not None:
            connection.stream = self._capture.stream(peer)
        self._connections[number] = connection
        self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        """Tell the selector what we want of this connection now."""
        events = 0
        if not connection.doomed and not connection.ended and len(connection.out) < _OUT_MAX:
            events |= selectors.EVENT_READ
        if connection.out or connection.writes_first:
            events |= selectors.EVENT_WRITE
        if events == connection.events:
            return
        if not connection.events:
            self._selector.register(connection.sock, events, connection)
        elif not events:
            self._selector.unregister(connection.sock)
        else:
            self._selector.modify(connection.sock, events, connection)
        connection.events = events

    def _close(self, connection: _Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        self._unhold(connection)
        if connection.events:
            self._selector.unregister(connection.sock)
        connection.sock.close()
        if connection.reader.pending and not connection.doomed:
            self._count["truncated"] += 1
        if self._capture is not None:
            self._capture.end_stream(connection.stream)

    # --- in: bytes -> units -> capture

    def _receive(self, connection: _Connection, now: float) -> None:
        try:
            if self._tls is None:
                size = connection.sock.recv_into(self._buffer)
            else:
                size = self._decrypt(connection)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset
            self._close(connection)
            return
        if not size:
            # Acks still due are sent, and only then is the connection closed: see _answer.
            connection.ended = True
            self._unhold(connection)
            self._watch(connection)
            return
        if not self._busy(connection):
            connection.wrote_at = now
        connection.alive_at = now
        self._count["bytes"] += size
        reader = connection.reader
        for window in reader.receive_data(self._buffer[:size]):
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
        self._watch(connection)

    def _decrypt(self, connection: _Connection) -> int:
        """Like ``recv_into`` of a plain socket: all the records that are there, as far as the buffer goes."""
        import ssl

        size = 0
        connection.writes_first = False
        try:
            while size < len(self._buffer):
                some = connection.sock.recv_into(self._buffer[size:])
                size += some
                if not some:  # the end; it is there again the next time
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if isinstance(error, ssl.SSLWantWriteError):
                connection.writes_first = True
                self._watch(connection)
            if not size:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            if not size:
                self._note(f"tls: {(error.reason or 'error').replace('_', ' ').lower()}")
                raise
        return size

    @staticmethod
    def _encrypt(connection: _Connection) -> int:
        import ssl

        try:
            return connection.sock.send(connection.out)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def _decoded(self, unit: bytes) -> Decoded:
        return self._decoder.decode(unit, array("q", [0]), array("q", [len(unit)]))

    def _refuse(self, connection: _Connection, reason: str) -> None:
        """It broke the protocol: what came before is answered, then the connection is closed."""
        self._note(reason)
        self._doom(connection, "")

    def _note(self, reason: str) -> None:
        self._count["protocol_errors"] += 1
        # Bounded, whatever writers come up with.
        reason = reason if len(self._reasons) < _REASONS_MAX else "other"
        self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def _unit(self, connection: _Connection, window: Window, now: float) -> None:
        """Capture one window, and line up its answer; or do what the faults say."""
        plan = self._faults.plan(connection.number, paired=connection.held is not None)
        end = plan.end.fault.name if plan.end is not None else ""
        if end == "cut-before-write":
            self._doom(connection, "cuts_before_write")
            return
        ack = _Step(encode_ack(window.version, window.ack), "acks")
        if plan.delay is not None:
            ack.due = now + plan.delay.fault.value
        if plan.lie is None or not self._lie(connection, window, plan.lie, ack, now):
            self._keep_unit(connection, window.unit, len(window))
        if connection.held is not None and connection.held.window is not window:
            self._swap(connection, connection.held)

        if end == "stall" and plan.end is not None:
            connection.stalled = 2 if plan.end.fault.value else 1
            self._count["stalls"] += 1
        if connection.stalled:
            return
        if plan.keepalive is not None:
            connection.steps.extend([_Step(KEEPALIVE, "keepalives")] * int(plan.keepalive.fault.value))
        partial = plan.end if end == "partial-cut" else plan.partial
        if partial is not None:
            some = int(partial.fault.value) or len(window) // 2
            if 0 < some < len(window):
                number = window.sequences[some - 1]
                connection.steps.append(_Step(encode_ack(window.version, number), "partial_acks"))
            else:  # a part of one event there is not
                self._faults.give_back(partial)
                end = "" if partial is plan.end else end
        if end in ("cut-before-ack", "partial-cut"):
            self._doom(connection, "cuts_before_ack", ack.due)
            return
        connection.steps.append(ack)
        if end == "cut-after-ack":
            self._doom(connection, "cuts_after_ack")

    def _doom(self, connection: _Connection, count: str, due: float = 0.0) -> None:
        """Take nothing more from this connection; close it when what is owed has been sent."""
        connection.doomed = True
        self._unhold(connection)
        connection.steps.append(_Step(None, count, due))

    def _lie(self, connection: _Connection, window: Window, act: Act, ack: _Step, now: float) -> bool:
        """Do to the captured unit what the fault says; False when it cannot be done to this one."""
        name = act.fault.name
        ids = _ids(window)
        if name == "swap":
            # Its ack waits until it is captured: a lie about the order, not about what is kept.
            connection.held = _Held(window, act, ack, now + act.fault.value)
            ack.due = _NEVER
            return True
        if name == "discard":
            self._testify(name, ids)
            return True
        unit, count = window.unit, len(window)
        if name == "duplicate":
            self._keep_unit(connection, unit, count)
        else:
            changed = _corrupt(window, act.random) if name == "corrupt" else _add(window, act.random)
            if changed is None:
                self._faults.give_back(act)
                return False
            unit, ids = changed
            count += name == "add"
        self._keep_unit(connection, unit, count)
        self._testify(name, ids)
        return True

    def _testify(self, fault: str, ids: list[str]) -> None:
        if self._witness is not None:
            self._witness.write(fault, ids)

    def _swap(self, connection: _Connection, held: _Held) -> None:
        """The next unit is captured: now the one before it."""
        connection.held = None
        self._keep_unit(connection, held.window.unit, len(held.window))
        self._testify("swap", _ids(held.window))
        held.step.due = 0.0

    def _unhold(self, connection: _Connection) -> None:
        """No next unit came: the swap is given up."""
        held = connection.held
        if held is not None:
            connection.held = None
            self._faults.give_back(held.act)
            self._keep_unit(connection, held.window.unit, len(held.window))
            held.step.due = 0.0

    def _keep_unit(self, connection: _Connection, unit: bytes, events: int) -> None:
        if self._capture is not None:
            self._capture.unit(connection.stream, unit)
        self._fresh.append(_Fresh(connection, unit, events))

    def _flush(self) -> None:
        """Hand what was captured to the operating system; after this, and not before, it is answered."""
        fresh, self._fresh = self._fresh, []
        if self._capture is not None:
            try:
                self._capture.flush()
            except LedgerError:
                # Not kept, so not acknowledged: their writers send it again, elsewhere or later.
                self._count["capture_errors"] += 1
                for connection in {unit.connection for unit in fresh}:
                    self._close(connection)
                return
        for _, unit, events in fresh:
            self._count["captured_windows"] += 1
            self._count["captured_events"] += events
            if self._keep:
                self._kept.append(unit)
            if self._tally is not None:
                self._tally.add(self._decoded(unit))
                self._count["duplicates"] = self._tally.duplicates
                self._count["copies"] = self._tally.copies

    # --- out: acks

    def _answer(self, connection: _Connection, now: float) -> None:
        steps = connection.steps
        while steps and steps[0].due <= now and not self._holding:
            step = steps[0]
            if step.data is None and connection.out:  # what was said before goes out first
                self._send(connection)
                if connection.out:
                    return
            steps.popleft()
            if step.count:
                self._count[step.count] += 1
            if step.data is None:
                self._close(connection)
                return
            self._say(connection, step.data, now)
        if self._keepalive and now - connection.wrote_at >= self._keepalive and self._busy(connection):
            self._count["keepalives"] += 1
            self._say(connection, KEEPALIVE, now)
        if connection.out:
            self._send(connection)
        if connection.number not in self._connections:
            return
        if self._idle and now - connection.alive_at >= self._idle:
            self._count["idle_closes"] += 1
            self._close(connection)
        elif connection.ended and not steps and not connection.out:
            self._close(connection)

    def _say(self, connection: _Connection, data: bytes, now: float) -> None:
        connection.out += data
        connection.wrote_at = connection.alive_at = now
        if self._capture is not None:
            self._capture.unit(connection.stream, data, TO_PEER)

    def _send(self, connection: _Connection) -> None:
        try:
            sent = self._encrypt(connection) if self._tls else connection.sock.send(connection.out)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # reset: the writer will send again what it got no ack for
            self._close(connection)
            return
        del connection.out[:sent]
        if connection.number in self._connections:
            self._watch(connection)
