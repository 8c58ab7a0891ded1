"""What the tests of Logux share."""

import pytest

from tests.support import need
from tests.support.pumps import refuse_pump
from tests.support.websocket import why_python

WHY = "a test needs the pump in Python"


@pytest.fixture(params=["compiled", "python"])
def websocket_pump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each pump for WebSocket; return what ``stats().pump`` says."""
    need("websockets")
    from logclient.transports.websocket import WebSocket

    if request.param == "python":
        monkeypatch.setattr(WebSocket, "load_pump", refuse_pump(WHY))
        return f"python: {WHY}"
    if why := why_python():
        pytest.skip(why)
    return "compiled"
