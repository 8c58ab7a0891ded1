"""The client: send events, wait for their fate, look at the counts.

::

    with logclient.connect("lumberjack://127.0.0.1:5044", ledger="run/") as client:
        client.send({"message": "hello"})
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from logclient import registry
from logclient._ext.constants import K_RAW, K_TOMB, R_UNENCODABLE
from logclient._ext.record import Encoder, Sender
from logclient._ext.record import tens as tens
from logclient.config import Config, parse
from logclient.delivery.engine import Engine, Limits
from logclient.delivery.lifecycle import flush_on_sigterm
from logclient.delivery.outcomes import Delivery, Outcome
from logclient.delivery.stats import Stats
from logclient.errors import EncodeError, QueueFull
from logclient.files import open_to_all, own_directory
from logclient.protocols.core import Core

if TYPE_CHECKING:
    from typing import Unpack

    from logclient.options import Options

__all__ = ["Client", "Delivery", "Outcome", "Stats", "connect", "flush_on_sigterm"]

INFO = 20
MOMENT = 0.05
"""Seconds in which a client that has nothing to wait for ends."""
_UNENCODABLE = bytes([R_UNENCODABLE])

Event = Mapping[str, Any] | str | bytes
Level = int | str


def connect(url: str, /, **options: Unpack[Options]) -> Client:
    """A client for `url`, as in ``lumberjack+tls://host:5044,other:5044?window=500``.

    Options by name win over those in the URL (docs/options.md).

    Nothing is connected yet: the first event starts a sender, which connects.

    Raises:
        ConfigError: the URL or an option breaks a rule.
        LedgerError: the ledger's directory cannot be used.
    """
    return open_client(parse(url, **options))


def open_client(config: Config) -> Client:
    """The client that the scheme of this configuration wants: its protocol's own, where it has one."""
    client: Client = registry.load(registry.lookup(config.scheme).client)(config)
    return client


def node_name() -> str:
    """This machine's name."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def outlets(engine: Engine) -> tuple[Callable[[bytes, int, int], int], Callable[[], object]]:
    """For who makes `Documents`: ``put(body, level, kind)`` ships one, and tells its sequence or 0;
    ``lost()`` counts one that was not made. They hold the engine, never the client."""

    def put(body: bytes, level: int, kind: int) -> int:
        return engine.put(body, tens(level), kind)

    def lost() -> None:
        engine.put(_UNENCODABLE, tens(INFO), K_TOMB)

    return put, lost


class Documents(Protocol):
    """What makes documents of records and texts, for a protocol that does not want ECS."""

    formatter: Any  # a logging.Formatter: what a Handler without one says it has

    def ship(self, record: Any, made: str | dict[str, Any] | None) -> object:
        """Ship a LogRecord; `made` is what the user's formatter has made of it, if there is one."""

    def text(self, text: str) -> dict[str, Any]:
        """The document of a plain text."""


class _Unmade:
    """What an object has before its `__init__` in place of its parts: to use it is a TypeError."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TypeError("__init__ of this client or handler has not run")


UNMADE: Any = _Unmade()


class Client(Sender):
    """Ships events to one server (or one of several) and knows the fate of each.

    Every method may be called from any thread. ``send`` is compiled (``_ext/record.pyx``) and never
    waits for the network.
    """

    config: Config = UNMADE
    documents: Documents | None = UNMADE
    _engine: Engine = UNMADE

    def __init__(self, config: Config) -> None:
        self.config = config
        row = registry.lookup(config.scheme)
        transport = registry.load(row.transport)
        ledger = None
        if config.ledger is not None:
            about = {
                "protocol": config.protocol,
                "url": config.redacted,
                "identity": "none" if config.identity == "none" else "id",
                "host": node_name(),
                **self._promise(config),
            }
            ledger = (own_directory(config.ledger, "ledger"), about)
        self._engine = Engine(
            self._cores(config),
            transport.from_config(config),
            config.endpoints,
            _limits(config),
            ledger=ledger,
            url=config.redacted,
        )
        self.documents = self._documents(config, self._engine)
        encoder = Encoder(
            self._engine.handoff,
            max_event_bytes=config.max_event_bytes,
            truncate=config.truncate,
            pairs=config.frames == "data",
            text=None if self.documents is None else self.documents.text,
            identity=config.identity,
            trust_metadata=config.trust == "metadata",
            **self._names(config),
        )
        self._bind(encoder, _slow_sender(self._engine, encoder, config))
        for kind, risk in _risks(config):
            self.complain(kind, f"{config.redacted}: {risk}")
        # A client that nobody holds any more still delivers what it has; its sender then ends.
        weakref.finalize(self, self._engine.orphan).atexit = False

    def _cores(self, config: Config) -> Callable[[bytes], Core]:
        """What makes the core of a producer, and another one after a fork. It never holds the client."""
        core = registry.load(registry.lookup(config.scheme).core)
        return lambda producer: core.from_config(config, producer)

    def _promise(self, config: Config) -> dict[str, str]:
        """What else the ledger must say, so that the verifier knows what was promised."""
        return {}

    def _names(self, config: Config) -> dict[str, Any]:
        """Arguments of `Encoder` that say what the names of fields mean in mappings that are sent."""
        return {"carriers": ("@metadata",)}

    def _documents(self, config: Config, engine: Engine) -> Documents | None:
        """What makes documents, if not `Encoder`. It may hold the engine, never the client: one that
        nobody holds must be found out at once."""
        return None

    def submit(self, event: Event, level: Level = INFO) -> Delivery:
        """Like ``send``, and follow the event: ``submit(event).result(5.0)``. Raises what ``send`` raises."""
        submit = self._engine.submit
        kept = tens(level)
        try:
            body, kind, mangled, moved = _encoded(self.encoder, event)
        except (TypeError, ValueError):
            self.send(event, level)  # counts it, and raises the same
            raise
        if mangled or moved:
            self.handoff.count_changed(mangled, moved)
        return submit(body, kept, kind)

    def flush(self, timeout: float | None = None) -> int:
        """Wait until what was sent before this call has its fate; how many events still have none."""
        return self._engine.flush(self.config.flush_timeout if timeout is None else timeout)

    def flush_while_hopeful(self) -> int:
        """The Handler's flush: as ``flush``, but a server that cannot be reached is not waited for."""
        return self._engine.flush_while_hopeful(self.config.flush_timeout)

    def close(self, timeout: float | None = None) -> int:
        """Deliver what is there and end. Returns how many events were given up, which one line says, too.

        A call that was interrupted, by Ctrl-C for example, may be made again: it goes on where that was.
        Meanwhile delivery goes on, and the end of the process waits for it.
        """
        return self._engine.close(self.config.close_timeout if timeout is None else timeout)

    def retire(self) -> None:
        """The Handler's close: take nothing more, and deliver what is there in the background."""
        self._engine.retire_in_background(MOMENT)

    def stats(self) -> Stats:
        """A snapshot that adds up."""
        return self._engine.stats()

    @property
    def closed(self) -> bool:
        return self._engine.closed

    @property
    def producer(self) -> str:
        """The first 20 hex digits of this process's ids; new after a fork."""
        return self._engine.producer.hex()

    def event_id(self, seq: int) -> str:
        """The id that the event with this sequence carries: 32 hex digits."""
        return f"{self.producer}{seq:012x}"

    def put_slowly(self, code: int, body: bytes, level: int, kind: int) -> int:
        """The Handler's way for what the hand-off did not take at once; never raises."""
        return self._engine.put_slowly(code, body, level, kind)

    def complain(self, kind: str, text: str) -> None:
        """Say what went wrong on our side: a line a minute per kind, never through a Handler of ours."""
        self._engine.reporter.complain(kind, text)

    def attend(self) -> None:
        """The Handler's call while the hand-off needs attention."""
        self._engine.attend()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.config is UNMADE:
            return f"<{type(self).__name__} before its __init__>"
        return f"<Client {self.config.redacted}{' closed' if self.closed else ''}>"


def _risks(config: Config) -> Iterator[tuple[str, str]]:
    """What the options give away: the option, and words for the user."""
    if config.verify == "none":
        yield (
            "verify",
            "verify=none: whoever answers is believed to be the server, and may read and change what is sent",
        )
    in_clear = [name for name in ("token", "http_headers") if getattr(config, name) and not config.tls]
    if in_clear and not all(_is_here(host) for host, _ in config.endpoints):
        for name in in_clear:
            encrypted = f"{config.scheme}+tls encrypts"
            yield name, f"{name}: sent in clear, for all on the way to read and use; {encrypted}"
    secrets = {name: getattr(config, name) for name in ("tls_password", "token", "curve_secret")}
    files = {name: s.source[5:] for name, s in secrets.items() if s is not None and s.source[:5] == "file:"}
    if config.key or config.cert:
        files["key" if config.key else "cert"] = config.key or config.cert
    for name, path in files.items():
        if open_to_all(path):
            yield name, f"{name}: every user of this machine may read or change its file; chmod 600 it"


def _is_here(host: str) -> bool:
    """Whether a connection to the host stays on this machine."""
    from ipaddress import IPv6Address, ip_address

    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (inner or address).is_loopback


def _limits(config: Config) -> Limits:
    same = {name: getattr(config, name) for name in Limits._fields if name in Config._fields}
    same["keep_level"] = config.keep_level // 10
    return Limits(**same, batch_events=config.window, batch_bytes=config.window_bytes)


def _encoded(encoder: Encoder, event: Event) -> tuple[bytes, int, int, int]:
    """(body, kind, mangled values, moved fields)."""
    if isinstance(event, bytes):
        if len(event) > encoder.max_event_bytes:
            raise EncodeError(f"event: longer than max_event_bytes ({encoder.max_event_bytes})")
        return event, K_RAW, 0, 0
    return encoder.encode(event)


def _slow_sender(engine: Engine, encoder: Encoder, config: Config) -> Callable[[int, Event, int], int]:
    """What ``send`` calls when a put was not all there was to do. Holds the engine, not the client: a
    client that nobody holds must be found out at once."""

    def go_on(seq: int, event: Event, level: int) -> int:
        if seq >= 0:
            if engine.handoff.needs_attention:
                engine.attend()
        else:
            body, kind, *_ = _encoded(encoder, event)  # what was changed in it is counted already
            seq = engine.put_slowly(seq, body, level, kind)
            if seq == 0 and config.overflow == "raise" and not engine.closed:
                bound = f"{config.max_events} events or {config.max_bytes} bytes"
                raise QueueFull(f"overflow: {bound} are waiting; the event was dropped")
        return seq

    return go_on
