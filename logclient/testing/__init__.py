"""For tests of programs that log: a server, and a proof that all arrived. See ``docs/testing.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logclient.lazy import lazy_names

if TYPE_CHECKING:
    from logclient.testing.delivery import Delivery, assert_delivered

__all__ = ["Delivery", "assert_delivered"]

__getattr__, __dir__ = lazy_names(__name__, {"Delivery": "delivery", "assert_delivered": "delivery"})
