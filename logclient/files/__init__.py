"""Directories and files with log content, and the formats of ledgers and captures."""

from __future__ import annotations

import errno
import stat
from contextlib import suppress

from logclient.descriptors import lifted
from logclient.errors import LedgerError
from logclient.standard import os

__all__ = ["open_regular", "open_to_all", "private_directory"]

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and return its descriptor. No link is followed, and a FIFO is not waited for.

    With ``O_CREAT`` it is made if need be; only its owner may read it.

    Raises:
        OSError: it cannot be opened, or is not a regular file; ``strerror`` has the reason.
    """
    with suppress(FileNotFoundError):  # os.open says so
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        if kind in _KINDS:
            raise OSError(errno.EINVAL, f"is {_KINDS[kind]}, not a regular file", os.fspath(path))
    # A file that was replaced meanwhile is refused as well.
    fd = lifted(os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
    return fd


def private_directory(path: str | os.PathLike[str], what: str) -> str:
    """Make a directory with mode 0700, or check an existing one; return its name.

    Only this user may put files into it and choose its target: a link is followed when it belongs to this
    user or root. The errors say `what` it is for.

    Raises:
        LedgerError: it cannot be made, is no directory, belongs to another user, or others may write there.
    """
    name = os.fspath(path)
    try:
        os.makedirs(name, mode=0o700, exist_ok=True)
        link, found = os.lstat(name), os.stat(name)
    except OSError as error:
        raise LedgerError(f"{what}: {name}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise LedgerError(f"{what}: {name}: is not a directory")
    us = os.geteuid()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (us, 0):
        raise LedgerError(f"{what}: {name}: is a link that belongs to uid {link.st_uid}, not to us")
    if found.st_uid != us:
        raise LedgerError(f"{what}: {name}: belongs to uid {found.st_uid}, not to us")
    # The group we are in ourselves may write: many systems give each user one, and a umask of 002.
    others = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid != os.getegid() else 0)
    if found.st_mode & others:
        mode = stat.S_IMODE(found.st_mode)
        raise LedgerError(f"{what}: {name}: others may write there (mode {mode:04o}); chmod 700 it")
    return name


def open_to_all(path: str | os.PathLike[str]) -> bool:
    """Return whether every user of this machine may read or change a file; False if there is none."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return bool(mode & (stat.S_IROTH | stat.S_IWOTH))
