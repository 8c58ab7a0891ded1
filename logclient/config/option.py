"""Options: how they are declared in `Config` classes, and how they are found."""

from __future__ import annotations

import functools
from typing import Any

from logclient.config import registry
from logclient.config.readers import Reader


class Option:
    """One option, declared as an attribute of a `Config` class.

    `default` is written as by a user (None: the value None), and `shown` in its place in the documentation.
    With `variable` it is also read from the environment. Only options whose variable cannot be meant for
    another program have it.
    """

    __slots__ = ("default", "help", "name", "reader", "shown", "tls_only", "variable")

    def __init__(
        self,
        reader: Reader,
        default: str | None,
        help: str,
        *,
        shown: str = "",
        tls_only: bool = False,
        variable: bool = False,
    ) -> None:
        self.name = ""
        self.reader = reader
        self.default = None if default is None else reader(default)
        self.help = help
        self.shown = shown or default or "none"
        self.tls_only = tls_only
        self.variable = variable

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


option: Any = Option
"""For declarations: the attribute of a `Config` has the type of the option's value."""


def declared_options(of: type) -> dict[str, Option]:
    """Return the options of a `Config` class by name: those of its base first."""
    found: dict[str, Option] = {}
    for base in reversed(of.__mro__):
        found |= {name: value for name, value in vars(base).items() if isinstance(value, Option)}
    return found


@functools.cache
def all_options() -> dict[str, list[Option]]:
    """Return every option by name. An option may mean different things to different protocols."""
    found: dict[str, list[Option]] = {}
    for config_class in registry.configs():
        for name, one in declared_options(registry.load(config_class)).items():
            if one not in found.setdefault(name, []):
                found[name].append(one)
    return found
