"""The fields of JSON documents as columns, in Arrow's layout: the reading half of a table of events.

A document is checked whole, as a peer would, and then read member by member. Text that is no JSON object
gives no fields.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

from logclient._ext.codec cimport lc_span, lc_wire, wire_reserve
from logclient._ext.decoder cimport BorrowedBuffer, count_units, make_column
from logclient._ext.hash cimport xxh64_of
from logclient._ext.ids cimport lc_get32
from logclient._ext.jsonscan cimport SCAN_PAD, copy_object, lc_object
from logclient._ext.jsontext cimport *

cdef extern from "text.h" nogil:
    uint8_t *lc_put_wide(uint8_t *to, uint32_t c, int *bad)

cdef enum:
    MOST_NAMES = 8               # for one column
    PLAIN_KEYS = 8               # fields of a document that are compared one by one; more are hashed
    PAIR_COUNT = 9               # a block of pairs begins with a smaller byte, JSON never does
    TEXTS = 4                    # columns of texts:
    LEVELS = 0
    MESSAGES = 1
    KEYS = 2
    VALUES = 3

cdef int64_t LAST_MS = 253402300799999     # the last millisecond of the year 9999
cdef int64_t FIRST_MS = -62135596800000    # the first of the year 1


# The names of the members that may give a column, the best first.
ctypedef struct lc_wanted:
    int n
    lc_span names[MOST_NAMES]
    Py_ssize_t dots[MOST_NAMES]  # where the name's first dot is; -1: it has none


# A value where it was found: with the quotes of a string; of a pair without them.
ctypedef struct lc_value:
    lc_span text                 # at: NULL if there is none
    bint pair


# A field of the current document.
ctypedef struct lc_field:
    lc_span key                  # with escapes undone
    uint64_t hash
    lc_value value
    bint inner                   # it is in the nested object


# Column of texts: bytes, where each ends (int32, after a 0), and a byte for each that is 1 if there is one.
ctypedef struct lc_texts:
    lc_wire data
    lc_wire ends
    lc_wire valid


@cython.final
cdef class Documents:
    """Columns of documents, one row each. Texts are UTF-8.

    A column of texts is a tuple of its bytes, the int32 ends of all rows (a 0 first), and a uint8 for each
    row that is 1 where there is a value.
    """

    cdef readonly memoryview time  # int64: microseconds since 1970
    cdef readonly memoryview time_valid  # uint8: 1 where there is a time
    cdef readonly tuple level  # in lower case
    level: tuple[memoryview, memoryview, memoryview]
    cdef readonly tuple message
    message: tuple[memoryview, memoryview, memoryview]
    cdef readonly memoryview field_ends  # int32: the number of fields of all documents up to each; a 0 first
    cdef readonly memoryview field_valid  # uint8: 1 for each row that is a document
    cdef readonly tuple keys  # names of fields, distinct in each document
    keys: tuple[memoryview, memoryview, memoryview]
    cdef readonly tuple values  # strings with escapes undone, anything else as its JSON text; none for null
    values: tuple[memoryview, memoryview, memoryview]


@cython.final
cdef class DocumentReader:
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

    cdef lc_wanted wanted[3]
    cdef lc_span nested
    cdef bint pairs
    cdef bint text
    cdef lc_span levels[10]
    cdef int n_levels
    cdef list names              # own the memory that the spans point to
    cdef uint64_t seed           # so that nobody can choose keys that collide
    cdef lc_wire checked         # copy of the current document
    cdef lc_wire unescaped       # keys of the current document
    cdef lc_wire fields          # of the current document
    cdef size_t n_fields
    cdef lc_wire table           # uint32: field + 1 by hash
    cdef size_t slots
    cdef lc_value found[3]
    cdef int ranks[3]            # of their names; the lower, the better
    cdef bint failed             # memory is out: from then on nothing is appended
    cdef lc_texts texts[TEXTS]
    cdef lc_wire times
    cdef lc_wire times_valid
    cdef lc_wire field_ends
    cdef lc_wire fields_valid
    cdef bint want_fields

    def __cinit__(self, *, time: Sequence[str] = (), level: Sequence[str] = (), message: Sequence[str] = (),
                  nested: str = "", levels: Sequence[str] = (), bint pairs=False, bint text=False):
        import os
        cdef int i, k
        self.names = []
        for i, given in enumerate((time, level, message)):
            if len(given) > MOST_NAMES:
                raise ValueError(f"at most {<int> MOST_NAMES} names for one column, not {len(given)}")
            self.wanted[i].n = len(given)
            for k, name in enumerate(given):
                self.wanted[i].names[k] = self._own(name)
                self.wanted[i].dots[k] = name.encode().find(b".")
        self.nested = self._own(nested)
        if len(levels) > 10:
            raise ValueError(f"at most 10 levels have names, not {len(levels)}")
        self.n_levels = len(levels)
        for i, name in enumerate(levels):
            self.levels[i] = self._own(name)
        self.pairs = pairs
        self.text = text
        self.seed = int.from_bytes(os.urandom(8), "little")

    cdef lc_span _own(self, str name):
        cdef bytes text = name.encode()
        cdef lc_span span
        self.names.append(text)
        span.at = text
        span.size = len(text)
        return span

    def __dealloc__(self):
        free(self.checked.data)
        free(self.unescaped.data)
        free(self.fields.data)
        free(self.table.data)
        self.forget()

    cdef void forget(self) noexcept nogil:
        cdef int i
        for i in range(TEXTS):
            forget_wire(&self.texts[i].data)
            forget_wire(&self.texts[i].ends)
            forget_wire(&self.texts[i].valid)
        forget_wire(&self.times)
        forget_wire(&self.times_valid)
        forget_wire(&self.field_ends)
        forget_wire(&self.fields_valid)

    def read(self, data: ReadableBuffer, edges: ReadableBuffer, *, bint fields=True) -> Documents:
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
        cdef BorrowedBuffer view = BorrowedBuffer(data), at = BorrowedBuffer(edges)
        cdef const int64_t *edge = <const int64_t *> at.b.buf
        cdef Py_ssize_t n = at.b.len // 8 - 1, i
        cdef Documents out = Documents.__new__(Documents)
        if at.b.len % 8 or n < 0 or edge[0] < 0 or edge[n] > view.b.len:
            raise ValueError(f"edges must be int64 inside the data of {view.b.len} bytes")
        for i in range(n):
            if edge[i + 1] < edge[i]:
                raise ValueError("edges must rise")
        self.want_fields = fields
        self.failed = False
        try:
            with nogil:
                for i in range(TEXTS):
                    append_end(self, &self.texts[i].ends, 0)
                append_end(self, &self.field_ends, 0)
                for i in range(n):
                    if self.failed:
                        break
                    read_document(self, <const uint8_t *> view.b.buf + edge[i],
                                  <size_t> (edge[i + 1] - edge[i]))
            if self.failed:
                raise MemoryError()
            for i in range(TEXTS):
                if self.texts[i].data.size > 0x7FFFFFFF:
                    raise ValueError(f"{self.texts[i].data.size} bytes of text do not fit into one column")
            out.time = take_wire(&self.times, 8, c'q')
            out.time_valid = take_wire(&self.times_valid, 1, c'B')
            out.level = take_texts(&self.texts[LEVELS])
            out.message = take_texts(&self.texts[MESSAGES])
            out.field_ends = take_wire(&self.field_ends, 4, c'i')
            out.field_valid = take_wire(&self.fields_valid, 1, c'B')
            out.keys = take_texts(&self.texts[KEYS])
            out.values = take_texts(&self.texts[VALUES])
            return out
        finally:
            self.forget()


include "documents/texts.pyx"
include "documents/members.pyx"


def join(data: ReadableBuffer, offsets: ReadableBuffer, lengths: ReadableBuffer) -> memoryview:
    """Return slices of a buffer, joined: ``data[offset:offset + length]`` for each.

    Args:
        offsets: int64, where each slice begins.
        lengths: int64, the bytes of each slice.

    Raises:
        ValueError: `offsets` and `lengths` differ in size, or a slice is not inside `data`.
    """
    cdef BorrowedBuffer view = BorrowedBuffer(data), at = BorrowedBuffer(offsets)
    cdef BorrowedBuffer size = BorrowedBuffer(lengths)
    cdef Py_ssize_t n = count_units(at, size, None), i
    cdef const int64_t *p = <const int64_t *> at.b.buf
    cdef const int64_t *s = <const int64_t *> size.b.buf
    cdef lc_wire out
    cdef int64_t total = 0
    memset(&out, 0, sizeof(out))
    for i in range(n):
        if p[i] < 0 or s[i] < 0 or p[i] > view.b.len or s[i] > view.b.len - p[i]:
            raise ValueError(f"slice {i} leaves the data of {view.b.len} bytes")
        total += s[i]
    if wire_reserve(&out, <size_t> total + 1) == NULL:
        raise MemoryError()
    with nogil:
        for i in range(n):
            memcpy(out.data + out.size, <const uint8_t *> view.b.buf + p[i], s[i])
            out.size += s[i]
    return take_wire(&out, 1, c'B')
