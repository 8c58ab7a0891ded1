"""Two attempts of a task, interleaved at every write: neither touches the files of the other."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logclient import verify
from tests import support
from tests import verify_files as files
from tests.verify_scene import P, Q, Scene

np = support.need("numpy")
pa = support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")
inprocess = pytest.importorskip("tests.verify_inprocess")
read_bucket = pytest.importorskip("logclient.verify.ledger_buckets").read_bucket
ledger_files = pytest.importorskip("logclient.evidence.ledger_files")
ledger_merge = pytest.importorskip("logclient.verify.ledger_merge")
ledger_pack = pytest.importorskip("logclient.verify.ledger_pack")
gather = pytest.importorskip("logclient.verify.gather")
compare = pytest.importorskip("logclient.verify.compare")


class Killed(BaseException):
    """An attempt ends in the middle of a write."""


class Interleaved:
    """Run the second attempt at write `at` of the first: up to its own write `dies`, or to its end.

    The interrupted write is half done.
    """

    def __init__(self, second: Callable[[], Any], at: int, dies: int) -> None:
        self.second = second
        self.at = at
        self.dies = dies
        self.writes = 0
        self.inside = False
        self.ran = False

    def before(self, put: Callable[[Any], Any], data: bytes) -> int:
        self.writes += 1
        if self.inside:
            if self.writes == self.dies:
                put(data[: len(data) // 2])
                raise Killed
        elif self.writes == self.at:
            half = len(data) // 2
            put(data[:half])
            self.inside, self.writes = True, 0
            try:
                self.second()
            except Killed:
                pass
            self.inside, self.writes, self.ran = False, self.at, True
            put(data[half:])
            return len(data)
        put(data)
        return len(data)


class Watched:
    """A file that reports its writes to the plan, and flushes each at once."""

    def __init__(self, file: Any, plan: Interleaved) -> None:
        self._file = file
        self._plan = plan

    def write(self, data: Any) -> int:
        def put(some: bytes) -> None:
            self._file.write(some)
            self._file.flush()

        return self._plan.before(put, bytes(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextmanager
def watch_writes(monkeypatch: pytest.MonkeyPatch, folder: Path, plan: Interleaved) -> Iterator[None]:
    """Report every file opened for writing in the folder; close what a dying attempt left open."""
    opened = builtins.open
    left: list[Any] = []

    def open_(path: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        file = opened(path, mode, *more, **options)
        mine = isinstance(path, str | os.PathLike) and str(path).startswith(str(folder))
        if not mine:
            return file
        left.append(file)
        return Watched(file, plan) if set(mode) & set("wxa") else file

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", open_)
        try:
            yield
        finally:
            for file in left:
                file.close()


def packed(work: Path, stems: list[str]) -> Any:
    """What the second stage reads."""
    found = ledger_merge.merge(stems, str(work), 2)
    buckets = [read_bucket(found, b) for b in found.live.tolist()]
    return [[np.asarray(x).tolist() for x in bucket] for bucket in buckets], [*map(tuple, found.producers)]


def test_second_attempt_of_packing_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for producer in (P, Q):
        events = [(seq, 1000 + seq, seq * 11) for seq in range(1, 8)]
        lines = [
            files.open_line(producer), files.batch_line(events[:4]), files.batch_line(events[4:], own=[6]),
            files.ids_line([(6, producer)]), files.deferred_line([2]),
            files.outcome_line("acked", range(1, 8)), files.close_line(7),
        ]  # fmt: skip
        files.write_part(tmp_path / "l", producer, 1, lines)
    parts = ledger_files.find_ledgers(str(tmp_path / "l")).parts

    def attempt(work: Path) -> str:
        work.mkdir(exist_ok=True)
        stem: str = ledger_pack.pack(parts, 0, str(work))
        return stem

    expected = packed(tmp_path / "alone", [attempt(tmp_path / "alone")])
    count = Interleaved(lambda: None, 0, 0)
    with watch_writes(monkeypatch, tmp_path / "count", count):
        attempt(tmp_path / "count")
    assert count.writes >= 10
    for at in range(1, count.writes + 1):
        for dies in (1, at, count.writes, 0):
            work = tmp_path / f"{at}-{dies}"
            plan = Interleaved(lambda: attempt(work), at, dies)  # noqa: B023
            with watch_writes(monkeypatch, work, plan):
                stem = attempt(work)
            assert plan.ran
            assert packed(work, [stem]) == expected, (at, dies)


@pytest.mark.parametrize("stage", ["pack", "map", "reduce"])
def test_second_attempt_of_any_stage_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The verdict is the same whichever task has a second attempt, and wherever that one ends."""
    scene = Scene(tmp_path)
    scene.write_ledger().write_capture([1, 2, 4, 3, *range(6, 21)], size=7)

    def verdict(plan: Interleaved | None = None) -> Any:
        found = inprocess.run(scene.ledger, scene.capture, out=scene.out, bits=3, work=tmp_path)
        fields = {n: value for n, value in found.to_json().items() if n not in ("seconds", "made_us")}
        return fields, sorted(verify.violations(scene.out))

    expected = verdict()
    module, name = {
        "pack": (ledger_pack, "pack"), "map": (gather, "map_task"), "reduce": (compare, "reduce_task"),
    }[stage]  # fmt: skip
    real = getattr(module, name)
    writes = 0
    at = 0
    while at <= writes:
        for dies in (1, 2, 0):

            def twice(*given: Any, at: int = at, dies: int = dies) -> Any:
                nonlocal writes
                # Batches of a reduce task come once: each attempt has its own.
                first = list(given[0]) if stage == "reduce" else given[0]

                def run() -> Any:
                    done = real(first, *given[1:])
                    return done if stage == "pack" else list(done)

                plan = Interleaved(run, at, dies)
                with watch_writes(monkeypatch, tmp_path, plan):
                    done = run()
                writes = max(writes, plan.writes)
                return done

            with monkeypatch.context() as patch:
                patch.setattr(module, name, twice)
                assert json.dumps(verdict()) == json.dumps(expected), (at, dies)
        at += 1
    assert writes >= {"pack": 5, "map": 2, "reduce": 1}[stage]
