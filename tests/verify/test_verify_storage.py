"""Evidence and verdict in several folders, and behind URLs of an S3 server."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ConfigError, ExitCode, LedgerError
from tests import support
from tests.oracle import plog as oracle
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.support.s3 import CREDENTIALS, Bucket, gateway
from tests.support.verify_scene import P, Q, Scene
from tests.verify.failing_spark import fail_on_spark
from tests.verify.histories import World

support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
captures = pytest.importorskip("logclient.evidence.captures")
job = pytest.importorskip("logclient.verify.job")
storage = pytest.importorskip("logclient.evidence.storage")

Run = Callable[..., Any]


def uuid_document(ident: str, text: str) -> bytes:
    return json.dumps({"uuid": ident, "message": text}).encode()


def action(ident: str, text: str) -> bytes:
    return json.dumps({"type": "log/add", "id": ident, "data": {"message": text}}).encode()


# For each protocol: the body of an event, and the unit that carries it.
WIRES: dict[str, tuple[Callable[[str, str], bytes], Callable[[bytes, int], bytes]]] = {
    "lumberjack": (files.body, lambda raw, n: files.window([raw])),
    "logjam": (files.document, lambda raw, n: files.message(raw)),
    "plog": (uuid_document, lambda raw, n: b"".join(oracle.fragments(raw, n, room=9_000))),
    "logux": (
        action,
        lambda raw, n: b'["sync",%d,%b,{"id":%d,"time":1}]' % (n, raw, n),
    ),
}


@pytest.fixture
def verify() -> Run:
    return lambda ledger, capture, **options: inprocess.run(ledger, capture, **options)


def nonzero(verdict: Any) -> dict[str, int]:
    return {word: n for word, n in verdict.counts._asdict().items() if n}


def has_problem(verdict: Any, *words: str) -> bool:
    return any(all(word in problem for word in words) for problem in verdict.problems)


# -- several folders


def two_hosts(tmp_path: Path, **second: Any) -> tuple[Scene, Scene]:
    """A producer and a collector on each of two hosts; all listeners have the same name."""
    one, two = Scene(tmp_path / "one"), Scene(tmp_path / "two")
    for scene in (one, two):
        scene.ledger.parent.mkdir()
    two.bodies = {seq: files.body(files.event_id(Q, seq), f"event {seq}") for seq in range(1, 21)}
    one.write_ledger().write_capture(host="a", run="1")
    two.write_ledger(producer=Q).write_capture(**{"host": "b", "run": "2"} | second)
    return one, two


def test_folders_of_two_hosts_are_merged(tmp_path: Path, verify: Run) -> None:
    one, two = two_hosts(tmp_path)
    verdict = verify([one.ledger, str(two.ledger)], [one.capture, two.capture])
    assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.OK, {"events": 40, "ok": 40})
    assert verdict.problems == ()
    assert verdict.capture["listeners"] == ["a.main", "b.main"]
    assert verdict.capture["folder"] == f"{one.capture}, {two.capture}"
    assert {row["listener"]: row["events"] for row in verdict.capture["runs"]} == {"a.main": 20, "b.main": 20}
    assert sorted(x.host for x in verdict.producers) == ["h", "h"]


def test_subfolders_and_patterns_name_the_same_evidence(tmp_path: Path, verify: Run) -> None:
    two_hosts(tmp_path)
    verdicts = [
        verify(tmp_path, tmp_path),
        verify(f"{tmp_path}/*/ledger", f"{tmp_path}/**/capture"),
        verify([tmp_path / "one", tmp_path / "two", tmp_path], [f"{tmp_path}/[ot]*"]),
    ]
    for verdict in verdicts:
        assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.OK, {"events": 40, "ok": 40})
        assert verdict.problems == ()
        assert verdict.capture["listeners"] == ["a.main", "b.main"]


def test_a_folder_that_two_patterns_match_counts_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    given = [f"{tmp_path}/**", tmp_path, f"{tmp_path}/*"]
    assert storage.expand(given, "capture") == [str(tmp_path), f"{tmp_path}/run"]


def test_a_question_mark_in_a_pattern_stands_for_itself(tmp_path: Path) -> None:
    for name in ("run?/a", "runs/a"):
        (tmp_path / name).mkdir(parents=True)
    assert storage.expand(f"{tmp_path}/run?/*", "capture") == [f"{tmp_path}/run?/a"]


def test_listeners_without_a_host_are_named_by_their_folder(tmp_path: Path, verify: Run) -> None:
    one, two = two_hosts(tmp_path, host="a")
    verdict = verify(tmp_path, tmp_path)
    assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.OK, {"events": 40, "ok": 40})
    assert verdict.capture["listeners"] == [f"{one.capture}/main", f"{two.capture}/main"]


def test_segments_of_one_host_in_two_folders_are_a_series(scene: Scene, tmp_path: Path, verify: Run) -> None:
    scene.write_ledger().write_capture(per_segment=4, host="a")
    archive = tmp_path / "archive"
    archive.mkdir()
    for path in sorted(scene.capture.iterdir())[:2]:
        path.rename(archive / path.name)
    verdict = verify(scene.ledger, [scene.capture, archive])
    assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.OK, {"events": 20, "ok": 20})
    assert (verdict.problems, verdict.capture["listeners"]) == ((), ["main"])
    verdict = verify(scene.ledger, scene.capture)
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert has_problem(verdict, "gap: segment 3 where 1 was due")


def test_copied_ledger_is_said_and_not_counted_twice(scene: Scene, tmp_path: Path, verify: Run) -> None:
    """Also when the copy was made while the ledger was being written: the longest file counts."""
    scene.write_ledger().write_capture()
    [path] = scene.ledger.iterdir()
    copy = tmp_path / "copy"
    copy.mkdir()
    whole = path.read_bytes()
    for size in (len(whole), len(whole) // 2):
        (copy / path.name).write_bytes(whole[:size])
        for ledgers in ([scene.ledger, copy], [copy, scene.ledger]):
            verdict = verify(ledgers, scene.capture)
            assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.OK, {"events": 20, "ok": 20})
            assert has_problem(verdict, "ledger: ", "copy: it is a copy of ", path.name)
            assert verdict.ledger["producers"] == 1


def test_ledger_with_two_contents_leaves_doubt(scene: Scene, tmp_path: Path, verify: Run) -> None:
    scene.write_ledger().write_capture()
    [path] = scene.ledger.iterdir()
    other = tmp_path / "other"
    other.mkdir()
    (other / path.name).write_bytes(path.read_bytes().replace(b'"acked"', b'"acket"', 1)[:-9])
    verdict = verify([scene.ledger, other], scene.capture)
    assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.UNREACHABLE, {"events": 20, "ok": 20})
    words = ("which differs from", str(path), "two processes with one id")
    assert has_problem(verdict, str(other / path.name), *words)


def test_copied_segment_of_another_folder_is_not_counted_twice(
    scene: Scene, tmp_path: Path, verify: Run
) -> None:
    """A shorter copy hides nothing of the file."""
    scene.write_ledger().write_capture()
    copy = tmp_path / "a-copy"
    shutil.copytree(scene.capture, copy)
    half = (copy / "main-000001.cap").read_bytes()
    (copy / "main-000001.cap").write_bytes(half[: len(half) // 2])
    verdict = verify(scene.ledger, [copy, scene.capture])
    assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.OK, {"events": 20, "ok": 20})
    assert has_problem(verdict, "copy: it is a copy of ", f"{copy}/main-000001.cap")


def test_pattern_without_a_folder_is_an_error(scene: Scene, verify: Run, tmp_path: Path) -> None:
    scene.write_ledger().write_capture()
    with pytest.raises(LedgerError, match=r"capture: .*/none\* matches no folder"):
        verify(scene.ledger, tmp_path / "none*")
    with pytest.raises(ConfigError, match="ledger: no folder is given"):
        verify([], scene.capture)


# -- S3


@pytest.mark.slow
def test_evidence_is_read_from_a_bucket(scene: Scene, bucket: Bucket, verify: Run) -> None:
    scene.write_ledger().write_capture(per_segment=3)
    ledger, capture = bucket.upload(scene.ledger, "run/ledger"), bucket.upload(scene.capture, "run/capture")
    for places in ((ledger, capture), (bucket.url("run"), bucket.url()), (f"{ledger}/", capture)):
        verdict = verify(*places)
        assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.OK, {"events": 20, "ok": 20})
        assert verdict.problems == ()
    assert verdict.ledger["folder"] == f"{ledger}/"


def test_faults_in_a_bucket_are_shown_with_their_bytes(scene: Scene, bucket: Bucket, verify: Run) -> None:
    bad = files.body(files.event_id(P, 3), "another event")
    scene.write_ledger().write_capture([1, 2, bad, 5, 5, *range(7, 21), b"{"], per_segment=3)
    ledger, capture = bucket.upload(scene.ledger, "l"), bucket.upload(scene.capture, "c")
    local, remote = verify(scene.ledger, scene.capture), verify(ledger, capture)
    assert nonzero(remote) == nonzero(local)
    assert remote.counts.lost == 2
    assert remote.examples == local.examples
    assert remote.undecoded == local.undecoded


def test_names_need_no_care_in_a_url(scene: Scene, bucket: Bucket, verify: Run) -> None:
    odd = "main #1 100%?ä"
    scene.write_ledger().write_capture(listener=odd)
    verdict = verify(scene.ledger, bucket.upload(scene.capture, "a b/ü"))
    assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.OK, {"events": 20, "ok": 20})
    assert verdict.capture["listeners"] == [odd]


def test_folder_and_bucket_are_one_evidence(scene: Scene, bucket: Bucket, verify: Run) -> None:
    """Closed segments were copied; the last one is only here."""
    scene.write_ledger().write_capture(per_segment=4, host="a")
    last = sorted(scene.capture.iterdir())[-1]
    data = last.read_bytes()
    last.unlink()
    capture = bucket.upload(scene.capture, "c")
    last.write_bytes(data)
    verdict = verify(scene.ledger, [capture, scene.capture])
    assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.OK, {"events": 20, "ok": 20})
    assert has_problem(verdict, f"{scene.capture}/main-000001.cap: copy: it is a copy of {capture}/") or (
        has_problem(verdict, f"{capture}/main-000001.cap: copy: it is a copy of {scene.capture}/")
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://me:hunter2@b/c", "no credentials"),
        ("s3://hunter2@b/c", "no credentials"),
        ("hdfs://me:hunter2@b/c", "no credentials"),
        ("s3://b/c?secret_key=hunter2", "the option secret_key may be a secret"),
        ("gs://b/c?access_token=hunter2", "the option access_token may be a secret"),
        ("s3://b/c?colour=hunter2", "no option 'colour'"),
        ("s3://b/c#hunter2", "fragment"),
        ("file:///c#hunter2", "fragment"),
        ("file:///c?hunter2", "no options"),
        ("file://host/c", "no host"),
        ("gopher://b/c", "cannot open"),
    ],
)
def test_url_with_a_secret_or_an_error_is_refused(scene: Scene, verify: Run, url: str, words: str) -> None:
    scene.write_ledger().write_capture()
    for places in ((url, scene.capture), (scene.ledger, url)):
        with pytest.raises(ConfigError, match=words) as caught:
            verify(*places)
        assert "hunter2" not in str(caught.value)


def test_file_url_is_a_path(scene: Scene, verify: Run) -> None:
    scene.write_ledger().write_capture()
    assert verify(scene.ledger.as_uri(), f"file://localhost{scene.capture}").ok


def test_reads_of_an_object_equal_those_of_a_file(bucket: Bucket, tmp_path: Path) -> None:
    rng = random.Random(7)
    data = rng.randbytes(300_000)
    (tmp_path / "x").write_bytes(data)
    bucket.put("x", data)
    with storage.open_file(bucket.url("x"), "capture") as there, open(tmp_path / "x", "rb") as here:
        for _ in range(40):
            at, n = rng.randrange(310_000), rng.choice((0, 1, 100, 70_000))
            there.seek(at)
            here.seek(at)
            assert storage.read_exactly(there, n) == here.read(n)
            assert there.tell() == here.tell()


def test_a_url_is_no_pattern(bucket: Bucket) -> None:
    for given, above in (("run/*/capture", "run"), ("run/c[ab]", "run"), ("r*", "")):
        with pytest.raises(ConfigError, match="a URL is no pattern: give ") as caught:
            storage.expand(bucket.url(given), "capture")
        assert f"give {bucket.url(above).rstrip('/')}, below which all is read" in str(caught.value)
    assert storage.expand(bucket.url("run/%2A"), "capture") == [bucket.url("run/%2A")]


@pytest.mark.slow
def test_headers_are_read_at_the_same_time(
    scene: Scene, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for each other. Their order stays, and one that is gone is named."""
    scene.write_capture(per_segment=1)
    capture = bucket.upload(scene.capture, "c")
    here, _ = captures.choose([str(scene.capture)])
    together = threading.Barrier(len(here))
    gone: list[str] = []

    def meet(method: str, path: str) -> int | None:
        if method == "HEAD":
            together.wait(PATIENCE)
            if path.endswith("main-000003.cap"):
                gone.append(path)
                return 404
        return None

    with gateway(bucket.endpoint, meet) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        there, left_out = captures.choose([capture])
        assert gone
        assert [(one.segment.name, one.header) for one in there] == [
            (one.segment.name, one.header) for one in here if one.segment.number != 3
        ]
        assert [(one.kind, one.segment, one.reason) for one in left_out] == [
            ("unread", "main-000003.cap", "there is no such object")
        ]


# -- out


def comparable(verdict: Any) -> dict[str, Any]:
    """A verdict without times and places."""
    found = verdict.to_json()
    del found["made_us"], found["seconds"]
    for side in ("capture", "ledger"):
        del found[side]["folder"]
    return dict(found)


def rows_of(out: Any) -> list[tuple[str, str]]:
    return sorted(inprocess.violation_ids(out))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["plain", "anonymous", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("logjam", "unclosed"))],
)
def test_verdict_from_a_bucket_equals_that_of_folders(
    tmp_path: Path, bucket: Bucket, verify: Run, kind: str
) -> None:
    """Random histories with every fault, in small buckets, so that there are second passes too."""
    kinds: dict[str, dict[str, Any]] = {
        "plain": {}, "logjam": {"logjam": 1.0, "users": 0.1}, "anonymous": {"anonymous": 0.3, "users": 0.1},
        "unclosed": {"unclosed": "b"},
    }  # fmt: skip
    world = World(5, 12, **kinds[kind])
    ledger, capture = world.write(tmp_path)
    sizes = {"bits": 4, "task_places": 1, "units": 64}
    local = verify(ledger, capture, out=tmp_path / "out", **sizes)
    remote = verify(
        bucket.upload(ledger, "run/ledger"), bucket.upload(capture, "run/capture"),
        out=bucket.url("out"), **sizes,
    )  # fmt: skip
    assert comparable(remote) == comparable(local)
    assert rows_of(bucket.url("out")) == rows_of(tmp_path / "out")
    written = {name.partition("/")[0] for name in bucket.objects()}
    assert written == {"run", "out"}
    said = json.loads(bucket.get("out/verdict.json"))
    assert said["counts"] == local.counts._asdict()
    assert said["capture"]["folder"] == bucket.url("run/capture")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["lumberjack", "logjam", "plog", "logux"])
def test_each_protocol_is_judged_from_a_bucket(
    tmp_path: Path, bucket: Bucket, verify: Run, protocol: str
) -> None:
    """Events that are lost, duplicated, reordered, corrupted and unexpected."""
    scene = Scene(tmp_path)
    make, wrap = WIRES[protocol]
    scene.bodies = {seq: make(files.event_id(P, seq), f"event {seq}") for seq in range(1, 21)}
    bad, foreign = make(files.event_id(P, 7), "changed"), make(files.event_id(Q, 9), "foreign")
    scene.write_ledger(protocol=protocol, mode="request" if protocol == "logjam" else "")
    raws = [scene.bodies[s] for s in (1, 3, 2, 4, 4, 5, 6)] + [bad] + [scene.bodies[s] for s in range(9, 21)]
    units = [(wrap(raw, n), 0, 50_000 + n) for n, raw in enumerate([*raws, foreign])]
    files.write_segments(scene.capture, "main", units, protocol=protocol, per_segment=6)
    local = verify(scene.ledger, scene.capture, out=scene.out, bits=3)
    remote = verify(
        bucket.upload(scene.ledger, "l"), bucket.upload(scene.capture, "c"),
        out=bucket.url("out"), bits=3,
    )  # fmt: skip
    assert nonzero(remote) == {
        "events": 20, "ok": 18, "lost": 1, "duplicated": 1, "corrupted": 1, "reordered": 1, "unexpected": 1,
    }  # fmt: skip
    assert comparable(remote) == comparable(local)
    assert rows_of(bucket.url("out")) == rows_of(scene.out)


def test_earlier_verdict_is_replaced(scene: Scene, bucket: Bucket, verify: Run) -> None:
    scene.write_ledger().write_capture(range(1, 11))
    for out in (scene.out, bucket.url("out")):
        verify(scene.ledger, scene.capture, out=out)
        assert len(rows_of(out)) == 10
    scene.write_capture()
    for out in (scene.out, bucket.url("out")):
        assert verify(scene.ledger, scene.capture, out=out).ok
        assert rows_of(out) == []


def test_earlier_verdict_in_a_bucket_is_gone_when_a_run_fails(
    scene: Scene, bucket: Bucket, verify: Run
) -> None:
    scene.write_ledger().write_capture(range(1, 11))
    for options in ({"until": "yesterday"}, {"others": "none"}):
        verify(scene.ledger, scene.capture, out=bucket.url("out"))
        assert bucket.objects()
        with pytest.raises(ConfigError):
            verify(scene.ledger, scene.capture, out=bucket.url("out"), **options)
        assert bucket.objects() == {}


def test_folders_of_a_bucket_that_are_not_read(scene: Scene, bucket: Bucket, verify: Run) -> None:
    """Names that end like those of files, and places without any ledger or segment."""
    scene.write_ledger().write_capture()
    ledger, capture = bucket.upload(scene.ledger, "l"), bucket.upload(scene.capture, "c")
    bucket.put("other/notes.txt", b"none")
    verdict = verify([ledger, bucket.url("other")], [capture, bucket.url("other")])
    assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.UNREACHABLE, {"events": 20, "ok": 20})
    assert has_problem(verdict, "ledger", bucket.url("other"), "a folder without any ledger")
    assert has_problem(verdict, "capture", bucket.url("other"), "unread: it is a folder without any segment")
    bucket.upload(scene.ledger, "l/old.ledger/deep")
    bucket.upload(scene.capture, "c/main-000002.cap")
    verdict = verify(ledger, capture)
    assert (verdict.exit_code, nonzero(verdict)) == (ExitCode.UNREACHABLE, {"events": 20, "ok": 20})
    assert has_problem(verdict, "ledger: old.ledger (a folder)")
    assert has_problem(verdict, "capture: main-000002.cap: unread: it is a folder")
    assert (verdict.ledger["unread"], verdict.capture["listeners"]) == (1, ["main"])


@pytest.mark.slow
def test_selection_from_a_bucket_equals_that_of_folders(tmp_path: Path, bucket: Bucket, verify: Run) -> None:
    world = World(5, 12, anonymous=0.3, users=0.2, runs=("one", "two"))
    ledger, capture = world.write(tmp_path)
    options: dict[str, Any] = {"bits": 4, "since": 0.7}
    local = verify(ledger, capture, **options)
    remote = verify(bucket.upload(ledger, "l"), bucket.upload(capture, "c"), **options)
    assert comparable(remote) == comparable(local)
    assert local.selection["left_out"]["without_id"]


def test_failed_verification_leaves_nothing(
    scene: Scene, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, verify: Run
) -> None:
    """Not even a part of a verdict; an earlier verdict is gone."""
    scene.write_ledger().write_capture(range(1, 11))
    verify(scene.ledger, scene.capture, out=bucket.url("out"))
    assert bucket.objects()
    fail_on_spark(monkeypatch, RuntimeError("no"))
    with pytest.raises(job.VerifyError, match="no"):
        job.run(scene.ledger, scene.capture, out=bucket.url("out"))
    assert bucket.objects() == {}


@pytest.mark.slow
@pytest.mark.spark
def test_command_runs_in_a_bucket(scene: Scene, bucket: Bucket, tmp_path: Path) -> None:
    """Everything is behind URLs, and Spark's workers read the evidence themselves."""
    scene.write_ledger().write_capture([1, 3, 2, 4, 4, *range(6, 21)], per_segment=5)
    ledger, capture = bucket.upload(scene.ledger, "run/ledger"), bucket.upload(scene.capture, "run/capture")
    paths = os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [
            sys.executable, "-m", "logclient", "verify", "--ledger", ledger, "--capture", capture,
            "--out", bucket.url("out"), "--json",
        ],
        capture_output=True, text=True, timeout=8 * PATIENCE,
        env=support.clean_environment(PYTHONPATH=paths, TMPDIR=str(tmp_path), **bucket.environment),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN, "")
    said = json.loads(done.stdout)
    assert {word: n for word, n in said["counts"].items() if n} == {
        "events": 20, "ok": 19, "lost": 1, "duplicated": 1, "reordered": 1
    }  # fmt: skip
    assert said == json.loads(bucket.get("out/verdict.json"))
    assert rows_of(bucket.url("out")) == sorted(
        (word, files.event_id(P, seq)) for word, seq in (("lost", 5), ("duplicated", 4), ("reordered", 2))
    )
    assert {name.partition("/")[0] for name in bucket.objects()} == {"run", "out"}


# -- errors


def assert_one_line(caught: Any, *words: str) -> None:
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize("what", ["ledger", "capture"])
def test_empty_prefix_is_one_line(scene: Scene, bucket: Bucket, verify: Run, what: str) -> None:
    scene.write_ledger().write_capture()
    with pytest.raises(LedgerError) as caught:
        verify(**{"ledger": scene.ledger, "capture": scene.capture, what: bucket.url("none")})
    assert_one_line(caught, f"{what}: {bucket.url('none')}: there is nothing")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ledger", "capture", "out"])
def test_server_that_does_not_answer_is_one_line(
    scene: Scene, verify: Run, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Nothing listens at the port."""
    scene.write_ledger().write_capture()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"s3://bucket/run?endpoint_override=127.0.0.1%3A{unused.getsockname()[1]}&scheme=http"
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(LedgerError) as caught:
            verify(**{"ledger": scene.ledger, "capture": scene.capture, what: url})
    assert_one_line(caught, f"{what}: s3://bucket/run?", "no server answers")


def test_half_an_object_leaves_doubt(scene: Scene, bucket: Bucket, verify: Run) -> None:
    """A half segment or ledger has no end, and says so."""
    scene.write_ledger().write_capture(range(1, 20), per_segment=4)
    capture, ledger = bucket.upload(scene.capture, "c"), bucket.upload(scene.ledger, "l")
    for name in ("c/main-000003.cap", "c/main-000001.cap", f"l/{P}-0001.ledger"):
        whole = bucket.get(name)
        bucket.put(name, whole[: len(whole) // 2])
        verdict = verify(ledger, capture)
        assert verdict.exit_code == ExitCode.UNREACHABLE
        assert verdict.counts.lost == 0
        assert has_problem(verdict, name.rpartition("/")[2].partition(".ledger")[0].partition("-0001")[0])
        bucket.put(name, whole)


def test_object_that_is_gone_leaves_doubt(
    scene: Scene, bucket: Bucket, verify: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the captures were listed."""
    scene.write_ledger().write_capture(per_segment=4)
    capture = bucket.upload(scene.capture, "c")
    find = captures.survey

    def survey(places: Any) -> Any:
        found = find(places)
        bucket.delete("c/main-000002.cap")
        return found

    monkeypatch.setattr(captures, "survey", survey)
    verdict = verify(scene.ledger, capture)
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.counts.lost == 0
    assert has_problem(verdict, "main-000002.cap", "unread: there is no such object")
