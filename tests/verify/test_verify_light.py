"""Verification in this process, where neither PySpark nor py4j is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import support
from tests.support.patience import PATIENCE
from tests.support.verify_scene import Scene

support.need("pyarrow")


@pytest.mark.parametrize("arrived", ["capture", "table"])
def test_local_needs_neither_pyspark_nor_py4j(tmp_path: Path, arrived: str) -> None:
    scene = Scene(tmp_path).write_ledger().write_capture(range(1, 20))
    table = tmp_path / "lines.json"
    table.write_text("".join(json.dumps({"line": scene.bodies[n].decode()}) + "\n" for n in range(1, 20)))
    given = {"capture": [str(scene.capture)], "table": [str(table), "--columns", "body=line"]}[arrived]
    absent = tmp_path / "absent"
    absent.mkdir()
    for name in ("pyspark", "py4j", "pandas"):
        (absent / f"{name}.py").write_text("raise ImportError\n")
    done = subprocess.run(
        [sys.executable, "-m", "logclient", "verify", "--local", "--out", str(tmp_path / "out")]
        + ["--ledger", str(scene.ledger), f"--{arrived}", *given],
        capture_output=True,
        text=True,
        env=support.clean_environment(PYTHONPATH=os.pathsep.join([str(absent), *filter(None, sys.path)])),
        timeout=2 * PATIENCE,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "1 lost" in done.stdout and (tmp_path / "out" / "report.html").exists()
