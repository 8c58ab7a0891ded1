"""The client: send events, wait for their outcomes, read the counts.

::

    with logclient.connect("lumberjack://127.0.0.1:5044", ledger="run/") as client:
        client.send({"message": "hello"})
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from logclient import threads
from logclient._ext.constants import K_RAW
from logclient._ext.record import Encoder, FastClient, LineEncoder, bytes_refused
from logclient._ext.record import level_index as level_index
from logclient.config import registry
from logclient.config.common import Config
from logclient.config.documents import DocumentConfig
from logclient.config.hosts import is_local
from logclient.config.parsing import changed, parse
from logclient.config.secrets import Secret
from logclient.delivery import lifecycle
from logclient.delivery.contract import Core
from logclient.delivery.lanes import MOST_ENDPOINTS
from logclient.delivery.lifecycle import flush_on_sigterm
from logclient.delivery.outcomes import Delivery, Outcome
from logclient.delivery.peer import Peer
from logclient.delivery.producer import INFO_LEVEL, Producer
from logclient.delivery.sender import Sender
from logclient.delivery.setup import Setup
from logclient.delivery.stats import Stats
from logclient.errors import ConfigError, EncodeError, QueueFull
from logclient.files import open_to_all, private_directory
from logclient.records import context, spans
from logclient.records.formatters import form_of

if TYPE_CHECKING:
    from typing import Unpack

    from logclient.config.options import Options
    from logclient.delivery.spool.owner_files import OrphanSpool
    from logclient.records.revision import Revision, Step
    from logclient.records.sampling import Sampling

__all__ = ["Client", "Delivery", "Outcome", "Stats", "connect", "flush_on_sigterm"]

INFO = 20

Event = Mapping[str, Any] | str | bytes
Level = int | str


def connect(url: str | None = None, /, **options: Unpack[Options]) -> Client:
    """Make a client for a URL.

    This opens no connection: the first event starts a sender, which connects.

    ::

        with logclient.connect("lumberjack://127.0.0.1:5044", ledger="run/") as client:
            client.send({"message": "hello"})

    Args:
        url: scheme, one or more endpoints, and options, such as
            ``lumberjack+tls://host:5044,other:5044?window=500``; None: that of the variable LOGCLIENT_URL.
        options: see docs/options.md. They take precedence over those in the URL, which do so over variables.

    Returns:
        The client of the URL's protocol.

    Raises:
        ConfigError: the URL or an option breaks a rule, or there is no URL.
        LedgerError: the ledger's directory cannot be used.
        MissingExtra: a package that the protocol needs is not installed.
    """
    return open_client(parse(url, **options))


def check_source(url: str | None, client: object, options: Mapping[str, object]) -> None:
    """Refuse what a front end cannot ship through: a client with a URL or options, and what is none."""
    if client is None:
        return
    if url is not None:
        raise TypeError("url: not with a client, which has its own")
    if options:
        raise TypeError(f"{next(iter(options))}: options belong to the client that was given")
    if not hasattr(client, "front_ends"):
        raise TypeError(f"client: must be a logclient.Client, got {type(client).__name__}")


def open_client(config: Config) -> Client:
    """Make a client of the class that the configuration's scheme has."""
    kind: type[Client] = registry.load(registry.lookup(config.scheme).client)
    return kind(config)


class Documents(Protocol):
    """Makes documents of records and texts, for a protocol that does not use ECS."""

    formatter: Any  # a logging.Formatter: the one that a Handler without any reports

    def ship(self, record: Any, made: str | dict[str, Any] | None) -> object:
        """Ship a LogRecord; `made` is the result of the user's formatter, if there is one."""

    def text(self, text: str) -> dict[str, Any]:
        """Return the document of a plain text."""


class Client(FastClient):
    """A client that ships events to one server or to several, and learns the outcome of each.

    ``logclient.connect`` makes one. Every method may be called from any thread. ``send`` waits only with
    ``overflow=block``. Use the client in a ``with`` statement, or call ``close``.

    Methods and attributes that are not described here are for ``logclient.Handler``.

    Args:
        config: the result of ``logclient.config.parsing.parse``.

    Attributes:
        config: the options of the client.

    Raises:
        ConfigError: an option outside its range.
        LedgerError: the ledger's directory cannot be used.
    """

    line_encoder: LineEncoder | None = None  # in place of `documents`, for the records that it takes
    revision: Revision | None = None
    sampling: Sampling | None = None
    _spans: spans.Spans | None = None
    _encoder_options: dict[str, Any] = {"carriers": ("@metadata",)}  # about the names of fields in mappings

    def __init__(self, config: Config) -> None:
        self.config = config
        self.front_ends: weakref.WeakSet[Any] = weakref.WeakSet()  # they have `setLevel`
        self._reconfiguring: dict[int, Any] = {}
        self._sender = _Senders(config, self._core_factory(config)).make()
        # A client without references still delivers its events; then its sender ends.
        weakref.finalize(self, self._sender.background).atexit = False
        self._waiter = self._sender.waiter
        self._peer = Peer(self._sender)
        self.sink = Sink(self._sender)
        self.documents = self._documents(config)
        queue = self._sender.queue
        options: dict[str, Any] = {
            "max_event_bytes": config.max_event_bytes,
            "truncate": config.truncate,
            "text": None if self.documents is None else self.documents.text,
            "identity": config.identity,
            "fingerprint": config.error_fingerprint,
            **config.encoder_options,
            **self._encoder_options,
        }
        common = _common_options(config)
        self._spans = common.get("spans")
        steps = _steps(config)
        form = form_of(config.format) if isinstance(config, DocumentConfig) else None
        if not steps:
            encoder = Encoder(queue, form=form, **common, **options)
        else:
            from logclient.records.revision import Revision

            # The steps see names with dots, whatever is made of them afterwards.
            draft = Encoder(**common, **{**options, "nested": False, "pairs": False})
            encoder = Encoder(queue, form=form, **options)
            self.revision = Revision(draft, encoder, steps, self.sink)
        self.sink.encoder, self.sink.revision = encoder, self.revision
        self._bind(encoder, self.sink, revises=self.revision is not None)
        self._sample(config)
        for kind, risk in _risks(config):
            self.warn_limited(kind, f"{config.redacted}: {risk}")

    def _core_factory(self, config: Config) -> Callable[[bytes], Core]:
        """Return the function that makes a producer's core, also after a fork. It never holds the client."""
        core = registry.load(registry.lookup(config.scheme).core)
        return lambda producer: core(config, producer)

    def _documents(self, config: Config) -> Documents | None:
        """Return the object that makes documents; None: `Encoder` does.

        It may hold the sink, never the client: its finalizer must run when the last user reference goes.
        """
        return None

    def submit(self, event: Event, level: Level = INFO) -> Delivery:
        """Send an event and follow it: ``submit(event).result(5.0)``.

        Args:
            event: a mapping, a string or bytes, as for ``send``.
            level: a level of ``logging``, as a number or by its name, for ``keep_level``.

        Returns:
            The delivery of this event. If the event was dropped at once, its outcome is there already, also
            with ``overflow=raise``.

        Raises:
            EncodeError: the event cannot be encoded (a ValueError or a TypeError).
            ConfigError: there is no such level (a ValueError). After either the event counts as failed.
        """
        sink, kept = self.sink, INFO_LEVEL
        try:
            kept = level_index(level)
            if self.revision is None or isinstance(event, bytes):
                body, kind, sanitized, moved = encoded(self.encoder, event)
                if sanitized or moved:
                    self.queue.count_changed(sanitized, moved)
            else:
                revised = self.revision.make(event)
                if revised is None:
                    return sink.refuse("before_send")
                body, kind = revised
        except (TypeError, ValueError) as error:
            sink.lost(error, kept)
            raise
        return sink.submit(body, kept, kind)

    def flush(self, timeout: float | None = None) -> int:
        """Wait until all events sent before this call have an outcome.

        Args:
            timeout: seconds; None: the option ``timeout``.

        Returns:
            How many of these events have no outcome yet; 0 if all have one.
        """
        return self._waiter.flush(self.config.timeout if timeout is None else timeout)

    def close(self, timeout: float | None = None) -> int:
        """Deliver the queued events and end.

        One line in the error log reports events that were given up. If a call is interrupted, for example by
        Ctrl-C, delivery continues. The end of the process waits for it. Another call of ``close`` resumes the
        wait.

        Args:
            timeout: seconds; None: the option ``timeout``.

        Returns:
            How many events were given up.
        """
        return self._waiter.close(self.config.timeout if timeout is None else timeout)

    def reconfigure(
        self,
        *,
        level: Level | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Change what a running client sends, from the next event on.

        ::

            client.reconfigure(level="DEBUG", sample={"DEBUG": 0.1})
            client.reconfigure(fields={"release": "2.4.2"}, environment="staging")

        For another server, or any other option, make a new client, then close the old one.

        Args:
            level: a level of ``logging`` for all Handlers, and other front ends, of this client.
            options: ``sample``, ``rate_limit``, ``dedupe``; with Lumberjack and Logux also ``fields``,
                ``service``, ``environment``, ``tags``, ``enrich``, ``redact``. Each replaces its old value;
                None restores the default.

        Raises:
            ConfigError: a value breaks a rule, or the option cannot change while the client runs. Then
                nothing has changed.
        """
        number = None if level is None else level_number(level)
        with threads.lock_here(self._reconfiguring):
            config = changed(self.config, options)
            if options and isinstance(config, DocumentConfig):
                draft = self.encoder if self.revision is None else self.revision.draft
                if "redact" in options:
                    for encoder in {draft, self.encoder}:
                        encoder.set_redact(config.redact)
                if self._spans is not None:
                    self._spans.service = config.service is None
                draft.set_fields(_common_fields(config))
            self._sample(config)
            self.config = config
        if number is not None:
            self._set_level(number)

    def _set_level(self, number: int) -> None:
        for front_end in lifecycle.members(self.front_ends):
            front_end.setLevel(number)

    def _sample(self, config: Config) -> None:
        """Hold back the records that the options say."""
        given = config.sample, config.rate_limit, config.dedupe
        if self.sampling is not None:
            self.sampling.change(*given)
        elif any(given):
            from logclient.records.sampling import Sampling, draw_of_trace

            options: dict[str, Any] = {"random": draw_of_trace} if config.sample_by == "trace" else {}
            self.sampling = Sampling(*given, self.queue.count_filtered, **options)
            for front_end in lifecycle.members(self.front_ends):
                front_end.sampling = self.sampling

    def stats(self) -> Stats:
        """Return all counts in one consistent snapshot."""
        return self._sender.stats()

    @property
    def closed(self) -> bool:
        """Whether the client is closed and refuses events."""
        return self._sender.closed

    @property
    def producer(self) -> str:
        """The first 20 hexadecimal digits of the ids of this client; a forked child has others."""
        return self._sender.producer

    def event_id(self, seq: int) -> str:
        """Return the id of an event.

        Args:
            seq: the sequence, as returned by ``send``.

        Returns:
            32 hexadecimal digits: ``producer``, then the sequence.
        """
        return f"{self.producer}{seq:012x}"

    def warn_limited(self, kind: str, text: str) -> None:
        """Write a line to the error log, at most once a minute for each kind, never through our Handlers."""
        self.sink.report(kind, text)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not hasattr(self, "config"):
            return f"<{type(self).__name__} before its __init__>"
        return f"<Client {self.config.redacted}{' closed' if self.closed else ''}>"


def _risks(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the options that weaken security, each with a description for the user."""
    if config.verify == "none":
        yield (
            "verify",
            "verify=none: the server's identity is not checked, so an attacker may read and change events",
        )
    options = config.options
    in_clear = [name for name in config.credentials if options[name] and not config.tls]
    if in_clear and not all(is_local(host) for host, _ in config.endpoints):
        for name in in_clear:
            encrypted = f"{config.scheme}+tls encrypts"
            yield name, f"{name}: sent unencrypted, so others on the path may read and use it; {encrypted}"
    secrets = {name: value.source for name, value in options.items() if isinstance(value, Secret)}
    files: dict[str, Any] = {
        name: source[5:] for name, source in secrets.items() if source.startswith("file:")
    }
    if config.key or config.cert:
        files["key" if config.key else "cert"] = config.key or config.cert
    for name, path in files.items():
        if open_to_all(path):
            yield name, f"{name}: every user of this machine may read or change its file; chmod 600 it"


def _common_fields(config: DocumentConfig) -> dict[str, Any]:
    """Return the fields that all events have.

    Those of ``fields`` win over the other options, and these over ``enrich``.
    """
    found: dict[str, Any] = {}
    if config.enrich:
        from logclient.records.host import fields_of

        found = fields_of(config.enrich)
    if config.service is not None:
        found["service.name"] = config.service
    if config.environment is not None:
        found["service.environment"] = config.environment
    if config.tags:
        found["tags"] = list(config.tags)
    return {**found, **config.fields}


def _common_options(config: Config) -> dict[str, Any]:
    """Return the arguments of `Encoder` about fields that all events have."""
    if not isinstance(config, DocumentConfig):
        return {}
    from logclient.records.times import corrected

    return {
        "fields": _common_fields(config),
        "bound": context.current,
        "spans": spans.Spans(service=config.service is None) if config.opentelemetry else None,
        "timestamp": config.timestamp,
        "correct": corrected,
        "rename": config.rename,
        "extra_prefix": config.extra_prefix,
    }


def _steps(config: Config) -> tuple[Step, ...]:
    if not isinstance(config, DocumentConfig):
        return ()
    found: tuple[Step, ...] = ()
    if config.redact_text:
        from logclient.records.revision import replace_patterns

        found = (replace_patterns(config.redact_text),)
    return found if config.before_send is None else (*found, config.before_send)


def level_number(level: Level) -> int:
    """Return a level of ``logging`` as a number; a ConfigError: there is no such level."""
    if isinstance(level, str):
        from logging import getLevelNamesMapping

        level = getLevelNamesMapping().get(level.upper(), level)
    if not isinstance(level, int) or isinstance(level, bool):
        raise ConfigError(f"level: must be a number, or the name of a level such as ERROR, got {level!r:.40}")
    return level


class _Senders:
    """Makes a client's sender, and one for what each dead owner left in its spool. Never holds the client."""

    def __init__(self, config: Config, make_core: Callable[[bytes], Core]) -> None:
        self._config = config
        self._make_core = make_core
        self._ledger: tuple[str, dict[str, str]] | None = None
        if config.ledger is not None:
            from logclient.records.host import node_name

            about = {
                "protocol": config.protocol,
                "url": config.redacted,
                "identity": "none" if config.identity == "none" else "id",
                "host": node_name(),
                **config.ledger_fields,
            }
            self._ledger = (private_directory(config.ledger, "ledger"), about)

    def _transports(self) -> list[Any]:
        """Make one transport, or one for each server; each sender has its own, and closes them."""
        config = self._config
        count = len(config.endpoints) if config.balance else 1
        if count > MOST_ENDPOINTS:
            raise ConfigError(f"balance: for {MOST_ENDPOINTS} servers at most")
        if config.balance and len(set(config.endpoints)) < count:
            raise ConfigError("balance: each server once")
        transport = registry.load(registry.lookup(config.scheme).transport)
        return [transport(config) for _ in range(count)]

    def make(self, orphan: OrphanSpool | None = None, on_end: Callable[[], object] = lambda: None) -> Sender:
        config = self._config
        return Sender(
            Setup(
                self._make_core,
                self._transports(),
                config,
                ledger=self._ledger,
                make_replayer=self.make,
                orphan=orphan,
                on_end=on_end,
            )
        )


def encoded(encoder: Encoder, event: Event) -> tuple[bytes, int, int, int]:
    """Return (body, kind, sanitized values, moved fields)."""
    if isinstance(event, bytes):
        if encoder.pairs:
            raise bytes_refused()
        if len(event) > encoder.max_event_bytes:
            error = EncodeError(f"event: longer than max_event_bytes ({encoder.max_event_bytes})")
            error.reason = "too_large"
            raise error
        return event, K_RAW, 0, 0
    return encoder.encode(event)


class Sink(Producer):
    """What ``send`` and handlers call when an event needs more than a put. It never holds the client."""

    encoder: Encoder
    revision: Revision | None  # before it

    def put_or_raise(self, body: bytes, level: int, kind: int, code: int | None = None) -> int:
        """Put an event, or finish a put, as ``send`` does.

        Raises:
            QueueFull: with ``overflow=raise``.
        """
        seq = self.put(body, level, kind) if code is None else self.put_slowly(code, body, level, kind)
        if seq == 0 and self._config.overflow == "raise" and not self.closed:
            bound = f"{self._config.max_events} events or {self._config.max_bytes} bytes"
            raise QueueFull(f"overflow: {bound} are waiting; the event was dropped")
        return seq

    def send_slowly(self, seq: int, event: Event, level: int) -> int:
        """Finish a ``send`` whose event the queue has not just taken."""
        if seq < 0:
            body, kind, *_ = encoded(self.encoder, event)  # its changed values are counted already
            return self.put_or_raise(body, level, kind, seq)
        if self._queue.needs_sender:
            self.ensure_sender()
        return seq

    def revise(self, event: Event, level: int) -> int:
        """Send what the revision makes of an event."""
        assert self.revision is not None
        try:
            return self.revision.send(event, level)
        except QueueFull:
            raise  # it is counted
        except Exception as error:
            self.lost(error, level)
            raise
