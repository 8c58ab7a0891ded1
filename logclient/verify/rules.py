"""The rules of the verdict: the state of an event, from its marks.

The *marks* are bits: the outcome in the ledger, what else the ledgers say, and what arrived. The rules are
applied once to each such number, and `judge` of ``_ext/arrivals.pyx`` looks events up in the result.
"""

from __future__ import annotations

import numpy as np

from logclient.evidence.arrays import U8
from logclient.verify import schema
from logclient.verify.ledger_facts import ACKED, DROPPED, FAILED, HANDED, NONE

# Marks. `judge` adds SEEN and NEW. The last two are of events that are seen and not listed.
OUTCOME = 7  # the bits of the outcome, see `ledger_facts`
LISTED = 1 << 3
NOT_JUDGED = 1 << 4  # not selected, or its id is shared, so that it is compared by hash
DEFERRED = 1 << 5  # later events may overtake it
HAS_ID = 1 << 6  # it has its own id
CORRUPT = 1 << 7  # a copy had another hash
SEEN = 1 << 8
NOT_WHOLE = 1 << 9  # its ledger is not complete
NEW = 1 << 10  # it may have been made after the selected time
UNSETTLED = 1 << 11  # a capture that goes on may not have it yet
BEFORE_END = 1 << 12  # it arrived before the end of the selected time
OVERDUE = 1 << 13  # its ledger has a later line, and so must list it
MARKS = 1 << 14

# Judgements: a state, and
STATE = 15
COUNTED = 1 << 4  # it was sent, and is judged here
TIMED = 1 << 5  # it counts as received at its time
ORDERED = 1 << 6  # its order is judged
LATE = 1 << 7  # it arrived after a later one; `judge_order` adds this


def _judgements() -> U8:
    marks = np.arange(MARKS)
    outcome = marks & OUTCOME
    bits = LISTED, NOT_JUDGED, DEFERRED, HAS_ID, CORRUPT, SEEN, NOT_WHOLE
    listed, not_judged, deferred, has_id, corrupt, seen, not_whole = (marks & bit != 0 for bit in bits)
    new, unsettled, before_end, overdue = (marks & bit != 0 for bit in (NEW, UNSETTLED, BEFORE_END, OVERDUE))
    state = np.where(
        seen,
        np.where(corrupt, schema.CORRUPTED, np.where(outcome >= HANDED, schema.OK, schema.RECOVERED)),
        np.where(outcome == ACKED, schema.LOST, schema.MISSING),
    )
    state[~seen & (outcome == NONE) & not_whole] = schema.UNKNOWN
    state[corrupt & has_id] = schema.UNKNOWN
    dropped = outcome == DROPPED
    unlisted = np.where(
        seen,
        np.where(dropped | (overdue & (outcome == NONE)), schema.UNEXPECTED, schema.UNKNOWN),
        np.where(dropped, schema.DROPPED_STATE, np.where(outcome == FAILED, schema.MISSING, schema.UNKNOWN)),
    )
    state = np.where(listed, state, unlisted)
    state[(state == schema.UNKNOWN) & ~(seen & (listed | before_end)) & new] = schema.PENDING
    state[listed & ((state == schema.LOST) | (state == schema.MISSING)) & unsettled] = schema.UNKNOWN
    state[not_judged] = schema.EXCLUDED
    counted = listed & ~not_judged
    timed = counted & seen & (state != schema.UNKNOWN)
    # The ledger may end before the `deferred` line of an event. That line comes before the outcome, so an
    # event with an outcome is safe. Others overtake deferred events on purpose.
    ordered = counted & ~deferred & ~(not_whole & (outcome == NONE))
    return np.array(state | counted * COUNTED | timed * TIMED | ordered * ORDERED, np.uint8)


RULES = _judgements()  # the judgement for each combination of marks
