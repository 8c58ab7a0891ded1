"""Fields that the program binds to its context: every event that is made in it has them.

::

    with logclient.bind(request_id="7c9e", user="ann"):
        logging.getLogger("shop").info("paid")

They are kept in a context variable, so each thread and each asyncio task has its own; a task begins with
those of the task that made it, a thread with none. They are encoded once, not for each event. A field of the
event itself wins over a bound one of the same name, and a bound one over those of the option ``fields``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

__all__ = ["Binding", "Fields", "bind", "bound", "unbind"]


class Fields:
    """Fields of a context by name. Read-only: another binding makes another one."""

    __slots__ = ("fields", "made")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.made: dict[object, Any] = {}  # what encoders made of them, by the own fields of an encoder


current: ContextVar[Fields | None] = ContextVar("logclient.fields", default=None)
"""The fields of this context; None: there are none."""


class Binding:
    """What `bind` returns: a context manager that takes the fields away again.

    Attributes:
        fields: all fields of the context from here on.
    """

    __slots__ = ("_before", "fields")

    def __init__(self, before: Fields | None, fields: dict[str, Any]) -> None:
        self._before = before
        self.fields: Mapping[str, Any] = fields

    def __enter__(self) -> Binding:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()

    def reset(self) -> None:
        """Bring back the fields from before the call of `bind`."""
        # Not ContextVar.reset: frameworks end a request in another context than they began it.
        current.set(self._before)


def bind(fields: Mapping[str, Any] | None = None, /, **more: Any) -> Binding:
    """Add fields to every event of this context.

    ::

        logclient.bind(job="nightly")                   # until the context ends, or unbind()
        with logclient.bind({"user.id": 7}, step=1):    # until the block ends
            ...

    Values are encoded once, by the first event: change none afterwards. The documents of Lumberjack and Logux
    have these fields at the top, with the rules of docs/formats.md for their names.

    Args:
        fields: a mapping, for names that Python has no keywords for.
        more: further fields; they win.

    Returns:
        A context manager; its end brings back the fields from before.

    Raises:
        TypeError: it is no mapping, or a name is not a string.
    """
    if fields is not None and not isinstance(fields, Mapping):
        raise TypeError(f"fields: must be a mapping, got {type(fields).__name__}")
    before = current.get()
    made = {**bound(), **(fields or {}), **more}
    for name in made:
        if not isinstance(name, str):
            raise TypeError(f"fields: each name must be a string, got {type(name).__name__}")
    current.set(Fields(made) if made else None)
    return Binding(before, made)


def unbind(*names: str) -> None:
    """Take fields away from this context; without names, all of them.

    Args:
        names: of the fields; those that are not bound are ignored.
    """
    made = {name: value for name, value in bound().items() if name not in names} if names else {}
    current.set(Fields(made) if made else None)


def bound() -> dict[str, Any]:
    """Return a copy of the fields of this context."""
    fields = current.get()
    return {} if fields is None else dict(fields.fields)
