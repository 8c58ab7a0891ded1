"""Directories and files that hold what users logged: ledger, capture, spool, verdict."""

from __future__ import annotations

import errno
import os
import stat

from logclient.errors import LedgerError

__all__ = ["open_regular", "open_to_all", "own_directory"]

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

    Nobody but us may put files into it, and nobody else may choose where it is: a link is followed when
    it is ours or root's.

    Args:
        what: ``ledger``, ``capture`` ..., for the error's words.

    Raises:
        LedgerError: it cannot be made, is no directory, belongs to another user, or others may write there.
    """
    name = os.fspath(path)
    try:
        os.makedirs(name, mode=0o700, exist_ok=True)
        place, found = os.lstat(name), os.stat(name)
    except OSError as error:
        raise LedgerError(f"{what}: {name}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise LedgerError(f"{what}: {name}: is not a directory")
    if hasattr(os, "geteuid"):
        us = os.geteuid()
        if stat.S_ISLNK(place.st_mode) and place.st_uid not in (us, 0):
            raise LedgerError(f"{what}: {name}: is a link that belongs to uid {place.st_uid}, not to us")
        if found.st_uid != us:
            raise LedgerError(f"{what}: {name}: belongs to uid {found.st_uid}, not to us")
        # The group we are in ourselves may write: many systems give each user one, and a umask of 002.
        others = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid != os.getegid() else 0)
        if found.st_mode & others:
            mode = stat.S_IMODE(found.st_mode)
            raise LedgerError(f"{what}: {name}: others may write there (mode {mode:04o}); chmod 700 it")
    return name


def open_to_all(path: str | os.PathLike[str]) -> bool:
    """Whether every user of the machine may read or change the file, by its own mode; False for none."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return hasattr(os, "geteuid") and bool(mode & (stat.S_IROTH | stat.S_IWOTH))
