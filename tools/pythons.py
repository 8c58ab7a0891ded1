"""The Pythons of this machine, each with logclient installed from a wheel of its own.

    python tools/pythons.py list         the interpreters that can be used
    python tools/pythons.py build        make build/py3XX for each: sdist -> wheel -> environment
    python tools/pythons.py test [args]  run the tests that need no Spark in each (args go to pytest)

Tests call `interpreters()`: this interpreter and one of every other minor version from 3.11 on,
free-threaded builds apart. What is built is kept in build/py3XX until a source changes.
"""

import contextlib
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

# Last: beside an installed logclient, never before it.
sys.path.append(str(Path(__file__).resolve().parent.parent))
from tools import lock

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
WINDOWS = sys.platform == "win32"

# Locked packages that a wheel is built with, or that logclient uses: all that `interpreters()` promises.
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
"""The tests that a wheel is tried with: the marker expression of `make test-pythons` and `make wheels`."""


class Interpreter(NamedTuple):
    """A Python with logclient installed in its environment."""

    version: str
    """As `3.12.1`; free-threaded builds end in `t`."""
    path: str
    """Of its python."""


class Found(NamedTuple):
    """A Python of the machine from which an environment can be made."""

    version: tuple[int, ...]
    free: bool
    path: str

    @property
    def name(self) -> str:
        return f"py{self.version[0]}{self.version[1]}{'t' if self.free else ''}"

    @property
    def text(self) -> str:
        return ".".join(map(str, self.version)) + ("t" if self.free else "")


def candidates() -> Iterator[str]:
    """Programs that may be Pythons, in no order that matters."""
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
    """None when it does not run (a shim without a version), is too old, or cannot build extensions."""
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
    """This interpreter; None when it could not build anything."""
    return probe(sys.executable)


@functools.cache
def others() -> list[Found]:
    """The newest patch release of every other minor version, oldest first."""
    mine = here()
    best: dict[str, Found] = {}
    for path in dict.fromkeys(candidates()):
        found = probe(path)
        if found and (mine is None or found.name != mine.name):
            best[found.name] = max(best.get(found.name, found), found)
    return [best[name] for name in sorted(best, key=lambda n: best[n])]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time makes an environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        if not WINDOWS:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(command: list[str], cwd: Path) -> None:
    """Quiet when it works, everything it said when it does not."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} (exit {done.returncode})\n{done.stdout}")


def sources() -> list[Path]:
    """What a wheel is made from."""
    names = ("pyproject.toml", "setup.py", "tools/extensions.py", "MANIFEST.in", "README.md", "LICENSE")
    files = [ROOT / name for name in names]
    for pattern in ("*.pyx", "*.pxd", "*.pxi", "*.pyi", "*.h", "*.py"):
        files += (ROOT / "_ext").rglob(pattern)
    files += (p for p in (ROOT / "logclient").rglob("*.py") if "_ext" not in p.parts[len(ROOT.parts) :])
    return sorted(files)


def digest(files: list[Path]) -> str:
    h = hashlib.sha256()
    for path in files:
        h.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return h.hexdigest()


def archived() -> list[Path]:
    """What the source distribution holds beside that, as far as it changes."""
    files = [ROOT / "Makefile", *ROOT.glob("requirements-*.lock")]
    for folder, pattern in (("tests", "*"), ("docs", "*"), ("tools", "*")):
        files += (ROOT / folder).rglob(pattern)
    return sorted(p for p in files if p.is_file() and "__pycache__" not in p.parts)


def sdist() -> Path:
    """The source distribution of the tree as it is; built once per state."""
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
    """Extract, but touch only files that changed, so that objects are compiled once."""
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
    return environment / ("Scripts/python.exe" if WINDOWS else "bin/python")


def build(found: Found, python: str) -> tuple[Path, str]:
    """The wheel for one Python, made by an environment of its own with Cython in it, and its key.

    From the unpacked source distribution, never from the tree; kept until a source changes.
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
    """Environment, wheel and install for one Python, as far as they are not there.

    Args:
        tested: with all that the tests without Spark need.
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
    """Install locked packages, and nothing else: their hashes are checked."""
    file = folder / "requirements.txt"
    file.write_text("".join(entries.values()), encoding="utf-8")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run([*pip, "--no-deps", "--require-hashes", "-r", str(file)], folder)


def wheel(found: Found) -> Path:
    """The wheel for one Python, this one or another, built when needed."""
    mine = here()
    if mine is not None and found.name == mine.name:
        with locked(BUILD / f"{found.name}.lock"):
            return build(found, sys.executable)[0]
    make(found)
    return next((BUILD / found.name / "wheel").glob("*.whl"))


def wheels() -> list[Path]:
    """The wheels of the other Pythons, built when needed."""
    return [wheel(found) for found in others()]


@functools.cache
def interpreters() -> list[Interpreter]:
    """This interpreter, then the others; each imports logclient with its extensions.

    Only this one inside a run of `test`: the others have their own.
    """
    found = here()
    mine = found.text if found else ".".join(map(str, sys.version_info[:3]))
    rest = [] if os.environ.get("LOGCLIENT_TREE") else others()
    return [Interpreter(mine, sys.executable), *map(make, rest)]


def copy_tests(where: Path) -> None:
    """The tests beside an installed logclient: in the tree itself `import logclient` would find the tree."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("tests", "tools", "bench"):
        shutil.copytree(ROOT / folder, where / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", where)


def test(arguments: list[str]) -> int:
    """The tests that need no Spark and no source tree, in every other Python; the worst exit code."""
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
        worst = max(worst, done.returncode)
    if not others():
        print("no other Python 3.11 or newer on this machine")
    return worst


def main(argv: list[str]) -> int:
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
