"""The client of ``logclient.connect("logjam://...")``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from logclient import client
from logclient.config import Config
from logclient.config.logjam import LogjamConfig
from logclient.delivery.engine import Engine
from logclient.logjam.agent import Agent
from logclient.logjam.document import MASKED
from logclient.logjam.request import Request

__all__ = ["Client", "Pong"]


class Pong(NamedTuple):
    """A device's answer to a ping."""

    host: str | None
    """What it calls itself; None: it did not take our ping for one."""
    seconds: float
    """From the ping's way into ZeroMQ to its answer."""


class Client(client.Client):
    """The client of ``logclient.connect("logjam://...")``; an `Agent` makes its documents.

    ``send`` and ``submit`` take documents: mappings, which get the time of the call where they say no
    ``started_at``, and bytes as they are; a text becomes a document with one line.
    """

    agent: Agent = client.UNMADE

    def _promise(self, config: Config) -> dict[str, str]:
        """Whether messages are answered: else nobody promised an order."""
        assert isinstance(config, LogjamConfig)
        return {"mode": config.mode}

    def _documents(self, config: Config, engine: Engine) -> Agent:
        assert isinstance(config, LogjamConfig)
        put, lost = client.outlets(engine)
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
            reporter=engine.reporter,
            lost=lost,
            moved=lambda count: engine.handoff.count_changed(0, count),
        )
        return self.agent

    def _names(self, config: Config) -> dict[str, Any]:
        """A document carries its id in one of two fields, by its topic, which not everybody sees; names
        have no dots there."""
        names: dict[str, Any] = {"carriers": ("request_id", "uuid"), "ecs": False, "labels": "labels_"}
        return {**names, "complete": self.agent.complete}

    def request(self, action: object = None, **given: Any) -> Request:
        """A request that begins now; see ``Agent.request``."""
        return self.agent.request(action, **given)

    def event(self, label: object, **fields: Any) -> int:
        """Something that happened to the whole application; see ``Agent.event``. Its sequence."""
        return int(self.agent.event(label, **fields))

    def page(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> int:
        """How long a browser took for a page; see ``Agent.page``. Its sequence."""
        return int(self.agent.page(request_id, timings, action=action, **fields))

    def ajax(self, request_id: str, timings: Sequence[int] | str, *, action: object, **fields: Any) -> int:
        """How long a browser waited for a request of a page; see ``Agent.ajax``. Its sequence."""
        return int(self.agent.ajax(request_id, timings, action=action, **fields))

    def javascript(self, description: object, **fields: Any) -> int:
        """An error in a browser's script; see ``Agent.javascript``. Its sequence."""
        return int(self.agent.javascript(description, **fields))

    def mobile(self, **fields: Any) -> int:
        """What a mobile application reports; see ``Agent.mobile``. Its sequence."""
        return int(self.agent.mobile(**fields))

    def ping(self, timeout: float = 5.0) -> Pong:
        """Ask the device for a sign of life, in line with what is sent already.

        Raises:
            ConnectFailed: no answer within `timeout` seconds, or no connection.
            ValueError: nothing comes back on a PUSH socket.
        """
        return self.pong(*self._engine.call("ping", None, timeout))

    @staticmethod
    def pong(answer: Any, seconds: float) -> Pong:
        """What ``ping`` returns, of an answer and the time that it took."""
        return Pong(answer, seconds)
