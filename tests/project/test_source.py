"""The archive of the source, and what prepares its tree: interpreters and compilers with arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support import ROOT, clean_environment, missing
from tests.support.patience import PATIENCE
from tools import wheels

pytestmark = pytest.mark.tree


def shell(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", *arguments],
        cwd=folder,
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_the_archive_has_all_that_the_repository_has(tmp_path: Path) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        missing("this is no repository")
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
        + ["sdist", "--dist-dir", str(tmp_path)],
        cwd=ROOT,
        env=clean_environment(LOGCLIENT_ONLY="-"),
        capture_output=True,
        timeout=4 * PATIENCE,
        check=True,
    )
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as found:
        have = {name.partition("/")[2] for name in found.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {name for name in listed.splitlines() if (ROOT / name).exists()}
    assert tracked - have == set()
    # `make wheels` checks the same archive first.
    assert wheels.check_sdist(archive).endswith("KiB")


@pytest.mark.parametrize("form", ["{}", "{} -X dev", "{} -X dev -W error"])
@pytest.mark.parametrize("compiler", ["cc", "ccache cc -pipe"])
def test_the_interpreter_and_the_compiler_may_have_arguments(
    tmp_path: Path, form: str, compiler: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cc", "ccache"):
        (tools / name).symlink_to("/bin/true")
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    shutil.copy(ROOT / "tools" / "deps.sh", tools)
    (tmp_path / "_ext").mkdir()
    given = f"PYTHON={form.format(sys.executable)}", f"CC={compiler}"
    made = subprocess.run(
        ["make", "--no-print-directory", ".venv/.made", *given],
        cwd=tmp_path,
        env=clean_environment(CC=compiler, PATH=f"{tools}:{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert (tmp_path / ".venv/bin/python").exists()


def test_an_interpreter_may_lie_in_a_folder_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "my programs"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    made = shell(tmp_path, str(ROOT / "tools" / "deps.sh"), "venv", PYTHON=f"{folder}/python", VENV="made")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "made/bin/python").exists()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"PYTHON": "no-such-python"}, "there is no no-such-python"),
        ({"PYTHON": "no-such-python -X dev"}, "there is no no-such-python -X dev"),
        ({"PYTHON": sys.executable, "CC": "no-such-ccache gcc"}, "there is no no-such-ccache (Debian: gcc"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, variables: dict[str, str], says: str) -> None:
    made = shell(tmp_path, str(ROOT / "tools" / "deps.sh"), "venv", VENV="made", **variables)
    assert made.returncode == 1 and says in made.stderr, made.stderr


def test_missing_java_names_its_package(tmp_path: Path) -> None:
    """On a system where nothing may be installed, and no folder has a Java."""
    script = (ROOT / "tools" / "system.sh").read_text()
    for folder in (
        "/usr/lib/jvm/*",
        "/Library/Java/JavaVirtualMachines/*/Contents/Home",
        "/opt/homebrew/opt/openjdk*",
    ):
        assert folder in script
        script = script.replace(folder, str(tmp_path / "none"))
    script = script.replace("may_install() {", "may_install() {\n    return 1", 1)
    (tmp_path / "system.sh").write_text(script)
    for name in ("sed", "head", "rm"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    sh = shutil.which("sh") or "/bin/sh"
    made = subprocess.run(
        [sh, "system.sh", "java"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert made.returncode == 1
    assert "Debian: openjdk-17-jre-headless" in made.stderr, made.stderr
