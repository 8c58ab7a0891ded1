"""A spool that cannot be used, or not any more: one report, and delivery goes on in memory."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import logclient
from logclient import threads
from logclient.delivery.spool import owner, owner_files, replay
from tests.spool.scene import NOBODY, Scene
from tests.support.patience import PATIENCE, wait_until
from tests.support.tmpfs import mounted, on_btrfs

MIB = 1 << 20
SEGMENT = 4 * MIB + 4096
NOBODY_ID = 65534
STOPPED = "the spool stopped"
VERSION_AT = 12
"""Where a segment's version lies, of 4 bytes."""

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can do that"
)


def _said(capfd: pytest.CaptureFixture[str], words: str) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if words in line]


def _assert_delivers(client: logclient.Client, scene: Scene, count: int = 1000) -> None:
    """Assert that all of some events are sent, acknowledged, and counted."""
    before = client.stats()
    for n in range(count):
        assert client.send({"message": "m" * 300, "n": n}) > 0
    assert client.flush(PATIENCE) == 0
    stats = client.stats()
    assert (stats.sent, stats.acked) == (before.sent + count, before.acked + count)
    assert (stats.failed, stats.dropped) == (before.failed, before.dropped)
    assert sum(name.startswith(client.producer) for name in scene.arrived()) == stats.acked


def _assert_refused(scene: Scene, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Assert that the spool is not opened, which is said once, and that delivery goes on."""
    with scene.client() as client:
        _assert_delivers(client, scene)
        stats = client.stats()
        assert words in stats.spool_error
        assert stats.spooled == 0
    said = _said(capfd, STOPPED)
    assert len(said) == 1 and words in said[0]
    with scene.client(NOBODY) as client:
        client.send({"message": "nowhere to go"})
        client.close(0.0)
        # It is in no file, so it is not said to be stored.
        assert (client.stats().stored, client.stats().failed) == (0, {"closed": 1})


MODES = pytest.mark.parametrize("mode", ["always", "overflow"])


# -- directories ------------------------------------------------------------------------------------------


def _a_file(place: Path) -> None:
    place.write_text("a file")


def _a_link_to_nothing(place: Path) -> None:
    place.symlink_to(place.parent / "nothing")


def _for_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def _of_another_user(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, NOBODY_ID, NOBODY_ID)


def _of_another_group(place: Path) -> None:
    place.mkdir()
    os.chown(place, -1, NOBODY_ID)
    place.chmod(0o770)


def _a_link_of_another_user(place: Path) -> None:
    target = place.parent / "target"
    target.mkdir(mode=0o700)
    place.symlink_to(target)
    os.chown(place, NOBODY_ID, NOBODY_ID, follow_symlinks=False)


@MODES
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_a_file, "File exists"),
        (_a_link_to_nothing, "File exists"),
        (_for_all, "others may write there"),
        pytest.param(_of_another_user, f"belongs to uid {NOBODY_ID}", marks=needs_root),
        pytest.param(_of_another_group, "others may write there", marks=needs_root),
        pytest.param(_a_link_of_another_user, "is a link that belongs to", marks=needs_root),
    ],
)
def test_a_place_that_is_not_ours_is_refused(
    make: Callable[[Path], None], words: str, mode: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Scene(tmp_path, spool_mode=mode) as scene:
        make(scene.spool)
        _assert_refused(scene, words, capfd)


def test_a_link_of_ours_leads_to_the_spool(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Scene(tmp_path) as scene:
        target = tmp_path / "target"
        target.mkdir(mode=0o700)
        scene.spool.symlink_to(target)
        with scene.client() as client:
            assert list(target.glob(f"{client.producer}.*.seg"))
            _assert_delivers(client, scene)
        assert not _said(capfd, "spool")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "9p", "btrfs", "zfs"])
def test_file_systems_that_are_unsafe_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(owner_files, "file_system", lambda directory: kind)
    with Scene(tmp_path) as scene:
        _assert_refused(scene, kind.partition(".")[0], capfd)
        assert list(scene.spool.iterdir()) == []


def test_the_file_system_is_that_of_the_mount(tmp_path: Path) -> None:
    mounts = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        mounts[before.split()[4]] = after.split()[0]
    for place in ("/", "/proc", "/sys", "/dev/shm", str(tmp_path)):
        path = os.path.realpath(place)
        at = max((point for point in mounts if os.path.commonpath((point, path)) == point), key=len)
        assert owner_files.file_system(place) == mounts[at]
    with mounted(tmp_path / "memory") as place:
        (place / "folder").mkdir()
        assert owner_files.file_system(str(place / "folder")) == "tmpfs"


def test_btrfs_is_known_though_its_subvolumes_have_devices_of_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Scene(tmp_path) as scene, on_btrfs(scene.spool):
        _assert_refused(scene, "btrfs", capfd)


def test_systems_without_a_spool_go_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(owner, "SUPPORTED", False)
    with Scene(tmp_path) as scene:
        _assert_refused(scene, "only Linux", capfd)
        assert not scene.spool.exists()


@contextmanager
def _open_to_others() -> Iterator[Path]:
    """Make a folder that other users can reach, which a test's own is not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("made", [True, False], ids=["read-only", "missing"])
def test_a_user_without_rights_goes_on_in_memory(
    made: bool, mode: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with _open_to_others() as folder, Scene(tmp_path, spool_mode=mode, ledger=None) as scene:
        spool = folder / "closed" / "spool"
        spool.parent.mkdir()
        if made:
            spool.mkdir(mode=0o500)
        if os.geteuid() == 0:
            os.chown(spool if made else spool.parent, NOBODY_ID, NOBODY_ID)
        spool.parent.chmod(0o755 if made else 0o555)
        answer, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                if os.geteuid() == 0:
                    os.setgid(NOBODY_ID)
                    os.setuid(NOBODY_ID)
                with scene.client(spool=str(spool)) as client:
                    sent = [client.send({"message": "m"}) > 0 for _ in range(100)]
                    left = client.flush(PATIENCE)
                    stats = client.stats()
                    os.write(end, json.dumps([all(sent), left, stats.acked, stats.spool_error]).encode())
                os._exit(0)
            finally:
                os._exit(1)
        os.close(end)
        with os.fdopen(answer) as file:
            *counts, error = json.loads(file.read())
        assert counts == [True, 0, 100]
        assert "permission denied" in error.lower()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        said = _said(capfd, STOPPED)
        assert len(said) == 1 and "permission denied" in said[0].lower()
        assert len(scene.arrived()) == 100


@MODES
def test_a_read_only_file_system_is_refused(
    mode: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Scene(tmp_path, spool_mode=mode) as scene, mounted(scene.spool, "ro"):
        _assert_refused(scene, "read-only file system", capfd)


# -- full disks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 6], ids=["none fits", "one fits"])
def test_a_disk_that_is_full_at_the_start(
    size: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Scene(tmp_path, spool_bytes="16MiB") as scene, mounted(scene.spool, f"size={size}m"):
        with scene.client() as client:
            assert "no space left" in client.stats().spool_error
            assert len(list(scene.spool.glob("*.seg"))) == size // 4
            _assert_delivers(client, scene)
        assert len(_said(capfd, STOPPED)) == 1
        assert list(scene.spool.iterdir()) == []
        assert scene.verdict().ok == 1000


def test_events_without_a_place_are_not_stored(tmp_path: Path) -> None:
    with Scene(tmp_path, spool_bytes="16MiB") as scene, mounted(scene.spool, "size=6m"):
        with scene.client(NOBODY) as client:
            for _ in range(20_000):
                client.send({"message": "m" * 300})
            client.close(0.0)
            stats = client.stats()
            assert stats.sent == 20_000 == stats.stored + stats.failed["closed"]
            assert 2 * MIB < stats.stored * 300 < 4 * MIB
        scene.drain()
        counts = scene.verdict()
        assert (counts.ok, counts.lost, counts.unknown) == (stats.stored, 0, 0)


def test_events_in_memory_are_not_stored(tmp_path: Path) -> None:
    with (
        Scene(tmp_path, spool_bytes="64MiB", spool_sync="interval") as scene,
        mounted(scene.spool, "size=60m"),
    ):
        ballast = scene.spool / "ballast"
        ballast.write_bytes(bytes(48 * MIB))
        with scene.client(NOBODY) as client:
            assert "no space left" in client.stats().spool_error
            ballast.unlink()  # the log has room
            first = client.submit({"message": "m" * 3000})
            while client.stats().queued <= client.stats().spooled + 50:
                client.send({"message": "m" * 3000})
            last = client.submit({"message": "last"})
            assert not last.stored(0.5)
            client.close(0.0)
            assert [first.result(0).status, last.result(0).status] == ["stored", "failed"]


def test_a_disk_that_has_room_again_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "TRY_AGAIN", 0.01)
    options = {"spool_bytes": "16MiB", "max_bytes": "64KiB", "overflow": "drop_new"}
    with Scene(tmp_path, **options) as scene, mounted(scene.spool, "size=20m"):
        ballast = scene.spool / "ballast"
        ballast.write_bytes(bytes(14 * MIB))
        with scene.client(NOBODY) as client:
            assert len(list(scene.spool.glob("*.seg"))) == 1
            ballast.unlink()

            def segments() -> int:
                client.send({"message": "m" * 20_000})
                return len(list(scene.spool.glob("*.seg")))

            wait_until(lambda: segments() == 4, "the spool has all its segments")
            assert client.stats().spool_error == ""
            client.close(0.0)


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_new"])
def test_a_disk_that_fills_up_drops_and_counts(
    policy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"spool_mode": "overflow", "spool_bytes": "64MiB", "max_bytes": "1MiB", "overflow": policy}
    with Scene(tmp_path, **options) as scene, mounted(scene.spool, "size=6m"):
        scene.collector.__exit__(None, None, None)  # it keeps its port
        with scene.client(backoff_max=0.1) as client:
            count = 0

            def dropped() -> int:
                nonlocal count
                count += 1000
                for _ in range(1000):
                    client.send({"message": "m" * 300})
                return client.stats().dropped.get("spool_full", 0)

            wait_until(lambda: dropped() > 10_000, "the disk is full")
            stats = client.stats()
            assert "no space left" in stats.spool_error
            assert stats.queued_bytes >= 4.4 * MIB  # a segment, without places for the ends of lists
            assert len(list(scene.spool.glob("*.seg"))) == 1
            assert stats.sent == count == stats.queued + stats.inflight + sum(stats.dropped.values())
            scene.collector.__enter__()
            assert client.flush(PATIENCE) == 0
            assert client.stats().acked == stats.queued + stats.inflight
        assert len(_said(capfd, STOPPED)) == 1
        counts = scene.verdict()
        assert (counts.lost, counts.unknown, counts.unexpected) == (0, 0, 0)
        assert (counts.ok, counts.dropped) == (stats.queued + stats.inflight, stats.dropped["spool_full"])


def test_a_log_whose_thread_cannot_be_started_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == threads.SPOOL and len(refused) < 9:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Scene(tmp_path, spool_sync="interval") as scene, scene.client(NOBODY, backoff_max=0.1) as client:
        assert client.submit({"message": "first"}).stored(PATIENCE)
        assert len(refused) == 9
        client.close(0.0)


def test_a_log_without_room_ends_and_delivery_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    with Scene(tmp_path, spool_bytes="16MiB", spool_sync="interval", on_error=told.append) as scene:
        scene.collector.__exit__(None, None, None)  # it keeps its port
        # Two segments, and less than a MiB for the log.
        with mounted(scene.spool, "size=9m"), scene.client(backoff_max=0.1) as client:
            assert client.submit({"message": "first"}).stored(PATIENCE)
            for _ in range(5000):
                client.send({"message": "m" * 600})
            assert not client.submit({"message": "last"}).stored(PATIENCE)
            assert client.flush(2.5) > 0  # which looks for the threads once a second
            assert client.stats().spooled == 5002
            scene.collector.__enter__()
            assert client.flush(PATIENCE) == 0
            assert client.stats().acked == 5002
        assert len(_said(capfd, "the spool's log ended")) == 1
        assert sum("the spool's log ended" in text for text in told) == 1
        counts = scene.verdict()
        assert (counts.ok, counts.lost, counts.unknown) == (5002, 0, 0)


# -- a directory that goes --------------------------------------------------------------------------------


def test_a_removed_directory_stops_growth_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = {"spool_mode": "overflow", "max_bytes": "1MiB", "overflow": "drop_new"}
    with Scene(tmp_path, **options) as scene:
        scene.collector.__exit__(None, None, None)  # it keeps its port
        with scene.client(backoff_max=0.1) as client:
            client.send({"message": "first"})
            wait_until(scene.owners, "the spool is open")
            shutil.rmtree(scene.spool)
            for _ in range(20_000):
                client.send({"message": "m" * 300})
            wait_until(lambda: client.stats().spool_error, "it is seen that the directory is gone")
            stats = client.stats()
            assert "no such file" in stats.spool_error
            assert stats.sent == 20_001 == stats.queued + stats.inflight + sum(stats.dropped.values())
            scene.collector.__enter__()
            assert client.flush(PATIENCE) == 0
            _assert_delivers(client, scene)
        assert len(_said(capfd, STOPPED)) == 1
        counts = scene.verdict()
        assert (counts.lost, counts.unknown, counts.unexpected) == (0, 0, 0)
        assert counts.dropped == sum(stats.dropped.values())


def test_events_of_a_removed_directory_are_not_stored(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene, scene.client(NOBODY) as client:
        for _ in range(100):
            client.send({"message": "m"})
        shutil.rmtree(scene.spool)
        client.send({"message": "m"})
        client.close(0.0)
        assert (client.stats().stored, client.stats().failed) == (0, {"closed": 101})


@pytest.mark.slow
def test_adopted_events_of_a_removed_directory_are_not_stored(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        dead = scene.run(events=100)
        with scene.client(NOBODY) as client:

            def adopted() -> bool:
                return any(line.get("pid") == os.getpid() for line in scene.lines(dead.name))

            wait_until(adopted, "the dead owner is adopted")
            shutil.rmtree(scene.spool)
            client.close(0.0)
        close = scene.lines(dead.name)[-1]
        assert (close["t"], close["failed"]) == ("close", {"closed": 100})


@pytest.mark.slow
def test_a_removed_directory_does_not_end_delivery(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene, scene.client() as client:
        _assert_delivers(client, scene)
        shutil.rmtree(scene.spool)
        _assert_delivers(client, scene)


# -- what dead owners left --------------------------------------------------------------------------------


def _newer(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("=I", data, VERSION_AT, owner_files.VERSION + 1)
    path.write_bytes(data)


def _rubbish(path: Path) -> None:
    path.write_bytes(b"rubbish " * (SEGMENT // 8))


def _shorter(path: Path) -> None:
    os.truncate(path, SEGMENT // 2)


def _another_head(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_newer, "newer"),
        (_rubbish, "is no file of a spool"),
        (_shorter, "is not what its head says"),
        (_another_head, "has a damaged head"),
    ],
)
def test_files_that_cannot_be_read_stay(
    spoil: Callable[[Path], None],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(owner, "LOOK_EVERY", 0.01)
    with Scene(tmp_path, spool_bytes="8MiB", ledger=None) as scene:
        spoiled, sound = scene.run(events=100), scene.run(events=100)
        spoil(scene.spool / f"{spoiled.name}.000000.seg")
        before = {path: path.read_bytes() for path in scene.spool.glob(f"{spoiled.name}.*")}
        capfd.readouterr()
        with scene.client() as client:
            _assert_delivers(client, scene)
            wait_until(lambda: sound.name not in scene.owners(), "the other one is adopted")
            assert client.stats().spool_error == ""
        assert {path: path.read_bytes() for path in scene.spool.iterdir()} == before
        said = _said(capfd, "cannot adopt")
        assert len(said) == 1 and words in said[0] and spoiled.name in said[0]
        assert not any(name.startswith(spoiled.name) for name in scene.arrived())


def test_a_file_that_cannot_be_read_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later looks pass it over, and find the next owners."""
    monkeypatch.setattr(owner, "LOOK_EVERY", 0.01)
    errors: list[str] = []
    with Scene(tmp_path, spool_bytes="8MiB", ledger=None) as scene:
        spoiled, *_ = [scene.run(events=10) for _ in range(3)]
        _rubbish(scene.spool / f"{spoiled.name}.000000.seg")
        with scene.client(on_error=errors.append) as client:
            wait_until(lambda: scene.owners() == {spoiled.name, client.producer}, "the others are adopted")
        assert sum("cannot adopt" in text for text in errors) == 1


@pytest.mark.parametrize(("module", "name"), [(owner_files, "read_record"), (replay, "settle")])
def test_what_fails_in_any_way_is_left_to_others(
    module: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, called = getattr(module, name), []

    def fail_once(*given: Any) -> Any:
        called.append(given)
        if len(called) == 1:
            raise LookupError("odd")
        return real(*given)

    monkeypatch.setattr(owner, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(module, name, fail_once)
    errors: list[str] = []
    with Scene(tmp_path) as scene:
        spoiled, *_ = [scene.run(events=10) for _ in range(3)]
        with scene.client(on_error=errors.append) as client:
            wait_until(lambda: scene.owners() == {spoiled.name, client.producer}, "the others are adopted")
            files = owner_files.OwnerFiles(str(scene.spool), spoiled.name)
            assert files.lock()
            files.unlock()
        assert sum("cannot adopt" in text for text in errors) == 1


def test_files_that_nobody_owns_are_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Scene(tmp_path) as scene:
        scene.spool.mkdir(mode=0o700)
        names = ("notes.txt", f"{'0' * 20}.000000.seg", "short.lock")
        for name in names:
            (scene.spool / name).write_text("rubbish")
        with scene.client() as client:
            _assert_delivers(client, scene)
        assert {path.name for path in scene.spool.iterdir()} == set(names)
        assert not _said(capfd, "spool")
