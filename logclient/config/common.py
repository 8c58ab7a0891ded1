"""`Config`, and the options of every protocol and of TLS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from logclient.config.option import declared_options, option
from logclient.config.readers import (
    boolean,
    choice,
    directory,
    duration,
    file_path,
    host,
    integer,
    level,
    optional,
    secret,
    size,
)
from logclient.config.secrets import Secret
from logclient.errors import ConfigError

__all__ = ["Config", "Endpoint"]

Endpoint = tuple[str, int]
"""Host and port."""

_DAY = 86400.0


class Config:
    """All that a client needs to know, checked. Read-only.

    `parse` makes one. Its attributes are the parts of the URL and all options; durations are seconds, sizes
    bytes. A protocol with options of its own has a subclass that declares them.
    """

    title: ClassVar[str] = ""
    """What the documentation calls the protocol."""

    scheme: str
    protocol: str
    tls: bool
    endpoints: tuple[Endpoint, ...]
    path: str
    redacted: str
    """The URL without secrets, fit for logs, ledgers and reports."""
    given: frozenset[str]
    """Names of the options that the URL or a keyword sets."""

    max_events: int = option(
        integer(1, 100_000_000),
        "250000",
        "Events held at most: queued, in flight and kept for resend.",
    )
    max_bytes: int = option(
        size(1024, 1 << 40),
        "64MiB",
        "Bytes held at most, counted the same way.",
    )
    max_event_bytes: int = option(
        size(64, 1 << 30),
        "1MiB",
        "An encoded event longer than this fails as too_large.",
    )
    truncate: bool = option(
        boolean,
        "false",
        "Cut the message of an event that is too large, and mark it, instead of failing it.",
    )
    overflow: str = option(
        choice("drop_oldest", "drop_new", "block", "raise"),
        "drop_new",
        "What happens at a bound: drop_oldest, drop_new, block (callers wait, first come, first served), "
        "raise (QueueFull; not in a Handler).",
        shown="drop_new (Handler: drop_oldest)",
    )
    block_timeout: float | None = option(
        optional(duration(0, 365 * _DAY)),
        "none",
        "How long overflow=block waits before it drops the event; none: until there is room.",
    )
    keep_level: int = option(
        level,
        "ERROR",
        "Events of this level and above are dropped last; none: no level is kept.",
    )
    identity: str = option(
        choice("id", "own", "none"),
        "id",
        "Whether each event carries its id; own: one that the application gave it instead, which must be "
        "unique; none: verify compares multisets of hashes. See formats.md.",
    )
    check: bool = option(
        boolean,
        "true",
        "Check that raw bytes are one JSON object in UTF-8 before they are sent.",
    )
    connect_timeout: float = option(
        duration(0.001, 3600),
        "10s",
        "For one attempt to connect to one address.",
    )
    silence: float = option(
        duration(0.001, _DAY),
        "30s",
        "A connection is dropped when something is awaited and nothing is heard for so long.",
    )
    no_progress: float = option(
        duration(0.001, 30 * _DAY),
        "5m",
        "A connection is dropped when nothing is acknowledged for so long; keep-alives do not count.",
    )
    backoff_min: float = option(
        duration(0.001, 3600),
        "100ms",
        "First bound of the random wait before a new attempt to connect.",
    )
    backoff_max: float = option(
        duration(0.001, _DAY),
        "30s",
        "Last bound of that wait.",
    )
    slow_min: float = option(
        duration(0.001, _DAY),
        "30s",
        "First bound of the wait after a certificate, key or token that was not accepted; half of it is "
        "random.",
        tls_only=True,
    )
    slow_max: float = option(
        duration(0.001, _DAY),
        "5m",
        "Last bound of that wait.",
        tls_only=True,
    )
    max_age: float | None = option(
        optional(duration(0.001, 365 * _DAY)),
        "none",
        "Events that wait longer than this fail as max_age; none: they are kept until sent.",
    )
    poison: str = option(
        choice("fail", "keep"),
        "fail",
        "What happens to an event that ends the server's connections while others are taken: it fails as "
        "poison, or stays in quarantine and is tried now and then.",
    )
    flush_timeout: float = option(
        duration(0, _DAY),
        "5s",
        "What flush() waits when the call does not say.",
    )
    close_timeout: float = option(
        duration(0, _DAY),
        "5s",
        "What a client's close() waits when the call does not say.",
    )
    atexit_timeout: float = option(
        duration(0, 3600),
        "2s",
        "What the end of the process waits for the last events.",
    )
    nap: float = option(
        duration(0, 1),
        "5ms",
        "The sender's pause between two looks at the queue while traffic flows.",
    )
    ledger: str | None = option(
        optional(directory),
        "none",
        "Directory of the ledger; see formats.md.",
    )

    ca: str | None = option(
        optional(file_path),
        "none",
        "Certificates of the authorities that are trusted: a PEM file, or a directory of them.",
        shown="the system's",
        tls_only=True,
    )
    cert: str | None = option(
        optional(file_path),
        "none",
        "Our own certificate, with what leads up to its authority: a PEM file.",
        tls_only=True,
    )
    key: str | None = option(
        optional(file_path),
        "none",
        "Its private key: a PEM file; none: it is in the file of cert.",
        tls_only=True,
    )
    tls_password: Secret | None = option(
        secret,
        None,
        "Password of that key.",
        tls_only=True,
    )
    server_name: str | None = option(
        optional(host),
        "none",
        "The name or address that the server's certificate must be for.",
        shown="the host of the URL",
        tls_only=True,
    )
    verify: str = option(
        choice("full", "none"),
        "full",
        "none: take any certificate, from whomever. For tests.",
        tls_only=True,
    )

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    @classmethod
    def complete(cls, scheme: str, values: dict[str, Any], given: set[str]) -> None:
        """Check the options against each other, and set defaults that depend on others.

        Args:
            scheme: Of the URL.
            values: All options by name; may be changed.
            given: Names of those that are no defaults.

        Raises:
            ConfigError: Options contradict each other.
        """
        if values["backoff_min"] > values["backoff_max"]:
            raise ConfigError("backoff_min: must not be above backoff_max")
        if values["slow_min"] > values["slow_max"]:
            raise ConfigError("slow_min: must not be above slow_max")
        if values["key"] is not None and values["cert"] is None:
            raise ConfigError("key: needs cert")
        if values["ca"] is not None and values["verify"] == "none":
            raise ConfigError("ca: has no use with verify=none")
        if values["max_event_bytes"] > values["max_bytes"]:
            if "max_event_bytes" in given:
                raise ConfigError("max_event_bytes: must not be above max_bytes")
            values["max_event_bytes"] = values["max_bytes"]

    @property
    def options(self) -> Mapping[str, Any]:
        """All options by name; secrets stay wrapped."""
        return {name: self.__dict__[name] for name in declared_options(type(self))}

    @property
    def batch_limits(self) -> tuple[int, int]:
        """How many events, and how many bytes of them, are encoded at a time."""
        return 2048, 1 << 20

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, which are not checked.

        Raises:
            TypeError: There is no such attribute.
        """
        for name in changes:
            if name not in self.__dict__:
                raise TypeError(f"{type(self).__name__} has no {name!r}")
        return type(self)(**{**self.__dict__, **changes})

    def without_files(self) -> Self:
        """Return a copy that keeps no ledger and no state: for clients that only test a server."""
        return self.replace(ledger=None)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: a Config cannot be changed; replace() makes another")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    # Nothing secret is shown either way, as Secret hides itself. This leaves out the defaults.
    def __repr__(self) -> str:
        given = (f", {name}={value!r}" for name, value in self.options.items() if name in self.given)
        return f"Config({self.redacted!r}{''.join(given)})"
