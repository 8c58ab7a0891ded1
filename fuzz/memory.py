"""Allocations that fail on request, only in extensions built for fuzzing."""

from __future__ import annotations

import ctypes
import os

_path = os.environ.get("LOGCLIENT_FUZZ_MEMORY")
# RTLD_GLOBAL: the extensions, loaded later, find their allocator in it.
_lib = ctypes.CDLL(_path, mode=ctypes.RTLD_GLOBAL) if _path else None

CAN_FAIL = _lib is not None


def fail_at(n: int) -> None:
    """Let the n-th allocation from now on fail, once; 0: none."""
    if _lib is not None:
        _lib.lc_fail_at(n)
