"""The interpreter's own tests of `traceback`, with every exception that they format compared.

    python -m tests.tracebacks.cpython_tests

Prints as JSON how many exceptions were compared, for how many of them frames were kept, and the differences.
The tests' own results do not matter here.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import traceback
import types
import unittest
from typing import Any

from logclient._ext.tracebacks import ExceptionFormatter

formatter = ExceptionFormatter()
standard = logging.Formatter()
compared = cached = 0
differences: list[str] = []


def outcome(call: Any, exc_info: Any) -> str:
    """Return a text, or the name of the error."""
    try:
        return str(call(exc_info))
    except BaseException as error:
        return f"raised {type(error).__name__}"


def compare(value: Any, tb: Any) -> None:
    """Compare the texts of an exception: expected, with new frames, with frames seen before."""
    global compared, cached
    exc_info = (type(value), value, tb)
    expected = outcome(standard.formatException, exc_info)
    made = [outcome(formatter.format, exc_info) for _ in range(2)]
    compared += 1
    cached += formatter.cached and bool(formatter.sizes())
    if made != [expected, expected]:
        differences.append("\n--\n".join([expected, *made]))


class Compared(traceback.TracebackException):
    """Compares what it is made of."""

    def __init__(self, exc_type: Any, exc_value: Any, exc_traceback: Any, **more: Any) -> None:
        compare(exc_value, exc_traceback)
        super().__init__(exc_type, exc_value, exc_traceback, **more)


def hooked(name: str) -> Any:
    """Return a function of `traceback` that compares first what it is given, or what is being handled."""
    real = getattr(traceback, name)

    def call(*given: Any, **named: Any) -> Any:
        value = next((one for one in given[:2] if isinstance(one, BaseException)), sys.exc_info()[1])
        tb = given[2] if len(given) > 2 else getattr(value, "__traceback__", None)
        compare(value, tb)
        return real(*given, **named)

    return call


def main() -> int:
    """Run the tests of `traceback` with `traceback` replaced in their module only."""
    from test import test_traceback as theirs

    hook = types.ModuleType("traceback")
    hook.__dict__.update(vars(traceback))
    for name in ("format_exception", "print_exception", "format_exc", "print_exc", "format_exception_only"):
        setattr(hook, name, hooked(name))
    hook.TracebackException = Compared  # type: ignore[attr-defined]
    theirs.traceback = hook
    suite = unittest.defaultTestLoader.loadTestsFromModule(theirs)
    done = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(suite)
    print(json.dumps({
        "tests": done.testsRun, "compared": compared, "cached": cached, "differences": differences[:5],
    }))  # fmt: skip
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
