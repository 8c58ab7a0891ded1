"""Where tests find what is not in this tree, and what happens when it is missing."""

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

# The source tree. The tests of other Pythons run from a copy beside their wheel and set this.
ROOT = Path(os.environ.get("LOGCLIENT_TREE") or Path(__file__).resolve().parent.parent)

REQUIRE_ALL = os.environ.get("LOGCLIENT_REQUIRE") == "all"


def missing(reason: str) -> NoReturn:
    """Skip with the reason; under LOGCLIENT_REQUIRE=all fail with it."""
    if REQUIRE_ALL:
        pytest.fail(f"LOGCLIENT_REQUIRE=all: {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=True)  # needed by a whole file, or by one test


def shared_path(name: str) -> Path:
    """A file or folder of the shared material: LOGCLIENT_SHARED, else ../shared of the tree."""
    shared = Path(os.environ.get("LOGCLIENT_SHARED") or ROOT.parent / "shared")
    path = shared / name
    if not path.exists():
        missing(f"no {path.name} in LOGCLIENT_SHARED or ../shared")
    return path


def need(module: str) -> ModuleType:
    """An optional dependency, imported."""
    try:
        return importlib.import_module(module)
    except ImportError:
        missing(f"{module} is not installed")


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment for a fresh interpreter without what measures this one (coverage, pytest)."""
    ours = ("COV_", "COVERAGE_", "PYTEST_", "PYTHON")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | extra
