"""What makes the tasks of Python workers cheaper."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
from collections.abc import Iterator

# Of glibc's mallopt().
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_ARRAY = 32 << 20  # it maps larger arrays by themselves, and unmaps them


@functools.cache
def keep_memory(size: int = 256 << 20) -> bool:
    """Keep memory that is freed for the next arrays of this process.

    By default glibc gives large arrays back. For each of the next ones the kernel then clears pages, which
    takes a sixth of the CPU of a comparison.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    array = min(size // 2, _MOST_ARRAY)
    return bool(mallopt(_M_MMAP_THRESHOLD, array) and mallopt(_M_TRIM_THRESHOLD, size))


def prepare() -> None:
    """Prepare this worker for a task, after the imports of the task.

    PySpark runs a garbage collection after each task, which would traverse all imported objects each time.
    """
    keep_memory()
    _freeze(len(sys.modules))


@functools.cache
def _freeze(modules: int) -> None:
    gc.freeze()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Make many objects without cycles. Collections would traverse all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
