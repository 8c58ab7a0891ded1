"""Verdicts of whole hours, and the table that keeps their counts."""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logclient import cli, verify
from logclient.errors import ConfigError, ExitCode, LedgerError
from tests import support
from tests.support import verify_files as files
from tests.support.s3 import Bucket
from tests.support.tmpfs import mounted
from tests.support.verify_scene import P, Scene

pytestmark = pytest.mark.slow

support.need("numpy")
support.need("pyarrow")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
hourly = pytest.importorskip("logclient.verify.hourly")
verdicts = pytest.importorskip("logclient.verify.verdict")

HOUR = 3_600_000_000
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
START = int(NOON.timestamp()) * 1_000_000
SPAN = {"since": "2026-05-01T12:00:00Z", "until": "2026-05-01T14:00:00Z"}
FIRST = {"since": "2026-05-01T14:00+02:00", "until": START // 1_000_000 + 3600}  # its first hour
WORDS = verdicts.Counts._fields


def made(seq: int) -> int:
    """Events 1 to 9 are of 12 o'clock, 10 to 19 of 13 o'clock, 20 of 14 o'clock."""
    return START + seq * HOUR // 10


def write(scene: Scene, seqs: Any = None, **options: Any) -> Scene:
    scene.write_ledger(created=made, per_batch=5, at_us=START)
    return scene.write_capture(seqs, received=lambda unit: START + unit, **options)


def append(scene: Scene, table: Any, **options: Any) -> ExitCode:
    return verify.append(table, scene.ledger, scene.capture, **{"runner": "local", **SPAN, **options})


def rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a table but for the time when they were made, sorted."""
    found = parquet.read_table(table).drop_columns(["judged"]).to_pylist()
    return sorted(found, key=lambda row: (row["hour"], row["producer"]))


def numbers(row: dict[str, Any]) -> dict[str, int]:
    return {word: row[word] for word in WORDS if row[word]}


def test_row_of_a_producer_and_hour(scene: Scene, table: Path) -> None:
    write(scene, [*range(1, 13), 12, *range(14, 21), files.body("0d" * 16, "never sent")])
    assert append(scene, table) == ExitCode.BROKEN
    assert sorted(os.listdir(table)) == ["2026-05-01T12.parquet", "2026-05-01T13.parquet"]
    nobody, noon, _, later = rows(table)
    assert list(parquet.read_schema(table / "2026-05-01T12.parquet").names) == [
        "hour", "until", "producer", "protocol", "url", "host", "service", "service_version", "pid", *WORDS,
        "breaks", "ledger", "capture_complete", "exit_code", "sentence", "latency_p50", "latency_p99",
        "latency_max", "judged",
    ]  # fmt: skip
    assert (nobody["producer"], numbers(nobody), nobody["breaks"]) == ("", {"unexpected": 1}, ["unexpected"])
    assert (noon["producer"], numbers(noon), noon["breaks"]) == (P, {"events": 9, "ok": 9}, [])
    assert (noon["hour"], noon["exit_code"]) == (NOON, 1)
    assert later["hour"] == NOON + datetime.timedelta(hours=1)
    assert numbers(later) == {"events": 10, "ok": 9, "lost": 1, "duplicated": 1}
    assert later["breaks"] == ["lost"]
    assert later["sentence"].startswith("The promise is broken: 1 lost")
    process = {"protocol": "lumberjack", "url": "lumberjack://127.0.0.1:5044", "host": "h", "pid": 1}
    assert later | process == later
    assert (later["ledger"], later["capture_complete"]) == ("whole", True)


def test_intervals_may_be_shorter(scene: Scene, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(scene, range(1, 8))
    span = {"since": START // 1_000_000, "until": START // 1_000_000 + 3600}
    assert append(scene, table, every=900.0, **span) == ExitCode.BROKEN
    names = [f"2026-05-01T12-{minute}.parquet" for minute in ("00", "15", "30", "45")]
    assert sorted(os.listdir(table)) == names
    found = [(numbers(row), row["until"] - row["hour"]) for row in rows(table) if row["producer"]]
    quarter = datetime.timedelta(minutes=15)
    assert found == [
        ({"events": 2, "ok": 2}, quarter), ({"events": 2, "ok": 2}, quarter),
        ({"events": 3, "ok": 3}, quarter), ({"events": 2, "lost": 2}, quarter),
    ]  # fmt: skip
    arguments = ["--ledger", scene.ledger, "--capture", scene.capture, "--append", table, "--every", "30m"]
    times = ["--since", "2026-05-01T12:00Z", "--until", "2026-05-01T12:30Z"]
    assert cli.main(["verify", "--local", *map(str, arguments), *times]) == ExitCode.USAGE  # another length
    assert "the table has intervals of 15 minutes" in capsys.readouterr().err
    arguments[5] = table.with_name("halves")
    assert cli.main(["verify", "--local", *map(str, arguments), *times]) == ExitCode.OK
    for every in (0.0, 30.0, 420.0, 7200.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="are not minutes that divide an hour"):
            append(scene, table, every=every)
    with pytest.raises(ConfigError, match="since: append needs a multiple of 15 minutes"):
        append(scene, table, every=900.0, since="2026-05-01T12:05Z")


def test_hour_that_is_judged_twice_counts_once(scene: Scene, table: Path) -> None:
    write(scene)
    assert append(scene, table) == ExitCode.OK
    once = rows(table)
    assert append(scene, table) == ExitCode.OK
    assert append(scene, table, **FIRST) == ExitCode.OK
    assert rows(table) == once


def test_hour_that_is_judged_again_has_later_arrivals(scene: Scene, table: Path) -> None:
    write(scene, range(1, 6), closed=False)
    assert append(scene, table, **FIRST) == ExitCode.UNREACHABLE
    assert [(numbers(row), row["capture_complete"]) for row in rows(table)] == [
        ({}, False), ({"events": 9, "ok": 5, "unknown": 4}, False),
    ]  # fmt: skip
    write(scene)
    assert append(scene, table, **FIRST) == ExitCode.OK
    assert [numbers(row) for row in rows(table)] == [{}, {"events": 9, "ok": 9}]


def test_broken_promise_stays_when_its_evidence_is_gone(scene: Scene, table: Path) -> None:
    write(scene, range(1, 6))
    assert append(scene, table, **FIRST) == ExitCode.BROKEN
    broken = rows(table)
    write(scene, range(1, 6), closed=False)
    verdicts: list[Any] = []
    assert append(scene, table, each=verdicts.append, **FIRST) == ExitCode.UNREACHABLE
    assert [verdict.exit_code for verdict in verdicts] == [ExitCode.UNREACHABLE]
    assert rows(table) == broken
    write(scene)
    assert append(scene, table, **FIRST) == ExitCode.OK
    assert rows(table) != broken


def test_process_that_was_killed_here_has_ended(scene: Scene, table: Path) -> None:
    """As its lock shows, which says nothing about those of another host, nor has a copy of a ledger one."""
    idle = {"since": "2026-05-01T15:00Z", "until": "2026-05-01T16:00Z"}
    here, gone = socket.gethostname(), subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for host, pid, code in (
        ("elsewhere", gone.pid, ExitCode.UNREACHABLE),
        (here, os.getpid(), ExitCode.UNREACHABLE),
        (here, "no", ExitCode.UNREACHABLE),
        (here, gone.pid, ExitCode.OK),
    ):
        about: Any = {"locked": True, "host": host, "pid": pid}
        scene.write_ledger(created=made, per_batch=5, tail=[], at_us=START, **about)
        scene.write_capture(received=lambda unit: START + unit)
        assert append(scene, table, allow_open=True, allow_empty=True, **idle) == code
    assert rows(table)[-1]["sentence"] == (
        "The promise holds, but nothing was sent. 1 producer ended without close: what waited there is in no "
        "ledger."
    )
    limits = {"allow_empty": True, "max_latency": "p50=1s"}  # of no event
    assert append(scene, table, **limits, **idle) == ExitCode.OK
    assert append(scene, table, **idle) == ExitCode.UNREACHABLE  # no event
    kinds = [json.loads(line)["t"] for line in (scene.ledger / f"{P}-0001.ledger").read_text().splitlines()]
    assert kinds.count("ended") == 1


@pytest.mark.parametrize("name", ["2026-05-01T12", "2026-05-01T11", "0-mine"])
@pytest.mark.parametrize("content", [{"hour": [1]}, {"hour": [], "until": [], "exit_code": []}, {}])
def test_damaged_files_of_the_table_stop_nothing(scene: Scene, table: Path, name: str, content: Any) -> None:
    write(scene)
    table.mkdir()
    file = table / f"{name}.parquet"
    parquet.write_table(pa.table(content), file) if content else file.write_bytes(b"no")
    before = file.read_bytes()
    assert append(scene, table) == ExitCode.OK
    assert (file.read_bytes() == before) == (name != "2026-05-01T12")


def test_open_ledger_and_hour_without_events(scene: Scene, table: Path) -> None:
    scene.write_ledger(created=made, per_batch=5, tail=[], at_us=START).write_capture()
    bounds = {"since": "2026-05-01T13:00Z", "until": "2026-05-01T16:00Z", "allow_open": True}
    assert append(scene, table, **bounds) == ExitCode.UNREACHABLE
    assert [(row["producer"], row["events"], row["ledger"], row["exit_code"]) for row in rows(table)] == [
        ("", 0, "", 0), (P, 10, "unclosed", 0), ("", 0, "", 3), (P, 1, "unclosed", 3),
        ("", 0, "", 3), (P, 0, "unclosed", 3),
    ]  # fmt: skip
    assert "its last line is of" in rows(table)[3]["sentence"]
    assert "the ledgers have no events made from 2026-05-01T15" in rows(table)[-1]["sentence"]


def test_text_that_is_not_utf8_is_escaped(scene: Scene, table: Path) -> None:
    """As in the URL of a spool whose path is bytes."""
    odd = {"url": "spool:///tmp/\udcff", "host": "h\ud800"}
    scene.write_ledger(created=made, per_batch=5, tail=[], at_us=START, **odd).write_capture()
    last = {"since": "2026-05-01T14:00Z", "until": "2026-05-01T15:00Z"}
    assert append(scene, table, **last) == ExitCode.UNREACHABLE
    row = rows(table)[-1]
    assert (row["url"], row["host"]) == (r"spool:///tmp/\udcff", r"h\ud800")
    assert r"(host h\ud800, pid 1) has no end" in row["sentence"]


def test_all_producers_have_a_row(scene: Scene, table: Path) -> None:
    """A verdict names 1,000 of them."""
    bodies = []
    for n in range(1200):
        producer = f"{n + 1:020x}"
        raw = files.body(files.event_id(producer, 1), "one")
        scene.write_ledger(producer=producer, bodies={1: raw}, created=made, at_us=START)
        bodies.append(raw)
    scene.write_capture(bodies[:-1])
    found: list[Any] = []
    assert append(scene, table, each=found.append, **FIRST) == ExitCode.BROKEN
    assert len(found[0].producers) == 1000
    counted = {row["producer"]: numbers(row) for row in rows(table)}
    whole = {f"{n + 1:020x}": {"events": 1, "ok": 1} for n in range(1199)}
    assert counted == {"": {}, **whole, f"{1200:020x}": {"events": 1, "lost": 1}}


@pytest.mark.parametrize("seed", range(8))
def test_hours_add_up_to_the_span(tmp_path: Path, table: Path, seed: int) -> None:
    rng = random.Random(seed)
    scene = Scene(tmp_path)
    arrived: list[bytes] = []
    for n in range(4):
        producer = f"{n + 1:020x}"
        bodies = {seq: files.body(files.event_id(producer, seq), "x") for seq in range(1, 31)}
        outcomes: dict[str, list[int]] = {"acked": [], "handed": [], "failed": []}
        for seq, raw in bodies.items():
            outcomes[rng.choice(["acked", "acked", "handed", "failed"])].append(seq)
            changed = files.body(files.event_id(producer, seq), "y")
            arrived += rng.choice([[raw], [raw], [raw, raw], [], [changed]])
        scene.write_ledger(
            producer=producer, bodies=bodies, outcomes=outcomes, per_batch=5, at_us=START - HOUR,
            created=made, tail=[files.close_line(30) | {"at_us": START + 5 * HOUR}],
        )  # fmt: skip
    scene.write_capture(arrived)
    found: list[Any] = []
    bounds = {"since": START // 1_000_000, "until": (START + 4 * HOUR) // 1_000_000}
    code = append(scene, table, each=found.append, **bounds)
    whole = verify.run(scene.ledger, scene.capture, runner="local", **bounds)
    kept = rows(table)
    assert len(found) == 4
    assert code == whole.exit_code == max(row["exit_code"] for row in kept) == ExitCode.BROKEN
    sums = {word: sum(row[word] for row in kept) for word in WORDS}
    assert sums == whole.counts._asdict()
    assert min(sums[word] for word in ("ok", "lost", "missing", "recovered", "duplicated", "corrupted")) > 0
    for producer in whole.producers:
        own = [row for row in kept if row["producer"] == producer.producer]
        assert {word: sum(row[word] for row in own) for word in WORDS} == producer.counts._asdict()


def test_table_behind_a_url(scene: Scene, bucket: Bucket) -> None:
    write(scene, range(1, 21))
    assert append(scene, bucket.url("hours")) == ExitCode.OK
    names = ["hours/2026-05-01T12.parquet", "hours/2026-05-01T13.parquet"]
    assert list(bucket.objects()) == names
    first = bucket.get(names[0])
    write(scene, range(2, 21))
    assert append(scene, bucket.url("hours"), **FIRST) == ExitCode.BROKEN
    assert list(bucket.objects()) == names
    assert bucket.get(names[0]) != first
    found = parquet.read_table(f"{bucket.name}/hours", filesystem=bucket.system).to_pylist()
    assert sorted(row["lost"] for row in found) == [0, 0, 0, 1]
    with pytest.raises(LedgerError, match="append: s3://no-such-bucket/hours: there is no such bucket"):
        append(scene, "s3://no-such-bucket/hours")


# -- what fails leaves the older file


def test_failed_verdict_leaves_the_old_file(scene: Scene, table: Path) -> None:
    write(scene)
    append(scene, table)
    before = rows(table)
    with pytest.raises(LedgerError, match=r"capture: .*: No such"):
        verify.append(table, scene.ledger, scene.capture / "none", runner="local", **SPAN)
    assert rows(table) == before


KILLED = """
import os, signal, sys
from logclient import verify
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
os.replace = kill
verify.append(*sys.argv[1:4], since=sys.argv[4], until=sys.argv[5], runner="local")
"""


def test_process_that_is_killed_before_the_rename_leaves_the_old_file(scene: Scene, table: Path) -> None:
    write(scene)
    append(scene, table)
    before = rows(table)
    write(scene, range(2, 21))
    places = [str(x) for x in (table, scene.ledger, scene.capture)]
    command = [sys.executable, "-c", KILLED, *places, *SPAN.values()]
    paths = os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    done = subprocess.run(command, check=False, env=support.clean_environment(PYTHONPATH=paths))
    assert done.returncode == -9
    assert len(os.listdir(table)) == 3  # the new file is complete, under a hidden name
    assert rows(table) == before
    assert append(scene, table) == ExitCode.BROKEN
    assert sum(row["lost"] for row in rows(table)) == 1


def test_full_disk_leaves_the_old_file(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    write(scene)
    with mounted(scene.ledger.parent / "disk", "size=1m") as disk:
        table = disk / "hours"
        append(scene, table)
        before = rows(table)
        (disk / "fill").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096))
        write(scene, range(2, 21))
        assert cli.main(command(scene, table)) == ExitCode.USAGE
        assert rows(table) == before
        assert len(os.listdir(table)) == 2
    said, error = capsys.readouterr()
    assert error == f"logclient: append: {table}: No space left on device\n"
    assert "1 lost" in said


# -- the command, and wrong arguments


def command(scene: Scene, table: Any, *more: str) -> list[str]:
    places = ["--ledger", str(scene.ledger), "--capture", str(scene.capture), "--append", str(table)]
    return ["verify", *places, "--local", "--since", SPAN["since"], "--until", SPAN["until"], *more]


def test_command_prints_each_hour(scene: Scene, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(scene, range(2, 21))
    assert cli.main(command(scene, table, "--json")) == ExitCode.BROKEN
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(x["exit_code"], x["counts"]["lost"]) for x in lines] == [(1, 1), (0, 0)]
    assert [row["lost"] for row in rows(table)] == [0, 1, 0, 0]
    assert cli.main(command(scene, table)) == ExitCode.BROKEN
    said = capsys.readouterr().out
    assert said.index("made from 2026-05-01T12:00:00Z") < said.index("made from 2026-05-01T13:00:00Z")


@pytest.mark.spark
def test_command_judges_several_hours_on_spark(scene: Scene, table: Path) -> None:
    """With one session for all of them: its own."""
    write(scene)
    command = [
        sys.executable,
        "-m",
        "logclient",
        "verify",
        "--ledger",
        scene.ledger,
        "--capture",
        scene.capture,
    ]
    command += ["--append", table, "--since", SPAN["since"], "--until", SPAN["until"]]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=support.clean_environment()
    )
    assert done.returncode == 0, done.stderr
    assert [row["events"] for row in rows(table)] == [0, 9, 0, 10]


def test_verdict_of_one_hour_can_be_kept_too(scene: Scene, table: Path) -> None:
    write(scene)
    append(scene, table, out=scene.out, **FIRST)
    assert json.loads((scene.out / "verdict.json").read_text())["counts"]["ok"] == 9
    with pytest.raises(ConfigError, match=r"^out: it has room for the verdict of one hour"):
        append(scene, table, out=scene.out)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"since": "2026-05-01T12:30:00Z"}, "since: append needs a full hour"),
        ({"since": "2026-05-01T12:00:00+05:30"}, "since: append needs a full hour"),
        ({"since": None}, "since: append needs a full hour"),
        ({"until": 1777644000.5}, "until: append needs a full hour"),
        ({"until": None}, "until: append needs a full hour"),
        ({"until": SPAN["since"]}, "since: it must be before until"),
        ({"until": "noon"}, "until: 'noon' must be a time"),
    ],
)
def test_wrong_times_are_errors(scene: Scene, table: Path, bounds: dict[str, Any], words: str) -> None:
    write(scene)
    with pytest.raises(ConfigError, match=f"^{words}"):
        append(scene, table, **bounds)
    assert not table.exists()


def test_delta_table_is_an_error(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="append: it writes a folder of Parquet files"):
        append(scene, "delta:/table")


def test_table_that_is_a_file_is_an_error(scene: Scene, table: Path) -> None:
    write(scene)
    table.touch()
    with pytest.raises(LedgerError, match=f"^append: {table}: File exists"):
        append(scene, table)


# -- the recipes


def test_script_judges_the_last_hour_and_that_of_the_day_before(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    Scene(tmp_path / "run").write_ledger().write_capture()
    program = tmp_path / "logclient"  # the command of this checkout
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m logclient "$@"\n')
    program.chmod(0o700)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    paths = os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    [script] = re.findall(r"```sh\n(.*?)```", (support.ROOT / "docs" / "verify.md").read_text(), re.DOTALL)
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=support.clean_environment(PYTHONPATH=paths, PATH=path),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.UNREACHABLE, "")  # there are no such events
    before, last = (row["hour"] for row in rows(tmp_path / "run" / "hours") if not row["producer"])
    assert last - before == datetime.timedelta(days=1)
    age = datetime.datetime.now(datetime.UTC) - last
    assert datetime.timedelta(hours=1) <= age < datetime.timedelta(hours=2, minutes=5)
