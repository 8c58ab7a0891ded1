"""Documents in one form, whether they have objects or names with dots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dotted(document: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of a document by their whole names.

    Raises:
        AssertionError: a name occurs twice.
    """
    made: dict[str, Any] = {}
    for name, value in document.items():
        whole = path + name
        inner = dotted(value, f"{whole}.") if isinstance(value, dict) and value else {whole: value}
        assert not made.keys() & inner.keys(), whole
        made |= inner
    return made
