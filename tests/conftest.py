"""What all tests share."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from logclient.config.common import Config
from logclient.delivery import error_log
from logclient.errors import MissingExtra
from tests import support
from tests.support.patience import PATIENCE

# No deadline: other work on the machine is no failure. Found examples stay out of the tree.
settings.register_profile(
    "logclient",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=DirectoryBasedExampleDatabase(support.ROOT / "build" / "hypothesis"),
)
settings.register_profile("check", settings.get_profile("logclient"), max_examples=25)  # of make check
settings.load_profile("logclient")

# Our own pytest plugin (a collector as a fixture) is switched off in pyproject.toml and loaded here,
# so that the lines it imports are counted.
pytest_plugins = [
    "logclient.testing.pytest_plugin",
    "tests.support.kafka_fixture",
    "tests.support.spark_fixture",
    "tests.support.s3",
    "tests.support.verify_fixtures",
    "tests.cores.fixtures",
]


def skip_without_package(error: BaseException | None) -> None:
    """Skip what failed as a package of others, which a test imports or logclient asks for, is not there."""
    if isinstance(error, (ModuleNotFoundError, MissingExtra)) and error.name:
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        by_test = at is not None and at.tb_frame.f_code.co_filename.startswith(str(support.TESTED / "tests"))
        package = error.name.partition(".")[0]
        if (by_test or isinstance(error, MissingExtra)) and PathFinder.find_spec(package) is None:
            support.missing(f"{package} is not installed")


class File(pytest.Module):
    """A file of tests."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            skip_without_package(error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return File.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    except ImportError as error:
        skip_without_package(error)
        raise


pytest_runtest_call = pytest_runtest_setup


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--resume",
        metavar="FILE",
        type=Path,
        help="leave out the tests that FILE names, and add those that pass: for long runs in parts",
    )


class Resume:
    """Keeps the names of tests that have passed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed = set(file.read_text().splitlines()) if file.exists() else set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self._passed]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in self._passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            with self._file.open("a") as file:
                print(report.nodeid, file=file)


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout looks
def pytest_configure(config: pytest.Config) -> None:
    """The same for everybody: signals as in a terminal, and how long to wait (``tests.support.patience``)."""
    # Background jobs of scripts, nohup and many CI runners start us with SIGINT ignored, and every program
    # that a test starts and interrupts would inherit that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if (file := config.getoption("--resume", None)) is not None:
        config.pluginmanager.register(Resume(file))

    if config.getoption("timeout") is None and "PYTEST_TIMEOUT" not in os.environ:
        config.option.timeout = 10 * PATIENCE

    from logclient.testing.loop import CollectorBase

    assert CollectorBase.wait_for.__kwdefaults__ is not None
    CollectorBase.wait_for.__kwdefaults__["timeout"] = PATIENCE
    CollectorBase.events.__defaults__ = (None, PATIENCE)


@pytest.hookimpl(tryfirst=True)  # before xdist looks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what uses the Spark session, in one process, and with what compiles or builds."""
    session = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    slow = {item.path for item in items if {mark.name for mark in item.iter_markers()} & {"spark", "tree"}}
    items.sort(key=lambda item: (item.path not in session, item.path not in slow))
    for item in items:
        if item.path in session and config.pluginmanager.has_plugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file, and those of a group, in one process."""
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return scope.split("::")[0]

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def own_reporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test reports holds no line of another back, though a process has one reporter."""
    monkeypatch.setattr(error_log, "process", error_log.ErrorLog())


@pytest.fixture
def slow_pace(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Return a function that sets the first and the last bound of the wait after rejected credentials."""

    def use(first: float, last: float) -> None:
        monkeypatch.setattr(Config, "auth_backoff_min", first)
        monkeypatch.setattr(Config, "auth_backoff_max", last)

    return use


@pytest.fixture(params=["compiled", "python"])
def tls_pump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each pump for TLS; the one in Python uses the ``ssl`` of Python."""
    from tests.support.tls import use_pump  # needs what only tests of TLS need

    use_pump(request.param, monkeypatch)
    return str(request.param)
