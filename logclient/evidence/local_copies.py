"""Parts of objects that a process has read, kept on its machine.

Small tables are fetched whole. Of large files a process keeps the blocks that it read last.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from logclient.evidence import storage

__all__ = ["fetched", "forget", "read_into"]

_BLOCK = 1 << 20  # bytes
_BLOCKS = 32  # in the cache of a process

_fetched: dict[str, IO[bytes]] = {}
_fetched_by = [0, ""]  # process, folder


@contextlib.contextmanager
def fetched(place: str, what: str) -> Iterator[IO[bytes]]:
    """Provide a local file with the content of a place, for reading.

    An object is copied once in a process, to a file without a name, which ends with the process.
    The files of one folder are kept until a file of another folder is wanted.
    """
    if not storage.is_url(place):
        with open(place, "rb") as file:
            yield file
        return
    folder = storage.folder_of(place)
    if _fetched_by != [os.getpid(), folder]:
        forget()
        _fetched_by[:] = [os.getpid(), folder]
    if place not in _fetched:
        copy = tempfile.TemporaryFile()  # noqa: SIM115
        with storage.open_file(place, what) as source:
            while data := source.read(_BLOCK):
                copy.write(data)
        copy.flush()
        _fetched[place] = copy
    found = _fetched[place]
    found.seek(0)
    yield found


def forget() -> None:
    """Close the local copies. Arrays that are mapped from them stay valid."""
    for file in _fetched.values():
        file.close()
    _fetched.clear()
    _blocks.clear()


_blocks: dict[tuple[str, int], bytes] = {}  # the least recently used first


def read_into(place: str, what: str, at: int, out: npt.NDArray[Any]) -> None:
    """Read a range of the values of a file into an array.

    Small ranges of an object are read by the block, because each request takes as long as a block.

    Args:
        place: of the file.
        what: for error messages.
        at: number of the first value.
        out: contiguous; filled.

    Raises:
        EOFError: the file ends before.
    """
    begin, size = at * out.itemsize, out.nbytes
    view = out.view(np.uint8)
    if not storage.is_url(place):
        done = 0
        with open(place, "rb", buffering=0) as file:
            file.seek(begin)
            while done < size and (n := file.readinto(view[done:].data)):
                done += n
        if done < size:
            raise EOFError(f"{place}: {done} bytes at {begin} where {size} were written")
        return
    if size >= _BLOCK:
        data = storage.read_at(place, what, begin, size)
    else:
        first, last = begin // _BLOCK, (begin + max(size, 1) - 1) // _BLOCK
        data = b"".join(_block(place, what, i) for i in range(first, last + 1))
        data = data[begin - first * _BLOCK :][:size]
    if len(data) != size:
        raise EOFError(f"{place}: {len(data)} bytes at {begin} where {size} were written")
    view[:] = np.frombuffer(data, np.uint8)


def _block(place: str, what: str, number: int) -> bytes:
    key = place, number
    data = _blocks.pop(key, None)
    if data is None:
        data = storage.read_at(place, what, number * _BLOCK, _BLOCK)
        while len(_blocks) >= _BLOCKS:
            del _blocks[next(iter(_blocks))]
    _blocks[key] = data
    return data
