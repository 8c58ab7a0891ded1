"""The newest other Python, and all in a long test: a wheel of the source distribution in an environment."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT, clean_environment
from tests.support.patience import PATIENCE
from tools import extensions, pythons

# The first time, extensions are compiled.
pytestmark = [pytest.mark.slow, pytest.mark.tree, pytest.mark.timeout(30 * PATIENCE)]

HERE = sorted(extensions.modules(ROOT / "_ext"))


def test_the_source_distribution_is_complete() -> None:
    with tarfile.open(pythons.sdist()) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    wanted = {p.relative_to(ROOT).as_posix() for p in pythons.sources()} | {"logclient/py.typed"}
    assert wanted - names == set()
    assert [n for n in names if n.startswith(("build/", "logclient/_ext"))] == []
    assert [n for n in names if n.endswith((".so", ".pyc"))] == []
    assert [n for n in names if n.startswith("_ext/") and n.endswith(".c")] == []  # these are made


def interpreters() -> list[pythons.Interpreter]:
    """Return the other interpreter, if there is one; this one runs from the tree."""
    found = pythons.interpreters()[1:]
    if not found:
        pytest.skip("no other Python 3.11 or newer on this machine")
    return found


def dotted(path: str) -> str:
    """Return the name below logclient._ext of a file of an extension or of a stub."""
    return path.rpartition("_ext/")[2].partition(".")[0].replace("/", ".")


def test_extensions_import_from_each_wheel() -> None:
    """With nothing of the tree on the path."""
    imports = "; ".join(f"import logclient._ext.{name} as m; print(m.__file__)" for name in HERE)
    for interpreter in interpreters():
        done = subprocess.run(
            [interpreter.path, "-I", "-W", "error", "-c", imports],
            capture_output=True,
            text=True,
            env=clean_environment(),
            timeout=4 * PATIENCE,
        )
        assert done.returncode == 0, f"Python {interpreter.version}\n{done.stderr}"
        files = [Path(line) for line in done.stdout.split()]
        assert [dotted(f.as_posix()) for f in files] == HERE
        assert all("site-packages" in f.parts for f in files)


def test_entry_points_and_extras_are_installed() -> None:
    program = """
from importlib.metadata import distribution
found = distribution("logclient")
print(sorted((e.group, e.name, e.value) for e in found.entry_points))
print(sorted(found.metadata.get_all("Provides-Extra")))
print(found.metadata["License-Expression"], [r for r in found.requires if "extra" not in r])
"""
    for interpreter in interpreters():
        command = [interpreter.path, "-I", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
        points, extras, rest = done.stdout.splitlines()
        assert points == str(
            [
                ("console_scripts", "logclient", "logclient.__main__:run"),
                ("pytest11", "logclient", "logclient.testing.pytest_plugin"),
            ]
        )
        assert extras == str(
            [
                *("all", "completion", "connect", "fast", "idna", "kafka", "logjam", "logux"),
                *("opentelemetry", "prometheus", "spark", "verify", "zstd"),
            ]
        )
        assert rest == "Apache-2.0 []"


def test_wheels_hold_exactly_the_package() -> None:
    interpreters()
    modules = {p.relative_to(ROOT).as_posix() for p in (ROOT / "logclient").rglob("*.py")}
    modules = {m for m in modules if not m.startswith("logclient/_ext/")}
    for wheel in map(pythons.wheel, pythons.others()[-1:]):
        with zipfile.ZipFile(wheel) as file:
            names = set(file.namelist())
        ours = {n for n in names if n.startswith("logclient/")}
        assert modules == {n for n in ours if n.endswith(".py") and not n.startswith("logclient/_ext/")}
        assert {dotted(n) for n in ours if n.endswith((".so", ".pyd"))} == {*HERE, extensions.RUNTIME}
        stubs = {dotted(n) for n in ours if n.endswith(".pyi")}
        assert stubs == set(extensions.modules(ROOT / "_ext", ".pyi"))
        assert "logclient/py.typed" in ours
        assert [n for n in names if n.endswith((".pyx", ".pxd", ".c", ".h"))] == []
        info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
        assert {n.split("/")[0] for n in names - ours} == {info, "pyspark_logclient"}
        assert wheel.stat().st_size < 4 << 20


@pytest.mark.long
@pytest.mark.timeout(120 * PATIENCE)
def test_the_tests_pass_in_each_python() -> None:
    """All that need neither Spark nor the tree."""
    interpreters()
    command = [sys.executable, str(ROOT / "tools" / "pythons.py"), "test", "-q"]
    done = subprocess.run(command, env=clean_environment())
    assert done.returncode == 0
