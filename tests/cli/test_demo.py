"""The demo: what it sends, when it trusts the verifier, and a small complete run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logclient.errors import ConfigError, ConnectFailed, ExitCode, LogclientError
from tests.support.patience import PATIENCE
from tools.demo import judgement
from tools.demo.__main__ import Verify, clear, demo
from tools.demo.judgement import WORDS
from tools.demo.processes import Collector, Verifier
from tools.demo.scenarios import PROTOCOLS as SCENARIOS

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.support.verify_scene import Scene

PROTOCOLS = ("lumberjack", "logjam", "plog", "logux")

A, B, C = "a" * 20, "b" * 20, "c" * 20


def event_id(producer: str, sequence: int) -> str:
    return f"{producer}{sequence:012x}"


class TestFolder:
    def test_foreign_folders_are_never_deleted(self, tmp_path: Path) -> None:
        (tmp_path / "lumberjack-honest").mkdir()
        (tmp_path / "lumberjack-honest" / "precious").touch()
        (tmp_path / "a.log").write_text("line\n")
        with pytest.raises(ConfigError, match="exists and is not from a demo"):
            demo([str(tmp_path / "a.log")], out=str(tmp_path), verify=lambda *_: pytest.fail("it ran"))
        assert (tmp_path / "lumberjack-honest" / "precious").exists()

    def test_folders_of_earlier_demos_are_deleted(self, tmp_path: Path) -> None:
        for _ in range(2):
            clear(tmp_path / "run")
            assert [path.name for path in (tmp_path / "run").iterdir()] == [".logclient-demo"]
            (tmp_path / "run" / "capture").mkdir()


def test_too_few_events_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="events: must be at least 40000"):
        demo(
            [str(tmp_path / "none")],
            events=39_999,
            out=str(tmp_path / "out"),
            verify=lambda *_: pytest.fail("it ran"),
        )
    assert not (tmp_path / "out").exists()


HONEST = dict.fromkeys(
    ("lost", "missing", "recovered", "unexpected", "corrupted", "reordered", "dropped", "unknown"), 0
) | {"ok": 1000, "duplicated": 200}
COUNTS = {"cuts": 7, "cuts_before_ack": 5, "copies": 200}


class TestFaultlessRun:
    def test_a_clean_verdict_passes(self) -> None:
        assert judgement.judge_honest(0, HONEST, COUNTS, 1000) == []

    @pytest.mark.parametrize(
        ("code", "verdict", "counts", "says"),
        [
            (1, {}, {}, "verify ended with 1, must be 0"),
            (3, {}, {}, "verify ended with 3, must be 0"),
            (0, {"ok": 999}, {}, "ok is 999, must be all 1000"),
            (0, {"lost": 1}, {}, "lost is 1"),
            (0, {"missing": 1}, {}, "missing is 1"),
            (0, {"reordered": 1}, {}, "reordered is 1"),
            (0, {"unknown": 1}, {}, "unknown is 1"),
            (0, {"dropped": 1}, {}, "dropped is 1"),
            (0, {}, {"cuts": 4}, "4 cuts, must be at least 5"),
            (0, {}, {"cuts_before_ack": 1}, "1 cuts between write and ack"),
            (0, {"duplicated": 0}, {"copies": 0}, "no event was duplicated"),
            (0, {"duplicated": 199}, {}, "duplicated is 199, the collector counted 200"),
        ],
    )
    def test_any_other_verdict_fails(
        self, code: int, verdict: dict[str, int], counts: dict[str, int], says: str
    ) -> None:
        (trouble,) = judgement.judge_honest(code, HONEST | verdict, COUNTS | counts, 1000)
        assert says in trouble


class TestFaultyRun:
    @staticmethod
    def judge(
        lied: dict[str, list[list[str]]], found: dict[str, set[str]], planned: str, code: int = 1, **more: int
    ) -> list[str]:
        everything = {word: found.get(word, set()) for word in judgement.NAMED}
        verdict = {word: len(ids) for word, ids in everything.items()} | {"dropped": 0, "unknown": 0}
        cuts = {"cuts": more.pop("cuts", 0)}
        return judgement.judge_liar(SCENARIOS[0], code, verdict | more, everything, lied, cuts, planned)

    @pytest.fixture
    def discards(self) -> list[list[str]]:
        return [
            [event_id(p, n) for n in range(at, at + 200)] for p in (A, B, C) for at in range(1, 2000, 250)
        ]

    def test_faults_must_be_found_to_the_event(self, discards: list[list[str]]) -> None:
        ids = {one for unit in discards for one in unit}
        assert self.judge({"discard": discards}, {"lost": ids}, "discard=every:5") == []

    def test_a_wrong_set_of_ids_fails(self, discards: list[list[str]]) -> None:
        ids = {one for unit in discards for one in unit}
        some = next(iter(ids))
        for wrong in (ids - {some}, ids | {event_id(A, 9999)}, (ids - {some}) | {event_id(A, 9999)}):
            (trouble,) = self.judge({"discard": discards}, {"lost": wrong}, "discard=every:5")
            assert trouble.startswith("lost: ")
        troubles = self.judge({"discard": discards}, {"lost": ids, "missing": {some}}, "discard=every:5")
        assert [trouble.split(":")[0] for trouble in troubles] == ["missing"]

    @pytest.mark.parametrize(
        ("more", "says"),
        [
            ({"code": 0}, "verify ended with 0, must be 1"),
            ({"cuts": 1}, "1 cuts, must be none"),
            ({"unknown": 1}, "unknown is 1"),
            ({"dropped": 5}, "dropped is 5"),
            ({"lost": 5}, "lost is 5, but 4800 ids are listed"),
        ],
    )
    def test_other_findings_must_be_right_too(
        self, discards: list[list[str]], more: dict[str, int], says: str
    ) -> None:
        ids = {one for unit in discards for one in unit}
        (trouble,) = self.judge({"discard": discards}, {"lost": ids}, "discard=every:5", **more)
        assert says in trouble

    def test_too_few_faults_fail(self, discards: list[list[str]]) -> None:
        for few in (
            discards[:19],
            [*discards[:8]] * 3,
            [[event_id(A, n) for n in range(1, 4000)], *discards],
        ):
            ids = {one for unit in few for one in unit}
            (trouble,) = self.judge({"discard": few}, {"lost": ids}, "discard=every:5")
            assert "must be at least 20 of at most 200 over at least 3" in trouble
        assert self.judge({}, {}, "discard=every:5") == ["discard: never happened"]

    def test_the_second_faulty_run_is_checked(self) -> None:
        lied = {
            "swap": [[event_id(A, n) for n in range(1, 201)]],
            "duplicate": [[event_id(B, n) for n in range(1, 201)]],
            "corrupt": [[event_id(C, 7)]],
            "add": [[event_id("d" * 20, 1)]],
        }
        found = {judgement.FOUND_AS[fault]: set(ids) for fault, (ids,) in lied.items()}
        planned = "swap=every:9,duplicate=every:14,corrupt=every:19,add=every:24"
        assert self.judge(lied, found, planned) == []
        for word in found:
            (trouble,) = self.judge(lied, found | {word: set()}, planned)
            assert trouble.startswith(f"{word}: 0 ids found")
        del lied["add"], found["unexpected"]
        assert self.judge(lied, found, planned) == ["add: never happened"]


class TestNetwork:
    """A run over a bad network: its losses must be named, and nothing else."""

    PLOG = next(protocol for protocol in SCENARIOS if protocol.name == "plog")

    def judge(self, lied: dict[str, list[list[str]]], found: dict[str, set[str]], **more: int) -> list[str]:
        everything = {word: found.get(word, set()) for word in judgement.NAMED}
        verdict = {word: len(ids) for word, ids in everything.items()} | {"dropped": 0, "unknown": 0}
        code = more.pop("code", 0)
        counts = {"kernel_drops": more.pop("kernel_drops", 0)}
        verdict |= {"ok": 1000 - verdict["missing"]} | more
        return judgement.judge_network(self.PLOG, code, verdict, everything, lied, counts, 1000)

    @pytest.fixture
    def dropped(self) -> list[list[str]]:
        return [[event_id(A, n)] for n in range(1, 201)]

    @pytest.fixture
    def doubled(self) -> list[list[str]]:
        return [[event_id(B, n)] for n in range(1, 151)]

    def test_network_losses_must_be_named_to_the_event(
        self, dropped: list[list[str]], doubled: list[list[str]]
    ) -> None:
        lied = {"drop": dropped, "duplicate": doubled}
        found = {"missing": {ids[0] for ids in dropped}, "duplicated": {ids[0] for ids in doubled}}
        assert self.judge(lied, found) == []
        for more, says in (
            ({"code": 1}, "verify ended with 1"),
            ({"kernel_drops": 3}, "the kernel dropped 3 datagrams"),
            ({"ok": 799}, "ok and missing are 999"),
            ({"unknown": 1}, "unknown is 1"),
        ):
            (trouble,) = self.judge(lied, found, **more)
            assert says in trouble
        (trouble,) = self.judge(lied, found | {"missing": found["missing"] - {event_id(A, 7)}})
        assert trouble.startswith("missing: 199 ids found, 200 in the fault log")

    def test_too_few_network_losses_fail(self, dropped: list[list[str]]) -> None:
        few = {"missing": {ids[0] for ids in dropped[:99]}}
        troubles = self.judge({"drop": dropped[:99]}, few)
        assert len(troubles) == 2 and all("must be at least 100" in trouble for trouble in troubles)


class TestProcesses:
    def test_a_collector_that_does_not_start_is_reported(self, tmp_path: Path) -> None:
        with (
            pytest.raises(ConnectFailed, match=r"collector: did not start: .*'explode' is not a fault"),
            Collector("lumberjack://127.0.0.1:0", "explode=every:1", tmp_path / "c", None, tmp_path),
        ):
            pytest.fail("it started")

    def test_a_collector_that_dies_is_reported(self, tmp_path: Path) -> None:
        with Collector("lumberjack://127.0.0.1:0", "seed=1", tmp_path / "c", None, tmp_path) as one:
            one._process.kill()
            with pytest.raises(LogclientError, match="collector: ended with -9: no output"):
                one.stop()

    @pytest.mark.spark
    def test_one_verifier_judges_all_runs(self, scene: Scene, tmp_path: Path) -> None:
        scene.write_ledger().write_capture()
        whole, less, none = scene.capture, tmp_path / "less", tmp_path / "none"
        less.mkdir()
        scene.capture = less
        scene.write_capture([1])
        with Verifier() as verifier:
            with pytest.raises(LogclientError, match=r"^verify: ledger: .*none"):
                verifier.verify(none, tmp_path / "out", {"capture": str(none)})
            code, counts = verifier.verify(scene.ledger, scene.out, {"capture": str(whole)})
            assert (code, counts["ok"], counts["lost"]) == (ExitCode.OK, 20, 0)
            code, counts = verifier.verify(scene.ledger, tmp_path / "second", {"capture": str(less)})
            assert (code, counts["ok"], counts["lost"]) == (ExitCode.BROKEN, 1, 19)
        assert (scene.out / "report.html").exists()

    @pytest.mark.spark
    def test_a_verifier_that_does_not_start_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from logclient.verify import spark

        monkeypatch.setattr(spark, "_active_session", lambda: None)
        monkeypatch.setattr(spark, "_jvm_runs", lambda: False)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with (
            Verifier() as verifier,
            pytest.raises(LogclientError, match=r"^verify: java: Spark needs Java 17"),
        ):
            verifier.verify(tmp_path, tmp_path / "out", {"capture": str(tmp_path)})


def in_this_process() -> Verify:
    """Judge without Spark, by the same steps."""

    from tests.support import verify_inprocess

    def verify(ledger: Path, checked: Path, asked: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        limits = dict(asked)
        capture = Path(limits.pop("capture"))
        verdict = verify_inprocess.run(ledger, capture, out=checked, **limits)
        return verdict.exit_code, verdict.to_json()["counts"]

    return verify


def assert_demo_output(folder: Path, events: int, out: str) -> None:
    runs = json.loads((folder / "verdict.json").read_text())["runs"]
    assert [(run["name"], run["liar"], run["exit"], run["caught"]) for run in runs] == [
        (f"{protocol}-{name}", liar, int(liar), liar)
        for protocol in PROTOCOLS
        for name, liar in (("honest", False), ("discards", True), ("tampers", True))
    ]
    for protocol in PROTOCOLS:
        assert_protocol_output([run for run in runs if run["protocol"] == protocol], events, out)
    assert "verdict.json" in out
    listed = re.findall(r'<a href="([^"]+)">([^<]+)</a>', (folder / "index.html").read_text())
    assert listed == [(f"{run['name']}/verify/report.html", run["name"]) for run in runs]
    assert all((folder / link).exists() for link, _ in listed)


def assert_protocol_output(runs: list[dict[str, Any]], events: int, out: str) -> None:
    honest, discards, tampers = runs
    assert honest["events"] == events
    assert honest["duplicated"] == honest["collector_duplicated"] > 0
    assert honest["lost"] == honest["unknown"] == 0
    word = "lost"
    if honest["protocol"] == "plog":
        word = "missing"
        assert honest["missing"] == events - honest["ok"] > 100
    else:
        assert honest["ok"] == events
        assert honest["missing"] == 0
        assert honest["cuts"] >= 5
        assert honest["cuts_before_ack"] >= 2
    assert discards[word] >= 20
    assert discards["ok"] == discards["events"] - discards[word]
    assert tampers["corrupted"] == tampers["unexpected"] > 0
    assert tampers["reordered"] > 0
    assert tampers["duplicated"] > 0
    for run in runs:
        assert run["troubles"] == []
        assert Path(run["report"]).read_text().lower().startswith("<!doctype html>")
        assert run["name"] in out


@pytest.mark.spark
def test_a_small_demo_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.log"
    file.write_text("".join(f"line {n} of a log\n" for n in range(1000)))
    code = demo([str(file)], events=40_000, out=str(tmp_path / "out"), verify=in_this_process())
    out = capsys.readouterr().out
    assert code == ExitCode.OK, out
    assert_demo_output(tmp_path / "out", 40_000, out)


@pytest.mark.long
@pytest.mark.spark
def test_the_demo_command_passes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=30 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_demo_output(tmp_path / "out", 200_000, done.stdout)


@pytest.mark.spark
def test_the_demo_fails_if_the_verifier_finds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    def blind(ledger: Path, checked: Path, asked: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        (checked / "violations").mkdir(parents=True)
        return 0, dict.fromkeys(WORDS, 0) | {"ok": 40_000}

    file = tmp_path / "a.log"
    file.write_text("line\n")
    assert demo([str(file)], events=40_000, out=str(tmp_path / "out"), verify=blind) == ExitCode.BROKEN
    runs = json.loads((tmp_path / "out" / "verdict.json").read_text())["runs"]
    assert all(run["troubles"] for run in runs)
    assert not any(run["caught"] for run in runs)
    out = capsys.readouterr().out
    assert "NOT AS EXPECTED" in out
    assert "does NOT name exactly these" in out
