"""A pytest plugin (``-p tests.project.like_windows``): Python as it is on Windows, as far as logclient looks.

For the extensions built with LOGCLIENT_LIKE=windows; see test_fallbacks.py. What the standard library
needs for itself it has taken before.
"""

import os
import select
import selectors  # noqa: F401  (keeps the poll it has found)
import subprocess  # noqa: F401
import sys

GONE = [
    "eventfd", "fork", "geteuid", "register_at_fork", "writev", "O_CLOEXEC", "O_NOFOLLOW",
]  # fmt: skip

BINARY = 1 << 30
"""Stands for O_BINARY; no flag of this system."""


def _open(path: "str | os.PathLike[str]", flags: int, mode: int = 0o777, **more: int) -> int:
    if sys._getframe(1).f_globals.get("__name__", "").startswith("logclient."):
        assert flags & BINARY, f"{path} is opened as text"
    return _real_open(path, flags & ~BINARY, mode, **more)


def _unlink(path: "str | os.PathLike[str]", **more: int) -> None:
    if sys._getframe(1).f_globals.get("__name__", "").startswith("logclient."):
        mine = os.stat(path)
        for name in os.listdir("/proc/self/fd"):
            try:
                other = os.fstat(int(name))
            except OSError:  # the listing's own
                continue
            assert not os.path.samestat(mine, other), f"{path} is removed while it is open"
    _real_unlink(path, **more)


_real_open, _real_unlink = os.open, os.unlink
os.unlink = _unlink
os.open = _open  # type: ignore[assignment]
os.O_BINARY = BINARY  # type: ignore[attr-defined]
for _name in GONE:
    if hasattr(os, _name):
        delattr(os, _name)
if hasattr(select, "poll"):
    del select.poll
sys.modules["fcntl"] = None  # type: ignore[assignment]
