"""Secrets: values that are never shown, and the places where they are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from logclient.config.hosts import echo
from logclient.standard import open, os

_MAX_CHARACTERS = 65536


class Secret:
    """A value that no repr, log line, report or pickle shows. It is None while it was not read.

    A pickle holds only the `source`, which is ``env:NAME`` or ``file:PATH``, and loading it reads the value
    anew. `read` does so; it raises ValueError with the reason.
    """

    __slots__ = ("_read", "_value", "source")

    def __init__(self, value: str | None, source: str = "", read: Callable[[], str] | None = None) -> None:
        self._value = value
        self._read = read
        self.source = source

    @property
    def is_known(self) -> bool:
        """Whether the value was read."""
        return self._value is not None

    def reveal(self) -> str:
        """Return the secret as it was read last."""
        return self._value or ""

    def renew(self) -> None:
        """Read the secret anew; it stays as it was if that raises a ValueError, with the reason."""
        if self._read is not None:
            self._value = self._read()

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> tuple[Callable[[str], Secret], tuple[str]]:
        if not self.source:
            raise TypeError("a secret is not pickled; give it as env:NAME or file:PATH, to be read anew")
        return read_secret, (self.source,)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self


def absolute(path: str) -> str:
    """Return a path that stays right when the program changes its directory; ValueError: it has none."""
    if os.path.isabs(path):
        return path
    try:
        return os.path.join(os.getcwd(), path)
    except OSError as error:
        words = f"must be an absolute path, got {echo(path)}: the current directory cannot be read"
        raise ValueError(f"{words}: {error.strerror}") from None


def absolute_source(text: str) -> str:
    """Return ``file:PATH`` with an absolute path, and any other text as it is."""
    return f"file:{absolute(text[5:])}" if text.startswith("file:") else text


def read_secret(value: Any) -> Secret:
    """Read a secret from a keyword: the secret itself, ``env:NAME``, ``file:PATH``, or a function.

    A function is not called here: whoever needs the secret renews it first. ValueError: the rule.
    """
    if isinstance(value, Secret):
        return value
    if callable(value):
        return Secret(None, read=partial(_call, value))
    if not isinstance(value, str) or not value:
        raise ValueError("must be the secret, env:NAME, file:PATH or a function that returns it")
    value = absolute_source(value)
    if value.startswith(("env:", "file:")):
        return Secret(_read_source(value), value, partial(_read_source, value))
    return Secret(value)


def _call(function: Callable[[], Any]) -> str:
    try:
        found = function()
    except Exception as error:  # its text may have the secret
        raise ValueError(f"its function raised {type(error).__name__}") from None
    if not isinstance(found, str) or not 0 < len(found) <= _MAX_CHARACTERS:
        raise ValueError(f"its function must return a text of 1 to {_MAX_CHARACTERS} characters")
    return found


def _read_source(source: str) -> str:
    if source.startswith("env:"):
        found = os.environ.get(source[4:])
        if not found:
            raise ValueError(f"environment variable {echo(source[4:])} is not set")
        return found
    path = source[5:]
    try:
        with open(path, encoding="utf-8", opener=_open_now) as file:
            text = file.read(_MAX_CHARACTERS + 1).rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"file {echo(path)} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"file {echo(path)} cannot be read: is no UTF-8 text") from None
    if not text or len(text) > _MAX_CHARACTERS:
        raise ValueError(f"file {echo(path)} must hold 1 to {_MAX_CHARACTERS} characters")
    return text


def _open_now(path: str, flags: int) -> int:
    """Open a file without waiting for one who writes to a FIFO; what a writer has to say is waited for."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(fd, True)
    return fd
