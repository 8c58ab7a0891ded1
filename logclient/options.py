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
    """Events held at most: queued, in flight and kept for resend. Default: 250000."""

    max_bytes: int | str | None
    """Bytes held at most, counted the same way. Default: 64MiB."""

    max_event_bytes: int | str | None
    """An encoded event longer than this fails as too_large. Default: 1MiB. Logjam: An encoded event longer
    than this fails as too_large; servers cannot take more than 64 MiB. Default: 8MiB. plog: An encoded event
    longer than this, the id in, fails as too_large; a server takes no more unless its defrag.max_size is
    raised. Default: 256KiB."""

    truncate: bool | None
    """Cut the message of an event that is too large, and mark it, instead of failing it. Default: false."""

    overflow: Literal["drop_oldest", "drop_new", "block", "raise"] | None
    """What happens at a bound: drop_oldest, drop_new, block (callers wait, first come, first served), raise
    (QueueFull; not in a Handler). Default: drop_new (Handler: drop_oldest)."""

    block_timeout: float | str | None
    """How long overflow=block waits before it drops the event; none: until there is room. Default: none."""

    keep_level: int | str | None
    """Events of this level and above are dropped last; none: no level is kept. Default: ERROR."""

    identity: Literal["id", "own", "none"] | None
    """Whether each event carries its id; own: one that the application gave it instead, which must be unique;
    none: verify compares multisets of hashes. See formats.md. Default: id."""

    check: bool | None
    """Check that raw bytes are one JSON object in UTF-8 before they are sent. Default: true."""

    connect_timeout: float | str | None
    """For one attempt to connect to one address. Default: 10s."""

    silence: float | str | None
    """A connection is dropped when something is awaited and nothing is heard for so long. Default: 30s."""

    no_progress: float | str | None
    """A connection is dropped when nothing is acknowledged for so long; keep-alives do not count. Default:
    5m."""

    backoff_min: float | str | None
    """First bound of the random wait before a new attempt to connect. Default: 100ms."""

    backoff_max: float | str | None
    """Last bound of that wait. Default: 30s."""

    slow_min: float | str | None
    """TLS, Logjam, Logux: First bound of the wait after a certificate, key or token that was not accepted;
    half of it is random. Default: 30s."""

    slow_max: float | str | None
    """TLS, Logjam, Logux: Last bound of that wait. Default: 5m."""

    max_age: float | str | None
    """Events that wait longer than this fail as max_age; none: they are kept until sent. Default: none."""

    poison: Literal["fail", "keep"] | None
    """What happens to an event that ends the server's connections while others are taken: it fails as poison,
    or stays in quarantine and is tried now and then. Default: fail."""

    flush_timeout: float | str | None
    """What flush() waits when the call does not say. Default: 5s."""

    close_timeout: float | str | None
    """What a client's close() waits when the call does not say. Default: 5s."""

    atexit_timeout: float | str | None
    """What the end of the process waits for the last events. Default: 2s."""

    nap: float | str | None
    """The sender's pause between two looks at the queue while traffic flows. Default: 5ms."""

    ledger: str | PathLike[str] | None
    """Directory of the ledger; see formats.md. Default: none."""

    ca: str | PathLike[str] | None
    """TLS: Certificates of the authorities that are trusted: a PEM file, or a directory of them. Default: the
    system's."""

    cert: str | PathLike[str] | None
    """TLS: Our own certificate, with what leads up to its authority: a PEM file. Default: none."""

    key: str | PathLike[str] | None
    """TLS: Its private key: a PEM file; none: it is in the file of cert. Default: none."""

    tls_password: str | Secret | None
    """TLS: Password of that key. Default: none."""

    server_name: str | None
    """TLS: The name or address that the server's certificate must be for. Default: the host of the URL."""

    verify: Literal["full", "none"] | None
    """TLS: none: take any certificate, from whomever. For tests. Default: full."""

    window: int | None
    """Lumberjack: Events in a window (batch) at most. Servers refuse more than 10000. Default: 2048. Logux:
    Actions in a sync message at most. Default: 100."""

    window_bytes: int | str | None
    """Lumberjack: Bytes of events in a window at most, without ids, uncompressed; a longer event travels
    alone. Default: 1MiB. Logux: Bytes of actions in a sync message at most, without ids; a longer action
    travels alone. Default: 256KiB."""

    inflight: int | None
    """Lumberjack: Windows sent and not yet acknowledged. Default: 2. Logjam: Requests without a reply at one
    time. Default: 256. Logux: Sync messages sent whose actions have not all got their outcome. Default: 4."""

    compression: int | Literal["auto", "none", "zlib", "snappy", "lz4"] | None
    """Lumberjack: zlib level; 0 sends uncompressed frames. Default: 3. Logjam: Of bodies from compress_over
    on; auto: the first of snappy, lz4 and zlib that goes without the GIL here; see logjam.md. Default:
    auto."""

    version: int | None
    """Lumberjack: Protocol version: 2 sends JSON frames, 1 sends pairs of strings. Default: 2."""

    frames: Literal["json", "data"] | None
    """Lumberjack: What events travel in: json, or data, pairs of strings. A choice only with strict_spec,
    where the default is json. Default: json (version=1: data)."""

    strict_spec: bool | None
    """Lumberjack: Speak to the letter of the protocol's text where released servers differ; see
    lumberjack.md. Default: false. Logux: Speak to the letter of the protocol's text where released servers
    differ; see logux.md. Default: false."""

    trust: Literal["none", "metadata"] | None
    """Lumberjack: metadata: an application's @metadata is sent, all but its _id; none: it is left out. Raw
    bytes are not changed. Default: none."""

    mode: Literal["request", "async"] | None
    """Logjam: request: the server answers each message, and it is acked; async: it is handed. Default:
    request (logjam+push: async)."""

    topic: str | None
    """Logjam: Topic of events that are of no other; <app>-<env> is the path of the URL. Default:
    logs.<app>.<env>. plog: Kafka topic of each event (tag kt:). Default: the server's."""

    compress_over: int | str | None
    """Logjam: Shorter bodies are not compressed. Default: 1KiB."""

    hwm: int | None
    """Logjam: Messages that ZeroMQ takes and holds for one connection; what it holds is lost with that, or
    (requests) sent again. Default: 1000."""

    heartbeat: float | str | None
    """Logjam: Time between two of ZeroMQ's own pings; a connection without an answer to two of them is
    dropped; 0: none. Default: 0."""

    curve_server: str | None
    """Logjam: The server's public CURVE key, 40 characters of Z85: encrypted, and only with that server.
    Default: none."""

    curve_secret: str | Secret | None
    """Logjam: Our own secret CURVE key, 40 characters of Z85, for servers that know their clients. Default: a
    new one for each process."""

    zone: str | None
    """Logjam: Time zone of the importer, as in Europe/Berlin: it reads started_at as its own local time.
    Default: this machine's."""

    host_name: str | None
    """Logjam, plog: What documents say of where they were made. Default: this machine's."""

    cluster: str | None
    """Logjam: The same. Default: none."""

    datacenter: str | None
    """Logjam: The same. Default: none."""

    namespace: str | None
    """Logjam: The same. Default: none."""

    revision: str | None
    """Logjam: The same. Default: none."""

    mask: str | list[str] | tuple[str, ...] | None
    """Logjam: More parts of names, with commas between them, = before a whole name: values of headers and
    parameters with such a name are masked, besides those with password, token and the like. Default: none."""

    event_type: str | None
    """plog: The type that event documents say; a server's pipeline may know only a few. Default: log."""

    mtu: int | None
    """plog: Bytes of an IP packet at most; longer events travel in fragments. Default: the path's."""

    unboxed: bool | None
    """plog: Send without a header what may travel so; the server then sees no holes, and checks nothing.
    Default: false."""

    tags: str | None
    """plog: More tags of each event, with commas between them. Default: none."""

    pace: int | None
    """plog: Packets a second; 0: as fast as it goes. Default: 10000."""

    burst: int | None
    """plog: Packets sent at once after a pause. Default: 6.4 ms of the pace, 64 at least."""

    pace_bytes: int | str | None
    """plog: Bytes a second; 0: as many as go. Default: 64MiB."""

    feedback: Literal["none", "auto", "stat"] | None
    """plog: auto: the pace follows the server's receive queue where it is on this machine, else its counters
    (STAT); stat: its counters; none: pace alone, after a slow start. Default: none."""

    user: str | None
    """Logux: The user of the connection, the first part of the node id; false: nobody is logged in. Default:
    false."""

    subprotocol: int | str | None
    """Logux: Version of the application's own protocol, which the server may refuse; 0: say none. Default:
    1."""

    action_type: str | None
    """Logux: The type of actions that are made of events. Default: log/add."""

    ack: Literal["processed", "synced"] | None
    """Logux: What acked means: processed by the server's code, or only received. Default: processed."""

    on_doubt: Literal["new_client", "same", "drop"] | None
    """Logux: What happens after a break to actions that were sent and have no answer: they are added again
    under a new client id, under the same, or fail as doubt; see logux.md. Default: new_client."""

    ping: float | str | None
    """Logux: A ping goes out when nothing was sent or heard for so long. Default: 10s."""

    jam_after: float | str | None
    """Logux: A server that has received actions and processes none of the oldest for so long has a jammed
    queue: what is in doubt is handled, under a new client id. Default: 20s."""

    deflate: Literal["off", "on"] | None
    """Logux: Compress WebSocket messages where the server agrees. Default: off."""

    max_message: int | str | None
    """Logux: A longer message from the server ends the connection. Default: 16MiB."""

    proxy: Literal["env", "none"] | None
    """Logux: env: through the proxy that the environment names, as in https_proxy and no_proxy; none:
    directly. Default: env."""

    http_headers: str | Mapping[str, str | Secret] | None
    """Logux: More headers of the HTTP request that opens the WebSocket, such as Cookie, Authorization,
    Origin: as a keyword a mapping; in a URL env:NAME or file:PATH, each line Name: value. Values are secrets.
    Default: none."""

    state: str | PathLike[str] | None
    """Logux: A file in which one client keeps its client id and what it has received, over restarts. Default:
    none."""

    token: str | Secret | None
    """Logux: Credentials of the connection. Default: none."""
