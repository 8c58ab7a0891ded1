"""Logux: actions in both directions, headers, and the state of the connection.

::

    with logclient.connect("logux://127.0.0.1:31337", user="10", token="env:TOKEN") as client:
        client.send({"message": "hello"})                   # data of a log/add action
        client.add({"type": "chat/add", "text": "hi"}).result(5.0)
        client.on("chat/add", lambda action, meta: print(action["text"]))
        client.headers = {"locale": "fr"}
        client.state, client.node_id, client.ping().seconds

``send`` puts an event into an action: ``{"type": "log/add", "data": <the event>, "id": <its id>}``. A log
record travels in the same way, as the ECS document that other protocols ship. ``add`` sends a whole action.

Keep a reference to the client while you listen: a client without references delivers what it has, and ends.
"""

from __future__ import annotations

from logclient.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logclient.logux.client import Client as Client
    from logclient.logux.client import Pong as Pong

__all__ = ["Client", "Pong"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "client"))
