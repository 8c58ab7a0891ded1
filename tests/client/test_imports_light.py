"""The cost of `import logclient` for a program that may not use it: only necessary modules load."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import logclient
from tests.support import clean_environment
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


@pytest.mark.parametrize("name", ["logux.Client", "logux.Pong", "plog.Client", "plog.Lines", "plog.Stat"])
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
