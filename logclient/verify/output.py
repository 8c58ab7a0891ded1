"""The folder of a verdict, which only its owner can read, or the URL of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO

from logclient.errors import LedgerError
from logclient.verify import storage

__all__ = ["create_file", "prepare_folder", "removed_on_error", "violation_files", "write_text"]

_VERDICT = ("verdict.json", "report.html")


def prepare_folder(out: storage.Folder | None) -> tuple[str, list[str]]:
    """Make the folder for a verdict, and remove an earlier one, without which its violations mean nothing.

    Returns:
        The place, empty if `out` is None; and the folders that were made, inner ones first.

    Raises:
        LedgerError: the folder cannot be made or written to.
        ConfigError: the URL has a secret or an unknown option.
    """
    if out is None:
        return "", []
    folder = storage.resolve(out, "out")
    faults = storage.join(folder, "violations")
    if storage.is_url(folder):
        storage.check_writable(folder, "out")
        for name in _VERDICT:
            storage.remove(storage.join(folder, name), "out")
        for name in violation_files(folder):
            storage.remove(storage.join(faults, name), "out")
        return folder, []
    made = [path for path in (faults, folder) if not os.path.lexists(path)]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.makedirs(faults, mode=0o700, exist_ok=True)
        os.chmod(faults, 0o700)
        for name in _VERDICT:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        for name in os.listdir(faults):  # only our own files
            if name.endswith(".parquet"):
                os.unlink(os.path.join(faults, name))
    except OSError as error:
        raise LedgerError(f"out: {folder}: {error.strerror}") from error
    return folder, made


def violation_files(folder: str) -> list[str]:
    """Return the names of the Parquet files of a verdict.

    Raises:
        LedgerError, OSError: the folder cannot be read.
    """
    faults = storage.join(folder, "violations")
    if not storage.is_url(folder):
        return sorted(name for name in os.listdir(faults) if name.endswith(".parquet"))
    found = storage.list_names(faults, "out")
    return sorted(name for name in found if name.endswith(".parquet"))


@contextlib.contextmanager
def removed_on_error(made: list[str]) -> Iterator[None]:
    """Remove these folders, inner ones first, if the block fails. Folders with files stay."""
    try:
        yield
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        raise


@contextlib.contextmanager
def create_file(place: str) -> Iterator[IO[bytes]]:
    """Create a file that only its owner may read, in place of an existing one.

    Nothing of it is left behind when the block fails.
    """
    if not storage.is_url(place):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
    with storage.create(place, "out") as file:
        yield file


def write_text(place: str, text: str) -> None:
    """Write a whole file, as UTF-8.

    Raises:
        LedgerError: it cannot be written.
    """
    try:
        with create_file(place) as file:
            file.write(text.encode())
    except LedgerError:
        raise
    except OSError as error:
        raise LedgerError(f"out: {place}: {error.strerror}") from error
