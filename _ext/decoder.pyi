"""The part that the decoders of all protocols share: the loop over units, and columns of decoded rows."""

from typing import Generic, TypeVar, final

from _typeshed import ReadableBuffer

_Events = TypeVar("_Events", bound=Events, covariant=True)

@final
class Memory:
    """The memory of a column, which lives as long as a view of it."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Events:
    """Decoded units, in order: a row for each event, and a row for each fault.

    All decoders have these columns; a subclass adds those of its protocol.
    """

    def __len__(self) -> int: ...
    @property
    def status(self) -> memoryview:
        """uint8: index into the decoder's ``STATUS_NAMES``. All decoders share 0 (ok) to 3."""
    @property
    def producer(self) -> memoryview:
        """int32: index into the decoder's producers; -1 when it is none of them, or none were given."""
    @property
    def prefix_high(self) -> memoryview:
        """uint64: bytes 0..7 of the id, big-endian; 0 without an id."""
    @property
    def prefix_low(self) -> memoryview:
        """uint16: bytes 8..9 of the id; 0 without an id."""
    @property
    def sequence(self) -> memoryview:
        """int64: the last 48 bits of the id; 0 without an id."""
    @property
    def hash(self) -> memoryview:
        """uint64: XXH64 of the body as carried, seed 42; 0 for a fault, and where none is asked for."""
    @property
    def unit(self) -> memoryview:
        """int32: index of the unit."""
    @property
    def offset(self) -> memoryview:
        """int64: where the body, or the fault, begins in the unit as ``expand`` returns it."""
    @property
    def length(self) -> memoryview:
        """int32: bytes of the body."""
    @property
    def id_hash(self) -> memoryview:
        """uint64, two for each row: XXH64 of the user's own id, seeds 42 and 43; 0, 0 unless ``FOREIGN``."""
    @property
    def units(self) -> int:
        """The number of units decoded: fewer than were given, where a bound of `BatchDecoder.limit` ended it."""
    @property
    def bodies(self) -> memoryview:
        """uint8: the bodies of all rows with an event, joined, each with the bytes that `length` tells.

        Bodies beyond 256 MiB are left out. Empty without the bound `body_bytes` of `BatchDecoder.limit`.
        """
    @property
    def own_ids(self) -> memoryview:
        """uint8: the text of the users' own ids as it stands in the bodies, joined; empty like `bodies`."""
    @property
    def own_id_ends(self) -> memoryview:
        """int64: where each id ends in `own_ids`.

        One for each row of status ``FOREIGN``, in order; empty for plog's bodies without an id.
        """

@final
class BorrowedBuffer:
    """A view of an object's bytes, whatever the type of its items; released with this object."""

    def __init__(self, data: ReadableBuffer) -> None: ...

class BatchDecoder(Generic[_Events]):
    """The base class of decoders."""

    def decode(self, data: ReadableBuffer, offsets: ReadableBuffer, lengths: ReadableBuffer) -> _Events:
        """Decode the units ``data[offset:offset + length]``, without the GIL.

        Args:
            data: the bytes of all units.
            offsets: int64, where each unit begins.
            lengths: int64, the bytes of each unit.

        Raises:
            ValueError: `offsets` and `lengths` differ in size, or a unit is not inside `data`.
            RuntimeError: another thread is in `decode`.
        """
    def limit(self, rows: int, body_bytes: int = 0, *, hashes: bool = True) -> None:
        """Bound the result of each call of `decode`, and choose whether it has bodies and their hashes.

        A call ends behind the first unit that reaches a bound; ``Events.units`` tells how far it came.

        Args:
            rows: the bound on rows; 0: none.
            body_bytes: the bound on the bytes of bodies, which are then in ``Events.bodies``; 0: they are not
                kept.
            hashes: False: bodies are not hashed, and ``Events.hash`` is 0.

        Raises:
            ValueError: a bound is negative.
        """
