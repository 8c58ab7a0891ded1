"""What the command says when evidence cannot be read: one line, an exit code, and no half-written verdict."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from logclient import cli
from logclient.errors import ConfigError, ExitCode
from tests import support
from tests.support import verify_files as files
from tests.support.s3 import CREDENTIALS, Bucket, serve
from tests.support.tmpfs import mounted
from tests.support.verify_scene import P, Scene
from tests.verify.failing_spark import fail_on_spark

support.need("numpy")
support.need("pyarrow")
job = pytest.importorskip("logclient.verify.job")

Answer = tuple[int, str, str]


def run_verify(
    capsys: pytest.CaptureFixture[str], places: dict[str, Any], more: Sequence[str] = ("--local",)
) -> Answer:
    """Run the command; return its exit code and its output."""
    given = [word for name, place in places.items() for word in (f"--{name}", str(place))]
    code = cli.main(["verify", *given, *more])
    return code, *capsys.readouterr()


# -- nothing can be read or written

EXPIRED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"""


class ExpiredTokens(BaseHTTPRequestHandler):
    """A stand-in for S3, because moto cannot expire a token: it answers all requests as S3 does then."""

    def do_GET(self) -> None:
        self.send_response(400)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(EXPIRED)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(EXPIRED)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


class QuietServer(ThreadingHTTPServer):
    """A server that accepts that a client hangs up, in whatever test that is."""

    def handle_error(self, *_: Any) -> None:
        """Print nothing."""


def served(stack: ExitStack, how: str) -> tuple[str, dict[str, str]]:
    """Return a URL that cannot be used, and the variables for it."""
    if how == "expired token":
        server = stack.enter_context(QuietServer(("127.0.0.1", 0), ExpiredTokens))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        variables = {**CREDENTIALS, "AWS_SESSION_TOKEN": "hunter2"}
        variables["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_port}"
        return "s3://bucket/run", variables
    if how == "wrong key":
        there = Bucket(stack.enter_context(serve(INITIAL_NO_AUTH_ACTION_COUNT="1")))
        return there.url("run"), {**there.environment, "AWS_SECRET_ACCESS_KEY": "hunter2"}
    endpoint = stack.enter_context(serve())
    return "s3://there-is-no-such-bucket/run", {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}


REASONS = {
    "missing bucket": "there is no such bucket",
    "wrong key": "the access key is not known",
    "expired token": "the token has expired",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ledger", "capture", "out"])
@pytest.mark.parametrize("how", REASONS)
def test_url_that_cannot_be_used_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str, what: str
) -> None:
    """Without waiting for Spark."""
    fail_on_spark(monkeypatch)
    scene = Scene(tmp_path).write_ledger().write_capture()
    places: dict[str, Any] = {"ledger": scene.ledger, "capture": scene.capture, "out": scene.out}
    with ExitStack() as stack:
        url, variables = served(stack, how)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        code, out, error = run_verify(capsys, places | {what: url}, [])
    assert (code, out) == (ExitCode.USAGE, "")
    [line] = error.splitlines()
    assert line.startswith(f"logclient: {what}: {url}: {REASONS[how]}")
    assert "hunter2" not in line
    assert not scene.out.exists()


LOST = """An error occurred while calling o105.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
"""


def test_failed_job_is_named_by_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by the call of py4j in which it failed."""
    fail_on_spark(monkeypatch, RuntimeError(LOST))
    scene = Scene(tmp_path).write_ledger().write_capture()
    places = {"ledger": scene.ledger, "capture": scene.capture, "out": scene.out}
    code, out, error = run_verify(capsys, places, [])
    assert (code, out) == (ExitCode.UNREACHABLE, "")
    assert error == (
        "logclient: spark: Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times\n"
    )
    assert not scene.out.exists()


# -- something can be read


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def other_version(path: Path) -> None:
    """Write the version 2 into a ledger or a segment."""
    data = path.read_bytes()
    if path.suffix == ".ledger":
        path.write_bytes(data.replace(b'"version":1', b'"version":2', 1))
        assert path.read_bytes() != data
        return
    size, payload = struct.unpack_from("<I", data)[0], data[8:]
    head = bytearray(payload[:size])
    assert head[:5] == struct.pack("<BI", 1, 1)
    head[1] = 2
    path.write_bytes(files.record(bytes(head)) + payload[size:])


DAMAGE = [
    (half, "ledger", rf"ledger: {P} \(host h, pid 1\): has no end"),
    (half, "capture", "capture: main-000001.cap at byte [0-9]+: unclosed"),
    (other_version, "ledger", f"ledger: {P}-0001.ledger line 1: .*version 2: only 1 is known"),
    (other_version, "capture", "capture: main-000001.cap at byte 0: damage: version 2: only 1 is known"),
]


@pytest.mark.parametrize("place", ["folder", "bucket"])
@pytest.mark.parametrize(("damage", "what", "words"), DAMAGE)
def test_evidence_that_is_not_understood_is_named(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str],
    damage: Any, what: str, words: str, place: str,
) -> None:  # fmt: skip
    """There is a whole verdict, which leaves what depends on it undecided, and a line that says why."""
    scene = Scene(tmp_path).write_ledger().write_capture(per_segment=4)
    folder = {"ledger": scene.ledger, "capture": scene.capture}[what]
    paths = sorted(folder.iterdir())
    for path in paths[:1] if damage is half else paths:
        damage(path)
    places: dict[str, Any] = {"ledger": scene.ledger, "capture": scene.capture, "out": scene.out}
    if place == "bucket":
        places = {name: bucket.upload(folder, name) for name, folder in places.items() if name != "out"}
        places["out"] = bucket.url("out")
    code, out, error = run_verify(capsys, places)
    assert (code, error) == (ExitCode.UNREACHABLE, "")
    assert len([line for line in out.splitlines() if re.match(words, line)]) == 1, out
    text = (scene.out / "verdict.json").read_text() if place == "folder" else bucket.get("out/verdict.json")
    found = json.loads(text)
    assert (found["exit_code"], found["counts"]["lost"]) == (ExitCode.UNREACHABLE, 0)


@pytest.fixture
def lossy(tmp_path: Path) -> Scene:
    """A run that lost events."""
    return Scene(tmp_path).write_ledger().write_capture(range(1, 11))


def pages(*paths: Path) -> int:
    """Return the kilobytes that files take in memory, in pages of 4."""
    return sum(-(-path.stat().st_size // 4096) * 4 for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("written", [(), ("violations",), ("violations", "report.html")], ids=len)
def test_full_disk_for_the_verdict_costs_only_the_files(
    lossy: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str], written: tuple[str, ...], as_json: bool
) -> None:
    """The verdict is printed, and neither parts of it nor an earlier one are left."""
    places: dict[str, Any] = {"ledger": lossy.ledger, "capture": lossy.capture}
    code, expected, _ = run_verify(capsys, {**places, "out": lossy.out})
    assert code == ExitCode.BROKEN
    room = sum(pages(*path.rglob("*.parquet"), *([path] if path.is_file() else []))
               for path in (lossy.out / name for name in written))  # fmt: skip
    with mounted(tmp_path / "disk", "size=1m") as disk:
        out = disk / "verdict"
        out.mkdir()
        (out / "verdict.json").touch()  # an earlier one
        (disk / "fill").write_bytes(bytes((os.statvfs(disk).f_bavail * 4 - room) * 1024))
        command = [word for name, place in places.items() for word in (f"--{name}", str(place))]
        code = cli.main(["verify", "--local", *command, "--out", str(out), *(["--json"] if as_json else [])])
        said, error = capsys.readouterr()
        left = [path for path in out.rglob("*") if path.is_file()]
    assert code == ExitCode.USAGE
    assert error.startswith(f"logclient: out: {out}")
    assert error.endswith(": No space left on device\n")
    assert left == []
    if as_json:
        verdict = json.loads(said)
        assert (verdict["exit_code"], verdict["counts"]["lost"]) == (ExitCode.BROKEN, 10)
    else:
        assert said.splitlines()[0] == expected.splitlines()[0]
        assert "report.html" not in said


def test_mistake_of_ours_is_no_failure_of_spark(
    lossy: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the driver, and in a worker, whose error Spark quotes."""
    quoted = "Job aborted\n  File x\nIndexError: list index out of range\n\tat org.apache.spark.x"
    for error in (IndexError("list index out of range"), RuntimeError(quoted)):
        fail_on_spark(monkeypatch, error)
        code, out, said = run_verify(capsys, {"ledger": lossy.ledger, "capture": lossy.capture}, [])
        assert (code, out, said.count("\n")) == (ExitCode.INTERNAL, "", 1)
        assert said.endswith("IndexError: list index out of range\n")
        assert "please report it" in said


UNSEEN = """Job aborted due to stage failure
  File "x.py", line 1, in open_file
logclient.errors.LedgerError: {what}: {place}/x: No such file or directory
\tat org.apache.spark.x
"""


@pytest.mark.parametrize("what", ["ledger", "capture"])
def test_place_that_a_worker_does_not_see_is_named(
    lossy: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """With what to do about it."""
    places = {"ledger": lossy.ledger, "capture": lossy.capture, "out": lossy.out}
    fail_on_spark(monkeypatch, RuntimeError(UNSEEN.format(what=what, place=places[what])))
    code, out, said = run_verify(capsys, places, [])
    assert (code, out, said.count("\n")) == (ExitCode.USAGE, "", 1)
    how = "workers read it themselves: put it on storage that all machines share"
    assert said.startswith(f"logclient: {what}: a worker cannot see {places[what]}: {how} (")
    assert f"{what}: {places[what]}/x: No such file" in said
    assert not lossy.out.exists()


@pytest.mark.parametrize("url", ["file://[x", "file:///tmp/%00", "s3://[bucket/x"])
@pytest.mark.parametrize("what", ["ledger", "capture", "out"])
def test_url_that_is_none_is_a_wrong_argument(
    lossy: Scene, capsys: pytest.CaptureFixture[str], what: str, url: str
) -> None:
    places: dict[str, Any] = {"ledger": lossy.ledger, "capture": lossy.capture, what: url}
    code, out, error = run_verify(capsys, places)
    assert (code, out) == (ExitCode.USAGE, "")
    assert error.startswith(f"logclient: {what}: {url}: ")


def test_limit_with_too_many_digits_is_a_wrong_argument(lossy: Scene) -> None:
    with pytest.raises(ConfigError, match=r"max_missing: '9+' must be a count"):
        job.run(lossy.ledger, lossy.capture, runner="local", max_missing="9" * 5000)


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_reader_that_ends_does_not_change_the_verdict(
    lossy: Scene, monkeypatch: pytest.MonkeyPatch, as_json: list[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    places = ["--ledger", str(lossy.ledger), "--capture", str(lossy.capture), "--out", str(lossy.out)]
    with open(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert cli.main(["verify", "--local", *places, *as_json]) == ExitCode.BROKEN
        lossy.write_capture()
        assert cli.main(["verify", "--local", *places, *as_json]) == ExitCode.OK
    assert json.loads((lossy.out / "verdict.json").read_text())["exit_code"] == 0
