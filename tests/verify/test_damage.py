"""Torn ledgers and captures: the verdict is what the rules say, never green over a loss, never red over none.

The long form is ``python -m tests.damage`` (20,000 cases), and a test of its own in ``make test-long``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import support

support.need("numpy")
support.need("pyarrow")
pytest.importorskip("logclient.verify.job")

from tests.damage import cases, rules, show  # noqa: E402
from tests.damage.__main__ import all_of, failing, in_process, table  # noqa: E402

pytestmark = pytest.mark.slow

PER_PROTOCOL = len(cases.KINDS)
"""Of the short form: each kind once."""

LONG = 20_000


def whole(seed: int, protocol: str, folder: Path) -> cases.Case:
    case = cases.make(seed, protocol, folder)
    assert case.kind == "nothing"
    return case


class TestRandomCases:
    @pytest.mark.parametrize("protocol", cases.PROTOCOLS)
    def test_equal_seeds_make_equal_cases(self, tmp_path: Path, protocol: str) -> None:
        for seed in range(5, 20, 3):
            one, two = (cases.make(seed, protocol, tmp_path / f"{name}{seed}") for name in "ab")
            assert show.text(one) == show.text(two)
            assert (one.evidence.ledger, one.evidence.capture) == (two.evidence.ledger, two.evidence.capture)

    def test_cases_cover_kept_and_broken_promises(self, tmp_path: Path) -> None:
        """Cases that lose events, have other faults or none, and each exit code occur."""
        found: Counter[str] = Counter()
        for number in range(40):
            case = cases.make(number * PER_PROTOCOL, "lumberjack", tmp_path / str(number))
            found["lost"] += bool(case.truth.lost)
            found["other faults"] += bool(case.truth.lies)
            found["kept"] += not case.truth.broken
            result = rules.judge(case.evidence.ledger, case.evidence.capture, "lumberjack")
            found[f"exit code {result.exit_code}"] += 1
        assert all(found[what] > 2 for what in ("lost", "other faults", "kept")), found
        assert all(found[f"exit code {code}"] > 2 for code in (0, 1, 3)), found


class TestOracles:
    """Both oracles see a wrong verdict."""

    def find_case(self, folder: Path, *, lost: bool) -> cases.Case:
        for number in range(200):
            case = whole(number * PER_PROTOCOL, "logux", folder / str(number))
            if bool(case.truth.lost) == lost and case.truth.broken == lost:
                return case
        raise AssertionError("no such case")

    @pytest.mark.parametrize(("lost", "code", "words"), [(True, 0, "FALSE GREEN"), (False, 1, "FALSE RED")])
    def test_wrong_exit_code_is_false_green_or_false_red(
        self, tmp_path: Path, lost: bool, code: int, words: str
    ) -> None:
        case = self.find_case(tmp_path, lost=lost)
        verdict = SimpleNamespace(exit_code=code, broken=("1 lost",))
        assert [text[: len(words)] for text in cases.untrue(case, verdict)] == [words]
        for other in {0, 1, 3} - {code}:
            assert cases.untrue(case, SimpleNamespace(exit_code=other, broken=())) == []

    def test_any_other_verdict_differs_from_the_rules(self, tmp_path: Path) -> None:
        """Another count of a word and another exit code are both reported."""
        case = self.find_case(tmp_path / "runs", lost=False)
        ledger, capture = tmp_path / "ledger", tmp_path / "capture"
        cases.write(ledger, case.evidence.ledger)
        cases.write(capture, case.evidence.capture)
        verdict = in_process(ledger, capture)
        expected = rules.judge(case.evidence.ledger, case.evidence.capture, "logux")
        assert cases.differences(expected, verdict) == []
        name = next(name for name, counts in expected.counts.items() if counts.get("ok"))
        expected.counts[name]["ok"] -= 1
        assert len(cases.differences(expected, verdict)) == 1
        assert len(cases.differences(expected._replace(exit_code=2), verdict)) == 2


@pytest.mark.parametrize("protocol", cases.PROTOCOLS)
def test_each_kind_of_damage_is_judged_by_the_rules(protocol: str) -> None:
    judged = [cases.judge(seed, protocol, in_process) for seed in range(PER_PROTOCOL)]
    wrong = failing(judged)
    assert not wrong, f"{len(wrong)} of {len(judged)} cases:\n" + "\n".join(wrong[:10])
    assert {one.exit_code for one in judged} >= {0, 1, 3}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("protocol", "n"),
    [("plog", 20), *(pytest.param(name, LONG // 4, marks=pytest.mark.long) for name in cases.PROTOCOLS)],
)
def test_random_damage_is_judged_by_the_rules_on_spark(spark: Any, protocol: str, n: int) -> None:
    judged = all_of(spark, protocol, 1000, n)
    print(table(judged))
    wrong = failing(judged)
    assert not wrong, f"{len(wrong)} of {len(judged)} cases:\n" + "\n".join(wrong[:10])
    assert sorted(one.seed for one in judged) == list(range(1000, 1000 + n))
