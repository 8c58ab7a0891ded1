# The pump for TLS, for pumps that move their bytes through it.

from logclient._ext.pump.base cimport CompiledPump
from logclient._ext.tls cimport TlsSocket


cdef class TlsPump(CompiledPump):
    cdef object link
    cdef TlsSocket tls
