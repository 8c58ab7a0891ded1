"""Fixtures of the verifier's tests; ``tests/conftest.py`` makes them known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import support
from tests.support.kafka_fixture import connector

if TYPE_CHECKING:
    from tests.support.verify_scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    from tests.support.verify_scene import Scene  # it needs xxhash, which the tests of a wheel do without

    return Scene(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Where `hourly.append` writes."""
    return tmp_path / "hours"


@pytest.fixture
def run(scene: Scene) -> Callable[..., Any]:
    """The verdict on the scene, without Spark."""
    inprocess = pytest.importorskip("tests.support.verify_inprocess")

    def go(**options: Any) -> Any:
        options = {"bits": 3, "out": scene.out, **options}
        return inprocess.run(scene.ledger, scene.capture, **options)

    return go


@pytest.fixture(params=[pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow]), "local"])
def runner(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of each runner."""
    spark = request.param == "spark"
    return {"spark": request.getfixturevalue("spark")} if spark else {"runner": "local"}


@pytest.fixture
def broker(kafka: str, spark: Any) -> str:
    """Where a broker is that Spark has the connector to read."""
    jars, why = connector()
    if not jars:
        support.missing(why)
    return kafka
