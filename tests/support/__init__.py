"""The source tree, optional dependencies and clean environments, for all tests."""

import importlib
import logging
import os
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NoReturn

# The source tree. The tests of other Pythons run from a copy beside their wheel and set this.
ROOT = Path(os.environ.get("LOGCLIENT_TREE") or Path(__file__).resolve().parents[2])

TESTED = Path(__file__).resolve().parents[2]
"""The folder above these tests: the source tree, or a copy beside the wheel of another Python."""

NO_FALLBACK = "; fallback=FILE, or stderr, would keep them"
"""Ends the line about events that were not delivered before exit."""

REQUIRE_ALL = os.environ.get("LOGCLIENT_REQUIRE") == "all"


def missing(reason: str) -> NoReturn:
    """Skip with the reason; under LOGCLIENT_REQUIRE=all fail with it."""
    import pytest  # programs without pytest use this package, too

    if REQUIRE_ALL:
        pytest.fail(f"LOGCLIENT_REQUIRE=all: {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=True)  # needed by a whole file, or by one test


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


def agent_handler(agent: Any) -> logging.Handler:
    """A ``logclient.Handler`` whose documents an agent makes for a sink of its own."""
    from logclient import Handler
    from logclient._ext.queue import EventQueue
    from logclient._ext.record import Encoder

    class Client:
        documents = agent
        line_encoder = None  # so that the agent's sink takes all
        revision = sampling = None
        front_ends: ClassVar[set[Any]] = set()
        encoder = Encoder(EventQueue())

        class config:
            hold_below = None
            redacted = "test://agent"
            timeout = 0.0

        class sink:
            ensure_sender = put_slowly = staticmethod(lambda *given: 0)

        class _waiter:
            flush = staticmethod(lambda *given, **more: 0)

        def warn_limited(self, kind: str, text: str) -> None:
            agent.note_lost(RuntimeError(text), "a record")

    return Handler(client=Client())  # type: ignore[arg-type]
