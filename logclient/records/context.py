"""Fields that the program binds to its context: every event that is made in it has them.

::

    with logclient.bind(request_id="7c9e", user="ann"):
        logging.getLogger("shop").info("paid")

They are kept in a context variable, so each thread and each asyncio task has its own; a task begins with
those of the task that made it, a thread with none. They are encoded once, not for each event. A field of the
event itself wins over a bound one of the same name, and a bound one over those of the option ``fields``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from weakref import ref

from logclient.records.spans import active_fields

__all__ = ["Binding", "Fields", "bind", "bound", "unbind"]

TAKEN = object()
"""In place of a value: the field is taken away, for as long as the binding lasts."""

ATTRIBUTE = "__logclient__"
"""The attribute of an exception with the fields of the innermost block that it has left."""


def _nobody() -> None:
    return None


class Part:
    """The fields of one binding. If nobody can undo it, it ends with the binding around it."""

    __slots__ = ("fields", "held", "over", "owner", "request")

    def __init__(
        self, fields: dict[str, Any], owner: Callable[[], Binding | None] = _nobody, request: bool = False
    ) -> None:
        self.fields = fields
        self.owner = owner
        self.request = request  # of a request or a task: all bindings inside of it end with it
        self.held: dict[object, Any] = {}  # what handlers keep of the request, by handler
        self.over = False  # it is removed by the next change of a context that has it, if it has no owner


class Fields:
    """Fields of a context by name. Read-only: another binding makes another one."""

    __slots__ = ("fields", "made", "parts")

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts  # innermost last
        merged: dict[str, Any] = {}
        for part in parts:
            merged.update(part.fields)
        self.fields = {name: value for name, value in merged.items() if value is not TAKEN}
        self.made: dict[object, Any] = {}  # what encoders made of them, by the own fields of an encoder


current: ContextVar[Fields | None] = ContextVar("logclient.fields", default=None)
"""The fields of this context; None: there are none."""


class Binding:
    """What `bind` returns: a context manager that takes the fields away again.

    Attributes:
        fields: all fields of the context from here on.
    """

    __slots__ = ("__weakref__", "_before", "_made", "_part", "fields")

    def __init__(self, fields: dict[str, Any], request: bool = False) -> None:
        self._before = current.get()
        self._part = Part(fields, ref(self), request)
        self._made: Fields | None = Fields([*_remaining(_parts(self._before)), self._part])
        current.set(self._made)
        self.fields: Mapping[str, Any] = self._made.fields

    def __enter__(self) -> Binding:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            _keep(error)
        self.reset()

    def reset(self) -> None:
        """Take the fields of this binding away, in whatever order bindings end.

        A context that does not have them is not changed: frameworks end a request, and Python a generator, in
        another context than it has begun in.
        """
        parts = _parts(current.get())
        if current.get() is self._made and parts[:-1] == _parts(self._before):
            current.set(self._before)  # with what encoders have made of it
        elif self._part in parts:
            _set(_remaining(parts, self._part))
        elif self._made is not None:
            self._part.owner, self._part.over = _nobody, True
        self._made = self._before = None
        self._part.held.clear()


def _keep(error: BaseException) -> None:
    """Note the fields of this context on an exception that leaves it, for `log_uncaught`.

    An exception may be pickled for another process, so only texts are kept.
    """
    with suppress(Exception):
        if not hasattr(error, ATTRIBUTE):
            fields = {**bound(), **active_fields()}
            setattr(error, ATTRIBUTE, {name: value for name, value in fields.items() if type(value) is str})


def _parts(fields: Fields | None) -> list[Part]:
    return [] if fields is None else fields.parts


def _remaining(parts: Iterable[Part], ended: Part | None = None) -> list[Part]:
    """Return the parts without what has ended, and what was bound inside of that."""
    kept: list[Part] = []
    around: Part | None = None  # has ended
    for part in parts:
        alone = part.owner() is None
        if part is ended or (alone and part.over):
            around = part
        elif around is not None and (alone or (around.request and not part.request)):
            continue
        elif alone and (not kept or kept[-1].owner() is None):
            merged = {**(kept.pop().fields if kept else {}), **part.fields}
            if not kept:
                merged = {name: value for name, value in merged.items() if value is not TAKEN}
            kept += [Part(merged)] if merged else []
        else:
            part.over = part.over or around is not None
            around = None
            kept.append(part)
    return kept


def _set(parts: list[Part]) -> None:
    current.set(Fields(parts) if parts else None)


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
        A context manager; its end takes these fields away, and what was bound inside of it without ``with``.

    Raises:
        TypeError: it is no mapping, or a name is not a string.
    """
    if fields is not None and not isinstance(fields, Mapping):
        raise TypeError(f"fields: must be a mapping, got {type(fields).__name__}")
    made = {**(fields or {}), **more}
    for name in made:
        if not isinstance(name, str):
            raise TypeError(f"fields: each name must be a string, got {type(name).__name__}")
    return Binding(made)


def unbind(*names: str) -> None:
    """Take fields away from this context; without names, all of them.

    Args:
        names: of the fields; those that are not bound are ignored.
    """
    taken = {name: TAKEN for name in bound() if name in names or not names}
    _set(_remaining([*_remaining(_parts(current.get())), Part(taken)]))


def request() -> Part | None:
    """Return the innermost request or task of this context; None: there is none."""
    return next((part for part in reversed(_parts(current.get())) if part.request), None)


def bound() -> dict[str, Any]:
    """Return a copy of the fields of this context."""
    fields = current.get()
    return {} if fields is None else dict(fields.fields)
