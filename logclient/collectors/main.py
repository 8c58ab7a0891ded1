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
from logclient.collectors.lumberjack import Collector, Counts
from logclient.errors import ConfigError, ExitCode, LogclientError

if TYPE_CHECKING:
    from ssl import SSLContext

    from logclient.collectors import logjam

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


def _collectors(urls: Sequence[str], **options: Any) -> list[Collector | logjam.Collector]:
    collectors: list[Collector | logjam.Collector] = []
    for url in urls:
        given = config.parse(url, listen=True)
        if given.given - _TLS:
            raise ConfigError(f"{min(given.given - _TLS)}: no option of a collector's URL")
        if given.path:
            raise ConfigError("path: none in a collector's URL, it takes what comes")
        tls = _tls(given) if given.tls else None
        for host, port in given.endpoints:
            if given.protocol == "logjam":
                collectors.append(_device(given.scheme, host, port, len(collectors) + 1, options))
            else:
                collectors.append(Collector(host, port, count_duplicates=True, tls=tls, **options))
    return collectors


def _device(scheme: str, host: str, port: int, number: int, options: dict[str, Any]) -> logjam.Collector:
    """A logjam-device with the one socket of the URL, and one for consumers at any free port."""
    from logclient.collectors import logjam

    push = scheme == "logjam+push"
    return logjam.Collector(
        host,
        None if push else port,
        push_port=port if push else None,
        device=number,
        count_duplicates=True,
        **options,
    )


def _listens(collector: Collector | logjam.Collector) -> dict[str, Any]:
    if isinstance(collector, Collector):
        return {"url": collector.url, "port": collector.port}
    port = collector.push_port if collector.port is None else collector.port
    return {"url": collector.url, "port": port, "publish": collector.publish_url}


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

    Prints ``{"url", "port"}`` for each listener, a JSON line each, once all of them listen; with a Logjam
    device's ``publish``, where consumers connect. At the end, with `as_json`, again a line each: the same,
    every field of ``Counts``, ``cuts``, ``faults`` (how often each struck) and ``reasons`` (of protocol
    errors); else words on stderr.

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
            print(json.dumps(_listens(collector)), file=out)
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
                **_listens(collector),
                **counts._asdict(),
                "cuts": counts.cuts,
                "faults": collector.faults_done,
                "reasons": collector.reasons,
            }
            print(json.dumps(report), file=out)
        else:
            words = f"{counts.captured_events} events"
            if isinstance(counts, Counts):
                words += f" in {counts.captured_windows} windows"
            print(f"{collector.url}: {words} over {counts.connections} connections", file=sys.stderr)
    out.flush()
    for collector in collectors:
        if collector.error is not None:
            raise LogclientError(f"collector: {collector.url}: {collector.error}") from collector.error
    return ExitCode.OK
