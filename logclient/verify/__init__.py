"""The verifier: a ledger against what arrived, on Spark. See ``docs/verify.md``.

``run`` gives the verdict; ``arrivals`` is what a capture has, as a DataFrame, and ``decoded`` does the same
for any that has bodies in a column; ``violations`` reads every fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logclient.verify.frames import arrivals, decoded, register
    from logclient.verify.job import run, violations

__all__ = ["arrivals", "decoded", "register", "run", "violations"]

_WHERE = {
    "arrivals": "frames",
    "decoded": "frames",
    "register": "frames",
    "run": "job",
    "violations": "job",
}


def __getattr__(name: str) -> Any:
    # PySpark, pyarrow and numpy are an extra, and slow to import.
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(f"logclient.verify.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
