"""The client of ``logclient.connect("logjam://...")``."""

from __future__ import annotations

from typing import NamedTuple

from logclient import client
from logclient.config.common import Config
from logclient.logjam.agent import Agent, AgentMethods
from logclient.logjam.config import LogjamConfig
from logclient.logjam.document import MASKED

__all__ = ["Client", "Pong"]


class Pong(NamedTuple):
    """A device's answer to a ping.

    Attributes:
        host: the name of the device; None if it refused the ping as a bad request.
        seconds: the time from handing the ping to ZeroMQ to the answer.
    """

    host: str | None
    seconds: float


class Client(AgentMethods[int], client.Client):
    """The client of ``logclient.connect("logjam://...")``; an `Agent` makes its documents.

    ``send`` and ``submit`` take documents as mappings or as bytes. A mapping without ``started_at`` gets the
    current time. Bytes are sent unchanged. A text becomes a document with one line.

    Attributes:
        agent: the agent of this client.
    """

    def _documents(self, config: Config) -> Agent:
        assert isinstance(config, LogjamConfig)
        sink = self.sink
        self.agent = Agent(
            sink.ship,
            config.path[1:],
            zone=config.zone,
            fields=config.fields,
            mask=(*MASKED, *config.mask),
            max_event_bytes=config.max_event_bytes,
            own_ids=config.identity != "id",
            reporter=sink.log,
            lost=sink.lost,
            moved=lambda fields: sink.count_changed(0, fields),
        )
        self.line_encoder = self.agent.line_encoder()
        # Where the id goes in a document, which depends on its topic, and where names that conflict go.
        names = {"carriers": ("request_id", "uuid"), "labels": "labels_"}
        self._encoder_options = {**names, "ecs": False, "complete": self.agent.complete}
        return self.agent

    def ping(self, timeout: float = 5.0) -> Pong:
        """Ask the device for a sign of life, after everything sent before.

        Args:
            timeout: seconds to wait for the answer.

        Returns:
            The device's name, and the seconds until the answer.

        Raises:
            ConnectFailed: no answer within `timeout` seconds, or no connection.
            ValueError: the URL is that of a PUSH socket, which never answers.
        """
        return self.pong(*self._peer.request("ping", None, timeout))

    pong = Pong  # for `AsyncClient`
