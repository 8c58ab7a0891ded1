"""Logux: the core's events besides outcomes, as payloads of ``Inbound``."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Action", "DebugText", "Headers", "Opened", "Received", "Undone"]


class Action(NamedTuple):
    """An action from the server. In ``meta``, ``id`` is a text and ``time`` is in ms of this host's clock."""

    action: dict[str, Any]
    meta: dict[str, Any]


class Headers(NamedTuple):
    """The headers of the server. They replace all earlier ones."""

    data: dict[str, Any]


class DebugText(NamedTuple):
    """A text for developers, sent by a server in development mode."""

    text: str


class Opened(NamedTuple):
    """The server has accepted the connection. It knows nothing of earlier connections."""

    server_id: str


class Received(NamedTuple):
    """Every action of the server up to this ``added`` has arrived and was reported."""

    added: int | float


class Undone(NamedTuple):
    """The server has undone an action of ours, finally: the ``logux/undo`` as it was sent."""

    seq: int
    action: dict[str, Any]
    meta: dict[str, Any]
