"""Lines of ledgers as columns and tables, without the GIL; docs/formats.md has the format.

`LineReader` reads `batch`, `outcome` and `dropped` lines exactly as logclient writes them. It stops at every
other line, and at each damaged one, which logclient/verify/ledger_lines.py then reads as JSON.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp

from logclient._ext.codec cimport append_bytes, lc_begin_use, lc_end_use, lc_wire
from logclient._ext.jsontext cimport read_integer, skip_text

cdef extern from "ledger/base64.h":
    void lc_b64_init() noexcept nogil
    int lc_unbase64(const uint8_t *p, uint8_t *out, size_t size) noexcept nogil
    int lc_unbase64_times(const uint8_t *p, size_t n, int64_t base, int64_t *out,
                          int32_t *range_) noexcept nogil

cdef enum:
    _DROPPED = 1             # outcomes, as in logclient/verify/ledger_facts.py
    _FAILED = 2
    _HANDED = 3
    _ACKED = 4
    _LATE = 8                # added to an outcome from `end_us` on
    _COLUMNS = 5             # the most columns of a table
    _REASONS = 64            # the most reasons that are known
    _DIGITS = 18             # of an integer
    _YEAR_2255 = 9000000000000000  # in microseconds since 1970

cdef int64_t _LAST_SEQUENCE = (<int64_t> 1 << 48) - 1

# Written once, at import.
lc_b64_init()


cdef struct lc_table:
    lc_wire rows             # int64
    int width
    int tags                 # the last columns, which joined ranges have in common; -1: rows are not joined


# Add a row, or join it to the last one. 0, or -1 without memory.
cdef int _append(lc_table *t, const int64_t *row) noexcept nogil:
    cdef int64_t *before
    if t.rows.size and t.tags >= 0:
        before = <int64_t *> (t.rows.data + t.rows.size) - t.width
        if (before[2] + 1 == row[1] and before[0] == row[0]
                and memcmp(before + t.width - t.tags, row + t.width - t.tags, 8 * <size_t> t.tags) == 0):
            before[2] = row[2]
            return 0
    return append_bytes(&t.rows, <const uint8_t *> row, 8 * <size_t> t.width)


# Read [[first,last],...] into a table of two columns. Returns the number of sequences; 0: it is another text;
# -1: no memory.
cdef int64_t _read_ranges(lc_table *t, const uint8_t **at, const uint8_t *end) noexcept nogil:
    cdef const uint8_t *p = at[0]
    cdef int64_t row[2]
    cdef int64_t before = 0, total = 0
    t.rows.size = 0
    if not skip_text(&p, end, b"[", 1):
        return 0
    while True:
        if not (skip_text(&p, end, b"[", 1) and read_integer(&p, end, _DIGITS, &row[0])
                and skip_text(&p, end, b",", 1) and read_integer(&p, end, _DIGITS, &row[1])
                and skip_text(&p, end, b"]", 1)):
            return 0
        if not before < row[0] <= row[1] <= _LAST_SEQUENCE:
            return 0
        if _append(t, row) < 0:
            return -1
        before = row[1]
        total += row[1] - row[0] + 1
        if not skip_text(&p, end, b",", 1):
            break
    if not skip_text(&p, end, b"]", 1):
        return 0
    at[0] = p
    return total


cdef class Table:
    """Rows of integers of 64 bits; ranges that continue the last row are joined to it.

    Args:
        columns: of a row, three to five. Of ranges the second and third column are first and last.
        tags: a range is joined to the row before if the first column and so many of the last ones are equal.
            None: rows are no ranges.
    """

    cdef lc_table t
    cdef bint busy                    # a call is on its way, perhaps without the GIL
    cdef Table first                  # of the same reader, whose `busy` counts for all; None: its own counts

    def __cinit__(self, int columns, tags: int | None = None):
        if not 3 <= columns <= _COLUMNS or (tags is not None and not 0 <= tags <= columns - 3):
            raise ValueError(f"{columns} columns, tags {tags}")
        self.t.width = columns
        self.t.tags = -1 if tags is None else tags

    def __dealloc__(self):
        free(self.t.rows.data)

    cdef bint *begin_use(self) except NULL:
        # Return what to end the use with.
        cdef bint *busy = &self.busy if self.first is None else &self.first.busy
        if not lc_begin_use(busy):
            raise RuntimeError("another thread uses this table")
        return busy

    def append(self, *row: int):
        """Add a row."""
        cdef int64_t values[_COLUMNS]
        cdef int i
        if len(row) != self.t.width:
            raise ValueError(f"{len(row)} columns, this table has {self.t.width}")
        for i in range(self.t.width):
            values[i] = row[i]
        cdef bint *busy = self.begin_use()
        i = _append(&self.t, values)
        lc_end_use(busy)
        if i < 0:
            raise MemoryError

    def __len__(self):
        return <Py_ssize_t> self.t.rows.size // (8 * self.t.width)

    def rows(self) -> bytes:
        """Return all rows, as bytes of native integers."""
        cdef bint *busy = self.begin_use()
        try:
            return PyBytes_FromStringAndSize(<char *> self.t.rows.data, <Py_ssize_t> self.t.rows.size)
        finally:
            lc_end_use(busy)


cdef struct lc_reason:
    const char *text
    size_t size
    int64_t number


cdef class LineReader:
    """Reads the lines of ledger files that have the usual form.

    Args:
        since_us: events made before are left out, microseconds since 1970; None: no bound.
        until_us: events made then or later are left out; None: no bound.
    """

    cdef readonly Table spans         # rows of index, first, last and position of events
    cdef readonly Table outcomes      # rows of index, first, last, outcome, plus 8 if it is late, and reason
    cdef readonly Table drops         # rows of index, time and number of dropped events
    # Rows of index, first, last and -1, 0 or 1: events before, in and after the selected time, if any.
    cdef readonly Table when
    cdef readonly int64_t index       # of the file
    cdef readonly Py_ssize_t lines    # that the last `read` has read
    cdef readonly Py_ssize_t events   # in these lines
    cdef public int64_t position      # number of events of all files so far
    cdef public int64_t last          # the last sequence of the file
    cdef public int64_t begin_us      # the first time of creation of all
    cdef public int64_t first_us      # likewise, of the selected events; more than last_us: there are none
    cdef public int64_t last_us
    cdef public int64_t end_us        # outcomes from then on are late, in this file
    # The time of the last line in this file that has one from 1970 to 2255; 0: none has.
    cdef public int64_t last_line_us
    cdef bint timed
    cdef int64_t since, until
    cdef lc_table ranges              # of the line
    cdef lc_reason reasons[_REASONS]
    cdef int known
    cdef list texts                   # keeps the reasons alive

    def __cinit__(self, since_us: int | None = None, until_us: int | None = None):
        self.spans = Table(4, 0)
        self.outcomes = Table(5, 2)
        self.drops = Table(3)
        self.when = Table(4, 1)
        self.outcomes.first = self.drops.first = self.when.first = self.spans
        self.timed = since_us is not None or until_us is not None
        self.since = INT64_MIN if since_us is None else since_us
        self.until = INT64_MAX if until_us is None else until_us
        self.begin_us = self.first_us = INT64_MAX
        self.last_us = INT64_MIN
        self.ranges.width = 2
        self.ranges.tags = -1
        self.texts = []

    def __dealloc__(self):
        free(self.ranges.rows.data)

    def begin_file(self, int64_t index):
        """Begin the next file."""
        self.index = index
        self.lines = self.events = 0
        self.last = 0
        self.end_us = INT64_MAX
        self.last_line_us = 0

    def know(self, bytes reason not None, int64_t number):
        """Let lines with this reason be read, in this file and all later ones.

        It stands in the line as it is: printable ASCII without quotes and backslashes.
        """
        if self.known == _REASONS:
            return
        self.texts.append(reason)
        self.reasons[self.known].text = PyBytes_AS_STRING(reason)
        self.reasons[self.known].size = <size_t> len(reason)
        self.reasons[self.known].number = number
        self.known += 1

    def read(self, const uint8_t[::1] data not None, Py_ssize_t start, Py_ssize_t stop,
             uint64_t[::1] hashes not None, int64_t[::1] created not None) -> int:
        """Read the lines of ``data[start:stop]`` up to the first one that has another form or is damaged.

        Args:
            start: where a line begins.
            hashes: filled with the hashes of the events.
            created: filled with their times of creation.

        Returns:
            Where the first line begins that was not read. It may also be incomplete, or have more events than
            `hashes` and `created` have room for.

        Raises:
            ValueError: the range is not inside the data.
        """
        cdef Py_ssize_t room = min(hashes.shape[0], created.shape[0])
        cdef int64_t got = 0
        if not 0 <= start <= stop <= data.shape[0]:
            raise ValueError(f"{start} to {stop} is not inside {data.shape[0]} bytes")
        if start == stop:
            self.lines = self.events = 0
            return start
        if not lc_begin_use(&self.spans.busy):
            raise RuntimeError("another thread uses this reader")
        cdef const uint8_t *begin = &data[0]
        cdef const uint8_t *p = begin + start
        cdef const uint8_t *end = begin + stop
        cdef uint64_t *to_hashes = &hashes[0] if room else NULL
        cdef int64_t *to_created = &created[0] if room else NULL
        self.lines = self.events = 0
        with nogil:
            while p < end:
                got = self._line(&p, end, to_hashes + self.events, to_created + self.events,
                                 room - self.events)
                if got <= 0:
                    break
                self.lines += 1
        lc_end_use(&self.spans.busy)
        if got < 0:
            raise MemoryError
        return p - begin

    # Read the line at at[0], and move that to the next line. 0: it has another form; -1: no memory.
    cdef int64_t _line(self, const uint8_t **at, const uint8_t *end, uint64_t *hashes, int64_t *created,
                   Py_ssize_t room) noexcept nogil:
        cdef const uint8_t *p = at[0]
        cdef int64_t got = 0
        if skip_text(&p, end, b'{"t":"batch","seqs":', 20):
            got = self._batch(&p, end, hashes, created, room)
        elif skip_text(&p, end, b'{"t":"outcome","at_us":', 23):
            got = self._outcome(&p, end)
        elif skip_text(&p, end, b'{"t":"dropped","at_us":', 23):
            got = self._dropped(&p, end)
        if got > 0:
            at[0] = p
        return got

    cdef int64_t _batch(self, const uint8_t **at, const uint8_t *end, uint64_t *hashes, int64_t *created,
                    Py_ssize_t room) noexcept nogil:
        cdef const uint8_t *p = at[0]
        cdef int64_t base, n
        cdef int64_t total = _read_ranges(&self.ranges, &p, end)
        cdef int64_t row[4]
        cdef int32_t range_[2]
        cdef size_t i
        if total <= 0:
            return total
        if not (skip_text(&p, end, b',"n":', 5) and read_integer(&p, end, _DIGITS, &n) and n == total
                and skip_text(&p, end, b',"base":', 8) and read_integer(&p, end, _DIGITS, &base)
                and skip_text(&p, end, b',"created":"', 12)):
            return 0
        # The number of events tells where both texts end. That nothing else is in them shows when they are
        # decoded: a quote and a newline are not of the alphabet.
        if n > room or end - p < (4 * n + 2) // 3 * 4 + 12 + (8 * n + 2) // 3 * 4 + 3:
            return 0
        cdef const uint8_t *times = p
        p += (4 * n + 2) // 3 * 4
        if not skip_text(&p, end, b'","hashes":"', 12):
            return 0
        cdef const uint8_t *texts = p
        p += (8 * n + 2) // 3 * 4
        if not skip_text(&p, end, b'"}\n', 3):
            return 0
        range_[0] = INT32_MAX
        range_[1] = INT32_MIN
        if (lc_unbase64_times(times, <size_t> n, base, created, range_) < 0
                or lc_unbase64(texts, <uint8_t *> hashes, 8 * <size_t> n) < 0):
            return 0
        cdef int64_t low = base + range_[0]
        cdef int64_t high = base + range_[1]
        cdef int when = self._when(low)
        if when != self._when(high):
            return 0
        row[0] = self.index
        for i in range(self.ranges.rows.size // 16):
            row[1] = (<int64_t *> self.ranges.rows.data)[2 * i]
            row[2] = (<int64_t *> self.ranges.rows.data)[2 * i + 1]
            row[3] = self.position
            self.position += row[2] - row[1] + 1
            if _append(&self.spans.t, row) < 0:
                return -1
            row[3] = when
            if self.timed and _append(&self.when.t, row) < 0:
                return -1
        self.last = max(self.last, row[2])
        self.begin_us = min(self.begin_us, low)
        if when == 0:
            self.first_us = min(self.first_us, low)
            self.last_us = max(self.last_us, high)
        self.events += n
        at[0] = p
        return n

    # -1: before the selected time; 0: in it; 1: after it.
    cdef int _when(self, int64_t time_us) noexcept nogil:
        return -1 if time_us < self.since else 1 if time_us >= self.until else 0

    cdef int64_t _outcome(self, const uint8_t **at, const uint8_t *end) noexcept nogil:
        cdef int64_t time_us
        cdef int outcome
        if not read_integer(at, end, _DIGITS, &time_us) or not skip_text(at, end, b',"status":"', 11):
            return 0
        if skip_text(at, end, b'acked"', 6):
            outcome = _ACKED
        elif skip_text(at, end, b'handed"', 7):
            outcome = _HANDED
        elif skip_text(at, end, b'failed"', 7):
            outcome = _FAILED
        else:
            return 0
        cdef int64_t got = self._decided(at, end, outcome + _LATE if time_us >= self.end_us else outcome)
        if got > 0:
            self._note_time(time_us)
        return got

    cdef void _note_time(self, int64_t time_us) noexcept nogil:
        if 0 < time_us < _YEAR_2255:
            self.last_line_us = time_us

    cdef int64_t _dropped(self, const uint8_t **at, const uint8_t *end) noexcept nogil:
        cdef int64_t row[3]
        row[0] = self.index
        if not read_integer(at, end, _DIGITS, &row[1]):
            return 0
        row[2] = self._decided(at, end, _DROPPED)
        if row[2] > 0:
            self._note_time(row[1])
        if row[2] > 0 and self._when(row[1]) == 0 and _append(&self.drops.t, row) < 0:
            return -1
        return row[2]

    # Read the reason and the sequences of a line that ends with them. The number of these; or as _line.
    cdef int64_t _decided(self, const uint8_t **at, const uint8_t *end, int outcome) noexcept nogil:
        cdef const uint8_t *p
        cdef int64_t row[5]
        cdef size_t i
        cdef int reason
        if not skip_text(at, end, b',"reason":"', 11):
            return 0
        for reason in range(self.known):
            p = at[0]
            if (skip_text(&p, end, self.reasons[reason].text, self.reasons[reason].size)
                    and skip_text(&p, end, b'","seqs":', 9)):
                break
        else:
            return 0
        cdef int64_t n = _read_ranges(&self.ranges, &p, end)
        if n <= 0:
            return n
        if not skip_text(&p, end, b"}\n", 2):
            return 0
        row[0] = self.index
        row[3] = outcome
        row[4] = self.reasons[reason].number
        for i in range(self.ranges.rows.size // 16):
            row[1] = (<int64_t *> self.ranges.rows.data)[2 * i]
            row[2] = (<int64_t *> self.ranges.rows.data)[2 * i + 1]
            if _append(&self.outcomes.t, row) < 0:
                return -1
        self.last = max(self.last, row[2])
        at[0] = p
        return n
