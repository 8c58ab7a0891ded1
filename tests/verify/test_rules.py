"""The rules of the verdict, for each combination of marks: as the table of docs/verify-rules.md has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests import support
from tests.oracle import rules as oracle

support.need("numpy")
support.need("pyarrow")
rules = pytest.importorskip("logclient.verify.rules")
schema = pytest.importorskip("logclient.verify.schema")

OUTCOMES = ("", "dropped", "failed", "handed", "acked")
BITS = (
    rules.LISTED, rules.NOT_JUDGED, rules.DEFERRED, rules.HAS_ID, rules.CORRUPT,
    rules.SEEN, rules.NOT_WHOLE, rules.NEW, rules.UNSETTLED, rules.BEFORE_END, rules.OVERDUE,
)  # fmt: skip
WORDS = (*schema.STATES, "excluded")


def combinations() -> Iterator[tuple[int, oracle.Event]]:
    """Yield all marks that an event may have."""
    for outcome in OUTCOMES:
        for flags in itertools.product((False, True), repeat=len(BITS)):
            event = oracle.Event(outcome, *flags)
            if event.corrupt and not (event.seen and event.listed and not event.apart):
                continue  # only listed events are compared with a hash
            if event.new and not event.open:
                continue  # a whole ledger lists all of its events
            if (event.before_end or event.overdue) and (event.listed or not event.seen):
                continue  # these are of events that arrived and are not listed
            yield OUTCOMES.index(outcome) | sum(b for b, on in zip(BITS, flags, strict=True) if on), event


def test_each_combination_of_marks_has_the_word_of_the_table() -> None:
    wrong, words = [], set()
    for marks, event in combinations():
        judgement = int(rules.RULES[marks])
        found = oracle.Judgement(
            WORDS[judgement & rules.STATE],
            bool(judgement & rules.COUNTED),
            bool(judgement & rules.TIMED),
            bool(judgement & rules.ORDERED),
        )
        words.add(found.word)
        if found != (expected := oracle.judge(event)):
            wrong.append(f"{event}: {found}, not {expected}")
        assert not judgement & rules.LATE
    assert not wrong, "\n".join(wrong[:10])
    assert words == set(WORDS)
