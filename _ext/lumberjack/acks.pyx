# 'ack' frames: collectors write them, tests read them.

def encode_ack(int version, uint32_t number, /):
    """Encode an 'ack' frame; `number` 0 is a keep-alive."""
    cdef uint8_t frame[6]
    if not 1 <= version <= 2:
        raise ValueError(f"version: 1 or 2, not {version}")
    frame[0] = c'0' + version
    frame[1] = c'A'
    lc_put32(frame + 2, number)
    return <bytes> frame[:6]


def decode_acks(data, /):
    """Decode whole 'ack' frames into pairs of version and number.

    Raises:
        ValueError: there is something else in `data`.
    """
    cdef bytes copy = bytes(data)
    cdef const uint8_t *p = <const uint8_t *> PyBytes_AS_STRING(copy)
    cdef Py_ssize_t i
    acks = []
    for i in range(0, len(copy), 6):
        if len(copy) - i < 6 or (p[i] != c'1' and p[i] != c'2') or p[i + 1] != c'A':
            raise ValueError(f"no ack frame at byte {i}: {copy[i:i + 6]!r}")
        acks.append((p[i] - c'0', lc_get32(p + i + 2)))
    return acks
