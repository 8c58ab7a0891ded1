"""`Config`, and the options of every protocol and of TLS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from logclient.config import readers
from logclient.config.option import Option, declared_options, option
from logclient.config.secrets import Secret
from logclient.errors import ConfigError

Endpoint = tuple[str, int]
"""Host and port."""

LARGEST_SPOOLED = (4 << 20) - 4096
"""Bytes of the largest event that a segment of a spool can hold."""

_DAY = 86400.0


class Config:
    """All that a client needs to know, checked. Read-only.

    `parse` makes one. Its attributes are the parts of the URL and all options; durations are seconds, sizes
    bytes. A protocol with options of its own has a subclass that declares them.
    """

    title: ClassVar[str] = ""
    """The name of the protocol in the documentation."""

    scheme: str
    protocol: str
    tls: bool
    endpoints: tuple[Endpoint, ...]
    path: str
    redacted: str
    """The URL without secrets, fit for logs, ledgers and reports."""
    given: Mapping[str, str]
    """The options that are set, each as errors name it: it or its variable."""
    only_tests: bool = False
    """Whether the events only test a server (`for_tests`)."""
    balance: bool = False
    """An option of protocols that can have several connections at a time."""
    proxy: str = "none"
    """An option of protocols over TCP whose servers answer."""
    credentials: ClassVar[tuple[str, ...]] = ()
    """The options whose secrets are sent to the server."""
    changeable: ClassVar[tuple[str, ...]] = ("sample", "rate_limit", "dedupe")
    """The options that ``Client.reconfigure`` changes."""
    backoff_min: ClassVar[float] = 0.1
    """Seconds: the upper bound of the first wait before a new attempt to connect, all of it random."""
    auth_backoff_min: ClassVar[float] = 30.0
    """Seconds: the upper bound of the first wait after rejected credentials, half of it random."""
    auth_backoff_max: ClassVar[float] = 300.0
    """The largest upper bound of that wait."""

    max_events: int = option(
        readers.integer(1, 100_000_000),
        "250000",
        "Largest number of events held: queued, in flight or kept for a resend.",
    )
    max_bytes: int = option(
        readers.size(1024, 1 << 40), "64MiB", "Largest size of the events held, in bytes."
    )
    max_event_bytes: int = option(
        readers.size(64, 1 << 30),
        "1MiB",
        "Largest size of an encoded event; a longer one fails as too_large.",
    )
    truncate: bool = option(
        readers.boolean,
        "false",
        "Cut and mark the message of a document that is too large, instead of failing the event.",
    )
    error_fingerprint: bool = option(
        readers.boolean,
        "false",
        "Give log records with an exception an error.fingerprint, a hash of its type and functions, for "
        "grouping. See events.md.",
    )
    sample: dict[str, float] = option(
        readers.shares,
        "",
        "The share of a Handler's records that are sent, from 0 to 1, by level or by logger, such as "
        "DEBUG=0.1,shop.db=0.5 in a URL. A logger stands for those below it; records of WARNING and above "
        "are sampled by their level only.",
        shown="none",
    )
    rate_limit: int = option(
        readers.integer(0, 1_000_000_000),
        "0",
        "Most records a second that a Handler sends of one message, before its arguments, and logger; 0: any "
        "number. The next one has the number of those held back in labels.suppressed.",
    )
    dedupe: float = option(
        readers.duration(0, _DAY),
        "0s",
        "How long a Handler holds back records with the same text, level and logger; 0: it does not.",
    )
    sample_by: str = option(
        readers.choice("record", "trace"),
        "record",
        "record: sample chooses each record by itself; trace: all records of one trace or request together, "
        "as OpenTelemetry's TraceIdRatioBased does.",
    )
    hold_below: int | None = option(
        readers.optional(readers.level),
        "none",
        "Records of a Handler below this level wait until one of ERROR or above comes in the same request or "
        "task, and are dropped if none does. See filters.md.",
    )
    overflow: str = option(
        readers.policy,
        "drop_new",
        "What happens at a bound: drop_oldest, drop_new, block (callers wait in order), block:5s (for that "
        "time at most; then the event is dropped) or raise (QueueFull from send; not in a Handler).",
        shown="drop_new (Handler and other front ends of logs: drop_oldest; Writer, logclient send: block)",
    )
    keep_level: int = option(
        readers.level,
        "ERROR",
        "Events of this level and above are dropped last; none: all levels are treated alike.",
    )
    identity: str = option(
        readers.choice("id", "own", "none"),
        "id",
        "id: each event carries its id; own: the application provides a unique id; none: events carry no "
        "id, and verify compares them as a multiset of hashes. See formats.md.",
    )
    check: bool = option(
        readers.boolean, "true", "Check that raw bytes are one JSON object in UTF-8 before they are sent."
    )
    connect_timeout: float = option(
        readers.duration(0.001, 3600), "10s", "Longest time for one attempt to connect to one address."
    )
    silence: float = option(
        readers.duration(0.001, _DAY),
        "30s",
        "The connection is closed when the server owes an answer, and for this time neither sends a byte "
        "nor, where the system tells, has taken one of ours.",
    )
    progress_timeout: float = option(
        readers.duration(0.001, 30 * _DAY),
        "5m",
        "The connection is closed when nothing is acknowledged for this time, even if keep-alives arrive.",
    )
    backoff_max: float = option(
        readers.duration(0.001, _DAY),
        "30s",
        "Largest bound of the random wait before a new attempt to connect; the first is 100 ms, and it "
        "is three times as long with each attempt.",
    )
    max_age: float | None = option(
        readers.optional(readers.duration(0.001, 365 * _DAY)),
        "none",
        "Events that wait longer than this fail as max_age; none: no limit.",
    )
    on_delivery: Callable[..., object] | None = option(
        readers.optional(readers.function),
        "none",
        "A function that gets what became of events: a list of logclient.Settlement, some ten times a second "
        "at most. See operations.md.",
    )
    on_drop: Callable[..., object] | None = option(
        readers.optional(readers.function),
        "none",
        "A function that gets a list of logclient.Settlement, one for each event that failed or was dropped, "
        "with its body.",
    )
    fallback: str | None = option(
        readers.optional(readers.file_or_stderr),
        "none",
        "A file for events that failed or were dropped, as JSON lines with the reason; stderr: there. At 64 "
        "MiB the file becomes FILE.1. See operations.md.",
        variable=True,
    )
    on_error: Callable[..., object] | None = option(
        readers.optional(readers.function), "none", "A function that gets each error of the client as text."
    )
    timeout: float = option(
        readers.duration(0, _DAY), "5s", "How long flush() and close() of a client wait by default."
    )
    atexit_timeout: float = option(
        readers.duration(0, 3600), "2s", "How long the end of the process waits for queued events."
    )
    linger: float = option(
        readers.duration(0, 1),
        "5ms",
        "The sender's pause between two looks at the queue while traffic flows.",
    )
    spool: str | None = option(
        readers.optional(readers.directory),
        "none",
        "Directory in which events outlive the process; none: they are in memory only. See spool.md.",
        variable=True,
    )
    spool_mode: str = option(
        readers.choice("overflow", "always"),
        "overflow",
        "overflow: only events for which max_bytes has no room go to the spool; always: all of them.",
    )
    spool_sync: str = option(
        readers.choice("none", "interval", "batch"),
        "none",
        "When the disk has what is spooled. none: when the kernel writes it; interval: within 100 ms; batch: "
        "before it is sent. The last two need spool_mode=always.",
    )
    spool_bytes: int = option(
        readers.size(8 << 20, 1 << 40),
        "256MiB",
        "Largest size of the files that one process has in the spool; beyond it, overflow decides.",
    )
    spool_age: float = option(
        readers.duration(1, 365 * _DAY),
        "24h",
        "Events that have waited longer in the spool are dropped as max_age.",
    )
    ledger: str | None = option(
        readers.optional(readers.directory),
        "none",
        "Directory of the ledger; none: no ledger. See formats.md.",
        variable=True,
    )

    ca: str | None = option(
        readers.optional(readers.file_path),
        "none",
        "Trusted certificate authorities: a PEM file, or a directory of such files.",
        shown="the system's",
        tls_only=True,
        variable=True,
    )
    cert: str | None = option(
        readers.optional(readers.file_path),
        "none",
        "The client's certificate, followed by intermediate ones: a PEM file.",
        tls_only=True,
    )
    key: str | None = option(
        readers.optional(readers.file_path),
        "none",
        "Private key of that certificate: a PEM file; none: the key is in the file of cert.",
        tls_only=True,
    )
    tls_password: Secret | None = option(readers.secret, None, "Password of that key.", tls_only=True)
    server_name: str | None = option(
        readers.optional(readers.host),
        "none",
        "Name or address that the server's certificate must contain.",
        shown="the host of the URL",
        tls_only=True,
    )
    verify: str = option(
        readers.choice("full", "none"),
        "full",
        "full: check the server's certificate and name; none: accept any certificate, for tests only.",
        tls_only=True,
    )

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    @classmethod
    def refusal(cls, option: Option, scheme: str) -> str:
        """Return why a scheme does not have one of the options; empty: it has it."""
        return "only for a scheme with TLS" if option.tls_only and not scheme.endswith("+tls") else ""

    @classmethod
    def complete(cls, scheme: str, values: dict[str, Any], given: set[str]) -> None:
        """Check the options against each other, and set defaults that depend on others.

        Those in `given` are no defaults. `values` may be changed.
        """
        if values["key"] is not None and values["cert"] is None:
            raise ConfigError("key: needs cert")
        if values["ca"] is not None and values["verify"] == "none":
            raise ConfigError("ca: has no use with verify=none")
        if values["max_event_bytes"] > values["max_bytes"]:
            if "max_event_bytes" in given:
                raise ConfigError("max_event_bytes: must not be above max_bytes")
            values["max_event_bytes"] = values["max_bytes"]
        if values["spool"] is None:
            for name in ("spool_mode", "spool_sync", "spool_bytes", "spool_age"):
                if name in given:
                    raise ConfigError(f"{name}: needs spool")
        elif values["spool_sync"] != "none" and values["spool_mode"] != "always":
            raise ConfigError("spool_sync: needs spool_mode=always")
        elif values["max_event_bytes"] > LARGEST_SPOOLED:
            if "max_event_bytes" in given:
                raise ConfigError(f"max_event_bytes: must not be above {LARGEST_SPOOLED} with spool")
            values["max_event_bytes"] = LARGEST_SPOOLED

    @property
    def options(self) -> Mapping[str, Any]:
        """All options by name; secrets stay wrapped."""
        return {name: self.__dict__[name] for name in declared_options(type(self))}

    @property
    def policy(self) -> str:
        """What happens at a bound: `overflow` without the time of ``block``."""
        return self.overflow.partition(":")[0]

    @property
    def block_seconds(self) -> float | None:
        """How long ``block`` waits; None: without limit."""
        time = self.overflow.partition(":")[2]
        return readers.parse_duration(time) if time else None

    @property
    def queued_event_bytes(self) -> int:
        """Bytes that the queue takes of one event: `max_event_bytes`, and what travels beside the event."""
        return self.max_event_bytes

    @property
    def ledger_fields(self) -> dict[str, str]:
        """Further fields of the ledger's ``open`` lines, from which the verifier knows the promise."""
        return {}

    @property
    def encoder_options(self) -> dict[str, Any]:
        """The arguments of `Encoder` that options of the protocol decide."""
        return {}

    @property
    def batch_limits(self) -> tuple[int, int]:
        """The number of events, and of their bytes, that are encoded at a time."""
        return 2048, 1 << 20

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, which are not checked; TypeError: no such attribute."""
        for name in changes:
            if not hasattr(self, name):
                raise TypeError(f"{type(self).__name__} has no {name!r}")
        return type(self)(**{**self.__dict__, **changes})

    def for_tests(self) -> Self:
        """Return a copy for clients that only test a server: without files and functions; its ids say so."""
        nothing = dict.fromkeys(("ledger", "spool", "fallback", "on_delivery", "on_drop", "on_error"))
        return self.replace(**nothing, identity="id", only_tests=True)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: a Config cannot be changed; replace() makes another")

    # Nothing secret is shown either way, as Secret hides itself. This leaves out the defaults.
    def __repr__(self) -> str:
        given = (f", {name}={value!r}" for name, value in self.options.items() if name in self.given)
        return f"Config({self.redacted!r}{''.join(given)})"
