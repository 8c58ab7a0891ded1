"""Exceptions of all kinds, from functions in files that can be edited, deleted and loaded again."""

from __future__ import annotations

import linecache
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

# What a function may do around its call of the next one, from one line to many.
BODIES = [
    "    return go()",
    "    value = 1 + go() * 2",
    "\treturn go()  # behind a tab",
    "    return [\n        go()\n        for _ in range(1)\n    ]",
    "    return {'ключ': go()}['ключ']",
    "    日本 = '日本語'; return go()",
    "    return max(\n        1,\n        go(),\n        key=abs,\n    )",
    "    return (lambda: go())()",
    "    try:\n        return go()\n    finally:\n        pass",
    "    assert go(), 'nothing'",
    "    return sorted([3], key=lambda _: go())",
    "    for _ in [1]: go()",
    "    return eval('1 + go()')",
    "    return go()[0].name",
    "    return next(go() for _ in [1])",
    "    return \\\n        go()",
    "    return f'{go()!r}'",
    "    return (go)(\n    )[\n        1\n    ]",
    "    return go(" + "\n" * 120 + "    )",
    "    return go()  # " + "x" * 3000,
    "    def again(n):\n        return again(n - 1) if n else go()\n    return again(len(__name__) + 4)",
]


class Module:
    """A module whose functions `f0`, `f1`, ... each call what they are given."""

    def __init__(self, path: str, name: str, draw: random.Random, kind: str) -> None:
        self.path, self.name, self.draw, self.kind = path, name, draw, kind
        self.text = ""
        self.space: dict[str, Any] = {}
        self.load()

    def compose(self) -> str:
        """Write functions in a new order, at new lines."""
        lines = ["# -*- coding: utf-8 -*-\n" * self.draw.randint(0, 3)]
        bodies = self.draw.sample(BODIES, 6)
        for i, body in enumerate(bodies):
            lines.append("\n" * self.draw.randint(0, 2) + f"def f{i}(go):\n{body}\n")
        return "".join(lines)

    def get_source(self, name: str) -> str:
        """As a loader does."""
        return self.text

    def load(self) -> None:
        """Write the module's source anew, and run it."""
        self.text = self.compose()
        if self.kind == "file":
            Path(self.path).write_text(self.text, encoding="utf-8")
        self.space = {"__name__": self.name}
        if self.kind == "loader":
            self.space["__loader__"] = self
        elif self.kind == "cached":
            lines = self.text.splitlines(keepends=True)
            linecache.cache[self.path] = (len(self.text), None, lines, self.path)
        exec(compile(self.text, self.path, "exec"), self.space)

    def edit(self) -> None:
        """Change the source, but not the functions that were made of the old one."""
        if self.kind == "file":
            if self.draw.random() < 0.5:
                Path(self.path).write_text(self.compose(), encoding="utf-8")
            else:
                Path(self.path).write_text("\n" + self.text, encoding="utf-8")
            size = self.draw.randint(1, 10**9)  # another time, so that everybody notices
            os.utime(self.path, (size, size))
        elif self.kind == "cached":
            lines = self.compose().splitlines(keepends=True)
            linecache.cache[self.path] = (len(lines), None, lines, self.path)
        else:
            self.text = self.compose()
            linecache.checkcache(self.path)

    def delete(self) -> None:
        """Delete the source."""
        Path(self.path).unlink(missing_ok=True)
        if self.kind == "cached":
            linecache.cache.pop(self.path, None)

    def __getitem__(self, i: int) -> Callable[[Callable[[], Any]], Any]:
        return self.space[f"f{i}"]  # type: ignore[no-any-return]


def modules(folder: Path, draw: random.Random) -> list[Module]:
    """Make modules with sources of all kinds: in files, by loaders, in the cache only, and none."""
    kinds = [("file", str(folder / "orders.py")), ("file", str(folder / "päyments.py")),
             ("file", str(folder / "mail.py")), ("loader", str(folder / "archive.zip" / "stock.py")),
             ("cached", "<template 7>"), ("none", "<string>"), ("none", "missing/relative.pyx")]  # fmt: skip
    return [Module(path, f"shop.{i}", draw, kind) for i, (kind, path) in enumerate(kinds)]


class Plain(Exception):
    """An exception of a module."""


class Silent(Exception):
    def __str__(self) -> str:
        return ""


class Broken(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class NoText(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class OwnText(str):
    def __bool__(self) -> bool:
        return False


class OwnStr(Exception):
    def __str__(self) -> str:
        return OwnText("text of its own kind")


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


class Empty(Exception):
    def __len__(self) -> int:
        return 0


class OwnCause(Exception):
    __cause__ = ValueError("always")  # type: ignore[assignment]


class OwnContext(Exception):
    @property
    def __context__(self) -> BaseException:  # type: ignore[override]
        return KeyError("from a property")

    @__context__.setter
    def __context__(self, value: BaseException) -> None:
        pass


class AnyAttribute(Exception):
    def __getattr__(self, name: str) -> Any:
        if name == "__notes__":
            return ["a note of __getattr__"]
        raise AttributeError(name)


class Counting(Exception):
    """Its text tells how often such a text was asked for."""

    asked = 0

    def __str__(self) -> str:
        Counting.asked += 1
        return f"asked {Counting.asked} times"


class Meta(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        return "elsewhere"


class OfMeta(Exception, metaclass=Meta):
    pass


class Outer:
    class Inner(Exception):
        pass


Nameless = type("Nameless", (Exception,), {"__module__": None})


def _raise(error: BaseException) -> None:
    raise error


def _syntax(text: str) -> None:
    compile(text, "<input>", "exec")


def _misspelled() -> None:
    print(Plian)  # type: ignore[name-defined]  # noqa: F821


def _with_notes(*notes: Any) -> Exception:
    error = Plain("noted")
    error.__notes__ = list(notes)
    return error


def _odd_notes(notes: Any) -> Exception:
    error = Plain("noted")
    error.__notes__ = notes
    return error


# What fails at last, and how.
FAILURES: list[Callable[[], Any]] = [
    lambda: _raise(ValueError("no such order: 17")),
    lambda: _raise(KeyError("k")),
    lambda: _raise(Exception()),
    lambda: _raise(Plain("two\nlines\n")),
    lambda: _raise(Plain("日本語 \udc80 \x00")),
    lambda: _raise(Outer.Inner(1, 2)),
    lambda: _raise(Silent()),
    lambda: _raise(Broken()),
    lambda: _raise(NoText()),
    lambda: _raise(OwnStr()),
    lambda: _raise(Falsy("false")),
    lambda: _raise(Empty("empty")),
    lambda: _raise(OwnCause("why")),
    lambda: _raise(OwnContext("when")),
    lambda: _raise(AnyAttribute("x")),
    lambda: _raise(OfMeta("m")),
    lambda: _raise(Nameless("n")),
    lambda: _raise(KeyboardInterrupt()),
    lambda: _raise(SystemExit(3)),
    lambda: _raise(_with_notes("first", "second\nline", 3)),
    lambda: _raise(_odd_notes("text")),
    lambda: _raise(_odd_notes(7)),
    lambda: _raise(_with_notes(Broken())),
    lambda: _raise(SyntaxError("by hand")),
    lambda: _raise(SyntaxError("by hand", ("f.py", 1, 2, "a b", 1, 4))),
    lambda: _raise(ImportError("no", name="json", path="x")),
    lambda: _raise(NameError("by hand")),
    lambda: _raise(AttributeError("by hand", name="strp", obj="")),
    lambda: _raise(ExceptionGroup("many", [ValueError(1), ExceptionGroup("more", [KeyError("k")])])),
    lambda: _raise(BaseExceptionGroup("many", [KeyboardInterrupt()])),
    lambda: _syntax("a b"),
    lambda: _syntax("def f(:\n  pass"),
    lambda: _syntax("if 1:\npass"),
    _misspelled,
    lambda: __import__("json").loadz,
    lambda: exec("from os import pth", {}),
    lambda: __import__("no_such_module"),
    lambda: [][1],
    lambda: 1 / 0,
    lambda: "a" + 1,  # type: ignore[operator]
    lambda: b"\xff".decode(),
    lambda: Path("/no/such/file").read_text(),
    lambda: next(iter([])),
    lambda: exec("undefined_name + 1"),
    lambda: eval("(1).real.imaginary"),
]


def _cycle(first: BaseException, second: BaseException) -> BaseException:
    first.__cause__, second.__cause__ = second, first
    return first


def _contexts(first: BaseException, second: BaseException) -> BaseException:
    first.__context__, second.__context__ = second, first
    return first


def _of(first: BaseException, second: BaseException, link: str) -> BaseException:
    try:
        try:
            raise second
        except BaseException:
            if link == "cause":
                raise first from second
            if link == "none":
                raise first from None
            raise first  # noqa: B904  (that is the case)
    except BaseException as error:
        return error


def _without_trace(first: BaseException, second: BaseException) -> BaseException:
    first.__cause__ = second.with_traceback(None)
    return first


def _shortened(first: BaseException, second: BaseException) -> BaseException:
    tb = second.__traceback__
    second.__traceback__ = tb and tb.tb_next
    first.__context__ = second
    return first


def _remade(first: BaseException, second: BaseException) -> BaseException:
    """Give the exception a traceback that was made by hand, with a line that is not the instruction's."""
    tb = first.__traceback__
    if tb is not None:
        first.__traceback__ = TracebackType(tb.tb_next, tb.tb_frame, tb.tb_lasti, 1)
    return first


def _negative(first: BaseException, second: BaseException) -> BaseException:
    """Give it one without an instruction."""
    tb = first.__traceback__
    if tb is not None:
        first.__traceback__ = TracebackType(tb, tb.tb_frame, -1, 2)
    return first


LINKS: list[Callable[[BaseException, BaseException], BaseException]] = [
    lambda first, second: first,
    lambda first, second: _of(first, second, "cause"),
    lambda first, second: _of(first, second, "context"),
    lambda first, second: _of(first, second, "none"),
    _cycle, _contexts, _without_trace, _shortened, _remade, _negative,
]  # fmt: skip


def fail(chain: list[Callable[[Callable[[], Any]], Any]], failure: Callable[[], Any]) -> BaseException:
    """Call functions, each by the one before; return what the last one raises."""
    go = failure
    for function in reversed(chain):
        go = partial(function, go)
    try:
        go()
    except BaseException as error:
        return error
    raise AssertionError("nothing failed")


def exc_info(error: BaseException) -> ExcInfo:
    """Return what `sys.exc_info` would."""
    return type(error), error, error.__traceback__


def raised(call: Callable[[], Any]) -> ExcInfo:
    """Return the exception of a call."""
    try:
        call()
    except BaseException:
        return sys.exc_info()  # type: ignore[return-value]
    raise AssertionError("nothing failed")
