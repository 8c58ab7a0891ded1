"""The codecs as Python sees them: a core's compiled half, bytes to be moved, columns of what was decoded."""

from typing import final

from _typeshed import ReadableBuffer

@final
class Outbox:
    """Bytes to be moved; exports the buffer protocol (read-only)."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Writer:
    """A core's compiled half, driven from Python through the functions that a pump calls (``hot.pxd``)."""

    @property
    def capsule(self) -> object:
        """``lc_hot*``, named "logclient.hot"; keeps this object alive."""
    def credit(self, now: float) -> tuple[int, int]: ...
    def encode(self, batch: object, events: int, now: float) -> int:
        """`batch` is an ``lc_batch`` capsule; see ``lc_hot.encode``. Negative: a ``Stop``."""
    def buffers(self) -> list[memoryview]:
        """What `encode` wrote since the last `sent`."""
    def sent(self) -> None: ...
    def receive(self, data: ReadableBuffer, now: float) -> int: ...
    def deadline(self) -> float: ...
    def outcomes(self) -> tuple[list[tuple[int, int, int, int]], int, int]:
        """(first, last, fate, reason) of each range since the last call, signs of life, progress."""

@final
class Column:
    """One column of `Events`: exports the buffer protocol (C-contiguous, read-only), owns its memory.

    ``numpy.frombuffer(column, dtype)`` makes no copy and keeps the column alive.
    """

    @property
    def format(self) -> str: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def tolist(self) -> list[int]: ...

class Events:
    """What was in the units, a row an event, in order; a row more for each thing that is wrong.

    These columns are the same for every decoder.
    """

    def __len__(self) -> int: ...
    @property
    def status(self) -> Column:
        """uint8: the decoder's own numbers, 0 (ok) to 3 the same for all; see ``STATUS_NAMES`` beside it."""
    @property
    def producer(self) -> Column:
        """int32: index into `producers`; -1 when not among them, or none were given."""
    @property
    def prefix_high(self) -> Column:
        """uint64: bytes 0..7 of the id, big-endian; 0 when it looks like no id."""
    @property
    def prefix_low(self) -> Column:
        """uint16: bytes 8..9 of the id."""
    @property
    def sequence(self) -> Column:
        """int64: the id's last 48 bits; 0 when it looks like no id."""
    @property
    def hash(self) -> Column:
        """uint64: XXH64(body as carried, seed 42); 0 when the row is no event."""
    @property
    def unit(self) -> Column:
        """int32: index of the unit."""
    @property
    def offset(self) -> Column:
        """int64: where the body (or the fault) starts in the unit, as `expand` gives it."""
    @property
    def length(self) -> Column:
        """int32: of the body, in bytes."""
    @property
    def id_hash(self) -> Column:
        """uint64, two a row: XXH64 of the user's own id, seeds 42 and 43; 0, 0 unless ``FOREIGN``."""

@final
class Lent:
    """A buffer of bytes, whatever its type: what decoders are given."""

    def __init__(self, data: ReadableBuffer) -> None: ...
