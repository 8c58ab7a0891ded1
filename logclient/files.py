"""Directories and files that hold what users logged: ledger, capture, spool, verdict."""

from __future__ import annotations

import errno
import os
import stat

from logclient.errors import LedgerError

__all__ = ["open_regular", "own_directory"]

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file for reading, or with other `flags`; its descriptor.

    No link is followed, and nothing is waited for, as it would be at the end of a FIFO.

    Raises:
        OSError: it cannot be opened, or is something else; ``strerror`` says what.
    """
    kind = stat.S_IFMT(os.lstat(path).st_mode)
    if kind in _KINDS:
        raise OSError(errno.EINVAL, f"is {_KINDS[kind]}, not a regular file", os.fspath(path))
    # What is put in its place meanwhile is refused as well.
    fd = os.open(path, flags | _FLAGS | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
    return fd


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
