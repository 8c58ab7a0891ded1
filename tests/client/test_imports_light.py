"""The cost of `import logclient` for a program that may not use it: only necessary modules load."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import logclient
from tests.support import clean_environment, need
from tests.support.patience import PATIENCE

HOME = Path(logclient.__file__).parent.parent

FORBIDDEN = {
    "dataclasses", "json", "urllib.parse", "concurrent.futures", "ssl", "sqlite3", "socket", "selectors",
    "zlib", "asyncio",
    # optional
    "zmq", "snappy", "lz4", "websockets", "isal", "msgspec", "pyspark", "pyarrow", "numpy", "mmh3",
    "opentelemetry", "prometheus_client", "structlog", "loguru",
}  # fmt: skip

# `logging` itself needs threading and what comes with it; a Handler needs logging.
LOGGING = "import logging"


def modules_loaded_by(program: str, *before: str) -> set[str]:
    """Return the modules that a program adds to a fresh interpreter without `site`."""
    lines = [
        "import sys",
        f"sys.path.insert(0, {str(HOME)!r})",
        *before,
        "start = set(sys.modules)",
        program,
        "print(*sorted(set(sys.modules) - start))",
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_logclient_loads_no_heavy_module() -> None:
    assert modules_loaded_by("import logclient") & FORBIDDEN == set()


def test_import_loads_only_the_package_itself() -> None:
    """Public names are lazy, so nothing worth a millisecond is loaded."""
    new = modules_loaded_by("import logclient")
    assert {m for m in new if m.startswith("logclient")} == {"logclient"}
    assert (
        new & {"threading", "typing", "inspect", "pathlib", "tempfile", "argparse", "random", "queue"}
        == set()
    )


@pytest.mark.parametrize("name", ["Handler", "Client", "connect"])
def test_naming_a_public_class_loads_no_heavy_module(name: str) -> None:
    """dictConfig names a class without using it."""
    assert modules_loaded_by(f"import logclient; logclient.{name}", LOGGING) & FORBIDDEN == set()


def test_every_public_name_resolves() -> None:
    for name in logclient.__all__:
        assert getattr(logclient, name) is not None
    assert set(logclient.__all__) <= set(dir(logclient))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = logclient.no_such_name  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["logux.Client", "logux.Pong", "plog.Client"])
def test_protocol_packages_are_lazy(name: str) -> None:
    """A bare ``import logclient`` is enough for the public names of a protocol."""
    package, _, public = name.partition(".")
    before = f"import logclient; logclient.{package}"
    assert modules_loaded_by(before) & {"logclient.client", f"logclient.{package}.client"} == set()
    assert f"logclient.{package}.client" in modules_loaded_by(f"{before}.{public}")


@pytest.mark.parametrize("package", [logclient.logux, logclient.plog])
def test_every_public_name_of_a_package_resolves(package: ModuleType) -> None:
    assert [name for name in package.__all__ if getattr(package, name).__name__ != name] == []
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_the_pytest_plugin_loads_nothing_at_first() -> None:
    """Every pytest of every user loads it."""
    path = [p for p in sys.path if p]
    before = [f"sys.path[1:1] = {path!r}", "import pytest"]
    new = modules_loaded_by("import logclient.testing.pytest_plugin", *before)
    ours = {m for m in new if m.startswith("logclient")}
    assert ours == {"logclient", "logclient.lazy", "logclient.testing", "logclient.testing.pytest_plugin"}
    assert new & FORBIDDEN == set()


TWO_THREADS = """
import importlib, importlib._bootstrap as bootstrap, sys, threading, time
from importlib.machinery import PathFinder, SourceFileLoader

package, module = sys.argv[1:]

def load(name):
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(repr(error))

other = threading.Thread(target=load, args=(module,))

def waits():
    locks = bootstrap._blocking_on.get(other.ident)
    return package in [getattr(lock, "name", "") for lock in (locks if isinstance(locks, list) else [locks])]

class Loader(SourceFileLoader):
    def create_module(self, spec):
        other.start()
        end = time.monotonic() + 30
        while not waits():
            assert time.monotonic() < end, "the other thread does not wait"
            time.sleep(0)

class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name == package else None
        if spec is not None:
            spec.loader = Loader(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder())
load(package)
other.join()
"""


@pytest.mark.parametrize("module", ["_ext.constants", "_ext.queue", "config.hosts", "config.parsing"])
def test_two_threads_import_a_package_and_a_module_of_it(module: str) -> None:
    """The thread that imports the module has its lock, and waits for the package that another one imports."""
    package, _, _ = module.partition(".")
    done = subprocess.run(
        [sys.executable, "-c", TWO_THREADS, f"logclient.{package}", f"logclient.{module}"],
        cwd=HOME, env=clean_environment(), capture_output=True, text=True, timeout=4 * PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_packages_do_not_import_what_others_import_by_name() -> None:
    """A package that imports a module of its own cannot be imported while another thread imports that module.

    The command line is imported by one thread.
    """
    need("pyarrow")
    packages = {p.parent.relative_to(HOME) for p in (HOME / "logclient").rglob("__init__.py")}
    own = {}
    for package in sorted({".".join(path.parts) for path in packages} | {"logclient._ext"}):
        if not package.startswith("logclient.cli"):
            new = modules_loaded_by(f"import {package}", f"sys.path[1:1] = {[p for p in sys.path if p]!r}")
            own[package] = {m for m in new if m.startswith(f"{package}.")}
    assert own.pop("logclient._ext") == {"logclient._ext._runtime"}
    assert own.pop("logclient.verify.report") == {"logclient.verify.report.words"}
    assert [name for name, modules in own.items() if modules] == []
