"""Fixtures of the tests of transports."""

from __future__ import annotations

import pytest

from tests.support.tls import Authority


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority that our side trusts."""
    return Authority(tmp_path_factory.mktemp("tls") / "ours")
