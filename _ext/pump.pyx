"""The pumps: each drives the codec of one connection, and moves its bytes without the GIL; and their loop.

`CompiledPump` detaches, encodes, writes the ledger, sends and receives; `PumpGroup` is the loop. Subclasses
move the bytes: they implement four methods. The pumps for TLS and WebSocket are in ``tls`` and ``websocket``.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from logclient._ext.codec cimport *
from logclient._ext.codec_base cimport CodecBase
from logclient._ext.descriptors cimport *
from logclient._ext.inflight cimport *
from logclient._ext.queue cimport *
from logclient._ext.sockets cimport *

from logclient._ext.constants import ENDS, UDP_METHODS

include "pump/base.pyx"
include "pump/group.pyx"
include "pump/tcp.pyx"
include "pump/udp.pyx"
include "pump/zmq.pyx"
include "pump/adapters.pyx"
