"""Fixtures of the engine's tests, which ``tests/conftest.py`` imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cores.rig import Rig, Setup


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Return a maker of rigs, which are finished at the end of the test."""
    made: list[Rig] = []

    def make(setup: Setup, **options: Any) -> Rig:
        rig = Rig(setup, tmp_path / "run", **options)
        made.append(rig)
        return rig

    yield make
    for rig in made:
        if not rig.finished:
            rig.finish(0.05)
