"""One Spark session for the whole test run: ``from tests.spark_fixture import spark``."""

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
    # Not at the end of a fixture: each module that imports it has a fixture of its own.
    atexit.register(session.stop)
    return session


@pytest.fixture(scope="session")
def spark() -> Any:
    return _session().spark
