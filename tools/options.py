"""Write docs/options.md and logclient/config/options.py from the options that `Config` classes declare.

Run ``python -m tools.options`` after a change of an option.
"""

from __future__ import annotations

import sys
from pathlib import Path

from logclient.config import Config, Option, all_options, declared_options, registry
from logclient.config.documents import DocumentConfig

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "options.md"
TYPES = ROOT / "logclient" / "config" / "options.py"

PAGE_HEAD = """\
# Options

Use this page to look up an option of `connect`, `Handler` and `AsyncClient`.

Set an option in the URL (`?window=500&overflow=block`) or as a keyword, which takes precedence. Some
front ends, such as `Handler`, have a default of their own for an option that neither sets. Values in a
URL may be percent-encoded. Never write a secret in a URL: use `env:NAME`, `file:PATH` or a keyword.
As a keyword it may also be a function that returns the secret. Secrets are read anew for each connection.

- A duration is `5`, `5s`, `200ms`, `5m` or `1h`; a plain number is in seconds.
- A size is in bytes. `64KiB`, `64k`, `1MiB` and `1M` are multiples of 1024; `64kB` and `1MB` are multiples of
  1000.

For type checkers and editors, `logclient.Options` is a `TypedDict` of all keywords. Use it in your own
functions as `**options: Unpack[logclient.Options]`.

If a protocol has an option with the name of a common one, the protocol's option applies.

`make generated` writes this page from the declarations in `logclient/config/` and in the packages of the
protocols.
"""

TYPES_HEAD = '''\
"""The keywords of ``connect``, ``Handler`` and ``AsyncClient``, for type checkers and editors.

Made from the options in logclient/config by ``python -m tools.options``; do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Literal, TypedDict

from logclient.config import Secret

__all__ = ["Options"]


class Options(TypedDict, total=False):
    """The keywords of ``connect``, ``Handler`` and ``AsyncClient``, one for each option.

    None means the default. A duration is a number of seconds, or text such as ``200ms`` or ``5m``. A size is
    a number of bytes, or text such as ``64KiB``. docs/options.md describes each option, and has its default.
    """
'''

KEYWORD_TYPES = {
    "boolean": "bool",
    "directory": "str | PathLike[str]",
    "duration": "float | str",
    "fields": "str | Mapping[str, Any]",
    "function": "Callable[..., Any]",
    "headers": "str | Mapping[str, str | Secret | Callable[[], str]]",
    "host": "str",
    "level": "int | str",
    "names": "str | list[str] | tuple[str, ...]",
    "number": "int",
    "patterns": "str | list[str] | tuple[str, ...]",
    "path": "str | PathLike[str]",
    "secret": "str | Secret | Callable[[], str]",
    "shares": "str | Mapping[str, float]",
    "size": "int | str",
    "text": "str",
    "version": "int | str",
}
"""The type of a keyword, by the kind of its option."""


def classes() -> list[type[Config]]:
    """Return the `Config` classes of all protocols."""
    return [registry.load(name) for name in registry.CONFIGS.values()]


def own_options(of: type[Config]) -> list[Option]:
    """Return the options that a class itself declares."""
    return [option for name, option in declared_options(of).items() if name in vars(of)]


def page() -> str:
    """Write docs/options.md."""
    common = own_options(Config)
    groups = [
        ("Every protocol", "", [option for option in common if not option.tls_only]),
        ("TLS", "For schemes that end in `+tls`.", [option for option in common if option.tls_only]),
        ("Lumberjack and Logux", "Fields of every event.", own_options(DocumentConfig)),
        *((of.title, "", own_options(of)) for of in classes()),
    ]
    lines = [PAGE_HEAD.rstrip("\n")]
    for title, text, options in groups:
        lines += ["", f"## {title}", ""]
        if text:
            lines += [text, ""]
        lines += ["| option | kind | default | what it does |", "|---|---|---|---|"]
        lines += [f"| `{one.name}` | {one.reader.kind} | {one.shown} | {one.help} |" for one in options]
    return "\n".join(lines) + "\n"


def keyword_type(option: Option) -> str:
    """Write the type of a keyword."""
    if option.reader.choices:
        words = ", ".join(f'"{word}"' for word in option.reader.choices)
        return f"Literal[{words}]"
    return KEYWORD_TYPES[option.reader.kind]


def field(options: list[Option]) -> str:
    """Write the field of an option, which may differ between protocols."""
    kinds = dict.fromkeys(keyword_type(option) for option in options)
    return f"    {options[0].name}: {' | '.join([*kinds, 'None'])}\n"


def types() -> str:
    """Write logclient/config/options.py."""
    return "\n".join([TYPES_HEAD, "".join(field(options) for options in all_options().values())])


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit("usage: python -m tools.options")
    PAGE.write_text(page(), encoding="utf-8")
    TYPES.write_text(types(), encoding="utf-8")
