"""Documents that the application sees, and may change, before they are sent: ``before_send`` and patterns.

A document is made as always, read back as a dict, handed to each step, and encoded again. That costs several
times as much as the document itself; names in ``redact`` cost next to nothing and need none of this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from logclient._ext.constants import FILTER_BEFORE_SEND, K_TOMB, R_UNENCODABLE
from logclient._ext.record import REDACTED, Encoder, record_level
from logclient.errors import QueueFull
from logclient.records.times import corrected
from logclient.standard import json

if TYPE_CHECKING:
    import logging

Document = dict[str, Any]
Step = Callable[[Document], Any]


class Revision:
    """Makes documents for the application to change.

    `draft` encodes what the application logs or sends; each step returns the document to go on with, or None;
    `final` encodes that, and its queue counts. `put` ships a body with a level and a kind, and may raise
    QueueFull; `report` is called with an error of a step.
    """

    def __init__(
        self,
        draft: Encoder,
        final: Encoder,
        steps: tuple[Step, ...],
        put: Callable[[bytes, int, int], object],
        report: Callable[[BaseException], object],
    ) -> None:
        assert final.queue is not None
        self.draft = draft
        self._final = final
        self._queue = final.queue
        self._steps = steps
        self._put = put
        self._report = report

    def make(self, event: Any) -> tuple[bytes, int] | None:
        """Return body and kind of what to send for a mapping or a string.

        It is a tombstone if a step breaks, and None if a step holds the event back, which is counted. An
        EncodeError, of it or of what the steps made, is not counted.
        """
        return self._revised(self.draft.encode(event))

    def ship(self, record: logging.LogRecord, made: Any) -> None:
        """Ship a log record as `make` says; `made` is the result of the application's formatter, or None."""
        revised = self._revised(self.draft.encode_record(record, made))
        if revised is not None:
            with suppress(QueueFull):  # it is counted
                self._put(revised[0], record_level(getattr(record, "levelno", 0)), revised[1])

    def _revised(self, encoded: tuple[bytes, int, int, int]) -> tuple[bytes, int] | None:
        body, _, *changed = encoded
        self._queue.count_changed(*changed)
        document: Any = json.loads(body)
        time = document.get("@timestamp", self)
        try:
            for step in self._steps:
                document = step(document)
                if document is None:
                    self._queue.count_filtered(FILTER_BEFORE_SEND)
                    return None
                if not isinstance(document, Mapping):
                    raise TypeError(f"must return a mapping or None, got {type(document).__name__}")
            document = dict(document)
            if document.get("@timestamp", time) is not time:
                document = corrected(document)[0]
        except BaseException as error:
            # It may have been there to remove secrets: the event is not sent. And nothing may leave a log
            # call, not even what a signal handler raises meanwhile.
            self._report(error)
            return bytes([R_UNENCODABLE]), K_TOMB
        body, flags, *changed = self._final.encode(document)
        self._queue.count_changed(*changed)
        return body, flags


def replace_patterns(patterns: tuple[str, ...]) -> Step:
    """Return the step that replaces what the patterns find in any text of a document; names stay.

    Each pattern searches the text as it came, so none changes what another finds. Finds that overlap become
    one; a find of no characters is none.
    """
    methods = [(found.search, found.finditer) for found in map(re.compile, patterns)]

    def replace(value: Any) -> Any:
        if isinstance(value, str):
            finds: list[tuple[int, int]] = []
            for search, every in methods:
                if search(value) is not None:  # most texts have no find: this is the quickest way to know
                    finds += [match.span() for match in every(value)]
            return _replaced(value, finds) if finds else value
        if isinstance(value, dict):
            return {name: replace(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [replace(inner) for inner in value]
        return value

    return replace


def _replaced(text: str, finds: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in sorted(finds):
        if start == end:
            continue
        if start >= done:
            parts += text[done:start], REDACTED
        done = max(done, end)
    return "".join((*parts, text[done:]))
