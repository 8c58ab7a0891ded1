# The pump for TCP, for pumps that move their bytes through it.

from libc.stdint cimport uint8_t

from logclient._ext.pump.base cimport CompiledPump


cdef class TcpPump(CompiledPump):
    cdef int fd

    cdef ssize_t _failed(self) noexcept nogil
