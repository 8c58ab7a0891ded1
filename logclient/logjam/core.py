"""Logjam: the client without I/O.

States of a connection, for a client that asks for replies::

    state     waiting for    encode            reply to the oldest          any other reply
    IDLE      0              -> WAITING        --                           broken
    WAITING   1 .. limit-1   -> WAITING, FULL  202: acked; 400: rejected    broken
    FULL      limit          refused           -> WAITING, IDLE             broken
    BROKEN    as it was      refused           ignored                      ignored

    connected: any -> IDLE          connection_lost: any -> IDLE, the requests are forgotten

A reply names its app-env and nothing else, so replies are matched first in, first out. After any doubt the
connection is dropped, and its requests are sent again on the next one. ``mode=async`` and
``logjam+push`` ask for no reply: an event is ``handed`` once ZeroMQ has taken it.

=========  ======================================  ==================
nibble     topic                                   field with the id
=========  ======================================  ==================
0          option ``topic``: ``logs.<app>.<env>``  ``request_id``
1          ``events.<app>.<env>``                  ``uuid``
2          ``frontend.page``                       ``uuid``
3          ``frontend.ajax``                       ``uuid``
4          ``javascript.<app>.<env>``              ``uuid``
5          ``mobile``                              ``uuid``
=========  ======================================  ==================

The nibble is the high one of an event's kind. A field that the user has filled is not changed.

``logclient._ext.logjam`` does the work. `Logjam` chooses its options, and asks and answers pings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from logclient._ext.logjam import Codec
from logclient.delivery.contract import Core, CoreEvent, Reply
from logclient.errors import ConfigError
from logclient.logjam.config import LogjamConfig
from logclient.logjam.messages import COMPRESSIONS

TOPICS = ("logs", "events", "frontend.page", "frontend.ajax", "javascript", "mobile")
"""The beginnings of topics, by the nibble in an event's kind."""

LOGS, EVENTS, PAGE, AJAX, JAVASCRIPT, MOBILE = range(6)
"""These nibbles."""

AUTO = ("snappy", "lz4", "zlib")
"""Choices of ``compression=auto``: the first that works without the GIL, as linked libraries do, or if there
is none, the first that is installed."""

_LEVEL = 3  # of zlib
_APP_ENV = re.compile(r"\w[\w-]{0,254}", re.ASCII)
_TOPIC = re.compile(r"[\w-]+(?:\.[\w-]+)*", re.ASCII)


def split_app_env(app_env: str) -> tuple[str, str]:
    """Split an app-env at its last dash into application and environment; ConfigError: it breaks a rule.

    The device demands printing ASCII and a dash, and both texts of the protocol say letters. All of them
    accept digits, underscores and, in the application, dashes.
    """
    app, dash, env = app_env.rpartition("-")
    if not dash or not app or not env:
        raise ConfigError("app-env: <app>-<env>, as in logjam://host/shop-production")
    if not _APP_ENV.fullmatch(app_env):
        raise ConfigError("app-env: up to 255 letters, digits, underscores and dashes, a dash not first")
    return app, env


def _checked_topic(topic: str) -> str:
    start = next((name for name in TOPICS if topic == name or topic.startswith(f"{name}.")), None)
    if start is None:
        # The device answers 202 to a request with any other topic, and drops it.
        raise ConfigError(
            f"topic: one of {', '.join(TOPICS)}, with words behind it, as in logs.shop.production"
        )
    if len(topic) > 1000 or not _TOPIC.fullmatch(topic):
        raise ConfigError("topic: words of letters, digits, underscores and dashes with a dot between them")
    return topic


def _best(codec: Callable[[str], Codec]) -> Codec:
    installed = []
    for name in AUTO:
        try:
            made = codec(name)
        except ValueError:
            continue
        if not made.holds_gil:
            return made
        installed.append(made)
    return installed[0]  # zlib is always installed


class Logjam(Core):
    """The client's side of one connection at a time. See ``delivery.contract.Core``."""

    def __init__(self, config: LogjamConfig, producer: bytes) -> None:
        app_env = config.path[1:]
        app, env = split_app_env(app_env)
        own = f"{app}.{env}"
        topics = [_checked_topic(config.topic or f"logs.{own}")]
        topics += [f"{name}.{own}" if name in ("events", "javascript") else name for name in TOPICS[1:]]
        self._push = config.scheme == "logjam+push"
        if self._push and config.mode != "async":
            raise ConfigError("mode: logjam+push is async only: nothing comes back on such a socket")

        def codec(compression: str) -> Codec:
            return Codec(
                producer,
                app_env.encode(),
                [topic.encode() for topic in topics],
                request=config.mode == "request",
                inflight=config.inflight,
                compression=COMPRESSIONS.index(compression),
                level=_LEVEL,
                compress_over=config.compress_over,
                identity=config.identity != "none",
                check=config.check,
                silence=config.silence,
                adaptive="inflight" not in config.given,
            )

        try:
            made = _best(codec) if config.compression == "auto" else codec(config.compression)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        super().__init__(made)
        self._now = 0.0
        self._token = 0
        self._asked: list[int] = []  # tokens of pings without a reply

    def _reset(self) -> None:
        super()._reset()
        self._asked.clear()  # pings are not sent again

    def sample_clocks(self, now: float) -> None:
        """See ``delivery.contract.Core``. A ping begins the wait for an answer then."""
        self._now = now

    def call(self, kind: str, payload: Any = None) -> int:
        """Send a ping. The payload of its ``Reply`` is the server's name, or None for a bad request."""
        if kind != "ping":
            return super().call(kind, payload)
        if self._push:
            raise ValueError("call: nothing comes back on a PUSH socket")
        self._codec.ping(self._now)
        self._token += 1
        self._asked.append(self._token)
        return self._token

    def _read_events(self) -> Iterator[CoreEvent]:
        for host in self._codec.pongs():
            name = None if host is None else host.decode("utf-8", "backslashreplace")
            yield Reply(self._asked.pop(0), name)
