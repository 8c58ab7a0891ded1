"""A free-threaded Python to test logclient with.

    python tools/freethreaded.py         print its path; it is built in build/ if this machine has none
    python tools/freethreaded.py storm   run tests/lifecycle/free_threads.py in it

A free-threaded Python of the machine is used if there is one (see tools/pythons.py). Otherwise CPython 3.13
is compiled from Debian's source package, which takes some minutes and needs apt-get, the machine's
repositories, and a C compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

# Appended, so that an installed logclient is found first.
sys.path.append(str(Path(__file__).resolve().parent.parent))
from tools import lock, pythons

BUILD = pythons.BUILD / "freethreaded"
PACKAGE, SUITE = "python3.13", "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NEEDED = ("cython", "setuptools", "wheel", "websockets")  # locked packages: to build, and for Logux
OPTIONS = ["--disable-gil", "--disable-test-modules", "--quiet", "CFLAGS=-O1"]


class UnavailableError(Exception):
    """Something is missing on this machine."""


def run(command: list[str | Path], where: Path, seconds: float = 1800) -> str:
    """Run a command and return its output.

    Raises:
        UnavailableError: It failed.
    """
    done = subprocess.run(
        command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
    )
    if done.returncode:
        words = " ".join(map(str, command))
        raise UnavailableError(f"{words} (exit {done.returncode})\n{done.stdout[-2000:]}")
    return done.stdout


def source(where: Path) -> Path:
    """Fetch the source of CPython with apt-get, with package lists of our own.

    Raises:
        UnavailableError: There is no apt-get, no Debian repository, or no such package.
    """
    if shutil.which("apt-get") is None or not KEYRING.exists():
        raise UnavailableError("no apt-get of Debian's")
    repositories = run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], where).split()
    found = [address for address in repositories if address.endswith("/debian/")]
    if not found:
        raise UnavailableError("apt-get has no Debian repository (or apt-get update was never run)")
    apt = where / "apt"
    (apt / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (apt / "sources.list").write_text(f"deb-src [signed-by={KEYRING}] {found[0]} {SUITE} main\n")
    options = [
        f"-oDir::Etc::sourcelist={apt}/sources.list", "-oDir::Etc::sourceparts=/dev/null",
        f"-oDir::State::lists={apt}/lists", f"-oDir::Cache={apt}/cache",
    ]  # fmt: skip
    run(["apt-get", *options, "update"], where, 300)
    run(["apt-get", *options, "source", "--download-only", PACKAGE], where, 600)
    archive = max(where.glob(f"{PACKAGE}_*.orig.tar.*[xg]z"))
    with tarfile.open(archive) as tar:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(where, **safe)
    return next(path for path in where.glob("Python-*") if path.is_dir())


def interpreter() -> Path:
    """Return the path of a free-threaded Python with headers.

    Raises:
        UnavailableError: This machine has none and cannot build one.
    """
    ready = [found for found in pythons.others() if found.free]
    if ready:
        return Path(max(ready).path)
    python = BUILD / "python" / "bin" / f"{PACKAGE}t"
    with pythons.locked(pythons.BUILD / "freethreaded.lock"):
        if not python.exists():
            if shutil.which("make") is None:
                raise UnavailableError("no make")
            shutil.rmtree(BUILD, ignore_errors=True)
            BUILD.mkdir(parents=True)
            tree = source(BUILD)
            run(["./configure", f"--prefix={python.parent.parent}", *OPTIONS], tree)
            run(["make", "-s", f"-j{os.cpu_count() or 1}"], tree)
            run(["make", "-s", "install"], tree)
            shutil.rmtree(tree)
    return python


def logclient() -> tuple[Path, Path]:
    """Build logclient for that Python.

    Returns:
        The python of its environment, and a folder with logclient and its tests.

    Raises:
        UnavailableError: There is no such Python, or the build failed.
    """
    base = interpreter()
    python, tree = BUILD / "venv" / "bin" / "python", BUILD / "tree"
    BUILD.mkdir(parents=True, exist_ok=True)
    archive = pythons.sdist()
    with pythons.locked(pythons.BUILD / "freethreaded.lock"):
        if not python.exists():
            run([base, "-m", "venv", python.parent.parent], BUILD)
            entries = {name: entry for name, entry in lock.packages().items() if name in NEEDED}
            pythons.install(str(python), entries, BUILD)
        pythons.unpack(archive, tree)
        run([python, "setup.py", "--quiet", "build_ext", "--inplace"], tree)
        link = tree / "logclient" / "_ext"
        if not link.is_symlink():
            link.symlink_to(Path("..", "_ext"))
    return python, tree


def storm(seconds: float) -> subprocess.CompletedProcess[str]:
    """Run tests/lifecycle/free_threads.py. The GIL is enabled only if an extension asks for it.

    Raises:
        UnavailableError: As for `logclient`.
    """
    python, tree = logclient()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    options = ["-X", "faulthandler", "-W", "ignore"]
    command = [python, *options, "-m", "tests.lifecycle.free_threads", str(seconds)]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=600 + 10 * seconds
    )


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code."""
    try:
        match argv:
            case []:
                print(interpreter())
            case ["storm"]:
                done = storm(15.0)
                print(done.stdout, done.stderr, sep="", end="")
                return done.returncode
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except UnavailableError as error:
        print(f"freethreaded: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
