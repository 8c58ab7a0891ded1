"""Folders and files of a verification, which are local paths or objects behind a URL.

A *place* is the text by which everything here knows a folder or a file: an absolute path, or a URL such as
``s3://bucket/prefix``. A place goes to other processes as it is, and each process opens it with a file system
object of its own.

Paths go straight to the operating system. URLs go to ``pyarrow.fs``, which is imported with the first one.
Amazon S3 and servers with its interface are tested. Other schemes that pyarrow opens are passed through.

Credentials come from the environment or the platform. A URL never has any, so a place may be shown and saved.

A writer of an object that fails may leave a part of it behind. Objects therefore have unique names, and a
reader takes only the names that a writer returned.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from logclient.errors import ConfigError, LedgerError
from logclient.evidence.urls import redact_url
from logclient.files import open_regular

__all__ = [
    "Folder",
    "Found",
    "base_name",
    "check_reachable",
    "check_writable",
    "create",
    "expand",
    "fetch",
    "folder_named",
    "folder_of",
    "is_pattern",
    "is_url",
    "join",
    "list_folders",
    "list_names",
    "open_buffered",
    "open_file",
    "open_new",
    "read_at",
    "read_exactly",
    "remove",
    "remove_all",
    "resolve",
    "resolve_all",
    "size_of",
    "staging",
]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SECRET = re.compile(r"key|secret|token|passw|sig|cred|auth", re.IGNORECASE)
_S3_OPTIONS = ("region", "endpoint_override", "scheme")
_GLOB = re.compile(r"[*\[]")
_COPY_BYTES = 4 << 20
_BUFFER = 1 << 20

# The first request to a server is tried for at most 11 seconds. Later ones are given more time, because the
# server is known to answer, and a busy one may be slow.
_FIRST = {"connect_timeout": 3.0, "request_timeout": 3.0}
_LATER = {"connect_timeout": 5.0, "request_timeout": 30.0}
_FIRST_ATTEMPTS, _LATER_ATTEMPTS = 3, 6

Folder = str | os.PathLike[str]


class Found(NamedTuple):
    """One entry of a folder."""

    name: str  # without its folder
    size: int  # -1: `size_of` tells
    regular: bool  # a file, no link or FIFO
    folder: bool = False  # a link to a folder, which is not followed


# -- names


def is_url(place: str) -> bool:
    """Return whether a place is a URL."""
    return _URL.match(place) is not None


def resolve(given: Folder, what: str) -> str:
    """Return the place that a user means.

    Args:
        given: a path or a URL.
        what: ``ledger``, ``capture``, ``work`` or ``out``, for error messages.

    Raises:
        ConfigError: the URL has a secret or an unknown option, or is none.
    """
    text = os.fspath(given)
    if "\0" in unquote(text):
        raise ConfigError(f"{what}: {redact_url(text)[:100]}: it has a zero byte, which no path has")
    if not is_url(text):
        return os.path.abspath(text)
    try:
        split = urlsplit(text)
    except ValueError as error:
        raise ConfigError(f"{what}: {redact_url(text)[:100]}: it is not a URL: {error}") from None
    scheme = split.scheme.lower()
    shown = f"{scheme}://{split.netloc.rpartition('@')[2]}{split.path}"
    if scheme == "file":
        if split.netloc not in ("", "localhost"):
            raise ConfigError(f"{what}: {shown}: a file URL has no host: file:///path")
        return os.path.abspath(unquote(split.path))
    user, at, _ = split.netloc.rpartition("@")
    if at and (":" in user or scheme in ("s3", "s3a", "s3n", "gs", "gcs")):
        raise ConfigError(f"{what}: {shown}: a URL may have no credentials: give them in the environment")
    for name, _ in parse_qsl(split.query, keep_blank_values=True):
        if _SECRET.search(name):
            raise ConfigError(f"{what}: {shown}: the option {name[:40]} may be a secret: use the environment")
        if scheme in ("s3", "s3a", "s3n") and name not in _S3_OPTIONS:
            raise ConfigError(
                f"{what}: {shown}: no option {name[:40]!r}: there are {', '.join(_S3_OPTIONS)}"
            )
    if split.fragment:
        raise ConfigError(f"{what}: {shown}: a URL has no fragment: write %23 for #")
    scheme = "s3" if scheme in ("s3a", "s3n") else scheme
    query = f"?{split.query}" if split.query else ""
    return f"{scheme}://{split.netloc}{split.path.rstrip('/')}{query}"


def join(place: str, *names: str) -> str:
    """Return the place of a file or folder in a folder."""
    if not is_url(place):
        return os.path.join(place, *names)
    head, mark, query = place.partition("?")
    return "/".join([head.rstrip("/"), *(quote(name) for name in names if name)]) + mark + query


def folder_of(place: str) -> str:
    """Return the folder of a file."""
    if not is_url(place):
        return os.path.dirname(place)
    head, mark, query = place.partition("?")
    return head.rpartition("/")[0] + mark + query


def base_name(place: str) -> str:
    """Return the last part of a place."""
    if not is_url(place):
        return os.path.basename(place)
    return unquote(place.partition("?")[0].rpartition("/")[2])


def is_pattern(place: str) -> bool:
    """Return whether a place may stand for several folders."""
    return _GLOB.search(place) is not None


def resolve_all(given: Folder | Sequence[Folder], what: str) -> list[str]:
    """Return the places and patterns that a user means.

    Raises:
        ConfigError: as of `resolve`; or no folder is given.
    """
    several = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not several:
        raise ConfigError(f"{what}: no folder is given")
    return [resolve(one, what) for one in several]


def expand(given: Folder | Sequence[Folder], what: str) -> list[str]:
    """Return the folders that a user means, each once.

    Args:
        given: paths, URLs and patterns with ``*`` and ``[...]``; ``**`` is any number of folders.
        what: for error messages.

    Raises:
        LedgerError: a pattern matches no folder, or a server does not answer.
        ConfigError: a URL has a secret or an unknown option, or there is no folder at all.
    """
    places: list[str] = []
    for place in resolve_all(given, what):
        if not is_pattern(place) or (not is_url(place) and os.path.isdir(place)):
            places.append(place)
            continue
        if is_url(place):
            found = _matching(place, what)
        else:
            found = sorted(x for x in glob.glob(place, recursive=True) if os.path.isdir(x))
        if not found:
            raise LedgerError(f"{what}: {place} matches no folder")
        places += found
    return list(dict.fromkeys(places))


def _matching(pattern: str, what: str) -> list[str]:
    """Return the folders behind a URL with a pattern."""
    head, mark, query = pattern.partition("?")
    parts = head.split("/")
    fixed = next(i for i, part in enumerate(parts) if _GLOB.search(part))
    if fixed < 3:
        raise ConfigError(f"{what}: {pattern}: the name of a bucket cannot be a pattern")
    base = "/".join(parts[:fixed]) + mark + query
    wanted = re.compile("/".join(map(_segment_rule, parts[fixed:])))
    folders: set[str] = set()
    for relative, _ in list_folders(base, what):
        names = relative.split("/") if relative else []
        folders |= {"/".join(names[:n]) for n in range(1, len(names) + 1)}
    return [join(base, *name.split("/")) for name in sorted(folders) if wanted.fullmatch(name)]


def _segment_rule(part: str) -> str:
    if part == "**":
        return ".*"
    rule = ""
    for piece in re.split(r"(\*|\[!?[^\]/]+\])", unquote(part)):
        if piece == "*":
            rule += "[^/]*"
        elif piece.startswith("[") and piece.endswith("]"):
            rule += piece.replace("[!", "[^", 1)
        else:
            rule += re.escape(piece)
    return rule


# -- file systems


class _Remote(NamedTuple):
    """A server's file system, and the path in it that a URL without a path has."""

    system: Any
    base: str


def _split(place: str) -> tuple[str, str, str]:
    """Return the root of a URL, its query and its path."""
    split = urlsplit(place)
    return f"{split.scheme}://{split.netloc}", split.query, unquote(split.path).strip("/")


_State = tuple[int, tuple[tuple[str, str], ...]]


def _state() -> _State:
    """Return what a file system object depends on besides its URL.

    One that was made before a fork must not be used after it, nor one with other credentials.
    """
    return os.getpid(), tuple(sorted(x for x in os.environ.items() if x[0].startswith("AWS_")))


@functools.lru_cache(maxsize=64)
def _connect(root: str, query: str, first: bool, state: _State) -> _Remote:
    """Make a file system object for a process and its environment, see `_state`."""
    from pyarrow import fs

    scheme, _, where = root.partition("://")
    if scheme != "s3":
        system, base = fs.FileSystem.from_uri(f"{root}/{'?' if query else ''}{query}")
        return _Remote(system, base.rstrip("/"))
    options = dict(parse_qsl(query))
    environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    endpoint = options.get("endpoint_override") or environment
    protocol, mark, address = endpoint.rpartition("://")
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region and not endpoint:
        region = fs.resolve_s3_region(where)
    named: dict[str, Any] = {"region": region} if region else {}
    if endpoint:
        named |= {"endpoint_override": address.rstrip("/"), "scheme": protocol if mark else "https"}
    if "scheme" in options:
        named["scheme"] = options["scheme"]
    attempts = _FIRST_ATTEMPTS if first else _LATER_ATTEMPTS
    system = fs.S3FileSystem(
        **named,
        **(_FIRST if first else _LATER),
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts),
        allow_delayed_open=True,  # one request for a small object, instead of three
    )
    return _Remote(system, where)


_reached: set[tuple[str, str, _State]] = set()


def _open(place: str, what: str) -> tuple[Any, str]:
    """Return a file system, and the path of a place in it.

    The first call for a server checks that it answers.
    """
    root, query, path = _split(place)
    try:
        state = _state()
        if (root, query, state) not in _reached:
            _probe(root, query, path)
            _reached.add((root, query, state))
        remote = _connect(root, query, False, state)
    except Exception as error:
        raise _failure(error, place, what) from error
    return remote.system, f"{remote.base}/{path}".strip("/") if remote.base else f"/{path}"


def _probe(root: str, query: str, path: str) -> None:
    """Ask for what is below a name that has nothing below it.

    A listing is the request whose answer always has a reason: that of a HEAD request has no body.
    """
    from pyarrow import fs

    remote = _connect(root, query, True, _state())
    with contextlib.suppress(FileNotFoundError):
        remote.system.get_file_info(fs.FileSelector(f"{remote.base}/{path}/.logclient"))


_REASONS = (
    ("NO_SUCH_BUCKET", "there is no such bucket"),
    ("INVALID_ACCESS_KEY_ID", "the access key is not known"),
    ("InvalidAccessKeyId", "the access key is not known"),
    ("SIGNATURE_DOES_NOT_MATCH", "the secret key is wrong"),
    ("SignatureDoesNotMatch", "the secret key is wrong"),
    ("ExpiredToken", "the token has expired"),
    ("EXPIRED_TOKEN", "the token has expired"),
    ("RequestExpired", "the token has expired"),
    ("InvalidToken", "the token is wrong"),
    ("INVALID_CLIENT_TOKEN_ID", "the token is wrong"),
    ("ACCESS_DENIED", "access is denied"),
    ("Could not resolve host", "its host has no address"),
    ("Could not connect", "no server answers"),
    ("Timeout was reached", "the server does not answer in time"),
)


def _failure(error: BaseException, place: str, what: str) -> LedgerError | ConfigError:
    """Return the error for a failed request, in one line."""
    if isinstance(error, LedgerError | ConfigError):
        return error
    if isinstance(error, FileNotFoundError):
        return LedgerError(f"{what}: {place}: there is no such object")
    text = " ".join(str(error).split())
    if type(error).__name__ in ("ArrowInvalid", "ArrowNotImplementedError"):
        return ConfigError(f"{what}: {redact_url(place)}: pyarrow cannot open it: {text[:200]}")
    reason = next((words for mark, words in _REASONS if mark in text), "")
    detail = text.partition(" operation: ")[2] or text
    detail = re.sub(r" ?\(Request ID: [^)]*\)", "", detail)[:200]
    return LedgerError(f"{what}: {place}: {reason}{': ' if reason and detail else ''}{detail}")


@contextlib.contextmanager
def _errors_named(place: str, what: str) -> Iterator[None]:
    """Turn errors of a file system into a line that names the place.

    An object that is missing stays a FileNotFoundError, as with a path.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if "No response body" in str(error):  # of a HEAD request: find out the reason
            root, query, path = _split(place)
            try:
                _probe(root, query, path)
            except Exception as reason:
                raise _failure(reason, place, what) from error
        raise _failure(error, place, what) from error


def check_reachable(place: str, what: str) -> None:
    """Check that this process can read a folder.

    Raises:
        LedgerError: it cannot.
    """
    if is_url(place):
        _open(place, what)
    elif not os.path.isdir(place):
        raise LedgerError(f"{what}: {place}: No such directory")


def check_writable(place: str, what: str) -> None:
    """Check that objects can be written to a URL and deleted again.

    Raises:
        LedgerError: they cannot.
    """
    system, path = _open(place, what)
    name = f"{path}/.logclient-{os.urandom(8).hex()}"
    with _errors_named(place, what):
        with system.open_output_stream(name) as file:
            file.write(b"\n")
        system.delete_file(name)


# -- listing


def list_folders(place: str, what: str, missing: bool = False) -> Iterator[tuple[str, list[Found]]]:
    """Find everything below a folder. Links to folders are not followed.

    Args:
        place: of the folder.
        what: for error messages.
        missing: whether there may be nothing behind a URL.

    Yields:
        The relative name of a folder, with ``/`` between its parts and empty for the folder itself, and its
        entries except for folders.

    Raises:
        LedgerError: the folder cannot be read.
    """
    if is_url(place):
        yield from _list_objects(place, what, missing)
    else:
        yield from _list_local(place, what)


def _list_local(place: str, what: str) -> Iterator[tuple[str, list[Found]]]:
    pending = [""]
    while pending:
        relative = pending.pop()
        here: list[Found] = []
        folders: list[str] = []
        try:
            with os.scandir(os.path.join(place, relative) if relative else place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    else:
                        regular = entry.is_file(follow_symlinks=False)
                        here.append(Found(entry.name, -1, regular, not regular and entry.is_dir()))
        except OSError as error:
            where = os.path.join(place, relative) if relative else place
            raise LedgerError(f"{what}: {where}: {error.strerror}") from error
        pending += [f"{relative}/{name}" if relative else name for name in sorted(folders, reverse=True)]
        yield relative, here


def _list_objects(place: str, what: str, missing: bool) -> Iterator[tuple[str, list[Found]]]:
    from pyarrow import fs

    system, path = _open(place, what)
    with _errors_named(place, what):
        try:
            found = system.get_file_info(fs.FileSelector(path, recursive=True))
        except FileNotFoundError:
            if missing:
                return
            raise LedgerError(f"{what}: {place}: there is nothing") from None
    folders: dict[str, list[Found]] = {"": []}
    for info in found:
        if info.type == fs.FileType.File:
            relative = info.path[len(path) :].strip("/").rpartition("/")[0]
            folders.setdefault(relative, []).append(Found(info.base_name, info.size, True))
    yield from folders.items()


def folder_named(relative: str, fits: Callable[[str], bool]) -> str:
    """Return the outermost folder whose name fits, of a relative name and the folders above; empty: none."""
    names = relative.split("/") if relative else []
    return next(("/".join(names[: i + 1]) for i, name in enumerate(names) if fits(name)), "")


def list_names(place: str, what: str) -> list[str]:
    """Return the names of the objects directly behind a URL; none where there is nothing."""
    from pyarrow import fs

    system, path = _open(place, what)
    with _errors_named(place, what):
        found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return [info.base_name for info in found if info.type == fs.FileType.File]


def size_of(place: str, what: str) -> int:
    """Return the size of a file.

    Raises:
        OSError: there is no such file.
    """
    if not is_url(place):
        return os.lstat(place).st_size
    system, path = _open(place, what)
    with _errors_named(place, what):
        info = system.get_file_info(path)
    if not info.is_file:
        raise FileNotFoundError(2, "there is no such object", place)
    return int(info.size)


# -- reading


class _ObjectReader(io.RawIOBase):
    """An object, as Python's own files are."""

    def __init__(self, file: Any, place: str, what: str) -> None:
        self._file = file
        self._place = place
        self._what = what
        self._size = int(file.size())
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        n = max(min(len(view), self._size - self._at), 0)
        if n:
            with _errors_named(self._place, self._what):
                data = self._file.read_at(n, self._at)
            n = len(data)
            view[:n] = data
            self._at += n
        return n

    def seek(self, at: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = begin + at
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_file(place: str, what: str) -> io.RawIOBase:
    """Open a regular file without a buffer, for reading.

    Args:
        place: of the file. A path with a link, a FIFO or the like is refused.
        what: for error messages.

    Raises:
        OSError: it cannot be opened, or is not a regular file; ``strerror`` has the reason.
        LedgerError: a server refuses it or does not answer.
    """
    if not is_url(place):
        return open(open_regular(place), "rb", buffering=0)
    system, path = _open(place, what)
    with _errors_named(place, what):
        try:
            file = system.open_input_file(path)
        except FileNotFoundError:
            raise FileNotFoundError(2, "there is no such object", place) from None
    return _ObjectReader(file, place, what)


def fetch(file: io.RawIOBase, size: int) -> None:
    """Let the system read the first `size` bytes of a file of this machine, without waiting for it."""
    if isinstance(file, io.FileIO) and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_WILLNEED)


def open_buffered(place: str, what: str) -> io.BufferedReader:
    """Open a regular file with a buffer, for reading. Errors are those of `open_file`."""
    return io.BufferedReader(open_file(place, what), _BUFFER)


def read_at(place: str, what: str, at: int, size: int) -> bytes:
    """Read a range of a file; fewer bytes where the file ends."""
    with open_file(place, what) as file:
        file.seek(at)
        return read_exactly(file, size)


def read_exactly(file: io.RawIOBase, size: int) -> bytes:
    """Read so many bytes of an unbuffered file; fewer only at its end."""
    data = file.read(size) or b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


# -- writing


class _ObjectWriter(io.RawIOBase):
    """An object that is written, as Python's own files are."""

    def __init__(self, system: Any, path: str, place: str, what: str) -> None:
        self._system = system
        self._path = path
        self._place = place
        self._what = what
        self._at = 0
        with _errors_named(place, what):
            self._file = system.open_output_stream(path)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        with _errors_named(self._place, self._what):
            self._file.write(data)
        self._at += size
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _errors_named(self._place, self._what):
                self._file.close()

    def abandon(self) -> None:
        """Close the object, which publishes what was written, and delete it."""
        with contextlib.suppress(Exception):
            self.close()
        with contextlib.suppress(Exception):
            self._system.delete_file(self._path)


def open_new(place: str, what: str) -> IO[bytes]:
    """Open a new file for writing, which only its owner can read.

    Raises:
        OSError: a path exists, or cannot be written.
        LedgerError: a server refuses it or does not answer.
    """
    if not is_url(place):
        return open(place, "xb", opener=_open_private)
    return io.BufferedWriter(_ObjectWriter(*_open(place, what), place, what), _BUFFER)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def create(place: str, what: str) -> Iterator[IO[bytes]]:
    """Write a new file. Nothing of it is left behind when the block fails.

    Raises:
        OSError, LedgerError: as `open_new`.
    """
    file = open_new(place, what)
    try:
        yield file
        file.close()
    except BaseException:
        if isinstance(file, io.BufferedWriter) and isinstance(file.raw, _ObjectWriter):
            file.raw.abandon()
        else:
            with contextlib.suppress(OSError):  # it writes what is buffered
                file.close()
            os.unlink(place)
        raise


@contextlib.contextmanager
def staging(place: str, what: str) -> Iterator[str]:
    """Provide a local folder for files of a place: the place itself, or one whose files are copied there."""
    if not is_url(place):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="logclient-") as folder:
        yield folder
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as source, create(join(place, name), what) as sink:
                shutil.copyfileobj(source, sink, _COPY_BYTES)


def remove(place: str, what: str) -> None:
    """Delete an object, if there is one."""
    system, path = _open(place, what)
    with _errors_named(place, what), contextlib.suppress(FileNotFoundError):
        system.delete_file(path)


def remove_all(place: str) -> None:
    """Delete everything below a URL, as far as the server lets us."""
    with contextlib.suppress(Exception):
        system, path = _open(place, "work")
        system.delete_dir(path)
