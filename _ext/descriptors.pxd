# Descriptors that are known again, however the program that we are guests of uses their numbers.

from libc.stdint cimport uint64_t


cdef extern from "descriptors.h" nogil:
    ctypedef struct lc_file:
        int fd
        uint64_t device
        uint64_t inode
    bint lc_is_ours(const lc_file *f)
    void lc_close(lc_file *f)
    int lc_look(lc_file *f, int fd)
    int lc_own(lc_file *f, int fd)
