"""Ledgers packed: every line, every way a file can end, and the arithmetic of ranges."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import LedgerError
from tests import shared
from tests import verify_files as files

np = shared.need("numpy")
ledger = pytest.importorskip("logclient.verify.ledger")

P, Q = "0a" * 10, "0b" * 10
BITS = 3


def packed(tmp_path: Path, *, bits: int = BITS, together: bool = True) -> Any:
    """The packed form of everything in ``tmp_path / "l"``."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    parts = ledger.parts(str(tmp_path / "l"))
    groups = [parts] if together else [[part] for part in parts]
    facts = [ledger.pack(group, index, str(work)) for index, group in enumerate(groups)]
    json.dumps(facts)
    return ledger.merge(facts, str(work), bits)


def events(*seqs: int) -> list[tuple[int, int, int]]:
    return [(seq, 1000 + seq, seq * 11) for seq in seqs]


@pytest.mark.parametrize("together", [True, False])
def test_a_bucket_says_what_the_lines_said(tmp_path: Path, together: bool) -> None:
    folder = tmp_path / "l"
    files.write_part(
        folder, P, 1,
        [
            files.open_line(P),
            files.batch_line(events(1, 2, 5)),
            files.dropped_line([3, 4]),
            files.outcome_line("acked", [1, 2]),
        ],
    )  # fmt: skip
    files.write_part(
        folder, P, 2,
        [
            files.open_line(P, 2),
            files.batch_line(events(6, 7, 8, 9, 10)),
            files.outcome_line("handed", [5, 6]),
            files.outcome_line("failed", [7]),
            {"t": "later", "what": "a kind of line that is not known"},
            files.close_line(12, acked=2),
        ],
    )  # fmt: skip
    files.write_part(folder, Q, 1, [files.open_line(Q), files.batch_line(events(1)), files.close_line(1)])
    found = packed(tmp_path, together=together)
    assert len(found) == 2
    producer = found.producers[0]
    assert (producer.producer, producer.last, producer.closed, producer.events) == (P, 12, True, 8)
    assert producer.problems == []
    assert found.bases.tolist() == [0, 2, 3]
    assert found.live.tolist() == [0, 1, 2]
    first = found.bucket(0)
    assert (first.producer, first.first) == (0, 1)
    assert first.listed.tolist() == [True, True, False, False, True, True, True, True]
    assert first.hashes.tolist() == [11, 22, 0, 0, 55, 66, 77, 88]
    assert first.created_us.tolist() == [1001, 1002, 0, 0, 1005, 1006, 1007, 1008]
    assert first.fate.tolist() == [4, 4, 1, 1, 3, 3, 2, 0]
    second = found.bucket(1)
    assert (second.first, second.listed.tolist()) == (9, [True, True, False, False])
    assert found.bucket(2).hashes.tolist() == [11]
    assert found.fates_at(0, np.array([1, 4, 6, 7, 11])).tolist() == [4, 1, 3, 2, 0]


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({**files.batch_line(events(1, 2)), "more": "later"}),
        json.dumps(dict(reversed(files.batch_line(events(1, 2)).items()))),
        files.encode_line(files.batch_line(events(1, 2))).decode().strip().replace("A", "\\u0041"),
    ],
)
def test_a_batch_written_in_another_way(tmp_path: Path, line: str) -> None:
    files.write_part(tmp_path / "l", P, 1, [files.open_line(P), line.encode() + b"\n", files.close_line(2)])
    found = packed(tmp_path)
    assert found.producers[0].problems == []
    assert found.bucket(0).hashes.tolist() == [11, 22]


def test_created_before_its_base(tmp_path: Path) -> None:
    lines = [files.open_line(P), files.batch_line([(1, 500, 1), (2, 400, 2)]), files.close_line(2)]
    files.write_part(tmp_path / "l", P, 1, lines)
    assert packed(tmp_path).bucket(0).created_us.tolist() == [500, 400]


def horizon(tmp_path: Path, *parts: list[Any], first: int = 1) -> tuple[int, int, bool, list[str]]:
    for number, lines in enumerate(parts, first):
        files.write_part(tmp_path / "l", P, number, lines)
    [producer] = packed(tmp_path).producers
    return producer.last, producer.horizon, producer.closed, producer.problems


OPEN, OPEN2 = files.open_line(P), files.open_line(P, 2)
BATCH, CLOSE = files.batch_line(events(1, 2, 3)), files.close_line(5)
FOR_EVER = (1 << 48) - 1


def test_closed(tmp_path: Path) -> None:
    assert horizon(tmp_path, [OPEN, BATCH, CLOSE]) == (5, FOR_EVER, True, [])


@pytest.mark.parametrize("tail", [[], [b'{"t":"batch"'], [files.encode_line(BATCH)[:-1]], [b"\0\0\0"]])
def test_killed(tmp_path: Path, tail: list[bytes]) -> None:
    """Whatever was being written when it was killed: the rest stands, and ends at the last listed."""
    assert horizon(tmp_path, [OPEN, BATCH, *tail]) == (3, 3, False, [])


def test_killed_at_its_first_line(tmp_path: Path) -> None:
    last, reach, closed, problems = horizon(tmp_path, [b'{"t":"op'])
    assert (last, reach, closed) == (0, 0, False)
    assert "no open line" in problems[0]


def test_killed_between_two_parts(tmp_path: Path) -> None:
    assert horizon(tmp_path, [OPEN, BATCH], [b'{"t"']) == (3, 3, False, [])


def test_stopped(tmp_path: Path) -> None:
    last, reach, closed, problems = horizon(
        tmp_path, [OPEN, BATCH, {"t": "stopped", "reason": "disk full"}, CLOSE]
    )
    assert (last, reach, closed) == (5, 3, True)
    assert "disk full" in problems[0]


DAMAGE: list[tuple[Any, str]] = [
    (b"{\n", "Expecting"),
    (b"[1]\n", "must be"),
    (b"null\n", ""),
    (b"\xff\xfe\n", ""),
    ({"n": 1}, "t"),
    ({**BATCH, "n": 4}, "n is 4, its seqs are 3"),
    ({**BATCH, "hashes": BATCH["hashes"][:-4]}, "hashes"),
    ({**BATCH, "created": "AAAA"}, "created"),
    ({**BATCH, "created": "*"}, ""),
    ({**BATCH, "base": 1 << 70}, ""),
    ({**BATCH, "seqs": [[3, 1]]}, "do not rise"),
    ({**BATCH, "seqs": [[1, 1], [1, 2]]}, "do not rise"),
    ({**BATCH, "seqs": [[0, 2]]}, "do not rise"),
    ({**BATCH, "seqs": [[1, 1 << 48]]}, "do not rise"),
    ({**BATCH, "seqs": [[1.0, 3.0]]}, "do not rise"),
    ({**BATCH, "seqs": 7}, ""),
    (files.outcome_line("exploded", [1]), "exploded"),
    (files.open_line(Q), "speaks of producer"),
    ({**OPEN, "version": 2}, "only 1 is known"),
    ({**OPEN, "identity": "maybe"}, "identity"),
    ({**CLOSE, "last": -1}, "last"),
    ({"t": "ids", "seqs": [[1, 2]], "n": 2, "ids": "AAAA"}, "ids"),
    (b"[" * 100_000 + b"\n", ""),
]


@pytest.mark.parametrize(("line", "words"), DAMAGE)
def test_a_damaged_line_makes_the_unlisted_unknown(tmp_path: Path, line: Any, words: str) -> None:
    last, reach, closed, problems = horizon(tmp_path, [OPEN, BATCH, line, CLOSE])
    assert (last, reach, closed) == (5, 0, True)
    assert "line 3" in problems[0]
    assert words in problems[0]


def test_other_damage(tmp_path: Path) -> None:
    cases = {
        "no open": [[BATCH, CLOSE]],
        "torn": [[OPEN, BATCH, b'{"t"'], [OPEN2, CLOSE]],
        "identity": [[OPEN, BATCH], [files.open_line(P, 2, identity="none"), CLOSE]],
    }
    for name, parts in cases.items():
        (tmp_path / name).mkdir()
        _, reach, _, problems = horizon(tmp_path / name, *parts)
        assert reach == 0, name
        assert problems, name
    (tmp_path / "missing").mkdir()
    _, reach, _, problems = horizon(tmp_path / "missing", [OPEN2, BATCH, CLOSE], first=2)
    assert reach == 0
    assert "part 2 where 1 was due" in problems[0]


def test_the_stronger_word_holds(tmp_path: Path) -> None:
    lines = [
        OPEN, BATCH, files.outcome_line("acked", [1]), files.outcome_line("failed", [1, 2]),
        files.dropped_line([2]), files.outcome_line("handed", [2]), CLOSE,
    ]  # fmt: skip
    files.write_part(tmp_path / "l", P, 1, lines)
    assert packed(tmp_path).bucket(0).fate.tolist()[:3] == [4, 3, 0]


def test_ids_given_twice_go_to_the_pool(tmp_path: Path) -> None:
    a = [files.ids_line([(1, "mine"), (2, "shared"), (3, "once")])]
    b = [files.ids_line([(2, "shared"), (3, "other")])]
    for producer, ids in ((P, a), (Q, b)):
        files.write_part(
            tmp_path / "l",
            producer,
            1,
            [files.open_line(producer), files.batch_line(events(1, 2, 3)), *ids, files.close_line(3)],
        )
    found = packed(tmp_path)
    assert found.pooled.tolist() == [[0, 2], [1, 2]]
    assert found.bucket(0).pooled.tolist() == [False, True, False]
    assert len(found.ids) == 4
    by_hash = {(int(row[0]), int(row[1])): (int(row[2]), int(row[3])) for row in found.ids}
    assert by_hash[files.xxh64(b"once"), files.xxh64(b"once", 43)] == (0, 3)
    assert by_hash[files.xxh64(b"other"), files.xxh64(b"other", 43)] == (1, 3)
    assert by_hash[files.xxh64(b"shared"), files.xxh64(b"shared", 43)][0] >= 2  # nobody's


def test_overlapping_lines_of_a_damaged_ledger(tmp_path: Path) -> None:
    """The same sequences twice, one span inside the other: each is found whatever the order."""
    lines = [
        OPEN,
        files.batch_line(events(*range(1, 40))),
        files.batch_line(events(5, 6)),
        files.close_line(40),
    ]
    files.write_part(tmp_path / "l", P, 1, lines)
    found = packed(tmp_path)
    for bucket in range(5):
        listed = found.bucket(bucket).listed
        assert listed.sum() == (8 if bucket < 4 else 7)


def test_parts_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "l"
    folder.mkdir()
    with pytest.raises(LedgerError, match="has no ledger"):
        ledger.parts(str(folder))
    with pytest.raises(LedgerError, match="No such file"):
        ledger.parts(str(tmp_path / "nowhere"))
    for name in (
        f"{P}-0002.ledger",
        f"{P}-0001.ledger",
        f"{P}-1.ledger",
        "x-0001.ledger",
        f"{Q}-10000.ledger",
        "note.txt",
    ):
        (folder / name).write_bytes(b"")
    assert [(p.producer, p.number) for p in ledger.parts(str(folder))] == [(P, 1), (P, 2), (Q, 10000)]


# -- ranges

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8).map(
    lambda pairs: np.array([[a, a + n] for a, n in pairs], np.int64).reshape(-1, 2)
)


def numbers(found: Any) -> set[int]:
    return {n for a, b in found.tolist() for n in range(a, b + 1)}


def is_union(found: Any) -> bool:
    rows = found.tolist()
    return all(a <= b for a, b in rows) and all(x[1] + 1 < y[0] for x, y in pairwise(rows))


@given(ranges, ranges)
def test_ranges(a: Any, b: Any) -> None:
    ua, ub = ledger.union(a), ledger.union(b)
    assert is_union(ua)
    assert numbers(ua) == numbers(a)
    assert ledger.length(ua) == len(numbers(a))
    assert sorted(numbers(a)) == ledger.expand(ua).tolist()
    assert numbers(ledger.intersect(ua, ub)) == numbers(a) & numbers(b)
    assert ledger.length(ledger.intersect(ua, ub)) == len(numbers(a) & numbers(b))
    assert numbers(ledger.subtract(ua, ub)) == numbers(a) - numbers(b)
    assert ledger.length(ledger.subtract(ua, ub)) == len(numbers(a) - numbers(b))
