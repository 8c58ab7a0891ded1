"""Directories that hold what users logged: ledger, capture, spool. Ours alone, or not at all."""

from __future__ import annotations

import os
import stat

from logclient.errors import LedgerError

__all__ = ["own_directory"]


def own_directory(path: str | os.PathLike[str], what: str) -> str:
    """Make the directory (mode 0700), or check the one that is there; its name.

    Args:
        what: ``ledger``, ``capture`` ..., for the error's words.

    Raises:
        LedgerError: it cannot be made, is no directory, or belongs to another user.
    """
    name = os.fspath(path)
    try:
        os.makedirs(name, mode=0o700, exist_ok=True)
        found = os.stat(name)
    except OSError as error:
        raise LedgerError(f"{what}: {name}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise LedgerError(f"{what}: {name}: is not a directory")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise LedgerError(f"{what}: {name}: belongs to uid {found.st_uid}, not to us")
    return name
