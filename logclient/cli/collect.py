"""``logclient collect``: run collectors until a signal, or for some time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from queue import Empty, SimpleQueue
from ssl import SSLContext
from typing import TYPE_CHECKING, Any

from logclient.cli.exits import end_with_reader, signals_handled
from logclient.cli.parser import UsageError, duration, parse_url
from logclient.config import readers
from logclient.config.common import Config
from logclient.config.hosts import dns_name
from logclient.config.readers import is_key
from logclient.config.registry import SCHEMES
from logclient.config.secrets import Secret
from logclient.config.url import decode, split_url
from logclient.errors import ConfigError, ExitCode, LogclientError
from logclient.files import open_to_all
from logclient.logux.config import subprotocol_version
from logclient.readable import escape
from logclient.transports.tls import server_context

if TYPE_CHECKING:
    from logclient.testing.logjam_consumer import Consumer
    from logclient.testing.loop import CollectorBase

    Server = CollectorBase[Any] | Consumer

_TLS = frozenset(("ca", "cert", "key", "tls_password"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "urls",
        nargs="+",
        metavar="URL",
        help="where to listen; port 0 picks a free one; TLS needs ?cert=FILE; logjam+sub://HOST:PORT "
        "subscribes to a Logjam device",
    )
    add("--capture", metavar="DIR", help="keep everything in this directory, for decode and verify")
    add("--rotate", type=duration, metavar="TIME", default=argparse.SUPPRESS,
        help="begin a new segment of the capture after this time, for push")  # fmt: skip
    add("--print", dest="show", action="store_true", help="print each event as a line of JSON as it comes")
    add("--faults", metavar="SPEC", help="misbehave, as in cut-before-ack=every:5,seed=3")
    add("--fault-log", metavar="FILE", help="list the ids of events that faults change")
    add("--for", dest="seconds", type=duration, metavar="TIME", help="stop after this time")
    add("--json", dest="as_json", action="store_true", help="print the counts as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Listen until SIGINT, SIGTERM or the end of the time."""
    if arguments.capture is None and not arguments.show:
        raise UsageError("--capture, --print: at least one of them is required")
    options = {name: value for name, value in vars(arguments).items() if name not in ("debug", "run")}
    if arguments.capture is None:
        end_with_reader()
        if "rotate" in options:
            raise UsageError("--rotate: needs --capture")
    return collect(**options)


def _warn_if_open(path: str) -> None:
    if open_to_all(path):
        print(f"{path}: every user of this machine may read or change it; chmod 600 it", file=sys.stderr)


def _secret(text: str) -> str:
    secret: Secret = readers.secret.read_text(text)
    if secret.source.startswith("file:"):
        _warn_if_open(secret.source.removeprefix("file:"))
    return secret.reveal()


def _keys(path: str) -> frozenset[str]:
    try:
        with open(path, encoding="utf-8") as file:
            found = frozenset(line.strip() for line in file if line.strip())
    except (OSError, ValueError) as error:
        raise ValueError(f"{getattr(error, 'strerror', None) or 'no UTF-8 text'}: {path}") from None
    if not found or not all(is_key(key) for key in found):
        raise ValueError(f"each line of {path} must be a key of 40 characters of Z85")
    return found


# Options of collectors in URLs, by scheme.
_PORT = readers.integer(0, 65535)
_Readers = dict[str, Callable[[str], Any]]
_ALL: _Readers = {"idle": readers.duration(0, 30 * 86400), "max_connections": readers.integer(1, 1_000_000)}
_LUMBERJACK: _Readers = {**_ALL, "strict_spec": readers.boolean}
_LOGJAM: _Readers = {
    **_ALL,
    "push": _PORT,
    "publish": readers.optional(_PORT),
    "stats": _PORT,
    "device": readers.integer(1, (1 << 32) - 1),
    "allow_invalid": readers.boolean,
    "recompress": readers.choice("none", "zlib", "snappy", "lz4"),
    "heartbeat": readers.duration(0, 3600),
    "curve_secret": _secret,
    "curve_clients": _keys,
}
_PLOG: _Readers = {
    **_ALL,
    "tcp": _PORT,
    "allow_kill": readers.boolean,
    "max_size": readers.size(1 << 16, 1 << 32),
    "expire_time": readers.duration(0.001, 86400),
    "max_line": readers.size(1, 1 << 30),
    "receive_buffer": readers.size(0, 1 << 30),
    "reply_rate": readers.integer(0, 1_000_000),
    "kafka": readers.text,
    "kafka_topic": readers.text,
}
_LOGUX: _Readers = {
    **_ALL,
    "token": _secret,
    "subprotocol": subprotocol_version,
    "minimum": subprotocol_version,
    "types": lambda text: frozenset(text.split(",")),
    "development": readers.boolean,
    "keep_log": readers.boolean,
    "strict_spec": readers.boolean,
    "timeout": readers.duration(0, 86400),
    "ping": readers.duration(0, 86400),
    "max_message": readers.size(1 << 10, 1 << 30),
    "deflate": lambda text: bool(readers.choice("off", "on")(text) == "on"),
}
_CONSUMER: _Readers = {
    "app_envs": readers.names,
    "topics": readers.names,
    "hwm": readers.integer(1, 10_000_000),
    "max_bytes": readers.size(1, 1 << 30),
    "curve_server": readers.curve_key,
    "curve_secret": _secret,
}
# The arguments of a collector that have other names than the options.
_ARGUMENTS = {"push": "push_port", "publish": "publish_port", "stats": "stats_port", "tcp": "tcp_port"}
_OWN = {
    "lumberjack": _LUMBERJACK, "logjam": _LOGJAM, "logjam+sub": _CONSUMER, "plog": _PLOG, "logux": _LOGUX,
}  # fmt: skip


def _tls(given: Config) -> SSLContext:
    if given.cert is None:
        raise ConfigError(f"cert: needed to listen on {given.redacted}")
    password = None if given.tls_password is None else given.tls_password.reveal()
    _warn_if_open(given.key or given.cert)
    return server_context(given.cert, given.key, password=password, ca=given.ca)


def _collectors(urls: Sequence[str], **options: Any) -> list[Server]:
    collectors: list[Server] = []
    for url in urls:
        url, own = _own_options(url)
        if url.lower().startswith("logjam+sub:"):
            collectors.append(_consumer(url, {**options, **own}))
            continue
        given = parse_url(url, listen=True)
        if given.scheme not in SCHEMES:
            protocols = sorted({row.protocol for row in SCHEMES.values()})
            raise ConfigError(f"scheme: {given.scheme} has no collector: {', '.join(protocols)}")
        if wrong := given.given.keys() - _TLS:
            raise ConfigError(f"{min(wrong)}: not an option of a collector's URL")
        if given.path:
            raise ConfigError("path: not allowed in a collector's URL")
        if "device" in own and len(given.endpoints) > 1:
            raise ConfigError("device: not allowed with several addresses, which need different numbers")
        if given.scheme == "plog+tcp":
            raise ConfigError(
                "scheme: for lines over TCP give a plog server a port: plog://host:port?tcp=port"
            )
        shared = {**options, "count_duplicates": True, **own}
        if given.tls:
            shared["tls"] = _tls(given)
        make = import_module(f"logclient.testing.{given.protocol}").Collector
        for host, port in given.endpoints:
            if given.protocol != "logjam":
                collectors.append(make(host, port, **shared))
                continue
            # A device with the socket of the URL, one for consumers, and the other kind on request.
            device = {"device": len(collectors) + 1, "push_port": None, **shared}
            if given.scheme != "logjam+push":
                collectors.append(make(host, port, **device))
            elif "push_port" in shared:
                raise ConfigError("push: not with logjam+push, which has this port in the URL")
            else:
                collectors.append(make(host, None, **{**device, "push_port": port}))
    return collectors


def _own_options(url: str) -> tuple[str, dict[str, Any]]:
    head, _, query = url.partition("?")
    scheme = head.partition("://")[0].lower().removesuffix("+tls").removesuffix("+push")
    readers = _OWN.get(scheme, {})
    rest, found = [], {}
    for pair in query.split("&") if query else ():
        name, _, text = pair.partition("=")
        if name not in readers:
            rest.append(pair)
            continue
        argument = _ARGUMENTS.get(name, name)
        if argument in found:
            raise ConfigError(f"{name}: given twice in the URL")
        text = decode(name, text)
        try:
            found[argument] = readers[name](text)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
    return head + ("?" if rest else "") + "&".join(rest), found


def _consumer(url: str, options: dict[str, Any]) -> Consumer:
    from logclient.logjam.subscriber import PORT
    from logclient.testing.logjam_consumer import Consumer

    _, endpoints, path, pairs = split_url(url)
    if not endpoints:
        raise ConfigError("host: must not be empty")
    if pairs:
        raise ConfigError(f"{pairs[0][0]}: not an option of a consumer's URL")
    if path:
        raise ConfigError("path: not allowed in a consumer's URL; use app_envs=")
    for name in ("faults", "fault_log"):
        if options.pop(name, None) is not None:
            raise ConfigError(f"{name}: not with logjam+sub, which only receives")
    places = [(dns_name(host).decode(), PORT if port is None else port) for host, port in endpoints]
    return Consumer(places, **options)


def collect(
    urls: Sequence[str],
    *,
    seconds: Any = None,
    show: bool = False,
    as_json: bool = False,
    **options: Any,
) -> int:
    """Listen on each URL until SIGTERM or SIGINT, or for some seconds; then close the captures.

    When all collectors listen, a JSON line is printed for each one, which docs/commands.md describes, then
    one for each event (`show`). At the end come the first lines again with each collector's report
    (`as_json`), or a summary on stderr. The options are those of collectors. UNREACHABLE: units were not
    captured, which is also printed on stderr at once, or a consumer never reached a device.
    """
    collectors = _collectors(urls, keep=show, **options)
    shown = collectors if show else []
    stopped: SimpleQueue[int] = SimpleQueue()  # its put is reentrant: a signal comes while this thread waits
    with signals_handled(lambda number, _: stopped.put(number)), ExitStack() as running:
        for collector in collectors:
            running.enter_context(collector)
        for collector in collectors:
            print(json.dumps(collector.listens))
        sys.stdout.flush()
        end = float("inf") if seconds is None else time.monotonic() + seconds
        reported: set[str] = set()
        while all(collector.error is None for collector in collectors):
            # Wait a second at most, to notice a collector that has failed.
            _report_troubles(collectors, reported)
            with suppress(Empty):
                stopped.get(timeout=max(0.0, min(0.1 if show else 1.0, end - time.monotonic())))
                break
            if time.monotonic() >= end:
                break
            _print_events(shown)
    _print_events(shown)
    _report_troubles(collectors, reported)
    for collector in collectors:
        if as_json:
            print(json.dumps({**collector.listens, **collector.report}))
        else:
            print(f"{collector.url}: {collector.summary}{_why(collector.report)}", file=sys.stderr)
    sys.stdout.flush()
    unreached = [where for collector in collectors for where in collector.unreached]
    for where in unreached:
        print(f"{where}: no device answered", file=sys.stderr)
    for collector in collectors:
        if isinstance(collector.error, LogclientError | OSError):
            raise LogclientError(f"collector: {collector.url}: {collector.error}") from collector.error
        if collector.error is not None:
            raise collector.error
    incomplete = any(collector.capture_error for collector in collectors)
    return ExitCode.UNREACHABLE if incomplete or unreached else ExitCode.OK


def _report_troubles(collectors: Sequence[Server], reported: set[str]) -> None:
    """Print incomplete captures once, and the first peer that was refused for each reason."""
    for collector in collectors:
        if collector.capture_error and collector.url not in reported:
            reported.add(collector.url)
            print(f"{collector.url}: not captured: {collector.capture_error}", file=sys.stderr)
        for text in getattr(collector, "take_refusals", list)():
            kind = f"{collector.url} {text.partition(': ')[2]}"
            if kind not in reported:
                reported.add(kind)
                print(f"{collector.url}: refused {escape(text)}", file=sys.stderr)


def _why(report: Mapping[str, Any]) -> str:
    """Return the most frequent reasons for refusals as the end of a summary."""
    reasons = Counter(report["reasons"])
    shown = [f"{reason} {count}" for reason, count in reasons.most_common(5)]
    if others := reasons.total() - sum(count for _, count in reasons.most_common(5)):
        shown.append(f"others {others}")
    return f"; refused: {escape(', '.join(shown))}" if shown else ""


def _print_events(collectors: Sequence[Server]) -> None:
    for collector in collectors:
        for event in collector.take():
            text = json.dumps(event, ensure_ascii=False)
            print(text if text.isprintable() else json.dumps(event))
    sys.stdout.flush()
