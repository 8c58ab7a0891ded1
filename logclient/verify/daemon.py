"""The daemon that forks Spark's Python workers, with their imports made before the first fork.

PySpark's own daemon imports nothing, so each worker spends half a second on numpy, pyarrow and our modules.
Spark starts this one instead (``spark.python.daemon.module``): ``python -m logclient.verify.daemon MODULE``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import sys
from collections.abc import Iterator

__all__ = ["freeze_imports", "keep_memory", "prepare", "without_collection"]

# Of glibc's mallopt().
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_ARRAY = 32 << 20  # it maps larger arrays by themselves, and unmaps them

_MODULES = (
    "logclient.verify.judge",
    "logclient.verify.arrival_rows",
    "logclient.verify.ledger_rows",
    "logclient.verify.runners",
)


def keep_memory(size: int = 256 << 20) -> bool:
    """Keep memory that is freed for the next arrays of this process and its children.

    By default glibc gives large arrays back. For each of the next ones the kernel then clears pages, which
    takes a sixth of the CPU of a comparison.

    Args:
        size: bytes that are kept at most.

    Returns:
        Whether that is possible: only with glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    array = min(size // 2, _MOST_ARRAY)
    return bool(mallopt(_M_MMAP_THRESHOLD, array) and mallopt(_M_TRIM_THRESHOLD, size))


def freeze_imports() -> None:
    """Exempt all imported objects from garbage collection, again after each task that imported some.

    PySpark runs a collection after each task and would traverse all of them each time.
    """
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


def prepare(worker: str) -> None:
    """Import what workers need, and exempt it from garbage collection, which would copy its pages.

    There is none during the imports either: it would take a third of their time.

    Args:
        worker: the module that the workers will run.
    """
    # No library may start threads, because a fork does not copy them: OpenBLAS for its work, and jemalloc.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    keep_memory()
    gc.disable()
    for module in (worker, *_MODULES):
        importlib.import_module(module)
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    prepare(sys.argv[1])
    from pyspark import daemon

    daemon.manager()
