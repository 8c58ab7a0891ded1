"""Plain installs: the wheel in environments with no extra, and with each extra alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, clean_environment
from tests.support.patience import PATIENCE

pytestmark = [pytest.mark.tree, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("plain_program.py")
EXTRAS = sorted({*metadata.metadata("logclient").get_all("Provides-Extra", ())} - {"all"})
FAULTS = re.compile(r"Traceback|an error in logclient|ModuleNotFoundError|No module named")


def done(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    given = {"env": clean_environment(), "timeout": 10 * PATIENCE, "cwd": ROOT, **options}
    return subprocess.run(command, capture_output=True, text=True, check=False, **given)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this tree, without its extensions, which are not compiled again."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["egg_info", "--egg-base", str(folder), "build", "--build-base", str(folder / "build")]
    command += ["bdist_wheel", "--bdist-dir", str(folder / "bdist"), "--dist-dir", str(folder)]
    made = done([sys.executable, "setup.py", "--quiet", *command], env=clean_environment(LOGCLIENT_ONLY="-"))
    assert made.returncode == 0, made.stderr
    [found] = folder.glob("*.whl")
    return found


def needed(extra: str) -> set[str]:
    """Return the distributions that an extra installs."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    todo = [("logclient", {extra})]
    seen: set[tuple[str, str]] = set()
    while todo:
        name, extras = todo.pop()
        for text in metadata.requires(name) or ():
            one = Requirement(text)
            wanted = any(
                one.marker is None or one.marker.evaluate({"extra": extra}) for extra in extras | {""}
            )
            if wanted and (one.name, str(sorted(one.extras))) not in seen:
                seen.add((one.name, str(sorted(one.extras))))
                todo.append((one.name, set(one.extras)))
                found.add(one.name)
    return found - {"logclient"}


def make(folder: Path, wheel: Path, extra: str) -> Path:
    """Make an environment with the wheel and one extra, whose packages are links; return its interpreter."""
    assert done([sys.executable, "-m", "venv", "--without-pip", str(folder)]).returncode == 0
    [packages] = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for built in (ROOT / "_ext").rglob("*.so"):
        target = packages / "logclient/_ext" / built.relative_to(ROOT / "_ext")
        shutil.copy(built, target)
    for name in needed(extra) if extra else ():
        try:
            files = metadata.distribution(name).files or ()
        except metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
        for file in files:
            target = packages / file
            if ".." not in file.parts and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(file.locate())
    return folder / "bin/python"


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_commands_and_imports_work_or_name_the_extra(tmp_path: Path, wheel: Path, extra: str) -> None:
    python = make(tmp_path / "env", wheel, extra)
    work = tmp_path / "work"
    work.mkdir()
    made = done([str(python), "-I", str(PROGRAM), str(work)], cwd=work)
    assert made.returncode == 0, made.stderr
    results = {name: tuple(found) for name, found in json.loads(made.stdout.splitlines()[-1]).items()}
    named: set[str] = set()
    for name, (code, text) in results.items():
        if name.startswith("import "):
            assert code in (0, "MissingExtra"), (name, code, text)
        else:
            assert code in (0, 1, 2, 3) and not FAULTS.search(text), (name, code, text)
        if code in (2, "MissingExtra"):
            assert "is not installed: pip install" in text, (name, text)
            named |= set(re.findall(r'pip install "logclient\[(\w+)\]"', text))
    for name in (
        "send",
        "check",
        "decode",
        "plog",
        "collect lumberjack",
        "collect plog",
        " --help",
    ):
        assert results[name][0] == 0, (name, results[name])
    assert extra not in named
    if extra in ("verify", "spark", "connect"):
        for name in ("verify", "verify to a file", "verify hours"):
            assert results[name][0] in (0, 3), (name, results[name])
    if not extra:
        assert results["verify"] == (2, f"logclient: {missing('pyarrow', 'verify')}\n")
        assert {"verify", "spark", "logjam", "logux", "kafka"} <= named


def missing(module: str, extra: str) -> str:
    return f'{module} is not installed: pip install "logclient[{extra}]"'


def test_the_command_itself_runs(tmp_path: Path, wheel: Path) -> None:
    """As a program of its own, whose standard streams are the process's."""
    python = make(tmp_path / "env", wheel, "")
    for arguments, code in (
        (["--version"], 0),
        (["verify", "--local", "--ledger", "a", "--capture", "b"], 2),
    ):
        made = done([str(python), "-I", "-m", "logclient", *arguments], cwd=tmp_path)
        assert (made.returncode, FAULTS.search(made.stderr)) == (code, None), made.stderr
    assert os.listdir(tmp_path) == ["env"]
