"""Fixtures of the tests of transports."""

from __future__ import annotations

import pytest

from tests.support.tls import Authority, use_pump


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority that our side trusts."""
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(params=["compiled", "python"])
def tls_pump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each pump for TLS; the one in Python uses the ``ssl`` of Python."""
    use_pump(request.param, monkeypatch)
    return str(request.param)
