"""What the spool holds when nobody takes the events: its bounds, the counts, and what arrives in the end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logclient
from tests.spool.scene import Scene
from tests.support.dead_servers import KINDS
from tests.support.patience import PATIENCE, wait_until

MIB = 1 << 20
HEAD = 24
"""Bytes of an event beside its body, which is padded to a multiple of eight."""

LOOK_EVERY = 1000
"""Events from one look at the files to the next."""

SIZES = (60, 300, 301, 900)

PAUSES = {"backoff_max": 0.1}


class Storm(NamedTuple):
    """What was given to a client that can send nothing.

    Attributes:
        returned: what `send` returned, in order.
        room: bytes of each body, with its padding and its head.
        most: the most bytes that the files ever had on the disk.
    """

    returned: list[int]
    room: list[int]
    most: int


def _send(client: logclient.Client, spool: Path | None, size: int, draw: random.Random) -> Storm:
    """Send events of `size` bytes together."""
    storm: tuple[list[int], list[int]] = ([], [])
    sent = most = 0
    while sent < size:
        for _ in range(LOOK_EVERY):
            body = b'{"message":"' + b"m" * draw.choice(SIZES) + b'"}'
            storm[0].append(client.send(body))
            storm[1].append(HEAD + (len(body) + 7) // 8 * 8)
            sent += len(body)
        if spool is not None:
            most = max(most, sum(path.stat().st_blocks * 512 for path in spool.iterdir()))
    return Storm(*storm, most)


def _arrived(scene: Scene, producer: str) -> list[int]:
    """Return the sequences that have arrived, in order; each once."""
    arrived = scene.arrived()
    assert set(arrived.values()) == {1}
    assert all(name.startswith(producer) for name in arrived)
    return [int(name[20:], 16) for name in arrived]


def _fill(scene: Scene, spool_bytes: int, **options: Any) -> tuple[Storm, list[int], dict[str, int], float]:
    """Send three times what the spool may hold, then have the server return, and all that was kept sent.

    Returns:
        The storm, the sequences that arrived, what the client dropped, and the seconds of the sending.
    """
    scene.collector.__exit__(None, None, None)  # it keeps its port
    with scene.client(spool_bytes=spool_bytes, **PAUSES, **options) as client:
        storm = _send(client, scene.spool, 3 * spool_bytes, random.Random(18))
        stats = client.stats()
        count = len(storm.returned)
        assert stats.sent == count == stats.queued + stats.inflight + sum(stats.dropped.values())
        assert stats.acked == stats.stored == 0 and stats.failed == {}
        scene.collector.__enter__()
        begun = time.perf_counter()
        assert client.flush(4 * PATIENCE) == 0
        seconds = time.perf_counter() - begun
        final = client.stats()
        # Nothing was dropped that had been kept: the server had returned.
        assert (final.acked, final.dropped) == (stats.queued + stats.inflight, stats.dropped)
        arrived = _arrived(scene, client.producer)
    assert list(scene.spool.iterdir()) == []
    return storm, arrived, stats.dropped, seconds


def _assert_bounded(scene: Scene, spool_bytes: int, share: float, **options: Any) -> float:
    """Fill a spool three times; return the events a second after the server's return.

    Args:
        scene: its mode and policy.
        spool_bytes: the bound.
        share: of the bound, what events and their heads have to fill.
        monkeypatch: of the test.
        options: of the client.
    """
    storm, arrived, dropped, seconds = _fill(scene, spool_bytes, **options)
    assert storm.most <= 1.02 * spool_bytes
    assert set(dropped) == {"spool_full"}
    assert len(arrived) + dropped["spool_full"] == len(storm.returned)
    assert all(first < second for first, second in pairwise(arrived))
    if scene.options["overflow"] == "drop_new":
        assert arrived == [seq for seq in storm.returned if seq]
        positions = [n for n, seq in enumerate(storm.returned) if seq]
    else:
        assert all(storm.returned)
        assert arrived == storm.returned[-len(arrived) :]  # the newest
        positions = list(range(len(storm.returned) - len(arrived), len(storm.returned)))
    memory = MIB if scene.options["spool_mode"] == "overflow" else 0
    kept = sum(storm.room[n] for n in positions)
    assert share * spool_bytes + 0.8 * memory <= kept <= spool_bytes + memory
    (close,) = [line for path in scene.ledger.iterdir() for line in _closes(scene, path)]
    assert close["dropped"] == dropped
    counts = scene.verdict()
    assert (counts.lost, counts.unknown, counts.unexpected, counts.corrupted, counts.duplicated) == (0,) * 5
    assert (counts.ok, counts.dropped) == (len(arrived), dropped["spool_full"])
    return len(arrived) / seconds


def _closes(scene: Scene, path: Path) -> list[dict[str, Any]]:
    return [line for line in scene.lines(path.name[:20]) if line["t"] == "close"]


POLICIES = pytest.mark.parametrize("policy", ["drop_oldest", "drop_new"])
MODES = pytest.mark.parametrize("mode", ["always", "overflow"])


@POLICIES
@MODES
def test_a_full_spool_keeps_its_bounds_and_counts(mode: str, policy: str, tmp_path: Path) -> None:
    with Scene(tmp_path, spool_mode=mode, overflow=policy, max_bytes="1MiB") as scene:
        # Eight places of 128 are left for the ends of lists.
        _assert_bounded(scene, 8 * MIB, 0.92)


@pytest.mark.long
@pytest.mark.timeout(60 * PATIENCE)
@POLICIES
@MODES
def test_a_large_spool_is_filled_and_recovers(
    mode: str,
    policy: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    with Scene(plain, spool=None, spool_mode=None, ledger=None, overflow="drop_new") as scene:
        scene.collector.__exit__(None, None, None)
        with scene.client(max_bytes=128 * MIB, max_events=1_000_000, **PAUSES) as client:
            count = len(_send(client, None, 60 * MIB, random.Random(18)).returned)
            scene.collector.__enter__()
            begun = time.perf_counter()
            assert client.flush(4 * PATIENCE) == 0
            rate = count / (time.perf_counter() - begun)
            assert client.stats().acked == count
    folder = tmp_path / "spooled"
    folder.mkdir()
    with Scene(folder, spool_mode=mode, overflow=policy, max_bytes="1MiB") as scene:
        recovered = _assert_bounded(scene, 64 * MIB, 0.98)
    with capsys.disabled():
        share = f"{recovered / rate:.2f} of memory's {rate:,.0f}"
        print(f"\n{mode}, {policy}: {recovered:,.0f} events/s after the server's return, {share}")


# -- the bound of all clients -------------------------------------------------------------------------


@pytest.fixture
def limit() -> Iterator[int]:
    logclient.limit_memory("1MiB")
    yield MIB
    assert logclient.memory_used() == 0
    logclient.limit_memory(None)


BODY = b'{"message":"' + b"x" * 1000 + b'"}'
QUIET = {"connect_timeout": 3600, "timeout": 0.0}


def _fill_memory(url: str) -> logclient.Client:
    """Return a client that has the whole bound."""
    client = logclient.connect(url, overflow="drop_new", **QUIET)
    while client.send(BODY):
        pass
    return client


def test_a_client_without_room_in_the_bound_of_all_writes_to_its_spool(tmp_path: Path, limit: int) -> None:
    options = {"spool": tmp_path, "spool_bytes": "64MiB", "overflow": "drop_new", **QUIET}
    with (
        KINDS["connection refused"]() as server,
        _fill_memory(server.url) as other,
        logclient.connect(server.url, **options) as client,
    ):

        def is_ready() -> bool:
            """Whether the files have room for 1,000 more; the newest may still be in the making."""
            files = sum(file.stat().st_size for file in tmp_path.rglob("*.seg"))
            return files > client.stats().spooled * len(BODY) + 5 * MIB

        for _ in range(20):  # not faster than the thread that makes the files
            assert all(client.send(BODY) for _ in range(1000))
            wait_until(is_ready)
        assert client.stats().spooled > 10_000
        # While its files are being made it may exceed the bound by 8 MiB.
        assert limit - 2 * len(BODY) < logclient.memory_used() <= limit + 8 * MIB
        assert other.stats().queued_bytes <= limit


def test_events_in_a_spool_do_not_count(tmp_path: Path, limit: int) -> None:
    options = {"spool": tmp_path, "spool_mode": "always", "spool_bytes": "16MiB", **QUIET}
    with KINDS["connection refused"]() as server, logclient.connect(server.url, **options) as client:
        assert all(client.send(BODY) for _ in range(5000))
        assert (client.stats().spooled, logclient.memory_used()) == (5000, 0)


@pytest.mark.parametrize("policy", ["block:200ms", "raise"])
def test_with_a_full_disk_callers_wait_for_memory_of_others(policy: str, tmp_path: Path, limit: int) -> None:
    """The spool takes two files. After that there is room only in memory, which another client has."""
    options = {"spool": tmp_path, "spool_bytes": "8MiB", "overflow": policy, **QUIET}
    with (
        KINDS["connection refused"]() as server,
        _fill_memory(server.url) as other,
        logclient.connect(server.url, **options) as client,
    ):

        def send() -> int:
            try:
                return client.send(BODY)
            except logclient.QueueFull:
                return 0

        wait_until(lambda: send() and len(list(tmp_path.rglob("*.seg"))) == 2, "its files")
        while send():
            pass
        assert client.stats().sent > 7000
        assert client.stats().dropped == {"spool_full": 1}
        assert not send()
        other.close()
        # While the files were made, it may have taken more than the bound.
        logclient.limit_memory(max(limit, logclient.memory_used() + 2 * 65536))
        assert send()
