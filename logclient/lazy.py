"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

# Spelled out because importing `typing` for one constant would cost every importing program.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make the functions ``__getattr__`` and ``__dir__`` of a package, from its names and their modules.

    The package still imports these names under ``TYPE_CHECKING``, for type checkers.
    """

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module
        from sys import modules as loaded

        value: object = getattr(import_module(f".{modules[name]}", package), name)
        setattr(loaded[package], name, value)  # the next access does not come here
        return value

    def names() -> list[str]:
        from sys import modules as loaded

        return sorted({*vars(loaded[package]), *modules})

    return load, names
