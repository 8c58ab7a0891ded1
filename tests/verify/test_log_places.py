"""Captures and ledgers as DataFrames where there are several folders, patterns and URLs of an S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import ConfigError, LedgerError
from tests import support
from tests.support import verify_files as files
from tests.support.patience import PATIENCE
from tests.support.s3 import Bucket
from tests.support.verify_scene import P, Scene
from tests.verify import log_captures
from tests.verify.log_captures import Row, assert_equal, read

support.need("numpy")
support.need("pyarrow")
support.need("pyspark")
dataframes = pytest.importorskip("logclient.verify.dataframes.sources")


def one_line(error: Any) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def short(rows: list[Row]) -> list[Row]:
    """Return rows without the folders in the names of listeners."""
    return [row | {"listener": row["listener"].rpartition("/")[2]} for row in rows]


def two_folders(tmp_path: Path) -> tuple[list[Row], list[Row]]:
    """Write two captures whose listeners have the same names, without hosts."""
    return (
        log_captures.make(tmp_path / "one" / "capture", 31, 5, 20, damage=False),
        log_captures.make(tmp_path / "two" / "capture", 32, 5, 20, damage=False),
    )


# -- several folders


@pytest.mark.slow
def test_several_folders_and_patterns_have_all_rows(tmp_path: Path) -> None:
    one, two = two_folders(tmp_path)
    found = read(tmp_path)
    assert_equal(short(found), one + two)
    assert f"{tmp_path}/one/capture/l00001" in {row["listener"] for row in found}
    assert_equal(read(tmp_path / "*" / "capture"), found)
    assert_equal(read(tmp_path / "one" / "capture", paths=json.dumps([str(tmp_path / "two")])), found)
    both = json.dumps([str(tmp_path / "one" / "capture"), f"{tmp_path}/t*/capture"])
    source = dataframes.LogSource({"paths": both}).reader(None)
    again = [row for part in source.partitions() for batch in source.read(part) for row in batch.to_pylist()]
    assert_equal(again, found)


def test_folders_of_hosts_keep_their_names_apart(tmp_path: Path) -> None:
    for host in ("a", "b"):
        files.write_segments(tmp_path / host, "main", [(files.window([b"{}"]), 0, 1)], host=host)
    assert sorted(row["listener"] for row in read(tmp_path)) == ["a.main", "b.main"]


def test_wrong_places_are_named(tmp_path: Path, bucket: Bucket) -> None:
    for path, error, why in (
        (f"{tmp_path}/nothing*", LedgerError, "capture: .*nothing.* matches no folder"),
        ("s3://key:secret@bucket/run", ConfigError, "capture: s3://bucket/run: a URL may have no"),
        (bucket.url("none"), LedgerError, f"capture: {bucket.url('none')}: there is nothing"),
        ("s3://there-is-no-such-bucket/run", LedgerError, "capture: .*: there is no such bucket"),
        (str(tmp_path), LedgerError, f"capture: {tmp_path} has no segment: their names are"),
    ):
        with pytest.raises(error, match=why) as caught:
            read(path)
        one_line(caught)
    for paths in ("{}", "[1]", "run/capture"):
        with pytest.raises(ConfigError, match="paths: it must be a list of paths as JSON"):
            dataframes.LogSource({"paths": paths}).reader(None)


# -- URLs


@pytest.mark.slow
def test_capture_in_a_bucket_has_the_same_rows(tmp_path: Path, bucket: Bucket) -> None:
    expected = log_captures.make(tmp_path / "capture", 33, 10, 12)
    url = bucket.upload(tmp_path / "capture", "run/capture")
    assert_equal(read(url), expected)
    assert_equal(read(bucket.url("run")), expected)
    found = read(url.replace("s3://", "s3a://"), protocol="logux")
    assert_equal(found, [row for row in expected if row["listener"] in ("l00004", "l00009")])


# -- Spark

SCRIPT = """
import json, sys
from logclient import verify
from logclient.verify.job import Session

ledger, capture = sys.argv[1:]
session = Session("local[2]")
spark = session.spark
logs = spark.read.format("logclient").load(capture)
sent = verify.ledger(spark, [ledger])
events = verify.events(spark, ledger, [capture], columns=("listener", "body"))
rows = lambda frame, *names: sorted(map(list, frame.select(*names).collect()))
found = {
    "logs": rows(logs.selectExpr("id", "string(body) AS body"), "id", "body"),
    "arrivals": verify.arrivals(spark, [capture]).count(),
    "several": spark.read.format("logclient").load([capture, capture]).count(),
    "ledger": rows(sent, "sequence", "outcome", "host"),
    "events": rows(
        events.withColumn("body", events.body.cast("string")),
        "sequence", "verdict", "copies", "listener", "body",
    ),
}
print(json.dumps(found))
session.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_tables_of_a_bucket(scene: Scene, bucket: Bucket, tmp_path: Path) -> None:
    """Capture and ledger are behind URLs, and Spark's workers read them themselves."""
    arrived = [1, 3, 2, 4, 4, *range(6, 21)]
    scene.write_ledger(host="h1").write_capture(arrived, per_segment=5)
    ledger, capture = bucket.upload(scene.ledger, "run/ledger"), bucket.upload(scene.capture, "run/capture")
    before = bucket.objects()
    places = [ledger, capture]
    paths = os.pathsep.join([str(support.ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *places],
        capture_output=True, text=True, timeout=12 * PATIENCE,
        env=support.clean_environment(PYTHONPATH=paths, TMPDIR=str(tmp_path), **bucket.environment),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    bodies = {seq: body.decode() for seq, body in scene.bodies.items()}
    assert said["logs"] == sorted([files.event_id(P, seq), bodies[seq]] for seq in arrived)
    assert (said["arrivals"], said["several"]) == (20, 20)
    assert said["ledger"] == [[seq, "acked", "h1"] for seq in range(1, 21)]
    verdicts = [
        [seq, "ok", 2 if seq == 4 else 1, "main", bodies[seq]] if seq != 5 else [5, "lost", 0, None, None]
        for seq in range(1, 21)
    ]
    assert said["events"] == verdicts
    assert bucket.objects() == before
