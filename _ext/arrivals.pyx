"""Arrivals of a verification, joined with the ledger's events in one pass (logclient/verify/buckets.py).

NumPy needs a dozen passes over the same columns, and more where events arrived twice. The reference of the
tests is tests/oracle/arrivals.py.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

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
