"""The Pythons of this machine, each with logclient installed from its own wheel.

    python tools/pythons.py list         list the interpreters that can be used
    python tools/pythons.py build        make build/py3XX for each: sdist, wheel, environment
    python tools/pythons.py test [args]  run the tests that need no Spark in each (args are for pytest)

One of each other minor version from 3.11 on is used, with free-threaded builds apart. Tests of `make test`
call `interpreters()`: this interpreter and the newest other one. build/py3XX is kept until a source changes.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Appended, so that an installed logclient is found first.
sys.path.append(str(Path(__file__).resolve().parent.parent))
from tools import lock

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"

# Locked packages to build a wheel, and those that logclient uses: `interpreters()` promises these.
NEEDED = {
    "cramjam", "cython", "isal", "lz4", "msgspec", "python-snappy", "pyzmq", "setuptools", "websockets",
    "wheel",
}  # fmt: skip

# Locked packages that the tests without Spark do not need: large, or only for lint.
LEFT_OUT = {
    "ast-serialize", "confluent-kafka", "coverage", "cython-lint", "execnet", "librt", "mypy",
    "mypy-extensions", "numpy", "pathspec", "py4j", "pyarrow", "pycodestyle", "pyspark", "pytest-cov",
    "pytest-xdist", "ruff", "tokenize-rt",
}  # fmt: skip

PROBE = """
import json, sys, sysconfig, os, venv, ensurepip
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": list(sys.version_info[:3]),
    "release": sys.version_info.releaselevel == "final",
    "free": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "path": os.path.realpath(sys.executable),
}))
"""


WITHOUT = "not spark and not tree and not long"
"""The tests of a wheel: the marker expression of `make test-pythons` and `make wheels`."""


class Interpreter(NamedTuple):
    """A Python with logclient installed in its environment."""

    version: str
    """As `3.12.1`; free-threaded builds end in `t`."""
    path: str
    """The path of its python."""


class Found(NamedTuple):
    """A Python of this machine that can make environments."""

    version: tuple[int, ...]
    free: bool
    path: str

    @property
    def name(self) -> str:
        """The name of its folder in build/."""
        return f"py{self.version[0]}{self.version[1]}{'t' if self.free else ''}"

    @property
    def text(self) -> str:
        """Its version."""
        return ".".join(map(str, self.version)) + ("t" if self.free else "")


def candidates() -> Iterator[str]:
    """Yield the paths of programs that may be Pythons."""
    names = [f"python3.{minor}{free}" for minor in range(11, 20) for free in ("", "t")]
    for name in names:
        if path := shutil.which(name):
            yield path
    home = Path.home()
    folders = [
        Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python"),
        Path("/opt/python"),
    ]
    for folder in folders:
        for path in sorted(folder.glob("*/bin/python")):
            yield str(path)


def probe(path: str) -> Found | None:
    """Examine a program; returns None if it does not run, is too old, or cannot build extensions."""
    try:
        done = subprocess.run([path, "-I", "-c", PROBE], capture_output=True, text=True, timeout=30)
        facts = json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if not facts or facts["implementation"] != "cpython" or not facts["release"] or not facts["headers"]:
        return None
    version = tuple(facts["version"])
    return Found(version, facts["free"], facts["path"]) if version >= (3, 11) else None


@functools.cache
def here() -> Found | None:
    """Return this interpreter; None if it cannot build extensions."""
    return probe(sys.executable)


@functools.cache
def others() -> list[Found]:
    """Return the newest patch release of each other minor version, oldest first."""
    mine = here()
    best: dict[str, Found] = {}
    for path in dict.fromkeys(candidates()):
        found = probe(path)
        if found and (mine is None or found.name != mine.name):
            best[found.name] = max(best.get(found.name, found), found)
    return [best[name] for name in sorted(best, key=lambda n: best[n])]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file lock, so that one process at a time makes an environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(command: list[str], cwd: Path) -> None:
    """Run a command. Its output is shown only if it fails, which ends the program."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} (exit {done.returncode})\n{done.stdout}")


def sources() -> list[Path]:
    """List the files that a wheel is made from."""
    names = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
    files = [ROOT / name for name in (*names, "tools/extensions.py", "tools/libraries.py", "tools/stubs.py")]
    files += (ROOT / "licenses").glob("*.txt")
    for pattern in ("*.pyx", "*.pxd", "*.pxi", "*.h", "*.py"):
        files += (ROOT / "_ext").rglob(pattern)
    files += (p for p in (ROOT / "logclient").rglob("*.py") if "_ext" not in p.parts[len(ROOT.parts) :])
    files.append(ROOT / "pyspark_logclient" / "__init__.py")
    return sorted(files)


def digest(files: list[Path]) -> str:
    """Hash the names and contents of files."""
    h = hashlib.sha256()
    for path in files:
        h.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return h.hexdigest()


def archived() -> list[Path]:
    """List the further files of the source distribution, as far as they change."""
    files = [ROOT / "Makefile", *ROOT.glob("requirements-*.lock")]
    for folder, pattern in (("tests", "*"), ("docs", "*"), ("tools", "*")):
        files += (ROOT / folder).rglob(pattern)
    return sorted(p for p in files if p.is_file() and "__pycache__" not in p.parts)


def sdist() -> Path:
    """Return the source distribution of the present tree, built if needed."""
    where = BUILD / "sdist"
    with locked(BUILD / "sdist.lock"):
        key = digest([*sources(), *archived()])
        done = where / "key"
        if not done.exists() or done.read_text() != key:
            shutil.rmtree(where, ignore_errors=True)
            where.mkdir(parents=True)
            command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(where), "sdist"]
            run([*command, "--dist-dir", str(where)], ROOT)
            done.write_text(key)
    return next(where.glob("*.tar.gz"))


def unpack(archive: Path, target: Path) -> None:
    """Extract an archive, but write only files that changed, so that the others are not compiled again."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    with tarfile.open(archive) as tar:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.0 to 3.11.3 have none
        tar.extractall(fresh, **safe)
    (top,) = fresh.iterdir()
    names = {p.relative_to(top) for p in top.rglob("*") if p.is_file()}
    for name in names:
        old, new = target / name, top / name
        if not old.exists() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(new, old)
    for old in [p for p in target.rglob("*") if p.is_file()]:
        name = old.relative_to(target)
        if name not in names and name.parts[0] != "build":
            old.unlink()
    for old in (target / "build").glob("lib*"):  # else a deleted module stays in the wheel
        shutil.rmtree(old)
    shutil.rmtree(fresh)


def python_of(environment: Path) -> Path:
    """Return the python of an environment."""
    return environment / "bin/python"


def build(found: Found, python: str) -> tuple[Path, str]:
    """Return the wheel for one Python, built if a source has changed.

    It is built from the unpacked source distribution, never from the tree.

    Args:
        found: The Python.
        python: Of an environment with Cython.

    Returns:
        The wheel, and the hash of its sources.
    """
    base = BUILD / found.name
    archive = sdist()
    key = digest(sources())
    wheels = base / "wheel"
    done = base / "wheel.key"
    if not done.exists() or done.read_text() != key:
        done.unlink(missing_ok=True)
        unpack(archive, base / "src")
        shutil.rmtree(wheels, ignore_errors=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        how = ["--quiet", "--no-deps", "--no-build-isolation"]
        run([*pip, "wheel", *how, "--wheel-dir", str(wheels), str(base / "src")], ROOT)
        done.write_text(key)
    (wheel,) = wheels.glob("*.whl")
    return wheel, key


def make(found: Found, *, tested: bool = False) -> Interpreter:
    """Make the environment and the wheel of one Python, and install it, as far as they are missing.

    Args:
        found: The Python.
        tested: Install all that the tests without Spark need.
    """
    base = BUILD / found.name
    environment = base / "venv"
    python = python_of(environment)
    with locked(BUILD / f"{found.name}.lock"):
        packages = lock.packages()
        whole = {name: entry for name, entry in packages.items() if name not in LEFT_OUT}
        part = {name: entry for name, entry in packages.items() if name in NEEDED}
        stamp = base / "environment.json"
        states = [json.dumps([found.text, found.path, entries]) for entries in (whole, part)]
        if not stamp.exists() or stamp.read_text() not in (states[:1] if tested else states):
            shutil.rmtree(environment, ignore_errors=True)
            run([found.path, "-m", "venv", str(environment)], ROOT)
            install(str(python), whole if tested else part, base)
            stamp.write_text(states[not tested])
            (base / "key").unlink(missing_ok=True)
        wheel, key = build(found, str(python))
        done = base / "key"
        if not done.exists() or done.read_text() != key:
            done.unlink(missing_ok=True)
            pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
            run([*pip, "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel)], ROOT)
            done.write_text(key)
    return Interpreter(found.text, str(python))


def install(python: str, entries: dict[str, str], folder: Path) -> None:
    """Install locked packages, without their dependencies; pip checks their hashes."""
    file = folder / "requirements.txt"
    file.write_text("".join(entries.values()), encoding="utf-8")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run([*pip, "--no-deps", "--require-hashes", "-r", str(file)], folder)


def wheel(found: Found) -> Path:
    """Return the wheel for one Python, built if needed."""
    mine = here()
    if mine is not None and found.name == mine.name:
        with locked(BUILD / f"{found.name}.lock"):
            return build(found, sys.executable)[0]
    make(found)
    return next((BUILD / found.name / "wheel").glob("*.whl"))


@functools.cache
def interpreters() -> list[Interpreter]:
    """Return this interpreter and the newest other; both can import logclient with its extensions.

    Within a run of `test` it is only this one, as each of the others has its own run.
    """
    found = here()
    mine = found.text if found else ".".join(map(str, sys.version_info[:3]))
    rest = [] if os.environ.get("LOGCLIENT_TREE") else others()[-1:]  # each costs a minute of compiling
    return [Interpreter(mine, sys.executable), *map(make, rest)]


def test_file(name: str) -> str:
    """Return the path of the test file ``test_<name>.py``, from the top of the tree.

    Raises:
        ValueError: There is no such file, or more than one.
    """
    (found,) = ROOT.glob(f"tests/*/test_{name}.py")
    return found.relative_to(ROOT).as_posix()


def copy_tests(where: Path) -> None:
    """Copy the tests to a folder where `import logclient` finds the installed one, not the tree."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("tests", "tools", "bench"):
        shutil.copytree(ROOT / folder, where / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", where)


def test(arguments: list[str]) -> int:
    """Run the tests without Spark and source tree in each other Python; returns the worst exit code."""
    worst = 0
    for found in others():
        interpreter = make(found, tested=True)
        where = BUILD / found.name / "run"
        copy_tests(where)
        print(f"== Python {interpreter.version}", flush=True)
        environment = os.environ | {"LOGCLIENT_TREE": str(ROOT)}
        environment.pop("PYTHONPATH", None)
        command = [interpreter.path, "-m", "pytest", "-m", WITHOUT, *arguments]
        done = subprocess.run(command, cwd=where, env=environment)
        worst = max(worst, abs(done.returncode))  # a signal is negative
    if not others():
        print("no other Python 3.11 or newer on this machine")
    return worst


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code."""
    match argv:
        case ["list"]:
            for found in others():
                print(found.text, found.path)
        case ["build"]:
            for interpreter in interpreters():
                print(interpreter.version, interpreter.path, flush=True)
        case ["test", *arguments]:
            return test(arguments)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
