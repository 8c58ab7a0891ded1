"""Options of the protocols whose documents are those of ECS."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from logclient.config import readers
from logclient.config.common import Config
from logclient.config.option import option
from logclient.errors import ConfigError

proxy_option = partial(
    option,
    # The value is not shown: it may be a proxy with its password.
    readers.choice("env", "none", instead="it is in http_proxy, with TLS in https_proxy"),
    help="env: through the HTTP proxy of the environment (http_proxy, with TLS https_proxy; no_proxy), but "
    "never to this machine; none: directly.",
)


class DocumentConfig(Config):
    """The configuration of a client with ECS documents."""

    changeable = (*Config.changeable, "fields", "service", "environment", "tags", "enrich", "redact")
    timestamp: bool = False
    """Whether mappings and texts without an @timestamp get one: an option of Lumberjack."""

    format: str = option(
        readers.choice("ecs", "ecs_dotted", "logstash", "otel", "gelf", "json"),
        "ecs",
        "Form of the documents: ecs, ecs_dotted (the same with the dots in its names, as in "
        "log.origin.function), logstash (its version 1), otel (the log data model of OpenTelemetry), gelf, "
        "or json (flat). See events.md.",
    )
    fields: dict[str, Any] = option(
        readers.fields,
        "",
        "Fields of every event, by name; in a URL a JSON object. An event's own field of the same name wins. "
        "See fields.md.",
        shown="none",
    )
    service: str | None = option(
        readers.optional(readers.text),
        "none",
        "Name of the service: the field service.name.",
        variable=True,
    )
    environment: str | None = option(
        readers.optional(readers.text),
        "none",
        "Where it runs, such as production: the field service.environment.",
        variable=True,
    )
    tags: tuple[str, ...] = option(
        readers.names, "", "Words to find the events by: the field tags, a list.", shown="none"
    )
    rename: dict[str, str] = option(
        readers.rename,
        "",
        "Names of fields, and the names that they get, such as user=user.name,host=host.name. See fields.md.",
        shown="none",
    )
    extra_prefix: str = option(
        readers.prefix,
        "",
        "The object for the fields of extra, but for those of rename; empty: they are at the top. See "
        "fields.md.",
        shown="empty",
    )
    redact: tuple[str, ...] = option(
        readers.redacted,
        "",
        "Names of fields whose values are replaced by [redacted], at any depth, in addition to the default "
        "ones: the last part of a field's name, letters in either case, * for any characters. With none "
        "among them there are no default ones. See filters.md.",
        shown="password, token, cookie and others",
    )
    redact_text: tuple[str, ...] = option(
        readers.patterns,
        "",
        "Regular expressions: what they find in any text of an event becomes [redacted]; in a URL one "
        "expression. Each event costs several times as much.",
        shown="none",
    )
    before_send: Callable[[dict[str, Any]], Any] | None = option(
        readers.optional(readers.function),
        "none",
        "A function that gets each document as a dict before it is sent, and returns the one to send, or "
        "None to hold it back. A keyword only; in dictConfig ext://module.name. See filters.md.",
    )
    formatter_json: bool = option(
        readers.boolean,
        "false",
        "Send text that a Handler's formatter returns as the event itself, if it is a JSON object; false: it "
        "is the message.",
    )
    enrich: tuple[str, ...] = option(
        readers.words("host", "container", "kubernetes"),
        "none",
        "What every event says about its place: host, container and kubernetes, with commas between them, or "
        "all. It is read once. See fields.md.",
    )
    strict_spec: bool = option(
        readers.boolean,
        "false",
        "Follow the protocol's text where released servers differ from it.",
    )
    opentelemetry: bool = option(
        readers.boolean,
        "false",
        "Give every event that is made while a span of OpenTelemetry is active trace.id and span.id, and "
        "without the option service also what the span's resource says about its service. See "
        "opentelemetry.md.",
    )

    @classmethod
    def complete(cls, scheme: str, values: dict[str, Any], given: set[str]) -> None:
        """Check that the documents' form fits the other options."""
        super().complete(scheme, values, given)
        prefix = values["extra_prefix"]
        if prefix and any(place.startswith(f"{prefix}.") for place in values["rename"].values()):
            raise ConfigError("rename: must not give a name below extra_prefix")
        if values["format"] in ("ecs", "ecs_dotted"):
            return
        for name, value in (("identity", "own"), ("trust", "metadata"), ("frames", "data")):
            if values.get(name) == value:
                raise ConfigError(f"{name}: {value} needs format=ecs")

    @property
    def ledger_fields(self) -> dict[str, str]:
        """The service, and its version."""
        said = {
            "service": self.service or self.fields.get("service.name"),
            "service_version": self.fields.get("service.version"),
        }
        return {name: text for name, text in said.items() if isinstance(text, str) and text}

    @property
    def encoder_options(self) -> dict[str, Any]:
        return {"redact": self.redact, "nested": self.format != "ecs_dotted"}
