"""Evidence that is not read: links to folders, folders with the names of files, and empty folders."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ConfigError, LedgerError
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.support.verify_scene import P, Q, Scene

support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
ledger_files = pytest.importorskip("logclient.evidence.ledger_files")


@pytest.fixture
def verify(scene: Scene) -> Callable[..., Any]:
    scene.write_ledger().write_capture()

    def run(ledger: Any = None, capture: Any = None, **options: Any) -> Any:
        given = scene.ledger if ledger is None else ledger, scene.capture if capture is None else capture
        return inprocess.run(*given, **options)

    return run


def of_another_host(folder: Path) -> Scene:
    """A host whose events are all lost."""
    folder.mkdir()
    host = Scene(folder)
    bodies = {1: files.body(files.event_id(Q, 1), "lost")}
    host.write_ledger(producer=Q, bodies=bodies).write_capture([], listener="other")
    return host


def assert_unproven(verdict: Any, problem: str) -> None:
    assert verdict.exit_code == 3
    assert [x for x in verdict.problems if problem in x], verdict.problems


class TestLedgers:
    def test_link_to_a_folder(self, scene: Scene, verify: Callable[..., Any], tmp_path: Path) -> None:
        host = of_another_host(tmp_path / "host")
        (scene.ledger / "host-b").symlink_to(host.ledger)
        verdict = verify()
        assert_unproven(verdict, "ledger: host-b (a link to a folder): it may be a ledger")
        assert verdict.ledger["unread"] == 1 and "host-b (a link to a folder)" in verdict.sentence

    @pytest.mark.parametrize("name", [f"{Q}-0001.ledger", "old.LEDGER.d"])
    def test_folder_with_the_name_of_a_ledger(
        self, scene: Scene, verify: Callable[..., Any], tmp_path: Path, name: str
    ) -> None:
        """Nothing in it is read."""
        folder = scene.ledger / "deep" / name
        folder.parent.mkdir()
        of_another_host(tmp_path / "host").ledger.rename(folder)
        (folder / "more").mkdir()
        verdict = verify()
        assert_unproven(verdict, f"ledger: deep/{name} (a folder): it may be a ledger")
        assert (verdict.ledger["unread"], verdict.counts.events) == (1, 20)

    def test_empty_folder_beside_a_full_one(
        self, scene: Scene, verify: Callable[..., Any], tmp_path: Path
    ) -> None:
        empty = tmp_path / "empty"
        (empty / "below").mkdir(parents=True)
        (empty / "below" / "notes.txt").write_text("none")
        verdict = verify([scene.ledger, empty])
        assert_unproven(verdict, f"ledger: {empty} (a folder without any ledger)")
        (empty / "below" / "notes.txt").rename(empty / "below" / f"{Q}-0001.ledger")
        assert "without any ledger" not in " ".join(verify([scene.ledger, empty]).problems)

    def test_pattern_that_matches_an_empty_folder(
        self, scene: Scene, verify: Callable[..., Any], tmp_path: Path
    ) -> None:
        (tmp_path / "hosts").mkdir()
        scene.ledger.rename(tmp_path / "hosts" / "a")
        (tmp_path / "hosts" / "b").mkdir()
        assert_unproven(verify(tmp_path / "hosts" / "*"), f"{tmp_path}/hosts/b (a folder without any ledger)")

    def test_folder_within_a_given_one_is_not_empty(self, scene: Scene, verify: Callable[..., Any]) -> None:
        """Its ledger was read with the folder above."""
        below = scene.ledger / "below"
        below.mkdir()
        (scene.ledger / f"{P}-0001.ledger").rename(below / f"{P}-0001.ledger")
        assert verify([scene.ledger, below]).exit_code == 0

    def test_given_folder_may_be_a_link(
        self, scene: Scene, verify: Callable[..., Any], tmp_path: Path
    ) -> None:
        (tmp_path / "hosts").mkdir()
        (tmp_path / "hosts" / "a.ledger").symlink_to(scene.ledger)
        (tmp_path / "hosts" / "a.cap").symlink_to(scene.capture)
        assert verify(tmp_path / "hosts" / "*.ledger", tmp_path / "hosts" / "a.cap").exit_code == 0

    def test_nothing_but_a_link(self, scene: Scene, verify: Callable[..., Any], tmp_path: Path) -> None:
        (tmp_path / "top").mkdir()
        (tmp_path / "top" / "host-b").symlink_to(scene.ledger)
        with pytest.raises(LedgerError, match=r"host-b \(a link to a folder\) is not read"):
            verify(tmp_path / "top")
        (tmp_path / "top" / "host-b").unlink()
        (tmp_path / "top" / "host-b").symlink_to(scene.capture)
        with pytest.raises(LedgerError, match=r"host-b \(a link to a folder\) is not read"):
            verify(capture=tmp_path / "top")

    @pytest.mark.parametrize("lost", [[], range(11, 20), [11]])
    def test_two_processes_with_one_id(
        self, scene: Scene, verify: Callable[..., Any], tmp_path: Path, lost: Any
    ) -> None:
        """A snapshot of ten events was restored twice. Which of both sent an event cannot be told."""
        bodies = scene.bodies
        theirs = {s: files.body(files.event_id(P, s), f"theirs {s}") for s in range(11, 25)}
        scene.write_ledger()
        scene.ledger.rename(tmp_path / "one")
        scene.write_ledger(bodies={s: bodies[s] for s in range(1, 11)} | theirs)
        gone = [bodies[s] for s in lost]
        scene.write_capture([raw for raw in [*bodies.values(), *theirs.values()] if raw not in gone], size=1)
        verdict = verify(ledger=[tmp_path / "one", scene.ledger])
        assert verdict.exit_code == 3
        assert (verdict.counts.corrupted, verdict.counts.lost, verdict.counts.unexpected) == (0, 0, 0)
        assert verdict.counts.ok + verdict.counts.unknown == 24
        named = "is here twice, and they differ: two processes had this id, or a file is damaged"
        assert [x for x in verdict.problems if named in x], verdict.problems


class TestCaptures:
    def test_link_to_a_folder(self, scene: Scene, verify: Callable[..., Any], tmp_path: Path) -> None:
        """Nothing is lost, and yet another host may have got something else."""
        (scene.capture / "host-b").symlink_to(of_another_host(tmp_path / "host").capture)
        verdict = verify()
        assert_unproven(verdict, "capture: host-b: unread: it is a link to a folder")
        assert verdict.counts.ok == 20 and "host-b" in verdict.sentence
        scene.write_capture(range(1, 20))
        assert verify().counts.unknown == 1

    def test_folder_with_the_name_of_a_segment(
        self, scene: Scene, verify: Callable[..., Any], tmp_path: Path
    ) -> None:
        folder = scene.capture / "other-000001.cap"
        of_another_host(tmp_path / "host").capture.rename(folder)
        verdict = verify()
        assert_unproven(verdict, "capture: other-000001.cap: unread: it is a folder")
        assert verdict.capture["listeners"] == ["main"]

    def test_nothing_but_links_to_segments(
        self, scene: Scene, verify: Callable[..., Any], tmp_path: Path
    ) -> None:
        """Several folders, none with a segment: the first name is told, and nothing is written."""
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        (tmp_path / "b" / "main-000001.cap").symlink_to(scene.capture / "main-000001.cap")
        folders = [tmp_path / "a", tmp_path / "b"]
        with pytest.raises(LedgerError, match=r"has no segment: .*/b/main-000001\.cap is not read"):
            verify(capture=folders, out=scene.out)
        assert not scene.out.exists()
        (tmp_path / "a" / "main-000001.cap").write_bytes(b"")
        assert_unproven(verify(capture=folders), "b/main-000001.cap: unread")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
    def test_file_that_is_not_opened(self, scene: Scene, verify: Callable[..., Any]) -> None:
        os.mkfifo(scene.capture / "other-000001.cap")
        assert_unproven(verify(), "capture: other-000001.cap: unread")

    def test_empty_folder_beside_a_full_one(
        self, scene: Scene, verify: Callable[..., Any], tmp_path: Path
    ) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        (empty / "notes.txt").write_text("none")
        verdict = verify(capture=[scene.capture, empty])
        assert_unproven(verdict, f"capture: {empty}: unread: it is a folder without any segment")


class TestWhatIsNoEvidence:
    @pytest.mark.parametrize("target", ["latest", "x" * 300, "notes.txt/below", "none"])
    def test_link_that_leads_nowhere(self, scene: Scene, verify: Callable[..., Any], target: str) -> None:
        for folder in (scene.ledger, scene.capture):
            (folder / "notes.txt").write_text("none")
            (folder / "latest").symlink_to(target)
        assert (verify().exit_code, verify().problems) == (0, ())
        (scene.capture / "main-000002.cap").symlink_to(target)
        assert_unproven(verify(), "capture: main-000002.cap: unread")

    def test_file_or_folder_that_is_removed_meanwhile(
        self, scene: Scene, verify: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scandir, removed = os.scandir, []

        def scan(path: Any) -> Any:
            with scandir(path) as entries:
                found = list(entries)
            for entry in found:
                if entry.name.startswith("gone"):
                    (os.rmdir if entry.is_dir() else os.unlink)(entry.path)
                    removed.append(entry.name)
            return contextlib.nullcontext(found)

        for folder in (scene.ledger, scene.capture):
            (folder / "gone").mkdir()
            (folder / "gone.txt").write_text("none")
        monkeypatch.setattr(os, "scandir", scan)
        assert (verify().exit_code, sorted(removed)) == (0, ["gone", "gone", "gone.txt", "gone.txt"])
        with pytest.raises(LedgerError, match=r"capture: .*/none: No such file"):
            verify(capture=scene.capture / "none")


class TestPlaces:
    def test_empty_place_is_not_the_current_directory(
        self, scene: Scene, verify: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(scene.ledger)
        own = scene.ledger / "report.html"
        own.write_text("mine")
        for what in ("out", "ledger", "capture"):
            with pytest.raises(ConfigError, match=f"^{what}: must not be empty"):
                verify(**{what: ""})
        assert own.read_text() == "mine"
        assert verify(ledger=Path()).exit_code == 0

    @pytest.mark.parametrize("place", ["file://[x", "s3://[x/y", "file:///tmp/%00", "/tmp/\0"])
    @pytest.mark.parametrize("what", ["ledger", "capture", "out"])
    def test_impossible_place_is_a_config_error(
        self, verify: Callable[..., Any], what: str, place: str
    ) -> None:
        with pytest.raises(ConfigError, match=f"^{what}: .*(is not a URL|zero byte)"):
            verify(**{what: place})

    def test_percent_sign_in_a_path_is_no_escape(
        self, scene: Scene, verify: Callable[..., Any], tmp_path: Path
    ) -> None:
        folder = tmp_path / "a%00b"
        scene.capture.rename(folder)
        assert verify(capture=folder, out=tmp_path / "%00").exit_code == 0
        assert (tmp_path / "%00" / "verdict.json").exists()

    def test_impossible_limit_is_a_config_error(self, verify: Callable[..., Any]) -> None:
        for limit in ("9" * 5000, 10**5000, "9" * 5000 + "%", "0." + "9" * 5000 + "%"):
            with pytest.raises(ConfigError, match=r"max_missing: .* must be a count"):
                verify(max_missing=limit)

    def test_earlier_verdict_is_gone_when_a_run_fails(self, scene: Scene, verify: Callable[..., Any]) -> None:
        wrong: list[dict[str, Any]] = [
            {"until": "yesterday"}, {"max_missing": "many"}, {"others": "none"}, {"kafka": "h:1/t"},
            {"ledger": scene.ledger / "none"}, {"capture": scene.capture / "none"},
        ]  # fmt: skip
        for options in wrong:
            scene.write_capture(range(1, 20))
            verify(out=scene.out)
            (scene.out / "violations" / "mine.txt").write_text("kept")
            assert (scene.out / "verdict.json").exists() and list(scene.out.glob("violations/*.parquet"))
            with pytest.raises((ConfigError, LedgerError)):
                verify(out=scene.out, **options)
            left = sorted(path.name for path in scene.out.rglob("*") if path.is_file())
            assert left == ["mine.txt"], options


@pytest.mark.parametrize(
    "tail",
    [
        b"abc", b"\0\0\0\0\1", files.unit_record(11, b"x" * 300)[:80], b"\0" * 100 + b"\1",
        files.stream_record(2, "p"),
    ],
)  # fmt: skip
def test_bytes_behind_the_end_of_a_segment_are_a_doubt(
    scene: Scene, verify: Callable[..., Any], tail: bytes
) -> None:
    """They may be of the event that is lost. Zeros are what a crash of the machine leaves."""
    scene.write_capture(range(1, 20))
    path = scene.capture / "main-000001.cap"
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(100))
    assert (verify().exit_code, verify().counts.lost) == (1, 1)
    path.write_bytes(whole + tail)
    verdict = verify()
    assert (verdict.counts.lost, verdict.counts.unknown) == (0, 1)
    assert_unproven(verdict, "capture: main-000001.cap at byte")


def test_progress_begins_with_the_search_for_files(
    verify: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process there is no Spark to start."""
    begun = threading.Event()
    lines: list[str] = []
    find = ledger_files.find_ledgers

    def progress(line: str) -> None:
        lines.append(line)
        begun.set()

    def find_when_begun(places: Any) -> Any:
        assert begun.wait(PATIENCE)
        return find(places)

    monkeypatch.setattr(ledger_files, "find_ledgers", find_when_begun)
    assert verify(progress=progress).exit_code == 0
    assert lines[0].startswith("looking for files, ")
    assert not [line for line in lines if "Spark" in line]
