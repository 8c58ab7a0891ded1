"""Memory of the codecs that Python may look at."""

from typing import final

@final
class Outbox:
    """Bytes to be moved; exports the buffer protocol (read-only)."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

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
