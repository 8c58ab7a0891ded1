"""The examination of a server for ``logclient check``: each step up to an acknowledged event, and its fix."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import secrets
import shutil
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from logclient._ext.spool import SUPPORTED
from logclient.cli.probes import probe_of
from logclient.client import Client, Outcome, Stats, open_client
from logclient.config import registry
from logclient.config.common import Config, Endpoint
from logclient.config.documents import DocumentConfig
from logclient.config.hosts import host_port
from logclient.delivery.attempt import Attempt
from logclient.delivery.spool import owner_files
from logclient.errors import ConfigError, CredentialError, LedgerError, ProtocolError, describe_error
from logclient.evidence.frames import shown
from logclient.files import private_directory
from logclient.plog import Client as PlogClient
from logclient.plog.messages import command
from logclient.records.formatters import timestamp
from logclient.transports.addresses import Lookup
from logclient.transports.udp import Udp

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"

_MOST_ADDRESSES = 8  # the most addresses of a name that are tested
_FEW_DAYS = 14  # a certificate that ends within this number of days is worth a warning
_CLOCK_MS = 1000  # milliseconds by which a server's clock may differ
_TIME_ERROR = 5  # the result of adjtimex(2) for a clock that is not synchronized
_FULL = 3000  # random bytes of an event that fills packets
_FULL_ANSWER = "packets of full size arrive, answered"
_MTU = 1500  # bytes of a packet of full size
_PING_HEADERS = 54  # bytes of a ping that are not its payload, with those of IPv6 and UDP
_LARGEST = 40_000  # random bytes of the event that shows the rate
_GRACE_S = 0.5  # seconds beyond the time-out for all addresses of a name together

# The first bytes of answers from other servers, in lower case.
_OTHER_SERVERS = (
    (b"http/", "an HTTP server"),
    (b"<html", "an HTTP server"),
    (b"<!doctype html", "an HTTP server"),
    (b"\x15\x03", "a TLS server"),
    (b"ssh-", "an SSH server"),
)


class Finding(NamedTuple):
    """The result of one step."""

    step: str
    status: str
    found: str
    mend: str = ""  # the fix; empty: none is needed, or `found` includes it
    ms: float | None = None  # the milliseconds that the server took


class Examination:
    """The examination of one endpoint, up to an acknowledged event or, without `event`, to an answer.

    Attributes:
        security: The encryption of the connection and the server's certificate; empty: there is none.
        about: What the server says of itself.
    """

    def __init__(self, given: Config, endpoint: Endpoint, timeout: float, *, event: bool) -> None:
        self.given = given.replace(endpoints=(endpoint,), connect_timeout=min(given.connect_timeout, timeout))
        self.security: dict[str, Any] = {}
        self._probe = probe_of(self.given)
        self.about = self._probe.about
        self._packet = _MTU
        self._ahead_ms: int | None = None  # milliseconds that the server's clock is ahead; None: unknown
        self._endpoint = endpoint
        self._timeout = timeout
        self._event = event
        self._transport = registry.load(registry.lookup(given.scheme).transport)(self.given)
        self._stream = not isinstance(self._transport, Udp)

    def steps(self) -> Iterator[Finding]:
        """Yield what each step finds, up to the first that fails; the time-out is for each step."""
        for finding in chain(self._reach(), self._speak()):
            yield finding
            if finding.status == FAILED:
                return

    def _reach(self) -> Iterator[Finding]:
        if proxy := self._transport.proxy_of(self._endpoint):
            yield Finding("name", SKIPPED, f"left to {proxy}, which the environment names")
            yield Finding("connect", SKIPPED, "through that proxy")
            return
        addresses, finding = self._look_up()
        yield finding
        finding = Finding("connect", SKIPPED, "UDP has no connections")
        # One address of a server over UDP is asked in the next step.
        yield self._connect(addresses) if self._stream or len(addresses) > 1 else finding

    def _look_up(self) -> tuple[list[Any], Finding]:
        """Look up the host; returns the addresses with their families, too."""
        host = self._endpoint[0]
        kind = socket.SOCK_STREAM if self._stream else socket.SOCK_DGRAM
        begun, done = time.monotonic(), threading.Event()
        lookup = Lookup(self._endpoint, kind, done.set)
        done.wait(self._timeout)
        taken = time.monotonic() - begun
        fix = "check that the name servers of this machine can be reached"
        if not done.is_set():
            words = f"{host}: no answer to the look-up in {self._timeout:g} s"
            return [], Finding("name", FAILED, words, fix)
        if not lookup.addresses:
            if lookup.error.errno != socket.EAI_AGAIN:
                fix = "correct the host in the URL, or add it to the DNS or the hosts file"
            return [], Finding("name", FAILED, f"{host}: {describe_error(lookup.error)}", fix)
        addresses = list(dict.fromkeys((family, address) for family, *_, address in lookup.addresses))
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            places = ", ".join(address[0] for _, address in addresses)
            return addresses, _timed("name", f"{host} is {places}, found in", taken)
        return addresses, Finding("name", OK, f"{host} is an address")

    def _connect(self, addresses: list[Any]) -> Finding:
        """Connect to every address, of which a client uses the first that answers."""
        reached, failed, fix = [], [], ""
        for family, address in addresses[:_MOST_ADDRESSES]:
            begun, name = time.monotonic(), host_port(*address[:2])
            try:
                kind = socket.SOCK_STREAM if self._stream else socket.SOCK_DGRAM
                with socket.socket(family, kind) as sock:
                    sock.settimeout(self._timeout)
                    sock.connect(address)
                    if not self._stream:
                        sock.send(command("ping"))
                        sock.recv(100)
                reached.append(_timed("connect", f"{name} in", time.monotonic() - begun))
            except OSError as error:
                failed.append(f"{name}: {describe_error(error)}")
                fix = fix or self._fix_connection(error)
        if not reached:
            return Finding("connect", FAILED, ", ".join(failed), fix)
        finding = reached[0]._replace(found=", ".join([*(one.found for one in reached), *failed]))
        if failed:
            fix = "repair these addresses, or remove them from the name: a client tries them, too"
            return finding._replace(status=WARNING, mend=fix)
        return finding

    def _fix_connection(self, error: OSError) -> str:
        port = self._endpoint[1]
        if error.errno == errno.ECONNREFUSED:
            return f"{self._fix_server()}: nothing listens on {port} there"
        if isinstance(error, TimeoutError):
            return f"check that the machine is up, and that no firewall blocks port {port}"
        return "check the network, and the route to that address"

    def _fix_server(self) -> str:
        scheme = self.given.scheme
        usual = registry.lookup(scheme).port
        hint = "" if self._endpoint[1] == usual else f" ({scheme} usually has {usual})"
        return f"start the server, or correct the port{hint}"

    def _speak(self) -> Iterator[Finding]:
        """Ask the server in its protocol, then send an event."""
        answer = self._ask()
        if self.security:
            yield self._judge_security()
            if self.given.tls:
                pump = "compiled"
                try:
                    self._transport.load_pump()
                except ImportError as error:
                    pump = f"python: {error}"
                yield Finding("pump", OK, pump)
        yield answer
        yield self._judge_clock()
        if self._event:
            yield from self._send_events()
        else:
            yield Finding("event", SKIPPED, "none was sent")

    def _ask(self) -> Finding:
        """Connect as a client does, and ask; returns the answer, or why there is none."""
        given = self.given
        handshake = "TLS" if given.tls else "CURVE" if given.options.get("curve_server") else "protocol"
        end = time.monotonic() + self._timeout + _GRACE_S
        try:
            link = self._transport.connect(self._endpoint, Attempt(lambda: time.monotonic() > end))
        except CredentialError as error:
            return Finding(handshake, FAILED, str(error))
        except OSError as error:
            fix = f"check that a {given.protocol} server listens on this port, without TLS"
            if given.tls:
                fix = f"if the server has no TLS on this port, use {given.scheme.removesuffix('+tls')}://"
            return Finding(handshake, FAILED, describe_error(error), fix)
        try:
            self.security = link.facts()
            self._packet = min(link.mtu or _MTU, self.given.options.get("mtu") or _MTU, _MTU)
            answer = self._await_answer(link)
        except (CredentialError, ProtocolError) as error:
            # After the handshake in TLS 1.3; or an answer of Logux.
            return Finding("protocol", FAILED, str(error))
        except OSError as error:
            answer = describe_error(error)
        finally:
            link.close()
        if isinstance(answer, Finding):
            return answer
        return self._ask() if self._probe.begin_again() else self._broken(answer)

    def _await_answer(self, link: Any) -> Finding | str:
        """Ask; return the answer, or how the connection ended without one."""
        probe, begun = self._probe, time.monotonic()
        question = probe.ask()
        if not question:
            return Finding("protocol", SKIPPED, "this protocol has no answers")
        link.send(question)
        repeated = False
        while (waited := time.monotonic() - begun) < self._timeout:
            if not repeated and waited >= self._timeout / 2:
                repeated = True
                if again := probe.insist():
                    link.send(again)
            link.wait(min(self._timeout - waited, 0.05), False)
            data = link.receive()
            if data is None:
                continue
            if not data:
                return "it closed the connection"
            answered = probe.receive_data(data)
            if answered:
                return self._answered(time.monotonic() - begun)
            if answered is False:
                known = (server for begin, server in _OTHER_SERVERS if data.lower().startswith(begin))
                return self._foreign(next(known, "something else"), data)
        if self._event and probe.may_be_silent:
            return Finding("protocol", SKIPPED, "no answer without an event")
        fix = f"{self._fix_server()}, or check that no firewall drops UDP to it"
        if self._stream:
            fix = "read the server's log: it accepted the connection and does not answer"
        return Finding("protocol", FAILED, f"silence for {self._timeout:g} s: {probe.silence}", fix)

    def _answered(self, taken: float) -> Finding:
        if (now := self.about.pop("time_ms", None)) is not None:
            self._ahead_ms = round(now - (time.time() - taken / 2) * 1000)
        finding = _timed("protocol", f"{self.given.protocol} answers in", taken)
        facts = (f"{name.replace('_', ' ')} {fact}" for name, fact in self.about.items())
        return finding._replace(found=", ".join([finding.found, *facts]))

    def _foreign(self, server: str, data: bytes = b"") -> Finding:
        given = self.given
        if (secret := given.options.get("token")) is not None:  # a server may echo the request
            data = data.replace(json.dumps(secret.reveal(), ensure_ascii=False)[1:-1].encode(), b"***")
        fix = f"correct the host or the port: this is no {given.protocol} server"
        if server == "a TLS server" and f"{given.scheme}+tls" in registry.SCHEMES:
            fix = f"use {given.scheme}+tls://"
        words = f"{server} answers: {shown(data, 60)}" if data else f"{server} answers"
        return Finding("protocol", FAILED, words, fix)

    def _broken(self, why: str) -> Finding:
        if not self.given.tls and self._is_tls_server():
            return self._foreign("a TLS server")
        fix = "read the server's log: it accepted the connection and closed it"
        if not self._stream:
            fix = f"{self._fix_server()}: nothing listens on {self._endpoint[1]} there"
        return Finding("protocol", FAILED, f"{why}, without an answer", fix)

    def _is_tls_server(self) -> bool:
        """Try a TLS handshake: most TLS servers close other connections without an answer."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            with socket.create_connection(self._endpoint, self._timeout) as plain:
                context.wrap_socket(plain).close()
        except ssl.SSLError as error:
            return "_ALERT_" in (error.reason or "")  # refused, but in TLS
        except OSError:
            return False
        return True

    def _judge_security(self) -> Finding:
        facts = self.security
        if "mechanism" in facts:  # of ZeroMQ
            return Finding("CURVE", OK, f"{facts['mechanism']}, the server has the expected key")
        words = f"{facts['version']} {facts['cipher']}"
        if "not_after" not in facts:
            fix = "remove verify=none: with it any server is accepted"
            return Finding("TLS", WARNING, f"{words}, certificate not verified", fix)
        names, days = facts["names"], facts["days_left"]
        subject = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        words += f", certificate for {subject or facts['subject']} from {facts['issuer']} "
        words += f"until {facts['not_after'][:10]} ({days} day{'s'[: days != 1]} left)"
        if days < _FEW_DAYS:
            return Finding("TLS", WARNING, words, "renew the certificate at the server")
        return Finding("TLS", OK, words)

    def _judge_clock(self) -> Finding:
        fix = "synchronize the clocks of both machines, for example by NTP"
        ahead = self._ahead_ms
        if ahead is not None and abs(ahead) > _CLOCK_MS:
            words = f"the server's is {abs(ahead) / 1000:.1f} s {'ahead of' if ahead > 0 else 'behind'} ours"
            return Finding("clock", WARNING, words, fix)
        server = f"the server's differs by {ahead} ms"
        if ahead is None:
            server = "the server does not report its time"
        synchronized = _synchronized()
        if synchronized is False:
            return Finding("clock", WARNING, f"ours is not synchronized; {server}", fix)
        if synchronized is None:
            return Finding("clock", SKIPPED if ahead is None else OK, server)
        return Finding("clock", OK, f"ours is synchronized; {server}")

    def _send_events(self) -> Iterator[Finding]:
        """Send an event through a client, then others that measure the path; all name this command."""
        try:
            client = open_client(self.given)
        except ConfigError as error:  # Logjam's app-env, which no other step needs
            yield Finding("event", FAILED, str(error), "correct the URL, or send no event: --no-event")
            return
        try:
            outcome, taken, _ = self._submit(client, 0)
            yield self._judge_event(outcome, taken, client.stats())
            yield self._measure(client)
        finally:
            client.close(timeout=0.0)

    def _submit(self, client: Client, size: int) -> tuple[Outcome | None, float, int]:
        """Send an event with so many random bytes; return its outcome, the seconds, and the bytes sent."""
        # Logjam's client turns a text into a document that the importer accepts.
        text = f"logclient check from {socket.gethostname()} {secrets.token_urlsafe(size)}".rstrip()
        event: str | dict[str, str] = text
        if isinstance(self.given, DocumentConfig):
            event = {"@timestamp": timestamp(), "message": text, "tags": "logclient-check"}
        begun, before = time.monotonic(), client.stats().bytes_sent
        outcome = client.submit(event).result(self._timeout)
        return outcome, time.monotonic() - begun, client.stats().bytes_sent - before

    def _judge_event(self, outcome: Outcome | None, taken: float, stats: Stats) -> Finding:
        if outcome is not None and outcome.status == "acked":
            return _timed("event", "acknowledged in", taken)
        if outcome is not None and outcome.status == "handed":
            finding = _timed("event", "handed over in", taken)
            return finding._replace(found=f"{finding.found}; this protocol has no acknowledgements")
        why = stats.last_error.removeprefix(f"{self.given.redacted}: ")
        if outcome is not None:
            why = f"{outcome.status}, {outcome.reason}"
        missed = "acknowledged"
        fix = "read the server's log: it accepted the connection and does not acknowledge"
        if not stats.connects:
            missed = "connected"
            fix = "repair the addresses that fail above: the client has not reached the server"
        words = f"not {missed} in {self._timeout:g} s{why and f': {why}'}"
        return Finding("event", FAILED, words, fix)

    def _measure(self, client: Client) -> Finding:
        """Send an event that fills packets, then a larger one: what that takes longer tells the rate."""
        room = self.given.max_event_bytes // 2
        if isinstance(client, PlogClient) and not self._stream:
            with suppress(ConnectionError):
                taken = client.command("ping", bytes(self._packet - _PING_HEADERS), self._timeout)
                return _timed("path", f"{_FULL_ANSWER} in", taken)
        elif not client.stats().acked or room < _FULL:
            return Finding("path", SKIPPED, "unknown: an event of its size has no acknowledgement here")
        else:
            outcome, taken, size = self._submit(client, _FULL)
            if outcome is not None:
                finding = _timed("path", f"{_FULL_ANSWER} in", taken)
                rate, more = size / taken, int(min(_LARGEST, room, size / taken * self._timeout / 5))
                if more > 2 * _FULL:
                    outcome, longer, large = self._submit(client, more)
                    if outcome is not None and longer > taken and large > 2 * size:
                        rate = (large - size) / (longer - taken)
                return finding._replace(found=f"{finding.found}, about {rate / 1000:,.1f} kB/s")
        words = f"packets of full size do not arrive in {self._timeout:g} s, small ones do"
        fix = "let ICMP 'fragmentation needed' pass on the way, or lower the MTU of this machine to 1280"
        return Finding("path", FAILED, words, fix)


def _timed(step: str, words: str, seconds: float) -> Finding:
    """Make a finding of a step that is well, with the time that it took."""
    ms = seconds * 1000
    return Finding(step, OK, f"{words} {ms:.2f} ms" if ms < 100 else f"{words} {ms:.0f} ms", ms=round(ms, 3))


def examine_spool(given: Config) -> Iterator[Finding]:
    """Yield whether the directory of a spool can be used; nothing without one."""
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
