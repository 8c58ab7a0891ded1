"""Folders and files of a verification: local paths, or objects behind a URL.

A *place* is a text: an absolute path, or a URL such as ``s3://bucket/prefix``, without credentials. URLs are
read through ``pyarrow.fs``: S3 is tested, other schemes are passed on. Local files are not: it is no faster,
has no names that are not UTF-8, does not tell links from what they lead to, and waits for a FIFO's writer.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from logclient.config.option import all_options
from logclient.errors import ConfigError, LedgerError
from logclient.files import open_regular

Folder = str | os.PathLike[str]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SECRET = re.compile(r"key|secret|token|passw|sig|cred|auth", re.IGNORECASE)
_GLOB = re.compile(r"[*\[]")
_S3 = ("s3", "s3a", "s3n")
_S3_OPTIONS = ("region", "endpoint_override", "scheme")
_BUFFER = 1 << 20  # bytes
_THREADS = 32  # that ask a server; pyarrow opens about as many connections
_AT_ONCE = 1 << 10  # questions that are handed to these threads at a time


class Found(NamedTuple):
    """One entry of a folder."""

    name: str  # without its folder
    size: int  # bytes; 0 if it is no regular file
    regular: bool  # a file, no link or FIFO
    folder: bool = False  # a link to a folder, which is not followed


# -- names


def is_url(place: str) -> bool:
    return _URL.match(place) is not None


def resolve(given: Folder, what: str) -> str:
    """Return the place that a user means. Errors begin with `what`, the name of the argument."""
    text = os.fspath(given)
    if not text:  # which abspath makes the current directory
        raise ConfigError(f"{what}: must not be empty")
    if "\0" in (unquote(text) if is_url(text) else text):
        raise ConfigError(f"{what}: {redact_url(text)[:100]}: it has a zero byte, which no path has")
    if not is_url(text):
        return os.path.abspath(text)
    try:
        split = urlsplit(text)
    except ValueError as error:
        raise ConfigError(f"{what}: {redact_url(text)[:100]}: it is not a URL: {error}") from None
    scheme = split.scheme.lower()
    user, at, host = split.netloc.rpartition("@")
    shown = f"{what}: {scheme}://{host}{split.path}"
    if split.fragment:
        raise ConfigError(f"{shown}: a URL has no fragment: write %23 for #")
    if scheme == "file":
        if split.netloc not in ("", "localhost"):
            raise ConfigError(f"{shown}: a file URL has no host: file:///path")
        if split.query:
            raise ConfigError(f"{shown}: a file URL has no options: write %3F for ?")
        return os.path.abspath(unquote(split.path))
    if at and (":" in user or scheme in (*_S3, "gs", "gcs")):
        raise ConfigError(f"{shown}: a URL may have no credentials: give them in the environment")
    for name, _ in parse_qsl(split.query, keep_blank_values=True):
        if _SECRET.search(name):
            raise ConfigError(f"{shown}: the option {name[:40]} may be a secret: use the environment")
        if scheme in _S3 and name not in _S3_OPTIONS:
            raise ConfigError(f"{shown}: no option {name[:40]!r}: there are {', '.join(_S3_OPTIONS)}")
    query = f"?{split.query}" if split.query else ""
    return f"{'s3' if scheme in _S3 else scheme}://{split.netloc}{split.path.rstrip('/')}{query}"


def redact_url(url: str) -> str:
    """Return a URL without user names, passwords and secret options.

    logclient redacts URLs when it writes a ledger. Other programs that write ledgers may not.
    """
    head, mark, query = url.partition("?")
    scheme, colons, rest = head.partition("://")
    if "@" in rest:
        head = f"{scheme}{colons}***@{rest.rpartition('@')[2]}"
    pairs = []
    known = all_options()
    for pair in query.split("&") if mark else ():
        name, equals, _ = pair.partition("=")
        open_ = name in known and not any(option.reader.secret for option in known[name])
        pairs.append(pair if open_ or not equals else f"{name}=***")
    return head + mark + "&".join(pairs)


def join(place: str, *names: str) -> str:
    """Return the place of a file or folder in a folder."""
    if not is_url(place):
        return os.path.join(place, *names)
    head, mark, query = place.partition("?")
    return "/".join([head.rstrip("/"), *(quote(name) for name in names if name)]) + mark + query


def folder_of(place: str) -> str:
    if not is_url(place):
        return os.path.dirname(place)
    head, mark, query = place.partition("?")
    return head.rpartition("/")[0] + mark + query


def base_name(place: str) -> str:
    if not is_url(place):
        return os.path.basename(place)
    return unquote(place.partition("?")[0].rpartition("/")[2])


def display_name(name: str) -> str:
    """Return a file name as text, even if it is not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def encodable(text: str) -> str:
    r"""Return a text with ``\udcff`` for a surrogate, which paths that are not UTF-8 have."""
    return text.encode("utf-8", "backslashreplace").decode()


def resolve_all(given: Folder | Sequence[Folder], what: str) -> list[str]:
    """Return the places and patterns that a user means."""
    several = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not several:
        raise ConfigError(f"{what}: no folder is given")
    return [resolve(one, what) for one in several]


def expand(given: Folder | Sequence[Folder], what: str) -> list[str]:
    """Return the folders behind paths, patterns of paths and URLs, each once."""
    places: list[str] = []
    for place in resolve_all(given, what):
        url = is_url(place)
        if not _GLOB.search(place.partition("?")[0] if url else place) or (not url and os.path.isdir(place)):
            found = [place]
        elif url:
            above = _GLOB.split(place)[0].rpartition("/")[0]
            why = f"a URL is no pattern: give {above}, below which all is read, or several URLs"
            raise ConfigError(f"{what}: {place}: {why}; for the characters themselves write %2A and %5B")
        else:
            names = glob.glob(place.replace("?", "[?]"), recursive=True)
            found = [os.path.normpath(name) for name in names if os.path.isdir(name)]  # of **: without its /
        if not found:
            raise LedgerError(f"{what}: {place} matches no folder")
        places += sorted(set(found))
    return list(dict.fromkeys(places))


# -- file systems

_System = tuple[Any, str]  # a file system of pyarrow, and the path in it of a URL without a path
_systems: dict[tuple[Any, ...], _System] = {}


def _open(place: str, what: str) -> _System:
    """Return the file system of a URL, and its path in it. The first call checks that the server answers."""
    url = urlsplit(place)
    # An object of before a fork must not be used after it, nor one with other credentials.
    settings = sorted(x for x in os.environ.items() if x[0].startswith("AWS_"))
    key = (os.getpid(), url.scheme, url.netloc, url.query, *settings)
    try:
        if key not in _systems:
            _probe(url)
            _systems[key] = _connect(url, attempts=6, timeout=30.0)
    except Exception as error:
        raise failure(error, place, what) from error
    system, base = _systems[key]
    return system, f"{base}/{_path(url)}".strip("/") if base else f"/{_path(url)}"


def open_system(place: str, what: str) -> _System:
    """Return the file system of pyarrow that has a place, and the path in it."""
    from pyarrow import fs

    return _open(place, what) if is_url(place) else (fs.LocalFileSystem(), place)


def _path(url: SplitResult) -> str:
    return unquote(url.path).strip("/")


def _connect(url: SplitResult, attempts: int, timeout: float) -> _System:
    from pyarrow import fs

    if url.scheme != "s3":
        query = f"?{url.query}" if url.query else ""
        system, base = fs.FileSystem.from_uri(f"{url.scheme}://{url.netloc}/{query}")
        return system, base.rstrip("/")
    options, get = dict(parse_qsl(url.query)), os.environ.get
    endpoint = options.get("endpoint_override") or get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL") or ""
    protocol, _, address = endpoint.rpartition("://")
    region = options.get("region") or get("AWS_REGION") or get("AWS_DEFAULT_REGION")
    system = fs.S3FileSystem(
        region=region or (None if endpoint else fs.resolve_s3_region(url.netloc)),
        endpoint_override=address.rstrip("/") or None,
        scheme=options.get("scheme") or protocol or "https",
        connect_timeout=3.0,
        request_timeout=timeout,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts),
        allow_delayed_open=True,  # one request for a small object, instead of three
    )
    return system, url.netloc


def _probe(url: SplitResult) -> None:
    """Ask a server, for at most 12 seconds, for what is below a name that has nothing below it.

    A listing is the request whose answer always has a reason: that of a HEAD request has no body.
    """
    from pyarrow import fs

    system, base = _connect(url, attempts=3, timeout=3.0)
    with contextlib.suppress(FileNotFoundError):
        system.get_file_info(fs.FileSelector(f"{base}/{_path(url)}/.logclient"))


_REASONS = {
    "NO_SUCH_BUCKET": "there is no such bucket",
    "INVALID_?ACCESS_?KEY_?ID": "the access key is not known",
    "SIGNATURE_?DOES_?NOT_?MATCH": "the secret key is wrong",
    "EXPIRED_?TOKEN|RequestExpired": "the token has expired",
    "InvalidToken|INVALID_CLIENT_TOKEN_ID": "the token is wrong",
    "ACCESS_DENIED": "access is denied",
    "Could not resolve host": "its host has no address",
    "Could not connect": "no server answers",
    "Timeout was reached": "the server does not answer in time",
}


def failure(error: BaseException, place: str, what: str) -> LedgerError | ConfigError:
    """Return the error for a file or a request that failed, in one line."""
    if isinstance(error, LedgerError | ConfigError):
        return error
    place = getattr(error, "filename", None) or place
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    if type(error).__name__ in ("ArrowInvalid", "ArrowNotImplementedError"):
        return ConfigError(f"{what}: {redact_url(place)}: pyarrow cannot open it: {text[:200]}")
    reason = next((words for rule, words in _REASONS.items() if re.search(rule, text, re.I)), "")
    detail = text.partition(" operation: ")[2] or text
    detail = re.sub(r" ?\(Request ID: [^)]*\)", "", detail)[:200]
    return LedgerError(f"{what}: {place}: {reason}{': ' if reason and detail else ''}{detail}")


@contextlib.contextmanager
def _errors_named(place: str, what: str) -> Iterator[None]:
    """Let errors of a file system name the place. One for a missing object stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", place) from None
    except OSError as error:
        cause: Exception = error
        if "No response body" in str(error):  # of a HEAD request: find out the reason
            try:
                _probe(urlsplit(place))
            except Exception as reason:
                cause = reason
        raise failure(cause, place, what) from error


def check_writable(place: str, what: str) -> None:
    """Check that objects can be written to a URL and deleted again."""
    system, path = _open(place, what)
    name = f"{path}/.logclient-{os.urandom(8).hex()}"
    with _errors_named(place, what):
        with system.open_output_stream(name) as file:
            file.write(b"\n")
        system.delete_file(name)


# -- listing

_T = TypeVar("_T")
_R = TypeVar("_R")


def for_each(function: Callable[[_T], _R], items: Sequence[_T], remote: bool) -> Iterator[_R]:
    """Yield the results of a function for each of some files. Servers are asked by many threads at a time."""
    if not remote:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        for low in range(0, len(items), _AT_ONCE):
            yield from pool.map(function, items[low : low + _AT_ONCE])


def list_folders(place: str, what: str, missing: bool = False) -> Iterator[tuple[str, list[Found]]]:
    """Yield the relative name, empty or with ``/``, and the entries except for folders of all folders below.

    Links to folders are not followed. Sizes are asked for when all names of a folder are known. So a file
    that a writer has finished, because it has a successor, is found whole. (Not behind a URL, whose listing
    has sizes and takes a while.)
    """
    if is_url(place):
        objects: dict[str, list[Found]] = {"": []}
        infos = _infos(place, what, recursive=True)
        if not infos and not missing:
            raise LedgerError(f"{what}: {place}: there is nothing")
        start = len(_open(place, what)[1].rstrip("/")) + 1
        for info in infos:
            if info.is_file:
                folder, _, name = info.path[start:].rpartition("/")
                objects.setdefault(folder, []).append(Found(name, info.size, True))
        yield from objects.items()
        return
    pending = [""]
    while pending:
        relative = pending.pop()
        here = os.path.join(place, relative) if relative else place
        try:
            with os.scandir(here) as entries:
                some = list(entries)
            folders = sorted(entry.name for entry in some if entry.is_dir(follow_symlinks=False))
            files = [entry for entry in some if not entry.is_dir(follow_symlinks=False)]
            found = [one for entry in files if (one := _found(entry))]
        except OSError as error:
            if relative and isinstance(error, FileNotFoundError):
                continue  # it was removed meanwhile
            raise LedgerError(f"{what}: {error.filename or here}: {error.strerror}") from error
        pending += [f"{relative}/{name}" if relative else name for name in reversed(folders)]
        yield relative, found


def _found(entry: os.DirEntry[str]) -> Found | None:
    """Return an entry; None: it was removed meanwhile."""
    if entry.is_file(follow_symlinks=False):
        try:
            return Found(entry.name, entry.stat(follow_symlinks=False).st_size, True)
        except FileNotFoundError:
            return None
    try:
        folder = entry.is_dir()
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR):
            raise
        folder = False  # the link leads nowhere
    return Found(entry.name, 0, False, folder)


def _infos(place: str, what: str, recursive: bool = False) -> list[Any]:
    """Return what pyarrow tells about everything in a folder behind a URL; nothing if there is none."""
    from pyarrow import fs

    system, path = _open(place, what)
    with _errors_named(place, what):
        found: list[Any] = system.get_file_info(
            fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        )
    return found


def find_files(
    places: Sequence[str],
    what: str,
    kind: tuple[str, str],
    fits: Callable[[str], object],
    alike: Callable[[str], object],
) -> tuple[dict[str, dict[str, Found]], dict[str, str]]:
    """Find the files of a kind below some folders, each once, and what may be or have more of them.

    By folder the entries whose names are alike; and the folders that are not read, with what they are. Both
    have as keys their names in messages.
    """
    found: dict[str, dict[str, Found]] = {}
    unread: dict[str, str] = {}
    empty = dict.fromkeys(places, f"a folder without any {kind[0]}")
    whole = len(places) > 1  # names in messages
    for place in places:
        for relative, entries in list_folders(place, what):
            parts = relative.split("/") if relative else []
            folder = join(place, *parts)
            if depth := next((n for n, part in enumerate(parts, 1) if alike(part)), 0):
                unread[join(place, *parts[:depth]) if whole else "/".join(parts[:depth])] = "a folder"
                continue
            for entry in entries:
                name = join(folder, entry.name) if whole else "/".join([*parts, entry.name])
                if entry.folder:
                    unread[name] = "a link to a folder"
                elif alike(entry.name):
                    found.setdefault(folder, {})[name] = entry
                    if place in empty and entry.regular and fits(entry.name):
                        del empty[place]
    if len(empty) == len(set(places)):
        others = [f"{name} ({why})" for name, why in unread.items()]
        others += [name for some in found.values() for name in some]
        more = f"; {display_name(min(others))} is not read" if others else ""
        where = ", ".join(places)
        raise LedgerError(f"{what}: {where} has no {kind[0]}: their names are {kind[1]}{more}")
    return found, unread | empty


def list_names(place: str, what: str) -> list[str]:
    """Return the names directly in a folder, or of the objects behind a URL; none where no object is."""
    if not is_url(place):
        return os.listdir(place)
    return [info.base_name for info in _infos(place, what) if info.is_file]


def size_of(place: str, what: str) -> int:
    system, path = _open(place, what)
    with _errors_named(place, what):
        info = system.get_file_info(path)
    if not info.is_file:
        raise LedgerError(f"{what}: {place}: there is no such object")
    return int(info.size)


# -- reading and writing


class _Object(io.RawIOBase):
    """An object that is read, as Python's own files are: one may seek behind its end, and errors name it."""

    def __init__(self, file: Any, place: str, what: str) -> None:
        self._file = file
        self._named = place, what
        self._size = int(file.size())
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = 0
        if self._at < self._size:
            with _errors_named(*self._named):
                self._file.seek(self._at)
                n = int(self._file.readinto(buffer))
        self._at += n
        return n

    def seek(self, at: int, whence: int = os.SEEK_SET) -> int:
        self._at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence] + at
        return self._at

    def close(self) -> None:
        self._file.close()
        super().close()


def open_file(place: str, what: str) -> io.RawIOBase:
    """Open a regular file without a buffer, for reading. Links, FIFOs and the like are refused."""
    if not is_url(place):
        return open(open_regular(place), "rb", buffering=0)
    system, path = _open(place, what)
    with _errors_named(place, what):
        return _Object(system.open_input_file(path), place, what)


def read_at(place: str, what: str, at: int, size: int) -> bytes:
    """Read a range of a file; fewer bytes where the file ends. Errors are those of `open_file`."""
    with open_file(place, what) as file:
        file.seek(at)
        return read_exactly(file, size)


def read_exactly(file: io.RawIOBase, size: int) -> bytes:
    """Read so many bytes of an unbuffered file; fewer only at its end."""
    data = file.read(size) or b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def begin_equally(place: str, other: str, what: str, size: int) -> bool:
    """Return whether two files have the same first `size` bytes."""
    try:
        with open_file(place, what) as one, open_file(other, what) as two:
            for begin in range(0, size, _BUFFER):
                n = min(size - begin, _BUFFER)
                data = read_exactly(one, n)
                if len(data) < n or data != read_exactly(two, n):
                    return False
    except OSError as error:
        raise failure(error, place, what) from error
    return True


@contextlib.contextmanager
def create(place: str, what: str) -> Iterator[IO[bytes]]:
    """Write a new file, which only its owner can read. Nothing of it is left when the block fails.

    A process that is killed may leave a part of an object behind: a reader must know which ones are whole.
    """
    file = open_new(place, what)
    with _errors_named(place, what) if is_url(place) else contextlib.nullcontext():
        try:
            yield file
            file.close()
        except BaseException:
            with contextlib.suppress(Exception):
                file.close()  # an object is published by it
            with contextlib.suppress(Exception):
                remove(place, what)
            raise


def open_new(place: str, what: str) -> IO[bytes]:
    if not is_url(place):
        return open(place, "xb", opener=lambda path, flags: os.open(path, flags, 0o600))
    system, path = _open(place, what)
    with _errors_named(place, what):
        file: IO[bytes] = system.open_output_stream(path, buffer_size=_BUFFER)
    return file


def remove(place: str, what: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not is_url(place):
            os.unlink(place)
            return
        system, path = _open(place, what)
        with _errors_named(place, what):
            system.delete_file(path)
