"""Evidence: the ledgers and captures in folders and buckets, read without Spark. See ``docs/formats.md``."""

from __future__ import annotations

import importlib.util

from logclient.errors import MissingExtra

__all__ = ["require"]


def require(*modules: str) -> None:
    """Check that modules of the extra ``verify`` are installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "verify")
