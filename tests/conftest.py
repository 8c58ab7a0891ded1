"""What all tests share."""

import importlib.util
from pathlib import Path

import pytest

from tests import shared

# Our own pytest plugin (a collector as a fixture) is switched off in pyproject.toml and loaded here,
# so that the lines it imports are counted.
if importlib.util.find_spec("logclient.collectors.pytest_plugin") is not None:
    pytest_plugins = ["logclient.collectors.pytest_plugin"]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real log files."""
    return shared.shared_path("data")
