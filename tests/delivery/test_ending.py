"""The states in which delivery ends, against a plain model: a table and nothing else.

``python -m tests.delivery.test_ending --walks 100000`` walks longer than ``make test`` does.
"""

from __future__ import annotations

import argparse
import math
import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient.delivery.ending import START_AGAIN, Ending, State

RUNNING, DRAINING, CALLERS, ENDED = State.RUNNING, State.DRAINING, State.CALLERS, State.ENDED
PATIENCE = 2.0


class Step(NamedTuple):
    """Something that happens: its name, and a number of seconds or events."""

    name: str
    value: int


NAMES = (
    "close", "close_in_background", "exit", "settle", "tick", "put", "sender_leaves", "use_all_time",
    "dies", "write_off", "start", "start_fails", "start_fails_for_ever", "thread_ends", "fork_begins",
    "fork_begins_paused", "fork_over", "child", "call_waits",
)  # fmt: skip


class Model:
    """The table of transitions, as rows of a dictionary; times are whole seconds."""

    AFTER_DRAINING = {"ended": ENDED, "callers deliver": CALLERS}

    def __init__(self, closed: bool = False, callers_deliver: bool = False) -> None:
        self.row: dict[str, Any] = {
            "state": ENDED if closed else CALLERS if callers_deliver else RUNNING,
            "closed": closed,
            "deadline": math.inf,
            "goal": None,
            "hand over": math.inf,
            "then": "ended",
            "set by": "nobody",
            "patience": PATIENCE,
            "exit": math.inf,
            "thread": "absent",
            "forks": False,
            "never again": False,
            "again at": 0.0,
        }

    def drain(self, deadline: float, set_by: str) -> bool:
        if self.row["state"] not in (RUNNING, DRAINING):
            return False
        self.row.update(
            {"state": DRAINING, "closed": True, "deadline": deadline, "goal": None, "hand over": math.inf}
        )
        self.row.update({"then": "ended", "set by": set_by})
        return True

    def exit(self, by: float, now: float, last: int) -> bool:
        row = self.row
        if row["state"] not in (RUNNING, DRAINING):
            return False
        row["exit"] = min(row["exit"], by)
        if row["state"] is RUNNING:
            row.update({"state": DRAINING, "then": "callers deliver", "goal": last, "deadline": by})
            row["hand over"] = (now + by) / 2
        elif row["then"] == "ended" and row["set by"] != "a caller":
            row["deadline"] = row["exit"]
        else:
            row["deadline"] = min(row["deadline"], by)
        return True


class Walk:
    """An `Ending` and its model, which take the same steps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.last = self.settled = 0
        self.real, self.model = Ending(PATIENCE), Model()

    def take(self, step: Step) -> None:
        getattr(self, "_" + step.name)(step.value)
        self.compare()

    def compare(self) -> None:
        real, row = self.real, self.model.row
        assert real.state is row["state"]
        assert real.closed == row["closed"]
        assert real.deadline == row["deadline"] and real.hand_over_at == row["hand over"]
        assert real.exit_by == row["exit"]
        assert real.patience == pytest.approx(row["patience"])
        assert real.is_open == (row["state"] in (RUNNING, DRAINING))
        assert real.is_draining == (row["state"] is DRAINING)
        assert real.callers_deliver == (row["state"] is CALLERS) and real.is_ended == (row["state"] is ENDED)
        assert real.running == (row["thread"] != "absent")
        if real.running:
            assert real.parking == (row["thread"] == "stopping")
        assert real.forking == row["forks"]
        assert real.threadless == row["never again"] and real.start_at == row["again at"]
        over = row["state"] is DRAINING and (
            self.settled >= (self.last if row["goal"] is None else row["goal"])
            or self.now >= min(row["deadline"], row["hand over"])
        )
        assert real.is_over(self.settled, self.last, self.now) == over
        if row["state"] is ENDED:
            assert real.closed, "an ended client takes no events"

    # -- the client and the process

    def _close(self, seconds: int) -> None:
        by = self.now + seconds
        assert self.real.close(by) == self.model.drain(min(by, self.model.row["exit"]), "a caller")

    def _close_in_background(self, seconds: int) -> None:
        by = min(self.now + seconds, self.model.row["deadline"])
        assert self.real.close_in_background(self.now + seconds) == self.model.drain(
            by, self.model.row["set by"]
        )

    def _exit(self, seconds: int) -> None:
        by = self.now + seconds
        assert self.real.exit(by, self.now, self.last) == self.model.exit(by, self.now, self.last)

    def _put(self, events: int) -> None:
        if not self.real.closed:
            self.last += events

    def _settle(self, events: int) -> None:
        self.settled = min(self.last, self.settled + events)

    def _tick(self, seconds: int) -> None:
        self.now += seconds

    def _use_all_time(self, _: int) -> None:
        self.real.use_all_time()
        self.model.row["hand over"] = math.inf

    def _sender_leaves(self, _: int) -> None:
        if not self.real.is_over(self.settled, self.last, self.now):
            return
        row = self.model.row
        callers_deliver = self.real.hand_over()
        assert callers_deliver == (row["then"] == "callers deliver")
        row["state"] = Model.AFTER_DRAINING[row["then"]]
        if callers_deliver:
            self.real.handed_over(self.now)
            row["patience"] = max(0.0, row["deadline"] - self.now)
            row["deadline"] = math.inf
        else:
            self.real.end()

    def _dies(self, _: int) -> None:
        if self.real.is_draining:
            self.real.cut_short(self.now)
            self.model.row["deadline"] = min(self.model.row["deadline"], self.now)

    def _write_off(self, muted: int) -> None:
        if self.real.is_draining and self.model.row["exit"] <= self.now:
            self.real.write_off(bool(muted % 2))
            assert self.real.muted == bool(muted % 2)
            self.model.row.update({"state": CALLERS, "patience": 0.0})

    def _call_waits(self, seconds: int) -> None:
        self.real.waited(seconds / 4)
        self.model.row["patience"] = max(0.0, self.model.row["patience"] - seconds / 4)

    # -- threads and forks

    def _may_start(self) -> bool:
        row = self.model.row
        return row["thread"] == "absent" and not row["forks"] and self.now >= row["again at"]

    def _start(self, _: int) -> None:
        if self._may_start():
            self.real.thread_started()
            self.model.row["thread"] = "running"

    def _start_fails(self, _: int) -> None:
        self._fail(False)

    def _start_fails_for_ever(self, _: int) -> None:
        self._fail(True)

    def _fail(self, for_ever: bool) -> None:
        if self._may_start():
            self.real.thread_started()
            self.real.thread_failed(self.now, for_ever)
            self.model.row["never again"] = for_ever
            self.model.row["again at"] = 0.0 if for_ever else self.now + START_AGAIN

    def _thread_ends(self, _: int) -> None:
        self.real.thread_ended()
        self.model.row["thread"] = "absent"

    def _fork_begins(self, _: int) -> None:
        self.real.fork_begins(paused=False)
        self.model.row["forks"] = True
        if self.model.row["thread"] == "running":
            self.model.row["thread"] = "stopping"

    def _fork_begins_paused(self, _: int) -> None:
        self.real.fork_begins(paused=True)
        self.model.row["forks"] = True

    def _fork_over(self, _: int) -> None:
        self.real.fork_over()
        self.model.row["forks"] = False
        if self.model.row["thread"] == "stopping":
            self.model.row["thread"] = "running"

    def _child(self, _: int) -> None:
        """Go on in the child of a fork, also of one that no hook has seen."""
        self.real = Ending(PATIENCE, closed=self.real.closed, callers_deliver=self.real.callers_deliver)
        self.model = Model(self.model.row["closed"], self.model.row["state"] is CALLERS)
        self.last = self.settled = 0


STEPS = st.lists(st.builds(Step, st.sampled_from(NAMES), st.integers(0, 8)), max_size=40)


@given(STEPS)
@settings(max_examples=2000)
def test_every_walk_agrees_with_the_table(steps: list[Step]) -> None:
    walk = Walk()
    walk.compare()
    for step in steps:
        walk.take(step)


def draining_for_exit(by: float = 8.0, last: int = 10) -> Ending:
    ending = Ending(PATIENCE)
    assert ending.exit(by, 0.0, last)
    return ending


class TestRows:
    """What each row promises its callers, one by one."""

    def test_a_second_close_sets_a_new_deadline(self) -> None:
        ending = Ending(PATIENCE)
        assert ending.close(5.0) and ending.close(9.0)
        assert ending.deadline == 9.0 and ending.closed

    def test_an_exit_ends_what_a_caller_closes_by_the_earlier_deadline(self) -> None:
        ending = Ending(PATIENCE)
        ending.close(3.0)
        assert ending.exit(8.0, 0.0, 0) and ending.deadline == 3.0
        assert not ending.hand_over()

    def test_an_exit_gives_a_client_without_references_its_whole_time(self) -> None:
        ending = Ending(PATIENCE)
        ending.close_in_background(3.0)
        assert ending.exit(8.0, 0.0, 0) and ending.deadline == 8.0

    def test_a_client_that_was_closed_keeps_its_deadline_without_references(self) -> None:
        ending = Ending(PATIENCE)
        ending.close(3.0)
        ending.close_in_background(50.0)
        assert ending.deadline == 3.0
        ending.exit(8.0, 0.0, 0)
        assert ending.deadline == 3.0

    def test_a_close_during_the_exit_ends_within_it(self) -> None:
        ending = draining_for_exit()
        assert ending.close(100.0) and ending.deadline == 8.0
        assert not ending.hand_over()

    def test_the_first_half_of_an_exit_is_for_what_was_there_when_it_began(self) -> None:
        ending = draining_for_exit()
        assert not ending.is_over(9, 20, 3.9)
        assert ending.is_over(10, 20, 0.0), "later events are not waited for"
        assert ending.is_over(9, 20, 4.0)
        ending.use_all_time()
        assert not ending.is_over(9, 20, 7.9) and ending.is_over(9, 20, 8.0)

    def test_callers_have_what_an_exit_has_left(self) -> None:
        ending = draining_for_exit()
        assert ending.hand_over()
        ending.handed_over(5.0)
        assert ending.patience == 3.0
        ending.waited(1.0)
        assert ending.patience == 2.0

    def test_nothing_happens_after_the_end(self) -> None:
        ending = Ending(PATIENCE, closed=True)
        assert not ending.close(1.0) and not ending.close_in_background(1.0) and not ending.exit(1.0, 0.0, 0)
        assert ending.is_ended

    def test_a_closed_client_ends_in_the_child_of_an_exit(self) -> None:
        assert Ending(PATIENCE, closed=True, callers_deliver=True).is_ended
        assert Ending(PATIENCE, callers_deliver=True).callers_deliver

    def test_a_fork_that_began_keeps_threads_away_until_it_is_over(self) -> None:
        ending = Ending(PATIENCE)
        ending.fork_begins(paused=True)
        assert ending.forking and not ending.parking
        ending.fork_begins(paused=False)
        ending.fork_over()
        assert not ending.forking and not ending.parking


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    for _ in range(arguments.walks):
        walk = Walk()
        for _ in range(draw.randrange(40)):
            walk.take(Step(draw.choice(NAMES), draw.randrange(9)))
    print(f"{arguments.walks} walks: all agree")


if __name__ == "__main__":
    main()
