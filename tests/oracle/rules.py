"""The reference of ``logclient.verify.rules``: the table of docs/verify-rules.md, event after event."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """What ledgers and captures say about a sequence."""

    outcome: str
    """Empty: undecided."""
    listed: bool
    apart: bool
    """It is not selected, or compared by its hash."""
    deferred: bool
    has_id: bool
    """It has an own id, and the ledgers are not whole."""
    corrupt: bool
    """A copy had another hash than listed."""
    seen: bool
    open: bool
    """Its ledger is not whole."""
    new: bool
    """It may have been made after the selected time."""
    unsettled: bool
    """A capture that goes on may not have it yet."""
    before_end: bool
    """It arrived before the end of the selected time."""
    overdue: bool
    """Its ledger has a later line, and so must list it."""


class Judgement(NamedTuple):
    word: str
    counted: bool
    timed: bool
    ordered: bool


def judge(event: Event) -> Judgement:
    word = "excluded" if event.apart else _word(event)
    counted = event.listed and word != "excluded"
    timed = counted and event.seen and word != "unknown"
    ordered = counted and not event.deferred and not (event.open and not event.outcome)
    return Judgement(word, counted, timed, ordered)


def _word(event: Event) -> str:
    unknown = "pending" if event.new else "unknown"
    if event.listed and event.seen:
        if event.corrupt:
            return "unknown" if event.has_id else "corrupted"
        return "ok" if event.outcome in ("acked", "handed") else "recovered"
    if event.listed:
        if event.open and not event.outcome:
            return unknown
        if event.unsettled:
            return "unknown"
        return "lost" if event.outcome == "acked" else "missing"
    if event.seen:
        if event.outcome == "dropped" or (event.overdue and not event.outcome):
            return "unexpected"
        return "unknown" if event.before_end else unknown
    return {"dropped": "dropped", "failed": "missing"}.get(event.outcome, unknown)
