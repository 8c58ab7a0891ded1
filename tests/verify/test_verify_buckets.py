"""Buckets: where the sequences of producers lie, and that a verdict does not depend on it."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient.errors import LedgerError
from tests import support
from tests.support import verify_files as files
from tests.support.verify_scene import P, Scene
from tests.verify.histories import World, assert_equals_reference

np = support.need("numpy")
support.need("pyarrow")
arrays = pytest.importorskip("logclient.evidence.arrays")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
ledger_facts = pytest.importorskip("logclient.verify.ledger_facts")
ledger_buckets = pytest.importorskip("logclient.verify.ledger_buckets")
ledgers = pytest.importorskip("tests.verify.ledgers")
plan = pytest.importorskip("logclient.verify.plan")
runners = pytest.importorskip("logclient.verify.runners")

SIZES = st.lists(st.integers(0, 20), min_size=1, max_size=30)


@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(0, 4))
@example([[1], [1]], 1)
def test_every_sequence_has_a_place_of_its_own(calls: list[list[int]], bits: int) -> None:
    placer = ledger_buckets.Placer(bits)
    placed = [placer.place(np.array(sizes, np.int64)) for sizes in calls]
    buckets, starts = (np.concatenate(columns).tolist() for columns in zip(*placed, strict=True))
    assert buckets == sorted(buckets)
    sizes = [size for call in calls for size in call]
    taken: dict[tuple[int, int], int] = {}
    alone = {}
    for p, (size, bucket, start) in enumerate(zip(sizes, buckets, starts, strict=True)):
        for i in range(size):
            place = bucket + (i >> bits), start + (i & ((1 << bits) - 1))
            assert place[1] < 1 << bits
            assert taken.setdefault(place, p) == p
            alone[place] = size > 1 << bits
    of_bucket: dict[int, set[int]] = {}
    for (bucket, _), p in taken.items():
        of_bucket.setdefault(bucket, set()).add(p)
    assert all(len(of_bucket[bucket]) == 1 for (bucket, _), own in alone.items() if own)
    assert placer.end == len(of_bucket)
    # Two neighbours of small producers do not fit into one bucket.
    small = [b for b in sorted(of_bucket) if not alone[b, 0]]
    for a, b in itertools.pairwise(small):
        if b == a + 1:
            first = min(of_bucket[b])
            assert sum(1 for bucket, _ in taken if bucket == a) + sizes[first] > 1 << bits


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=600))
def test_covered_numbers_are_those_of_any_range(ranges: list[tuple[int, int]]) -> None:
    expected = {x for first, n in ranges for x in range(first, first + n + 1)}
    rows = np.array([(first, first + n) for first, n in ranges], np.int64).reshape(-1, 2)
    assert set(np.flatnonzero(arrays.covered(rows, 50)).tolist()) == expected


@given(st.lists(st.tuples(st.sampled_from([-3, 0, 1, 7, 1 << 40]), st.integers(1, 5)), max_size=50))
def test_sums_by_key_are_those_of_a_loop(pairs: list[tuple[int, int]]) -> None:
    keys, n = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    expected: dict[int, int] = {}
    for key, value in pairs:
        expected[key] = expected.get(key, 0) + value
    found = arrays.sum_by_key(keys, n)
    assert dict(zip(*(x.tolist() for x in found), strict=True)) == dict(sorted(expected.items()))
    found = arrays.sum_by_key(keys)
    assert sum(found[1].tolist()) == len(pairs)


bucket = st.tuples(st.integers(1, 1000), st.sampled_from([0, 0, 1]))  # cost, and whether a new owner begins


@given(st.lists(bucket, max_size=60), st.integers(1, 4), st.integers(1, 5000))
def test_tasks_have_neighbouring_buckets_of_equal_cost(
    buckets: list[tuple[int, int]], cores: int, limit: int
) -> None:
    costs, owners = [cost for cost, _ in buckets], [*itertools.accumulate(new for _, new in buckets)]
    edges = plan.share_evenly(np.array(costs, np.int64), np.array(owners, np.int64), cores, limit)
    assert edges == sorted(set(edges)) and all(0 < at < len(costs) for at in edges)
    n = max(4 * cores, sum(costs) // limit)
    for low, high in zip([0, *edges], [*edges, len(costs)], strict=True):
        # A task may exceed its share by one bucket, and on both sides by half a share of one owner.
        assert sum(costs[low:high]) <= 2 * sum(costs) / n + max(costs, default=0) + 1
    for owner in set(owners):
        mine = [at for at in range(1, len(costs)) if owners[at - 1] == owners[at] == owner]
        own = sum(cost for cost, one in zip(costs, owners, strict=True) if one == owner)
        assert own > sum(costs) // n or not set(mine) & set(edges)


@pytest.mark.parametrize("bits", [1, 4, 12])
def test_a_bucket_has_what_the_ledgers_list(tmp_path: Path, bits: int) -> None:
    ledger, _ = World(7, 60, users=0.2, anonymous=0.1).write(tmp_path)
    read = ledgers.Ledgers.read(ledger, bits, group=7)
    facts = read.facts
    listed = {
        (p, s)
        for p, first, last in facts.spans[facts.addressed[facts.spans[:, 0]], :3].tolist()
        for s in range(first, last + 1)
    }
    seen = set()
    live = facts.live.tolist()
    assert live == sorted(set(live))
    for key, places in zip(live, ledger_buckets.places_of(facts, facts.live).tolist(), strict=True):
        bucket = ledger_buckets.lay_out(facts, key, arrays.Workspace())
        assert len(bucket.hashes) == places
        ends = [*bucket.starts[1:].tolist(), places]
        columns = (column.tolist() for column in (bucket.producers, bucket.starts, bucket.firsts))
        for p, start, first, end in zip(*columns, ends, strict=True):
            sequences = np.arange(first, first + end - start)
            seen |= {(p, s) for s in sequences.tolist()}
            assert bucket.listed[start:end].tolist() == [(p, s) in listed for s in sequences.tolist()]
            assert bucket.outcome[start:end].tolist() == facts.outcomes_at(p, sequences).tolist()
    assert listed <= seen


@pytest.mark.parametrize("rows", [1, 7, 1 << 14])
def test_tasks_have_the_outcomes_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(ledger_facts, "PACKED_ROWS", rows)
    ledger, _ = World(7, 60, users=0.2).write(tmp_path)
    facts = ledgers.Ledgers.read(ledger, 4, group=7).facts
    there = pickle.loads(pickle.dumps(facts))
    assert isinstance(there.tables["outcomes"], ledger_facts.PackedRows) is (rows < 1 << 14)
    for p in range(len(facts)):
        for end in (p + 1, len(facts)):
            assert (there.rows_of("outcomes", p, end) == facts.rows_of("outcomes", p, end)).all()
        sequences = np.arange(1, int(facts.last[p]) + 2)
        assert there.outcomes_at(p, sequences).tolist() == facts.outcomes_at(p, sequences).tolist()
    assert not there.producers


def plain(verdict: Any) -> dict[str, Any]:
    """Return a verdict without what depends on time and place."""
    fields: dict[str, Any] = verdict.to_json()
    fields["seconds"].clear()
    fields["made_us"] = 0
    return fields


@pytest.mark.slow
@pytest.mark.parametrize("kind", [{}, {"anonymous": 0.2, "users": 0.1}, {"logjam": 0.5, "unclosed": "a"}])
def test_verdict_is_the_same_for_all_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]
) -> None:
    ledger, capture = World(11, 120, **kind).write(tmp_path)
    expected = None
    for bits, task_places, units, cores in (
        (18, 0, 1 << 18, 2), (2, 1, 3, 2), (4, 1 << 20, 100, 1), (7, 1 << 20, 17, 40),
    ):  # fmt: skip
        monkeypatch.setattr(runners.LocalRunner, "cores", cores)
        out = tmp_path / f"out-{bits}"
        verdict = plain(
            inprocess.run(
                ledger, capture, out=out, bits=bits, task_places=task_places, units=units, examples=3
            )
        )
        found = verdict, inprocess.found(out)
        expected = expected or found
        for name, value in verdict.items():
            assert value == expected[0][name], name
        assert found[1] == expected[1]


@pytest.mark.slow
def test_units_are_numbered_over_many_segments(tmp_path: Path) -> None:
    world = World(5, 200)
    ledger, capture = world.write(tmp_path, segments=400)
    assert sum(1 for path in capture.iterdir() if path.name.startswith("a-")) >= 400
    out = tmp_path / "out"
    verdict = inprocess.run(ledger, capture, out=out, bits=4, task_places=1, units=50)
    assert_equals_reference(world, verdict, out)
    shown = [x for examples in verdict.examples.values() for x in examples if x.get("listener")]
    assert all(x["id"] is None or x["id"] in x["body"] for x in shown)
    assert len({x["segment"] for x in shown}) > 20


def test_too_many_bytes_of_a_listener_are_an_error(tmp_path: Path) -> None:
    for number in range(1, 5):
        with (tmp_path / f"main-{number:06d}.cap").open("wb") as file:
            file.truncate(10 * 10**12)  # sparse
    captures = pytest.importorskip("logclient.evidence.captures")
    with pytest.raises(LedgerError, match=r"main has too many bytes: .* may have 38 TB"):
        captures.survey([str(tmp_path)])


@pytest.mark.long
def test_a_listener_may_have_20_000_segments(tmp_path: Path) -> None:
    """A collector in a crash loop begins a segment each time."""
    n = 20_000
    scene = Scene(tmp_path)
    scene.bodies = {s: files.body(files.event_id(P, s), f"event {s}") for s in range(1, n + 1)}
    scene.write_ledger()
    order = [*range(1, n - 1), n, n - 1]  # the last two change places
    units = [(files.window([scene.bodies[s]]), 0, 10**9) for s in order]
    files.write_segments(scene.capture, "main", units, per_segment=1)
    verdict = inprocess.run(scene.ledger, scene.capture, out=scene.out)
    assert (verdict.counts.ok, verdict.counts.reordered) == (n, 1)
    (example,) = verdict.examples["reordered"]
    assert (example["seq"], example["segment"]) == (n - 1, f"main-{n:06d}.cap")


def test_runs_that_are_not_named_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = pytest.importorskip("logclient.verify.summary")
    monkeypatch.setattr(summary, "MAX_NAMED", 3)
    scene = Scene(tmp_path).write_ledger()
    arrival = 1
    for number, seqs in enumerate(([1, 2], [3], [4, 5, 6], [*range(7, 21)]), 1):
        units = [(files.window([scene.bodies[s]]), 0, 10**9) for s in seqs]
        end = "closed" if number == 4 else "rotated"
        files.write_segments(
            scene.capture, "main", units, first=number, arrival=arrival, end=end, run=f"run {number}"
        )
        arrival += len(units)
    capture = inprocess.run(scene.ledger, scene.capture).capture
    assert [run["run"] for run in capture["runs"]] == ["run 1", "run 2", "run 3"]
    assert capture["runs_left_out"] == 1
