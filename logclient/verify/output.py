"""The folder of a verdict, which only its owner can read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO

from logclient.errors import LedgerError

__all__ = ["create_file", "prepare_folder", "removed_on_error", "write_text"]


def prepare_folder(out: str | os.PathLike[str] | None) -> tuple[str, list[str]]:
    """Make the folder for a verdict, and remove the violations of an earlier one.

    Returns:
        The absolute path, empty if `out` is None; and the folders that were made, inner ones first.

    Raises:
        LedgerError: the folder cannot be made or written to.
    """
    if out is None:
        return "", []
    folder = os.path.abspath(out)
    faults = os.path.join(folder, "violations")
    made = [path for path in (faults, folder) if not os.path.lexists(path)]
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.makedirs(faults, mode=0o700, exist_ok=True)
        os.chmod(faults, 0o700)
        for name in os.listdir(faults):  # only our own files
            if name.endswith(".parquet"):
                os.unlink(os.path.join(faults, name))
    except OSError as error:
        raise LedgerError(f"out: {folder}: {error.strerror}") from error
    return folder, made


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


def create_file(path: str) -> IO[bytes]:
    """Create a file that only its owner may read, in place of an existing one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return open(os.open(path, flags, 0o600), "wb")


def write_text(path: str, text: str) -> None:
    """Write a whole file, as UTF-8.

    Raises:
        LedgerError: it cannot be written.
    """
    try:
        with create_file(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise LedgerError(f"out: {path}: {error.strerror}") from error
