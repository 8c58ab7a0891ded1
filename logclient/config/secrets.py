"""Secrets: values that are never shown, and the places where they are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from logclient.config.echo import echo

__all__ = ["Secret", "read_secret"]

_MAX_CHARACTERS = 65536


class Secret:
    """A value that no repr, log line, report or pickle shows.

    Args:
        value: The secret.
        source: Where it was read, as ``env:NAME`` or ``file:PATH``. A pickle holds only this, and loading it
            reads the value anew.
    """

    __slots__ = ("_value", "source")

    def __init__(self, value: str, source: str = "") -> None:
        self._value = value
        self.source = source

    def reveal(self) -> str:
        """Return the secret."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[Callable[[str], Secret], tuple[str]]:
        if not self.source:
            raise TypeError("a secret is not pickled; give it as env:NAME or file:PATH, to be read anew")
        return read_secret, (self.source,)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self


def read_secret(value: Any) -> Secret:
    """Read a secret from a keyword: the secret itself, ``env:NAME`` or ``file:PATH``.

    Raises:
        ValueError: With the rule.
    """
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("must be the secret, env:NAME or file:PATH")
    if value.startswith("env:"):
        found = os.environ.get(value[4:])
        if not found:
            raise ValueError(f"environment variable {echo(value[4:])} is not set")
        return Secret(found, value)
    if value.startswith("file:"):
        try:
            with open(value[5:], encoding="utf-8") as file:
                text = file.read(_MAX_CHARACTERS + 1).rstrip("\r\n")
        except OSError as error:
            raise ValueError(f"file {echo(value[5:])} cannot be read: {error.strerror}") from None
        except ValueError:
            raise ValueError(f"file {echo(value[5:])} cannot be read: is no UTF-8 text") from None
        if not text or len(text) > _MAX_CHARACTERS:
            raise ValueError(f"file {echo(value[5:])} must hold 1 to {_MAX_CHARACTERS} characters")
        return Secret(text, value)
    return Secret(value)
