"""The lock files: their content, their users, and pip's refusal of a file with another hash."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT, need
from tests.support.patience import PATIENCE
from tools import lock, pythons

pytestmark = pytest.mark.tree

LOCKS = sorted(path.name for path in ROOT.glob("requirements-*.lock"))


def entries(name: str) -> dict[str, str]:
    return lock.entries((ROOT / name).read_text(encoding="utf-8"))


def test_each_stage_has_a_lock_file() -> None:
    assert sorted(lock.lock_file(stage).name for stage in lock.STAGES) == LOCKS


@pytest.mark.parametrize("name", LOCKS)
def test_each_package_has_a_version_and_hashes(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    line = re.compile(
        r"[a-z\d-]+==[\w.+!]+( ; [\w. <>=!'(),]+)? \\"  # a version, and where it is needed
        r"|    --hash=sha256:[\da-f]{64}( \\)?"
        r"|    # via [a-z\d-]+(, [a-z\d-]+)*"
    )
    assert [one for one in lines if not line.fullmatch(one)] == []
    found = entries(name)
    assert found and "\n".join(lines) + "\n" == "".join(found.values())
    assert [one for one, entry in found.items() if "--hash=sha256:" not in entry] == []


def test_a_package_is_repeated_only_for_more_platforms() -> None:
    seen: dict[str, dict[str, str]] = {"": {}}
    for stage in lock.STAGES:
        seen[stage] = dict(seen[lock.AFTER.get(stage, "")])
        for name, entry in entries(lock.lock_file(stage).name).items():
            before, now = seen[stage].get(name, ""), lock.requirement(entry)
            assert before != now
            assert not before or (" ; " in before and lock.pinned(before) == lock.pinned(now))
            seen[stage][name] = now


def test_a_package_has_one_version_in_all_files() -> None:
    found = [
        (name, lock.pinned(entry).partition("==")[2])
        for stage in lock.STAGES
        for name, entry in entries(lock.lock_file(stage).name).items()
    ]
    assert len(set(found)) == len(dict(found))


@pytest.mark.slow
def test_no_dependency_is_missing_here() -> None:
    """No dependency is fetched beside the locks, so they must have all."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30 * PATIENCE)
    assert done.returncode == 0, done.stdout


def test_every_requirement_is_locked() -> None:
    packages: set[str] = set()
    for stage, requirements in lock.needs().items():
        packages |= entries(lock.lock_file(stage).name).keys()
        asked = {lock.normal(re.split(r"[^\w.-]", one, maxsplit=1)[0]) for one in requirements}
        assert asked <= packages, stage


def test_the_demo_installs_no_test_dependency() -> None:
    packages = entries("requirements-build.lock") | entries("requirements-demo.lock")
    unwanted = {"confluent-kafka", "fastapi", "flask", "gunicorn", "celery", "pytest", "hypothesis"}
    assert packages.keys().isdisjoint(unwanted | {"cibuildwheel", "build", "ruff", "mypy", "msgspec"})
    wanted = dry_run("demo")
    for part in ("packages build", "packages demo", "java"):
        assert f"deps.sh {part}" in wanted
    for part in ("packages test", "npm", "kafka"):
        assert f"deps.sh {part}" not in wanted
    for part in ("packages test", "kafka"):
        assert f"deps.sh {part}" in dry_run("demo", "KAFKA=1")
    for part in ("packages demo", "packages test", "npm", "kafka"):
        assert f"deps.sh {part}" in dry_run("deps")


def dry_run(*arguments: str) -> str:
    """Return what make would run if nothing were there: -B takes everything for out of date."""
    command = ["make", "--no-print-directory", "-B", "-n", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_installs_only_by_hash() -> None:
    places = ROOT / "Makefile", ROOT / "tools" / "deps.sh"
    text = re.sub(r"\\\n\s*", "", "".join(path.read_text(encoding="utf-8") for path in places))
    installs = [line for line in text.splitlines() if "pip install" in line]
    locked = [line for line in installs if "--editable ." not in line]
    assert len(installs) == 2 and len(locked) == 1
    assert {"--require-hashes", "--no-deps", "--no-build-isolation"} <= set(locked[0].split())
    assert '-r "requirements-$2.lock"' in locked[0]


def test_build_requirements_have_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = entries("requirements-build.lock")
    specifiers = need("packaging.specifiers")
    for requirement in project["build-system"]["requires"]:
        name, bounds = re.fullmatch(r"([\w.-]+)(>=[\d.]+,<\d+)", requirement).groups()  # type: ignore[union-attr]
        version = lock.pinned(packages[lock.normal(name)]).partition("==")[2]
        assert specifiers.SpecifierSet(bounds).contains(version)


def test_dependencies_of_a_package_are_found() -> None:
    packages = lock.closure(["pytest", "hypothesis"], lock.packages())
    assert {"pytest", "pluggy", "iniconfig", "colorama", "hypothesis", "sortedcontainers"} <= packages.keys()
    assert packages.keys().isdisjoint({"pytest-cov", "coverage", "numpy"})
    assert "sys_platform == 'win32'" in packages["colorama"]


@pytest.mark.slow
@pytest.mark.timeout(10 * PATIENCE)
def test_a_file_of_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = "tampered-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / "tampered-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tampered\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "target"))
    entry = f"tampered==1.0 --hash=sha256:{'0' * 64}\n"
    with pytest.raises(SystemExit, match="DO NOT MATCH THE HASHES"):
        pythons.install(sys.executable, {"tampered": entry}, tmp_path)
    digest = hashlib.sha256((tmp_path / "tampered-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    pythons.install(sys.executable, {"tampered": entry.replace("0" * 64, digest)}, tmp_path)
    assert (tmp_path / "target" / about).exists()
