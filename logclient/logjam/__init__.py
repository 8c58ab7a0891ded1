"""Logjam: requests as applications log them, and what else the importer takes.

::

    client = logclient.connect("logjam://logs.example.net/shop-production")
    logging.getLogger().addHandler(logclient.Handler(client=client))

    with client.request("Shop::OrdersController#create") as request:
        log.info("order %s", number)            # a line of this request
        with request.measure("db"):             # db_time, db_calls
            ...
        request.code = 201

One request is one document (docs/logjam.md). A line belongs to the innermost request of the context in
which it is logged: context variables carry a request into asyncio tasks, and into threads that run in a copy
of the context. A record that is logged outside of any request becomes a document of its own.

Nothing here raises into the application because of what it logged. Values that cannot be encoded are changed,
cut or left out, within the limits of ``document``.

`Subscriber` is the other side: it reads the messages that a device publishes. `MASKED` has the names, and
parts of names, of headers and parameters whose values are masked.
"""

from __future__ import annotations

from logclient.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logclient.logjam.agent import Agent as Agent
    from logclient.logjam.client import Client as Client
    from logclient.logjam.client import Pong as Pong
    from logclient.logjam.document import MASKED as MASKED
    from logclient.logjam.request import Request as Request
    from logclient.logjam.request import current as current
    from logclient.logjam.subscriber import Subscriber as Subscriber

__all__ = ["MASKED", "Agent", "Client", "Pong", "Request", "Subscriber", "current"]

_MODULES = {
    "MASKED": "document",
    "Agent": "agent",
    "Client": "client",
    "Pong": "client",
    "Request": "request",
    "Subscriber": "subscriber",
    "current": "request",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
