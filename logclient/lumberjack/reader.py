"""The reader of Lumberjack, without I/O: bytes in, whole windows out. For collectors.

docs/protocols/lumberjack.md has the frames, and ``logclient._ext.lumberjack`` the writer.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_U32 = struct.Struct(">I")
_JSON_HEAD = struct.Struct(">xxII")
_ONE, _TWO = b"12"
_C, _D, _J, _W = b"CDJW"
_HEAD, _FRAME_HEAD = 6, 10  # of a window or compressed frame; of one with an event
_DEEPEST = 2  # servers accept a compressed frame in a compressed frame; deeper nesting has hung one of them
_LAST_SIGNED = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, repr=False)
class Window:
    """One whole window of a writer; in the literal form one 'D', 'J' or 'C' frame with its events."""

    version: int
    """1 or 2."""
    ack: int
    """Acknowledges all of it."""
    unit: bytes
    """As received, from the W frame to the last frame; literal: the one frame."""
    events: list[bytes]
    """The bodies: JSON texts, or pair blocks of version 1 (u32 count, the pairs)."""
    sequences: list[int]
    """For partial acknowledgements."""
    types: str
    """A letter for each event: J for a JSON text, D for a pair block."""

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return f"<Window: version {self.version}, {len(self)} events, {len(self.unit)} bytes>"


class Reader:
    """A reader of versions 1 and 2 on one connection, for one thread at a time.

    It accepts everything that Logstash or go-lumber accept, except where that would lose events. At anything
    else it stops, and `error` has the reason. Lengths are checked before memory is allocated for them.

    Args:
        max_window: bound on the events in a window; in the literal form, in one compressed frame.
        max_frame: bound on the bytes of one event.
        max_unit: bound on the bytes of a window as received.
        max_inflated: bound on the bytes of a window, uncompressed.
        strict_spec: read the literal form. Before its first window frame any number may be unacknowledged.
    """

    def __init__(
        self,
        *,
        max_window: int = 10_000,
        max_frame: int = 16 << 20,
        max_unit: int = 64 << 20,
        max_inflated: int = 64 << 20,
        strict_spec: bool = False,
    ) -> None:
        self.error: str | None = None
        """The writer's violation of the protocol in one line, or None."""
        self.window_size: int | None = None
        """Literal: the number in the last window frame; None before the first."""
        self._max_window, self._max_frame = max_window, max_frame
        self._max_unit, self._max_inflated = max_unit, max_inflated
        self._literal = strict_spec
        self._unacked = 0  # literal: events that we have not acknowledged
        self._data = bytearray()
        self._base = self._at = 0  # where the window begins in it, and the first byte that is not examined
        self._inside = False  # a window frame has been read, but not all of its events
        self._version = _ONE
        self._count = max_window  # events of the window; literal: the most in a unit
        self._texts_left = self._texts_at = 0  # of a 'data' frame that is not whole yet
        self._clear()

    def receive_data(self, data: ReadableBuffer, /) -> list[Window]:
        """Take bytes, and return the windows that they complete. After an `error` all bytes are ignored."""
        windows: list[Window] = []
        if self.error is not None:
            return windows
        try:
            self._data += data
            while self._read():
                windows.append(self._window())
        except ValueError as fault:
            self._stop(str(fault))
        except MemoryError:
            self._stop("out of memory")
            raise
        finally:
            del self._data[: self._base]
            self._at -= self._base
            self._base = 0
        return windows

    def receive_eof(self) -> None:
        """Note that the writer has closed: an unfinished window becomes an `error`."""
        if self.error is None and (self._inside or self._at < len(self._data)):
            where = "a frame" if self._literal else "a window frame"
            events = f"closed after {len(self._events)} of {self._count} events"
            self._stop(events if self._inside else f"closed inside {where}")

    def acknowledge(self, events: int, /) -> None:
        """Allow the writer this many more unacknowledged events (literal form)."""
        self._unacked -= min(events, self._unacked)

    @property
    def pending(self) -> int:
        """Bytes held of the unfinished window."""
        return len(self._data) - self._base

    def _clear(self) -> None:
        self._events: list[bytes] = []
        self._sequences: list[int] = []
        self._types: list[str] = []
        self._inflated = 0

    def _stop(self, words: str) -> None:
        self.error = f"{words} (byte {self._at - self._base} of the window)"

    def _read(self) -> bool:
        """Read on; return whether a window is whole."""
        while not (self._inside and len(self._events) == self._count):
            if self._at == len(self._data):
                return False
            if not self._inside:
                self._base = self._at
                self._clear()
            if self._inside or self._literal:
                end = self._read_frame(self._data, self._at, 0)
            else:
                end = self._read_head(self._at)
            if not end:
                return False
            self._at = end
            self._check_unit(0)
            if self._literal:
                if self._events:
                    return True
                self._base = self._at  # a window frame, or a compressed one without events
        return True

    def _read_head(self, at: int) -> int:
        """Read the window frame at `at`. Return its end, or 0 when it is not whole."""
        data = self._data
        if data[at] not in (_ONE, _TWO):
            self._refuse_version(data[at])
        if len(data) < at + 2:
            return 0
        self._version = data[at]
        kind = data[at + 1]
        if kind != _W:
            if kind not in (_J, _D, _C):
                self._refuse_type(kind)
            raise ValueError(f"a '{kind:c}' frame without a window frame before it")
        if len(data) < at + _HEAD:
            return 0
        (self._count,) = _U32.unpack_from(data, at + 2)
        if self._count > self._max_window:
            raise ValueError(f"a window of {self._count} events; the limit is {self._max_window}")
        self._inside = True
        return at + _HEAD

    def _read_frame(self, data: bytearray | bytes, at: int, depth: int) -> int:
        """Read the frame at `at`, of a unit or, with a depth, of inflated bytes.

        Return its end, or 0 when it is not whole.
        """
        size: int
        left = len(data) - at
        if data[at] != self._version:
            self._refuse_version(data[at])
        if left < 2:
            return 0
        kind = data[at + 1]
        if kind == _J and (self._version == _TWO or self._literal):
            if left < _FRAME_HEAD:
                return 0
            sequence, size = _JSON_HEAD.unpack_from(data, at)
            if not size:
                raise ValueError("a 'J' frame of length 0")
            self._check_frame(size)
            return self._take(data, at, at + _FRAME_HEAD, size, sequence, "J", depth)
        if kind == _D and self._version == _ONE:
            size = self._walk_pairs(data, at)
            if size:
                (sequence,) = _U32.unpack_from(data, at + 2)
                return self._take(data, at, at + _HEAD, size - _HEAD, sequence, "D", depth)
            if not depth:
                self._check_unit(left)
            return 0
        if kind == _C and depth == _DEEPEST:
            raise ValueError("a compressed frame nested more than once")
        if kind == _W and not self._literal:
            before = f"after {len(self._events)} of {self._count} events"
            raise ValueError(f"a window frame {'in a compressed frame' if depth else before}")
        if kind not in (_C, _W):
            self._refuse_type(kind)
        if left < _HEAD:
            return 0
        (size,) = _U32.unpack_from(data, at + 2)
        if kind == _W:
            self.window_size = size
            return at + _HEAD
        if not size:
            raise ValueError("a 'C' frame of length 0")
        if not depth:
            self._check_unit(_HEAD + size)
        if left - _HEAD < size:
            return 0
        self._inflate(data[at + _HEAD : at + _HEAD + size], depth)
        return at + _HEAD + size

    def _take(
        self, data: bytearray | bytes, at: int, body: int, size: int, sequence: int, letter: str, depth: int
    ) -> int:
        """Take the event of the frame at `at`, with `size` bytes at `body`, if it is whole."""
        end = body + size
        if not depth:
            self._check_unit(end - at)
        if len(data) < end:
            return 0
        if len(self._events) == self._count:
            raise ValueError(
                f"more than {self._count} events in a compressed frame"
                if self._literal
                else f"more than the {self._count} events of the window in its compressed frame"
            )
        if self.window_size is not None and self._unacked >= self.window_size:
            raise ValueError(
                f"more than the {self.window_size} frames without an acknowledgement that its window allows"
            )
        self._unacked += self._literal
        self._events.append(bytes(data[body:end]))
        self._sequences.append(sequence)
        self._types.append(letter)
        return end

    def _walk_pairs(self, data: bytearray | bytes, start: int) -> int:
        """Return the size of the 'data' frame at `start`, or 0 when it is not whole yet.

        It keeps its place between calls, so that a frame that arrives byte by byte is walked once.
        """
        left = len(data) - start
        if not self._texts_at:
            if left < _FRAME_HEAD:
                return 0
            self._texts_left = 2 * _U32.unpack_from(data, start + 6)[0]
            self._check_frame(4 * self._texts_left)
            self._texts_at = _FRAME_HEAD
        while self._texts_left:
            text = self._texts_at + 4
            if left < text:
                return 0
            (size,) = _U32.unpack_from(data, start + text - 4)
            end = text + int(size)
            self._check_frame(end)
            if left < end:
                return 0
            self._texts_at = end
            self._texts_left -= 1
        whole, self._texts_at = self._texts_at, 0
        return whole

    def _inflate(self, packed: bytearray | bytes, depth: int) -> None:
        """Read all frames in a compressed one.

        A stream without its end is taken as far as it goes, and bytes behind the end are ignored, as by
        Logstash and go-lumber.
        """
        most = self._max_inflated - self._inflated
        try:
            data = zlib.decompressobj().decompress(packed, most + 1)
        except zlib.error:
            raise ValueError("a compressed frame that is no zlib stream") from None
        if len(data) > most:
            raise ValueError(f"compressed frames that inflate to more than {self._max_inflated} bytes")
        self._inflated += len(data)
        at = 0
        while at < len(data):
            at = self._read_frame(data, at, depth + 1)
            if not at:
                raise ValueError("a compressed frame that ends inside a frame")

    def _check_frame(self, size: int) -> None:
        if size > self._max_frame:
            raise ValueError(f"a frame of {size} bytes; the limit is {self._max_frame}")

    def _check_unit(self, more: int) -> None:
        """Check the size that a unit has, or will have with so many more bytes."""
        if self._at - self._base + more > self._max_unit:
            raise ValueError(f"a window of more than {self._max_unit} bytes")

    def _refuse_version(self, version: int) -> NoReturn:
        """Refuse the byte after a frame of another version, or of no frame at all."""
        if self._literal:
            raise ValueError(f"expected version '1', received byte 0x{version:02x}")
        if self._inside and version in (_ONE, _TWO):
            raise ValueError(f"a frame of version '{version:c}' in a window of the other")
        raise ValueError(f"expected version '1' or '2', received byte 0x{version:02x}")

    def _refuse_type(self, kind: int) -> NoReturn:
        raise ValueError(f"frame type 0x{kind:02x} from a writer of version {self._version:c}")

    def _window(self) -> Window:
        # The protocol text acknowledges the last event. Logstash answers with the highest number, go-lumber
        # with the count. A writer that begins each window at 1 gets the same number from both. Running
        # numbers need the highest; numbers that Logstash reads as negative, and never acknowledges, get the
        # count.
        ack = 0
        if self._literal:
            ack = self._sequences[-1]
        elif self._sequences:
            highest = max((number for number in self._sequences if number <= _LAST_SIGNED), default=0)
            ack = highest or len(self._events)
        unit = bytes(memoryview(self._data)[self._base : self._at])
        window = Window(
            self._version - _ONE + 1, ack, unit, self._events, self._sequences, "".join(self._types)
        )
        self._inside = False
        self._base = self._at
        self._clear()
        return window


def encode_ack(version: int, number: int, /) -> bytes:
    """Encode an 'ack' frame; `number` 0 is a keep-alive."""
    if not 1 <= version <= 2:
        raise ValueError(f"version: 1 or 2, not {version}")
    return b"%dA" % version + number.to_bytes(4, "big")
