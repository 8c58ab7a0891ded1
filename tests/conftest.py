"""What all tests share."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests import shared

# No deadline: other work on the machine is no failure. Found examples stay out of the tree.
settings.register_profile(
    "logclient",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=DirectoryBasedExampleDatabase(shared.ROOT / "build" / "hypothesis"),
)
settings.load_profile("logclient")

# Our own pytest plugin (a collector as a fixture) is switched off in pyproject.toml and loaded here,
# so that the lines it imports are counted.
pytest_plugins = [
    "logclient.collectors.pytest_plugin",
    "tests.kafka_fixture",
    "tests.spark_fixture",
    "tests.cores.fixtures",
]


# The other Pythons of `make test-pythons` are without what the verifier needs.
if not shared.REQUIRE_ALL and not (find_spec("pyarrow") and find_spec("numpy")):
    collect_ignore_glob = ["test_verify*.py"]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real log files."""
    return shared.shared_path("data")
