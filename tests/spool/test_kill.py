"""Producers that are killed: what `send` returned for arrives."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.spool import stepper
from tests.spool.scene import NOBODY, Scene
from tests.support.patience import PATIENCE, wait_until

SIZES = (5, 40, 300, 301, 2000, 70_000)


def _kill_many(scene: Scene, producers: int, draw: random.Random) -> dict[str, set[int]]:
    """Kill producers at random instants while four threads send; return what `send` returned, by owner."""
    returned: dict[str, set[int]] = {}
    for _ in range(producers):
        before = scene.owners()
        url = draw.choice((NOBODY, scene.url))
        producer = scene.start(url, events=3000, threads=4, sizes=draw.sample(SIZES, 3), end="kill")
        wanted = draw.randint(1, 2000)
        wait_until(lambda p=producer, n=wanted: p.sent() >= n or p.process.poll() is not None, "it sends")
        producer.kill()
        (name,) = scene.owners() - before
        returned[name] = producer.returned()
        assert len(returned[name]) >= wanted
    return returned


def _assert_all_arrived(scene: Scene, returned: dict[str, set[int]]) -> None:
    arrived = scene.arrived()
    for event in scene.events():
        assert event["message"] == "m" * len(event["message"])
    for name, seqs in returned.items():
        assert not [seq for seq in seqs if f"{name}{seq:012x}" not in arrived]
    counts = scene.verdict()
    assert (counts.lost, counts.corrupted, counts.unexpected, counts.unknown) == (0, 0, 0, 0), counts
    assert counts.ok == counts.events >= sum(map(len, returned.values()))


def test_all_that_send_returned_for_survives_kills(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        returned = _kill_many(scene, 20, random.Random(18))
        assert sum(map(len, returned.values())) > 10_000
        scene.drain()
        _assert_all_arrived(scene, returned)


@pytest.mark.parametrize("policy", ["block:50ms", "drop_new", "drop_oldest"])
def test_no_event_is_only_in_memory_when_places_are_in_pieces(policy: str, tmp_path: Path) -> None:
    # Two segments: in each, one of 3 MB leaves pieces of 1 MB, which together have room for one of 1.2 MB.
    options = {"max_event_bytes": "4MB", "spool_bytes": "8MiB"}
    with Scene(tmp_path, overflow=policy, **options) as scene:
        producer = scene.run(events=3, sizes=[1_200_000, 3_000_000, 3_000_000])
        assert producer.returned() == ({1, 2, 3} if policy == "drop_oldest" else {1, 2})
        scene.drain()
        arrived = {int(name[20:], 16) for name in scene.arrived()}
        assert arrived == ({2, 3} if policy == "drop_oldest" else {1, 2})
        counts = scene.verdict()
        assert (counts.lost, counts.corrupted, counts.unexpected) == (0, 0, 0), counts


@pytest.mark.long
@pytest.mark.timeout(60 * PATIENCE)
@pytest.mark.parametrize("batch", range(8))
def test_two_thousand_killed_producers(batch: int, tmp_path: Path) -> None:
    draw = random.Random(f"spool {batch}")
    with Scene(tmp_path, spool_sync=draw.choice(("none", "interval", "batch"))) as scene:
        returned: dict[str, set[int]] = {}
        for _ in range(25):
            returned |= _kill_many(scene, 10, draw)
            scene.drain()
        _assert_all_arrived(scene, returned)


def _stop_many(scene: Scene, producers: int, draw: random.Random) -> dict[str, set[int]]:
    """Kill producers with one of their four threads between two instructions of a push."""
    returned: dict[str, set[int]] = {}
    stopped = 0
    for _ in range(4 * producers):  # a thread may end before it pushes twice
        if stopped == producers:
            break
        before = scene.owners()
        sizes = draw.choice((SIZES[:-1], (2000, 9000, 20_000)))  # small heads, and long copies
        producer = scene.start(events=6000, threads=4, sizes=sizes, end="stay", rest=5e-5)
        wanted = draw.randint(1, 500)
        wait_until(lambda p=producer, n=wanted: p.sent() >= n or p.process.poll() is not None, "it sends")
        thread = draw.choice(producer.threads())
        _, inside = stepper.kill_inside_push(producer.process.pid, thread, draw, signal.SIGKILL)
        producer.wait()
        stopped += inside
        (name,) = scene.owners() - before
        returned[name] = producer.returned()
    assert stopped == producers
    return returned


NEEDS_STEPS = pytest.mark.skipif(bool(stepper.refusal()), reason=stepper.refusal())


@pytest.mark.slow
@NEEDS_STEPS
def test_a_push_may_stop_at_any_instruction(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        returned = _stop_many(scene, 8, random.Random(5))
        scene.drain()
        _assert_all_arrived(scene, returned)


@pytest.mark.long
@NEEDS_STEPS
@pytest.mark.timeout(60 * PATIENCE)
def test_two_hundred_pushes_stop_at_any_instruction(tmp_path: Path) -> None:
    draw = random.Random("instructions")
    with Scene(tmp_path) as scene:
        returned: dict[str, set[int]] = {}
        for _ in range(20):
            returned |= _stop_many(scene, 10, draw)
            scene.drain()
        _assert_all_arrived(scene, returned)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["interval", "batch"])
def test_a_log_changes_nothing_about_kills(sync: str, tmp_path: Path) -> None:
    with Scene(tmp_path, spool_sync=sync) as scene:
        returned = _kill_many(scene, 4, random.Random(sync))
        scene.drain()
        _assert_all_arrived(scene, returned)


def test_os_exit_keeps_what_was_logged(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        producer = scene.run(events=500, end="_exit")
        scene.drain()
        _assert_all_arrived(scene, {producer.name: producer.returned()})
