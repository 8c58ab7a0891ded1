"""``logclient doctor``: each step from here to an acknowledged event, and what to mend where one fails.

It looks up names and connects by itself. What it asks the server, and the event, are those of ``ping``.
"""

from __future__ import annotations

import argparse
import errno
import ipaddress
import json
import shutil
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from logclient import config, registry
from logclient.cli import Complaints, Progress
from logclient.errors import ExitCode
from logclient.ping import Call, calls, duration, identity, words_of
from logclient.protocols.readable import escape
from logclient.transports.tcp import resolve

__all__ = ["Finding", "examine", "run"]

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"

_MOST_ADDRESSES = 8
_FEW_DAYS = 14
"""Days before the end of a certificate from which it is worth a warning."""

_CLOCK_MS = 1000
"""Milliseconds that a server's clock may differ by."""

_TIME_ERROR = 5  # of adjtimex(2): the clock is not synchronized


class Finding(NamedTuple):
    """What one step has shown."""

    step: str
    status: str
    found: str
    mend: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Print what was found for each endpoint; `UNREACHABLE` unless every step of each is done."""
    given = config.parse(arguments.url)._replace(ledger=None, state=None)
    progress = Progress()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    well = 0
    for endpoint in given.endpoints:
        name = config.host_port(*endpoint)
        findings = []
        if not arguments.json:
            print(escape(f"{given.scheme}://{name}"), flush=True)
        with Complaints():  # what a client says is in the findings
            for finding in examine(given, endpoint, arguments.timeout, event=not arguments.no_event):
                progress.done()
                findings.append(finding)
                if not arguments.json:
                    print(*map(escape, _lines(finding, width)), sep="\n", flush=True)
                progress.show(f"  looking at {name} ...")
        progress.done()
        fine = all(finding.status != FAILED for finding in findings)
        well += fine
        if arguments.json:
            steps = [finding._asdict() for finding in findings]
            print(json.dumps({"endpoint": name, "protocol": given.protocol, "ok": fine, "steps": steps}))
    return ExitCode.OK if well == len(given.endpoints) else ExitCode.UNREACHABLE


def _lines(finding: Finding, width: int) -> list[str]:
    """What is printed; `width`: of a terminal, 0 where lines have no end."""
    mark = "FAILED" if finding.status == FAILED else "-" if finding.status == SKIPPED else finding.status
    lines = _folded(f"  {mark:8} {finding.step:9} ", finding.found, width)
    return [*lines, *_folded(f"{'':11}to mend:  ", finding.mend, width)] if finding.mend else lines


def _folded(head: str, text: str, width: int) -> list[str]:
    if len(head) + len(text) <= width or width < 2 * len(head):
        return [head + text]
    # Names, addresses and options stay whole: somebody will copy them.
    return textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def examine(
    given: config.Config, endpoint: config.Endpoint, timeout: float, *, event: bool
) -> Iterator[Finding]:
    """Every step in order, up to the first that fails.

    Args:
        given: the way there.
        endpoint: the one to look at.
        timeout: seconds for the look-up, for each connection and for each answer.
        event: whether to send one.
    """
    from logclient.transports.udp import Udp

    transport = registry.load(registry.lookup(given.scheme).transport).from_config(given)
    stream = not isinstance(transport, Udp)
    if transport.proxied(endpoint):
        yield Finding("name", SKIPPED, "the proxy of the environment looks it up")
        yield Finding("connect", SKIPPED, "through that proxy")
    else:
        addresses, finding = _look_up(endpoint, stream, timeout)
        yield finding
        if finding.status == FAILED:
            return
        finding = _connect(given, addresses, timeout) if stream else _NO_CONNECTIONS
        yield finding
        if finding.status == FAILED:
            return
    [call] = calls(given._replace(endpoints=(endpoint,)), timeout, event=event)
    yield from _called(call, stream)


_NO_CONNECTIONS = Finding("connect", SKIPPED, "UDP has no connections")


# -- the name, and the way there


def _look_up(endpoint: config.Endpoint, stream: bool, timeout: float) -> tuple[list[Any], Finding]:
    """(its socket addresses with their families, the finding)."""
    host, port = endpoint
    found: list[Any] = []
    failure: list[OSError] = []

    def look() -> None:
        try:
            found.extend(resolve(host, port, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM)[1])
        except OSError as error:
            failure.append(error)

    begun = time.monotonic()
    thread = threading.Thread(target=look, daemon=True)  # nobody can stop a look-up: leave it to itself
    thread.start()
    while thread.is_alive() and time.monotonic() - begun < timeout:
        thread.join(0.1)
    taken = time.monotonic() - begun
    if failure:
        mend = "correct the host in the URL, or make it known where this machine looks up names"
        if getattr(failure[0], "errno", None) == socket.EAI_AGAIN:
            mend = "see whether the name servers of this machine can be reached"
        return [], Finding("name", FAILED, f"{host}: {words_of(failure[0])}", mend)
    if thread.is_alive():
        mend = "see whether the name servers of this machine can be reached"
        return [], Finding("name", FAILED, f"{host}: no answer to the look-up in {timeout:g} s", mend)
    addresses = list(dict.fromkeys((family, address) for family, *_, address in found))
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        places = ", ".join(address[0] for _, address in addresses)
        return addresses, Finding("name", OK, f"{host} is {places}, found in {duration(taken)}")
    return addresses, Finding("name", OK, f"{host} is an address")


def _connect(given: config.Config, addresses: list[Any], timeout: float) -> Finding:
    """Every address by itself: a client takes the first that answers, and waits for those before it."""
    reached, failures = [], []
    for family, address in addresses[:_MOST_ADDRESSES]:
        begun = time.monotonic()
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout)
                sock.connect(address)
            reached.append(f"{_place(address)} in {duration(time.monotonic() - begun)}")
        except OSError as error:
            failures.append((address, error))
    said = [f"{_place(address)}: {words_of(error)}" for address, error in failures]
    if not reached:
        return Finding("connect", FAILED, ", ".join(said), _way(given, *failures[0]))
    if failures:
        mend = "mend these addresses, or take them from the name: a client tries them, too"
        return Finding("connect", WARNING, ", ".join(reached + said), mend)
    return Finding("connect", OK, ", ".join(reached))


def _place(address: Any) -> str:
    return config.host_port(*address[:2])


def _way(given: config.Config, address: Any, error: OSError) -> str:
    """What to mend where there is no connection."""
    port = address[1]
    if error.errno == errno.ECONNREFUSED:
        return f"{_start(given, port)}: nothing listens on {port} there"
    if isinstance(error, TimeoutError):
        return f"see whether that machine is up, and whether a firewall keeps port {port} closed"
    return "see whether there is a network, and a route to that address"


def _start(given: config.Config, port: int) -> str:
    usual = registry.lookup(given.scheme).port
    hint = "" if port == usual else f" ({given.scheme} usually has {usual})"
    return f"start the server, or correct the port{hint}"


# -- what the server says


def _called(call: Call, stream: bool) -> Iterator[Finding]:
    given = call.given
    shield = "TLS" if given.tls else "CURVE" if given.curve_server is not None else ""
    if call.stage == "connect":
        yield Finding(
            shield or "protocol", FAILED, call.words.removeprefix("cannot connect: "), _shaken(call)
        )
        return
    if shield:
        yield _shielded(shield, call.facts)
    if call.stage == "ask" and call.status != "ok":
        words = call.words.removeprefix("but ").removeprefix("then ")
        yield Finding("protocol", FAILED, words, _strange(call) if stream else _unheard(call))
        return
    yield _protocol(call)
    yield _clock(call)
    if not call.event:
        yield Finding("event", SKIPPED, "none was sent")
    elif call.event_s is None:
        words = call.words.removeprefix("an event was ")
        mend = "look into the server's log: it has the connection, and does not acknowledge"
        yield Finding("event", FAILED, words, mend)
    else:
        none = "" if call.event_fate == "acknowledged" else ", as far as this protocol can tell"
        yield Finding("event", OK, f"{call.event_fate} in {duration(call.event_s)}{none}")


def _shaken(call: Call) -> str:
    """What to mend where a connection was made, but no handshake."""
    if call.status == "refused":
        return ""  # the words say it
    if call.given.tls:
        plain = call.given.scheme.removesuffix("+tls")
        return f"if the server has no TLS on this port, the URL begins with {plain}://"
    return f"see whether a {call.given.protocol} server has this port, and wants no TLS"


def _shielded(shield: str, facts: dict[str, Any]) -> Finding:
    words = identity(facts)
    if shield == "TLS" and not facts["verified"]:
        return Finding(shield, WARNING, words, "leave out verify=none: it believes whoever answers")
    if facts.get("days_left", _FEW_DAYS) < _FEW_DAYS:
        return Finding(shield, WARNING, words, "renew the certificate at the server")
    return Finding(shield, OK, words)


def _strange(call: Call) -> str:
    """What to mend where the answer is no good one."""
    given = call.given
    if call.status == "refused":
        return ""
    if call.status == "foreign":
        secure = f"{given.scheme}+tls"
        if call.is_tls and secure in registry.SCHEMES:
            return f"begin the URL with {secure}://"
        return f"correct the host or the port: a {given.protocol} server is needed there"
    if call.status == "broken":
        return "look into the server's log: it took the connection, and ended it"
    return "look into the server's log: it took the connection, and says nothing"


def _unheard(call: Call) -> str:
    """What to mend where a datagram has no answer, or not the right one."""
    port = call.endpoint[1]
    if call.status == "broken":
        return f"{_start(call.given, port)}: nothing listens on {port} there"
    if call.status == "silent":
        return f"{_start(call.given, port)}, or see whether a firewall drops UDP to it"
    return _strange(call)


def _protocol(call: Call) -> Finding:
    protocol = call.given.protocol
    if not call.round_trips_s:
        words = "no answer without an event"
        if call.event_fate == "handed over":
            words = "nothing is ever answered there"
        elif call.event_s is not None:
            words = "this server answers to events only"
        return Finding("protocol", SKIPPED, words)
    about = "".join(
        f", {name.replace('_', ' ')} {value}" for name, value in call.about.items() if name != "clock_ms"
    )
    return Finding("protocol", OK, f"{protocol} answers in {duration(call.round_trips_s[0])}{about}")


def _clock(call: Call) -> Finding:
    mend = "have the clocks synchronized, as by NTP, on both machines"
    ahead = call.about.get("clock_ms")
    if ahead is not None and abs(ahead) > _CLOCK_MS:
        words = f"the server's is {abs(ahead) / 1000:.1f} s {'ahead of' if ahead > 0 else 'behind'} ours"
        return Finding("clock", WARNING, words, mend)
    server = "the server does not tell its time" if ahead is None else f"the server's differs by {ahead} ms"
    synchronized = _synchronized()
    if synchronized is False:
        return Finding("clock", WARNING, f"ours is not synchronized; {server}", mend)
    if synchronized is None:
        return Finding("clock", SKIPPED if ahead is None else OK, server)
    return Finding("clock", OK, f"ours is synchronized; {server}")


def _synchronized() -> bool | None:
    """Whether the kernel says that its clock is; None where it does not say."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        # Of struct timex only its first field matters, `modes`: 0 asks, and changes nothing.
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (ImportError, OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR
