"""The methods of `logclient.Logger` are to a program what those of any subclass are."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import pickle
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from logclient.records.logger import Logger


class Plain(logging.Logger):
    """What `logclient.Logger` is compared with."""


def foreign(log: Any) -> Any:
    other = logging.Logger("other")
    other.addHandler(logging.NullHandler())
    return type(log).info(other, "x"), type(log).isEnabledFor(other, 10)


def other_class(log: Any, make: Callable[[type], type]) -> Any:
    kind = type(log)
    log.__class__ = make(kind)
    results = [type(log).__name__, log.info("a"), kind.info(log, "b"), isinstance(log, logging.Logger)]
    log.__class__ = kind
    return [*results, log.info("c")]


def overriding(kind: type) -> type:
    return type("Sub", (kind,), {"info": lambda self, *args: ("sub", args), "__slots__": ()})


def autospec(log: Any) -> Any:
    with mock.patch.object(type(log), "info", autospec=True) as made:
        log.info("x %d", 1)
        return made.call_args == mock.call(log, "x %d", 1), str(inspect.signature(made))


def error_of(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


USES: dict[str, Callable[[Any], Any]] = {
    "signature": lambda log: str(inspect.signature(log.info)),
    "signature of the class's": lambda log: str(inspect.signature(type(log).log)),
    "name": lambda log: (log.info.__name__, log.info.__qualname__, log.info.__module__),
    "doc": lambda log: (log.info.__doc__, inspect.getdoc(type(log).error)),
    "self": lambda log: log.info.__self__ is log,
    "func": lambda log: log.info.__func__ is type(log).info,
    "code": lambda log: (log.info.__code__, type(log).info.__defaults__, type(log).info.__annotations__),
    "dict": lambda log: type(log).info.__dict__,
    "wrapped": lambda log: error_of(lambda: log.info.__wrapped__),
    "kinds": lambda log: (
        inspect.ismethod(log.info), inspect.isfunction(type(log).info), inspect.isroutine(log.info)),
    "source": lambda log: (inspect.getsource(log.info), inspect.getfile(log.log), inspect.getmodule(log.log)),
    "type": lambda log: type(log.info).__name__,
    "equal": lambda log: (log.info == log.info, log.info != log.error, hash(log.info) == hash(log.info)),
    "pickled": lambda log: pickle.loads(pickle.dumps(log.info)) == log.info,
    "pickled of the class": lambda log: pickle.loads(pickle.dumps(type(log).info)) is type(log).info,
    "copied": lambda log: (copy.deepcopy(log.info) == log.info, copy.copy(log) is log),
    "weak method": lambda log: weakref.WeakMethod(log.warning)() == log.warning,
    "weak function": lambda log: weakref.ref(type(log).info)() is type(log).info,
    "foreign logger": foreign,
    "no self": lambda log: error_of(type(log).info),
    "self by name": lambda log: type(log).info(self=log, msg="x"),
    "no logger": lambda log: error_of(lambda: type(log).info(3, "x")),
    "no message": lambda log: error_of(lambda: log.info()),
    "class of the standard library": lambda log: other_class(log, lambda kind: logging.Logger),
    "class of a program": lambda log: other_class(log, lambda kind: type("Sub", (logging.Logger,), {})),
    "class below ours": lambda log: other_class(log, lambda kind: type("Sub", (kind,), {"__slots__": ()})),
    "overriding class": lambda log: other_class(log, overriding),
    "attributes": lambda log: sorted(vars(log)),
    "autospec": autospec,
    "wraps": lambda log: functools.wraps(log.info)(lambda: 1).__qualname__,
    "partialmethod": lambda log: functools.partialmethod(type(log).info, "x").__get__(log)(),
    "get": lambda log: (
        type(log).info.__get__(log) == log.info, type(log).info.__get__(None, type(log)) is type(log).info),
    "layout": lambda log: (type(log).__base__, type(log).__basicsize__, type(log).__dictoffset__),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_methods_are_those_of_a_subclass(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for kind in (Plain, Logger):
        with monkeypatch.context() as patch:
            patch.setattr(logging, "_loggerClass", kind)
            logger = logging.getLogger(f"tests.binding.{kind.__name__}")
        logger.addHandler(logging.NullHandler())
        found.append(repr(USES[use](logger)).replace("Plain", "Logger"))
    assert found[0] == found[1]
