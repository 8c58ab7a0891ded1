"""Options of Logjam."""

from __future__ import annotations

from typing import Any, ClassVar

from logclient.config import readers
from logclient.config.common import Config
from logclient.config.option import Option, option
from logclient.config.readers import choice, curve_key, integer, names, optional, secret, size, text
from logclient.config.secrets import Secret
from logclient.errors import ConfigError


class LogjamConfig(Config):
    """The configuration of a Logjam client."""

    title = "Logjam"
    compress_over: ClassVar[int] = 1024
    """Bytes: shorter bodies are not compressed."""

    max_event_bytes: int = option(
        size(64, (64 << 20) - 64),
        "8MiB",
        "Largest size of an encoded event; a longer one fails as too_large. Servers cannot take more than "
        "64 MiB.",
    )
    mode: str = option(
        choice("request", "async"),
        "request",
        "request: the server answers each message, and events are acked; async: it does not, and events are "
        "handed.",
        shown="request (logjam+push: async)",
    )
    topic: str = option(
        text,
        "",
        "Topic of events that name none; <app>-<env> is the path of the URL.",
        shown="logs.<app>.<env>",
    )
    inflight: int = option(
        integer(1, 65536),
        "256",
        "Largest number of requests without a reply. By default it follows the round trip; see logjam.md. "
        "A value fixes it.",
        shown="256 to 960",
    )
    compression: str = option(
        choice("auto", "none", "zlib", "snappy", "lz4"),
        "auto",
        "How bodies from 1 KiB on are compressed; auto: the first of snappy, lz4 and zlib that runs "
        "without the GIL here. See logjam.md.",
    )
    hwm: int = option(
        integer(1, 10_000_000),
        "1000",
        "High-water mark: the number of messages that ZeroMQ holds for one connection. When the connection "
        "breaks, they are lost or (requests) sent again.",
    )
    curve_server: str | None = option(
        optional(curve_key),
        "none",
        "The server's public CURVE key, 40 characters of Z85. It encrypts the connection, which then goes "
        "only to that server.",
    )
    curve_secret: Secret | None = option(
        secret,
        None,
        "The client's secret CURVE key, 40 characters of Z85, for servers that know their clients.",
        shown="a new one for each process",
    )
    zone: str | None = option(
        optional(text),
        "none",
        "Time zone of the importer, such as Europe/Berlin, which reads started_at as its local time.",
        shown="this machine's",
    )
    fields: dict[str, Any] = option(
        readers.fields,
        "",
        "Fields of every document that is made here, by name; in a URL a JSON object. Importers know "
        "cluster, datacenter, namespace, revision, and host, which is this machine's name by default.",
        shown="none",
    )
    mask: tuple[str, ...] = option(
        names,
        "",
        "Further parts of names, separated by commas; = before a whole name. Values of headers and "
        "parameters with such names are masked, in addition to password, token and similar ones.",
    )

    @classmethod
    def refusal(cls, option: Option, scheme: str) -> str:
        """Refuse to truncate: a document has many texts, and none is its message."""
        if option.name == "truncate":
            return "only for documents with a message, which those of Logjam do not have"
        return super().refusal(option, scheme)

    @classmethod
    def complete(cls, scheme: str, values: dict[str, Any], given: set[str]) -> None:
        super().complete(scheme, values, given)
        if values["curve_secret"] is not None and values["curve_server"] is None:
            raise ConfigError("curve_secret: needs curve_server")
        if scheme == "logjam+push" and "mode" not in given:
            values["mode"] = "async"

    @property
    def ledger_fields(self) -> dict[str, str]:
        """The application, and the mode: without replies, no order is promised."""
        return {"service": self.path[1:].rpartition("-")[0], "mode": self.mode}
