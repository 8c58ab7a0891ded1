"""``logclient spool``: what killed producers left is listed, sent, removed and tested."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logclient import cli
from logclient._ext.hash import xxh64
from logclient._ext.spool import SEGMENT
from logclient.errors import ExitCode
from tests import support
from tests.spool.scene import NOBODY, Scene
from tests.support.patience import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can map the files of a spool")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as scene:
        yield scene


def command(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    """Run ``spool`` in this process; return its output and its errors."""
    capsys.readouterr()
    done = cli.main(["spool", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert done == code, out + err
    return out, err


def listed(capsys: pytest.CaptureFixture[str], scene: Scene) -> dict[str, dict[str, Any]]:
    out, _ = command(capsys, "ls", scene.spool, "--json")
    return {owner["producer"]: owner for owner in map(json.loads, out.splitlines())}


class TestList:
    def test_a_killed_producer_is_described(self, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
        begun = time.time()
        producer = scene.run(events=300, sizes=(100,))
        owner = listed(capsys, scene)[producer.name]
        assert (owner["alive"], owner["pid"], owner["mode"]) == (False, producer.process.pid, "always")
        assert (owner["version"], owner["boot"], owner["damages"]) == (1, "this", [])
        assert owner["events"] == 300 and owner["body_bytes"] > 300 * 100
        files = [path.stat() for path in scene.spool.glob("*.seg")]
        assert owner["segments"] == len(files) and owner["bytes"] == sum(f.st_blocks * 512 for f in files)
        assert begun - 1 <= owner["oldest_us"] / 1e6 <= time.time()
        out, _ = command(capsys, "ls", scene.spool)
        assert out.startswith(f"{producer.name} dead, pid {producer.process.pid}, always, version 1, ")
        assert f"300 events waiting, {owner['body_bytes']:,} bytes, oldest {owner['oldest']}" in out

    def test_a_live_owner_is_not_disturbed(self, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
        with scene.client(NOBODY) as client:
            for n in range(50):
                client.send({"n": n})
            owner = listed(capsys, scene)[client.producer]
            assert (owner["alive"], owner["events"], owner["pid"]) == (True, 50, os.getpid())
            assert client.stats().spooled == 50 and client.stats().spool_error == ""
            fd = os.open(scene.spool / f"{client.producer}.lock", os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(fd)
            client.close(0.0)
        assert listed(capsys, scene)[client.producer]["alive"] is False

    def test_events_with_an_outcome_do_not_wait(
        self, scene: Scene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        producer = scene.start(scene.url, events=400, end="stay")
        wait_until(lambda: producer.sent() == 400 and len(scene.arrived()) == 400, "all arrived")
        wait_until(lambda: listed(capsys, scene)[producer.read_name()]["events"] == 0, "all are marked")
        producer.kill()

    def test_a_missing_directory_is_a_usage_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for action in ("ls", "check", "purge"):
            _, err = command(capsys, action, tmp_path / "none", code=ExitCode.USAGE)
            assert err == f"logclient: {tmp_path / 'none'}: No such file or directory\n"
        _, err = command(capsys, "drain", tmp_path / "none", "--to", NOBODY, code=ExitCode.USAGE)
        assert "No such file" in err and not (tmp_path / "none").exists()

    def test_other_systems_say_that_they_have_no_spool(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("logclient.delivery.spool.contents.SUPPORTED", False)
        _, err = command(capsys, "ls", tmp_path, code=ExitCode.USAGE)
        assert err == "logclient: spool: only Linux can map its files\n"


class TestDrain:
    @pytest.mark.slow
    def test_dead_owners_are_sent_under_their_ids(
        self, scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever the environment says about the spools of programs."""
        producers = [scene.run(events=200) for _ in range(2)]
        for name, value in (("SPOOL", "elsewhere"), ("SPOOL_SYNC", "batch"), ("SPOOL_MODE", "always")):
            monkeypatch.setenv(f"LOGCLIENT_{name}", value)
        arguments = ["drain", scene.spool, "--to", scene.url, "--ledger", scene.ledger]
        out, _ = command(capsys, *arguments)
        assert out == "400 events of 2 dead owners: 0 left\n"
        ids = {f"{one.name}{seq:012x}" for one in producers for seq in one.returned()}
        assert set(scene.arrived()) == ids and len(ids) == 400
        assert list(scene.spool.iterdir()) == []
        out, _ = command(capsys, *arguments, "--json")
        assert json.loads(out) == {"owners": 0, "events": 0, "left_owners": 0, "left": 0, "exit": 0}
        assert scene.verdict().ok == 400

    @pytest.mark.slow
    def test_what_cannot_be_sent_is_left(self, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
        producer = scene.run(events=100)
        arguments = ["drain", scene.spool, "--to", NOBODY, "--timeout", "5s"]
        out, err = command(capsys, *arguments, code=ExitCode.BROKEN)
        assert out == "100 events of 1 dead owner: 100 left in 1\n"
        assert "connection refused" in err
        assert listed(capsys, scene)[producer.name]["events"] == 100

    def test_events_of_any_age_are_sent(
        self, scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene.run(events=10)
        later = time.time() + 90 * 86400
        monkeypatch.setattr("logclient.delivery.spool.replay.time.time", lambda: later)
        out, _ = command(capsys, "drain", scene.spool, "--to", scene.url)
        assert out == "10 events of 1 dead owner: 0 left\n"
        assert len(scene.arrived()) == 10

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["drain"], "the following arguments are required: --to (see logclient spool drain --help)"),
            (["ls", "--yes"], "unrecognized arguments: --yes (see logclient spool ls --help)"),
            (
                ["purge", "--to", NOBODY],
                f"unrecognized arguments: --to {NOBODY} (see logclient spool purge --help)",
            ),
        ],
    )
    def test_a_wrong_option_is_named(
        self, scene: Scene, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        scene.run(events=1)
        action, *rest = arguments
        _, err = command(capsys, action, scene.spool, *rest, code=ExitCode.USAGE)
        assert err == f"logclient: {words}\n"
        assert len(scene.owners()) == 1


class TestPurge:
    @pytest.mark.slow
    def test_it_refuses_where_nobody_can_be_asked(
        self, scene: Scene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        producer = scene.run(events=10)
        out, err = command(capsys, "purge", scene.spool, code=ExitCode.USAGE)
        assert "10 events waiting" in out
        assert err == "logclient: purge: needs --yes where nobody can be asked\n"
        assert scene.owners() == {producer.name}

    def test_on_a_terminal_it_asks(self, scene: Scene) -> None:
        from tests.cli.terminal import Terminal

        scene.run(events=10)
        environment = support.clean_environment(PYTHONPATH=os.pathsep.join(sys.path))
        for answer, left in (("n\r", 1), ("\r", 1), ("\x04", 1), ("y\r", 0)):  # \x04: the end of the input
            words = [sys.executable, "-m", "logclient", "spool", "purge", str(scene.spool)]
            with Terminal(*words, environment=environment, folder=scene.folder) as terminal:
                terminal.until(r"remove 10 events of 1 owner\? \[y/N\] ")
                terminal.type(answer)
                assert terminal.process.wait(support.patience.PATIENCE) == left  # the exit code, too
            assert len(scene.owners()) == left

    def test_one_owner_goes_and_others_stay(self, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
        first, second = scene.run(events=10), scene.run(events=20)
        out, _ = command(capsys, "purge", scene.spool, "--owner", first.name, "--yes")
        assert out.endswith("1 owner, 10 events removed\n")
        assert {path.name[:20] for path in scene.spool.iterdir()} == {second.name}

    def test_a_live_owner_is_never_purged(self, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
        with scene.client(NOBODY) as client:
            client.send({"n": 1})
            out, _ = command(capsys, "purge", scene.spool, "--yes")
            assert out == "0 owners, 0 events removed\n"
            arguments = ["purge", scene.spool, "--owner", client.producer, "--yes"]
            _, err = command(capsys, *arguments, code=ExitCode.USAGE)
            assert "is alive" in err and scene.owners() == {client.producer}
            client.close(0.0)

    def test_purged_events_are_dropped_in_the_ledger(
        self, scene: Scene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        producer = scene.start(NOBODY, events=300, end="stay")
        wait_until(lambda: producer.sent() == 300 and producer.read_name(), "it has sent all")
        wait_until(lambda: scene.parts(producer.name) == [1], "its ledger is begun")
        producer.kill()
        _, err = command(capsys, "purge", scene.spool, "--yes", "--ledger", scene.ledger)
        assert err == "" and scene.owners() == set()
        *_, dropped, close = scene.lines(producer.name)
        assert (dropped["t"], dropped["reason"], dropped["seqs"]) == ("dropped", "purged", [[1, 300]])
        assert (close["t"], close["last"], close["dropped"]) == ("close", 300, {"purged": 300})
        with scene.client() as client:
            client.send({"n": 1})  # without any capture there would be no verdict
        counts = scene.verdict()
        assert (counts.ok, counts.dropped, counts.unknown, counts.lost) == (1, 300, 0, 0)

    @pytest.mark.parametrize("first", ["null", "[" * 100_000])
    def test_a_ledger_with_a_damaged_first_line_is_continued(
        self, first: str, scene: Scene, capsys: pytest.CaptureFixture[str]
    ) -> None:
        producer = scene.run(events=10)
        (scene.ledger / f"{producer.name}-0001.ledger").write_text(first + "\n")
        _, err = command(capsys, "purge", scene.spool, "--yes", "--ledger", scene.ledger)
        assert err == "" and scene.owners() == set()
        assert '"seqs":[[1,10]]' in (scene.ledger / f"{producer.name}-0002.ledger").read_text()


def _spoil(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


class TestCheck:
    @pytest.mark.slow
    def test_sound_files_pass(self, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
        scene.run(events=3000)
        scene.run(events=3000, spool_mode="overflow", max_bytes="1MiB", end="close")
        out, _ = command(capsys, "check", scene.spool)
        assert out == "2 owners, 0 faults\n"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("at", "data", "words"),
        [
            (12, struct.pack("=I", 9), "has version 9, newer than 1"),
            (64, b"\xff", "has a damaged head"),
            (0, b"GIF89a!!", "is no file of a spool"),
            (4096 + 8, struct.pack("=I", 77), "the chunk at 4096 has an impossible size, 77"),
            (4096 + 64 + 16, b"\xff" * 4, "an event at 4160 makes no sense"),
        ],
    )
    def test_a_damage_is_named_with_its_place(
        self, scene: Scene, at: int, data: bytes, words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        producer = scene.run(events=10)
        path = scene.spool / f"{producer.name}.000000.seg"
        _spoil(path, at, data)
        out, _ = command(capsys, "check", scene.spool, code=ExitCode.BROKEN)
        first, last = out.splitlines()
        assert first.startswith(f"{path}: {words}") and first.count("; ") == 2
        assert last == "1 owner, 1 fault"

    @pytest.mark.parametrize("size", [4096, SEGMENT - 1, SEGMENT + 1, 1 << 40])
    def test_a_segment_of_another_size_is_named(
        self, scene: Scene, size: int, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """No more memory is taken for one of a tebibyte."""
        producer = scene.run(events=10, spool_bytes="8MiB")
        path = scene.spool / f"{producer.name}.000000.seg"
        os.truncate(path, size)
        out, _ = command(capsys, "check", scene.spool, code=ExitCode.BROKEN)
        assert out.startswith(f"{path}: has {size} bytes, not {SEGMENT}; ")

    @pytest.mark.parametrize("number", [0, 77], ids=["another owner", "another number"])
    def test_a_file_that_was_renamed_is_named(
        self, scene: Scene, number: int, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first, second = [scene.run(events=10, spool_bytes="8MiB") for _ in range(2)]
        path = scene.spool / f"{first.name if number else second.name}.{number:06d}.seg"
        (scene.spool / f"{first.name}.000000.seg").rename(path)
        out, _ = command(capsys, "check", scene.spool, code=ExitCode.BROKEN)
        assert f"{path}: is not what its head says: it was renamed; " in out

    def test_a_copy_is_told_from_the_spool(
        self, scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Without a log nothing says that it is whole."""
        producer = scene.run(events=10, spool_bytes="8MiB")
        copy = tmp_path / "copy"
        shutil.copytree(scene.spool, copy)
        owner = json.loads(command(capsys, "ls", copy, "--json")[0])
        assert (owner["boot"], owner["events"]) == ("earlier", 0)
        out, _ = command(capsys, "check", copy, code=ExitCode.BROKEN)
        assert f"{producer.name}.000000.seg: was written before this machine started, or copied" in out

    def test_a_log_that_was_damaged_is_named(
        self, scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        producer = scene.start(events=100, end="stay", spool_sync="interval", spool_bytes="16MiB")
        wait_until(lambda: producer.sent() == 100 and producer.read_name(), "it has sent all")
        copy = tmp_path / "copy"

        def logged() -> int:
            """Return the events of a copy, which are those that the log has."""
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(scene.spool, copy)
            return int(json.loads(command(capsys, "ls", copy, "--json")[0])["events"])

        wait_until(lambda: logged() == 100, "its log has them")
        producer.kill()
        path = scene.spool / f"{producer.name}.000000.log"
        assert command(capsys, "check", scene.spool)[0] == "1 owner, 0 faults\n"
        _spoil(path, 200, b"\xff")
        out, _ = command(capsys, "check", scene.spool, code=ExitCode.BROKEN)
        assert out.startswith(f"{path}: the block at 120 fails its checksum; ")


def test_documented_offsets_decode_a_file(scene: Scene) -> None:
    """By nothing but the numbers of docs/formats.md."""
    producer = scene.run(events=40, sizes=(7,))
    data = (scene.spool / f"{producer.name}.000000.seg").read_bytes()
    assert len(data) == 4096 + 64 * 65536

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], sys.byteorder)

    assert data[:8] == b"lcspool\x01"
    assert (number(8, 4), number(12, 4)) == (0x01020304, 1)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    assert (data[16:32].hex(), data[32:42].hex(), data[42:48]) == (boot, producer.name, bytes(6))
    place = (scene.spool / f"{producer.name}.000000.seg").stat()
    assert (number(48, 8), number(56, 8)) == (place.st_dev, place.st_ino)
    assert [number(at, 4) for at in (64, 68, 72, 76)] == [0, 4096, len(data), 64]
    assert (number(80, 8), number(88, 8)) == (1, producer.process.pid)
    assert abs(number(104, 8) / 1e6 - time.time()) < 3600
    assert number(112, 8) == xxh64(data[:112])
    assert [number(at, 8) for at in (1024, 1032, 1040)] == [0, 0, 0]
    assert (number(4096 + 8, 4), number(4096 + 56, 8)) == (65536 - 64, 1)
    at, found = 4096 + 64, []
    while seq := number(at, 8):
        size = number(at + 16, 4)
        assert data[at + 20] & 0x7F <= 5
        found.append((seq, json.loads(data[at + 24 : at + 24 + size])["n"]))
        at += 24 + (size + 7 & ~7)
    assert found == [(n, n) for n in range(1, 41)]
