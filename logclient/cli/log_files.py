"""Log files for ``logclient send``: lines of plain or compressed text, but no binary data."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from logclient.errors import MissingExtra

STDIN = "-"
_BUFFER = 1 << 16
_HEAD = 8192  # bytes that are examined at the beginning of a file
_MAGIC = 10  # of them, those that tell a compression


_COMPRESSED = (
    ("gzip", rb"\x1f\x8b\x08", ("gzip",)),
    ("bzip2", rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", ("bz2",)),
    ("xz", rb"\xfd7zXZ\0", ("lzma",)),
    # The first one is in Python 3.14 and later.
    ("zstd", rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", ("compression.zstd", "backports.zstd")),
)
_BINARY = (
    (rb"PK\x03\x04", "a zip archive"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (rb"(?s).{257}ustar", "a tar archive"),
    (rb"\x04\x22\x4d\x18", "compressed with lz4"),
    (rb"LPKSHHRH", "a journal of systemd (journalctl -o json writes lines for --format ndjson)"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16 text (iconv -f utf-16 -t utf-8 makes lines of it)"),
)
# Control characters that logs do not contain: all except bell to carriage return, and escape.
_CONTROLS = bytes(range(7)) + bytes(range(14, 27)) + bytes(range(28, 32)) + b"\x7f"


def check(name: str) -> int | None:
    """Check that a file can be read and is text; return its stored size in bytes, None for no regular file.

    Standard input and named pipes are not touched: opening and closing a pipe would end its writer.
    """
    mode = 0 if name == STDIN else os.stat(name).st_mode
    if stat.S_ISREG(mode):
        with LogFile(name) as file:
            return file.size
    if mode and not stat.S_ISFIFO(mode):
        io.FileIO(name).close()  # fails for a directory; does not wait for a terminal
    return None


def display_name(name: str) -> str:
    return "standard input" if name == STDIN else name


class _Stored(io.FileIO):
    """A file whose first bytes come together: a pipe may bring them one by one."""

    begun = False

    def readinto(self, buffer: Any) -> int | None:
        n = super().readinto(buffer)
        begun, self.begun = self.begun, True
        while n and not begun and n < _MAGIC and b"\n" not in buffer[:n].tobytes():
            more = super().readinto(buffer[n:])
            if not more:
                break
            n += more
        return n


class LogFile:
    """An open file with lines of text, decompressed while it is read. A context manager."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Not sys.stdin: a thread that waits in it at exit would abort the interpreter.
        self._raw = _Stored(0, closefd=False) if name == STDIN else _Stored(name)
        try:
            self._stored: io.BufferedReader[io.FileIO] = io.BufferedReader(self._raw, _BUFFER)
            self._file: io.BufferedReader[Any] = self._stored
            status = os.fstat(self._raw.fileno())
            # Bytes as stored, before decompression; None: not a regular file.
            self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
            for method, pattern, modules in _COMPRESSED:
                if re.match(pattern, self._head()):
                    inflated = _Inflated(_library(modules).open(self._stored), method, name)
                    self._file = io.BufferedReader(inflated, _BUFFER)
                    break
            found = _recognize_binary(self._head())
            if found:
                raise OSError(errno.EINVAL, f"not text, but {found}", name)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and error.filename is None:
                error.filename = name
            raise

    def _head(self) -> bytes:
        return self._file.peek(_HEAD)[:_HEAD]

    def position(self) -> int:
        """Return the number of stored bytes that were read, from any thread; 0: not a regular file."""
        try:
            return self._stored.tell() if self.size is not None else 0
        except ValueError:  # closed
            return 0

    def lines(self, longest: int) -> Iterator[tuple[int, bytes]]:
        """Yield a number from 1 and a line without its end; what is beyond `longest` bytes is skipped."""
        number = 0
        while True:
            raw = self._file.readline(longest)
            if not raw:
                return
            number += 1
            if raw.endswith(b"\n"):
                yield number, raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
                continue
            yield number, raw
            while len(raw) == longest and not raw.endswith(b"\n"):
                raw = self._file.readline(longest)

    def close(self) -> None:
        self._raw.close()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _library(modules: tuple[str, ...]) -> Any:
    """Import the first of some modules that is installed."""
    for module in modules:
        try:
            return import_module(module)
        except ImportError:
            pass
    raise MissingExtra(modules[-1], "zstd")


class _Inflated(io.RawIOBase):
    """A decompressed stream that yields all bytes before damaged data, and then raises the error."""

    def __init__(self, stream: Any, method: str, name: str) -> None:
        self._stream = stream
        self._method = method
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data: bytes = self._stream.read1(len(buffer))
        except EOFError:
            raise OSError(errno.EIO, f"ends in the middle of its {self._method} data", self._name) from None
        except Exception as error:  # each library has errors of its own
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise OSError(errno.EIO, f"its {self._method} data is damaged", self._name) from error
        buffer[: len(data)] = data
        return len(data)


def _recognize_binary(head: bytes) -> str:
    """Describe binary data by the beginning of its file; empty: text, in whatever encoding."""
    for pattern, description in _BINARY:
        if re.match(pattern, head):
            return description
    controls = len(head) - len(head.translate(None, _CONTROLS))
    # One random byte in ten is a control character; real logs have only a few. The limit is one in twenty.
    return "binary data" if controls > 4 + len(head) // 20 else ""
