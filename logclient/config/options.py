"""The keywords of ``connect``, ``Handler`` and ``AsyncClient``, for type checkers and editors.

Made from the options in logclient/config by ``python -m tools.options``; do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Literal, TypedDict

from logclient.config import Secret

__all__ = ["Options"]


class Options(TypedDict, total=False):
    """The keywords of ``connect``, ``Handler`` and ``AsyncClient``, one for each option.

    None means the default. A duration is a number of seconds, or text such as ``200ms`` or ``5m``. A size is
    a number of bytes, or text such as ``64KiB``. docs/options.md describes each option.
    """

    max_events: int | None
    """Largest number of events held: queued, in flight or kept for a resend. Default: 250000."""
    max_bytes: int | str | None
    """Largest size of the events held, in bytes. Default: 64MiB."""
    max_event_bytes: int | str | None
    """Largest size of an encoded event; a longer one fails as too_large. Default: 1MiB. Logjam: Largest size
    of an encoded event; a longer one fails as too_large. Default: 8MiB. plog: Largest size of an encoded
    event with its id, without tags; a longer one fails as too_large. Default: 256KiB."""
    truncate: bool | None
    """Cut and mark the message of an event that is too large, instead of failing the event. Default:
    false."""
    error_fingerprint: bool | None
    """Give log records with an exception an error.fingerprint, a hash of its type and functions, for
    grouping. Default: false."""
    sample: str | Mapping[str, float] | None
    """The share of a Handler's records that are sent, from 0 to 1, by level or by logger, such as
    DEBUG=0.1,shop.db=0.5 in a URL. Default: none."""
    rate_limit: int | None
    """Most records a second that a Handler sends of one message, before its arguments, and logger; 0: any
    number. Default: 0."""
    dedupe: float | str | None
    """How long a Handler holds back records with the same text, level and logger; 0: it does not. Default:
    0s."""
    overflow: Literal["drop_oldest", "drop_new", "block", "raise"] | None
    """What happens at a bound: drop_oldest, drop_new, block (callers wait in order) or raise (QueueFull from
    send; not in a Handler). Default: drop_new (Handler and other front ends of logs: drop_oldest; Writer,
    logclient send: block)."""
    block_timeout: float | str | None
    """How long overflow=block waits before the event is dropped; none: without limit. Default: none."""
    keep_level: int | str | None
    """Events of this level and above are dropped last; none: all levels are treated alike. Default: ERROR."""
    identity: Literal["id", "own", "none"] | None
    """id: each event carries its id; own: the application provides a unique id; none: events carry no id, and
    verify compares them as a multiset of hashes. Default: id."""
    check: bool | None
    """Check that raw bytes are one JSON object in UTF-8 before they are sent. Default: true."""
    connect_timeout: float | str | None
    """Longest time for one attempt to connect to one address. Default: 10s."""
    silence: float | str | None
    """The connection is closed when the server owes an answer and sends no byte for this time. Default:
    30s."""
    progress_timeout: float | str | None
    """The connection is closed when nothing is acknowledged for this time, even if keep-alives arrive.
    Default: 5m."""
    backoff_min: float | str | None
    """Upper bound of the first random wait before a new attempt to connect; it doubles with each attempt.
    Default: 100ms."""
    backoff_max: float | str | None
    """Largest upper bound of that wait. Default: 30s."""
    auth_backoff_min: float | str | None
    """TLS, Logjam, Logux: Upper bound of the first wait after rejected credentials (certificate, key or
    token); at least half of it is kept, the rest is random. Default: 30s."""
    auth_backoff_max: float | str | None
    """TLS, Logjam, Logux: Largest upper bound of that wait. Default: 5m."""
    max_age: float | str | None
    """Events that wait longer than this fail as max_age; none: no limit. Default: none."""
    poison: Literal["fail", "keep"] | None
    """What happens to an event on which the server ends its connections while it accepts others: fail (it
    fails as poison) or keep (it stays in quarantine and is tried again every few minutes). Default: fail."""
    on_delivery: Callable[..., Any] | None
    """A function that gets what became of events: a list of logclient.Settlement, some ten times a second at
    most. Default: none."""
    on_drop: Callable[..., Any] | None
    """A function that gets such a list of events that failed or were dropped. Default: none."""
    on_error: Callable[..., Any] | None
    """A function that gets each error of the client as text. Default: none."""
    flush_timeout: float | str | None
    """How long flush() waits by default. Default: 5s."""
    close_timeout: float | str | None
    """How long close() of a client waits by default. Default: 5s."""
    atexit_timeout: float | str | None
    """How long the end of the process waits for queued events. Default: 2s."""
    linger: float | str | None
    """The sender's pause between two looks at the queue while traffic flows. Default: 5ms."""
    spool: str | PathLike[str] | None
    """Directory in which events outlive the process; none: they are in memory only. Default: none."""
    spool_mode: Literal["overflow", "always"] | None
    """overflow: only events for which max_bytes has no room go to the spool; always: all of them. Default:
    overflow."""
    spool_sync: Literal["none", "interval", "batch"] | None
    """When the disk has what is spooled. Default: none."""
    spool_bytes: int | str | None
    """Largest size of the files that one process has in the spool; beyond it, overflow decides. Default:
    256MiB."""
    spool_age: float | str | None
    """Events that have waited longer in the spool are dropped as max_age. Default: 24h."""
    ledger: str | PathLike[str] | None
    """Directory of the ledger; none: no ledger. Default: none."""
    ca: str | PathLike[str] | None
    """TLS: Trusted certificate authorities: a PEM file, or a directory of such files. Default: the
    system's."""
    cert: str | PathLike[str] | None
    """TLS: The client's certificate, followed by intermediate ones: a PEM file. Default: none."""
    key: str | PathLike[str] | None
    """TLS: Private key of that certificate: a PEM file; none: the key is in the file of cert. Default:
    none."""
    tls_password: str | Secret | Callable[[], str] | None
    """TLS: Password of that key. Default: none."""
    server_name: str | None
    """TLS: Name or address that the server's certificate must contain. Default: the host of the URL."""
    verify: Literal["full", "none"] | None
    """TLS: full: check the server's certificate and name; none: accept any certificate, for tests only.
    Default: full."""
    format: Literal["ecs", "logstash", "otel", "gelf", "json"] | None
    """Lumberjack, Logux: Form of the documents: ecs, logstash (its version 1), otel (the log data model of
    OpenTelemetry), gelf, or json (flat). Default: ecs."""
    ecs_dotted: bool | None
    """Lumberjack, Logux: Keep the dots in the names of format=ecs, as in log.origin.function; false: write
    objects, as ecs-logging does. Default: false."""
    fields: str | Mapping[str, Any] | None
    """Lumberjack, Logux: Fields of every event, by name; in a URL a JSON object. Default: none."""
    service: str | None
    """Lumberjack, Logux: Name of the service: the field service.name. Default: none."""
    environment: str | None
    """Lumberjack, Logux: Where it runs, such as production: the field service.environment. Default: none."""
    tags: str | list[str] | tuple[str, ...] | str | None
    """Lumberjack, Logux: Words to find the events by: the field tags, a list. Default: none. plog: Further
    tags of each event, separated by commas. Default: none."""
    redact: str | list[str] | tuple[str, ...] | None
    """Lumberjack, Logux: Names of fields whose values are replaced by [redacted], at any depth: the last part
    of a field's name, letters in either case, * for any characters. Default: none."""
    redact_text: str | list[str] | tuple[str, ...] | None
    """Lumberjack, Logux: Regular expressions: what they find in any text of an event becomes [redacted]; in a
    URL one expression. Default: none."""
    before_send: Callable[..., Any] | None
    """Lumberjack, Logux: A function that gets each document as a dict before it is sent, and returns the one
    to send, or None to hold it back. Default: none."""
    formatter_json: bool | None
    """Lumberjack, Logux: Send text that a Handler's formatter returns as the event itself, if it is a JSON
    object; false: it is the message. Default: false."""
    enrich: str | list[str] | tuple[str, ...] | None
    """Lumberjack, Logux: What every event says about its place: host, container and kubernetes, with commas
    between them, or all. Default: none."""
    opentelemetry: bool | None
    """Lumberjack, Logux: Give every event that is made while a span of OpenTelemetry is active trace.id and
    span.id, and without the option service also what the span's resource says about its service. Default:
    false."""
    window: int | None
    """Lumberjack: Largest number of events in a window. Default: 2048. Logux: Largest number of actions in a
    sync message. Default: 100."""
    window_bytes: int | str | None
    """Lumberjack: Largest size of the events in a window, uncompressed and without ids; a longer event is
    sent alone. Default: 1MiB. Logux: Largest size of the actions in a sync message, without ids; a longer
    action is sent alone. Default: 256KiB."""
    inflight: int | None
    """Lumberjack: Largest number of windows that are sent and not yet acknowledged. Default: 2 to 16. Logjam:
    Largest number of requests without a reply. Default: 256. Logux: Largest number of sync messages whose
    actions have no outcome yet. Default: 4."""
    compression: int | Literal["auto", "none", "zlib", "snappy", "lz4"] | None
    """Lumberjack: Level of zlib; 0 sends uncompressed frames. Default: 3. Logjam: How bodies from
    compress_over on are compressed; auto: the first of snappy, lz4 and zlib that runs without the GIL here.
    Default: auto."""
    version: int | None
    """Lumberjack: Protocol version: 2 sends JSON frames, 1 sends pairs of strings. Default: 2."""
    frames: Literal["json", "data"] | None
    """Lumberjack: json, or data (pairs of strings). Default: json (version=1: data)."""
    strict_spec: bool | None
    """Lumberjack: Follow the protocol's text where released servers differ from it; see lumberjack.md.
    Default: false. Logux: Follow the protocol's text where released servers differ from it; see logux.md.
    Default: false."""
    timestamp: bool | None
    """Lumberjack: Give mappings and texts without an @timestamp the time of their call. Default: true."""
    balance: bool | None
    """Lumberjack: true: connect to all servers of the URL at the same time, and send each window where the
    fewest bytes are in flight; see lumberjack.md. Default: false."""
    trust: Literal["none", "metadata"] | None
    """Lumberjack: metadata: send the application's @metadata, except its _id; none: leave it out. Default:
    none."""
    mode: Literal["request", "async"] | None
    """Logjam: request: the server answers each message, and events are acked; async: it does not, and events
    are handed. Default: request (logjam+push: async)."""
    topic: str | None
    """Logjam: Topic of events that name none; <app>-<env> is the path of the URL. Default: logs.<app>.<env>.
    plog: Kafka topic of each event (tag kt:). Default: the server's."""
    compress_over: int | str | None
    """Logjam: Shorter bodies are not compressed. Default: 1KiB."""
    hwm: int | None
    """Logjam: High-water mark: the number of messages that ZeroMQ holds for one connection. Default: 1000."""
    heartbeat: float | str | None
    """Logjam: Interval of ZeroMQ's own pings; two unanswered ones end the connection; 0: no pings. Default:
    0."""
    curve_server: str | None
    """Logjam: The server's public CURVE key, 40 characters of Z85. Default: none."""
    curve_secret: str | Secret | Callable[[], str] | None
    """Logjam: The client's secret CURVE key, 40 characters of Z85, for servers that know their clients.
    Default: a new one for each process."""
    zone: str | None
    """Logjam: Time zone of the importer, such as Europe/Berlin, which reads started_at as its local time.
    Default: this machine's."""
    host_name: str | None
    """Logjam, plog: Host that documents name as their origin. Default: this machine's."""
    cluster: str | None
    """Logjam: Cluster that documents name. Default: none."""
    datacenter: str | None
    """Logjam: Data center that documents name. Default: none."""
    namespace: str | None
    """Logjam: Namespace that documents name. Default: none."""
    revision: str | None
    """Logjam: Revision of the application that documents name. Default: none."""
    mask: str | list[str] | tuple[str, ...] | None
    """Logjam: Further parts of names, separated by commas; = before a whole name. Default: none."""
    event_type: str | None
    """plog: Type in event documents; a server's pipeline may accept only certain types. Default: log."""
    mtu: int | None
    """plog: Largest IP packet in bytes; longer events are sent in fragments. Default: the path's."""
    unboxed: bool | None
    """plog: Send events without a header where possible; the server then neither notices lost events nor
    checks a hash. Default: false."""
    pace: int | None
    """plog: Packets per second; 0: no limit. Default: 10000."""
    burst: int | None
    """plog: Largest number of packets sent at once after a pause. Default: 6.4 ms of the pace, 64 at
    least."""
    pace_bytes: int | str | None
    """plog: Bytes per second; 0: no limit. Default: 64MiB."""
    feedback: Literal["none", "auto", "stat"] | None
    """plog: auto: the pace follows the server's receive queue on the same machine, else its counters (STAT);
    stat: its counters; none: a fixed pace after a slow start. Default: none."""
    user: str | None
    """Logux: User of the connection, the first part of the node id; false: not logged in. Default: false."""
    subprotocol: int | str | None
    """Logux: Version of the application's own protocol, which the server may refuse; 0: none is sent.
    Default: 1."""
    action_type: str | None
    """Logux: Type of the actions that events become. Default: log/add."""
    ack: Literal["processed", "synced"] | None
    """Logux: What acked means. Default: processed."""
    on_doubt: Literal["new_client", "same", "drop"] | None
    """Logux: What happens to actions without an answer after a break: new_client adds them again under a new
    client id, same under the same id, drop fails them as doubt. Default: new_client."""
    ping: float | str | None
    """Logux: Send a ping after this time without any message. Default: 10s."""
    processing_timeout: float | str | None
    """Logux: If the server processes none of the oldest actions for this time, its queue counts as blocked:
    unanswered actions are then treated as after a break, under a new client id. Default: 20s."""
    deflate: Literal["off", "on"] | None
    """Logux: Compress WebSocket messages if the server agrees. Default: off."""
    max_message: int | str | None
    """Logux: A longer message from the server ends the connection. Default: 16MiB."""
    proxy: Literal["env", "none"] | None
    """Logux: env: use the proxy of the environment (https_proxy, no_proxy and so on); none: connect directly.
    Default: env."""
    http_headers: str | Mapping[str, str | Secret | Callable[[], str]] | None
    """Logux: Further headers of the HTTP request that opens the WebSocket, such as Cookie, Authorization or
    Origin. Default: none."""
    state: str | PathLike[str] | None
    """Logux: File in which one client keeps its client id, and the number of the last action received, across
    restarts. Default: none."""
    token: str | Secret | Callable[[], str] | None
    """Logux: Credentials of the connection. Default: none."""
