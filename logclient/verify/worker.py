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
_MOST_ARRAY = 32 << 20  # bytes: it maps larger arrays by themselves, and unmaps them
_KEPT = 256 << 20  # bytes


@functools.cache
def keep_memory() -> bool:
    """Keep memory that is freed for the next arrays of this process.

    For arrays that glibc gives back the kernel clears pages again: a sixth of the CPU of a comparison.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MOST_ARRAY) and mallopt(_M_TRIM_THRESHOLD, _KEPT))


def prepare() -> None:
    """Prepare this worker for a task, after the imports of the task.

    PySpark runs a garbage collection after each task, which would traverse all imported objects each time.
    """
    keep_memory()
    _freeze(len(sys.modules))


def prepare_in_task() -> None:
    """Prepare this worker, but not a driver or a program that reads in its own process."""
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        prepare()


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
