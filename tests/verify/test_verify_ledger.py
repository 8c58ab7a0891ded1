"""Ledgers: every line, every way a file can end, and the arithmetic of ranges."""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import LedgerError
from tests import support
from tests.support import verify_files as files

Selection = pytest.importorskip("logclient.evidence.selection").Selection
np = support.need("numpy")
arrays = pytest.importorskip("logclient.evidence.arrays")
ledger = pytest.importorskip("logclient.verify.ledger_facts")
ledger_files = pytest.importorskip("logclient.evidence.ledger_files")
ledgers = pytest.importorskip("tests.verify.ledgers")

P, Q = "0a" * 10, "0b" * 10
BITS = 3


def read(tmp_path: Path, **options: Any) -> Any:
    """Read everything in ``tmp_path / "l"``."""
    return ledgers.Ledgers.read(tmp_path / "l", BITS, **options)


def events(*seqs: int) -> list[tuple[int, int, int]]:
    return [(seq, 1000 + seq, seq * 11) for seq in seqs]


@pytest.mark.parametrize("together", [True, False])
def test_buckets_hold_what_the_lines_say(tmp_path: Path, together: bool) -> None:
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
            files.dropped_line([11, 12]),
            {"t": "later", "what": "a kind of line that is not known"},
            files.close_line(12, acked=2, handed=2, failed=1, dropped=4),
        ],
    )  # fmt: skip
    files.write_part(folder, Q, 1, [files.open_line(Q), files.batch_line(events(1)), files.close_line(1)])
    both = read(tmp_path, group=9 if together else 1)
    found = both.facts
    assert len(found) == 2
    producer = found.producers[0]
    assert (producer.producer, producer.last, producer.closed, found.rows["listed"][0]) == (P, 12, True, 8)
    assert producer.problems == []
    assert found.bases.tolist() == [0, 2, 3]
    assert found.live.tolist() == [0, 1, 2]
    first = both.bucket(0)
    assert (first.producers.tolist(), first.firsts.tolist()) == ([0], [1])
    assert first.listed.tolist() == [True, True, False, False, True, True, True, True]
    assert first.hashes.tolist() == [11, 22, 0, 0, 55, 66, 77, 88]
    assert first.created_us.tolist() == [1001, 1002, 0, 0, 1005, 1006, 1007, 1008]
    assert first.outcome.tolist() == [4, 4, 1, 1, 3, 3, 2, 0]
    second = both.bucket(1)
    assert (second.firsts.tolist(), second.listed.tolist()) == ([9], [True, True, False, False])
    assert both.bucket(2).hashes.tolist() == [11]
    assert found.outcomes_at(0, np.array([1, 4, 6, 7, 8, 11])).tolist() == [4, 1, 3, 2, 0, 1]


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({**files.batch_line(events(1, 2)), "more": "later"}),
        json.dumps(dict(reversed(files.batch_line(events(1, 2)).items()))),
        files.encode_line(files.batch_line(events(1, 2))).decode().strip().replace("A", "\\u0041"),
    ],
)
def test_batch_line_may_be_written_in_any_json_form(tmp_path: Path, line: str) -> None:
    files.write_part(tmp_path / "l", P, 1, [files.open_line(P), line.encode() + b"\n", files.close_line(2)])
    found = read(tmp_path)
    assert found.facts.producers[0].problems == []
    assert found.bucket(0).hashes.tolist() == [11, 22]


def test_creation_time_may_lie_before_its_base(tmp_path: Path) -> None:
    lines = [files.open_line(P), files.batch_line([(1, 500, 1), (2, 400, 2)]), files.close_line(2)]
    files.write_part(tmp_path / "l", P, 1, lines)
    assert read(tmp_path).bucket(0).created_us.tolist() == [500, 400]


def read_evidence(tmp_path: Path, *parts: list[Any], first: int = 1) -> tuple[int, str, list[str]]:
    """Read these parts: the last sequence, the kind of evidence, and the problems."""
    earlier: list[Any] = []
    for number, lines in enumerate(parts, first):
        files.write_part(tmp_path / "l", P, number, lines, earlier)
        earlier += lines
    [producer] = read(tmp_path).facts.producers
    assert producer.closed == (producer.evidence == ledger.WHOLE) or producer.evidence > ledger.UNCLOSED
    return producer.last, ledger.EVIDENCE[producer.evidence], producer.problems


OPEN, OPEN2 = files.open_line(P), files.open_line(P, 2)
BATCH, DROPPED = files.batch_line(events(1, 2, 3)), files.dropped_line([4, 5])
CLOSE = files.close_line(5)
IDS = {"t": "ids", "seqs": [[1, 2]], "n": 2, "ids": "A" * 43 + "="}


def test_closed_ledger_is_whole(tmp_path: Path) -> None:
    assert read_evidence(tmp_path, [OPEN, BATCH, DROPPED, CLOSE]) == (5, "whole", [])


def test_ledger_closed_in_its_second_part_is_whole(tmp_path: Path) -> None:
    assert read_evidence(tmp_path, [OPEN, BATCH], [OPEN2, DROPPED, CLOSE]) == (5, "whole", [])


def test_empty_lines_are_ignored(tmp_path: Path) -> None:
    assert read_evidence(tmp_path, [b"\n", OPEN, BATCH, b"\n", DROPPED, CLOSE, b"\n"])[1:] == ("whole", [])


@pytest.mark.parametrize("tail", [[], [b'{"t":"batch"'], [files.encode_line(BATCH)[:-1]], [b"\0\0\0"]])
def test_torn_last_line_leaves_the_ledger_unclosed(tmp_path: Path, tail: list[bytes]) -> None:
    """The ledger ends at the last sequence that is listed."""
    last, kind, problems = read_evidence(tmp_path, [OPEN, BATCH, *tail])
    assert (last, kind) == (3, "unclosed")
    assert "no end" in problems[0]


@pytest.mark.parametrize("data", [b"", b"\n", b'{"t":"op'])
def test_torn_first_line_leaves_an_empty_ledger(tmp_path: Path, data: bytes) -> None:
    assert read_evidence(tmp_path, [data])[:2] == (0, "unclosed")


@pytest.mark.parametrize("data", [b"", b'{"t"'])
def test_torn_second_part_leaves_the_ledger_unclosed(tmp_path: Path, data: bytes) -> None:
    assert read_evidence(tmp_path, [OPEN, BATCH], [data])[:2] == (3, "unclosed")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (BATCH, (5, "holes")),
        (files.batch_line(events(6)), (6, "unclosed")),
        (files.deferred_line([1]), (5, "unclosed")),
        ({"t": "later"}, (5, "unclosed")),
        (b"{", (5, "unclosed")),
        (b"damage\n", (5, "holes")),
    ],
)
def test_line_after_the_close_reopens_the_ledger(
    tmp_path: Path, more: Any, expected: tuple[int, str]
) -> None:
    assert read_evidence(tmp_path, [OPEN, BATCH, DROPPED, CLOSE, more])[:2] == expected


def test_stopped_line_gives_its_reason(tmp_path: Path) -> None:
    last, kind, problems = read_evidence(
        tmp_path, [OPEN, BATCH, DROPPED, {"t": "stopped", "reason": "disk full"}, CLOSE]
    )
    assert (last, kind) == (5, "stopped")
    assert "disk full" in problems[0]


DAMAGE: list[tuple[Any, str]] = [
    (b"{\n", "Expecting"),
    (b"[1]\n", "no object"),
    (b"null\n", "no object"),
    (b"\xff\xfe\n", ""),
    ({"n": 1}, "t"),
    ({"t": 1}, "t is not a text"),
    ({**BATCH, "n": 4}, "n is 4, its seqs are 3"),
    ({**BATCH, "n": True}, "n is True"),
    ({**BATCH, "hashes": BATCH["hashes"][:-4]}, "hashes"),
    ({**BATCH, "created": "AAAA"}, "created"),
    ({**BATCH, "created": "*"}, ""),
    ({**BATCH, "created": 7}, ""),
    ({**BATCH, "base": 1 << 70}, "base"),
    ({**BATCH, "base": 1.5}, "base"),
    ({**BATCH, "seqs": [[3, 1]]}, "do not rise"),
    ({**BATCH, "seqs": [[1, 1], [1, 2]]}, "do not rise"),
    ({**BATCH, "seqs": [[0, 2]]}, "do not rise"),
    ({**BATCH, "seqs": [[1, 1 << 48]]}, "do not rise"),
    ({**BATCH, "seqs": [[1.0, 3.0]]}, "do not rise"),
    ({**BATCH, "seqs": 7}, ""),
    ({**BATCH, "seqs": []}, "empty"),
    ({**BATCH, "own": [[4, 4]]}, "own"),
    ({**BATCH, "own": []}, "empty"),
    (files.batch_line([]), "empty"),
    (files.outcome_line("exploded", [1]), "exploded"),
    (files.outcome_line("acked", []), "empty"),
    ({**files.outcome_line("acked", [1]), "status": ["acked"]}, "status"),
    ({"t": "stopped", "reason": None}, "reason"),
    ({**CLOSE, "last": -1}, "last"),
    (files.close_line(5, acked=-1), "acked"),
    (files.close_line(5, dropped=1 << 63), "dropped"),
    (files.close_line(5, bytes=-1), "bytes"),
    (b'{"t":"close","last":5,"acked":0,"handed":0,"failed":{"a":' + b"9" * 9000 + b'},"dropped":{}}\n', ""),
    ({"t": "ids", "seqs": [[1, 2]], "n": 2, "ids": "AAAA"}, "ids"),
    ({"t": "ids", "seqs": [[1, 2]], "n": 1, "ids": "A" * 43 + "="}, "n is 1"),
    ({"t": "ids", "seqs": [], "n": 0, "ids": ""}, "empty"),
    ({**IDS, "beside": [[3, 3]], "second": "A" * 22 + "=="}, "beside"),
    ({**IDS, "beside": [[1, 1]], "second": "AAAA"}, "second"),
    ({**IDS, "beside": [[1, 1]]}, "second"),
    ({**IDS, "beside": []}, "empty"),
    ({"t": "deferred", "seqs": []}, "empty"),
    (files.dropped_line([]), "empty"),
    (b"[" * 100_000 + b"\n", ""),
]


@pytest.mark.parametrize(("line", "words"), DAMAGE)
def test_damaged_line_is_named_with_its_place(tmp_path: Path, line: Any, words: str) -> None:
    if isinstance(line, dict) and line.get("t") == "close" and "acked" not in line:
        line = {**files.close_line(5, acked=1), "last": line["last"]}
    last, kind, problems = read_evidence(tmp_path, [OPEN, BATCH, DROPPED, files.encode_line(line), CLOSE])
    assert (last, kind) == (5, "holes")
    (problem,) = problems
    assert f"{P}-0001.ledger line 4: " in problem
    assert words in problem


def test_inconsistent_parts_and_lines_are_holes(tmp_path: Path) -> None:
    other = [files.open_line(P, 2, identity="none"), files.batch_line(events(6)), CLOSE]
    cases: dict[str, tuple[list[list[Any]], str]] = {
        "no open": ([[BATCH, CLOSE]], "open line"),
        "damaged open": ([[b"{\n", BATCH, CLOSE]], "open line"),
        "version": ([[{**OPEN, "version": 2}, BATCH, CLOSE]], "version 2: only 1 is known"),
        "no version": ([[{**OPEN, "version": True}, BATCH, CLOSE]], "version True: only 1 is known"),
        "maybe": ([[{**OPEN, "identity": "maybe"}, BATCH, CLOSE]], "identity"),
        "another": ([[files.open_line(Q), BATCH, CLOSE]], f"producer {Q}"),
        "another part": ([[OPEN2, BATCH, CLOSE]], "part 2"),
        "again": ([[OPEN, BATCH, DROPPED, OPEN, CLOSE]], "line 4: another open line"),
        "torn": ([[OPEN, BATCH, b'{"t"'], [OPEN2, DROPPED, CLOSE]], "torn line"),
        "empty": ([[b""], [OPEN2, DROPPED, CLOSE]], "empty part 1"),
        "identity": ([[OPEN, BATCH], other], "identity"),
        "protocol": ([[OPEN, BATCH], [files.open_line(P, 2, protocol="plog"), CLOSE]], "protocol"),
        "bytes": ([[OPEN, BATCH, DROPPED, files.close_line(5, dropped=2, bytes=99)]], "99 bytes"),
        "twice": ([[OPEN, BATCH, BATCH, DROPPED, CLOSE]], "3 sequences in more than one batch line"),
        "own": ([[OPEN, {**BATCH, "own": [[2, 3]]}, DROPPED, CLOSE]], "2 sequences with an id of their own"),
        "ids": ([[OPEN, BATCH, DROPPED, files.ids_line([(4, "a")]), CLOSE]], "1 sequences in an ids line"),
        "unlisted": ([[OPEN, BATCH, files.outcome_line("handed", [4, 5]), CLOSE]], "in no batch line"),
        "no line": ([[OPEN, BATCH, CLOSE]], "no line of 2 sequences"),
        "behind": ([[OPEN, BATCH, DROPPED, files.close_line(4, dropped=2)]], "ends with sequence 4"),
    }
    for name, (parts, words) in cases.items():
        (tmp_path / name).mkdir()
        _, kind, problems = read_evidence(tmp_path / name, *parts)
        assert kind == "holes", name
        assert any(words in problem for problem in problems), (name, problems)
    (tmp_path / "missing").mkdir()
    _, kind, problems = read_evidence(tmp_path / "missing", [OPEN2, BATCH, DROPPED, CLOSE], first=2)
    assert kind == "holes"
    assert "part 2 where 1 was due" in problems[0]


def test_part_that_is_not_read_counts_for_nothing(tmp_path: Path) -> None:
    """Neither its events nor its outcomes nor its end count."""
    other = [
        files.open_line(P, 2, identity="none"), files.batch_line(events(4)), files.outcome_line("acked", [1]),
        files.ids_line([(1, "mine")]), files.deferred_line([2]), files.dropped_line([9]), CLOSE,
    ]  # fmt: skip
    last, _, _ = read_evidence(tmp_path, [OPEN, BATCH], other)
    both = read(tmp_path)
    found = both.facts
    assert (last, found.rows["listed"][0], found.producers[0].closed) == (3, 3, False)
    assert both.bucket(0).outcome.tolist() == [0, 0, 0]
    assert (len(found.ids), len(found.rows_of("deferred", 0, 1)), len(found.drops)) == (0, 0, 0)


def test_lines_written_after_the_listing_are_not_read(tmp_path: Path) -> None:
    path = files.write_part(tmp_path / "l", P, 1, [OPEN, BATCH])
    found = ledger_files.find_ledgers([str(tmp_path / "l")]).parts
    path.write_bytes(path.read_bytes() + files.encode_line(files.batch_line(events(4))))
    found = ledgers.ledger_merge.merge([ledgers.ledger_lines.survey(found)], BITS)
    assert found.last.tolist() == [3]


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    path = files.write_part(tmp_path / "l", P, 1, [OPEN, BATCH])
    found = ledger_files.find_ledgers([str(tmp_path / "l")]).parts
    path.unlink()
    with pytest.raises(LedgerError, match=rf"^ledger: {path}: No such file or directory$"):
        ledgers.ledger_lines.survey(found)


def test_pending_after_is_the_highest_sequence_made_by_then(tmp_path: Path) -> None:
    """Events are made in microsecond 1000 + sequence."""
    path = [OPEN, files.batch_line(events(1, 2, 5)), files.batch_line(events(3, 7))]
    files.write_part(tmp_path / "l", P, 1, path)
    for until, expected in ((1001, 0), (1002, 1), (1005, 3), (1007, 5), (9999, 7), (None, (1 << 48) - 1)):
        found = read(tmp_path, selection=Selection(since_us=1, until_us=until)).facts
        assert found.pending_after.tolist() == [expected]


def test_stronger_outcome_wins(tmp_path: Path) -> None:
    lines = [
        OPEN, BATCH, files.outcome_line("acked", [1]), files.outcome_line("failed", [1, 2]),
        files.dropped_line([2]), files.outcome_line("handed", [2]), CLOSE,
    ]  # fmt: skip
    files.write_part(tmp_path / "l", P, 1, lines)
    assert read(tmp_path).bucket(0).outcome.tolist()[:3] == [4, 3, 0]


def test_ids_of_two_events_are_shared(tmp_path: Path) -> None:
    a = [files.ids_line([(1, "mine"), (2, "shared"), (3, "once")])]
    b = [files.ids_line([(2, "shared"), (3, "other")])]
    for producer, ids in ((P, a), (Q, b)):
        files.write_part(
            tmp_path / "l",
            producer,
            1,
            [files.open_line(producer), files.batch_line(events(1, 2, 3)), *ids, files.close_line(3)],
        )
    both = read(tmp_path)
    found = both.facts
    assert found.shared[:, :2].tolist() == [[0, 2], [1, 2]]
    assert both.bucket(0).shared.tolist() == [False, True, False] * 2
    assert len(found.ids) == 4
    by_hash = {(int(row[0]), int(row[1])): (int(row[2]), int(row[3])) for row in found.ids}
    assert by_hash[files.xxh64(b"once"), files.xxh64(b"once", 43)] == (0, 3)
    assert by_hash[files.xxh64(b"other"), files.xxh64(b"other", 43)] == (1, 3)
    assert by_hash[files.xxh64(b"shared"), files.xxh64(b"shared", 43)][0] >= 2  # of neither producer


def test_generated_id_given_to_another_event_is_shared(tmp_path: Path) -> None:
    mine = files.event_id(P, 1)
    own = [(2, mine), (3, files.event_id(P, 3)), (4, files.event_id("f" * 20, 1))]
    lines = [OPEN, files.batch_line(events(1, 2, 3, 4)), files.ids_line(own), files.close_line(4)]
    files.write_part(tmp_path / "l", P, 1, lines)
    found = read(tmp_path).facts
    assert found.shared[:, :2].tolist() == [
        [0, 1],
        [0, 2],
    ]  # the third is its own id, the fourth of no ledger
    assert len(found.ids) == 3


def test_sequences_in_two_batch_lines_are_not_listed(tmp_path: Path) -> None:
    lines = [OPEN, files.batch_line(events(*range(1, 40))), files.batch_line(events(5, 6, 40))]
    files.write_part(tmp_path / "l", P, 1, lines)
    found = read(tmp_path)
    listed = [8 * b + 1 + int(i) for b in range(5) for i in np.flatnonzero(found.bucket(b).listed)]
    assert listed == [seq for seq in range(1, 41) if seq not in (5, 6)]
    for bucket in range(5):
        one = found.bucket(bucket)
        sequences = one.firsts[0] + np.arange(8)
        assert one.hashes[one.listed].tolist() == (11 * sequences[one.listed]).tolist()


def test_ledger_parts_are_found_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "l"
    folder.mkdir()
    with pytest.raises(LedgerError, match="has no ledger"):
        ledger_files.find_ledgers([str(folder)])
    with pytest.raises(LedgerError, match="No such file"):
        ledger_files.find_ledgers([str(tmp_path / "nowhere")])
    odd = tuple(
        f"{name}.ledger"
        for name in (f"{P}-1", f"{P}-00003", f"{P.upper()}-0001", "x-0001", f"x.LEDGER-{P}-0001")
    )
    for name in (f"{P}-0002.ledger", f"{P}-0001.ledger", f"{Q}-10000.ledger", "note.txt", *odd):
        (folder / name).write_bytes(b"")
    (folder / "host" / "deep").mkdir(parents=True)
    (folder / "host" / "deep" / f"{P}-0003.ledger").write_bytes(b"")
    (folder / f"{P}-0004.ledger").symlink_to("nowhere")
    os.mkfifo(folder / f"{P}-0005.ledger")
    found = ledger_files.find_ledgers([str(folder)]).parts
    assert [(p.producer, p.number) for p in found] == [(P, 1), (P, 2), (P, 3), (Q, 10000)]
    assert found[2].path == str(folder / "host" / "deep" / f"{P}-0003.ledger")
    unread = ledger_files.find_ledgers([str(folder)]).unread
    assert set(unread) == {*odd, f"{P}-0004.ledger", f"{P}-0005.ledger"}


# -- ranges

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8).map(
    lambda pairs: np.array([[a, a + n] for a, n in pairs], np.int64).reshape(-1, 2)
)


def as_set(found: Any) -> set[int]:
    return {n for a, b in found.tolist() for n in range(a, b + 1)}


def is_sorted_and_disjoint(found: Any) -> bool:
    rows = found.tolist()
    return all(a <= b for a, b in rows) and all(x[1] + 1 < y[0] for x, y in pairwise(rows))


@given(ranges, ranges)
def test_ranges_behave_as_sets_of_numbers(a: Any, b: Any) -> None:
    ua, ub = arrays.union(a), arrays.union(b)
    assert is_sorted_and_disjoint(ua)
    assert as_set(ua) == as_set(a)
    assert arrays.total_length(ua) == len(as_set(a))
    assert sorted(as_set(a)) == arrays.expand(ua).tolist()
    assert as_set(arrays.intersect(ua, ub)) == as_set(a) & as_set(b)
    assert arrays.total_length(arrays.intersect(ua, ub)) == len(as_set(a) & as_set(b))
    assert as_set(arrays.subtract(ua, ub)) == as_set(a) - as_set(b)
    rows = a.tolist()
    count = Counter(n for low, high in rows for n in range(low, high + 1))
    more = {n for n, copies in count.items() if copies > 1}
    assert is_sorted_and_disjoint(arrays.repeated(a))
    assert as_set(arrays.repeated(a)) == more
    assert arrays.total_length(arrays.subtract(ua, ub)) == len(as_set(a) - as_set(b))
