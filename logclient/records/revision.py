"""Documents that the application sees, and may change, before they are sent: ``before_send`` and patterns.

A document is made as always, read back as a dict, handed to each step, and encoded in the form to send. Names
in ``redact`` cost next to nothing and need none of this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from logclient._ext.constants import FILTER_BEFORE_SEND, K_TOMB, R_UNENCODABLE
from logclient._ext.record import REDACTED, Encoder, record_level
from logclient.errors import QueueFull, described
from logclient.records.times import corrected
from logclient.standard import json

if TYPE_CHECKING:
    import logging

Document = dict[str, Any]
Step = Callable[[Document], Any]


class Revision:
    """Makes documents for the application to change.

    `draft` encodes what the application logs or sends; each step returns the document to go on with, or None;
    `final` encodes that, into its queue; `sink` is the `client.Sink` of that queue.
    """

    def __init__(self, draft: Encoder, final: Encoder, steps: tuple[Step, ...], sink: Any) -> None:
        assert final.queue is not None
        self.draft = draft
        self._final = final
        self._queue = final.queue
        self._steps = steps
        self._sink = sink
        self._scan = json.JSONDecoder().raw_decode

    def make(self, event: Any) -> tuple[bytes, int] | None:
        """Return body and kind of what to send for a mapping or a string.

        It is a tombstone if a step breaks, and None if a step holds the event back, which is counted. An
        EncodeError, of it or of what the steps made, is not counted.
        """
        revised = self._revised(self.draft.read(event, self._scan))
        if not isinstance(revised, dict):
            return None if revised is None else (revised, K_TOMB)
        body, kind, *changed = self._final.encode(revised)
        self._queue.count_changed(*changed)
        return body, kind

    def send(self, event: Any, level: int) -> int:
        """Queue what `make` would make; return its sequence, or 0 if it is held back or dropped.

        Raises:
            EncodeError: as for `make`.
            QueueFull: with ``overflow=raise``.
        """
        return self._put(self._revised(self.draft.read(event, self._scan)), level)

    def ship(self, record: logging.LogRecord, made: Any) -> None:
        """Queue a log record as `send` does; `made` is the result of the application's formatter, or None."""
        revised = self._revised(self.draft.read_record(record, self._scan, made))
        try:
            self._put(revised, record_level(getattr(record, "levelno", 0)))
        except QueueFull:
            return  # it is counted

    def _put(self, revised: Document | bytes | None, level: int) -> int:
        if not isinstance(revised, dict):
            seq = 0 if revised is None else self._sink.put_or_raise(revised, level, K_TOMB)
        else:
            seq = self._final.put_mapping(revised, level)
            if seq <= 0 or self._queue.needs_sender:
                seq = self._sink.send_slowly(seq, revised, level)
        return seq

    def _revised(self, draft: tuple[Document, int, int]) -> Document | bytes | None:
        """Return what the steps make of a document, the body of a tombstone, or None."""
        document: Any
        document, sanitized, moved = draft
        if sanitized or moved:
            self._queue.count_changed(sanitized, moved)
        time = document.get("@timestamp", self)
        try:
            for step in self._steps:
                document = step(document)
                if document is None:
                    self._queue.count_filtered(FILTER_BEFORE_SEND)
                    return None
                if type(document) is not dict:
                    if not isinstance(document, Mapping):
                        raise TypeError(f"must return a mapping or None, got {type(document).__name__}")
                    document = dict(document)
            revised: Document = document
            if revised.get("@timestamp", time) is not time:
                revised = corrected(revised)[0]
        except BaseException as error:
            # It may have been there to remove secrets: the event is not sent. And nothing may leave a log
            # call, not even what a signal handler raises meanwhile.
            kind = f"before_send:{type(error).__name__}"
            self._sink.report(kind, f"before_send: {described(error)}; the event failed")
            return bytes([R_UNENCODABLE])
        return revised


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
