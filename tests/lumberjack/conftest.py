"""What the tests of Lumberjack share."""

import pytest

from logclient.transports.tcp import Tcp


@pytest.fixture(params=["compiled pump", "Python pump"])
def pump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the compiled pump, and with the fallback for systems without it."""
    if request.param == "Python pump":
        monkeypatch.setattr(Tcp, "pump", lambda self, in_flight, core, **limits: None)
