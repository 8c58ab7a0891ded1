# Numbers that compiled code and Python share. Each is written here and nowhere else: the members of an
# anonymous `cpdef enum` are constants in C and plain integers in the module `constants`. Named enums would
# become IntFlags in Python: their operators are slow, and making them would cost half a millisecond.


# The status of one event in a batch, and of an outcome.
cpdef enum:
    PENDING = 0      # not sent, or to be sent again
    INFLIGHT = 1     # sent, without an outcome yet
    ACKED = 2        # acknowledged by the server
    HANDED = 3       # taken by the kernel or ZeroMQ, in a protocol without acknowledgements
    FAILED = 4       # given up: see the reason
    DROPPED = 5      # refused or pushed out by a bound: see the reason
    WITHHELD = 6     # held back while other events are tried alone; never leaves the batches
    STORED = 7       # left in the spool for another client
    SETTLED = 0x80   # a flag in a batch: the event has its outcome, and is counted

# Reasons for which an event failed or was dropped. Users read the names, lower-case and without the prefix,
# in stats and ledgers.
cpdef enum:
    R_NONE = 0
    R_OVERFLOW = 1       # dropped: max_events or max_bytes
    R_CLOSED = 2         # dropped: sent after close; failed: outstanding at close
    R_TOO_LARGE = 3      # failed: over max_event_bytes
    R_UNENCODABLE = 4    # failed: the value has no encoding (a cycle, a foreign type)
    R_NOT_JSON = 5       # failed: raw bytes that are not one JSON object in UTF-8
    R_REJECTED = 6       # failed: the server refused this event
    R_MAX_AGE = 7        # failed: older than max_age
    R_FORKED = 8         # failed: left behind in a forked child
    R_FATAL = 9          # failed: the engine connects no more (configuration, protocol version)
    R_POISON = 10        # failed: the server ends the connection on this event, and takes others
    R_DENIED = 11        # failed: the server denies this event to us
    R_UNKNOWN_TYPE = 12  # failed: the server does not know events of this type
    R_ERROR = 13         # failed: the server broke on it, and again when it came alone
    R_DOUBT = 14         # failed: sent, then the connection broke, and it is not to be sent twice
    R_SPOOL_FULL = 15    # dropped: spool_bytes
    R_PURGED = 16        # dropped: removed from a spool by hand
    R_COUNT = 17         # how many reasons there are

# Options that hold events back before they get a sequence.
cpdef enum:
    FILTER_BEFORE_SEND = 0
    FILTER_SAMPLE = 1
    FILTER_RATE_LIMIT = 2
    FILTER_DEDUPE = 3
    FILTER_HOLD_BELOW = 4
    FILTER_COUNT = 5

# The kind of an event: the form of its body, and flags that the formatter sets.
cpdef enum:
    K_DOCUMENT = 0           # a JSON object of our formatter: valid, one line, needs no check
    K_RAW = 1                # the caller's bytes, said to be a JSON object: checked when encoded
    K_BYTES = 2              # the caller's bytes, any (plog)
    K_TOMB = 3               # a tombstone: the event cannot be encoded; its only byte is the reason
    K_MASK = 0x03
    K_ID1_TAKEN = 0x04       # the user filled the first carrier of the id (see the core's table)
    K_ID2_TAKEN = 0x08       # ... the second
    K_METADATA_OPEN = 0x10   # Lumberjack: its "@metadata" comes last, and the first carrier goes into it
    K_NESTED = 0x20          # Lumberjack: the second carrier is a field of the object "event"
    K_EVENT_OPEN = 0x40      # ... which comes last, and the id goes into it
    K_TOPIC_SHIFT = 4        # the high nibble: the topic, in protocols that have several

# Results of a put in place of a sequence.
cpdef enum:
    PUT_DROPPED = 0      # the policy dropped it
    PUT_FORKED = -1      # this is a child process: the queue has to be renewed first
    PUT_FULL = -2        # policies `block` and `raise`: nothing was taken
    PUT_MEMORY = -3      # out of memory; counted as dropped
    PUT_UNOPENED = -4    # the spool is to be opened first: nothing was taken

# Reasons for which a codec stops.
cpdef enum:
    STOP_MEMORY = -1     # out of memory
    STOP_PROTOCOL = -2   # the peer broke the protocol: disconnect and resend

# Reasons for which a pump returns. `run` returns the names, lower-case and without the prefix.
cpdef enum:
    END_UNTIL = 0        # the deadline is here
    END_REPORT = 1       # there are outcomes or answers to report, or `poke` was called
    END_TARGET = 2       # the events that a caller waits for are settled
    END_STOPPED = 3      # `stop` was called
    END_CLOSED = 4       # the peer closed the connection
    END_ERROR = 5        # a system call failed; see `errno`
    END_PROTOCOL = 6     # the peer broke the protocol, or the core gave up
    END_SILENCE = 7      # the peer owes an answer and sent nothing for too long
    END_STALLED = 8      # acknowledgements made no progress for too long
    END_MEMORY = 9       # out of memory

# The methods to send datagrams.
cpdef enum:
    UDP_ONE = 0          # one to a call
    UDP_MANY = 1         # many to a call
    UDP_RUNS = 2         # whole runs, many to a call; the kernel cuts them into datagrams (UDP_SEGMENT)


cdef extern from "constants.h":
    const unsigned int FRAME_MORE "LC_FRAME_MORE"        # in a frame's head: its message has more frames
    const unsigned int FRAME_SIZE "LC_FRAME_SIZE"        # the rest of the head: bytes of the frame
    const unsigned int RUN_HEAD "LC_RUN_HEAD"            # bytes of the head of a run of datagrams
    const unsigned int RUN_MOST "LC_RUN_MOST"            # bytes of one run of datagrams
    const unsigned int RUN_SEGMENTS "LC_RUN_SEGMENTS"    # datagrams of one run
