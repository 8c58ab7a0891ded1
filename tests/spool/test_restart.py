"""The end of the machine: files as they would be found after another boot."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import logclient
from logclient.delivery.spool import owner_files
from logclient.testing.lumberjack import Collector
from tests.spool.scene import NOBODY, Scene
from tests.support.patience import PATIENCE

HEAD = 128


def _reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this machine started anew, as far as the spool can tell."""
    monkeypatch.setattr(owner_files, "boot_id", lambda: b"another boot id!")


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["interval", "batch"])
@pytest.mark.parametrize("sizes", [range(3000), [900_000]], ids=["small", "large"])
def test_all_that_stored_answered_for_survives(
    sync: str, sizes: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = 500 if len(sizes) > 1 else 20
    with Scene(tmp_path, spool_sync=sync, ledger=None) as scene:
        client = scene.client(NOBODY)
        for n in range(events):
            client.send({"message": "m" * sizes[n % len(sizes)], "n": n})
        last = client.submit({"message": "last", "n": events})
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
        assert [event["n"] for event in scene.events()] == list(range(events + 1))


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


class History:
    """Events of one client that its log has, and what the disk has for certain after each sync.

    Some are acknowledged before their server ends; the others wait for ever.
    """

    def __init__(self, scene: Scene, draw: random.Random) -> None:
        self.messages: list[str] = []
        self.synced: list[tuple[dict[str, int], int]] = []  # sizes of the logs, and events stored
        server = Collector()
        server.__enter__()
        url = f"lumberjack://127.0.0.1:{server.port}"
        client = scene.client(url, spool_sync=draw.choice(("interval", "batch")))
        self.producer = client.producer
        self._send(client, draw, draw.choice((0, 30, 200)))
        assert client.flush(PATIENCE) == 0
        self.acked = len(self.messages)
        server.__exit__(None, None, None)
        for _ in range(3):
            self._send(client, draw, draw.choice((1, 20, 150)))
            delivery = client.submit({"message": self._message(draw), "n": len(self.messages) - 1})
            assert delivery.stored(PATIENCE)
            sizes = {path.name: path.stat().st_size for path in scene.spool.glob("*.log")}
            self.synced.append((sizes, len(self.messages)))
        self.files = {path.name: path.read_bytes() for path in scene.spool.iterdir()}
        client.close(0.0)
        shutil.rmtree(scene.spool)

    def _message(self, draw: random.Random) -> str:
        text = f"event {len(self.messages)} " + "m" * draw.choice((0, 50, 900, 5000))
        self.messages.append(text)
        return text

    def _send(self, client: logclient.Client, draw: random.Random, count: int) -> None:
        for _ in range(count):
            client.send({"message": self._message(draw), "n": len(self.messages) - 1})

    def make_image(self, folder: Path, draw: random.Random) -> int:
        """Write files as after a power cut: those of one sync, and any mixture of later pages.

        Returns:
            How many events were stored by then.
        """
        sizes, stored = draw.choice(self.synced)
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, data in self.files.items():
            synced = sizes.get(name, 0)
            path = folder / name
            path.write_bytes(data[synced:])
            if not name.endswith(".lock"):
                _damage(path, draw)
            path.write_bytes(data[:synced] + path.read_bytes())
        return stored


def _images(scene: Scene, count: int, draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recover many images of one spool, each damaged in another way."""
    history = History(scene, draw)
    _reboot(monkeypatch)
    seen = 0
    for _ in range(count):
        stored = history.make_image(scene.spool, draw)
        scene.drain()
        arrived = scene.events()[seen:]
        seen += len(arrived)
        mine = [event for event in arrived if event["@metadata._id"].startswith(history.producer)]
        numbers = [event["n"] for event in mine]
        assert [event["message"] for event in mine] == [history.messages[n] for n in numbers]
        assert numbers == sorted(set(numbers))
        assert set(range(history.acked, stored)) <= set(numbers)


@pytest.mark.slow
def test_damaged_images_keep_what_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene(tmp_path, ledger=None, spool_bytes="8MiB") as scene:
        _images(scene, 25, random.Random(3), monkeypatch)


@pytest.mark.long
@pytest.mark.timeout(60 * PATIENCE)
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_damaged_images(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(f"power {part}")
    for k in range(20):
        folder = tmp_path / str(k)
        folder.mkdir()
        with monkeypatch.context() as patch, Scene(folder, ledger=None, spool_bytes="8MiB") as scene:
            _images(scene, 50, draw, patch)
        shutil.rmtree(folder)
