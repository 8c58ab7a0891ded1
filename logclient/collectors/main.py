"""``logclient collect``: servers that keep what they receive, until told to stop."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from logclient import config
from logclient.collectors.lumberjack import Collector
from logclient.errors import ConfigError, ExitCode, LogclientError

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = ["run"]

_TLS = frozenset(("ca", "cert", "key", "tls_password"))


@contextmanager
def _until_told() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; their handlers are put back afterwards."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told  # signals are the main thread's
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda *_: told.set())
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tls(given: config.Config) -> SSLContext:
    from logclient.transports.tls import server_context

    if given.cert is None:
        raise ConfigError(f"cert: needed to listen on {given.redacted}")
    password = None if given.tls_password is None else given.tls_password.reveal()
    return server_context(given.cert, given.key, password=password, ca=given.ca)


def _collectors(urls: Sequence[str], **options: Any) -> list[Collector]:
    collectors = []
    for url in urls:
        given = config.parse(url, listen=True)
        if given.given - _TLS:
            raise ConfigError(f"{min(given.given - _TLS)}: no option of a collector's URL")
        tls = _tls(given) if given.tls else None
        for host, port in given.endpoints:
            collectors.append(Collector(host, port, count_duplicates=True, tls=tls, **options))
    return collectors


def run(
    urls: Sequence[str],
    *,
    capture: str | None,
    faults: str | None = None,
    witness: str | None = None,
    seconds: float | None = None,
    as_json: bool = False,
    run_name: str | None = None,
    out: TextIO | None = None,
) -> int:
    """Listen on each URL until SIGTERM, SIGINT or for `seconds`; then close the captures.

    Prints ``{"url", "port"}`` for each listener, a JSON line each, once all of them listen. At the end,
    with `as_json`, again a line each: ``url``, ``port``, every field of ``Counts``, ``cuts``, ``faults``
    (how often each struck) and ``reasons`` (of protocol errors); else words on stderr.

    Raises:
        ConfigError: a URL, or the specification of faults, breaks a rule.
        ConnectFailed: an address cannot be listened on.
        LedgerError: capture or witness cannot be used.
    """
    out = sys.stdout if out is None else out
    collectors = _collectors(urls, capture=capture, faults=faults, witness=witness, run=run_name)
    with _until_told() as told, ExitStack() as running:
        for collector in collectors:
            running.enter_context(collector)
        for collector in collectors:
            print(json.dumps({"url": collector.url, "port": collector.port}), file=out)
        out.flush()
        end = None if seconds is None else time.monotonic() + seconds
        while all(collector.error is None for collector in collectors):
            # In bites, to notice a server that died.
            if told.wait(1.0 if end is None else max(0.0, min(1.0, end - time.monotonic()))):
                break
            if end is not None and time.monotonic() >= end:
                break
    for collector in collectors:
        counts = collector.counts
        if as_json:
            report = {
                "url": collector.url,
                "port": collector.port,
                **counts._asdict(),
                "cuts": counts.cuts,
                "faults": collector.faults_done,
                "reasons": collector.reasons,
            }
            print(json.dumps(report), file=out)
        else:
            words = f"{counts.captured_events} events in {counts.captured_windows} windows"
            print(f"{collector.url}: {words} over {counts.connections} connections", file=sys.stderr)
    out.flush()
    for collector in collectors:
        if collector.error is not None:
            raise LogclientError(f"collector: {collector.url}: {collector.error}") from collector.error
    return ExitCode.OK
