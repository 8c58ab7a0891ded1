"""Modules of the standard library that the tests of a program do not reach.

A mock of ``time.monotonic`` with three values is meant for three calls of the program. Our threads would use
them up, and go on with a wrong clock. So what runs in our threads and in log calls imports these modules from
here. Times of events are the program's: they come from its ``time``, which freezegun may have replaced.
"""

from __future__ import annotations

import importlib.util
import os as _os
import posix as _posix
import sys
from io import open  # noqa: UP029  (not the name that a test replaces)
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["json", "open", "os", "select", "time"]

if TYPE_CHECKING:
    import json
    import os
    import select
    import time
else:

    def _copied(module: ModuleType, **names: Any) -> ModuleType:
        found = ModuleType(module.__name__)
        vars(found).update(vars(module) | names)
        return found

    # Not executed again: there is one `os.environ`.
    _calls = {name: call for name, call in vars(_posix).items() if isinstance(call, BuiltinFunctionType)}
    os = _copied(_os, **_calls, path=_copied(_os.path))

    def __getattr__(name: str) -> ModuleType:
        """Execute the module a second time, when it is first needed."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        spec = (sys.modules.get(name) or importlib.import_module(name)).__spec__
        found = globals()[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found
