"""Write logclient/options.py: the options of the table in logclient/config.py, for type checkers and editors.

``python -m tools.typed_options > logclient/options.py``
"""

import textwrap

from logclient import config
from logclient.config import Option

HEAD = '''"""What ``connect``, ``Handler`` and ``AsyncClient`` take by name, for type checkers and editors.

Made from the table in logclient/config.py by ``python -m tools.typed_options``; do not edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Literal, TypedDict

from logclient.config import Secret

__all__ = ["Options"]


class Options(TypedDict, total=False):
    """Options by name; None means the default."""
'''

TYPES = {
    "boolean": "bool",
    "directory": "str | PathLike[str]",
    "duration": "float | str",
    "headers": "str | Mapping[str, str | Secret]",
    "host": "str",
    "level": "int | str",
    "names": "str | list[str] | tuple[str, ...]",
    "number": "int",
    "path": "str | PathLike[str]",
    "secret": "str | Secret",
    "size": "int | str",
    "text": "str",
    "version": "int | str",
}
"""What a keyword may be, by the kind of its option."""

WIDTH = 110
INDENT = {"initial_indent": "    ", "subsequent_indent": "    "}


def type_of(option: Option) -> str:
    if isinstance(option.read, config._choice):
        names = ", ".join(f'"{name}"' for name in option.read.names)
        return f"Literal[{names}]"
    return TYPES[option.kind]


def described(option: Option) -> str:
    whose = ", ".join(option.protocols)
    return f"{whose}{': ' if whose else ''}{option.help} Default: {option.shown}."


def field(options: list[Option]) -> str:
    """One option, which may be several things to several protocols."""
    types = list(dict.fromkeys(type_of(option) for option in options))
    lines = [f"    {options[0].name}: {' | '.join([*types, 'None'])}"]
    words = " ".join(described(option) for option in options)
    return "\n".join([*lines, *textwrap.wrap(f'"""{words}"""', WIDTH, **INDENT)]) + "\n"


def text() -> str:
    by_name: dict[str, list[Option]] = {}
    for option in config._TABLE:
        by_name.setdefault(option.name, []).append(option)
    return "\n".join([HEAD, *(field(options) for options in by_name.values())])


if __name__ == "__main__":
    print(text(), end="")
