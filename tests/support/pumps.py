"""Which pump clients use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refuse_pump(why: str) -> Callable[..., Any]:
    """Return a `Transport.load_pump` for a system without the compiled pump, for this reason."""

    def load_pump(self: Any) -> Any:
        raise ImportError(why)

    return load_pump
