"""The daemon that forks Spark's Python workers, with their imports made before the first fork.

PySpark's own daemon imports nothing, so each worker spends half a second on numpy, pyarrow and our modules.
Spark starts this one instead (``spark.python.daemon.module``): ``python -m logclient.verify.daemon MODULE``.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

__all__ = ["prepare"]

_MODULES = (
    "logclient.verify.compare",
    "logclient.verify.gather",
    "logclient.verify.ledger_pack",
    "logclient.verify.stages",
)


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
    gc.disable()
    for module in (worker, *_MODULES):
        importlib.import_module(module)
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    prepare(sys.argv[1])
    from pyspark import daemon

    daemon.manager()
