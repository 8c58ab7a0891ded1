"""The frames of WebSocket (RFC 6455, section 5.2) that are all but a few: whole messages, neither fragmented
nor compressed, as a server sends them and as a client does.
"""

def split(
    data: bytes | bytearray, at: int, limit: int, unfinished: bool, messages: list[bytes]
) -> tuple[int, int]:
    """Take whole messages out of what a server has sent.

    Args:
        data: frames, the last of them perhaps in part.
        at: where the first of them begins.
        limit: bytes that a frame may bring.
        unfinished: whether fragments have come of a message whose last has not: then no frame is plain.
        messages: what they bring, text and binary alike, is put behind these; an empty one as a space.

    Returns:
        Where the first frame begins that is none of those, and its bytes, or how many there must be to
        tell. If so many have come, it is one for the protocol: what it may do with less than the whole
        frame (refuse one that is masked, or of more than `limit` bytes) it is given no more for.

    Raises:
        ValueError: `at` is beyond the end.
    """

def seal(data: bytes | bytearray | memoryview, keys: bytes, at: int) -> bytes:
    """A client's frame with a whole text message.

    Args:
        data: the message; UTF-8 is not looked for.
        keys: random bytes that nobody can foresee (section 5.3).
        at: where the four of them begin that mask this one.

    Raises:
        ValueError: there are none.
    """
