"""The end of the machine: files as they would be found after another boot."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from logclient.delivery.spool import owner_files
from tests.spool.scene import NOBODY, Scene

HEAD = 128


def _reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this machine started anew, as far as the spool can tell."""
    monkeypatch.setattr(owner_files, "boot_id", lambda: b"another boot id!")


@pytest.mark.parametrize("sync", ["interval", "batch"])
def test_all_that_stored_answered_for_survives(
    sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scene(tmp_path, spool_sync=sync, ledger=None) as scene:
        client = scene.client(NOBODY)
        for n in range(500):
            client.send({"message": "m" * (n % 3000), "n": n})
        last = client.submit({"message": "last", "n": 500})
        assert last.stored(30.0)
        image = tmp_path / "image"
        shutil.copytree(scene.spool, image)  # what a disk has at least
        client.close(0.0)
        shutil.rmtree(scene.spool)
        # The mapped files are not synced: nothing of them may be left.
        for path in image.glob("*.seg"):
            path.write_bytes(path.read_bytes()[:HEAD] + bytes(path.stat().st_size - HEAD))
        shutil.move(image, scene.spool)
        scene.spool.chmod(0o700)
        _reboot(monkeypatch)
        scene.drain()
        assert [event["n"] for event in scene.events()] == list(range(501))


def test_a_closed_client_leaves_what_survives_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scene(tmp_path) as scene:
        producer = scene.run(events=800, end="close")
        _reboot(monkeypatch)
        scene.drain()
        assert {int(name[20:], 16) for name in scene.arrived()} == producer.returned()


def test_without_a_log_an_earlier_boot_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Scene(tmp_path) as scene:
        scene.run(events=100)
        _reboot(monkeypatch)
        scene.drain()
        assert not scene.arrived()
        assert "segments of an earlier boot are lost" in capfd.readouterr().err


def _damage(path: Path, draw: random.Random) -> None:
    """Change a file as a disk may have it that lost power: pages of other times, cut, or full of zeros."""
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(0, max(1, len(data)), 512)
        kind = draw.randrange(3)
        if kind == 0:
            data[at : at + 512] = bytes(min(512, len(data) - at))
        elif kind == 1:
            del data[at:]
        else:
            data[at : at + 512] = draw.randbytes(min(512, len(data) - at))
    path.write_bytes(data)


def _images(scene: Scene, count: int, draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recover many images of one spool, each damaged in another way."""
    client = scene.client(NOBODY, spool_sync="interval")
    for n in range(300):
        client.send({"message": f"event {n} " + "m" * draw.choice((0, 50, 900)), "n": n})
    assert client.submit({"message": "event 300 ", "n": 300}).stored(30.0)
    (log,) = scene.spool.glob("*.log")
    synced = log.stat().st_size
    for n in range(301, 400):
        client.send({"message": f"event {n} ", "n": n})
    assert client.submit({"message": "event 400 ", "n": 400}).stored(30.0)
    producer, later = client.producer, log.read_bytes()
    saved = scene.folder / "saved"
    shutil.copytree(scene.spool, saved)
    client.close(0.0)
    shutil.rmtree(scene.spool)
    _reboot(monkeypatch)
    seen = 0
    for _ in range(count):
        shutil.copytree(saved, scene.spool, dirs_exist_ok=True)
        for path in scene.spool.glob("*.seg"):
            _damage(path, draw)
        # What was synced is there; of what came later any mixture.
        tail = scene.folder / "tail"
        tail.write_bytes(later[synced:])
        _damage(tail, draw)
        (scene.spool / log.name).write_bytes(later[:synced] + tail.read_bytes())
        scene.drain()
        arrived = [event for event in scene.events()[seen:] if event["@metadata"]["_id"].startswith(producer)]
        seen += len(arrived)
        numbers = [event["n"] for event in arrived]
        assert numbers[:301] == list(range(301))
        assert numbers == list(range(len(numbers)))
        assert all(event["message"].startswith(f"event {event['n']} ") for event in arrived)


def test_damaged_images_keep_what_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene(tmp_path, ledger=None, spool_bytes="8MiB") as scene:
        _images(scene, 10, random.Random(3), monkeypatch)
