"""The keywords of ``connect``, ``Handler`` and ``AsyncClient``, for type checkers and editors.

Made from the options in logclient/config by ``python -m tools.options``; do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Literal, TypedDict

from logclient.config.secrets import Secret

__all__ = ["Options"]


class Options(TypedDict, total=False):
    """The keywords of ``connect``, ``Handler`` and ``AsyncClient``, one for each option.

    None means the default. A duration is a number of seconds, or text such as ``200ms`` or ``5m``. A size is
    a number of bytes, or text such as ``64KiB``. docs/options.md describes each option, and has its default.
    """

    max_events: int | None
    max_bytes: int | str | None
    max_event_bytes: int | str | None
    truncate: bool | None
    error_fingerprint: bool | None
    sample: str | Mapping[str, float] | None
    rate_limit: int | None
    dedupe: float | str | None
    sample_by: Literal["record", "trace"] | None
    hold_below: int | str | None
    overflow: str | None
    keep_level: int | str | None
    identity: Literal["id", "own", "none"] | None
    check: bool | None
    connect_timeout: float | str | None
    silence: float | str | None
    progress_timeout: float | str | None
    backoff_max: float | str | None
    max_age: float | str | None
    on_delivery: Callable[..., Any] | None
    on_drop: Callable[..., Any] | None
    fallback: str | PathLike[str] | None
    on_error: Callable[..., Any] | None
    timeout: float | str | None
    atexit_timeout: float | str | None
    linger: float | str | None
    spool: str | PathLike[str] | None
    spool_mode: Literal["overflow", "always"] | None
    spool_sync: Literal["none", "interval", "batch"] | None
    spool_bytes: int | str | None
    spool_age: float | str | None
    ledger: str | PathLike[str] | None
    ca: str | PathLike[str] | None
    cert: str | PathLike[str] | None
    key: str | PathLike[str] | None
    tls_password: str | Secret | Callable[[], str] | None
    server_name: str | None
    verify: Literal["full", "none"] | None
    format: Literal["ecs", "ecs_dotted", "logstash", "otel", "gelf", "json"] | None
    fields: str | Mapping[str, Any] | None
    service: str | None
    environment: str | None
    tags: str | list[str] | tuple[str, ...] | str | None
    rename: str | Mapping[str, str] | None
    extra_prefix: str | None
    redact: str | list[str] | tuple[str, ...] | None
    redact_text: str | list[str] | tuple[str, ...] | None
    before_send: Callable[..., Any] | None
    formatter_json: bool | None
    enrich: str | list[str] | tuple[str, ...] | None
    strict_spec: bool | None
    opentelemetry: bool | None
    window: int | None
    inflight: int | None
    compression: int | Literal["auto", "none", "zlib", "snappy", "lz4"] | None
    version: int | None
    frames: Literal["json", "data"] | None
    timestamp: bool | None
    balance: bool | None
    proxy: Literal["env", "none"] | None
    trust: Literal["none", "metadata"] | None
    metadata: str | Mapping[str, str] | None
    mode: Literal["request", "async"] | None
    topic: str | None
    hwm: int | None
    curve_server: str | None
    curve_secret: str | Secret | Callable[[], str] | None
    zone: str | None
    mask: str | list[str] | tuple[str, ...] | None
    event_type: str | None
    mtu: int | None
    unboxed: bool | None
    pace: int | None
    pace_bytes: int | str | None
    feedback: Literal["none", "auto", "stat"] | None
    user: str | None
    subprotocol: int | str | None
    action_type: str | None
    ack: Literal["processed", "synced"] | None
    on_doubt: Literal["new_client", "same", "drop"] | None
    ping: float | str | None
    processing_timeout: float | str | None
    deflate: Literal["off", "on"] | None
    http_headers: str | Mapping[str, str | Secret | Callable[[], str]] | None
    state: str | PathLike[str] | None
    token: str | Secret | Callable[[], str] | None
