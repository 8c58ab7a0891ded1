"""What the tests of Lumberjack share."""

import pytest

from logclient.transports.tcp import Tcp
from tests.support.pumps import refuse_pump


@pytest.fixture(params=["compiled pump", "Python pump"])
def pump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the compiled pump, and with the fallback for systems without it."""
    if request.param == "Python pump":
        monkeypatch.setattr(Tcp, "load_pump", refuse_pump("a test needs the link in Python"))
