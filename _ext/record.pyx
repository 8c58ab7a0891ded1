"""Formatting: a LogRecord or a mapping becomes the bytes to send, in the caller's thread.

One pass in C writes the document into a buffer on the stack (longer ones move to the heap) and copies it into
the queue. It takes no lock and shares nothing between two calls, so a log call in a destructor or in a signal
handler is safe, even in the middle of another log call.

Python code that runs meanwhile (a `__str__`, a destructor called by the garbage collector) may replace or
delete the objects that a document is made of. Therefore functions that read the usual attributes of a record
are `nogil`: the compiler accepts nothing in them that could run Python code, so borrowed references stay
valid. Before anything else runs, `Encoder._take_references` takes strong references, and copies the fields.

A value without an encoding is replaced and counted as sanitized: NaN and infinities by null, lone surrogates
by U+FFFD, bytes by text with U+FFFD for invalid UTF-8, keys by strings, unknown objects by ``str()``, a
container inside itself and one below 128 levels by a short text.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.contextvars cimport get_value
from cpython.object cimport PyObject
from libc.limits cimport LLONG_MAX
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strlen, strncmp

from logclient._ext.constants cimport PUT_FORKED, PUT_FULL, PUT_UNOPENED
from logclient._ext.ids cimport lc_put32
from logclient._ext.jsonscan cimport SCAN_PAD, lc_object, scan_object
from logclient._ext.jsontext cimport lc_block, lc_special, string_end, value_after
from logclient._ext.queue cimport EventQueue, lc_forks, lc_put, lc_wall_us
from logclient._ext.codec cimport (
    K_DOCUMENT,
    K_EVENT_OPEN,
    K_ID1_TAKEN,
    K_ID2_TAKEN,
    K_METADATA_OPEN,
    K_NESTED,
    K_RAW,
    K_TOMB,
    R_NONE,
    R_TOO_LARGE,
    R_UNENCODABLE,
)

import logging
import os
import os.path
import re
import sys
import weakref
from collections import deque
from collections.abc import ItemsView, Mapping, ValuesView
from types import MemberDescriptorType

from logclient._ext.tracebacks import ExceptionFormatter
from logclient.errors import ConfigError, EncodeError, EncodeTypeError

include "record/externs.pyx"
include "record/json_encode.pyx"
include "record/forms.pyx"
include "record/field_names.pyx"
include "record/redaction.pyx"
include "record/fields.pyx"
include "record/attributes.pyx"
include "record/record_encoder.pyx"
include "record/rearrange.pyx"
include "record/splice.pyx"
include "record/line_encoder.pyx"
include "record/fast_client.pyx"
include "record/fast_handler.pyx"
include "record/call_sites.pyx"
include "record/log_route.pyx"
include "record/fast_logger.pyx"
