"""The folder of a verdict, which only its owner can read, or the URL of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING

from logclient.errors import LedgerError, MissingExtra
from logclient.evidence import storage

if TYPE_CHECKING:
    from logclient.verify.verdict import Verdict


class UnwrittenVerdict(LedgerError):
    """A failure to write a verdict. Nothing of it is left in the folder."""

    def __init__(self, reason: str, verdict: Verdict) -> None:
        super().__init__(reason)
        self.verdict = verdict


def remove_verdict(out: storage.Folder | None) -> None:
    """Remove the verdict of an earlier run, so that nobody takes it for that of a run that fails."""
    if out is not None:
        folder = storage.resolve(out, "out")
        if storage.is_url(folder):
            storage.open_system(folder, "out")  # an error says why this process cannot read there
        with errors_named(folder):
            _clear(folder)


def prepare_folder(out: storage.Folder | None) -> tuple[str, list[str]]:
    """Make the folder for a verdict; return its place (none: empty) and what was made, inner ones first."""
    if out is None:
        return "", []
    if find_spec("jinja2") is None:
        raise MissingExtra("jinja2", "verify")
    folder = storage.resolve(out, "out")
    if storage.is_url(folder):
        storage.check_writable(folder, "out")
        return folder, []
    faults = storage.join(folder, "violations")
    made = [path for path in (faults, folder) if not os.path.lexists(path)]
    with errors_named(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.makedirs(faults, mode=0o700, exist_ok=True)
        os.chmod(faults, 0o700)
    return folder, made


def _clear(folder: str) -> None:
    """Remove a verdict, and no other files."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in ("verdict.json", "report.html"):
            storage.remove(storage.join(folder, name), "out")
        for name in violation_files(folder):
            storage.remove(storage.join(folder, "violations", name), "out")


def violation_files(folder: str) -> list[str]:
    """Return the names of the Parquet files of a verdict."""
    faults = storage.join(folder, "violations")
    return sorted(name for name in storage.list_names(faults, "out") if name.endswith(".parquet"))


@contextlib.contextmanager
def removed_on_error(made: list[str]) -> Iterator[None]:
    """Remove these folders, inner ones first, if the block fails. Folders with files stay."""
    try:
        yield
    except BaseException:
        _remove_folders(made)
        raise


def _remove_folders(made: list[str]) -> None:
    for path in made:
        with contextlib.suppress(OSError):
            os.rmdir(path)


@contextlib.contextmanager
def errors_named(folder: str, what: str = "out") -> Iterator[None]:
    """Turn an OSError into a LedgerError that names the folder of the verdict, or of something else."""
    try:
        yield
    except LedgerError:
        raise
    except OSError as error:
        raise LedgerError(f"{what}: {folder}: {error.strerror or error}") from error


def discard(folder: str, made: list[str]) -> None:
    """Remove a verdict that could not be written as a whole, as far as that is possible."""
    with contextlib.suppress(OSError):
        _clear(folder)
    _remove_folders(made)


def create_file(place: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Create a file in place of an existing one, as `storage.create` does."""
    if not storage.is_url(place):
        storage.remove(place, "out")
    return storage.create(place, "out")


def write_text(place: str, text: str) -> None:
    """Write a whole file, as UTF-8."""
    with errors_named(place), create_file(place) as file:
        file.write(text.encode())


def replace(place: str, data: bytes, what: str) -> None:
    """Write a file that readers see whole, in place of an older one."""
    if storage.is_url(place):
        with storage.open_new(place, what) as file:  # the object changes when it is closed
            file.write(data)
        return
    folder, name = os.path.split(place)
    fresh = os.path.join(folder, f".{name}-{os.urandom(8).hex()}")  # readers of tables skip such names
    with storage.create(fresh, what) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.replace(fresh, place)
