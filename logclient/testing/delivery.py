"""The proof, in a test, that everything that was sent has arrived."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from logclient.errors import LogclientError
from logclient.evidence.storage import Folder
from logclient.readable import escape

if TYPE_CHECKING:
    from logclient.testing.loop import CollectorBase
    from logclient.verify.verdict import Verdict

EXAMPLES = 20  # events of each fault that an error names
_SIGNS = {"lost": "-", "missing": "-", "unknown": "?", "unexpected": "+", "duplicated": "+"}
_BODY = 200  # characters of a body that are shown


def assert_delivered(
    ledger: Folder | Sequence[Folder], capture: Folder | Sequence[Folder] | None = None, **options: Any
) -> Verdict:
    """Check that every event of the ledgers has arrived, as it was sent and in order.

    The comparison is that of `logclient.verify.run`, in this process, without Spark and Java.

    Args:
        ledger: the folder of the producers' ledgers, or several.
        capture: likewise of the collectors' captures.
        **options: of `logclient.verify.run`, such as ``max_missing="0.1%"`` or ``allow_open=True``, or
            ``table=`` or ``arrived=`` in place of a capture.

    Returns:
        The verdict.

    Raises:
        AssertionError: the promise is broken, or not proven. Its text names the events.
        LedgerError, ConfigError: as `logclient.verify.run`.
        MissingExtra: pyarrow or numpy is not installed.
    """
    __tracebackhide__ = True
    from logclient import verify

    try:
        verdict = verify.run(ledger, capture, runner="local", **{"examples": EXAMPLES, **options})
    except LogclientError as error:  # its text says it all: a test shows no lines of ours
        raise error.with_traceback(None) from None
    if verdict.exit_code:
        raise AssertionError(describe(verdict))
    return verdict


def describe(verdict: Verdict) -> str:
    """Return a verdict with its faults, one line for each event."""
    lines = [verdict.sentence]
    for word, found in verdict.examples.items():
        lines += [f"  {_SIGNS.get(word, '~')} {word:<10} {_event(example)}" for example in found]
        copies = word == "duplicated"  # which the number counts, and not events
        shown = sum(example["copies"] - 1 for example in found) if copies else len(found)
        more = getattr(verdict.counts, word, shown) - shown
        if more > 0:
            lines.append(f"    and {more:,} more {'copies' if copies else word}")
    lines += [f"  ! {problem}" for problem in verdict.problems]
    return "\n".join(map(escape, lines))


def _event(example: dict[str, Any]) -> str:
    """Return what is known of an event: its id, when it was made, what became of it, and its body."""
    from logclient.verify.report.words import clock

    words = [example.get("id") or f"~{example.get('hash', '')}"]
    if example.get("seq") is not None:
        words.append(f"#{example['seq']}")
    if made := example.get("created_us"):
        words.append(f"made {clock(made, 1_000)}")
    if fate := example.get("fate"):
        words.append(f"{fate} ({example['reason']})" if example.get("reason") else fate)
    if (copies := example.get("copies") or 0) > 1:
        words.append(f"{copies} copies")
    if body := example.get("body"):
        words.append(f"arrived as {body[:_BODY]}")
    return " ".join(words)


class Delivery:
    """A server with a capture and a folder for ledgers, and the comparison of both. A context manager.

    Args:
        make: makes the server, given the folder of its capture as ``capture``.
        folder: for ledger and capture.

    Attributes:
        ledger: the folder for the ledgers of clients.
        capture: the folder of what arrived.
    """

    def __init__(self, make: Callable[..., CollectorBase[Any]], folder: Any) -> None:
        __tracebackhide__ = True
        self.ledger, self.capture = (os.path.abspath(folder / name) for name in ("ledger", "capture"))
        self._collector = make(capture=self.capture)
        self._checked = False

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return self._collector.url

    def check(self, **options: Any) -> Verdict:
        """Close the server, and call `assert_delivered` with the options. All clients must be closed."""
        __tracebackhide__ = True
        self._checked = True
        self._collector.stop()
        if not os.path.isdir(self.ledger):
            raise AssertionError(
                "nobody has written a ledger: give each client ledger=log_delivery.ledger, the attribute of "
                "this fixture"
            )
        return assert_delivered(self.ledger, self.capture, **options)

    def __enter__(self) -> Delivery:
        self._collector.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True
        try:
            if kind is None and not self._checked:
                self.check()
        finally:
            self._collector.stop()
