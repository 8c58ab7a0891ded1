"""The fields of JSON documents as columns, in Arrow's layout."""

from collections.abc import Sequence
from typing import final

from _typeshed import ReadableBuffer

@final
class Documents:
    """Columns of documents, one row each. Texts are UTF-8.

    A column of texts is a tuple of its bytes, the int32 ends of all rows (a 0 first), and a uint8 for each
    row that is 1 where there is a value.
    """

    @property
    def time(self) -> memoryview:
        """int64: microseconds since 1970."""
    @property
    def time_valid(self) -> memoryview:
        """uint8: 1 where there is a time."""
    @property
    def level(self) -> tuple[memoryview, memoryview, memoryview]:
        """Levels, in lower case."""
    @property
    def message(self) -> tuple[memoryview, memoryview, memoryview]:
        """Messages."""
    @property
    def field_ends(self) -> memoryview:
        """int32: the number of fields of all documents up to each; a 0 first."""
    @property
    def field_valid(self) -> memoryview:
        """uint8: 1 for each row that is a document."""
    @property
    def keys(self) -> tuple[memoryview, memoryview, memoryview]:
        """Names of fields, distinct in each document."""
    @property
    def values(self) -> tuple[memoryview, memoryview, memoryview]:
        """Their values: strings with escapes undone, anything else as its JSON text; no value for null."""

@final
class DocumentReader:
    """Reads the time, the level, the message and all fields of documents.

    A document is a JSON object. Where its member `nested` is an object, that one's members are fields too, in
    front of equal names outside. A name ``a.b`` also finds the member ``b`` of an object ``a``.

    Use one reader per thread.

    Args:
        time: names of members with the time: text as in RFC 3339, or a number of milliseconds since 1970.
        level: names of members with the level.
        message: names of members with the message. A list of lists gives their third elements, in lines.
        nested: the name of the member with further fields; empty: none.
        levels: names of the levels 0, 1, 2 and so on, at most 10.
        pairs: whether a document may be a block of pairs of version 1 of Lumberjack.
        text: whether anything else is a message.

    Raises:
        ValueError: there are more names than that, or more than 8 for one column.
    """

    def __init__(
        self,
        *,
        time: Sequence[str] = (),
        level: Sequence[str] = (),
        message: Sequence[str] = (),
        nested: str = "",
        levels: Sequence[str] = (),
        pairs: bool = False,
        text: bool = False,
    ) -> None: ...
    def read(self, data: ReadableBuffer, edges: ReadableBuffer, *, fields: bool = True) -> Documents:
        """Read the documents ``data[edges[i]:edges[i + 1]]``, without the GIL.

        Args:
            data: the bytes of all documents.
            edges: int64, rising: where each begins, and at the end where the last one ends. An empty one is
                not a document.
            fields: False leaves the fields out.

        Returns:
            One row for each.

        Raises:
            ValueError: `edges` do not rise inside `data`, or there is more text than a column can hold.
        """

def join(data: ReadableBuffer, offsets: ReadableBuffer, lengths: ReadableBuffer) -> memoryview:
    """Return slices of a buffer, joined: ``data[offset:offset + length]`` for each.

    Args:
        data: the bytes.
        offsets: int64, where each slice begins.
        lengths: int64, the bytes of each slice.

    Raises:
        ValueError: `offsets` and `lengths` differ in size, or a slice is not inside `data`.
    """
