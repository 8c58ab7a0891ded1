"""Build, check and test wheels: for `make wheels`, and for cibuildwheel.

    python tools/wheels.py              do all of it for each Python 3.11 or newer of this machine
    python tools/wheels.py deps         install what the tests need besides logclient (before-test)
    python tools/wheels.py check        check the installed logclient
    python tools/wheels.py test [args]  check it, then run the tests that need no Spark (test-command)

Only the first needs the source tree. The others need the folder of the tests, and a Python with logclient.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Appended, so that an installed logclient is found first.
sys.path.append(str(Path(__file__).resolve().parent.parent))
from tools import extensions, lock, pythons

HERE = pythons.ROOT
LINUX, MACOS = (sys.platform == name for name in ("linux", "darwin"))


UNWANTED = (".pyx", ".pxd", ".pxi", ".c", ".h", ".pyc")


# -- the installed logclient


def check() -> str:
    """Check that the installed logclient is complete and has the extensions of this platform.

    Returns:
        A description of the content.

    Raises:
        SystemExit: Something is wrong.
    """
    root = Path(find("logclient")).parent
    if not any(root.is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")):
        raise SystemExit(f"logclient is imported from {root}, which is no installation")
    folder = root / "_ext"
    names = sorted(extensions.modules(folder, ".pyi"))
    for name in names:
        module = importlib.import_module(f"logclient._ext.{name}")
        if not str(module.__file__).endswith(sysconfig.get_config_var("EXT_SUFFIX")):
            raise SystemExit(f"logclient._ext.{name} is not an extension of this Python: {module.__file__}")
    found = extensions.modules(folder, sysconfig.get_config_var("EXT_SUFFIX"))
    if not names or set(names) != set(found):
        raise SystemExit(f"extensions {sorted(found)}, stubs {names}")

    from logclient._ext import capture, logjam, lumberjack, queue

    if not time.monotonic() <= queue.monotonic() <= time.monotonic():
        raise SystemExit("the extensions' clock is not time.monotonic()")
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if free and sys._is_gil_enabled():  # type: ignore[attr-defined,unused-ignore]
        raise SystemExit("an extension has switched the GIL on")
    version = importlib.metadata.version("logclient")
    script = Path(sysconfig.get_path("scripts")) / ("logclient")
    said = subprocess.run([str(script), "--version"], capture_output=True, text=True, timeout=60).stdout
    if version not in said:
        raise SystemExit(f"{script} --version said {said!r}")
    with_crc = "folding" if capture.CRC_FOLDS else "table"
    zlib = lumberjack.Codec(bytes(10), compression=3).compressor
    linked = " ".join(logjam.LINKED) or "no library"
    return f"{len(names)} extensions, {with_crc} CRC, linked to {linked}, {zlib}"


def find(name: str) -> str:
    """Return the path of an installed package."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise SystemExit(f"no {name} is installed")
    return found.origin


def project() -> dict[str, Any]:
    """Read pyproject.toml."""
    return tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))


def deps(python: str = sys.executable) -> None:
    """Install the group `test` of pyproject.toml, as it is locked."""
    groups = project()["dependency-groups"]
    with tempfile.TemporaryDirectory() as folder:
        pythons.install(python, lock.closure(groups["test"], lock.packages()), Path(folder))


def test(arguments: list[str]) -> int:
    """Check the installation in an isolated interpreter, then run the tests."""
    checked = subprocess.run([sys.executable, "-I", __file__, "check"])
    if checked.returncode:
        return checked.returncode
    environment = os.environ | {"LOGCLIENT_TREE": os.getcwd()}  # other Pythons have their own run
    command = [sys.executable, "-m", "pytest", "-m", pythons.WITHOUT, "tests", *arguments]
    return subprocess.run(command, env=environment).returncode


# -- distributions


def check_sdist(archive: Path) -> str:
    """Check that the source distribution has all that a build and the tests need, and no built files.

    Returns:
        A description of the content.

    Raises:
        SystemExit: Something is missing, or should not be there.
    """
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()} - {""}
    wanted = [*pythons.sources(), *(HERE / "tests").rglob("*.py"), *(HERE / "docs").glob("*.md")]
    wanted += HERE.glob("requirements-*.lock")
    missing = {p.relative_to(HERE).as_posix() for p in wanted} | {"logclient/py.typed"}
    missing -= names
    strange = {n for n in names if n.endswith((".so", ".pyd", ".pyc"))}
    strange |= {n for n in names if n.endswith(".c") and n.startswith("_ext/")}
    strange |= {n for n in names if n.startswith(("build/", "logclient/_ext", ".git/", ".venv/"))}
    if missing or strange:
        raise SystemExit(f"{archive.name}: missing {sorted(missing)}, not wanted {sorted(strange)}")
    return f"{len(names)} files with tests, {archive.stat().st_size >> 10} KiB"


def check_wheel(wheel: Path) -> str:
    """Check that a wheel has all that it must have, and nothing else.

    Returns:
        A description of the content.

    Raises:
        SystemExit: Something is missing, or should not be there.
    """
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if not name.endswith("/")}
        ours = {n for n in names if n.startswith(("logclient/", "pyspark_logclient/"))}
        others = {n.split("/")[0] for n in names - ours}
        info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
        about = file.read(f"{info}/METADATA").decode()
        listed = f"{info}/sboms/logclient.cdx.json"
        parts = json.loads(file.read(listed)) if listed in names else {}
    modules = {p.relative_to(HERE).as_posix() for p in (HERE / "logclient").rglob("*.py")}
    wanted = {m for m in modules if not m.startswith("logclient/_ext/")} | {"logclient/py.typed"}
    wanted |= {f"pyspark_logclient/{name}" for name in ("__init__.py", "py.typed")}
    for kind in (".py", ".pyi"):
        files = extensions.modules(HERE / "_ext", kind).values()
        wanted |= {f"logclient/{p.relative_to(HERE).as_posix()}" for p in files}
    wanted |= {p.relative_to(HERE).as_posix() for p in (HERE / "logclient").glob("*/*/assets/*")}
    compiled = {
        n.removeprefix("logclient/_ext/").split(".")[0].replace("/", ".") for n in ours if n.endswith(".so")
    }
    wanted_extensions = {*extensions.modules(HERE / "_ext"), extensions.RUNTIME}
    wrong = [f"without {n}" for n in sorted(wanted - ours)]
    wrong += [f"without the extension {n}" for n in sorted(wanted_extensions - compiled)]
    wrong += [f"with {n}" for n in sorted(compiled - wanted_extensions)]
    wrong += [f"with {n}" for n in sorted(ours - wanted) if not n.endswith(".so")]
    wrong += [f"with {n}" for n in sorted(others - {info, "logclient.libs"})]
    wrong += [f"with {n}" for n in sorted(names) if n.endswith(UNWANTED)]
    texts = {f"{info}/licenses/{p.relative_to(HERE).as_posix()}" for p in (HERE / "licenses").glob("*.txt")}
    texts.add(f"{info}/licenses/LICENSE")
    if not texts <= names or "License-Expression: Apache-2.0" not in about:
        wrong.append("without its licence")
    version = info.removesuffix(".dist-info").partition("-")[2]
    if parts.get("metadata", {}).get("component", {}).get("purl") != f"pkg:pypi/logclient@{version}":
        wrong.append("without a list of its parts")
    if wheel.stat().st_size >= 4 << 20:
        wrong.append(f"{wheel.stat().st_size} bytes large")
    if wrong:
        raise SystemExit(f"{wheel.name} is {'; '.join(wrong)}")
    return f"{len(compiled)} extensions, {wheel.stat().st_size >> 10} KiB"


# -- make wheels


@contextlib.contextmanager
def timed(what: str) -> Iterator[list[str]]:
    """Print a line at the end: the step, its seconds, and what the caller puts into the list."""
    begin = time.monotonic()
    said: list[str] = []
    yield said
    print(f"{what:<28} {time.monotonic() - begin:6.1f} s  {'; '.join(said)}", flush=True)


def output(command: list[str], cwd: Path) -> str:
    # auditwheel looks for patchelf in PATH, and its environment may not be activated.
    """Run a command and return its output; a failure ends the program."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | {"PATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} (exit {done.returncode})\n{done.stdout}")
    return done.stdout


def repaired(wheel: Path, target: Path) -> tuple[Path, str]:
    """Set the best platform tag that auditwheel finds for a wheel.

    Returns:
        The wheel, and its tag. Without auditwheel the wheel is only copied.
    """
    if not LINUX or importlib.util.find_spec("auditwheel") is None:
        shutil.copy(wheel, target)
        return target / wheel.name, "not repaired: no auditwheel here"
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(target)]
    output([*command, str(wheel)], target)
    prefix = "-".join(wheel.name.split("-")[:4])
    (new,) = target.glob(f"{prefix}-*.whl")
    return new, new.stem.split("-")[-1]


def environment(found: pythons.Found, where: Path) -> str:
    """Make an empty environment of one Python; returns its python."""
    pythons.run([found.path, "-m", "venv", str(where)], where.parent)
    return str(pythons.python_of(where))


def identifiers() -> str:
    """Describe what the workflow would build, by cibuildwheel itself."""
    if importlib.util.find_spec("cibuildwheel") is None:
        return "no cibuildwheel here"
    names = promised()
    versions = sorted({n.split("-")[0] for n in names}, key=lambda n: (len(n.rstrip("t")), n))
    kinds = sorted({n.partition("-")[2] for n in names})
    return f"{len(names)} wheels: {' '.join(versions)} on {' '.join(kinds)}"


PLATFORMS = {"linux": "x86_64,aarch64", "macos": "x86_64,arm64"}


def promised(platforms: dict[str, str] = PLATFORMS) -> list[str]:
    """Return cibuildwheel's build identifiers for these platforms and architectures."""
    names = []
    for name, architectures in platforms.items():
        command = [sys.executable, "-m", "cibuildwheel", "--platform", name, "--archs", architectures]
        names += output([*command, "--print-build-identifiers", str(HERE)], HERE).split()
    return names


def make(arguments: list[str]) -> int:
    """Build, check and test the wheels of all Pythons; returns the worst exit code."""
    for name in [n for n in os.environ if n.startswith(("PYTHON", "LOGCLIENT_"))]:
        del os.environ[name]
    mine = pythons.here()
    targets = [found for found in (mine, *pythons.others()) if found is not None]
    begin = time.monotonic()
    wheels = pythons.BUILD / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    with timed("source distribution") as said:
        archive = pythons.sdist()
        said.append(check_sdist(archive))
        shutil.copy(archive, wheels)
    with timed("cibuildwheel") as said:
        said.append(identifiers())
    worst = 0
    # Outside the tree, so that nothing of it is found in a parent folder.
    with tempfile.TemporaryDirectory(prefix="logclient-wheels-") as name:
        away = Path(name).resolve()
        pythons.unpack(archive, away / "tree")
        for found in targets:
            with timed(f"Python {found.text}: wheel") as said:
                wheel, tag = repaired(pythons.wheel(found), wheels)
                said += [check_wheel(wheel), tag]
            python = environment(found, away / found.name)
            with timed(f"Python {found.text}: installed") as said:
                pip = [python, "-m", "pip", "--disable-pip-version-check"]
                pythons.run([*pip, "install", "--quiet", "--no-index", str(wheel)], away)
                pythons.run([*pip, "check"], away)
                run = away / found.name / "run"
                run.mkdir()
                for part in project()["tool"]["cibuildwheel"]["test-sources"]:
                    path = away / "tree" / part
                    (shutil.copytree if path.is_dir() else shutil.copy)(path, run / part)
                said.append(output([python, "-I", str(run / "tools" / "wheels.py"), "check"], run).strip())
            with timed(f"Python {found.text}: tests") as said:
                pythons.run([python, str(run / "tools" / "wheels.py"), "deps"], run)
                command = [python, str(run / "tools" / "wheels.py"), "test", "-q", "--no-header", *arguments]
                done = subprocess.run(
                    command, cwd=run, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )  # fmt: skip
                said.append(done.stdout.strip().splitlines()[-1])
                if done.returncode:
                    worst = done.returncode
                    print(done.stdout)
        if mine is not None:
            with timed(f"Python {mine.text}: from sdist") as said:
                python = environment(mine, away / "source")
                # pip fetches the build requirements. There is no checkout and no git.
                pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
                pythons.run([*pip, str(wheels / archive.name)], away)
                tool = str(away / "tree" / "tools" / "wheels.py")
                said.append(output([python, "-I", tool, "check"], away).strip())
    print(f"{'all':<28} {time.monotonic() - begin:6.1f} s  {os.path.relpath(wheels)}")
    if LINUX:
        library = " ".join(platform.libc_ver())
        print(f"The tag is what {library} of this machine allows: the wheels ask for its symbols.")
        print("Those of wheels.yml are built in the manylinux and musllinux images, for older systems.")
    return worst


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code."""
    match argv:
        case ["check"]:
            print(check())
        case ["deps"]:
            deps()
        case ["test", *arguments]:
            return test(arguments)
        case ["help" | "-h" | "--help"]:
            print(__doc__)
        case arguments:
            return make(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
