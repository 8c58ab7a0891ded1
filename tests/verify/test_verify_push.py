"""``logclient push``: copies of ledgers and captures that are still being written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient import cli
from logclient.errors import ConfigError, ExitCode, LedgerError
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE, wait_until
from tests.support.s3 import Bucket
from tests.support.verify_scene import P, Q, Scene

support.need("numpy")
support.need("pyarrow")
inprocess = pytest.importorskip("tests.support.verify_inprocess")
evidence = pytest.importorskip("logclient.evidence.push")

LEDGER = f"ledger/{P}-0001.ledger"
SEGMENT = "capture/main-{:06d}.cap"


@pytest.fixture
def host(tmp_path: Path) -> Scene:
    """The folder of a machine, with its ledgers and captures."""
    folder = tmp_path / "host"
    folder.mkdir()
    return Scene(folder).write_ledger().write_capture(per_segment=4)


def push(host: Scene, bucket: Bucket) -> Any:
    return evidence.push(host.ledger.parent, bucket.url("run"))


def test_everything_is_copied_once(host: Scene, bucket: Bucket) -> None:
    done = push(host, bucket)
    names = [SEGMENT.format(n) for n in (1, 2, 3)]
    assert done.copied == [*names, LEDGER]
    assert (done.open, done.failed) == ([], [])
    for name in done.copied:
        assert bucket.get(f"run/{name}") == (host.ledger.parent / name).read_bytes()
    again = push(host, bucket)
    assert (again.copied, again.unchanged, again.open) == ([], 4, [])
    verdict = inprocess.run(bucket.url("run"), bucket.url("run"))
    assert verdict.exit_code == ExitCode.OK
    assert verdict.counts.ok == 20


def test_parts_are_copied_in_their_order(host: Scene, bucket: Bucket) -> None:
    """Also beyond four digits."""
    folder, stem = host.ledger.parent, LEDGER.rpartition("-")[0]
    parts = [f"{stem}-{part}.ledger" for part in (9999, 10_000)]
    for name in parts:
        (folder / name).write_bytes((folder / LEDGER).read_bytes())
    assert push(host, bucket).copied[-3:] == [LEDGER, *parts]


PRODUCER = """
import sys, logclient
client = logclient.connect("lumberjack://127.0.0.1:9", ledger=sys.argv[1])
client.send("hello")
while not (client.stats().failed or any(__import__("os").scandir(sys.argv[1]))):
    pass
print("ready", flush=True)
sys.stdin.read()
"""


def test_push_says_that_a_process_was_killed(tmp_path: Path, bucket: Bucket) -> None:
    """It sees that by the lock of the ledger, which a process has as long as it lives."""
    folder = tmp_path / "ledger"
    with subprocess.Popen(
        [sys.executable, "-c", PRODUCER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        [path] = folder.glob("*.ledger")
        wait_until(lambda: path.read_bytes().endswith(b"\n"))

        def kinds() -> list[str]:
            evidence.push(tmp_path, bucket.url("run"))
            data = bucket.get(f"run/ledger/{path.name}")
            return [json.loads(line)["t"] for line in data.splitlines()]

        assert "ended" not in kinds()
        process.kill()
        process.wait()
        assert kinds()[-1] == "ended"
        assert kinds().count("ended") == 1
        with open(path, "ab") as file:
            file.write(b'{"t":"outc')  # torn
        assert kinds().count("ended") == 1


def test_ledgers_with_an_end_stay_as_they_are(host: Scene, bucket: Bucket) -> None:
    before = (host.ledger / f"{P}-0001.ledger").read_bytes()
    push(host, bucket)
    assert (host.ledger / f"{P}-0001.ledger").read_bytes() == before


def test_open_files_wait_or_are_copied_as_they_are(host: Scene, bucket: Bucket) -> None:
    """The verdict on the copies never says more than the files do."""
    path = host.ledger.parent / LEDGER
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:9])
    last = host.ledger.parent / SEGMENT.format(3)
    whole = last.read_bytes()
    last.write_bytes(whole[:-9])
    done = push(host, bucket)
    assert done.open == [SEGMENT.format(3), LEDGER]
    assert done.copied == [SEGMENT.format(1), SEGMENT.format(2), LEDGER]
    assert bucket.get(f"run/{LEDGER}") == b"".join(lines[:2])
    verdict = inprocess.run(bucket.url("run"), bucket.url("run"))
    assert verdict.exit_code == ExitCode.UNREACHABLE
    assert verdict.counts.lost == verdict.counts.unexpected == 0

    path.write_bytes(b"".join(lines))
    last.write_bytes(whole)
    done = push(host, bucket)
    assert (done.copied, done.unchanged, done.open) == ([SEGMENT.format(3), LEDGER], 2, [])
    assert inprocess.run(bucket.url("run"), bucket.url("run")).ok


def test_half_an_object_is_copied_again(host: Scene, bucket: Bucket) -> None:
    name = SEGMENT.format(2)
    whole = (host.ledger.parent / name).read_bytes()
    bucket.put(f"run/{name}", whole[: len(whole) // 2])
    assert name in push(host, bucket).copied
    assert bucket.get(f"run/{name}") == whole


def test_resumed_segment_is_copied_again(host: Scene, bucket: Bucket) -> None:
    """A collector that continues changes the end of the last segment."""
    push(host, bucket)
    path = host.ledger.parent / SEGMENT.format(3)
    data = path.read_bytes()
    end = files.end_record(11, "closed")
    assert data.endswith(end)
    path.write_bytes(data[: -len(end)] + files.end_record(11, "resumed"))
    assert push(host, bucket).copied == [SEGMENT.format(3)]


def test_ledgers_are_no_newer_than_captures(
    host: Scene, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written while captures are examined waits for the next push; new producers are named."""
    path = host.ledger.parent / LEDGER
    before = path.read_bytes()
    closed = evidence._is_closed

    def grow(file: Any) -> bool:
        path.write_bytes(before + b'{"t":"later"}\n')
        host.write_ledger(producer=Q, bodies={1: files.body(files.event_id(Q, 1), "x")})
        return bool(closed(file))

    monkeypatch.setattr(evidence, "_is_closed", grow)
    done = push(host, bucket)
    new = f"ledger/{Q}-0001.ledger"
    assert done.copied[0] == new
    assert bucket.get(f"run/{new}").count(b"\n") == 1
    assert bucket.get(f"run/{LEDGER}") == before
    assert set(push(host, bucket).copied) == {new, LEDGER}


def test_shorter_ledger_does_not_replace_its_copy(host: Scene, bucket: Bucket) -> None:
    push(host, bucket)
    path = host.ledger.parent / LEDGER
    whole = path.read_bytes()
    path.write_bytes(whole.splitlines(keepends=True)[0])
    done = push(host, bucket)
    assert done.failed == [
        f"{LEDGER}: the copy has {len(whole):,} bytes, the ledger only {path.stat().st_size:,}"
    ]
    assert bucket.get(f"run/{LEDGER}") == whole


@pytest.mark.parametrize(
    ("removed", "copied", "waiting"),
    [
        (SEGMENT.format(3), [SEGMENT.format(1), SEGMENT.format(2), LEDGER], []),
        # Events of its producer may be in each segment.
        (f"ledger/{Q}-0001.ledger", [LEDGER], [SEGMENT.format(n) for n in (1, 2, 3)]),
    ],
)
def test_a_file_that_cannot_be_read_holds_up_what_needs_it(
    removed: str, copied: list[str], waiting: list[str],
    host: Scene, bucket: Bucket, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It is removed while it is examined."""
    path = host.ledger.parent / removed
    if path.suffix == ".ledger":
        path.write_bytes(b"{}\n")
    find = evidence._find

    def find_and_remove(folder: str, suffix: str) -> Any:
        found = find(folder, suffix)
        if marked and removed.endswith(suffix):
            path.unlink(missing_ok=True)
        return found

    noted = evidence.note_ends
    marked: list[Any] = []
    monkeypatch.setattr(evidence, "note_ends", lambda *given: (noted(*given), marked.append(given)))
    monkeypatch.setattr(evidence, "_find", find_and_remove)
    done = push(host, bucket)
    assert (done.copied, done.open) == (copied, waiting)
    assert done.failed == [f"{removed}: No such file or directory"]
    marked.clear()
    assert set(push(host, bucket).copied) == {SEGMENT.format(n) for n in (1, 2, 3)} - set(copied) - {removed}


def test_command_says_what_it_did(host: Scene, bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["push", str(host.ledger.parent), bucket.url("run")]
    assert cli.main(command) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[-1] == "copied 4, unchanged 0, still open 0"
    assert cli.main([*command, "--json"]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    assert said == {"copied": [], "unchanged": 4, "open": [], "failed": []}
    path = host.ledger.parent / LEDGER
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert cli.main(command) == ExitCode.BROKEN
    assert "the copy has" in capsys.readouterr().err


def test_wrong_places_are_errors(host: Scene, bucket: Bucket, tmp_path: Path) -> None:
    check: Callable[..., Any] = evidence.push
    with pytest.raises(ConfigError, match="need a URL"):
        check(host.ledger.parent, tmp_path / "copies")
    with pytest.raises(ConfigError, match="must be a path"):
        check(bucket.url("a"), bucket.url("b"))
    with pytest.raises(LedgerError, match=r"evidence: .*: No such file"):
        check(tmp_path / "none", bucket.url("b"))
    with pytest.raises(LedgerError, match="there is no such bucket"):
        check(host.ledger.parent, "s3://no-such-bucket/run")


def test_command_needs_neither_spark_nor_numpy(host: Scene, bucket: Bucket, tmp_path: Path) -> None:
    """It runs with pyarrow alone, and without it says what to install."""
    import pyarrow

    site = tmp_path / "site"
    site.mkdir()
    (site / "pyarrow").symlink_to(Path(pyarrow.__file__).parent)
    command = [sys.executable, "-S", "-m", "logclient", "push"]
    missing = 'logclient: pyarrow is not installed: pip install "logclient[verify]"'
    for paths, code, out, err in (
        ([site], ExitCode.OK, "copied 4, unchanged 0, still open 0", ""),
        ([], ExitCode.USAGE, "", missing),
    ):
        path = os.pathsep.join(map(str, [support.ROOT, *paths]))
        done = subprocess.run(
            [*command, str(host.ledger.parent), bucket.url("run")],
            capture_output=True, text=True, timeout=2 * PATIENCE,
            env=support.clean_environment(PYTHONPATH=path, **bucket.environment),
        )  # fmt: skip
        assert (done.returncode, done.stderr.strip()) == (code, err)
        assert done.stdout.splitlines()[-1:] == ([out] if out else [])


def test_name_that_is_not_utf8_is_not_copied(host: Scene, bucket: Bucket) -> None:
    odd = host.ledger.parent / os.fsdecode(b"\xff-0001.ledger")
    odd.write_bytes(b"{}\n")
    done = push(host, bucket)
    assert done.failed == [f"{odd.name}: its name is not UTF-8"]
    assert len(done.copied) == 4
