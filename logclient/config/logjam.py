"""Options of Logjam."""

from __future__ import annotations

from typing import Any

from logclient.config.common import Config
from logclient.config.option import option, redeclared
from logclient.config.readers import choice, curve_key, duration, integer, names, optional, secret, size, text
from logclient.config.secrets import Secret
from logclient.errors import ConfigError

__all__ = ["LogjamConfig"]


class LogjamConfig(Config):
    """The configuration of a Logjam client."""

    title = "Logjam"

    max_event_bytes: int = option(
        size(64, (64 << 20) - 64),
        "8MiB",
        "An encoded event longer than this fails as too_large; servers cannot take more than 64 MiB.",
    )
    mode: str = option(
        choice("request", "async"),
        "request",
        "request: the server answers each message, and it is acked; async: it is handed.",
        shown="request (logjam+push: async)",
    )
    topic: str = option(
        text,
        "",
        "Topic of events that are of no other; <app>-<env> is the path of the URL.",
        shown="logs.<app>.<env>",
    )
    inflight: int = option(
        integer(1, 65536),
        "256",
        "Requests without a reply at one time.",
    )
    compression: str = option(
        choice("auto", "none", "zlib", "snappy", "lz4"),
        "auto",
        "Of bodies from compress_over on; auto: the first of snappy, lz4 and zlib that goes without the GIL "
        "here; see logjam.md.",
    )
    compress_over: int = option(
        size(0, 64 << 20),
        "1KiB",
        "Shorter bodies are not compressed.",
    )
    slow_min: float = redeclared(Config, "slow_min", tls_only=False)
    slow_max: float = redeclared(Config, "slow_max", tls_only=False)
    hwm: int = option(
        integer(1, 10_000_000),
        "1000",
        "Messages that ZeroMQ takes and holds for one connection; what it holds is lost with that, or "
        "(requests) sent again.",
    )
    heartbeat: float = option(
        duration(0, 3600),
        "0",
        "Time between two of ZeroMQ's own pings; a connection without an answer to two of them is dropped; "
        "0: none.",
    )
    curve_server: str | None = option(
        optional(curve_key),
        "none",
        "The server's public CURVE key, 40 characters of Z85: encrypted, and only with that server.",
    )
    curve_secret: Secret | None = option(
        secret,
        None,
        "Our own secret CURVE key, 40 characters of Z85, for servers that know their clients.",
        shown="a new one for each process",
    )
    zone: str | None = option(
        optional(text),
        "none",
        "Time zone of the importer, as in Europe/Berlin: it reads started_at as its own local time.",
        shown="this machine's",
    )
    host_name: str | None = option(
        optional(text),
        "none",
        "What documents say of where they were made.",
        shown="this machine's",
    )
    cluster: str | None = option(optional(text), "none", "The same.")
    datacenter: str | None = option(optional(text), "none", "The same.")
    namespace: str | None = option(optional(text), "none", "The same.")
    revision: str | None = option(optional(text), "none", "The same.")
    mask: tuple[str, ...] = option(
        names,
        "",
        "More parts of names, with commas between them, = before a whole name: values of headers and "
        "parameters with such a name are masked, besides those with password, token and the like.",
    )

    @classmethod
    def complete(cls, scheme: str, values: dict[str, Any], given: set[str]) -> None:
        """Check the keys, and choose the mode of a PUSH socket.

        Raises:
            ConfigError: Options contradict each other.
        """
        super().complete(scheme, values, given)
        if values["curve_secret"] is not None and values["curve_server"] is None:
            raise ConfigError("curve_secret: needs curve_server")
        if scheme == "logjam+push" and "mode" not in given:
            values["mode"] = "async"
