"""What a process needs before it has loaded anything else of logclient."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def log_first(module: Any) -> None:
    """Import ``logging`` when the ``excepthook`` of a module is called: then the exception is logged, too."""
    before = module.excepthook

    def excepthook(*args: Any) -> None:
        if module.excepthook is excepthook and "logging" not in sys.modules:
            import logging  # noqa: F401  (`attach` sets a hook around this one)

            module.excepthook(*args)
        else:
            before(*args)

    module.excepthook = excepthook


def say(error: Exception) -> None:
    """Write a line about an error that keeps us from something."""
    if sys.stderr is not None:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        sys.stderr.write(f"logclient: not everything is shipped: {text}\n")
