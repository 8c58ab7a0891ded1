"""`start`: wait for the program to import ``logging`` or a framework. Nothing else is imported until then."""

from __future__ import annotations

import os
import sys

from logclient.run.early import log_first, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

MODULES = frozenset((
    "logging", "threading", "multiprocessing.util", "uvicorn.server",
    "django.core.asgi", "django.core.wsgi", "flask.app", "starlette.applications", "aiohttp.web_app",
    "celery.signals",
))  # fmt: skip
"""For each there is a function in `logclient.run.attach`, called when the module has been imported."""


def start() -> None:
    """Have the records of this process shipped, as its variables say. Report an error, and raise none."""
    try:
        if os.environ.get("LOGCLIENT_URL", "").strip().partition(":")[0] in ("", "none"):
            return
        sys.meta_path.insert(0, _Finder())
        log_first(sys)
        for name in MODULES.intersection(sys.modules):
            _attach(sys.modules[name])
    except Exception as error:
        say(error)


class _Finder:
    """Finds these modules as the others do, and has `attach` called when they are imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec, spec.loader)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """The loader of a module, which hides itself when it begins its work."""

    def __init__(self, spec: ModuleSpec, loader: Any) -> None:
        self._spec = spec
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _attach(module)


def _attach(module: ModuleType) -> None:
    try:
        from logclient.run import attach

        function: Callable[[Any], None] = getattr(attach, module.__name__.replace(".", "_"))
        function(module)
    except Exception as error:
        say(error)
