"""Options of the protocols whose documents are those of ECS."""

from __future__ import annotations

from typing import Any

from logclient.config.common import Config
from logclient.config.option import option
from logclient.config.readers import boolean, fields, names, optional, text, words

__all__ = ["DocumentConfig"]


class DocumentConfig(Config):
    """The configuration of a client with ECS documents."""

    fields: dict[str, Any] = option(
        fields,
        "",
        "Fields of every event, by name; in a URL a JSON object. An event's own field of the same name wins. "
        "See fields.md.",
        shown="none",
    )
    service: str | None = option(
        optional(text),
        "none",
        "Name of the service: the field service.name.",
    )
    environment: str | None = option(
        optional(text),
        "none",
        "Where it runs, such as production: the field service.environment.",
    )
    tags: tuple[str, ...] = option(
        names,
        "",
        "Words to find the events by: the field tags, a list.",
        shown="none",
    )
    formatter_json: bool = option(
        boolean,
        "false",
        "Send text that a Handler's formatter returns as the event itself, if it is a JSON object; false: it "
        "is the message.",
    )
    enrich: tuple[str, ...] = option(
        words("host", "container", "kubernetes"),
        "none",
        "What every event says about its place: host, container and kubernetes, with commas between them, or "
        "all. It is read once. See fields.md.",
    )
    opentelemetry: bool = option(
        boolean,
        "false",
        "Give every event that is made while a span of OpenTelemetry is active trace.id and span.id, and "
        "without the option service also what the span's resource says about its service. See "
        "opentelemetry.md.",
    )
