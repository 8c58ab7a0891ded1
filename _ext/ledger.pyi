"""Lines of ledgers as columns and tables, without the GIL; ``docs/formats.md`` has the format."""

from typing import Final, final

import numpy as np
import numpy.typing as npt
from _typeshed import ReadableBuffer

AVX2: Final[bool]
"""True if this processor has AVX2; otherwise base64 is decoded by tables."""

def unbase64(data: ReadableBuffer, size: int, *, wide: bool = True) -> bytes:
    """Decode padded base64 of exactly `size` bytes.

    Args:
        data: the characters.
        size: the number of bytes.
        wide: use AVX2 if this processor has it.

    Raises:
        ValueError: `data` is anything else.
    """

@final
class Table:
    """Rows of integers of 64 bits; ranges that continue the last row are joined to it.

    Args:
        columns: of a row, three to five. Of ranges the second and third column are first and last.
        tags: a range is joined to the row before if the first column and so many of the last ones are equal.
            None: rows are no ranges.
    """

    def __init__(self, columns: int, tags: int | None = None) -> None: ...
    def append(self, *row: int) -> None:
        """Add a row."""
    def rows(self) -> bytes:
        """Return all rows, as bytes of native integers."""
    def __len__(self) -> int: ...

@final
class LineReader:
    """Reads the lines of ledger files that have the usual form.

    Args:
        since_us: events made before are left out, microseconds since 1970; None: no bound.
        until_us: events made then or later are left out; None: no bound.
    """

    position: int
    """Number of events of all files so far."""
    last: int
    """The last sequence of the file."""
    begin_us: int
    """The first time of creation of all."""
    first_us: int
    """Likewise, of the selected events; more than `last_us`: there are none."""
    last_us: int
    """The last time of creation of the selected events."""

    def __init__(self, since_us: int | None = None, until_us: int | None = None) -> None: ...
    @property
    def spans(self) -> Table:
        """Rows of index, first, last and position of events."""
    @property
    def outcomes(self) -> Table:
        """Rows of index, first, last, outcome and reason."""
    @property
    def drops(self) -> Table:
        """Rows of index, time and number of dropped events."""
    @property
    def when(self) -> Table:
        """Rows of index, first, last and -1, 0 or 1 for events before, in and after the selected time.

        There are none without a selected time.
        """
    @property
    def index(self) -> int:
        """Index of the file."""
    @property
    def lines(self) -> int:
        """Number of lines that the last `read` has read."""
    @property
    def events(self) -> int:
        """Number of events in these lines."""
    def begin_file(self, index: int) -> None:
        """Begin the next file."""
    def know(self, reason: bytes, number: int) -> None:
        """Let lines with this reason be read.

        Args:
            reason: as it stands in a line; it must be printable ASCII without quotes and backslashes.
            number: of the reason in the table of outcomes.
        """
    def read(
        self,
        data: ReadableBuffer,
        start: int,
        stop: int,
        hashes: npt.NDArray[np.uint64],
        created: npt.NDArray[np.int64],
    ) -> int:
        """Read the lines of ``data[start:stop]`` up to the first one that has another form or is damaged.

        Args:
            data: bytes of a ledger.
            start: where a line begins.
            stop: where to stop.
            hashes: filled with the hashes of the events.
            created: filled with their times of creation.

        Returns:
            Where the first line begins that was not read. It may also be incomplete, or have more events than
            `hashes` and `created` have room for.

        Raises:
            ValueError: the range is not inside the data.
        """
