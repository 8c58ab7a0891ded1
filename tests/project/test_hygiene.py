"""Content that must be in no file of the repository."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.patience import PATIENCE

pytestmark = [pytest.mark.tree, pytest.mark.unit]

LIMIT = 1 << 20

# Put together here, else this file would find itself.
SLASH = "/"
MACHINE_PATHS = re.compile(
    "|".join(
        [
            f"{SLASH}root{SLASH}",
            rf"{SLASH}home{SLASH}\w",
            rf"{SLASH}Users{SLASH}\w",
            f"{SLASH}work{SLASH}",
            r"[A-Z]:\\\\?Users",
            rf"{SLASH}\.pyenv{SLASH}versions{SLASH}",
        ]
    )
)
DOT = "."
REGISTRIES = re.compile(
    "|".join(
        re.escape(DOT.join(parts))
        for parts in [
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("maven", "org"),
            ("npmjs", "org"),
            ("proxy", "golang", "org"),
        ]
    )
    + "|--(extra-)?index" + "-url|--find" + "-links|PIP_" + "INDEX|trusted" + "-host"
)  # fmt: skip
OUTSIDE = re.compile(rf"\.\.{SLASH}shared\b|LOGCLIENT_" + "SHARED")
SECRETS = re.compile("-----BEGIN " + r"[A-Z ]*PRIVATE KEY|\b(ghp|gho|AKIA|xox[bp])[-_A-Za-z0-9]{16,}")
TEST_IMPORTS = re.compile(
    r"\b(from|import) tests(\.\w+)*\.test_\w+|\bfrom tests(\.\w+)* import .*\btest_\w+"
    r"|\bimportorskip\(.tests(\.\w+)*\.test_\w+"
)


def tracked() -> list[Path]:
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=2 * PATIENCE)
    except OSError:
        pytest.skip("no git")
    if done.returncode:
        pytest.skip("not a checkout")
    paths = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    return [p for p in paths if p.is_file() and not p.is_symlink()]


def found(pattern: re.Pattern[str]) -> list[str]:
    lines = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "replace")
        lines += [
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
            for match in pattern.finditer(text)
        ]
    return lines


def test_no_file_has_a_machine_path() -> None:
    assert found(MACHINE_PATHS) == []


def test_no_file_names_a_package_registry() -> None:
    assert found(REGISTRIES) == []


def test_no_file_names_a_folder_beside_the_tree() -> None:
    """A clone needs nothing but itself."""
    assert found(OUTSIDE) == []


def test_no_file_has_a_secret() -> None:
    assert found(SECRETS) == []


def test_no_test_module_is_imported() -> None:
    """What tests share is in modules of its own."""
    assert found(TEST_IMPORTS) == []


def test_no_file_is_large() -> None:
    assert [f"{p.relative_to(ROOT)}: {p.stat().st_size}" for p in tracked() if p.stat().st_size > LIMIT] == []


def test_no_built_file_is_tracked() -> None:
    built = {".so", ".pyd", ".o", ".pyc", ".whl", ".egg", ".jar"}
    generated = {".c", ".html"}
    wrong = [p for p in tracked() if p.suffix in built or (p.suffix in generated and "_ext" in p.parts)]
    assert [str(p.relative_to(ROOT)) for p in wrong] == []


def test_text_files_end_with_a_newline() -> None:
    kinds = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".h", ".md", ".toml", ".sh", ".lock", ".in", ".yml"}
    wrong = []
    for path in tracked():
        data = path.read_bytes()
        if path.suffix in kinds and data and (not data.endswith(b"\n") or b"\r\n" in data):
            wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []
