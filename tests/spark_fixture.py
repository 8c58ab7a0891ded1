"""One Spark session for the whole test run; ``tests/conftest.py`` makes the fixture known."""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

import pytest

from tests import shared


@cache
def _session() -> Any:
    for module in ("pyspark", "pyarrow", "numpy"):
        shared.need(module)
    from logclient.verify import job

    try:
        session = job.Session("local[2]")
    except job.VerifyError as error:
        shared.missing(str(error))
    atexit.register(session.stop)
    return session


@pytest.fixture(scope="session")
def spark() -> Any:
    return _session().spark
