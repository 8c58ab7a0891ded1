"""What is kept between verifications so that Spark's JVM starts faster: an archive of its classes.

In a short verification the JVM is mostly busy with loading and checking some 10,000 classes. With class data
sharing it maps them from a file instead, the archive. `find` returns the archive for a Java and a PySpark.
`begin_writing` has one written by a process of its own (`write_archive`), which takes some 20 seconds.

An archive is code that is executed, and a damaged one kills the JVM. Therefore:

- the folder and the files must belong to this user, and nobody else may write to the folder;
- its name is a hash of everything that it depends on: the version of Java, the jars, the JVM's options;
- it appears under its name only when it is complete, and its size and hash are compared before each use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from logclient import files
from logclient.errors import LedgerError

__all__ = [
    "ENVIRONMENT", "OPTIONS", "Archive", "begin_writing", "find", "folder", "hash_file", "identify", "locked",
    "mark_tried",
]  # fmt: skip

ENVIRONMENT = "LOGCLIENT_CACHE"  # a folder for the archives, or "off"
FORMAT = 1  # of the facts

# A verification is short: one compiler and the simplest collector cost least. No statistics are written.
OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")

# Variables that add options to every JVM.
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

# What a container may use and uses, in the two versions of control groups.
_CGROUP = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)

MEMORY = 3 << 29  # bytes of memory and of disk that must be free before an archive is written
DISK = 1 << 30
AGAIN_S = 86_400  # seconds between two attempts to write an archive


class Archive(NamedTuple):
    """An archive, and how to start a JVM with it.

    Attributes:
        path: the file.
        facts: the file with its size, its hash and `options`.
        options: options of the JVM, with its class path, as Spark's own launcher chose them.
    """

    path: str
    facts: str
    options: list[str]

    def remove(self) -> None:
        """Delete the archive, because a JVM died with it. None is written for a day."""
        for path in (self.facts, self.path):
            with contextlib.suppress(OSError):
                os.unlink(path)
        with contextlib.suppress(OSError):
            mark_tried(*os.path.split(self.path.removesuffix(".jsa")))


def folder() -> str | None:
    """Return the private folder of archives, made if needed; None: there is none, or none is wanted."""
    chosen = os.environ.get(ENVIRONMENT, "")
    if chosen == "off" or os.name != "posix":
        return None
    if not chosen:
        cache = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(cache):
            cache = os.path.expanduser("~/.cache")
        chosen = os.path.join(cache, "logclient")
    if not os.path.isabs(chosen):
        return None
    try:
        files.private_directory(chosen, "cache")
        # Stricter than for logs: nobody else may even write by a group, because this is code.
        return None if os.stat(chosen).st_mode & 0o077 else chosen
    except (LedgerError, OSError):
        return None


def identify(java: str, version: str, jars: str) -> str:
    """Return the name of the archive for a Java and a folder of jars.

    Args:
        java: the program.
        version: what it says about its version.
        jars: the folder of Spark's jars.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(jars) as entries:
        found = [(entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries]
    about = [
        FORMAT, os.path.realpath(java), version, os.path.abspath(jars), sorted(found), OPTIONS,
        [os.environ.get(name) for name in _JAVA_VARIABLES],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]


def find(where: str, name: str) -> Archive | None:
    """Return the archive of this name if there is one and it is as it was written.

    Args:
        where: the folder.
        name: see `identify`.
    """
    path, facts = os.path.join(where, f"{name}.jsa"), os.path.join(where, f"{name}.json")
    try:
        with open(_open_own(facts), encoding="utf-8") as file:
            known = json.load(file)
        with open(_open_own(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != known["size"] or hash_file(file.fileno()) != known["hash"]:
                return None
        options = known["options"]
        if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
            return None
        os.utime(path)  # the latest use, for `prune`
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return Archive(path, facts, options)


def hash_file(descriptor: int) -> str:
    """Return the XXH64 of an open file, as hexadecimal digits.

    Raises:
        ValueError: it is empty.
    """
    from logclient._ext.hash import xxh64

    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as data:
        return f"{xxh64(data):016x}"


def _open_own(path: str) -> int:
    """Open a regular file that belongs to this user and that nobody else may change.

    Raises:
        OSError: it cannot be opened, or is another kind of file.
        ValueError: it belongs to another user, or others may write to it.
    """
    descriptor = files.open_regular(path)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(descriptor)
        raise ValueError(path)
    return descriptor


@contextlib.contextmanager
def locked(where: str) -> Iterator[bool]:
    """Take the lock of the folder for the time of the context, without waiting.

    Yields:
        Whether it was taken: False if another process is writing an archive.
    """
    import fcntl

    with open(os.path.join(where, "lock"), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def mark_tried(where: str, name: str) -> str:
    """Note that an archive of this name was tried now.

    Returns:
        The file that says so. It is to be removed after a success.
    """
    path = os.path.join(where, f"{name}.tried")
    with open(path, "w"):
        os.utime(path)
    return path


def begin_writing(where: str, name: str) -> None:
    """Have an archive written by a process of its own, which outlives this one and ends by itself.

    Nothing is done if another process writes one, if it failed within a day, or if memory or disk is short.

    Args:
        where: the folder.
        name: see `identify`.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - os.stat(os.path.join(where, f"{name}.tried")).st_mtime < AGAIN_S:
                return
        if shutil.disk_usage(where).free < DISK or _free_memory() < MEMORY:
            return
        with locked(where) as free:
            if not free:
                return
        # The shell ends at once, so that nobody has to wait for the process that it leaves. That process
        # inherits neither the terminal nor the folders of this one.
        paths = os.pathsep.join(filter(None, sys.path))
        subprocess.run(
            ["sh", "-c", '"$@" &', "sh", sys.executable, "-m", "logclient.verify.write_archive"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=where, env={**os.environ, ENVIRONMENT: where, "PYTHONPATH": paths}, start_new_session=True,
            check=False,
        )  # fmt: skip
    except OSError:
        return


def _free_memory() -> int:
    """Return the bytes of memory that this process and its children may still use."""
    free = []
    with contextlib.suppress(OSError, ValueError, KeyError), open("/proc/meminfo") as file:
        facts = dict(line.split(":", 1) for line in file)
        free.append(int(facts["MemAvailable"].split()[0]) << 10)
    for names in _CGROUP:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            limit, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in names)
            free.append(limit - used)
    return min(free, default=MEMORY)
