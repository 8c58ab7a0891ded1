"""Records of a request that wait for an error in it: the option ``hold_below``."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import ref

from logclient._ext.constants import FILTER_HOLD_BELOW
from logclient.records import context

LARGEST = 256
"""Records that are kept of one request; beyond it the oldest is given up."""


class _Request:
    """What is kept of a request, until it ends."""

    def __init__(self, count: Callable[[int], object]) -> None:
        self._count = count
        self.records: deque[tuple[logging.LogRecord, context.Fields | None]] = deque()
        self.failed = False

    def __del__(self) -> None:
        for _ in self.records:
            self._count(FILTER_HOLD_BELOW)


class HoldBelow(logging.Filter):
    """The filter of a handler that keeps records below a level until an error comes in their request.

    Then it hands them to the handler, each with the fields that were bound when it was logged. What is logged
    afterwards in that request passes. A record outside of requests passes, too.

    Args:
        handler: gets the records.
        level: the level below which records are kept.
        count: called with a number of ``FILTERS`` for each record that is given up.
    """

    def __init__(self, handler: logging.Handler, level: int, count: Callable[[int], object]) -> None:
        super().__init__()
        self._handler = ref(handler)  # which has this filter
        self._level = level
        self._count = count

    def filter(self, record: logging.LogRecord) -> Any:
        """Return whether the record is shipped now; of an error, after what was kept."""
        low = record.levelno < self._level
        if not low and record.levelno < logging.ERROR:
            return True
        part = context.request()
        if part is None:
            return True
        request = part.held.get(self) or part.held.setdefault(self, _Request(self._count))
        if low and not request.failed:
            request.records.append((record, context.current.get()))
            if len(request.records) > LARGEST:
                request.records.popleft()
                self._count(FILTER_HOLD_BELOW)
            return False
        if not low:
            request.failed = True
            self._release(request)
        return True

    def _release(self, request: _Request) -> None:
        handler, before = self._handler(), context.current.get()
        try:
            while handler is not None:
                record, fields = request.records.popleft()
                context.current.set(fields)
                handler.handle(record)
        except IndexError:  # no more
            pass
        finally:
            context.current.set(before)
