"""One Spark session for the whole test run; ``tests/conftest.py`` makes the fixture known."""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

import pytest

from tests import support
from tests.support.kafka_fixture import connector


@cache
def _session() -> Any:
    for module in ("pyspark", "pyarrow", "numpy"):
        support.need(module)
    from logclient.verify import job

    context = support.need("pyspark").SparkContext
    if context._gateway is not None:  # an earlier test has started a JVM, without these jars
        context._gateway.proc.communicate()  # it ends with its input
        context._gateway = context._jvm = None
    jars, _ = connector()
    try:
        few = {"spark.sql.shuffle.partitions": "2"}  # not 200 tasks for a few rows
        session = job.Session("local[2]", conf=few | ({"spark.jars": ",".join(jars)} if jars else {}))
    except job.VerifyError as error:
        support.missing(str(error))
    atexit.register(session.stop)
    return session


@pytest.fixture(scope="session")
def spark() -> Any:
    return _session().spark
