"""One bound on the memory of all clients of a process."""

from __future__ import annotations

from typing import Any

from logclient._ext.queue import EventQueue, SharedBound
from logclient.config.readers import size as size_reader
from logclient.delivery import lifecycle
from logclient.errors import ConfigError

__all__ = ["join", "limit_memory", "memory_used", "weight"]

_read = size_reader(1024, 1 << 40)
_bounds: list[SharedBound | None] = [None]  # the present one


def limit_memory(size: int | str | None) -> None:
    """Bound the bytes of events of all clients of this process together.

    ::

        logclient.limit_memory("128MiB")

    Events count as in ``max_bytes``, which bounds each client in addition: queued, in flight and kept for a
    resend. When an event does not fit, its client follows its own ``overflow``, as if its own queue was full:

    - ``drop_oldest`` drops the oldest events of its own queue. If that does not make enough room, it drops
      the new event.
    - ``drop_new`` and ``raise`` do what they say.
    - ``block`` waits for room that any client makes. It notices that of others within 50 ms.

    No client has a share of its own: one whose server is dead may take all of the room, so also set
    ``max_bytes``. Events in the files of a spool do not count. A client with a spool writes to its files when
    the bound is reached. While its next file is being made, it may exceed the bound by 8 MiB.

    The bound holds at once, for clients that exist and those made later. Under a lower limit, events that are
    held already stay. An event that is larger than the limit fails as ``too_large``. A forked child has the
    same limit and counts from 0.

    Args:
        size: bytes, or a text such as ``128MiB``; None: no bound.

    Raises:
        ConfigError: the size is not one, or not from 1024 bytes to 1 TiB.
    """
    try:
        limit = None if size is None else int(_read(size))
    except ValueError as error:
        raise ConfigError(f"size: {error}") from None
    bound = _bounds[0]
    if limit is None:
        bound = None
    elif bound is None:
        bound = SharedBound(limit)
    else:
        bound.limit = limit
    _bounds[0] = bound
    for sender in lifecycle.senders():
        join(sender.queue)


def join(queue: EventQueue) -> None:
    """Count a queue in the present bound. A client calls this once it is among ``lifecycle.senders``."""
    while True:
        bound = _bounds[0]
        queue.share(bound)
        if bound is _bounds[0]:  # else another thread has just set one
            return


def memory_used() -> int:
    """Return the bytes of events of all clients of this process, as ``limit_memory`` counts them."""
    bound = _bounds[0]
    if bound is not None:
        return bound.used
    return sum(sender.queue.memory_used for sender in lifecycle.senders())


def weight(value: dict[str, Any]) -> int:
    """Return about how many bytes a value of JSON takes in memory."""
    size = 0
    todo: list[Any] = [value]
    while todo:
        one = todo.pop()
        size += 64
        if isinstance(one, dict):
            for name, value in one.items():
                size += 64 + len(name)
                todo.append(value)
        elif isinstance(one, list):
            todo.extend(one)
        elif isinstance(one, str):
            size += len(one)
    return size
