"""The keywords of ``connect``, ``Handler`` and ``AsyncClient``, for type checkers and editors.

Made from the options in logclient/config by ``python -m tools.options``; do not edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Literal, TypedDict

from logclient.config import Secret

__all__ = ["Options"]


class Options(TypedDict, total=False):
    """Options by name; None means the default."""

    max_events: int | None
    """Most events held: queued, in flight and kept for retransmission. Default: 250000."""

    max_bytes: int | str | None
    """Most bytes held, counted in the same way. Default: 64MiB."""

    max_event_bytes: int | str | None
    """An encoded event longer than this fails as too_large. Default: 1MiB. Logjam: An encoded event longer
    than this fails as too_large; servers cannot take more than 64 MiB. Default: 8MiB. plog: An encoded event
    longer than this, with its id, fails as too_large; servers take more only if their defrag.max_size is
    raised. Default: 256KiB."""

    truncate: bool | None
    """Cut the message of a too large event, and mark it, instead of failing the event. Default: false."""

    overflow: Literal["drop_oldest", "drop_new", "block", "raise"] | None
    """What happens at a bound: drop_oldest, drop_new, block (callers wait in order), raise (QueueFull; not in
    a Handler). Default: drop_new (Handler: drop_oldest)."""

    block_timeout: float | str | None
    """How long overflow=block waits before the event is dropped; none: without limit. Default: none."""

    keep_level: int | str | None
    """Events of this level and above are dropped last; none: no level is preferred. Default: ERROR."""

    identity: Literal["id", "own", "none"] | None
    """id: each event carries its id; own: an id that the application gives, which must be unique; none: no
    id, and verify compares multisets of hashes. See formats.md. Default: id."""

    check: bool | None
    """Check that raw bytes are one JSON object in UTF-8 before they are sent. Default: true."""

    connect_timeout: float | str | None
    """Limit for one attempt to connect to one address. Default: 10s."""

    silence: float | str | None
    """The connection is closed when the server owes an answer and sends nothing for this time. Default:
    30s."""

    progress_timeout: float | str | None
    """The connection is closed when nothing is acknowledged for this time; keep-alives do not count. Default:
    5m."""

    backoff_min: float | str | None
    """First upper bound of the random wait before a new attempt to connect. Default: 100ms."""

    backoff_max: float | str | None
    """Last upper bound of that wait. Default: 30s."""

    auth_backoff_min: float | str | None
    """TLS, Logjam, Logux: First upper bound of the wait after rejected credentials (certificate, key or
    token); half of it is random. Default: 30s."""

    auth_backoff_max: float | str | None
    """TLS, Logjam, Logux: Last upper bound of that wait. Default: 5m."""

    max_age: float | str | None
    """Events that wait longer than this fail as max_age; none: without limit. Default: none."""

    poison: Literal["fail", "keep"] | None
    """What becomes of an event on which the server ends its connections while it takes others: fail (it fails
    as poison) or keep (it stays in quarantine and is tried again now and then). Default: fail."""

    flush_timeout: float | str | None
    """How long flush() waits by default. Default: 5s."""

    close_timeout: float | str | None
    """How long close() of a client waits by default. Default: 5s."""

    atexit_timeout: float | str | None
    """How long the end of the process waits for the last events. Default: 2s."""

    linger: float | str | None
    """The sender's pause between two looks at the queue while traffic flows. Default: 5ms."""

    ledger: str | PathLike[str] | None
    """Directory of the ledger; none: no ledger. See formats.md. Default: none."""

    ca: str | PathLike[str] | None
    """TLS: Trusted certificate authorities: a PEM file, or a directory of such files. Default: the
    system's."""

    cert: str | PathLike[str] | None
    """TLS: The client's certificate, with those between it and its authority: a PEM file. Default: none."""

    key: str | PathLike[str] | None
    """TLS: Private key of that certificate: a PEM file; none: it is in the file of cert. Default: none."""

    tls_password: str | Secret | None
    """TLS: Password of that key. Default: none."""

    server_name: str | None
    """TLS: Name or address that the server's certificate must have. Default: the host of the URL."""

    verify: Literal["full", "none"] | None
    """TLS: full: check the server's certificate and name; none: accept any certificate. Only for tests.
    Default: full."""

    window: int | None
    """Lumberjack: Most events in a window (batch). Servers refuse more than 10000. Default: 2048. Logux: Most
    actions in a sync message. Default: 100."""

    window_bytes: int | str | None
    """Lumberjack: Most bytes of events in a window, uncompressed and without ids; a longer event is sent
    alone. Default: 1MiB. Logux: Most bytes of actions in a sync message, without ids; a longer action is sent
    alone. Default: 256KiB."""

    inflight: int | None
    """Lumberjack: Most windows sent and not yet acknowledged. Default: 2. Logjam: Most requests without a
    reply. Default: 256. Logux: Most sync messages with actions that have no outcome yet. Default: 4."""

    compression: int | Literal["auto", "none", "zlib", "snappy", "lz4"] | None
    """Lumberjack: Level of zlib; 0 sends uncompressed frames. Default: 3. Logjam: How bodies from
    compress_over on are compressed; auto: the first of snappy, lz4 and zlib that works without the GIL here.
    See logjam.md. Default: auto."""

    version: int | None
    """Lumberjack: Protocol version: 2 sends JSON frames, 1 sends pairs of strings. Default: 2."""

    frames: Literal["json", "data"] | None
    """Lumberjack: json, or data (pairs of strings). It follows from the version; only strict_spec leaves a
    choice, and its default is json. Default: json (version=1: data)."""

    strict_spec: bool | None
    """Lumberjack: Follow the protocol's text where released servers differ from it; see lumberjack.md.
    Default: false. Logux: Follow the protocol's text where released servers differ from it; see logux.md.
    Default: false."""

    trust: Literal["none", "metadata"] | None
    """Lumberjack: metadata: send the @metadata of an application, except its _id; none: leave it out. Raw
    bytes are not changed. Default: none."""

    mode: Literal["request", "async"] | None
    """Logjam: request: the server answers each message, which is then acked; async: it does not, and events
    are handed. Default: request (logjam+push: async)."""

    topic: str | None
    """Logjam: Topic of events without one of their own; <app>-<env> is the path of the URL. Default:
    logs.<app>.<env>. plog: Kafka topic of each event (tag kt:). Default: the server's."""

    compress_over: int | str | None
    """Logjam: Shorter bodies are not compressed. Default: 1KiB."""

    hwm: int | None
    """Logjam: High-water mark: messages that ZeroMQ holds for one connection. When it breaks they are lost,
    or (requests) sent again. Default: 1000."""

    heartbeat: float | str | None
    """Logjam: Interval of ZeroMQ's own pings; two without an answer end the connection; 0: none. Default:
    0."""

    curve_server: str | None
    """Logjam: The server's public CURVE key, 40 characters of Z85: the connection is encrypted, and only to
    that server. Default: none."""

    curve_secret: str | Secret | None
    """Logjam: The client's secret CURVE key, 40 characters of Z85, for servers that know their clients.
    Default: a new one for each process."""

    zone: str | None
    """Logjam: Time zone of the importer, such as Europe/Berlin: it reads started_at as its local time.
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
    """Logjam: More parts of names, with commas between them; = before a whole name. Values of headers and
    parameters with such names are masked, besides those with password, token and the like. Default: none."""

    event_type: str | None
    """plog: Type in event documents; a server's pipeline may know only a few. Default: log."""

    mtu: int | None
    """plog: Largest IP packet in bytes; longer events are sent in fragments. Default: the path's."""

    unboxed: bool | None
    """plog: Send events without a header where that is possible; the server then notices no lost ones, and
    checks nothing. Default: false."""

    tags: str | None
    """plog: Further tags of each event, with commas between them. Default: none."""

    pace: int | None
    """plog: Packets per second; 0: no limit. Default: 10000."""

    burst: int | None
    """plog: Most packets sent at once after a pause. Default: 6.4 ms of the pace, 64 at least."""

    pace_bytes: int | str | None
    """plog: Bytes per second; 0: no limit. Default: 64MiB."""

    feedback: Literal["none", "auto", "stat"] | None
    """plog: auto: the pace follows the server's receive queue if that is on this machine, else its counters
    (STAT); stat: its counters; none: only the pace, after a slow start. Default: none."""

    user: str | None
    """Logux: User of the connection, the first part of the node id; false: not logged in. Default: false."""

    subprotocol: int | str | None
    """Logux: Version of the application's own protocol, which the server may refuse; 0: send none. Default:
    1."""

    action_type: str | None
    """Logux: Type of the actions that events become. Default: log/add."""

    ack: Literal["processed", "synced"] | None
    """Logux: What acked means. processed: the server's code has processed the action; synced: the server has
    received it. Default: processed."""

    on_doubt: Literal["new_client", "same", "drop"] | None
    """Logux: What becomes of actions without an answer after a break: new_client adds them again under a new
    client id, same under the same id, drop fails them as doubt. See logux.md. Default: new_client."""

    ping: float | str | None
    """Logux: Send a ping after this time without any message. Default: 10s."""

    processing_timeout: float | str | None
    """Logux: A server that has received actions and processes none of the oldest for this time has a blocked
    queue: unanswered actions are treated as after a break, under a new client id. Default: 20s."""

    deflate: Literal["off", "on"] | None
    """Logux: Compress WebSocket messages if the server agrees. Default: off."""

    max_message: int | str | None
    """Logux: A longer message from the server ends the connection. Default: 16MiB."""

    proxy: Literal["env", "none"] | None
    """Logux: env: through the proxy that the environment names, as in https_proxy and no_proxy; none:
    directly. Default: env."""

    http_headers: str | Mapping[str, str | Secret] | None
    """Logux: Further headers of the HTTP request that opens the WebSocket, such as Cookie, Authorization or
    Origin: as a keyword a mapping; in a URL env:NAME or file:PATH of lines Name: value. Values are secrets.
    Default: none."""

    state: str | PathLike[str] | None
    """Logux: File in which one client keeps its client id and what it has received, across restarts. Default:
    none."""

    token: str | Secret | None
    """Logux: Credentials of the connection. Default: none."""
