"""Arrivals of a verification: sorted into buckets (gather.py in logclient/verify), and joined with the
ledger's events there (buckets.py).

NumPy needs a dozen passes over the same columns, and more where events arrived twice. The reference of the
tests is tests/oracle/arrivals.py.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum: NO_TIME = 0xFFFFFFFF  # of logclient/verify/schema.py


def join(const int32_t[::1] places not None, const uint64_t[::1] hashes not None,
         const int64_t[::1] positions not None, const uint32_t[::1] after not None,
         int64_t received_us, int shift,
         const uint64_t[::1] expected not None, const uint8_t[::1] listed not None,
         int32_t[::1] copies not None, int64_t[::1] first not None, int64_t[::1] received not None,
         int32_t[::1] wrong not None):
    cdef Py_ssize_t n = places.shape[0], size = expected.shape[0], i
    cdef Py_ssize_t of_listed = 0, differing = 0
    cdef int32_t place, bad = 0
    cdef int64_t at
    if hashes.shape[0] != n or positions.shape[0] != n or after.shape[0] != n or wrong.shape[0] < n:
        raise ValueError("hashes, positions, after and wrong: they must be as long as places")
    if (listed.shape[0] != size or copies.shape[0] != size or first.shape[0] != size
            or received.shape[0] != size):
        raise ValueError("listed, copies, first and received: they must be as long as expected")
    if not 0 <= shift <= 30:
        raise ValueError(f"shift: {shift} is not from 0 to 30")
    with nogil:
        for i in range(n):
            place = places[i]
            if place < 0 or place >= size:
                bad = 1
                break
            copies[place] += 1
            of_listed += listed[place] != 0
            if positions[i] < first[place]:
                first[place] = positions[i]
            if after[i] != <uint32_t>NO_TIME:
                at = received_us + (<int64_t>after[i] << shift)
                if at < received[place]:
                    received[place] = at
            if hashes[i] != expected[place]:
                wrong[differing] = <int32_t>i
                differing += 1
    if bad:
        raise ValueError(f"places: {place} is not below {size}")
    return of_listed, differing


def locate(const int64_t[::1] producers not None, const int64_t[::1] sequences not None,
           const int64_t[::1] last not None, const int64_t[::1] bases not None,
           const int32_t[::1] starts not None, int bits,
           int64_t[::1] buckets not None, int32_t[::1] places not None):
    cdef Py_ssize_t n = producers.shape[0], known = 0, i
    cdef int64_t size = last.shape[0], p, s, mask
    if sequences.shape[0] != n or buckets.shape[0] != n or places.shape[0] != n:
        raise ValueError("sequences, buckets and places: they must be as long as producers")
    if bases.shape[0] != size or starts.shape[0] != size:
        raise ValueError("bases and starts: they must be as long as last")
    if not 0 <= bits <= 30:
        raise ValueError(f"bits: {bits} is not from 0 to 30")
    mask = (<int64_t>1 << bits) - 1
    with nogil:
        for i in range(n):
            p = producers[i]
            s = sequences[i]
            if 0 <= p < size and 1 <= s <= last[p]:
                buckets[i] = bases[p] + ((s - 1) >> bits)
                places[i] = <int32_t>((s - 1) & mask) + starts[p]
                known += 1
            else:
                buckets[i] = -1
                places[i] = 0
    return known


def measure(const int64_t[::1] buckets not None, const int64_t[::1] received not None, int64_t low,
            int64_t[::1] counts not None, int64_t[::1] first not None, int64_t[::1] last not None):
    cdef Py_ssize_t n = buckets.shape[0], i
    cdef int64_t m = counts.shape[0], b, t, bad = -1
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
                bad = buckets[i]
                break
            counts[b] += 1
            t = received[i]
            if t != INT64_MAX:
                if t < first[b]:
                    first[b] = t
                if t > last[b]:
                    last[b] = t
    if bad >= 0:
        raise ValueError(f"buckets: {bad} is not one of {m} from {low}")


def spread(const int64_t[::1] buckets not None, const int32_t[::1] places not None,
           const uint64_t[::1] hashes not None, const int64_t[::1] positions not None,
           const int64_t[::1] received not None, int64_t low, int64_t[::1] edges not None,
           const int64_t[::1] base not None, const int32_t[::1] shift not None,
           int32_t[::1] to_places not None, uint64_t[::1] to_hashes not None,
           int64_t[::1] to_positions not None, uint32_t[::1] after not None):
    cdef Py_ssize_t n = buckets.shape[0], total = to_places.shape[0], i
    cdef int64_t m = edges.shape[0], b, j, bad = -1
    if (places.shape[0] != n or hashes.shape[0] != n or positions.shape[0] != n or received.shape[0] != n):
        raise ValueError("places, hashes, positions and received: they must be as long as buckets")
    if to_hashes.shape[0] != total or to_positions.shape[0] != total or after.shape[0] != total:
        raise ValueError("the columns to fill must be of one length")
    if base.shape[0] != m or shift.shape[0] != m:
        raise ValueError("base and shift: they must be as long as edges")
    with nogil:
        for i in range(n):
            if buckets[i] < 0:
                continue
            b = buckets[i] - low
            if not 0 <= b < m:
                bad = buckets[i]
                break
            j = edges[b]
            if not 0 <= j < total:
                bad = buckets[i]
                break
            edges[b] = j + 1
            to_places[j] = places[i]
            to_hashes[j] = hashes[i]
            to_positions[j] = positions[i]
            if received[i] == INT64_MAX:
                after[j] = <uint32_t>NO_TIME
            else:
                after[j] = <uint32_t>((received[i] - base[b]) >> (shift[b] & 63))
    if bad >= 0:
        raise ValueError(f"buckets: there is no room for {bad}")
