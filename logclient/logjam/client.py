"""The client of ``logclient.connect("logjam://...")``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from logclient import client
from logclient.config import Config
from logclient.delivery.engine import Engine
from logclient.logjam.agent import Agent
from logclient.logjam.config import LogjamConfig
from logclient.logjam.document import MASKED
from logclient.logjam.request import Request

__all__ = ["Client", "Pong"]


class Pong(NamedTuple):
    """A device's answer to a ping."""

    host: str | None
    """The name of the device, or None if it called the ping a bad request."""
    seconds: float
    """From the hand-over of the ping to ZeroMQ to its answer."""


class Client(client.Client):
    """The client of ``logclient.connect("logjam://...")``; an `Agent` makes its documents.

    ``send`` and ``submit`` take documents: mappings, which get the current time unless they have a
    ``started_at``, and bytes, which are sent unchanged. A text becomes a document with one line.
    """

    agent: Agent = client.UNMADE

    def _ledger_metadata(self, config: Config) -> dict[str, str]:
        """Return the mode for the ledger: without replies, no order is promised."""
        assert isinstance(config, LogjamConfig)
        return {"mode": config.mode}

    def _documents(self, config: Config, engine: Engine) -> Agent:
        assert isinstance(config, LogjamConfig)
        put, lost = client.make_sink(engine)
        self.agent = Agent(
            put,
            config.path[1:],
            zone=config.zone,
            host=config.host_name,
            cluster=config.cluster,
            datacenter=config.datacenter,
            namespace=config.namespace,
            revision=config.revision,
            mask=(*MASKED, *config.mask),
            max_event_bytes=config.max_event_bytes,
            own_ids=config.identity != "id",
            reporter=engine.error_log,
            lost=lost,
            moved=lambda count: engine.queue.count_changed(0, count),
        )
        return self.agent

    def _encoder_options(self, config: Config) -> dict[str, Any]:
        """Return where the id and conflicting names go in a document.

        A document has its id in one of two fields, depending on its topic. Names must not contain dots.
        """
        names: dict[str, Any] = {"carriers": ("request_id", "uuid"), "ecs": False, "labels": "labels_"}
        return {**names, "complete": self.agent.complete}

    def request(self, action: object = None, **given: Any) -> Request:
        """Begin a request; see ``Agent.request``."""
        return self.agent.request(action, **given)

    def event(self, label: object, **fields: Any) -> int:
        """Ship an event of the whole application; see ``Agent.event``. Returns its sequence."""
        return int(self.agent.event(label, **fields))

    def page(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> int:
        """Ship the timings of a page in a browser; see ``Agent.page``. Returns the sequence."""
        return int(self.agent.page(request_id, timings, action=action, **fields))

    def ajax(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> int:
        """Ship how long a browser waited for a request; see ``Agent.ajax``. Returns the sequence."""
        return int(self.agent.ajax(request_id, timings, action=action, **fields))

    def javascript(self, description: object, **fields: Any) -> int:
        """Ship an error in a browser's script; see ``Agent.javascript``. Returns the sequence."""
        return int(self.agent.javascript(description, **fields))

    def mobile(self, **fields: Any) -> int:
        """Ship a report of a mobile application; see ``Agent.mobile``. Returns the sequence."""
        return int(self.agent.mobile(**fields))

    def ping(self, timeout: float = 5.0) -> Pong:
        """Ask the device for an answer, behind everything that was sent already.

        Raises:
            ConnectFailed: there is no answer within `timeout` seconds, or no connection.
            ValueError: the URL is that of a PUSH socket, which never answers.
        """
        return self.pong(*self._engine.request("ping", None, timeout))

    @staticmethod
    def pong(answer: Any, seconds: float) -> Pong:
        """Return the result of ``ping``, for an answer and the seconds that it took."""
        return Pong(answer, seconds)
