"""Arrivals of a verification: sorted into buckets (arrival_rows.py in logclient/verify), joined with the
events of the ledgers there, and judged (buckets.py). NumPy needs dozens of passes over the same columns.

All functions run without the GIL. They raise ValueError for columns of other lengths, for an index outside
of a column, for starts out of order, and for a number out of its range. Columns may then be changed in part.

=============== ==============================================================================================
``first``       of each event the lowest position of its arrivals; ``2**63 - 1``: it did not arrive
``received``    of each event when it arrived, in microseconds since 1970; ``2**63 - 1``: unknown
``judgements``  of each event, see ``logclient/verify/rules.py``
``starts``      where the events of each producer begin, ascending from 0
``after``       when each event arrived: at ``base + (after << shift)``; ``2**32 - 1``: unknown
``buckets``     of each event; -1: it has none. ``low`` is the lowest, which is row 0 of the tables
=============== ==============================================================================================
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef enum:
    NO_TIME = 0xFFFFFFFF  # of logclient/verify/schema.py
    CELLS = 64 << 6  # of logclient/verify/overview.py
    # Of logclient/verify/rules.py: marks, and bits of judgements.
    SEEN = 1 << 8
    NEW = 1 << 10
    MARKS = 1 << 14
    STATE = 15
    COUNTED = 1 << 4
    TIMED = 1 << 5
    ORDERED = 1 << 6
    LATE = 1 << 7


def join(const int32_t[::1] places not None, const uint64_t[::1] hashes not None,
         const int64_t[::1] positions not None, const uint32_t[::1] after not None,
         int64_t received_us,
         const uint64_t[::1] expected not None, const uint8_t[::1] listed not None: npt.NDArray[np.uint8],
         int32_t[::1] copies not None, int64_t[::1] first not None, int64_t[::1] received not None,
         int32_t[::1] wrong not None, int32_t[::1] touched not None, Py_ssize_t several
         ) -> tuple[int, int, int]:
    """Join arrivals with the events of a bucket.

    Args:
        places: of each arrival its event.
        received_us: the base of `after`.
        expected: of each event the hash of its body.
        listed: whether the ledger lists the event.
        copies: how often each event arrived; counted up. `first` and `received` are lowered.
        wrong: with room for all arrivals; filled with the indices of those whose hash differs.
        touched: of `several` events that arrived before; filled up with those that `first` has now.

    Returns:
        How many arrivals belong to listed events, how many have another hash, and how many events `touched`
        has.
    """
    cdef Py_ssize_t n = places.shape[0], size = expected.shape[0], i
    cdef Py_ssize_t of_listed = 0, differing = 0
    cdef int32_t place
    cdef int64_t at
    if hashes.shape[0] != n or positions.shape[0] != n or after.shape[0] != n or wrong.shape[0] < n:
        raise ValueError("hashes, positions, after and wrong: they must be as long as places")
    if (listed.shape[0] != size or copies.shape[0] != size or first.shape[0] != size
            or received.shape[0] != size or touched.shape[0] != size):
        raise ValueError("listed, copies, first, received and touched: they must be as long as expected")
    if not 0 <= several <= size:
        raise ValueError(f"several: {several} is not from 0 to {size}")
    with nogil:
        for i in range(n):
            place = places[i]
            if place < 0 or place >= size:
                with gil:
                    raise ValueError(f"places: {place} is not below {size}")
            copies[place] += 1
            of_listed += listed[place] != 0
            if positions[i] < first[place]:
                if first[place] == INT64_MAX:
                    if several == size:
                        with gil:
                            raise ValueError("touched: it has no room")
                    touched[several] = place
                    several += 1
                first[place] = positions[i]
            if after[i] != <uint32_t>NO_TIME:
                at = received_us + <int64_t>after[i]
                if at < received[place]:
                    received[place] = at
            if hashes[i] != expected[place]:
                wrong[differing] = <int32_t>i
                differing += 1
    return of_listed, differing, several


def locate(const int64_t[::1] producers not None, const int64_t[::1] sequences not None,
           const int64_t[::1] before not None, const int64_t[::1] size not None,
           const int64_t[::1] bases not None,
           const int32_t[::1] starts not None, int bits,
           int64_t[::1] buckets not None, int32_t[::1] places not None) -> int:
    """Find the bucket of each event and its place there.

    Args:
        producers: of each event its producer; none where it is no row of the tables.
        before: of each producer, how many sequences before its first place have none.
        size: how many places it has; `bases` and `starts`: bucket and place of the first.
        bits: a bucket has ``2**bits`` sequences of a producer; from 0 to 30.
        buckets: filled, as `places`; -1 where the sequence has no place.

    Returns:
        How many events have a bucket.
    """
    cdef Py_ssize_t n = producers.shape[0], known = 0, i
    cdef int64_t m = size.shape[0], p, s
    if sequences.shape[0] != n or buckets.shape[0] != n or places.shape[0] != n:
        raise ValueError("sequences, buckets and places: they must be as long as producers")
    if before.shape[0] != m or bases.shape[0] != m or starts.shape[0] != m:
        raise ValueError("before, bases and starts: they must be as long as size")
    if not 0 <= bits <= 30:
        raise ValueError(f"bits: {bits} is not from 0 to 30")
    cdef int64_t mask = (<int64_t>1 << bits) - 1
    with nogil:
        for i in range(n):
            p = producers[i]
            s = 0
            if 0 <= p < m:
                s = <int64_t>(<uint64_t>sequences[i] - <uint64_t>before[p])
            if 1 <= s and s <= size[p]:
                buckets[i] = bases[p] + ((s - 1) >> bits)
                places[i] = <int32_t>((s - 1) & mask) + starts[p]
                known += 1
            else:
                buckets[i] = -1
                places[i] = 0
    return known


def measure(const int64_t[::1] buckets not None, const int64_t[::1] received not None, int64_t low,
            int64_t[::1] counts not None, int64_t[::1] first not None, int64_t[::1] last not None):
    """Count up the events of each bucket, lower its first time and raise its last one."""
    cdef Py_ssize_t n = buckets.shape[0], i
    cdef int64_t m = counts.shape[0], b, t
    if received.shape[0] != n:
        raise ValueError("received: it must be as long as buckets")
    if first.shape[0] != m or last.shape[0] != m:
        raise ValueError("first and last: they must be as long as counts")
    with nogil:
        for i in range(n):
            if buckets[i] < 0:
                continue
            b = buckets[i] - low
            if not 0 <= b < m:
                with gil:
                    raise ValueError(f"buckets: {buckets[i]} is not one of {m} from {low}")
            counts[b] += 1
            t = received[i]
            if t != INT64_MAX:
                if t < first[b]:
                    first[b] = t
                if t > last[b]:
                    last[b] = t


def spread(const int64_t[::1] buckets not None, const int32_t[::1] places not None,
           const uint64_t[::1] hashes not None, const int64_t[::1] positions not None,
           const int64_t[::1] received not None, int64_t low, int64_t[::1] edges not None,
           const int64_t[::1] base not None,
           int32_t[::1] to_places not None, uint64_t[::1] to_hashes not None,
           int64_t[::1] to_positions not None, uint32_t[::1] after not None):
    """Sort columns by bucket, keeping the order in each.

    Args:
        edges: where the rows of each bucket begin in the columns to fill; moved to their ends.
        base: of each bucket, its first time.
        after: of each event ``received - base``, which must be below ``2**32 - 1``.
    """
    cdef Py_ssize_t n = buckets.shape[0], total = to_places.shape[0], i
    cdef int64_t m = edges.shape[0], b, j
    if (places.shape[0] != n or hashes.shape[0] != n or positions.shape[0] != n or received.shape[0] != n):
        raise ValueError("places, hashes, positions and received: they must be as long as buckets")
    if to_hashes.shape[0] != total or to_positions.shape[0] != total or after.shape[0] != total:
        raise ValueError("the columns to fill must be of one length")
    if base.shape[0] != m:
        raise ValueError("base: it must be as long as edges")
    with nogil:
        for i in range(n):
            if buckets[i] < 0:
                continue
            b = buckets[i] - low
            j = edges[b] if 0 <= b < m else -1
            if not 0 <= j < total:
                with gil:
                    raise ValueError(f"buckets: there is no room for {buckets[i]}")
            edges[b] = j + 1
            to_places[j] = places[i]
            to_hashes[j] = hashes[i]
            to_positions[j] = positions[i]
            if received[i] == INT64_MAX:
                after[j] = <uint32_t>NO_TIME
            else:
                after[j] = <uint32_t>(received[i] - base[b])


cdef int check_ranges(const int64_t[:, ::1] ranges, Py_ssize_t n) except -1:
    cdef Py_ssize_t i
    if ranges.shape[1] != 2:
        raise ValueError("ranges: each must be a first and a last")
    for i in range(ranges.shape[0]):
        if not 0 <= ranges[i, 0] <= ranges[i, 1] < n:
            raise ValueError(f"ranges: {ranges[i, 0]} to {ranges[i, 1]} is not a range below {n}")
    return 0


def paint(const int64_t[:, ::1] ranges not None, const uint8_t[::1] values not None: npt.NDArray[np.uint8],
          uint8_t[::1] out not None: npt.NDArray[np.uint8]):
    """Set ranges of `out`, rows of a first and a last index, to a value each; the last one counts."""
    cdef Py_ssize_t n = ranges.shape[0], i
    cdef int64_t first, last, reach = 0
    if values.shape[0] != n:
        raise ValueError("values: it must be as long as ranges")
    check_ranges(ranges, out.shape[0])
    with nogil:
        for i in range(n):
            first = ranges[i, 0]
            last = ranges[i, 1]
            if i == 0 or values[i] != values[i - 1] or first < ranges[i - 1, 0]:
                reach = 0
            # Ascending ranges of one value may overlap any number of times: paint no place twice for them.
            if first < reach:
                first = reach
            if first <= last:
                memset(&out[first], values[i], last + 1 - first)
                reach = last + 1


def copy_ranges(const int64_t[::1] source not None, const int64_t[::1] at not None,
                const int64_t[:, ::1] ranges not None, int64_t[::1] out not None):
    """Copy ranges of `source`, each from an index `at`, to rows of a first and a last index in `out`."""
    cdef Py_ssize_t n = ranges.shape[0], i
    cdef int64_t size
    if at.shape[0] != n:
        raise ValueError("at: it must be as long as ranges")
    check_ranges(ranges, out.shape[0])
    for i in range(n):
        if at[i] < 0 or at[i] > source.shape[0] - (ranges[i, 1] - ranges[i, 0] + 1):
            raise ValueError(f"at: {at[i]} is too near to the end at {source.shape[0]}")
    with nogil:
        for i in range(n):
            size = ranges[i, 1] - ranges[i, 0] + 1
            memcpy(&out[ranges[i, 0]], &source[at[i]], size * 8)


cdef int check_starts(const int64_t[::1] starts, Py_ssize_t n) except -1:
    cdef Py_ssize_t m = starts.shape[0], o
    cdef int64_t before = 0
    for o in range(m):
        if starts[o] < before or starts[o] > n:
            raise ValueError(f"starts: {starts[o]} is not from {before} to {n}")
        before = starts[o]
    if n and (m == 0 or starts[0] != 0):
        raise ValueError("starts: the first must be 0")
    return 0


def judge(const int32_t[::1] copies not None, const uint16_t[::1] marks not None,
          const int64_t[::1] starts not None, const uint16_t[::1] common not None,
          const int64_t[::1] newer not None, const uint8_t[::1] rules not None: npt.NDArray[np.uint8],
          uint8_t[::1] judgements not None: npt.NDArray[np.uint8], int64_t[:, ::1] counts not None,
          int64_t[::1] odd not None, int64_t[::1] repeated not None) -> tuple[int, int]:
    """Judge the events of a bucket but for their order.

    Args:
        copies: how often each event arrived.
        marks: of each event, see ``logclient/verify/rules.py``.
        common: of each producer, marks of all its events.
        newer: of each producer, the place from which on its events have the mark ``NEW``.
        rules: for each combination of marks the judgement.
        judgements: of each event; filled, but for ``LATE``, which stays.
        counts: of each producer a row, with the number of its events in each state; counted up. State 0 has
            no fault, and the last state is not judged.
        odd: with room for all events; filled with the indices of those in other states.
        repeated: with room for all events; filled with the indices of counted events with several copies.

    Returns:
        How many are in `odd`, and how many in `repeated`.
    """
    cdef Py_ssize_t n = copies.shape[0], m = starts.shape[0], i, o, high
    cdef Py_ssize_t odds = 0, several = 0
    cdef int64_t width = counts.shape[1], excluded = width - 1, ok
    cdef int state
    cdef unsigned int bits, mark
    cdef uint8_t judgement
    if marks.shape[0] != n or judgements.shape[0] != n or odd.shape[0] < n or repeated.shape[0] < n:
        raise ValueError("marks, judgements, odd and repeated: they must be as long as copies")
    if common.shape[0] != m or newer.shape[0] != m or counts.shape[0] != m:
        raise ValueError("common, newer and counts: they must be as long as starts")
    if rules.shape[0] != MARKS or width < 2:
        raise ValueError(f"rules and counts: there must be {MARKS} rules, and 2 states or more")
    check_starts(starts, n)
    with nogil:
        for o in range(m):
            high = starts[o + 1] if o + 1 < m else n
            ok = 0
            for i in range(starts[o], high):
                bits = common[o] | NEW if i >= newer[o] else common[o]
                mark = marks[i] | bits | (SEEN if copies[i] > 0 else 0)
                judgement = rules[mark & (MARKS - 1)]
                judgements[i] = judgement | (judgements[i] & LATE)
                if copies[i] > 1 and judgement & COUNTED:
                    repeated[several] = i
                    several += 1
                state = judgement & STATE
                if state == 0:
                    ok += 1
                    continue
                if state >= width:
                    with gil:
                        raise ValueError(f"rules: {state} is no state below {width}")
                counts[o, state] += 1
                if state < excluded:
                    odd[odds] = i
                    odds += 1
            counts[o, 0] += ok
    return odds, several


def judge_order(const int32_t[::1] touched not None, const int64_t[::1] first not None,
                uint8_t[::1] judgements not None: npt.NDArray[np.uint8],
                const int64_t[::1] starts not None, int64_t limit) -> tuple[int, int, int]:
    """Find the events that arrived at a listener after a later event of their producer.

    Args:
        touched: the events that arrived there, ascending.
        judgements: those with ``ORDERED`` are compared, and late ones get ``LATE``.
        limit: the position of an event that is later than all of these; ``2**63 - 1``: there is none.

    Returns:
        How many are late, the lowest position of those that are compared, and that of the last of them;
        ``2**63 - 1``: none is compared.
    """
    cdef Py_ssize_t n = touched.shape[0], size = first.shape[0], i, o = starts.shape[0] - 1
    cdef Py_ssize_t late = 0
    cdef int64_t earliest = limit, lowest = INT64_MAX, last = INT64_MAX, before = size, place
    if judgements.shape[0] != size:
        raise ValueError("judgements: it must be as long as first")
    check_starts(starts, size)
    with nogil:
        for i in range(n - 1, -1, -1):
            place = touched[i]
            if not 0 <= place < before:
                with gil:
                    raise ValueError(f"touched: {place} is not below {before}")
            before = place
            if not judgements[place] & ORDERED:
                continue
            if place < starts[o]:
                earliest = limit
                while place < starts[o]:
                    o -= 1
            if last == INT64_MAX:
                last = first[place]
            if first[place] < lowest:
                lowest = first[place]
            if first[place] < earliest:
                earliest = first[place]
            else:
                judgements[place] |= LATE
                late += 1
    return late, lowest, last


def count_arrived(const int32_t[::1] touched not None, const int64_t[::1] first not None,
                  const uint8_t[::1] judgements not None: npt.NDArray[np.uint8],
                  const int64_t[::1] starts not None, int64_t arrival, int32_t listener,
                  int64_t[::1] counts not None, int64_t[::1] arrivals not None,
                  int64_t[::1] positions not None, int32_t[::1] listeners not None):
    """Count up the events of each producer that arrived at a listener, and keep where each was first seen.

    Args:
        touched: the events that arrived there, ascending; through one device, if there are several.
        arrival: the listener with the device.
        counts: of each producer; counted up for events with ``COUNTED``, once for all devices.
        arrivals: of each event the first `arrival` it had, -1: none; `positions` has its position there.
        listeners: of each event the last `listener` that it was counted at.
    """
    cdef Py_ssize_t n = touched.shape[0], size = first.shape[0], i, o = 0, m = starts.shape[0]
    cdef int64_t before = -1, place
    if (judgements.shape[0] != size or arrivals.shape[0] != size or positions.shape[0] != size
            or listeners.shape[0] != size):
        raise ValueError("judgements, arrivals, positions and listeners: they must be as long as first")
    if counts.shape[0] != m:
        raise ValueError("counts: it must be as long as starts")
    check_starts(starts, size)
    with nogil:
        for i in range(n):
            place = touched[i]
            if not before < place < size:
                with gil:
                    raise ValueError(f"touched: {place} is not above {before} and below {size}")
            before = place
            while o + 1 < m and starts[o + 1] <= place:
                o += 1
            if arrivals[place] < 0:
                arrivals[place] = arrival
                positions[place] = first[place]
            if listeners[place] != listener:
                listeners[place] = listener
                counts[o] += judgements[place] & COUNTED != 0


cdef inline int cell_of(int64_t took) noexcept nogil:
    # The inverse of `cell_value` of logclient/verify/overview.py.
    cdef double value = <double>took
    cdef int64_t bits
    memcpy(&bits, &value, 8)
    bits = (bits >> 46) - (1023 << 6) + 1
    return <int>bits if bits > 0 else 0


def count_latencies(const int64_t[::1] created not None, const int64_t[::1] received not None,
                    const uint8_t[::1] judgements not None: npt.NDArray[np.uint8],
                    const int64_t[::1] starts not None, const int32_t[::1] families not None,
                    int64_t start_us, int64_t width_us, int64_t[:, :, ::1] words not None,
                    int64_t[:, :, ::1] latency not None, int64_t[:, ::1] extremes not None,
                    int32_t[::1] owners not None, int32_t[::1] cells not None,
                    int64_t[::1] counts not None) -> int:
    """Count the latencies of events with ``TIMED``, over time and by producer.

    A latency has one of 4,096 cells: 0 for less than 1 µs, and 64 for each octave above.

    Args:
        created: when each event was made, microseconds since 1970.
        families: of each producer, its row in `words` and `latency`.
        start_us: the begin of the first time step.
        width_us: the length of a step.
        words: by family, step and word; word 0 is counted up for each event.
        latency: by family, step and cell; counted up.
        extremes: of each producer a row of three; filled with the longest latency, the number of events that
            arrived before they were made, and the longest such time. These events have no latency.
        owners: with room for all events, as the next two; filled with producers.
        cells: filled with the cells that have latencies of these.
        counts: filled with their number.

    Returns:
        How many rows `owners`, `cells` and `counts` have.
    """
    cdef Py_ssize_t n = created.shape[0], m = starts.shape[0], i, j, o, high, used = 0, begun
    cdef int64_t steps = words.shape[1], step = 0, low_us, high_us, at = 0
    cdef int64_t took, run, longest, early, early_us
    cdef int64_t own[CELLS]
    cdef int32_t family
    cdef int c
    if received.shape[0] != n or judgements.shape[0] != n:
        raise ValueError("received and judgements: they must be as long as created")
    if owners.shape[0] < n or cells.shape[0] < n or counts.shape[0] < n:
        raise ValueError("owners, cells and counts: they must be as long as created")
    if families.shape[0] != m or extremes.shape[0] != m or extremes.shape[1] != 3:
        raise ValueError("families and extremes: they must be as long as starts")
    if latency.shape[0] != words.shape[0] or latency.shape[1] != steps or latency.shape[2] != CELLS:
        raise ValueError("latency: its shape does not fit")
    if words.shape[2] < 1 or width_us < 1:
        raise ValueError("words and width_us: there must be a column, and a width")
    for o in range(m):
        if not 0 <= families[o] < words.shape[0]:
            raise ValueError(f"families: {families[o]} is not below {words.shape[0]}")
    check_starts(starts, n)
    with nogil:
        memset(own, 0, sizeof(own))
        for o in range(m):
            high = starts[o + 1] if o + 1 < m else n
            family = families[o]
            begun = used
            run = longest = early = early_us = 0
            low_us = high_us = 0  # of the step of the event before
            for i in range(starts[o], high):
                if not judgements[i] & TIMED:
                    continue
                at = created[i]
                if at < low_us or at >= high_us:
                    if run:
                        words[family, step, 0] += run
                        run = 0
                    step = (at - start_us) // width_us if at >= start_us else -1
                    if not 0 <= step < steps:
                        with gil:
                            raise ValueError(f"created: {at} is not in {steps} steps of {width_us} from "
                                             f"{start_us}")
                    low_us = start_us + step * width_us
                    high_us = low_us + width_us
                run += 1
                if received[i] == INT64_MAX:
                    continue
                took = <int64_t>(<uint64_t>received[i] - <uint64_t>at)
                if took < 0:
                    early += 1
                    if -took > early_us:
                        early_us = -took
                    continue
                if took > longest:
                    longest = took
                c = cell_of(took)
                latency[family, step, c] += 1
                if own[c] == 0:
                    cells[used] = c
                    used += 1
                own[c] += 1
            if run:
                words[family, step, 0] += run
            for j in range(begun, used):
                owners[j] = <int32_t>o
                counts[j] = own[cells[j]]
                own[cells[j]] = 0
            extremes[o, 0] = longest
            extremes[o, 1] = early
            extremes[o, 2] = early_us
    return used
