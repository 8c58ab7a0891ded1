"""``logclient doctor``: test each step up to an acknowledged event, and name a fix for each that fails."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import json
import os
import shutil
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from logclient import config
from logclient._ext.spool import SUPPORTED
from logclient.cli.parser import add_endpoint_arguments
from logclient.cli.ping import EndpointCheck, check_endpoints, describe_security, milliseconds
from logclient.cli.progress import ClientMessages, ProgressLine
from logclient.config import registry
from logclient.delivery.spool import owner_files
from logclient.errors import ConfigError, ExitCode, LedgerError, describe_error
from logclient.files import private_directory
from logclient.readable import escape
from logclient.transports.tcp import resolve
from logclient.transports.udp import Udp

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"

_MOST_ADDRESSES = 8  # the most addresses of a name that are tested
_FEW_DAYS = 14  # a certificate that ends within this number of days is worth a warning
_CLOCK_MS = 1000  # milliseconds by which a server's clock may differ
_TIME_ERROR = 5  # the result of adjtimex(2) for a clock that is not synchronized


class Finding(NamedTuple):
    """The result of one step."""

    step: str
    status: str
    found: str
    mend: str = ""  # the fix; empty: none is needed, or `found` includes it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_endpoint_arguments(parser, "examined", "each step", "findings", "?")
    parser.add_argument("--no-event", action="store_true", help="send no event")
    parser.add_argument(
        "--logging",
        metavar="MODULE:NAME",
        help="examine a program's loggers instead, and say which ones are slow, and why; NAME is its function"
        " that configures logging, or its mapping for dictConfig",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the findings for each endpoint. UNREACHABLE: a step failed."""
    if arguments.logging is not None:
        if arguments.url is not None:
            raise ConfigError("--logging: examines no server: leave out the URL")
        from logclient.cli import loggers

        return loggers.run(arguments.logging, arguments.json)
    if arguments.url is None:
        raise ConfigError("URL: give the servers, or --logging MODULE:NAME")
    whole = config.parse(arguments.url)
    given = whole.for_tests()
    progress = ProgressLine()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    passed = 0
    for endpoint in given.endpoints:
        name = config.host_port(*endpoint)
        findings = []
        if not arguments.json:
            print(escape(f"{given.scheme}://{name}"), flush=True)
        with ClientMessages():  # the findings include them
            steps = examine(given, endpoint, arguments.timeout, event=not arguments.no_event)
            for finding in chain(_spool(whole), steps):
                progress.clear()
                findings.append(finding)
                if not arguments.json:
                    print(*map(escape, _lines(finding, width)), sep="\n", flush=True)
                progress.show(f"  examining {name} ...")
        progress.clear()
        healthy = all(finding.status != FAILED for finding in findings)
        passed += healthy
        if arguments.json:
            found = [finding._asdict() for finding in findings]
            print(json.dumps({"endpoint": name, "protocol": given.protocol, "ok": healthy, "steps": found}))
    return ExitCode.OK if passed == len(given.endpoints) else ExitCode.UNREACHABLE


def _lines(finding: Finding, width: int) -> list[str]:
    """Format a finding as lines of `width` columns; 0: lines are not wrapped."""
    mark = "FAILED" if finding.status == FAILED else "-" if finding.status == SKIPPED else finding.status
    lines = _wrapped(f"  {mark:8} {finding.step:9} ", finding.found, width)
    return [*lines, *_wrapped(f"{'':11}to fix:  ", finding.mend, width)] if finding.mend else lines


def _wrapped(head: str, text: str, width: int) -> list[str]:
    if len(head) + len(text) <= width or width < 2 * len(head):
        return [head + text]
    # Names, addresses and options stay whole, so that they can be copied.
    return textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def examine(
    given: config.Config, endpoint: config.Endpoint, timeout: float, *, event: bool
) -> Iterator[Finding]:
    """Examine one endpoint, step by step, up to the first that fails; the time-out is for each step."""
    transport = registry.load(registry.lookup(given.scheme).transport)(given)
    stream = not isinstance(transport, Udp)
    if transport.proxied(endpoint):
        yield Finding("name", SKIPPED, "left to the proxy of the environment")
        yield Finding("connect", SKIPPED, "through that proxy")
    else:
        addresses, finding = _look_up(endpoint, stream, timeout)
        yield finding
        if finding.status == FAILED:
            return
        finding = Finding("connect", SKIPPED, "UDP has no connections")
        if stream:
            finding = _connect(given, addresses, timeout)
        yield finding
        if finding.status == FAILED:
            return
    [check] = check_endpoints(given.replace(endpoints=(endpoint,)), timeout, event=event)
    yield from _findings(check, stream)


def _spool(given: config.Config) -> Iterator[Finding]:
    directory = given.spool
    if directory is None:
        return
    if not SUPPORTED:
        yield Finding("spool", FAILED, "only Linux can map its files", "leave spool out of the URL")
        return
    try:
        private_directory(directory, "spool")
        writable = os.access(directory, os.R_OK | os.W_OK | os.X_OK)
        read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
        words = owner_files.refusal(directory)
        kind = owner_files.file_system(directory)
        free = shutil.disk_usage(directory).free
    except (OSError, LedgerError) as error:
        text = str(error).removeprefix("spool: ")
        yield Finding("spool", FAILED, text, "give spool a directory of its own that this user can make")
        return
    if not writable or read_only:
        fix = "give this user the right to read and write there"
        yield Finding("spool", FAILED, f"{directory}: cannot be written to", fix)
    elif words:
        yield Finding("spool", FAILED, f"{directory}: {words}", "choose a directory on ext4, xfs or tmpfs")
    elif free < given.spool_bytes:
        found = f"{directory}: {free >> 20} MiB are free, spool_bytes is {given.spool_bytes >> 20} MiB"
        yield Finding("spool", WARNING, found, "make room, or lower spool_bytes")
    else:
        yield Finding("spool", OK, f"{directory} is on {kind or 'a file system'}, {free >> 20} MiB are free")


def _look_up(endpoint: config.Endpoint, stream: bool, timeout: float) -> tuple[list[Any], Finding]:
    """Look up the host, `timeout` seconds at most; returns the addresses with their families, too."""
    host, port = endpoint
    found: list[Any] = []
    failure: list[OSError] = []

    def look() -> None:
        try:
            found.extend(resolve(host, port, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM)[1])
        except OSError as error:
            failure.append(error)

    begun = time.monotonic()
    thread = threading.Thread(target=look, daemon=True)  # a look-up cannot be stopped, only abandoned
    thread.start()
    while thread.is_alive() and time.monotonic() - begun < timeout:
        thread.join(0.1)
    taken = time.monotonic() - begun
    fix = "check that the name servers of this machine can be reached"
    if failure:
        if failure[0].errno != socket.EAI_AGAIN:
            fix = "correct the host in the URL, or add it to the DNS or the hosts file"
        return [], Finding("name", FAILED, f"{host}: {describe_error(failure[0])}", fix)
    if thread.is_alive():
        return [], Finding("name", FAILED, f"{host}: no answer to the look-up in {timeout:g} s", fix)
    addresses = list(dict.fromkeys((family, address) for family, *_, address in found))
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        places = ", ".join(address[0] for _, address in addresses)
        return addresses, Finding("name", OK, f"{host} is {places}, found in {milliseconds(taken)}")
    return addresses, Finding("name", OK, f"{host} is an address")


def _connect(given: config.Config, addresses: list[Any], timeout: float) -> Finding:
    """Connect to every address: a client tries them in turn, and waits for each one that does not answer."""
    reached, failed, fix = [], [], ""
    for family, address in addresses[:_MOST_ADDRESSES]:
        begun, name = time.monotonic(), config.host_port(*address[:2])
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout)
                sock.connect(address)
            reached.append(f"{name} in {milliseconds(time.monotonic() - begun)}")
        except OSError as error:
            failed.append(f"{name}: {describe_error(error)}")
            fix = fix or _fix_connection(given, address[1], error)
    if not reached:
        return Finding("connect", FAILED, ", ".join(failed), fix)
    if failed:
        fix = "repair these addresses, or remove them from the name: a client tries them, too"
        return Finding("connect", WARNING, ", ".join(reached + failed), fix)
    return Finding("connect", OK, ", ".join(reached))


def _fix_connection(given: config.Config, port: int, error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return f"{_fix_server(given, port)}: nothing listens on {port} there"
    if isinstance(error, TimeoutError):
        return f"check that the machine is up, and that no firewall blocks port {port}"
    return "check the network, and the route to that address"


def _fix_server(given: config.Config, port: int) -> str:
    usual = registry.lookup(given.scheme).port
    hint = "" if port == usual else f" ({given.scheme} usually has {usual})"
    return f"start the server, or correct the port{hint}"


def _findings(check: EndpointCheck, stream: bool) -> Iterator[Finding]:
    given = check.given
    encryption = "TLS" if given.tls else "CURVE" if given.options.get("curve_server") is not None else ""
    if check.stage == "connect":
        words = check.explanation.removeprefix("cannot connect: ")
        yield Finding(encryption or "protocol", FAILED, words, _fix_handshake(check))
        return
    if encryption:
        yield _security(encryption, check.security)
    if given.tls:
        yield Finding("pump", OK, check.pump)
    if check.stage == "ask" and check.status != "ok":
        words = check.explanation.removeprefix("but ").removeprefix("then ")
        yield Finding("protocol", FAILED, words, _fix_answer(check, stream))
        return
    yield _protocol(check)
    yield _clock(check)
    if not check.event:
        yield Finding("event", SKIPPED, "none was sent")
    elif check.event_s is None:
        words = check.explanation.removeprefix("an event was ")
        fix = "read the server's log: it accepted the connection and does not acknowledge"
        yield Finding("event", FAILED, words, fix)
    else:
        limit = "" if check.event_outcome == "acknowledged" else "; this protocol has no acknowledgements"
        yield Finding("event", OK, f"{check.event_outcome} in {milliseconds(check.event_s)}{limit}")


def _fix_handshake(check: EndpointCheck) -> str:
    if check.status == "refused":
        return ""  # the error includes it
    if check.given.tls:
        plain = check.given.scheme.removesuffix("+tls")
        return f"if the server has no TLS on this port, use {plain}://"
    return f"check that a {check.given.protocol} server listens on this port, without TLS"


def _security(encryption: str, facts: dict[str, Any]) -> Finding:
    words = describe_security(facts)
    if encryption == "TLS" and not facts["verified"]:
        return Finding(encryption, WARNING, words, "remove verify=none: with it any server is accepted")
    if facts.get("days_left", _FEW_DAYS) < _FEW_DAYS:
        return Finding(encryption, WARNING, words, "renew the certificate at the server")
    return Finding(encryption, OK, words)


def _fix_answer(check: EndpointCheck, stream: bool) -> str:
    given, port = check.given, check.endpoint[1]
    if check.status == "refused":
        return ""
    if check.status == "foreign":
        secure = f"{given.scheme}+tls"
        if check.answers_tls and secure in registry.SCHEMES:
            return f"use {secure}://"
        return f"correct the host or the port: this is no {given.protocol} server"
    if stream:
        did = "closed it" if check.status == "broken" else "does not answer"
        return f"read the server's log: it accepted the connection and {did}"
    if check.status == "broken":
        return f"{_fix_server(given, port)}: nothing listens on {port} there"
    return f"{_fix_server(given, port)}, or check that no firewall drops UDP to it"


def _protocol(check: EndpointCheck) -> Finding:
    protocol = check.given.protocol
    if not check.round_trips_s:
        words = "no answer without an event"
        if check.event_outcome == "handed over":
            words = "this protocol has no answers"
        elif check.event_s is not None:
            words = "this server answers events only"
        return Finding("protocol", SKIPPED, words)
    about = {name.replace("_", " "): value for name, value in check.about.items() if name != "clock_ms"}
    facts = "".join(f", {name} {value}" for name, value in about.items())
    return Finding("protocol", OK, f"{protocol} answers in {milliseconds(check.round_trips_s[0])}{facts}")


def _clock(check: EndpointCheck) -> Finding:
    fix = "synchronize the clocks of both machines, for example by NTP"
    ahead = check.about.get("clock_ms")
    if ahead is not None and abs(ahead) > _CLOCK_MS:
        words = f"the server's is {abs(ahead) / 1000:.1f} s {'ahead of' if ahead > 0 else 'behind'} ours"
        return Finding("clock", WARNING, words, fix)
    server = "the server does not report its time" if ahead is None else f"the server's differs by {ahead} ms"
    synchronized = _synchronized()
    if synchronized is False:
        return Finding("clock", WARNING, f"ours is not synchronized; {server}", fix)
    if synchronized is None:
        return Finding("clock", SKIPPED if ahead is None else OK, server)
    return Finding("clock", OK, f"ours is synchronized; {server}")


def _synchronized() -> bool | None:
    """Ask the kernel whether its clock is synchronized; None: unknown."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        # With 0 in `modes`, the first field of struct timex, the call changes nothing.
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (ImportError, OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR
