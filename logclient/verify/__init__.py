"""The verifier: a ledger against a capture, on Spark. See ``docs/verify.md``.

``run`` gives the verdict; ``arrivals`` is what arrived as a DataFrame; ``violations`` reads every fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logclient.verify.frames import arrivals, register
    from logclient.verify.job import run, violations

__all__ = ["arrivals", "register", "run", "violations"]

_WHERE = {"arrivals": "frames", "register": "frames", "run": "job", "violations": "job"}


def __getattr__(name: str) -> Any:
    # PySpark, pyarrow and numpy are an extra, and slow to import.
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(f"logclient.verify.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
