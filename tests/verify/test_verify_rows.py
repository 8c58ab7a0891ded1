"""The rows that the steps of a comparison exchange, and that it does not matter who runs the steps."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient import verify
from logclient.verify.tuning import Tuning
from tests import support
from tests.support import verify_files as files
from tests.verify.histories import World

np = support.need("numpy")
support.need("pyarrow")
comparison = pytest.importorskip("logclient.verify.comparison")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
job = pytest.importorskip("logclient.verify.job")
ledger_rows = pytest.importorskip("logclient.verify.ledger_rows")
ledgers = pytest.importorskip("tests.verify.ledgers")
random_histories = pytest.importorskip("tests.verify.random_histories")
rows = pytest.importorskip("logclient.verify.rows")
runners = pytest.importorskip("logclient.verify.runners")
schema = pytest.importorskip("logclient.verify.schema")

Event = tuple[int, int, int, int]  # producer, sequence, hash, time

BITS = 3
NONE, ACKED = 0, 4  # outcomes in a row


# -- rows of ledgers


def write_ledgers(folder: Path, rng: random.Random) -> list[Event]:
    """Write random ledgers; return the events that they list."""
    listed = []
    for p, name in enumerate(sorted(f"{rng.getrandbits(80):020x}" for _ in range(rng.choice((1, 5, 12))))):
        lines: list[Any] = []
        sequence = 0
        for _ in range(rng.choice((0, 1, 3, 9))):
            # In some ledgers times of neighbouring lines differ by more than 32 bits of microseconds.
            base = rng.randrange(1000, 1 << (50 if p % 4 == 3 else 20))
            events = []
            for _ in range(rng.choice((1, 2, 11))):
                sequence += rng.choice((1, 1, 1, 2, 12))
                events.append((sequence, base + rng.randrange(1 << 20), rng.getrandbits(64)))
            lines.append(files.batch_line(events))
            listed += [(p, sequence, hash_, time) for sequence, time, hash_ in events]
        rng.shuffle(lines)
        cut = rng.randrange(len(lines) + 1)
        parts = [[files.open_line(name), *lines[:cut]], [files.open_line(name, 2), *lines[cut:]]]
        for number, part in enumerate(parts, 1):
            files.write_part(folder, name, number, part)
    return listed


def found_in_buckets(read: Any, found: Any) -> Iterator[Event]:
    """Yield the events of rows, each at the producer and sequence of its place."""
    facts = read.facts
    for row in found:
        assert (row.listener, row.value("position")) == (rows.LEDGER, 0)
        places = {}
        for p in np.flatnonzero(facts.places > 0).tolist():
            first = ((row.key - int(facts.bases[p])) << BITS) + 1
            for sequence in range(max(first, 1), min(first - 1 + (1 << BITS), int(facts.last[p])) + 1):
                place = int(facts.starts[p]) + sequence - first
                if row.key >= facts.bases[p] and place < 1 << BITS:
                    assert places.setdefault(place, (p, sequence)) == (p, sequence)
        for place, hash_, time in ledgers.events_of(row):
            yield (*places[place], hash_, time)


@pytest.mark.parametrize("piece", [1, 5, 1 << 16])
@pytest.mark.parametrize("group", [1, 3, 100])
def test_rows_of_ledgers_have_each_event_once_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, group: int
) -> None:
    """However many files a task reads, and wherever a piece of events ends."""
    monkeypatch.setattr(ledger_rows, "PIECE", piece)
    monkeypatch.setattr(ledgers.ledger_lines, "READ_BYTES", 400)
    for seed in range(12):
        folder = tmp_path / str(seed)
        listed = write_ledgers(folder, random.Random(seed))
        read = ledgers.Ledgers.read(folder, BITS, group)
        assert Counter(found_in_buckets(read, read.rows())) == Counter(listed)
        only = frozenset(read.facts.live.tolist()[::2])
        some = [*read.rows(only=only)]
        assert {row.key for row in some} == only
        wanted = set(found_in_buckets(read, some))
        assert wanted <= set(listed)
        rest = frozenset(read.facts.live.tolist()) - only
        assert wanted | set(found_in_buckets(read, read.rows(only=rest))) == set(listed)


@pytest.mark.parametrize("piece", [1, 5, 1 << 16])
def test_rows_have_each_event_that_is_compared_by_hash_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Events of a producer without ids, and events with an id that another one has too, by hash."""
    monkeypatch.setattr(ledger_rows, "PIECE", piece)
    a, b = "0a" * 10, "0b" * 10
    events = [(s, 1000 + s, s * 0x9E3779B97F4A7C15 % (1 << 64)) for s in range(1, 30)]
    lines = [files.batch_line(events[:20], own=[3, 17]), files.ids_line([(3, "same"), (17, "same")])]
    lines += [files.batch_line(events[20:]), files.outcome_line("acked", [3])]
    files.write_part(tmp_path, a, 1, [files.open_line(a), *lines])
    lines = [files.open_line(b, identity="none"), files.batch_line(events), files.outcome_line("acked", [2])]
    files.write_part(tmp_path, b, 1, lines)
    read = ledgers.Ledgers.read(tmp_path, BITS, 1)
    shares = 4
    found = []
    for row in read.rows(ledgers.make_plan(BITS, shares)):
        if row.key > schema.ANONYMOUS:
            continue
        assert row.listener == rows.LEDGER
        hashes = row.array("hashes", np.uint64)
        assert (ledger_rows.share_of(hashes, shares) == schema.ANONYMOUS - row.key).all()
        columns = (
            row.array("places", np.int32), row.positions(len(hashes)), hashes, row.array("times", np.int64)
        )  # fmt: skip
        found += [*zip(*(column.tolist() for column in columns), strict=True)]
    acked = {(0, 3), (1, 2)}
    expected = [
        (p << 3 | (ACKED if (p, s) in acked else NONE), s, hash_, time)
        for s, time, hash_ in events
        for p in ((0, 1) if s in (3, 17) else (1,))
    ]
    assert Counter(found) == Counter(expected)
    assert {row.key for row in read.rows(ledgers.make_plan(BITS, shares), frozenset([0]))} == {0}


# -- positions


steps = st.one_of(st.integers(0, 9), st.sampled_from([(1 << 32) - 1, 1 << 32, (1 << 32) + 1, 1 << 50]))


@given(st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=6), st.integers(0, 1 << 60))
def test_positions_are_those_that_were_packed(slices: list[list[int]], begin: int) -> None:
    """Also where a distance needs more than 32 bits; between two rows it may fall."""
    expected = [(begin // (i + 1) + np.cumsum(np.array(some, np.int64))) for i, some in enumerate(slices)]
    edges = np.cumsum([0, *(len(some) for some in slices)]).astype(np.int64)
    packed = rows.distances(np.concatenate(expected), edges)
    inner = [step for some in slices for step in some[1:]]
    if max(inner, default=0) < 1 << 32:
        assert packed.dtype == np.uint32
    first = np.array([one[0] for one in expected])
    batch = rows.row_batch(
        len(slices), part=0, key=7, listener=1, position=first, positions=rows.blobs(packed, edges)
    )
    batch.validate(full=True)
    for i, one in enumerate(expected):
        assert rows.Row(batch, i, 7, 1).positions(len(one)).tolist() == one.tolist()


def test_no_positions_are_packed() -> None:
    nothing = np.empty(0, np.int64)
    assert len(rows.distances(nothing, np.zeros(1, np.int64))) == 0


# -- who runs the steps


def plain(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return a verdict without what depends on the time of its making."""
    return {name: value for name, value in verdict.items() if name not in ("seconds", "made_us")}


def test_order_of_rows_and_second_attempts_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shuffle delivers rows in any order, and what a task left before it was run again is not used."""
    ledger, capture = World(7, 30, users=0.1, anonymous=0.1).write(tmp_path, segments=4)
    sizes = {"bits": BITS, "task_places": 4096, "units": 20}
    expected = inprocess.run(ledger, capture, out=tmp_path / "expected", **sizes)
    rng = random.Random(1)
    monkeypatch.setattr(runners, "GROUP_BYTES", 1)
    monkeypatch.setattr(ledger_rows, "PIECE", 7)
    read = runners._read_files

    def attempts(batches: Any, *given: Any) -> Any:
        for batch in batches:
            for i in range(len(batch)):
                task = [batch.slice(i, 1)]
                next(read(task, *given), None)  # the first attempt dies
                yield from read(task, *given)

    monkeypatch.setattr(runners, "_read_files", attempts)
    in_order = runners._sorted
    monkeypatch.setattr(runners, "_sorted", lambda batches: in_order(rng.sample(batches, len(batches))))
    found = inprocess.run(ledger, capture, out=tmp_path / "found", **sizes)
    assert plain(found.to_json()) == plain(expected.to_json())
    faults = [sorted(verify.violation_ids(tmp_path / name)) for name in ("found", "expected")]
    assert faults[0] == faults[1]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    "seeds", [(1, 30), *(pytest.param((n, n + 99), marks=pytest.mark.long) for n in range(31, 531, 100))]
)
def test_verdict_is_the_same_on_spark(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: tuple[int, int]
) -> None:
    """With the same violations; also in tasks for each ledger and segment, and in a single task."""

    def on_spark(*given: Any, bits: int, **options: Any) -> Any:
        return job.run(*given, spark=spark, tuning=Tuning(bits, together_bytes=together), **options)

    for seed in range(seeds[0], seeds[1] + 1):
        together = 1 << 30 if seed % 5 == 0 else 0
        history = random_histories.make(tmp_path / "history", seed)
        code, verdict, found = random_histories.verify(history, tmp_path / "local")
        with monkeypatch.context() as patch:
            if not together:
                patch.setattr(runners, "GROUP_BYTES", 1)
                patch.setattr(comparison, "TASK_BYTES", 1)
            other_code, other, other_found = random_histories.verify(history, tmp_path / "spark", on_spark)
        assert (other_code, plain(other), other_found) == (code, plain(verdict), found), seed
        shutil.rmtree(tmp_path / "history")
