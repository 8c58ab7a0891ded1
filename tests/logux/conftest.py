"""What the tests of Logux share."""

from typing import Any

import pytest

from tests.support import need

WHY = "a test needs the pump in Python"


@pytest.fixture(params=["compiled", "python"])
def websocket_pump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each pump for WebSocket; return what ``stats().pump`` says."""
    need("websockets")
    from logclient.transports.tcp import Tcp
    from logclient.transports.websocket import WebSocket

    def load_pump(self: Any) -> Any:
        raise ImportError(WHY)

    if request.param == "python":
        monkeypatch.setattr(WebSocket, "load_pump", load_pump)
        return f"python: {WHY}"
    if why := WebSocket(Tcp(1.0)).why_python():
        pytest.skip(why)
    return "compiled"
